//! Disks compacted in place: what real tools make of them afterwards, what they take on the host, and what is refused.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{Untouched, arg, document, fail, leandisk, names_in, number, succeed};
use serde_json::Value;
use testkit::{Guest, Inside, STALE, SWAPPED, file_contains, real_image, run, scratch};

const MIB: u64 = 1 << 20;

/// A kind of image that is compacted in place.
struct Kind {
    name: &'static str,
    qemu_format: &'static str,
    options: &'static [&'static str],
    /// What it gives back at once.
    unit_bytes: u64,
    /// What its tables may take.
    tables_bytes: u64,
    is_checkable: bool,
}

const fn kind(
    name: &'static str,
    qemu_format: &'static str,
    options: &'static [&'static str],
    unit_bytes: u64,
    tables_bytes: u64,
    is_checkable: bool,
) -> Kind {
    Kind { name, qemu_format, options, unit_bytes, tables_bytes, is_checkable }
}

const K: u64 = 1024;

const KINDS: [Kind; 15] = [
    kind("disk.raw", "raw", &[], 4 * K, 0, false),
    kind("plain.qcow2", "qcow2", &[], 64 * K, MIB, true),
    kind("small.qcow2", "qcow2", &["-o", "cluster_size=4096"], 4 * K, MIB, true),
    kind("tiny.qcow2", "qcow2", &["-o", "cluster_size=512"], 512, 2 * MIB, true),
    kind("v2.qcow2", "qcow2", &["-o", "compat=0.10"], 64 * K, MIB, true),
    kind("zlib.qcow2", "qcow2", &["-c"], 64 * K, MIB, true),
    kind("zstd.qcow2", "qcow2", &["-c", "-o", "compression_type=zstd"], 64 * K, MIB, true),
    kind("fixed.vhd", "vpc", &["-o", "subformat=fixed,force_size=on"], 4 * K, MIB, false),
    kind("dynamic.vhd", "vpc", &["-o", "subformat=dynamic,force_size=on"], 2 * MIB, MIB, false),
    kind("dynamic.vhdx", "vhdx", &["-o", "subformat=dynamic,block_size=1M"], MIB, 5 * MIB, true),
    kind("fixed.vhdx", "vhdx", &["-o", "subformat=fixed,block_size=1M"], 4 * K, 5 * MIB, true),
    kind("sparse.vmdk", "vmdk", &["-o", "subformat=monolithicSparse"], 64 * K, MIB, true),
    kind("flat.vmdk", "vmdk", &["-o", "subformat=monolithicFlat"], 4 * K, MIB, false),
    kind("dynamic.vdi", "vdi", &[], 4 * K, MIB, true),
    kind("static.vdi", "vdi", &["-o", "static=on"], 4 * K, MIB, true),
];

fn kind_named(name: &str) -> &'static Kind {
    KINDS.iter().find(|kind| kind.name == name).unwrap()
}

impl Kind {
    fn make(&self, raw: &Path, dir: &Path) -> PathBuf {
        let path = dir.join(self.name);
        let mut args = vec!["convert", "-f", "raw", "-O", self.qemu_format];
        args.extend(self.options);
        args.extend([arg(raw), arg(&path)]);
        run("qemu-img", &args);
        path
    }

    fn image_options(&self, path: &Path) -> String {
        match self.qemu_format {
            "vpc" => format!("driver=vpc,force_size_calc=current_size,file.filename={}", path.display()),
            format => format!("driver={format},file.filename={}", path.display()),
        }
    }

    fn to_raw(&self, image: &Path, to: &Path) {
        let options = self.image_options(image);
        run("qemu-img", &["convert", "--image-opts", "-O", "raw", &options, arg(to)]);
    }

    /// No errors, and no leaks either: those would be status 3.
    fn check(&self, image: &Path) {
        if self.is_checkable {
            run("qemu-img", &["check", "-q", "-f", self.qemu_format, arg(image)]);
        }
    }
}

/// The host's storage of all files in a folder.
fn allocated(dir: &Path) -> u64 {
    names_in(dir).iter().map(|name| dir.join(name).metadata().unwrap().blocks() * 512).sum()
}

fn lengths(dir: &Path) -> u64 {
    names_in(dir).iter().map(|name| dir.join(name).metadata().unwrap().len()).sum()
}

/// Compacts, having looked at what a dry run says; answers the document.
fn compact(dir: &Path, image: &Path, more: &[&str]) -> Value {
    // Until it is stored the host finds its blocks at any moment, and how many there are, tables for them included, changes meanwhile.
    for name in names_in(dir) {
        run("sync", &[arg(&dir.join(name))]);
    }
    let untouched = Untouched::all_in(dir);
    let args = [&["compact", arg(image)], more].concat();
    let planned = document("leandisk.compact/1", &[&args[..], &["--dry-run"]].concat());
    untouched.check(dir);
    assert_eq!(planned["dry_run"], true);
    let before = allocated(dir);
    let done = document("leandisk.compact/1", &args);
    for figure in [
        "freed_bytes",
        "settled_bytes",
        "length_after_bytes",
        "partial_bytes",
        "partial_units",
        "unit_bytes",
        "allocated_before_bytes",
        "volumes",
    ] {
        assert_eq!(planned[figure], done[figure], "{figure} of {}", image.display());
    }
    assert_eq!(number(&done, "/allocated_before_bytes"), before);
    assert_eq!(number(&done, "/allocated_after_bytes"), allocated(dir));
    assert_eq!(number(&done, "/length_after_bytes"), lengths(dir));
    assert_eq!(done["refused"], Value::Null);
    done
}

/// Runs of data of a raw file, and their bytes, as QEMU finds them on the host.
fn data_of(raw: &Path) -> (u64, u64) {
    let map = run("qemu-img", &["map", "--output=json", "-f", "raw", arg(raw)]);
    let map: Value = serde_json::from_str(&map).unwrap();
    let data: Vec<_> = map.as_array().unwrap().iter().filter(|run| run["data"] == true).collect();
    (data.len() as u64, data.iter().map(|run| number(run, "/length")).sum())
}

/// Each kind of image with each guest, compacted.
fn all_kinds(guest: &Guest) {
    let plain = scratch();
    let raw = plain.path().join("disk.raw");
    run("cp", &["--sparse=never", arg(&guest.disk), arg(&raw)]);
    compact(plain.path(), &raw, &["--verify"]);
    let (used_runs, used_bytes) = data_of(&raw);
    for kind in &KINDS {
        let dir = scratch();
        let image = kind.make(&guest.disk, dir.path());
        let done = compact(dir.path(), &image, &[]);
        let [before, after, freed] = ["before_bytes", "after_bytes", "freed"].map(|name| {
            number(&done, &if name == "freed" { "/freed_bytes".into() } else { format!("/allocated_{name}") })
        });
        println!(
            "{}: {before} -> {after}, freed {freed}, partial {}, moved {}, length {} -> {}",
            kind.name,
            done["partial_bytes"],
            done["settled_bytes"],
            done["length_before_bytes"],
            done["length_after_bytes"]
        );
        assert_eq!(number(&done, "/unit_bytes"), kind.unit_bytes, "{}", kind.name);
        // The host's own records of the file take some blocks, and its end is not always that of a block.
        let slack = 64 * K;
        assert!(
            (before - freed).abs_diff(after) <= slack,
            "{}: {before} - {freed} is not {after}",
            kind.name
        );
        let bound = used_bytes + used_runs * kind.unit_bytes + kind.tables_bytes + slack;
        assert!(after <= bound, "{}: {after} of {bound}", kind.name);
        if kind.unit_bytes <= 64 * K {
            assert!(freed > 10 * MIB || kind.options.contains(&"-c"), "{}: {done:#}", kind.name);
        }
        kind.check(&image);
        let view = scratch();
        let seen = view.path().join("seen.raw");
        kind.to_raw(&image, &seen);
        guest.check(&seen);
        // QEMU's VDIs have blocks at odd places, whose edges on the host are shared.
        if kind.unit_bytes <= 4 * K && number(&done, "/partial_bytes") == 0 && kind.qemu_format != "vdi" {
            assert!(!file_contains(&seen, SWAPPED), "{}: swap is gone", kind.name);
            assert!(!file_contains(&seen, STALE), "{}: stale bytes are gone", kind.name);
        }
        let untouched = Untouched::all_in(dir.path());
        let again = document("leandisk.compact/1", &["compact", arg(&image)]);
        assert_eq!(
            (number(&again, "/freed_bytes"), number(&again, "/written_bytes")),
            (0, 0),
            "{}",
            kind.name
        );
        untouched.check(dir.path());
    }
}

#[test]
fn every_kind_of_image_with_ntfs_gives_back_what_is_free() {
    all_kinds(Guest::get(Inside::Ntfs));
}

#[test]
fn every_kind_of_image_with_ext4_gives_back_what_is_free() {
    all_kinds(Guest::get(Inside::Ext4));
}

#[test]
fn a_raw_disk_takes_what_its_guest_uses() {
    for guest in Guest::both() {
        for prepare in ["--sparse=never", "fallocate"] {
            let dir = scratch();
            let raw = dir.path().join("disk.raw");
            if prepare == "fallocate" {
                // All of it reserved, and only what is used written.
                run("fallocate", &["-l", "64M", arg(&raw)]);
                run(
                    "dd",
                    &[
                        &format!("if={}", arg(&guest.disk)),
                        &format!("of={}", arg(&raw)),
                        "conv=notrunc,sparse",
                        "bs=4k",
                        "status=none",
                    ],
                );
                run("sync", &[arg(&raw)]);
            } else {
                run("cp", &[prepare, arg(&guest.disk), arg(&raw)]);
            }
            assert!(allocated(dir.path()) >= 64 * MIB);
            let done = compact(dir.path(), &raw, &[]);
            let copy = dir.path().join("copy.raw");
            let copied = document("leandisk.copy/1", &["copy", arg(&raw), arg(&copy)]);
            let used = number(&copied, "/used_bytes");
            let after = number(&done, "/allocated_after_bytes");
            assert!(after <= used + used / 100 + MIB, "{after} of {used}");
            assert_eq!(number(&done, "/written_bytes"), 0, "a raw disk has no tables");
            guest.check(&raw);
        }
    }
}

const WITHOUT_JOURNAL: &[&str] = &["-O", "^has_journal"];

/// Makes an empty ext4 volume, all of whose inode tables are written.
fn make_ext4(volume: &Path, len_bytes: u64, more: &[&str]) {
    fs::File::create(volume).unwrap().set_len(len_bytes).unwrap();
    let options = ["-q", "-F", "-t", "ext4", "-b", "4096", "-E", "nodiscard,lazy_itable_init=0"];
    run("mke2fs", &[&options, more, &[arg(volume)]].concat());
}

/// Two files in turn, block by block: every second block of the volume is free afterwards.
#[test]
fn scattered_free_space_goes_as_far_as_units_allow() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    make_ext4(&volume, 32 * MIB, WITHOUT_JOURNAL);
    {
        let mounted = testkit::ext_volume::Mounted::new(&volume, "rw,nodelalloc");
        let [kept, gone] = ["kept", "gone"].map(|name| mounted.dir().join(name));
        let script = format!(
            "for i in $(seq 300); do head -c 12288 /dev/urandom >> {}; head -c 12288 /dev/urandom >> {}; sync -f {}; done",
            kept.display(),
            gone.display(),
            mounted.dir().display()
        );
        run("bash", &["-c", &script]);
        run("rm", &[arg(&gone)]);
    }
    let digest = |volume: &Path| {
        testkit::ext_volume::tree_digest(&testkit::ext_volume::Mounted::new(volume, "ro").dir())
    };
    let before = digest(&volume);
    for name in ["disk.raw", "small.qcow2", "plain.qcow2", "dynamic.vdi", "dynamic.vhdx"] {
        let kind = kind_named(name);
        let dir = scratch();
        let image = kind.make(&volume, dir.path());
        let done = compact(dir.path(), &image, &["--verify"]);
        kind.check(&image);
        let (freed, partial) = (number(&done, "/freed_bytes"), number(&done, "/partial_bytes"));
        if kind.unit_bytes == 4 * K {
            assert!(freed > 2 * MIB && partial == 0, "{name}: {done:#}");
        } else {
            assert!(
                partial > 2 * MIB && done["advice"].as_str().unwrap().contains("defrag"),
                "{name}: {done:#}"
            );
            assert!(number(&done, "/partial_units") > 0);
        }
        let view = scratch();
        let seen = view.path().join("seen.raw");
        kind.to_raw(&image, &seen);
        run("e2fsck", &["-fn", arg(&seen)]);
        assert_eq!(digest(&seen), before, "{name}");
    }
}

#[test]
fn ntfs_with_every_feature_stays_as_it_was() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    testkit::ntfs_volume::make(&volume, 4096, 5);
    let digest = |volume: &Path| {
        let dir = scratch();
        testkit::ntfs_volume::tree_digest(
            &testkit::ntfs_volume::Mounted::new(volume, &dir.path().join("mnt"), "ro").dir,
        )
    };
    let before = digest(&volume);
    for name in ["disk.raw", "small.qcow2", "sparse.vmdk", "dynamic.vhd"] {
        let kind = kind_named(name);
        let dir = scratch();
        let image = kind.make(&volume, dir.path());
        compact(dir.path(), &image, &["--verify"]);
        kind.check(&image);
        let view = scratch();
        let seen = view.path().join("seen.raw");
        kind.to_raw(&image, &seen);
        run("ntfsfix", &["-n", arg(&seen)]);
        assert!(digest(&seen) == before, "{name}");
    }
}

#[test]
fn a_file_is_cut_off_where_its_end_is_free() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    make_ext4(&volume, 32 * MIB, WITHOUT_JOURNAL);
    {
        let mounted = testkit::ext_volume::Mounted::new(&volume, "rw");
        fs::write(mounted.dir().join("kept"), [7; 100_000]).unwrap();
        let gone = mounted.dir().join("gone");
        run(
            "bash",
            &[
                "-c",
                &format!(
                    "head -c 64M /dev/urandom > {} 2>/dev/null || true; sync -f {}",
                    gone.display(),
                    gone.display()
                ),
            ],
        );
        fs::remove_file(gone).unwrap();
    }
    for (name, length_max) in
        [("plain.qcow2", MIB), ("dynamic.vhd", 5 * MIB), ("dynamic.vhdx", 12 * MIB), ("sparse.vmdk", MIB)]
    {
        let kind = kind_named(name);
        let dir = scratch();
        let image = kind.make(&volume, dir.path());
        let done = compact(dir.path(), &image, &["--verify"]);
        let (before, after) = (number(&done, "/length_before_bytes"), number(&done, "/length_after_bytes"));
        println!("{name}: {before} -> {after} long");
        assert!(before >= 29 * MIB && after <= length_max, "{name}: {before} -> {after}");
        kind.check(&image);
        let seen = dir.path().join("seen.raw");
        kind.to_raw(&image, &seen);
        run("e2fsck", &["-fn", arg(&seen)]);
    }
}

/// Two files one after the other, of which the first is gone: what lies behind it moves into its place.
#[test]
fn what_lies_at_the_end_moves_into_gaps_and_the_file_is_cut_off() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    make_ext4(&volume, 64 * MIB, WITHOUT_JOURNAL);
    {
        let mounted = testkit::ext_volume::Mounted::new(&volume, "rw");
        let script = format!(
            "cd {} && head -c 24M /dev/urandom > gone && sync -f . && head -c 16M /dev/urandom > kept && sync -f . && rm gone",
            mounted.dir().display()
        );
        run("bash", &["-c", &script]);
    }
    let digest = |volume: &Path| {
        testkit::ext_volume::tree_digest(&testkit::ext_volume::Mounted::new(volume, "ro").dir())
    };
    let before = digest(&volume);
    for name in ["plain.qcow2", "small.qcow2", "dynamic.vhd", "dynamic.vhdx", "sparse.vmdk", "dynamic.vdi"] {
        let kind = kind_named(name);
        let dir = scratch();
        let image = kind.make(&volume, dir.path());
        let still = dir.path().join(format!("still-{name}"));
        run("cp", &["--sparse=auto", arg(&image), arg(&still)]);
        let unmoved = document("leandisk.compact/1", &["compact", arg(&still), "--move", "never"]);
        fs::remove_file(&still).unwrap();
        let done = compact(dir.path(), &image, &["--verify"]);
        let length = number(&done, "/length_after_bytes");
        println!("{name}: {} -> {length} long, moved {}", done["length_before_bytes"], done["settled_bytes"]);
        assert_eq!(number(&unmoved, "/settled_bytes"), 0, "{name}");
        assert!(number(&done, "/settled_bytes") >= 10 * MIB, "{name}: {done:#}");
        assert!(length + 10 * MIB <= number(&unmoved, "/length_after_bytes"), "{name}: {done:#} {unmoved:#}");
        assert!(length <= 18 * MIB + kind.tables_bytes + 4 * kind.unit_bytes, "{name}: {done:#}");
        let freed = |document: &Value| {
            number(document, "/allocated_before_bytes") - number(document, "/allocated_after_bytes")
        };
        assert!(freed(&done) + 64 * K >= freed(&unmoved), "{name}: {done:#} {unmoved:#}");
        kind.check(&image);
        let seen = dir.path().join("seen.raw");
        kind.to_raw(&image, &seen);
        run("e2fsck", &["-fn", arg(&seen)]);
        assert_eq!(digest(&seen), before, "{name}");
    }
}

/// `compact` must fail with `status`, naming `words`, and leave all as it is, dry or not.
fn refuses(dir: &Path, status: i32, disk: &Path, more: &[&str], words: &[&str]) {
    let untouched = Untouched::all_in(dir);
    for dry in [&[][..], &["--dry-run"]] {
        let message = fail(status, &[&["compact", arg(disk)], more, dry].concat());
        for word in words {
            assert!(message.contains(word), "'{word}' in {message}");
        }
    }
    untouched.check(dir);
}

#[test]
fn what_must_not_be_changed_is_refused_and_stays() {
    let guest = Guest::get(Inside::Ntfs);
    let plain = kind_named("plain.qcow2");

    let dir = scratch();
    let disk = plain.make(&guest.disk, dir.path());
    run("qemu-img", &["snapshot", "-c", "before", arg(&disk)]);
    refuses(dir.path(), 3, &disk, &[], &["snapshot"]);

    let dir = scratch();
    let disk = plain.make(&guest.disk, dir.path());
    let child = dir.path().join("child.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "plain.qcow2", "-F", "qcow2", arg(&child)]);
    refuses(dir.path(), 3, &disk, &[], &["child.qcow2"]);
    refuses(dir.path(), 3, &child, &[], &["parent"]);

    let dir = scratch();
    let disk = plain.make(&guest.disk, dir.path());
    fs::hard_link(&disk, dir.path().join("other-name")).unwrap();
    let message = {
        let untouched = Untouched::all_in(dir.path());
        let message = fail(3, &["compact", arg(&disk)]);
        untouched.check(dir.path());
        message
    };
    assert!(message.contains("names"), "{message}");

    for (name, format, options) in [
        ("stream.vmdk", "vmdk", "subformat=streamOptimized"),
        ("split.vmdk", "vmdk", "subformat=twoGbMaxExtentSparse"),
        ("extended.qcow2", "qcow2", "extended_l2=on,cluster_size=128k"),
        ("lazy.qcow2", "qcow2", "lazy_refcounts=on"),
    ] {
        let dir = scratch();
        let disk = dir.path().join(name);
        run("qemu-img", &["convert", "-f", "raw", "-O", format, "-o", options, arg(&guest.disk), arg(&disk)]);
        if name == "lazy.qcow2" {
            // Its dirty bit (specification: incompatible_features, bit 0).
            let file = fs::OpenOptions::new().write(true).open(&disk).unwrap();
            file.write_all_at(&[1], 72 + 7).unwrap();
        }
        refuses(dir.path(), 3, &disk, &[], &[name]);
    }
}

#[test]
fn who_uses_a_disk_keeps_it() {
    let guest = Guest::get(Inside::Ntfs);
    let dir = scratch();
    let disk = kind_named("plain.qcow2").make(&guest.disk, dir.path());
    let mut user = Command::new("qemu-io")
        .args(["-f", "qcow2", arg(&disk)])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    sleep(Duration::from_millis(500));
    refuses(dir.path(), 3, &disk, &[], &["in use"]);
    drop(user.stdin.take());
    user.wait().unwrap();
    succeed(&["compact", arg(&disk)]);
}

#[test]
fn volumes_in_doubt_are_left_whole() {
    // The guest is hibernated.
    let guest = Guest::get(Inside::Ntfs);
    let dir = scratch();
    let disk = dir.path().join("hibernated.raw");
    run("cp", &["--sparse=never", arg(&guest.disk), arg(&disk)]);
    let work = scratch();
    let volume = work.path().join("volume");
    let skip = format!("skip={}", guest.volume_start >> 20);
    run(
        "dd",
        &[&format!("if={}", arg(&disk)), &format!("of={}", arg(&volume)), "bs=1M", &skip, "status=none"],
    );
    let listing = run("ntfscluster", &["-f", "-F", "/hiberfil.sys", arg(&volume)]);
    let runs = listing.split("Length").nth(1).unwrap_or_else(|| panic!("{listing}"));
    let cluster: u64 = runs.split_whitespace().nth(1).unwrap().parse().unwrap();
    let file = fs::OpenOptions::new().write(true).open(&disk).unwrap();
    file.write_all_at(b"HIBR", guest.volume_start + cluster * 4096).unwrap();
    drop(file);
    refuses(dir.path(), 3, &disk, &[], &["hibernated"]);

    // Its volume was not unmounted.
    let dir = scratch();
    let disk = dir.path().join("dirty.raw");
    run("cp", &["--sparse=never", arg(&guest.disk), arg(&disk)]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts/mark_dirty.py");
    run("python3", &[arg(&script), arg(&disk), &guest.volume_start.to_string()]);
    refuses(dir.path(), 3, &disk, &[], &["dirty"]);

    // A running guest's journal is pending: that volume stays whole, and the swap beside it goes.
    let guest = Guest::get(Inside::RunningExt4);
    let dir = scratch();
    let disk = dir.path().join("running.raw");
    run("cp", &["--sparse=never", arg(&guest.disk), arg(&disk)]);
    let before = dir.path().join("before");
    run("cp", &[arg(&disk), arg(&before)]);
    let done = document("leandisk.compact/1", &["compact", arg(&disk)]);
    assert_eq!(done["volumes"][0]["refused"], Value::Null);
    assert!(done["volumes"][1]["refused"].as_str().unwrap().contains("journal"), "{done:#}");
    assert!(number(&done, "/freed_bytes") >= 3 * MIB);
    assert_eq!(number(&done, "/volumes/1/free_bytes"), 0);
    let skip = guest.volume_start.to_string();
    run("cmp", &["-i", &skip, arg(&disk), arg(&before)]);

    // Nothing that is known.
    let dir = scratch();
    let disk = dir.path().join("noise.raw");
    run("dd", &["if=/dev/urandom", &format!("of={}", arg(&disk)), "bs=1M", "count=4", "status=none"]);
    refuses(dir.path(), 3, &disk, &[], &["no volume"]);
}

#[test]
fn a_block_device_is_told_what_is_free() {
    let guest = Guest::get(Inside::Ext4);
    let dir = scratch();
    let file = dir.path().join("backing");
    run("cp", &["--sparse=never", arg(&guest.disk), arg(&file)]);
    let output = testkit::as_root("losetup", &["--show", "-f", arg(&file)]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let device = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let before = allocated(dir.path());
    let output = testkit::as_root(&common::program(), &["compact", &device, "--json"]);
    testkit::as_root("losetup", &["-d", &device]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let done: Value = serde_json::from_slice(&output.stdout).unwrap();
    let after = allocated(dir.path());
    assert!(
        (before - number(&done, "/freed_bytes")).abs_diff(after) <= 64 * K,
        "{before} -> {after}: {done:#}"
    );
    guest.check(&file);
}

/// Its own guest leaves no whole block free: another one is put into what Hyper-V made.
#[test]
fn a_vhd_of_hyper_v_stays_valid() {
    let dir = scratch();
    let Some(image) = real_image("hv-dynamic.vhd", dir.path()) else { return };
    let own = document("leandisk.compact/1", &["compact", arg(&image)]);
    assert_eq!((number(&own, "/freed_bytes"), number(&own, "/written_bytes")), (0, 0));
    let work = scratch();
    let volume = work.path().join("volume");
    make_ext4(&volume, 10 * MIB, WITHOUT_JOURNAL);
    let digest = |volume: &Path| {
        testkit::ext_volume::tree_digest(&testkit::ext_volume::Mounted::new(volume, "ro").dir())
    };
    {
        let mounted = testkit::ext_volume::Mounted::new(&volume, "rw");
        run("cp", &["-r", concat!(env!("CARGO_MANIFEST_DIR"), "/src"), arg(&mounted.dir().join("kept"))]);
        let gone = mounted.dir().join("gone");
        run(
            "bash",
            &[
                "-c",
                &format!(
                    "yes stale | head -c 20M > {} 2>/dev/null || true; sync -f {}",
                    gone.display(),
                    gone.display()
                ),
            ],
        );
        fs::remove_file(gone).unwrap();
    }
    let before = digest(&volume);
    run("qemu-io", &["-f", "vpc", "-c", &format!("write -q -s {} 0 10M", volume.display()), arg(&image)]);
    let done = compact(dir.path(), &image, &["--verify"]);
    println!("{done:#}");
    assert!(number(&done, "/freed_bytes") >= 4 * MIB, "{done:#}");
    run("vhdiinfo", &[arg(&image)]);
    let seen = work.path().join("seen.raw");
    run("qemu-img", &["convert", "-f", "vpc", "-O", "raw", arg(&image), arg(&seen)]);
    assert_eq!(seen.metadata().unwrap().len(), 10 * MIB);
    run("e2fsck", &["-fn", arg(&seen)]);
    assert_eq!(digest(&seen), before);
}

#[test]
fn a_vhdx_of_hyper_v_stays_valid() {
    let dir = scratch();
    let Some(packed) = real_image("hv-fixed.vhdx", dir.path()) else { return };
    // The collection's tools leave holes where a fixed disk has none.
    let image = dir.path().join("full.vhdx");
    run("cp", &["--sparse=never", arg(&packed), arg(&image)]);
    fs::remove_file(packed).unwrap();
    let files_of = |image: &Path| {
        let view = scratch();
        let seen = view.path().join("seen.raw");
        run("qemu-img", &["convert", "-f", "vhdx", "-O", "raw", arg(image), arg(&seen)]);
        let bytes = fs::read(&seen).unwrap();
        let sector = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize * 512;
        let volume = view.path().join("volume");
        fs::write(&volume, &bytes[sector(0x1c6)..][..sector(0x1ca)]).unwrap();
        run("ntfsfix", &["-n", arg(&volume)]);
        testkit::mounted::Mounted::ntfs(&volume, "ro").tree()
    };
    let before = files_of(&image);
    let done = compact(dir.path(), &image, &["--verify"]);
    println!("{done:#}");
    assert!(number(&done, "/freed_bytes") >= MIB, "{done:#}");
    files_of(&image).assert_same(&before, "the guest's files");
    run("qemu-img", &["check", "-q", "-f", "vhdx", arg(&image)]);
    succeed(&["info", arg(&image)]);
}

/// Bytes that were read so far of the device that `folder` is mounted from, as the kernel counts them.
fn device_read_bytes(folder: &Path) -> u64 {
    let source = run("findmnt", &["-n", "-o", "SOURCE", arg(folder)]);
    let name = Path::new(source.trim()).file_name().unwrap().to_str().unwrap().to_owned();
    let stat = fs::read_to_string(format!("/sys/class/block/{name}/stat")).unwrap();
    // `Documentation/admin-guide/iostats.rst`: the third field counts sectors of 512 bytes.
    stat.split_whitespace().nth(2).unwrap().parse::<u64>().unwrap() * 512
}

/// Files as they are on a system's disk: small ones, some of them as long as swap files, others larger, in many folders.
const SYSTEM: &str = "
import os, sys
data = os.urandom(1 << 20)
for number in range(1800):
    folder = f'{sys.argv[1]}/{number % 6}/{number // 30}'
    os.makedirs(folder, exist_ok=True)
    size = 40960 + number % 3 * 4096 if number % 6 == 0 else number * 7919 % 50000
    with open(f'{folder}/file {number}.dat', 'wb') as file:
        file.write(data[number * 61:][:size])
for number in range(0, 1800, 7):
    os.remove(f'{sys.argv[1]}/{number % 6}/{number // 30}/file {number}.dat')
";

#[test]
fn of_a_raw_disk_little_is_read() {
    let work = scratch();
    let volume = work.path().join("volume");
    make_ext4(&volume, 160 * MIB, &[]);
    {
        let mounted = testkit::ext_volume::Mounted::new(&volume, "rw");
        run("python3", &["-c", SYSTEM, arg(&mounted.dir())]);
    }
    let digest = |volume: &Path| {
        testkit::ext_volume::tree_digest(&testkit::ext_volume::Mounted::new(volume, "ro,noload").dir())
    };
    let before = digest(&volume);
    let host = testkit::HostMount::new("ext4", 320 * MIB);
    let disk = host.path().join("disk.raw");
    let compact = || {
        run("cp", &["--sparse=never", arg(&volume), arg(&disk)]);
        // Nothing of it stays in memory.
        run(
            "dd",
            &[
                &format!("of={}", arg(&disk)),
                "oflag=nocache",
                "conv=notrunc,fdatasync",
                "count=0",
                "status=none",
            ],
        );
        let read_before = device_read_bytes(host.path());
        let done = document("leandisk.compact/1", &["compact", arg(&disk)]);
        (device_read_bytes(host.path()) - read_before, done)
    };
    let (mut read, mut done) = compact();
    let used = number(&done, "/volumes/0/used_bytes");
    // 1500 inodes of 256 bytes are read at least, and what the host has to say of its file.
    let bounds = 1500 * 256 + 1..=used / 50;
    // What other programs read of the device counts as well, and some look at all devices.
    for _ in 0..3 {
        println!("{read} bytes read of {used}");
        if bounds.contains(&read) {
            break;
        }
        (read, done) = compact();
    }
    assert!(bounds.contains(&read), "{read} bytes read of {used}");
    assert!(number(&done, "/freed_bytes") > 50 * MIB, "{done:#}");
    run("e2fsck", &["-fn", arg(&disk)]);
    run("cp", &[arg(&disk), arg(&volume)]);
    drop(host);
    assert_eq!(digest(&volume), before);
}

/// Whatever the moment, the files are there, and the image is whole: leaks are the worst. How long a run takes changes with what else the
/// machine does, so moments are tried until some were hit.
#[test]
fn killed_at_any_moment_the_disk_is_whole() {
    let seed = std::process::id();
    println!("seed {seed}");
    let guests = Guest::both();
    let (mut died, mut pending) = (0, 0);
    let names = [
        "plain.qcow2",
        "dynamic.vhdx",
        "small.qcow2",
        "dynamic.vhd",
        "sparse.vmdk",
        "dynamic.vdi",
        "tiny.qcow2",
        "disk.raw",
        "small.qcow2",
        "dynamic.vhdx",
    ];
    // Half of the kinds each time, which half by the seed.
    let first = if seed.is_multiple_of(2) { 0 } else { names.len() / 2 };
    for round in first..first + 10 * names.len() {
        if round >= first + names.len() / 2 && died >= 2 {
            break;
        }
        let name = names[round % names.len()];
        let kind = kind_named(name);
        let guest = guests[round % 2];
        let dir = scratch();
        let original = kind.make(&guest.disk, dir.path());
        let image = dir.path().join(format!("copy-{name}"));
        let copy = || run("cp", &["--sparse=always", arg(&original), arg(&image)]);
        copy();
        let started = Instant::now();
        succeed(&["compact", arg(&image)]);
        let whole = started.elapsed();
        copy();
        // It writes in the last part of its time.
        let share = 40
            + (seed.wrapping_mul(2_654_435_761).wrapping_add(u32::try_from(round).unwrap() * 40_503) >> 16)
                % 60;
        let mut child = leandisk()
            .args(["compact", arg(&image)])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        sleep(whole * share / 100);
        child.kill().unwrap();
        died += u32::from(!child.wait().unwrap().success());
        let view = scratch();
        let seen = view.path().join("seen.raw");
        // As other programs see it: QEMU repairs leaks, and replays a log as a hypervisor does.
        let theirs = view.path().join(name);
        run("cp", &["--sparse=always", arg(&image), arg(&theirs)]);
        if kind.qemu_format == "qcow2" {
            let output =
                Command::new("qemu-img").args(["check", "-f", "qcow2", arg(&theirs)]).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(matches!(output.status.code(), Some(0 | 3)), "{name}: leaks are the worst: {text}");
        }
        if ["qcow2", "vhdx"].contains(&kind.qemu_format) {
            run("qemu-img", &["check", "-q", "-r", "all", "-f", kind.qemu_format, arg(&theirs)]);
        }
        kind.to_raw(&theirs, &seen);
        guest.check(&seen);
        // Here the change is finished, and what is left is done.
        let is_pending = names_in(dir.path()).len() > 2;
        if is_pending {
            assert!(fail(3, &["compact", arg(&image)]).contains("recover"));
        }
        succeed(&["recover", arg(&image)]);
        succeed(&["compact", arg(&image)]);
        common::assert_only(dir.path(), &[name, &format!("copy-{name}")]);
        // Not even leaks are left.
        kind.check(&image);
        kind.to_raw(&image, &seen);
        guest.check(&seen);
        pending += u32::from(is_pending);
    }
    println!("{pending} left something to recover");
    println!("{died} were hit");
    assert!(died >= 2, "only {died} were hit");
}
