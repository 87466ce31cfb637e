//! `leandisk info`.

use block::Result;
use claims::Claims;
use filesystem::Check;
use report::{info_document, info_text, to_json};

use crate::arguments::InfoArguments;
use crate::disk::{Caching, Gate, OpenDisk};
use crate::{print, stdout_palette};

pub(crate) fn run(arguments: &InfoArguments) -> Result<()> {
    let disk = OpenDisk::open(&arguments.disk, &arguments.open, Caching::Direct)?;
    let maps = disk.stack.used_maps(Check::Glance)?;
    let gate = Gate::new(&arguments.disk, &arguments.open)?;
    let claims = Claims::on_disk(disk.stack.chain(), &gate);
    let document = info_document(&arguments.disk.display().to_string(), &disk.stack, &maps, &claims)?;
    print(&if arguments.json { to_json(&document) } else { info_text(&document, stdout_palette()) })
}
