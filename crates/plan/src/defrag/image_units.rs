//! A plan that counts what the host stores, carried out in an image that allocates larger units.
//!
//! A unit of which a part is written takes that part of the host's storage alone, if the rest is a hole of the image's file. So the plan may
//! take and give back blocks of the host; but the image has a place for each unit that was touched, and its file is as much longer. Units
//! in which nothing lies any more, and of which the host has a part back, are therefore given back as a whole.

use std::collections::BTreeSet;

use extent::{ExtentSet, Volume, VolumeOffset, VolumeSpan};
use filesystem::Relocations;

use super::plan::DefragPlan;
use super::state::{Layout, Spans};

/// The units that an image allocates, under a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageUnits {
    /// The size of each.
    pub unit_bytes: u64,
    /// How far into a unit the volume begins.
    pub unit_skew_bytes: u64,
    /// What the image has a place for, stored by the host or not.
    pub present: ExtentSet<Volume>,
}

/// By how much longer the image's file may be meanwhile, as a part of what it has places for: one in so many. What is longer takes no
/// storage, but in the end the last units move to gaps.
const MEANWHILE_PARTS: u64 = 4;

/// The plan, with whole units given back. `None` if the image would have places for more than `growth_bytes_max` more than before in the
/// end, or for much more meanwhile.
pub fn in_image_units(
    layout: &Layout,
    units: &ImageUnits,
    growth_bytes_max: u64,
    plan: DefragPlan,
) -> Option<DefragPlan> {
    let mut image = Image::new(layout, units);
    let before_bytes = image.present.total_bytes();
    let most_bytes = before_bytes.saturating_add(growth_bytes_max.max(before_bytes / MEANWHILE_PARTS));
    let mut releases = Vec::with_capacity(plan.releases.len());
    for ((batch, release), holes) in plan.batches.iter().zip(&plan.releases).zip(&plan.holes) {
        image.write(batch, holes);
        if image.present.total_bytes() > most_bytes {
            return None;
        }
        releases.push(image.leave(batch, release));
    }
    let more_places_bytes = image.present.total_bytes().saturating_sub(before_bytes);
    let fits = more_places_bytes <= growth_bytes_max.max(units.unit_bytes);
    fits.then_some(DefragPlan { releases, more_places_bytes, ..plan })
}

/// What the image holds by now.
struct Image<'a> {
    units: &'a ImageUnits,
    /// Whole units that it has places for.
    present: Spans,
    /// What the host does not store.
    unstored: Spans,
    /// What is free on the volume.
    free: Spans,
    /// Where the volume ends.
    end: VolumeOffset,
}

impl<'a> Image<'a> {
    fn new(layout: &Layout, units: &'a ImageUnits) -> Self {
        let (writable, allocated) = layout.writable();
        let mut image = Self {
            units,
            present: Spans::default(),
            unstored: writable.subtract(&allocated).iter().collect(),
            free: layout.room().iter().collect(),
            end: layout.end(),
        };
        units.present.iter().for_each(|span| image.place(span));
        image
    }

    /// Has places for all units that `span` touches.
    fn place(&mut self, span: VolumeSpan) {
        let around = self.around(span);
        self.present.remove_within(around);
        self.present.insert(around);
    }

    /// What a batch writes is stored; its holes are not, and whole units of them have no place in the image.
    fn write(&mut self, batch: &Relocations, holes: &[VolumeSpan]) {
        let destinations: ExtentSet<Volume> = batch.by_destination().map(|each| each.to_span()).collect();
        destinations.iter().for_each(|span| _ = self.free.remove_within(span));
        let holes: ExtentSet<Volume> = holes.iter().copied().collect();
        for span in destinations.subtract(&holes).iter() {
            self.place(span);
            self.unstored.remove_within(span);
        }
        for hole in holes.iter() {
            let whole = self.each_unit(hole).filter(|unit| hole.covers(unit));
            whole.for_each(|unit| _ = self.present.remove_within(unit));
            self.unstored.remove_within(hole);
            self.unstored.insert(hole);
        }
    }

    /// After a batch: gives back `release`, and units of which that leaves nothing that is needed, and not all stored.
    fn leave(&mut self, batch: &Relocations, release: &[VolumeSpan]) -> Vec<VolumeSpan> {
        let left: Vec<_> = batch.by_source().map(|relocation| relocation.from).collect();
        left.iter().for_each(|span| self.free.insert(*span));
        for span in release {
            self.unstored.remove_within(*span);
            self.unstored.insert(*span);
        }
        let touched: BTreeSet<_> =
            left.iter().chain(release).flat_map(|span| self.each_unit(*span)).collect();
        let gone: Vec<_> = touched.into_iter().filter(|unit| self.is_waste(*unit)).collect();
        gone.iter().for_each(|unit| _ = self.present.remove_within(*unit));
        let all: ExtentSet<Volume> = release.iter().copied().chain(gone).collect();
        all.iter().collect()
    }

    /// Whether nothing lies in a unit that the host stores in part.
    fn is_waste(&self, unit: VolumeSpan) -> bool {
        self.present.covers(unit)
            && self.free.covers(unit)
            && self.unstored.bytes_within(unit) > 0
            && unit.end() <= self.end
    }

    /// The whole units that `span` touches. The first may begin before the volume, and is not among them then.
    fn each_unit(&self, span: VolumeSpan) -> impl Iterator<Item = VolumeSpan> + use<> {
        let (unit_bytes, skew) = (self.units.unit_bytes, self.units.unit_skew_bytes);
        let first = (span.start().get() + skew) / unit_bytes;
        let end = (span.end().get() + skew).div_ceil(unit_bytes);
        let start = move |unit: u64| (unit * unit_bytes).checked_sub(skew);
        (first..end).filter_map(start).map(move |at| VolumeSpan::new(VolumeOffset::new(at), unit_bytes))
    }

    fn around(&self, span: VolumeSpan) -> VolumeSpan {
        let (unit_bytes, skew) = (self.units.unit_bytes, self.units.unit_skew_bytes);
        let start = (span.start().get() + skew) / unit_bytes * unit_bytes;
        let end = (span.end().get() + skew).div_ceil(unit_bytes) * unit_bytes;
        let at = |at: u64| VolumeOffset::new(at.saturating_sub(skew));
        VolumeSpan::between(at(start), at(end))
    }
}
