//! VDI, VirtualBox's format: a header, a map of blocks, and the blocks.
//!
//! Read are version 1.1 dynamic, fixed and differencing images; written are dynamic ones.
//!
//! Absent on purpose: version 0.1 and undo images, which nothing at hand could check; the settings of VirtualBox,
//! which alone know parents' names and whether a disk is encrypted.

mod corrupt;
mod layout;
mod live;
mod map;
mod open;
mod parse;
mod write;

/// [`crate::Facts::variant`] of a disk that finds blocks as they are written.
pub(crate) const DYNAMIC: &str = "dynamic";

pub use corrupt::Corrupt;
pub(crate) use live::open_live;
pub(crate) use open::parent_reference;
pub use open::{open, probe};
pub use write::VdiWriter;
