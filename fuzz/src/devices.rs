//! Btrfs on one device, and on several.

use std::sync::Arc;

use block::{Memory, ReadAt, Result, check_bounds};
use extent::{Volume, VolumeOffset};
use filesystem::Source;
use filesystem::btrfs::{self, Device, Joined};

use super::sparse::{DEVICES_BYTES_MAX, PAGE_BYTES, unpack_within};
use super::{accept, filesystem, use_filesystem};

/// One of several devices that lie one behind the other.
struct Part {
    all: Arc<Memory>,
    start_bytes: u64,
    len_bytes: u64,
}

impl ReadAt<Volume> for Part {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes)?;
        self.all.read_at(at.plus(self.start_bytes), buf)
    }
}

/// Opens `data` as a volume, and as two or three devices of equal lengths, one behind the other.
pub fn btrfs(data: &[u8]) {
    filesystem(btrfs::open, data);
    let all = unpack_within(data, DEVICES_BYTES_MAX);
    let pages = all.len() / PAGE_BYTES;
    let all = Arc::new(Memory::new(all));
    for count in [2, 3] {
        let len_bytes = (pages / count * PAGE_BYTES) as u64;
        let part = |index| Part { all: all.clone(), start_bytes: index * len_bytes, len_bytes };
        let sources = (0..count as u64).map(|index| -> Source { Arc::new(part(index)) });
        let devices: Option<Vec<_>> = sources.map(|source| accept(Device::read(&source)).flatten()).collect();
        if let Some(joined) = devices.and_then(|devices| accept(btrfs::join(&devices))) {
            check_pieces(&joined, count, len_bytes);
            use_filesystem(&*joined.filesystem, joined.source.len_bytes());
        }
    }
}

/// All of every device is in the volume, once.
fn check_pieces(joined: &Joined, count: usize, len_bytes: u64) {
    let total: u64 = joined.pieces.iter().map(btrfs::Piece::len_bytes).sum();
    assert_eq!(total, joined.source.len_bytes(), "pieces are the volume");
    let mut columns: Vec<_> = joined.pieces.iter().flat_map(|piece| &piece.columns).collect();
    columns.sort_unstable_by_key(|column| (column.device, column.start_bytes));
    let (mut device, mut at) = (0, 0);
    for column in columns {
        if column.device != device {
            assert_eq!((column.device, at), (device + 1, len_bytes), "all of a device");
            (device, at) = (column.device, 0);
        }
        assert_eq!(column.start_bytes, at, "columns follow each other");
        at += column.len_bytes;
    }
    assert_eq!((device + 1, at), (count, len_bytes), "all of the last device");
}
