//! `$MFT`, `$MFTMirr` and `$Bitmap` as they are once relocations happened, computed as they are read.
//!
//! Invariants:
//! - a record in use is rewritten as [`rewrite_record`] does for a change in place, and everything else in these files is
//!   byte for byte as it was, bits of clusters aside;
//! - memory is that of the relocations, of one piece for each reader, and of `$MFTMirr`, which is a few clusters.

use std::sync::Arc;

use block::{Error, ReadAt, Result, read_vec};
use extent::{ExtentSet, Offset, Span, Volume, VolumeOffset, VolumeSpan};

use super::edits::{bits_below, mirrored};
use super::files::says_in_use;
use super::mft::Mft;
use super::record::RecordNumber;
use super::rewrite::rewrite_record;
use super::stream::Stream;
use crate::rearrange::{Relocations, Rewritten};

/// The most that is read at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Places are whole sectors of this size, so that whoever copies them can.
const SECTOR_BYTES: u64 = 512;

/// No larger mirror is read: it is four records, or one cluster of at most 2 MiB.
const MIRROR_BYTES_MAX: u64 = 4 << 20;

/// One of the files that change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RewrittenFile {
    Records,
    Mirror,
    Clusters,
}

/// A contiguous part of one of them.
struct Part {
    span: VolumeSpan,
    /// Where in the file it begins.
    file_at: u64,
    of: RewrittenFile,
}

/// See [`crate::Rearrange::rewritten`].
pub(super) struct NtfsRewritten {
    mft: Arc<Mft>,
    /// What is read of `$MFTMirr`.
    mirror: Vec<u8>,
    relocations: Arc<Relocations>,
    /// Ascending.
    parts: Vec<Part>,
    places: ExtentSet<Volume>,
    freed: ExtentSet<Volume>,
}

impl NtfsRewritten {
    /// Finds where everything is.
    pub(super) fn new(
        mft: &Arc<Mft>,
        mirror: &Stream,
        bitmap: &Stream,
        relocations: Arc<Relocations>,
    ) -> Result<Self> {
        let record_bytes = mft.geometry.record_bytes;
        let mirror_bytes = mirror.len_bytes().min(mirror.initialized_bytes()) / record_bytes * record_bytes;
        if mirror_bytes > MIRROR_BYTES_MAX {
            return Err(Error::unsupported("NTFS $MFTMirr").field("size", mirror_bytes, "at most 4 MiB"));
        }
        let mut parts = Vec::new();
        add_parts(
            &mut parts,
            &mft.data,
            mft.initialized_record_count() * record_bytes,
            RewrittenFile::Records,
        )?;
        add_parts(&mut parts, mirror, mirror_bytes, RewrittenFile::Mirror)?;
        let bitmap_bytes = mft.geometry.bitmap_bytes().next_multiple_of(SECTOR_BYTES);
        add_parts(&mut parts, bitmap, bitmap_bytes, RewrittenFile::Clusters)?;
        parts.sort_unstable_by_key(|part| part.span.start());
        let places: ExtentSet<Volume> = parts.iter().map(|part| part.span).collect();
        for relocation in relocations.by_source() {
            let touched = [relocation.from, relocation.to_span()];
            if let Some(touched) = touched.into_iter().find(|span| places.within(*span).next().is_some()) {
                return Err(Error::invalid("a relocation of NTFS's own files").at(touched.start()));
            }
        }
        let mirror = rewritten_mirror(mft, mirror, mirror_bytes, &relocations)?;
        Ok(Self { mft: mft.clone(), mirror, relocations, parts, places, freed: ExtentSet::new() })
    }

    /// Fills `buf` with what a part will have from `at` on.
    fn read_part(&self, part: &Part, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        let file_at = part.file_at + (at.get() - part.span.start().get());
        match part.of {
            RewrittenFile::Records => self.read_records(file_at, buf),
            RewrittenFile::Clusters => {
                self.mft.source.read_at(at, buf)?;
                self.move_bits(file_at, buf);
                Ok(())
            }
            RewrittenFile::Mirror => {
                let start = usize::try_from(file_at).expect("within the mirror");
                buf.copy_from_slice(&self.mirror[start..start + buf.len()]);
                Ok(())
            }
        }
    }

    fn read_records(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        let record_bytes = self.mft.geometry.record_bytes;
        let first = at / record_bytes;
        let count = (at + buf.len() as u64).div_ceil(record_bytes) - first;
        let mut bytes =
            read_vec(&self.mft.data, Offset::new(first * record_bytes), count * record_bytes, "$MFT")?;
        let record_len = usize::try_from(record_bytes).expect("at most 4096");
        for (number, bytes) in (first..).zip(bytes.chunks_exact_mut(record_len)) {
            if !says_in_use(bytes) {
                continue;
            }
            let number = RecordNumber(number);
            let at = self.mft.record_offset(number);
            if let Some(new) = rewrite_record(bytes, number, at, &self.relocations, &self.mft.geometry)? {
                bytes.copy_from_slice(&new.bytes);
            }
        }
        let start = usize::try_from(at % record_bytes).expect("below 4096");
        buf.copy_from_slice(&bytes[start..start + buf.len()]);
        Ok(())
    }

    /// Changes bytes of `$Bitmap` from `at` on. What nothing leaves and nothing goes to stays, as do bits past the last cluster.
    fn move_bits(&self, at: u64, buf: &mut [u8]) {
        let geometry = &self.mft.geometry;
        let first = at * 8;
        let end = (first + buf.len() as u64 * 8).min(geometry.cluster_count);
        if first >= end {
            return;
        }
        let span = geometry.span_of(first, end - first);
        let bits =
            |span: VolumeSpan| [span.start(), span.end()].map(|at| at.get() / geometry.cluster_bytes - first);
        for departure in self.relocations.departures(span) {
            fill_bits(buf, bits(departure.from), false);
        }
        for arrival in self.relocations.arrivals(span) {
            fill_bits(buf, bits(arrival.to_span()), true);
        }
    }
}

impl Rewritten for NtfsRewritten {
    fn places(&self) -> &ExtentSet<Volume> {
        &self.places
    }

    fn freed(&self) -> &ExtentSet<Volume> {
        &self.freed
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        let outside = || Error::invalid("a read outside of what is rewritten").at(at);
        let span = Span::checked(at, buf.len() as u64).ok_or_else(outside)?;
        for piece in span.split(PIECE_BYTES) {
            let mut at = piece.start();
            while at < piece.end() {
                let index = self.parts.partition_point(|part| part.span.end() <= at);
                let part = self.parts.get(index).filter(|part| part.span.contains(at)).ok_or_else(outside)?;
                let end = part.span.end().min(piece.end());
                let range =
                    [at, end].map(|at| usize::try_from(at.get() - span.start().get()).expect("within buf"));
                self.read_part(part, at, &mut buf[range[0]..range[1]])?;
                at = end;
            }
        }
        Ok(())
    }
}

/// Appends where the first `len_bytes` bytes of a file lie.
fn add_parts(parts: &mut Vec<Part>, file: &Stream, len_bytes: u64, of: RewrittenFile) -> Result<()> {
    file.each_place(0, len_bytes, |file_at, span| {
        parts.push(Part { span, file_at, of });
        Ok(())
    })
}

/// The mirror with those of its records rewritten that are copies of what `$MFT` has.
fn rewritten_mirror(
    mft: &Arc<Mft>,
    mirror: &Stream,
    len_bytes: u64,
    relocations: &Relocations,
) -> Result<Vec<u8>> {
    let mut bytes = read_vec(mirror, Offset::ZERO, len_bytes, "$MFTMirr")?;
    let record_len = usize::try_from(mft.geometry.record_bytes).expect("at most 4096");
    let volume = &*mft.source;
    let count = mft.initialized_record_count();
    for (number, bytes) in (0..count).zip(bytes.chunks_exact_mut(record_len)) {
        let number = RecordNumber(number);
        let record = mft.on(volume).raw(number)?;
        if !says_in_use(&record) || mirrored(mirror, volume, number, &record, mft)?.is_none() {
            continue;
        }
        let at = mirror.volume_offset(number.0 * mft.geometry.record_bytes);
        if let Some(new) = rewrite_record(bytes, number, at, relocations, &mft.geometry)? {
            bytes.copy_from_slice(&new.bytes);
        }
    }
    Ok(bytes)
}

/// Sets or clears bits of `bytes`, from the first number up to the second.
fn fill_bits(bytes: &mut [u8], [start, end]: [u64; 2], is_set: bool) {
    let mut at = start;
    while at < end {
        let stop = (at / 8 * 8 + 8).min(end);
        let mask = bits_below(stop - at / 8 * 8) & !bits_below(at % 8);
        let byte = &mut bytes[usize::try_from(at / 8).expect("within memory")];
        *byte = if is_set { *byte | mask } else { *byte & !mask };
        at = stop;
    }
}
