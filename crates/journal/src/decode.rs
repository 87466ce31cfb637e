//! Taking structs and bytes from the front of a slice.

use block::{Error, Result};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::corrupt::Corrupt;

/// The next struct.
pub(crate) fn next_struct<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    bytes: &mut &[u8],
) -> Result<T> {
    let (value, rest) = T::read_from_prefix(bytes).map_err(|_| too_short())?;
    *bytes = rest;
    Ok(value)
}

/// The next `len` bytes.
pub(crate) fn next_bytes<'a>(bytes: &mut &'a [u8], len: usize) -> Result<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(len).ok_or_else(too_short)?;
    *bytes = rest;
    Ok(taken)
}

fn too_short() -> Error {
    Error::corrupt(Corrupt::TooShort)
}

/// XXH3-128 of `bytes`, of which the 16 from `hole` on count as zeros.
pub(crate) fn digest_without(bytes: &[u8], hole: usize) -> [u8; 16] {
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    hasher.update(&bytes[..hole]);
    hasher.update(&[0; 16]);
    hasher.update(&bytes[hole + 16..]);
    hasher.digest128().to_le_bytes()
}
