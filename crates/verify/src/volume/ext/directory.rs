//! Blocks of directories: their checksums, their entries, and the hash tree over them.

use block::{Error, FieldValue, Result};
use zerocopy::FromBytes;

use super::corrupt::CorruptExt;
use super::geometry::{Geometry, crc32c};
use super::inode::Inode;
use super::layout::{DirectoryEntry, flags, inode_at};
use crate::volume::bits::{Bits, WINDOW_MAX};

/// Where the entries of a hash tree's root, and of its other nodes, begin (`struct dx_root`, `struct dx_node`).
const ROOT_ENTRIES_AT: usize = 32;
const NODE_ENTRIES_AT: usize = 8;
/// An entry of a directory before its name.
const HEAD: usize = 8;

/// An entry in use.
pub(super) struct Entry<'a> {
    pub(super) inode: u32,
    pub(super) file_type: u8,
    pub(super) name: &'a [u8],
}

/// A directory in the middle of its blocks, which come in order.
pub(super) struct Directory<'a> {
    inode: &'a Inode<'a>,
    has_types: bool,
    has_checksums: bool,
    is_indexed: bool,
    /// The blocks that the hash tree leads to, and those of them that are nodes of it.
    reached: Bits,
    nodes: Bits,
    /// The blocks that are there, but for the root of the tree.
    present: Bits,
}

/// More levels than the kernel makes, which is 3 with `large_dir`.
const LEVELS_MAX: u8 = 4;

/// Reads a block of a directory by its number within it.
pub(super) type Read<'a> = &'a dyn Fn(u64) -> Result<Vec<u8>>;

fn word16(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn word32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl<'a> Directory<'a> {
    /// `block_count` blocks are to come.
    pub(super) fn new(geometry: &Geometry, inode: &'a Inode<'a>, block_count: u64) -> Result<Self> {
        if block_count > WINDOW_MAX.min(geometry.blocks_count) {
            return Err(inode.error().field(
                "blocks of the directory",
                block_count,
                "no more than the volume's",
            ));
        }
        Ok(Self {
            inode,
            has_types: geometry.has_incompat(super::layout::incompat::FILETYPE),
            has_checksums: geometry.has_checksums(),
            is_indexed: inode.has(flags::INDEX),
            reached: Bits::none(0..block_count),
            present: Bits::none(0..block_count),
            nodes: Bits::none(0..block_count),
        })
    }

    fn error(&self, field: &str, found: impl Into<FieldValue>, wanted: impl std::fmt::Display) -> Error {
        Error::corrupt(CorruptExt::Directory { inode: self.inode.number }).field(field, found, wanted)
    }

    /// Checks the block `logical` and calls `each` with its entries in use.
    pub(super) fn block(
        &mut self,
        logical: u64,
        bytes: &[u8],
        each: &mut dyn FnMut(&Entry<'_>) -> Result<()>,
    ) -> Result<()> {
        if self.has_checksums {
            self.checksum(logical, bytes, self.is_indexed && (logical == 0 || self.nodes.has(logical)))?;
        }
        if logical > 0 {
            self.present.join(logical..logical + 1);
        }
        self.entries(logical == 0, bytes, each)
    }

    /// Checks the parts of an inline directory.
    pub(super) fn inline(&mut self, each: &mut dyn FnMut(&Entry<'_>) -> Result<()>) -> Result<()> {
        let root = &self.inode.bytes[inode_at::BLOCK..inode_at::BLOCK + 60];
        // The parent's number stands for both dots.
        let parent = word32(root, 0);
        each(&Entry { inode: u32::try_from(self.inode.number).unwrap_or(0), file_type: 2, name: b"." })?;
        each(&Entry { inode: parent, file_type: 2, name: b".." })?;
        self.entries(false, &root[4..], each)?;
        let rest = inline_rest(self.inode.bytes);
        self.entries(false, rest.unwrap_or_default(), each)
    }

    /// Checks the hash tree, if there is one. Before the blocks come.
    pub(super) fn tree(&mut self, read: Read<'_>) -> Result<()> {
        if !self.is_indexed {
            return Ok(());
        }
        let root = read(0)?;
        let info = &root[24..ROOT_ENTRIES_AT];
        if info[5] != 8 || word32(info, 0) != 0 || info[6] > LEVELS_MAX {
            return Err(self.error("root of the hash tree", format!("{:02x?}", info), "a root"));
        }
        self.node(0, &root, info[6], read)
    }

    /// Every block of an indexed directory is one that its tree leads to. Once all blocks came.
    pub(super) fn finish(&self) -> Result<()> {
        if !self.is_indexed {
            return Ok(());
        }
        match self.reached.first_difference(&self.present) {
            None => Ok(()),
            Some(block) => {
                let found = if self.reached.has(block) { "a hole" } else { "not reached" };
                Err(self.error(&format!("block {block} of the hash tree"), found, "there, and reached once"))
            }
        }
    }

    fn entries(
        &self,
        is_first: bool,
        bytes: &[u8],
        each: &mut dyn FnMut(&Entry<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut rest = bytes;
        let mut index = 0;
        while !rest.is_empty() {
            let (raw, _) = DirectoryEntry::ref_from_prefix(rest).map_err(|_| {
                self.error("entries", format!("cut short by {} bytes", rest.len()), "up to the end")
            })?;
            let len = match usize::from(raw.rec_len.get()) {
                // 64 KiB do not fit in 16 bits.
                0 | 0xffff if rest.len() > 0xffff => rest.len(),
                len => len,
            };
            let name_len = usize::from(raw.name_len);
            if len < 12 || !len.is_multiple_of(4) || len > rest.len() {
                return Err(self.error("rec_len", len, format!("a multiple of 4, 12 to {}", rest.len())));
            }
            let is_used = raw.inode.get() != 0;
            if is_used && (name_len == 0 || HEAD + name_len > len) {
                return Err(self.error("name_len", name_len, format!("1 to {}", len - HEAD)));
            }
            if is_used {
                let name = &rest[HEAD..HEAD + name_len];
                let file_type = if self.has_types { raw.file_type & 0x7f } else { 0 };
                let dots = [&b"."[..], b".."].iter().position(|dot| *dot == name);
                let wanted = if is_first && index < 2 { Some(index) } else { None };
                if dots != wanted {
                    return Err(self.error(
                        "entries",
                        "not . and .. first",
                        ". and .. first, and nowhere else",
                    ));
                }
                each(&Entry { inode: raw.inode.get(), file_type, name })?;
            } else if is_first && index < 2 {
                return Err(self.error("entries", "without . or ..", ". and .. first"));
            }
            index += 1;
            rest = &rest[len..];
        }
        Ok(())
    }

    fn checksum(&self, logical: u64, bytes: &[u8], is_node: bool) -> Result<()> {
        let field = format!("checksum of block {logical}");
        let seed = self.inode.seed;
        let (stored, computed) = if is_node {
            let entries_at = if logical == 0 { ROOT_ENTRIES_AT } else { NODE_ENTRIES_AT };
            let (limit, count) = (word16(bytes, entries_at), word16(bytes, entries_at + 2));
            let (tail, used) = (entries_at + limit * 8, entries_at + count * 8);
            if tail + 8 > bytes.len() || used > tail {
                return Err(self.error(
                    &format!("limit of block {logical}"),
                    limit,
                    "entries within the block",
                ));
            }
            let parts = [&bytes[..used], &bytes[tail..tail + 4], &[0; 4]];
            (word32(bytes, tail + 4), parts.into_iter().fold(seed, crc32c))
        } else {
            // The last entry: no inode, 12 bytes, no name, type 0xde.
            let (before, tail) = bytes.split_at(bytes.len() - 12);
            if tail[..8] != [0, 0, 0, 0, 12, 0, 0, 0xde] {
                return Err(self.error(&field, "missing", "one"));
            }
            (word32(tail, 8), crc32c(seed, before))
        };
        if stored == computed {
            return Ok(());
        }
        Err(self.error(&field, FieldValue::hex(stored), format!("{computed:#x}")))
    }

    /// A node of the hash tree: hashes that ascend, children that were not met before.
    fn node(&mut self, logical: u64, bytes: &[u8], level: u8, read: Read<'_>) -> Result<()> {
        let what = format!("hash tree's block {logical}");
        let entries_at = if logical == 0 { ROOT_ENTRIES_AT } else { NODE_ENTRIES_AT };
        let (limit, count) = (word16(bytes, entries_at), word16(bytes, entries_at + 2));
        let tail = if self.has_checksums { 8 } else { 0 };
        let wanted = (bytes.len() - entries_at - tail) / 8;
        if limit != wanted {
            return Err(self.error(&format!("limit of the {what}"), limit, wanted));
        }
        if count == 0 || count > limit {
            return Err(self.error(&format!("count of the {what}"), count, format!("1 to {limit}")));
        }
        let mut last_hash = 0;
        for index in 0..count {
            let at = entries_at + index * 8;
            let hash = if index == 0 { 0 } else { word32(bytes, at) };
            // The lowest bit says that a hash goes on from the leaf before.
            if hash & !1 < last_hash & !1 {
                let found = format!("{hash:#x} behind {last_hash:#x}");
                return Err(self.error(&format!("hashes of the {what}"), found, "ascending"));
            }
            last_hash = hash;
            let child = u64::from(word32(bytes, at + 4) & 0x0fff_ffff);
            if child == 0
                || !self.reached.window().contains(&child)
                || self.reached.add(child..child + 1).is_some()
            {
                return Err(self.error(&format!("child of the {what}"), child, "a block of its own"));
            }
            if level > 0 {
                self.nodes.join(child..child + 1);
                self.node(child, &read(child)?, level - 1, read)?;
            }
        }
        Ok(())
    }
}

/// The value of the attribute `system.data`, which goes on where the inode's own room ends.
fn inline_rest(inode: &[u8]) -> Option<&[u8]> {
    use super::layout::{ATTRIBUTES_MAGIC, AttributeEntry};
    let after = inode.get(inode_at::SMALL_END..)?;
    let area = after.get(word16(after.get(..2)?, 0)..)?;
    let (magic, values) = area.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*magic) != ATTRIBUTES_MAGIC {
        return None;
    }
    let mut entries = values;
    while *entries.first_chunk::<4>()? != [0; 4] {
        let (entry, rest) = AttributeEntry::ref_from_prefix(entries).ok()?;
        let name = rest.get(..usize::from(entry.name_len))?;
        if entry.name_index == 7 && name == b"data" {
            return values
                .get(usize::from(entry.value_offs.get())..)?
                .get(..usize::try_from(entry.value_size.get()).ok()?);
        }
        entries = rest.get(usize::from(entry.name_len).next_multiple_of(4)..)?;
    }
    None
}
