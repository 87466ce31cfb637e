//! NTFS: recognises a volume, tells its state, says which of its clusters are used, lists its files, and says what
//! changes if these lie elsewhere.
//!
//! Invariants:
//! - a structure is believed only after its update-sequence fixups held and its counts were bounded;
//! - any doubt is a state other than clean, or an error from the used map, never a guess; files are listed in spite of
//!   it, since nothing is left out by what they show;
//! - opening costs a handful of reads and one of `$Bitmap`; memory does not grow with the volume.
//!
//! Absent on purpose: replaying `$LogFile` (a volume that needs it is dirty; what its records name is joined in if that is asked
//! for), encrypted contents, writing.

mod bitmap;
mod boot;
mod browse;
mod contents;
mod corrupt;
mod crowded;
mod data;
mod edits;
mod extension;
mod files;
mod gather;
mod growth;
mod index;
mod layout;
mod log;
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
mod spread;
mod stream;
mod used;
mod volume;
mod wof;

use std::sync::Arc;

use block::{Error, ReadAt, Result};
use extent::{ExtentSet, File, Volume, VolumeSpan};

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
    /// That its log is open is all that makes it dirty.
    has_open_log: bool,
    /// What its log names, once that was joined in.
    joined: Option<Joined>,
}

/// What the log of a volume in use names.
struct Joined {
    clusters: ExtentSet<Volume>,
    /// No record of the log changes a file whose contents count as swap.
    keeps_swap: bool,
}

/// A state, and whether an open log alone is the reason for it.
struct Judged {
    state: State,
    has_open_log: bool,
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
    let mut has_open_log = false;
    facts.state = match judged {
        Ok(judged) => {
            has_open_log = judged.has_open_log;
            judged.state
        }
        Err(error) => {
            let Some(state) = state_of(&error) else { return Err(error) };
            broken = Some(Arc::new(error));
            state
        }
    };
    let shadow_copies = mft.as_ref().map(|mft| shadow::list(mft)).transpose()?.unwrap_or_default();
    Ok(Some(Box::new(Ntfs { facts, mft, broken, shadow_copies, has_open_log, joined: None })))
}

fn open_mft(source: &Source, facts: &mut Facts) -> Result<Mft> {
    let geometry = boot::read(source)?;
    tell_geometry(&geometry, facts);
    Mft::open(source, &geometry)
}

/// The state of a volume, and what its own files say of it.
fn judge(mft: &Mft, facts: &mut Facts) -> Result<Judged> {
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
    let doubt = volume.doubt();
    let log_doubt = if doubt.is_none() { volume::log_doubt(mft)? } else { None };
    let has_open_log = hibernated.is_none() && log_doubt.is_some();
    let state = match (hibernated, doubt.or(log_doubt)) {
        (Some(why), _) => State::Hibernated(why),
        (None, Some(why)) => State::Dirty(why),
        (None, None) => State::Clean,
    };
    Ok(Judged { state, has_open_log })
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
        if shadows.is_some() && self.joined.is_some() {
            return Err(Error::unsupported(
                "its log is open, and it keeps shadow copies, which are written past it",
            ));
        }
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
        Ok(contents::open(self.settled_mft()?, file, name)?)
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
        Ok(Box::new(NtfsRearrange::open(self.settled_mft()?)?))
    }

    fn log_joined(&self) -> Result<Option<Box<dyn FileSystem>>> {
        let Some(mft) = self.mft.as_ref().filter(|_| self.has_open_log) else { return Ok(None) };
        let facts = self.facts.clone();
        let joined = match join(mft, facts.clone()) {
            Ok((facts, joined)) => Self { facts, joined: Some(joined), ..self.unjoined(mft, None) },
            Err(error) => {
                let Some(state) = state_of(&error) else { return Err(error) };
                let facts = Facts { state, ..facts };
                Self { facts, ..self.unjoined(mft, Some(Arc::new(error))) }
            }
        };
        Ok(Some(Box::new(joined)))
    }
}

/// Reads the log of a volume that is in use, and tells what the volume is like with it.
fn join(mft: &Mft, mut facts: Facts) -> Result<(Facts, Joined)> {
    let why = facts.state.doubt().unwrap_or("its log is open").to_owned();
    let named = log::read(mft)?;
    let roots = roots::read(mft)?;
    let keeps_swap = !roots.known.iter().any(|record| named.changes(*record));
    facts.details.push(("log", format!("open, {} records joined in", named.record_count)));
    facts.state = State::JournalPending(format!("{why}; what its log names counts as used"));
    let joined = Joined { clusters: named.into_clusters(), keeps_swap };
    if let Some(free_bytes) = &mut facts.free_bytes {
        *free_bytes -= free_bytes_named(mft, &joined.clusters)?;
    }
    Ok((facts, joined))
}

/// Bytes of what the log names that the bitmap calls free.
fn free_bytes_named(mft: &Mft, named: &ExtentSet<Volume>) -> Result<u64> {
    let (bitmap, cluster_bytes) = (Bitmap::of_clusters(mft)?.loaded()?, mft.geometry.cluster_bytes);
    let mut count = 0;
    for span in named.iter() {
        let mut at = span.start().get() / cluster_bytes;
        bitmap.each_run(at, span.end().get() / cluster_bytes, |is_used, end| {
            count += if is_used { 0 } else { end - at };
            at = end;
        })?;
    }
    Ok(count * cluster_bytes)
}

impl Ntfs {
    /// What the volume uses as it is now.
    fn live_map(&self, check: Check) -> Result<NtfsUsedMap> {
        let mft = self.clean_mft()?;
        let clusters = Bitmap::of_clusters(mft)?.loaded()?;
        let roots = roots::read(mft)?;
        if let Some(joined) = &self.joined {
            return Self::joined_map(mft, clusters, roots, joined, check);
        }
        if check == Check::Full {
            scan::check(mft, &clusters, &roots.known, Unowned::Used)?;
        }
        let (empty_log, named) = (volume::empty_log(mft)?, ExtentSet::new());
        let (geometry, swap) = (mft.geometry, roots.swap);
        Ok(NtfsUsedMap { geometry, clusters, swap, empty_log, shadow: Shadow::None, named })
    }

    /// What the volume uses as it is now, or will once its guest has recovered it.
    fn joined_map(
        mft: &Mft,
        clusters: Bitmap,
        roots: roots::Roots,
        joined: &Joined,
        check: Check,
    ) -> Result<NtfsUsedMap> {
        if let Some(why) = roots.hibernated {
            return Err(Error::refused(why));
        }
        let named = joined.clusters.clone();
        if check == Check::Full {
            scan::check_in_use(mft, &clusters, &roots.known, &named)?;
        }
        // Clusters of a page file may be another file's by now.
        let swap = if joined.keeps_swap { roots.swap.subtract(&named) } else { ExtentSet::new() };
        let (geometry, empty_log) = (mft.geometry, ExtentSet::new());
        Ok(NtfsUsedMap { geometry, clusters, swap, empty_log, shadow: Shadow::None, named })
    }

    /// The same volume, of which nothing was joined in.
    fn unjoined(&self, mft: &Arc<Mft>, broken: Option<Arc<Error>>) -> Self {
        let (facts, shadow_copies) = (self.facts.clone(), self.shadow_copies.clone());
        Self { facts, mft: Some(mft.clone()), broken, shadow_copies, has_open_log: false, joined: None }
    }

    /// `$MFT` of a volume whose records are not to change by what its log says.
    fn settled_mft(&self) -> Result<&Arc<Mft>> {
        let mft = self.clean_mft()?;
        match &self.facts.state {
            State::JournalPending(why) => Err(Error::refused(why.clone())),
            _ => Ok(mft),
        }
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
