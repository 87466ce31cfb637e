//! Who else needs a disk's bytes: what every command makes of it, with the real programs that use disks.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common;
use crate::common::{Untouched, arg, document, fail, leandisk, output, succeed};
use tempfile::TempDir;
use testkit::{as_root, run, scratch};

/// A raw disk with ext4 on it, of which half of the files are deleted again.
fn raw_disk(dir: &Path) -> PathBuf {
    let path = dir.join("disk.raw");
    let folder = dir.join("files");
    fs::create_dir(&folder).unwrap();
    for number in 0..40 {
        fs::write(folder.join(format!("f{number}")), vec![number; 150_000]).unwrap();
    }
    run("truncate", &["-s", "32M", arg(&path)]);
    run("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "1024", "-d", arg(&folder), arg(&path)]);
    fs::remove_dir_all(&folder).unwrap();
    let removals: Vec<_> = (0..40).step_by(2).map(|number| format!("rm f{number}")).collect();
    let script = dir.join("script");
    fs::write(&script, removals.join("\n")).unwrap();
    run("debugfs", &["-w", "-f", arg(&script), arg(&path)]);
    fs::remove_file(script).unwrap();
    run("e2fsck", &["-fy", arg(&path)]);
    path
}

/// Every command that writes to a disk, on this one, which all of them shall refuse, saying `word`.
fn nothing_changes_it(disk: &Path, word: &str) {
    let before = Untouched::all_in(disk.parent().unwrap());
    let socket = disk.with_file_name("s");
    for args in [
        &["defrag", "--goal", "pack", arg(disk)][..],
        &["defrag", "--goal", "pack", arg(disk), "--dry-run"],
        &["compact", arg(disk)],
        &["compact", arg(disk), "--dry-run"],
        &["serve", arg(disk), "--socket", arg(&socket)],
    ] {
        let message = fail(3, args);
        assert!(message.contains(word), "{args:?}: '{word}' in {message}");
    }
    before.check(disk.parent().unwrap());
}

/// The claims that `info` shows.
fn claims(disk: &Path) -> Vec<(String, String)> {
    let info = document("leandisk.info/1", &["info", arg(disk)]);
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let claims = info["claims"].as_array().unwrap();
    claims.iter().map(|claim| (text(&claim["kind"]), text(&claim["text"]))).collect()
}

/// A loop device with a mount on it. Undone when the value goes.
struct Mounted {
    device: String,
    folder: TempDir,
}

impl Mounted {
    fn new(disk: &Path) -> Self {
        let output = as_root("losetup", &["--show", "-f", arg(disk)]);
        let device = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        let folder = scratch();
        testkit::loops::mount(&[&device, arg(folder.path())]);
        Self { device, folder }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        testkit::loops::unmount(self.folder.path());
        as_root("losetup", &["-d", &self.device]);
    }
}

#[test]
fn a_disk_that_is_mounted_is_copied_only_when_asked_to() {
    let dir = scratch();
    let disk = raw_disk(dir.path());
    let target = dir.path().join("target.qcow2");
    let mounted = Mounted::new(&disk);
    let place = arg(mounted.folder.path());
    for more in [&[][..], &["--dry-run"]] {
        let message = fail(3, &[&["copy", arg(&disk), arg(&target)], more].concat());
        assert!(message.contains(place) && message.contains("--in-use"), "{message}");
    }
    assert!(!target.exists());
    let found = claims(&disk);
    assert!(found.iter().any(|(kind, text)| kind == "writer" && text.contains(place)), "{found:?}");
    nothing_changes_it(&disk, place);
    // `--read-only` is no way around it either.
    let message = fail(3, &["serve", "--read-only", arg(&disk), "--socket", arg(&dir.path().join("s"))]);
    assert!(message.contains(place), "{message}");
    succeed(&["copy", arg(&disk), arg(&target), "--in-use"]);
    run("qemu-img", &["check", "-q", arg(&target)]);
    // The device is the same disk under another name.
    let before = Untouched::all_in(dir.path());
    let message = fail(3, &["copy", arg(&disk), &mounted.device, "--force", "--in-use"]);
    assert!(message.contains("source's own file"), "{message}");
    before.check(dir.path());
    drop(mounted);
    succeed(&["copy", arg(&disk), arg(&target), "--force"]);
}

#[test]
fn a_loop_device_of_the_source_is_no_target() {
    let dir = scratch();
    let disk = raw_disk(dir.path());
    let shown = as_root("losetup", &["--show", "-f", arg(&disk)]).stdout;
    let device = String::from_utf8(shown).unwrap().trim().to_owned();
    let before = Untouched::all_in(dir.path());
    let there = leandisk().args(["copy", arg(&disk), &device, "--force"]).output().unwrap();
    let back = leandisk().args(["copy", &device, arg(&disk), "--force"]).output().unwrap();
    before.check(dir.path());
    as_root("losetup", &["-d", &device]);
    for output in [there, back] {
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{message}");
        assert!(message.contains("source's own file"), "{message}");
    }
}

#[test]
fn the_data_of_another_image_are_not_changed_behind_its_back() {
    let dir = scratch();
    let disk = raw_disk(dir.path());
    let image = dir.path().join("image.qcow2");
    let options = format!("data_file={},data_file_raw=on", dir.path().join("data.raw").display());
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-o", &options, arg(&image), "32M"]);
    let data = dir.path().join("data.raw");
    fs::rename(&disk, &data).unwrap();
    nothing_changes_it(&data, "belongs to 'image.qcow2'");
    assert_eq!(claims(&data)[0].0, "data");
    // The image itself may be changed, until another stands on it.
    succeed(&["defrag", arg(&image)]);
    run(
        "qemu-img",
        &["create", "-q", "-f", "qcow2", "-b", "image.qcow2", "-F", "qcow2", arg(&dir.path().join("child"))],
    );
    nothing_changes_it(&image, "is the parent of 'child'");
    // Copying reads.
    let copied = dir.path().join("copy.raw");
    succeed(&["copy", arg(&data), arg(&copied), "--keep-free"]);
    common::assert_same_bytes(&data, &copied);
}

#[test]
fn what_others_need_is_not_replaced() {
    let dir = scratch();
    let disk = raw_disk(dir.path());
    let base = dir.path().join("base.qcow2");
    succeed(&["copy", arg(&disk), arg(&base)]);
    let child = dir.path().join("child.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2", arg(&child)]);
    let before = Untouched::all_in(dir.path());
    for args in [
        &["copy", arg(&disk), arg(&base), "--force"][..],
        &["copy", arg(&disk), arg(&base), "--force", "--dry-run"],
        &["create", arg(&base), "32M", "--force"],
    ] {
        let message = fail(3, args);
        assert!(message.contains("is the parent of 'child.qcow2'"), "{args:?}: {message}");
    }
    before.check(dir.path());
}

/// A program that has opened `disk`, and the disk alone, until the value goes.
struct User(Child);

impl User {
    fn start(program: &str, args: &[&OsStr]) -> Self {
        use std::io::{BufRead, BufReader};
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("ready"), "{line}");
        Self(child)
    }

    /// One that maps the disk and closes it.
    fn mapping(disk: &Path) -> Self {
        let program = "import mmap, os, sys\nfd = os.open(os.fsencode(sys.argv[1]), os.O_RDWR)\n\
                       m = mmap.mmap(fd, 4096)\nos.close(fd)\nprint('ready', flush=True)\nsys.stdin.read()";
        Self::start("/usr/bin/python3", &[OsStr::new("-c"), OsStr::new(program), disk.as_os_str()])
    }
}

impl Drop for User {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn a_writer_that_only_maps_the_file_is_seen() {
    let dir = scratch();
    let disk = raw_disk(dir.path());
    let user = User::mapping(&disk);
    let process = format!("process {}", user.0.id());
    let target = dir.path().join("target.qcow2");
    assert!(fail(3, &["copy", arg(&disk), arg(&target)]).contains(&process));
    nothing_changes_it(&disk, &process);
    drop(user);
    succeed(&["copy", arg(&disk), arg(&target)]);
}

#[test]
fn a_name_that_is_no_text_hides_nothing() {
    let dir = scratch();
    let plain = raw_disk(dir.path());
    let disk = dir.path().join(OsStr::from_bytes(b"disk \xff.raw"));
    fs::rename(plain, &disk).unwrap();
    let ran = |args: &[&OsStr], status: i32| {
        let output = leandisk().args(args).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{args:?}: {message}");
        message
    };
    let word = |text: &'static str| OsStr::new(text);
    // The disk under its own name, which is the target as well.
    let before = fs::read(&disk).unwrap();
    let copied = [word("copy"), disk.as_os_str(), disk.as_os_str(), word("--force")];
    assert!(ran(&copied, 3).contains("source's own file"));
    // Somebody who writes to it.
    let user = User::mapping(&disk);
    let target = dir.path().join(OsStr::from_bytes(b"target \xfe.qcow2"));
    for args in [
        &[word("copy"), disk.as_os_str(), target.as_os_str()][..],
        &[word("defrag"), disk.as_os_str()],
        &[word("compact"), disk.as_os_str()],
    ] {
        assert!(ran(args, 3).contains("is in use by"), "{args:?}");
    }
    drop(user);
    assert!(fs::read(&disk).unwrap() == before && !target.exists());
    // Somebody who stands on it.
    let child = dir.path().join("child.qcow2");
    let backing = [
        word("create"),
        word("-q"),
        word("-f"),
        word("qcow2"),
        word("-u"),
        word("-F"),
        word("raw"),
        word("-b"),
    ];
    let made = Command::new("qemu-img")
        .args(backing)
        .arg(disk.file_name().unwrap())
        .arg(&child)
        .arg("32M")
        .status()
        .unwrap();
    assert!(made.success());
    assert!(ran(&[word("defrag"), disk.as_os_str()], 3).contains("is the parent of 'child.qcow2'"));
    fs::remove_file(child).unwrap();
    // And then it works.
    ran(&[word("defrag"), word("--goal"), word("pack"), disk.as_os_str()], 0);
    ran(&[word("compact"), disk.as_os_str()], 0);
    ran(&[word("copy"), disk.as_os_str(), target.as_os_str()], 0);
    let checked = Command::new("e2fsck").arg("-fn").arg(&disk).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}

#[test]
fn further_names_are_told_in_a_dry_run_too() {
    let dir = scratch();
    let disk = raw_disk(dir.path());
    fs::hard_link(&disk, dir.path().join("backup.raw")).unwrap();
    nothing_changes_it(&disk, "2 names");
    assert_eq!(claims(&disk)[0].0, "links");
}

#[test]
fn of_several_at_once_one_changes_the_disk_and_the_others_are_refused() {
    let dir = scratch();
    let made = raw_disk(dir.path());
    for _ in 0..4 {
        let disk = dir.path().join("several.raw");
        fs::copy(&made, &disk).unwrap();
        let start = |args: &[&str]| {
            leandisk().args(args).arg(&disk).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let all = [
            start(&["defrag", "--goal", "pack"]),
            start(&["defrag", "--goal", "pack"]),
            start(&["compact"]),
            start(&["compact", "--defrag"]),
        ];
        let ended = all.map(|child| child.wait_with_output().unwrap());
        let statuses: Vec<_> = ended.iter().map(|output| output.status.code().unwrap()).collect();
        let messages: Vec<_> = ended.iter().map(|output| String::from_utf8_lossy(&output.stderr)).collect();
        assert!(statuses.iter().all(|status| [0, 3].contains(status)), "{statuses:?}: {messages:?}");
        run("e2fsck", &["-fn", arg(&disk)]);
        let journals = common::names_in(dir.path()).into_iter().filter(|name| name.contains("journal"));
        assert_eq!(journals.count(), 0);
    }
    assert!(output(&["defrag", arg(&made)]).status.success());
}
