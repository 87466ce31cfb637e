//! The extent tree: what is allocated, and what refers to it.

use block::Result;
use zerocopy::FromBytes;
use zerocopy::little_endian::{U32, U64};

use super::key::{Key, Root};
use super::layout::{
    RawBlockGroup, RawDataReference, RawExtent, TREE_BLOCK_INFO_BYTES, extent_flag, item, object,
};
use super::tree::Reader;

/// What refers to an extent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Reference {
    /// Blocks of a tree, or its root, to a block.
    Tree { tree: u64 },
    /// A block that several trees share, to a block.
    SharedTree { parent: u64 },
    /// A file of a subvolume, to data: `offset` is where in the file the whole extent would begin.
    File { tree: u64, inode: u64, offset: u64 },
    /// A leaf that several subvolumes share, to data.
    SharedFile { parent: u64 },
}

/// An extent that is allocated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Extent {
    pub(super) logical: u64,
    pub(super) len_bytes: u64,
    /// `None` of data, else the level of the block.
    pub(super) level: Option<u8>,
}

impl Extent {
    pub(super) fn end(&self) -> u64 {
        self.logical + self.len_bytes
    }
}

/// What is met in the tree.
pub(super) enum Met {
    /// An extent. `is_shared` if what it names is referred to by the block, and not by its tree.
    Extent { extent: Extent, is_shared: bool },
    /// What refers to the extent that was met last, and how often.
    Reference(Extent, Reference, u64),
    /// How much of a block group is used, and what its chunk must be.
    BlockGroup { key: Key, used: u64, kind: u64 },
}

/// What is to come of an extent.
struct Current {
    key: Key,
    extent: Extent,
    /// How many references there should be, and how many there were.
    references: u64,
    met: u64,
}

impl Current {
    fn check(&self) -> Result<()> {
        if self.references == self.met {
            return Ok(());
        }
        Err(self.key.wrong("refs", self.references, &format!("{}, as many as are listed", self.met)))
    }
}

/// Calls `each` with what the tree says of the addresses from `from` up to, not including, `to`.
pub(super) fn each(
    reader: &Reader,
    root: Root,
    from: u64,
    to: u64,
    each: &mut dyn FnMut(Met) -> Result<()>,
) -> Result<()> {
    let mut current: Option<Current> = None;
    let mut end = 0;
    let range = Key::new(from, 0, 0)..=Key::new(to.saturating_sub(1), u8::MAX, u64::MAX);
    reader.walk(root, &range, &mut |key, bytes| match key.kind {
        item::EXTENT | item::METADATA => {
            if let Some(current) = current.take() {
                current.check()?;
            }
            let (extent, raw, rest) = parse(reader, key, bytes)?;
            if extent.logical < end {
                return Err(key.wrong("objectid", extent.logical, "one behind the extent before it"));
            }
            end = extent.end();
            let is_shared = raw.flags.get() & extent_flag::FULL_BACKREF != 0;
            each(Met::Extent { extent, is_shared })?;
            let mut met = 0;
            inline(key, extent, rest, &mut |reference, count| {
                met += count;
                each(Met::Reference(extent, reference, count))
            })?;
            current = Some(Current { key, extent, references: raw.refs.get(), met });
            Ok(())
        }
        item::TREE_BLOCK_REF | item::SHARED_BLOCK_REF | item::EXTENT_DATA_REF | item::SHARED_DATA_REF => {
            let current = current.as_mut().filter(|current| current.extent.logical == key.objectid);
            let current = current.ok_or_else(|| key.wrong("objectid", key.objectid, "that of an extent"))?;
            let (reference, count) = keyed(key, current.extent, bytes)?;
            current.met = current.met.saturating_add(count);
            each(Met::Reference(current.extent, reference, count))
        }
        item::BLOCK_GROUP => {
            let (used, kind) = block_group(key, bytes)?;
            each(Met::BlockGroup { key, used, kind })
        }
        // Of simple quotas alone: who made the extent.
        item::EXTENT_OWNER_REF => Ok(()),
        kind => Err(key.wrong("type", kind, "one of the extent tree")),
    })?;
    current.map_or(Ok(()), |current| current.check())
}

/// A block group's used bytes and its kind.
pub(super) fn block_group(key: Key, bytes: &[u8]) -> Result<(u64, u64)> {
    let raw = RawBlockGroup::read_from_bytes(bytes);
    let raw = raw.map_err(|_| key.wrong("size", bytes.len() as u64, "that of a block group"))?;
    if raw.chunk_objectid.get() != object::FIRST_CHUNK || raw.used.get() > key.offset {
        return Err(key.wrong(
            "used",
            raw.used.get(),
            "at most its length, and the chunks' number beside it",
        ));
    }
    Ok((raw.used.get(), raw.flags.get()))
}

fn parse<'a>(reader: &Reader, key: Key, bytes: &'a [u8]) -> Result<(Extent, RawExtent, &'a [u8])> {
    let short = || key.wrong("size", bytes.len() as u64, "that of an extent");
    let (raw, mut rest) = RawExtent::read_from_prefix(bytes).map_err(|_| short())?;
    let flags = raw.flags.get();
    let is_data = flags & extent_flag::DATA != 0;
    let is_block = flags & extent_flag::TREE_BLOCK != 0;
    let is_metadata = key.kind == item::METADATA;
    let known = extent_flag::DATA | extent_flag::TREE_BLOCK | extent_flag::FULL_BACKREF;
    if is_data == is_block || (is_metadata && is_data) || flags & !known != 0 {
        return Err(key.wrong("flags", flags, "either of data or of a tree"));
    }
    if is_metadata && !reader.superblock.has_skinny_metadata() {
        return Err(key.wrong("type", key.kind, "one that the volume's features allow"));
    }
    // It is 0 in what early versions of btrfs-convert made of the files of ext4: neither the kernel nor `btrfs check` minds.
    if raw.generation.get() > reader.superblock.generation {
        return Err(key.wrong("generation", raw.generation.get(), "at most that of the superblock"));
    }
    let node_bytes = u64::from(reader.superblock.node_bytes);
    let len_bytes = if is_metadata { node_bytes } else { key.offset };
    let sector = u64::from(reader.superblock.sector_bytes);
    let is_whole = len_bytes > 0 && len_bytes.is_multiple_of(sector) && key.objectid.is_multiple_of(sector);
    if !is_whole || (is_block && len_bytes != node_bytes) || key.objectid.checked_add(len_bytes).is_none() {
        return Err(key.wrong("offset", key.offset, "the length of whole sectors, or of a tree's block"));
    }
    let level = match (is_block, is_metadata) {
        (false, _) => None,
        (true, true) => {
            Some(u8::try_from(key.offset).map_err(|_| key.wrong("offset", key.offset, "a level"))?)
        }
        (true, false) => {
            let (info, behind) = rest.split_at_checked(TREE_BLOCK_INFO_BYTES).ok_or_else(short)?;
            rest = behind;
            info.last().copied()
        }
    };
    Ok((Extent { logical: key.objectid, len_bytes, level }, raw, rest))
}

/// The references that follow an extent in its item.
fn inline(
    key: Key,
    extent: Extent,
    bytes: &[u8],
    each: &mut dyn FnMut(Reference, u64) -> Result<()>,
) -> Result<()> {
    let mut rest = bytes;
    while let Some((&kind, body)) = rest.split_first() {
        let short = || key.wrong("size", bytes.len() as u64, "that of whole references");
        if kind == item::EXTENT_DATA_REF {
            let (raw, behind) = RawDataReference::read_from_prefix(body).map_err(|_| short())?;
            let (reference, count) = file(&raw);
            check_kind(key, extent, reference)?;
            each(reference, count)?;
            rest = behind;
            continue;
        }
        let (of, behind) = U64::read_from_prefix(body).map_err(|_| short())?;
        rest = behind;
        let (reference, count) = match kind {
            item::TREE_BLOCK_REF => (Reference::Tree { tree: of.get() }, 1),
            item::SHARED_BLOCK_REF => (Reference::SharedTree { parent: of.get() }, 1),
            item::SHARED_DATA_REF => {
                let (count, behind) = U32::read_from_prefix(rest).map_err(|_| short())?;
                rest = behind;
                (Reference::SharedFile { parent: of.get() }, count.get().into())
            }
            item::EXTENT_OWNER_REF => continue,
            _ => return Err(key.wrong("reference.type", kind, "that of a reference")),
        };
        check_kind(key, extent, reference)?;
        each(reference, count)?;
    }
    Ok(())
}

/// A reference that is an item by itself.
fn keyed(key: Key, extent: Extent, bytes: &[u8]) -> Result<(Reference, u64)> {
    let short = || key.wrong("size", bytes.len() as u64, "that of a reference");
    let (reference, count) = match key.kind {
        item::TREE_BLOCK_REF => (Reference::Tree { tree: key.offset }, 1),
        item::SHARED_BLOCK_REF => (Reference::SharedTree { parent: key.offset }, 1),
        item::SHARED_DATA_REF => {
            let count = U32::read_from_bytes(bytes).map_err(|_| short())?;
            (Reference::SharedFile { parent: key.offset }, count.get().into())
        }
        _ => file(&RawDataReference::read_from_bytes(bytes).map_err(|_| short())?),
    };
    check_kind(key, extent, reference)?;
    Ok((reference, count))
}

fn file(raw: &RawDataReference) -> (Reference, u64) {
    let (tree, inode, offset) = (raw.root.get(), raw.objectid.get(), raw.offset.get());
    (Reference::File { tree, inode, offset }, raw.count.get().into())
}

fn check_kind(key: Key, extent: Extent, reference: Reference) -> Result<()> {
    let is_of_data = matches!(reference, Reference::File { .. } | Reference::SharedFile { .. });
    if is_of_data == extent.level.is_none() {
        return Ok(());
    }
    Err(key.wrong("reference.type", key.kind, "that of its extent"))
}
