//! A volume as an array of clusters, and the check of plans against it.

use extent::{Offset, Span, VolumeSpan};
use filesystem::{
    FileExtent, FileId, FileKind, FileStream, Fragments, Mobility, PieceState, Relocation, Relocations,
    StreamName, StreamVisitor,
};

use crate::defrag::*;

pub(super) const CLUSTER: u64 = 4096;

/// What a cluster holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cell {
    Free,
    /// The file system's own, of which no stream is shown.
    Kept,
    /// Cluster `logical` of a stream.
    Data {
        stream: usize,
        logical: u64,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub(super) file: u64,
    pub(super) kind: FileKind,
    pub(super) is_main: bool,
    pub(super) pinned: Option<&'static str>,
    pub(super) moves_together: bool,
    pub(super) is_anchored: bool,
    /// Logical, physical and length, in clusters.
    pub(super) extents: Vec<(u64, u64, u64)>,
}

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) cells: Vec<Cell>,
    pub(super) streams: Vec<Stream>,
    pub(super) backing: Vec<Backing>,
    pub(super) rule: Fragments,
}

pub(super) fn clusters(span: VolumeSpan) -> std::ops::Range<usize> {
    assert!(
        span.start().get().is_multiple_of(CLUSTER) && span.len_bytes().is_multiple_of(CLUSTER),
        "{span:?}"
    );
    let at = |offset: u64| usize::try_from(offset / CLUSTER).unwrap();
    at(span.start().get())..at(span.end().get())
}

pub(super) fn span(start: u64, len: u64) -> VolumeSpan {
    Span::new(Offset::new(start * CLUSTER), len * CLUSTER)
}

impl Model {
    pub(super) fn new(len: usize) -> Self {
        Self {
            cells: vec![Cell::Free; len],
            streams: Vec::new(),
            backing: vec![Backing::Allocated; len],
            rule: Fragments::of_adjacent(),
        }
    }

    pub(super) fn keep(&mut self, range: std::ops::Range<usize>) {
        self.cells[range].fill(Cell::Kept);
    }

    /// Adds a stream that is the main one of a regular file of its own number.
    pub(super) fn add(&mut self, extents: &[(u64, u64, u64)]) -> usize {
        let file = self.streams.last().map_or(10, |last| last.file + 1);
        self.add_stream(Stream {
            file,
            kind: FileKind::Regular,
            is_main: true,
            pinned: None,
            moves_together: false,
            is_anchored: false,
            extents: extents.to_vec(),
        })
    }

    /// Adds a file whose pieces follow each other without holes: starts and lengths.
    pub(super) fn add_dense(&mut self, pieces: &[(u64, u64)]) -> usize {
        let mut logical = 0;
        let extents: Vec<_> = pieces
            .iter()
            .map(|(start, len)| {
                logical += len;
                (logical - len, *start, *len)
            })
            .collect();
        self.add(&extents)
    }

    pub(super) fn add_stream(&mut self, stream: Stream) -> usize {
        let index = self.streams.len();
        for (logical, start, len) in &stream.extents {
            for step in 0..*len {
                let cell = &mut self.cells[usize::try_from(start + step).unwrap()];
                assert_eq!(*cell, Cell::Free);
                *cell = Cell::Data { stream: index, logical: logical + step };
            }
        }
        self.streams.push(stream);
        index
    }

    pub(super) fn layout(&self) -> Layout {
        let backing = self.backing.iter().enumerate();
        let backing = backing.map(|(at, backing)| (span(at as u64, 1), *backing)).collect();
        let mut layout = Layout::new(CLUSTER, self.rule, backing);
        for stream in &self.streams {
            let extents: Vec<_> = stream
                .extents
                .iter()
                .map(|(logical, start, len)| FileExtent {
                    logical: Offset::new(logical * CLUSTER),
                    span: span(*start, *len),
                    state: PieceState::Written,
                })
                .collect();
            let shown = FileStream {
                file: FileId(stream.file),
                kind: stream.kind,
                name: if stream.is_main { StreamName::Main } else { StreamName::Named(b"named") },
                size_bytes: 1,
                is_inline: false,
            };
            let free = if stream.moves_together { Mobility::Together } else { Mobility::Movable };
            let free = if stream.is_anchored { Mobility::Anchored("anchored") } else { free };
            let pinned = stream.pinned.filter(|_| !stream.is_anchored);
            let mobility = pinned.map_or(free, Mobility::Pinned);
            layout.stream(shown, &extents, mobility);
        }
        self.free_runs().into_iter().for_each(|(start, len)| layout.add_room(span(start, len)));
        layout
    }

    /// Starts and lengths of what is free.
    pub(super) fn free_runs(&self) -> Vec<(u64, u64)> {
        self.runs_where(|_, cell| cell == Cell::Free)
    }

    pub(super) fn runs_where(&self, is: impl Fn(usize, Cell) -> bool) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (at, _) in self.cells.iter().enumerate().filter(|(at, cell)| is(*at, **cell)) {
            match runs.last_mut().filter(|(start, len)| start + len == at as u64) {
                Some((_, len)) => *len += 1,
                None => runs.push((at as u64, 1)),
            }
        }
        runs
    }

    pub(super) fn run_count(&self, stream: usize) -> u64 {
        let mut rule = self.rule;
        self.streams[stream]
            .extents
            .iter()
            .for_each(|(logical, start, len)| rule.push(*logical, *start, *len));
        rule.count()
    }

    pub(super) fn clusters_of(&self, stream: usize) -> u64 {
        self.streams[stream].extents.iter().map(|(.., len)| len).sum()
    }

    pub(super) fn figures(&self) -> LayoutFigures {
        let mut figures = LayoutFigures::default();
        for (index, stream) in self.streams.iter().enumerate() {
            let runs = self.run_count(index);
            figures.fragmented_bytes += if runs > 1 { self.clusters_of(index) * CLUSTER } else { 0 };
            if stream.is_main && stream.kind == FileKind::Regular {
                figures.fragments += runs;
                figures.fragmented_files += u64::from(runs > 1);
            }
        }
        let free = self.free_runs();
        figures.free_extents = free.len() as u64;
        figures.largest_free_extent_bytes = free.iter().map(|(_, len)| len * CLUSTER).max().unwrap_or(0);
        figures
    }

    pub(super) fn is_pinned(&self, stream: usize, is_in_place: bool) -> bool {
        let stream = &self.streams[stream];
        let touches = |(_, start, len): &(u64, u64, u64)| {
            (*start..start + len).any(|at| self.backing[usize::try_from(at).unwrap()] == Backing::Fixed)
        };
        stream.pinned.is_some() || (is_in_place && stream.extents.iter().any(touches))
    }

    /// The extents of one stream that a relocation moves: whole ones, neighbours, that lie one after the other.
    fn moved_extents(&self, relocation: &Relocation) -> (usize, std::ops::Range<usize>) {
        let range = clusters(relocation.from);
        let Cell::Data { stream, .. } = self.cells[range.start] else {
            panic!("{relocation:?} moves no data")
        };
        let start = range.start as u64;
        let first = self.streams[stream].extents.iter().position(|extent| extent.1 == start);
        let first = first.expect("it begins with an extent");
        let (mut at, mut next) = (start, first);
        while at < range.end as u64 {
            let extent = self.streams[stream].extents[next];
            assert_eq!(extent.1, at, "neighbours lie one after the other");
            at += extent.2;
            next += 1;
        }
        assert_eq!(at, range.end as u64, "whole extents only");
        assert_eq!(FileId(self.streams[stream].file), relocation.file);
        (stream, first..next)
    }

    /// Moves at once. In place: to what is free before.
    pub(super) fn apply(&mut self, batch: &Relocations, is_in_place: bool) {
        let before = self.clone();
        for relocation in batch.by_source() {
            let (stream, extents) = before.moved_extents(&relocation);
            assert!(!before.is_pinned(stream, is_in_place), "{relocation:?} moves what is pinned");
            assert_ne!(relocation.from.start(), relocation.to);
            for extent in extents {
                let old = before.streams[stream].extents[extent];
                let start = relocation.to.get() / CLUSTER + old.1 - relocation.from.start().get() / CLUSTER;
                self.streams[stream].extents[extent].1 = start;
            }
            if is_in_place {
                for at in clusters(relocation.to_span()) {
                    assert_eq!(before.cells[at], Cell::Free, "{relocation:?} goes to what is not free");
                    assert_ne!(before.backing[at], Backing::Fixed);
                }
            }
            self.cells[clusters(relocation.from)].fill(Cell::Free);
        }
        for relocation in batch.by_source() {
            let (from, to) = (clusters(relocation.from), clusters(relocation.to_span()));
            for (from, to) in from.zip(to) {
                assert_eq!(self.cells[to], Cell::Free, "{relocation:?} goes to what something else has");
                self.cells[to] = before.cells[from];
            }
        }
        self.check_together(&before);
        self.check_contents();
    }

    /// What moves together moved all at once, to one place, or not at all.
    fn check_together(&self, before: &Self) {
        let together = self.streams.iter().zip(&before.streams).filter(|(now, _)| now.moves_together);
        for (now, _) in together.filter(|(now, before)| now.extents != before.extents) {
            for pair in now.extents.windows(2) {
                assert_eq!(pair[0].1 + pair[0].2, pair[1].1, "{now:?} was torn");
            }
        }
    }

    /// What of the streams has no storage, and so holds nothing.
    fn empty_data(&self) -> BTreeSet<(usize, u64)> {
        let is_stored = |backing| matches!(backing, Backing::Allocated | Backing::Fixed);
        let cells = self.cells.iter().zip(&self.backing).filter(|(_, backing)| !is_stored(**backing));
        let data = cells.filter_map(|(cell, _)| match cell {
            Cell::Data { stream, logical } => Some((*stream, *logical)),
            _ => None,
        });
        data.collect()
    }

    /// What comes to lie in holes holds nothing.
    fn check_holes(&self, batch: &Relocations, holes: &[VolumeSpan], empty: &BTreeSet<(usize, u64)>) {
        let from: std::collections::BTreeMap<_, _> =
            batch.by_source().flat_map(|each| clusters(each.to_span()).zip(clusters(each.from))).collect();
        for at in holes.iter().flat_map(|hole| clusters(*hole)) {
            let Cell::Data { stream, logical } = self.cells[from[&at]] else { panic!("{at}: no data") };
            assert!(empty.contains(&(stream, logical)), "{at} holds something");
        }
    }

    /// Gives back what is stored in whole units of holes; answers how many clusters that are.
    fn empty(&mut self, holes: &[VolumeSpan], options: &DefragOptions) -> i64 {
        let (unit_bytes, skew) = (options.unit_bytes, options.unit_skew_bytes);
        let mut given = 0;
        for hole in holes {
            let first = (hole.start().get() + skew).div_ceil(unit_bytes) * unit_bytes - skew;
            let end = (hole.end().get() + skew) / unit_bytes * unit_bytes;
            for at in first / CLUSTER..end.saturating_sub(skew).max(first) / CLUSTER {
                let backing = &mut self.backing[usize::try_from(at).unwrap()];
                given += i64::from(*backing == Backing::Allocated);
                *backing = Backing::Unallocated;
            }
        }
        given
    }

    /// Takes the units and the holes under a batch's destinations, but for `holes`; answers how many clusters of them were not allocated.
    fn allocate(&mut self, batch: &Relocations, holes: &[VolumeSpan], options: &DefragOptions) -> i64 {
        let unit = |at: usize| (at as u64 * CLUSTER + options.unit_skew_bytes) / options.unit_bytes;
        let empty: BTreeSet<_> = holes.iter().flat_map(|hole| clusters(*hole)).collect();
        let written: BTreeSet<_> = batch
            .by_source()
            .flat_map(|each| clusters(each.to_span()))
            .filter(|at| !empty.contains(at))
            .collect();
        let touched: BTreeSet<_> = written.iter().map(|at| unit(*at)).collect();
        let mut grown = 0;
        for at in 0..self.backing.len() {
            let is_stored_now = match self.backing[at] {
                Backing::Unallocated => touched.contains(&unit(at)),
                Backing::Hole => written.contains(&at),
                Backing::Allocated | Backing::Fixed | Backing::Withheld => false,
            };
            if is_stored_now {
                self.backing[at] = Backing::Allocated;
                grown += 1;
            }
        }
        grown
    }

    /// Gives back what is whole units, allocated, and free. Parts of a unit go back to the host.
    fn release(&mut self, spans: &[VolumeSpan], options: &DefragOptions, has_holes: bool) -> i64 {
        let is_aligned = |at: extent::VolumeOffset| {
            (at.get() + options.unit_skew_bytes).is_multiple_of(options.unit_bytes)
        };
        let is_border = |at: extent::VolumeOffset| {
            is_aligned(at) || at.get() == 0 || at.get() == self.cells.len() as u64 * CLUSTER
        };
        let mut given = 0;
        for span in spans {
            let is_whole = is_border(span.start()) && is_border(span.end());
            assert!(is_whole || has_holes, "{span:?} are parts of units");
            let is_units = !has_holes || (is_aligned(span.start()) && is_aligned(span.end()));
            for at in clusters(*span) {
                assert_eq!((self.cells[at], self.backing[at]), (Cell::Free, Backing::Allocated));
                self.backing[at] = if is_units { Backing::Unallocated } else { Backing::Hole };
                given += 1;
            }
        }
        given
    }

    fn check_contents(&self) {
        let mut count = 0;
        for (index, stream) in self.streams.iter().enumerate() {
            for (logical, start, len) in &stream.extents {
                for step in 0..*len {
                    let cell = self.cells[usize::try_from(start + step).unwrap()];
                    assert_eq!(cell, Cell::Data { stream: index, logical: logical + step });
                    count += 1;
                }
            }
        }
        assert_eq!(count, self.cells.iter().filter(|cell| matches!(cell, Cell::Data { .. })).count());
    }

    /// Applies a plan's batches and checks what it says of itself. Answers the volume afterwards.
    pub(super) fn run(&self, plan: &DefragPlan, options: &DefragOptions) -> Self {
        let mut now = self.clone();
        let (mut growth, mut peak) = (0i64, 0i64);
        let mut blocks = BTreeSet::new();
        let mut moved_bytes = 0;
        let empty = self.empty_data();
        assert_eq!(plan.batches.len(), plan.releases.len());
        assert_eq!(plan.batches.len(), plan.holes.len());
        for ((batch, release), holes) in plan.batches.iter().zip(&plan.releases).zip(&plan.holes) {
            now.check_holes(batch, holes, &empty);
            assert!(!batch.is_empty());
            let is_one = batch.by_source().len() == 1 && {
                let first = batch.by_source().next().unwrap();
                now.moved_extents(&first).1.len() == 1
            };
            let is_together = batch.files().len() == 1 && {
                let first = batch.by_source().next().unwrap();
                now.streams[now.moved_extents(&first).0].moves_together
            };
            assert!(
                batch.total_bytes() <= options.batch_bytes_max || is_one || is_together,
                "a batch is too large"
            );
            growth += now.allocate(batch, holes, options);
            peak = peak.max(growth);
            now.apply(batch, true);
            moved_bytes += batch.total_bytes();
            for at in batch.by_source().flat_map(|each| clusters(each.to_span())) {
                blocks.insert(at as u64 * CLUSTER / 65536);
            }
            growth -= now.empty(holes, options);
            growth -= now.release(release, options, self.backing.contains(&Backing::Hole));
        }
        // The host has back what is free within units, which the container keeps.
        for at in plan.trimmed.iter().flat_map(|span| clusters(*span)) {
            assert_eq!((now.cells[at], now.backing[at]), (Cell::Free, Backing::Allocated));
            assert!((self.cells[at], self.backing[at]) != (Cell::Free, Backing::Allocated));
            growth -= 1;
        }
        assert_eq!(plan.growth_left_bytes, u64::try_from(growth.max(0)).unwrap() * CLUSTER);
        assert_eq!(plan.before, self.figures());
        assert_eq!(plan.after, now.figures());
        assert_eq!(plan.moved_bytes, moved_bytes);
        // What a batch gives back for the next one counts when it is taken.
        assert!(plan.growth_bytes >= u64::try_from(peak).unwrap() * CLUSTER);
        assert!(plan.growth_bytes <= options.growth_bytes_max);
        assert_eq!(plan.changed_block_bytes, blocks.len() as u64 * 65536);
        self.check_left(&plan.left, &now, true);
        if options.goal == Goal::Files {
            let is_enough = |why: &WhyLeft| matches!(why, WhyLeft::Growth { bytes_max, needed_bytes } if needed_bytes <= bytes_max);
            assert!(
                !plan.left.iter().any(|(_, why)| is_enough(why)),
                "less is needed than there may be: {:?}",
                plan.left
            );
        }
        for stream in 0..self.streams.len() {
            assert!(
                now.run_count(stream) <= self.run_count(stream),
                "stream {stream} is in more runs than before"
            );
        }
        now
    }

    pub(super) fn check_left(&self, left: &[(FileId, WhyLeft)], now: &Self, is_in_place: bool) {
        let fragmented = (0..now.streams.len()).filter(|stream| now.run_count(*stream) > 1);
        let expected: Vec<_> = fragmented
            .map(|stream| (FileId(now.streams[stream].file), self.is_pinned(stream, is_in_place)))
            .collect();
        let found: Vec<_> =
            left.iter().map(|(file, why)| (*file, matches!(why, WhyLeft::Pinned(_)))).collect();
        assert_eq!(found, expected);
    }
}

pub(super) fn options(goal: Goal) -> DefragOptions {
    DefragOptions {
        goal,
        growth_bytes_max: 0,
        growth_left_bytes_max: u64::MAX,
        unit_bytes: CLUSTER,
        unit_skew_bytes: 0,
        moves_holes: true,
        batch_bytes_max: 1 << 40,
        moves_anchored: false,
    }
}

/// Plans, applies and checks.
pub(super) fn planned(model: &Model, options: &DefragOptions) -> (DefragPlan, Model) {
    let plan = plan_in_place(&model.layout(), options, &Hints::default()).unwrap();
    let now = model.run(&plan, options);
    (plan, now)
}
