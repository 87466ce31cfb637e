//! Blobs of a disk that are kept in memory.
//!
//! Invariants: no more bytes of blobs are kept than [`KEPT_BYTES_MAX`]; a blob that several ask for at once is read once.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use block::Result;

/// What is kept of blobs that were read.
pub(crate) const KEPT_BYTES_MAX: usize = 64 << 20;

/// Blobs by their number on the disk.
#[derive(Default)]
pub(crate) struct Blobs {
    state: Mutex<State>,
    fetched: Condvar,
}

#[derive(Default)]
struct State {
    kept: HashMap<u32, (u64, Arc<Vec<u8>>)>,
    kept_bytes: usize,
    clock: u64,
    /// Being read by somebody.
    fetching: HashSet<u32>,
}

impl Blobs {
    /// The blob, which `read` reads if it is not there. Who asks for what another one is reading waits for that.
    pub(crate) fn get(&self, number: u32, read: impl FnOnce() -> Result<Vec<u8>>) -> Result<Arc<Vec<u8>>> {
        let mut state = self.state();
        loop {
            if let Some(blob) = state.get(number) {
                return Ok(blob);
            }
            if state.fetching.insert(number) {
                break;
            }
            state = self.fetched.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        // Whatever comes of it, the others go on.
        let _fetching = Fetching { blobs: self, number };
        let blob = Arc::new(read()?);
        self.state().put(number, blob.clone());
        Ok(blob)
    }

    /// Whether it is kept, or somebody reads it.
    pub(crate) fn has(&self, number: u32) -> bool {
        let state = self.state();
        state.kept.contains_key(&number) || state.fetching.contains(&number)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Fetching<'a> {
    blobs: &'a Blobs,
    number: u32,
}

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        self.blobs.state().fetching.remove(&self.number);
        self.blobs.fetched.notify_all();
    }
}

impl State {
    fn get(&mut self, number: u32) -> Option<Arc<Vec<u8>>> {
        self.clock += 1;
        let (used, blob) = self.kept.get_mut(&number)?;
        *used = self.clock;
        Some(blob.clone())
    }

    fn put(&mut self, number: u32, blob: Arc<Vec<u8>>) {
        self.clock += 1;
        self.kept_bytes += blob.len();
        if let Some((_, old)) = self.kept.insert(number, (self.clock, blob)) {
            self.kept_bytes -= old.len();
        }
        if self.kept_bytes > KEPT_BYTES_MAX {
            self.forget_half();
        }
    }

    /// Those that were not used for longest go.
    fn forget_half(&mut self) {
        let mut order: Vec<(u64, u32)> =
            self.kept.iter().map(|(number, (used, _))| (*used, *number)).collect();
        order.sort_unstable();
        for (_, number) in order {
            if self.kept_bytes <= KEPT_BYTES_MAX / 2 {
                break;
            }
            if let Some((_, old)) = self.kept.remove(&number) {
                self.kept_bytes -= old.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Error;

    #[test]
    fn what_is_kept_is_bounded_and_the_last_used_stays() {
        let blobs = Blobs::default();
        for number in 0..200 {
            blobs.get(number, || Ok(vec![1; 1 << 20])).unwrap();
            blobs.get(0, || Err(Error::invalid("it is used all the time, and stays"))).unwrap();
            assert!(blobs.state().kept_bytes <= KEPT_BYTES_MAX);
        }
        let sum: usize = blobs.state().kept.values().map(|(_, blob)| blob.len()).sum();
        assert_eq!(sum, blobs.state().kept_bytes);
        assert!(!blobs.has(1));
    }

    #[test]
    fn many_who_ask_have_it_read_once_and_an_error_is_not_kept() {
        let blobs = Blobs::default();
        assert!(blobs.get(7, || Err(Error::invalid("not now"))).is_err());
        let reads = Mutex::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let read = || {
                        *reads.lock().unwrap() += 1;
                        Ok(vec![7; 10])
                    };
                    assert_eq!(*blobs.get(7, read).unwrap(), [7; 10]);
                });
            }
        });
        assert_eq!(*reads.lock().unwrap(), 1);
    }
}
