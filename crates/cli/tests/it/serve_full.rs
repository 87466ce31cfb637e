//! A disk that is served from a host without room: requests fail, the disk goes on and ends well, and QEMU finds nothing wrong with it.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::{arg, leandisk};
use tempfile::TempDir;
use testkit::{HostMount, run, scratch};

const MIB: u64 = 1 << 20;
/// QEMU's name, the file extension, and whether `qemu-img check` knows it.
type Format = (&'static str, &'static str, bool);
/// All that are served for writing.
const FORMATS: [Format; 6] = [
    ("raw", "raw", false),
    ("qcow2", "qcow2", true),
    ("vhdx", "vhdx", true),
    ("vpc", "vhd", false),
    ("vdi", "vdi", true),
    ("vmdk", "vmdk", true),
];

/// Takes all room of the host but for some KiB; gives it back when it goes.
struct Filled<'a>(&'a HostMount);

impl<'a> Filled<'a> {
    fn but_for(mount: &'a HostMount, left_bytes: u64) -> Self {
        let path = mount.path().join("filled");
        let len_bytes = mount.available_bytes().saturating_sub(left_bytes + 4 * MIB);
        run("fallocate", &["-l", &len_bytes.to_string(), arg(&path)]);
        let mut file = File::options().append(true).open(&path).unwrap();
        let piece = [7; 64 << 10];
        while mount.available_bytes() > left_bytes
            && file.write_all(&piece).and_then(|()| file.sync_all()).is_ok()
        {}
        Self(mount)
    }
}

impl Drop for Filled<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.0.path().join("filled"));
    }
}

/// A server whose socket and messages are on another file system. Killed if a test ends without it.
struct Serving {
    child: Child,
    address: String,
    dir: TempDir,
}

impl Serving {
    fn start(disk: &Path) -> Self {
        let dir = scratch();
        let (socket, said) = (dir.path().join("s"), dir.path().join("said"));
        let mut command = leandisk();
        command.args(["serve", arg(disk), "--name", "disk", "--socket", arg(&socket)]);
        let child = command.stderr(File::create(&said).unwrap()).spawn().unwrap();
        let server = Self { child, address: format!("nbd+unix:///disk?socket={}", arg(&socket)), dir };
        let deadline = Instant::now() + Duration::from_secs(30);
        while !server.said().contains("serving") {
            assert!(Instant::now() < deadline, "it does not serve: {}", server.said());
            sleep(Duration::from_millis(10));
        }
        server
    }

    fn said(&self) -> String {
        fs::read_to_string(self.dir.path().join("said")).unwrap()
    }

    /// Asks it to end; whether all that was written is stored. If not, it says so.
    fn stop(mut self) -> bool {
        run("kill", &["-TERM", &self.child.id().to_string()]);
        let status = self.child.wait().unwrap();
        let said = self.said();
        let is_told = status.code() == Some(5) && said.contains("No space left");
        assert!(status.success() || is_told, "{status}: {said}");
        status.success()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What qemu-io says, whether it was content or not.
fn ask(address: &str, command: &str) -> String {
    let args = ["-f", "raw", "-t", "writeback", "-d", "unmap", "-c", command, address];
    let output = Command::new("qemu-io").args(args).output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

fn is_refused(said: &str) -> bool {
    said.contains("No space left on device")
}

fn reads(driver: &str, disk: &Path, pattern: &str, start: &str, len: &str) -> bool {
    let said =
        run("qemu-io", &["-r", "-f", driver, "-c", &format!("read -P {pattern} {start} {len}"), arg(disk)]);
    !said.contains("failed")
}

fn one_format(mount: &HostMount, (driver, extension, is_checked): Format, left_bytes: u64) -> bool {
    let what = format!("{driver}, {left_bytes} bytes left");
    let disk = mount.path().join(format!("disk.{extension}"));
    run("qemu-img", &["create", "-q", "-f", driver, arg(&disk), "48M"]);
    run("qemu-io", &["-f", driver, "-c", "write -P 1 0 1M", "-c", "flush", arg(&disk)]);
    // Before anything is reserved ahead.
    let filled = Filled::but_for(mount, left_bytes);
    let server = Serving::start(&disk);
    let is_small_written = !is_refused(&ask(&server.address, "write -P 2 8M 64k"));
    let said = ask(&server.address, "write -P 3 16M 24M");
    assert!(is_refused(&said), "{what}: {said}");
    let zeroed = ask(&server.address, "write -z -u 512k 64k");
    assert!(!zeroed.contains("failed") || is_refused(&zeroed), "{what}: {zeroed}");
    let flushed = ask(&server.address, "flush");
    assert!(!flushed.contains("failed") || is_refused(&flushed), "{what}: {flushed}");
    // It goes on.
    assert!(!ask(&server.address, "read -P 1 0 64k").contains("failed"), "{what}");
    let is_stored = server.stop();
    assert!(is_stored || left_bytes == 0, "{what}: some room is kept for the end");
    if is_checked {
        run("qemu-img", &["check", "-q", "-f", driver, arg(&disk)]);
    }
    assert!(reads(driver, &disk, "1", "0", "512k"), "{what}");
    if is_small_written && is_stored {
        assert!(reads(driver, &disk, "2", "8M", "64k"), "{what}: it was closed in order");
    }
    drop(filled);
    let server = Serving::start(&disk);
    assert!(!ask(&server.address, "write -P 4 16M 24M").contains("failed"), "{what}: there is room again");
    assert!(server.stop(), "{what}");
    assert!(reads(driver, &disk, "4", "16M", "24M"), "{what}");
    if is_checked {
        run("qemu-img", &["check", "-q", "-f", driver, arg(&disk)]);
    }
    fs::remove_file(&disk).unwrap();
    is_small_written
}

fn all_formats(filesystem: &str) {
    let mount = HostMount::new(filesystem, 400 * MIB);
    let written = FORMATS.into_iter().filter(|format| one_format(&mount, *format, 3 * MIB)).count();
    println!("{filesystem}: {written} small writes found room");
    // No room at all: for formats that have the most to put in order.
    for format in FORMATS.into_iter().filter(|format| ["qcow2", "vhdx"].contains(&format.0)) {
        one_format(&mount, format, 0);
    }
}

#[test]
fn a_full_host_on_ext4() {
    all_formats("ext4");
}

#[test]
fn a_full_host_on_xfs() {
    all_formats("xfs");
}

#[test]
fn a_full_host_on_btrfs() {
    all_formats("btrfs");
}
