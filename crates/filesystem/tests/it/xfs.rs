//! XFS against mkfs.xfs, xfs_db, xfs_repair and the kernel's mount: used maps, and what is doubted.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::support::{Written, assert_same, copy_but, list_scanned, list_tree, source, spans, text};
use extent::Offset;
use filesystem::{Catalog, Check, FileKind, FileSystem, State, Use};
use testkit::mounted::Mounted;
use testkit::{Room, run, scratch};

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

/// The same of version 4, which not every kernel mounts: files are put there by mkfs.xfs.
const KINDS_4: &[(&str, u64)] = &[
    ("", 64),
    ("-b size=512 -i size=256", 64),
    ("-b size=1024 -n size=4096 -d agcount=7", 116),
    ("-i size=1024 -n size=8192", 64),
    ("-i attr=1,projid32bit=0 -l version=1,lazy-count=0", 64),
    ("-b size=2048 -i size=512,attr=2,projid32bit=1 -n size=65536,ftype=0 -l lazy-count=1", 64),
    ("-n ftype=1 -d agcount=1 -l lazy-count=0", 64),
    ("-s size=4096 -n version=ci", 64),
];

const STALE: u8 = 0xa5;

fn open(path: &Path) -> Box<dyn FileSystem> {
    filesystem::open(&source(path)).unwrap().expect("a superblock of XFS")
}

/// A volume whose blocks hold what was there before.
pub(crate) fn make(path: &Path, options: &str, mib: u64) {
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

/// A line without what xfs_repair says of the groups that it looks at, which comes at any time, also within other lines.
fn without_progress(line: &str) -> String {
    let mut parts = line.split("        - agno = ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |before, part| before + part.trim_start_matches(|it: char| it.is_ascii_digit()))
}

/// What xfs_repair says of it, and whether it is content.
pub(crate) fn repair(volume: &Path) -> (String, bool) {
    let output =
        Command::new("xfs_repair").args(["-n", "-f", "-o", "force_geometry", text(volume)]).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).replace(text(volume), "it");
    // Groups are looked at in any order, and at any time; and a place in the program is another one each time.
    let said = said
        .lines()
        .map(without_progress)
        .filter(|line| !line.is_empty() && !line.contains(" done"))
        .map(|line| line.split("detected at 0x").next().unwrap_or_default().to_owned())
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
pub(crate) fn fill(volume: &Path, percent: u64, has_reflinks: bool) {
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
    run("mkfifo", &[text(&at("pipe"))]);
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
    let len = usize::try_from(size / 200).unwrap();
    while !Room::of(mounted.path()).is_filled_to(percent) && index < 400 {
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
pub(crate) fn copy_used(volume: &Path, copy: &Path, filler: u8) {
    let len = fs::metadata(volume).unwrap().len();
    copy_but(&spans(&*open(volume), Check::Full, len, Use::Free), volume, copy, filler);
}

fn has_reflinks(options: &str) -> bool {
    !options.contains("reflink=0")
}

/// A copy of what is used alone is to `xfs_repair` and to a mount what the volume is.
fn check_copies(volume: &Path, copy: &Path, what: &str) {
    let (said, is_clean) = repair(volume);
    assert!(is_clean, "{what}: {said}");
    let before = Written::of(volume);
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
    assert_eq!(Written::of(volume), before, "{what}: the source was written");
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

/// Makes a volume of version 4 with a directory of many names, files of many sizes, and links; answers the paths of the files with their contents.
fn make_4(dir: &Path, options: &str, mib: u64) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut lines = "/dev/null\n0 0\nd--755 0 0\nmany d--755 0 0\n".to_owned();
    let mut file = |folder: &str, name: &str, contents: Vec<u8>| {
        let from = dir.join(format!("contents of {}", files.len()).replace(' ', "-"));
        fs::write(&from, &contents).unwrap();
        files.insert(format!("{folder}/{name}"), contents);
        format!("{name} ---644 0 0 {}\n", text(&from))
    };
    for index in 0..300 {
        lines += &file("/many", &format!("a-file-with-a-long-name-{index}"), contents(index * 97, index));
    }
    lines += "$\nlink l--777 0 0 many\nempty d--755 0 0\n$\n";
    for index in 0..usize::try_from(mib / 4).unwrap() {
        lines += &file("", &format!("large-{index}"), contents(2_500_000 + index * 4096, index));
    }
    let (proto, volume) = (dir.join("proto"), dir.join("volume"));
    fs::write(&proto, lines + "$\n").unwrap();
    make(&volume, &format!("-m crc=0 {options} -p {}", text(&proto)), mib);
    files
}

#[test]
fn every_kind_of_version_4_is_copied_used_only_and_whole_to_its_tools() {
    let dir = scratch();
    let (volume, copy) = (dir.path().join("volume"), dir.path().join("copy"));
    for (options, mib) in KINDS_4 {
        let files = make_4(dir.path(), options, *mib);
        let (said, is_clean) = repair(&volume);
        assert!(is_clean, "{options}: {said}");
        let filesystem = open(&volume);
        let free_bytes = free_blocks(&volume) * filesystem.facts().cluster_bytes.unwrap();
        assert_eq!(filesystem.facts().free_bytes, Some(free_bytes), "{options}");
        let free = spans(&*filesystem, Check::Full, mib << 20, Use::Free);
        assert_eq!(free.total_bytes(), free_bytes, "{options}");
        for filler in [0, 0xff] {
            copy_used(&volume, &copy, filler);
            assert_eq!(repair(&copy), (said.clone(), true), "{options}");
            assert_eq!(files_of(&*open(&copy)), files, "{options}");
        }
        println!("-m crc=0 {options:60} {mib:4} MiB: {:7} blocks free", free_blocks(&volume));
    }
}

/// The paths of all regular files that a guest made, with their contents.
fn files_of(filesystem: &dyn FileSystem) -> BTreeMap<String, Vec<u8>> {
    let catalog = Catalog::read(filesystem).unwrap();
    assert_eq!(catalog.doubts(), []);
    let regular = catalog.streams().filter(|stream| stream.stream.kind == FileKind::Regular);
    regular
        .map(|stream| {
            let opened = filesystem.open_stream(stream.stream.file, stream.stream.name).unwrap();
            let mut bytes = vec![0; usize::try_from(stream.stream.size_bytes).unwrap()];
            opened.read_at(Offset::ZERO, &mut bytes).unwrap();
            (String::from_utf8(stream.path()).unwrap(), bytes)
        })
        .collect()
}

/// Bits of headers and trees without checksums: what `xfs_repair` finds makes the volume whole, or it finds the same in the copy.
#[test]
fn a_flipped_bit_of_version_4_is_found_or_in_the_copy_as_well() {
    let dir = scratch();
    let (volume, copy) = (dir.path().join("volume"), dir.path().join("copy"));
    make_4(dir.path(), "", 32);
    let file = OpenOptions::new().read(true).write(true).open(&volume).unwrap();
    let (mut state, mut whole, mut noticed) = (41_u64, 0, 0);
    for (what, at, len) in metadata_4(&volume).iter().cycle().take(80) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (place, bit) = (at + (state >> 33) % len, state >> 30 & 7);
        let mut byte = [0];
        file.read_exact_at(&mut byte, place).unwrap();
        file.write_all_at(&[byte[0] ^ (1 << bit)], place).unwrap();
        let is_believed = filesystem::open(&source(&volume))
            .unwrap()
            .is_some_and(|found| found.facts().filesystem == "xfs" && found.used_map(Check::Full).is_ok());
        if is_believed {
            let found = repair(&volume);
            noticed += u64::from(!found.1);
            copy_used(&volume, &copy, 0);
            assert_eq!(repair(&copy), found, "bit {bit} of {what} at {place:#x}");
        } else {
            whole += 1;
        }
        file.write_all_at(&byte, place).unwrap();
    }
    println!("{whole} of 80 make it whole, and xfs_repair finds {noticed} of the others");
    assert!(whole > 20);
    assert_eq!(doubt(&volume), "");
}

/// Where structures of version 4 that own blocks are: name, place and bytes.
fn metadata_4(volume: &Path) -> Vec<(String, u64, u64)> {
    let mut places = Vec::new();
    for group in ["0", "1"] {
        let [agf, agi, agfl] = ["agf", "agi", "agfl"].map(|header| format!("{header} {group}"));
        places.push(ask(volume, &agf, &[&agf], 64));
        places.push(ask(volume, &agi, &[&agi], 40));
        places.push(ask(volume, &agfl, &[&agfl], 32));
        for tree in ["bnoroot", "cntroot"] {
            places.push(ask(volume, tree, &[&agf, &format!("addr {tree}")], 32));
        }
        places.push(ask(volume, "root", &[&agi, "addr root"], 48));
    }
    places.push(ask(volume, "inode", &["sb 0", "addr rootino"], 256));
    places
}

/// What makes the volume whole, and says so.
pub(crate) fn doubt(volume: &Path) -> String {
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
    assert_eq!(with(&format!("-r rtdev={}", text(&other))), "XFS with a realtime device");
    assert_eq!(with(&format!("-l logdev={},size=20m", text(&other))), "XFS with its log on another device");
    // Features of later kernels, whose superblocks go on where this one ends.
    for (bit, reason) in [
        (8, "XFS with a directory of its own metadata (metadir)"),
        (31, "XFS with unknown features (ro_compat 0x0, incompat 0x80000000)"),
    ] {
        assert_eq!(with(""), "");
        add_feature(&volume, bit);
        assert_eq!(doubt(&volume), reason);
    }
}

/// Gives the volume a bit of `features_incompat`, and a field behind the superblock's last one.
fn add_feature(volume: &Path, bit: u32) {
    let file = OpenOptions::new().read(true).write(true).open(volume).unwrap();
    let mut sector = vec![0; 512];
    file.read_exact_at(&mut sector, 0).unwrap();
    let features = u32::from_be_bytes(sector[216..220].try_into().unwrap()) | 1 << bit;
    sector[216..220].copy_from_slice(&features.to_be_bytes());
    sector[271] = 129;
    sector[224..228].fill(0);
    let sum = crc32c::crc32c(&sector);
    sector[224..228].copy_from_slice(&sum.to_le_bytes());
    file.write_all_at(&sector, 0).unwrap();
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

/// Where `xfs_db` finds what these commands lead to: its name, place, and bytes.
fn ask(volume: &Path, what: &str, commands: &[&str], len: u64) -> (String, u64, u64) {
    let mut args = vec!["-f", "-r"];
    commands.iter().for_each(|command| args.extend(["-c", command]));
    args.extend(["-c", "daddr", text(volume)]);
    let said = run("xfs_db", &args);
    // Newer ones say on which device: "datadev daddr is".
    let daddr = said.lines().find_map(|line| Some(line.trim().split_once(" daddr is ")?.1));
    let daddr: u64 = daddr.unwrap_or_else(|| panic!("{what}: {said}")).parse().unwrap();
    (what.to_owned(), daddr * 512, len)
}

/// Where `xfs_db` finds structures that own blocks: name, place and bytes.
fn metadata(volume: &Path) -> Vec<(String, u64, u64)> {
    let mut places = Vec::new();
    let mut add = |what: &str, commands: &[&str], len: u64| places.push(ask(volume, what, commands, len));
    add("superblock", &["sb 0"], 272);
    add("second superblock", &["sb 1"], 272);
    for group in ["0", "1"] {
        let [agf, agi, agfl] = ["agf", "agi", "agfl"].map(|header| format!("{header} {group}"));
        add(&agf, &[&agf], 224);
        add(&agi, &[&agi], 344);
        add(&agfl, &[&agfl], 36);
        for tree in ["bnoroot", "cntroot", "rmaproot", "refcntroot"] {
            add(tree, &[&agf, &format!("addr {tree}")], 80);
        }
        for tree in ["root", "free_root"] {
            add(tree, &[&agi, &format!("addr {tree}")], 72);
        }
    }
    places
}
