//! A Debian kernel under QEMU, without hardware help, that works on a file system until it is killed, or shows what others hold: also of
//! file systems that the kernel of this machine does not mount.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::machine::{Machine, kernel};

const SCRIPTS: [(&str, &str); 6] = [
    ("make-working-kernel", include_str!("../scripts/make-working-kernel")),
    ("unpack-kernel", include_str!("../scripts/unpack-kernel")),
    ("kernel-package", include_str!("../scripts/kernel-package")),
    ("working-init.c", include_str!("../scripts/working-init.c")),
    ("guest-init.h", include_str!("../scripts/guest-init.h")),
    ("initrd.py", include_str!("../scripts/initrd.py")),
];
/// In MiB.
const MEMORY: u32 = 512;

/// A guest that works on a volume of a disk. Dropped, or killed, it is gone at once, as if the host lost power.
pub struct WorkingGuest(Machine);

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
        let mut guest = Machine::boot(files(), MEMORY, &[disk], &line);
        guest.wait_for("| WORKING");
        Self(guest)
    }

    /// Fails unless it still works.
    pub fn check_alive(&mut self) {
        self.0.check_alive();
    }

    /// Ends it at once.
    pub fn kill(mut self) {
        self.check_alive();
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
    let mut guest = Machine::boot(files(), MEMORY, &[volumes], &line);
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
fn files() -> &'static Path {
    static FILES: OnceLock<PathBuf> = OnceLock::new();
    FILES.get_or_init(|| kernel("working-kernel", &SCRIPTS))
}
