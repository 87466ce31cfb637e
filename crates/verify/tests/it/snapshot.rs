//! Snapshots are the same where only places changed, and name the file for every other change.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::support::{open, source, text};
use block::{ErrorKind, Result};
use extent::VolumeOffset;
use filesystem::{Catalog, FileKind};
use testkit::mounted::Mounted;
use testkit::{noise, run, scratch};
use verify::volume::{Contents, Snapshot};

fn take(volume: &Path, contents: Contents<'_>) -> Snapshot {
    let source = source(volume);
    Snapshot::take(&open(&source).facts().identity(), &source, contents, 2).unwrap()
}

fn compare(before: &Snapshot, after: &Path, contents: Contents<'_>) -> Result<()> {
    let filesystem = open(&source(after));
    Snapshot::compare_named(before, &take(after, contents), |files| filesystem::paths(&*filesystem, files))
}

/// A part of the message that is wanted, another, and the change.
type Change = (&'static str, &'static str, fn(&Path));

/// Makes each change in a copy of the volume: it must be told, with the file's path and what differs.
fn check_changes(volume: &Path, mount: fn(&Path, &str) -> Mounted, changes: &[Change]) {
    let before = take(volume, Contents::None);
    compare(&before, volume, Contents::None).unwrap();
    let owners = take(volume, Contents::Owners);
    compare(&owners, volume, Contents::Owners).unwrap();
    let copy = volume.with_extension("copy");
    for (path, what, change) in changes {
        fs::copy(volume, &copy).unwrap();
        change(mount(&copy, "noatime").path());
        let error = compare(&before, &copy, Contents::None).expect_err(path);
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        let text = error.to_string();
        assert!(text.contains(path) && text.contains(what), "{path}, {what}: {text}");
        // Each leaves a trace in a time at least.
        compare(&owners, &copy, Contents::Owners).expect_err(path);
        verify::volume::check(&source(&copy)).unwrap();
    }
}

#[test]
fn each_change_of_ntfs_names_its_file() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    File::create(&volume).unwrap().set_len(8 << 20).unwrap();
    run("mkntfs", &["-qQF", text(&volume)]);
    {
        let mounted = Mounted::ntfs(&volume, "permissions");
        let root = mounted.path();
        fs::write(root.join("file"), noise(1, 9000)).unwrap();
        fs::write(root.join("file:stream"), noise(2, 9000)).unwrap();
        fs::create_dir(root.join("dir")).unwrap();
        fs::write(root.join("dir/small"), "small").unwrap();
    }
    let mount = |volume: &Path, options: &str| Mounted::ntfs(volume, &format!("permissions,{options}"));
    // The root comes first where a directory changes, too: its times and index.
    check_changes(
        &volume,
        mount,
        &[
            ("file ", "names", |root| fs::rename(root.join("file"), root.join("renamed")).unwrap()),
            ("(/file)", "streams", |root| {
                fs::OpenOptions::new()
                    .append(true)
                    .open(root.join("file"))
                    .unwrap()
                    .write_all_at(b"x", 9000)
                    .unwrap();
            }),
            ("(/dir/small)", "streams", |root| fs::write(root.join("dir/small"), "Small").unwrap()),
            ("(/file)", "attributes", |root| drop(run("chmod", &["600", text(&root.join("file"))]))),
            ("(/file)", "streams", |root| fs::remove_file(root.join("file:stream")).unwrap()),
            ("(/file)", "attributes", |root| {
                run(
                    "setfattr",
                    &["-h", "-n", "system.ntfs_attrib_be", "-v", "0x00000022", text(&root.join("file"))],
                );
            }),
            ("(/file)", "attributes", |root| {
                drop(run("touch", &["-d", "2001-02-03", text(&root.join("file"))]));
            }),
        ],
    );
}

#[test]
fn each_change_of_ext_names_its_file() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    for args in ["-t ext4", "-t ext3 -I 128", "-t ext4 -O inline_data -I 512"] {
        File::create(&volume).unwrap().set_len(16 << 20).unwrap();
        run("mke2fs", &[&["-q", "-F"], &args.split(' ').collect::<Vec<_>>()[..], &[text(&volume)]].concat());
        {
            let mounted = Mounted::ext(&volume, "noatime");
            let root = mounted.path();
            fs::write(root.join("file"), noise(1, 9000)).unwrap();
            fs::write(root.join("other"), noise(2, 50_000)).unwrap();
            run("setfattr", &["-n", "user.large", "-v", &"a".repeat(600), text(&root.join("file"))]);
            std::os::unix::fs::symlink("file", root.join("symlink")).unwrap();
        }
        let changes: &[Change] = &[
            ("(/file)", "heads", |root| drop(run("chmod", &["600", text(&root.join("file"))]))),
            ("(/file)", "heads", |root| {
                fs::OpenOptions::new()
                    .write(true)
                    .open(root.join("file"))
                    .unwrap()
                    .write_all_at(b"x", 9000)
                    .unwrap();
            }),
            ("(/file)", "attributes", |root| {
                run("setfattr", &["-n", "user.large", "-v", &"b".repeat(600), text(&root.join("file"))]);
            }),
            ("file ", "names", |root| fs::rename(root.join("file"), root.join("renamed")).unwrap()),
            ("(/other)", "layout of streams", |root| {
                run("fallocate", &["-p", "-o", "16384", "-l", "4096", text(&root.join("other"))]);
            }),
        ];
        // Holes are not punched in maps of pointers on every kernel.
        let count = if args.contains("ext3") { 4 } else { 5 };
        check_changes(&volume, Mounted::ext, &changes[..count]);
    }
}

/// Each regular file of a volume.
fn regular_files(volume: &Path) -> Vec<u64> {
    let catalog = Catalog::read(&*open(&source(volume))).unwrap();
    let files = catalog.streams().filter(|stream| stream.stream.kind == FileKind::Regular);
    let mut files: Vec<_> = files.map(|stream| stream.stream.file.0).collect();
    files.dedup();
    files
}

fn extents(volume: &Path, path: &[u8]) -> Vec<filesystem::FileExtent> {
    let catalog = Catalog::read(&*open(&source(volume))).unwrap();
    let found = catalog.streams().find(|stream| stream.path() == path).expect("the file");
    found.extents().collect()
}

#[test]
fn files_that_e4defrag_moved_are_the_same() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    File::create(&volume).unwrap().set_len(48 << 20).unwrap();
    run("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "1024", text(&volume)]);
    {
        let mounted = Mounted::ext(&volume, "noatime,nodelalloc");
        let root = mounted.path();
        fs::create_dir(root.join("dir")).unwrap();
        let files: Vec<_> =
            (0..4).map(|index| File::create(root.join(format!("dir/{index}"))).unwrap()).collect();
        // In turn, each synced, so that the kernel scatters them; too many pieces for an inode.
        for round in 0..60 {
            for (index, file) in files.iter().enumerate() {
                file.write_all_at(&noise(round, 3000 + index), round * 9000).unwrap();
                file.sync_all().unwrap();
            }
        }
    }
    // e4defrag makes a file beside each for a while, which changes the times of the directory: set to the same in both.
    let settle = |volume: &Path| {
        let script = volume.with_extension("script");
        let fields = ["mtime", "ctime"]
            .map(|field| format!("sif dir {field} 20200101\nsif dir {field}_extra 0\n"))
            .concat();
        fs::write(&script, fields + "sif dir version 0\nsif dir version_hi 0\n").unwrap();
        run("debugfs", &["-w", "-f", text(&script), text(volume)]);
    };
    settle(&volume);
    let files = regular_files(&volume);
    let before = take(&volume, Contents::Of(&files));
    let places = extents(&volume, b"/dir/2");
    {
        let mounted = Mounted::ext(&volume, "noatime");
        let said = run("e4defrag", &[text(mounted.path())]);
        assert!(said.contains("Success"), "{said}");
    }
    settle(&volume);
    let moved = extents(&volume, b"/dir/2");
    assert!(moved.len() < places.len(), "e4defrag moved something: {places:?} {moved:?}");
    verify::volume::check(&source(&volume)).unwrap();
    compare(&before, &volume, Contents::Of(&files)).unwrap();
    // One byte of what was moved.
    let at = moved[0].span.start().get();
    let file = fs::OpenOptions::new().read(true).write(true).open(&volume).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    let error = compare(&before, &volume, Contents::Of(&files)).unwrap_err();
    assert!(error.to_string().contains("(/dir/2)") && error.to_string().contains("contents"), "{error}");
    compare(&take(&volume, Contents::None), &volume, Contents::None).unwrap();
}

/// Moves the first extent of a file by hand: its clusters, its mapping pairs, and `$Bitmap`.
fn move_by_hand(volume: &Path, path: &[u8]) {
    let mut bytes = fs::read(volume).unwrap();
    let from = extents(volume, path)[0].span;
    let filesystem = open(&source(volume));
    let mut room = None;
    filesystem
        .each_free_span(&mut |span| {
            // Behind, so that the number of bytes of the cluster's number stays.
            if span.len_bytes() >= from.len_bytes() && span.start() > VolumeOffset::new(4 << 20) {
                room.get_or_insert(span.start());
            }
        })
        .unwrap();
    let to = room.expect("room");
    let range = |at: VolumeOffset| at.get() as usize..(at.get() + from.len_bytes()) as usize;
    bytes.copy_within(range(from.start()), to.get() as usize);
    let (old, new) = (from.start().get() / 4096, to.get() / 4096);
    let count = from.len_bytes() / 4096;
    let pair = |lcn: u64| [&[0x21, count as u8][..], &(lcn as u16).to_le_bytes()].concat();
    let at = bytes.windows(4).position(|window| window == pair(old)).expect("its mapping pairs");
    bytes[at..at + 4].copy_from_slice(&pair(new));
    let bitmap = extents(volume, b"/$Bitmap")[0].span.start().get() as usize;
    for (start, flip) in [(old, 1u8), (new, 1)] {
        (start..start + count).for_each(|lcn| bytes[bitmap + lcn as usize / 8] ^= flip << (lcn % 8));
    }
    fs::write(volume, bytes).unwrap();
}

#[test]
fn a_file_of_ntfs_that_was_moved_is_the_same() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    File::create(&volume).unwrap().set_len(24 << 20).unwrap();
    run("mkntfs", &["-qQF", text(&volume)]);
    {
        let mounted = Mounted::ntfs(&volume, "");
        // Past the first 128 clusters, whose numbers take one byte.
        fs::write(mounted.path().join("first"), noise(5, 3 << 20)).unwrap();
        fs::write(mounted.path().join("file"), noise(1, 200_000)).unwrap();
    }
    let before = take(&volume, Contents::All);
    let tree = Mounted::ntfs(&volume, "ro,noatime").tree();
    move_by_hand(&volume, b"/file");
    verify::volume::check(&source(&volume)).unwrap();
    run("ntfsresize", &["--info", text(&volume)]);
    compare(&before, &volume, Contents::All).unwrap();
    tree.assert_same(&Mounted::ntfs(&volume, "ro,noatime").tree(), "a file moved");
    let at = extents(&volume, b"/file")[0].span.start().get() + 199_999;
    let file = fs::OpenOptions::new().write(true).open(&volume).unwrap();
    file.write_all_at(b"?", at).unwrap();
    let error = compare(&before, &volume, Contents::All).unwrap_err();
    assert!(error.to_string().contains("(/file)") && error.to_string().contains("contents"), "{error}");
}
