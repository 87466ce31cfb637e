//! Where a part of a file lies.

use block::Result;
use zerocopy::FromBytes;

use super::key::Key;
use super::layout::{RawFileExtent, RawFileExtentPlace, file_extent};
use super::superblock::Superblock;

/// A part of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FileExtentItem<'a> {
    /// Its bytes are in the item.
    Inline { bytes: &'a [u8], packing: Packing, whole_bytes: u64 },
    /// Nothing is there.
    Hole,
    /// It lies in an extent of data.
    Data(Data),
}

/// How what is kept becomes what is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Packing {
    None,
    Zlib,
    Lzo,
    Zstd,
    /// In a way that is not known, or encrypted.
    Unknown,
}

/// A part of a file that lies in an extent of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Data {
    /// Where the extent begins, and how long it is.
    pub(super) logical: u64,
    pub(super) len_bytes: u64,
    /// Where in the extent the file's part begins, and how long that is: of the bytes once they are decompressed.
    pub(super) offset: u64,
    pub(super) part_bytes: u64,
    pub(super) packing: Packing,
    /// How long the extent is once it is decompressed.
    pub(super) whole_bytes: u64,
    /// It was preallocated, and not written to.
    pub(super) is_unwritten: bool,
}

/// Reads an item.
pub(super) fn parse<'a>(superblock: &Superblock, key: Key, bytes: &'a [u8]) -> Result<FileExtentItem<'a>> {
    let short = || key.wrong("size", bytes.len() as u64, "that of a file extent");
    let (raw, rest) = RawFileExtent::read_from_prefix(bytes).map_err(|_| short())?;
    let packing = match (raw.compression, raw.encryption, raw.other_encoding.get()) {
        (0, 0, 0) => Packing::None,
        (1, 0, 0) => Packing::Zlib,
        (2, 0, 0) => Packing::Lzo,
        (3, 0, 0) => Packing::Zstd,
        _ => Packing::Unknown,
    };
    // What is in a log is of the commit to come.
    if raw.generation.get() > superblock.generation + 1 {
        return Err(key.wrong(
            "generation",
            raw.generation.get(),
            "at most one more than that of the superblock",
        ));
    }
    let is_unwritten = match raw.type_ {
        file_extent::INLINE => {
            return Ok(FileExtentItem::Inline { bytes: rest, packing, whole_bytes: raw.ram_bytes.get() });
        }
        file_extent::REGULAR => false,
        file_extent::PREALLOCATED => true,
        other => return Err(key.wrong("type", other, "inline, regular or preallocated")),
    };
    let place = RawFileExtentPlace::read_from_bytes(rest).map_err(|_| short())?;
    let data = Data {
        logical: place.disk_bytenr.get(),
        len_bytes: place.disk_num_bytes.get(),
        offset: place.offset.get(),
        part_bytes: place.num_bytes.get(),
        packing,
        whole_bytes: raw.ram_bytes.get(),
        is_unwritten,
    };
    for (name, value) in [
        ("key.offset", key.offset),
        ("disk_bytenr", data.logical),
        ("disk_num_bytes", data.len_bytes),
        ("offset", data.offset),
        ("num_bytes", data.part_bytes),
    ] {
        if !value.is_multiple_of(superblock.sector_bytes.into()) {
            return Err(key.wrong(name, value, "whole sectors"));
        }
    }
    if data.logical == 0 {
        return Ok(FileExtentItem::Hole);
    }
    let whole = if packing == Packing::None { data.len_bytes } else { raw.ram_bytes.get() };
    let is_within = data.offset.checked_add(data.part_bytes).is_some_and(|end| end <= whole);
    let has_end = data.logical.checked_add(data.len_bytes).is_some()
        && key.offset.checked_add(data.part_bytes).is_some();
    if !is_within || !has_end || data.part_bytes == 0 {
        return Err(key.wrong("num_bytes", data.part_bytes, "at least 1, and an end within the extent"));
    }
    Ok(FileExtentItem::Data(data))
}
