//! Disks that are compacted when they are no longer served: they hold and take what `compact` makes of them, and what it refuses is left as
//! it was, with the reason.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{arg, leandisk, signal, succeed};
use testkit::{Guest, Inside, run, scratch};

const MIB: u64 = 1 << 20;

/// File, QEMU's format, its options; whether its file gets shorter.
const KINDS: [(&str, &str, &str, bool); 6] = [
    ("disk.raw", "raw", "preallocation=off", false),
    ("disk.qcow2", "qcow2", "cluster_size=64k", true),
    ("disk.vhd", "vpc", "subformat=dynamic,force_size=on", true),
    ("disk.vhdx", "vhdx", "subformat=dynamic,block_size=1M", true),
    ("disk.vmdk", "vmdk", "subformat=monolithicSparse", true),
    ("disk.vdi", "vdi", "static=off", false),
];

fn make(raw: &Path, dir: &Path, (file, format, options, _): (&str, &str, &str, bool)) -> PathBuf {
    let path = dir.join(file);
    run("qemu-img", &["convert", "-f", "raw", "-O", format, "-o", options, arg(raw), arg(&path)]);
    path
}

/// A server, and what it has said.
struct Server {
    child: Child,
    messages: PathBuf,
    address: String,
}

impl Server {
    fn start(disk: &Path, more: &[&str]) -> Self {
        Self::start_by(leandisk(), disk, &[&["--confine", "always"], more].concat())
    }

    /// One that is killed at its n-th flush.
    fn start_doomed(disk: &Path, number: usize) -> Self {
        let inject = format!("inject=fdatasync:signal=KILL:when={number}");
        let mut strace = Command::new("strace");
        let trace = ["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e"];
        strace.args(trace).args([&inject, &common::program()]);
        Self::start_by(strace, disk, &["--confine", "never"])
    }

    fn start_by(mut command: Command, disk: &Path, more: &[&str]) -> Self {
        let dir = disk.parent().unwrap();
        let (socket, messages) = (dir.join("socket"), dir.join("messages"));
        let said = File::create(&messages).unwrap();
        let args = ["serve", arg(disk), "--name", "disk", "--socket", arg(&socket), "--compact-at-close"];
        let child = command.args(args).args(more).stderr(said).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while !fs::read_to_string(&messages).unwrap().contains("nbd") {
            assert!(Instant::now() < until, "it does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        let address = format!("nbd+unix:///disk?socket={}", socket.display());
        Self { child, messages, address }
    }

    /// Ends the server that strace started; answers whether it was killed before it ended by itself.
    fn stop_doomed(mut self) -> bool {
        let tracer = self.child.id();
        let children = fs::read_to_string(format!("/proc/{tracer}/task/{tracer}/children")).unwrap();
        for server in children.split_whitespace() {
            run("kill", &["-TERM", server]);
        }
        !self.child.wait().unwrap().success()
    }

    /// Ends it, which it shall do well; answers what it said.
    fn stop(mut self) -> String {
        signal(&self.child, "TERM");
        let status = self.child.wait().unwrap();
        let said = fs::read_to_string(&self.messages).unwrap();
        assert!(status.success(), "{status}: {said}");
        said
    }
}

/// Storage and length of a file.
fn sizes(path: &Path) -> (u64, u64) {
    run("sync", &["-f", arg(path)]);
    let metadata = path.metadata().unwrap();
    (metadata.blocks() * 512, metadata.len())
}

/// What the disk reads as, in a new raw file.
fn to_raw(image: &Path, format: &str, name: &str) -> PathBuf {
    let raw = image.with_file_name(name);
    let options = match format {
        "vpc" => format!("driver=vpc,force_size_calc=current_size,file.filename={}", image.display()),
        format => format!("driver={format},file.filename={}", image.display()),
    };
    run("qemu-img", &["convert", "--image-opts", "-O", "raw", &options, arg(&raw)]);
    raw
}

/// Each sector of `disk` is what it is in `source`, or zeros.
fn assert_same_or_zeros(disk: &Path, source: &Path) {
    let [disk, source] = [disk, source].map(|path| fs::read(path).unwrap());
    let sectors = disk.chunks(512).zip(source.chunks(512)).enumerate();
    for (number, (is, was)) in sectors {
        assert!(is == was || is.iter().all(|&byte| byte == 0), "sector {number}");
    }
    assert!(disk.len() >= source.len());
}

#[test]
fn what_the_guest_does_not_use_goes_when_the_disk_is_closed() {
    for (guest, inside) in Guest::both().into_iter().zip(["one guest", "the other"]) {
        for kind @ (file, format, _, gets_shorter) in KINDS {
            let (dir, compacted) = (scratch(), scratch());
            let disk = make(&guest.disk, dir.path(), kind);
            let model = make(&guest.disk, compacted.path(), kind);
            let before = sizes(&disk);
            let server = Server::start(&disk, &[]);
            // A guest that starts and stops: it reads.
            run("qemu-io", &["-r", "-f", "raw", "-c", "read 0 1M", &server.address]);
            let said = server.stop();
            assert!(said.contains("compacted '"), "{file} {inside}: {said}");
            let moves = if format == "vdi" { "never" } else { "auto" };
            succeed(&["compact", arg(&model), "--move", moves]);
            let (after, of_model) = (sizes(&disk), sizes(&model));
            println!("{file} {inside}: {before:?} {after:?} {of_model:?}");
            assert!(before.0 - after.0 > 10 * MIB, "{file} {inside}: it gave back {before:?} {after:?}");
            assert!(after.0 <= of_model.0 + 2 * MIB, "{file} {inside}: {after:?} {of_model:?}");
            assert_eq!(after.1 < before.1, gets_shorter, "{file} {inside}: {before:?} {after:?}");
            // What the guest does not use may be gone or not: that depends on what the host's cache holds of the image's file.
            let raw = to_raw(&disk, format, "back.raw");
            assert_same_or_zeros(&raw, &guest.disk);
            guest.check(&raw);
            if !["raw", "vpc"].contains(&format) {
                run("qemu-img", &["check", "-q", "-f", format, arg(&disk)]);
            }
        }
    }
}

#[test]
fn what_compact_refuses_is_left_with_the_reason() {
    let guest = Guest::get(Inside::Ext4);
    let dir = scratch();
    let of =
        |said: &str, why: &str| assert!(said.contains("is not compacted") && said.contains(why), "{said}");
    // A disk that stands on another one.
    let parent = make(&guest.disk, dir.path(), KINDS[1]);
    let child = dir.path().join("child.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", arg(&parent), arg(&child)]);
    let before = fs::read(&parent).unwrap();
    of(&Server::start(&child, &[]).stop(), "stands on");
    assert!(fs::read(&parent).unwrap() == before, "the parent is as it was");
    run("qemu-img", &["check", "-q", arg(&child)]);
    // One that keeps its storage.
    fs::remove_file(&child).unwrap();
    let held = sizes(&parent).0;
    of(&Server::start(&parent, &["--provision", "lazy"]).stop(), "--provision");
    assert_eq!(sizes(&parent).0, held);
    // One without a volume that is understood, in which a client wrote.
    let unknown = dir.path().join("unknown.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", arg(&unknown), "64M"]);
    let server = Server::start(&unknown, &[]);
    run("qemu-io", &["-f", "raw", "-c", "write -P 7 3M 5M", &server.address]);
    of(&server.stop(), "");
    run("qemu-io", &["-r", "-f", "qcow2", "-c", "read -P 7 3M 5M", arg(&unknown)]);
}

/// Killed at any flush, the disk is what it was, and is served and compacted by who comes next.
#[test]
fn killed_while_it_is_compacted_the_disk_is_whole() {
    let guest = Guest::get(Inside::Ext4);
    let dir = scratch();
    let model = dir.path().join("model");
    for kind @ (file, format, _, _) in KINDS {
        let disk = make(&guest.disk, dir.path(), kind);
        fs::rename(&disk, &model).unwrap();
        let mut killed_count = 0;
        loop {
            run("cp", &["--sparse=always", arg(&model), arg(&disk)]);
            if !Server::start_doomed(&disk, killed_count + 1).stop_doomed() {
                break;
            }
            killed_count += 1;
            let said = Server::start(&disk, &[]).stop();
            // A VMDK keeps saying that it was not closed, as after any kill of who wrote to it.
            let is_unclosed = format == "vmdk" && said.contains("was not closed properly");
            assert!(said.contains("compacted '") || is_unclosed, "{file}, flush {killed_count}: {said}");
            guest.check(&to_raw(&disk, format, "back.raw"));
            if !["raw", "vpc"].contains(&format) {
                // 3: clusters that nothing refers to, as any kill of a server may leave.
                let checked =
                    Command::new("qemu-img").args(["check", "-q", "-f", format, arg(&disk)]).status();
                assert!(
                    [Some(0), Some(3)].contains(&checked.unwrap().code()),
                    "{file}, flush {killed_count}"
                );
            }
        }
        println!("{file}: killed at each of {killed_count} flushes");
        assert!(killed_count > 0, "{file}");
    }
}
