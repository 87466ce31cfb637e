//! Directories: the `$I30` index of file names, in `$INDEX_ROOT` and, below it, `$INDEX_ALLOCATION`.

use std::cmp::Ordering;

use block::{Error, ReadAt, Result, read_vec};
use extent::Offset;
use zerocopy::FromBytes;

use super::layout::{
    ATTR_FILE_NAME, ATTR_INDEX_ALLOCATION, ATTR_INDEX_ROOT, FILE_NAME_DOS, FileName, INDEX_ENTRY_END,
    INDEX_ENTRY_NODE, IndexBlock, IndexEntry, IndexHeader, IndexRoot, MAGIC_INDX,
};
use super::mft::Mft;
use super::record::{FileReference, Record, fix_up};
use super::stream::Stream;
use crate::ntfs::corrupt::Corrupt;

/// More levels than any index has: each multiplies the entries by ten or more.
const DEPTH_MAX: u32 = 32;

/// An index block whose number is below a cluster counts in these.
const SMALL_BLOCK_UNIT_BYTES: u64 = 512;

/// A directory's index.
pub(super) struct Directory<'a> {
    mft: &'a Mft,
    root: Vec<u8>,
    block_bytes: u64,
    blocks: Option<Stream>,
}

/// What to do after a node was searched.
enum Step {
    Found(FileReference),
    Absent,
    /// Search the node of this number.
    Below(u64),
}

impl<'a> Directory<'a> {
    /// The index of the directory `record`.
    pub(super) fn open(mft: &'a Mft, record: &Record<'_>) -> Result<Self> {
        let missing = || record.error().field("index root", "missing", "in a directory");
        let stream = mft.stream(record, ATTR_INDEX_ROOT, "$I30")?.ok_or_else(missing)?;
        if !stream.is_resident() {
            return Err(record.error().field("index root", "not resident", "resident"));
        }
        let root = read_vec(&stream, Offset::ZERO, stream.len_bytes(), "NTFS index root")?;
        let (header, _) = IndexRoot::ref_from_prefix(&root).map_err(|_| missing())?;
        let block_bytes = u64::from(header.index_block_size.get());
        if header.kind != ATTR_FILE_NAME {
            return Err(record.error().field("indexed attribute", header.kind, ATTR_FILE_NAME));
        }
        if !block_bytes.is_power_of_two() || !(512..=(64 << 10)).contains(&block_bytes) {
            return Err(record.error().field("index block size", block_bytes, "512 to 65536"));
        }
        let blocks = mft.stream(record, ATTR_INDEX_ALLOCATION, "$I30")?;
        Ok(Self { mft, root, block_bytes, blocks })
    }

    /// Finds a name of ASCII letters, in whatever case it is written.
    pub(super) fn find(&self, name: &str) -> Result<Option<FileReference>> {
        let mut step = search(&self.root[size_of::<IndexRoot>()..], name)?;
        for _ in 0..DEPTH_MAX {
            match step {
                Step::Found(reference) => return Ok(Some(reference)),
                Step::Absent => return Ok(None),
                Step::Below(number) => step = search(&self.block(number)?[size_of::<IndexBlock>()..], name)?,
            }
        }
        Err(Error::corrupt(Corrupt::Index).field("depth", "more", DEPTH_MAX))
    }

    /// Calls `each` with the file and the UTF-16 bytes of the name of every entry, in no particular order.
    pub(super) fn each_entry(&self, mut each: impl FnMut(FileReference, &[u8]) -> Result<()>) -> Result<()> {
        self.each_key(|file, key| each(file, name_of(key).ok_or_else(|| bad("key length", key.len()))?))
    }

    /// The same without names for DOS that stand beside others.
    pub(super) fn each_long_name(
        &self,
        mut each: impl FnMut(FileReference, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.each_key(|file, key| {
            let (head, _) = FileName::ref_from_prefix(key).map_err(|_| bad("key length", key.len()))?;
            match head.file_name_type {
                FILE_NAME_DOS => Ok(()),
                _ => each(file, name_of(key).ok_or_else(|| bad("key length", key.len()))?),
            }
        })
    }

    /// Calls `each` with the file and the key of every entry.
    fn each_key(&self, mut each: impl FnMut(FileReference, &[u8]) -> Result<()>) -> Result<()> {
        let mut below = entries(&self.root[size_of::<IndexRoot>()..], &mut each)?;
        let mut block_count_left =
            self.blocks.as_ref().map_or(0, |blocks| blocks.len_bytes() / self.block_bytes);
        while let Some(number) = below.pop() {
            block_count_left = block_count_left.checked_sub(1).ok_or_else(|| {
                Error::corrupt(Corrupt::Index).field("blocks", "more", "those of its allocation")
            })?;
            below.extend(entries(&self.block(number)?[size_of::<IndexBlock>()..], &mut each)?);
        }
        Ok(())
    }

    fn block(&self, number: u64) -> Result<Vec<u8>> {
        let error = || Error::corrupt(Corrupt::IndexBlock { block: number });
        let blocks =
            self.blocks.as_ref().ok_or_else(|| error().field("index allocation", "missing", "blocks"))?;
        let cluster_bytes = self.mft.geometry.cluster_bytes;
        let unit = if cluster_bytes <= self.block_bytes { cluster_bytes } else { SMALL_BLOCK_UNIT_BYTES };
        let start = number
            .checked_mul(unit)
            .filter(|start| start.checked_add(self.block_bytes).is_some_and(|end| end <= blocks.len_bytes()))
            .ok_or_else(|| error().field("number", number, "within the index"))?;
        let mut bytes = read_vec(blocks, Offset::new(start), self.block_bytes, "NTFS index block")?;
        let at = blocks.volume_offset(start);
        fix_up(&mut bytes, &[MAGIC_INDX], || error().at(at))?;
        let (header, _) = IndexBlock::ref_from_prefix(&bytes).expect("at least 512 bytes");
        if header.index_block_vcn != number {
            return Err(error().at(at).field("its number", header.index_block_vcn, number));
        }
        Ok(bytes)
    }
}

/// Searches one node, whose index header is at the start of `node`.
fn search(node: &[u8], name: &str) -> Result<Step> {
    for entry in Entries::of(node)? {
        let entry = entry?;
        let order = match entry.key {
            None => Ordering::Greater,
            Some(key) => compare(name_of(key).ok_or_else(|| bad("key length", key.len()))?, name),
        };
        match (order, entry.below) {
            (Ordering::Equal, _) => return Ok(Step::Found(entry.file)),
            (Ordering::Less, _) => {}
            (Ordering::Greater, None) => return Ok(Step::Absent),
            (Ordering::Greater, Some(below)) => return Ok(Step::Below(below)),
        }
    }
    Err(bad("entry", 0))
}

/// Calls `each` with the file and the key of every entry of one node; answers which nodes lie below it.
fn entries(node: &[u8], each: &mut impl FnMut(FileReference, &[u8]) -> Result<()>) -> Result<Vec<u64>> {
    let mut below = Vec::new();
    for entry in Entries::of(node)? {
        let entry = entry?;
        below.extend(entry.below);
        if let Some(key) = entry.key {
            each(entry.file, key)?;
        }
    }
    Ok(below)
}

fn bad(field: &str, found: usize) -> Error {
    Error::corrupt(Corrupt::IndexNode).field(field, found, "in bounds")
}

/// One entry of a node.
struct Entry<'a> {
    /// Absent in the last one.
    key: Option<&'a [u8]>,
    file: FileReference,
    /// The node with what comes before it.
    below: Option<u64>,
}

/// The entries of one node. The last one, and an error, end them.
struct Entries<'a> {
    rest: &'a [u8],
    is_done: bool,
}

impl<'a> Entries<'a> {
    /// Those of a node whose index header is at its start.
    fn of(node: &'a [u8]) -> Result<Self> {
        let (header, _) = IndexHeader::ref_from_prefix(node).map_err(|_| bad("length", node.len()))?;
        let end = header.index_length.get() as usize;
        let rest = node.get(..end).ok_or_else(|| bad("index length", end))?;
        let start = header.entries_offset.get() as usize;
        let rest = rest.get(start..).ok_or_else(|| bad("entries offset", start))?;
        Ok(Self { rest, is_done: false })
    }

    fn step(&mut self) -> Result<Entry<'a>> {
        let (head, _) = IndexEntry::ref_from_prefix(self.rest).map_err(|_| bad("entry", self.rest.len()))?;
        let length = usize::from(head.length.get());
        if length < size_of::<IndexEntry>() || length > self.rest.len() {
            return Err(bad("entry length", length));
        }
        let (bytes, tail) = self.rest.split_at(length);
        self.rest = tail;
        let flags = head.flags.get();
        let below = match flags & INDEX_ENTRY_NODE {
            0 => None,
            _ => Some(bytes.last_chunk::<8>().ok_or_else(|| bad("entry length", length))?),
        };
        let is_last = flags & INDEX_ENTRY_END != 0;
        self.is_done = is_last;
        Ok(Entry {
            key: (!is_last).then(|| &bytes[size_of::<IndexEntry>()..]),
            file: FileReference::from_raw(head.indexed_file.get()),
            below: below.map(|number| u64::from_le_bytes(*number)),
        })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let entry = self.step();
        self.is_done |= entry.is_err();
        Some(entry)
    }
}

/// The UTF-16 bytes of a `$FILE_NAME`'s name.
pub(super) fn name_of(file_name: &[u8]) -> Option<&[u8]> {
    let (head, name) = FileName::ref_from_prefix(file_name).ok()?;
    name.get(..usize::from(head.file_name_length) * 2)
}

/// How a UTF-16 name compares with an ASCII one where case does not matter. NTFS orders by the upper case of
/// each unit; what is not ASCII has an upper case above ASCII.
pub(super) fn compare(name: &[u8], ascii: &str) -> Ordering {
    let (units, _) = name.as_chunks::<2>();
    let units = units.iter().map(|unit| match u16::from_le_bytes(*unit) {
        unit @ 0x61..=0x7a => unit - 0x20,
        unit => unit,
    });
    units.cmp(ascii.bytes().map(|byte| u16::from(byte.to_ascii_uppercase())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utf16(text: &str) -> Vec<u8> {
        text.encode_utf16().flat_map(u16::to_le_bytes).collect()
    }

    #[test]
    fn names_are_ordered_as_ntfs_orders_them() {
        assert_eq!(compare(&utf16("PageFile.SYS"), "pagefile.sys"), Ordering::Equal);
        assert_eq!(compare(&utf16("pagefile_sys"), "pagefile.sys"), Ordering::Greater);
        assert_eq!(compare(&utf16("pagefile"), "pagefile.sys"), Ordering::Less);
        assert_eq!(compare(&utf16("$MFT"), "pagefile.sys"), Ordering::Less);
        assert_eq!(compare(&utf16("öl"), "pagefile.sys"), Ordering::Greater);
    }

    #[test]
    fn a_node_that_ends_early_is_an_error() {
        assert!(search(&[], "a").is_err());
        assert!(search(&[16, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "a").is_err());
        let mut node = vec![0; 32];
        node[0] = 16;
        node[4] = 32;
        assert!(search(&node, "a").is_err());
        node[24] = 16;
        node[28] = 2;
        assert!(matches!(search(&node, "a").unwrap(), Step::Absent));
    }
}
