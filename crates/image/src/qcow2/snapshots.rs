//! What the internal snapshots of an image refer to (specification: Snapshots), and what its L1 table does beyond the disk's end.

use std::collections::BTreeMap;

use block::{Error, FieldValue, HostFile, Result, read_struct, read_vec};
use extent::{HostOffset, HostSpan, Span};

use super::layout::{
    L1_BYTES_MAX, SECTOR_BYTES, SNAPSHOT_EXTRA_BYTES_MAX, SnapshotHead, compressed_offset_bits, entry,
};
use super::parse::Header;
use crate::qcow2::corrupt::Corrupt;

/// L2 tables that are remembered at most, with how many L1 entries lead to each.
const TABLE_COUNT_MAX: usize = 1 << 21;
/// Table bytes looked at in one go.
const PIECE_BYTES: u64 = 64 << 10;

/// A reference of a snapshot.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reference {
    /// To an L2 table.
    Table(HostSpan),
    /// To clusters of data.
    Data(HostSpan),
}

/// The snapshot table, and the L1 tables that it leads to.
pub(super) struct Snapshots {
    table: HostSpan,
    l1_tables: Vec<HostSpan>,
    /// Entries of the disk's own L1 table beyond its end.
    rest: HostSpan,
}

pub(super) const REPAIR: &str = "'qemu-img check' tells what is wrong; copy the disk to a new one";

fn past_the_end(at: HostOffset) -> Error {
    Error::refused("a table of a snapshot, or of the disk, lies past the end of the file").at(at).hint(REPAIR)
}

impl Snapshots {
    /// Reads the table of snapshots.
    pub(super) fn read(header: &Header, file: &dyn HostFile) -> Result<Self> {
        let needed = header.virtual_bytes.div_ceil(header.l2_covers_bytes());
        let rest = (header.l1_at.checked_add(needed * 8))
            .and_then(|start| Span::checked(start, header.l1_entry_count.saturating_sub(needed) * 8))
            .filter(|rest| rest.end().get() <= file.len_bytes())
            .ok_or_else(|| past_the_end(header.l1_at))?;
        let mut l1_tables = Vec::new();
        let mut at = header.snapshots_at;
        for _ in 0..header.snapshot_count {
            let head: SnapshotHead = read_struct(file, at, "QCOW2 snapshot table")?;
            let extra = head.extra_data_size.get();
            if extra > SNAPSHOT_EXTRA_BYTES_MAX {
                let expected = format!("{SNAPSHOT_EXTRA_BYTES_MAX} or less");
                return Err(Error::corrupt(Corrupt::Snapshot).at(at).field("extra data", extra, expected));
            }
            let l1 =
                Span::checked(HostOffset::new(head.l1_table_offset.get()), u64::from(head.l1_size.get()) * 8);
            let is_fitting = |l1: &HostSpan| {
                l1.len_bytes() <= L1_BYTES_MAX
                    && l1.end().get() <= file.len_bytes()
                    && l1.start().get().is_multiple_of(header.cluster_bytes())
            };
            l1_tables.push(l1.filter(is_fitting).ok_or_else(|| past_the_end(at))?);
            let names = u64::from(head.id_size.get()) + u64::from(head.name_size.get());
            let len_bytes = size_of::<SnapshotHead>() as u64 + u64::from(extra) + names;
            at = at.checked_add(len_bytes.next_multiple_of(8)).ok_or_else(|| past_the_end(at))?;
        }
        let table = match header.snapshot_count {
            0 => Span::new(HostOffset::ZERO, 0),
            _ => Span::between(header.snapshots_at, at),
        };
        Ok(Self { table, l1_tables, rest })
    }

    /// Where these tables lie, each in clusters of its own.
    pub(super) fn places(&self) -> impl Iterator<Item = HostSpan> + '_ {
        let all = std::iter::once(self.table).chain(self.l1_tables.iter().copied());
        all.filter(|span| !span.is_empty())
    }

    /// Calls `each` with everything that they refer to within the file, and how often.
    pub(super) fn each_reference(
        &self,
        header: &Header,
        file: &dyn HostFile,
        mut each: impl FnMut(Reference, u64) -> Result<()>,
    ) -> Result<()> {
        let cluster_bytes = header.cluster_bytes();
        for (table, count) in self.l2_tables(header, file)? {
            let at = HostOffset::new(table);
            each(Reference::Table(Span::new(at, cluster_bytes)), count)?;
            let there = file.len_bytes().saturating_sub(table).min(cluster_bytes);
            let step = usize::try_from(header.l2_entry_bytes() / 8).expect("1 or 2");
            for piece in Span::new(at, there).split(PIECE_BYTES) {
                let bytes = read_vec(file, piece.start(), piece.len_bytes(), "QCOW2 L2 table")?;
                for word in bytes.as_chunks().0.iter().step_by(step).map(|word| u64::from_be_bytes(*word)) {
                    if let Some(span) = data(header, file, at, word)? {
                        each(Reference::Data(span), count)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Where the L2 tables lie, with how many entries lead to each.
    fn l2_tables(&self, header: &Header, file: &dyn HostFile) -> Result<BTreeMap<u64, u64>> {
        let mut found = BTreeMap::new();
        for l1 in self.l1_tables.iter().chain([&self.rest]) {
            for piece in l1.split(PIECE_BYTES) {
                let bytes = read_vec(file, piece.start(), piece.len_bytes(), "QCOW2 L1 table")?;
                for word in bytes.as_chunks().0.iter().map(|word| u64::from_be_bytes(*word)) {
                    let table = word & entry::OFFSET;
                    if table == 0 {
                        continue;
                    }
                    check_cluster(header, file, piece.start(), table)?;
                    *found.entry(table).or_insert(0) += 1;
                    if found.len() > TABLE_COUNT_MAX {
                        return Err(Error::unsupported("change of a QCOW2 image with so many snapshots")
                            .hint("delete some of them, or copy it to a new image"));
                    }
                }
            }
        }
        Ok(found)
    }
}

/// The clusters of data that an L2 entry of the table at `table` refers to.
fn data(header: &Header, file: &dyn HostFile, table: HostOffset, word: u64) -> Result<Option<HostSpan>> {
    if header.data_file.is_some() {
        return Ok(None);
    }
    if word & entry::COMPRESSED != 0 {
        let bits = compressed_offset_bits(header.cluster_bits);
        let at = word & ((1 << bits) - 1);
        let sectors = ((word & !entry::COMPRESSED & !entry::COPIED) >> bits) + 1;
        let end = (at / SECTOR_BYTES + sectors).saturating_mul(SECTOR_BYTES).min(file.len_bytes());
        return match at < end {
            true => Ok(Some(Span::between(HostOffset::new(at), HostOffset::new(end)))),
            false => Err(past_the_end(table)),
        };
    }
    let at = word & entry::OFFSET;
    if at == 0 {
        return Ok(None);
    }
    check_cluster(header, file, table, at)?;
    Ok(Some(Span::new(HostOffset::new(at), header.cluster_bytes())))
}

fn check_cluster(header: &Header, file: &dyn HostFile, table: HostOffset, at: u64) -> Result<()> {
    if at.is_multiple_of(header.cluster_bytes()) && at < file.len_bytes() {
        return Ok(());
    }
    Err(Error::refused("an entry of its tables leads to no cluster of the file")
        .at(table)
        .field("entry", FieldValue::hex(at), "a whole cluster within the file")
        .hint(REPAIR))
}
