//! A Debian kernel under QEMU, without hardware help, and what it says on its console.
//!
//! The kernel is fetched once, with `apt-get download`, and kept with the build.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::guest::fixtures;
use crate::tools::{run, scratch};

/// How long a guest may take for what is waited for.
const TIME_MAX: Duration = Duration::from_secs(400);

/// A guest that runs. Dropped, it is gone at once, as if the host lost power.
pub(crate) struct Machine {
    qemu: Child,
    log: PathBuf,
    _dir: TempDir,
}

impl Machine {
    /// Boots the kernel and the first RAM disk in a folder. `words` are for its first program.
    pub(crate) fn boot(kernel: &Path, mebibytes: u32, disks: &[&Path], words: &str) -> Self {
        let dir = scratch();
        let log = dir.path().join("log");
        let drives = disks.iter().map(|disk| format!("file={},if=virtio,format=raw", disk.display()));
        let qemu = Command::new("qemu-system-x86_64")
            .args(["-accel", "tcg", "-m", &mebibytes.to_string(), "-display", "none", "-no-reboot"])
            .args(["-nodefaults", "-net", "none"])
            .args(drives.flat_map(|drive| ["-drive".to_owned(), drive]))
            .arg("-kernel")
            .arg(kernel.join("vmlinuz"))
            .arg("-initrd")
            .arg(kernel.join("initrd"))
            .args(["-append", &format!("console=ttyS0 loglevel=5 panic=-1 mitigations=off {words}")])
            .args(["-serial", &format!("file:{}", log.display())])
            .stdin(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("qemu-system-x86_64: {error}; install qemu-system-x86"));
        Self { qemu, log, _dir: dir }
    }

    pub(crate) fn id(&self) -> u32 {
        self.qemu.id()
    }

    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits until it has said this on a line of its own.
    pub(crate) fn wait_for(&mut self, line: &str) {
        let started = Instant::now();
        loop {
            // What it says before it ends is looked at, too.
            let ended = self.qemu.try_wait().unwrap();
            let said = self.said();
            assert!(!said.contains("| FAILED"), "the guest said:\n{said}");
            if said.lines().any(|said| said.trim_end() == line) {
                return;
            }
            assert!(ended.is_none(), "the guest ended without {line}:\n{said}");
            assert!(started.elapsed() < TIME_MAX, "the guest does not get on:\n{said}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until it is powered off.
    pub(crate) fn wait_for_end(&mut self) {
        self.wait_for("| DONE");
        let started = Instant::now();
        while self.qemu.try_wait().unwrap().is_none() {
            assert!(started.elapsed() < TIME_MAX, "the guest does not power off:\n{}", self.said());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Fails unless it still works.
    pub(crate) fn check_alive(&mut self) {
        let ended = self.qemu.try_wait().unwrap();
        let said = self.said();
        assert!(ended.is_none() && !said.contains("| FAILED"), "the guest said:\n{said}");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// The folder with the kernel and the RAM disk that the first of these scripts makes. All are beside it, by their names.
pub(crate) fn kernel(name: &str, scripts: &[(&str, &str)]) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    scripts.hash(&mut hasher);
    let dir = fixtures().join(format!("{name}-{:016x}", hasher.finish()));
    if dir.exists() {
        return dir;
    }
    fs::create_dir_all(fixtures()).unwrap();
    let fresh = tempfile::tempdir_in(fixtures()).unwrap();
    let folder = scratch();
    for (name, text) in scripts {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let (at, folder) = (fresh.path().display(), folder.path().display());
    let first = scripts[0].0;
    let command = format!("cd '{at}'; scripts='{folder}'; . \"$scripts/{first}\"");
    run("bash", &["-euo", "pipefail", "-c", &command]);
    if let Err(error) = fs::rename(fresh.path(), &dir) {
        assert!(dir.exists(), "{}: {error}", dir.display());
    }
    dir
}
