//! Makes virtual machine disks lean: everything that the `leandisk` program does, for other programs.
//!
//! A use case is a module with `Options` and `run`: options in, a document out, and an [`Observer`] in between, which is shown how far
//! the work is and can stop it. Documents are plain data, and become JSON as the program prints it (`docs/json.md`).
//!
//! | to | call |
//! |---|---|
//! | look at a disk | [`info::run`], [`analyze::run`], [`map::run`]; [`OpenDisk`] for all layers of it |
//! | read the guest's files | [`files::list()`], [`files::cat()`], [`files::extract()`] |
//! | copy it | [`copy::run`] |
//! | change it in place | [`compact::run`], [`defrag::run`], [`recover::run`] |
//! | make one | [`create::run`] |
//! | read a disk that a server on this host serves, as it is at one moment | [`moment::Disk::begin`], and any of the above that only look, on its address |
//! | read a disk of a running guest | [`running::Moment::begin`], and any of the above that only look, on its address |
//! | back disks up into a repository in restic's format | [`backup::run`], [`backup::snapshots`], [`backup::restore`], [`backup::check`] |
//! | let others use it | [`serve::run`], [`stats::run`] |
//! | keep a machine's own files in one piece | [`guard::run`], [`guard::status`], [`guard::report`] |
//! | tell what was gained | [`worth::run`] |
//! | measure a storage | [`bench::first_write`], [`bench::fragmentation`], [`bench::workloads`]; on a file system that [`bench::age`] has aged |
//!
//! Where to look for how it is done: [`compact::run`], for one, takes facts from [`stack::Stack::facts`], has [`plan::compact`] plan with them, and has
//! [`engine::CompactJob`] write. `ARCHITECTURE.md` has the map of all crates.
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
//! Errors say what went wrong for people; [`ErrorKind`] says it for programs, and stands for the program's exit status. What a disk
//! contradicts is a value as well, to be matched by its type ([`Error::cause`]): each format and file system has its own, such as
//! [`image::vhd::Corrupt`] and [`filesystem::ext::Corrupt`], and [`image::BrokenChain`] is of parents. Where such a value names a
//! structure alone, [`Error::wrong_field`] tells the field and what was found in it. What people read may be put better in any version;
//! match values, not texts.
//!
//! ```
//! use leandisk::image::vhd::Corrupt;
//! use leandisk::{ErrorKind, info};
//!
//! # fn main() -> std::io::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let disk = folder.path().join("broken.vhd");
//! // A footer of a VHD whose checksum is that of no footer.
//! std::fs::write(&disk, [&b"conectix"[..], &[0; 504]].concat())?;
//!
//! let error = info::run(&info::Options { disk, ..info::Options::default() }).unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::Corrupt);
//! let Some(Corrupt::FooterChecksum { found, expected }) = error.cause() else {
//!     panic!("something else is wrong: {error}")
//! };
//! assert_eq!((*found, *expected), (0, 0xffff_fca2));
//! # Ok(())
//! # }
//! ```
//!
//! Versions follow Semantic Versioning, and until 1.0 a minor version may break what it has to. Options may gain fields in any version: end
//! them with `..Options::default()`. Documents gain fields in any version, and lose none within the version of their schema.
//!
//! A program that reads disks from strangers can have this process closed in before: see [`confine`]. No use case does so by itself.
//!
//! What is being done in detail is emitted as events of `tracing`, for programs that subscribe to them.
//!
//! Invariants: every use case finds what speaks against it before it writes a byte, and a dry run finds the same; it prints nothing, and
//! ends no process.

pub mod analyze;
pub mod appliance;
pub mod background;
pub mod backup;
pub mod bench;
pub mod compact;
pub mod confine;
mod consolidate;
pub mod coordinate;
pub mod copy;
pub mod copy_all;
pub mod create;
pub mod defrag;
pub mod files;
pub mod folder;
pub mod guard;
mod in_place;
pub mod increment;
pub mod info;
mod machine;
pub mod map;
pub mod moment;
#[cfg(feature = "mutants")]
mod mutant;
mod observer;
mod open;
mod output;
mod pack;
mod places;
mod provision;
mod recording;
pub mod recover;
mod remote;
pub mod running;
pub mod serve;
mod shadow_copies;
pub mod stats;
mod stored;
mod target;
mod waits;
pub mod worth;

pub use block::{Error, ErrorKind, Result};
pub use image::Format;
/// What a [`Machine`] is asked and answers about the target of a copy.
pub use os::{Cloning, FolderOptions, Outlet, OutputStream, StoragePromise, TargetSpace};
pub use report::to_json;
/// The rooms below, for those who look at a disk layer by layer, or write an [`Observer`].
pub use {block, engine, extent, filesystem, image, report, stack};

pub use machine::{Caching, CopyFolder, FoundJournal, HeldFile, HeldJournal, Machine, Named, ThisHost};
#[cfg(feature = "mutants")]
pub use mutant::Mutant;
pub use observer::{Cancel, Observer, Progress, Unwatched, Waiting};
pub use open::{NtfsLog, OpenDisk, OpenOptions, name_disk};
pub use provision::Provision;

/// A document, and how the work that it tells of ended.
#[derive(Debug)]
pub struct Reported<D> {
    /// What was done, as far as it was.
    pub document: D,
    /// Why it was not done, or not to the end. The document says it, too.
    pub ended: Result<()>,
}
