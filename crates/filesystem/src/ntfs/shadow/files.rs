//! The files in `System Volume Information` that hold shadow copies and their catalog.

use block::{Error, Result};
use extent::{ExtentSet, Span, Volume, VolumeOffset};

use super::catalog::{Guid, StoreRecord};
use super::corrupt::CorruptShadowCopy;
use super::layout::{BLOCK_BYTES, NAME_END};
use crate::fault;
use crate::ntfs::index::Directory;
use crate::ntfs::layout::{ATTR_DATA, RECORD_IS_DIRECTORY};
use crate::ntfs::mft::Mft;
use crate::ntfs::record::{FileReference, RecordNumber, utf16_text};
use crate::ntfs::roots::stream_spans;
use crate::ntfs::stream::Stream;
use crate::shadow_copy::guid_text;

/// Where the files lie.
const FOLDER: &str = "System Volume Information";

/// What was found there.
#[derive(Default)]
pub(super) struct Files {
    /// The catalog's.
    catalog: Option<FileReference>,
    /// The stores', with the names before the identifier that all have.
    stores: Vec<(String, FileReference)>,
}

impl Files {
    /// Looks the files up by their names.
    pub(super) fn find(mft: &Mft) -> Result<Self> {
        let mut files = Self::default();
        let root = mft.system_record(RecordNumber::ROOT)?;
        let Some(folder) = Directory::open(mft, &root.view())?.find(FOLDER)? else { return Ok(files) };
        let folder = mft.base_record(folder)?;
        if folder.view().flags() & RECORD_IS_DIRECTORY == 0 {
            return Ok(files);
        }
        Directory::open(mft, &folder.view())?.each_entry(|reference, name| {
            files.add(&utf16_text(name), reference);
            Ok(())
        })?;
        Ok(files)
    }

    fn add(&mut self, name: &str, file: FileReference) {
        match store_of(name) {
            Some(store) if store.is_empty() => self.catalog = Some(file),
            Some(store) => self.stores.push((store, file)),
            None => {}
        }
    }

    /// Whether there is a file of a store.
    pub(super) fn has_store(&self) -> bool {
        !self.stores.is_empty()
    }

    /// Clusters of these files that read as zeros, whatever is in them: what lies past the initialized size. Stores are written
    /// beneath the file system, so that this is all of them. A file that is not understood has none.
    pub(super) fn unwritten(&self, mft: &Mft) -> Result<ExtentSet<Volume>> {
        let mut spans = Vec::new();
        for file in self.stores.iter().map(|(_, file)| *file).chain(self.catalog) {
            match data_of(mft, file) {
                Ok(Some(stream)) => {
                    let written = stream.initialized_bytes().div_ceil(mft.geometry.cluster_bytes);
                    spans.extend(stream_spans(mft, &stream, written));
                }
                Ok(None) => {}
                Err(error) => _ = fault::of_volume(error)?,
            }
        }
        Ok(spans.into_iter().collect())
    }

    /// Fails if there is the file of a store that is not in the catalog.
    pub(super) fn require_listed(&self, stores: &[&StoreRecord]) -> Result<()> {
        let names: Vec<_> = stores.iter().map(|store| name_of(&store.id)).collect();
        match self.stores.iter().find(|(name, _)| !names.contains(name)) {
            None => Ok(()),
            Some((name, _)) => Err(Error::unsupported(format!(
                "a shadow copy's file that no catalog on this volume lists: {name}{NAME_END}"
            ))),
        }
    }

    /// Where the catalog's file lies.
    pub(super) fn catalog(&self, mft: &Mft) -> Result<StoreFile> {
        let file = self.catalog.ok_or_else(|| Error::corrupt(CorruptShadowCopy::NoCatalogFile))?;
        StoreFile::open(mft, file, "the file of the catalog of shadow copies".into())
    }

    /// Where a store's file lies.
    pub(super) fn store(&self, mft: &Mft, store: &StoreRecord) -> Result<StoreFile> {
        let what = format!("the file of the shadow copy {}", guid_text(&store.id));
        let name = name_of(&store.id);
        let named: Vec<_> = self.stores.iter().filter(|(found, _)| *found == name).collect();
        match named[..] {
            [(_, file)] if *file == store.file => StoreFile::open(mft, *file, what),
            [(_, file)] => Err(Error::corrupt(CorruptShadowCopy::File { what }).field(
                "record",
                file.number,
                format!("{}", store.file.number),
            )),
            _ => Err(Error::corrupt(CorruptShadowCopy::NoStoreFile { store: guid_text(&store.id) })),
        }
    }
}

/// What is in a file, if it is in clusters as it is.
fn data_of(mft: &Mft, file: FileReference) -> Result<Option<Stream>> {
    let record = mft.base_record(file)?;
    let stream = mft.stream(&record.view(), ATTR_DATA, "")?;
    Ok(stream.filter(|stream| !stream.is_resident() && stream.flags() == 0))
}

/// What a name says before the identifier with which it must end, in lower case.
fn store_of(name: &str) -> Option<String> {
    let name = name.to_lowercase();
    let store = name.strip_suffix(NAME_END)?;
    (store.is_empty() || store.len() == NAME_END.len()).then(|| store.to_owned())
}

/// What the name of a store's file begins with.
fn name_of(id: &Guid) -> String {
    format!("{{{}}}", guid_text(id))
}

/// Where the file of a store, or of the catalog, lies.
pub(super) struct StoreFile {
    what: String,
    places: ExtentSet<Volume>,
}

impl StoreFile {
    fn open(mft: &Mft, file: FileReference, what: String) -> Result<Self> {
        let Some(stream) = data_of(mft, file)? else {
            return Err(Error::corrupt(CorruptShadowCopy::File { what }).field(
                "data",
                "not plain",
                "in clusters, as they are",
            ));
        };
        Ok(Self { what, places: stream_spans(mft, &stream, 0).into_iter().collect() })
    }

    /// Bytes on the volume.
    pub(super) fn allocated_bytes(&self) -> u64 {
        self.places.total_bytes()
    }

    /// Where it lies.
    pub(super) fn places(&self) -> &ExtentSet<Volume> {
        &self.places
    }

    /// Fails unless the block at `at` is a part of the file.
    pub(super) fn require_block(&self, at: VolumeOffset) -> Result<()> {
        let inside = Span::checked(at, BLOCK_BYTES).is_some_and(|block| {
            let held: u64 = self.places.within(block).map(|span| span.len_bytes()).sum();
            held == BLOCK_BYTES
        });
        let what = CorruptShadowCopy::File { what: self.what.clone() };
        let error = || Error::corrupt(what).at(at).field("a block", "elsewhere", "in the file");
        inside.then_some(()).ok_or_else(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_told_by_their_names() {
        let store = store_of("{6F3CA0E6-2F51-11E4-8251-000C29B4B7E1}{3808876B-C176-4E48-B7AE-04046E6CC752}");
        assert_eq!(store.unwrap(), "{6f3ca0e6-2f51-11e4-8251-000c29b4b7e1}");
        assert_eq!(store_of("{3808876b-c176-4e48-b7ae-04046e6cc752}").unwrap(), "");
        assert_eq!(store_of("old{3808876b-c176-4e48-b7ae-04046e6cc752}"), None);
        assert_eq!(store_of("tracking.log"), None);
    }
}
