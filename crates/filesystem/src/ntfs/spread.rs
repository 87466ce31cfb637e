//! The records of one file with what moved told anew in its run lists, over which lists are spread anew where one record has no room for its piece.
//!
//! A list that is too long for one record is kept in pieces, each in a record of its own, and `$ATTRIBUTE_LIST` says at which VCN each begins. Records
//! that drivers filled to the last byte have no room for a single step that is a byte longer, while the next record may have plenty. So where the pieces
//! end is free: a piece may take over what the next one began with, or leave it what it ended with.
//!
//! Invariants:
//! - records whose pieces fit are rewritten one by one ([`super::rewrite`]), and nothing is spread;
//! - what is spread is the same runs in the same order, and each piece has at least one; a piece keeps its record, its number, its name and its sizes, and
//!   `$ATTRIBUTE_LIST` its entries and their order. Only the VCNs at which pieces meet change, in both places;
//! - NTFS's own files, records that `$MFTMirr` may have, lists with holes or of what is compressed, and files whose `$ATTRIBUTE_LIST` moves itself are
//!   not spread.
//!
//! Pure but for [`FileRecords::read`]: bytes in, bytes out.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use block::{ErrorKind, Result};
use extent::VolumeOffset;
use mutants::broken;

use super::boot::Geometry;
use super::layout::{
    ATTR_ATTRIBUTE_LIST, ATTRIBUTE_HIGHEST_VCN_OFFSET, ATTRIBUTE_LOWEST_VCN_OFFSET,
    LIST_ENTRY_LOWEST_VCN_OFFSET,
};
use super::mft::{ListEntry, Mft, Records, list_entries, parse_list};
use super::record::{Attribute, Record, RecordNumber, Value, protect};
use super::rewrite::{self, moved_attribute, rewrite_record};
use super::runs::{self, Run};
use super::scan::RESERVED_RECORDS;
use crate::rearrange::Relocations;

/// In how many ways shares are tried where a room is too small for the run that comes to it: bounds the time for volumes made to take long.
const MOST_IMPOSSIBLE: usize = 1 << 16;

/// The records that tell of one file, and its attribute list, as they are on a volume.
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
    /// Bytes that run lists name elsewhere than before.
    pub(super) moved_bytes: u64,
    /// The pieces of the attribute list's value that have other bytes, if it lies in clusters.
    pub(super) listed: Vec<Range<usize>>,
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

    /// Lets `relocations` happen to the file. An error leaves it as it was.
    pub(super) fn relocate(&mut self, relocations: &Relocations) -> Result<Changed> {
        match self.one_by_one(relocations) {
            Err(error) if error.kind() == ErrorKind::Invalid => match self.spread(relocations)? {
                Some(changed) => Ok(changed),
                None => Err(error),
            },
            done => done,
        }
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

    /// All records, with lists spread over them. `None` if that is not for this file, or of no use.
    fn spread(&mut self, relocations: &Relocations) -> Result<Option<Changed>> {
        let Some(entries) = parse_list(&self.list).filter(|entries| !entries.is_empty()) else {
            return Ok(None);
        };
        if self.records.keys().any(|number| *number < self.first_plain) {
            return Ok(None);
        }
        let mut fixed = self.records.clone();
        let mut records = Vec::new();
        for (&number, RecordBytes { at, bytes }) in &mut fixed {
            records.push(Record::parse(bytes, number, *at)?);
        }
        let mut moved = Moved::new(&records, relocations, &self.geometry)?;
        if moved.is_list_moving {
            return Ok(None);
        }
        let mut list = self.list.clone();
        let mut listed = Vec::new();
        for pieces in moved.streams(&entries) {
            for (entry, lowest_vcn) in moved.spread(&pieces)? {
                if broken!(PiecesListedWhereTheyWere) {
                    continue;
                }
                let at = entries[entry].at + LIST_ENTRY_LOWEST_VCN_OFFSET;
                list[at..at + 8].copy_from_slice(&lowest_vcn.to_le_bytes());
                listed.push(at..at + 8);
            }
        }
        if moved.put_list(self.base, &list)? {
            // It is in the base record.
            listed.clear();
        }
        let mut changed = Changed { records: BTreeSet::new(), moved_bytes: moved.moved_bytes, listed };
        let mut rewritten = BTreeMap::new();
        for record in &moved.records {
            if record.is_changed() {
                let Some(mut bytes) = record.assembled()? else { return Ok(None) };
                protect(&mut bytes);
                let number = record.record.number();
                changed.records.insert(number);
                rewritten.insert(number, RecordBytes { at: self.records[&number].at, bytes });
            }
        }
        self.records.extend(rewritten);
        self.list = list;
        Ok(Some(changed))
    }
}

/// The records with what moved told anew, before they are put together.
struct Moved<'r> {
    geometry: &'r Geometry,
    relocations: &'r Relocations,
    records: Vec<MovedRecord<'r>>,
    moved_bytes: u64,
    is_list_moving: bool,
}

struct MovedRecord<'r> {
    record: Record<'r>,
    attributes: Vec<MovedAttribute<'r>>,
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
    fn new(records: &[Record<'r>], relocations: &'r Relocations, geometry: &'r Geometry) -> Result<Self> {
        let mut moved =
            Self { geometry, relocations, records: Vec::new(), moved_bytes: 0, is_list_moving: false };
        for record in records {
            let mut attributes = Vec::new();
            for old in record.attributes() {
                let old = old?;
                let new = moved_attribute(&old, relocations, geometry)?;
                moved.moved_bytes += new.as_ref().map_or(0, |(_, moved_bytes)| *moved_bytes);
                moved.is_list_moving |= old.kind() == ATTR_ATTRIBUTE_LIST && new.is_some();
                attributes.push(MovedAttribute { old, new: new.map(|(bytes, _)| bytes) });
            }
            moved.records.push(MovedRecord { record: *record, attributes });
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
        streams.retain(|pieces| pieces.len() > 1 && self.may_be_spread(pieces));
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
        if pieces.iter().all(|piece| self.records[piece.record].is_in_bounds()) {
            return Ok(Vec::new());
        }
        let (mut runs, mut rooms) = (Vec::new(), Vec::new());
        for piece in pieces {
            let Value::NonResident(mapped) = self.attribute(piece).value()? else { return Ok(Vec::new()) };
            let moved = rewrite::moved_runs(self.attribute(piece), &mapped, self.relocations, self.geometry)?;
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

    /// Puts the attribute list's value into the base record, if that is where it is.
    fn put_list(&mut self, base: RecordNumber, list: &[u8]) -> Result<bool> {
        let attributes = self.records.iter_mut().filter(|each| each.record.number() == base);
        let mut attributes = attributes.flat_map(|each| &mut each.attributes);
        let Some(attribute) = attributes.find(|each| each.old.kind() == ATTR_ATTRIBUTE_LIST) else {
            return Ok(false);
        };
        let Value::Resident(value) = attribute.old.value()? else { return Ok(false) };
        if value != list {
            let mut bytes = attribute.old.bytes().to_vec();
            let start = attribute.old.value_offset();
            bytes[start..start + value.len()].copy_from_slice(list);
            attribute.new = Some(bytes);
        }
        Ok(true)
    }
}

impl MovedRecord<'_> {
    fn is_changed(&self) -> bool {
        self.attributes.iter().any(MovedAttribute::is_changed)
    }

    /// Bytes that will be in use.
    fn in_use(&self) -> usize {
        let lens = self.attributes.iter().map(|each| each.old.bytes().len()).sum::<usize>();
        let new_lens = self.attributes.iter().map(|each| each.bytes().len()).sum::<usize>();
        self.record.bytes_in_use() - lens + new_lens
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
        let attributes: Vec<_> = self.attributes.iter().map(MovedAttribute::bytes).collect();
        self.is_in_bounds().then(|| rewrite::assemble(&self.record, &attributes)).transpose()
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

    /// What a driver would read: the list in the base record or the clusters, the pieces that it names, and that each begins and ends where
    /// the list and its own head say.
    fn runs_of(file: &FileRecords) -> Vec<Run> {
        let mut all: Vec<Run> = Vec::new();
        let mut next_vcn = 0;
        for entry in file.list.chunks(32) {
            let number = u64::from_le_bytes(entry[16..24].try_into().unwrap()) & 0xffff_ffff_ffff;
            let RecordBytes { at, bytes } = &file.records[&RecordNumber(number)];
            let mut bytes = bytes.clone();
            let record = Record::parse(&mut bytes, RecordNumber(number), *at).unwrap();
            for attribute in record.attributes().map(Result::unwrap) {
                match attribute.value().unwrap() {
                    Value::Resident(value) if attribute.kind() == ATTR_ATTRIBUTE_LIST => {
                        assert_eq!(value, file.list);
                    }
                    Value::NonResident(mapped) if attribute.kind() == ATTR_DATA => {
                        assert_eq!(mapped.lowest_vcn, next_vcn);
                        assert_eq!(u64::from_le_bytes(entry[8..16].try_into().unwrap()), next_vcn);
                        next_vcn += mapped.vcn_count;
                        let count = all.len();
                        attribute
                            .each_run(&mapped, CLUSTER_COUNT, |run| {
                                all.push(run);
                                Ok(())
                            })
                            .unwrap();
                        assert!(all.len() > count);
                    }
                    _ => {}
                }
            }
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
            let changed = file.relocate(&Relocations::new(far.collect()).unwrap()).unwrap();
            assert_eq!(changed.moved_bytes, 10 * CLUSTER_BYTES);
            assert_eq!(changed.records, [40, 41].map(RecordNumber).into());
            assert_eq!(changed.listed.is_empty(), is_list_resident, "{changed:?}");
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
            let error = file.relocate(&Relocations::new(moves).unwrap()).unwrap_err();
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

    #[test]
    fn nothing_is_spread_where_there_is_no_room_at_all() {
        let runs = near(1000);
        let most = |fits: &dyn Fn(usize) -> bool| (1..500).rev().find(|count| fits(*count)).unwrap();
        let first =
            most(&|first| file(&[runs[..first].to_vec(), runs[first..=first].to_vec()], false).is_some());
        let with = |second| file(&[runs[..first].to_vec(), runs[first..first + second].to_vec()], false);
        let mut full = with(most(&|second| with(second).is_some())).unwrap();
        let moves = (0..60).map(|index| relocation(1000 + index * 6, 1, 3_000_000 + index * 7));
        assert!(full.relocate(&Relocations::new(moves.collect()).unwrap()).is_err());
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
            counts in prop::collection::vec(1..90usize, 2..5), is_list_resident: bool,
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
            let Some(mut file) = file(&pieces, is_list_resident) else { return Ok(()) };
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
                match file.relocate(&Relocations::new(moves.into_values().collect()).unwrap()) {
                    Ok(changed) => {
                        prop_assert_eq!(changed.moved_bytes, moved * CLUSTER_BYTES);
                        runs = after;
                        prop_assert_eq!(joined(&runs_of(&file)), joined(&runs));
                    }
                    Err(error) => {
                        prop_assert_eq!(error.kind(), ErrorKind::Invalid);
                        prop_assert_eq!((&file.records, &file.list), (&before.0, &before.1));
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
