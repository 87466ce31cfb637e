//! A file in use whose storage the host's file system finds in large pieces, ahead of the writes that need it.
//!
//! A hole that is about to be written is reserved with what lies around it (`policy` says how, `ledger` how much), so that
//! neighbours in the file are neighbours on the host whatever the order and the size of the writes, and whoever else writes. What
//! was reserved and is not used goes back: when nobody wrote near it for some seconds, when the file is closed, and when
//! the host is full.
//!
//! What was written there for the first time goes to the device early ([`Machine::write_back`]).
//!
//! Invariants:
//! - contents never change: what is reserved is allocated and unwritten, so that it reads as zeros as before, and what
//!   goes back was never written;
//! - only what was reserved here goes back: what else is allocated and unwritten was meant to be;
//! - a write is known from before it begins until it has ended, so that what it writes is never taken for a hole, whatever the
//!   host says of it meanwhile;
//! - whatever goes wrong with reserving or giving back, writes go on without.
//!
//! Absent on purpose: system calls ([`Machine`] makes them), block devices, and file systems on which nothing was measured; writes
//! joined into larger ones here (they go to the page cache, which joins them). What was reserved stays if the program
//! is killed: nobody could tell it from what others reserved.

mod bits;
mod host;
mod ledger;
#[cfg(feature = "mutants")]
mod mutant;
mod policy;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use block::{ReadAt, Result, TargetFile};
use extent::{Host, HostOffset, HostSpan, Span};
use mutants::broken;

pub use host::{Gate, HostSpace, Machine};
pub use ledger::Millis;
use ledger::{Ledger, Number, Used};
#[cfg(feature = "mutants")]
pub use mutant::{MUTANTS, Mutant};
pub use policy::{BTRFS_MAGIC, Policy, XFS_MAGIC, policy_of};

/// What nobody wrote near for so long goes back.
const IDLE: Duration = Duration::from_secs(4);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// One part of so many of a file system is never reserved.
const FLOOR_SHARE: u64 = 20;
/// How long nothing is reserved after the host had no room for it.
const BACK_OFF: Duration = Duration::from_secs(10);

/// Called when a write went to storage that was reserved for it, where the host's file system would have had to
/// find some.
pub type OnContinued = Box<dyn Fn() + Send + Sync>;

/// See the module's page.
pub struct Preallocated<M: Machine> {
    shared: Arc<Shared<M>>,
}

struct Shared<M> {
    /// Its gate is open for what changes the file, and closed for what gives storage back.
    machine: M,
    limit_bytes: u64,
    on_continued: OnContinued,
    /// Reserving failed for good.
    is_off: AtomicBool,
    /// Nothing is reserved before this moment.
    resumes: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ledger: Ledger,
    /// Somebody looks for what is idle.
    is_watched: bool,
}

fn millis(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

impl<M: Machine> Preallocated<M> {
    /// The file of `machine`, which will end at `limit_bytes` at most, with storage reserved as its policy says, if there is one.
    pub fn new(machine: M, limit_bytes: u64, on_continued: OnContinued) -> Self {
        Self {
            shared: Arc::new(Shared {
                machine,
                limit_bytes,
                on_continued,
                is_off: AtomicBool::new(false),
                resumes: AtomicU64::new(0),
                state: Mutex::default(),
            }),
        }
    }

    /// The machine.
    pub fn machine(&self) -> &M {
        &self.shared.machine
    }

    /// Bytes that are reserved and not used at this moment.
    pub fn unused_bytes(&self) -> u64 {
        self.shared.state().ledger.unused_bytes()
    }

    /// Gives back all that was reserved and not used. More may be reserved afterwards. What the host does not take back stays
    /// reserved, and is the error.
    pub fn give_back(&self) -> Result<()> {
        self.shared.give_back(Millis::MAX).result
    }

    /// Gives back what nobody wrote near for some seconds. This happens by itself; a simulation that has no other threads asks for it.
    pub fn give_back_idle(&self) -> Result<()> {
        self.shared.give_back_idle()
    }
}

impl<M: Machine> Drop for Preallocated<M> {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = self.give_back();
    }
}

/// How giving back ended.
struct GivenBack {
    /// Some storage is free again.
    is_any: bool,
    result: Result<()>,
}

/// A change that is under way; it is no longer once this is gone.
struct InFlight<'a, M: Machine> {
    shared: &'a Shared<M>,
    number: Number,
}

impl<M: Machine> Drop for InFlight<'_, M> {
    fn drop(&mut self) {
        self.shared.state().ledger.ended(self.number);
    }
}

impl<M: Machine> Shared<M> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self) -> &dyn TargetFile {
        self.machine.file()
    }

    /// Does `change`, which needs storage for `span`. If the host is full, once more without what is reserved.
    fn changing(self: &Arc<Self>, span: HostSpan, change: impl Fn() -> Result<()>) -> Result<()> {
        let Some(policy) = self.machine.policy().filter(|_| !span.is_empty()) else { return change() };
        let changed = self.machine.gate().beside(|| {
            let (used, _in_flight) = self.prepare(&policy, span);
            let changed = change();
            if changed.is_ok() {
                self.write_back(&used);
            }
            changed
        });
        match changed {
            Err(error) if error.is_full() && self.give_back(Millis::MAX).is_any => {
                self.back_off();
                self.machine.gate().beside(|| {
                    let (_, _in_flight) = self.begin(&mut self.state(), span);
                    change()
                })
            }
            changed => changed,
        }
    }

    /// Reserves storage for `span` and around it, and counts `span` as used.
    fn prepare(self: &Arc<Self>, policy: &Policy, span: HostSpan) -> (Used, InFlight<'_, M>) {
        let now = self.machine.now();
        let mut state = self.state();
        if !self.is_off.load(Ordering::Relaxed)
            && now >= self.resumes.load(Ordering::Relaxed)
            && self.reserve_around(&mut state, policy, span, now).is_err()
        {
            self.back_off();
        }
        let (used, in_flight) = self.begin(&mut state, span);
        drop(state);
        if used.was_reserved {
            (self.on_continued)();
        }
        (used, in_flight)
    }

    fn begin(&self, state: &mut State, span: HostSpan) -> (Used, InFlight<'_, M>) {
        let (used, number) = state.ledger.began(span, self.machine.now());
        (used, InFlight { shared: self, number })
    }

    /// Has the device begin with what is worth it by now.
    fn write_back(&self, used: &Used) {
        used.whole.iter().for_each(|span| self.machine.write_back(*span));
        if used.is_much_scattered && self.machine.takes_scattered() {
            self.machine.write_back(Span::from_zero(self.file().len_bytes()));
        }
    }

    fn back_off(&self) {
        self.resumes.store(self.machine.now().saturating_add(millis(BACK_OFF)), Ordering::Relaxed);
    }

    fn reserve_around(
        self: &Arc<Self>,
        state: &mut State,
        policy: &Policy,
        span: HostSpan,
        now: Millis,
    ) -> Result<()> {
        self.learn(&mut state.ledger, span, now)?;
        // A write of more than a chunk may have more than one; each window covers one hole at least.
        while let Some(number) = state.ledger.first_hole(span) {
            let Some(window) = self.window(&state.ledger, number, policy)? else { return Ok(()) };
            self.learn(&mut state.ledger, window, now)?;
            let is_wasteful = state.ledger.is_wasteful();
            let call_bytes = if is_wasteful { policy.careful_call_bytes } else { policy.call_bytes };
            for hole in state.ledger.holes(window, span) {
                let reserved = self.reserve(call_bytes, hole);
                // Should it have failed half-way, what there is goes back with the rest.
                state.ledger.reserved(hole, now);
                self.watch(state);
                if !reserved? {
                    self.is_off.store(true, Ordering::Relaxed);
                    return Ok(());
                }
            }
            if state.ledger.first_hole(span) == Some(number) {
                // A window that ends within a block.
                return Ok(());
            }
        }
        Ok(())
    }

    fn window(&self, ledger: &Ledger, number: u64, policy: &Policy) -> Result<Option<HostSpan>> {
        let room = self.machine.room()?;
        let room_bytes = room.free_bytes.saturating_sub(room.all_bytes / FLOOR_SHARE);
        Ok(ledger.window(number, policy, room_bytes, self.limit_bytes))
    }

    /// Asks for what the ledger does not know of `span`.
    fn learn(&self, ledger: &mut Ledger, span: HostSpan, now: Millis) -> Result<()> {
        let unknown = ledger.unknown(span);
        let (Some(first), Some(last)) = (unknown.first(), unknown.last()) else { return Ok(()) };
        let asked = Span::between(ledger::chunk_span(*first).start(), ledger::chunk_span(*last).end());
        let Some(allocated) = self.machine.allocated_within(asked)? else {
            self.is_off.store(true, Ordering::Relaxed);
            return Ok(());
        };
        for number in unknown {
            ledger.learn(number, &allocated, now);
        }
        Ok(())
    }

    fn reserve(&self, call_bytes: u64, hole: HostSpan) -> Result<bool> {
        let mut rest = hole;
        while !rest.is_empty() {
            // A small rest on its own could lie anywhere.
            let is_last = rest.len_bytes() < call_bytes.saturating_mul(2);
            let end = if is_last { rest.end() } else { rest.start().plus(call_bytes) };
            if !self.machine.keep_room(Span::between(rest.start(), end))? {
                return Ok(false);
            }
            rest = Span::between(end, rest.end());
        }
        Ok(true)
    }

    /// Gives back what is unused and was not written near since `before`.
    fn give_back(&self, before: Millis) -> GivenBack {
        if broken!(GivenBackBesideWrites) {
            return self.give_back_alone(before);
        }
        self.machine.gate().alone(|| self.give_back_alone(before))
    }

    fn give_back_alone(&self, before: Millis) -> GivenBack {
        let idle = self.state().ledger.take_idle(before);
        let end = HostOffset::new(self.file().len_bytes());
        let (mut is_any, mut result) = (false, Ok(()));
        // The block in which the file ends goes as a whole, or not at all.
        let whole_end = HostOffset::new(end.get().next_multiple_of(ledger::BLOCK_BYTES));
        for span in idle.within(Span::between(HostOffset::ZERO, whole_end)) {
            match self.machine.give_room_back(span) {
                Ok(_) => is_any = true,
                // It is still there, and still ours.
                Err(error) => {
                    self.state().ledger.reserved(span, self.machine.now());
                    result = Err(error);
                }
            }
        }
        let past_end: Vec<_> = idle.iter().filter(|span| span.end() > whole_end).collect();
        if !past_end.is_empty() {
            match self.machine.cut_off_room_past_end() {
                Ok(()) => {
                    is_any = true;
                    self.state().ledger.cut(end.get());
                }
                Err(error) => {
                    let mut state = self.state();
                    for span in past_end {
                        let past = Span::between(span.start().max(whole_end), span.end());
                        state.ledger.reserved(past, self.machine.now());
                    }
                    result = Err(error);
                }
            }
        }
        GivenBack { is_any, result }
    }

    /// Sees to it that what is idle is looked for as long as anything is reserved.
    fn watch(self: &Arc<Self>, state: &mut State) {
        if state.is_watched {
            return;
        }
        let shared = Arc::downgrade(self);
        state.is_watched = self.machine.repeat(LOOK_EVERY, Box::new(move || look_for_idle(&shared)));
    }

    fn give_back_idle(&self) -> Result<()> {
        let before = self.machine.now().saturating_sub(millis(IDLE));
        if self.state().ledger.has_idle(before) { self.give_back(before).result } else { Ok(()) }
    }

    /// Does `punch`, which takes the storage of `span`. If the host is too full even for that, once more without what is reserved.
    fn freeing(&self, span: HostSpan, punch: impl Fn() -> Result<()>) -> Result<()> {
        let once = || {
            self.machine.gate().beside(|| {
                let punched = punch();
                // Only now: what is learnt before is what was there before. If it failed, some of it may be gone.
                self.state().ledger.freed(span);
                punched
            })
        };
        match once() {
            Err(error) if error.is_full() && self.give_back(Millis::MAX).is_any => once(),
            punched => punched,
        }
    }
}

/// `false` once there is nothing to look for any more.
fn look_for_idle<M: Machine>(shared: &Weak<Shared<M>>) -> bool {
    let Some(shared) = shared.upgrade() else { return false };
    // A file that failed says so to those who use it; what the host did not take back is tried again later.
    let _ = shared.give_back_idle();
    let mut state = shared.state();
    state.is_watched = state.ledger.unused_bytes() > 0;
    state.is_watched
}

impl<M: Machine> ReadAt<Host> for Preallocated<M> {
    block::forward!(self, self.shared.file() => len_bytes, read_at);
}

impl<M: Machine> TargetFile for Preallocated<M> {
    block::forward!(self, self.shared.file() => flush, read_stored, forget, lend);

    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        match Span::checked(at, buf.len() as u64) {
            Some(span) => self.shared.changing(span, || self.shared.file().write_at(at, buf)),
            None => self.shared.file().write_at(at, buf),
        }
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.shared.machine.gate().beside(|| {
            let is_shorter = len_bytes < self.len_bytes();
            let set = self.shared.file().set_len(len_bytes);
            if is_shorter {
                // Only now: what is learnt before is what was there before.
                self.shared.state().ledger.cut(len_bytes);
            }
            set
        })
    }

    fn reserve(&self, span: HostSpan) -> Result<()> {
        self.shared.changing(span, || self.shared.file().reserve(span))
    }

    fn zero(&self, span: HostSpan) -> Result<()> {
        self.shared.changing(span, || self.shared.file().zero(span))
    }

    fn punch(&self, span: HostSpan) -> Result<()> {
        self.shared.freeing(span, || self.shared.file().punch(span))
    }
}
