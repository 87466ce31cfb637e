//! Copies that have all their storage from the start: what QEMU reads from them, and what they take on the host.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::common;
use crate::common::{arg, document, fail, number, succeed, unwritten_bytes};
use testkit::{run, scratch};

const SIZE: u64 = 32 << 20;
/// What of it is data.
const DATA: u64 = 5 << 20;

/// Extension, QEMU's name, options.
const FORMATS: [(&str, &str, &[&str]); 9] = [
    ("raw", "raw", &[]),
    ("vhd", "vpc", &[]),
    ("vhd", "vpc", &["-o", "subformat=fixed"]),
    ("vhdx", "vhdx", &[]),
    ("vhdx", "vhdx", &["-o", "block_size=32M"]),
    ("vmdk", "vmdk", &[]),
    ("qcow2", "qcow2", &[]),
    ("qcow2", "qcow2", &["-o", "cluster_size=4096"]),
    ("vdi", "vdi", &[]),
];

/// Data here and there, and at the very end.
fn source(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("source.raw");
    run("qemu-img", &["create", "-q", "-f", "raw", arg(&path), &SIZE.to_string()]);
    let commands =
        ["write -P 17 0 1M", "write -P 34 9999360 3M", "write -P 51 20M 512", "write -P 68 31M 1M"];
    let mut args = vec!["-f", "raw"];
    args.extend(commands.iter().flat_map(|command| ["-c", *command]));
    args.push(arg(&path));
    run("qemu-io", &args);
    path
}

#[test]
fn each_kind_of_copy_is_what_it_says() {
    let dir = scratch();
    let source = source(dir.path());
    for (number_of, (extension, format, options)) in FORMATS.into_iter().enumerate() {
        for provision in ["thin", "lazy", "eager"] {
            let target = dir.path().join(format!("{provision}-{number_of}.{extension}"));
            let arguments =
                ["copy", arg(&source), arg(&target), "--provision", provision, "--verify", "--threads", "3"];
            let made = document("leandisk.copy/1", &[&arguments[..], options].concat());
            assert_eq!(made["provision"], provision);
            let compare = ["compare", "-q", "-f", "raw", "-F", format, arg(&source), arg(&target)];
            run("qemu-img", &compare);
            if ["qcow2", "vdi", "vmdk", "vhdx"].contains(&format) {
                run("qemu-img", &["check", "-q", "-f", format, arg(&target)]);
            }
            let what = format!("{format} {options:?} {provision}");
            let allocated = target.metadata().unwrap().blocks() * 512;
            assert_eq!(number(&made, "/target/allocated_bytes"), allocated, "{what}");
            let unwritten = unwritten_bytes(&target);
            let written = number(&made, "/written_bytes");
            match provision {
                "thin" => assert!(allocated < SIZE - (8 << 20) || !options.is_empty(), "{what}: {allocated}"),
                "lazy" => {
                    assert!(allocated >= SIZE, "{what}: {allocated}");
                    assert!(unwritten >= SIZE - DATA - (4 << 20), "{what}: {unwritten}");
                    assert!(written <= DATA + (4 << 20), "{what}: {written}");
                }
                _ => {
                    assert!(allocated >= SIZE, "{what}: {allocated}");
                    assert!(unwritten <= 5 << 20 && written >= SIZE, "{what}: {unwritten} {written}");
                }
            }
            std::fs::remove_file(target).unwrap();
        }
    }
}

#[test]
fn a_copy_of_nothing_has_its_storage_too() {
    let dir = scratch();
    let empty = dir.path().join("empty.qcow2");
    succeed(&["create", arg(&empty), "8M"]);
    let target = dir.path().join("target.vhdx");
    let text = succeed(&["copy", arg(&empty), arg(&target), "--provision", "lazy"]);
    assert!(text.contains("allocated before the copy began (lazy)"), "{text}");
    assert!(unwritten_bytes(&target) >= 8 << 20);
    run("qemu-img", &["compare", "-q", "-f", "qcow2", "-F", "vhdx", arg(&empty), arg(&target)]);
}

#[test]
fn what_has_no_places_is_refused_before_anything_is_written() {
    let dir = scratch();
    let source = source(dir.path());
    let refused: [(&str, &[&str]); 2] =
        [("stream.vmdk", &["-o", "subformat=streamOptimized"]), ("small.qcow2", &["--compress"])];
    for (name, options) in refused {
        for provision in ["lazy", "eager"] {
            let target = dir.path().join(name);
            let arguments = ["copy", arg(&source), arg(&target), "--provision", provision];
            let message = fail(3, &[&arguments[..], options].concat());
            assert!(message.contains("--provision thin"), "{message}");
        }
    }
    common::assert_only(dir.path(), &["source.raw"]);
}
