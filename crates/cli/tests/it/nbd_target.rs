//! Copies to exports of NBD servers: equal to a copy to a file, whatever lay there before; or refused, or an error that says so.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use testkit::{run, scratch};

use crate::common::{SOURCES, arg, assert_same_bytes, document, fail, leandisk, number, succeed};
use crate::nbd_servers::{Server, disk, nbdkit, our_own, qemu_nbd, storage_daemon};

const LEN_BYTES: usize = 24 << 20;

/// A file for a server to keep the disk in, full of old data.
fn dirty(dir: &Path) -> PathBuf {
    let path = dir.join("export.raw");
    std::fs::write(&path, vec![0xa5; LEN_BYTES]).unwrap();
    path
}

#[test]
fn every_server_gets_what_a_file_gets() {
    let dir = scratch();
    let raw = disk(dir.path());
    let expected = dir.path().join("expected.raw");
    let local = document("leandisk.copy/1", &["copy", arg(&raw), arg(&expected)]);
    let (socket, export) = (dir.path().join("socket"), dir.path().join("export.raw"));
    type Start<'a> = &'a dyn Fn() -> Server;
    let file =
        |filter: &[&str], more: &[&str]| nbdkit(&socket, &[filter, &["file", arg(&export)], more].concat());
    let sizes = ["blocksize-minimum=4096", "blocksize-preferred=65536", "blocksize-maximum=1M"];
    let picky = [&sizes[..], &["blocksize-error-policy=error"]].concat();
    let servers: [(&str, Start<'_>); 7] = [
        ("", &|| qemu_nbd(&socket, &["--discard=unmap", arg(&export)])),
        ("", &|| qemu_nbd(&socket, &["--shared=8", arg(&export)])),
        ("disk", &|| storage_daemon(&socket, &export, true)),
        ("", &|| file(&[], &[])),
        ("", &|| file(&["--filter=delay"], &["delay-write=1ms", "delay-zero=1ms"])),
        ("", &|| file(&["--filter=blocksize-policy"], &picky)),
        ("export.raw", &|| our_own(&socket, &["-f", "raw", arg(&export)])),
    ];
    for (name, start) in servers {
        dirty(dir.path());
        let server = start();
        let address = server.address(name);
        let args = ["copy", "--confine", "always", "--force", "--verify", arg(&raw), &address];
        let done = document("leandisk.copy/1", &args);
        assert_eq!(number(&done, "/read_bytes"), number(&local, "/read_bytes"));
        // What is skipped is zeroed by the server: it does not cross the socket.
        assert!(number(&done, "/written_bytes") < number(&done, "/read_bytes") + (64 << 10), "{done:#}");
        assert_eq!(done["verified"], true);
        drop(server);
        assert_same_bytes(&export, &expected);
    }
}

#[test]
fn a_server_that_cannot_zero_is_sent_zeros_and_one_with_zeros_is_left_alone() {
    let dir = scratch();
    let raw = disk(dir.path());
    let (expected, back) = (dir.path().join("expected.raw"), dir.path().join("back.raw"));
    succeed(&["copy", arg(&raw), arg(&expected)]);
    let socket = dir.path().join("socket");
    dirty(dir.path());
    let export = dir.path().join("export.raw");
    let plain = ["--no-sr", "--filter=nozero", "file", arg(&export), "zeromode=none"];
    let server = nbdkit(&socket, &plain);
    succeed(&["copy", "--force", arg(&raw), &server.address("")]);
    drop(server);
    assert_same_bytes(&export, &expected);

    // It would fail to zero, and to trim: neither is asked.
    let fresh = ["--filter=error", "memory", "24M", "error-zero=EIO", "error-zero-rate=100%"];
    let server = nbdkit(&socket, &fresh);
    succeed(&["copy", "--force", "--verify", arg(&raw), &server.address("")]);
    succeed(&["copy", "--keep-free", "--keep-swap", &server.address(""), arg(&back)]);
    assert_same_bytes(&back, &expected);
}

#[test]
fn disks_of_every_format_and_behind_servers_go_to_an_export() {
    let dir = scratch();
    let raw = disk(dir.path());
    let (expected, export) = (dir.path().join("expected.raw"), dirty(dir.path()));
    let server = qemu_nbd(&dir.path().join("socket"), &["--discard=unmap", arg(&export)]);
    for kind in &SOURCES {
        let folder = dir.path().join(kind.name);
        std::fs::create_dir(&folder).unwrap();
        let image = kind.make(&raw, &folder);
        succeed(&["copy", "-f", kind.format, "-O", "raw", "--force", arg(&image), arg(&expected)]);
        let args = ["copy", "-f", kind.format, "--force", arg(&image), &server.address("")];
        document("leandisk.copy/1", &args);
        run("qemu-img", &["compare", "-q", "-f", "raw", "-F", "raw", arg(&expected), &server.address("")]);
        std::fs::remove_dir_all(&folder).unwrap();
    }
    let source = nbdkit(&dir.path().join("source"), &["-r", "file", arg(&raw)]);
    succeed(&[
        "copy",
        "--confine",
        "always",
        "--force",
        "--keep-free",
        &source.address(""),
        &server.address(""),
    ]);
    run("qemu-img", &["compare", "-q", "-f", "raw", "-F", "raw", arg(&raw), &server.address("")]);
}

#[test]
fn what_stands_against_an_export_is_refused_before_a_byte_is_written() {
    let dir = scratch();
    let raw = disk(dir.path());
    let socket = dir.path().join("socket");
    let export = dirty(dir.path());
    let server = qemu_nbd(&socket, &[arg(&export)]);
    let address = server.address("");
    let said = fail(3, &["copy", arg(&raw), &address]);
    assert!(said.contains("--force"), "{said}");
    fail(3, &["copy", "--force", "-O", "qcow2", arg(&raw), &address]);
    fail(3, &["copy", "--force", "--provision", "eager", arg(&raw), &address]);
    fail(3, &["copy", "--force", &address, &address]);
    fail(5, &["copy", "--force", arg(&raw), "nbd+unix:///?socket=/nowhere"]);
    let small = dir.path().join("small.raw");
    for len in ["23M", "25M"] {
        run("qemu-img", &["create", "-q", "-f", "raw", arg(&small), len]);
        let said = fail(3, &["copy", "--force", arg(&small), &address]);
        assert!(said.contains("another size"), "{said}");
    }
    succeed(&["copy", "--force", "--dry-run", arg(&raw), &address]);
    drop(server);
    let read_only = qemu_nbd(&socket, &["--read-only", arg(&export)]);
    fail(3, &["copy", "--force", arg(&raw), &read_only.address("")]);
    assert!(std::fs::read(&export).unwrap().iter().all(|byte| *byte == 0xa5));
}

#[test]
fn a_server_that_is_lost_or_fails_ends_the_copy() {
    let dir = scratch();
    let raw = disk(dir.path());
    let (socket, export) = (dir.path().join("socket"), dirty(dir.path()));
    let failing = ["--filter=error", "file", arg(&export), "error-pwrite=ENOSPC", "error-pwrite-rate=50%"];
    let server = nbdkit(&socket, &failing);
    let said = fail(5, &["copy", "--force", arg(&raw), &server.address("")]);
    assert!(said.contains("incomplete copy"), "{said}");
    drop(server);
    dirty(dir.path());
    let slow = ["--filter=delay", "file", arg(&export), "wdelay=200ms"];
    let server = nbdkit(&socket, &slow);
    let args = ["copy", "--threads", "1", "--force", arg(&raw), &server.address("")];
    let copy = leandisk().args(args).stderr(Stdio::piped()).spawn().unwrap();
    // The first thing that a copy writes changes the file.
    let started = Instant::now();
    while std::fs::read(&export).unwrap()[1024..2048].iter().all(|byte| *byte == 0xa5) {
        assert!(started.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    server.kill();
    // A server that is there again may have lost what it was sent.
    let _again = nbdkit(&socket, &slow);
    let done = copy.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(5), "{said}");
    assert!(said.contains("incomplete copy"), "{said}");
}
