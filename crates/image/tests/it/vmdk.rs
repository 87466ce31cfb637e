//! VMDK against the real tools: what Leandisk reads must be what qemu-img reads.

use std::path::{Path, PathBuf};

use block::{Disk, ErrorKind, ReadAt, Result, RunState};
use extent::Span;
use image::{Chain, CreateOptions, Format, OpenOptions};
use testkit::{TestFile, TestResolver, check_disk, real_image, run, scratch, write_image};

fn open(path: &Path) -> Result<Chain> {
    Chain::open(TestFile::open(path), OpenOptions::default(), &TestResolver::default())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The disk's contents as qemu-img reads them.
fn converted(path: &Path) -> Vec<u8> {
    let raw = path.with_extension("oracle");
    run("qemu-img", &["convert", "-f", "vmdk", "-O", "raw", text(path), text(&raw)]);
    std::fs::read(raw).unwrap()
}

fn check_against_qemu(path: &Path) -> Chain {
    let chain = open(path).unwrap();
    assert_eq!(chain.facts().format, Format::Vmdk);
    check_disk(&chain, chain.files(), &converted(path));
    chain
}

fn create(dir: &Path, name: &str, options: &str, size: &str) -> PathBuf {
    let path = dir.join(name);
    run("qemu-img", &["create", "-q", "-f", "vmdk", "-o", options, text(&path), size]);
    path
}

fn fill(path: &Path, commands: &[&str]) {
    let mut args = vec!["-f", "vmdk"];
    for command in commands {
        args.extend(["-c", command]);
    }
    args.push(text(path));
    run("qemu-io", &args);
}

const PATTERNS: [&str; 6] = [
    "write -P 0x11 0 64k",
    "write -P 0x22 100k 300k",
    "write -P 0x33 20m 3m",
    "write -P 0x44 33500k 200k",
    "write -z 21m 128k",
    "write -P 0x55 40959k 512",
];

fn states(chain: &Chain) -> Vec<RunState> {
    chain.map(Span::from_zero(chain.len_bytes())).unwrap().into_iter().map(|run| run.state).collect()
}

#[test]
fn every_variant_of_qemu_reads_as_qemu_reads_it() {
    let dir = scratch();
    for subformat in ["monolithicSparse", "monolithicFlat", "twoGbMaxExtentSparse", "twoGbMaxExtentFlat"] {
        let options = format!("subformat={subformat}");
        let path = create(dir.path(), &format!("{subformat} disk.vmdk"), &options, "40m");
        fill(&path, &PATTERNS);
        let chain = check_against_qemu(&path);
        assert_eq!(chain.facts().variant, subformat);
        assert_eq!(chain.facts().cluster_bytes.is_some(), subformat.ends_with("Sparse"));
    }
}

#[test]
fn zeroed_grains_are_zeros() {
    let dir = scratch();
    let path = create(dir.path(), "zeroed.vmdk", "subformat=monolithicSparse,zeroed_grain=on", "40m");
    fill(&path, &PATTERNS);
    let chain = check_against_qemu(&path);
    assert!(states(&chain).contains(&RunState::Zero));
}

#[test]
fn a_disk_of_several_extents() {
    let dir = scratch();
    for subformat in ["twoGbMaxExtentSparse", "twoGbMaxExtentFlat"] {
        let path = create(dir.path(), &format!("{subformat}.vmdk"), &format!("subformat={subformat}"), "5g");
        fill(&path, &["write -P 0x66 2047m 2m", "write -P 0x77 4095m 2m"]);
        let chain = open(&path).unwrap();
        assert_eq!(chain.files().len(), 4);
        let mut bytes = vec![0; 2 << 20];
        chain.read_at(extent::Offset::new(2047 << 20), &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0x66));
        chain.read_at(extent::Offset::new((4095 << 20) - 512), &mut bytes).unwrap();
        assert!(bytes[..512].iter().all(|byte| *byte == 0) && bytes[512..].iter().all(|byte| *byte == 0x77));
    }
}

#[test]
fn a_stream_reads_as_qemu_reads_it() {
    let dir = scratch();
    let plain = create(dir.path(), "plain.vmdk", "subformat=monolithicSparse", "41944064");
    fill(&plain, &PATTERNS);
    // The last grain is not whole.
    fill(&plain, &["write -P 0x56 40m 1k"]);
    let path = dir.path().join("stream.vmdk");
    let options = "subformat=streamOptimized";
    run("qemu-img", &["convert", "-O", "vmdk", "-o", options, text(&plain), text(&path)]);
    let chain = check_against_qemu(&path);
    assert_eq!(chain.facts().variant, "streamOptimized");
    assert!(states(&chain).iter().any(|state| matches!(state, RunState::Compressed { .. })));
}

#[test]
fn a_delta_reads_through_its_parent() {
    let dir = scratch();
    let base = create(dir.path(), "base.vmdk", "subformat=monolithicSparse", "40m");
    fill(&base, &PATTERNS);
    let delta = dir.path().join("delta.vmdk");
    let options = "subformat=monolithicSparse,zeroed_grain=on";
    run(
        "qemu-img",
        &["create", "-q", "-f", "vmdk", "-o", options, "-b", text(&base), "-F", "vmdk", text(&delta)],
    );
    fill(&delta, &["write -P 0x88 64k 64k", "write -z 20m 1m"]);
    let chain = check_against_qemu(&delta);
    assert_eq!(chain.links().len(), 2);
    // A write to the parent gives it a new content ID, and the delta no longer fits.
    fill(&base, &["write -P 0x99 0 512"]);
    let error = open(&delta).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("base.vmdk"), "{error}");
}

fn options(contents: &[u8], keys: &[(&str, &str)]) -> CreateOptions {
    CreateOptions {
        virtual_bytes: contents.len() as u64,
        sector_bytes: 512,
        compress: false,
        keys: keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        identity_seed: 0x0123_4567_89ab_cdef_0011_2233_4455_6677,
        created_unix_seconds: 1_700_000_000,
        file_name: "written.vmdk".into(),
        target_is_dirty: false,
    }
}

/// Data, holes and noise, over more than one grain table and not in whole grains.
fn sample() -> Vec<u8> {
    let mut contents = vec![0; (70 << 20) + 1536];
    let mut state = 1u64;
    for (start, len) in [(0, 512), (65_536 * 3, 70_000), (20 << 20, 3 << 20), (66 << 20, 4 << 20)] {
        for byte in &mut contents[start..start + len] {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = if start % (4 << 20) == 0 { state.to_be_bytes()[0] } else { 0x5a };
        }
    }
    contents[(70 << 20) + 1535] = 1;
    contents
}

#[test]
fn what_is_written_is_accepted() {
    let dir = scratch();
    let raw = dir.path().join("contents.raw");
    for contents in [sample(), vec![0; 3 << 20], vec![7; 512]] {
        std::fs::write(&raw, &contents).unwrap();
        for subformat in ["monolithicSparse", "streamOptimized"] {
            let path = dir.path().join("written.vmdk");
            let options = options(&contents, &[("subformat", subformat)]);
            let mut writer = image::create(Format::Vmdk, options).unwrap();
            write_image(&mut *writer, &contents, &path);
            run("qemu-img", &["check", "-f", "vmdk", text(&path)]);
            run("qemu-img", &["compare", "-F", "raw", "-f", "vmdk", text(&path), text(&raw)]);
            let info = run("vmdkinfo", &[text(&path)]);
            assert!(info.contains(&contents.len().to_string()), "{info}");
            let chain = open(&path).unwrap();
            assert_eq!(chain.facts().variant, subformat);
            check_disk(&chain, chain.files(), &contents);
        }
    }
}

#[test]
fn qemu_can_write_to_what_is_written() {
    let dir = scratch();
    let contents = sample();
    let path = dir.path().join("written.vmdk");
    let mut writer = image::create(Format::Vmdk, options(&contents, &[])).unwrap();
    write_image(&mut *writer, &contents, &path);
    fill(&path, &["write -P 0x11 4m 1m", "write -P 0x12 20m 64k"]);
    run("qemu-img", &["check", "-f", "vmdk", text(&path)]);
    check_against_qemu(&path);
}

#[test]
fn disks_of_vmware() {
    let dir = scratch();
    let pieces = ["sf-twoGbMaxExtentSparse-s001.vmdk", "sf-twoGbMaxExtentSparse.vmdk"];
    let Some([extent, descriptor]) = pieces
        .map(|name| real_image(name, dir.path()))
        .into_iter()
        .collect::<Option<Vec<_>>>()
        .map(|paths| <[PathBuf; 2]>::try_from(paths).unwrap())
    else {
        return;
    };
    // The collection's name for the file differs from the one that the descriptor holds.
    std::fs::rename(extent, dir.path().join("twoGbMaxExtentSparse-s001.vmdk")).unwrap();
    check_against_qemu(&descriptor);
    for name in ["sf-streamOptimized.vmdk", "sf-streamOptimizedWithMarkers.vmdk"] {
        check_against_qemu(&real_image(name, dir.path()).unwrap());
    }
}

#[test]
fn a_large_stream_of_vmware() {
    let dir = scratch();
    let Some(path) = real_image("q-iotest-version3.vmdk", dir.path()) else { return };
    let chain = open(&path).unwrap();
    assert_eq!(chain.len_bytes(), 16 << 30);
    let raw = dir.path().join("oracle");
    run("qemu-img", &["convert", "-f", "vmdk", "-O", "raw", text(&path), text(&raw)]);
    let raw = TestFile::open(raw);
    for run in chain.map(Span::from_zero(chain.len_bytes())).unwrap() {
        let len = usize::try_from(run.span.len_bytes().min(65_536)).unwrap();
        let (mut ours, mut theirs) = (vec![1; len], vec![2; len]);
        chain.read_at(run.span.start(), &mut ours).unwrap();
        raw.read_at(extent::Offset::new(run.span.start().get()), &mut theirs).unwrap();
        assert!(ours == theirs, "{run:?}");
    }
    run("qemu-img", &["info", text(&path)]);
}
