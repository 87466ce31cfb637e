//! `leandisk create`.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use block::{Error, HostFile as _, Result};
use engine::{CreateJob, Provision as When};
use image::{CreateOptions, Format};
use os::{NewFile, SourceFile};
use report::{CreateSubject, create_document, create_text, to_json};

use crate::arguments::{CreateArguments, OpenArguments};
use crate::copy::format_keys;
use crate::disk::check_replaceable;
use crate::progress::{Progress, cancel_on_signal};
use crate::{print, stdout_palette};

/// Workers that zero: enough to keep a storage busy.
const THREAD_COUNT: usize = 4;

pub(crate) fn run(arguments: &CreateArguments) -> Result<()> {
    let started = Instant::now();
    let by_extension = || Format::from_extension(arguments.disk.extension()?.to_str()?);
    let format = arguments.format.or_else(by_extension).ok_or_else(|| {
        Error::invalid("the file's extension names no disk format")
            .path(arguments.disk.display())
            .hint("name the format with -O, such as -O qcow2")
    })?;
    let provision = arguments.provision.when();
    let options = CreateOptions {
        virtual_bytes: arguments.size,
        sector_bytes: 512,
        compress: false,
        keys: format_keys(&arguments.option)?,
        identity_seed: uuid::Uuid::new_v4().as_u128(),
        created_unix_seconds: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        file_name: arguments.disk.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        target_is_dirty: false,
    };
    let writer = image::create(format, options)?;
    if arguments.disk.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return Err(Error::refused("only a file is made, or replaced").path(arguments.disk.display()));
    }
    check_replaceable(&arguments.disk, &OpenArguments { format: None, allow_path: Vec::new() })?;
    let cancelled = cancel_on_signal()?;
    let target = NewFile::create_direct(&arguments.disk, arguments.force)?;
    // A disk in use is written over and over.
    target.overwrite_in_place();
    let zeroed_bytes = if provision == When::Eager { arguments.size } else { 0 };
    let progress = Progress::new(arguments.progress, "zero", zeroed_bytes, cancelled);
    let job = CreateJob {
        writer,
        target: &target,
        virtual_bytes: arguments.size,
        provision,
        thread_count: THREAD_COUNT,
    };
    let totals = job.run(&progress).map_err(|error| error.path(arguments.disk.display()))?;
    progress.finish();
    arguments.provision.mark(&target);
    target.publish()?;
    let made = SourceFile::open(&arguments.disk)?;
    let document = create_document(&CreateSubject {
        path: &arguments.disk.display().to_string(),
        format: format.name(),
        virtual_bytes: arguments.size,
        provision: arguments.provision.word(),
        totals,
        allocated_bytes: made.allocated_bytes()?,
        host_filesystem: made.host_filesystem(),
        host_extents: made.host_extents()?.map(|extents| extents.len() as u64),
        elapsed_seconds: started.elapsed().as_secs_f64(),
    });
    print(&if arguments.json { to_json(&document) } else { create_text(&document, stdout_palette()) })
}
