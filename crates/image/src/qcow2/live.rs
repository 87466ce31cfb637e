//! QCOW2 in use: clusters allocated where the guest's addresses lead them, refcounts before references.
//!
//! What is written in which stage (see `live::tables`):
//! - with the data: refcounts, refcount blocks that nothing refers to yet, new L2 tables;
//! - then: entries of the refcount table, and the header where the table moved;
//! - then: entries of L1 and L2 tables.
//!
//! A refcount falls only after the commit in which the last reference went. So a cut leaves leaked clusters at worst, and the
//! dirty bit is never needed.
//!
//! New L2 tables and refcount blocks have places by their number too, ahead of the guest's clusters, so that these
//! follow each other without a gap.

use std::collections::{BTreeSet, HashSet};
use std::mem::offset_of;
use std::sync::Arc;

use block::{Error, LiveDisk, Occupancy, Occupant, Result, TargetFile, read_vec};
use extent::{HostOffset, HostSpan, Span};
use zerocopy::IntoBytes;
use zerocopy::big_endian::{U32, U64};

use super::compress::Decompressor;
use super::layout::{self, REFCOUNT_TABLE_BYTES_MAX, SECTOR_BYTES, compressed_offset_bits, entry};
use super::parse::{self, Header};
use crate::Chain;
use crate::live::{
    Bases, Container, Expand, HOST_BYTES_MAX, InUse, LiveOptions, Missed, Place, Shape, Stage, Storage,
    Tables, Thin, Tidy, To, Unit, Votes, WriteOut,
};

/// L2 tables looked at for the bases that clusters follow: these many bytes, spread over the disk.
const VOTING_BYTES_MAX: u64 = 16 << 20;
/// L1 entries whose tables' refcounts are checked when the image is opened.
const CHECKED_L1_COUNT_MAX: u64 = 1 << 16;
/// [`entry::COPIED`] in an entry's first byte. In compressed entries the bit is clear.
const COPIED_IN_FIRST_BYTE: u8 = 0x80;
/// The file grows by this, so that not every cluster asks the host.
const GROWTH_BYTES: u64 = 1 << 20;
/// The width of a refcount in nearly every image.
const USUAL_REFCOUNT_BITS: u64 = 16;

/// Opens a layer for writing.
pub(crate) fn open_live(
    chain: Chain,
    files: Vec<Arc<dyn TargetFile>>,
    options: LiveOptions,
) -> Result<Box<dyn LiveDisk>> {
    let file = files.into_iter().next().ok_or_else(|| Error::invalid("QCOW2 without a file"))?;
    let in_use = InUse { file: file.clone(), name: chain.files()[0].name().to_owned() };
    let header = parse::read_header(&in_use)?;
    check_writable(&header)?;
    let mut tables = Tables::new(file.clone());
    tables.grow(file.len_bytes().next_multiple_of(header.cluster_bytes()))?;
    let has_parent = chain.links().len() > 1;
    let mut container = Clusters::new(&header, has_parent, &tables)?;
    container.check_metadata(&mut tables)?;
    container.find_bases(&in_use)?;
    let shape = Shape {
        unit_bytes: header.cluster_bytes(),
        expander: Some(Box::new(Expander(Decompressor::new(header.compression)))),
    };
    let out = Out { clears_autoclear: header.autoclear_features != 0 };
    Ok(Box::new(Thin::new(chain, shape, tables, file, container, Box::new(out), options)))
}

fn check_writable(header: &Header) -> Result<()> {
    let refused = |what: &str| Err(Error::refused(format!("writing into a QCOW2 image {what}")));
    if header.is_dirty {
        let error = Error::refused("writing into a QCOW2 image whose refcounts may be wrong (dirty bit)");
        return Err(error.hint("run 'qemu-img check -r all' on it first"));
    }
    if header.bitmaps.is_some_and(|bitmaps| bitmaps.count > 0) {
        return refused("with dirty bitmaps, which would go stale");
    }
    if header.data_file.is_some() {
        return Err(Error::unsupported("writing into a QCOW2 image with an external data file"));
    }
    if header.extended_l2 {
        return Err(Error::unsupported("writing into a QCOW2 image with extended L2 entries"));
    }
    Ok(())
}

/// A header feature to be cleared before the first change.
struct Out {
    clears_autoclear: bool,
}

impl WriteOut for Out {
    /// Bits for what is not kept up to date are cleared (specification: Header, `autoclear_features`).
    fn begin(&mut self, file: &dyn TargetFile) -> Result<()> {
        if self.clears_autoclear {
            let at = HostOffset::new(offset_of!(layout::Header, autoclear_features) as u64);
            file.write_at(at, &[0; 8])?;
            file.flush()?;
            self.clears_autoclear = false;
        }
        Ok(())
    }
}

struct Expander(Decompressor);

impl Expand for Expander {
    fn expand(&self, data: &[u8], unit: &mut [u8]) -> Result<()> {
        let expected = format!("data that gives {} bytes", unit.len());
        self.0
            .decompress(data, unit)
            .map_err(|reason| Error::corrupt("QCOW2 compressed cluster").field("data", reason, expected))
    }
}

/// The clusters of an image in use. Numbers of host clusters are called `number` here, those of the guest `unit`.
pub(super) struct Clusters {
    pub(super) cluster_bits: u32,
    has_zero_flag: bool,
    pub(super) has_parent: bool,
    /// Something refers to clusters that is not looked at here.
    pub(super) may_have_more: bool,
    pub(super) l1_at: u64,
    pub(super) unit_count: u64,
    pub(super) refcount_bits: u64,
    /// The refcount table: where it lies, and how many entries it has.
    pub(super) table_at: u64,
    pub(super) table_count: u64,
    /// The refcount table moved since the last commit.
    pub(super) table_is_new: bool,
    /// L2 tables and refcount blocks that nothing on the storage refers to yet.
    pub(super) new_tables: HashSet<u64>,
    data: Bases,
    l2_tables: Bases,
    refcount_blocks: Bases,
    /// Where a refcount table that has to move goes if that is free.
    table_place: u64,
    /// From here on the file had nothing when it was opened.
    fresh_from: u64,
    /// No cluster below this is free.
    first_free: u64,
    /// Refcount tables that moved, to be freed.
    outgrown: Vec<Storage>,
    /// Clusters about to be counted.
    claimed: Vec<u64>,
    /// L2 tables that may have become empty, and refcount blocks, by number.
    pub(super) emptied: BTreeSet<u64>,
    pub(super) lowered: BTreeSet<u64>,
    /// All L2 tables were looked at.
    is_tidied: bool,
    /// The refcount table moved, and what it takes is not counted: for want of room.
    is_torn: bool,
}

/// Room behind the end for all that may come: L2 tables, refcount blocks, a larger refcount table, the guest's clusters.
struct Room {
    blocks_at: u64,
    table_at: u64,
    data_at: u64,
    end: u64,
}

impl Room {
    fn new(from: u64, unit_count: u64, cluster_bits: u32, refcount_bits: u64) -> Self {
        let cluster_bytes = 1u64 << cluster_bits;
        let data_bytes = unit_count.saturating_mul(cluster_bytes);
        let l2_bytes = unit_count.div_ceil(cluster_bytes / 8).saturating_mul(cluster_bytes);
        let blocks_at = from.saturating_add(l2_bytes);
        let counted = |bytes: u64| (bytes >> cluster_bits).div_ceil(cluster_bytes * 8 / refcount_bits);
        // What the blocks and the table take has to be counted itself: twice as many is more than enough.
        let block_count = 2 * counted(blocks_at.saturating_add(data_bytes)) + 2;
        let table_at = blocks_at.saturating_add(block_count.saturating_mul(cluster_bytes));
        let table_bytes = (block_count * 8).next_multiple_of(cluster_bytes);
        let data_at = table_at.saturating_add(table_bytes);
        Self { blocks_at, table_at, data_at, end: data_at.saturating_add(data_bytes) }
    }
}

/// Where a file of `len_bytes` ends at most once all units of its disk are written.
pub(crate) fn end_max(len_bytes: u64, unit_count: u64, cluster_bytes: u64) -> u64 {
    let from = len_bytes.checked_next_multiple_of(cluster_bytes).unwrap_or(u64::MAX);
    Room::new(from, unit_count, cluster_bytes.ilog2(), USUAL_REFCOUNT_BITS).end
}

/// An L2 entry, and whether its table may be changed.
#[derive(Clone, Copy)]
struct L2Entry {
    word: u64,
    is_owned: bool,
}

impl Clusters {
    fn new(header: &Header, has_parent: bool, tables: &Tables) -> Result<Self> {
        let cluster_bytes = header.cluster_bytes();
        let table_bytes = u64::from(header.refcount_table_clusters) * cluster_bytes;
        let table_at = header.refcount_table_at.get();
        if table_at == 0 || table_at.checked_add(table_bytes).is_none_or(|end| end > tables.len_bytes()) {
            return Err(Error::corrupt("QCOW2 header").field(
                "refcount_table_offset",
                format!("{table_at:#x}"),
                format!("a table of {table_bytes} bytes within the file"),
            ));
        }
        let no_bases = || Votes::default().into_bases(cluster_bytes, cluster_bytes);
        Ok(Self {
            cluster_bits: header.cluster_bits,
            has_zero_flag: header.version >= 3,
            has_parent,
            may_have_more: header.snapshot_count > 0 || header.bitmaps.is_some(),
            l1_at: header.l1_at.get(),
            unit_count: header.virtual_bytes.div_ceil(cluster_bytes),
            refcount_bits: u64::from(header.refcount_bits),
            table_at,
            table_count: table_bytes / 8,
            table_is_new: false,
            new_tables: HashSet::new(),
            data: no_bases(),
            l2_tables: no_bases(),
            refcount_blocks: no_bases(),
            table_place: 0,
            fresh_from: tables.len_bytes(),
            first_free: 1,
            outgrown: Vec::new(),
            claimed: Vec::new(),
            emptied: BTreeSet::new(),
            lowered: BTreeSet::new(),
            is_tidied: false,
            is_torn: false,
        })
    }

    pub(super) fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    pub(super) fn cluster(&self, at: u64) -> HostSpan {
        Span::new(HostOffset::new(at), self.cluster_bytes())
    }

    pub(super) fn l2_entry_count(&self) -> u64 {
        self.cluster_bytes() / 8
    }

    pub(super) fn l1_count(&self) -> u64 {
        self.unit_count.div_ceil(self.l2_entry_count())
    }

    /// Clusters that one refcount block counts.
    pub(super) fn block_count(&self) -> u64 {
        self.cluster_bytes() * 8 / self.refcount_bits
    }

    /// The end of what the largest refcount table can count, and of what hosts can hold.
    fn limit(&self) -> u64 {
        let countable = (REFCOUNT_TABLE_BYTES_MAX / 8).saturating_mul(self.block_count());
        countable.saturating_mul(self.cluster_bytes()).min(HOST_BYTES_MAX)
    }

    /// Everything that leads to clusters must be counted itself: else new clusters could overwrite it.
    fn check_metadata(&mut self, tables: &mut Tables) -> Result<()> {
        let l1_clusters = (self.l1_count() * 8).div_ceil(self.cluster_bytes());
        let table_clusters = (self.table_count * 8).div_ceil(self.cluster_bytes());
        let mut spans = vec![(0, 1), (self.l1_at, l1_clusters), (self.table_at, table_clusters)];
        for index in 0..self.table_count {
            let at = self.block_at(tables, index)?;
            spans.extend((at != 0).then_some((at, 1)));
        }
        for index in 0..self.l1_count().min(CHECKED_L1_COUNT_MAX) {
            let word = tables.looking(|tables| self.l1_entry(tables, index))?;
            spans.extend((word & entry::OFFSET != 0).then_some((word & entry::OFFSET, 1)));
        }
        for (at, count) in spans {
            for number in (at >> self.cluster_bits)..(at >> self.cluster_bits) + count {
                if self.refcount(tables, number)? == 0 {
                    let error =
                        Error::corrupt("QCOW2 metadata").at(HostOffset::new(number << self.cluster_bits));
                    let error = error.field("refcount of its cluster", 0, "1 or more");
                    return Err(error.hint("run 'qemu-img check -r all' on it first"));
                }
            }
        }
        Ok(())
    }

    /// Finds the places that tables and clusters follow, and others behind the file's end.
    fn find_bases(&mut self, file: &InUse) -> Result<()> {
        let cluster_bytes = self.cluster_bytes();
        let words = |at: u64, count: u64, what: &str| -> Result<Vec<u64>> {
            let bytes = read_vec(file, HostOffset::new(at), count * 8, what)?;
            Ok(bytes.as_chunks().0.iter().map(|word| u64::from_be_bytes(*word)).collect())
        };
        let offset =
            |word: u64| (word & entry::COMPRESSED == 0).then_some(word & entry::OFFSET).filter(|at| *at != 0);
        let mut votes = [Votes::default(), Votes::default(), Votes::default()];
        let [of_data, of_l2, of_blocks] = &mut votes;
        for (index, word) in (0..).zip(words(self.table_at, self.table_count, "QCOW2 refcount table")?) {
            if let Some(at) = offset(word) {
                of_blocks.count(index, at, cluster_bytes);
            }
        }
        let l1 = words(self.l1_at, self.l1_count(), "QCOW2 L1 table")?;
        let l2: Vec<(u64, u64)> =
            (0..).zip(l1).filter_map(|(index, word)| Some((index, offset(word)?))).collect();
        for (index, at) in &l2 {
            of_l2.count(*index, *at, cluster_bytes);
        }
        let step = (l2.len() as u64 * cluster_bytes).div_ceil(VOTING_BYTES_MAX).max(1);
        for (index, at) in l2.iter().step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
            let first = index * self.l2_entry_count();
            let there = file.file.len_bytes().saturating_sub(*at).min(cluster_bytes) / 8;
            for (unit, word) in (first..).zip(words(*at, there, "QCOW2 L2 table")?) {
                if let Some(at) = offset(word) {
                    of_data.count(unit, at, cluster_bytes);
                }
            }
        }
        let [data, l2_tables, blocks] = votes.map(|votes| votes.into_bases(cluster_bytes, cluster_bytes));
        (self.data, self.l2_tables, self.refcount_blocks) = (data, l2_tables, blocks);
        self.push_new_bases();
        Ok(())
    }

    /// Room behind the end, see [`Room`].
    fn push_new_bases(&mut self) {
        let room = Room::new(self.fresh_from, self.unit_count, self.cluster_bits, self.refcount_bits);
        self.table_place = room.table_at;
        if room.end <= self.limit() {
            self.l2_tables.push(self.fresh_from);
            self.refcount_blocks.push(room.blocks_at);
            self.data.push(room.data_at);
        }
    }

    // Refcounts.

    pub(super) fn block_at(&self, tables: &mut Tables, index: u64) -> Result<u64> {
        if index >= self.table_count {
            return Ok(0);
        }
        let at = self.table_at + index * 8;
        let word = u64::from_be_bytes(tables.read(at)?);
        if word & (self.cluster_bytes() - 1) != 0 || word >= tables.len_bytes() {
            let error = Error::corrupt("QCOW2 refcount table").at(HostOffset::new(at));
            return Err(error.field(
                format!("entry {index}"),
                format!("{word:#x}"),
                "whole clusters of the file",
            ));
        }
        Ok(word)
    }

    /// Where the refcount of `number` lies in its block: byte, shift within it, bytes.
    pub(super) fn refcount_place(&self, number: u64) -> (u64, u64, u64) {
        let bit = number % self.block_count() * self.refcount_bits;
        (bit / 8, bit % 8, self.refcount_bits.div_ceil(8))
    }

    pub(super) fn refcount(&self, tables: &mut Tables, number: u64) -> Result<u64> {
        let block = self.block_at(tables, number / self.block_count())?;
        if block == 0 {
            return Ok(0);
        }
        let (byte, shift, len_bytes) = self.refcount_place(number);
        let at = block + byte;
        let word = match len_bytes {
            1 => u8::from_be_bytes(tables.read(at)?).into(),
            2 => u16::from_be_bytes(tables.read(at)?).into(),
            4 => u32::from_be_bytes(tables.read(at)?).into(),
            _ => u64::from_be_bytes(tables.read(at)?),
        };
        Ok(if self.refcount_bits < 8 { word >> shift & ((1 << self.refcount_bits) - 1) } else { word })
    }

    /// Sets a refcount, whose block is there.
    fn put_refcount(&self, tables: &mut Tables, number: u64, count: u64) -> Result<()> {
        let block = self.block_at(tables, number / self.block_count())?;
        let (byte, shift, len_bytes) = self.refcount_place(number);
        let at = block + byte;
        if self.refcount_bits < 8 {
            let mask = ((1u64 << self.refcount_bits) - 1) << shift;
            let [old] = tables.read::<1>(at)?;
            let new = u64::from(old) & !mask | count << shift;
            return tables.put(at, &new.to_le_bytes()[..1], Stage::Unreferenced);
        }
        let bytes = count.to_be_bytes();
        let skip = bytes.len() - usize::try_from(len_bytes).expect("at most 8");
        tables.put(at, &bytes[skip..], Stage::Unreferenced)
    }

    fn is_free(&self, tables: &mut Tables, number: u64) -> Result<bool> {
        let fits = (number + 1).checked_mul(self.cluster_bytes()).is_some_and(|end| end <= self.limit());
        Ok(fits && number != 0 && !self.claimed.contains(&number) && self.refcount(tables, number)? == 0)
    }

    /// A free cluster: the first of `places` that is, else the first of all.
    fn find_free(&mut self, tables: &mut Tables, places: Vec<u64>) -> Result<u64> {
        for at in places {
            if self.is_free(tables, at >> self.cluster_bits)? {
                return Ok(at >> self.cluster_bits);
            }
        }
        self.first_fit(tables, 1)
    }

    /// The first of `count` free clusters in a row.
    fn first_fit(&mut self, tables: &mut Tables, count: u64) -> Result<u64> {
        let (mut number, mut found) = (self.first_free, 0);
        let mut first_free = None;
        while found < count {
            if number > self.limit() >> self.cluster_bits {
                return Err(Error::unsupported("QCOW2 file beyond what its refcounts can count"));
            }
            found = if self.is_free(tables, number)? { found + 1 } else { 0 };
            first_free = first_free.or((found == 1).then_some(number));
            number += 1;
        }
        self.first_free = first_free.unwrap_or(self.first_free);
        Ok(number - count)
    }

    /// Counts the free cluster `number` as taken once, and makes the file reach to its end; or does nothing, if there is no room.
    fn take(&mut self, tables: &mut Tables, number: u64) -> Result<()> {
        let end = (number + 1) << self.cluster_bits;
        if end > tables.len_bytes() {
            tables.grow(end.next_multiple_of(GROWTH_BYTES.max(self.cluster_bytes())))?;
        }
        self.claimed.push(number);
        let taken = self.ensure_block(tables, number / self.block_count());
        let taken = taken.and_then(|()| self.put_refcount(tables, number, 1));
        self.claimed.retain(|claimed| *claimed != number);
        taken
    }

    /// Makes sure that the refcount block `index` is there.
    fn ensure_block(&mut self, tables: &mut Tables, index: u64) -> Result<()> {
        if index >= self.table_count {
            self.grow_table(tables, index)?;
        }
        if self.block_at(tables, index)? != 0 {
            return Ok(());
        }
        let places = self.refcount_blocks.places(index).collect();
        let number = self.find_free(tables, places)?;
        let at = number << self.cluster_bits;
        tables.reserve(self.cluster(at))?;
        tables.create(self.cluster(at), 0, Stage::Unreferenced);
        let stage = if self.table_is_new { Stage::Unreferenced } else { Stage::Root };
        // Before it counts itself, or is counted by a block that it counts.
        let entry_at = self.table_at + index * 8;
        tables.put(entry_at, &at.to_be_bytes(), stage)?;
        let taken = self.take(tables, number);
        if taken.is_err() {
            // Nothing is counted in it yet: what could have been was refused with it.
            tables.put(entry_at, &[0; 8], stage)?;
            tables.forget(self.cluster(at));
        }
        taken
    }

    /// Moves the refcount table to where it has room for entry `index`.
    fn grow_table(&mut self, tables: &mut Tables, index: u64) -> Result<()> {
        let entries_max = REFCOUNT_TABLE_BYTES_MAX / 8;
        if index >= entries_max {
            return Err(Error::unsupported("QCOW2 file beyond what its refcounts can count"));
        }
        let count = (index + 1).max(self.table_count * 2).min(entries_max);
        let new_bytes = (count * 8).next_multiple_of(self.cluster_bytes());
        let clusters = new_bytes >> self.cluster_bits;
        let number = self.place_for_table(tables, clusters)?;
        let old = Span::new(HostOffset::new(self.table_at), self.table_count * 8);
        let at = number << self.cluster_bits;
        let place = Span::new(HostOffset::new(at), new_bytes);
        tables.reserve(place)?;
        tables.create(place, 0, Stage::Unreferenced);
        let entries = tables.read_vec(old)?;
        tables.put(at, &entries, Stage::Unreferenced)?;
        let clusters = u32::try_from(clusters).map_err(|_| Error::unsupported("QCOW2 refcount table"))?;
        (self.table_at, self.table_count, self.table_is_new) = (at, new_bytes / 8, true);
        tables.put(
            offset_of!(layout::Header, refcount_table_offset) as u64,
            U64::new(at).as_bytes(),
            Stage::Root,
        )?;
        let at = offset_of!(layout::Header, refcount_table_clusters) as u64;
        tables.put(at, U32::new(clusters).as_bytes(), Stage::Root)?;
        self.is_torn = true;
        for number in number..number + u64::from(clusters) {
            self.take(tables, number)?;
        }
        self.is_torn = false;
        self.outgrown.push(Storage::Shared { at: old.start(), len_bytes: old.len_bytes() });
        Ok(())
    }

    fn place_for_table(&mut self, tables: &mut Tables, clusters: u64) -> Result<u64> {
        let first = self.table_place >> self.cluster_bits;
        for number in first..first + clusters {
            if !self.is_free(tables, number)? {
                return self.first_fit(tables, clusters);
            }
        }
        Ok(first)
    }

    // The mapping.

    pub(super) fn l1_entry(&self, tables: &Tables, index: u64) -> Result<u64, Missed> {
        let at = self.l1_at + index * 8;
        let word = u64::from_be_bytes(tables.get(at)?);
        let place = word & entry::OFFSET;
        if word & !(entry::OFFSET | entry::COPIED) != 0
            || place & (self.cluster_bytes() - 1) != 0
            || place >= tables.len_bytes()
        {
            let error = Error::corrupt("QCOW2 L1 entry").at(HostOffset::new(at));
            return Err(error
                .field(format!("entry {index}"), format!("{word:#018x}"), "a cluster of the file")
                .into());
        }
        Ok(word)
    }

    fn l2_entry(&self, tables: &Tables, unit: u64) -> Result<Option<L2Entry>, Missed> {
        let l1 = self.l1_entry(tables, unit / self.l2_entry_count())?;
        let table = l1 & entry::OFFSET;
        if table == 0 {
            return Ok(None);
        }
        let at = table + unit % self.l2_entry_count() * 8;
        let word = u64::from_be_bytes(tables.get(at)?);
        self.check_l2(tables, at, unit, word)?;
        Ok(Some(L2Entry { word, is_owned: l1 & entry::COPIED != 0 && word & entry::COPIED != 0 }))
    }

    fn check_l2(&self, tables: &Tables, at: u64, unit: u64, word: u64) -> Result<(), Missed> {
        let corrupt = |expected: &str| {
            let error = Error::corrupt("QCOW2 L2 entry").at(HostOffset::new(at));
            Err(error.field(format!("entry of cluster {unit}"), format!("{word:#018x}"), expected).into())
        };
        if word & entry::COMPRESSED != 0 {
            let place = word & ((1 << compressed_offset_bits(self.cluster_bits)) - 1);
            let is_right =
                word & entry::COPIED == 0 && place >= self.cluster_bytes() && place < tables.len_bytes();
            return if is_right { Ok(()) } else { corrupt("a place within the file, and bit 63 clear") };
        }
        let zero_flag = if self.has_zero_flag { entry::ZERO } else { 0 };
        let place = word & entry::OFFSET;
        if word & !(entry::OFFSET | entry::COPIED | zero_flag) != 0
            || place & (self.cluster_bytes() - 1) != 0
            || place >= tables.len_bytes()
        {
            return corrupt("a cluster of the file, and reserved bits that are zeros");
        }
        Ok(())
    }

    pub(super) fn compressed(&self, tables: &Tables, word: u64) -> (HostOffset, u64) {
        let bits = compressed_offset_bits(self.cluster_bits);
        let at = word & ((1 << bits) - 1);
        let sectors = ((word & !entry::COMPRESSED) >> bits) + 1;
        let end = (at / SECTOR_BYTES + sectors).saturating_mul(SECTOR_BYTES).min(tables.len_bytes());
        (HostOffset::new(at), end - at)
    }

    /// What `entry` refers to, to be freed.
    fn storage(&self, tables: &Tables, found: L2Entry) -> Option<Storage> {
        if found.word & entry::COMPRESSED != 0 {
            let (at, len_bytes) = self.compressed(tables, found.word);
            return Some(Storage::Shared { at, len_bytes });
        }
        let at = HostOffset::new(found.word & entry::OFFSET);
        match at.get() {
            0 => None,
            _ if found.is_owned => Some(Storage::Unit(at)),
            _ => Some(Storage::Shared { at, len_bytes: self.cluster_bytes() }),
        }
    }

    /// The L2 table of `unit`, its own to change: a new one where there is none, a copy where snapshots share it.
    fn own_table(&mut self, tables: &mut Tables, unit: u64, freed: &mut Vec<Storage>) -> Result<u64> {
        let index = unit / self.l2_entry_count();
        let l1 = tables.looking(|tables| self.l1_entry(tables, index))?;
        let old = l1 & entry::OFFSET;
        if old != 0 && l1 & entry::COPIED != 0 {
            return Ok(old);
        }
        let contents = if old == 0 { None } else { Some(tables.read_vec(self.cluster(old))?) };
        let places = self.l2_tables.places(index).collect();
        let number = self.find_free(tables, places)?;
        let at = number << self.cluster_bits;
        tables.reserve(self.cluster(at))?;
        self.take(tables, number)?;
        tables.create(self.cluster(at), 0, Stage::Unreferenced);
        if let Some(mut contents) = contents {
            // Until it is known that nobody else refers to them.
            contents.iter_mut().step_by(8).for_each(|byte| *byte &= !COPIED_IN_FIRST_BYTE);
            tables.put(at, &contents, Stage::Unreferenced)?;
            freed.push(Storage::Shared { at: HostOffset::new(old), len_bytes: self.cluster_bytes() });
        }
        self.new_tables.insert(at);
        tables.put(self.l1_at + index * 8, &(at | entry::COPIED).to_be_bytes(), Stage::References)?;
        Ok(at)
    }

    /// The clusters that `storage` touches.
    fn numbers(&self, storage: &Storage) -> std::ops::Range<u64> {
        let (at, len_bytes) = match *storage {
            Storage::Unit(at) => (at.get(), self.cluster_bytes()),
            Storage::Shared { at, len_bytes } => (at.get(), len_bytes),
        };
        at >> self.cluster_bits..(at + len_bytes).div_ceil(self.cluster_bytes())
    }
}

impl Container for Clusters {
    fn lookup(&self, tables: &Tables, unit: u64) -> Result<Unit, Missed> {
        let Some(found) = self.l2_entry(tables, unit)? else { return Ok(Unit::Absent) };
        if found.word & entry::COMPRESSED != 0 {
            let (at, len_bytes) = self.compressed(tables, found.word);
            return Ok(Unit::Compressed { at, len_bytes });
        }
        let at = Some(HostOffset::new(found.word & entry::OFFSET)).filter(|at| at.get() != 0);
        Ok(match at {
            _ if found.word & entry::ZERO != 0 => Unit::Zero(at.filter(|_| found.is_owned)),
            None => Unit::Absent,
            Some(at) if found.is_owned => Unit::Data(at),
            Some(at) => Unit::Shared(at),
        })
    }

    fn allocate(&mut self, tables: &mut Tables, unit: u64) -> Result<Place> {
        let places = self.data.places(unit).collect();
        let number = self.find_free(tables, places)?;
        self.take(tables, number)?;
        let at = number << self.cluster_bits;
        Ok(Place { at: HostOffset::new(at), is_clean: at >= self.fresh_from })
    }

    fn set(&mut self, tables: &mut Tables, unit: u64, to: To, freed: &mut Vec<Storage>) -> Result<()> {
        let old = tables.looking(|tables| self.l2_entry(tables, unit))?;
        if old.is_none() && to == To::Absent {
            return Ok(());
        }
        let mut replaced = Vec::new();
        let table = self.own_table(tables, unit, &mut replaced)?;
        let word = match to {
            To::Data(at) => at.get() | entry::COPIED,
            To::Zero => entry::ZERO,
            To::Absent => 0,
        };
        let stage = if self.new_tables.contains(&table) { Stage::Unreferenced } else { Stage::References };
        let old = old.and_then(|old| self.storage(tables, old));
        freed.append(&mut replaced);
        freed.append(&mut self.outgrown);
        tables.put(table + unit % self.l2_entry_count() * 8, &word.to_be_bytes(), stage)?;
        if to == To::Absent {
            self.emptied.insert(unit / self.l2_entry_count());
        }
        let is_kept = matches!((to, old), (To::Data(at), Some(Storage::Unit(old))) if at == old);
        freed.extend(old.filter(|_| !is_kept));
        Ok(())
    }

    fn zeros(&self, _unit: Unit, has_parent: bool) -> Option<To> {
        match (has_parent, self.has_zero_flag) {
            (false, _) => Some(To::Absent),
            (true, true) => Some(To::Zero),
            (true, false) => None,
        }
    }

    fn dying(&mut self, tables: &mut Tables, storage: &Storage) -> Result<Vec<HostSpan>> {
        let mut dying = Vec::new();
        for number in self.numbers(storage) {
            if self.refcount(tables, number)? == 1 || self.is_uncounted(tables, number)? {
                dying.push(self.cluster(number << self.cluster_bits));
            }
        }
        Ok(dying)
    }

    fn release(&mut self, tables: &mut Tables, storage: &Storage) -> Result<()> {
        for number in self.numbers(storage) {
            if self.is_uncounted(tables, number)? {
                tables.forget(self.cluster(number << self.cluster_bits));
                self.first_free = self.first_free.min(number);
                continue;
            }
            let count = self.refcount(tables, number)?;
            let less = count.checked_sub(1).ok_or_else(|| {
                Error::corrupt("QCOW2 refcount").at(HostOffset::new(number << self.cluster_bits)).field(
                    "of a cluster in use",
                    0,
                    "1 or more",
                )
            })?;
            self.put_refcount(tables, number, less)?;
            if less == 0 {
                self.lowered.insert(number / self.block_count());
                tables.forget(self.cluster(number << self.cluster_bits));
                self.first_free = self.first_free.min(number);
            }
        }
        Ok(())
    }

    fn before_commit(&mut self, _tables: &mut Tables) -> Result<()> {
        if self.is_torn {
            let error =
                Error::refused("the refcount table could not be made larger: there was no room on the host");
            return Err(error.hint("open the disk again: it is as the last flush left it"));
        }
        self.new_tables.clear();
        self.table_is_new = false;
        Ok(())
    }

    fn occupancy(&mut self, tables: &mut Tables) -> Result<Option<Occupancy>> {
        self.find_occupancy(tables)
    }

    fn lies_at(&self, tables: &mut Tables, who: Occupant, at: HostOffset) -> Result<bool> {
        let is_there = match who {
            Occupant::Counts(index) => self.block_at(tables, index)? == at.get(),
            Occupant::Map(index) => {
                index < self.l1_count()
                    && tables.looking(|tables| self.l1_entry(tables, index))? == at.get() | entry::COPIED
            }
            Occupant::Unit(unit) => {
                unit < self.unit_count
                    && tables.looking(|tables| self.lookup(tables, unit))? == Unit::Data(at)
            }
        };
        Ok(is_there && at.get() != 0 && self.refcount(tables, at.get() >> self.cluster_bits)? == 1)
    }

    /// Only where refcounts are there already: a new block of them could take another one's place.
    fn claim(&mut self, tables: &mut Tables, at: HostOffset) -> Result<bool> {
        let number = at.get() >> self.cluster_bits;
        let is_place = at.get() & (self.cluster_bytes() - 1) == 0
            && self.block_at(tables, number / self.block_count())? != 0
            && self.is_free(tables, number)?;
        if is_place {
            self.take(tables, number)?;
        }
        Ok(is_place)
    }

    fn refer(&mut self, tables: &mut Tables, who: Occupant, from: HostOffset, to: HostOffset) -> Result<()> {
        self.move_reference(tables, who, from.get(), to.get())
    }

    fn leaks(&mut self, tables: &mut Tables) -> Result<Vec<Storage>> {
        self.find_leaks(tables)
    }

    fn tidy(&mut self, tables: &mut Tables, freed: &mut Vec<Storage>, when: Tidy) -> Result<()> {
        match when {
            Tidy::BeforeMoves if self.is_tidied => Ok(()),
            Tidy::BeforeMoves => {
                self.is_tidied = true;
                self.emptied.extend(0..self.l1_count());
                self.drop_empty_tables(tables, freed)
            }
            Tidy::AtTheEnd => {
                self.drop_empty_tables(tables, freed)?;
                self.drop_empty_blocks(tables, freed)
            }
        }
    }

    /// The end of the last cluster that is counted.
    fn finish(&mut self, tables: &mut Tables) -> Result<u64> {
        let mut number = tables.len_bytes().div_ceil(self.cluster_bytes());
        while number > 0 {
            let last = number - 1;
            if self.block_at(tables, last / self.block_count())? == 0 {
                number = last / self.block_count() * self.block_count();
            } else if self.refcount(tables, last)? == 0 {
                number = last;
            } else {
                break;
            }
        }
        Ok(number << self.cluster_bits)
    }
}
