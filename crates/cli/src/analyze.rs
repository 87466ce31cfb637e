//! `leandisk analyze`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use block::{Error, HostFile, Result};
use engine::{ZeroCount, count_zeros};
use filesystem::Check;
use plan::CopyOptions;
use report::{AnalyzeSubject, analyze_document, analyze_text, to_json, write_file_lines};
use stack::{Stack, UsedMaps};

use crate::arguments::AnalyzeArguments;
use crate::disk::{Caching, OpenDisk};
use crate::{print, stdout_palette};

pub(crate) fn run(arguments: &AnalyzeArguments) -> Result<()> {
    let disk = OpenDisk::open(&arguments.disk, &arguments.open, Caching::Direct)?;
    let stack = &disk.stack;
    stack.chain().check_readable()?;
    if let Some(path) = &arguments.files {
        check_is_no_part_of(stack, path)?;
    }
    let maps = stack.used_maps(Check::Quick)?;
    let survey = stack.survey(&maps)?;
    if let Some(path) = &arguments.files {
        write_whole(path, |out| write_file_lines(&survey, out))?;
    }
    let zeros = if arguments.zeros { Some(zeros(stack, &maps, survey.waste.unit_bytes)?) } else { None };
    let subject = AnalyzeSubject {
        path: &arguments.disk.display().to_string(),
        stack,
        survey: &survey,
        zeros,
        top: arguments.top,
    };
    let document = analyze_document(&subject)?;
    if arguments.json {
        print(&to_json(&document));
    } else {
        print(&analyze_text(&document, stdout_palette()));
    }
    Ok(())
}

/// Reads what a copy would read.
fn zeros(stack: &Stack, maps: &UsedMaps, unit_bytes: u64) -> Result<ZeroCount> {
    let plan = crate::copy::plan(CopyOptions::default(), stack, maps)?;
    let threads = std::thread::available_parallelism().map_or(4, |count| count.get() * 2);
    count_zeros(&**stack.chain(), plan.reads.iter(), unit_bytes, threads)
}

/// Refuses to write over a file of the disk that was asked about.
fn check_is_no_part_of(stack: &Stack, path: &Path) -> Result<()> {
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(()) };
    let identity = Some((metadata.dev(), metadata.ino()));
    if metadata.file_type().is_block_device()
        || stack.chain().files().iter().any(|file| file.identity() == identity)
    {
        let what = "is a part of the disk, or a block device: a report is not written there";
        return Err(Error::refused(what).path(path.display()));
    }
    Ok(())
}

fn write_whole(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>) -> Result<()> {
    let failed = |error| Error::io("write", error).path(path.display());
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path).map_err(failed)?);
    write(&mut out).map_err(failed)?;
    out.flush().map_err(failed)
}
