//! What is to go into the history, collected while a guard runs.

use std::collections::BTreeMap;

use ::guard::{Counters, Millis};
use os::{DeviceCounters, DeviceNumber};

use super::System;
use super::history::{Entry, History, Requests, Space, Work, today};

/// What was done is saved so often.
const SAVE_MS: Millis = 60_000;
/// Where nothing was done, the requests of the devices are.
const IDLE_SAVE_MS: Millis = 900_000;

/// Collects, and saves from time to time.
pub(super) struct Chronicle {
    /// There is none in a dry run, nor where it cannot be written.
    history: Option<History>,
    saved_ms: Millis,
    asleep: BTreeMap<&'static str, Millis>,
    devices: BTreeMap<DeviceNumber, Option<DeviceCounters>>,
}

impl Chronicle {
    pub(super) fn new(history: Option<History>, systems: &[System]) -> Self {
        let devices =
            systems.iter().filter(|system| system.watch.is_some()).flat_map(|system| &system.devices);
        let devices = devices.map(|device| (*device, DeviceCounters::of(*device))).collect();
        Self { history, saved_ms: 0, asleep: BTreeMap::new(), devices }
    }

    /// Work waited for so long.
    pub(super) fn slept(&mut self, why: &'static str, milliseconds: Millis) {
        *self.asleep.entry(why).or_insert(0) += milliseconds;
    }

    /// Saves if it is time, or if it `must`.
    pub(super) fn save(&mut self, now: Millis, systems: &mut [System], must: bool) {
        let passed = now.saturating_sub(self.saved_ms);
        if self.history.is_none() || passed < SAVE_MS && !must {
            return;
        }
        let has_news = !self.asleep.is_empty() || systems.iter().any(System::has_unsaved);
        if !has_news && passed < IDLE_SAVE_MS && !must {
            return;
        }
        self.saved_ms = now;
        let entry = Entry {
            // First, since what work is taken of counts as saved.
            space: systems.iter_mut().filter_map(System::take_space).collect(),
            work: systems.iter_mut().filter_map(System::take_work).collect(),
            asleep: std::mem::take(&mut self.asleep).into_iter().collect(),
            requests: self.requests(),
        };
        let Some(history) = &mut self.history else { return };
        if let Err(error) = history.add(today(), &entry) {
            tracing::warn!(%error, "the history could not be written");
        }
    }

    /// What each device served since it was asked last. One that counts less than before is another.
    fn requests(&mut self) -> Vec<Requests> {
        let mut all = Vec::new();
        for (device, before) in &mut self.devices {
            let now = DeviceCounters::of(*device);
            if let (Some(then), Some(now)) = (*before, now) {
                let since = |then: u64, now: u64| now.checked_sub(then);
                let counts = [
                    since(then.reads, now.reads),
                    since(then.read_ms, now.read_ms),
                    since(then.writes, now.writes),
                    since(then.write_ms, now.write_ms),
                ];
                if let [Some(reads), Some(read_ms), Some(writes), Some(write_ms)] = counts {
                    let device = format!("{}:{}", device.major, device.minor);
                    all.push(Requests { device, reads, read_ms, writes, write_ms });
                }
            }
            *before = now;
        }
        all
    }
}

impl System {
    /// What was counted since the last save.
    fn unsaved(&self) -> Counters {
        let Some(guard) = &self.guard else { return Counters::default() };
        guard.counters().since(self.saved)
    }

    fn has_unsaved(&self) -> bool {
        let has_gain = self.guard.as_ref().is_some_and(::guard::Guard::has_space_gain);
        has_gain || self.unsaved() != Counters::default()
    }

    fn take_space(&mut self) -> Option<Space> {
        let new = self.unsaved();
        let path = self.roots.first()?;
        let gain = self.guard.as_mut()?.take_space_gain();
        if new.space_moved_bytes == 0 && new.space_stretches == 0 && gain.is_none() {
            return None;
        }
        Some(Space {
            uuid: ::guard::hex(&self.uuid),
            path: path.display().to_string(),
            kind: self.name.clone(),
            moved_bytes: new.space_moved_bytes,
            stretches: new.space_stretches,
            largest_free_bytes: gain
                .map(|gain| (gain.before.largest_free_bytes, gain.after.largest_free_bytes)),
        })
    }

    fn take_work(&mut self) -> Option<Work> {
        let new = self.unsaved();
        if new == Counters::default() {
            return None;
        }
        self.saved = self.guard.as_ref()?.counters();
        let path = self.roots.first()?;
        Some(Work {
            uuid: ::guard::hex(&self.uuid),
            path: path.display().to_string(),
            kind: self.name.clone(),
            prevented: new.prevented,
            repaired: new.repaired,
            moved_bytes: new.moved_bytes,
        })
    }
}
