//! FAT12, FAT16 and FAT32, EFI system partitions among them (Microsoft's FAT specification 1.03).

use block::Result;

use super::{Probe, Told};
use crate::Facts;
use crate::probe::fields::{Fields, dos_serial};

/// How far into the root directory the label is looked for. It is almost always the first entry.
const ROOT_BYTES_MAX: u64 = 16 << 10;

/// The BIOS parameter block, validated.
struct Parameters {
    sector_bytes: u64,
    cluster_bytes: u64,
    sector_count: u64,
    cluster_count: u64,
    root_at: u64,
    root_bytes: u64,
    /// FAT32 has its serial number and label further on.
    extended_at: usize,
    name: &'static str,
}

/// Recognises a FAT volume. Nothing but the whole parameter block tells it from other boot sectors.
pub(super) fn fat(probe: &Probe) -> Result<Option<Facts>> {
    let Some(boot) = probe.with_magic(0, 512, 510, &[0x55, 0xaa])? else { return Ok(None) };
    let Some(parameters) = Parameters::parse(&boot) else { return Ok(None) };
    let Parameters { extended_at, .. } = parameters;
    let mut facts = probe.unread(parameters.name);
    facts.cluster_bytes = Some(parameters.cluster_bytes);
    facts.size_bytes = parameters.sector_count.saturating_mul(parameters.sector_bytes);
    // 0x28 and 0x29: a serial number follows; 0x29: a label too.
    let signature = boot.byte(extended_at);
    if matches!(signature, 0x28 | 0x29) {
        facts = facts.uuid(dos_serial(boot.u32_le(extended_at + 1)));
    }
    let boot_label = boot.text(extended_at + 5, 11).filter(|label| signature == 0x29 && label != "NO NAME");
    let root_len = usize::try_from(parameters.root_bytes.min(ROOT_BYTES_MAX)).expect("bounded by a constant");
    let root_label = probe.at(parameters.root_at, root_len)?.and_then(|root| label_in(&root));
    Ok(Some(facts.label(root_label.or(boot_label))))
}

impl Parameters {
    fn parse(boot: &Fields) -> Option<Self> {
        let sector_bytes = u64::from(boot.u16_le(11));
        let cluster_bytes = sector_bytes * u64::from(boot.byte(13));
        let (reserved, fat_count) = (u64::from(boot.u16_le(14)), u64::from(boot.byte(16)));
        let is_sound = matches!(boot.byte(0), 0xeb | 0xe9)
            && sector_bytes.is_power_of_two()
            && (512..=4096).contains(&sector_bytes)
            && boot.byte(13).is_power_of_two()
            && reserved > 0
            && matches!(fat_count, 1 | 2)
            && (boot.byte(21) == 0xf0 || boot.byte(21) >= 0xf8);
        let either = |short: u16, long: u32| if short != 0 { u64::from(short) } else { u64::from(long) };
        let sector_count = either(boot.u16_le(19), boot.u32_le(32));
        let fat_sectors = either(boot.u16_le(22), boot.u32_le(36));
        let root_bytes = u64::from(boot.u16_le(17)) * 32;
        let root_sector = reserved + fat_count * fat_sectors;
        let data_sector = root_sector + root_bytes.div_ceil(sector_bytes.max(1));
        if !is_sound || fat_sectors == 0 || data_sector >= sector_count {
            return None;
        }
        let cluster_count = (sector_count - data_sector) / u64::from(boot.byte(13));
        let is_fat32 = boot.u16_le(22) == 0;
        let root_cluster = u64::from(boot.u32_le(44)).saturating_sub(2);
        Some(
            Self {
                sector_bytes,
                cluster_bytes,
                sector_count,
                cluster_count,
                root_at: if is_fat32 {
                    data_sector * sector_bytes + root_cluster * cluster_bytes
                } else {
                    root_sector * sector_bytes
                },
                root_bytes: if is_fat32 { cluster_bytes } else { root_bytes },
                extended_at: if is_fat32 { 66 } else { 38 },
                name: "",
            }
            .named(is_fat32),
        )
    }

    /// The count of clusters alone decides between FAT12 and FAT16 (page 14).
    fn named(mut self, is_fat32: bool) -> Self {
        self.name = match (is_fat32, self.cluster_count) {
            (true, _) => "fat32",
            (false, 0..=4084) => "fat12",
            (false, _) => "fat16",
        };
        self
    }
}

/// The label among a directory's entries.
fn label_in(root: &Fields) -> Option<String> {
    for at in (0..root.0.len() / 32).map(|index| index * 32) {
        let (first, attributes) = (root.byte(at), root.byte(at + 11));
        if first == 0 {
            break;
        }
        // 0x08 alone is the label; together with others it marks a long name. 0xe5: deleted.
        if first != 0xe5 && attributes & 0x3f != 0x0f && attributes & 0x18 == 0x08 {
            return root.text(at, 11);
        }
    }
    None
}
