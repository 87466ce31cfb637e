//! A file that is held and not yet written, as if it were: to see whether a disk can be taken into use, a pending log included.
//!
//! Invariant: what is written stays in memory. That is little: what opening puts in order.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{Overlay, ReadAt, Result, TargetFile};
use extent::{Host, HostOffset, HostSpan};
use os::LiveFile;

pub(super) struct Rehearsed(Mutex<Overlay<Host, Arc<LiveFile>>>);

impl Rehearsed {
    pub(super) fn new(file: Arc<LiveFile>) -> Self {
        Self(Mutex::new(Overlay::new(file)))
    }

    fn overlay(&self) -> MutexGuard<'_, Overlay<Host, Arc<LiveFile>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadAt<Host> for Rehearsed {
    fn len_bytes(&self) -> u64 {
        self.overlay().len_bytes()
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.overlay().read_at(at, buf)
    }
}

impl TargetFile for Rehearsed {
    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        self.overlay().patch(at, buf.to_vec());
        Ok(())
    }

    /// Longer at most: opening cuts nothing off.
    fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.overlay().set_len(len_bytes);
        Ok(())
    }

    fn reserve(&self, _span: HostSpan) -> Result<()> {
        Ok(())
    }

    fn zero(&self, span: HostSpan) -> Result<()> {
        let len = usize::try_from(span.len_bytes()).expect("opening zeros no more than memory holds");
        self.write_at(span.start(), &vec![0; len])
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}
