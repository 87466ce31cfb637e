//! How a new image is laid out.
//!
//! A writer is pure: it is told in ascending order which pieces of the virtual disk hold data, and answers
//! where they go and which metadata goes with them. The engine reads, looks for zeros, compresses and writes
//! in parallel around it. Because placement is ordered, the same input gives the same image, byte for byte;
//! tables are finished as placement passes them, so that memory stays bounded; and the writer's whole state can
//! be stored in the middle of a copy and restored to go on with it.

use std::collections::BTreeMap;
use std::ops::Range;

use block::{Error, Result};
use extent::{HostOffset, VirtualOffset, VirtualSpan};
use serde::{Deserialize, Serialize};

use crate::{Format, qcow2, raw, vdi, vhd, vhdx, vmdk};

/// What a new image shall be.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Size of the virtual disk.
    pub virtual_bytes: u64,
    /// Sector size that the guest shall see: 512 or 4096. Formats that cannot say it ignore it.
    pub sector_bytes: u32,
    /// Compress clusters (`--compress`).
    pub compress: bool,
    /// `-o key=value`. A writer refuses keys it does not know, see [`CreateOptions::take`].
    pub keys: BTreeMap<String, String>,
    /// Where identifiers come from (UUIDs): random in the program, fixed in tests.
    pub identity_seed: u128,
    /// The time to note in headers, in seconds since 1970 (UTC).
    pub created_unix_seconds: u64,
    /// The last component of the target's path, for formats that name themselves.
    pub file_name: String,
    /// The target holds old contents (a block device): what is not written must be zeroed.
    pub target_is_dirty: bool,
}

impl CreateOptions {
    /// Removes the key, to be called for each one that a writer knows; [`CreateOptions::finish`] then
    /// refuses what is left.
    pub fn take(&mut self, key: &str) -> Option<String> {
        self.keys.remove(key)
    }

    /// Fails with `Invalid` if a key was not taken.
    pub fn finish(&self, format: Format) -> Result<()> {
        match self.keys.keys().next() {
            Some(key) => Err(Error::invalid(format!("{format} has no option '{key}'"))),
            None => Ok(()),
        }
    }

    /// Takes a byte count such as `65536`, `64K` or `2M`; powers of two within `range` only.
    pub fn take_power_of_two(&mut self, key: &str, default: u64, range: Range<u64>) -> Result<u64> {
        let Some(text) = self.take(key) else { return Ok(default) };
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match text[digits.len()..].to_ascii_uppercase().as_str() {
            "" | "B" => Some(1),
            "K" | "KIB" => Some(1 << 10),
            "M" | "MIB" => Some(1 << 20),
            _ => None,
        };
        let value =
            digits.parse().ok().zip(unit).and_then(|(number, unit): (u64, u64)| number.checked_mul(unit));
        match value {
            Some(value) if value.is_power_of_two() && range.contains(&value) => Ok(value),
            _ => Err(Error::invalid("option").field(
                key,
                text.as_str(),
                format!("a power of two from {} to {}", range.start, range.end - 1),
            )),
        }
    }
}

/// A part of the virtual disk in the engine's memory.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Where `bytes` begin; a multiple of the chunk size, which is a multiple of [`Writer::granularity_bytes`].
    pub at: VirtualOffset,
    /// The contents. The last chunk is filled up with zeros to whole granules.
    pub bytes: &'a [u8],
}

/// The CPU part of writing, one a worker thread. The default keeps bytes as they are.
pub trait Encoder: Send {
    /// Encodes one granule, or says that it is better kept as it is.
    fn encode(&mut self, granule: &[u8]) -> Result<Option<Vec<u8>>>;
}

/// Granules with data. A plain piece is any number of granules; an encoded one is exactly one.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Where on the virtual disk: a multiple of the granularity.
    pub at: VirtualOffset,
    /// Its length there: whole granules.
    pub len_bytes: u64,
    /// Its contents.
    pub bytes: PieceBytes,
}

/// Where a piece's bytes are.
#[derive(Clone, Debug)]
pub enum PieceBytes {
    /// This part of the chunk.
    Plain(Range<usize>),
    /// What the [`Encoder`] made.
    Encoded(Vec<u8>),
}

/// One thing to do to the target file.
#[derive(Clone, Debug)]
pub struct TargetWrite {
    /// Where.
    pub at: HostOffset,
    /// What.
    pub bytes: WriteBytes,
}

/// What to put.
#[derive(Clone, Debug)]
pub enum WriteBytes {
    /// This part of the current chunk.
    Chunk(Range<usize>),
    /// These bytes.
    Owned(Vec<u8>),
    /// Storage for this many bytes that read as zeros until written. Comes no later than the writes into it.
    Reserve(u64),
    /// This many bytes that shall read as zeros, whatever was there before.
    Zero(u64),
}

/// The end of an image.
#[derive(Clone, Debug)]
pub struct Finish {
    /// Written before a flush: everything but what makes the image valid.
    pub tables: Vec<TargetWrite>,
    /// Written after it: headers.
    pub headers: Vec<TargetWrite>,
    /// The file's final length.
    pub len_bytes: u64,
}

/// Where data that are yet to be placed will lie in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// Behind all that was placed.
    Behind,
    /// Where they lie on the virtual disk.
    Mirrored,
    /// In room that was asked for at the start.
    Reserved,
}

/// The layout of a new image. All state is plain data (see the module's page).
pub trait Writer: Send {
    /// The unit in which data is present or absent, a power of two from 512 to 2 MiB: a cluster where each
    /// is allocated by itself; 4096 where partial blocks cost nothing.
    fn granularity_bytes(&self) -> u64;

    /// Where room ahead of what is placed will be used.
    fn growth(&self) -> Growth {
        Growth::Behind
    }

    /// Whether the target holds old contents, so that what shall read as zeros is not left out.
    fn target_is_dirty(&self) -> bool;

    /// The CPU part, if granules are to be encoded.
    fn encoder(&self) -> Option<Box<dyn Encoder>> {
        None
    }

    /// What to put before anything else.
    fn start(&mut self) -> Result<Vec<TargetWrite>> {
        Ok(Vec::new())
    }

    /// Places the pieces of one chunk: ascending, within it, none of them before an earlier call's. A chunk
    /// without pieces is not announced.
    fn place(&mut self, chunk_at: VirtualOffset, pieces: Vec<Piece>) -> Result<Vec<TargetWrite>>;

    /// What to put when all is placed.
    fn finish(&mut self) -> Result<Finish>;
}

/// A writer of any format, with its state storable.
#[derive(Clone, Debug, Serialize, Deserialize)]
// The tag is outside: an inner one makes serde buffer what it reads, which cannot hold a `u128`.
#[serde(rename_all = "lowercase")]
pub enum AnyWriter {
    /// See [`raw::RawWriter`].
    Raw(raw::RawWriter),
    /// See [`vhd::VhdWriter`].
    Vhd(vhd::VhdWriter),
    /// See [`vhdx::VhdxWriter`].
    Vhdx(vhdx::VhdxWriter),
    /// See [`vmdk::VmdkWriter`].
    Vmdk(vmdk::VmdkWriter),
    /// See [`qcow2::Qcow2Writer`].
    Qcow2(qcow2::Qcow2Writer),
    /// See [`vdi::VdiWriter`].
    Vdi(vdi::VdiWriter),
    /// See [`qcow2::Qcow2StreamWriter`].
    Qcow2Stream(qcow2::Qcow2StreamWriter),
}

impl std::ops::Deref for AnyWriter {
    type Target = dyn Writer;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Raw(writer) => writer,
            Self::Vhd(writer) => writer,
            Self::Vhdx(writer) => writer,
            Self::Vmdk(writer) => writer,
            Self::Qcow2(writer) => writer,
            Self::Vdi(writer) => writer,
            Self::Qcow2Stream(writer) => writer,
        }
    }
}

impl std::ops::DerefMut for AnyWriter {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Raw(writer) => writer,
            Self::Vhd(writer) => writer,
            Self::Vhdx(writer) => writer,
            Self::Vmdk(writer) => writer,
            Self::Qcow2(writer) => writer,
            Self::Vdi(writer) => writer,
            Self::Qcow2Stream(writer) => writer,
        }
    }
}

/// A writer for a new image of `format`. `Invalid` for options the format does not have; `Unsupported` for
/// a size it cannot hold.
pub fn create(format: Format, options: CreateOptions) -> Result<AnyWriter> {
    Ok(match format {
        Format::Raw => AnyWriter::Raw(raw::RawWriter::new(options)?),
        Format::Vhd => AnyWriter::Vhd(vhd::VhdWriter::new(options)?),
        Format::Vhdx => AnyWriter::Vhdx(vhdx::VhdxWriter::new(options)?),
        Format::Vmdk => AnyWriter::Vmdk(vmdk::VmdkWriter::new(options)?),
        Format::Qcow2 => AnyWriter::Qcow2(qcow2::Qcow2Writer::new(options)?),
        Format::Vdi => AnyWriter::Vdi(vdi::VdiWriter::new(options)?),
    })
}

/// A writer for a new image of `format` that goes from its start to its end, of a disk of which `used` alone is placed: spans in ascending order.
/// `Invalid` for what has no such form: raw, QCOW2 that is not compressed, and VMDK as streamOptimized have.
///
/// What QCOW2 has before its data is in [`qcow2::Qcow2StreamWriter::head`].
pub fn create_in_order(
    format: Format,
    mut options: CreateOptions,
    used: impl Iterator<Item = VirtualSpan>,
) -> Result<AnyWriter> {
    // A raw stream has its zeros between what is placed.
    options.target_is_dirty = format == Format::Raw;
    match format {
        Format::Raw => Ok(AnyWriter::Raw(raw::RawWriter::new(options)?)),
        Format::Vmdk => Ok(AnyWriter::Vmdk(vmdk::VmdkWriter::in_order(options)?)),
        Format::Qcow2 if options.compress => {
            Err(Error::invalid("a compressed QCOW2 is not written from its start to its end")
                .hint("-O vmdk is compressed"))
        }
        Format::Qcow2 => Ok(AnyWriter::Qcow2Stream(qcow2::Qcow2StreamWriter::new(options, used)?)),
        Format::Vhd | Format::Vhdx | Format::Vdi => {
            Err(Error::invalid(format!("{format} is not written from its start to its end"))
                .hint("-O raw, qcow2 or vmdk"))
        }
    }
}
