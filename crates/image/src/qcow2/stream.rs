//! The layout of an image that is written from its start to its end, to where nothing can be written twice.
//!
//! Which clusters hold data is known before: those that the plan reads or fills. So the tables come first, the data clusters follow in the order of
//! the virtual disk, and each has its place from the start. A cluster that turns out to be zeros is written all the same.
//!
//! The file: header, refcount table, refcount blocks, L1 table, L2 tables, data. Every cluster of it counts once.

use block::Result;
use extent::{HostOffset, VirtualOffset, VirtualSpan};
use serde::{Deserialize, Serialize};

use super::layout::entry;
use super::write::{Places, Qcow2Writer, REFCOUNT_BYTES};
use crate::{CreateOptions, Finish, Growth, Piece, PieceBytes, TargetWrite, WriteBytes, Writer};

/// Lays out a new image in the order of its file. [`Self::head`] comes before what it places.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Qcow2StreamWriter {
    form: Qcow2Writer,
    runs: Vec<ClusterRun>,
    places: Places,
    /// How many L2 tables there are.
    l2_count: u64,
    /// The first cluster with data.
    data: u64,
    /// How many of the clusters with data have been placed.
    placed: u64,
}

/// Clusters of the virtual disk that hold data.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct ClusterRun {
    first: u64,
    count: u64,
    /// How many hold data before these.
    before: u64,
}

impl Qcow2StreamWriter {
    /// A writer for `options`, of a disk of which `used` alone is placed: spans in ascending order.
    pub fn new(options: CreateOptions, used: impl Iterator<Item = VirtualSpan>) -> Result<Self> {
        let form = Qcow2Writer::new(options)?;
        let bits = form.cluster_bits();
        let mut runs: Vec<ClusterRun> = Vec::new();
        for span in used.filter(|span| !span.is_empty()) {
            let (first, end) = (span.start().get() >> bits, ((span.end().get() - 1) >> bits) + 1);
            match runs.last_mut() {
                Some(last) if first <= last.first + last.count => {
                    last.count = last.count.max(end - last.first);
                }
                last => {
                    let before = last.map_or(0, |last| last.before + last.count);
                    runs.push(ClusterRun { first, count: end - first, before });
                }
            }
        }
        let l2_count = l2_indexes(&runs, form.l2_entries()).count() as u64;
        let data_count = runs.last().map_or(0, |last| last.before + last.count);
        let l1_clusters = (form.l1_entries() * 8).div_ceil(form.cluster_bytes());
        let places = Places::in_order(l1_clusters + l2_count + data_count, &form);
        let data = places.first_block + places.block_count + l1_clusters + l2_count;
        Ok(Self { form, runs, places, l2_count, data, placed: 0 })
    }

    /// What comes before the data, in pieces that follow each other: each is short, however large the disk is.
    pub fn head(&self) -> Result<impl Iterator<Item = Vec<u8>> + '_> {
        let cluster_bytes = self.form.cluster_bytes();
        let bits = self.form.cluster_bits();
        let l1 = self.places.first_block + self.places.block_count;
        let l1_clusters = (self.form.l1_entries() * 8).div_ceil(cluster_bytes);
        let first_l2 = l1 + l1_clusters;
        let l1_at = if l1_clusters == 0 { 0 } else { l1 << bits };
        let header =
            padded(self.form.header(l1_at, self.places.table, self.places.table_clusters)?, cluster_bytes);
        let blocks = self.places.first_block..l1;
        let table = blocks.clone().flat_map(move |block| (block << bits).to_be_bytes()).collect();
        let table = padded(table, self.places.table_clusters << bits);
        let end = self.end();
        let per_block = cluster_bytes / REFCOUNT_BYTES;
        let counts = (0..blocks.end - blocks.start).map(move |block| {
            let counted = end.saturating_sub(block * per_block).min(per_block);
            padded([0, 1].repeat(index(counted)), cluster_bytes)
        });
        let mut tables = first_l2..;
        let mut l1_bytes = vec![0; index(l1_clusters << bits)];
        for table in l2_indexes(&self.runs, self.form.l2_entries()) {
            let at = (tables.next().expect("endless") << bits) | entry::COPIED;
            l1_bytes[index(table) * 8..][..8].copy_from_slice(&at.to_be_bytes());
        }
        let l2 = l2_indexes(&self.runs, self.form.l2_entries()).map(|table| self.l2(table));
        Ok([header, table].into_iter().chain(counts).chain([l1_bytes]).chain(l2))
    }

    /// Clusters of the whole file.
    fn end(&self) -> u64 {
        self.data + self.runs.last().map_or(0, |last| last.before + last.count)
    }

    fn l2(&self, table: u64) -> Vec<u8> {
        let entries = self.form.l2_entries();
        let (first, end) = (table * entries, (table + 1) * entries);
        let mut bytes = vec![0; index(self.form.cluster_bytes())];
        let from = self.runs.partition_point(|run| run.first + run.count <= first);
        for run in self.runs[from..].iter().take_while(|run| run.first < end) {
            for cluster in run.first.max(first)..(run.first + run.count).min(end) {
                let at = self.data + run.before + (cluster - run.first);
                let word = (at << self.form.cluster_bits()) | entry::COPIED;
                bytes[index(cluster - first) * 8..][..8].copy_from_slice(&word.to_be_bytes());
            }
        }
        bytes
    }

    /// How many clusters with data come before this one.
    fn rank(&self, cluster: u64) -> u64 {
        let found = self.runs.partition_point(|run| run.first <= cluster);
        let run = found.checked_sub(1).and_then(|at| self.runs.get(at));
        let run =
            run.filter(|run| cluster < run.first + run.count).expect("only what was announced is placed");
        run.before + (cluster - run.first)
    }

    fn at(&self, rank: u64) -> HostOffset {
        HostOffset::new((self.data + rank) << self.form.cluster_bits())
    }

    /// Zeros for the clusters before this one that were announced and turned out to be zeros.
    fn zero_up_to(&mut self, rank: u64, puts: &mut Vec<TargetWrite>) {
        if rank > self.placed {
            let len_bytes = (rank - self.placed) << self.form.cluster_bits();
            puts.push(TargetWrite { at: self.at(self.placed), bytes: WriteBytes::Zero(len_bytes) });
        }
        self.placed = rank;
    }
}

impl Writer for Qcow2StreamWriter {
    fn granularity_bytes(&self) -> u64 {
        self.form.cluster_bytes()
    }

    fn growth(&self) -> Growth {
        Growth::Reserved
    }

    /// Whatever is not placed is zeroed, as over old contents.
    fn target_is_dirty(&self) -> bool {
        true
    }

    fn place(&mut self, _chunk_at: VirtualOffset, pieces: Vec<Piece>) -> Result<Vec<TargetWrite>> {
        let mut puts = Vec::new();
        for piece in pieces {
            let PieceBytes::Plain(range) = piece.bytes else {
                unreachable!("there is no encoder");
            };
            let rank = self.rank(piece.at.get() >> self.form.cluster_bits());
            self.zero_up_to(rank, &mut puts);
            puts.push(TargetWrite { at: self.at(rank), bytes: WriteBytes::Chunk(range) });
            self.placed = rank + (piece.len_bytes >> self.form.cluster_bits());
        }
        Ok(puts)
    }

    fn finish(&mut self) -> Result<Finish> {
        let mut tables = Vec::new();
        self.zero_up_to(self.end() - self.data, &mut tables);
        Ok(Finish { tables, headers: Vec::new(), len_bytes: self.end() << self.form.cluster_bits() })
    }
}

/// The L2 tables that have entries, in order.
fn l2_indexes(runs: &[ClusterRun], entries: u64) -> impl Iterator<Item = u64> + '_ {
    let mut next = 0;
    runs.iter().flat_map(move |run| {
        let first = (run.first / entries).max(next);
        let end = (run.first + run.count - 1) / entries + 1;
        next = next.max(end);
        first..end
    })
}

fn padded(mut bytes: Vec<u8>, len_bytes: u64) -> Vec<u8> {
    assert!(bytes.len() <= index(len_bytes), "a table has room for its entries");
    bytes.resize(index(len_bytes), 0);
    bytes
}

/// A count bounded by a table's bytes, as an index into memory.
fn index(count: u64) -> usize {
    usize::try_from(count).expect("bounded by a table")
}
