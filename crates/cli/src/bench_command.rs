//! `leandisk bench`: what provisioning and fragmentation cost on the user's own storage.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bench::{FirstWrite, Fragmentation, HostKind, HostVolume, Order as Turns, Workload};
use block::{Error, Result};
use engine::Provision as When;
use report::{
    FirstWriteSubject, FragmentationSubject, first_write_document, first_write_page, first_write_text,
    fragmentation_document, fragmentation_page, fragmentation_text, to_json,
};

use crate::arguments::{
    BenchCommand, FirstWriteArguments, FragmentationArguments, HostFilesystem, Order, Provision,
};
use crate::output::OutputFile;
use crate::progress::{Progress, cancel_on_signal};
use crate::serve::open_direct;
use crate::{print, stdout_palette};

pub(crate) fn run(command: &BenchCommand) -> Result<()> {
    match command {
        BenchCommand::FirstWrite(arguments) => first_write(arguments),
        BenchCommand::Fragmentation(arguments) => fragmentation(arguments),
    }
}

fn first_write(arguments: &FirstWriteArguments) -> Result<()> {
    let started = Instant::now();
    let page = prepare_page(arguments.html.as_deref(), arguments.force)?;
    let mut provisions: Vec<_> = arguments.provision.iter().map(|provision| when(*provision)).collect();
    let mut formats = arguments.formats.clone();
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
    let progress = Progress::new(arguments.progress, "write", bench.total_bytes(), cancelled);
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
    if let Some(file) = page {
        file.write_page(&first_write_page(&document), &arguments.dir)?;
    }
    print(&if arguments.json { to_json(&document) } else { first_write_text(&document, stdout_palette()) })
}

fn fragmentation(arguments: &FragmentationArguments) -> Result<()> {
    let started = Instant::now();
    let page = prepare_page(arguments.html.as_deref(), arguments.force)?;
    let mut formats = arguments.formats.clone();
    without_repetitions(&mut formats);
    let workload = Workload {
        files: usize::from(arguments.files),
        size_bytes: arguments.size,
        write_bytes: arguments.write,
        order: match arguments.order {
            Order::Turns => Turns::Turns,
            Order::Random => Turns::Random,
        },
        churns: arguments.churn,
        flush_bytes: arguments.flush,
    };
    let host = arguments.host_filesystem.map(|kind| HostVolume {
        kind: match kind {
            HostFilesystem::Ext4 => HostKind::Ext4,
            HostFilesystem::Xfs => HostKind::Xfs,
            HostFilesystem::Btrfs => HostKind::Btrfs,
        },
        is_aged: arguments.aged,
    });
    let program = std::env::current_exe().map_err(|error| Error::io("find this program", error))?;
    let bench = Fragmentation {
        dir: &arguments.dir,
        workload,
        formats: &formats,
        host,
        iterations: usize::from(arguments.iterations),
        keeps: arguments.keep,
        program: &program,
    };
    let cancelled = cancel_on_signal()?;
    let progress = Progress::new(arguments.progress, "measure", bench.total_bytes(), cancelled.clone());
    let outcome = bench.run(&progress).map_err(|error| {
        // What fails because everything is being ended is no failure.
        if cancelled.load(Ordering::Relaxed) { Error::interrupted() } else { error }
    })?;
    progress.finish();
    let document = fragmentation_document(&FragmentationSubject {
        dir: &arguments.dir.display().to_string(),
        workload,
        host,
        iterations: u64::from(arguments.iterations),
        outcome: &outcome,
        elapsed_seconds: started.elapsed().as_secs_f64(),
    });
    if let Some(file) = page {
        file.write_page(&fragmentation_page(&document), &arguments.dir)?;
    }
    print(&if arguments.json { to_json(&document) } else { fragmentation_text(&document, stdout_palette()) })
}

fn prepare_page(path: Option<&Path>, replaces: bool) -> Result<Option<OutputFile>> {
    path.map(|path| OutputFile::prepare(path, replaces, &[])).transpose()
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
