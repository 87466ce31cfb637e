//! Volumes that are named but not understood: copied whole, with the reason told.
//!
//! A name costs a few small reads at known places. Nothing that is copied depends on it: a volume that is
//! named wrongly is still copied whole. What holds other volumes (encryption, LVM, RAID) is looked for before, by
//! [`crate::holder`], because a file system's superblock can shine through it.
//!
//! Offsets are those of the structs named at each recogniser; `blkid` is the oracle for all of them.

mod apple;
mod linux;
mod others;
mod windows;

use block::Result;

use crate::doubtful::Doubtful;
use crate::probe::{Probe, Told};
use crate::{Facts, FileSystem, Source};

/// Names what is on the volume, if it can.
pub fn open(source: &Source) -> Result<Option<Box<dyn FileSystem>>> {
    let probe = Probe::of_partition(source);
    for (_, recognise) in RECOGNISERS {
        if let Some(facts) = recognise(&probe)? {
            return Ok(Some(Doubtful::boxed(facts)));
        }
    }
    Ok(None)
}

/// The name of a file system that is not understood, but whose superblock is on the volume as well as that of another one: then
/// it is not known which of the two the guest uses.
pub(crate) fn beside(source: &Source) -> Result<Option<String>> {
    let probe = Probe::of_partition(source);
    for (_, recognise) in RECOGNISERS.iter().filter(|(beside, _)| *beside == Beside::Ambiguous) {
        if let Some(facts) = recognise(&probe)? {
            return Ok(Some(facts.filesystem));
        }
    }
    Ok(None)
}

/// What a superblock means on a volume that has another file system's superblock as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Beside {
    /// Either may be in use.
    Ambiguous,
    /// Nothing: it is made to lie beside others, as on discs for several systems, or its magic number is too short to tell.
    /// The same that libblkid tolerates (`BLKID_IDINFO_TOLERANT`).
    Tolerated,
}

type Recogniser = fn(&Probe) -> Result<Option<Facts>>;

const RECOGNISERS: &[(Beside, Recogniser)] = &[
    (Beside::Ambiguous, linux::f2fs),
    (Beside::Ambiguous, linux::squashfs),
    (Beside::Ambiguous, linux::erofs),
    (Beside::Ambiguous, linux::jfs),
    (Beside::Ambiguous, linux::reiserfs),
    (Beside::Ambiguous, linux::gfs2),
    (Beside::Ambiguous, linux::ocfs2),
    (Beside::Ambiguous, linux::nilfs2),
    (Beside::Ambiguous, windows::refs),
    (Beside::Ambiguous, apple::apfs),
    (Beside::Tolerated, apple::hfs),
    (Beside::Ambiguous, others::ufs),
    (Beside::Tolerated, others::udf),
    (Beside::Tolerated, others::iso9660),
];
