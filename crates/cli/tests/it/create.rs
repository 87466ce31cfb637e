//! New disks: what QEMU makes of them, and what they take on the host.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::common::{arg, document, fail, number, succeed, unwritten_bytes};
use testkit::{run, scratch};

const SIZE: u64 = 48 << 20;

/// Extension, QEMU's name, options.
const FORMATS: [(&str, &str, &[&str]); 7] = [
    ("raw", "raw", &[]),
    ("vhd", "vpc", &[]),
    ("vhd", "vpc", &["-o", "subformat=fixed"]),
    ("vhdx", "vhdx", &[]),
    ("vmdk", "vmdk", &[]),
    ("qcow2", "qcow2", &[]),
    ("vdi", "vdi", &[]),
];

fn check(disk: &Path, format: &str) {
    let info = run("qemu-img", &["info", "-f", format, "--output", "json", arg(disk)]);
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["virtual-size"].as_u64(), Some(SIZE), "{format}");
    if ["qcow2", "vdi", "vmdk", "vhdx"].contains(&format) {
        run("qemu-img", &["check", "-f", format, arg(disk)]);
    }
    let read = run("qemu-io", &["-r", "-f", format, "-c", &format!("read -P 0 0 {SIZE}"), arg(disk)]);
    assert!(read.contains(&format!("read {SIZE}/{SIZE}")) && !read.contains("verification failed"), "{read}");
}

#[test]
fn each_kind_of_each_format_is_what_it_says() {
    let dir = scratch();
    for (extension, format, options) in FORMATS {
        for provision in ["thin", "lazy", "eager"] {
            let disk = dir.path().join(format!("{provision}-{}.{extension}", options.len()));
            let size = SIZE.to_string();
            let arguments = [&["create", arg(&disk), &size, "--provision", provision], options].concat();
            let made = document("leandisk.create/1", &arguments);
            check(&disk, format);
            assert_eq!(number(&made, "/virtual_bytes"), SIZE);
            assert_eq!(made["provision"], provision);
            let allocated = disk.metadata().unwrap().blocks() * 512;
            assert_eq!(number(&made, "/allocated_bytes"), allocated);
            let is_fixed = !options.is_empty();
            let zeroed = number(&made, "/zeroed_bytes");
            match provision {
                "thin" if is_fixed => {}
                "thin" => assert!(allocated <= 5 << 20, "{format}: {allocated}"),
                _ => assert!(allocated >= SIZE, "{format} {provision}: {allocated}"),
            }
            assert_eq!(zeroed > 0, provision == "eager", "{format} {provision}");
            // The host's own record of what it has yet to zero. A log may be a part of it in any case.
            let unwritten = unwritten_bytes(&disk);
            match provision {
                "lazy" => assert!(unwritten >= SIZE, "{format}: {unwritten}"),
                "eager" => assert!(unwritten <= 5 << 20, "{format}: {unwritten}"),
                _ => {}
            }
        }
    }
}

#[test]
fn guests_write_into_reserved_room() {
    let dir = scratch();
    for (extension, format, options) in FORMATS {
        let disk = dir.path().join(format!("disk{}.{extension}", options.len()));
        succeed(&[&["create", arg(&disk), "48M", "--provision", "lazy"], options].concat());
        let before = disk.metadata().unwrap().blocks();
        run("qemu-io", &["-f", format, "-c", "write -P 7 1M 8M", "-c", "write -P 9 47M 1M", arg(&disk)]);
        assert!(disk.metadata().unwrap().blocks() <= before + 64, "{format}: nothing more is taken");
        let read = run(
            "qemu-io",
            &[
                "-r",
                "-f",
                format,
                "-c",
                "read -P 7 1M 8M",
                "-c",
                "read -P 0 9M 38M",
                "-c",
                "read -P 9 47M 1M",
                arg(&disk),
            ],
        );
        assert!(!read.contains("verification failed"), "{read}");
    }
}

#[test]
fn what_cannot_be_made_is_refused_and_nothing_is_left() {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let stream = path("stream.vmdk");
    let eager = ["create", arg(&stream), "1M", "-o", "subformat=streamOptimized", "--provision", "eager"];
    assert!(fail(3, &eager).contains("--provision thin"));
    fail(2, &["create", arg(&path("nameless")), "1M"]);
    fail(2, &["create", arg(&path("odd.raw")), "1000"]);
    fail(2, &["create", arg(&path("bad.raw")), "1M", "-o", "wings=2"]);
    succeed(&["create", arg(&path("there.raw")), "1M"]);
    std::fs::write(path("there.raw"), b"precious").unwrap();
    fail(3, &["create", arg(&path("there.raw")), "1M"]);
    assert_eq!(std::fs::read(path("there.raw")).unwrap(), b"precious");
    let names: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["there.raw"]);
    succeed(&["create", arg(&path("there.raw")), "1M", "--force"]);
    assert_eq!(path("there.raw").metadata().unwrap().len(), 1 << 20);
}
