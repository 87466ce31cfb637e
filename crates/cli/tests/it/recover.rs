//! `leandisk recover` after the program was killed in the midst of a change: nothing is lost, and what remains is a whole
//! volume that can be changed further.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::{
    Untouched, arg, assert_only, document, fail, leandisk, number, output, signal, succeed, wait_until,
};
use crate::defrag_common::{
    Fixture, Inside, Kind, QCOW2, RAW, Scene, VDI, VHD, VHDX, VMDK, ext4, ntfs, write_into,
};
use serde_json::Value;
use testkit::{ext_volume, ntfs_volume, run, scratch};

const SCHEMA: &str = "leandisk.recover/1";

impl Scene {
    fn journal(&self) -> PathBuf {
        self.dir.path().join(format!(".{}.leandisk-journal", self.kind.name))
    }

    /// Starts to pack, and kills it `moment` after the journal is there; answers how long the journal was there, and
    /// whether it still is.
    fn kill_after(&self, moment: Duration) -> (Duration, bool) {
        let mut child = self.pack();
        let seen = Instant::now();
        while seen.elapsed() < moment && self.journal().exists() {
            sleep(Duration::from_micros(100));
        }
        let lasted = seen.elapsed();
        child.kill().unwrap();
        child.wait().unwrap();
        (lasted, self.journal().exists())
    }

    /// Packs until the journal is there.
    fn pack(&self) -> Child {
        let mut child = leandisk()
            .args(["defrag", arg(&self.disk), "--goal", "pack"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until(&mut child, || self.journal().exists());
        child
    }

    fn recover(&self) -> Value {
        let document = document(SCHEMA, &["recover", arg(&self.disk)]);
        assert_only(self.dir.path(), &[self.kind.name]);
        document
    }

    /// The guest's files are as they were, wherever they lie.
    fn check(&self) {
        let raw = self.dir.path().join("guest-view");
        self.kind.extract_guest(&self.disk, &raw);
        self.fixture.assert_same_files(&raw);
        fs::remove_file(raw).unwrap();
    }
}

/// A disk whose change was killed after `moment`, and whether its journal is left. Machines are not always as fast: what comes too
/// late is tried sooner.
fn killed(fixture: fn() -> Fixture, kind: Kind, moment: Duration) -> (Scene, bool) {
    let mut moment = moment;
    for _ in 0..6 {
        let scene = Scene::new(fixture(), kind);
        if scene.kill_after(moment).1 {
            return (scene, true);
        }
        moment /= 2;
    }
    let scene = Scene::new(fixture(), kind);
    let is_left = scene.kill_after(Duration::ZERO).1;
    (scene, is_left)
}

/// Kills at moments spread over the change, each time further than the last recovery left it.
fn killed_at_any_moment(fixture: fn() -> Fixture, kinds: &[Kind]) {
    let whole = Scene::new(fixture(), kinds[0]);
    let (lasts, is_left) = whole.kill_after(Duration::from_secs(120));
    assert!(!is_left, "it ends");
    println!("the journal is there for {lasts:?}");
    let (mut outcomes, mut died) = (Vec::new(), 0);
    for (step, kind) in (0u32..).zip(kinds) {
        let seed = std::process::id().wrapping_mul(2_654_435_761).wrapping_add(step * 40_503) >> 16;
        let count = u32::try_from(kinds.len()).unwrap();
        let moment = (lasts * step + lasts * (seed % 1000) / 1000) / count;
        let (scene, is_left) = killed(fixture, *kind, moment);
        println!("{} killed after {moment:?}: journal left: {is_left}", kind.name);
        if is_left {
            died += 1;
            let before = Untouched::all_in(scene.dir.path());
            for command in ["analyze", "defrag"] {
                let message = fail(3, &[command, arg(&scene.disk)]);
                assert!(message.contains("leandisk recover"), "{message}");
            }
            before.check(scene.dir.path());
            let document = scene.recover();
            outcomes.push(document["outcome"].as_str().unwrap().to_owned());
            println!("{document}");
        }
        scene.check();
        // It goes on from where it was.
        succeed(&["defrag", arg(&scene.disk), "--goal", "pack", "--verify"]);
        scene.check();
    }
    println!("{died} of {} died: {outcomes:?}", kinds.len());
    assert!(died >= kinds.len() / 2, "only {died} were hit");
    assert!(outcomes.iter().all(|outcome| outcome == "whole" || outcome == "finished"), "{outcomes:?}");
}

#[test]
fn killed_at_any_moment_ntfs_is_whole() {
    killed_at_any_moment(ntfs, &[RAW, QCOW2, VHDX, VMDK, VDI, VHD]);
}

#[test]
fn killed_at_any_moment_ext4_is_whole() {
    killed_at_any_moment(ext4, &[RAW, QCOW2, VHDX, VMDK, VDI, VHD]);
}

/// A sparse VMDK says while it is written that it is not closed. `recover` takes that for what its own change left.
#[test]
fn an_image_that_was_left_unclosed_is_closed_again() {
    let unclosed = |disk: &Path| fs::read(disk).unwrap()[UNCLEAN_SHUTDOWN] == 1;
    for step in 0..20 {
        let (scene, is_left) = killed(ext4, VMDK, Duration::from_millis(5) * step);
        if is_left && unclosed(&scene.disk) {
            scene.recover();
            assert!(!unclosed(&scene.disk));
            scene.check();
            succeed(&["defrag", arg(&scene.disk)]);
            return;
        }
    }
    panic!("no attempt left the image unclosed");
}

/// `uncleanShutdown` of the header of a sparse extent, VMware's "Virtual Disk Format 5.0".
const UNCLEAN_SHUTDOWN: usize = 72;

/// A process that is stopped still has the disk: nobody else changes it, or finishes what is not over.
#[test]
fn who_changes_a_disk_has_it_alone_and_ends_in_order_when_asked() {
    let scene = Scene::new(ntfs(), RAW);
    let start = || {
        let mut child = leandisk()
            .args(["defrag", arg(&scene.disk), "--goal", "pack"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until(&mut child, || scene.journal().exists());
        child
    };
    let child = start();
    signal(&child, "STOP");
    assert!(scene.journal().exists(), "stopped in its midst");
    for command in ["defrag", "recover", "analyze"] {
        let message = fail(3, &[command, arg(&scene.disk)]);
        println!("{message}");
    }
    signal(&child, "INT");
    signal(&child, "CONT");
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    // It may have come too late.
    assert!(matches!(output.status.code(), Some(0 | 130)), "{message}");
    assert_only(scene.dir.path(), &[RAW.name]);
    scene.check();
    let mut child = start();
    signal(&child, "TERM");
    assert!(matches!(child.wait().unwrap().code(), Some(0 | 130)));
    assert_only(scene.dir.path(), &[RAW.name]);
    scene.check();
}

#[test]
fn there_may_be_nothing_to_recover() {
    let scene = Scene::new(ext4(), QCOW2);
    let before = Untouched::all_in(scene.dir.path());
    let document = document(SCHEMA, &["recover", arg(&scene.disk)]);
    assert_eq!(document["outcome"], "none");
    assert_eq!(number(&document, "/written_bytes"), 0);
    assert!(document["batch"].is_null());
    let said = succeed(&["recover", arg(&scene.disk)]);
    assert!(said.contains("no change of it was interrupted"), "{said}");
    before.check(scene.dir.path());
    fail(5, &["recover", arg(&scene.dir.path().join("absent.raw"))]);
}

/// Whether a journal is there and holds a batch. Its records begin at a multiple of 4 KiB.
fn has_record(journal: &Path) -> bool {
    fs::read(journal).is_ok_and(|bytes| bytes.chunks(4096).any(|block| block.starts_with(b"LEANDREC")))
}

/// A scene whose journal holds a batch that was committed, and a copy of that journal.
fn committed(fixture: fn() -> Fixture) -> (Scene, Vec<u8>) {
    for _ in 0..100 {
        let scene = Scene::new(fixture(), RAW);
        let mut child = scene.pack();
        wait_until(&mut child, || has_record(&scene.journal()));
        child.kill().unwrap();
        child.wait().unwrap();
        if has_record(&scene.journal()) {
            let journal = fs::read(scene.journal()).unwrap();
            return (scene, journal);
        }
    }
    panic!("no attempt left a committed batch");
}

/// What a guest wrote since is worth more than what a journal remembers.
#[test]
fn a_disk_that_was_used_since_is_refused() {
    for fixture in [ntfs, ext4] {
        let (scene, journal) = committed(fixture);
        scene.recover();
        use_volume(scene.fixture.parts[0].inside, &scene.disk);
        fs::write(scene.journal(), journal).unwrap();
        let before = Untouched::all_in(scene.dir.path());
        let message = fail(3, &["recover", arg(&scene.disk)]);
        println!("{message}");
        assert!(message.contains("since"), "{message}");
        before.check(scene.dir.path());
    }
}

fn use_volume(inside: Inside, volume: &Path) {
    let write = |dir: &Path| {
        fs::remove_file(dir.join(if inside == Inside::Ntfs { "turn0" } else { "twenty" })).unwrap();
        for index in 0..50 {
            fs::write(dir.join(format!("new {index}")), vec![b'n'; 40_000]).unwrap();
        }
    };
    match inside {
        Inside::Ntfs => {
            let mount = scratch();
            write(&ntfs_volume::Mounted::new(volume, &mount.path().join("mnt"), "").dir);
        }
        Inside::Ext4 => write(&ext_volume::Mounted::new(volume, "rw").dir()),
    }
}

/// What stands on a disk whose change was interrupted reads it, so it has to wait as well.
#[test]
fn a_disk_on_one_that_is_to_be_recovered_is_refused() {
    let (scene, _) = committed(ext4);
    let child = scene.dir.path().join("child.qcow2");
    let (child, parent) = (arg(&child), arg(&scene.disk));
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", parent, "-F", "raw", child]);
    let socket = scene.dir.path().join("socket");
    let target = scene.dir.path().join("target.raw");
    let before = Untouched::all_in(scene.dir.path());
    let read_only = ["serve", child, "--socket", arg(&socket), "--read-only"];
    for command in [&["info", child][..], &["copy", child, arg(&target)], &read_only[..4], &read_only] {
        let message = fail(3, command);
        assert!(message.contains("leandisk recover"), "{command:?}: {message}");
        before.check(scene.dir.path());
    }
}

#[test]
fn the_journal_of_another_disk_is_refused() {
    let (scene, journal) = committed(ext4);
    // Of another size, of the same size, and the same disk as it was made anew.
    let other = Scene::new(ntfs(), RAW);
    let same_size = Scene::new(ext4(), RAW);
    run("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "1024", arg(&same_size.disk)]);
    let grown = Scene::new(ext4(), RAW);
    run("truncate", &["-s", "+1M", arg(&grown.disk)]);
    for other in [other, same_size, grown] {
        fs::write(other.journal(), &journal).unwrap();
        let before = Untouched::all_in(other.dir.path());
        let message = fail(3, &["recover", arg(&other.disk)]);
        println!("{message}");
        before.check(other.dir.path());
    }
    // What is no journal at all says so, too.
    let broken = Scene::new(ext4(), RAW);
    fs::write(broken.journal(), vec![0xa5; 100_000]).unwrap();
    let before = Untouched::all_in(broken.dir.path());
    fail(3, &["recover", arg(&broken.disk)]);
    before.check(broken.dir.path());
    drop(scene);
}

/// A disk put back from a copy made before the change: the journal beside it has nothing to do there, or, if it is of a later
/// batch, does not know the disk. Neither changes a byte.
#[test]
fn a_disk_that_was_put_back_is_left_as_it_is() {
    let (scene, _) = committed(ntfs);
    write_into_all(&scene.fixture.raw, &scene.disk);
    let output = output(&["recover", arg(&scene.disk), "--json"]);
    let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    match output.status.code() {
        Some(0) => assert!(said.contains("\"whole\""), "{said}"),
        status => assert!(status == Some(3) && said.contains("since"), "{said}"),
    }
    run("cmp", &[arg(&scene.fixture.raw), arg(&scene.disk)]);
}

fn write_into_all(from: &Path, to: &Path) {
    run("truncate", &["-s", "0", arg(to)]);
    run("truncate", &["-s", &fs::metadata(from).unwrap().len().to_string(), arg(to)]);
    write_into(from, to, 0);
}

/// A link beside the disk leads to the journal: nobody takes the disk for whole.
#[test]
fn a_journal_elsewhere_is_found_by_whoever_opens_the_disk() {
    let (scene, journal) = committed(ext4);
    let elsewhere = scratch();
    let moved = elsewhere.path().join("journal");
    fs::write(&moved, journal).unwrap();
    fs::remove_file(scene.journal()).unwrap();
    std::os::unix::fs::symlink(&moved, scene.journal()).unwrap();
    let message = fail(3, &["defrag", arg(&scene.disk)]);
    assert!(message.contains("recover"), "{message}");
    let document = document(SCHEMA, &["recover", arg(&scene.disk)]);
    assert_ne!(document["outcome"], "none", "{document:#}");
    assert_only(elsewhere.path(), &[]);
    assert!(!scene.journal().is_symlink(), "the link went with it");
    scene.check();
}

#[test]
fn what_is_no_journal_of_the_disk_is_never_removed() {
    let (scene, elsewhere) = (Scene::new(ext4(), RAW), scratch());
    let other = elsewhere.path().join("other.raw");
    run("truncate", &["-s", "5M", arg(&other)]);
    run("mke2fs", &["-q", "-F", "-t", "ext4", arg(&other)]);
    let mut strangers: Vec<Vec<u8>> = vec![fs::read(&other).unwrap()];
    for len in [0, 9, 500, 4096, 8192, 16_384, 16_385, 100_000] {
        strangers.extend([vec![b'k'; len], vec![0; len]]);
    }
    fs::remove_file(&other).unwrap();
    let notes = elsewhere.path().join("notes");
    for stranger in &strangers {
        fs::write(&notes, stranger).unwrap();
        check_left_alone(&scene, &elsewhere, &["--journal", arg(&notes)]);
        std::os::unix::fs::symlink(&notes, scene.journal()).unwrap();
        check_left_alone(&scene, &elsewhere, &[]);
        fs::remove_file(scene.journal()).unwrap();
        fs::write(scene.journal(), stranger).unwrap();
        check_left_alone(&scene, &elsewhere, &[]);
        fs::remove_file(scene.journal()).unwrap();
    }
    // Nobody says that a change was interrupted where none was.
    std::os::unix::fs::symlink(&notes, scene.journal()).unwrap();
    let (target, page) = (elsewhere.path().join("target.raw"), elsewhere.path().join("page.svg"));
    let disk = arg(&scene.disk);
    for args in [
        &["copy", disk, arg(&target)][..],
        &["analyze", disk],
        &["map", disk, "-o", arg(&page)],
        &["compact", disk],
        &["defrag", disk],
        &["serve", disk, "--socket", arg(&target)],
    ] {
        let message = fail(3, args);
        assert!(message.contains("cannot be used as one") && !message.contains("recover"), "{message}");
        assert_only(elsewhere.path(), &["notes"]);
    }
    fs::remove_file(scene.journal()).unwrap();
    scene.check();
}

fn check_left_alone(scene: &Scene, elsewhere: &tempfile::TempDir, more: &[&str]) {
    let before = [scene.dir.path(), elsewhere.path()].map(Untouched::all_in);
    let message = fail(3, &[&["recover", arg(&scene.disk)], more].concat());
    assert!(
        message.contains("is no journal of Leandisk") && message.contains("look at what it is"),
        "{message}"
    );
    before[0].check(scene.dir.path());
    before[1].check(elsewhere.path());
}

/// A disk that was copied together with its journal is recovered by itself; the copy cannot use up the journal of the other.
#[test]
fn a_disk_and_its_copy_have_a_journal_each() {
    let (scene, _) = committed(ext4);
    let copy = scratch();
    let copied = copy.path().join(scene.kind.name);
    run("cp", &["--sparse=always", arg(&scene.disk), arg(&copied)]);
    let before = [scene.dir.path(), copy.path()].map(Untouched::all_in);
    let message = fail(3, &["recover", arg(&copied), "--journal", arg(&scene.journal())]);
    assert!(message.contains("belongs to another disk") && message.contains(arg(&scene.disk)), "{message}");
    before[0].check(scene.dir.path());
    before[1].check(copy.path());
    run("cp", &[arg(&scene.journal()), arg(copy.path())]);
    let recovered = document(SCHEMA, &["recover", arg(&copied)]);
    assert_ne!(recovered["outcome"], "none", "{recovered:#}");
    assert_only(copy.path(), &[scene.kind.name]);
    before[0].check(scene.dir.path());
    // One that was renamed is the same disk.
    let renamed = scene.dir.path().join("renamed.raw");
    fs::rename(&scene.disk, &renamed).unwrap();
    fs::rename(scene.journal(), scene.dir.path().join(".renamed.raw.leandisk-journal")).unwrap();
    let recovered = document(SCHEMA, &["recover", arg(&renamed)]);
    assert_ne!(recovered["outcome"], "none", "{recovered:#}");
    assert_only(scene.dir.path(), &["renamed.raw"]);
    run("cmp", &[arg(&renamed), arg(&copied)]);
}

#[test]
fn a_journal_elsewhere_is_found_where_it_is_told_to_be() {
    let (scene, journal) = committed(ext4);
    let elsewhere = scratch();
    let moved = elsewhere.path().join("journal");
    fs::write(&moved, journal).unwrap();
    fs::remove_file(scene.journal()).unwrap();
    let document = document(SCHEMA, &["recover", arg(&scene.disk), "--journal", arg(&moved)]);
    assert_ne!(document["outcome"], "none", "{document:#}");
    assert_only(elsewhere.path(), &[]);
    scene.check();
}
