//! Names that the user gave, for use cases that read more than disks.

use std::ffi::OsString;
use std::fs::File;
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

/// The names in a folder, in no order.
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
    std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.file_name())).collect()
}
