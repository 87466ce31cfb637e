//! A file whose storage is reserved ahead, on a file system with little room: what is asked of it takes its time, while other
//! threads go on, and fails on demand.
//!
//! A block of the file is a hole, or reserved and never written, or holds data. What a thread asked for is carried out at some moment
//! until it is answered, be that while another thread asks what has storage. What is answered is what a reader sees from then on;
//! nothing is lost here, cuts are [`crate::SimDisk`]'s.
//!
//! Absent on purpose: flushes, and a limit that others share.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use block::{Error, ReadAt, Result, TargetFile, check_bounds};
use extent::{ExtentSet, Host, HostOffset, HostSpan, Span};
use preallocate::{HostSpace, Machine, Millis, Policy, XFS_MAGIC, policy_of};

use crate::{Random, Turns};

/// What a file system of this kind allocates at once.
pub const BLOCK_BYTES: u64 = 4096;

const BLOCK_LEN: usize = 4096;

/// What is asked of the host.
#[derive(Clone)]
enum Change {
    Write(HostOffset, Vec<u8>),
    Zero(HostSpan),
    Punch(HostSpan),
    Reserve(HostSpan),
    SetLen(u64),
    CutOffPast(u64),
}

/// A change on its way.
struct Pending {
    number: u64,
    change: Change,
    /// Once it was carried out.
    result: Option<Result<(), io::ErrorKind>>,
}

struct State {
    random: Random,
    now: Millis,
    len_bytes: u64,
    capacity_bytes: u64,
    /// One change of so many that need the host's tables fails; none if zero.
    fails_one_in: u64,
    storage: ExtentSet<Host>,
    written: BTreeMap<u64, Box<[u8; BLOCK_LEN]>>,
    pending: Vec<Pending>,
    last_number: u64,
}

/// See the module's page.
pub struct SimRoom {
    turns: Arc<Turns>,
    name: String,
    state: Mutex<State>,
}

/// The whole blocks that `span` touches.
fn touched(span: HostSpan) -> HostSpan {
    let start = span.start().get() / BLOCK_BYTES * BLOCK_BYTES;
    let end = span.end().get().next_multiple_of(BLOCK_BYTES);
    Span::between(HostOffset::new(start), HostOffset::new(end))
}

fn one(span: HostSpan) -> ExtentSet<Host> {
    [span].into_iter().filter(|span| !span.is_empty()).collect()
}

impl SimRoom {
    /// A file of holes, `len_bytes` long, on a file system with `capacity_bytes` of storage. The order of what happens is that of `turns`.
    pub fn new(turns: Arc<Turns>, seed: u64, len_bytes: u64, capacity_bytes: u64) -> Self {
        let state = State {
            random: Random::new(seed),
            now: 0,
            len_bytes,
            capacity_bytes,
            fails_one_in: 0,
            storage: ExtentSet::new(),
            written: BTreeMap::new(),
            pending: Vec::new(),
            last_number: 0,
        };
        Self { turns, name: format!("simulated file (seed {seed:#x})"), state: Mutex::new(state) }
    }

    /// Lets time pass.
    pub fn sleep(&self, duration: Duration) {
        let millis = Millis::try_from(duration.as_millis()).expect("a short time");
        self.state().now += millis;
        self.turns.pause();
    }

    /// Says how much storage there is in all.
    pub fn set_capacity(&self, capacity_bytes: u64) {
        self.state().capacity_bytes = capacity_bytes;
    }

    /// Makes one of so many changes fail as on a host that is full, room or not, as file systems do that copy their own tables to change
    /// them; none if zero.
    pub fn fail_one_in(&self, count: u64) {
        self.state().fails_one_in = count;
    }

    /// What has storage.
    pub fn storage(&self) -> ExtentSet<Host> {
        self.state().storage.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, what: &str, kind: io::ErrorKind) -> Error {
        Error::io(what, io::Error::new(kind, "simulated fault")).path(&self.name)
    }

    /// Has `change` carried out while others go on.
    fn carry_out(&self, what: &str, change: Change) -> Result<()> {
        let number = {
            let mut state = self.state();
            state.last_number += 1;
            let number = state.last_number;
            state.pending.push(Pending { number, change, result: None });
            number
        };
        self.dawdle();
        self.state().apply(number);
        self.dawdle();
        let mut state = self.state();
        let index = state.pending.iter().position(|pending| pending.number == number).expect("still there");
        let result = state.pending.swap_remove(index).result.expect("it was carried out");
        drop(state);
        result.map_err(|kind| self.error(what, kind))
    }

    fn dawdle(&self) {
        let count = {
            let mut state = self.state();
            // Now and then so long that others see the time pass.
            let count_max = if state.random.below(6) == 0 { 40 } else { 4 };
            state.random.below(count_max)
        };
        (0..count).for_each(|_| self.turns.pause());
    }
}

impl State {
    fn free_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.storage.total_bytes())
    }

    /// Carries some of what was asked for out now.
    fn apply_some(&mut self) {
        let numbers: Vec<u64> = self.pending.iter().map(|pending| pending.number).collect();
        for number in numbers {
            if self.random.below(3) == 0 {
                self.apply(number);
            }
        }
    }

    fn apply(&mut self, number: u64) {
        let Some(index) = self.pending.iter().position(|pending| pending.number == number) else { return };
        if self.pending[index].result.is_none() {
            let change = self.pending[index].change.clone();
            self.pending[index].result = Some(self.change(&change));
        }
    }

    fn fails(&mut self) -> bool {
        self.fails_one_in > 0 && self.random.below(self.fails_one_in) == 0
    }

    fn change(&mut self, change: &Change) -> Result<(), io::ErrorKind> {
        match change {
            Change::Write(at, bytes) => self.write(*at, bytes),
            Change::Zero(span) => {
                self.store(*span)?;
                self.clear(*span);
                self.len_bytes = self.len_bytes.max(span.end().get());
                Ok(())
            }
            Change::Reserve(span) => {
                self.store(*span)?;
                self.len_bytes = self.len_bytes.max(span.end().get());
                Ok(())
            }
            Change::Punch(span) => self.punch(*span),
            Change::SetLen(len_bytes) => {
                self.cut(*len_bytes);
                self.len_bytes = *len_bytes;
                Ok(())
            }
            Change::CutOffPast(end) => {
                if self.fails() {
                    return Err(io::ErrorKind::StorageFull);
                }
                self.cut(*end);
                self.len_bytes = *end;
                Ok(())
            }
        }
    }

    /// Finds storage for `span`; for a part of it if there is not enough.
    fn store(&mut self, span: HostSpan) -> Result<(), io::ErrorKind> {
        let missing = one(touched(span)).subtract(&self.storage);
        let is_full = missing.total_bytes() > self.free_bytes() || (!missing.is_empty() && self.fails());
        let mut left_bytes = match is_full {
            true => {
                self.random.below(self.free_bytes().min(missing.total_bytes()) / BLOCK_BYTES + 1)
                    * BLOCK_BYTES
            }
            false => u64::MAX,
        };
        let mut found = ExtentSet::new();
        for span in missing.iter() {
            let len_bytes = span.len_bytes().min(left_bytes);
            found.push(Span::new(span.start(), len_bytes));
            left_bytes -= len_bytes;
        }
        self.storage = self.storage.union(&found);
        if is_full { Err(io::ErrorKind::StorageFull) } else { Ok(()) }
    }

    fn write(&mut self, at: HostOffset, bytes: &[u8]) -> Result<(), io::ErrorKind> {
        let whole = Span::new(at, bytes.len() as u64);
        let stored = self.store(whole);
        for block in touched(whole).split(BLOCK_BYTES) {
            // As far as there is storage.
            if !self.storage.contains(block.start()) {
                break;
            }
            let Some(part) = block.intersect(&whole) else { continue };
            let from = index(part.start().get() - at.get());
            let within = index(part.start().get() - block.start().get());
            let len = index(part.len_bytes());
            let page = self.written.entry(block.start().get()).or_insert_with(|| Box::new([0; BLOCK_LEN]));
            page[within..within + len].copy_from_slice(&bytes[from..from + len]);
            self.len_bytes = self.len_bytes.max(part.end().get());
        }
        stored
    }

    /// Makes `span` zeros.
    fn clear(&mut self, span: HostSpan) {
        for block in touched(span).split(BLOCK_BYTES) {
            let Some(part) = block.intersect(&span) else { continue };
            if part == block {
                self.written.remove(&block.start().get());
            } else if let Some(page) = self.written.get_mut(&block.start().get()) {
                let within = index(part.start().get() - block.start().get());
                page[within..within + index(part.len_bytes())].fill(0);
            }
        }
    }

    /// Fails before, half-way, or not at all.
    fn punch(&mut self, span: HostSpan) -> Result<(), io::ErrorKind> {
        let fails = self.fails();
        let blocks = span.len_bytes() / BLOCK_BYTES;
        let done_bytes = if fails { self.random.below(blocks + 1) * BLOCK_BYTES } else { span.len_bytes() };
        let done = Span::new(span.start(), done_bytes.min(span.len_bytes()));
        self.clear(done);
        let inner = done.split(BLOCK_BYTES).filter(|block| touched(*block) == *block).collect();
        self.storage = self.storage.subtract(&inner);
        if fails { Err(io::ErrorKind::StorageFull) } else { Ok(()) }
    }

    fn cut(&mut self, end: u64) {
        self.written.split_off(&end.next_multiple_of(BLOCK_BYTES));
        let tail = Span::between(HostOffset::new(end), HostOffset::new(end.next_multiple_of(BLOCK_BYTES)));
        self.clear(tail);
        let beyond = Span::between(tail.end(), HostOffset::new(u64::MAX));
        self.storage = self.storage.subtract(&one(beyond));
    }
}

fn index(at: u64) -> usize {
    usize::try_from(at).expect("a simulated file is small")
}

impl ReadAt<Host> for SimRoom {
    fn len_bytes(&self) -> u64 {
        self.state().len_bytes
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        let state = self.state();
        check_bounds(at, buf.len(), state.len_bytes)?;
        let whole = Span::new(at, buf.len() as u64);
        buf.fill(0);
        for block in touched(whole).split(BLOCK_BYTES) {
            let (Some(part), Some(page)) = (block.intersect(&whole), state.written.get(&block.start().get()))
            else {
                continue;
            };
            let from = index(part.start().get() - at.get());
            let within = index(part.start().get() - block.start().get());
            let len = index(part.len_bytes());
            buf[from..from + len].copy_from_slice(&page[within..within + len]);
        }
        Ok(())
    }
}

impl TargetFile for SimRoom {
    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        self.carry_out("write", Change::Write(at, buf.to_vec()))
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.carry_out("set the length", Change::SetLen(len_bytes))
    }

    fn reserve(&self, span: HostSpan) -> Result<()> {
        self.carry_out("reserve", Change::Reserve(span))
    }

    fn zero(&self, span: HostSpan) -> Result<()> {
        self.carry_out("zero", Change::Zero(span))
    }

    fn punch(&self, span: HostSpan) -> Result<()> {
        self.carry_out("give storage back", Change::Punch(span))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

impl Machine for SimRoom {
    type Gate = Turns;

    fn file(&self) -> &dyn TargetFile {
        self
    }

    fn gate(&self) -> &Turns {
        &self.turns
    }

    fn policy(&self) -> Option<Policy> {
        policy_of(XFS_MAGIC)
    }

    fn allocated_within(&self, window: HostSpan) -> Result<Option<ExtentSet<Host>>> {
        let mut state = self.state();
        state.apply_some();
        let allocated = state.storage.intersect(&one(window));
        state.apply_some();
        Ok(Some(allocated))
    }

    fn keep_room(&self, span: HostSpan) -> Result<bool> {
        let mut state = self.state();
        state.apply_some();
        let stored = state.store(span);
        state.apply_some();
        drop(state);
        stored.map(|()| true).map_err(|kind| self.error("reserve", kind))
    }

    fn give_room_back(&self, span: HostSpan) -> Result<bool> {
        self.carry_out("give storage back", Change::Punch(span)).map(|()| true)
    }

    fn cut_off_room_past_end(&self) -> Result<()> {
        let end = self.state().len_bytes;
        self.carry_out("set the length", Change::CutOffPast(end))
    }

    fn room(&self) -> Result<HostSpace> {
        let state = self.state();
        Ok(HostSpace { free_bytes: state.free_bytes(), all_bytes: state.capacity_bytes })
    }

    fn now(&self) -> Millis {
        self.state().now
    }

    /// Who simulates asks by himself, see [`preallocate::Preallocated::give_back_idle`].
    fn repeat(&self, _every: Duration, _act: Box<dyn FnMut() -> bool + Send>) -> bool {
        true
    }
}
