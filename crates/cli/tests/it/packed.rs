//! `leandisk copy --layout packed`: in the target every file is as it was, in one piece, and free space is together;
//! the source is not touched.

use std::fs;
use std::path::Path;

use crate::common::{
    TARGETS, Target, Untouched, arg, assert_only, assert_same_bytes, document, kill_and_resume, number,
    succeed,
};
use crate::defrag_common;
use crate::defrag_common::{
    Fixture, Inside, Kind, QCOW2, RAW, VDI, VHD, VHDX, VMDK, ext4, filefrag, gpt, mbr, ntfs, ntfs_runs,
    volume, write_into,
};
use serde_json::Value;
use testkit::{run, scratch};

const SCHEMA: &str = "leandisk.copy/1";

fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|target| target.name == name).unwrap()
}

/// Plans, copies and has the target judged; answers what was said of the copy.
fn check(fixture: &Fixture, kind: Kind, target: &Target) -> Value {
    let what = format!("{} from {} to {}", fixture.name, kind.name, target.name);
    let (from, to) = (scratch(), scratch());
    let source = kind.make(&fixture.raw, from.path());
    let before = Untouched::all_in(from.path());
    let path = to.path().join(target.name);
    let args = [&["copy", arg(&source), arg(&path), "--layout", "packed", "--verify"], target.args].concat();

    let planned = document(SCHEMA, &[&args[..], &["--dry-run"]].concat());
    assert_only(to.path(), &[]);
    let done = document(SCHEMA, &args);
    assert_only(to.path(), &[target.name]);
    before.check(from.path());
    if target.checkable {
        run("qemu-img", &["check", "-q", "-f", target.qemu_format, arg(&path)]);
    }
    let raw = from.path().join("guest-view");
    target.to_raw(&path, &raw);
    fixture.assert_same_files(&raw);
    for (index, part) in (1u64..).zip(&fixture.parts) {
        let layout = &volume(&done, index)["layout"];
        assert_eq!(layout, &volume(&planned, index)["layout"], "{what}: planned and done");
        assert_eq!(layout["is"], "packed", "{what}: {layout:#}");
        let alone = from.path().join("alone");
        fixture.extract(part, &raw, &alone);
        judge(&alone, part.inside, layout, &what);
        fs::remove_file(alone).unwrap();
    }
    done
}

/// What the document says of a volume is what `analyze` and other programs find.
fn judge(volume: &Path, inside: Inside, layout: &Value, what: &str) {
    assert!(number(layout, "/before/fragmented_files") > 5, "{what}: {layout:#}");
    assert!(number(layout, "/moved_bytes") > 0, "{what}");
    let left = number(layout, "/left");
    assert!(number(layout, "/after/fragmented_files") <= left, "{what}: {layout:#}");
    let found = document("leandisk.analyze/1", &["analyze", "-f", "raw", arg(volume)]);
    let found = defrag_common::volume(&found, 1);
    for figure in ["fragments", "fragmented_files", "free_extents", "largest_free_extent_bytes"] {
        let figure = format!("/{figure}");
        assert_eq!(number(found, &figure), number(layout, &format!("/after{figure}")), "{what}: {figure}");
    }
    assert!(
        number(layout, "/after/free_extents") < number(layout, "/before/free_extents"),
        "{what}: {layout:#}"
    );
    match inside {
        Inside::Ext4 => {
            let in_pieces: Vec<_> = filefrag(volume).into_iter().filter(|(_, runs)| *runs > 1).collect();
            assert!(in_pieces.len() as u64 <= left, "{what}: filefrag: {in_pieces:?}");
            // The tables of 6 block groups part what is free, and so do a few blocks of maps that stay.
            let free_extents = free_extents_by_e2freefrag(volume);
            assert!(free_extents <= 12 + left, "{what}: {free_extents} free extents");
        }
        Inside::Ntfs => {
            let paths = ["/pieces", "/long0", "/turn3", "/turns"];
            let in_pieces = paths.iter().filter(|path| ntfs_runs(volume, path) > 1).count() as u64;
            assert!(in_pieces <= left, "{what}: {in_pieces} files by ntfscluster");
            assert!(number(layout, "/after/free_extents") <= 6 + left, "{what}: {layout:#}");
        }
    }
}

fn free_extents_by_e2freefrag(volume: &Path) -> u64 {
    let said = run("e2freefrag", &[arg(volume)]);
    let line =
        said.lines().find(|line| line.starts_with("Num. free extent:")).expect("a count of free extents");
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn ntfs_from_raw_to_qcow2() {
    let done = check(&ntfs(), RAW, target("plain.qcow2"));
    println!("{done:#}");
}

#[test]
fn ntfs_from_vhdx_to_vhdx() {
    check(&ntfs(), VHDX, target("dynamic.vhdx"));
}

#[test]
fn ntfs_from_vhd_to_stream_vmdk() {
    check(&ntfs(), VHD, target("stream.vmdk"));
}

#[test]
fn ext4_from_qcow2_to_raw() {
    let done = check(&ext4(), QCOW2, target("target.raw"));
    println!("{done:#}");
}

#[test]
fn ext4_from_raw_to_vhd() {
    check(&ext4(), RAW, target("dynamic.vhd"));
}

#[test]
fn two_volumes_from_vmdk_to_vdi() {
    check(&mbr(), VMDK, target("dynamic.vdi"));
}

#[test]
fn two_volumes_from_vdi_to_compressed_qcow2() {
    check(&gpt(), VDI, target("zstd.qcow2"));
}

/// What is packed is used, and no more of it than without packing; without it `layout` says nothing.
#[test]
fn packing_reads_no_more() {
    let dir = scratch();
    let disk = gpt().raw;
    let copy = |name: &str, more: &[&str]| {
        let path = dir.path().join(name);
        document(SCHEMA, &[&["copy", "-f", "raw", arg(&disk), arg(&path)], more].concat())
    };
    let (kept, packed) = (copy("kept.qcow2", &[]), copy("packed.qcow2", &["--layout", "packed"]));
    assert!(kept["volumes"].as_array().unwrap().iter().all(|volume| volume["layout"].is_null()), "{kept:#}");
    let (kept, packed) = (number(&kept, "/read_bytes"), number(&packed, "/read_bytes"));
    assert!(packed <= kept + kept / 50, "{packed} bytes read instead of {kept}");
    let said =
        succeed(&["copy", "-f", "raw", arg(&disk), arg(&dir.path().join("a.vdi")), "--layout", "packed"]);
    assert!(said.contains("packed, moving") && said.contains("fragmented files"), "{said}");
}

/// A volume that is not understood goes over as it is, with the reason; the other one is packed all the same.
#[test]
fn what_cannot_be_packed_is_copied_as_it_is() {
    let dir = scratch();
    let fixture = gpt();
    let disk = dir.path().join("disk.raw");
    let alone = dir.path().join("alone");
    run("cp", &["--sparse=always", arg(&ntfs().raw), arg(&alone)]);
    run("ntfsfix", &[arg(&alone)]);
    let fat = dir.path().join("fat");
    run("truncate", &["-s", &ntfs().parts[0].len_bytes.to_string(), arg(&fat)]);
    run("mkfs.vfat", &[arg(&fat)]);
    for (contents, words) in [(&alone, "dirty"), (&fat, "fat")] {
        run("cp", &["--sparse=always", arg(&fixture.raw), arg(&disk)]);
        let part = &fixture.parts[0];
        run(
            "fallocate",
            &["-p", "-o", &part.start_bytes.to_string(), "-l", &part.len_bytes.to_string(), arg(&disk)],
        );
        write_into(contents, &disk, part.start_bytes);
        let target = dir.path().join("target.raw");
        let done = document(SCHEMA, &["copy", arg(&disk), arg(&target), "--layout", "packed", "--verify"]);
        let layout = &volume(&done, 1)["layout"];
        assert_eq!(layout["is"], "kept", "{layout:#}");
        assert!(layout["reason"].as_str().unwrap().contains(words), "{layout:#}");
        assert_eq!(volume(&done, 2)["layout"]["is"], "packed", "{done:#}");
        let end = (part.start_bytes + part.len_bytes).to_string();
        run("cmp", &["-n", &end, arg(&disk), arg(&target)]);
        let second = dir.path().join("second");
        fixture.extract(&fixture.parts[1], &target, &second);
        judge(&second, Inside::Ext4, &volume(&done, 2)["layout"], words);
        fs::remove_file(target).unwrap();
    }
}

#[test]
fn a_packed_volume_can_be_defragmented_and_packed_again() {
    let dir = scratch();
    for fixture in [ntfs(), ext4()] {
        let target = dir.path().join("target.raw");
        succeed(&["copy", "-f", "raw", arg(&fixture.raw), arg(&target), "--layout", "packed"]);
        let again = dir.path().join("again.raw");
        succeed(&["copy", arg(&target), arg(&again), "--layout", "packed"]);
        fixture.assert_same_files(&again);
        let before = Untouched::all_in(dir.path());
        let done = document("leandisk.defrag/1", &["defrag", arg(&target)]);
        assert_eq!(number(&done, "/volumes/0/moved_bytes"), 0, "{done:#}");
        before.check(dir.path());
        fs::remove_file(target).unwrap();
        fs::remove_file(again).unwrap();
    }
}

#[test]
fn killed_and_resumed_is_as_never_killed() {
    let source = gpt().raw;
    let copy = |target: &Path| {
        let args = ["copy", "-f", "raw", arg(&source), arg(target), "--layout", "packed"];
        args.map(str::to_owned).to_vec()
    };
    let targets = ["plain.qcow2", "dynamic.vhdx", "zlib.qcow2", "zstd.qcow2"].map(target);
    let judge = |target: &Target, path: &Path| {
        let (whole, resumed) = (path.with_file_name("whole.raw"), path.with_file_name("resumed.raw"));
        succeed(&["copy", "-f", "raw", arg(&source), arg(&whole), "--layout", "packed"]);
        target.to_raw(path, &resumed);
        assert_same_bytes(&whole, &resumed);
    };
    kill_and_resume(targets, copy, &["--threads", "1"], judge, 1);
}
