//! The check of exFAT, and its snapshot, on volumes made by mkfs.exfat and filled through a mount by exfat-fuse.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{ErrorKind, Memory};
use tempfile::TempDir;
use testkit::{run, scratch};
use verify::volume::{Contents, CorruptExFat, Snapshot, Source, VolumeReport, check};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn volume(options: &[&str]) -> (TempDir, PathBuf) {
    let dir = scratch();
    let path = dir.path().join("volume");
    File::create(&path).unwrap().set_len(16 << 20).unwrap();
    run("mkfs.exfat", &[options, &[text(&path)]].concat());
    let at = dir.path().join("mounted");
    fs::create_dir(&at).unwrap();
    let device = run("losetup", &["-f", "--show", text(&path)]).trim().to_owned();
    run("mount.exfat-fuse", &["-o", "noatime", &device, text(&at)]);
    let inner = at.join("a directory with a long name");
    fs::create_dir(&inner).unwrap();
    for index in 1..=20_u8 {
        let contents = vec![index; usize::from(index) * 3001];
        fs::write(inner.join(format!("file number {index}, whose name takes entries")), contents).unwrap();
    }
    fs::remove_file(inner.join("file number 7, whose name takes entries")).unwrap();
    fs::write(at.join("pieces"), vec![99; 60_000]).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    // Whoever looks at all mounts of the machine may hold it for a moment.
    let is_mounted = || !Command::new("umount").arg(&at).output().unwrap().status.success();
    while is_mounted() {
        assert!(Instant::now() < deadline, "{} stays mounted", at.display());
        std::thread::sleep(Duration::from_millis(20));
    }
    run("losetup", &["-d", &device]);
    while !run("losetup", &["-j", text(&path)]).is_empty() {
        std::thread::sleep(Duration::from_millis(10));
    }
    (dir, path)
}

fn source(bytes: Vec<u8>) -> Source {
    Arc::new(Memory::new(bytes))
}

fn cause(bytes: Vec<u8>) -> CorruptExFat {
    let error = check(&source(bytes)).unwrap_err();
    *error.cause().unwrap_or_else(|| panic!("{error}"))
}

fn number(bytes: &[u8], at: usize) -> usize {
    usize::try_from(u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())).unwrap()
}

#[test]
fn sound_volumes_of_all_kinds_pass() {
    for options in
        [&["-c", "512"][..], &["-c", "4K"], &["-c", "4K", "-b", "64K", "--pack-bitmap"], &["-c", "64K"]]
    {
        let (_dir, path) = volume(options);
        run("fsck.exfat", &["-n", text(&path)]);
        let VolumeReport { filesystem, files, directories, names, used_bytes, .. } =
            check(&source(fs::read(&path).unwrap())).unwrap();
        assert_eq!((filesystem, files, directories, names), ("exfat", 20, 2, 21), "{options:?}");
        let said = run("dump.exfat", &[text(&path)]);
        let told = |name: &str| {
            let value = said.lines().find_map(|line| line.trim().strip_prefix(name)).expect(name);
            value.trim().parse::<u64>().unwrap()
        };
        let (all, free) = (told("Cluster Count:"), told("Free Clusters:"));
        let bytes = fs::read(&path).unwrap();
        assert_eq!(used_bytes, (all - free) << (bytes[108] + bytes[109]), "{options:?}: {said}");
    }
}

#[test]
fn what_cannot_be_is_told_apart() {
    let (_dir, path) = volume(&["-c", "4K"]);
    let bytes = fs::read(&path).unwrap();
    let (fat, heap) = (number(&bytes, 80) * 512, number(&bytes, 88) * 512);
    let place = |cluster: usize| heap + (cluster - 2) * 4096;
    let root = place(number(&bytes, 96));
    let entry = |kind: u8| (root..).step_by(32).find(|at| bytes[*at] == kind).unwrap();
    let with = |at: usize, new: &[u8]| {
        let mut changed = bytes.clone();
        changed[at..at + new.len()].copy_from_slice(new);
        changed
    };
    let bitmap = place(number(&bytes, entry(0x81) + 20));
    let free = bytes[bitmap..].iter().position(|byte| *byte == 0).unwrap();
    assert_eq!(cause(with(bitmap + free, &[1])), CorruptExFat::Bitmap(free as u64 * 8 + 2));
    assert_eq!(cause(with(bitmap, &[bytes[bitmap] & !1])), CorruptExFat::Bitmap(2));
    assert_eq!(cause(with(300, &[1])), CorruptExFat::Boot);
    assert_eq!(cause(with(106, &[2])), CorruptExFat::Boot);
    let set = entry(0x85);
    assert_eq!(cause(with(set + 10, &[bytes[set + 10] ^ 1])), CorruptExFat::Set(set as u64));
    assert_eq!(cause(with(entry(0x81), &[0x01])), CorruptExFat::Tables);
    let first = number(&bytes, 96);
    assert_eq!(cause(with(fat + first * 4, &[0xf7])), CorruptExFat::Chain(0xffff_fff7));
    let (up_case, shared) = (entry(0x82) + 20, u32::try_from(first).unwrap());
    assert_eq!(cause(with(up_case, &shared.to_le_bytes())), CorruptExFat::Shared(shared));
    assert_eq!(check(&source(vec![0; 4096])).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn a_snapshot_tells_names_and_contents() {
    let (_dir, path) = volume(&["-c", "4K"]);
    let bytes = fs::read(&path).unwrap();
    let take = |bytes: &[u8], contents| Snapshot::take("it", &source(bytes.to_vec()), contents, 2).unwrap();
    let before = take(&bytes, Contents::All);
    assert_eq!(before.file_count(), 22);
    Snapshot::compare(&before, &take(&bytes, Contents::All)).unwrap();
    // A byte of a file's contents: 99 stands nowhere else so often.
    let at = bytes.windows(64).position(|window| window.iter().all(|byte| *byte == 99)).unwrap();
    let mut changed = bytes.clone();
    changed[at] = 98;
    assert_eq!(Snapshot::differences(&before, &take(&changed, Contents::All), 9).len(), 1);
    Snapshot::compare(&take(&bytes, Contents::None), &take(&changed, Contents::None)).unwrap();
}
