//! A repository whose key is known: what is stored in it by name, or as a blob in a pack.

use std::cell::RefCell;
use std::io::{ErrorKind as IoErrorKind, Read};
use std::sync::Arc;

use block::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use zstd::bulk::Decompressor;

use crate::Id;
use crate::crypto::{Key, NONCE_BYTES};
use crate::pack::Place;
use crate::storage::{Kind, Storage};

/// The most that a stored JSON file may become.
const JSON_BYTES_MAX: u64 = 1 << 30;
/// restic 0.14 and later compress at this level by default.
pub(crate) const ZSTD_LEVEL: i32 = 3;
/// What a compressed JSON file begins with.
const COMPRESSED: u8 = 2;

/// A repository whose key is known.
pub(crate) struct Unlocked {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) key: Key,
    /// 1 or 2; there is no compression in 1.
    pub(crate) version: u32,
    pub(crate) id: Id,
}

impl std::fmt::Debug for Unlocked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "repository {} at {}", self.id.short(), self.storage.place())
    }
}

pub(crate) fn missing(id: Id) -> Error {
    Error::corrupt(format!("blob {id} is in no index of the repository"))
        .hint("'restic check' looks at all of it")
}

pub(crate) fn to_json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::invalid(format!("as JSON: {error}")))
}

pub(crate) fn from_json<T: DeserializeOwned>(bytes: &[u8], kind: Kind, name: &str) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| Error::corrupt(format!("{} {name}: {error}", kind.word())))
}

impl Unlocked {
    pub(crate) fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    /// Whether blobs may be compressed.
    pub(crate) fn compresses(&self) -> bool {
        self.version >= 2
    }

    /// Stores a JSON file under the hash of what is stored; answers how many bytes that are as well.
    pub(crate) fn save_json(&self, kind: Kind, value: &impl Serialize) -> Result<(Id, u64)> {
        let mut plain = to_json(value)?;
        if self.compresses() {
            let compressed =
                zstd::bulk::compress(&plain, ZSTD_LEVEL).map_err(|error| Error::io("compress", error))?;
            plain = [&[COMPRESSED][..], &compressed].concat();
        }
        let sealed = self.key.seal(&plain)?;
        let id = Id::of(&sealed);
        self.storage.create(kind, &id.to_string(), &sealed)?;
        Ok((id, sealed.len() as u64))
    }

    /// `Corrupt` if it is not what its name says.
    pub(crate) fn load_json<T: DeserializeOwned>(&self, kind: Kind, name: &str) -> Result<T> {
        let load = || {
            let sealed = self.storage.read(kind, name)?;
            let corrupt = |what: &str| Error::corrupt(format!("{} {name} {what}", kind.word()));
            if Id::of(&sealed).to_string() != name {
                return Err(corrupt("is not what its name says"));
            }
            let plain = self.key.open(&sealed).ok_or_else(|| corrupt("does not decrypt"))?;
            let plain = match plain.first() {
                Some(&COMPRESSED) => {
                    decompressed(&plain[1..], JSON_BYTES_MAX).ok_or_else(|| corrupt("does not decompress"))?
                }
                _ => plain,
            };
            from_json(&plain, kind, name)
        };
        load().map_err(|error| error.path(self.storage.place()))
    }

    pub(crate) fn blob(&self, place: &Place) -> Result<Vec<u8>> {
        let Place { pack, stored } = place;
        let name = pack.to_string();
        let corrupt = |what: &str| {
            Error::corrupt(format!("blob {} in pack {pack} {what}", stored.id))
                .hint("'restic check --read-data' finds all that is broken")
                .path(self.storage.place())
        };
        let len = usize::try_from(stored.len_bytes).expect("bounded by the index");
        let sealed = self.storage.read_part(Kind::Pack, &name, u64::from(stored.offset), len);
        let mut sealed = sealed.map_err(|error| match error.io_source().map(std::io::Error::kind) {
            Some(IoErrorKind::NotFound | IoErrorKind::UnexpectedEof) => {
                corrupt("is not there").because(error)
            }
            _ => error,
        })?;
        let plain = self.key.open_in_place(&mut sealed).ok_or_else(|| corrupt("does not decrypt"))?;
        let plain = match stored.uncompressed_bytes {
            // In the memory that it is in already: blobs have megabytes, and fresh memory costs more than moving them.
            None => {
                let end = NONCE_BYTES + plain.len();
                sealed.truncate(end);
                sealed.drain(..NONCE_BYTES);
                sealed
            }
            Some(bytes) => inflated(plain, bytes).ok_or_else(|| corrupt("does not decompress"))?,
        };
        if Id::of(&plain) != stored.id {
            return Err(corrupt("is not what its ID says"));
        }
        Ok(plain)
    }
}

thread_local! {
    /// Its memory is a megabyte, and blobs are many.
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// `None` if it is no such stream, or not of that length.
fn inflated(bytes: &[u8], len_bytes: u32) -> Option<Vec<u8>> {
    let len = usize::try_from(len_bytes).ok()?;
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let mut decompressor = kept.take().or_else(|| Decompressor::new().ok())?;
        let plain = decompressor.decompress(bytes, len).ok();
        *kept = Some(decompressor);
        plain.filter(|plain| plain.len() == len)
    })
}

/// `None` if it is no such stream, or would be longer than allowed.
fn decompressed(bytes: &[u8], bytes_max: u64) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    let decoder = zstd::stream::read::Decoder::with_buffer(bytes).ok()?;
    decoder.take(bytes_max + 1).read_to_end(&mut plain).ok()?;
    (plain.len() as u64 <= bytes_max).then_some(plain)
}
