//! Inodes: their checksums, and where what they own begins.

use block::{Error, FieldValue, Result};
use zerocopy::FromBytes;

use super::attributes;
use super::corrupt::CorruptExt;
use super::geometry::{Geometry, crc32c};
use super::layout::{Inode as Raw, flags, incompat, inode_at, ro_compat};

/// What the upper four bits of the mode say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Regular,
    Directory,
    Symlink,
    /// A pipe, a device, a socket: the number that entries of directories have for it.
    Special(u8),
    /// An inode of the file system's own that was never used.
    None,
}

impl Kind {
    /// What an entry of a directory says of it (`ext4_type_by_mode`).
    pub(super) fn in_entries(self) -> u8 {
        match self {
            Self::Regular => 1,
            Self::Directory => 2,
            Self::Symlink => 7,
            Self::Special(number) => number,
            Self::None => 0,
        }
    }
}

/// Where an inode's blocks are said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Map {
    /// It has none.
    None,
    Extents,
    Pointers,
}

/// An inode in use.
pub(super) struct Inode<'a> {
    pub(super) number: u64,
    pub(super) bytes: &'a [u8],
    pub(super) raw: Raw,
    pub(super) kind: Kind,
    pub(super) map: Map,
    /// Where checksums of what it owns start.
    pub(super) seed: u32,
    /// The block of extended attributes, if any.
    pub(super) attributes: Option<u64>,
}

pub(super) fn inode_error(number: u64) -> Error {
    Error::corrupt(CorruptExt::Inode { inode: number })
}

impl<'a> Inode<'a> {
    pub(super) fn parse(geometry: &Geometry, number: u64, bytes: &'a [u8]) -> Result<Self> {
        let error = || inode_error(number);
        let (raw, _) =
            Raw::read_from_prefix(bytes).map_err(|_| error().field("length", bytes.len(), "128 or more"))?;
        let low = u32::try_from(number).map_err(|_| error())?;
        let seed = crc32c(crc32c(geometry.seed, &low.to_le_bytes()), &raw.generation.get().to_le_bytes());
        let is_blank = bytes.iter().all(|byte| *byte == 0);
        if geometry.has_checksums() && !is_blank {
            check_checksum(number, bytes, seed)?;
        }
        let hi = if geometry.has_incompat(incompat::BIT64) { raw.file_acl_hi.get() } else { 0 };
        let acl = u64::from(hi) << 32 | u64::from(raw.file_acl_lo.get());
        let kind = kind_of(number, raw.mode.get(), geometry)?;
        let mut inode =
            Self { number, bytes, kind, map: Map::None, seed, attributes: (acl != 0).then_some(acl), raw };
        inode.map = inode.map_of(geometry);
        Ok(inode)
    }

    pub(super) fn error(&self) -> Error {
        inode_error(self.number)
    }

    pub(super) fn has(&self, flag: u32) -> bool {
        self.raw.flags.get() & flag != 0
    }

    pub(super) fn size_bytes(&self) -> u64 {
        u64::from(self.raw.size_hi.get()) << 32 | u64::from(self.raw.size_lo.get())
    }

    /// What it says that it owns, in units of 512 bytes.
    pub(super) fn sectors(&self, geometry: &Geometry) -> u64 {
        let is_huge = geometry.has_ro_compat(ro_compat::HUGE_FILE);
        let hi = if is_huge { u64::from(self.raw.blocks_hi.get()) } else { 0 };
        let count = hi << 32 | u64::from(self.raw.blocks_lo.get());
        if is_huge && self.has(flags::HUGE_FILE) {
            count.saturating_mul(geometry.block_bytes / 512)
        } else {
            count
        }
    }

    fn map_of(&self, geometry: &Geometry) -> Map {
        let mapped = if self.has(flags::EXTENTS) { Map::Extents } else { Map::Pointers };
        match self.kind {
            // The list of bad blocks.
            _ if self.number == 1 => mapped,
            _ if self.has(flags::INLINE_DATA) => Map::None,
            Kind::Regular | Kind::Directory => mapped,
            Kind::Symlink if self.has(flags::EXTENTS) || !self.is_fast_symlink(geometry) => mapped,
            Kind::Symlink | Kind::Special(_) | Kind::None => Map::None,
        }
    }

    /// Whether the target is in the inode: if it owns no blocks besides those of attributes, or is short.
    fn is_fast_symlink(&self, geometry: &Geometry) -> bool {
        let of_attributes =
            if self.attributes.is_some() { geometry.ratio * geometry.block_bytes / 512 } else { 0 };
        self.sectors(geometry) == of_attributes || (1..60).contains(&self.size_bytes())
    }

    /// The inodes that hold values of its attributes, and the bytes of these, within the inode itself.
    pub(super) fn own_attributes(&self) -> Result<Vec<(u32, u32)>> {
        let Some(after) = self.bytes.get(inode_at::SMALL_END..) else { return Ok(Vec::new()) };
        let Some(extra) = after.first_chunk::<2>() else { return Ok(Vec::new()) };
        let area = after.get(usize::from(u16::from_le_bytes(*extra))..).unwrap_or_default();
        attributes::in_inode(area)
            .ok_or_else(|| self.error().field("attributes", "out of bounds", "within the inode"))
    }
}

fn kind_of(number: u64, mode: u16, geometry: &Geometry) -> Result<Kind> {
    Ok(match mode >> 12 {
        0x1 => Kind::Special(5),
        0x2 => Kind::Special(3),
        0x4 => Kind::Directory,
        0x6 => Kind::Special(4),
        0x8 => Kind::Regular,
        0xa => Kind::Symlink,
        0xc => Kind::Special(6),
        0 if geometry.is_own(number) => Kind::None,
        _ => return Err(inode_error(number).field("mode", format!("{mode:#o}"), "a type of file")),
    })
}

/// CRC-32C of the inode with its checksum as zeros (`ext4_inode_csum`).
fn check_checksum(number: u64, bytes: &[u8], seed: u32) -> Result<()> {
    let half = |at: usize| u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let mut zeroed = bytes.to_vec();
    zeroed[inode_at::CHECKSUM_LO..inode_at::CHECKSUM_LO + 2].fill(0);
    let has_hi = bytes.len() > inode_at::CHECKSUM_HI + 2 && half(inode_at::SMALL_END) >= 4;
    let mut stored = half(inode_at::CHECKSUM_LO);
    if has_hi {
        stored |= half(inode_at::CHECKSUM_HI) << 16;
        zeroed[inode_at::CHECKSUM_HI..inode_at::CHECKSUM_HI + 2].fill(0);
    }
    let mask = if has_hi { u32::MAX } else { 0xffff };
    let computed = crc32c(seed, &zeroed) & mask;
    if stored == computed {
        return Ok(());
    }
    Err(inode_error(number).field("checksum", FieldValue::hex(stored), format!("{computed:#x}")))
}
