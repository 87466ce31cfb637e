//! Inodes: what a file is, and where its map of blocks starts.

use block::{Error, ReadAt, Result, read_vec};
use extent::{Volume, VolumeOffset};
use zerocopy::{FromBytes, IntoBytes};

use super::checksum::crc32c;
use super::corrupt::Corrupt;
use super::features::{incompat, ro_compat};
use super::group;
use super::layout::{
    INODE_BYTES_SMALL, INODE_CHECKSUM_HI_AT, INODE_CHECKSUM_LO_AT, RawInode, RawInodeExtra, file_type,
    inode_flags, special_inode,
};
use super::superblock::{BlockNumber, Superblock};

/// An inode's number: from 1.
pub type InodeNumber = u32;

/// The 60 bytes of an inode that say where its blocks are.
pub(super) type BlockRoot = [u8; 60];

/// Where an inode's contents are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Contents {
    /// In the inode, or nowhere: devices, short symbolic links, inline data.
    None,
    /// By a tree of extents.
    Extents(BlockRoot),
    /// By direct and indirect block pointers.
    Indirect(BlockRoot),
}

/// A validated inode.
#[derive(Clone, Debug)]
pub(super) struct Inode {
    pub(super) number: InodeNumber,
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) project: u32,
    pub(super) links_count: u16,
    pub(super) size_bytes: u64,
    pub(super) flags: u32,
    pub(super) contents: Contents,
    /// The block of extended attributes.
    pub(super) attributes: Option<BlockNumber>,
    /// Where the checksums of what it owns start from.
    pub(super) checksum_seed: u32,
}

impl Inode {
    /// Validates the inode of `number` from its bytes in the table. An inode of zeros owns nothing.
    pub(super) fn parse(bytes: &[u8], superblock: &Superblock, number: InodeNumber) -> Result<Self> {
        let (raw, after) = RawInode::read_from_prefix(bytes).expect("an inode is at least that large");
        let empty = bytes.iter().all(|byte| *byte == 0);
        let checksum_seed = checksum_seed(&raw, superblock, number);
        if superblock.features.metadata_csum() && !empty {
            verify_checksum(bytes, after, &raw, checksum_seed, number)?;
        }
        let file_acl_hi =
            if superblock.features.incompat.has(incompat::BIT64) { raw.file_acl_hi.get() } else { 0 };
        let attributes = u64::from(file_acl_hi) << 32 | u64::from(raw.file_acl_lo.get());
        Ok(Self {
            number,
            mode: raw.mode.get(),
            uid: u32::from(raw.uid_hi.get()) << 16 | u32::from(raw.uid_lo.get()),
            gid: u32::from(raw.gid_hi.get()) << 16 | u32::from(raw.gid_lo.get()),
            project: project(after),
            links_count: raw.links_count.get(),
            size_bytes: u64::from(raw.size_hi.get()) << 32 | u64::from(raw.size_lo.get()),
            flags: raw.flags.get(),
            contents: contents(&raw, superblock, number, attributes != 0)?,
            attributes: (attributes != 0).then_some(attributes),
            checksum_seed,
        })
    }

    /// Reads one inode. For all of a group's, see `check`.
    pub(super) fn read(
        source: &dyn ReadAt<Volume>,
        superblock: &Superblock,
        number: InodeNumber,
    ) -> Result<Self> {
        Self::read_with_bytes(source, superblock, number).map(|(inode, _)| inode)
    }

    /// Reads one inode, with its bytes in the table.
    pub(super) fn read_with_bytes(
        source: &dyn ReadAt<Volume>,
        superblock: &Superblock,
        number: InodeNumber,
    ) -> Result<(Self, Vec<u8>)> {
        if number == 0 || number > superblock.inodes_count {
            let max = superblock.inodes_count;
            return Err(Error::corrupt(Corrupt::InodeNumber { found: number, max }));
        }
        let group = group::read(source, superblock, (number - 1) / superblock.inodes_per_group)?;
        let at = inode_at(superblock, group.inode_table, (number - 1) % superblock.inodes_per_group);
        let bytes = read_vec(source, at, superblock.inode_bytes.into(), "ext inode")?;
        let inode = Self::parse(&bytes, superblock, number).map_err(|error| error.at(at))?;
        Ok((inode, bytes))
    }

    /// Whether it is a regular file.
    pub(super) fn is_regular(&self) -> bool {
        self.mode & file_type::MASK == file_type::REGULAR
    }

    /// Whether any of the `flags` is set.
    pub(super) fn has(&self, flags: u32) -> bool {
        self.flags & flags != 0
    }
}

/// Gives an inode another root of its map, and takes `freed_count` clusters off the blocks that it counts.
///
/// `bytes` are those that `inode` was parsed from.
pub(super) fn replace_root(
    bytes: &mut [u8],
    superblock: &Superblock,
    inode: &Inode,
    root: &BlockRoot,
    freed_count: u64,
) -> Result<()> {
    let (mut raw, _) = RawInode::read_from_prefix(bytes).expect("an inode is at least that large");
    raw.block = *root;
    if freed_count > 0 {
        let unit = if raw.flags.get() & inode_flags::HUGE_FILE != 0 { superblock.block_bytes } else { 512 };
        let freed =
            freed_count * u64::from(superblock.cluster_blocks) * u64::from(superblock.block_bytes / unit);
        let (lo, hi) = (raw.blocks_lo.get(), u32::from(raw.blocks_hi.get()));
        let huge = superblock.features.ro_compat.has(ro_compat::HUGE_FILE);
        let found = u64::from(if huge { hi } else { 0 }) << 32 | u64::from(lo);
        let left = found.checked_sub(freed).ok_or_else(|| {
            let what = Corrupt::Inode { inode: inode.number };
            Error::corrupt(what).field("blocks", found, format!("at least {freed}, those of its map"))
        })?;
        let [a, b, c, d, e, f, ..] = left.to_le_bytes();
        raw.blocks_lo.set(u32::from_le_bytes([a, b, c, d]));
        if huge {
            raw.blocks_hi.set(u16::from_le_bytes([e, f]));
        }
    }
    bytes[..size_of::<RawInode>()].copy_from_slice(raw.as_bytes());
    if superblock.features.metadata_csum() {
        let [a, b, c, d] = checksum(bytes, inode.checksum_seed).to_le_bytes();
        bytes[INODE_CHECKSUM_LO_AT..][..2].copy_from_slice(&[a, b]);
        if has_checksum_hi(&bytes[usize::from(INODE_BYTES_SMALL)..]) {
            bytes[INODE_CHECKSUM_HI_AT..][..2].copy_from_slice(&[c, d]);
        }
    }
    Ok(())
}

/// Where the inode at `index` of a group's table lies.
pub(super) fn inode_at(superblock: &Superblock, table: BlockNumber, index: u32) -> VolumeOffset {
    let within = u64::from(index) * u64::from(superblock.inode_bytes);
    VolumeOffset::new(superblock.offset_of(table).get().saturating_add(within))
}

fn checksum_seed(raw: &RawInode, superblock: &Superblock, number: InodeNumber) -> u32 {
    let seed = crc32c(superblock.checksum_seed, &number.to_le_bytes());
    crc32c(seed, &raw.generation.get().to_le_bytes())
}

/// What an inode's checksum must be (the kernel's `ext4_inode_csum`): both halves count as zeros. The upper half is zero
/// if the inode has no room for it.
fn checksum(bytes: &[u8], seed: u32) -> u32 {
    let (small, large) = bytes.split_at(usize::from(INODE_BYTES_SMALL));
    let zeros = [0; 2];
    let mut crc = crc32c(seed, &small[..INODE_CHECKSUM_LO_AT]);
    crc = crc32c(crc, &zeros);
    crc = crc32c(crc, &small[INODE_CHECKSUM_LO_AT + 2..]);
    if !has_checksum_hi(large) {
        return crc32c(crc, large) & 0xffff;
    }
    let at = INODE_CHECKSUM_HI_AT - small.len();
    [&large[..at], &zeros, &large[at + 2..]].into_iter().fold(crc, crc32c)
}

/// The project that an inode belongs to, by what follows its first 128 bytes.
fn project(large: &[u8]) -> u32 {
    match RawInodeExtra::read_from_prefix(large) {
        Ok((extra, _)) if usize::from(extra.extra_isize.get()) >= size_of::<RawInodeExtra>() => {
            extra.projid.get()
        }
        _ => 0,
    }
}

/// Whether what follows the first 128 bytes of an inode has the upper half of the checksum.
fn has_checksum_hi(large: &[u8]) -> bool {
    RawInodeExtra::read_from_prefix(large).is_ok_and(|(extra, _)| extra.extra_isize.get() >= 4)
}

fn verify_checksum(bytes: &[u8], after: &[u8], raw: &RawInode, seed: u32, number: InodeNumber) -> Result<()> {
    let computed = checksum(bytes, seed);
    let high = match RawInodeExtra::read_from_prefix(after) {
        Ok((extra, _)) if has_checksum_hi(after) => u32::from(extra.checksum_hi.get()),
        _ => 0,
    };
    let stored = high << 16 | u32::from(raw.checksum_lo.get());
    if stored == computed {
        return Ok(());
    }
    Err(Error::corrupt(Corrupt::InodeChecksum { inode: number, found: stored, expected: computed }))
}

fn contents(
    raw: &RawInode,
    superblock: &Superblock,
    number: InodeNumber,
    attributes: bool,
) -> Result<Contents> {
    let flags = raw.flags.get();
    let mapped = match flags & inode_flags::EXTENTS != 0 {
        true => Contents::Extents(raw.block),
        false => Contents::Indirect(raw.block),
    };
    if number == special_inode::BAD_BLOCKS {
        return Ok(mapped);
    }
    if flags & inode_flags::INLINE_DATA != 0 {
        return Ok(Contents::None);
    }
    match raw.mode.get() & file_type::MASK {
        file_type::REGULAR | file_type::DIRECTORY => Ok(mapped),
        file_type::SYMLINK if is_fast_symlink(raw, superblock, attributes) => Ok(Contents::None),
        file_type::SYMLINK => Ok(mapped),
        file_type::FIFO | file_type::CHARACTER | file_type::BLOCK | file_type::SOCKET => Ok(Contents::None),
        0 if blocks_512(raw, superblock) == 0 => Ok(Contents::None),
        _ => Err(Error::corrupt(Corrupt::Inode { inode: number }).field(
            "mode",
            format!("{:#o}", raw.mode),
            "a known type of file",
        )),
    }
}

/// Whether the target is in the inode itself: the kernel's `ext4_inode_is_fast_symlink`, and also short ones
/// whose blocks are those of extended attributes in inodes of their own.
fn is_fast_symlink(raw: &RawInode, superblock: &Superblock, attributes: bool) -> bool {
    let cluster_bytes = u64::from(superblock.cluster_blocks) * u64::from(superblock.block_bytes);
    let attribute_blocks = if attributes { cluster_bytes / 512 } else { 0 };
    let short = raw.size_hi.get() == 0 && (1..60).contains(&raw.size_lo.get());
    raw.flags.get() & inode_flags::EXTENTS == 0 && (short || blocks_512(raw, superblock) == attribute_blocks)
}

fn blocks_512(raw: &RawInode, superblock: &Superblock) -> u64 {
    let huge = superblock.features.ro_compat.has(ro_compat::HUGE_FILE);
    let hi = if huge { raw.blocks_hi.get() } else { 0 };
    let count = u64::from(hi) << 32 | u64::from(raw.blocks_lo.get());
    match raw.flags.get() & inode_flags::HUGE_FILE != 0 {
        true => count.saturating_mul(u64::from(superblock.block_bytes / 512)),
        false => count,
    }
}
