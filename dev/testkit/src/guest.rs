//! Disks of guests, made by the real tools: a partition table, file systems with files of every kind, and stale
//! and swapped-out bytes that no copy may carry.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use xxhash_rust::xxh3::Xxh3;

use crate::files::{extract, stored_ranges};
use crate::tools::scratch;

/// What fills free space, from before it was freed. One line, 16 bytes long with its end.
pub const STALE: &str = "leandisk: stale";
/// What fills page files, swap files and swap partitions.
pub const SWAPPED: &str = "leandisk: swap!";

const SCRIPTS: [(&str, &str); 9] = [
    ("prologue", include_str!("../scripts/prologue")),
    ("fill-volume", include_str!("../scripts/fill-volume")),
    ("make-ntfs", include_str!("../scripts/make-ntfs")),
    ("make-ext4", include_str!("../scripts/make-ext4")),
    ("list-files", include_str!("../scripts/list-files")),
    ("check-volume", include_str!("../scripts/check-volume")),
    ("guest-init.c", include_str!("../scripts/guest-init.c")),
    ("make-guest-kernel", include_str!("../scripts/make-guest-kernel")),
    ("kernel-package", include_str!("../scripts/kernel-package")),
];

/// What a guest disk has inside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inside {
    /// MBR, NTFS with compressed and sparse files, named streams, page files.
    Ntfs,
    /// GPT, a swap partition, ext4 with a swap file.
    Ext4,
    /// The same as a snapshot of the running guest has it: the journal is to be replayed.
    RunningExt4,
}

impl Inside {
    fn name(self) -> &'static str {
        match self {
            Self::Ntfs => "ntfs",
            Self::Ext4 => "ext4",
            Self::RunningExt4 => "running-ext4",
        }
    }

    fn filesystem(self) -> &'static str {
        match self {
            Self::Ntfs => "ntfs",
            Self::Ext4 | Self::RunningExt4 => "ext4",
        }
    }
}

/// A disk of 64 MiB that a guest used. Made once and kept with the build.
pub struct Guest {
    /// What is inside.
    pub inside: Inside,
    /// The raw disk. Not to be changed.
    pub disk: PathBuf,
    /// Where its NTFS or ext4 volume begins, in bytes. It reaches to the last 1 MiB but one, or further.
    pub volume_start: u64,
    files: String,
}

impl Guest {
    /// The disk with this inside.
    pub fn get(inside: Inside) -> &'static Self {
        static GUESTS: [OnceLock<Guest>; 3] = [const { OnceLock::new() }; 3];
        GUESTS[inside as usize].get_or_init(|| Self::open(inside))
    }

    /// Both kinds of guests that were shut down.
    pub fn both() -> [&'static Self; 2] {
        [Self::get(Inside::Ntfs), Self::get(Inside::Ext4)]
    }

    fn open(inside: Inside) -> Self {
        let dir = fixtures().join(format!("{}-{:016x}", inside.name(), version()));
        if !dir.exists() {
            make(inside, &dir);
        }
        let read = |name| fs::read_to_string(dir.join(name)).unwrap();
        Self {
            inside,
            disk: dir.join("disk.raw"),
            volume_start: read("start").trim().parse().unwrap(),
            files: read("files"),
        }
    }

    /// Panics unless the raw disk at `raw` passes its file system's checkers and a real mount shows the files,
    /// attributes and contents of this guest.
    pub fn check(&self, raw: &Path) {
        let dir = scratch();
        let volume = self.extract_volume(raw, dir.path());
        script("check-volume", dir.path(), "", &[&volume, self.inside.filesystem()]);
        let files = script("list-files", dir.path(), "", &[&volume, self.inside.filesystem()]);
        for (ours, theirs) in files.lines().zip(self.files.lines()) {
            assert_eq!(ours, theirs, "in {}", raw.display());
        }
        assert_eq!(files.lines().count(), self.files.lines().count(), "lines about {}", raw.display());
    }

    /// The NTFS or ext4 volume alone, in a file.
    fn extract_volume(&self, raw: &Path, dir: &Path) -> String {
        let volume = dir.join("volume");
        let mib = if self.inside == Inside::Ntfs { 60 } else { 57 };
        extract(raw, self.volume_start, mib << 20, &volume);
        volume.display().to_string()
    }
}

/// Whether the file at `path` holds `text` anywhere. Holes are not read: there is no zero in a text.
pub fn file_contains(path: &Path, text: &str) -> bool {
    assert!(!text.contains('\0'), "a text");
    let file = File::open(path).unwrap();
    let is_in = |range: Range<u64>| {
        let mut at = range.start;
        let mut piece = vec![0; 1 << 20];
        while at < range.end {
            let len = piece.len().min(usize::try_from(range.end - at).unwrap());
            file.read_exact_at(&mut piece[..len], at).unwrap();
            if memchr::memmem::find(&piece[..len], text.as_bytes()).is_some() {
                return true;
            }
            // What begins at the end of this piece ends in the next one.
            at += if at + len as u64 == range.end { len } else { len - text.len() } as u64;
        }
        false
    };
    stored_ranges(&file).into_iter().any(is_in)
}

/// A digest of a file's contents. Holes are not read: they are zeros.
pub fn digest(path: &Path) -> u128 {
    const PIECE_BYTES: usize = 1 << 18;
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let len_bytes = file.metadata().unwrap().len();
    let (zeros, mut piece) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
    let mut hasher = Xxh3::new();
    let mut at = 0;
    let len_to =
        |at: u64, end: u64| usize::try_from(end - at).map_or(PIECE_BYTES, |len| len.min(PIECE_BYTES));
    let end = std::iter::once(len_bytes..len_bytes);
    for stored in stored_ranges(&file).into_iter().chain(end) {
        while at < stored.start {
            let zeros = &zeros[..len_to(at, stored.start)];
            hasher.update(zeros);
            at += zeros.len() as u64;
        }
        while at < stored.end {
            let piece = &mut piece[..len_to(at, stored.end)];
            file.read_exact_at(piece, at).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            hasher.update(piece);
            at += piece.len() as u64;
        }
    }
    hasher.digest128()
}

/// Runs a program as root: through `sudo` if this is not root already.
pub fn as_root(program: &str, args: &[&str]) -> Output {
    let root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let mut command = if root { Command::new(program) } else { Command::new("sudo") };
    if !root {
        command.args(["-n", program]);
    }
    command
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; `make test` installs what the tests need"))
}

/// Runs one of the scripts as root in `dir`, with `settings` before it, and answers what it printed.
pub(crate) fn script(name: &str, dir: &Path, settings: &str, args: &[&str]) -> String {
    let scripts = scratch();
    for (name, text) in SCRIPTS {
        fs::write(scripts.path().join(name), text).unwrap();
    }
    let scripts = scripts.path().display();
    let text = format!(
        "cd '{}'; scripts={scripts}; . $scripts/prologue; {settings} . $scripts/{name}",
        dir.display()
    );
    let mut all = vec!["-c", &text, name];
    all.extend(args);
    let output = as_root("bash", &all);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {args:?}: {}\n{stdout}{stderr}", output.status);
    stdout
}

/// Makes the disk in another folder first, so that a half-made one is never found; of two that are made at the same
/// time one stays.
fn make(inside: Inside, dir: &Path) {
    fs::create_dir_all(fixtures()).unwrap();
    let fresh = tempfile::tempdir_in(fixtures()).unwrap();
    let maker = if inside == Inside::Ntfs { "make-ntfs" } else { "make-ext4" };
    let running = if inside == Inside::RunningExt4 { "running=1;" } else { "" };
    script(maker, fresh.path(), &format!("stale='{STALE}'; swap='{SWAPPED}'; {running}"), &[]);
    let volume_start = fs::read_to_string(fresh.path().join("start")).unwrap().trim().parse().unwrap();
    let disk = fresh.path().join("disk.raw");
    let unlisted = Guest { inside, disk: disk.clone(), volume_start, files: String::new() };
    let work = scratch();
    let volume = unlisted.extract_volume(&disk, work.path());
    script("check-volume", work.path(), "", &[&volume, inside.filesystem()]);
    let files = script("list-files", work.path(), "", &[&volume, inside.filesystem()]);
    assert!(files.lines().count() > 150, "a guest has files:\n{files}");
    for marker in [STALE, SWAPPED] {
        assert!(file_contains(&disk, marker), "the guest disk holds '{marker}'");
    }
    fs::write(fresh.path().join("files"), files).unwrap();
    if let Err(error) = fs::rename(fresh.path(), dir) {
        assert!(dir.exists(), "{}: {error}", dir.display());
    }
}

pub(crate) fn fixtures() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from);
    target.join("fixtures")
}

/// Changes with the scripts.
pub(crate) fn version() -> u64 {
    let mut hasher = DefaultHasher::new();
    (SCRIPTS, STALE, SWAPPED).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_disk_is_what_its_own_check_expects() {
        for inside in [Inside::Ntfs, Inside::Ext4, Inside::RunningExt4] {
            let guest = Guest::get(inside);
            guest.check(&guest.disk);
        }
    }

    #[test]
    fn text_is_found_across_pieces() {
        let dir = scratch();
        let path = dir.path().join("file");
        let mut bytes = vec![b'l'; (1 << 20) - 5];
        bytes.extend_from_slice(STALE.as_bytes());
        fs::write(&path, &bytes).unwrap();
        assert!(file_contains(&path, STALE));
        bytes.pop();
        fs::write(&path, &bytes).unwrap();
        assert!(!file_contains(&path, STALE));
    }

    #[test]
    fn holes_are_zeros_to_a_digest_and_hold_no_text() {
        let dir = scratch();
        let (dense, sparse) = (dir.path().join("dense"), dir.path().join("sparse"));
        // Across the end of a piece, and at the end of what is stored.
        let mut bytes = vec![0; 5 << 20];
        bytes[(1 << 20) - 3..][..8].copy_from_slice(b"boundary");
        bytes[(4 << 20) + 4088..][..8].copy_from_slice(b"the last");
        fs::write(&dense, &bytes).unwrap();
        let file = File::create(&sparse).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        for at in [0, (4 << 20)] {
            let len = if at == 0 { 2 << 20 } else { 4096 };
            file.write_all_at(&bytes[at..at + len], at as u64).unwrap();
        }
        let stored: u64 = stored_ranges(&file).iter().map(|range| range.end - range.start).sum();
        assert_eq!(stored, (2 << 20) + 4096);
        assert_eq!(digest(&sparse), digest(&dense));
        for path in [&dense, &sparse] {
            assert!(file_contains(path, "boundary") && file_contains(path, "the last"));
            assert!(!file_contains(path, "the first"));
        }
        fs::write(&dense, &bytes[..bytes.len() - 1]).unwrap();
        assert_ne!(digest(&sparse), digest(&dense));
    }
}
