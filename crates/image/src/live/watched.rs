//! The file of a disk in use, with what is to be remembered of it: that a flush failed.
//!
//! A write that finds no room leaves the disk as it is: what was to be written is in memory still, and can be written later. A flush
//! that fails may have lost what was written before, and the next one may not say so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{ReadAt, Result, TargetFile};
use extent::{Host, HostOffset, HostSpan};

/// See the module's page.
pub(crate) struct Watched {
    file: Arc<dyn TargetFile>,
    lost: AtomicBool,
}

impl Watched {
    pub(crate) fn new(file: Arc<dyn TargetFile>) -> Self {
        Self { file, lost: AtomicBool::new(false) }
    }

    /// Whether a flush failed: what the storage holds is not known any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Gives the storage of `span` back where the host has room for that, and writes zeros where it has not. It reads as zeros.
    pub(crate) fn punch_or_zero(&self, span: HostSpan) -> Result<()> {
        match self.file.punch(span) {
            Err(error) if error.is_full() => self.file.zero(span),
            punched => punched,
        }
    }

    /// Gives the storage of `span`, whose contents mean nothing any more, back where the host has room for that.
    pub(crate) fn punch_if_possible(&self, span: HostSpan) -> Result<()> {
        match self.file.punch(span) {
            Err(error) if error.is_full() => Ok(()),
            punched => punched,
        }
    }
}

/// Reads from the page cache, or past it.
pub(crate) type ReadFile = fn(&Watched, HostOffset, &mut [u8]) -> Result<()>;

impl ReadAt<Host> for Watched {
    block::forward!(self, self.file => len_bytes, read_at);
}

impl TargetFile for Watched {
    block::forward!(
        self, self.file => write_at, set_len, reserve, reserve_ahead, zero, punch, read_stored, forget,
        lend
    );

    fn flush(&self) -> Result<()> {
        self.file.flush().inspect_err(|_| self.lost.store(true, Ordering::Release))
    }
}
