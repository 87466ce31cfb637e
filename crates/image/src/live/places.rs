//! Where new units go: so that neighbours on the virtual disk are neighbours in the file, whatever the order of
//! their first writes.
//!
//! Where units mirror the disk ([`Arrangement`]), a unit's place is a base plus its own distance from the disk's start. The bases
//! are those that the image's units already follow, and last one past the end of the file, whose space is sparse until it is used. Else
//! it is that of its tract ([`Tracts`]). Only where all of these places are taken does a unit go elsewhere.

use std::collections::{BTreeMap, HashMap};

use extent::{HostOffset, HostSpan, Span};

use super::broken;
use super::tracts::{Grid, Tracts};

/// Long enough for the disks of most guests to be one; and what is reserved of the host at once at most.
const TRACT_BYTES: u64 = 1 << 30;
/// No place lies past this: the largest file of ext4 in blocks of 4 KiB, less room for tables.
pub(crate) const HOST_BYTES_MAX: u64 = 15 << 40;
/// Bases of an existing image that are followed.
const BASE_COUNT_MAX: usize = 4;
/// Different bases counted at most.
const VOTE_COUNT_MAX: usize = 1 << 16;

/// The unit that the file ends within: what there is of it.
#[derive(Clone, Copy, Default)]
pub(crate) struct CutOff(pub(crate) Option<HostSpan>);

impl CutOff {
    /// What there is of the unit that would lie at `whole`.
    pub(crate) fn stored(self, whole: HostSpan) -> HostSpan {
        self.0.filter(|stored| stored.start() == whole.start()).unwrap_or(whole)
    }

    /// Frees the unit that would lie at `whole`, of which nothing is left then.
    pub(crate) fn release(&mut self, taken: &mut Taken, whole: HostSpan) {
        let stored = self.stored(whole);
        taken.release(stored);
        self.0 = self.0.filter(|left| *left != stored);
    }
}

/// How new units are laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrangement {
    /// Tracts of the disk get places one behind the other, so that the file grows as the disk does.
    Dense {
        /// The first ones' length: with it a disk that is written all over ends in few pieces.
        tract_bytes: u64,
    },
    /// Units lie as far from each other as on the disk: one that is used at its end makes the file as long as itself.
    Mirror,
}

impl Default for Arrangement {
    fn default() -> Self {
        Self::Dense { tract_bytes: TRACT_BYTES }
    }
}

/// Which places an image's units follow.
pub(crate) struct Votes {
    grid: Grid,
    counts: HashMap<u64, u64>,
    tracts: Option<Tracts>,
}

impl Votes {
    /// None yet.
    pub(crate) fn new(arrangement: Arrangement, grid: Grid) -> Self {
        let tracts = match arrangement {
            Arrangement::Dense { tract_bytes } => Some(Tracts::new(grid, tract_bytes)),
            Arrangement::Mirror => None,
        };
        Self { grid, counts: HashMap::new(), tracts }
    }

    /// Counts the unit `unit` at `at`.
    pub(crate) fn count(&mut self, unit: u64, at: u64) {
        if let Some(tracts) = &mut self.tracts {
            return tracts.count(unit, at);
        }
        let base = unit.checked_mul(self.grid.stride_bytes).and_then(|distance| at.checked_sub(distance));
        if let Some(base) = base
            && (self.counts.len() < VOTE_COUNT_MAX || self.counts.contains_key(&base))
        {
            *self.counts.entry(base).or_default() += 1;
        }
    }

    /// What most units follow, as far as it is a multiple of `align_bytes`.
    pub(crate) fn into_bases(self, align_bytes: u64) -> Bases {
        let mut all: Vec<_> = self.counts.into_iter().filter(|(base, _)| base % align_bytes == 0).collect();
        all.sort_unstable_by_key(|(base, count)| (std::cmp::Reverse(*count), *base));
        let bases = all.into_iter().take(BASE_COUNT_MAX).map(|(base, _)| base).collect();
        let tracts = self.tracts.map(|tracts| tracts.aligned_to(align_bytes));
        Bases { grid: self.grid, bases, end: 0, tracts }
    }
}

/// The places a unit may have, the best first.
#[derive(Default)]
pub(crate) struct Bases {
    grid: Grid,
    bases: Vec<u64>,
    end: u64,
    tracts: Option<Tracts>,
}

impl Bases {
    /// Adds places from `from` on, behind the file's end, up to `limit`.
    pub(crate) fn grow_from(&mut self, from: u64, limit: u64) {
        self.end = from;
        if let Some(tracts) = &mut self.tracts {
            return tracts.grow_from(from, limit);
        }
        let Grid { unit_count, stride_bytes, align_bytes, head_bytes, .. } = self.grid;
        let base = from.saturating_add(head_bytes).next_multiple_of(align_bytes);
        let end = base.saturating_add(unit_count.saturating_mul(stride_bytes));
        if end <= limit {
            self.bases.push(base);
            self.end = end;
        }
    }

    /// The places of `unit`.
    pub(crate) fn places(&self, unit: u64) -> impl Iterator<Item = u64> {
        let distance = unit.checked_mul(self.grid.stride_bytes);
        let of_tract = self.tracts.as_ref().and_then(|tracts| tracts.place(unit));
        self.bases.iter().filter_map(move |base| base.checked_add(distance?)).chain(of_tract)
    }

    /// The first of the places of `unit` that is free, or one that it is given now.
    pub(crate) fn find(&mut self, unit: u64, is_free: impl Fn(u64) -> bool) -> Option<u64> {
        let is_free = |at: &u64| is_free(*at) || broken!(PlaceNotAskedFor);
        let found = self.places(unit).find(is_free);
        let found = found.or_else(|| self.give(unit).filter(is_free));
        found.inspect(|_| self.used())
    }

    /// A place that `unit`, all of whose places are taken, had no part in so far.
    pub(crate) fn give(&mut self, unit: u64) -> Option<u64> {
        self.tracts.as_mut()?.give(unit)
    }

    /// A unit has got one of its places.
    pub(crate) fn used(&mut self) {
        self.tracts.iter_mut().for_each(Tracts::used);
    }

    /// A unit's place is free again.
    pub(crate) fn released(&mut self) {
        self.tracts.iter_mut().for_each(Tracts::released);
    }

    /// Behind all places.
    pub(crate) fn end(&self) -> u64 {
        self.tracts.as_ref().map_or(self.end, Tracts::end)
    }

    /// Keeps what lies up to `end` from being given.
    pub(crate) fn skip_to(&mut self, end: u64) {
        self.tracts.iter_mut().for_each(|tracts| tracts.skip_to(end));
    }

    /// Room for `len_bytes` among what units are given; `None` where their places are all told beforehand.
    pub(crate) fn room(&mut self, len_bytes: u64) -> Option<u64> {
        self.tracts.as_mut()?.room(len_bytes)
    }

    /// Keeps room for the first tables before what units are given.
    pub(crate) fn make_room_for_tables(&mut self, len_bytes: u64, count_max: u64) {
        self.tracts.iter_mut().for_each(|tracts| tracts.make_room_for_tables(len_bytes, count_max));
    }

    /// As [`Bases::room`], of a table. There are `count_max` at most.
    pub(crate) fn place_for_table(&mut self, len_bytes: u64, count_max: u64) -> Option<u64> {
        self.tracts.as_mut()?.place_for_table(len_bytes, count_max)
    }
}

/// Pieces of the file that are in use, where the format does not count them itself.
#[derive(Default)]
pub(crate) struct Taken {
    /// Disjoint, coalesced: start to end.
    spans: BTreeMap<u64, u64>,
}

/// Runs remembered at most, about 64 MiB. An image in more pieces is taken as one.
const RUN_COUNT_MAX: usize = 1 << 20;

impl Taken {
    /// Whether no byte of `span` is in use.
    pub(crate) fn is_free(&self, span: HostSpan) -> bool {
        let before = self.spans.range(..span.end().get()).next_back();
        before.is_none_or(|(_, end)| *end <= span.start().get())
    }

    /// Takes `span`; says whether it was free.
    pub(crate) fn take(&mut self, span: HostSpan) -> bool {
        if span.is_empty() {
            return true;
        }
        let is_free = self.is_free(span);
        let (mut start, mut end) = (span.start().get(), span.end().get());
        while let Some((&near, &near_end)) =
            self.spans.range(..=end).next_back().filter(|(_, near_end)| **near_end >= start)
        {
            self.spans.remove(&near);
            (start, end) = (start.min(near), end.max(near_end));
        }
        self.spans.insert(start, end);
        is_free
    }

    /// Gives `span` back.
    pub(crate) fn release(&mut self, span: HostSpan) {
        let (start, end) = (span.start().get(), span.end().get());
        while let Some((&near, &near_end)) =
            self.spans.range(..end).next_back().filter(|(_, near_end)| **near_end > start)
        {
            self.spans.remove(&near);
            if near < start {
                self.spans.insert(near, start);
            }
            if near_end > end {
                self.spans.insert(end, near_end);
            }
        }
    }

    /// Where what is free from `at` on ends, `end` at the latest.
    pub(crate) fn free_up_to(&self, at: HostOffset, end: HostOffset) -> HostOffset {
        if !self.is_free(Span::new(at, 1)) {
            return at;
        }
        let next = self.spans.range(at.get()..).next();
        next.map_or(end, |(next, _)| end.min(HostOffset::new(*next)))
    }

    /// Takes everything below `end` if there are too many pieces to remember.
    pub(crate) fn bound(&mut self, end: u64) {
        if self.spans.len() > RUN_COUNT_MAX {
            self.take(Span::from_zero(end));
        }
    }

    /// The pieces in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = HostSpan> {
        self.spans.iter().map(|(start, end)| Span::between(HostOffset::new(*start), HostOffset::new(*end)))
    }

    /// The end of the last piece.
    pub(crate) fn end(&self) -> u64 {
        self.spans.last_key_value().map_or(0, |(_, end)| *end)
    }

    /// The first free place of `len_bytes` from `from` on and below `limit`, at `phase_bytes` past a multiple of `align_bytes`.
    pub(crate) fn first_fit(
        &self,
        from: u64,
        len_bytes: u64,
        align_bytes: u64,
        phase_bytes: u64,
        limit: u64,
    ) -> Option<HostOffset> {
        let aligned = |at: u64| {
            let up = at.saturating_sub(phase_bytes).checked_next_multiple_of(align_bytes)?;
            up.checked_add(phase_bytes)
        };
        let mut at = aligned(from)?;
        loop {
            let span = Span::checked(HostOffset::new(at), len_bytes)?;
            if span.end().get() > limit {
                return None;
            }
            match self.spans.range(..span.end().get()).next_back() {
                Some((_, &end)) if end > at => at = aligned(end)?,
                _ => return Some(span.start()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(start: u64, len_bytes: u64) -> HostSpan {
        Span::new(HostOffset::new(start), len_bytes)
    }

    proptest! {
        #[test]
        fn taken_is_what_the_naive_model_says(
            steps in prop::collection::vec((any::<bool>(), 0..200u64, 1..40u64), 1..60),
            from in 0..200u64, len in 1..30u64, align in 1..9u64
        ) {
            let mut taken = Taken::default();
            let mut model = [false; 256];
            for (takes, start, len) in steps {
                let range = index(start)..index(start + len);
                let was_free = model[range.clone()].iter().all(|taken| !taken);
                prop_assert_eq!(taken.is_free(span(start, len)), was_free);
                if takes {
                    prop_assert_eq!(taken.take(span(start, len)), was_free);
                } else {
                    taken.release(span(start, len));
                }
                model[range].fill(takes);
                let end = model.iter().rposition(|taken| *taken).map_or(0, |last| last as u64 + 1);
                prop_assert_eq!(taken.end(), end);
                let range = index(start)..index(start + len);
                let free = model[range].iter().take_while(|taken| !**taken).count() as u64;
                let end = HostOffset::new(start + len);
                prop_assert_eq!(taken.free_up_to(HostOffset::new(start), end).get(), start + free);
            }
            let fits = |at: &u64| at.is_multiple_of(align)
                && model[index(*at)..index(at + len)].iter().all(|taken| !taken);
            let naive = (from..=256 - len).find(fits);
            prop_assert_eq!(taken.first_fit(from, len, align, 0, 256).map(HostOffset::get), naive);
        }
    }

    fn index(at: u64) -> usize {
        usize::try_from(at).unwrap()
    }

    #[test]
    fn the_base_that_most_units_follow_comes_first() {
        let grid = Grid {
            unit_bytes: 0x100,
            unit_count: 0x100,
            stride_bytes: 0x100,
            align_bytes: 0x100,
            head_bytes: 0,
        };
        let mut votes = Votes::new(Arrangement::Mirror, grid);
        for unit in 0..10 {
            votes.count(unit, 0x1000 + unit * 0x100);
        }
        votes.count(3, 0x9000);
        votes.count(3, 0x9001);
        let mut bases = votes.into_bases(0x100);
        bases.grow_from(0x10_0000, 0x11_0000);
        let places: Vec<_> = bases.places(5).collect();
        assert_eq!(places, [0x1500, 0x9200, 0x10_0500]);
    }
}
