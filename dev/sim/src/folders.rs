//! Folders whose names are lost and reordered by a power cut until they are synced.
//!
//! Of each name, what it stood for at the last sync of its folder or after any change since survives; which, is chosen for each
//! name by itself. A file without a name is gone after a cut. Files are [`SimDisk`]s of the same machine.
//!
//! Absent on purpose: users, modes, locks, folders that do not exist.

use std::collections::BTreeMap;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{Error, Result};
use journal::{FileId, Look, Names};

use crate::machine::{Clock, Fate};
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
    current: BTreeMap<PathBuf, Entry>,
    stable: BTreeMap<PathBuf, Entry>,
    /// What names stood for after each change since their folder's last sync.
    versions: BTreeMap<PathBuf, Vec<Option<Entry>>>,
    files: BTreeMap<u64, Arc<SimDisk>>,
    last_inode: u64,
}

impl State {
    fn set(&mut self, path: &Path, entry: Option<Entry>) {
        match entry.clone() {
            Some(entry) => _ = self.current.insert(path.to_owned(), entry),
            None => _ = self.current.remove(path),
        }
        self.versions.entry(path.to_owned()).or_default().push(entry);
    }

    fn file(&self, path: &Path) -> Option<SimFile> {
        let Some(Entry::File(inode)) = self.current.get(path) else { return None };
        Some(SimFile { inode: *inode, disk: self.files[inode].clone() })
    }

    /// What a cut leaves of the names.
    fn cut_names(&self, random: &mut Random) -> BTreeMap<PathBuf, Entry> {
        let mut names = self.stable.clone();
        for (path, versions) in &self.versions {
            let survivor = random.below(versions.len() as u64 + 1).checked_sub(1);
            let Some(survivor) = survivor else { continue };
            match &versions[usize::try_from(survivor).expect("an index")] {
                Some(entry) => _ = names.insert(path.clone(), entry.clone()),
                None => _ = names.remove(path),
            }
        }
        names
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
            state.current.insert(path.as_ref().to_owned(), Entry::File(inode));
            state.stable = state.current.clone();
        }
        self
    }

    /// A symbolic link, on stable storage.
    pub fn with_link(self, path: impl AsRef<Path>, to: impl AsRef<Path>) -> Self {
        {
            let mut state = self.state();
            state.current.insert(path.as_ref().to_owned(), Entry::Link(to.as_ref().to_owned()));
            state.stable = state.current.clone();
        }
        self
    }

    /// The file of that name.
    pub fn file(&self, path: impl AsRef<Path>) -> Option<SimFile> {
        self.state().file(path.as_ref())
    }

    /// All names.
    pub fn names(&self) -> Vec<PathBuf> {
        self.state().current.keys().cloned().collect()
    }

    /// What a power cut now leaves, in another machine; `seed` decides what that is.
    pub fn cut(&self, machine: &SimMachine, seed: u64) -> Self {
        let state = self.state();
        let mut random = Random::new(seed);
        let names = state.cut_names(&mut random);
        let disk = |inode: &u64, disk: &SimDisk| {
            let left = machine.disk("file", *inode, disk.cut_pages(seed ^ inode));
            left.tear_sectors(true);
            (*inode, Arc::new(left))
        };
        let files = state.files.iter().map(|(inode, file)| disk(inode, file)).collect();
        Self::left(machine, names.clone(), names, BTreeMap::new(), files, state.last_inode)
    }

    /// The same, with all that is not on stable storage, in another machine.
    pub fn copy_to(&self, machine: &SimMachine) -> Self {
        let State { current, stable, versions, files, last_inode } = self.state().clone();
        let files = files.iter().map(|(inode, disk)| (*inode, Arc::new(disk.copy_to(machine)))).collect();
        Self::left(machine, current, stable, versions, files, last_inode)
    }

    fn left(
        machine: &SimMachine,
        current: BTreeMap<PathBuf, Entry>,
        stable: BTreeMap<PathBuf, Entry>,
        versions: BTreeMap<PathBuf, Vec<Option<Entry>>>,
        files: BTreeMap<u64, Arc<SimDisk>>,
        last_inode: u64,
    ) -> Self {
        let state = State { current, stable, versions, files, last_inode };
        Self { clock: machine.clock(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the operation, and fails if it is to fail.
    fn begin(&self, is_change: bool, what: &str, path: &Path) -> Result<()> {
        let fate: Fate = self.clock.tick(is_change);
        fate.result()
            .map_err(|kind| Error::io(what, io::Error::new(kind, "simulated fault")).path(path.display()))
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
        match self.current.contains_key(path) {
            true => Err(Error::refused("exists already").path(path.display())),
            false => Ok(()),
        }
    }
}

impl Names for &SimFolders {
    type File = SimFile;

    fn look(&self, path: &Path) -> Result<Look> {
        self.begin(false, "look at", path)?;
        Ok(match self.state().current.get(path) {
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
        state.set(path, Some(Entry::File(file.inode)));
        Ok(())
    }

    fn link(&self, path: &Path, to: &Path) -> Result<()> {
        self.begin(true, "link", path)?;
        let mut state = self.state();
        state.check_free(path)?;
        state.set(path, Some(Entry::Link(to.to_owned())));
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
        Ok(FileId { device: DEVICE, inode: file.inode })
    }

    fn is_named(&self, file: &SimFile, path: &Path) -> Result<bool> {
        self.begin(false, "look at", path)?;
        Ok(self.state().current.get(path) == Some(&Entry::File(file.inode)))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.begin(true, "remove", path)?;
        let mut state = self.state();
        if !state.current.contains_key(path) {
            return Err(Error::io("remove", io::ErrorKind::NotFound.into()).path(path.display()));
        }
        state.set(path, None);
        Ok(())
    }

    fn sync(&self, path: &Path) -> Result<()> {
        self.begin(true, "sync", path)?;
        let mut state = self.state();
        let folder = path.parent();
        let State { current, stable, versions, .. } = &mut *state;
        versions.retain(|path, _| path.parent() != folder);
        stable.retain(|path, _| path.parent() != folder);
        let here = current.iter().filter(|(path, _)| path.parent() == folder);
        stable.extend(here.map(|(path, entry)| (path.clone(), entry.clone())));
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
