//! What is read of files against what a mount, or the tree that a volume was made of, has in them.

use crate::support;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Cached, ErrorKind, Result};
use extent::Offset;
use filesystem::{Catalog, FileKind, FileSystem, StreamName};
use testkit::{ntfs_volume, scratch};

/// Bytes of a stream, read in pieces that end nowhere in particular.
fn read(filesystem: &dyn FileSystem, stream: filesystem::FileStream<'_>) -> Result<Vec<u8>> {
    let contents = filesystem.open_stream(stream.file, stream.name)?;
    let mut bytes = vec![0xaa; usize::try_from(contents.len_bytes()).unwrap()];
    for (index, piece) in bytes.chunks_mut(70_001).enumerate() {
        contents.read_at(Offset::new(index as u64 * 70_001), piece)?;
    }
    let past = contents.read_at(Offset::new(contents.len_bytes()), &mut [0]);
    assert_eq!(past.unwrap_err().kind(), ErrorKind::Invalid);
    Ok(bytes)
}

/// Compares each stream of a regular file with that of the same path below `root`; answers how many were read, and the paths of
/// those that were not.
fn compare(filesystem: &dyn FileSystem, root: &Path) -> (usize, Vec<String>) {
    let catalog = Catalog::read(filesystem).unwrap();
    let (mut count, mut unread) = (0, Vec::new());
    for stream in catalog.streams().filter(|stream| stream.stream.kind == FileKind::Regular) {
        let path = String::from_utf8(stream.path()).unwrap();
        match read(filesystem, stream.stream) {
            Ok(bytes) => {
                let seen = fs::read(root.join(&path[1..])).unwrap();
                assert!(bytes == seen, "{path}");
                count += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{path}: {error}");
                unread.push(path);
            }
        }
    }
    (count, unread)
}

fn ntfs(volume: &Path) -> Box<dyn FileSystem> {
    let file = support::VolumeFile(fs::File::open(volume).unwrap());
    let source: filesystem::Source = Arc::new(Cached::new(file, 8 << 20));
    filesystem::ntfs::open(&source).unwrap().unwrap()
}

#[test]
fn files_of_ntfs_read_as_in_a_mount() {
    let dir = scratch();
    let volume: PathBuf = dir.path().join("volume");
    ntfs_volume::make(&volume, 4096, 7);
    let mounted = ntfs_volume::Mounted::new(&volume, &dir.path().join("mnt"), "ro");
    let (count, unread) = compare(&*ntfs(&volume), &mounted.dir);
    assert!(count > 60, "{count} files were read, {unread:?} not");
    // What only looks like data is not handed out; all else is.
    let unread: Vec<_> = unread.iter().filter(|path| !path.contains(":$")).map(String::as_str).collect();
    assert_eq!(unread, ["/secret"]);
}

#[test]
fn files_of_ext_read_as_they_were_written() {
    let dir = scratch();
    let (tree, volume) = (dir.path().join("tree"), dir.path().join("volume"));
    support::populate(&tree);
    for kind in ["-t ext4", "-t ext2", "-t ext4 -O inline_data -I 256"] {
        support::make(&volume, 64, kind, Some(&tree));
        let (count, unread) = compare(&*support::open(&volume), &tree);
        assert!(count > 100 && unread.is_empty(), "{kind}: {count} read, not {unread:?}");
    }
}

#[test]
fn directories_and_volumes_in_doubt_are_not_read() {
    let dir = scratch();
    let (tree, volume) = (dir.path().join("tree"), dir.path().join("volume"));
    support::populate(&tree);
    support::make(&volume, 64, "-t ext4", Some(&tree));
    let root = filesystem::FileId(2);
    let opened = support::open(&volume).open_stream(root, StreamName::Main);
    assert_eq!(opened.err().unwrap().kind(), ErrorKind::Unsupported);
    testkit::run("debugfs", &["-w", "-R", "set_super_value state 2", support::text(&volume)]);
    let opened = support::open(&volume).open_stream(root, StreamName::Main);
    assert_eq!(opened.err().unwrap().kind(), ErrorKind::Corrupt);
}
