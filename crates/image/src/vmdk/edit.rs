//! Whether a VMDK may be changed in place, and its content ID.
//!
//! What is plain may: flat extents, and hosted sparse ones whose grains are not compressed. Everything that lies in a file
//! must lie apart there: header, descriptor, directory, tables, grains, flat parts.

use std::sync::Arc;

use block::{Error, FileIndex, HostFile, Result, RunState, read_vec};
use extent::{HostOffset, HostSpan, Span};

use super::descriptor;
use super::layout::SECTOR_BYTES;
use super::map::{Compression, Encoding, Map, Part, Source, Tables};
use crate::Renewal;
use crate::owners::Owners;

/// A file is looked at in no more units than this: sectors up to 128 GiB, more of them at once in longer ones. Sparse
/// extents are at most 2 TiB long, and there a unit is still smaller than the grains that programs make.
const UNIT_COUNT_MAX: u64 = 1 << 28;

/// What is mapped in one go. Whole grains, of whatever size.
const WINDOW_BYTES: u64 = 256 << 20;

/// The descriptor with another content ID, whole: all but the ID's digits is as it was, sector by sector.
pub(super) fn renewals(file: &dyn HostFile, place: HostSpan, identity_seed: u128) -> Result<Vec<Renewal>> {
    let before = read_vec(file, place.start(), place.len_bytes(), "VMDK descriptor")?;
    let [b0, b1, b2, b3, ..] = identity_seed.to_le_bytes();
    let after = descriptor::with_new_cid(&before, u32::from_le_bytes([b0, b1, b2, b3]))?;
    Ok(after.map(|bytes| Renewal { at: place.start(), bytes }).into_iter().collect())
}

/// Fails unless all extents are plain.
pub(super) fn check_kinds(map: &Map) -> Result<()> {
    map.parts().iter().try_for_each(check_kind)
}

/// `Refused` if two things lie in one place of a file.
pub(super) fn check_owners(map: &Map, files: &[Arc<dyn HostFile>], descriptor_place: HostSpan) -> Result<()> {
    // A file at a time, so that memory is that of the largest one.
    for (index, file) in (0..).map(FileIndex).zip(files) {
        let mut claims = Claims::new(file.len_bytes())?;
        if index == FileIndex(0) {
            claims.take(descriptor_place)?;
        }
        for part in map.parts() {
            match &part.source {
                Source::Flat { file, at } if *file == index => {
                    claims.take(Span::new(*at, part.span.len_bytes()))?;
                }
                Source::Sparse { file, tables, overhead_bytes } if *file == index => {
                    claims.take_metadata(map, index, tables, *overhead_bytes, descriptor_place)?;
                    claims.take_grains(map, part)?;
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn check_kind(part: &Part) -> Result<()> {
    let Source::Sparse { tables, .. } = &part.source else { return Ok(()) };
    let copy = "copy it to another format, or to one that is not compressed";
    match (tables.encoding, tables.compression) {
        (Encoding::Hosted { .. }, Compression::None) => Ok(()),
        (_, Compression::Zlib { .. }) => {
            Err(Error::refused("is compressed as a whole (streamOptimized)").hint(copy))
        }
        (Encoding::Cowd | Encoding::SeSparse { .. }, _) => {
            Err(Error::unsupported("change in place of an ESX sparse extent").hint(copy))
        }
    }
}

/// What of one file belongs to something.
struct Claims {
    owners: Owners,
    file_bytes: u64,
}

impl Claims {
    fn new(file_bytes: u64) -> Result<Self> {
        let unit_bytes = file_bytes.div_ceil(UNIT_COUNT_MAX).next_power_of_two().max(SECTOR_BYTES);
        Ok(Self { owners: Owners::new(file_bytes, unit_bytes)?, file_bytes })
    }

    fn take(&mut self, span: HostSpan) -> Result<()> {
        if span.end().get() > self.file_bytes {
            return Err(two_owners(span.start()));
        }
        self.owners.take(span).map_err(two_owners)
    }

    /// Takes what lies before the first grain, and of directory and tables what does not lie there.
    fn take_metadata(
        &mut self,
        map: &Map,
        file: FileIndex,
        tables: &Tables,
        overhead_bytes: u64,
        descriptor_place: HostSpan,
    ) -> Result<()> {
        let overhead = Span::from_zero(overhead_bytes.max(SECTOR_BYTES).min(self.file_bytes));
        let is_here = file == FileIndex(0) && overhead.covers(&descriptor_place);
        if is_here {
            self.take(Span::between(HostOffset::ZERO, descriptor_place.start()))?;
            self.take(Span::between(descriptor_place.end(), overhead.end()))?;
        } else {
            self.take(overhead)?;
        }
        let mut take_beyond = |span: HostSpan| {
            if overhead.covers(&span) { Ok(()) } else { self.take(span) }
        };
        let directory = tables.directory().ok_or_else(|| two_owners(tables.directory_at))?;
        take_beyond(directory)?;
        map.each_table(file, tables, take_beyond)
    }

    fn take_grains(&mut self, map: &Map, part: &Part) -> Result<()> {
        for window in part.span.split(WINDOW_BYTES) {
            for run in map.map(window)? {
                let RunState::Data { offset, .. } = run.state else { continue };
                self.take(Span::new(offset, run.span.len_bytes()))?;
            }
        }
        Ok(())
    }
}

fn two_owners(at: HostOffset) -> Error {
    Error::refused("two parts of the image lie in one place")
        .at(at)
        .hint("it is damaged, or a table lies among its data: copy it to a new disk, and check that")
}
