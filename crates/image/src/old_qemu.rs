//! QEMU's former formats, which are not read: only what they say of their parents, so that a disk is not changed beneath them.

use block::{HostFile, Result};
use extent::HostOffset;

use crate::ParentReference;
use crate::references::parent_named;

/// Longer names are in no valid image: `PATH_MAX` of Linux for QED, 1023 for QCOW (QEMU, `block/qcow.c`, `qcow_open`).
const NAME_BYTES_MAX: u32 = 4096;
/// QED specification (QEMU, `docs/interop/qed_spec.rst`, "Header"): `QED\0`.
const QED_MAGIC: [u8; 4] = *b"QED\0";
/// The same, "features": the image has a backing file.
const QED_FEATURE_BACKING_FILE: u64 = 1;
/// QEMU, `block/qcow.c`, `QCOW_MAGIC` and `QCOW_VERSION`.
const QCOW_MAGIC: [u8; 4] = *b"QFI\xfb";
const QCOW_VERSION: u32 = 1;

/// The parent of a QED image.
pub(crate) fn qed_parent(file: &dyn HostFile) -> Result<Option<ParentReference>> {
    let Some(header) = head(file)?.filter(|header| header[..4] == QED_MAGIC) else { return Ok(None) };
    let u32_at = |at: usize| u32::from_le_bytes(part(&header, at));
    if u64::from_le_bytes(part(&header, 16)) & QED_FEATURE_BACKING_FILE == 0 {
        return Ok(None);
    }
    parent(file, u64::from(u32_at(56)), u32_at(60))
}

/// The parent of a QCOW image of version 1, whose magic number is that of QCOW2.
pub(crate) fn qcow1_parent(file: &dyn HostFile) -> Result<Option<ParentReference>> {
    let Some(header) = head(file)?.filter(|header| header[..4] == QCOW_MAGIC) else { return Ok(None) };
    if u32::from_be_bytes(part(&header, 4)) != QCOW_VERSION {
        return Ok(None);
    }
    parent(file, u64::from_be_bytes(part(&header, 8)), u32::from_be_bytes(part(&header, 16)))
}

fn head(file: &dyn HostFile) -> Result<Option<[u8; 64]>> {
    let mut header = [0; 64];
    if file.len_bytes() < header.len() as u64 {
        return Ok(None);
    }
    file.read_at(HostOffset::ZERO, &mut header)?;
    Ok(Some(header))
}

fn part<const N: usize>(header: &[u8; 64], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&header[at..at + N]);
    bytes
}

/// The name at `at`; a place that cannot be is no image's.
fn parent(file: &dyn HostFile, at: u64, len_bytes: u32) -> Result<Option<ParentReference>> {
    let end = at.checked_add(u64::from(len_bytes));
    if at == 0 || !(1..=NAME_BYTES_MAX).contains(&len_bytes) || end.is_none_or(|end| end > file.len_bytes()) {
        return Ok(None);
    }
    let mut name = vec![0; len_bytes as usize];
    file.read_at(HostOffset::new(at), &mut name)?;
    Ok(Some(parent_named(String::from_utf8_lossy(&name).into_owned(), None)))
}
