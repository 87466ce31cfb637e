//! Images that contradict themselves.

use std::fs;
use std::sync::Arc;

use block::{Disk, ErrorKind, FileIndex, HostFile, Memory, ReadAt, Result, RunState};
use extent::{Offset, Span};
use image::{Chain, NoFiles, OpenOptions, qcow2};
use testkit::{TestResolver, check_hostile, scratch};

use super::{check_against_qemu, compress_by_qemu, make, mixed_contents, open, word};

const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;

/// Where the first L2 table of an image lies.
fn first_l2(image: &[u8]) -> usize {
    let l1_at = usize::try_from(word(image, 40)).unwrap();
    usize::try_from(word(image, l1_at) & OFFSET).unwrap()
}

/// Maps the first cluster of an image whose first L2 entry is replaced.
fn map_with_entry(image: &[u8], entry: &[u64]) -> Result<Vec<block::Run>> {
    let mut bytes = image.to_vec();
    for (word, place) in entry.iter().zip(bytes[first_l2(image)..].chunks_mut(8)) {
        place.copy_from_slice(&word.to_be_bytes());
    }
    qcow2::open(Arc::new(Memory::new(bytes)), &TestResolver::default())?.map(Span::from_zero(65_536))
}

#[test]
fn a_wrong_entry_is_named_by_index_and_value() {
    let dir = scratch();
    let path = make(dir.path(), "disk.qcow2", "", "1M", &["write -P 1 0 64k"]);
    let image = fs::read(&path).unwrap();
    for (entry, expected) in [
        (0x8000_0000_0005_0200, "whole clusters"),
        (0x8000_0000_7000_0000, "within the file"),
        (0x8000_0000_0005_0004, "reserved bits"),
        (0x8100_0000_0005_0000, "reserved bits"),
        (0xc000_0000_0005_0000, "bit 63 clear"),
        (0x4000_0000_0000_0100, "past the header"),
        (0x4000_0000_7000_0100, "within the file"),
    ] {
        let error = map_with_entry(&image, &[entry]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert_eq!(error.cause(), Some(&qcow2::Corrupt::L2Entry));
        let field = error.wrong_field().unwrap();
        assert_eq!((field.name(), field.found().number()), ("entry 0", Some(entry)));
        assert!(field.expected().contains(expected), "{error}");
    }
}

#[test]
fn version_2_has_no_zero_clusters() {
    let dir = scratch();
    let path = make(dir.path(), "disk.qcow2", "compat=0.10", "1M", &["write -P 1 0 64k"]);
    let error = map_with_entry(&fs::read(&path).unwrap(), &[1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn contradictions_of_subclusters_are_corrupt() {
    let dir = scratch();
    let path = make(dir.path(), "disk.qcow2", "extended_l2=on", "1M", &["write -P 1 0 64k"]);
    let image = fs::read(&path).unwrap();
    let data = word(&image, first_l2(&image));
    for entry in [[data, 1 | 1 << 32], [0, 1], [0x4000_0000_0005_0000, 1], [data | 1, 1]] {
        let error = map_with_entry(&image, &entry).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    let runs = map_with_entry(&image, &[data, 0b10 | 0b100 << 32]).unwrap();
    let states: Vec<_> = runs.iter().map(|run| (run.span.len_bytes(), run.state)).collect();
    let offset = Offset::new((data & OFFSET) + 2048);
    let expected = [
        (2048, RunState::Hole),
        (2048, RunState::Data { file: FileIndex(0), offset }),
        (2048, RunState::Zero),
        (65_536 - 3 * 2048, RunState::Hole),
    ];
    assert_eq!(states, expected);
}

#[test]
fn a_last_cluster_cut_short_ends_in_zeros() {
    let dir = scratch();
    let path = make(dir.path(), "disk.qcow2", "", "1M", &["write -P 7 0 64k"]);
    let image = fs::read(&path).unwrap();
    let data_at = usize::try_from(word(&image, first_l2(&image)) & OFFSET).unwrap();
    assert_eq!(data_at + 65_536, image.len(), "the data is the last cluster");
    fs::write(&path, &image[..data_at + 10_240]).unwrap();
    check_against_qemu(&path);
    fs::write(&path, &image[..data_at]).unwrap();
    assert_eq!(open(&path).map(Span::from_zero(512)).unwrap_err().kind(), ErrorKind::Corrupt);
}

/// Opens, maps and reads some of an image.
fn look(file: Arc<dyn HostFile>) -> Result<()> {
    let chain = Chain::open(file, OpenOptions::default(), &NoFiles)?;
    chain.check_readable()?;
    let end = chain.len_bytes();
    let mut buf = vec![0; 70_000];
    for start in [0, 65_536, 1 << 20, end.saturating_sub(100_000)] {
        let start = start.min(end);
        let window = Span::between(Offset::new(start), Offset::new(end.min(start.saturating_add(1 << 20))));
        chain.map(window)?;
        let len = usize::try_from(window.len_bytes()).unwrap().min(buf.len());
        if len > 0 {
            chain.read_at(window.start(), &mut buf[..len])?;
        }
    }
    Ok(())
}

#[test]
fn bad_input_is_answered_by_an_error() {
    let dir = scratch();
    let raw = dir.path().join("source.raw");
    fs::write(&raw, mixed_contents(1 << 20)).unwrap();
    for options in ["compression_type=zlib", "compression_type=zstd,extended_l2=on"] {
        let path = dir.path().join("disk.qcow2");
        compress_by_qemu(&raw, options, &path);
        let good = fs::read(&path).unwrap();
        look(Arc::new(Memory::new(good.clone()))).unwrap();
        check_hostile(&good, 128, look);
        check_damaged_clusters(&good);
    }
}

/// Tables and compressed data with a byte changed, in each cluster of the file but the header's.
fn check_damaged_clusters(good: &[u8]) {
    for cluster in (65_536..good.len()).step_by(65_536) {
        for (at, change) in [(0, 0xff), (1, 0x80), (7, 1), (6, 2), (8, 0xff), (100, 0xff)] {
            let mut bytes = good.to_vec();
            let Some(byte) = bytes.get_mut(cluster + at) else { continue };
            *byte ^= change;
            if let Err(error) = look(Arc::new(Memory::new(bytes))) {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            }
        }
    }
}
