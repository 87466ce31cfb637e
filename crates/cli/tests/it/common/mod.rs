//! What the end-to-end tests share: the program, its documents, and images made by QEMU.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testkit::{run, scratch};

/// Where the program is: `LEANDISK_PROGRAM` names one that was built in another way, such as with `make static`.
pub fn program() -> String {
    std::env::var("LEANDISK_PROGRAM").unwrap_or_else(|_| env!("CARGO_BIN_EXE_leandisk").to_owned())
}

/// The program, ready to be given arguments. Its surroundings do not reach it.
pub fn leandisk() -> Command {
    let mut command = Command::new(program());
    let restic = std::env::vars().map(|(name, _)| name);
    let restic = restic.filter(|name| name.starts_with("RESTIC_") || name.starts_with("AWS_"));
    for name in ["NO_COLOR", "RUST_LOG", "JOURNAL_STREAM"].map(String::from).into_iter().chain(restic) {
        command.env_remove(name);
    }
    command
}

/// Runs the program to its end.
pub fn output(args: &[&str]) -> Output {
    leandisk().args(args).output().unwrap()
}

/// Runs the program, which shall succeed, and answers what it printed.
pub fn succeed(args: &[&str]) -> String {
    let output = output(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "leandisk {args:?}: {}\n{stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the program, which shall succeed, and answers the document it printed, of this schema.
pub fn document(schema: &str, args: &[&str]) -> Value {
    let text = succeed(&[args, &["--json"]].concat());
    let document: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
    assert_eq!(document["schema"], schema);
    assert!(
        text.trim_start().trim_start_matches('{').trim_start().starts_with("\"schema\""),
        "schema comes first"
    );
    document
}

/// Runs the program, which shall fail with this status and a message; answers the message. Where it is a refusal of a command that can
/// be asked what it would do, that is asked first, and ends with the same status.
pub fn fail(status: i32, args: &[&str]) -> String {
    let has_dry_run = ["copy", "defrag", "compact"].contains(&args[0]) && !args.contains(&"--dry-run");
    if status == 3 && has_dry_run {
        failed(status, &[args, &["--dry-run"]].concat());
    }
    failed(status, args)
}

fn failed(status: i32, args: &[&str]) -> String {
    let output = output(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "leandisk {args:?}: {stderr}");
    assert!(stderr.contains("leandisk: ") || status == 2, "a message: {stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    stderr
}

/// A path as an argument.
pub fn arg(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The number at this path of a document.
pub fn number(document: &Value, pointer: &str) -> u64 {
    document.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{pointer} of {document:#}"))
}

/// A kind of image as QEMU makes it.
pub struct Kind {
    /// For messages and file names, the extension included.
    pub name: &'static str,
    /// Our name of the format.
    pub format: &'static str,
    qemu_format: &'static str,
    qemu_args: &'static [&'static str],
}

const fn kind(
    name: &'static str,
    format: &'static str,
    qemu_format: &'static str,
    qemu_args: &'static [&'static str],
) -> Kind {
    Kind { name, format, qemu_format, qemu_args }
}

/// Every kind that QEMU can write and Leandisk reads.
pub const SOURCES: [Kind; 16] = [
    kind("source.raw", "raw", "raw", &[]),
    kind("fixed.vhd", "vhd", "vpc", &["-o", "subformat=fixed,force_size=on"]),
    kind("dynamic.vhd", "vhd", "vpc", &["-o", "subformat=dynamic,force_size=on"]),
    kind("dynamic.vhdx", "vhdx", "vhdx", &["-o", "subformat=dynamic"]),
    kind("fixed.vhdx", "vhdx", "vhdx", &["-o", "subformat=fixed"]),
    kind("sparse.vmdk", "vmdk", "vmdk", &["-o", "subformat=monolithicSparse"]),
    kind("flat.vmdk", "vmdk", "vmdk", &["-o", "subformat=monolithicFlat"]),
    kind("two-gb-sparse.vmdk", "vmdk", "vmdk", &["-o", "subformat=twoGbMaxExtentSparse"]),
    kind("two-gb-flat.vmdk", "vmdk", "vmdk", &["-o", "subformat=twoGbMaxExtentFlat"]),
    kind("stream.vmdk", "vmdk", "vmdk", &["-o", "subformat=streamOptimized"]),
    kind("v2.qcow2", "qcow2", "qcow2", &["-o", "compat=0.10"]),
    kind("extended.qcow2", "qcow2", "qcow2", &["-o", "extended_l2=on,cluster_size=128k"]),
    kind("zlib.qcow2", "qcow2", "qcow2", &["-c"]),
    kind("zstd.qcow2", "qcow2", "qcow2", &["-c", "-o", "compression_type=zstd"]),
    kind("dynamic.vdi", "vdi", "vdi", &[]),
    kind("static.vdi", "vdi", "vdi", &["-o", "static=on"]),
];

impl Kind {
    /// The raw disk as an image of this kind in `dir`.
    pub fn make(&self, raw: &Path, dir: &Path) -> PathBuf {
        let path = dir.join(self.name);
        // Without `-S 0` QEMU would leave out what is zeros anyhow; stale bytes are not.
        let mut args = vec!["convert", "-f", "raw", "-O", self.qemu_format];
        args.extend(self.qemu_args);
        args.extend([arg(raw), arg(&path)]);
        run("qemu-img", &args);
        path
    }
}

/// What a copy can be asked to make.
pub struct Target {
    /// File name, whose extension is the format's.
    pub name: &'static str,
    /// What else to say.
    pub args: &'static [&'static str],
    /// QEMU's name of the format.
    pub qemu_format: &'static str,
    /// Whether `qemu-img check` knows the format.
    pub checkable: bool,
}

const fn target(
    name: &'static str,
    args: &'static [&'static str],
    qemu_format: &'static str,
    checkable: bool,
) -> Target {
    Target { name, args, qemu_format, checkable }
}

/// Every kind that Leandisk writes.
pub const TARGETS: [Target; 11] = [
    target("target.raw", &[], "raw", false),
    target("fixed.vhd", &["-o", "subformat=fixed"], "vpc", false),
    target("dynamic.vhd", &["-o", "subformat=dynamic"], "vpc", false),
    target("dynamic.vhdx", &[], "vhdx", true),
    target("sparse.vmdk", &["-o", "subformat=monolithicSparse"], "vmdk", true),
    target("stream.vmdk", &["-o", "subformat=streamOptimized"], "vmdk", true),
    target("plain.qcow2", &[], "qcow2", true),
    target("small.qcow2", &["-o", "cluster_size=4096"], "qcow2", true),
    target("zlib.qcow2", &["--compress", "-o", "compression=zlib"], "qcow2", true),
    target("zstd.qcow2", &["--compress", "-o", "compression=zstd"], "qcow2", true),
    target("dynamic.vdi", &[], "vdi", true),
];

impl Target {
    /// Copies `source` to a target of this kind in `dir`, with these further arguments.
    pub fn copy(&self, source: &Path, dir: &Path, more: &[&str]) -> PathBuf {
        let path = dir.join(self.name);
        succeed(&[&["copy", arg(source), arg(&path)], self.args, more].concat());
        assert_only(dir, &[self.name]);
        if self.checkable {
            run("qemu-img", &["check", "-q", "-f", self.qemu_format, arg(&path)]);
        }
        path
    }

    /// The options that make QEMU take the image for what it is, and of its real size.
    pub fn image_options(&self, path: &Path) -> String {
        match self.qemu_format {
            // QEMU trusts the geometry unless told that the size in the footer is meant.
            "vpc" => format!("driver=vpc,force_size_calc=current_size,file.filename={}", path.display()),
            format => format!("driver={format},file.filename={}", path.display()),
        }
    }

    /// What QEMU reads in `image`, which is of this kind, as a raw file at `to`.
    pub fn to_raw(&self, image: &Path, to: &Path) {
        let options = self.image_options(image);
        run("qemu-img", &["convert", "--image-opts", "-O", "raw", &options, arg(to)]);
    }

    /// Panics unless QEMU reads in `image` exactly what the raw disk has, the size included.
    pub fn assert_identical(&self, image: &Path, raw: &Path) {
        let options = self.image_options(image);
        let info = run("qemu-img", &["info", "--output=json", "--image-opts", &options]);
        let info: Value = serde_json::from_str(&info).unwrap();
        assert_eq!(number(&info, "/virtual-size"), fs::metadata(raw).unwrap().len(), "size of {options}");
        let raw = format!("driver=raw,file.filename={}", raw.display());
        run("qemu-img", &["compare", "-q", "--image-opts", &options, &raw]);
    }
}

/// Panics unless both files are the same, byte for byte.
pub fn assert_same_bytes(a: &Path, b: &Path) {
    let len = |path: &Path| fs::metadata(path).unwrap().len();
    assert_eq!(len(a), len(b), "lengths of {} and {}", a.display(), b.display());
    run("cmp", &[arg(a), arg(b)]);
}

/// Panics unless the folder holds just these names.
pub fn assert_only(dir: &Path, names: &[&str]) {
    let mut found = names_in(dir);
    let mut wanted: Vec<String> = names.iter().map(ToString::to_string).collect();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted, "what lies in {}", dir.display());
}

/// Whether somebody listens at a socket: it has its name a moment before that. Nobody connects for the answer.
pub fn is_listening(socket: &Path) -> bool {
    // The kernel's `__SO_ACCEPTCON`, in the fourth column.
    const ACCEPTS: &str = "00010000";
    let all = fs::read("/proc/net/unix").unwrap();
    String::from_utf8_lossy(&all).lines().any(|line| {
        let mut columns = line.split_whitespace();
        columns.nth(3) == Some(ACCEPTS) && columns.last() == socket.to_str()
    })
}

/// The names in a folder.
pub fn names_in(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The contents, times and rights of files, to see whether anything about them changes.
pub struct Untouched {
    files: Vec<(PathBuf, String)>,
}

impl Untouched {
    /// Remembers all files in `dir`.
    pub fn all_in(dir: &Path) -> Self {
        let mut paths: Vec<_> = names_in(dir).iter().map(|name| dir.join(name)).collect();
        paths.sort();
        Self { files: paths.into_iter().map(|path| (path.clone(), fingerprint(&path))).collect() }
    }

    /// Panics if one of them changed, appeared or went.
    pub fn check(&self, dir: &Path) {
        let now = Self::all_in(dir);
        assert_eq!(now.files, self.files);
    }
}

fn fingerprint(path: &Path) -> String {
    let meta = fs::symlink_metadata(path).unwrap();
    let sum = meta.is_file().then(|| testkit::digest(path));
    let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
    format!("{} {} {:o} {times:?} {sum:?}", meta.ino(), meta.len(), meta.mode())
}

/// Blocks of 4 KiB that a file stores in which each byte is this one.
pub fn blocks_full_of(byte: u8, path: &Path) -> usize {
    let is_full = |block: &&[u8]| block.iter().all(|found| *found == byte);
    testkit::stored(path).iter().map(|(_, bytes)| bytes.chunks(4096).filter(is_full).count()).sum()
}

/// Bytes of a file that the host has storage for, but never wrote, as filefrag prints them.
pub fn unwritten_bytes(disk: &Path) -> u64 {
    let lines = run("filefrag", &["-b1", "-v", arg(disk)]);
    let extents = lines.lines().filter(|line| line.contains("unwritten"));
    let length = |line: &str| line.split(':').nth(3).and_then(|length| length.trim().parse::<u64>().ok());
    extents.map(|line| length(line).unwrap_or_else(|| panic!("{line}"))).sum()
}

/// The journal of a change of `disk` that was interrupted before it did anything.
pub fn leave_journal(disk: &Path) -> PathBuf {
    let len_bytes = fs::metadata(disk).unwrap().len();
    let header = journal::Header::without_volume(journal::Identity::default(), len_bytes);
    os::create_journal(disk, None, header).unwrap().path().to_owned()
}

/// Sends a signal to a child, if it is still there.
pub fn signal(child: &Child, name: &str) {
    let signal = match name {
        "CONT" => Signal::CONT,
        "INT" => Signal::INT,
        "KILL" => Signal::KILL,
        "STOP" => Signal::STOP,
        "TERM" => Signal::TERM,
        name => panic!("no signal that tests send: {name}"),
    };
    let _ = kill_process(Pid::from_child(child), signal);
}

/// Waits until `done` or the child's end; answers whether it was `done`.
pub fn wait_until(child: &mut Child, done: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if done() {
            return true;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "nothing happened");
        sleep(Duration::from_micros(100));
    }
    false
}

/// The folder in `/proc` of the process that opens files for a confined program.
pub fn broker_of(program: &Child) -> Option<PathBuf> {
    let parent = format!("\nPPid:\t{}\n", program.id());
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let is_child =
        |folder: &PathBuf| fs::read_to_string(folder.join("status")).is_ok_and(|text| text.contains(&parent));
    processes.into_iter().find(is_child)
}

/// Waits for the end of the process with this folder in `/proc`.
pub fn wait_for_end(process: &Path) {
    let until = Instant::now() + Duration::from_secs(10);
    while process.exists() {
        assert!(Instant::now() < until, "{} is left", process.display());
        sleep(Duration::from_millis(5));
    }
}

/// Kills copies in their midst, resumes them, and has the targets judged, until `at_least` have gone on from where they were.
/// `copy` says how to copy to a path, and `slowly` what the first attempt is asked besides.
pub fn kill_and_resume<'a>(
    targets: impl IntoIterator<Item = &'a Target> + Clone,
    copy: impl Fn(&Path) -> Vec<String>,
    slowly: &[&str],
    judge: impl Fn(&Target, &Path),
    at_least: u32,
) {
    let mut resumed = 0;
    // Signals come too early, before anything is copied, or on a busy machine too late, when all is.
    for attempt in 1..=10 {
        let delay = Duration::from_millis(5) * attempt;
        resumed += kill_and_resume_once(targets.clone(), &copy, slowly, &judge, delay);
        println!("{resumed} copies were resumed");
        if resumed >= at_least {
            return;
        }
    }
    panic!("only {resumed} copies were resumed");
}

fn kill_and_resume_once<'a>(
    targets: impl IntoIterator<Item = &'a Target>,
    copy: &impl Fn(&Path) -> Vec<String>,
    slowly: &[&str],
    judge: &impl Fn(&Target, &Path),
    delay: Duration,
) -> u32 {
    let started: Vec<_> = targets
        .into_iter()
        .map(|target| {
            let dir = scratch();
            let path = dir.path().join(target.name);
            let args = [copy(&path), target.args.iter().map(ToString::to_string).collect()].concat();
            let mut command = leandisk();
            command.args(&args).args(slowly).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = command.spawn().unwrap();
            wait_until(&mut child, || !names_in(dir.path()).is_empty());
            sleep(delay);
            signal(&child, "STOP");
            (target, dir, args, child)
        })
        .collect();
    // Progress is first stored after 1 s. A copy that is stopped for so long in its midst has it due at once when it goes on.
    sleep(Duration::from_secs(2));
    let mut resumed = 0;
    for (target, dir, args, mut child) in started {
        let path = dir.path().join(target.name);
        let progress = dir.path().join(format!(".{}.leandisk-progress", target.name));
        signal(&child, "CONT");
        wait_until(&mut child, || progress.exists());
        let broker = broker_of(&child);
        child.kill().unwrap();
        child.wait().unwrap();
        broker.iter().for_each(|broker| wait_for_end(broker));
        // A kill after the last step comes too late: the target is whole.
        if !path.exists() {
            let output = leandisk().args(&args).arg("--resume").output().unwrap();
            let message = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.success(), "{}: {message}", target.name);
            resumed += u32::from(message.contains("going on after"));
            assert_only(dir.path(), &[target.name]);
        }
        judge(target, &path);
    }
    resumed
}
