//! How long the files of thin disks are that `serve` wrote, and whether QEMU finds in them what was written.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::common::arg;
use crate::serving::Serving;
use testkit::{run, scratch};

const MIB: u64 = 1 << 20;

/// QEMU's name of each format that allocates where it likes, and what to make it with.
const KINDS: [(&str, &str, &str); 4] = [
    ("disk.qcow2", "qcow2", "cluster_size=64k"),
    ("disk.vmdk", "vmdk", "subformat=monolithicSparse"),
    ("disk.vhdx", "vhdx", "block_size=1M"),
    ("disk.vhd", "vpc", "force_size=on"),
];

fn create(path: &Path, driver: &str, options: &str, size: &str) {
    run("qemu-img", &["create", "-q", "-f", driver, "-o", options, arg(path), size]);
}

fn stored_bytes(path: &Path) -> u64 {
    path.metadata().unwrap().blocks() * 512
}

fn check(path: &Path, driver: &str) {
    if driver != "vpc" {
        run("qemu-img", &["check", "-q", "-f", driver, arg(path)]);
    }
}

/// An empty ext4 of 4 GiB.
fn guest(path: &Path) {
    run("truncate", &["-s", "4G", arg(path)]);
    run("mkfs.ext4", &["-q", "-F", arg(path)]);
}

#[test]
fn a_file_system_that_was_made_takes_about_what_it_holds() {
    let dir = scratch();
    let raw = dir.path().join("guest.raw");
    guest(&raw);
    for (file, driver, options) in KINDS {
        let disk = dir.path().join(file);
        create(&disk, driver, options, "4G");
        for round in 0..if driver == "qcow2" { 2 } else { 1 } {
            let server = Serving::start(&disk);
            run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", arg(&raw), &server.address]);
            server.stop();
            check(&disk, driver);
            run("qemu-img", &["compare", "-q", "-f", driver, "-F", "raw", arg(&disk), arg(&raw)]);
            // VHD's blocks are of 2 MiB, of which the most are hardly written.
            let (held, len_bytes) = (stored_bytes(&disk), disk.metadata().unwrap().len());
            let blocks_bytes = if driver == "vpc" { 2 * len_bytes / 3 } else { 0 };
            let bound = held + held / 10 + 64 * MIB + blocks_bytes;
            assert!(len_bytes <= bound, "{file}, round {round}: {len_bytes} long, holds {held}");
        }
        std::fs::remove_file(&disk).unwrap();
    }
}

/// What was written at random is together again however long the file was meanwhile; a mirror stays one.
#[test]
fn little_of_a_large_disk_is_moved_together_unless_it_is_to_be_a_mirror() {
    let dir = scratch();
    let model = dir.path().join("model");
    run("truncate", &["-s", "20G", arg(&model)]);
    let commands: Vec<String> = (0..120u64)
        .map(|index| format!("write -P {} {}M 64k", index % 250 + 1, index * 7919 % 20_000))
        .collect();
    let write = |target: &str| {
        let mut args = vec!["-f", "raw"];
        args.extend(commands.iter().flat_map(|command| ["-c", command.as_str()]));
        args.push(target);
        run("qemu-io", &args);
    };
    write(arg(&model));
    for (placement, is_long) in [("dense", false), ("mirror", true)] {
        let disk = dir.path().join("disk.qcow2");
        create(&disk, "qcow2", "cluster_size=64k", "20G");
        let server = Serving::start_with(&disk, &["--placement", placement]);
        write(&server.address);
        server.stop();
        check(&disk, "qcow2");
        run("qemu-img", &["compare", "-q", "-f", "qcow2", "-F", "raw", arg(&disk), arg(&model)]);
        assert_eq!(disk.metadata().unwrap().len() > 1 << 30, is_long, "{placement}");
        std::fs::remove_file(&disk).unwrap();
    }
}
