//! `leandisk compact --defrag`: disks of aged guests, whose blocks are all used a little, take little more than what their
//! guests use; as real mounts and checkers see them, nothing else changed. Killed at any moment nothing is lost.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{Untouched, arg, assert_only, document, fail, leandisk, number, succeed};
use crate::defrag_common::{
    Inside, Kind, QCOW2, QCOW2_SMALL, RAW, VDI, VHD, VHDX, VMDK, allocated_bytes, digest, fsck, gpt, mbr,
};
use serde_json::Value;
use testkit::{HostMount, Room, ext_volume, ntfs_volume, run, scratch};

const SCHEMA: &str = "leandisk.compact/1";
const MIB: u64 = 1 << 20;

const VHDX_LARGE: Kind = Kind { name: "large.vhdx", options: "subformat=dynamic,block_size=32M", ..VHDX };

/// A volume whose guest wrote much and kept little, everywhere.
struct Aged {
    inside: Inside,
    raw: PathBuf,
    digest: String,
}

const SMALL_MIB: u64 = 48;
const MIDDLE_MIB: u64 = 80;
const LARGE_MIB: u64 = 160;

/// Kept with the build, under a name that changes with what fills it.
fn aged(inside: Inside, size_mib: u64) -> Aged {
    static MAKING: Mutex<()> = Mutex::new(());
    let _alone = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut hasher = DefaultHasher::new();
    include_str!("compact_defrag.rs").hash(&mut hasher);
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let dir = kept.join(format!("aged-{inside:?}-{size_mib}-{:016x}", hasher.finish()));
    if !dir.exists() {
        fs::create_dir_all(kept).unwrap();
        let fresh = tempfile::tempdir_in(kept).unwrap();
        make(inside, size_mib, fresh.path());
        if let Err(error) = fs::rename(fresh.path(), &dir) {
            assert!(dir.exists(), "{}: {error}", dir.display());
        }
    }
    Aged { inside, raw: dir.join("raw"), digest: fs::read_to_string(dir.join("digest")).unwrap() }
}

fn make(inside: Inside, size_mib: u64, dir: &Path) {
    let raw = dir.join("raw");
    fs::File::create(&raw).unwrap().set_len(size_mib * MIB).unwrap();
    match inside {
        Inside::Ntfs => run("mkntfs", &["-q", "-Q", "-F", "-c", "4096", arg(&raw)]),
        Inside::Ext4 => {
            run("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", "-E", "nodiscard", arg(&raw)])
        }
    };
    match inside {
        Inside::Ntfs => {
            let mount = scratch();
            age(&ntfs_volume::Mounted::new(&raw, &mount.path().join("mnt"), "").dir, size_mib);
        }
        Inside::Ext4 => age(&ext_volume::Mounted::new(&raw, "rw").dir(), size_mib),
    }
    fs::write(dir.join("digest"), digest(inside, &raw)).unwrap();
}

/// Fills the volume with files of all sizes, most of them small, and deletes three of four.
fn age(dir: &Path, size_mib: u64) {
    let mut state = 7u64;
    let mut roll = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let noise: Vec<u8> = (0..MIB).map(|_| u8::try_from(1 + roll(255)).unwrap()).collect();
    let mut names = Vec::new();
    let mut written = 0;
    while written < size_mib * MIB * 8 / 10 {
        let folder = dir.join(format!("folder {}", roll(20)));
        fs::create_dir_all(&folder).unwrap();
        let len = match roll(20) {
            0 => 300_000 + roll(500_000),
            1..4 => 60_000 + roll(100_000),
            _ => 1_000 + roll(40_000),
        };
        let at = usize::try_from(roll(MIB - len)).unwrap();
        let path = folder.join(format!("file {}", names.len()));
        fs::write(&path, &noise[at..at + usize::try_from(len).unwrap()]).unwrap();
        names.push(path);
        written += len + 4096;
    }
    run("sync", &["-f", arg(dir)]);
    for path in names {
        if roll(4) > 0 {
            fs::remove_file(path).unwrap();
        }
    }
}

/// An aged disk of a kind in a folder of its own.
struct Scene {
    dir: tempfile::TempDir,
    disk: PathBuf,
    kind: Kind,
    aged: Aged,
}

impl Scene {
    fn new(inside: Inside, kind: Kind) -> Self {
        let aged = aged(inside, if kind.name == VHDX_LARGE.name { LARGE_MIB } else { SMALL_MIB });
        let dir = scratch();
        let disk = kind.make(&aged.raw, dir.path());
        Self { dir, disk, kind, aged }
    }

    fn compact(&self, more: &[&str]) -> Value {
        document(SCHEMA, &[&["compact", arg(&self.disk)], more].concat())
    }

    /// The files are as they were, and all checkers are content.
    fn check(&self) {
        Self::check_at(&self.disk, self.kind, &self.aged);
    }

    fn check_at(disk: &Path, kind: Kind, aged: &Aged) {
        let view = scratch();
        let raw = view.path().join("guest-view");
        kind.extract_guest(disk, &raw);
        fsck(aged.inside, &raw);
        assert!(digest(aged.inside, &raw) == aged.digest, "the files of {} differ", kind.name);
    }

    fn journal(&self) -> PathBuf {
        self.dir.path().join(format!(".{}.leandisk-journal", self.kind.name))
    }

    /// Kills the change `moment` after the journal was seen for the `times`th time; whether it is left.
    fn kill_after(&self, times: u32, moment: Duration) -> bool {
        let mut child = leandisk()
            .args(["compact", arg(&self.disk), "--defrag"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = Instant::now();
        let mut wait = |exists: bool| {
            while self.journal().exists() != exists && child.try_wait().unwrap().is_none() {
                assert!(started.elapsed() < Duration::from_secs(60), "nothing happened");
                sleep(Duration::from_micros(50));
            }
        };
        for time in 0..times {
            wait(true);
            if time + 1 < times {
                wait(false);
            }
        }
        sleep(moment);
        child.kill().unwrap();
        child.wait().unwrap();
        self.journal().exists()
    }
}

/// Things of a file system that stay where they are, each in at most one block more.
const PINNED: u64 = 4;

/// What an image's tables take, and the host's records of a file with holes.
const TABLES_BYTES: u64 = 2 * MIB;

fn becomes_lean(kind: Kind) {
    for inside in [Inside::Ntfs, Inside::Ext4] {
        let scene = Scene::new(inside, kind);
        let what = format!("{inside:?} in {}", kind.name);
        let before = allocated_bytes(scene.dir.path());
        let untouched = Untouched::all_in(scene.dir.path());
        let plain = scene.compact(&["--dry-run"]);
        let planned = scene.compact(&["--defrag", "--dry-run"]);
        untouched.check(scene.dir.path());
        let done = scene.compact(&["--defrag", "--verify"]);
        println!("{what}: {done:#}");
        assert_only(scene.dir.path(), &[kind.name]);
        assert!(planned["defrag"] == true && planned["dry_run"] == true && done["dry_run"] == false);
        for figure in ["moved_bytes", "emptied_units", "unit_bytes", "allocated_before_bytes"] {
            assert_eq!(planned[figure], done[figure], "{figure} of {what}");
        }
        // Metadata may be written where the host had nothing, which may keep a unit.
        let differs = |figure: &str| {
            let [planned, done] = [&planned, &done].map(|document| number(document, &format!("/{figure}")));
            planned.abs_diff(done)
        };
        let units = differs("partial_units");
        assert!(units <= 2, "{what}: {units} units");
        for figure in ["freed_bytes", "partial_bytes"] {
            let slack = (64 << 10) + units * number(&done, "/unit_bytes");
            assert!(differs(figure) <= slack, "{figure} of {what}: {} bytes", differs(figure));
        }
        assert_eq!(number(&done, "/allocated_before_bytes"), before);
        let after = allocated_bytes(scene.dir.path());
        assert_eq!(number(&done, "/allocated_after_bytes"), after);

        let (used, unit) = (number(&done, "/volumes/0/used_bytes"), number(&done, "/unit_bytes"));
        assert!(after <= used + PINNED * unit + TABLES_BYTES, "{what}: {after} of {used} used");
        let (moved, emptied) = (number(&done, "/moved_bytes"), number(&done, "/emptied_units"));
        let gained = number(&plain, "/allocated_after_bytes").saturating_sub(after);
        if unit > 4096 {
            assert!(
                emptied > 0 && moved > 0 && done["volumes"][0]["not_moved"].is_null(),
                "{what}: {done:#}"
            );
            assert!(moved < emptied * unit && moved < gained + MIB, "{what}: {moved} moved for {gained}");
            assert!(
                number(&done, "/metadata_written_bytes") > 0 && number(&done, "/journal_written_bytes") > 0
            );
        } else {
            assert_eq!((moved, emptied), (0, 0), "{what}");
        }
        scene.check();
        let again = scene.compact(&["--defrag"]);
        assert!(number(&again, "/moved_bytes") <= moved / 10, "{what}: {again:#}");
        assert!(allocated_bytes(scene.dir.path()) <= after, "{what}");
        scene.check();
    }
}

#[test]
fn vhdx_of_large_blocks() {
    becomes_lean(VHDX_LARGE);
}

#[test]
fn vhdx_of_small_blocks() {
    becomes_lean(VHDX);
}

#[test]
fn vhd() {
    becomes_lean(VHD);
}

#[test]
fn qcow2() {
    becomes_lean(QCOW2);
}

#[test]
fn qcow2_of_small_clusters() {
    becomes_lean(QCOW2_SMALL);
}

#[test]
fn vmdk() {
    becomes_lean(VMDK);
}

#[test]
fn vdi() {
    becomes_lean(VDI);
}

#[test]
fn raw() {
    becomes_lean(RAW);
}

/// In either part, what is left is what `recover` finishes; then the rest can be done.
#[test]
fn killed_in_either_part_the_disk_is_whole() {
    let kinds = [VHDX, QCOW2, VHD, VMDK];
    let (mut died, mut pending) = ([0; 2], 0);
    for (round, kind) in (0u64..).zip(kinds) {
        let inside = if round.is_multiple_of(2) { Inside::Ext4 } else { Inside::Ntfs };
        for part in [0, 1] {
            // Machines are not always as fast: what comes too late is tried sooner.
            let mut moment = Duration::from_millis(3 * (1 + round) + 20 * (1 - part));
            let scene = loop {
                let scene = Scene::new(inside, kind);
                if scene.kill_after(u32::try_from(part).unwrap() + 1, moment)
                    || moment < Duration::from_micros(200)
                {
                    break scene;
                }
                moment /= 3;
            };
            if scene.journal().exists() {
                died[usize::try_from(part).unwrap()] += 1;
                let message = fail(3, &["compact", arg(&scene.disk), "--defrag"]);
                assert!(message.contains("leandisk recover"), "{message}");
                let recovered = document("leandisk.recover/1", &["recover", arg(&scene.disk)]);
                println!("{} in part {part} after {moment:?}: {}", kind.name, recovered["outcome"]);
                pending += u32::from(recovered["outcome"] == "finished");
                assert_only(scene.dir.path(), &[kind.name]);
                if kind.qemu_format == "qcow2" {
                    // Clusters that nothing refers to any more, and whose freeing was cut off, take storage still.
                    run("qemu-img", &["check", "-q", "-r", "leaks", "-f", "qcow2", arg(&scene.disk)]);
                }
            }
            let done = scene.compact(&["--defrag", "--verify"]);
            let used = number(&done, "/volumes/0/used_bytes");
            let after = number(&done, "/allocated_after_bytes");
            let bound = used + PINNED * number(&done, "/unit_bytes") + TABLES_BYTES;
            // What was about to be given back has left the tables, and nobody knows of it any more.
            assert!(after <= bound || part == 1, "{}: {after} of {used}", kind.name);
            scene.check();
        }
    }
    println!("{died:?} were hit, {pending} were finished");
    assert!(died[0] >= 2 && died[1] >= 1, "only {died:?} were hit");
}

/// Volumes that begin within a block, with files of every kind and in thousands of pieces: no piece is torn.
#[test]
fn two_volumes_with_files_of_every_kind() {
    for (fixture, kind) in [(mbr(), VHD), (gpt(), QCOW2), (gpt(), VHDX)] {
        let dir = scratch();
        let disk = kind.make(&fixture.raw, dir.path());
        let runs = |disk: &Path| {
            let analyzed = document("leandisk.analyze/1", &["analyze", arg(disk)]);
            let volumes = analyzed["volumes"].as_array().unwrap();
            volumes.iter().map(|volume| number(volume, "/fragments")).collect::<Vec<_>>()
        };
        let before = runs(&disk);
        let done = document(SCHEMA, &["compact", arg(&disk), "--defrag", "--verify"]);
        println!("{} in {}: {done:#}", fixture.name, kind.name);
        assert!(
            number(&done, "/moved_bytes") <= number(&done, "/emptied_units") * number(&done, "/unit_bytes")
        );
        let after = runs(&disk);
        assert!(before.iter().zip(&after).all(|(before, after)| after <= before), "{before:?} -> {after:?}");
        let raw = dir.path().join("guest-view");
        kind.extract_guest(&disk, &raw);
        fixture.assert_same_files(&raw);
    }
}

/// So often it is looked at what a host has left.
const WATCH_INTERVAL: Duration = Duration::from_millis(1);
/// The host's room for more than the disk.
const ROOM_BYTES: u64 = 40 * MIB;

/// Takes all room but [`ROOM_BYTES`]; answers what is left.
fn fill(host: &Path) -> u64 {
    run("sync", &["-f", arg(host)]);
    let rest = Room::of(host).free_bytes.saturating_sub(ROOM_BYTES);
    if rest > 0 {
        let filler = host.join(format!("filler {rest}"));
        run("fallocate", &["-l", &rest.to_string(), arg(&filler)]);
    }
    Room::of(host).free_bytes
}

/// Runs the program; answers its document, and the least room that was seen on the host meanwhile.
fn compact_watched(host: &Path, disk: &Path, more: &[&str]) -> (Value, u64) {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut least = u64::MAX;
            while !is_done.load(Ordering::Relaxed) {
                least = least.min(Room::of(host).free_bytes);
                sleep(WATCH_INTERVAL);
            }
            least
        });
        let document = document(SCHEMA, &[&["compact", arg(disk), "--move", "always"], more].concat());
        is_done.store(true, Ordering::Relaxed);
        (document, watch.join().unwrap())
    })
}

/// On a host with room for half of the disk and no more, first without and then with moving files.
fn fits_where_little_is_free(kinds: &[(Inside, Kind)]) {
    let host = HostMount::new("ext4", 256 * MIB);
    for (inside, kind) in kinds {
        let aged = aged(*inside, MIDDLE_MIB);
        let dir = host.path().join("images");
        fs::create_dir(&dir).unwrap();
        let disk = kind.make(&aged.raw, &dir);
        let before = allocated_bytes(&dir);
        assert!(before > ROOM_BYTES + 16 * MIB, "{}: a copy of {before} would fit", kind.name);
        let mut moved = [0; 2];
        for (more, figure) in [(&[][..], "settled_bytes"), (&["--defrag", "--verify"], "moved_bytes")] {
            let free = fill(host.path());
            let (done, least) = compact_watched(host.path(), &disk, more);
            println!("{} {more:?}: {free} free, at least {least}: {done:#}", kind.name);
            assert!(free <= ROOM_BYTES && least < u64::MAX, "{}: {free}", kind.name);
            assert!(free.saturating_sub(least) <= 64 * MIB, "{}: {free} -> {least}", kind.name);
            moved[usize::from(more.contains(&"--defrag"))] = number(&done, &format!("/{figure}"));
        }
        let after = allocated_bytes(&dir);
        assert!(after < before * 3 / 4, "{}: {before} -> {after}", kind.name);
        assert!(moved[0] + moved[1] > 0 || kind.name == RAW.name, "{}: nothing moved", kind.name);
        assert_only(&dir, &[kind.name]);
        Scene::check_at(&disk, *kind, &aged);
        run("sh", &["-c", &format!("rm -r '{}' '{}/filler '*", dir.display(), host.path().display())]);
    }
}

#[test]
fn tables_need_no_room_on_the_host() {
    fits_where_little_is_free(&[(Inside::Ext4, QCOW2), (Inside::Ntfs, VHDX), (Inside::Ext4, VMDK)]);
}

#[test]
fn blocks_need_no_room_on_the_host() {
    fits_where_little_is_free(&[(Inside::Ntfs, VHD), (Inside::Ext4, VDI), (Inside::Ntfs, RAW)]);
}

/// What of reserved storage counts as data on the host depends on which pages of it are in memory: of the proof nothing does.
#[test]
fn pages_that_leave_the_cache_are_no_loss() {
    for _ in 0..3 {
        let scene = Scene::new(Inside::Ext4, QCOW2);
        let ended = AtomicBool::new(false);
        let done = thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    if let Ok(file) = fs::File::open(&scene.disk) {
                        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                    }
                    sleep(Duration::from_millis(3));
                }
            });
            let output = common::output(&["compact", arg(&scene.disk), "--defrag", "--move", "always"]);
            ended.store(true, Ordering::Relaxed);
            output
        });
        let message = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(0), "{message}");
        scene.check();
    }
}

#[test]
fn what_must_not_be_changed_stays() {
    let scene = Scene::new(Inside::Ext4, QCOW2);
    run("qemu-img", &["snapshot", "-c", "before", arg(&scene.disk)]);
    let untouched = Untouched::all_in(scene.dir.path());
    for dry in [&[][..], &["--dry-run"]] {
        let message = fail(3, &[&["compact", arg(&scene.disk), "--defrag"], dry].concat());
        assert!(message.contains("snapshot"), "{message}");
    }
    untouched.check(scene.dir.path());
}

#[test]
fn for_people() {
    let scene = Scene::new(Inside::Ext4, VHD);
    let said = succeed(&["compact", arg(&scene.disk), "--dry-run"]);
    assert!(said.contains("compact --defrag"), "{said}");
    let said = succeed(&["compact", arg(&scene.disk), "--defrag", "--dry-run"]);
    assert!(said.contains("would move") && said.contains("which empties"), "{said}");
    let said = succeed(&["compact", arg(&scene.disk), "--defrag", "--progress", "none"]);
    assert!(said.contains("moved") && said.contains("on the host"), "{said}");
    println!("{said}");
}
