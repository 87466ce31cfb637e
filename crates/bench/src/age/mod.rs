//! Months of use in minutes: a file system filled, and used until its files and its free space lie in pieces.
//!
//! What happens is [`Operations`], a value. It is carried out through the file system itself, in a new folder of one that is mounted, or in
//! a new disk image with a file system of its own.
//!
//! Invariants:
//! - nothing that was there is written: the folder and the image are new, and their names are taken only once all is done;
//! - no file system is filled: room is asked for before each month, and a margin is left;
//! - whatever ends a run, no mount, loop device or program is left, and no file unless the run came to its end.

pub(crate) mod operations;
pub(crate) mod perform;
mod tools;
mod volume;

use std::path::{Path, PathBuf};

use block::{Error, Result};
use engine::JobMonitor;

use crate::workspace::Workspace;

pub use operations::{Act, FileKind, Operation, Operations, Shape};
pub use volume::AgedKind;

use operations::Digest;
use perform::{Care, Performer};
use tools::Told;
use volume::Volume;

/// More operations than that are not done in a month, nor until the fill is reached: whatever the sizes, a run ends.
const OPERATIONS_MAX: u64 = 1 << 20;
/// A month writes as much as this part of the capacity.
const MONTH_SHARE: u64 = 4;
/// As often what was written gets its places for good.
const SETTLE_INTERVAL: u64 = 32;

/// What is to come out: a run ends as soon as all that is stated has been reached.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Stated {
    /// At least this percentage of files in more than one piece.
    pub fragmented_percent: Option<u64>,
    /// At least so many pieces a file, on average.
    pub pieces_per_file: Option<f64>,
    /// At least so many free extents.
    pub free_extents: Option<u64>,
}

/// What lies how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AgedLayout {
    /// Regular files.
    pub files: u64,
    /// Those in more than one piece.
    pub fragmented_files: u64,
    /// The pieces of all.
    pub fragments: u64,
    /// Free extents; `None` where nothing tells.
    pub free_extents: Option<u64>,
    /// The largest of them.
    pub largest_free_bytes: Option<u64>,
    /// Free bytes.
    pub free_bytes: Option<u64>,
}

impl Stated {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn is_reached(&self, layout: &AgedLayout) -> bool {
        let percent = |percent: u64| {
            layout.fragmented_files.saturating_mul(100) >= percent.saturating_mul(layout.files)
        };
        self.fragmented_percent.is_none_or(percent)
            && self.pieces_per_file.is_none_or(|pieces| layout.pieces_per_file() >= pieces)
            && self.free_extents.is_none_or(|count| layout.free_extents.is_some_and(|found| found >= count))
    }
}

impl AgedLayout {
    /// On average.
    #[allow(clippy::cast_precision_loss)] // A figure for people.
    pub fn pieces_per_file(&self) -> f64 {
        if self.files == 0 { 0.0 } else { self.fragments as f64 / self.files as f64 }
    }
}

/// Where files are to age.
#[derive(Clone, Copy, Debug)]
pub enum AgeTarget<'a> {
    /// In a new folder of this folder.
    Folder(&'a Path),
    /// In a new raw disk, which holds one file system and nothing else.
    Image {
        /// Where it is to be.
        path: &'a Path,
        /// What is on it.
        kind: AgedKind,
    },
}

/// Tells how a disk lies by reading it, while nobody else uses it.
pub type LookAt<'a> = &'a dyn Fn(&Path) -> Result<AgedLayout>;

/// What to do.
pub struct Age<'a> {
    /// Where.
    pub target: AgeTarget<'a>,
    /// Of the operations.
    pub seed: u64,
    /// Of the image, or of all files in the folder.
    pub size_bytes: u64,
    /// How much of the room for files is taken: percent, at most [`FILL_PERCENT_MAX`].
    pub fill_percent: u64,
    /// At most so many months after it is filled.
    pub months: u64,
    /// What is to come out.
    pub stated: Stated,
    /// How an image is looked at.
    pub look: LookAt<'a>,
}

/// Beyond that there is no room for what comes and goes.
pub const FILL_PERCENT_MAX: u64 = 90;

/// What came out.
#[derive(Clone, Debug)]
pub struct AgeOutcome {
    /// The image, or the new folder.
    pub made: PathBuf,
    /// Of the file system, if it is known.
    pub filesystem: Option<String>,
    /// Room for files, of which the fill is a part.
    pub capacity_bytes: u64,
    /// What was done.
    pub operations: u64,
    /// A number that stands for all of it, in order.
    pub operations_digest: u64,
    /// What was written to files.
    pub written_bytes: u64,
    /// Bytes of the files that are there.
    pub live_bytes: u64,
    /// Months after the fill.
    pub months: u64,
    /// Whether all that was stated came out; `None` if nothing was.
    pub is_reached: Option<bool>,
    /// How it lies.
    pub layout: AgedLayout,
    /// Who told of the files, and of the free space.
    pub told_by: [Option<&'static str>; 2],
}

impl Age<'_> {
    /// Runs it to its end. For an image the calling thread sees other mounts than the rest of the system from then on.
    pub fn run(&self, monitor: &dyn JobMonitor) -> Result<AgeOutcome> {
        self.check()?;
        // Places depend on the processor that writes.
        os::stay_on_one_processor();
        match self.target {
            AgeTarget::Folder(folder) => self.in_folder(folder, monitor),
            AgeTarget::Image { path, kind } => self.in_image(path, kind, monitor),
        }
    }

    /// Bytes that are written, about, for a run's progress.
    pub fn total_bytes(&self) -> u64 {
        let capacity = match self.target {
            AgeTarget::Folder(_) => self.size_bytes,
            AgeTarget::Image { kind, .. } => kind.capacity_bytes(self.size_bytes),
        };
        (capacity / 100)
            .saturating_mul(self.fill_percent)
            .saturating_add((capacity / MONTH_SHARE).saturating_mul(self.months))
    }

    fn check(&self) -> Result<()> {
        if !(1..=FILL_PERCENT_MAX).contains(&self.fill_percent) {
            let limit = format!("1 to {FILL_PERCENT_MAX} percent");
            return Err(Error::invalid("how full it gets").field("fill", self.fill_percent, limit));
        }
        Ok(())
    }

    fn shape(&self, capacity_bytes: u64) -> Shape {
        Shape { seed: self.seed, capacity_bytes, fill_percent: self.fill_percent }
    }

    fn in_folder(&self, folder: &Path, monitor: &dyn JobMonitor) -> Result<AgeOutcome> {
        let made = folder.join(format!("leandisk-aged-{}", self.seed));
        check_is_free(&made)?;
        let space = Workspace::new(folder, self.size_bytes)?;
        let inside = space.path().join("files");
        let mut run = Run::new(self, self.size_bytes, inside.clone(), Care::WriteOut);
        let look = || tools::layout_of_folder(&inside);
        let (months, is_reached) = run.age(
            monitor,
            |run| {
                run.performer.settle()?;
                look()
            },
            || space.check_room(self.size_bytes / 8),
        )?;
        let layout = look()?;
        let filesystem = tools::filesystem_of_folder(&inside)?;
        let told = Told { layout, by: [Some("FIEMAP"), None] };
        os::move_for_good(&inside, &made)?;
        Ok(run.outcome(made, filesystem, months, is_reached, &told))
    }

    fn in_image(&self, path: &Path, kind: AgedKind, monitor: &dyn JobMonitor) -> Result<AgeOutcome> {
        check_is_free(path)?;
        kind.check(self.size_bytes)?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        os::hide_mounts(dir)?;
        let space = Workspace::new(dir, self.size_bytes)?;
        let mut volume = Volume::make(space.path(), kind, self.size_bytes, self.seed)?;
        let mut run = Run::new(self, kind.capacity_bytes(self.size_bytes), volume.files(), kind.care());
        volume.mount()?;
        let aged = run.age(
            monitor,
            |run| {
                run.performer.settle()?;
                // Nothing of it is in memory alone then.
                volume.unmount()?;
                let layout = (self.look)(volume.path())?;
                volume.mount()?;
                Ok(layout)
            },
            || Ok(()),
        );
        let (months, is_reached) = aged?;
        run.performer.settle()?;
        let by_filefrag =
            kind.has_filefrag().then(|| tools::layout_by_filefrag(&volume.files())).transpose()?;
        volume.unmount()?;
        let ours = (self.look)(volume.path())?;
        let told = tools::told(kind, volume.path(), ours, by_filefrag.flatten())?;
        os::move_for_good(volume.path(), path)?;
        Ok(run.outcome(path.to_owned(), Some(kind.name().to_owned()), months, is_reached, &told))
    }
}

fn check_is_free(path: &Path) -> Result<()> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io("look at", error).path(path.display())),
        Ok(_) => Err(Error::refused("exists, and what is there is never written over")
            .hint("name a new file, or remove this one")
            .path(path.display())),
    }
}

/// Operations on their way.
struct Run<'a> {
    age: &'a Age<'a>,
    capacity_bytes: u64,
    operations: Operations,
    performer: Performer,
    digest: Digest,
    count: u64,
    written_bytes: u64,
}

impl<'a> Run<'a> {
    fn new(age: &'a Age<'a>, capacity_bytes: u64, folder: PathBuf, care: Care) -> Self {
        Self {
            age,
            capacity_bytes,
            operations: Operations::new(age.shape(capacity_bytes)),
            performer: Performer::new(folder, age.seed, care),
            digest: Digest::new(),
            count: 0,
            written_bytes: 0,
        }
    }

    /// Fills it, and lets months go by. Answers how many, and whether what was stated came out.
    fn age(
        &mut self,
        monitor: &dyn JobMonitor,
        mut look: impl FnMut(&mut Self) -> Result<AgedLayout>,
        check_room: impl Fn() -> Result<()>,
    ) -> Result<(u64, Option<bool>)> {
        self.perform(monitor, |run, _| !run.operations.is_filled())?;
        let stated = &self.age.stated;
        for month in 0..self.age.months {
            if !stated.is_empty() && stated.is_reached(&look(self)?) {
                return Ok((month, Some(true)));
            }
            check_room()?;
            let month_bytes = (self.capacity_bytes / MONTH_SHARE).max(1);
            self.perform(monitor, |_, written| written < month_bytes)?;
        }
        let is_reached = match stated.is_empty() {
            true => None,
            false => Some(stated.is_reached(&look(self)?)),
        };
        Ok((self.age.months, is_reached))
    }

    /// Goes on as long as it is to, by what was written since.
    fn perform(&mut self, monitor: &dyn JobMonitor, goes_on: impl Fn(&Self, u64) -> bool) -> Result<()> {
        let (first, written) = (self.count, self.written_bytes);
        while goes_on(self, self.written_bytes - written) && self.count - first < OPERATIONS_MAX {
            if monitor.is_cancelled() {
                return Err(Error::interrupted());
            }
            let Some(operation) = self.operations.next() else { return Ok(()) };
            let bytes = self.performer.perform(operation)?;
            self.digest.push(operation);
            self.count += 1;
            self.written_bytes += bytes;
            monitor.advanced(0, bytes);
            if self.count.is_multiple_of(SETTLE_INTERVAL) {
                self.performer.settle()?;
            }
        }
        Ok(())
    }

    fn outcome(
        &self,
        made: PathBuf,
        filesystem: Option<String>,
        months: u64,
        is_reached: Option<bool>,
        told: &Told,
    ) -> AgeOutcome {
        AgeOutcome {
            made,
            filesystem,
            capacity_bytes: self.capacity_bytes,
            operations: self.count,
            operations_digest: self.digest.value(),
            written_bytes: self.written_bytes,
            live_bytes: self.performer.live_bytes(),
            months,
            is_reached,
            layout: told.layout,
            told_by: told.by,
        }
    }
}
