//! The boot sector, validated into the volume's geometry.

use block::{Error, FieldValue, Result, read_struct};
use extent::{Space, Span, Volume, VolumeOffset};
use zerocopy::FromBytes;

use super::layout::{BOOT_SIGNATURE, BootSector, OEM_ID};
use crate::Source;
use crate::ntfs::corrupt::Corrupt;

/// Microsoft's limit since Windows 10 1709; 64 KiB before.
const CLUSTER_BYTES_MAX: u64 = 2 << 20;

/// Cluster numbers are 63 bits at most, since run lists are signed.
const CLUSTER_COUNT_MAX: u64 = 1 << 48;

/// What the boot sector says, checked against the volume's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Geometry {
    pub(super) sector_bytes: u64,
    pub(super) cluster_bytes: u64,
    pub(super) cluster_count: u64,
    /// Bytes that the boot sector counts; the backup boot sector comes after them.
    pub(super) size_bytes: u64,
    pub(super) record_bytes: u64,
    pub(super) mft_lcn: u64,
    pub(super) mirror_lcn: u64,
    pub(super) serial: u64,
}

/// Whether the volume says that it is NTFS.
pub(super) fn is_ntfs(source: &Source) -> Result<bool> {
    if source.len_bytes() < size_of::<BootSector>() as u64 {
        return Ok(false);
    }
    let boot: BootSector = read_struct(source, VolumeOffset::ZERO, "NTFS boot sector")?;
    Ok(boot.oem_id == OEM_ID)
}

/// Reads and validates the boot sector.
pub(super) fn read(source: &Source) -> Result<Geometry> {
    let mut bytes = [0; size_of::<BootSector>()];
    source.read_at(VolumeOffset::ZERO, &mut bytes)?;
    parse(&bytes, source.len_bytes())
}

fn bad(name: &str, found: impl Into<FieldValue>, expected: impl std::fmt::Display) -> Error {
    Error::corrupt(Corrupt::BootSector).field(name, found, expected)
}

fn parse(bytes: &[u8; 512], volume_bytes: u64) -> Result<Geometry> {
    let boot = BootSector::ref_from_bytes(bytes).expect("the struct's size");
    if boot.end_of_sector_marker != BOOT_SIGNATURE {
        let found = format!("{:#06x}", boot.end_of_sector_marker);
        return Err(bad("signature", found, "0xaa55"));
    }
    let sector_bytes = u64::from(boot.bytes_per_sector.get());
    if !sector_bytes.is_power_of_two() || !(256..=4096).contains(&sector_bytes) {
        return Err(bad("bytes per sector", sector_bytes, "a power of two from 256 to 4096"));
    }
    let cluster_bytes = cluster_bytes(boot.sectors_per_cluster, sector_bytes)?;
    let sector_count = boot.number_of_sectors.get();
    let size_bytes = sector_count.checked_mul(sector_bytes).filter(|size| *size <= volume_bytes);
    let Some(size_bytes) = size_bytes else {
        let expected = format!("at most the {} that the partition has", volume_bytes / sector_bytes);
        return Err(bad("number of sectors", sector_count, expected));
    };
    let cluster_count = size_bytes / cluster_bytes;
    if cluster_count == 0 || cluster_count > CLUSTER_COUNT_MAX {
        return Err(bad("number of sectors", sector_count, "at least one cluster and at most 2^48"));
    }
    let geometry = Geometry {
        sector_bytes,
        cluster_bytes,
        cluster_count,
        size_bytes,
        record_bytes: record_bytes(boot.clusters_per_mft_record, cluster_bytes)?,
        mft_lcn: boot.mft_lcn.get(),
        mirror_lcn: boot.mftmirr_lcn.get(),
        serial: boot.volume_serial_number.get(),
    };
    for (name, lcn) in [("$MFT's cluster", geometry.mft_lcn), ("$MFTMirr's cluster", geometry.mirror_lcn)] {
        if lcn == 0 || lcn >= cluster_count {
            return Err(bad(name, lcn, format!("1 to {}", cluster_count - 1)));
        }
    }
    Ok(geometry)
}

fn cluster_bytes(encoded: u8, sector_bytes: u64) -> Result<u64> {
    let sectors = match encoded {
        0..=0x80 => Some(u64::from(encoded)),
        _ => 1u64.checked_shl(256 - u32::from(encoded)),
    };
    sectors
        .filter(|sectors| sectors.is_power_of_two())
        .and_then(|sectors| sectors.checked_mul(sector_bytes))
        .filter(|bytes| *bytes <= CLUSTER_BYTES_MAX)
        .ok_or_else(|| bad("sectors per cluster", encoded, "a power of two of at most 2 MiB"))
}

fn record_bytes(encoded: i8, cluster_bytes: u64) -> Result<u64> {
    let bytes = match u64::try_from(encoded) {
        Ok(clusters) => clusters.checked_mul(cluster_bytes),
        Err(_) => 1u64.checked_shl(u32::from(encoded.unsigned_abs())),
    };
    bytes
        .filter(|bytes| matches!(bytes, 512 | 1024 | 2048 | 4096))
        .ok_or_else(|| bad("clusters per file record", encoded, "what makes 512 to 4096 bytes"))
}

impl Geometry {
    /// Where a cluster starts. The cluster must be on the volume.
    pub(super) fn offset_of(&self, lcn: u64) -> VolumeOffset {
        assert!(lcn < self.cluster_count, "a cluster of the volume");
        VolumeOffset::new(lcn * self.cluster_bytes)
    }

    /// The bytes of `count` clusters from `lcn`, which must be on the volume.
    pub(super) fn span_of(&self, lcn: u64, count: u64) -> Span<Volume> {
        assert!(lcn <= self.cluster_count && count <= self.cluster_count - lcn, "clusters of the volume");
        Span::new(VolumeOffset::new(lcn * self.cluster_bytes), count * self.cluster_bytes)
    }

    /// The bytes that `$Bitmap` speaks of.
    pub(super) fn clustered_bytes(&self) -> u64 {
        self.cluster_count * self.cluster_bytes
    }
}

/// The bytes of a file: the address space of [`super::stream::Stream`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct FileBytes;

impl Space for FileBytes {
    const NAME: &'static str = "file offset";
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> [u8; 512] {
        let mut bytes = [0; 512];
        bytes[3..11].copy_from_slice(b"NTFS    ");
        bytes[11..13].copy_from_slice(&512u16.to_le_bytes());
        bytes[13] = 8;
        bytes[0x28..0x30].copy_from_slice(&20_479u64.to_le_bytes());
        bytes[0x30] = 4;
        bytes[0x38] = 9;
        bytes[0x40] = 0xf6;
        bytes[510..].copy_from_slice(&[0x55, 0xaa]);
        bytes
    }

    #[test]
    fn a_good_boot_sector_is_understood() {
        let geometry = parse(&good(), 20_480 * 512).unwrap();
        assert_eq!(geometry.cluster_bytes, 4096);
        assert_eq!(geometry.record_bytes, 1024);
        assert_eq!(geometry.cluster_count, 20_479 / 8);
    }

    #[test]
    fn large_clusters_are_powers_of_two_below_zero() {
        assert_eq!(cluster_bytes(0x80, 512).unwrap(), 64 << 10);
        assert_eq!(cluster_bytes(0xf4, 512).unwrap(), 2 << 20);
        assert!(cluster_bytes(0xf3, 512).is_err());
        assert!(cluster_bytes(0x81, 512).is_err());
        assert!(cluster_bytes(0, 512).is_err());
        assert!(cluster_bytes(3, 512).is_err());
        assert_eq!(record_bytes(1, 4096).unwrap(), 4096);
        assert!(record_bytes(-128, 4096).is_err());
    }

    #[test]
    fn each_wrong_field_is_named() {
        let cases: [(usize, u8, &str); 7] = [
            (510, 0, "signature is 0xaa00, expected 0xaa55"),
            (12, 0x20, "bytes per sector is 8192, expected a power of two from 256 to 4096"),
            (13, 3, "sectors per cluster is 3, expected a power of two of at most 2 MiB"),
            (
                0x2f,
                1,
                "number of sectors is 72057594037948415, expected at most the 20480 that the partition has",
            ),
            (0x30, 0, "$MFT's cluster is 0, expected 1 to 2558"),
            (0x39, 0x20, "$MFTMirr's cluster is 8201, expected 1 to 2558"),
            (0x40, 0, "clusters per file record is 0, expected what makes 512 to 4096 bytes"),
        ];
        for (at, value, message) in cases {
            let mut bytes = good();
            bytes[at] = value;
            let error = parse(&bytes, 20_480 * 512).unwrap_err();
            assert_eq!(error.to_string(), format!("NTFS boot sector: {message}"));
        }
    }
}
