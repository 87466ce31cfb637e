//! Where parts of logical volumes lie.

use extent::VolumeOffset;

/// A physical volume of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its identifier.
    pub id: String,
    /// Where its first extent begins.
    pub extents_at: VolumeOffset,
    /// How many extents it has.
    pub extent_count: u64,
    /// How long the physical volume is.
    pub len_bytes: u64,
}

/// A part of a logical volume that lies in one run, or in stripes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// How many extents of the logical volume it is.
    pub extent_count: u64,
    /// How much goes to one area before the next one's turn comes. Divides an extent evenly.
    pub stripe_bytes: u64,
    /// One for a linear segment; else each has an equal part of the extents.
    pub areas: Vec<Area>,
}

/// Consecutive extents of a physical volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Area {
    /// Which of [`Group::members`](super::Group::members).
    pub member: usize,
    /// The first extent.
    pub first: u64,
    /// How many.
    pub count: u64,
}
