//! Files in containers that are not read, made by the programs that make them, are refused by name, whatever they are called; disks are not.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use block::{Error, ErrorKind};
use image::{Chain, Format, NoFiles, OpenOptions};
use testkit::{TestFile, run, scratch};

fn open(path: &Path, format: Option<Format>) -> Result<Format, Error> {
    let chain = Chain::open(TestFile::open(path), OpenOptions { format }, &NoFiles)?;
    Ok(chain.facts().format)
}

/// Under each of these names: of no format, of no meaning, of raw disks.
const NAMES: [&str; 4] = ["file", "file.img", "file.raw", "file.dd"];

#[track_caller]
fn assert_refused(dir: &Path, file: &Path, words: &str) {
    for name in NAMES {
        let path = dir.join(name);
        fs::rename(file, &path).unwrap();
        let error = open(&path, None).expect_err(words);
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
        assert!(error.to_string().contains(words), "{name}: '{words}' in {error}");
        assert!(error.hint_text().unwrap().contains("-f raw"), "{name}: {error}");
        assert_eq!(open(&path, Some(Format::Raw)).unwrap(), Format::Raw);
        fs::rename(&path, file).unwrap();
    }
}

/// `script` makes `$OUT` of the disk `$DISK`, in a folder of its own.
fn assert_made_is_refused(script: &str, words: &str) {
    let dir = scratch();
    let made = dir.path().join("made");
    let script = format!(
        "cd {}; truncate -s 3M disk; printf something | dd of=disk conv=notrunc bs=1 seek=2M status=none; {script}",
        dir.path().display()
    );
    run("bash", &["-ec", &script]);
    assert_refused(dir.path(), &made, words);
}

#[test]
fn images_of_other_programs() {
    for (format, words) in [("qed", "QED"), ("parallels", "Parallels"), ("qcow", "QCOW image of version 1")] {
        assert_made_is_refused(&format!("qemu-img convert -f raw -O {format} disk made"), words);
    }
    let ntfs = "truncate -s 8M volume; mkntfs -q -F -f volume 2>&1";
    assert_made_is_refused(&format!("{ntfs}; ntfsclone -q -f --save-image -o made volume 2>&1"), "ntfsclone");
    assert_made_is_refused(
        &format!("{ntfs}; partclone.ntfs -c -F -s volume -o made -L log 2>&1"),
        "partclone",
    );
}

#[test]
fn discs() {
    assert_made_is_refused(
        "mkdir folder; touch folder/file; genisoimage -quiet -o made folder",
        "disc image",
    );
}

#[test]
fn archives_and_compressed_files() {
    for (script, words) in [
        ("gzip -c disk > made", "gzip"),
        ("gzip -nc < disk > made", "gzip"),
        ("xz -c disk > made", "xz"),
        ("zstd -qc disk > made", "zstd"),
        ("tar cf made disk", "tar archive"),
        ("tar cf made --format=v7 disk", "tar archive"),
        ("tar cf made --format=gnu -b 1 disk", "tar archive"),
        ("touch vm.ovf; tar cf made --format=ustar vm.ovf disk", "OVA"),
        ("python3 -c 'import zipfile; zipfile.ZipFile(\"made\", \"w\").write(\"disk\")'", "ZIP archive"),
        (
            "python3 -c 'import bz2; open(\"made\", \"wb\").write(bz2.compress(open(\"disk\", \"rb\").read()))'",
            "bzip2",
        ),
    ] {
        assert_made_is_refused(script, words);
    }
}

/// Of programs that are not everywhere: their magic numbers where their documents say.
#[test]
fn magic_numbers_alone() {
    type Patch = (u64, &'static [u8]);
    let cases: [(&str, &[Patch]); 24] = [
        ("E01", &[(0, b"EVF\x09\x0d\x0a\xff\x00\x01")]),
        ("Ex01", &[(0, b"EVF2\x0d\x0a\x81\x00\x02")]),
        ("L01", &[(0, b"LVF\x09\x0d\x0a\xff\x00\x01")]),
        ("AFF", &[(0, b"AFF10\r\n\0")]),
        ("DMG", &[((1 << 20) - 512, b"koly\0\0\0\x04\0\0\x02\0")]),
        ("DMG", &[(0, b"encrcdsa\0\0\0\x02")]),
        ("Android sparse", &[(0, b"\x3a\xff\x26\xed\x01\0\0\0\x1c\0\x0c\0\0\x10\0\0")]),
        ("WIM", &[(0, b"MSWIM\0\0\0\xd0\0\0\0")]),
        ("lz4", &[(0, b"\x04\x22\x4d\x18\x64\x40\xa7")]),
        ("lzip", &[(0, b"LZIP\x01\x0c")]),
        ("lzop", &[(0, b"\x89LZO\0\x0d\x0a\x1a\x0a\x10")]),
        ("7-Zip", &[(0, b"7z\xbc\xaf\x27\x1c\0\x04")]),
        ("RAR", &[(0, b"Rar!\x1a\x07\x01\0")]),
        ("Cabinet", &[(0, b"MSCF\0\0\0\0")]),
        ("cpio", &[(0, b"070701")]),
        ("Bochs", &[(0, b"Bochs Virtual HD Image\0Redolog\0")]),
        ("Partimage", &[(0, b"PaRtImAgE-VoLuMe")]),
        ("FSArchiver", &[(0, b"FsA0abcd"), (40, b"FsArCh_002")]),
        ("cloop", &[(0, b"#!/bin/sh\n#V2.0 Format\nmodprobe cloop")]),
        ("Proxmox", &[(0, b"VMA\0\0\0\0\x01")]),
        ("disc image", &[(32 << 10, b"\x01CD001\x01\0")]),
        ("Parallels", &[(0, b"WithouFreSpacExt\x02\0\0\0")]),
        ("QED", &[(0, b"QED\0\0\0\x01\0\x04\0\0\0")]),
        ("zstd", &[(0, b"\x50\x2a\x4d\x18\x04\0\0\0")]),
    ];
    for (words, patches) in cases {
        let dir = scratch();
        let path = dir.path().join("made");
        let file = File::create_new(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        for (at, bytes) in patches {
            file.write_all_at(bytes, *at).unwrap();
        }
        assert_refused(dir.path(), &path, words);
    }
}

#[test]
fn text_and_nothing() {
    let long = "a line of text, with ümlauts\n".repeat(1000);
    for (text, words) in [
        ("", "empty file"),
        ("short", "text file"),
        ("{\"disks\": []}\n", "text file"),
        ("<?xml version=\"1.0\"?>\n<Envelope/>\n", "XML document"),
        (long.as_str(), "text file"),
    ] {
        let dir = scratch();
        let path = dir.path().join("made");
        fs::write(&path, text).unwrap();
        assert_refused(dir.path(), &path, words);
    }
    let dir = scratch();
    for (name, words) in [("vm.ovf", "OVF"), ("vm.vmx", "virtual machine"), ("vm.vhds", "VHD set")] {
        let path = dir.path().join(name);
        fs::write(&path, "# a description\n").unwrap();
        let error = open(&path, None).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// A disk that begins with what could be something else.
#[test]
fn disks_are_disks() {
    let table = {
        let mut sector = vec![0; 512];
        sector[446..462].copy_from_slice(&[0x80, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0]);
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        sector
    };
    let with = |patches: &[(usize, &[u8])], base: &[u8]| {
        let mut disk = vec![0; 1 << 20];
        disk[..base.len()].copy_from_slice(base);
        for (at, bytes) in patches {
            disk[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        disk
    };
    let cases = [
        ("zeros", with(&[], &[])),
        ("one letter", vec![b'a'; 1 << 20]),
        ("lines behind a boot sector", with(&[(512, b"text\n")], &table)),
        ("gzip's magic number and a partition table", with(&[(0, b"\x1f\x8b\x08\0\0\0\0\0\0\x03")], &table)),
        ("gzip's magic number alone", with(&[(0, b"\x1f\x8b\x08\xff")], &[])),
        ("a disc that boots from a stick", with(&[(32 << 10, b"\x01CD001\x01\0")], &table)),
        ("a disc's descriptor behind code", with(&[(32 << 10, b"\x01CD001\x01\0")], &[0xfa])),
        ("koly and a partition table", with(&[((1 << 20) - 512, b"koly\0\0\0\x04\0\0\x02\0")], &table)),
        ("QED's magic number alone", with(&[(0, b"QED\0\0")], &[])),
        ("PK alone", with(&[(0, b"PK\x03\x04")], &[])),
    ];
    let dir = scratch();
    for (words, disk) in cases {
        for name in NAMES {
            let path = dir.path().join(name);
            fs::write(&path, &disk).unwrap();
            assert_eq!(
                open(&path, None).map_err(|error| error.to_string()),
                Ok(Format::Raw),
                "{words}, {name}"
            );
        }
    }
}
