//! A volume as a shadow copy shows it: chapter "Reading snapshot data".

use std::sync::Arc;

use block::{ReadAt, Result, check_bounds};
use extent::{Volume, VolumeOffset};

use super::store::{Step, StoreMap};
use crate::Source;

/// What one copy shows. Blocks that it does not use read as the volume has them now.
pub(super) struct View {
    /// The volume as it is now.
    pub(super) source: Source,
    /// Oldest first.
    pub(super) stores: Arc<Vec<StoreMap>>,
    /// The copy's own.
    pub(super) index: usize,
}

impl View {
    /// Where a byte of the copy lies on the volume, and how many from there lie in a row.
    fn place(&self, at: u64) -> (u64, u64) {
        let (mut at, mut len) = (at, u64::MAX);
        for (index, store) in self.stores.iter().enumerate().skip(self.index) {
            let (step, step_len) = store.look_up(at, index == self.index);
            len = len.min(step_len);
            match step {
                Step::Here(at) => return (at, len),
                Step::Below(below) => at = below,
            }
        }
        (at, len)
    }
}

impl ReadAt<Volume> for View {
    fn len_bytes(&self) -> u64 {
        self.source.len_bytes()
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes())?;
        let mut done = 0;
        while done < buf.len() {
            let (place, len) = self.place(at.get() + done as u64);
            let len = usize::try_from(len).unwrap_or(usize::MAX).min(buf.len() - done);
            self.source.read_at(VolumeOffset::new(place), &mut buf[done..done + len])?;
            done += len;
        }
        Ok(())
    }
}
