//! Changes to a volume's bytes, gathered as sectors before and after.
//!
//! Invariant: nothing is written; a sector is read once, and memory is that of the sectors that were touched.

use std::collections::BTreeMap;

use block::{Error, ReadAt, Result};
use extent::{Span, Volume, VolumeOffset, VolumeSpan};

use crate::rearrange::Patch;

/// What patches are made of, whatever the volume's own sectors are.
const SECTOR_BYTES: u64 = 512;

const SECTOR_LEN: usize = 512;

/// The most that are read at once.
const SECTORS_AT_ONCE: u64 = 128;

/// One sector.
struct Sector {
    before: [u8; SECTOR_LEN],
    after: [u8; SECTOR_LEN],
}

/// The sectors that were touched.
pub(super) struct Sectors<'a> {
    volume: &'a dyn ReadAt<Volume>,
    touched: BTreeMap<u64, Sector>,
}

impl<'a> Sectors<'a> {
    /// None yet, of `volume`.
    pub(super) fn new(volume: &'a dyn ReadAt<Volume>) -> Self {
        Self { volume, touched: BTreeMap::new() }
    }

    /// Calls `change` with the bytes of `span` as they are to be, piece by piece, and with how many come before each.
    pub(super) fn change(
        &mut self,
        span: VolumeSpan,
        mut change: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        self.touch(span)?;
        for piece in span.split(SECTOR_BYTES) {
            let start = usize::try_from(piece.start().get() % SECTOR_BYTES).expect("below 512");
            let len = usize::try_from(piece.len_bytes()).expect("at most 512");
            let sector = self.touched.get_mut(&(piece.start().get() / SECTOR_BYTES)).expect("touched above");
            change(piece.start().get() - span.start().get(), &mut sector.after[start..start + len])?;
        }
        Ok(())
    }

    /// Reads the sectors of `span` that were not yet, as many at once as lie together.
    fn touch(&mut self, span: VolumeSpan) -> Result<()> {
        let end = span.end().get().div_ceil(SECTOR_BYTES);
        let mut at = span.start().get() / SECTOR_BYTES;
        while at < end {
            let known = self.touched.range(at..end).next().map_or(end, |(number, _)| *number);
            let missing_end = known.min(at.saturating_add(SECTORS_AT_ONCE));
            if missing_end == at {
                at += 1;
                continue;
            }
            let past = || Error::invalid("a sector past any end").at(span.start());
            let start = at.checked_mul(SECTOR_BYTES).ok_or_else(past)?;
            let count = usize::try_from(missing_end - at).expect("few");
            let mut bytes = vec![0; count * SECTOR_LEN];
            self.volume.read_at(VolumeOffset::new(start), &mut bytes)?;
            for (number, before) in (at..).zip(bytes.as_chunks::<SECTOR_LEN>().0) {
                self.touched.insert(number, Sector { before: *before, after: *before });
            }
            at = missing_end;
        }
        Ok(())
    }

    /// What changed, neighbours together.
    pub(super) fn into_patches(self) -> Vec<Patch> {
        let mut patches: Vec<Patch> = Vec::new();
        for (number, Sector { before, after }) in self.touched {
            if before == after {
                continue;
            }
            let at = VolumeOffset::new(number * SECTOR_BYTES);
            match patches.last_mut() {
                Some(last) if Span::new(last.at, last.after.len() as u64).end() == at => {
                    last.before.extend(before);
                    last.after.extend(after);
                }
                _ => patches.push(Patch { at, before: before.to_vec(), after: after.to_vec() }),
            }
        }
        patches
    }
}

#[cfg(test)]
mod tests {
    use block::Memory;

    use super::*;

    #[test]
    fn neighbours_are_one_patch_and_what_is_as_before_is_none() {
        let memory = Memory::new(vec![7; 4096]);
        let mut sectors = Sectors::new(&memory);
        let set = |sectors: &mut Sectors<'_>, at: u64, len: u64, value: u8| {
            let span = Span::new(VolumeOffset::new(at), len);
            sectors
                .change(span, |_, bytes| {
                    bytes.fill(value);
                    Ok(())
                })
                .unwrap();
        };
        set(&mut sectors, 510, 4, 1);
        set(&mut sectors, 1024, 100, 7);
        set(&mut sectors, 4095, 1, 2);
        let patches = sectors.into_patches();
        assert_eq!(patches.iter().map(|patch| patch.at.get()).collect::<Vec<_>>(), [0, 3584]);
        let mut expected = vec![7; 1024];
        assert_eq!(patches[0].before, expected);
        expected[510..514].fill(1);
        assert_eq!(patches[0].after, expected);
        assert_eq!((patches[1].after.len(), patches[1].after[511]), (512, 2));
    }

    #[test]
    fn the_end_of_the_volume_is_an_error() {
        let memory = Memory::new(vec![7; 1000]);
        let span = Span::new(VolumeOffset::new(900), 10);
        assert!(Sectors::new(&memory).change(span, |_, _| Ok(())).is_err());
    }
}
