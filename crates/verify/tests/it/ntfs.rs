//! The check of NTFS against volumes of the real tools, and against each kind of damage to one.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support;
use crate::support::{source, source_of, text};
use block::ErrorKind;
use tempfile::TempDir;
use testkit::mounted::Mounted;
use testkit::{noise, run, scratch};

struct Made {
    _dir: TempDir,
    volume: PathBuf,
    bytes: Vec<u8>,
    /// The records of some files.
    plain: u64,
    other: u64,
    pieces: u64,
    packed: u64,
    large: u64,
    renamed: u64,
}

/// A volume with every kind of file that ntfs-3g makes.
fn make(options: &[&str]) -> Made {
    let dir = scratch();
    let volume = dir.path().join("volume");
    File::create(&volume).unwrap().set_len(24 << 20).unwrap();
    run("mkntfs", &[&["-qQF"], options, &[text(&volume)]].concat());
    let mounted = Mounted::ntfs(&volume, "compression,special_files=wsl");
    let root = mounted.path();
    fs::write(root.join("plain"), noise(1, 20_000)).unwrap();
    fs::write(root.join("other"), noise(2, 20_000)).unwrap();
    fs::write(root.join("plain:small"), "stream").unwrap();
    fs::write(root.join("plain:large"), noise(3, 70_000)).unwrap();
    fs::hard_link(root.join("plain"), root.join("another name")).unwrap();
    let pieces = File::create(root.join("pieces")).unwrap();
    for index in 0..700 {
        pieces.write_all_at(&noise(index, 4096), index * 8192).unwrap();
    }
    drop(pieces);
    fs::create_dir(root.join("packed")).unwrap();
    let _ = Command::new("setfattr")
        .args(["-h", "-n", "system.ntfs_attrib_be", "-v", "0x00000810", text(&root.join("packed"))])
        .status();
    let mut compressible = noise(7, 30_000);
    compressible.extend(vec![b'a'; 200_000]);
    compressible.extend(noise(8, 30_000));
    fs::write(root.join("packed/file"), &compressible).unwrap();
    fs::create_dir(root.join("large")).unwrap();
    for index in 0..250 {
        fs::write(root.join(format!("large/a name that is rather long, so that blocks fill {index}")), "x")
            .unwrap();
    }
    for index in (0..250).step_by(3) {
        fs::remove_file(root.join(format!("large/a name that is rather long, so that blocks fill {index}")))
            .unwrap();
    }
    let number = |name: &str| fs::metadata(root.join(name)).unwrap().ino();
    let numbers = ["plain", "other", "pieces", "packed/file", "large"].map(number);
    let renamed = number("large/a name that is rather long, so that blocks fill 100");
    drop(mounted);
    let bytes = fs::read(&volume).unwrap();
    let [plain, other, pieces, packed, large] = numbers;
    Made { _dir: dir, volume, bytes, plain, other, pieces, packed, large, renamed }
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()))
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn cluster(bytes: &[u8]) -> usize {
    u16_at(bytes, 11) * usize::from(bytes[13])
}

/// Where a record of `$MFT` lies: the first that says so, as mkntfs puts `$MFT` before its mirror.
fn record(bytes: &[u8], number: u64) -> usize {
    let start = u32_at(bytes, 0x30) * cluster(bytes);
    let is_it = |at: &usize| bytes[*at..].starts_with(b"FILE") && u32_at(bytes, *at + 44) as u64 == number;
    (start..bytes.len() - 1023).step_by(1024).find(is_it).unwrap()
}

/// Where an attribute of a record lies.
fn attribute(bytes: &[u8], number: u64, kind: u32) -> usize {
    let at = record(bytes, number);
    let mut at = at + u16_at(bytes, at + 20);
    while u32_at(bytes, at) != kind as usize {
        assert_ne!(u32_at(bytes, at), 0xffff_ffff, "record {number} has no attribute {kind:#x}");
        at += u32_at(bytes, at + 4);
    }
    at
}

/// Where the mapping pairs of a record's attribute begin.
fn pairs(bytes: &[u8], number: u64, kind: u32) -> usize {
    let at = attribute(bytes, number, kind);
    at + u16_at(bytes, at + 32)
}

/// Where the first run of a record's attribute lies on the volume.
fn place(bytes: &[u8], number: u64, kind: u32) -> usize {
    let at = pairs(bytes, number, kind);
    let (count_len, lcn_len) = (usize::from(bytes[at] & 15), usize::from(bytes[at] >> 4));
    let lcn = bytes[at + 1 + count_len..][..lcn_len]
        .iter()
        .rev()
        .fold(0, |lcn, byte| lcn << 8 | usize::from(*byte));
    lcn * cluster(bytes)
}

/// The value of a resident attribute.
fn value(bytes: &[u8], number: u64, kind: u32) -> usize {
    let at = attribute(bytes, number, kind);
    at + u16_at(bytes, at + 20)
}

/// The first two entries of the first block of the large directory.
fn entries(bytes: &[u8], made: &Made) -> (usize, usize) {
    let node = place(bytes, made.large, 0xa0) + 24;
    let first = node + u32_at(bytes, node);
    (first, first + u16_at(bytes, first + 8))
}

/// A record's base reference, as it stands in others.
fn extension_of(bytes: &[u8], number: u64) -> usize {
    let start = u32_at(bytes, 0x30) * cluster(bytes);
    (start..bytes.len() - 1023)
        .step_by(1024)
        .find(|at| bytes[*at..].starts_with(b"FILE") && u64_at(bytes, at + 32) & 0xffff_ffff_ffff == number)
        .expect("an extension record")
}

type Damage = fn(&mut [u8], &Made);

/// What is damaged, how, what the check says of it, and whether ntfsresize sees it.
const DAMAGES: &[(&str, Damage, &str, bool)] = &[
    (
        "a used cluster marked free",
        |b, m| {
            let at = place(b, m.plain, 0x80) / cluster(b);
            b[place(b, 6, 0x80) + at / 8] ^= 1 << (at % 8);
        },
        "NTFS $Bitmap: bit of cluster",
        true,
    ),
    (
        "a free cluster marked used",
        |b, _| {
            let bitmap = place(b, 6, 0x80);
            let clusters = b.len() / cluster(b) - 8;
            let free = (0..clusters).rev().find(|at| b[bitmap + at / 8] >> (at % 8) & 1 == 0).unwrap();
            b[bitmap + free / 8] |= 1 << (free % 8);
        },
        "is set, expected clear: it has no owner",
        true,
    ),
    (
        "a run of another file",
        |b, m| {
            let from = pairs(b, m.plain, 0x80);
            let to = pairs(b, m.other, 0x80);
            b.copy_within(from..from + 8, to);
        },
        "which has an owner, expected clusters of its own",
        true,
    ),
    (
        "a first VCN that is not 0",
        |b, m| b[attribute(b, m.plain, 0x80) + 16] = 1,
        "lowest VCN of attribute 0x80",
        true,
    ),
    ("a last VCN too high", |b, m| b[attribute(b, m.plain, 0x80) + 24] += 1, "expected one at VCN", true),
    ("a last VCN too low", |b, m| b[attribute(b, m.plain, 0x80) + 24] -= 1, "expected an end at VCN", true),
    (
        "a run without end",
        |b, m| {
            let at = pairs(b, m.plain, 0x80);
            b[at..at + 8].fill(0x11);
        },
        "mapping pairs of attribute 0x80",
        true,
    ),
    (
        "a run past the end of the volume",
        |b, m| {
            let at = pairs(b, m.plain, 0x80);
            let last = at + usize::from(b[at] & 15) + usize::from(b[at] >> 4);
            b[last] = 0x7f;
        },
        "expected within the volume",
        true,
    ),
    (
        "a size allocated that is not that of the runs",
        |b, m| b[attribute(b, m.plain, 0x80) + 41] ^= 0x10,
        "allocated size",
        true,
    ),
    (
        "more bytes than allocated",
        |b, m| b[attribute(b, m.plain, 0x80) + 50] = 9,
        "size of attribute 0x80",
        false,
    ),
    ("more initialised than there is", |b, m| b[attribute(b, m.plain, 0x80) + 58] = 9, "initialised", false),
    (
        "a wrong compressed size",
        |b, m| b[attribute(b, m.packed, 0x80) + 65] ^= 0x10,
        "compressed size",
        false,
    ),
    (
        "a torn record",
        |b, m| {
            let at = record(b, m.plain);
            b[at + 510] ^= 1;
        },
        "update sequence at the end of stride 0",
        true,
    ),
    (
        "a record that chkdsk gave up",
        |b, m| {
            let at = record(b, m.plain);
            b[at..at + 4].copy_from_slice(b"BAAD");
        },
        "magic is \"BAAD\"",
        true,
    ),
    (
        "a record under another number",
        |b, m| {
            let at = record(b, m.plain);
            b[at + 45] ^= 1;
        },
        "its own number",
        false,
    ),
    (
        "a wrong count of links",
        |b, m| {
            let at = record(b, m.plain);
            b[at + 18] = 3;
        },
        "hard links is 3, expected 2",
        false,
    ),
    (
        "a record not in use",
        |b, m| {
            let at = record(b, m.plain);
            b[at + 22] = 0;
        },
        "flags is not in use",
        true,
    ),
    (
        "a record in use marked free",
        |b, m| {
            let at = place(b, 0, 0xb0) + m.plain as usize / 8;
            b[at] ^= 1 << (m.plain % 8);
        },
        "bit of $MFT's bitmap is clear, expected set",
        false,
    ),
    (
        "a record marked used that is not",
        |b, _| {
            let at = place(b, 0, 0xb0);
            let free = (24..).find(|number| b[at + number / 8] >> (number % 8) & 1 == 0).unwrap();
            b[at + free / 8] |= 1 << (free % 8);
        },
        "NTFS file record",
        false,
    ),
    (
        "a mirror that is not the same",
        |b, _| {
            let at = u32_at(b, 0x38) * cluster(b) + 1024;
            b[at + 16] ^= 1;
        },
        "$MFTMirr's record 1",
        true,
    ),
    (
        "a dirty flag",
        |b, _| {
            let at = value(b, 3, 0x70);
            b[at + 10] |= 1;
        },
        "NTFS $Volume: flags is 0x0001",
        true,
    ),
    (
        "a log with something in it",
        |b, _| {
            let at = place(b, 2, 0x80);
            b[at] = 0;
        },
        "NTFS $LogFile",
        false,
    ),
    (
        "two index blocks exchanged",
        |b, m| {
            let at = place(b, m.large, 0xa0);
            let (one, other) = b[at..at + 8192].split_at_mut(4096);
            one.swap_with_slice(other);
        },
        "own VCN",
        false,
    ),
    (
        "a torn index block",
        |b, m| {
            let at = place(b, m.large, 0xa0);
            b[at + 511] ^= 1;
        },
        "update sequence",
        false,
    ),
    (
        "an index block marked free",
        |b, m| {
            let at = value(b, m.large, 0xb0);
            b[at] &= !1;
        },
        "bit 0 of the bitmap is clear",
        false,
    ),
    (
        "an index block marked used that is not",
        |b, m| {
            let at = value(b, m.large, 0xb0);
            b[at + 7] |= 0x80;
        },
        "bit 63 of the bitmap is set",
        false,
    ),
    (
        "keys out of order",
        |b, m| {
            let (first, _) = entries(b, m);
            b[first + 16 + 66] = b'z';
        },
        "order of keys",
        false,
    ),
    (
        "an entry that leads to another use of its record",
        |b, m| {
            let (first, _) = entries(b, m);
            b[first + 6] ^= 1;
        },
        "is missing, expected there",
        false,
    ),
    (
        "an entry of another directory",
        |b, m| {
            let (first, _) = entries(b, m);
            b[first + 16] ^= 1;
        },
        "parent of",
        false,
    ),
    (
        "an entry that is too long",
        |b, m| {
            let (first, _) = entries(b, m);
            b[first + 9] = 0x70;
        },
        "entry's length",
        false,
    ),
    (
        "a name that no index has",
        |b, m| {
            let at = value(b, m.renamed, 0x30);
            b[at + 66] = b'b';
        },
        "is missing, expected there",
        false,
    ),
    (
        "a child that is met twice",
        |b, m| {
            let root = value(b, m.large, 0x90) + 16;
            let first = root + u32_at(b, root);
            let len = u16_at(b, first + 8);
            let second = first + len;
            let second_len = u16_at(b, second + 8);
            b.copy_within(first + len - 8..first + len, second + second_len - 8);
        },
        "met before",
        false,
    ),
    (
        "a child past the end",
        |b, m| {
            let root = value(b, m.large, 0x90) + 16;
            let first = root + u32_at(b, root);
            let end = first + u16_at(b, first + 8);
            b[end - 7] = 0x40;
        },
        "past the end",
        false,
    ),
    (
        "a list that names another attribute",
        |b, m| {
            let at = extension_of(b, m.pieces);
            let first = at + u16_at(b, at + 20);
            b[first + 14] ^= 0x40;
        },
        "list is attribute 0x",
        false,
    ),
    (
        "an extension record of another file",
        |b, m| {
            let at = extension_of(b, m.pieces);
            b[at + 32] ^= 1;
        },
        "base record",
        false,
    ),
    (
        "an attribute out of order",
        |b, m| {
            let at = attribute(b, m.plain, 0x10);
            b[at] = 0x60;
        },
        "attributes' order",
        true,
    ),
    (
        "two attributes of one number",
        |b, m| {
            let from = attribute(b, m.plain, 0x10);
            let to = attribute(b, m.plain, 0x80);
            b.copy_within(from + 14..from + 16, to + 14);
        },
        "expected that of no other attribute",
        false,
    ),
];

fn ntfsresize_agrees(volume: &Path) -> bool {
    let output = Command::new("ntfsresize").args(["--info", text(volume)]).output().expect("ntfsresize");
    output.status.success()
}

/// Damages of indexes, and of names held against them, which do not tell who owns what.
const NOT_OF_OWNERS: [&str; 11] = [
    "two index blocks exchanged",
    "a torn index block",
    "an index block marked free",
    "an index block marked used that is not",
    "keys out of order",
    "an entry that leads to another use of its record",
    "an entry of another directory",
    "an entry that is too long",
    "a name that no index has",
    "a child that is met twice",
    "a child past the end",
];

#[test]
fn each_kind_of_damage_is_named() {
    let made = make(&[]);
    verify::volume::check(&source_of(made.bytes.clone())).unwrap();
    let damaged = made.volume.with_extension("damaged");
    let mut failures = Vec::new();
    for (what, damage, wanted, is_seen) in DAMAGES {
        let mut bytes = made.bytes.clone();
        damage(&mut bytes, &made);
        assert!(bytes != made.bytes, "{what}: nothing is damaged");
        match verify::volume::check(&source_of(bytes.clone())) {
            Ok(_) => failures.push(format!("{what}: not found")),
            Err(error) if error.kind() != ErrorKind::Corrupt => failures.push(format!("{what}: {error:?}")),
            Err(error) if !error.to_string().contains(wanted) => failures.push(format!("{what}: {error}")),
            Err(_) => {}
        }
        failures.extend(support::judge_owners(&source_of(bytes.clone()), what, wanted, &NOT_OF_OWNERS));
        fs::write(&damaged, &bytes).unwrap();
        if ntfsresize_agrees(&damaged) == *is_seen {
            failures.push(format!("{what}: seen by ntfsresize: {}", !is_seen));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn volumes_of_the_real_tools_pass_as_they_say() {
    for options in [&[][..], &["-c", "512"], &["-c", "65536"], &["-s", "4096"], &["-s", "1024", "-c", "2048"]]
    {
        let made = make(options);
        assert!(ntfsresize_agrees(&made.volume), "{options:?}");
        run("ntfsfix", &["-n", text(&made.volume)]);
        let report = verify::volume::check(&source(&made.volume))
            .unwrap_or_else(|error| panic!("{options:?}: {error}"));
        assert!(report.files > 150 && report.directories == 4 && report.names > 150, "{report:?}");
        let info = run("ntfsresize", &["--info", text(&made.volume)]);
        let used =
            info.lines().find_map(|line| line.strip_prefix("Space in use       : ")).expect("its line");
        let used: u64 = used.split(' ').next().unwrap().parse().unwrap();
        assert!(
            report.used_bytes.abs_diff(used * 1_000_000) < 1_100_000,
            "{report:?}: {used} MB by ntfsresize"
        );
    }
}
