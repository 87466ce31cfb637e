//! The target of a copy, as the broker has it: the names that it has until it is whole are changed for the reader, and no others.
//!
//! Invariant: the target's own name is given to a partial target alone, and nothing that has it is opened for writing, or removed.

use std::fs::File;
use std::path::{Path, PathBuf};

use block::{Result, TargetName};

use super::names::{Names, beyond};
use crate::new_file::names;
use crate::raw_file::RawFile;
use crate::target_names::{TargetNames, copied_mode};
use crate::target_options::FolderOptions;

/// Where a copy goes.
pub(super) struct Target {
    /// As the command line has it.
    path: PathBuf,
    names: TargetNames,
    is_published: bool,
}

impl Target {
    /// The target at `path`, if the command line names it so. It is no easier to read than the disks that the command line names.
    pub(super) fn begin(granted: &Names, path: &Path, mut options: FolderOptions) -> Result<Self> {
        granted.check_target(path, options.replace)?;
        options.mode &= granted.disks.iter().fold(0o777, |mode, disk| mode & copied_mode(disk));
        Ok(Self { path: path.to_owned(), names: TargetNames::find(path, options)?, is_published: false })
    }

    /// Its names, for what changes none.
    pub(super) fn names(&self) -> &TargetNames {
        &self.names
    }

    /// Whether it was made for the reader, which may read it therefore.
    pub(super) fn is_made(&self, path: &Path) -> bool {
        path == self.names.place.partial_path || (self.is_published && path == self.path)
    }

    pub(super) fn open(&self, name: TargetName) -> Result<Option<RawFile>> {
        self.check_unpublished(name)?;
        self.names.open(name)
    }

    pub(super) fn create(&self, name: TargetName) -> Result<RawFile> {
        self.check_unpublished(name)?;
        self.names.create(name)
    }

    pub(super) fn remove(&self, name: TargetName) -> Result<bool> {
        self.check_unpublished(name)?;
        self.names.remove(name)
    }

    pub(super) fn rename(&mut self, from: TargetName, to: TargetName) -> Result<()> {
        match (from, to) {
            (TargetName::Draft, TargetName::Checkpoint) | (TargetName::Partial, TargetName::Target) => {}
            _ => return Err(self.refused(from)),
        }
        self.names.rename(from, to)?;
        self.is_published |= to == TargetName::Target;
        Ok(())
    }

    /// `Refused` unless the descriptor is of what has the partial name.
    pub(super) fn complete(&self, partial: &File) -> Result<()> {
        match names(&self.names.place.partial_path, partial) {
            true => self.names.complete(partial),
            false => Err(self.refused(TargetName::Partial)),
        }
    }

    fn check_unpublished(&self, name: TargetName) -> Result<()> {
        match name {
            TargetName::Partial | TargetName::Checkpoint | TargetName::Draft => Ok(()),
            // What a guest may have written is no copy's.
            TargetName::Target | TargetName::Filling | TargetName::Filled | TargetName::FilledDraft => {
                Err(self.refused(name))
            }
        }
    }

    fn refused(&self, name: TargetName) -> block::Error {
        beyond(&self.names.path(name))
    }
}
