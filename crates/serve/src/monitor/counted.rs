//! A host file that tells a monitor what is asked of it.

use std::sync::Arc;

use block::{ReadAt, Result, TargetFile};
use extent::{Host, HostOffset, HostSpan};

use super::{Direction, Monitor};

/// A file beneath a disk in use, whose reads and writes count as the disk's physical I/Os.
pub struct Counted {
    file: Arc<dyn TargetFile>,
    monitor: Arc<Monitor>,
}

impl Counted {
    /// `file`, counted by `monitor`.
    pub fn new(file: Arc<dyn TargetFile>, monitor: Arc<Monitor>) -> Self {
        Self { file, monitor }
    }

    fn count(&self, direction: Direction, len: usize) {
        self.monitor.transferred(direction, len as u64);
    }
}

impl ReadAt<Host> for Counted {
    fn len_bytes(&self) -> u64 {
        self.file.len_bytes()
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.count(Direction::Read, buf.len());
        self.file.read_at(at, buf)
    }
}

impl TargetFile for Counted {
    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        self.count(Direction::Write, buf.len());
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
        self.file.flush()
    }

    fn read_stored(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.count(Direction::Read, buf.len());
        self.file.read_stored(at, buf)
    }

    fn forget(&self, span: HostSpan) {
        self.file.forget(span);
    }
}
