//! NTFS: recognises a volume, tells its state, says which of its clusters are used, lists its files, and says what
//! changes if these lie elsewhere.
//!
//! Invariants:
//! - a structure is believed only after its update-sequence fixups held and its counts were bounded;
//! - any doubt is a state other than clean, or an error from the used map, never a guess; files are listed in spite of
//!   it, since nothing is left out by what they show;
//! - opening costs a handful of reads and one of `$Bitmap`; memory does not grow with the volume.
//!
//! Absent on purpose: replaying `$LogFile` (a volume that needs it is dirty), encrypted contents, writing.

mod bitmap;
mod boot;
mod browse;
mod contents;
mod corrupt;
mod data;
mod edits;
mod files;
mod gather;
mod growth;
mod index;
mod layout;
mod logfile;
mod mft;
mod names;
mod own_files;
mod rearrange;
mod record;
mod rewrite;
mod rewritten;
mod roots;
mod runs;
mod scan;
mod sectors;
mod shadow;
mod stream;
mod used;
mod volume;
mod wof;

use std::sync::Arc;

use block::{Error, ReadAt, Result};
use extent::{File, VolumeSpan};

use crate::opened::state_of;
use crate::{
    Browse, Check, Facts, FileId, FileSystem, FileVisitor, Rearrange, ShadowCopy, Source, State, StreamName,
    UsedMap,
};
pub use corrupt::Corrupt;
pub use shadow::CorruptShadowCopy;

use bitmap::Bitmap;
use boot::Geometry;
use mft::Mft;
use rearrange::NtfsRearrange;
use scan::Unowned;
use used::{NtfsUsedMap, Shadow};

/// A volume with a bitmap larger than this is not counted when it is opened: 2 TiB with clusters of 4 KiB.
const COUNTED_BITMAP_BYTES_MAX: u64 = 64 << 20;

struct Ntfs {
    facts: Facts,
    /// Absent if the boot sector or `$MFT` is broken.
    mft: Option<Arc<Mft>>,
    /// What its state tells in words, if it is broken.
    broken: Option<Arc<Error>>,
    shadow_copies: Vec<ShadowCopy>,
}

/// Opens the volume if it is one. What is broken is told in its state; only a read that fails is an error.
pub fn open(source: &Source) -> Result<Option<Box<dyn FileSystem>>> {
    if !boot::is_ntfs(source)? {
        return Ok(None);
    }
    let mut facts = Facts {
        filesystem: "ntfs".into(),
        label: None,
        uuid: None,
        cluster_bytes: None,
        size_bytes: source.len_bytes(),
        free_bytes: None,
        state: State::Clean,
        details: Vec::new(),
    };
    let mut mft = None;
    let opened = open_mft(source, &mut facts);
    let judged = opened.and_then(|opened| judge(mft.insert(Arc::new(opened)), &mut facts));
    let mut broken = None;
    facts.state = match judged {
        Ok(state) => state,
        Err(error) => {
            let Some(state) = state_of(&error) else { return Err(error) };
            broken = Some(Arc::new(error));
            state
        }
    };
    let shadow_copies = mft.as_ref().map(|mft| shadow::list(mft)).transpose()?.unwrap_or_default();
    Ok(Some(Box::new(Ntfs { facts, mft, broken, shadow_copies })))
}

fn open_mft(source: &Source, facts: &mut Facts) -> Result<Mft> {
    let geometry = boot::read(source)?;
    tell_geometry(&geometry, facts);
    Mft::open(source, &geometry)
}

/// The state of a volume, and what its own files say of it.
fn judge(mft: &Mft, facts: &mut Facts) -> Result<State> {
    let geometry = &mft.geometry;
    let volume = volume::read(mft)?;
    facts.label = volume.label.clone();
    facts.details.insert(0, ("version", volume.version()));
    volume.require_known_version()?;
    let bitmap = Bitmap::of_clusters(mft)?;
    if geometry.bitmap_bytes() <= COUNTED_BITMAP_BYTES_MAX {
        facts.free_bytes = Some(bitmap.clear_count()? * geometry.cluster_bytes);
    }
    let hibernated = roots::read(mft)?.hibernated;
    let unclean = volume.doubt().map_or_else(|| volume::log_doubt(mft), |why| Ok(Some(why)))?;
    Ok(match (hibernated, unclean) {
        (Some(why), _) => State::Hibernated(why),
        (None, Some(why)) => State::Dirty(why),
        (None, None) => State::Clean,
    })
}

fn tell_geometry(geometry: &Geometry, facts: &mut Facts) {
    facts.size_bytes = geometry.size_bytes;
    facts.cluster_bytes = Some(geometry.cluster_bytes);
    facts.uuid = Some(format!("{:016X}", geometry.serial));
    facts.details.push(("cluster", format!("{} bytes", geometry.cluster_bytes)));
    facts.details.push(("sector", format!("{} bytes", geometry.sector_bytes)));
    facts.details.push(("file record", format!("{} bytes", geometry.record_bytes)));
}

impl FileSystem for Ntfs {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn used_map(&self, check: Check) -> Result<Box<dyn UsedMap>> {
        let shadows = shadow::Shadows::find(self.clean_mft()?)?;
        let map = self.live_map(check)?;
        let mft = self.clean_mft()?;
        let shadow = match shadows {
            None => Shadow::None,
            Some(_) if check == Check::Glance => Shadow::Unread,
            Some(shadows) => Shadow::Needs(shadows.needs(mft)?),
        };
        Ok(Box::new(NtfsUsedMap { shadow, ..map }))
    }

    fn used_map_without_shadow_copies(&self, check: Check) -> Result<Box<dyn UsedMap>> {
        Ok(Box::new(self.live_map(check)?))
    }

    fn shadow_copies(&self) -> &[ShadowCopy] {
        &self.shadow_copies
    }

    fn scan_files(&self, visitor: &mut dyn FileVisitor) -> Result<()> {
        match &self.mft {
            Some(mft) => files::scan(mft, visitor),
            None => {
                visitor.doubt(None, self.refusal().to_string());
                Ok(())
            }
        }
    }

    fn open_stream(&self, file: FileId, name: StreamName<'_>) -> Result<Box<dyn ReadAt<File>>> {
        Ok(contents::open(self.clean_mft()?, file, name)?)
    }

    fn browse(&self) -> Result<Box<dyn Browse + '_>> {
        let mft = self.mft.as_ref().ok_or_else(|| self.refusal())?;
        Ok(Box::new(browse::Files(mft)))
    }

    fn each_free_span(&self, each: &mut dyn FnMut(VolumeSpan)) -> Result<()> {
        let mft = self.mft.as_ref().ok_or_else(|| self.refusal())?;
        files::each_free_span(mft, &Bitmap::of_clusters(mft)?, each)
    }

    fn rearrange(&self) -> Result<Box<dyn Rearrange>> {
        Ok(Box::new(NtfsRearrange::open(self.clean_mft()?)?))
    }
}

impl Ntfs {
    /// What the volume uses as it is now.
    fn live_map(&self, check: Check) -> Result<NtfsUsedMap> {
        let mft = self.clean_mft()?;
        let clusters = Bitmap::of_clusters(mft)?.loaded()?;
        let roots = roots::read(mft)?;
        if check == Check::Full {
            scan::check(mft, &clusters, &roots.known, Unowned::Used)?;
        }
        let empty_log = volume::empty_log(mft)?;
        let (geometry, swap) = (mft.geometry, roots.swap);
        Ok(NtfsUsedMap { geometry, clusters, swap, empty_log, shadow: Shadow::None })
    }

    /// `$MFT`, if the volume is clean.
    fn clean_mft(&self) -> Result<&Arc<Mft>> {
        match self.facts.state.doubt() {
            Some(_) => Err(self.refusal()),
            None => Ok(self.mft.as_ref().expect("a volume without $MFT is not clean")),
        }
    }

    /// Why the volume is not relied on.
    fn refusal(&self) -> Error {
        let error = self.facts.state.refusal();
        match &self.broken {
            Some(broken) => error.because(broken.clone()),
            None => error,
        }
    }
}
