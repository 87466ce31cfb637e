//! DRBD: a device that is mirrored to another machine (DRBD, `drbd-headers/drbd_meta_data.h` and drbdmeta's `struct md_on_disk_08`,
//! `struct meta_data_on_disk_9`).

use block::Result;

use super::Holder;
use crate::probe::{Probe, SECTOR_BYTES, Told};

/// Magic numbers at 60: version 0.7, 8, 8.4 with an unclean activity log, 9.
const MAGICS: [(u32, &str); 4] =
    [(0x8374_026a, "v07"), (0x8374_026b, "v08"), (0x8374_026c, "v08"), (0x8374_026d, "v09")];

/// The metadata in the last 4 KiB (internal), 128 MiB before the end (internal, of version 0.7), or at the start (a device for the metadata of
/// another one).
pub(super) fn drbd(probe: &Probe) -> Result<Option<Holder>> {
    let from_end = |len_bytes: u64| probe.len_bytes().checked_sub(len_bytes).map(|at| at / 4096 * 4096);
    for at in [from_end(4096), from_end(128 << 20), Some(0)].into_iter().flatten() {
        let Some(metadata) = probe.at(at, 512)? else { continue };
        let magic = metadata.u32_be(60);
        let Some((_, version)) = MAGICS.iter().find(|(known, _)| *known == magic) else { continue };
        // What was agreed on with the peers must lie before the metadata, or these are of another device.
        let agreed_bytes = metadata.u64_be(0).saturating_mul(SECTOR_BYTES);
        let device_uuid = metadata.u64_be(if *version == "v09" { 48 } else { 40 });
        let what = "is mirrored to another machine by DRBD";
        let holder = Holder::new(probe, "drbd", at, what).certain_if(agreed_bytes > 0 && agreed_bytes <= at);
        return Ok(Some(
            holder.told(|facts| facts.uuid(Some(format!("{device_uuid:x}"))).detail("version", version)),
        ));
    }
    Ok(None)
}
