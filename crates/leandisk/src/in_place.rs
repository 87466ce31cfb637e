//! A change in place carried out: files of volumes moved as planned, under a journal, and compared with what they were.
//!
//! Invariants: what speaks against the change is found before a byte of the disk changes, by a dry run as well; the journal is there
//! from before the first write until the disk is closed.

use std::path::Path;
use std::sync::Arc;

use block::{EditDisk, Error, ErrorKind, HostFile, LiveDisk, ReadAt, Result, TargetFile};
use claims::Seen;
use engine::{RearrangeJob, RearrangeOutcome, SLOT_BYTES, journal_header};
use extent::{ExtentSet, Span, VirtualSpan};
use filesystem::{FileSystem, Rearrange};
use image::live::LiveOptions;
use image::{Chain, Edit, EditTarget, Resolver};
use journal::{Header, Identity};
use mutants::broken;
use plan::defrag::DefragPlan;
use predict::at_once;
use stack::{Stack, Volume};
use verify::volume::{Contents, Snapshot};

use crate::Observer;
use crate::machine::{Caching, HeldJournal, Machine};
use crate::open::{Location, lost};

/// A batch moves no more than this, unless one extent is larger: what is done twice after a power cut.
pub(crate) const BATCH_BYTES_MAX: u64 = 256 << 20;
/// What to do about a volume that contradicts itself.
pub(crate) const CHECK_FIRST: &str = "check the volume with its own tools first";
/// Workers that copy, and that read what is compared.
const THREAD_COUNT: usize = 4;

/// A volume with its plan, or why there is none.
pub(crate) type VolumePlan = Result<PlannedVolume, Error>;

/// What is needed to carry out a plan.
pub(crate) struct PlannedVolume {
    rearrange: Box<dyn Rearrange>,
    pub(crate) plan: DefragPlan,
    /// What the file system calls free.
    pub(crate) free: ExtentSet<extent::Volume>,
}

impl PlannedVolume {
    /// What smaller maps leave.
    pub(crate) fn freed(&self) -> ExtentSet<extent::Volume> {
        let all = at_once(&self.plan.batches);
        let rewritten = all.and_then(|all| self.rearrange.rewritten(Arc::new(all)));
        rewritten.map(|rewritten| rewritten.freed().clone()).unwrap_or_default()
    }
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
pub(crate) fn plan_for_change(
    stack: &Stack,
    index: usize,
    soundness: Soundness,
    plan: impl FnOnce(&Volume, &dyn FileSystem, &dyn Rearrange) -> Result<DefragPlan>,
) -> VolumePlan {
    if let Some(told) = stack.where_hibernated(Some(index)) {
        return Err(Error::refused(format!("the guest is hibernated ({told})")));
    }
    let volume = &stack.volumes()[index];
    let filesystem = volume.filesystem.as_deref().ok_or_else(|| {
        Error::unsupported(volume.doubt.clone().unwrap_or_else(|| "no known file system".into()))
    })?;
    let rearrange = filesystem.rearrange()?;
    span_of(volume)?;
    let plan = plan(volume, filesystem, &*rearrange)?;
    if !plan.batches.is_empty() && soundness == Soundness::ToBeChecked {
        verify::volume::check(volume.to_check())?;
    }
    let mut free = ExtentSet::new();
    filesystem.each_free_span(&mut |span| free.push(span))?;
    Ok(PlannedVolume { rearrange, plan, free })
}

/// Where a volume lies whose files are to be moved. `Unsupported` if that need not be one place.
pub(crate) fn span_of(volume: &Volume) -> Result<VirtualSpan> {
    volume
        .span()
        .ok_or_else(|| Error::unsupported("files of volumes that need not lie in one piece are not moved"))
}

/// For a dry run: what keeps the disk's files from being opened for the plans would keep these from being carried out.
pub(crate) fn check_can_be_opened(
    machine: &dyn Machine,
    stack: &Stack,
    resolver: &dyn Resolver,
    plans: &[VolumePlan],
) -> Result<()> {
    if plans.iter().flatten().any(|planned| !planned.plan.batches.is_empty()) {
        drop(EditSession::open(machine, stack.chain(), resolver)?);
    }
    Ok(())
}

/// How plans are carried out.
pub(crate) struct ChangeOptions<'a> {
    pub(crate) disk: Location<'a>,
    /// Whether all files are read before and after, and compared.
    pub(crate) verify: bool,
    /// Where the journal is, if not beside the disk.
    pub(crate) journal: Option<&'a Path>,
    pub(crate) observer: &'a dyn Observer,
}

/// What was done.
pub(crate) struct ChangeOutcome {
    /// The disk, opened anew.
    pub(crate) after: Stack,
    /// What was done to each volume.
    pub(crate) outcomes: Vec<RearrangeOutcome>,
    /// How many files and directories were read before and after, if any were to be.
    pub(crate) verified_files: Option<u64>,
}

/// Carries out the plans, then opens the disk anew and compares.
pub(crate) fn carry_out(
    how: &ChangeOptions<'_>,
    stack: &Stack,
    resolver: &dyn Resolver,
    plans: &[VolumePlan],
    seen: &Seen,
) -> Result<ChangeOutcome> {
    let checking = how.observer.waiting(how.comparing());
    let mut outcomes = vec![RearrangeOutcome::default(); plans.len()];
    let mut snapshots = Vec::new();
    for (volume, plan) in stack.volumes().iter().zip(plans) {
        snapshots.push(match plan {
            Ok(planned) if !planned.plan.batches.is_empty() => {
                Some(snapshot(how, volume).map_err(before_any_change)?)
            }
            _ => None,
        });
    }
    drop(checking);
    let mut is_changed = false;
    for (index, planned) in plans.iter().enumerate() {
        let (Ok(planned), Some(_)) = (planned, &snapshots[index]) else { continue };
        // The image's tables may be others after a change.
        let again = match is_changed {
            true => Some(how.disk.open_chain(Caching::Direct)?),
            false => None,
        };
        let edit = EditSession::open(how.disk.machine, again.as_ref().unwrap_or(stack.chain()), resolver)?;
        if !is_changed {
            seen.check_before_change(stack.chain())?;
        }
        outcomes[index] =
            change(how, stack, edit, planned, index).map_err(|error| how.disk.or_to_recover(error))?;
        is_changed = true;
    }
    let after = how.disk.open(Caching::Direct)?.stack;
    let _checking = how.observer.waiting(how.comparing());
    let mut verified_files = 0;
    for (volume, before) in after.volumes().iter().zip(&snapshots) {
        if let Some(before) = before {
            verified_files += before.file_count() as u64;
            let filesystem = volume.filesystem.as_deref().ok_or_else(lost)?;
            verify::volume::check(volume.to_check())?;
            Snapshot::compare_named(before, &snapshot(how, volume)?, |files| {
                filesystem::paths(filesystem, files)
            })?;
        }
    }
    let verified_files = how.verify.then_some(verified_files);
    Ok(ChangeOutcome { after, outcomes, verified_files })
}

impl ChangeOptions<'_> {
    /// What is done before and after the change, in words.
    fn comparing(&self) -> &'static str {
        if self.verify { "reading files to compare them" } else { "checking volumes" }
    }
}

/// What is found wrong before anything was changed is a reason to change nothing.
fn before_any_change(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Corrupt => Error::refused(error.to_string()).hint(CHECK_FIRST).because(error),
        _ => error,
    }
}

fn snapshot(how: &ChangeOptions<'_>, volume: &Volume) -> Result<Snapshot> {
    let filesystem = volume.filesystem.as_deref().ok_or_else(lost)?;
    let contents = if how.verify { Contents::All } else { Contents::None };
    take_snapshot(filesystem, volume, contents)
}

/// What of a volume must be as it was afterwards. `Refused` of one in doubt: nothing of it is known that could be compared.
pub(crate) fn take_snapshot(
    filesystem: &dyn FileSystem,
    volume: &Volume,
    contents: Contents<'_>,
) -> Result<Snapshot> {
    let facts = filesystem.facts();
    match facts.state.doubt() {
        Some(why) => Err(Error::refused(why)),
        None => Snapshot::take(&facts.identity(), volume.to_check(), contents, THREAD_COUNT),
    }
}

fn held(machine: &dyn Machine) -> impl FnMut(&dyn HostFile) -> Result<Arc<dyn EditTarget>> {
    |file| Ok(machine.hold(file.path())?)
}

/// Whether the image has places that it can give and take back.
pub(crate) fn is_thin(chain: &Chain) -> Result<bool> {
    let all = Span::from_zero(chain.len_bytes());
    Ok(image::backing(chain, all)?.iter().any(|extent| extent.state == image::Backing::Absent))
}

/// A disk whose files nobody else can use.
pub(crate) enum EditSession {
    /// All of it has its place: contents change where they lie, and no table does.
    Fixed(Edit),
    /// It has holes: the image may grow, and shrinks again.
    Thin(Box<dyn LiveDisk>),
}

impl EditSession {
    /// Opens the files for writing. Nothing is written yet.
    pub(crate) fn open(machine: &dyn Machine, chain: &Chain, resolver: &dyn Resolver) -> Result<Edit> {
        Edit::open(chain, resolver, &mut held(machine))
    }

    /// The same, of a disk that a change of ours left without closing it.
    pub(crate) fn open_interrupted(
        machine: &dyn Machine,
        chain: &Chain,
        resolver: &dyn Resolver,
    ) -> Result<Edit> {
        Edit::open_interrupted(chain, resolver, &mut held(machine))
    }

    /// Tells others that the contents change.
    pub(crate) fn begin(edit: Edit) -> Result<Self> {
        if !is_thin(edit.chain())? && !edit.records_changes()? && edit.is_closed() {
            edit.begin(uuid::Uuid::new_v4().as_u128())?;
            return Ok(Self::Fixed(edit));
        }
        Self::begin_thin(edit)
    }

    pub(crate) fn begin_thin(edit: Edit) -> Result<Self> {
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

    pub(crate) fn disk(&self) -> &dyn EditDisk {
        match self {
            Self::Fixed(edit) => edit,
            Self::Thin(live) => &**live,
        }
    }

    /// Moves what lies past `length_bytes` of the image's file into gaps below, as far as there are any.
    fn shorten(&self, length_bytes: u64) -> Result<()> {
        match self {
            Self::Fixed(_) => Ok(()),
            Self::Thin(live) => engine::shorten(&**live, length_bytes, u64::MAX).map(drop),
        }
    }

    pub(crate) fn close(&self) -> Result<()> {
        match self {
            Self::Fixed(edit) => edit.flush(),
            Self::Thin(live) => live.close(),
        }
    }
}

/// Closes the disk, then removes the journal.
fn end(disk: &EditSession, journal: Box<dyn HeldJournal + '_>) -> Result<()> {
    if broken!(JournalRemovedBeforeClose) {
        journal.remove()?;
        return disk.close();
    }
    disk.close()?;
    journal.remove()
}

/// Makes the journal, then takes the disk into use.
fn begin<'a>(
    how: &'a ChangeOptions<'_>,
    edit: Edit,
    header: Header,
) -> Result<(Box<dyn HeldJournal + 'a>, EditSession)> {
    let journal = how.disk.machine.create_journal(how.disk.path, how.journal, header)?;
    match EditSession::begin(edit) {
        Ok(disk) => Ok((journal, disk)),
        Err(error) => {
            journal.remove()?;
            Err(error)
        }
    }
}

/// Carries out one volume's plan. The journal is there from before the first write until the disk is closed: what is killed in
/// between may leave marks in the image that only `recover` takes for its own.
fn change(
    how: &ChangeOptions<'_>,
    stack: &Stack,
    edit: Edit,
    planned: &PlannedVolume,
    index: usize,
) -> Result<RearrangeOutcome> {
    let volume = &stack.volumes()[index];
    let facts = volume.filesystem.as_ref().ok_or_else(lost)?.facts();
    let cancelled = how.observer.cancel()?;
    let identity = Identity {
        filesystem: facts.filesystem.clone(),
        uuid: facts.uuid.clone().unwrap_or_default(),
        format: stack.chain().facts().format.name().to_owned(),
    };
    let PlannedVolume { rearrange, plan, .. } = planned;
    let header = journal_header(&edit, span_of(volume)?, &**rearrange, &plan.batches, SLOT_BYTES, identity)?;
    let length_bytes = edit.chain().files()[0].len_bytes();
    let (journal, disk) = begin(how, edit, header)?;
    let releases = plan.all_releases();
    let progress = how.observer.progress("move", plan.moved_bytes, cancelled);
    let job = RearrangeJob {
        disk: disk.disk(),
        volume: span_of(volume)?,
        rearrange: &**rearrange,
        batches: &plan.batches,
        releases: &releases,
        holes: &plan.holes,
        journal: journal.file(),
        thread_count: how.disk.machine.thread_count(),
        slot_bytes: SLOT_BYTES,
    };
    match job.run(&*progress) {
        Ok(outcome) => {
            progress.finish();
            if !outcome.is_cancelled
                && let Err(error) = disk.shorten(length_bytes)
            {
                // If the disk failed by it, closing says so.
                how.observer.note(&format!("the image's file stays longer than it was: {error}"));
            }
            end(&disk, journal)?;
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
