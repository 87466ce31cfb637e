//! Makes virtual machine disks lean: everything that the `leandisk` program does, for other programs.
//!
//! A use case is a module with `Options` and `run`: options in, a document out, and an [`Observer`] in between, which is shown how far
//! the work is and can stop it. Documents are plain data, and become JSON as the program prints it (`docs/json.md`).
//!
//! | to | call |
//! |---|---|
//! | look at a disk | [`info::run`], [`analyze::run`], [`map::run`]; [`OpenDisk`] for all layers of it |
//! | copy it | [`copy::run`] |
//! | change it in place | [`compact::run`], [`defrag::run`], [`recover::run`] |
//! | make one | [`create::run`] |
//! | let others use it | [`serve::run`], [`stats::run`] |
//! | measure a storage | [`bench::first_write`], [`bench::fragmentation`] |
//!
//! ```no_run
//! use leandisk::{Unwatched, copy, info};
//!
//! # fn main() -> leandisk::Result<()> {
//! let disk = info::Options { disk: "windows.vhdx".into(), ..info::Options::default() };
//! println!("{}", leandisk::to_json(&info::run(&disk)?));
//!
//! let copy = copy::Options {
//!     source: "windows.vhdx".into(),
//!     target: "windows.qcow2".into(),
//!     dry_run: true,
//!     ..copy::Options::default()
//! };
//! println!("{}", leandisk::to_json(&copy::run(&copy, &Unwatched)?));
//! # Ok(())
//! # }
//! ```
//!
//! A disk layer by layer: its runs, the volumes on it, and where its files lie.
//!
//! ```no_run
//! use leandisk::block::{Disk, ReadAt};
//! use leandisk::extent::Span;
//! use leandisk::filesystem::Catalog;
//! use leandisk::{Caching, OpenDisk, OpenOptions};
//!
//! # fn main() -> leandisk::Result<()> {
//! let disk = OpenDisk::open("windows.vhdx".as_ref(), &OpenOptions::default(), Caching::PageCache)?;
//! let chain = disk.stack().chain();
//! for run in chain.map(Span::from_zero(chain.len_bytes()))? {
//!     println!("{:?} {:?}", run.span, run.state);
//! }
//! for volume in disk.stack().volumes() {
//!     let Some(filesystem) = &volume.filesystem else { continue };
//!     for stream in Catalog::read(&**filesystem)?.streams() {
//!         println!("{} in {} extents", stream.path().escape_ascii(), stream.extent_count());
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Errors say what went wrong for people; [`ErrorKind`] says it for programs, and stands for the program's exit status.
//!
//! Versions follow Semantic Versioning, and until 1.0 a minor version may break what it has to. Options may gain fields in any version: end
//! them with `..Options::default()`. Documents gain fields in any version, and lose none within the version of their schema.
//!
//! Invariants: every use case finds what speaks against it before it writes a byte, and a dry run finds the same; it prints nothing, and
//! ends no process.

pub mod analyze;
pub mod bench;
pub mod compact;
mod consolidate;
pub mod copy;
pub mod create;
pub mod defrag;
mod in_place;
pub mod info;
pub mod map;
mod observer;
mod open;
mod output;
mod pack;
mod places;
mod provision;
mod recording;
pub mod recover;
pub mod serve;
mod shadow_copies;
pub mod stats;
mod target;

pub use block::{Error, ErrorKind, Result};
pub use image::Format;
pub use report::to_json;
/// The rooms below, for those who look at a disk layer by layer, or write an [`Observer`].
pub use {block, engine, extent, filesystem, image, report, stack};

pub use observer::{Cancel, Observer, Progress, Unwatched, Waiting};
pub use open::{Caching, OpenDisk, OpenOptions};
pub use provision::Provision;

/// A document, and how the work that it tells of ended.
#[derive(Debug)]
pub struct Reported<D> {
    /// What was done, as far as it was.
    pub document: D,
    /// Why it was not done, or not to the end. The document says it, too.
    pub ended: Result<()>,
}
