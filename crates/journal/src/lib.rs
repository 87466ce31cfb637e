//! The write-ahead journal of a change in place, and what to do with it after a crash.
//!
//! A journal is a file beside the disk. Its header says which disk it belongs to; two slots behind it take records in turn.
//! A record is committed if all of it is there, which its checksum tells.
//!
//! Invariants:
//! - of a disk nothing is written here: an engine writes what [`Record::to_bytes`] answers, and carries out what [`decide()`]
//!   says;
//! - a file that does not prove to be the journal of this disk is neither followed nor removed;
//! - a record is redone only on a disk that is, byte for byte, one which the change could have left behind, and that
//!   holds the moved data; anything else is refused;
//! - the same journal and disk give the same decision, also after it was carried out in part.
//!
//! Absent on purpose: folders of the host, which [`Names`] stands for; the order of writes to a disk, which belongs to the engine.

mod corrupt;
mod decide;
mod decode;
mod header;
mod layout;
mod life;
#[cfg(feature = "mutants")]
mod mutant;
mod record;

pub use corrupt::Corrupt;
pub use decide::{Claim, Decision, Why, decide, read_header};
pub use header::{
    DiskName, FileId, HEADER_BYTES, Header, Identity, Owner, SLOT_BYTES_MAX, WITNESS_COUNT_MAX,
    witness_digest,
};
pub use life::{
    FoundFile, JournalFile, Look, Names, Places, Standing, check_free, find, in_the_way, standing,
};
#[cfg(feature = "mutants")]
pub use mutant::{MUTANTS, Mutant};
pub use record::{Move, Patch, Record};
