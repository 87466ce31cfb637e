//! Work in short turns, of somebody who has other things to do while it pauses: nothing here waits.

use mutants::broken;

use crate::counts::Counts;
use crate::regulator::{Millis, Reason, Regulator};

/// What the kernel counts, and what that is good for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// What this process does reaches the devices as it is.
    Exact(Counts),
    /// Something lies in between that does more or less of it: only what devices do between turns tells of others.
    BetweenTurns(Counts),
    /// Nobody counts.
    Nothing,
}

impl Counted {
    fn between_turns(self) -> Option<Counts> {
        match self {
            Self::Exact(counts) | Self::BetweenTurns(counts) => Some(counts),
            Self::Nothing => None,
        }
    }

    fn within_a_turn(self) -> Option<Counts> {
        match self {
            Self::Exact(counts) => Some(counts),
            Self::BetweenTurns(_) | Self::Nothing => None,
        }
    }
}

/// Says whether a turn of work may begin, and when it has to end.
#[derive(Clone, Debug)]
pub struct Turns {
    regulator: Regulator,
    /// Until when work pauses, and why.
    pause: Option<(Millis, Reason)>,
}

impl Turns {
    /// There is work from now on. It is looked for others before the first turn.
    pub fn new(now: Millis) -> Self {
        Self { regulator: Regulator::new(now), pause: None }
    }

    /// Nothing was asked for a while, or nothing was to be done: what happened until now tells nothing.
    pub fn skip(&mut self, counted: Counted) {
        if let Some(counts) = counted.between_turns() {
            self.regulator.rests(counts);
        }
    }

    /// Why no turn may begin now; `None`: it may. What is counted is asked for where it is needed.
    pub fn waits(&mut self, now: Millis, counted: impl FnOnce() -> Counted) -> Option<Reason> {
        let pause = match self.pause {
            Some((until, reason)) if now < until => return Some(reason),
            Some(_) => self.regulator.rested(now, counted().between_turns()),
            None if broken!(RestUnseen) => None,
            None => self.regulator.look_idle(now, counted().between_turns()),
        };
        self.pause = pause.map(|(ms, reason)| (now.saturating_add(ms), reason));
        self.pause.map(|(_, reason)| reason)
    }

    /// So many bytes more were done in this turn. Whether it goes on.
    pub fn goes_on(&mut self, now: Millis, bytes: u64, counted: impl FnOnce() -> Counted) -> bool {
        if self.pause.is_some() {
            return broken!(TurnUnended);
        }
        if !self.regulator.advance(now, bytes) {
            return true;
        }
        let counted = counted();
        let Some((ms, reason)) = self.regulator.look(now, counted.within_a_turn()) else { return true };
        self.skip(counted);
        self.pause = Some((now.saturating_add(ms), reason));
        broken!(TurnUnended)
    }

    /// A turn is over. Where own work cannot be told from others', all that is counted from here on is theirs.
    pub fn ends(&mut self, counted: impl FnOnce() -> Counted) {
        if self.pause.is_none()
            && let counted @ Counted::BetweenTurns(_) = counted()
        {
            self.skip(counted);
        }
    }
}
