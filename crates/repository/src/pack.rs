//! Packs: sealed blobs one behind the other, then a sealed header that lists them, then its length.

use block::Result;
use serde::{Deserialize, Serialize};

use crate::Id;
use crate::crypto::Key;

/// What a blob is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BlobKind {
    /// A part of a file.
    Data,
    /// A directory, as JSON.
    Tree,
}

/// A blob in a pack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stored {
    pub(crate) id: Id,
    pub(crate) kind: BlobKind,
    pub(crate) offset: u32,
    /// Sealed.
    pub(crate) len_bytes: u32,
    /// `None` if it is not compressed.
    pub(crate) uncompressed_bytes: Option<u32>,
}

impl Stored {
    /// The type byte, then lengths in little endian, then the ID.
    fn write_header(&self, out: &mut Vec<u8>) {
        let kind = u8::from(self.kind == BlobKind::Tree) + 2 * u8::from(self.uncompressed_bytes.is_some());
        out.push(kind);
        out.extend_from_slice(&self.len_bytes.to_le_bytes());
        if let Some(bytes) = self.uncompressed_bytes {
            out.extend_from_slice(&bytes.to_le_bytes());
        }
        out.extend_from_slice(&self.id.0);
    }
}

/// Where a blob lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub(crate) pack: Id,
    pub(crate) stored: Stored,
}

/// A pack that is being filled.
#[derive(Default, Debug)]
pub(crate) struct Filling {
    bytes: Vec<u8>,
    blobs: Vec<Stored>,
}

impl Filling {
    pub(crate) fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blobs.is_empty()
    }

    /// Seals `contents`, which are compressed if `uncompressed_bytes` says so, behind the others.
    pub(crate) fn push(
        &mut self,
        key: &Key,
        (id, kind): (Id, BlobKind),
        contents: &[u8],
        uncompressed_bytes: Option<u32>,
    ) -> Result<()> {
        let offset = self.bytes.len();
        key.seal_into(contents, &mut self.bytes)?;
        let len = self.bytes.len() - offset;
        let number = |of| u32::try_from(of).expect("a pack is shorter than its limit and a blob");
        self.blobs.push(Stored {
            id,
            kind,
            offset: number(offset),
            len_bytes: number(len),
            uncompressed_bytes,
        });
        Ok(())
    }

    /// Takes over the blobs of another one.
    pub(crate) fn append(&mut self, other: Self) {
        let base = u32::try_from(self.bytes.len()).expect("a pack is shorter than its limit and a blob");
        self.bytes.extend_from_slice(&other.bytes);
        self.blobs.extend(other.blobs.into_iter().map(|blob| Stored { offset: blob.offset + base, ..blob }));
    }

    /// The file, and what is in it.
    pub(crate) fn finish(mut self, key: &Key) -> Result<(Vec<u8>, Vec<Stored>)> {
        let mut header = Vec::new();
        self.blobs.iter().for_each(|blob| blob.write_header(&mut header));
        let start = self.bytes.len();
        key.seal_into(&header, &mut self.bytes)?;
        let len = u32::try_from(self.bytes.len() - start).expect("some ten bytes a blob");
        self.bytes.extend_from_slice(&len.to_le_bytes());
        Ok((self.bytes, self.blobs))
    }
}
