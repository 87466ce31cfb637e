//! A fingerprint of all that stays when files move: what there is, what it is called, how long it is, how it is laid out
//! within itself, and every byte of metadata but those that say where things lie.
//!
//! A file's digest is the sum of the digests of its facts, so that these may come in any order, and from any place.
//!
//! Invariants: 24 bytes a file; one pass over the metadata; contents are read only when asked for.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use block::{Error, Result};
use extent::VolumeOffset;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::{Source, btrfs, exfat, ext, fat, ntfs, unknown, xfs};

/// Whose contents are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents<'a> {
    /// Nobody's; nor names in the directories of ext, nor blocks of attributes: no more than
    /// [`check_owners`](super::check_owners) reads.
    Owners,
    /// Nobody's.
    None,
    /// These files', by the numbers of their inodes or base records, ascending.
    Of(&'a [u64]),
    /// All files', directories included. Left out are maps of what others own, such as `$Bitmap`, and logs.
    All,
}

impl Contents<'_> {
    pub(super) fn includes(&self, file: u64) -> bool {
        match self {
            Self::Owners | Self::None => false,
            Self::Of(files) => files.binary_search(&file).is_ok(),
            Self::All => true,
        }
    }
}

/// How many files that differ are named.
const NAMED_MAX: usize = 5;

/// What a fact is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Aspect {
    Head,
    Names,
    Attributes,
    Streams,
    Layout,
    Contents,
}

const ASPECTS: [(Aspect, &str); 6] = [
    (Aspect::Head, "heads"),
    (Aspect::Names, "names"),
    (Aspect::Attributes, "attributes"),
    (Aspect::Streams, "streams"),
    (Aspect::Layout, "layout of streams"),
    (Aspect::Contents, "contents"),
];

/// A file and the sum of the digests of its facts.
#[derive(Clone, Copy, Debug)]
struct Entry {
    file: u64,
    digest: [u64; 2],
}

impl Entry {
    fn new(file: u64, digest: u128) -> Self {
        let [low, high] =
            [digest, digest >> 64].map(|half| u64::try_from(half & u128::from(u64::MAX)).expect("64 bits"));
        Self { file, digest: [low, high] }
    }

    fn digest(&self) -> u128 {
        u128::from(self.digest[1]) << 64 | u128::from(self.digest[0])
    }

    fn add(&mut self, digest: u128) {
        *self = Self::new(self.file, self.digest().wrapping_add(digest));
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What the volume is: size, label, serial number.
    volume: u128,
    /// By file.
    entries: Vec<Entry>,
    /// Over all files.
    aspects: [u128; ASPECTS.len()],
}

impl Snapshot {
    /// Reads the metadata of a volume that is clean, with its own parsers, and the bytes of those files that `contents` names, by up to
    /// `thread_count` threads through their extents: as they are on the volume, be they compressed or encrypted. `identity` is what the
    /// volume is: its kind, size, label and serial number, in any form.
    pub fn take(
        identity: &str,
        source: &Source,
        contents: Contents<'_>,
        thread_count: usize,
    ) -> Result<Self> {
        let mut collector = Collector::new(source, contents, thread_count);
        if ntfs::is_ntfs(source)? {
            ntfs::snapshot::collect(source, &mut collector)?;
        } else if ext::is_ext(source)? {
            ext::snapshot::collect(source, &mut collector)?;
        } else if fat::is_fat(source)? {
            fat::snapshot::collect(source, &mut collector)?;
        } else if exfat::is_exfat(source)? {
            exfat::snapshot::collect(source, &mut collector)?;
        } else if xfs::is_xfs(source)? {
            xfs::snapshot::collect(source, &mut collector)?;
        } else if btrfs::is_btrfs(source)? {
            btrfs::snapshot::collect(source, &mut collector)?;
        } else {
            return Err(unknown());
        }
        let (entries, aspects) = collector.finish()?;
        Ok(Self { volume: xxh3_128(identity.as_bytes()), entries, aspects })
    }

    /// How many files there are.
    pub fn file_count(&self) -> usize {
        self.entries.len()
    }

    /// The first files that are not the same, or not there, in one of the two: at most `count_max`.
    pub fn differences(before: &Self, after: &Self, count_max: usize) -> Vec<u64> {
        let (mut ours, mut theirs) = (&before.entries[..], &after.entries[..]);
        let mut found = Vec::new();
        while found.len() < count_max {
            let order = match (ours.first(), theirs.first()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(one), Some(other)) => one.file.cmp(&other.file),
            };
            let (one, other) = (ours.first().copied(), theirs.first().copied());
            if order.is_le() {
                ours = &ours[1..];
            }
            if order.is_ge() {
                theirs = &theirs[1..];
            }
            match (one, other) {
                (Some(one), Some(other)) if order.is_eq() && one.digest == other.digest => {}
                (Some(one), _) if order.is_le() => found.push(one.file),
                (_, Some(other)) => found.push(other.file),
                _ => {}
            }
        }
        found
    }

    /// Fails with `Mismatch` unless both are of the same volume and all files are the same. The message has the numbers of
    /// the first files that are not.
    pub fn compare(before: &Self, after: &Self) -> Result<()> {
        Self::compare_named(before, after, |files| vec![None; files.len()])
    }

    /// The same with paths in the message, as far as `paths` knows those of the files that differ.
    pub fn compare_named(
        before: &Self,
        after: &Self,
        paths: impl FnOnce(&[u64]) -> Vec<Option<String>>,
    ) -> Result<()> {
        if before.volume != after.volume {
            return Err(Error::mismatch(
                "the volume is another one: its kind, size, label or serial number changed",
            ));
        }
        let files = Self::differences(before, after, NAMED_MAX);
        if files.is_empty() {
            return Ok(());
        }
        let has = |snapshot: &Self, file: u64| {
            snapshot.entries.binary_search_by_key(&file, |entry| entry.file).is_ok()
        };
        let tell = |(file, path): (&u64, Option<String>)| {
            let path = path.map(|path| format!(" ({path})"));
            let what = match (has(before, *file), has(after, *file)) {
                (true, false) => "is lost",
                (false, true) => "was not there before",
                _ => "is not as it was",
            };
            format!("file {file}{} {what}", path.unwrap_or_default())
        };
        let told: Vec<_> = files.iter().zip(paths(&files)).map(tell).collect();
        let more = if files.len() == NAMED_MAX { ", perhaps others" } else { "" };
        let differs = Self::what_differs(before, after);
        Err(Error::mismatch(format!("{}{more}; over all files these differ: {differs}", told.join(", "))))
    }

    fn what_differs(before: &Self, after: &Self) -> String {
        let pairs = before.aspects.iter().zip(&after.aspects).zip(ASPECTS);
        let names: Vec<_> =
            pairs.filter(|((one, other), _)| one != other).map(|(_, (_, name))| name).collect();
        names.join(", ")
    }
}

/// A part of a file's contents: always the same part of the file, wherever it lies.
struct Segment {
    file: u64,
    /// Which stream, and which part of it.
    key: u128,
    parts: Vec<(VolumeOffset, u64)>,
}

/// Segments end at multiples of this.
const SEGMENT_BYTES: u64 = 8 << 20;
/// Segments are hashed once so many bytes, or parts of them, wait.
const WAITING_BYTES: u64 = 64 << 20;
const WAITING_PARTS: usize = 1 << 16;
/// How much is read at once.
const READ_BYTES: u64 = 1 << 20;
/// How many sums wait before they are sorted in, at least.
const PENDING: usize = 1 << 16;

/// Takes the facts of a volume.
pub(super) struct Collector<'a> {
    source: &'a Source,
    pub(super) contents: Contents<'a>,
    thread_count: usize,
    entries: Vec<Entry>,
    pending: Vec<Entry>,
    aspects: [u128; ASPECTS.len()],
    fact: Vec<u8>,
    segments: Vec<Segment>,
    waiting_bytes: u64,
    waiting_parts: usize,
}

impl<'a> Collector<'a> {
    fn new(source: &'a Source, contents: Contents<'a>, thread_count: usize) -> Self {
        Self {
            source,
            contents,
            thread_count,
            entries: Vec::new(),
            pending: Vec::new(),
            aspects: [0; ASPECTS.len()],
            fact: Vec::new(),
            segments: Vec::new(),
            waiting_bytes: 0,
            waiting_parts: 0,
        }
    }

    /// Takes a fact about a file: `parts` in their order, of which each has the same length each time or tells it.
    pub(super) fn tell(&mut self, file: u64, aspect: Aspect, parts: &[&[u8]]) {
        self.fact.clear();
        let index = ASPECTS.iter().position(|(known, _)| *known == aspect).expect("all are listed");
        self.fact.extend(file.to_le_bytes());
        self.fact.extend([u8::try_from(index).expect("few")]);
        parts.iter().for_each(|part| self.fact.extend_from_slice(part));
        let digest = xxh3_128(&self.fact);
        self.aspects[index] = self.aspects[index].wrapping_add(digest);
        match self.pending.last_mut() {
            Some(last) if last.file == file => last.add(digest),
            _ => self.put(file, digest),
        }
    }

    fn put(&mut self, file: u64, digest: u128) {
        self.pending.push(Entry::new(file, digest));
        if self.pending.len() >= PENDING.max(self.entries.len() / 4) {
            self.sort_in();
        }
    }

    /// Sorts in what waits.
    fn sort_in(&mut self) {
        self.entries.append(&mut self.pending);
        self.entries.sort_by_key(|entry| entry.file);
        self.entries.dedup_by(|next, kept| {
            let is_same = next.file == kept.file;
            if is_same {
                kept.add(next.digest());
            }
            is_same
        });
    }

    /// Takes a piece of a file's contents. The pieces of a stream come in its order, `key` tells the stream.
    pub(super) fn piece(
        &mut self,
        file: u64,
        key: u128,
        mut logical: u64,
        mut at: VolumeOffset,
        mut len: u64,
    ) -> Result<()> {
        while len > 0 {
            let step = len.min(SEGMENT_BYTES - logical % SEGMENT_BYTES);
            let key = key ^ u128::from(logical / SEGMENT_BYTES + 1) << 64;
            match self.segments.last_mut().filter(|last| (last.file, last.key) == (file, key)) {
                Some(last) => last.parts.push((at, step)),
                None => {
                    if self.waiting_bytes >= WAITING_BYTES || self.waiting_parts >= WAITING_PARTS {
                        self.hash_segments()?;
                    }
                    self.segments.push(Segment { file, key, parts: vec![(at, step)] });
                }
            }
            self.waiting_bytes += step;
            self.waiting_parts += 1;
            (logical, at, len) = (logical + step, at.plus(step), len - step);
        }
        Ok(())
    }

    fn hash_segments(&mut self) -> Result<()> {
        let segments = std::mem::take(&mut self.segments);
        (self.waiting_bytes, self.waiting_parts) = (0, 0);
        let (source, next) = (self.source, AtomicUsize::new(0));
        let worker = || -> Result<Vec<(usize, u128)>> {
            let (mut done, mut buffer) = (Vec::new(), Vec::new());
            loop {
                let index = next.fetch_add(1, Relaxed);
                let Some(segment) = segments.get(index) else { return Ok(done) };
                done.push((index, hash(source, segment, &mut buffer)?));
            }
        };
        let count = self.thread_count.clamp(1, segments.len().max(1));
        let hashed: Result<Vec<_>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (1..count).map(|_| scope.spawn(worker)).collect();
            let own = worker();
            let others = workers.into_iter().map(|worker| worker.join().expect("a worker does not panic"));
            std::iter::once(own).chain(others).collect()
        });
        for (index, digest) in hashed?.into_iter().flatten() {
            let segment = &segments[index];
            self.tell(segment.file, Aspect::Contents, &[&segment.key.to_le_bytes(), &digest.to_le_bytes()]);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(Vec<Entry>, [u128; ASPECTS.len()])> {
        self.hash_segments()?;
        self.sort_in();
        self.entries.shrink_to_fit();
        Ok((self.entries, self.aspects))
    }
}

fn hash(source: &Source, segment: &Segment, buffer: &mut Vec<u8>) -> Result<u128> {
    use block::ReadAt;
    let mut sum = Xxh3::new();
    for (at, len) in &segment.parts {
        let mut done = 0;
        while done < *len {
            let step = READ_BYTES.min(len - done);
            buffer.resize(usize::try_from(step).expect("1 MiB at most"), 0);
            source.read_at(at.plus(done), buffer)?;
            sum.update(buffer);
            done += step;
        }
    }
    Ok(sum.digest128())
}

/// The layout of a stream: what its pieces are, joined where they go on in it, wherever they lie.
#[derive(Default)]
pub(super) struct Layout {
    bytes: Vec<u8>,
    last: Option<(u64, u64, u8)>,
}

impl Layout {
    /// Takes the next piece, of `count` clusters from `logical`.
    pub(super) fn push(&mut self, logical: u64, count: u64, state: u8) {
        match &mut self.last {
            Some((start, len, same)) if *start + *len == logical && *same == state => *len += count,
            _ => {
                self.flush();
                self.last = Some((logical, count, state));
            }
        }
    }

    fn flush(&mut self) {
        if let Some((start, len, state)) = self.last.take() {
            self.bytes.extend(start.to_le_bytes());
            self.bytes.extend(len.to_le_bytes());
            self.bytes.push(state);
        }
    }

    /// As bytes.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.flush();
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Memory;
    use std::sync::Arc;

    fn snapshot(tell: impl Fn(&mut Collector<'_>)) -> Snapshot {
        let source: Source = Arc::new(Memory::new(vec![7; 20 << 20]));
        let mut collector = Collector::new(&source, Contents::All, 2);
        tell(&mut collector);
        let (entries, aspects) = collector.finish().unwrap();
        Snapshot { volume: 0, entries, aspects }
    }

    #[test]
    fn entries_are_small() {
        assert_eq!(size_of::<Entry>(), 24);
    }

    #[test]
    fn the_order_of_facts_does_not_matter() {
        let tell = |collector: &mut Collector<'_>, numbers: &mut dyn Iterator<Item = u64>| {
            numbers
                .for_each(|number| collector.tell(number % 50_000, Aspect::Names, &[&number.to_le_bytes()]));
        };
        let one = snapshot(|collector| tell(collector, &mut (0..200_000)));
        let other = snapshot(|collector| tell(collector, &mut (0..200_000).rev()));
        Snapshot::compare(&one, &other).unwrap();
        assert_eq!(one.file_count(), 50_000);
        let missing =
            snapshot(|collector| tell(collector, &mut (0..200_000).filter(|number| *number != 123_456)));
        assert_eq!(Snapshot::differences(&one, &missing, 9), [23_456]);
        let error = Snapshot::compare(&one, &missing).unwrap_err();
        assert_eq!(error.kind(), block::ErrorKind::Mismatch);
        assert!(error.to_string().contains("file 23456") && error.to_string().contains("names"), "{error}");
    }

    #[test]
    fn contents_are_the_same_in_any_pieces() {
        let in_pieces = |step: u64| {
            snapshot(|collector| {
                let mut at = 0;
                while at < 17 << 20 {
                    let len = step.min((17 << 20) - at);
                    // All bytes of the source are the same, so these lie anywhere.
                    collector.piece(5, 1, at, VolumeOffset::new(at % 4096), len).unwrap();
                    at += len;
                }
            })
        };
        Snapshot::compare(&in_pieces(17 << 20), &in_pieces(1 << 20)).unwrap();
        Snapshot::compare(&in_pieces(3_000_017), &in_pieces(65_536)).unwrap();
    }

    #[test]
    fn a_layout_is_joined() {
        let layout = |pieces: &[(u64, u64, u8)]| {
            let mut layout = Layout::default();
            pieces.iter().for_each(|(logical, count, state)| layout.push(*logical, *count, *state));
            layout.finish()
        };
        assert_eq!(layout(&[(0, 3, 1), (3, 2, 1), (9, 1, 1)]), layout(&[(0, 5, 1), (9, 1, 1)]));
        assert_ne!(layout(&[(0, 3, 1), (3, 2, 0)]), layout(&[(0, 5, 1)]));
    }
}
