//! A device with a queue, background work that is regulated, and others who come and go, on virtual time.
#![allow(clippy::unwrap_used, clippy::panic)]

use throttle::{Counted, Counts, LOOK_MS, MUTANTS, Millis, PAUSE_MAX_MS, REST_MAX_MS, Regulator, Turns};

/// Bytes a millisecond that the device moves.
const DEVICE: u64 = 200 << 10;
/// Bytes of one request of the background work.
const REQUEST: u64 = 1 << 20;
/// What others ask for when they are there: half of what the device does.
const OTHERS: u64 = DEVICE / 2;

/// What the kernel counts.
#[derive(Clone, Copy, PartialEq)]
enum Seen {
    All,
    Nothing,
}

struct Simulated {
    now: Millis,
    regulator: Regulator,
    counts: Counts,
    seen: Seen,
    writes: bool,
    /// Own writes that wait in the page cache.
    dirty_bytes: u64,
    done_bytes: u64,
    /// Milliseconds in which others wanted the device while background work used it, since when they came.
    disturbed_ms: Millis,
    longest_rest_ms: Millis,
}

impl Simulated {
    fn new(seen: Seen, writes: bool) -> Self {
        Self {
            now: 1000,
            regulator: Regulator::new(1000),
            counts: Counts { device_read_bytes: 1 << 30, device_written_bytes: 1 << 30, ..Counts::default() },
            seen,
            writes,
            dirty_bytes: 0,
            done_bytes: 0,
            disturbed_ms: 0,
            longest_rest_ms: 0,
        }
    }

    fn counted(&self) -> Option<Counts> {
        (self.seen == Seen::All).then_some(self.counts)
    }

    /// Time passes, in which others read as they do, and what waits is written.
    fn pass(&mut self, ms: Millis, others: bool) {
        for _ in 0..ms {
            self.now += 1;
            if others {
                self.counts.device_read_bytes += OTHERS;
            }
            let written = self.dirty_bytes.min(DEVICE / 4);
            self.dirty_bytes -= written;
            self.counts.device_written_bytes += written;
        }
    }

    /// Works for so long, while others are there or not.
    fn run(&mut self, ms: Millis, others: bool) {
        let until = self.now + ms;
        while self.now < until {
            let rate = if others { DEVICE / 3 } else { DEVICE };
            let took = REQUEST / rate;
            self.pass(took, others);
            self.counts.device_read_bytes += REQUEST;
            self.counts.own_read_bytes += REQUEST;
            // For one second of four; the device gets it within the next three.
            if self.writes && (self.now / 1000).is_multiple_of(4) {
                self.counts.own_written_bytes += REQUEST;
                self.dirty_bytes += REQUEST;
            }
            self.done_bytes += REQUEST;
            if others {
                self.disturbed_ms += took;
            }
            if self.regulator.advance(self.now, REQUEST) {
                self.rest(others, until);
            }
        }
    }

    fn rest(&mut self, others: bool, until: Millis) {
        let began = self.now;
        let mut pause = self.regulator.look(self.now, self.counted());
        while let Some((ms, _)) = pause {
            self.pass(ms, others && self.now < until);
            pause = self.regulator.rested(self.now, self.counted());
            assert!(self.now - began < 10 * REST_MAX_MS, "it never works again");
        }
        self.longest_rest_ms = self.longest_rest_ms.max(self.now - began);
    }
}

/// Alone on the machine, work takes next to no longer.
fn alone(seen: Seen, writes: bool) {
    let mut simulated = Simulated::new(seen, writes);
    simulated.run(120_000, false);
    assert!(simulated.done_bytes > DEVICE * 120_000 / 100 * 97, "{} MiB done", simulated.done_bytes >> 20);
}

/// Others come: they have the device for themselves within half a second; they go, and work goes on.
fn others_come(seen: Seen) {
    let mut simulated = Simulated::new(seen, true);
    simulated.run(20_000, false);
    simulated.run(1000, true);
    let (limit, disturbed) = (if seen == Seen::All { 150 } else { 500 }, simulated.disturbed_ms);
    assert!(disturbed <= limit, "others were disturbed for {disturbed} ms");
    simulated.run(15_000, true);
    let share = simulated.disturbed_ms * 100 / 16_000;
    // Where nothing is counted, it must be tried again whether others are still there.
    assert!(share <= if seen == Seen::All { 2 } else { 30 }, "others were disturbed {share} % of the time");
    let done = simulated.done_bytes;
    simulated.run(60_000, false);
    assert!(simulated.done_bytes - done > DEVICE * 60_000 / 100 * 85, "work does not go on");
}

/// Others never go: work ends all the same, a little at a time.
fn others_stay() {
    let mut simulated = Simulated::new(Seen::All, false);
    simulated.run(600_000, true);
    assert!(
        simulated.longest_rest_ms <= REST_MAX_MS + PAUSE_MAX_MS + LOOK_MS,
        "{}",
        simulated.longest_rest_ms
    );
    assert!(simulated.done_bytes > 600_000 / (REST_MAX_MS + PAUSE_MAX_MS) * REQUEST);
    let share = simulated.disturbed_ms * 100 / 600_000;
    assert!(share <= 5, "others were disturbed {share} % of the time");
}

/// It became slow by itself, as a network does: that is usual after a while.
fn slow_from_now_on() {
    let mut simulated = Simulated::new(Seen::Nothing, false);
    simulated.run(20_000, false);
    simulated.run(100_000, true);
    let (done, began) = (simulated.done_bytes, simulated.now);
    simulated.run(60_000, true);
    assert!(simulated.done_bytes - done > (simulated.now - began) * (DEVICE / 3) / 100 * 90);
}

/// Work in turns, as the guard's: some of it, then a look whether others came, who want nothing but reads.
struct InTurns {
    now: Millis,
    turns: Turns,
    counts: Counts,
    /// When others are there.
    others: std::ops::Range<Millis>,
    /// What lies below writes everything twice.
    is_mirrored: bool,
    disturbed_ms: Millis,
    done_bytes: u64,
}

const TURN: Millis = 100;
const BETWEEN_TURNS: Millis = 200;

impl InTurns {
    fn new(is_mirrored: bool, others: std::ops::Range<Millis>) -> Self {
        let counts =
            Counts { device_read_bytes: 1 << 30, device_written_bytes: 1 << 30, ..Counts::default() };
        Self { now: 0, turns: Turns::new(0), counts, others, is_mirrored, disturbed_ms: 0, done_bytes: 0 }
    }

    fn pass(&mut self, ms: Millis) {
        self.now += ms;
        if self.others.contains(&self.now) {
            self.counts.device_read_bytes += OTHERS * ms;
        }
    }

    /// Reads and writes; whether it goes on.
    fn work(&mut self) -> bool {
        let others = self.others.contains(&self.now);
        let took = REQUEST / if others { DEVICE / 3 } else { DEVICE };
        self.pass(took);
        self.counts.own_read_bytes += REQUEST;
        self.counts.own_written_bytes += REQUEST;
        self.counts.device_read_bytes += REQUEST;
        self.counts.device_written_bytes += if self.is_mirrored { 2 * REQUEST } else { REQUEST };
        self.done_bytes += REQUEST;
        if others {
            self.disturbed_ms += took;
        }
        let counted = self.counted();
        self.turns.goes_on(self.now, REQUEST, || counted)
    }

    fn counted(&self) -> Counted {
        if self.is_mirrored { Counted::BetweenTurns(self.counts) } else { Counted::Exact(self.counts) }
    }

    /// Turns of so long each.
    fn run(&mut self, ms: Millis, turn: Millis) {
        let until = self.now + ms;
        while self.now < until {
            self.pass(BETWEEN_TURNS);
            let counted = self.counted();
            if self.turns.waits(self.now, || counted).is_some() {
                continue;
            }
            let end = until.min(self.now + turn);
            while self.now < end && self.work() {}
            let counted = self.counted();
            self.turns.ends(|| counted);
        }
    }
}

/// Others come: they are alone within half a second, whether own work can be told from theirs or not; they go, and work goes on.
fn others_come_between_turns(is_mirrored: bool) {
    let mut simulated = InTurns::new(is_mirrored, 60_000..75_000);
    simulated.run(60_000, TURN);
    let share = simulated.done_bytes * 100 / (DEVICE * 60_000);
    assert!(share >= 25, "alone it does {share} % of what the device can");
    simulated.run(15_000, TURN);
    assert!(simulated.disturbed_ms <= TURN + LOOK_MS, "disturbed for {} ms", simulated.disturbed_ms);
    let done = simulated.done_bytes;
    simulated.run(30_000, TURN);
    let share = (simulated.done_bytes - done) * 100 / (DEVICE * 30_000);
    assert!(share >= 20, "afterwards it does {share} %");
}

/// A turn that is long, for a file that has to be moved at once, ends when others come.
fn others_come_within_a_turn() {
    let mut simulated = InTurns::new(false, 20_000..30_000);
    simulated.run(30_000, 30_000);
    assert!(simulated.disturbed_ms <= 150, "disturbed for {} ms", simulated.disturbed_ms);
}

/// What was done before there was work is nobody's.
fn what_was_before_is_skipped() {
    let mut simulated = InTurns::new(false, 0..2_000_000);
    simulated.pass(1_000_000);
    let counted = simulated.counted();
    simulated.turns.skip(counted);
    assert_eq!(simulated.turns.waits(simulated.now, || counted), None);
}

fn all() {
    others_come_between_turns(false);
    others_come_between_turns(true);
    others_come_within_a_turn();
    what_was_before_is_skipped();
    for writes in [false, true] {
        alone(Seen::All, writes);
        alone(Seen::Nothing, writes);
    }
    others_come(Seen::All);
    others_come(Seen::Nothing);
    others_stay();
    slow_from_now_on();
}

#[test]
fn others_go_first_and_work_ends() {
    all();
}

#[test]
fn every_mutant_is_found() {
    for mutant in MUTANTS {
        let explored = std::thread::spawn(move || mutants::with(Some(mutant), all)).join();
        assert!(explored.is_err(), "{mutant:?} is not found");
    }
}
