//! exFAT against mkfs.exfat, fsck.exfat and a mount by exfat-fuse: used maps, files, contents, and what is doubted.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Written, copy_but, source, spans, text};
use extent::Offset;
use filesystem::{Catalog, Check, FileKind, FileSystem, PieceState, State, Use};
use testkit::loops::{unmount, wait_until_detached};
use testkit::{run, scratch};

/// Options of mkfs.exfat, and the size in KiB.
const KINDS: &[(&str, u64)] = &[
    ("", 8192),
    ("-c 512", 16_384),
    ("-c 4K", 20_001),
    ("-c 32K -b 128K", 40_000),
    ("-c 4K -b 64K --pack-bitmap", 30_000),
    ("-c 128K -L label -b 2M", 65_536),
    ("-c 1M", 100_000),
    ("-c 32M", 400_000),
];

const STALE: u8 = 0xa5;

fn open(path: &Path) -> Box<dyn FileSystem> {
    filesystem::open(&source(path)).unwrap().expect("a boot sector of exFAT")
}

/// A volume whose clusters hold what was there before.
fn make(path: &Path, options: &str, kib: u64) {
    let file = File::create(path).unwrap();
    for at in 0..kib.min(64 << 10) {
        file.write_all_at(&[STALE; 1024], at << 10).unwrap();
    }
    file.set_len(kib << 10).unwrap();
    let mut args: Vec<&str> = options.split_whitespace().collect();
    args.push(text(path));
    run("mkfs.exfat", &args);
}

/// A mount by exfat-fuse, which takes block devices alone.
struct Mounted(PathBuf, PathBuf, String);

impl Mounted {
    fn new(volume: &Path, options: &str) -> Self {
        let at = volume.with_extension("mounted");
        fs::create_dir_all(&at).unwrap();
        let device = run("losetup", &["-f", "--show", text(volume)]).trim().to_owned();
        run("mount.exfat-fuse", &["-o", options, &device, text(&at)]);
        Self(at, volume.to_owned(), device)
    }
}

impl Drop for Mounted {
    /// Ends once the device is gone, and all that was written is in the file.
    fn drop(&mut self) {
        unmount(&self.0);
        let _ = Command::new("losetup").args(["-d", &self.2]).status();
        wait_until_detached(&self.1);
    }
}

/// What fsck.exfat says, and whether it is content.
fn fsck(volume: &Path) -> (String, bool) {
    let output = Command::new("fsck.exfat").args(["-n", text(volume)]).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (String::from_utf8_lossy(&said).replace(text(volume), "it"), output.status.success())
}

/// Free clusters, as `dump.exfat` says.
fn free_clusters(volume: &Path) -> u64 {
    let said = run("dump.exfat", &[text(volume)]);
    let line = said.lines().find_map(|line| line.strip_prefix("Free Clusters:"));
    line.unwrap_or_else(|| panic!("{said}")).trim().parse().unwrap()
}

fn contents(len: usize, index: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at / 7 + 31 * index) % 151 + 1).unwrap()).collect()
}

/// Files in directories within directories, some of them in pieces, until the volume is about so full; what was deleted stays in free
/// clusters. Answers what each path holds.
fn fill(volume: &Path, percent: u64) -> BTreeMap<String, Vec<u8>> {
    let facts = open(volume).facts().clone();
    let (free, cluster) = (facts.free_bytes.unwrap(), facts.cluster_bytes.unwrap());
    let count = if free / cluster > 100 { 24 } else { 4 };
    let budget = (free * percent / 100).saturating_sub(8 * cluster);
    let mounted = Mounted::new(volume, "noatime");
    let inner = "DIR/a directory with a name that takes more than two entries";
    fs::create_dir_all(mounted.0.join(inner)).unwrap();
    let mut kept = BTreeMap::new();
    for index in 0..count {
        let whole = budget / count / cluster * cluster;
        let len = usize::try_from(whole.saturating_sub(cluster / 2) + index % 3).unwrap();
        let index = usize::try_from(index).unwrap();
        let name =
            if index % 2 == 0 { format!("F{index}") } else { format!("grüße, die Länge hat {index}.txt") };
        let path = ["", "DIR/", &format!("{inner}/")][index % 3].to_owned() + &name;
        fs::write(mounted.0.join(&path), contents(len, index)).unwrap();
        kept.insert(path, contents(len, index));
    }
    let gone: Vec<String> = kept.keys().step_by(4).cloned().collect();
    for path in gone {
        fs::remove_file(mounted.0.join(&path)).unwrap();
        kept.remove(&path);
    }
    // What was given back is filled again, in pieces.
    if percent >= 50 {
        let len = (budget / 6).saturating_sub(4 * cluster);
        let all = contents(usize::try_from(len).unwrap(), 99);
        fs::write(mounted.0.join("pieces"), &all).unwrap();
        kept.insert("pieces".into(), all);
    }
    kept
}

/// A copy of what is used alone; the rest is `filler`.
fn copy_used(volume: &Path, copy: &Path, filler: u8) {
    let len = fs::metadata(volume).unwrap().len();
    copy_but(&spans(&*open(volume), Check::Full, len, Use::Free), volume, copy, filler);
}

#[test]
fn every_kind_is_copied_used_only_and_whole_to_its_tools() {
    let dir = scratch();
    let (volume, copy) = (dir.path().join("volume"), dir.path().join("copy"));
    for (options, kib) in KINDS {
        for percent in [5, 50, 99] {
            make(&volume, options, *kib);
            let kept = fill(&volume, percent);
            let (said, is_clean) = fsck(&volume);
            assert!(is_clean, "{options}: {said}");
            let before = Written::of(&volume);
            let filesystem = open(&volume);
            let facts = filesystem.facts();
            assert_eq!((facts.filesystem.as_str(), &facts.state), ("exfat", &State::Clean), "{options}");
            let free_count = free_clusters(&volume);
            assert_eq!(facts.free_bytes, Some(free_count * facts.cluster_bytes.unwrap()), "{options}");
            let len = fs::metadata(&volume).unwrap().len();
            let free = spans(&*filesystem, Check::Full, len, Use::Free);
            assert_eq!(Some(free.total_bytes()), facts.free_bytes, "{options}");
            compare_files(&*filesystem, &kept);
            for filler in [0, 0xff] {
                copy_used(&volume, &copy, filler);
                assert_eq!(fsck(&copy), (said.clone(), true), "{options}");
                let mounted = Mounted::new(&copy, "ro");
                for (path, contents) in &kept {
                    assert!(fs::read(mounted.0.join(path)).unwrap() == *contents, "{options}: {path}");
                }
            }
            assert_eq!(Written::of(&volume), before, "{options}: the source was written");
            println!(
                "{options:60} {kib:8} KiB {percent:3} %: {free_count:7} clusters free, {} files",
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
        let path = String::from_utf8(stream.path()).unwrap();
        let contents = &kept[path.trim_start_matches('/')];
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

fn peek(volume: &Path, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    File::open(volume).unwrap().read_exact_at(&mut bytes, at).unwrap();
    bytes
}

/// Stores the checksums of the boot regions anew, so that what is in them is what is judged.
fn seal(volume: &Path) {
    for at in [0, 12 * 512] {
        let counted = |(index, _): &(usize, u8)| ![106, 107, 112].contains(index);
        let body = peek(volume, at, 11 * 512);
        let sum = body.into_iter().enumerate().filter(counted);
        let sum = sum.fold(0_u32, |sum, (_, byte)| sum.rotate_right(1).wrapping_add(byte.into()));
        poke(volume, at + 11 * 512, &sum.to_le_bytes().repeat(128));
    }
}

/// Why a volume is not believed.
fn reason(volume: &Path) -> String {
    open(volume).used_map(Check::Full).err().expect("a reason").to_string()
}

#[test]
fn what_is_in_doubt_is_whole() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    let cases: [(u64, &[u8], bool, &str); 12] = [
        (106, &[2], false, "not unmounted cleanly"),
        (106, &[4], false, "errors were met"),
        (106, &[1], false, "first FAT active"),
        (110, &[2], true, "TexFAT"),
        (110, &[0], true, "NumberOfFats"),
        (104, &[1], true, "revision"),
        (11, &[1], true, "MustBeZero"),
        (108, &[13], true, "BytesPerSectorShift"),
        (72, &[0xff; 7], true, "VolumeLength"),
        (96, &[0, 0, 0, 0x7f], true, "FirstClusterOfRootDirectory"),
        (300, &[9], false, "boot region at sector 0"),
        (12 * 512 + 300, &[9], false, "boot region at sector 12"),
    ];
    for (at, bytes, is_sealed, expected) in cases {
        make(&volume, "-c 4K", 16_384);
        assert!(open(&volume).used_map(Check::Full).is_ok(), "at {at}");
        poke(&volume, at, bytes);
        if is_sealed {
            seal(&volume);
        }
        assert!(reason(&volume).contains(expected), "at {at}: {}", reason(&volume));
    }
    make(&volume, "-c 4K", 16_384);
    poke(&volume, 12 * 512 + 92, &[1]);
    seal(&volume);
    assert!(reason(&volume).contains("differ"), "{}", reason(&volume));
    make(&volume, "-c 4K", 16_384);
    OpenOptions::new().write(true).open(&volume).unwrap().set_len(16_000 << 10).unwrap();
    assert!(reason(&volume).contains("VolumeLength"), "{}", reason(&volume));
    // The root directory, which no entry names.
    make(&volume, "-c 4K", 16_384);
    let number = |at| u64::from(u32::from_le_bytes(peek(&volume, at, 4).try_into().unwrap()));
    let (fat_at, root_cluster) = (number(80) * 512, number(96));
    poke(&volume, fat_at + 4 * root_cluster, &[0xfe, 0xff, 0xff, 0xff]);
    assert!(reason(&volume).starts_with("exFAT root directory"), "{}", reason(&volume));
    // ClearToZero means nothing to readers, and PercentInUse may be unknown.
    make(&volume, "-c 4K", 16_384);
    poke(&volume, 106, &[8]);
    poke(&volume, 112, &[0xff]);
    assert!(open(&volume).used_map(Check::Full).is_ok());
}

/// Where the stream entry of a file lies, and where the bit of its first cluster does.
fn places(volume: &Path, name: &str) -> (u64, u64) {
    let catalog = Catalog::read(&*open(volume)).unwrap();
    let found = catalog.streams().find(|stream| stream.path() == name.as_bytes()).expect(name);
    let entry = found.stream.file.0 * 32;
    let first = peek(volume, entry + 20, 4);
    let cluster = u64::from(u32::from_le_bytes(first.try_into().unwrap()));
    let heap = u64::from(u32::from_le_bytes(peek(volume, 88, 4).try_into().unwrap())) * 512;
    // mkfs.exfat puts the bitmap into the first cluster.
    (entry, (heap << 8 | (cluster - 2) & 7) + (((cluster - 2) / 8) << 8))
}

#[test]
fn the_bitmap_is_held_against_owners() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    make(&volume, "-c 4K", 16_384);
    {
        let mounted = Mounted::new(&volume, "noatime");
        for index in 0..6 {
            fs::write(mounted.0.join(format!("f{index}")), contents(30_000, index)).unwrap();
        }
    }
    assert!(fsck(&volume).1);
    let (_, place) = places(&volume, "/f3");
    let (at, bit) = (place >> 8, place & 7);
    let byte = peek(&volume, at, 1)[0];
    assert!(byte & 1 << bit != 0, "the bit of an owned cluster is set");
    poke(&volume, at, &[byte & !(1 << bit)]);
    assert!(reason(&volume).contains("is free in the bitmap"), "{}", reason(&volume));
    poke(&volume, at, &[byte]);
    // Clusters that nobody owns are used.
    let free = open(&volume).facts().free_bytes.unwrap();
    poke(&volume, at + 200, &[0x18]);
    let filesystem = open(&volume);
    let kept = spans(&*filesystem, Check::Full, 16 << 20, Use::Free);
    assert_eq!((kept.total_bytes(), filesystem.facts().free_bytes), (free - 8192, Some(free - 8192)));
}

/// Bytes behind ValidDataLength read as zeros, and their clusters are used.
#[test]
fn what_was_never_written_reads_as_zeros() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    make(&volume, "-c 4K", 16_384);
    {
        let mounted = Mounted::new(&volume, "noatime");
        fs::write(mounted.0.join("f"), contents(50_000, 1)).unwrap();
    }
    let free = open(&volume).facts().free_bytes;
    let (entry, _) = places(&volume, "/f");
    poke(&volume, entry + 8, &10_000_u64.to_le_bytes());
    let count = peek(&volume, entry - 31, 1)[0];
    let mut set = peek(&volume, entry - 32, 32 * (usize::from(count) + 1));
    set.splice(2..4, []);
    let sum = set.iter().fold(0_u16, |sum, byte| sum.rotate_right(1).wrapping_add((*byte).into()));
    poke(&volume, entry - 30, &sum.to_le_bytes());
    assert!(fsck(&volume).1, "{:?}", fsck(&volume));
    let filesystem = open(&volume);
    assert!(filesystem.used_map(Check::Full).is_ok());
    assert_eq!(filesystem.facts().free_bytes, free);
    let catalog = Catalog::read(&*filesystem).unwrap();
    let stream = catalog.streams().find(|stream| stream.path() == b"/f").unwrap();
    let states: Vec<_> = stream.extents().map(|extent| (extent.state, extent.span.len_bytes())).collect();
    assert_eq!(states, [(PieceState::Written, 12_288), (PieceState::Unwritten, 40_960)]);
    let mut bytes = vec![1; 50_000];
    let opened = filesystem.open_stream(stream.stream.file, stream.stream.name).unwrap();
    opened.read_at(Offset::ZERO, &mut bytes).unwrap();
    assert!(bytes[..10_000] == contents(10_000, 1) && bytes[10_000..].iter().all(|byte| *byte == 0));
}

/// One bit of every byte of what describes the files, flipped: what fsck.exfat says of a copy is what it says of the source.
#[test]
fn a_flipped_bit_never_makes_a_copy_worse() {
    let dir = scratch();
    let (volume, flipped, copy) =
        (dir.path().join("volume"), dir.path().join("flipped"), dir.path().join("copy"));
    make(&volume, "-c 4K -b 64K", 2048);
    fill(&volume, 50);
    let good = fs::read(&volume).unwrap();
    let number = |at: usize| u64::from(u32::from_le_bytes(good[at..at + 4].try_into().unwrap())) * 512;
    let (fat, heap) = (number(80), number(88));
    let mut places: Vec<u64> = (0..120).chain(fat..fat + 120).chain(heap..heap + 60).collect();
    let root = heap + (number(96) / 512 - 2) * 4096;
    places.extend((root..root + 600).filter(|at| good[usize::try_from(*at).unwrap()] != 0 || at % 3 == 0));
    let (mut whole, mut same) = (0, 0);
    for (index, at) in places.iter().enumerate() {
        let mut bytes = good.clone();
        bytes[usize::try_from(*at).unwrap()] ^= 1 << (index % 8);
        fs::write(&flipped, &bytes).unwrap();
        let opened = filesystem::open(&source(&flipped)).unwrap();
        if opened.is_none_or(|filesystem| filesystem.used_map(Check::Full).is_err()) {
            whole += 1;
            continue;
        }
        copy_used(&flipped, &copy, 0);
        assert_eq!(fsck(&copy), fsck(&flipped), "bit {} at {at:#x}", index % 8);
        same += 1;
    }
    println!("{} flipped, {whole} whole, {same} the same to fsck.exfat", places.len());
    assert!(whole > 300 && same > 20, "{whole} whole, {same} the same");
}
