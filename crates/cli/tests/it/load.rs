//! Sixteen connections with sixteen requests in flight each, through the program: no byte is wrong, neither in an answer nor in
//! the image afterwards. `LOAD_SECONDS` makes it longer (`make load`: 600 for each format).

#![allow(dead_code, unreachable_pub)]

#[path = "../../../serve/tests/it/common/client.rs"]
mod client;
#[path = "../../../serve/tests/it/common/load.rs"]
mod requests;

use std::time::Duration;

use crate::serving::Serving;
use requests::{CONNECTION_COUNT, SLOT_BYTES, SLOTS, load};
use testkit::{run, scratch};

fn seconds() -> u64 {
    std::env::var("LOAD_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(2)
}

fn under_load(name: &str, format: &str, options: &[&str]) {
    let dir = scratch();
    let disk = dir.path().join(name);
    let text = disk.to_str().unwrap();
    let size = (CONNECTION_COUNT * SLOTS * SLOT_BYTES).to_string();
    run("qemu-img", &[&["create", "-q", "-f", format], options, &[text, &size]].concat());
    let server = Serving::start(&disk);
    let (socket, time) = (&server.socket, Duration::from_secs(seconds()));
    let results: Vec<(u64, Vec<u8>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CONNECTION_COUNT)
            .map(|index| scope.spawn(move || load(socket, "disk", index, time)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    server.stop();
    let verified: u64 = results.iter().map(|(verified, _)| verified).sum();
    println!("{name}: {verified} reads were right");
    assert!(verified > 100, "{verified}");
    if format != "raw" {
        run("qemu-img", &["check", "-q", "-f", format, text]);
    }
    let raw = dir.path().join("stored.raw");
    run("qemu-img", &["convert", "-f", format, "-O", "raw", text, raw.to_str().unwrap()]);
    let stored = std::fs::read(raw).unwrap();
    let expected: Vec<u8> = results.into_iter().flat_map(|(_, model)| model).collect();
    assert!(stored == expected, "{name}: what is stored is what was written last");
}

#[test]
fn no_byte_is_wrong_under_load() {
    under_load("disk.qcow2", "qcow2", &[]);
    under_load("disk.raw", "raw", &[]);
    under_load("disk.vhdx", "vhdx", &["-o", "block_size=1M"]);
}
