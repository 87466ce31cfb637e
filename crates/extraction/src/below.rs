//! The folder, and what was made in it.

use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use block::{Error, Result};
use mutants::broken;

use crate::filler::{IntoFolder, NewFile};
use crate::folders::{FileId, Folders, Found, Kind, Links};
use crate::kept::{Kept, Names, Of, SpecialFile};
use crate::names::{check_names, check_target, shown};

/// How often another partial name is tried.
const ATTEMPTS_MAX: u32 = 1000;

/// A folder that files are extracted into, by this process.
pub struct Below<H: Folders> {
    host: H,
    root: H::Open,
    path: PathBuf,
    replaces: bool,
    /// The folder that was opened last: most files are in the same one as those before.
    last: Option<(Names, H::Open)>,
    new: HashMap<usize, New<H::Open>>,
    count: usize,
    /// What was made, which is not replaced by another of the same name: some file systems take names for the same that differ.
    made: HashSet<FileId>,
    /// Files of these whose contents may not be on stable storage yet.
    unflushed: HashSet<FileId>,
    /// By device: where folders of several file systems are mounted in the folder, all of them are flushed.
    systems: HashMap<u64, System<H::Open>>,
}

/// A file system into which something was extracted.
struct System<O> {
    /// A folder of it, open since before anything was written there.
    folder: O,
    flushes_each: bool,
}

/// What has no name of its own yet.
struct New<O> {
    open: O,
    found: Found,
    /// Whether it is another name of a file that was placed before, and only pointed at.
    is_further_name: bool,
    place: Place<O>,
}

/// Where something new is, and where it will be.
struct Place<O> {
    folder: O,
    partial: Vec<u8>,
    /// Its name in the folder.
    name: Vec<u8>,
    names: Names,
}

impl<H: Folders> Below<H> {
    /// The folder at `path`, which is made if only its last name is missing. What is in it is replaced only if `replaces` allows that.
    pub fn begin(host: H, path: &Path, replaces: bool) -> Result<Self> {
        let failed = |what: &'static str| move |error: io::Error| Error::io(what, error).path(path.display());
        let name = path.as_os_str().as_bytes();
        match host.make_folder(None, name) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(failed("make the folder")(error));
            }
            _ => {}
        }
        let root = host.open_folder(None, name, Links::Followed).map_err(failed("open"))?;
        let device = host.found(&root).map_err(failed("look at"))?.id.device;
        let mut below = Self {
            host,
            root,
            path: path.to_owned(),
            replaces,
            last: None,
            new: HashMap::new(),
            count: 0,
            made: HashSet::new(),
            unflushed: HashSet::new(),
            systems: HashMap::new(),
        };
        let folder = below.again(&below.root)?;
        below.know_system(device, &folder)?;
        Ok(below)
    }

    /// Remembers the file system of a folder in which something was made, to be flushed.
    fn know_system(&mut self, device: u64, folder: &H::Open) -> Result<()> {
        if !self.systems.contains_key(&device) {
            let (folder, flushes_each) = (self.again(folder)?, self.host.flushes_each(folder));
            self.systems.insert(device, System { folder, flushes_each });
        }
        Ok(())
    }

    fn failed(&self, what: &'static str, names: &Names) -> impl Fn(io::Error) -> Error + use<H> {
        let path = self.path.join(shown(names));
        move |error| Error::io(what, error).path(path.display())
    }

    fn refused(&self, what: &'static str, names: &Names) -> Error {
        Error::refused(what).path(self.path.join(shown(names)).display())
    }

    fn again(&self, open: &H::Open) -> Result<H::Open> {
        self.host.again(open).map_err(|error| Error::io("open", error))
    }

    /// The folder in which the last of the names is, and that name.
    fn parent(&mut self, names: &Names) -> Result<(H::Open, Vec<u8>)> {
        check_names(names)?;
        let (name, folders) =
            names.split_last().ok_or_else(|| Error::refused("the folder itself is no file in it"))?;
        Ok((self.open_folder(&folders.to_vec())?, name.clone()))
    }

    /// Opens a folder, name by name.
    fn open_folder(&mut self, folders: &Names) -> Result<H::Open> {
        if let Some((last, open)) = &self.last
            && last == folders
        {
            return self.again(open);
        }
        let links = if broken!(LinkFollowed) { Links::Followed } else { Links::Refused };
        let mut open = self.again(&self.root)?;
        for name in folders {
            open = self.host.open_folder(Some(&open), name, links).map_err(|error| match error.kind() {
                ErrorKind::NotADirectory => self.in_the_way(folders),
                _ => self.failed("open the folder", folders)(error),
            })?;
        }
        self.last = Some((folders.clone(), self.again(&open)?));
        Ok(open)
    }

    /// Opens a folder of which something is to be set: one that was made here.
    fn open_made(&mut self, names: &Names) -> Result<H::Open> {
        check_names(names)?;
        let open = self.open_folder(names)?;
        let found = self.host.found(&open).map_err(self.failed("look at", names))?;
        match self.made.contains(&found.id) || broken!(OldFolderSettled) {
            true => Ok(open),
            false => Err(self.refused("is no folder that was extracted", names)),
        }
    }

    fn in_the_way(&self, names: &Names) -> Error {
        self.refused("what has this name already is no folder", names)
    }

    fn collides(&self, names: &Names) -> Error {
        self.refused("another file of the guest has this name here already", names)
    }

    /// What a folder's name stands for, if for a folder that was there before.
    fn check_old_folder(&self, names: &Names, found: Option<Found>) -> Result<()> {
        match found {
            // One that this extraction made is another of the guest's, which this file system takes for the same.
            Some(found) if found.kind == Kind::Folder && self.made.contains(&found.id) => {
                Err(self.collides(names))
            }
            Some(Found { kind: Kind::Folder, .. }) => Ok(()),
            _ => Err(self.in_the_way(names)),
        }
    }

    fn remember_folder(&mut self, names: &Names, folder: &H::Open, name: &[u8]) -> Result<()> {
        let open = self.host.open_folder(Some(folder), name, Links::Refused);
        let open = open.map_err(|error| match error.kind() {
            ErrorKind::NotADirectory => self.in_the_way(names),
            _ => self.failed("open the folder", names)(error),
        })?;
        let found = self.host.found(&open).map_err(self.failed("look at", names))?;
        self.know_system(found.id.device, folder)?;
        self.made.insert(found.id);
        Ok(())
    }

    /// Makes something under a partial name, which nothing has. Whatever fails then, the name goes.
    fn partial<T>(
        &mut self,
        names: &Names,
        make: impl Fn(&H, &H::Open, &[u8]) -> io::Result<T>,
        open: impl Fn(&H, &Place<H::Open>, T) -> io::Result<H::Open>,
    ) -> Result<(usize, New<H::Open>)> {
        let (folder, name) = self.parent(names)?;
        for _ in 0..ATTEMPTS_MAX {
            self.count += 1;
            let partial = format!(".leandisk-{}-{}.partial", self.host.process_number(), self.count);
            let partial = partial.into_bytes();
            let made = match make(&self.host, &folder, &partial) {
                Ok(made) => made,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(self.failed("make", names)(error)),
            };
            let place = Place { folder, partial, name, names: names.clone() };
            let opened = open(&self.host, &place, made)
                .and_then(|open| self.host.found(&open).map(|found| (open, found)));
            return match opened {
                Ok((open, found)) => Ok((self.count, New { open, found, is_further_name: false, place })),
                Err(error) => {
                    self.remove_partial(&place);
                    Err(self.failed("make", names)(error))
                }
            };
        }
        Err(self.failed("make", names)(ErrorKind::AlreadyExists.into()))
    }

    /// Points at what was made under a partial name. What somebody else gave that name meanwhile, as a further name of a file that is
    /// outside, is told by its kind and by having several names: nothing may be set of that.
    fn pointed(
        &mut self,
        names: &Names,
        kind: Kind,
        make: impl Fn(&H, &H::Open, &[u8]) -> io::Result<()>,
    ) -> Result<New<H::Open>> {
        let (_, new) =
            self.partial(names, make, |host, place, ()| host.point_at(&place.folder, &place.partial))?;
        if (new.found.kind, new.found.link_count) == (kind, 1) || broken!(StrangerKept) {
            return Ok(new);
        }
        self.remove_partial(&new.place);
        Err(self.replaced(names))
    }

    fn replaced(&self, names: &Names) -> Error {
        self.refused("was replaced by another process while it was made", names)
    }

    /// A second try where the first one failed is all that can be done.
    fn remove_partial(&self, place: &Place<H::Open>) {
        if !broken!(PartialStays) && self.host.remove(&place.folder, &place.partial).is_err() {
            let _ = self.host.remove(&place.folder, &place.partial);
        }
    }

    /// Gives what has a partial name its own. A failure removes it.
    fn place(&mut self, new: &New<H::Open>) -> Result<()> {
        let placed = self.prepare(new).and_then(|()| self.try_place(new));
        if placed.is_err() {
            self.remove_partial(&new.place);
        }
        placed
    }

    /// Flushes a file where flushing all in the end would not do.
    fn prepare(&mut self, new: &New<H::Open>) -> Result<()> {
        let device = new.found.id.device;
        self.know_system(device, &new.place.folder)?;
        if new.found.kind != Kind::File || new.is_further_name {
            return Ok(());
        }
        self.unflushed.insert(new.found.id);
        match self.systems.get(&device).is_some_and(|system| system.flushes_each) {
            true => self.flush_contents(new),
            false => Ok(()),
        }
    }

    fn try_place(&mut self, new: &New<H::Open>) -> Result<()> {
        let Place { folder, partial, name, names } = &new.place;
        match self.give_free_name(new) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            // Where that cannot be told while renaming, it is looked at before.
            Err(error) if error.kind() == ErrorKind::Unsupported && self.replaces => {}
            Err(error) => return Err(self.failed("name", names)(error)),
        }
        let standing = self.host.look(folder, name).map_err(self.failed("look at", names))?;
        self.check_replaced(names, standing)?;
        if standing.is_some() {
            self.flush_contents(new)?;
        }
        self.host.rename(folder, partial, name, true).map_err(self.failed("name", names))?;
        self.made.insert(new.found.id);
        Ok(())
    }

    /// Gives it its own name if nothing has that.
    fn give_free_name(&mut self, new: &New<H::Open>) -> io::Result<()> {
        let Place { folder, partial, name, .. } = &new.place;
        match self.host.rename(folder, partial, name, false) {
            // The file system cannot rename so, but knows links.
            Err(error) if error.kind() == ErrorKind::Unsupported && !self.replaces => {
                self.host.link(folder, partial, folder, name)?;
                self.made.insert(new.found.id);
                self.host.remove(folder, partial)
            }
            Err(error) => Err(error),
            Ok(()) => {
                self.made.insert(new.found.id);
                Ok(())
            }
        }
    }

    /// `Refused` if what has the name stays.
    fn check_replaced(&self, names: &Names, standing: Option<Found>) -> Result<()> {
        if standing.is_some_and(|found| self.made.contains(&found.id)) && !broken!(OwnReplaced) {
            return Err(self.collides(names));
        }
        if standing.is_some_and(|found| found.kind == Kind::Folder) {
            return Err(self.refused("is a folder here, and is not replaced", names));
        }
        match self.replaces || broken!(ReplacedUnasked) {
            true => Ok(()),
            false => Err(self.refused("exists already", names).hint("--force replaces it")),
        }
    }

    /// Brings the contents of what is to replace a file to stable storage, so that a power cut leaves the one or the other.
    fn flush_contents(&mut self, new: &New<H::Open>) -> Result<()> {
        if !self.unflushed.contains(&new.found.id) {
            return Ok(());
        }
        if new.is_further_name {
            return if broken!(LinkedBeforeFlush) { Ok(()) } else { self.flush_systems() };
        }
        if !broken!(ReplacedBeforeFlush) {
            let flushed = self.host.flush(&new.open);
            flushed.map_err(self.failed("bring to stable storage", &new.place.names))?;
        }
        self.unflushed.remove(&new.found.id);
        Ok(())
    }

    fn flush_systems(&mut self) -> Result<()> {
        for system in self.systems.values() {
            self.host
                .flush_all(&system.folder)
                .map_err(|error| Error::io("bring to stable storage", error).path(self.path.display()))?;
        }
        self.unflushed.clear();
        Ok(())
    }

    fn take(&mut self, number: usize) -> Result<New<H::Open>> {
        self.new.remove(&number).ok_or_else(no_new_file)
    }

    /// Gives the file of this number what is kept of it, and its name.
    pub fn finish_number(&mut self, number: usize, kept: &Kept) -> Result<Vec<String>> {
        let new = self.take(number)?;
        let lacking = self.keep(&new.open, kept, kept.mode.unwrap_or(0o644));
        if !broken!(NamedBeforeWhole) {
            self.place(&new)?;
        }
        Ok(lacking)
    }

    /// Removes the file of this number, which has no name yet.
    pub fn discard_number(&mut self, number: usize) -> Result<()> {
        let New { place, .. } = self.take(number)?;
        if broken!(PartialStays) {
            return Ok(());
        }
        self.host.remove(&place.folder, &place.partial).map_err(|error| {
            self.remove_partial(&place);
            self.failed("remove", &place.names)(error)
        })
    }

    /// Owner, permissions and times, in this order: a new owner takes some permissions away.
    fn keep(&self, open: &H::Open, kept: &Kept, mode: u16) -> Vec<String> {
        let mut lacking = Vec::new();
        let is_owned = self.keep_owner(open, kept, &mut lacking);
        // Programs that run with their owner's rights must not do so with those of whoever extracts them.
        let mask = if is_owned { 0o7777 } else { 0o777 };
        if let Err(error) = self.host.set_mode(open, mode & mask) {
            lacking.push(format!("its permissions: {error}"));
        }
        self.keep_times(open, kept, &mut lacking);
        lacking
    }

    fn keep_owner(&self, open: &H::Open, kept: &Kept, lacking: &mut Vec<String>) -> bool {
        let Some((uid, gid)) = kept.owner.filter(|_| self.host.sets_owners()) else { return false };
        let set = self.host.set_owner(open, uid, gid);
        lacking.extend(set.as_ref().err().map(|error| format!("its owner: {error}")));
        set.is_ok()
    }

    fn keep_times(&self, open: &H::Open, kept: &Kept, lacking: &mut Vec<String>) {
        let set = self.host.set_times(open, kept);
        lacking.extend(set.err().map(|error| format!("its times: {error}")));
    }

    fn set_attribute_of(&self, open: &H::Open, name: &[u8], value: &[u8]) -> Option<String> {
        let text = String::from_utf8_lossy(name);
        if name.contains(&0) {
            return Some(format!("the attribute {text}: no name of this host"));
        }
        let set = self.host.set_attribute(open, name, value);
        set.err().map(|error| format!("the attribute {text}: {error}"))
    }
}

fn no_new_file() -> Error {
    Error::refused("is no new file of this process")
}

impl<H: Folders> IntoFolder for Below<H> {
    type File = H::Open;

    fn make_folder(&mut self, names: &Names) -> Result<bool> {
        if names.is_empty() {
            return Ok(false);
        }
        let (folder, name) = self.parent(names)?;
        match self.host.make_folder(Some(&folder), &name) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let found = self.host.look(&folder, &name).map_err(self.failed("look at", names))?;
                return self.check_old_folder(names, found).map(|()| false);
            }
            Err(error) => return Err(self.failed("make the folder", names)(error)),
        }
        self.remember_folder(names, &folder, &name)?;
        Ok(true)
    }

    fn create(&mut self, names: &Names) -> Result<NewFile<H::Open>> {
        let (number, new) = self.partial(names, H::create, |_, _, open| Ok(open))?;
        let theirs = match self.again(&new.open) {
            Ok(theirs) => theirs,
            Err(error) => {
                self.remove_partial(&new.place);
                return Err(error);
            }
        };
        if broken!(NamedBeforeWhole) {
            self.place(&new)?;
        }
        self.new.insert(number, new);
        Ok(NewFile { number, file: theirs })
    }

    fn set_attribute(&mut self, of: &Of, name: &[u8], value: &[u8]) -> Result<Option<String>> {
        match of {
            Of::New(number) => {
                let new = self.new.get(number).ok_or_else(no_new_file)?;
                Ok(self.set_attribute_of(&new.open, name, value))
            }
            Of::Folder(names) => {
                let folder = self.open_made(names)?;
                Ok(self.set_attribute_of(&folder, name, value))
            }
        }
    }

    fn finish(&mut self, file: NewFile<H::Open>, kept: &Kept) -> Result<Vec<String>> {
        self.finish_number(file.number, kept)
    }

    fn discard(&mut self, file: NewFile<H::Open>) -> Result<()> {
        self.discard_number(file.number)
    }

    fn symlink(&mut self, names: &Names, target: &[u8], kept: &Kept) -> Result<Vec<String>> {
        check_target(target)?;
        let new = self.pointed(names, Kind::Link, |host, folder, name| host.symlink(folder, name, target))?;
        let mut lacking = Vec::new();
        self.keep_owner(&new.open, kept, &mut lacking);
        self.keep_times(&new.open, kept, &mut lacking);
        self.place(&new)?;
        Ok(lacking)
    }

    fn link(&mut self, first: &Names, names: &Names) -> Result<()> {
        let (from, first_name) = self.parent(first)?;
        let is_ours = |below: &Self, found: Option<Found>| {
            found.is_some_and(|found| below.made.contains(&found.id)) || broken!(StrangerLinked)
        };
        let found = self.host.look(&from, &first_name).map_err(self.failed("look at", first))?;
        if !is_ours(self, found) {
            return Err(Error::refused("is no file that was extracted").path(shown(first)));
        }
        let (_, mut new) = self.partial(
            names,
            |host, folder, name| host.link(&from, &first_name, folder, name),
            |host, place, ()| host.point_at(&place.folder, &place.partial),
        )?;
        // Its first name may stand for something else since it was looked at.
        if !is_ours(self, Some(new.found)) {
            self.remove_partial(&new.place);
            return Err(self.replaced(names));
        }
        new.is_further_name = true;
        self.place(&new)
    }

    fn special(&mut self, names: &Names, special: SpecialFile, kept: &Kept) -> Result<Vec<String>> {
        let is_device = match special {
            SpecialFile::Pipe | SpecialFile::Socket => false,
            SpecialFile::Character(major, minor) | SpecialFile::Block(major, minor) => {
                (major, minor) != (0, 0)
            }
        };
        if is_device && !self.host.sets_owners() {
            return Err(Error::refused("is a device, which only root can make").path(shown(names)));
        }
        let new =
            self.pointed(names, Kind::Special, |host, folder, name| host.special(folder, name, special))?;
        let kept = Kept { mode: Some(kept.mode.unwrap_or(0o600) & 0o777), ..kept.clone() };
        let lacking = self.keep(&new.open, &kept, kept.mode.unwrap_or_default());
        self.place(&new)?;
        Ok(lacking)
    }

    fn settle(&mut self, names: &Names, kept: &Kept) -> Result<Vec<String>> {
        let folder = self.open_made(names)?;
        Ok(self.keep(&folder, kept, kept.mode.unwrap_or(0o755)))
    }

    fn complete(&mut self) -> Result<()> {
        if broken!(SuccessBeforeFlush) { Ok(()) } else { self.flush_systems() }
    }
}

/// What is left unfinished goes.
impl<H: Folders> Drop for Below<H> {
    fn drop(&mut self) {
        for new in self.new.values() {
            self.remove_partial(&new.place);
        }
    }
}
