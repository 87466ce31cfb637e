//! Images made by the writer.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use block::{Disk, ErrorKind, ReadAt, RunState};
use extent::{Offset, Span};
use image::{
    AnyWriter, CreateOptions, Format, Piece, PieceBytes, Probe, TargetWrite, WriteBytes, Writer, create,
    qcow2,
};
use proptest::prelude::*;
use testkit::{check_disk, run, scratch, write_image};

use super::{compress_by_qemu, contents_by_qemu, mixed_contents, noise, open, text, word};

fn options(virtual_bytes: u64, compress: bool, keys: &[(&str, &str)]) -> CreateOptions {
    CreateOptions {
        virtual_bytes,
        sector_bytes: 512,
        compress,
        keys: keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        identity_seed: 1,
        created_unix_seconds: 1_700_000_000,
        file_name: "disk.qcow2".into(),
        target_is_dirty: false,
    }
}

fn write(path: &Path, contents: &[u8], compress: bool, keys: &[(&str, &str)]) {
    let options = options(contents.len() as u64, compress, keys);
    write_image(&mut *create(Format::Qcow2, options).unwrap(), contents, path);
}

fn check_by_qemu(path: &Path) {
    let said = run("qemu-img", &["check", "-f", "qcow2", text(path)]);
    assert!(said.contains("No errors were found"), "{said}");
}

/// QEMU finds neither errors nor leaks; we and QEMU read `contents`, filled up to whole sectors.
fn check_written(path: &Path, contents: &[u8]) {
    check_by_qemu(path);
    let mut expected = contents.to_vec();
    expected.resize(contents.len().next_multiple_of(512), 0);
    assert!(contents_by_qemu(path) == expected, "QEMU reads what was written");
    let chain = open(path);
    assert!(matches!(qcow2::probe(&*chain.files()[0]).unwrap(), Probe::Yes));
    check_disk(&chain, chain.files(), &expected);
    assert_eq!(chain.files()[0].len_bytes() % chain.facts().cluster_bytes.unwrap(), 0, "whole clusters");
}

#[test]
fn what_is_written_is_without_fault_and_reads_back() {
    let dir = scratch();
    let path = dir.path().join("disk.qcow2");
    let kinds: [(bool, &[(&str, &str)]); 10] = [
        (false, &[]),
        (false, &[("cluster_size", "512")]),
        (false, &[("cluster_size", "4K"), ("compression", "zstd")]),
        (false, &[("cluster_size", "2M")]),
        (true, &[]),
        (true, &[("compression", "zlib")]),
        (true, &[("compression", "zlib"), ("cluster_size", "512")]),
        (true, &[("compression_type", "zstd"), ("cluster_size", "4k")]),
        (true, &[("compression_type", "zlib"), ("cluster_size", "2M")]),
        (true, &[("compression", "zstd"), ("cluster_size", "2M")]),
    ];
    for (compress, keys) in kinds {
        for len in [5 << 20, (1 << 20) + 512, 700_001] {
            println!("{compress} {keys:?} {len}");
            let contents = mixed_contents(len);
            write(&path, &contents, compress, keys);
            check_written(&path, &contents);
        }
    }
}

#[test]
fn small_and_empty_disks_are_written() {
    let dir = scratch();
    let path = dir.path().join("disk.qcow2");
    for len in [0, 1, 512, 65_536, 65_537] {
        let contents = vec![1; len];
        write(&path, &contents, false, &[]);
        check_written(&path, &contents);
    }
    let zeros = vec![0; 8 << 20];
    write(&path, &zeros, false, &[]);
    check_written(&path, &zeros);
    let len_bytes = fs::metadata(&path).unwrap().len();
    assert_eq!(len_bytes, 4 * 65_536, "header, L1 table, refcount table and refcount block");
}

#[test]
fn only_zstd_clusters_need_a_newer_reader() {
    let dir = scratch();
    let path = dir.path().join("disk.qcow2");
    for (compress, kind, features) in [(false, "zstd", 0), (true, "zstd", 8), (true, "zlib", 0)] {
        write(&path, &[1; 4096], compress, &[("compression", kind)]);
        assert_eq!(word(&fs::read(&path).unwrap(), 72), features, "{kind}");
    }
}

#[test]
fn compressed_is_about_as_small_as_by_qemu() {
    let dir = scratch();
    let [raw, by_qemu, ours] = ["raw", "qemu", "ours"].map(|name| dir.path().join(name));
    let contents = mixed_contents(8 << 20);
    fs::write(&raw, &contents).unwrap();
    for kind in ["zlib", "zstd"] {
        compress_by_qemu(&raw, &format!("compression_type={kind}"), &by_qemu);
        write(&ours, &contents, true, &[("compression", kind)]);
        let [by_qemu, ours] = [&by_qemu, &ours].map(|path| fs::metadata(path).unwrap().len());
        println!("{kind}: {ours} bytes, by QEMU {by_qemu}");
        assert!(ours * 100 <= by_qemu * 102, "{kind}: {ours} bytes, by QEMU {by_qemu}");
    }
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let kind = |virtual_bytes, keys: &[(&str, &str)]| {
        create(Format::Qcow2, options(virtual_bytes, true, keys)).err().map(|error| error.kind())
    };
    assert_eq!(kind(1 << 20, &[("cluster_size", "256")]), Some(ErrorKind::Invalid));
    assert_eq!(kind(1 << 20, &[("cluster_size", "4M")]), Some(ErrorKind::Invalid));
    assert_eq!(kind(1 << 20, &[("compression", "lzma")]), Some(ErrorKind::Invalid));
    assert_eq!(kind(1 << 20, &[("lazy_refcounts", "on")]), Some(ErrorKind::Invalid));
    assert_eq!(kind(1 << 40, &[("cluster_size", "512")]), Some(ErrorKind::Unsupported));
    assert_eq!(kind(u64::MAX, &[]), Some(ErrorKind::Unsupported));
    assert_eq!(kind(64 << 40, &[]), None);
}

/// A file being written.
struct Target(fs::File);

impl Target {
    fn new(path: &Path) -> Self {
        Self(fs::File::create(path).unwrap())
    }

    fn write_all(&self, chunk: &[u8], puts: Vec<TargetWrite>) {
        for put in puts {
            let at = put.at.get();
            match put.bytes {
                WriteBytes::Chunk(range) => self.0.write_all_at(&chunk[range], at).unwrap(),
                WriteBytes::Owned(bytes) => self.0.write_all_at(&bytes, at).unwrap(),
                WriteBytes::Zero(len) => {
                    self.0.write_all_at(&vec![0; usize::try_from(len).unwrap()], at).unwrap();
                }
                WriteBytes::Reserve(_) => {}
            }
        }
    }

    fn finish(&self, writer: &mut dyn Writer) {
        let finish = writer.finish().unwrap();
        self.write_all(&[], finish.tables);
        self.write_all(&[], finish.headers);
        self.0.set_len(finish.len_bytes).unwrap();
    }
}

#[test]
fn a_huge_sparse_disk_takes_little_room() {
    let dir = scratch();
    let path = dir.path().join("disk.qcow2");
    let virtual_bytes = 8u64 << 40;
    let mut writer = create(Format::Qcow2, options(virtual_bytes, false, &[])).unwrap();
    let target = Target::new(&path);
    target.write_all(&[], writer.start().unwrap());
    let chunk = mixed_contents(1 << 20);
    let places = [0, 1 << 30, (3 << 40) + (5 << 20), virtual_bytes - (1 << 20)];
    for at in places.map(Offset::new) {
        let piece = Piece { at, len_bytes: 1 << 20, bytes: PieceBytes::Plain(0..1 << 20) };
        target.write_all(&chunk, writer.place(at, vec![piece]).unwrap());
    }
    target.finish(&mut *writer);

    check_by_qemu(&path);
    assert!(fs::metadata(&path).unwrap().len() < 6 << 20);
    let chain = open(&path);
    let mut read = vec![0; 1 << 20];
    for at in places {
        chain.read_at(Offset::new(at), &mut read).unwrap();
        assert!(read == chunk, "contents at {at:#x}");
    }
    let runs = chain.map(Span::from_zero(virtual_bytes)).unwrap();
    let data = runs.iter().filter(|run| matches!(run.state, RunState::Data { .. }));
    assert_eq!(data.map(|run| run.span.len_bytes()).sum::<u64>(), 4 << 20);
}

#[test]
fn one_put_covers_many_clusters() {
    let mut writer = create(Format::Qcow2, options(64 << 20, false, &[])).unwrap();
    let piece = Piece { at: Offset::ZERO, len_bytes: 8 << 20, bytes: PieceBytes::Plain(0..8 << 20) };
    let puts = writer.place(Offset::ZERO, vec![piece]).unwrap();
    assert!(
        matches!(&puts[..], [TargetWrite { bytes: WriteBytes::Chunk(range), .. }] if range.len() == 8 << 20)
    );
}

/// Kinds of granules of a disk (nothing, incompressible, compressible), and before which one the writer's state
/// is stored and restored.
fn granules() -> impl Strategy<Value = (Vec<u8>, usize)> {
    prop::collection::vec(prop_oneof![2 => Just(0u8), 2 => Just(1), 3 => Just(2)], 1..900)
        .prop_flat_map(|kinds| (0..=kinds.len()).prop_map(move |stop| (kinds.clone(), stop)))
}

fn granule(kind: u8, number: usize, bytes: usize) -> Vec<u8> {
    match kind {
        0 => vec![0; bytes],
        1 => noise(number as u64 + 1, bytes),
        _ => (0..bytes).map(|at| ((at * 3 + number) / (1 + number % 40)).to_le_bytes()[0] | 1).collect(),
    }
}

/// Writes `contents` a granule a chunk, storing and restoring the writer before the granule `stop`. A dirty
/// target begins full of old bytes.
fn write_in_two(contents: &[u8], options: CreateOptions, path: &Path, stop: Option<usize>) {
    let target = Target::new(path);
    if options.target_is_dirty {
        let old = vec![0xee; contents.len() * 2 + (1 << 20)];
        target.write_all(&[], vec![TargetWrite { at: Offset::ZERO, bytes: WriteBytes::Owned(old) }]);
    }
    let mut writer = create(Format::Qcow2, options).unwrap();
    target.write_all(&[], writer.start().unwrap());
    let granularity = usize::try_from(writer.granularity_bytes()).unwrap();
    let mut encoder = writer.encoder();
    for (number, chunk) in contents.chunks(granularity).enumerate() {
        if stop == Some(number) {
            let state = serde_json::to_string(&writer).unwrap();
            writer = serde_json::from_str::<AnyWriter>(&state).unwrap();
        }
        if chunk.iter().all(|byte| *byte == 0) {
            continue;
        }
        let bytes = match encoder.as_mut().and_then(|encoder| encoder.encode(chunk).unwrap()) {
            Some(bytes) => PieceBytes::Encoded(bytes),
            None => PieceBytes::Plain(0..granularity),
        };
        let at = Offset::new((number * granularity) as u64);
        let piece = Piece { at, len_bytes: granularity as u64, bytes };
        target.write_all(chunk, writer.place(at, vec![piece]).unwrap());
    }
    target.finish(&mut *writer);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Small clusters: many refcount blocks and L2 tables in a small file.
    #[test]
    fn any_set_of_pieces_reads_back(
        (kinds, stop) in granules(),
        compress in any::<bool>(),
        zlib in any::<bool>(),
        small in any::<bool>(),
    ) {
        let dir = scratch();
        let [path, again, dirty] = ["disk", "again", "dirty"].map(|name| dir.path().join(name));
        let (bytes, size) = if small { (512, "512") } else { (4096, "4K") };
        let granules = kinds.iter().enumerate();
        let contents: Vec<u8> = granules.flat_map(|(number, kind)| granule(*kind, number, bytes)).collect();
        let keys = [("cluster_size", size), ("compression", if zlib { "zlib" } else { "zstd" })];
        let options = options(contents.len() as u64, compress, &keys);
        write_image(&mut *create(Format::Qcow2, options.clone()).unwrap(), &contents, &path);
        check_written(&path, &contents);

        let written = fs::read(&path).unwrap();
        write_in_two(&contents, options.clone(), &again, Some(stop));
        prop_assert!(fs::read(&again).unwrap() == written, "a restored writer gives the same file");
        write_in_two(&contents, CreateOptions { target_is_dirty: true, ..options }, &dirty, None);
        prop_assert!(fs::read(&dirty).unwrap() == written, "old contents do not stay");
    }
}
