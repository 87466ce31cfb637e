//! All directories of a volume, from the root on.
//!
//! Invariants: each cluster has one owner at most, so that the work is bounded by what the volume holds, and no directory is met
//! twice; directories are read in pieces of bounded size.

use block::{Error, Result, read_vec};
use zerocopy::FromBytes;

use super::boot::Geometry;
use super::corrupt::Corrupt;
use super::layout::{
    ALLOCATION_POSSIBLE, DIRECTORY, ENTRY_BYTES, FileEntry, NAME_UNITS, NO_FAT_CHAIN, StreamEntry, entry_type,
};
use super::table::Chains;
use super::upcase::Upcase;
use crate::clusters::{self, Cluster, Run};
use crate::utf16::push_utf8;
use crate::{Source, fault};

/// The most bytes of a directory (section 7.4.4: 256 MB).
pub(super) const DIRECTORY_BYTES_MAX: u64 = 256 << 20;
/// How much of a directory is read at once.
const PIECE_BYTES: u64 = 1 << 20;

/// A file or directory, as its stream entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Node {
    /// Where its stream entry lies on the volume; 0 of the root directory.
    pub(super) entry: u64,
    /// Where the entry before that lies, with which the set begins: mostly right before it.
    pub(super) file_at: u64,
    pub(super) is_directory: bool,
    /// Its clusters follow one another, whatever the FAT says.
    is_contiguous: bool,
    /// 0 of an empty file.
    first: Cluster,
    pub(super) size_bytes: u64,
    /// What was written of it.
    pub(super) valid_bytes: u64,
}

impl Node {
    pub(super) fn of(stream: &StreamEntry, entry: u64, is_directory: bool) -> Self {
        Self {
            entry,
            file_at: entry.saturating_sub(ENTRY_BYTES as u64),
            is_directory,
            is_contiguous: stream.flags & NO_FAT_CHAIN != 0,
            first: stream.first_cluster.get(),
            size_bytes: stream.data_length.get(),
            valid_bytes: stream.valid_data_length.get(),
        }
    }

    pub(super) fn wrong(&self) -> Error {
        Error::corrupt(Corrupt::DirectoryEntry { entry: self.entry })
    }

    /// Its clusters, taken from `chains`: as many as its length says.
    pub(super) fn runs(&self, chains: &mut Chains<'_>, cluster_bytes: u64) -> (Vec<Run>, Result<()>) {
        let count = self.size_bytes.div_ceil(cluster_bytes);
        if self.valid_bytes > self.size_bytes || (self.first == 0) != (count == 0) {
            let expected = "at least ValidDataLength, and 0 of what has no clusters alone";
            return (Vec::new(), Err(self.wrong().field("DataLength", self.size_bytes, expected)));
        }
        if count == 0 {
            return (Vec::new(), Ok(()));
        }
        if self.is_contiguous {
            // What is no number of clusters is more than there are.
            let run = Run { first: self.first, count: u32::try_from(count).unwrap_or(u32::MAX) };
            return match chains.claim(run, self.entry) {
                Ok(()) => (vec![run], Ok(())),
                Err(error) => (Vec::new(), Err(error)),
            };
        }
        let (runs, followed) = chains.follow(self.first, count, self.entry);
        let found = clusters::count_of(&runs);
        let wrong =
            || self.wrong().field("clusters in its chain", found, format!("{count}, as its length says"));
        (runs, followed.and_then(|()| if found == count { Ok(()) } else { Err(wrong()) }))
    }
}

/// Sees what is found.
pub(super) trait Visitor {
    /// A directory with its clusters.
    fn directory(&mut self, node: &Node, runs: &[Run]);

    /// An entry of the directory whose own stream entry lies at `parent`. Directories are walked later.
    fn entry(&mut self, chains: &mut Chains<'_>, node: &Node, parent: u64, name: &[u8]) -> Result<()>;

    /// What contradicts the format, of the file or directory whose entry lies there. An error ends the walk.
    fn wrong(&mut self, entry: u64, error: Error) -> Result<()>;
}

/// Shows `visitor` everything. Hashes of names are checked if there is an up-case table.
pub(super) fn walk(
    source: &Source,
    geometry: &Geometry,
    chains: &mut Chains<'_>,
    upcase: Option<&Upcase>,
    visitor: &mut dyn Visitor,
) -> Result<()> {
    let mut walk = Walk { source, geometry, upcase, visitor, waiting: Vec::new() };
    let (runs, followed) =
        chains.follow(geometry.root_cluster, DIRECTORY_BYTES_MAX / geometry.clusters.bytes, 0);
    walk.directory(chains, &root(), &runs, followed)?;
    while let Some(node) = walk.waiting.pop() {
        let (runs, followed) = node.runs(chains, geometry.clusters.bytes);
        walk.directory(chains, &node, &runs, followed)?;
    }
    Ok(())
}

/// Shows `visitor` one directory; `None` is the root.
pub(super) fn walk_one(
    source: &Source,
    geometry: &Geometry,
    directory: Option<&Node>,
    visitor: &mut dyn Visitor,
) -> Result<()> {
    let mut chains = Chains::new(source, geometry);
    let (runs, followed) = match directory {
        Some(node) => node.runs(&mut chains, geometry.clusters.bytes),
        None => chains.follow(geometry.root_cluster, DIRECTORY_BYTES_MAX / geometry.clusters.bytes, 0),
    };
    let mut walk = Walk { source, geometry, upcase: None, visitor, waiting: Vec::new() };
    walk.directory(&mut chains, directory.unwrap_or(&root()), &runs, followed)
}

fn root() -> Node {
    Node {
        entry: 0,
        file_at: 0,
        is_directory: true,
        is_contiguous: false,
        first: 0,
        size_bytes: 0,
        valid_bytes: 0,
    }
}

/// Calls `each` with every entry of a directory and its place, until that answers `false`.
pub(super) fn read_entries(
    source: &Source,
    geometry: &Geometry,
    runs: &[Run],
    each: &mut dyn FnMut(u64, &[u8; ENTRY_BYTES]) -> Result<bool>,
) -> Result<()> {
    for run in runs {
        let span = geometry.clusters.span_of(run.first, run.count);
        let mut done = 0;
        while done < span.len_bytes() {
            let len = PIECE_BYTES.min(span.len_bytes() - done);
            let at = span.start().plus(done);
            let bytes = read_vec(source, at, len, "exFAT directory")?;
            let (entries, _) = bytes.as_chunks::<ENTRY_BYTES>();
            for (at, entry) in (at.get()..).step_by(ENTRY_BYTES).zip(entries) {
                if !each(at, entry)? {
                    return Ok(());
                }
            }
            done += len;
        }
    }
    Ok(())
}

struct Walk<'a> {
    source: &'a Source,
    geometry: &'a Geometry,
    upcase: Option<&'a Upcase>,
    visitor: &'a mut dyn Visitor,
    waiting: Vec<Node>,
}

/// An entry set (section 6.3), as far as it was read.
#[derive(Default)]
struct Set {
    bytes: Vec<u8>,
    /// Where its first entry lies.
    file_at: u64,
    /// Where its second entry lies.
    stream_at: u64,
}

impl Set {
    fn is_whole(&self) -> bool {
        self.bytes.get(1).is_some_and(|count| self.bytes.len() == (usize::from(*count) + 1) * ENTRY_BYTES)
    }
}

impl Walk<'_> {
    fn directory(
        &mut self,
        chains: &mut Chains<'_>,
        node: &Node,
        runs: &[Run],
        followed: Result<()>,
    ) -> Result<()> {
        self.visitor.directory(node, runs);
        if let Err(error) = followed {
            self.tolerate(node.entry, error)?;
        }
        let is_odd = !node.size_bytes.is_multiple_of(self.geometry.clusters.bytes)
            || node.valid_bytes != node.size_bytes
            || node.size_bytes > DIRECTORY_BYTES_MAX;
        if is_odd {
            let expected = "whole clusters, all of them valid, at most 256 MiB";
            let error = node.wrong().field("DataLength of a directory", node.size_bytes, expected);
            return self.tolerate(node.entry, error);
        }
        let (mut set, mut is_over, mut is_told) = (Set::default(), false, false);
        let (source, geometry) = (self.source, self.geometry);
        read_entries(source, geometry, runs, &mut |at, bytes| {
            if is_over && bytes[0] & entry_type::IN_USE != 0 && !is_told {
                is_told = true;
                self.tolerate(node.entry, Error::corrupt(Corrupt::BehindEnd { entry: node.entry }))?;
            }
            is_over |= bytes[0] == 0;
            if !is_over || !set.bytes.is_empty() {
                self.entry(chains, node, &mut set, at, bytes)?;
            }
            Ok(true)
        })?;
        self.check_ended(node, &set)
    }

    /// Fails if a set is not whole where another one begins, or the directory ends.
    fn check_ended(&mut self, node: &Node, set: &Set) -> Result<()> {
        if set.bytes.is_empty() {
            return Ok(());
        }
        let error = node.wrong().field("entries of a set", set.bytes.len() / ENTRY_BYTES, "all of them");
        self.tolerate(node.entry, error)
    }

    fn entry(
        &mut self,
        chains: &mut Chains<'_>,
        directory: &Node,
        set: &mut Set,
        at: u64,
        bytes: &[u8; ENTRY_BYTES],
    ) -> Result<()> {
        match bytes[0] {
            entry_type::FILE => {
                self.check_ended(directory, set)?;
                *set = Set { bytes: bytes.to_vec(), file_at: at, stream_at: 0 };
            }
            entry_type::STREAM | entry_type::NAME if !set.bytes.is_empty() => {
                if set.bytes.len() == ENTRY_BYTES {
                    set.stream_at = at;
                }
                set.bytes.extend_from_slice(bytes);
                if set.is_whole() {
                    return self.set(chains, directory, &std::mem::take(set));
                }
            }
            other => {
                self.check_ended(directory, set)?;
                *set = Set::default();
                let is_in_root = directory.entry == 0;
                match other {
                    entry_type::BITMAP | entry_type::UPCASE | entry_type::LABEL | entry_type::VOLUME_GUID
                        if is_in_root => {}
                    _ if other & entry_type::IN_USE == 0 => {}
                    _ => {
                        let kind = format!("its directory has an entry of type {other:#04x} at {at:#x}");
                        self.tolerate(directory.entry, Error::unsupported(kind))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// A set of which all entries are there.
    fn set(&mut self, chains: &mut Chains<'_>, directory: &Node, set: &Set) -> Result<()> {
        let (file, rest) = FileEntry::read_from_prefix(&set.bytes).expect("as long as its count says");
        let at = set.stream_at;
        let wrong = |name: &str, found: u64, expected: String| {
            Error::corrupt(Corrupt::DirectoryEntry { entry: at }).field(name, found, expected)
        };
        let Ok((stream, names)) = StreamEntry::read_from_prefix(rest) else {
            return self.tolerate(at, wrong("SecondaryCount", 0, "2 to 18".into()));
        };
        let sum = set_checksum(&set.bytes);
        if sum != file.set_checksum.get() {
            let found = u64::from(file.set_checksum.get());
            return self.tolerate(at, wrong("SetChecksum", found, format!("{sum:#06x}")));
        }
        let (names, _) = names.as_chunks::<ENTRY_BYTES>();
        let units = usize::from(stream.name_length);
        let is_named = units > 0
            && names.len() == units.div_ceil(NAME_UNITS)
            && names.iter().all(|name| name[0] == entry_type::NAME);
        if stream.entry_type != entry_type::STREAM || !is_named {
            return self.tolerate(at, wrong("NameLength", units as u64, "what its name entries hold".into()));
        }
        if stream.flags & !NO_FAT_CHAIN != ALLOCATION_POSSIBLE {
            return self.tolerate(at, wrong("flags", stream.flags.into(), "1 or 3".into()));
        }
        let name: Vec<u8> = names.iter().flat_map(|name| &name[2..]).copied().take(2 * units).collect();
        if let Some(hash) =
            self.upcase.map(|upcase| upcase.hash(&name)).filter(|h| *h != stream.name_hash.get())
        {
            let found = u64::from(stream.name_hash.get());
            self.tolerate(at, wrong("NameHash", found, format!("{hash:#06x}")))?;
        }
        let is_directory = file.file_attributes.get() & DIRECTORY != 0;
        let node = Node { file_at: set.file_at, ..Node::of(&stream, at, is_directory) };
        let mut text = Vec::new();
        push_utf8(&mut text, &name);
        self.visitor.entry(chains, &node, directory.entry, &text)?;
        if node.is_directory {
            self.waiting.push(node);
        }
        Ok(())
    }

    fn tolerate(&mut self, entry: u64, error: Error) -> Result<()> {
        self.visitor.wrong(entry, fault::of_volume(error)?)
    }
}

/// `SetChecksum` (section 6.3.3), which leaves its own place out.
fn set_checksum(bytes: &[u8]) -> u16 {
    let counted = bytes.iter().enumerate().filter(|(index, _)| !matches!(index, 2 | 3));
    counted.fold(0, |sum: u16, (_, byte)| sum.rotate_right(1).wrapping_add(u16::from(*byte)))
}
