//! Virtual-disk containers: what each format's metadata says of a virtual disk's bytes, and how to lay out
//! a new one.
//!
//! Each format is a folder: `layout.rs` (the on-disk structs alone), `parse.rs` (raw to validated), `map.rs`
//! (virtual to physical runs), `write.rs` (the layout of a new image), `live` (a disk in use),
//! `corrupt.rs` (what can be wrong, as values), `mod.rs` (what it offers).
//!
//! Invariants:
//! - opening and reading never write: a pending log is replayed in memory ([`block::Overlay`]);
//! - a file named inside an image is opened by the [`Resolver`] alone, which decides whether it is granted;
//! - writers do no I/O: they answer with [`TargetWrite`]s, which the engine carries out;
//! - what exists is changed through files that its caller opened for that: by [`Edit`] contents where they lie and what tells that they
//!   changed, never a table; by [`live`] the tables as well.
//!
//! Absent on purpose: file systems, operating-system code, policy about what to copy.

mod broken_chain;
mod chain;
mod edit;
mod foreign;
mod format;
mod layer;
#[cfg(feature = "mutants")]
mod mutant;
mod old_qemu;
mod owners;
mod probe;
mod references;
mod relatives;
mod write;

pub mod live;
pub mod qcow2;
pub mod raw;
pub mod vdi;
pub mod vhd;
pub mod vhdx;
pub mod vmdk;

pub use broken_chain::{BrokenChain, BrokenImage, BrokenTables};
pub use chain::{Chain, Link, OpenOptions};
pub use edit::{Edit, EditTarget, OpenTarget, backing, check_found, keeps_host_blocks};
pub use format::Format;
pub use layer::{
    Backing, BitmapState, DirtyBitmap, Extras, Fact, Facts, Layer, NoFiles, ParentReference, Purpose,
    Renewal, Resolver, SnapshotReference,
};
#[cfg(feature = "mutants")]
pub use mutant::{FULL_MUTANTS, MUTANTS, Mutant};
pub use probe::{Found, Probe, probe};
pub use relatives::{Relation, Relative, relatives, relatives_of_file};
pub use write::{
    AnyWriter, Chunk, CreateOptions, Encoder, Finish, Growth, Piece, PieceBytes, TargetWrite, WriteBytes,
    Writer, create, create_in_order,
};
