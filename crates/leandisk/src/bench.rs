//! What provisioning and fragmentation cost on the user's own storage.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use bench::{FirstWrite, Fragmentation, HostVolume, Workload};
use block::{Error, Result};
use image::Format;
use report::{
    FirstWriteDocument, FirstWriteSubject, FragmentationDocument, FragmentationSubject, first_write_document,
    first_write_page, fragmentation_document, fragmentation_page,
};

use crate::output::OutputFile;
use crate::serve::open_direct;
use crate::{Observer, Provision};

/// What is written, where to, and how often.
#[derive(Clone, Debug)]
pub struct FirstWriteOptions {
    /// The folder on the storage to measure. A new folder is made in it, and removed at the end.
    pub dir: PathBuf,
    /// Bytes of each disk.
    pub size: u64,
    /// How many times each disk is written.
    pub passes: u16,
    /// The disks' formats.
    pub formats: Vec<Format>,
    /// When space is allocated for the disks.
    pub provision: Vec<Provision>,
    /// Bytes of each write: at most 32 MiB.
    pub write: u64,
    /// How many times all of it is measured.
    pub iterations: u16,
    /// Whether the disks stay.
    pub keep: bool,
    /// Where the results go as a page, if anywhere.
    pub html: Option<PathBuf>,
    /// Whether that replaces a file that is there.
    pub force: bool,
}

/// What is written, where to, and how often.
#[derive(Clone, Debug)]
pub struct FragmentationOptions {
    /// The folder on the storage to measure. A new folder is made in it, and removed at the end.
    pub dir: PathBuf,
    /// Disks that grow at the same time, their sizes, and the order of writes.
    pub workload: Workload,
    /// The disks' formats.
    pub formats: Vec<Format>,
    /// The host's file system, if one is made for it.
    pub host: Option<HostVolume>,
    /// How many times all of it is measured.
    pub iterations: u16,
    /// Whether the disks stay.
    pub keep: bool,
    /// Where the results go as a page, if anywhere.
    pub html: Option<PathBuf>,
    /// Whether that replaces a file that is there.
    pub force: bool,
    /// The `leandisk` program, which serves the disks.
    pub program: PathBuf,
}

/// What the first write to a disk costs, by when its storage was allocated.
pub fn first_write(options: &FirstWriteOptions, observer: &dyn Observer) -> Result<FirstWriteDocument> {
    let started = Instant::now();
    let page = prepare_page(options.html.as_deref(), options.force)?;
    let mut provisions: Vec<_> = options.provision.iter().map(|provision| provision.when()).collect();
    let mut formats = options.formats.clone();
    without_repetitions(&mut provisions);
    without_repetitions(&mut formats);
    let bench = FirstWrite {
        dir: &options.dir,
        virtual_bytes: options.size,
        write_bytes: usize::try_from(options.write).expect("the parser bounds it"),
        passes: usize::from(options.passes),
        iterations: usize::from(options.iterations),
        formats: &formats,
        provisions: &provisions,
        keeps: options.keep,
        open: &open_direct,
    };
    let cancelled = observer.cancel()?;
    let progress = observer.progress("write", bench.total_bytes(), cancelled);
    let outcome = bench.run(&*progress)?;
    progress.finish();
    let document = first_write_document(&FirstWriteSubject {
        dir: &options.dir.display().to_string(),
        virtual_bytes: options.size,
        write_bytes: options.write,
        iterations: u64::from(options.iterations),
        outcome: &outcome,
        elapsed_seconds: started.elapsed().as_secs_f64(),
    });
    if let Some(file) = page {
        file.write_page(&first_write_page(&document), &options.dir, observer)?;
    }
    Ok(document)
}

/// How fragmented disks become that grow at the same time, and what that costs.
pub fn fragmentation(
    options: &FragmentationOptions,
    observer: &dyn Observer,
) -> Result<FragmentationDocument> {
    let started = Instant::now();
    let page = prepare_page(options.html.as_deref(), options.force)?;
    let mut formats = options.formats.clone();
    without_repetitions(&mut formats);
    let FragmentationOptions { workload, host, .. } = *options;
    let bench = Fragmentation {
        dir: &options.dir,
        workload,
        formats: &formats,
        host,
        iterations: usize::from(options.iterations),
        keeps: options.keep,
        program: &options.program,
    };
    let cancelled = observer.cancel()?;
    let progress = observer.progress("measure", bench.total_bytes(), cancelled.clone());
    let outcome = bench.run(&*progress).map_err(|error| {
        // What fails because everything is being ended is no failure.
        if cancelled.load(Ordering::Relaxed) { Error::interrupted() } else { error }
    })?;
    progress.finish();
    let document = fragmentation_document(&FragmentationSubject {
        dir: &options.dir.display().to_string(),
        workload,
        host,
        iterations: u64::from(options.iterations),
        outcome: &outcome,
        elapsed_seconds: started.elapsed().as_secs_f64(),
    });
    if let Some(file) = page {
        file.write_page(&fragmentation_page(&document), &options.dir, observer)?;
    }
    Ok(document)
}

fn prepare_page(path: Option<&Path>, replaces: bool) -> Result<Option<OutputFile>> {
    path.map(|path| OutputFile::prepare(path, replaces, &[])).transpose()
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
