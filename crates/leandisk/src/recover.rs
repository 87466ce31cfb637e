//! What an interrupted change of a disk left: finished or undone.

use std::path::PathBuf;

use block::{Error, Result};
use claims::Act;
use report::RecoverDocument;

use crate::in_place::EditSession;
use crate::machine::{Caching, Machine, ThisHost};
use crate::open::{Location, OpenOptions, check_claims};

/// What is recovered.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The disk: an image file or a block device that nobody else uses.
    pub disk: PathBuf,
    /// How it is opened.
    pub open: OpenOptions,
    /// Where the journal is, if not beside the disk.
    pub journal: Option<PathBuf>,
}

/// Finishes or undoes what was interrupted.
pub fn run(options: &Options) -> Result<RecoverDocument> {
    run_on(&ThisHost, options)
}

/// The same on another machine than this host.
pub fn run_on(machine: &dyn Machine, options: &Options) -> Result<RecoverDocument> {
    let location = Location { machine, path: &options.disk, options: &options.open };
    location.check_on_host()?;
    if !machine.exists(&options.disk)? {
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(Error::io("open", missing).path(options.disk.display()));
    }
    let disk = options.disk.display().to_string();
    let found = machine.find_journal(&options.disk, options.journal.as_deref())?;
    let Some(found) = found else { return Ok(RecoverDocument::new(&disk, None)) };
    found.header()?;
    let chain = location.open_chain(Caching::PageCache)?;
    let resolver = location.resolver()?;
    check_claims(&chain, &*resolver, Act::Change)?;
    let opened = EditSession::open_interrupted(machine, &chain, &*resolver)?;
    // What is refused is refused before a byte changes.
    let (journal, claim) = found.prove(machine.disk_name(&options.disk)?, &opened)?;
    let opened = match image::live::gives_back(&chain).unit_bytes {
        Some(_) => EditSession::begin_thin(opened)?,
        None => EditSession::begin(opened)?,
    };
    let recovery = engine::recover(opened.disk(), journal.file(), &claim)?;
    if let EditSession::Thin(disk) = &opened {
        engine::tidy_up(&**disk)?;
    }
    opened.close()?;
    drop(opened);
    journal.remove()?;
    Ok(RecoverDocument::new(&disk, Some(&recovery)))
}
