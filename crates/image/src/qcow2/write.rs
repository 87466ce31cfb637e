//! The layout of a new image.
//!
//! The file only grows: cluster 0 is kept for the header, then clusters follow in the order of the virtual disk, each
//! L2 table after the clusters it maps, each refcount block as the last of the clusters it counts. What is
//! left — the last L2 table, the L1 table, the refcount table and the last refcount blocks — lies at the end. So
//! all places but those of L2 tables follow from arithmetic, and memory holds one L2 table, one refcount block and the L1
//! table, whatever the disk's size.
//!
//! Compressed clusters are packed byte by byte, across clusters of the file where these follow each other. A
//! cluster of the file counts as often as compressed clusters touch it.

use block::{Error, Result};
use extent::{HostOffset, VirtualOffset};
use serde::{Deserialize, Serialize};
use zerocopy::IntoBytes;

use super::compress::{Compression, encoder};
use super::layout::{
    CLUSTER_BITS, COMPATIBLE_LAZY_REFCOUNTS, ExtensionHead, FeatureName, Header, L1_BYTES_MAX, MAGIC,
    OverlayHead, REFCOUNT_ORDER_16_BITS, REFCOUNT_TABLE_BYTES_MAX, SECTOR_BYTES, SNAPSHOT_DISK_BYTES_MAX,
    autoclear, compressed_offset_bits, entry, extension, incompatible,
};
use crate::{
    CreateOptions, Encoder, Finish, Format, Piece, PieceBytes, SnapshotReference, TargetWrite, WriteBytes,
    Writer,
};

const CLUSTER_BYTES_DEFAULT: u64 = 64 << 10;
/// Bytes of a refcount: 16 bits.
pub(super) const REFCOUNT_BYTES: u64 = 2;

/// Lays out a new image: version 3, 16-bit refcounts, no backing file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Qcow2Writer {
    virtual_bytes: u64,
    cluster_bits: u32,
    /// How clusters are compressed, if they are.
    compression: Option<Compression>,
    target_is_dirty: bool,
    clusters: Clusters,
    /// Offsets of the L2 tables so far; 0 where there is none.
    l1: Vec<u64>,
    /// Index of the L2 table being filled.
    l2_index: u64,
    /// Its entries so far.
    l2: Vec<u64>,
    /// Where the next compressed cluster goes if it fits: the first byte not used in the last cluster of the file
    /// that has compressed data.
    packed_end: Option<u64>,
    /// The disk of a snapshot that answers where nothing was written.
    stands_on: Option<SnapshotReference>,
}

/// Which clusters of the file are given out, and how often each counts.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Clusters {
    cluster_bits: u32,
    /// Index of the next one to give out.
    next: u64,
    /// Refcounts of those given out in the range of the refcount block to which `next` belongs.
    counts: Vec<u16>,
}

impl Clusters {
    fn new(cluster_bits: u32) -> Self {
        // The header's own cluster.
        Self { cluster_bits, next: 1, counts: vec![1] }
    }

    fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Clusters that one refcount block counts.
    fn per_block(&self) -> u64 {
        self.cluster_bytes() / REFCOUNT_BYTES
    }

    /// The first cluster of the range that is being counted.
    fn range_start(&self) -> u64 {
        self.next / self.per_block() * self.per_block()
    }

    /// Clusters that can be given out before the next refcount block's place. Zero: that place is next.
    fn until_block(&self) -> u64 {
        self.per_block() - 1 - self.next % self.per_block()
    }

    /// Gives out the next `count` clusters, at most [`Clusters::until_block`] of them; answers the first one's offset.
    fn take(&mut self, count: u64) -> u64 {
        assert!(count <= self.until_block(), "a refcount block's place is not given out");
        let offset = self.next << self.cluster_bits;
        self.next += count;
        let counted = self.counts.len() + usize::try_from(count).expect("within a refcount block");
        self.counts.resize(counted, 1);
        offset
    }

    /// Puts the refcount block of the range just completed, if it is.
    fn complete_range(&mut self) -> Option<TargetWrite> {
        if self.until_block() > 0 {
            return None;
        }
        self.counts.push(1);
        let put = TargetWrite {
            at: HostOffset::new(self.next << self.cluster_bits),
            bytes: owned(&self.counts, u16::to_be_bytes),
        };
        self.next += 1;
        self.counts.clear();
        Some(put)
    }

    /// The refcount of the cluster around `offset`, if its range is still being counted.
    fn count_mut(&mut self, offset: u64) -> Option<&mut u16> {
        let index = (offset >> self.cluster_bits).checked_sub(self.range_start())?;
        self.counts.get_mut(usize::try_from(index).ok()?)
    }
}

fn owned<T: Copy, const N: usize>(values: &[T], to_bytes: impl Fn(T) -> [u8; N]) -> WriteBytes {
    WriteBytes::Owned(values.iter().flat_map(|value| to_bytes(*value)).collect())
}

impl Qcow2Writer {
    /// A writer for `options`, with the keys `cluster_size` and `compression` (or `compression_type`).
    pub fn new(mut options: CreateOptions) -> Result<Self> {
        let sizes = 1 << CLUSTER_BITS.start()..(1 << CLUSTER_BITS.end()) + 1;
        let cluster_bytes = options.take_power_of_two("cluster_size", CLUSTER_BYTES_DEFAULT, sizes)?;
        let compression = take_compression(&mut options)?;
        options.finish(Format::Qcow2)?;
        let cluster_bits = cluster_bytes.trailing_zeros();
        // QEMU counts whole sectors and would drop the rest of one.
        let virtual_bytes = options
            .virtual_bytes
            .checked_next_multiple_of(SECTOR_BYTES)
            .ok_or_else(|| Error::unsupported("QCOW2 disk of this size"))?;
        let writer = Self {
            virtual_bytes,
            cluster_bits,
            compression: options.compress.then_some(compression),
            target_is_dirty: options.target_is_dirty,
            clusters: Clusters::new(cluster_bits),
            l1: Vec::new(),
            l2_index: 0,
            l2: Vec::new(),
            packed_end: None,
            stands_on: None,
        };
        writer.check_limits()?;
        Ok(writer)
    }

    /// The same as an overlay of a disk of a snapshot. `Unsupported` if the disk's name is too long.
    pub fn standing_on(self, parent: SnapshotReference) -> Result<Self> {
        let name_bytes = parent.disk.len();
        if name_bytes == 0
            || name_bytes > SNAPSHOT_DISK_BYTES_MAX
            || self.cluster_bytes() < CLUSTER_BYTES_DEFAULT
        {
            return Err(Error::unsupported(format!(
                "an overlay of a disk with a name of {name_bytes} bytes"
            ))
            .hint(format!("at most {SNAPSHOT_DISK_BYTES_MAX} can be noted")));
        }
        Ok(Self { stands_on: Some(parent), ..self })
    }

    pub(super) fn cluster_bits(&self) -> u32 {
        self.cluster_bits
    }

    pub(super) fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    pub(super) fn l2_entries(&self) -> u64 {
        self.cluster_bytes() / 8
    }

    /// Entries of the L1 table.
    pub(super) fn l1_entries(&self) -> u64 {
        self.virtual_bytes.div_ceil(self.cluster_bytes() * self.l2_entries())
    }

    /// Refuses a disk that would not fit the format if all of it held data.
    fn check_limits(&self) -> Result<()> {
        let too_large = || {
            Error::unsupported(format!(
                "QCOW2 disk of {} bytes in clusters of {}",
                self.virtual_bytes,
                self.cluster_bytes()
            ))
            .hint("larger clusters hold larger disks: -o cluster_size=2M")
        };
        let l1_bytes = self.l1_entries() * 8;
        if l1_bytes > L1_BYTES_MAX {
            return Err(too_large());
        }
        let data = self.virtual_bytes.div_ceil(self.cluster_bytes());
        let most = 1 + data + self.l1_entries() + l1_bytes.div_ceil(self.cluster_bytes());
        let tail = Tail::new(0, most, &self.clusters);
        let bits = match self.compression {
            Some(_) => compressed_offset_bits(self.cluster_bits).min(56),
            None => 56,
        };
        let end = tail.end.checked_mul(self.cluster_bytes());
        if tail.table_clusters * self.cluster_bytes() > REFCOUNT_TABLE_BYTES_MAX
            || end.is_none_or(|end| end >= 1 << bits)
        {
            return Err(too_large());
        }
        Ok(())
    }

    /// The next `count` clusters or fewer, and how many; puts what comes before them.
    fn take_clusters(&mut self, count: u64, puts: &mut Puts) -> (u64, u64) {
        puts.extend(self.clusters.complete_range());
        let count = count.min(self.clusters.until_block());
        (self.clusters.take(count), count)
    }

    /// Makes the L2 table `index` the one being filled.
    fn turn_to_l2(&mut self, index: u64, puts: &mut Puts) {
        if index != self.l2_index {
            self.put_l2(puts);
            self.l2_index = index;
        }
    }

    /// Puts the L2 table being filled, if it maps anything.
    fn put_l2(&mut self, puts: &mut Puts) {
        if self.l2.is_empty() {
            return;
        }
        let (at, _) = self.take_clusters(1, puts);
        self.l2.resize(index(self.l2_entries()), 0);
        puts.push(TargetWrite { at: HostOffset::new(at), bytes: owned(&self.l2, u64::to_be_bytes) });
        self.l2.clear();
        self.l1.resize(index(self.l2_index), 0);
        self.l1.push(at | entry::COPIED);
    }

    /// Maps the cluster `cluster` of the virtual disk.
    fn map(&mut self, cluster: u64, word: u64, puts: &mut Puts) {
        self.turn_to_l2(cluster / self.l2_entries(), puts);
        let at = index(cluster % self.l2_entries());
        assert!(self.l2.len() <= at, "pieces come in ascending order");
        self.l2.resize(at, 0);
        self.l2.push(word);
    }

    fn place_plain(&mut self, piece: &Piece, from: usize, puts: &mut Puts) {
        let mut cluster = piece.at.get() >> self.cluster_bits;
        let mut left = piece.len_bytes >> self.cluster_bits;
        let mut from = from;
        while left > 0 {
            self.turn_to_l2(cluster / self.l2_entries(), puts);
            let of_table = self.l2_entries() - cluster % self.l2_entries();
            let (offset, count) = self.take_clusters(left.min(of_table), puts);
            for number in 0..count {
                let at = offset + (number << self.cluster_bits);
                self.map(cluster + number, at | entry::COPIED, puts);
            }
            let len = index(count << self.cluster_bits);
            puts.push(TargetWrite {
                at: HostOffset::new(offset),
                bytes: WriteBytes::Chunk(from..from + len),
            });
            from += len;
            cluster += count;
            left -= count;
        }
    }

    fn place_encoded(&mut self, at: VirtualOffset, bytes: Vec<u8>, puts: &mut Puts) {
        let cluster = at.get() >> self.cluster_bits;
        // The table before goes first, so that what follows stays packed.
        self.turn_to_l2(cluster / self.l2_entries(), puts);
        let len = bytes.len() as u64;
        let offset = self.take_packed(len, puts);
        let last = offset + len - 1;
        let more_sectors = last / SECTOR_BYTES - offset / SECTOR_BYTES;
        let word = entry::COMPRESSED | more_sectors << compressed_offset_bits(self.cluster_bits) | offset;
        self.map(cluster, word, puts);
        puts.push(TargetWrite { at: HostOffset::new(offset), bytes: WriteBytes::Owned(bytes) });
    }

    /// A place for `len` bytes, at most a cluster, packed after the last one's if that can be; counted.
    fn take_packed(&mut self, len: u64, puts: &mut Puts) -> u64 {
        assert!(0 < len && len <= self.cluster_bytes(), "an encoded cluster is smaller than a plain one");
        if let Some(offset) = self.append_packed(len) {
            return offset;
        }
        self.pad_packed(puts);
        let (offset, _) = self.take_clusters(1, puts);
        self.packed_end = Some(offset + len);
        offset
    }

    /// A place right after the last compressed cluster, in the same cluster of the file or on into the next.
    fn append_packed(&mut self, len: u64) -> Option<u64> {
        let offset = self.packed_end?;
        let bytes = self.cluster_bytes();
        let free = offset.next_multiple_of(bytes) - offset;
        let next = self.clusters.next << self.cluster_bits;
        let must_go_on = free < len;
        if free == 0 || (must_go_on && (offset + free != next || self.clusters.until_block() == 0)) {
            return None;
        }
        let count = self.clusters.count_mut(offset)?;
        *count = count.checked_add(1)?;
        if must_go_on {
            self.clusters.take(1);
        }
        self.packed_end = Some(offset + len);
        Some(offset)
    }

    /// Zeroes the rest of the last cluster with compressed data, where old contents would stay.
    fn pad_packed(&mut self, puts: &mut Puts) {
        if let Some(offset) = self.packed_end.take().filter(|_| self.target_is_dirty) {
            puts.zero(offset, offset.next_multiple_of(self.cluster_bytes()) - offset);
        }
    }

    /// Puts a table of `clusters` clusters at `at`; zeros follow `bytes`.
    fn put_table(&self, at: u64, bytes: WriteBytes, clusters: u64, puts: &mut Puts) {
        let WriteBytes::Owned(bytes) = bytes else { unreachable!("tables are made here") };
        let len = bytes.len() as u64;
        if len > 0 {
            puts.push(TargetWrite { at: HostOffset::new(at), bytes: WriteBytes::Owned(bytes) });
        }
        if self.target_is_dirty {
            puts.zero(at + len, (clusters << self.cluster_bits) - len);
        }
    }

    /// The header, with the L1 table at this offset, and the refcount table in these clusters.
    pub(super) fn header(&self, l1_at: u64, table: u64, table_clusters: u64) -> Result<Vec<u8>> {
        let number =
            |value: u64| u32::try_from(value).map_err(|_| Error::unsupported("QCOW2 table of this length"));
        let compression = self.compression.unwrap_or(Compression::Zlib);
        let (compression_type, features) = match compression {
            Compression::Zlib => (0, 0),
            Compression::Zstd => (1, incompatible::COMPRESSION_TYPE),
        };
        let header = Header {
            magic: MAGIC,
            version: 3.into(),
            backing_file_offset: 0.into(),
            backing_file_size: 0.into(),
            cluster_bits: self.cluster_bits.into(),
            size: self.virtual_bytes.into(),
            crypt_method: 0.into(),
            l1_size: number(self.l1_entries())?.into(),
            l1_table_offset: l1_at.into(),
            refcount_table_offset: (table << self.cluster_bits).into(),
            refcount_table_clusters: number(table_clusters)?.into(),
            nb_snapshots: 0.into(),
            snapshots_offset: 0.into(),
            incompatible_features: features.into(),
            compatible_features: 0.into(),
            autoclear_features: 0.into(),
            refcount_order: REFCOUNT_ORDER_16_BITS.into(),
            header_length: number(size_of::<Header>() as u64)?.into(),
            compression_type,
            padding: [0; 7],
        };
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend(feature_names());
        bytes.extend(self.stands_on.iter().flat_map(snapshot_extension));
        bytes.extend([0; size_of::<ExtensionHead>()]);
        Ok(bytes)
    }
}

/// What is left at the end: the refcount table and the refcount blocks of the ranges that are not complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Tail {
    /// First cluster of the refcount table.
    table: u64,
    table_clusters: u64,
    /// Refcount blocks here, right after the table.
    block_count: u64,
    /// Clusters of the whole file.
    end: u64,
}

impl Tail {
    /// For a file that is `table` clusters long without it, of which `complete_count` ranges have their blocks. The
    /// blocks and the table count themselves, and so grow until they hold.
    fn new(complete_count: u64, table: u64, clusters: &Clusters) -> Self {
        let mut tail = Self { table, table_clusters: 1, block_count: 1, end: 0 };
        loop {
            tail.end = table + tail.table_clusters + tail.block_count;
            let ranges = tail.end.div_ceil(clusters.per_block());
            let block_count = ranges - complete_count;
            let table_clusters = (ranges * 8).div_ceil(clusters.cluster_bytes());
            if (block_count, table_clusters) == (tail.block_count, tail.table_clusters) {
                return tail;
            }
            tail.block_count = tail.block_count.max(block_count);
            tail.table_clusters = tail.table_clusters.max(table_clusters);
        }
    }
}

/// Where refcounts lie in a file that is written in order: right behind the header.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Places {
    /// First cluster of the refcount table.
    pub(super) table: u64,
    pub(super) table_clusters: u64,
    /// First of the refcount blocks, behind the table.
    pub(super) first_block: u64,
    pub(super) block_count: u64,
}

impl Places {
    /// For a file of so many clusters besides the header and the refcounts.
    pub(super) fn in_order(other_clusters: u64, form: &Qcow2Writer) -> Self {
        // They count all clusters, whichever come first.
        let tail = Tail::new(0, 1 + other_clusters, &form.clusters);
        let first_block = 1 + tail.table_clusters;
        Self { table: 1, table_clusters: tail.table_clusters, first_block, block_count: tail.block_count }
    }
}

impl Writer for Qcow2Writer {
    fn granularity_bytes(&self) -> u64 {
        self.cluster_bytes()
    }

    fn encoder(&self) -> Option<Box<dyn Encoder>> {
        self.compression.map(|compression| encoder(compression, index(self.cluster_bytes())))
    }

    fn target_is_dirty(&self) -> bool {
        self.target_is_dirty
    }

    fn start(&mut self) -> Result<Vec<TargetWrite>> {
        let mut puts = Puts::default();
        if self.target_is_dirty {
            // An old header must not outlive the tables it tells of.
            puts.zero(0, self.cluster_bytes());
        }
        Ok(puts.list)
    }

    fn place(&mut self, _chunk_at: VirtualOffset, pieces: Vec<Piece>) -> Result<Vec<TargetWrite>> {
        let mut puts = Puts::default();
        for mut piece in pieces {
            match std::mem::replace(&mut piece.bytes, PieceBytes::Plain(0..0)) {
                PieceBytes::Plain(range) => self.place_plain(&piece, range.start, &mut puts),
                PieceBytes::Encoded(bytes) => self.place_encoded(piece.at, bytes, &mut puts),
            }
        }
        Ok(puts.list)
    }

    fn finish(&mut self) -> Result<Finish> {
        let mut puts = Puts::default();
        self.pad_packed(&mut puts);
        self.put_l2(&mut puts);
        let l1 = self.clusters.next;
        let l1_at = l1 << self.cluster_bits;
        let l1_clusters = (self.l1_entries() * 8).div_ceil(self.cluster_bytes());
        self.put_table(l1_at, owned(&self.l1, u64::to_be_bytes), l1_clusters, &mut puts);

        let complete_count = l1 / self.clusters.per_block();
        let tail = Tail::new(complete_count, l1 + l1_clusters, &self.clusters);
        let first_block = tail.table + tail.table_clusters;
        let complete = (1..=complete_count).map(|range| range * self.clusters.per_block() - 1);
        let blocks: Vec<u64> =
            complete.chain(first_block..tail.end).map(|cluster| cluster << self.cluster_bits).collect();
        let table_at = tail.table << self.cluster_bits;
        self.put_table(table_at, owned(&blocks, u64::to_be_bytes), tail.table_clusters, &mut puts);
        for (range, cluster) in (complete_count..).zip(first_block..tail.end) {
            let counts = self.tail_counts(range, &tail);
            self.put_table(cluster << self.cluster_bits, owned(&counts, u16::to_be_bytes), 1, &mut puts);
        }

        let header =
            self.header(if l1_clusters == 0 { 0 } else { l1_at }, tail.table, tail.table_clusters)?;
        let headers = vec![TargetWrite { at: HostOffset::ZERO, bytes: WriteBytes::Owned(header) }];
        Ok(Finish { tables: puts.list, headers, len_bytes: tail.end << self.cluster_bits })
    }
}

impl Qcow2Writer {
    /// The refcounts of a range that is not complete: those counted so far, then one for each cluster of the end.
    fn tail_counts(&self, range: u64, tail: &Tail) -> Vec<u16> {
        let start = range * self.clusters.per_block();
        let mut counts =
            if start == self.clusters.range_start() { self.clusters.counts.clone() } else { Vec::new() };
        counts.resize(index((tail.end - start).min(self.clusters.per_block())), 1);
        counts
    }
}

/// The answers of one call. Compressed clusters that follow each other become one.
#[derive(Default)]
struct Puts {
    list: Vec<TargetWrite>,
}

impl Puts {
    fn push(&mut self, put: TargetWrite) {
        if let (Some(last), WriteBytes::Owned(more)) = (self.list.last_mut(), &put.bytes)
            && let WriteBytes::Owned(bytes) = &mut last.bytes
            && last.at.get() + bytes.len() as u64 == put.at.get()
        {
            bytes.extend_from_slice(more);
            return;
        }
        self.list.push(put);
    }

    fn zero(&mut self, at: u64, len_bytes: u64) {
        if len_bytes > 0 {
            self.list.push(TargetWrite { at: HostOffset::new(at), bytes: WriteBytes::Zero(len_bytes) });
        }
    }

    fn extend(&mut self, put: Option<TargetWrite>) {
        if let Some(put) = put {
            self.push(put);
        }
    }
}

fn take_compression(options: &mut CreateOptions) -> Result<Compression> {
    let mut chosen = Compression::Zstd;
    for key in ["compression_type", "compression"] {
        match options.take(key).as_deref() {
            None => {}
            Some("zlib") => chosen = Compression::Zlib,
            Some("zstd") => chosen = Compression::Zstd,
            Some(other) => return Err(Error::invalid("option").field(key, other, "zlib or zstd")),
        }
    }
    Ok(chosen)
}

/// Names of the feature bits, for readers that do not know them.
fn feature_names() -> Vec<u8> {
    const NAMES: [(u8, u64, &str); 8] = [
        (0, incompatible::DIRTY, "dirty bit"),
        (0, incompatible::CORRUPT, "corrupt bit"),
        (0, incompatible::EXTERNAL_DATA, "external data file"),
        (0, incompatible::COMPRESSION_TYPE, "compression type"),
        (0, incompatible::EXTENDED_L2, "extended L2 entries"),
        (1, COMPATIBLE_LAZY_REFCOUNTS, "lazy refcounts"),
        (2, autoclear::BITMAPS, "bitmaps"),
        (2, autoclear::RAW_EXTERNAL_DATA, "raw external data"),
    ];
    let len_bytes = u32::try_from(NAMES.len() * size_of::<FeatureName>()).expect("few names");
    let head = ExtensionHead { kind: extension::FEATURE_NAMES.into(), len_bytes: len_bytes.into() };
    let mut bytes = head.as_bytes().to_vec();
    for (kind, mask, text) in NAMES {
        let mut name = [0; 46];
        name[..text.len()].copy_from_slice(text.as_bytes());
        let bit = u8::try_from(mask.trailing_zeros()).expect("below 64");
        bytes.extend_from_slice(FeatureName { kind, bit, name }.as_bytes());
    }
    bytes
}

/// The extension that names what an overlay stands on.
fn snapshot_extension(parent: &SnapshotReference) -> Vec<u8> {
    let SnapshotReference { repository, snapshot, tree, disk } = parent;
    let told = OverlayHead { repository: *repository, snapshot: *snapshot, tree: *tree };
    let len = size_of::<OverlayHead>() + disk.len();
    let len_bytes = u32::try_from(len).expect("a short name");
    let head = ExtensionHead { kind: extension::OVERLAY.into(), len_bytes: len_bytes.into() };
    let mut bytes = [head.as_bytes(), told.as_bytes(), disk.as_bytes()].concat();
    bytes.resize(size_of::<ExtensionHead>() + len.next_multiple_of(8), 0);
    bytes
}

/// A count bounded by a table's entries or a chunk's bytes, as an index into memory.
fn index(count: u64) -> usize {
    usize::try_from(count).expect("bounded by a table or a chunk")
}
