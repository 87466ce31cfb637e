//! Folders whose names are lost and reordered by a power cut until they are synced.
//!
//! What may become of the names stands in [`crate::names`]; each folder is synced by itself. A file without a name is gone after a
//! cut. Files are [`SimDisk`]s of the same machine.
//!
//! Absent on purpose: users, modes, locks, folders that do not exist.

use std::collections::BTreeMap;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{Error, Result};
use journal::{FileId, Look, Names};

use crate::machine::Clock;
use crate::names::{Surviving, SyncedNames};
use crate::{Pages, Random, SimDisk, SimMachine};

/// The device that all files lie on.
const DEVICE: u64 = 1;

/// What a name stands for.
#[derive(Clone, PartialEq, Eq)]
enum Entry {
    /// The file with that inode.
    File(u64),
    Link(PathBuf),
}

#[derive(Clone, Default)]
struct State {
    names: SyncedNames<PathBuf, Entry>,
    files: BTreeMap<u64, Arc<SimDisk>>,
    last_inode: u64,
}

impl State {
    fn file(&self, path: &Path) -> Option<SimFile> {
        let Some(Entry::File(inode)) = self.names.get(path) else { return None };
        Some(SimFile { inode: *inode, disk: self.files[inode].clone() })
    }
}

/// Folders of a machine.
pub struct SimFolders {
    clock: Arc<Clock>,
    state: Mutex<State>,
}

/// An open file of [`SimFolders`].
pub struct SimFile {
    inode: u64,
    disk: Arc<SimDisk>,
}

impl SimFile {
    /// What tells it from every other file.
    pub fn id(&self) -> FileId {
        FileId { device: DEVICE, inode: self.inode }
    }
}

impl Deref for SimFile {
    type Target = SimDisk;

    fn deref(&self) -> &SimDisk {
        &self.disk
    }
}

impl SimFolders {
    /// Folders without files.
    pub fn new(machine: &SimMachine) -> Self {
        Self { clock: machine.clock(), state: Mutex::default() }
    }

    /// A file that holds `bytes`, on stable storage under its name.
    pub fn with_file(self, machine: &SimMachine, path: impl AsRef<Path>, bytes: Pages) -> Self {
        {
            let mut state = self.state();
            let inode = state.add(machine.disk(&path.as_ref().to_string_lossy(), 1, bytes));
            state.names.put_stable(path.as_ref().to_owned(), Entry::File(inode));
        }
        self
    }

    /// A symbolic link, on stable storage.
    pub fn with_link(self, path: impl AsRef<Path>, to: impl AsRef<Path>) -> Self {
        let link = Entry::Link(to.as_ref().to_owned());
        self.state().names.put_stable(path.as_ref().to_owned(), link);
        self
    }

    /// The file of that name.
    pub fn file(&self, path: impl AsRef<Path>) -> Option<SimFile> {
        self.state().file(path.as_ref())
    }

    /// All names.
    pub fn names(&self) -> Vec<PathBuf> {
        self.state().names.now().keys().cloned().collect()
    }

    /// What a power cut now leaves, in another machine; `seed` decides what that is.
    pub fn cut(&self, machine: &SimMachine, seed: u64) -> Self {
        let state = self.state();
        let names = state.names.cut(Surviving::Any, &mut Random::new(seed));
        let disk = |inode: &u64, disk: &SimDisk| {
            let left = machine.disk("file", *inode, disk.cut_pages(seed ^ inode));
            left.tear_sectors(true);
            (*inode, Arc::new(left))
        };
        let files = state.files.iter().map(|(inode, file)| disk(inode, file)).collect();
        Self::left(machine, State { names, files, last_inode: state.last_inode })
    }

    /// The same, with all that is not on stable storage, in another machine.
    pub fn copy_to(&self, machine: &SimMachine) -> Self {
        let State { names, files, last_inode } = self.state().clone();
        let files = files.iter().map(|(inode, disk)| (*inode, Arc::new(disk.copy_to(machine)))).collect();
        Self::left(machine, State { names, files, last_inode })
    }

    fn left(machine: &SimMachine, state: State) -> Self {
        Self { clock: machine.clock(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the operation, and fails if it is to fail.
    fn begin(&self, is_change: bool, what: &str, path: &Path) -> Result<()> {
        self.clock.tick(is_change).outcome(what).map_err(|error| error.path(path.display()))
    }
}

impl State {
    fn add(&mut self, disk: SimDisk) -> u64 {
        self.last_inode += 1;
        disk.tear_sectors(true);
        self.files.insert(self.last_inode, Arc::new(disk));
        self.last_inode
    }

    fn check_free(&self, path: &Path) -> Result<()> {
        match self.names.get(path).is_some() {
            true => Err(Error::refused("exists already").path(path.display())),
            false => Ok(()),
        }
    }
}

impl Names for &SimFolders {
    type File = SimFile;

    fn look(&self, path: &Path) -> Result<Look> {
        self.begin(false, "look at", path)?;
        Ok(match self.state().names.get(path) {
            None => Look::Nothing,
            Some(Entry::File(_)) => Look::File,
            Some(Entry::Link(to)) => Look::Link(to.clone()),
        })
    }

    fn make(&self, path: &Path) -> Result<SimFile> {
        self.begin(true, "make", path)?;
        let disk = SimDisk::of_machine(self.clock.clone(), &path.to_string_lossy(), 1, Pages::new(&[]));
        let mut state = self.state();
        let inode = state.add(disk);
        Ok(SimFile { inode, disk: state.files[&inode].clone() })
    }

    fn give_name(&self, file: &SimFile, path: &Path) -> Result<()> {
        self.begin(true, "name", path)?;
        let mut state = self.state();
        state.check_free(path)?;
        state.names.set(path.to_owned(), Some(Entry::File(file.inode)));
        Ok(())
    }

    fn link(&self, path: &Path, to: &Path) -> Result<()> {
        self.begin(true, "link", path)?;
        let mut state = self.state();
        state.check_free(path)?;
        state.names.set(path.to_owned(), Some(Entry::Link(to.to_owned())));
        Ok(())
    }

    fn open(&self, path: &Path) -> Result<SimFile> {
        self.begin(false, "open", path)?;
        let missing = || Error::io("open", io::ErrorKind::NotFound.into()).path(path.display());
        self.state().file(path).ok_or_else(missing)
    }

    fn peek(&self, path: &Path) -> Result<SimFile> {
        self.open(path)
    }

    fn id(&self, file: &SimFile) -> Result<FileId> {
        Ok(file.id())
    }

    fn is_named(&self, file: &SimFile, path: &Path) -> Result<bool> {
        self.begin(false, "look at", path)?;
        Ok(self.state().names.get(path) == Some(&Entry::File(file.inode)))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.begin(true, "remove", path)?;
        let mut state = self.state();
        if state.names.get(path).is_none() {
            return Err(Error::io("remove", io::ErrorKind::NotFound.into()).path(path.display()));
        }
        state.names.set(path.to_owned(), None);
        Ok(())
    }

    fn sync(&self, path: &Path) -> Result<()> {
        self.begin(true, "sync", path)?;
        self.state().names.sync(|name| name.parent() == path.parent());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{ReadAt, TargetFile};
    use extent::Offset;

    #[test]
    fn names_last_when_their_folder_was_synced() {
        let machine = SimMachine::new();
        let folders = &SimFolders::new(&machine).with_file(&machine, "/a/old", Pages::new(&[7; 512]));
        let (new, link) = (Path::new("/a/new"), Path::new("/b/link"));
        let file = folders.make(new).unwrap();
        file.write_at(Offset::ZERO, &[1; 512]).unwrap();
        file.flush().unwrap();
        folders.give_name(&file, new).unwrap();
        folders.link(link, new).unwrap();
        assert!(folders.give_name(&file, new).is_err() && folders.link(new, link).is_err());
        let left = |seed| folders.cut(&SimMachine::new(), seed).names();
        let count = |name: &Path| (0..200).filter(|seed| left(*seed).contains(&name.to_owned())).count();
        assert!((20..180).contains(&count(new)) && (20..180).contains(&count(link)));
        assert_eq!(count(Path::new("/a/old")), 200);
        folders.sync(new).unwrap();
        assert!(count(new) == 200 && (20..180).contains(&count(link)));
        folders.remove(new).unwrap();
        assert!((20..180).contains(&count(new)));
        assert!(folders.copy_to(&SimMachine::new()).names() == folders.names());
        folders.sync(new).unwrap();
        assert_eq!((count(new), count(Path::new("/a/old"))), (0, 200));
        let cut = folders.cut(&SimMachine::new(), 3);
        let mut byte = [0];
        cut.file("/a/old").unwrap().read_at(Offset::ZERO, &mut byte).unwrap();
        assert_eq!(byte, [7]);
        machine.die_at_change(machine.changes() + 1);
        assert!(folders.remove(Path::new("/a/old")).is_err());
        assert!(folders.look(link).is_err());
    }
}
