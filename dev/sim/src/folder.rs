//! A folder whose names a power cut takes back, for who makes a target in it.
//!
//! What may become of the names stands in [`crate::names`]. A rename may leave a file under both of its names, or under none.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{Error, FolderFile, HostFile, ReadAt, Result, TargetFile, TargetFolder, TargetName};
use extent::{Host, HostSpan};

use crate::machine::SimMachine;
use crate::names::{Surviving, SyncedNames};
use crate::{Pages, Random, SimDisk};

/// What a folder's files are told apart by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileMarks {
    /// A number that is used again, and a mark of its own: ext4 and the like.
    Marks,
    /// The number alone: FAT and the like.
    Numbers,
}

/// A file without its name.
struct Inode {
    /// The lowest that was free when it was made.
    number: u64,
    /// What no other file ever had; none once the file is complete.
    mark: Mutex<Mark>,
    disk: SimDisk,
}

/// A mark, and what the last flush of everything left of it.
#[derive(Clone, Copy)]
struct Mark {
    now: u64,
    stable: u64,
}

struct State {
    names: SyncedNames<TargetName, Arc<Inode>>,
    next_mark: u64,
}

/// A folder of one simulated machine.
pub struct SimFolder {
    machine: Arc<SimMachine>,
    seed: u64,
    marks: FileMarks,
    state: Mutex<State>,
}

impl SimFolder {
    /// An empty folder of this machine.
    pub fn new(machine: Arc<SimMachine>, seed: u64, marks: FileMarks) -> Self {
        let state = State { names: SyncedNames::default(), next_mark: 1 };
        Self { machine, seed, marks, state: Mutex::new(state) }
    }

    /// The folder as the next process finds it after a kill: with all that was done, flushed or not.
    pub fn after_kill(&self, machine: Arc<SimMachine>) -> Self {
        let state = self.state();
        let mut all = Moved::default();
        let names = state.names.map(|file| all.moved(file, |old| old.copy_to(&machine)));
        let state = State { names, next_mark: state.next_mark };
        Self { state: Mutex::new(state), machine, ..*self }
    }

    /// The folder as one of the states in which a power cut may leave it: `seed` says which.
    pub fn after_cut(&self, machine: Arc<SimMachine>, seed: u64) -> Self {
        let state = self.state();
        let mut random = Random::new(seed ^ self.seed.rotate_left(17));
        // Often all of it or nothing, as file systems with a journal do.
        let surviving = match random.below(3) {
            0 => Surviving::Nothing,
            1 => Surviving::All,
            _ => Surviving::Any,
        };
        let names = state.names.cut(surviving, &mut random);
        let mut all = Moved::default();
        let names = names.map(|file| all.moved(file, |old| old.cut(&machine, random.next_u64())));
        let state = State { names, next_mark: state.next_mark };
        Self { state: Mutex::new(state), machine, ..*self }
    }

    /// Puts a whole and flushed file under a name.
    pub fn put(&self, name: TargetName, bytes: &[u8]) {
        let mut state = self.state();
        let inode = self.inode(&mut state, name, Pages::new(bytes));
        state.names.put_stable(name, inode);
    }

    /// What the file of that name holds now.
    pub fn pages(&self, name: TargetName) -> Option<Pages> {
        self.state().names.get(&name).map(|file| file.disk.to_pages())
    }

    /// The file of that name.
    pub fn file(&self, name: TargetName) -> Option<FolderDisk> {
        self.state().names.get(&name).cloned().map(FolderDisk)
    }

    /// The names that there are.
    pub fn names(&self) -> Vec<TargetName> {
        self.state().names.now().keys().copied().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machine dies here, or it does not.
    fn step(&self, what: &str) -> Result<()> {
        self.machine.clock().tick(true).outcome(what)
    }

    fn inode(&self, state: &mut State, name: TargetName, bytes: Pages) -> Arc<Inode> {
        // As soon as no name means it any more, flushed or not.
        let is_free = |number: &u64| !state.names.now().values().any(|file| file.number == *number);
        let number =
            (1..=state.names.now().len() as u64 + 1).find(is_free).expect("one more than there are files");
        let mark = state.next_mark;
        state.next_mark += 1;
        let disk = self.machine.disk(&format!("{name:?}"), self.seed ^ mark, bytes);
        Arc::new(Inode { number, mark: Mutex::new(Mark { now: mark, stable: 0 }), disk })
    }
}

/// A file of a [`SimFolder`], whatever its name is by now.
pub struct FolderDisk(Arc<Inode>);

impl FolderDisk {
    /// Its number, which is used again when no name means it any more.
    pub fn number(&self) -> u64 {
        self.0.number
    }
}

impl Deref for FolderDisk {
    type Target = SimDisk;

    fn deref(&self) -> &SimDisk {
        &self.0.disk
    }
}

/// Files that were taken to another machine, each of them once.
#[derive(Default)]
struct Moved(Vec<(*const Inode, Arc<Inode>)>);

impl Moved {
    fn moved(&mut self, file: &Arc<Inode>, how: impl FnOnce(&Inode) -> Inode) -> Arc<Inode> {
        let key = Arc::as_ptr(file);
        if let Some((_, moved)) = self.0.iter().find(|(old, _)| *old == key) {
            return moved.clone();
        }
        let moved = Arc::new(how(file));
        self.0.push((key, moved.clone()));
        moved
    }
}

impl Inode {
    fn mark(&self) -> MutexGuard<'_, Mark> {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn copy_to(&self, machine: &SimMachine) -> Self {
        Self { number: self.number, mark: Mutex::new(*self.mark()), disk: self.disk.copy_to(machine) }
    }

    fn cut(&self, machine: &SimMachine, seed: u64) -> Self {
        let Mark { now, stable } = *self.mark();
        let mark = if seed.is_multiple_of(2) { now } else { stable };
        let disk = machine.disk("file", seed, self.disk.cut_pages(seed));
        Self { number: self.number, mark: Mutex::new(Mark { now: mark, stable: mark }), disk }
    }
}

impl TargetFolder for SimFolder {
    fn open(&self, name: TargetName) -> Result<Option<Box<dyn FolderFile + '_>>> {
        let file = self.state().names.get(&name).cloned();
        Ok(file.map(|inode| Box::new(OpenFile { inode, folder: self }) as Box<dyn FolderFile>))
    }

    fn create(&self, name: TargetName) -> Result<Box<dyn FolderFile + '_>> {
        self.step("create")?;
        let mut state = self.state();
        if state.names.get(&name).is_some() {
            return Err(Error::refused(format!("there is a file of the name {name:?}")));
        }
        let inode = self.inode(&mut state, name, Pages::new(&[]));
        state.names.set(name, Some(inode.clone()));
        Ok(Box::new(OpenFile { inode, folder: self }))
    }

    fn remove(&self, name: TargetName) -> Result<bool> {
        let mut state = self.state();
        if state.names.get(&name).is_none() {
            return Ok(false);
        }
        self.step("remove")?;
        state.names.set(name, None);
        Ok(true)
    }

    fn rename(&self, from: TargetName, to: TargetName) -> Result<()> {
        self.step("rename")?;
        let mut state = self.state();
        let Some(file) = state.names.get(&from).cloned() else {
            return Err(Error::io("rename", std::io::ErrorKind::NotFound.into()));
        };
        state.names.set(from, None);
        state.names.set(to, Some(file));
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.step("flush the folder")?;
        self.state().names.sync(|_| true);
        Ok(())
    }
}

/// An open file of the folder.
struct OpenFile<'a> {
    inode: Arc<Inode>,
    folder: &'a SimFolder,
}

impl ReadAt<Host> for OpenFile<'_> {
    block::forward!(self, self.inode.disk => len_bytes, read_at);
}

impl TargetFile for OpenFile<'_> {
    block::forward!(self, self.inode.disk => write_at, set_len, reserve, zero, flush);

    /// As Linux does it, the file is longer afterwards.
    fn reserve_ahead(&self, span: HostSpan, _spare_bytes: u64) -> bool {
        self.inode.disk.reserve(span).is_ok()
    }

    /// What is shared is as good as written, and as bad: until a flush a cut may lose it, block by block.
    fn clone_range(&self, source: &dyn HostFile, span: HostSpan) -> Result<bool> {
        let mut bytes = vec![0; usize::try_from(span.len_bytes()).expect("small")];
        source.read_at(span.start(), &mut bytes)?;
        self.inode.disk.write_at(span.start(), &bytes)?;
        Ok(true)
    }
}

impl FolderFile for OpenFile<'_> {
    fn identity(&self) -> Result<Option<String>> {
        let number = self.inode.number;
        Ok(Some(match self.folder.marks {
            FileMarks::Marks => format!("inode {number} mark {}", self.inode.mark().now),
            FileMarks::Numbers => format!("inode {number}"),
        }))
    }

    fn flush_all(&self) -> Result<()> {
        self.inode.disk.flush()?;
        let mut mark = self.inode.mark();
        mark.stable = mark.now;
        Ok(())
    }

    fn complete(&self) -> Result<()> {
        self.folder.step("remove the mark")?;
        self.inode.mark().now = 0;
        self.flush_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extent::Offset;

    fn folder() -> SimFolder {
        SimFolder::new(Arc::default(), 7, FileMarks::Marks)
    }

    /// What a name may mean after a cut: the first byte of its file, or nothing.
    fn found(folder: &SimFolder, name: TargetName) -> Vec<Option<u8>> {
        let mut all: Vec<_> = (0..300)
            .map(|seed| folder.after_cut(Arc::default(), seed))
            .map(|folder| folder.pages(name).map(|pages| pages.to_vec().first().copied().unwrap_or(0)))
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    #[test]
    fn names_are_lost_until_the_folder_is_flushed_and_bytes_until_the_file_is() {
        let folder = folder();
        let file = folder.create(TargetName::Draft).unwrap();
        file.write_at(Offset::ZERO, &[5; 512]).unwrap();
        file.flush_all().unwrap();
        assert_eq!(found(&folder, TargetName::Draft), [None, Some(5)]);
        folder.sync().unwrap();
        assert_eq!(found(&folder, TargetName::Draft), [Some(5)]);
        file.write_at(Offset::ZERO, &[6; 512]).unwrap();
        folder.rename(TargetName::Draft, TargetName::Checkpoint).unwrap();
        assert_eq!(found(&folder, TargetName::Checkpoint), [None, Some(5), Some(6)]);
        assert_eq!(found(&folder, TargetName::Draft), [None, Some(5), Some(6)]);
        let killed = folder.after_kill(Arc::default());
        assert_eq!(killed.names(), [TargetName::Checkpoint]);
        assert_eq!(found(&killed, TargetName::Draft), [None, Some(5), Some(6)], "not flushed by a kill");
    }

    #[test]
    fn a_number_is_used_again_and_a_mark_is_not() {
        let folder = folder();
        let identity = |folder: &SimFolder| folder.create(TargetName::Partial).unwrap().identity().unwrap();
        let first = identity(&folder).unwrap();
        folder.remove(TargetName::Partial).unwrap();
        let second = identity(&folder).unwrap();
        assert_eq!((first.as_str(), second.as_str()), ("inode 1 mark 1", "inode 1 mark 2"));
        let killed = folder.after_kill(Arc::default());
        let found = killed.open(TargetName::Partial).unwrap().unwrap().identity().unwrap();
        assert_eq!(found.unwrap(), second);
    }

    #[test]
    fn a_dead_machine_changes_no_name() {
        let folder = folder();
        folder.put(TargetName::Target, &[9]);
        folder.machine.die_at_change(1);
        assert!(folder.create(TargetName::Partial).is_err());
        assert!(folder.remove(TargetName::Target).is_err());
        assert!(folder.rename(TargetName::Target, TargetName::Partial).is_err());
        assert_eq!(folder.names(), [TargetName::Target]);
    }
}
