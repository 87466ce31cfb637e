//! Extended attributes: within the inode, in a block of their own, and in inodes that hold one long value.
//!
//! Invariants: no entry reaches beyond what holds it; a list ends, since each step takes an entry's length.

use block::{Error, Result, read_vec};
use zerocopy::FromBytes;

use super::corrupt::Corrupt;
use super::inode::{Inode, InodeNumber};
use super::layout::{
    ACL_VERSION, ATTRIBUTE_INDEX_SYSTEM, ATTRIBUTE_NAME_DATA, ATTRIBUTE_PREFIXES, ATTRIBUTES_HEADER_BYTES,
    ATTRIBUTES_MAGIC, INODE_BYTES_SMALL, RawAttribute, RawInodeExtra,
};
use super::superblock::Superblock;
use crate::Source;
use crate::acl;
use crate::browse::{Attribute, VALUE_BYTES_MAX};

/// Where an attribute's value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value<'a> {
    Here(&'a [u8]),
    /// All of what is in this inode, so many bytes.
    Inode(InodeNumber, u32),
}

/// An entry of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry<'a> {
    index: u8,
    name: &'a [u8],
    value: Value<'a>,
}

/// Calls `each` with the entries of a list. Values lie `offset` bytes into `all`. `None` if it is not understood to its end.
fn each_entry<'a>(list: &'a [u8], all: &'a [u8], each: &mut dyn FnMut(Entry<'a>)) -> Option<()> {
    let mut rest = list;
    // Four zeros end the list, or its room does.
    while rest.len() >= 4 && rest.first_chunk() != Some(&[0; 4]) {
        let (entry, names) = RawAttribute::read_from_prefix(rest).ok()?;
        let name_len = usize::from(entry.name_len);
        let name = names.get(..name_len)?;
        let value = match entry.value_inum.get() {
            0 => {
                let size = usize::try_from(entry.value_size.get()).ok()?;
                // An empty value lies nowhere.
                let from = if size == 0 { 0 } else { usize::from(entry.value_offs.get()) };
                Value::Here(all.get(from..)?.get(..size)?)
            }
            inode => Value::Inode(inode, entry.value_size.get()),
        };
        each(Entry { index: entry.name_index, name, value });
        rest = names.get(name_len.next_multiple_of(4)..)?;
    }
    Some(())
}

/// The list within an inode, if there is one.
fn list_within(bytes: &[u8]) -> Option<&[u8]> {
    let after = bytes.get(usize::from(INODE_BYTES_SMALL)..)?;
    let (extra, _) = RawInodeExtra::read_from_prefix(after).ok()?;
    let (magic, entries) = after.get(usize::from(extra.extra_isize.get())..)?.split_first_chunk()?;
    (u32::from_le_bytes(*magic) == ATTRIBUTES_MAGIC).then_some(entries)
}

/// The value of `system.data`, which continues inline data; `None` also if the attributes are not understood.
pub(super) fn inline_data(bytes: &[u8]) -> Option<&[u8]> {
    let list = list_within(bytes)?;
    let mut found = None;
    each_entry(list, list, &mut |entry| {
        if entry.index == ATTRIBUTE_INDEX_SYSTEM && entry.name == ATTRIBUTE_NAME_DATA {
            found = Some(entry.value);
        }
    });
    match found? {
        Value::Here(value) => Some(value),
        Value::Inode(..) => None,
    }
}

/// All attributes of an inode, of which `bytes` are those in the table. `read_inode` reads all that is in another one.
pub(super) fn read(
    source: &Source,
    superblock: &Superblock,
    inode: &Inode,
    bytes: &[u8],
    read_inode: &dyn Fn(InodeNumber, u64) -> Result<Vec<u8>>,
) -> Result<Vec<Attribute>> {
    let wrong = || {
        let what = Corrupt::Inode { inode: inode.number };
        Error::corrupt(what).field("extended attributes", "out of bounds", "a list within its room")
    };
    let mut attributes = Vec::new();
    let mut take = |list: &[u8], all: &[u8]| -> Result<()> {
        let mut taken = Ok(());
        let walked = each_entry(list, all, &mut |entry| {
            if taken.is_ok() {
                taken = attribute(&entry, read_inode).map(|attribute| attributes.extend(attribute));
            }
        });
        taken?;
        walked.ok_or_else(wrong)
    };
    if let Some(list) = list_within(bytes) {
        take(list, list)?;
    }
    let Some(block) = inode.attributes else { return Ok(attributes) };
    if !superblock.holds(block, 1) {
        return Err(wrong());
    }
    let at = superblock.offset_of(block);
    let all = read_vec(&**source, at, superblock.block_bytes.into(), "ext extended attributes")?;
    let magic = all.first_chunk().map(|magic| u32::from_le_bytes(*magic));
    if magic != Some(ATTRIBUTES_MAGIC) {
        return Err(wrong().at(at));
    }
    take(all.get(ATTRIBUTES_HEADER_BYTES..).ok_or_else(wrong)?, &all)?;
    Ok(attributes)
}

/// An entry as Linux shows it; `None` of what is the file system's own.
fn attribute(
    entry: &Entry<'_>,
    read_inode: &dyn Fn(InodeNumber, u64) -> Result<Vec<u8>>,
) -> Result<Option<Attribute>> {
    let prefix = ATTRIBUTE_PREFIXES.iter().find(|(index, _)| *index == entry.index);
    let Some((index, prefix)) = prefix else { return Ok(None) };
    if *index == ATTRIBUTE_INDEX_SYSTEM && entry.name == ATTRIBUTE_NAME_DATA {
        return Ok(None);
    }
    let value = match entry.value {
        Value::Here(value) => value.to_vec(),
        Value::Inode(inode, len) => read_inode(inode, u64::from(len).min(VALUE_BYTES_MAX))?,
    };
    let value = match index {
        2 | 3 => acl_value(&value).ok_or_else(|| Error::corrupt("ext access-control list"))?,
        _ => value,
    };
    Ok(Some(Attribute { name: [prefix, entry.name].concat(), value }))
}

/// A list as ext keeps it, in which only those entries have a number that need one.
fn acl_value(bytes: &[u8]) -> Option<Vec<u8>> {
    let (version, mut rest) = bytes.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != ACL_VERSION {
        return None;
    }
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let (head, behind) = rest.split_first_chunk::<4>()?;
        let (tag, permissions) =
            (u16::from_le_bytes([head[0], head[1]]), u16::from_le_bytes([head[2], head[3]]));
        let mut id = 0;
        rest = behind;
        if acl::has_id(tag) {
            let (number, behind) = rest.split_first_chunk::<4>()?;
            (id, rest) = (u32::from_le_bytes(*number), behind);
        }
        entries.push(acl::Entry { tag, permissions, id });
    }
    Some(acl::value(&entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_ext_become_those_that_linux_shows() {
        // user::rw-, user:1000:r--, group::r--, mask::r--, other::r--
        let kept =
            [1, 0, 0, 0, 1, 0, 6, 0, 2, 0, 4, 0, 0xe8, 3, 0, 0, 4, 0, 4, 0, 0x10, 0, 4, 0, 0x20, 0, 4, 0];
        let shown = acl_value(&kept).unwrap();
        assert_eq!(shown.len(), 4 + 5 * 8);
        assert_eq!(shown[..12], [2, 0, 0, 0, 1, 0, 6, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(shown[12..20], [2, 0, 4, 0, 0xe8, 3, 0, 0]);
        assert_eq!(acl_value(&kept[..14]), None);
    }
}
