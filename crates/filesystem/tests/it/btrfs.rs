//! Btrfs against mkfs.btrfs, `btrfs check`, `btrfs inspect-internal` and the kernel's mount: used maps, files, and what is doubted.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::support::{Listing, Written, assert_same, copy_but, list_tree, source, spans, text};
use extent::Offset;
use filesystem::{Catalog, Check, FileKind, FileSystem, PieceState, State, Use};
use testkit::mounted::Mounted;
use testkit::{Room, run, scratch};

/// Options of mkfs.btrfs that change what lies where, and the size in MiB.
const KINDS: &[(&str, u64)] = &[
    ("", 170),
    ("-m single -d single", 140),
    ("-m dup -d dup", 240),
    ("--mixed", 64),
    ("--mixed -m dup -d dup -n 4096", 160),
    ("-n 4096", 170),
    ("-n 65536", 200),
    ("--csum xxhash", 170),
    ("--csum sha256", 170),
    ("--csum blake2", 170),
    ("-O ^no-holes,^skinny-metadata,^extref", 170),
    ("-R ^free-space-tree", 170),
    ("-R quota", 170),
    ("-m raid0 -d raid0", 170),
    ("-b 167772160 -L label -U 11111111-2222-3333-4444-555555555555", 170),
];

const STALE: u8 = 0xa5;
/// What is kept for boot loaders, and the copy of the superblock at 64 MiB.
const RESERVED_BYTES: u64 = 1 << 20;
const COPY_AT: u64 = 64 << 20;
const SUPERBLOCK_BYTES: u64 = 4096;

fn open(path: &Path) -> Box<dyn FileSystem> {
    filesystem::open(&source(path)).unwrap().expect("a superblock of Btrfs")
}

/// A volume whose blocks hold what was there before.
fn make(path: &Path, options: &str, mib: u64) {
    let file = File::create(path).unwrap();
    for at in 0..mib {
        file.write_all_at(&vec![STALE; 1 << 20], at << 20).unwrap();
    }
    let mut args = vec!["-q", "-f", "-K"];
    args.extend(options.split_whitespace());
    args.push(text(path));
    run("mkfs.btrfs", &args);
}

fn mount(volume: &Path, options: &str) -> Mounted {
    Mounted::kernel("btrfs", volume, options)
}

/// What `btrfs check` says of it, and whether it is content.
fn check(volume: &Path) -> (String, bool) {
    let output =
        Command::new("btrfs").args(["check", "--readonly", "--force", text(volume)]).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).replace(text(volume), "it");
    (said, output.status.success())
}

/// The device less what extents take up of it, as `btrfs filesystem usage` counts.
fn free_bytes(mounted: &Mounted) -> u64 {
    let said = run("btrfs", &["filesystem", "usage", "-b", text(mounted.path())]);
    let field = |name: &str| -> u64 {
        let line = said.lines().find_map(|line| line.trim().strip_prefix(name));
        line.unwrap_or_else(|| panic!("{said}")).trim().parse().unwrap()
    };
    field("Device size:") - field("Used:")
}

fn contents(len: usize, index: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at / 7 + 31 * index) % 151 + 1).unwrap()).collect()
}

/// Files of every sort, subvolumes and snapshots, then large ones until the volume is about so full; of all of them many are deleted
/// again, and others come into the gaps.
fn fill(volume: &Path, percent: u64) {
    let size = open(volume).facts().size_bytes;
    let mounted = mount(volume, "noatime,commit=1");
    let at = |name: &str| mounted.path().join(name);
    let subvolume = |args: &[&str]| run("btrfs", &[&["subvolume"][..], args].concat());
    fs::create_dir_all(at("many/inner")).unwrap();
    for index in 0..300 {
        let name = at(&format!("many/file number {index} with a name that is long"));
        fs::write(name, contents(index * 37, index)).unwrap();
    }
    // Where the one above it had a subvolume, a snapshot shows an empty directory as old as the mount: there is none yet.
    subvolume(&["snapshot", "-r", text(mounted.path()), text(&at("top at first"))]);
    subvolume(&["create", text(&at("sub"))]);
    subvolume(&["create", text(&at("sub/nested"))]);
    for index in 0..60 {
        fs::write(at(&format!("sub/file {index}")), contents(index * 700, index)).unwrap();
        fs::hard_link(at("sub/file 0"), at(&format!("sub/{}{index}", "link of a long name ".repeat(9))))
            .unwrap();
    }
    fs::write(at("sub/nested/file"), contents(50_000, 5)).unwrap();
    subvolume(&["snapshot", text(&at("sub")), text(&at("snapshot"))]);
    for index in (0..60).step_by(2) {
        fs::write(at(&format!("sub/file {index}")), contents(index * 300, index + 1)).unwrap();
        fs::write(at(&format!("snapshot/another {index}")), contents(index * 500, index + 1)).unwrap();
    }
    for index in (0..300).step_by(3) {
        fs::remove_file(at(&format!("many/file number {index} with a name that is long"))).unwrap();
    }
    symlink("many", at("short link")).unwrap();
    symlink("x".repeat(1000), at("long link")).unwrap();
    run("setfattr", &["-n", "user.large", "-v", &"v".repeat(1500), text(&at("many/inner"))]);
    // In many pieces.
    let pieces = File::create(at("pieces")).unwrap();
    for index in 0..200_u64 {
        pieces.write_all_at(&[u8::try_from(index % 250 + 1).unwrap(); 4096], index * 8192).unwrap();
        if index % 20 == 0 {
            pieces.sync_all().unwrap();
        }
    }
    drop(pieces);
    run("xfs_io", &["-f", "-c", "falloc 0 600k", "-c", "pwrite -q 100k 50k", text(&at("reserved"))]);
    let [from, whole, part] = ["pieces", "shared", "part"].map(at);
    run("xfs_io", &["-f", "-c", &format!("reflink {}", text(&from)), text(&whole)]);
    run("xfs_io", &["-f", "-c", &format!("reflink {} 16384 65536 90112", text(&from)), text(&part)]);
    run("xfs_io", &["-c", "pwrite -q 40960 4096", text(&whole)]);
    for method in ["zlib", "lzo", "zstd"] {
        let name = at(&format!("compressed with {method}"));
        File::create(&name).unwrap();
        run("btrfs", &["property", "set", text(&name), "compression", method]);
        fs::write(&name, contents(700_000, 3)).unwrap();
        run("sync", &["-f", text(&name)]);
        overwrite_when_there_is_room(&name);
        let small = at(&format!("small, compressed with {method}"));
        File::create(&small).unwrap();
        run("btrfs", &["property", "set", text(&small), "compression", method]);
        fs::write(&small, contents(1800, 3)).unwrap();
    }
    File::create(at("in place")).unwrap();
    run("chattr", &["+C", text(&at("in place"))]);
    fs::write(at("in place"), contents(300_000, 8)).unwrap();
    let mut index = 0;
    let len = usize::try_from(size / 200).unwrap();
    while !Room::of(mounted.path()).is_filled_to(percent) && index < 400 {
        if fs::write(at(&format!("large {index}")), contents(len / (1 + index % 3), index)).is_err() {
            break;
        }
        run("sync", &["-f", text(mounted.path())]);
        index += 1;
    }
    for gone in (0..index).step_by(4) {
        let _ = fs::remove_file(at(&format!("large {gone}")));
    }
    run("sync", &["-f", text(mounted.path())]);
    let _ = fs::write(at("in the gaps"), contents(len * index / 8, 77));
    subvolume(&["delete", text(&at("snapshot"))]);
    subvolume(&["sync", text(mounted.path())]);
}

/// Part of a compressed file anew. A small volume refuses that for lack of room until what the kernel set aside for a commit that is
/// under way is given back.
fn overwrite_when_there_is_room(name: &Path) {
    let write = || Command::new("xfs_io").args(["-c", "pwrite -q 200000 3000", text(name)]).output().unwrap();
    let mut output = write();
    for _ in 0..20 {
        if !String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).contains("No space left")
        {
            break;
        }
        run("sync", &["-f", text(name)]);
        output = write();
    }
    assert!(output.status.success(), "{output:?}");
}

/// A copy of what is used alone; the rest is `filler`.
fn copy_used(volume: &Path, copy: &Path, filler: u8) {
    let len = fs::metadata(volume).unwrap().len();
    copy_but(&spans(&*open(volume), Check::Full, len, Use::Free), volume, copy, filler);
}

/// A copy of what is used alone is to `btrfs check` and to a mount what the volume is.
fn check_copies(volume: &Path, copy: &Path, what: &str) {
    let (said, is_clean) = check(volume);
    assert!(is_clean, "{what}: {said}");
    let before = Written::of(volume);
    let filesystem = open(volume);
    let facts = filesystem.facts();
    assert_eq!((facts.filesystem.as_str(), &facts.state), ("btrfs", &State::Clean), "{what}");
    let len = fs::metadata(volume).unwrap().len();
    let free = spans(&*filesystem, Check::Full, len, Use::Free);
    let free_bytes = facts.free_bytes.unwrap();
    let copy_bytes = if facts.size_bytes > COPY_AT { SUPERBLOCK_BYTES } else { 0 };
    assert_eq!(free.total_bytes(), free_bytes - RESERVED_BYTES - copy_bytes, "{what}");
    let mut listed = 0;
    filesystem.each_free_span(&mut |span| listed += span.len_bytes()).unwrap();
    assert_eq!(listed, free.total_bytes(), "{what}");
    check_files(volume, &*filesystem, what);
    let mounted = mount(volume, "ro");
    assert_eq!(self::free_bytes(&mounted), free_bytes, "{what}");
    let tree = mounted.tree();
    drop(mounted);
    assert_eq!(Written::of(volume), before, "{what}: the source was written");
    for filler in [0, 0xff] {
        copy_used(volume, copy, filler);
        assert_eq!(check(copy), (said.clone(), true), "{what}");
        mount(copy, "ro").tree().assert_same(&tree, what);
    }
}

/// Chunks as `btrfs inspect-internal` lists them: where they begin, their length, and where that is on the device.
fn chunks(volume: &Path) -> Vec<(u64, u64, u64)> {
    let said = run("btrfs", &["inspect-internal", "dump-tree", "-t", "chunk", text(volume)]);
    let mut chunks = Vec::new();
    let word = |line: &str, name: &str| -> Option<u64> {
        let mut words = line.split_whitespace().map(|word| word.trim_end_matches(')'));
        words.by_ref().find(|word| *word == name)?;
        words.next()?.parse().ok()
    };
    for line in said.lines() {
        if let Some(logical) = word(line, "CHUNK_ITEM") {
            chunks.push((logical, 0, 0));
        } else if let (Some(len), true) = (word(line, "length"), line.contains("owner")) {
            chunks.last_mut().unwrap().1 = len;
        } else if line.contains("stripe 0 devid") {
            chunks.last_mut().unwrap().2 = word(line, "offset").unwrap();
        }
    }
    assert!(!chunks.is_empty() && chunks.iter().all(|chunk| chunk.1 > 0 && chunk.2 > 0), "{said}");
    chunks
}

/// Every file has the paths, size and extents that the kernel and filefrag tell, and its contents.
fn check_files(volume: &Path, filesystem: &dyn FileSystem, what: &str) {
    let catalog = Catalog::read(filesystem).unwrap();
    assert_eq!(catalog.doubts(), [], "{what}");
    let chunks = chunks(volume);
    let place = |logical: u64| {
        let chunk = chunks.iter().find(|chunk| (chunk.0..chunk.0 + chunk.1).contains(&logical));
        chunk.map(|chunk| logical - chunk.0 + chunk.2).unwrap_or_else(|| panic!("{logical}"))
    };
    let mounted = mount(volume, "ro");
    let mut theirs = list_tree(mounted.path(), "file");
    for line in theirs.values_mut() {
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        let Some(extents) = words.get(4).filter(|extents| *extents != "inline") else { continue };
        let extents = extents.split(',').map(|extent| {
            let (logical, rest) = extent.split_once(':').unwrap();
            let (physical, len) = rest.split_once(':').unwrap();
            format!("{logical}:{}:{len}", place(physical.parse().unwrap()))
        });
        *line = [&words[..4], &[extents.collect::<Vec<_>>().join(",")]].concat().join(" ");
    }
    let (mut ours, mut compressed) = (Listing::new(), 0);
    for stream in catalog.streams() {
        // Numbers of files are those within their subvolume.
        let number = stream.stream.file.0 & ((1 << 40) - 1);
        let mut line = format!("{} {number} {}", stream.stream.kind.word(), stream.stream.size_bytes);
        let is_compressed = stream.extents().any(|extent| extent.state == PieceState::Compressed);
        if stream.stream.kind == FileKind::Regular {
            line += &extents_of(filesystem, &stream, is_compressed);
        }
        line.truncate(line.trim_end().len());
        for path in catalog.paths(stream.stream.file) {
            if is_compressed {
                // filefrag tells how much of a file is in a compressed extent, and not how long that is.
                compressed += 1;
                let theirs = theirs.get_mut(&path).unwrap();
                let mut words: Vec<_> = theirs.split(' ').map(str::to_owned).collect();
                words[3] = "compressed".into();
                words[4] = words[4]
                    .split(',')
                    .map(|extent| extent.rsplit_once(':').unwrap().0)
                    .collect::<Vec<_>>()
                    .join(",");
                *theirs = words.join(" ");
            }
            assert_eq!(ours.insert(path, line.clone()), None, "every path once");
        }
    }
    assert_same(&ours, &theirs, what);
    if theirs.len() > 10 {
        // How many the kernel compresses is up to it.
        assert!(compressed > 0, "{what}");
    }
    for stream in catalog.streams().filter(|stream| stream.stream.kind == FileKind::Regular) {
        let path = OsString::from_vec(stream.path());
        let expected = fs::read(mounted.path().join(Path::new(&path).strip_prefix("/").unwrap())).unwrap();
        let opened = filesystem.open_stream(stream.stream.file, stream.stream.name);
        let mut bytes = vec![0; expected.len()];
        match opened.and_then(|opened| opened.read_at(Offset::ZERO, &mut bytes)) {
            Ok(()) => assert!(bytes == expected, "{what}: {}", path.display()),
            Err(error) => {
                assert_eq!(error.kind(), block::ErrorKind::Unsupported, "{what}: {error}");
                assert!(path.to_str().unwrap().contains("compressed with"), "{what}: {}", path.display());
            }
        }
    }
}

/// As `list_tree` writes it.
fn extents_of(
    filesystem: &dyn FileSystem,
    stream: &filesystem::CatalogStream<'_>,
    is_compressed: bool,
) -> String {
    if stream.stream.is_inline {
        return " 0 inline".into();
    }
    let mut fragments = filesystem.fragments();
    let mut pieces: Vec<(u64, u64, u64, &str)> = Vec::new();
    for extent in stream.extents() {
        let state = if extent.state == PieceState::Unwritten { "u" } else { "" };
        let (logical, physical, len) =
            (extent.logical.get(), extent.span.start().get(), extent.span.len_bytes());
        fragments.push(logical, physical, len);
        match pieces.last_mut() {
            Some(last) if (last.0 + last.2, last.1 + last.2, last.3) == (logical, physical, state) => {
                last.2 += len;
            }
            _ => pieces.push((logical, physical, len, state)),
        }
    }
    let show = |(logical, physical, len, state): &(u64, u64, u64, &str)| match is_compressed {
        true => format!("{logical}:{physical}"),
        false => format!("{logical}:{physical}:{len}{state}"),
    };
    let pieces = pieces.iter().map(show).collect::<Vec<_>>().join(",");
    match is_compressed {
        true => format!(" compressed {pieces}"),
        false => format!(" {} {pieces}", fragments.count()),
    }
}

#[test]
fn every_kind_is_copied_used_only_and_whole_to_its_tools() {
    let dir = scratch();
    let (volume, copy) = (dir.path().join("volume"), dir.path().join("copy"));
    for (index, (options, mib)) in KINDS.iter().enumerate() {
        let fills: &[u64] = if index == 0 { &[5, 50, 99] } else { &[70] };
        for percent in fills {
            make(&volume, options, *mib);
            fill(&volume, *percent);
            check_copies(&volume, &copy, &format!("{options} {percent} %"));
            let free = open(&volume).facts().free_bytes.unwrap();
            println!("{options:60} {mib:4} MiB {percent:3} %: {free:10} bytes free");
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

/// Makes a volume whose last files are in its logs alone, and copies it as it is then.
fn take_with_log(volume: &Path, options: &str, taken: &Path) {
    make(volume, options, 300);
    let mounted = mount(volume, "noatime,commit=300");
    run("btrfs", &["subvolume", "create", text(&mounted.path().join("sub"))]);
    run("sync", &["-f", text(mounted.path())]);
    for index in 0..120 {
        let folder = if index % 2 == 0 { "sub" } else { "." };
        let file = File::create(mounted.path().join(format!("{folder}/file {index}"))).unwrap();
        file.write_all_at(&contents(index * 1000, index), 0).unwrap();
        if index % 3 == 0 {
            file.sync_all().unwrap();
        }
    }
    fs::copy(volume, taken).unwrap();
}

/// What was synchronised since the last commit is in logs: a copy of what is used alone is recovered to the same, and is the same
/// without recovery.
#[test]
fn what_logs_refer_to_is_used() {
    let dir = scratch();
    let (volume, taken, copy) =
        (dir.path().join("volume"), dir.path().join("taken"), dir.path().join("copy"));
    for options in ["", "--mixed"] {
        // Another program that has the whole machine store what it has, as sync(1) does, ends the log, or changes the volume within the copy.
        let found = (0..8).any(|_| {
            take_with_log(&volume, options, &taken);
            matches!(open(&taken).facts().state, State::JournalPending(_))
        });
        assert!(found, "{:?}", open(&taken).facts().state);
        assert_eq!(doubt(&taken), "");
        let (said, is_clean) = check(&taken);
        assert!(is_clean, "{said}");
        let options = ["ro,rescue=nologreplay", "noatime"];
        let trees = options.map(|options| {
            copy_used(&taken, &copy, 0x5a);
            assert_eq!(check(&copy), (said.clone(), true));
            mount(&copy, options).tree()
        });
        for (tree, options) in trees.iter().zip(options) {
            fs::copy(&taken, &copy).unwrap();
            mount(&copy, options).tree().assert_same(tree, options);
        }
        assert_ne!(trees[0], trees[1]);
    }
}

/// A subvolume of which some blocks are deleted, and others not yet.
#[test]
fn a_subvolume_that_is_being_deleted_is_used_as_far_as_it_is_left() {
    let dir = scratch();
    let (volume, copy) = (dir.path().join("volume"), dir.path().join("copy"));
    // How far the kernel is when it is unmounted is its own.
    let (mut is_between, mut is_a_step_before) = (false, false);
    for attempt in 0..8 {
        make_half_deleted(&volume, attempt);
        check_half_deleted(&volume, &copy);
        let roots = run("btrfs", &["inspect-internal", "dump-tree", "-t", "root", text(&volume)]);
        is_between |= roots
            .lines()
            .any(|line| line.contains("drop_progress key (") && !line.contains("drop_progress key (0 "));
        // One step before, which the kernel seldom stops at: the parent's references bear it already, those of the leaf do not yet.
        if take_back_a_step(&volume) {
            check_half_deleted(&volume, &copy);
            is_a_step_before = true;
        }
        if is_between && is_a_step_before {
            return;
        }
    }
    panic!("none of 8 volumes was in between ({is_between}), or a step before that ({is_a_step_before})");
}

/// A copy of what is used is as sound as the volume.
fn check_half_deleted(volume: &Path, copy: &Path) {
    let (said, is_clean) = check(volume);
    assert!(is_clean, "{said}");
    assert_eq!(doubt(volume), "");
    copy_used(volume, copy, 0x5a);
    let (said, is_clean) = check(copy);
    assert!(is_clean, "{said}");
    // Searching the deleted subvolume for who refers to the leaf, it may come by blocks that are gone from there, and free.
    let extents = run("btrfs", &["inspect-internal", "dump-tree", "-t", "extent", text(volume)]);
    for line in said.lines().filter_map(|line| line.strip_prefix("bad tree block ")) {
        let (logical, _) = line.split_once(',').unwrap();
        assert!(!extents.contains(&format!("key ({logical} ")), "{said}");
    }
}

/// Has a leaf of the deleted subvolume, which has number 256, to which a parent refers whose references bear it, be one whose references bear the
/// subvolume. It refers to nothing itself: the contents of its files lie within it. Whether there is one of which `btrfs check` says that it may:
/// it does of those to which the subvolume's tree leads yet.
fn take_back_a_step(volume: &Path) -> bool {
    const HEADER_BYTES: u64 = 101;
    const FULL_BACKREF: u64 = 1 << 8;
    let said = run("btrfs", &["inspect-internal", "dump-tree", "-t", "extent", text(volume)]);
    let file = OpenOptions::new().read(true).write(true).open(volume).unwrap();
    let chunks = chunks(volume);
    let block = |logical: u64| {
        let chunk = chunks.iter().find(|chunk| (chunk.0..chunk.0 + chunk.1).contains(&logical)).unwrap();
        let (at, mut bytes) = (logical - chunk.0 + chunk.2, vec![0; 4096]);
        file.read_exact_at(&mut bytes, at).unwrap();
        (at, bytes)
    };
    let field = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let lines: Vec<_> = said.lines().map(str::trim).collect();
    let mut holder = 0;
    // Of each, the block of the extent tree that tells of it, and where its flags are there.
    let mut leaves = Vec::new();
    for four in lines.windows(4) {
        let words: Vec<_> = four[0].split_whitespace().collect();
        if let ["leaf", logical, ..] = words[..] {
            holder = logical.parse().unwrap();
        }
        let ["item", _, "key", logical, "METADATA_ITEM", "0)", "itemoff", at, ..] = words[..] else {
            continue;
        };
        let is_shared = four[1].starts_with("refs 1 ") && four[3].contains("shared block backref");
        let logical: u64 = logical.trim_start_matches('(').parse().unwrap();
        if is_shared && four[1].contains("FULL_BACKREF") && field(&block(logical).1, 88) == 256 {
            leaves.push((holder, usize::try_from(HEADER_BYTES + at.parse::<u64>().unwrap() + 16).unwrap()));
        }
    }
    for &(holder, flags) in leaves.iter().rev().step_by(leaves.len() / 12 + 1) {
        let (place, before) = block(holder);
        let mut bytes = before.clone();
        let changed = field(&bytes, flags) & !FULL_BACKREF;
        bytes[flags..flags + 8].copy_from_slice(&changed.to_le_bytes());
        let sum = crc32c::crc32c(&bytes[32..]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        file.write_all_at(&bytes, place).unwrap();
        if check(volume).1 {
            return true;
        }
        file.write_all_at(&before, place).unwrap();
    }
    false
}

/// A volume that is unmounted while a subvolume is deleted: whoever deletes stops then, and goes on later.
fn make_half_deleted(volume: &Path, attempt: usize) {
    let files = 20_000;
    make(volume, "-n 4096 -m single", 400);
    let mounted = mount(volume, "noatime,commit=300");
    let at = |name: &str| mounted.path().join(name);
    run("btrfs", &["subvolume", "create", text(&at("sub"))]);
    for index in 0..files {
        fs::write(at(&format!("sub/file {index}")), contents(index % 1900, index)).unwrap();
    }
    run("sync", &["-f", text(mounted.path())]);
    run("btrfs", &["subvolume", "snapshot", text(&at("sub")), text(&at("snapshot"))]);
    for index in (0..files).step_by(4) {
        fs::write(at(&format!("sub/file {index}")), contents(100, index)).unwrap();
    }
    run("sync", &["-f", text(mounted.path())]);
    run("btrfs", &["subvolume", "delete", "-c", text(&at("sub"))]);
    if attempt % 2 == 1 {
        run("btrfs", &["filesystem", "sync", text(mounted.path())]);
    }
    std::thread::sleep(std::time::Duration::from_millis(attempt as u64 * 7));
}

#[test]
fn what_is_not_understood_is_whole_with_the_reason() {
    let dir = scratch();
    let (volume, other) = (dir.path().join("volume"), dir.path().join("other"));
    File::create(&other).unwrap().set_len(256 << 20).unwrap();
    make(&volume, "", 256);
    run("btrfstune", &["-f", "-S", "1", text(&volume)]);
    assert!(doubt(&volume).starts_with("it is a seed device, on which other btrfs stand"));
    File::create(&volume).unwrap().set_len(256 << 20).unwrap();
    run("mkfs.btrfs", &["-q", "-f", text(&volume), text(&other)]);
    for device in [&volume, &other] {
        assert!(doubt(device).starts_with("it is one of the 2 devices of a btrfs"));
    }
    make(&other, "", 256);
    run("btrfs-image", &[text(&other), text(&volume)]);
    File::create(&other).unwrap().set_len(256 << 20).unwrap();
    run("btrfs-image", &["-r", text(&volume), text(&other)]);
    assert_eq!(doubt(&other), "an image of Btrfs metadata without their data");
}

/// Where blocks of trees lie, each in one place alone.
fn blocks(volume: &Path) -> Vec<u64> {
    let said = run("btrfs", &["inspect-internal", "dump-tree", text(volume)]);
    let mut places = Vec::new();
    let chunks = chunks(volume);
    for line in said.lines() {
        let mut words = line.split(' ');
        if !matches!(words.next(), Some("leaf" | "node")) {
            continue;
        }
        let Some(logical) = words.next().and_then(|word| word.parse::<u64>().ok()) else { continue };
        let chunk = chunks.iter().find(|chunk| (chunk.0..chunk.0 + chunk.1).contains(&logical)).unwrap();
        places.push(logical - chunk.0 + chunk.2);
    }
    places.sort_unstable();
    places.dedup();
    places
}

/// A small volume of which all metadata lie in one place.
fn make_small(volume: &Path) -> Vec<u64> {
    make(volume, "-m single -n 4096", 128);
    fill(volume, 30);
    assert_eq!(doubt(volume), "");
    blocks(volume)
}

/// One bit of each structure, wrong: whatever has a checksum is found by it.
#[test]
fn a_flipped_bit_of_metadata_is_found() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    let places = make_small(&volume);
    let file = OpenOptions::new().read(true).write(true).open(&volume).unwrap();
    let superblock = (64 << 10, 4096);
    for (index, (at, len)) in
        std::iter::once(superblock).chain(places.into_iter().map(|at| (at, 4096))).enumerate()
    {
        for bit in (index as u64 % 64..len * 8).step_by(usize::try_from(len).unwrap() * 8 / 5) {
            // What a checksum of four bytes leaves of its field means nothing.
            if (32..256).contains(&bit) {
                continue;
            }
            let place = at + bit / 8;
            let mut byte = [0];
            file.read_exact_at(&mut byte, place).unwrap();
            file.write_all_at(&[byte[0] ^ (1 << (bit % 8))], place).unwrap();
            let found = filesystem::open(&source(&volume)).unwrap().is_none_or(|found| {
                found.facts().filesystem != "btrfs" || found.used_map(Check::Full).is_err()
            });
            assert!(found, "bit {bit} of the block at {at:#x}");
            file.write_all_at(&byte, place).unwrap();
        }
    }
    assert_eq!(doubt(&volume), "");
}

/// Bits of metadata, wrong, under checksums that are right: what `btrfs check` calls wrong in what is allocated is whole.
#[test]
fn a_flipped_bit_under_a_right_checksum_is_found_if_the_checker_finds_it() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    let places = make_small(&volume);
    let file = OpenOptions::new().read(true).write(true).open(&volume).unwrap();
    let (mut theirs, mut ours, mut tried) = (0, 0, 0);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for _ in 0..200 {
        let at = places[usize::try_from(random(places.len() as u64)).unwrap()];
        let mut block = vec![0; 4096];
        file.read_exact_at(&mut block, at).unwrap();
        let whole = block.clone();
        // In the header, in the items, or in what they are of.
        let count = u64::from(u32::from_le_bytes(block[96..100].try_into().unwrap()));
        let bit = match random(4) {
            0 => 48 * 8 + random((101 - 48) * 8),
            1 => 101 * 8 + random((count * 25).clamp(1, 3995) * 8),
            _ => 101 * 8 + random(3995 * 8),
        };
        let byte = usize::try_from(bit / 8).unwrap();
        block[byte] ^= 1 << (bit % 8);
        let sum = crc32c::crc32c(&block[32..]);
        block[..4].copy_from_slice(&sum.to_le_bytes());
        file.write_all_at(&block, at).unwrap();
        let (said, is_clean) = check(&volume);
        let is_found = filesystem::open(&source(&volume))
            .unwrap()
            .is_none_or(|found| found.facts().filesystem != "btrfs" || found.used_map(Check::Full).is_err());
        let is_of_extents = said.contains("errors found in extent allocation tree or chunk allocation")
            || (!is_clean && !said.contains("] checking extents"));
        assert!(is_found || !is_of_extents, "bit {bit} of the block at {at:#x}: {said}");
        (theirs, ours, tried) = (theirs + u32::from(is_of_extents), ours + u32::from(is_found), tried + 1);
        file.write_all_at(&whole, at).unwrap();
    }
    println!("of {tried} bits the checker finds {theirs} in what is allocated; {ours} make the volume whole");
    assert!(theirs > 50);
    assert_eq!(doubt(&volume), "");
}

/// Whether the kernel mounts it, without a change of it.
fn is_mounted(volume: &Path) -> bool {
    let at = scratch();
    let mut mount = Command::new("mount");
    mount.args(["-t", "btrfs", "-o", "loop,ro,rescue=nologreplay", text(volume), text(at.path())]);
    let is_mounted = mount.output().unwrap().status.success();
    if is_mounted {
        testkit::loops::unmount(at.path());
    }
    is_mounted
}

/// Writes a superblock with its checksum.
fn seal_superblock(file: &File, mut superblock: [u8; 4096]) {
    let sum = crc32c::crc32c(&superblock[32..]);
    superblock[..4].copy_from_slice(&sum.to_le_bytes());
    file.write_all_at(&superblock, 64 << 10).unwrap();
}

/// A bit of each byte of the superblock's fields, wrong, under a checksum that is right: a volume that the kernel does not mount, or
/// that `btrfs check` does not open, is whole.
#[test]
fn a_superblock_that_its_tools_refuse_is_whole() {
    /// Where the count of devices lies.
    const NUM_DEVICES_AT: usize = 136;
    /// From the UUID on, up to the label.
    const FIELDS: std::ops::Range<usize> = 32..299;
    let dir = scratch();
    let volume = dir.path().join("volume");
    make(&volume, "-m single", 128);
    assert_eq!(doubt(&volume), "");
    let file = OpenOptions::new().read(true).write(true).open(&volume).unwrap();
    let mut good = [0; 4096];
    file.read_exact_at(&mut good, 64 << 10).unwrap();
    let mut refused = 0;
    for byte in FIELDS {
        let mut superblock = good;
        superblock[byte] ^= 1 << (byte * 3 % 8);
        seal_superblock(&file, superblock);
        let is_whole = filesystem::open(&source(&volume))
            .unwrap()
            .is_none_or(|found| found.facts().filesystem != "btrfs" || found.used_map(Check::Full).is_err());
        let (said, is_clean) = check(&volume);
        let is_opened = is_clean || said.contains("[1/7]");
        let is_refused = !is_opened || !is_mounted(&volume);
        assert!(is_whole || !is_refused, "byte {byte} of the superblock: {said}");
        refused += u32::from(is_refused);
    }
    println!("of {} bits its tools refuse {refused}", FIELDS.len());
    assert!(refused > 50);
    let mut superblock = good;
    superblock[NUM_DEVICES_AT..NUM_DEVICES_AT + 8].fill(0);
    seal_superblock(&file, superblock);
    assert_eq!(doubt(&volume), "Btrfs superblock: num_devices is 0, expected 1, those that are there");
}

/// Changes items of extents, `change` of which it is shown the bytes, and puts the checksums of their blocks right. Answers how many changed.
fn change_extents(volume: &Path, places: &[u64], change: &mut dyn FnMut(&mut [u8]) -> bool) -> u32 {
    const EXTENT_ITEM: u8 = 168;
    let file = OpenOptions::new().read(true).write(true).open(volume).unwrap();
    let mut changed = 0;
    for at in places {
        let mut block = vec![0; 4096];
        file.read_exact_at(&mut block, *at).unwrap();
        // A leaf of the extent tree.
        if block[88] != 2 || block[100] != 0 {
            continue;
        }
        let number = |block: &[u8], at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
        for index in 0..number(&block, 96) as usize {
            let item = 101 + 25 * index;
            let start = 101 + number(&block, item + 17) as usize;
            let len = number(&block, item + 21) as usize;
            if block[item + 8] == EXTENT_ITEM {
                changed += u32::from(change(&mut block[start..start + len]));
            }
        }
        let sum = crc32c::crc32c(&block[32..]);
        block[..4].copy_from_slice(&sum.to_le_bytes());
        file.write_all_at(&block, *at).unwrap();
    }
    changed
}

/// Extents of generation 0, as early versions of btrfs-convert made them, are those of a clean volume. One whose reference names another file
/// is none, and is told without calling two equal counts different.
#[test]
fn extents_of_generation_0_are_clean_and_references_to_others_are_not() {
    const GENERATION: std::ops::Range<usize> = 8..16;
    /// Behind the extent's item: the reference's type, and the inode within.
    const REFERENCE_AT: usize = 24;
    const FILE_REFERENCE: u8 = 178;
    const INODE_AT: usize = REFERENCE_AT + 1 + 8;
    let dir = scratch();
    let volume = dir.path().join("volume");
    let places = make_small(&volume);
    let changed = change_extents(&volume, &places, &mut |item| {
        item[GENERATION].fill(0);
        true
    });
    assert!(changed > 10);
    let (said, is_clean) = check(&volume);
    assert!(is_clean && is_mounted(&volume), "{said}");
    assert_eq!(doubt(&volume), "");
    let mut is_first = true;
    change_extents(&volume, &places, &mut |item| {
        let is_wanted = is_first && item.get(REFERENCE_AT) == Some(&FILE_REFERENCE);
        if is_wanted {
            item[INODE_AT] ^= 1;
            is_first = false;
        }
        is_wanted
    });
    let (said, is_clean) = check(&volume);
    assert!(!is_clean, "{said}");
    let why = doubt(&volume);
    assert!(why.contains(", not all of them to what it lists, expected "), "{why}");
}
