//! What is asked of a planner, and what it answers.
//!
//! Invariant: all of it are values; only hints ask back, and what they ask does not change.

use extent::VolumeSpan;
use filesystem::{FileId, Relocations};

/// What is to be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Goal {
    /// No fragmented file, with the fewest bytes moved.
    #[default]
    Files,
    /// That, and the free space in as few pieces as can be.
    Free,
    /// Everything sorted: directories, the small files of one directory together, large files after them.
    Pack,
    /// The container's units that hold little emptied into those that stay, so that it can give them back. No fragments are
    /// put together.
    Units,
}

/// Units of the container in which something was needed, and nothing is any more; less those that were filled instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Emptied {
    /// How many.
    pub units: u64,
    /// Bytes that the container holds in them.
    pub bytes: u64,
}

/// What the container has under a span of the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// A place of its own, which can be written without anything being allocated.
    Allocated,
    /// Nothing: writing there makes the container or the host file larger.
    Unallocated,
    /// A place of its own that the host's file does not hold yet: writing there makes the host's file larger by what is written, however
    /// large the container's unit is, and it can go back in parts of a unit.
    Hole,
    /// Something that must not be written: it belongs to a parent, is shared or compressed.
    Fixed,
    /// Nothing, and the container is not to take storage for it: it would be a unit more than it may grow by.
    Withheld,
}

impl Backing {
    /// Whether it can be written.
    pub(crate) fn is_writable(self) -> bool {
        !matches!(self, Self::Fixed | Self::Withheld)
    }
}

/// Options of a plan for a change in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DefragOptions {
    /// What is to be reached.
    pub goal: Goal,
    /// How many bytes more than before the container may take at any moment. Batches give back as much as they took.
    pub growth_bytes_max: u64,
    /// How many bytes more it may take in the end: what cannot be given back for lack of whole units.
    pub growth_left_bytes_max: u64,
    /// The unit in which the container takes and gives back storage.
    pub unit_bytes: u64,
    /// How far into such a unit the volume begins.
    pub unit_skew_bytes: u64,
    /// Whether what of a file is not stored stays so where it goes. Only where the host's blocks are blocks of the volume as well: elsewhere
    /// each end of a hole takes a block more.
    pub moves_holes: bool,
    /// A batch moves no more than this, unless a single extent is larger.
    pub batch_bytes_max: u64,
    /// Whether anchored streams ([`filesystem::Mobility::Anchored`]) come together as well, in a last batch.
    pub moves_anchored: bool,
}

/// What a volume looks like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LayoutFigures {
    /// Contiguous runs of all main streams of regular files.
    pub fragments: u64,
    /// Those of them in more than one run.
    pub fragmented_files: u64,
    /// Bytes of all streams in more than one run, those of directories and named ones included.
    pub fragmented_bytes: u64,
    /// Free extents.
    pub free_extents: u64,
    /// The largest of them.
    pub largest_free_extent_bytes: u64,
}

/// Why a fragmented stream is left as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WhyLeft {
    /// It must not move.
    Pinned(&'static str),
    /// No free space is large enough, whatever else moves.
    NoRoom,
    /// What describes it has no room for the steps in which it would move part by part, and no free space is large enough for all of it.
    Crowded,
    /// Free space is large enough, but lies where the container must not be written.
    NotWritable,
    /// Free space is large enough, but the container has nothing there, or no unit for it, and must not grow by that much.
    Growth {
        /// By how much it may grow: [`DefragOptions::growth_bytes_max`].
        bytes_max: u64,
        /// By how much it would at the most.
        needed_bytes: u64,
    },
    /// The container may grow by enough meanwhile, but too much of that would stay: what moves shares units of it with what does not.
    GrowthStays {
        /// By how much it may be larger in the end: [`DefragOptions::growth_left_bytes_max`].
        left_bytes_max: u64,
    },
}

/// A plan for a change in place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DefragPlan {
    /// What moves, batch by batch. Each batch goes to what is free before it, and not to what it leaves itself.
    pub batches: Vec<Relocations>,
    /// The volume as it is.
    pub before: LayoutFigures,
    /// As it will be.
    pub after: LayoutFigures,
    /// Bytes that move, in all batches.
    pub moved_bytes: u64,
    /// Bytes of these that only made room for others, and moved although nothing was wrong with them.
    pub made_room_bytes: u64,
    /// After each batch: what is free then, and given back to the container, because the batch or one before took as much.
    pub releases: Vec<Vec<VolumeSpan>>,
    /// What of each batch's destinations comes to hold what is not stored where it comes from, and reads as zeros: it is not stored there
    /// either, and what of it was stored goes back.
    pub holes: Vec<Vec<VolumeSpan>>,
    /// What is free in the end within units of which another part is needed, and is given back after the last batch, to the host if the
    /// container cannot have it.
    pub trimmed: Vec<VolumeSpan>,
    /// How many bytes more than before the container takes at the most, at any moment.
    pub growth_bytes: u64,
    /// How many bytes more it takes in the end: what could not be given back, for lack of whole units.
    pub growth_left_bytes: u64,
    /// For how many bytes more the image has places in the end, whether the host stores anything there or not: so much longer its file is. Counted
    /// by [`in_image_units`](super::in_image_units) alone.
    pub more_places_bytes: u64,
    /// What of the free space could be in one piece afterwards: all of it, or the longest stretch of the volume without anything
    /// that stays, if that is less. With [`Goal::Units`] without what is to be given back.
    pub movable_free_bytes: u64,
    /// What an incremental backup by blocks of 64 KiB sees as changed, metadata not counted.
    pub changed_block_bytes: u64,
    /// What the container can give back. Counted for [`Goal::Units`] alone.
    pub emptied: Emptied,
    /// With [`Goal::Free`] and [`Goal::Pack`], if that is out of reach: what it would come to. Only what [`Goal::Files`] asks for
    /// moves then.
    pub unmet: Option<Unmet>,
    /// Fragmented streams that are left, with their files.
    pub left: Vec<(FileId, WhyLeft)>,
}

/// A goal that is out of reach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unmet {
    /// The volume as the best plan for the goal would leave it.
    pub would_be: LayoutFigures,
    /// What of the free space could be in one piece then.
    pub movable_free_bytes: u64,
    /// The bound that it meets.
    pub why: WhyUnmet,
}

/// Why a goal is out of reach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WhyUnmet {
    /// What lies between free extents fits nowhere else, or cannot move.
    NoRoom,
    /// More files would be in pieces than without it.
    Files,
    /// The container must not grow by as much as is moved at once.
    Growth {
        /// By how much it may grow: [`DefragOptions::growth_bytes_max`].
        bytes_max: u64,
        /// What would suffice.
        needed_bytes: u64,
    },
    /// However much the container may grow meanwhile, too much of that would stay.
    GrowthStays {
        /// By how much it may be larger in the end: [`DefragOptions::growth_left_bytes_max`].
        left_bytes_max: u64,
    },
}

impl WhyLeft {
    /// Told by a plan with less growth than the `bytes_max` that are allowed, because more than `left_bytes_max` of it would have stayed.
    pub fn stays(&mut self, bytes_max: u64, left_bytes_max: u64) {
        match self {
            Self::Growth { needed_bytes, .. } if *needed_bytes <= bytes_max => {
                *self = Self::GrowthStays { left_bytes_max };
            }
            Self::Growth { bytes_max: told, .. } => *told = bytes_max,
            _ => {}
        }
    }
}

impl DefragPlan {
    /// What is given back after each batch, with what is [`trimmed`](Self::trimmed) after the last.
    pub fn all_releases(&self) -> Vec<Vec<VolumeSpan>> {
        let mut releases = self.releases.clone();
        releases.last_mut().into_iter().for_each(|last| last.extend(&self.trimmed));
        releases
    }

    /// Whether nothing is left that could be reached: all that stays fragmented must not move.
    pub(crate) fn is_complete(&self) -> bool {
        self.left.iter().all(|(_, why)| matches!(why, WhyLeft::Pinned(_)))
    }
}

/// What the container has under the volume: consecutive spans that cover it, in order.
pub type BackingMap = Vec<(VolumeSpan, Backing)>;

/// What a planner may ask of a volume besides its layout.
#[derive(Clone, Copy, Default)]
pub struct Hints<'a> {
    /// In which directory a file is.
    pub folder: Option<&'a dyn Fn(FileId) -> Option<FileId>>,
    /// Where a small file is best put, if the file system cares.
    pub home: Option<&'a dyn Fn(FileId) -> Option<VolumeSpan>>,
}
