//! The check of XFS, and its snapshot, on volumes made by mkfs.xfs and filled through a mount.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{ErrorKind, Memory};
use tempfile::TempDir;
use testkit::mounted::Mounted;
use testkit::{run, scratch};
use verify::volume::{Contents, CorruptXfs, Snapshot, Source, VolumeReport, check, check_owners};

use crate::support::Flipped;

/// Regular files on each volume, with two links and two files that the volume keeps for itself.
const FILES: u64 = 40 + 3 + 2 + 2;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn volume(options: &str) -> (TempDir, PathBuf) {
    let dir = scratch();
    let path = dir.path().join("volume");
    File::create(&path).unwrap().set_len(64 << 20).unwrap();
    let mut args = vec!["--unsupported", "-q", "-f"];
    args.extend(options.split_whitespace());
    args.push(text(&path));
    run("mkfs.xfs", &args);
    let mounted = Mounted::kernel("xfs", &path, "noatime,nouuid");
    let at = |name: &str| mounted.path().join(name);
    fs::create_dir(at("many")).unwrap();
    for index in 0..60_u8 {
        fs::write(
            at(&format!("many/file number {index}, whose name is long")),
            vec![index; usize::from(index) * 301],
        )
        .unwrap();
    }
    for index in (0..60).step_by(3) {
        fs::remove_file(at(&format!("many/file number {index}, whose name is long"))).unwrap();
    }
    let pieces = File::create(at("pieces")).unwrap();
    for index in 0..300_u64 {
        pieces.write_all_at(&[99; 4096], index * 8192).unwrap();
    }
    pieces.sync_all().unwrap();
    drop(pieces);
    fs::copy(at("pieces"), at("other")).unwrap();
    let share = if options.contains("reflink=0") {
        "truncate 5m".into()
    } else {
        format!("reflink {}", text(&at("pieces")))
    };
    run("xfs_io", &["-f", "-c", &share, text(&at("shared"))]);
    std::os::unix::fs::symlink("many", at("link")).unwrap();
    std::os::unix::fs::symlink("x".repeat(900), at("long")).unwrap();
    run("setfattr", &["-n", "user.a", "-v", &"v".repeat(2000), text(&at("other"))]);
    drop(mounted);
    (dir, path)
}

fn source(bytes: Vec<u8>) -> Source {
    Arc::new(Memory::new(bytes))
}

#[test]
fn sound_volumes_of_all_kinds_pass() {
    for options in [
        "",
        "-m rmapbt=1",
        "-m reflink=0,finobt=0",
        "-i size=1024,sparse=0",
        "-i nrext64=1 -b size=2048 -n size=8192",
        "-d agcount=1 -b size=1024",
    ] {
        let (_dir, path) = volume(options);
        run("xfs_repair", &["-n", "-f", "-o", "force_geometry", text(&path)]);
        let bytes = fs::read(&path).unwrap();
        let blocks = u64::from_be_bytes(bytes[8..16].try_into().unwrap());
        let block = u64::from(u32::from_be_bytes(bytes[4..8].try_into().unwrap()));
        let report = check(&source(bytes.clone())).unwrap_or_else(|error| panic!("{options}: {error}"));
        let VolumeReport { filesystem, files, directories, names, used_bytes, .. } = report;
        assert_eq!((filesystem, files, directories, names), ("xfs", FILES, 2, 40 + 5 + 1), "{options:?}");
        let said = run("xfs_db", &["-f", "-r", "-c", "freesp -s", text(&path)]);
        let free = said.lines().find_map(|line| line.strip_prefix("total free blocks ")).unwrap();
        assert_eq!(used_bytes, (blocks - free.trim().parse::<u64>().unwrap()) * block, "{options:?}: {said}");
        let owners = check_owners(&source(bytes)).unwrap();
        assert_eq!((owners.files, owners.names, owners.used_bytes), (FILES, 0, used_bytes));
    }
}

/// Of version 4, which not every kernel mounts: mkfs.xfs puts the files there.
#[test]
fn sound_volumes_of_version_4_pass_and_a_block_with_two_owners_does_not() {
    for options in ["", "-b size=512 -i size=256", "-l lazy-count=0 -i attr=1", "-n ftype=1 -d agcount=1"] {
        let dir = scratch();
        let [path, proto, from] = ["volume", "proto", "from"].map(|name| dir.path().join(name));
        fs::write(&from, vec![7; 300_000]).unwrap();
        let files: String = (0..100).map(|index| format!("f{index} ---644 0 0 {}\n", text(&from))).collect();
        fs::write(&proto, format!("/dev/null\n0 0\nd--755 0 0\nmany d--755 0 0\n{files}$\n$\n")).unwrap();
        File::create(&path).unwrap().set_len(64 << 20).unwrap();
        let mut args = vec!["--unsupported", "-q", "-f", "-m", "crc=0", "-p", text(&proto)];
        args.extend(options.split_whitespace());
        args.push(text(&path));
        run("mkfs.xfs", &args);
        let bytes = fs::read(&path).unwrap();
        let report = check(&source(bytes.clone())).unwrap();
        let internal = 2;
        assert_eq!((report.files, report.directories, report.names), (100 + internal, 2, 101), "{options}");
        // The tree of free space takes one block more than there is.
        let at = place(&path, &["agf 0", "addr bnoroot"]);
        let mut wrong = bytes;
        let count = u32::from_be_bytes(wrong[at + 20..at + 24].try_into().unwrap());
        wrong[at + 20..at + 24].copy_from_slice(&(count - 1).to_be_bytes());
        assert!(check(&source(wrong)).is_err(), "{options}");
    }
}

/// Where something lies, as `xfs_db` says.
fn place(path: &Path, commands: &[&str]) -> usize {
    let mut args = vec!["-f", "-r"];
    commands.iter().for_each(|command| args.extend(["-c", command]));
    args.extend(["-c", "daddr", text(path)]);
    let said = run("xfs_db", &args);
    // Newer ones say on which device: "datadev daddr is".
    let daddr = said.lines().find_map(|line| Some(line.trim().split_once(" daddr is ")?.1));
    daddr.unwrap_or_else(|| panic!("{said}")).parse::<usize>().unwrap() * 512
}

/// Changes a structure and puts its checksum right again.
fn changed(bytes: &[u8], (at, len, crc): (usize, usize, usize), change: impl Fn(&mut [u8])) -> Source {
    let mut bytes = bytes.to_vec();
    let structure = &mut bytes[at..at + len];
    change(structure);
    structure[crc..crc + 4].fill(0);
    let sum = crc32c::crc32c(structure).to_le_bytes();
    structure[crc..crc + 4].copy_from_slice(&sum);
    source(bytes)
}

fn cause(source: &Source) -> CorruptXfs {
    let error = check(source).unwrap_err();
    *error.cause().unwrap_or_else(|| panic!("{error}"))
}

#[test]
fn what_cannot_be_is_told_apart_though_checksums_are_right() {
    let (_dir, path) = volume("-m rmapbt=1");
    let bytes = fs::read(&path).unwrap();
    let node = |commands: &[&str]| (place(&path, commands), 4096, 52);
    let agf = (place(&path, &["agf 0"]), 512, 216);
    let add = |at: usize, more: u32| {
        move |structure: &mut [u8]| {
            let word: &mut [u8; 4] = structure[at..].first_chunk_mut().unwrap();
            *word = u32::from_be_bytes(*word).wrapping_add(more).to_be_bytes();
        }
    };
    // A free extent that is longer in one of the trees.
    let by_place = node(&["agf 0", "addr bnoroot"]);
    assert_eq!(cause(&changed(&bytes, by_place, add(60, 1))), CorruptXfs::Header { what: "XAGF", group: 0 });
    assert_eq!(cause(&changed(&bytes, agf, add(52, 1))), CorruptXfs::Header { what: "XAGF", group: 0 });
    assert_eq!(cause(&changed(&bytes, agf, add(88, 1))).to_string().split(' ').nth(1), Some("block"));
    // A reference more than there is.
    let references = node(&["agf 0", "addr refcntroot"]);
    assert!(matches!(cause(&changed(&bytes, references, add(56 + 8, 1))), CorruptXfs::References(_)));
    // An inode that is free although it is in use, and the other way round.
    let inodes = node(&["agi 0", "addr root"]);
    let is_other = |structure: &mut [u8]| structure[56 + 15] ^= 1;
    assert!(matches!(cause(&changed(&bytes, inodes, is_other)), CorruptXfs::Header { .. }));
    // An extent of a file that lies where another one does.
    let other = place(&path, &["path /link"]);
    assert!(matches!(
        cause(&source([&bytes[..other], &[0], &bytes[other + 1..]].concat())),
        CorruptXfs::Inode(_)
    ));
    assert_eq!(check(&source(vec![0; 4096])).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn any_bit_of_a_structure_with_a_checksum_is_found() {
    let (_dir, path) = volume("-m rmapbt=1");
    let flipped = Flipped::new(fs::read(&path).unwrap());
    let places = [
        (place(&path, &["sb 0"]), 512),
        (place(&path, &["agf 1"]), 512),
        (place(&path, &["agi 1"]), 512),
        (place(&path, &["agfl 1"]), 512),
        (place(&path, &["agf 0", "addr cntroot"]), 4096),
        (place(&path, &["agi 0", "addr free_root"]), 4096),
        (place(&path, &["path /pieces"]), 512),
        (place(&path, &["path /pieces", "addr u3.bmbt.ptrs[1]"]), 4096),
    ];
    for (at, len) in places {
        for bit in (0..len * 8).step_by(len * 8 / 29) {
            let is_found = flipped.with(at, bit, |source| check(source).is_err());
            assert!(is_found, "bit {bit} of what lies at {at:#x}");
        }
    }
}

#[test]
fn a_snapshot_tells_names_and_contents() {
    let (_dir, path) = volume("");
    let bytes = fs::read(&path).unwrap();
    let take = |bytes: &[u8], contents| Snapshot::take("it", &source(bytes.to_vec()), contents, 2).unwrap();
    let before = take(&bytes, Contents::All);
    assert_eq!(before.file_count() as u64, FILES + 2);
    Snapshot::compare(&before, &take(&bytes, Contents::All)).unwrap();
    // A byte of a file's contents.
    let is_of_file = |at: &usize| bytes[*at..at + 4096].iter().all(|byte| *byte == 99);
    let at = (0..bytes.len()).step_by(4096).find(is_of_file).unwrap();
    let mut changed = bytes.clone();
    changed[at] = 98;
    assert!(!Snapshot::differences(&before, &take(&changed, Contents::All), 9).is_empty());
    Snapshot::compare(&take(&bytes, Contents::None), &take(&changed, Contents::None)).unwrap();
}
