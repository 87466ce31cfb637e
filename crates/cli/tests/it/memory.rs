//! Memory stays below 256 MiB, whatever the disk's size.

use std::process::Command;

use crate::common;
use crate::common::arg;
use testkit::{run, scratch};

const MEMORY_MAX_KIB: u64 = 256 << 10;

/// Runs the program under GNU time, and answers its peak memory.
fn peak_kib(args: &[&str]) -> u64 {
    let output = Command::new("/usr/bin/time")
        .args(["-f", "%M", &common::program()])
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("/usr/bin/time: {error}; `make test` installs what the tests need"));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args:?}: {text}");
    text.lines().last().unwrap().parse().unwrap()
}

#[test]
fn sixteen_tib_take_no_more_than_a_small_disk() {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let source = path("source.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-o", "cluster_size=2M", arg(&source), "16T"]);
    // A piece of data here and there, up to the end.
    for step in 0..16 {
        let write = format!("write -q -P {} {}G 3M", step + 1, step * 1023 + 500);
        run("qemu-io", &["-f", "qcow2", "-c", &write, arg(&source)]);
    }
    let info = peak_kib(&["info", arg(&source)]);
    assert!(info < MEMORY_MAX_KIB, "info took {info} KiB");
    let target = path("target.qcow2");
    let copy = peak_kib(&["copy", arg(&source), arg(&target)]);
    assert!(copy < MEMORY_MAX_KIB, "copy took {copy} KiB");
    println!("peak memory: info {info} KiB, copy {copy} KiB");
    run("qemu-img", &["check", "-q", arg(&target)]);
    run("qemu-img", &["compare", "-q", "-f", "qcow2", "-F", "qcow2", arg(&source), arg(&target)]);
}

#[test]
fn a_dense_disk_with_many_threads_stays_below() {
    let dir = scratch();
    let source = dir.path().join("source.raw");
    let of = format!("of={}", source.display());
    run("dd", &["if=/dev/urandom", &of, "bs=1M", "count=256", "status=none"]);
    let target = dir.path().join("target.qcow2");
    let peak = peak_kib(&["copy", arg(&source), arg(&target), "--compress", "--threads", "32"]);
    assert!(peak < MEMORY_MAX_KIB, "{peak} KiB");
}
