//! `leandisk compact`: facts, plan, execution, proof.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use block::{
    Counted, Disk, Error, ErrorKind, HostFile, HostState, LiveDisk, Occupancy, ReadAt, Result, TargetFile,
    UnitMove,
};
use claims::{Act, Seen};
use engine::{CompactJob, CompactOutcome, RearrangeOutcome, Tally};
use extent::{ExtentSet, Host, Span, VolumeSpan};
use filesystem::{Catalog, Check, FileId, State, Use};
use image::live::{LiveOptions, gives_back};
use image::{Chain, Edit, EditTarget};
use journal::{Header, Identity};
use os::{JournalFile, LiveFile};
use plan::compact::{CompactPlan, CompactPlanner, CompactShape, FileFacts};
use plan::settle::{MoveWhen, Moved as MovedUnits};
use plan::{Moved, facts_after};
use report::{CompactMoves, CompactSubject, CompactVolume, compact_document, compact_text, to_json};
use stack::{HOST_BLOCK_BYTES, Mode, Stack, UsedMaps, Volume};
use verify::volume::{Contents, Snapshot, VolumeReport};

use crate::arguments::{CompactArguments, Move};
use crate::consolidate::{self, Known};
use crate::defrag::{InPlace, Prepared, carry_out, check_can_be_opened};
use crate::disk::{Caching, Gate, OpenDisk, check_claims, check_usable, lost};
use crate::places::Places;
use crate::progress::{Progress, cancel_on_signal, waiting};
use crate::{Failed, print, stdout_palette};

/// Facts are asked for in windows of about this size.
const WINDOW_BYTES: u64 = 256 << 20;
/// What a file system without files is called.
const SWAP: &str = "swap";
/// Workers that read files to compare them.
const THREAD_COUNT: usize = 4;

pub(crate) fn run(arguments: &CompactArguments) -> Result<(), Failed> {
    let started = Instant::now();
    // What moves is compared by who moves it; files are read again for what comes after that.
    let checking = waiting(arguments.progress, comparing(arguments));
    let mut scene = Scene::open(arguments, arguments.verify && !arguments.defrag)?;
    let before = sizes(scene.stack.chain())?;
    drop(checking);
    let consolidation = match arguments.defrag {
        true => Some(consolidate(arguments, &mut scene)?),
        false => None,
    };
    let moved =
        consolidation.as_ref().filter(|_| arguments.dry_run).map(|it| consolidate::moved(&it.prepared));
    let plan = plan(&scene, moved.as_deref(), arguments.moves)?;
    let refused = refused(&scene.stack, &scene.trust);
    let moved_files = consolidation.as_ref().and_then(|it| it.verified_files);
    let step_count = plan.releases.count() + plan.moves.len() as u64;
    let done = match (arguments.dry_run || refused.is_some(), step_count) {
        (true, count) => {
            // What keeps the files from being opened keeps them from being changed.
            if refused.is_none() && count > 0 {
                drop(open_alone(scene.stack.chain(), &scene.gate, &scene.seen)?);
            }
            None
        }
        (false, 0) => {
            let after = sizes(scene.stack.chain())?;
            Some(Done { after, written_bytes: 0, is_cancelled: false, verified_files: None })
        }
        (false, _) => Some(execute(arguments, &scene, &plan)?),
    };
    let care = arguments.shadow_copies.care(&scene.stack, &scene.maps)?;
    let volumes = scene.stack.volumes().iter().zip(&scene.trust).zip(care);
    let volumes = volumes.map(|((volume, trust), shadow_copies)| CompactVolume {
        facts: volume.filesystem.as_ref().map(|filesystem| filesystem.facts()),
        size_bytes: volume.span.len_bytes(),
        refused: trust.as_ref().err().cloned(),
        shadow_copies,
    });
    let mut document = compact_document(&CompactSubject {
        path: &arguments.disk.display().to_string(),
        format: scene.stack.chain().facts().format.name(),
        plan: &plan,
        before: (before.allocated_bytes, before.length_bytes),
        after: done
            .as_ref()
            .map(|done| (done.after.allocated_bytes, done.after.length_bytes, done.written_bytes)),
        refused: refused.clone(),
        frees_units: gives_back(scene.stack.chain()).frees_units,
        consolidated: consolidation.map(|it| it.volumes()),
        volumes: volumes.collect(),
        elapsed_seconds: started.elapsed().as_secs_f64(),
        verified_files: done.as_ref().and_then(|done| done.verified_files).max(moved_files),
    });
    let ended = match refused {
        Some(reason) => Err(Error::refused(reason).path(arguments.disk.display())),
        None if done.is_some_and(|done| done.is_cancelled) => {
            Err(Error::interrupted().hint("the disk is whole; what was given back stays given back"))
        }
        None => Ok(()),
    };
    if let Err(error) = &ended {
        document.fail(error);
    }
    print(&if arguments.json { to_json(&document) } else { compact_text(&document, stdout_palette()) })?;
    ended.map_err(Failed::Told)
}

/// What is done before and after the change, in words.
fn comparing(arguments: &CompactArguments) -> &'static str {
    if arguments.verify { "reading files to compare them" } else { "checking volumes" }
}

/// A disk that may be changed in place, with what its volumes say.
struct Scene {
    stack: Stack,
    gate: Gate,
    seen: Seen,
    maps: UsedMaps,
    trust: Vec<Trust>,
    held: Vec<ExtentSet<Host>>,
    /// What lies where in an image whose units can be moved.
    occupancy: Option<Occupancy>,
    depth: Depth,
}

/// What of the volumes must be as it was afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Depth {
    /// Who owns what. It is enough where no table of an image is written: nothing that is kept can change then but by a hole of the
    /// host, and these are looked for in all of it.
    Owners,
    /// All that is not the contents of files.
    Metadata,
    /// The contents of files as well.
    Files,
}

impl Depth {
    fn of(chain: &Chain, is_compared: bool) -> Self {
        match (is_compared, gives_back(chain).unit_bytes) {
            (true, _) => Self::Files,
            (false, Some(_)) => Self::Metadata,
            (false, None) => Self::Owners,
        }
    }

    /// The independent check.
    fn check(self, volume: &Volume) -> Result<VolumeReport> {
        match self {
            Self::Owners => verify::volume::check_owners(&volume.source),
            Self::Metadata | Self::Files => verify::volume::check(&volume.source),
        }
    }

    /// All that must stay; `None` for swap space.
    fn snapshot(self, volume: &Volume, compared: Option<&[FileId]>) -> Result<Option<Snapshot>> {
        let filesystem = volume.filesystem.as_deref().ok_or_else(lost)?;
        let contents = match (self, compared) {
            (Self::Owners, _) => Contents::Owners,
            (_, None) => Contents::None,
            (_, Some(compared)) => Contents::Of(compared),
        };
        match Snapshot::with_contents(filesystem, &volume.source, contents, THREAD_COUNT) {
            Ok(snapshot) => Ok(Some(snapshot)),
            Err(_) if filesystem.facts().filesystem == SWAP => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Scene {
    /// Opens the disk; with `is_compared`, reads the files that are to be as they were afterwards.
    fn open(arguments: &CompactArguments, is_compared: bool) -> Result<Self> {
        // Metadata are read more than once: by who plans, and by who checks.
        let stack = OpenDisk::open(&arguments.disk, &arguments.open, Caching::Metadata)?.stack;
        let gate = Gate::new(&arguments.disk, &arguments.open)?;
        let seen = Seen::of(stack.chain());
        let occupancy = check_possible(arguments, &stack, &gate)?;
        let chain = stack.chain().clone();
        seen.clone().explain(&chain, Self::survey(arguments, stack, gate, seen, occupancy, is_compared))
    }

    fn survey(
        arguments: &CompactArguments,
        stack: Stack,
        gate: Gate,
        seen: Seen,
        occupancy: Option<Occupancy>,
        is_compared: bool,
    ) -> Result<Self> {
        let maps = stack.used_maps_for(Check::Full, arguments.shadow_copies.what())?;
        check_not_hibernated(&stack)?;
        let volumes = stack.volumes().iter().zip(maps.modes());
        let depth = Depth::of(stack.chain(), is_compared);
        let trust = volumes.map(|(volume, mode)| trust(depth, volume, mode)).collect::<Result<_>>()?;
        // Asked for where it is, the host finds places for all that was written, and what is taken is counted after that.
        let held = held(stack.chain())?;
        Ok(Self { stack, gate, seen, maps, trust, held, occupancy, depth })
    }
}

/// What was planned for each volume, and written to it.
struct Consolidation {
    prepared: Vec<Prepared>,
    outcomes: Vec<RearrangeOutcome>,
    verified_files: Option<u64>,
}

impl Consolidation {
    fn volumes(&self) -> Vec<CompactMoves> {
        let moves = |(prepared, outcome): (&Prepared, &RearrangeOutcome)| match prepared {
            Ok(ready) => CompactMoves {
                moved_bytes: ready.plan.moved_bytes,
                emptied_units: ready.plan.emptied.units,
                metadata_written_bytes: outcome.metadata_written_bytes,
                journal_written_bytes: outcome.journal_written_bytes,
                refused: None,
            },
            Err(error) => CompactMoves { refused: Some(error.to_string()), ..CompactMoves::default() },
        };
        self.prepared.iter().zip(&self.outcomes).map(moves).collect()
    }
}

/// Plans what is to move, and does it, but in a dry run; then the scene is that of the disk afterwards.
fn consolidate(arguments: &CompactArguments, scene: &mut Scene) -> Result<Consolidation> {
    let known: Vec<_> = scene.trust.iter().map(known).collect();
    let gives = gives_back(scene.stack.chain());
    let prepared = consolidate::prepare(&scene.stack, &scene.maps, gives, &known)?;
    let mut outcomes = vec![RearrangeOutcome::default(); prepared.len()];
    let mut verified_files = None;
    let moves = prepared.iter().any(consolidate::has_moves);
    if !arguments.dry_run && moves {
        let how = InPlace {
            disk: &arguments.disk,
            open: &arguments.open,
            verify: arguments.verify,
            journal: None,
            progress: arguments.progress,
        };
        let carried_out = carry_out(&how, &scene.stack, &scene.gate, &prepared, &scene.seen)?;
        (outcomes, verified_files) = (carried_out.outcomes, carried_out.verified_files);
    }
    if arguments.dry_run {
        check_can_be_opened(&scene.stack, &scene.gate, &prepared)?;
    } else if moves || arguments.verify {
        let _checking = waiting(arguments.progress, comparing(arguments));
        *scene = Scene::open(arguments, arguments.verify)?;
    }
    Ok(Consolidation { prepared, outcomes, verified_files })
}

/// Whether files of a volume may move.
fn known(trust: &Trust) -> Known {
    match trust {
        Ok(Found { unsound: None, .. }) => Known::Sound,
        Ok(Found { unsound: Some(why), .. }) => Known::Unsound(why.clone()),
        Err(_) => Known::Whole,
    }
}

/// Refuses what must not be changed in place, or cannot, before anything of its contents is looked at. What lies where in an
/// image whose units can be moved.
fn check_possible(arguments: &CompactArguments, stack: &Stack, gate: &Gate) -> Result<Option<Occupancy>> {
    check_claims(stack.chain(), gate, Act::Change)?;
    Edit::check(stack.chain())?;
    check_usable(&arguments.disk, &arguments.open)?.occupancy()
}

fn check_not_hibernated(stack: &Stack) -> Result<()> {
    match stack.hibernated() {
        None => Ok(()),
        Some(index) => Err(Error::refused(format!("the guest is hibernated (see volume {})", index + 1))
            .hint("resume it, and shut it down")
            .path(stack.chain().files()[0].name())),
    }
}

/// How a volume is to be found again; why all of it is kept if its used map is not to be relied on.
type Trust = Result<Found, String>;

/// A volume as it was before.
struct Found {
    /// All that must stay; `None` for what has no files: swap space.
    snapshot: Option<Snapshot>,
    /// The files whose contents are compared, ascending; `None` without `--verify`.
    compared: Option<Vec<FileId>>,
    /// Why the independent check rejects it, if it does. That is stricter than a used map need be: clusters that are marked as
    /// used and belong to nobody fail it, and do no harm here. But files of such a volume are not moved.
    unsound: Option<String>,
}

/// What speaks against a volume is an answer; only a failure to read is an error.
fn trust(depth: Depth, volume: &Volume, mode: &Mode) -> Result<Trust> {
    if let Some(reason) = mode.reason() {
        return Ok(Err(reason.to_owned()));
    }
    let Some(filesystem) = &volume.filesystem else { return Ok(Err("no known file system".into())) };
    if let State::JournalPending(why) = &filesystem.facts().state {
        return Ok(Err(format!("{why}: start the guest and shut it down, so that its journal is empty")));
    }
    let found = compared(depth, volume, mode).and_then(|compared| {
        let snapshot = depth.snapshot(volume, compared.as_deref())?;
        let unsound = match depth.check(volume) {
            Ok(_) => None,
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            Err(error) => Some(error.to_string()),
        };
        Ok(Found { snapshot, compared, unsound })
    });
    match found {
        Ok(found) => Ok(Ok(found)),
        Err(error) if error.kind() == ErrorKind::Io => Err(error),
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// If they are compared, all files but those that hold swap, whose contents go.
fn compared(depth: Depth, volume: &Volume, mode: &Mode) -> Result<Option<Vec<FileId>>> {
    let (Mode::UsedOnly(map), Some(filesystem)) = (mode, &volume.filesystem) else { return Ok(None) };
    if depth != Depth::Files || filesystem.facts().filesystem == SWAP {
        return Ok(None);
    }
    let mut swap = ExtentSet::new();
    for window in Span::from_zero(volume.span.len_bytes()).split(WINDOW_BYTES) {
        for extent in map.uses(window)?.into_iter().filter(|extent| extent.state == Use::Swap) {
            swap.push(extent.span);
        }
    }
    let catalog = Catalog::read(&**filesystem)?;
    let holds_swap = |span: VolumeSpan| swap.within(span).next().is_some();
    let swap_files: BTreeSet<_> = catalog
        .streams()
        .filter(|stream| stream.extents().any(|extent| holds_swap(extent.span)))
        .map(|stream| stream.stream.file)
        .collect();
    let files: BTreeSet<_> = catalog.streams().map(|stream| stream.stream.file).collect();
    Ok(Some(files.difference(&swap_files).copied().collect()))
}

/// Why nothing can be done, if no volume can be relied on.
fn refused(stack: &Stack, trust: &[Trust]) -> Option<String> {
    match trust.iter().find_map(|trust| trust.as_ref().err()) {
        _ if trust.iter().any(Result::is_ok) => None,
        Some(reason) => Some(reason.clone()),
        None => Some(stack.why_no_volume()),
    }
}

/// What the host has storage for, of each of the image's files. A device's blocks may all have some.
fn held(chain: &Chain) -> Result<Vec<ExtentSet<Host>>> {
    chain.files().iter().map(|file| held_of(&**file)).collect()
}

fn held_of(file: &dyn HostFile) -> Result<ExtentSet<Host>> {
    // Both, as either may leave something out: what was never written, and what the host compresses.
    let placed = file.host_extents()?.unwrap_or_default().into_iter().map(|extent| extent.span);
    Ok(placed.chain(written_of(file)?.iter()).collect())
}

/// What does not read as zeros as far as the host tells: what moves is written where this says that there is data, so that it tells
/// what the host will need. It depends on what is in the host's cache; nothing is proven by it.
fn written_of(file: &dyn HostFile) -> Result<ExtentSet<Host>> {
    let map = file.host_map(Span::from_zero(file.len_bytes()))?;
    Ok(map.into_iter().filter(|extent| extent.state == HostState::Data).map(|extent| extent.span).collect())
}

/// Facts in, plan out: of the volumes as they are, or as they will be once files have `moved`.
fn plan(scene: &Scene, moved: Option<&[Moved]>, moves: Move) -> Result<CompactPlan> {
    let Scene { stack, maps, trust, held, .. } = scene;
    let volumes = stack.volumes().iter().map(|volume| volume.span);
    let moved: Option<Vec<_>> = moved.map(|moved| volumes.zip(moved.iter().cloned()).collect());
    let gives = gives_back(stack.chain());
    // Where units keep their places, the host's blocks within them can be given back as well.
    let unit_bytes = gives.unit_bytes.filter(|_| gives.frees_units).unwrap_or(HOST_BLOCK_BYTES);
    let shape = CompactShape {
        unit_bytes,
        frees_units: gives.frees_units,
        block_bytes: gives.unit_bytes.filter(|_| !gives.frees_units),
        blocks_may_leave: gives.can_leave_gaps && scene.occupancy.is_some(),
        head_bytes: gives.head_bytes,
    };
    let trusted = trust.iter().map(Result::is_ok).collect();
    let mut planner = CompactPlanner::new(shape, trusted, held);
    let step_bytes = shape.block_bytes.filter(|_| shape.blocks_may_leave).unwrap_or(unit_bytes);
    let window_bytes = (WINDOW_BYTES / step_bytes).max(1) * step_bytes;
    for window in Span::from_zero(stack.chain().len_bytes()).split(window_bytes) {
        let facts = stack.facts(maps, window)?;
        let facts = match &moved {
            Some(moved) => facts_after(facts, moved),
            None => facts,
        };
        planner.add(&facts, &stack.chain().map(window)?);
    }
    let Some(occupancy) = &scene.occupancy else { return Ok(planner.finish()) };
    let when = match moves {
        Move::Auto => MoveWhen::Pays,
        Move::Always => MoveWhen::Possible,
        Move::Never => MoveWhen::Never,
    };
    let written = written_of(&*stack.chain().files()[0])?;
    Ok(planner.finish_settled(FileFacts { occupancy, written: &written }, when))
}

/// What an image takes.
#[derive(Clone, Copy)]
struct Sizes {
    allocated_bytes: u64,
    length_bytes: u64,
}

fn sizes(chain: &Chain) -> Result<Sizes> {
    let files = chain.files().iter();
    Ok(Sizes {
        allocated_bytes: files.clone().map(HostFile::allocated_bytes).sum::<Result<_>>()?,
        length_bytes: files.map(ReadAt::len_bytes).sum(),
    })
}

/// What was done.
struct Done {
    after: Sizes,
    written_bytes: u64,
    is_cancelled: bool,
    /// How many files and directories were read before and after, if any were to be.
    verified_files: Option<u64>,
}

/// Carries out the plan, then opens the disk anew and compares.
fn execute(arguments: &CompactArguments, scene: &Scene, plan: &CompactPlan) -> Result<Done> {
    let Scene { stack, gate, seen, trust, depth, .. } = scene;
    let slot_bytes = scene.occupancy.as_ref().map_or(0, Occupancy::slot_bytes);
    let before = Places::of(stack.chain(), &plan.kept)?;
    let edit = open_alone(stack.chain(), gate, seen)?;
    let cancelled = cancel_on_signal()?;
    // From before the first write until the disk is closed: what is killed in between may leave marks in the image that only
    // `recover` takes for its own. Without tables there is nothing to leave.
    let journal = match gives_back(edit.chain()).unit_bytes {
        Some(_) => {
            let format = edit.chain().facts().format.name().to_owned();
            let identity = Identity { format, ..Identity::default() };
            let header = Header::without_volume(identity, edit.chain().len_bytes());
            Some(os::create_journal(&arguments.disk, None, header)?)
        }
        None => None,
    };
    let tallies: Vec<_> = stack.chain().files().iter().map(|_| Arc::new(Tally::default())).collect();
    let work_bytes = plan.releases.total_bytes() + plan.moved_bytes;
    let progress = Progress::new(arguments.progress, "free", work_bytes, cancelled);
    let disk = match begin(edit, &tallies, plan.blocks_leave) {
        Ok(disk) => disk,
        Err(error) => {
            journal.into_iter().try_for_each(JournalFile::remove)?;
            return Err(error);
        }
    };
    let job = CompactJob {
        disk: &*disk,
        releases: &plan.releases,
        moves: &plan.moves,
        slot_bytes,
        is_all_or_nothing: plan.blocks_leave,
    };
    let outcome = job.run(&progress);
    progress.finish();
    // What was given back stays given back: only a disk that could not be closed is to be recovered.
    if outcome.is_ok() || disk.close().is_ok() {
        journal.into_iter().try_for_each(JournalFile::remove)?;
    }
    drop(disk);
    let CompactOutcome { is_cancelled, moved_bytes, .. } = outcome?;
    let moved = MovedUnits::new(moved_first(&plan.moves, moved_bytes, slot_bytes), slot_bytes);
    let _checking = waiting(arguments.progress, comparing(arguments));
    let after = OpenDisk::open(&arguments.disk, &arguments.open, Caching::Metadata)?.stack;
    let zeroed: Vec<_> = tallies.iter().map(|tally| tally.zeroed()).collect();
    before.check(after.chain(), &plan.kept, &moved, &zeroed)?;
    let mut verified_files = 0;
    for (volume, before) in after.volumes().iter().zip(trust) {
        let Ok(Found { snapshot: Some(before), compared, unsound }) = before else { continue };
        if unsound.is_none() {
            depth.check(volume)?;
        }
        let now = depth.snapshot(volume, compared.as_deref())?.ok_or_else(lost)?;
        Snapshot::compare_on(before, &now, volume.filesystem.as_deref().ok_or_else(lost)?)?;
        verified_files += compared.as_ref().map_or(0, |files| files.len() as u64);
    }
    Ok(Done {
        after: sizes(after.chain())?,
        written_bytes: tallies.iter().map(|tally| tally.written_bytes()).sum(),
        is_cancelled,
        verified_files: (*depth == Depth::Files).then_some(verified_files),
    })
}

/// The first of `moves`, as many as make up `moved_bytes`.
fn moved_first(moves: &[UnitMove], moved_bytes: u64, slot_bytes: u64) -> Vec<UnitMove> {
    let mut rest = moved_bytes.checked_div(slot_bytes).unwrap_or(0);
    let cut = moves.iter().map(|moved| {
        let count = moved.count.min(rest);
        rest -= count;
        UnitMove { count, ..*moved }
    });
    cut.filter(|moved| moved.count > 0).collect()
}

/// Opens the disk's files for this program alone. Nothing is written yet.
fn open_alone(chain: &Chain, gate: &Gate, seen: &Seen) -> Result<Edit> {
    let mut opened = Vec::new();
    let mut open = |file: &dyn HostFile| {
        let file = Arc::new(LiveFile::open(file.path())?);
        opened.push(file.clone());
        Ok(file as Arc<dyn EditTarget>)
    };
    let edit = Edit::open(chain, gate, &mut open)?;
    seen.check_before_change(chain)?;
    opened.iter().try_for_each(|file| file.check_gives_back())?;
    Ok(edit)
}

/// Takes the disk into use.
fn begin(edit: Edit, tallies: &[Arc<Tally>], leaves_gaps: bool) -> Result<Box<dyn LiveDisk>> {
    let (chain, files) = edit.into_parts();
    let counted = |(file, tally): (Arc<dyn EditTarget>, &Arc<Tally>)| {
        Arc::new(Counted::new(file, tally.clone())) as Arc<dyn TargetFile>
    };
    image::live::open(
        chain,
        files.into_iter().zip(tallies).map(counted).collect(),
        LiveOptions { leaves_gaps, reserves_nothing: true, ..LiveOptions::default() },
    )
}
