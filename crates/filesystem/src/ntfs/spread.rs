//! The records of one file with what moved told anew in its run lists, over which lists are spread anew where one record has no room for its piece.
//!
//! A list that is too long for one record is kept in pieces, each in a record of its own, and `$ATTRIBUTE_LIST` says at which VCN each begins. Records
//! that drivers filled to the last byte have no room for a single step that is a byte longer, while the next record may have plenty. So where the pieces
//! end is free: a piece may take over what the next one began with, or leave it what it ended with. Where that is not enough, or there is one piece
//! alone, the file gets one more record ([`super::extension`]).
//!
//! Invariants:
//! - records whose pieces fit are rewritten one by one ([`super::rewrite`]), and nothing is spread;
//! - what is spread is the same runs in the same order, and each piece has at least one; a piece keeps its record, its number, its name and its sizes, and
//!   `$ATTRIBUTE_LIST` its entries and their order. Only the VCNs at which pieces meet change, in both places. The piece in a new record is the last, and
//!   so is its entry of those of its stream;
//! - NTFS's own files, records that `$MFTMirr` may have, lists with holes or of what is compressed, and files whose `$ATTRIBUTE_LIST` moves itself are
//!   not spread.
//!
//! Pure but for [`FileRecords::read`]: bytes in, bytes out.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use block::{ErrorKind, Result};
use extent::{VolumeOffset, VolumeSpan};
use mutants::broken;

use super::boot::Geometry;
use super::extension::{SpareRecord, list_attribute, list_of, new_list_attribute, only_piece};
use super::layout::{
    ATTR_ATTRIBUTE_LIST, ATTRIBUTE_HIGHEST_VCN_OFFSET, ATTRIBUTE_LOWEST_VCN_OFFSET,
    FILE_RECORD_NEXT_INSTANCE_OFFSET, LIST_ENTRY_LOWEST_VCN_OFFSET,
};
use super::mft::{ListEntry, Mft, Records, list_entries, parse_list};
use super::record::{Attribute, Record, RecordNumber, Value, protect};
use super::rewrite::{self, moved_attribute, rewrite_record};
use super::runs::{self, Run};
use super::scan::RESERVED_RECORDS;
use crate::rearrange::Relocations;

/// In how many ways shares are tried where a room is too small for the run that comes to it: bounds the time for volumes made to take long.
const MOST_IMPOSSIBLE: usize = 1 << 16;

/// More records at once are of no use to a file: it is the list of them that has no room.
const ADDED_MAX: usize = 8;

/// The records that tell of one file, and its attribute list, as they are on a volume.
#[derive(Clone)]
pub(super) struct FileRecords {
    geometry: Geometry,
    base: RecordNumber,
    records: BTreeMap<RecordNumber, RecordBytes>,
    /// The value of `$ATTRIBUTE_LIST`; empty if there is none.
    list: Vec<u8>,
    /// Records from here on have no copy in `$MFTMirr`, and are of no file of NTFS's own.
    first_plain: RecordNumber,
}

/// A record as it is on the volume, where it lies at `at`.
#[derive(Clone, PartialEq, Eq, Debug)]
struct RecordBytes {
    at: VolumeOffset,
    bytes: Vec<u8>,
}

/// What relocations changed.
#[derive(Default, Debug)]
pub(super) struct Changed {
    /// Records that have other bytes.
    pub(super) records: BTreeSet<RecordNumber>,
    /// Those of them that the file did not have.
    pub(super) added: Vec<RecordNumber>,
    /// Bytes that run lists name elsewhere than before.
    pub(super) moved_bytes: u64,
    /// The part of the attribute list's value that has other bytes, if it lies in clusters.
    pub(super) listed: Option<Range<usize>>,
}

impl FileRecords {
    /// Reads the base record of a file and all its extension records. `mirrored_count` is how many records `$MFTMirr` has room for.
    pub(super) fn read(
        mft: &Mft,
        records: &Records<'_>,
        number: RecordNumber,
        mirrored_count: u64,
    ) -> Result<Self> {
        let base = records.base(number)?;
        let list = records.attribute_list_bytes(&base.view())?;
        let read = |number| -> Result<RecordBytes> {
            Ok(RecordBytes { at: mft.record_offset(number), bytes: records.raw(number)? })
        };
        let mut all = BTreeMap::from([(number, read(number)?)]);
        for entry in list_entries(&base.view(), &list)? {
            if let Entry::Vacant(vacant) = all.entry(entry.holder.number) {
                records.listed_record(&base.view(), &entry)?;
                vacant.insert(read(entry.holder.number)?);
            }
        }
        let first_plain = RecordNumber(mirrored_count.max(RESERVED_RECORDS));
        Ok(Self { geometry: mft.geometry, base: number, records: all, list, first_plain })
    }

    /// The bytes of a record as they are to be on the volume.
    pub(super) fn record(&self, number: RecordNumber) -> &[u8] {
        &self.records[&number].bytes
    }

    /// The value of the attribute list.
    pub(super) fn list(&self) -> &[u8] {
        &self.list
    }

    /// Where the attribute list lies, if that is in clusters.
    pub(super) fn list_spans(&self) -> Result<Vec<VolumeSpan>> {
        let RecordBytes { at, bytes } = &self.records[&self.base];
        let mut fixed = bytes.clone();
        let list = Record::parse(&mut fixed, self.base, *at)?.find(ATTR_ATTRIBUTE_LIST, "")?;
        let mut spans = Vec::new();
        let Some(list) = list else { return Ok(spans) };
        let Value::NonResident(mapped) = list.value()? else { return Ok(spans) };
        list.each_run(&mapped, self.geometry.cluster_count, |run| {
            spans.extend(run.lcn.map(|lcn| self.geometry.span_of(lcn, run.count)));
            Ok(())
        })?;
        Ok(spans)
    }

    /// Lets `relocations` happen to the file. `spare` answers the record that the file can have after it got so many. An error leaves it as it was.
    pub(super) fn relocate<'s>(
        &mut self,
        relocations: &Relocations,
        mut spare: impl FnMut(usize) -> Result<Option<&'s SpareRecord>>,
    ) -> Result<Changed> {
        let error = match self.one_by_one(relocations) {
            Err(error) if error.kind() == ErrorKind::Invalid => error,
            done => return done,
        };
        let mut extended = self.clone();
        let mut added = Vec::new();
        loop {
            if let Some((after, moved_bytes)) = extended.spread(relocations)? {
                let changed = self.changed(&after, added, moved_bytes)?;
                *self = after;
                return Ok(changed);
            }
            let spare = if added.len() < ADDED_MAX { spare(added.len())? } else { None };
            let Some(spare) = spare else { return Err(error) };
            let Some(longer) = extended.extended(relocations, spare)? else { return Err(error) };
            added.push(spare.number);
            extended = longer;
        }
    }

    /// What is to be written where the file became `after`.
    fn changed(&self, after: &Self, added: Vec<RecordNumber>, moved_bytes: u64) -> Result<Changed> {
        let is_other = |number: &RecordNumber| self.records.get(number) != after.records.get(number);
        let records = after.records.keys().copied().filter(is_other).collect();
        let is_in_clusters = !after.list_spans()?.is_empty();
        let listed = if is_in_clusters { differing(&self.list, &after.list) } else { None };
        Ok(Changed { records, added, moved_bytes, listed })
    }

    /// Each record by itself.
    fn one_by_one(&mut self, relocations: &Relocations) -> Result<Changed> {
        let mut changed = Changed::default();
        let mut rewritten = BTreeMap::new();
        for (&number, RecordBytes { at, bytes }) in &self.records {
            if let Some(new) = rewrite_record(bytes, number, *at, relocations, &self.geometry)? {
                changed.moved_bytes += new.moved_bytes;
                changed.records.insert(number);
                rewritten.insert(number, RecordBytes { at: *at, bytes: new.bytes });
            }
        }
        self.records.extend(rewritten);
        Ok(changed)
    }

    /// The file with all its records, over which lists are spread, and how many bytes moved. `None` if that is not for this file, or of no use.
    fn spread(&self, relocations: &Relocations) -> Result<Option<(Self, u64)>> {
        let Some(entries) = parse_list(&self.list).filter(|entries| !entries.is_empty()) else {
            return Ok(None);
        };
        let mut fixed = self.records.clone();
        let Some(mut moved) = self.moved(&mut fixed, relocations)? else { return Ok(None) };
        let mut list = self.list.clone();
        // What has become longer takes room that lists have not.
        if !moved.put_list(self.base, &list)? {
            return Ok(None);
        }
        for pieces in moved.streams(&entries) {
            for (entry, lowest_vcn) in moved.spread(&pieces)? {
                if broken!(PiecesListedWhereTheyWere) {
                    continue;
                }
                let at = entries[entry].at + LIST_ENTRY_LOWEST_VCN_OFFSET;
                list[at..at + 8].copy_from_slice(&lowest_vcn.to_le_bytes());
            }
        }
        moved.put_list(self.base, &list)?;
        let mut after = Self { list, ..self.clone() };
        for record in &moved.records {
            if record.is_changed() {
                let Some(mut bytes) = record.assembled()? else { return Ok(None) };
                protect(&mut bytes);
                let number = record.record.number();
                after.records.insert(number, RecordBytes { at: self.records[&number].at, bytes });
            }
        }
        Ok(Some((after, moved.moved_bytes)))
    }

    /// The file as it is, but with one more record, which has what comes last in a list that lacks room once `relocations` happened; its attribute list
    /// is not yet in the base record. `None` if that is not for this file, or of no use.
    fn extended(&self, relocations: &Relocations, spare: &SpareRecord) -> Result<Option<Self>> {
        let mut fixed = self.records.clone();
        let Some(moved) = self.moved(&mut fixed, relocations)? else { return Ok(None) };
        let Some(base) = moved.records.iter().find(|each| each.record.number() == self.base) else {
            return Ok(None);
        };
        let list = if self.list.is_empty() { list_of(&base.record)? } else { Some(self.list.clone()) };
        let Some(list) = list else { return Ok(None) };
        let Some(entries) = parse_list(&list) else { return Ok(None) };
        let is_short =
            |pieces: &Vec<Piece>| pieces.iter().any(|piece| !moved.records[piece.record].is_in_bounds());
        let Some(last) = moved.streams(&entries).into_iter().find(is_short).and_then(|mut all| all.pop())
        else {
            return Ok(None);
        };
        let attribute = moved.attribute(&last);
        let Some((kept, split)) = without_last_run(attribute, &self.geometry)? else { return Ok(None) };
        let holder = &moved.records[last.record];
        let Some(kept) = holder.with(last.attribute, &kept)? else { return Ok(None) };
        let Some(new) = spare.with(&base.record, &split.attribute) else { return Ok(None) };
        let mut longer = self.clone();
        for (number, at, mut bytes) in [
            (holder.record.number(), self.records[&holder.record.number()].at, kept),
            (spare.number, spare.at, new),
        ] {
            protect(&mut bytes);
            longer.records.insert(number, RecordBytes { at, bytes });
        }
        let entry_at = entries[last.entry].at;
        let entry_end = entries.get(last.entry + 1).map_or(list.len(), |next| next.at);
        let entry = spare.entry(&list[entry_at..entry_end], split.lowest_vcn);
        longer.list = [&list[..entry_end], &entry, &list[entry_end..]].concat();
        Ok(Some(longer))
    }

    /// The records with what moved told anew; `None` if lists of this file are not to be spread.
    fn moved<'r>(
        &self,
        fixed: &'r mut BTreeMap<RecordNumber, RecordBytes>,
        relocations: &'r Relocations,
    ) -> Result<Option<Moved<'r>>>
    where
        Self: 'r,
    {
        if self.records.keys().any(|number| *number < self.first_plain) {
            return Ok(None);
        }
        let mut records = Vec::new();
        for (&number, RecordBytes { at, bytes }) in fixed {
            records.push(Record::parse(bytes, number, *at)?);
        }
        let moved = Moved::new(&records, relocations, self.geometry)?;
        Ok((!moved.is_list_moving).then_some(moved))
    }
}

/// The last run of a piece as a piece of its own.
struct Split {
    attribute: Vec<u8>,
    lowest_vcn: u64,
}

/// A piece without its last run, or without half of its only one, and what is left over. `None` if that is one cluster, or a hole.
fn without_last_run(attribute: &Attribute<'_>, geometry: &Geometry) -> Result<Option<(Vec<u8>, Split)>> {
    let Value::NonResident(mapped) = attribute.value()? else { return Ok(None) };
    let mut runs = Vec::new();
    attribute.each_run(&mapped, geometry.cluster_count, |run| {
        runs.push(run);
        Ok(())
    })?;
    let Some(mut last) = runs.pop().filter(|last| last.lcn.is_some()) else { return Ok(None) };
    if runs.is_empty() {
        let Some((first, rest)) = halves(last) else { return Ok(None) };
        runs.push(first);
        last = rest;
    }
    let end = mapped.lowest_vcn + mapped.vcn_count;
    let lowest_vcn = end - last.count;
    let mut kept = rewrite::with_runs(attribute, &mapped, &runs)?;
    kept[ATTRIBUTE_HIGHEST_VCN_OFFSET..][..8].copy_from_slice(&(lowest_vcn - 1).to_le_bytes());
    let piece = rewrite::with_runs(attribute, &mapped, &[last])?;
    Ok(Some((kept, Split { attribute: only_piece(piece, lowest_vcn, end - 1), lowest_vcn })))
}

/// From the first byte in which they differ to the end; `None` if they do not.
fn differing(old: &[u8], new: &[u8]) -> Option<Range<usize>> {
    let same = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    (same < new.len()).then_some(same..new.len())
}

/// The records with what moved told anew, before they are put together.
struct Moved<'r> {
    geometry: Geometry,
    relocations: &'r Relocations,
    records: Vec<MovedRecord<'r>>,
    moved_bytes: u64,
    is_list_moving: bool,
}

struct MovedRecord<'r> {
    record: Record<'r>,
    attributes: Vec<MovedAttribute<'r>>,
    /// The attribute list of a file that had none.
    new_list: Option<Vec<u8>>,
}

struct MovedAttribute<'r> {
    old: Attribute<'r>,
    /// What it becomes, if something else.
    new: Option<Vec<u8>>,
}

/// One piece of a stream's run list: its entry in the attribute list, and the record and the attribute that hold it.
struct Piece {
    entry: usize,
    record: usize,
    attribute: usize,
}

impl<'r> Moved<'r> {
    fn new(records: &[Record<'r>], relocations: &'r Relocations, geometry: Geometry) -> Result<Self> {
        let mut moved =
            Self { geometry, relocations, records: Vec::new(), moved_bytes: 0, is_list_moving: false };
        for record in records {
            let mut attributes = Vec::new();
            for old in record.attributes() {
                let old = old?;
                let new = moved_attribute(&old, relocations, &geometry)?;
                moved.moved_bytes += new.as_ref().map_or(0, |(_, moved_bytes)| *moved_bytes);
                moved.is_list_moving |= old.kind() == ATTR_ATTRIBUTE_LIST && new.is_some();
                attributes.push(MovedAttribute { old, new: new.map(|(bytes, _)| bytes) });
            }
            moved.records.push(MovedRecord { record: *record, attributes, new_list: None });
        }
        Ok(moved)
    }

    /// The streams that may be spread, each with its pieces in order.
    fn streams(&self, entries: &[ListEntry]) -> Vec<Vec<Piece>> {
        let mut streams: Vec<Vec<Piece>> = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let Some(piece) = self.piece(index, entry) else { continue };
            let begun = streams.last_mut().filter(|pieces| {
                let first = &entries[pieces[0].entry];
                (first.kind, &first.name) == (entry.kind, &entry.name)
            });
            match begun {
                Some(pieces) => pieces.push(piece),
                None => streams.push(vec![piece]),
            }
        }
        streams.retain(|pieces| self.may_be_spread(pieces));
        streams
    }

    fn piece(&self, index: usize, entry: &ListEntry) -> Option<Piece> {
        let record = self.records.iter().position(|each| each.record.number() == entry.holder.number)?;
        let is_it = |each: &MovedAttribute<'_>| {
            each.old.kind() == entry.kind && each.old.instance() == entry.instance
        };
        let attribute = self.records[record].attributes.iter().position(is_it)?;
        Some(Piece { entry: index, record, attribute })
    }

    fn attribute(&self, piece: &Piece) -> &Attribute<'r> {
        &self.records[piece.record].attributes[piece.attribute].old
    }

    /// Whether the pieces follow each other, each in a record of its own, and map clusters as they are.
    fn may_be_spread(&self, pieces: &[Piece]) -> bool {
        let holders: BTreeSet<_> = pieces.iter().map(|piece| piece.record).collect();
        let mut next_vcn = 0;
        holders.len() == pieces.len()
            && pieces.iter().all(|piece| {
                let attribute = self.attribute(piece);
                let Ok(Value::NonResident(mapped)) = attribute.value() else { return false };
                let follows = mapped.lowest_vcn == next_vcn;
                next_vcn = mapped.lowest_vcn.saturating_add(mapped.vcn_count);
                let is_plain = attribute.flags() == 0 && mapped.compression_unit == 0;
                follows && is_plain && attribute.name_end() <= mapped.run_list_offset
            })
    }

    /// Spreads what the pieces of a stream say, if one of their records has no room for its piece. Answers entries of the attribute list with where their
    /// pieces begin now; none if nothing is to be changed, or nothing helps.
    fn spread(&mut self, pieces: &[Piece]) -> Result<Vec<(usize, u64)>> {
        if pieces.len() == 1 || pieces.iter().all(|piece| self.records[piece.record].is_in_bounds()) {
            return Ok(Vec::new());
        }
        let (mut runs, mut rooms) = (Vec::new(), Vec::new());
        for piece in pieces {
            let Value::NonResident(mapped) = self.attribute(piece).value()? else { return Ok(Vec::new()) };
            let moved =
                rewrite::moved_runs(self.attribute(piece), &mapped, self.relocations, &self.geometry)?;
            moved.into_iter().for_each(|run| rewrite::push(&mut runs, run));
            let room = self.records[piece.record].room_for(piece.attribute);
            rooms.push(room.saturating_sub(mapped.run_list_offset));
        }
        let is_whole = runs.iter().all(|run| run.lcn.is_some());
        let Some(shares) = is_whole.then(|| shares(runs, &rooms)).flatten() else { return Ok(Vec::new()) };
        let mut begun = Vec::new();
        let mut lowest_vcn = 0_u64;
        for (piece, runs) in pieces.iter().zip(shares) {
            let vcn_count: u64 = runs.iter().map(|run| run.count).sum();
            let attribute = &mut self.records[piece.record].attributes[piece.attribute];
            let Value::NonResident(mapped) = attribute.old.value()? else { continue };
            let mut bytes = rewrite::with_runs(&attribute.old, &mapped, &runs)?;
            bytes[ATTRIBUTE_LOWEST_VCN_OFFSET..][..8].copy_from_slice(&lowest_vcn.to_le_bytes());
            let highest_vcn = lowest_vcn + vcn_count - 1;
            if !broken!(PiecesEndWhereTheyDid) {
                bytes[ATTRIBUTE_HIGHEST_VCN_OFFSET..][..8].copy_from_slice(&highest_vcn.to_le_bytes());
            }
            attribute.new = Some(bytes);
            begun.push((piece.entry, lowest_vcn));
            lowest_vcn += vcn_count;
        }
        Ok(begun)
    }

    /// Has the base record say `list`, or how long it is where it lies in clusters. Whether there can be room for it.
    fn put_list(&mut self, base: RecordNumber, list: &[u8]) -> Result<bool> {
        let Some(record) = self.records.iter_mut().find(|each| each.record.number() == base) else {
            return Ok(false);
        };
        let is_list = |each: &&mut MovedAttribute<'_>| each.old.kind() == ATTR_ATTRIBUTE_LIST;
        if let Some(attribute) = record.attributes.iter_mut().find(is_list) {
            attribute.new = list_attribute(&attribute.old, list)?;
            return Ok(attribute.new.is_some());
        }
        record.new_list = new_list_attribute(record.record.next_instance(), list);
        Ok(record.new_list.is_some())
    }
}

impl MovedRecord<'_> {
    fn is_changed(&self) -> bool {
        self.new_list.is_some() || self.attributes.iter().any(MovedAttribute::is_changed)
    }

    /// Bytes that will be in use.
    fn in_use(&self) -> usize {
        let lens = self.attributes.iter().map(|each| each.old.bytes().len()).sum::<usize>();
        let new_lens = self.attributes.iter().map(|each| each.bytes().len()).sum::<usize>();
        self.record.bytes_in_use() - lens + new_lens + self.new_list.as_ref().map_or(0, Vec::len)
    }

    fn is_in_bounds(&self) -> bool {
        self.in_use() <= self.record.bytes().len()
    }

    /// The most bytes that one of the attributes can have beside the others.
    fn room_for(&self, attribute: usize) -> usize {
        let others = self.in_use() - self.attributes[attribute].bytes().len();
        self.record.bytes().len().saturating_sub(others) / 8 * 8
    }

    /// The record, not yet protected; `None` if it has no room.
    fn assembled(&self) -> Result<Option<Vec<u8>>> {
        if !self.is_in_bounds() {
            return Ok(None);
        }
        let mut attributes: Vec<_> = self.attributes.iter().map(MovedAttribute::bytes).collect();
        let Some(list) = &self.new_list else {
            return rewrite::assemble(&self.record, &attributes).map(Some);
        };
        // Attributes are in the order of their kinds.
        let at = self.attributes.partition_point(|each| each.old.kind() < ATTR_ATTRIBUTE_LIST);
        attributes.insert(at, list);
        let mut bytes = rewrite::assemble(&self.record, &attributes)?;
        let Some(next) = self.record.next_instance().checked_add(1) else { return Ok(None) };
        bytes[FILE_RECORD_NEXT_INSTANCE_OFFSET..][..2].copy_from_slice(&next.to_le_bytes());
        Ok(Some(bytes))
    }

    /// The record as it was, not yet protected, with `new` for one of its attributes; `None` if it has no room.
    fn with(&self, attribute: usize, new: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut attributes: Vec<_> = self.attributes.iter().map(|each| each.old.bytes()).collect();
        attributes[attribute] = new;
        let len = self.record.bytes_in_use() + new.len() - self.attributes[attribute].old.bytes().len();
        let fits = len <= self.record.bytes().len();
        fits.then(|| rewrite::assemble(&self.record, &attributes)).transpose()
    }
}

impl MovedAttribute<'_> {
    fn is_changed(&self) -> bool {
        self.bytes() != self.old.bytes()
    }

    fn bytes(&self) -> &[u8] {
        self.new.as_deref().unwrap_or(self.old.bytes())
    }
}

/// The runs of a list in pieces, none of which is longer than its room, its terminator included. All keep about as much room for the steps that follow.
fn shares(mut runs: Vec<Run>, rooms: &[usize]) -> Option<Vec<Vec<Run>>> {
    while runs.len() < rooms.len() {
        let longest = (0..runs.len()).max_by_key(|index| runs[*index].count)?;
        let (first, rest) = halves(runs[longest])?;
        runs.splice(longest..=longest, [first, rest]);
    }
    let (mut spare, mut too_much) = (0, rooms.iter().copied().min()?);
    let mut best = counts(&runs, rooms, spare)?;
    while too_much - spare > 1 {
        let middle = usize::midpoint(spare, too_much);
        match counts(&runs, rooms, middle) {
            Some(counts) => (spare, best) = (middle, counts),
            None => too_much = middle,
        }
    }
    let mut runs = runs.into_iter();
    Some(best.into_iter().map(|count| runs.by_ref().take(count).collect()).collect())
}

/// A run in two.
fn halves(run: Run) -> Option<(Run, Run)> {
    let first = run.count / 2;
    let rest = Run { lcn: run.lcn.map(|lcn| lcn + first), count: run.count - first };
    (first > 0).then_some((Run { count: first, ..run }, rest))
}

/// How many runs each piece has if each but the last has as many as fit, with `spare` bytes left in each; `None` if they do not fit, or if one had none.
///
/// A piece leaves some to the next where that one's room is too small for the run that would come to it, but not for one before.
fn counts(runs: &[Run], rooms: &[usize], spare: usize) -> Option<Vec<usize>> {
    let mut counts = Vec::new();
    let mut begin = 0;
    // Pieces that cannot begin there, by index.
    let mut impossible = BTreeSet::new();
    while counts.len() < rooms.len() {
        let room = rooms[counts.len()].checked_sub(spare)?;
        let most = (runs.len() - begin).checked_sub(rooms.len() - counts.len() - 1)?;
        let mut count = runs::fitting(&runs[begin..begin + most], room);
        while count == 0 || impossible.contains(&(counts.len() + 1, begin + count)) {
            if count == 0 {
                impossible.insert((counts.len(), begin));
                count = counts.pop().filter(|_| impossible.len() < MOST_IMPOSSIBLE)?;
                begin -= count;
            }
            count -= 1;
        }
        counts.push(count);
        begin += count;
    }
    (begin == runs.len()).then_some(counts)
}

#[cfg(test)]
mod tests {
    use extent::Span;
    use proptest::prelude::*;

    use super::super::layout::ATTR_DATA;
    use super::*;
    use crate::files::FileId;
    use crate::rearrange::Relocation;

    const CLUSTER_BYTES: u64 = 4096;
    const CLUSTER_COUNT: u64 = 1 << 22;
    const RECORD_LEN: usize = 1024;
    const BASE: u64 = 40;
    /// Where names, and whatever else a base record has, would be.
    const OTHERS_LEN: usize = 400;

    /// No record can be had.
    fn none<'s>(_count: usize) -> Result<Option<&'s SpareRecord>> {
        Ok(None)
    }

    fn geometry() -> Geometry {
        Geometry {
            sector_bytes: 512,
            cluster_bytes: CLUSTER_BYTES,
            cluster_count: CLUSTER_COUNT,
            size_bytes: CLUSTER_COUNT * CLUSTER_BYTES,
            record_bytes: RECORD_LEN as u64,
            mft_lcn: 4,
            mirror_lcn: 2,
            serial: 1,
        }
    }

    fn put(bytes: &mut [u8], at: usize, value: u64, len: usize) {
        bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
    }

    fn resident(kind: u32, instance: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 24];
        put(&mut bytes, 0, kind.into(), 4);
        put(&mut bytes, 14, instance.into(), 2);
        put(&mut bytes, 16, value.len() as u64, 4);
        put(&mut bytes, 20, 24, 2);
        bytes.extend(value);
        sized(bytes)
    }

    fn piece(instance: u16, lowest_vcn: u64, runs: &[Run]) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        put(&mut bytes, 0, ATTR_DATA.into(), 4);
        bytes[8] = 1;
        put(&mut bytes, 14, instance.into(), 2);
        put(&mut bytes, 16, lowest_vcn, 8);
        let count: u64 = runs.iter().map(|run| run.count).sum();
        put(&mut bytes, 24, lowest_vcn + count - 1, 8);
        put(&mut bytes, 32, 64, 2);
        runs::encode(runs, &mut bytes);
        sized(bytes)
    }

    fn sized(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let len = bytes.len() as u64;
        put(&mut bytes, 4, len, 4);
        bytes
    }

    /// A record as on the volume; `None` if so much does not fit.
    fn record(attributes: &[Vec<u8>]) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 56];
        bytes[..4].copy_from_slice(b"FILE");
        put(&mut bytes, 4, 0x30, 2);
        put(&mut bytes, 6, 3, 2);
        put(&mut bytes, 20, 56, 2);
        put(&mut bytes, 22, 1, 2);
        put(&mut bytes, 28, RECORD_LEN as u64, 4);
        put(&mut bytes, 40, 9, 2);
        put(&mut bytes, 0x30, 7, 2);
        bytes.extend(attributes.concat());
        bytes.extend([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        let in_use = bytes.len() as u64;
        put(&mut bytes, 24, in_use, 4);
        (bytes.len() <= RECORD_LEN).then(|| {
            bytes.resize(RECORD_LEN, 0);
            protect(&mut bytes);
            bytes
        })
    }

    fn list_of(pieces: &[Vec<Run>]) -> Vec<u8> {
        let mut list = Vec::new();
        let mut lowest_vcn = 0;
        for (index, runs) in (0..).zip(pieces) {
            let mut entry = vec![0; 32];
            put(&mut entry, 0, ATTR_DATA.into(), 4);
            put(&mut entry, 4, 32, 2);
            put(&mut entry, 8, lowest_vcn, 8);
            put(&mut entry, 16, 1 << 48 | (BASE + index), 8);
            put(&mut entry, 24, 3 + index, 2);
            list.extend(entry);
            lowest_vcn += runs.iter().map(|run| run.count).sum::<u64>();
        }
        list
    }

    /// A file whose list is in `pieces`, the first of them in its base record; `None` if one does not fit.
    fn file(pieces: &[Vec<Run>], is_list_resident: bool) -> Option<FileRecords> {
        let list = list_of(pieces);
        let listed = match is_list_resident {
            true => resident(ATTR_ATTRIBUTE_LIST, 1, &list),
            false => {
                let mut listed = piece(1, 0, &[Run { lcn: Some(CLUSTER_COUNT - 1), count: 1 }]);
                put(&mut listed, 0, ATTR_ATTRIBUTE_LIST.into(), 4);
                put(&mut listed, 40, CLUSTER_BYTES, 8);
                listed
            }
        };
        let mut records = BTreeMap::new();
        let mut lowest_vcn = 0;
        for (index, runs) in (0..).zip(pieces) {
            let mut attributes = match index {
                0 => vec![listed.clone(), resident(0x30, 2, &[9; OTHERS_LEN])],
                _ => Vec::new(),
            };
            attributes.push(piece(3 + index, lowest_vcn, runs));
            lowest_vcn += runs.iter().map(|run| run.count).sum::<u64>();
            let at = VolumeOffset::new(u64::from(index) * 1024);
            let bytes = record(&attributes)?;
            records.insert(RecordNumber(BASE + u64::from(index)), RecordBytes { at, bytes });
        }
        let (geometry, base) = (geometry(), RecordNumber(BASE));
        Some(FileRecords { geometry, base, records, list, first_plain: RecordNumber(24) })
    }

    /// A file of which all is in its base record, if that has room for it.
    fn unlisted(runs: &[Run]) -> Option<FileRecords> {
        let attributes = [resident(0x10, 0, &[8; 48]), resident(0x30, 2, &[9; 100]), piece(3, 0, runs)];
        let bytes = record(&attributes)?;
        let records = BTreeMap::from([(RecordNumber(BASE), RecordBytes { at: VolumeOffset::ZERO, bytes })]);
        let (geometry, base) = (geometry(), RecordNumber(BASE));
        Some(FileRecords { geometry, base, records, list: Vec::new(), first_plain: RecordNumber(24) })
    }

    /// Records that files may get, which were of other files before.
    fn spares(count: u64) -> Vec<SpareRecord> {
        let old = record(&[resident(0x10, 0, &[7; 48])]).unwrap();
        let spare = |index: u64| {
            let mut head = old[..56].to_vec();
            put(&mut head, 16, 5 + index, 2);
            put(&mut head, 22, 0, 2);
            put(&mut head, 32, 1 << 48 | 99, 8);
            let (number, at) = (RecordNumber(100 + index), VolumeOffset::new((100 + index) * 1024));
            SpareRecord { number, at, head, sequence: 5 + u16::try_from(index).unwrap() }
        };
        (0..count).map(spare).collect()
    }

    /// What a driver would read: the list in the base record or the clusters, the pieces that it names, and that each begins and ends where
    /// the list and its own head say; and that all records are of the file, and all attributes listed.
    fn runs_of(file: &FileRecords) -> Vec<Run> {
        let mut all: Vec<Run> = Vec::new();
        let mut next_vcn = 0;
        let fixed = |number: RecordNumber| {
            let mut bytes = file.records[&number].bytes.clone();
            Record::parse(&mut bytes, number, file.records[&number].at).unwrap();
            bytes
        };
        let bytes = |number| (fixed(number), file.records[&number].at);
        let mut entries: Vec<_> = parse_list(&file.list)
            .unwrap()
            .into_iter()
            .map(|entry| (entry.holder, entry.kind, entry.instance, entry.lowest_vcn))
            .collect();
        let base = fixed(file.base);
        let base = Record::parsed(&base, file.base, VolumeOffset::ZERO);
        if let Some(list) = base.find(ATTR_ATTRIBUTE_LIST, "").unwrap() {
            match list.value().unwrap() {
                Value::Resident(value) => assert_eq!(value, file.list),
                Value::NonResident(mapped) => {
                    let len = if mapped.data_bytes == 0 { file.list.len() as u64 } else { mapped.data_bytes };
                    assert_eq!(len, file.list.len() as u64);
                    assert_eq!(mapped.initialized_bytes, mapped.data_bytes);
                }
            }
        } else {
            assert!(file.list.is_empty());
            entries.push((base.reference(), ATTR_DATA, 3, 0));
        }
        let mut attribute_count = 0;
        for number in file.records.keys() {
            let (bytes, at) = bytes(*number);
            let record = Record::parsed(&bytes, *number, at);
            let attributes: Vec<_> = record.attributes().map(Result::unwrap).collect();
            assert!(record.is_in_use() && attributes.iter().map(Attribute::kind).is_sorted());
            assert_eq!(
                record.base(),
                (*number != file.base).then(|| base.reference()).filter(|_| number.0 >= 100)
            );
            let instances: BTreeSet<_> = attributes.iter().map(Attribute::instance).collect();
            assert_eq!(instances.len(), attributes.len());
            assert!(instances.iter().all(|instance| *instance < record.next_instance()));
            attribute_count += attributes.len();
        }
        assert!(entries.len() <= attribute_count);
        for (holder, kind, instance, lowest_vcn) in entries {
            let (bytes, at) = bytes(holder.number);
            let record = Record::parsed(&bytes, holder.number, at);
            assert!(holder.number.0 < 100 || record.sequence() == holder.sequence);
            let is_listed = |each: &Attribute<'_>| each.kind() == kind && each.instance() == instance;
            let attribute = record.attributes().map(Result::unwrap).find(is_listed).unwrap();
            let Value::NonResident(mapped) = attribute.value().unwrap() else { continue };
            if kind != ATTR_DATA {
                continue;
            }
            assert_eq!((mapped.lowest_vcn, lowest_vcn), (next_vcn, next_vcn));
            next_vcn += mapped.vcn_count;
            let count = all.len();
            let mut push = |run| {
                all.push(run);
                Ok(())
            };
            attribute.each_run(&mapped, CLUSTER_COUNT, &mut push).unwrap();
            assert!(all.len() > count);
        }
        all
    }

    fn joined(runs: &[Run]) -> Vec<Run> {
        let mut joined = Vec::new();
        runs.iter().for_each(|run| rewrite::push(&mut joined, *run));
        joined
    }

    fn relocation(from: u64, count: u64, to: u64) -> Relocation {
        Relocation {
            from: Span::new(VolumeOffset::new(from * CLUSTER_BYTES), count * CLUSTER_BYTES),
            to: VolumeOffset::new(to * CLUSTER_BYTES),
            file: FileId(BASE),
        }
    }

    /// Runs near each other, which take few bytes; one that goes far away takes more.
    fn near(count: u64) -> Vec<Run> {
        (0..count).map(|index| Run { lcn: Some(1000 + index * 3), count: 1 }).collect()
    }

    /// As many of `runs` in the first record as it takes, and all others in the next one.
    fn full_base(runs: &[Run], is_list_resident: bool) -> FileRecords {
        let at = (1..runs.len()).rev();
        let mut files =
            at.filter_map(|at| file(&[runs[..at].to_vec(), runs[at..].to_vec()], is_list_resident));
        files.next().unwrap()
    }

    #[test]
    fn what_one_record_has_no_room_for_goes_to_the_next() {
        for is_list_resident in [true, false] {
            let runs = near(180);
            let mut file = full_base(&runs, is_list_resident);
            // Single bytes are left at the most: five steps that are longer do not fit.
            let far = (0..10).map(|index| relocation(1000 + index * 6, 1, 3_000_000 + index * 7));
            let changed = file.relocate(&Relocations::new(far.collect()).unwrap(), none).unwrap();
            assert_eq!(changed.moved_bytes, 10 * CLUSTER_BYTES);
            assert_eq!(changed.records, [40, 41].map(RecordNumber).into());
            assert_eq!(changed.listed.is_none(), is_list_resident, "{changed:?}");
            let mut expected = runs;
            (0..10).for_each(|index| expected[index * 2].lcn = Some(3_000_000 + index as u64 * 7));
            assert_eq!(runs_of(&file), expected);
        }
    }

    /// Files of which nothing is spread say so, and stay as they were.
    #[test]
    fn what_is_not_spread_is_an_error() {
        let far = (0..10).map(|index| relocation(1000 + index * 6, 1, 3_000_000 + index * 7));
        let check = |break_it: fn(&mut FileRecords), more: Option<Relocation>| {
            let mut file = full_base(&near(180), false);
            break_it(&mut file);
            let before = (file.records.clone(), file.list.clone());
            let moves = far.clone().chain(more).collect();
            let error = file.relocate(&Relocations::new(moves).unwrap(), none).unwrap_err();
            assert!(error.to_string().contains("record 40 has no room for its run lists"), "{error}");
            assert_eq!((file.records, file.list), before);
        };
        // Records that may have a copy.
        check(|file| file.first_plain = RecordNumber(41), None);
        // The list moves itself.
        check(|_| {}, Some(relocation(CLUSTER_COUNT - 1, 1, 2_000_000)));
        // Another stream's piece, though the list names both.
        check(|file| put(&mut file.list, 32, 0x100, 4), None);
        // No list.
        check(|file| file.list.clear(), None);
        // Compressed.
        let compressed = |file: &mut FileRecords| {
            let bytes = &mut file.records.get_mut(&RecordNumber(41)).unwrap().bytes;
            bytes[56 + 12] = 1;
        };
        check(compressed, None);
    }

    /// A file whose list is in clusters, with two records to the last byte.
    fn two_full_records() -> FileRecords {
        let runs = near(1000);
        let most = |fits: &dyn Fn(usize) -> bool| (1..500).rev().find(|count| fits(*count)).unwrap();
        let first =
            most(&|first| file(&[runs[..first].to_vec(), runs[first..=first].to_vec()], false).is_some());
        let with = |second| file(&[runs[..first].to_vec(), runs[first..first + second].to_vec()], false);
        with(most(&|second| with(second).is_some())).unwrap()
    }

    #[test]
    fn nothing_is_spread_where_there_is_no_room_at_all() {
        let mut full = two_full_records();
        let moves = (0..60).map(|index| relocation(1000 + index * 6, 1, 3_000_000 + index * 7));
        assert!(full.relocate(&Relocations::new(moves.collect()).unwrap(), none).is_err());
    }

    /// A file of which all is in one full record gets an attribute list and more records, as many as it needs.
    #[test]
    fn a_full_record_gets_others() {
        let runs = near(1000);
        let most = (1..500).rev().find(|count| unlisted(&runs[..*count]).is_some()).unwrap();
        let moves: Vec<_> = (0..most as u64)
            .step_by(2)
            .map(|index| relocation(1000 + index * 3, 1, 3_000_000 + index * 7))
            .collect();
        let mut expected = runs[..most].to_vec();
        (0..most).step_by(2).for_each(|index| expected[index].lcn = Some(3_000_000 + index as u64 * 7));
        for spare_count in 0..3 {
            let spares = spares(spare_count);
            let mut file = unlisted(&runs[..most]).unwrap();
            let relocations = Relocations::new(moves.clone()).unwrap();
            match file.relocate(&relocations, |count| Ok(spares.get(count))) {
                Err(error) => assert_eq!((spare_count, error.kind()), (0, ErrorKind::Invalid)),
                Ok(changed) => {
                    assert_eq!(changed.added, [RecordNumber(100)]);
                    assert_eq!(changed.records, [RecordNumber(BASE), RecordNumber(100)].into());
                    assert_eq!(changed.listed, None);
                    assert_eq!(runs_of(&file), expected);
                }
            }
        }
    }

    /// Where a list would not say which attribute is meant, there is none.
    #[test]
    fn attributes_that_could_be_taken_for_each_other_get_no_list() {
        let runs = near(1000);
        let most = (1..500).rev().find(|count| unlisted(&runs[..*count]).is_some()).unwrap();
        let moves = (0..40).map(|index| relocation(1000 + index * 6, 1, 3_000_000 + index * 7));
        let relocations = Relocations::new(moves.collect()).unwrap();
        // The number of the first attribute, and the one that comes next.
        for (at, instance) in [(56 + 14, 2), (40, 3)] {
            let (spares, mut file) = (spares(2), unlisted(&runs[..most]).unwrap());
            let bytes = &mut file.records.get_mut(&RecordNumber(BASE)).unwrap().bytes;
            put(bytes, at, instance, 2);
            let before = file.records.clone();
            let error = file.relocate(&relocations, |count| Ok(spares.get(count))).unwrap_err();
            assert_eq!((error.kind(), &file.records), (ErrorKind::Invalid, &before));
        }
    }

    /// A list in clusters says how long it has become.
    #[test]
    fn a_list_in_clusters_is_as_long_as_it_has_become() {
        let mut full = two_full_records();
        let moves = (0..60).map(|index| relocation(1000 + index * 6, 1, 3_000_000 + index * 7));
        let spares = spares(1);
        let changed = full
            .relocate(&Relocations::new(moves.collect()).unwrap(), |count| Ok(spares.get(count)))
            .unwrap();
        assert_eq!((changed.added, full.list.len()), (vec![RecordNumber(100)], 96));
        let listed = changed.listed.unwrap();
        assert!((32..64).contains(&listed.start) && listed.end == 96, "{listed:?}");
        let mut fixed = full.records[&full.base].bytes.clone();
        let record = Record::parse(&mut fixed, full.base, VolumeOffset::ZERO).unwrap();
        let list = record.find(ATTR_ATTRIBUTE_LIST, "").unwrap().unwrap();
        let Value::NonResident(mapped) = list.value().unwrap() else { unreachable!("it is in clusters") };
        assert_eq!(
            (mapped.data_bytes, mapped.initialized_bytes, mapped.allocated_bytes),
            (96, 96, CLUSTER_BYTES)
        );
        assert_eq!(runs_of(&full).len(), runs_of(&two_full_records()).len());
    }

    /// The second room is too small for the run that would come to it.
    #[test]
    fn a_small_room_gets_what_fits() {
        let runs = [0, 0, 128, 0].map(|lcn| Run { lcn: Some(lcn), count: 1 });
        let shares = shares(runs.to_vec(), &[9, 4, 8]).unwrap();
        assert_eq!(shares, [&runs[..1], &runs[1..2], &runs[2..]]);
        assert_eq!(super::shares(runs.to_vec(), &[9, 3, 8]), None);
    }

    proptest! {
        /// Wherever runs go, batch by batch, a driver reads what was said; what has no room changes nothing.
        #[test]
        fn any_steps_say_what_they_should(
            counts in prop::collection::vec(1..90usize, 1..5), is_list_resident: bool, spare_count in 0..6u64,
            steps in prop::collection::vec(prop::collection::vec((any::<prop::sample::Index>(), 1..3_000_000u64), 1..40), 1..6),
        ) {
            let total: usize = counts.iter().sum();
            let mut runs = near(total as u64);
            let mut rest = &runs[..];
            let pieces: Vec<_> = counts.iter().map(|count| {
                let (piece, behind) = rest.split_at(*count);
                rest = behind;
                piece.to_vec()
            }).collect();
            let file = if pieces.len() == 1 { unlisted(&runs) } else { file(&pieces, is_list_resident) };
            let Some(mut file) = file else { return Ok(()) };
            let spares = spares(spare_count);
            let mut taken_count = 0;
            for step in steps {
                let mut moves = BTreeMap::new();
                let mut taken: BTreeSet<u64> = runs.iter().filter_map(|run| run.lcn).collect();
                let mut after = runs.clone();
                for (index, to) in step {
                    let index = index.index(runs.len());
                    let to = 5000 + to;
                    if taken.insert(to) && !moves.contains_key(&index) {
                        moves.insert(index, relocation(runs[index].lcn.unwrap(), 1, to));
                        after[index].lcn = Some(to);
                    }
                }
                let moved = moves.len() as u64;
                let before = (file.records.clone(), file.list.clone());
                let relocations = Relocations::new(moves.into_values().collect()).unwrap();
                match file.relocate(&relocations, |count| Ok(spares.get(taken_count + count))) {
                    Ok(changed) => {
                        let taken = &spares[taken_count..][..changed.added.len()];
                        prop_assert!(taken.iter().map(|spare| &spare.number).eq(&changed.added));
                        taken_count += changed.added.len();
                        let other = |number: &RecordNumber| file.records.get(number) != before.0.get(number);
                        let all: BTreeSet<_> = file.records.keys().copied().filter(other).collect();
                        prop_assert_eq!(&changed.records, &all);
                        prop_assert_eq!(before.0.keys().count() + changed.added.len(), file.records.len());
                        prop_assert_eq!(changed.moved_bytes, moved * CLUSTER_BYTES);
                        runs = after;
                        prop_assert_eq!(joined(&runs_of(&file)), joined(&runs));
                    }
                    Err(error) => {
                        prop_assert_eq!(error.kind(), ErrorKind::Invalid);
                        prop_assert_eq!((&file.records, &file.list), (&before.0, &before.1));
                        prop_assert!(taken_count == spares.len() || pieces.len() > 1, "one more was to be had");
                    }
                }
            }
        }

        /// Whatever can be parted is, with a run or more in each: also where a room has no byte to spare.
        #[test]
        fn what_fits_is_shared(
            pieces in prop::collection::vec((prop::collection::vec((0..1u64 << 21, 1..300u64), 1..20), 0..12usize), 1..6),
        ) {
            let as_runs = |piece: &[(u64, u64)]| -> Vec<Run> {
                piece.iter().map(|(lcn, count)| Run { lcn: Some(*lcn), count: *count }).collect()
            };
            let len = |runs: &[Run]| {
                let mut list = Vec::new();
                runs::encode(runs, &mut list);
                list.len()
            };
            let runs: Vec<_> = pieces.iter().flat_map(|(piece, _)| as_runs(piece)).collect();
            let rooms: Vec<_> = pieces.iter().map(|(piece, spare)| len(&as_runs(piece)) + spare).collect();
            let shares = shares(runs.clone(), &rooms);
            let shares = shares.expect("they were parted so that they fit");
            prop_assert_eq!(shares.concat(), runs);
            for (share, room) in shares.iter().zip(&rooms) {
                prop_assert!(!share.is_empty() && len(share) <= *room, "{share:?} in {room}");
            }
        }

        #[test]
        fn few_runs_are_cut_for_many_pieces(count in 1..9u64, pieces in 1..12usize) {
            let shares = shares(vec![Run { lcn: Some(77), count }], &vec![9; pieces]);
            let Some(shares) = shares else {
                prop_assert!(count < pieces as u64);
                return Ok(());
            };
            prop_assert_eq!(shares.len(), pieces);
            prop_assert_eq!(joined(&shares.concat()), [Run { lcn: Some(77), count }]);
        }
    }
}
