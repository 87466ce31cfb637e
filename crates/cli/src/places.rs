//! Where disks are read: disks of running guests and disks that are served are not read where the command line says.

use std::path::{Path, PathBuf};

use block::{Error, Result};
use leandisk::running::{Address, ReadDisk};
use leandisk::{Observer, OpenOptions, moment, running};

use crate::output::tell;

/// Where a disk is read.
pub(crate) enum Place {
    /// Where the command line says.
    Here,
    /// At the export of a running guest's disk.
    Guest(Box<running::Moment>),
    /// At a server on this host.
    Served(Box<moment::Disk>, String),
}

impl Place {
    /// Where it is opened, if elsewhere than the command line says, and what it is called there.
    pub(crate) fn elsewhere(&self) -> Option<(PathBuf, String)> {
        match self {
            Self::Here => None,
            Self::Guest(guest) => Some((guest.disk().source.clone(), guest.disk().shown.clone())),
            Self::Served(served, shown) => Some((served.source().to_owned(), shown.clone())),
        }
    }

    /// Has the disk be opened there.
    pub(crate) fn put_in(&self, disk: &mut PathBuf, open: &mut OpenOptions) {
        if let Some((source, shown)) = self.elsewhere() {
            (*disk, open.shown_as) = (source, Some(shown));
        }
    }

    /// What was made, and is removed by a process that is closed in by then.
    pub(crate) fn made(&self) -> Option<&Path> {
        match self {
            Self::Here | Self::Served(..) => None,
            Self::Guest(guest) => Some(guest.made()),
        }
    }
}

/// How a disk of a running guest is read that is only looked at.
pub(crate) fn looking() -> running::Options {
    running::Options { freeze: running::Freeze::Never, ..running::Options::default() }
}

/// Does something with a disk, which may be one of a running guest, exported meanwhile, or one that is served, kept as it is meanwhile.
pub(crate) fn at<T>(
    disk: &Path,
    how: &running::Options,
    observer: &dyn Observer,
    act: impl FnOnce(&mut Place) -> Result<T>,
) -> Result<T> {
    let mut place = Place::begin(disk, how, observer)?;
    let done = act(&mut place);
    place.end(disk, done)
}

impl Place {
    pub(crate) fn begin(disk: &Path, how: &running::Options, observer: &dyn Observer) -> Result<Self> {
        if let Some(address) = Address::of(disk) {
            return Ok(Self::Guest(Box::new(running::Moment::begin(&address?, how, observer)?)));
        }
        let served = moment::Disk::begin(disk, how.overlay_folder.as_deref())?;
        Ok(served.map_or(Self::Here, |served| Self::Served(Box::new(served), disk.display().to_string())))
    }

    /// Removes what was made for it, whatever was done there.
    pub(crate) fn end<T>(self, disk: &Path, done: Result<T>) -> Result<T> {
        let ended = match self {
            Self::Here | Self::Served(..) => Ok(()),
            Self::Guest(guest) => guest.end(),
        };
        let again = format!("something may be left in QEMU: leandisk recover '{}'", disk.display());
        match (done, ended) {
            (done, Ok(())) => done,
            (Ok(_), Err(error)) => Err(error.hint(again)),
            (Err(error), Err(left)) => {
                tell(&format!("{left}; {again}"));
                Err(error)
            }
        }
    }
}

/// Where several disks are read: those of one running guest as they are at one moment, and those that are served.
pub(crate) struct Places {
    pub(crate) guests: running::Guests,
    served: Vec<moment::Disk>,
    /// In the order of their names. A guest's name stands for all of its disks.
    pub(crate) disks: Vec<ReadDisk>,
}

impl Places {
    pub(crate) fn begin(names: &[PathBuf], how: &running::Options, observer: &dyn Observer) -> Result<Self> {
        let (guests, mut disks) = running::Guests::begin(names, how, observer)?;
        let mut served = Vec::new();
        for (named, disk) in names.iter().enumerate().filter(|(_, name)| !Address::is_one(name)) {
            let found = moment::Disk::begin(disk, how.overlay_folder.as_deref())?;
            let read_at = found.as_ref().map(|found| found.source().to_owned());
            disks.push(ReadDisk { read_at, ..ReadDisk::here(named, disk.clone()) });
            served.extend(found);
        }
        disks.sort_by_key(|disk| disk.named);
        Ok(Self { guests, served, disks })
    }

    /// What was made, and is removed by a process that is closed in by then.
    pub(crate) fn made(&self) -> impl Iterator<Item = &Path> {
        self.guests.made()
    }

    /// Removes what was made for them, whatever was done there.
    pub(crate) fn end<T, E: From<Error>>(self, done: Result<T, E>) -> Result<T, E> {
        drop(self.served);
        match (done, self.guests.end()) {
            (done, Ok(())) => done,
            (Ok(_), Err(left)) => Err(left.into()),
            (Err(error), Err(left)) => {
                tell(&match left.hint_text() {
                    Some(hint) => format!("{left}; {hint}"),
                    None => left.to_string(),
                });
                Err(error)
            }
        }
    }
}
