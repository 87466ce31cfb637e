//! Buffers for what is read and written, bounded per connection and in all.
//!
//! A connection has small buffers, at most one a request in flight; one large buffer that is always its own; and what it can
//! get of the large ones that all share, or fewer where the caller says so. Asking for a shared one never waits, so that a connection
//! which holds many can make another one slower but never stop it.
//!
//! Shared buffers have one of two sizes: a new one is filled with zeros, page by page, and most requests use a small part of the larger.
//! Buffers are aligned, for backends that go past the page cache, and used again.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use block::AlignedBuffer;

use super::lock;

/// What a large buffer holds. Longer requests are done in pieces.
pub(crate) const PIECE_BYTES: usize = 2 << 20;
/// What a small buffer holds.
pub(crate) const SMALL_BYTES: usize = 16 << 10;
/// What a shared buffer of the smaller size holds: what most clients ask for at once.
const MIDDLE_BYTES: usize = 256 << 10;
/// What shared buffers that are kept for later hold together.
const KEPT_BYTES: usize = 64 << 20;
/// Of the shared ones, how many one connection may hold.
const SHARED_COUNT_PER_CONNECTION: usize = 48;

/// Large buffers that all connections share.
pub(crate) struct Pool {
    state: Mutex<PoolState>,
    bytes_max: usize,
}

#[derive(Default)]
struct PoolState {
    middle: Vec<AlignedBuffer>,
    large: Vec<AlignedBuffer>,
    out_bytes: usize,
}

impl PoolState {
    /// The buffers of `bytes` that are kept.
    fn free(&mut self, bytes: usize) -> &mut Vec<AlignedBuffer> {
        if bytes <= MIDDLE_BYTES { &mut self.middle } else { &mut self.large }
    }

    fn kept_bytes(&self) -> usize {
        self.middle.len() * MIDDLE_BYTES + self.large.len() * PIECE_BYTES
    }
}

impl Pool {
    /// A pool of at most `bytes_max`.
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), bytes_max })
    }

    /// A buffer that holds `len` bytes.
    fn take(&self, len: usize) -> Option<AlignedBuffer> {
        let bytes = if len <= MIDDLE_BYTES { MIDDLE_BYTES } else { PIECE_BYTES };
        let mut state = lock(&self.state);
        if state.out_bytes + bytes > self.bytes_max {
            return None;
        }
        state.out_bytes += bytes;
        let free = state.free(bytes).pop();
        drop(state);
        Some(free.unwrap_or_else(|| AlignedBuffer::new(bytes)))
    }

    fn give_back(&self, buffer: AlignedBuffer) {
        let bytes = buffer.len();
        let mut state = lock(&self.state);
        state.out_bytes -= bytes;
        if state.kept_bytes() + bytes <= KEPT_BYTES {
            state.free(bytes).push(buffer);
        }
    }
}

#[derive(Default)]
struct LentBuffer {
    small: VecDeque<AlignedBuffer>,
    shared_count: usize,
    own: Option<AlignedBuffer>,
    is_own_out: bool,
}

/// The buffers of a connection.
pub(crate) struct Memory {
    pool: Arc<Pool>,
    held: Mutex<LentBuffer>,
    /// A large buffer.
    one_is_back: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Small,
    Shared,
    Own,
}

impl Memory {
    pub(crate) fn new(pool: Arc<Pool>) -> Arc<Self> {
        Arc::new(Self { pool, held: Mutex::default(), one_is_back: Condvar::new() })
    }

    fn buffer(self: &Arc<Self>, bytes: AlignedBuffer, len: usize, kind: Kind) -> Buffer {
        Buffer { bytes, len, kind, home: self.clone() }
    }

    /// A buffer of `len` bytes, at most [`PIECE_BYTES`], if there is one at once and, of the large ones, fewer than `large_max` are
    /// out. Its contents are old.
    pub(crate) fn try_take(self: &Arc<Self>, len: usize, large_max: usize) -> Option<Buffer> {
        assert!(len <= PIECE_BYTES, "longer requests are done in pieces");
        if len <= SMALL_BYTES {
            let bytes = lock(&self.held).small.pop_front();
            return Some(self.buffer(
                bytes.unwrap_or_else(|| AlignedBuffer::new(SMALL_BYTES)),
                len,
                Kind::Small,
            ));
        }
        let mut held = lock(&self.held);
        // Its own first: it is warm.
        if !held.is_own_out {
            held.is_own_out = true;
            let bytes = held.own.take();
            drop(held);
            return Some(self.buffer(
                bytes.unwrap_or_else(|| AlignedBuffer::new(PIECE_BYTES)),
                len,
                Kind::Own,
            ));
        }
        if held.shared_count >= large_max.saturating_sub(1).min(SHARED_COUNT_PER_CONNECTION) {
            return None;
        }
        let bytes = self.pool.take(len)?;
        held.shared_count += 1;
        drop(held);
        Some(self.buffer(bytes, len, Kind::Shared))
    }

    /// The same, waiting until one is back. The caller must hold none that it does not pass on.
    pub(crate) fn take(self: &Arc<Self>, len: usize, large_max: usize) -> Buffer {
        loop {
            if let Some(buffer) = self.try_take(len, large_max) {
                return buffer;
            }
            let mut held = lock(&self.held);
            let shared_count = held.shared_count;
            while held.is_own_out && held.shared_count >= shared_count {
                held = self.one_is_back.wait(held).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// Bytes of a request or a reply. Goes back where it came from.
pub(crate) struct Buffer {
    bytes: AlignedBuffer,
    len: usize,
    kind: Kind,
    home: Arc<Memory>,
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        match self.kind {
            Kind::Small => lock(&self.home.held).small.push_front(bytes),
            Kind::Shared => {
                self.home.pool.give_back(bytes);
                lock(&self.home.held).shared_count -= 1;
                self.home.one_is_back.notify_all();
            }
            Kind::Own => {
                let mut held = lock(&self.home.held);
                held.own = Some(bytes);
                held.is_own_out = false;
                drop(held);
                self.home.one_is_back.notify_all();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: usize = usize::MAX;

    #[test]
    fn as_many_large_ones_are_out_as_the_caller_says() {
        let memory = Memory::new(Pool::new(9 * PIECE_BYTES));
        let mut held: Vec<Buffer> = std::iter::from_fn(|| memory.try_take(PIECE_BYTES, 3)).collect();
        assert_eq!(held.len(), 3);
        assert!(memory.try_take(SMALL_BYTES, 3).is_some(), "small ones are not counted");
        // A shared one that is back will do.
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| memory.take(PIECE_BYTES, 3).len());
            std::thread::sleep(std::time::Duration::from_millis(20));
            held.truncate(2);
            assert_eq!(waiting.join().expect("it comes to its end"), PIECE_BYTES);
        });
        assert!(memory.try_take(PIECE_BYTES, 3).is_some());
        assert!(memory.try_take(PIECE_BYTES, 0).is_none(), "its own is out");
    }

    #[test]
    fn one_that_holds_all_it_can_does_not_stop_another() {
        let pool = Pool::new(4 * PIECE_BYTES);
        let greedy = Memory::new(pool.clone());
        let held: Vec<Buffer> = std::iter::from_fn(|| greedy.try_take(PIECE_BYTES, MANY)).collect();
        assert_eq!(held.len(), 5, "its own, and all that is shared");
        let other = Memory::new(pool);
        let own = other.try_take(PIECE_BYTES, MANY).expect("its own");
        assert!(other.try_take(PIECE_BYTES, MANY).is_none());
        drop(own);
        assert!(other.try_take(PIECE_BYTES, MANY).is_some());
        drop(held);
        assert_eq!(
            std::iter::from_fn(|| other.try_take(MIDDLE_BYTES + 1, MANY))
                .take(9)
                .map(Box::new)
                .collect::<Vec<_>>()
                .len(),
            5
        );
    }

    #[test]
    fn what_most_ask_for_takes_as_much_of_the_pool_and_is_used_again() {
        let pool = Pool::new(PIECE_BYTES + MIDDLE_BYTES);
        let memory = Memory::new(pool.clone());
        let _own = memory.try_take(PIECE_BYTES, MANY).expect("its own");
        let fits = (PIECE_BYTES + MIDDLE_BYTES) / MIDDLE_BYTES;
        let held: Vec<Buffer> =
            std::iter::from_fn(|| memory.try_take(SMALL_BYTES + 1, MANY)).take(fits + 1).collect();
        assert_eq!(held.len(), fits);
        let places: Vec<_> = held.iter().map(|buffer| buffer.as_ptr()).collect();
        drop(held);
        let again = memory.try_take(MIDDLE_BYTES, MANY).expect("all are back");
        assert!(places.contains(&again.as_ptr()));
        let large = memory.try_take(MIDDLE_BYTES + 1, MANY).expect("there is room for one");
        assert!(memory.try_take(MIDDLE_BYTES, MANY).is_none());
        drop((again, large));
        let state = lock(&pool.state);
        assert_eq!((state.middle.len(), state.large.len(), state.out_bytes), (fits, 1, 0));
    }

    #[test]
    fn no_more_than_a_bound_is_kept() {
        let pool = Pool::new(usize::MAX);
        let many: Vec<_> = (0..=KEPT_BYTES / PIECE_BYTES).filter_map(|_| pool.take(PIECE_BYTES)).collect();
        many.into_iter().for_each(|buffer| pool.give_back(buffer));
        assert_eq!(lock(&pool.state).kept_bytes(), KEPT_BYTES);
    }

    #[test]
    fn buffers_are_aligned() {
        let memory = Memory::new(Pool::new(PIECE_BYTES));
        for len in [1, SMALL_BYTES, PIECE_BYTES] {
            let buffer = memory.take(len, MANY);
            assert_eq!((buffer.len(), buffer.as_ptr().align_offset(AlignedBuffer::PAGE_BYTES)), (len, 0));
        }
    }
}
