//! Places that were freed and are given to others: what they held is never seen, and where nothing is reserved they take no more storage
//! than what is written.

use std::path::Path;
use std::sync::Arc;

use block::TargetFile;
use extent::{Span, VirtualOffset};
use image::live::LiveOptions;
use testkit::{scratch, stored_ranges};

use crate::live::files::{KINDS, Kind, RealFile, chain_of, check_by_qemu, contents_by_qemu, create};

const MIB: u64 = 1 << 20;
const PIECE_BYTES: u64 = 4096;

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap()
}

/// What the file holds data of.
fn data_bytes(path: &Path) -> u64 {
    let file = std::fs::File::open(path).unwrap();
    stored_ranges(&file).iter().map(|range| range.end - range.start).sum()
}

/// Fills some of the disk, frees that, and writes a little of it again, which goes where it was. What the image held of data before the last,
/// and holds in the end.
fn reuse(kind: Kind, dir: &Path, options: LiveOptions) -> (u64, u64) {
    let path = create(kind, dir);
    let open = |options| {
        let chain = chain_of(&path);
        let file = RealFile::open(&path) as Arc<dyn TargetFile>;
        image::live::open(chain, vec![file], options).unwrap()
    };
    let old = Span::new(VirtualOffset::new(0), 2 * MIB);
    let disk = open(options.clone());
    // Something behind it stays, or the file would become shorter.
    disk.write_at(old.start(), &vec![0x5a; index(4 * MIB)]).unwrap();
    disk.close().unwrap();
    drop(disk);
    let disk = open(options);
    disk.discard(old).unwrap();
    disk.flush().unwrap();
    let before = data_bytes(&path);
    let places: Vec<_> = (0..2).map(|at| VirtualOffset::new(at * MIB + PIECE_BYTES)).collect();
    for place in &places {
        disk.write_at(*place, &vec![0xa5; index(PIECE_BYTES)]).unwrap();
    }
    disk.flush().unwrap();
    let after = data_bytes(&path);
    disk.close().unwrap();
    drop(disk);
    check_by_qemu(kind, &path, true);
    let mut expected = vec![0; index(kind.size)];
    expected[index(2 * MIB)..index(4 * MIB)].fill(0x5a);
    for place in places {
        let at = index(place.get());
        expected[at..at + index(PIECE_BYTES)].fill(0xa5);
    }
    assert!(contents_by_qemu(kind, &path) == expected, "{}", kind.name);
    (before, after)
}

#[test]
fn what_is_not_written_of_a_reused_place_takes_no_storage_where_nothing_is_reserved() {
    for kind in KINDS.iter().filter(|kind| ["qcow2", "qcow2-2m", "vhdx", "vdi"].contains(&kind.name)) {
        let sparing = LiveOptions { reserves_nothing: true, ..LiveOptions::default() };
        let (before, after) = reuse(*kind, scratch().path(), sparing);
        // The pieces, and the tables.
        assert!(after <= before + 64 * 1024, "{}: {before} to {after}", kind.name);
        reuse(*kind, scratch().path(), LiveOptions::default());
    }
}
