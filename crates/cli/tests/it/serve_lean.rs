//! `leandisk serve --read-only --lean`: who reads the export gets the disk that `copy` makes, and sees as holes what that leaves out.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common;
use crate::common::{Untouched, arg, fail, succeed};
use crate::serving::Serving;
use serde_json::Value;
use testkit::{Guest, run, scratch};

const LEAN: [&str; 2] = ["--read-only", "--lean"];

/// File, QEMU's format, and its options.
const KINDS: [(&str, &str, &str); 6] = [
    ("disk.raw", "raw", "preallocation=off"),
    ("disk.qcow2", "qcow2", "cluster_size=64k"),
    ("disk.vhd", "vpc", "subformat=dynamic,force_size=on"),
    ("disk.vhdx", "vhdx", "subformat=dynamic,block_size=1M"),
    ("disk.vmdk", "vmdk", "subformat=monolithicSparse"),
    ("disk.vdi", "vdi", "static=off"),
];

/// What a client reads of a disk: all of it, and how many bytes it is told to hold data.
fn read_by_client(disk: &Path, more: &[&str]) -> (PathBuf, u64) {
    let serving = Serving::start_with(disk, more);
    let raw = disk.with_file_name("read.raw");
    run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &serving.address, arg(&raw)]);
    let map = run("qemu-img", &["map", "-f", "raw", "--output=json", &serving.address]);
    let map: Vec<Value> = serde_json::from_str(&map).unwrap();
    let data = map.iter().filter(|run| run["data"] == true && run["zero"] == false);
    let data_bytes = data.map(|run| run["length"].as_u64().unwrap()).sum();
    serving.stop();
    (raw, data_bytes)
}

fn moved(file: &Path, folder: &Path) -> PathBuf {
    let to = folder.join(file.file_name().unwrap());
    fs::copy(file, &to).unwrap();
    fs::remove_file(file).unwrap();
    to
}

#[test]
fn a_client_reads_what_copy_makes() {
    for guest in Guest::both() {
        for (file, format, options) in KINDS {
            let (dir, out) = (scratch(), scratch());
            let disk = dir.path().join(file);
            run(
                "qemu-img",
                &["convert", "-f", "raw", "-O", format, "-o", options, arg(&guest.disk), arg(&disk)],
            );
            let copy = out.path().join("copy.raw");
            succeed(&["copy", arg(&disk), arg(&copy), "-O", "raw"]);
            let (plain, plain_bytes) = read_by_client(&disk, &["--read-only"]);
            fs::remove_file(plain).unwrap();
            let _ = fs::remove_file(dir.path().join("nbd.sock"));
            let untouched = Untouched::all_in(dir.path());
            let (raw, lean_bytes) = read_by_client(&disk, &LEAN);
            let raw = moved(&raw, out.path());
            let _ = fs::remove_file(dir.path().join("nbd.sock"));
            untouched.check(dir.path());
            common::assert_same_bytes(&raw, &copy);
            guest.check(&raw);
            assert!(lean_bytes < plain_bytes / 2, "{file}: {lean_bytes} of {plain_bytes} bytes are data");
        }
    }
}

#[test]
fn what_is_not_understood_is_served_whole() {
    let dir = scratch();
    let disk = dir.path().join("disk.raw");
    let bytes: Vec<u8> =
        (0..3_u32 << 20).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[3] | 1).collect();
    fs::write(&disk, &bytes).unwrap();
    let (raw, data_bytes) = read_by_client(&disk, &LEAN);
    assert!(fs::read(&raw).unwrap() == bytes, "it is the disk");
    assert_eq!(data_bytes, bytes.len() as u64);
}

#[test]
fn it_is_for_disks_that_are_only_read() {
    let dir = scratch();
    let disk = dir.path().join("disk.raw");
    fs::write(&disk, vec![7; 1 << 20]).unwrap();
    let socket = dir.path().join("socket");
    fail(2, &["serve", arg(&disk), "--lean", "--socket", arg(&socket)]);
    let serving = Serving::start_with(&disk, &LEAN);
    let write = ["-f", "raw", "-c", "write -P 1 0 4096", &serving.address];
    let written = std::process::Command::new("qemu-io").args(write).output().unwrap();
    let said = String::from_utf8_lossy(&[written.stdout, written.stderr].concat()).into_owned();
    assert!(!written.status.success() || said.contains("failed") || said.contains("read-only"), "{said}");
    serving.stop();
    assert!(fs::read(&disk).unwrap() == vec![7; 1 << 20]);
}
