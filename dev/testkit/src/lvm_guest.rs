//! A Debian kernel under QEMU, without hardware help, that runs a shell script with the tools of LVM2, of ext4 and of XFS that this machine
//! has. It has a device mapper, which this machine's kernel may lack.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

use crate::machine::{Machine, kernel};
use crate::tools::run;

const SCRIPTS: [(&str, &str); 6] = [
    ("make-lvm-kernel", include_str!("../scripts/make-lvm-kernel")),
    ("unpack-kernel", include_str!("../scripts/unpack-kernel")),
    ("kernel-package", include_str!("../scripts/kernel-package")),
    ("lvm-init.c", include_str!("../scripts/lvm-init.c")),
    ("guest-init.h", include_str!("../scripts/guest-init.h")),
    ("initrd.py", include_str!("../scripts/initrd.py")),
];
/// What scripts begin with.
const PROLOGUE: &str = include_str!("../scripts/lvm-prologue");
/// In MiB.
const MEMORY: u32 = 768;
/// The unit of the disk that holds the script: the last one is what the guest is told while it runs.
const BLOCK_BYTES: usize = 4096;

/// A guest that runs a script. Its disks are /dev/vdb, /dev/vdc and so on. Dropped, it is gone at once, as if the host lost power.
pub struct LvmGuest {
    machine: Machine,
    script: NamedTempFile,
    told_at: u64,
}

impl LvmGuest {
    /// Boots it. What its script says on lines that begin with `| ` is its result. There is `await_host NAME`, which says `| NAME` and waits
    /// for [`Self::go_on`].
    pub fn start(script: &str, disks: &[&Path]) -> Self {
        static FILES: OnceLock<PathBuf> = OnceLock::new();
        let mut text = format!("{PROLOGUE}{script}").into_bytes();
        text.resize(text.len().next_multiple_of(BLOCK_BYTES), b'\n');
        let told_at = text.len();
        text.resize(told_at + BLOCK_BYTES, b'\n');
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(&text).unwrap();
        let kernel = FILES.get_or_init(|| kernel("lvm-kernel", &SCRIPTS));
        // The first program has it in its environment.
        let words = format!("told={}", told_at / BLOCK_BYTES);
        let machine = Machine::boot(kernel, MEMORY, &[&[file.path()], disks].concat(), &words);
        Self { machine, script: file, told_at: told_at as u64 }
    }

    /// Runs the script to its end, and answers its result.
    pub fn run(script: &str, disks: &[&Path]) -> Vec<String> {
        let mut guest = Self::start(script, disks);
        guest.machine.wait_for_end();
        guest.result()
    }

    /// What it said so far, without what the lines begin with.
    pub fn result(&self) -> Vec<String> {
        let said = self.machine.said();
        said.lines().filter_map(|line| line.trim_end().strip_prefix("| ")).map(str::to_owned).collect()
    }

    /// Waits until it says this.
    pub fn wait_for(&mut self, name: &str) {
        self.machine.wait_for(&format!("| {name}"));
    }

    /// Lets it go on that waits under this name.
    pub fn go_on(&mut self, name: &str) {
        self.wait_for(name);
        let script = File::options().write(true).open(self.script.path()).unwrap();
        script.write_all_at(name.as_bytes(), self.told_at).unwrap();
    }

    /// Does something while all of the guest stands still.
    pub fn held<T>(&mut self, act: impl FnOnce() -> T) -> T {
        self.machine.check_alive();
        let id = self.machine.id().to_string();
        run("kill", &["-STOP", &id]);
        let started = Instant::now();
        while !is_stopped(&id) {
            assert!(started.elapsed() < Duration::from_secs(60), "the guest does not stop");
            std::thread::sleep(Duration::from_millis(5));
        }
        let done = act();
        run("kill", &["-CONT", &id]);
        done
    }

    /// Ends it at once.
    pub fn kill(mut self) {
        self.machine.check_alive();
    }
}

/// Whether all threads of a process stand still: no write of theirs is under way.
fn is_stopped(id: &str) -> bool {
    let threads = fs::read_dir(format!("/proc/{id}/task")).unwrap();
    let mut states = threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("stat")));
    // A thread that is gone meanwhile is looked for again.
    states.all(|stat| stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|it| it.starts_with('T'))))
}
