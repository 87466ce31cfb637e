//! Directories and files one by one. Times are as the guest's clock said, of which FAT tells no zone.

use block::{Error, Result, read_struct, read_vec};
use extent::{Offset, Span};
use zerocopy::FromBytes;

use super::Volume;
use super::boot::Kind;
use super::contents;
use super::files::id_of;
use super::layout::{DELETED, DirEntry, ENTRY_BYTES, attr};
use super::names::LongName;
use super::table::Chains;
use super::walk;
use crate::browse::{Browse, Contents, EachEntry, Node, NodeKind, Target, find_in_any_case};
use crate::dos_time;
use crate::files::{FileId, StreamName};

/// The most bytes of a directory: 65536 entries.
const DIRECTORY_BYTES_MAX: u64 = 65536 * ENTRY_BYTES as u64;

/// The files of a volume.
pub(super) struct Files<'a>(&'a Volume);

impl<'a> Files<'a> {
    pub(super) fn new(volume: &'a Volume) -> Self {
        Self(volume)
    }

    /// The entry of a file; `None` of the root.
    fn entry(&self, file: FileId) -> Result<Option<(DirEntry, walk::Node)>> {
        if file.0 == 0 {
            return Ok(None);
        }
        let Volume { source, geometry, .. } = self.0;
        let unread = || Error::unsupported(format!("FAT file {} is not read: there is none", file.0));
        let at = file.0.checked_mul(ENTRY_BYTES as u64);
        let at = at.filter(|at| *at >= geometry.root_at).ok_or_else(unread)?;
        let raw: DirEntry = read_struct(&**source, Offset::new(at), "FAT directory entry")?;
        if matches!(raw.name[0], 0 | DELETED) || raw.attr & attr::VOLUME_ID != 0 {
            return Err(unread());
        }
        let node = walk::Node::of(&raw, at, geometry.kind);
        Ok(Some((raw, node)))
    }
}

impl Browse for Files<'_> {
    fn root(&self) -> FileId {
        FileId(0)
    }

    fn node(&self, file: FileId) -> Result<Node> {
        let Some((raw, node)) = self.entry(file)? else {
            return Ok(Node::new(file, NodeKind::Directory, 0));
        };
        let found = match node.is_directory {
            true => Node::new(file, NodeKind::Directory, 0),
            false => Node::new(file, NodeKind::File, node.size_bytes),
        };
        let read = u16::from_le_bytes([raw.times[5], raw.times[6]]);
        Ok(Node {
            modified: dos_time::time(raw.wrt_date.get(), raw.wrt_time.get()),
            accessed: dos_time::time(read, 0),
            ..found
        })
    }

    fn each_entry(&self, directory: FileId, each: &mut EachEntry<'_>) -> Result<()> {
        let Volume { source, geometry, .. } = self.0;
        let node = self.entry(directory)?.map(|(_, node)| node);
        if node.is_some_and(|node| !node.is_directory) {
            return Err(Error::invalid(format!("FAT file {} is no directory", directory.0)));
        }
        let (mut spans, mut followed) = (Vec::new(), Ok(()));
        let first = match node {
            None if geometry.kind != Kind::Fat32 => {
                spans.push(Span::new(Offset::new(geometry.root_at), geometry.root_bytes));
                None
            }
            None => Some((geometry.root_cluster, 0)),
            Some(node) => Some((node.first, node.entry)),
        };
        if let Some((first, entry)) = first {
            let (runs, result) = Chains::new(source, geometry).follow(first, entry);
            spans.extend(runs.iter().map(|run| geometry.clusters.span_of(run.first, run.count)));
            followed = result;
        }
        let (mut name, mut left) = (LongName::default(), DIRECTORY_BYTES_MAX);
        for span in spans {
            let len = span.len_bytes().min(left);
            left -= len;
            let bytes = read_vec(source, span.start(), len, "FAT directory")?;
            let (entries, _) = bytes.as_chunks::<ENTRY_BYTES>();
            for (at, bytes) in (span.start().get()..).step_by(ENTRY_BYTES).zip(entries) {
                let raw = DirEntry::read_from_bytes(bytes).expect("the struct's size");
                match raw.name[0] {
                    0 => return followed,
                    DELETED => name.clear(),
                    _ if raw.attr & attr::LONG_NAME_MASK == attr::LONG_NAME => name.push(bytes),
                    _ if raw.attr & attr::VOLUME_ID != 0 => name.clear(),
                    // Itself, and its parent.
                    b'.' if matches!(&raw.name, b".          " | b"..         ") => name.clear(),
                    _ => each(&name.take(&raw), id_of(at))?,
                }
            }
        }
        followed
    }

    fn find(&self, directory: FileId, name: &[u8]) -> Result<Option<FileId>> {
        find_in_any_case(self, directory, name)
    }

    fn target(&self, file: FileId) -> Result<Target> {
        Err(Error::invalid(format!("FAT has no links, and file {} is none", file.0)))
    }

    fn open(&self, file: FileId, name: StreamName<'_>) -> Result<Box<dyn Contents>> {
        contents::open(self.0, file, name)
    }
}
