//! VDI against the real tools: what Leandisk reads must be what qemu-img reads, and the reverse.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Disk, Error, ErrorKind, HostFile, Memory, ReadAt, Result, RunState};
use extent::{Offset, Span};
use image::vdi::Corrupt;
use image::{Chain, CreateOptions, Format, OpenOptions, Purpose, Resolver};
use testkit::{TestFile, TestResolver, check_disk, check_hostile, real_image, run, scratch, write_image};

fn open(path: &Path) -> Result<Chain> {
    Chain::open(TestFile::open(path), OpenOptions::default(), &Folder::default())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A resolver that can list the folder.
#[derive(Default)]
struct Folder(TestResolver);

impl Resolver for Folder {
    fn open(&self, from: &dyn HostFile, name: &str, purpose: Purpose) -> Result<Arc<dyn HostFile>> {
        self.0.open(from, name, purpose)
    }

    fn siblings(&self, from: &dyn HostFile) -> Result<Vec<std::ffi::OsString>> {
        let dir = from.path().parent().unwrap();
        Ok(std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect())
    }
}

fn check_against_qemu(path: &Path) -> Chain {
    let raw = path.with_extension("oracle");
    run("qemu-img", &["convert", "-f", "vdi", "-O", "raw", text(path), text(&raw)]);
    let chain = open(path).unwrap();
    assert_eq!(chain.facts().format, Format::Vdi);
    check_disk(&chain, chain.files(), &std::fs::read(raw).unwrap());
    chain
}

fn create(dir: &Path, name: &str, options: &str) -> PathBuf {
    let path = dir.join(name);
    run("qemu-img", &["create", "-q", "-f", "vdi", "-o", options, text(&path), "20m"]);
    let commands = ["write -P 0x11 0 64k", "write -P 0x22 5m 3m", "write -P 0x33 20479k 1k"];
    for command in commands {
        run("qemu-io", &["-f", "vdi", "-c", command, text(&path)]);
    }
    path
}

#[test]
fn images_of_qemu_read_as_qemu_reads_them() {
    let dir = scratch();
    for (name, options, variant) in [("d.vdi", "static=off", "dynamic"), ("s.vdi", "static=on", "fixed")] {
        let chain = check_against_qemu(&create(dir.path(), name, options));
        assert_eq!(chain.facts().variant, variant);
    }
    if let Some(path) = real_image("basic.vdi", dir.path()) {
        check_against_qemu(&path);
    }
}

fn options(contents: &[u8], seed: u128) -> CreateOptions {
    CreateOptions {
        virtual_bytes: contents.len() as u64,
        sector_bytes: 512,
        compress: false,
        keys: [].into(),
        identity_seed: seed,
        created_unix_seconds: 0,
        file_name: "written.vdi".into(),
        target_is_dirty: false,
    }
}

fn write(path: &Path, contents: &[u8], seed: u128) {
    let mut writer = image::create(Format::Vdi, options(contents, seed)).unwrap();
    write_image(&mut *writer, contents, path);
}

fn sample() -> Vec<u8> {
    let mut contents = vec![0; (9 << 20) + 512];
    contents[..512].fill(1);
    contents[(3 << 20) + 5..(6 << 20) + 7].fill(2);
    *contents.last_mut().unwrap() = 3;
    contents
}

#[test]
fn what_is_written_is_accepted() {
    let dir = scratch();
    let raw = dir.path().join("contents.raw");
    let path = dir.path().join("written.vdi");
    for contents in [sample(), vec![0; 5 << 20], vec![7; 512]] {
        std::fs::write(&raw, &contents).unwrap();
        write(&path, &contents, 1 << 90);
        run("qemu-img", &["check", "-f", "vdi", text(&path)]);
        run("qemu-img", &["compare", "-f", "vdi", "-F", "raw", text(&path), text(&raw)]);
        let chain = open(&path).unwrap();
        check_disk(&chain, chain.files(), &contents);
    }
    write(&path, &sample(), 1 << 90);
    run("qemu-io", &["-f", "vdi", "-c", "write -P 9 7m 1m", text(&path)]);
    run("qemu-img", &["check", "-f", "vdi", text(&path)]);
    check_against_qemu(&path);
}

fn patch(path: &Path, at: usize, bytes: &[u8]) {
    let mut all = std::fs::read(path).unwrap();
    all[at..at + bytes.len()].copy_from_slice(bytes);
    std::fs::write(path, all).unwrap();
}

fn header_field(path: &Path, at: usize) -> Vec<u8> {
    std::fs::read(path).unwrap()[at..at + 16].to_vec()
}

/// Makes the VDI at `child` a differencing image of the one at `parent`.
fn link(child: &Path, parent: &Path) {
    patch(child, 0x4c, &4u32.to_le_bytes());
    patch(child, 0x1a8, &header_field(parent, 0x188));
    patch(child, 0x1b8, &header_field(parent, 0x198));
}

#[test]
fn a_differencing_image_finds_its_parent_by_uuid() {
    let dir = scratch();
    let [base, child] = ["any name.vdi", "child.vdi"].map(|name| dir.path().join(name));
    std::fs::write(dir.path().join("other.vdi"), b"no VDI").unwrap();
    write(&base, &sample(), 1 << 90);
    let mut contents = vec![0; sample().len()];
    contents[4 << 20..5 << 20].fill(9);
    write(&child, &contents, 1 << 91);
    link(&child, &base);
    // Block 5 of the child is zeros, not the parent's.
    patch(&child, (1 << 20) + 5 * 4, &0xffff_fffeu32.to_le_bytes());
    let mut expected = sample();
    expected[4 << 20..5 << 20].fill(9);
    expected[5 << 20..6 << 20].fill(0);

    let chain = open(&child).unwrap();
    assert_eq!(chain.links().len(), 2);
    check_disk(&chain, chain.files(), &expected);
    assert!(
        chain.map(Span::new(Offset::new(5 << 20), 512)).unwrap()[0].state == RunState::Zero,
        "a block of zeros hides the parent"
    );

    // Without a list of the folder it is found by VirtualBox's names for snapshots.
    let uuid = chain.links()[1].layer.facts().id.clone().unwrap();
    let alone =
        |path: &Path| Chain::open(TestFile::open(path), OpenOptions::default(), &TestResolver::default());
    let error = alone(&child).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains(&uuid), "{error}");
    let named = dir.path().join(format!("{{{uuid}}}.vdi"));
    std::fs::rename(&base, &named).unwrap();
    check_disk(&alone(&child).unwrap(), alone(&child).unwrap().files(), &expected);

    patch(&named, 0x198, &[0x55; 16]);
    let error = open(&child).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(matches!(error.cause(), Some(Corrupt::ParentChanged { .. })), "{error}");
}

#[test]
fn extra_bytes_of_blocks_are_skipped() {
    let dir = scratch();
    let path = dir.path().join("extra.vdi");
    write(&path, &sample(), 1);
    let all = std::fs::read(&path).unwrap();
    let mut apart = all[..2 << 20].to_vec();
    apart[0x17c..0x180].copy_from_slice(&512u32.to_le_bytes());
    for block in all[2 << 20..].chunks(1 << 20) {
        apart.extend([0xee; 512]);
        apart.extend(block);
    }
    std::fs::write(&path, apart).unwrap();
    let chain = open(&path).unwrap();
    check_disk(&chain, chain.files(), &sample());
}

#[test]
fn what_is_not_read_is_told() {
    let dir = scratch();
    let path = dir.path().join("odd.vdi");
    type Case = (usize, [u8; 4], ErrorKind, &'static str, Option<u64>);
    let cases: [Case; 5] = [
        (0x44, [1, 0, 0, 0], ErrorKind::Unsupported, "version", None),
        (0x4c, [3, 0, 0, 0], ErrorKind::Unsupported, "image type", Some(3)),
        (0x4c, [4, 0, 0, 0], ErrorKind::Corrupt, "parent's UUID", None),
        (0x1a8, [4, 0, 0, 0], ErrorKind::Corrupt, "parent's UUID", None),
        (0x180, [1, 0, 0, 0], ErrorKind::Corrupt, "number of blocks", Some(1)),
    ];
    for (at, bytes, kind, field, number) in cases {
        write(&path, &sample(), 1);
        patch(&path, at, &bytes);
        let error = open(&path).err().unwrap();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(
            error.cause().is_some_and(|cause: &Corrupt| *cause == Corrupt::Header),
            kind == ErrorKind::Corrupt
        );
        let found = error.wrong_field().map(|found| (found.name(), found.found().number()));
        assert_eq!(found, Some((field, number)), "{error}");
    }
    write(&path, &sample(), 1);
    patch(&path, 1 << 20, &[9, 0, 0, 0]);
    let error = open(&path).unwrap().map(Span::from_zero(512)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(error.cause(), Some(&Corrupt::BlockMap));
    let found = error.wrong_field().map(|found| (found.name(), found.found().number()));
    assert_eq!(found, Some(("entry 0", Some(9))), "{error}");
}

#[test]
fn bad_input_is_told_soon() {
    let dir = scratch();
    let path = dir.path().join("small.vdi");
    run("qemu-img", &["create", "-q", "-f", "vdi", text(&path), "3m"]);
    run("qemu-io", &["-f", "vdi", "-c", "write -P 1 1m 1m", text(&path)]);
    let good = std::fs::read(&path).unwrap();
    let stated = OpenOptions { format: Some(Format::Vdi) };
    for options in [stated, OpenOptions::default()] {
        check_hostile(&good, 0x210, |file| walk(file, options));
    }
}

/// Opens, maps and reads the first and last bytes.
fn walk(file: Arc<dyn HostFile>, options: OpenOptions) -> Result<(), Error> {
    let chain = Chain::open(file, options, &TestResolver::default())?;
    let len_bytes = chain.len_bytes();
    let some = len_bytes.min(64 << 20);
    for start in [0, len_bytes - some] {
        chain.map(Span::new(Offset::new(start), some))?;
    }
    let mut bytes = vec![0; usize::try_from(some.min(1 << 16)).unwrap()];
    chain.read_at(Offset::ZERO, &mut bytes)?;
    chain.read_at(Offset::new(len_bytes - bytes.len() as u64), &mut bytes)
}

#[test]
fn an_empty_file_is_no_vdi() {
    let error =
        walk(Arc::new(Memory::new(Vec::new())), OpenOptions { format: Some(Format::Vdi) }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}
