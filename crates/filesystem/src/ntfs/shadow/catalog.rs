//! The header of shadow copies, and the catalog that it leads to.

use block::{Error, ReadAt, Result, read_struct};
use extent::VolumeOffset;
use zerocopy::FromBytes;

use super::blocks::Blocks;
use super::corrupt::CorruptShadowCopy;
use super::layout::{
    CATALOG_ENTRY_BYTES, CopyEntry, ENTRY_COPY, ENTRY_EMPTY, ENTRY_STORE, ENTRY_UNUSED, HEADER_OFFSET,
    IDENTIFIER, RECORD_CATALOG, RECORD_VOLUME_HEADER, StoreEntry, VolumeHeader,
};
use crate::Source;
use crate::ntfs::record::FileReference;
use crate::shadow_copy::guid_text;

/// Versions of the header.
const VERSIONS: [u32; 2] = [1, 2];

/// More copies than Windows keeps of a volume, which are 512.
const COPY_COUNT_MAX: usize = 1024;

/// A GUID as it is on the disk.
pub(super) type Guid = [u8; 16];

/// Reads the header as it is; `None` if there is none.
pub(super) fn raw_header(source: &Source) -> Result<Option<VolumeHeader>> {
    let at = VolumeOffset::new(HEADER_OFFSET);
    if source.len_bytes() < HEADER_OFFSET + size_of::<VolumeHeader>() as u64 {
        return Ok(None);
    }
    let header: VolumeHeader = read_struct(source, at, "the header of shadow copies")?;
    Ok((header.identifier == IDENTIFIER).then_some(header))
}

/// Where the catalog begins, if the header is one that is understood; `None` if there is no catalog.
pub(super) fn catalog_offset(header: &VolumeHeader) -> Result<Option<u64>> {
    let name = "the header of shadow copies";
    if !VERSIONS.contains(&header.version.get()) {
        return Err(Error::unsupported(name).field("version", header.version, "1 or 2"));
    }
    if header.record_type != RECORD_VOLUME_HEADER {
        return Err(Error::corrupt(CorruptShadowCopy::Header).field(
            "record type",
            header.record_type,
            RECORD_VOLUME_HEADER,
        ));
    }
    if header.current_offset != HEADER_OFFSET {
        return Err(Error::corrupt(CorruptShadowCopy::Header).field(
            "its own offset",
            header.current_offset,
            HEADER_OFFSET,
        ));
    }
    if header.volume_identifier != header.storage_volume_identifier {
        return Err(Error::unsupported("shadow copies that are stored on another volume"));
    }
    Ok(Some(header.catalog_offset.get()).filter(|offset| *offset != 0))
}

/// A copy of this volume.
#[derive(Clone, Debug)]
pub(super) struct CopyRecord {
    pub(super) store_id: Guid,
    pub(super) volume_bytes: u64,
    pub(super) sequence: u64,
    /// In units of 100 ns since 1601 (UTC).
    pub(super) created: u64,
}

/// A store on this volume. Its offsets are not yet checked.
#[derive(Clone, Debug)]
pub(super) struct StoreRecord {
    pub(super) id: Guid,
    pub(super) header_offset: u64,
    pub(super) block_list_offset: u64,
    pub(super) range_list_offset: u64,
    pub(super) bitmap_offset: u64,
    pub(super) previous_bitmap_offset: Option<u64>,
    pub(super) file: FileReference,
}

/// What the catalog lists, in its order.
#[derive(Default)]
pub(super) struct Catalog {
    copies: Vec<CopyRecord>,
    stores: Vec<StoreRecord>,
    /// Where its blocks begin.
    pub(super) places: Vec<VolumeOffset>,
}

impl Catalog {
    /// Reads all of its blocks.
    pub(super) fn read(blocks: &mut Blocks<'_>, first: u64) -> Result<Self> {
        let mut catalog = Self::default();
        blocks.each("the catalog of shadow copies", first, RECORD_CATALOG, |at, contents| {
            catalog.places.push(at);
            contents.chunks_exact(CATALOG_ENTRY_BYTES).try_for_each(|entry| catalog.add(entry, at))
        })?;
        Ok(catalog)
    }

    fn add(&mut self, entry: &[u8], at: VolumeOffset) -> Result<()> {
        let name = "an entry of the catalog of shadow copies";
        let (copy, _) = CopyEntry::ref_from_prefix(entry).expect("a whole entry");
        let (store, _) = StoreEntry::ref_from_prefix(entry).expect("a whole entry");
        match copy.entry_type.get() {
            ENTRY_EMPTY if entry.iter().all(|byte| *byte == 0) => {}
            ENTRY_EMPTY => {
                return Err(Error::corrupt(CorruptShadowCopy::CatalogEntry).at(at).field(
                    "an empty entry",
                    "with contents",
                    "zeros",
                ));
            }
            ENTRY_UNUSED => {}
            ENTRY_COPY => self.copies.push(copy_record(copy)),
            ENTRY_STORE => self.stores.push(store_record(store)),
            other => return Err(Error::unsupported(name).at(at).field("type", other, "0 to 3")),
        }
        if self.copies.len().max(self.stores.len()) > COPY_COUNT_MAX {
            return Err(Error::unsupported("a catalog of shadow copies").field(
                "entries",
                "more",
                COPY_COUNT_MAX,
            ));
        }
        Ok(())
    }

    /// The copies, oldest first, each with its store if that is on this volume.
    pub(super) fn copies(&self) -> Vec<(&CopyRecord, Option<&StoreRecord>)> {
        let store = |id| self.stores.iter().find(|store| store.id == id);
        let mut copies: Vec<_> = self.copies.iter().map(|copy| (copy, store(copy.store_id))).collect();
        copies.sort_by_key(|(copy, _)| (copy.created, copy.sequence));
        copies
    }

    /// The copies, oldest first, with their stores. Fails if either is without the other.
    pub(super) fn paired(&self) -> Result<Vec<(&CopyRecord, &StoreRecord)>> {
        if let Some(store) = self.stores.iter().find(|store| self.count_of(&store.id) != (1, 1)) {
            let (copies, stores) = self.count_of(&store.id);
            let store = guid_text(&store.id);
            return Err(match copies {
                0 => Error::unsupported(format!(
                    "the store of shadow copies {store} holds a copy of another volume"
                )),
                _ => Error::corrupt(CorruptShadowCopy::Entries { store, copies, stores }),
            });
        }
        let store =
            |(copy, store): (&CopyRecord, Option<&StoreRecord>)| store.is_none().then(|| copy.clone());
        if let Some(copy) = self.copies().into_iter().find_map(store) {
            let id = guid_text(&copy.store_id);
            return Err(Error::unsupported(format!("the shadow copy {id} has no store on this volume")));
        }
        Ok(self.copies().into_iter().filter_map(|(copy, store)| Some((copy, store?))).collect())
    }

    /// How many copies and stores there are of one identifier.
    fn count_of(&self, id: &Guid) -> (usize, usize) {
        let copies = self.copies.iter().filter(|copy| copy.store_id == *id).count();
        (copies, self.stores.iter().filter(|store| store.id == *id).count())
    }
}

fn copy_record(raw: &CopyEntry) -> CopyRecord {
    CopyRecord {
        store_id: raw.store_identifier,
        volume_bytes: raw.volume_size.get(),
        sequence: raw.sequence_number.get(),
        created: raw.creation_time.get(),
    }
}

fn store_record(raw: &StoreEntry) -> StoreRecord {
    StoreRecord {
        id: raw.store_identifier,
        header_offset: raw.header_offset.get(),
        block_list_offset: raw.block_list_offset.get(),
        range_list_offset: raw.range_list_offset.get(),
        bitmap_offset: raw.bitmap_offset.get(),
        previous_bitmap_offset: Some(raw.previous_bitmap_offset.get()).filter(|offset| *offset != 0),
        file: FileReference::from_raw(raw.file_reference.get()),
    }
}
