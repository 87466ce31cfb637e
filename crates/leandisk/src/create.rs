//! A new, empty disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use block::{Error, HostFile as _, Result};
use engine::{CreateJob, Provision as When};
use image::{CreateOptions, Format};
use os::{NewFile, SourceFile};
use report::{CreateDocument, CreateSubject, create_document};

use crate::copy::format_keys;
use crate::open::{Location, OpenOptions};
use crate::{Observer, Provision};

/// Workers that zero: enough to keep a storage busy.
const THREAD_COUNT: usize = 4;

/// What is created.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The image file to create.
    pub disk: PathBuf,
    /// Bytes of the disk.
    pub size: u64,
    /// The image's format; `None` for what the file's extension says.
    pub format: Option<Format>,
    /// Options of the format, such as `subformat=fixed`.
    pub option: Vec<String>,
    /// When its storage is allocated.
    pub provision: Provision,
    /// Whether a file that is there is replaced.
    pub force: bool,
}

/// A new image at `path`, of a disk of `virtual_bytes`, with nothing in it: its identity is drawn, and it is made now.
pub(crate) fn new_image(path: &Path, virtual_bytes: u64) -> CreateOptions {
    CreateOptions {
        virtual_bytes,
        sector_bytes: 512,
        compress: false,
        keys: BTreeMap::new(),
        identity_seed: uuid::Uuid::new_v4().as_u128(),
        created_unix_seconds: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        file_name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        target_is_dirty: false,
    }
}

/// Creates the disk. Nothing is under its name before it is complete.
pub fn run(options: &Options, observer: &dyn Observer) -> Result<CreateDocument> {
    let started = Instant::now();
    let by_extension = || Format::from_extension(options.disk.extension()?.to_str()?);
    let format = options.format.or_else(by_extension).ok_or_else(|| {
        Error::invalid("the file's extension names no disk format")
            .path(options.disk.display())
            .hint("name the format with -O, such as -O qcow2")
    })?;
    let provision = options.provision.when();
    let keys = format_keys(&options.option)?;
    let create = CreateOptions { keys, ..new_image(&options.disk, options.size) };
    let writer = image::create(format, create)?;
    if options.disk.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return Err(Error::refused("only a file is made, or replaced").path(options.disk.display()));
    }
    Location::here(&options.disk, &OpenOptions::default()).check_replaceable()?;
    let cancelled = observer.cancel()?;
    let target = NewFile::create_direct(&options.disk, options.force)?;
    // A disk in use is written over and over.
    target.overwrite_in_place();
    let zeroed_bytes = if provision == When::Eager { options.size } else { 0 };
    let progress = observer.progress("zero", zeroed_bytes, cancelled);
    let job = CreateJob {
        writer,
        target: &target,
        virtual_bytes: options.size,
        provision,
        thread_count: THREAD_COUNT,
    };
    let totals = job.run(&*progress).map_err(|error| error.path(options.disk.display()))?;
    progress.finish();
    options.provision.mark(&target, observer);
    target.publish()?;
    let made = SourceFile::open(&options.disk)?;
    Ok(create_document(&CreateSubject {
        path: &options.disk.display().to_string(),
        format: format.name(),
        virtual_bytes: options.size,
        provision: options.provision.word(),
        totals,
        allocated_bytes: made.allocated_bytes()?,
        host_filesystem: made.host_filesystem(),
        host_extents: made.host_extents()?.map(|extents| extents.len() as u64),
        elapsed_seconds: started.elapsed().as_secs_f64(),
    }))
}
