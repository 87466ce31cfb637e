//! `leandisk defrag` from outside: in images of every kind the files are as they were, as real mounts and checkers see
//! them, in one piece each as filefrag and ntfsprogs count, and the image is no larger.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common;
use crate::common::{Untouched, arg, assert_only, document, fail, number, succeed};
use crate::defrag_common::{
    Inside, Kind, QCOW2, QCOW2_SMALL, QCOW2_V2, RAW, Scene, VDI, VDI_STATIC, VHD, VHD_FIXED, VHDX,
    VHDX_FIXED, VMDK, VMDK_FLAT, allocated_bytes, ext4, filefrag, gpt, mbr, ntfs, ntfs_runs, volume,
};
use serde_json::Value;
use testkit::mounted::Mounted;
use testkit::{run, scratch};

const SCHEMA: &str = "leandisk.defrag/1";

impl Scene {
    /// Finds a place on the host for all of a raw disk.
    fn reserve(&self) {
        let len = fs::metadata(&self.disk).unwrap().len().to_string();
        run("fallocate", &["-l", &len, arg(&self.disk)]);
    }

    fn defrag(&self, more: &[&str]) -> Value {
        document(SCHEMA, &[&["defrag", arg(&self.disk)], more].concat())
    }

    /// Plans, does it, and has it judged; answers what was said of it.
    fn defrag_as_planned(&self, more: &[&str]) -> Value {
        let what = format!("{} in {} {more:?}", self.fixture.name, self.kind.name);
        let before = Untouched::all_in(self.dir.path());
        let names = common::names_in(self.dir.path());
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let allocated = allocated_bytes(self.dir.path());
        let planned = self.defrag(&[more, &["--dry-run"]].concat());
        before.check(self.dir.path());
        assert_eq!(planned["dry_run"], true);

        let done = self.defrag(more);
        assert_only(self.dir.path(), &names);
        assert_eq!(done["dry_run"], false);
        assert_eq!(done["path"], arg(&self.disk));
        for (index, part) in (1u64..).zip(&self.fixture.parts) {
            let (planned, done) = (volume(&planned, index), volume(&done, index));
            assert_eq!(planned["after"], done["after"], "{what}: predicted and found\n{planned:#}");
            assert_eq!(planned["before"], done["before"], "{what}");
            check_document(done, part.inside, &what);
        }
        let grown = allocated_bytes(self.dir.path()).saturating_sub(allocated);
        assert!(grown <= allocated / 1000 + 131_072, "{what}: {grown} more bytes than {allocated}");

        let guest_view = self.guest_view();
        self.fixture.assert_same_files(&guest_view);
        self.judge(&guest_view, &done);
        done
    }

    /// A second run finds nothing to do, and does nothing.
    fn check_done(&self, more: &[&str]) {
        let before = Untouched::all_in(self.dir.path());
        let again = self.defrag(more);
        for part in again["volumes"].as_array().unwrap() {
            assert_eq!(number(part, "/moved_bytes"), 0, "{part:#}");
            assert_eq!(part["before"], part["after"]);
        }
        before.check(self.dir.path());
    }

    fn guest_view(&self) -> PathBuf {
        let raw = self.dir.path().join("guest-view");
        self.kind.extract_guest(&self.disk, &raw);
        raw
    }

    /// The tools of the file systems count as we do.
    fn judge(&self, guest_view: &Path, done: &Value) {
        for (index, part) in (1u64..).zip(&self.fixture.parts) {
            let alone = self.dir.path().join("alone");
            self.fixture.extract(part, guest_view, &alone);
            let left: Vec<_> = volume(done, index)["left_files"].as_array().unwrap().clone();
            let is_left = |path: &str| left.iter().any(|left| left["path"] == path);
            match part.inside {
                Inside::Ext4 => {
                    let fragmented = filefrag(&alone).into_iter().filter(|(_, runs)| *runs > 1);
                    let wrong: Vec<_> = fragmented.filter(|(path, _)| !is_left(path)).collect();
                    assert!(wrong.is_empty(), "filefrag: {wrong:?}");
                }
                Inside::Ntfs => {
                    for path in ["/pieces", "/long0", "/turn3", "/turns"] {
                        let runs = ntfs_runs(&alone, path);
                        assert!(runs == 1 || is_left(path), "{path}: {runs} runs");
                    }
                }
            }
            fs::remove_file(alone).unwrap();
        }
    }
}

/// What a volume's part of the document must say.
fn check_document(done: &Value, inside: Inside, what: &str) {
    let name = if inside == Inside::Ntfs { "NTFS" } else { "ext4" };
    assert_eq!(done["filesystem"].as_str().unwrap().to_lowercase(), name.to_lowercase(), "{what}");
    assert!(done["refused"].is_null(), "{what}: {done:#}");
    for left in done["left_files"].as_array().unwrap() {
        let reason = left["reason"].as_str().unwrap();
        let is_for_want_of_room = reason.contains("free space") || reason.contains("would grow");
        assert!(!is_for_want_of_room, "{what}: {left}");
    }
    assert!(number(done, "/before/fragmented_files") > 5, "{what}: {done:#}");
    let named = done["left_files"].as_array().unwrap().len() as u64;
    assert!(number(done, "/after/fragmented_files") <= number(done, "/left"), "{what}: {done:#}");
    assert_eq!(named, number(done, "/left").min(20), "{what}");
    assert!(number(done, "/moved_bytes") > 0, "{what}");
    assert!(number(done, "/metadata_written_bytes") > 0, "{what}");
    assert!(number(done, "/journal_written_bytes") > 0, "{what}");
    for figure in ["fragments", "free_extents", "largest_free_extent_bytes"] {
        assert!(number(done, &format!("/after/{figure}")) > 0, "{what}: {figure}");
    }
}

fn check_kind(kind: Kind) {
    for fixture in [ntfs(), ext4()] {
        let scene = Scene::new(fixture, kind);
        let done = scene.defrag_as_planned(&[]);
        println!("{done:#}");
        fs::remove_file(scene.dir.path().join("guest-view")).unwrap();
        scene.check_done(&[]);
    }
}

#[test]
fn sparse_raw() {
    check_kind(RAW);
}

#[test]
fn dense_raw() {
    for fixture in [ntfs(), ext4()] {
        let scene = Scene::new(fixture, RAW);
        scene.reserve();
        let allocated = allocated_bytes(scene.dir.path());
        let done = scene.defrag_as_planned(&[]);
        assert_eq!(number(&done, "/volumes/0/growth_bytes"), 0, "{done:#}");
        fs::remove_file(scene.dir.path().join("guest-view")).unwrap();
        assert!(allocated_bytes(scene.dir.path()) >= allocated, "what was reserved stays so");
    }
}

#[test]
fn qcow2() {
    check_kind(QCOW2);
}

#[test]
fn qcow2_of_small_clusters() {
    check_kind(QCOW2_SMALL);
}

#[test]
fn qcow2_v2() {
    check_kind(QCOW2_V2);
}

#[test]
fn dynamic_vhdx() {
    check_kind(VHDX);
}

#[test]
fn fixed_vhdx() {
    check_kind(VHDX_FIXED);
}

#[test]
fn dynamic_vhd() {
    check_kind(VHD);
}

#[test]
fn fixed_vhd() {
    check_kind(VHD_FIXED);
}

#[test]
fn sparse_vmdk() {
    check_kind(VMDK);
}

#[test]
fn flat_vmdk() {
    check_kind(VMDK_FLAT);
}

#[test]
fn dynamic_vdi() {
    check_kind(VDI);
}

#[test]
fn static_vdi() {
    check_kind(VDI_STATIC);
}

#[test]
fn two_volumes_behind_each_table() {
    for (fixture, kind) in [(mbr(), VHDX), (gpt(), QCOW2)] {
        let scene = Scene::new(fixture, kind);
        let done = scene.defrag_as_planned(&["--verify"]);
        assert_eq!(done["volumes"].as_array().unwrap().len(), 2);
        fs::remove_file(scene.dir.path().join("guest-view")).unwrap();
        scene.check_done(&["--verify"]);
    }
}

#[test]
fn one_volume_of_two_is_asked_for() {
    let scene = Scene::new(gpt(), RAW);
    let done = scene.defrag(&["--volume", "2"]);
    assert!(volume(&done, 1)["refused"].is_string() && volume(&done, 1)["before"].is_null(), "{done:#}");
    check_document(volume(&done, 2), Inside::Ext4, "volume 2");
    scene.fixture.assert_same_files(&scene.disk);
    let first = &scene.fixture.parts[0];
    let end = (first.start_bytes + first.len_bytes).to_string();
    run("cmp", &["-n", &end, arg(&scene.disk), arg(&scene.fixture.raw)]);
    fail(2, &["defrag", arg(&scene.disk), "--volume", "3"]);
    fail(2, &["defrag", arg(&scene.disk), "--volume", "0"]);
}

/// What the host reserved for an image and never wrote is in the page cache or not, and the plan is the same.
#[test]
fn a_plan_does_not_depend_on_what_is_cached() {
    let scene = Scene::new(ext4(), QCOW2);
    let file = fs::File::open(&scene.disk).unwrap();
    run("fallocate", &["--keep-size", "-l", &file.metadata().unwrap().len().to_string(), arg(&scene.disk)]);
    let mut plans = Vec::new();
    for cached in [false, true, false] {
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        if cached {
            testkit::digest(&scene.disk);
        }
        let mut planned = scene.defrag(&["--dry-run"]);
        planned.as_object_mut().unwrap().retain(|key, _| key == "volumes" || key == "goal");
        plans.push(planned);
    }
    assert_eq!(plans[0], plans[1], "before and after all of it was read");
    assert_eq!(plans[0], plans[2], "and when it left the cache");
    assert!(number(&plans[0], "/volumes/0/moved_bytes") > 0, "{:#}", plans[0]);
}

/// `free` leaves free space in no more pieces than `files`, and the largest no smaller; `pack` in far fewer.
#[test]
fn goals() {
    for fixture in [ntfs(), ext4()] {
        let (mut free_extents, mut largest) = (Vec::new(), Vec::new());
        for goal in ["files", "free", "pack"] {
            let scene = Scene::new(fixture.clone(), RAW);
            scene.reserve();
            let done = scene.defrag_as_planned(&["--goal", goal]);
            assert_eq!(done["goal"], goal);
            println!("{goal} {done:#}");
            free_extents.push(number(&done, "/volumes/0/after/free_extents"));
            largest.push(number(&done, "/volumes/0/after/largest_free_extent_bytes"));
            fs::remove_file(scene.dir.path().join("guest-view")).unwrap();
            if goal != "pack" {
                scene.check_done(&["--goal", goal]);
            }
        }
        let [files, free, pack] = free_extents[..] else { unreachable!() };
        assert!(free <= files && pack < files / 5, "free extents: {free_extents:?}");
        assert!(largest[1] >= largest[0], "the largest free extent: {largest:?}");
    }
}

/// Small files made where free space is scattered, so that `$MFT` grows in many pieces.
fn volume_with_a_scattered_mft(volume: &Path) {
    fs::File::create(volume).unwrap().set_len(24 << 20).unwrap();
    run("mkntfs", &["-qQF", arg(volume)]);
    let mounted = Mounted::ntfs(volume, "");
    let file = |name: String| mounted.path().join(name);
    let mut count = 0u32;
    while fs::write(file(format!("large {count}")), vec![7; 20_000]).is_ok() {
        count += 1;
    }
    (0..=count).step_by(2).for_each(|index| fs::remove_file(file(format!("large {index}"))).unwrap());
    (0..2000u32).for_each(|index| fs::write(file(format!("small {index}")), index.to_string()).unwrap());
    (1..count).step_by(6).for_each(|index| fs::remove_file(file(format!("large {index}"))).unwrap());
}

#[test]
fn the_mft_comes_together_if_it_is_asked_for() {
    let dir = scratch();
    let disk = dir.path().join("volume.raw");
    volume_with_a_scattered_mft(&disk);
    let before = Mounted::ntfs(&disk, "ro").tree();
    let mft_fragments = || {
        let files = dir.path().join("files");
        succeed(&["analyze", arg(&disk), "-f", "raw", "--files", arg(&files)]);
        let lines = fs::read_to_string(&files).unwrap();
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mft = lines.into_iter().find(|file| file["path"] == "/$MFT").unwrap();
        fs::remove_file(files).unwrap();
        mft["fragments"].as_u64().unwrap()
    };
    let scattered = mft_fragments();
    assert!(scattered > 5, "{scattered}");
    succeed(&["defrag", arg(&disk), "-f", "raw"]);
    assert_eq!(mft_fragments(), scattered, "nobody asked for it");
    succeed(&["defrag", arg(&disk), "-f", "raw", "--mft"]);
    // What mkntfs puts behind the first extent stays.
    assert!(mft_fragments() <= 2, "{}", mft_fragments());
    run("ntfsfix", &["-n", arg(&disk)]);
    run("ntfsresize", &["--info", "--force", "--no-progress-bar", arg(&disk)]);
    Mounted::ntfs(&disk, "ro").tree().assert_same(&before, "with its $MFT together");
    fs::write(Mounted::ntfs(&disk, "").path().join("another"), "still usable").unwrap();
    run("ntfsfix", &["-n", arg(&disk)]);
}

#[test]
fn the_journal_lies_where_it_is_told_to() {
    let scene = Scene::new(ext4(), RAW);
    let elsewhere = scratch();
    let journal = elsewhere.path().join("journal");
    scene.defrag_as_planned(&["--journal", arg(&journal)]);
    assert_only(elsewhere.path(), &[]);
    // One that is in the way is not overwritten.
    let scene = Scene::new(ext4(), RAW);
    fs::write(&journal, "precious").unwrap();
    let before = Untouched::all_in(scene.dir.path());
    let message = fail(3, &["defrag", arg(&scene.disk), "--journal", arg(&journal)]);
    assert!(message.contains("exists already") && message.contains("--journal"), "{message}");
    before.check(scene.dir.path());
    assert_eq!(fs::read_to_string(&journal).unwrap(), "precious");
}

#[test]
fn for_people() {
    let scene = Scene::new(gpt(), QCOW2);
    let said = succeed(&["defrag", arg(&scene.disk), "--dry-run"]);
    for words in ["would defragment", "fragmented files", "ntfs", "ext4", "moves"] {
        assert!(said.contains(words), "'{words}' in {said}");
    }
    let said = succeed(&["defrag", arg(&scene.disk), "--progress", "none"]);
    for words in ["defragmented", "before", "after", "wrote", "made contiguous"] {
        assert!(said.contains(words), "'{words}' in {said}");
    }
    println!("{said}");
    let output = common::output(&["defrag", arg(&scene.disk), "--progress", "json"]);
    assert!(output.status.success());
}
