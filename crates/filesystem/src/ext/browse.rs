//! Directories and files one by one.

use block::{Error, Result, read_vec};
use zerocopy::FromBytes;

use super::attributes;
use super::contents;
use super::corrupt::Corrupt;
use super::directory::{Directory, inline_parts};
use super::files::EXTENT_COUNT_MAX;
use super::inode::{Contents as Root, Inode};
use super::layout::{INODE_BYTES_SMALL, RawInode, RawInodeExtra, file_type, inode_flags, special_inode};
use super::tree::{self, Collector};
use super::{InodeNumber, Volume};
use crate::browse::{
    Attribute, Browse, Contents, EachEntry, Node, NodeKind, Special, TARGET_BYTES_MAX, Target, Time, Unix,
    find_exactly, read_short,
};
use crate::files::{FileId, StreamName};

/// Before the digits of a name that is encrypted.
const ENCRYPTED_PREFIX: &str = "encrypted-name-";

/// The files of a volume.
pub(super) struct Files<'a>(pub(super) &'a Volume);

impl Files<'_> {
    fn read(&self, file: FileId) -> Result<(Inode, Vec<u8>)> {
        let Volume { source, superblock, .. } = self.0;
        Inode::read_with_bytes(source, superblock, contents::number_of(file)?)
    }

    /// The blocks of a directory in order: what each may hold is shown before the first that is broken is told.
    fn each_block(&self, inode: &Inode, each: &mut dyn FnMut(&Directory, &[u8]) -> Result<()>) -> Result<()> {
        let Volume { source, superblock, .. } = self.0;
        let directory = Directory::new(inode, superblock.features.metadata_csum());
        let block_bytes = u64::from(superblock.block_bytes);
        let end = inode.size_bytes.div_ceil(block_bytes);
        let mut found = Collector::new(superblock, end, EXTENT_COUNT_MAX);
        tree::walk(source, superblock, inode, &mut found)?;
        let mut blocks_left = superblock.blocks_count;
        let mut broken = Ok(());
        for extent in found.extents.iter().filter(|extent| extent.logical < end && !extent.unwritten) {
            for index in 0..extent.count.min(end - extent.logical) {
                blocks_left = blocks_left.checked_sub(1).ok_or_else(|| {
                    let what = Corrupt::Directory { inode: inode.number };
                    Error::corrupt(what).field("blocks", "more", "as many as the volume has")
                })?;
                let at = superblock.offset_of(extent.start + index);
                let bytes = read_vec(source, at, block_bytes, "ext directory")?;
                let read =
                    directory.verify(&bytes, extent.logical + index).and_then(|()| each(&directory, &bytes));
                broken = broken.and(read);
            }
        }
        broken
    }
}

impl Browse for Files<'_> {
    fn root(&self) -> FileId {
        FileId(special_inode::ROOT.into())
    }

    fn node(&self, file: FileId) -> Result<Node> {
        let (inode, bytes) = self.read(file)?;
        let (raw, after) = RawInode::read_from_prefix(&bytes).expect("an inode is at least that large");
        let (kind, size_bytes) = match inode.mode & file_type::MASK {
            file_type::REGULAR => (NodeKind::File, inode.size_bytes),
            file_type::DIRECTORY => (NodeKind::Directory, 0),
            file_type::SYMLINK => (NodeKind::Link, inode.size_bytes),
            file_type::FIFO => (NodeKind::Special(Special::Pipe), 0),
            file_type::SOCKET => (NodeKind::Special(Special::Socket), 0),
            kind @ (file_type::CHARACTER | file_type::BLOCK) => {
                let (major, minor) = device(&raw.block);
                let special = match kind {
                    file_type::CHARACTER => Special::Character { major, minor },
                    _ => Special::Block { major, minor },
                };
                (NodeKind::Special(special), 0)
            }
            _ => {
                let what = Corrupt::Inode { inode: inode.number };
                return Err(Error::corrupt(what).field("mode", inode.mode, "that of a file"));
            }
        };
        let large = bytes.len() > usize::from(INODE_BYTES_SMALL);
        let extra = RawInodeExtra::read_from_prefix(after).ok().map(|(extra, _)| extra).filter(|_| large);
        // Each field counts only if the inode says that it reaches as far.
        let field = |end: u16, value: fn(&RawInodeExtra) -> u32| {
            extra.as_ref().filter(|extra| extra.extra_isize.get() >= end).map_or(0, value)
        };
        let is_encrypted = inode.has(inode_flags::ENCRYPT);
        Ok(Node {
            unix: Some(Unix { mode: inode.mode & !file_type::MASK, uid: inode.uid, gid: inode.gid }),
            modified: Some(time(raw.mtime.get(), field(12, |extra| extra.mtime_extra.get()))),
            accessed: Some(time(raw.atime.get(), field(16, |extra| extra.atime_extra.get()))),
            link_count: inode.links_count.into(),
            sealed: is_encrypted.then_some("it is encrypted (fscrypt)"),
            ..Node::new(file, kind, size_bytes)
        })
    }

    fn each_entry(&self, directory: FileId, each: &mut EachEntry<'_>) -> Result<()> {
        let (inode, bytes) = self.read(directory)?;
        if inode.mode & file_type::MASK != file_type::DIRECTORY {
            return Err(Error::invalid(format!("ext inode {} is no directory", inode.number)));
        }
        let mut show = |directory: &Directory, bytes: &[u8]| show(self.0, directory, bytes, each);
        if inode.contents == Root::None {
            let directory = Directory::new(&inode, false);
            return inline_parts(&bytes).into_iter().try_for_each(|part| show(&directory, part));
        }
        self.each_block(&inode, &mut show)
    }

    fn find(&self, directory: FileId, name: &[u8]) -> Result<Option<FileId>> {
        find_exactly(self, directory, name)
    }

    fn target(&self, file: FileId) -> Result<Target> {
        let (inode, bytes) = self.read(file)?;
        contents::check_open(&inode)?;
        let contents = contents::contents(self.0, &inode, &bytes)?;
        Ok(Target::of_unix(read_short(&*contents, TARGET_BYTES_MAX, "a symbolic link")?))
    }

    fn attributes(&self, file: FileId) -> Result<Vec<Attribute>> {
        let (inode, bytes) = self.read(file)?;
        let read_inode = |number: InodeNumber, len: u64| -> Result<Vec<u8>> {
            let (inode, bytes) = self.read(FileId(number.into()))?;
            let contents = contents::contents(self.0, &inode, &bytes)?;
            let len = contents.len_bytes().min(len);
            let mut value = vec![0; usize::try_from(len).expect("some kilobytes")];
            contents.read_at(extent::Offset::ZERO, &mut value)?;
            Ok(value)
        };
        let Volume { source, superblock, .. } = self.0;
        attributes::read(source, superblock, &inode, &bytes, &read_inode)
    }

    fn open(&self, file: FileId, name: StreamName<'_>) -> Result<Box<dyn Contents>> {
        contents::open(self.0, file, name)
    }
}

/// Shows the entries among `bytes` of a directory.
fn show(volume: &Volume, directory: &Directory, bytes: &[u8], each: &mut EachEntry<'_>) -> Result<()> {
    for entry in directory.entries(bytes) {
        let entry = entry?;
        if entry.inode > volume.superblock.inodes_count {
            let what = Corrupt::Directory { inode: directory.number };
            return Err(Error::corrupt(what).field("inode of an entry", entry.inode, "one of the volume"));
        }
        let file = FileId(entry.inode.into());
        match directory.is_encrypted {
            true => {
                let digits: String = entry.name.iter().map(|byte| format!("{byte:02x}")).collect();
                each(format!("{ENCRYPTED_PREFIX}{digits}").as_bytes(), file)?;
            }
            false => each(entry.name, file)?,
        }
    }
    Ok(())
}

/// Of 32 bits the upper ones are those of a year before 1970 or, by two more bits, after 2038 (the kernel's `ext4_decode_extra_time`).
fn time(seconds: u32, extra: u32) -> Time {
    let seconds = i64::from(seconds.cast_signed()) + (i64::from(extra & 3) << 32);
    Time { seconds, nanoseconds: (extra >> 2).min(999_999_999) }
}

/// The number of a device: in 16 bits, or in 32 behind zeros (the kernel's `old_decode_dev` and `new_decode_dev`).
fn device(root: &[u8; 60]) -> (u32, u32) {
    let word = |at: usize| u32::from_le_bytes([root[at], root[at + 1], root[at + 2], root[at + 3]]);
    match word(0) {
        0 => {
            let number = word(4);
            ((number & 0xf_ff00) >> 8, number & 0xff | (number >> 12) & 0xf_ff00)
        }
        number => (number >> 8 & 0xff, number & 0xff),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_reach_before_1970_and_beyond_2038() {
        assert_eq!(time(0xffff_ffff, 0), Time { seconds: -1, nanoseconds: 0 });
        assert_eq!(time(0x8000_0000, 1), Time { seconds: 1 << 31, nanoseconds: 0 });
        assert_eq!(time(5, 123 << 2), Time { seconds: 5, nanoseconds: 123 });
    }
}
