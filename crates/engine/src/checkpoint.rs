//! Where an interrupted copy can go on.

use block::{Error, Result};
use image::AnyWriter;
use serde::{Deserialize, Serialize};
use verify::DigestsBuilder;

use crate::copy::CopyTotals;

/// The version of the stored form. Another version is not resumed.
const VERSION: u32 = 1;

/// Everything needed to go on: all that was placed before it is on stable storage in the partial target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Checkpoint {
    version: u32,
    /// What the copy was of, and how: a resumed one must agree.
    job: String,
    /// Bytes of the virtual disk before this are done.
    pub(crate) next_bytes: u64,
    pub(crate) writer: AnyWriter,
    pub(crate) totals: CopyTotals,
    pub(crate) digests: Option<DigestsBuilder>,
}

impl Checkpoint {
    pub(crate) fn new(
        job: String,
        next_bytes: u64,
        writer: AnyWriter,
        totals: CopyTotals,
        digests: Option<DigestsBuilder>,
    ) -> Self {
        Self { version: VERSION, job, next_bytes, writer, totals, digests }
    }

    /// The stored form.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data becomes JSON")
    }

    /// Reads the stored form of a checkpoint of `job`. `Refused` if it is another job's.
    pub fn from_bytes(bytes: &[u8], job: &str) -> Result<Self> {
        let checkpoint: Self = serde_json::from_slice(bytes)
            .map_err(|error| Error::refused(format!("the stored progress cannot be read: {error}")))?;
        if checkpoint.version != VERSION || checkpoint.job != job {
            return Err(Error::refused(
                "the stored progress is of another copy, or the source changed since",
            )
            .hint("start again without --resume"));
        }
        Ok(checkpoint)
    }

    /// Bytes of the virtual disk that are done.
    pub fn done_bytes(&self) -> u64 {
        self.next_bytes
    }
}
