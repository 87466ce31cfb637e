//! Which blob lies where: read whole, and kept in some sixty bytes a blob.

use block::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::Id;
use crate::pack::{BlobKind, Place, Stored};
use crate::storage::Kind;
use crate::unlocked::Unlocked;

/// The longest blob that is believed: restic's are of 8 MiB, trees of as many megabytes as a folder has ten thousands of entries.
pub(crate) const BLOB_BYTES_MAX: u32 = 1 << 30;

/// An index as it is stored.
#[derive(Default, Serialize, Deserialize, Debug)]
pub(crate) struct IndexFile {
    packs: Vec<PackEntry>,
}

#[derive(Serialize, Deserialize, Debug)]
struct PackEntry {
    id: Id,
    blobs: Vec<BlobEntry>,
}

#[derive(Serialize, Deserialize, Debug)]
struct BlobEntry {
    id: Id,
    #[serde(rename = "type")]
    kind: BlobKind,
    offset: u32,
    length: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uncompressed_length: Option<u32>,
}

impl IndexFile {
    pub(crate) fn push(&mut self, pack: Id, blobs: &[Stored]) {
        let blobs = blobs.iter().map(|blob| BlobEntry {
            id: blob.id,
            kind: blob.kind,
            offset: blob.offset,
            length: blob.len_bytes,
            uncompressed_length: blob.uncompressed_bytes,
        });
        self.packs.push(PackEntry { id: pack, blobs: blobs.collect() });
    }

    pub(crate) fn pack_count(&self) -> usize {
        self.packs.len()
    }
}

/// All blobs of a repository.
#[derive(Default, Debug)]
pub struct Index {
    packs: Vec<Id>,
    /// Sorted by kind and ID.
    blobs: Vec<(Stored, u32)>,
}

impl Index {
    pub(crate) fn load(repository: &Unlocked) -> Result<Self> {
        let mut index = Self::default();
        for name in repository.storage().names(Kind::Index)? {
            let file: IndexFile = repository.load_json(Kind::Index, &name)?;
            for PackEntry { id, blobs } in file.packs {
                let pack =
                    u32::try_from(index.packs.len()).map_err(|_| Error::unsupported("too many packs"))?;
                index.packs.push(id);
                for BlobEntry { id, kind, offset, length, uncompressed_length } in blobs {
                    if length.max(uncompressed_length.unwrap_or(0)) > BLOB_BYTES_MAX {
                        return Err(Error::corrupt(format!("blob {id} of index {name}"))
                            .field("length", u64::from(length), format!("at most {BLOB_BYTES_MAX}"))
                            .path(repository.storage().place()));
                    }
                    let stored = Stored {
                        id,
                        kind,
                        offset,
                        len_bytes: length,
                        uncompressed_bytes: uncompressed_length,
                    };
                    index.blobs.push((stored, pack));
                }
            }
        }
        index.blobs.sort_unstable_by_key(|(stored, _)| (stored.kind, stored.id));
        index.blobs.dedup_by_key(|(stored, _)| (stored.kind, stored.id));
        Ok(index)
    }

    /// Where a blob lies.
    pub fn find(&self, kind: BlobKind, id: Id) -> Option<Place> {
        let at = self.blobs.binary_search_by_key(&(kind, id), |(stored, _)| (stored.kind, stored.id)).ok()?;
        let (stored, pack) = self.blobs[at];
        Some(Place { pack: self.packs[usize::try_from(pack).ok()?], stored })
    }

    /// How many blobs there are.
    pub fn blob_count(&self) -> usize {
        self.blobs.len()
    }
}
