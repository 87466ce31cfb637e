//! `copy --into`: several disks into a folder.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use testkit::{Guest, Inside, run, scratch};

use crate::common::{Untouched, arg, assert_only, document, fail, names_in, number, output, succeed};

pub(crate) const ALL: &str = "leandisk.copy-all/1";

/// A disk that holds `byte` here and there.
pub(crate) fn disk(path: &Path, format: &str, byte: u8) -> PathBuf {
    run("qemu-img", &["create", "-q", "-f", format, arg(path), "16M"]);
    let writes = [format!("write -P {byte} 1M 300K"), format!("write -P {byte} 9M 64K")];
    run("qemu-io", &["-f", format, "-c", &writes[0], "-c", &writes[1], arg(path)]);
    path.to_owned()
}

#[track_caller]
pub(crate) fn same(a: &Path, b: &Path) {
    run("qemu-img", &["compare", arg(a), arg(b)]);
}

#[test]
fn each_disk_is_copied_as_by_itself() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    let ext4 = Guest::get(Inside::Ext4);
    let (a, b) = (disk(&at("a.vmdk"), "vmdk", 1), disk(&at("b.raw"), "raw", 2));
    let into = at("new");
    let sources = ["copy", arg(&a), arg(&ext4.disk), arg(&b), "--into", arg(&into), "-O", "qcow2"];
    let planned = document(ALL, &[&sources[..], &["--dry-run"]].concat());
    assert!(!into.exists() && planned["dry_run"] == true, "{planned}");
    let done = document(ALL, &[&sources[..], &["--verify"]].concat());
    let stem = ext4.disk.file_stem().unwrap().to_str().unwrap();
    let names = ["a.qcow2".to_owned(), format!("{stem}.qcow2"), "b.qcow2".to_owned()];
    assert_only(&into, &names.each_ref().map(String::as_str));
    for (index, source) in [&a, &ext4.disk, &b].into_iter().enumerate() {
        let one = &done["disks"][index];
        let alone = at("alone.qcow2");
        let alone = document("leandisk.copy/1", &["copy", arg(source), arg(&alone), "--verify", "--force"]);
        for key in ["schema", "volumes", "read_bytes", "written_bytes", "verified", "avoided"] {
            assert_eq!(one[key], alone[key], "{key}");
        }
        assert_eq!(one["target"]["path"], arg(&into.join(&names[index])));
        same(&into.join(&names[index]), &at("alone.qcow2"));
    }
    let sum: u64 = done["disks"].as_array().unwrap().iter().map(|disk| number(disk, "/read_bytes")).sum();
    assert_eq!(number(&done, "/totals/read_bytes"), sum);
    assert_eq!((number(&done, "/totals/disks"), number(&done, "/totals/failed")), (3, 0));
    let text = succeed(&[&sources[..], &["--force"]].concat());
    assert!(text.contains("3 disks copied, to "), "{text}");
}

#[test]
fn a_disk_that_cannot_be_read_is_told_and_the_others_are_copied() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    let (a, b) = (disk(&at("a.qcow2"), "qcow2", 1), disk(&at("b.qcow2"), "qcow2", 2));
    fs::write(at("broken.vhdx"), vec![7; 9000]).unwrap();
    let into = at("new");
    fs::create_dir(&into).unwrap();
    let missing = at("missing.raw");
    let broken = at("broken.vhdx");
    let sources = ["copy", arg(&a), arg(&broken), arg(&missing), arg(&b), "--into", arg(&into), "-O", "raw"];
    let done = output(&[&sources[..], &["--json"]].concat());
    // That of the first failure.
    assert_eq!(done.status.code(), Some(4));
    let found: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(found["schema"], ALL);
    assert!(found["disks"][1]["error"].as_str().unwrap().contains("broken.vhdx"), "{found}");
    assert_eq!(found["disks"][2]["failure"]["kind"], "io", "{found}");
    assert_only(&into, &["a.raw", "b.raw"]);
    same(&into.join("b.raw"), &b);
}

#[test]
fn what_is_in_the_way_of_one_is_found_before_any_is_written() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("other")).unwrap();
    let (a, b) = (disk(&at("a.qcow2"), "qcow2", 1), disk(&at("b.qcow2"), "qcow2", 2));
    let twin = disk(&at("other/a.raw"), "raw", 3);
    let into = at("new");
    let new = arg(&into);
    // Two of one name.
    let message = fail(2, &["copy", arg(&a), arg(&b), arg(&twin), "--into", new, "-O", "vhd"]);
    assert!(message.contains("a.vhd"), "{message}");
    fail(2, &["copy", arg(&a), arg(&b), "--into", new]);
    fail(2, &["copy", arg(&a), arg(&b), arg(&twin)]);
    fail(2, &["copy", arg(&a)]);
    assert!(!into.exists());
    // A target that exists, or is a source.
    fs::create_dir(&into).unwrap();
    fs::write(into.join("b.vhd"), "precious").unwrap();
    let before = Untouched::all_in(&into);
    let message = fail(3, &["copy", arg(&a), arg(&b), "--into", new, "-O", "vhd"]);
    assert!(message.contains("b.vhd") && message.contains("--force"), "{message}");
    before.check(&into);
    let here = Untouched::all_in(dir.path());
    fail(3, &["copy", arg(&b), arg(&a), "--into", arg(dir.path()), "-O", "qcow2", "--force"]);
    here.check(dir.path());
    succeed(&["copy", arg(&a), arg(&b), "--into", new, "-O", "vhd", "--force"]);
    assert_only(&into, &["a.vhd", "b.vhd"]);
    // No folder.
    fail(3, &["copy", arg(&a), arg(&b), "--into", arg(&a), "-O", "vhd"]);
    fail(5, &["copy", arg(&a), arg(&b), "--into", arg(&at("no/such")), "-O", "vhd"]);
}

#[test]
fn there_must_be_room_for_all_together() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    let small = at("small");
    fs::create_dir(&small).unwrap();
    run("mount", &["-t", "tmpfs", "-o", "size=24M", "tmpfs", arg(&small)]);
    let (a, b) = (disk(&at("a.qcow2"), "qcow2", 1), disk(&at("b.qcow2"), "qcow2", 2));
    let into = small.join("new");
    let sources = ["copy", arg(&a), arg(&b), "--into", arg(&into), "-O", "raw"];
    let message = fail(3, &[&sources[..], &["--provision", "lazy"]].concat());
    let left = names_in(&small);
    let copied = output(&sources);
    let names = names_in(&into);
    testkit::loops::unmount(&small);
    assert!(message.contains("together"), "{message}");
    assert_eq!(left, [""; 0]);
    // Thin, both fit.
    assert!(copied.status.success());
    assert_eq!(names.len(), 2);
}
