//! How who started a job watches it, and stops it.

use block::Result;

use crate::checkpoint::Checkpoint;

/// Who watches a copy.
pub trait JobMonitor: Sync {
    /// So much was read and written by earlier attempts.
    fn resumed(&self, read_bytes: u64, written_bytes: u64) {
        self.advanced(read_bytes, written_bytes);
    }

    /// So many more bytes were read, of which so many were written after all.
    fn advanced(&self, read_bytes: u64, written_bytes: u64);

    /// Whether to stop as soon as possible.
    fn is_cancelled(&self) -> bool;

    /// Keeps a checkpoint.
    fn checkpoint(&self, _checkpoint: &Checkpoint) -> Result<()> {
        Ok(())
    }
}
