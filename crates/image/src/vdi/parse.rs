//! The header, from raw to validated.

use block::{Error, FieldValue, HostFile, ReadAt, Result, read_struct};
use extent::{Host, HostOffset};
use uuid::Uuid;

use super::corrupt::Corrupt;
use super::layout::*;

/// The least a header of version 1.1 has.
const HEADER_BYTES_MIN: u32 = 384;
/// Smaller blocks would make maps without end; VirtualBox makes none below 1 MiB.
const BLOCK_BYTES_MIN: u32 = 4096;
/// The largest power of two with room for the extra bytes.
const BLOCK_BYTES_MAX: u32 = 1 << 30;

/// What an image may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Dynamic,
    Fixed,
    Differencing,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Dynamic => super::DYNAMIC,
            Self::Fixed => "fixed",
            Self::Differencing => "differencing",
        }
    }
}

/// A header whose fields agree with each other and with the file's length.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub kind: Kind,
    pub disk_bytes: u64,
    pub block_bytes: u64,
    pub block_extra_bytes: u64,
    pub map_at: HostOffset,
    pub data_at: u64,
    pub uuid_create: Uuid,
    pub uuid_modify: Uuid,
    pub uuid_linkage: Uuid,
    pub uuid_parent_modify: Uuid,
    pub comment: String,
}

/// Whether the file bears the signature.
pub(super) fn has_signature(file: &dyn HostFile) -> Result<bool> {
    if file.len_bytes() < size_of::<VdiHeader>() as u64 {
        return Ok(false);
    }
    let raw: VdiHeader = read_struct(file, HostOffset::ZERO, "VDI header")?;
    Ok(raw.signature.get() == SIGNATURE)
}

/// Reads and checks the header.
pub(super) fn header(file: &(impl ReadAt<Host> + ?Sized)) -> Result<Header> {
    let raw: VdiHeader = read_struct(file, HostOffset::ZERO, "VDI header")?;
    if raw.signature.get() != SIGNATURE {
        return Err(bad("signature", FieldValue::hex(raw.signature), format!("{SIGNATURE:#x}")));
    }
    let version = raw.version.get();
    if version != VERSION_1_1 {
        let found = format!("{}.{}", version >> 16, version & 0xffff);
        return Err(Error::unsupported("VDI header").field("version", found, "1.1"));
    }
    let kind = kind(raw.image_type.get())?;
    check_block(&raw)?;
    check_places(&raw, file.len_bytes())?;
    let header = Header {
        kind,
        disk_bytes: raw.disk_bytes.get(),
        block_bytes: u64::from(raw.block_bytes.get()),
        block_extra_bytes: u64::from(raw.block_extra_bytes.get()),
        map_at: HostOffset::new(u64::from(raw.map_offset.get())),
        data_at: u64::from(raw.data_offset.get()),
        uuid_create: Uuid::from_bytes_le(raw.uuid_create),
        uuid_modify: Uuid::from_bytes_le(raw.uuid_modify),
        uuid_linkage: Uuid::from_bytes_le(raw.uuid_linkage),
        uuid_parent_modify: Uuid::from_bytes_le(raw.uuid_parent_modify),
        comment: comment(&raw.comment),
    };
    check_linkage(&header)?;
    Ok(header)
}

fn bad(field: &str, found: impl Into<FieldValue>, expected: impl std::fmt::Display) -> Error {
    Error::corrupt(Corrupt::Header).field(field, found, expected).at(HostOffset::ZERO)
}

fn kind(image_type: u32) -> Result<Kind> {
    match image_type {
        TYPE_DYNAMIC => Ok(Kind::Dynamic),
        TYPE_FIXED => Ok(Kind::Fixed),
        TYPE_DIFFERENCING => Ok(Kind::Differencing),
        _ => Err(Error::unsupported("VDI header").field(
            "image type",
            image_type,
            "1 (dynamic), 2 (fixed) or 4 (differencing)",
        )),
    }
}

fn check_block(raw: &VdiHeader) -> Result<()> {
    let block_bytes = raw.block_bytes.get();
    if !block_bytes.is_power_of_two() || !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes) {
        return Err(bad(
            "block size",
            block_bytes,
            format!("a power of two from {BLOCK_BYTES_MIN} to {BLOCK_BYTES_MAX}"),
        ));
    }
    if raw.block_extra_bytes.get() > block_bytes || !raw.block_extra_bytes.get().is_multiple_of(512) {
        return Err(bad(
            "extra bytes of a block",
            raw.block_extra_bytes,
            format!("whole sectors, at most {block_bytes}"),
        ));
    }
    if ![0, 512].contains(&raw.sector_bytes.get()) {
        return Err(Error::unsupported("VDI header").field("sector size", raw.sector_bytes, 512));
    }
    Ok(())
}

fn check_places(raw: &VdiHeader, file_len_bytes: u64) -> Result<()> {
    let block_count = u64::from(raw.block_count.get());
    let needed = raw.disk_bytes.get().div_ceil(u64::from(raw.block_bytes.get()));
    if block_count < needed {
        return Err(bad("number of blocks", block_count, format!("at least {needed} for the disk's size")));
    }
    if raw.header_bytes.get() < HEADER_BYTES_MIN {
        return Err(bad("header size", raw.header_bytes, format!("at least {HEADER_BYTES_MIN}")));
    }
    let header_end = std::mem::offset_of!(VdiHeader, header_bytes) as u64 + u64::from(raw.header_bytes.get());
    let map_start = u64::from(raw.map_offset.get());
    let map_end = map_start + block_count * 4;
    if map_start < header_end || map_end > file_len_bytes {
        return Err(bad(
            "block map",
            format!("{map_start:#x} to {map_end:#x}"),
            format!("from {header_end:#x} to the file's end at {file_len_bytes:#x}"),
        ));
    }
    if u64::from(raw.data_offset.get()) < map_end {
        return Err(bad("data offset", raw.data_offset, format!("{map_end:#x}, behind the map, or above")));
    }
    Ok(())
}

/// A parent that only one of two fields knows of is a doubt whether free blocks read as zeros.
fn check_linkage(header: &Header) -> Result<()> {
    let linked = !header.uuid_linkage.is_nil();
    match header.kind {
        Kind::Differencing if !linked => Err(bad("parent's UUID", "zeros", "a UUID in a differencing image")),
        Kind::Dynamic | Kind::Fixed if linked => Err(bad(
            "parent's UUID",
            header.uuid_linkage.to_string(),
            "zeros in an image that is not differencing",
        )),
        _ => Ok(()),
    }
}

fn comment(raw: &[u8]) -> String {
    let end = raw.iter().position(|byte| *byte == 0).unwrap_or(raw.len());
    String::from_utf8_lossy(&raw[..end]).into_owned()
}
