//! Brings free space together, a stretch at a time: looks, plans, asks whether the files are free, moves, and looks again.
//!
//! Invariants:
//! - nothing is looked for before files were written that are longer than the longest free extent that is known;
//! - what is about to move is in the ledger before it does, so that a day has its bound however often guards begin anew;
//! - a file is held while it moves, and lies then as it was found, or it stays;
//! - what lies in the stretch is looked at before the first piece moves, and again after a pause: once it has anything that was not
//!   planned, the plan is dropped;
//! - what is kept from the file system to have it offer another place is given back before a turn ends.

use mutants::broken;

use block::Result;

use crate::consolidation::{LOOK_AGAIN_MS, SpaceGain, SpaceSeen, Stage};
use crate::facts::{FileId, Millis};
use crate::keeper::{Allowance, Guard, movable_bytes};
use crate::ledger::Record;
use crate::machine::{Gathered, GoesOn, Held, Machine, Told};
use crate::repair::joined;
use crate::space::{
    DeviceSpan, Goal, Owned, SpaceFacts, SpaceMap, SpaceMove, SpacePlan, bytes_a_day, candidates, goal,
    space_plan,
};

/// What was freed shows once the file system has committed it.
const PROOF_MS: Millis = 10_000;
/// After a pause of so long it is looked again what lies in a stretch. What was just moved or kept shows until it is committed.
const PAUSE_MS: Millis = 30_000;

impl<M: Machine> Guard<M> {
    /// Whether something can be done for free space now.
    pub fn has_space_work(&self, now: Millis) -> bool {
        self.options.consolidates && self.space.is_due(now)
    }

    /// What was seen of the free space.
    pub fn space_seen(&self) -> SpaceSeen {
        self.space.seen
    }

    /// Whether there is something that [`Self::take_space_gain`] gives.
    pub fn has_space_gain(&self) -> bool {
        self.space.gain.is_some()
    }

    /// What was gained since this was called last.
    pub fn take_space_gain(&mut self) -> Option<SpaceGain> {
        self.space.gain.take()
    }

    /// What the ledger of the guard before says of a day, and what may have moved on it.
    pub fn remember_moved(&mut self, moved: Option<(u64, u64)>) {
        self.space.remember(moved);
    }

    /// Does the next thing for free space, as far as it is allowed; whether there was one. `day`: since 1970.
    pub fn consolidate_within(
        &mut self,
        now: Millis,
        day: u64,
        allowance: &mut Allowance<'_>,
    ) -> Result<bool> {
        if !self.has_space_work(now) {
            return Ok(false);
        }
        self.space.lately.turn(now);
        let stage = std::mem::take(&mut self.space.stage);
        // If it fails, it rests.
        self.space.due = now.saturating_add(LOOK_AGAIN_MS);
        let done = match stage {
            Stage::Resting => self.look(now, day, None, allowance.goes_on),
            Stage::Looking { before } => self.look(now, day, before, allowance.goes_on),
            Stage::Searching { map, goal, within } => {
                self.search(now, day, (map, goal, within), allowance.goes_on)
            }
            Stage::Asking { map, goal, owned, plan, asked } => {
                self.ask(now, day, (map, goal, owned), plan, asked, allowance.goes_on)
            }
            Stage::Moving { plan, moved, tries, looked } => {
                self.move_all(now, plan, (moved, tries, looked), allowance)
            }
            Stage::Proving { stretch, before, tries } => self.prove(now, stretch, before, tries),
        };
        if !broken!(HeldBack) {
            self.machine.let_go();
        }
        done.map(|()| true)
    }

    fn goes_on_with(&mut self, now: Millis, stage: Stage) {
        (self.space.stage, self.space.due) = (stage, now);
    }

    fn left_today(&mut self, day: u64) -> Result<u64> {
        let all_bytes = self.machine.room()?.all_bytes;
        Ok(bytes_a_day(all_bytes).saturating_sub(self.space.spent(day)))
    }

    fn look(
        &mut self,
        now: Millis,
        day: u64,
        before: Option<SpaceFacts>,
        goes_on: &mut GoesOn<'_>,
    ) -> Result<()> {
        self.space.wished_bytes = self.space.lately.longest_bytes();
        let map = match self.machine.space(None, goes_on)? {
            Told::All(map) => map,
            Told::NotYet => {
                self.goes_on_with(now, Stage::Looking { before });
                return Ok(());
            }
            Told::Nothing => {
                self.options.consolidates = false;
                return Ok(());
            }
        };
        let facts = map.facts();
        self.space.seen.now = Some(facts);
        if let Some(before) = before {
            self.space.gained(before, facts);
        }
        let left_bytes = self.left_today(day)?;
        let Some(goal) = goal(&facts, self.space.wished_bytes) else {
            self.space.rest(now);
            return Ok(());
        };
        let within = candidates(&map, &goal, left_bytes);
        if within.is_empty() {
            self.space.rest(now);
        } else {
            self.goes_on_with(now, Stage::Searching { map, goal, within });
        }
        Ok(())
    }

    fn search(
        &mut self,
        now: Millis,
        day: u64,
        (map, goal, within): (SpaceMap, Goal, Vec<DeviceSpan>),
        goes_on: &mut GoesOn<'_>,
    ) -> Result<()> {
        match self.machine.owners(&within, goes_on)? {
            Told::NotYet => self.goes_on_with(now, Stage::Searching { map, goal, within }),
            Told::Nothing => self.space.rest(now),
            Told::All(owned) => {
                let bytes_max = self.left_today(day)?;
                self.decide(now, (map, goal, owned), bytes_max);
            }
        }
        Ok(())
    }

    fn decide(&mut self, now: Millis, (map, goal, owned): (SpaceMap, Goal, Vec<Owned>), bytes_max: u64) {
        let Some(plan) = space_plan(&map, &owned, &goal, bytes_max) else { return self.space.rest(now) };
        if self.options.dry_run {
            self.tell(&plan);
            return self.space.rest(now);
        }
        self.goes_on_with(now, Stage::Asking { map, goal, owned, plan, asked: 0 });
    }

    /// What a dry run would do, once for each stretch.
    fn tell(&mut self, plan: &SpacePlan) {
        let seen = &mut self.space.seen;
        (seen.before, seen.would_be_bytes) = (Some(plan.before), Some(plan.stretch.len_bytes()));
        if self.space.planned.replace(plan.stretch) != Some(plan.stretch) {
            self.counters.space_moved_bytes += plan.moved_bytes;
        }
    }

    /// Asks each file whether it is free before the first one moves; one that is not has the plan made anew without it.
    fn ask(
        &mut self,
        now: Millis,
        day: u64,
        (map, goal, mut owned): (SpaceMap, Goal, Vec<Owned>),
        plan: SpacePlan,
        mut asked: usize,
        goes_on: &mut GoesOn<'_>,
    ) -> Result<()> {
        while let Some(one) = plan.moves.get(asked) {
            if !goes_on(0) {
                self.goes_on_with(now, Stage::Asking { map, goal, owned, plan, asked });
                return Ok(());
            }
            if !self.is_free(&one.file)? {
                owned
                    .iter_mut()
                    .filter(|piece| piece.file == one.file)
                    .for_each(|piece| piece.is_movable = false);
                let bytes_max = self.left_today(day)?;
                self.decide(now, (map, goal, owned), bytes_max);
                return Ok(());
            }
            asked += 1;
        }
        // It may be another day by now.
        if plan.moved_bytes > self.left_today(day)? {
            self.space.rest(now);
            return Ok(());
        }
        self.book(day, plan.moved_bytes)?;
        self.space.seen.before.get_or_insert(plan.before);
        self.goes_on_with(now, Stage::Moving { plan, moved: 0, tries: 0, looked: None });
        Ok(())
    }

    fn is_free(&mut self, file: &FileId) -> Result<bool> {
        if self.has_claim(file) {
            return Ok(false);
        }
        let held = self.machine.hold(file)?;
        self.machine.release(file);
        Ok(matches!(held, Held::Yes(_)))
    }

    fn book(&mut self, day: u64, moved_bytes: u64) -> Result<()> {
        let sum = self.space.spent(day).saturating_add(moved_bytes);
        self.space.day = (day, sum);
        if broken!(DayForgotten) { Ok(()) } else { self.append(&[Record::Space { day, moved_bytes }]) }
    }

    /// Whether nothing lies in the stretch but what is to move.
    fn is_as_planned(&mut self, plan: &SpacePlan) -> Result<bool> {
        Ok(match self.machine.space(Some(plan.stretch), &mut |_| true)? {
            Told::All(map) => map.is_free_but_for(plan.stretch, &plan.places()),
            Told::NotYet | Told::Nothing => false,
        })
    }

    fn move_all(
        &mut self,
        now: Millis,
        plan: SpacePlan,
        (mut moved, mut tries, looked): (usize, u32, Option<Millis>),
        allowance: &mut Allowance<'_>,
    ) -> Result<()> {
        let is_recent = looked.is_some_and(|looked| now < looked.saturating_add(PAUSE_MS));
        if !is_recent && !self.is_as_planned(&plan)? {
            self.space.rest(now);
            return Ok(());
        }
        while let Some(one) = plan.moves.get(moved) {
            let done = if one.place.len_bytes() > allowance.bytes || !(allowance.goes_on)(0) {
                Moved::NotYet
            } else {
                self.move_one(one, plan.stretch, allowance)?
            };
            match done {
                Moved::Yes => moved += 1,
                Moved::Later if !self.space.waits(now, tries) => return self.give_up(now),
                Moved::No => return self.give_up(now),
                Moved::Later | Moved::NotYet => {
                    let is_busy = matches!(done, Moved::Later);
                    tries += u32::from(is_busy);
                    self.space.due = if is_busy { self.space.due } else { now };
                    self.space.stage = Stage::Moving { plan, moved, tries, looked: Some(now) };
                    return Ok(());
                }
            }
        }
        self.space.stage = Stage::Proving { stretch: plan.stretch, before: plan.before, tries: 0 };
        self.space.due = now.saturating_add(PROOF_MS);
        Ok(())
    }

    fn give_up(&mut self, now: Millis) -> Result<()> {
        self.space.rest(now);
        Ok(())
    }

    fn move_one(
        &mut self,
        one: &SpaceMove,
        stretch: DeviceSpan,
        allowance: &mut Allowance<'_>,
    ) -> Result<Moved> {
        if self.has_claim(&one.file) {
            return Ok(Moved::Later);
        }
        match self.machine.hold(&one.file)? {
            Held::Yes(_) => {}
            Held::Busy => return Ok(Moved::Later),
            Held::No(_) | Held::Gone => return Ok(Moved::No),
        }
        let done = self.move_held(one, stretch, allowance);
        self.machine.release(&one.file);
        done
    }

    fn move_held(
        &mut self,
        one: &SpaceMove,
        stretch: DeviceSpan,
        allowance: &mut Allowance<'_>,
    ) -> Result<Moved> {
        if !self.lies_as_planned(one)? && !broken!(MovedUnseen) {
            return Ok(Moved::No);
        }
        // As much is kept from others for a moment, while another place is asked for.
        if stretch.len_bytes() > movable_bytes(self.machine.room()?) && !broken!(SpaceCrowdedOut) {
            return Ok(Moved::Later);
        }
        let mut bytes = 0;
        let goes_on = &mut allowance.goes_on;
        let mut step = |moved: u64| {
            bytes += moved;
            goes_on(moved)
        };
        let len = one.place.len_bytes();
        let done = self.machine.move_out(&one.file, one.start, len, stretch, &mut step)?;
        allowance.bytes = allowance.bytes.saturating_sub(bytes);
        self.counters.space_moved_bytes += bytes;
        Ok(match done {
            Gathered::Yes => Moved::Yes,
            Gathered::Stopped => Moved::Later,
            Gathered::No if self.machine.is_wanted(&one.file) => Moved::Later,
            Gathered::No => Moved::No,
        })
    }

    /// Whether the piece is where it was found, as a piece of its own, and still nobody else's.
    fn lies_as_planned(&mut self, one: &SpaceMove) -> Result<bool> {
        let all = joined(&self.machine.extents(&one.file)?);
        Ok(all.iter().any(|extent| {
            extent.piece.logical == one.start.get()
                && extent.piece.physical == one.place.start().get()
                && extent.piece.len_bytes == one.place.len_bytes()
                && extent.is_plain
                && !extent.is_shared
        }))
    }

    fn prove(&mut self, now: Millis, stretch: DeviceSpan, before: SpaceFacts, tries: u32) -> Result<()> {
        let told = self.machine.space(Some(stretch), &mut |_| true)?;
        if matches!(&told, Told::All(map) if map.is_free_but_for(stretch, &[])) {
            self.counters.space_stretches += 1;
            self.space.rest_ms = 0;
            // How long the longest one is now, and whether there is more to do.
            self.goes_on_with(now, Stage::Looking { before: Some(before) });
        } else if self.space.waits(now, tries) {
            self.space.stage = Stage::Proving { stretch, before, tries: tries + 1 };
        } else {
            // Somebody wrote there meanwhile.
            self.space.rest(now);
        }
        Ok(())
    }
}

enum Moved {
    Yes,
    /// There is no time for it now.
    NotYet,
    /// It is in use now.
    Later,
    No,
}
