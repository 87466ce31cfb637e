//! The kernel's own NTFS driver as a judge: a Debian kernel under QEMU, without hardware help, mounts the volume.
//!
//! The kernel is fetched once, with `apt-get download`, and kept with the build.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::guest::{fixtures, script};
use crate::tools::scratch;

/// How long the guest may take to boot, read all files and power off.
const TIME_MAX: Duration = Duration::from_secs(300);

/// All that ntfs3 shows of the NTFS volume in a file, a line for each path: number, mode, owner, links, size, times,
/// attributes and security (hashed), contents (hashed). Streams are not shown.
///
/// Panics unless the volume can be mounted read-only, then read-write, and then shows the same. The file is not changed.
pub fn tree_by_ntfs3(volume: &Path) -> Vec<String> {
    let said = boot(volume);
    let lines: Vec<&str> = said.lines().filter_map(|line| line.trim_end().strip_prefix("| ")).collect();
    assert_eq!(lines.last(), Some(&"DONE"), "{}: the guest said:\n{said}", volume.display());
    let complaint =
        said.lines().find(|line| line.contains("ntfs3") && !line.starts_with('|') && is_complaint(line));
    assert!(complaint.is_none(), "{}: {complaint:?}", volume.display());
    let second = lines.iter().position(|line| *line == "== 1").expect("two walks");
    let (first, second) = (&lines[1..second], &lines[second + 1..lines.len() - 1]);
    assert_eq!(first, second, "before and after a mount read-write");
    first.iter().map(|line| (*line).to_owned()).collect()
}

/// The driver tells on loading what it was built with, and of each encrypted file that it reads none of it.
fn is_complaint(line: &str) -> bool {
    ![
        "Enabled Linux POSIX ACLs",
        "Read-only LZX",
        "Activated 64 bits",
        "Max link count",
        "encrypted i/o not supported",
    ]
    .iter()
    .any(|told| line.contains(told))
}

fn boot(volume: &Path) -> String {
    let kernel = kernel();
    let dir = scratch();
    let log = dir.path().join("log");
    let drive = format!("file={},if=virtio,format=raw,snapshot=on", volume.display());
    let mut guest = Command::new("qemu-system-x86_64")
        .args(["-accel", "tcg", "-m", "512", "-display", "none", "-no-reboot", "-nodefaults", "-net", "none"])
        .arg("-kernel")
        .arg(kernel.join("vmlinuz"))
        .arg("-initrd")
        .arg(kernel.join("initrd"))
        .args(["-append", "console=ttyS0 loglevel=5 panic=-1 mitigations=off"])
        .args(["-serial", &format!("file:{}", log.display()), "-drive", &drive])
        .stdin(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("qemu-system-x86_64: {error}; install qemu-system-x86"));
    let started = Instant::now();
    loop {
        if let Some(status) = guest.try_wait().unwrap() {
            let said = fs::read(&log).unwrap_or_default();
            assert!(status.success(), "qemu-system-x86_64: {status}");
            return String::from_utf8_lossy(&said).into_owned();
        }
        if started.elapsed() > TIME_MAX {
            let _ = guest.kill();
            let _ = guest.wait();
            let said = fs::read(&log).unwrap_or_default();
            panic!("the guest does not end:\n{}", String::from_utf8_lossy(&said));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Where the kernel and the RAM disk are.
fn kernel() -> &'static Path {
    static KERNEL: OnceLock<PathBuf> = OnceLock::new();
    KERNEL.get_or_init(|| {
        let dir = fixtures().join(format!("kernel-{:016x}", crate::guest::version()));
        if dir.exists() {
            return dir;
        }
        fs::create_dir_all(fixtures()).unwrap();
        let fresh = tempfile::tempdir_in(fixtures()).unwrap();
        script("make-guest-kernel", fresh.path(), "", &[]);
        if let Err(error) = fs::rename(fresh.path(), &dir) {
            assert!(dir.exists(), "{}: {error}", dir.display());
        }
        dir
    })
}
