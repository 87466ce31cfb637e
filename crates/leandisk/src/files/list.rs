//! What is in a folder.

use std::collections::HashSet;

use block::{Error, ErrorKind, Result};
use filesystem::{Browse, FileId, Node, NodeKind};
use report::{ListDocument, ListEntry, ListedKind};
use stack::Stack;

use super::path::{self, AtEnd};
use super::{name, seconds, shown, volume};
use crate::{Observer, Reported};

/// The deepest folder that is looked into: Linux opens no path of more than 4096 bytes.
const DEPTH_MAX: usize = 2048;
/// The most notes about what could not be read.
const NOTES_MAX: u64 = 20;

/// What is asked.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ListOptions {
    /// `[VOLUME:]PATH`.
    pub path: Vec<u8>,
    /// Whether folders below are listed as well.
    pub recursive: bool,
}

/// Lists a folder, or a file alone. What of it cannot be read is noted; the rest is listed, and the first error is how it ended.
pub fn list(stack: &Stack, options: &ListOptions, observer: &dyn Observer) -> Result<Reported<ListDocument>> {
    let named = name::parse(&options.path)?;
    let chosen = volume::choose(stack, named.volume, observer)?;
    let found = path::find(&*chosen.browse, named.path, AtEnd::Stay)?;
    let mut listing = Listing {
        browse: &*chosen.browse,
        observer,
        entries: Vec::new(),
        ended: Ok(()),
        broken: 0,
        seen: HashSet::new(),
    };
    let is_folder = found.node.kind == NodeKind::Directory && found.stream.is_none();
    if is_folder {
        listing.folder(found.node.file, &found.path, options.recursive)?;
    } else {
        let mut entry = listing.entry(found.path.clone(), &found.node);
        if let Some(stream) = &found.stream {
            let known = found.node.streams.iter().find(|known| known.name == *stream);
            let path = [&found.path[..], b":", stream].concat();
            let size_bytes = known.map_or(0, |known| known.size_bytes);
            entry = ListEntry {
                path,
                kind: ListedKind::File,
                size_bytes,
                target: None,
                streams: Vec::new(),
                ..entry
            };
        }
        listing.entries.push(entry);
    }
    let Listing { entries, ended, broken, .. } = listing;
    if broken > NOTES_MAX {
        observer.note(&format!("{broken} files or folders could not be read in full"));
    }
    let filesystem = &chosen.filesystem.facts().filesystem;
    let document = ListDocument::new(chosen.index, filesystem, found.path, options.recursive, entries);
    Ok(Reported { document, ended })
}

struct Listing<'a> {
    browse: &'a dyn Browse,
    observer: &'a dyn Observer,
    entries: Vec<ListEntry>,
    ended: Result<()>,
    broken: u64,
    /// Folders that were listed: none is in another twice, unless the volume is broken.
    seen: HashSet<FileId>,
}

impl Listing<'_> {
    /// Remembers what could not be read. A failed read of the disk ends all.
    fn note(&mut self, path: &[u8], error: Error) -> Result<()> {
        let error = if error.path_text().is_some() { error } else { error.path(shown(path)) };
        if error.kind() == ErrorKind::Io {
            return Err(error);
        }
        self.broken += 1;
        if self.broken <= NOTES_MAX {
            self.observer.note(&error.to_string());
        }
        if self.ended.is_ok() {
            self.ended = Err(error);
        }
        Ok(())
    }

    fn entry(&mut self, path: Vec<u8>, node: &Node) -> ListEntry {
        let kind = match node.kind {
            NodeKind::File => ListedKind::File,
            NodeKind::Directory => ListedKind::Directory,
            NodeKind::Link => ListedKind::Link,
            NodeKind::Special(_) => ListedKind::Special,
        };
        let target = (kind == ListedKind::Link).then(|| self.browse.target(node.file));
        // Where an encrypted link leads cannot be told.
        let target = target.and_then(Result::ok).map(|target| target.text);
        ListEntry {
            path,
            kind,
            size_bytes: node.size_bytes,
            target,
            streams: node.streams.iter().map(|stream| stream.name.clone()).collect(),
            mode: node.unix.map(|unix| unix.mode),
            uid: node.unix.map(|unix| unix.uid),
            gid: node.unix.map(|unix| unix.gid),
            modified: node.modified.map(seconds),
            link_count: node.link_count,
            sealed: node.sealed,
        }
    }

    fn folder(&mut self, folder: FileId, path: &[u8], recursive: bool) -> Result<()> {
        let mut waiting = vec![(folder, path.to_vec(), 0)];
        while let Some((folder, path, depth)) = waiting.pop() {
            if !self.seen.insert(folder) {
                self.note(&path, Error::corrupt("a folder that is in several others"))?;
                continue;
            }
            let mut names = Vec::new();
            let read = self.browse.each_entry(folder, &mut |name, file| {
                names.push((name.to_vec(), file));
                Ok(())
            });
            if let Err(error) = read {
                self.note(&path, error)?;
            }
            names.sort_unstable_by(|one, other| one.0.cmp(&other.0));
            let mut below = Vec::new();
            for (name, file) in names {
                let base = if path == b"/" { &[][..] } else { &path };
                let path = [base, b"/", &name].concat();
                match self.browse.node(file) {
                    Ok(node) => {
                        let entry = self.entry(path.clone(), &node);
                        self.entries.push(entry);
                        if recursive && node.kind == NodeKind::Directory && depth < DEPTH_MAX {
                            below.push((file, path, depth + 1));
                        }
                    }
                    Err(error) => self.note(&path, error)?,
                }
            }
            waiting.extend(below.into_iter().rev());
        }
        Ok(())
    }
}
