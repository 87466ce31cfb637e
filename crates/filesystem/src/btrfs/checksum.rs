//! The four checksums that a volume may have of its metadata.

use blake2::digest::consts::U32;
use blake2::{Blake2b, Digest};
use sha2::Sha256;

use super::layout::CHECKSUM_BYTES;

/// Which one (`enum btrfs_csum_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Checksum {
    Crc32c,
    XxHash64,
    Sha256,
    Blake2b,
}

impl Checksum {
    pub(super) fn of_number(number: u16) -> Option<Self> {
        Some(match number {
            0 => Self::Crc32c,
            1 => Self::XxHash64,
            2 => Self::Sha256,
            3 => Self::Blake2b,
            _ => return None,
        })
    }

    /// As `btrfs inspect-internal dump-super` names it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::XxHash64 => "xxhash64",
            Self::Sha256 => "sha256",
            Self::Blake2b => "blake2",
        }
    }

    fn of(self, bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
        let mut sum = [0; CHECKSUM_BYTES];
        match self {
            Self::Crc32c => sum[..4].copy_from_slice(&crc32c::crc32c(bytes).to_le_bytes()),
            Self::XxHash64 => {
                sum[..8].copy_from_slice(&xxhash_rust::xxh64::xxh64(bytes, 0).to_le_bytes());
            }
            Self::Sha256 => sum.copy_from_slice(&Sha256::digest(bytes)),
            Self::Blake2b => sum.copy_from_slice(&Blake2b::<U32>::digest(bytes)),
        }
        sum
    }

    fn len(self) -> usize {
        match self {
            Self::Crc32c => 4,
            Self::XxHash64 => 8,
            Self::Sha256 | Self::Blake2b => CHECKSUM_BYTES,
        }
    }

    /// Whether `bytes` begin with the checksum of what follows. What a short one leaves of its field means nothing.
    pub(super) fn holds(self, bytes: &[u8]) -> bool {
        let Some((stored, rest)) = bytes.split_at_checked(CHECKSUM_BYTES) else { return false };
        let len = self.len();
        cfg!(fuzzing) || stored[..len] == self.of(rest)[..len]
    }
}
