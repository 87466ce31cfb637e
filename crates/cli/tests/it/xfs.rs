//! A disk with an XFS partition full of stale blocks, taken by what it uses.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::common::{arg, blocks_full_of, document, fail, number, succeed};
use tempfile::TempDir;
use testkit::mounted::{Mounted, Tree};
use testkit::{digest, extract, run, scratch};

const MIB: u64 = 1 << 20;
const VOLUME_BYTES: u64 = 320 * MIB;
const STALE: u8 = 0xa5;

/// A disk whose free space is full of what was there before, and what is on its partition.
struct Scene {
    dir: TempDir,
    disk: PathBuf,
    volume: PathBuf,
    tree: Tree,
}

impl Scene {
    fn new() -> Self {
        let dir = scratch();
        let path = |name: &str| dir.path().join(name);
        let (disk, volume, script) = (path("disk.raw"), path("volume"), path("table"));
        File::create(&disk).unwrap().set_len(VOLUME_BYTES + 2 * MIB).unwrap();
        let part =
            format!("start=2048,size={},type=0FC63DAF-8483-4772-8E79-3D69D8477DE4\n", VOLUME_BYTES / 512);
        fs::write(&script, format!("label: gpt\n{part}")).unwrap();
        run("sh", &["-c", &format!("sfdisk -q {} < {}", arg(&disk), arg(&script))]);
        fs::write(&volume, vec![STALE; usize::try_from(VOLUME_BYTES).unwrap()]).unwrap();
        run("mkfs.xfs", &["-q", "-f", "-K", arg(&volume)]);
        let mounted = Mounted::kernel("xfs", &volume, "noatime,nouuid");
        fs::create_dir(mounted.path().join("folder")).unwrap();
        for index in 1..=12_u8 {
            let name = if index % 2 == 0 { format!("file {index}") } else { format!("folder/file {index}") };
            fs::write(mounted.path().join(name), vec![index; usize::from(index) * 50_001]).unwrap();
        }
        fs::remove_file(mounted.path().join("folder/file 3")).unwrap();
        fs::remove_file(mounted.path().join("file 8")).unwrap();
        drop(mounted);
        let tree = Mounted::kernel("xfs", &volume, "ro,norecovery,nouuid").tree();
        let target = File::options().write(true).open(&disk).unwrap();
        target.write_all_at(&fs::read(&volume).unwrap(), MIB).unwrap();
        Self { dir, disk, volume, tree }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Fails unless the partition of a raw disk is sound, and has the files.
    fn check(&self, raw: &Path) -> PathBuf {
        let found = self.path("volume.found");
        extract(raw, MIB, VOLUME_BYTES, &found);
        run("xfs_repair", &["-n", "-f", arg(&found)]);
        Mounted::kernel("xfs", &found, "ro,nouuid").tree().assert_same(&self.tree, "a copy");
        found
    }
}

#[test]
fn a_disk_with_xfs_is_copied_and_compacted() {
    let scene = Scene::new();
    let before = digest(&scene.disk);
    let info = document("leandisk.info/1", &["info", arg(&scene.disk)]);
    assert_eq!(info["volumes"][0]["filesystem"], "xfs");
    assert_eq!(info["volumes"][0]["mode"], "used-only");
    let said = run("xfs_db", &["-f", "-r", "-c", "freesp -s", arg(&scene.volume)]);
    let free = said.lines().find_map(|line| line.strip_prefix("total free blocks ")).unwrap();
    assert_eq!(number(&info, "/volumes/0/free_bytes"), free.trim().parse::<u64>().unwrap() * 4096, "{said}");
    for format in ["raw", "qcow2", "vhdx"] {
        let target = scene.path(&format!("copy.{format}"));
        let copied = document("leandisk.copy/1", &["copy", arg(&scene.disk), arg(&target), "--verify"]);
        assert!(number(&copied, "/read_bytes") < 80 * MIB, "{copied}");
        let raw = scene.path("copied");
        run("qemu-img", &["convert", "-O", "raw", arg(&target), arg(&raw)]);
        let volume = scene.check(&raw);
        assert_eq!(blocks_full_of(STALE, &volume), 0);
        let image = scene.path(&format!("compact.{format}"));
        run("qemu-img", &["convert", "-O", format, "-S", "0", arg(&scene.disk), arg(&image)]);
        let done = document("leandisk.compact/1", &["compact", arg(&image), "-f", format, "--verify"]);
        assert!(done["volumes"][0]["refused"].is_null(), "{done}");
        assert!(number(&done, "/freed_bytes") > 150 * MIB, "{done}");
        run("qemu-img", &["convert", "-f", format, "-O", "raw", arg(&image), arg(&raw)]);
        scene.check(&raw);
    }
    let analyzed = document("leandisk.analyze/1", &["analyze", arg(&scene.disk)]);
    assert_eq!(analyzed["volumes"][0]["files"], 10);
    succeed(&["map", arg(&scene.disk), "-o", arg(&scene.path("map.svg"))]);
    assert!(digest(&scene.disk) == before, "the source was written");
}

#[test]
fn defrag_refuses_xfs_by_name() {
    let scene = Scene::new();
    let before = digest(&scene.disk);
    let said = fail(3, &["defrag", arg(&scene.disk), "-f", "raw"]);
    assert!(said.contains("xfs"), "{said}");
    assert!(digest(&scene.disk) == before, "refused, and written");
}
