//! Directories and files one by one, of all subvolumes.

use block::{Error, Result};
use zerocopy::FromBytes;

use super::contents;
use super::files::{id_of, is_listed, of_id};
use super::key::Key;
use super::layout::{EMPTY_SUBVOLUME, RawDirectoryItem, RawInode, RawTime, item, mode, object};
use super::roots;
use super::{Corrupt, Volume};
use crate::browse::{
    Attribute, Browse, Contents, EachEntry, Node, NodeKind, Special, TARGET_BYTES_MAX, Target, Time, Unix,
    read_short,
};
use crate::files::{FileId, StreamName};

/// The files of a volume.
pub(super) struct Files<'a>(pub(super) &'a Volume);

impl Files<'_> {
    /// The items of a file of some kind, in order.
    fn each_item(
        &self,
        file: FileId,
        kind: u8,
        each: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let (tree, inode) = of_id(file);
        let Volume { reader, trees } = self.0;
        let root = roots::find(trees, tree)?.root;
        reader.walk(root, &(Key::new(inode, kind, 0)..=Key::new(inode, kind, u64::MAX)), each)
    }

    /// Which file an entry of a directory of `tree` is of; `None` if its number does not fit.
    fn located(&self, tree: u64, location: Key) -> Option<FileId> {
        if location.kind != item::ROOT {
            return id_of(tree, location.objectid);
        }
        // In a snapshot there is an empty directory in place of each subvolume.
        let subvolume = self.0.trees.iter().find(|found| found.root.tree == location.objectid);
        match subvolume.filter(|found| is_listed(found) && self.is_referred(tree, location.objectid)) {
            Some(found) => id_of(location.objectid, found.directory),
            None => id_of(tree, EMPTY_SUBVOLUME),
        }
    }

    /// Whether a subvolume is in this one.
    fn is_referred(&self, tree: u64, subvolume: u64) -> bool {
        let key = Key::new(tree, item::ROOT_REF, subvolume);
        let mut is_found = false;
        let reader = &self.0.reader;
        let walked = reader.walk(reader.superblock.root_tree, &(key..=key), &mut |_, _| {
            is_found = true;
            Ok(())
        });
        walked.is_ok() && is_found
    }
}

impl Browse for Files<'_> {
    fn root(&self) -> FileId {
        let top =
            roots::find(&self.0.trees, object::FS_TREE).map_or(object::FIRST_FREE, |tree| tree.directory);
        id_of(object::FS_TREE, top).unwrap_or(FileId(object::FIRST_FREE))
    }

    fn node(&self, file: FileId) -> Result<Node> {
        let (tree, inode) = of_id(file);
        if inode == EMPTY_SUBVOLUME {
            return Ok(Node::new(file, NodeKind::Directory, 0));
        }
        let mut found = None;
        self.each_item(file, item::INODE, &mut |key, bytes| {
            let raw = RawInode::read_from_bytes(bytes)
                .map_err(|_| key.wrong("size", bytes.len() as u64, "that of an inode"))?;
            found = Some(raw);
            Ok(())
        })?;
        let missing = || Error::corrupt(Corrupt::Item { objectid: inode, kind: item::INODE, offset: tree });
        let raw = found.ok_or_else(missing)?;
        let (major, minor) = device(raw.rdev.get());
        let special = |special| (NodeKind::Special(special), 0);
        let (kind, size_bytes) = match raw.mode.get() & mode::MASK {
            mode::REGULAR => (NodeKind::File, raw.size.get()),
            mode::DIRECTORY => (NodeKind::Directory, 0),
            mode::SYMLINK => (NodeKind::Link, raw.size.get()),
            mode::PIPE => special(Special::Pipe),
            mode::SOCKET => special(Special::Socket),
            mode::CHARACTER => special(Special::Character { major, minor }),
            mode::BLOCK => special(Special::Block { major, minor }),
            _ => special(Special::Other),
        };
        let [accessed, _, modified, _] = raw.times.map(time);
        let permissions = u16::try_from(raw.mode.get() & 0o7777).expect("12 bits");
        Ok(Node {
            unix: Some(Unix { mode: permissions, uid: raw.uid.get(), gid: raw.gid.get() }),
            modified: Some(modified),
            accessed: Some(accessed),
            link_count: raw.nlink.get().into(),
            ..Node::new(file, kind, size_bytes)
        })
    }

    fn each_entry(&self, directory: FileId, each: &mut EachEntry<'_>) -> Result<()> {
        let (tree, inode) = of_id(directory);
        if inode == EMPTY_SUBVOLUME {
            return Ok(());
        }
        self.each_item(directory, item::DIR_INDEX, &mut |key, bytes| {
            each_part(key, bytes, &mut |location, name, _| match self.located(tree, location) {
                Some(file) => each(name, file),
                None => Err(key.wrong("number of a file", location.objectid, "one that fits")),
            })
        })
    }

    fn target(&self, file: FileId) -> Result<Target> {
        let Volume { reader, trees } = self.0;
        let contents = contents::open_kind(reader, trees, file, mode::SYMLINK)?;
        Ok(Target::of_unix(read_short(&*contents, TARGET_BYTES_MAX, "a symbolic link")?))
    }

    fn attributes(&self, file: FileId) -> Result<Vec<Attribute>> {
        let mut attributes = Vec::new();
        if of_id(file).1 == EMPTY_SUBVOLUME {
            return Ok(attributes);
        }
        self.each_item(file, item::XATTR, &mut |key, bytes| {
            each_part(key, bytes, &mut |_, name, value| {
                // What `btrfs property` sets is the file system's own.
                if !name.starts_with(b"btrfs.") {
                    attributes.push(Attribute { name: name.to_vec(), value: value.to_vec() });
                }
                Ok(())
            })
        })?;
        Ok(attributes)
    }

    fn open(&self, file: FileId, name: StreamName<'_>) -> Result<Box<dyn Contents>> {
        contents::open(&self.0.reader, &self.0.trees, file, name)
    }
}

/// Takes a part of an item: where it leads, its name, and what follows.
type EachPart<'a> = &'a mut dyn FnMut(Key, &[u8], &[u8]) -> Result<()>;

/// Calls `each` with the parts of an item: several names can have one hash.
fn each_part(key: Key, bytes: &[u8], each: EachPart<'_>) -> Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let short = || key.wrong("size", bytes.len() as u64, "that of its names");
        let (raw, behind) = RawDirectoryItem::read_from_prefix(rest).map_err(|_| short())?;
        let (name, behind) = behind.split_at_checked(raw.name_len.get().into()).ok_or_else(short)?;
        let (value, behind) = behind.split_at_checked(raw.data_len.get().into()).ok_or_else(short)?;
        each(Key::from(&raw.location), name, value)?;
        rest = behind;
    }
    Ok(())
}

fn time(raw: RawTime) -> Time {
    Time { seconds: raw.sec.get().cast_signed(), nanoseconds: raw.nsec.get().min(999_999_999) }
}

/// As the kernel has the number of a device in memory: 12 bits of the driver's above 20 (`MKDEV`).
fn device(number: u64) -> (u32, u32) {
    let number = u32::try_from(number & u64::from(u32::MAX)).expect("32 bits");
    (number >> 20, number & 0xf_ffff)
}
