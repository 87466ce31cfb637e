//! Sources and targets on a real file system.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

use block::{AlignedBuffer, ErrorKind, HostFile, HostState, ReadAt, TargetFile};
use extent::{HostSpan, Offset, Span};
use os::{NewFile, SourceFile};

fn span(start: u64, len_bytes: u64) -> HostSpan {
    Span::new(Offset::new(start), len_bytes)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn only_files_and_block_devices_open() {
    let dir = testkit::scratch();
    let pipe = dir.path().join("pipe");
    testkit::run("mkfifo", &[pipe.to_str().unwrap()]);
    let socket = dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for path in [dir.path(), &pipe, &socket, Path::new("/dev/null")] {
        let error = SourceFile::open(path).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    let error = SourceFile::open(dir.path().join("missing")).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("missing"), "{error}");
}

#[test]
fn reads_are_whole_or_errors() {
    let dir = testkit::scratch();
    let path = dir.path().join("file");
    std::fs::write(&path, [7; 10_000]).unwrap();
    let file = SourceFile::open(&path).unwrap();
    let mut buf = [0; 100];
    file.read_at(Offset::new(9900), &mut buf).unwrap();
    assert_eq!(buf, [7; 100]);
    assert_eq!(file.read_at(Offset::new(9901), &mut buf).err().unwrap().kind(), ErrorKind::Invalid);
    let before = file.fingerprint().unwrap();
    assert_eq!(file.fingerprint().unwrap(), before);
    File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
    let error = file.read_at(Offset::new(4950), &mut buf).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("shorter") && error.to_string().contains("0x1356"), "{error}");
    assert_ne!(file.fingerprint().unwrap(), before);
    // What is gone is not taken for a hole.
    assert_eq!(file.host_map(span(6000, 100)).err().unwrap().kind(), ErrorKind::Io);
}

#[test]
fn a_write_in_place_changes_the_fingerprint() {
    let dir = testkit::scratch();
    let path = dir.path().join("file");
    std::fs::write(&path, [7; 10_000]).unwrap();
    let file = SourceFile::open(&path).unwrap();
    let before = file.fingerprint().unwrap();
    // The kernel's clock for files ticks every few milliseconds.
    std::thread::sleep(std::time::Duration::from_millis(20));
    File::options().write(true).open(&path).unwrap().write_all_at(&[8], 5000).unwrap();
    assert_ne!(file.fingerprint().unwrap(), before);
}

#[test]
fn the_host_map_tells_holes_from_data() {
    let dir = testkit::scratch();
    let path = dir.path().join("file");
    let made = File::create(&path).unwrap();
    made.set_len(16 << 20).unwrap();
    for at in [0, 1 << 20, 5 << 20, (16 << 20) - 4096] {
        made.write_all_at(&[7; 4096], at).unwrap();
    }
    let file = SourceFile::open(&path).unwrap();
    let whole = file.host_map(Span::from_zero(file.len_bytes())).unwrap();
    let data: u64 = whole
        .iter()
        .filter(|extent| extent.state == HostState::Data)
        .map(|extent| extent.span.len_bytes())
        .sum();
    assert_eq!((data, whole.len()), (4 * 4096, 7));
    assert_eq!(file.allocated_bytes().unwrap(), data);
    for step in [4096, 65_536 + 512, 1 << 20, 3_333_333] {
        let mut at = Offset::ZERO;
        for window in Span::from_zero(file.len_bytes()).split(step) {
            for extent in file.host_map(window).unwrap() {
                assert_eq!(extent.span.start(), at);
                assert!(!extent.span.is_empty());
                at = extent.span.end();
                let is_data =
                    whole.iter().any(|known| known.span.covers(&extent.span) && known.state == extent.state);
                assert!(is_data, "{extent:?}");
            }
        }
        assert_eq!(at.get(), file.len_bytes());
    }
    assert!(file.host_map(span(3, 0)).unwrap().is_empty());
    assert!(file.host_map(span(16 << 20, 1)).is_err());
}

#[test]
fn a_whole_file_is_asked_about_once() {
    let dir = testkit::scratch();
    let path = dir.path().join("file");
    std::fs::write(&path, vec![7; 8 << 20]).unwrap();
    let file = SourceFile::open(&path).unwrap();
    assert_eq!(file.host_map(span(0, 4096)).unwrap()[0].state, HostState::Data);
    // Were it asked again, the file system would tell of the hole.
    let made = File::options().write(true).open(&path).unwrap();
    made.set_len(0).unwrap();
    made.set_len(8 << 20).unwrap();
    assert_eq!(file.host_map(span(4 << 20, 4096)).unwrap()[0].state, HostState::Data);
}

#[test]
fn a_target_appears_whole_or_not_at_all() {
    let dir = testkit::scratch();
    let path = dir.path().join("target");
    let file = NewFile::create(&path, false).unwrap();
    file.write_at(Offset::new(4096), b"data").unwrap();
    file.reserve(span(1 << 20, 1 << 20)).unwrap();
    assert_eq!(names(dir.path()), [".target.leandisk-partial"]);
    assert_eq!(file.len_bytes(), 2 << 20);
    assert!(file.allocated_bytes().unwrap() >= 1 << 20);
    file.zero(span(4096, 2)).unwrap();
    file.set_len(5000).unwrap();
    file.forget(span(0, 4096));
    file.flush().unwrap();
    file.publish().unwrap();
    assert_eq!(names(dir.path()), ["target"]);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes.len(), &bytes[4096..4100]), (5000, &b"\0\0ta"[..]));

    // Dropped and discarded ones leave nothing.
    for how in ["dropped", "discarded"] {
        let file = NewFile::create(dir.path().join("other"), false).unwrap();
        file.write_at(Offset::ZERO, how.as_bytes()).unwrap();
        match how {
            "dropped" => drop(file),
            _ => file.discard().unwrap(),
        }
        assert_eq!(names(dir.path()), ["target"], "{how}");
    }
}

#[test]
fn what_exists_is_replaced_only_when_said() {
    let dir = testkit::scratch();
    let path = dir.path().join("target");
    std::fs::write(&path, "old").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let error = NewFile::create(&path, false).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert_eq!(error.hint_text(), Some("--force replaces it"));
    let file = NewFile::create(&path, true).unwrap();
    assert_eq!(file.replaced_identity(), SourceFile::open(&path).unwrap().identity());
    file.write_at(Offset::ZERO, b"new").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    file.publish().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    let file = NewFile::create(dir.path().join("late"), false).unwrap();
    std::fs::write(dir.path().join("late"), "somebody else's").unwrap();
    assert_eq!(file.publish().err().unwrap().kind(), ErrorKind::Refused);
    assert_eq!(std::fs::read(dir.path().join("late")).unwrap(), b"somebody else's");
    assert_eq!(names(dir.path()), ["late", "target"]);

    for wrong in [dir.path(), Path::new("/dev/null"), &dir.path().join("..")] {
        assert_eq!(NewFile::create(wrong, true).err().unwrap().kind(), ErrorKind::Refused, "{wrong:?}");
    }
}

#[test]
fn links_are_followed_and_stay() {
    let dir = testkit::scratch();
    std::fs::create_dir(dir.path().join("deep")).unwrap();
    std::fs::write(dir.path().join("deep/file"), "old").unwrap();
    symlink("deep/file", dir.path().join("link")).unwrap();
    symlink("nowhere", dir.path().join("dangling")).unwrap();
    assert!(NewFile::create(dir.path().join("link"), false).is_err());
    let file = NewFile::create(dir.path().join("link"), true).unwrap();
    file.write_at(Offset::ZERO, b"new").unwrap();
    file.publish().unwrap();
    assert_eq!(std::fs::read(dir.path().join("deep/file")).unwrap(), b"new");
    assert!(dir.path().join("link").is_symlink());
    assert_eq!(NewFile::create(dir.path().join("dangling"), true).err().unwrap().kind(), ErrorKind::Refused);
    // A partial name that is a link is not written through.
    std::fs::write(dir.path().join("precious"), "precious").unwrap();
    symlink("precious", dir.path().join(".new.leandisk-partial")).unwrap();
    assert!(NewFile::create(dir.path().join("new"), false).is_err());
    assert_eq!(std::fs::read(dir.path().join("precious")).unwrap(), b"precious");
}

#[test]
fn direct_and_buffered_agree() {
    let dir = testkit::scratch();
    let path = dir.path().join("target");
    let file = NewFile::create_direct(&path, false).unwrap();
    let mut buffer = AlignedBuffer::new(1 << 20);
    for (byte, at) in buffer.iter_mut().zip(0u32..) {
        *byte = at.to_le_bytes()[0] ^ at.to_le_bytes()[1];
    }
    file.write_at(Offset::ZERO, &buffer).unwrap();
    file.write_at(Offset::new(100), b"unaligned").unwrap();
    file.write_at(Offset::new(1 << 20), &buffer[..5000]).unwrap();
    file.publish().unwrap();
    let mut expected = buffer.to_vec();
    expected[100..109].copy_from_slice(b"unaligned");
    expected.extend_from_slice(&buffer[..5000]);
    assert!(std::fs::read(&path).unwrap() == expected);
    let source = SourceFile::open_direct(&path).unwrap();
    let mut read = AlignedBuffer::new(1 << 20);
    source.read_at(Offset::ZERO, &mut read).unwrap();
    assert!(read[..] == expected[..1 << 20]);
    let mut tail = vec![0; 5001];
    source.read_at(Offset::new((1 << 20) - 1), &mut tail).unwrap();
    assert!(tail[..] == expected[(1 << 20) - 1..]);
}

/// Whether somebody writes, of each who uses the file.
fn writers(path: &Path) -> Vec<bool> {
    SourceFile::open(path).unwrap().users().iter().map(|user| user.writes).collect()
}

#[test]
fn a_running_guest_is_seen() {
    let dir = testkit::scratch();
    let path = dir.path().join("disk.qcow2");
    let name = path.to_str().unwrap();
    testkit::run("qemu-img", &["create", "-q", "-f", "qcow2", name, "16M"]);
    assert!(writers(&path).is_empty());
    for (flags, writes) in [(&[][..], true), (&["-r"][..], false)] {
        let mut guest = std::process::Command::new("qemu-io")
            .args(flags)
            .args(["-f", "qcow2", name])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // It answers a command only after it has opened the image.
        use std::io::{BufRead, BufReader, Write};
        writeln!(guest.stdin.as_mut().unwrap(), "length").unwrap();
        let mut line = String::new();
        BufReader::new(guest.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let users = SourceFile::open(&path).unwrap().users();
        drop(guest.stdin.take());
        guest.wait().unwrap();
        assert_eq!(users.len(), 1, "qemu-io {flags:?} answered {line:?}: {users:?}");
        assert_eq!(users[0].writes, writes);
        assert!(users[0].text.contains("'qemu-io'"), "{users:?}");
    }
    assert!(writers(&path).is_empty());
}

/// A program in Python that has opened `path` in its way, until the value goes.
struct Opener(std::process::Child);

impl Opener {
    fn start(path: &Path, open: &str) -> Self {
        use std::io::{BufRead, BufReader};
        let program = format!("import mmap, os, sys\n{open}\nprint('open', flush=True)\nsys.stdin.read()");
        let mut command = std::process::Command::new("/usr/bin/python3");
        command.arg("-c").arg(program).arg(path);
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "open\n");
        Self(child)
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn programs_that_take_no_locks_are_seen_whatever_the_name() {
    use std::os::unix::ffi::OsStrExt;
    let dir = testkit::scratch();
    for name in [&b"disk.raw"[..], b"disk \xff\xfe.raw"] {
        let path = dir.path().join(std::ffi::OsStr::from_bytes(name));
        std::fs::write(&path, [1; 8192]).unwrap();
        assert!(writers(&path).is_empty());
        for (open, expected) in [
            ("fd = os.open(os.fsencode(sys.argv[1]), os.O_RDWR)", &[true][..]),
            // What is mapped stays so after it was closed.
            (
                "fd = os.open(os.fsencode(sys.argv[1]), os.O_RDWR); m = mmap.mmap(fd, 4096); os.close(fd)",
                &[true],
            ),
            ("fd = os.open(os.fsencode(sys.argv[1]), os.O_RDONLY)", &[]),
            (
                "fd = os.open(os.fsencode(sys.argv[1]), os.O_RDONLY); m = mmap.mmap(fd, 4096, prot=mmap.PROT_READ)",
                &[],
            ),
        ] {
            let opener = Opener::start(&path, open);
            let users = SourceFile::open(&path).unwrap().users();
            let found: Vec<_> = users.iter().map(|user| user.writes).collect();
            assert_eq!(found, expected, "{open}: {users:?}");
            let is_named = users.iter().all(|user| user.text.contains(&format!("process {}", opener.0.id())));
            assert!(is_named, "{open}: {users:?}");
        }
        assert!(writers(&path).is_empty());
    }
}

#[test]
fn a_loop_device_writes_once_it_is_mounted() {
    let dir = testkit::scratch();
    let path = dir.path().join("disk.raw");
    let name = path.to_str().unwrap();
    File::create(&path).unwrap().set_len(16 << 20).unwrap();
    testkit::run("mkfs.ext4", &["-q", "-F", name]);
    let mount = dir.path().join("mount");
    std::fs::create_dir(&mount).unwrap();
    let device = testkit::run("losetup", &["-f", "--show", name]).trim().to_owned();
    let attached = SourceFile::open(&path).unwrap().users();
    testkit::loops::mount(&[&device, mount.to_str().unwrap()]);
    let mounted = SourceFile::open(&path).unwrap().users();
    let of_device = SourceFile::open(&device).map(|file| file.users());
    testkit::loops::unmount(&mount);
    testkit::run("losetup", &["-d", &device]);
    testkit::loops::wait_until_detached(&path);
    assert_eq!((attached.len(), attached[0].writes), (1, false), "{attached:?}");
    assert!(attached[0].text.contains(&device) && attached[0].hint.contains("losetup -d"), "{attached:?}");
    assert_eq!((mounted.len(), mounted[0].writes), (1, true), "{mounted:?}");
    assert!(mounted[0].text.contains(mount.to_str().unwrap()), "{mounted:?}");
    // Only root may open it.
    if let Ok(users) = of_device {
        assert!(users[0].writes && users[0].text.contains("mounted at"), "{users:?}");
    }
    assert!(writers(&path).is_empty());
}

#[test]
fn extents_on_the_device_are_those_of_filefrag() {
    let dir = testkit::scratch();
    let path = dir.path().join("file");
    let file = File::create(&path).unwrap();
    // Two files in turns, with a hole and room that was never written: as scattered as the file system makes it.
    let other = File::create(dir.path().join("other")).unwrap();
    for step in 0..40u64 {
        file.write_all_at(&[1; 64 << 10], step * (96 << 10)).unwrap();
        other.write_all_at(&[2; 64 << 10], step * (64 << 10)).unwrap();
        file.sync_data().unwrap();
        other.sync_data().unwrap();
    }
    testkit::run("fallocate", &["-o", "16M", "-l", "1M", path.to_str().unwrap()]);
    let source = SourceFile::open(&path).unwrap();
    let ours: Vec<_> = source
        .host_extents()
        .unwrap()
        .expect("the file system of the tests tells extents")
        .iter()
        .map(|extent| {
            (extent.span.start().get(), extent.device.get(), extent.span.len_bytes(), extent.is_written)
        })
        .collect();
    // `filefrag -v -b1`: "   0:        0..   65535:  123..  456:  65536:   expected:  flags".
    let text = testkit::run("filefrag", &["-v", "-b1", path.to_str().unwrap()]);
    let theirs: Vec<_> = text
        .lines()
        .filter(|line| line.contains("..") && line.contains(':'))
        .map(|line| {
            let numbers: Vec<u64> =
                line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
            (numbers[1], numbers[3], numbers[5], !line.contains("unwritten"))
        })
        .collect();
    assert!(theirs.len() > 2, "{text}");
    assert_eq!(ours, theirs, "{text}");
    assert!(source.host_filesystem().is_some());
}
