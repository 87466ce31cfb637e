//! Flushes that can be relied on.
//!
//! After a failed `fsync` the kernel may have dropped what it could not write and call the next one a success, so that
//! nothing can be known of the file any more: every later operation fails.

use std::sync::atomic::{AtomicBool, Ordering};

use block::{Error, Result};

use crate::raw_file::RawFile;

/// Whether a flush failed.
#[derive(Default)]
pub(crate) struct Flushed {
    has_failed: AtomicBool,
}

impl Flushed {
    /// Fails if an earlier flush did.
    pub(crate) fn check(&self, raw: &RawFile) -> Result<()> {
        if !self.has_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let lost = std::io::Error::other(
            "an earlier flush failed, and what was written since the last good one may be lost",
        );
        Err(Error::io("use", lost).path(&raw.name))
    }

    /// Waits until everything written is on stable storage.
    pub(crate) fn flush(&self, raw: &RawFile) -> Result<()> {
        self.check(raw)?;
        raw.flush().inspect_err(|_| self.fail())
    }

    pub(crate) fn fail(&self) {
        self.has_failed.store(true, Ordering::Release);
    }
}
