//! Where everything lies on a volume that is written anew: each movable stream in one piece, from the start on.
//!
//! The volume's *regions* are what is free or movable between things that stay. Every stream is given a region, and no region
//! is ever given more than it holds: so what was in one piece always finds its place, if only where it was. Within a
//! region things lie in the order in which they lie now, so that who reads the source in the order of the target reads
//! it from its start to its end. Then regions are filled from the first on, with what comes next and fits.
//!
//! Absent on purpose: what the container holds, since the target is another one.

use std::collections::BTreeSet;
use std::ops::Range;

use block::Result;
use extent::{ExtentSet, Span, Volume, VolumeOffset, VolumeSpan};
use filesystem::{FileId, Relocation, Relocations};

use super::plan::{LayoutFigures, WhyLeft};
use super::state::{FirstFit, Layout, figures, left};

/// Streams that could not be made whole are tried again this often, once others have moved down.
const ROUNDS_MAX: usize = 4;

/// Planning begins anew with some more streams pinned this often, before nothing is moved at all.
const ATTEMPTS_MAX: usize = 4;

/// A volume laid out anew.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packed {
    /// What moves, all at once: what one leaves another may take.
    pub relocations: Relocations,
    /// The volume as it is.
    pub before: LayoutFigures,
    /// As it will be.
    pub after: LayoutFigures,
    /// Fragmented streams that are left, with their files.
    pub left: Vec<(FileId, WhyLeft)>,
}

/// Lays all that may move out in one piece each, from the start of the volume on. `Corrupt` if two things share a place.
pub fn plan_packed(layout: &Layout) -> Result<Packed> {
    layout.check()?;
    let mut stays = vec![false; layout.stream_count()];
    let mut places = None;
    for _ in 0..ATTEMPTS_MAX {
        let plan = Arrangement::of(layout, &stays).places();
        // A run across what stays, in pieces by holes, may have to be broken: its stream stays as it is instead.
        let worse = worsened(layout, &plan);
        if worse.is_empty() {
            places = Some(plan);
            break;
        }
        worse.into_iter().for_each(|stream| stays[stream] = true);
    }
    let places = places.unwrap_or_else(|| layout.places());
    Ok(Packed {
        relocations: Relocations::new(relocations(layout, &places))?,
        before: figures(layout, &layout.places()),
        after: figures(layout, &places),
        left: left(layout, &places, |stream| layout.pinned(stream), |_| WhyLeft::NoRoom),
    })
}

fn worsened(layout: &Layout, places: &[VolumeOffset]) -> Vec<usize> {
    let now = layout.places();
    let is_worse = |stream: &usize| {
        let extents = layout.extents_of(*stream);
        let runs_after = layout.run_count(places, extents.clone());
        let moves = extents.clone().any(|extent| places[extent] != now[extent]);
        let is_torn = layout.moves_together(*stream) && moves && runs_after > 1;
        extents.len() > 1 && (is_torn || runs_after > layout.run_count(&now, extents))
    };
    (0..layout.stream_count()).filter(is_worse).collect()
}

/// What moves, neighbours that stay neighbours together.
fn relocations(layout: &Layout, places: &[VolumeOffset]) -> Vec<Relocation> {
    let mut all: Vec<Relocation> = Vec::new();
    for stream in 0..layout.stream_count() {
        let file = layout.file(stream);
        let mut goes_on = false;
        for extent in layout.extents_of(stream) {
            let (from, to) = (layout.span(extent), places[extent]);
            let moves = from.start() != to;
            let last = all
                .last_mut()
                .filter(|last| goes_on && last.from.end() == from.start() && last.to_span().end() == to);
            match last {
                _ if !moves => {}
                Some(last) => last.from = Span::between(last.from.start(), from.end()),
                None => all.push(Relocation { from, to, file }),
            }
            goes_on = moves;
        }
    }
    all
}

/// What lies in one piece: a whole stream, or consecutive extents of one that is left in pieces.
struct Unit {
    /// Where the first of its extents lies now: units are sorted by it.
    now: VolumeOffset,
    bytes: u64,
    first: u32,
    count: u32,
    region: u32,
}

impl Unit {
    fn extents(&self) -> Range<usize> {
        self.first as usize..self.first as usize + self.count as usize
    }
}

struct Arrangement<'a> {
    layout: &'a Layout,
    regions: Vec<VolumeSpan>,
    /// Bytes that a region still has.
    rest: Vec<u64>,
    /// Regions by what they still have.
    by_rest: BTreeSet<(u64, u32)>,
    /// By `now`. One without extents was joined to another.
    units: Vec<Unit>,
    /// Streams in several units: largest first, with the indices of their units.
    in_pieces: Vec<(u64, Vec<u32>)>,
}

impl<'a> Arrangement<'a> {
    fn of(layout: &'a Layout, stays: &[bool]) -> Self {
        let moves = |stream: &usize| layout.pinned(*stream).is_none() && !stays[*stream];
        let streams = || (0..layout.stream_count()).filter(moves);
        let held: ExtentSet<Volume> = streams()
            .flat_map(|stream| layout.extents_of(stream))
            .map(|extent| layout.span(extent))
            .collect();
        let regions: Vec<_> = held.union(&layout.room()).iter().collect();
        let mut rest: Vec<_> = regions.iter().map(VolumeSpan::len_bytes).collect();
        let mut units: Vec<Unit> = Vec::new();
        for stream in streams() {
            let first_unit = units.len();
            for extent in layout.extents_of(stream) {
                let span = layout.span(extent);
                let region = regions.partition_point(|region| region.start() <= span.start()) - 1;
                rest[region] -= span.len_bytes();
                let region = index32(region);
                match units[first_unit..].last_mut().filter(|unit| unit.region == region) {
                    Some(unit) => {
                        unit.count += 1;
                        unit.bytes += span.len_bytes();
                    }
                    None => units.push(Unit {
                        now: span.start(),
                        bytes: span.len_bytes(),
                        first: index32(extent),
                        count: 1,
                        region,
                    }),
                }
            }
        }
        units.sort_unstable_by_key(|unit| unit.now);
        let by_rest = rest.iter().enumerate().map(|(region, rest)| (*rest, index32(region))).collect();
        let in_pieces = pieces(layout, &units);
        Self { layout, regions, rest, by_rest, units, in_pieces }
    }

    /// Where every extent goes.
    fn places(mut self) -> Vec<VolumeOffset> {
        self.join_pieces();
        for _ in 0..ROUNDS_MAX {
            self.fill();
            if self.in_pieces.is_empty() || !self.join_pieces() {
                break;
            }
        }
        let mut places = self.layout.places();
        let mut at: Vec<_> = self.regions.iter().map(VolumeSpan::start).collect();
        for unit in &self.units {
            for extent in unit.extents() {
                let at = &mut at[unit.region as usize];
                places[extent] = *at;
                *at = at.plus(self.layout.len_bytes(extent));
            }
        }
        places
    }

    /// Gives streams in pieces a region that holds them whole, where there is one. Whether there was for any.
    fn join_pieces(&mut self) -> bool {
        let all = std::mem::take(&mut self.in_pieces);
        let before = all.len();
        for (bytes, units) in all {
            if !self.join(bytes, &units) {
                self.in_pieces.push((bytes, units));
            }
        }
        self.in_pieces.len() < before
    }

    fn join(&mut self, bytes: u64, units: &[u32]) -> bool {
        for unit in units {
            let Unit { region, bytes, .. } = self.units[*unit as usize];
            self.set_rest(region, self.rest[region as usize] + bytes);
        }
        let own = units.iter().map(|unit| self.units[*unit as usize].region);
        let own = own.filter(|region| self.rest[*region as usize] >= bytes).min();
        let region = own.or_else(|| self.by_rest.range((bytes, 0)..).next().map(|(_, region)| *region));
        if let Some(region) = region {
            self.set_rest(region, self.rest[region as usize] - bytes);
            // The piece that the stream begins with stands for all.
            let first = units.iter().copied().min_by_key(|unit| self.units[*unit as usize].first);
            let count = units.iter().map(|unit| self.units[*unit as usize].count).sum();
            for unit in units {
                self.units[*unit as usize].count = 0;
            }
            if let Some(first) = first {
                let unit = &mut self.units[first as usize];
                (unit.count, unit.bytes, unit.region) = (count, bytes, region);
            }
            return true;
        }
        for unit in units {
            let Unit { region, bytes, .. } = self.units[*unit as usize];
            self.set_rest(region, self.rest[region as usize] - bytes);
        }
        false
    }

    /// Fills regions from the first on with what lies in later ones: the first of these that fits, again and again.
    fn fill(&mut self) {
        if self.regions.len() < 2 {
            return;
        }
        let mut by_region: Vec<u32> = (0..index32(self.units.len())).collect();
        by_region.sort_by_key(|unit| self.units[*unit as usize].region);
        let mut later =
            FirstFit::new(self.units.iter().map(|unit| if unit.count > 0 { unit.bytes } else { u64::MAX }));
        let mut next = by_region.into_iter().peekable();
        for region in 0..index32(self.regions.len()) {
            while let Some(unit) = next.next_if(|unit| self.units[*unit as usize].region <= region) {
                later.drop_at(unit as usize);
            }
            while let Some(unit) = later.first_at_most(self.rest[region as usize]) {
                later.drop_at(unit);
                let Unit { region: from, bytes, .. } = self.units[unit];
                self.set_rest(from, self.rest[from as usize] + bytes);
                self.set_rest(region, self.rest[region as usize] - bytes);
                self.units[unit].region = region;
            }
        }
    }

    fn set_rest(&mut self, region: u32, rest: u64) {
        let old = std::mem::replace(&mut self.rest[region as usize], rest);
        self.by_rest.remove(&(old, region));
        self.by_rest.insert((rest, region));
    }
}

/// The streams that are in several units, largest first.
fn pieces(layout: &Layout, units: &[Unit]) -> Vec<(u64, Vec<u32>)> {
    let mut all: Vec<(usize, u32)> = Vec::new();
    for (index, unit) in units.iter().enumerate() {
        let stream = layout.stream_of(unit.first as usize);
        if layout.extents_of(stream) != unit.extents() {
            all.push((stream, index32(index)));
        }
    }
    all.sort_unstable();
    let mut streams: Vec<_> = all
        .chunk_by(|a, b| a.0 == b.0)
        .map(|pieces| {
            let own: Vec<u32> = pieces.iter().map(|(_, unit)| *unit).collect();
            (own.iter().map(|unit| units[*unit as usize].bytes).sum(), own)
        })
        .collect();
    streams.sort_by_key(|(bytes, _): &(u64, _)| std::cmp::Reverse(*bytes));
    streams
}

fn index32(index: usize) -> u32 {
    u32::try_from(index).expect("fewer than 2^32 extents")
}
