//! NTFS: the check, and what of a volume must not change when files move.
//!
//! Layers, each on the one before: [`layout`]; [`record`] and [`pairs`] (one record); [`stream`] and [`volume`] (files);
//! [`index`] and [`state`]; [`check`] and [`snapshot`].
//!
//! Absent on purpose: repair; what records say twice for speed and Windows lets go stale (sizes and times in indexes);
//! contents of `$Secure`, `$ObjId` and the like beyond the shape of their indexes, which moving does not touch; and log
//! records.

pub(super) mod check;
mod corrupt;
mod index;
mod layout;
mod pairs;
mod record;
pub(super) mod snapshot;
mod state;
mod stream;
mod volume;

pub use corrupt::CorruptNtfs;
pub(super) use volume::is_ntfs;
