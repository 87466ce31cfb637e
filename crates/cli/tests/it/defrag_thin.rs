//! `leandisk defrag` of thin images in which all files were written in turns: no file is left in pieces, and the image is as large as it was.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::common::{arg, document, number};
use testkit::mounted::Mounted;
use testkit::{run, scratch};

const DISK_BYTES: u64 = 192 << 20;
const FILES: u64 = 64;
/// Of the volume, when the last file has grown.
const FULL_PERCENT: u64 = 78;

/// What the files hold.
#[derive(Clone, Copy, PartialEq)]
enum Contents {
    Noise,
    /// Every third piece is zeros, which a copy leaves out.
    SomeZeros,
}

/// Files of two or three MiB that grow in turns, by 128 or 64 KiB.
fn write_in_turns(volume: &Path, contents: Contents) {
    fs::File::create(volume).unwrap().set_len(DISK_BYTES).unwrap();
    run("mkntfs", &["-qQF", arg(volume)]);
    let mounted = Mounted::ntfs(volume, "");
    let mut files: Vec<_> = (0..FILES)
        .map(|index| fs::File::create(mounted.path().join(format!("file {index}"))).unwrap())
        .collect();
    let mut written = vec![0; files.len()];
    let (mut sum, mut state) = (0, 1u64);
    while sum < DISK_BYTES * FULL_PERCENT / 100 - (3 << 20) {
        let before = sum;
        for (index, file) in (0u64..).zip(&mut files) {
            let (piece, most) = if index % 2 == 0 { (64 << 10, 3 << 20) } else { (128 << 10, 2 << 20) };
            let done = &mut written[usize::try_from(index).unwrap()];
            if *done < most {
                let bytes: Vec<u8> = (0..piece / 8)
                    .flat_map(|_| {
                        state = state
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        state.to_le_bytes()
                    })
                    .collect();
                let is_empty = contents == Contents::SomeZeros && state % 3 == 0;
                file.write_all(&if is_empty { vec![0; bytes.len()] } else { bytes }).unwrap();
                *done += piece;
                sum += piece;
            }
        }
        assert!(sum > before, "the files are large enough");
    }
}

fn check(format: &str, contents: Contents) {
    let dir = scratch();
    let (raw, image) = (dir.path().join("whole.raw"), dir.path().join(format!("disk.{format}")));
    write_in_turns(&raw, contents);
    let before = Mounted::ntfs(&raw, "ro").tree();
    run("qemu-img", &["convert", "-O", format, arg(&raw), arg(&image)]);
    let has_zeros = fs::metadata(&image).unwrap().blocks() * 512 < DISK_BYTES * 2 / 3;
    assert_eq!(has_zeros, contents == Contents::SomeZeros);
    run("sync", &["-f", arg(&image)]);
    let sizes = || {
        let metadata = fs::metadata(&image).unwrap();
        (metadata.blocks() * 512, metadata.len())
    };
    let (allocated, length) = sizes();
    let done = document("leandisk.defrag/1", &["defrag", arg(&image), "-f", format]);
    run("sync", &["-f", arg(&image)]);
    let volume = &done["volumes"][0];
    assert!(number(volume, "/before/fragmented_files") >= FILES - 1, "{done:#}");
    assert_eq!(number(volume, "/after/fragmented_files"), 0, "{done:#}");
    assert_eq!(number(volume, "/left"), 0, "{done:#}");
    let (allocated_after, length_after) = sizes();
    let most = DISK_BYTES / 1000;
    assert!(allocated_after <= allocated + most, "{allocated} bytes became {allocated_after}");
    // A few units of which the host has a part back may be more than before.
    assert!(length_after <= length + 4 * most, "a file of {length} bytes is of {length_after}");
    if format != "raw" {
        run("qemu-img", &["check", "-q", "-f", format, arg(&image)]);
    }
    fs::remove_file(&raw).unwrap();
    run("qemu-img", &["convert", "-f", format, "-O", "raw", arg(&image), arg(&raw)]);
    run("ntfsfix", &["-n", arg(&raw)]);
    Mounted::ntfs(&raw, "ro").tree().assert_same(&before, format);
}

#[test]
fn dynamic_vhdx() {
    check("vhdx", Contents::Noise);
}

#[test]
fn qcow2() {
    check("qcow2", Contents::Noise);
}

#[test]
fn what_reads_as_zeros_and_is_not_stored_costs_nothing() {
    for format in ["raw", "vhdx"] {
        check(format, Contents::SomeZeros);
    }
}
