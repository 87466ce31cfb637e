//! A Debian kernel under QEMU, without hardware help, that works on a file system until it is killed, or shows what others hold: also of
//! file systems that the kernel of this machine does not mount.
//!
//! The kernel is fetched once, with `apt-get download`, and kept with the build.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::guest::fixtures;
use crate::tools::{run, scratch};

const SCRIPT: &str = include_str!("../scripts/make-working-kernel");
const PROGRAM: &str = include_str!("../scripts/working-init.c");
const PACKER: &str = include_str!("../scripts/initrd.py");
/// How long a guest may take to boot and mount, and to show all of the volumes that it is given.
const TIME_MAX: Duration = Duration::from_secs(400);

/// A guest that works on a volume of a disk. Dropped, or killed, it is gone at once, as if the host lost power.
pub struct WorkingGuest {
    qemu: Child,
    log: PathBuf,
    _dir: TempDir,
}

/// What a guest is to work on.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The raw disk.
    pub disk: &'a Path,
    /// Where in it the volume begins, and how long it is.
    pub volume_bytes: (u64, u64),
    /// The file system's name in the kernel.
    pub kind: &'a str,
    /// At least one option of it to mount with.
    pub options: &'a str,
    /// What decides what is done.
    pub seed: u64,
    /// Whether files can share their contents.
    pub can_share: bool,
}

impl WorkingGuest {
    /// Boots it, and waits until it works.
    pub fn start(work: &Work<'_>) -> Self {
        let Work { disk, volume_bytes: (start, len), kind, options, seed, can_share } = *work;
        let able = if can_share { "reflink" } else { "nothing" };
        let line = format!("work={kind}:{options}:{seed}:{able} volume={},{}", start / 512, len / 512);
        let guest = Self::boot(disk, &line);
        guest.wait_for("| WORKING");
        guest
    }

    fn boot(disk: &Path, line: &str) -> Self {
        let kernel = kernel();
        let dir = scratch();
        let log = dir.path().join("log");
        let qemu = Command::new("qemu-system-x86_64")
            .args(["-accel", "tcg", "-m", "512", "-display", "none", "-no-reboot", "-nodefaults"])
            .args(["-net", "none", "-drive", &format!("file={},if=virtio,format=raw", disk.display())])
            .arg("-kernel")
            .arg(kernel.join("vmlinuz"))
            .arg("-initrd")
            .arg(kernel.join("initrd"))
            .args(["-append", &format!("console=ttyS0 loglevel=5 panic=-1 mitigations=off {line}")])
            .args(["-serial", &format!("file:{}", log.display())])
            .stdin(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("qemu-system-x86_64: {error}; install qemu-system-x86"));
        Self { qemu, log, _dir: dir }
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits until it has said this on a line of its own.
    fn wait_for(&self, line: &str) {
        let started = Instant::now();
        while !self.said().lines().any(|said| said.trim_end() == line) {
            self.check(started);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Fails if it is in trouble, or takes too long.
    fn check(&self, started: Instant) {
        let said = self.said();
        assert!(!said.contains("| FAILED"), "the guest said:\n{said}");
        assert!(started.elapsed() < TIME_MAX, "the guest does not get on:\n{said}");
    }

    /// Fails unless it still works.
    pub fn check_alive(&mut self) {
        let ended = self.qemu.try_wait().unwrap();
        let said = self.said();
        assert!(ended.is_none() && !said.contains("| FAILED"), "the guest said:\n{said}");
    }

    /// Ends it at once.
    pub fn kill(mut self) {
        self.check_alive();
        self.end();
    }

    fn end(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

impl Drop for WorkingGuest {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the kernel shows of each of `count` volumes of `len_bytes`, which lie one behind the other in the file: a line for each path, with
/// everything but times. They are mounted in turns, with these options, and what the kernel recovers is changed in the file.
pub fn shown_by_debian(
    volumes: &Path,
    kind: &str,
    options: &str,
    (count, len_bytes): (usize, u64),
) -> Vec<Vec<String>> {
    let line = format!("judge={kind}:{options} slices={count},{}", len_bytes / 512);
    let guest = WorkingGuest::boot(volumes, &line);
    guest.wait_for("| DONE");
    let said = guest.said();
    let mut shown: Vec<Vec<String>> = Vec::new();
    for line in said.lines().filter_map(|line| line.trim_end().strip_prefix("| ")) {
        match shown.last_mut() {
            _ if line.starts_with("== ") => shown.push(Vec::new()),
            Some(lines) if line != "DONE" => lines.push(line.to_owned()),
            _ => {}
        }
    }
    assert_eq!(shown.len(), count, "the guest said:\n{said}");
    shown
}

/// Where the kernel and the RAM disk are.
fn kernel() -> &'static Path {
    static KERNEL: OnceLock<PathBuf> = OnceLock::new();
    KERNEL.get_or_init(|| {
        let mut hasher = DefaultHasher::new();
        (SCRIPT, PROGRAM, PACKER).hash(&mut hasher);
        let dir = fixtures().join(format!("working-kernel-{:016x}", hasher.finish()));
        if dir.exists() {
            return dir;
        }
        fs::create_dir_all(fixtures()).unwrap();
        let fresh = tempfile::tempdir_in(fixtures()).unwrap();
        let scripts = scratch();
        for (name, text) in [("make", SCRIPT), ("working-init.c", PROGRAM), ("initrd.py", PACKER)] {
            fs::write(scripts.path().join(name), text).unwrap();
        }
        let (at, scripts) = (fresh.path().display(), scripts.path().display());
        run(
            "bash",
            &["-euo", "pipefail", "-c", &format!("cd '{at}'; scripts='{scripts}'; . \"$scripts/make\"")],
        );
        if let Err(error) = fs::rename(fresh.path(), &dir) {
            assert!(dir.exists(), "{}: {error}", dir.display());
        }
        dir
    })
}
