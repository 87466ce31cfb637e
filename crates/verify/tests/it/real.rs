//! Volumes that Windows wrote: it is the authority on what a clean one looks like.

use std::fs;

use crate::support;
use crate::support::{source_of, text};
use testkit::{real_image, real_image_in_zip, run, scratch};

#[test]
fn clean_volumes_of_windows_pass() {
    let dir = scratch();
    // The extent of the last one has another name in the collection than its descriptor gives it.
    if let Some(extent) = real_image("sf-twoGbMaxExtentSparse-s001.vmdk", dir.path()) {
        fs::rename(extent, dir.path().join("twoGbMaxExtentSparse-s001.vmdk")).unwrap();
    }
    for name in ["hv-dynamic.vhd", "hv-fixed.vhdx", "sf-streamOptimized.vmdk", "sf-twoGbMaxExtentSparse.vmdk"]
    {
        let Some(image) = real_image(name, dir.path()) else { continue };
        let raw = dir.path().join("raw");
        run("qemu-img", &["convert", "-O", "raw", text(&image), text(&raw)]);
        let disk = fs::read(&raw).unwrap();
        let sectors = |at: usize| {
            usize::try_from(u32::from_le_bytes(disk[at..at + 4].try_into().unwrap())).unwrap() * 512
        };
        let volume = disk[sectors(0x1c6)..][..sectors(0x1ca)].to_vec();
        let report =
            verify::volume::check(&source_of(volume)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(report.files > 10 && report.directories > 2, "{name}: {report:?}");
    } // Files were deleted in it, whose records, names and clusters are free.
    if let Some(volume) = real_image_in_zip("7-undel-ntfs.zip", "7-undel-ntfs/7-ntfs-undel.dd", dir.path()) {
        let report = verify::volume::check(&support::source(&volume)).unwrap();
        assert!(report.files > 10 && report.directories > 2, "{report:?}");
    }
}
