//! Every kind of source to every kind of target, with NTFS and with ext4 inside: QEMU accepts the target, its file
//! systems pass their own checkers, a real mount shows every file as it was, nothing stale travelled, and the source is
//! as it was.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common;
use crate::common::{SOURCES, TARGETS, Untouched, arg, assert_same_bytes, document, number};
use testkit::{Guest, Inside, STALE, SWAPPED, file_contains, run, scratch};

/// The guest's disk as a copy leaves it, proven by checkers, by a mount, and by the absence of what is stale.
fn proven_copy(guest: &Guest, dir: &Path) -> PathBuf {
    let lean = dir.join("lean.raw");
    let document = document("leandisk.copy/1", &["copy", arg(&guest.disk), arg(&lean)]);
    let volumes = document["volumes"].as_array().unwrap();
    assert!(volumes.iter().all(|volume| volume["mode"] == "used-only"), "{document:#}");
    assert!(number(&document, "/avoided/free_bytes") > 8 << 20, "{document:#}");
    guest.check(&lean);
    for marker in [STALE, SWAPPED] {
        assert!(!file_contains(&lean, marker), "'{marker}' travelled");
    }
    check_outside_volumes(guest, &lean);
    lean
}

/// What no file system owns is kept: boot code, gaps, partition tables at both ends.
fn check_outside_volumes(guest: &Guest, lean: &Path) {
    let (before, after) = (fs::read(&guest.disk).unwrap(), fs::read(lean).unwrap());
    let start = usize::try_from(guest.volume_start).unwrap().min(1 << 20);
    assert!(before[..start] == after[..start], "before the first volume");
    assert!(before[63 << 20..] == after[63 << 20..], "behind the last volume");
    if guest.inside == Inside::Ntfs {
        // The backup boot sector is the volume's last sector, outside NTFS's own count.
        let end = (61 << 20)..(62 << 20) + 512;
        assert!(before[end.clone()] == after[end], "around the end of the volume");
        assert!(after.windows(13).any(|bytes| bytes == b"kept in a gap"));
    }
}

fn every_target_of(inside: Inside, part: usize) {
    let guest = Guest::get(inside);
    let work = scratch();
    let lean = proven_copy(guest, work.path());
    for source in SOURCES.iter().skip(part).step_by(2) {
        let from = scratch();
        let path = source.make(&guest.disk, from.path());
        let before = Untouched::all_in(from.path());
        for target in &TARGETS {
            let to = scratch();
            let image = target.copy(&path, to.path(), &[]);
            // One bit elsewhere, and the proof above would not stand for this copy.
            target.assert_identical(&image, &lean);
            assert!(
                !file_contains(&image, STALE),
                "{} to {}: stale bytes in the image",
                source.name,
                target.name
            );
        }
        before.check(from.path());
    }
}

#[test]
fn ntfs_from_half_of_the_kinds() {
    every_target_of(Inside::Ntfs, 0);
}

#[test]
fn ntfs_from_the_other_half() {
    every_target_of(Inside::Ntfs, 1);
}

#[test]
fn ext4_from_half_of_the_kinds() {
    every_target_of(Inside::Ext4, 0);
}

#[test]
fn ext4_from_the_other_half() {
    every_target_of(Inside::Ext4, 1);
}

#[test]
fn a_snapshot_of_a_running_guest() {
    let guest = Guest::get(Inside::RunningExt4);
    let dir = scratch();
    proven_copy(guest, dir.path());
}

#[test]
fn a_differencing_chain_is_one_disk() {
    let guest = Guest::get(Inside::Ntfs);
    let work = scratch();
    let lean = proven_copy(guest, work.path());
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    // The lower layers hold older bytes: the chain must hide them.
    for (format, base) in [("qcow2", "base.qcow2"), ("vmdk", "base.vmdk")] {
        let top = path(&format!("top.{format}"));
        let middle = path(&format!("middle.{format}"));
        run("qemu-img", &["create", "-q", "-f", format, arg(&path(base)), "64M"]);
        run("qemu-io", &["-f", format, "-c", "write -q -P 0x5a 0 64M", arg(&path(base))]);
        run("qemu-img", &["create", "-q", "-f", format, "-b", base, "-F", format, arg(&middle)]);
        run("qemu-io", &["-f", format, "-c", "write -q -P 0xa5 8M 40M", arg(&middle)]);
        let backing = format!("middle.{format}");
        run("qemu-img", &["create", "-q", "-f", format, "-b", &backing, "-F", format, arg(&top)]);
        run(
            "qemu-img",
            &["convert", "-n", "-S", "0", "-f", "raw", "-O", format, arg(&guest.disk), arg(&top)],
        );
        for target in &TARGETS {
            let to = scratch();
            let image = target.copy(&top, to.path(), &[]);
            target.assert_identical(&image, &lean);
        }
    }
}

#[test]
fn everything_kept_is_bit_identical() {
    for guest in Guest::both() {
        let from = scratch();
        for source in &SOURCES {
            let path = source.make(&guest.disk, from.path());
            let to = scratch();
            let target = &TARGETS[0];
            let image = target.copy(&path, to.path(), &["--keep-free", "--keep-swap"]);
            assert_same_bytes(&image, &guest.disk);
        }
        for target in &TARGETS {
            let to = scratch();
            let image =
                target.copy(&from.path().join("dynamic.vhdx"), to.path(), &["--keep-free", "--keep-swap"]);
            target.assert_identical(&image, &guest.disk);
        }
    }
}

#[test]
fn each_skip_can_be_turned_off_alone() {
    for guest in Guest::both() {
        let dir = scratch();
        for (option, kept, dropped) in [("--keep-free", STALE, SWAPPED), ("--keep-swap", SWAPPED, STALE)] {
            let raw = dir.path().join("target.raw");
            common::succeed(&["copy", arg(&guest.disk), arg(&raw), "--force", option]);
            assert!(file_contains(&raw, kept), "{option} keeps '{kept}'");
            assert!(!file_contains(&raw, dropped), "{option} still drops '{dropped}'");
            guest.check(&raw);
        }
    }
}
