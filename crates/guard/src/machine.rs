//! What the guard needs of the machine: one file system, its files by their handles, and a ledger. The program has the real
//! one, tests one that is cut off at every step.

use block::Result;
use extent::FileOffset;
use predict::cost::Piece;

use crate::facts::{Facts, FileId, Refusal, Room, Stamp};
use crate::ledger::Record;
use crate::space::{DeviceSpan, Owned, SpaceMap};

/// A piece of a file as the file system tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Where.
    pub piece: Piece,
    /// Somebody else's as well: a reflink's, a snapshot's.
    pub is_shared: bool,
    /// It can be read, was written and is not only reserved, and has a place of its own on the device.
    pub is_plain: bool,
}

/// What came of reserving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserved {
    /// The file has room up to where it was asked for.
    Yes {
        /// As it was just before.
        before: Facts,
        /// As it was just after.
        after: Facts,
        /// Somebody may have stored to it through a mapping between the two, which nobody announces.
        is_mapped: bool,
    },
    /// It was left alone.
    No(Refusal),
    /// There was no room, or the file system does not do it. Part of it may have been reserved.
    NoRoom,
}

/// What came of taking a file for oneself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Held {
    /// Nobody else has it open, and whoever opens it waits until it is let go.
    Yes(Facts),
    /// Somebody has it open.
    Busy,
    /// It is to be left alone.
    No(Refusal),
    /// It is gone.
    Gone,
}

/// What came of putting a stretch together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gathered {
    /// It has fewer pieces.
    Yes,
    /// It stayed as it was.
    No,
    /// It was to stop before the end. What was moved until then lies where it is to be, unless only whole files can be moved.
    Stopped,
}

/// Is told how many bytes were moved since it was asked last. Whether work goes on.
pub type GoesOn<'a> = dyn FnMut(u64) -> bool + 'a;

/// The side on which the longer piece lies, in the file as on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beside {
    /// The longer piece begins where the stretch ends.
    Next,
    /// It ends where the stretch begins.
    Previous,
}

/// A stretch that is put right beside a longer piece of its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Join {
    /// Where in the file.
    pub start_bytes: u64,
    /// How much.
    pub len_bytes: u64,
    /// Beside what.
    pub beside: Beside,
}

/// An answer that takes more than one turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told<T> {
    /// This.
    All(T),
    /// It was to stop before the end; asked the same again, it goes on.
    NotYet,
    /// It is not told here.
    Nothing,
}

/// One file system, and the ledger of what was reserved on it.
///
/// Each call is one step: a program that is killed was killed between two of them.
pub trait Machine {
    /// Appends to the ledger, and returns once that is on stable storage.
    fn append(&mut self, records: &[Record]) -> Result<()>;

    /// Replaces the ledger by `records`: after a crash it is the old or the new one.
    fn replace(&mut self, records: &[Record]) -> Result<()>;

    /// What the file system has left.
    fn room(&mut self) -> Result<Room>;

    /// Whether reserving and giving back show in a file's time of modification.
    fn shows_in_stamps(&self) -> bool;

    /// Whether room may be reserved of a file from `from_bytes` on; why not. Asked before the ledger says so: a claim on what somebody else
    /// reserved would have the next guard give that back.
    fn refuses(&mut self, file: &FileId, from_bytes: u64) -> Result<Option<Refusal>>;

    /// Reserves room past the end of a file, from where it ends or from `from_bytes`, whichever is later, up to `to_bytes`. Length and
    /// contents stay. A file that has storage past `from_bytes` already is left alone: that is somebody else's.
    fn reserve(&mut self, file: &FileId, from_bytes: u64, to_bytes: u64) -> Result<Reserved>;

    /// Takes a file for oneself alone.
    fn hold(&mut self, file: &FileId) -> Result<Held>;

    /// The same, only to give its room back: also a file of which nothing may be reserved any more, since it became a program, for example. Only what
    /// cannot be cut at all, or not without a trace, is left alone.
    fn hold_to_cut(&mut self, file: &FileId) -> Result<Held>;

    /// Frees what a file that is held has past its end and up to `to_bytes`, unless what lies further would go as well: that is somebody
    /// else's. `false`, and nothing is freed, if others may write to the file by now.
    fn cut(&mut self, file: &FileId, to_bytes: u64) -> Result<bool>;

    /// Sets when a file that is held was modified, unless others may have modified it since.
    fn stamp(&mut self, file: &FileId, modified: Stamp) -> Result<()>;

    /// Whether somebody waits for a file that is held.
    fn is_wanted(&mut self, file: &FileId) -> bool;

    /// Lets a file go.
    fn release(&mut self, file: &FileId);

    /// Where a file that is held lies.
    fn extents(&mut self, file: &FileId) -> Result<Vec<Extent>>;

    /// Whether only a whole file can be put together.
    fn moves_whole_files(&self) -> bool;

    /// Whether a stretch can be put right beside another piece of its file.
    fn joins(&self) -> bool;

    /// Puts a stretch of a file that is held right beside the piece before or behind it, if there is room. Contents and times stay.
    fn join(&mut self, file: &FileId, join: &Join, goes_on: &mut GoesOn<'_>) -> Result<Gathered>;

    /// Puts `len_bytes` of a file that is held, from `start_bytes` on, together, if that makes fewer pieces of it. Contents and
    /// times stay. Every few MiB it is asked whether that goes on.
    fn gather(
        &mut self,
        file: &FileId,
        start_bytes: u64,
        len_bytes: u64,
        goes_on: &mut GoesOn<'_>,
    ) -> Result<Gathered>;

    /// What is free, and what is taken: within a stretch, or on all of the file system. It is begun anew after an answer.
    fn space(&mut self, within: Option<DeviceSpan>, goes_on: &mut GoesOn<'_>) -> Result<Told<SpaceMap>>;

    /// The pieces of files that lie within these stretches, wholly or in part. It is begun anew after an answer.
    fn owners(&mut self, within: &[DeviceSpan], goes_on: &mut GoesOn<'_>) -> Result<Told<Vec<Owned>>>;

    /// Moves `len_bytes` of a file that is held, from `start` on, to a place outside of a stretch, in one piece. Contents and times stay. What
    /// is kept from the file system for this, so that it offers another place, is kept until [`Machine::let_go`].
    fn move_out(
        &mut self,
        file: &FileId,
        start: FileOffset,
        len_bytes: u64,
        stretch: DeviceSpan,
        goes_on: &mut GoesOn<'_>,
    ) -> Result<Gathered>;

    /// Gives back what was kept.
    fn let_go(&mut self);
}
