//! From raw structures to validated ones: headers, region table, metadata.

use block::{Error, FieldValue, HostFile, Result, read_struct, read_vec};
use extent::{HostOffset, HostSpan, Span};
use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use super::corrupt::Corrupt;
use super::layout::{
    FILE_IDENTIFIER_AT, FILE_SIGNATURE, FileIdentifier, FileParameters, Guid, HEADER_SIGNATURE,
    HEADER_SLOT_BYTES, HEADERS_AT, Header, ITEM_FILE_PARAMETERS, ITEM_LOGICAL_SECTOR_SIZE,
    ITEM_PARENT_LOCATOR, ITEM_PHYSICAL_SECTOR_SIZE, ITEM_VIRTUAL_DISK_ID, ITEM_VIRTUAL_DISK_SIZE,
    LOG_VERSION, METADATA_IS_REQUIRED, METADATA_IS_USER, METADATA_SIGNATURE, MIB, MetadataTableEntry,
    MetadataTableHeader, PARAMETER_HAS_PARENT, PARAMETER_LEAVE_BLOCKS_ALLOCATED, REGION_BAT, REGION_METADATA,
    REGION_REQUIRED, REGION_SIGNATURE, REGION_TABLES_AT, RegionTableEntry, RegionTableHeader,
    TABLE_ENTRY_COUNT_MAX, VERSION,
};
use super::log::LogPlace;

/// The largest virtual disk (2.6.2.2): 64 TiB.
pub(super) const VIRTUAL_BYTES_MAX: u64 = 64 << 40;
/// Payload block sizes (2.6.2.1).
pub(super) const BLOCK_BYTES_MIN: u64 = MIB;
pub(super) const BLOCK_BYTES_MAX: u64 = 256 * MIB;
/// The longest metadata item (2.6.1.2).
const ITEM_BYTES_MAX: u64 = MIB;

impl Guid {
    pub(super) fn uuid(self) -> Uuid {
        Uuid::from_bytes_le(self.0)
    }

    pub(super) fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid.to_bytes_le())
    }
}

/// CRC-32C of a structure whose checksum field, at bytes 4 to 8, counts as zero.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    let (before, rest) = bytes.split_at(4);
    let (_, after) = rest.split_at(4);
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(before), &[0; 4]), after)
}

/// The creator that the file type identifier names; `None` if the file is no VHDX.
pub(super) fn read_creator(file: &dyn HostFile) -> Result<Option<String>> {
    let at = HostOffset::new(FILE_IDENTIFIER_AT);
    let mut signature = [0; FILE_SIGNATURE.len()];
    if file.len_bytes() < signature.len() as u64 {
        return Ok(None);
    }
    file.read_at(at, &mut signature)?;
    if signature != FILE_SIGNATURE {
        return Ok(None);
    }
    let identifier: FileIdentifier = read_struct(file, at, "VHDX file identifier")?;
    Ok(Some(crate::vhd::names::from_utf16(identifier.creator.iter().map(|unit| unit.get()))))
}

/// What counts of the two headers.
#[derive(Debug)]
pub(super) struct Headers {
    pub(super) data_write_id: Uuid,
    /// The pending log.
    pub(super) log: Option<LogPlace>,
    /// Where the log lies, pending or not, if the header says so sensibly.
    pub(super) log_span: Option<HostSpan>,
    /// What is wrong with the other header.
    pub(super) note: Option<String>,
    /// The header itself, and whether it is the first.
    pub(super) raw: Header,
    pub(super) is_first: bool,
}

/// Reads both headers and takes the valid one with the higher sequence number.
pub(super) fn read_headers(file: &dyn HostFile) -> Result<Headers> {
    let (header, index, note) = choose_header(file)?;
    check_header(file, &header, HostOffset::new(HEADERS_AT[index]), note)
}

/// The header that counts, and which of the two it is.
pub(super) fn current_header(file: &dyn HostFile) -> Result<(Header, usize)> {
    choose_header(file).map(|(header, index, _)| (header, index))
}

/// The header that counts, which of the two it is, and what is wrong with the other.
fn choose_header(file: &dyn HostFile) -> Result<(Header, usize, Option<String>)> {
    let [first, second] = HEADERS_AT.map(|at| read_header(file, HostOffset::new(at)));
    let sequence = |header: &Header| header.sequence_number.get();
    let damaged =
        |which, error: Error| Some(format!("the {which} header is damaged and was not used: {error}"));
    match (first, second) {
        (Ok(first), Ok(second)) if sequence(&first) > sequence(&second) => Ok((first, 0, None)),
        (Ok(first), Ok(second)) if sequence(&first) == sequence(&second) => {
            if first.as_bytes() != second.as_bytes() {
                return Err(Error::corrupt(Corrupt::HeadersDiffer).at(HostOffset::new(HEADERS_AT[1])));
            }
            Ok((first, 0, None))
        }
        (Ok(_), Ok(second)) => Ok((second, 1, None)),
        (Ok(first), Err(error)) => Ok((first, 0, damaged("second", error))),
        (Err(error), Ok(second)) => Ok((second, 1, damaged("first", error))),
        (Err(error), Err(_)) => Err(error),
    }
}

fn read_header(file: &dyn HostFile, at: HostOffset) -> Result<Header> {
    let header: Header = read_struct(file, at, "VHDX header")?;
    if header.signature != HEADER_SIGNATURE {
        return Err(Error::corrupt(Corrupt::Header).at(at).field(
            "signature",
            header.signature.escape_ascii(),
            "head",
        ));
    }
    let sum = checksum(header.as_bytes());
    if sum != header.checksum.get() {
        let found = header.checksum.get();
        return Err(Error::corrupt(Corrupt::HeaderChecksum { found, expected: sum }).at(at));
    }
    Ok(header)
}

fn check_header(
    file: &dyn HostFile,
    header: &Header,
    at: HostOffset,
    note: Option<String>,
) -> Result<Headers> {
    let unsupported =
        |name, found: u16, known| Err(Error::unsupported("VHDX header").at(at).field(name, found, known));
    if header.version.get() != VERSION {
        return unsupported("version", header.version.get(), VERSION);
    }
    let place = Span::checked(HostOffset::new(header.log_offset.get()), u64::from(header.log_length.get()));
    let log_span = place.filter(|span| {
        !span.is_empty()
            && span.start().get() >= MIB
            && span.start().get().is_multiple_of(MIB)
            && span.len_bytes().is_multiple_of(MIB)
            && span.end().get() <= file.len_bytes()
    });
    let is_pending = !header.log_guid.uuid().is_nil();
    if is_pending && header.log_version.get() != LOG_VERSION {
        return unsupported("log version", header.log_version.get(), LOG_VERSION);
    }
    if is_pending && log_span.is_none() {
        return Err(Error::corrupt(Corrupt::Header).at(at).field(
            "log",
            format!("{:#x} bytes at {:#x}", header.log_length.get(), header.log_offset.get()),
            format!("multiples of 1 MiB within the file's {:#x}", file.len_bytes()),
        ));
    }
    let log = log_span.filter(|_| is_pending).map(|span| LogPlace { guid: header.log_guid, span });
    let (raw, is_first) = (*header, at.get() == HEADERS_AT[0]);
    Ok(Headers { data_write_id: header.data_write_guid.uuid(), log, log_span, note, raw, is_first })
}

/// Where the regions lie.
#[derive(Clone, Debug)]
pub(super) struct Regions {
    pub(super) bat: HostSpan,
    pub(super) metadata: HostSpan,
    /// All regions, those of no meaning to us as well: no block may lie in one.
    pub(super) all: Vec<HostSpan>,
    /// What is wrong with the first copy of the table.
    pub(super) note: Option<String>,
}

/// Reads the region table, from its second copy if the first is damaged.
pub(super) fn read_regions(file: &dyn HostFile) -> Result<Regions> {
    let [first, second] = REGION_TABLES_AT.map(HostOffset::new);
    match read_region_table(file, first) {
        Ok(table) => parse_regions(file, &table, first, None),
        Err(error) => match read_region_table(file, second) {
            Ok(table) => {
                let note = format!("the first region table is damaged and was not used: {error}");
                parse_regions(file, &table, second, Some(note))
            }
            Err(_) => Err(error),
        },
    }
}

/// The table's 64 KiB, its checksum right.
fn read_region_table(file: &dyn HostFile, at: HostOffset) -> Result<Vec<u8>> {
    let bytes = read_vec(file, at, HEADER_SLOT_BYTES, "VHDX region table")?;
    let (header, _) = RegionTableHeader::read_from_prefix(&bytes).expect("64 KiB hold the header");
    let corrupt = || Error::corrupt(Corrupt::RegionTable).at(at);
    if header.signature != REGION_SIGNATURE {
        return Err(corrupt().field("signature", header.signature.escape_ascii(), "regi"));
    }
    let sum = checksum(&bytes);
    if sum != header.checksum.get() {
        let found = header.checksum.get();
        return Err(Error::corrupt(Corrupt::RegionTableChecksum { found, expected: sum }).at(at));
    }
    if header.entry_count.get() > TABLE_ENTRY_COUNT_MAX {
        let expected = format!("at most {TABLE_ENTRY_COUNT_MAX}");
        return Err(corrupt().field("entry count", header.entry_count.get(), expected));
    }
    Ok(bytes)
}

/// The first `count` structs after a struct `H` in `bytes`, with their offsets.
fn entries<H, E: FromBytes>(bytes: &[u8], count: u32) -> impl Iterator<Item = (u64, E)> + '_ {
    let bodies = bytes.get(size_of::<H>()..).unwrap_or_default().chunks_exact(size_of::<E>());
    let starts = (size_of::<H>() as u64..).step_by(size_of::<E>());
    let parse = |body: &[u8]| E::read_from_bytes(body).expect("exactly its size");
    starts.zip(bodies.map(parse)).take(count as usize)
}

fn parse_regions(file: &dyn HostFile, table: &[u8], at: HostOffset, note: Option<String>) -> Result<Regions> {
    let (header, _) = RegionTableHeader::read_from_prefix(table).expect("64 KiB hold the header");
    let (mut bat, mut metadata) = (None, None);
    let mut all = Vec::new();
    for (offset, entry) in entries::<RegionTableHeader, RegionTableEntry>(table, header.entry_count.get()) {
        let entry_at = at.plus(offset);
        let span = region_span(file, &entry, entry_at)?;
        let slot = match entry.guid.uuid() {
            REGION_BAT => &mut bat,
            REGION_METADATA => &mut metadata,
            other if entry.flags.get() & REGION_REQUIRED != 0 => {
                let error = Error::unsupported("VHDX region that must be known").at(entry_at);
                return Err(error.field("GUID", other.to_string(), "that of the BAT or the metadata"));
            }
            _ => &mut None,
        };
        if slot.replace(span).is_some() {
            return Err(Error::corrupt(Corrupt::Region).at(entry_at).field(
                "GUID",
                entry.guid.uuid().to_string(),
                "listed once",
            ));
        }
        all.push(span);
    }
    check_apart(&all, at)?;
    let missing = |name| Error::corrupt(Corrupt::NoRegion { name }).at(at);
    let bat = bat.ok_or_else(|| missing("BAT"))?;
    let metadata = metadata.ok_or_else(|| missing("metadata"))?;
    Ok(Regions { bat, metadata, all, note })
}

fn region_span(file: &dyn HostFile, entry: &RegionTableEntry, at: HostOffset) -> Result<HostSpan> {
    let (offset, len) = (entry.file_offset.get(), u64::from(entry.length.get()));
    let span = Span::checked(HostOffset::new(offset), len);
    let is_right = |span: &HostSpan| {
        !span.is_empty()
            && offset >= MIB
            && offset.is_multiple_of(MIB)
            && len.is_multiple_of(MIB)
            && span.end().get() <= file.len_bytes()
    };
    span.filter(is_right).ok_or_else(|| {
        Error::corrupt(Corrupt::Region).at(at).field(
            "place",
            format!("{len:#x} bytes at {offset:#x}"),
            format!("multiples of 1 MiB within the file's {:#x}", file.len_bytes()),
        )
    })
}

fn check_apart(spans: &[HostSpan], at: HostOffset) -> Result<()> {
    let mut sorted = spans.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0].intersect(&pair[1]).is_some()) {
        Some(pair) => {
            let overlap = Corrupt::RegionsOverlap { place: pair[1], other: pair[0] };
            Err(Error::corrupt(overlap).at(at))
        }
        None => Ok(()),
    }
}

/// What the metadata say of the disk.
#[derive(Clone, Debug)]
pub(super) struct Metadata {
    pub(super) block_bytes: u64,
    pub(super) leaves_blocks_allocated: bool,
    pub(super) has_parent: bool,
    pub(super) virtual_bytes: u64,
    pub(super) logical_sector_bytes: u32,
    pub(super) physical_sector_bytes: u32,
    pub(super) virtual_disk_id: Uuid,
    /// The whole parent locator item, and where it lies.
    pub(super) parent_locator: Option<(HostOffset, Vec<u8>)>,
}

impl Metadata {
    pub(super) fn variant(&self) -> &'static str {
        match (self.has_parent, self.leaves_blocks_allocated) {
            (true, _) => "differencing",
            (false, true) => super::FIXED,
            (false, false) => "dynamic",
        }
    }
}

/// The system's items, as they are found.
#[derive(Default)]
struct Items {
    file_parameters: Option<HostSpan>,
    virtual_disk_size: Option<HostSpan>,
    virtual_disk_id: Option<HostSpan>,
    logical_sector_size: Option<HostSpan>,
    physical_sector_size: Option<HostSpan>,
    parent_locator: Option<HostSpan>,
}

impl Items {
    fn slot(&mut self, id: Uuid) -> Option<&mut Option<HostSpan>> {
        Some(match id {
            ITEM_FILE_PARAMETERS => &mut self.file_parameters,
            ITEM_VIRTUAL_DISK_SIZE => &mut self.virtual_disk_size,
            ITEM_VIRTUAL_DISK_ID => &mut self.virtual_disk_id,
            ITEM_LOGICAL_SECTOR_SIZE => &mut self.logical_sector_size,
            ITEM_PHYSICAL_SECTOR_SIZE => &mut self.physical_sector_size,
            ITEM_PARENT_LOCATOR => &mut self.parent_locator,
            _ => return None,
        })
    }
}

/// Reads the metadata table and the items that the format defines.
pub(super) fn read_metadata(file: &dyn HostFile, region: HostSpan) -> Result<Metadata> {
    let items = read_items(file, region)?;
    let parameters: FileParameters = item(file, region, items.file_parameters, "file parameters")?;
    let virtual_bytes: [u8; 8] = item(file, region, items.virtual_disk_size, "virtual disk size")?;
    let virtual_disk_id: Guid = item(file, region, items.virtual_disk_id, "virtual disk ID")?;
    let logical: [u8; 4] = item(file, region, items.logical_sector_size, "logical sector size")?;
    let physical: [u8; 4] = item(file, region, items.physical_sector_size, "physical sector size")?;
    let flags = parameters.flags.get();
    let parent_locator = match items.parent_locator {
        Some(span) => {
            Some((span.start(), read_vec(file, span.start(), span.len_bytes(), "VHDX parent locator")?))
        }
        None => None,
    };
    let metadata = Metadata {
        block_bytes: u64::from(parameters.block_size.get()),
        leaves_blocks_allocated: flags & PARAMETER_LEAVE_BLOCKS_ALLOCATED != 0,
        has_parent: flags & PARAMETER_HAS_PARENT != 0,
        virtual_bytes: u64::from_le_bytes(virtual_bytes),
        logical_sector_bytes: u32::from_le_bytes(logical),
        physical_sector_bytes: u32::from_le_bytes(physical),
        virtual_disk_id: virtual_disk_id.uuid(),
        parent_locator,
    };
    if flags & !(PARAMETER_HAS_PARENT | PARAMETER_LEAVE_BLOCKS_ALLOCATED) != 0 {
        let error = Error::unsupported("VHDX file parameters").at(region.start());
        return Err(error.field("flags", FieldValue::hex(flags), "0 to 3"));
    }
    check_metadata(&metadata, region.start())?;
    Ok(metadata)
}

fn check_metadata(metadata: &Metadata, at: HostOffset) -> Result<()> {
    let corrupt = || Error::corrupt(Corrupt::Metadata).at(at);
    let Metadata { block_bytes, virtual_bytes, logical_sector_bytes, physical_sector_bytes, .. } = *metadata;
    if !block_bytes.is_power_of_two() || !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes) {
        return Err(corrupt().field("block size", block_bytes, "a power of two from 1 to 256 MiB"));
    }
    for (name, bytes) in
        [("logical sector size", logical_sector_bytes), ("physical sector size", physical_sector_bytes)]
    {
        if ![512, 4096].contains(&bytes) {
            return Err(corrupt().field(name, bytes, "512 or 4096"));
        }
    }
    if virtual_bytes > VIRTUAL_BYTES_MAX || !virtual_bytes.is_multiple_of(u64::from(logical_sector_bytes)) {
        return Err(corrupt().field("virtual disk size", virtual_bytes, "whole sectors up to 64 TiB"));
    }
    if metadata.has_parent && metadata.parent_locator.is_none() {
        return Err(Error::corrupt(Corrupt::NoParentLocator).at(at));
    }
    Ok(())
}

fn read_items(file: &dyn HostFile, region: HostSpan) -> Result<Items> {
    let table = read_vec(file, region.start(), HEADER_SLOT_BYTES, "VHDX metadata table")?;
    let (header, _) = MetadataTableHeader::read_from_prefix(&table).expect("64 KiB hold the header");
    let corrupt = || Error::corrupt(Corrupt::MetadataTable).at(region.start());
    if header.signature != METADATA_SIGNATURE {
        return Err(corrupt().field("signature", header.signature.escape_ascii(), "metadata"));
    }
    let count = u32::from(header.entry_count.get());
    if count > TABLE_ENTRY_COUNT_MAX {
        return Err(corrupt().field("entry count", count, format!("at most {TABLE_ENTRY_COUNT_MAX}")));
    }
    let mut items = Items::default();
    for (offset, entry) in entries::<MetadataTableHeader, MetadataTableEntry>(&table, count) {
        let at = region.start().plus(offset);
        let (id, flags) = (entry.item_id.uuid(), entry.flags.get());
        let known = if flags & METADATA_IS_USER == 0 { items.slot(id) } else { None };
        let Some(slot) = known else {
            if flags & METADATA_IS_REQUIRED != 0 {
                let error = Error::unsupported("VHDX metadata item that must be known").at(at);
                return Err(error.field("GUID", id.to_string(), "one that the specification lists"));
            }
            continue;
        };
        if slot.replace(item_span(&entry, region, at)?).is_some() {
            return Err(Error::corrupt(Corrupt::MetadataItem).at(at).field(
                "GUID",
                id.to_string(),
                "listed once",
            ));
        }
    }
    Ok(items)
}

fn item_span(entry: &MetadataTableEntry, region: HostSpan, at: HostOffset) -> Result<HostSpan> {
    let (offset, len) = (u64::from(entry.offset.get()), u64::from(entry.length.get()));
    let end = offset + len;
    if offset < HEADER_SLOT_BYTES || len > ITEM_BYTES_MAX || end > region.len_bytes() {
        return Err(Error::corrupt(Corrupt::MetadataItem).at(at).field(
            "place",
            format!("{len:#x} bytes at {offset:#x} of the region"),
            format!("at most 1 MiB, from 0x10000 to {:#x}", region.len_bytes()),
        ));
    }
    Ok(Span::new(region.start().plus(offset), len))
}

/// One item of a known size.
fn item<T: FromBytes>(
    file: &dyn HostFile,
    region: HostSpan,
    span: Option<HostSpan>,
    name: &'static str,
) -> Result<T> {
    let Some(span) = span else {
        return Err(Error::corrupt(Corrupt::NoMetadataItem { name }).at(region.start()));
    };
    if span.len_bytes() != size_of::<T>() as u64 {
        let (found, expected) = (span.len_bytes(), size_of::<T>());
        return Err(Error::corrupt(Corrupt::MetadataItemLength { name, found, expected }).at(span.start()));
    }
    read_struct(file, span.start(), name)
}
