//! The files of NTFS volumes against ntfsinfo, which shows the run lists of one file at a time, and against the tree that
//! ntfs-3g mounts: every file, every stream, every name.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::ntfs_volumes::info::check_runs;
use crate::ntfs_volumes::{Made, make, open, text};
use extent::VolumeSpan;
use filesystem::{Catalog, FileKind, FileStream, PieceState, State, StreamName};
use testkit::{as_root, noise, run};

/// What a mount shows of a name.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    number: u64,
    kind: FileKind,
    size_bytes: u64,
}

fn walk(root: &Path) -> BTreeMap<Vec<u8>, Seen> {
    let mut seen = BTreeMap::new();
    // What has the number 0 is not read from a directory.
    let mut paths = vec![root.to_path_buf(), root.join("$MFT")];
    while let Some(path) = paths.pop() {
        let about = fs::symlink_metadata(&path).unwrap();
        let kind = about.file_type();
        if kind.is_dir() {
            paths.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let kind = if kind.is_dir() {
            FileKind::Directory
        } else if kind.is_symlink() {
            FileKind::Symlink
        } else if kind.is_file() {
            FileKind::Regular
        } else {
            FileKind::Other
        };
        let mut name = vec![b'/'];
        name.extend_from_slice(path.strip_prefix(root).unwrap().as_os_str().as_bytes());
        seen.insert(name, Seen { number: about.ino(), kind, size_bytes: about.len() });
    }
    seen
}

/// Every path of the mounted tree, NTFS's own files included, must be listed with its number, kind and length, and no
/// other. Answers how many there are.
fn check_names(made: &Made) -> usize {
    let catalog = Catalog::read(&*open(&made.volume)).unwrap();
    let mounted = made.mount("ro,show_sys_files");
    let mut seen = walk(&mounted.dir);
    drop(mounted);
    let count = seen.len();
    for stream in catalog.streams() {
        let FileStream { file, kind, name, size_bytes, .. } = stream.stream;
        if name != StreamName::Main {
            continue;
        }
        for path in catalog.paths(file) {
            let shown = path.escape_ascii();
            let seen = seen.remove(&path).unwrap_or_else(|| panic!("{shown} is not in the tree"));
            assert_eq!(seen.number, file.0, "{shown}");
            assert_eq!(kind == FileKind::Metadata, path.starts_with(b"/$"), "{shown}");
            if kind != FileKind::Metadata {
                assert_eq!(kind, seen.kind, "{shown}");
            }
            // Of a link the mount tells the length of its target, and of a directory in its record none.
            if kind != FileKind::Symlink && !(stream.stream.is_inline && seen.kind == FileKind::Directory) {
                assert_eq!(size_bytes, seen.size_bytes, "{shown}");
            }
        }
    }
    assert_eq!(
        seen.keys().map(|path| path.escape_ascii().to_string()).collect::<Vec<_>>(),
        [""; 0],
        "not listed"
    );
    count
}

/// The free spans must be the clear bits of `$Bitmap`, joined.
fn check_free(volume: &Path) {
    let filesystem = open(volume);
    let cluster_bytes = filesystem.facts().cluster_bytes.unwrap();
    let output = as_root("ntfscat", &["-f", "-i", "6", text(volume)]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let cluster_count = filesystem.facts().size_bytes / cluster_bytes;
    let mut expected: Vec<(u64, u64)> = Vec::new();
    for cluster in 0..cluster_count {
        if output.stdout[usize::try_from(cluster / 8).unwrap()] >> (cluster % 8) & 1 == 0 {
            match expected.last_mut() {
                Some((_, end)) if *end == cluster => *end += 1,
                _ => expected.push((cluster, cluster + 1)),
            }
        }
    }
    let mut free = Vec::new();
    filesystem
        .each_free_span(&mut |span: VolumeSpan| {
            free.push((span.start().get() / cluster_bytes, span.end().get() / cluster_bytes));
        })
        .unwrap();
    assert!(!free.is_empty());
    assert_eq!(free, expected);
}

/// Sizes of an aged volume.
struct Age {
    files: u64,
    pieces: u64,
    unit: usize,
}

/// Every kind of file that ntfs-3g can make, with pieces all over.
fn age(root: &Path, age: &Age) {
    let Age { files, pieces, unit } = *age;
    many_files(root, files, unit);
    written_in_turn(root, unit);
    let sparse = File::create(root.join("in many pieces")).unwrap();
    for index in 0..pieces {
        let at = index * 2 * unit as u64;
        sparse.write_all_at(&noise(index, unit), at).unwrap();
    }
    sparse.set_len(pieces * 4 * unit as u64 + 17).unwrap();
    drop(sparse);
    let hole = File::create(root.join("a hole alone")).unwrap();
    hole.set_len(3 << 20).unwrap();
    streams(root, unit);
    fs::create_dir(root.join("packed")).unwrap();
    if unit <= 4096 {
        run(
            "setfattr",
            &["-h", "-n", "system.ntfs_attrib_be", "-v", "0x00000810", text(&root.join("packed"))],
        );
    }
    let mut compressible = noise(7, 30_000);
    compressible.extend(vec![b'a'; 300_000]);
    compressible.extend(noise(8, 30_000));
    fs::write(root.join("packed/file"), &compressible).unwrap();
    fs::write(root.join("packed/small"), b"small").unwrap();
    names(root);
    special(root);
}

fn many_files(root: &Path, files: u64, unit: usize) {
    let path = |index: u64| root.join(format!("dir {}/file {index}", index % 17));
    for dir in 0..17 {
        fs::create_dir(root.join(format!("dir {dir}"))).unwrap();
    }
    let len = |index: u64| {
        usize::try_from(index * 7919 % 5).unwrap() * unit + usize::try_from(index % 900).unwrap()
    };
    for index in 0..files {
        fs::write(path(index), noise(index, len(index))).unwrap();
    }
    for index in (0..files).filter(|index| index % 3 == 0) {
        fs::remove_file(path(index)).unwrap();
    }
    for index in 0..files / 30 {
        fs::write(root.join(format!("dir {}/late {index}", index % 17)), noise(index, unit * 17 + 5))
            .unwrap();
    }
    let large = root.join("large directory");
    fs::create_dir(&large).unwrap();
    for index in 0..files / 2 {
        fs::write(large.join(format!("a name that is quite long, so that blocks fill {index}")), b"x")
            .unwrap();
    }
    for index in (0..files / 2).step_by(2) {
        fs::remove_file(large.join(format!("a name that is quite long, so that blocks fill {index}")))
            .unwrap();
    }
}

fn written_in_turn(root: &Path, unit: usize) {
    let files: Vec<_> =
        (0..4).map(|index| File::create(root.join(format!("in turn {index}"))).unwrap()).collect();
    for round in 0..60 {
        for (index, file) in files.iter().enumerate() {
            let len = unit * (index + 1);
            file.write_all_at(&noise(round, len), round * len as u64).unwrap();
        }
    }
}

fn streams(root: &Path, unit: usize) {
    let path = root.join("with streams");
    fs::write(&path, noise(3, unit * 2)).unwrap();
    for index in 0..60 {
        let name = format!("with streams:stream number {index} of this file");
        fs::write(root.join(name), noise(index, usize::try_from(index).unwrap() * unit / 7)).unwrap();
    }
    fs::write(root.join("with streams:größe"), b"in the record").unwrap();
    fs::write(root.join("large directory:of a directory"), noise(4, unit + 1)).unwrap();
}

fn names(root: &Path) {
    let dir = root.join("names");
    fs::create_dir(&dir).unwrap();
    let long = "ü".repeat(127) + "x";
    let escape = "\u{1b}[31mred\u{1b}[0m".to_string();
    for name in [
        "größe 子 \u{1f600}",
        "tab\tnewline\n\u{1}\u{7f}",
        "<script>alert(1)<!-- &amp;",
        "back\\slash \"?*",
        &long,
        &escape,
    ] {
        fs::write(dir.join(name), name).unwrap();
    }
    // Surrogates that stand alone, as ntfs-3g takes them.
    for name in [&b"lone \xed\xa0\xbd."[..], b"\xed\xb0\x80", b"\xed\xbf\xbf\xed\xa0\x80"] {
        fs::write(dir.join(OsStr::from_bytes(name)), b"x").unwrap();
    }
    let deep = dir.join("d/e".repeat(40));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("at the bottom"), b"x").unwrap();
    fs::write(dir.join("first of its names"), noise(1, 10_000)).unwrap();
    for index in 0..40 {
        let name = format!("another name of it, long enough that the record is not {index}");
        fs::hard_link(dir.join("first of its names"), deep.join(name)).unwrap();
    }
}

/// Links and files of Linux as the Windows subsystem for Linux makes them, and what Windows itself calls links.
fn special(root: &Path) {
    let dir = root.join("special");
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink("x", dir.join("symlink")).unwrap();
    for (name, kind) in [("pipe", "p"), ("device", "c"), ("block", "b")] {
        let numbers: &[&str] = if kind == "p" { &[] } else { &["1", "3"] };
        let path = dir.join(name);
        let output = as_root("mknod", &[&[text(&path), kind][..], numbers].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let _socket = std::os::unix::net::UnixListener::bind(dir.join("socket")).unwrap();
    fs::create_dir(dir.join("mount point")).unwrap();
    fs::write(dir.join("link of Windows"), b"").unwrap();
    set_reparse_point(&dir.join("mount point"), 0xa000_0003, &[]);
    // Relative.
    set_reparse_point(&dir.join("link of Windows"), 0xa000_000c, &[1, 0, 0, 0]);
}

/// Makes a reparse point that names `x`. The buffer is that of [MS-FSCC] 2.1.2.4 and 2.1.2.5.
fn set_reparse_point(path: &Path, tag: u32, flags: &[u8]) {
    let target: Vec<u8> = "x".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let mut names = vec![0, 0, 2, 0, 4, 0, 2, 0];
    names.extend(flags);
    for _ in 0..2 {
        names.extend(&target);
        names.extend([0, 0]);
    }
    let mut buffer = tag.to_le_bytes().to_vec();
    buffer.extend(u16::try_from(names.len()).unwrap().to_le_bytes());
    buffer.extend([0, 0]);
    buffer.extend(names);
    let hex: String = buffer.iter().map(|byte| format!("{byte:02x}")).collect();
    run("setfattr", &["-h", "-n", "system.ntfs_reparse_data", "-v", &format!("0x{hex}"), text(path)]);
}

fn aged(mib: u64, options: &[&str], sizes: &Age) -> Made {
    let made = make(mib, options);
    age(&made.mount("streams_interface=windows,compression,special_files=wsl").dir, sizes);
    made
}

/// Everything against everything.
fn check_all(made: &Made, sizes: &Age) {
    assert_eq!(open(&made.volume).facts().state, State::Clean);
    let files = check_runs(&made.volume, 1);
    let names = check_names(made);
    assert!(u64::try_from(files.min(names)).unwrap() > sizes.files, "{files} files, {names} names");
    check_free(&made.volume);
    // ntfs-3g must have made what this is about.
    let catalog = Catalog::read(&*open(&made.volume)).unwrap();
    let most = catalog.streams().map(|stream| u64::from(stream.extent_count())).max().unwrap();
    assert!(most >= sizes.pieces, "a file in {most} pieces");
    let has = |name: &[u8]| catalog.streams().any(|stream| stream.stream.name == StreamName::Named(name));
    for name in [&b":$ATTRIBUTE_LIST"[..], b"$Bad", b"$SDS", b"stream number 7 of this file"] {
        assert!(has(name), "{}", name.escape_ascii());
    }
    let packed = catalog
        .streams()
        .filter(|stream| stream.extents().any(|extent| extent.state == PieceState::Compressed));
    assert_eq!(packed.count(), usize::from(sizes.unit <= 4096));
}

#[test]
fn an_aged_volume_is_listed_as_its_tools_show_it() {
    let sizes = Age { files: 1500, pieces: 3000, unit: 4096 };
    check_all(&aged(120, &[], &sizes), &sizes);
}

#[test]
fn clusters_of_512_bytes_are_listed_as_the_tools_show_them() {
    let sizes = Age { files: 500, pieces: 6000, unit: 512 };
    check_all(&aged(40, &["-c", "512"], &sizes), &sizes);
}

#[test]
fn clusters_of_64_kib_are_listed_as_the_tools_show_them() {
    let sizes = Age { files: 120, pieces: 600, unit: 65_536 };
    check_all(&aged(200, &["-c", "65536"], &sizes), &sizes);
}

#[test]
fn records_of_4_kib_are_listed_as_the_tools_show_them() {
    let sizes = Age { files: 120, pieces: 2000, unit: 4096 };
    check_all(&aged(40, &["-s", "4096"], &sizes), &sizes);
}

#[test]
fn the_smallest_clusters_are_listed_as_the_tools_show_them() {
    let made = make(12, &["-s", "256", "-c", "256"]);
    many_files(&made.mount("").dir, 100, 256);
    check_runs(&made.volume, 1);
    check_names(&made);
    check_free(&made.volume);
}

#[test]
fn free_spans_go_on_where_a_piece_of_the_bitmap_ends() {
    // 20 million clusters: more than two pieces.
    let made = make(10 << 10, &["-c", "512"]);
    fs::write(made.mount("").dir.join("file"), noise(1, 100_000)).unwrap();
    check_free(&made.volume);
    let mut count = 0;
    open(&made.volume).each_free_span(&mut |_| count += 1).unwrap();
    assert!(count < 20, "{count} free spans of an almost empty volume");
}

#[test]
fn short_names_are_left_out_where_there_are_long_ones() {
    let made = make(4, &[]);
    let mounted = made.mount("");
    let path = mounted.dir.join("a long name.text");
    fs::write(&path, b"x").unwrap();
    run("setfattr", &["-h", "-n", "system.ntfs_dos_name", "-v", "ALONGN~1.TEX", text(&path)]);
    let number = fs::metadata(&path).unwrap().ino();
    drop(mounted);
    let info = run("ntfsinfo", &["-i", &number.to_string(), text(&made.volume)]);
    assert!(info.contains("'ALONGN~1.TEX'"), "{info}");
    let catalog = Catalog::read(&*open(&made.volume)).unwrap();
    let paths: Vec<_> = catalog.paths(filesystem::FileId(number)).collect();
    assert_eq!(paths, [b"/a long name.text".to_vec()]);
    check_names(&made);
}
