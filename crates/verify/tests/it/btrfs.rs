//! The check of Btrfs, and its snapshot, on volumes made by mkfs.btrfs and filled through a mount.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{ErrorKind, Memory};
use tempfile::TempDir;
use testkit::loops::{Loops, Part};
use testkit::mounted::Mounted;
use testkit::{run, scratch};
use verify::volume::{Contents, CorruptBtrfs, Snapshot, Source, VolumeReport, check, check_owners};

use crate::support::Flipped;

/// Files that are no directories on each volume, directories with those of subvolumes, and names of files and directories.
const FILES: u64 = 40 + 3 + 1 + 5;
const DIRECTORIES: u64 = 1 + 1 + 1;
const NAMES: u64 = FILES + DIRECTORIES - 1;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn volume(options: &str) -> (TempDir, PathBuf) {
    let dir = scratch();
    let path = dir.path().join("volume");
    File::create(&path).unwrap().set_len(160 << 20).unwrap();
    let mut args = vec!["-q", "-f"];
    args.extend(options.split_whitespace());
    args.push(text(&path));
    run("mkfs.btrfs", &args);
    let mounted = Mounted::kernel("btrfs", &path, "noatime");
    let at = |name: &str| mounted.path().join(name);
    fs::create_dir(at("many")).unwrap();
    for index in 0..60_u8 {
        let name = at(&format!("many/file number {index}, whose name is long"));
        fs::write(name, vec![index; usize::from(index) * 301]).unwrap();
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
    run("xfs_io", &["-f", "-c", &format!("reflink {}", text(&at("pieces"))), text(&at("shared"))]);
    std::os::unix::fs::symlink("many", at("link")).unwrap();
    run("btrfs", &["subvolume", "create", text(&at("sub"))]);
    for index in 0..5_u8 {
        fs::write(at(&format!("sub/file {index}")), vec![index; 100_000]).unwrap();
    }
    drop(mounted);
    (dir, path)
}

fn source(bytes: Vec<u8>) -> Source {
    Arc::new(Memory::new(bytes))
}

/// What extents take up, as the kernel counts.
fn used(path: &Path) -> u64 {
    let mounted = Mounted::kernel("btrfs", path, "ro");
    let said = run("btrfs", &["filesystem", "usage", "-b", text(mounted.path())]);
    let used = said.lines().find_map(|line| line.trim().strip_prefix("Used:"));
    used.unwrap_or_else(|| panic!("{said}")).trim().parse().unwrap()
}

#[test]
fn sound_volumes_of_all_kinds_pass() {
    for options in [
        "",
        "--mixed",
        "-n 4096 -m single",
        "--csum xxhash",
        "--csum sha256",
        "--csum blake2",
        "-O ^skinny-metadata,^no-holes",
    ] {
        let (_dir, path) = volume(options);
        run("btrfs", &["check", "--readonly", text(&path)]);
        let bytes = fs::read(&path).unwrap();
        let report = check(&source(bytes.clone())).unwrap_or_else(|error| panic!("{options}: {error}"));
        let VolumeReport { filesystem, files, directories, names, used_bytes, .. } = report;
        let found = (filesystem, files, directories, names);
        assert_eq!(found, ("btrfs", FILES, DIRECTORIES, NAMES), "{options:?}");
        assert_eq!(used_bytes, used(&path), "{options:?}");
        let owners = check_owners(&source(bytes)).unwrap();
        assert_eq!((owners.files, owners.names, owners.used_bytes), (FILES, 0, used_bytes));
    }
}

/// Blocks of a tree, as `btrfs inspect-internal` lists them, by where they lie: each bears its address, and the UUID of the volume.
fn blocks(path: &Path, tree: &str) -> Vec<usize> {
    let bytes = fs::read(path).unwrap();
    let said = run("btrfs", &["inspect-internal", "dump-tree", "-t", tree, text(path)]);
    let addresses = said.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let is_block = matches!(words.next(), Some("leaf" | "node"));
        words.next().filter(|_| is_block)?.parse::<u64>().ok()
    });
    let place = |address: u64| {
        let bears =
            |at: &usize| bytes[*at..][32..56] == [&bytes[65_568..][..16], &address.to_le_bytes()].concat();
        (0..bytes.len()).step_by(4096).find(bears).unwrap_or_else(|| panic!("{address}"))
    };
    addresses.map(place).collect()
}

/// Changes a block, and puts its checksum right again.
fn changed(bytes: &[u8], at: usize, change: impl Fn(&mut [u8])) -> Source {
    let mut bytes = bytes.to_vec();
    let block = &mut bytes[at..at + 4096];
    change(block);
    let sum = crc32c::crc32c(&block[32..]).to_le_bytes();
    block[..4].copy_from_slice(&sum);
    source(bytes)
}

fn cause(source: &Source) -> CorruptBtrfs {
    let error = check(source).unwrap_err();
    *error.cause().unwrap_or_else(|| panic!("{error}"))
}

/// Where the data of the first item of a kind lie in a leaf: that of a part of a file that is not inline is 53 bytes long, and so is that
/// of an extent of data with one reference.
fn item(block: &[u8], kind: u8) -> Option<usize> {
    let count = usize::from(u16::from_le_bytes([block[96], block[97]]));
    let mut items = block[101..].chunks_exact(25).take(count);
    let word = |item: &[u8], at: usize| u32::from_le_bytes(item[at..at + 4].try_into().unwrap());
    let found = items.find(|item| item[8] == kind && word(item, 21) == 53)?;
    Some(101 + usize::try_from(word(found, 17)).unwrap())
}

#[test]
fn what_cannot_be_is_told_apart_though_checksums_are_right() {
    let (_dir, path) = volume("-n 4096 -m single");
    let bytes = fs::read(&path).unwrap();
    let with = |tree: &str, kind: u8| {
        let blocks = blocks(&path, tree).into_iter();
        blocks
            .filter(|at| bytes[at + 100] == 0)
            .find_map(|at| Some((at, item(&bytes[at..at + 4096], kind)?)))
            .unwrap()
    };
    // An extent with a reference more than there is, and one of a file that lies elsewhere.
    let (at, extent) = with("extent", 168);
    assert_eq!(cause(&changed(&bytes, at, |block| block[extent] += 1)), CorruptBtrfs::References);
    let (at, part) = with("fs", 108);
    let elsewhere = |block: &mut [u8]| block[part + 22] ^= 0x10;
    assert!(matches!(cause(&changed(&bytes, at, elsewhere)), CorruptBtrfs::References));
    // Items that are not in order, a block of another place, and another counter.
    assert!(matches!(cause(&changed(&bytes, at, |block| block[102] ^= 8)), CorruptBtrfs::Tree(_)));
    assert!(matches!(cause(&changed(&bytes, at, |block| block[49] ^= 1)), CorruptBtrfs::Tree(_)));
    let counted = changed(&bytes, 65_536, |block| block[120] ^= 1);
    assert!(matches!(cause(&counted), CorruptBtrfs::Used(_)));
    assert_eq!(check(&source(vec![0; 4096])).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn any_bit_of_a_block_is_found() {
    let (_dir, path) = volume("-n 4096 -m single");
    let flipped = Flipped::new(fs::read(&path).unwrap());
    let places = ["root", "chunk", "extent", "dev", "fs", "csum"].map(|tree| blocks(&path, tree)[0]);
    for at in places.into_iter().chain([65_536]) {
        // What a checksum of four bytes leaves of its field means nothing.
        for bit in (0..4096 * 8).step_by(4096 * 8 / 29).filter(|bit| !(32..256).contains(bit)) {
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
    assert!(before.file_count() as u64 > FILES + DIRECTORIES);
    Snapshot::compare(&before, &take(&bytes, Contents::All)).unwrap();
    // A byte of a file's contents.
    let is_of_file = |at: &usize| bytes[*at..at + 4096].iter().all(|byte| *byte == 99);
    let at = (0..bytes.len()).step_by(4096).find(is_of_file).unwrap();
    let mut changed = bytes.clone();
    changed[at] = 98;
    assert!(!Snapshot::differences(&before, &take(&changed, Contents::All), 9).is_empty());
    Snapshot::compare(&take(&bytes, Contents::None), &take(&changed, Contents::None)).unwrap();
}

/// Devices one behind the other: each copy of a block is read, and what is in files is found in each copy as well.
#[test]
fn each_copy_on_several_devices_counts() {
    let dir = scratch();
    let paths = [0, 1].map(|number| dir.path().join(format!("device {number}")));
    paths.iter().for_each(|path| File::create(path).unwrap().set_len(130 << 20).unwrap());
    let loops = Loops::attach(&[0, 1].map(|at| Part { file: &paths[at], start_bytes: 0, len_bytes: 0 }));
    let options = ["-q", "-f", "-n", "4096", "-d", "raid1", "-m", "raid1"];
    run("mkfs.btrfs", &[&options[..], &loops.names()].concat());
    let mounted = Mounted::btrfs_of(&loops, "noatime");
    let marked: Vec<u8> = (0..200_000_u32).map(|at| u8::try_from(at / 4096 % 200 + 7).unwrap()).collect();
    fs::write(mounted.path().join("file"), &marked).unwrap();
    drop((mounted, loops));
    let bytes: Vec<u8> = paths.iter().flat_map(|path| fs::read(path).unwrap()).collect();
    let report = check(&source(bytes.clone())).unwrap();
    assert_eq!((report.files, report.directories), (1, 1));
    let snapshot = |bytes: Vec<u8>| {
        let files: Vec<u64> = (0..1024).collect();
        Snapshot::take("it", &source(bytes), Contents::Of(&files), 2)
    };
    let before = snapshot(bytes.clone()).unwrap();
    let places = |wanted: &dyn Fn(&[u8]) -> bool| -> Vec<usize> {
        (0..bytes.len()).step_by(4096).filter(|at| wanted(&bytes[*at..at + 4096])).collect()
    };
    let with = |at: usize| {
        let mut bytes = bytes.clone();
        bytes[at + 200] ^= 1;
        bytes
    };
    // What the file has in its second block.
    let copies = places(&|block| block.iter().all(|byte| *byte == 8));
    assert_eq!(copies.len(), 2);
    for at in copies {
        assert!(check(&source(with(at))).is_ok());
        let now = snapshot(with(at)).unwrap();
        assert!(Snapshot::compare(&before, &now).is_err(), "the copy at {at:#x}");
    }
    // The root of the tree of chunks.
    let root = &bytes[65_536 + 88..][..8];
    let copies = places(&|block| block[48..56] == *root && block[88] == 3);
    assert_eq!(copies.len(), 2);
    for at in copies {
        assert!(check(&source(with(at))).is_err(), "the copy at {at:#x}");
    }
    // The superblock of the second device.
    assert!(matches!(cause(&source(with((130 << 20) + 65_536))), CorruptBtrfs::Superblock));
}
