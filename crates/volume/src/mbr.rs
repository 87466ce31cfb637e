//! MBR: four primary partitions, one of which may be a chain of logical ones; and what only looks like one.

use block::{ReadAt, Result, read_struct};
use extent::{Offset, Span, Virtual, VirtualSpan};
use zerocopy::FromBytes;

use crate::kinds::{mbr_is_member, mbr_kind};
use crate::layout::{BOOT_SIGNATURE, BootRecord, KIND_GPT_PROTECTIVE, KIND_LDM, KINDS_EXTENDED, MbrEntry};
use crate::{Partition, Scheme, Table};

/// The most logical partitions followed. Linux follows 100.
const LOGICAL_COUNT_MAX: u32 = 256;

/// What the first sector is.
pub(crate) enum First {
    /// No partition table.
    Other,
    /// An MBR that protects a GPT.
    Protective,
    /// An MBR with partitions.
    Mbr,
    /// Both a file system's boot sector and a table that holds together.
    Both(&'static str),
}

impl MbrEntry {
    fn is_unused(&self) -> bool {
        self.kind == 0 && self.sector_count.get() == 0
    }

    fn is_extended(&self) -> bool {
        KINDS_EXTENDED.contains(&self.kind)
    }

    /// Where it lies if its first sector counts from byte `base`.
    fn span(&self, base: u64, sector_bytes: u32) -> Option<VirtualSpan> {
        let unit = u64::from(sector_bytes);
        let start = base.checked_add(u64::from(self.first_sector.get()) * unit)?;
        Span::checked(Offset::new(start), u64::from(self.sector_count.get()) * unit)
    }
}

/// Tells a partition table from what merely ends in the same two bytes.
pub(crate) fn classify(record: &BootRecord, disk_bytes: u64, sector_bytes: u32) -> First {
    if record.signature.get() != BOOT_SIGNATURE {
        return First::Other;
    }
    // Every table has these; code and text do not (Linux msdos.c tests the same).
    let is_table = record.entries.iter().all(|entry| matches!(entry.status, 0 | 0x80));
    let is_empty = record.entries.iter().all(MbrEntry::is_unused);
    match boot_sector_of(record) {
        _ if !is_table || is_empty => First::Other,
        Some(filesystem) if holds_together(record, disk_bytes, sector_bytes) => First::Both(filesystem),
        Some(_) => First::Other,
        None if record.entries.iter().any(|entry| entry.kind == KIND_GPT_PROTECTIVE) => First::Protective,
        None => First::Mbr,
    }
}

/// Whether every entry is unused or lies on the disk after the first sector.
fn holds_together(record: &BootRecord, disk_bytes: u64, sector_bytes: u32) -> bool {
    record.entries.iter().filter(|entry| !entry.is_unused()).all(|entry| {
        entry.kind != 0
            && entry.first_sector.get() > 0
            && entry
                .span(0, sector_bytes)
                .is_some_and(|span| !span.is_empty() && span.end().get() <= disk_bytes)
    })
}

/// The file system whose boot sector this is, by its name and, for FAT, its whole description.
fn boot_sector_of(record: &BootRecord) -> Option<&'static str> {
    let code = &record.code;
    match &code[3..11] {
        b"NTFS    " => return Some("NTFS"),
        b"EXFAT   " => return Some("exFAT"),
        b"-FVE-FS-" => return Some("BitLocker"),
        b"ReFS\0\0\0\0" => return Some("ReFS"),
        _ => {}
    }
    let jumps = matches!(code[0], 0xeb | 0xe9);
    let sector_bytes = u16::from_le_bytes([code[11], code[12]]);
    let reserved = u16::from_le_bytes([code[14], code[15]]);
    // The BIOS parameter block (Microsoft's FAT specification 1.03, page 9).
    let is_described = sector_bytes.is_power_of_two()
        && (512..=4096).contains(&sector_bytes)
        && code[13].is_power_of_two()
        && reserved > 0
        && matches!(code[16], 1 | 2)
        && (code[21] >= 0xf8 || code[21] == 0xf0);
    let is_named = code[54..].starts_with(b"FAT") || code[82..].starts_with(b"FAT");
    (jumps && is_described && is_named).then_some("FAT")
}

/// The partitions of a hybrid MBR, those beside the protective one; an error is a doubt.
pub(crate) fn beside_protective(record: &BootRecord, sector_bytes: u32) -> Result<Vec<VirtualSpan>, String> {
    let mut spans = Vec::new();
    for entry in record.entries.iter().filter(|entry| !entry.is_unused()) {
        if entry.kind == KIND_GPT_PROTECTIVE {
            continue;
        }
        spans.push(entry.span(0, sector_bytes).ok_or("a partition of the MBR beside the GPT has no end")?);
    }
    Ok(spans)
}

/// Reads the MBR's partitions with the logical ones.
pub(crate) fn read(disk: &dyn ReadAt<Virtual>, record: &BootRecord, sector_bytes: u32) -> Result<Table> {
    let mut walk = Walk { disk, sector_bytes, partitions: Vec::new(), own_spans: Vec::new() };
    walk.own_spans.push(Span::from_zero(u64::from(sector_bytes)));
    let mut table = match walk.primaries(record)? {
        Err(reason) => Table::doubtful(Scheme::Mbr, sector_bytes, reason),
        Ok(()) => Table::of(Scheme::Mbr, sector_bytes, walk.partitions, &walk.own_spans),
    };
    if table.doubt.is_none() && counts_in_other_sectors(disk, &table)? {
        let reason =
            format!("the partitions begin with a file system only if sectors are not {sector_bytes} bytes");
        table = Table::doubtful(Scheme::Mbr, sector_bytes, reason);
    }
    let signature = record.disk_signature.get();
    table.id = (signature != 0).then(|| format!("0x{signature:08x}"));
    Ok(table)
}

struct Walk<'a> {
    disk: &'a dyn ReadAt<Virtual>,
    sector_bytes: u32,
    partitions: Vec<Partition>,
    /// Where the records themselves lie.
    own_spans: Vec<VirtualSpan>,
}

/// The inner error is a doubt.
type Doubtful = Result<Result<(), String>>;

impl Walk<'_> {
    fn primaries(&mut self, record: &BootRecord) -> Doubtful {
        let mut extended = None;
        for (number, entry) in (1..).zip(&record.entries) {
            if entry.is_unused() {
                continue;
            }
            let span = match self.span_on_disk(entry, 0, number) {
                Ok(span) => span,
                Err(reason) => return Ok(Err(reason)),
            };
            if !entry.is_extended() {
                self.push(number, entry, span);
            } else if extended.replace(span).is_some() {
                return Ok(Err("the MBR has two extended partitions".into()));
            }
        }
        let Some(extended) = extended else { return Ok(Ok(())) };
        if let Some(other) = self.partitions.iter().find(|other| other.span.intersect(&extended).is_some()) {
            return Ok(Err(format!("partition {} overlaps the extended partition", other.number)));
        }
        self.logicals(extended)
    }

    /// Follows the chain of boot records in the extended partition.
    fn logicals(&mut self, extended: VirtualSpan) -> Doubtful {
        let mut number = 5;
        let mut at = Some(extended.start());
        while let Some(record_at) = at {
            if number >= 5 + LOGICAL_COUNT_MAX || self.own_spans.iter().any(|span| span.start() == record_at)
            {
                return Ok(Err("the chain of logical partitions runs in a circle or is too long".into()));
            }
            let record: BootRecord = read_struct(self.disk, record_at, "extended boot record")?;
            self.own_spans.push(Span::new(record_at, u64::from(self.sector_bytes)));
            let (data, link) = match parts_of(&record, number) {
                Ok(parts) => parts,
                Err(reason) => return Ok(Err(reason)),
            };
            if let Some(entry) = data {
                match self.span_on_disk(&entry, record_at.get(), number) {
                    Ok(span) if extended.covers(&span) => self.push(number, &entry, span),
                    Ok(_) => {
                        return Ok(Err(format!("partition {number} reaches out of the extended partition")));
                    }
                    Err(reason) => return Ok(Err(reason)),
                }
                number += 1;
            }
            at = match link.map(|link| link.span(extended.start().get(), self.sector_bytes)) {
                None => None,
                Some(Some(span)) if extended.contains(span.start()) => Some(span.start()),
                Some(_) => {
                    return Ok(Err("the chain of logical partitions leaves the extended partition".into()));
                }
            };
        }
        Ok(Ok(()))
    }

    fn span_on_disk(&self, entry: &MbrEntry, base: u64, number: u32) -> Result<VirtualSpan, String> {
        if entry.kind == KIND_LDM {
            return Err(format!(
                "partition {number} belongs to a Windows dynamic disk (LDM), whose volumes are not known"
            ));
        }
        if entry.kind == 0 || entry.sector_count.get() == 0 {
            return Err(format!("partition {number} is half in use: it has a type or a size, not both"));
        }
        entry
            .span(base, self.sector_bytes)
            .filter(|span| span.end().get() <= self.disk.len_bytes())
            .ok_or_else(|| format!("partition {number} lies outside the disk"))
    }

    fn push(&mut self, number: u32, entry: &MbrEntry, span: VirtualSpan) {
        let (kind, is_member) = (mbr_kind(entry.kind), mbr_is_member(entry.kind));
        self.partitions.push(Partition { number, span, kind, is_member, name: None });
    }
}

/// The logical partition and the link of an extended boot record.
fn parts_of(record: &BootRecord, number: u32) -> Result<(Option<MbrEntry>, Option<MbrEntry>), String> {
    let broken = |what: &str| Err(format!("the record of logical partition {number} {what}"));
    if record.signature.get() != BOOT_SIGNATURE {
        return broken("has no signature");
    }
    if record.entries.iter().any(|entry| !matches!(entry.status, 0 | 0x80)) {
        return broken("is no partition table");
    }
    let (mut data, mut link) = (None, None);
    for entry in record.entries.iter().filter(|entry| entry.sector_count.get() != 0 || entry.kind != 0) {
        let place = if entry.is_extended() { &mut link } else { &mut data };
        if place.replace(*entry).is_some() {
            return broken("has more than a partition and a link");
        }
    }
    Ok((data, link))
}

/// An MBR does not say in which sectors it counts. Where nothing is found in those of the container, but
/// something in the others, it is not known which are meant.
fn counts_in_other_sectors(disk: &dyn ReadAt<Virtual>, table: &Table) -> Result<bool> {
    let (own, other) = (u64::from(table.sector_bytes), u64::from(crate::other_size(table.sector_bytes)));
    let mut elsewhere = false;
    for partition in &table.partitions {
        let start = partition.span.start().get();
        if begins_filesystem(disk, start)? {
            return Ok(false);
        }
        elsewhere |= match (start / own).checked_mul(other) {
            Some(start) => begins_filesystem(disk, start)?,
            None => false,
        };
    }
    Ok(elsewhere)
}

fn begins_filesystem(disk: &dyn ReadAt<Virtual>, at: u64) -> Result<bool> {
    let mut bytes = [0; 2048];
    if at.saturating_add(bytes.len() as u64) > disk.len_bytes() {
        return Ok(false);
    }
    disk.read_at(Offset::new(at), &mut bytes)?;
    let (record, _) = BootRecord::read_from_prefix(&bytes).expect("a record is shorter");
    // A named boot sector, an ext superblock's magic number, an XFS superblock.
    Ok(boot_sector_of(&record).is_some() || bytes[1080..1082] == [0x53, 0xef] || bytes.starts_with(b"XFSB"))
}
