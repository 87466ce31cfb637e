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

impl ReadAt<Host> for Watched {
    fn len_bytes(&self) -> u64 {
        self.file.len_bytes()
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.file.read_at(at, buf)
    }
}

impl TargetFile for Watched {
    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        self.file.write_at(at, buf)
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.file.set_len(len_bytes)
    }

    fn reserve(&self, span: HostSpan) -> Result<()> {
        self.file.reserve(span)
    }

    fn reserve_ahead(&self, span: HostSpan) {
        self.file.reserve_ahead(span);
    }

    fn zero(&self, span: HostSpan) -> Result<()> {
        self.file.zero(span)
    }

    fn punch(&self, span: HostSpan) -> Result<()> {
        self.file.punch(span)
    }

    fn flush(&self) -> Result<()> {
        self.file.flush().inspect_err(|_| self.lost.store(true, Ordering::Release))
    }

    fn read_stored(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.file.read_stored(at, buf)
    }

    fn forget(&self, span: HostSpan) {
        self.file.forget(span);
    }
}
