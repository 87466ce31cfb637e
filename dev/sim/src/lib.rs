//! A disk in memory that loses power and fails on demand, all from a seed.
//!
//! The model is that of a file behind a page cache: until a flush, each sector of 512 bytes may reach the
//! storage at any time, in any order, once or several times, or never. After a power cut a sector therefore holds
//! what it held at the last flush or after any write since. A sector itself is torn only if asked for: then it may hold the
//! front of one version and the back of another. Several disks of one [`SimMachine`] share a clock, and lose power together; [`SimFolders`] give them names,
//! [`SimTree`] also folders, links, and somebody else who changes what is there.
//!
//! Invariants, asserted in every build: what was flushed survives every cut; each sector of a cut is one of its versions, or
//! torn between two.
//!
//! [`SimServer`] puts such a disk behind the NBD protocol, and breaks off, refuses and loses power at a request that is chosen.
//!
//! A second model, [`SimRoom`], is a file with holes on a host with little room, used by threads that [`Turns`] lets go on one at a
//! time, in an order that a seed decides.
//!
//! Absent on purpose: bit rot, misdirected writes.

mod disk;
mod edit;
mod folder;
mod folders;
mod machine;
mod names;
mod pages;
mod random;
mod room;
mod server;
mod tree;
mod turns;

pub use disk::{Counters, SECTOR_BYTES, SimDisk, Tears};
pub use edit::EditFile;
pub use folder::{FileMarks, FolderDisk, SimFolder};
pub use folders::{SimFile, SimFolders};
pub use machine::SimMachine;
pub use pages::Pages;
pub use random::Random;
pub use room::{BLOCK_BYTES, SimRoom};
pub use server::{SERVER_FAULTS, ServerFault, SimExport, SimServer};
pub use tree::{AWAY, Intrusion, STRANGERS, STRANGERS_BYTES, Seen, SimNode, SimTree, Stranger, TreeKind};
pub use turns::Turns;
