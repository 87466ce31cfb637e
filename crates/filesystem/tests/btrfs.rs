//! Btrfs against mkfs.btrfs, `btrfs check`, `btrfs inspect-internal` and the kernel's mount: used maps, files, and what is doubted.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

#[path = "ext/support.rs"]
mod support;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;

use extent::Offset;
use filesystem::{Catalog, Check, FileKind, FileSystem, PieceState, State, Use};
use support::{Listing, assert_same, list_tree, source, spans, text};
use testkit::mounted::Mounted;
use testkit::{run, scratch};

/// Options of mkfs.btrfs that change what lies where, and the size in MiB.
const KINDS: &[(&str, u64)] = &[
    ("", 256),
    ("-m single -d single", 200),
    ("-m dup -d dup", 400),
    ("--mixed", 64),
    ("--mixed -m dup -d dup -n 4096", 300),
    ("-n 4096", 256),
    ("-n 65536", 300),
    ("--csum xxhash", 256),
    ("--csum sha256", 256),
    ("--csum blake2", 256),
    ("-O ^no-holes,^skinny-metadata,^extref", 256),
    ("-R ^free-space-tree", 256),
    ("-R quota", 256),
    ("-m raid0 -d raid0", 256),
    ("-b 188743680 -L label -U 11111111-2222-3333-4444-555555555555", 256),
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
    let mounted = mount(volume, "noatime");
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
        run("xfs_io", &["-c", "pwrite -q 200000 3000", text(&name)]);
        let small = at(&format!("small, compressed with {method}"));
        File::create(&small).unwrap();
        run("btrfs", &["property", "set", text(&small), "compression", method]);
        fs::write(&small, contents(1800, 3)).unwrap();
    }
    File::create(at("in place")).unwrap();
    run("chattr", &["+C", text(&at("in place"))]);
    fs::write(at("in place"), contents(300_000, 8)).unwrap();
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

/// A copy of what is used alone; the rest is `filler`.
fn copy_used(volume: &Path, copy: &Path, filler: u8) {
    let len = fs::metadata(volume).unwrap().len();
    fs::copy(volume, copy).unwrap();
    let target = OpenOptions::new().write(true).open(copy).unwrap();
    for span in spans(&*open(volume), Check::Full, len, Use::Free).iter() {
        for part in span.split(1 << 20) {
            let bytes = vec![filler; usize::try_from(part.len_bytes()).unwrap()];
            target.write_all_at(&bytes, part.start().get()).unwrap();
        }
    }
}

/// A copy of what is used alone is to `btrfs check` and to a mount what the volume is.
fn check_copies(volume: &Path, copy: &Path, what: &str) {
    let (said, is_clean) = check(volume);
    assert!(is_clean, "{what}: {said}");
    let before = fs::read(volume).unwrap();
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
    assert!(fs::read(volume).unwrap() == before, "{what}: the source was written");
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
        assert!(compressed >= 3, "{what}");
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
