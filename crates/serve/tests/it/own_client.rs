//! The client with which servers are measured, against Leandisk's server and QEMU's.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use crate::common::Served;
use block::ErrorKind;
use nbd::{Client, Corrupt};

/// Writes, trims and reads; the disk has 1 MiB.
fn use_it(socket: &Path, name: &str) {
    let mut client = Client::connect(socket, name).unwrap();
    assert_eq!(client.len_bytes(), 1 << 20);
    assert!(client.can_trim());
    client.begin_write(4096, &[7; 8192]).unwrap();
    assert_eq!(client.begin_flush().unwrap_err().kind(), ErrorKind::Invalid, "one at a time");
    client.finish(&mut []).unwrap();
    client.begin_trim(8192, 4096).unwrap();
    client.finish(&mut []).unwrap();
    client.begin_flush().unwrap();
    client.finish(&mut []).unwrap();
    let mut buf = [1; 4096];
    client.begin_read(4096, 4096).unwrap();
    client.finish(&mut buf).unwrap();
    assert_eq!(buf, [7; 4096]);
    client.begin_read((1 << 20) - 100, 200).unwrap();
    assert_eq!(client.finish(&mut buf).unwrap_err().kind(), ErrorKind::Io, "past the end");
    client.begin_read(0, 4096).unwrap();
    client.finish(&mut buf).unwrap();
    assert_eq!(buf, [0; 4096], "the connection lives on");
    assert_eq!(client.finish(&mut buf).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(client.begin_trim(0, 64 << 20).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn it_uses_our_server() {
    let mut served = Served::new(1 << 20);
    use_it(&served.socket, "disk");
    use_it(&served.socket, "");
    let error = Client::connect(&served.socket, "another").err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Refused);
    served.stop().unwrap();
    assert_eq!(Client::connect(&served.socket, "disk").err().unwrap().kind(), ErrorKind::Io);
}

/// Bytes that tell where they are from.
fn pattern(from: u64, len: usize) -> Vec<u8> {
    (from..).take(len).map(|at| (at * 7 + at / 4093) as u8).collect()
}

#[test]
fn pages_that_are_lent_are_what_was_written() {
    const LEN_BYTES: u64 = 4 << 20;
    let served = Served::new(LEN_BYTES);
    let mut client = Client::connect(&served.socket, "disk").unwrap();
    for at in (0..LEN_BYTES).step_by(1 << 20) {
        client.begin_write(at, &pattern(at, 1 << 20)).unwrap();
        client.finish(&mut []).unwrap();
    }
    // Within pages and across them, up to what a pipe holds, and more.
    for at in [0, 1, 4095, 4096, 1_000_001] {
        for len in [32 << 10, (32 << 10) + 1, 65_535, 1 << 20, (1 << 20) + 4096, 2 << 20] {
            let mut buf = vec![0; len];
            client.begin_read(at, len).unwrap();
            client.finish(&mut buf).unwrap();
            assert!(buf == pattern(at, len), "{len} bytes from {at}");
        }
    }
    assert!(served.disk.lent.load(SeqCst) > 10);
    // What fails is answered, and what comes after it as well.
    let mut buf = vec![0; 1 << 20];
    served.disk.fails_above.store(1 << 20, SeqCst);
    client.begin_read(1 << 20, 1 << 20).unwrap();
    assert_eq!(client.finish(&mut buf).unwrap_err().kind(), ErrorKind::Io);
    client.begin_read(0, 1 << 20).unwrap();
    client.finish(&mut buf).unwrap();
    assert!(buf == pattern(0, 1 << 20));
    let reads = served.monitor.snapshot().logical.reads;
    assert_eq!(reads, 32, "each is counted once");
}

#[test]
fn it_uses_qemus_server() {
    let dir = testkit::scratch();
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::File::create(path("disk.raw")).unwrap().set_len(1 << 20).unwrap();
    // It returns once it listens.
    testkit::run(
        "qemu-nbd",
        &[
            "--fork",
            "--format=raw",
            "--discard=unmap",
            &format!("--socket={}", path("socket")),
            &path("disk.raw"),
        ],
    );
    use_it(&dir.path().join("socket"), "");
    let started = Instant::now();
    while dir.path().join("socket").exists() {
        assert!(started.elapsed() < Duration::from_secs(30), "it goes when its client took leave");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_is_no_server_is_an_error() {
    let dir = testkit::scratch();
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let http = &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..];
    let old = &b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53\x00\x00"[..];
    for (said, cause) in
        [(http, Some(Corrupt::Greeting)), (old, Some(Corrupt::Style)), (b"NBDMAGIC", None), (b"", None)]
    {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                std::io::Write::write_all(&mut stream, said).unwrap();
            });
            let error = Client::connect(&socket, "").err().unwrap();
            assert_eq!(error.cause(), cause.as_ref(), "{error}");
            assert_eq!(error.kind(), cause.map_or(ErrorKind::Io, |_| ErrorKind::Corrupt), "{error}");
        });
    }
}
