//! `copy --into`: several disks.

use std::path::PathBuf;

use leandisk::{Reported, confine, copy_all};
use report::{copy_all_text, to_json};

use crate::Failed;
use crate::arguments::CopyArguments;
use crate::output::{print, stdout_palette};
use crate::places::Places;
use crate::progress::watching;

/// Copies several disks, or those of an appliance or of a running guest, into a folder or a new appliance.
pub(crate) fn into(arguments: &CopyArguments) -> Result<(), Failed> {
    let Some(into) = &arguments.into else { return Ok(()) };
    let observer = watching(arguments.progress, arguments.background, &arguments.paths());
    let names: Vec<PathBuf> = arguments.sources().cloned().collect();
    let places = Places::begin(&names, &arguments.of_guests(into)?, &*observer)?;
    let mut options = arguments.options_of_all(into);
    let source = |disk: &leandisk::running::ReadDisk| copy_all::Source {
        disk: disk.disk.clone(),
        read_at: disk.read_at.clone(),
    };
    options.sources = places.disks.iter().map(source).collect();
    let closed = confine::run(arguments.confine.into(), confine::copy_all(&options).removing(places.made()));
    let copied = closed.and_then(|()| copy_all::run(&options, &*observer));
    let Reported { document, ended } = places.end(copied)?;
    let text = || copy_all_text(&document, stdout_palette());
    print(&if arguments.json { to_json(&document) } else { text() })?;
    ended.map_err(Failed::Told)
}
