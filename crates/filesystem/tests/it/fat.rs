//! FAT12, FAT16 and FAT32 against mkfs.fat, fsck.fat and mtools: used maps, files, contents, and what is doubted.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::support::{copy_but, source, spans, text};
use extent::Offset;
use filesystem::{Catalog, Check, FileKind, FileSystem, State, Use};
use testkit::{run, scratch};

/// Options of mkfs.fat, the size in KiB, and what the volume is called.
const KINDS: &[(&str, u64, &str)] = &[
    ("-F 12", 1440, "fat12"),
    ("-F 12 -s 1", 2000, "fat12"),
    ("-F 12 -s 8 -f 1 -r 512", 8192, "fat12"),
    ("-F 12 -S 1024 -s 4", 12_001, "fat12"),
    ("-F 16", 16_384, "fat16"),
    ("-F 16 -s 1 -f 1", 8192, "fat16"),
    ("-F 16 -s 4 -r 1024 -R 9", 32_767, "fat16"),
    ("-F 16 -S 4096 -s 1", 65_536, "fat16"),
    ("-F 16 -a", 16_385, "fat16"),
    ("-F 32 -s 1", 40_000, "fat32"),
    ("-F 32", 49_152, "fat32"),
    ("-F 32 -s 8 -R 64 -f 1", 300_001, "fat32"),
    ("-F 32 -S 2048 -s 2 -a", 280_000, "fat32"),
    ("-F 32 -s 1 -b 3 -f 1 -M 0xf0 -h 2048", 36_000, "fat32"),
];

fn open(path: &Path) -> Box<dyn FileSystem> {
    filesystem::open(&source(path)).unwrap().expect("a boot sector of FAT")
}

fn make(path: &Path, options: &str, kib: u64) {
    File::create(path).unwrap().set_len(kib << 10).unwrap();
    let mut args: Vec<&str> = options.split_whitespace().collect();
    args.push(text(path));
    run("mkfs.fat", &args);
}

fn mtools(program: &str, volume: &Path, args: &[&str]) {
    let mut all = vec!["-i", text(volume)];
    all.extend(args);
    run(program, &all);
}

/// What fsck.fat says, and whether it is content.
fn fsck(volume: &Path) -> (String, bool) {
    let output = Command::new("fsck.fat").args(["-n", "-v", text(volume)]).output().unwrap();
    (String::from_utf8_lossy(&output.stdout).replace(text(volume), "it"), output.status.success())
}

/// Files with long and short names in directories within directories, some of them in pieces, until the volume is about so full; what
/// was deleted stays in free clusters. Answers what each path holds.
fn fill(volume: &Path, percent: u64, dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let facts = open(volume).facts().clone();
    let (free, cluster) = (facts.free_bytes.unwrap(), facts.cluster_bytes.unwrap());
    let budget = (free * percent / 100).saturating_sub(8 * cluster);
    mtools("mmd", volume, &["::/DIR", "::/DIR/a directory with a longer name"]);
    let mut kept = BTreeMap::new();
    let count = 24;
    let mut gone = Vec::new();
    let places = ["::/", "::/DIR/", "::/DIR/a directory with a longer name/"];
    for index in 0..count {
        let len = usize::try_from((budget / count).saturating_sub(cluster / 2) + index % 3).unwrap();
        let contents: Vec<u8> = (0..len)
            .map(|at| u8::try_from((at / 7 + 31 * usize::try_from(index).unwrap()) % 255 + 1).unwrap())
            .collect();
        let local = dir.join("local");
        fs::write(&local, &contents).unwrap();
        let name = if index % 2 == 0 {
            format!("F{index}.BIN")
        } else {
            format!("grüße, die Länge hat {index}.txt")
        };
        let path = format!("{}{name}", places[usize::try_from(index).unwrap() % 3]);
        mtools("mcopy", volume, &[text(&local), &path]);
        if index % 4 == 1 {
            gone.push(path.clone());
        }
        kept.insert(path, contents);
    }
    for path in gone {
        mtools("mdel", volume, &[&path]);
        kept.remove(&path);
    }
    // What was given back is filled again, in pieces.
    if percent >= 50 {
        let contents = vec![0x5a; usize::try_from((budget / 6).saturating_sub(2 * cluster)).unwrap()];
        let local = dir.join("local");
        fs::write(&local, &contents).unwrap();
        mtools("mcopy", volume, &[text(&local), "::/pieces"]);
        kept.insert("::/pieces".into(), contents);
    }
    kept
}

/// A copy of what is used alone; the rest is `filler`.
fn copy_used(volume: &Path, copy: &Path, filler: u8) {
    let len = fs::metadata(volume).unwrap().len();
    copy_but(&spans(&*open(volume), Check::Full, len, Use::Free), volume, copy, filler);
}

/// Used and all clusters, by the last line of `fsck.fat -v`.
fn clusters(said: &str) -> (u64, u64) {
    let line = said.lines().rev().find(|line| line.ends_with("clusters")).unwrap();
    let (used, all) = line.rsplit(' ').nth(1).unwrap().split_once('/').unwrap();
    (used.parse().unwrap(), all.parse().unwrap())
}

#[test]
fn every_kind_is_copied_used_only_and_whole_to_its_tools() {
    let dir = scratch();
    let (volume, copy, back) = (dir.path().join("volume"), dir.path().join("copy"), dir.path().join("back"));
    for (options, kib, kind) in KINDS {
        for percent in [5, 50, 99] {
            make(&volume, options, *kib);
            let kept = fill(&volume, percent, dir.path());
            let (said, is_clean) = fsck(&volume);
            assert!(is_clean, "{options}: {said}");
            let filesystem = open(&volume);
            let facts = filesystem.facts();
            assert_eq!((facts.filesystem.as_str(), &facts.state), (*kind, &State::Clean), "{options}");
            let (used, all) = clusters(&said);
            assert_eq!(
                facts.free_bytes,
                Some((all - used) * facts.cluster_bytes.unwrap()),
                "{options}: {said}"
            );
            let len = fs::metadata(&volume).unwrap().len();
            let free = spans(&*filesystem, Check::Full, len, Use::Free);
            assert_eq!(Some(free.total_bytes()), facts.free_bytes, "{options}");
            let mut listed = 0;
            filesystem.each_free_span(&mut |span| listed += span.len_bytes()).unwrap();
            assert_eq!(listed, free.total_bytes());
            compare_files(&*filesystem, &kept);
            for filler in [0, 0xff] {
                copy_used(&volume, &copy, filler);
                assert_eq!(fsck(&copy).0, said, "{options}");
                for (path, contents) in &kept {
                    let _ = fs::remove_file(&back);
                    mtools("mcopy", &copy, &[path, text(&back)]);
                    assert!(fs::read(&back).unwrap() == *contents, "{options}: {path}");
                }
            }
            println!(
                "{options}, {kib} KiB, {percent} %: {} of {} clusters used, {} files",
                used,
                all,
                kept.len()
            );
        }
    }
}

/// Every file has the path, length and contents that it was given.
fn compare_files(filesystem: &dyn FileSystem, kept: &BTreeMap<String, Vec<u8>>) {
    let catalog = Catalog::read(filesystem).unwrap();
    assert_eq!(catalog.doubts(), []);
    let mut found = 0;
    for stream in catalog.streams().filter(|stream| stream.stream.kind == FileKind::Regular) {
        let path = format!("::{}", String::from_utf8(stream.path()).unwrap());
        let contents = kept.get(&path).unwrap_or_else(|| panic!("{path} is no file of {:?}", kept.keys()));
        assert_eq!(stream.stream.size_bytes, contents.len() as u64, "{path}");
        let opened = filesystem.open_stream(stream.stream.file, stream.stream.name).unwrap();
        let mut bytes = vec![0; contents.len()];
        opened.read_at(Offset::ZERO, &mut bytes).unwrap();
        assert!(bytes == *contents, "{path}");
        found += 1;
    }
    assert_eq!(found, kept.len());
}

fn poke(volume: &Path, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(volume).unwrap().write_all_at(bytes, at).unwrap();
}

/// Why a volume is not believed.
fn reason(volume: &Path) -> String {
    open(volume).used_map(Check::Full).err().expect("a reason").to_string()
}

#[test]
fn what_is_in_doubt_is_whole() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    let cases: [(&str, u64, u64, &[u8], &str); 10] = [
        ("-F 12", 1440, 37, &[1], "not unmounted cleanly"),
        ("-F 32 -s 1", 40_000, 65, &[1], "not unmounted cleanly"),
        ("-F 32 -s 1", 40_000, 65, &[2], "errors were met"),
        ("-F 32 -s 1", 40_000, 40, &[0x81], "not mirrored"),
        ("-F 32 -s 1", 40_000, 32 * 512 + 7, &[0x07], "not unmounted cleanly"),
        ("-F 16 -a -s 4 -R 1", 32_768, 512 + 3, &[0x7f], "not unmounted cleanly"),
        ("-F 32 -s 1", 40_000, 32 * 512 + 400, &[9], "FATs differ"),
        ("-F 32 -s 1", 40_000, 44, &[3], "copy differ"),
        ("-F 12", 1440, 512, &[0], "entry of cluster 0"),
        ("-F 32 -s 1 -f 1", 40_000, 32 * 512 + 8, &[0xf7, 0xff, 0xff, 0x0f], "FAT root directory: "),
    ];
    for (options, kib, at, bytes, expected) in cases {
        make(&volume, options, kib);
        assert!(open(&volume).used_map(Check::Full).is_ok(), "{options}");
        poke(&volume, at, bytes);
        assert!(reason(&volume).contains(expected), "{options} at {at}: {}", reason(&volume));
    }
    make(&volume, "-F 16", 16_384);
    OpenOptions::new().write(true).open(&volume).unwrap().set_len(16_000 << 10).unwrap();
    assert!(reason(&volume).contains("TotSec"), "{}", reason(&volume));
}

#[test]
fn what_nobody_owns_is_used_and_bad_clusters_are() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    make(&volume, "-F 16 -a -s 4 -R 1 -f 1", 32_768);
    let before = open(&volume).facts().free_bytes.unwrap();
    // Clusters 100 and 101 are a chain that no entry names; 102 is bad.
    poke(&volume, 512 + 200, &[101, 0, 0xff, 0xff, 0xf7, 0xff]);
    let filesystem = open(&volume);
    assert_eq!(filesystem.facts().free_bytes, Some(before - 3 * 2048));
    let free = spans(&*filesystem, Check::Full, 32 << 20, Use::Free);
    assert_eq!(free.total_bytes(), before - 3 * 2048);
}

/// One bit of every byte of what describes the files, flipped: what fsck.fat says of a copy is what it says of the source.
#[test]
fn a_flipped_bit_never_makes_a_copy_worse() {
    let dir = scratch();
    let (volume, flipped, copy) =
        (dir.path().join("volume"), dir.path().join("flipped"), dir.path().join("copy"));
    for (options, kib) in [("-F 12 -s 4", 1000), ("-F 16 -s 1 -r 64", 4_600), ("-F 32 -s 1", 36_000)] {
        make(&volume, options, kib);
        fill(&volume, 5, dir.path());
        let good = fs::read(&volume).unwrap();
        let catalog = Catalog::read(&*open(&volume)).unwrap();
        let mut places: Vec<u64> = (11..100).collect();
        let reserved = u64::from(u16::from_le_bytes([good[14], good[15]])) * 512;
        places.extend(reserved..reserved + 60);
        for stream in catalog.streams().filter(|stream| stream.stream.file.0 > 0) {
            let entry = stream.stream.file.0 * 32;
            places.extend([0, 3, 11, 20, 21, 26, 27, 28, 29, 30, 31].map(|at| entry + at));
        }
        // Volumes of FAT32 are large.
        let step = if options.contains("32") { 5 } else { 1 };
        let places: Vec<_> = places.into_iter().step_by(step).collect();
        let (mut whole, mut same) = (0, 0);
        for (index, at) in places.iter().enumerate() {
            let mut bytes = good.clone();
            bytes[usize::try_from(*at).unwrap()] ^= 1 << (index % 8);
            fs::write(&flipped, &bytes).unwrap();
            let Some(filesystem) = filesystem::open(&source(&flipped)).unwrap() else {
                whole += 1;
                continue;
            };
            if filesystem.used_map(Check::Full).is_err() {
                whole += 1;
                continue;
            }
            copy_used(&flipped, &copy, 0);
            assert_eq!(fsck(&copy).0, fsck(&flipped).0, "{options}, bit {} at {at:#x}", index % 8);
            same += 1;
        }
        println!("{options}: {} flipped, {whole} whole, {same} the same to fsck.fat", places.len());
        assert!(whole > 50 / step && same > 20 / step, "{options}: {whole} whole, {same} the same");
    }
}
