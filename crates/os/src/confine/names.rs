//! What the command line names, and what follows from it.

use std::path::{Path, PathBuf};

use block::{Error, Result};

use crate::grant::Grants;
use crate::journal_file::{journal_path, names_a_journal_of};
use crate::new_file::folder_of;

/// What a confined program may get: told by the command line before an image is read.
#[derive(Clone, Default, Debug)]
pub struct Names {
    /// Disks: opened for reading, and what they refer to is looked for as [`Granted`](crate::Granted) says.
    pub disks: Vec<PathBuf>,
    /// What is granted to the disks besides their folders.
    pub allow_paths: Vec<PathBuf>,
    /// Other files that are opened for reading.
    pub inputs: Vec<PathBuf>,
    /// Files that are made, under a partial name first.
    pub outputs: Vec<PathBuf>,
    /// The target of a copy: a file that is made with the names beside it that it has until it is whole, or a block device that is
    /// written over.
    pub target: Option<PathBuf>,
    /// A folder in which targets of copies are made, one after another: each is a file that lies directly in it. The folder may be made, too.
    pub target_folder: Option<PathBuf>,
    /// The folder into which files are extracted.
    pub folder: Option<PathBuf>,
    /// Whether outputs, target and what is extracted replace what has their name, which is read before.
    pub replaces: bool,
    /// Files and sockets that the process makes itself before it is closed in, and that are removed for it.
    pub removed: Vec<PathBuf>,
}

impl Names {
    /// `Refused` unless this is a file that is read, by the name that the command line has for it.
    pub(super) fn check_read(&self, path: &Path) -> Result<()> {
        let is_named = self.reads().any(|read| read == path) || self.is_replaced_in_folder(path);
        if is_named { Ok(()) } else { Err(beyond(path)) }
    }

    /// `Refused` unless it is a disk that the command line names, or is replaced: who else needs that is looked for as well.
    pub(super) fn check_disk(&self, path: &Path) -> Result<()> {
        let mut disks = self.disks.iter().chain(self.replaced());
        let is_named = disks.any(|disk| disk == path) || self.is_replaced_in_folder(path);
        if is_named { Ok(()) } else { Err(beyond(path)) }
    }

    /// `Refused` unless this is the target, and replaced only if it may be.
    pub(super) fn check_target(&self, path: &Path, replaces: bool) -> Result<()> {
        let is_named = self.target.as_deref() == Some(path) || self.is_in_folder(path);
        if is_named && (self.replaces || !replaces) { Ok(()) } else { Err(beyond(path)) }
    }

    /// `Refused` unless files are extracted into this folder, and replace others only if they may.
    pub(super) fn check_extracted(&self, path: &Path, replaces: bool) -> Result<()> {
        let is_named = self.folder.as_deref() == Some(path);
        if is_named && (self.replaces || !replaces) { Ok(()) } else { Err(beyond(path)) }
    }

    /// `Refused` unless it is the target, named, or a reference to it would be granted.
    pub(super) fn check_placed(&self, path: &Path, granted: &[(PathBuf, Grants)]) -> Result<()> {
        self.check_target(path, false).or_else(|_| self.check_known(path, granted))
    }

    /// `Refused` unless this is a file to be made, and replaced only if it may be.
    pub(super) fn check_output(&self, path: &Path, replaces: bool) -> Result<()> {
        let is_named = self.outputs.iter().any(|output| output == path);
        if is_named && (self.replaces || !replaces) { Ok(()) } else { Err(beyond(path)) }
    }

    /// `Refused` unless the process made it.
    pub(super) fn check_removed(&self, path: &Path) -> Result<()> {
        if self.removed.iter().any(|made| made == path) { Ok(()) } else { Err(beyond(path)) }
    }

    /// `Refused` unless it lies in the folder of a file that is read, or in a folder that is granted.
    pub(super) fn check_folder(&self, folder: &Path, granted: &[(PathBuf, Grants)]) -> Result<()> {
        let canonical = folder.canonicalize().map_err(|_| beyond(folder))?;
        let is_of_read = || {
            let folders = self.reads().filter_map(|read| folder_of(read).canonicalize().ok());
            folders.into_iter().any(|folder| folder == canonical)
        };
        match granted.iter().any(|(_, granted)| granted.covers_names_in(&canonical)) || is_of_read() {
            true => Ok(()),
            false => Err(beyond(folder)),
        }
    }

    /// `Refused` unless it is named, or a reference to it would be granted.
    pub(super) fn check_known(&self, path: &Path, granted: &[(PathBuf, Grants)]) -> Result<()> {
        let is_granted = || {
            let canonical = path.canonicalize();
            canonical.is_ok_and(|path| granted.iter().any(|(_, granted)| granted.covers(&path)))
        };
        if self.check_read(path).is_ok() || is_granted() { Ok(()) } else { Err(beyond(path)) }
    }

    /// `Refused` unless it is the name of the journal of a disk that is known.
    pub(super) fn check_journal(&self, path: &Path, granted: &[(PathBuf, Grants)]) -> Result<()> {
        let is_granted = |disk: PathBuf| granted.iter().any(|(_, granted)| granted.covers(&disk));
        let mut known = self.disks.iter().chain(&self.allow_paths).chain(&self.target);
        let is_known = known.any(|disk| journal_path(disk) == path)
            || names_a_journal_of(path).is_some_and(|target| self.is_in_folder(&target));
        if is_known || names_a_journal_of(path).is_some_and(is_granted) { Ok(()) } else { Err(beyond(path)) }
    }

    /// Whether one of them stands for what the program was given open.
    pub(super) fn name_descriptors(&self) -> bool {
        let mut all = self.reads().chain(&self.allow_paths).chain(&self.target).chain(&self.target_folder);
        all.any(|path| ["/dev/fd", "/proc/self/fd"].iter().any(|folder| path.starts_with(folder)))
    }

    /// `Refused` unless this is the folder for targets.
    pub(super) fn check_target_folder(&self, path: &Path) -> Result<()> {
        if self.target_folder.as_deref() == Some(path) { Ok(()) } else { Err(beyond(path)) }
    }

    /// Whether it is a name of the folder for targets: `FOLDER/NAME`, by these very bytes.
    fn is_in_folder(&self, path: &Path) -> bool {
        let Some(folder) = &self.target_folder else { return false };
        path.file_name().is_some_and(|name| folder.join(name).as_os_str() == path.as_os_str())
    }

    fn is_replaced_in_folder(&self, path: &Path) -> bool {
        self.replaces && self.is_in_folder(path)
    }

    fn reads(&self) -> impl Iterator<Item = &PathBuf> {
        self.disks.iter().chain(&self.inputs).chain(self.replaced())
    }

    fn replaced(&self) -> Option<&PathBuf> {
        self.target.as_ref().filter(|_| self.replaces)
    }
}

/// The reader asks for more than it is granted: never on an honest reader's way.
pub(super) fn beyond(path: &Path) -> Error {
    Error::refused("is not granted to the process that reads the disk").path(path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_lie_directly_in_their_folder() {
        let names = Names { target_folder: Some("/vm/new".into()), ..Names::default() };
        let is_granted = |path: &str, replaces| names.check_target(path.as_ref(), replaces).is_ok();
        assert!(is_granted("/vm/new/a.qcow2", false));
        for beyond in [
            "/vm/new/a.qcow2",
            "/vm/new",
            "/vm/new/.",
            "/vm/new/..",
            "/vm/new/../a",
            "/vm/new/b/a",
            "/vm/new//a",
            "/vm/a",
            "a",
        ] {
            assert!(!is_granted(beyond, true), "{beyond}");
            assert!(beyond == "/vm/new/a.qcow2" || !is_granted(beyond, false), "{beyond}");
        }
        // What is not replaced is not read either.
        assert!(names.check_read("/vm/new/a.qcow2".as_ref()).is_err());
        let names = Names { replaces: true, ..names };
        assert!(names.check_target("/vm/new/a.qcow2".as_ref(), true).is_ok());
        assert!(names.check_read("/vm/new/a.qcow2".as_ref()).is_ok());
        assert!(names.check_read("/vm/a.qcow2".as_ref()).is_err());
        assert!(names.check_target_folder("/vm".as_ref()).is_err());
    }
}
