//! Files of ext2/3/4 that are laid elsewhere, with e2fsck, the kernel and filefrag as judges.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::support;
use crate::support::{assert_same, debugfs, list_mounted, list_scanned, make, open, populate, text};
use block::{Error, ErrorKind, Memory, ReadAt, Result, check_bounds};
use extent::{ExtentSet, Offset, Span, Volume, VolumeOffset, VolumeSpan};
use filesystem::ext::Corrupt;
use filesystem::{
    Catalog, FileExtent, FileId, FileKind, FileStream, FileSystem, Mobility, PieceState, Rearrange,
    Relocation, Relocations, Source, StreamName, StreamVisitor, ext,
};
use testkit::ext_volume::{self, Mounted, tree_digest};
use testkit::{run, scratch};

/// Arguments of mke2fs.
const KINDS: &[&str] = &[
    "-t ext4 -b 4096",
    "-t ext4 -b 1024",
    "-t ext4 -b 1024 -O ^metadata_csum,^64bit,uninit_bg,^flex_bg",
    "-t ext4 -b 2048 -O ^metadata_csum,^uninit_bg",
    "-t ext4 -b 4096 -I 512 -O inline_data,ea_inode,large_dir",
    "-t ext4 -b 4096 -O ^extent,^64bit",
    "-t ext4 -b 4096 -O ^flex_bg -g 2048",
    "-t ext4 -b 1024 -O ^64bit,metadata_csum -I 128",
    "-t ext4 -b 1024 -O meta_bg,^resize_inode -g 1024",
    "-t ext4 -b 4096 -O orphan_file,fast_commit,metadata_csum_seed,sparse_super2 -g 1024",
    "-t ext4 -b 4096 + project,quota",
    "-t ext4 -b 4096 -O mmp",
    "-t ext4 -b 4096 -O bigalloc -C 16384 -N 8192",
    "-t ext4 -b 1024 -O bigalloc -C 8192 -N 8192",
    "-t ext3 -b 1024",
    "-t ext3 -b 4096 -I 128",
    "-t ext2 -b 1024",
    "-t ext2 -b 4096 -E revision=0 -N 8192",
];

/// A volume in memory, and what was opened of it at first.
struct Image {
    bytes: Vec<u8>,
}

impl ReadAt<Volume> for Image {
    fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes())?;
        buf.copy_from_slice(&self.bytes[at.get() as usize..][..buf.len()]);
        Ok(())
    }
}

impl Image {
    fn read(path: &Path) -> Self {
        Self { bytes: fs::read(path).unwrap() }
    }

    fn open(&self) -> Box<dyn FileSystem> {
        let source: Source = Arc::new(Memory::new(self.bytes.clone()));
        ext::open(&source).unwrap().expect("an ext superblock")
    }

    fn rearrange(&self) -> Box<dyn Rearrange> {
        self.open().rearrange().unwrap()
    }

    fn put(&mut self, at: VolumeOffset, bytes: &[u8]) {
        self.bytes[at.get() as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn get(&self, span: VolumeSpan) -> &[u8] {
        &self.bytes[span.start().get() as usize..span.end().get() as usize]
    }

    /// Copies what moves to where it goes, all at once.
    fn copy_data(&mut self, relocations: &Relocations) {
        let data: Vec<_> =
            relocations.by_source().map(|each| (each.to, self.get(each.from).to_vec())).collect();
        data.iter().for_each(|(to, bytes)| self.put(*to, bytes));
    }

    /// As an engine does in place.
    fn apply(&mut self, rearrange: &dyn Rearrange, relocations: &Relocations) -> u64 {
        self.copy_data(relocations);
        let edits = rearrange.edits(self, relocations).unwrap();
        let mut end = 0;
        for patch in &edits.patches {
            let span = Span::new(patch.at, patch.after.len() as u64);
            assert_eq!(patch.before.len(), patch.after.len());
            assert!(patch.at.get().is_multiple_of(512) && span.len_bytes().is_multiple_of(512));
            assert!(patch.at.get() >= end, "ascending and disjoint");
            end = span.end().get();
            assert_ne!(patch.before, patch.after);
            assert_eq!(self.get(span), patch.before);
            for witness in rearrange.witnesses(&[]).unwrap() {
                if let Some(part) = witness.intersect(&span) {
                    let from = (part.start().get() - patch.at.get()) as usize;
                    let range = from..from + part.len_bytes() as usize;
                    assert_eq!(patch.before[range.clone()], patch.after[range], "witnesses stay");
                }
            }
            self.put(patch.at, &patch.after);
        }
        edits.freed.iter().map(Span::len_bytes).sum()
    }

    /// As a copy does.
    fn apply_rewritten(&mut self, rearrange: &dyn Rearrange, relocations: Relocations, step: u64) {
        let relocations = Arc::new(relocations);
        let rewritten = rearrange.rewritten(relocations.clone()).unwrap();
        self.copy_data(&relocations);
        for span in rewritten.places().iter().flat_map(|span| span.split(step)) {
            let mut bytes = vec![0; span.len_bytes() as usize];
            rewritten.read_at(span.start(), &mut bytes).unwrap();
            self.put(span.start(), &bytes);
        }
        let outside = Offset::new(self.len_bytes() - 1);
        assert!(rewritten.places().contains(outside) || rewritten.read_at(outside, &mut [0]).is_err());
    }
}

/// A stream with extents.
#[derive(Clone, Debug)]
struct Stream {
    file: FileId,
    kind: FileKind,
    is_main: bool,
    extents: Vec<FileExtent>,
    mobility: Mobility,
}

#[derive(Default)]
struct Streams(Vec<Stream>);

impl StreamVisitor for Streams {
    fn stream(&mut self, stream: FileStream<'_>, extents: &[FileExtent], mobility: Mobility) {
        assert!(!extents.is_empty());
        self.0.push(Stream {
            file: stream.file,
            kind: stream.kind,
            is_main: stream.name == StreamName::Main,
            extents: extents.to_vec(),
            mobility,
        });
    }
}

/// Extents cut into pieces: of the file, of the volume.
fn split(extents: &[FileExtent], step: u64) -> Vec<(u64, u64, PieceState)> {
    let pieces = extents.iter().flat_map(|extent| {
        let count = extent.span.len_bytes().div_ceil(step);
        (0..count).map(move |index| {
            let skipped = index * step;
            (extent.logical.get() + skipped, extent.span.start().get() + skipped, extent.state)
        })
    });
    let mut pieces: Vec<_> = pieces.collect();
    if step == u64::MAX {
        // What is not cut has its length told, too.
        pieces.extend(extents.iter().map(|extent| (u64::MAX, extent.span.len_bytes(), extent.state)));
    }
    pieces
}

fn streams(rearrange: &dyn Rearrange) -> Vec<Stream> {
    let mut streams = Streams::default();
    rearrange.each_stream(&mut streams).unwrap();
    assert!(streams.0.is_sorted_by_key(|stream| stream.file));
    streams.0
}

fn room(rearrange: &dyn Rearrange) -> ExtentSet<Volume> {
    let mut room = ExtentSet::new();
    rearrange.each_room(&mut |span| room.push(span)).unwrap();
    room
}

/// A generator of numbers: small, and the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Takes `len_bytes` of `room` at random, if a few tries find some.
fn take(
    room: &mut ExtentSet<Volume>,
    len_bytes: u64,
    cluster: u64,
    numbers: &mut Numbers,
) -> Option<VolumeOffset> {
    for _ in 0..20 {
        let index = numbers.below(room.count() as u64) as usize;
        let span = room.iter().nth(index).unwrap();
        if let Some(rest) = span.len_bytes().checked_sub(len_bytes) {
            let to = span.start().plus(numbers.below(rest / cluster + 1) * cluster);
            *room = room.subtract(&[Span::new(to, len_bytes)].into_iter().collect());
            return Some(to);
        }
    }
    None
}

/// Whole extents to places that are free, about one in `one_in` of all.
fn at_random(rearrange: &dyn Rearrange, one_in: u64, numbers: &mut Numbers) -> Relocations {
    let mut free = room(rearrange);
    let mut all = Vec::new();
    for stream in streams(rearrange).iter().filter(|stream| stream.mobility == Mobility::Movable) {
        for extent in &stream.extents {
            if all.len() < 300 && numbers.below(one_in) == 0 {
                let len_bytes = extent.span.len_bytes();
                let to = take(&mut free, len_bytes, rearrange.cluster_bytes(), numbers);
                all.extend(to.map(|to| Relocation { from: extent.span, to, file: stream.file }));
            }
        }
    }
    Relocations::new(all).unwrap()
}

/// Every fragmented stream in one piece, as far as there is room.
fn contiguous(rearrange: &dyn Rearrange) -> Relocations {
    let mut free = room(rearrange);
    let mut all = Vec::new();
    let mut all_streams = streams(rearrange);
    let total_of = |stream: &Stream| stream.extents.iter().map(|extent| extent.span.len_bytes()).sum::<u64>();
    all_streams.sort_by_key(|stream| Reverse(total_of(stream)));
    for stream in all_streams.iter().filter(|stream| stream.mobility == Mobility::Movable) {
        let total = total_of(stream);
        if stream.extents.len() < 2 {
            continue;
        }
        let Some(span) = free.iter().find(|span| span.len_bytes() >= total) else { continue };
        let mut to = span.start();
        free = free.subtract(&[Span::new(to, total)].into_iter().collect());
        for extent in &stream.extents {
            all.push(Relocation { from: extent.span, to, file: stream.file });
            to = to.plus(extent.span.len_bytes());
        }
    }
    Relocations::new(all).unwrap()
}

/// Extents as they are after relocations, joined.
fn moved(stream: &Stream, relocations: &Relocations) -> Vec<FileExtent> {
    let mut moved: Vec<FileExtent> = Vec::new();
    for extent in &stream.extents {
        let mut start = extent.span.start();
        relocations.each_place(extent.span, |piece, to| {
            if piece.start() == extent.span.start() {
                start = to;
            }
        });
        let len = extent.span.len_bytes();
        match moved.last_mut() {
            Some(last)
                if last.span.end() == start
                    && last.logical.plus(last.span.len_bytes()) == extent.logical
                    && last.state == extent.state =>
            {
                last.span = Span::new(last.span.start(), last.span.len_bytes() + len);
            }
            _ => moved.push(FileExtent { span: Span::new(start, len), ..*extent }),
        }
    }
    moved
}

/// e2fsck has nothing to say.
fn check_clean(volume: &Path, what: &str) {
    let said = run("e2fsck", &["-fn", text(volume)]);
    assert!(!said.contains('?') && !said.contains("WARNING"), "{what}: {said}");
}

fn digest(volume: &Path) -> String {
    let mount = Mounted::new(volume, "ro");
    tree_digest(&mount.dir())
}

fn assert_digest(volume: &Path, before: &str, what: &str) {
    let after = digest(volume);
    for (after, before) in after.lines().zip(before.lines()) {
        assert_eq!(after, before, "{what}");
    }
    assert_eq!(after.lines().count(), before.lines().count(), "{what}");
}

/// All real tools like the volume, its files are as before, and it can be rearranged again.
fn judge(volume: &Path, image: &Image, before: &str, what: &str) {
    fs::write(volume, &image.bytes).unwrap();
    check_clean(volume, what);
    assert_digest(volume, before, what);
    let filesystem = open(volume);
    let catalog = Catalog::read(&*filesystem).unwrap();
    assert_eq!(catalog.doubts(), [], "{what}");
    assert_same(&list_scanned(&*filesystem, &catalog), &list_mounted(volume), what);
    filesystem.rearrange().unwrap();
}

fn rearrange_filled(options: &str, seed: u64) {
    let dir = scratch();
    let volume = dir.path().join("volume");
    let (options, tuning) = options.split_once(" + ").unwrap_or((options, ""));
    ext_volume::make(&volume, options, seed);
    if !tuning.is_empty() {
        run("tune2fs", &["-O", tuning, text(&volume)]);
    }
    let image = Image::read(&volume);
    check_streams(&image, &*image.rearrange(), options);
    let freed = rearrange_at_random(&volume, &format!("{options} {tuning}"), seed);
    let has_trees = options.contains("ext4") && !options.contains("^extent");
    assert_eq!(freed > 0, has_trees, "{options}: {freed} bytes of maps were freed");
}

/// Several rounds of moves.
fn rearrange_at_random(volume: &Path, options: &str, seed: u64) -> u64 {
    check_clean(volume, options);
    let before = digest(volume);
    let mut image = Image::read(volume);
    let first = image.rearrange();
    let mut numbers = Numbers(seed * 0x9e37_79b9 + 1);
    let mut freed = 0;
    for round in 0..5usize {
        let what = format!("{options}, seed {seed}, round {round}");
        let now = image.rearrange();
        let gathers = [1, 4].contains(&round);
        let relocations =
            if gathers { contiguous(&*now) } else { at_random(&*now, [30, 0, 1, 4][round], &mut numbers) };
        let count = relocations.by_source().len();
        assert!(count > if gathers { 2 } else { 10 }, "{what}: {count} relocations");
        let gathered = relocations.files();
        let expected: Vec<_> = streams(&*now).iter().map(|stream| moved(stream, &relocations)).collect();
        let mut rewritten = Image { bytes: image.bytes.clone() };
        let step = [1 << 20, 512, 100_000, 4096, 7][round];
        rewritten.apply_rewritten(&*now, relocations.clone(), step);
        // What was opened at first knows nothing of the rounds between.
        freed += image.apply(&*first, &relocations);
        assert!(image.bytes == rewritten.bytes, "{what}: both ways give the same volume");
        let after = streams(&*image.rearrange());
        assert_eq!(after.len(), expected.len());
        for (stream, expected) in after.iter().zip(expected) {
            // Clusters of which only a part is in use look as if they followed each other.
            let cluster = if options.contains("bigalloc") { now.cluster_bytes() } else { u64::MAX };
            let (stream, expected) = (split(&stream.extents, cluster), split(&expected, cluster));
            assert_eq!(stream, expected, "{what}");
        }
        for stream in
            after.iter().filter(|stream| gathers && stream.is_main && gathered.contains(&stream.file))
        {
            assert!(
                stream.extents.windows(2).all(|pair| pair[0].span.end() == pair[1].span.start()),
                "{what}"
            );
        }
        match round {
            1 => {
                fs::write(volume, &image.bytes).unwrap();
                check_clean(volume, &what);
            }
            4 => judge(volume, &image, &before, &what),
            _ => {}
        }
    }
    freed
}

/// The same streams as a scan shows, in the same order, and pinned what is to be.
fn check_streams(image: &Image, rearrange: &dyn Rearrange, what: &str) {
    let filesystem = image.open();
    let catalog = Catalog::read(&*filesystem).unwrap();
    let scanned: Vec<_> = catalog.streams().filter(|stream| stream.extent_count() > 0).collect();
    let shown = streams(rearrange);
    let cluster = rearrange.cluster_bytes();
    let mut pinned: BTreeMap<&str, u32> = BTreeMap::new();
    let mut movable = 0;
    assert_eq!(scanned.len(), shown.len());
    for (scanned, shown) in scanned.iter().zip(&shown) {
        assert_eq!(scanned.stream.file, shown.file, "{what}");
        let is_metadata = !shown.is_main || shown.kind == FileKind::Metadata;
        for (scanned, shown) in scanned.extents().zip(&shown.extents) {
            assert_eq!(
                (scanned.logical, scanned.span.start()),
                (shown.logical, shown.span.start()),
                "{what}"
            );
            assert!(shown.span.len_bytes() < scanned.span.len_bytes() + cluster);
        }
        let is_immutable = scanned.path() == b"/immutable";
        match shown.mobility {
            Mobility::Movable => {
                movable += 1;
                assert!(!is_metadata && !is_immutable, "{what}: {shown:?}");
                let first = rearrange.first_cluster().get();
                assert!(shown.extents.iter().all(|extent| {
                    (extent.span.start().get() - first).is_multiple_of(cluster)
                        && extent.span.len_bytes().is_multiple_of(cluster)
                }));
                let home = rearrange.home(shown.file).unwrap();
                assert!(home.len_bytes() > 0 && home.end().get() <= image.len_bytes());
            }
            Mobility::Together | Mobility::Anchored(_) => {
                panic!("{what}: maps of ext may always be told anew")
            }
            Mobility::Pinned(why) => *pinned.entry(why).or_default() += 1,
        }
        assert_eq!(shown.extents.len(), scanned.extent_count() as usize, "{what}");
    }
    assert!(movable > 60, "{what}: {movable} may move, {pinned:?}");
    let immutable = "immutable: a boot loader may know its blocks";
    assert_eq!(pinned.get(immutable), Some(&1), "{what}: {pinned:?}");
}

macro_rules! kinds {
    ($($name:ident: $range:expr;)*) => {$(
        #[test]
        fn $name() {
            for (index, options) in (0..).zip(KINDS).skip($range.start).take($range.end - $range.start) {
                rearrange_filled(options, index + 1);
            }
        }
    )*};
}

kinds! {
    files_move_on_ext4: 0..6;
    files_move_on_ext4_with_many_groups: 6..12;
    files_move_on_bigalloc: 12..14;
    files_move_on_ext3_and_ext2: 14..18;
}

/// Groups whose bitmaps were never written get files.
#[test]
fn uninitialised_groups_are_initialised() {
    let dir = scratch();
    let contents = dir.path().join("contents");
    populate(&contents);
    for (index, options) in (0..).zip([
        "-t ext4 -b 4096 -g 1024",
        "-t ext4 -b 1024 -g 2048 -O ^metadata_csum,^64bit,uninit_bg",
        "-t ext4 -b 1024 -g 4096 -O ^flex_bg,^resize_inode",
        "-t ext4 -b 4096 -g 1024 -O bigalloc -C 8192",
        "-t ext4 -b 1024 -O meta_bg,^resize_inode",
    ]) {
        let volume = dir.path().join("volume");
        // The last group has a length of its own.
        make(&volume, 63, options, Some(&contents));
        let count = |volume: &Path| run("dumpe2fs", &[text(volume)]).matches("BLOCK_UNINIT").count();
        let before = count(&volume);
        assert!(before > 1, "{options}: {before} groups");
        rearrange_at_random(&volume, options, index + 100);
        assert!(count(&volume) < before, "{options}");
    }
}

/// Where a volume is written anew, a file may take the place that another leaves.
#[test]
fn places_are_exchanged_where_a_volume_is_written_anew() {
    let dir = scratch();
    for (index, options) in (0..).zip(["-t ext4 -b 1024", "-t ext3 -b 4096", "-t ext4 -b 4096 -g 1024"]) {
        let volume = dir.path().join("volume");
        ext_volume::make(&volume, options, 40 + index);
        let before = digest(&volume);
        let mut image = Image::read(&volume);
        let rearrange = image.rearrange();
        let mut by_len: BTreeMap<u64, Vec<(VolumeSpan, FileId)>> = BTreeMap::new();
        for stream in streams(&*rearrange).iter().filter(|stream| stream.mobility == Mobility::Movable) {
            for extent in &stream.extents {
                by_len.entry(extent.span.len_bytes()).or_default().push((extent.span, stream.file));
            }
        }
        // In each group of equally long ones each takes the place of one far from it.
        let all = by_len.values().filter(|spans| spans.len() > 1).flat_map(|spans| {
            spans.iter().enumerate().map(|(index, (from, file))| {
                let (to, _) = spans[(index + spans.len() / 2) % spans.len()];
                Relocation { from: *from, to: to.start(), file: *file }
            })
        });
        let relocations = Relocations::new(all.collect()).unwrap();
        assert!(relocations.by_source().len() > 500, "{options}: {}", relocations.by_source().len());
        let kind = rearrange.edits(&image, &relocations).unwrap_err().kind();
        assert_eq!(kind, ErrorKind::Invalid, "in place that must not be");
        image.apply_rewritten(&*rearrange, relocations, 1 << 20);
        judge(&volume, &image, &before, options);
    }
}

/// What must not be asked for is `Invalid`, either way.
#[test]
fn wrong_relocations_are_invalid() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    for options in ["-t ext4 -b 1024", "-t ext2 -b 1024", "-t ext4 -b 1024 -O bigalloc -C 8192 -N 8192"] {
        ext_volume::make(&volume, options, 77);
        let image = Image::read(&volume);
        let rearrange = image.rearrange();
        let all = streams(&*rearrange);
        let free = room(&*rearrange).iter().max_by_key(Span::len_bytes).unwrap().start();
        let cluster = rearrange.cluster_bytes();
        let long = |mobility: bool| {
            let fits = |stream: &&Stream| {
                (stream.mobility == Mobility::Movable) == mobility
                    && stream.extents[0].span.len_bytes() >= 2 * cluster
            };
            all.iter().find(fits).unwrap()
        };
        let (movable, pinned) = (long(true), long(false));
        let span = movable.extents[0].span;
        let relocation = |from, to, file| Relocation { from, to, file };
        let good = relocation(span, free, movable.file);
        let far = Offset::new(image.len_bytes());
        let taken = all.iter().rev().find(|stream| stream.extents[0].span.len_bytes() >= cluster).unwrap();
        let part = Span::new(span.start(), span.len_bytes() - cluster);
        let cases = [
            ("a part", relocation(part, free, movable.file)),
            ("another's", relocation(span, free, FileId(taken.file.0))),
            ("no inode", relocation(span, free, FileId(1 << 40))),
            ("an inode not in use", relocation(span, free, FileId(12_000))),
            ("pinned", relocation(pinned.extents[0].span, free, pinned.file)),
            ("to what is taken", relocation(span, taken.extents[0].span.start(), movable.file)),
            ("to itself, shifted", relocation(span, span.start().plus(cluster), movable.file)),
            ("not a cluster", relocation(span, free.plus(512), movable.file)),
            ("past the end", relocation(span, far, movable.file)),
            ("what is nobody's", relocation(Span::new(free, cluster), free.plus(cluster), movable.file)),
            ("metadata", relocation(Span::new(rearrange.first_cluster(), cluster), free, movable.file)),
        ];
        let ask = |relocations: Vec<Relocation>| {
            let relocations = Relocations::new(relocations).unwrap();
            let in_place = rearrange.edits(&image, &relocations).map(|_| ());
            [in_place, rearrange.rewritten(Arc::new(relocations)).map(|_| ())]
        };
        for (what, case) in cases {
            let shifted = what == "to itself, shifted";
            for (way, result) in ask(vec![case]).into_iter().enumerate() {
                if shifted && way == 1 && result.is_ok() {
                    continue;
                }
                let kind = result.map_err(|error| error.kind());
                assert_eq!(kind, Err(ErrorKind::Invalid), "{options}: {what}, way {way}");
            }
        }
        assert!(ask(vec![good]).iter().all(Result::is_ok), "{options}");
        assert!(ask(vec![]).iter().all(Result::is_ok));
        assert_eq!(rearrange.edits(&image, &Relocations::default()).unwrap().patches, []);
    }
}

fn refused(volume: &Path) -> Error {
    open(volume).rearrange().err().expect("it must not be rearranged")
}

fn refusal(volume: &Path) -> (ErrorKind, String) {
    let error = refused(volume);
    (error.kind(), error.to_string())
}

#[test]
fn what_is_in_doubt_is_refused() {
    let dir = scratch();
    let contents = dir.path().join("contents");
    populate(&contents);
    let volume = dir.path().join("volume");
    let plain = "-t ext2 -b 1024";
    let fresh = |options: &str| make(&volume, 48, options, Some(&contents));
    let field = |name: &str| support::field(&run("dumpe2fs", &["-h", text(&volume)]), name);

    fresh(plain);
    open(&volume).rearrange().unwrap();

    fresh("-t ext4 -O stable_inodes");
    let (kind, why) = refusal(&volume);
    assert!(kind == ErrorKind::Refused && why.contains("stable_inodes"), "{why}");

    fresh(plain);
    debugfs(&volume, "ssv state 2");
    assert_eq!(refusal(&volume).0, ErrorKind::Corrupt);

    debugfs(&volume, "ssv state 0");
    let (kind, why) = refusal(&volume);
    assert!(kind == ErrorKind::Refused && why.contains("cleanly"), "{why}");

    fresh(plain);
    debugfs(&volume, "ssv last_orphan 12");
    let (kind, why) = refusal(&volume);
    assert!(kind == ErrorKind::Refused && why.contains("deleted"), "{why}");

    fresh(plain);
    debugfs(&volume, &format!("ssv free_blocks_count {}", field("Free blocks") - 1));
    let error = refused(&volume);
    assert_eq!(error.cause(), Some(&Corrupt::Superblock));
    let found = error.wrong_field().map(|found| (found.name(), found.found().number()));
    assert_eq!(found, Some(("free_blocks_count", Some(field("Free blocks")))));

    fresh(plain);
    debugfs(&volume, &format!("ssv free_inodes_count {}", field("Free inodes") - 1));
    let error = refused(&volume);
    assert_eq!(error.cause(), Some(&Corrupt::Superblock));
    let found = error.wrong_field().map(|found| (found.name(), found.found().number()));
    assert_eq!(found, Some(("free_inodes_count", Some(field("Free inodes")))));

    // A block that nobody owns, counted as used by all.
    fresh(plain);
    let free = room(&*open(&volume).rearrange().unwrap()).iter().next().unwrap().start().get() / 1024;
    let group = (free - 1) / 8192;
    let in_group = run("dumpe2fs", &[text(&volume)]);
    let line = in_group.lines().filter(|line| line.contains("free blocks,")).nth(group as usize).unwrap();
    let free_in_group: u64 = line.split_whitespace().next().unwrap().parse().unwrap();
    debugfs(
        &volume,
        &format!(
            "setb {free}\nssv free_blocks_count {}\nset_bg {group} free_blocks_count {}",
            field("Free blocks") - 1,
            free_in_group - 1
        ),
    );
    assert!(support::doubt(&volume).is_none(), "a copy does not mind");
    assert_eq!(refused(&volume).cause(), Some(&Corrupt::BlockUnowned { block: free }));

    fresh(plain);
    let block: u64 = debugfs(&volume, "bmap /large 0").lines().last().unwrap().trim().parse().unwrap();
    debugfs(&volume, &format!("sif /far block[0] {block}"));
    let error = refused(&volume);
    let is_it =
        matches!(error.cause(), Some(Corrupt::BlockOwnedTwice { block: found, .. }) if *found == block);
    assert!(is_it, "{error}");

    fresh("-t ext4 -O mmp");
    open(&volume).rearrange().unwrap();
    let mut image = Image::read(&volume);
    image.put(Offset::new(field("MMP block number") * u64::from(image_block(&volume)) + 4), &[5, 0, 0, 0]);
    fs::write(&volume, &image.bytes).unwrap();
    let (kind, why) = refusal(&volume);
    assert!(kind == ErrorKind::Refused && why.contains("in use"), "{why}");

    fresh("-t ext4");
    image = Image::read(&volume);
    image.put(Offset::new(0x180), b"GRUB \0Geom\0Hard Disk\0Read\0 Error");
    fs::write(&volume, &image.bytes).unwrap();
    let (kind, why) = refusal(&volume);
    assert!(kind == ErrorKind::Refused && why.contains("GRUB"), "{why}");

    fresh("-t ext4");
    {
        let mount = support::Mount::new(&volume, &dir.path().join("mounted"), "rw");
        fs::write(mount.at.join("late"), "late").unwrap();
        run("sync", &["-f", text(&mount.at)]);
        mount.shut_down(1);
    }
    let (kind, why) = refusal(&volume);
    assert!(kind == ErrorKind::Refused && why.contains("journal"), "{why}");
}

fn image_block(volume: &Path) -> u32 {
    support::field(&run("dumpe2fs", &["-h", text(volume)]), "Block size") as u32
}

/// A volume with some bytes changed.
struct Damaged {
    below: Arc<Image>,
    at: u64,
    bytes: Vec<u8>,
}

impl ReadAt<Volume> for Damaged {
    fn len_bytes(&self) -> u64 {
        self.below.len_bytes()
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        self.below.read_at(at, buf)?;
        for (index, byte) in (self.at..).zip(&self.bytes) {
            if let Some(place) = index.checked_sub(at.get()).and_then(|index| buf.get_mut(index as usize)) {
                *place = *byte;
            }
        }
        Ok(())
    }
}

#[test]
fn damaged_metadata_are_no_panic() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    for (options, seed) in [("-t ext4 -b 1024 -O ^metadata_csum,^uninit_bg", 5), ("-t ext2 -b 1024", 6)] {
        ext_volume::make(&volume, options, seed);
        let image = Arc::new(Image::read(&volume));
        let rearrange = image.rearrange();
        let relocations = Arc::new(contiguous(&*rearrange));
        let rewritten = rearrange.rewritten(relocations.clone()).unwrap();
        let places: Vec<_> = rewritten.places().iter().collect();
        let mut numbers = Numbers(seed);
        let (mut failed, mut refused) = (0, 0);
        for round in 0..150 {
            let place = places[numbers.below(places.len() as u64) as usize];
            // Half of the rounds at what is likely to be looked at: the start of a block, and inodes.
            let at = match round % 2 {
                0 => place.start().get() + numbers.below(16),
                _ => {
                    place.start().get()
                        + numbers.below(place.len_bytes()) / 128 * 128
                        + 40
                        + numbers.below(40)
                }
            };
            let len = 1 + numbers.below(8);
            let bytes =
                (0..len).map(|_| [0, 0xff, 1, numbers.below(256) as u8][numbers.below(4) as usize]).collect();
            let damaged = Arc::new(Damaged { below: image.clone(), at, bytes });
            failed += u32::from(rearrange.edits(&*damaged, &relocations).is_err());
            let source: Source = damaged;
            let Some(filesystem) = ext::open(&source).unwrap() else { continue };
            let Ok(now) = filesystem.rearrange() else {
                refused += 1;
                continue;
            };
            let _ = now.each_stream(&mut Streams::default());
            if let Ok(rewritten) = now.rewritten(relocations.clone()) {
                for span in rewritten.places().iter().flat_map(|span| span.split(1 << 20)) {
                    let _ = rewritten.read_at(span.start(), &mut vec![0; span.len_bytes() as usize]);
                }
            }
        }
        assert!(failed > 20 && refused > 20, "{options}: {failed} failed, {refused} refused");
    }
}
