//! Several disks that lose power at the same moment.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::Error;

use crate::{Pages, SimDisk};

/// A machine with disks that share its clock: an operation on any of them is one more operation of the machine.
#[derive(Default)]
pub struct SimMachine {
    clock: Arc<Clock>,
}

impl SimMachine {
    /// A machine without disks.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more disk of this machine, which holds `bytes`, all of them flushed.
    pub fn disk(&self, name: &str, seed: u64, bytes: Pages) -> SimDisk {
        SimDisk::of_machine(self.clock.clone(), name, seed, bytes)
    }

    pub(crate) fn clock(&self) -> Arc<Clock> {
        self.clock.clone()
    }

    /// Operations of all disks so far, failures included.
    pub fn operations(&self) -> u64 {
        self.clock.state().operations
    }

    /// Those of them that change a disk: writes of every kind and flushes.
    pub fn changes(&self) -> u64 {
        self.clock.state().changes
    }

    /// Makes the operation of this number, counted from 1, fail with this kind of error.
    pub fn fail_operation(&self, number: u64, kind: io::ErrorKind) {
        self.clock.fail_operation(number, kind);
    }

    /// Makes the change of this number, counted from 1, and every operation after it fail, as if the machine were gone.
    pub fn die_at_change(&self, number: u64) {
        self.clock.state().dead_from_change = Some(number);
    }

    /// Leaves no room on the host for the changes of these numbers, counted from 1: all but flushes fail.
    pub fn fill_during(&self, changes: Range<u64>) {
        self.clock.state().full_during = Some(changes);
    }

    /// Forgets the faults that were ordered here.
    pub fn heal(&self) {
        self.clock.heal();
    }
}

/// What becomes of an operation.
#[derive(Clone, Copy)]
pub(crate) enum Fate {
    Happens,
    Fails(io::ErrorKind),
    /// It fails, and leaves nothing.
    MachineIsGone,
}

impl Fate {
    pub(crate) fn result(self) -> Result<(), io::ErrorKind> {
        match self {
            Self::Happens => Ok(()),
            Self::Fails(kind) => Err(kind),
            Self::MachineIsGone => Err(io::ErrorKind::Other),
        }
    }

    /// The same as an error of `what` was asked for.
    pub(crate) fn outcome(self, what: &str) -> block::Result<()> {
        self.result().map_err(|kind| Error::io(what, io::Error::new(kind, "simulated fault")))
    }
}

/// Counts operations, and knows which of them fail.
#[derive(Default)]
pub(crate) struct Clock(Mutex<ClockState>);

#[derive(Default)]
struct ClockState {
    operations: u64,
    changes: u64,
    failing: Vec<(u64, io::ErrorKind)>,
    dead_from: Option<u64>,
    dead_from_change: Option<u64>,
    is_dead: bool,
    full_during: Option<Range<u64>>,
}

impl Clock {
    fn state(&self) -> MutexGuard<'_, ClockState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn fail_operation(&self, number: u64, kind: io::ErrorKind) {
        self.state().failing.push((number, kind));
    }

    pub(crate) fn die_at_operation(&self, number: u64) {
        self.state().dead_from = Some(number);
    }

    pub(crate) fn heal(&self) {
        let mut state = self.state();
        let (operations, changes) = (state.operations, state.changes);
        *state = ClockState { operations, changes, ..ClockState::default() };
    }

    /// Counts one operation, and says what becomes of it.
    pub(crate) fn tick(&self, is_change: bool) -> Fate {
        self.tick_for(is_change, false)
    }

    /// The same of an operation that may need room on the host: a change.
    pub(crate) fn tick_for(&self, is_change: bool, needs_room: bool) -> Fate {
        let mut state = self.state();
        state.operations += 1;
        state.changes += u64::from(is_change);
        let (number, changes) = (state.operations, state.changes);
        state.is_dead |= state.dead_from.is_some_and(|from| number >= from)
            || state.dead_from_change.is_some_and(|from| is_change && changes >= from);
        let failing = state.failing.iter().find(|(failing, _)| *failing == number);
        let is_full = needs_room && state.full_during.as_ref().is_some_and(|full| full.contains(&changes));
        match (state.is_dead, failing) {
            (true, _) => Fate::MachineIsGone,
            (false, Some((_, kind))) => Fate::Fails(*kind),
            (false, None) if is_full => Fate::Fails(io::ErrorKind::StorageFull),
            (false, None) => Fate::Happens,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{ReadAt, TargetFile};
    use extent::Offset;

    #[test]
    fn disks_die_together() {
        let (machine, zeros) = (SimMachine::new(), Pages::new(&[0; 4096]));
        let (one, two) = (machine.disk("one", 1, zeros.clone()), machine.disk("two", 1, zeros));
        machine.die_at_change(3);
        one.write_at(Offset::ZERO, &[1; 512]).unwrap();
        two.read_at(Offset::ZERO, &mut [0; 512]).unwrap();
        two.write_at(Offset::ZERO, &[1; 512]).unwrap();
        one.read_at(Offset::ZERO, &mut [0; 512]).unwrap();
        assert!(two.flush().is_err() && one.read_at(Offset::ZERO, &mut [0]).is_err());
        assert_eq!((machine.operations(), machine.changes()), (6, 3));
        machine.heal();
        let first = |disk: &SimDisk, seed| disk.cut_pages(seed).to_vec()[0];
        assert!((0..300).any(|seed| first(&two, seed) == 0), "the flush did not happen");
        two.flush().unwrap();
        assert!((0..300).all(|seed| first(&two, seed) == 1));
        let other = one.copy_to(&SimMachine::new());
        assert!(other.cut_pages(5) == one.cut_pages(5) && other.to_vec() == one.to_vec());
        one.flush().unwrap();
        assert!((0..300).any(|seed| first(&other, seed) == 0), "what was not flushed came along");
    }
}
