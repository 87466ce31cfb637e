//! What lies where in the file of an image that allocates in units, so that what lies at its end can be moved into gaps.

use extent::{ExtentSet, Host, HostOffset, HostSpan, Span};

/// What can be laid elsewhere in an image's file, by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Occupant {
    /// A table that counts references to what lies in the file.
    Counts(u64),
    /// A table that maps units.
    Map(u64),
    /// A unit with its data.
    Unit(u64),
}

impl Occupant {
    /// That which is `count` further on.
    #[must_use]
    pub fn plus(self, count: u64) -> Self {
        match self {
            Self::Counts(number) => Self::Counts(number + count),
            Self::Map(number) => Self::Map(number + count),
            Self::Unit(number) => Self::Unit(number + count),
        }
    }
}

/// Occupants of consecutive numbers in consecutive slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Occupied {
    /// The first of them.
    pub first: Occupant,
    /// How many they are.
    pub count: u64,
    /// Where the first one's slot begins: its data, or what lies before them.
    pub at: HostOffset,
}

/// Occupants of consecutive numbers that go from consecutive slots to consecutive slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnitMove {
    /// The first of them.
    pub first: Occupant,
    /// How many they are.
    pub count: u64,
    /// Where the first one's slot begins.
    pub from: HostOffset,
    /// Where it is to begin: in free places.
    pub to: HostOffset,
}

/// What lies where in an image's file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Occupancy {
    /// Bytes of a unit's data.
    pub unit_bytes: u64,
    /// Bytes that lie right before each unit's data and go with it.
    pub head_bytes: u64,
    /// Slots begin at `phase_bytes` past a multiple of this.
    pub align_bytes: u64,
    /// See `align_bytes`.
    pub phase_bytes: u64,
    /// No slot begins before this.
    pub slots_from: HostOffset,
    /// What can be laid elsewhere, in order of place. Each one's slot is whole, but that of `cut_off`.
    pub movable: Vec<Occupied>,
    /// What cannot be, and what is not known.
    pub fixed: ExtentSet<Host>,
    /// Free, but not to be used.
    pub unusable: ExtentSet<Host>,
    /// The slot that ends early, if one does.
    pub cut_off: Option<HostSpan>,
    /// Units that one [`Occupant::Map`] maps; without a unit it goes as well.
    pub units_per_map: Option<u64>,
    /// Bytes of the file whose references one [`Occupant::Counts`] counts; without any it goes as well.
    pub bytes_per_counts: Option<u64>,
    /// The file's length is a multiple of this.
    pub length_multiple_bytes: u64,
    /// Bytes that follow the last slot: a footer.
    pub tail_bytes: u64,
    /// The file's length.
    pub length_bytes: u64,
    /// No gap may be left between slots.
    pub is_dense: bool,
}

impl Occupancy {
    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> u64 {
        self.head_bytes + self.unit_bytes
    }

    /// What the slot at `at` takes of the file.
    pub fn slot(&self, at: HostOffset) -> HostSpan {
        self.cut_off.filter(|cut_off| cut_off.start() == at).unwrap_or(Span::new(at, self.slot_bytes()))
    }

    /// The file's length if the last of its slots and of what is fixed ends at `end`.
    pub fn length_behind(&self, end: HostOffset) -> u64 {
        let length = end.get().next_multiple_of(self.length_multiple_bytes) + self.tail_bytes;
        if length + self.tail_bytes > self.length_bytes { self.length_bytes } else { length }
    }
}
