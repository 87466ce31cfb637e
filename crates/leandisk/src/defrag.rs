//! `leandisk defrag` and `leandisk recover`: facts, plan, execution, proof.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use block::{Error, ErrorKind, HOST_BLOCK_BYTES, Result};
use claims::{Act, Seen};
use engine::RearrangeOutcome;
use extent::{Extent, ExtentSet, Span, Virtual, VirtualSpan, VolumeOffset};
use filesystem::{Check, FileId, Rearrange};
use image::{Chain, Edit};
use plan::defrag::{
    BackingMap, DefragOptions, DefragPlan, Hints, ImageUnits, Layout, LayoutFigures, WhyLeft, in_image_units,
    plan_in_place, plan_soon,
};
use predict::profile::HDD;
use predict::{fragmented_reading, free_after, predicted_figures, surveyed_figures};
use report::{DefragDocument, DefragSubject, DefragVolume, DefragWork, defrag_document, printable_name};
use stack::{Stack, Survey, Volume};

use crate::in_place::{
    BATCH_BYTES_MAX, CHECK_FIRST, ChangeOptions, ChangeOutcome, PlannedVolume, Soundness, VolumePlan,
    carry_out, check_can_be_opened, is_thin, plan_for_change, span_of,
};
use crate::machine::{Caching, Machine, ThisHost};
use crate::open::{Location, OpenOptions, check_claims};
use crate::pack::read_layout;
use crate::{Observer, Reported};

/// A thin disk is larger by no more than one part in so many when it is done.
const GROWTH_LEFT_PARTS: u64 = 1000;

/// How often it is tried with other files that move extent by extent, if some have no room for that.
const PARTS_TRIALS: usize = 6;

/// An image may have places for so many times what it may be larger by in the end, where the host stores nothing in them.
const PLACES_TIMES: u64 = 4;

/// Of files whose records lack room in a trial, one in so many moves as a whole in the next.
const CROWDED_PART: usize = 4;

/// Where those that may move extent by extent do, so few are left that moving them as a whole would not leave fewer: one in so many of them.
const FEW_LEFT_PART: usize = 4;

/// By how much a thin disk may be larger meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Growth {
    /// By 2 % of the disk, or a unit of its image if that is more.
    #[default]
    Auto,
    /// By so many bytes.
    Bytes(u64),
    /// By so many hundredths of a percent of the disk.
    BasisPoints(u32),
}

impl Growth {
    const AUTO: Self = Self::BasisPoints(200);
    const WHOLE: u64 = 10_000;

    /// For a disk of this size in an image that grows in such units.
    fn bytes(self, disk_bytes: u64, unit_bytes: u64) -> u64 {
        match self {
            Self::Auto => Self::AUTO.bytes(disk_bytes, unit_bytes).max(unit_bytes),
            Self::Bytes(bytes) => bytes,
            Self::BasisPoints(points) => (disk_bytes / Self::WHOLE).saturating_mul(points.into()),
        }
    }
}

/// What of the free room on the host a thin disk may take meanwhile: one part in so many.
const HOST_PARTS: u64 = 2;

/// What a disk is to look like.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Goal {
    /// Every file in one piece, with as little moved as possible.
    #[default]
    Files,
    /// The free space in one piece as well.
    Free,
    /// Everything sorted: directories, small files by directory, large files, then the free space.
    Pack,
}

impl Goal {
    /// As on the command line, and in documents.
    pub fn name(self) -> &'static str {
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

/// What is changed, and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The disk: an image file or a block device that nobody else uses.
    pub disk: PathBuf,
    /// How it is opened.
    pub open: OpenOptions,
    /// What it is to look like.
    pub goal: Goal,
    /// The only volume to change, counted from 1; `None` for all.
    pub volume: Option<u32>,
    /// Whether nothing is changed: everything is checked and planned as for the change.
    pub dry_run: bool,
    /// Whether all files are read before and after, and compared.
    pub verify: bool,
    /// Whether `$MFT` of NTFS is made contiguous, too.
    pub mft: bool,
    /// By how much a thin disk may be larger meanwhile, as far as half of what the host has free. In the end it is larger by a thousandth
    /// at the most.
    pub grow: Growth,
    /// Where the journal is written, if not beside the disk.
    pub journal: Option<PathBuf>,
}

/// Moves files until the disk is as the goal says, or says what would be moved. A stop at any moment leaves every file whole.
pub fn run(options: &Options, observer: &dyn Observer) -> Result<Reported<DefragDocument>> {
    run_on(&ThisHost, options, observer)
}

/// The same on another machine than this host.
pub fn run_on(
    machine: &dyn Machine,
    options: &Options,
    observer: &dyn Observer,
) -> Result<Reported<DefragDocument>> {
    let started = Instant::now();
    // Metadata are read more than once: by who surveys, who plans, and who checks. The proof reads from the storage.
    let location = Location { machine, path: &options.disk, options: &options.open };
    location.check_on_host()?;
    let disk = location.open(Caching::PageCache)?;
    let stack = &disk.stack;
    let seen = Seen::of(stack.chain());
    machine.check_journal_place(&options.disk, options.journal.as_deref())?;
    let resolver = location.resolver()?;
    check_claims(stack.chain(), &*resolver, Act::Change)?;
    Edit::check(stack.chain())?;
    check_volume_number(options, stack)?;
    if is_thin(stack.chain())? {
        location.check_usable()?;
    }

    let planning = observer.waiting("planning what moves");
    let growth_bytes_max = growth_bytes_max(location, options, stack.chain())?;
    let found = stack.used_maps(Check::Quick).and_then(|maps| stack.survey(&maps));
    let survey = seen.explain(stack.chain(), found)?;
    let plans: Result<Vec<_>> = (0..stack.volumes().len())
        .map(|index| plan_one(options, stack, &survey, growth_bytes_max, index))
        .collect();
    let plans = seen.explain(stack.chain(), plans)?;
    drop(planning);
    let proof = match options.dry_run {
        true => {
            check_can_be_opened(machine, stack, &*resolver, &plans)?;
            None
        }
        false => {
            let ChangeOutcome { after, outcomes, verified_files } =
                carry_out(&options.in_place(location, observer), stack, &*resolver, &plans, &seen)?;
            let survey = after.survey(&after.used_maps(Check::Quick)?)?;
            Some(Proof { survey, outcomes, verified_files })
        }
    };
    let volumes = stack.volumes().iter().enumerate().map(|(index, volume)| DefragVolume {
        index: index + 1,
        facts: volume.filesystem.as_ref().map(|filesystem| filesystem.facts()),
        size_bytes: volume.place.len_bytes(),
        work: work(&survey, &plans[index], proof.as_ref(), index),
    });
    let mut document = defrag_document(&DefragSubject {
        path: &options.disk.display().to_string(),
        format: stack.chain().facts().format.name(),
        goal: options.goal.name(),
        dry_run: options.dry_run,
        volumes: volumes.collect(),
        elapsed_seconds: started.elapsed().as_secs_f64(),
        verified_files: proof.as_ref().and_then(|proof| proof.verified_files),
    });
    let possible = check_any_was_possible(options, stack, plans);
    if let Err(error) = &possible {
        document.fail(error);
    }
    Ok(Reported { document, ended: possible })
}

fn check_volume_number(options: &Options, stack: &Stack) -> Result<()> {
    let count = stack.volumes().len();
    match options.volume {
        Some(number) if count > 0 && number as usize > count => {
            Err(Error::invalid("--volume").field("volume", number, format!("1 to {count}")))
        }
        _ => Ok(()),
    }
}

impl Options {
    fn in_place<'a>(&'a self, disk: Location<'a>, observer: &'a dyn Observer) -> ChangeOptions<'a> {
        ChangeOptions { disk, verify: self.verify, journal: self.journal.as_deref(), observer }
    }
}

/// By how much the disk may be larger meanwhile.
fn growth_bytes_max(location: Location<'_>, options: &Options, chain: &Chain) -> Result<u64> {
    let facts = chain.facts();
    let wanted = options.grow.bytes(facts.virtual_bytes, facts.cluster_bytes.unwrap_or(HOST_BLOCK_BYTES));
    Ok(wanted.min(location.machine.free_bytes(location.path)? / HOST_PARTS))
}

/// Plans one volume. What speaks against it is an answer; only a failure to read is an error.
fn plan_one(
    options: &Options,
    stack: &Stack,
    survey: &Survey,
    growth_bytes_max: u64,
    index: usize,
) -> Result<VolumePlan> {
    match plan_volume(options, stack, survey, growth_bytes_max, index) {
        Err(error) if error.kind() == ErrorKind::Io => Err(error),
        plan => Ok(plan),
    }
}

fn plan_volume(
    options: &Options,
    stack: &Stack,
    survey: &Survey,
    growth_bytes_max: u64,
    index: usize,
) -> VolumePlan {
    if options.volume.is_some_and(|number| number as usize != index + 1) {
        return Err(Error::refused("another volume was asked for"));
    }
    plan_for_change(stack, index, Soundness::ToBeChecked, |volume, filesystem, rearrange| {
        let growth_left_bytes_max = stack.chain().facts().virtual_bytes / GROWTH_LEFT_PARTS;
        let folder = |file| survey.volumes[index].catalog.as_ref()?.folder(file);
        let home = |file| rearrange.home(file);
        let hints = Hints { folder: Some(&folder), home: Some(&home) };
        let moves_holes = image::keeps_host_blocks(stack.chain(), span_of(volume)?)?;
        let is_short =
            |plan: &DefragPlan| plan.more_places_bytes <= growth_left_bytes_max.saturating_mul(PLACES_TIMES);
        let is_cheap = |plan: &DefragPlan| plan.moved_bytes <= cheap_bytes(plan.before.fragmented_bytes);
        let mut plans = Vec::new();
        for Storage { backing, unit_bytes, image } in storages(stack.chain(), volume, growth_bytes_max)? {
            let layout = read_layout(filesystem, rearrange, backing)?;
            let wanted = DefragOptions {
                goal: options.goal.into(),
                growth_bytes_max,
                growth_left_bytes_max,
                unit_bytes,
                unit_skew_bytes: span_of(volume)?.start().get() % unit_bytes,
                moves_holes,
                batch_bytes_max: BATCH_BYTES_MAX,
                moves_anchored: options.mft,
            };
            let counted = |layout: &Layout, plan: DefragPlan| match &image {
                Some(units) => in_image_units(layout, units, growth_bytes_max, plan),
                None => Some(plan),
            };
            let plan_as = |layout: &Layout| Ok(counted(layout, plan_in_place(layout, &wanted, &hints)?));
            let is_parted_first = options.goal == Goal::Files && !layout.together().is_empty();
            let soon = if is_parted_first { plan_soon(&layout, &wanted, &hints)? } else { None };
            let plan = match soon.and_then(|plan| counted(&layout, plan)) {
                Some(plan) => Some(plan),
                None => in_parts(&layout, rearrange, is_parted_first, plan_as)?,
            };
            let Some(plan) = plan else { continue };
            let is_enough = plan.left.is_empty()
                && plan.unmet.is_none()
                && (options.goal != Goal::Files || (is_cheap(&plan) && is_short(&plan)));
            plans.push(plan);
            if is_enough {
                break;
            }
        }
        let costs = |plan: &DefragPlan| match options.goal {
            Goal::Files => (!is_short(plan), plan.moved_bytes),
            _ => (false, 0),
        };
        let best = plans.into_iter().min_by_key(|plan| (plan.unmet.is_some(), plan.left.len(), costs(plan)));
        Ok(best.expect("there is at least one plan"))
    })
}

/// Where more moves than this, for so many bytes of files in pieces, it is looked whether another way of counting what the container takes needs less.
fn cheap_bytes(fragmented_bytes: u64) -> u64 {
    fragmented_bytes.saturating_add(fragmented_bytes / 2)
}

/// A plan; if there is one, one that leaves fewer files in pieces because those move extent by extent of which what describes them may have no
/// room for the longest that it might have to say: once a plan is known, so is what it has to say.
///
/// Where they are to be `tried_first`, and few are left then, no other plan is made: each takes seconds where little is free.
fn in_parts(
    layout: &Layout,
    rearrange: &dyn Rearrange,
    tried_first: bool,
    plan_as: impl Fn(&Layout) -> Result<Option<DefragPlan>>,
) -> Result<Option<DefragPlan>> {
    let together = layout.together();
    let plan_parts = |parts: &BTreeSet<FileId>| -> Result<Option<(DefragPlan, BTreeSet<FileId>)>> {
        let Some(plan) = plan_as(&layout.in_parts(parts))? else { return Ok(None) };
        let crowded = rearrange.crowded(parts, &plan.batches)?;
        Ok(Some((plan, crowded)))
    };
    let mut first = None;
    if tried_first {
        match plan_parts(&together)? {
            Some((plan, crowded))
                if crowded.is_empty() && plan.left.len() <= together.len() / FEW_LEFT_PART =>
            {
                return Ok(Some(plan));
            }
            tried => first = Some(tried),
        }
    }
    let Some(mut plan) = plan_as(layout)? else { return Ok(None) };
    let is_left_whole = plan.left.iter().any(|(file, _)| together.contains(file));
    // One of them that moves as a whole would be in the way of all others.
    let mut parts = if is_left_whole { together.clone() } else { BTreeSet::new() };
    let mut whole = BTreeSet::new();
    for _ in 0..PARTS_TRIALS {
        if parts.is_empty() {
            break;
        }
        let tried = first.take().map_or_else(|| plan_parts(&parts), Ok)?;
        // Where moving more freely is of no use, moving less freely is of none.
        let Some((other, crowded)) = tried.filter(|(other, _)| other.left.len() < plan.left.len()) else {
            break;
        };
        if crowded.is_empty() {
            return Ok(Some(other));
        }
        // Some of them at a time: what moves as a whole needs a place of its size, and is in everybody's way until it has one.
        let some = crowded.len().div_ceil(CROWDED_PART);
        whole.extend(crowded.into_iter().take(some));
        parts = together.difference(&whole).copied().collect();
        let for_room = |(file, why): &&mut (FileId, WhyLeft)| *why == WhyLeft::NoRoom && whole.contains(file);
        plan.left.iter_mut().filter(for_room).for_each(|(_, why)| *why = WhyLeft::Crowded);
    }
    Ok(Some(plan))
}

/// What the container has under a volume, and the unit in which it grows.
struct Storage {
    backing: BackingMap,
    unit_bytes: u64,
    /// What the image has places for, if more is counted than it has.
    image: Option<ImageUnits>,
}

/// How a plan counts what the container takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// Units of the image, and blocks of the host in holes of its file.
    Units,
    /// Blocks of the host, in units that the image has.
    BlocksOfItsUnits,
    /// The same, with as many more of them in one place as the image may keep.
    BlocksOfMoreUnits,
    /// Blocks of the host, in units that the image has or will have.
    Blocks,
}

/// What the container has under a volume, in the ways in which a plan can count it. The first that leaves nothing is taken.
///
/// An image can grow in units of its own, and the host's file in blocks where it has holes. A host that has holes in the file can store a part of
/// a unit: then blocks alone may count.
fn storages(chain: &Chain, volume: &Volume, growth_bytes_max: u64) -> Result<Vec<Storage>> {
    use image::Backing as Found;
    use plan::defrag::Backing;
    let span = span_of(volume)?;
    let start = span.start().get();
    let extents = image::backing(chain, span)?;
    let unit_bytes = chain.facts().cluster_bytes.unwrap_or(HOST_BLOCK_BYTES).max(HOST_BLOCK_BYTES);
    let has = |state| extents.iter().any(|extent| extent.state == state);
    let on_volume =
        |span: VirtualSpan| Span::new(VolumeOffset::new(span.start().get() - start), span.len_bytes());
    let image = || ImageUnits {
        unit_bytes,
        unit_skew_bytes: start % unit_bytes,
        present: extents
            .iter()
            .filter(|extent| extent.state != Found::Absent)
            .map(|extent| on_volume(extent.span))
            .collect(),
    };
    let more = more_units(&extents, unit_bytes, growth_bytes_max);
    let storage = |counted: Counted| {
        let state = |span, backing| match (backing, counted) {
            (Found::Allocated | Found::Reserved, _) => Backing::Allocated,
            (Found::Unallocated, Counted::Units) if unit_bytes > HOST_BLOCK_BYTES => Backing::Hole,
            (Found::Absent, Counted::BlocksOfMoreUnits) if more.covers(&span) => Backing::Unallocated,
            (Found::Absent, Counted::BlocksOfItsUnits | Counted::BlocksOfMoreUnits) => Backing::Withheld,
            (Found::Fixed, _) => Backing::Fixed,
            (Found::Absent | Found::Unallocated, _) => Backing::Unallocated,
        };
        let parts = extents.iter().flat_map(|extent| {
            let [before, within, after] = around(extent.span, more);
            [before, within, after].map(|part| (part, extent.state))
        });
        let parts = parts.filter(|(part, _)| !part.is_empty());
        Storage {
            backing: parts.map(|(part, found)| (on_volume(part), state(part, found))).collect(),
            unit_bytes: if counted == Counted::Units { unit_bytes } else { HOST_BLOCK_BYTES },
            image: matches!(counted, Counted::Blocks | Counted::BlocksOfMoreUnits).then(image),
        }
    };
    let mut ways = Vec::new();
    // A host that stores parts of units shows it by those that it does not, or only reserved: so it does where units were told to be zero.
    let stores_parts = has(Found::Unallocated) || has(Found::Reserved);
    let is_counted_alike = unit_bytes == HOST_BLOCK_BYTES || !stores_parts;
    if is_counted_alike || (has(Found::Absent) && unit_bytes <= growth_bytes_max) {
        ways.push(Counted::Units);
    }
    if !is_counted_alike {
        ways.push(Counted::BlocksOfItsUnits);
    }
    if !is_counted_alike && has(Found::Absent) {
        ways.extend([Counted::BlocksOfMoreUnits, Counted::Blocks]);
    }
    Ok(ways.into_iter().map(storage).collect())
}

/// `bytes` in whole units, one at least, where the image lacks the most of them in one piece.
fn more_units(extents: &[Extent<Virtual, image::Backing>], unit_bytes: u64, bytes: u64) -> VirtualSpan {
    let absent = extents.iter().filter(|extent| extent.state == image::Backing::Absent);
    let longest = absent.map(|extent| extent.span).max_by_key(VirtualSpan::len_bytes);
    let longest = longest.unwrap_or(Span::from_zero(0));
    let bytes = (bytes / unit_bytes).max(1).saturating_mul(unit_bytes);
    Span::new(longest.start(), bytes.min(longest.len_bytes()))
}

/// What of `span` lies before `window`, in it and after it.
fn around(span: VirtualSpan, window: VirtualSpan) -> [VirtualSpan; 3] {
    let clamped = |at: extent::VirtualOffset| at.clamp(span.start(), span.end());
    let (start, end) = (clamped(window.start()), clamped(window.end()));
    [Span::between(span.start(), start), Span::between(start, end), Span::between(end, span.end())]
}

/// The disk after the change, and what was done to each volume.
struct Proof {
    survey: Survey,
    outcomes: Vec<RearrangeOutcome>,
    verified_files: Option<u64>,
}

/// What there is to say of a volume.
fn work<'a>(
    survey: &Survey,
    plan: &'a VolumePlan,
    proof: Option<&Proof>,
    index: usize,
) -> Result<DefragWork<'a>, String> {
    let planned = plan.as_ref().map_err(ToString::to_string)?;
    let found = &survey.volumes[index];
    let catalog = found.catalog.as_ref().ok_or("its files cannot be listed")?;
    let before = surveyed_figures(found);
    let (after, written): (LayoutFigures, _) = match proof {
        None => (predicted_figures(before, &predicted_free(planned), &planned.plan), (0, 0)),
        Some(proof) => {
            let outcome = proof.outcomes[index];
            let found = &proof.survey.volumes[index];
            (surveyed_figures(found), (outcome.metadata_written_bytes, outcome.journal_written_bytes))
        }
    };
    let reading = fragmented_reading(found, catalog, &planned.plan.batches, &HDD);
    let left_paths = planned.plan.left.iter().map(|(file, _)| printable_name(&catalog.path(*file))).collect();
    let free_bytes = predicted_free(planned).total_bytes();
    Ok(DefragWork { plan: &planned.plan, before, after, free_bytes, written, left_paths, reading })
}

/// What will be free. Maps that get smaller leave something, too, as far as can be told before.
fn predicted_free(planned: &PlannedVolume) -> ExtentSet<extent::Volume> {
    free_after(&planned.free, &planned.plan.batches, &planned.freed())
}

/// Fails if no volume could be changed, for the reason of the one asked for, else of the first.
fn check_any_was_possible(options: &Options, stack: &Stack, plans: Vec<VolumePlan>) -> Result<()> {
    if plans.iter().any(Result::is_ok) {
        return Ok(());
    }
    let asked = options.volume.map_or(0, |number| number as usize - 1);
    match plans.into_iter().nth(asked) {
        // A volume in doubt is not changed, whoever is to blame: nothing was tried that could fail.
        Some(Err(error)) if error.kind() == ErrorKind::Corrupt => {
            let refused = Error::refused(error.to_string()).path(options.disk.display());
            Err(refused.hint(error.hint_text().unwrap_or(CHECK_FIRST)).because(error))
        }
        Some(Err(error)) => Err(error.path(options.disk.display())),
        _ => Err(Error::unsupported(stack.why_no_volume()).path(options.disk.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use block::ReadAt;
    use extent::{Offset, Volume as VolumeSpace, VolumeSpan};
    use filesystem::{
        Edits, FileExtent, FileKind, FileStream, Fragments, Mobility, PieceState, Relocations, Rewritten,
        StreamName, StreamVisitor,
    };
    use plan::defrag::Backing;

    use image::Backing::{Absent, Allocated, Unallocated};

    use super::*;

    const UNIT_BYTES: u64 = 8 << 20;

    fn units(start: u64, count: u64) -> VirtualSpan {
        Span::new(extent::VirtualOffset::new(start * UNIT_BYTES), count * UNIT_BYTES)
    }

    #[test]
    fn more_units_are_whole_and_lie_where_most_are_missing() {
        let extents: Vec<_> = [(0, 3, Absent), (3, 20, Allocated), (23, 1, Unallocated), (24, 9, Absent)]
            .map(|(start, count, state)| Extent { span: units(start, count), state })
            .into();
        // Two and a half, less than one, more than there are.
        for (bytes, count) in [(UNIT_BYTES * 5 / 2, 2), (4096, 1), (1 << 40, 9)] {
            assert_eq!(more_units(&extents, UNIT_BYTES, bytes), units(24, count));
        }
        assert!(more_units(&extents[1..3], UNIT_BYTES, 1 << 40).is_empty());
    }

    #[test]
    fn what_is_around_a_window_is_all_of_a_span() {
        let window = units(10, 4);
        for span in [units(0, 5), units(8, 3), units(8, 9), units(11, 1), units(12, 9), units(20, 2)] {
            let [before, within, after] = around(span, window);
            assert_eq!(span.intersect(&window), Some(within).filter(|within| !within.is_empty()));
            assert!(before.end() == within.start() && within.end() == after.start());
            assert_eq!((before.start(), after.end()), (span.start(), span.end()));
        }
    }

    const CLUSTER: u64 = 4096;

    fn clusters(start: u64, count: u64) -> VolumeSpan {
        Span::new(VolumeOffset::new(start * CLUSTER), count * CLUSTER)
    }

    /// A volume whose records have room for nothing but streams that move as a whole, unless `has_room`.
    struct Records {
        has_room: bool,
    }

    impl Rearrange for Records {
        fn cluster_bytes(&self) -> u64 {
            CLUSTER
        }

        /// One in two pieces, with another one between them.
        fn each_stream(&self, visitor: &mut dyn StreamVisitor) -> Result<()> {
            let files = [
                (10, Mobility::Together, vec![clusters(0, 4), clusters(8, 4)]),
                (11, Mobility::Movable, vec![clusters(4, 4)]),
            ];
            for (file, mobility, spans) in files {
                let (file, kind, name) = (FileId(file), FileKind::Regular, StreamName::Main);
                let size_bytes = spans.iter().map(VolumeSpan::len_bytes).sum();
                let mut logical = Offset::ZERO;
                let extents: Vec<_> = spans
                    .into_iter()
                    .map(|span| {
                        let extent = FileExtent { logical, span, state: PieceState::Written };
                        logical = logical.plus(span.len_bytes());
                        extent
                    })
                    .collect();
                let stream = FileStream { file, kind, name, size_bytes, is_inline: false };
                visitor.stream(stream, &extents, mobility);
            }
            Ok(())
        }

        /// As much as one piece has.
        fn each_room(&self, each: &mut dyn FnMut(VolumeSpan)) -> Result<()> {
            each(clusters(12, 4));
            Ok(())
        }

        fn edits(&self, _volume: &dyn ReadAt<VolumeSpace>, _relocations: &Relocations) -> Result<Edits> {
            unreachable!("nothing is carried out")
        }

        fn crowded(&self, files: &BTreeSet<FileId>, _batches: &[Relocations]) -> Result<BTreeSet<FileId>> {
            Ok(if self.has_room { BTreeSet::new() } else { files.clone() })
        }

        fn rewritten(&self, _relocations: Arc<Relocations>) -> Result<Box<dyn Rewritten>> {
            unreachable!("nothing is copied")
        }

        fn witnesses(&self, _batches: &[Relocations]) -> Result<Vec<VolumeSpan>> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn a_file_is_left_for_the_room_in_its_records_where_that_is_the_bound() {
        let left = |has_room| {
            let records = Records { has_room };
            let backing = vec![(clusters(0, 16), Backing::Allocated)];
            let mut layout = Layout::new(CLUSTER, Fragments::of_adjacent(), backing);
            records.each_stream(&mut layout).unwrap();
            records.each_room(&mut |span| layout.add_room(span)).unwrap();
            let options = DefragOptions {
                goal: plan::defrag::Goal::Files,
                growth_bytes_max: 0,
                growth_left_bytes_max: 0,
                unit_bytes: CLUSTER,
                unit_skew_bytes: 0,
                moves_holes: true,
                batch_bytes_max: 1 << 30,
                moves_anchored: false,
            };
            let plan_count = Cell::new(0);
            let plan_as = |layout: &Layout| {
                plan_count.set(plan_count.get() + 1);
                plan_in_place(layout, &options, &Hints::default()).map(Some)
            };
            let plan = plan_as(&layout).unwrap().unwrap();
            assert_eq!(plan.left, [(FileId(10), WhyLeft::NoRoom)], "as a whole it fits nowhere");
            let whole_first = in_parts(&layout, &records, false, plan_as).unwrap().unwrap();
            plan_count.set(0);
            let parts_first = in_parts(&layout, &records, true, plan_as).unwrap().unwrap();
            assert_eq!(whole_first.left, parts_first.left);
            assert_eq!(plan_count.get(), if has_room { 1 } else { 2 }, "none is made that is not needed");
            parts_first.left
        };
        assert_eq!(left(true), []);
        assert_eq!(left(false), [(FileId(10), WhyLeft::Crowded)]);
    }
}
