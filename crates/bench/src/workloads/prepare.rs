//! The disk that all others are copies of: aged, thinned out, and given contents that are known.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use block::{Error, Result};
use engine::JobMonitor;

use super::contents::{Manifest, write_contents};
use super::disk::forget_cached;
use super::files::{failed, files_below, scan};
use super::postgresql::Postgresql;
use super::sizes::Sizes;
use super::{DiskState, KIND, READ_ONLY, READ_WRITE, Workloads, sqlite};
use crate::age::operations::{Operations, Shape};
use crate::age::perform::Performer;
use crate::content::Random;
use crate::fragmentation::Mounted;
use crate::workspace::{Workspace, write_back};

/// How a disk gets old: filled so far, used for so many months, each of which writes a quarter of it, and then emptied so far.
struct Ageing {
    fill_percent: u64,
    months: u64,
    kept_percent: u64,
}

/// More operations than that are not done.
const OPERATIONS_MAX: u64 = 1 << 20;
const SETTLE_INTERVAL: u64 = 32;
const MONTH_SHARE: u64 = 4;

impl DiskState {
    fn ageing(self) -> Option<Ageing> {
        match self {
            Self::Fresh => None,
            Self::Light => Some(Ageing { fill_percent: 50, months: 1, kept_percent: 10 }),
            Self::Heavy | Self::Nested => Some(Ageing { fill_percent: 85, months: 4, kept_percent: 10 }),
        }
    }
}

/// What is on it.
pub(super) struct Made {
    pub(super) manifest: Manifest,
    pub(super) everything: (u64, u64),
    /// All files, in the order in which they are scanned.
    pub(super) paths: Vec<PathBuf>,
}

/// Makes it at `path`.
pub(super) fn make(
    bench: &Workloads<'_>,
    space: &Workspace,
    path: &Path,
    sizes: &Sizes,
    postgresql: Option<&Postgresql>,
    monitor: &dyn JobMonitor,
) -> Result<Made> {
    let (point, second) = (space.path().join("mount"), space.path().join("second"));
    File::create_new(path)
        .and_then(|file| file.set_len(sizes.disk_bytes))
        .map_err(|error| failed("make", path, error))?;
    for folder in [&point, &second] {
        fs::create_dir(folder).map_err(|error| failed("make", folder, error))?;
    }
    KIND.make(path, bench.seed)?;
    let mounted = Mounted::mount(point.clone(), path, READ_WRITE)?;
    if let Some(ageing) = bench.state.ageing() {
        age(&point.join("aged"), sizes, &ageing, bench.seed, monitor)?;
    }
    let manifest = write_contents(&point, sizes, bench.turns(), bench.seed, monitor)?;
    sqlite::make_tables(&point, sizes, bench.turns())?;
    if let Some(postgresql) = postgresql {
        postgresql.make_tables(&point, space.path(), sizes, monitor)?;
    }
    write_back(&point)?;
    mounted.unmount()?;
    forget_cached(path)?;
    let mounted = Mounted::mount(point.clone(), path, READ_ONLY)?;
    let everything = scan(&point, monitor)?;
    let below = |path: PathBuf| path.strip_prefix(&point).map_or_else(|_| path.clone(), Path::to_owned);
    let paths = files_below(&point)?.into_iter().map(below).collect();
    mounted.unmount()?;
    Ok(Made { manifest, everything, paths })
}

/// Months of use, after which most of it is gone.
fn age(folder: &Path, sizes: &Sizes, ageing: &Ageing, seed: u64, monitor: &dyn JobMonitor) -> Result<()> {
    let capacity_bytes = KIND.capacity_bytes(sizes.disk_bytes);
    let shape = Shape { seed, capacity_bytes, fill_percent: ageing.fill_percent };
    let mut operations = Operations::new(shape);
    let mut performer = Performer::new(folder.to_owned(), seed, KIND.care());
    performer.settle()?;
    let (mut count, mut left) = (0u64, capacity_bytes / MONTH_SHARE * ageing.months);
    while left > 0 && count < OPERATIONS_MAX {
        if monitor.is_cancelled() {
            return Err(Error::interrupted());
        }
        let Some(operation) = operations.next() else { break };
        let bytes = performer.perform(operation)?;
        monitor.advanced(0, bytes);
        if operations.is_filled() {
            left = left.saturating_sub(bytes);
        }
        count += 1;
        if count.is_multiple_of(SETTLE_INTERVAL) {
            performer.settle()?;
        }
    }
    thin_out(folder, capacity_bytes / 100 * ageing.kept_percent, seed)?;
    write_back(folder)
}

/// Removes files here and there until so much is left.
fn thin_out(folder: &Path, kept_bytes: u64, seed: u64) -> Result<()> {
    let mut files = files_below(folder)?;
    let len = |path: &Path| fs::metadata(path).map_or(0, |about| about.len());
    let mut bytes: u64 = files.iter().map(|path| len(path)).sum();
    let mut random = Random::new(seed ^ 0x7468_696e);
    while bytes > kept_bytes && !files.is_empty() {
        let index = usize::try_from(random.below(files.len() as u64)).unwrap_or(0);
        let path = files.swap_remove(index);
        bytes -= len(&path);
        fs::remove_file(&path).map_err(|error| failed("remove", &path, error))?;
    }
    Ok(())
}
