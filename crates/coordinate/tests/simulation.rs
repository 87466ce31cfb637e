//! Hosts, coordinators and guests on virtual time: messages are lost, late and said twice, clocks jump, hosts crash, guests are stopped and
//! move to other hosts. No device is worked on under more leases than there is room for, no more bytes are leased than the budget has, and
//! once all is well again everybody has a turn.
//!
//! A seed replays a run. `SEEDS=1000000 cargo test -p leandisk-coordinate --test simulation` runs so many.

// Tests by themselves: what fails ends the test.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use coordinate::{
    Coordinator, DeviceId, DiskAnswer, Disks, FromGuest, FromHost, Growth, Guest, Host, Limits, MUTANTS, May,
    Millis, Mutant, Serial,
};

/// xorshift64*, enough to choose what happens.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// What happens at a moment.
enum Event {
    /// A guest looks whether it may work.
    Turn(usize),
    /// A coordinator looks around.
    Tick(usize),
    ToHost {
        host: usize,
        life: u64,
        guest: usize,
        link: u64,
        said: FromGuest,
    },
    ToGuest {
        guest: usize,
        link: u64,
        said: FromHost,
    },
    /// A host's coordinator ends, or comes back.
    Crash(usize),
    Return(usize),
    /// A guest is stopped, and goes on, here or elsewhere.
    Stop(usize),
    Resume(usize),
    /// Its guard hears that its port was opened anew.
    Reopened(usize),
}

struct SimHost {
    coordinator: Option<Coordinator>,
    life: u64,
    is_busy: bool,
    /// What moved on each device beyond what its budget has had since.
    moved: BTreeMap<DeviceId, (Millis, u64)>,
}

struct SimGuest {
    guard: Guest,
    at: usize,
    /// Messages of another connection do not arrive.
    link: u64,
    is_stopped: bool,
    stopped_at: Millis,
    /// What its clock shows less the true time, below nothing.
    behind: Millis,
    ahead: Millis,
    disks: Vec<usize>,
    gain: u64,
    /// It moves all that it may.
    is_heavy: bool,
    /// Until then it works, and on which devices of which host.
    works: Option<(Millis, usize, Vec<DeviceId>)>,
    /// It was stopped not long ago: what it had may have gone to others, which it cannot know before its lease ends.
    excused: Millis,
    turns: u64,
    /// What it works on is the last for now.
    finishes: bool,
    /// Its guard is gone, and its connection is not.
    is_gone: bool,
}

/// The answers of a host: each disk's serial number says on which devices it lies.
struct Below {
    is_busy: bool,
    devices: u64,
}

fn devices_of(serial: &str, devices: u64) -> Vec<DeviceId> {
    let mut found: Vec<DeviceId> = serial.bytes().map(|byte| u64::from(byte) % devices).collect();
    found.sort_unstable();
    found.dedup();
    found
}

impl Host for Below {
    fn disk(&mut self, _client: u64, size_bytes: u64, serial: &Serial) -> Option<DiskAnswer> {
        let growth = if size_bytes > 1 << 40 { Growth::Thin(1 << 30) } else { Growth::Thick };
        Some(DiskAnswer { devices: devices_of(serial.text(), self.devices), growth })
    }

    fn is_busy(&mut self, _device: DeviceId) -> bool {
        self.is_busy
    }
}

struct World {
    random: Random,
    now: Millis,
    order: u64,
    events: BinaryHeap<Reverse<(Millis, u64)>>,
    what: BTreeMap<u64, Event>,
    hosts: Vec<SimHost>,
    guests: Vec<SimGuest>,
    devices: u64,
    limits: Limits,
    /// Nothing goes wrong any more.
    is_calm: bool,
    /// One message of so many is lost.
    loss: u64,
    latest: Millis,
    links: u64,
    of_link: BTreeMap<u64, usize>,
    checks: u64,
}

fn serial(random: &mut Random) -> String {
    let count = 1 + random.below(2);
    (0..count).map(|_| char::from(b'a' + u8::try_from(random.below(26)).unwrap())).collect()
}

impl World {
    fn new(seed: u64, guests: usize, hosts: usize, devices: u64) -> Self {
        let mut random = Random::new(seed);
        let limits = Limits {
            lease_ms: 500 + random.below(2000),
            lease_bytes: 64 << 20,
            leases: 1 + usize::from(random.one_in(4)),
            second_bytes: (4 + random.below(200)) << 20,
        };
        let loss = 3 + random.below(60);
        let mut world = Self {
            random,
            now: 1_000_000,
            order: 0,
            events: BinaryHeap::new(),
            what: BTreeMap::new(),
            hosts: Vec::new(),
            guests: Vec::new(),
            devices,
            limits,
            is_calm: false,
            loss,
            latest: 0,
            links: 0,
            of_link: BTreeMap::new(),
            checks: 0,
        };
        world.latest = [5, 100, 1500][usize::try_from(world.random.below(3)).unwrap()];
        for host in 0..hosts {
            world.hosts.push(SimHost { coordinator: None, life: 0, is_busy: false, moved: BTreeMap::new() });
            world.begin(host);
            world.at(1, Event::Tick(host));
        }
        for guest in 0..guests {
            world.add_guest(guest, hosts);
        }
        world
    }

    fn add_guest(&mut self, guest: usize, hosts: usize) {
        let count = 1 + usize::from(self.random.one_in(3));
        let disks: Vec<_> = (0..count)
            .map(|_| (1 << (38 + self.random.below(4)), Serial::new(&serial(&mut self.random))))
            .collect();
        let gain = [1, 1000, u64::MAX][usize::try_from(self.random.below(3)).unwrap()];
        let is_heavy = self.random.one_in(3);
        self.guests.push(SimGuest {
            guard: Guest::new(self.now, disks),
            at: usize::try_from(self.random.below(hosts as u64)).unwrap(),
            link: 0,
            is_stopped: false,
            stopped_at: 0,
            behind: 0,
            ahead: 0,
            disks: (0..count).collect(),
            gain,
            is_heavy,
            works: None,
            excused: 0,
            turns: 0,
            finishes: false,
            is_gone: false,
        });
        self.connect(guest);
        let after = self.random.below(1000);
        self.at(after, Event::Turn(guest));
    }

    fn at(&mut self, after: Millis, event: Event) {
        self.order += 1;
        self.events.push(Reverse((self.now + after, self.order)));
        self.what.insert(self.order, event);
    }

    fn begin(&mut self, host: usize) {
        let number = 1 + (self.random.below(1 << 31) << 31 | self.random.below(1 << 31));
        let now = self.now;
        let limits = self.limits;
        let sim = &mut self.hosts[host];
        sim.life += 1;
        // It knows nothing of what moved before.
        sim.moved.clear();
        sim.coordinator = Some(Coordinator::new(now, number, limits));
        let here: Vec<usize> =
            (0..self.guests.len()).filter(|guest| self.guests[*guest].at == host).collect();
        here.into_iter().for_each(|guest| self.connect(guest));
    }

    /// A new connection of a guest to the host where it is.
    fn connect(&mut self, guest: usize) {
        self.links += 1;
        self.of_link.remove(&self.guests[guest].link);
        self.guests[guest].link = self.links;
        self.of_link.insert(self.links, guest);
        let (now, link, at) = (self.now, self.links, self.guests[guest].at);
        if let Some(coordinator) = &mut self.hosts[at].coordinator {
            assert!(coordinator.connected(now, link));
        }
        self.say(at);
    }

    fn is_lost(&mut self) -> bool {
        !self.is_calm && self.random.one_in(self.loss)
    }

    fn delay(&mut self) -> Millis {
        let latest = if self.is_calm { 20 } else { self.latest };
        // Most come soon.
        if self.random.one_in(5) { self.random.below(latest + 1) } else { self.random.below(latest / 20 + 3) }
    }

    fn times(&mut self) -> u64 {
        if self.is_lost() { 0 } else { 1 + u64::from(!self.is_calm && self.random.one_in(20)) }
    }

    /// What a coordinator has to say goes on its way.
    fn say(&mut self, host: usize) {
        let Some(coordinator) = &mut self.hosts[host].coordinator else { return };
        for (link, said) in coordinator.take_out() {
            let Some(guest) = self.of_link.get(&link).copied() else { continue };
            for _ in 0..self.times() {
                let after = self.delay();
                self.at(after, Event::ToGuest { guest, link, said: said.clone() });
            }
        }
    }

    /// A guest moves so much, where it is.
    fn moves(&mut self, guest: usize, bytes: u64) {
        let Limits { lease_bytes, second_bytes, leases, .. } = self.limits;
        let (now, at) = (self.now, self.guests[guest].at);
        for device in self.devices_of_guest(guest) {
            let (then, level) = self.hosts[at].moved.entry(device).or_insert((now, 0));
            let had = (now - *then) * (second_bytes / 1000);
            (*then, *level) = (now, level.saturating_sub(had) + bytes);
            assert!(
                *level <= lease_bytes * (leases as u64 + 2),
                "{level} bytes too many moved on device {device}"
            );
        }
    }

    fn devices_of_guest(&self, guest: usize) -> Vec<DeviceId> {
        let serials = self.guests[guest].guard.serials();
        let mut found: Vec<DeviceId> =
            serials.flat_map(|serial| devices_of(serial.text(), self.devices)).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// What a guest has to say goes on its way.
    fn ask(&mut self, guest: usize) {
        let (host, link) = (self.guests[guest].at, self.guests[guest].link);
        let life = self.hosts[host].life;
        for said in self.guests[guest].guard.take_out() {
            for _ in 0..self.times() {
                let after = self.delay();
                self.at(after, Event::ToHost { host, life, guest, link, said: said.clone() });
            }
        }
    }

    fn clock(&self, guest: usize) -> Millis {
        self.now + self.guests[guest].ahead - self.guests[guest].behind
    }

    fn turn(&mut self, guest: usize) {
        let again = 50 + self.random.below(300);
        self.at(again, Event::Turn(guest));
        if self.guests[guest].is_stopped
            || self.guests[guest].works.as_ref().is_some_and(|works| works.0 > self.now)
        {
            return;
        }
        if self.guests[guest].is_gone {
            return;
        }
        if std::mem::take(&mut self.guests[guest].finishes) {
            self.guests[guest].guard.done();
            return self.ask(guest);
        }
        let clock = self.clock(guest);
        let disks = Disks::new(self.guests[guest].disks.iter().map(|disk| 1 << disk).sum()).unwrap();
        let is_heavy = self.guests[guest].is_heavy;
        let bytes = if is_heavy { 1 << 30 } else { 1 << self.random.below(30) };
        let gain = self.guests[guest].gain;
        match self.guests[guest].guard.may(clock, disks, bytes, gain) {
            May::Go { bytes, until } => {
                // A piece of work, within the lease.
                let ms = (20 + self.random.below(1500)).min(until - clock);
                self.work(guest, ms);
                let moved = if is_heavy { bytes } else { self.random.below(bytes + 1) };
                self.guests[guest].guard.moved(moved);
                if self.now >= self.guests[guest].excused {
                    self.moves(guest, moved);
                }
                self.guests[guest].finishes = self.random.one_in(3);
            }
            May::Alone | May::Wait => {}
        }
        self.ask(guest);
    }

    fn work(&mut self, guest: usize, ms: Millis) {
        let devices = self.devices_of_guest(guest);
        let until = self.now + ms;
        let at = self.guests[guest].at;
        let sim = &mut self.guests[guest];
        sim.works = Some((until, at, devices.clone()));
        sim.turns += 1;
        if self.now < sim.excused {
            return;
        }
        for device in devices {
            let others = self.guests.iter().filter(|other| {
                other.excused <= self.now
                    && other.works.as_ref().is_some_and(|(until, host, devices)| {
                        *until > self.now && *host == at && devices.contains(&device)
                    })
            });
            let count = others.count();
            self.checks += 1;
            assert!(count <= self.limits.leases, "{count} work on device {device} of host {at}");
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Turn(guest) => self.turn(guest),
            Event::Tick(host) => {
                let again = 200 + self.random.below(300);
                self.at(again, Event::Tick(host));
                self.hosts[host].is_busy = !self.is_calm && self.random.one_in(4);
                // The clock may go back: nothing comes of it.
                let now = if self.random.one_in(10) { self.now - 100_000 } else { self.now };
                if let Some(coordinator) = &mut self.hosts[host].coordinator {
                    coordinator.tick(now);
                }
                self.say(host);
            }
            Event::ToHost { host, life, guest, link, said } => {
                let is_there = self.hosts[host].life == life && self.guests[guest].link == link;
                let mut below = Below { is_busy: self.hosts[host].is_busy, devices: self.devices };
                let now = self.now;
                if let (true, Some(coordinator)) = (is_there, &mut self.hosts[host].coordinator) {
                    coordinator.receive(now, link, said, &mut below);
                    self.say(host);
                }
            }
            Event::ToGuest { guest, link, said } => {
                // What was said before a guest moved may still arrive: it was in its memory.
                let is_recent = self.guests[guest].link == link || self.random.one_in(2);
                if is_recent && !self.guests[guest].is_stopped && !self.guests[guest].is_gone {
                    let clock = self.clock(guest);
                    self.guests[guest].guard.receive(clock, said);
                    self.ask(guest);
                }
            }
            Event::Crash(host) => {
                self.hosts[host].coordinator = None;
                // Often at once: then what was leased before has not ended.
                let after =
                    if self.random.one_in(2) { self.random.below(100) } else { self.random.below(8_000) };
                self.at(after, Event::Return(host));
            }
            Event::Return(host) if self.hosts[host].coordinator.is_none() => self.begin(host),
            Event::Return(_) => {}
            Event::Stop(guest) => self.stop(guest),
            Event::Resume(guest) => self.resume(guest),
            Event::Reopened(guest) => {
                let clock = self.clock(guest);
                self.guests[guest].guard.reopened(clock);
                self.ask(guest);
            }
        }
    }

    fn stop(&mut self, guest: usize) {
        let sim = &mut self.guests[guest];
        if sim.is_stopped {
            return;
        }
        (sim.is_stopped, sim.stopped_at, sim.works) = (true, self.now, None);
        let after = self.random.below(10_000);
        self.at(after, Event::Resume(guest));
    }

    /// It goes on; elsewhere one time of two. Its clock stood still meanwhile.
    fn resume(&mut self, guest: usize) {
        let (now, lease_ms) = (self.now, self.limits.lease_ms);
        let hosts = self.hosts.len() as u64;
        let moves = self.random.one_in(2);
        let to = usize::try_from(self.random.below(hosts)).unwrap();
        let sim = &mut self.guests[guest];
        if !std::mem::take(&mut sim.is_stopped) {
            return;
        }
        sim.behind += now - sim.stopped_at;
        sim.excused = now + lease_ms;
        if moves {
            let (from, link) = (sim.at, sim.link);
            sim.at = to;
            if let Some(coordinator) = &mut self.hosts[from].coordinator {
                coordinator.disconnected(now, link);
            }
            self.connect(guest);
            let after = self.random.below(1000);
            self.at(after, Event::Reopened(guest));
        }
    }

    /// Something goes wrong.
    fn trouble(&mut self) {
        let guest = usize::try_from(self.random.below(self.guests.len() as u64)).unwrap();
        let host = usize::try_from(self.random.below(self.hosts.len() as u64)).unwrap();
        match self.random.below(6) {
            0 => self.happen(Event::Crash(host)),
            1 | 2 => self.happen(Event::Stop(guest)),
            // A clock that jumps ahead.
            3 => self.guests[guest].ahead += self.random.below(20_000),
            // A connection that ends and begins.
            4 => {
                let (at, link) = (self.guests[guest].at, self.guests[guest].link);
                let now = self.now;
                if let Some(coordinator) = &mut self.hosts[at].coordinator {
                    coordinator.disconnected(now, link);
                }
                self.connect(guest);
            }
            _ => self.guests[guest].gain = self.random.below(100_000),
        }
    }

    fn run_until(&mut self, end: Millis) {
        let mut trouble = self.now;
        while let Some(Reverse((at, order))) = self.events.peek().copied() {
            if at > end {
                break;
            }
            self.events.pop();
            self.now = self.now.max(at);
            if !self.is_calm && self.now >= trouble {
                trouble = self.now + 500 + self.random.below(4000);
                self.trouble();
            }
            let event = self.what.remove(&order).unwrap();
            self.happen(event);
        }
        self.now = end;
    }

    /// Trouble for a while, then calm until everybody must have had a turn.
    fn live(&mut self, trouble_ms: Millis, calm_ms: Millis) {
        self.run_until(self.now + trouble_ms);
        self.is_calm = true;
        for guest in 0..self.guests.len() {
            if self.guests[guest].is_stopped {
                self.happen(Event::Resume(guest));
            }
            // Killed while it asked, perhaps.
            self.guests[guest].is_gone = self.random.one_in(6);
        }
        for host in 0..self.hosts.len() {
            if self.hosts[host].coordinator.is_none() {
                self.begin(host);
            }
        }
        let before: Vec<u64> = self.guests.iter().map(|guest| guest.turns).collect();
        let all = self.guests.len();
        self.run_until(self.now + calm_ms);
        for (guest, before) in before.iter().enumerate() {
            let sim = &self.guests[guest];
            assert!(
                sim.is_gone || sim.turns > *before,
                "guest {guest} of {all} on host {} has no turn",
                sim.at
            );
        }
    }
}

/// One run; what went wrong.
fn run(seed: u64) -> Result<u64, String> {
    let live = || {
        let mut random = Random::new(seed ^ 0xabcd);
        let (guests, hosts, devices) = match random.below(50) {
            0 => (20 + random.below(20), 3, 4),
            _ => (1 + random.below(6), 1 + random.below(3), 1 + random.below(3)),
        };
        let mut world =
            World::new(seed, usize::try_from(guests).unwrap(), usize::try_from(hosts).unwrap(), devices);
        let calm_ms = 45_000 + guests * (world.limits.lease_ms + 2_000);
        world.live(20_000 + random.below(20_000), calm_ms);
        world.checks
    };
    std::panic::catch_unwind(live).map_err(|what| {
        let text = what.downcast_ref::<String>().cloned();
        format!(
            "seed {seed}: {}",
            text.or_else(|| what.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
        )
    })
}

fn explore(seeds: std::ops::Range<u64>) -> Result<u64, String> {
    seeds.map(run).sum()
}

#[test]
fn nobody_works_beyond_the_budget_and_everybody_has_a_turn() {
    let seeds = std::env::var("SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(150);
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let share = move |thread: u64| seeds * thread / threads..seeds * (thread + 1) / threads;
    let workers: Vec<_> =
        (0..threads).map(|thread| std::thread::spawn(move || explore(share(thread)))).collect();
    let checks: u64 = workers
        .into_iter()
        .map(|worker| worker.join().unwrap().unwrap_or_else(|what| panic!("{what}")))
        .sum();
    println!("{seeds} seeds, {checks} times that somebody began to work");
    assert!(checks > seeds);
}

#[test]
fn thousands_of_guests_have_a_turn() {
    let mut world = World::new(7, 2000, 4, 400);
    world.live(10_000, 300_000);
    assert!(world.checks > 2000);
}

#[test]
fn each_mutant_is_found() {
    std::panic::set_hook(Box::new(|_| {}));
    let found: Vec<(Mutant, bool)> = MUTANTS
        .iter()
        .map(|mutant| (*mutant, mutants::with(Some(*mutant), || explore(0..400)).is_err()))
        .collect();
    let _ = std::panic::take_hook();
    assert!(found.iter().all(|(_, is_found)| *is_found), "{found:?}");
}
