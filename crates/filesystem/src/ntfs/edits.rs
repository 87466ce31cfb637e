//! What relocations change on a volume as it is now: the records of the files that move, `$Bitmap`, and of `$MFT`'s bitmap
//! the bits of records that files get.
//!
//! Invariants:
//! - what a relocation may have changed is read from the volume as it is, never from what was known when it was opened;
//!   only where `$MFT`, `$MFTMirr` and `$Bitmap` lie is: what of `$MFT` moves does so alone and last, and its own record stays;
//! - every cluster that comes free was used, and every cluster that is taken was free;
//! - every record that a file gets was free, by `$MFT`'s bitmap on the volume as it is now;
//! - every byte that moves was found in a run list of the file that it is said to be of.

use std::collections::{BTreeMap, BTreeSet};

use block::{Error, ReadAt, Result};
use extent::{Volume, VolumeSpan};
use mutants::broken;

use super::extension::SpareRecords;
use super::mft::{Mft, Records};
use super::record::{Record, RecordNumber};
use super::rewrite::rewrite_record;
use super::scan::MIRRORED_RECORDS;
use super::sectors::Sectors;
use super::spread::FileRecords;
use super::stream::Stream;
use crate::files::FileId;
use crate::ntfs::corrupt::Corrupt;
use crate::rearrange::{Edits, Relocations};

/// Where what changes lies.
pub(super) struct Places<'a> {
    pub(super) mft: &'a Mft,
    /// The data of `$MFTMirr`.
    pub(super) mirror: &'a Stream,
    /// The data of `$Bitmap`.
    pub(super) bitmap: &'a Stream,
    /// `$MFT`'s bitmap.
    pub(super) record_bits: &'a Stream,
    /// What files may get where their records have no room.
    pub(super) spares: &'a SpareRecords,
}

/// See [`crate::Rearrange::edits`].
pub(super) fn edits(
    places: &Places<'_>,
    volume: &dyn ReadAt<Volume>,
    relocations: &Relocations,
) -> Result<Edits> {
    check_mft_moves_alone(places.mft, relocations)?;
    let records = places.mft.on(volume);
    let (sectors, taken) = (Sectors::new(volume), BTreeSet::new());
    let mut editor = Editor { places, records, relocations, volume, sectors, taken };
    editor.move_clusters()?;
    let mut expected: BTreeMap<FileId, u64> = BTreeMap::new();
    for relocation in relocations.by_source() {
        *expected.entry(relocation.file).or_default() += relocation.from.len_bytes();
    }
    for (file, expected_bytes) in expected {
        let moved_bytes = editor.rewrite_file(RecordNumber(file.0))?;
        if moved_bytes != expected_bytes {
            let found = format!("{moved_bytes} bytes");
            return Err(Error::invalid(format!("relocations of NTFS file {}", file.0)).field(
                "what it has there",
                found,
                format!("{expected_bytes} bytes"),
            ));
        }
    }
    Ok(Edits { patches: editor.sectors.into_patches(), freed: Vec::new() })
}

/// Where `$MFT`'s own record lies.
pub(super) fn mft_record(mft: &Mft) -> VolumeSpan {
    VolumeSpan::new(mft.record_offset(RecordNumber::MFT), mft.geometry.record_bytes)
}

/// Records cannot change while they move.
fn check_mft_moves_alone(mft: &Mft, relocations: &Relocations) -> Result<()> {
    let files = relocations.files();
    if !files.contains(&FileId(RecordNumber::MFT.0)) {
        return Ok(());
    }
    let record = mft_record(mft);
    if files.len() > 1 || relocations.departures(record).next().is_some() {
        return Err(Error::invalid("a relocation of NTFS's $MFT with its own record, or with other files"));
    }
    Ok(())
}

struct Editor<'a> {
    places: &'a Places<'a>,
    records: Records<'a>,
    relocations: &'a Relocations,
    volume: &'a dyn ReadAt<Volume>,
    sectors: Sectors<'a>,
    /// Spare records that files got.
    taken: BTreeSet<RecordNumber>,
}

impl Editor<'_> {
    /// Takes clusters, then lets go of others: none is taken that was not free.
    fn move_clusters(&mut self) -> Result<()> {
        for relocation in self.relocations.by_destination() {
            self.mark(relocation.to_span(), true)?;
        }
        for relocation in self.relocations.by_source() {
            self.mark(relocation.from, false)?;
        }
        Ok(())
    }

    /// Marks the clusters of a span, which must all be marked the other way.
    fn mark(&mut self, span: VolumeSpan, is_used: bool) -> Result<()> {
        let geometry = &self.places.mft.geometry;
        let cluster_bytes = geometry.cluster_bytes;
        let is_whole = span.start().get().is_multiple_of(cluster_bytes)
            && span.len_bytes().is_multiple_of(cluster_bytes);
        if !is_whole || span.end().get() > geometry.clustered_bytes() {
            return Err(Error::invalid("a relocation that is no clusters of the volume").at(span.start()));
        }
        let (start, end) = (span.start().get() / cluster_bytes, span.end().get() / cluster_bytes);
        let first_byte = start / 8;
        let sectors = &mut self.sectors;
        self.places.bitmap.each_place(first_byte, end.div_ceil(8) - first_byte, |from_byte, place| {
            sectors.change(place, |skipped, bytes| {
                set_bits(bytes, (from_byte + skipped) * 8, start, end, is_used).map_err(|cluster| {
                    let state = if is_used { "used" } else { "free" };
                    Error::corrupt(Corrupt::ClusterMarked { cluster, state }).at(geometry.offset_of(cluster))
                })
            })
        })
    }

    /// Rewrites the base record of a file and all its extension records. Answers how many bytes moved.
    fn rewrite_file(&mut self, number: RecordNumber) -> Result<u64> {
        let Places { mft, mirror, record_bits, spares, .. } = *self.places;
        let mut file = FileRecords::read(mft, &self.records, number, mirrored_count(mirror, mft))?;
        let mut now = BTreeSet::new();
        let changed = file.relocate(self.relocations, |_| {
            let spare = spares.first(|number| {
                let is_taken = self.taken.contains(&number) || now.contains(&number);
                Ok(is_taken || is_set(record_bits, self.volume, number)?)
            })?;
            now.extend(spare.map(|spare| spare.number));
            Ok(spare)
        })?;
        for number in changed.added {
            self.take(number)?;
        }
        for number in changed.records {
            self.rewrite(number, file.record(number))?;
        }
        if let Some(listed) = changed.listed {
            let base = self.records.base(number)?;
            let stream = self.records.attribute_list_stream(&base.view())?;
            let stream = stream
                .ok_or_else(|| base.view().error().field("attribute 0x20", "missing", "in the record"))?;
            put(&mut self.sectors, &stream, listed.start as u64, &file.list()[listed])?;
        }
        Ok(changed.moved_bytes)
    }

    /// Marks a record as in use, which is not.
    fn take(&mut self, number: RecordNumber) -> Result<()> {
        self.taken.insert(number);
        if broken!(AddedRecordNotMarked) {
            return Ok(());
        }
        let sectors = &mut self.sectors;
        self.places.record_bits.each_place(number.0 / 8, 1, |_, place| {
            sectors.change(place, |_, bytes| {
                set_bits(bytes, number.0 / 8 * 8, number.0, number.0 + 1, true).map_err(|_| {
                    let error = Error::corrupt(Corrupt::RecordMarked { record: number.0 });
                    error.at(place.start())
                })
            })
        })
    }

    fn rewrite(&mut self, number: RecordNumber, new: &[u8]) -> Result<()> {
        let Places { mft, mirror, .. } = self.places;
        let record_bytes = mft.geometry.record_bytes;
        let at = mft.record_offset(number);
        let is_mft = number == RecordNumber::MFT;
        if number.0 < MIRRORED_RECORDS && !is_mft {
            return Err(Error::invalid(format!("a relocation of NTFS's own file {number}")).at(at));
        }
        put(&mut self.sectors, &mft.data, number.0 * record_bytes, new)?;
        let old = self.records.raw(number)?;
        let mirrored = mirrored(mirror, self.volume, number, &old, mft)?;
        if is_mft && mirrored.is_none() {
            return Err(Error::corrupt(Corrupt::MirrorMoved).at(at));
        }
        if let Some(mirrored) = mirrored {
            let at = mirror.volume_offset(number.0 * record_bytes);
            if let Some(new) = rewrite_record(&mirrored, number, at, self.relocations, &mft.geometry)? {
                put(&mut self.sectors, mirror, number.0 * record_bytes, &new.bytes)?;
            }
        }
        Ok(())
    }
}

/// How many records `$MFTMirr` has room for.
pub(super) fn mirrored_count(mirror: &Stream, mft: &Mft) -> u64 {
    mirror.len_bytes() / mft.geometry.record_bytes
}

/// The copy that `$MFTMirr` has of a record, if it is one. Windows keeps four; ntfs-3g keeps a cluster full of them, and
/// mounts no volume on which these differ.
pub(super) fn mirrored(
    mirror: &Stream,
    volume: &dyn ReadAt<Volume>,
    number: RecordNumber,
    record: &[u8],
    mft: &Mft,
) -> Result<Option<Vec<u8>>> {
    let record_bytes = mft.geometry.record_bytes;
    let Some(end) = number.0.checked_add(1).and_then(|next| next.checked_mul(record_bytes)) else {
        return Ok(None);
    };
    if end > mirror.len_bytes().min(mirror.initialized_bytes()) {
        return Ok(None);
    }
    let mut copy = vec![0; record.len()];
    mirror.read_from(volume, end - record_bytes, &mut copy)?;
    let at = mirror.volume_offset(end - record_bytes);
    let (mut one, mut other) = (record.to_vec(), copy.clone());
    let one = Record::parse(&mut one, number, at);
    let other = Record::parse(&mut other, number, at);
    let is_same = matches!((one, other), (Ok(one), Ok(other)) if one.contents() == other.contents());
    Ok(is_same.then_some(copy))
}

/// Whether `bits` say of a record on the volume as it is now that it is in use.
fn is_set(bits: &Stream, volume: &dyn ReadAt<Volume>, number: RecordNumber) -> Result<bool> {
    let mut byte = [0];
    bits.read_from(volume, number.0 / 8, &mut byte)?;
    Ok(byte[0] >> (number.0 % 8) & 1 != 0)
}

/// Changes bytes of a file.
fn put(sectors: &mut Sectors<'_>, file: &Stream, at: u64, new: &[u8]) -> Result<()> {
    file.each_place(at, new.len() as u64, |from, place| {
        sectors.change(place, |skipped, bytes| {
            let start = usize::try_from(from - at + skipped).expect("within the record");
            bytes.copy_from_slice(&new[start..start + bytes.len()]);
            Ok(())
        })
    })
}

/// Sets, or clears, those of the bits `start..end` that are in `bytes`, whose first is number `first`. Tells one that was so
/// already.
fn set_bits(bytes: &mut [u8], first: u64, start: u64, end: u64, is_set: bool) -> Result<(), u64> {
    for (byte, at) in bytes.iter_mut().zip((first..).step_by(8)) {
        let (from, to) = (start.clamp(at, at + 8) - at, end.clamp(at, at + 8) - at);
        let mask = bits_below(to) & !bits_below(from);
        let wrong = if is_set { *byte & mask } else { !*byte & mask };
        if wrong != 0 {
            return Err(at + u64::from(wrong.trailing_zeros()));
        }
        *byte ^= mask;
    }
    Ok(())
}

/// A byte with the first `count` bits set.
pub(super) fn bits_below(count: u64) -> u8 {
    ((1u16 << count) - 1).to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bits_change_as_single_ones_would(
            bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(255), any::<u8>()], 1..8),
            first in (0..20u64).prop_map(|byte| byte * 8), start in 0..200u64, len in 0..80u64, is_set: bool,
        ) {
            let end = start + len;
            let mut changed = bytes.clone();
            let result = set_bits(&mut changed, first, start, end, is_set);
            let bit = |bytes: &[u8], at: u64| bytes[usize::try_from((at - first) / 8).unwrap()] >> (at % 8) & 1 != 0;
            let all = first..first + bytes.len() as u64 * 8;
            let wrong = all.clone().find(|at| (start..end).contains(at) && bit(&bytes, *at) == is_set);
            prop_assert_eq!(result, wrong.map_or(Ok(()), Err));
            for at in all.filter(|_| wrong.is_none()) {
                let expected = if (start..end).contains(&at) { is_set } else { bit(&bytes, at) };
                prop_assert_eq!(bit(&changed, at), expected);
            }
        }
    }
}
