//! The layout of a new VHDX: headers, log, metadata, BAT, then blocks in the order of the disk.
//!
//! The BAT is written page by page as placement passes it, so that it takes no memory whatever the disk's size.
//! No byte is left for the host to keep as a hole, because Windows refuses an image that is a sparse file.

use block::{Error, Result};
use extent::{HostOffset, Span, VirtualOffset};
use serde::{Deserialize, Serialize};
use uuid::{Builder, Uuid};
use zerocopy::{FromZeros, IntoBytes};

use super::layout::{
    FILE_IDENTIFIER_AT, FILE_SIGNATURE, FileIdentifier, FileParameters, Guid, HEADER_SIGNATURE,
    HEADER_SLOT_BYTES, HEADERS_AT, Header, ITEM_FILE_PARAMETERS, ITEM_LOGICAL_SECTOR_SIZE,
    ITEM_PHYSICAL_SECTOR_SIZE, ITEM_VIRTUAL_DISK_ID, ITEM_VIRTUAL_DISK_SIZE, METADATA_IS_REQUIRED,
    METADATA_IS_VIRTUAL_DISK, METADATA_SIGNATURE, MIB, MetadataTableEntry, MetadataTableHeader,
    PARAMETER_LEAVE_BLOCKS_ALLOCATED, REGION_BAT, REGION_METADATA, REGION_REQUIRED, REGION_SIGNATURE,
    REGION_TABLES_AT, RegionTableEntry, RegionTableHeader, VERSION,
};
use super::map::BatShape;
use super::parse::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, VIRTUAL_BYTES_MAX, checksum};
use crate::{CreateOptions, Finish, Format, Growth, Piece, PieceBytes, TargetWrite, WriteBytes, Writer};

/// Where the log is, 1 MiB long.
const LOG_AT: u64 = MIB;
/// Where the metadata region is, 1 MiB long.
const METADATA_AT: u64 = 2 * MIB;
/// Where the BAT region is.
const BAT_AT: u64 = 3 * MIB;
/// Data smaller than a block cost nothing: the least that a host file system or a guest's sector has.
const GRANULARITY_BYTES: u64 = 4096;
/// Entries of the BAT kept until placement has passed them: 64 KiB.
const PAGE_ENTRY_COUNT: u64 = 8192;
/// The most blocks that the default block size makes, and that a fixed disk may have: a BAT of 64 MiB.
const BLOCK_COUNT_MAX: u64 = 8 << 20;
/// State of a fully present block (2.5.1.1).
const FULLY_PRESENT: u64 = 6;
/// What the file identifier says.
const CREATOR: &str = "Leandisk";

/// Lays out a new dynamic or fixed VHDX.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VhdxWriter {
    /// Whole sectors.
    virtual_bytes: u64,
    block_bytes: u64,
    sector_bytes: u32,
    is_fixed: bool,
    target_is_dirty: bool,
    file_write_id: Uuid,
    data_write_id: Uuid,
    virtual_disk_id: Uuid,
    /// Blocks before this one have their place, or will never have one.
    next_block: u64,
    /// Where the next block goes.
    next_at: u64,
    page: Page,
}

/// The page of the BAT that placement is in.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Page {
    index: u64,
    /// Up to [`PAGE_ENTRY_COUNT`] entries; those not there are zero.
    entries: Vec<u64>,
}

impl VhdxWriter {
    /// A writer for `options`: keys `subformat=dynamic|fixed`, `block_size=` (1M to 256M). `Unsupported` above 64 TiB.
    pub fn new(mut options: CreateOptions) -> Result<Self> {
        let subformat = options.take("subformat").unwrap_or_else(|| "dynamic".into());
        let is_fixed = match subformat.as_str() {
            "dynamic" => false,
            "fixed" => true,
            other => return Err(Error::invalid("option").field("subformat", other, "fixed or dynamic")),
        };
        let default = default_block_bytes(options.virtual_bytes);
        let range = BLOCK_BYTES_MIN..BLOCK_BYTES_MAX + 1;
        let block_bytes = options.take_power_of_two("block_size", default, range)?;
        options.finish(Format::Vhdx)?;
        check_options(&options, block_bytes, is_fixed)?;
        let CreateOptions { virtual_bytes, sector_bytes, identity_seed, target_is_dirty, .. } = options;
        let id =
            |which| Builder::from_random_bytes(identity_seed.wrapping_add(which).to_be_bytes()).into_uuid();
        let mut writer = Self {
            virtual_bytes: virtual_bytes.next_multiple_of(u64::from(sector_bytes)),
            block_bytes,
            sector_bytes,
            is_fixed,
            target_is_dirty,
            file_write_id: id(0),
            data_write_id: id(1),
            virtual_disk_id: id(2),
            next_block: 0,
            next_at: 0,
            page: Page::default(),
        };
        writer.next_at = BAT_AT + writer.bat_bytes();
        Ok(writer)
    }

    fn shape(&self) -> BatShape {
        BatShape::new(self.virtual_bytes, self.block_bytes, self.sector_bytes)
    }

    /// Bytes of the BAT's region.
    fn bat_bytes(&self) -> u64 {
        (self.shape().entry_count(false) * 8).next_multiple_of(MIB)
    }

    /// Storage that reads as zeros: on a device with old contents that takes more than reserving.
    fn zeros(&self, at: u64, len_bytes: u64) -> TargetWrite {
        let bytes =
            if self.target_is_dirty { WriteBytes::Zero(len_bytes) } else { WriteBytes::Reserve(len_bytes) };
        TargetWrite { at: HostOffset::new(at), bytes }
    }

    /// Gives the blocks up to and with `block` their places: of a fixed disk all of them, else only `block`.
    fn reach(&mut self, block: u64, puts: &mut Vec<TargetWrite>) {
        if !self.is_fixed {
            self.next_block = self.next_block.max(block);
        }
        while self.next_block <= block {
            let index = self.shape().entry_of_block(self.next_block);
            puts.extend(self.page.set(index, self.next_at | FULLY_PRESENT));
            if !self.is_fixed {
                puts.push(self.zeros(self.next_at, self.block_bytes));
            }
            self.next_at += self.block_bytes;
            self.next_block += 1;
        }
    }
}

/// The smallest block size that keeps the BAT within its limit.
fn default_block_bytes(virtual_bytes: u64) -> u64 {
    virtual_bytes.div_ceil(BLOCK_COUNT_MAX).next_power_of_two().clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX)
}

fn check_options(options: &CreateOptions, block_bytes: u64, is_fixed: bool) -> Result<()> {
    let CreateOptions { virtual_bytes, sector_bytes, compress, .. } = *options;
    if compress {
        return Err(Error::invalid("VHDX has no compression"));
    }
    if ![512, 4096].contains(&sector_bytes) {
        return Err(Error::unsupported("VHDX").field("sector size", sector_bytes, "512 or 4096"));
    }
    if virtual_bytes == 0 || virtual_bytes > VIRTUAL_BYTES_MAX {
        let expected = format!("1 to {VIRTUAL_BYTES_MAX} bytes (64 TiB)");
        return Err(Error::unsupported("VHDX").field("virtual size", virtual_bytes, expected));
    }
    let block_count = virtual_bytes.div_ceil(block_bytes);
    if is_fixed && block_count > BLOCK_COUNT_MAX {
        let expected = format!("at least {}", default_block_bytes(virtual_bytes));
        return Err(Error::unsupported("fixed VHDX of this size").field("block_size", block_bytes, expected));
    }
    Ok(())
}

impl Page {
    /// Sets entry `index`, which is after all those set before; answers with the page that this leaves behind.
    fn set(&mut self, index: u64, entry: u64) -> Option<TargetWrite> {
        let put = if index / PAGE_ENTRY_COUNT == self.index { None } else { self.take() };
        self.index = index / PAGE_ENTRY_COUNT;
        let within = usize::try_from(index % PAGE_ENTRY_COUNT).expect("within a page");
        assert!(self.entries.len() <= within, "entries ascend");
        self.entries.resize(within, 0);
        self.entries.push(entry);
        put
    }

    /// The page as it is to be written; nothing if it holds no entry.
    fn take(&mut self) -> Option<TargetWrite> {
        let entries = std::mem::take(&mut self.entries);
        let at = HostOffset::new(BAT_AT + self.index * PAGE_ENTRY_COUNT * 8);
        let bytes: Vec<u8> = entries.into_iter().flat_map(u64::to_le_bytes).collect();
        (!bytes.is_empty()).then_some(TargetWrite { at, bytes: WriteBytes::Owned(bytes) })
    }
}

impl Writer for VhdxWriter {
    fn granularity_bytes(&self) -> u64 {
        GRANULARITY_BYTES
    }

    fn growth(&self) -> Growth {
        if self.is_fixed { Growth::Reserved } else { Growth::Behind }
    }

    fn target_is_dirty(&self) -> bool {
        self.target_is_dirty
    }

    fn start(&mut self) -> Result<Vec<TargetWrite>> {
        let data_bytes = if self.is_fixed { self.shape().block_count * self.block_bytes } else { 0 };
        Ok(vec![self.zeros(BAT_AT, self.bat_bytes() + data_bytes)])
    }

    fn place(&mut self, _chunk_at: VirtualOffset, pieces: Vec<Piece>) -> Result<Vec<TargetWrite>> {
        let mut puts = Vec::new();
        for piece in pieces {
            for part in Span::new(piece.at, piece.len_bytes).split(self.block_bytes) {
                let block = part.start().get() / self.block_bytes;
                self.reach(block, &mut puts);
                assert_eq!(self.next_block, block + 1, "pieces ascend");
                let block_at = self.next_at - self.block_bytes;
                let skip = usize::try_from(part.start().get() - piece.at.get()).expect("within a chunk");
                let len = usize::try_from(part.len_bytes()).expect("within a chunk");
                let bytes = match &piece.bytes {
                    PieceBytes::Plain(range) => {
                        WriteBytes::Chunk(range.start + skip..range.start + skip + len)
                    }
                    PieceBytes::Encoded(bytes) => WriteBytes::Owned(bytes[skip..skip + len].to_vec()),
                };
                let at = HostOffset::new(block_at + part.start().get() % self.block_bytes);
                puts.push(TargetWrite { at, bytes });
            }
        }
        Ok(puts)
    }

    fn finish(&mut self) -> Result<Finish> {
        let put = |at, bytes| TargetWrite { at: HostOffset::new(at), bytes: WriteBytes::Owned(bytes) };
        let mut tables = vec![put(LOG_AT, zeroed_mib()), put(METADATA_AT, self.metadata_region())];
        if self.is_fixed && self.virtual_bytes > 0 {
            self.reach(self.shape().block_count - 1, &mut tables);
        }
        tables.extend(self.page.take());
        Ok(Finish { tables, headers: vec![put(0, self.header_section())], len_bytes: self.next_at })
    }
}

fn zeroed_mib() -> Vec<u8> {
    vec![0; usize::try_from(MIB).expect("a MiB")]
}

/// Puts `bytes` at `at` of `section`.
fn fill(section: &mut [u8], at: u64, bytes: &[u8]) {
    let at = usize::try_from(at).expect("within a section");
    section[at..at + bytes.len()].copy_from_slice(bytes);
}

impl VhdxWriter {
    /// The first MiB: identifier, both headers, both region tables.
    fn header_section(&self) -> Vec<u8> {
        let mut section = zeroed_mib();
        let mut identifier = FileIdentifier::new_zeroed();
        identifier.signature = FILE_SIGNATURE;
        for (slot, unit) in identifier.creator.iter_mut().zip(CREATOR.encode_utf16()) {
            slot.set(unit);
        }
        fill(&mut section, FILE_IDENTIFIER_AT, identifier.as_bytes());
        for (sequence, at) in (1..).zip(HEADERS_AT) {
            fill(&mut section, at, self.header(sequence).as_bytes());
        }
        let table = self.region_table();
        for at in REGION_TABLES_AT {
            fill(&mut section, at, &table);
        }
        section
    }

    fn header(&self, sequence: u64) -> Header {
        let mut header = Header::new_zeroed();
        header.signature = HEADER_SIGNATURE;
        header.sequence_number.set(sequence);
        header.file_write_guid = Guid::from_uuid(self.file_write_id);
        header.data_write_guid = Guid::from_uuid(self.data_write_id);
        header.version.set(VERSION);
        header.log_length.set(u32::try_from(MIB).expect("a MiB"));
        header.log_offset.set(LOG_AT);
        header.checksum.set(checksum(header.as_bytes()));
        header
    }

    fn region_table(&self) -> Vec<u8> {
        let entry = |id, at: u64, len: u64| RegionTableEntry {
            guid: Guid::from_uuid(id),
            file_offset: at.into(),
            length: u32::try_from(len).expect("at most 513 MiB").into(),
            flags: REGION_REQUIRED.into(),
        };
        let entries = [entry(REGION_BAT, BAT_AT, self.bat_bytes()), entry(REGION_METADATA, METADATA_AT, MIB)];
        let mut header = RegionTableHeader::new_zeroed();
        header.signature = REGION_SIGNATURE;
        header.entry_count.set(u32::try_from(entries.len()).expect("two"));
        let mut table = vec![0; usize::try_from(HEADER_SLOT_BYTES).expect("64 KiB")];
        fill(&mut table, 0, header.as_bytes());
        fill(&mut table, size_of::<RegionTableHeader>() as u64, entries.as_bytes());
        let sum = checksum(&table);
        fill(&mut table, 4, &sum.to_le_bytes());
        table
    }

    fn metadata_region(&self) -> Vec<u8> {
        let flags = if self.is_fixed { PARAMETER_LEAVE_BLOCKS_ALLOCATED } else { 0 };
        let block_size = u32::try_from(self.block_bytes).expect("at most 256 MiB");
        let parameters = FileParameters { block_size: block_size.into(), flags: flags.into() };
        let of_disk = METADATA_IS_REQUIRED | METADATA_IS_VIRTUAL_DISK;
        let items: [(Uuid, u32, Vec<u8>); 5] = [
            (ITEM_FILE_PARAMETERS, METADATA_IS_REQUIRED, parameters.as_bytes().to_vec()),
            (ITEM_VIRTUAL_DISK_SIZE, of_disk, self.virtual_bytes.to_le_bytes().to_vec()),
            (ITEM_LOGICAL_SECTOR_SIZE, of_disk, self.sector_bytes.to_le_bytes().to_vec()),
            (ITEM_PHYSICAL_SECTOR_SIZE, of_disk, 4096u32.to_le_bytes().to_vec()),
            (ITEM_VIRTUAL_DISK_ID, of_disk, Guid::from_uuid(self.virtual_disk_id).as_bytes().to_vec()),
        ];
        let mut region = zeroed_mib();
        let mut header = MetadataTableHeader::new_zeroed();
        header.signature = METADATA_SIGNATURE;
        header.entry_count.set(u16::try_from(items.len()).expect("five"));
        fill(&mut region, 0, header.as_bytes());
        let mut entry_at = size_of::<MetadataTableHeader>() as u64;
        let mut item_at = HEADER_SLOT_BYTES;
        for (id, flags, bytes) in items {
            let mut entry = MetadataTableEntry::new_zeroed();
            entry.item_id = Guid::from_uuid(id);
            entry.offset.set(u32::try_from(item_at).expect("within a MiB"));
            entry.length.set(u32::try_from(bytes.len()).expect("a few bytes"));
            entry.flags.set(flags);
            fill(&mut region, entry_at, entry.as_bytes());
            fill(&mut region, item_at, &bytes);
            entry_at += size_of::<MetadataTableEntry>() as u64;
            item_at += bytes.len() as u64;
        }
        region
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_block_size_keeps_the_bat_small() {
        assert_eq!(default_block_bytes(1), MIB);
        assert_eq!(default_block_bytes(8 << 40), MIB);
        assert_eq!(default_block_bytes((8 << 40) + 1), 2 * MIB);
        assert_eq!(default_block_bytes(64 << 40), 8 * MIB);
    }

    #[test]
    fn pages_are_left_behind_once() {
        let mut page = Page::default();
        assert!(page.set(3, 7).is_none());
        assert!(page.set(PAGE_ENTRY_COUNT - 1, 8).is_none());
        let put = page.set(5 * PAGE_ENTRY_COUNT + 1, 9).expect("the first page is complete");
        assert_eq!(put.at.get(), BAT_AT);
        assert!(matches!(put.bytes, WriteBytes::Owned(bytes) if bytes.len() as u64 == PAGE_ENTRY_COUNT * 8));
        let put = page.take().expect("the last page");
        assert_eq!(put.at.get(), BAT_AT + 5 * PAGE_ENTRY_COUNT * 8);
        assert!(page.take().is_none());
    }
}
