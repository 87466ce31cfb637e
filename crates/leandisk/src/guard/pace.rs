//! When files are put together, and when that pauses for what others do: `throttle`, on what the kernel counts of the devices below.
//!
//! Invariant: file systems that share a device share a pace, so that what is done for one of them is not others' work to the other; and what is
//! done on other devices is not taken for work on these.

use std::path::{Path, PathBuf};

use ::guard::Millis;
use os::{Activity, DeviceNumber};
use throttle::{Counted, Counts, Reason, Turns};

use super::System;

/// Reads and writes of this process.
type OwnBytes = (u64, u64);

/// The pace of work on some devices.
pub(super) struct Pace {
    activity: Option<Activity>,
    /// What this process did for file systems on these devices, until the turn that runs.
    own: OwnBytes,
    /// What it had done when that began.
    began: Option<OwnBytes>,
    turns: Turns,
}

/// The paces of all guarded file systems; tells each which is its own. `counters`: `/sys/dev/block`.
pub(super) fn paces(counters: &Path, systems: &mut [System]) -> Vec<Pace> {
    let mut groups: Vec<Vec<(PathBuf, Vec<DeviceNumber>)>> = Vec::new();
    for system in systems {
        let shares = |group: &Vec<(PathBuf, Vec<DeviceNumber>)>| {
            group.iter().any(|(_, devices)| devices.iter().any(|device| system.devices.contains(device)))
        };
        system.pace = groups.iter().position(shares).unwrap_or(groups.len());
        if system.pace == groups.len() {
            groups.push(Vec::new());
        }
        if let Some(path) = system.roots.first() {
            groups[system.pace].push((path.clone(), system.devices.clone()));
        }
    }
    groups.iter().map(|group| Pace::new(Activity::of_systems(counters, group))).collect()
}

/// The reason as a history has it.
pub(super) fn why(reason: Reason) -> &'static str {
    match reason {
        Reason::Devices => "others used the devices",
        Reason::Progress => "work was slower than usual",
    }
}

impl Pace {
    fn new(activity: Option<Activity>) -> Self {
        Self { activity, own: (0, 0), began: None, turns: Turns::new(0) }
    }

    /// There was nothing to do until now: what happened before tells nothing.
    pub(super) fn skip(&mut self) {
        let counted = self.counted();
        self.turns.skip(counted);
    }

    /// Why nothing may be begun now.
    pub(super) fn waits(&mut self, now: Millis) -> Option<Reason> {
        let counted = self.counted();
        self.turns.waits(now, || counted)
    }

    /// A turn begins.
    pub(super) fn begins(&mut self) {
        self.began = self.process();
    }

    /// So much was done. Whether the turn goes on.
    pub(super) fn goes_on(&mut self, now: Millis, bytes: u64) -> bool {
        let Self { activity, own, began, turns } = self;
        turns.goes_on(now, bytes, || counted(activity.as_ref(), *own, *began))
    }

    /// The turn is over.
    pub(super) fn ends(&mut self) {
        if let (Some(began), Some(now)) = (self.began, self.process()) {
            self.own = plus(self.own, began, now);
        }
        self.began = None;
        let counted = self.counted();
        self.turns.ends(|| counted);
    }

    fn process(&self) -> Option<OwnBytes> {
        let moved = self.activity.as_ref()?.moved()?;
        Some((moved.own_read, moved.own_written))
    }

    fn counted(&self) -> Counted {
        counted(self.activity.as_ref(), self.own, self.began)
    }
}

fn plus(own: OwnBytes, began: OwnBytes, now: OwnBytes) -> OwnBytes {
    (own.0 + now.0.saturating_sub(began.0), own.1 + now.1.saturating_sub(began.1))
}

fn counted(activity: Option<&Activity>, own: OwnBytes, began: Option<OwnBytes>) -> Counted {
    let Some((activity, moved)) = activity.and_then(|activity| Some((activity, activity.moved()?))) else {
        return Counted::Nothing;
    };
    let own = began.map_or(own, |began| plus(own, began, (moved.own_read, moved.own_written)));
    let counts = Counts {
        device_read_bytes: moved.device_read,
        device_written_bytes: moved.device_written,
        own_read_bytes: own.0,
        own_written_bytes: own.1,
    };
    if activity.is_exact() { Counted::Exact(counts) } else { Counted::BetweenTurns(counts) }
}
