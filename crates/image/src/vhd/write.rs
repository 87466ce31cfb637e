//! The layout of a new VHD.
//!
//! Dynamic: the footer's copy, the header, the BAT, then blocks in the order of the disk, each with a sector
//! bitmap of ones, and the footer. As Windows does since version 8, each bitmap is put at the end of 4 KiB so
//! that the block's data are aligned. Fixed: the data, then the footer.
//!
//! No byte is left for the host to keep as a hole, because Windows refuses an image that is a sparse file. The
//! creator is told as `win `, the one that every reader understands to mean that the size is the current
//! size, not the geometry.

use block::{Error, Result};
use extent::{HostOffset, Span, VirtualOffset};
use serde::{Deserialize, Serialize};
use uuid::{Builder, Uuid};
use zerocopy::{FromZeros, IntoBytes};

use super::layout::{
    BAT_UNUSED, DynamicHeader, EPOCH_UNIX_SECONDS, FEATURE_RESERVED, FOOTER_BYTES, FOOTER_COOKIE, Footer,
    HEADER_BYTES, HEADER_COOKIE, NO_OFFSET, SECTOR_BYTES, TYPE_DYNAMIC, TYPE_FIXED, VERSION_1_0,
};
use super::parse::{bitmap_bytes, checksum};
use crate::{CreateOptions, Finish, Format, Growth, Piece, PieceBytes, TargetWrite, WriteBytes, Writer};

/// Hyper-V's limit for VHD: 2040 GiB.
const VIRTUAL_BYTES_MAX: u64 = 2040 << 30;
/// Virtual PC's and Hyper-V's default block size.
const BLOCK_BYTES_DEFAULT: u64 = 2 << 20;
/// Least and largest block size that Hyper-V takes.
const BLOCK_BYTES_MIN: u64 = 512 << 10;
const BLOCK_BYTES_MAX: u64 = 2 << 20;
/// What the data of blocks are aligned to, and the granularity.
const ALIGNMENT_BYTES: u64 = 4096;
/// Where the BAT of a dynamic disk begins.
const BAT_AT: u64 = FOOTER_BYTES + HEADER_BYTES;

/// Lays out a new fixed or dynamic VHD.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VhdWriter {
    /// Whole sectors.
    virtual_bytes: u64,
    unique_id: Uuid,
    created_unix_seconds: u64,
    target_is_dirty: bool,
    /// `None` if fixed.
    dynamic: Option<Blocks>,
}

/// The blocks of a dynamic disk. Where a block lies follows from how many were placed before it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Blocks {
    block_bytes: u64,
    /// Indices of the blocks placed, ascending.
    placed: Vec<u32>,
}

impl VhdWriter {
    /// A writer for `options`: keys `subformat=fixed|dynamic`, `block_size=` (512K to 2M). `Unsupported` above
    /// 2040 GiB.
    pub fn new(mut options: CreateOptions) -> Result<Self> {
        let subformat = options.take("subformat").unwrap_or_else(|| "dynamic".into());
        let has_block_size = options.keys.contains_key("block_size");
        let range = BLOCK_BYTES_MIN..BLOCK_BYTES_MAX + 1;
        let block_bytes = options.take_power_of_two("block_size", BLOCK_BYTES_DEFAULT, range)?;
        options.finish(Format::Vhd)?;
        let dynamic = match subformat.as_str() {
            "dynamic" => Some(Blocks { block_bytes, placed: Vec::new() }),
            "fixed" if has_block_size => {
                return Err(Error::invalid("a fixed VHD has no blocks, so no block_size"));
            }
            "fixed" => None,
            other => return Err(Error::invalid("option").field("subformat", other, "fixed or dynamic")),
        };
        check_options(&options, dynamic.is_none())?;
        let CreateOptions { virtual_bytes, identity_seed, created_unix_seconds, target_is_dirty, .. } =
            options;
        let virtual_bytes = virtual_bytes.next_multiple_of(SECTOR_BYTES);
        if !dynamic.as_ref().is_none_or(|blocks| blocks.fit_the_bat(virtual_bytes)) {
            return Err(Error::unsupported(
                "VHD of this size with blocks so small: their bitmaps would pass 2 TiB",
            )
            .field("block_size", block_bytes, BLOCK_BYTES_DEFAULT));
        }
        let unique_id = Builder::from_random_bytes(identity_seed.to_be_bytes()).into_uuid();
        Ok(Self { virtual_bytes, unique_id, created_unix_seconds, target_is_dirty, dynamic })
    }

    /// Storage that reads as zeros: on a device with old contents that takes more than reserving.
    fn zeros(&self, at: u64, len_bytes: u64) -> TargetWrite {
        let bytes =
            if self.target_is_dirty { WriteBytes::Zero(len_bytes) } else { WriteBytes::Reserve(len_bytes) };
        TargetWrite { at: HostOffset::new(at), bytes }
    }

    fn footer(&self) -> Vec<u8> {
        let mut footer = Footer::new_zeroed();
        footer.cookie = FOOTER_COOKIE;
        footer.features.set(FEATURE_RESERVED);
        footer.file_format_version.set(VERSION_1_0);
        footer.data_offset.set(if self.dynamic.is_some() { FOOTER_BYTES } else { NO_OFFSET });
        let seconds = self.created_unix_seconds.saturating_sub(EPOCH_UNIX_SECONDS);
        footer.time_stamp.set(u32::try_from(seconds).unwrap_or(u32::MAX));
        footer.creator_application = *b"win ";
        footer.creator_version.set(0x000a_0000);
        footer.creator_host_os = *b"Wi2k";
        footer.original_size.set(self.virtual_bytes);
        footer.current_size.set(self.virtual_bytes);
        let geometry = Geometry::of(self.virtual_bytes / SECTOR_BYTES);
        footer.cylinders.set(geometry.cylinders);
        footer.heads = geometry.heads;
        footer.sectors_per_track = geometry.sectors_per_track;
        footer.disk_type.set(if self.dynamic.is_some() { TYPE_DYNAMIC } else { TYPE_FIXED });
        footer.unique_id = *self.unique_id.as_bytes();
        footer.checksum.set(checksum(footer.as_bytes(), 0));
        footer.as_bytes().to_vec()
    }
}

fn check_options(options: &CreateOptions, is_fixed: bool) -> Result<()> {
    if options.compress {
        return Err(Error::invalid("VHD has no compression"));
    }
    if options.virtual_bytes == 0 || options.virtual_bytes > VIRTUAL_BYTES_MAX {
        return Err(Error::unsupported("VHD")
            .field(
                "virtual size",
                options.virtual_bytes,
                format!("1 to {VIRTUAL_BYTES_MAX} bytes (2040 GiB)"),
            )
            .hint("VHDX holds up to 64 TiB"));
    }
    if is_fixed && options.target_is_dirty {
        return Err(Error::refused("a fixed VHD on a block device: its footer must be the end of a file")
            .hint("write raw, or a dynamic VHD"));
    }
    Ok(())
}

/// The bytes of a whole chunk's piece that lie in `span`, as the put's.
fn part(piece: &Piece, span: extent::VirtualSpan) -> WriteBytes {
    let skip = usize::try_from(span.start().get() - piece.at.get()).expect("within a chunk");
    let len = usize::try_from(span.len_bytes()).expect("within a chunk");
    match &piece.bytes {
        PieceBytes::Plain(range) => WriteBytes::Chunk(range.start + skip..range.start + skip + len),
        PieceBytes::Encoded(bytes) => WriteBytes::Owned(bytes[skip..skip + len].to_vec()),
    }
}

impl Writer for VhdWriter {
    fn granularity_bytes(&self) -> u64 {
        ALIGNMENT_BYTES
    }

    fn growth(&self) -> Growth {
        if self.dynamic.is_some() { Growth::Behind } else { Growth::Reserved }
    }

    fn target_is_dirty(&self) -> bool {
        self.target_is_dirty
    }

    fn start(&mut self) -> Result<Vec<TargetWrite>> {
        Ok(match self.dynamic {
            None => vec![self.zeros(0, self.virtual_bytes)],
            Some(_) => Vec::new(),
        })
    }

    fn place(&mut self, _chunk_at: VirtualOffset, pieces: Vec<Piece>) -> Result<Vec<TargetWrite>> {
        let mut puts = Vec::new();
        for piece in pieces {
            // The last granule may reach past the disk's end; nothing but its filling does.
            let end = VirtualOffset::new(piece.at.plus(piece.len_bytes).get().min(self.virtual_bytes));
            let span = Span::between(piece.at, end);
            let Some(block_bytes) = self.dynamic.as_ref().map(|blocks| blocks.block_bytes) else {
                puts.push(TargetWrite { at: HostOffset::new(span.start().get()), bytes: part(&piece, span) });
                continue;
            };
            for in_block in span.split(block_bytes) {
                let data_at = self.data_at(in_block.start(), &mut puts);
                puts.push(TargetWrite { at: data_at, bytes: part(&piece, in_block) });
            }
        }
        Ok(puts)
    }

    fn finish(&mut self) -> Result<Finish> {
        let footer = self.footer();
        let put = |at, bytes| TargetWrite { at: HostOffset::new(at), bytes: WriteBytes::Owned(bytes) };
        let Some(blocks) = &self.dynamic else {
            let headers = vec![put(self.virtual_bytes, footer)];
            return Ok(Finish { tables: Vec::new(), headers, len_bytes: self.virtual_bytes + FOOTER_BYTES });
        };
        let footer_at = blocks.end(self.virtual_bytes);
        Ok(Finish {
            tables: vec![put(BAT_AT, blocks.bat(self.virtual_bytes))],
            headers: vec![
                put(0, footer.clone()),
                put(FOOTER_BYTES, blocks.header(self.virtual_bytes)),
                put(footer_at, footer),
            ],
            len_bytes: footer_at + FOOTER_BYTES,
        })
    }
}

impl VhdWriter {
    /// Where the data of `at` go. A block met for the first time gets its place.
    fn data_at(&mut self, at: VirtualOffset, puts: &mut Vec<TargetWrite>) -> HostOffset {
        let virtual_bytes = self.virtual_bytes;
        let blocks = self.dynamic.as_mut().expect("only a dynamic disk has blocks");
        let block_bytes = blocks.block_bytes;
        let index = u32::try_from(at.get() / block_bytes).expect("2040 GiB have fewer blocks");
        let is_new = blocks.placed.last().is_none_or(|last| *last < index);
        if is_new {
            blocks.placed.push(index);
        }
        assert_eq!(blocks.placed.last(), Some(&index), "pieces ascend");
        let rank = blocks.placed.len() as u64 - 1;
        let bitmap_at = blocks.bitmap_at(rank, virtual_bytes);
        let data_at = bitmap_at + blocks.bitmap_bytes();
        if is_new {
            puts.push(blocks.bitmap_put(rank, virtual_bytes));
            puts.push(self.zeros(data_at, block_bytes));
        }
        HostOffset::new(data_at + at.get() % block_bytes)
    }
}

impl Blocks {
    fn count(&self, virtual_bytes: u64) -> u64 {
        virtual_bytes.div_ceil(self.block_bytes)
    }

    fn bitmap_bytes(&self) -> u64 {
        bitmap_bytes(self.block_bytes)
    }

    /// Bytes from one block's bitmap to the next's: the bitmap with what aligns it, and the data.
    fn stride_bytes(&self) -> u64 {
        self.bitmap_bytes().next_multiple_of(ALIGNMENT_BYTES) + self.block_bytes
    }

    /// The end of the BAT, which is filled up so that the first bitmap ends at a multiple of 4 KiB.
    fn bat_end(&self, virtual_bytes: u64) -> u64 {
        let table_end = BAT_AT + self.count(virtual_bytes) * 4;
        (table_end + self.bitmap_bytes()).next_multiple_of(ALIGNMENT_BYTES) - self.bitmap_bytes()
    }

    /// Whether the BAT, which counts sectors in 32 bits, reaches the last block of a full disk.
    fn fit_the_bat(&self, virtual_bytes: u64) -> bool {
        self.bitmap_at(self.count(virtual_bytes), virtual_bytes) / SECTOR_BYTES < u64::from(BAT_UNUSED)
    }

    fn bitmap_at(&self, rank: u64, virtual_bytes: u64) -> u64 {
        self.bat_end(virtual_bytes) + rank * self.stride_bytes()
    }

    /// The end of the last block.
    fn end(&self, virtual_bytes: u64) -> u64 {
        match (self.placed.len() as u64).checked_sub(1) {
            Some(rank) => self.bitmap_at(rank, virtual_bytes) + self.bitmap_bytes() + self.block_bytes,
            None => self.bat_end(virtual_bytes),
        }
    }

    /// The bitmap of a block, all ones, with what lies between it and the block before.
    fn bitmap_put(&self, rank: u64, virtual_bytes: u64) -> TargetWrite {
        let bitmap_at = self.bitmap_at(rank, virtual_bytes);
        let gap = if rank == 0 { 0 } else { self.stride_bytes() - self.bitmap_bytes() - self.block_bytes };
        let index = |len: u64| usize::try_from(len).expect("a few KiB");
        let mut bytes = vec![0; index(gap)];
        bytes.resize(index(gap + self.block_bytes / SECTOR_BYTES / 8), 0xff);
        bytes.resize(index(gap + self.bitmap_bytes()), 0);
        TargetWrite { at: HostOffset::new(bitmap_at - gap), bytes: WriteBytes::Owned(bytes) }
    }

    /// The BAT, filled up with unused entries.
    fn bat(&self, virtual_bytes: u64) -> Vec<u8> {
        let len = usize::try_from(self.bat_end(virtual_bytes) - BAT_AT).expect("at most some 16 MiB");
        let mut bytes = BAT_UNUSED.to_be_bytes().repeat(len / 4);
        let (entries, _) = bytes.as_chunks_mut::<4>();
        for (rank, index) in (0..).zip(&self.placed) {
            let sector = self.bitmap_at(rank, virtual_bytes) / SECTOR_BYTES;
            *entries.get_mut(*index as usize).expect("the BAT has an entry for each block") =
                u32::try_from(sector)
                    .expect("2040 GiB and their bitmaps are below 2^32 sectors")
                    .to_be_bytes();
        }
        bytes
    }

    fn header(&self, virtual_bytes: u64) -> Vec<u8> {
        let mut header = DynamicHeader::new_zeroed();
        header.cookie = HEADER_COOKIE;
        header.data_offset.set(NO_OFFSET);
        header.table_offset.set(BAT_AT);
        header.header_version.set(VERSION_1_0);
        header.max_table_entries.set(u32::try_from(self.count(virtual_bytes)).expect("few blocks"));
        header.block_size.set(u32::try_from(self.block_bytes).expect("at most 2 MiB"));
        header.checksum.set(checksum(header.as_bytes(), 0));
        header.as_bytes().to_vec()
    }
}

/// Cylinders, heads and sectors as an old BIOS counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Geometry {
    cylinders: u16,
    heads: u8,
    sectors_per_track: u8,
}

impl Geometry {
    /// The geometry that the specification computes for a disk of `sectors` (appendix "CHS Calculation").
    /// It holds no more than the disk; its largest is 65535 x 16 x 255.
    fn of(sectors: u64) -> Self {
        let sectors = sectors.min(65_535 * 16 * 255);
        let (heads, sectors_per_track) = if sectors >= 65_535 * 16 * 63 {
            (16, 255)
        } else {
            let heads = (sectors / 17).div_ceil(1024).max(4);
            if sectors / 17 < heads * 1024 && heads <= 16 {
                (heads, 17)
            } else if sectors / 31 < 16 * 1024 {
                (16, 31)
            } else {
                (16, 63)
            }
        };
        let narrow = |value: u64| u8::try_from(value).expect("at most 255");
        Self {
            cylinders: u16::try_from(sectors / sectors_per_track / heads).expect("at most 65535"),
            heads: narrow(heads),
            sectors_per_track: narrow(sectors_per_track),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometry_is_what_other_programs_compute() {
        for (sectors, cylinders, heads, sectors_per_track) in [
            // Found in images by Hyper-V and Virtual PC.
            (20_480, 0x12d, 4, 17),
            (0x1f_c000_0000 / 512, 0xfefe, 16, 255),
            (2040 << 21, 65_535, 16, 255),
            (1, 0, 4, 17),
        ] {
            assert_eq!(Geometry::of(sectors), Geometry { cylinders, heads, sectors_per_track });
        }
    }

    #[test]
    fn a_geometry_never_holds_more_than_the_disk() {
        for sectors in (0..5_000_000_000u64).step_by(9_999_991).chain(0..3000) {
            let geometry = Geometry::of(sectors);
            let held = u64::from(geometry.cylinders)
                * u64::from(geometry.heads)
                * u64::from(geometry.sectors_per_track);
            assert!(held <= sectors, "{sectors}");
        }
    }

    #[test]
    fn what_vhd_cannot_hold_is_not_begun() {
        let options = |virtual_bytes| CreateOptions {
            virtual_bytes,
            sector_bytes: 512,
            compress: false,
            keys: Default::default(),
            identity_seed: 1,
            created_unix_seconds: 0,
            file_name: String::new(),
            target_is_dirty: false,
        };
        assert!(VhdWriter::new(options(VIRTUAL_BYTES_MAX)).is_ok());
        let kind = |options| VhdWriter::new(options).unwrap_err().kind();
        assert_eq!(kind(options(VIRTUAL_BYTES_MAX + 1)), block::ErrorKind::Unsupported);
        assert_eq!(kind(options(0)), block::ErrorKind::Unsupported);
        let mut fixed = CreateOptions { target_is_dirty: true, ..options(512) };
        fixed.keys.insert("subformat".into(), "fixed".into());
        assert_eq!(kind(fixed), block::ErrorKind::Refused);
        let mut wrong = options(512);
        wrong.keys.insert("subformat".into(), "thin".into());
        assert_eq!(kind(wrong), block::ErrorKind::Invalid);
    }

    #[test]
    fn the_largest_disk_fits_its_bat() {
        let fits = |block_bytes| Blocks { block_bytes, placed: Vec::new() }.fit_the_bat(VIRTUAL_BYTES_MAX);
        assert!(fits(BLOCK_BYTES_DEFAULT));
        assert!(!fits(BLOCK_BYTES_MIN));
    }
}
