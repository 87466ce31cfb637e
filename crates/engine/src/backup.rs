//! Reads a disk by a plan and adds its pieces to a repository, in parallel: read, hash, compress, seal, store.
//!
//! Invariants: what is not read or filled, and what is read and turns out to be zeros, is references to blobs of zeros; the blobs that a
//! disk is made of are as long together as the disk, whatever the threads do.
//!
//! Where an earlier snapshot is known to hold what the disk holds still ([`Base`]), nothing is read: its blobs are referred to. A piece of
//! which a part changed is put together from that part of the disk and from the earlier blobs.
//!
//! Memory: each worker owns a batch and a pack; of what was stored some fifty bytes a piece are kept.

use std::collections::{BTreeMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use block::{AlignedBuffer, Error, ReadAt, Result, is_zero};
use extent::{ExtentSet, HostOffset, HostSpan, Span, Virtual, VirtualOffset, VirtualSpan};
use plan::CopyPlan;
use plan::backup::{BATCH_BYTES, Batch, BatchPart, Cuts, each_batch};
use repository::{BlobKind, Held, Id, Packer, SnapshotDisk, ZeroBlobs};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::monitor::JobMonitor;

/// The disk as an earlier snapshot holds it, and where that is what it holds still.
pub struct Base {
    /// What was stored.
    pub disk: SnapshotDisk,
    /// Where it was read, and did not change since.
    pub unchanged: ExtentSet<Virtual>,
}

/// A disk to be added.
pub struct BackupJob<'a> {
    /// Where its bytes are read.
    pub source: &'a dyn ReadAt<Virtual>,
    /// Which of them.
    pub plan: &'a CopyPlan,
    /// Where it is cut.
    pub cuts: Cuts,
    /// What need not be read, if something is known.
    pub base: Option<&'a Base>,
}

/// A disk that was added.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct BackedUp {
    /// Its blobs, in order.
    pub content: Vec<Id>,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes of blobs, zeros aside, that the repository did not have.
    pub new_bytes: u64,
    /// Where there are other blobs than of zeros.
    pub data: ExtentSet<Virtual>,
    /// What was read, or was known without that, and is zeros.
    pub zeros: ExtentSet<Virtual>,
}

/// What a backup would store at the most.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Bound {
    /// Pieces that are read or filled, of which a part at least is not known.
    pub pieces: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that are read: exactly.
    pub read_bytes: u64,
    /// Pieces that are known, and are listed all the same.
    pub listed: u64,
}

impl Bound {
    /// What each piece costs besides its bytes: in the pack and its header, in the index, in the list of blobs. Measured at 150 bytes,
    /// as hashes do not compress.
    pub const PIECE_BYTES: u64 = 256;
    /// What a piece costs that is only listed: in the list of the disk's blobs, which is stored anew with what a snapshot says of the disk.
    /// Measured at 36 bytes, as hashes do not compress.
    pub const LISTED_BYTES: u64 = 64;
    /// What there is once: a snapshot, a lock, blobs of zeros.
    pub const BACKUP_BYTES: u64 = 64 << 10;

    /// As bytes of the repository.
    pub fn stored_bytes(&self) -> u64 {
        self.bytes + self.pieces * Self::PIECE_BYTES + self.listed * Self::LISTED_BYTES + Self::BACKUP_BYTES
    }
}

/// So many blobs are compared with the disk at the most.
const SAMPLES_MAX: usize = 16;
/// What is read for that: a sixteenth of what is read at all, or this.
const SAMPLED_SHARE: u64 = 16;
const SAMPLED_BYTES_MIN: u64 = 128 << 10;

/// Blobs of the earlier snapshot that are to be compared with the disk, although it is said not to have changed there.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Samples(Vec<(VirtualSpan, Id)>);

impl Samples {
    /// What is read for the comparison.
    pub fn read_bytes(&self) -> u64 {
        self.0.iter().map(|(span, _)| span.len_bytes()).sum()
    }

    /// Whether the disk holds them.
    pub fn are_on(&self, source: &dyn ReadAt<Virtual>) -> Result<bool> {
        let mut buffer = AlignedBuffer::new(usize::try_from(BATCH_BYTES).expect("small"));
        for (span, id) in &self.0 {
            let contents = &mut buffer[..len(*span)];
            source.read_at(span.start(), contents)?;
            if Id::of(contents) != *id {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A blob of the disk.
#[derive(Clone, Copy)]
struct Blob {
    start: u64,
    len_bytes: u64,
    id: Id,
}

/// What the workers share.
struct Shared<'a> {
    source: &'a dyn ReadAt<Virtual>,
    base: Option<&'a Base>,
    monitor: &'a dyn JobMonitor,
    batches: Mutex<Receiver<Batch>>,
    blobs: Mutex<Vec<Blob>>,
    zeros: Mutex<Vec<VirtualSpan>>,
    failure: Mutex<Option<Error>>,
    has_failed: AtomicBool,
    read_bytes: AtomicU64,
    new_bytes: AtomicU64,
}

impl BackupJob<'_> {
    /// What it would store at the most, without reading anything.
    pub fn bound(&self) -> Bound {
        let mut bound = Bound::default();
        each_batch(self.plan, self.cuts.clone(), &mut |batch| {
            for part in &batch.parts {
                for (piece, known) in known_pieces(self.base, part) {
                    match known {
                        Known::Not => {
                            bound.bytes += piece.len_bytes();
                            bound.pieces += 1;
                        }
                        Known::Blob(_) | Known::Zeros => bound.listed += 1,
                    }
                }
                bound.read_bytes += to_read(self.base, part).total_bytes();
            }
            true
        });
        bound
    }

    /// Some of the blobs that are referred to without being read: others for another `seed`.
    pub fn samples(&self, seed: &str) -> Samples {
        let seed = xxh3_64(seed.as_bytes());
        let mut drawn = BTreeMap::new();
        let mut read_bytes = 0;
        each_batch(self.plan, self.cuts.clone(), &mut |batch| {
            for part in &batch.parts {
                read_bytes += to_read(self.base, part).total_bytes();
                for (piece, known) in known_pieces(self.base, part) {
                    let Known::Blob(id) = known else { continue };
                    drawn.insert(xxh3_64_with_seed(&piece.start().get().to_le_bytes(), seed), (piece, id));
                    if drawn.len() > SAMPLES_MAX {
                        drawn.pop_last();
                    }
                }
            }
            true
        });
        let mut left = SAMPLED_BYTES_MIN.max(read_bytes / SAMPLED_SHARE);
        let fits = |(piece, _): &(VirtualSpan, Id)| match left.checked_sub(piece.len_bytes()) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        };
        Samples(drawn.into_values().filter(fits).collect())
    }

    /// Adds the disk, with a thread for each packer.
    pub fn run(self, packers: &mut [Packer<'_, '_>], monitor: &dyn JobMonitor) -> Result<BackedUp> {
        let (send, receive) = sync_channel(packers.len());
        let shared = Shared {
            source: self.source,
            base: self.base,
            monitor,
            batches: Mutex::new(receive),
            blobs: Mutex::default(),
            zeros: Mutex::default(),
            failure: Mutex::default(),
            has_failed: AtomicBool::new(false),
            read_bytes: AtomicU64::new(0),
            new_bytes: AtomicU64::new(0),
        };
        std::thread::scope(|scope| {
            for packer in packers.iter_mut() {
                let shared = &shared;
                scope.spawn(move || shared.work(packer));
            }
            each_batch(self.plan, self.cuts, &mut |batch| {
                !shared.has_failed.load(Ordering::Relaxed)
                    && !monitor.is_cancelled()
                    && send.send(batch).is_ok()
            });
            drop(send);
        });
        if let Some(error) = shared.failure.into_inner().expect("no worker panicked") {
            return Err(error);
        }
        if monitor.is_cancelled() {
            return Err(Error::interrupted());
        }
        let mut blobs = shared.blobs.into_inner().expect("no worker panicked");
        blobs.sort_unstable_by_key(|blob| blob.start);
        let packer = packers.first_mut().ok_or_else(|| Error::invalid("a backup without threads"))?;
        Ok(BackedUp {
            content: with_zeros(&blobs, self.plan.virtual_bytes, packer)?,
            read_bytes: shared.read_bytes.into_inner(),
            new_bytes: shared.new_bytes.into_inner(),
            data: blobs
                .iter()
                .map(|blob| Span::new(VirtualOffset::new(blob.start), blob.len_bytes))
                .collect(),
            zeros: shared.zeros.into_inner().expect("no worker panicked").into_iter().collect(),
        })
    }
}

/// The blobs, with zeros in the gaps.
fn with_zeros(blobs: &[Blob], len_bytes: u64, packer: &mut Packer<'_, '_>) -> Result<Vec<Id>> {
    let zeros = ZeroBlobs::default();
    let mut content = Vec::with_capacity(blobs.len());
    // There are few kinds, and each is hashed once.
    let mut added = HashSet::new();
    let mut fill = |gap: u64, content: &mut Vec<Id>| -> Result<()> {
        for (len_bytes, id) in zeros.cover(gap) {
            if added.insert(id) {
                packer.add(BlobKind::Data, &ZeroBlobs::zeros(len_bytes))?;
            }
            content.push(id);
        }
        Ok(())
    };
    let mut at = 0;
    for blob in blobs {
        assert!(blob.start >= at, "pieces of a plan do not overlap");
        fill(blob.start - at, &mut content)?;
        content.push(blob.id);
        at = blob.start + blob.len_bytes;
    }
    assert!(at <= len_bytes, "a plan is of the disk");
    fill(len_bytes - at, &mut content)?;
    Ok(content)
}

impl Shared<'_> {
    fn work(&self, packer: &mut Packer<'_, '_>) {
        let mut buffer = AlignedBuffer::new(usize::try_from(BATCH_BYTES).expect("small"));
        loop {
            // Taken from the channel also after a failure, so that who sends is not stuck.
            let next = self.batches.lock().expect("no worker panicked").recv();
            let Ok(batch) = next else { return };
            if self.has_failed.load(Ordering::Relaxed) || self.monitor.is_cancelled() {
                continue;
            }
            if let Err(error) = self.add(&batch, &mut buffer, packer) {
                self.has_failed.store(true, Ordering::Relaxed);
                self.failure.lock().expect("no worker panicked").get_or_insert(error);
            }
        }
    }

    fn add(&self, batch: &Batch, buffer: &mut [u8], packer: &mut Packer<'_, '_>) -> Result<()> {
        let (mut found, mut zeros) = (Vec::new(), Vec::new());
        for part in &batch.parts {
            let span = part.part.span;
            let contents = &mut buffer[..len(span)];
            match part.part.fill {
                Some(byte) => contents.fill(byte),
                None => self.read(part, contents)?,
            }
            for (piece, known) in known_pieces(self.base, part) {
                let within = &mut contents[len(Span::between(span.start(), piece.start()))..][..len(piece)];
                match known {
                    Known::Blob(id) => {
                        found.push(Blob { start: piece.start().get(), len_bytes: piece.len_bytes(), id });
                    }
                    Known::Zeros => zeros.push(piece),
                    Known::Not => {
                        if part.part.fill.is_none() {
                            self.complete(piece, within)?;
                        }
                        match self.add_piece(piece, within, packer)? {
                            Some(blob) => found.push(blob),
                            None if part.part.fill.is_none() => zeros.push(piece),
                            None => {}
                        }
                    }
                }
            }
            let read_bytes = if part.part.fill.is_none() { span.len_bytes() } else { 0 };
            self.monitor.advanced(read_bytes, 0);
        }
        self.blobs.lock().expect("no worker panicked").extend(found);
        self.zeros.lock().expect("no worker panicked").extend(zeros);
        Ok(())
    }

    /// Reads what of the part is not known into its place.
    fn read(&self, part: &BatchPart, contents: &mut [u8]) -> Result<()> {
        let start = part.part.span.start();
        for span in to_read(self.base, part).iter() {
            let within = &mut contents[len(Span::between(start, span.start()))..][..len(span)];
            self.source.read_at(span.start(), within)?;
            self.read_bytes.fetch_add(span.len_bytes(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Fills what of the piece is known with what the earlier snapshot has there; or reads it, if that is lost.
    fn complete(&self, piece: VirtualSpan, contents: &mut [u8]) -> Result<()> {
        let Some(base) = self.base else { return Ok(()) };
        for span in base.unchanged.within(piece) {
            let within = &mut contents[len(Span::between(piece.start(), span.start()))..][..len(span)];
            if base.disk.read_at(HostOffset::new(span.start().get()), within).is_err() {
                self.source.read_at(span.start(), within)?;
                self.read_bytes.fetch_add(span.len_bytes(), Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// `None` if it is zeros.
    fn add_piece(
        &self,
        piece: VirtualSpan,
        contents: &[u8],
        packer: &mut Packer<'_, '_>,
    ) -> Result<Option<Blob>> {
        if is_zero(contents) {
            return Ok(None);
        }
        let added = packer.add(BlobKind::Data, contents)?;
        if added.is_new {
            self.new_bytes.fetch_add(piece.len_bytes(), Ordering::Relaxed);
        }
        Ok(Some(Blob { start: piece.start().get(), len_bytes: piece.len_bytes(), id: added.id }))
    }
}

/// What is known of a piece before anything is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    /// Not all of it.
    Not,
    /// That it is zeros.
    Zeros,
    /// That it is this blob.
    Blob(Id),
}

/// The pieces of a part, and what is known of each.
fn known_pieces<'a>(
    base: Option<&'a Base>,
    part: &'a BatchPart,
) -> impl Iterator<Item = (VirtualSpan, Known)> + 'a {
    let base = base.filter(|_| part.part.fill.is_none());
    let mut start = part.part.span.start();
    part.pieces.iter().map(move |&len_bytes| {
        let piece = Span::new(start, len_bytes.into());
        start = piece.end();
        (piece, base.map_or(Known::Not, |base| base.known(piece)))
    })
}

/// What of a part has to be read.
fn to_read(base: Option<&Base>, part: &BatchPart) -> ExtentSet<Virtual> {
    match (part.part.fill, base) {
        (Some(_), _) => ExtentSet::new(),
        (None, Some(base)) => base.unchanged.invert(part.part.span),
        (None, None) => [part.part.span].into_iter().collect(),
    }
}

impl Base {
    fn known(&self, piece: VirtualSpan) -> Known {
        if self.unchanged.within(piece).next() != Some(piece) {
            return Known::Not;
        }
        match self.disk.held(HostSpan::new(HostOffset::new(piece.start().get()), piece.len_bytes())) {
            Held::Zeros => Known::Zeros,
            Held::Blob(id) => Known::Blob(id),
            Held::Pieces => Known::Not,
        }
    }
}

fn len(span: VirtualSpan) -> usize {
    usize::try_from(span.len_bytes()).expect("within a batch")
}
