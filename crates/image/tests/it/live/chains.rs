//! What lies below, is compressed, or is shared with snapshots is copied before it is changed.

use std::path::{Path, PathBuf};

use block::LiveDisk;
use extent::{Offset, Span};
use sim::Random;
use testkit::{run, scratch};

use crate::live::files::{Kind, check_by_qemu, contents_by_qemu, kind_named, open, text, try_open};
use crate::live::model::{any_step, carry_out};

const SIZE: u64 = 6 << 20;

fn qemu_io(path: &Path, commands: &[&str]) {
    let mut args = vec!["-f", "qcow2"];
    args.extend(commands.iter().flat_map(|command| ["-c", *command]));
    args.push(text(path));
    run("qemu-io", &args);
}

fn base(dir: &Path) -> PathBuf {
    let path = dir.join("base.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", text(&path), "5M"]);
    qemu_io(&path, &["write -P 17 0 3M", "write -P 34 3500k 700k", "write -z 1M 128k"]);
    path
}

fn overlay(dir: &Path, name: &str, options: &str) -> PathBuf {
    let path = dir.join(name);
    let options =
        if options.is_empty() { "backing_fmt=qcow2".into() } else { format!("backing_fmt=qcow2,{options}") };
    let size = SIZE.to_string();
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "base.qcow2", "-o", &options, text(&path), &size]);
    path
}

/// Random writes and zeroes on top of what the disk reads as.
fn check_on_top(kind: Kind, path: &Path, seed: u64) {
    let mut expected = contents_by_qemu(kind, path);
    let disk = open(path);
    let mut random = Random::new(seed);
    for number in 0..80 {
        let step = any_step(&mut random, disk.len_bytes());
        carry_out(&*disk, &step).unwrap();
        let mut found = vec![0; expected.len()];
        if let crate::live::model::Step::Discard(_) = step {
            // Zeros or the old contents: see that it is either.
            disk.read_at(Offset::ZERO, &mut found).unwrap();
            assert!(found.iter().zip(&expected).all(|(found, old)| *found == *old || *found == 0));
            expected = found;
            continue;
        }
        let mut model = crate::live::model::Model { bytes: expected, is_open: vec![false; found.len()] };
        model.carry_out(&step);
        expected = model.bytes;
        if number % 8 == 7 {
            disk.read_at(Offset::ZERO, &mut found).unwrap();
            assert!(found == expected, "{} seed {seed} step {number}: {step:?}", kind.name);
        }
    }
    disk.close().unwrap();
    drop(disk);
    check_by_qemu(kind, path, true);
    assert!(contents_by_qemu(kind, path) == expected, "{} seed {seed}: what QEMU reads", kind.name);
}

#[test]
fn parents_are_read_and_never_written() {
    for (name, options) in [("a.qcow2", ""), ("b.qcow2", "cluster_size=4k"), ("c.qcow2", "compat=0.10")] {
        let dir = scratch();
        let base = base(dir.path());
        let before = std::fs::read(&base).unwrap();
        let path = overlay(dir.path(), name, options);
        check_on_top(kind_named("qcow2"), &path, 5);
        assert!(std::fs::read(&base).unwrap() == before, "the parent is as it was");
    }
}

#[test]
fn compressed_clusters_are_copied() {
    let dir = scratch();
    let base = base(dir.path());
    for options in ["compression_type=zlib", "compression_type=zstd,cluster_size=16k"] {
        let path = dir.path().join("compressed.qcow2");
        run("qemu-img", &["convert", "-c", "-O", "qcow2", "-o", options, text(&base), text(&path)]);
        check_on_top(kind_named("qcow2"), &path, 6);
    }
}

#[test]
fn snapshots_stay_as_they_were() {
    let dir = scratch();
    let path = base(dir.path());
    let before = contents_by_qemu(kind_named("qcow2"), &path);
    run("qemu-img", &["snapshot", "-c", "then", text(&path)]);
    qemu_io(&path, &["write -P 51 2M 512k"]);
    check_on_top(kind_named("qcow2"), &path, 8);
    let then = dir.path().join("then.raw");
    run("qemu-img", &["convert", "-l", "then", "-O", "raw", text(&path), text(&then)]);
    assert!(std::fs::read(then).unwrap() == before, "the snapshot is as it was");
    run("qemu-img", &["snapshot", "-d", "then", text(&path)]);
    check_by_qemu(kind_named("qcow2"), &path, true);
}

#[test]
fn what_cannot_be_kept_right_is_refused_and_left_alone() {
    let dir = scratch();
    let path = base(dir.path());
    run("qemu-img", &["bitmap", "--add", text(&path), "changes"]);
    let mut bytes = std::fs::read(&path).unwrap();
    // The type of the bitmap, in the first entry of the directory, which the extension names.
    let extension = bytes.windows(4).position(|word| word == [0x23, 0x85, 0x28, 0x75]).unwrap();
    let directory = u64::from_be_bytes(bytes[extension + 24..extension + 32].try_into().unwrap());
    bytes[usize::try_from(directory).unwrap() + 16] = 7;
    std::fs::write(&path, &bytes).unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = try_open(&path).err().unwrap();
    assert_eq!(error.kind(), block::ErrorKind::Unsupported);
    assert!(error.to_string().contains("bitmap"), "{error}");
    assert!(std::fs::read(&path).unwrap() == before);
    let dirty = dir.path().join("dirty.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", text(&dirty), "1M"]);
    let mut bytes = std::fs::read(&dirty).unwrap();
    bytes[79] |= 1;
    std::fs::write(&dirty, &bytes).unwrap();
    assert!(try_open(&dirty).err().unwrap().to_string().contains("dirty"));
    bytes[79] &= !1;
    // The cluster of the first refcount block is not counted.
    let table = usize::try_from(u64::from_be_bytes(bytes[48..56].try_into().unwrap())).unwrap();
    let block = usize::try_from(u64::from_be_bytes(bytes[table..table + 8].try_into().unwrap())).unwrap();
    bytes[block + 2 * (block / 65_536) + 1] = 0;
    std::fs::write(&dirty, &bytes).unwrap();
    assert!(try_open(&dirty).err().unwrap().to_string().contains("refcount"));
}

/// A child on top of a smaller parent, in units that reach past the parent's end.
#[test]
fn past_the_parents_end_there_are_zeros() {
    let dir = scratch();
    base(dir.path());
    let path = overlay(dir.path(), "child.qcow2", "cluster_size=2M");
    let disk: Box<dyn LiveDisk> = open(&path);
    disk.write_at(Offset::new((5 << 20) - 512), &[9; 1024]).unwrap();
    disk.zero(Span::new(Offset::new(0), 2 << 20), true).unwrap();
    disk.close().unwrap();
    let found = contents_by_qemu(kind_named("qcow2"), &path);
    assert!(found[..2 << 20].iter().all(|byte| *byte == 0));
    assert!(found[(5 << 20) - 512..(5 << 20) + 512].iter().all(|byte| *byte == 9));
    assert!(found[(5 << 20) + 512..].iter().all(|byte| *byte == 0));
}
