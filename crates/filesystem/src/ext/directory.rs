//! The entries of directories: what a block of one, or the inline part of one, says.
//!
//! Nodes of a hash tree are shaped as blocks whose entries are not in use, so that reading every block in a row finds
//! every name once, in a tree or not.
//!
//! Deliberately absent: hashes, decryption, the type of file that an entry repeats.

use block::{Error, FieldValue, Result};
use zerocopy::FromBytes;

use super::attributes;
use super::checksum::crc32c;
use super::corrupt::Corrupt;
use super::inode::{Inode, InodeNumber};
use super::layout::{
    DIRECTORY_ENTRY_BYTES_MIN, DIRECTORY_ENTRY_HEAD_BYTES, INDEX_ENTRY_BYTES, INDEX_NODE_ENTRIES_AT,
    INDEX_ROOT_ENTRIES_AT, INLINE_PARENT_BYTES, RawDirectoryEntry, RawDirectoryTail, RawIndexCounts,
    RawIndexTail, RawInode, inode_flags,
};

/// What a directory's blocks are read by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Directory {
    pub(super) number: InodeNumber,
    /// Where the checksums of its blocks start from; `None` if they have none.
    checksum_seed: Option<u32>,
    /// Its first block is the root of a hash tree, and others may be nodes of it.
    is_indexed: bool,
    /// Its names are whatever encryption makes of them.
    pub(super) is_encrypted: bool,
}

/// An entry in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry<'a> {
    pub(super) inode: InodeNumber,
    /// Not empty, untrusted.
    pub(super) name: &'a [u8],
}

impl Directory {
    pub(super) fn new(inode: &Inode, has_checksums: bool) -> Self {
        Self {
            number: inode.number,
            checksum_seed: has_checksums.then_some(inode.checksum_seed),
            is_indexed: inode.has(inode_flags::INDEX),
            is_encrypted: inode.has(inode_flags::ENCRYPT),
        }
    }

    fn corrupt(&self, field: &str, found: impl Into<FieldValue>, expected: impl std::fmt::Display) -> Error {
        Error::corrupt(Corrupt::Directory { inode: self.number }).field(field, found, expected)
    }

    /// The entries in use of `bytes`, in order, without those for itself and its parent. Ends with the first error.
    pub(super) fn entries<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = Result<Entry<'a>>> {
        let mut rest = bytes;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let entry = self.entry(rest);
            rest = entry.as_ref().map_or(&[][..], |(_, after)| after);
            Some(entry.map(|(entry, _)| entry))
        })
        .filter_map(Result::transpose)
        .filter(|entry| !entry.as_ref().is_ok_and(|entry| [&b"."[..], b".."].contains(&entry.name)))
    }

    /// The first entry of `bytes`, `None` if it is not in use, and what follows it (the kernel's
    /// `__ext4_check_dir_entry`).
    fn entry<'a>(&self, bytes: &'a [u8]) -> Result<(Option<Entry<'a>>, &'a [u8])> {
        let room = bytes.len();
        if room < DIRECTORY_ENTRY_BYTES_MIN {
            return Err(self.corrupt("room for an entry", room, "12 or more, or none"));
        }
        let (raw, _) = RawDirectoryEntry::read_from_prefix(bytes).expect("there is room");
        let len = entry_len(raw.rec_len.get(), room);
        if len < DIRECTORY_ENTRY_BYTES_MIN || !len.is_multiple_of(4) || len > room {
            return Err(self.corrupt("rec_len", len, format!("a multiple of 4 from 12 to {room}")));
        }
        let (entry, after) = bytes.split_at(len);
        if raw.inode.get() == 0 {
            return Ok((None, after));
        }
        let end = DIRECTORY_ENTRY_HEAD_BYTES + usize::from(raw.name_len);
        if raw.name_len == 0 || end > len {
            let longest = len - DIRECTORY_ENTRY_HEAD_BYTES;
            return Err(self.corrupt("name_len", raw.name_len, format!("1 to {longest}")));
        }
        let name = &entry[DIRECTORY_ENTRY_HEAD_BYTES..end];
        Ok((Some(Entry { inode: raw.inode.get(), name }), after))
    }

    /// Whether no path can go through the name.
    pub(super) fn is_improper(&self, name: &[u8]) -> bool {
        !self.is_encrypted && name.iter().any(|byte| [0, b'/'].contains(byte))
    }

    /// Checks the checksum of a block, the one at `logical` of the directory.
    pub(super) fn verify(&self, bytes: &[u8], logical: u64) -> Result<()> {
        let Some(seed) = self.checksum_seed else {
            return Ok(());
        };
        let found = match self.index_entries_at(bytes, logical) {
            Some(at) => index_checksum(bytes, at, seed),
            None => block_checksum(bytes, seed),
        };
        match found {
            Some((stored, computed)) if stored == computed => Ok(()),
            Some((stored, computed)) => {
                let (inode, found, expected) = (self.number, stored, computed);
                Err(Error::corrupt(Corrupt::DirectoryChecksum { inode, block: logical, found, expected }))
            }
            None => Err(self.corrupt(&format!("checksum of block {logical}"), "missing", "one")),
        }
    }

    /// Where the entries of the hash tree's node begin, if the block is one (the kernel's `__ext4_read_dirblock`).
    fn index_entries_at(&self, bytes: &[u8], logical: u64) -> Option<usize> {
        let (first, _) = RawDirectoryEntry::read_from_prefix(bytes).ok()?;
        match self.is_indexed {
            false => None,
            true if logical == 0 => Some(INDEX_ROOT_ENTRIES_AT),
            true => {
                (entry_len(first.rec_len.get(), bytes.len()) == bytes.len()).then_some(INDEX_NODE_ENTRIES_AT)
            }
        }
    }
}

/// The length of an entry that `room` bytes are left for: 16 bits cannot hold that of a whole block of 64 KiB
/// (the kernel's `ext4_rec_len_from_disk`).
fn entry_len(raw: u16, room: usize) -> usize {
    if room > usize::from(u16::MAX) && [0, u16::MAX].contains(&raw) { room } else { usize::from(raw) }
}

/// The checksums stored and computed of a block of entries (the kernel's `ext4_dirblock_csum_verify`).
fn block_checksum(bytes: &[u8], seed: u32) -> Option<(u32, u32)> {
    let (before, tail) = bytes.split_at_checked(bytes.len().checked_sub(size_of::<RawDirectoryTail>())?)?;
    let tail = RawDirectoryTail::read_from_bytes(tail).ok()?;
    let is_tail = tail.entry.inode.get() == 0
        && usize::from(tail.entry.rec_len.get()) == size_of::<RawDirectoryTail>()
        && tail.entry.name_len == 0;
    is_tail.then(|| (tail.checksum.get(), crc32c(seed, before)))
}

/// The same of a node of a hash tree (the kernel's `ext4_dx_csum_verify`).
fn index_checksum(bytes: &[u8], entries_at: usize, seed: u32) -> Option<(u32, u32)> {
    let (counts, _) = RawIndexCounts::read_from_prefix(bytes.get(entries_at..)?).ok()?;
    let after = |count: u16| entries_at + usize::from(count) * INDEX_ENTRY_BYTES;
    let (tail, _) = RawIndexTail::read_from_prefix(bytes.get(after(counts.limit.get())..)?).ok()?;
    let crc = crc32c(seed, bytes.get(..after(counts.count.get()))?);
    let crc = crc32c(crc, &tail.reserved.get().to_le_bytes());
    Some((tail.checksum.get(), crc32c(crc, &[0; 4])))
}

/// The parts of an inline directory that hold entries: within the block map, and in the attribute that continues it.
/// `bytes` are the inode's in the table.
pub(super) fn inline_parts(bytes: &[u8]) -> [&[u8]; 2] {
    let map = std::mem::offset_of!(RawInode, block);
    let first = &bytes[map + INLINE_PARENT_BYTES..map + size_of::<[u8; 60]>()];
    [first, attributes::inline_data(bytes).unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Directory =
        Directory { number: 5, checksum_seed: None, is_indexed: false, is_encrypted: false };

    fn entry(inode: u32, len: u16, name: &[u8]) -> Vec<u8> {
        let mut bytes = inode.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend([u8::try_from(name.len()).unwrap(), 1]);
        bytes.extend(name);
        bytes.resize(usize::from(len).max(8 + name.len()).max(12), 0);
        bytes
    }

    fn names(bytes: &[u8]) -> Vec<std::result::Result<Vec<u8>, String>> {
        let named = |entry: Result<Entry<'_>>| match entry {
            Ok(entry) => Ok(entry.name.to_vec()),
            Err(error) => Err(error.to_string()),
        };
        PLAIN.entries(bytes).map(named).collect()
    }

    #[test]
    fn entries_not_in_use_and_dots_are_left_out() {
        let bytes = [
            entry(5, 12, b"."),
            entry(2, 12, b".."),
            entry(12, 16, b"one"),
            entry(0, 20, b"gone"),
            entry(13, 12, b"..x"),
        ];
        assert_eq!(names(&bytes.concat()), [Ok(b"one".to_vec()), Ok(b"..x".to_vec())]);
    }

    #[test]
    fn the_first_broken_entry_is_the_last() {
        for (broken, why) in [
            (entry(12, 0, b"x"), "rec_len is 0"),
            (entry(12, 13, b"x"), "rec_len is 13"),
            (entry(12, 400, b"x")[..200].to_vec(), "rec_len is 400"),
            (entry(12, 12, b""), "name_len is 0"),
            (entry(12, 12, b"too long"), "name_len is 8"),
            (vec![0; 8], "room for an entry is 8"),
        ] {
            let found = names(&[entry(11, 12, b"a"), broken].concat());
            assert_eq!(found.len(), 2, "{why}: {found:?}");
            assert_eq!(found[0], Ok(b"a".to_vec()));
            assert!(found[1].as_ref().is_err_and(|error| error.contains(why)), "{why}: {found:?}");
        }
    }

    #[test]
    fn an_entry_may_fill_the_largest_block() {
        let mut bytes = entry(12, 0, b"x");
        bytes.resize(1 << 16, 0);
        assert_eq!(names(&bytes), [Ok(b"x".to_vec())]);
    }
}
