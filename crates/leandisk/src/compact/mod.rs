//! Space that the guest does not use, given back in place: facts, plan, execution, proof.

mod candidate;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use block::{
    Counted, Disk, Error, HOST_BLOCK_BYTES, HostFile, LiveDisk, Occupancy, ReadAt, Result, TargetFile,
    UnitMove,
};
use engine::{CompactJob, CompactOutcome, RearrangeOutcome, Tally};
use extent::Span;
use image::live::{LiveOptions, gives_back};
use image::{Chain, Edit, EditTarget};
use journal::{Header, Identity};
use plan::compact::{CompactPlan, CompactPlanner, CompactShape, FileFacts};
use plan::shorten::{MoveWhen, Moved as MovedUnits};
use plan::{Moved, facts_after};
use report::{CompactDocument, CompactMoves, CompactSubject, CompactVolume, compact_document};
use stack::Stack;
use verify::volume::Snapshot;

use crate::consolidate::{self, Known};
use crate::in_place::{ChangeOptions, VolumePlan, carry_out, check_can_be_opened};
use crate::machine::{Caching, HeldFile, HeldJournal, Machine, ThisHost};
use crate::open::{Location, OpenOptions, lost};
use crate::places::Places;
use crate::{Observer, Reported, shadow_copies};

use candidate::{Candidate, Depth, Trust, TrustedVolume, written_of};

/// Facts are asked for in windows of about this size.
const WINDOW_BYTES: u64 = 256 << 20;

/// Whether what lies at the end of an image's file goes down into gaps, so that the file gets shorter.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Move {
    /// If the file becomes shorter by enough to be worth the writing.
    #[default]
    Auto,
    /// Whenever the file becomes shorter by it.
    Always,
    /// Never.
    Never,
}

/// What is changed, and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The disk: an image file or a block device that nobody else uses.
    pub disk: PathBuf,
    /// How it is opened.
    pub open: OpenOptions,
    /// Whether files are first moved out of blocks of the image that are almost empty.
    pub defrag: bool,
    /// Whether blocks move from the end of the image's file into gaps.
    pub moves: Move,
    /// Whether what only the shadow copies of Windows need is given back, too.
    pub drop_shadow_copies: bool,
    /// Whether nothing is changed: everything is checked and planned as for the change.
    pub dry_run: bool,
    /// Whether all files are read before and after, and compared.
    pub verify: bool,
}

/// A use case with who watches it.
#[derive(Clone, Copy)]
struct Task<'a> {
    machine: &'a dyn Machine,
    options: &'a Options,
    observer: &'a dyn Observer,
}

impl<'a> Task<'a> {
    fn location(self) -> Location<'a> {
        Location { machine: self.machine, path: &self.options.disk, options: &self.options.open }
    }
}

/// Gives back what the guest does not use, or says what would be given back. A stop at any moment leaves every file whole.
pub fn run(options: &Options, observer: &dyn Observer) -> Result<Reported<CompactDocument>> {
    run_on(&ThisHost, options, observer)
}

/// The same on another machine than this host.
pub fn run_on(
    machine: &dyn Machine,
    options: &Options,
    observer: &dyn Observer,
) -> Result<Reported<CompactDocument>> {
    let task = Task { machine, options, observer };
    let started = Instant::now();
    // What moves is compared by who moves it; files are read again for what comes after that.
    let checking = observer.waiting(comparing(options));
    let mut candidate = Candidate::open(task, options.verify && !options.defrag)?;
    let before = sizes(candidate.stack.chain())?;
    drop(checking);
    let consolidation = match options.defrag {
        true => Some(consolidate(task, &mut candidate)?),
        false => None,
    };
    let moved = consolidation.as_ref().filter(|_| options.dry_run).map(|it| consolidate::moved(&it.plans));
    let plan = plan(&candidate, moved.as_deref(), options.moves)?;
    let refused = refused(&candidate.stack, &candidate.trust);
    let moved_files = consolidation.as_ref().and_then(|it| it.verified_files);
    let step_count = plan.releases.count() + plan.moves.len() as u64;
    let done = match (options.dry_run || refused.is_some(), step_count) {
        (true, count) => {
            // What keeps the files from being opened keeps them from being changed.
            if refused.is_none() && count > 0 {
                drop(open_alone(machine, &candidate)?);
            }
            None
        }
        (false, 0) => {
            let after = sizes(candidate.stack.chain())?;
            Some(Done { after, written_bytes: 0, is_cancelled: false, verified_files: None })
        }
        (false, _) => {
            let done = execute(task, &candidate, &plan);
            Some(done.map_err(|error| task.location().or_to_recover(error))?)
        }
    };
    let care = shadow_copies::care(options.drop_shadow_copies, &candidate.stack, &candidate.maps)?;
    let volumes = candidate.stack.volumes().iter().zip(&candidate.trust).zip(care);
    let volumes = volumes.map(|((volume, trust), shadow_copies)| CompactVolume {
        facts: volume.filesystem.as_ref().map(|filesystem| filesystem.facts()),
        name: volume.name.as_deref(),
        size_bytes: volume.place.len_bytes(),
        refused: trust.as_ref().err().cloned(),
        shadow_copies,
    });
    let mut document = compact_document(&CompactSubject {
        path: &options.disk.display().to_string(),
        format: candidate.stack.chain().facts().format.name(),
        plan: &plan,
        before: (before.allocated_bytes, before.length_bytes),
        after: done
            .as_ref()
            .map(|done| (done.after.allocated_bytes, done.after.length_bytes, done.written_bytes)),
        refused: refused.clone(),
        frees_units: gives_back(candidate.stack.chain()).frees_units,
        consolidated: consolidation.map(|it| it.volumes()),
        volumes: volumes.collect(),
        elapsed_seconds: started.elapsed().as_secs_f64(),
        verified_files: done.as_ref().and_then(|done| done.verified_files).max(moved_files),
    });
    let ended = match refused {
        Some(reason) => Err(Error::refused(reason).path(options.disk.display())),
        None if done.is_some_and(|done| done.is_cancelled) => {
            Err(Error::interrupted().hint("the disk is whole; what was given back stays given back"))
        }
        None => Ok(()),
    };
    if let Err(error) = &ended {
        document.fail(error);
    }
    Ok(Reported { document, ended })
}

/// What is done before and after the change, in words.
fn comparing(options: &Options) -> &'static str {
    if options.verify { "reading files to compare them" } else { "checking volumes" }
}

/// What was planned for each volume, and written to it.
struct Consolidation {
    plans: Vec<VolumePlan>,
    outcomes: Vec<RearrangeOutcome>,
    verified_files: Option<u64>,
}

impl Consolidation {
    fn volumes(&self) -> Vec<CompactMoves> {
        let moves = |(plan, outcome): (&VolumePlan, &RearrangeOutcome)| match plan {
            Ok(planned) => CompactMoves {
                moved_bytes: planned.plan.moved_bytes,
                emptied_units: planned.plan.emptied.units,
                metadata_written_bytes: outcome.metadata_written_bytes,
                journal_written_bytes: outcome.journal_written_bytes,
                refused: None,
            },
            Err(error) => CompactMoves { refused: Some(error.to_string()), ..CompactMoves::default() },
        };
        self.plans.iter().zip(&self.outcomes).map(moves).collect()
    }
}

/// Plans what is to move, and does it, but in a dry run; then the candidate is that of the disk afterwards.
fn consolidate(task: Task<'_>, candidate: &mut Candidate) -> Result<Consolidation> {
    let Task { machine, options, observer } = task;
    let known: Vec<_> = candidate.trust.iter().map(known).collect();
    let gives = gives_back(candidate.stack.chain());
    let plans = consolidate::plan(&candidate.stack, &candidate.maps, gives, &known)?;
    let mut outcomes = vec![RearrangeOutcome::default(); plans.len()];
    let mut verified_files = None;
    let moves = plans.iter().any(consolidate::has_moves);
    if !options.dry_run && moves {
        let how = ChangeOptions { disk: task.location(), verify: options.verify, journal: None, observer };
        let carried_out = carry_out(&how, &candidate.stack, &*candidate.resolver, &plans, &candidate.seen)?;
        (outcomes, verified_files) = (carried_out.outcomes, carried_out.verified_files);
    }
    if options.dry_run {
        check_can_be_opened(machine, &candidate.stack, &*candidate.resolver, &plans)?;
    } else if moves || options.verify {
        let _checking = observer.waiting(comparing(options));
        *candidate = Candidate::open(task, options.verify)?;
    }
    Ok(Consolidation { plans, outcomes, verified_files })
}

/// Whether files of a volume may move.
fn known(trust: &Trust) -> Known {
    match trust {
        Ok(TrustedVolume { unsound: None, .. }) => Known::Sound,
        Ok(TrustedVolume { unsound: Some(why), .. }) => Known::Unsound(why.clone()),
        Err(_) => Known::Whole,
    }
}

/// Why nothing can be done, if no volume can be relied on.
fn refused(stack: &Stack, trust: &[Trust]) -> Option<String> {
    match trust.iter().find_map(|trust| trust.as_ref().err()) {
        _ if trust.iter().any(Result::is_ok) => None,
        Some(reason) => Some(reason.clone()),
        None => Some(stack.why_no_volume()),
    }
}

/// Facts in, plan out: of the volumes as they are, or as they will be once files have `moved`.
fn plan(candidate: &Candidate, moved: Option<&[Moved]>, moves: Move) -> Result<CompactPlan> {
    let Candidate { stack, maps, trust, held, .. } = candidate;
    let volumes = stack.volumes().iter().map(stack::Volume::span);
    let moved: Option<Vec<_>> = moved.map(|moved| volumes.zip(moved.iter().cloned()).collect());
    let gives = gives_back(stack.chain());
    // Where units keep their places, the host's blocks within them can be given back as well.
    let unit_bytes = gives.unit_bytes.filter(|_| gives.frees_units).unwrap_or(HOST_BLOCK_BYTES);
    let shape = CompactShape {
        unit_bytes,
        frees_units: gives.frees_units,
        block_bytes: gives.unit_bytes.filter(|_| !gives.frees_units),
        blocks_may_leave: gives.can_leave_gaps && candidate.occupancy.is_some(),
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
    let Some(occupancy) = &candidate.occupancy else { return Ok(planner.finish()) };
    let when = match moves {
        Move::Auto => MoveWhen::Pays,
        Move::Always => MoveWhen::Possible,
        Move::Never => MoveWhen::Never,
    };
    let written = written_of(&*stack.chain().files()[0])?;
    Ok(planner.finish_shortened(FileFacts { occupancy, written: &written }, when))
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
fn execute(task: Task<'_>, candidate: &Candidate, plan: &CompactPlan) -> Result<Done> {
    let Task { machine, options, observer } = task;
    let Candidate { stack, trust, depth, .. } = candidate;
    let slot_bytes = candidate.occupancy.as_ref().map_or(0, Occupancy::slot_bytes);
    let before = Places::of(stack.chain(), &plan.kept)?;
    let edit = open_alone(machine, candidate)?;
    let cancelled = observer.cancel()?;
    // From before the first write until the disk is closed: what is killed in between may leave marks in the image that only
    // `recover` takes for its own. Without tables there is nothing to leave.
    let journal = match gives_back(edit.chain()).unit_bytes {
        Some(_) => {
            let format = edit.chain().facts().format.name().to_owned();
            let identity = Identity { format, ..Identity::default() };
            let header = Header::without_volume(identity, edit.chain().len_bytes());
            Some(machine.create_journal(&options.disk, None, header)?)
        }
        None => None,
    };
    let tallies: Vec<_> = stack.chain().files().iter().map(|_| Arc::new(Tally::default())).collect();
    let work_bytes = plan.releases.total_bytes() + plan.moved_bytes;
    let progress = observer.progress("free", work_bytes, cancelled);
    let disk = match begin(edit, &tallies, plan.blocks_leave) {
        Ok(disk) => disk,
        Err(error) => {
            journal.into_iter().try_for_each(HeldJournal::remove)?;
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
    let outcome = job.run(&*progress);
    progress.finish();
    // What was given back stays given back: only a disk that could not be closed is to be recovered.
    if outcome.is_ok() || disk.close().is_ok() {
        journal.into_iter().try_for_each(HeldJournal::remove)?;
    }
    drop(disk);
    let CompactOutcome { is_cancelled, moved_bytes, .. } = outcome?;
    let moved = MovedUnits::new(moved_first(&plan.moves, moved_bytes, slot_bytes), slot_bytes);
    let _checking = observer.waiting(comparing(options));
    let after = task.location().open(Caching::Metadata)?.stack;
    let zeroed: Vec<_> = tallies.iter().map(|tally| tally.zeroed()).collect();
    before.check(after.chain(), &plan.kept, &moved, &zeroed)?;
    let mut verified_files = 0;
    for (volume, before) in after.volumes().iter().zip(trust) {
        let Ok(TrustedVolume { snapshot: Some(before), compared, unsound }) = before else { continue };
        if unsound.is_none() {
            depth.check(volume)?;
        }
        let now = depth.snapshot(volume, compared.as_deref())?.ok_or_else(lost)?;
        let filesystem = volume.filesystem.as_deref().ok_or_else(lost)?;
        Snapshot::compare_named(before, &now, |files| filesystem::paths(filesystem, files))?;
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
fn open_alone(machine: &dyn Machine, candidate: &Candidate) -> Result<Edit> {
    let Candidate { stack, resolver, seen, .. } = candidate;
    let chain = stack.chain();
    let mut opened = Vec::new();
    let mut open = |file: &dyn HostFile| {
        let file: Arc<dyn HeldFile> = machine.hold(file.path())?;
        opened.push(file.clone());
        Ok(file as Arc<dyn EditTarget>)
    };
    let edit = Edit::open(chain, &**resolver, &mut open)?;
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
