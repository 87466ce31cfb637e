//! Where a stream leads to that takes a little at a time, is interrupted, and fails.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leandisk::Outlet;
use sim::Random;

/// The most bytes that are taken at once.
const TAKEN_BYTES_MAX: u64 = 40_000;

/// What a stream has received, and where it fails.
#[derive(Clone)]
pub(crate) struct Received(Arc<Mutex<State>>);

pub(crate) struct State {
    pub(crate) bytes: Vec<u8>,
    fails_at: usize,
    pub(crate) has_failed: bool,
    /// Whether something came after the failure.
    pub(crate) went_on: bool,
    random: Random,
}

impl Received {
    /// One that fails once so many bytes would be exceeded.
    pub(crate) fn new(seed: u64, fails_at: usize) -> Self {
        let random = Random::new(seed);
        let state = State { bytes: Vec::new(), fails_at, has_failed: false, went_on: false, random };
        Self(Arc::new(Mutex::new(state)))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outlet for Received {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        if state.random.below(8) == 0 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let taken = usize::try_from(1 + state.random.below(TAKEN_BYTES_MAX)).expect("small").min(bytes.len());
        state.went_on |= state.has_failed;
        if !state.has_failed && state.bytes.len() + taken > state.fails_at {
            state.has_failed = true;
            // Numbers of Linux: EPIPE and ENOSPC.
            return Err(io::Error::from_raw_os_error(if state.random.coin() { 32 } else { 28 }));
        }
        state.bytes.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }
}
