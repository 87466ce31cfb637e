//! Extraction into a folder: what is made of names and contents that a guest wrote, so that nothing leads out of the folder.
//!
//! [`Below`] makes files one by one, [`Filler`] decides what comes after what. Both are the same for the program, for the broker of a
//! process that is confined, and for exploration: the host's folders are behind [`Folders`].
//!
//! Invariants:
//! - each name is checked by itself, and each folder on the way is opened from the one above it, never through a link: so no path leads
//!   beyond the folder, whatever was made in it before, and by whom;
//! - a file has a partial name until all of it is there, and then gets its own; what has that already is replaced only if that is allowed,
//!   never if this extraction made it, and not before the new contents are on stable storage;
//! - owners, permissions, times and attributes are set, and further names given, only of what was made here;
//! - success means that everything is on stable storage.
//!
//! Absent on purpose: the host's calls, which are `os`'s; what is read of a disk, and in which order its files come.

mod below;
mod filler;
mod folders;
mod kept;
#[cfg(feature = "mutants")]
mod mutant;
mod names;

pub use below::Below;
pub use filler::{Filler, IntoFolder, Item, NewFile};
pub use folders::{FileId, Folders, Found, Kind, Links};
pub use kept::{Kept, Names, Of, SpecialFile};
#[cfg(feature = "mutants")]
pub use mutant::{MUTANTS, Mutant};
pub use names::{check_names, check_target};
