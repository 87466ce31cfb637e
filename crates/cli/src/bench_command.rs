//! `leandisk bench`: what provisioning costs on the user's own storage.

use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use bench::FirstWrite;
use block::{Error, Result};
use engine::Provision as When;
use report::{FirstWriteSubject, first_write_document, first_write_page, first_write_text, to_json};

use crate::analyze::write_whole;
use crate::arguments::{BenchCommand, FirstWriteArguments, Provision};
use crate::progress::{Progress, cancel_on_signal};
use crate::serve::open_direct;
use crate::{print, stdout_palette};

pub(crate) fn run(command: &BenchCommand) -> Result<()> {
    match command {
        BenchCommand::FirstWrite(arguments) => first_write(arguments),
    }
}

fn first_write(arguments: &FirstWriteArguments) -> Result<()> {
    let started = Instant::now();
    let mut provisions: Vec<_> = arguments.provision.iter().map(|provision| when(*provision)).collect();
    let mut formats = arguments.format.clone();
    without_repetitions(&mut provisions);
    without_repetitions(&mut formats);
    let bench = FirstWrite {
        dir: &arguments.dir,
        virtual_bytes: arguments.size,
        write_bytes: usize::try_from(arguments.write).expect("the parser bounds it"),
        passes: usize::from(arguments.passes),
        iterations: usize::from(arguments.iterations),
        formats: &formats,
        provisions: &provisions,
        keeps: arguments.keep,
        open: &open_direct,
    };
    let cancelled = cancel_on_signal()?;
    let progress = Progress::new(arguments.progress, "write", bench.total_bytes(), cancelled, None);
    let outcome = bench.run(&progress)?;
    progress.finish();
    let document = first_write_document(&FirstWriteSubject {
        dir: &arguments.dir.display().to_string(),
        virtual_bytes: arguments.size,
        write_bytes: arguments.write,
        iterations: u64::from(arguments.iterations),
        outcome: &outcome,
        elapsed_seconds: started.elapsed().as_secs_f64(),
    });
    if let Some(path) = &arguments.html {
        write_page(path, &first_write_page(&document))?;
    }
    print(&if arguments.json { to_json(&document) } else { first_write_text(&document, stdout_palette()) });
    Ok(())
}

/// A new file, or another regular file's new contents.
fn write_page(path: &Path, page: &str) -> Result<()> {
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return Err(Error::refused("a report is written to a file").path(path.display()));
    }
    write_whole(path, |out| out.write_all(page.as_bytes()))
}

fn when(provision: Provision) -> When {
    match provision {
        Provision::Thin => When::Thin,
        Provision::Lazy => When::Lazy,
        Provision::Eager => When::Eager,
    }
}

/// What is named twice is measured once.
fn without_repetitions<T: PartialEq + Copy>(values: &mut Vec<T>) {
    let mut seen = Vec::new();
    values.retain(|value| {
        let is_new = !seen.contains(value);
        seen.push(*value);
        is_new
    });
}
