//! Laying out a new VMDK.
//!
//! `monolithicSparse`, as VMware lays it out: header, descriptor, redundant directory and tables, directory and
//! tables, grains. All tables have their place from the start, so a directory's entries follow from their index
//! and only the table being filled is held; tables without data stay holes of the file.
//!
//! `streamOptimized`, as VMware's `ovftool` lays it out: header and descriptor, then compressed grains behind
//! markers, each table behind its last grain, and at the end the directory and the footer that points to it.

use block::{Error, Result};
use extent::{HostOffset, VirtualOffset};
use flate2::{Compress, Compression, FlushCompress, Status};
use serde::{Deserialize, Serialize};
use zerocopy::{FromZeros, IntoBytes};

use super::layout::*;
use crate::{CreateOptions, Encoder, Finish, Format, Piece, PieceBytes, TargetWrite, WriteBytes, Writer};

/// 64 KiB, the grain that VMware writes.
const GRAIN_SECTOR_COUNT: u64 = 128;
const GRAIN_BYTES: u64 = GRAIN_SECTOR_COUNT * SECTOR_BYTES;
/// Sectors of a grain table.
const TABLE_SECTOR_COUNT: u64 = GTES_PER_GT as u64 * 4 / SECTOR_BYTES;
/// Sectors of the virtual disk under one table.
const TABLE_COVERAGE_SECTOR_COUNT: u64 = GTES_PER_GT as u64 * GRAIN_SECTOR_COUNT;
/// Where the descriptor lies, and its room: as VMware has them.
const DESCRIPTOR_SECTOR: u64 = 1;
const DESCRIPTOR_SECTOR_COUNT: u64 = 20;
/// vSphere's largest disk is 62 TiB.
const VIRTUAL_BYTES_MAX: u64 = 64 << 40;
/// The longest name that the descriptor's room is good for, and more than a file system allows.
const FILE_NAME_BYTES_MAX: usize = 1024;
/// zlib's default: higher levels cost far more time than they save space.
const ZLIB_LEVEL: u32 = 6;

/// The two layouts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Shape {
    MonolithicSparse,
    StreamOptimized,
}

/// Lays out a new image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VmdkWriter {
    shape: Shape,
    capacity_sectors: u64,
    descriptor: String,
    target_is_dirty: bool,
    /// Whether the header comes first, and stays as it is: of a stream alone.
    is_in_order: bool,
    /// Where the next grain goes.
    next_sector: u64,
    /// The table being filled.
    table: Option<OpenTable>,
    /// The stream's tables written so far, by index; 0 for those without data.
    directory: Vec<u32>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct OpenTable {
    index: u64,
    entries: Vec<u32>,
}

impl VmdkWriter {
    /// A writer for `options`.
    pub fn new(mut options: CreateOptions) -> Result<Self> {
        let shape = take_shape(&mut options)?;
        options.finish(Format::Vmdk)?;
        check(shape, &options)?;
        let capacity_sectors = options.virtual_bytes.div_ceil(SECTOR_BYTES);
        let descriptor = descriptor(shape, capacity_sectors, &options);
        let mut writer = Self {
            shape,
            capacity_sectors,
            descriptor,
            target_is_dirty: options.target_is_dirty,
            is_in_order: false,
            next_sector: 0,
            table: None,
            directory: Vec::new(),
        };
        writer.next_sector = writer.overhead();
        Ok(writer)
    }

    /// A writer of a `streamOptimized` for `options`, which goes from the file's start to its end.
    pub fn in_order(mut options: CreateOptions) -> Result<Self> {
        options.keys.entry("subformat".into()).or_insert_with(|| "streamOptimized".into());
        let writer = Self::new(options)?;
        if writer.shape != Shape::StreamOptimized {
            return Err(Error::invalid("a monolithicSparse VMDK is not written from its start to its end")
                .hint("-o subformat=streamOptimized"));
        }
        Ok(Self { is_in_order: true, ..writer })
    }

    fn table_count(&self) -> u64 {
        self.capacity_sectors.div_ceil(TABLE_COVERAGE_SECTOR_COUNT)
    }

    fn directory_sectors(&self) -> u64 {
        (self.table_count() * 4).div_ceil(SECTOR_BYTES)
    }

    /// Sectors of a directory with all its tables.
    fn directory_and_tables(&self) -> u64 {
        self.directory_sectors() + self.table_count() * TABLE_SECTOR_COUNT
    }

    /// Where the redundant directory, then the directory, of a `monolithicSparse` lie.
    fn directories_at(&self) -> [u64; 2] {
        let first = DESCRIPTOR_SECTOR + DESCRIPTOR_SECTOR_COUNT;
        [first, first + self.directory_and_tables()]
    }

    fn table_sector(&self, directory_at: u64, index: u64) -> u64 {
        directory_at + self.directory_sectors() + index * TABLE_SECTOR_COUNT
    }

    /// Sectors before the first grain.
    fn overhead(&self) -> u64 {
        match self.shape {
            Shape::MonolithicSparse => {
                let [_, directory_at] = self.directories_at();
                (directory_at + self.directory_and_tables()).next_multiple_of(GRAIN_SECTOR_COUNT)
            }
            Shape::StreamOptimized => GRAIN_SECTOR_COUNT,
        }
    }

    /// Takes `count` sectors at the file's end. Entries of tables have 32 bits for a sector's number.
    fn allocate(&mut self, count: u64) -> Result<u32> {
        let sector = u32::try_from(self.next_sector).map_err(|_| {
            Error::unsupported("VMDK file of more than 2 TiB")
                .hint("its tables cannot name sectors past that; choose another format")
        })?;
        self.next_sector += count;
        Ok(sector)
    }

    fn set_entry(&mut self, grain: u64, sector: u32, puts: &mut Vec<TargetWrite>) -> Result<()> {
        let index = grain / u64::from(GTES_PER_GT);
        if self.table.as_ref().is_some_and(|table| table.index != index) {
            self.finish_table(puts)?;
        }
        let table = self.table.get_or_insert_with(|| OpenTable {
            index,
            entries: vec![GTE_ABSENT; usize::try_from(GTES_PER_GT).expect("small")],
        });
        table.entries[usize::try_from(grain % u64::from(GTES_PER_GT)).expect("small")] = sector;
        Ok(())
    }

    fn finish_table(&mut self, puts: &mut Vec<TargetWrite>) -> Result<()> {
        let Some(table) = self.table.take() else { return Ok(()) };
        let bytes = little_endian(table.entries.iter().copied());
        match self.shape {
            Shape::MonolithicSparse => {
                for directory_at in self.directories_at() {
                    puts.push(owned(self.table_sector(directory_at, table.index), bytes.clone()));
                }
            }
            Shape::StreamOptimized => {
                let sector = self.put_metadata(MARKER_GRAIN_TABLE, &bytes, puts)?;
                let index = usize::try_from(table.index).expect("below the largest disk's table count");
                self.directory.resize(index, 0);
                self.directory.push(sector);
            }
        }
        Ok(())
    }

    /// Appends a marker and the metadata behind it to the stream. Returns the sector of the metadata.
    fn put_metadata(&mut self, kind: u32, bytes: &[u8], puts: &mut Vec<TargetWrite>) -> Result<u32> {
        let sector_count = (bytes.len() as u64).div_ceil(SECTOR_BYTES);
        let mut marker = MetadataMarker::new_zeroed();
        marker.sector_count.set(sector_count);
        marker.kind.set(kind);
        let mut all = marker.as_bytes().to_vec();
        all.extend_from_slice(bytes);
        let sector = self.allocate(1 + sector_count)?;
        puts.push(owned(u64::from(sector), padded(all, SECTOR_BYTES)));
        // The stream may end past what tables can name; the directory's place has 64 bits.
        sector.checked_add(1).ok_or_else(|| Error::unsupported("VMDK file of more than 2 TiB"))
    }

    fn place_plain(
        &mut self,
        piece: &Piece,
        range: std::ops::Range<usize>,
        puts: &mut Vec<TargetWrite>,
    ) -> Result<()> {
        let first = piece.at.get() / GRAIN_BYTES;
        let grain_count = piece.len_bytes / GRAIN_BYTES;
        let at = sector_offset(self.next_sector);
        for grain in first..first + grain_count {
            let sector = self.allocate(GRAIN_SECTOR_COUNT)?;
            self.set_entry(grain, sector, puts)?;
        }
        puts.push(TargetWrite { at, bytes: WriteBytes::Chunk(range) });
        Ok(())
    }

    fn place_encoded(&mut self, piece: &Piece, bytes: &[u8], puts: &mut Vec<TargetWrite>) -> Result<()> {
        let grain = piece.at.get() / GRAIN_BYTES;
        // Before the grain is placed, so that a table lies behind its own last grain.
        if self.table.as_ref().is_some_and(|table| table.index != grain / u64::from(GTES_PER_GT)) {
            self.finish_table(puts)?;
        }
        let marker = GrainMarker {
            lba: (grain * GRAIN_SECTOR_COUNT).into(),
            size: u32::try_from(bytes.len()).expect("about a grain").into(),
        };
        let mut all = marker.as_bytes().to_vec();
        all.extend_from_slice(bytes);
        let all = padded(all, SECTOR_BYTES);
        let sector = self.allocate(all.len() as u64 / SECTOR_BYTES)?;
        puts.push(owned(u64::from(sector), all));
        self.set_entry(grain, sector, puts)
    }

    fn header(&self, gd_offset: u64) -> SparseHeader {
        let mut header = SparseHeader::new_zeroed();
        header.magic.set(SPARSE_MAGIC);
        header.capacity.set(self.capacity_sectors);
        header.grain_size.set(GRAIN_SECTOR_COUNT);
        header.descriptor_offset.set(DESCRIPTOR_SECTOR);
        header.descriptor_size.set(DESCRIPTOR_SECTOR_COUNT);
        header.gtes_per_gt.set(GTES_PER_GT);
        header.gd_offset.set(gd_offset);
        header.overhead.set(self.overhead());
        header.newlines = NEWLINES;
        match self.shape {
            Shape::MonolithicSparse => {
                header.version.set(1);
                header.flags.set(FLAG_NEWLINES | FLAG_REDUNDANT);
                header.rgd_offset.set(self.directories_at()[0]);
            }
            Shape::StreamOptimized => {
                header.version.set(3);
                header.flags.set(FLAG_NEWLINES | FLAG_COMPRESSED | FLAG_MARKERS);
                header.compress_algorithm.set(COMPRESSION_DEFLATE);
            }
        }
        header
    }

    /// Header and descriptor, filled up to `end_sector`.
    fn head(&self, gd_offset: u64, end_sector: u64) -> TargetWrite {
        let mut bytes = self.header(gd_offset).as_bytes().to_vec();
        bytes.extend_from_slice(self.descriptor.as_bytes());
        owned(0, padded(bytes, end_sector * SECTOR_BYTES))
    }

    /// The header of a stream, which says that the directory is at the end.
    fn stream_head(&self) -> TargetWrite {
        self.head(GD_AT_END, self.overhead())
    }

    fn finish_sparse(&mut self) -> Result<Finish> {
        let mut tables = Vec::new();
        self.finish_table(&mut tables)?;
        for directory_at in self.directories_at() {
            let entries = (0..self.table_count())
                .map(|index| u32::try_from(self.table_sector(directory_at, index)).expect("below 16 GiB"));
            tables.push(owned(directory_at, padded(little_endian(entries), SECTOR_BYTES)));
        }
        let [first_directory_at, directory_at] = self.directories_at();
        let headers = vec![self.head(directory_at, first_directory_at)];
        Ok(Finish { tables, headers, len_bytes: self.next_sector * SECTOR_BYTES })
    }

    fn finish_stream(&mut self) -> Result<Finish> {
        let mut tables = Vec::new();
        self.finish_table(&mut tables)?;
        let table_count = usize::try_from(self.table_count()).expect("bounded by the largest disk");
        let mut entries = std::mem::take(&mut self.directory);
        entries.resize(table_count, 0);
        let directory = padded(little_endian(entries), SECTOR_BYTES);
        let directory_at = self.put_metadata(MARKER_GRAIN_DIRECTORY, &directory, &mut tables)?;
        let footer = self.header(u64::from(directory_at));
        self.put_metadata(MARKER_FOOTER, footer.as_bytes(), &mut tables)?;
        self.put_metadata(MARKER_END, &[], &mut tables)?;
        let headers = if self.is_in_order { Vec::new() } else { vec![self.stream_head()] };
        Ok(Finish { tables, headers, len_bytes: self.next_sector * SECTOR_BYTES })
    }
}

impl Writer for VmdkWriter {
    fn granularity_bytes(&self) -> u64 {
        GRAIN_BYTES
    }

    fn encoder(&self) -> Option<Box<dyn Encoder>> {
        (self.shape == Shape::StreamOptimized).then(|| Box::new(GrainEncoder::new()) as Box<dyn Encoder>)
    }

    fn target_is_dirty(&self) -> bool {
        self.target_is_dirty
    }

    fn start(&mut self) -> Result<Vec<TargetWrite>> {
        if self.is_in_order {
            return Ok(vec![self.stream_head()]);
        }
        // Tables that are never written must read as "nothing allocated".
        let metadata_bytes = self.overhead() * SECTOR_BYTES;
        let zero = TargetWrite { at: HostOffset::ZERO, bytes: WriteBytes::Zero(metadata_bytes) };
        Ok(if self.target_is_dirty { vec![zero] } else { Vec::new() })
    }

    fn place(&mut self, _chunk_at: VirtualOffset, pieces: Vec<Piece>) -> Result<Vec<TargetWrite>> {
        let mut puts = Vec::new();
        for piece in pieces {
            match (self.shape, &piece.bytes) {
                (Shape::MonolithicSparse, PieceBytes::Plain(range)) => {
                    self.place_plain(&piece, range.clone(), &mut puts)?;
                }
                (Shape::StreamOptimized, PieceBytes::Encoded(bytes)) => {
                    self.place_encoded(&piece, bytes, &mut puts)?;
                }
                _ => {
                    return Err(Error::invalid(
                        "piece that is compressed where it must not be, or not where it must",
                    )
                    .at(piece.at));
                }
            }
        }
        Ok(puts)
    }

    fn finish(&mut self) -> Result<Finish> {
        match self.shape {
            Shape::MonolithicSparse => self.finish_sparse(),
            Shape::StreamOptimized => self.finish_stream(),
        }
    }
}

fn take_shape(options: &mut CreateOptions) -> Result<Shape> {
    match options.take("subformat").as_deref() {
        None | Some("monolithicSparse") => Ok(Shape::MonolithicSparse),
        Some("streamOptimized") => Ok(Shape::StreamOptimized),
        Some(other) => {
            Err(Error::invalid("option").field("subformat", other, "monolithicSparse or streamOptimized"))
        }
    }
}

fn check(shape: Shape, options: &CreateOptions) -> Result<()> {
    if options.compress && shape == Shape::MonolithicSparse {
        return Err(Error::invalid("a monolithicSparse VMDK cannot be compressed")
            .hint("add -o subformat=streamOptimized, which always is"));
    }
    if shape == Shape::StreamOptimized && options.target_is_dirty {
        return Err(Error::invalid(
            "a streamOptimized VMDK ends where its file ends, so it cannot go to a device",
        )
        .hint("write a file, or use -o subformat=monolithicSparse"));
    }
    if options.virtual_bytes == 0 {
        return Err(Error::invalid("a VMDK holds at least one sector"));
    }
    if options.virtual_bytes > VIRTUAL_BYTES_MAX {
        return Err(Error::unsupported("VMDK").field(
            "virtual size",
            format!("{} bytes", options.virtual_bytes),
            format!("at most {VIRTUAL_BYTES_MAX} (64 TiB)"),
        ));
    }
    let name = &options.file_name;
    if name.len() > FILE_NAME_BYTES_MAX || name.contains(|c: char| c == '"' || c.is_control()) {
        return Err(Error::invalid("file name that a VMDK descriptor cannot hold").field(
            "it",
            format!("{name:?}"),
            "a name without quotes and control characters",
        ));
    }
    Ok(())
}

/// The descriptor. The adapter is LSI Logic, which every VMware product since virtual hardware 8 has and which
/// an import may change; the geometry is the one VMware gives such disks.
fn descriptor(shape: Shape, capacity_sectors: u64, options: &CreateOptions) -> String {
    const HEADS: u64 = 255;
    const SECTORS_PER_TRACK: u64 = 63;
    let (create_type, access) = match shape {
        Shape::MonolithicSparse => ("monolithicSparse", "RW"),
        Shape::StreamOptimized => ("streamOptimized", "RDONLY"),
    };
    let (cid, content_id) = content_ids(options.identity_seed);
    let name = &options.file_name;
    let cylinders = capacity_sectors.div_ceil(HEADS * SECTORS_PER_TRACK);
    let uuid = uuid_text(options.identity_seed);
    format!(
        "# Disk DescriptorFile\nversion=1\nencoding=\"UTF-8\"\nCID={cid:08x}\nparentCID=ffffffff\n\
         createType=\"{create_type}\"\n\n# Extent description\n{access} {capacity_sectors} SPARSE \"{name}\"\n\n\
         # The Disk Data Base\n#DDB\n\nddb.virtualHWVersion = \"8\"\nddb.longContentID = \"{content_id:032x}\"\n\
         ddb.uuid = \"{uuid}\"\nddb.geometry.cylinders = \"{cylinders}\"\nddb.geometry.heads = \"{HEADS}\"\n\
         ddb.geometry.sectors = \"{SECTORS_PER_TRACK}\"\nddb.adapterType = \"lsilogic\"\n"
    )
}

/// The content ID, and the long one whose lower 32 bits it is. The two highest values are reserved: no parent,
/// and never written.
fn content_ids(seed: u128) -> (u32, u128) {
    const RESERVED_FROM: u32 = 0xffff_fffe;
    let long = seed ^ 0x6c65_616e_6469_736b_5f63_6f6e_7465_6e74;
    let cid = u32::try_from(long & 0xffff_ffff).expect("32 bits");
    if cid >= RESERVED_FROM { (cid & 0xffff, long & !0xffff_0000) } else { (cid, long) }
}

/// VMware's own way to spell a disk's UUID, within its naming authority's range (60 00 C2 9x).
fn uuid_text(seed: u128) -> String {
    let mut bytes = seed.to_be_bytes();
    bytes[..3].copy_from_slice(&[0x60, 0x00, 0xc2]);
    bytes[3] = 0x90 | (bytes[3] & 0x0f);
    let words = |half: &[u8]| half.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
    format!("{}-{}", words(&bytes[..8]), words(&bytes[8..]))
}

fn sector_offset(sector: u64) -> HostOffset {
    HostOffset::new(sector * SECTOR_BYTES)
}

fn owned(sector: u64, bytes: Vec<u8>) -> TargetWrite {
    TargetWrite { at: sector_offset(sector), bytes: WriteBytes::Owned(bytes) }
}

fn padded(mut bytes: Vec<u8>, multiple: u64) -> Vec<u8> {
    let len = (bytes.len() as u64).next_multiple_of(multiple);
    bytes.resize(usize::try_from(len).expect("in memory already"), 0);
    bytes
}

fn little_endian(entries: impl IntoIterator<Item = u32>) -> Vec<u8> {
    entries.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Makes a zlib stream of each grain, whether it gets smaller or not: a stream has no other grains.
struct GrainEncoder {
    compress: Compress,
}

impl GrainEncoder {
    fn new() -> Self {
        Self { compress: Compress::new(Compression::new(ZLIB_LEVEL), true) }
    }
}

impl Encoder for GrainEncoder {
    fn encode(&mut self, granule: &[u8]) -> Result<Option<Vec<u8>>> {
        self.compress.reset();
        // What cannot be compressed grows by 5 bytes a stored block, plus header and checksum.
        let mut bytes = Vec::with_capacity(granule.len() + granule.len() / 64 + 64);
        let status = self.compress.compress_vec(granule, &mut bytes, FlushCompress::Finish);
        assert_eq!(status.ok(), Some(Status::StreamEnd), "the buffer has room for the worst case");
        Ok(Some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    fn options(keys: &[(&str, &str)]) -> CreateOptions {
        CreateOptions {
            virtual_bytes: 10 << 20,
            sector_bytes: 512,
            compress: false,
            keys: keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            identity_seed: 7,
            created_unix_seconds: 0,
            file_name: "a disk.vmdk".into(),
            target_is_dirty: false,
        }
    }

    const STREAM: (&str, &str) = ("subformat", "streamOptimized");

    #[test]
    fn what_cannot_be_made_is_refused() {
        let kind = |options| VmdkWriter::new(options).unwrap_err().kind();
        assert_eq!(kind(options(&[("subformat", "vmfs")])), ErrorKind::Invalid);
        assert_eq!(kind(options(&[("grain", "1")])), ErrorKind::Invalid);
        assert_eq!(kind(CreateOptions { compress: true, ..options(&[]) }), ErrorKind::Invalid);
        assert_eq!(kind(CreateOptions { virtual_bytes: 0, ..options(&[]) }), ErrorKind::Invalid);
        assert_eq!(
            kind(CreateOptions { virtual_bytes: (64 << 40) + 1, ..options(&[]) }),
            ErrorKind::Unsupported
        );
        assert_eq!(kind(CreateOptions { file_name: "a\"\nRW 1".into(), ..options(&[]) }), ErrorKind::Invalid);
        assert_eq!(kind(CreateOptions { target_is_dirty: true, ..options(&[STREAM]) }), ErrorKind::Invalid);
        assert!(VmdkWriter::new(CreateOptions { compress: true, ..options(&[STREAM]) }).is_ok());
    }

    #[test]
    fn state_survives_storage_on_the_largest_disk() {
        for keys in [&[][..], &[STREAM]] {
            let mut writer =
                VmdkWriter::new(CreateOptions { virtual_bytes: 64 << 40, ..options(keys) }).unwrap();
            let mut total = 0;
            for at in [0, 1 << 30, (64 << 40) - GRAIN_BYTES] {
                let bytes = match keys {
                    [] => PieceBytes::Plain(0..65_536),
                    _ => PieceBytes::Encoded(vec![1; 100]),
                };
                let piece = Piece { at: VirtualOffset::new(at), len_bytes: GRAIN_BYTES, bytes };
                total += writer.place(piece.at, vec![piece.clone()]).unwrap().len();
                let stored = serde_json::to_string(&writer).unwrap();
                writer = serde_json::from_str(&stored).unwrap();
            }
            assert!(total < 20);
            assert!(writer.directory.len() < 64);
            let finish = writer.finish().unwrap();
            assert!(finish.tables.len() < 8);
        }
    }

    #[test]
    fn a_file_past_what_tables_can_name_is_refused() {
        let mut writer = VmdkWriter::new(CreateOptions { virtual_bytes: 4 << 40, ..options(&[]) }).unwrap();
        writer.next_sector = 1 << 32;
        let piece =
            Piece { at: VirtualOffset::ZERO, len_bytes: GRAIN_BYTES, bytes: PieceBytes::Plain(0..65_536) };
        assert_eq!(writer.place(piece.at, vec![piece]).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn random_bytes_fit_the_encoder() {
        let mut state = 1u64;
        let grain: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_be_bytes()[0]
        })
        .take(65_536)
        .collect();
        let mut encoder = GrainEncoder::new();
        let first = encoder.encode(&grain).unwrap().unwrap();
        assert!(first.len() < 66_000);
        assert_eq!(encoder.encode(&grain).unwrap().unwrap(), first, "no state is left behind");
    }

    #[test]
    fn reserved_content_ids_are_not_used() {
        for seed in [0, 7, u128::MAX] {
            let (cid, long) = content_ids(seed);
            assert!(cid < 0xffff_fffe);
            assert_eq!(u128::from(cid), long & 0xffff_ffff);
        }
    }
}
