//! `analyze --recursive`: the disks of a folder as one table.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use testkit::{Guest, Inside, run, scratch};

use crate::common::{Untouched, arg, document, fail, leandisk, number, succeed};

const ALL: &str = "leandisk.analyze-all/1";

fn create(path: &Path, format: &str, options: &[&str]) {
    run("qemu-img", &[&["create", "-q", "-f", format], options, &[arg(path), "64M"]].concat());
}

fn entry<'a>(document: &'a Value, name: &str) -> &'a Value {
    let of = |disk: &&Value| disk["path"].as_str().unwrap().ends_with(name);
    document["disks"].as_array().unwrap().iter().find(of).unwrap_or_else(|| panic!("{name}: {document}"))
}

#[test]
fn all_disks_of_a_folder_are_in_one_table() {
    let dir = scratch();
    let folder = dir.path().join("images");
    fs::create_dir_all(folder.join("deep/er")).unwrap();
    let at = |name: &str| folder.join(name);
    let [ntfs, ext4] = Guest::both();
    run("qemu-img", &["convert", "-O", "qcow2", arg(&ntfs.disk), arg(&at("deep/base.qcow2"))]);
    run("cp", &["--sparse=never", arg(&ext4.disk), arg(&at("without extension"))]);
    create(&at("deep/er/top.qcow2"), "qcow2", &["-b", "../base.qcow2", "-F", "qcow2"]);
    create(&at("split.vmdk"), "vmdk", &["-o", "subformat=monolithicFlat"]);
    create(&at("empty.raw"), "raw", &[]);
    fs::write(at("broken.vhdx"), vec![7; 9000]).unwrap();
    fs::write(at("notes.txt"), "nothing of interest\n".repeat(100)).unwrap();
    fs::hard_link(at("empty.raw"), at("empty too.raw")).unwrap();
    std::os::unix::fs::symlink(&ntfs.disk, at("link.raw")).unwrap();
    let before = Untouched::all_in(&folder);
    let allow = ["--allow-path", arg(&folder)];
    let found = document(ALL, &[&["analyze", arg(&folder), "--recursive"], &allow[..]].concat());
    let names = [
        "deep/base.qcow2",
        "without extension",
        "deep/er/top.qcow2",
        "split.vmdk",
        "empty too.raw",
        "broken.vhdx",
    ];
    assert_eq!(found["disks"].as_array().unwrap().len(), names.len(), "{found}");
    // Each is what it is by itself, and what a copy of it would read.
    for name in &names[..5] {
        let path = at(name);
        let one = entry(&found, name);
        let alone = document("leandisk.analyze/1", &[&["analyze", arg(&path)], &allow[..]].concat());
        assert_eq!(one["reclaimable_bytes"], alone["reclaimable_bytes"], "{name}");
        assert_eq!(
            (&one["format"], &one["virtual_bytes"]),
            (&alone["format"], &alone["virtual_bytes"]),
            "{name}"
        );
        assert_eq!(one["action"], alone["advice"][0]["action"], "{name}");
        let target = dir.path().join("target.raw");
        let copied = document(
            "leandisk.copy/1",
            &[&["copy", arg(&path), arg(&target), "--dry-run"], &allow[..]].concat(),
        );
        // Which files of ext are swap only a full check tells.
        let (used, by_copy) = (number(one, "/used_bytes"), number(&copied, "/used_bytes"));
        let swap = number(&copied, "/avoided/swap_bytes");
        assert!((by_copy..=by_copy + swap).contains(&used), "{name}: {used}, {by_copy} and {swap}");
        assert_eq!((&one["in_use"], &one["error"]), (&Value::Bool(false), &Value::Null), "{name}");
    }
    assert_eq!(entry(&found, "deep/er/top.qcow2")["parent"], entry(&found, "deep/base.qcow2")["path"]);
    assert!(entry(&found, "broken.vhdx")["error"].as_str().unwrap().contains("broken.vhdx"));
    let reclaimable: Vec<_> =
        found["disks"].as_array().unwrap().iter().map(|disk| disk["reclaimable_bytes"].as_u64()).collect();
    assert!(reclaimable.is_sorted_by(|one, next| one >= next), "{reclaimable:?}");
    assert!(reclaimable[0] > Some(10 << 20), "{reclaimable:?}");
    for what in ["allocated_bytes", "used_bytes", "reclaimable_bytes"] {
        let sum: u64 = found["disks"].as_array().unwrap().iter().filter_map(|disk| disk[what].as_u64()).sum();
        assert_eq!(number(&found["totals"], &format!("/{what}")), sum, "{what}");
    }
    let page = dir.path().join("page.html");
    let html = ["--html", arg(&page)];
    let text = succeed(&[&["analyze", arg(&folder), "--recursive"], &allow[..], &html].concat());
    let position = |name: &str| text.find(name).unwrap_or_else(|| panic!("{name}: {text}"));
    assert!(position("base.qcow2") < position("└ ") && position("└ ") < position("top.qcow2"), "{text}");
    assert!(text.contains("6 disks: ") && !text.contains("notes.txt"), "{text}");
    assert!(fs::read_to_string(&page).unwrap().contains("top.qcow2"));
    before.check(&folder);
}

#[test]
fn a_disk_in_use_is_marked_and_read() {
    let dir = scratch();
    let disk = dir.path().join("disk.qcow2");
    let guest = Guest::get(Inside::Ext4);
    run("qemu-img", &["convert", "-O", "qcow2", arg(&guest.disk), arg(&disk)]);
    let mut user = std::process::Command::new("qemu-io")
        .args(["-f", "qcow2", arg(&disk)])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let is_used =
        || entry(&document(ALL, &["analyze", arg(dir.path()), "--recursive"]), "disk.qcow2").clone();
    let since = std::time::Instant::now();
    while is_used()["in_use"] != true {
        assert!(since.elapsed().as_secs() < 60, "{}", is_used());
    }
    let found = is_used();
    assert!(found["error"].is_null() && found["used_bytes"].as_u64() > Some(0), "{found}");
    drop(user.stdin.take());
    user.wait().unwrap();
}

#[test]
fn what_is_no_folder_or_contradicts_is_invalid() {
    let dir = scratch();
    let disk = dir.path().join("disk.raw");
    File::create(&disk).unwrap().set_len(1 << 20).unwrap();
    assert!(fail(2, &["analyze", arg(&disk), "--recursive"]).contains("takes a folder"));
    for options in [&["--full"][..], &["-f", "raw"], &["--zeros"], &["--files", "x"]] {
        let status = leandisk()
            .args(["analyze", arg(dir.path()), "--recursive"])
            .args(options)
            .output()
            .unwrap()
            .status;
        assert_eq!(status.code(), Some(2), "{options:?}");
    }
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let found = document(ALL, &["analyze", arg(&empty), "--recursive"]);
    assert_eq!((&found["disks"], &found["totals"]["disks"]), (&serde_json::json!([]), &serde_json::json!(0)));
}
