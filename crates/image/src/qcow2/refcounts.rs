//! Whether the refcounts of an image are those of what refers to its clusters (specification: Refcounts).

use std::collections::BTreeMap;

use block::{Error, HostFile, Result, read_vec};
use extent::{HostOffset, HostSpan, Span};

use super::layout::REFCOUNT_BLOCK_OFFSET;
use super::parse::Header;
use crate::owners::Owners;

/// The refcount table is read in pieces of this size.
const PIECE_BYTES: u64 = 64 << 10;
/// Counts of shared clusters are kept in chunks of so many.
const CHUNK_COUNT: usize = 4096;
/// At most so many chunks: 128 MiB, which are 4 TiB of shared clusters of 64 KiB.
const CHUNKS_MAX: usize = 1 << 14;

/// Calls `each` with the index and place of every refcount block.
pub(super) fn each_block(
    header: &Header,
    file: &dyn HostFile,
    mut each: impl FnMut(u64, HostOffset) -> Result<()>,
) -> Result<()> {
    let table = Span::new(header.refcount_table_at, header.refcount_table_bytes());
    let mut index = 0;
    for piece in table.split(PIECE_BYTES) {
        let bytes = read_vec(file, piece.start(), piece.len_bytes(), "QCOW2 refcount table")?;
        for entry in bytes.as_chunks().0 {
            let block = u64::from_be_bytes(*entry) & REFCOUNT_BLOCK_OFFSET;
            if block != 0 {
                each(index, HostOffset::new(block))?;
            }
            index += 1;
        }
    }
    Ok(())
}

/// What refers to the clusters of a file, beyond the one owner that most of them have.
pub(super) struct References {
    cluster_bytes: u64,
    file_bytes: u64,
    /// Clusters that something calls its own, with a refcount of exactly one.
    copied: Owners,
    /// Clusters of data that may have several owners.
    shared: Owners,
    /// How often these, and others, are referred to beyond that owner: by chunks of clusters, up to the largest number.
    counts: BTreeMap<u64, Box<[u16; CHUNK_COUNT]>>,
}

impl References {
    /// Nothing refers to anything in a file of `file_bytes` yet.
    pub(super) fn new(file_bytes: u64, cluster_bytes: u64) -> Result<Self> {
        let owners = || Owners::new(file_bytes.next_multiple_of(cluster_bytes), cluster_bytes);
        let counts = BTreeMap::new();
        Ok(Self { cluster_bytes, file_bytes, copied: owners()?, shared: owners()?, counts })
    }

    /// What the one owner of the cluster at `at` says of it; the cluster lies within the file.
    pub(super) fn note(&mut self, at: HostOffset, is_copied: bool) {
        if is_copied && at.get() < self.file_bytes {
            self.copied.share(Span::new(at, self.cluster_bytes));
        }
    }

    /// Data that may have several owners is referred to `count` times more.
    pub(super) fn share(&mut self, span: HostSpan, count: u64) -> Result<()> {
        self.shared.share(span);
        self.share_apart(span, count)
    }

    /// The same, of what is no data.
    pub(super) fn share_apart(&mut self, span: HostSpan, count: u64) -> Result<()> {
        let last = span.end().get().div_ceil(self.cluster_bytes);
        for number in span.start().get() / self.cluster_bytes..last {
            let chunk = number / CHUNK_COUNT as u64;
            if self.counts.len() >= CHUNKS_MAX && !self.counts.contains_key(&chunk) {
                return Err(Error::unsupported("change of a QCOW2 image with so many shared clusters")
                    .field("clusters", CHUNKS_MAX * CHUNK_COUNT, "fewer")
                    .hint("copy it to a new image"));
            }
            let counts = self.counts.entry(chunk).or_insert_with(|| Box::new([0; CHUNK_COUNT]));
            let index = usize::try_from(number % CHUNK_COUNT as u64).expect("within a chunk");
            counts[index] = counts[index].saturating_add(u16::try_from(count).unwrap_or(u16::MAX));
        }
        Ok(())
    }

    /// Clusters of data that may have several owners.
    pub(super) fn shared(&self) -> &Owners {
        &self.shared
    }

    /// `Refused` if a cluster is counted less often than something refers to it, or more often than once where its owner relies on
    /// that. `owned` is what has an owner.
    pub(super) fn check(&self, header: &Header, file: &dyn HostFile, owned: &Owners) -> Result<()> {
        let per_block = self.cluster_bytes * 8 / u64::from(header.refcount_bits);
        let end = self.file_bytes.div_ceil(self.cluster_bytes);
        let mut next = 0;
        each_block(header, file, |index, at| {
            let first = index.saturating_mul(per_block).min(end);
            (next..first).try_for_each(|number| self.check_count(number, 0, owned))?;
            // A file may end within its last cluster.
            let there = self.file_bytes.saturating_sub(at.get()).min(self.cluster_bytes);
            let bytes = read_vec(file, at, there, "QCOW2 refcount block")?;
            next = first.saturating_add(per_block).min(end);
            for number in first..next {
                let count = refcount(&bytes, number - first, header.refcount_bits);
                self.check_count(number, count, owned)?;
            }
            Ok(())
        })?;
        (next..end).try_for_each(|number| self.check_count(number, 0, owned))
    }

    fn check_count(&self, number: u64, count: u64, owned: &Owners) -> Result<()> {
        let at = HostOffset::new(number * self.cluster_bytes);
        let index = usize::try_from(number % CHUNK_COUNT as u64).expect("within a chunk");
        let shared = self.counts.get(&(number / CHUNK_COUNT as u64)).map_or(0, |counts| counts[index]);
        let needed = u64::from(owned.has(at)) + u64::from(shared);
        let expected = match () {
            () if count < needed => format!("{needed} or more, as often as the image refers to it"),
            () if count > 1 && self.copied.has(at) => "1, as the entry for it says".into(),
            () => return Ok(()),
        };
        Err(Error::refused("a cluster in use is not counted as it should be")
            .at(at)
            .field("its refcount", count, expected)
            .hint("run 'qemu-img check -r all' on the image first, with a copy of it at hand"))
    }
}

/// The refcount of this index in a block. What the file does not hold any more is 0.
fn refcount(block: &[u8], index: u64, bits: u32) -> u64 {
    let bit = index * u64::from(bits);
    let byte = usize::try_from(bit / 8).expect("within a cluster");
    let Some(bytes) = block.get(byte..byte + usize::try_from(bits.div_ceil(8)).expect("at most 8")) else {
        return 0;
    };
    let word = bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    // Those of less than a byte begin with the lowest bits (Refcount block entry).
    if bits < 8 { word >> (bit % 8) & ((1 << bits) - 1) } else { word }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refcounts_of_every_width_are_read() {
        let block = [0b1101_0010, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 7];
        let found = |bits: u32| (0..4).map(|index| refcount(&block, index, bits)).collect::<Vec<_>>();
        assert_eq!(found(1), [0, 1, 0, 0]);
        assert_eq!(found(2), [2, 0, 1, 3]);
        assert_eq!(found(4), [2, 13, 4, 3]);
        assert_eq!(found(8), [0xd2, 0x34, 0x56, 0x78]);
        assert_eq!(found(16), [0xd234, 0x5678, 0x9abc, 0xdef0]);
        assert_eq!(found(32), [0xd234_5678, 0x9abc_def0, 0, 0]);
        assert_eq!(found(64), [0xd234_5678_9abc_def0, 0, 0, 0]);
    }
}
