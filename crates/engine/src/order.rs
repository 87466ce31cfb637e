//! Workers run ahead of each other, but place in order.

use std::sync::{Condvar, Mutex, MutexGuard};

use block::{Error, Result};

/// A turnstile around `T`: sequence numbers pass one after the other.
pub(crate) struct Turnstile<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    turn: u64,
    stored: u64,
    failure: Option<Error>,
    failed: bool,
    inner: T,
}

impl<T> Turnstile<T> {
    pub(crate) fn new(inner: T) -> Self {
        let state = State { turn: 0, stored: 0, failure: None, failed: false, inner };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Waits for `sequence`'s turn and lets `act` do its part. `None` if another worker failed meanwhile.
    ///
    /// `wants_quiet` is asked first: if it agrees, `act` runs only once everything placed before is stored.
    pub(crate) fn pass<R>(
        &self,
        sequence: u64,
        wants_quiet: impl FnOnce(&T) -> bool,
        act: impl FnOnce(&mut T, bool) -> Result<R>,
    ) -> Option<R> {
        let mut state = self.wait(self.lock(), |state| state.turn == sequence)?;
        let quiet = wants_quiet(&state.inner);
        if quiet {
            state = self.wait(state, |state| state.stored == sequence)?;
        }
        let result = act(&mut state.inner, quiet);
        state.turn += 1;
        drop(state);
        self.changed.notify_all();
        result.map_err(|error| self.fail(error)).ok()
    }

    /// Notes that one sequence number's data is stored.
    pub(crate) fn stored(&self) {
        self.lock().stored += 1;
        self.changed.notify_all();
    }

    /// Notes a failure, the first of which counts, and releases everyone who waits.
    pub(crate) fn fail(&self, error: Error) {
        let mut state = self.lock();
        if !state.failed {
            state.failed = true;
            state.failure = Some(error);
        }
        drop(state);
        self.changed.notify_all();
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.lock().failed
    }

    /// The inner value, or the first failure.
    pub(crate) fn finish(self) -> Result<T> {
        let state = self.state.into_inner().expect("no worker panicked");
        match state.failure {
            Some(error) => Err(error),
            None => Ok(state.inner),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().expect("no worker panicked")
    }

    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<T>>,
        is_ready: impl Fn(&State<T>) -> bool,
    ) -> Option<MutexGuard<'a, State<T>>> {
        while !state.failed && !is_ready(&state) {
            state = self.changed.wait(state).expect("no worker panicked");
        }
        (!state.failed).then_some(state)
    }
}
