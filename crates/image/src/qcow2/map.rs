//! From the virtual disk to runs of the file, through the L1 and L2 tables (specification: Cluster mapping).
//!
//! Tables are read through a cache, in pieces: memory does not grow with the disk. Each entry is validated when
//! it is read; an error names it by index and value.

use block::{
    Cached, Error, FieldValue, FileIndex, HostFile, ReadAt, Result, Run, RunState, push_run, read_vec,
};
use extent::{Extent, Host, HostOffset, HostSpan, Span, Virtual, VirtualSpan};
use std::sync::Arc;

use super::layout::{SECTOR_BYTES, SUBCLUSTER_COUNT, compressed_offset_bits, entry};
use super::parse::Header;
use crate::Backing;
use crate::layer::push_backing;
use crate::qcow2::corrupt::Corrupt;

/// Memory for pieces of tables.
const CACHE_BYTES: u64 = 4 << 20;
/// Table bytes looked at in one go.
const TABLE_PIECE_BYTES: u64 = 32 << 10;

/// The mapping of one image.
pub(super) struct Map {
    header: Header,
    tables: Cached<Host, Arc<dyn HostFile>>,
    /// Where guest data lies, and how long that file is.
    data: FileIndex,
    data_bytes: u64,
}

/// What an L2 entry says of its cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cluster {
    Hole,
    Zero,
    Data(HostOffset),
    Compressed { at: HostOffset, len_bytes: u64 },
    Subclusters(Subclusters),
}

/// A cluster whose parts differ. Without `at` none is allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Subclusters {
    at: Option<HostOffset>,
    allocated: u32,
    zero: u32,
}

/// An L2 entry with where it was read, for messages.
#[derive(Clone, Copy)]
struct Entry {
    at: HostOffset,
    index: u64,
    word: u64,
    bitmap: u64,
    /// Whether the table it lies in has a refcount of exactly one.
    is_in_own_table: bool,
}

/// What the tables hold, one after the other.
enum Step<'a> {
    /// An L2 table, and whether it is the disk's alone, before what it maps.
    Table(HostOffset, bool),
    /// A part of the disk that no L2 table maps.
    NoTable(VirtualSpan),
    /// A part of the disk within one cluster, and the entry of that.
    Entry(VirtualSpan, &'a Entry),
}

/// What a table or an entry of it claims of the file. What is `copied` says that it has a refcount of exactly one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Claim {
    /// An L2 table.
    Table { at: HostOffset, is_copied: bool },
    /// A whole cluster, of the guest's data.
    Cluster { at: HostOffset, is_copied: bool },
    /// A compressed cluster, which shares the file's clusters with others of its kind.
    Compressed(HostSpan),
}

impl Entry {
    /// Whether the cluster has a refcount of exactly one: nobody else would see a change of it.
    fn is_own(&self) -> bool {
        self.is_in_own_table && self.word & entry::COPIED != 0
    }

    fn corrupt(&self, expected: &str) -> Error {
        Error::corrupt(Corrupt::L2Entry).at(self.at).field(
            format!("entry {}", self.index),
            FieldValue::hex64(self.word),
            expected,
        )
    }

    fn corrupt_bitmap(&self, expected: &str) -> Error {
        Error::corrupt(Corrupt::L2Entry).at(self.at.plus(8)).field(
            format!("bitmap of entry {}", self.index),
            FieldValue::hex64(self.bitmap),
            expected,
        )
    }
}

impl Map {
    pub(super) fn header(&self) -> &Header {
        &self.header
    }

    /// The length of the file that holds the guest's data.
    pub(super) fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// The mapping of `file`, whose guest data lies in `data_file` if that is another one.
    pub(super) fn new(header: Header, file: Arc<dyn HostFile>, data_file: Option<&dyn HostFile>) -> Self {
        let data_bytes = data_file.map_or(file.len_bytes(), ReadAt::len_bytes);
        let data = FileIndex(u32::from(data_file.is_some()));
        Self { header, tables: Cached::new(file, CACHE_BYTES), data, data_bytes }
    }

    /// The runs of `span`, which lies within the virtual disk.
    pub(super) fn runs(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        self.each_step(span, &mut |step| match step {
            Step::Table(..) => Ok(()),
            Step::NoTable(part) => {
                push_run(&mut runs, Run::new(part, RunState::Hole));
                Ok(())
            }
            Step::Entry(part, entry) => self.cluster_runs(entry, part, &mut runs),
        })?;
        Ok(runs)
    }

    /// See [`crate::Layer::backing`].
    pub(super) fn backing(&self, span: VirtualSpan) -> Result<Vec<Extent<Virtual, Backing>>> {
        let mut all = Vec::new();
        let mut runs = Vec::new();
        self.each_step(span, &mut |step| {
            let (part, entry) = match step {
                Step::Table(..) => return Ok(()),
                Step::NoTable(part) => {
                    push_backing(&mut all, part, Backing::Absent);
                    return Ok(());
                }
                Step::Entry(part, entry) => (part, entry),
            };
            runs.clear();
            self.cluster_runs(entry, part, &mut runs)?;
            for run in &runs {
                let backing = match Backing::of(run.state) {
                    Backing::Allocated if !entry.is_own() => Backing::Fixed,
                    other => other,
                };
                push_backing(&mut all, run.span, backing);
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Calls `claim` with everything that the tables of the virtual disk claim of the file that holds it.
    pub(super) fn each_claim(&self, mut claim: impl FnMut(Claim) -> Result<()>) -> Result<()> {
        self.each_step(Span::from_zero(self.header.virtual_bytes), &mut |step| match step {
            Step::Table(at, is_copied) => claim(Claim::Table { at, is_copied }),
            Step::NoTable(_) => Ok(()),
            Step::Entry(part, entry) => match self.cluster(entry, part)? {
                Cluster::Compressed { at, len_bytes } => claim(Claim::Compressed(Span::new(at, len_bytes))),
                // A cluster of zeros may have a place, too.
                _ => self.place(entry, part)?.map_or(Ok(()), |at| {
                    claim(Claim::Cluster { at, is_copied: entry.word & entry::COPIED != 0 })
                }),
            },
        })
    }

    /// Calls `each` with what the tables hold for `span`, in order.
    fn each_step(&self, span: VirtualSpan, each: &mut impl FnMut(Step<'_>) -> Result<()>) -> Result<()> {
        let covers = self.header.l2_covers_bytes();
        for piece in span.split(TABLE_PIECE_BYTES / 8 * covers) {
            let first = piece.start().get() / covers;
            let entries = self.table(self.header.l1_at, first, piece, covers, 8, "QCOW2 L1 table")?;
            let l2_spans = piece.split(covers);
            for ((index, word), l2_span) in (first..).zip(words(&entries)).zip(l2_spans) {
                match self.l2_table(index, word)? {
                    None => each(Step::NoTable(l2_span))?,
                    Some(at) => {
                        let is_copied = word & entry::COPIED != 0;
                        each(Step::Table(at, is_copied))?;
                        self.each_of_table(at, is_copied, l2_span, each)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The bytes of the table at `at`, of entries of `entry_bytes` that cover `covers` each, for `span`, whose
    /// first entry is `first`.
    fn table(
        &self,
        at: HostOffset,
        first: u64,
        span: VirtualSpan,
        covers: u64,
        entry_bytes: u64,
        what: &str,
    ) -> Result<Vec<u8>> {
        let Some(last) = span.len_bytes().checked_sub(1).map(|len| (span.start().get() + len) / covers)
        else {
            return Ok(Vec::new());
        };
        let base = span.start().get() / covers;
        let count = last - base + 1;
        let from = at.checked_add(first * entry_bytes).ok_or_else(|| Error::corrupt(what).at(at))?;
        read_vec(&self.tables, from, count * entry_bytes, what)
    }

    /// Where the L2 table of an L1 entry lies, if there is one.
    fn l2_table(&self, index: u64, word: u64) -> Result<Option<HostOffset>> {
        let corrupt = |expected: &str| {
            Error::corrupt(Corrupt::L1Entry).at(self.header.l1_at.plus(index * 8)).field(
                format!("entry {index}"),
                FieldValue::hex64(word),
                expected,
            )
        };
        if word & !(entry::OFFSET | entry::COPIED) != 0 {
            return Err(corrupt("reserved bits that are zeros"));
        }
        let at = word & entry::OFFSET;
        if !at.is_multiple_of(self.header.cluster_bytes()) {
            return Err(corrupt("an offset of whole clusters"));
        }
        if at >= self.tables.len_bytes() {
            return Err(corrupt("an offset within the file"));
        }
        Ok((at != 0).then(|| HostOffset::new(at)))
    }

    /// Calls `each` with the parts of `span`, which the L2 table at `table` maps, and their entries.
    fn each_of_table(
        &self,
        table: HostOffset,
        is_in_own_table: bool,
        span: VirtualSpan,
        each: &mut impl FnMut(Step<'_>) -> Result<()>,
    ) -> Result<()> {
        let cluster_bytes = self.header.cluster_bytes();
        let entry_bytes = self.header.l2_entry_bytes();
        let l2_start = span.start().get() / self.header.l2_covers_bytes() * self.header.l2_covers_bytes();
        for piece in span.split(TABLE_PIECE_BYTES / entry_bytes * cluster_bytes) {
            let first = (piece.start().get() - l2_start) / cluster_bytes;
            let bytes = self.table(table, first, piece, cluster_bytes, entry_bytes, "QCOW2 L2 table")?;
            let mut words = words(&bytes);
            for (index, part) in (first..).zip(piece.split(cluster_bytes)) {
                let word = words.next().expect("as many entries as clusters");
                let bitmap = if self.header.extended_l2 { words.next().expect("two words") } else { 0 };
                let entry =
                    Entry { at: table.plus(index * entry_bytes), index, word, bitmap, is_in_own_table };
                each(Step::Entry(part, &entry))?;
            }
        }
        Ok(())
    }

    /// Appends the runs of `part`, which lies within the cluster of `entry`.
    fn cluster_runs(&self, entry: &Entry, part: VirtualSpan, runs: &mut Vec<Run>) -> Result<()> {
        match self.cluster(entry, part)? {
            Cluster::Hole => push_run(runs, Run::new(part, RunState::Hole)),
            Cluster::Zero => push_run(runs, Run::new(part, RunState::Zero)),
            Cluster::Data(at) => self.data_runs(entry, at, part, runs)?,
            Cluster::Compressed { at, len_bytes } => {
                let state = RunState::Compressed { file: self.data, offset: at, len_bytes };
                push_run(runs, Run::new(part, state));
            }
            Cluster::Subclusters(subclusters) => {
                let step = self.header.cluster_bytes() / u64::from(SUBCLUSTER_COUNT);
                for sub in part.split(step) {
                    let number = sub.start().get() / step % u64::from(SUBCLUSTER_COUNT);
                    let is_set = |bits: u32| bits >> number & 1 == 1;
                    match subclusters.at {
                        Some(at) if is_set(subclusters.allocated) => self.data_runs(entry, at, sub, runs)?,
                        _ if is_set(subclusters.zero) => push_run(runs, Run::new(sub, RunState::Zero)),
                        _ => push_run(runs, Run::new(sub, RunState::Hole)),
                    }
                }
            }
        }
        Ok(())
    }

    /// Appends the data of `part`, whose cluster lies at `at`. A file may end within its last cluster, whose rest
    /// then reads as zeros.
    fn data_runs(&self, entry: &Entry, at: HostOffset, part: VirtualSpan, runs: &mut Vec<Run>) -> Result<()> {
        if at.get() >= self.data_bytes {
            return Err(entry.corrupt("an offset within the file"));
        }
        let skip = part.start().get() % self.header.cluster_bytes();
        let offset = at.checked_add(skip).ok_or_else(|| entry.corrupt("an offset within the file"))?;
        let there = self.data_bytes.saturating_sub(offset.get()).min(part.len_bytes());
        let middle = part.start().plus(there);
        let data = RunState::Data { file: self.data, offset };
        push_run(runs, Run::new(Span::between(part.start(), middle), data));
        push_run(runs, Run::new(Span::between(middle, part.end()), RunState::Zero));
        Ok(())
    }

    /// What `entry`, that of the cluster around `part`, says.
    fn cluster(&self, entry: &Entry, part: VirtualSpan) -> Result<Cluster> {
        if entry.word & entry::COMPRESSED != 0 {
            return self.compressed(entry);
        }
        let zero_flag = if self.header.version >= 3 && !self.header.extended_l2 { entry::ZERO } else { 0 };
        if entry.word & !(entry::OFFSET | entry::COPIED | zero_flag) != 0 {
            return Err(entry.corrupt("reserved bits that are zeros"));
        }
        let at = self.place(entry, part)?;
        if self.header.extended_l2 {
            return subclusters(entry, at);
        }
        Ok(match at {
            _ if entry.word & zero_flag != 0 => Cluster::Zero,
            Some(at) => Cluster::Data(at),
            None => Cluster::Hole,
        })
    }

    /// Where the cluster lies, if it is allocated.
    fn place(&self, entry: &Entry, part: VirtualSpan) -> Result<Option<HostOffset>> {
        let at = entry.word & entry::OFFSET;
        if !at.is_multiple_of(self.header.cluster_bytes()) {
            return Err(entry.corrupt("an offset of whole clusters"));
        }
        let Some(data_file) = &self.header.data_file else {
            return Ok((at != 0).then(|| HostOffset::new(at)));
        };
        // Offset 0 is a place in a data file; the bit above then says that it is meant.
        if at == 0 && entry.word & entry::COPIED == 0 {
            return Ok(None);
        }
        if data_file.is_raw && at != cluster_start(part, self.header.cluster_bytes()) {
            return Err(
                entry.corrupt("the cluster's own offset on the virtual disk, as in any raw data file")
            );
        }
        Ok(Some(HostOffset::new(at)))
    }

    /// A compressed cluster: from any byte, up to the end of the last sector it touches.
    fn compressed(&self, entry: &Entry) -> Result<Cluster> {
        if self.header.data_file.is_some() {
            return Err(entry.corrupt("no compressed cluster with an external data file"));
        }
        if entry.word & entry::COPIED != 0 {
            return Err(entry.corrupt("bit 63 clear in a compressed cluster"));
        }
        if entry.bitmap != 0 {
            return Err(entry.corrupt_bitmap("0 in a compressed cluster"));
        }
        let bits = compressed_offset_bits(self.header.cluster_bits);
        let at = entry.word & ((1 << bits) - 1);
        let sectors = ((entry.word & !entry::COMPRESSED) >> bits) + 1;
        if at < self.header.cluster_bytes() || at >= self.data_bytes {
            return Err(entry.corrupt("an offset past the header and within the file"));
        }
        let end = (at / SECTOR_BYTES + sectors).saturating_mul(SECTOR_BYTES).min(self.data_bytes);
        Ok(Cluster::Compressed { at: HostOffset::new(at), len_bytes: end - at })
    }
}

fn cluster_start(part: VirtualSpan, cluster_bytes: u64) -> u64 {
    part.start().get() / cluster_bytes * cluster_bytes
}

/// An extended entry by its bitmap.
fn subclusters(entry: &Entry, at: Option<HostOffset>) -> Result<Cluster> {
    let [allocated, zero] = [entry.bitmap & u64::from(u32::MAX), entry.bitmap >> 32]
        .map(|bits| u32::try_from(bits).expect("half of the word"));
    if allocated & zero != 0 {
        return Err(entry.corrupt_bitmap("no subcluster both allocated and zeros"));
    }
    if at.is_none() && allocated != 0 {
        return Err(entry.corrupt_bitmap("no subcluster allocated in a cluster without a place"));
    }
    Ok(match (at, allocated, zero) {
        (Some(at), u32::MAX, _) => Cluster::Data(at),
        (_, _, u32::MAX) => Cluster::Zero,
        (_, 0, 0) => Cluster::Hole,
        _ => Cluster::Subclusters(Subclusters { at, allocated, zero }),
    })
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.as_chunks().0.iter().map(|word| u64::from_be_bytes(*word))
}
