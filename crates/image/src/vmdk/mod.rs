//! VMDK, VMware's format: a descriptor (a text) and the extents it names, embedded in one file or apart.
//!
//! Read are flat, hosted sparse (also compressed, as streams), ESX server sparse (`COWD`) and SESparse
//! extents, and deltas of them. Written are `monolithicSparse` and `streamOptimized`.
//!
//! Absent on purpose: extents that stand for whole devices, encrypted disks, replay of SESparse journals.

mod corrupt;
mod descriptor;
mod edit;
mod layout;
mod live;
mod map;
mod open;
mod parse;
mod write;

pub use corrupt::Corrupt;
pub(crate) use live::open_live;
pub(crate) use open::references;
pub use open::{open, probe};
pub use write::VmdkWriter;
