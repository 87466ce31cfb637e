//! What an image holds that its guest does not use, and that can be given back where it lies.
//!
//! Invariants:
//! - a unit of the image is released only if nothing in it is needed: what a trusted volume calls free or swap, and what
//!   the image or the host knows to be zeros, is not; everything else is;
//! - what is kept stays in its place, but for what [`crate::shorten`] takes from the file's end down into gaps.
//!
//! Absent on purpose: looking for zeros in data, which would have to be read; consolidating units that hold little, which is
//! what defragmenting is for.

use block::{HOST_BLOCK_BYTES, Occupancy, Run, RunState, UnitMove};
use extent::{
    ExtentSet, Host, HostOffset, HostSpan, PackedExtents, Span, Virtual, VirtualOffset, VirtualSpan,
};

use crate::facts::{Fact, Role, VolumeIndex};
use crate::shorten::{MoveWhen, ShortenPlan, shorten};

/// How an image gives storage back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompactShape {
    /// What it gives back at once: its cluster or block, or a block of the host where those keep their places.
    pub unit_bytes: u64,
    /// Whether a unit that is given back leaves the image's tables; else only its storage goes.
    pub frees_units: bool,
    /// The image's blocks, if they keep their places: storage goes block by block, so that what of the host two of them
    /// share stays.
    pub block_bytes: Option<u64>,
    /// Whether such a block can lose its place, if others move into the gap.
    pub blocks_may_leave: bool,
    /// What lies before each unit's data in the file, and goes with it: a bitmap of sectors.
    pub head_bytes: u64,
}

/// One volume's share of the plan, in bytes of the virtual disk.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct CompactShare {
    /// Used by the guest: all of it if the volume is left whole.
    pub used_bytes: u64,
    /// Free in its file system.
    pub free_bytes: u64,
    /// Contents of swap in it.
    pub swap_bytes: u64,
}

/// What to give back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompactPlan {
    /// Size of the virtual disk.
    pub virtual_bytes: u64,
    /// What an image gives back at once.
    pub unit_bytes: u64,
    /// What to release, in order.
    pub releases: PackedExtents<Virtual>,
    /// What must be as it was afterwards, in order: needed, and not known to be zeros.
    pub kept: PackedExtents<Virtual>,
    /// Bytes of the host's storage that become free.
    pub freed_bytes: u64,
    /// Free or swap, but held in units that hold something needed as well.
    pub partial_bytes: u64,
    /// How many units those are.
    pub partial_units: u64,
    /// Shares by volume.
    pub volumes: Vec<CompactShare>,
    /// What moves within the image's file once all is released.
    pub moves: Vec<UnitMove>,
    /// Bytes of the file that move.
    pub moved_bytes: u64,
    /// The length of the image's file afterwards; `None` if it stays.
    pub length_bytes: Option<u64>,
    /// Blocks that are released as a whole lose their places.
    pub blocks_leave: bool,
}

/// What is known of the file of an image whose units can be moved.
#[derive(Clone, Copy)]
pub struct FileFacts<'a> {
    /// What lies where.
    pub occupancy: &'a Occupancy,
    /// What the host has data for, rather than storage that reads as zeros.
    pub written: &'a ExtentSet<Host>,
}

/// Makes a plan from facts handed in from the disk's start to its end.
pub struct CompactPlanner<'a> {
    shape: CompactShape,
    /// Which volumes' used maps are to be relied on.
    trusted: Vec<bool>,
    /// What of each file the host has storage for.
    held: &'a [ExtentSet<Host>],
    plan: CompactPlan,
    /// Places of what is released from the tables, and of what is compressed and kept, by file.
    released: Vec<Vec<HostSpan>>,
    kept_compressed: Vec<Vec<HostSpan>>,
    released_end: VirtualOffset,
    /// Blocks that may lose their places, and what else of blocks is given back.
    leaving: ExtentSet<Virtual>,
    emptied: Vec<HostSpan>,
}

impl<'a> CompactPlanner<'a> {
    /// A planner for a disk with a volume for each of `trusted`; `held` tells what the host holds of each file.
    pub fn new(shape: CompactShape, trusted: Vec<bool>, held: &'a [ExtentSet<Host>]) -> Self {
        let plan = CompactPlan {
            virtual_bytes: 0,
            unit_bytes: shape.unit_bytes,
            releases: PackedExtents::new(),
            kept: PackedExtents::new(),
            freed_bytes: 0,
            partial_bytes: 0,
            partial_units: 0,
            volumes: vec![CompactShare::default(); trusted.len()],
            moves: Vec::new(),
            moved_bytes: 0,
            length_bytes: None,
            blocks_leave: false,
        };
        Self {
            shape,
            trusted,
            held,
            plan,
            released: vec![Vec::new(); held.len()],
            kept_compressed: vec![Vec::new(); held.len()],
            released_end: VirtualOffset::ZERO,
            leaving: ExtentSet::new(),
            emptied: Vec::new(),
        }
    }

    /// Takes the next facts, and the runs of the image over the same window without the host's holes. Panics unless the
    /// window begins where the last one ended, and at a unit, or a block that may lose its place.
    pub fn add(&mut self, facts: &[Fact], runs: &[Run]) {
        let (Some(first), Some(last)) = (facts.first(), facts.last()) else { return };
        let window = Span::between(first.span.start(), last.span.end());
        assert_eq!(window.start().get(), self.plan.virtual_bytes, "windows follow each other");
        assert!(window.start().get().is_multiple_of(self.shape.unit_bytes), "windows begin at a unit");
        self.plan.virtual_bytes = window.end().get();
        for fact in facts {
            self.share(fact);
        }
        let kept = self.kept_units(window, facts);
        self.count_partial(&kept, facts);
        let free = kept.invert(window);
        if let Some(block_bytes) = self.shape.block_bytes.filter(|_| self.shape.blocks_may_leave) {
            self.leave(window, facts, runs, block_bytes);
        }
        for run in runs {
            for part in free.within(run.span).filter_map(|part| run.clipped(&part)) {
                self.release(&part, window);
            }
            if let RunState::Compressed { file, offset, len_bytes } = run.state
                && kept.within(run.span).next().is_some()
            {
                let place = self.whole_clusters(offset, len_bytes);
                self.kept_compressed[file.0 as usize].push(place);
            }
        }
    }

    /// The plan for all that was added, with everything in its place.
    pub fn finish(mut self) -> CompactPlan {
        for (index, held) in self.held.iter().enumerate() {
            for span in self.released_places(index).iter() {
                self.plan.freed_bytes += held_bytes(held, whole_blocks(span));
            }
        }
        self.plan
    }

    /// The plan for all that was added to an image whose units can be moved.
    pub fn finish_shortened(mut self, file: FileFacts<'_>, when: MoveWhen) -> CompactPlan {
        let leaving = std::mem::take(&mut self.leaving);
        let in_place: ExtentSet<Virtual> = self.plan.releases.iter().collect();
        let released = if self.shape.frees_units { &in_place } else { &leaving };
        let kept = self.plan.kept.iter().collect();
        let places = self.released_places(0);
        let room_bytes = places.iter().map(|span| held_bytes(&self.held[0], whole_blocks(span))).sum();
        let shortening = shorten(file.occupancy, released, &kept, room_bytes, when);
        let is_any = !released.is_empty() || !shortening.moves.is_empty();
        if !is_any || (!self.shape.frees_units && !shortening.is_complete) {
            self.released[0] = places.iter().collect();
            return self.finish();
        }
        self.plan.blocks_leave = self.shape.blocks_may_leave;
        if self.plan.blocks_leave {
            self.plan.releases = PackedExtents::new();
            for span in in_place.union(&leaving).iter() {
                self.plan.releases.push(span);
            }
        }
        self.plan.freed_bytes = self.freed_by(&shortening, file, &places);
        self.plan.length_bytes = Some(shortening.length_bytes);
        self.plan.moved_bytes = shortening.moved_bytes;
        self.plan.moves = shortening.moves;
        self.plan
    }

    /// The host's storage that is free once all was released and moved.
    fn freed_by(&self, shortening: &ShortenPlan, file: FileFacts<'_>, places: &ExtentSet<Host>) -> u64 {
        let slot_bytes = file.occupancy.slot_bytes();
        let sources = shortening.moves.iter().map(|moved| Span::new(moved.from, moved.count * slot_bytes));
        let targets = shortening.moves.iter().map(|moved| Span::new(moved.to, moved.count * slot_bytes));
        // What is given back at once can free a block of the host together, and only that.
        let together: [ExtentSet<Host>; 4] = [
            places.iter().chain(self.emptied.iter().copied()).collect(),
            shortening.dropped.iter().copied().collect(),
            sources.collect(),
            targets.collect(),
        ];
        let given_back = together.iter().flat_map(|places| places.iter().map(whole_blocks)).collect();
        // What is given back within a block before it moves does not go with it.
        let emptied: ExtentSet<Host> = self.emptied.iter().copied().collect();
        let rest = file.written.subtract(&emptied);
        let mut written = Vec::new();
        for moved in &shortening.moves {
            for part in rest.within(Span::new(moved.from, moved.count * slot_bytes)) {
                let start = moved.to.plus(part.start().get() - moved.from.get());
                written.push(touched_blocks(Span::new(start, part.len_bytes())));
            }
        }
        let end = touched_blocks(Span::from_zero(shortening.length_bytes));
        let held = &self.held[0];
        let after = held.subtract(&given_back).union(&written.into_iter().collect());
        held.total_bytes().saturating_sub(after.within(end).map(|part| part.len_bytes()).sum())
    }

    /// What is released of a file, but what something compressed that is kept shares.
    fn released_places(&mut self, index: usize) -> ExtentSet<Host> {
        let released: ExtentSet<Host> = std::mem::take(&mut self.released[index]).into_iter().collect();
        let kept: ExtentSet<Host> = std::mem::take(&mut self.kept_compressed[index]).into_iter().collect();
        released.subtract(&kept)
    }

    /// Blocks in which nothing is needed.
    fn leave(&mut self, window: VirtualSpan, facts: &[Fact], runs: &[Run], block_bytes: u64) {
        assert!(window.start().get().is_multiple_of(block_bytes), "windows begin at a block");
        let needed = facts.iter().filter(|fact| self.is_needed(fact));
        let kept: ExtentSet<Virtual> =
            needed.map(|fact| whole_parts(fact.span, block_bytes, window)).collect();
        for run in runs.iter().filter(|run| matches!(run.state, RunState::Data { .. })) {
            for block in blocks(run.span, block_bytes).filter_map(|block| block.intersect(&window)) {
                if kept.within(block).next().is_none() {
                    self.leaving.push(block);
                }
            }
        }
    }

    fn is_needed(&self, fact: &Fact) -> bool {
        let means_nothing = match fact.role {
            Role::Free(VolumeIndex(index)) | Role::Swap(VolumeIndex(index)) => self.trusted[index],
            Role::Outside | Role::Whole(_) | Role::Used(_) | Role::EmptyLog(..) => false,
        };
        !means_nothing && !matches!(fact.state, RunState::Hole | RunState::Zero)
    }

    fn share(&mut self, fact: &Fact) {
        let len_bytes = fact.span.len_bytes();
        match fact.role {
            Role::Outside => {}
            Role::Free(VolumeIndex(index)) if self.trusted[index] => {
                self.plan.volumes[index].free_bytes += len_bytes;
            }
            Role::Swap(VolumeIndex(index)) if self.trusted[index] => {
                self.plan.volumes[index].swap_bytes += len_bytes;
            }
            Role::Whole(VolumeIndex(index))
            | Role::Used(VolumeIndex(index))
            | Role::EmptyLog(VolumeIndex(index), _)
            | Role::Free(VolumeIndex(index))
            | Role::Swap(VolumeIndex(index)) => self.plan.volumes[index].used_bytes += len_bytes,
        }
    }

    /// The units that hold something needed, cut off at the window's end.
    fn kept_units(&mut self, window: VirtualSpan, facts: &[Fact]) -> ExtentSet<Virtual> {
        let mut kept = ExtentSet::new();
        for fact in facts {
            if self.is_needed(fact) {
                self.plan.kept.push(fact.span);
                kept.push(self.whole_units(fact.span, window));
            }
        }
        kept
    }

    /// `span` out to the ends of its units, within `window`.
    fn whole_units(&self, span: VirtualSpan, window: VirtualSpan) -> VirtualSpan {
        whole_parts(span, self.shape.unit_bytes, window)
    }

    fn count_partial(&mut self, kept: &ExtentSet<Virtual>, facts: &[Fact]) {
        let unit_bytes = self.shape.unit_bytes;
        let mut counted = None;
        for fact in facts.iter().filter(|fact| matches!(fact.state, RunState::Data { .. })) {
            if self.is_needed(fact) {
                continue;
            }
            for part in kept.within(fact.span) {
                self.plan.partial_bytes += part.len_bytes();
                let (first, last) = (part.start().get() / unit_bytes, part.end().get().div_ceil(unit_bytes));
                let from = counted.map_or(first, |counted: u64| first.max(counted));
                self.plan.partial_units += last.saturating_sub(from);
                counted = Some(last);
            }
        }
    }

    /// Releases a part of a run, in which nothing is needed.
    fn release(&mut self, run: &Run, window: VirtualSpan) {
        match run.state {
            RunState::Hole | RunState::Zero => {}
            RunState::Data { file, offset } if self.shape.frees_units => {
                let whole = self.push_units(run.span, window);
                let before = run.span.start().get() - whole.start().get();
                let start = offset.get().saturating_sub(before + self.shape.head_bytes);
                let end = offset.plus(whole.end().get() - run.span.start().get());
                self.push_released(file.0, Span::between(HostOffset::new(start), end));
            }
            RunState::Data { .. } => match self.shape.block_bytes {
                Some(block_bytes) => {
                    for part in blocks(run.span, block_bytes).filter_map(|block| run.clipped(&block)) {
                        self.release_storage(&part);
                    }
                }
                None => self.release_storage(run),
            },
            RunState::Compressed { file, offset, len_bytes } => {
                self.push_units(run.span, window);
                let place = self.whole_clusters(offset, len_bytes);
                self.push_released(file.0, place);
            }
        }
    }

    /// Releases the whole blocks that the host holds of a run of data.
    fn release_storage(&mut self, run: &Run) {
        let RunState::Data { file, offset } = run.state else { return };
        let held = &self.held[file.0 as usize];
        let place = whole_blocks(Span::new(offset, run.span.len_bytes()));
        if place.is_empty() {
            return;
        }
        for part in held.within(place).map(whole_blocks).filter(|part| !part.is_empty()) {
            let start = run.span.start().plus(part.start().get() - offset.get());
            self.plan.releases.push(Span::new(start, part.len_bytes()));
            self.plan.freed_bytes += part.len_bytes();
            if self.shape.blocks_may_leave {
                self.emptied.push(part);
            }
        }
    }

    /// Releases the units of `span` that are not released yet; answers all of its units.
    fn push_units(&mut self, span: VirtualSpan, window: VirtualSpan) -> VirtualSpan {
        let whole = self.whole_units(span, window);
        if whole.end() > self.released_end {
            self.plan.releases.push(Span::between(whole.start().max(self.released_end), whole.end()));
            self.released_end = whole.end();
        }
        whole
    }

    fn push_released(&mut self, file: u32, place: HostSpan) {
        let spans = &mut self.released[file as usize];
        match spans.last_mut() {
            Some(last) if last.end() == place.start() => *last = Span::between(last.start(), place.end()),
            _ => spans.push(place),
        }
    }

    /// Compressed units share clusters of the file.
    fn whole_clusters(&self, at: HostOffset, len_bytes: u64) -> HostSpan {
        let unit_bytes = self.shape.unit_bytes;
        let start = at.get() / unit_bytes * unit_bytes;
        let end = at.get().saturating_add(len_bytes).checked_next_multiple_of(unit_bytes);
        Span::between(HostOffset::new(start), HostOffset::new(end.unwrap_or(u64::MAX)))
    }
}

/// The blocks that `span` touches.
fn blocks(span: VirtualSpan, block_bytes: u64) -> impl Iterator<Item = VirtualSpan> {
    let numbers = span.start().get() / block_bytes..span.end().get().div_ceil(block_bytes);
    numbers.map(move |number| Span::new(VirtualOffset::new(number * block_bytes), block_bytes))
}

/// `span` out to the ends of its parts of `part_bytes`, within `window`.
fn whole_parts(span: VirtualSpan, part_bytes: u64, window: VirtualSpan) -> VirtualSpan {
    let start = span.start().get() / part_bytes * part_bytes;
    let end = span.end().get().checked_next_multiple_of(part_bytes).unwrap_or(u64::MAX);
    Span::between(VirtualOffset::new(start), VirtualOffset::new(end).min(window.end()))
}

/// The blocks of the host that `span` touches.
fn touched_blocks(span: HostSpan) -> HostSpan {
    let start = span.start().get() / HOST_BLOCK_BYTES * HOST_BLOCK_BYTES;
    let end = span.end().get().checked_next_multiple_of(HOST_BLOCK_BYTES).unwrap_or(u64::MAX);
    Span::between(HostOffset::new(start), HostOffset::new(end))
}

/// The whole blocks of the host within `span`.
fn whole_blocks(span: HostSpan) -> HostSpan {
    let start = span.start().get().checked_next_multiple_of(HOST_BLOCK_BYTES).unwrap_or(u64::MAX);
    let end = span.end().get() / HOST_BLOCK_BYTES * HOST_BLOCK_BYTES;
    Span::between(HostOffset::new(start), HostOffset::new(end.max(start)))
}

fn held_bytes(held: &ExtentSet<Host>, span: HostSpan) -> u64 {
    if span.is_empty() { 0 } else { held.within(span).map(|part| part.len_bytes()).sum() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::FileIndex;
    use proptest::prelude::*;

    const K: u64 = 1024;

    fn host(start: u64, len: u64) -> HostSpan {
        Span::new(HostOffset::new(start), len)
    }

    fn at(start: u64, len: u64) -> VirtualSpan {
        Span::new(VirtualOffset::new(start), len)
    }

    fn data(offset: u64) -> RunState {
        RunState::Data { file: FileIndex(0), offset: HostOffset::new(offset) }
    }

    fn shape(unit_bytes: u64, frees_units: bool, head_bytes: u64) -> CompactShape {
        CompactShape { unit_bytes, frees_units, block_bytes: None, blocks_may_leave: false, head_bytes }
    }

    fn spans(plan: &CompactPlan) -> Vec<(u64, u64)> {
        plan.releases.iter().map(|span| (span.start().get(), span.len_bytes())).collect()
    }

    const FREE: Role = Role::Free(VolumeIndex(0));
    const USED: Role = Role::Used(VolumeIndex(0));

    /// A plan for a disk with these roles, a piece of `piece_bytes` each, all of it at one place in the file.
    fn plan_of(
        shape: CompactShape,
        trusted: bool,
        base: u64,
        piece_bytes: u64,
        roles: &[Role],
    ) -> CompactPlan {
        let held: [ExtentSet<Host>; 1] = [[host(0, 1 << 30)].into_iter().collect()];
        let mut planner = CompactPlanner::new(shape, vec![trusted], &held);
        let facts: Vec<_> = (0..)
            .zip(roles)
            .map(|(index, role)| Fact {
                span: at(index * piece_bytes, piece_bytes),
                state: data(base + index * piece_bytes),
                role: *role,
            })
            .collect();
        let run = Run::new(at(0, piece_bytes * roles.len() as u64), data(base));
        planner.add(&facts, &[run]);
        planner.finish()
    }

    #[test]
    fn whole_units_go_and_partial_ones_are_counted() {
        let roles = [USED, FREE, FREE, FREE, FREE, FREE, FREE, USED];
        let plan = plan_of(shape(64 * K, true, 0), true, 1 << 20, 16 * K, &roles);
        assert_eq!(spans(&plan), []);
        assert_eq!((plan.partial_bytes, plan.partial_units, plan.freed_bytes), (96 * K, 2, 0));
        let plan = plan_of(shape(32 * K, true, 0), true, 1 << 20, 16 * K, &roles);
        assert_eq!(spans(&plan), [(32 * K, 64 * K)]);
        assert_eq!((plan.partial_bytes, plan.partial_units, plan.freed_bytes), (32 * K, 2, 64 * K));
        let kept: Vec<_> = plan.kept.iter().map(|span| (span.start().get(), span.len_bytes())).collect();
        assert_eq!(kept, [(0, 16 * K), (112 * K, 16 * K)]);
        assert_eq!(plan.volumes[0], CompactShare { used_bytes: 32 * K, free_bytes: 96 * K, swap_bytes: 0 });
    }

    #[test]
    fn a_volume_that_is_not_trusted_keeps_everything() {
        let plan = plan_of(shape(32 * K, true, 0), false, 1 << 20, 16 * K, &[FREE; 8]);
        assert_eq!((spans(&plan), plan.freed_bytes, plan.kept.total_bytes()), (vec![], 0, 128 * K));
        assert_eq!(plan.volumes[0].used_bytes, 128 * K);
    }

    #[test]
    fn what_is_freed_is_whole_blocks_of_the_host() {
        // A unit at an odd place, with a bitmap of 512 bytes before it.
        let plan =
            plan_of(shape(32 * K, true, 512), true, (1 << 20) + 512, 16 * K, &[FREE, FREE, USED, USED]);
        assert_eq!((spans(&plan), plan.freed_bytes), (vec![(0, 32 * K)], 32 * K));
        let plan =
            plan_of(shape(32 * K, true, 512), true, (1 << 20) + 1024, 16 * K, &[FREE, FREE, USED, USED]);
        assert_eq!((spans(&plan), plan.freed_bytes), (vec![(0, 32 * K)], 28 * K));
    }

    #[test]
    fn storage_that_goes_by_units_leaves_the_blocks_that_they_share() {
        let by_unit = CompactShape { block_bytes: Some(32 * K), ..shape(4 * K, false, 0) };
        let plan = plan_of(by_unit, true, 1 << 20, 16 * K, &[FREE, FREE, FREE, FREE, USED]);
        assert_eq!((spans(&plan), plan.freed_bytes), (vec![(0, 64 * K)], 64 * K));
        let plan = plan_of(by_unit, true, (1 << 20) + 512, 16 * K, &[FREE, FREE, FREE, FREE, USED]);
        let first = (4 * K - 512, 28 * K);
        assert_eq!((spans(&plan), plan.freed_bytes), (vec![first, (36 * K - 512, 28 * K)], 56 * K));
    }

    #[test]
    fn a_cluster_that_compressed_units_share_goes_with_the_last() {
        let held: [ExtentSet<Host>; 1] = [[host(0, 1 << 30)].into_iter().collect()];
        let compressed = |offset: u64| RunState::Compressed {
            file: FileIndex(0),
            offset: HostOffset::new(offset),
            len_bytes: 30 * K,
        };
        let runs: Vec<_> = (0..4)
            .map(|index| Run::new(at(index * 64 * K, 64 * K), compressed((1 << 20) + index * 32 * K)))
            .collect();
        for (roles, freed) in [
            ([FREE, FREE, USED, USED], 64 * K),
            ([USED, FREE, FREE, FREE], 64 * K),
            ([FREE; 4], 128 * K),
            ([USED, FREE, FREE, USED], 0),
        ] {
            let mut planner = CompactPlanner::new(shape(64 * K, true, 0), vec![true], &held);
            let facts: Vec<_> = runs
                .iter()
                .zip(roles)
                .map(|(run, role)| Fact { span: run.span, state: run.state, role })
                .collect();
            planner.add(&facts, &runs);
            let plan = planner.finish();
            assert_eq!(plan.freed_bytes, freed, "{roles:?}");
            assert_eq!(
                plan.releases.total_bytes(),
                64 * K * roles.iter().filter(|role| **role == FREE).count() as u64
            );
        }
    }

    proptest! {
        /// Against a model that goes block by block.
        #[test]
        fn a_plan_is_what_the_naive_model_says(
            blocks in prop::collection::vec((0..3u8, any::<bool>()), 1..64),
            unit_blocks in 1..6u64,
            frees_units in any::<bool>()
        ) {
            let unit_bytes = unit_blocks * HOST_BLOCK_BYTES;
            let base = 1 << 20;
            let place = |index: u64| host(base + index * HOST_BLOCK_BYTES, HOST_BLOCK_BYTES);
            let held: [ExtentSet<Host>; 1] =
                [(0..).zip(&blocks).filter(|(_, (_, held))| *held).map(|(index, _)| place(index)).collect()];
            let role = |kind| match kind { 0 => USED, 1 => FREE, _ => Role::Swap(VolumeIndex(0)) };
            let facts: Vec<_> = (0..).zip(&blocks).map(|(index, (kind, held))| Fact {
                span: at(index * HOST_BLOCK_BYTES, HOST_BLOCK_BYTES),
                state: if *held { data(place(index).start().get()) } else { RunState::Zero },
                role: role(*kind),
            }).collect();
            let runs = [Run::new(at(0, blocks.len() as u64 * HOST_BLOCK_BYTES), data(base))];
            let mut planner = CompactPlanner::new(shape(unit_bytes, frees_units, 0), vec![true], &held);
            planner.add(&facts, &runs);
            let plan = planner.finish();
            let unit = |index: usize| index / usize::try_from(unit_blocks).unwrap();
            let is_kept = |index: usize| (0..).zip(&blocks).any(|(other, (kind, held))| unit(other) == unit(index) && *kind == 0 && *held);
            let (mut released, mut freed, mut partial) = (0, 0, 0);
            for (index, (kind, held)) in blocks.iter().enumerate() {
                let kept = is_kept(index);
                released += u64::from(!kept && (frees_units || *held));
                freed += u64::from(!kept && *held);
                partial += u64::from(kept && *held && *kind != 0);
                let start = VirtualOffset::new(index as u64 * HOST_BLOCK_BYTES);
                let is_released = plan.releases.iter().any(|span| span.contains(start));
                prop_assert_eq!(is_released, !kept && (frees_units || *held));
            }
            prop_assert_eq!(plan.releases.total_bytes(), released * HOST_BLOCK_BYTES);
            prop_assert_eq!(plan.freed_bytes, freed * HOST_BLOCK_BYTES);
            prop_assert_eq!(plan.partial_bytes, partial * HOST_BLOCK_BYTES);
        }
    }
}
