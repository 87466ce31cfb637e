//! The side that leases: one budget of background work for each storage device.
//!
//! Who is next: asks stand in a queue for each device, by when they began to be asked less a bonus for what they gain. The bonus has a bound,
//! so nobody is passed for longer than that; the order is the same in all queues, so nobody waits in a circle. A lease is given only as
//! the answer to an ask, to the first in all queues of its devices. Who is not heard of again loses its place.
//!
//! Invariants:
//! - no device is leased more often at once than there is room for, and of its bytes no more than the budget has;
//! - what is leased stays so until the guest says that it is done, asks anew, or its time and some more are over: also when its connection
//!   ends, since it may be working;
//! - one that begins gives nothing until what the one before it gave must have ended;
//! - memory is bounded: clients, disks of a client, devices.

use std::collections::{BTreeMap, BTreeSet};

use mutants::broken;

use crate::Millis;
use crate::message::{Disks, FromGuest, FromHost, Growth, Serial, VERSION};

/// A connection.
pub type ClientId = u64;
/// A storage device of the host.
pub type DeviceId = u64;

/// It says that it is there so often.
const HELLO_MS: Millis = 2_000;
/// The shortest and the longest time that a guest is told to wait.
const WAIT_MS: Millis = 250;
const WAIT_MS_MAX: Millis = 4_000;
/// Who was told to wait may be late by so much.
const LATE_MS: Millis = 3_000;
/// A gain of so many milliseconds by the GiB is as good as a second of waiting.
const GAIN_A_SECOND: u64 = 1_000;
/// No gain is better than so much waiting.
const BONUS_MS_MAX: u64 = 30_000;
/// Clocks may differ in pace by one part of so many.
const CLOCKS_DIFFER: u64 = 64;
/// Less than this is not worth a lease, if more is wanted.
const LEASE_BYTES_MIN: u64 = 1 << 20;

const CLIENTS_MAX: usize = 8_192;
/// Devices of one ask.
const DEVICES_MAX: usize = 64;

/// How much background work there may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// How long a lease is.
    pub lease_ms: Millis,
    /// What it may move.
    pub lease_bytes: u64,
    /// Leases of a device at once.
    pub leases: usize,
    /// What may move on a device in a second, on average.
    pub second_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { lease_ms: 2_000, lease_bytes: 128 << 20, leases: 1, second_bytes: 64 << 20 }
    }
}

/// What a host knows of a disk of a guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskAnswer {
    /// The devices that it lies on.
    pub devices: Vec<DeviceId>,
    /// By how much it may grow.
    pub growth: Growth,
}

/// The host, as far as it is asked.
pub trait Host {
    /// What a disk of this client is here; `None` if that is not known.
    fn disk(&mut self, client: ClientId, size_bytes: u64, serial: &Serial) -> Option<DiskAnswer>;

    /// Whether the device has something better to do.
    fn is_busy(&mut self, device: DeviceId) -> bool;
}

#[derive(Clone, Debug)]
struct Pending {
    devices: Vec<DeviceId>,
    since: Millis,
    /// Its place in the queues.
    key: i128,
    /// It loses its place then.
    lost: Millis,
}

#[derive(Clone, Debug, Default)]
struct Client {
    disks: BTreeMap<usize, Option<Vec<DeviceId>>>,
    /// The last ask of it.
    seq: u64,
    pending: Option<Pending>,
    hello: Millis,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    client: ClientId,
    seq: u64,
    ends: Millis,
    bytes: u64,
}

#[derive(Clone, Debug, Default)]
struct Device {
    leases: Vec<Lease>,
    queue: BTreeSet<(i128, ClientId)>,
    /// What may be leased now, and when that was counted.
    bytes: u64,
    counted: Millis,
}

/// See the module's page.
#[derive(Clone, Debug)]
pub struct Coordinator {
    limits: Limits,
    /// Its number.
    host: u64,
    /// The time never goes back.
    now: Millis,
    /// Nothing is leased until then.
    quiet: Millis,
    clients: BTreeMap<ClientId, Client>,
    devices: BTreeMap<DeviceId, Device>,
    out: Vec<(ClientId, FromHost)>,
}

impl Coordinator {
    /// One that begins now. `host` is a number that no other has: by chance, and not 0.
    pub fn new(now: Millis, host: u64, limits: Limits) -> Self {
        let mut new = Self {
            limits,
            host: host.max(1),
            now,
            quiet: now,
            clients: BTreeMap::new(),
            devices: BTreeMap::new(),
            out: Vec::new(),
        };
        if !broken!(NoQuietStart) {
            new.quiet = new.end_of(now);
        }
        new
    }

    /// When a lease that was given now has ended on every clock.
    fn end_of(&self, now: Millis) -> Millis {
        let ms = self.limits.lease_ms;
        now.saturating_add(ms).saturating_add(ms / CLOCKS_DIFFER + 10)
    }

    /// What is to be said, and to whom.
    pub fn take_out(&mut self) -> Vec<(ClientId, FromHost)> {
        std::mem::take(&mut self.out)
    }

    /// How many clients there are.
    pub fn client_count(&self) -> usize {
        self.clients.len()
    }

    /// The leases of each device that has any, and the bytes of each.
    pub fn leases(&self) -> impl Iterator<Item = (DeviceId, Vec<u64>)> + '_ {
        let bytes = |device: &Device| device.leases.iter().map(|lease| lease.bytes).collect::<Vec<_>>();
        self.devices
            .iter()
            .filter(|(_, device)| !device.leases.is_empty())
            .map(move |(id, device)| (*id, bytes(device)))
    }

    /// Somebody is there who was not. `false` if there are too many.
    pub fn connected(&mut self, now: Millis, client: ClientId) -> bool {
        self.pass(now);
        if self.clients.len() >= CLIENTS_MAX {
            return false;
        }
        self.clients.insert(client, Client { hello: self.now, ..Client::default() });
        self.greet(client);
        true
    }

    /// Somebody is gone. What it has leased stays leased until it must have ended.
    pub fn disconnected(&mut self, now: Millis, client: ClientId) {
        self.pass(now);
        self.leave_queues(client);
        self.clients.remove(&client);
        if broken!(FreeOnDisconnect) {
            for device in self.devices.values_mut() {
                device.leases.retain(|lease| lease.client != client);
            }
        }
    }

    /// Time passed.
    pub fn tick(&mut self, now: Millis) {
        self.pass(now);
        let (now, host) = (self.now, self.host);
        for (id, client) in &mut self.clients {
            if now >= client.hello.saturating_add(HELLO_MS) {
                client.hello = now;
                self.out.push((*id, FromHost::Hello { version: VERSION, host }));
            }
        }
    }

    fn greet(&mut self, client: ClientId) {
        self.out.push((client, FromHost::Hello { version: VERSION, host: self.host }));
    }

    fn pass(&mut self, now: Millis) {
        self.now = self.now.max(now);
        let now = self.now;
        for device in self.devices.values_mut() {
            device.leases.retain(|lease| now < lease.ends);
        }
        self.devices.retain(|_, device| !device.is_idle(now, &self.limits));
    }

    /// A client said something.
    pub fn receive(&mut self, now: Millis, from: ClientId, said: FromGuest, machine: &mut impl Host) {
        self.pass(now);
        if !self.clients.contains_key(&from) {
            return;
        }
        match said {
            FromGuest::Hello { version, host } if version == VERSION && host != self.host => {
                // A guard that began anew counts its asks anew.
                if let Some(client) = self.clients.get_mut(&from) {
                    client.seq = 0;
                }
                self.greet(from);
            }
            FromGuest::Disk { disk, size_bytes, serial } => {
                let answer = machine.disk(from, size_bytes, &serial);
                let growth = answer.as_ref().map(|answer| answer.growth);
                let devices = answer.map(|answer| answer.devices);
                if let Some(client) = self.clients.get_mut(&from) {
                    client.disks.insert(disk, devices);
                    self.out.push((from, FromHost::Disk { disk, growth }));
                }
            }
            FromGuest::Ask { host, seq, disks, bytes, gain } if host == self.host => {
                self.asked(from, seq, disks, bytes, gain, machine);
            }
            FromGuest::Done { host, seq, bytes } if host == self.host => self.ended(from, seq, bytes),
            _ => {}
        }
    }

    fn asked(
        &mut self,
        from: ClientId,
        seq: u64,
        disks: Disks,
        bytes: u64,
        gain: u64,
        machine: &mut impl Host,
    ) {
        let now = self.now;
        let Some(client) = self.clients.get_mut(&from) else { return };
        // Said twice, or long ago.
        if seq <= client.seq {
            return;
        }
        client.seq = seq;
        let mut devices = BTreeSet::new();
        for disk in disks.numbers() {
            match client.disks.get(&disk) {
                Some(Some(below)) => devices.extend(below.iter().copied()),
                Some(None) => {
                    self.out.push((from, FromHost::Disk { disk, growth: None }));
                    return;
                }
                // It was told before another began here, or never.
                None => {
                    self.out.push((from, FromHost::Tell { disk }));
                    return;
                }
            }
        }
        let since =
            client.pending.as_ref().filter(|pending| now < pending.lost).map_or(now, |pending| pending.since);
        // Who asks has no lease.
        self.end_leases(from, |lease| lease.seq < seq, 0);
        self.leave_queues(from);
        let devices: Vec<DeviceId> = devices.into_iter().take(DEVICES_MAX).collect();
        let place = self.enter_queues(from, &devices, since, gain);
        match self.may_begin(from, &devices, bytes, machine) {
            Some(bytes) => self.lease(from, seq, &devices, bytes),
            None => self.wait(from, seq, place),
        }
    }

    fn enter_queues(&mut self, from: ClientId, devices: &[DeviceId], since: Millis, gain: u64) -> usize {
        let bonus = (gain.min(u64::MAX / 1000) * 1000 / GAIN_A_SECOND).min(if broken!(GainAlone) {
            u64::MAX
        } else {
            BONUS_MS_MAX
        });
        let key = if broken!(GainAlone) { -i128::from(gain) } else { i128::from(since) - i128::from(bonus) };
        let mut place = 0;
        for device in devices {
            let device = self.devices.entry(*device).or_insert_with(|| Device {
                bytes: self.limits.lease_bytes,
                counted: self.now,
                ..Device::default()
            });
            device.queue.insert((key, from));
            place = place.max(device.queue.len());
        }
        let pending = Pending { devices: devices.to_vec(), since, key, lost: self.now };
        if let Some(client) = self.clients.get_mut(&from) {
            client.pending = Some(pending);
        }
        place
    }

    fn wait(&mut self, from: ClientId, seq: u64, place: usize) {
        // The more there are, the less often each needs to ask.
        let ms = (WAIT_MS * (place as u64).div_ceil(2)).clamp(WAIT_MS, WAIT_MS_MAX);
        let lost = if broken!(AbsentKeepPlace) { Millis::MAX } else { self.now.saturating_add(ms + LATE_MS) };
        if let Some(pending) = self.clients.get_mut(&from).and_then(|client| client.pending.as_mut()) {
            pending.lost = lost;
        }
        self.out.push((from, FromHost::Wait { host: self.host, seq, ms }));
    }

    /// What may be leased of all these devices.
    fn may_begin(
        &mut self,
        from: ClientId,
        devices: &[DeviceId],
        wanted: u64,
        machine: &mut impl Host,
    ) -> Option<u64> {
        if self.now < self.quiet || devices.is_empty() {
            return None;
        }
        let mut bytes = wanted.min(self.limits.lease_bytes);
        let least = bytes.min(LEASE_BYTES_MIN);
        for id in devices {
            self.drop_lost(*id, from);
            let device = self.devices.get_mut(id)?;
            device.fill(self.now, &self.limits);
            if !broken!(BytesUnlimited) {
                bytes = bytes.min(device.bytes);
            }
            let has_room = device.leases.len() < self.limits.leases || broken!(GrantedTwice);
            let is_first = device.queue.first().is_some_and(|(_, client)| *client == from);
            if !has_room || !is_first || bytes < least {
                return None;
            }
        }
        let is_free = !devices.iter().any(|device| machine.is_busy(*device));
        is_free.then_some(bytes)
    }

    /// Those before `from` who were not heard of again leave the queue of a device.
    fn drop_lost(&mut self, device: DeviceId, from: ClientId) {
        loop {
            let first =
                self.devices.get(&device).and_then(|device| device.queue.first()).map(|(_, client)| *client);
            let Some(first) = first.filter(|first| *first != from) else { return };
            let pending = self.clients.get(&first).and_then(|client| client.pending.as_ref());
            if pending.is_some_and(|pending| self.now < pending.lost) {
                return;
            }
            self.leave_queues(first);
        }
    }

    fn leave_queues(&mut self, client: ClientId) {
        let Some(pending) = self.clients.get_mut(&client).and_then(|client| client.pending.take()) else {
            return;
        };
        for device in &pending.devices {
            if let Some(device) = self.devices.get_mut(device) {
                device.queue.remove(&(pending.key, client));
            }
        }
    }

    fn lease(&mut self, client: ClientId, seq: u64, devices: &[DeviceId], bytes: u64) {
        self.leave_queues(client);
        let lease = Lease { client, seq, ends: self.end_of(self.now), bytes };
        for device in devices {
            if let Some(device) = self.devices.get_mut(device) {
                device.leases.push(lease);
                device.bytes = device.bytes.saturating_sub(bytes);
            }
        }
        let (host, ms) = (self.host, self.limits.lease_ms);
        self.out.push((client, FromHost::Lease { host, seq, bytes, ms }));
    }

    fn ended(&mut self, from: ClientId, seq: u64, moved: u64) {
        self.end_leases(from, |lease| lease.seq == seq, moved);
    }

    /// What was leased and did not move can be leased again; of a lease whose holder did not say, all of it may have moved.
    fn end_leases(&mut self, from: ClientId, which: impl Fn(&Lease) -> bool, moved: u64) {
        let is_told = moved > 0;
        for device in self.devices.values_mut() {
            let bytes = &mut device.bytes;
            device.leases.retain(|lease| {
                let is_over = lease.client == from && which(lease);
                if is_over && is_told {
                    *bytes = bytes.saturating_add(lease.bytes.saturating_sub(moved));
                }
                !is_over
            });
        }
    }
}

impl Device {
    /// What came in since it was counted.
    fn fill(&mut self, now: Millis, limits: &Limits) {
        let passed = now.saturating_sub(self.counted);
        let new = u128::from(passed) * u128::from(limits.second_bytes) / 1000;
        self.bytes =
            self.bytes.saturating_add(u64::try_from(new).unwrap_or(u64::MAX)).min(limits.lease_bytes);
        self.counted = now;
    }

    /// Nobody needs it, and it would be the same if it were made anew.
    fn is_idle(&mut self, now: Millis, limits: &Limits) -> bool {
        if !self.leases.is_empty() || !self.queue.is_empty() {
            return false;
        }
        self.fill(now, limits);
        self.bytes >= limits.lease_bytes
    }
}
