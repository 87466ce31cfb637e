//! Copies that end before their time: a full disk, a dying source, a kill, a signal. Nothing is ever under the
//! target's name that is not a whole copy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{
    SOURCES, TARGETS, Target, Untouched, arg, assert_same_bytes, fail, kill_and_resume, leandisk, names_in,
    output, succeed,
};
use testkit::{Guest, Inside, as_root, run, scratch};

/// A small file system of its own, gone with the value.
struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    fn new(size: &str) -> Self {
        let dir = scratch();
        let options = format!("size={size},mode=0777");
        let mounted = as_root("mount", &["-t", "tmpfs", "-o", &options, "leandisk-test", arg(dir.path())]);
        assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
        Self { dir }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        testkit::loops::unmount(self.dir.path());
    }
}

#[test]
fn a_full_disk_leaves_nothing() {
    let guest = Guest::get(Inside::Ntfs);
    let small = SmallDisk::new("6M");
    let dir = small.dir.path();
    for target in &TARGETS {
        let path = dir.join(target.name);
        // A fixed VHD asks for all of its storage at the start: that it will not get it is known before.
        let status = if target.name == "fixed.vhd" { 3 } else { 5 };
        let message = fail(status, &[&["copy", arg(&guest.disk), arg(&path)], target.args].concat());
        assert!(message.to_lowercase().contains("space"), "{}: {message}", target.name);
        assert_eq!(names_in(dir), Vec::<String>::new(), "{}", target.name);
    }
}

#[test]
fn a_full_disk_leaves_the_old_target() {
    let guest = Guest::get(Inside::Ntfs);
    let small = SmallDisk::new("6M");
    let path = small.dir.path().join("target.qcow2");
    fs::write(&path, "precious").unwrap();
    fail(5, &["copy", arg(&guest.disk), arg(&path), "--force"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_source_that_ends_early_is_an_error_and_no_target() {
    let guest = Guest::get(Inside::Ntfs);
    let dir = scratch();
    for source in SOURCES.iter().filter(|source| source.name.contains("flat")) {
        let from = scratch();
        let path = source.make(&guest.disk, from.path());
        let name = names_in(from.path()).into_iter().find(|name| *name != source.name).unwrap();
        let extent = from.path().join(name);
        fs::OpenOptions::new().write(true).open(extent).unwrap().set_len(20 << 20).unwrap();
        let output = output(&["copy", arg(&path), arg(&dir.path().join("target.qcow2"))]);
        assert!(matches!(output.status.code(), Some(3..=5)), "{output:?}");
        common::assert_only(dir.path(), &[]);
    }
}

/// A disk without waste, so that a copy takes long enough to be hit.
fn incompressible(dir: &Path) -> PathBuf {
    let path = dir.join("source.raw");
    let of = format!("of={}", path.display());
    run("dd", &["if=/dev/urandom", &of, "bs=1M", "count=96", "status=none"]);
    path
}

fn start(source: &Path, target: &Path, more: &[&str]) -> Child {
    leandisk()
        .args(["copy", arg(source), arg(target)])
        .args(more)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A loop device, gone with the value.
struct Loop {
    device: String,
}

impl Loop {
    fn new(file: &Path) -> Self {
        let output = as_root("losetup", &["--show", "-f", "--direct-io=on", arg(file)]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { device: String::from_utf8(output.stdout).unwrap().trim().to_owned() }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        as_root("losetup", &["-d", &self.device]);
    }
}

/// Copies as root, which devices ask for; answers the status and what was said.
fn copy_as_root(source: &str, target: &Path) -> (Option<i32>, String) {
    let output = as_root(&common::program(), &["copy", "-f", "raw", source, arg(target)]);
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_source_that_cannot_be_read_half_way_is_an_error_and_no_target() {
    let from = scratch();
    let source = incompressible(from.path());
    let device = Loop::new(&source);
    // The device stays as long as it was: what is gone from under it cannot be read.
    fs::OpenOptions::new().write(true).open(&source).unwrap().set_len(41 << 20).unwrap();
    let dir = scratch();
    for name in ["target.qcow2", "target.raw", "target.vhdx"] {
        let (status, message) = copy_as_root(&device.device, &dir.path().join(name));
        assert_eq!(status, Some(5), "{message}");
        assert!(message.contains(&device.device) && message.contains("0x"), "says what and where: {message}");
        common::assert_only(dir.path(), &[]);
    }
}

#[test]
fn a_target_that_cannot_be_written_half_way_is_an_error_and_not_under_its_name() {
    let from = scratch();
    let source = incompressible(from.path());
    // A file system that believes in more room than its device has.
    let small = SmallDisk::new("40M");
    let volume = small.dir.path().join("volume");
    run("truncate", &["-s", "256M", arg(&volume)]);
    run("mkfs.ext4", &["-q", "-F", "-O", "^has_journal", arg(&volume)]);
    let mounted = scratch();
    testkit::loops::mount(&["-o", "loop", arg(&volume), arg(mounted.path())]);
    let target = mounted.path().join("target.raw");
    let (status, message) = copy_as_root(arg(&source), &target);
    let is_there = target.exists();
    testkit::loops::unmount(mounted.path());
    assert_eq!(status, Some(5), "{message}");
    assert!(message.contains("target.raw"), "{message}");
    assert!(!is_there, "nothing is under the target's name");
}

/// Times after the start, from before anything happens until after all has.
fn moments() -> impl Iterator<Item = Duration> {
    let seed = std::process::id();
    println!("seed {seed}");
    (0..24u32).map(move |step| {
        let jitter = seed.wrapping_mul(2_654_435_761).wrapping_add(step.wrapping_mul(40_503)) >> 16;
        Duration::from_micros(u64::from(step) * 12_000 + u64::from(jitter % 12_000))
    })
}

#[test]
fn killed_at_any_moment_there_is_a_whole_target_or_none() {
    let from = scratch();
    let source = incompressible(from.path());
    let before = Untouched::all_in(from.path());
    let dir = scratch();
    let mut died = 0;
    for moment in moments() {
        let path = dir.path().join("plain.qcow2");
        let mut child = start(&source, &path, &["-o", "cluster_size=65536"]);
        sleep(moment);
        child.kill().unwrap();
        let status = child.wait().unwrap();
        died += u32::from(!status.success());
        if path.exists() {
            run("qemu-img", &["check", "-q", arg(&path)]);
            TARGETS[6].assert_identical(&path, &source);
            fs::remove_file(&path).unwrap();
        }
        // What a killed copy left is no obstacle to the next.
        let left = names_in(dir.path());
        assert!(left.iter().all(|name| name.starts_with('.') && name.contains("leandisk")), "{left:?}");
    }
    assert!(died > 3, "only {died} copies were hit");
    let path = dir.path().join("plain.qcow2");
    succeed(&["copy", arg(&source), arg(&path)]);
    TARGETS[6].assert_identical(&path, &source);
    common::assert_only(dir.path(), &["plain.qcow2"]);
    before.check(from.path());
}

/// Sends a signal by name. A process that ended meanwhile is no failure.
#[test]
fn killed_and_resumed_is_as_never_killed() {
    let from = scratch();
    let source = incompressible(from.path());
    let copy = |target: &Path| ["copy", arg(&source), arg(target)].map(str::to_owned).to_vec();
    let judge = |target: &Target, path: &Path| {
        let guest_view = path.with_file_name("guest-view");
        target.to_raw(path, &guest_view);
        assert_same_bytes(&guest_view, &source);
    };
    kill_and_resume(&TARGETS, copy, &[], judge, 4);
}

#[test]
fn a_signal_ends_it_with_130_and_no_target() {
    let from = scratch();
    let source = incompressible(from.path());
    for (name, delay) in [("INT", 40), ("TERM", 80)] {
        let dir = scratch();
        let path = dir.path().join("zlib.qcow2");
        // Compression with one thread takes seconds: the signal comes in the middle.
        let child = start(&source, &path, &["--compress", "--threads", "1"]);
        // It has begun when there is something of the target.
        let began = Instant::now();
        while fs::read_dir(dir.path()).unwrap().next().is_none() {
            assert!(began.elapsed() < Duration::from_secs(60), "nothing is made");
            sleep(Duration::from_millis(5));
        }
        sleep(Duration::from_millis(delay));
        common::signal(&child, name);
        let output = child.wait_with_output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{name}: {message}");
        assert!(!path.exists());
    }
}
