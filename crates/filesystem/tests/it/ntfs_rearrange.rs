//! Files of NTFS volumes laid elsewhere: after any valid relocations, applied in place or read through what is rewritten,
//! ntfs-3g and ntfsprogs must find every file as it was, and nothing to repair.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::ntfs_volumes;
use crate::ntfs_volumes::info::check_runs;
use crate::ntfs_volumes::{attribute_at, open_source, text, u16_at, u32_at};
use block::{Error, ErrorKind, Memory, ReadAt, TargetFile};
use extent::{HostOffset, Offset, Span, Volume, VolumeOffset, VolumeSpan};
use filesystem::ntfs::Corrupt;
use filesystem::{
    Catalog, Check, FileExtent, FileId, FileKind, FileStream, Fragments, Mobility, Mutant, Rearrange,
    Relocation, Relocations, State, StreamName, StreamVisitor,
};
use tempfile::TempDir;
use testkit::ntfs_volume::{self, Mounted, tree_digest};
use testkit::{noise, run, scratch};

/// A stream as it was shown.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Shown {
    file: FileId,
    kind: FileKind,
    name: Option<Vec<u8>>,
    extents: Vec<FileExtent>,
    mobility: Mobility,
}

impl Shown {
    fn spans(&self) -> Vec<VolumeSpan> {
        self.extents.iter().map(|extent| extent.span).collect()
    }

    fn fragments(&self) -> u64 {
        let mut fragments = Fragments::of_adjacent();
        for extent in &self.extents {
            fragments.push(extent.logical.get(), extent.span.start().get(), extent.span.len_bytes());
        }
        fragments.count()
    }
}

#[derive(Default)]
struct Collector(Vec<Shown>);

impl StreamVisitor for Collector {
    fn stream(&mut self, stream: FileStream<'_>, extents: &[FileExtent], mobility: Mobility) {
        let name = match stream.name {
            StreamName::Main => None,
            StreamName::Named(name) => Some(name.to_vec()),
        };
        let FileStream { file, kind, .. } = stream;
        self.0.push(Shown { file, kind, name, extents: extents.to_vec(), mobility });
    }
}

fn shown(rearrange: &dyn Rearrange) -> Vec<Shown> {
    let mut collector = Collector::default();
    rearrange.each_stream(&mut collector).unwrap();
    collector.0
}

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// A volume in memory whose files move about, and what is known of it: kept up by the test, not read anew.
struct Moving {
    memory: Arc<Memory>,
    rearrange: Box<dyn Rearrange>,
    streams: Vec<Shown>,
    /// Free, ascending, coalesced.
    room: Vec<VolumeSpan>,
    random: Random,
}

fn bytes_of(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(ReadAt::<Volume>::len_bytes(memory)).unwrap()];
    memory.read_at(VolumeOffset::ZERO, &mut bytes).unwrap();
    bytes
}

fn room_of(rearrange: &dyn Rearrange) -> Vec<VolumeSpan> {
    let mut room: Vec<VolumeSpan> = Vec::new();
    rearrange
        .each_room(&mut |span| {
            assert!(room.last().is_none_or(|last| last.end() < span.start()), "ascending and coalesced");
            room.push(span);
        })
        .unwrap();
    room
}

impl Moving {
    fn new(bytes: Vec<u8>, seed: u64) -> Self {
        let memory = Arc::new(Memory::new(bytes));
        let filesystem = open_source(memory.clone());
        assert_eq!(filesystem.facts().state, State::Clean);
        let rearrange = filesystem.rearrange().unwrap();
        let (streams, room) = (shown(&*rearrange), room_of(&*rearrange));
        Self { memory, rearrange, streams, room, random: Random(seed) }
    }

    /// Takes room for `len_bytes` from the first free span that has it, or from a random one.
    fn take(&mut self, len_bytes: u64, is_random: bool) -> Option<VolumeOffset> {
        let fits: Vec<_> =
            (0..self.room.len()).filter(|index| self.room[*index].len_bytes() >= len_bytes).collect();
        let choice = if is_random { self.random.below(fits.len().max(1) as u64) } else { 0 };
        let index = *fits.get(usize::try_from(choice).unwrap())?;
        let span = self.room[index];
        // From the end now and then.
        let start = match is_random && self.random.one_in(2) {
            true => Offset::new(span.end().get() - len_bytes),
            false => span.start(),
        };
        let taken = Span::new(start, len_bytes);
        let rest = [Span::between(span.start(), taken.start()), Span::between(taken.end(), span.end())];
        self.room.splice(index..=index, rest.into_iter().filter(|span| !span.is_empty()));
        Some(start)
    }

    fn free(&mut self, span: VolumeSpan) {
        let spans = self.room.iter().copied().chain([span]);
        self.room = spans.collect::<extent::ExtentSet<Volume>>().iter().collect();
    }

    /// Some extents go anywhere; streams that must stay together do.
    fn random_moves(&mut self) -> Vec<Relocation> {
        let mut moves = Vec::new();
        for index in 0..self.streams.len() {
            match self.streams[index].mobility {
                Mobility::Anchored(_) | Mobility::Pinned(_) => {}
                Mobility::Movable => {
                    for (at, span) in self.streams[index].spans().into_iter().enumerate() {
                        if self.random.one_in(3) {
                            let Some(to) = self.take(span.len_bytes(), true) else { continue };
                            self.go(index, at, to, &mut moves);
                        }
                    }
                }
                Mobility::Together => {
                    if self.random.one_in(2) {
                        self.go_together(index, true, &mut moves);
                    }
                }
            }
        }
        moves
    }

    /// Every fragmented stream goes where it is in one piece.
    fn contiguous_moves(&mut self) -> Vec<Relocation> {
        let mut moves = Vec::new();
        for index in 0..self.streams.len() {
            let stream = &self.streams[index];
            if stream.fragments() > 1 && stream.mobility.stays().is_none() {
                self.go_together(index, false, &mut moves);
            }
        }
        moves
    }

    fn go(&mut self, index: usize, at: usize, to: VolumeOffset, moves: &mut Vec<Relocation>) {
        let stream = &mut self.streams[index];
        let from = stream.extents[at].span;
        moves.push(Relocation { from, to, file: stream.file });
        stream.extents[at].span = Span::new(to, from.len_bytes());
    }

    /// Has each cluster of a stream move by itself.
    fn split(&mut self, index: usize) {
        let cluster_bytes = self.rearrange.cluster_bytes();
        let clusters = |extent: &FileExtent| {
            let (extent, logical) = (*extent, extent.logical);
            let at = move |span: VolumeSpan| logical.plus(span.start().get() - extent.span.start().get());
            extent.span.split(cluster_bytes).map(move |span| FileExtent { span, logical: at(span), ..extent })
        };
        let extents = &mut self.streams[index].extents;
        *extents = extents.iter().flat_map(clusters).collect();
    }

    fn go_together(&mut self, index: usize, is_random: bool, moves: &mut Vec<Relocation>) {
        let lens: Vec<_> = self.streams[index].spans().iter().map(VolumeSpan::len_bytes).collect();
        let Some(mut to) = self.take(lens.iter().sum(), is_random) else { return };
        for (at, len_bytes) in lens.into_iter().enumerate() {
            self.go(index, at, to, moves);
            to = to.plus(len_bytes);
        }
    }

    /// As an engine would: the bytes, then the patches. What was left is free for the next round.
    fn carry_out(&mut self, moves: Vec<Relocation>) -> Relocations {
        let relocations = Relocations::new(moves).unwrap();
        let before = bytes_of(&self.memory);
        let edits = self.rearrange.edits(&*self.memory, &relocations).unwrap();
        assert_eq!(edits.freed, []);
        let mut last_end = Offset::ZERO;
        for relocation in relocations.by_source() {
            copy(&self.memory, relocation);
            self.free(relocation.from);
        }
        for patch in &edits.patches {
            let span = Span::new(patch.at, patch.after.len() as u64);
            assert!(patch.at.get() % 512 == 0 && patch.after.len() % 512 == 0 && !patch.after.is_empty());
            assert!(
                patch.at > last_end || last_end == Offset::ZERO,
                "ascending, and merged where they touch"
            );
            assert_eq!(patch.before, before[at(patch.at)..at(span.end())]);
            for (old, new) in patch.before.chunks(512).zip(patch.after.chunks(512)) {
                assert_ne!(old, new, "only what changes");
            }
            let touched = relocations.departures(span).chain(relocations.arrivals(span));
            assert_eq!(touched.count(), 0, "no patch where files are");
            last_end = span.end();
            self.memory.write_at(HostOffset::new(patch.at.get()), &patch.after).unwrap();
        }
        relocations
    }
}

fn at(offset: VolumeOffset) -> usize {
    usize::try_from(offset.get()).unwrap()
}

fn copy(memory: &Memory, relocation: Relocation) {
    let mut bytes = vec![0; usize::try_from(relocation.from.len_bytes()).unwrap()];
    memory.read_at(relocation.from.start(), &mut bytes).unwrap();
    memory.write_at(HostOffset::new(relocation.to.get()), &bytes).unwrap();
}

/// A volume with every feature, what a mount shows of it, and where things are tried out.
struct Made {
    dir: TempDir,
    bytes: Vec<u8>,
    digest: BTreeMap<String, String>,
}

fn digest_of(volume: &Path, dir: &Path) -> BTreeMap<String, String> {
    tree_digest(&Mounted::new(volume, &dir.join("mnt"), "ro").dir)
}

fn make(cluster_bytes: u64, seed: u64) -> Made {
    let dir = scratch();
    let volume = dir.path().join("volume");
    ntfs_volume::make(&volume, cluster_bytes, seed);
    let bytes = fs::read(&volume).unwrap();
    let digest = digest_of(&volume, dir.path());
    assert!(fs::read(&volume).unwrap() == bytes, "looking at it changes nothing");
    Made { dir, bytes, digest }
}

/// Runs a tool that must find nothing wrong.
fn judge(program: &str, args: &[&str]) {
    let output =
        Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(output.status.success(), "{program}: {said}");
    for bad in ["ERROR", "FAILED", "orrupt", "ismatch", "nconsisten", "differs"] {
        assert!(!said.contains(bad), "{program}: {said}");
    }
}

impl Made {
    fn path(&self) -> PathBuf {
        self.dir.path().join("after")
    }

    /// The judges see the volume as it is now: nothing to repair, and every file as it was. Of the listed records every
    /// `step`th is compared with ntfsinfo's.
    fn check(&self, bytes: &[u8], step: u64) {
        let path = self.path();
        fs::write(&path, bytes).unwrap();
        judge("ntfsfix", &["-n", text(&path)]);
        judge("ntfsresize", &["--info", "--force", "--no-progress-bar", text(&path)]);
        check_runs(&path, step);
        let digest = digest_of(&path, self.dir.path());
        assert_eq!(digest.keys().collect::<Vec<_>>(), self.digest.keys().collect::<Vec<_>>());
        for (path, line) in &digest {
            assert_eq!(self.digest[path], *line, "{path}");
        }
        let filesystem = open_source(Arc::new(Memory::new(bytes.to_vec())));
        filesystem.used_map(Check::Full).map(drop).unwrap();
    }

    /// The streams, as they are listed now, must lie where the test thinks they do.
    fn check_places(&self, moving: &Moving) {
        let now = Moving::new(bytes_of(&moving.memory), 0);
        assert_eq!(now.streams.len(), moving.streams.len());
        for (now, expected) in now.streams.iter().zip(&moving.streams) {
            assert_eq!((now.file, &now.name), (expected.file, &expected.name));
            assert_eq!(joined(&now.extents), joined(&expected.extents), "{:?} {:?}", now.file, now.name);
        }
    }
}

fn joined(extents: &[FileExtent]) -> Vec<FileExtent> {
    let mut joined: Vec<FileExtent> = Vec::new();
    for extent in extents {
        match joined.last_mut() {
            Some(last)
                if last.state == extent.state
                    && last.span.end() == extent.span.start()
                    && last.logical.plus(last.span.len_bytes()) == extent.logical =>
            {
                last.span = Span::between(last.span.start(), extent.span.end());
            }
            _ => joined.push(*extent),
        }
    }
    joined
}

/// What the volume would be if it were copied with everything where it goes.
fn composed(
    bytes: &[u8],
    rearrange: &dyn Rearrange,
    relocations: &Arc<Relocations>,
    random: &mut Random,
) -> Vec<u8> {
    let mut new = bytes.to_vec();
    for relocation in relocations.by_source() {
        let from = &bytes[at(relocation.from.start())..at(relocation.from.end())];
        new[at(relocation.to)..][..from.len()].copy_from_slice(from);
    }
    let rewritten = rearrange.rewritten(relocations.clone()).unwrap();
    assert!(rewritten.freed().is_empty());
    for place in rewritten.places().iter() {
        let mut start = place.start();
        while start < place.end() {
            // Of any length, and begun anywhere.
            let left = place.end().get() - start.get();
            let most = if random.one_in(3) { 700 } else { 3 << 20 };
            let len = left.min(1 + random.below(most));
            let piece = &mut new[at(start)..][..usize::try_from(len).unwrap()];
            rewritten.read_at(start, piece).unwrap();
            start = start.plus(len);
        }
    }
    assert!(
        rewritten.read_at(VolumeOffset::ZERO, &mut [0; 512]).is_err(),
        "the boot sector is not rewritten"
    );
    new
}

/// Several rounds of moves in place, the judges after each, and the same through what is rewritten.
fn check_rounds(cluster_bytes: u64, seed: u64) {
    let made = make(cluster_bytes, seed);
    let mut moving = Moving::new(made.bytes.clone(), seed);
    check_shown(&moving);
    let moves = moving.random_moves();
    assert!(moves.len() > 100, "{} moves", moves.len());
    let relocations = Arc::new(moving.carry_out(moves));
    let after = bytes_of(&moving.memory);
    // The very same from afar.
    let afar = open_source(Arc::new(Memory::new(made.bytes.clone()))).rearrange().unwrap();
    let composed = composed(&made.bytes, &*afar, &relocations, &mut moving.random);
    let differing = || composed.iter().zip(&after).position(|(one, other)| one != other);
    assert!(composed == after, "in place and rewritten differ at {:?}", differing());
    made.check_places(&moving);
    made.check(&after, 7);
    for _ in 0..3 {
        let moves = moving.random_moves();
        moving.carry_out(moves);
    }
    made.check_places(&moving);
    made.check(&bytes_of(&moving.memory), 31);
}

/// Every fragmented stream that may move comes to lie in one piece.
fn check_contiguous(cluster_bytes: u64, seed: u64) {
    let made = make(cluster_bytes, seed);
    let mut moving = Moving::new(made.bytes.clone(), seed);
    let most = moving.streams.iter().map(Shown::fragments).max();
    assert!(most >= Some(150), "a file in {most:?} pieces");
    // What does not find room at first does so where others left.
    for _ in 0..3 {
        let moves = moving.contiguous_moves();
        moving.carry_out(moves);
    }
    made.check_places(&moving);
    for stream in &moving.streams {
        if stream.mobility.stays().is_none() {
            assert_eq!(stream.fragments(), 1, "{:?} {:?}", stream.file, stream.name);
        }
    }
    made.check(&bytes_of(&moving.memory), 31);
}

/// What is shown is what a scan shows, and what every feature makes is among it.
fn check_shown(moving: &Moving) {
    let filesystem = open_source(moving.memory.clone());
    let catalog = Catalog::read(&*filesystem).unwrap();
    assert_eq!(catalog.doubts(), []);
    let scanned: Vec<_> = catalog.streams().filter(|stream| stream.extent_count() > 0).collect();
    assert_eq!(scanned.len(), moving.streams.len());
    for (scanned, shown) in scanned.iter().zip(&moving.streams) {
        assert_eq!((scanned.stream.file, scanned.stream.kind), (shown.file, shown.kind));
        assert_eq!(scanned.extents().collect::<Vec<_>>(), shown.extents);
    }
    let pinned: Vec<_> = moving.streams.iter().filter(|stream| stream.mobility.stays().is_some()).collect();
    for number in [0, 1, 2, 4, 6, 7] {
        assert!(pinned.iter().any(|stream| stream.file == FileId(number)), "record {number} stays");
    }
    for stream in pinned {
        // Its records are full of runs between holes, which never become fewer.
        let is_sparse = joined(&stream.extents)
            .windows(2)
            .any(|pair| pair[0].logical.plus(pair[0].span.len_bytes()) < pair[1].logical);
        assert!(stream.kind == FileKind::Metadata || is_sparse, "{stream:?}");
    }
    let can_move = |number: u64, name: Option<&str>| {
        let is_it = |stream: &&Shown| {
            stream.file == FileId(number) && stream.name.as_deref() == name.map(str::as_bytes)
        };
        let found = moving.streams.iter().find(is_it);
        !matches!(found.unwrap_or_else(|| panic!("{number} {name:?}")).mobility, Mobility::Pinned(_))
    };
    assert!(can_move(5, None) && can_move(9, Some("$SDS")) && can_move(10, None));
    for name in [":$ATTRIBUTE_LIST", "$EFS:$LOGGED_UTILITY_STREAM", ":$EA", ":$REPARSE_POINT"] {
        if moving.rearrange.cluster_bytes() > 4096 {
            // Larger records and clusters: no need for a list, and no encryption.
            continue;
        }
        let found = moving.streams.iter().any(|stream| stream.name.as_deref() == Some(name.as_bytes()));
        assert!(found, "{name}");
    }
}

#[test]
fn clusters_of_4_kib_move() {
    check_rounds(4096, 1);
}

#[test]
fn files_come_to_lie_in_one_piece() {
    for (cluster_bytes, seed) in [(4096, 4), (512, 5)] {
        check_contiguous(cluster_bytes, seed);
    }
}

#[test]
fn clusters_of_512_bytes_move() {
    check_rounds(512, 2);
}

#[test]
fn clusters_of_64_kib_move() {
    check_rounds(65_536, 3);
}

/// A small volume, filled by `fill`.
fn small(options: &[&str], fill: impl FnOnce(&Path)) -> Made {
    let made = ntfs_volumes::make(24, options);
    fill(&Mounted::new(&made.volume, &made.dir.path().join("mnt"), "").dir);
    let (bytes, digest) = (made.bytes(), digest_of(&made.volume, made.dir.path()));
    Made { dir: made.dir, bytes, digest }
}

/// Files in `count` pieces of one cluster each, written in turn into the holes that others leave.
fn fragmented(dir: &Path, count: u64) {
    fragmented_by(dir, count, 4096);
}

/// The same with pieces of `piece_bytes`.
fn fragmented_by(dir: &Path, count: u64, piece_bytes: usize) {
    let path = |name: &str, index: u64| dir.join(format!("{name}{index}"));
    for index in 0..count * 3 {
        fs::write(path("row", index), noise(index, 5000)).unwrap();
    }
    for index in (0..count * 3).step_by(2) {
        fs::remove_file(path("row", index)).unwrap();
    }
    let files: Vec<_> = (0..3).map(|index| File::create(path("long", index)).unwrap()).collect();
    for piece in 0..count {
        for file in &files {
            file.write_all_at(&noise(piece, piece_bytes), piece * piece_bytes as u64).unwrap();
        }
    }
}

#[test]
fn records_of_4_kib_are_rewritten() {
    let made = small(&["-s", "4096"], |dir| fragmented(dir, 300));
    let mut moving = Moving::new(made.bytes.clone(), 7);
    let moves = moving.random_moves();
    moving.carry_out(moves);
    let moves = moving.contiguous_moves();
    moving.carry_out(moves);
    made.check_places(&moving);
    made.check(&bytes_of(&moving.memory), 31);
}

/// Which of its bytes a record in use has, and where the records of a volume are that are not.
fn unused_records(bytes: &[u8], mft: VolumeSpan) -> Vec<usize> {
    let records = (at(mft.start())..at(mft.end())).step_by(1024).skip(24);
    records.filter(|record| bytes[*record..].starts_with(b"FILE") && bytes[record + 22] & 1 == 0).collect()
}

fn mft_of(moving: &Moving) -> VolumeSpan {
    let mft =
        moving.streams.iter().find(|stream| stream.file == FileId(0) && stream.kind == FileKind::Metadata);
    mft.unwrap().extents[0].span
}

/// One of the files in many pieces, whose clusters move by themselves now.
fn long_file(moving: &mut Moving) -> usize {
    let is_long = |stream: &Shown| stream.mobility == Mobility::Together && stream.extents.len() > 100;
    let index = moving.streams.iter().position(is_long).expect("a file in many pieces");
    moving.split(index);
    index
}

/// One part in so many of what a stream has goes anywhere.
fn some_of(moving: &mut Moving, index: usize, part: u64) -> Vec<Relocation> {
    let mut moves = Vec::new();
    for at in 0..moving.streams[index].extents.len() {
        if moving.random.one_in(part) {
            let len_bytes = moving.streams[index].extents[at].span.len_bytes();
            let Some(to) = moving.take(len_bytes, true) else { continue };
            moving.go(index, at, to, &mut moves);
        }
    }
    moves
}

/// Files whose records have little room left move extent by extent, batch by batch: it is foreseen for which of them there is none, in none of their
/// records. No record can be had where none that is free was ever written.
#[test]
fn what_records_have_no_room_for_is_foreseen() {
    let made = small(&[], |dir| fragmented_by(dir, 200, 8192));
    let mut bytes = made.bytes.clone();
    let mft = mft_of(&Moving::new(made.bytes.clone(), 0));
    unused_records(&made.bytes, mft).into_iter().for_each(|record| bytes[record..record + 1024].fill(0));
    let (mut fitting, mut crowding) = (0, 0);
    for seed in 0..24 {
        let mut moving = Moving::new(bytes.clone(), seed);
        let index = long_file(&mut moving);
        let files = BTreeSet::from([moving.streams[index].file]);
        let batches: Vec<_> =
            (0..=seed / 2).map(|_| Relocations::new(some_of(&mut moving, index, 4)).unwrap()).collect();
        let crowded = moving.rearrange.crowded(&files, &batches).unwrap();
        assert_eq!(moving.rearrange.crowded(&BTreeSet::new(), &batches).unwrap(), BTreeSet::new());
        let refused = batches.iter().find_map(|batch| {
            let edits = match moving.rearrange.edits(&*moving.memory, batch) {
                Ok(edits) => edits,
                Err(error) => return Some(error),
            };
            for patch in &edits.patches {
                moving.memory.write_at(HostOffset::new(patch.at.get()), &patch.after).unwrap();
            }
            None
        });
        match refused {
            None => {
                fitting += 1;
                assert!(crowded.is_empty(), "seed {seed}: {crowded:?}");
            }
            Some(error) => {
                crowding += 1;
                assert!(error.to_string().contains("no room for its run lists"), "seed {seed}: {error}");
                assert_eq!(crowded, files, "seed {seed}");
            }
        }
    }
    assert!(fitting > 2 && crowding > 2, "{fitting} fit, and {crowding} do not");
}

/// The same files get records that no file has: as many as were foreseen, which `$MFT`'s bitmap says by the bits that are no witnesses.
#[test]
fn files_get_records_where_theirs_have_no_room() {
    let made = small(&[], |dir| fragmented_by(dir, 200, 8192));
    let added = Cell::new(0);
    let moved = |seed: u64| {
        let mut moving = Moving::new(made.bytes.clone(), seed);
        let mft = mft_of(&moving);
        let index = long_file(&mut moving);
        let files = BTreeSet::from([moving.streams[index].file]);
        let kept = (moving.streams.clone(), moving.room.clone());
        let random = moving.random.0;
        let batches: Vec<_> =
            (0..6 + seed).map(|_| Relocations::new(some_of(&mut moving, index, 3)).unwrap()).collect();
        assert_eq!(moving.rearrange.crowded(&files, &batches).unwrap(), BTreeSet::new());
        let watched = |batches: &[Relocations]| -> u64 {
            moving.rearrange.witnesses(batches).unwrap().iter().map(VolumeSpan::len_bytes).sum()
        };
        let unwatched_bytes = watched(&[]) - watched(&batches);
        let witnesses: Vec<_> = moving.rearrange.witnesses(&batches).unwrap();
        let witnessed = |bytes: &[u8]| -> Vec<u8> {
            witnesses.iter().flat_map(|span| bytes[at(span.start())..at(span.end())].to_vec()).collect()
        };
        ((moving.streams, moving.room), moving.random) = (kept, Random(random));
        for batch in &batches {
            let moves = some_of(&mut moving, index, 3);
            assert_eq!(Relocations::new(moves.clone()).unwrap(), *batch);
            // What comes free is not taken again: it was not when all of this was planned.
            let room = moving.room.clone();
            moving.carry_out(moves);
            moving.room = room;
        }
        let bytes = bytes_of(&moving.memory);
        let unused = unused_records(&made.bytes, mft);
        let taken: Vec<_> = unused.iter().filter(|record| bytes[**record + 22] & 1 != 0).collect();
        assert_eq!(unwatched_bytes, taken.len().div_ceil(8) as u64);
        assert!(witnessed(&bytes) == witnessed(&made.bytes), "a witness changed");
        added.set(added.get() + taken.len());
        made.check_places(&moving);
        made.check(&bytes, 1);
    };
    (0..5).for_each(moved);
    assert!(added.get() > 2, "{} records", added.get());
    let broken = || mutants::with(Some(Mutant::AddedRecordNotMarked), || (0..5).for_each(moved));
    assert!(panic::catch_unwind(AssertUnwindSafe(broken)).is_err(), "the mutant is not found");
}

/// A list in clusters that moves itself cannot be told anew at once: it goes first.
#[test]
fn a_list_that_moves_goes_first() {
    let made = small(&[], |dir| fragmented_by(dir, 200, 8192));
    let mut split = 0;
    for seed in 0..6 {
        let mut moving = Moving::new(made.bytes.clone(), seed);
        let index = long_file(&mut moving);
        let file = moving.streams[index].file;
        let is_list =
            |stream: &Shown| stream.file == file && stream.name.as_deref() == Some(b":$ATTRIBUTE_LIST");
        let list = moving.streams.iter().position(is_list).expect("a list in clusters");
        let list_at = moving.streams[list].extents[0].span;
        let mut moves = some_of(&mut moving, index, 2);
        moving.go_together(list, true, &mut moves);
        let batch = Relocations::new(moves).unwrap();
        let crowded = moving.rearrange.crowded(&[file].into(), std::slice::from_ref(&batch)).unwrap();
        assert_eq!(crowded, BTreeSet::new());
        let Err(error) = moving.rearrange.edits(&*moving.memory, &batch) else { continue };
        assert_eq!(error.kind(), ErrorKind::Invalid);
        split += 1;
        let (first, rest) = moving.rearrange.first_of(&*moving.memory, &batch).unwrap().unwrap();
        assert!(first.by_source().all(|each| list_at.covers(&each.from)) && !first.is_empty());
        assert_eq!(first.total_bytes() + rest.total_bytes(), batch.total_bytes());
        assert!(moving.rearrange.first_of(&*moving.memory, &first).unwrap().is_none());
        for part in [first, rest] {
            moving.carry_out(part.by_source().collect());
        }
        made.check_places(&moving);
        made.check(&bytes_of(&moving.memory), 1);
    }
    assert!(split > 2, "{split} batches were split");
}

/// Files in so many pieces that their lists fill several records move piece by piece for as long as they have room. Where one record has none, its list
/// goes on in the next one, so there are few that cannot.
#[test]
fn lists_are_spread_over_the_records_that_have_room() {
    let made = small(&[], |dir| fragmented_by(dir, 200, 8192));
    let spread = Cell::new(0);
    let moved = |seed: u64| {
        let mut moving = Moving::new(made.bytes.clone(), seed);
        let is_long = |stream: &Shown| stream.mobility == Mobility::Together && stream.extents.len() > 100;
        let index = moving.streams.iter().position(is_long).expect("a file in many pieces");
        moving.split(index);
        let is_list = |stream: &Shown| {
            stream.file == moving.streams[index].file && stream.name.as_deref() == Some(b":$ATTRIBUTE_LIST")
        };
        let list = moving.streams.iter().position(is_list).expect("a list in clusters");
        let list = moving.streams[list].extents[0].span;
        let listed = |moving: &Moving| bytes_of(&moving.memory)[at(list.start())..at(list.end())].to_vec();
        for _ in 0..4 {
            let kept = (moving.streams.clone(), moving.room.clone());
            let mut moves = Vec::new();
            for at in 0..moving.streams[index].extents.len() {
                if moving.random.one_in(24) {
                    let len_bytes = moving.streams[index].extents[at].span.len_bytes();
                    let Some(to) = moving.take(len_bytes, true) else { continue };
                    moving.go(index, at, to, &mut moves);
                }
            }
            let before = listed(&moving);
            let relocations = Relocations::new(moves.clone()).unwrap();
            if moving.rearrange.edits(&*moving.memory, &relocations).is_err() {
                (moving.streams, moving.room) = kept;
                break;
            }
            moving.carry_out(moves);
            spread.set(spread.get() + usize::from(listed(&moving) != before));
        }
        made.check_places(&moving);
        made.check(&bytes_of(&moving.memory), 1);
    };
    for seed in 0..6 {
        moved(seed);
    }
    assert!(spread.get() > 3, "spread {} times", spread.get());
    for mutant in [Mutant::PiecesListedWhereTheyWere, Mutant::PiecesEndWhereTheyDid] {
        let broken = || mutants::with(Some(mutant), || (0..6).for_each(moved));
        let found = panic::catch_unwind(AssertUnwindSafe(broken));
        assert!(found.is_err(), "{mutant:?} is not found");
    }
}

/// Where everything moves at once, what one leaves another takes: extents of the same length change places.
#[test]
fn extents_change_places_where_all_is_written_anew() {
    let made = make(4096, 8);
    let mut moving = Moving::new(made.bytes.clone(), 8);
    let mut by_len: BTreeMap<u64, Vec<(FileId, VolumeSpan)>> = BTreeMap::new();
    for stream in moving.streams.iter().filter(|stream| stream.mobility == Mobility::Movable) {
        for span in stream.spans() {
            by_len.entry(span.len_bytes()).or_default().push((stream.file, span));
        }
    }
    let rotated = by_len.values().flat_map(|all| {
        let next = all.iter().cycle().skip(1);
        all.iter().zip(next).map(|((file, from), (_, next))| Relocation {
            from: *from,
            to: next.start(),
            file: *file,
        })
    });
    let moves: Vec<_> = rotated.filter(|each| each.from.start() != each.to).collect();
    assert!(moves.len() > 300, "{} moves", moves.len());
    let relocations = Arc::new(Relocations::new(moves).unwrap());
    let new = composed(&made.bytes, &*moving.rearrange, &relocations, &mut moving.random);
    made.check(&new, 7);
    let error = moving.rearrange.edits(&*moving.memory, &relocations).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "in place none of it is free: {error}");
}

/// `$MFT`'s record shows that a guest used the volume, unless it is what changes.
#[test]
fn the_mft_s_record_is_a_witness_unless_it_moves() {
    let moving = Moving::new(small(&[], |dir| fragmented(dir, 20)).bytes, 1);
    let mft = moving.streams.iter().find(|stream| stream.file == FileId(0)).unwrap();
    let record = Span::new(mft.extents[0].span.start(), 1024);
    let is_watched = |file: FileId| {
        let to = moving.room.last().unwrap().start();
        let from = Span::new(to.plus(4096), 4096);
        let batches = [Relocations::new(vec![Relocation { from, to, file }]).unwrap()];
        moving.rearrange.witnesses(&batches).unwrap().iter().any(|span| span.intersect(&record).is_some())
    };
    assert!(is_watched(FileId(64)));
    assert!(!is_watched(FileId(0)));
}

/// What `edits` says to relocations that are not as they must be.
#[test]
fn relocations_that_cannot_be_are_errors() {
    let made = small(&[], |dir| fragmented(dir, 20));
    let moving = Moving::new(made.bytes.clone(), 1);
    let movable: Vec<_> = moving.streams.iter().filter(|stream| stream.kind == FileKind::Regular).collect();
    let (one, other) = (movable[0], movable[1]);
    let (from, to) = (one.extents[0].span, moving.room.last().unwrap().start());
    let shorter = Span::new(from.start(), from.len_bytes() - 512);
    let cases = [
        (Relocation { from, to, file: other.file }, ErrorKind::Invalid, "is 0 bytes"),
        (Relocation { from: shorter, to, file: one.file }, ErrorKind::Invalid, "no clusters"),
        (Relocation { from, to: to.plus(512), file: one.file }, ErrorKind::Invalid, "no clusters"),
        (
            Relocation { from, to: other.extents[0].span.start(), file: one.file },
            ErrorKind::Corrupt,
            "marked used",
        ),
        (
            Relocation { from: Span::new(to, 4096), to: to.plus(4096), file: one.file },
            ErrorKind::Corrupt,
            "marked free",
        ),
        (Relocation { from, to: Offset::new(1 << 40), file: one.file }, ErrorKind::Invalid, "no clusters"),
        (Relocation { from, to, file: FileId(1 << 40) }, ErrorKind::Corrupt, "below"),
    ];
    for (relocation, kind, text) in cases {
        let relocations = Arc::new(Relocations::new(vec![relocation]).unwrap());
        let error = moving.rearrange.edits(&*moving.memory, &relocations).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    // Of NTFS's own, which are mirrored: $LogFile.
    let log = moving.streams.iter().find(|stream| stream.file == FileId(2)).unwrap().extents[0].span;
    let relocations = Relocations::new(vec![Relocation { from: log, to, file: FileId(2) }]).unwrap();
    let error = moving.rearrange.edits(&*moving.memory, &relocations).unwrap_err();
    assert!(error.to_string().contains("NTFS's own file 2"), "{error}");
}

fn refusal(bytes: Vec<u8>) -> Error {
    let filesystem = open_source(Arc::new(Memory::new(bytes)));
    filesystem.rearrange().map(drop).unwrap_err()
}

#[test]
fn volumes_in_doubt_are_refused() {
    let made = small(&[], |dir| fragmented(dir, 20));
    let good = &made.bytes;
    open_source(Arc::new(Memory::new(good.clone()))).rearrange().map(drop).unwrap();
    let with = |at: usize, new: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + new.len()].copy_from_slice(new);
        bytes
    };
    let flags = attribute_at(good, 3, 0x70) + 24 + 10;
    let error = refusal(with(flags, &[1]));
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("marked dirty"), "{error}");
    // A bit of $Bitmap that is set, and nobody's.
    let moving = Moving::new(good.clone(), 0);
    let cluster = at(moving.room.last().unwrap().end()) / 4096 - 3;
    let bitmap = moving.streams.iter().find(|stream| stream.file == FileId(6)).unwrap().extents[0].span;
    let bits = at(bitmap.start()) + cluster / 8;
    let error = refusal(with(bits, &[good[bits] | 1 << (cluster % 8)]));
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(error.cause(), Some(&Corrupt::ClusterUnowned { cluster: cluster as u64 }));
    // One of two owners.
    let files = moving.streams.iter().filter(|stream| stream.name.is_none() && stream.extents.len() == 1);
    let [one, other] = [0, 1].map(|nth| {
        let is_row =
            |stream: &&&Shown| stream.kind == FileKind::Regular && stream.extents[0].span.len_bytes() == 8192;
        let record = files.clone().filter(|stream| is_row(&stream)).nth(nth).unwrap().file.0;
        let data = attribute_at(good, record, 0x80);
        data + u16_at(good, data + 32)
    });
    let error = refusal(with(other, &good[one..one + 8]));
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(matches!(error.cause(), Some(Corrupt::ClusterShared { .. })), "{error}");
}

/// The header of volume shadow copies, as libvshadow describes it.
#[test]
fn volumes_with_shadow_copies_are_refused() {
    let store = "{6F3CA0E6-2F51-11E4-8251-000C29B4B7E1}{3808876B-C176-4E48-B7AE-04046E6CC752}";
    let made = small(&[], |dir| {
        fs::create_dir(dir.join("System Volume Information")).unwrap();
        fs::write(dir.join("System Volume Information/tracking.log"), noise(1, 20_480)).unwrap();
        // Elsewhere it is any file.
        fs::write(dir.join(store), noise(2, 10_000)).unwrap();
    });
    let mut bytes = made.bytes.clone();
    let header: [u8; 16] = *b"\x6b\x87\x08\x38\x76\xc1\x48\x4e\xb7\xae\x04\x04\x6e\x6c\xc7\x52";
    bytes[0x1e00..0x1e10].copy_from_slice(&header);
    // Copies were made once, and are gone.
    open_source(Arc::new(Memory::new(bytes.clone()))).rearrange().map(drop).unwrap();
    bytes[0x1e30..0x1e38].copy_from_slice(&0x40_0000u64.to_le_bytes());
    let error = refusal(bytes);
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("shadow copies") && error.hint_text().is_some(), "{error}");
    let path = made.path();
    fs::write(&path, &made.bytes).unwrap();
    let mounted = Mounted::new(&path, &made.dir.path().join("mnt"), "");
    fs::write(mounted.dir.join("System Volume Information").join(store), noise(3, 10_000)).unwrap();
    drop(mounted);
    let error = refusal(fs::read(&path).unwrap());
    assert_eq!(error.kind(), ErrorKind::Refused);
}

#[test]
fn clusters_smaller_than_a_sector_are_beyond_us() {
    let made = ntfs_volumes::make(12, &["-s", "256", "-c", "256"]);
    assert_eq!(refusal(made.bytes()).kind(), ErrorKind::Unsupported);
}

#[test]
fn mft_keeps_room_to_grow_where_there_is_plenty() {
    let made = small(&[], |dir| fragmented(dir, 20));
    let moving = Moving::new(made.bytes.clone(), 0);
    let mut free = Vec::new();
    open_source(moving.memory.clone()).each_free_span(&mut |span| free.push(span)).unwrap();
    let mft = moving.streams.iter().find(|stream| stream.file == FileId(0) && stream.name.is_none()).unwrap();
    let mft_end = mft.extents.last().unwrap().span.end();
    let free_bytes: u64 = free.iter().map(VolumeSpan::len_bytes).sum();
    let kept = free_bytes - moving.room.iter().map(VolumeSpan::len_bytes).sum::<u64>();
    let behind = free.iter().find(|span| span.start() == mft_end).map_or(0, VolumeSpan::len_bytes);
    let mft_bytes: u64 = mft.spans().iter().map(VolumeSpan::len_bytes).sum();
    assert!(kept <= behind && kept <= mft_bytes && kept <= free_bytes / 32, "{kept} of {behind}");
    assert!(kept > 0 || behind == 0, "{behind} behind $MFT");
}

/// What Windows made moves as well.
#[test]
fn volumes_of_windows_move() {
    let dir = scratch();
    for name in ["hv-dynamic.vhd", "hv-fixed.vhdx"] {
        let Some(image) = testkit::real_image(name, dir.path()) else { continue };
        let raw = dir.path().join("raw");
        run("qemu-img", &["convert", "-O", "raw", text(&image), text(&raw)]);
        let disk = fs::read(&raw).unwrap();
        let sector = |at: usize| usize::try_from(u32_at(&disk, at)).unwrap() * 512;
        let bytes = disk[sector(0x1c6)..][..sector(0x1ca)].to_vec();
        let volume = dir.path().join("volume");
        fs::write(&volume, &bytes).unwrap();
        let digest = digest_of(&volume, dir.path());
        let made = Made { dir: scratch(), bytes, digest };
        let mut moving = Moving::new(made.bytes.clone(), 1);
        let mut moved = BTreeSet::new();
        for _ in 0..8 {
            let moves = moving.random_moves();
            moved.extend(moves.iter().map(|each| each.file));
            moving.carry_out(moves);
        }
        // The root, $Secure and $UpCase, at least.
        assert!([5, 9, 10].iter().all(|number| moved.contains(&FileId(*number))), "{moved:?}");
        made.check_places(&moving);
        made.check(&bytes_of(&moving.memory), 1);
    }
}
