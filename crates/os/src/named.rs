//! Names that the user gave, for use cases that read more than disks.

use std::ffi::OsString;
use std::fs::{DirEntry, File};
use std::io;
use std::path::Path;

use block::{Error, Result};

use crate::new_file::{folder_of, rename_to_free_name, sync_folder};
use crate::requests::{Request, client};

/// Opens a file for reading, whatever it is.
pub fn open_input(path: &Path) -> Result<File> {
    if let Some(broker) = client() {
        let ((), file) = broker.open(&Request::OpenInput(path.into()))?;
        return Ok(file.into());
    }
    File::open(path).map_err(|error| Error::io("read", error).path(path.display()))
}

/// The names in a folder but for those of folders, in no order.
pub fn names_in(folder: &Path) -> Result<Vec<OsString>> {
    if let Some(broker) = client() {
        return broker.ask(&Request::NamesIn(folder.into()));
    }
    list(folder).map_err(|error| Error::io("list", error).path(folder.display()))
}

/// Gives a file another name in its folder, for good when this returns. `Refused` if that stands for something. For processes that are not
/// confined.
pub fn move_for_good(from: &Path, to: &Path) -> Result<()> {
    rename_to_free_name(from, to)?;
    sync_folder(folder_of(to))
}

/// Removes a file or socket that this program made.
pub fn remove_made(path: &Path) -> Result<()> {
    match client() {
        Some(broker) => broker.ask(&Request::Remove(path.into())),
        None => remove(path),
    }
}

/// [`remove_made`], by a process that is not confined.
pub(crate) fn remove(path: &Path) -> Result<()> {
    std::fs::remove_file(path).map_err(|error| Error::io("remove", error).path(path.display()))
}

/// Makes a folder that targets are made in, unless it is there: whether it was made. `Refused` if something else has the name.
pub fn make_folder(path: &Path) -> Result<bool> {
    match client() {
        Some(broker) => broker.ask(&Request::MakeFolder(path.into())),
        None => make_folder_here(path),
    }
}

/// Removes a folder that [`make_folder`] made, if nothing is in it.
pub fn remove_folder(path: &Path) {
    match client() {
        Some(broker) => broker.ask(&Request::RemoveFolder(path.into())).unwrap_or_default(),
        None => remove_folder_here(path),
    }
}

/// [`make_folder`], by a process that is not confined.
pub(crate) fn make_folder_here(path: &Path) -> Result<bool> {
    match std::fs::create_dir(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match path.is_dir() {
            true => Ok(false),
            false => Err(Error::refused("is no folder").path(path.display())),
        },
        Err(error) => Err(Error::io("make the folder", error).path(path.display())),
    }
}

/// [`remove_folder`], by a process that is not confined.
pub(crate) fn remove_folder_here(path: &Path) {
    let _ = std::fs::remove_dir(path);
}

pub(crate) fn list(folder: &Path) -> io::Result<Vec<OsString>> {
    let entries = std::fs::read_dir(folder)?;
    // What the folder itself says of its entries: a file system whose server is gone answers nothing any more, but is mounted on a folder.
    let is_folder = |entry: &DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    entries
        .filter(|entry| !entry.as_ref().is_ok_and(is_folder))
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_left_out_and_links_to_them_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("folder")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink("folder", at("link")).unwrap();
        let mut names = names_in(dir.path()).unwrap();
        names.sort();
        assert_eq!(names, ["file", "link"]);
    }
}
