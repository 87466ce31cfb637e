//! Opening a disk, and what every use case asks before it goes on.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Error, HostFile, LiveDisk, Result, TargetFile};
use claims::{Act, Claims};
use engine::Unwritten;
use image::live::LiveOptions;
use image::{Chain, Format, Purpose, Resolver};
use journal::Standing;
use os::{Granted, SourceFile, journal_path, journal_standing};
use stack::Stack;

/// How a disk is opened.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct OpenOptions {
    /// The format of its file; `None` to detect it.
    pub format: Option<Format>,
    /// Files that the image may refer to, and folders with such files, besides the image's own folder.
    pub allow_path: Vec<PathBuf>,
}

/// How bulk data is read and written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caching {
    /// Past the page cache, where the file system can do that.
    Direct,
    /// Through it.
    PageCache,
    /// Through it, and no more than is asked for.
    Metadata,
}

/// An open disk: its images, volumes and file systems. Nothing of it is ever written through this.
pub struct OpenDisk {
    pub(crate) stack: Stack,
}

impl OpenDisk {
    /// Opens the disk at `path`, and what it refers to as far as that is granted.
    /// `Refused` if a change of it in place was interrupted.
    pub fn open(path: &Path, options: &OpenOptions, caching: Caching) -> Result<Self> {
        check_nothing_pending(path)?;
        let disk = Self::open_as_it_is(path, options, caching)?;
        // A parent may be what was changed.
        disk.stack.chain().files().iter().try_for_each(|file| check_nothing_pending(file.path()))?;
        Ok(disk)
    }

    /// As [`Self::open`], also if a change of it was interrupted: its volumes may contradict themselves.
    pub fn open_as_it_is(path: &Path, options: &OpenOptions, caching: Caching) -> Result<Self> {
        let chain = open_chain(path, options, caching)?;
        Ok(Self { stack: Stack::open(chain)? })
    }

    /// Its layers: the images, what is on them, and how they lie over each other.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// `Refused` if another program writes to the disk: what is read of it may not fit together. It was opened at `path`, by these
    /// options.
    pub fn check_unwritten(&self, path: &Path, options: &OpenOptions) -> Result<()> {
        check_claims(self.stack.chain(), &Gate::new(path, options)?, Act::Read)
    }

    /// Bytes on the host, of all files of the chain.
    pub fn allocated_bytes(&self) -> Result<u64> {
        self.stack.chain().files().iter().map(HostFile::allocated_bytes).sum()
    }
}

/// `Refused` if a change in place was interrupted: until it is finished the disk's volumes may contradict themselves.
pub(crate) fn check_nothing_pending(path: &Path) -> Result<()> {
    let journal = journal_path(path);
    match journal_standing(path) {
        Standing::Absent => return Ok(()),
        Standing::Journal(_) => {}
        Standing::Other(why) => return Err(journal::in_the_way(&journal, &why)),
    }
    let journal = journal.display();
    Err(Error::refused(format!(
        "a change of this disk was interrupted, and '{journal}' says how to finish it"
    ))
    .hint(format!("leandisk recover '{}'", path.display()))
    .path(path.display()))
}

/// Takes the disk into use as a change of it would, but that nothing is written: to see whether it can be.
pub(crate) fn check_usable(path: &Path, options: &OpenOptions) -> Result<Box<dyn LiveDisk>> {
    let chain = open_chain(path, options, Caching::Metadata)?;
    let files = chain.links()[0].layer.files().iter();
    let files = files.map(|file| Arc::new(Unwritten::new(file.clone())) as Arc<dyn TargetFile>).collect();
    image::live::open(chain, files, LiveOptions::default())
}

/// `Refused` if somebody else needs the disk in a way that forbids the act.
pub(crate) fn check_claims(chain: &Chain, gate: &Gate, act: Act) -> Result<()> {
    let claims = match act {
        Act::Read => Claims::of_users(chain),
        Act::Change | Act::Replace => Claims::on_disk(chain, gate),
    };
    claims.check(act)
}

/// `Refused` if the file at `path`, if there is one, must not be replaced by another.
pub(crate) fn check_replaceable(path: &Path, options: &OpenOptions) -> Result<()> {
    // What is in the journal of a disk that is replaced would be held against the new one.
    check_nothing_pending(path)?;
    if !path.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Ok(());
    }
    let file: Arc<dyn HostFile> = SourceFile::open_for_metadata(path)?;
    Claims::on_file(&file, &Gate::new(path, options)?).check(Act::Replace)
}

/// What is wrong if a volume is not there any more after a change of it.
pub(crate) fn lost() -> Error {
    Error::mismatch("a volume is no longer recognised")
}

/// Opens the container alone.
pub(crate) fn open_chain(path: &Path, options: &OpenOptions, caching: Caching) -> Result<Chain> {
    let text = path.to_string_lossy();
    if text.starts_with("nbd://") || text.starts_with("nbd+unix://") {
        return Err(Error::unsupported(format!("{text}: disks behind NBD cannot be read yet"))
            .hint("name the file or block device itself"));
    }
    let file = match caching {
        Caching::Direct => SourceFile::open_direct(path)?,
        Caching::PageCache => SourceFile::open(path)?,
        Caching::Metadata => SourceFile::open_for_metadata(path)?,
    };
    let gate = Gate::new(path, options)?;
    Chain::open(file, image::OpenOptions { format: options.format }, &gate)
}

/// The images' references go through what the user granted.
pub(crate) struct Gate {
    granted: Granted,
}

impl Gate {
    /// What is granted to the disk at `path`.
    pub(crate) fn new(path: &Path, options: &OpenOptions) -> Result<Self> {
        Ok(Self { granted: Granted::new(path, &options.allow_path)? })
    }
}

impl Resolver for Gate {
    fn open(&self, from: &dyn HostFile, name: &str, _purpose: Purpose) -> Result<Arc<dyn HostFile>> {
        Ok(self.granted.open(from.path(), name)?)
    }

    fn siblings(&self, from: &dyn HostFile) -> Result<Vec<OsString>> {
        let folder = from.path().parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let failed = |error| Error::io("list", error).path(folder.display());
        let entries = std::fs::read_dir(folder).map_err(failed)?;
        entries.map(|entry| entry.map(|entry| entry.file_name()).map_err(failed)).collect()
    }

    fn open_sibling(&self, from: &dyn HostFile, name: &OsStr) -> Result<Arc<dyn HostFile>> {
        Ok(self.granted.open_beside(from.path(), name)?)
    }
}
