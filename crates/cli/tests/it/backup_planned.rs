//! What `backup --dry-run` says is what the backup then reads, and no less than what it stores.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use testkit::{Guest, Inside, run};

use crate::backup::{Repo, noise};
use crate::backup_bitmap::longest_file;
use crate::backup_bitmap::make_qcow2;
use crate::common::{arg, number};

const KIB: u64 = 1 << 10;

/// Backups to one repository, each of them planned before.
struct Planned(Repo);

impl Planned {
    fn path(&self, name: &str) -> PathBuf {
        self.0.dir.path().join(name)
    }

    /// Where the longest file of a disk begins on it.
    fn file_of(&self, image: &Path) -> u64 {
        longest_file(image, self.0.dir.path()).0
    }

    /// Plans a backup of the image as `disk`, makes it, and holds one against the other.
    fn back_up(&self, image: &Path, more: &[&str]) -> Value {
        let disk = format!("disk={}", arg(image));
        let args = [&["backup", "--init", &disk], more].concat();
        let planned = self.0.document("leandisk.backup/1", &[&args[..], &["--dry-run"]].concat());
        let done = self.0.document("leandisk.backup/1", &args);
        for same in ["/read_bytes", "/disks/0/read_bytes", "/disks/0/tracking", "/disks/0/used_bytes"] {
            assert_eq!(planned.pointer(same), done.pointer(same), "{same}: {planned:#} {done:#}");
        }
        for most in ["/stored_bytes", "/disks/0/new_bytes"] {
            assert!(number(&planned, most) >= number(&done, most), "{most}: {planned:#} {done:#}");
        }
        assert!(number(&planned, "/disks/0/new_bytes") <= number(&planned, "/disks/0/used_bytes"));
        planned
    }

    /// As [`Self::back_up`], of which `changed` bytes changed since, in one place. What it stores at the most.
    fn back_up_changed(&self, image: &Path, more: &[&str], changed: u64, tracking: &str) -> u64 {
        let planned = self.back_up(image, more);
        assert_eq!(planned["disks"][0]["tracking"], tracking, "{planned:#}");
        // The pieces at both ends are stored whole, and 128 KiB are compared with the last snapshot.
        let read_bytes = number(&planned, "/read_bytes");
        assert!(read_bytes >= changed && read_bytes <= changed + 256 * KIB, "{changed}: {planned:#}");
        assert!(number(&planned, "/disks/0/new_bytes") <= changed + 2048 * KIB, "{changed}: {planned:#}");
        number(&planned, "/stored_bytes")
    }
}

fn qemu_io(format: &str, image: &Path, at: u64, len_bytes: u64) {
    let command = format!("write -P 77 {at} {len_bytes}");
    run("qemu-io", &["-f", format, "-c", &command, arg(image)]);
}

#[test]
fn the_first_backup_and_one_that_nothing_keeps_track_of() {
    let planned = Planned(Repo::new());
    let disk = planned.path("disk.raw");
    fs::copy(&Guest::get(Inside::Ext4).disk, &disk).unwrap();
    let first = planned.back_up(&disk, &[]);
    assert_eq!(first["read_bytes"], first["disks"][0]["used_bytes"]);
    let at = planned.file_of(&disk);
    fs::OpenOptions::new().write(true).open(&disk).unwrap().write_all_at(&[9; 512], at).unwrap();
    let second = planned.back_up(&disk, &[]);
    assert_eq!(
        (&second["disks"][0]["tracking"], &second["read_bytes"]),
        (&"none".into(), &first["read_bytes"])
    );
}

#[test]
fn a_backup_by_a_bitmap() {
    let planned = Planned(Repo::new());
    let image = planned.path("disk.qcow2");
    let guest = Guest::get(Inside::Ext4);
    make_qcow2(&guest.disk, &image);
    run("qemu-img", &["bitmap", "--add", arg(&image), "daily"]);
    let args = ["--bitmap", "daily"];
    planned.back_up(&image, &args);
    planned.back_up_changed(&image, &args, 0, "bitmap");
    qemu_io("qcow2", &image, planned.file_of(&image), 64 * KIB);
    planned.back_up_changed(&image, &args, 64 * KIB, "bitmap");
}

/// The overlay stands on so many pieces that the list of them alone is longer than all that changed.
#[test]
fn a_backup_of_an_overlay_of_many_pieces() {
    let planned = Planned(Repo::new());
    let [raw, base, overlay] = ["base.raw", "base.qcow2", "overlay.qcow2"].map(|name| planned.path(name));
    noise(&raw, 320, 5);
    make_qcow2(&raw, &base);
    fs::remove_file(&raw).unwrap();
    planned.back_up(&base, &[]);
    let idle = planned.back_up(&base, &[]);
    assert!(number(&idle, "/stored_bytes") <= 512 * KIB, "{idle:#}");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", arg(&base), arg(&overlay)]);
    for changed in [64 * KIB, 128 * KIB] {
        qemu_io("qcow2", &overlay, 100 << 20, changed);
        let most = planned.back_up_changed(&overlay, &[], changed, "chain");
        assert!(most <= 2048 * KIB, "{most}");
    }
    planned.0.restic(&["check"]);
}

#[test]
fn a_backup_of_a_differencing_vhd() {
    let planned = Planned(Repo::new());
    let [parent, child] = ["parent.vhd", "child.vhd"].map(|name| planned.path(name));
    let guest = Guest::get(Inside::Ext4);
    let options = "subformat=dynamic,force_size=on";
    run("qemu-img", &["convert", "-f", "raw", "-O", "vpc", "-o", options, arg(&guest.disk), arg(&parent)]);
    let name: Vec<u8> = ".\\parent.vhd".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let (bytes, contents) = (fs::read(&parent).unwrap(), fs::read(&guest.disk).unwrap());
    planned.back_up(&parent, &[]);
    let at = planned.file_of(&parent);
    for changed in [64 * KIB, 192 * KIB] {
        let sectors = at / 512..(at + changed) / 512;
        let is_here = |block: usize, sector: usize| sectors.contains(&((block * 4096 + sector) as u64));
        let (made, _) = testkit::vhd::differencing(&bytes, &contents, &[(b"W2ru", name.clone())], is_here);
        fs::write(&child, made).unwrap();
        planned.back_up_changed(&child, &[], changed, "chain");
    }
}
