//! Changes in place against the programs that own the formats: contents change where they were written and nowhere else,
//! and what is refused leaves every byte as it was.

use crate::vhd_shared;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{EditDisk, Error, ErrorKind, HostFile, ReadAt, Result};
use extent::{Extent, Offset, Span, Virtual, VirtualSpan};
use image::{Backing, Chain, Edit, EditTarget, Format, OpenOptions, Purpose, Resolver};
use os::EditFile;
use sim::Random;
use testkit::{TestFile, real_image, run, scratch};

mod refused;
mod relatives;
mod vhdx;

const MIB: u64 = 1 << 20;
const SEED: u128 = 0x0123_4567_89ab_cdef_1122_3344_5566_7788;

/// Tests that start programs run one after the other: a process that is just starting has this one's files open, too.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The folder of the disk, and what lies in it.
struct Folder;

impl Resolver for Folder {
    fn open(&self, from: &dyn HostFile, name: &str, _purpose: Purpose) -> Result<Arc<dyn HostFile>> {
        let path = from.path().parent().unwrap().join(name);
        if !path.is_file() {
            return Err(Error::refused(format!("refers to '{name}', which does not exist")));
        }
        Ok(TestFile::open(path))
    }

    fn open_sibling(&self, from: &dyn HostFile, name: &std::ffi::OsStr) -> Result<Arc<dyn HostFile>> {
        let path = from.path().parent().unwrap().join(name);
        if path.is_file() { Ok(TestFile::open(path)) } else { Err(Error::refused("is no file")) }
    }

    fn siblings(&self, from: &dyn HostFile) -> Result<Vec<std::ffi::OsString>> {
        let entries = fs::read_dir(from.path().parent().unwrap()).unwrap();
        Ok(entries.map(|entry| entry.unwrap().file_name()).collect())
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn chain(path: &Path) -> Chain {
    Chain::open(TestFile::open(path), OpenOptions::default(), &Folder).unwrap()
}

fn open_target(file: &dyn HostFile) -> Result<Arc<dyn EditTarget>> {
    Ok(Arc::new(EditFile::open(file.name())?))
}

fn open(path: &Path) -> Result<Edit> {
    Edit::open(&chain(path), &Folder, &mut open_target)
}

/// The contents of all files of a folder, by name.
fn folder_contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(Result::<_, std::io::Error>::unwrap);
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    files.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

fn range(span: VirtualSpan) -> std::ops::Range<usize> {
    usize::try_from(span.start().get()).unwrap()..usize::try_from(span.end().get()).unwrap()
}

fn noise(random: &mut Random, len: usize) -> Vec<u8> {
    std::iter::repeat_with(|| random.next_u64().to_le_bytes()).flatten().take(len).collect()
}

/// The whole disk as QEMU reads it.
fn by_qemu(path: &Path, format: &str) -> Vec<u8> {
    let raw = path.with_extension("by-qemu");
    run("qemu-img", &["convert", "-t", "unsafe", "-f", format, "-O", "raw", text(path), text(&raw)]);
    let contents = fs::read(&raw).unwrap();
    fs::remove_file(raw).unwrap();
    contents
}

/// Extents cover `span` exactly, in order, and neighbours differ.
fn check_cover(extents: &[Extent<Virtual, Backing>], span: VirtualSpan) {
    let mut at = span.start();
    for extent in extents {
        assert!(extent.span.start() == at && !extent.span.is_empty(), "{extents:?}");
        at = extent.span.end();
    }
    assert_eq!(at, span.end());
    assert!(extents.windows(2).all(|pair| pair[0].state != pair[1].state), "{extents:?}");
}

/// Overwrites random places, some of which cannot be, and checks after each that exactly what was promised happened.
fn overwrite(edit: &Edit, model: &mut [u8], seed: u64, count: usize) {
    let mut random = Random::new(seed);
    let all = image::backing(edit.chain(), Span::from_zero(edit.len_bytes())).unwrap();
    check_cover(&all, Span::from_zero(edit.len_bytes()));
    edit.begin(SEED ^ u128::from(seed)).unwrap();
    for _ in 0..count {
        let len = [1, 512, 4096, 70_000, MIB][usize::try_from(random.below(5)).unwrap()];
        let len = len.min(edit.len_bytes());
        let at = random.below(edit.len_bytes() - len + 1);
        let at = if random.coin() { at / 4096 * 4096 } else { at };
        let span = Span::new(Offset::new(at), len);
        let backing = image::backing(edit.chain(), span).unwrap();
        check_cover(&backing, span);
        let mut bytes = noise(&mut random, usize::try_from(len).unwrap());
        let result = if random.below(4) == 0 {
            bytes.fill(0);
            edit.write_zeros(span)
        } else {
            edit.write_at(span.start(), &bytes)
        };
        if backing.iter().all(|extent| extent.state.is_writable()) {
            result.unwrap();
            model[range(span)].copy_from_slice(&bytes);
        } else {
            assert_eq!(result.err().unwrap().kind(), ErrorKind::Refused);
        }
        let mut found = vec![0; bytes.len()];
        edit.read_at(span.start(), &mut found).unwrap();
        assert!(found == model[range(span)], "{span:?}");
    }
    edit.flush().unwrap();
    let mut found = vec![0; model.len()];
    edit.read_stored(Offset::ZERO, &mut found).unwrap();
    assert!(found == model, "what is stored");
}

/// The bytes of a disk in each state.
fn totals(edit: &Edit) -> [u64; 4] {
    let all = image::backing(edit.chain(), Span::from_zero(edit.len_bytes())).unwrap();
    [Backing::Allocated, Backing::Unallocated, Backing::Absent, Backing::Fixed].map(|state| {
        all.iter().filter(|extent| extent.state == state).map(|extent| extent.span.len_bytes()).sum()
    })
}

/// Data, zeros of both kinds and discarded places on a disk of 24 MiB.
const PATTERN: [&str; 9] = [
    "write -P 0x11 0 3M",
    "write -P 0x22 5234k 7k",
    "write -P 0x33 6M 4M",
    "write -z 7M 512k",
    "write -z -u 8M 512k",
    "discard 9M 256k",
    "write -P 0x44 12M 64k",
    "write -P 0x55 20M 1M",
    "write -P 0x66 25161728 4096",
];

fn make(dir: &Path, name: &str, format: &str, options: &str) -> PathBuf {
    let path = dir.join(name);
    let mut args = vec!["create", "-q", "-f", format];
    if !options.is_empty() {
        args.extend(["-o", options]);
    }
    args.extend([text(&path), "24M"]);
    run("qemu-img", &args);
    let mut args = vec!["-t", "unsafe", "-f", format, "-d", "unmap"];
    // What a format cannot do is said and passed over: zeros without storage, mostly.
    args.extend(PATTERN.iter().flat_map(|command| ["-c", *command]));
    args.push(text(&path));
    std::process::Command::new("qemu-io").args(args).output().unwrap();
    path
}

/// What is known of a disk of [`PATTERN`]: whether much of it has no place, and whether `qemu-img check` knows its format.
struct Expected {
    is_thin: bool,
    checks: bool,
}

fn check_edits(dir: &Path, name: &str, format: &str, options: &str, expected: &Expected) {
    println!("{format} {options}");
    let path = make(dir, name, format, options);
    let mut model = by_qemu(&path, format);
    let sizes_before: Vec<_> =
        folder_contents(dir).into_iter().map(|(name, bytes)| (name, bytes.len())).collect();
    let edit = open(&path).unwrap();
    let [allocated, unallocated, absent, _] = totals(&edit);
    assert!(allocated >= 7_000_000, "what was written can be overwritten: {allocated}");
    assert_eq!(expected.is_thin, absent > 4 * MIB, "{absent} absent, {unallocated} unallocated");
    overwrite(&edit, &mut model, 7, 300);
    drop(edit);
    assert!(by_qemu(&path, format) == model, "QEMU reads what was written");
    if expected.checks {
        run("qemu-img", &["check", "-f", format, text(&path)]);
    }
    let sizes: Vec<_> = folder_contents(dir).into_iter().map(|(name, bytes)| (name, bytes.len())).collect();
    assert_eq!(sizes, sizes_before, "no file grew or shrank");
    // A disk that was changed is changed again, and by QEMU.
    overwrite(&open(&path).unwrap(), &mut model, 8, 50);
    run("qemu-io", &["-t", "unsafe", "-f", format, "-c", "write -P 0x77 11M 2M", text(&path)]);
    model[11 << 20..13 << 20].fill(0x77);
    assert!(by_qemu(&path, format) == model, "QEMU goes on with it");
    if expected.checks {
        run("qemu-img", &["check", "-f", format, text(&path)]);
    }
    for (name, _) in folder_contents(dir) {
        fs::remove_file(dir.join(name)).unwrap();
    }
}

#[test]
fn qcow2_changes_in_place() {
    let _alone = alone();
    let dir = scratch();
    let thin = Expected { is_thin: true, checks: true };
    for options in [
        "compat=1.1",
        "compat=0.10",
        "cluster_size=512",
        "cluster_size=4k,refcount_bits=1",
        "cluster_size=2M",
        "extended_l2=on",
        "lazy_refcounts=on",
        "data_file=data.raw,data_file_raw=off",
    ] {
        let options = options.replace("data.raw", text(&dir.path().join("data.raw")));
        // An absolute name is as good as a relative one to the resolver of this test.
        check_edits(dir.path(), "disk.qcow2", "qcow2", &options, &thin);
    }
    let full = Expected { is_thin: false, checks: true };
    let options = format!("data_file={},data_file_raw=on", text(&dir.path().join("data.raw")));
    check_edits(dir.path(), "disk.qcow2", "qcow2", &options, &full);
    check_edits(dir.path(), "disk.qcow2", "qcow2", "preallocation=metadata", &full);
}

#[test]
fn raw_vdi_vhd_and_vhdx_change_in_place() {
    let _alone = alone();
    let dir = scratch();
    for (name, format, options, is_thin, checks) in [
        ("disk.raw", "raw", "", false, false),
        ("disk.img", "raw", "", false, false),
        ("disk.vdi", "vdi", "", true, true),
        ("disk.vdi", "vdi", "static=on", false, true),
        ("disk.vhd", "vpc", "subformat=dynamic,force_size=on", true, false),
        ("disk.vhd", "vpc", "subformat=fixed,force_size=on", false, false),
        ("disk.vhdx", "vhdx", "subformat=dynamic,block_size=1M", true, true),
        // QEMU marks the blocks of a fixed one as zeros until they are written.
        ("disk.vhdx", "vhdx", "subformat=fixed,block_size=2M", true, true),
    ] {
        check_edits(dir.path(), name, format, options, &Expected { is_thin, checks });
    }
}

#[test]
fn vmdk_changes_in_place() {
    let _alone = alone();
    let dir = scratch();
    for (subformat, is_thin, checks) in [
        ("monolithicSparse", true, true),
        ("monolithicFlat", false, false),
        ("twoGbMaxExtentSparse", true, true),
        ("twoGbMaxExtentFlat", false, false),
    ] {
        let options = format!("subformat={subformat}");
        check_edits(dir.path(), "disk.vmdk", "vmdk", &options, &Expected { is_thin, checks });
    }
}

#[test]
fn a_raw_file_s_holes_are_told_and_can_be_filled() {
    let dir = scratch();
    let path = dir.path().join("disk.raw");
    fs::File::create(&path).unwrap().set_len(8 * MIB).unwrap();
    let edit = open(&path).unwrap();
    assert_eq!(totals(&edit), [0, 8 * MIB, 0, 0]);
    edit.begin(SEED).unwrap();
    edit.write_at(Offset::new(MIB), &[1; 65_536]).unwrap();
    assert_eq!(totals(&edit), [65_536, 8 * MIB - 65_536, 0, 0]);
    edit.write_zeros(Span::new(Offset::new(MIB), 65_536)).unwrap();
    assert_eq!(totals(&edit), [0, 8 * MIB, 0, 0], "what is made zeros goes back to the host");
    let past_the_end = Span::new(Offset::new(8 * MIB - 1), 2);
    assert!(edit.write_zeros(past_the_end).is_err());
    assert!(edit.write_at(Offset::new(8 * MIB - 1), &[1, 1]).is_err());
    assert!(image::backing(edit.chain(), Span::new(Offset::new(8 * MIB), 1)).is_err());
}

#[test]
fn blocks_of_the_host_are_not_those_of_a_dynamic_vhd() {
    let _alone = alone();
    let dir = scratch();
    let formats =
        [("raw", ""), ("qcow2", ""), ("vhdx", "subformat=dynamic"), ("vpc", "subformat=fixed,force_size")];
    for (format, options) in formats {
        let disk = chain(&make(dir.path(), &format!("disk.{format}"), format, options));
        assert!(image::keeps_host_blocks(&disk, Span::from_zero(disk.len_bytes())).unwrap(), "{format}");
    }
    let disk = chain(&make(dir.path(), "dynamic.vhd", "vpc", "subformat=dynamic,force_size"));
    assert!(!image::keeps_host_blocks(&disk, Span::from_zero(disk.len_bytes())).unwrap());
}

#[test]
fn compressed_clusters_stay_as_they_are() {
    let _alone = alone();
    let dir = scratch();
    let raw = dir.path().join("source");
    let mut model = vec![3; 4 << 20];
    fs::write(&raw, &model).unwrap();
    let path = dir.path().join("disk.qcow2");
    run("qemu-img", &["convert", "-c", "-f", "raw", "-O", "qcow2", text(&raw), text(&path)]);
    run("qemu-io", &["-f", "qcow2", "-c", "write -P 9 1M 1M", text(&path)]);
    model[1 << 20..2 << 20].fill(9);
    let edit = open(&path).unwrap();
    assert_eq!(totals(&edit), [MIB, 0, 0, 3 * MIB]);
    overwrite(&edit, &mut model, 3, 200);
    drop(edit);
    assert!(by_qemu(&path, "qcow2") == model);
    run("qemu-img", &["check", "-f", "qcow2", text(&path)]);
}

#[test]
fn a_vhd_s_sectors_that_were_never_written_are_not_written_to() {
    let _alone = alone();
    let dir = scratch();
    let path = make(dir.path(), "disk.vhd", "vpc", "subformat=dynamic,force_size=on");
    let mut bytes = fs::read(&path).unwrap();
    let word =
        |at: usize| usize::try_from(u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())).unwrap();
    // Header at 512, its BAT's place in the lower half of the word at 16.
    let bat = word(512 + 20);
    let bitmap = word(bat) * 512;
    assert!(bytes[bitmap..bitmap + 512].iter().all(|byte| *byte == 0xff), "QEMU sets all of it");
    // Sectors 3 and 4 of the first block; of its second byte, sector 9.
    bytes[bitmap] = 0b1110_0111;
    bytes[bitmap + 1] = 0b1011_1111;
    fs::write(&path, &bytes).unwrap();
    let edit = open(&path).unwrap();
    edit.begin(SEED).unwrap();
    let states: Vec<_> = image::backing(edit.chain(), Span::from_zero(8192)).unwrap();
    let expected = [(0, true), (3, false), (5, true), (9, false), (10, true)];
    assert_eq!(states.len(), expected.len());
    for (extent, (sector, is_writable)) in states.iter().zip(expected) {
        assert_eq!((extent.span.start().get(), extent.state.is_writable()), (sector * 512, is_writable));
    }
    assert_eq!(edit.write_at(Offset::new(1024), &[1; 1024]).err().unwrap().kind(), ErrorKind::Refused);
    edit.write_at(Offset::new(1024), &[1; 512]).unwrap();
    edit.flush().unwrap();
    drop(edit);
    let expected = bitmap + 512 + 1024;
    bytes[expected..expected + 512].fill(1);
    assert!(fs::read(&path).unwrap() == bytes, "nothing else changed, the bitmap neither");
}

#[test]
fn others_see_that_the_contents_changed_and_nothing_more() {
    let _alone = alone();
    let dir = scratch();
    for (name, format, options, changed) in [
        ("disk.vdi", "vdi", "", Some(0x198..0x1a8)),
        ("disk.vmdk", "vmdk", "subformat=monolithicSparse", Some(512..1024)),
        ("disk.vhd", "vpc", "force_size=on", None),
        ("disk.qcow2", "qcow2", "", None),
        ("disk.raw", "raw", "", None),
    ] {
        let path = make(dir.path(), name, format, options);
        let before = fs::read(&path).unwrap();
        let id_before = chain(&path).facts().id.clone();
        let edit = open(&path).unwrap();
        edit.begin(SEED).unwrap();
        drop(edit);
        let after = fs::read(&path).unwrap();
        let differs = |at: &usize| before[*at] != after[*at];
        let changes: Vec<_> = (0..before.len()).filter(differs).collect();
        assert_eq!(before.len(), after.len());
        match changed {
            None => assert!(changes.is_empty(), "{format}"),
            Some(range) => {
                assert!(
                    !changes.is_empty() && changes.iter().all(|at| range.contains(at)),
                    "{format}: {changes:?}"
                );
            }
        }
        let id_after = chain(&path).facts().id.clone();
        assert_eq!(id_before != id_after, format == "vmdk", "{format}");
        if format == "vmdk" {
            let was_told =
                [&before, &after].map(|bytes| String::from_utf8_lossy(&bytes[512..1024]).into_owned());
            let [was, is] =
                was_told.map(|text| text.lines().find(|line| line.starts_with("CID=")).unwrap().to_owned());
            assert!(was != is && was.len() == is.len(), "{was} {is}");
            assert!(changes.len() <= 8);
        }
    }
}

#[test]
fn disks_of_other_programs_stay_theirs() {
    let _alone = alone();
    let dir = scratch();
    for (name, format) in [
        ("hv-fixed.vhdx", "vhdx"),
        ("hv-dynamic.vhd", "vpc"),
        ("basic.vdi", "vdi"),
        ("sf-twoGbMaxExtentSparse.vmdk", "vmdk"),
    ] {
        let Some(mut path) = real_image(name, dir.path()) else { continue };
        if let Some(own_name) = name.strip_prefix("sf-") {
            // The descriptor knows its extent by the name that it had.
            let extent = real_image("sf-twoGbMaxExtentSparse-s001.vmdk", dir.path()).unwrap();
            fs::rename(extent, dir.path().join("twoGbMaxExtentSparse-s001.vmdk")).unwrap();
            fs::rename(&path, dir.path().join(own_name)).unwrap();
            path = dir.path().join(own_name);
        }
        println!("{name}");
        let before = by_qemu(&path, format);
        let edit = open(&path).unwrap();
        let [allocated, unallocated, ..] = totals(&edit);
        assert!(allocated + unallocated > 0);
        edit.begin(SEED).unwrap();
        // The same again, wherever that can be written.
        for extent in image::backing(edit.chain(), Span::from_zero(edit.len_bytes())).unwrap() {
            let len = extent.span.len_bytes().min(3 * MIB);
            let mut bytes = vec![0; usize::try_from(len).unwrap()];
            edit.read_at(extent.span.start(), &mut bytes).unwrap();
            if extent.state.is_writable() {
                edit.write_at(extent.span.start(), &bytes).unwrap();
            }
        }
        edit.flush().unwrap();
        drop(edit);
        assert!(by_qemu(&path, format) == before, "{name}: QEMU reads what it did");
        if format == "vhdx" {
            run("qemu-img", &["check", "-f", format, text(&path)]);
        }
        if ["vhdx", "vpc"].contains(&format) {
            let chain = chain(&path);
            let mut contents = vec![0; usize::try_from(chain.len_bytes()).unwrap()];
            chain.read_at(Offset::ZERO, &mut contents).unwrap();
            vhd_shared::libvhdi_reads(&path, &contents);
        }
        overwrite(&open(&path).unwrap(), &mut chain_contents(&path), 5, 30);
    }
}

fn chain_contents(path: &Path) -> Vec<u8> {
    let chain = chain(path);
    let mut contents = vec![0; usize::try_from(chain.len_bytes()).unwrap()];
    chain.read_at(Offset::ZERO, &mut contents).unwrap();
    contents
}
