//! A file in use whose storage the host's file system finds in large pieces, ahead of the writes that need it.
//!
//! A hole that is about to be written is reserved with what lies around it (`policy` says how, `ledger` how much), so that
//! neighbours in the file are neighbours on the host whatever the order and the size of the writes, and whoever else writes. What
//! was reserved and is not used goes back: when nobody wrote near it for some seconds, when the file is closed, and when
//! the host is full.
//!
//! What was written there for the first time goes to the device early (`writeback`).
//!
//! Invariants:
//! - contents never change: what is reserved is allocated and unwritten, so that it reads as zeros as before, and what
//!   goes back was never written;
//! - only what was reserved here goes back: what else is allocated and unwritten was meant to be;
//! - whatever goes wrong with reserving, writes go on without.
//!
//! Absent on purpose: block devices, and file systems on which nothing was measured; writes joined into larger ones here (they
//! go to the page cache, which joins them). What was reserved stays if the program
//! is killed: nobody could tell it from what others reserved.

mod bits;
mod ledger;
mod policy;
mod writeback;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use block::{Error, HostFile, ReadAt, Result, TargetFile};
use extent::{Host, HostOffset, HostSpan, Span};

use crate::LiveFile;
use crate::queue::queue_of_device;
use ledger::{Ledger, Millis, Used};
pub(crate) use policy::BTRFS_MAGIC;
use policy::Policy;
use writeback::Writeback;

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
pub struct ProvisionedFile {
    shared: Arc<Shared>,
}

struct Shared {
    file: Arc<LiveFile>,
    limit_bytes: u64,
    policy: Option<Policy>,
    /// The device does not mind where it writes: none that says that it rotates, but for virtual ones, which do not know.
    takes_scattered: bool,
    on_continued: OnContinued,
    began: Instant,
    /// Reserving failed for good.
    is_off: AtomicBool,
    /// Nothing is reserved before this moment.
    resumes: AtomicU64,
    /// Shared by what changes the file, alone for what gives storage back.
    gate: RwLock<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ledger: Ledger,
    /// A thread looks for what is idle.
    is_watched: bool,
    /// Once there was something to begin with.
    writeback: Option<Writeback>,
}

impl ProvisionedFile {
    /// `file`, which will end at `limit_bytes` at most, with storage reserved as its file system's policy says, if there
    /// is one.
    pub fn new(file: Arc<LiveFile>, limit_bytes: u64, on_continued: OnContinued) -> Self {
        let magic = crate::fiemap::filesystem_magic(file.std_file());
        let policy = magic.and_then(policy::of).filter(|_| !file.is_block_device());
        let device = rustix::fs::fstat(file.std_file()).ok().and_then(|stat| queue_of_device(stat.st_dev));
        Self {
            shared: Arc::new(Shared {
                file,
                limit_bytes,
                policy,
                takes_scattered: device.is_some_and(|queue| !queue.is_rotational || queue.is_virtual),
                on_continued,
                began: Instant::now(),
                is_off: AtomicBool::new(false),
                resumes: AtomicU64::new(0),
                gate: RwLock::default(),
                state: Mutex::default(),
            }),
        }
    }

    /// Bytes that are reserved and not used at this moment.
    pub fn unused_bytes(&self) -> u64 {
        self.shared.state().ledger.unused_bytes()
    }

    /// Gives back all that was reserved and not used. More may be reserved afterwards.
    pub fn give_back(&self) -> Result<()> {
        self.shared.give_back(Millis::MAX).map(drop)
    }
}

impl Drop for ProvisionedFile {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = self.give_back();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Millis {
        Millis::try_from(self.began.elapsed().as_millis()).unwrap_or(Millis::MAX)
    }

    /// Does `change`, which needs storage for `span`. If the host is full, once more without what is reserved.
    fn changing(self: &Arc<Self>, span: HostSpan, change: impl Fn() -> Result<()>) -> Result<()> {
        let Some(policy) = self.policy.filter(|_| !span.is_empty()) else { return change() };
        let changed = {
            let _shared = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            let used = self.prepare(&policy, span);
            let changed = change();
            if changed.is_ok() {
                self.write_back(&used);
            }
            changed
        };
        match changed {
            Err(error) if is_full(&error) && self.give_back(Millis::MAX).is_ok_and(|given| given) => {
                self.back_off();
                let _shared = self.gate.read().unwrap_or_else(PoisonError::into_inner);
                self.state().ledger.used(span, self.now());
                change()
            }
            changed => changed,
        }
    }

    /// Reserves storage for `span` and around it, and counts `span` as used.
    fn prepare(self: &Arc<Self>, policy: &Policy, span: HostSpan) -> Used {
        let now = self.now();
        let mut state = self.state();
        if !self.is_off.load(Ordering::Relaxed)
            && now >= self.resumes.load(Ordering::Relaxed)
            && self.reserve_around(&mut state, policy, span, now).is_err()
        {
            self.back_off();
        }
        let used = state.ledger.used(span, now);
        drop(state);
        if used.was_reserved {
            (self.on_continued)();
        }
        used
    }

    /// Has the device begin with what is worth it by now.
    fn write_back(&self, used: &Used) {
        let is_all = used.is_much_scattered && self.takes_scattered;
        if used.whole.is_empty() && !is_all {
            return;
        }
        let all = is_all.then(|| Span::from_zero(self.file.len_bytes()));
        let mut state = self.state();
        let writeback = state.writeback.get_or_insert_with(|| Writeback::new(self.file.clone()));
        used.whole.iter().copied().chain(all).for_each(|span| writeback.begin(span));
    }

    fn back_off(&self) {
        let back_off = Millis::try_from(BACK_OFF.as_millis()).unwrap_or(Millis::MAX);
        self.resumes.store(self.now().saturating_add(back_off), Ordering::Relaxed);
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
        let room = rustix::fs::fstatvfs(self.file.std_file())
            .map_err(|error| Error::io("ask for the room of", error.into()).path(self.file.name()))?;
        let room_blocks = room.f_bavail.saturating_sub(room.f_blocks / FLOOR_SHARE);
        Ok(ledger.window(number, policy, room_blocks.saturating_mul(room.f_frsize), self.limit_bytes))
    }

    /// Asks for what the ledger does not know of `span`.
    fn learn(&self, ledger: &mut Ledger, span: HostSpan, now: Millis) -> Result<()> {
        let unknown = ledger.unknown(span);
        let (Some(first), Some(last)) = (unknown.first(), unknown.last()) else { return Ok(()) };
        let asked = Span::between(ledger::chunk_span(*first).start(), ledger::chunk_span(*last).end());
        let Some(allocated) = self.file.allocated_within(asked)? else {
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
            if !self.file.keep_room(Span::between(rest.start(), end))? {
                return Ok(false);
            }
            rest = Span::between(end, rest.end());
        }
        Ok(true)
    }

    /// Gives back what is unused and was not written near since `before`; whether there was anything.
    fn give_back(&self, before: Millis) -> Result<bool> {
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let idle = self.state().ledger.take_idle(before);
        let end = HostOffset::new(self.file.len_bytes());
        for span in idle.within(Span::between(HostOffset::ZERO, end)) {
            self.file.give_room_back(span)?;
        }
        if idle.iter().any(|span| span.end() > end) {
            self.file.cut_off_room_past_end()?;
            self.state().ledger.cut(end.get());
        }
        Ok(!idle.is_empty())
    }

    /// Sees to it that a thread looks for what is idle as long as anything is reserved.
    fn watch(self: &Arc<Self>, state: &mut State) {
        if state.is_watched {
            return;
        }
        let shared = Arc::downgrade(self);
        let watcher = std::thread::Builder::new().name("reserved".to_owned());
        state.is_watched = watcher.spawn(move || look_for_idle(&shared)).is_ok();
    }
}

fn look_for_idle(shared: &Weak<Shared>) {
    let idle = Millis::try_from(IDLE.as_millis()).unwrap_or(Millis::MAX);
    loop {
        std::thread::sleep(LOOK_EVERY);
        let Some(shared) = shared.upgrade() else { return };
        // A file that failed says so to those who use it.
        let _ = shared.give_back_idle(idle);
        let mut state = shared.state();
        if state.ledger.unused_bytes() == 0 {
            state.is_watched = false;
            return;
        }
    }
}

impl Shared {
    fn give_back_idle(&self, idle: Millis) -> Result<()> {
        let before = self.now().saturating_sub(idle);
        if self.state().ledger.has_idle(before) {
            self.give_back(before)?;
        }
        Ok(())
    }
}

fn is_full(error: &Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    error.io_source().is_some_and(|io| matches!(io.kind(), StorageFull | QuotaExceeded))
}

impl ReadAt<Host> for ProvisionedFile {
    fn len_bytes(&self) -> u64 {
        self.shared.file.len_bytes()
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.shared.file.read_at(at, buf)
    }
}

impl TargetFile for ProvisionedFile {
    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        match Span::checked(at, buf.len() as u64) {
            Some(span) => self.shared.changing(span, || self.shared.file.write_at(at, buf)),
            None => self.shared.file.write_at(at, buf),
        }
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        let _shared = self.shared.gate.read().unwrap_or_else(PoisonError::into_inner);
        if len_bytes < self.len_bytes() {
            self.shared.state().ledger.cut(len_bytes);
        }
        self.shared.file.set_len(len_bytes)
    }

    fn reserve(&self, span: HostSpan) -> Result<()> {
        self.shared.changing(span, || self.shared.file.reserve(span))
    }

    fn zero(&self, span: HostSpan) -> Result<()> {
        self.shared.changing(span, || self.shared.file.zero(span))
    }

    fn punch(&self, span: HostSpan) -> Result<()> {
        let _shared = self.shared.gate.read().unwrap_or_else(PoisonError::into_inner);
        // Before, so that what is reserved meanwhile counts as reserved.
        self.shared.state().ledger.freed(span);
        self.shared.file.punch(span)
    }

    fn flush(&self) -> Result<()> {
        self.shared.file.flush()
    }

    fn read_stored(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.shared.file.read_stored(at, buf)
    }

    fn forget(&self, span: HostSpan) {
        TargetFile::forget(&*self.shared.file, span);
    }
}
