//! GPT: a header and an array of entries, each with a checksum, and a backup of both at the disk's end.

use block::{ReadAt, Result, read_struct, read_vec};
use extent::{Offset, Span, Virtual, VirtualSpan};
use zerocopy::FromBytes;

use crate::kinds::{GPT_LDM, gpt_is_member, gpt_kind, guid_text};
use crate::layout::{GPT_REVISION, GPT_SIGNATURE, GptEntry, GptHeader};
use crate::{Partition, Scheme, Table};

/// The most entries' bytes read: 256 times what every tool writes.
const ENTRIES_BYTES_MAX: u64 = 4 << 20;

/// A header and its entries, all checksums right.
struct Gpt {
    header: GptHeader,
    entries: Vec<u8>,
    sector_bytes: u32,
}

/// Finds the GPT that the protective MBR promises. Sector sizes are tried in the order given.
pub(crate) fn read(disk: &dyn ReadAt<Virtual>, sector_sizes: [u32; 2]) -> Result<Table> {
    let mut reasons = Vec::new();
    for sector_bytes in sector_sizes {
        match load(disk, sector_bytes, 1)? {
            Ok(primary) => {
                let warning = compare_backup(disk, &primary)?;
                return Ok(primary.table(disk, warning));
            }
            Err(reason) => reasons.push((sector_bytes, reason)),
        }
    }
    for (sector_bytes, reason) in &reasons {
        let Some(last_lba) = (disk.len_bytes() / u64::from(*sector_bytes)).checked_sub(1) else { continue };
        if let Ok(backup) = load(disk, *sector_bytes, last_lba)? {
            let warning = format!("the GPT is damaged ({reason}); its backup at the disk's end is used");
            return Ok(backup.table(disk, Some(warning)));
        }
    }
    let (sector_bytes, reason) = &reasons[0];
    Ok(Table::doubtful(
        Scheme::Gpt,
        *sector_bytes,
        format!("the MBR says that there is a GPT, but neither it ({reason}) nor its backup is valid"),
    ))
}

/// Whether there is a GPT's signature where its header would lie.
pub(crate) fn has_signature(disk: &dyn ReadAt<Virtual>, sector_bytes: u32) -> Result<bool> {
    let at = u64::from(sector_bytes);
    let mut signature = [0; 8];
    if at + signature.len() as u64 > disk.len_bytes() {
        return Ok(false);
    }
    disk.read_at(Offset::new(at), &mut signature)?;
    Ok(signature == GPT_SIGNATURE)
}

/// Reads the header at sector `lba` with its entries; the inner error says why they are not valid.
fn load(disk: &dyn ReadAt<Virtual>, sector_bytes: u32, lba: u64) -> Result<Result<Gpt, String>> {
    let unit = u64::from(sector_bytes);
    let Some(at) = lba.checked_mul(unit).filter(|at| at.saturating_add(unit) <= disk.len_bytes()) else {
        return Ok(Err("it would lie past the disk's end".into()));
    };
    let header: GptHeader = read_struct(disk, Offset::new(at), "GPT header")?;
    let sector = read_vec(disk, Offset::new(at), unit, "GPT header")?;
    if let Err(reason) = check_header(&header, &sector, lba) {
        return Ok(Err(reason));
    }
    let entries_at = match entries_place(&header, unit, disk.len_bytes()) {
        Ok(span) => span,
        Err(reason) => return Ok(Err(reason)),
    };
    let entries = read_vec(disk, entries_at.start(), entries_at.len_bytes(), "GPT entries")?;
    let found = crc32fast::hash(&entries);
    if found != header.entries_crc32.get() {
        let expected = header.entries_crc32.get();
        return Ok(Err(format!("checksum of the entries is {found:#010x}, expected {expected:#010x}")));
    }
    Ok(Ok(Gpt { header, entries, sector_bytes }))
}

fn check_header(header: &GptHeader, sector: &[u8], lba: u64) -> Result<(), String> {
    if header.signature != GPT_SIGNATURE {
        return Err("no signature".into());
    }
    let len_bytes = header.header_len_bytes.get() as usize;
    if len_bytes < size_of::<GptHeader>() || len_bytes > sector.len() {
        return Err(format!("header length is {len_bytes}, expected 92 to {}", sector.len()));
    }
    let mut covered = sector[..len_bytes].to_vec();
    covered[16..20].fill(0);
    let found = crc32fast::hash(&covered);
    if found != header.header_crc32.get() {
        let expected = header.header_crc32.get();
        return Err(format!("checksum of the header is {found:#010x}, expected {expected:#010x}"));
    }
    if header.revision.get() != GPT_REVISION {
        return Err(format!("revision is {:#x}, expected {GPT_REVISION:#x}", header.revision.get()));
    }
    if header.my_lba.get() != lba {
        return Err(format!("header says that it lies in sector {}, not {lba}", header.my_lba.get()));
    }
    Ok(())
}

/// Where the entries lie: on the disk, and of a size that is sound.
fn entries_place(header: &GptHeader, unit: u64, disk_bytes: u64) -> Result<VirtualSpan, String> {
    let entry_bytes = u64::from(header.entry_len_bytes.get());
    if !entry_bytes.is_power_of_two() || !(128..=4096).contains(&entry_bytes) {
        return Err(format!("entry length is {entry_bytes}, expected 128 times a power of two"));
    }
    let len_bytes = u64::from(header.entry_count.get()) * entry_bytes;
    if len_bytes > ENTRIES_BYTES_MAX {
        return Err(format!("entries take {len_bytes} bytes, expected at most {ENTRIES_BYTES_MAX}"));
    }
    let start = header.entries_lba.get().checked_mul(unit).filter(|start| *start >= unit);
    start
        .and_then(|start| Span::checked(Offset::new(start), len_bytes))
        .filter(|span| span.end().get() <= disk_bytes)
        .ok_or_else(|| format!("entries at sector {} lie past the disk's end", header.entries_lba.get()))
}

/// What is odd about the backup of a valid GPT.
fn compare_backup(disk: &dyn ReadAt<Virtual>, primary: &Gpt) -> Result<Option<String>> {
    let lba = primary.header.alternate_lba.get();
    let last_lba = disk.len_bytes() / u64::from(primary.sector_bytes) - 1;
    let place = match lba.cmp(&last_lba) {
        std::cmp::Ordering::Less => " (which is not at the disk's end: the disk has grown)",
        std::cmp::Ordering::Equal => "",
        std::cmp::Ordering::Greater => return Ok(Some("the GPT's backup lies past the disk's end".into())),
    };
    Ok(match load(disk, primary.sector_bytes, lba)? {
        Err(reason) => Some(format!("the GPT's backup{place} is damaged: {reason}")),
        Ok(backup)
            if backup.entries != primary.entries || backup.header.disk_guid != primary.header.disk_guid =>
        {
            Some(format!("the GPT's backup{place} differs from the GPT"))
        }
        Ok(_) if !place.is_empty() => {
            Some("the GPT's backup is not at the disk's end: the disk has grown".into())
        }
        Ok(_) => None,
    })
}

impl Gpt {
    /// The table that the entries make, or the doubt.
    fn table(&self, disk: &dyn ReadAt<Virtual>, warning: Option<String>) -> Table {
        let mut table = match self.partitions(disk.len_bytes()) {
            Ok(partitions) => Table::of(Scheme::Gpt, self.sector_bytes, partitions, &self.own_spans()),
            Err(reason) => Table::doubtful(Scheme::Gpt, self.sector_bytes, reason),
        };
        table.id = Some(guid_text(self.header.disk_guid));
        table.warnings.extend(warning);
        table
    }

    fn partitions(&self, disk_bytes: u64) -> Result<Vec<Partition>, String> {
        let entry_bytes = self.header.entry_len_bytes.get() as usize;
        let mut partitions = Vec::new();
        for (number, bytes) in (1u32..).zip(self.entries.chunks_exact(entry_bytes)) {
            let (entry, _) = GptEntry::read_from_prefix(bytes).expect("an entry is at least this long");
            if entry.kind_guid == [0; 16] {
                continue;
            }
            if GPT_LDM.contains(&guid_text(entry.kind_guid).as_str()) {
                return Err(format!(
                    "partition {number} belongs to a Windows dynamic disk (LDM), whose volumes are not known"
                ));
            }
            let span = self
                .span(&entry, disk_bytes)
                .ok_or_else(|| format!("GPT partition {number} lies outside the disk"))?;
            partitions.push(Partition {
                number,
                span,
                kind: gpt_kind(entry.kind_guid),
                is_member: gpt_is_member(entry.kind_guid),
                name: name_text(&entry),
            });
        }
        Ok(partitions)
    }

    fn span(&self, entry: &GptEntry, disk_bytes: u64) -> Option<VirtualSpan> {
        let unit = u64::from(self.sector_bytes);
        let start = entry.first_lba.get().checked_mul(unit)?;
        let end = entry.last_lba.get().checked_add(1)?.checked_mul(unit)?;
        (start < end && end <= disk_bytes).then(|| Span::between(Offset::new(start), Offset::new(end)))
    }

    /// What the table itself occupies, where no partition may lie: up to the header, the entries.
    fn own_spans(&self) -> Vec<VirtualSpan> {
        let unit = u64::from(self.sector_bytes);
        let entries = Span::checked(
            Offset::new(self.header.entries_lba.get().saturating_mul(unit)),
            self.entries.len() as u64,
        );
        std::iter::once(Span::from_zero(2 * unit)).chain(entries).collect()
    }
}

fn name_text(entry: &GptEntry) -> Option<String> {
    let units: Vec<u16> = entry.name.iter().map(|unit| unit.get()).take_while(|unit| *unit != 0).collect();
    (!units.is_empty()).then(|| String::from_utf16_lossy(&units))
}
