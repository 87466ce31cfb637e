//! `leandisk defrag --goal free` and `--goal pack` of aged QCOW2 images: the free space is in one piece, as real tools count it; or it
//! is said what keeps it apart, and nothing moves for it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{arg, document, number, succeed};
use crate::defrag_common::{Inside, QCOW2, digest, fsck};
use serde_json::Value;
use testkit::{run, scratch};

/// Of what could be in one piece.
const ENOUGH_PERCENT: u64 = 95;
/// What is sorted has gaps.
const SORTED_PERCENT: u64 = 85;

struct Scene {
    dir: tempfile::TempDir,
    inside: Inside,
    aged: PathBuf,
    digest: String,
}

impl Scene {
    fn new(inside: Inside) -> Self {
        let dir = scratch();
        let aged = dir.path().join("aged.raw");
        let kind = if inside == Inside::Ntfs { "ntfs" } else { "ext4" };
        let more = ["--filesystem", kind, "--size", "128M", "--fill", "80", "--months", "4"];
        document("leandisk.age/1", &[&["bench", "age", arg(&aged)], &more[..]].concat());
        let digest = digest(inside, &aged);
        Self { dir, inside, aged, digest }
    }

    fn image(&self) -> PathBuf {
        // What QEMU reserved and did not write may read as a hole or not, by what the host has in memory of it.
        let (made, image) = (QCOW2.make(&self.aged, self.dir.path()), self.dir.path().join("image.qcow2"));
        run("cp", &["--sparse=always", arg(&made), arg(&image)]);
        fs::remove_file(made).unwrap();
        run("sync", &["-f", arg(&image)]);
        image
    }

    /// Changes an image as its dry run says, and has real tools judge it. Answers the volume of the document.
    fn defrag(&self, more: &[&str]) -> Value {
        let image = self.image();
        let command = [&["defrag", arg(&image)], more].concat();
        let planned = document("leandisk.defrag/1", &[&command[..], &["--dry-run"]].concat());
        let done = document("leandisk.defrag/1", &command);
        let [planned, done] = [planned, done].map(|document| document["volumes"][0].clone());
        for key in ["moved_bytes", "batches", "unmet"] {
            assert_eq!(planned[key], done[key], "{key} of {more:?}");
        }
        let raw = self.dir.path().join("view");
        QCOW2.extract_guest(&image, &raw);
        fsck(self.inside, &raw);
        assert!(digest(self.inside, &raw) == self.digest, "the files differ after {more:?}");
        let (extents, largest_bytes) = free_extents(self.inside, &raw);
        assert_eq!(number(&done, "/after/free_extents"), extents, "{more:?}");
        assert_eq!(number(&done, "/after/largest_free_extent_bytes"), largest_bytes, "{more:?}");
        done
    }
}

/// How many free extents the file system's own tools count, and how large the largest is.
fn free_extents(inside: Inside, volume: &Path) -> (u64, u64) {
    if inside == Inside::Ext4 {
        let said = run("dumpe2fs", &[arg(volume)]);
        let blocks = |word: &str| {
            let line = said.lines().find(|line| line.starts_with(word)).unwrap();
            line.split_whitespace().last().unwrap().parse::<u64>().unwrap()
        };
        let (block_bytes, mut free) =
            (blocks("Block size:"), vec![false; usize::try_from(blocks("Block count:")).unwrap()]);
        for line in said.lines().filter_map(|line| line.strip_prefix("  Free blocks: ")) {
            for range in line.split(", ").filter(|range| !range.is_empty()) {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                free[first.parse().unwrap()..=last.parse().unwrap()].fill(true);
            }
        }
        return runs(&free, block_bytes);
    }
    let said = run("ntfsinfo", &["-m", arg(volume)]);
    let told = |word: &str| {
        let line = said.lines().find(|line| line.trim().starts_with(word)).unwrap();
        line.split_whitespace().last().unwrap().parse::<u64>().unwrap()
    };
    let bitmap = volume.with_extension("bitmap");
    run("sh", &["-c", &format!("ntfscat -i 6 '{}' > '{}'", volume.display(), bitmap.display())]);
    let bits = fs::read(&bitmap).unwrap();
    let clusters = usize::try_from(told("Volume Size in Clusters:")).unwrap();
    let free: Vec<bool> = (0..clusters).map(|cluster| bits[cluster / 8] >> (cluster % 8) & 1 == 0).collect();
    runs(&free, told("Cluster Size:"))
}

fn runs(free: &[bool], unit_bytes: u64) -> (u64, u64) {
    let lengths =
        || free.chunk_by(|a, b| a == b).filter(|run| run[0]).map(|run| run.len() as u64 * unit_bytes);
    (lengths().count() as u64, lengths().max().unwrap_or(0))
}

fn is_together(volume: &Value, enough: u64) -> bool {
    let largest = number(volume, "/after/largest_free_extent_bytes");
    largest >= number(volume, "/movable_free_bytes") * enough / 100
}

fn check(inside: Inside) {
    let scene = Scene::new(inside);
    let files = scene.defrag(&["--goal", "files"]);
    assert!(!is_together(&files, ENOUGH_PERCENT), "aged: {files:#}");
    for (goal, enough) in [("free", ENOUGH_PERCENT), ("pack", SORTED_PERCENT)] {
        let done = scene.defrag(&["--goal", goal]);
        assert!(done["unmet"].is_null() && is_together(&done, enough), "{goal}: {done:#}");
        assert_eq!(number(&done, "/after/fragmented_files"), 0, "{goal}: {done:#}");
        // An image that must not grow at all has no room to sort in: what is said is what is done.
        let spared = scene.defrag(&["--goal", goal, "--grow", "0"]);
        if spared["unmet"].is_null() {
            assert!(is_together(&spared, enough), "{goal}: {spared:#}");
            continue;
        }
        let files = scene.defrag(&["--goal", "files", "--grow", "0"]);
        for key in ["moved_bytes", "batches", "after"] {
            assert_eq!(spared[key], files[key], "{key}: what files would move");
        }
        let said = succeed(&["defrag", arg(&scene.image()), "--goal", goal, "--grow", "0", "--dry-run"]);
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        let reason = spared["unmet"]["reason"].as_str().unwrap();
        let is_said = said.contains("nothing moves for --goal") && said.contains(reason);
        assert!(is_said, "'{reason}' in {said}");
        let would_be = number(&spared, "/unmet/would_be/largest_free_extent_bytes");
        assert!(would_be < number(&spared, "/unmet/movable_free_bytes") * enough / 100);
    }
}

#[test]
fn ntfs() {
    check(Inside::Ntfs);
}

#[test]
fn ext4() {
    check(Inside::Ext4);
}
