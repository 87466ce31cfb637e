//! Moves units of a disk that no guest uses to other places of its file, so that the file can be cut off.
//!
//! In the order in which everything reaches the storage here: data into free places, flush, compared with what they were;
//! then the tables that refer to them, and only once these are on stable storage are the former places free. So a cut leaves each
//! unit where it was or where it goes, and at worst a place that nothing refers to.
//!
//! Absent on purpose: which units move and where to, which is planned elsewhere from an [`Occupancy`].

use block::{Error, HostState, Occupancy, Occupant, Occupied, ReadAt, Result, TargetFile, UnitMove};
use extent::{ExtentSet, Host, HostOffset, HostSpan, Span};

use super::{AllocatingDisk, Committer, Container, State, Storage};
use crate::live::tables::index;

/// What is copied at once.
const COPY_BYTES: u64 = 1 << 20;
/// Runs of units remembered at most, about 40 MiB: what is in more pieces stays as it is.
const RUN_COUNT_MAX: usize = 1 << 20;

/// When tables without contents are looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tidy {
    /// Units are about to move.
    BeforeMoves,
    /// The image is about to be closed.
    AtTheEnd,
}

/// Gathers what can be moved.
pub(crate) struct Movable {
    slot_bytes: u64,
    runs: Vec<Occupied>,
    is_too_much: bool,
}

impl Movable {
    pub(crate) fn new(slot_bytes: u64) -> Self {
        Self { slot_bytes, runs: Vec::new(), is_too_much: false }
    }

    /// `who` has the slot at `at`.
    pub(crate) fn push(&mut self, who: Occupant, at: HostOffset) {
        let is_full = self.runs.len() >= RUN_COUNT_MAX;
        match self.runs.last_mut() {
            Some(last)
                if last.first.plus(last.count) == who && last.at.plus(last.count * self.slot_bytes) == at =>
            {
                last.count += 1;
            }
            _ if is_full => self.is_too_much = true,
            _ => self.runs.push(Occupied { first: who, count: 1, at }),
        }
    }

    /// What lies where in a file of `len_bytes` of which `taken` is in use: what of it is no slot's is fixed. `None` if what can be
    /// moved is too much to remember, or two have one place. Where slots may begin, and what follows them, is the format's to add.
    pub(crate) fn occupancy(
        self,
        taken: ExtentSet<Host>,
        cut_off: Option<HostSpan>,
        len_bytes: u64,
    ) -> Option<Occupancy> {
        let slot_bytes = self.slot_bytes;
        let movable = self.finish()?;
        let runs = movable.iter().map(|run| Span::new(run.at, run.count * slot_bytes));
        let mut slots: ExtentSet<Host> = runs.collect();
        if let Some(cut_off) = cut_off.filter(|cut_off| slots.contains(cut_off.start())) {
            let beyond = Span::between(cut_off.end(), cut_off.start().plus(slot_bytes));
            slots = slots.subtract(&[beyond].into_iter().collect());
        }
        Some(Occupancy {
            unit_bytes: slot_bytes,
            head_bytes: 0,
            align_bytes: 1,
            phase_bytes: 0,
            slots_from: HostOffset::ZERO,
            fixed: taken.subtract(&slots),
            movable,
            unusable: ExtentSet::new(),
            cut_off,
            units_per_map: None,
            bytes_per_counts: None,
            length_multiple_bytes: 1,
            tail_bytes: 0,
            length_bytes: len_bytes,
            is_dense: false,
        })
    }

    /// All of it in order of place; `None` as above.
    fn finish(mut self) -> Option<Vec<Occupied>> {
        self.runs.sort_unstable_by_key(|run| run.at);
        let end = |run: &Occupied| run.at.plus(run.count * self.slot_bytes);
        let is_apart = self.runs.windows(2).all(|pair| end(&pair[0]) <= pair[1].at);
        (is_apart && !self.is_too_much).then_some(self.runs)
    }
}

/// The slots of `moved`, one by one: who, from, to.
fn each(
    moved: &UnitMove,
    slot_bytes: u64,
) -> impl Iterator<Item = (Occupant, HostOffset, HostOffset)> + use<> {
    let UnitMove { first, count, from, to } = *moved;
    (0..count).map(move |index| {
        let distance = index * slot_bytes;
        (first.plus(index), from.plus(distance), to.plus(distance))
    })
}

impl<C: Container> AllocatingDisk<C> {
    fn slot_bytes(&self) -> u64 {
        self.shape.unit_bytes + self.look().container.head_bytes()
    }

    pub(super) fn find_occupancy(&self) -> Result<Option<Occupancy>> {
        let mut state = self.change();
        let State { tables, container, .. } = &mut *state;
        container.occupancy(tables)
    }

    /// See [`block::LiveDisk::reclaim`].
    pub(super) fn free_leaks(&self) -> Result<u64> {
        self.begin()?;
        let mut committer = self.committer.lock().expect("no writer panicked");
        let mut state = self.change();
        let State { tables, container, freed, .. } = &mut *state;
        let leaks = container.leaks(tables)?;
        let len_bytes = leaks.len() as u64 * self.shape.unit_bytes;
        freed.extend(leaks);
        drop(state);
        self.commit(&mut committer)?;
        Ok(len_bytes)
    }

    /// See [`block::LiveDisk::relocate`].
    pub(super) fn move_units(&self, moves: &[UnitMove]) -> Result<()> {
        self.begin()?;
        let _alone: Vec<_> =
            self.regions.iter().map(|region| region.write().expect("no writer panicked")).collect();
        self.check_not_closed()?;
        let mut committer = self.committer.lock().expect("no writer panicked");
        self.tidy(&mut committer, Tidy::BeforeMoves)?;
        let mut claimed = Vec::new();
        let moved = self.claim(moves, &mut claimed).and_then(|()| self.copy(moves));
        match moved {
            Ok(()) => self.refer_all(moves)?,
            // Nothing refers to them.
            Err(_) => self.change().freed.extend(claimed),
        }
        self.commit(&mut committer)?;
        moved
    }

    /// Frees tables without contents, and those that become such by it.
    pub(super) fn tidy(&self, committer: &mut Committer, when: Tidy) -> Result<()> {
        loop {
            let is_any = {
                let mut state = self.change();
                let State { tables, container, freed, .. } = &mut *state;
                let before = freed.len();
                container.tidy(tables, freed, when)?;
                freed.len() > before
            };
            if !is_any {
                return Ok(());
            }
            self.commit(committer)?;
        }
    }

    /// Takes all places that `moves` go to.
    fn claim(&self, moves: &[UnitMove], claimed: &mut Vec<Storage>) -> Result<()> {
        let slot_bytes = self.slot_bytes();
        let mut state = self.change();
        let State { tables, container, .. } = &mut *state;
        let head_bytes = container.head_bytes();
        for (who, from, to) in moves.iter().flat_map(|moved| each(moved, slot_bytes)) {
            if !container.lies_at(tables, who, from)? {
                return Err(
                    Error::refused(format!("{who:?} does not lie where it is to be moved from")).at(from)
                );
            }
            if Span::new(to, slot_bytes).end().get() > tables.len_bytes() || !container.claim(tables, to)? {
                return Err(
                    Error::refused(format!("the place that {who:?} is to be moved to is not free")).at(to)
                );
            }
            claimed.push(Storage::Unit(to.plus(head_bytes)));
        }
        Ok(())
    }

    /// Brings the data of all units to their new places, and sees that they are there.
    fn copy(&self, moves: &[UnitMove]) -> Result<()> {
        let slot_bytes = self.slot_bytes();
        let of_units = || moves.iter().filter(|moved| matches!(moved.first, Occupant::Unit(_)));
        for moved in of_units() {
            self.file.punch_or_zero(Span::new(moved.to, moved.count * slot_bytes))?;
        }
        let mut buf = vec![0; index(COPY_BYTES)];
        for moved in of_units() {
            self.each_held(moved, slot_bytes, |from, to| {
                let piece = &mut buf[..index(from.len_bytes())];
                self.file.read_at(from.start(), piece)?;
                self.file.write_at(to, piece)
            })?;
        }
        self.file.flush()?;
        let mut arrived = vec![0; index(COPY_BYTES)];
        for moved in of_units() {
            self.each_held(moved, slot_bytes, |from, to| {
                let (piece, arrived) =
                    (&mut buf[..index(from.len_bytes())], &mut arrived[..index(from.len_bytes())]);
                self.file.read_at(from.start(), piece)?;
                self.file.read_stored(to, arrived)?;
                match piece == arrived {
                    true => Ok(()),
                    false => Err(Error::mismatch("what was moved did not arrive as it was").at(to)),
                }
            })?;
        }
        Ok(())
    }

    /// Visits what the host holds of a move's source, piece by piece, with where it goes.
    fn each_held(
        &self,
        moved: &UnitMove,
        slot_bytes: u64,
        mut visit: impl FnMut(HostSpan, HostOffset) -> Result<()>,
    ) -> Result<()> {
        let len_bytes = self.look().tables.len_bytes();
        let source = Span::new(moved.from, moved.count * slot_bytes);
        let Some(source) = source.intersect(&Span::from_zero(len_bytes)) else { return Ok(()) };
        let map = self.chain.files()[0].host_map(source)?;
        for held in map.into_iter().filter(|extent| extent.state == HostState::Data) {
            for piece in held.span.split(COPY_BYTES) {
                visit(piece, moved.to.plus(piece.start().get() - moved.from.get()))?;
            }
        }
        Ok(())
    }

    /// Makes the tables refer to the new places; the former ones become free with the next commit.
    fn refer_all(&self, moves: &[UnitMove]) -> Result<()> {
        let slot_bytes = self.slot_bytes();
        let mut state = self.change();
        let State { tables, container, freed, .. } = &mut *state;
        let head_bytes = container.head_bytes();
        for (who, from, to) in moves.iter().flat_map(|moved| each(moved, slot_bytes)) {
            container.refer(tables, who, from, to)?;
            freed.push(Storage::Unit(from.plus(head_bytes)));
        }
        Ok(())
    }
}
