//! What a change did to a file: how much was written, and what was given up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use block::Count;
use extent::{ExtentSet, Host, HostSpan};

/// What was written into a file, and what was taken from it.
#[derive(Default)]
pub struct Tally {
    written_bytes: AtomicU64,
    /// Made zeros and not written since.
    zeroed: Mutex<ExtentSet<Host>>,
}

impl Tally {
    /// How many bytes were written.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// What was made zeros, or cut off, and not written since.
    pub fn zeroed(&self) -> ExtentSet<Host> {
        self.set().clone()
    }

    fn set(&self) -> MutexGuard<'_, ExtentSet<Host>> {
        self.zeroed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Count for Tally {
    fn zero(&self, span: HostSpan) {
        let mut zeroed = self.set();
        *zeroed = zeroed.union(&[span].into_iter().collect());
    }

    fn write(&self, span: HostSpan) {
        self.written_bytes.fetch_add(span.len_bytes(), Ordering::Relaxed);
        let mut zeroed = self.set();
        if zeroed.within(span).next().is_some() {
            *zeroed = zeroed.subtract(&[span].into_iter().collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use block::{Counted, Memory, TargetFile};
    use extent::{HostOffset, Span};

    #[test]
    fn what_is_done_to_a_file_is_noted() {
        let tally = Arc::new(Tally::default());
        let file = Counted::new(Arc::new(Memory::new(vec![7; 8192])), tally.clone());
        file.punch(Span::new(HostOffset::new(1000), 3000)).unwrap();
        file.zero(Span::new(HostOffset::new(4000), 1000)).unwrap();
        file.write_at(HostOffset::new(2000), &[1; 500]).unwrap();
        file.set_len(8000).unwrap();
        file.set_len(9000).unwrap();
        let spans: Vec<_> =
            tally.zeroed().iter().map(|span| (span.start().get(), span.end().get())).collect();
        assert_eq!(spans, [(1000, 2000), (2500, 5000), (8000, 8192)]);
        assert_eq!(tally.written_bytes(), 500);
    }
}
