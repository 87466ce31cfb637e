//! An earlier full copy brought up to date: only what a dirty bitmap says is read and written.
//!
//! Invariants:
//! - the target is a raw file or block device of the disk's length, which nobody else uses;
//! - while it is written its file has another name, `.NAME.leandisk-since`: nothing half done is ever under the target's own. A run that was
//!   killed leaves it there, and the next one goes on from it, because the bitmap still says all that was written since the last whole copy;
//! - the bitmap begins anew only when the target is whole, has its name, and both are on stable storage.
//!
//! Absent on purpose: targets that are images. A raw copy is all that an incremental copy needs.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use block::{Error, HostFile, HostState, ReadAt, Result, TargetFile};
use claims::Act;
use engine::JobMonitor;
use extent::{ExtentSet, Host, HostSpan, Offset, Span};
use image::{Chain, Format};
use mutants::broken;
use report::{CopyDocument, IncrementSubject};

use crate::machine::{Caching, HeldFile, Machine, Named, ThisHost};
use crate::open::{Location, OpenOptions, check_claims};
use crate::running::Moment;
use crate::{Observer, remote};

/// The most that is read at once.
const PIECE_BYTES: u64 = 1 << 20;
/// Pieces that are read at once.
const THREAD_COUNT: usize = 8;

/// What is brought up to date, and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The earlier full copy: a raw file or a block device.
    pub target: PathBuf,
    /// Whether nothing is written.
    pub dry_run: bool,
    /// Files that the target may refer to, were it an image: it is refused then.
    pub open: OpenOptions,
}

/// Where the earlier copy is: its names, as far as they change.
pub trait Place {
    /// The name under which the copy is found by others stands for nothing from here on, for good when this returns.
    fn hide(&self) -> Result<()>;

    /// It has that name again, for good when this returns.
    fn show(&self) -> Result<()>;
}

/// Brings the target up to date, and has the disk's bitmap begin anew.
pub fn run(moment: &mut Moment, options: &Options, observer: &dyn Observer) -> Result<CopyDocument> {
    let started = Instant::now();
    let disk = moment.disk().clone();
    let target = Target::open(&ThisHost, options, disk.len_bytes)?;
    let source = remote::open(&disk.source)?;
    let told = disk.bitmap.and_then(|told| told.is_usable.ok());
    let told = told.ok_or_else(|| Error::invalid("nothing is exported"))?;
    let dirty = remote::marked(&disk.source, &told.context)?;
    let used_bytes = dirty.total_bytes();
    let (mut read_bytes, mut written_bytes) = (used_bytes, used_bytes);
    if !options.dry_run {
        let cancelled = observer.cancel()?;
        let progress = observer.progress("copy", used_bytes, cancelled);
        let copied = in_order(
            &target,
            &*target.file,
            || update(&source, &*target.file, &dirty, &*progress),
            || moment.rotate(0, &[]),
        );
        let totals = copied.map_err(|error| target.say_where(error))?;
        progress.finish();
        (read_bytes, written_bytes) = (totals.read_bytes, totals.written_bytes);
    }
    Ok(CopyDocument::of_increment(&IncrementSubject {
        source_path: &disk.shown,
        target_path: &options.target.display().to_string(),
        virtual_bytes: disk.len_bytes,
        source_allocated_bytes: source.allocated_bytes()?,
        target_allocated_bytes: target.file.allocated_bytes()?,
        used_bytes,
        read_bytes,
        written_bytes,
        dry_run: options.dry_run,
        elapsed_seconds: started.elapsed().as_secs_f64(),
    }))
}

/// The order in which nothing is lost, wherever it is cut.
pub fn in_order<T>(
    place: &dyn Place,
    file: &dyn TargetFile,
    update: impl FnOnce() -> Result<T>,
    rotate: impl FnOnce() -> Result<()>,
) -> Result<T> {
    if broken!(BitmapRotatedFirst) {
        rotate()?;
        place.hide()?;
        let totals = update()?;
        file.flush()?;
        place.show()?;
        return Ok(totals);
    }
    if !broken!(HalfUnderItsName) {
        place.hide()?;
    }
    let totals = update()?;
    if !broken!(IncrementNotFlushed) {
        file.flush()?;
    }
    place.show()?;
    rotate()?;
    Ok(totals)
}

/// What was read and written.
struct Totals {
    read_bytes: u64,
    written_bytes: u64,
}

/// Copies the spans, several pieces at once.
fn update(
    source: &dyn HostFile,
    target: &dyn TargetFile,
    dirty: &ExtentSet<Host>,
    monitor: &dyn JobMonitor,
) -> Result<Totals> {
    let pieces: Vec<HostSpan> = dirty.iter().flat_map(pieces).collect();
    let (next, read, written) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let failed = Mutex::new(None);
    let work = || -> Result<()> {
        let mut buf = vec![0; usize::try_from(PIECE_BYTES).expect("small")];
        while let Some(span) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            if monitor.is_cancelled() {
                return Err(Error::interrupted());
            }
            let buf = &mut buf[..usize::try_from(span.len_bytes()).expect("at most a piece")];
            let holes = source.host_map(*span)?;
            if holes.iter().all(|extent| extent.state == HostState::Hole) {
                buf.fill(0);
            } else {
                source.read_at(span.start(), buf)?;
            }
            read.fetch_add(span.len_bytes(), Ordering::Relaxed);
            let wrote = if block::is_zero(buf) {
                target.punch(*span)?;
                0
            } else {
                target.write_at(span.start(), buf)?;
                span.len_bytes()
            };
            written.fetch_add(wrote, Ordering::Relaxed);
            monitor.advanced(span.len_bytes(), wrote);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        for _ in 0..THREAD_COUNT.min(pieces.len()) {
            scope.spawn(|| {
                if let Err(error) = work() {
                    next.store(usize::MAX / 2, Ordering::Relaxed);
                    failed.lock().expect("no thread panics").get_or_insert(error);
                }
            });
        }
    });
    match failed.into_inner().expect("no thread panics") {
        Some(error) => Err(error),
        None => Ok(Totals { read_bytes: read.into_inner(), written_bytes: written.into_inner() }),
    }
}

fn pieces(span: HostSpan) -> impl Iterator<Item = HostSpan> {
    let (start, end) = (span.start().get(), span.end().get());
    let starts = (start..end).step_by(usize::try_from(PIECE_BYTES).expect("small"));
    starts.map(move |at| Span::between(Offset::new(at), Offset::new((at + PIECE_BYTES).min(end))))
}

/// The earlier copy, held.
struct Target {
    file: Arc<dyn HeldFile>,
    /// `None` of a block device, whose name stays.
    names: Option<(PathBuf, PathBuf)>,
    /// Whether an earlier run was cut and left it under its other name.
    is_hidden: bool,
}

impl Target {
    /// Finds all that stands against it. Nothing is changed.
    fn open(machine: &dyn Machine, options: &Options, len_bytes: u64) -> Result<Self> {
        let path = &options.target;
        let hidden = hidden_name(path)?;
        let (named, is_hidden) = (machine.named(path), machine.named(&hidden) == Named::File);
        let found = match (named, is_hidden) {
            (Named::File | Named::BlockDevice, false) => path,
            (Named::Nothing, true) => &hidden,
            (Named::Nothing, false) => {
                return Err(Error::refused("there is no full copy to bring up to date")
                    .path(path.display())
                    .hint("make one without --since, after the bitmap was added"));
            }
            (_, true) => {
                return Err(Error::refused(
                    "an incremental copy of it was cut, and another file has its name now",
                )
                .path(path.display())
                .hint(format!("remove '{}', or give it its name back", hidden.display())));
            }
            (_, false) => {
                return Err(Error::refused("is no file").path(path.display()));
            }
        };
        let stated = Format::from_extension(&path.extension().unwrap_or_default().to_string_lossy());
        let (is_unnamed, is_raw) = (stated.is_none(), stated.is_none_or(|format| format == Format::Raw));
        let open = OpenOptions { format: None, ..options.open.clone() };
        let location = Location { machine, path: found, options: &open };
        location.check_nothing_pending()?;
        if named == Named::File && is_raw {
            // Under a name of no format it may be an image all the same.
            let format = location.open_chain(Caching::Metadata).map(|chain| chain.facts().format);
            if is_unnamed && format.is_ok_and(|format| format != Format::Raw) {
                return Err(not_raw(path));
            }
        }
        if !is_raw {
            return Err(not_raw(path));
        }
        let raw = OpenOptions { format: Some(Format::Raw), ..open };
        let location = Location { machine, path: found, options: &raw };
        let chain: Chain = location.open_chain(Caching::Metadata)?;
        check_claims(&chain, &*location.resolver()?, Act::Change)?;
        drop(chain);
        let file = machine.hold(found)?;
        let found_bytes = ReadAt::<Host>::len_bytes(&*file);
        let fits = match named {
            Named::BlockDevice => found_bytes >= len_bytes,
            _ => found_bytes == len_bytes,
        };
        if !fits {
            return Err(Error::refused("is no copy of this disk").path(path.display()).field(
                "length",
                found_bytes,
                format!("{len_bytes}"),
            ));
        }
        let names = (named != Named::BlockDevice).then(|| (path.clone(), hidden));
        Ok(Self { file, names, is_hidden })
    }

    /// Whoever reads of the failure learns where the target is.
    fn say_where(&self, error: Error) -> Error {
        match &self.names {
            Some((path, hidden)) if !path.exists() && hidden.exists() => error.hint(format!(
                "the target is incomplete, and has the name '{}' until the same command is run again to its end",
                hidden.display()
            )),
            Some(_) => error,
            None => error.hint("the block device holds an incomplete copy until the same command is run again to its end"),
        }
    }
}

impl Place for Target {
    fn hide(&self) -> Result<()> {
        match &self.names {
            Some((path, hidden)) if !self.is_hidden => os::move_for_good(path, hidden),
            _ => Ok(()),
        }
    }

    fn show(&self) -> Result<()> {
        match &self.names {
            Some((path, hidden)) => os::move_for_good(hidden, path),
            None => Ok(()),
        }
    }
}

fn not_raw(path: &Path) -> Error {
    Error::unsupported("an incremental copy into an image")
        .path(path.display())
        .hint("make the full copy raw: -O raw")
}

/// What the target is called while it is incomplete.
fn hidden_name(path: &Path) -> Result<PathBuf> {
    let name =
        path.file_name().ok_or_else(|| Error::invalid("the target has no name").path(path.display()))?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(".leandisk-since");
    Ok(path.with_file_name(hidden))
}
