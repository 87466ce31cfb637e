//! What there is to tell of an export.

use serde::{Deserialize, Serialize};

use crate::export::Export;
use crate::monitor::Snapshot;

/// An export and what was measured of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ExportStats {
    /// Its name.
    pub name: String,
    /// Its length.
    pub len_bytes: u64,
    /// Whether it cannot be written.
    pub is_read_only: bool,
    /// Why it failed for good, if it did.
    pub failure: Option<String>,
    /// What was measured; `None` if it is not measured.
    pub snapshot: Option<Snapshot>,
}

impl ExportStats {
    /// What there is to tell of `export`.
    pub fn of(export: &Export) -> Self {
        Self {
            name: export.name().to_owned(),
            len_bytes: export.len_bytes(),
            is_read_only: export.is_read_only(),
            failure: export.failure().map(str::to_owned),
            snapshot: export.monitor().map(|monitor| monitor.snapshot()),
        }
    }
}
