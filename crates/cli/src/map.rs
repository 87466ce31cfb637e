//! `leandisk map`.

use block::{Error, Result};
use filesystem::Check;
use report::{disk_map, map_html, map_svg};

use crate::analyze::output_beside;
use crate::arguments::{MapArguments, ProgressStyle};
use crate::disk::{Caching, OpenDisk};
use crate::progress::waiting;

pub(crate) fn run(arguments: &MapArguments) -> Result<()> {
    let extension = arguments.output.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    let draw = match extension.as_deref() {
        Some("svg") => map_svg,
        Some("html" | "htm") => map_html,
        _ => {
            let what = "a map is written as .svg or .html";
            return Err(Error::invalid(what).path(arguments.output.display()));
        }
    };
    let disk = OpenDisk::open(&arguments.disk, &arguments.open, Caching::Direct)?;
    let stack = &disk.stack;
    stack.chain().check_readable()?;
    let output = output_beside(stack, &arguments.output, arguments.force, &[])?;
    let surveying = waiting(ProgressStyle::Auto, "reading the file systems' tables");
    let maps = stack.used_maps(Check::Quick)?;
    let survey = stack.survey(&maps)?;
    let map = disk_map(&arguments.disk.display().to_string(), stack, &maps, &survey)?;
    let picture = draw(&map);
    drop(surveying);
    match extension.as_deref() {
        Some("svg") => output.write_text(&picture),
        _ => output.write_page(&picture, &arguments.disk),
    }
}
