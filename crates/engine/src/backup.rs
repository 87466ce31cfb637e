//! Reads a disk by a plan and adds its pieces to a repository, in parallel: read, hash, compress, seal, store.
//!
//! Invariants: what is not read or filled, and what is read and turns out to be zeros, is references to blobs of zeros; the blobs that a
//! disk is made of are as long together as the disk, whatever the threads do.
//!
//! Memory: each worker owns a batch and a pack; of what was stored some fifty bytes a piece are kept.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use block::{AlignedBuffer, Error, ReadAt, Result};
use extent::Virtual;
use plan::CopyPlan;
use plan::backup::{BATCH_BYTES, Batch, Cuts, each_batch};
use repository::{BlobKind, Id, Packer, ZeroBlobs};

use crate::cut::is_zero;
use crate::monitor::JobMonitor;

/// A disk to be added.
pub struct BackupJob<'a> {
    /// Where its bytes are read.
    pub source: &'a dyn ReadAt<Virtual>,
    /// Which of them.
    pub plan: &'a CopyPlan,
    /// Where it is cut.
    pub cuts: Cuts,
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
}

/// What a backup would store at the most.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Bound {
    /// Pieces that are read or filled.
    pub pieces: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Bound {
    /// What each piece costs besides its bytes: in the pack and its header, in the index, in the list of blobs. Measured at 150 bytes,
    /// as hashes do not compress.
    pub const PIECE_BYTES: u64 = 256;
    /// What there is once: a snapshot, a lock, blobs of zeros.
    pub const BACKUP_BYTES: u64 = 64 << 10;

    /// As bytes of the repository.
    pub fn stored_bytes(&self) -> u64 {
        self.bytes + self.pieces * Self::PIECE_BYTES + Self::BACKUP_BYTES
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
    monitor: &'a dyn JobMonitor,
    batches: Mutex<Receiver<Batch>>,
    blobs: Mutex<Vec<Blob>>,
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
            bound.bytes += batch.len_bytes();
            bound.pieces += batch.parts.iter().map(|part| part.pieces.len() as u64).sum::<u64>();
            true
        });
        bound
    }

    /// Adds the disk, with a thread for each packer.
    pub fn run(self, packers: &mut [Packer<'_, '_>], monitor: &dyn JobMonitor) -> Result<BackedUp> {
        let (send, receive) = sync_channel(packers.len());
        let shared = Shared {
            source: self.source,
            monitor,
            batches: Mutex::new(receive),
            blobs: Mutex::default(),
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
        })
    }
}

/// The blobs, with zeros in the gaps.
fn with_zeros(blobs: &[Blob], len_bytes: u64, packer: &mut Packer<'_, '_>) -> Result<Vec<Id>> {
    let zeros = ZeroBlobs::default();
    let mut content = Vec::with_capacity(blobs.len());
    let mut last = None;
    let mut fill = |gap: u64, content: &mut Vec<Id>| -> Result<()> {
        for (len_bytes, id) in zeros.cover(gap) {
            if last != Some(id) {
                packer.add(BlobKind::Data, &ZeroBlobs::zeros(len_bytes))?;
                last = Some(id);
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
        let mut found = Vec::new();
        for part in &batch.parts {
            let span = part.part.span;
            let contents = &mut buffer[..usize::try_from(span.len_bytes()).expect("within a batch")];
            match part.part.fill {
                Some(byte) => contents.fill(byte),
                None => {
                    self.source.read_at(span.start(), contents)?;
                    self.read_bytes.fetch_add(span.len_bytes(), Ordering::Relaxed);
                }
            }
            let mut rest = &*contents;
            let mut start = span.start().get();
            for &len_bytes in &part.pieces {
                let (piece, behind) = rest.split_at(usize::try_from(len_bytes).expect("within a batch"));
                let len_bytes = u64::from(len_bytes);
                if !is_zero(piece) {
                    let added = packer.add(BlobKind::Data, piece)?;
                    if added.is_new {
                        self.new_bytes.fetch_add(len_bytes, Ordering::Relaxed);
                    }
                    found.push(Blob { start, len_bytes, id: added.id });
                }
                rest = behind;
                start += len_bytes;
            }
            let read_bytes = if part.part.fill.is_none() { span.len_bytes() } else { 0 };
            self.monitor.advanced(read_bytes, 0);
        }
        self.blobs.lock().expect("no worker panicked").extend(found);
        Ok(())
    }
}
