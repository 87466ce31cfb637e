//! File systems of guests: what they are, in which state, and which bytes of their volume they use.
//!
//! Invariants:
//! - nothing is written; a journal is replayed in memory;
//! - fail closed: what is not understood in full has a [`State`] other than `Clean` or `JournalPending`, or
//!   [`FileSystem::used_map`] fails with the reason, and the volume is then copied whole.
//!
//! Absent on purpose: containers and partition tables, policy, I/O other than [`block::ReadAt`].

use std::sync::Arc;

use block::{Error, ReadAt, Result};
use extent::{Extent, File, Volume, VolumeSpan};

pub use browse::{
    Attribute, Browse, Contents, EachEntry, NamedStream, Node, NodeKind, Special, Target, Time, Unix,
};
pub use catalog::{Catalog, CatalogStream, Doubt, PathWalk, paths};
pub use doubtful::in_doubt;
pub use files::{
    FileExtent, FileId, FileKind, FileName, FileStream, FileVisitor, Fragments, PieceState, StreamName,
};
#[cfg(feature = "mutants")]
pub use mutant::Mutant;
pub use probe::Scope;
pub use rearrange::{Edits, Mobility, Patch, Rearrange, Relocation, Relocations, Rewritten, StreamVisitor};
pub use shadow_copy::ShadowCopy;

mod acl;
mod ahead;
mod bits;
mod browse;
pub mod btrfs;
mod catalog;
mod clusters;
mod coalesced;
mod digest;
mod dos_time;
mod doubtful;
pub mod exfat;
pub mod ext;
pub mod fat;
mod fault;
mod files;
pub mod holder;
#[cfg(feature = "mutants")]
mod mutant;
pub mod ntfs;
mod opened;
mod pieces;
mod probe;
mod rearrange;
mod shadow_copy;
pub mod signature;
pub mod swap;
mod unpack;
mod uses;
mod utf16;
pub mod xfs;

/// A volume to read from: cached by the caller, so that small reads are cheap. Structures that are read once
/// and in bulk (the MFT, inode tables) may be read in large pieces.
pub type Source = Arc<dyn ReadAt<Volume>>;

/// In which state a volume is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// Unmounted, consistent as far as opening it could tell.
    Clean,
    /// Needs its journal replayed, which was done in memory: as good as clean.
    JournalPending(String),
    /// Not unmounted cleanly.
    Dirty(String),
    /// Its guest is hibernated: memory that is not here refers to it.
    Hibernated(String),
    /// Encrypted.
    Encrypted(String),
    /// Uses something Leandisk does not know.
    Unsupported(String),
    /// Contradicts itself, or a checksum failed.
    Inconsistent(String),
}

impl State {
    /// One word for JSON.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::JournalPending(_) => "needs-recovery",
            Self::Dirty(_) => "dirty",
            Self::Hibernated(_) => "hibernated",
            Self::Encrypted(_) => "encrypted",
            Self::Unsupported(_) => "unsupported",
            Self::Inconsistent(_) => "inconsistent",
        }
    }

    /// Why the used map must not be relied on; `None` if it may.
    pub fn doubt(&self) -> Option<&str> {
        match self {
            Self::Clean | Self::JournalPending(_) => None,
            Self::Dirty(why)
            | Self::Hibernated(why)
            | Self::Encrypted(why)
            | Self::Unsupported(why)
            | Self::Inconsistent(why) => Some(why),
        }
    }

    /// The error that says why the volume is not relied on.
    pub(crate) fn refusal(&self) -> Error {
        let why = self.doubt().unwrap_or("it was not understood");
        match self {
            Self::Unsupported(_) => Error::unsupported(why),
            Self::Inconsistent(_) => Error::corrupt(why),
            _ => Error::refused(why),
        }
    }
}

/// What is known of a volume from a few reads.
#[derive(Clone, Debug)]
pub struct Facts {
    /// `ntfs`, `ext2`, `ext3`, `ext4`, `fat12`, `fat16`, `fat32`, `exfat`, `xfs`, `btrfs`, `swap`, or a name such as `luks2`, `bitlocker`.
    pub filesystem: String,
    /// Its label. Untrusted text.
    pub label: Option<String>,
    /// Its UUID or serial number.
    pub uuid: Option<String>,
    /// The unit of allocation.
    pub cluster_bytes: Option<u64>,
    /// Bytes that the file system manages; the volume may be larger.
    pub size_bytes: u64,
    /// Free bytes as its own counters say.
    pub free_bytes: Option<u64>,
    /// Its state.
    pub state: State,
    /// Whatever else a person may want to know, such as `("version", "3.1")`.
    pub details: Vec<(&'static str, String)>,
}

impl Facts {
    /// What stays while files move: the same text for the same volume.
    pub fn identity(&self) -> String {
        let Self { filesystem, label, uuid, cluster_bytes, size_bytes, .. } = self;
        format!("{:?}", (filesystem, label, uuid, cluster_bytes, size_bytes))
    }
}

/// What a span of a volume is to its guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Holds something, or may.
    Used,
    /// Free: its contents mean nothing.
    Free,
    /// The contents of a page file or of swap space: they mean nothing once the guest is off.
    Swap,
    /// A log that was emptied: nothing in it means anything, but it must read as this byte throughout, which
    /// tells its file system so.
    EmptyLog(u8),
}

/// How far a used map is checked before it is believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    /// Only whether there is one, as far as a few reads can tell: for `info`. What needs more reads is `Used` in such a map.
    Glance,
    /// What the volume's maps of its free space say, unchecked: for figures.
    Quick,
    /// Against every structure that owns clusters: for `copy`.
    Full,
}

/// Which bytes of a volume its guest uses. Answers by window, so that memory does not grow with the volume.
pub trait UsedMap: Send + Sync {
    /// The uses of consecutive spans that cover `span` exactly, in order. What lies past the file system's
    /// end, or outside its bitmap, is `Used`.
    fn uses(&self, span: VolumeSpan) -> Result<Vec<Extent<Volume, Use>>>;

    /// Bytes that are `Used` for nothing but the snapshots which the volume keeps of itself.
    fn kept_for_shadow_copies_bytes(&self) -> Result<u64> {
        Ok(0)
    }
}

/// A file system that was recognised.
pub trait FileSystem: Send + Sync {
    /// What it is.
    fn facts(&self) -> &Facts;

    /// Its used map. Any doubt is an error, whose message is the reason that the user sees: `Corrupt`,
    /// `Unsupported`, or `Refused` if the guest turns out to be hibernated. Not to be asked if
    /// [`State::doubt`] has a reason; fails then, too.
    fn used_map(&self, check: Check) -> Result<Box<dyn UsedMap>>;

    /// As [`Self::used_map`], without regard to what only [`Self::shadow_copies`] need: they do not survive.
    fn used_map_without_shadow_copies(&self, check: Check) -> Result<Box<dyn UsedMap>> {
        self.used_map(check)
    }

    /// The snapshots that the volume keeps of itself, oldest first, as far as its list of them can be read.
    fn shadow_copies(&self) -> &[ShadowCopy] {
        &[]
    }

    /// Shows `visitor` every file, stream and name in one pass over the metadata; the contents of files are not
    /// read. A file that is not understood is a doubt, told to the visitor, and so is what keeps the pass from going
    /// on; only a read that fails is an error. Also for volumes in doubt, as far as their structures hold:
    /// nothing is to be left out or moved by what this finds there.
    fn scan_files(&self, _visitor: &mut dyn FileVisitor) -> Result<()> {
        Err(Error::unsupported(format!("the files of {} are not listed yet", self.facts().filesystem)))
    }

    /// A stream of a file, to be read: holes, and what was never written, as zeros. `Unsupported` if the bytes that are there are
    /// not what the guest reads: compressed, encrypted, kept elsewhere. Fails as [`Self::used_map`] does on a volume in doubt.
    fn open_stream(&self, _file: FileId, _name: StreamName<'_>) -> Result<Box<dyn ReadAt<File>>> {
        Err(Error::unsupported(format!("the files of {} are not read yet", self.facts().filesystem)))
    }

    /// Its directories and files one by one, also of a volume in doubt as far as its structures hold.
    fn browse(&self) -> Result<Box<dyn Browse + '_>> {
        match self.facts().state.doubt() {
            Some(_) => Err(self.facts().state.refusal()),
            None => Err(Error::unsupported(format!("the files of {} are not read", self.facts().filesystem))),
        }
    }

    /// Calls `each` with the free spans of the volume as its bitmaps say, unchecked, ascending and coalesced, also
    /// across block groups. What the bitmaps do not speak of is not free.
    fn each_free_span(&self, _each: &mut dyn FnMut(VolumeSpan)) -> Result<()> {
        Err(Error::unsupported(format!("the free space of {} is not listed yet", self.facts().filesystem)))
    }

    /// What is needed to lay its files elsewhere. `Refused`, `Unsupported` or `Corrupt` with the reason if that must not
    /// be done, above all if its state is anything but clean, or the full check fails.
    fn rearrange(&self) -> Result<Box<dyn Rearrange>> {
        Err(Error::unsupported(format!("the files of {} are not moved", self.facts().filesystem)))
    }

    /// The same volume with what its open log says joined in, where that is not done unless it is asked for; `None` if there is nothing
    /// to join in. A log that is not understood makes a volume in doubt.
    fn log_joined(&self) -> Result<Option<Box<dyn FileSystem>>> {
        Ok(None)
    }

    /// What the guest's kernel reads to come to the record of a file, where that is known: one read after the other, in this order. All of it is
    /// cached then, and records that lie there are read no more.
    fn record_reads(&self, _file: FileId) -> Result<Vec<VolumeSpan>> {
        Ok(Vec::new())
    }

    /// How many contiguous runs `extents` are, by the rule of the tools of this file system.
    fn fragments(&self) -> Fragments {
        Fragments::of_adjacent()
    }
}

/// Recognises what is on a volume: what holds it, else what it contains. `None` if nothing is known of it. A volume that bears a
/// known signature but is broken is recognised, with its state telling.
pub fn open(source: &Source) -> Result<Option<Box<dyn FileSystem>>> {
    match holder::find(source, Scope::Partition)?.first() {
        Some(holder) => holder::hold(holder, source).map(Some),
        None => open_contents(source),
    }
}

/// As [`open`], of a volume that nothing holds: whoever calls it has asked [`holder::find`].
pub fn open_contents(source: &Source) -> Result<Option<Box<dyn FileSystem>>> {
    for open in [ntfs::open, ext::open, swap::open, fat::open, exfat::open, xfs::open, btrfs::open] {
        let Some(found) = open(source)? else { continue };
        let Some(other) = beside(source, &found.facts().filesystem)? else { return Ok(Some(found)) };
        let reason = format!("it has superblocks of both {} and {other}", found.facts().filesystem);
        return Ok(Some(in_doubt(
            &*found,
            format!("{reason}; remove the one that is a leftover with wipefs"),
        )));
    }
    signature::open(source)
}

/// What has a superblock on the volume besides the file system `name`, which has one.
pub fn another(source: &Source, name: &str) -> Result<Option<String>> {
    match open_contents(source)? {
        Some(found) if found.facts().filesystem != name => Ok(Some(found.facts().filesystem.clone())),
        _ => beside(source, name),
    }
}

/// Which file system's superblock is on the volume besides that of `found`.
fn beside(source: &Source, found: &str) -> Result<Option<String>> {
    if found == "ntfs" && ext::has_superblock(source)? {
        return Ok(Some("ext".into()));
    }
    if found != "swap" && swap::has_signature(source, swap::PAGE_BYTES_MAX)? {
        return Ok(Some("swap".into()));
    }
    if !found.starts_with("fat")
        && let Some(name) = fat::boot_sector(source)?
    {
        return Ok(Some(name.into()));
    }
    if found != "exfat" && exfat::has_boot_sector(source)? {
        return Ok(Some("exfat".into()));
    }
    if found != "xfs" && xfs::has_superblock(source)? {
        return Ok(Some("xfs".into()));
    }
    if found != "btrfs" && btrfs::has_superblock(source)? {
        return Ok(Some("btrfs".into()));
    }
    signature::beside(source)
}
