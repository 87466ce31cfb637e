//! A drawing of where everything lies: for the guest, in the image, and on the host.

use std::path::PathBuf;

use block::{Error, Result};
use filesystem::Check;
use report::{disk_map, map_html, map_svg};

use crate::Observer;
use crate::machine::Caching;
use crate::open::{OpenDisk, OpenOptions};
use crate::output::output_beside;

/// What is drawn, and where to.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The disk: an image file or a block device.
    pub disk: PathBuf,
    /// How it is opened.
    pub open: OpenOptions,
    /// The file to write: its name ends in `.svg` or `.html`.
    pub output: PathBuf,
    /// Whether that replaces a file that is there.
    pub force: bool,
}

/// Surveys the disk, and writes the drawing.
pub fn run(options: &Options, observer: &dyn Observer) -> Result<()> {
    let extension = options.output.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    let draw = match extension.as_deref() {
        Some("svg") => map_svg,
        Some("html" | "htm") => map_html,
        _ => {
            let what = "a map is written as .svg or .html";
            return Err(Error::invalid(what).path(options.output.display()));
        }
    };
    let disk = OpenDisk::open(&options.disk, &options.open, Caching::Direct)?;
    let stack = &disk.stack;
    stack.chain().check_readable()?;
    let output = output_beside(stack, &options.output, options.force, &[])?;
    let surveying = observer.waiting("reading the file systems' tables");
    let maps = stack.used_maps(Check::Quick)?;
    let survey = stack.survey(&maps)?;
    let map = disk_map(&options.open.shown(&options.disk), stack, &maps, &survey)?;
    let picture = draw(&map);
    drop(surveying);
    match extension.as_deref() {
        Some("svg") => output.write_text(&picture, observer),
        _ => output.write_page(&picture, &options.disk, observer),
    }
}
