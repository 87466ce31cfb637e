//! A journal's life as a file: made, found, proven, removed. Over [`Names`], so that what a power cut leaves of it can be
//! explored.
//!
//! Invariants:
//! - a journal gets its name when its whole header is on stable storage: what has the name and no header is something else;
//! - a change begins when the name, and the link to it, last;
//! - a file that exists is never opened for writing by who makes a journal, and never replaced;
//! - nothing is removed but what was made here, or was proven to be the journal of this disk by [`decide`];
//! - the link goes before what it leads to: one that leads nowhere would look like a journal that was lost.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use block::{Error, ErrorKind, ReadAt, Result, TargetFile};
use extent::{HostOffset, Virtual};
use mutants::broken;

use crate::decide::{Claim, decide, read_header};
use crate::header::{DiskName, FileId, Header, Owner};

/// What a name stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Look {
    /// Nothing: it is free.
    Nothing,
    /// A file, or anything else but a link.
    File,
    /// A symbolic link that leads there.
    Link(PathBuf),
}

/// Files and their names, as a host's folders keep them.
///
/// What a name stands for is on stable storage once its folder was synced; before that a power cut may leave any of what it
/// stood for since.
pub trait Names {
    /// An open file, which nobody else opens through here.
    type File: Deref<Target: TargetFile + Sized>;

    /// What the name stands for. Links are not followed. `Refused` for a link that neither this user nor the system's made.
    fn look(&self, path: &Path) -> Result<Look>;

    /// A new, empty file in the folder of `path`, under no name that anybody looks for.
    fn make(&self, path: &Path) -> Result<Self::File>;

    /// Gives a new file its name. `Refused` if the name stands for something: that stays.
    fn give_name(&self, file: &Self::File, path: &Path) -> Result<()>;

    /// Makes a symbolic link. `Refused` if the name stands for something: that stays.
    fn link(&self, path: &Path, to: &Path) -> Result<()>;

    /// Opens a file. `Refused` for anything but a regular file of this user or the system's, and if another process has it.
    fn open(&self, path: &Path) -> Result<Self::File>;

    /// The same, for reading alone, whoever has it.
    fn peek(&self, path: &Path) -> Result<Self::File>;

    /// What tells the file from every other one.
    fn id(&self, file: &Self::File) -> Result<FileId>;

    /// Whether the name stands for this file.
    fn is_named(&self, file: &Self::File, path: &Path) -> Result<bool>;

    /// Removes a name.
    fn remove(&self, path: &Path) -> Result<()>;

    /// Returns when what the name stands for, or that it stands for nothing, is on stable storage.
    fn sync(&self, path: &Path) -> Result<()>;
}

/// Where the journal of a disk may lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Places {
    /// Where whoever opens the disk looks for it.
    pub beside: PathBuf,
    /// Where its user wants it instead. A link beside the disk leads there.
    pub stated: Option<PathBuf>,
}

impl Places {
    /// Beside the disk, or at `stated`.
    pub fn new(beside: PathBuf, stated: Option<PathBuf>) -> Self {
        let stated = stated.filter(|stated| *stated != beside);
        Self { beside, stated }
    }

    fn path(&self) -> &Path {
        self.stated.as_ref().unwrap_or(&self.beside)
    }
}

/// What there is under the name of a disk's journal.
#[derive(Debug)]
pub enum Standing {
    /// Nothing: no change of the disk was interrupted.
    Absent,
    /// A journal of Leandisk's.
    Journal(Box<Header>),
    /// Something else, or what cannot be looked at; why.
    Other(Error),
}

/// Looks at what has the name of a disk's journal, and changes nothing. Where it cannot be told, it is [`Standing::Other`].
pub fn standing<N: Names>(names: &N, path: &Path) -> Standing {
    let target = match names.look(path) {
        Ok(Look::Nothing) => return Standing::Absent,
        Ok(Look::File) => path.to_owned(),
        Ok(Look::Link(target)) => target,
        Err(error) => return Standing::Other(error),
    };
    match names.peek(&target).and_then(|file| read_header(&*file)) {
        Ok((header, _)) => Standing::Journal(Box::new(header)),
        Err(error) => Standing::Other(error.path(target.display())),
    }
}

/// `Refused` if no journal can be made there, because something has its name.
pub fn check_free<N: Names>(names: &N, places: &Places) -> Result<()> {
    match standing(names, &places.beside) {
        Standing::Absent => {}
        Standing::Journal(_) => {
            return Err(Error::refused("a change of this disk was interrupted and is not finished")
                .path(places.beside.display())
                .hint("finish it with 'leandisk recover'"));
        }
        Standing::Other(error) => return Err(in_the_way(&places.beside, &error)),
    }
    let Some(stated) = &places.stated else { return Ok(()) };
    match names.look(stated)? {
        Look::Nothing => Ok(()),
        _ => Err(Error::refused("exists already, and a journal replaces nothing")
            .path(stated.display())
            .hint("give --journal a name that is free")),
    }
}

/// That something which is no journal, or cannot be read, has a journal's name.
pub fn in_the_way(path: &Path, why: &Error) -> Error {
    let error = match why.kind() {
        ErrorKind::Io => Error::refused(format!("the journal of this disk cannot be read ({why})"))
            .hint("a change of the disk may be interrupted: make the journal readable, for example by mounting what it lies on, \
                   and run 'leandisk recover'"),
        _ => Error::refused(format!("has the name of this disk's journal, but cannot be used as one: {why}"))
            .hint("look at what it is, then remove it or give it another name; until then the disk is left alone"),
    };
    error.path(path.display())
}

/// A journal, held by this process alone: made here, or proven to be that of this disk.
pub struct JournalFile<N: Names> {
    names: N,
    file: N::File,
    path: PathBuf,
    /// The link beside the disk that leads to it.
    link: Option<PathBuf>,
}

impl<N: Names> JournalFile<N> {
    /// Makes that of `disk`, with `header`, whose owner is filled in here. Its name, and the link's, last when this returns.
    /// `Refused` if there is anything under them already; nothing was changed then.
    pub fn create(names: N, places: &Places, disk: DiskName, header: Header) -> Result<Self> {
        check_free(&names, places)?;
        let path = places.path();
        let file = names.make(path)?;
        let owner = Owner { disk, journal: names.id(&file)? };
        let bytes = Header { owner: Some(owner), ..header }.to_bytes()?;
        if broken!(NamedBeforeHeader) {
            names.give_name(&file, path)?;
        }
        file.write_at(HostOffset::ZERO, &bytes)?;
        if !broken!(HeaderNotFlushed) {
            file.flush()?;
        }
        if !broken!(NamedBeforeHeader) {
            names.give_name(&file, path)?;
        }
        let path = path.to_owned();
        let mut journal = Self { names, file, path, link: None };
        let named = journal.last(places);
        match named {
            Ok(()) => Ok(journal),
            Err(error) => {
                journal.remove()?;
                Err(error)
            }
        }
    }

    /// Makes its names last.
    fn last(&mut self, places: &Places) -> Result<()> {
        if !broken!(NameNotSynced) {
            self.names.sync(&self.path)?;
        }
        if places.stated.is_none() {
            return Ok(());
        }
        self.names.link(&places.beside, &self.path)?;
        self.link = Some(places.beside.clone());
        if broken!(LinkNotSynced) { Ok(()) } else { self.names.sync(&places.beside) }
    }

    /// The file, to be written.
    pub fn file(&self) -> &<N::File as Deref>::Target {
        &self.file
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it, for good when this returns: there is nothing to finish any more.
    pub fn remove(self) -> Result<()> {
        self.check_named()?;
        if broken!(LinkRemovedLast) {
            self.remove_file()?;
            return self.remove_link();
        }
        self.remove_link()?;
        self.remove_file()
    }

    fn remove_link(&self) -> Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        match self.names.look(link)? {
            Look::Link(target) if self.names.is_named(&self.file, &target)? || broken!(LinkRemovedLast) => {}
            _ => return Err(replaced(link)),
        }
        self.names.remove(link)?;
        self.names.sync(link)
    }

    fn remove_file(&self) -> Result<()> {
        self.names.remove(&self.path)?;
        self.names.sync(&self.path)
    }

    /// Fails if the name stands for another file by now, or for none.
    fn check_named(&self) -> Result<()> {
        if self.names.is_named(&self.file, &self.path)? { Ok(()) } else { Err(replaced(&self.path)) }
    }
}

fn replaced(path: &Path) -> Error {
    Error::refused("was removed or replaced by another process").path(path.display())
}

/// A file that was found where a disk's journal would be: nothing is known of it.
pub struct FoundFile<N: Names> {
    journal: JournalFile<N>,
}

/// Opens what is where the journal of a disk would be, by [`Places::stated`] first. `None` if there is nothing.
pub fn find<N: Names>(names: N, places: &Places) -> Result<Option<FoundFile<N>>> {
    let beside = names.look(&places.beside)?;
    let is_stated = match &places.stated {
        Some(stated) => names.look(stated)? != Look::Nothing,
        None => false,
    };
    if beside == Look::Nothing && !is_stated {
        // It may have been removed by a process that was killed right then, and come back with the next power cut. Advice: one that
        // does is that of a disk that was used since, and refused.
        [Some(&places.beside), places.stated.as_ref()].into_iter().flatten().for_each(|path| {
            let _ = names.sync(path);
        });
        return Ok(None);
    }
    let target = match beside {
        Look::Link(target) => Some(target),
        _ => None,
    };
    let path = places.stated.clone().or(target.clone()).unwrap_or_else(|| places.beside.clone());
    let file = names.open(&path)?;
    let leads_here = match target {
        Some(target) => names.is_named(&file, &target)?,
        None => false,
    };
    let link = leads_here.then(|| places.beside.clone());
    Ok(Some(FoundFile { journal: JournalFile { names, file, path, link } }))
}

impl<N: Names> FoundFile<N> {
    /// Its header. `Refused` if it has none.
    pub fn header(&self) -> Result<Header> {
        let header = read_header(&*self.journal.file).map(|(header, _)| header);
        header.map_err(|error| error.path(self.journal.path.display()))
    }

    /// The journal that it is, and what to say of both when its change is finished. `Refused`, with the reason, if it is no
    /// journal of this disk, or the disk is not as the change left it: then it is left as it is.
    pub fn prove(self, name: DiskName, disk: &dyn ReadAt<Virtual>) -> Result<(JournalFile<N>, Claim)> {
        let Self { journal } = self;
        let claim = Claim { disk: name, journal: journal.names.id(&journal.file)? };
        decide(&*journal.file, disk, &claim).map_err(|error| error.path(journal.path.display()))?;
        journal.check_named()?;
        Ok((journal, claim))
    }
}
