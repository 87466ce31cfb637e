//! Headers of sparse extents, from raw to validated: what remains is where the tables lie and what their
//! entries mean.

use block::{Error, ErrorKind, FieldValue, HostFile, Result, read_struct, read_vec};
use extent::{HostOffset, HostSpan, Span};

use super::corrupt::Corrupt;
use super::layout::*;
use super::map::{Compression, Encoding, Tables};

/// The most grain-directory entries: 128 TiB of hosted grains of 64 KiB, twice the largest virtual disk.
const GD_ENTRY_COUNT_MAX: u64 = 4 << 20;
/// The largest grain, 2 MiB: VMware writes 64 KiB. It bounds the memory that one compressed grain takes.
const GRAIN_SECTOR_COUNT_MAX: u64 = 4096;
/// Zeros that may follow a stream: tape blocks and transfers fill files up.
const STREAM_PADDING_BYTES_MAX: u64 = 64 << 10;

/// A sparse extent, ready to be mapped.
#[derive(Clone, Debug)]
pub(super) struct SparseExtent {
    /// Sectors of the virtual disk that it holds.
    pub capacity_sectors: u64,
    /// How its grains are found.
    pub tables: Tables,
    /// What a person should know.
    pub notes: Vec<(&'static str, String)>,
    /// Why it should not be written to.
    pub doubt: Option<&'static str>,
    /// A program that wrote to it did not close it.
    pub is_unclosed: bool,
    /// Bytes before the first grain, by the header.
    pub overhead_bytes: u64,
}

/// Which kind of extent a file begins like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Magic {
    /// `KDMV`
    Hosted,
    /// `COWD`
    Cowd,
    /// SESparse
    SeSparse,
}

/// The kind of extent by its first bytes.
pub(super) fn magic(file: &dyn HostFile) -> Result<Option<Magic>> {
    if file.len_bytes() < 8 {
        return Ok(None);
    }
    let mut bytes = [0; 8];
    file.read_at(HostOffset::ZERO, &mut bytes)?;
    let [b0, b1, b2, b3, ..] = bytes;
    Ok(match u32::from_le_bytes([b0, b1, b2, b3]) {
        SPARSE_MAGIC => Some(Magic::Hosted),
        COWD_MAGIC => Some(Magic::Cowd),
        _ if u64::from_le_bytes(bytes) == SESPARSE_MAGIC => Some(Magic::SeSparse),
        _ => None,
    })
}

/// A hosted extent's header whose fields agree.
#[derive(Clone, Debug)]
pub(super) struct HostedHeader {
    /// 0 if the embedded descriptor names other extents.
    pub capacity_sectors: u64,
    /// Where the embedded descriptor lies.
    pub descriptor: Option<HostSpan>,
    version: u32,
    grain_bytes: u64,
    gtes_per_gt: u64,
    zeroed_grains: bool,
    compression: Compression,
    /// `None`: the footer knows.
    pub directory_at: Option<HostOffset>,
    pub redundant_at: Option<HostOffset>,
    overhead_sectors: u64,
    unclean: bool,
}

/// Reads and checks the header at `at`: the file's first sector, or a stream's footer.
pub(super) fn hosted_header(file: &dyn HostFile, at: HostOffset) -> Result<HostedHeader> {
    let raw: SparseHeader = read_struct(file, at, "VMDK sparse header")?;
    let flags = raw.flags.get();
    check_hosted_fields(&raw).map_err(|error| error.at(at))?;
    let capacity_sectors = raw.capacity.get();
    // A header that only carries a descriptor says nothing of grains.
    let grain_sectors = if capacity_sectors == 0 { 1 } else { check_grain_size(raw.grain_size.get(), at)? };
    if capacity_sectors != 0 && !(1..=GTES_PER_GT).contains(&raw.gtes_per_gt.get()) {
        return Err(Error::corrupt(Corrupt::SparseHeader)
            .field("numGTEsPerGT", raw.gtes_per_gt, format!("1 to {GTES_PER_GT}"))
            .at(at));
    }
    let compression = match (raw.compress_algorithm.get(), flags & FLAG_COMPRESSED != 0) {
        (COMPRESSION_NONE, false) => Compression::None,
        (COMPRESSION_DEFLATE, true) => Compression::Zlib { markers: flags & FLAG_MARKERS != 0 },
        (algorithm, _) => {
            return Err(Error::corrupt(Corrupt::SparseHeader)
                .field("compressAlgorithm", algorithm, "1 with flag 0x10000, or 0 without it")
                .at(at));
        }
    };
    let directory_at = match raw.gd_offset.get() {
        GD_AT_END => None,
        sector => Some(offset(sector, "grain directory")?),
    };
    let redundant_at = (flags & FLAG_REDUNDANT != 0 && raw.rgd_offset.get() != 0)
        .then(|| offset(raw.rgd_offset.get(), "redundant grain directory"))
        .transpose();
    Ok(HostedHeader {
        capacity_sectors,
        descriptor: descriptor_span(&raw)?,
        version: raw.version.get(),
        grain_bytes: grain_sectors * SECTOR_BYTES,
        gtes_per_gt: u64::from(raw.gtes_per_gt.get()),
        zeroed_grains: flags & FLAG_ZEROED_GRAINS != 0,
        compression,
        directory_at,
        // Only looked at if the first directory is broken, so a broken place of it is no error.
        redundant_at: redundant_at.unwrap_or(None),
        overhead_sectors: raw.overhead.get(),
        unclean: raw.unclean_shutdown != 0,
    })
}

fn check_hosted_fields(raw: &SparseHeader) -> Result<()> {
    let flags = raw.flags.get();
    if raw.magic.get() != SPARSE_MAGIC {
        return Err(Error::corrupt(Corrupt::SparseHeader).field(
            "magic number",
            FieldValue::hex(raw.magic),
            format!("{SPARSE_MAGIC:#x}"),
        ));
    }
    if !(1..=3).contains(&raw.version.get()) {
        return Err(Error::unsupported("VMDK sparse header").field("version", raw.version, "1 to 3"));
    }
    if flags & FLAG_NEWLINES != 0 && raw.newlines != NEWLINES {
        return Err(Error::corrupt(Corrupt::TextTransfer).field(
            "newline bytes",
            format!("{:02x?}", raw.newlines),
            format!("{NEWLINES:02x?}"),
        ));
    }
    let unknown = flags & FLAGS_INCOMPATIBLE & !(FLAG_COMPRESSED | FLAG_MARKERS);
    if unknown != 0 {
        return Err(Error::unsupported("VMDK sparse header").field(
            "flags",
            FieldValue::hex(flags),
            "of the upper 16 only 0x10000 and 0x20000",
        ));
    }
    Ok(())
}

fn check_grain_size(sectors: u64, at: HostOffset) -> Result<u64> {
    if sectors.is_power_of_two() && sectors <= GRAIN_SECTOR_COUNT_MAX {
        return Ok(sectors);
    }
    Err(Error::corrupt(Corrupt::SparseHeader)
        .field("grainSize", sectors, format!("a power of two up to {GRAIN_SECTOR_COUNT_MAX}"))
        .at(at))
}

fn descriptor_span(raw: &SparseHeader) -> Result<Option<HostSpan>> {
    if raw.descriptor_offset.get() == 0 {
        return Ok(None);
    }
    let bad = || {
        Error::corrupt(Corrupt::SparseHeader).field(
            "descriptor",
            format!("{} sectors at sector {}", raw.descriptor_size, raw.descriptor_offset),
            "1 to 2048 sectors",
        )
    };
    let start = offset(raw.descriptor_offset.get(), "descriptor")?;
    let len_bytes = raw.descriptor_size.get().checked_mul(SECTOR_BYTES).ok_or_else(bad)?;
    if len_bytes == 0 || len_bytes > super::descriptor::LEN_BYTES_MAX {
        return Err(bad());
    }
    Span::checked(start, len_bytes).map(Some).ok_or_else(bad)
}

fn offset(sector: u64, what: &'static str) -> Result<HostOffset> {
    sector.checked_mul(SECTOR_BYTES).map(HostOffset::new).ok_or_else(|| {
        Error::corrupt(Corrupt::Pointer { what }).field("sector", sector, "a sector within the file")
    })
}

/// Finishes a hosted extent: finds the footer if there is one, and a grain directory that holds together.
pub(super) fn hosted_extent(file: &dyn HostFile, first: HostedHeader) -> Result<SparseExtent> {
    let header = if first.directory_at.is_none() { footer(file, &first)? } else { first.clone() };
    let mut notes = vec![("header version", header.version.to_string())];
    let mut doubt = None;
    let is_unclosed = first.unclean || header.unclean;
    if is_unclosed {
        notes.push(("unclean shutdown", "a program had it open for writing and did not close it".into()));
    }
    let directory = |at: HostOffset| -> Result<Tables> {
        let tables = Tables {
            encoding: Encoding::Hosted { zeroed_grains: header.zeroed_grains },
            compression: header.compression,
            grain_bytes: header.grain_bytes,
            gtes_per_gt: header.gtes_per_gt,
            directory_at: at,
            capacity_bytes: capacity_bytes(header.capacity_sectors)?,
            metadata_end: first.descriptor.map_or(SECTOR_BYTES, |span| span.end().get()),
        };
        check_table_count(tables.directory_entry_count())?;
        tables.check_directory(file)?;
        Ok(tables)
    };
    let directory_at = header.directory_at.expect("the header's or the footer's");
    let tables = match (directory(directory_at), header.redundant_at) {
        (Err(error), Some(redundant_at)) if error.kind() == ErrorKind::Corrupt => {
            let tables = directory(redundant_at).map_err(|_| error)?;
            notes.push(("grain directory", "broken; its redundant copy is used".into()));
            doubt = Some("has a broken grain directory");
            tables
        }
        (first, _) => first?,
    };
    let overhead_bytes = header.overhead_sectors.saturating_mul(SECTOR_BYTES);
    Ok(SparseExtent {
        capacity_sectors: header.capacity_sectors,
        tables,
        notes,
        doubt,
        is_unclosed,
        overhead_bytes,
    })
}

fn capacity_bytes(sectors: u64) -> Result<u64> {
    // No file that the host can hold lies above this.
    const SECTOR_COUNT_MAX: u64 = (1 << 62) / SECTOR_BYTES;
    if sectors == 0 || sectors > SECTOR_COUNT_MAX {
        return Err(Error::corrupt(Corrupt::Capacity).field(
            "capacity",
            sectors,
            format!("1 to {SECTOR_COUNT_MAX} sectors"),
        ));
    }
    Ok(sectors * SECTOR_BYTES)
}

/// Fails with `Unsupported` for more grain tables than any disk needs.
pub(super) fn check_table_count(count: u64) -> Result<()> {
    if count > GD_ENTRY_COUNT_MAX {
        return Err(Error::unsupported("VMDK extent").field(
            "number of grain tables",
            count,
            format!("at most {GD_ENTRY_COUNT_MAX}"),
        ));
    }
    Ok(())
}

/// The header at the end of a stream: footer marker, footer, end marker, one sector each.
fn footer(file: &dyn HostFile, header: &HostedHeader) -> Result<HostedHeader> {
    let at = find_footer(file)?;
    let marker_at = HostOffset::new(at.get() - SECTOR_BYTES);
    let marker: MetadataMarker = read_struct(file, marker_at, "VMDK footer marker")?;
    if marker.kind.get() != MARKER_FOOTER || marker.size.get() != 0 {
        return Err(Error::corrupt(Corrupt::FooterMarker)
            .field("type", marker.kind, MARKER_FOOTER)
            .at(marker_at));
    }
    let footer = hosted_header(file, at)?;
    if footer.directory_at.is_none() {
        return Err(Error::corrupt(Corrupt::Footer).field("gdOffset", "at the end", "a sector").at(at));
    }
    if footer.capacity_sectors != header.capacity_sectors || footer.grain_bytes != header.grain_bytes {
        return Err(Error::corrupt(Corrupt::Footer)
            .field(
                "capacity and grain size",
                format!("{} sectors, {} bytes", footer.capacity_sectors, footer.grain_bytes),
                format!("{} sectors, {} bytes as in the header", header.capacity_sectors, header.grain_bytes),
            )
            .at(at));
    }
    Ok(footer)
}

/// The last sector that is not all zeros is the footer; the end marker behind it is all zeros.
fn find_footer(file: &dyn HostFile) -> Result<HostOffset> {
    let end = file.len_bytes() / SECTOR_BYTES * SECTOR_BYTES;
    let start = end.saturating_sub(STREAM_PADDING_BYTES_MAX);
    let tail = read_vec(file, HostOffset::new(start), end - start, "end of the VMDK stream")?;
    let sector_bytes = usize::try_from(SECTOR_BYTES).expect("small");
    let last = tail.chunks_exact(sector_bytes).rposition(|sector| sector.iter().any(|byte| *byte != 0));
    let at = last.map(|index| start + index as u64 * SECTOR_BYTES);
    let is_footer = |at: &u64| {
        let index = usize::try_from(at - start).expect("within the tail");
        tail[index..].starts_with(&SPARSE_MAGIC.to_le_bytes()) && *at > SECTOR_BYTES
    };
    at.filter(is_footer).map(HostOffset::new).ok_or_else(|| {
        Error::corrupt(Corrupt::NoFooter)
            .at(HostOffset::new(end))
            .hint("the file is probably truncated: fetch it again")
    })
}

/// Parses an ESX server sparse extent.
pub(super) fn cowd_extent(file: &dyn HostFile) -> Result<SparseExtent> {
    let raw: CowdHeader = read_struct(file, HostOffset::ZERO, "VMDK COWD header")?;
    if raw.version.get() != 1 {
        return Err(Error::unsupported("VMDK COWD header").field("version", raw.version, 1));
    }
    if raw.flags.get() & COWD_FLAG_INCONSISTENT != 0 {
        return Err(Error::refused("VMDK COWD extent that is marked inconsistent")
            .hint("repair it with vmkfstools -x on an ESX host"));
    }
    let tables = Tables {
        encoding: Encoding::Cowd,
        compression: Compression::None,
        grain_bytes: check_grain_size(u64::from(raw.grain_size.get()), HostOffset::ZERO)? * SECTOR_BYTES,
        gtes_per_gt: u64::from(COWD_GTES_PER_GT),
        directory_at: offset(u64::from(raw.gd_offset.get()), "grain directory")?,
        capacity_bytes: capacity_bytes(u64::from(raw.capacity.get()))?,
        metadata_end: size_of::<CowdHeader>() as u64,
    };
    if u64::from(raw.gd_entry_count.get()) < tables.directory_entry_count() {
        return Err(Error::corrupt(Corrupt::CowdHeader).field(
            "numGDEntries",
            raw.gd_entry_count,
            format!("at least {}", tables.directory_entry_count()),
        ));
    }
    check_table_count(tables.directory_entry_count())?;
    tables.check_directory(file)?;
    let mut notes = Vec::new();
    if raw.unclean_shutdown.get() != 0 {
        notes.push(("unclean shutdown", "a program had it open for writing and did not close it".into()));
    }
    let capacity_sectors = u64::from(raw.capacity.get());
    Ok(SparseExtent { capacity_sectors, tables, notes, doubt: None, is_unclosed: false, overhead_bytes: 0 })
}

/// Parses an SESparse extent. Since the format is not documented, everything not known to be right is refused.
pub(super) fn sesparse_extent(file: &dyn HostFile) -> Result<SparseExtent> {
    let raw: SeSparseHeader = read_struct(file, HostOffset::ZERO, "VMDK SESparse header")?;
    let known = [
        ("magic number", raw.magic.get(), SESPARSE_MAGIC),
        ("version", raw.version.get(), SESPARSE_VERSION),
        ("grain size", raw.grain_size.get(), 8),
        ("grain table size", raw.grain_table_size.get(), 64),
        ("flags", raw.flags.get(), 0),
    ];
    for (field, found, expected) in known {
        if found != expected {
            return Err(Error::unsupported("VMDK SESparse header").field(
                field,
                FieldValue::hex(found),
                format!("{expected:#x}"),
            ));
        }
    }
    if raw.reserved.iter().any(|word| word.get() != 0) || raw.pad.iter().any(|byte| *byte != 0) {
        return Err(Error::unsupported("VMDK SESparse header whose reserved fields are in use"));
    }
    check_volatile_header(file, raw.volatile_header)?;
    let tables = Tables {
        encoding: Encoding::SeSparse {
            tables: area(raw.grain_tables, "SESparse grain tables")?,
            grains: area(raw.grains, "SESparse grains")?,
        },
        compression: Compression::None,
        grain_bytes: raw.grain_size.get() * SECTOR_BYTES,
        gtes_per_gt: raw.grain_table_size.get() * SECTOR_BYTES / size_of::<u64>() as u64,
        directory_at: offset(raw.grain_directory.offset.get(), "SESparse grain directory")?,
        capacity_bytes: capacity_bytes(raw.capacity.get())?,
        metadata_end: SECTOR_BYTES,
    };
    check_table_count(tables.directory_entry_count())?;
    let directory = area(raw.grain_directory, "SESparse grain directory")?;
    if directory.len_bytes() / 8 < tables.directory_entry_count() {
        return Err(Error::corrupt(Corrupt::SeSparseHeader).field(
            "grain directory size",
            raw.grain_directory.size,
            format!("room for {} entries", tables.directory_entry_count()),
        ));
    }
    tables.check_directory(file)?;
    let capacity_sectors = raw.capacity.get();
    Ok(SparseExtent {
        capacity_sectors,
        tables,
        notes: Vec::new(),
        doubt: None,
        is_unclosed: false,
        overhead_bytes: 0,
    })
}

fn check_volatile_header(file: &dyn HostFile, place: SeSparseArea) -> Result<()> {
    let at = offset(place.offset.get(), "SESparse volatile header")?;
    let raw: SeSparseVolatileHeader = read_struct(file, at, "VMDK SESparse volatile header")?;
    if raw.magic.get() != SESPARSE_VOLATILE_MAGIC {
        return Err(Error::corrupt(Corrupt::SeSparseVolatileHeader)
            .field("magic number", FieldValue::hex(raw.magic), format!("{SESPARSE_VOLATILE_MAGIC:#x}"))
            .at(at));
    }
    if raw.replay_journal.get() != 0 {
        return Err(Error::refused("VMDK SESparse extent with a journal to be replayed")
            .hint("its layout is not public: open and close the disk once on an ESX host"));
    }
    if raw.pad.iter().any(|byte| *byte != 0) {
        return Err(
            Error::unsupported("VMDK SESparse volatile header whose reserved fields are in use").at(at)
        );
    }
    Ok(())
}

fn area(raw: SeSparseArea, what: &'static str) -> Result<HostSpan> {
    let start = offset(raw.offset.get(), what)?;
    let len_bytes = raw.size.get().checked_mul(SECTOR_BYTES);
    len_bytes.and_then(|len_bytes| Span::checked(start, len_bytes)).ok_or_else(|| {
        Error::corrupt(Corrupt::Pointer { what }).field("size", raw.size, "sectors within the file")
    })
}
