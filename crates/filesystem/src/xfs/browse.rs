//! Directories and files one by one.

use block::{Error, Result};
use zerocopy::FromBytes;
use zerocopy::big_endian::{U32, U64};

use super::attributes;
use super::contents::{self, read_inode};
use super::files;
use super::inode::{mode, wrong};
use super::layout::{BIGTIME, RawInode};
use super::superblock::Superblock;
use crate::Source;
use crate::browse::{Attribute, Browse, Contents, EachEntry, Node, NodeKind, Special, Target, Time, Unix};
use crate::files::{FileId, StreamName};

/// What times count from if they are nanoseconds: as much before 1970 as 32 bits can say.
const BIGTIME_EPOCH: i64 = -(1 << 31);

/// The files of a volume.
pub(super) struct Files<'a> {
    pub(super) source: &'a Source,
    pub(super) superblock: &'a Superblock,
}

impl Browse for Files<'_> {
    fn root(&self) -> FileId {
        FileId(self.superblock.root_inode)
    }

    fn node(&self, file: FileId) -> Result<Node> {
        let (inode, bytes) = read_inode(self.source, self.superblock, file)?;
        let (raw, _) = RawInode::read_from_prefix(&bytes).expect("an inode is at least that large");
        let (kind, size_bytes) = match inode.kind {
            mode::REGULAR => (NodeKind::File, inode.size_bytes),
            mode::DIRECTORY => (NodeKind::Directory, 0),
            mode::SYMLINK => (NodeKind::Link, inode.size_bytes),
            kind => (NodeKind::Special(special(kind, &inode.data.bytes)), 0),
        };
        let counts_nanoseconds = self.superblock.has_checksums && raw.flags2.get() & BIGTIME != 0;
        let [accessed, modified, _] = raw.times.map(|raw| Some(time(raw, counts_nanoseconds)));
        let links = if raw.version == 1 { u32::from(raw.onlink.get()) } else { raw.nlink.get() };
        let permissions = raw.mode.get() & !mode::KIND;
        Ok(Node {
            unix: Some(Unix { mode: permissions, uid: raw.uid.get(), gid: raw.gid.get() }),
            modified,
            accessed,
            link_count: links.into(),
            ..Node::new(file, kind, size_bytes)
        })
    }

    fn each_entry(&self, directory: FileId, each: &mut EachEntry<'_>) -> Result<()> {
        let Self { source, superblock } = self;
        let (inode, _) = read_inode(source, superblock, directory)?;
        if inode.kind != mode::DIRECTORY {
            return Err(Error::invalid(format!("XFS inode {} is no directory", directory.0)));
        }
        let extents = contents::extents(source, superblock, &inode)?;
        let mut shown = Ok(());
        files::each_entry(source, superblock, inode.number, &inode.data, &extents, &mut |entry| {
            if shown.is_ok() {
                shown = each(entry.name, FileId(entry.inode));
            }
        })?;
        shown
    }

    fn target(&self, file: FileId) -> Result<Target> {
        let (inode, _) = read_inode(self.source, self.superblock, file)?;
        if inode.kind != mode::SYMLINK {
            return Err(wrong(file.0, "mode", inode.kind, "that of a symbolic link"));
        }
        Ok(Target::of_unix(contents::target(self.source, self.superblock, &inode)?))
    }

    fn attributes(&self, file: FileId) -> Result<Vec<Attribute>> {
        let (inode, _) = read_inode(self.source, self.superblock, file)?;
        attributes::read(self.source, self.superblock, &inode)
    }

    fn open(&self, file: FileId, name: StreamName<'_>) -> Result<Box<dyn Contents>> {
        contents::open(self.source, self.superblock, file, name)
    }
}

/// Seconds and nanoseconds of 32 bits each, or nanoseconds.
fn time(raw: U64, counts_nanoseconds: bool) -> Time {
    const SECOND: u64 = 1_000_000_000;
    let raw = raw.get();
    let below = |value: u64| u32::try_from(value % SECOND).expect("below a second");
    if counts_nanoseconds {
        let seconds = (raw / SECOND).cast_signed();
        return Time { seconds: seconds + BIGTIME_EPOCH, nanoseconds: below(raw) };
    }
    let [seconds, nanoseconds] = [raw >> 32, raw & u64::from(u32::MAX)];
    let seconds = u32::try_from(seconds).expect("the upper half").cast_signed();
    Time { seconds: seconds.into(), nanoseconds: below(nanoseconds) }
}

/// A device's number has 14 bits of the driver's, and 18 below.
fn special(kind: u16, fork: &[u8]) -> Special {
    let number = U32::read_from_prefix(fork).map_or(0, |(number, _)| number.get());
    let (major, minor) = (number >> 18, number & 0x3_ffff);
    match kind {
        0o010_000 => Special::Pipe,
        0o020_000 => Special::Character { major, minor },
        0o060_000 => Special::Block { major, minor },
        0o140_000 => Special::Socket,
        _ => Special::Other,
    }
}
