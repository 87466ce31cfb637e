//! Listing the files of NTFS volumes that are dirty, damaged, or made to do harm: what is whole is listed, what is not is
//! a doubt, and nothing worse happens.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::Duration;

use crate::ntfs_volumes::{
    AsVolume, Made, attribute_at, fragment_mft, make, open, open_bytes, open_source, record_at, u16_at,
    u32_at,
};
use block::{Error, ErrorKind, Memory, ReadAt, Result, TargetFile};
use extent::{Volume, VolumeOffset, VolumeSpan};
use filesystem::{
    Catalog, FileExtent, FileId, FileKind, FileName, FileStream, FileSystem, FileVisitor, PieceState, Source,
    State, StreamName,
};
use testkit::{TimeLimit, check_hostile, noise, run, scratch};

/// Sees to it that what a scan shows is as it promises.
struct Strict {
    volume_bytes: u64,
    last: Option<FileId>,
    streams: u64,
    doubts: u64,
}

impl FileVisitor for Strict {
    fn stream(&mut self, stream: FileStream<'_>, extents: &[FileExtent]) {
        let is_first = self.last != Some(stream.file);
        assert!(self.last <= Some(stream.file), "ascending");
        assert_eq!(stream.name == StreamName::Main, is_first, "the main stream, then the others");
        assert!(!stream.is_inline || extents.is_empty());
        let mut end = 0;
        for extent in extents {
            assert!(extent.logical.get() >= end && !extent.span.is_empty(), "in order");
            end = extent.logical.get().checked_add(extent.span.len_bytes()).unwrap();
            assert!(extent.span.end().get() <= self.volume_bytes, "on the volume");
        }
        self.last = Some(stream.file);
        self.streams += 1;
    }

    fn name(&mut self, name: FileName<'_>) {
        assert!(name.name.len() <= 255 * 3);
    }

    fn doubt(&mut self, _file: Option<FileId>, why: String) {
        assert!(!why.is_empty());
        self.doubts += 1;
    }
}

/// Lists everything twice: for the promises, and into a catalog.
fn list_all(source: &Source) -> Result<()> {
    let Some(filesystem) = filesystem::ntfs::open(source)? else { return Ok(()) };
    let mut strict = Strict { volume_bytes: source.len_bytes(), last: None, streams: 0, doubts: 0 };
    filesystem.scan_files(&mut strict).expect("what is broken is a doubt, not an error");
    let catalog = Catalog::read(&*filesystem)?;
    assert_eq!(catalog.streams().len() as u64, strict.streams);
    assert_eq!(catalog.doubt_count(), strict.doubts);
    for stream in catalog.streams() {
        assert!(!stream.path().is_empty());
    }
    let mut end = 0;
    filesystem.each_free_span(&mut |span| {
        assert!(span.start().get() > end || end == 0, "ascending and joined");
        assert!(!span.is_empty() && span.end().get() <= source.len_bytes());
        end = span.end().get();
    })
}

/// A listed stream: its length and its extents.
type Listed = (FileKind, u64, Vec<FileExtent>);

/// What is listed: by path, so that names are compared too.
fn listed(filesystem: &dyn FileSystem) -> BTreeMap<(FileId, Vec<u8>), Listed> {
    let catalog = Catalog::read(filesystem).unwrap();
    let streams = catalog.streams();
    let streams = streams.map(|stream| {
        let FileStream { file, kind, size_bytes, .. } = stream.stream;
        ((file, stream.path()), (kind, size_bytes, stream.extents().collect()))
    });
    streams.collect()
}

fn doubts(filesystem: &dyn FileSystem) -> Vec<(Option<FileId>, String)> {
    let catalog = Catalog::read(filesystem).unwrap();
    catalog.doubts().iter().map(|doubt| (doubt.file, doubt.why.clone())).collect()
}

/// A small volume with a file of each sort that the pass treats differently, and their numbers.
struct Small {
    made: Made,
    plain: u64,
    pieces: u64,
    folder: u64,
}

fn small() -> Small {
    let made = make(3, &["-c", "512"]);
    let mounted = made.mount("streams_interface=windows");
    let dir = &mounted.dir;
    fs::write(dir.join("plain"), noise(1, 20_000)).unwrap();
    fs::write(dir.join("plain:stream"), noise(2, 3000)).unwrap();
    let pieces = File::create(dir.join("pieces")).unwrap();
    for index in 0..700 {
        pieces.write_all_at(&noise(index, 512), index * 1024).unwrap();
    }
    drop(pieces);
    fs::create_dir(dir.join("folder")).unwrap();
    for index in 0..60 {
        fs::write(dir.join(format!("folder/a rather long file name {index}")), b"x").unwrap();
    }
    let [plain, pieces, folder] =
        ["plain", "pieces", "folder"].map(|name| fs::metadata(dir.join(name)).unwrap().ino());
    drop(mounted);
    Small { made, plain, pieces, folder }
}

/// The number of a record that extends the record `base`, the first or a later one.
fn extension_of(bytes: &[u8], base: u64, nth: usize) -> u64 {
    let extends = |at: &usize| {
        let record = &bytes[*at..*at + 1024];
        record.starts_with(b"FILE") && u64::from(u32_at(record, 32)) == base && u16_at(record, 22) == 1
    };
    let at = (0..bytes.len() - 1024).step_by(512).filter(extends).nth(nth).expect("an extension record");
    u64::from(u32_at(bytes, at + 44))
}

#[test]
fn damaged_boot_sectors_are_nothing_worse() {
    let made = make(2, &[]);
    check_hostile(&made.bytes(), 0x60, |file| list_all(&(Arc::new(AsVolume(file)) as Source)));
}

#[test]
fn damaged_metadata_is_nothing_worse() {
    let Small { made, plain, pieces, folder } = small();
    let good = made.bytes();
    let memory = Arc::new(Memory::new(good.clone()));
    let source: Source = memory.clone();
    list_all(&source).unwrap();
    let extension = extension_of(&good, pieces, 1);
    let numbers = [0, 5, 6, 11, plain, pieces, extension, folder];
    let list = attribute_at(&good, pieces, 0x20);
    let run = list + u16_at(&good, list + 32);
    let lcn_len = usize::from(good[run] >> 4);
    let mut lcn = [0; 8];
    lcn[..lcn_len].copy_from_slice(&good[run + 2..run + 2 + lcn_len]);
    let list = usize::from_le_bytes(lcn) * 512;
    assert_eq!(u32_at(&good, list), 0x10, "the attribute list");
    let structures = numbers.map(|number| record_at(&good, number)).into_iter().chain([list]);
    for structure in structures {
        for at in (structure..structure + 504).step_by(2) {
            for value in [0u32, 1, 0xffff, 0x7fff_ffff, u32::MAX] {
                let host = extent::HostOffset::new(at as u64);
                memory.write_at(host, &value.to_le_bytes()).unwrap();
                let limit = TimeLimit::of(Duration::from_secs(5));
                if let Err(error) = list_all(&source) {
                    let kinds = [ErrorKind::Corrupt, ErrorKind::Unsupported];
                    assert!(kinds.contains(&error.kind()), "{value:#x} at {at:#x}: {error:?}");
                }
                limit.check(&format!("{value:#x} at {at:#x}"));
                memory.write_at(host, &good[at..at + 4]).unwrap();
            }
        }
    }
}

#[test]
fn a_broken_record_is_one_doubt_about_its_file() {
    let Small { made, plain, .. } = small();
    let mut bytes = made.bytes();
    let mut before = listed(&*open(&made.volume));
    // Torn.
    let at = record_at(&bytes, plain);
    bytes[at + 510] ^= 1;
    let filesystem = open_bytes(bytes);
    let found = doubts(&*filesystem);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, Some(FileId(plain)));
    assert!(found[0].1.contains("update sequence number of block 0"), "{found:?}");
    let count = before.len();
    before.retain(|(file, _), _| file.0 != plain);
    assert_eq!(before.len(), count - 2, "the file and its stream");
    assert_eq!(listed(&*filesystem), before);
}

#[test]
fn a_broken_extension_record_leaves_the_other_pieces() {
    let Small { made, pieces, .. } = small();
    let mut bytes = made.bytes();
    let before = listed(&*open(&made.volume));
    let at = record_at(&bytes, extension_of(&bytes, pieces, 1));
    bytes[at + 510] ^= 1;
    let filesystem = open_bytes(bytes);
    let found = doubts(&*filesystem);
    assert!(found.iter().any(|(file, _)| *file == Some(FileId(pieces))), "{found:?}");
    let after = listed(&*filesystem);
    let key = (FileId(pieces), b"/pieces".to_vec());
    let (whole, left) = (&before[&key].2, &after[&key].2);
    assert!(left.len() > 100 && left.len() < whole.len(), "{} of {}", left.len(), whole.len());
    assert!(left.iter().all(|extent| whole.contains(extent)));
    let others = |listed: &BTreeMap<_, Listed>| {
        let mut listed = listed.clone();
        listed.remove(&key);
        listed
    };
    assert_eq!(others(&before), others(&after));
}

#[test]
fn a_broken_root_leaves_all_paths_as_they_are() {
    let Small { made, folder, .. } = small();
    let mut bytes = made.bytes();
    let mut before = listed(&*open(&made.volume));
    let root = record_at(&bytes, 5);
    bytes[root] = b'B';
    let filesystem = open_bytes(bytes);
    assert!(matches!(filesystem.facts().state, State::Inconsistent(_)));
    before.retain(|(file, _), _| file.0 != 5);
    assert_eq!(listed(&*filesystem), before);
    assert!(before.contains_key(&(FileId(folder), b"/folder".to_vec())));
    assert_eq!(doubts(&*filesystem).len(), 1);
}

#[test]
fn without_mft_there_is_one_doubt_about_the_volume() {
    let mut bytes = make(2, &[]).bytes();
    let mft = record_at(&bytes, 0);
    bytes[mft] = b'B';
    let filesystem = open_bytes(bytes);
    let found = doubts(&*filesystem);
    assert_eq!(found.len(), 1);
    assert!(found[0].0.is_none() && found[0].1.starts_with("NTFS file record 0: magic"), "{found:?}");
    assert_eq!(filesystem.each_free_span(&mut |_| ()).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn dirty_and_hibernated_volumes_are_listed_too() {
    let Small { made, .. } = small();
    let mut hibernation = noise(12, 50_000);
    hibernation[..4].copy_from_slice(b"HIBR");
    let mut free = Vec::new();
    let clean = open(&made.volume);
    clean.each_free_span(&mut |span| free.push(span)).unwrap();
    let before = listed(&*clean);
    let mut bytes = made.bytes();
    let information = attribute_at(&bytes, 3, 0x70);
    let flags = information + u16_at(&bytes, information + 20) + 10;
    bytes[flags] |= 1;
    let dirty = open_bytes(bytes);
    assert!(matches!(dirty.facts().state, State::Dirty(_)));
    assert_eq!(listed(&*dirty), before);
    assert_eq!(doubts(&*dirty), []);
    let mut dirty_free = Vec::new();
    dirty.each_free_span(&mut |span| dirty_free.push(span)).unwrap();
    assert_eq!(dirty_free, free);
    fs::write(made.mount("").dir.join("hiberfil.sys"), hibernation).unwrap();
    let hibernated = open(&made.volume);
    assert!(matches!(hibernated.facts().state, State::Hibernated(_)));
    assert_eq!(listed(&*hibernated).len(), before.len() + 1);
    assert_eq!(doubts(&*hibernated), []);
}

#[test]
fn what_was_never_initialised_is_unwritten() {
    let Small { made, plain, .. } = small();
    let bytes = made.bytes();
    let initialized = attribute_at(&bytes, plain, 0x80) + 56;
    assert_eq!(u32_at(&bytes, initialized), 20_000);
    let with = |len: u32| {
        let mut bytes = bytes.clone();
        bytes[initialized..initialized + 4].copy_from_slice(&len.to_le_bytes());
        let mut listed = listed(&*open_bytes(bytes));
        listed.remove(&(FileId(plain), b"/plain".to_vec())).unwrap().2
    };
    let lens = |extents: &[FileExtent]| -> Vec<(PieceState, u64)> {
        extents.iter().map(|extent| (extent.state, extent.span.len_bytes())).collect()
    };
    let (written, unwritten) = (PieceState::Written, PieceState::Unwritten);
    assert_eq!(lens(&with(20_000)), [(written, 20_480)]);
    // 9 clusters hold 4500 bytes.
    let split = with(4500);
    assert_eq!(lens(&split), [(written, 4608), (unwritten, 20_480 - 4608)]);
    assert_eq!(split[0].span.end(), split[1].span.start());
    assert_eq!(lens(&with(0)), [(unwritten, 20_480)]);
}

#[test]
fn whatever_lies_below_extend_is_metadata() {
    let Small { made, folder, .. } = small();
    let mut bytes = made.bytes();
    // The index of $Extend is made to show a directory that ntfs-3g would not make there.
    let root = attribute_at(&bytes, 11, 0x90);
    let entry = root + u16_at(&bytes, root + 20) + 32;
    assert_eq!(u32_at(&bytes, entry), 25, "$ObjId is the first entry");
    let record = record_at(&bytes, folder);
    bytes[entry..entry + 8].copy_from_slice(&folder.to_le_bytes());
    bytes.copy_within(record + 16..record + 18, entry + 6);
    let listed = listed(&*open_bytes(bytes));
    let inside = listed.iter().filter(|((_, path), _)| path.starts_with(b"/folder"));
    let kinds: Vec<_> = inside.map(|(_, (kind, ..))| *kind).collect();
    assert!(kinds.len() >= 61);
    assert!(kinds.iter().all(|kind| *kind == FileKind::Metadata));
    assert!(listed.iter().any(|(_, (kind, ..))| *kind == FileKind::Regular));
}

#[test]
fn what_an_index_shows_below_extend_is_not_believed_if_it_is_gone() {
    let Small { made, plain, .. } = small();
    let mut bytes = made.bytes();
    let root = attribute_at(&bytes, 11, 0x90);
    let entry = root + u16_at(&bytes, root + 20) + 32;
    // Another sequence number than the record has: the number is another file's now.
    bytes[entry..entry + 8].copy_from_slice(&(plain | 0x7777 << 48).to_le_bytes());
    let filesystem = open_bytes(bytes);
    let listed = listed(&*filesystem);
    assert_eq!(listed[&(FileId(plain), b"/plain".to_vec())].0, FileKind::Regular);
    assert_eq!(listed[&(FileId(24), b"/$Extend/$Quota".to_vec())].0, FileKind::Metadata, "the rest is shown");
    let found = doubts(&*filesystem);
    assert_eq!(found.len(), 1);
    assert!(found[0].0.is_none() && found[0].1.contains("sequence number"), "{found:?}");
}

#[test]
fn a_file_with_more_clusters_than_the_volume_is_a_doubt() {
    let Small { made, plain, .. } = small();
    let mut bytes = made.bytes();
    let data = attribute_at(&bytes, plain, 0x80);
    let run = data + u16_at(&bytes, data + 32);
    // Twice the 3500 clusters from cluster 16 on, of the 6143 that the volume has.
    bytes[data + 24..data + 32].copy_from_slice(&6999u64.to_le_bytes());
    bytes[run..run + 8].copy_from_slice(&[0x12, 0xac, 13, 16, 0x12, 0xac, 13, 0]);
    let filesystem = open_bytes(bytes);
    let found = doubts(&*filesystem);
    assert_eq!(found.len(), 1);
    assert!(found[0].1.contains("more clusters than the volume has"), "{found:?}");
    assert_eq!(found[0].0, Some(FileId(plain)));
    let left = listed(&*filesystem)[&(FileId(plain), b"/plain".to_vec())].2.clone();
    assert_eq!(
        left.iter().map(|extent| extent.span.len_bytes()).sum::<u64>(),
        3500 * 512,
        "the first run stays"
    );
}

#[test]
fn records_and_their_bitmap_that_differ_are_doubts() {
    let Small { made, plain, .. } = small();
    let before = listed(&*open(&made.volume));
    let record = record_at(&made.bytes(), plain);
    let mut bytes = made.bytes();
    bytes[record + 22] &= !1;
    let found = doubts(&*open_bytes(bytes.clone()));
    assert_eq!(found.len(), 1);
    assert!(found[0].1.contains("expected in use, as $MFT's bitmap says"), "{found:?}");
    assert_eq!(listed(&*open_bytes(bytes)).len(), before.len() - 2);
    let mut bytes = made.bytes();
    let bitmap = attribute_at(&bytes, 0, 0xb0);
    let run = bitmap + u16_at(&bytes, bitmap + 32);
    assert_eq!(bytes[run], 0x11);
    let bits = usize::from(bytes[run + 2]) * 512;
    let place = usize::try_from(plain).unwrap();
    bytes[bits + place / 8] &= !(1 << (place % 8));
    let found = doubts(&*open_bytes(bytes.clone()));
    assert_eq!(found.len(), 1);
    assert!(found[0].1.contains("flags is in use, expected free"), "{found:?}");
    assert_eq!(listed(&*open_bytes(bytes)), before);
}

/// A volume of which some bytes cannot be read.
struct Failing {
    bytes: Memory,
    bad: VolumeSpan,
    error: fn() -> Error,
}

impl ReadAt<Volume> for Failing {
    fn len_bytes(&self) -> u64 {
        ReadAt::<Volume>::len_bytes(&self.bytes)
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        match VolumeSpan::new(at, buf.len() as u64).intersect(&self.bad) {
            Some(bad) if !bad.is_empty() => Err((self.error)()),
            _ => self.bytes.read_at(at, buf),
        }
    }
}

#[test]
fn lists_that_many_files_share_are_not_all_read() {
    let Small { made, pieces, .. } = small();
    let mut bytes = made.bytes();
    let list = attribute_at(&bytes, pieces, 0x20);
    let run = list + u16_at(&bytes, list + 32);
    // All there can be of a list: 512 clusters from cluster 1 on.
    bytes[list + 24..list + 32].copy_from_slice(&511u64.to_le_bytes());
    for size in [40, 48, 56] {
        bytes[list + size..list + size + 8].copy_from_slice(&(256u64 << 10).to_le_bytes());
    }
    bytes[run..run + 5].copy_from_slice(&[0x12, 0, 2, 1, 0]);
    let at = record_at(&bytes, pieces);
    let record = bytes[at..at + 1024].to_vec();
    let mft = record_at(&bytes, 0);
    for number in 64..110 {
        bytes[mft + number * 1024..][..1024].copy_from_slice(&record);
    }
    let found = doubts(&*open_bytes(bytes));
    let unread =
        found.iter().filter(|(_, why)| why.contains("with all other lists, less than what they list"));
    assert!(unread.count() > 30, "{found:?}");
    assert!(found.iter().any(|(_, why)| why.contains("entries of attribute 0x20")), "{found:?}");
}

#[test]
fn a_read_that_fails_is_an_error_and_an_image_that_is_broken_is_not() {
    let Small { made, pieces, .. } = small();
    let bytes = made.bytes();
    let at = record_at(&bytes, extension_of(&bytes, pieces, 2));
    let with = |error| {
        let bad = VolumeSpan::new(VolumeOffset::new(at as u64), 512);
        open_source(Arc::new(Failing { bytes: Memory::new(bytes.clone()), bad, error }))
    };
    let failing = with(|| Error::io("disk", std::io::Error::other("gone")));
    assert_eq!(Catalog::read(&*failing).unwrap_err().kind(), ErrorKind::Io);
    let broken = with(|| Error::corrupt("image"));
    let found = doubts(&*broken);
    assert!(found.contains(&(None, "image".into())), "{found:?}");
}

#[test]
fn a_fragmented_mft_is_listed_through_its_attribute_list() {
    let made = make(8, &["-c", "512"]);
    let mounted = made.mount("");
    assert!(fragment_mft(&mounted.dir) > 500);
    let mut numbers: Vec<_> = fs::read_dir(&mounted.dir)
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap())
        .map(|about| (about.ino(), about.len()))
        .collect();
    drop(mounted);
    numbers.sort_unstable();
    let info = run("ntfsinfo", &["-i", "0", made.volume.to_str().unwrap()]);
    assert!(info.contains("$ATTRIBUTE_LIST"), "{info}");
    let filesystem = open(&made.volume);
    let catalog = Catalog::read(&*filesystem).unwrap();
    assert_eq!(catalog.doubts(), []);
    let files = catalog.streams().map(|stream| stream.stream);
    let files = files.filter(|stream| stream.kind == FileKind::Regular && stream.name == StreamName::Main);
    assert_eq!(files.map(|stream| (stream.file.0, stream.size_bytes)).collect::<Vec<_>>(), numbers);
}

#[test]
fn disks_of_windows_are_listed_without_a_doubt() {
    let dir = scratch();
    for name in ["hv-dynamic.vhd", "hv-fixed.vhdx"] {
        let Some(image) = testkit::real_image(name, dir.path()) else { continue };
        let raw = dir.path().join("raw");
        run("qemu-img", &["convert", "-O", "raw", image.to_str().unwrap(), raw.to_str().unwrap()]);
        let disk = fs::read(&raw).unwrap();
        let sector = |at: usize| usize::try_from(u32_at(&disk, at)).unwrap() * 512;
        let volume = disk[sector(0x1c6)..][..sector(0x1ca)].to_vec();
        let filesystem = open_bytes(volume);
        assert_eq!(doubts(&*filesystem), []);
        let listed = listed(&*filesystem);
        // Windows keeps what NTFS's transactions need below $Extend.
        let nested = listed.iter().find(|((_, path), _)| path == b"/$Extend/$RmMetadata/$TxfLog/$Tops:$T");
        assert_eq!(nested.expect("the log of transactions").1.0, FileKind::Metadata);
        let mut free = 0;
        filesystem.each_free_span(&mut |span| free += span.len_bytes()).unwrap();
        assert_eq!(Some(free), filesystem.facts().free_bytes);
    }
}
