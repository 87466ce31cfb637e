//! Mirrors of LVM2: taken by what they use, leg by leg, once they are known to be in sync. LVM2 makes none without a device mapper: parts that it
//! made are declared one in its text, and what the device mapper would write beside them is written here.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::{arg, document, number, succeed};
use crate::lvm::{EXTENT, EXTENTS_AT, MIB, STALE, Scene, plant, volume};
use testkit::run;

const LEG_EXTENTS: u64 = 18;
const PARTS: &str = "lvcreate -an -Zn -Wn -n log0 -l 1 vg0
lvcreate -an -Zn -Wn -n leg0 -l 18 vg0
lvcreate -an -Zn -Wn -n log1 -l 1 vg0
lvcreate -an -Zn -Wn -n leg1 -l 18 vg0
lvcreate -an -Zn -Wn -n data -l 12 vg0
";
const VISIBLE: &str = "status = [\"READ\", \"WRITE\", \"VISIBLE\"]";

/// A scene with a mirror, and where its parts begin on the disk.
struct Mirror {
    scene: Scene,
    logs: Vec<u64>,
    legs: [u64; 2],
}

impl Mirror {
    /// Two legs with the same ext4; `names` are those of the logs and of the legs, `segment` says what they are parts of.
    fn new(names: [(&str, &str); 4], segment: &str) -> Self {
        let scene = Scene::with_table(&[300], PARTS);
        let start = |name: &str| {
            let lvs = scene.read("lvs");
            let line = lvs.lines().find(|line| line.starts_with(name)).unwrap();
            let first: u64 = line.rsplit(':').next().unwrap().split('-').next().unwrap().parse().unwrap();
            scene.parts[0].0 + EXTENTS_AT + first * EXTENT
        };
        let legs = ["leg0", "leg1"].map(start);
        let logs = ["log0", "log1"].map(start).to_vec();
        let disk = File::options().write(true).open(&scene.disk).unwrap();
        for leg in legs {
            disk.write_all_at(&fs::read(scene.path("root.img")).unwrap(), leg).unwrap();
        }
        let mut text = scene.read("text");
        for (made, name) in names {
            if name.is_empty() {
                continue;
            }
            let (before, part) = text.split_once(&format!("{made} {{")).unwrap();
            let part = part.replacen(VISIBLE, "status = [\"READ\", \"WRITE\"]", 1);
            text = format!("{before}{name} {{{part}");
        }
        let whole = format!(
            "root {{\nid = \"Ab1cd2-Ef34-Gh56-Ij78-Kl90-Mn12-Op34qr\"\n{VISIBLE}\nflags = []\nsegment_count = 1\n\
             segment1 {{\nstart_extent = 0\nextent_count = {LEG_EXTENTS}\n{segment}\n}}\n}}\n"
        );
        let volumes = "logical_volumes {\n";
        assert!(text.contains(volumes));
        plant(&scene, &text.replacen(volumes, &format!("{volumes}{whole}"), 1));
        scene.lvm("show", &scene.disk, "");
        Self { scene, logs, legs }
    }

    fn write(&self, bytes: &[u8], at: u64) {
        File::options().write(true).open(&self.scene.disk).unwrap().write_all_at(bytes, at).unwrap();
    }

    /// Fails unless both legs of a copy are sound, have the files, and nothing else.
    fn check(&self, raw: &Path) {
        let disk = File::open(raw).unwrap();
        for leg in self.legs {
            let mut bytes = vec![0; (LEG_EXTENTS * EXTENT) as usize];
            disk.read_exact_at(&mut bytes, leg).unwrap();
            assert!(!bytes.chunks(4096).any(|block| block.iter().all(|byte| *byte == STALE)), "stale");
            let image = self.scene.path("leg.found");
            fs::write(&image, bytes).unwrap();
            self.scene.check_image(&image);
        }
        self.scene.check_group(raw);
    }

    /// Fails unless the mirror is copied whole for this reason.
    fn check_whole(&self, reason: &str) {
        let (copied, raw) = self.scene.copy("raw");
        let root = volume(&copied, "vg0/root");
        assert_eq!(root["mode"], "whole", "{reason}: {copied}");
        assert!(root["reason"].as_str().unwrap().contains(reason), "{reason}: {root}");
        let part = |path: &Path, at: u64| {
            let mut bytes = vec![0; (LEG_EXTENTS * EXTENT) as usize];
            File::open(path).unwrap().read_exact_at(&mut bytes, at).unwrap();
            bytes
        };
        for leg in self.legs {
            assert!(part(&self.scene.disk, leg) == part(&raw, leg), "{reason}: a leg is not whole");
        }
    }
}

/// `struct dm_raid_superblock` and `struct bitmap_super_s` of a leg of two in sync, with its clear bitmap.
fn leg_metadata(position: u32) -> Vec<u8> {
    let sectors = LEG_EXTENTS * EXTENT / 512;
    let mut bytes = vec![0; 8192];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, b"DmRd");
    for (at, value) in [(4, 1_u32), (8, 2), (12, position), (48, 1), (72, 1)] {
        put(at, &value.to_le_bytes());
    }
    for (at, value) in
        [(16, 9), (32, u64::MAX), (40, u64::MAX), (64, u64::MAX), (88, sectors), (112, sectors)]
    {
        put(at, &value.to_le_bytes());
    }
    put(4096, b"bitm");
    for (at, value) in [(4, 4_u32), (52, 2 << 20), (56, 5)] {
        put(4096 + at, &value.to_le_bytes());
    }
    for (at, value) in [(24, 9), (32, 8), (40, sectors)] {
        put(4096 + at, &value.to_le_bytes());
    }
    bytes
}

fn raid1() -> Mirror {
    let names = [
        ("leg0", "root_rimage_0"),
        ("leg1", "root_rimage_1"),
        ("log0", "root_rmeta_0"),
        ("log1", "root_rmeta_1"),
    ];
    let segment = "type = \"raid1\"\ndevice_count = 2\nregion_size = 4096\n\
        raids = [\"root_rmeta_0\", \"root_rimage_0\", \"root_rmeta_1\", \"root_rimage_1\"]";
    let mirror = Mirror::new(names, segment);
    for (position, log) in (0..).zip(&mirror.logs) {
        mirror.write(&leg_metadata(position), *log);
    }
    mirror
}

#[test]
fn a_raid1_in_sync_is_copied_by_what_its_legs_use() {
    let mirror = raid1();
    let scene = &mirror.scene;
    let info = document("leandisk.info/1", &["info", arg(&scene.disk)]);
    scene.check_figures(&info);
    let root = volume(&info, "vg0/root");
    assert_eq!((&root["mode"], &root["filesystem"]), (&"used-only".into(), &"ext4".into()), "{info}");
    assert_eq!(number(root, "/size_bytes"), LEG_EXTENTS * EXTENT);
    for format in ["raw", "qcow2"] {
        let (copied, raw) = scene.copy(format);
        assert_eq!(volume(&copied, "vg0/root")["mode"], "used-only", "{copied}");
        assert!(number(&copied, "/read_bytes") < 80 * MIB, "{copied}");
        mirror.check(&raw);
    }
    let analyzed = document("leandisk.analyze/1", &["analyze", arg(&scene.disk)]);
    assert_eq!(volume(&analyzed, "vg0/root")["files"], 29);
    succeed(&["map", arg(&scene.disk), "-o", arg(&scene.path("map.svg"))]);
}

#[test]
fn compact_gives_back_what_no_leg_uses() {
    let mirror = raid1();
    let image = mirror.scene.path("image.qcow2");
    run("qemu-img", &["convert", "-O", "qcow2", arg(&mirror.scene.disk), arg(&image)]);
    let done = document("leandisk.compact/1", &["compact", arg(&image), "--verify"]);
    assert_eq!(volume(&done, "vg0/root")["refused"], serde_json::Value::Null, "{done}");
    assert!(fs::metadata(&image).unwrap().len() < 130 * MIB, "{done}");
    run("qemu-img", &["check", "-q", arg(&image)]);
    let raw = mirror.scene.path("compacted.raw");
    run("qemu-img", &["convert", "-O", "raw", arg(&image), arg(&raw)]);
    mirror.check(&raw);
}

#[test]
fn a_raid1_that_may_not_be_in_sync_is_whole() {
    let mirror = raid1();
    let superblock = leg_metadata(1);
    let log = mirror.logs[1];
    for (at, bytes, reason) in [
        (24, &[2][..], "a leg failed"),
        (32, &[0; 8], "it is being rebuilt"),
        (4096 + 256, &[1], "writes were under way"),
        (0, &[STALE; 512], "it has no superblock"),
    ] {
        mirror.write(bytes, log + at);
        mirror.check_whole(reason);
        mirror.write(&superblock, log);
    }
    // Whatever is said of it: legs whose file systems differ are not in sync.
    let superblock_at = mirror.legs[1] + 1024;
    mirror.write(&[0x5a; 8], superblock_at + 0x68);
    mirror.check_whole("the legs of the mirror differ");
}

#[test]
fn a_mirror_with_a_log_is_copied_by_what_its_legs_use() {
    let names = [("leg0", "root_mimage_0"), ("leg1", "root_mimage_1"), ("log0", "root_mlog"), ("log1", "")];
    let segment = "type = \"mirror\"\nmirror_count = 2\nmirror_log = \"root_mlog\"\nregion_size = 4096\n\
        mirrors = [\"root_mimage_0\", 0, \"root_mimage_1\", 0]";
    let mirror = Mirror::new(names, segment);
    let regions = LEG_EXTENTS * EXTENT / (4096 * 512);
    let mut log = vec![0; 2048];
    log[..8].copy_from_slice(b"rRiM\x02\0\0\0");
    log[8..16].copy_from_slice(&regions.to_le_bytes());
    for bit in 0..usize::try_from(regions).unwrap() {
        log[1024 + bit / 8] |= 1 << (bit % 8);
    }
    mirror.write(&log, mirror.logs[0]);
    let (copied, raw) = mirror.scene.copy("raw");
    assert_eq!(volume(&copied, "vg0/root")["mode"], "used-only", "{copied}");
    mirror.check(&raw);
    mirror.write(&[0xfe], mirror.logs[0] + 1024);
    mirror.check_whole("writes were under way");
}
