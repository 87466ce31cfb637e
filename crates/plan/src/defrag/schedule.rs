//! A plan for a volume of which the container holds all, carried out in one that does not: in smaller batches, so that the container is
//! never larger by more than it may be. What a batch leaves is given back before the next begins.
//!
//! A batch may be cut anywhere: each of its moves goes to what was free before it, and is whole in itself.

use std::collections::{BTreeMap, BTreeSet};

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
        for Group { relocations, is_divisible } in groups(batch, &schedule.together, layout.parted()) {
            let is_added = match schedule.add(&relocations)? {
                false if is_divisible => schedule.add_each(&relocations)?,
                is_added => is_added,
            };
            if !is_added {
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

/// What of a batch moves at once, in the order in which it lies afterwards.
struct Group {
    relocations: Vec<Relocation>,
    /// Whether each relocation may move by itself as well.
    is_divisible: bool,
}

/// One relocation each, or all of a file that moves together. What moves of a file that is `parted` stays together if it can: the longer a cut
/// leaves it in more places, the less likely what describes it has room for that.
fn groups(batch: &Relocations, together: &BTreeSet<FileId>, parted: &BTreeSet<FileId>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut of_files: BTreeMap<FileId, Vec<Relocation>> = BTreeMap::new();
    for relocation in batch.by_destination() {
        if together.contains(&relocation.file) || parted.contains(&relocation.file) {
            of_files.entry(relocation.file).or_default().push(relocation);
        } else {
            groups.push(Group { relocations: vec![relocation], is_divisible: false });
        }
    }
    let of_files = of_files
        .into_iter()
        .map(|(file, relocations)| Group { relocations, is_divisible: !together.contains(&file) });
    groups.extend(of_files);
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

    /// Adds relocations one by one. `false` if one of them is too much for any batch.
    fn add_each(&mut self, group: &[Relocation]) -> Result<bool> {
        for relocation in group {
            if !self.add(std::slice::from_ref(relocation))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds what moves at once to the batch, or to the next if that is too much. `false` if it is too much for any.
    fn add(&mut self, group: &[Relocation]) -> Result<bool> {
        let mut places = self.places(group);
        if !self.space.offers_all_but(&places) {
            self.close()?;
            places = self.places(group);
        }
        if !self.space.offers_all_but(&places) {
            return Ok(false);
        }
        for (place, holes) in places {
            self.space.take(place, &holes);
            self.batch_holes.extend(holes);
        }
        self.batch.extend_from_slice(group);
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

#[cfg(test)]
mod tests {
    use extent::{Span, VolumeOffset};

    use super::*;

    #[test]
    fn what_moves_of_a_parted_file_stays_together_if_it_can() {
        let relocation = |file: u64, from: u64, to: u64| Relocation {
            file: FileId(file),
            from: Span::new(VolumeOffset::new(from << 12), 1 << 12),
            to: VolumeOffset::new(to << 12),
        };
        let (whole, parted, free) = (1, 2, 3);
        let batch = [
            relocation(parted, 10, 50),
            relocation(free, 11, 51),
            relocation(whole, 12, 52),
            relocation(parted, 13, 53),
            relocation(free, 14, 54),
            relocation(whole, 15, 55),
        ];
        let batch = Relocations::new(batch.to_vec()).unwrap();
        let groups = groups(&batch, &BTreeSet::from([FileId(whole)]), &BTreeSet::from([FileId(parted)]));
        let of = |group: &Group| {
            let file = group.relocations[0].file;
            assert!(group.relocations.iter().all(|relocation| relocation.file == file));
            (file.0, group.relocations.len(), group.is_divisible)
        };
        let found: Vec<_> = groups.iter().map(of).collect();
        assert_eq!(found, [(free, 1, false), (free, 1, false), (whole, 2, false), (parted, 2, true)]);
    }
}
