//! What a copy has done so far: counted as it goes, kept by its checkpoints, reported at its end.

use serde::{Deserialize, Serialize};

/// What was done.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopyTotals {
    /// Bytes of the virtual disk read, but for what was read of cloned ranges to be compared.
    pub read_bytes: u64,
    /// Bytes of the virtual disk cloned.
    pub cloned_bytes: u64,
    /// Bytes written to the target, tables included.
    pub written_bytes: u64,
    /// Bytes read that turned out to be zeros and were not written.
    pub zeros_found_bytes: u64,
}

impl CopyTotals {
    /// Bytes of what was planned that are in the target by now.
    pub(crate) fn done_bytes(&self) -> u64 {
        self.read_bytes.saturating_add(self.cloned_bytes)
    }
}
