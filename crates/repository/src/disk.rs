//! A disk of a snapshot, read as a raw image: blobs by position, zeros without reading anything.
//!
//! Invariant: a blob is decrypted and compared with its ID whenever it comes from the repository. How much is kept of them: [`crate::blobs`].

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use block::{Error, Fingerprint, HostFile, HostState, ReadAt, Result, check_bounds};
use extent::{Extent, Host, HostOffset, HostSpan, Span};

use crate::Id;
use crate::ahead::Ahead;
use crate::blobs::Blobs;
use crate::index::Index;
use crate::pack::{BlobKind, Place};
use crate::repository::Repository;
use crate::snapshot::Node;
use crate::unlocked::missing;

/// Two to the power of this is the longest blob of zeros.
const ZERO_LOG_MAX: u32 = 23;

/// The IDs of blobs of zeros, one for each power of two up to 8 MiB.
#[derive(Clone, Debug)]
pub struct ZeroBlobs {
    by_log: Vec<Id>,
}

impl Default for ZeroBlobs {
    fn default() -> Self {
        // Hashed once: 16 MiB.
        static HASHED: OnceLock<Vec<Id>> = OnceLock::new();
        let hash = || {
            let zeros = Self::zeros(1 << ZERO_LOG_MAX);
            (0..=ZERO_LOG_MAX).map(|log| Id::of(&zeros[..1 << log])).collect()
        };
        Self { by_log: HASHED.get_or_init(hash).clone() }
    }
}

impl ZeroBlobs {
    /// The blobs that together are so many zeros: their lengths and IDs, the longest first.
    pub fn cover(&self, len_bytes: u64) -> impl Iterator<Item = (u64, Id)> + '_ {
        let mut left = len_bytes;
        std::iter::from_fn(move || {
            let log = left.checked_ilog2()?.min(ZERO_LOG_MAX);
            left -= 1 << log;
            Some((1 << log, self.by_log[usize::try_from(log).ok()?]))
        })
    }

    fn contains(&self, id: Id, len_bytes: u64) -> bool {
        let log = len_bytes.is_power_of_two().then(|| len_bytes.trailing_zeros());
        log.and_then(|log| self.by_log.get(usize::try_from(log).ok()?)) == Some(&id)
    }

    /// So many zeros, at most 8 MiB.
    pub fn zeros(len_bytes: u64) -> Vec<u8> {
        vec![0; usize::try_from(len_bytes.min(1 << ZERO_LOG_MAX)).expect("8 MiB at most")]
    }
}

/// How a span of the disk is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Held {
    /// It is zeros.
    Zeros,
    /// It is this blob, all of it.
    Blob(Id),
    /// It is cut otherwise.
    Pieces,
}

/// A blob of the disk.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Where it begins on the disk.
    start: u64,
    /// `None` if it is zeros.
    place: Option<u32>,
}

/// A file of a snapshot, open for reading.
pub struct SnapshotDisk {
    name: String,
    path: PathBuf,
    len_bytes: u64,
    /// Of the list of its blobs.
    hash: Id,
    /// By their start; the end of the last is the disk's.
    parts: Vec<Part>,
    stored: Arc<Stored>,
    /// The name of each of the places.
    ids: Vec<Id>,
    /// Blobs of zeros, which are needed by those who do not know them for such.
    zeros: Vec<Place>,
    ahead: Option<Ahead>,
}

/// The blobs of a disk, each once.
struct Stored {
    repository: Arc<Repository>,
    places: Vec<Place>,
    kept: Blobs,
}

impl Stored {
    fn blob(&self, number: u32) -> Result<Arc<Vec<u8>>> {
        let place = &self.places[usize::try_from(number).expect("an index of memory")];
        self.kept.get(number, || self.repository.blob(place))
    }
}

impl SnapshotDisk {
    /// The file that `node` is. `path` names it in messages. `Corrupt` if a blob is in no index, or they are not as long as the file.
    pub fn open(repository: Arc<Repository>, index: &Index, node: &Node, path: &Path) -> Result<Self> {
        let zeros = ZeroBlobs::default();
        let (mut parts, mut places, mut start) = (Vec::new(), Vec::new(), 0_u64);
        let mut ids = Vec::new();
        let mut zeros_used: Vec<Place> = Vec::new();
        let mut known: HashMap<Id, u32> = HashMap::new();
        for &id in node.content.iter().flatten() {
            let place = index.find(BlobKind::Data, id).ok_or_else(|| missing(id).path(repository.place()))?;
            let len_bytes = plain_bytes(&place);
            let place = match zeros.contains(id, len_bytes) {
                true => {
                    if !zeros_used.contains(&place) {
                        zeros_used.push(place);
                    }
                    None
                }
                false => Some(*known.entry(id).or_insert_with(|| {
                    places.push(place);
                    ids.push(id);
                    u32::try_from(places.len() - 1).expect("fewer than the index has")
                })),
            };
            parts.push(Part { start, place });
            start = start
                .checked_add(len_bytes)
                .ok_or_else(|| Error::corrupt("the blobs of a snapshot's file"))?;
        }
        if start != node.size {
            return Err(Error::corrupt("a file of a snapshot")
                .field("length of its blobs", start, format!("{}, its size", node.size))
                .path(path.display()));
        }
        Ok(Self {
            name: path.display().to_string(),
            path: path.to_owned(),
            len_bytes: start,
            hash: Id::of_all(node.content.iter().flatten()),
            parts,
            stored: Arc::new(Stored { repository, places, kept: Blobs::default() }),
            ids,
            zeros: zeros_used,
            ahead: None,
        })
    }

    /// The same, for readers that wait for each answer: who reads on from where a read ended finds the next blobs in memory.
    #[must_use]
    pub fn reading_ahead(self) -> Self {
        if self.ahead.is_some() {
            return self;
        }
        let stored = self.stored.clone();
        // Who needs what could not be read is told.
        let count = stored.repository.inner.storage().connection_count();
        let ahead = Ahead::start(count, move |number| drop(stored.blob(number)));
        Self { ahead: Some(ahead), ..self }
    }

    /// The same where each read has a way to go; as it is where reading takes no more than the storage does.
    #[must_use]
    pub fn reading_ahead_from_afar(self) -> Self {
        match self.stored.repository.inner.storage().connection_count() {
            0 => self,
            _ => self.reading_ahead(),
        }
    }

    /// Bytes that are no zeros by the list of blobs alone.
    pub fn data_bytes(&self) -> u64 {
        let ends = self.parts.iter().skip(1).map(|part| part.start).chain([self.len_bytes]);
        let data = self.parts.iter().zip(ends).filter(|(part, _)| part.place.is_some());
        data.map(|(part, end)| end - part.start).sum()
    }

    /// Compares every blob with its ID, by several threads.
    pub fn check(&self, thread_count: usize, advanced: &(dyn Fn(u64) -> bool + Sync)) -> Result<()> {
        let next = AtomicUsize::new(0);
        let work = || -> Result<()> {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let zeros = || self.zeros.get(at - self.stored.places.len());
                let Some(place) = self.stored.places.get(at).or_else(zeros) else { return Ok(()) };
                self.stored.repository.blob(place)?;
                if !advanced(plain_bytes(place)) {
                    return Err(Error::interrupted());
                }
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..thread_count.max(1)).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no worker panics"))
        })
    }

    /// How `span`, which lies within the disk, is stored. Nothing of it is read.
    pub fn held(&self, span: HostSpan) -> Held {
        let mut parts = self.parts_in(span);
        match parts.next() {
            Some((part, Some(index))) if part == span => {
                Held::Blob(self.ids[usize::try_from(index).expect("an index of memory")])
            }
            Some((_, None)) if parts.all(|(_, place)| place.is_none()) => Held::Zeros,
            _ => Held::Pieces,
        }
    }

    /// Has read what is worth it after a read of these bytes.
    fn read_ahead(&self, read: HostSpan) {
        let Some(ahead) = &self.ahead else { return };
        let Some((from, to)) = ahead.after(read.start().get(), read.end().get()) else { return };
        let span = Span::between(HostOffset::new(from), HostOffset::new(to.min(self.len_bytes).max(from)));
        let numbers = self.parts_in(span).filter_map(|(_, number)| number);
        let _ = numbers.filter(|number| !self.stored.kept.has(*number)).all(|number| ahead.ask(number));
    }

    /// The parts that lie in `span`, each with its own span.
    fn parts_in(&self, span: HostSpan) -> impl Iterator<Item = (HostSpan, Option<u32>)> + '_ {
        let first = self.parts.partition_point(|part| part.start <= span.start().get()).saturating_sub(1);
        (first..self.parts.len())
            .map(move |at| {
                let end = self.parts.get(at + 1).map_or(self.len_bytes, |next| next.start);
                let part = self.parts[at];
                (Span::between(HostOffset::new(part.start), HostOffset::new(end)), part.place)
            })
            .take_while(move |(part, _)| part.start() < span.end())
    }
}

fn plain_bytes(place: &Place) -> u64 {
    let stored = &place.stored;
    let sealed = u64::from(stored.len_bytes).saturating_sub(crate::crypto::OVERHEAD_BYTES as u64);
    stored.uncompressed_bytes.map_or(sealed, u64::from)
}

impl ReadAt<Host> for SnapshotDisk {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes)?;
        let wanted = Span::new(at, buf.len() as u64);
        let number = |value: u64| usize::try_from(value).expect("within a blob and the buffer");
        for (part, place) in self.parts_in(wanted) {
            let Some(inside) = part.intersect(&wanted) else { continue };
            let to = number(inside.start().get() - at.get());
            let out = &mut buf[to..to + number(inside.len_bytes())];
            match place {
                None => out.fill(0),
                Some(index) => {
                    let blob = self.stored.blob(index)?;
                    let from = number(inside.start().get() - part.start().get());
                    out.copy_from_slice(&blob[from..from + out.len()]);
                }
            }
        }
        self.read_ahead(wanted);
        Ok(())
    }
}

impl HostFile for SnapshotDisk {
    fn name(&self) -> &str {
        &self.name
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn allocated_bytes(&self) -> Result<u64> {
        Ok(self.data_bytes())
    }

    fn fingerprint(&self) -> Result<Option<Fingerprint>> {
        Ok(self.fingerprint_when_opened())
    }

    /// It never changes: what tells it from others is what it holds.
    fn fingerprint_when_opened(&self) -> Option<Fingerprint> {
        let half = |from: usize| u64::from_le_bytes(self.hash.0[from..from + 8].try_into().expect("8 bytes"));
        let identity = (half(0), half(8));
        Some(Fingerprint { len_bytes: self.len_bytes, modified_ns: 0, changed_ns: 0, identity })
    }

    fn host_map(&self, span: HostSpan) -> Result<Vec<Extent<Host, HostState>>> {
        let mut map: Vec<Extent<Host, HostState>> = Vec::new();
        for (part, place) in self.parts_in(span) {
            let Some(inside) = part.intersect(&span) else { continue };
            let state = if place.is_some() { HostState::Data } else { HostState::Hole };
            match map.last_mut() {
                Some(last) if last.state == state => {
                    last.span = Span::between(last.span.start(), inside.end());
                }
                _ => map.push(Extent::new(inside, state)),
            }
        }
        Ok(map)
    }
}
