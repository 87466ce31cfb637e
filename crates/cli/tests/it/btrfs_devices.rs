//! Btrfs of several devices, on several disks: each disk is taken by what it uses, and the copies are one file system again.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::common::{arg, assert_same_bytes, document, fail, number, succeed};
use crate::serving::Serving;
use serde_json::Value;
use tempfile::TempDir;
use testkit::loops::{Loops, Part};
use testkit::mounted::{Mounted, Tree};
use testkit::{digest, run, scratch, stored};

const MIB: u64 = 1 << 20;
/// What was there before, and what was in files that are deleted.
pub(crate) const STALE: u8 = 0xa5;
const DELETED: u8 = 0xd7;
/// What each device keeps: its first MiB, and the copy of the superblock at 64 MiB.
const KEPT_BYTES: u64 = MIB + 4096;

/// How devices are spread over disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Spread {
    /// Each is a disk.
    Disks,
    /// Each is a partition of a disk of its own.
    Partitions,
    /// Two are partitions of the first disk, each other is a disk.
    TwoOnOne,
}

/// Where a device lies.
struct Place {
    disk: usize,
    start: u64,
    len: u64,
}

/// Disks with one file system on them, and what is in that.
struct Scene {
    dir: TempDir,
    /// How many disks there are, and what lies where on them.
    count: usize,
    places: Vec<Place>,
}

impl Scene {
    /// Devices of these many MiB.
    fn new(spread: Spread, sizes: &[u64], options: &str) -> Self {
        let dir = scratch();
        let start = if spread == Spread::Disks { 0 } else { MIB };
        let mut places: Vec<_> =
            (0..).zip(sizes).map(|(disk, mib)| Place { disk, start, len: mib * MIB }).collect();
        if spread == Spread::TwoOnOne {
            places[1].start += places[0].len;
            for place in &mut places[1..] {
                place.disk -= 1;
                place.start = if place.disk == 0 { place.start } else { 0 };
            }
        }
        let count = places.last().unwrap().disk + 1;
        let scene = Self { dir, count, places };
        for disk in 0..count {
            scene.make_disk(disk);
        }
        let loops = scene.attach("disk");
        run("mkfs.btrfs", &[&["-q", "-f", "-K"], &*words(options), &*loops.names()].concat());
        scene
    }

    fn make_disk(&self, disk: usize) {
        let on_it = || self.places.iter().filter(|place| place.disk == disk);
        let has_table = on_it().all(|place| place.start > 0);
        let end = on_it().map(|place| place.start + place.len).max().unwrap();
        let path = self.disk("disk", disk);
        let file = File::create(&path).unwrap();
        file.set_len(end + if has_table { MIB } else { 0 }).unwrap();
        let stale = vec![STALE; MIB as usize];
        for place in on_it() {
            for at in (place.start..place.start + place.len).step_by(MIB as usize) {
                file.write_all_at(&stale, at).unwrap();
            }
        }
        if has_table {
            let lines =
                on_it().map(|place| format!("start={}, size={}\n", place.start / 512, place.len / 512));
            let script = self.path("table");
            fs::write(&script, format!("label: gpt\n{}", lines.collect::<String>())).unwrap();
            run("sh", &["-c", &format!("sfdisk -q {} < {}", arg(&path), arg(&script))]);
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn disk(&self, what: &str, number: usize) -> PathBuf {
        self.path(&format!("{what}-{number}.raw"))
    }

    /// The devices of the disks that are called so.
    fn attach(&self, what: &str) -> Loops {
        let disks: Vec<_> = (0..self.count).map(|number| self.disk(what, number)).collect();
        let part =
            |place: &Place| Part { file: &disks[place.disk], start_bytes: place.start, len_bytes: place.len };
        Loops::attach(&self.places.iter().map(part).collect::<Vec<_>>())
    }

    /// Calls `change` with the file system, mounted.
    fn mounted<T>(&self, what: &str, options: &str, change: impl FnOnce(&Mounted) -> T) -> T {
        let loops = self.attach(what);
        let mounted = Mounted::btrfs_of(&loops, options);
        change(&mounted)
    }

    fn fill(&self, mib: u64) {
        self.mounted("disk", "noatime", |mounted| fill(mounted, mib));
    }

    fn tree(&self, what: &str) -> Tree {
        self.mounted(what, "ro", Mounted::tree)
    }

    /// What extents take up of all devices, each copy counted.
    fn used_bytes(&self) -> u64 {
        let said = self.mounted("disk", "ro", |mounted| {
            run("btrfs", &["filesystem", "usage", "-b", arg(mounted.path())])
        });
        let used = said.lines().find_map(|line| line.trim().strip_prefix("Used:"));
        used.unwrap_or_else(|| panic!("{said}")).trim().parse().unwrap()
    }

    /// The arguments for a command about one disk: itself, and the others behind `--with`.
    fn with(&self, what: &str, number: usize) -> Vec<String> {
        let mut args = vec![arg(&self.disk(what, number)).to_owned()];
        for other in (0..self.count).filter(|other| *other != number) {
            args.extend(["--with".into(), arg(&self.disk(what, other)).to_owned()]);
        }
        args
    }

    fn document(&self, schema: &str, command: &str, number: usize, more: &[&str]) -> Value {
        let with = self.with("disk", number);
        let with: Vec<_> = with.iter().map(String::as_str).collect();
        document(schema, &[&[command], &*with, more].concat())
    }

    /// Copies each disk by what it uses, with the others beside it; answers how much was read.
    fn copy(&self) -> u64 {
        let copies = (0..self.count).map(|number| {
            let target = self.disk("copy", number);
            let _ = fs::remove_file(&target);
            number_read(&self.document("leandisk.copy/1", "copy", number, &[arg(&target), "--verify"]))
        });
        copies.sum()
    }

    /// Fails unless the disks that are called so are one sound file system with the files, and nothing stale is on them.
    fn check(&self, what: &str, tree: &Tree) {
        for number in 0..self.count {
            check_nothing_stale(&self.disk(what, number));
        }
        check_sound(&self.attach(what), tree);
    }
}

/// Files, a snapshot, and gaps of what was deleted.
pub(crate) fn fill(mounted: &Mounted, mib: u64) {
    let at = |name: String| mounted.path().join(name);
    let bytes = |len: u64, index: u64| testkit::pattern(index, usize::try_from(len).unwrap());
    fs::create_dir(at("many".into())).unwrap();
    for index in 0..400 {
        fs::write(at(format!("many/file {index}")), bytes(index * 41, index)).unwrap();
    }
    for index in 0..mib {
        let name = at(format!("large {index}"));
        match index % 3 {
            0 => fs::write(name, vec![DELETED; MIB as usize]).unwrap(),
            _ => fs::write(name, bytes(MIB + index * 4096, index)).unwrap(),
        }
        if index % 16 == 0 {
            run("sync", &["-f", arg(mounted.path())]);
        }
    }
    run("btrfs", &["subvolume", "snapshot", arg(mounted.path()), arg(&at("snapshot".into()))]);
    for index in 0..mib {
        for folder in ["", "snapshot/"] {
            if index % 3 == 0 || index % 7 == 0 {
                fs::remove_file(at(format!("{folder}large {index}"))).unwrap();
            }
        }
    }
    for index in 0..mib / 8 {
        fs::write(at(format!("in the gaps {index}")), bytes(300_000, index)).unwrap();
    }
}

/// Fails unless devices are one sound file system with the files, and each copy of everything is sound.
pub(crate) fn check_sound(loops: &Loops, tree: &Tree) {
    loops.btrfs(&["check", "--readonly", loops.names()[0]]);
    let mounted = Mounted::btrfs_of(loops, "ro");
    mounted.tree().assert_same(tree, "copies");
    let said = run("btrfs", &["scrub", "start", "-B", "-r", arg(mounted.path())]);
    assert!(said.contains("no errors found"), "{said}");
}

/// Fails if a block is there that nobody uses any more.
pub(crate) fn check_nothing_stale(path: &Path) {
    let stale = |block: &&[u8]| block.iter().all(|byte| *byte == STALE || *byte == DELETED);
    for (at, bytes) in stored(path) {
        assert_eq!(bytes.chunks(4096).filter(stale).count(), 0, "{} from {at:#x}", path.display());
    }
}

fn number_read(copied: &Value) -> u64 {
    number(copied, "/read_bytes")
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// Options of mkfs.btrfs, MiB of each device, and MiB of files.
const TABLE: &[(Spread, &str, &[u64], u64)] = &[
    (Spread::Disks, "-d single -m raid1", &[160, 220], 70),
    (Spread::Disks, "-d single -m single", &[160, 120, 140], 70),
    (Spread::Disks, "-d single -m dup", &[220, 160], 70),
    (Spread::Partitions, "-d raid0 -m raid1", &[160, 220], 70),
    (Spread::Disks, "-d raid0 -m raid0", &[150, 150, 260], 90),
    (Spread::Disks, "-d raid0 -m raid0", &[130, 220, 160, 140], 80),
    (Spread::Disks, "-d raid1 -m raid1", &[160, 220], 40),
    (Spread::TwoOnOne, "-d raid1 -m raid1", &[160, 160, 220], 60),
    (Spread::Partitions, "-d raid1c3 -m raid1c3", &[160, 180, 220, 200], 40),
    (Spread::Disks, "-d raid1c4 -m raid1c4", &[160, 180, 220, 200], 40),
    (Spread::Disks, "-d raid10 -m raid10", &[160, 180, 220, 200], 60),
    (Spread::Partitions, "-d raid10 -m raid1 -n 4096", &[160, 180], 30),
    (Spread::Disks, "-d dup -m dup", &[320, 240], 60),
    (Spread::Disks, "--mixed -d raid1 -m raid1", &[120, 140], 40),
];

#[test]
fn every_profile_is_copied_disk_by_disk_and_whole_to_scrub() {
    for (spread, options, sizes, mib) in TABLE {
        let scene = Scene::new(*spread, sizes, options);
        scene.fill(*mib);
        let (tree, used) = (scene.tree("disk"), scene.used_bytes());
        let read = scene.copy();
        scene.check("copy", &tree);
        let all: u64 = sizes.iter().sum::<u64>() * MIB;
        println!(
            "{options:28} {spread:?} of {sizes:?} MiB: {:4} MiB used, {:4} of {:4} MiB read",
            used / MIB,
            read / MIB,
            all / MIB
        );
        let kept = KEPT_BYTES * sizes.len() as u64;
        if *spread == Spread::Disks {
            assert_eq!(read, used + kept, "{options}");
        }
        assert!(read < used + kept + 2 * MIB * sizes.len() as u64, "{options}");
    }
}

#[test]
fn a_file_system_is_whole_unless_each_device_is_there_once() {
    let scene = Scene::new(Spread::Disks, &[300, 256, 200], "-d single -m raid1");
    scene.fill(60);
    let disks = [0, 1, 2].map(|number| scene.disk("disk", number));
    let [one, two, three] = [&disks[0], &disks[1], &disks[2]].map(|disk| arg(disk));
    let twice = scene.path("twice.raw");
    fs::copy(&disks[1], &twice).unwrap();
    let target = scene.path("copy.raw");
    for (with, reason) in [
        (&[][..], "2 of them are neither on this disk nor on one named by --with"),
        (&["--with", two], "1 of them is neither on this disk nor on one named by --with"),
        (&["--with", two, "--with", three, "--with", arg(&twice)], "another device has the same number"),
    ] {
        let args = [&["copy", one, arg(&target), "--force"], with].concat();
        let copied = document("leandisk.copy/1", &args);
        assert_eq!(copied["volumes"].as_array().unwrap().len(), 1, "{copied}");
        assert_eq!(copied["volumes"][0]["mode"], "whole", "{copied}");
        let said = copied["volumes"][0]["reason"].as_str().unwrap();
        assert!(said.starts_with("it is one of the 3 devices of a btrfs") && said.contains(reason), "{said}");
        assert_same_bytes(&disks[0], &target);
    }
    let said = fail(3, &["defrag", one, "-f", "raw", "--with", two, "--with", three]);
    assert!(said.contains("btrfs"), "{said}");
}

/// What is hibernated may hold changes to any of its disks.
#[test]
fn a_guest_that_is_hibernated_by_another_disk_is_whole() {
    let scene = Scene::new(Spread::Disks, &[200, 160], "-d single -m raid1");
    let swap = scene.path("swap.raw");
    File::create(&swap).unwrap().set_len(8 * MIB).unwrap();
    run("mkswap", &["-q", arg(&swap)]);
    let mode = || {
        let info = scene.document("leandisk.info/1", "info", 0, &["--with", arg(&swap)]);
        let all = info["volumes"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(all["label"], Value::Null);
        (all["mode"].as_str().unwrap().to_owned(), all["reason"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(mode().0, "used-only");
    File::options().write(true).open(&swap).unwrap().write_all_at(b"S1SUSPEND\0", 4086).unwrap();
    let (mode, reason) = mode();
    assert_eq!((&*mode, reason.contains("hibernated")), ("whole", true), "{reason}");
    let before = digest(&scene.disk("disk", 0));
    let (disk, other) = (scene.disk("disk", 0), scene.disk("disk", 1));
    let said = fail(3, &["compact", arg(&disk), "-f", "raw", "--with", arg(&other), "--with", arg(&swap)]);
    assert!(said.contains("the guest is hibernated (see its disk that --with names)"), "{said}");
    assert!(digest(&disk) == before, "refused, and written");
}

#[test]
fn a_file_system_on_several_disks_is_shown_as_one() {
    let scene = Scene::new(Spread::TwoOnOne, &[300, 256, 200], "-d raid0 -m raid1 -L several");
    scene.fill(40);
    for number in 0..scene.count {
        let info = scene.document("leandisk.info/1", "info", number, &[]);
        let volumes = info["volumes"].as_array().unwrap();
        assert_eq!(volumes.len(), if number == 0 { 3 } else { 2 }, "{info}");
        let (all, devices) = volumes.split_last().unwrap();
        assert_eq!((&all["mode"], &all["label"]), (&"used-only".into(), &"several".into()), "{info}");
        assert_eq!((&all["name"], &all["partition"]), (&all["uuid"], &Value::Null), "{info}");
        assert_eq!(all["details"]["profiles"], "data RAID0, metadata RAID1", "{info}");
        assert_eq!(crate::common::number(all, "/size_bytes"), 756 * MIB);
        assert_eq!(crate::common::number(all, "/free_bytes"), 756 * MIB - scene.used_bytes());
        assert!(devices.iter().all(|device| device["details"]["a device of"] == all["uuid"]), "{info}");
        let analyzed = scene.document("leandisk.analyze/1", "analyze", number, &[]);
        let files = analyzed["volumes"].as_array().unwrap().last().unwrap()["files"].as_u64().unwrap();
        let regular = |mounted: &Mounted| run("find", &[arg(mounted.path()), "-type", "f"]).lines().count();
        assert_eq!(files, scene.mounted("disk", "ro", regular) as u64, "{analyzed}");
        let (with, page) = (scene.with("disk", number), scene.path("map.svg"));
        let with: Vec<_> = with.iter().map(String::as_str).collect();
        succeed(&[&["map", "-o", arg(&page), "--force"], &*with].concat());
    }
}

#[test]
fn compact_gives_back_what_devices_do_not_use() {
    for (options, sizes) in [("-d raid1 -m raid1", [300, 420]), ("-d raid0 -m single", [300, 300])] {
        let scene = Scene::new(Spread::Partitions, &sizes, options);
        scene.fill(80);
        let tree = scene.tree("disk");
        let image = |number: usize| scene.path(&format!("image-{number}.qcow2"));
        for number in 0..2 {
            let disk = scene.disk("disk", number);
            run(
                "qemu-img",
                &["convert", "-f", "raw", "-O", "qcow2", "-S", "0", arg(&disk), arg(&image(number))],
            );
        }
        for number in 0..2 {
            let (own, other) = (image(number), image(1 - number));
            let untouched = digest(&other);
            let args = ["compact", arg(&own), "--with", arg(&other), "--verify"];
            let done = document("leandisk.compact/1", &args);
            let volumes = done["volumes"].as_array().unwrap();
            assert!(volumes.iter().all(|volume| volume["refused"].is_null()), "{done}");
            assert!(crate::common::number(&done, "/freed_bytes") > 100 * MIB, "{done}");
            assert!(untouched == digest(&other), "the other disk is only read");
        }
        for number in 0..2 {
            let raw = scene.disk("compacted", number);
            run("qemu-img", &["convert", "-O", "raw", arg(&image(number)), arg(&raw)]);
        }
        check_sound(&scene.attach("compacted"), &tree);
    }
}

#[test]
fn a_client_of_a_lean_disk_reads_what_copy_makes() {
    let scene = Scene::new(Spread::Disks, &[300, 256], "-d raid0 -m raid1");
    scene.fill(60);
    scene.copy();
    for number in 0..2 {
        let other = scene.disk("disk", 1 - number);
        let (disk, raw) = (scene.disk("disk", number), scene.path("read.raw"));
        let serving = Serving::start_with(&disk, &["--read-only", "--lean", "--with", arg(&other)]);
        run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &serving.address, arg(&raw)]);
        serving.stop();
        assert_same_bytes(&raw, &scene.disk("copy", number));
    }
}
