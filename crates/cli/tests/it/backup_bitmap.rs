//! Backups by a persistent dirty bitmap of QEMU's, or by the layers of a chain: what did not change is not read, and what restic restores is
//! what the disk held.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use testkit::vhd::differencing;
use testkit::vhdx::{Child, differencing as differencing_vhdx};
use testkit::{Guest, Inside, run};

use crate::backup::Repo;
use crate::common::{arg, assert_same_bytes, document, number, succeed};

const NAME: &str = "daily";

/// An image with a bitmap, and repositories that it is backed up to.
struct Watched {
    repo: Repo,
    image: PathBuf,
}

impl Watched {
    /// Of a disk with an ext4 volume.
    fn new() -> Self {
        let repo = Repo::new();
        let image = repo.dir.path().join("disk.qcow2");
        let guest = Guest::get(Inside::Ext4);
        make_qcow2(&guest.disk, &image);
        let watched = Self { repo, image };
        watched.bitmap(&["--add"]);
        watched
    }

    fn bitmap(&self, what: &[&str]) {
        run("qemu-img", &[&["bitmap"], what, &[arg(&self.image), NAME]].concat());
    }

    fn write(&self, pattern: u8, at: u64, len_bytes: u64) {
        let command = format!("write -P {pattern} {at} {len_bytes}");
        run("qemu-io", &["-f", "qcow2", "-c", &command, arg(&self.image)]);
    }

    fn backup_to(&self, repo: &Repo, more: &[&str]) -> Value {
        repo.document("leandisk.backup/1", &[&["backup", arg(&self.image), "--bitmap", NAME], more].concat())
    }

    fn backup(&self, more: &[&str]) -> Value {
        self.backup_to(&self.repo, more)
    }

    /// Backs up to `repo`, and compares what restic restores with what a copy of the disk holds.
    fn backup_and_compare(&self, repo: &Repo) -> Value {
        let made = self.backup_to(repo, &[]);
        let raw = self.copy("now.raw");
        self.compare(repo, made["snapshot"].as_str().unwrap(), &raw);
        made
    }

    fn copy(&self, name: &str) -> PathBuf {
        let raw = self.repo.dir.path().join(name);
        succeed(&["copy", arg(&self.image), arg(&raw), "-O", "raw", "--force"]);
        raw
    }

    fn compare(&self, repo: &Repo, snapshot: &str, raw: &Path) {
        let restored = self.repo.dir.path().join("restored.raw");
        repo.dump(snapshot, "/disk.qcow2.raw", &restored);
        assert_same_bytes(raw, &restored);
    }

    /// Places of the longest file, on the disk: where it begins, and how long it is.
    fn file(&self) -> (u64, u64) {
        longest_file(&self.image, self.repo.dir.path())
    }
}

/// A QCOW2 image of the raw disk. What is reserved on the host and never written is a hole for it or not, as the page cache has it or not; here
/// there is none of it, so that a plan and what follows read as much.
pub(crate) fn make_qcow2(raw: &Path, image: &Path) {
    let converted = image.with_extension("converted");
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", arg(raw), arg(&converted)]);
    run("cp", &["--sparse=always", arg(&converted), arg(image)]);
    fs::remove_file(converted).unwrap();
}

pub(crate) fn longest_file(image: &Path, dir: &Path) -> (u64, u64) {
    let lines = dir.join("files.jsonl");
    let analyzed = document("leandisk.analyze/1", &["analyze", arg(image), "--files", arg(&lines)]);
    let lines = fs::read_to_string(&lines).unwrap();
    let extents = lines.lines().flat_map(|line| {
        let stream: Value = serde_json::from_str(line).unwrap();
        let is_file = stream["kind"] == "file" && !stream["path"].as_str().unwrap().contains("swap");
        let mut volumes = analyzed["volumes"].as_array().unwrap().iter();
        let volume = volumes.find(|volume| volume["index"] == stream["volume"]).unwrap();
        let volume_at = number(volume, "/start_bytes");
        let extents = stream["extents"].as_array().filter(|_| is_file).cloned().unwrap_or_default();
        extents.into_iter().map(move |extent| (number(&extent, "/1") + volume_at, number(&extent, "/2")))
    });
    extents.max_by_key(|(_, len_bytes)| *len_bytes).unwrap()
}

fn tracking(made: &Value) -> (&str, &str) {
    let disk = &made["disks"][0];
    (disk["tracking"].as_str().unwrap(), disk["reason"].as_str().unwrap_or_default())
}

fn used_bytes(made: &Value) -> u64 {
    number(made, "/disks/0/used_bytes")
}

#[test]
fn only_what_changed_is_read_and_restic_restores_all_of_it() {
    let watched = Watched::new();
    let repo = &watched.repo;
    let first = watched.backup(&["--init"]);
    assert_eq!(tracking(&first), ("none", "it is the first backup of these disks"));
    assert_eq!(first["read_bytes"], first["disks"][0]["used_bytes"]);
    let before = watched.copy("first.raw");

    // Nothing changed, and nothing is read but the sample.
    let idle = watched.backup(&[]);
    assert_eq!(tracking(&idle), ("bitmap", ""), "{idle:#}");
    assert!(number(&idle, "/read_bytes") <= 128 << 10, "{idle:#}");
    assert_eq!((number(&idle, "/disks/0/new_bytes"), &idle["parent"]), (0, &first["snapshot"]));

    let (at, len_bytes) = watched.file();
    let changed = len_bytes.min(1 << 20) & !0xffff;
    watched.write(0x5a, at, changed);
    let planned = watched.backup(&["--dry-run"]);
    let second = watched.backup_and_compare(repo);
    assert_eq!(planned["read_bytes"], second["read_bytes"], "{planned:#} {second:#}");
    assert!(number(&planned, "/stored_bytes") >= number(&second, "/stored_bytes"), "{planned:#} {second:#}");
    assert_eq!(planned["disks"][0]["tracking"], second["disks"][0]["tracking"]);
    let read_bytes = number(&second, "/read_bytes");
    let bound = changed + changed / 5 + 2 * 65536 + (128 << 10);
    assert!(read_bytes >= changed && read_bytes <= bound, "{changed} changed: {second:#}");
    assert!(used_bytes(&second) > 2 * bound, "the test has enough to tell: {second:#}");
    watched.compare(repo, first["snapshot"].as_str().unwrap(), &before);
    repo.restic(&["check", "--read-data"]);
    let listed = repo.document("leandisk.snapshots/1", &["snapshots"]);
    assert_eq!(listed["snapshots"][2]["disks"].as_array().map(Vec::len), Some(1), "{listed:#}");
    assert!(repo.restic(&["ls", "latest"]).contains("/.leandisk/disk.qcow2.raw.json"));

    // A backup that is told of no bitmap leaves it alone.
    watched.write(0x5b, at, 4096);
    let untold = repo.document("leandisk.backup/1", &["backup", arg(&watched.image)]);
    assert_eq!(tracking(&untold).0, "none");
    // The bitmap still begins with the snapshot before that.
    let verified = watched.backup(&["--verify"]);
    assert_eq!(tracking(&verified).0, "bitmap");
    watched.compare(repo, "latest", &watched.copy("now.raw"));
    run("qemu-img", &["check", "-q", "-f", "qcow2", arg(&watched.image)]);
}

#[test]
fn a_bitmap_that_begins_elsewhere_is_not_believed() {
    let watched = Watched::new();
    let repo = &watched.repo;
    let (at, _) = watched.file();
    watched.backup(&["--init"]);
    let all_is_read = |made: &Value, why: &str| {
        assert!(tracking(made).0 == "none" && tracking(made).1.contains(why), "{made:#}");
        assert_eq!(made["read_bytes"], made["disks"][0]["used_bytes"]);
    };
    let is_tracked = |pattern: u8| {
        watched.write(pattern, at + 65536, 65536);
        let made = watched.backup(&[]);
        assert_eq!(tracking(&made), ("bitmap", ""), "{made:#}");
    };

    // Somebody else cleared it; or made another one of this name.
    watched.write(0x21, at, 65536);
    watched.bitmap(&["--clear"]);
    all_is_read(&watched.backup_and_compare(repo), "does not begin with the last snapshot");
    is_tracked(0x11);
    watched.write(0x22, at, 65536);
    watched.bitmap(&["--remove", "--add"]);
    all_is_read(&watched.backup(&[]), "does not begin with the last snapshot");

    // Another repository's backup was in between.
    let other = Repo::new();
    watched.write(0x23, at, 65536);
    all_is_read(&watched.backup_to(&other, &["--init"]), "first backup");
    all_is_read(&watched.backup_and_compare(repo), "does not begin with the last snapshot");
    is_tracked(0x12);

    // The last snapshot is not there any more, with which the bitmap begins.
    watched.write(0x24, at, 65536);
    let last = watched.backup(&[])["snapshot"].as_str().unwrap().to_owned();
    repo.restic(&["forget", &last]);
    all_is_read(&watched.backup_and_compare(repo), "does not begin with the last snapshot");

    // The image as it was is put back: its bitmap begins with an earlier snapshot, which is there.
    let kept = repo.dir.path().join("kept.qcow2");
    watched.write(0x25, at, 65536);
    fs::copy(&watched.image, &kept).unwrap();
    is_tracked(0x13);
    fs::copy(&kept, &watched.image).unwrap();
    let made = watched.backup_and_compare(repo);
    assert_eq!(tracking(&made), ("bitmap", ""), "{made:#}");

    watched.bitmap(&["--disable"]);
    all_is_read(&watched.backup(&[]), "disabled");
    watched.bitmap(&["--remove"]);
    all_is_read(&watched.backup(&["--dry-run"]), "no persistent bitmap");
    let raw = watched.copy("other.raw");
    let of_raw = repo.document("leandisk.backup/1", &["backup", arg(&raw), "--bitmap", NAME]);
    assert_eq!(tracking(&of_raw).0, "none");
    repo.fail(2, &["backup", arg(&watched.image), "--bitmap", NAME, "--in-use"]);
    repo.restic(&["check", "--read-data"]);
}

#[test]
fn what_lies_in_layers_that_are_as_they_were_is_not_read() {
    for (format, write_format) in [("qcow2", "qcow2"), ("vmdk", "vmdk")] {
        let repo = Repo::new();
        let path = |name: &str| repo.dir.path().join(format!("{name}.{format}"));
        let layers = ["base", "first", "second"].map(path);
        let [base, first, second] = &layers;
        let guest = Guest::get(Inside::Ext4);
        run("qemu-img", &["convert", "-f", "raw", "-O", format, arg(&guest.disk), arg(base)]);
        let (at, len_bytes) = longest_file(base, repo.dir.path());
        let len_bytes = len_bytes.min(1 << 20) & !0xffff;
        let stand_on = |new: &Path, old: &Path| {
            run("qemu-img", &["create", "-q", "-f", format, "-F", format, "-b", arg(old), arg(new)]);
        };
        let write = |image: &Path, pattern: u8, at: u64, len_bytes: u64| {
            let command = format!("write -P {pattern} {at} {len_bytes}");
            run("qemu-io", &["-f", write_format, "-c", &command, arg(image)]);
        };
        let back_up = |image: &Path| {
            let disk = format!("disk={}", arg(image));
            let made = repo.document("leandisk.backup/1", &["backup", "--init", &disk]);
            let (raw, restored) = (repo.dir.path().join("now.raw"), repo.dir.path().join("restored.raw"));
            succeed(&["copy", arg(image), arg(&raw), "-O", "raw", "--force"]);
            repo.dump("latest", "/disk", &restored);
            assert_same_bytes(&raw, &restored);
            made
        };
        let reads = |made: &Value, changed: u64| {
            assert_eq!(tracking(made), ("chain", ""), "{format}: {made:#}");
            let read_bytes = number(made, "/read_bytes");
            let bound = changed + changed / 5 + 2 * 65536 + (128 << 10);
            assert!(read_bytes >= changed && read_bytes <= bound, "{format}: {changed} changed: {made:#}");
        };
        assert_eq!(tracking(&back_up(base)).0, "none");
        reads(&back_up(base), 0);
        stand_on(first, base);
        write(first, 1, at, len_bytes);
        reads(&back_up(first), len_bytes);
        // The same layer, with more in it.
        write(first, 2, at + (64 << 10), 4096);
        reads(&back_up(first), len_bytes);
        stand_on(second, first);
        write(second, 3, at, 64 << 10);
        reads(&back_up(second), 64 << 10);
        // A layer below changes, which it should not, and which VMDK notices by itself: the one beneath it is as it was in an earlier snapshot.
        if format == "vmdk" {
            continue;
        }
        write(first, 4, at + (64 << 10), 64 << 10);
        reads(&back_up(second), len_bytes);
        write(base, 5, at + (128 << 10), 64 << 10);
        let made = back_up(second);
        assert!(tracking(&made).0 == "none" && tracking(&made).1.contains("layers"), "{made:#}");
    }
}

#[test]
fn what_lies_in_the_parent_of_a_differencing_vhd_is_not_read() {
    let repo = Repo::new();
    let path = |name: &str| repo.dir.path().join(name);
    let (parent, child, raw) = (path("parent.vhd"), path("child.vhd"), path("now.raw"));
    let guest = Guest::get(Inside::Ext4);
    let options = "subformat=dynamic,force_size=on";
    run("qemu-img", &["convert", "-f", "raw", "-O", "vpc", "-o", options, arg(&guest.disk), arg(&parent)]);
    let (at, _) = longest_file(&parent, repo.dir.path());
    let name: Vec<u8> = ".\\parent.vhd".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let locators = [(b"W2ru", name)];
    let (parent_bytes, contents) = (fs::read(&parent).unwrap(), fs::read(&guest.disk).unwrap());
    // So many bytes of the file are the child's.
    let write_child = |len_bytes: u64| {
        let sectors = at / 512..(at + len_bytes) / 512;
        let is_here = |block: usize, sector: usize| sectors.contains(&((block * 4096 + sector) as u64));
        let (bytes, expected) = differencing(&parent_bytes, &contents, &locators, is_here);
        fs::write(&child, bytes).unwrap();
        expected
    };
    let back_up = |image: &Path| {
        let disk = format!("disk={}", arg(image));
        repo.document("leandisk.backup/1", &["backup", "--init", &disk])
    };
    assert_eq!(tracking(&back_up(&parent)).0, "none");
    for len_bytes in [64 << 10, 192 << 10] {
        let expected = write_child(len_bytes);
        let made = back_up(&child);
        assert_eq!(tracking(&made), ("chain", ""), "{made:#}");
        let read_bytes = number(&made, "/read_bytes");
        let bound = len_bytes + len_bytes / 5 + 2 * 65536 + (128 << 10);
        assert!(read_bytes >= len_bytes && read_bytes <= bound, "{len_bytes} changed: {made:#}");
        let restored = path("restored.raw");
        repo.dump("latest", "/disk", &restored);
        succeed(&["copy", arg(&child), arg(&raw), "-O", "raw", "--force"]);
        assert_same_bytes(&raw, &restored);
        let start = usize::try_from(at).unwrap();
        let changed = start..start + usize::try_from(len_bytes).unwrap();
        assert_eq!(fs::read(&restored).unwrap()[changed.clone()], expected[changed], "what the child has");
    }
}

/// The oracle is what each layer was made to read as, sector by sector: no program here reads such a chain.
#[test]
fn what_lies_in_the_parents_of_a_differencing_vhdx_is_not_read() {
    let repo = Repo::new();
    let path = |name: &str| repo.dir.path().join(name);
    let [parent, child, grandchild] = ["parent.vhdx", "child.avhdx", "grandchild.avhdx"].map(path);
    let guest = Guest::get(Inside::Ext4);
    let options = "subformat=dynamic,block_size=1M,block_state_zero=off";
    run("qemu-img", &["convert", "-f", "raw", "-O", "vhdx", "-o", options, arg(&guest.disk), arg(&parent)]);
    let (at, _) = longest_file(&parent, repo.dir.path());
    let (parent_bytes, contents) = (fs::read(&parent).unwrap(), fs::read(&guest.disk).unwrap());
    // Free space as well, so that all of the disk is compared.
    let back_up = |image: &Path, expected: &[u8]| {
        let disk = format!("disk={}", arg(image));
        let args = ["backup", "--init", "--keep-free", "--keep-swap", &disk];
        let planned = repo.document("leandisk.backup/1", &[&args[..], &["--dry-run"]].concat());
        let made = repo.document("leandisk.backup/1", &args);
        assert_eq!(planned["read_bytes"], made["read_bytes"], "{planned:#} {made:#}");
        let restored = path("restored.raw");
        repo.dump("latest", "/disk", &restored);
        assert!(fs::read(&restored).unwrap() == expected, "what the layers hold");
        made
    };
    // Of a chain's block in part, and of further blocks all, or that they are zeros.
    let layer = |of: &Child<'_>, below: &[u8], len_bytes: u64, states: [(usize, u64); 2]| {
        let first = usize::try_from(at >> 20).unwrap();
        let sectors = at / 512..(at + len_bytes) / 512;
        let blocks = sectors.start / 2048..=(sectors.end - 1) / 2048;
        let state = |block: usize| match states.iter().find(|(ahead, _)| first + ahead == block) {
            Some((_, state)) => *state,
            None if blocks.contains(&(block as u64)) => 7,
            None => 0,
        };
        differencing_vhdx(of, below, 512, state, |block, sector| {
            sectors.contains(&((block * 2048 + sector) as u64))
        })
    };
    let reads = |made: &Value, changed: u64| {
        assert_eq!(tracking(made), ("chain", ""), "{made:#}");
        let read_bytes = number(made, "/read_bytes");
        let bound = changed + changed / 5 + 2 * 65536 + (128 << 10);
        assert!(read_bytes >= changed && read_bytes <= bound, "{changed} changed: {made:#}");
    };
    assert_eq!(tracking(&back_up(&parent, &contents)).0, "none");
    let of_parent =
        Child { like: &parent_bytes, parent: &parent_bytes, parent_name: "parent.vhdx", id: 0xc1 };
    let mut lower = (Vec::new(), Vec::new());
    for len_bytes in [64 << 10, 192 << 10] {
        lower = layer(&of_parent, &contents, len_bytes, [(3, 6), (5, 0)]);
        fs::write(&child, &lower.0).unwrap();
        reads(&back_up(&child, &lower.1), len_bytes + (1 << 20));
    }
    // One more layer, which hides with zeros what the two below have.
    let of_child = Child { like: &parent_bytes, parent: &lower.0, parent_name: "child.avhdx", id: 0xd2 };
    for len_bytes in [128 << 10, 256 << 10] {
        let (bytes, expected) = layer(&of_child, &lower.1, len_bytes, [(3, 2), (4, 6)]);
        fs::write(&grandchild, bytes).unwrap();
        let made = back_up(&grandchild, &expected);
        assert_eq!(tracking(&made), ("chain", ""), "{made:#}");
        // Zeros need not be read.
        assert!(number(&made, "/read_bytes") <= len_bytes + (2 << 20) + (512 << 10), "{made:#}");
    }
    repo.restic(&["check", "--read-data"]);
}
