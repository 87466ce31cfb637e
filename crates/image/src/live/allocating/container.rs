//! What formats tell of their tables: where units lie, where new ones go, and what becomes of those that are freed.
//!
//! Invariants:
//! - a place that [`Container::allocate`] or [`Container::claim`] gave is nobody else's until it was released;
//! - what is taken out of the tables is told, and is free only once [`Container::release`] was called: [`super::commit`] does so
//!   when nothing on the storage refers to it any more.
//!
//! Absent on purpose: locks, flushes, and the guest's data.

use block::{Error, Occupancy, Occupant, Result};
use extent::{ExtentSet, HostOffset, HostSpan, Virtual};

use super::{Marks, Tidy};
use crate::live::{Missed, Tables};

/// What the tables say of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    /// The parents answer.
    Absent,
    /// Zeros; the place is kept for it if there is one.
    Zero(Option<HostOffset>),
    /// Lies here, and may be overwritten.
    Data(HostOffset),
    /// Lies here, and may be overwritten once the tables are told.
    Unmarked(HostOffset),
    /// Lies here, and something else refers to it: to be copied before it is changed.
    Shared(HostOffset),
    /// Lies compressed.
    Compressed { at: HostOffset, len_bytes: u64 },
}

/// What an entry is to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum To {
    /// The unit lies here.
    Data(HostOffset),
    /// Zeros without a place.
    Zero,
    /// The parents answer.
    Absent,
}

/// A place for a unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Where its data goes.
    pub(crate) at: HostOffset,
    /// Whether it reads as zeros.
    pub(crate) is_clean: bool,
}

/// What a freed entry referred to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Storage {
    /// The data of a unit, which it alone had.
    Unit(HostOffset),
    /// What others may refer to as well: compressed data, a unit's or a table of snapshots.
    Shared { at: HostOffset, len_bytes: u64 },
}

/// What is a format's own. Every method but `lookup` and `dying` is called with the state alone.
pub(crate) trait Container: Send + Sync + 'static {
    /// Before the very first change; see also [`super::WriteOut::begin`], which comes before.
    fn begin(&mut self, _tables: &mut Tables) -> Result<()> {
        Ok(())
    }

    /// What the tables say of `unit`.
    fn lookup(&self, tables: &Tables, unit: u64) -> Result<Unit, Missed>;

    /// Finds a place for `unit` and counts it as taken. The file reaches to its end afterwards.
    fn allocate(&mut self, tables: &mut Tables, unit: u64) -> Result<Place>;

    /// Makes the entry of `unit` say `to`; what it referred to before, unless it is the same, goes to `freed`.
    fn set(&mut self, tables: &mut Tables, unit: u64, to: To, freed: &mut Vec<Storage>) -> Result<()>;

    /// How `unit` can read as zeros without storage of its own; `None` if the format has no way.
    fn zeros(&self, unit: Unit, has_parent: bool) -> Option<To>;

    /// What of `storage`, to which nothing refers any more, nobody else uses.
    fn dying(&mut self, tables: &mut Tables, storage: &Storage) -> Result<Vec<HostSpan>>;

    /// Makes the storage free to be used again.
    fn release(&mut self, tables: &mut Tables, storage: &Storage) -> Result<()>;

    /// The tables are about to be taken for a commit.
    fn before_commit(&mut self, _tables: &mut Tables) -> Result<()> {
        Ok(())
    }

    /// How much room the unit whose data lie, or lay, at `at` has there: less than others where the last one ends with
    /// the disk.
    fn room_bytes(&self, _at: HostOffset, unit_bytes: u64) -> u64 {
        unit_bytes
    }

    /// What lies before each unit's data and moves with it.
    fn head_bytes(&self) -> u64 {
        0
    }

    /// What lies where, if units can be laid elsewhere. All is committed.
    fn occupancy(&mut self, _tables: &mut Tables) -> Result<Option<Occupancy>> {
        Ok(None)
    }

    /// Whether the slot of `who` begins at `at`, and nothing else refers to it.
    fn lies_at(&self, tables: &mut Tables, who: Occupant, at: HostOffset) -> Result<bool> {
        let Occupant::Unit(unit) = who else { return Ok(false) };
        let data_at = at.plus(self.head_bytes());
        let found = tables.looking(|tables| self.lookup(tables, unit))?;
        Ok(found == Unit::Data(data_at) || found == Unit::Unmarked(data_at))
    }

    /// Takes the slot at `at`, which is within the file; `false` if it is not free.
    fn claim(&mut self, _tables: &mut Tables, _at: HostOffset) -> Result<bool> {
        Ok(false)
    }

    /// Makes the tables refer to the slot of `who` at `to`, where its data are, instead of `from`, which the caller frees. A table is
    /// copied, too.
    fn refer(&mut self, tables: &mut Tables, who: Occupant, from: HostOffset, to: HostOffset) -> Result<()> {
        let Occupant::Unit(unit) = who else { return Err(Error::invalid("this format's tables stay")) };
        let head_bytes = self.head_bytes();
        let mut freed = Vec::new();
        self.set(tables, unit, To::Data(to.plus(head_bytes)), &mut freed)?;
        debug_assert_eq!(freed, [Storage::Unit(from.plus(head_bytes))]);
        Ok(())
    }

    /// What is counted as taken and has nothing that refers to it. All is committed.
    fn leaks(&mut self, _tables: &mut Tables) -> Result<Vec<Storage>> {
        Ok(Vec::new())
    }

    /// Leaves out tables without contents, as far as they are known: what they lay in goes to `freed`.
    fn tidy(&mut self, _tables: &mut Tables, _freed: &mut Vec<Storage>, _when: Tidy) -> Result<()> {
        Ok(())
    }

    /// How finely a record of changes is kept in the image: 2 to the power of this are the bytes that a bit of it stands for. `None` if
    /// there is none.
    fn noted_granularity_bits(&self) -> Option<u32> {
        None
    }

    /// Notes changes in the image's record: a piece of it at a time, so that changed tables can be written back meanwhile; says whether
    /// `piece`, counted from 0, was not the last.
    fn note_changes(&mut self, _tables: &mut Tables, _marks: &Marks, _piece: u64) -> Result<bool> {
        Ok(false)
    }

    /// The whole record is committed: makes the image say that it is right.
    fn changes_noted(&mut self, _tables: &mut Tables) -> Result<()> {
        Ok(())
    }

    /// Makes the record `name` say that nothing changed but `kept`; what it lay in goes to `freed`.
    fn restart_record(
        &mut self,
        _tables: &mut Tables,
        name: &str,
        _kept: &ExtentSet<Virtual>,
        _freed: &mut Vec<Storage>,
    ) -> Result<()> {
        Err(Error::refused(format!("this image has no persistent bitmaps, and so none called {name:?}")))
    }

    /// Everything is committed and nobody writes any more: puts the end in order and says how long the file is to be.
    fn finish(&mut self, tables: &mut Tables) -> Result<u64>;
}

/// Decompresses.
pub(crate) trait Expand: Send + Sync {
    /// Fills `unit` from `data`, which may be longer than needed.
    fn expand(&self, data: &[u8], unit: &mut [u8]) -> Result<()>;
}

/// What an image is like.
pub(crate) struct Shape {
    pub(crate) unit_bytes: u64,
    pub(crate) expander: Option<Box<dyn Expand>>,
}
