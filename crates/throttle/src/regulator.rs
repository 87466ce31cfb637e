//! Work and pauses in turn.

use std::fmt;

use mutants::broken;

use crate::counts::{Counts, Others};
use crate::rate::{Rate, Verdict};

/// Milliseconds on a clock that only goes forward.
pub type Millis = u64;

/// The time between two looks.
pub const LOOK_MS: Millis = 60;
/// The first pause.
pub const PAUSE_MIN_MS: Millis = 250;
/// No pause is longer without a look whether others are still there.
pub const PAUSE_MAX_MS: Millis = 4000;
/// After so long without work some is done, whoever else works.
pub const REST_MAX_MS: Millis = 20_000;
/// As long is then worked.
pub const TURN_MS: Millis = 200;
/// After so long without others the next pause is a short one again.
const FORGET_MS: Millis = 5000;
/// Slow through pauses of so long, together: it is slow by itself, and that is usual from now on.
const SLOW_MS: Millis = 60_000;
/// The same where the kernel counts what others do, and nobody did anything.
const SLOW_SEEN_MS: Millis = 5000;

/// Why work pauses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Others used the devices.
    Devices,
    /// Work went slower than it usually does.
    Progress,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Devices => "others use the devices",
            Self::Progress => "work is slower than usual, as if others used the devices",
        })
    }
}

/// Says when background work pauses, and for how long.
#[derive(Clone, Debug)]
pub struct Regulator {
    others: Others,
    rate: Rate,
    /// The last look.
    looked_ms: Millis,
    /// When work last said how far it is, pauses left out since.
    told_ms: Millis,
    done_bytes: u64,
    /// How long the next pause is.
    pause_ms: Millis,
    /// When others were last there.
    disturbed_ms: Millis,
    /// When the pauses that follow each other began, and why.
    resting: Option<(Millis, Reason)>,
    /// Until then work goes on, whoever else works.
    turn_until_ms: Millis,
    paused_ms: Millis,
    /// Of the pauses for slow progress alone, those since it was as usual.
    slow_ms: Millis,
}

impl Regulator {
    /// Work begins.
    pub fn new(now: Millis) -> Self {
        Self {
            others: Others::default(),
            rate: Rate::default(),
            looked_ms: now,
            told_ms: now,
            done_bytes: 0,
            pause_ms: PAUSE_MIN_MS,
            disturbed_ms: now,
            resting: None,
            turn_until_ms: 0,
            paused_ms: 0,
            slow_ms: 0,
        }
    }

    /// All pauses so far.
    pub fn paused_ms(&self) -> Millis {
        self.paused_ms
    }

    /// So many bytes more were done. Answers whether it is time for a look.
    pub fn advance(&mut self, now: Millis, bytes: u64) -> bool {
        self.done_bytes = self.done_bytes.saturating_add(bytes);
        now.saturating_sub(self.looked_ms) >= LOOK_MS
    }

    /// A look while work goes on, with what the kernel counts, where it does. Answers how long to pause, if at all, and why; when that is
    /// over, [`Self::rested`] is asked.
    pub fn look(&mut self, now: Millis, counts: Option<Counts>) -> Option<(Millis, Reason)> {
        let is_used = counts.is_some_and(|counts| self.others.look(counts));
        self.looked_ms = now;
        let done_bytes = std::mem::take(&mut self.done_bytes);
        let worked_ms = now.saturating_sub(self.told_ms);
        if done_bytes != 0 {
            self.told_ms = now;
        }
        if now < self.turn_until_ms {
            return None;
        }
        let verdict = match is_used || done_bytes == 0 || broken!(ProgressIgnored) {
            true => Verdict::Open,
            false => self.rate.look(done_bytes, worked_ms),
        };
        let reason = match (is_used, verdict) {
            (true, _) => Some(Reason::Devices),
            (false, Verdict::Bad) => Some(Reason::Progress),
            (false, Verdict::Good | Verdict::Open) => None,
        };
        let Some(reason) = reason else {
            if now.saturating_sub(self.disturbed_ms) > FORGET_MS {
                (self.pause_ms, self.slow_ms) = (PAUSE_MIN_MS, 0);
            }
            return None;
        };
        self.disturbed_ms = now;
        self.resting.get_or_insert((now, reason));
        Some((self.pause_ms, reason))
    }

    /// A look before work goes on that did nothing since the last look: all that devices did meanwhile was for others. Answers as
    /// [`Self::look`] does.
    pub fn look_idle(&mut self, now: Millis, counts: Option<Counts>) -> Option<(Millis, Reason)> {
        (self.told_ms, self.done_bytes) = (now, 0);
        self.look(now, counts)
    }

    /// A pause begins, with what the kernel counts: what is counted from here on is others' work.
    pub fn rests(&mut self, counts: Counts) {
        self.others.look(counts);
    }

    /// A pause of so long is over. Answers how much longer to pause, if others were there meanwhile.
    pub fn rested(&mut self, now: Millis, counts: Option<Counts>) -> Option<(Millis, Reason)> {
        let paused_ms = now.saturating_sub(self.looked_ms);
        self.paused_ms = self.paused_ms.saturating_add(paused_ms);
        self.told_ms = self.told_ms.saturating_add(paused_ms);
        self.looked_ms = now;
        let is_used = counts.is_some_and(|counts| self.others.look(counts)) && !broken!(PauseEndsBlindly);
        let (began_ms, reason) = self.resting?;
        self.pause_ms = self.pause_ms.saturating_mul(2).min(PAUSE_MAX_MS);
        let is_starved = now.saturating_sub(began_ms) >= REST_MAX_MS && !broken!(Starved);
        if is_used && !is_starved {
            self.disturbed_ms = now;
            return Some((self.pause_ms, Reason::Devices));
        }
        if is_starved {
            self.turn_until_ms = now.saturating_add(TURN_MS);
        }
        if reason == Reason::Progress {
            self.slow_ms = self.slow_ms.saturating_add(now.saturating_sub(began_ms));
            let limit = if counts.is_some() { SLOW_SEEN_MS } else { SLOW_MS };
            if self.slow_ms >= limit {
                self.rate.forget();
                (self.slow_ms, self.pause_ms) = (0, PAUSE_MIN_MS);
            }
        }
        self.resting = None;
        None
    }
}
