//! Partition tables and logical volumes: what lies where on the virtual disk.
//!
//! Fail closed: a table that contradicts itself or the disk is no table, with the reason told, and the disk is
//! then one piece that nothing is known of.
//!
//! Invariants: partitions listed are disjoint, on the disk, and apart from the table's own sectors. A GPT counts
//! only behind an MBR that announces it, as for the systems that boot from it.
//!
//! The volumes of LVM2 are in [`lvm`].
//!
//! Absent on purpose: writing; tables inside partitions (BSD disklabels); the volumes of dynamic disks.

use block::{ReadAt, Result, read_struct};
use extent::{Offset, Virtual, VirtualSpan};

mod gpt;
mod kinds;
mod layout;
pub mod lvm;
mod mbr;

use layout::BootRecord;

/// Which kind of table a disk has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheme {
    /// None: the whole disk is one volume, or nothing.
    None,
    /// MBR, with or without an extended partition.
    Mbr,
    /// GPT.
    Gpt,
}

/// One partition.
#[derive(Clone, Debug)]
pub struct Partition {
    /// Its number as Linux counts: GPT slot + 1; MBR 1 to 4, logical ones from 5.
    pub number: u32,
    /// Where it lies.
    pub span: VirtualSpan,
    /// The type in words where known (`Linux swap`, `EFI system`), else its code.
    pub kind: String,
    /// Whether its type says that it is a part of something else: an array, a volume manager, encryption.
    pub is_member: bool,
    /// GPT's partition name. Untrusted text.
    pub name: Option<String>,
}

/// What the first sectors say.
#[derive(Clone, Debug)]
pub struct Table {
    /// The kind of table.
    pub scheme: Scheme,
    /// The sector size in which the table counts.
    pub sector_bytes: u32,
    /// The disk's GUID or MBR signature.
    pub id: Option<String>,
    /// The partitions by start: not empty, disjoint, on the disk. An extended partition itself is not listed.
    pub partitions: Vec<Partition>,
    /// Why the table, or a part of it, is not to be relied on: the whole disk is then copied. No partitions
    /// are listed in that case.
    pub doubt: Option<String>,
    /// What is odd but harmless, such as a damaged backup GPT.
    pub warnings: Vec<String>,
}

/// Reads the partition table. `sector_bytes` is what the container says; a GPT written for the other size
/// (512 or 4096) is found too, and an MBR that seems to be is a doubt.
pub fn read(disk: &dyn ReadAt<Virtual>, sector_bytes: u32) -> Result<Table> {
    let sector_bytes = if sector_bytes == 4096 { 4096 } else { 512 };
    if disk.len_bytes() < u64::from(sector_bytes) {
        return Ok(Table::empty(Scheme::None, sector_bytes));
    }
    let record: BootRecord = read_struct(disk, Offset::ZERO, "first sector")?;
    match mbr::classify(&record, disk.len_bytes(), sector_bytes) {
        mbr::First::Other => Ok(Table::empty(Scheme::None, sector_bytes)),
        mbr::First::Both(filesystem) => Ok(Table::doubtful(
            Scheme::None,
            sector_bytes,
            format!("the first sector is both a boot sector of {filesystem} and a partition table"),
        )),
        mbr::First::Protective => read_gpt(disk, &record, sector_bytes),
        mbr::First::Mbr => read_mbr(disk, &record, sector_bytes),
    }
}

fn read_mbr(disk: &dyn ReadAt<Virtual>, record: &BootRecord, sector_bytes: u32) -> Result<Table> {
    let table = mbr::read(disk, record, sector_bytes)?;
    // Systems disagree about which of the two counts.
    if table.doubt.is_none() && gpt::has_signature(disk, sector_bytes)? {
        let reason = "there is a GPT, but the MBR has partitions of its own and does not announce it";
        return Ok(Table::doubtful(Scheme::Mbr, sector_bytes, reason.into()));
    }
    Ok(table)
}

fn read_gpt(disk: &dyn ReadAt<Virtual>, record: &BootRecord, sector_bytes: u32) -> Result<Table> {
    let mut table = gpt::read(disk, [sector_bytes, other_size(sector_bytes)])?;
    if table.doubt.is_some() {
        return Ok(table);
    }
    let beside = mbr::beside_protective(record, table.sector_bytes);
    let is_same = |span: &VirtualSpan| table.partitions.iter().any(|partition| partition.span == *span);
    match beside {
        Ok(spans) if spans.is_empty() => {}
        Ok(spans) if spans.iter().all(is_same) => {
            table.warnings.push("the MBR lists some of the GPT's partitions too (hybrid MBR)".into());
        }
        _ => {
            let reason = "the MBR beside the GPT lists other partitions than the GPT (hybrid MBR)";
            return Ok(Table { doubt: Some(reason.into()), partitions: Vec::new(), ..table });
        }
    }
    Ok(table)
}

/// The sector size that is not `sector_bytes`.
fn other_size(sector_bytes: u32) -> u32 {
    if sector_bytes == 512 { 4096 } else { 512 }
}

impl Table {
    fn empty(scheme: Scheme, sector_bytes: u32) -> Self {
        let (id, doubt) = (None, None);
        Self { scheme, sector_bytes, id, partitions: Vec::new(), doubt, warnings: Vec::new() }
    }

    fn doubtful(scheme: Scheme, sector_bytes: u32, reason: String) -> Self {
        Self { doubt: Some(reason), ..Self::empty(scheme, sector_bytes) }
    }

    /// The table of `partitions`, unless one of them overlaps another or `own_spans`, the table's own sectors.
    fn of(
        scheme: Scheme,
        sector_bytes: u32,
        mut partitions: Vec<Partition>,
        own_spans: &[VirtualSpan],
    ) -> Self {
        partitions.sort_by_key(|partition| partition.span);
        for pair in partitions.windows(2) {
            if pair[0].span.intersect(&pair[1].span).is_some() {
                let reason = format!("partitions {} and {} overlap", pair[0].number, pair[1].number);
                return Self::doubtful(scheme, sector_bytes, reason);
            }
        }
        for own in own_spans {
            if let Some(over) = partitions.iter().find(|partition| partition.span.intersect(own).is_some()) {
                let reason = format!("partition {} lies over the partition table", over.number);
                return Self::doubtful(scheme, sector_bytes, reason);
            }
        }
        Self { partitions, ..Self::empty(scheme, sector_bytes) }
    }
}
