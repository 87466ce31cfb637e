//! XFS against mkfs.xfs, xfs_db, xfs_repair and the kernel's mount: used maps, and what is doubted.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::support::{assert_same, list_scanned, list_tree, source, spans, text};
use extent::Offset;
use filesystem::{Catalog, Check, FileKind, FileSystem, State, Use};
use testkit::mounted::Mounted;
use testkit::{run, scratch};

/// Options of mkfs.xfs that change what lies where, and the size in MiB.
const KINDS: &[(&str, u64)] = &[
    ("", 96),
    ("-m reflink=0", 64),
    ("-m finobt=0,rmapbt=0,reflink=0,inobtcount=0,bigtime=0", 64),
    ("-m rmapbt=1,reflink=1", 96),
    ("-i size=2048,sparse=0", 64),
    ("-i size=1024,nrext64=1 -n size=8192", 64),
    ("-b size=1024 -d agcount=7 -m reflink=0", 116),
    ("-b size=1024 -s size=1024", 72),
    ("-b size=2048 -n size=16384 -i maxpct=5", 64),
    ("-d agcount=1", 64),
    ("-d agcount=10,su=64k,sw=3", 168),
    ("-s size=4096 -l su=64k", 96),
    ("-l size=20m,version=2 -n ftype=1 -L label", 96),
    ("-m uuid=11111111-2222-3333-4444-555555555555", 64),
];

const STALE: u8 = 0xa5;

fn open(path: &Path) -> Box<dyn FileSystem> {
    filesystem::open(&source(path)).unwrap().expect("a superblock of XFS")
}

/// A volume whose blocks hold what was there before.
fn make(path: &Path, options: &str, mib: u64) {
    let file = File::create(path).unwrap();
    for at in 0..mib {
        file.write_all_at(&vec![STALE; 1 << 20], at << 20).unwrap();
    }
    let mut args = vec!["--unsupported", "-q", "-f", "-K"];
    args.extend(options.split_whitespace());
    args.push(text(path));
    run("mkfs.xfs", &args);
}

fn mount(volume: &Path, options: &str) -> Mounted {
    Mounted::kernel("xfs", volume, &format!("nouuid,{options}"))
}

/// What xfs_repair says of it, and whether it is content.
fn repair(volume: &Path) -> (String, bool) {
    let output =
        Command::new("xfs_repair").args(["-n", "-f", "-o", "force_geometry", text(volume)]).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).replace(text(volume), "it");
    // Groups are looked at in any order, and at any time.
    let said = said
        .lines()
        .filter(|line| !line.contains("- agno = ") && !line.contains(" done"))
        .collect::<Vec<_>>()
        .join("\n");
    (said, output.status.success())
}

/// Free blocks of all groups, as `xfs_db` counts them.
fn free_blocks(volume: &Path) -> u64 {
    let said = run("xfs_db", &["-f", "-r", "-c", "freesp -s", text(volume)]);
    let line = said.lines().find_map(|line| line.strip_prefix("total free blocks "));
    line.unwrap_or_else(|| panic!("{said}")).trim().parse().unwrap()
}

fn contents(len: usize, index: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at / 7 + 31 * index) % 151 + 1).unwrap()).collect()
}

/// Files of every sort, then large ones until the volume is about so full; of all of them many are deleted again, and others come into the gaps.
fn fill(volume: &Path, percent: u64, has_reflinks: bool) {
    let size = open(volume).facts().size_bytes;
    let mounted = mount(volume, "noatime");
    let at = |name: &str| mounted.path().join(name);
    fs::create_dir_all(at("many/inner")).unwrap();
    for index in 0..300 {
        fs::write(
            at(&format!("many/file number {index} with a name that is long")),
            contents(index * 37, index),
        )
        .unwrap();
    }
    for index in (0..300).step_by(3) {
        fs::remove_file(at(&format!("many/file number {index} with a name that is long"))).unwrap();
    }
    symlink("many", at("short link")).unwrap();
    symlink("x".repeat(1000), at("long link")).unwrap();
    let value = "v".repeat(3000);
    let attribute = ["-n", "user.large", "-v", &value];
    run("setfattr", &[&attribute[..], &[text(&at("many/file number 1 with a name that is long"))]].concat());
    // In many pieces, so that its extents are in a tree.
    let pieces = File::create(at("pieces")).unwrap();
    for index in 0..400_u64 {
        pieces.write_all_at(&[u8::try_from(index % 250 + 1).unwrap(); 4096], index * 8192).unwrap();
    }
    pieces.sync_all().unwrap();
    drop(pieces);
    run("xfs_io", &["-f", "-c", "falloc 0 600k", "-c", "pwrite -q 100k 50k", text(&at("reserved"))]);
    if has_reflinks {
        let copies = [at("pieces"), at("shared"), at("part")];
        let [from, whole, part] = copies.each_ref().map(|path| text(path));
        run("xfs_io", &["-f", "-c", &format!("reflink {from}"), whole]);
        run("xfs_io", &["-f", "-c", &format!("reflink {from} 16384 65536 90112"), part]);
        run("xfs_io", &["-c", "pwrite -q 40960 4096", whole]);
    }
    let mut index = 0;
    let is_so_full = || {
        let said = run("stat", &["-f", "-c", "%a %b", text(mounted.path())]);
        let numbers: Vec<u64> = said.split_whitespace().map(|word| word.parse().unwrap()).collect();
        (numbers[1] - numbers[0]) * 100 >= numbers[1] * percent
    };
    let len = usize::try_from(size / 200).unwrap();
    while !is_so_full() && index < 400 {
        if fs::write(at(&format!("large {index}")), contents(len / (1 + index % 3), index)).is_err() {
            break;
        }
        index += 1;
    }
    for gone in (0..index).step_by(4) {
        fs::remove_file(at(&format!("large {gone}"))).unwrap();
    }
    let _ = fs::write(at("in the gaps"), contents(len * index / 8, 77));
}

/// A copy of what is used alone; the rest is `filler`.
fn copy_used(volume: &Path, copy: &Path, filler: u8) {
    let len = fs::metadata(volume).unwrap().len();
    fs::copy(volume, copy).unwrap();
    let target = OpenOptions::new().write(true).open(copy).unwrap();
    for span in spans(&*open(volume), Check::Full, len, Use::Free).iter() {
        target
            .write_all_at(&vec![filler; usize::try_from(span.len_bytes()).unwrap()], span.start().get())
            .unwrap();
    }
}

fn has_reflinks(options: &str) -> bool {
    !options.contains("reflink=0")
}

/// A copy of what is used alone is to `xfs_repair` and to a mount what the volume is.
fn check_copies(volume: &Path, copy: &Path, what: &str) {
    let (said, is_clean) = repair(volume);
    assert!(is_clean, "{what}: {said}");
    let before = fs::read(volume).unwrap();
    let filesystem = open(volume);
    let facts = filesystem.facts();
    assert_eq!((facts.filesystem.as_str(), &facts.state), ("xfs", &State::Clean), "{what}");
    let free_bytes = free_blocks(volume) * facts.cluster_bytes.unwrap();
    assert_eq!(facts.free_bytes, Some(free_bytes), "{what}");
    let len = fs::metadata(volume).unwrap().len();
    let free = spans(&*filesystem, Check::Full, len, Use::Free);
    assert_eq!(free.total_bytes(), free_bytes, "{what}");
    let mut listed = 0;
    filesystem.each_free_span(&mut |span| listed += span.len_bytes()).unwrap();
    assert_eq!(listed, free_bytes, "{what}");
    check_files(volume, &*filesystem, what);
    let tree = mount(volume, "ro,norecovery").tree();
    for filler in [0, 0xff] {
        copy_used(volume, copy, filler);
        assert_eq!(repair(copy), (said.clone(), true), "{what}");
        mount(copy, "ro").tree().assert_same(&tree, what);
    }
    assert!(fs::read(volume).unwrap() == before, "{what}: the source was written");
}

/// Every file has the paths, size and extents that the kernel and filefrag tell, and its contents.
fn check_files(volume: &Path, filesystem: &dyn FileSystem, what: &str) {
    let catalog = Catalog::read(filesystem).unwrap();
    assert_eq!(catalog.doubts(), [], "{what}");
    let mounted = mount(volume, "ro,norecovery");
    let mut scanned = list_scanned(filesystem, &catalog);
    // The kernel does not tell where directories lie.
    for line in scanned.values_mut().filter(|line| line.starts_with("directory")) {
        *line = line.split(' ').take(3).collect::<Vec<_>>().join(" ");
    }
    assert_same(&scanned, &list_tree(mounted.path(), "file"), what);
    for stream in catalog.streams().filter(|stream| stream.stream.kind == FileKind::Regular) {
        let path = OsString::from_vec(stream.path());
        let expected = fs::read(mounted.path().join(Path::new(&path).strip_prefix("/").unwrap())).unwrap();
        let opened = filesystem.open_stream(stream.stream.file, stream.stream.name).unwrap();
        let mut bytes = vec![0; expected.len()];
        opened.read_at(Offset::ZERO, &mut bytes).unwrap();
        assert!(bytes == expected, "{what}: {}", path.display());
    }
}

#[test]
fn every_kind_is_copied_used_only_and_whole_to_its_tools() {
    let dir = scratch();
    let (volume, copy) = (dir.path().join("volume"), dir.path().join("copy"));
    for (index, (options, mib)) in KINDS.iter().enumerate() {
        let fills: &[u64] = if index == 0 { &[5, 50, 99] } else { &[80] };
        for percent in fills {
            make(&volume, options, *mib);
            fill(&volume, *percent, has_reflinks(options));
            check_copies(&volume, &copy, &format!("{options} {percent} %"));
            println!("{options:60} {mib:4} MiB {percent:3} %: {:7} blocks free", free_blocks(&volume));
        }
    }
}

#[test]
fn an_empty_volume_is_used_where_its_metadata_are() {
    let dir = scratch();
    let (volume, copy) = (dir.path().join("volume"), dir.path().join("copy"));
    for (options, mib) in KINDS {
        make(&volume, options, *mib);
        check_copies(&volume, &copy, options);
    }
}

/// What makes the volume whole, and says so.
fn doubt(volume: &Path) -> String {
    let filesystem = open(volume);
    match filesystem.facts().state.doubt() {
        Some(why) => {
            assert!(filesystem.used_map(Check::Full).is_err());
            why.to_owned()
        }
        None => filesystem.used_map(Check::Full).err().map(|error| error.to_string()).unwrap_or_default(),
    }
}

/// Of a volume that is mounted, with files that were written, renamed and removed.
fn taken(volume: &Path, taken: &Path) {
    make(volume, "", 96);
    let mounted = mount(volume, "noatime");
    for index in 0..300 {
        fs::write(mounted.path().join(format!("file {index}")), contents(20_000, index)).unwrap();
        if index % 3 == 0 {
            fs::remove_file(mounted.path().join(format!("file {}", index / 2))).unwrap_or_default();
        }
    }
    run("sync", &["-f", text(mounted.path())]);
    fs::copy(volume, taken).unwrap();
}

#[test]
fn what_a_mount_has_not_put_in_its_place_is_replayed() {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let (volume, log, copy) = (path("volume"), path("log"), path("copy"));
    taken(&volume, &log);
    assert_eq!(doubt(&log), "");
    let filesystem = open(&log);
    assert!(matches!(filesystem.facts().state, State::JournalPending(_)), "{:?}", filesystem.facts().state);
    let scanned = list_scanned(&*filesystem, &Catalog::read(&*filesystem).unwrap());
    copy_used(&log, &copy, STALE);
    let recovered = mount(&copy, "noatime").tree();
    mount(&log, "noatime").tree().assert_same(&recovered, "recovered");
    assert_eq!(repair(&copy), repair(&log));
    // The mount has recovered it: what is there now is what was read before.
    assert_eq!(open(&log).facts().state, State::Clean);
    let after = open(&log);
    assert_same(&list_scanned(&*after, &Catalog::read(&*after).unwrap()), &scanned, "replayed");
}

/// Bits of a log: the volume is whole, or the bit was of no record that is replayed.
#[test]
fn a_flipped_bit_of_a_log_is_found_or_of_no_matter() {
    let dir = scratch();
    let (volume, log) = (dir.path().join("volume"), dir.path().join("log"));
    taken(&volume, &log);
    let said = run(
        "xfs_db",
        &["-f", "-r", "-c", "sb 0", "-c", "p logstart logblocks agblklog agblocks", text(&log)],
    );
    let numbers: Vec<u64> =
        said.lines().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    let start = (numbers[0] >> numbers[2]) * numbers[3] + (numbers[0] & ((1 << numbers[2]) - 1));
    let free = |path: &Path| spans(&*open(path), Check::Full, 96 << 20, Use::Free);
    let before = free(&log);
    let file = OpenOptions::new().read(true).write(true).open(&log).unwrap();
    let (mut whole, mut state) = (0, 99_u64);
    for _ in 0..200 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // What is written is at its beginning.
        let place = start * 4096 + (state >> 33) % (128 << 10);
        let mut byte = [0];
        file.read_exact_at(&mut byte, place).unwrap();
        file.write_all_at(&[byte[0] ^ (1 << (state >> 30 & 7))], place).unwrap();
        match doubt(&log).is_empty() {
            true => assert_eq!(free(&log), before, "{place:#x}"),
            false => whole += 1,
        }
        file.write_all_at(&byte, place).unwrap();
    }
    println!("{whole} of 200 make it whole");
    assert!(whole > 50);
}

#[test]
fn what_is_not_understood_is_whole_with_the_reason() {
    let dir = scratch();
    let (volume, other) = (dir.path().join("volume"), dir.path().join("other"));
    File::create(&other).unwrap().set_len(96 << 20).unwrap();
    let with = |options: &str| {
        make(&volume, options, 96);
        doubt(&volume)
    };
    assert_eq!(with("-m crc=0"), "XFS of version 4, which has no checksums, is not read");
    assert_eq!(with(&format!("-r rtdev={}", text(&other))), "XFS with a realtime device");
    assert_eq!(with(&format!("-l logdev={},size=20m", text(&other))), "XFS with its log on another device");
}

/// One bit of each structure, wrong: whatever has a checksum is found by it, and whoever owns something twice is found at once.
#[test]
fn a_flipped_bit_of_what_owns_blocks_is_found() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    make(&volume, "-m rmapbt=1", 64);
    fill(&volume, 50, true);
    assert_eq!(doubt(&volume), "");
    let places = metadata(&volume);
    let file = OpenOptions::new().read(true).write(true).open(&volume).unwrap();
    for (what, at, len) in places {
        for bit in (0..len * 8).step_by(usize::try_from(len * 8 / 41).unwrap().max(1)) {
            let place = at + bit / 8;
            let mut byte = [0];
            file.read_exact_at(&mut byte, place).unwrap();
            file.write_all_at(&[byte[0] ^ (1 << (bit % 8))], place).unwrap();
            let found = filesystem::open(&source(&volume)).unwrap().is_none_or(|found| {
                found.facts().filesystem != "xfs" || found.used_map(Check::Full).is_err()
            });
            assert!(found, "bit {bit} of {what} at {at:#x}");
            file.write_all_at(&byte, place).unwrap();
        }
    }
    assert_eq!(doubt(&volume), "");
}

/// Where `xfs_db` finds structures that own blocks: name, place and bytes.
fn metadata(volume: &Path) -> Vec<(String, u64, u64)> {
    let mut places = Vec::new();
    let mut ask = |what: &str, commands: &[&str], len: u64| {
        let mut args = vec!["-f", "-r"];
        commands.iter().for_each(|command| args.extend(["-c", command]));
        args.extend(["-c", "daddr", text(volume)]);
        let said = run("xfs_db", &args);
        let daddr = said.lines().find_map(|line| line.trim().strip_prefix("current daddr is "));
        let daddr: u64 = daddr.unwrap_or_else(|| panic!("{what}: {said}")).parse().unwrap();
        places.push((what.to_owned(), daddr * 512, len));
    };
    ask("superblock", &["sb 0"], 272);
    ask("second superblock", &["sb 1"], 272);
    for group in ["0", "1"] {
        let [agf, agi, agfl] = ["agf", "agi", "agfl"].map(|header| format!("{header} {group}"));
        ask(&agf, &[&agf], 224);
        ask(&agi, &[&agi], 344);
        ask(&agfl, &[&agfl], 36);
        for tree in ["bnoroot", "cntroot", "rmaproot", "refcntroot"] {
            ask(tree, &[&agf, &format!("addr {tree}")], 80);
        }
        for tree in ["root", "free_root"] {
            ask(tree, &[&agi, &format!("addr {tree}")], 72);
        }
    }
    places
}
