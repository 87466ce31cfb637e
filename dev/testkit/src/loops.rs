//! Files, or parts of them, as block devices of the kernel, and the end of mounts, which needs root.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use crate::guest::as_root;
use crate::tools::{run, said, scratch};

/// How long somebody else may hold what is unmounted or detached.
const PATIENCE: Duration = Duration::from_secs(30);

/// Shows a program (the third argument and what follows) these devices (the second), in a folder of its own (the first), and none of the others.
/// What others mounted from files is not kept mounted by it.
const ALONE: &str = r#"
grep ^/dev/loop /proc/self/mounts | while read -r _ point _; do umount -l "$(printf %b "$point")" || :; done
mount -t tmpfs none "$1"
cp -a /dev/null $2 "$1"
mount --bind "$1" /dev
shift 2
exec "$@"
"#;

/// A part of a file.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The file.
    pub file: &'a Path,
    /// Where in it the part begins.
    pub start_bytes: u64,
    /// How long it is; 0 for all that follows.
    pub len_bytes: u64,
}

/// Block devices, as long as the value lives. What they are devices of is forgotten with them.
pub struct Loops {
    names: Vec<String>,
    files: Vec<PathBuf>,
}

impl Loops {
    /// Attaches a device to each part.
    pub fn attach(parts: &[Part<'_>]) -> Self {
        let mut loops = Self { names: Vec::new(), files: Vec::new() };
        for Part { file, start_bytes, len_bytes } in parts {
            let (start, len) = (start_bytes.to_string(), len_bytes.to_string());
            let args = ["--show", "-f", "-o", &start, "--sizelimit", &len, file.to_str().unwrap()];
            loops.names.push(run("losetup", &args).trim().to_owned());
            loops.files.push(file.to_path_buf());
        }
        loops
    }

    /// Names of the devices, in the order of the parts.
    pub fn names(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }

    /// A program that sees these devices and no others of the machine. `btrfs` looks at all that there are for those that belong together, and
    /// gives up at one that somebody else is detaching.
    pub fn seen_alone(&self, program: &[&str]) -> Output {
        let folder = scratch();
        let alone = ["--mount", "--propagation", "slave", "sh", "-euc", ALONE, "sh"];
        let mut command = Command::new("unshare");
        command.args(alone).arg(folder.path()).arg(self.names.join(" ")).args(program);
        command.output().unwrap_or_else(|error| panic!("unshare: {error}"))
    }

    /// The standard output of `btrfs` with these arguments, which sees these devices alone. Panics with all that it said if it fails.
    pub fn btrfs(&self, args: &[&str]) -> String {
        said(&format!("btrfs {args:?}"), &self.seen_alone(&[&["btrfs"], args].concat()))
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        for name in &self.names {
            // That it was no device of a Btrfs is no fault.
            let _ = Command::new("btrfs").args(["device", "scan", "--forget", name]).output();
            let detached = Command::new("losetup").args(["-d", name]).status();
            if !detached.is_ok_and(|status| status.success()) && !std::thread::panicking() {
                panic!("{name} is not detached");
            }
        }
        self.files.iter().for_each(|file| wait_until_detached(file));
    }
}

/// What `open` answers of a loop device. Who looks for a free one may claim this one for a moment, before it finds that it is taken.
pub fn patiently<T, E: fmt::Debug>(open: impl Fn() -> Result<T, E>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match open() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(25)),
            result => return result.unwrap(),
        }
    }
}

/// Mounts a file system with these arguments of mount(8). Whoever tries to attach a file to the loop device that was just attached holds it for a
/// moment: then it is tried again.
pub fn mount(args: &[&str]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let output = as_root("mount", args);
        let is_held = String::from_utf8_lossy(&output.stderr).contains("already mounted or mount point busy");
        if !is_held || Instant::now() >= deadline {
            said(&format!("mount {args:?}"), &output);
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Unmounts what is there. Whoever looks at all mounts of the machine may hold it for a moment; and who has mounts of its own begins with all
/// that there are, so that the file system lives on after this until they let go of it.
pub fn unmount(folder: &Path) {
    let unmount = |args: &[&str]| as_root("umount", args).status.success();
    let device = loop_that_goes_with(folder);
    let folder = folder.to_str().unwrap();
    let deadline = Instant::now() + if std::thread::panicking() { Duration::ZERO } else { PATIENCE };
    while !unmount(&[folder]) {
        if Instant::now() >= deadline {
            // A test failed with a file open.
            unmount(&["-l", folder]);
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    if let Some((device, file)) = device {
        while backing_file(&device).is_some_and(|now| now == file) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The loop device that was attached for what is mounted there, and goes with it; and its file.
fn loop_that_goes_with(folder: &Path) -> Option<(PathBuf, Vec<u8>)> {
    // As proc(5) writes a name with blanks.
    let point = fs::canonicalize(folder).ok()?.to_str()?.replace(' ', "\\040");
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mut fields = mounts.lines().rev().map(|line| line.split(' '));
    let source = fields.find_map(|mut line| line.next().filter(|_| line.next() == Some(&point)))?;
    let device = Path::new("/sys/block").join(source.strip_prefix("/dev/")?);
    let goes = fs::read(device.join("loop/autoclear")).ok()?.trim_ascii() == b"1";
    let file = backing_file(&device).filter(|_| goes)?;
    Some((device, file))
}

/// Waits until no loop device has the file. A device that somebody else looks at while it is detached, as `btrfs check` looks at all there
/// are, stays until that one is done.
pub fn wait_until_detached(file: &Path) {
    let Ok(file) = fs::canonicalize(file) else { return };
    let deadline = Instant::now() + PATIENCE;
    while is_attached(&file) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_attached(file: &Path) -> bool {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let mut attached = devices.filter_map(|device| backing_file(&device.path()));
    attached.any(|name| OsStr::from_bytes(&name) == file)
}

/// The name of the file that a device in `/sys/block` is of.
fn backing_file(device: &Path) -> Option<Vec<u8>> {
    Some(fs::read(device.join("loop/backing_file")).ok()?.trim_ascii_end().to_vec())
}
