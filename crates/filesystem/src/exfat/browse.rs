//! Directories and files one by one.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use block::{Error, Result, read_struct};
use extent::Offset;

use super::Volume;
use super::contents;
use super::files::id_of;
use super::layout::{DIRECTORY, ENTRY_BYTES, FileEntry, StreamEntry, entry_type};
use super::table::Chains;
use super::walk::{self, Visitor};
use crate::browse::{Browse, Contents, EachEntry, Node, NodeKind, Target, Time, find_in_any_case};
use crate::clusters::Run;
use crate::dos_time;
use crate::files::{FileId, StreamName};

/// The files of a volume.
pub(super) struct Files<'a> {
    volume: &'a Volume,
    /// Of sets that begin in another cluster than they go on in: where they begin.
    parted: Mutex<HashMap<u64, u64>>,
}

impl<'a> Files<'a> {
    pub(super) fn new(volume: &'a Volume) -> Self {
        Self { volume, parted: Mutex::default() }
    }

    /// The two entries of a file; `None` of the root.
    fn entries(&self, file: FileId) -> Result<Option<(FileEntry, walk::Node)>> {
        if file.0 == 0 {
            return Ok(None);
        }
        let Volume { source, geometry, .. } = self.volume;
        let unread = || Error::unsupported(format!("exFAT file {} is not read: there is none", file.0));
        let entry = file.0.checked_mul(ENTRY_BYTES as u64);
        let entry = entry.filter(|entry| *entry >= geometry.clusters.at).ok_or_else(unread)?;
        let stream: StreamEntry = read_struct(&**source, Offset::new(entry), "exFAT stream entry")?;
        let parted = self.parted.lock().unwrap_or_else(PoisonError::into_inner).get(&entry).copied();
        let at = parted.unwrap_or(entry - ENTRY_BYTES as u64);
        let raw: FileEntry = read_struct(&**source, Offset::new(at), "exFAT file entry")?;
        if stream.entry_type != entry_type::STREAM || raw.entry_type != entry_type::FILE {
            return Err(unread());
        }
        let node = walk::Node::of(&stream, entry, raw.file_attributes.get() & DIRECTORY != 0);
        Ok(Some((raw, node)))
    }
}

impl Browse for Files<'_> {
    fn root(&self) -> FileId {
        FileId(0)
    }

    fn node(&self, file: FileId) -> Result<Node> {
        let Some((raw, node)) = self.entries(file)? else {
            return Ok(Node::new(file, NodeKind::Directory, 0));
        };
        let found = match node.is_directory {
            true => Node::new(file, NodeKind::Directory, 0),
            false => Node::new(file, NodeKind::File, node.size_bytes),
        };
        Ok(Node {
            modified: time(raw.modified.get(), raw.modified_10ms, raw.modified_offset),
            accessed: time(raw.accessed.get(), 0, raw.accessed_offset),
            ..found
        })
    }

    fn each_entry(&self, directory: FileId, each: &mut EachEntry<'_>) -> Result<()> {
        let entries = self.entries(directory)?;
        let node = entries.map(|(_, node)| node);
        if node.is_some_and(|node| !node.is_directory) {
            return Err(Error::invalid(format!("exFAT file {} is no directory", directory.0)));
        }
        let Volume { source, geometry, .. } = self.volume;
        let mut listing = Listing { each, files: self, broken: Ok(()) };
        walk::walk_one(source, geometry, node.as_ref(), &mut listing)?;
        listing.broken
    }

    fn find(&self, directory: FileId, name: &[u8]) -> Result<Option<FileId>> {
        find_in_any_case(self, directory, name)
    }

    fn target(&self, file: FileId) -> Result<Target> {
        Err(Error::invalid(format!("exFAT has no links, and file {} is none", file.0)))
    }

    fn open(&self, file: FileId, name: StreamName<'_>) -> Result<Box<dyn Contents>> {
        contents::open(self.volume, file, name)
    }
}

/// Shows entries, and remembers what is wrong first.
struct Listing<'a, 'b, 'c> {
    each: &'a mut EachEntry<'b>,
    files: &'a Files<'c>,
    broken: Result<()>,
}

impl Visitor for Listing<'_, '_, '_> {
    fn directory(&mut self, _node: &walk::Node, _runs: &[Run]) {}

    fn entry(&mut self, _: &mut Chains<'_>, node: &walk::Node, _parent: u64, name: &[u8]) -> Result<()> {
        if node.file_at + ENTRY_BYTES as u64 != node.entry {
            let mut parted = self.files.parted.lock().unwrap_or_else(PoisonError::into_inner);
            parted.insert(node.entry, node.file_at);
        }
        (self.each)(name, id_of(node.entry))
    }

    fn wrong(&mut self, _entry: u64, error: Error) -> Result<()> {
        if self.broken.is_ok() {
            self.broken = Err(error);
        }
        Ok(())
    }
}

/// A date above a time, with up to two seconds more, by a clock so far ahead of UTC. A clock that is not told is taken for UTC.
fn time(raw: u32, more_10ms: u8, offset: u8) -> Option<Time> {
    let [a, b, c, d] = raw.to_le_bytes();
    let told = dos_time::time(u16::from_le_bytes([c, d]), u16::from_le_bytes([a, b]))?;
    let quarters = match offset & 0x80 {
        0 => 0,
        // Seven bits with a sign.
        _ => i64::from((offset << 1).cast_signed() >> 1),
    };
    let more = u32::from(more_10ms.min(199));
    Some(Time {
        seconds: told.seconds + i64::from(more / 100) - quarters * 15 * 60,
        nanoseconds: more % 100 * 10_000_000,
    })
}
