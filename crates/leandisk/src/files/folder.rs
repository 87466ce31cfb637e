//! Files extracted into a folder of this host.
//!
//! Invariant: links are made last, and folders get their times, and the access that files in them inherit, when nothing more is made in them.

use std::collections::{BTreeMap, HashSet};
use std::io::Error as IoError;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use block::{Error, ErrorKind, Result};
use extent::FileOffset;
use filesystem::{Contents, Node, Special};
use os::{ExtractFolder, ExtractedNames, ExtractedOf, Kept, SpecialFile};

use super::cat::PIECE_BYTES;
use super::shown;
use super::sink::{Item, Sink};
use crate::Cancel;

/// What a folder has the files take that are made in it.
const INHERITED: &[u8] = b"system.posix_acl_default";

/// See the module.
pub(super) struct FolderSink {
    folder: ExtractFolder,
    buffer: Vec<u8>,
    links: Vec<(ExtractedNames, Vec<u8>, Kept)>,
    /// Those that were made here.
    folders: Vec<(ExtractedNames, Kept)>,
    /// The access that their files would inherit, to be set once these are made.
    inherited: Vec<(ExtractedNames, Vec<u8>)>,
    /// All that are there, as far as files went into them.
    known: HashSet<ExtractedNames>,
    /// What cannot be kept here, and how often that was.
    lacking: BTreeMap<String, u64>,
}

impl FolderSink {
    pub(super) fn new(path: &Path, force: bool) -> Result<Self> {
        Ok(Self {
            folder: ExtractFolder::begin(path, force)?,
            buffer: vec![0; PIECE_BYTES],
            links: Vec::new(),
            folders: Vec::new(),
            inherited: Vec::new(),
            known: HashSet::new(),
            lacking: BTreeMap::new(),
        })
    }

    fn note(&mut self, lacking: impl IntoIterator<Item = String>) {
        for what in lacking {
            *self.lacking.entry(what).or_default() += 1;
        }
    }

    /// Makes the folders above a file. Those that are extracted themselves were made before.
    fn make_parents(&mut self, names: &[Vec<u8>]) -> Result<()> {
        let Some((_, above)) = names.split_last() else { return Ok(()) };
        for depth in 1..=above.len() {
            self.make(&above[..depth].to_vec(), Kept::default())?;
        }
        Ok(())
    }

    /// Makes a folder unless it is there, and answers whether it was made now.
    fn make(&mut self, names: &ExtractedNames, kept: Kept) -> Result<bool> {
        if self.known.contains(names) {
            return Ok(false);
        }
        let is_new = self.folder.make_folder(names)?;
        self.known.insert(names.clone());
        if is_new {
            self.folders.push((names.clone(), kept));
        }
        Ok(is_new)
    }

    fn attributes(&mut self, item: Item<'_>, of: &ExtractedOf) -> Result<()> {
        for attribute in item.attributes {
            if let (ExtractedOf::Folder(names), INHERITED) = (of, &attribute.name[..]) {
                self.inherited.push((names.clone(), attribute.value.clone()));
                continue;
            }
            let lacking = self.folder.set_attribute(of.clone(), &attribute.name, &attribute.value)?;
            self.note(lacking);
        }
        Ok(())
    }

    /// Writes what is in a file; holes stay holes.
    fn write(&mut self, file: &std::fs::File, contents: &dyn Contents, cancel: &Cancel) -> Result<()> {
        let failed = |error: IoError| Error::io("write", error);
        let mut at = FileOffset::ZERO;
        while let Some(span) = contents.next_data(at)? {
            at = span.start();
            while at < span.end() {
                if cancel.load(Ordering::Relaxed) {
                    return Err(Error::interrupted());
                }
                let left = span.end().get() - at.get();
                let len = usize::try_from(left).unwrap_or(usize::MAX).min(self.buffer.len());
                let piece = &mut self.buffer[..len];
                contents.read_at(at, piece)?;
                file.write_all_at(piece, at.get()).map_err(failed)?;
                at = at.plus(len as u64);
            }
        }
        file.set_len(contents.len_bytes()).map_err(failed)
    }
}

fn kept(node: &Node) -> Kept {
    let time = |time: Option<filesystem::Time>| time.map(|time| (time.seconds, time.nanoseconds));
    Kept {
        mode: node.unix.map(|unix| unix.mode),
        owner: node.unix.map(|unix| (unix.uid, unix.gid)),
        modified: time(node.modified),
        accessed: time(node.accessed),
    }
}

impl Sink for FolderSink {
    fn folder(&mut self, item: Item<'_>) -> Result<()> {
        let names = item.names.to_vec();
        self.make_parents(&names)?;
        if self.make(&names, kept(item.node))? {
            self.attributes(item, &ExtractedOf::Folder(names))?;
        }
        Ok(())
    }

    fn file(&mut self, item: Item<'_>, contents: &dyn Contents, cancel: &Cancel) -> Result<()> {
        let names = item.names.to_vec();
        self.make_parents(&names)?;
        let new = self.folder.create(&names)?;
        let written = self.write(&new.file, contents, cancel);
        let written = written.and_then(|()| self.attributes(item, &ExtractFolder::new_of(&new)));
        if let Err(error) = written {
            self.folder.discard(new)?;
            let path = shown(&item.path());
            return Err(if error.kind() == ErrorKind::Interrupted { error } else { error.path(path) });
        }
        let lacking = self.folder.finish(new, kept(item.node))?;
        self.note(lacking);
        Ok(())
    }

    fn link(&mut self, item: Item<'_>, target: &[u8]) -> Result<()> {
        self.links.push((item.names.to_vec(), target.to_vec(), kept(item.node)));
        Ok(())
    }

    fn hard_link(&mut self, item: Item<'_>, first: &[Vec<u8>]) -> Result<()> {
        self.make_parents(item.names)?;
        self.folder.link(&first.to_vec(), &item.names.to_vec())
    }

    fn special(&mut self, item: Item<'_>, special: Special) -> Result<Option<&'static str>> {
        let file = match special {
            Special::Pipe => SpecialFile::Pipe,
            Special::Socket => SpecialFile::Socket,
            Special::Character { major, minor } => SpecialFile::Character(major, minor),
            Special::Block { major, minor } => SpecialFile::Block(major, minor),
            Special::Other => return Ok(Some("it is nothing that this host has")),
        };
        self.make_parents(item.names)?;
        match self.folder.special(&item.names.to_vec(), file, kept(item.node)) {
            Ok(lacking) => self.note(lacking),
            Err(error) if error.kind() == ErrorKind::Refused && error.message().contains("only root") => {
                return Ok(Some("only root can make devices; --tar keeps them"));
            }
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    fn finish(&mut self) -> Result<Vec<(String, u64)>> {
        let mut first = Ok(());
        for (names, target, kept) in std::mem::take(&mut self.links) {
            let made = self.make_parents(&names).and_then(|()| self.folder.symlink(&names, &target, kept));
            match made {
                Ok(lacking) => self.note(lacking),
                // One that cannot be made is not in the way of others.
                Err(error) if error.kind() == ErrorKind::Io => return Err(error),
                Err(error) => first = first.and(Err(error)),
            }
        }
        for (names, value) in std::mem::take(&mut self.inherited) {
            let lacking = self.folder.set_attribute(ExtractedOf::Folder(names), INHERITED, &value)?;
            self.note(lacking);
        }
        // The innermost first: making a file in a folder changes the folder's times.
        for (names, kept) in std::mem::take(&mut self.folders).into_iter().rev() {
            let lacking = self.folder.settle(&names, kept)?;
            self.note(lacking);
        }
        first?;
        Ok(std::mem::take(&mut self.lacking).into_iter().collect())
    }
}
