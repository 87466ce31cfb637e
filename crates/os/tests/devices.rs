//! Block devices, through a loop device. Needs root.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::path::{Path, PathBuf};

use block::{AlignedBuffer, ErrorKind, HostFile, HostState, ReadAt, TargetFile};
use extent::{Offset, Span};
use os::{DeviceTarget, Granted, SourceFile};
use testkit::loops::patiently;

const LEN: u64 = 16 << 20;

struct Loop {
    device: String,
    file: PathBuf,
    dir: tempfile::TempDir,
}

impl Loop {
    fn new() -> Self {
        let dir = testkit::scratch();
        let file = dir.path().join("backing");
        std::fs::write(&file, vec![0xee; usize::try_from(LEN).unwrap()]).unwrap();
        let device = testkit::run("losetup", &["--show", "-f", file.to_str().unwrap()]).trim().to_owned();
        Self { device, file, dir }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").args(["-d", &self.device]).status();
    }
}

#[test]
fn a_device_is_written_zeroed_and_read_back() {
    let device = Loop::new();
    for is_direct in [false, true] {
        let open = if is_direct { DeviceTarget::open_direct } else { DeviceTarget::open };
        let target = patiently(|| open(&device.device));
        assert_eq!(target.len_bytes(), LEN);
        let mut buffer = AlignedBuffer::new(1 << 20);
        buffer.fill(7);
        target.write_at(Offset::ZERO, &buffer).unwrap();
        target.write_at(Offset::new(LEN - 5), b"12345").unwrap();
        // Unaligned at both ends, and within one page.
        target.zero(Span::new(Offset::new(100), 4 << 20)).unwrap();
        target.zero(Span::new(Offset::new((8 << 20) + 1), 2)).unwrap();
        target.flush().unwrap();
        target.forget(Span::from_zero(LEN));
        let mut bytes = vec![0; usize::try_from(LEN).unwrap()];
        target.read_at(Offset::ZERO, &mut bytes).unwrap();
        let end = 100 + (4 << 20);
        assert!(bytes[..100].iter().all(|byte| *byte == 7));
        assert!(bytes[100..end].iter().all(|byte| *byte == 0));
        assert!(bytes[end..8 << 20].iter().all(|byte| *byte == 0xee));
        assert_eq!(bytes[8 << 20..(8 << 20) + 4], [0xee, 0, 0, 0xee]);
        assert_eq!(&bytes[bytes.len() - 5..], b"12345");
        assert_eq!(std::fs::read(&device.file).unwrap(), bytes, "after a flush it is in the file behind");
    }
    let allocated = SourceFile::open(&device.file).unwrap().allocated_bytes().unwrap();
    assert!(allocated < LEN, "zeroing went through to the file behind: {allocated}");
}

#[test]
fn a_device_does_not_grow() {
    let device = Loop::new();
    let target = patiently(|| DeviceTarget::open(&device.device));
    target.set_len(LEN).unwrap();
    target.set_len(LEN / 2).unwrap();
    target.reserve(Span::from_zero(LEN)).unwrap();
    assert_eq!(target.len_bytes(), LEN);
    for error in [
        target.set_len(LEN + 1),
        target.reserve(Span::from_zero(LEN + 1)),
        target.write_at(Offset::new(LEN - 1), &[1, 2]),
        target.zero(Span::new(Offset::new(LEN), 1)),
    ] {
        let error = error.err().unwrap();
        assert_eq!(error.io_source().unwrap().kind(), std::io::ErrorKind::StorageFull, "{error}");
    }
}

#[test]
fn a_device_in_use_is_refused() {
    let device = Loop::new();
    let first = patiently(|| DeviceTarget::open(&device.device));
    let error = DeviceTarget::open(&device.device).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("in use"), "{error}");
    drop(first);
    patiently(|| DeviceTarget::open(&device.device));
    for wrong in [device.file.to_str().unwrap(), device.dir.path().to_str().unwrap(), "/dev/null"] {
        assert_eq!(DeviceTarget::open(wrong).err().unwrap().kind(), ErrorKind::Refused);
    }
}

#[test]
fn a_mounted_device_is_refused() {
    struct Mount(PathBuf);
    impl Drop for Mount {
        fn drop(&mut self) {
            testkit::loops::unmount(&self.0);
        }
    }
    let device = Loop::new();
    testkit::run("mkfs.ext4", &["-q", "-F", &device.device]);
    let folder = device.dir.path().join("mounted");
    std::fs::create_dir(&folder).unwrap();
    testkit::loops::mount(&[&device.device, folder.to_str().unwrap()]);
    let mount = Mount(folder);
    let error = DeviceTarget::open(&device.device).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Refused);
    drop(mount);
    patiently(|| DeviceTarget::open(&device.device));
}

#[test]
fn a_device_is_a_source_too() {
    let device = Loop::new();
    let source = SourceFile::open(&device.device).unwrap();
    assert!(source.is_block_device());
    assert_eq!((source.len_bytes(), source.allocated_bytes().unwrap()), (LEN, LEN));
    let map = source.host_map(Span::from_zero(LEN)).unwrap();
    assert_eq!((map.len(), map[0].state), (1, HostState::Data));
    assert_eq!(source.identity(), Some(patiently(|| DeviceTarget::open(&device.device)).identity()));
    // Its neighbours are not granted.
    let granted = Granted::new(device.device.as_ref(), &[]).unwrap();
    let name = device.device.strip_prefix("/dev/").unwrap();
    assert_eq!(granted.open(Path::new(&device.device), name).err().unwrap().kind(), ErrorKind::Refused);
    let granted = Granted::new(device.device.as_ref(), &[PathBuf::from(&device.device)]).unwrap();
    granted.open(Path::new(&device.device), name).unwrap();
    drop(File::open(&device.file));
}

/// The thread sees what was mounted before it hid its own mounts; where unmounting does not reach it, it would keep the disk in use.
#[test]
fn hidden_mounts_keep_no_disk_of_others_in_use() {
    let dir = testkit::scratch();
    let mount = |name: &str| {
        let (disk, point) = (dir.path().join(format!("{name}.raw")), dir.path().join(name));
        File::create(&disk).unwrap().set_len(16 << 20).unwrap();
        testkit::mke2fs(&["-q", "-F", disk.to_str().unwrap()]);
        std::fs::create_dir(&point).unwrap();
        testkit::loops::mount(&["-o", "loop", disk.to_str().unwrap(), point.to_str().unwrap()]);
        (disk, point)
    };
    let ((other, other_point), (own, own_point)) = (mount("other"), mount("own"));
    let (hidden, is_hidden) = std::sync::mpsc::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel();
    let needed = own_point.clone();
    let thread = std::thread::spawn(move || {
        let done = os::hide_mounts(&needed);
        let points: Vec<_> = os::mounts().into_iter().map(|mount| mount.point).collect();
        hidden.send(()).unwrap();
        goes_on.recv().unwrap();
        (done, points)
    });
    is_hidden.recv().unwrap();
    testkit::loops::unmount(&other_point);
    // Other tests' processes that have mounts of their own may keep it for a moment.
    testkit::loops::wait_until_detached(&other);
    let users = SourceFile::open(&other).unwrap().users();
    go_on.send(()).unwrap();
    let (done, points) = thread.join().unwrap();
    testkit::loops::unmount(&own_point);
    testkit::loops::wait_until_detached(&own);
    done.unwrap();
    assert!(users.is_empty(), "{users:?}");
    assert!(points.contains(&own_point), "what it needs stays: {points:?}");
    assert!(SourceFile::open(&own).unwrap().users().is_empty());
}
