//! What stands against a target is said before anything is written, and a dry run says it with the same status. What a target
//! is for its readers, and what it does not have of its source.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::common;
use crate::common::{arg, document, names_in, succeed};
use testkit::{as_root, run, scratch};

/// A disk of 8 MiB with data in its first half.
fn disk(dir: &Path) -> String {
    let path = dir.join("source.raw");
    let of = format!("of={}", path.display());
    run("dd", &["if=/dev/urandom", &of, "bs=1M", "count=4", "status=none"]);
    run("truncate", &["-s", "8M", arg(&path)]);
    arg(&path).to_owned()
}

/// Status and messages of a copy as root, which mounts and devices ask for.
fn copy(args: &[&str]) -> (i32, String) {
    let output = as_root(&common::program(), &[&["copy"], args].concat());
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// Panics unless a dry run and a copy end with this status and the same word.
fn refuses(status: i32, args: &[&str], word: &str) {
    for dry_run in [&["--dry-run"][..], &[]] {
        let (found, message) = copy(&[args, dry_run].concat());
        assert_eq!(found, status, "{args:?} {dry_run:?}: {message}");
        assert!(message.contains(word), "{args:?} {dry_run:?}: {message}");
    }
}

/// A loop device over a file of its own, gone with the value.
struct Device {
    name: String,
    file: std::path::PathBuf,
}

impl Device {
    fn new(dir: &Path, mib: u32) -> Self {
        let file = dir.join("device");
        run(
            "dd",
            &[
                "if=/dev/urandom",
                &format!("of={}", file.display()),
                "bs=1M",
                &format!("count={mib}"),
                "status=none",
            ],
        );
        let output = as_root("losetup", &["--show", "-f", arg(&file)]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { name: String::from_utf8(output.stdout).unwrap().trim().to_owned(), file }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        as_root("losetup", &["-d", &self.name]);
    }
}

/// A file system in memory, gone with the value.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new(options: &str) -> Self {
        let dir = scratch();
        let output = as_root("mount", &["-t", "tmpfs", "-o", options, "leandisk-test", arg(dir.path())]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self(dir)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        testkit::loops::unmount(self.0.path());
    }
}

#[test]
fn a_device_that_is_too_small_keeps_every_byte() {
    let dir = scratch();
    let source = disk(dir.path());
    let device = Device::new(dir.path(), 6);
    let before = run("sha256sum", &[arg(&device.file)]);
    refuses(3, &[&source, &device.name, "-f", "raw", "--force"], "too small");
    refuses(3, &[&source, &device.name, "-f", "raw"], "--force replaces them");
    refuses(3, &[&source, &device.name, "-f", "raw", "-O", "qcow2", "--force"], "-O raw");
    as_root("sync", &[]);
    assert_eq!(run("sha256sum", &[arg(&device.file)]), before);
}

#[test]
fn a_device_in_use_is_refused_by_a_dry_run_too() {
    let dir = scratch();
    let source = disk(dir.path());
    let device = Device::new(dir.path(), 16);
    as_root("mkfs.ext4", &["-q", "-F", &device.name]);
    let mounted = scratch();
    testkit::loops::mount(&[&device.name, arg(mounted.path())]);
    let (dry, run) = (
        copy(&[&source, &device.name, "-f", "raw", "--force", "--dry-run"]),
        copy(&[&source, &device.name, "-f", "raw", "--force"]),
    );
    testkit::loops::unmount(mounted.path());
    assert_eq!((dry.0, run.0), (3, 3), "{dry:?} {run:?}");
}

#[test]
fn a_folder_that_cannot_take_the_target_says_so_before_anything_is_made() {
    let dir = scratch();
    let source = disk(dir.path());
    let small = Mounted::new("size=6M,mode=0777");
    let place = |dir: &Path, name: &str| arg(&dir.join(name)).to_owned();
    let in_small = |name: &str| place(small.0.path(), name);
    refuses(3, &[&source, &in_small("a.raw"), "--provision", "eager"], "not enough space");
    refuses(3, &[&source, &in_small("a.vhdx"), "--provision", "lazy"], "not enough space");
    assert_eq!(names_in(small.0.path()), Vec::<String>::new());
    let (status, message) = copy(&[&source, &in_small("a.qcow2")]);
    assert_eq!((status, message.contains("may not fit")), (0, false), "4 MiB fit: {message}");

    let tight = Mounted::new("size=3M,mode=0777");
    let path = place(tight.0.path(), "a.qcow2");
    fs::write(&path, "precious").unwrap();
    let (status, message) = copy(&[&source, &path, "--force", "--dry-run"]);
    assert_eq!((status, message.contains("may not fit")), (0, true), "{message}");
    let (status, message) = copy(&[&source, &path, "--force"]);
    assert_eq!((status, message.contains("may not fit")), (5, true), "{message}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    assert_eq!(names_in(tight.0.path()), ["a.qcow2"]);

    let read_only = Mounted::new("size=16M,ro");
    refuses(5, &[&source, &place(read_only.0.path(), "a.qcow2")], "Read-only");
    refuses(5, &[&source, &place(dir.path(), "nowhere/a.qcow2")], "No such file");
    refuses(5, &[&source, &place(dir.path(), "source.raw/a.qcow2")], "Not a directory");
    refuses(3, &[&source, &place(dir.path(), "")], "directory");
    refuses(3, &[&source, "/dev/null", "-O", "raw", "--force"], "character device");
    refuses(3, &[&source, &place(dir.path(), &format!("{}.qcow2", "n".repeat(240)))], "too long");
    fs::write(dir.path().join("there.qcow2"), "precious").unwrap();
    refuses(3, &[&source, &place(dir.path(), "there.qcow2")], "exists already");
    assert_eq!(fs::read_to_string(dir.path().join("there.qcow2")).unwrap(), "precious");
    let mut names = names_in(dir.path());
    names.sort();
    assert_eq!(names, ["source.raw", "there.qcow2"]);
}

#[test]
fn a_target_that_another_process_writes_is_refused_by_a_dry_run_too() {
    let dir = scratch();
    let source = disk(dir.path());
    let partial = dir.path().join(".a.qcow2.leandisk-partial");
    fs::write(&partial, "").unwrap();
    let mut holder = Command::new("flock").args(["--no-fork", arg(&partial), "sleep", "60"]).spawn().unwrap();
    while Command::new("flock").args(["-n", arg(&partial), "true"]).status().unwrap().success() {}
    let results = [&["--dry-run"][..], &[]]
        .map(|more| copy(&[&[&*source, arg(&dir.path().join("a.qcow2"))], more].concat()));
    holder.kill().unwrap();
    holder.wait().unwrap();
    for (status, message) in results {
        assert_eq!(status, 3, "{message}");
        assert!(message.contains("another process is writing"), "{message}");
    }
}

#[test]
fn a_file_longer_than_the_user_may_make_is_refused() {
    let dir = scratch();
    let source = disk(dir.path());
    for dry_run in ["--dry-run", ""] {
        let target = dir.path().join("a.raw");
        let script = format!(
            "ulimit -f 4096; exec {} copy {source} {} {dry_run}",
            common::program(),
            target.display()
        );
        let output = Command::new("bash").args(["-c", &script]).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{message}");
        assert!(message.contains("too long") && message.contains("ulimit"), "{message}");
    }
    assert_eq!(names_in(dir.path()), ["source.raw"]);
}

/// The permissions of a copy, made with this umask.
fn copied_mode(source: &str, target: &Path, umask: &str, more: &str) -> u32 {
    let program = common::program();
    let script =
        format!("umask {umask}; {program} copy {source} {} --progress none {more}", target.display());
    run("sh", &["-c", &script]);
    fs::metadata(target).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_target_is_no_easier_to_read_than_its_source() {
    let dir = scratch();
    let source = disk(dir.path());
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let target = dir.path().join("target.qcow2");
    for (mode, umask, expected) in
        [(0o600, "022", 0o600), (0o640, "022", 0o640), (0o644, "077", 0o600), (0o666, "022", 0o644)]
    {
        set(Path::new(&source), mode);
        assert_eq!(copied_mode(&source, &target, umask, ""), expected, "{mode:o} {umask}");
        fs::remove_file(&target).unwrap();
    }
    // What replaces a file is no easier to read than that one was, either.
    for (mode, replaced, expected) in [(0o644, 0o600, 0o600), (0o600, 0o644, 0o600), (0o664, 0o664, 0o664)] {
        set(Path::new(&source), mode);
        fs::write(&target, "old").unwrap();
        set(&target, replaced);
        assert_eq!(copied_mode(&source, &target, "022", "--force"), expected, "{mode:o} {replaced:o}");
        fs::remove_file(&target).unwrap();
    }
    // A chain is as its most private image.
    set(Path::new(&source), 0o600);
    let child = dir.path().join("child.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", &source, "-F", "raw", arg(&child)]);
    set(&child, 0o644);
    assert_eq!(copied_mode(arg(&child), &target, "022", ""), 0o600);
    // What the host gives a device's node says nothing of the disk.
    let device = Device::new(dir.path(), 4);
    let output = as_root(&common::program(), &["copy", "-f", "raw", &device.name, arg(&target), "--force"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn what_a_copy_leaves_behind_is_named() {
    let dir = scratch();
    let source = disk(dir.path());
    let image = dir.path().join("image.qcow2");
    run("qemu-img", &["convert", "-O", "qcow2", &source, arg(&image)]);
    run("qemu-img", &["snapshot", "-c", "before update", arg(&image)]);
    run("qemu-img", &["snapshot", "-c", "after\u{1b}[31m", arg(&image)]);
    run("qemu-img", &["bitmap", "--add", arg(&image), "backup-1"]);
    let child = dir.path().join("child.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", arg(&image), "-F", "qcow2", arg(&child)]);
    let target = dir.path().join("target.qcow2");
    for from in [&image, &child] {
        for more in [&["--force", "--dry-run"][..], &["--force"]] {
            let args = [&["copy", arg(from), arg(&target)], more].concat();
            let document = document("leandisk.copy/1", &args);
            let names = |field: &str| -> Vec<(String, String)> {
                let all = document[field].as_array().unwrap().iter();
                let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
                all.map(|each| (text(&each["path"]), text(&each["name"]))).collect()
            };
            let of = |name: &str| (arg(&image).to_owned(), name.to_owned());
            assert_eq!(names("dropped_snapshots"), [of("before update"), of("after\u{1b}[31m")]);
            assert_eq!(names("dropped_bitmaps"), [of("backup-1")]);
        }
    }
    let text = succeed(&["copy", arg(&image), arg(&target), "--force"]);
    assert!(text.contains("not copied: 2 snapshots of the source: \"before update\", "), "{text}");
    assert!(
        text.contains("not copied: 1 bitmap of the source: \"backup-1\"") && !text.contains('\u{1b}'),
        "{text}"
    );
    let text = succeed(&["copy", arg(&target), arg(&dir.path().join("lean.raw"))]);
    assert!(!text.contains("not copied"), "{text}");
}
