//! Persistent bitmaps: read as QEMU reads them, and kept true by disks in use.

use std::path::Path;
use std::sync::Arc;

use block::{ErrorKind, LiveDisk, TargetFile};
use extent::{ExtentSet, Span, Virtual, VirtualOffset, VirtualSpan};
use image::live::LiveOptions;
use image::{BitmapState, Edit};
use testkit::{run, scratch};

use super::{make, open, qemu_io, text};
use crate::live::files::{RealFile, chain_of};

const NAME: &str = "since \"monday\"";
const SIZE: u64 = 40 << 20;

fn span(start: u64, len_bytes: u64) -> VirtualSpan {
    Span::new(VirtualOffset::new(start), len_bytes)
}

fn add(path: &Path, options: &[&str]) {
    run("qemu-img", &[&["bitmap", "--add"], options, &[text(path), NAME]].concat());
}

/// What QEMU says of the bitmap, as its NBD server tells it.
fn dirty_by_qemu(path: &Path) -> ExtentSet<Virtual> {
    let socket = path.with_extension("socket");
    run("qemu-nbd", &["--fork", "-r", "-f", "qcow2", "-B", NAME, "-k", text(&socket), text(path)]);
    let map = format!("--map=qemu:dirty-bitmap:{NAME}");
    let uri = format!("nbd+unix:///?socket={}", text(&socket));
    let told: serde_json::Value = serde_json::from_str(&run("nbdinfo", &["--json", &map, &uri])).unwrap();
    let dirty = told.as_array().unwrap().iter().filter(|extent| extent["type"] == 1);
    dirty.map(|extent| span(extent["offset"].as_u64().unwrap(), extent["length"].as_u64().unwrap())).collect()
}

fn dirty(path: &Path) -> ExtentSet<Virtual> {
    open(path).links()[0].layer.dirty(NAME).unwrap()
}

fn state(path: &Path) -> BitmapState {
    open(path).links()[0].layer.bitmaps().unwrap()[0].state
}

fn take_into_use(path: &Path) -> Box<dyn LiveDisk> {
    let chain = chain_of(path);
    Edit::check(&chain).unwrap();
    image::live::open(chain, vec![RealFile::open(path) as Arc<dyn TargetFile>], LiveOptions::default())
        .unwrap()
}

const KINDS: [(&str, &[&str]); 4] = [
    ("cluster_size=64k", &[]),
    ("cluster_size=4k", &["-g", "512"]),
    ("cluster_size=512,refcount_bits=1", &["-g", "4096"]),
    ("cluster_size=2M", &["-g", "1M"]),
];

#[test]
fn what_changed_is_what_qemu_says() {
    for (options, bitmap) in KINDS {
        let dir = scratch();
        let size = (SIZE + 1536).to_string();
        let path = make(dir.path(), "disk.qcow2", options, &size, &["write 0 1M"]);
        add(&path, bitmap);
        assert_eq!(dirty(&path), ExtentSet::new(), "{options}");
        qemu_io(&path, &["write 700k 3", "write 20M 300k", "discard 5M 2M", "write 40M 1536"]);
        assert_eq!(dirty(&path), dirty_by_qemu(&path), "{options}");
        assert_eq!(state(&path), BitmapState::Recording);
        assert!(dirty(&path).contains(VirtualOffset::new(SIZE + 1535)));
    }
}

#[test]
fn a_disk_in_use_notes_its_changes() {
    for (options, bitmap) in KINDS {
        let dir = scratch();
        let size = (SIZE + 1536).to_string();
        let path = make(dir.path(), "disk.qcow2", options, &size, &["write 1M 1M"]);
        add(&path, bitmap);
        let granularity = open(&path).links()[0].layer.bitmaps().unwrap()[0].granularity_bytes;
        qemu_io(&path, &["write 30M 64k"]);

        let disk = take_into_use(&path);
        disk.write_at(VirtualOffset::new(1_000_000), &[1; 70_000]).unwrap();
        disk.zero(span(9 << 20, 1 << 20), true).unwrap();
        disk.discard(span(1 << 20, 4096)).unwrap();
        disk.write_at(VirtualOffset::new(SIZE), &[2; 1536]).unwrap();
        // In use, it is not to be believed, whatever became of the program.
        assert_eq!(state(&path), BitmapState::Inconsistent);
        let error = open(&path).links()[0].layer.dirty(NAME).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        disk.close().unwrap();

        let whole = |start: u64, len_bytes: u64| {
            let end = (start + len_bytes).next_multiple_of(granularity).min(SIZE + 1536);
            let start = start / granularity * granularity;
            span(start, end - start)
        };
        let expected: ExtentSet<Virtual> = [
            whole(1_000_000, 70_000),
            whole(1 << 20, 4096),
            whole(9 << 20, 1 << 20),
            whole(30 << 20, 64 << 10),
            whole(SIZE, 1536),
        ]
        .into_iter()
        .fold(ExtentSet::new(), |all, span| all.union(&[span].into_iter().collect()));
        assert_eq!(dirty(&path), expected, "{options}");
        assert_eq!(dirty_by_qemu(&path), expected, "{options}");
        run("qemu-img", &["check", "-q", "-f", "qcow2", text(&path)]);

        // Nothing, then some that were not set and lie far apart, then one of those and another.
        let some = [span(SIZE, 1536), whole(5 << 20, 1), whole(33 << 20, 1)].into_iter().collect();
        let one = [whole(5 << 20, 1), whole(6 << 20, 1)].into_iter().collect();
        for kept in [ExtentSet::new(), some, one] {
            let disk = take_into_use(&path);
            disk.restart_bitmap(NAME, &kept).unwrap();
            disk.close().unwrap();
            assert_eq!(dirty(&path), kept, "{options}");
            assert_eq!(dirty_by_qemu(&path), kept, "{options}");
            run("qemu-img", &["check", "-q", "-f", "qcow2", text(&path)]);
        }
    }
}

/// One that QEMU does not write to either, and one that QEMU would find to be left in use.
#[test]
fn bitmaps_that_record_nothing_stay_as_they_are() {
    let dir = scratch();
    let path = make(dir.path(), "disk.qcow2", "", &SIZE.to_string(), &[]);
    add(&path, &[]);
    qemu_io(&path, &["write 3M 64k"]);
    run("qemu-img", &["bitmap", "--disable", text(&path), NAME]);
    let before = dirty(&path);
    let disk = take_into_use(&path);
    disk.write_at(VirtualOffset::new(8 << 20), &[1; 512]).unwrap();
    let error = disk.restart_bitmap(NAME, &ExtentSet::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    disk.close().unwrap();
    assert_eq!((state(&path), dirty(&path)), (BitmapState::Stopped, before));

    run("qemu-img", &["bitmap", "--enable", text(&path), NAME]);
    let disk = take_into_use(&path);
    disk.write_at(VirtualOffset::new(0), &[1; 512]).unwrap();
    disk.flush().unwrap();
    drop(disk);
    for _ in 0..2 {
        assert_eq!(state(&path), BitmapState::Inconsistent);
        let disk = take_into_use(&path);
        disk.write_at(VirtualOffset::new(0), &[1; 512]).unwrap();
        disk.close().unwrap();
        run("qemu-img", &["check", "-q", "-f", "qcow2", text(&path)]);
    }
}
