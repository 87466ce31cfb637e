//! The machine on which the disks of appliances have names: all else is as on the machine beneath.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use block::{HostFile, Result, TargetFile};
use image::Resolver;
use journal::{DiskName, Header, Standing};
use os::{FolderOptions, OutputStream, StoragePromise};

use super::{Appliance, Disk, Members};
use crate::machine::{Caching, CopyFolder, FoundJournal, HeldFile, HeldJournal, Machine, Named};

/// A machine with the disks of appliances.
pub struct Inside<'a> {
    base: &'a dyn Machine,
    appliances: &'a [Appliance],
}

impl<'a> Inside<'a> {
    /// That of `base` with the disks of all of `appliances`.
    pub fn new(base: &'a dyn Machine, appliances: &'a [Appliance]) -> Self {
        Self { base, appliances }
    }

    /// A disk by the numbers of its appliance and of its place there.
    pub(crate) fn disk_of(&self, appliance: usize, disk: usize) -> &'a Disk {
        &self.appliances[appliance].disks[disk]
    }

    fn disk(&self, path: &Path) -> Option<(&'a Appliance, &'a Disk)> {
        let of = |appliance: &'a Appliance| {
            appliance.disks.iter().find(|disk| disk.path == path).map(|disk| (appliance, disk))
        };
        self.appliances.iter().find_map(of)
    }

    /// The archive that the path is a member of, or leads into.
    fn archive_of(&self, path: &Path) -> Option<&'a Appliance> {
        let is_within =
            |appliance: &&Appliance| appliance.archive.is_some() && path.starts_with(&appliance.path);
        self.appliances.iter().filter(is_within).find(|appliance| path != appliance.path)
    }

    /// The files of the host that hold the bytes of the file of that name.
    fn holders(&self, path: &Path) -> Vec<PathBuf> {
        if let Some(archive) = self.archive_of(path) {
            return vec![archive.path.clone()];
        }
        let chunks = self.disk(path).map(|(_, disk)| disk.chunk_paths());
        chunks.filter(|chunks| !chunks.is_empty()).unwrap_or_else(|| vec![path.to_owned()])
    }

    /// The first of them, which stands for all.
    fn holder(&self, path: &Path) -> PathBuf {
        self.holders(path).swap_remove(0)
    }

    fn members(&self, appliance: &Appliance, caching: Caching) -> Result<Option<Members>> {
        let Some(archive) = appliance.archive.clone() else { return Ok(None) };
        let file = self.base.open(&appliance.path, caching)?;
        Ok(Some(Members { file, path: appliance.path.clone(), archive }))
    }
}

impl Machine for Inside<'_> {
    fn thread_count(&self) -> usize {
        self.base.thread_count()
    }

    fn checkpoint_interval(&self) -> Duration {
        self.base.checkpoint_interval()
    }

    fn named(&self, path: &Path) -> Named {
        match self.holders(path).iter().all(|holder| holder == path) {
            true => self.base.named(path),
            false => Named::File,
        }
    }

    fn storage_of(&self, path: &Path) -> Result<Vec<(u64, u64)>> {
        let all = self.holders(path).into_iter().map(|holder| self.base.storage_of(&holder));
        Ok(all.collect::<Result<Vec<_>>>()?.concat())
    }

    fn copied_mode(&self, path: &Path) -> u32 {
        self.base.copied_mode(&self.holder(path))
    }

    fn copy_folder(&self, path: &Path, options: FolderOptions) -> Result<Box<dyn CopyFolder + '_>> {
        self.base.copy_folder(path, options)
    }

    fn make_folder(&self, path: &Path) -> Result<bool> {
        self.base.make_folder(path)
    }

    fn remove_folder(&self, path: &Path) {
        self.base.remove_folder(path);
    }

    fn copy_device(&self, path: &Path) -> Result<Box<dyn TargetFile>> {
        self.base.copy_device(path)
    }

    fn output(&self) -> Result<OutputStream> {
        self.base.output()
    }

    fn kept(&self, path: &Path) -> StoragePromise {
        self.base.kept(path)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.base.exists(path)
    }

    fn free_bytes(&self, path: &Path) -> Result<u64> {
        self.base.free_bytes(path)
    }

    fn open(&self, path: &Path, caching: Caching) -> Result<Arc<dyn HostFile>> {
        match self.disk(path) {
            None => self.base.open(path, caching),
            Some((appliance, disk)) => disk.open(self.base, appliance, caching),
        }
    }

    fn hold(&self, path: &Path) -> Result<Arc<dyn HeldFile>> {
        self.base.hold(path)
    }

    fn resolver(&self, path: &Path, allow_path: &[PathBuf]) -> Result<Box<dyn Resolver>> {
        let of_archive = self.archive_of(path);
        let of_folder = self.disk(path).map(|(appliance, _)| appliance);
        let Some(appliance) = of_archive.or(of_folder) else { return self.base.resolver(path, allow_path) };
        match self.members(appliance, Caching::Metadata)? {
            Some(members) => Ok(Box::new(members)),
            None => self.base.resolver(&appliance.path, allow_path),
        }
    }

    fn journal_path(&self, path: &Path) -> PathBuf {
        self.base.journal_path(&self.holder(path))
    }

    fn disk_name(&self, path: &Path) -> Result<DiskName> {
        self.base.disk_name(&self.holder(path))
    }

    fn journal_standing(&self, path: &Path) -> Standing {
        self.base.journal_standing(&self.holder(path))
    }

    fn check_journal_place(&self, path: &Path, stated: Option<&Path>) -> Result<()> {
        self.base.check_journal_place(path, stated)
    }

    fn create_journal(
        &self,
        path: &Path,
        stated: Option<&Path>,
        header: Header,
    ) -> Result<Box<dyn HeldJournal + '_>> {
        self.base.create_journal(path, stated, header)
    }

    fn find_journal(&self, path: &Path, stated: Option<&Path>) -> Result<Option<Box<dyn FoundJournal + '_>>> {
        self.base.find_journal(path, stated)
    }
}
