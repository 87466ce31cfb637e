//! The boot regions, validated into the volume's geometry.

use block::{Error, FieldValue, ReadAt, Result, read_struct, read_vec};
use extent::{Offset, Volume, VolumeOffset};

use super::corrupt::Corrupt;
use super::layout::{
    BOOT_REGION_SECTORS, BOOT_SIGNATURE, BootSector, FILE_SYSTEM_NAME, REVISION, UNCHECKED, volume_flags,
};
use crate::Source;
use crate::clusters::{Cluster, Clusters};

/// The most clusters that are read: two bits for each are kept in memory, 32 MiB each. The format allows sixteen times as many.
const CLUSTER_COUNT_MAX: u32 = 1 << 28;

/// What the boot sector says, checked against itself and the volume's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Geometry {
    pub(super) sector_bytes: u64,
    pub(super) clusters: Clusters,
    pub(super) size_bytes: u64,
    pub(super) fat_at: u64,
    pub(super) root_cluster: Cluster,
}

/// The boot sector, if it bears exFAT's name.
pub(super) fn read(source: &Source) -> Result<Option<BootSector>> {
    if source.len_bytes() < size_of::<BootSector>() as u64 {
        return Ok(None);
    }
    let boot: BootSector = read_struct(source, VolumeOffset::ZERO, "exFAT boot sector")?;
    Ok(Some(boot).filter(|boot| boot.file_system_name == *FILE_SYSTEM_NAME))
}

fn bad(name: &str, found: impl Into<FieldValue>, expected: impl std::fmt::Display) -> Error {
    Error::corrupt(Corrupt::BootSector).field(name, found, expected)
}

/// Validates the boot sector of a volume of so many bytes.
pub(super) fn parse(boot: &BootSector, volume_bytes: u64) -> Result<Geometry> {
    if boot.boot_signature.get() != BOOT_SIGNATURE || boot.must_be_zero.iter().any(|byte| *byte != 0) {
        return Err(bad("BootSignature", boot.boot_signature.get(), "0xaa55, and zeros in MustBeZero"));
    }
    let (sector_shift, cluster_shift) = (boot.bytes_per_sector_shift, boot.sectors_per_cluster_shift);
    if !(9..=12).contains(&sector_shift) {
        return Err(bad("BytesPerSectorShift", sector_shift, "9 to 12"));
    }
    if cluster_shift > 25 - sector_shift {
        return Err(bad("SectorsPerClusterShift", cluster_shift, format!("at most {}", 25 - sector_shift)));
    }
    check_kind(boot)?;
    let sector_bytes = 1_u64 << sector_shift;
    let sectors = boot.volume_length.get();
    if sectors > volume_bytes / sector_bytes {
        let expected = format!("at most the {} that the partition has", volume_bytes / sector_bytes);
        return Err(bad("VolumeLength", sectors, expected));
    }
    let geometry = Geometry {
        sector_bytes,
        clusters: Clusters {
            at: u64::from(boot.cluster_heap_offset.get()) * sector_bytes,
            bytes: sector_bytes << cluster_shift,
            count: boot.cluster_count.get(),
        },
        size_bytes: sectors * sector_bytes,
        fat_at: u64::from(boot.fat_offset.get()) * sector_bytes,
        root_cluster: boot.first_cluster_of_root_directory.get(),
    };
    check_places(boot, &geometry)?;
    Ok(geometry)
}

/// What of the format it uses.
fn check_kind(boot: &BootSector) -> Result<()> {
    let revision = boot.file_system_revision.get();
    if revision != REVISION {
        return Err(Error::unsupported(format!("exFAT of revision {revision:#06x}, which is not known")));
    }
    let is_active = boot.volume_flags.get() & volume_flags::ACTIVE_FAT != 0;
    match boot.number_of_fats {
        1 if !is_active => Ok(()),
        2 => Err(Error::unsupported("it has two FATs and two bitmaps (TexFAT)")),
        count => Err(bad("NumberOfFats", count, "1, with the first FAT active")),
    }
}

/// The FAT lies behind the boot regions, the clusters behind the FAT, and all within the volume.
fn check_places(boot: &BootSector, geometry: &Geometry) -> Result<()> {
    let count = geometry.clusters.count;
    if count > CLUSTER_COUNT_MAX {
        return Err(Error::unsupported(format!("it has {count} clusters: more than {CLUSTER_COUNT_MAX}")));
    }
    let fat_bytes = u64::from(boot.fat_length.get()) * geometry.sector_bytes;
    if (u64::from(count) + 2) * 4 > fat_bytes || count == 0 {
        return Err(bad(
            "FatLength",
            boot.fat_length.get(),
            format!("room for {count} clusters, 1 at least"),
        ));
    }
    if geometry.fat_at < 2 * BOOT_REGION_SECTORS * geometry.sector_bytes
        || geometry.fat_at + fat_bytes > geometry.clusters.at
    {
        return Err(bad("FatOffset", boot.fat_offset.get(), "between the boot regions and the clusters"));
    }
    if geometry.clusters.at + u64::from(count) * geometry.clusters.bytes > geometry.size_bytes {
        return Err(bad("ClusterCount", count, "no more than the volume has room for"));
    }
    if !geometry.clusters.holds(geometry.root_cluster) {
        let expected = format!("2 to {}", geometry.clusters.end() - 1);
        return Err(bad("FirstClusterOfRootDirectory", geometry.root_cluster, expected));
    }
    Ok(())
}

/// Fails unless both boot regions have their checksums (section 3.4) and the backup the same parameters.
pub(super) fn check_regions(source: &Source, boot: &BootSector, geometry: &Geometry) -> Result<()> {
    for first in [0, BOOT_REGION_SECTORS] {
        check_region(source, first, geometry.sector_bytes)?;
    }
    let at = VolumeOffset::new(BOOT_REGION_SECTORS * geometry.sector_bytes);
    let backup: BootSector = read_struct(source, at, "exFAT backup boot sector")?;
    let is_same = backup.file_system_name == boot.file_system_name
        && parse(&backup, source.len_bytes()).is_ok_and(|theirs| theirs == *geometry);
    if is_same { Ok(()) } else { Err(Error::corrupt(Corrupt::BackupDiffers).at(at)) }
}

fn check_region(source: &dyn ReadAt<Volume>, first: u64, sector_bytes: u64) -> Result<()> {
    let at = Offset::new(first * sector_bytes);
    let region = read_vec(source, at, BOOT_REGION_SECTORS * sector_bytes, "exFAT boot region")?;
    let (body, stored) = region.split_at(region.len() / 12 * 11);
    let is_counted = |(index, _): &(usize, &u8)| !UNCHECKED.contains(index);
    let sum = body.iter().enumerate().filter(is_counted);
    let sum = sum.fold(0_u32, |sum, (_, byte)| sum.rotate_right(1).wrapping_add(u32::from(*byte)));
    let (words, _) = stored.as_chunks::<4>();
    match words.iter().map(|word| u32::from_le_bytes(*word)).find(|word| *word != sum) {
        None => Ok(()),
        Some(found) => {
            let region = Error::corrupt(Corrupt::BootRegion { sector: first });
            Err(region.field("checksum", found, format!("{sum:#010x}")))
        }
    }
}
