//! Inodes: what they are, and their forks.

use std::mem::offset_of;

use block::{Error, Result};
use zerocopy::FromBytes;

use super::corrupt::Corrupt;
use super::layout::{INODE_2_BYTES, INODE_MAGIC, NREXT64, REALTIME, RawInode, format};
use super::seal::crc_holds;
use super::superblock::Superblock;

/// The bits of a mode that say what it is, as in `stat(2)`.
pub(super) mod mode {
    pub(crate) const KIND: u16 = 0o170_000;
    pub(crate) const REGULAR: u16 = 0o100_000;
    pub(crate) const DIRECTORY: u16 = 0o040_000;
    pub(crate) const SYMLINK: u16 = 0o120_000;
    const OTHERS: [u16; 4] = [0o010_000, 0o020_000, 0o060_000, 0o140_000];

    /// Devices, pipes and sockets.
    pub(crate) fn is_special(kind: u16) -> bool {
        OTHERS.contains(&kind)
    }
}

/// What the data fork of a device has in front of an attribute fork (`xfs_dinode_verify_forkoff`).
const DEVICE_FORK_BYTES: usize = 8;

/// An inode in use.
#[derive(Clone, Debug)]
pub(super) struct Inode {
    pub(super) number: u64,
    /// Of [`mode`].
    pub(super) kind: u16,
    pub(super) size_bytes: u64,
    /// Of both forks, the blocks of their trees included.
    pub(super) blocks: u64,
    pub(super) data: Fork,
    pub(super) attributes: Option<Fork>,
}

/// Where something of an inode lies: in the inode, or in extents.
#[derive(Clone, Debug)]
pub(super) struct Fork {
    /// Of [`mod@format`].
    pub(super) format: u8,
    pub(super) extent_count: u64,
    pub(super) bytes: Vec<u8>,
}

/// The error of an inode with a wrong field.
pub(super) fn wrong(number: u64, name: &str, found: impl Into<u64>, expected: &str) -> Error {
    Error::corrupt(Corrupt::Inode { inode: number }).field(name, found.into(), expected)
}

/// Reads an inode of `number` from its bytes; `None` if it is free.
pub(super) fn parse(bytes: &[u8], superblock: &Superblock, number: u64) -> Result<Option<Inode>> {
    let (raw, rest) = RawInode::read_from_prefix(bytes).expect("an inode is at least that large");
    let rest = if superblock.has_checksums {
        check_owner(bytes, &raw, superblock, number)?;
        rest
    } else if raw.magic == INODE_MAGIC && [1, 2].contains(&raw.version) {
        &bytes[INODE_2_BYTES..]
    } else {
        return Err(wrong(number, "version", raw.version, "1 or 2, and its magic number before it"));
    };
    if raw.mode.get() == 0 {
        return Ok(None);
    }
    if raw.flags.get() & REALTIME != 0 {
        return Err(wrong(number, "flags", raw.flags.get(), "not on a realtime device"));
    }
    let at = usize::from(raw.forkoff) * 8;
    if at >= rest.len() {
        return Err(wrong(number, "forkoff", raw.forkoff, "within the inode"));
    }
    let (data, attributes) = if at == 0 { (rest, &[][..]) } else { rest.split_at(at) };
    let has_large_counters = superblock.has_checksums && raw.flags2.get() & NREXT64 != 0;
    let counts = match has_large_counters {
        true => (raw.big_nextents.get(), u64::from(raw.nextents.get())),
        false => (raw.nextents.get().into(), raw.anextents.get().into()),
    };
    // Of inodes of version 4 that were never written to their places it may be 0.
    let is_empty = raw.aformat == format::EXTENTS || (!superblock.has_checksums && raw.aformat == 0);
    if attributes.is_empty() && (counts.1 != 0 || !is_empty) {
        return Err(wrong(number, "anextents", counts.1, "none without an attribute fork, as extents"));
    }
    let unused = if has_large_counters { raw.anextents.get().into() } else { raw.big_nextents.get() };
    if superblock.has_checksums && unused != 0 {
        return Err(wrong(number, "nextents", unused, "0 where its counters are not"));
    }
    let fork = |format, extent_count, bytes: &[u8]| Fork { format, extent_count, bytes: bytes.to_vec() };
    let inode = Inode {
        number,
        kind: raw.mode.get() & mode::KIND,
        size_bytes: raw.size.get(),
        blocks: raw.nblocks.get(),
        data: fork(raw.format, counts.0, data),
        attributes: (at > 0).then(|| fork(raw.aformat, counts.1, attributes)),
    };
    inode.check_formats()?;
    Ok(Some(inode))
}

/// Checks what version 5 has in an inode.
fn check_owner(bytes: &[u8], raw: &RawInode, superblock: &Superblock, number: u64) -> Result<()> {
    if raw.magic != INODE_MAGIC || !crc_holds(bytes, offset_of!(RawInode, crc)) {
        return Err(wrong(number, "crc", raw.crc.get(), "that of the inode, and its magic number before it"));
    }
    if raw.version != 3 || raw.uuid != superblock.meta_uuid || raw.ino.get() != number {
        return Err(wrong(number, "ino", raw.ino.get(), "its own number, version 3 and the volume's UUID"));
    }
    Ok(())
}

impl Inode {
    fn check_formats(&self) -> Result<()> {
        let allowed: &[u8] = match self.kind {
            mode::REGULAR => &[format::EXTENTS, format::BTREE],
            mode::DIRECTORY => &[format::LOCAL, format::EXTENTS, format::BTREE],
            mode::SYMLINK => &[format::LOCAL, format::EXTENTS],
            kind if mode::is_special(kind) => &[format::DEVICE],
            kind => return Err(wrong(self.number, "mode", kind, "that of a file")),
        };
        if !allowed.contains(&self.data.format) {
            return Err(wrong(self.number, "format", self.data.format, "one that such a file may have"));
        }
        let kept = self.attributes.as_ref().map(|fork| fork.format);
        let is_right =
            kept.is_none_or(|kept| [format::LOCAL, format::EXTENTS, format::BTREE].contains(&kept));
        if !is_right {
            return Err(wrong(self.number, "aformat", kept.unwrap_or_default(), "inline, extents or a tree"));
        }
        let room = self.data.bytes.len();
        let is_fit = match self.data.format {
            format::LOCAL => self.size_bytes <= room as u64,
            format::DEVICE => self.attributes.is_none() || room == DEVICE_FORK_BYTES,
            _ => true,
        };
        if !is_fit {
            return Err(wrong(self.number, "forkoff", room as u64, "behind what the data fork has"));
        }
        let is_inline = matches!(self.data.format, format::LOCAL | format::DEVICE);
        if is_inline && self.data.extent_count != 0 {
            return Err(wrong(self.number, "nextents", self.data.extent_count, "none of what is inline"));
        }
        Ok(())
    }
}
