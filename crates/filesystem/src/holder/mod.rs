//! What holds a volume: the array, volume manager, cache or encryption that a partition or a whole disk is a part of.
//!
//! It is asked for before any file system is. A member shows what looks like a file system: an old signature in a place that its
//! holder leaves alone, or the beginning of what is inside. What that calls free is not free, and what is changed in it
//! is changed behind its holder's back, in one half of a mirror for instance.
//!
//! Invariants:
//! - every place where the metadata of a holder can lie is looked at, the end of the volume included;
//! - what bears a holder's signature is held, also if the rest of it is broken or it may be a leftover: the user is told how
//!   to remove it. Signatures of a few bytes alone count only if a checksum agrees.
//!
//! Places and fields are those of the structs named at each recogniser; `blkid` is the oracle for all that it knows.
//!
//! Absent on purpose: assembling arrays, opening what is encrypted; the volumes of LVM2 (crates `volume` and `stack`).

mod cache;
mod ddf;
mod drbd;
mod encryption;
mod firmware;
mod lvm;
mod mapper;
mod md;
mod others;
mod windows;
mod zfs;

use block::Result;
use extent::{Offset, VolumeOffset};

use crate::doubtful::Doubtful;
use crate::probe::{Probe, Scope};
use crate::{Facts, FileSystem, Source, State, fault};

/// What holds a volume, as its metadata on that volume tell.
#[derive(Clone, Debug)]
pub struct Holder {
    facts: Facts,
    at: VolumeOffset,
    /// What the volume is to its holder, as the end of a sentence: `is a member of ...`.
    what: String,
    /// With what a leftover is removed; `None` if it is never one.
    remedy: Option<&'static str>,
    is_checksum_right: bool,
    is_certain: bool,
}

/// Everything whose metadata are on the volume, the outermost first. Only a read that fails is an error.
pub fn find(source: &Source, scope: Scope) -> Result<Vec<Holder>> {
    let probe = Probe::new(source, scope);
    let mut found = Vec::new();
    for recognise in RECOGNISERS {
        found.extend(recognise(&probe)?);
    }
    Ok(found)
}

type Recogniser = fn(&Probe) -> Result<Option<Holder>>;

/// In the order in which libblkid asks, which is from the outside inwards.
const RECOGNISERS: &[Recogniser] = &[
    md::md_0_90,
    md::md_1,
    ddf::ddf,
    firmware::intel,
    firmware::lsi,
    firmware::via,
    firmware::silicon,
    firmware::nvidia,
    firmware::promise,
    firmware::highpoint_45x,
    firmware::highpoint_37x,
    firmware::adaptec,
    firmware::jmicron,
    windows::dynamic_disk,
    windows::storage_spaces,
    cache::bcache,
    cache::bcachefs,
    others::bluestore,
    others::oracle_asm,
    drbd::drbd,
    lvm::lvm2,
    lvm::lvm1,
    mapper::snapshot,
    mapper::verity,
    mapper::integrity,
    encryption::luks,
    others::vmfs,
    mapper::vdo,
    mapper::stratis,
    encryption::bitlocker,
    encryption::core_storage,
    zfs::zfs,
    others::btrfs,
];

impl Holder {
    /// A holder whose metadata lie at byte `at` of the volume.
    fn new(probe: &Probe, name: &str, at: u64, what: impl Into<String>) -> Self {
        let what = what.into();
        let facts = probe.facts(name, State::Unsupported(what.clone()));
        Self {
            facts,
            at: Offset::new(at),
            what,
            remedy: Some("wipefs"),
            is_checksum_right: true,
            is_certain: true,
        }
    }

    /// Fills in what the metadata tell.
    fn told(self, tell: impl FnOnce(Facts) -> Facts) -> Self {
        Self { facts: tell(self.facts), ..self }
    }

    fn removed_by(self, remedy: &'static str) -> Self {
        Self { remedy: Some(remedy), ..self }
    }

    fn encrypted(mut self) -> Self {
        self.facts.state = State::Encrypted(self.what.clone());
        Self { remedy: None, ..self }
    }

    fn with_checksum(self, is_checksum_right: bool) -> Self {
        Self { is_checksum_right, ..self }
    }

    /// Says whether the metadata can be of this volume alone, and not of one that ends where it ends.
    fn certain_if(self, is_certain: bool) -> Self {
        Self { is_certain, ..self }
    }

    /// What it is called: `md-raid`, `lvm2`, `luks2`.
    pub fn name(&self) -> &str {
        &self.facts.filesystem
    }

    /// Where its metadata were found.
    pub fn at(&self) -> VolumeOffset {
        self.at
    }

    /// Whether the metadata can only be of this volume: at the end of the last partition they could be of the whole disk.
    pub fn is_certain(&self) -> bool {
        self.is_certain
    }

    /// Why the volume is not to be relied on.
    pub fn reason(&self) -> String {
        self.reason_of("it")
    }

    /// As [`Self::reason`], of what is called `subject`.
    pub fn reason_of(&self, subject: &str) -> String {
        let mut reason = format!("{subject} {}", self.what);
        if !self.is_checksum_right {
            reason += ", though the checksum of its metadata is wrong";
        }
        if let Some(remedy) = self.remedy {
            reason = format!("{reason}; if it no longer is, remove the signature with {remedy}");
        }
        reason
    }

    /// The volume under this holder: whole, never changed. If what it looks like is `hibernated`, it is that as well: this concerns the
    /// other volumes of the disk, too.
    fn hold(&self, hibernated: Option<&str>) -> Box<dyn FileSystem> {
        let mut facts = self.facts.clone();
        facts.state = match (hibernated, &self.facts.state) {
            (Some(why), _) => State::Hibernated(format!("{why}; {}", self.reason())),
            (None, State::Encrypted(_)) => State::Encrypted(self.reason()),
            (None, _) => State::Unsupported(self.reason()),
        };
        Doubtful::boxed(facts)
    }
}

/// The volume as its holder's member.
pub fn hold(holder: &Holder, source: &Source) -> Result<Box<dyn FileSystem>> {
    let inside = match crate::open_contents(source) {
        Ok(inside) => inside,
        Err(error) => fault::of_volume(error).map(|_| None)?,
    };
    let hibernated = inside.as_ref().and_then(|inside| match &inside.facts().state {
        State::Hibernated(why) => Some(why.as_str()),
        _ => None,
    });
    Ok(holder.hold(hibernated))
}

/// Why a partition of the type `kind` is not to be relied on, if nothing on it agrees with its type.
pub fn claim(kind: &str) -> String {
    format!(
        "its partition type is '{kind}', but nothing of that kind is found on it; if the type is wrong, change it with sfdisk --part-type"
    )
}

/// Sum of 16-bit little-endian words.
fn sum_u16(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|word| u16::from_le_bytes([word[0], word[1]]));
    words.fold(0, u16::wrapping_add)
}

/// Sum of 32-bit little-endian words, with what overflows.
fn sum_u32(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    words.map(u64::from).fold(0, u64::wrapping_add)
}
