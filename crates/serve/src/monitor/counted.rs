//! A host file that tells a monitor what is asked of it.

use std::sync::Arc;

use block::{ReadAt, Result, TargetFile};
use extent::{Host, HostOffset};

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
    block::forward!(self, self.file => len_bytes);

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.count(Direction::Read, buf.len());
        self.file.read_at(at, buf)
    }
}

impl TargetFile for Counted {
    block::forward!(self, self.file => set_len, reserve, reserve_ahead, zero, punch, flush, forget);

    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        self.count(Direction::Write, buf.len());
        self.file.write_at(at, buf)
    }

    fn read_stored(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.count(Direction::Read, buf.len());
        self.file.read_stored(at, buf)
    }
}
