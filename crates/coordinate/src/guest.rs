//! The side that asks: a guard, of a guest or of the host itself.
//!
//! Invariants:
//! - a lease is counted from when its ask was sent, so that it ends here before it ends on the host, however late the answer came;
//! - an answer counts only if it is this host's, and to the last ask;
//! - while it asks it has no lease, so that a host that hears an ask knows that the lease before is over;
//! - a host that says nothing for [`SILENCE_MS`] is none: work goes on alone.

use mutants::broken;

use crate::Millis;
use crate::message::{Disks, FromGuest, FromHost, Growth, Serial, VERSION};

/// A host says something more often than that.
pub(crate) const SILENCE_MS: Millis = 6_000;
/// What was not answered is said again.
const REPEAT_MS: Millis = 1_000;
/// No host may make a guest wait for longer than this between two asks.
const WAIT_MS_MAX: Millis = 10_000;

/// Whether work may begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum May {
    /// There is no host that coordinates: each regulates alone.
    Alone,
    /// Not now.
    Wait,
    /// So many bytes may move, until then.
    Go {
        /// What is left of the lease.
        bytes: u64,
        /// On the clock that `may` was called with.
        until: Millis,
    },
}

#[derive(Clone, Debug)]
struct Disk {
    size_bytes: u64,
    serial: Serial,
    /// What the host said of it.
    answer: Option<Option<Growth>>,
}

#[derive(Clone, Copy, Debug)]
struct Ask {
    disks: Disks,
    sent: Millis,
    /// When it is asked again.
    again: Millis,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    disks: Disks,
    ends: Millis,
    bytes: u64,
    moved: u64,
}

/// See the module's page.
#[derive(Clone, Debug)]
pub struct Guest {
    disks: Vec<Disk>,
    /// The host that spoke last.
    host: Option<u64>,
    heard: Millis,
    /// When disks were told last.
    told: Option<Millis>,
    seq: u64,
    ask: Option<Ask>,
    lease: Option<Lease>,
    /// What moved on thin disks since the host was found.
    grown: u64,
    out: Vec<FromGuest>,
}

impl Guest {
    /// One that has these disks (lengths and serial numbers), and whose port has been opened just now.
    pub fn new(now: Millis, disks: Vec<(u64, Serial)>) -> Self {
        let disk = |(size_bytes, serial)| Disk { size_bytes, serial, answer: None };
        let disks = disks.into_iter().take(crate::message::DISKS_MAX).map(disk).collect();
        let hello = FromGuest::Hello { version: VERSION, host: 0 };
        Self {
            disks,
            host: None,
            heard: now,
            told: None,
            seq: 0,
            ask: None,
            lease: None,
            grown: 0,
            out: vec![hello],
        }
    }

    /// The port was closed and opened again, or the guest was somewhere else meanwhile: what was agreed on is void.
    pub fn reopened(&mut self, now: Millis) {
        (self.ask, self.lease, self.heard) = (None, None, now);
        self.out.push(FromGuest::Hello { version: VERSION, host: 0 });
    }

    /// What is to be said.
    pub fn take_out(&mut self) -> Vec<FromGuest> {
        std::mem::take(&mut self.out)
    }

    /// What its disks call themselves.
    pub fn serials(&self) -> impl Iterator<Item = &Serial> {
        self.disks.iter().map(|disk| &disk.serial)
    }

    /// Whether a host coordinates.
    pub fn has_host(&self) -> bool {
        self.host.is_some()
    }

    /// The host said something.
    pub fn receive(&mut self, now: Millis, said: FromHost) {
        match said {
            FromHost::Hello { version, host } if version == VERSION => self.meet(now, host),
            FromHost::Tell { disk } => {
                if let Some(disk) = self.disks.get_mut(disk) {
                    (disk.answer, self.told) = (None, None);
                }
            }
            FromHost::Disk { disk, growth } => {
                if let Some(disk) = self.disks.get_mut(disk) {
                    disk.answer = Some(growth);
                }
            }
            FromHost::Lease { host, seq, bytes, ms } if self.is_answer(host, seq) => {
                let Some(ask) = self.ask.take() else { return };
                let from = if broken!(CountedFromHearing) { now } else { ask.sent };
                let ends = if broken!(LeaseWithoutEnd) { Millis::MAX } else { from.saturating_add(ms) };
                self.lease = Some(Lease { disks: ask.disks, ends, bytes, moved: 0 });
                self.heard = now;
            }
            FromHost::Wait { host, seq, ms } if self.is_answer(host, seq) => {
                if let Some(ask) = &mut self.ask {
                    ask.again = now.saturating_add(ms.clamp(1, WAIT_MS_MAX));
                }
                self.heard = now;
            }
            _ => {}
        }
    }

    fn is_answer(&self, host: u64, seq: u64) -> bool {
        self.host == Some(host) && (seq == self.seq || broken!(OldAnswerTaken))
    }

    fn meet(&mut self, now: Millis, host: u64) {
        self.heard = now;
        if self.host == Some(host) {
            return;
        }
        // Another host: what the one before said is void, its disks as well.
        self.host = Some(host);
        (self.ask, self.lease) = (None, None);
        (self.told, self.grown) = (None, 0);
        self.disks.iter_mut().for_each(|disk| disk.answer = None);
        self.out.push(FromGuest::Hello { version: VERSION, host });
    }

    /// Whether work on these disks may begin or go on; `bytes` are to be moved, and reading gains `gain` milliseconds by each GiB. To be
    /// called again until it may.
    pub fn may(&mut self, now: Millis, disks: Disks, bytes: u64, gain: u64) -> May {
        if self.is_alone(now) {
            return May::Alone;
        }
        let Some(host) = self.host else { return May::Wait };
        if !self.has_told(now, disks) {
            return May::Wait;
        }
        if disks.numbers().any(|disk| self.disks.get(disk).is_none_or(|disk| disk.answer == Some(None))) {
            return May::Alone;
        }
        if let Some(Lease { disks: leased, ends, bytes, moved }) = self.lease {
            let left = bytes.saturating_sub(moved);
            if leased == disks && now < ends && left > 0 {
                return May::Go { bytes: left, until: ends };
            }
            self.done();
        }
        if self.ask.is_none_or(|ask| now >= ask.again || ask.disks != disks) {
            self.seq += 1;
            self.ask = Some(Ask { disks, sent: now, again: now.saturating_add(REPEAT_MS) });
            self.out.push(FromGuest::Ask { host, seq: self.seq, disks, bytes, gain });
        }
        May::Wait
    }

    /// Whether there is no host that says anything.
    fn is_alone(&mut self, now: Millis) -> bool {
        if now < self.heard.saturating_add(SILENCE_MS) {
            return false;
        }
        (self.host, self.ask, self.lease) = (None, None, None);
        true
    }

    /// Whether the host has said what these disks are. They are told until it has.
    fn has_told(&mut self, now: Millis, disks: Disks) -> bool {
        let is_open = |disk: &usize| self.disks.get(*disk).is_some_and(|disk| disk.answer.is_none());
        let open: Vec<usize> = disks.numbers().filter(is_open).collect();
        if open.is_empty() {
            return true;
        }
        if self.told.is_none_or(|told| now >= told.saturating_add(REPEAT_MS)) {
            self.told = Some(now);
            for disk in open {
                let Disk { size_bytes, serial, .. } = &self.disks[disk];
                self.out.push(FromGuest::Disk { disk, size_bytes: *size_bytes, serial: serial.clone() });
            }
        }
        false
    }

    /// What may still move on these disks before a thin one has grown too much; `None` where nothing keeps it from growing.
    pub fn growth_left(&self, disks: Disks) -> Option<u64> {
        let limit = |disk: usize| match self.disks.get(disk)?.answer {
            Some(Some(Growth::Thin(bytes))) => Some(bytes.saturating_sub(self.grown)),
            _ => None,
        };
        disks.numbers().filter_map(limit).min()
    }

    /// So much moved.
    pub fn moved(&mut self, bytes: u64) {
        self.grown = self.grown.saturating_add(bytes);
        if let Some(lease) = &mut self.lease {
            lease.moved = lease.moved.saturating_add(bytes);
        }
    }

    /// There is nothing to do now: a lease goes back, and what was asked is not wanted any more.
    pub fn done(&mut self) {
        if let (Some(lease), Some(host)) = (self.lease.take(), self.host) {
            self.out.push(FromGuest::Done { host, seq: self.seq, bytes: lease.moved });
        }
        self.ask = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Disks = match Disks::new(1) {
        Some(disks) => disks,
        None => unreachable!(),
    };

    fn guest() -> Guest {
        let mut guest = Guest::new(0, vec![(1 << 30, Serial::new("a"))]);
        assert_eq!(guest.take_out(), [FromGuest::Hello { version: 1, host: 0 }]);
        guest
    }

    #[test]
    fn without_a_host_it_is_alone_after_some_seconds() {
        let mut guest = guest();
        assert_eq!(guest.may(SILENCE_MS - 1, DISK, 1, 1), May::Wait);
        assert_eq!(guest.may(SILENCE_MS, DISK, 1, 1), May::Alone);
        guest.receive(SILENCE_MS, FromHost::Hello { version: 1, host: 5 });
        assert_eq!(guest.may(SILENCE_MS, DISK, 1, 1), May::Wait, "there is one after all");
    }

    #[test]
    fn it_asks_and_its_lease_counts_from_then() {
        let mut guest = guest();
        guest.receive(10, FromHost::Hello { version: 1, host: 5 });
        assert_eq!(guest.may(10, DISK, 7, 9), May::Wait);
        let said = guest.take_out();
        assert!(
            matches!(said[..], [FromGuest::Hello { host: 5, .. }, FromGuest::Disk { disk: 0, .. }]),
            "{said:?}"
        );
        guest.receive(20, FromHost::Disk { disk: 0, growth: Some(Growth::Thin(100)) });
        assert_eq!(guest.may(100, DISK, 7, 9), May::Wait);
        assert_eq!(guest.take_out(), [FromGuest::Ask { host: 5, seq: 1, disks: DISK, bytes: 7, gain: 9 }]);
        guest.receive(150, FromHost::Lease { host: 6, seq: 1, bytes: 9, ms: 1000 });
        guest.receive(150, FromHost::Lease { host: 5, seq: 0, bytes: 9, ms: 1000 });
        assert_eq!(guest.may(150, DISK, 7, 9), May::Wait, "neither was an answer");
        guest.receive(200, FromHost::Lease { host: 5, seq: 1, bytes: 9, ms: 1000 });
        assert_eq!(guest.may(200, DISK, 7, 9), May::Go { bytes: 9, until: 1100 });
        guest.moved(4);
        assert_eq!(guest.may(300, DISK, 7, 9), May::Go { bytes: 5, until: 1100 });
        assert_eq!(guest.growth_left(DISK), Some(96));
        assert_eq!(guest.may(1100, DISK, 7, 9), May::Wait);
        let said = guest.take_out();
        assert!(
            matches!(said[..], [FromGuest::Done { seq: 1, bytes: 4, .. }, FromGuest::Ask { seq: 2, .. }]),
            "{said:?}"
        );
    }

    #[test]
    fn another_host_makes_all_of_it_void() {
        let mut guest = guest();
        guest.receive(0, FromHost::Hello { version: 1, host: 5 });
        guest.receive(0, FromHost::Disk { disk: 0, growth: Some(Growth::Thick) });
        let _ = guest.may(0, DISK, 1, 1);
        guest.receive(1, FromHost::Lease { host: 5, seq: 1, bytes: 9, ms: 1000 });
        guest.receive(2, FromHost::Hello { version: 1, host: 6 });
        assert_eq!(guest.may(2, DISK, 1, 1), May::Wait);
        guest.receive(3, FromHost::Disk { disk: 0, growth: None });
        assert_eq!(guest.may(3, DISK, 1, 1), May::Alone, "a disk that this host does not know");
    }
}
