//! Extended attributes: in the inode, or in leaves of an index, with long values in blocks of their own.
//!
//! Invariants: leaves are met once, at most as many as the fork has blocks; a value is no longer than Linux has it.

use block::{Error, Result, read_vec};
use zerocopy::FromBytes;
use zerocopy::big_endian::{U16, U32};

use super::fork::{self, Mapping, Met};
use super::inode::{Inode, wrong};
use super::layout::{
    ATTRIBUTE_LEAF_MAGICS, ATTRIBUTE_VALUE_MAGIC, INDEX_4_BYTES, NODE_MAGICS, RawAttributeEntry,
    RawAttributeLeaf, RawAttributeValue, RawIndexBlock, attribute, format,
};
use super::superblock::Superblock;
use crate::Source;
use crate::acl;
use crate::browse::{Attribute, VALUE_BYTES_MAX};

/// More levels than any index has (`XFS_DA_NODE_MAXDEPTH`).
const LEVELS_MAX: u32 = 5;

/// All attributes of an inode, as Linux shows them.
pub(super) fn read(source: &Source, superblock: &Superblock, inode: &Inode) -> Result<Vec<Attribute>> {
    let Some(fork) = &inode.attributes else { return Ok(Vec::new()) };
    if fork.format == format::LOCAL {
        return inline(&fork.bytes).ok_or_else(|| broken(inode));
    }
    let mut extents = Vec::new();
    fork::walk(source, superblock, inode, fork, &mut |met| {
        if let Met::Extent(extent) = met {
            extents.push(extent);
        }
        Ok(())
    })?;
    if extents.is_empty() {
        return Ok(Vec::new());
    }
    Blocks { source, superblock, inode, extents }.read()
}

fn broken(inode: &Inode) -> Error {
    wrong(inode.number, "extended attributes", 0_u64, "attributes within their room")
}

/// Those in the inode: a length of two bytes, a count, a byte of nothing; then of each the lengths of its name and value, and flags.
fn inline(bytes: &[u8]) -> Option<Vec<Attribute>> {
    let mut attributes = Vec::new();
    let (head, mut rest) = bytes.split_first_chunk::<4>()?;
    for _ in 0..head[2] {
        let ([name_len, value_len, flags], behind) = rest.split_first_chunk::<3>()?;
        let (name, behind) = behind.split_at_checked(usize::from(*name_len))?;
        let (value, behind) = behind.split_at_checked(usize::from(*value_len))?;
        rest = behind;
        attributes.extend(shown(*flags, name, value.to_vec())?);
    }
    Some(attributes)
}

/// As Linux shows it; `None` within of what it does not show, and `None` of a broken list.
fn shown(flags: u8, name: &[u8], value: Vec<u8>) -> Option<Option<Attribute>> {
    if flags & (attribute::PARENT | attribute::INCOMPLETE) != 0 {
        return Some(None);
    }
    let list = match name {
        b"SGI_ACL_FILE" => Some(&b"system.posix_acl_access"[..]),
        b"SGI_ACL_DEFAULT" => Some(&b"system.posix_acl_default"[..]),
        _ => None,
    };
    Some(Some(match list.filter(|_| flags & attribute::ROOT != 0) {
        Some(name) => Attribute { name: name.to_vec(), value: acl_value(&value)? },
        None => {
            let prefix: &[u8] = match flags {
                flags if flags & attribute::ROOT != 0 => b"trusted.",
                flags if flags & attribute::SECURE != 0 => b"security.",
                _ => b"user.",
            };
            Attribute { name: [prefix, name].concat(), value }
        }
    }))
}

/// `struct xfs_acl`: a count, and entries of 12 bytes.
fn acl_value(bytes: &[u8]) -> Option<Vec<u8>> {
    let (count, rest) = U32::read_from_prefix(bytes).ok()?;
    let count = usize::try_from(count.get()).ok()?;
    let mut entries = Vec::new();
    for entry in rest.get(..count.checked_mul(12)?)?.chunks_exact(12) {
        let tag = U32::read_from_bytes(&entry[..4]).ok()?.get();
        entries.push(acl::Entry {
            tag: u16::try_from(tag).ok()?,
            id: U32::read_from_bytes(&entry[4..8]).ok()?.get(),
            permissions: U16::read_from_bytes(&entry[8..10]).ok()?.get(),
        });
    }
    Some(acl::value(&entries))
}

/// The blocks of an attribute fork.
struct Blocks<'a> {
    source: &'a Source,
    superblock: &'a Superblock,
    inode: &'a Inode,
    extents: Vec<Mapping>,
}

impl Blocks<'_> {
    fn block(&self, logical: u64) -> Result<Vec<u8>> {
        let holds = |extent: &&Mapping| (extent.logical..extent.logical + extent.count).contains(&logical);
        let extent = self.extents.iter().find(holds).ok_or_else(|| broken(self.inode))?;
        let at = self.superblock.offset_of(extent.first + (logical - extent.logical));
        read_vec(&**self.source, at, self.superblock.block_bytes.into(), "XFS extended attributes")
    }

    /// The magic number of a block of the index, the block behind it on its level, and what follows the header.
    fn index<'b>(&self, bytes: &'b [u8]) -> Result<([u8; 2], u32, &'b [u8])> {
        let (raw, behind) = RawIndexBlock::read_from_prefix(bytes).map_err(|_| broken(self.inode))?;
        if !self.superblock.has_checksums {
            return Ok((raw.magic, raw.forw.get(), &bytes[INDEX_4_BYTES..]));
        }
        let is_its = raw.owner.get() == self.inode.number && raw.uuid == self.superblock.meta_uuid;
        if !is_its {
            return Err(wrong(self.inode.number, "owner of a block", raw.owner.get(), "the inode"));
        }
        Ok((raw.magic, raw.forw.get(), behind))
    }

    fn read(&self) -> Result<Vec<Attribute>> {
        let mut at = self.first_leaf()?;
        let mut attributes = Vec::new();
        let mut left = self.extents.iter().map(|extent| extent.count).sum::<u64>();
        loop {
            left = left.checked_sub(1).ok_or_else(|| broken(self.inode))?;
            let bytes = self.block(at)?;
            let (magic, next, body) = self.index(&bytes)?;
            if !ATTRIBUTE_LEAF_MAGICS.contains(&magic) {
                return Err(broken(self.inode));
            }
            self.leaf(&bytes, body, &mut attributes)?;
            match next {
                0 => return Ok(attributes),
                next => at = next.into(),
            }
        }
    }

    /// The block of the leaf that all others follow.
    fn first_leaf(&self) -> Result<u64> {
        let mut at = 0;
        for _ in 0..=LEVELS_MAX {
            let bytes = self.block(at)?;
            let (magic, _, body) = self.index(&bytes)?;
            if !NODE_MAGICS.contains(&magic) {
                return Ok(at);
            }
            // A count and a level of two bytes each, in version 5 four bytes of nothing, then entries: a hash, and a block.
            let entries = if self.superblock.has_checksums { 8 } else { 4 };
            let first = body.get(entries + 4..entries + 8).ok_or_else(|| broken(self.inode))?;
            at = U32::read_from_bytes(first).expect("4 bytes").get().into();
        }
        Err(broken(self.inode))
    }

    fn leaf(&self, bytes: &[u8], body: &[u8], attributes: &mut Vec<Attribute>) -> Result<()> {
        let fail = || broken(self.inode);
        let (head, behind) = RawAttributeLeaf::read_from_prefix(body).map_err(|_| fail())?;
        let entries = if self.superblock.has_checksums { behind.get(4..) } else { Some(behind) };
        let size = size_of::<RawAttributeEntry>();
        let entries = entries.and_then(|entries| entries.get(..usize::from(head.count.get()) * size));
        for entry in entries.ok_or_else(fail)?.chunks_exact(size) {
            let entry = RawAttributeEntry::read_from_bytes(entry).expect("as long as it");
            let at = usize::from(entry.nameidx.get());
            let found = bytes.get(at..).ok_or_else(fail)?;
            let (name, value) = self.entry(entry.flags, found)?;
            attributes.extend(shown(entry.flags, name, value).ok_or_else(fail)?);
        }
        Ok(())
    }

    /// The name and the value of an entry, which begins with `bytes`.
    fn entry<'b>(&self, flags: u8, bytes: &'b [u8]) -> Result<(&'b [u8], Vec<u8>)> {
        let fail = || broken(self.inode);
        if flags & attribute::LOCAL != 0 {
            let (head, rest) = bytes.split_first_chunk::<3>().ok_or_else(fail)?;
            let value_len = usize::from(u16::from_be_bytes([head[0], head[1]]));
            let (name, rest) = rest.split_at_checked(head[2].into()).ok_or_else(fail)?;
            return Ok((name, rest.get(..value_len).ok_or_else(fail)?.to_vec()));
        }
        let (head, rest) = bytes.split_first_chunk::<9>().ok_or_else(fail)?;
        let block = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let len = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
        let name = rest.get(..usize::from(head[8])).ok_or_else(fail)?;
        // What is being written has no value yet.
        let value = match flags & attribute::INCOMPLETE {
            0 => self.remote(block.into(), len.into())?,
            _ => Vec::new(),
        };
        Ok((name, value))
    }

    /// A value in blocks of its own, each of which has a header in version 5.
    fn remote(&self, first: u64, len: u64) -> Result<Vec<u8>> {
        if len > VALUE_BYTES_MAX {
            return Err(wrong(self.inode.number, "length of a value", len, "at most 64 KiB"));
        }
        let len = usize::try_from(len).expect("some kilobytes");
        let (mut value, mut at) = (Vec::new(), first);
        while value.len() < len {
            let bytes = self.block(at)?;
            let part = match self.superblock.has_checksums {
                false => &bytes[..],
                true => {
                    let (header, behind) =
                        RawAttributeValue::read_from_prefix(&bytes).map_err(|_| broken(self.inode))?;
                    let is_its = header.magic == ATTRIBUTE_VALUE_MAGIC
                        && header.owner.get() == self.inode.number
                        && header.bytes.get() > 0;
                    behind
                        .get(..header.bytes.get() as usize)
                        .filter(|_| is_its)
                        .ok_or_else(|| broken(self.inode))?
                }
            };
            value.extend_from_slice(part);
            at += 1;
        }
        value.truncate(len);
        Ok(value)
    }
}
