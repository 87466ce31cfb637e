//! What provisioning and fragmentation cost on the user's own storage.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use bench::{Age, AgeTarget, AgedKind, AgedLayout, FirstWrite, Fragmentation, HostVolume, Stated, Workload};
use block::{Error, Result};
use engine::JobMonitor;
use filesystem::Check;
use image::Format;
use report::{
    AgeDocument, AgeSubject, FirstWriteDocument, FirstWriteSubject, FragmentationDocument,
    FragmentationSubject, age_document, first_write_document, first_write_page, fragmentation_document,
    fragmentation_page,
};
use stack::{Stack, Survey};

use crate::output::OutputFile;
use crate::serve::open_direct;
use crate::{Caching, Observer, OpenDisk, OpenOptions, Provision};

mod workloads;

pub use workloads::{WorkloadsOptions, workloads};

/// Which file system ages, and how much.
#[derive(Clone, Debug)]
pub struct AgeOptions {
    /// A folder, in which a new one is made; or where a new image is to be.
    pub target: PathBuf,
    /// What is on a new image.
    pub filesystem: AgedKind,
    /// Of the operations.
    pub seed: u64,
    /// Bytes of the image, or the most that files in the folder take.
    pub size: u64,
    /// How much of the room for files is taken, in percent: at most [`bench::FILL_PERCENT_MAX`].
    pub fill_percent: u64,
    /// Months at most after it is filled.
    pub months: u64,
    /// What is to come out.
    pub stated: Stated,
}

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

/// Uses a file system as months of work would.
pub fn age(options: &AgeOptions, observer: &dyn Observer) -> Result<AgeDocument> {
    let started = Instant::now();
    let is_folder = options.target.is_dir();
    let target = match is_folder {
        true => AgeTarget::Folder(&options.target),
        false => AgeTarget::Image { path: &options.target, kind: options.filesystem },
    };
    let AgeOptions { seed, size, fill_percent, months, stated, .. } = *options;
    let age = Age { target, seed, size_bytes: size, fill_percent, months, stated, look: &layout_of_image };
    let outcome = watched(observer, "write", age.total_bytes(), |progress| age.run(progress))?;
    Ok(age_document(&AgeSubject {
        is_image: !is_folder,
        seed,
        size_bytes: size,
        fill_percent,
        stated,
        outcome: &outcome,
        elapsed_seconds: started.elapsed().as_secs_f64(),
    }))
}

/// Does what is measured, and shows how far it is.
fn watched<T>(
    observer: &dyn Observer,
    phase: &'static str,
    total_bytes: u64,
    run: impl FnOnce(&dyn JobMonitor) -> Result<T>,
) -> Result<T> {
    let cancelled = observer.cancel()?;
    let progress = observer.progress(phase, total_bytes, cancelled.clone());
    let outcome = run(&*progress).map_err(|error| {
        // What fails because everything is being ended is no failure.
        if cancelled.load(Ordering::Relaxed) { Error::interrupted() } else { error }
    })?;
    progress.finish();
    Ok(outcome)
}

/// Looks at where everything lies in a raw image.
fn surveyed<T>(path: &Path, look: impl FnOnce(&Stack, &Survey) -> T) -> Result<T> {
    let options = OpenOptions { format: Some(Format::Raw), ..OpenOptions::default() };
    let disk = OpenDisk::open(path, &options, Caching::PageCache)?;
    let stack = disk.stack();
    let survey = stack.survey(&stack.used_maps(Check::Quick)?)?;
    Ok(look(stack, &survey))
}

/// As `analyze` counts it.
fn layout_of_image(path: &Path) -> Result<AgedLayout> {
    surveyed(path, |_, survey| layout_of(survey))
}

fn layout_of(survey: &Survey) -> AgedLayout {
    let mut layout = AgedLayout::default();
    for volume in &survey.volumes {
        layout.files += volume.totals.files.count;
        layout.fragmented_files += volume.totals.files.fragmented;
        layout.fragments += volume.totals.files.fragments.guest;
        if let Some(free) = &volume.free {
            layout.free_extents = Some(layout.free_extents.unwrap_or(0) + free.extents);
            layout.free_bytes = Some(layout.free_bytes.unwrap_or(0) + free.bytes);
            layout.largest_free_bytes = layout.largest_free_bytes.max(Some(free.largest_bytes));
        }
    }
    layout
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
    let outcome = watched(observer, "write", bench.total_bytes(), |progress| bench.run(progress))?;
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
    let outcome = watched(observer, "measure", bench.total_bytes(), |progress| bench.run(progress))?;
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
