//! Volumes with volume shadow copies, copied and compacted: every file of every copy stays, as libvshadow and The Sleuth Kit show
//! it, on a volume made by the tests and on one of Windows 7.

#[path = "../../../filesystem/tests/it/ntfs_volumes/mod.rs"]
#[allow(unreachable_pub, clippy::print_stdout)]
mod ntfs_volumes;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::common::{arg, document, fail, number, succeed};
use ntfs_volumes::shadow::{Shadowed, assert_same, files_of, files_of_copies, shadowed};
use testkit::{real_image, run, scratch};

/// Made once; nobody changes it.
static MADE: LazyLock<Shadowed> = LazyLock::new(shadowed);

/// A raw disk that may be changed.
fn copy_of(volume: &Path, dir: &Path) -> PathBuf {
    let path = dir.join("disk.raw");
    run("cp", &["--sparse=always", arg(volume), arg(&path)]);
    path
}

fn holds(disk: &Path, marker: &[u8]) -> bool {
    fs::read(disk).unwrap().windows(marker.len()).any(|window| window == marker)
}

type Files = Vec<(String, Vec<u8>)>;

/// Every file of every copy, and of the volume itself.
fn all_files(volume: &Path, dir: &Path) -> Files {
    let mut files = files_of_copies(volume, dir);
    assert!(files.len() > 30, "copies with files");
    files.extend(files_of(volume));
    files
}

/// Those of the volume that was made.
static FILES: LazyLock<Files> = LazyLock::new(|| all_files(&MADE.made.volume, MADE.made.dir.path()));

#[test]
fn a_copy_keeps_what_shadow_copies_need() {
    let dir = scratch();
    let volume = &MADE.made.volume;
    let packed = dir.path().join("packed.qcow2");
    let first = document("leandisk.copy/1", &["copy", arg(volume), arg(&packed), "--verify"]);
    assert_eq!(first["volumes"][0]["mode"], "used-only");
    assert_eq!(number(&first, "/volumes/0/shadow_copy_count"), 2);
    assert_eq!(first["volumes"][0]["drops_shadow_copies"], false);
    assert!(
        number(&first, "/volumes/0/kept_for_shadow_copies_bytes")
            >= (MADE.doomed.len() + MADE.late.len()) as u64
    );
    assert!(number(&first, "/volumes/0/free_bytes") > 0);
    let raw = dir.path().join("copy.raw");
    succeed(&["copy", arg(&packed), arg(&raw)]);
    assert_same(&FILES, &all_files(&raw, dir.path()));
}

#[test]
fn compact_keeps_what_shadow_copies_need() {
    let dir = scratch();
    let disk = copy_of(&MADE.made.volume, dir.path());
    let done = document("leandisk.compact/1", &["compact", arg(&disk), "--verify"]);
    assert!(number(&done, "/volumes/0/kept_for_shadow_copies_bytes") > 0);
    assert_same(&FILES, &all_files(&disk, dir.path()));
    assert!(fail(3, &["defrag", arg(&disk)]).contains("shadow copies"));
    assert_same(&FILES, &all_files(&disk, dir.path()));
    // What lies where is what the copies go by.
    let image = dir.path().join("disk.qcow2");
    run("qemu-img", &["convert", "-O", "qcow2", arg(&disk), arg(&image)]);
    let done = document("leandisk.compact/1", &["compact", "--defrag", arg(&image)]);
    assert!(done["volumes"][0]["not_moved"].as_str().unwrap().contains("shadow copies"), "{done:#}");
    run("qemu-img", &["convert", "-O", "raw", arg(&image), arg(&disk)]);
    assert_same(&FILES, &all_files(&disk, dir.path()));
}

#[test]
fn what_only_shadow_copies_need_goes_if_the_user_says_so() {
    let dir = scratch();
    let volume = &MADE.made.volume;
    let lean = dir.path().join("lean.raw");
    let dropped = document("leandisk.copy/1", &["copy", "--drop-shadow-copies", arg(volume), arg(&lean)]);
    assert_eq!(dropped["volumes"][0]["drops_shadow_copies"], true);
    assert_eq!(number(&dropped, "/volumes/0/kept_for_shadow_copies_bytes"), 0);
    let marker = &MADE.doomed[32_768..32_800];
    assert!(holds(volume, marker) && !holds(&lean, marker));
    assert!(files_of(volume) == files_of(&lean), "the volume itself is as it was");
    let text =
        succeed(&["copy", "--drop-shadow-copies", "--dry-run", arg(volume), arg(&dir.path().join("x.raw"))]);
    assert!(text.contains("2 shadow copies not kept"), "{text}");
    let disk = copy_of(volume, dir.path());
    succeed(&["compact", "--drop-shadow-copies", arg(&disk)]);
    assert!(!holds(&disk, marker) && files_of(volume) == files_of(&disk));
}

#[test]
fn info_and_analyze_list_them() {
    let volume = arg(&MADE.made.volume);
    for (schema, command) in [("leandisk.info/1", "info"), ("leandisk.analyze/1", "analyze")] {
        let told = document(schema, &[command, volume]);
        let copies = told["volumes"][0]["shadow_copies"].as_array().unwrap();
        assert_eq!(copies.len(), 2);
        assert_eq!(copies[0]["created"], "2013-12-03T06:35:09Z");
        assert_eq!(copies[1]["store_id"], "60000002-5bdf-11e3-9d6c-005056c00008");
    }
    for command in [&["info", volume][..], &["analyze", "--full", volume]] {
        let text = succeed(command);
        assert!(text.contains("2 shadow copies") && text.contains("2013-12-03T06:35:09Z"), "{text}");
    }
    let summary = succeed(&["analyze", volume]);
    assert!(summary.contains("2 shadow copies"), "{summary}");
    let told = document("leandisk.analyze/1", &["analyze", volume]);
    let kept = number(&told, "/volumes/0/kept_for_shadow_copies_bytes");
    let dir = scratch();
    let target = dir.path().join("x.raw");
    let planned = document("leandisk.copy/1", &["copy", "--dry-run", volume, arg(&target)]);
    assert_eq!(kept, number(&planned, "/volumes/0/kept_for_shadow_copies_bytes"));
}

#[test]
fn copies_that_are_not_understood_make_the_volume_whole() {
    let dir = scratch();
    let disk = copy_of(&MADE.made.volume, dir.path());
    let mut bytes = fs::read(&disk).unwrap();
    bytes[MADE.stores[1].list + 20] = 9;
    fs::write(&disk, &bytes).unwrap();
    let copy = dir.path().join("copy.raw");
    let told = document("leandisk.copy/1", &["copy", arg(&disk), arg(&copy)]);
    assert_eq!(told["volumes"][0]["mode"], "whole");
    assert!(told["volumes"][0]["reason"].as_str().unwrap().contains("shadow copy"), "{told:#}");
    assert!(fs::read(&copy).unwrap() == bytes, "every byte");
    let told = document("leandisk.analyze/1", &["analyze", arg(&disk)]);
    assert!(told["volumes"][0]["reason"].as_str().unwrap().contains("shadow copy"), "{told:#}");
    // Without what is not understood there is nothing to doubt.
    let told = document(
        "leandisk.copy/1",
        &["copy", "--drop-shadow-copies", "--dry-run", arg(&disk), arg(&copy), "--force"],
    );
    assert_eq!(told["volumes"][0]["mode"], "used-only");
}

/// The file `/syslog` of the older copy is deleted on the volume and in the newer copy, and was never written over.
#[test]
fn a_volume_of_windows_keeps_its_shadow_copies() {
    let dir = scratch();
    let Some(disk) = real_image("dfvfs-vsstest.qcow2", dir.path()) else { return };
    let whole = dir.path().join("whole.raw");
    run("qemu-img", &["convert", "-O", "raw", arg(&disk), arg(&whole)]);
    let info = document("leandisk.info/1", &["info", arg(&disk)]);
    let copies = info["volumes"][0]["shadow_copies"].as_array().unwrap();
    let ids: Vec<_> = copies.iter().map(|copy| copy["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["4e3c03c2-7bc6-4288-ad96-c1eac1a55f71", "18f1ac6e-959d-436f-bdcc-e797a729e290"]);
    let lean = dir.path().join("lean.raw");
    let told = document("leandisk.copy/1", &["copy", arg(&disk), arg(&lean)]);
    assert_eq!(told["volumes"][0]["mode"], "used-only");
    // The copies' own files were once larger, and what is free of them since reads as zeros.
    assert!(number(&told, "/volumes/0/kept_for_shadow_copies_bytes") < 1 << 20, "{told:#}");
    let before = all_files(&whole, dir.path());
    assert_same(&before, &all_files(&lean, dir.path()));
    succeed(&["compact", arg(&whole)]);
    assert_same(&before, &all_files(&whole, dir.path()));
}
