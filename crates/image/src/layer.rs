//! One image file of a chain, as its format's parser presents it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::sync::Arc;

use block::{Error, HostFile, Result, Run, RunState};
use extent::{Extent, ExtentSet, HostOffset, Span, Virtual, VirtualOffset, VirtualSpan};
use serde::{Deserialize, Serialize};

use crate::Format;

/// One fact of a format for people, such as `("creator", "win ")`. Values come from the disk: untrusted text.
pub type Fact = (&'static str, String);

/// What a layer says of itself without its data being read.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The container format.
    pub format: Format,
    /// The variant in the format's own words: `dynamic`, `streamOptimized`, `v3`.
    pub variant: String,
    /// Size of the virtual disk. Any value, not always whole sectors.
    pub virtual_bytes: u64,
    /// Sector size that the guest sees: 512 or 4096.
    pub sector_bytes: u32,
    /// The unit in which the format allocates, if it does.
    pub cluster_bytes: Option<u64>,
    /// What a child must name to be this layer's child: a UUID, a content ID. `None` if the format has none.
    pub id: Option<String>,
    /// Why the contents cannot be read or trusted, though the metadata can: encrypted, marked corrupt.
    pub unreadable: Option<String>,
    /// Number of internal snapshots.
    pub snapshot_count: u32,
    /// Whatever else a person may want to know.
    pub details: Vec<Fact>,
}

/// What an image holds besides the disk as the guest sees it, by name. Untrusted text.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Extras {
    /// Internal snapshots.
    pub snapshots: Vec<String>,
    /// Persistent bitmaps, in which changes for incremental backups are noted.
    pub bitmaps: Vec<String>,
}

/// A persistent bitmap of an image: which parts of the disk changed since it was made, or last cleared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirtyBitmap {
    /// Its name. Untrusted text.
    pub name: String,
    /// Bytes of the disk that a bit stands for.
    pub granularity_bytes: u64,
    /// Whether it is to be believed.
    pub state: BitmapState,
}

/// What a persistent bitmap is good for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BitmapState {
    /// Every change is noted in it.
    Recording,
    /// It says what changed up to a moment; later changes are not noted.
    Stopped,
    /// A program that had the image open ended without storing it: changes may be missing.
    Inconsistent,
}

/// A disk of a snapshot in a backup repository, which an overlay stands on. All of it as the overlay says: untrusted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotReference {
    /// The repository's ID.
    pub repository: [u8; 32],
    /// The snapshot's ID when the overlay was made. It gets another one when its tags change.
    pub snapshot: [u8; 32],
    /// The hash of what the snapshot holds, which stays.
    pub tree: [u8; 32],
    /// The disk's file in the snapshot.
    pub disk: String,
}

impl SnapshotReference {
    /// All that does not change with the snapshot's tags, as text.
    pub fn lasting(&self) -> String {
        let hex = |id: &[u8; 32]| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("{}:{}:{}", hex(&self.repository), hex(&self.tree), self.disk)
    }

    /// Whether both mean the same bytes.
    pub fn is_same_disk(&self, other: &Self) -> bool {
        (self.repository, self.tree, &self.disk) == (other.repository, other.tree, &other.disk)
    }
}

impl fmt::Display for SnapshotReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |id: &[u8; 32]| id[..4].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (snapshot, repository) = (short(&self.snapshot), short(&self.repository));
        write!(f, "'{}' of snapshot {snapshot} in repository {repository}", self.disk.escape_debug())
    }
}

/// What a differencing layer says of its parent.
#[derive(Clone, Default, Debug)]
pub struct ParentReference {
    /// The names to try, in order, as the image holds them with separators made `/`. Untrusted.
    pub names: Vec<String>,
    /// The parent's format, where the child states it.
    pub format: Option<Format>,
    /// The parent's [`Facts::id`] must be one of these; anything will do if empty.
    pub ids: Vec<String>,
    /// The parent is no file, but a disk of a snapshot.
    pub snapshot: Option<SnapshotReference>,
}

/// Why an image opens another file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The layer below.
    Parent,
    /// A file that holds the same layer's data: a VMDK extent, a QCOW2 data file.
    Data,
}

/// The one gate through which an image's own references open files.
pub trait Resolver: Send + Sync {
    /// Opens the file that the image `from` calls `name`, for reading.
    ///
    /// `Refused` if it is not granted, is a protocol string, or does not exist (the message tells which, and
    /// names it); `Io` if the machine failed.
    fn open(&self, from: &dyn HostFile, name: &str, purpose: Purpose) -> Result<Arc<dyn HostFile>>;

    /// Opens the disk of a snapshot that the overlay `from` stands on. `Refused` unless it was opened for that.
    fn open_snapshot(&self, from: &dyn HostFile, parent: &SnapshotReference) -> Result<Arc<dyn HostFile>> {
        Err(Error::refused(format!("is an overlay of {parent}, and holds only what was written since"))
            .hint("leandisk serve SNAPSHOT:DISK --repo REPO --overlay FILE")
            .path(from.name()))
    }

    /// The names of all files in the folder of `from`; none by default. For VDI, whose images know their parent's UUID but not its
    /// name, and to see which images need a disk.
    fn siblings(&self, _from: &dyn HostFile) -> Result<Vec<OsString>> {
        Ok(Vec::new())
    }

    /// Opens one of [`Resolver::siblings`], as [`Resolver::open`] does. A name need not be text.
    fn open_sibling(&self, from: &dyn HostFile, name: &OsStr) -> Result<Arc<dyn HostFile>> {
        match name.to_str() {
            Some(name) => self.open(from, name, Purpose::Parent),
            None => Err(Error::unsupported("a file's name that is not UTF-8").path(from.name())),
        }
    }
}

/// Grants nothing: for an image that stands alone.
#[derive(Clone, Copy, Debug)]
pub struct NoFiles;

impl Resolver for NoFiles {
    fn open(&self, _from: &dyn HostFile, name: &str, _purpose: Purpose) -> Result<Arc<dyn HostFile>> {
        Err(Error::refused("an image that should stand alone names another file").path(name))
    }
}

/// What lies under a span of a virtual disk, for who wants to write there without anything being allocated in the
/// image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// A place of its own, which can be overwritten.
    Allocated,
    /// The same, but the host only reserved storage for it, and nothing was written there: it reads as zeros.
    Reserved,
    /// A place of its own in the image, which can be overwritten, but a hole of the host's file: writing there makes
    /// that take more of the host's storage.
    Unallocated,
    /// No place in the image: a hole, or marked as zeros. Cannot be written.
    Absent,
    /// Something that must not be overwritten: compressed, or shared with another user of the image.
    Fixed,
}

impl Backing {
    /// Of a run of a layer that shares nothing.
    pub(crate) fn of(state: RunState) -> Self {
        match state {
            RunState::Data { .. } => Self::Allocated,
            RunState::Compressed { .. } => Self::Fixed,
            RunState::Hole | RunState::Zero => Self::Absent,
        }
    }

    /// Whether it can be overwritten.
    pub fn is_writable(self) -> bool {
        matches!(self, Self::Allocated | Self::Reserved | Self::Unallocated)
    }
}

/// Appends `backing` over `span`, joined to the last one where that is the same.
pub(crate) fn push_backing(all: &mut Vec<Extent<Virtual, Backing>>, span: VirtualSpan, backing: Backing) {
    match all.last_mut() {
        _ if span.is_empty() => {}
        Some(last) if last.state == backing && last.span.end() == span.start() => {
            last.span = Span::between(last.span.start(), span.end());
        }
        _ => all.push(Extent::new(span, backing)),
    }
}

/// Bytes of the image's first file that tell that the contents changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Renewal {
    /// Where they go.
    pub at: HostOffset,
    /// What goes there; as long as what is there.
    pub bytes: Vec<u8>,
}

/// One image of a chain, validated.
///
/// A layer reads no guest data itself unless it is compressed: [`Layer::map`] says where the bytes lie and
/// [`crate::Chain`] reads them.
pub trait Layer: Send + Sync {
    /// What it is.
    fn facts(&self) -> &Facts;

    /// What it holds that no copy of the disk has.
    fn extras(&self) -> Extras {
        Extras::default()
    }

    /// Its persistent bitmaps. `Corrupt` if they cannot be told.
    fn bitmaps(&self) -> Result<Vec<DirtyBitmap>> {
        Ok(Vec::new())
    }

    /// What changed by the word of the persistent bitmap `name`, up to its granularity. `Refused` if there is no such bitmap, or it is
    /// inconsistent.
    fn dirty(&self, name: &str) -> Result<ExtentSet<Virtual>> {
        Err(Error::refused(format!(
            "{} images have no persistent bitmaps, and so none called {name:?}",
            self.facts().format
        ))
        .hint("convert the disk to qcow2, and add one with 'qemu-img bitmap --add'"))
    }

    /// The host files it consists of; [`block::FileIndex`] in its runs counts into this.
    fn files(&self) -> &[Arc<dyn HostFile>];

    /// The runs that cover `span` exactly, in order; `span` lies within the virtual disk. `Hole` means that
    /// the parent answers (zeros if there is none). A place past its file's end is `Corrupt`.
    fn map(&self, span: VirtualSpan) -> Result<Vec<Run>>;

    /// Fills `buf` from `at`, where [`Layer::map`] says that all of it is compressed.
    fn read_compressed(&self, at: VirtualOffset, _buf: &mut [u8]) -> Result<()> {
        Err(Error::unsupported(format!("{} has no compressed data", self.facts().format)).at(at))
    }

    /// The parent, if it is a differencing layer.
    fn parent(&self) -> Option<ParentReference> {
        None
    }

    /// Fails with the reason if the contents must not be changed in place. Looks at the tables as a whole, so that
    /// afterwards every place that [`Self::backing`] calls allocated is known to belong to nothing else.
    fn check_editable(&self) -> Result<()>;

    /// Fails with the reason if a program that wrote to the image ended without closing it, and left a mark of that. Of a
    /// change of our own that was interrupted this is no reason not to finish it.
    fn check_closed(&self) -> Result<()> {
        Ok(())
    }

    /// What lies under `span`, which is within the virtual disk: extents that cover it exactly, in order. The host's
    /// holes are not looked at. By default every place that [`Self::map`] tells belongs to its run alone.
    fn backing(&self, span: VirtualSpan) -> Result<Vec<Extent<Virtual, Backing>>> {
        let mut all = Vec::new();
        for run in self.map(span)? {
            push_backing(&mut all, run.span, Backing::of(run.state));
        }
        Ok(all)
    }

    /// What must be written before contents change, so that others see that they did: one after the other, each on
    /// stable storage before the next. A crash after any of them, or within one, leaves a valid image. New identities
    /// come from `identity_seed`, which is another one each time.
    fn renewals(&self, _identity_seed: u128) -> Result<Vec<Renewal>> {
        Ok(Vec::new())
    }
}
