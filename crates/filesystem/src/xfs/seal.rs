//! Checksums, and what metadata say of themselves: whose they are, and where they lie.

use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

/// Whether the CRC-32C at `crc_at`, taken with zeros in its place, is that of `bytes`.
pub(super) fn crc_holds(bytes: &[u8], crc_at: usize) -> bool {
    let Some((before, rest)) = bytes.split_at_checked(crc_at) else { return false };
    let Ok((stored, behind)) = U32::read_from_prefix(rest) else { return false };
    let sum = crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(before), &[0; 4]), behind);
    cfg!(fuzzing) || stored.get() == sum
}

/// Puts the CRC-32C of `bytes`, taken with zeros in its place, at `crc_at`; nothing if that is past the end.
pub(super) fn seal(bytes: &mut [u8], crc_at: usize) {
    let place = crc_at..crc_at + size_of::<U32>();
    let Some(stored) = bytes.get_mut(place.clone()) else { return };
    stored.fill(0);
    let sum = crc32c::crc32c(bytes);
    bytes[place].copy_from_slice(&sum.to_le_bytes());
}
