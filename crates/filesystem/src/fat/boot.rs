//! The boot sector, validated into the volume's geometry.

use block::{Error, FieldValue, ReadAt, Result, read_struct};
use extent::{Offset, Volume, VolumeOffset};
use zerocopy::FromBytes;

use super::corrupt::Corrupt;
use super::layout::{
    BOOT_SIGNATURE, BootSector, ENTRY_BYTES, Extended32, FSINFO_LEAD, FSINFO_STRUCT, FsInfo, NOT_MIRRORED,
    Tail,
};
use crate::Source;
use crate::clusters::{Cluster, Clusters};

/// From so many clusters on it is not FAT12 (page 14).
const FAT16_CLUSTERS_MIN: u64 = 4085;
/// From so many clusters on it is not FAT16 (page 14).
const FAT32_CLUSTERS_MIN: u64 = 65525;
/// The most clusters of FAT32: numbers from 0x0ffffff7 on mean something else, and clusters count from 2.
const FAT32_CLUSTERS_MAX: u64 = 0x0fff_fff5;
/// The most FATs: fsck.fat takes no more.
const FAT_COUNT_MAX: u8 = 2;

/// How wide an entry of the FAT is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Fat12,
    Fat16,
    Fat32,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fat12 => "fat12",
            Self::Fat16 => "fat16",
            Self::Fat32 => "fat32",
        }
    }

    /// Bits of an entry, those included that FAT32 reserves.
    pub(super) fn entry_bits(self) -> u64 {
        match self {
            Self::Fat12 => 12,
            Self::Fat16 => 16,
            Self::Fat32 => 32,
        }
    }
}

/// What the boot sector says, checked against itself and the volume's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Geometry {
    pub(super) kind: Kind,
    pub(super) sector_bytes: u64,
    pub(super) clusters: Clusters,
    pub(super) size_bytes: u64,
    pub(super) fat_count: u8,
    pub(super) fat_at: u64,
    /// Of one FAT, in whole sectors.
    pub(super) fat_bytes: u64,
    /// The root directory's place on FAT12 and FAT16.
    pub(super) root_at: u64,
    pub(super) root_bytes: u64,
    /// The root directory's first cluster on FAT32; else 0.
    pub(super) root_cluster: Cluster,
    pub(super) media: u8,
    /// Where the copy of the boot sector lies, if there is one.
    pub(super) backup_at: Option<u64>,
    pub(super) info_at: Option<u64>,
}

impl Geometry {
    /// Bytes of one FAT that its entries take, rounded up.
    pub(super) fn entries_bytes(&self) -> u64 {
        (u64::from(self.clusters.end()) * self.kind.entry_bits()).div_ceil(8)
    }

    /// Free clusters as FSInfo counts them, if it does.
    pub(super) fn counted_free(&self, source: &Source) -> Result<Option<u64>> {
        let Some(at) = self.info_at else { return Ok(None) };
        let info: FsInfo = read_struct(source, Offset::new(at), "FAT FSInfo")?;
        let is_sound = info.lead_sig.get() == FSINFO_LEAD && info.struc_sig.get() == FSINFO_STRUCT;
        let count = Some(info.free_count.get()).filter(|count| is_sound && *count <= self.clusters.count);
        Ok(count.map(u64::from))
    }
}

/// The boot sector, if there is one of FAT. Nothing but the whole parameter block tells it from others.
pub(super) fn read(source: &Source) -> Result<Option<BootSector>> {
    if source.len_bytes() < size_of::<BootSector>() as u64 {
        return Ok(None);
    }
    let boot: BootSector = read_struct(source, VolumeOffset::ZERO, "FAT boot sector")?;
    Ok(Some(boot).filter(is_fat))
}

fn is_fat(boot: &BootSector) -> bool {
    let sector_bytes = boot.bytes_per_sec.get();
    boot.signature.get() == BOOT_SIGNATURE
        && matches!(boot.jump[0], 0xeb | 0xe9)
        && sector_bytes.is_power_of_two()
        && (512..=4096).contains(&sector_bytes)
        && boot.sec_per_clus.is_power_of_two()
        && boot.rsvd_sec_cnt.get() > 0
        && (1..=FAT_COUNT_MAX).contains(&boot.num_fats)
        && (boot.media == 0xf0 || boot.media >= 0xf8)
        && data_sector(boot) < sector_count(boot)
        && fat_sectors(boot) > 0
}

/// What is FAT32's alone.
pub(super) fn extended(boot: &BootSector) -> Option<Extended32> {
    let (extended, _) = Extended32::read_from_prefix(&boot.rest).expect("smaller than the rest");
    (boot.fat_sz_16.get() == 0).then_some(extended)
}

/// The fields that end the parameters.
pub(super) fn tail(boot: &BootSector) -> Tail {
    let (tail, _) = Tail::read_from_prefix(&boot.rest).expect("smaller than the rest");
    extended(boot).map_or(tail, |extended| extended.tail)
}

fn sector_count(boot: &BootSector) -> u64 {
    match boot.tot_sec_16.get() {
        0 => boot.tot_sec_32.get().into(),
        count => count.into(),
    }
}

fn fat_sectors(boot: &BootSector) -> u64 {
    extended(boot).map_or(boot.fat_sz_16.get().into(), |extended| extended.fat_sz_32.get().into())
}

fn root_sector(boot: &BootSector) -> u64 {
    u64::from(boot.rsvd_sec_cnt.get()) + u64::from(boot.num_fats) * fat_sectors(boot)
}

fn root_bytes(boot: &BootSector) -> u64 {
    u64::from(boot.root_ent_cnt.get()) * ENTRY_BYTES as u64
}

fn data_sector(boot: &BootSector) -> u64 {
    root_sector(boot) + root_bytes(boot).div_ceil(u64::from(boot.bytes_per_sec.get()).max(1))
}

/// What anybody would take it for: the count of clusters decides between FAT12 and FAT16 (page 14), and that there is no short
/// count of a FAT's sectors makes it FAT32, as for Linux, Windows and fsck.fat.
pub(super) fn kind_of(boot: &BootSector) -> Kind {
    match cluster_count(boot) {
        _ if boot.fat_sz_16.get() == 0 => Kind::Fat32,
        0..FAT16_CLUSTERS_MIN => Kind::Fat12,
        _ => Kind::Fat16,
    }
}

fn cluster_count(boot: &BootSector) -> u64 {
    sector_count(boot).saturating_sub(data_sector(boot)) / u64::from(boot.sec_per_clus).max(1)
}

fn bad(name: &str, found: impl Into<FieldValue>, expected: impl std::fmt::Display) -> Error {
    Error::corrupt(Corrupt::BootSector).field(name, found, expected)
}

/// Validates what [`read`] found.
pub(super) fn parse(boot: &BootSector, volume_bytes: u64) -> Result<Geometry> {
    let kind = kind_of(boot);
    let sector_bytes = u64::from(boot.bytes_per_sec.get());
    let size_bytes = sector_count(boot) * sector_bytes;
    if size_bytes > volume_bytes {
        let expected = format!("at most the {} that the partition has", volume_bytes / sector_bytes);
        return Err(bad("TotSec", sector_count(boot), expected));
    }
    let cluster_count = checked_cluster_count(boot, kind)?;
    let root_bytes = root_bytes(boot);
    if !root_bytes.is_multiple_of(sector_bytes) || (root_bytes == 0) != (kind == Kind::Fat32) {
        return Err(bad("RootEntCnt", boot.root_ent_cnt.get(), "whole sectors, and 0 on FAT32 alone"));
    }
    let extended = extended(boot);
    let reserved = u64::from(boot.rsvd_sec_cnt.get());
    let sector_at =
        |sector: u16| (1..reserved).contains(&u64::from(sector)).then_some(u64::from(sector) * sector_bytes);
    let geometry = Geometry {
        kind,
        sector_bytes,
        clusters: Clusters {
            at: data_sector(boot) * sector_bytes,
            bytes: sector_bytes * u64::from(boot.sec_per_clus),
            count: cluster_count,
        },
        size_bytes,
        fat_count: boot.num_fats,
        fat_at: reserved * sector_bytes,
        fat_bytes: fat_sectors(boot) * sector_bytes,
        root_at: root_sector(boot) * sector_bytes,
        root_bytes,
        root_cluster: extended.as_ref().map_or(0, |extended| extended.root_clus.get()),
        media: boot.media,
        backup_at: extended.as_ref().and_then(|extended| sector_at(extended.bk_boot_sec.get())),
        info_at: extended.as_ref().and_then(|extended| sector_at(extended.fs_info.get())),
    };
    if geometry.entries_bytes() > geometry.fat_bytes {
        return Err(bad("FATSz", fat_sectors(boot), format!("room for {cluster_count} clusters")));
    }
    if let Some(extended) = extended {
        check_extended(&extended, &geometry)?;
    }
    Ok(geometry)
}

fn checked_cluster_count(boot: &BootSector, kind: Kind) -> Result<u32> {
    let count = cluster_count(boot);
    let max = if kind == Kind::Fat32 { FAT32_CLUSTERS_MAX } else { FAT32_CLUSTERS_MIN - 1 };
    u32::try_from(count)
        .ok()
        .filter(|_| (1..=max).contains(&count))
        .ok_or_else(|| bad("count of clusters", count, format!("1 to {max}")))
}

fn check_extended(extended: &Extended32, geometry: &Geometry) -> Result<()> {
    if extended.fs_ver.get() != 0 {
        let version = extended.fs_ver.get();
        return Err(Error::unsupported(format!("FAT32 of version {version:#06x}, which is not known")));
    }
    // Linux reads the first FAT whatever this says, Windows the active one.
    if extended.ext_flags.get() & NOT_MIRRORED != 0 {
        return Err(Error::unsupported("its FATs are not mirrored: only one of them is active"));
    }
    if !geometry.clusters.holds(geometry.root_cluster) {
        let expected = format!("2 to {}", geometry.clusters.end() - 1);
        return Err(bad("RootClus", geometry.root_cluster, expected));
    }
    Ok(())
}

/// Fails if the copy of the boot sector has other parameters than `boot`: then it is not known which of them are right. The state
/// and the label, which are changed in use, may differ, and so may the code.
pub(super) fn check_backup(
    source: &dyn ReadAt<Volume>,
    boot: &BootSector,
    geometry: &Geometry,
) -> Result<()> {
    let Some(at) = geometry.backup_at else { return Ok(()) };
    let backup: BootSector = read_struct(source, Offset::new(at), "FAT backup boot sector")?;
    let ours = parse(boot, source.len_bytes())?;
    let is_same = is_fat(&backup) && parse(&backup, source.len_bytes()).is_ok_and(|theirs| theirs == ours);
    if is_same { Ok(()) } else { Err(Error::corrupt(Corrupt::BackupDiffers).at(VolumeOffset::new(at))) }
}
