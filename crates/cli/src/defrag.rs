//! `leandisk defrag` and `leandisk recover`: facts, plan, execution, proof.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use block::{EditDisk, Error, ErrorKind, HOST_BLOCK_BYTES, HostFile, LiveDisk, ReadAt, Result, TargetFile};
use claims::{Act, Seen};
use engine::{RearrangeJob, RearrangeOutcome, SLOT_BYTES, journal_header};
use extent::{ExtentSet, Span, VolumeOffset};
use filesystem::{Check, FileSystem, Rearrange};
use image::live::LiveOptions;
use image::{Chain, Edit, EditTarget};
use journal::Identity;
use os::LiveFile;
use plan::defrag::{BackingMap, DefragOptions, DefragPlan, Hints, LayoutFigures, plan_in_place};
use predict::profile::HDD;
use predict::{at_once, fragmented_reading, free_after, predicted_figures, surveyed_figures};
use report::{
    DefragSubject, DefragVolume, DefragWork, RecoverDocument, defrag_document, defrag_text, printable_name,
    recover_text, to_json,
};
use stack::{Stack, Survey, Volume};
use verify::volume::{Contents, Snapshot};

use crate::arguments::{DefragArguments, Goal, OpenArguments, ProgressStyle, RecoverArguments};
use crate::disk::{Caching, Gate, OpenDisk, check_claims, check_usable, lost, open_chain};
use crate::pack::read_layout;
use crate::progress::{Progress, cancel_on_signal, waiting};
use crate::{Failed, print, stdout_palette};

/// A batch moves no more than this, unless one extent is larger: what is done twice after a power cut.
pub(crate) const BATCH_BYTES_MAX: u64 = 256 << 20;
/// A thin disk grows by no more than one part in so many.
const GROWTH_PARTS: u64 = 1000;
/// What to do about a volume that contradicts itself.
const CHECK_FIRST: &str = "check the volume with its own tools first";
/// Workers that copy.
const THREAD_COUNT: usize = 4;

pub(crate) fn run(arguments: &DefragArguments) -> Result<(), Failed> {
    let started = Instant::now();
    // Metadata are read more than once: by who surveys, who plans, and who checks. The proof reads from the storage.
    let disk = OpenDisk::open(&arguments.disk, &arguments.open, Caching::PageCache)?;
    let stack = &disk.stack;
    let seen = Seen::of(stack.chain());
    os::check_journal_place(&arguments.disk, arguments.journal.as_deref())?;
    let gate = Gate::new(&arguments.disk, &arguments.open)?;
    check_claims(stack.chain(), &gate, Act::Change)?;
    Edit::check(stack.chain())?;
    check_volume_number(arguments, stack)?;
    if is_thin(stack.chain())? {
        check_usable(&arguments.disk, &arguments.open)?;
    }

    let planning = waiting(arguments.progress, "planning what moves");
    let found = stack.used_maps(Check::Quick).and_then(|maps| stack.survey(&maps));
    let survey = seen.explain(stack.chain(), found)?;
    let prepared: Result<Vec<_>> =
        (0..stack.volumes().len()).map(|index| prepare(arguments, stack, &survey, index)).collect();
    let prepared = seen.explain(stack.chain(), prepared)?;
    drop(planning);
    let proof = match arguments.dry_run {
        true => {
            check_can_be_opened(stack, &gate, &prepared)?;
            None
        }
        false => {
            let CarriedOut { after, outcomes, verified_files } =
                carry_out(&arguments.in_place(), stack, &gate, &prepared, &seen)?;
            let survey = after.survey(&after.used_maps(Check::Quick)?)?;
            Some(Proof { survey, outcomes, verified_files })
        }
    };
    let volumes = stack.volumes().iter().enumerate().map(|(index, volume)| DefragVolume {
        index: index + 1,
        facts: volume.filesystem.as_ref().map(|filesystem| filesystem.facts()),
        size_bytes: volume.span.len_bytes(),
        work: work(&survey, &prepared[index], proof.as_ref(), index),
    });
    let mut document = defrag_document(&DefragSubject {
        path: &arguments.disk.display().to_string(),
        format: stack.chain().facts().format.name(),
        goal: arguments.goal.name(),
        dry_run: arguments.dry_run,
        volumes: volumes.collect(),
        elapsed_seconds: started.elapsed().as_secs_f64(),
        verified_files: proof.as_ref().and_then(|proof| proof.verified_files),
    });
    let possible = check_any_was_possible(arguments, stack, prepared);
    if let Err(error) = &possible {
        document.fail(error);
    }
    print(&if arguments.json { to_json(&document) } else { defrag_text(&document, stdout_palette()) })?;
    possible.map_err(Failed::Told)
}

impl Goal {
    fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Free => "free",
            Self::Pack => "pack",
        }
    }
}

impl From<Goal> for plan::defrag::Goal {
    fn from(goal: Goal) -> Self {
        match goal {
            Goal::Files => Self::Files,
            Goal::Free => Self::Free,
            Goal::Pack => Self::Pack,
        }
    }
}

fn check_volume_number(arguments: &DefragArguments, stack: &Stack) -> Result<()> {
    let count = stack.volumes().len();
    match arguments.volume {
        Some(number) if count > 0 && number as usize > count => {
            Err(Error::invalid("--volume").field("volume", number, format!("1 to {count}")))
        }
        _ => Ok(()),
    }
}

impl DefragArguments {
    fn in_place(&self) -> InPlace<'_> {
        let Self { disk, open, verify, journal, progress, .. } = self;
        InPlace { disk, open, verify: *verify, journal: journal.as_deref(), progress: *progress }
    }
}

/// A volume with its plan, or why there is none.
pub(crate) type Prepared = Result<Ready, Error>;

/// What is needed to carry out a plan.
pub(crate) struct Ready {
    rearrange: Box<dyn Rearrange>,
    pub(crate) plan: DefragPlan,
    /// What the file system calls free.
    free: ExtentSet<extent::Volume>,
}

/// Plans one volume. What speaks against it is an answer; only a failure to read is an error.
fn prepare(arguments: &DefragArguments, stack: &Stack, survey: &Survey, index: usize) -> Result<Prepared> {
    match prepare_volume(arguments, stack, survey, index) {
        Err(error) if error.kind() == ErrorKind::Io => Err(error),
        prepared => Ok(prepared),
    }
}

fn prepare_volume(arguments: &DefragArguments, stack: &Stack, survey: &Survey, index: usize) -> Prepared {
    if arguments.volume.is_some_and(|number| number as usize != index + 1) {
        return Err(Error::refused("another volume was asked for"));
    }
    make_ready(stack, index, Soundness::ToBeChecked, |volume, filesystem, rearrange| {
        let growth_bytes_max = stack.chain().facts().virtual_bytes / GROWTH_PARTS;
        let (backing, unit_bytes) = backing(stack.chain(), volume, growth_bytes_max)?;
        let layout = read_layout(filesystem, rearrange, backing)?;
        let options = DefragOptions {
            goal: arguments.goal.into(),
            growth_bytes_max,
            unit_bytes,
            unit_skew_bytes: volume.span.start().get() % unit_bytes,
            batch_bytes_max: BATCH_BYTES_MAX,
            moves_anchored: arguments.mft,
        };
        let folder = |file| survey.volumes[index].catalog.as_ref()?.folder(file);
        let home = |file| rearrange.home(file);
        plan_in_place(&layout, &options, &Hints { folder: Some(&folder), home: Some(&home) })
    })
}

/// Whether the independent check is still to pass a volume before files of it may move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Soundness {
    /// It passed it already.
    Checked,
    /// It is checked as soon as something is to move: what is wrong now would be found after the change, when it is too late to
    /// refuse it.
    ToBeChecked,
}

/// Has a volume planned whose files can be moved. Fails with the reason if they cannot, or if the independent check that follows
/// a change would not pass the volume as it is.
pub(crate) fn make_ready(
    stack: &Stack,
    index: usize,
    soundness: Soundness,
    plan: impl FnOnce(&Volume, &dyn FileSystem, &dyn Rearrange) -> Result<DefragPlan>,
) -> Prepared {
    if let Some(other) = stack.hibernated().filter(|other| *other != index) {
        return Err(Error::refused(format!("the guest is hibernated (see volume {})", other + 1)));
    }
    let volume = &stack.volumes()[index];
    let filesystem = volume.filesystem.as_deref().ok_or_else(|| {
        Error::unsupported(volume.doubt.clone().unwrap_or_else(|| "no known file system".into()))
    })?;
    let rearrange = filesystem.rearrange()?;
    let plan = plan(volume, filesystem, &*rearrange)?;
    if !plan.batches.is_empty() && soundness == Soundness::ToBeChecked {
        verify::volume::check(&volume.source)?;
    }
    let mut free = ExtentSet::new();
    filesystem.each_free_span(&mut |span| free.push(span))?;
    Ok(Ready { rearrange, plan, free })
}

/// What the container has under a volume, and the unit in which it grows.
///
/// An image can grow in units of its own, and the host's file in blocks where it has holes. A plan counts in one of them:
/// where growth by a unit is too much, or there are no holes to choose from, the other does not grow.
fn backing(chain: &Chain, volume: &Volume, growth_bytes_max: u64) -> Result<(BackingMap, u64)> {
    use image::Backing as Found;
    use plan::defrag::Backing;
    let start = volume.span.start().get();
    let extents = image::backing(chain, volume.span)?;
    let unit_bytes = chain.facts().cluster_bytes.unwrap_or(HOST_BLOCK_BYTES).max(HOST_BLOCK_BYTES);
    let has_host_holes = extents.iter().any(|extent| extent.state == Found::Unallocated);
    let is_in_units = unit_bytes == HOST_BLOCK_BYTES || !has_host_holes || unit_bytes <= growth_bytes_max;
    let state = |backing| match backing {
        Found::Allocated => Backing::Allocated,
        Found::Absent if is_in_units => Backing::Unallocated,
        Found::Unallocated if !is_in_units || unit_bytes == HOST_BLOCK_BYTES => Backing::Unallocated,
        Found::Absent | Found::Unallocated | Found::Fixed => Backing::Fixed,
    };
    let on_volume = |span: extent::VirtualSpan| {
        Span::new(VolumeOffset::new(span.start().get() - start), span.len_bytes())
    };
    let map = extents.into_iter().map(|extent| (on_volume(extent.span), state(extent.state))).collect();
    Ok((map, if is_in_units { unit_bytes } else { HOST_BLOCK_BYTES }))
}

/// For a dry run: what keeps the disk's files from being opened for the plans would keep these from being carried out.
pub(crate) fn check_can_be_opened(stack: &Stack, gate: &Gate, prepared: &[Prepared]) -> Result<()> {
    if prepared.iter().flatten().any(|ready| !ready.plan.batches.is_empty()) {
        drop(Changing::open(stack.chain(), gate)?);
    }
    Ok(())
}

/// The disk after the change, and what was done to each volume.
struct Proof {
    survey: Survey,
    outcomes: Vec<RearrangeOutcome>,
    verified_files: Option<u64>,
}

/// How plans are carried out.
pub(crate) struct InPlace<'a> {
    pub(crate) disk: &'a Path,
    pub(crate) open: &'a OpenArguments,
    /// Whether all files are read before and after, and compared.
    pub(crate) verify: bool,
    /// Where the journal is, if not beside the disk.
    pub(crate) journal: Option<&'a Path>,
    pub(crate) progress: ProgressStyle,
}

/// What was done.
pub(crate) struct CarriedOut {
    /// The disk, opened anew.
    pub(crate) after: Stack,
    /// What was done to each volume.
    pub(crate) outcomes: Vec<RearrangeOutcome>,
    /// How many files and directories were read before and after, if any were to be.
    pub(crate) verified_files: Option<u64>,
}

/// Carries out the plans, then opens the disk anew and compares.
pub(crate) fn carry_out(
    how: &InPlace<'_>,
    stack: &Stack,
    gate: &Gate,
    prepared: &[Prepared],
    seen: &Seen,
) -> Result<CarriedOut> {
    let checking = waiting(how.progress, how.comparing());
    let mut outcomes = vec![RearrangeOutcome::default(); prepared.len()];
    let mut snapshots = Vec::new();
    for (volume, prepared) in stack.volumes().iter().zip(prepared) {
        snapshots.push(match prepared {
            Ok(ready) if !ready.plan.batches.is_empty() => {
                Some(snapshot(how, volume).map_err(before_any_change)?)
            }
            _ => None,
        });
    }
    drop(checking);
    let mut is_changed = false;
    for (index, ready) in prepared.iter().enumerate() {
        let (Ok(ready), Some(_)) = (ready, &snapshots[index]) else { continue };
        // The image's tables may be others after a change.
        let again = match is_changed {
            true => Some(open_chain(how.disk, how.open, Caching::Direct)?),
            false => None,
        };
        let edit = Changing::open(again.as_ref().unwrap_or(stack.chain()), gate)?;
        if !is_changed {
            seen.check_before_change(stack.chain())?;
        }
        outcomes[index] = change(how, stack, edit, ready, index)?;
        is_changed = true;
    }
    let after = OpenDisk::open(how.disk, how.open, Caching::Direct)?.stack;
    let _checking = waiting(how.progress, how.comparing());
    let mut verified_files = 0;
    for (volume, before) in after.volumes().iter().zip(&snapshots) {
        if let Some(before) = before {
            verified_files += before.file_count() as u64;
            let filesystem = volume.filesystem.as_deref().ok_or_else(lost)?;
            verify::volume::check(&volume.source)?;
            Snapshot::compare_on(before, &snapshot(how, volume)?, filesystem)?;
        }
    }
    let verified_files = how.verify.then_some(verified_files);
    Ok(CarriedOut { after, outcomes, verified_files })
}

impl InPlace<'_> {
    /// What is done before and after the change, in words.
    fn comparing(&self) -> &'static str {
        if self.verify { "reading files to compare them" } else { "checking volumes" }
    }
}

/// What is found wrong before anything was changed is a reason to change nothing.
fn before_any_change(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Corrupt => Error::refused(error.to_string()).hint(CHECK_FIRST),
        _ => error,
    }
}

fn snapshot(how: &InPlace<'_>, volume: &Volume) -> Result<Snapshot> {
    let filesystem = volume.filesystem.as_deref().ok_or_else(lost)?;
    let contents = if how.verify { Contents::All } else { Contents::None };
    Snapshot::with_contents(filesystem, &volume.source, contents, THREAD_COUNT)
}

fn open_live(file: &dyn HostFile) -> Result<Arc<dyn EditTarget>> {
    Ok(Arc::new(LiveFile::open(file.path())?))
}

/// Whether the image has places that it can give and take back.
fn is_thin(chain: &Chain) -> Result<bool> {
    let all = Span::from_zero(chain.len_bytes());
    Ok(image::backing(chain, all)?.iter().any(|extent| extent.state == image::Backing::Absent))
}

/// A disk whose files nobody else can use.
enum Changing {
    /// All of it has its place: contents change where they lie, and no table does.
    Fixed(Edit),
    /// It has holes: the image may grow, and shrinks again.
    Thin(Box<dyn LiveDisk>),
}

impl Changing {
    /// Opens the files for writing. Nothing is written yet.
    fn open(chain: &Chain, gate: &Gate) -> Result<Edit> {
        Edit::open(chain, gate, &mut open_live)
    }

    /// The same, of a disk that a change of ours left without closing it.
    fn open_interrupted(chain: &Chain, gate: &Gate) -> Result<Edit> {
        Edit::open_interrupted(chain, gate, &mut open_live)
    }

    /// Tells others that the contents change.
    fn begin(edit: Edit) -> Result<Self> {
        if !is_thin(edit.chain())? && edit.is_closed() {
            edit.begin(uuid::Uuid::new_v4().as_u128())?;
            return Ok(Self::Fixed(edit));
        }
        Self::begin_thin(edit)
    }

    fn begin_thin(edit: Edit) -> Result<Self> {
        let is_closed = edit.is_closed();
        let (chain, files) = edit.into_parts();
        let files = files.into_iter().map(|file| file as Arc<dyn TargetFile>).collect();
        let live = image::live::open(
            chain,
            files,
            LiveOptions { reserves_nothing: true, ..LiveOptions::default() },
        )?;
        if !is_closed {
            // To give back nothing is a change, too: without one it would not be closed in the end.
            live.discard(Span::from_zero(0))?;
        }
        Ok(Self::Thin(live))
    }

    fn disk(&self) -> &dyn EditDisk {
        match self {
            Self::Fixed(edit) => edit,
            Self::Thin(live) => &**live,
        }
    }

    fn close(&self) -> Result<()> {
        match self {
            Self::Fixed(edit) => edit.flush(),
            Self::Thin(live) => live.close(),
        }
    }
}

/// Carries out one volume's plan. The journal is there from before the first write until the disk is closed: what is killed in
/// between may leave marks in the image that only `recover` takes for its own.
fn change(
    how: &InPlace<'_>,
    stack: &Stack,
    edit: Edit,
    ready: &Ready,
    index: usize,
) -> Result<RearrangeOutcome> {
    let volume = &stack.volumes()[index];
    let facts = volume.filesystem.as_ref().ok_or_else(lost)?.facts();
    let cancelled = cancel_on_signal()?;
    let identity = Identity {
        filesystem: facts.filesystem.clone(),
        uuid: facts.uuid.clone().unwrap_or_default(),
        format: stack.chain().facts().format.name().to_owned(),
    };
    let Ready { rearrange, plan, .. } = ready;
    let header = journal_header(&edit, volume.span, &**rearrange, &plan.batches, SLOT_BYTES, identity)?;
    let journal = os::create_journal(how.disk, how.journal, header)?;
    let disk = match Changing::begin(edit) {
        Ok(disk) => disk,
        Err(error) => {
            journal.remove()?;
            return Err(error);
        }
    };
    let progress = Progress::new(how.progress, "move", plan.moved_bytes, cancelled);
    let job = RearrangeJob {
        disk: disk.disk(),
        volume: volume.span,
        rearrange: &**rearrange,
        batches: &plan.batches,
        releases: &plan.releases,
        journal: journal.file(),
        thread_count: THREAD_COUNT,
        slot_bytes: SLOT_BYTES,
    };
    match job.run(&progress) {
        Ok(outcome) => {
            progress.finish();
            disk.close()?;
            journal.remove()?;
            if outcome.is_cancelled {
                return Err(Error::interrupted().hint("the disk is whole; what was moved stays moved"));
            }
            Ok(outcome)
        }
        Err(failure) => {
            if !failure.needs_recovery && disk.close().is_ok() {
                journal.remove()?;
            }
            Err(failure.error)
        }
    }
}

/// What there is to say of a volume.
fn work<'a>(
    survey: &Survey,
    prepared: &'a Prepared,
    proof: Option<&Proof>,
    index: usize,
) -> Result<DefragWork<'a>, String> {
    let ready = prepared.as_ref().map_err(ToString::to_string)?;
    let found = &survey.volumes[index];
    let catalog = found.catalog.as_ref().ok_or("its files cannot be listed")?;
    let before = surveyed_figures(found);
    let (after, written): (LayoutFigures, _) = match proof {
        None => (predicted_figures(before, &predicted_free(ready), &ready.plan), (0, 0)),
        Some(proof) => {
            let outcome = proof.outcomes[index];
            let found = &proof.survey.volumes[index];
            (surveyed_figures(found), (outcome.metadata_written_bytes, outcome.journal_written_bytes))
        }
    };
    let reading = fragmented_reading(found, catalog, &ready.plan.batches, &HDD);
    let left_paths = ready.plan.left.iter().map(|(file, _)| printable_name(&catalog.path(*file))).collect();
    Ok(DefragWork { plan: &ready.plan, before, after, written, left_paths, reading })
}

/// What will be free. Maps that get smaller leave something, too, as far as can be told before.
fn predicted_free(ready: &Ready) -> ExtentSet<extent::Volume> {
    free_after(&ready.free, &ready.plan.batches, &ready.freed())
}

impl Ready {
    /// What smaller maps leave.
    pub(crate) fn freed(&self) -> ExtentSet<extent::Volume> {
        let all = at_once(&self.plan.batches);
        let rewritten = all.and_then(|all| self.rearrange.rewritten(Arc::new(all)));
        rewritten.map(|rewritten| rewritten.freed().clone()).unwrap_or_default()
    }
}

/// Fails if no volume could be changed, for the reason of the one asked for, else of the first.
fn check_any_was_possible(arguments: &DefragArguments, stack: &Stack, prepared: Vec<Prepared>) -> Result<()> {
    if prepared.iter().any(Result::is_ok) {
        return Ok(());
    }
    let asked = arguments.volume.map_or(0, |number| number as usize - 1);
    match prepared.into_iter().nth(asked) {
        // A volume in doubt is not changed, whoever is to blame: nothing was tried that could fail.
        Some(Err(error)) if error.kind() == ErrorKind::Corrupt => {
            let refused = Error::refused(error.to_string()).path(arguments.disk.display());
            Err(refused.hint(error.hint_text().unwrap_or(CHECK_FIRST)))
        }
        Some(Err(error)) => Err(error.path(arguments.disk.display())),
        _ => Err(Error::unsupported(stack.why_no_volume()).path(arguments.disk.display())),
    }
}

/// Finishes or undoes what was interrupted.
pub(crate) fn recover(arguments: &RecoverArguments) -> Result<()> {
    let found = arguments.disk.try_exists();
    if !found.map_err(|error| Error::io("look for", error).path(arguments.disk.display()))? {
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(Error::io("open", missing).path(arguments.disk.display()));
    }
    let disk = arguments.disk.display().to_string();
    let found = os::find_journal(&arguments.disk, arguments.journal.as_deref())?;
    let document = if let Some(found) = found {
        found.header()?;
        let chain = open_chain(&arguments.disk, &arguments.open, Caching::PageCache)?;
        let gate = Gate::new(&arguments.disk, &arguments.open)?;
        check_claims(&chain, &gate, Act::Change)?;
        let opened = Changing::open_interrupted(&chain, &gate)?;
        // What is refused is refused before a byte changes.
        let (journal, claim) = found.prove(os::disk_name(&arguments.disk)?, &opened)?;
        let opened = match image::live::gives_back(&chain).unit_bytes {
            Some(_) => Changing::begin_thin(opened)?,
            None => Changing::begin(opened)?,
        };
        let recovery = engine::recover(opened.disk(), journal.file(), &claim)?;
        if let Changing::Thin(disk) = &opened {
            engine::tidy_up(&**disk)?;
        }
        opened.close()?;
        drop(opened);
        journal.remove()?;
        RecoverDocument::new(&disk, Some(&recovery))
    } else {
        RecoverDocument::new(&disk, None)
    };
    print(&if arguments.json { to_json(&document) } else { recover_text(&document, stdout_palette()) })
}
