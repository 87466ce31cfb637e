//! Disks of LVM2: logical volumes are taken by what they use, and what is not understood is whole.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common;
use crate::common::{arg, document, number, succeed};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{digest, run, scratch};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const EXTENT: u64 = 4 * MIB;
/// Where extents begin on each physical volume.
pub(crate) const EXTENTS_AT: u64 = MIB;
pub(crate) const STALE: u8 = 0xa5;

/// A disk whose parts are physical volumes.
pub(crate) struct Scene {
    dir: TempDir,
    pub(crate) disk: PathBuf,
    /// Where each lies, and how long it is.
    pub(crate) parts: Vec<(u64, u64)>,
}

/// Files of some sizes, ext4 around them, and swap: what logical volumes hold.
fn contents(dir: &Path) {
    let files = dir.join("files");
    fs::create_dir(&files).unwrap();
    for index in 1..30_u16 {
        let bytes = testkit::noise(index.into(), usize::from(index) * 20_011);
        fs::write(files.join(format!("file {index}")), bytes).unwrap();
    }
    for (name, mib) in [("root", 72), ("data", 48), ("striped", 64)] {
        let image = dir.join(format!("{name}.img"));
        run("truncate", &["-s", &format!("{mib}M"), arg(&image)]);
        run("mkfs.ext4", &["-q", "-F", "-d", arg(&files), arg(&image)]);
    }
    let swap = dir.join("swap.img");
    run("truncate", &["-s", "16M", arg(&swap)]);
    run("mkswap", &["-q", arg(&swap)]);
}

impl Scene {
    fn new(len_bytes: u64, parts: &[(u64, u64)], commands: &str) -> Self {
        let dir = scratch();
        contents(dir.path());
        let disk = dir.path().join("disk.raw");
        File::create(&disk).unwrap().set_len(len_bytes).unwrap();
        let scene = Self { dir, disk, parts: parts.to_vec() };
        scene.lvm("make", &scene.disk, commands);
        scene
    }

    /// A disk with a GUID partition table and `sizes` MiB of physical volumes.
    pub(crate) fn with_table(sizes: &[u64], commands: &str) -> Self {
        let mut at = MIB;
        let mut parts = Vec::new();
        for mib in sizes {
            parts.push((at, mib * MIB));
            at += mib * MIB;
        }
        let scene = Self::new(at + MIB, &parts, commands);
        let lines = parts.iter().map(|(start, len)| {
            format!("start={}, size={}, type=E6D6D379-F507-44C2-A23C-238F2A3DF928\n", start / 512, len / 512)
        });
        let script = scene.path("table");
        fs::write(&script, format!("label: gpt\n{}", lines.collect::<String>())).unwrap();
        run("sh", &["-c", &format!("sfdisk -q {} < {}", arg(&scene.disk), arg(&script))]);
        scene
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    pub(crate) fn lvm(&self, what: &str, disk: &Path, input: &str) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts/lvm");
        let parts = self.parts.iter().map(|(start, len)| format!("{start}:{len}"));
        let mut child = Command::new(script)
            .args([what, arg(disk), arg(self.dir.path())])
            .args(parts)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "{what}: {}", self.read("errors"));
    }

    /// A logical volume on `disk`, put together as `lvs` says.
    pub(crate) fn logical(&self, disk: &Path, wanted: &str) -> PathBuf {
        let file = File::open(disk).unwrap();
        let mut bytes = Vec::new();
        for line in self.read("lvs").lines() {
            let fields: Vec<_> = line.split(',').collect();
            let [name, _, count, stripe, ranges] = fields[..] else { panic!("{line}") };
            if name != wanted {
                continue;
            }
            let len = count.parse::<u64>().unwrap() * EXTENT;
            let columns: Vec<_> = ranges
                .split_whitespace()
                .map(|range| {
                    let (part, range) = range.split_once(':').unwrap();
                    let first: u64 = range.split('-').next().unwrap().parse().unwrap();
                    self.parts[part.parse::<usize>().unwrap()].0 + EXTENTS_AT + first * EXTENT
                })
                .collect();
            let step = stripe.parse::<u64>().ok().filter(|step| *step > 0).unwrap_or(len);
            for stripe in 0..len / step {
                let column = columns[(stripe % columns.len() as u64) as usize];
                let mut part = vec![0; step as usize];
                file.read_exact_at(&mut part, column + stripe / columns.len() as u64 * step).unwrap();
                bytes.extend(part);
            }
        }
        assert!(!bytes.is_empty(), "{wanted} is a logical volume");
        let path = self.path(&format!("{wanted}.found"));
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Fails unless an ext4 on a logical volume of `disk` is sound and has the files.
    fn check_files(&self, disk: &Path, name: &str) {
        self.check_image(&self.logical(disk, name));
    }

    /// Fails unless an ext4 is sound and has the files.
    pub(crate) fn check_image(&self, image: &Path) {
        run("e2fsck", &["-fn", arg(image)]);
        let out = self.path("out");
        let _ = fs::remove_dir_all(&out);
        fs::create_dir(&out).unwrap();
        run("debugfs", &["-R", &format!("rdump / {}", arg(&out)), arg(image)]);
        run("diff", &["-r", "-x", "lost+found", arg(&self.path("files")), arg(&out)]);
    }

    /// Fails unless the tools say of a copy what they say of the disk.
    pub(crate) fn check_group(&self, disk: &Path) {
        let before = ["vgs", "lvs"].map(|name| self.read(name));
        self.lvm("show", disk, "");
        assert_eq!(["vgs", "lvs"].map(|name| self.read(name)), before);
    }

    /// Fails unless what the extents hold that nobody uses is zeros in a copy.
    fn check_nothing_stale(&self, disk: &Path) {
        let file = File::open(disk).unwrap();
        for (start, len) in &self.parts {
            // What is behind the last whole extent is nobody's, and kept.
            let mut bytes = vec![0; ((len - EXTENTS_AT) / EXTENT * EXTENT) as usize];
            file.read_exact_at(&mut bytes, start + EXTENTS_AT).unwrap();
            let stale = bytes.chunks(4096).filter(|block| block.iter().all(|byte| *byte == STALE)).count();
            assert_eq!(stale, 0, "blocks of what was there before");
        }
    }

    /// Copies to a disk of a format, and answers what its raw contents are.
    pub(crate) fn copy(&self, format: &str) -> (Value, PathBuf) {
        let before = digest(&self.disk);
        let target = self.path(&format!("copy.{format}"));
        let copied = document("leandisk.copy/1", &["copy", "--force", arg(&self.disk), arg(&target)]);
        assert!(digest(&self.disk) == before, "nothing was written");
        let raw = self.path("copied.raw");
        run("qemu-img", &["convert", "-O", "raw", arg(&target), arg(&raw)]);
        (copied, raw)
    }

    /// Fails unless what `vgs` says is in the document.
    pub(crate) fn check_figures(&self, document: &Value) {
        let vgs = self.read("vgs");
        let figures: Vec<_> = vgs.trim().split(',').collect();
        let bytes = |index: usize| figures[index].parse::<u64>().unwrap();
        let expected = json!([{
            "name": "vg0", "extent_bytes": bytes(1), "size_bytes": bytes(2), "free_bytes": bytes(3),
        }]);
        assert_eq!(document["volume_groups"], expected);
    }
}

pub(crate) fn volume<'a>(document: &'a Value, name: &str) -> &'a Value {
    let volumes = document["volumes"].as_array().unwrap();
    volumes.iter().find(|volume| volume["name"] == name).unwrap_or_else(|| panic!("{name} in {document}"))
}

const LINEAR: &str = "lvcreate -an -Zn -Wn -n root -l 10 vg0
lvcreate -an -Zn -Wn -n swap -l 4 vg0
lvcreate -an -Zn -Wn -n data -l 12 vg0
lvextend -l +8 vg0/root
";

#[test]
fn logical_volumes_are_copied_by_what_they_use() {
    let scene = Scene::with_table(&[300], LINEAR);
    let info = document("leandisk.info/1", &["info", arg(&scene.disk)]);
    scene.check_figures(&info);
    let found: Vec<_> = info["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| {
            assert_eq!(volume["mode"], "used-only", "{volume}");
            (volume["name"].clone(), volume["filesystem"].clone(), volume["size_bytes"].clone())
        })
        .collect();
    let expected = [
        (Value::Null, json!("lvm2"), json!(300 * MIB)),
        (json!("vg0/root"), json!("ext4"), json!(72 * MIB)),
        (json!("vg0/swap"), json!("swap"), json!(16 * MIB)),
        (json!("vg0/data"), json!("ext4"), json!(48 * MIB)),
    ];
    assert_eq!(found, expected);
    for format in ["raw", "qcow2", "vhdx"] {
        let (copied, raw) = scene.copy(format);
        scene.check_figures(&copied);
        assert_eq!(number(volume(&copied, "vg0/swap"), "/swap_bytes"), 16 * MIB - 4096);
        assert!(number(&copied, "/read_bytes") < 60 * MIB, "{copied}");
        scene.check_files(&raw, "root");
        scene.check_files(&raw, "data");
        scene.check_nothing_stale(&raw);
        scene.check_group(&raw);
    }
}

#[test]
fn a_volume_in_two_parts_has_the_extents_that_the_disk_has() {
    let scene = Scene::with_table(&[300], LINEAR);
    let analyzed = document("leandisk.analyze/1", &["analyze", arg(&scene.disk)]);
    scene.check_figures(&analyzed);
    // By itself, its files are in as many pieces.
    let alone = document("leandisk.analyze/1", &["analyze", arg(&scene.path("root.img")), "-f", "raw"]);
    let (found, expected) = (volume(&analyzed, "vg0/root"), &alone["volumes"][0]);
    for name in ["files", "fragmented_files", "fragments", "free_extents", "free_bytes"] {
        assert_eq!(found[name], expected[name], "{name}");
    }
    assert_eq!(found["files"], 29);
    // One file at most lies where the two parts meet.
    let in_stack = number(found, "/whole_stack_fragments") - number(found, "/fragments");
    assert!(in_stack <= 1, "{found}");
    let page = scene.path("map.svg");
    succeed(&["map", arg(&scene.disk), "-o", arg(&page)]);
}

#[test]
fn striped_volumes_on_two_partitions_and_on_a_whole_disk() {
    let commands = "lvcreate -an -Zn -Wn -i 2 -I 64k -n striped -l 16 vg0\n";
    for scene in [
        Scene::with_table(&[120, 100], commands),
        Scene::new(300 * MIB, &[(0, 300 * MIB)], "lvcreate -an -Zn -Wn -n root -l 18 vg0\n"),
    ] {
        let (copied, raw) = scene.copy("qcow2");
        scene.check_figures(&copied);
        let name = if scene.parts.len() == 2 { "striped" } else { "root" };
        assert_eq!(volume(&copied, &format!("vg0/{name}"))["mode"], "used-only", "{copied}");
        assert!(number(&copied, "/read_bytes") < 40 * MIB, "{copied}");
        scene.check_files(&raw, name);
        scene.check_nothing_stale(&raw);
        scene.check_group(&raw);
    }
}

#[test]
fn compact_gives_back_what_no_logical_volume_uses() {
    let scene = Scene::with_table(&[300], LINEAR);
    let image = scene.path("image.qcow2");
    run("qemu-img", &["convert", "-O", "qcow2", arg(&scene.disk), arg(&image)]);
    let done = document("leandisk.compact/1", &["compact", arg(&image), "--verify"]);
    assert_eq!(volume(&done, "vg0/data")["refused"], Value::Null);
    assert!(fs::metadata(&image).unwrap().len() < 70 * MIB, "{done}");
    run("qemu-img", &["check", "-q", arg(&image)]);
    let raw = scene.path("compacted.raw");
    run("qemu-img", &["convert", "-O", "raw", arg(&image), arg(&raw)]);
    for name in ["root", "data"] {
        scene.check_files(&raw, name);
    }
    scene.check_group(&raw);
}

/// Fails unless the disk is copied byte for byte, for a reason that says this.
fn check_whole(scene: &Scene, reason: &str) {
    let (copied, raw) = scene.copy("raw");
    assert_eq!(copied["volume_groups"], json!([]), "{copied}");
    let said = copied["volumes"][0]["reason"].as_str().unwrap_or_else(|| panic!("{reason}: {copied}"));
    assert!(said.contains(reason), "{reason}: {said}");
    common::assert_same_bytes(&scene.disk, &raw);
}

#[test]
fn what_is_on_another_disk_too_is_whole() {
    let commands = "lvcreate -an -Zn -Wn -i 2 -I 64k -n striped -l 16 vg0\n";
    let scene = Scene::with_table(&[120, 100], commands);
    // The second partition goes.
    run("sfdisk", &["-q", "--delete", arg(&scene.disk), "2"]);
    check_whole(&scene, "is not on this disk");
}

/// A volume group on two disks, each a physical volume in the same place as on the scene's disk.
struct TwoDisks {
    scene: Scene,
    disks: [PathBuf; 2],
}

impl TwoDisks {
    fn new() -> Self {
        let commands = "lvcreate -an -Zn -Wn -i 2 -I 64k -n striped -l 16 vg0
lvcreate -an -Zn -Wn -n root -l 10 vg0
lvcreate -an -Zn -Wn -n data -l 12 vg0
lvextend -l +8 vg0/root
";
        let scene = Scene::with_table(&[120, 100], commands);
        let disks = [0, 1].map(|own| {
            let disk = scene.path(&format!("disk {own}.raw"));
            let (from, to) = (File::open(&scene.disk).unwrap(), File::create(&disk).unwrap());
            let len_bytes = from.metadata().unwrap().len();
            to.set_len(len_bytes).unwrap();
            for (start, len) in [(0, MIB), scene.parts[own], (len_bytes - MIB, MIB)] {
                let mut bytes = vec![0; len as usize];
                from.read_exact_at(&mut bytes, start).unwrap();
                to.write_all_at(&bytes, start).unwrap();
            }
            run("sfdisk", &["-q", "--delete", arg(&disk), &(2 - own).to_string()]);
            disk
        });
        Self { scene, disks }
    }

    /// One disk as it would be of these two.
    fn joined(&self, disks: [&Path; 2]) -> PathBuf {
        let joined = self.scene.path("joined.raw");
        fs::copy(disks[0], &joined).unwrap();
        let (start, len) = self.scene.parts[1];
        let mut bytes = vec![0; len as usize];
        File::open(disks[1]).unwrap().read_exact_at(&mut bytes, start).unwrap();
        File::options().write(true).open(&joined).unwrap().write_all_at(&bytes, start).unwrap();
        joined
    }

    fn check(&self, joined: &Path) {
        ["striped", "root", "data"].iter().for_each(|name| self.scene.check_files(joined, name));
        self.scene.check_nothing_stale(joined);
        // The group is looked for in both parts.
        fs::copy(joined, &self.scene.disk).unwrap();
        self.scene.check_group(&self.scene.disk);
    }
}

#[test]
fn logical_volumes_on_two_disks_are_taken_by_what_they_use() {
    let two = TwoDisks::new();
    let before = two.disks.each_ref().map(|disk| digest(disk));
    let mut targets = Vec::new();
    for own in [0, 1] {
        let (disk, other) = (arg(&two.disks[own]), arg(&two.disks[1 - own]));
        let alone = document("leandisk.info/1", &["info", disk]);
        assert_eq!(alone["volumes"][0]["mode"], "whole", "{alone}");
        let info = document("leandisk.info/1", &["info", disk, "--with", other]);
        two.scene.check_figures(&info);
        let striped = volume(&info, "vg0/striped");
        assert_eq!((&striped["mode"], &striped["size_bytes"]), (&json!("used-only"), &json!(64 * MIB)));
        let target = two.scene.path(&format!("target {own}.raw"));
        let copied = document("leandisk.copy/1", &["copy", disk, "--with", other, arg(&target), "--verify"]);
        assert!(number(&copied, "/read_bytes") < 40 * MIB, "{copied}");
        targets.push(target);
    }
    assert!(before == two.disks.each_ref().map(|disk| digest(disk)), "nothing was written");
    two.check(&two.joined([&targets[0], &targets[1]]));
}

#[test]
fn files_of_a_volume_on_two_disks_are_listed_with_both() {
    let two = TwoDisks::new();
    let [disk, other] = [arg(&two.disks[0]), arg(&two.disks[1])];
    let analyzed = document("leandisk.analyze/1", &["analyze", disk, "--with", other]);
    let alone =
        document("leandisk.analyze/1", &["analyze", arg(&two.scene.path("striped.img")), "-f", "raw"]);
    let (found, expected) = (volume(&analyzed, "vg0/striped"), &alone["volumes"][0]);
    for name in ["files", "fragmented_files", "fragments", "free_extents", "free_bytes"] {
        assert_eq!(found[name], expected[name], "{name}");
    }
    let page = two.scene.path("map.svg");
    succeed(&["map", disk, "--with", other, "-o", arg(&page)]);
}

#[test]
fn compact_gives_back_what_volumes_on_two_disks_do_not_use() {
    let two = TwoDisks::new();
    let images: Vec<_> = [0, 1]
        .map(|own| {
            let image = two.scene.path(&format!("image {own}.qcow2"));
            run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", arg(&two.disks[own]), arg(&image)]);
            image
        })
        .into();
    let mut raws = Vec::new();
    for own in [0, 1] {
        let (image, other) = (arg(&images[own]), arg(&images[1 - own]));
        let untouched = digest(&images[1 - own]);
        let done = document("leandisk.compact/1", &["compact", image, "--with", other, "--verify"]);
        assert_eq!(volume(&done, "vg0/striped")["refused"], Value::Null, "{done}");
        assert!(untouched == digest(&images[1 - own]), "the other disk is only read");
        assert!(fs::metadata(&images[own]).unwrap().len() < 50 * MIB, "{done}");
        run("qemu-img", &["check", "-q", image]);
    }
    for (own, image) in images.iter().enumerate() {
        let raw = two.scene.path(&format!("compacted {own}.raw"));
        run("qemu-img", &["convert", "-O", "raw", arg(image), arg(&raw)]);
        raws.push(raw);
    }
    two.check(&two.joined([&raws[0], &raws[1]]));
}

#[test]
fn a_file_system_in_the_place_of_a_physical_volume_is_a_doubt() {
    let scene = Scene::with_table(&[300], LINEAR);
    let superblock = fs::read(scene.path("data.img")).unwrap();
    let disk = File::options().write(true).open(&scene.disk).unwrap();
    // mkfs.ext4 does not touch the first sectors' label.
    disk.write_all_at(&superblock[1024..2048], MIB + 1024).unwrap();
    drop(disk);
    let (copied, raw) = scene.copy("raw");
    assert_eq!(copied["volumes"][0]["mode"], "whole");
    common::assert_same_bytes(&scene.disk, &raw);
}

/// Whatever a group is said to be in that is not its everyday state, its logical volumes are not told apart.
#[test]
fn groups_and_volumes_in_other_states_are_whole() {
    let scene = Scene::with_table(&[300], LINEAR);
    let text = scene.read("text");
    let status = "status = [\"RESIZEABLE\", \"READ\", \"WRITE\"]";
    let exported = text.replacen(status, "status = [\"RESIZEABLE\", \"READ\", \"WRITE\", \"EXPORTED\"]", 1);
    assert_ne!(exported, text);
    plant(&scene, &exported);
    check_whole(&scene, "EXPORTED");
    // One logical volume that is more than it seems makes that one whole.
    let visible = "status = [\"READ\", \"WRITE\", \"VISIBLE\"]";
    let odd = text.replacen(visible, "status = [\"READ\", \"WRITE\", \"VISIBLE\", \"LOCKED\"]", 1);
    assert_ne!(odd, text);
    plant(&scene, &odd);
    let (copied, raw) = scene.copy("raw");
    let whole: Vec<_> = ["vg0/root", "vg0/data"]
        .into_iter()
        .filter(|name| volume(&copied, name)["mode"] == "whole")
        .collect();
    assert_eq!(whole.len(), 1, "{copied}");
    let name = whole[0].trim_start_matches("vg0/");
    let reason = volume(&copied, whole[0])["reason"].as_str().unwrap();
    assert!(reason.contains("LOCKED"), "{reason}");
    let (before, after) =
        (fs::read(scene.logical(&scene.disk, name)).unwrap(), fs::read(scene.logical(&raw, name)).unwrap());
    assert!(before == after, "all of it is copied");
    scene.check_files(&raw, "root");
}

/// Puts another text in the place of the group's, with a checksum that is right.
pub(crate) fn plant(scene: &Scene, text: &str) {
    let start = scene.parts[0].0;
    let disk = File::options().read(true).write(true).open(&scene.disk).unwrap();
    let mut header = [0; 512];
    disk.read_exact_at(&mut header, start + 4096).unwrap();
    // As LVM2 writes it: without what is above the group, and that behind it.
    let group = text.find("vg0 {").unwrap();
    let head: String = text[..group]
        .lines()
        .filter(|line| !line.starts_with('#'))
        .fold(String::new(), |all, line| all + line + "\n");
    let bytes = [&text.as_bytes()[group..], head.as_bytes(), &[0]].concat();
    let len = bytes.len() as u64;
    disk.write_all_at(&bytes, start + 4096 + 512).unwrap();
    header[40..48].copy_from_slice(&512_u64.to_le_bytes());
    header[48..56].copy_from_slice(&len.to_le_bytes());
    header[56..60].copy_from_slice(&sum(&bytes).to_le_bytes());
    let of_header = sum(&header[4..]);
    header[..4].copy_from_slice(&of_header.to_le_bytes());
    disk.write_all_at(&header, start + 4096).unwrap();
}

/// LVM2's checksum, a bit at a time.
fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0xf597_a6cf, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0xedb8_8320 * (sum & 1)))
    })
}

/// Every bit of the label and of the metadata is under a checksum: a disk with one of them flipped is whole.
#[test]
fn damaged_metadata_make_the_disk_whole() {
    let scene = Scene::with_table(&[120], "lvcreate -an -Zn -Wn -n swap -l 4 vg0\n");
    let start = scene.parts[0].0;
    let disk = File::options().read(true).write(true).open(&scene.disk).unwrap();
    let mut header = [0; 512];
    disk.read_exact_at(&mut header, start + 4096).unwrap();
    let text = u64::from_le_bytes(header[40..48].try_into().unwrap());
    let places = [
        512,
        512 + 16,
        512 + 20,
        512 + 32,
        512 + 100,
        4096,
        4096 + 6,
        4096 + 24,
        4096 + 40,
        4096 + 56,
        4096 + 300,
    ];
    for at in places.into_iter().chain([4096 + text, 4096 + text + 200]) {
        let mut byte = [0];
        disk.read_exact_at(&mut byte, start + at).unwrap();
        disk.write_all_at(&[byte[0] ^ 4], start + at).unwrap();
        let info = document("leandisk.info/1", &["info", arg(&scene.disk)]);
        assert_eq!(info["volume_groups"], json!([]), "{at}: {info}");
        assert_eq!(info["volumes"][0]["mode"], "whole", "{at}: {info}");
        disk.write_all_at(&byte, start + at).unwrap();
    }
    let info = document("leandisk.info/1", &["info", arg(&scene.disk)]);
    assert_eq!(volume(&info, "vg0/swap")["filesystem"], "swap");
}
