//! What holds a volume, or the whole disk: copied whole, byte for byte; refused by name by what would change it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::common::{Untouched, arg, document, fail, succeed};
use serde_json::Value;
use tempfile::TempDir;
use testkit::holders::{md_0_90, md_1, planted};
use testkit::{noise, run, scratch};

const MIB: u64 = 1 << 20;

struct Scene {
    dir: TempDir,
    disk: PathBuf,
}

/// A file system of ext whose free space is full of stale data: only a copy of everything is equal.
fn ext(dir: &Path, len_bytes: u64) -> Vec<u8> {
    let path = dir.join("ext");
    fs::write(&path, noise(1, usize::try_from(len_bytes).unwrap())).unwrap();
    run("mkfs.ext4", &["-q", "-F", "-E", "nodiscard", arg(&path)]);
    let volume = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    volume
}

impl Scene {
    /// A disk without partitions.
    fn of_a_volume() -> (Self, Vec<u8>) {
        let dir = scratch();
        let volume = ext(dir.path(), 8 * MIB);
        let disk = dir.path().join("disk.raw");
        fs::write(&disk, &volume).unwrap();
        (Self { dir, disk }, volume)
    }

    /// A disk with two partitions of 16 MiB, from 1 MiB to 17 MiB and to 33 MiB, of these types, `slack_bytes` before its end.
    fn of_partitions(types: [&str; 2], label: &str, slack_bytes: u64) -> Self {
        let dir = scratch();
        let disk = dir.path().join("disk.raw");
        let file = File::create_new(&disk).unwrap();
        file.set_len(33 * MIB + slack_bytes).unwrap();
        let [first, second] = types;
        let script = format!(
            "label: {label}\nstart=2048, size=32768, type={first}\nstart=34816, size=32768, type={second}\n"
        );
        run(
            "sh",
            &["-c", &format!("printf '{script}' | sfdisk -q --no-reread --no-tell-kernel {}", arg(&disk))],
        );
        let volume = ext(dir.path(), 16 * MIB);
        file.write_all_at(&volume, MIB).unwrap();
        file.write_all_at(&volume, 17 * MIB).unwrap();
        Self { dir, disk }
    }

    fn plant(&self, at: u64, bytes: &[u8]) {
        File::options().write(true).open(&self.disk).unwrap().write_all_at(bytes, at).unwrap();
    }

    fn info(&self) -> Value {
        document("leandisk.info/1", &["info", arg(&self.disk)])
    }

    /// Copies, and answers whether every byte of the disk arrived.
    fn is_copied_whole(&self) -> bool {
        let target = self.dir.path().join("copy.raw");
        succeed(&["copy", arg(&self.disk), arg(&target), "--progress", "none"]);
        let is_equal = fs::read(&self.disk).unwrap() == fs::read(&target).unwrap();
        fs::remove_file(&target).unwrap();
        is_equal
    }

    /// What changes a disk in place must refuse, with `words`, and leave all as it is.
    fn is_refused(&self, words: &[&str]) {
        self.is_refused_with(&[&[], &["--dry-run"]], words);
    }

    fn is_refused_with(&self, options: &[&[&str]], words: &[&str]) {
        let before = Untouched::all_in(self.dir.path());
        for command in ["compact", "defrag"] {
            for more in options {
                let message = fail(3, &[&[command, arg(&self.disk)], *more].concat());
                for word in words {
                    assert!(message.contains(word), "{command}: '{word}' in {message}");
                }
            }
        }
        before.check(self.dir.path());
    }

    /// Every volume is held by `name`, whole in a copy, and refused by what changes it.
    fn is_held(&self, name: &str, words: &[&str]) {
        let info = self.info();
        for volume in info["volumes"].as_array().unwrap() {
            assert_eq!(
                (&volume["filesystem"], &volume["mode"]),
                (&name.into(), &"whole".into()),
                "{volume:#}"
            );
            for word in words {
                assert!(volume["reason"].as_str().unwrap().contains(word), "'{word}' in {volume:#}");
            }
        }
        assert!(!info["volumes"].as_array().unwrap().is_empty());
        assert!(self.is_copied_whole(), "{name}");
        self.is_refused(words);
    }
}

/// Or the other tests show nothing.
#[test]
fn what_nothing_holds_is_not_copied_whole() {
    assert!(!Scene::of_a_volume().0.is_copied_whole());
    assert!(!Scene::of_partitions(["83", "83"], "dos", MIB).is_copied_whole());
}

#[test]
fn a_disk_that_is_a_member() {
    let (scene, volume) = Scene::of_a_volume();
    for case in planted(volume.len() as u64).iter().filter(|case| case.spares_ext) {
        let mut disk = volume.clone();
        case.plant(&mut disk);
        fs::write(&scene.disk, &disk).unwrap();
        let info = scene.info();
        assert_eq!(info["volumes"][0]["filesystem"], case.name, "{}: {info:#}", case.case);
        assert!(scene.is_copied_whole(), "{}", case.case);
        scene.is_refused_with(&[&[]], &[]);
    }
}

#[test]
fn a_real_mirror_over_an_old_swap_signature() {
    let dir = scratch();
    let Some(disk) = testkit::real_image("md-raid1-over-old-swap.raw", dir.path()) else { return };
    let scene = Scene { dir, disk };
    scene.is_held("md-raid", &["RAID array (md 1.2)", "mdadm --zero-superblock"]);
    let info = scene.info();
    assert_eq!(info["volumes"][0]["uuid"], "9261d510-6906-d048-6e4a-bf3906a0957a");
    assert_eq!(info["volumes"][0]["details"]["level"], "1");
}

/// The partition table in it is one of the array, which begins where the disk begins.
#[test]
fn a_partitioned_disk_that_is_a_member_as_a_whole() {
    for case in planted(34 * MIB).iter().filter(|case| case.is_of_disks || case.case.starts_with("md 0.90")) {
        let scene = Scene::of_partitions(["83", "83"], "dos", MIB);
        for (at, bytes) in &case.patches {
            scene.plant(*at, bytes);
        }
        scene.is_held(case.name, &["RAID array"]);
        let doubt = scene.info()["partition_table"]["doubt"].as_str().unwrap_or_default().to_owned();
        assert!(doubt.contains("the disk as a whole is a member"), "{}: {doubt}", case.case);
    }
    let scene = Scene::of_partitions(["83", "83"], "dos", MIB);
    scene.plant(34 * MIB - 8192, &md_1(34 * MIB - 8192));
    scene.is_held("md-raid", &["md 1.0"]);
}

/// The other partition is nobody's member.
#[test]
fn a_partition_that_is_a_member() {
    let scene = Scene::of_partitions(["83", "83"], "dos", MIB);
    scene.plant(17 * MIB - 8192, &md_1(16 * MIB - 8192));
    let info = scene.info();
    assert_eq!(
        (&info["volumes"][0]["filesystem"], &info["volumes"][0]["mode"]),
        (&"md-raid".into(), &"whole".into())
    );
    assert_eq!(
        (&info["volumes"][1]["filesystem"], &info["volumes"][1]["mode"]),
        (&"ext4".into(), &"used-only".into())
    );
    let before = fs::read(&scene.disk).unwrap();
    let target = scene.dir.path().join("copy.raw");
    succeed(&["copy", arg(&scene.disk), arg(&target), "--progress", "none"]);
    let copied = fs::read(&target).unwrap();
    let end = usize::try_from(17 * MIB).unwrap();
    assert!(before[..end] == copied[..end] && before != copied);
    for command in ["compact", "defrag"] {
        succeed(&[command, arg(&scene.disk), "--progress", "none"]);
        let after = fs::read(&scene.disk).unwrap();
        assert!(before[..end] == after[..end], "{command} changed the member");
    }
    let message = fail(3, &["defrag", arg(&scene.disk), "--volume", "1"]);
    assert!(message.contains("is a member of a RAID array (md 1.0)"), "{message}");
}

/// Metadata at the end of the last partition lie at the end of the disk as well.
#[test]
fn a_last_partition_that_ends_where_the_disk_ends() {
    let modes = |scene: &Scene| -> Vec<String> {
        let info = scene.info();
        let volumes = info["volumes"].as_array().unwrap().iter();
        volumes
            .map(|volume| format!("{} {}", volume["filesystem"], volume["mode"]).replace('"', ""))
            .collect()
    };
    // Of a size that only the disk has, and of one that the partition has.
    let scene = Scene::of_partitions(["83", "83"], "dos", 0);
    scene.plant(33 * MIB - 65_536, &md_0_90(32 << 10, false));
    scene.is_held("md-raid", &["md 0.90"]);
    assert_eq!(modes(&scene), ["md-raid whole"]);
    scene.plant(33 * MIB - 65_536, &md_0_90(15 << 10, false));
    assert_eq!(modes(&scene), ["ext4 used-only", "md-raid whole"]);
    // It says where it lies.
    let scene = Scene::of_partitions(["83", "83"], "dos", 0);
    scene.plant(33 * MIB - 8192, &md_1(16 * MIB - 8192));
    assert_eq!(modes(&scene), ["ext4 used-only", "md-raid whole"]);
    scene.plant(33 * MIB - 8192, &md_1(33 * MIB - 8192));
    assert_eq!(modes(&scene), ["md-raid whole"]);
}

#[test]
fn a_partition_type_that_names_a_holder_is_a_doubt() {
    let guids = [
        ("A19D880F-05FC-4D3B-A006-743F0F84911E", "Linux RAID"),
        ("E6D6D379-F507-44C2-A23C-238F2A3DF928", "Linux LVM"),
        ("516E7CBA-6ECF-11D6-8FF8-00022D09712B", "FreeBSD ZFS"),
        ("E75CAF8F-F680-4CEE-AFA3-B001E56EFC2D", "Windows storage spaces"),
    ];
    let numbers = [("fd", "Linux RAID"), ("8e", "Linux LVM"), ("bf", "Solaris")];
    let linux = ("0FC63DAF-8483-4772-8E79-3D69D8477DE4", "83");
    let gpt = guids.iter().map(|(guid, kind)| ("gpt", *guid, linux.0, *kind));
    for (label, kind, other, words) in
        gpt.chain(numbers.iter().map(|(number, kind)| ("dos", *number, linux.1, *kind)))
    {
        let scene = Scene::of_partitions([kind, other], label, MIB);
        let info = scene.info();
        let reason = info["volumes"][0]["reason"].as_str().unwrap_or_default();
        assert!(reason.contains(words) && reason.contains("nothing of that kind"), "{info:#}");
        assert_eq!(info["volumes"][0]["filesystem"], "ext4");
        assert_eq!(info["volumes"][1]["mode"], "used-only");
        let message = fail(3, &["defrag", arg(&scene.disk), "--volume", "1"]);
        assert!(message.contains(words), "{message}");
        let scene = Scene::of_partitions([kind, kind], label, MIB);
        assert!(scene.is_copied_whole(), "{words}");
        scene.is_refused(&[words]);
    }
}

#[test]
fn a_dynamic_disk() {
    let scene = Scene::of_partitions(["42", "42"], "dos", MIB);
    assert!(scene.is_copied_whole());
    scene.is_refused(&["dynamic disk"]);
    let mut header = vec![0; 512];
    header[..8].copy_from_slice(b"PRIVHEAD");
    scene.plant(6 * 512, &header);
    scene.is_held("ldm", &["dynamic disk"]);
}
