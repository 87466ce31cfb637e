//! FAT volumes by mkfs.fat and mtools: sound ones pass, and what fsck.fat rejects is rejected.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{ErrorKind, Memory};
use tempfile::TempDir;
use testkit::{run, scratch};
use verify::volume::{Contents, CorruptFat, Snapshot, Source, VolumeReport, check};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A volume with some files, of which one is in two pieces.
fn volume(bits: &str, mib: u64) -> (TempDir, PathBuf) {
    let dir = scratch();
    let path = dir.path().join("volume");
    fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
    run("mkfs.fat", &["-F", bits, text(&path)]);
    let file = dir.path().join("file");
    run("mmd", &["-i", text(&path), "::/a directory with a long name"]);
    for index in 1..=20_usize {
        fs::write(&file, vec![u8::try_from(index).unwrap(); index * 3001]).unwrap();
        run(
            "mcopy",
            &[
                "-i",
                text(&path),
                text(&file),
                &format!("::/a directory with a long name/file number {index}"),
            ],
        );
    }
    run("mdel", &["-i", text(&path), "::/a directory with a long name/file number 7"]);
    fs::write(&file, vec![99; 60_000]).unwrap();
    run("mcopy", &["-i", text(&path), text(&file), "::/pieces"]);
    (dir, path)
}

fn source(bytes: Vec<u8>) -> Source {
    Arc::new(Memory::new(bytes))
}

fn cause(bytes: Vec<u8>) -> CorruptFat {
    let error = check(&source(bytes)).unwrap_err();
    *error.cause().unwrap_or_else(|| panic!("{error}"))
}

#[test]
fn sound_volumes_of_all_kinds_pass() {
    for (bits, mib) in [("12", 4), ("16", 32), ("32", 64)] {
        let (_dir, path) = volume(bits, mib);
        let said = run("fsck.fat", &["-nv", text(&path)]);
        let VolumeReport { filesystem, files, directories, used_bytes, .. } =
            check(&source(fs::read(&path).unwrap())).unwrap();
        assert_eq!((filesystem, files, directories), ("fat", 20, 2), "FAT{bits}");
        let clusters: u64 = said.rsplit(", ").next().unwrap().split('/').next().unwrap().parse().unwrap();
        let cluster_bytes = said.lines().find_map(|line| line.trim().strip_suffix(" bytes per cluster"));
        assert_eq!(used_bytes, clusters * cluster_bytes.unwrap().parse::<u64>().unwrap(), "{said}");
    }
}

/// As fsck.fat takes them; mtools do not.
#[test]
fn fat32_may_have_few_clusters() {
    let dir = scratch();
    let path = dir.path().join("volume");
    fs::File::create(&path).unwrap().set_len(8 << 20).unwrap();
    run("mkfs.fat", &["-F", "32", text(&path)]);
    run("fsck.fat", &["-n", text(&path)]);
    let report = check(&source(fs::read(&path).unwrap())).unwrap();
    assert_eq!((report.files, report.directories, report.used_bytes), (0, 1, 512));
}

#[test]
fn chains_that_cannot_be_are_told_apart() {
    let (_dir, path) = volume("16", 32);
    let bytes = fs::read(&path).unwrap();
    let number = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (table, table_bytes) = (number(14) * 512, number(22) * 512);
    let with = |entries: &[(usize, u16)]| {
        let mut changed = bytes.clone();
        for copy in [table, table + table_bytes] {
            for (cluster, value) in entries {
                changed[copy + cluster * 2..][..2].copy_from_slice(&value.to_le_bytes());
            }
        }
        changed
    };
    let entry = |cluster: usize| u16::try_from(number(table + cluster * 2)).unwrap();
    // The directory's own cluster, and a file's of several.
    assert!(entry(2) >= 0xfff8, "{:#x}", entry(2));
    let long = (3..200).find(|cluster| usize::from(entry(*cluster)) == cluster + 1).unwrap();
    assert_eq!(cause(with(&[(long, 0)])), CorruptFat::Chain(0));
    assert_eq!(cause(with(&[(long, 0xfff7)])), CorruptFat::Chain(0xfff7));
    assert!(matches!(cause(with(&[(long, 2)])), CorruptFat::Shared(_)));
    assert!(matches!(cause(with(&[(long, 0xffff)])), CorruptFat::Length(_)));
    let free = (3..).find(|cluster| entry(*cluster) == 0).unwrap();
    assert_eq!(cause(with(&[(free, 0xffff)])), CorruptFat::Orphans(1));
    let mut differs = bytes.clone();
    differs[table + 100] ^= 1;
    assert_eq!(cause(differs), CorruptFat::TablesDiffer);
    let mut short = bytes.clone();
    short[22] = 1;
    assert_eq!(cause(short), CorruptFat::Boot);
    assert_eq!(check(&source(vec![0; 4096])).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn a_snapshot_tells_names_and_contents() {
    let (_dir, path) = volume("32", 64);
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
    let (none, same) = (take(&bytes, Contents::None), take(&changed, Contents::None));
    Snapshot::compare(&none, &same).unwrap();
    // A letter of a short name.
    let at = bytes.windows(11).position(|window| window == b"PIECES     ").unwrap();
    changed[at] = b'Q';
    assert_eq!(Snapshot::differences(&none, &take(&changed, Contents::None), 9).len(), 1);
}
