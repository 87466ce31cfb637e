//! A plan for a volume of which the container holds all, carried out in one that does not: in smaller batches, so that the container is
//! never larger by more than it may be. What a batch leaves is given back before the next begins.
//!
//! A batch may be cut anywhere: each of its moves goes to what was free before it, and is whole in itself.

use std::collections::BTreeSet;

use block::Result;
use extent::VolumeSpan;
use filesystem::{FileId, Relocation, Relocations};

use super::plan::{DefragOptions, DefragPlan};
use super::state::{Layout, Space};

/// The same moves within the limits of growth; `None` if one of them does not fit, or too much would be left in the end.
pub(super) fn within_growth(
    layout: &Layout,
    options: &DefragOptions,
    plan: &DefragPlan,
) -> Result<Option<DefragPlan>> {
    let mut schedule = Schedule::new(layout, options);
    for batch in &plan.batches {
        for group in groups(batch, &schedule.together) {
            if !schedule.add(group)? {
                return Ok(None);
            }
        }
        schedule.close()?;
    }
    let Schedule { space, batches, releases, holes, .. } = schedule;
    if space.growth_bytes() > options.growth_left_bytes_max {
        return Ok(None);
    }
    Ok(Some(DefragPlan {
        batches,
        releases,
        holes,
        growth_bytes: space.peak_bytes(),
        growth_left_bytes: space.growth_bytes(),
        ..plan.clone()
    }))
}

/// What of a batch moves at once: one relocation, or all of a file that moves together; in the order in which they lie afterwards.
fn groups(batch: &Relocations, together: &BTreeSet<FileId>) -> Vec<Vec<Relocation>> {
    let mut groups: Vec<Vec<Relocation>> = Vec::new();
    let (bound, free): (Vec<_>, Vec<_>) =
        batch.by_destination().partition(|relocation| together.contains(&relocation.file));
    groups.extend(free.into_iter().map(|relocation| vec![relocation]));
    for file in bound.iter().map(|relocation| relocation.file).collect::<BTreeSet<_>>() {
        groups.push(bound.iter().copied().filter(|relocation| relocation.file == file).collect());
    }
    groups
}

struct Schedule {
    space: Space,
    /// Files of which a part does not move without the rest.
    together: BTreeSet<FileId>,
    batch: Vec<Relocation>,
    batch_holes: Vec<VolumeSpan>,
    batches: Vec<Relocations>,
    releases: Vec<Vec<VolumeSpan>>,
    holes: Vec<Vec<VolumeSpan>>,
}

impl Schedule {
    fn new(layout: &Layout, options: &DefragOptions) -> Self {
        let together = (0..layout.stream_count()).filter(|stream| layout.moves_together(*stream));
        Self {
            space: Space::new(layout, options),
            together: together.map(|stream| layout.file(stream)).collect(),
            batch: Vec::new(),
            batch_holes: Vec::new(),
            batches: Vec::new(),
            releases: Vec::new(),
            holes: Vec::new(),
        }
    }

    /// Adds what moves at once to the batch, or to the next if that is too much. `false` if it is too much for any.
    fn add(&mut self, group: Vec<Relocation>) -> Result<bool> {
        let mut places = self.places(&group);
        if !self.space.offers_all_but(&places) {
            self.close()?;
            places = self.places(&group);
        }
        if !self.space.offers_all_but(&places) {
            return Ok(false);
        }
        for (place, holes) in places {
            self.space.take(place, &holes);
            self.batch_holes.extend(holes);
        }
        self.batch.extend(group);
        Ok(true)
    }

    /// Where each goes, and what of that is not stored then.
    fn places(&self, group: &[Relocation]) -> Vec<(VolumeSpan, Vec<VolumeSpan>)> {
        let place = |relocation: &Relocation| {
            let holes = self.space.holes_of(std::iter::once((relocation.from, relocation.to)));
            (relocation.to_span(), holes)
        };
        group.iter().map(place).collect()
    }

    fn close(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        if batch.is_empty() {
            return Ok(());
        }
        batch.iter().for_each(|relocation| self.space.give(relocation.from));
        self.batches.push(Relocations::new(batch)?);
        let holes = std::mem::take(&mut self.batch_holes);
        self.releases.push(self.space.shrink(&holes));
        self.holes.push(holes);
        Ok(())
    }
}
