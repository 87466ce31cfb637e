//! Disks in use: images written anywhere by many threads at once, growing and shrinking as needed.
//!
//! What formats share is here: [`allocating`] (images that allocate in units: reading, writing, freeing, committing, moving), [`tables`] (the
//! tables' pages in memory), [`places`] and [`tracts`] (where new units go), [`flat`] (images whose bytes have their places from the start). What is a
//! format's own is in its folder, in `live.rs`.
//!
//! Invariants:
//! - on the storage nothing ever refers to data or tables that are not on stable storage, whatever moment the machine stops;
//! - what was freed is used for something else only after its freeing is on stable storage;
//! - parents are read and never written;
//! - once a flush failed, every later operation fails: what the storage holds is not known any more;
//! - a host without room ends requests, not disks: what could not be written is in memory still, and goes with the next flush.
//!
//! Absent on purpose: locks between programs, policies on reserving storage ([`Placement`] is where they are told),
//! repair of images: what is marked dirty or corrupt is refused.

mod allocating;
mod flat;
mod places;
mod tables;
mod tracts;
mod watched;

use std::sync::Arc;

use block::{Error, FileIndex, HostFile, LiveDisk, ReadAt, Result, TargetFile};
use extent::{Host, HostSpan};

use crate::{Chain, Format, qcow2, vdi, vhd, vhdx, vmdk};

pub(crate) use allocating::{
    AllocatingDisk, Container, Expand, Marks, Movable, Place, Shape, Storage, Tidy, To, Unit, WriteOut,
};
pub(crate) use flat::{Flat, Part};
pub(crate) use mutants::broken;
pub use places::Arrangement;
pub(crate) use places::{Bases, CutOff, HOST_BYTES_MAX, Taken, Votes};
pub(crate) use tables::{Missed, STAGES, Snapshot, Stage, Tables, index};
pub(crate) use tracts::Grid;
pub(crate) use watched::Watched;

/// Is told where new units lie before they are written, so that the host's storage can be reserved. It is called by the
/// thread that writes, and must not use the disk.
pub trait Placement: Send + Sync {
    /// `span` of the top layer's file `file` now belongs to the disk.
    fn placed(&self, file: FileIndex, span: HostSpan);
}

/// How to use a disk.
#[derive(Clone, Default)]
pub struct LiveOptions {
    /// See [`Placement`].
    pub placement: Option<Arc<dyn Placement>>,
    /// Where new units go.
    pub arrangement: Arrangement,
    /// What has a place keeps it: a discard changes nothing there, and zeros do not free it.
    pub keeps_places: bool,
    /// Blocks of a VDI that are discarded lose their places, and leave gaps: for who fills these by
    /// [`LiveDisk::relocate`].
    pub leaves_gaps: bool,
    /// Nothing is reserved so that the image can be closed on a full host: for a change that leaves a journal for `recover` if it
    /// ends early, and must not leave the image larger.
    pub reserves_nothing: bool,
}

/// Takes a disk into use. `files` are the top layer's files, opened for writing, in the order of its
/// [`crate::Layer::files`]; `chain` was opened from the same files and is not to be used any more.
///
/// A pending VHDX log is applied to the file here. `Refused` if the image cannot be written without harm, `Unsupported` if
/// Leandisk does not write its kind.
pub fn open(
    chain: Chain,
    files: Vec<Arc<dyn TargetFile>>,
    options: LiveOptions,
) -> Result<Box<dyn LiveDisk>> {
    let name = chain.files()[0].name().to_owned();
    open_any(chain, files, options).map_err(|error| error.path(name))
}

fn open_any(
    chain: Chain,
    files: Vec<Arc<dyn TargetFile>>,
    options: LiveOptions,
) -> Result<Box<dyn LiveDisk>> {
    chain.check_readable()?;
    let expected = chain.links()[0].layer.files().len();
    if files.len() != expected {
        return Err(Error::invalid("disk in use").field("number of files", files.len(), expected));
    }
    match chain.facts().format {
        Format::Raw => Ok(Box::new(Flat::whole(chain, files, options))),
        Format::Qcow2 => qcow2::open_live(chain, files, options),
        Format::Vhdx => vhdx::open_live(chain, files, options),
        Format::Vhd => vhd::open_live(chain, files, options),
        Format::Vdi => vdi::open_live(chain, files, options),
        Format::Vmdk => vmdk::open_live(chain, files, options),
    }
}

/// How an image gives storage back when what it holds is discarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GivesBack {
    /// Its cluster, grain or block; `None` if its bytes have their places from the start.
    pub unit_bytes: Option<u64>,
    /// Whether a unit leaves the tables and its place becomes free; else the place stays, and its storage alone goes.
    pub frees_units: bool,
    /// What lies before each unit's data and goes with it: the bitmap of a VHD's block.
    pub head_bytes: u64,
    /// Where they keep their places: whether they can lose them if others fill the gaps, see [`LiveOptions::leaves_gaps`].
    pub can_leave_gaps: bool,
}

/// How the top layer of `chain` gives storage back.
pub fn gives_back(chain: &Chain) -> GivesBack {
    let facts = chain.facts();
    let Some(unit_bytes) = facts.cluster_bytes else {
        return GivesBack { unit_bytes: None, frees_units: false, head_bytes: 0, can_leave_gaps: false };
    };
    let frees_units = match facts.format {
        Format::Raw | Format::Vdi => false,
        Format::Vhdx => facts.variant != vhdx::FIXED,
        Format::Vhd | Format::Vmdk | Format::Qcow2 => true,
    };
    let head_bytes = match facts.format {
        Format::Vhd => vhd::bitmap_bytes(unit_bytes),
        _ => 0,
    };
    let can_leave_gaps = facts.format == Format::Vdi && facts.variant == vdi::DYNAMIC;
    GivesBack { unit_bytes: Some(unit_bytes), frees_units, head_bytes, can_leave_gaps }
}

/// Where a file of the top layer, now of `len_bytes`, ends at most once all of the disk is written, as far as that can be
/// told: what is reserved past it would be given back.
pub fn end_max(chain: &Chain, len_bytes: u64) -> u64 {
    let GivesBack { unit_bytes: Some(unit_bytes), head_bytes, .. } = gives_back(chain) else {
        return len_bytes;
    };
    let unit_count = chain.len_bytes().div_ceil(unit_bytes);
    match chain.facts().format {
        Format::Qcow2 => qcow2::end_max(len_bytes, unit_count, unit_bytes),
        Format::Raw | Format::Vhd | Format::Vhdx | Format::Vdi | Format::Vmdk => {
            len_bytes.saturating_add(unit_count.saturating_mul(unit_bytes.saturating_add(head_bytes)))
        }
    }
}

/// A file in use, to be parsed.
pub(crate) struct InUse {
    pub(crate) file: Arc<dyn TargetFile>,
    pub(crate) name: String,
}

impl ReadAt<Host> for InUse {
    block::forward!(self, self.file => len_bytes, read_at);
}

impl HostFile for InUse {
    fn name(&self) -> &str {
        &self.name
    }

    fn allocated_bytes(&self) -> Result<u64> {
        Ok(self.len_bytes())
    }
}
