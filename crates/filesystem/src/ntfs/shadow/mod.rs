//! Volume shadow copies: snapshots that Windows keeps on the volume itself. A store holds what was overwritten since its
//! copy was made; all else is read through newer stores from the volume as it is now, also where that is free by now.
//!
//! Invariants:
//! - what a copy needs is kept: what its bitmap does not call unused, what was moved for it, and what `$Bitmap` as the copy
//!   shows it calls used. That a store holds a block is no reason to leave anything out: a descriptor that is wrong would cost
//!   data, one that is not heeded costs room;
//! - all of it is understood, or the volume is in doubt.
//!
//! Absent on purpose: copies that lie on other volumes; moving files of a volume that has copies.

mod blocks;
mod catalog;
mod corrupt;
mod files;
mod layout;
mod store;
mod view;

use std::sync::Arc;

use block::{Error, ErrorKind, ReadAt, Result};
use extent::{ExtentSet, Span, Volume, VolumeOffset, VolumeSpan};

use super::bitmap::Bitmap;
use super::boot;
use super::mft::Mft;
use crate::shadow_copy::{ShadowCopy, filetime_text, guid_text};
use crate::{Source, fault};
pub use corrupt::CorruptShadowCopy;

use blocks::Blocks;
use catalog::{Catalog, CopyRecord, StoreRecord};
use files::{Files, StoreFile};
use layout::BLOCK_BYTES;
use store::{DESCRIPTOR_COUNT_MAX, StoreMap};
use view::View;

/// Windows makes no shadow copies of larger volumes: 64 TiB.
const VOLUME_BYTES_MAX: u64 = 64 << 40;

/// Fails with `Refused` if there are shadow copies.
pub(super) fn require_none(mft: &Mft) -> Result<()> {
    let has_catalog = catalog::raw_header(&mft.source)?.is_some_and(|header| header.catalog_offset != 0);
    if has_catalog || Files::find(mft)?.has_store() {
        let hint = "delete them in Windows first: vssadmin delete shadows";
        return Err(Error::refused("the volume has shadow copies, which break if files move").hint(hint));
    }
    Ok(())
}

/// The shadow copies that the catalog lists, oldest first. What is wrong with one is told with it; a catalog that is not
/// understood lists none.
pub(super) fn list(mft: &Mft) -> Result<Vec<ShadowCopy>> {
    let listed = catalog::raw_header(&mft.source)?.map(|header| catalog::catalog_offset(&header));
    let Some(Ok(Some(first))) = listed else { return Ok(Vec::new()) };
    let mut blocks = Blocks::new(&mft.source);
    let (catalog, files) =
        match Catalog::read(&mut blocks, first).and_then(|catalog| Ok((catalog, Files::find(mft)?))) {
            Ok(found) => found,
            Err(error) => return fault::of_volume(error).map(|_| Vec::new()),
        };
    catalog.copies().into_iter().map(|(copy, store)| shown(mft, &mut blocks, &files, copy, store)).collect()
}

fn shown(
    mft: &Mft,
    blocks: &mut Blocks<'_>,
    files: &Files,
    copy: &CopyRecord,
    store: Option<&StoreRecord>,
) -> Result<ShadowCopy> {
    let mut shown = ShadowCopy {
        id: None,
        set_id: None,
        store_id: guid_text(&copy.store_id),
        created: filetime_text(copy.created),
        size_bytes: copy.volume_bytes,
        store_bytes: None,
        machine: None,
        doubt: None,
    };
    let Some(store) = store else {
        shown.doubt = Some("it has no store on this volume".into());
        return Ok(shown);
    };
    let found = files.store(mft, store).and_then(|file| {
        shown.store_bytes = Some(file.allocated_bytes());
        store::information(blocks, store, &file)
    });
    match found {
        Ok(information) => {
            shown.id = Some(guid_text(&information.copy_id));
            shown.set_id = Some(guid_text(&information.set_id));
            shown.machine = information.machine;
        }
        Err(error) => shown.doubt = Some(fault::of_volume(error)?.to_string()),
    }
    Ok(shown)
}

/// The shadow copies of a volume, whose catalog and files were found and checked.
pub(super) struct Shadows {
    /// Oldest first.
    stores: Vec<(StoreRecord, StoreFile)>,
}

impl Shadows {
    /// Finds them; `None` if there are none. Reads little: no list of a store. What is not understood is an error.
    pub(super) fn find(mft: &Mft) -> Result<Option<Self>> {
        let first = match catalog::raw_header(&mft.source)? {
            None => None,
            Some(header) => catalog::catalog_offset(&header)?,
        };
        let files = Files::find(mft)?;
        let Some(first) = first else {
            files.require_listed(&[])?;
            return Ok(None);
        };
        if mft.source.len_bytes() > VOLUME_BYTES_MAX {
            return Err(Error::unsupported("shadow copies on a volume of more than 64 TiB"));
        }
        let mut blocks = Blocks::new(&mft.source);
        let catalog = Catalog::read(&mut blocks, first)?;
        let file = files.catalog(mft)?;
        catalog.places.iter().try_for_each(|at| file.require_block(*at))?;
        let paired = catalog.paired()?;
        files.require_listed(&paired.iter().map(|(_, store)| *store).collect::<Vec<_>>())?;
        let mut stores = Vec::new();
        for (_, store) in paired {
            let file = files.store(mft, store)?;
            store::information(&mut blocks, store, &file)?;
            stores.push((store.clone(), file));
        }
        Ok(Some(Self { stores }).filter(|found| !found.stores.is_empty()))
    }

    /// Reads what the copies need of the volume.
    pub(super) fn needs(&self, mft: &Mft) -> Result<Needs> {
        let mut blocks = Blocks::new(&mft.source);
        let mut unneeded: ExtentSet<Volume> =
            [VolumeSpan::from_zero(mft.source.len_bytes())].into_iter().collect();
        let mut maps = Vec::new();
        let mut needed = Vec::new();
        let mut count_left = DESCRIPTOR_COUNT_MAX;
        for (store, file) in &self.stores {
            unneeded = unneeded.intersect(&store::unused(&mut blocks, store, file)?);
            let mut map = StoreMap::read(&mut blocks, store, file, &mut count_left)?;
            let moved_to = std::mem::take(&mut map.moved_to);
            needed.extend(moved_to.into_iter().map(|at| Span::new(VolumeOffset::new(at), BLOCK_BYTES)));
            needed.extend(file.places().iter());
            maps.push(map);
        }
        unneeded = unneeded.subtract(&needed.into_iter().collect());
        let stores = Arc::new(maps);
        let mut unclaimed = unneeded.clone();
        for (index, (store, _)) in self.stores.iter().enumerate() {
            let view = View { source: mft.source.clone(), stores: stores.clone(), index };
            let free = free_of(&(Arc::new(view) as Source)).map_err(|error| of_copy(store, error))?;
            unclaimed = unclaimed.intersect(&free);
        }
        Ok(Needs { unneeded, unclaimed })
    }
}

/// What shadow copies need of a volume, told by what they do not.
pub(super) struct Needs {
    /// What the stores need nothing of.
    pub(super) unneeded: ExtentSet<Volume>,
    /// Of that, what is free in `$Bitmap` of every copy as well. Windows leaves page files and the like out of copies, so that
    /// this is less.
    pub(super) unclaimed: ExtentSet<Volume>,
}

/// What is free on a volume, by its `$Bitmap`, or belongs to its shadow copies' files and reads as zeros in them.
fn free_of(source: &Source) -> Result<ExtentSet<Volume>> {
    if !boot::is_ntfs(source)? {
        return Err(Error::corrupt(CorruptShadowCopy::NoVolume));
    }
    let mft = Mft::open(source, &boot::read(source)?)?;
    let mut free = ExtentSet::new();
    let mut at = 0;
    Bitmap::of_clusters(&mft)?.each_run(0, mft.geometry.cluster_count, |is_used, end| {
        if !is_used {
            free.push(mft.geometry.span_of(at, end - at));
        }
        at = end;
    })?;
    // The volume may have grown since.
    free.push(Span::between(
        VolumeOffset::new(mft.geometry.clustered_bytes()),
        VolumeOffset::new(source.len_bytes()),
    ));
    match Files::find(&mft).and_then(|files| files.unwritten(&mft)) {
        Ok(unwritten) => Ok(free.union(&unwritten)),
        Err(error) => fault::of_volume(error).map(|_| free),
    }
}

/// An error of reading what a copy shows. A failing read stays one.
fn of_copy(store: &StoreRecord, error: Error) -> Error {
    let what = |error: &Error| format!("the shadow copy {} shows: {error}", guid_text(&store.id));
    match error.kind() {
        ErrorKind::Corrupt => Error::corrupt(what(&error)).because(error),
        ErrorKind::Unsupported => Error::unsupported(what(&error)).because(error),
        _ => error,
    }
}
