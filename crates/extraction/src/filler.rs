//! In which order a folder is filled.
//!
//! Invariant: links are made last, and folders get their times, and the access that files in them inherit, when nothing more is made in
//! them; what was made is on stable storage before success is told.

use std::collections::{BTreeMap, HashSet};

use block::{ErrorKind, Result};

use crate::kept::{Kept, Names, Of, SpecialFile};

/// What a folder has the files take that are made in it.
const INHERITED: &[u8] = b"system.posix_acl_default";

/// A file that is being extracted. It has no name of its own until it is finished.
pub struct NewFile<F> {
    /// Which one.
    pub number: usize,
    /// Its contents go here.
    pub file: F,
}

/// A folder that files are extracted into, one after another: by this process, or by the broker that it asks.
pub trait IntoFolder {
    /// An open file.
    type File;

    /// Makes a folder, unless there is one. Answers whether it was made.
    fn make_folder(&mut self, names: &Names) -> Result<bool>;

    /// Begins a file.
    fn create(&mut self, names: &Names) -> Result<NewFile<Self::File>>;

    /// Sets an extended attribute of what was made here. Answers why that cannot be done here, if so.
    fn set_attribute(&mut self, of: &Of, name: &[u8], value: &[u8]) -> Result<Option<String>>;

    /// Gives a file what is kept of it, and its name. Answers what cannot be kept here.
    fn finish(&mut self, file: NewFile<Self::File>, kept: &Kept) -> Result<Vec<String>>;

    /// Removes a file that was begun.
    fn discard(&mut self, file: NewFile<Self::File>) -> Result<()>;

    /// Makes a symbolic link.
    fn symlink(&mut self, names: &Names, target: &[u8], kept: &Kept) -> Result<Vec<String>>;

    /// Makes another name of a file that was extracted before.
    fn link(&mut self, first: &Names, names: &Names) -> Result<()>;

    /// Makes a device, a pipe or a socket.
    fn special(&mut self, names: &Names, special: SpecialFile, kept: &Kept) -> Result<Vec<String>>;

    /// Gives a folder that was made here what is kept of it.
    fn settle(&mut self, names: &Names, kept: &Kept) -> Result<Vec<String>>;

    /// Returns when everything that was made is on stable storage.
    fn complete(&mut self) -> Result<()>;
}

/// A file or folder on its way.
#[derive(Clone, Copy)]
pub struct Item<'a> {
    /// Its names from the folder on.
    pub names: &'a [Vec<u8>],
    /// What is kept of it.
    pub kept: &'a Kept,
    /// Its extended attributes, each a name and a value.
    pub attributes: &'a [(&'a [u8], &'a [u8])],
}

/// See the module.
pub struct Filler<F: IntoFolder> {
    folder: F,
    links: Vec<(Names, Vec<u8>, Kept)>,
    /// Those that were made here.
    folders: Vec<(Names, Kept)>,
    /// The access that their files would inherit, to be set once these are made.
    inherited: Vec<(Names, Vec<u8>)>,
    /// All that are there, as far as files went into them.
    known: HashSet<Names>,
    /// What cannot be kept here, and how often that was.
    lacking: BTreeMap<String, u64>,
}

impl<F: IntoFolder> Filler<F> {
    /// Of a folder that nothing was extracted into yet.
    pub fn new(folder: F) -> Self {
        Self {
            folder,
            links: Vec::new(),
            folders: Vec::new(),
            inherited: Vec::new(),
            known: HashSet::new(),
            lacking: BTreeMap::new(),
        }
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
    fn make(&mut self, names: &Names, kept: Kept) -> Result<bool> {
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

    fn attributes(&mut self, item: Item<'_>, of: &Of) -> Result<()> {
        for (name, value) in item.attributes {
            if let (Of::Folder(names), INHERITED) = (of, *name) {
                self.inherited.push((names.clone(), value.to_vec()));
                continue;
            }
            let lacking = self.folder.set_attribute(of, name, value)?;
            self.note(lacking);
        }
        Ok(())
    }

    /// A folder. Those that are in it follow, but not before the one that it is in.
    pub fn folder(&mut self, item: Item<'_>) -> Result<()> {
        let names = item.names.to_vec();
        self.make_parents(&names)?;
        if self.make(&names, item.kept.clone())? {
            self.attributes(item, &Of::Folder(names))?;
        }
        Ok(())
    }

    /// A file, whose contents `write` writes. Nothing is left of one that fails.
    pub fn file(&mut self, item: Item<'_>, write: impl FnOnce(&F::File) -> Result<()>) -> Result<()> {
        let names = item.names.to_vec();
        self.make_parents(&names)?;
        let new = self.folder.create(&names)?;
        let written = write(&new.file).and_then(|()| self.attributes(item, &Of::New(new.number)));
        if let Err(error) = written {
            self.folder.discard(new)?;
            return Err(error);
        }
        let lacking = self.folder.finish(new, item.kept)?;
        self.note(lacking);
        Ok(())
    }

    /// A symbolic link.
    pub fn link(&mut self, item: Item<'_>, target: &[u8]) {
        self.links.push((item.names.to_vec(), target.to_vec(), item.kept.clone()));
    }

    /// Another name of a file that was extracted as `first`.
    pub fn hard_link(&mut self, names: &[Vec<u8>], first: &[Vec<u8>]) -> Result<()> {
        self.make_parents(names)?;
        self.folder.link(&first.to_vec(), &names.to_vec())
    }

    /// A device, a pipe or a socket.
    pub fn special(&mut self, item: Item<'_>, special: SpecialFile) -> Result<()> {
        self.make_parents(item.names)?;
        let lacking = self.folder.special(&item.names.to_vec(), special, item.kept)?;
        self.note(lacking);
        Ok(())
    }

    /// Does what had to wait, brings all to stable storage, and answers what could not be kept, each with how often.
    pub fn finish(&mut self) -> Result<Vec<(String, u64)>> {
        let mut first = Ok(());
        for (names, target, kept) in std::mem::take(&mut self.links) {
            let made = self.make_parents(&names).and_then(|()| self.folder.symlink(&names, &target, &kept));
            match made {
                Ok(lacking) => self.note(lacking),
                // One that cannot be made is not in the way of others.
                Err(error) if error.kind() == ErrorKind::Io => return Err(error),
                Err(error) => first = first.and(Err(error)),
            }
        }
        for (names, value) in std::mem::take(&mut self.inherited) {
            let lacking = self.folder.set_attribute(&Of::Folder(names), INHERITED, &value)?;
            self.note(lacking);
        }
        // The innermost first: making a file in a folder changes the folder's times.
        for (names, kept) in std::mem::take(&mut self.folders).into_iter().rev() {
            let lacking = self.folder.settle(&names, &kept)?;
            self.note(lacking);
        }
        self.folder.complete()?;
        first?;
        Ok(std::mem::take(&mut self.lacking).into_iter().collect())
    }
}
