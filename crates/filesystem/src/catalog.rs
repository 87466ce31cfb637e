//! All files of a volume, kept in some hundred bytes each.
//!
//! Invariants:
//! - streams are in ascending order of file; names are sorted by file once the scan is over;
//! - a path never runs in circles: what is its own ancestor, or has no directory, begins with its number.

use block::Result;
use extent::{ExtentSet, Offset, Span, Volume, VolumeOffset};

use crate::FileSystem;
use crate::files::{FileExtent, FileId, FileKind, FileName, FileStream, FileVisitor, PieceState, StreamName};

/// The most directories above a file: Linux opens no path of more than 4096 bytes.
const DEPTH_MAX: usize = 2048;

/// The most doubts that are kept with their text.
const DOUBTS_MAX: usize = 100;

/// Extents are stored in these: NTFS may have clusters, and sectors, of no more.
const UNIT_BYTES: u64 = 256;

/// What could not be understood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Doubt {
    /// Of which file; `None` if of the volume.
    pub file: Option<FileId>,
    /// Why.
    pub why: String,
}

/// The files of a volume.
#[derive(Default, Debug)]
pub struct Catalog {
    streams: Vec<Entry>,
    /// The extents of all streams, packed.
    extents: Vec<u8>,
    names: Vec<NameEntry>,
    /// The bytes of all names of files and streams.
    text: Vec<u8>,
    doubts: Vec<Doubt>,
    doubt_count: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    file: FileId,
    size_bytes: u64,
    extents_at: u64,
    extent_count: u32,
    kind: FileKind,
    is_inline: bool,
    /// Where the stream's name lies in the text; `None` of the main one.
    name: Option<Text>,
}

#[derive(Clone, Copy, Debug)]
struct Text {
    at: u32,
    len: u16,
}

#[derive(Clone, Copy, Debug)]
struct NameEntry {
    file: FileId,
    parent: FileId,
    name: Text,
}

/// One stream of the catalog.
#[derive(Clone, Copy)]
pub struct CatalogStream<'a> {
    /// The stream.
    pub stream: FileStream<'a>,
    catalog: &'a Catalog,
    entry: &'a Entry,
}

impl<'a> CatalogStream<'a> {
    /// Its extents in order.
    pub fn extents(&self) -> impl Iterator<Item = FileExtent> + use<'a> {
        let start = usize::try_from(self.entry.extents_at).expect("an index of memory");
        Unpacker {
            bytes: &self.catalog.extents[start..],
            left: self.entry.extent_count,
            logical: 0,
            place: 0,
        }
    }

    /// How many extents it has, as the file system keeps them.
    pub fn extent_count(&self) -> u32 {
        self.entry.extent_count
    }

    /// The path of its file by the first name, and the stream's name behind a colon if it has one.
    pub fn path(&self) -> Vec<u8> {
        let mut path = self.catalog.path(self.stream.file);
        if let StreamName::Named(name) = self.stream.name {
            path.push(b':');
            path.extend_from_slice(name);
        }
        path
    }
}

impl Catalog {
    /// Scans a file system.
    pub fn read(filesystem: &dyn FileSystem) -> Result<Self> {
        let mut catalog = Self::default();
        filesystem.scan_files(&mut catalog)?;
        catalog.finish();
        Ok(catalog)
    }

    /// Sorts the names. To be called once the scan is over.
    fn finish(&mut self) {
        // Stable: the first name of a file stays its first.
        self.names.sort_by_key(|entry| entry.file);
        self.streams.shrink_to_fit();
        self.extents.shrink_to_fit();
        self.names.shrink_to_fit();
        self.text.shrink_to_fit();
    }

    /// All streams, by file.
    pub fn streams(&self) -> impl ExactSizeIterator<Item = CatalogStream<'_>> {
        self.streams.iter().map(|entry| self.stream_of(entry))
    }

    /// The stream at `index` of [`Self::streams`].
    pub fn get(&self, index: usize) -> CatalogStream<'_> {
        self.stream_of(&self.streams[index])
    }

    fn stream_of<'a>(&'a self, entry: &'a Entry) -> CatalogStream<'a> {
        let name = entry.name.map_or(StreamName::Main, |name| StreamName::Named(self.text_of(name)));
        let Entry { file, kind, size_bytes, is_inline, .. } = *entry;
        CatalogStream { stream: FileStream { file, kind, name, size_bytes, is_inline }, catalog: self, entry }
    }

    /// Where extents of several files lie: what reflinks and snapshots share. Takes 24 bytes an extent while it works.
    pub fn shared_places(&self) -> ExtentSet<Volume> {
        let mut extents = Vec::new();
        for stream in self.streams() {
            let file = stream.stream.file;
            extents.extend(stream.extents().map(|extent| (extent.span.start(), extent.span.end(), file)));
        }
        extents.sort_unstable();
        let mut shared = Vec::new();
        // The extent that ends last of those before, and the one of another file that does.
        let mut last: [Option<(VolumeOffset, FileId)>; 2] = [None; 2];
        for (start, end, file) in extents {
            let other = last.iter().flatten().find(|(_, of)| *of != file);
            if let Some((other_end, _)) = other.filter(|(other_end, _)| *other_end > start) {
                shared.push(Span::between(start, end.min(*other_end)));
            }
            let found = Some((end, file));
            match last {
                [Some((first, of)), _] if of == file => last[0] = Some((first.max(end), file)),
                [Some((first, _)), _] if end >= first => last = [found, last[0]],
                [Some(_), Some((second, _))] if end < second => {}
                [Some(_), _] => last[1] = found,
                [None, _] => last[0] = found,
            }
        }
        shared.into_iter().collect()
    }

    /// The first doubts, with their text.
    pub fn doubts(&self) -> &[Doubt] {
        &self.doubts
    }

    /// How many doubts there were.
    pub fn doubt_count(&self) -> u64 {
        self.doubt_count
    }

    /// Whether a file has a name.
    pub fn is_named(&self, file: FileId) -> bool {
        !self.names_of(file).is_empty()
    }

    /// The directory that a file is in, by its first name.
    pub fn folder(&self, file: FileId) -> Option<FileId> {
        self.names_of(file).first().map(|name| name.parent)
    }

    /// The path of a file by its first name, from the root: `/dir/file`. A file without a name is `/<number>`.
    pub fn path(&self, file: FileId) -> Vec<u8> {
        let name = self.names_of(file).first();
        self.path_by(file, name)
    }

    /// Finds paths for streams that are asked about in their order, faster than one by one.
    pub fn walk_paths(&self) -> PathWalk<'_> {
        PathWalk { catalog: self, next: 0, folder: None, prefix: Vec::new() }
    }

    /// The paths of a file by each of its names.
    pub fn paths(&self, file: FileId) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.names_of(file).iter().map(move |name| self.path_by(file, Some(name)))
    }

    fn path_by(&self, file: FileId, name: Option<&NameEntry>) -> Vec<u8> {
        let mut parts = Vec::new();
        let (mut file, mut name) = (file, name);
        let mut orphan = None;
        while let Some(entry) = name {
            let is_root = entry.parent == file;
            if is_root {
                break;
            }
            parts.push(entry.name);
            file = entry.parent;
            if parts.len() > DEPTH_MAX {
                orphan = Some(file);
                break;
            }
            name = self.names_of(file).first();
        }
        if name.is_none() {
            orphan = Some(file);
        }
        let mut path = Vec::new();
        if let Some(FileId(number)) = orphan {
            path.extend_from_slice(format!("/<{number}>").as_bytes());
        }
        for part in parts.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(self.text_of(*part));
        }
        if path.is_empty() {
            path.push(b'/');
        }
        path
    }

    fn names_of(&self, file: FileId) -> &[NameEntry] {
        let start = self.names.partition_point(|entry| entry.file < file);
        let count = self.names[start..].iter().take_while(|entry| entry.file == file).count();
        &self.names[start..start + count]
    }

    fn text_of(&self, text: Text) -> &[u8] {
        &self.text[text.at as usize..][..usize::from(text.len)]
    }

    /// `None` past 4 GiB of names.
    fn keep(&mut self, name: &[u8]) -> Option<Text> {
        let text = Text { at: u32::try_from(self.text.len()).ok()?, len: u16::try_from(name.len()).ok()? };
        self.text.extend_from_slice(name);
        Some(text)
    }
}

/// See [`Catalog::walk_paths`].
pub struct PathWalk<'a> {
    catalog: &'a Catalog,
    /// The first name that may be of the next file.
    next: usize,
    /// The last directory, and its path.
    folder: Option<FileId>,
    prefix: Vec<u8>,
}

impl PathWalk<'_> {
    /// Appends the path of `stream`, as [`CatalogStream::path`] has it, to `path`. Answers how many names its file has.
    pub fn push_path(&mut self, stream: &CatalogStream<'_>, path: &mut Vec<u8>) -> usize {
        let names = &self.catalog.names;
        let file = stream.stream.file;
        if names.get(self.next).is_some_and(|entry| entry.file > file) {
            // Asked out of order.
            self.next = names.partition_point(|entry| entry.file < file);
        }
        self.next += names[self.next..].iter().take_while(|entry| entry.file < file).count();
        let own = names[self.next..].iter().take_while(|entry| entry.file == file);
        let name_count = own.count();
        match names[self.next..].first().filter(|_| name_count > 0) {
            Some(name) if name.parent != file => {
                if self.folder != Some(name.parent) {
                    self.prefix = self.catalog.path(name.parent);
                    self.folder = Some(name.parent);
                }
                let folder = if self.prefix == b"/" { &[][..] } else { &self.prefix };
                path.extend_from_slice(folder);
                path.push(b'/');
                path.extend_from_slice(self.catalog.text_of(name.name));
            }
            _ => path.extend_from_slice(&self.catalog.path(file)),
        }
        if let StreamName::Named(name) = stream.stream.name {
            path.push(b':');
            path.extend_from_slice(name);
        }
        name_count
    }
}

impl FileVisitor for Catalog {
    fn stream(&mut self, stream: FileStream<'_>, extents: &[FileExtent]) {
        assert!(
            self.streams.last().is_none_or(|last| last.file <= stream.file),
            "streams come by ascending file"
        );
        let name = match stream.name {
            StreamName::Main => None,
            StreamName::Named(name) => {
                let Some(text) = self.keep(name) else {
                    self.doubt(Some(stream.file), "the volume has more names than can be kept".into());
                    return;
                };
                Some(text)
            }
        };
        let Ok(extent_count) = u32::try_from(extents.len()) else {
            self.doubt(Some(stream.file), "the file is in more than 2^32 pieces".into());
            return;
        };
        let extents_at = self.extents.len() as u64;
        let (mut logical, mut place) = (0, 0);
        for extent in extents {
            pack(&mut self.extents, extent, &mut logical, &mut place);
        }
        let FileStream { file, kind, size_bytes, is_inline, .. } = stream;
        self.streams.push(Entry { file, size_bytes, extents_at, extent_count, kind, is_inline, name });
    }

    fn name(&mut self, name: FileName<'_>) {
        match self.keep(name.name) {
            Some(text) => self.names.push(NameEntry { file: name.file, parent: name.parent, name: text }),
            None => self.doubt(Some(name.file), "the volume has more names than can be kept".into()),
        }
    }

    fn doubt(&mut self, file: Option<FileId>, why: String) {
        self.doubt_count += 1;
        if self.doubts.len() < DOUBTS_MAX {
            self.doubts.push(Doubt { file, why });
        }
    }
}

/// The paths of `files`, as text that a message can hold; `None` of all if the volume's files cannot be listed.
pub fn paths(filesystem: &dyn FileSystem, files: &[u64]) -> Vec<Option<String>> {
    let catalog = Catalog::read(filesystem).ok();
    let path = |file: &u64| Some(catalog.as_ref()?.path(FileId(*file)).escape_ascii().to_string());
    files.iter().map(path).collect()
}

/// Appends an extent as differences from the end of the one before, in units.
fn pack(bytes: &mut Vec<u8>, extent: &FileExtent, logical: &mut u64, place: &mut u64) {
    let units = |bytes: u64| {
        assert!(bytes.is_multiple_of(UNIT_BYTES), "extents are whole units");
        bytes / UNIT_BYTES
    };
    let state = match extent.state {
        PieceState::Written => 0,
        PieceState::Unwritten => 1,
        PieceState::Compressed => 2,
    };
    let (at, start) = (units(extent.logical.get()), units(extent.span.start().get()));
    let count = units(extent.span.len_bytes());
    put(bytes, zigzag(at.wrapping_sub(*logical)));
    put(bytes, zigzag(start.wrapping_sub(*place)));
    put(bytes, count << 2 | state);
    *logical = at + count;
    *place = start + count;
}

struct Unpacker<'a> {
    bytes: &'a [u8],
    left: u32,
    logical: u64,
    place: u64,
}

impl Iterator for Unpacker<'_> {
    type Item = FileExtent;

    fn next(&mut self) -> Option<FileExtent> {
        self.left = self.left.checked_sub(1)?;
        let at = self.logical.wrapping_add(unzigzag(take(&mut self.bytes)));
        let start = self.place.wrapping_add(unzigzag(take(&mut self.bytes)));
        let packed = take(&mut self.bytes);
        let count = packed >> 2;
        self.logical = at + count;
        self.place = start + count;
        Some(FileExtent {
            logical: Offset::new(at * UNIT_BYTES),
            span: Span::new(Offset::new(start * UNIT_BYTES), count * UNIT_BYTES),
            state: match packed & 3 {
                0 => PieceState::Written,
                1 => PieceState::Unwritten,
                _ => PieceState::Compressed,
            },
        })
    }
}

/// Small numbers of either sign (in two's complement) as small numbers.
fn zigzag(value: u64) -> u64 {
    value << 1 ^ 0u64.wrapping_sub(value >> 63)
}

fn unzigzag(value: u64) -> u64 {
    value >> 1 ^ 0u64.wrapping_sub(value & 1)
}

/// LEB128.
fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
}

fn take(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    let mut shift = 0;
    while let Some((&byte, rest)) = bytes.split_first() {
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn named(catalog: &mut Catalog, file: u64, parent: u64, name: &str) {
        catalog.name(FileName { file: FileId(file), parent: FileId(parent), name: name.as_bytes() });
    }

    fn main_stream(file: u64) -> FileStream<'static> {
        FileStream {
            file: FileId(file),
            kind: FileKind::Regular,
            name: StreamName::Main,
            size_bytes: 1,
            is_inline: false,
        }
    }

    #[test]
    fn paths_climb_to_the_root_and_never_in_circles() {
        let mut catalog = Catalog::default();
        named(&mut catalog, 12, 11, "file");
        named(&mut catalog, 12, 2, "link");
        named(&mut catalog, 2, 2, "");
        named(&mut catalog, 11, 2, "dir");
        named(&mut catalog, 20, 21, "a");
        named(&mut catalog, 21, 20, "b");
        named(&mut catalog, 30, 99, "lost");
        catalog.finish();
        let path = |file| String::from_utf8(catalog.path(FileId(file))).unwrap();
        assert_eq!(path(2), "/");
        assert_eq!(path(12), "/dir/file");
        assert_eq!(catalog.paths(FileId(12)).collect::<Vec<_>>(), [b"/dir/file".to_vec(), b"/link".to_vec()]);
        assert_eq!(path(7), "/<7>");
        assert_eq!(path(30), "/<99>/lost");
        assert!(path(20).starts_with("/<2") && path(20).ends_with("/a"));
    }

    /// Against a count of files a unit.
    #[test]
    fn what_several_files_have_is_shared() {
        let extent = |(start, len): (u64, u64)| FileExtent {
            logical: Offset::ZERO,
            span: Span::new(Offset::new(start * UNIT_BYTES), len * UNIT_BYTES),
            state: PieceState::Written,
        };
        proptest!(|(files in proptest::collection::vec(proptest::collection::vec((0..60_u64, 1..20_u64), 0..4), 0..6))| {
            let mut catalog = Catalog::default();
            for (file, places) in (0..).zip(&files) {
                for place in places {
                    // Several streams of a file share nothing with others.
                    catalog.stream(main_stream(file), &[extent(*place)]);
                }
            }
            catalog.finish();
            let shared = catalog.shared_places();
            for unit in 0..80_u64 {
                let has = |places: &Vec<(u64, u64)>| places.iter().any(|(start, len)| (*start..start + len).contains(&unit));
                let expected = files.iter().filter(|places| has(places)).count() > 1;
                prop_assert_eq!(shared.contains(Offset::new(unit * UNIT_BYTES)), expected, "{}", unit);
            }
        });
    }

    #[test]
    fn a_walk_finds_the_same_paths() {
        let mut catalog = Catalog::default();
        for file in [2, 5, 7, 11, 12, 13, 14, 30] {
            catalog.stream(main_stream(file), &[]);
        }
        catalog.stream(FileStream { name: StreamName::Named(b"s"), ..main_stream(30) }, &[]);
        let names = [(2, 2, ""), (7, 2, "top"), (11, 2, "dir"), (12, 11, "a"), (13, 11, "b"), (14, 2, "c")];
        for (file, parent, name) in names.into_iter().chain([(14, 11, "link"), (30, 99, "lost")]) {
            named(&mut catalog, file, parent, name);
        }
        catalog.finish();
        let mut walk = catalog.walk_paths();
        // In order, and once more.
        for stream in catalog.streams().chain(catalog.streams().skip(3)) {
            let mut path = Vec::new();
            let count = walk.push_path(&stream, &mut path);
            assert_eq!(path, stream.path());
            assert_eq!(count, catalog.paths(stream.stream.file).count());
        }
    }

    #[test]
    fn streams_know_their_names() {
        let mut catalog = Catalog::default();
        catalog.stream(main_stream(5), &[]);
        catalog.stream(FileStream { name: StreamName::Named(b"Zone.Identifier"), ..main_stream(5) }, &[]);
        named(&mut catalog, 5, 2, "x");
        named(&mut catalog, 2, 2, "");
        catalog.finish();
        let paths: Vec<_> = catalog.streams().map(|stream| stream.path()).collect();
        assert_eq!(paths, [b"/x".to_vec(), b"/x:Zone.Identifier".to_vec()]);
    }

    proptest! {
        #[test]
        fn extents_come_out_as_they_went_in(
            pieces in prop::collection::vec((0u64..1 << 40, 0u64..1 << 50, 1u64..1 << 30, 0..3u8), 0..20),
        ) {
            let extents: Vec<_> = pieces.iter().map(|&(logical, start, count, state)| FileExtent {
                logical: Offset::new(logical * 512),
                span: Span::new(Offset::new(start * 512), count * 512),
                state: [PieceState::Written, PieceState::Unwritten, PieceState::Compressed][usize::from(state)],
            }).collect();
            let mut catalog = Catalog::default();
            catalog.stream(main_stream(1), &[]);
            catalog.stream(main_stream(2), &extents);
            catalog.stream(main_stream(3), &extents);
            for stream in catalog.streams().skip(1) {
                prop_assert_eq!(stream.extents().collect::<Vec<_>>(), &extents[..]);
            }
        }
    }
}
