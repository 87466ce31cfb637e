//! Physical volumes of LVM.

use block::Result;

use super::Holder;
use crate::probe::fields::Fields;
use crate::probe::{Probe, Told};

/// The metadata say nothing of their checksum's polynomial but that its register begins so (LVM2, `lib/misc/crc.h`).
const CRC_START: u32 = 0xf597_a6cf;

/// LVM2: a label in one of the first four sectors (LVM2, `lib/label/label.h`, `lib/format_text/layout.h`).
pub(super) fn lvm2(probe: &Probe) -> Result<Option<Holder>> {
    for sector in 0..4 {
        let at = sector * 512;
        let Some(label) = probe.with_magic(at, 512, 0, b"LABELONE")? else { continue };
        if !label.holds(24, b"LVM2 001") {
            continue;
        }
        let what = "is an LVM2 physical volume, whose logical volumes are not known";
        let holder = Holder::new(probe, "lvm2", at, what).removed_by("pvremove");
        let is_right = label.u64_le(8) == sector && is_label_checksum_right(&label);
        let header_at = usize::try_from(label.u32_le(20)).unwrap_or(usize::MAX);
        // The identifier (32 characters) and the size must lie within the sector that was read.
        let id = (header_at <= 512 - 40).then(|| label.text(header_at, 32)).flatten();
        return Ok(Some(holder.with_checksum(is_right).told(|facts| facts.uuid(id.and_then(grouped)))));
    }
    Ok(None)
}

/// Over everything behind the checksum. It is that of zlib but for how it begins, and that it is not inverted at the end.
fn is_label_checksum_right(label: &Fields) -> bool {
    let mut hasher = crc32fast::Hasher::new_with_initial(!CRC_START);
    hasher.update(&label.0[20..]);
    !hasher.finalize() == label.u32_le(16)
}

/// LVM1 (Linux 2.4, `include/linux/lvm.h`, `pv_disk_t`). Its magic number is short, so that the version is tested as well.
pub(super) fn lvm1(probe: &Probe) -> Result<Option<Holder>> {
    let Some(header) = probe.with_magic(0, 512, 0, b"HM")? else { return Ok(None) };
    if !matches!(header.u16_le(2), 1 | 2) {
        return Ok(None);
    }
    let what = "is an LVM1 physical volume, whose logical volumes are not known";
    let holder = Holder::new(probe, "lvm1", 0, what).removed_by("pvremove");
    Ok(Some(holder.told(|facts| facts.uuid(header.text(44, 32).and_then(grouped)))))
}

/// An identifier as LVM prints it.
fn grouped(id: String) -> Option<String> {
    let is_whole = id.len() == 32 && id.is_ascii();
    is_whole.then(|| [0..6, 6..10, 10..14, 14..18, 18..22, 22..26, 26..32].map(|part| &id[part]).join("-"))
}
