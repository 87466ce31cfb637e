//! One image file of a chain, as its format's parser presents it.

use std::sync::Arc;

use block::{Error, HostFile, Result, Run};
use extent::{VirtualOffset, VirtualSpan};

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

/// What a differencing layer says of its parent.
#[derive(Clone, Debug)]
pub struct ParentReference {
    /// The names to try, in order, as the image holds them with separators made `/`. Untrusted.
    pub names: Vec<String>,
    /// The parent's format, where the child states it.
    pub format: Option<Format>,
    /// The parent's [`Facts::id`] must be one of these; anything will do if empty.
    pub ids: Vec<String>,
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

    /// The names of the files in the folder of `from`, as [`Resolver::open`] takes them: for VDI, whose images
    /// know their parent's UUID but not its name. At most 4096 are looked at; none by default.
    fn siblings(&self, _from: &dyn HostFile) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// One image of a chain, validated.
///
/// A layer reads no guest data itself unless it is compressed: [`Layer::map`] says where the bytes lie and
/// [`crate::Chain`] reads them.
pub trait Layer: Send + Sync {
    /// What it is.
    fn facts(&self) -> &Facts;

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
}
