//! The folder in which a new file is made under other names than its own: a trait, so that `sim` can lose its names as a power
//! cut does.

use crate::{Result, TargetFile};

/// The names that the making of a target uses, all of them in its folder.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TargetName {
    /// The target's own.
    Target,
    /// That of the partial target.
    Partial,
    /// That of the checkpoint.
    Checkpoint,
    /// That of a checkpoint that is not whole yet.
    Draft,
    /// That of a target which is in use while it is filled.
    Filling,
    /// That of the record of what has been filled.
    Filled,
    /// That of such a record that is not whole yet.
    FilledDraft,
}

/// A file of a [`TargetFolder`], held by this process alone until it is dropped. Dropping it leaves the file and its name.
pub trait FolderFile: TargetFile {
    /// What no other file of the folder is or was called: not one that had the same name or number before, nor a copy. A copy of
    /// a checkpoint's bytes can be made by anybody; `None` therefore if the file belongs to another user.
    fn identity(&self) -> Result<Option<String>>;

    /// Returns when the contents and what [`Self::identity`] is made of are on stable storage.
    fn flush_all(&self) -> Result<()>;

    /// Makes the file what a whole target is: with its permissions, without marks, all of it on stable storage.
    fn complete(&self) -> Result<()>;
}

/// Names of a folder, and the files behind them. What is done to names lasts through a power cut only after [`Self::sync`]; until
/// then each name may be what it was, in whatever order things were done.
pub trait TargetFolder: Sync {
    /// Opens the file of that name; `None` if there is none. `Refused` if another process holds it, or if it is no file.
    fn open(&self, name: TargetName) -> Result<Option<Box<dyn FolderFile + '_>>>;

    /// Makes an empty file, which nobody else can read. `Refused` if there is one: another process made it.
    fn create(&self, name: TargetName) -> Result<Box<dyn FolderFile + '_>>;

    /// Removes the name; answers whether there was one.
    fn remove(&self, name: TargetName) -> Result<bool>;

    /// Gives a file another name in one step. What has that name goes; but `Refused` if that is the target's own, it has
    /// appeared meanwhile, and may not be replaced.
    fn rename(&self, from: TargetName, to: TargetName) -> Result<()>;

    /// Returns when all names are on stable storage as they are.
    fn sync(&self) -> Result<()>;
}
