//! Real clients: qemu-img, qemu-io, nbdinfo, nbdcopy, libnbd in Python, fio.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::SeqCst;

use crate::common;
use crate::common::{RawDisk, Served};
use testkit::run;

const MIB: u64 = 1 << 20;

fn pattern(len: usize) -> Vec<u8> {
    let mut random = sim::Random::new(7);
    (0..len).map(|_| random.next_u64() as u8).collect()
}

#[test]
fn qemu_img_reads_writes_and_maps() {
    let served = Served::new(16 * MIB);
    let source = served.path("source.raw");
    let mut bytes = pattern(3 << 20);
    bytes.resize(16 << 20, 0);
    bytes[10 << 20..11 << 20].fill(7);
    std::fs::write(&source, &bytes).unwrap();
    let uri = served.uri();

    let info = run("qemu-img", &["info", "--output=json", &uri]);
    assert!(info.contains("\"virtual-size\": 16777216"), "{info}");
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "-W", "-m", "8", &source, &uri]);
    assert_eq!(std::fs::read(served.dir.path().join("disk.raw")).unwrap(), bytes);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &source, &uri]);
    // Zeros took no space on their way.
    let blocks = std::fs::metadata(served.dir.path().join("disk.raw")).unwrap().blocks();
    assert!(blocks * 512 <= 5 << 20, "{blocks}");
    let map: serde_json::Value =
        serde_json::from_str(&run("qemu-img", &["map", "--output=json", "-f", "raw", &uri])).unwrap();
    let data: Vec<(u64, u64)> = map
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["data"] == true)
        .map(|entry| (entry["start"].as_u64().unwrap(), entry["length"].as_u64().unwrap()))
        .collect();
    assert_eq!(data, [(0, 3 << 20), (10 << 20, 1 << 20)], "{map}");
    let back = served.path("back.qcow2");
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, &back]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &source, &back]);
}

#[test]
fn qemu_io_zeros_discards_and_flushes() {
    let served = Served::new(16 * MIB);
    let uri = served.uri();
    let flushes = || served.disk.flushes.load(SeqCst);
    let io = |commands: &[&str]| {
        let mut args = vec!["-f", "raw", "-t", "none", "-d", "unmap"];
        commands.iter().for_each(|command| args.extend(["-c", command]));
        args.push(&uri);
        let said = run("qemu-io", &args);
        assert!(!said.contains("failed") && !said.contains("error"), "{said}");
    };
    io(&["write -P 0x5a 0 8M", "read -P 0x5a 0 8M", "flush"]);
    let before = flushes();
    io(&["write -f -P 0x11 64k 4k", "read -P 0x11 64k 4k", "read -P 0x5a 68k 4k"]);
    assert!(flushes() > before);
    io(&[
        "write -z 1M 64k",
        "read -P 0 1M 64k",
        "write -z -u 2M 1M",
        "read -P 0 2M 1M",
        "read -P 0x5a 3M 64k",
    ]);
    io(&["discard 4M 2M", "read -P 0 4M 2M", "writev -P 3 6M 512 1k 3k", "read -P 3 6M 4608"]);
    io(&[
        "aio_write -P 9 9M 64k",
        "aio_write -P 8 10M 64k",
        "aio_flush",
        "read -P 9 9M 64k",
        "read -P 8 10M 64k",
    ]);
    let blocks = std::fs::metadata(served.dir.path().join("disk.raw")).unwrap().blocks() * 512;
    assert!(blocks < (8 << 20) - (2 << 20), "what was discarded is given back: {blocks}");
}

#[test]
fn qemu_img_sees_a_read_only_export() {
    let served = Served::with(MIB, serve::nbd::Options::default(), serve::Export::read_only);
    let output = std::process::Command::new("qemu-io")
        .args(["-f", "raw", "-c", "write 0 512", &served.uri()])
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && said.contains("Permission denied"), "{said}");
    run("qemu-io", &["-r", "-f", "raw", "-c", "read -P 0 0 512", &served.uri()]);
}

#[test]
fn libnbd_tools() {
    let served = Served::new(16 * MIB);
    let uri = served.uri();
    let info: serde_json::Value = serde_json::from_str(&run("nbdinfo", &["--json", &uri])).unwrap();
    let export = &info["exports"][0];
    assert_eq!(info["structured"], true);
    for ability in [
        "can_cache",
        "can_df",
        "can_fast_zero",
        "can_flush",
        "can_fua",
        "can_multi_conn",
        "can_trim",
        "can_zero",
    ] {
        assert_eq!(export[ability], true, "{ability} of {export}");
    }
    assert_eq!(export["contexts"][0], "base:allocation");
    assert_eq!(export["block_size_maximum"], 32 << 20);
    assert!(run("nbdinfo", &["--list", &uri]).contains("a raw disk"));

    let source = served.path("source.raw");
    let mut bytes = pattern(5 << 20);
    bytes.resize(16 << 20, 0);
    std::fs::write(&source, &bytes).unwrap();
    run("nbdcopy", &["--connections=4", "--requests=16", "--flush", &source, &uri]);
    assert_eq!(std::fs::read(served.dir.path().join("disk.raw")).unwrap(), bytes);
    let back = served.path("back.raw");
    run("nbdcopy", &["--connections=4", "--request-size=1048576", &uri, &back]);
    assert_eq!(std::fs::read(&back).unwrap(), bytes);
    let map = run("nbdinfo", &["--map", &uri]);
    let fields: Vec<&str> = map.split_whitespace().collect();
    assert_eq!(fields[..4], ["0", "5242880", "0", "data"], "{map}");
    assert!(map.contains("hole,zero"), "{map}");
}

#[test]
fn libnbd_by_python() {
    let served = Served::new(4 * MIB);
    let script = "
import errno
import nbd
h = nbd.NBD()
h.add_meta_context('base:allocation')
h.set_export_name('disk')
h.set_strict_mode(0)
h.connect_unix(SOCKET)
assert h.get_structured_replies_negotiated()
assert h.can_meta_context('base:allocation')
h.pwrite(b'x' * 65536, 1 << 20)
h.pwrite(b'y' * 512, (1 << 20) + 512, nbd.CMD_FLAG_FUA)
assert h.pread(1024, 1 << 20) == b'x' * 512 + b'y' * 512
found = []
def chunk(data, offset, status, error):
    found.append((offset, len(data), status))
h.pread_structured(65536, 1 << 20, chunk, nbd.CMD_FLAG_DF)
assert found == [(1 << 20, 65536, nbd.READ_DATA)], found
h.zero(4096, 1 << 20)
h.zero(4096, (1 << 20) + 4096, nbd.CMD_FLAG_NO_HOLE)
h.trim(4096, (1 << 20) + 8192)
h.cache(65536, 1 << 20)
assert h.pread(16384, 1 << 20) == b'\\0' * 12288 + b'x' * 4096
extents = []
h.block_status(4 << 20, 0, lambda name, offset, entries, error: extents.extend(entries))
assert extents[:2] == [(1 << 20) + 4096, 3], extents
assert sum(extents[::2]) == 4 << 20, extents
def fails(number, what):
    try:
        what()
    except nbd.Error as error:
        assert error.errnum == number, error
        return
    assert False, 'succeeded'
fails(errno.EINVAL, lambda: h.pread(512, 4 << 20))
fails(errno.ENOSPC, lambda: h.pwrite(b'z' * 512, 4 << 20))
fails(errno.ENOTSUP, lambda: h.zero(512, 0, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FAST_ZERO))
h.flush()
h.shutdown()
";
    let script = script.replace("SOCKET", &format!("{:?}", served.socket.display().to_string()));
    // The distribution's Python, whichever comes first in the path: that one has libnbd.
    run("/usr/bin/python3", &["-c", &script]);
}

#[test]
fn fio_verifies_what_it_wrote() {
    let served = Served::new(32 * MIB);
    let uri = format!("--uri=nbd+unix:///disk?socket={}", served.socket.display());
    let said = run(
        "fio",
        &[
            "--name=mixed",
            "--verify_state_save=0",
            "--ioengine=nbd",
            &uri,
            "--rw=randrw",
            "--bsrange=4k-64k",
            "--iodepth=32",
            "--size=32m",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--do_verify=1",
            "--fsync=64",
            "--number_ios=3000",
            "--group_reporting",
        ],
    );
    assert!(said.contains("err= 0"), "{said}");
    let snapshot = served.monitor.snapshot();
    assert!(
        snapshot.outstanding.all.max.unwrap() > 4,
        "the depth of the client's queue is seen: {:?}",
        snapshot.outstanding.all
    );
    assert!(snapshot.flushes > 0);
}

/// What it can do is compared with qemu-nbd's answers about the same file.
#[test]
fn qemu_nbd_says_the_same_of_a_file() {
    let served = Served::new(16 * MIB);
    run("qemu-io", &["-f", "raw", "-c", "write 1M 64k", "-c", "write 9M 1M", &served.uri()]);
    let socket = served.path("qemu.sock");
    // It returns once it listens, and goes when its client took leave.
    run("qemu-nbd", &["--fork", "-f", "raw", "-x", "disk", "-k", &socket, &served.path("disk.raw")]);
    let theirs = run("nbdinfo", &["--map", &format!("nbd+unix:///disk?socket={socket}")]);
    assert_eq!(run("nbdinfo", &["--map", &served.uri()]), theirs);
}

#[test]
fn two_hundred_files_are_not_left_open() {
    let served = Served::new(MIB);
    // Other tests of this program run meanwhile, and have pipes and files.
    let is_socket = |entry: &std::io::Result<std::fs::DirEntry>| {
        std::fs::read_link(entry.as_ref().unwrap().path())
            .is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    };
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().filter(is_socket).count();
    let mut client = common::client::Client::ready(&served.socket, "disk");
    client.read(0, 1);
    let before = open();
    for _ in 0..200 {
        common::client::Client::ready(&served.socket, "disk").read(0, 1);
    }
    while served.server.as_ref().unwrap().connection_count() > 1 {
        std::thread::yield_now();
    }
    assert!(open() < before + 100);
    let _: &RawDisk = &served.disk;
}
