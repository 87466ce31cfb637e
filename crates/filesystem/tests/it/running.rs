//! Disks as a running guest leaves them: a busy file system whose disk is taken at random moments, all at once, as a snapshot of the image or
//! a loss of power takes it. The kernel recovers a copy of what is used alone to the same as the whole, and reads the same without recovery.
//!
//! How many moments of each: `LEANDISK_MOMENTS`. The seed is printed; `LEANDISK_SEED` takes another one.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::{source, spans, text};
use filesystem::{Check, FileSystem, State, Use};
use testkit::loops::mount;
use testkit::mounted::{Mounted, shown};
use testkit::{run, scratch};

const VOLUME_BYTES: u64 = 200 << 20;
/// In free space of copies of what is used alone.
const FILLER: u8 = 0x5a;

/// A file system whose files are taken all at once, by reflinks, mounted for as long as the value lives.
pub(crate) struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    pub(crate) fn new() -> Self {
        let dir = scratch();
        let (image, at) = (dir.path().join("host"), dir.path().join("mounted"));
        File::create(&image).unwrap().set_len(4 << 30).unwrap();
        fs::create_dir(&at).unwrap();
        run("mkfs.xfs", &["-q", "-m", "reflink=1", text(&image)]);
        mount(&["-t", "xfs", "-o", "loop,nouuid", text(&image), text(&at)]);
        Self { dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("mounted").join(name)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        testkit::loops::unmount(&self.dir.path().join("mounted"));
    }
}

/// Who works on the volume.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A kind of guest.
struct Guest {
    kind: &'static str,
    make: &'static [&'static str],
    /// What else its file system can.
    able: &'static str,
    /// Mounts it without recovery.
    without_recovery: &'static str,
}

pub(crate) fn open(path: &Path) -> Box<dyn FileSystem> {
    filesystem::open(&source(path)).unwrap().expect("a superblock")
}

/// A copy of what is used alone, by a reflink; answers how many bytes are free.
pub(crate) fn copy_used(taken: &Path, copy: &Path) -> u64 {
    run("cp", &["--reflink=always", text(taken), text(copy)]);
    let target = OpenOptions::new().write(true).open(copy).unwrap();
    let free = spans(&*open(taken), Check::Full, fs::metadata(taken).unwrap().len(), Use::Free);
    for part in free.iter().flat_map(|span| span.split(1 << 20)) {
        let bytes = vec![FILLER; usize::try_from(part.len_bytes()).unwrap()];
        target.write_all_at(&bytes, part.start().get()).unwrap();
    }
    free.total_bytes()
}

pub(crate) fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().unwrap())
}

/// The kernel recovers both to the same. Answers how many files there are.
pub(crate) fn recover_both(kind: &str, whole: &Path, used: &Path, what: &str) -> usize {
    let options = if kind == "xfs" { "noatime,nouuid" } else { "noatime" };
    let expected = Mounted::kernel(kind, whole, options).tree();
    let found = Mounted::kernel(kind, used, options).tree();
    // Recovery sets times to its own.
    let is_time = |line: &String| line.contains(": changed at: ") || line.contains(": written at: ");
    let differences: Vec<_> =
        expected.differences(&found).into_iter().filter(|line| !is_time(line)).collect();
    assert!(differences.is_empty(), "{what}: {differences:?}");
    expected.len()
}

/// The kernel shows the same of both without recovery. Answers how many files there are.
pub(crate) fn show_both(kind: &str, options: &str, whole: &Path, used: &Path, what: &str) -> usize {
    let expected = shown(Mounted::kernel(kind, whole, options).path());
    let found = shown(Mounted::kernel(kind, used, options).path());
    for path in expected.keys().chain(found.keys()) {
        assert_eq!(expected.get(path), found.get(path), "{what}, without recovery: {}", path.display());
    }
    expected.len()
}

/// Takes the disk at random moments, and holds a copy of what is used against the whole.
fn take(guest: &Guest) {
    let (count, seed) = (number("LEANDISK_MOMENTS", 5), number("LEANDISK_SEED", 20_261_123));
    println!("{}: seed {seed}", guest.kind);
    let host = Host::new();
    let disk = host.path("disk");
    File::create(&disk).unwrap().set_len(VOLUME_BYTES).unwrap();
    run(guest.make[0], &[&guest.make[1..], &[text(&disk)]].concat());
    let mounted = Mounted::kernel(guest.kind, &disk, "noatime");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts/work.py");
    let worker = Command::new("python3")
        .args([script, text(mounted.path()), &seed.to_string(), guest.able])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut worker = Worker(worker);
    let mut state = seed;
    for moment in 0..count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis(300 + (state >> 33) % 1500));
        assert!(worker.0.try_wait().unwrap().is_none(), "the guest works on");
        run("cp", &["--reflink=always", text(&disk), text(&host.path(&format!("taken {moment}")))]);
    }
    drop(worker);
    drop(mounted);
    let (whole, used) = (host.path("whole"), host.path("used"));
    let mut pending = 0;
    for moment in 0..count {
        let taken = host.path(&format!("taken {moment}"));
        let what = format!("{}, seed {seed}, moment {moment}", guest.kind);
        let filesystem = open(&taken);
        let state = &filesystem.facts().state;
        assert_eq!(state.doubt(), None, "{what}");
        pending += u64::from(matches!(state, State::JournalPending(_)));
        let copies = || {
            let free = copy_used(&taken, &used);
            assert!(free > VOLUME_BYTES / 20, "{what}: {free}");
            run("cp", &["--reflink=always", text(&taken), text(&whole)]);
        };
        copies();
        let recovered = recover_both(guest.kind, &whole, &used, &what);
        copies();
        let shown = show_both(guest.kind, guest.without_recovery, &whole, &used, &what);
        println!("{what}: {recovered} files, {shown} without recovery");
    }
    println!("{}: {count} moments, {pending} with something to recover", guest.kind);
    assert!(pending > 0);
}

#[test]
fn btrfs() {
    take(&Guest {
        kind: "btrfs",
        make: &["mkfs.btrfs", "-q"],
        able: "reflink,subvolume",
        without_recovery: "ro,rescue=nologreplay",
    });
}

#[test]
fn ext4() {
    take(&Guest { kind: "ext4", make: &["mkfs.ext4", "-q", "-F"], able: "", without_recovery: "ro,noload" });
}

#[test]
fn xfs() {
    take(&Guest {
        kind: "xfs",
        make: &["mkfs.xfs", "--unsupported", "-q", "-f"],
        able: "reflink",
        without_recovery: "ro,norecovery",
    });
}
