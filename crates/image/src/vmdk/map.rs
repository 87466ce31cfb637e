//! From the virtual disk to the files: grain directories, grain tables and their entries.

use block::{
    Cached, Error, FieldValue, FileIndex, HostFile, ReadAt, Result, Run, RunState, check_bounds, push_run,
    read_vec,
};
use extent::{Host, HostOffset, HostSpan, Offset, Span, VirtualOffset, VirtualSpan};
use std::ops::Range;
use std::sync::Arc;

use super::corrupt::Corrupt;
use super::layout::*;

/// What table entries mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// Sectors in 32 bits; 1 marks a zeroed grain if the header says so.
    Hosted {
        /// See [`FLAG_ZEROED_GRAINS`].
        zeroed_grains: bool,
    },
    /// Sectors in 32 bits.
    Cowd,
    /// Numbers in 64 bits, counted within areas.
    SeSparse {
        /// Where the tables lie.
        tables: HostSpan,
        /// Where the grains lie.
        grains: HostSpan,
    },
}

/// How grains are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    /// As they are.
    None,
    /// As zlib streams.
    Zlib {
        /// Preceded by a [`GrainMarker`], which tells the length.
        markers: bool,
    },
}

/// How the grains of one sparse extent are found. All counts are validated.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    /// What entries mean.
    pub encoding: Encoding,
    /// How grains are stored.
    pub compression: Compression,
    /// Bytes of a grain: a power of two, at most 2 MiB.
    pub grain_bytes: u64,
    /// Entries of a grain table.
    pub gtes_per_gt: u64,
    /// Where the grain directory lies.
    pub directory_at: HostOffset,
    /// Bytes of the virtual disk that the extent holds.
    pub capacity_bytes: u64,
    /// No grain lies before this.
    pub metadata_end: u64,
}

/// Where a grain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grain {
    Absent,
    Zero,
    At(HostOffset),
}

/// Directory entries read at once.
const BATCH_ENTRY_COUNT: u64 = 1024;

impl Tables {
    /// Where the grain directory lies, as far as it counts.
    pub(super) fn directory(&self) -> Option<HostSpan> {
        Span::checked(self.directory_at, self.directory_entry_count() * self.entry_bytes())
    }

    /// Number of grain tables, present or not.
    pub(super) fn directory_entry_count(&self) -> u64 {
        self.capacity_bytes.div_ceil(self.table_coverage_bytes())
    }

    fn table_coverage_bytes(&self) -> u64 {
        self.grain_bytes * self.gtes_per_gt
    }

    fn entry_bytes(&self) -> u64 {
        match self.encoding {
            Encoding::Hosted { .. } | Encoding::Cowd => 4,
            Encoding::SeSparse { .. } => 8,
        }
    }

    /// Checks that the directory and every table it names lie within the file.
    pub(super) fn check_directory(&self, file: &dyn HostFile) -> Result<()> {
        let count = self.directory_entry_count();
        let mut index = 0;
        while index < count {
            let batch = index..count.min(index + BATCH_ENTRY_COUNT);
            for (raw, entry) in
                self.entries(file, self.directory_at, batch.clone())?.into_iter().zip(batch.clone())
            {
                self.table_at(entry, raw, file.len_bytes())?;
            }
            index = batch.end;
        }
        Ok(())
    }

    /// Calls `visit` with the place of every table.
    pub(super) fn each_table(&self, file: &dyn HostFile, mut visit: impl FnMut(HostOffset)) -> Result<()> {
        let count = self.directory_entry_count();
        let mut index = 0;
        while index < count {
            let batch = index..count.min(index + BATCH_ENTRY_COUNT);
            let entries = self.entries(file, self.directory_at, batch.clone())?;
            for (raw, entry) in entries.into_iter().zip(batch.clone()) {
                if let Some(at) = self.table_at(entry, raw, file.len_bytes())? {
                    visit(at);
                }
            }
            index = batch.end;
        }
        Ok(())
    }

    /// The raw entries `range` of the table at `table_at`.
    fn entries(
        &self,
        file: &(impl ReadAt<Host> + ?Sized),
        table_at: HostOffset,
        range: Range<u64>,
    ) -> Result<Vec<u64>> {
        let width = self.entry_bytes();
        let at = table_at.checked_add(range.start * width).ok_or_else(|| {
            Error::corrupt(Corrupt::GrainDirectory).field("place", format!("{table_at:?}"), "within the file")
        })?;
        let bytes = read_vec(file, at, (range.end - range.start) * width, "VMDK grain directory or table")?;
        let number = |entry: &[u8]| {
            let mut wide = [0; 8];
            wide[..entry.len()].copy_from_slice(entry);
            u64::from_le_bytes(wide)
        };
        Ok(bytes.chunks_exact(usize::try_from(width).expect("4 or 8")).map(number).collect())
    }

    /// Where the table `index` lies by its directory entry, `None` if it has none.
    fn table_at(&self, index: u64, raw: u64, file_len_bytes: u64) -> Result<Option<HostOffset>> {
        if raw == 0 {
            return Ok(None);
        }
        let bad = |expected: String| {
            Error::corrupt(Corrupt::GrainDirectory)
                .field(format!("entry {index}"), FieldValue::hex(raw), expected)
                .at(self.directory_at)
        };
        let table_bytes = self.gtes_per_gt * self.entry_bytes();
        let start = match self.encoding {
            Encoding::Hosted { .. } | Encoding::Cowd => raw * SECTOR_BYTES,
            Encoding::SeSparse { tables, .. } => {
                let number = raw & 0xffff_ffff;
                if raw >> 32 != SESPARSE_GDE_ALLOCATED || number >= tables.len_bytes() / table_bytes {
                    return Err(bad("0 or 0x10000000 above a table's number".into()));
                }
                tables.start().get() + number * table_bytes
            }
        };
        // The last table may be cut off behind the last entry that counts.
        let covered = self.capacity_bytes - index * self.table_coverage_bytes();
        let needed = covered.div_ceil(self.grain_bytes).min(self.gtes_per_gt) * self.entry_bytes();
        if start.checked_add(needed).is_none_or(|end| end > file_len_bytes) {
            return Err(bad(format!("a table below the file's end at {file_len_bytes:#x}")));
        }
        Ok(Some(HostOffset::new(start)))
    }

    /// What the entry `raw` of the table at `table_at` means, for the grain `index` of the extent.
    fn grain(&self, index: u64, raw: u64, table_at: HostOffset, file_len_bytes: u64) -> Result<Grain> {
        let bad = |expected: &str| {
            Error::corrupt(Corrupt::GrainTable)
                .field(format!("entry of grain {index}"), FieldValue::hex(raw), expected)
                .at(table_at)
        };
        let start = match self.encoding {
            Encoding::Hosted { zeroed_grains: true } if raw == u64::from(GTE_ZEROED) => {
                return Ok(Grain::Zero);
            }
            Encoding::Hosted { .. } | Encoding::Cowd if raw == u64::from(GTE_ABSENT) => {
                return Ok(Grain::Absent);
            }
            Encoding::Hosted { .. } | Encoding::Cowd => raw * SECTOR_BYTES,
            Encoding::SeSparse { grains, .. } => match raw >> SESPARSE_GTE_KIND_SHIFT {
                0 if raw == 0 => return Ok(Grain::Absent),
                SESPARSE_GTE_UNMAPPED | SESPARSE_GTE_ZEROED => return Ok(Grain::Zero),
                SESPARSE_GTE_ALLOCATED => {
                    let number = ((raw >> 48) & 0xfff) | ((raw & 0xffff_ffff_ffff) << 12);
                    if number >= grains.len_bytes() / self.grain_bytes {
                        return Err(bad("a grain within the grains' area"));
                    }
                    grains.start().get() + number * self.grain_bytes
                }
                _ => return Err(bad("0, or kind 1 to 3 in the upper 4 bits")),
            },
        };
        let len_bytes = match self.compression {
            Compression::None => self.grain_bytes.min(self.capacity_bytes - index * self.grain_bytes),
            Compression::Zlib { .. } => 1,
        };
        if start < self.metadata_end {
            return Err(bad("a sector behind the header and the descriptor"));
        }
        if start.checked_add(len_bytes).is_none_or(|end| end > file_len_bytes) {
            return Err(bad("a grain below the file's end"));
        }
        Ok(Grain::At(HostOffset::new(start)))
    }

    /// Calls `emit` with consecutive parts of `window` (offsets within the extent's part of the disk, below its
    /// capacity), whole grains except at the window's ends, and where each is.
    pub(super) fn for_each(
        &self,
        file: &(impl ReadAt<Host> + ?Sized),
        window: VirtualSpan,
        mut emit: impl FnMut(VirtualSpan, Grain),
    ) -> Result<()> {
        let coverage = self.table_coverage_bytes();
        let mut batch: Range<u64> = 0..0;
        let mut directory = Vec::new();
        for part in window.split(coverage) {
            let index = part.start().get() / coverage;
            if !batch.contains(&index) {
                let last = (window.end().get() - 1) / coverage;
                batch = index..(last + 1).min(index + BATCH_ENTRY_COUNT);
                directory = self.entries(file, self.directory_at, batch.clone())?;
            }
            let raw = directory[usize::try_from(index - batch.start).expect("within the batch")];
            match self.table_at(index, raw, file.len_bytes())? {
                None => emit(part, Grain::Absent),
                Some(table_at) => self.for_each_of_table(file, table_at, part, &mut emit)?,
            }
        }
        Ok(())
    }

    fn for_each_of_table(
        &self,
        file: &(impl ReadAt<Host> + ?Sized),
        table_at: HostOffset,
        part: VirtualSpan,
        emit: &mut impl FnMut(VirtualSpan, Grain),
    ) -> Result<()> {
        let first = part.start().get() / self.grain_bytes;
        let last = (part.end().get() - 1) / self.grain_bytes;
        let in_table = first % self.gtes_per_gt;
        let entries = self.entries(file, table_at, in_table..in_table + (last - first + 1))?;
        for (piece, raw) in part.split(self.grain_bytes).zip(entries) {
            let index = piece.start().get() / self.grain_bytes;
            emit(piece, self.grain(index, raw, table_at, file.len_bytes())?);
        }
        Ok(())
    }
}

/// All host files of a layer as one space, so that one bounded cache serves thousands of extents.
pub(super) struct Joined {
    /// Each file with its first offset: a multiple of the alignment.
    files: Vec<(u64, Arc<dyn HostFile>)>,
    len_bytes: u64,
}

impl Joined {
    /// A multiple of the cache's pages, so that no page holds two files.
    const ALIGNMENT_BYTES: u64 = 1 << 20;

    pub(super) fn new(files: &[Arc<dyn HostFile>]) -> Result<Self> {
        let mut joined = Self { files: Vec::new(), len_bytes: 0 };
        for file in files {
            joined.files.push((joined.len_bytes, file.clone()));
            joined.len_bytes = file
                .len_bytes()
                .checked_next_multiple_of(Self::ALIGNMENT_BYTES)
                .and_then(|len_bytes| joined.len_bytes.checked_add(len_bytes))
                .ok_or_else(|| Error::unsupported("VMDK extents of more than 16 EiB together"))?;
        }
        Ok(joined)
    }
}

impl ReadAt<Host> for Joined {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Within one file and its padding, which reads as zeros.
    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes)?;
        let index = self.files.partition_point(|(start, _)| *start <= at.get());
        let Some((start, file)) = index.checked_sub(1).map(|index| &self.files[index]) else { return Ok(()) };
        let within = at.get() - start;
        let rest = file.len_bytes().saturating_sub(within).min(buf.len() as u64);
        let (inside, padding) = buf.split_at_mut(usize::try_from(rest).expect("at most the buffer"));
        padding.fill(0);
        if inside.is_empty() {
            return Ok(());
        }
        file.read_at(HostOffset::new(within), inside).map_err(|error| error.path(file.name()))
    }
}

/// One file's metadata through the layer's cache.
struct FileView<'a> {
    cache: &'a Cached<Host, Joined>,
    start: u64,
    len_bytes: u64,
}

impl ReadAt<Host> for FileView<'_> {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes)?;
        self.cache.read_at(at.plus(self.start), buf)
    }
}

/// A part of the virtual disk: one line of the extent description.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Where on the virtual disk.
    pub span: VirtualSpan,
    /// What holds it.
    pub source: Source,
}

/// What holds a part of the virtual disk.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// Nothing: it reads as zeros.
    Zero,
    /// The bytes from `at`, all of them within the file.
    Flat {
        /// The file.
        file: FileIndex,
        /// Where they begin.
        at: HostOffset,
    },
    /// Grains.
    Sparse {
        /// The file.
        file: FileIndex,
        /// How they are found.
        tables: Tables,
        /// Bytes before the first grain, by the header.
        overhead_bytes: u64,
    },
}

/// The parts of a disk over the files that hold them.
pub(super) struct Map {
    parts: Vec<Part>,
    cache: Cached<Host, Joined>,
}

/// Memory for tables: the tables of 512 GiB of hosted grains.
const CACHE_BYTES: u64 = 16 << 20;

impl Map {
    /// `parts` follow each other from 0; their files are indices into `files`.
    pub(super) fn new(parts: Vec<Part>, files: &[Arc<dyn HostFile>]) -> Result<Self> {
        Ok(Self { parts, cache: Cached::new(Joined::new(files)?, CACHE_BYTES) })
    }

    fn view(&self, file: FileIndex) -> FileView<'_> {
        let (start, file) = &self.cache.below().files[file.0 as usize];
        FileView { cache: &self.cache, start: *start, len_bytes: file.len_bytes() }
    }

    fn parts_within(&self, span: VirtualSpan) -> impl Iterator<Item = (&Part, VirtualSpan)> {
        let first = self.parts.partition_point(|part| part.span.end() <= span.start());
        self.parts[first..].iter().map_while(move |part| Some((part, part.span.intersect(&span)?)))
    }

    /// See [`crate::Layer::map`].
    pub(super) fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        for (part, window) in self.parts_within(span) {
            let skip_bytes = window.start().get() - part.span.start().get();
            match &part.source {
                Source::Zero => push_run(&mut runs, Run::new(window, RunState::Zero)),
                Source::Flat { file, at } => {
                    let state = RunState::Data { file: *file, offset: at.plus(skip_bytes) };
                    push_run(&mut runs, Run::new(window, state));
                }
                Source::Sparse { file, tables, .. } => {
                    self.map_grains(part, *file, tables, window, &mut runs)?;
                }
            }
        }
        Ok(runs)
    }

    fn map_grains(
        &self,
        part: &Part,
        file: FileIndex,
        tables: &Tables,
        window: VirtualSpan,
        runs: &mut Vec<Run>,
    ) -> Result<()> {
        let view = self.view(file);
        let part_at = part.span.start();
        let within = Span::new(Offset::new(window.start().get() - part_at.get()), window.len_bytes());
        let name = || self.cache.below().files[file.0 as usize].1.name().to_owned();
        let emit = |piece: VirtualSpan, grain| {
            let state = state_of(tables, file, piece.start(), grain, view.len_bytes);
            push_run(runs, Run::new(Span::new(part_at.plus(piece.start().get()), piece.len_bytes()), state));
        };
        tables.for_each(&view, within, emit).map_err(|error| error.path(name()))
    }

    /// The parts, in order.
    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Calls `each` with the places of the grain tables of a sparse part of `file`. The last one may be cut off by the
    /// file's end.
    pub(super) fn each_table(
        &self,
        file: FileIndex,
        tables: &Tables,
        mut each: impl FnMut(HostSpan) -> Result<()>,
    ) -> Result<()> {
        let view = self.view(file);
        let count = tables.directory_entry_count();
        let mut index = 0;
        while index < count {
            let batch = index..count.min(index + BATCH_ENTRY_COUNT);
            for (raw, entry) in
                tables.entries(&view, tables.directory_at, batch.clone())?.into_iter().zip(batch.clone())
            {
                if let Some(at) = tables.table_at(entry, raw, view.len_bytes)? {
                    let end = at.plus(tables.gtes_per_gt * tables.entry_bytes());
                    each(Span::between(at, end.min(Offset::new(view.len_bytes))))?;
                }
            }
            index = batch.end;
        }
        Ok(())
    }

    /// See [`crate::Layer::read_compressed`].
    pub(super) fn read_compressed(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        let mut rest = buf;
        let mut at = at;
        while !rest.is_empty() {
            let one = Span::new(at, 1);
            let (part, _) = self.parts_within(one).next().expect("the caller asks within the disk");
            let Source::Sparse { file, tables, .. } = &part.source else { return Err(not_compressed(at)) };
            let within = at.get() - part.span.start().get();
            let skip_bytes = within % tables.grain_bytes;
            let end = part.span.end().get().min(at.get() + (tables.grain_bytes - skip_bytes));
            let len_bytes = (end - at.get()).min(rest.len() as u64);
            let mut place = Grain::Absent;
            tables
                .for_each(&self.view(*file), Span::new(Offset::new(within), 1), |_, grain| place = grain)?;
            let Grain::At(offset) = place else { return Err(not_compressed(at)) };
            let grain = self.inflated(*file, tables, within / tables.grain_bytes, offset)?;
            let (piece, after) = rest.split_at_mut(usize::try_from(len_bytes).expect("within the buffer"));
            let skip = usize::try_from(skip_bytes).expect("within a grain");
            piece.copy_from_slice(&grain[skip..skip + piece.len()]);
            at = at.plus(len_bytes);
            rest = after;
        }
        Ok(())
    }

    /// The grain `index` of an extent, at least as long as the disk needs it.
    fn inflated(&self, file: FileIndex, tables: &Tables, index: u64, at: HostOffset) -> Result<Vec<u8>> {
        let (_, file) = &self.cache.below().files[file.0 as usize];
        let data = compressed_bytes(&**file, tables, index, at)?;
        let mut grain = vec![0; usize::try_from(tables.grain_bytes).expect("at most 2 MiB")];
        let needed = tables.grain_bytes.min(tables.capacity_bytes - index * tables.grain_bytes);
        let mut inflate = flate2::Decompress::new(true);
        let status = inflate.decompress(&data, &mut grain, flate2::FlushDecompress::Finish);
        let bad = |found: String| {
            Error::corrupt(Corrupt::CompressedGrain)
                .field(format!("grain {index}"), found, "a zlib stream of a whole grain")
                .at(at)
        };
        match status {
            Ok(flate2::Status::StreamEnd) if inflate.total_out() >= needed => Ok(grain),
            Ok(flate2::Status::StreamEnd) => Err(bad(format!("{} bytes", inflate.total_out()))),
            Ok(_) => Err(bad("cut off or longer than a grain".into())),
            Err(error) => Err(bad(error.to_string())),
        }
    }
}

fn not_compressed(at: VirtualOffset) -> Error {
    Error::invalid("read of a VMDK grain that is not compressed").at(at)
}

/// No encoder makes a grain larger than this, its marker included; QEMU's limit too.
fn compressed_bytes_max(tables: &Tables) -> u64 {
    tables.grain_bytes * 2 + SECTOR_BYTES
}

fn state_of(
    tables: &Tables,
    file: FileIndex,
    piece_at: VirtualOffset,
    grain: Grain,
    file_len_bytes: u64,
) -> RunState {
    match (grain, tables.compression) {
        (Grain::Absent, _) => RunState::Hole,
        (Grain::Zero, _) => RunState::Zero,
        (Grain::At(start), Compression::None) => {
            RunState::Data { file, offset: start.plus(piece_at.get() % tables.grain_bytes) }
        }
        (Grain::At(start), Compression::Zlib { .. }) => RunState::Compressed {
            file,
            offset: start,
            len_bytes: compressed_bytes_max(tables).min(file_len_bytes - start.get()),
        },
    }
}

/// The compressed bytes of a grain, exactly or with what follows where no marker tells the length.
fn compressed_bytes(file: &dyn HostFile, tables: &Tables, index: u64, at: HostOffset) -> Result<Vec<u8>> {
    let rest = file.len_bytes().saturating_sub(at.get());
    let Compression::Zlib { markers: true } = tables.compression else {
        return read_vec(file, at, compressed_bytes_max(tables).min(rest), "VMDK compressed grain");
    };
    let marker_bytes = size_of::<GrainMarker>() as u64;
    // Marker and data together in most cases: what compresses at all fits into a grain.
    let bytes = read_vec(file, at, (marker_bytes + tables.grain_bytes).min(rest), "VMDK compressed grain")?;
    let Ok((marker, data)) = <GrainMarker as zerocopy::FromBytes>::read_from_prefix(&bytes) else {
        return Err(Error::corrupt(Corrupt::MarkerPastEnd).at(at));
    };
    let lba = index * (tables.grain_bytes / SECTOR_BYTES);
    if marker.lba.get() != lba {
        return Err(Error::corrupt(Corrupt::GrainMarker).field("lba", marker.lba, lba).at(at));
    }
    let size = u64::from(marker.size.get());
    if size == 0 || size > compressed_bytes_max(tables) {
        return Err(Error::corrupt(Corrupt::GrainMarker)
            .field("size", size, format!("1 to {}", compressed_bytes_max(tables)))
            .at(at));
    }
    match usize::try_from(size).ok().and_then(|size| data.get(..size)) {
        Some(data) => Ok(data.to_vec()),
        None => read_vec(file, at.plus(marker_bytes), size, "VMDK compressed grain"),
    }
}
