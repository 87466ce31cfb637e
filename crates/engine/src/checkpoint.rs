//! Where an interrupted copy can go on.

use image::AnyWriter;
use serde::{Deserialize, Serialize};
use verify::DigestsBuilder;

use crate::totals::CopyTotals;

/// Everything needed to go on: all that was placed before it is on stable storage in the partial target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Bytes of the virtual disk before this are done.
    pub(crate) next_bytes: u64,
    /// Where what was placed in the target ends; what lies behind it is of no use.
    pub(crate) end_bytes: u64,
    pub(crate) writer: AnyWriter,
    pub(crate) totals: CopyTotals,
    pub(crate) digests: Option<DigestsBuilder>,
}

impl Checkpoint {
    /// Bytes of the virtual disk that were read until then.
    pub fn read_bytes(&self) -> u64 {
        self.totals.read_bytes
    }

    /// Bytes of the virtual disk that were read or cloned until then.
    pub fn done_bytes(&self) -> u64 {
        self.totals.done_bytes()
    }
}
