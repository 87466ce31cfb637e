//! What a planner is told of a disk: spans, what the chain of images holds there, and what that is to the guest.
//!
//! Invariant: a fact is a value. Who lays images and file systems over each other makes facts (`stack`); what is planned from them
//! does not depend on where they come from.

use block::RunState;
use extent::VirtualSpan;

/// Which volume of a disk, counted from zero in the order in which they lie.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VolumeIndex(pub usize);

/// What a span of the disk is to the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// In no volume: tables, boot code, gaps.
    Outside,
    /// In a volume that is taken whole.
    Whole(VolumeIndex),
    /// Used by a volume's file system, or outside its map.
    Used(VolumeIndex),
    /// Free in a volume.
    Free(VolumeIndex),
    /// Contents of swap in a volume.
    Swap(VolumeIndex),
    /// An empty log in a volume: this byte throughout.
    EmptyLog(VolumeIndex, u8),
}

/// A span of the disk with all that is known of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fact {
    /// Where.
    pub span: VirtualSpan,
    /// What the chain of images says.
    pub state: RunState,
    /// What the guest says.
    pub role: Role,
}
