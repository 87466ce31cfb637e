//! `copy --into`: several disks.

use leandisk::{Reported, confine, copy_all};
use report::{copy_all_text, to_json};

use crate::Failed;
use crate::arguments::CopyArguments;
use crate::output::{print, stdout_palette};
use crate::progress::Terminal;

/// Copies several disks, or those of an appliance, into a folder or a new appliance.
pub(crate) fn into(arguments: &CopyArguments) -> Result<(), Failed> {
    let Some(into) = &arguments.into else { return Ok(()) };
    let options = arguments.options_of_all(into);
    confine::run(arguments.confine.into(), confine::copy_all(&options))?;
    let observer = Terminal { style: arguments.progress };
    let Reported { document, ended } = copy_all::run(&options, &observer)?;
    let text = || copy_all_text(&document, stdout_palette());
    print(&if arguments.json { to_json(&document) } else { text() })?;
    ended.map_err(Failed::Told)
}
