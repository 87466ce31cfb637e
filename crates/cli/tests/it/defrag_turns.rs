//! `leandisk defrag` of NTFS files that were written in turns, in so many pieces that their file records have little room left: what their run
//! lists say on the way is known once it is planned, so these files come together, too.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::{arg, document, number};
use crate::defrag_common::{Inside, Kind, QCOW2, RAW, allocated_bytes, fsck, ntfs_runs};
use testkit::mounted::Mounted;
use testkit::{run, scratch};

const FILES: usize = 24;

/// How large the volume is, and how its files grew.
#[derive(Clone, Copy)]
struct Turns {
    volume_bytes: u64,
    count: u64,
    bytes: usize,
}

/// 192 pieces each, and a fifth of the volume left.
const LONG: Turns = Turns { volume_bytes: 93 << 20, count: 192, bytes: 16 << 10 };

/// Over 250 pieces each, and less than a sixth of the volume left. The records are full, and lists are spread anew over them on the way.
const FULL: Turns = Turns { volume_bytes: 64 << 20, count: 277, bytes: 8 << 10 };

/// 500 pieces each, and less than a tenth of the volume left. Lists in clusters move along with what they tell of.
const FULLER: Turns = Turns { volume_bytes: 53 << 20, count: 500, bytes: 4 << 10 };

/// Files that grow by turns.
fn make(volume: &Path, turns: Turns) {
    fs::File::create(volume).unwrap().set_len(turns.volume_bytes).unwrap();
    run("mkntfs", &["-qQF", arg(volume)]);
    let mounted = Mounted::ntfs(volume, "");
    let files: Vec<_> = (0..FILES)
        .map(|index| fs::File::create(mounted.path().join(format!("log{index}"))).unwrap())
        .collect();
    for turn in 0..turns.count {
        for (index, file) in (0u64..).zip(&files) {
            // No zeros: what is made of them may have no storage.
            let byte = u8::try_from(1 + (turn * 7 + index) % 250).unwrap();
            file.write_all_at(&vec![byte; turns.bytes], turn * turns.bytes as u64).unwrap();
        }
    }
}

fn check(kind: Kind, reserve: bool, turns: Turns) {
    let dir = scratch();
    let raw = dir.path().join("made.raw");
    make(&raw, turns);
    let before = Mounted::ntfs(&raw, "ro").tree();
    let long = (0..FILES).filter(|index| ntfs_runs(&raw, &format!("/log{index}")) > 150).count();
    assert!(long > FILES / 2, "{long} files are in many pieces");
    let own = scratch();
    let disk = kind.make(&raw, own.path());
    if reserve {
        run("fallocate", &["-l", &turns.volume_bytes.to_string(), arg(&disk)]);
    }
    let allocated = allocated_bytes(own.path());
    let defrag = ["defrag", arg(&disk)];
    let planned = document("leandisk.defrag/1", &[&defrag[..], &["--dry-run"]].concat());
    let done = document("leandisk.defrag/1", &defrag);
    assert_eq!(planned["volumes"][0]["after"], done["volumes"][0]["after"]);
    assert_eq!(number(&done, "/volumes/0/left"), 0, "{done:#}");
    let grown = allocated_bytes(own.path()).saturating_sub(allocated);
    assert!(grown <= allocated / 1000 + 131_072, "{grown} more bytes than {allocated}");

    let view = dir.path().join("view");
    kind.extract_guest(&disk, &view);
    fsck(Inside::Ntfs, &view);
    Mounted::ntfs(&view, "ro").tree().assert_same(&before, "after defrag");
    for index in 0..FILES {
        assert_eq!(ntfs_runs(&view, &format!("/log{index}")), 1, "log{index}");
    }
    let again = document("leandisk.defrag/1", &defrag);
    assert_eq!(number(&again, "/volumes/0/moved_bytes"), 0, "{again:#}");
}

#[test]
fn reserved_raw() {
    check(RAW, true, LONG);
}

#[test]
fn sparse_raw() {
    check(RAW, false, LONG);
}

#[test]
fn sparse_raw_that_is_fuller() {
    check(RAW, false, FULL);
}

#[test]
fn sparse_raw_at_nine_tenths() {
    check(RAW, false, FULLER);
}

#[test]
fn qcow2_at_nine_tenths() {
    check(QCOW2, false, FULLER);
}

#[test]
fn qcow2() {
    check(QCOW2, false, LONG);
}
