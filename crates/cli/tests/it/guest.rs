//! A guest boots from a served disk, formats a part of it, writes, deletes, trims, reboots, and finds all that it wrote: a Debian
//! kernel under QEMU, without hardware help.
//!
//! The kernel is fetched once, with `apt-get download`, and the disk that it boots from is kept with the build.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{arg, succeed};
use crate::serving::Serving;
use testkit::{run, scratch};

const SCRIPT: &str = include_str!("../scripts/make-boot-disk");
const KERNEL_PACKAGE: &str = include_str!("../../../../dev/testkit/scripts/kernel-package");
const PROGRAM: &str = include_str!("../scripts/boot-init.c");
/// How long a guest may take to do it all.
const TIME_MAX: Duration = Duration::from_secs(400);

/// A raw disk that boots.
fn boot_disk() -> PathBuf {
    let mut hasher = DefaultHasher::new();
    (SCRIPT, PROGRAM, KERNEL_PACKAGE).hash(&mut hasher);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fixtures");
    let path = folder.join(format!("boot-{:016x}.raw", hasher.finish()));
    if !path.exists() {
        fs::create_dir_all(&folder).unwrap();
        let work = tempfile::tempdir_in(&folder).unwrap();
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
        let [script, program] = ["make-boot-disk", "boot-init.c"].map(|name| scripts.join(name));
        let package = work.path().join("kernel-package");
        fs::write(&package, KERNEL_PACKAGE).unwrap();
        run("bash", &[arg(&script), arg(work.path()), arg(&program), arg(&package)]);
        // Of two that are made at the same time one stays.
        fs::rename(work.path().join("boot.raw"), &path).unwrap();
    }
    path
}

/// Boots from the address and answers what the guest said.
fn boot(address: &str, dir: &Path) -> String {
    let log = dir.join("log");
    let drive = format!("file={address},if=virtio,format=raw,cache=none,discard=unmap,detect-zeroes=unmap");
    let mut guest = Command::new("qemu-system-x86_64")
        .args(["-accel", "tcg", "-m", "512", "-display", "none", "-nodefaults", "-net", "none"])
        .args(["-serial", &format!("file:{}", log.display()), "-drive", &drive])
        .stdin(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("qemu-system-x86_64: {error}; `make test` installs what the tests need")
        });
    let started = Instant::now();
    loop {
        let ended = guest.try_wait().unwrap();
        let said = || String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
        if let Some(status) = ended {
            assert!(status.success(), "qemu-system-x86_64: {status}\n{}", said());
            return said();
        }
        if started.elapsed() > TIME_MAX {
            let _ = guest.kill();
            let _ = guest.wait();
            panic!("the guest does not end:\n{}", said());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn a_guest_on(name: &str, qemu_format: &str, is_checkable: bool) {
    let began = Instant::now();
    let dir = scratch();
    let disk = dir.path().join(name);
    succeed(&["copy", arg(&boot_disk()), arg(&disk)]);
    let server = Serving::start(&disk);
    let said = boot(&server.address, dir.path());
    server.stop();
    let words: Vec<&str> = said.lines().filter_map(|line| line.trim_end().strip_prefix("| ")).collect();
    let is_right = matches!(words[..], [trimmed, "WRITTEN", "DONE"] if trimmed.starts_with("trimmed "));
    assert!(is_right, "{name}: {words:?} of\n{said}");
    if is_checkable {
        run("qemu-img", &["check", "-q", "-f", qemu_format, arg(&disk)]);
    }
    // The same judge from outside.
    let raw = dir.path().join("after.raw");
    run("qemu-img", &["convert", "-f", qemu_format, "-O", "raw", arg(&disk), arg(&raw)]);
    let start = run("sfdisk", &["-q", "-l", "-o", "START", arg(&raw)]);
    let start: u64 = start.split_whitespace().last().unwrap().parse().unwrap();
    let volume = format!("{}?offset={}", arg(&raw), start * 512);
    run("e2fsck", &["-fn", &volume]);
    println!("{name}: {:.0} s", began.elapsed().as_secs_f64());
}

#[test]
fn a_guest_boots_formats_writes_and_reboots() {
    a_guest_on("disk.qcow2", "qcow2", true);
}

#[test]
#[ignore = "boots two kernels for each format, which takes minutes: make guest"]
fn a_guest_on_every_format() {
    for (name, format, is_checkable) in [
        ("disk.raw", "raw", false),
        ("disk.vhdx", "vhdx", true),
        ("disk.vhd", "vpc", false),
        ("disk.vmdk", "vmdk", true),
        ("disk.vdi", "vdi", true),
    ] {
        a_guest_on(name, format, is_checkable);
    }
}
