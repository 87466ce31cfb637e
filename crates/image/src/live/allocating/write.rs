//! Writes a disk in use, and gives places to units that have none.
//!
//! A write to units that all have their places goes there at once, beside others. Any other has its region alone: places are found,
//! the new units filled around what is written, then come the data, and only then do the tables refer to them.
//!
//! Invariants:
//! - tables refer to a new unit only after all of its data were written;
//! - a new place for a write that failed goes the way of all that is freed, unless the tables do refer to it;
//! - whatever a new place held before, the guest never sees it.
//!
//! Absent on purpose: where new units lie best, which a format's container decides.

use block::{FileIndex, Result, TargetFile, is_zero};
use extent::{HostSpan, Span, VirtualSpan};

use super::{AllocatingDisk, Container, Place, State, Storage, To, Unit};
use crate::live::broken;
use crate::live::tables::index;

/// A part of one unit, on its way to its place.
struct Target {
    unit: u64,
    part: VirtualSpan,
    old: Unit,
    place: Place,
    is_new: bool,
}

impl<C: Container> AllocatingDisk<C> {
    /// Writes what lies within one region.
    pub(super) fn write_region(&self, span: VirtualSpan, buf: &[u8]) -> Result<()> {
        {
            let _shared = self.region(span).read().expect("no writer panicked");
            self.check_not_closed()?;
            let units = self.units(span)?;
            if units.iter().all(|unit| matches!(unit, Unit::Data(_))) {
                let targets = self.in_place(span, &units);
                return self.write_targets(span, &targets, buf);
            }
        }
        let _alone = self.region(span).write().expect("no writer panicked");
        // The disk may have been closed while this waited.
        self.check_not_closed()?;
        self.write_anywhere(span, buf)
    }

    fn in_place(&self, span: VirtualSpan, units: &[Unit]) -> Vec<Target> {
        let parts = span.split(self.shape.unit_bytes).zip(self.unit_range(span)).zip(units);
        let targets = parts.filter_map(|((part, unit), old)| {
            let Unit::Data(at) = *old else { return None };
            Some(Target { unit, part, old: *old, place: Place { at, is_clean: false }, is_new: false })
        });
        targets.collect()
    }

    /// Writes the targets' parts of `buf`, which is that of `span`: neighbours in the file together.
    fn write_targets(&self, span: VirtualSpan, targets: &[Target], buf: &[u8]) -> Result<()> {
        let place = |target: &Target| target.place.at.plus(self.skip_bytes(target.part.start()));
        let mut rest = targets;
        while let Some(first) = rest.first() {
            let at = place(first);
            let mut len_bytes = first.part.len_bytes();
            let mut count = 1;
            while let Some(next) = rest.get(count).filter(|next| place(next) == at.plus(len_bytes)) {
                len_bytes += next.part.len_bytes();
                count += 1;
            }
            let from = index(first.part.start().get() - span.start().get());
            self.file.write_at(at, &buf[from..from + index(len_bytes)])?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Writes `span`, whose region is locked alone, giving places to units that have none.
    pub(super) fn write_anywhere(&self, span: VirtualSpan, buf: &[u8]) -> Result<()> {
        let targets = self.allocate(span)?;
        let written = self.fill_new(&targets).and_then(|()| self.write_targets(span, &targets, buf));
        self.refer_to_new(&targets, written)
    }

    /// Gives the whole unit `span` a place that reads as zeros.
    pub(super) fn place_zeros(&self, span: VirtualSpan) -> Result<()> {
        let targets = self.allocate(span)?;
        let mut dirty = targets.iter().filter(|target| !target.place.is_clean);
        let zeroed = dirty.try_for_each(|target| self.clear(&target.place));
        self.refer_to_new(&targets, zeroed)
    }

    /// Places for all units of `span`.
    fn allocate(&self, span: VirtualSpan) -> Result<Vec<Target>> {
        self.bound_tables()?;
        let units = self.units(span)?;
        let mut targets = Vec::with_capacity(units.len());
        let mut failure = Ok(());
        {
            let mut state = self.change();
            let parts = span.split(self.shape.unit_bytes).zip(self.unit_range(span)).zip(units);
            for ((part, unit), old) in parts {
                match state.place(unit, old) {
                    Ok((place, is_new)) => targets.push(Target { unit, part, old, place, is_new }),
                    Err(error) => {
                        failure = Err(error);
                        break;
                    }
                }
            }
        }
        if let Err(error) = failure {
            return self.refer_to_new(&targets, Err(error)).map(|()| Vec::new());
        }
        if let Some(placement) = &self.options.placement {
            for target in targets.iter().filter(|target| target.is_new) {
                placement.placed(FileIndex(0), Span::new(target.place.at, self.shape.unit_bytes));
            }
        }
        Ok(targets)
    }

    /// Writes what new units hold outside of the parts that are about to be written.
    fn fill_new(&self, targets: &[Target]) -> Result<()> {
        let is_filled = |target: &&Target| target.is_new && !matches!(target.old, Unit::Unmarked(_));
        for target in targets.iter().filter(is_filled) {
            let whole = self.unit_span(target.unit);
            if target.part == whole && whole.len_bytes() == self.shape.unit_bytes {
                continue;
            }
            if !target.place.is_clean {
                self.clear(&target.place)?;
            }
            for edge in [
                Span::between(whole.start(), target.part.start()),
                Span::between(target.part.end(), whole.end()),
            ] {
                self.copy_old(target, edge)?;
            }
        }
        Ok(())
    }

    /// Has a place that was used before read as zeros. What is not written then takes no storage where nothing is reserved.
    fn clear(&self, place: &Place) -> Result<()> {
        let room = self.room(place);
        if self.options.reserves_nothing { self.file.punch_or_zero(room) } else { self.file.zero(room) }
    }

    /// All that is the unit's where it lies, behind which another may lie.
    fn room(&self, place: &Place) -> HostSpan {
        Span::new(place.at, self.look().container.room_bytes(place.at, self.shape.unit_bytes))
    }

    /// Copies `edge` of a unit from where it was to its new place, which reads as zeros.
    fn copy_old(&self, target: &Target, edge: VirtualSpan) -> Result<()> {
        let has_old = match target.old {
            Unit::Absent => self.has_parent,
            Unit::Zero(_) | Unit::Data(_) | Unit::Unmarked(_) => false,
            Unit::Shared(_) | Unit::Compressed { .. } => true,
        };
        if edge.is_empty() || !has_old {
            return Ok(());
        }
        let mut bytes = vec![0; index(edge.len_bytes())];
        let skip_bytes = self.skip_bytes(edge.start());
        match target.old {
            Unit::Absent => _ = self.chain.read_parents(edge.start(), &mut bytes)?,
            Unit::Shared(at) => self.read_file(at.plus(skip_bytes), &mut bytes)?,
            Unit::Compressed { at, len_bytes } => {
                let unit = self.expanded(at, len_bytes)?;
                let from = index(skip_bytes);
                bytes.copy_from_slice(&unit[from..from + index(edge.len_bytes())]);
            }
            Unit::Zero(_) | Unit::Data(_) | Unit::Unmarked(_) => {}
        }
        if is_zero(&bytes) { Ok(()) } else { self.file.write_at(target.place.at.plus(skip_bytes), &bytes) }
    }

    /// Makes the tables refer to new units once they are `written`; gives their places back if they are not.
    fn refer_to_new(&self, targets: &[Target], written: Result<()>) -> Result<()> {
        if !targets.iter().any(|target| target.is_new) {
            return written;
        }
        let mut state = self.change();
        let mut result = written;
        for target in targets.iter().filter(|target| target.is_new) {
            if result.is_ok() {
                result = state.refer(target.unit, To::Data(target.place.at));
                if result.is_ok() || !state.is_unreferenced(target) {
                    continue;
                }
            }
            if !matches!(target.old, Unit::Zero(Some(_)) | Unit::Unmarked(_)) {
                // Nothing refers to it, but what was there may be what the storage still refers to: it goes the way of
                // all that is freed.
                state.freed.push(Storage::Unit(target.place.at));
            }
        }
        drop(state);
        if broken!(ReusedTooSoon) {
            self.release_now()?;
        }
        result
    }
}

impl<C: Container> State<C> {
    /// A place for `unit`, which says `old`, and whether the tables have yet to refer to it.
    fn place(&mut self, unit: u64, old: Unit) -> Result<(Place, bool)> {
        match old {
            Unit::Data(at) => return Ok((Place { at, is_clean: false }, false)),
            Unit::Zero(Some(at)) | Unit::Unmarked(at) => {
                return Ok((Place { at, is_clean: false }, true));
            }
            Unit::Absent | Unit::Zero(None) | Unit::Shared(_) | Unit::Compressed { .. } => {}
        }
        // What the storage may still refer to for this very unit: the same bytes, whichever entry survives.
        if let Some(at) = self.freed_units.remove(&unit) {
            return Ok((Place { at, is_clean: false }, true));
        }
        Ok((self.container.allocate(&mut self.tables, unit)?, true))
    }

    /// Whether the tables do not lead to a target's place, though they were to.
    fn is_unreferenced(&mut self, target: &Target) -> bool {
        let Self { tables, container, .. } = self;
        let found = tables.looking(|tables| container.lookup(tables, target.unit));
        // If that cannot be told it stays taken.
        found.is_ok_and(|found| found != Unit::Data(target.place.at))
    }

    pub(super) fn refer(&mut self, unit: u64, to: To) -> Result<()> {
        let mut freed = Vec::new();
        let result = self.container.set(&mut self.tables, unit, to, &mut freed);
        for storage in freed {
            match storage {
                Storage::Unit(at) if !self.freed_units.contains_key(&unit) => {
                    self.freed_units.insert(unit, at);
                }
                other => self.freed.push(other),
            }
        }
        result
    }
}
