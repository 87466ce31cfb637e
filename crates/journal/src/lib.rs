//! The write-ahead journal of a change in place, and what to do with it after a crash.
//!
//! A journal is a file beside the disk. Its header says which disk it belongs to; two slots behind it take records in turn.
//! A record is committed if all of it is there, which its checksum tells.
//!
//! Invariants:
//! - nothing here writes: an engine writes what [`Header::to_bytes`] and [`Record::to_bytes`] answer, and
//!   carries out what [`decide()`] says;
//! - a record is redone only on a disk that is, byte for byte, one which the change could have left behind, and that
//!   holds the moved data; anything else is refused;
//! - the same journal and disk give the same decision, also after it was carried out in part.
//!
//! Absent on purpose: paths and files, which belong to the caller; the order of writes, which belongs to the engine.

mod decide;
mod header;
mod layout;
mod record;
mod take;

pub use decide::{Decision, Why, decide, read_header};
pub use header::{HEADER_BYTES, Header, Identity, SLOT_BYTES_MAX, WITNESS_COUNT_MAX, witness_digest};
pub use record::{Move, Patch, Record};
