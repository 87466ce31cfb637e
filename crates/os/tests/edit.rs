//! Files and devices open for changes in place, beside real programs that use them too. Devices need root.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use block::{Error, ErrorKind, HostFile, HostState, ReadAt, TargetFile};
use extent::{Offset, Span};
use os::EditFile;
use testkit::{run, scratch};

const MIB: u64 = 1 << 20;

/// Tests that start programs run one after the other: a process that is just starting has this one's files open, too.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn image(dir: &Path, name: &str, format: &str) -> PathBuf {
    let path = dir.join(name);
    run("qemu-img", &["create", "-q", "-f", format, text(&path), "8M"]);
    run("qemu-io", &["-f", format, "-c", "write -P 7 0 4M", text(&path)]);
    path
}

#[track_caller]
fn refused(result: Result<EditFile, Error>) -> String {
    let error = result.err().expect("it is refused");
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    error.to_string()
}

/// qemu-io with an image open, until dropped.
struct Qemu(Child);

impl Qemu {
    fn open(path: &Path, options: &[&str]) -> Self {
        let mut command = Command::new("qemu-io");
        command.args(options).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("qemu-io; `make test` installs what the tests need");
        // It answers when the image is open.
        child.stdin.as_mut().unwrap().write_all(b"length\n").unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("MiB"), "{line}");
        Self(child)
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn qemu(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap()
}

#[test]
fn what_qemu_has_open_is_refused_and_qemu_is_named() {
    let _alone = alone();
    let dir = scratch();
    for (format, options) in [("raw", vec!["-f", "raw"]), ("qcow2", vec!["-f", "qcow2"])] {
        let path = image(dir.path(), &format!("disk.{format}"), format);
        let before = fs::read(&path).unwrap();
        for read_only in [false, true] {
            let mut options = options.clone();
            if read_only {
                options.push("-r");
            }
            let qemu = Qemu::open(&path, &options);
            let message = refused(EditFile::open(&path));
            assert!(message.contains(&format!("'qemu-io' (process {})", qemu.0.id())), "{message}");
            drop(qemu);
            EditFile::open(&path).unwrap();
        }
        assert!(fs::read(&path).unwrap() == before);
    }
}

#[test]
fn what_is_open_here_qemu_does_not_open() {
    let _alone = alone();
    let dir = scratch();
    let path = image(dir.path(), "disk.qcow2", "qcow2");
    let file = EditFile::open(&path).unwrap();
    for (program, args) in [
        ("qemu-io", vec!["-f", "qcow2", "-c", "write 0 512", text(&path)]),
        ("qemu-io", vec!["-r", "-f", "qcow2", "-c", "read 0 512", text(&path)]),
        ("qemu-img", vec!["info", text(&path)]),
        ("qemu-img", vec!["check", text(&path)]),
        ("qemu-img", vec!["resize", text(&path), "9M"]),
    ] {
        let output = qemu(program, &args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("lock"), "{program} {args:?}: {said}");
    }
    let message = refused(EditFile::open(&path));
    assert!(message.contains("in use"), "{message}");
    drop(file);
    assert!(qemu("qemu-img", &["check", text(&path)]).status.success());
    EditFile::open(&path).unwrap();
}

#[test]
fn who_takes_no_locks_is_seen_while_writing() {
    let _alone = alone();
    let dir = scratch();
    let path = dir.path().join("disk");
    fs::write(&path, [1; 4096]).unwrap();
    let reader = fs::File::open(&path).unwrap();
    EditFile::open(&path).unwrap();
    let writer = fs::OpenOptions::new().append(true).open(&path).unwrap();
    let message = refused(EditFile::open(&path));
    assert!(message.contains("in use by another program"), "{message}");
    drop(writer);
    EditFile::open(&path).unwrap();
    drop(reader);
}

#[test]
fn classic_locks_and_those_of_vmware_are_respected() {
    let _alone = alone();
    let dir = scratch();
    let path = dir.path().join("disk.vmdk");
    fs::write(&path, [1; 4096]).unwrap();
    // flock(1) takes another kind of lock; python's lockf the classic one, for as long as its input is open.
    let script = "import fcntl,sys; f=open(sys.argv[1],'rb'); fcntl.lockf(f,fcntl.LOCK_SH,1,5); print('ok',flush=True); sys.stdin.read()";
    let mut child = Command::new("python3")
        .args(["-c", script, text(&path)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let message = refused(EditFile::open(&path));
    assert!(message.contains("python3"), "{message}");
    child.kill().unwrap();
    child.wait().unwrap();
    let lock = dir.path().join("disk.vmdk.lck");
    fs::create_dir(&lock).unwrap();
    EditFile::open(&path).unwrap();
    fs::write(lock.join("M12345.lck"), "x").unwrap();
    assert!(refused(EditFile::open(&path)).contains("VMware"));
}

#[test]
fn further_names_and_what_is_no_file_are_refused() {
    let _alone = alone();
    let dir = scratch();
    let path = dir.path().join("disk");
    fs::write(&path, [1; 4096]).unwrap();
    fs::hard_link(&path, dir.path().join("backup")).unwrap();
    assert!(refused(EditFile::open(&path)).contains("2 names"));
    fs::remove_file(dir.path().join("backup")).unwrap();
    std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
    EditFile::open(dir.path().join("link")).unwrap();
    refused(EditFile::open(dir.path()));
    refused(EditFile::open("/dev/null"));
    assert_eq!(EditFile::open(dir.path().join("missing")).err().unwrap().kind(), ErrorKind::Io);
}

struct Loop(String);

impl Loop {
    fn of(path: &Path, read_only: bool) -> Self {
        let mut args = vec!["--show", "-f"];
        args.extend(read_only.then_some("-r"));
        args.push(text(path));
        Self(run("losetup", &args).trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        testkit::loops::unmount(&self.0);
    }
}

#[test]
fn loop_devices_and_mounts_are_refused() {
    let _alone = alone();
    let dir = scratch();
    let path = dir.path().join("disk");
    fs::File::create(&path).unwrap().set_len(8 * MIB).unwrap();
    run("mkfs.ext4", &["-q", "-F", text(&path)]);
    {
        // Read-only, nobody writes to the file; the system has it as a disk all the same.
        let device = Loop::of(&path, true);
        assert!(refused(EditFile::open(&path)).contains(&device.0));
    }
    let device = Loop::of(&path, false);
    assert!(refused(EditFile::open(&path)).contains(&device.0));
    let mount = dir.path().join("mount");
    fs::create_dir(&mount).unwrap();
    testkit::loops::mount(&["-o", "ro", &device.0, text(&mount)]);
    let mounted = Mounted(mount.clone());
    assert!(refused(EditFile::open(&device.0)).contains("mounted"));
    drop(mounted);
    let file = testkit::loops::patiently(|| EditFile::open(&device.0));
    assert!(file.is_block_device());
    let mounted = Mounted(mount.clone());
    assert!(!Command::new("mount").args([&device.0, text(&mount)]).output().unwrap().status.success());
    std::mem::forget(mounted);
    file.write_at(Offset::new(MIB + 3), b"in place").unwrap();
    file.flush().unwrap();
    let mut bytes = [0; 8];
    file.read_stored(Offset::new(MIB + 3), &mut bytes).unwrap();
    assert_eq!(&bytes, b"in place");
    assert!(file.write_at(Offset::new(8 * MIB - 1), b"xx").is_err());
    assert!(!file.punch(Span::from_zero(4096)).unwrap());
    drop(file);
    fs::File::open(&path).unwrap().read_exact_at(&mut bytes, MIB + 3).unwrap();
    assert_eq!(&bytes, b"in place");
}

#[test]
fn what_is_stored_reads_back_whatever_its_alignment() {
    let _alone = alone();
    let dir = scratch();
    let path = dir.path().join("disk");
    let len = 3 * MIB + 777;
    fs::write(&path, vec![1; usize::try_from(len).unwrap()]).unwrap();
    let file = EditFile::open(&path).unwrap();
    let mut model = vec![1u8; usize::try_from(len).unwrap()];
    let spans =
        [(0, 1), (511, 514), (4096, 8192), (MIB - 1, MIB + 2), (2 * MIB, MIB + 777), (len - 1, 1), (len, 0)];
    for ((at, len), value) in spans.into_iter().zip(2..) {
        let range = usize::try_from(at).unwrap()..usize::try_from(at + len).unwrap();
        model[range.clone()].fill(value);
        file.write_at(Offset::new(at), &model[range.clone()]).unwrap();
        // Also before the flush: the kernel writes back what it has of the place.
        for _ in 0..2 {
            let mut stored = vec![0; range.len()];
            file.read_stored(Offset::new(at), &mut stored).unwrap();
            assert!(stored == model[range.clone()], "{at:#x}+{len:#x}");
            file.flush().unwrap();
        }
    }
    let mut all = vec![0; model.len()];
    file.read_stored(Offset::ZERO, &mut all).unwrap();
    assert!(all == model);
    assert!(file.read_stored(Offset::new(len), &mut [0]).is_err());
    assert!(file.write_at(Offset::new(len), &[0]).is_err());
    assert!(file.set_len(len + 1).is_err() && file.set_len(len - 1).is_err());
    file.set_len(len).unwrap();
    drop(file);
    assert!(fs::read(&path).unwrap() == model);
}

#[test]
fn holes_are_made_and_filled_and_told() {
    let _alone = alone();
    let dir = scratch();
    let path = dir.path().join("disk");
    fs::write(&path, vec![9; usize::try_from(4 * MIB).unwrap()]).unwrap();
    let file = EditFile::open(&path).unwrap();
    file.flush().unwrap();
    let states = || {
        let map = file.host_map(Span::from_zero(4 * MIB)).unwrap();
        map.into_iter().map(|extent| (extent.span.start().get(), extent.state)).collect::<Vec<_>>()
    };
    assert_eq!(states(), [(0, HostState::Data)]);
    let before = fs::metadata(&path).unwrap().blocks();
    assert!(file.punch(Span::new(Offset::new(MIB), 2 * MIB)).unwrap());
    assert_eq!(states(), [(0, HostState::Data), (MIB, HostState::Hole), (3 * MIB, HostState::Data)]);
    assert!(fs::metadata(&path).unwrap().blocks() < before);
    file.write_at(Offset::new(MIB), &[5; 4096]).unwrap();
    assert_eq!(states()[1], (MIB + 4096, HostState::Hole));
    assert!(file.punch(Span::new(Offset::new(3 * MIB), 2 * MIB)).is_err());
    assert_eq!(fs::metadata(&path).unwrap().len(), 4 * MIB);
    let mut bytes = vec![1; 8192];
    file.read_at(Offset::new(MIB), &mut bytes).unwrap();
    assert!(bytes[..4096] == [5; 4096] && bytes[4096..] == [0; 4096]);
}
