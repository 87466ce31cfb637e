//! Images made by QEMU, of every kind that it makes.

use std::fs;
use std::path::Path;

use block::{Disk, ErrorKind, ReadAt, RunState};
use extent::Span;
use image::{Chain, Format, OpenOptions, Probe, qcow2};
use testkit::{TestFile, TestResolver, check_disk, make_luks_image, run, scratch};

use super::{
    check_against_qemu, compress_by_qemu, contents_by_qemu, make, mixed_contents, open, qemu_io, text,
};

/// Data, zeros, compressed clusters and discarded ranges, aligned and not, on a disk of 9 MiB and more.
const PATTERN: [&str; 12] = [
    "write -P 0x11 0 1M",
    "write -P 0x22 1234k 7k",
    "write -z 128k 192k",
    "write -z -u 600k 100k",
    "discard 256k 64k",
    "write -P 0x33 3M 64k",
    "write -P 0x44 4000k 300k",
    "write -z 4100k 10k",
    "write -P 0x55 8M 512k",
    "discard 8256k 64k",
    "write -z 5M 2M",
    "write -P 0x66 6M 4k",
];
const PATTERN_DISK_BYTES: &str = "9437696";

#[test]
fn every_kind_of_image_reads_as_qemu_reads_it() {
    let dir = scratch();
    let kinds = [
        "compat=0.10",
        "compat=1.1",
        "compat=0.10,cluster_size=512",
        "compat=1.1,cluster_size=512",
        "cluster_size=4k",
        "cluster_size=2M",
        "extended_l2=on",
        "extended_l2=on,cluster_size=16k",
        "extended_l2=on,cluster_size=2M",
        "lazy_refcounts=on",
        "refcount_bits=1",
        "refcount_bits=64",
        "preallocation=metadata",
        "preallocation=falloc",
        "preallocation=metadata,extended_l2=on",
        "compression_type=zstd",
    ];
    for (index, options) in kinds.into_iter().enumerate() {
        println!("{options}");
        let path = make(dir.path(), &format!("{index}.qcow2"), options, PATTERN_DISK_BYTES, &PATTERN);
        check_against_qemu(&path);
    }
}

#[test]
fn compressed_clusters_read_as_qemu_reads_them() {
    let dir = scratch();
    let raw = dir.path().join("source.raw");
    fs::write(&raw, mixed_contents(3 << 20 | 512)).unwrap();
    let kinds = [
        "compression_type=zlib",
        "compression_type=zstd",
        "compression_type=zlib,cluster_size=512",
        "compression_type=zstd,cluster_size=4k",
        "compression_type=zlib,cluster_size=2M",
        "compression_type=zstd,cluster_size=2M",
        "compression_type=zstd,extended_l2=on",
        "compat=0.10",
    ];
    for (index, options) in kinds.into_iter().enumerate() {
        println!("{options}");
        let path = dir.path().join(format!("{index}.qcow2"));
        compress_by_qemu(&raw, options, &path);
        let chain = open(&path);
        let runs = chain.map(Span::from_zero(chain.len_bytes())).unwrap();
        assert!(runs.iter().any(|run| matches!(run.state, RunState::Compressed { .. })));
        check_against_qemu(&path);
        qemu_io(&path, &["write -P 0x77 100k 9k", "write -z 500k 64k", "discard 1M 128k"]);
        check_against_qemu(&path);
    }
}

#[test]
fn single_compressed_writes_read_as_qemu_reads_them() {
    let dir = scratch();
    let commands = ["write -c -P 0x51 0 64k", "write -c -P 0x52 1M 64k", "write -P 0x53 1040k 4k"];
    for options in ["compression_type=zlib", "compression_type=zstd,extended_l2=on"] {
        check_against_qemu(&make(dir.path(), "disk.qcow2", options, "2M", &commands));
    }
}

#[test]
fn a_chain_reads_through_to_parents_smaller_and_of_other_formats() {
    let dir = scratch();
    fs::write(dir.path().join("base.raw"), mixed_contents(2 << 20)).unwrap();
    let middle = dir.path().join("middle.qcow2");
    let create = ["create", "-q", "-f", "qcow2"];
    run("qemu-img", &[&create[..], &["-b", "base.raw", "-F", "raw", text(&middle), "4M"]].concat());
    qemu_io(&middle, &["write -P 0x21 1M 96k", "write -z 128k 128k", "write -P 0x22 3M 64k"]);
    let top = dir.path().join("top.qcow2");
    let kind = ["-o", "extended_l2=on,cluster_size=128k", "-b", "middle.qcow2", "-F", "qcow2"];
    run("qemu-img", &[&create[..], &kind, &[text(&top), "9M"]].concat());
    qemu_io(&top, &["write -P 0x31 1000k 5k", "write -z 1050k 9k", "discard 3M 4k", "write -P 0x32 8M 4k"]);

    let chain = open(&top);
    check_disk(&chain, chain.files(), &contents_by_qemu(&top));
    let formats: Vec<_> = chain.links().iter().map(|link| link.layer.facts().format).collect();
    assert_eq!(formats, [Format::Qcow2, Format::Qcow2, Format::Raw]);
    let parent = chain.links()[1].layer.parent().unwrap();
    assert_eq!(parent.names, ["base.raw"]);
    assert_eq!(parent.format, Some(Format::Raw));
}

#[test]
fn names_that_are_no_files_go_to_the_resolver_as_they_are() {
    let dir = scratch();
    for name in ["nbd://localhost/x", "json:{\"driver\":\"null-co\"}"] {
        let path = make(dir.path(), "disk.qcow2", "", "1M", &[]);
        run("qemu-img", &["rebase", "-u", "-b", name, "-F", "raw", text(&path)]);
        let resolver = TestResolver::default();
        let error = Chain::open(TestFile::open(&path), OpenOptions::default(), &resolver).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert_eq!(resolver.asked(), [name]);
    }
}

#[test]
fn a_backing_format_that_is_not_known_is_not_guessed() {
    let dir = scratch();
    let path = make(dir.path(), "top.qcow2", "", "1M", &[]);
    run("qemu-img", &["rebase", "-u", "-b", "base", "-F", "luks", text(&path)]);
    let error = qcow2::open(TestFile::open(&path), &TestResolver::default()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("luks"), "{error}");
}

#[test]
fn external_data_files_read_as_qemu_reads_them() {
    let dir = scratch();
    let kinds = ["", ",data_file_raw=on", ",extended_l2=on", ",preallocation=metadata"];
    for (index, options) in kinds.into_iter().enumerate() {
        println!("data_file{options}");
        let data = dir.path().join(format!("{index}.data"));
        let options = format!("data_file={}{options}", text(&data));
        let path = make(dir.path(), &format!("{index}.qcow2"), &options, PATTERN_DISK_BYTES, &PATTERN);
        let chain = open(&path);
        assert_eq!(chain.files().len(), 2);
        assert_eq!(chain.files()[1].name(), text(&data));
        check_disk(&chain, chain.files(), &contents_by_qemu(&path));
    }
}

#[test]
fn snapshots_are_counted_and_the_active_disk_is_read() {
    let dir = scratch();
    let path = make(dir.path(), "disk.qcow2", "", PATTERN_DISK_BYTES, &PATTERN);
    run("qemu-img", &["snapshot", "-c", "one", text(&path)]);
    qemu_io(&path, &["write -P 0x7a 0 200k", "write -z 3M 64k"]);
    run("qemu-img", &["snapshot", "-c", "two", text(&path)]);
    qemu_io(&path, &["write -P 0x7b 50k 200k"]);
    assert_eq!(open(&path).facts().snapshot_count, 2);
    check_against_qemu(&path);
}

#[test]
fn encrypted_images_open_and_say_so() {
    let dir = scratch();
    let path = dir.path().join("luks.qcow2");
    make_luks_image(&path, "1M");
    for (method, name) in [(2, "LUKS"), (1, "AES")] {
        patch(&path, 35, method);
        let chain = open(&path);
        assert!(chain.facts().unreadable.as_ref().unwrap().contains(name));
        assert_eq!(chain.check_readable().unwrap_err().kind(), ErrorKind::Refused);
        chain.map(Span::from_zero(1 << 20)).unwrap();
    }
}

#[test]
fn what_is_noted_without_being_in_the_way() {
    let dir = scratch();
    let path = make(dir.path(), "disk.qcow2", "lazy_refcounts=on", "1M", &["write 0 64k"]);
    run("qemu-img", &["bitmap", "--add", text(&path), "changes"]);
    patch(&path, 79, 1);
    let chain = open(&path);
    let details = &chain.facts().details;
    let noted = |name: &str| details.iter().find(|(fact, _)| *fact == name).map(|(_, value)| value.as_str());
    assert_eq!(noted("bitmaps"), Some("1"));
    assert_eq!(noted("lazy refcounts"), Some("yes"));
    assert!(noted("dirty").is_some());
    assert_eq!(chain.facts().unreadable, None);
}

#[test]
fn an_image_marked_corrupt_is_not_read() {
    let dir = scratch();
    let path = make(dir.path(), "disk.qcow2", "", "1M", &["write 0 64k"]);
    patch(&path, 79, 2);
    let chain = open(&path);
    assert!(chain.facts().unreadable.as_ref().unwrap().contains("qemu-img check -r all"));
    assert_eq!(chain.check_readable().unwrap_err().kind(), ErrorKind::Refused);
}

#[test]
fn unknown_features_are_named() {
    let dir = scratch();
    let path = make(dir.path(), "disk.qcow2", "", "1M", &[]);
    patch(&path, 72, 0x80);
    let error = || qcow2::open(TestFile::open(&path), &TestResolver::default()).err().unwrap();
    assert_eq!(error().kind(), ErrorKind::Unsupported);
    assert!(error().to_string().contains("bit 63"), "{}", error());

    let name_at = fs::read(&path).unwrap().windows(9).position(|window| window == b"dirty bit").unwrap();
    patch(&path, name_at - 1, 63);
    assert!(error().to_string().contains("bit 63 ('dirty bit')"), "{}", error());
    assert!(matches!(qcow2::probe(&*TestFile::open(&path)).unwrap(), Probe::Yes));
}

fn patch(path: &Path, at: usize, byte: u8) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] = byte;
    fs::write(path, bytes).unwrap();
}
