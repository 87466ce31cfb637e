//! Btrfs of which one device is a logical volume in several segments, and the other another disk.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::btrfs_devices::{STALE, check_nothing_stale, check_sound, fill};
use crate::common::{arg, document, number};
use crate::lvm::{EXTENT, EXTENTS_AT, MIB, Scene, volume};
use testkit::loops::{Loops, Part};
use testkit::mounted::Mounted;
use testkit::run;

const COMMANDS: &str = "lvcreate -an -Zn -Wn -n one -l 12 vg0
lvcreate -an -Zn -Wn -n gap -l 3 vg0
lvextend -l +20 vg0/one
";
const LOGICAL_BYTES: u64 = 32 * EXTENT;
const DISK_BYTES: u64 = 160 * MIB;

#[test]
fn a_device_may_be_a_logical_volume() {
    let scene = Scene::with_table(&[200], COMMANDS);
    let (logical, disk) = (scene.path("one"), scene.path("two.raw"));
    for (path, len) in [(&logical, LOGICAL_BYTES), (&disk, DISK_BYTES)] {
        fs::write(path, vec![STALE; usize::try_from(len).unwrap()]).unwrap();
    }
    let part = |file| Part { file, start_bytes: 0, len_bytes: 0 };
    let loops = Loops::attach(&[part(&*logical), part(&*disk)]);
    run("mkfs.btrfs", &[&["-q", "-f", "-K", "-d", "raid0", "-m", "raid1"], &*loops.names()].concat());
    fill(&Mounted::btrfs_of(&loops, "noatime"), 60);
    let tree = Mounted::btrfs_of(&loops, "ro").tree();
    drop(loops);
    put(&scene, &fs::read(&logical).unwrap());
    let target = [scene.path("target-one.raw"), scene.path("target-two.raw")];
    for (number_of, [own, other]) in [[&scene.disk, &disk], [&disk, &scene.disk]].into_iter().enumerate() {
        let alone = document("leandisk.info/1", &["info", arg(own)]);
        assert!(alone.to_string().contains("1 of them is neither on this disk"), "{alone}");
        let args = ["copy", arg(own), "--with", arg(other), arg(&target[number_of]), "--verify"];
        let copied = document("leandisk.copy/1", &args);
        let all = copied["volumes"].as_array().unwrap().last().unwrap();
        assert_eq!((&all["filesystem"], &all["mode"]), (&"btrfs".into(), &"used-only".into()), "{copied}");
        assert!(number(&copied, "/read_bytes") < 100 * MIB, "{copied}");
        if number_of == 0 {
            assert_eq!(volume(&copied, "vg0/one")["mode"], "used-only", "{copied}");
        }
    }
    let found = scene.logical(&target[0], "one");
    check_nothing_stale(&found);
    check_nothing_stale(&target[1]);
    check_sound(&Loops::attach(&[part(&*found), part(&*target[1])]), &tree);
}

/// Writes what the logical volume is to hold to where `lvs` says that it lies.
fn put(scene: &Scene, bytes: &[u8]) {
    let disk = File::options().write(true).open(&scene.disk).unwrap();
    let mut segments = 0;
    for line in scene.read("lvs").lines().filter(|line| line.starts_with("one,")) {
        let fields: Vec<_> = line.split(',').collect();
        let [_, first, count, _, range] = fields[..] else { panic!("{line}") };
        let [first, count] = [first, count].map(|text| text.parse::<u64>().unwrap() * EXTENT);
        let on_disk: u64 = range.split_once(':').unwrap().1.split('-').next().unwrap().parse().unwrap();
        let part = &bytes[usize::try_from(first).unwrap()..][..usize::try_from(count).unwrap()];
        disk.write_all_at(part, scene.parts[0].0 + EXTENTS_AT + on_disk * EXTENT).unwrap();
        segments += 1;
    }
    assert_eq!(segments, 2);
}
