//! How far the guard is with free space, and what it knows of it: the state of `consolidate.rs`.

use crate::facts::Millis;
use crate::ledger::Record;
use crate::space::{DeviceSpan, Goal, Owned, SpaceFacts, SpaceMap, SpacePlan};

/// Where there is nothing to gain, it is looked again after so long, then after twice that, up to a day.
pub(crate) const LOOK_AGAIN_MS: Millis = 3_600_000;
const LOOK_AGAIN_MS_MAX: Millis = 86_400_000;
/// A file that is in use now is tried again after so long, so often.
const RETRY_MS: Millis = 5_000;
const TRIES_MAX: u32 = 3;
/// Files count as lately written for one or two of these.
const LATELY_MS: Millis = 86_400_000;

/// How long the files are that writers lately made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lately {
    since: Millis,
    now_bytes: u64,
    before_bytes: u64,
}

impl Lately {
    pub(crate) fn turn(&mut self, now: Millis) {
        let passed = now.saturating_sub(self.since) / LATELY_MS;
        if passed > 0 {
            self.before_bytes = if passed == 1 { self.now_bytes } else { 0 };
            (self.since, self.now_bytes) = (now, 0);
        }
    }

    fn made(&mut self, now: Millis, size_bytes: u64) {
        self.turn(now);
        self.now_bytes = self.now_bytes.max(size_bytes);
    }

    pub(crate) fn longest_bytes(&self) -> u64 {
        self.now_bytes.max(self.before_bytes)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) enum Stage {
    #[default]
    Resting,
    /// How the free space was before a stretch became free, if that is why it is looked again.
    Looking { before: Option<SpaceFacts> },
    /// Which files lie there?
    Searching { map: SpaceMap, goal: Goal, within: Vec<DeviceSpan> },
    /// Are they free? So many were asked.
    Asking { map: SpaceMap, goal: Goal, owned: Vec<Owned>, plan: SpacePlan, asked: usize },
    /// So many pieces moved; so often one was in use.
    Moving { plan: SpacePlan, moved: usize, tries: u32, looked: Option<Millis> },
    /// Is it one free extent now?
    Proving { stretch: DeviceSpan, before: SpaceFacts, tries: u32 },
}

/// What is known of the free space, and what is done about it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Consolidation {
    pub(crate) stage: Stage,
    pub(crate) lately: Lately,
    /// Nothing is done before.
    pub(crate) due: Millis,
    pub(crate) rest_ms: Millis,
    /// What was looked for last.
    pub(crate) wished_bytes: u64,
    pub(crate) seen: SpaceSeen,
    pub(crate) gain: Option<SpaceGain>,
    /// The day of the ledger's lines, and what they say.
    pub(crate) day: (u64, u64),
    pub(crate) planned: Option<DeviceSpan>,
}

/// What was seen of the free space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceSeen {
    /// At the last look, if there was one.
    pub now: Option<SpaceFacts>,
    /// Before the first piece moved that this guard moved for it; in a dry run, as it is.
    pub before: Option<SpaceFacts>,
    /// In a dry run: how long the longest free extent would be.
    pub would_be_bytes: Option<u64>,
}

/// What stretches that became free did to the longest free extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceGain {
    /// Before the first piece moved.
    pub before: SpaceFacts,
    /// At the look after the last stretch became free.
    pub after: SpaceFacts,
}

impl Consolidation {
    /// Adds to the gain that was not taken yet.
    pub(crate) fn gained(&mut self, before: SpaceFacts, after: SpaceFacts) {
        let first = self.gain.map_or(before, |gain| gain.before);
        self.gain = Some(SpaceGain { before: first, after });
    }

    pub(crate) fn made(&mut self, now: Millis, size_bytes: u64) {
        self.lately.made(now, size_bytes);
    }

    pub(crate) fn is_due(&self, now: Millis) -> bool {
        let longest_bytes = self.lately.longest_bytes();
        match self.stage {
            // A longer file than ever is a reason of its own.
            Stage::Resting => longest_bytes > 0 && (now >= self.due || longest_bytes > self.wished_bytes),
            _ => now >= self.due,
        }
    }

    /// What lines of the ledger say of the day that they are of.
    pub(crate) fn remember(&mut self, moved: Option<(u64, u64)>) {
        self.day = moved.unwrap_or_default();
    }

    /// What the ledger has to go on saying.
    pub(crate) fn record(&self) -> Option<Record> {
        let (day, moved_bytes) = self.day;
        (moved_bytes > 0).then_some(Record::Space { day, moved_bytes })
    }

    pub(crate) fn spent(&self, day: u64) -> u64 {
        if self.day.0 == day { self.day.1 } else { 0 }
    }

    pub(crate) fn rest(&mut self, now: Millis) {
        self.rest_ms = self.rest_ms.saturating_mul(2).clamp(LOOK_AGAIN_MS, LOOK_AGAIN_MS_MAX);
        (self.stage, self.due) = (Stage::Resting, now.saturating_add(self.rest_ms));
    }

    /// The same again, a little later; `false` if that was often enough.
    pub(crate) fn waits(&mut self, now: Millis, tries: u32) -> bool {
        self.due = now.saturating_add(RETRY_MS);
        tries < TRIES_MAX
    }
}
