//! Moves files of a volume in place, batch by batch, so that a crash at any moment loses nothing.
//!
//! A batch: the metadata's changes are computed and checked; data are copied to free places; flush; they are read back from
//! storage and compared; the record of the changes goes to the journal; flush, which commits it; the changes are applied;
//! flush. `docs/design/crash-safety.md` argues why each moment is safe.
//!
//! Invariants:
//! - nothing is written before all batches were checked against the free space that each of them finds;
//! - before a batch is committed, only free space and the journal change;
//! - memory is bounded by a batch's metadata and the buffers of the workers.
//!
//! Absent on purpose: where things should lie (`plan`), the journal's file and path (the caller's), growing an image.

mod free_spans;
mod groups;
mod moves;
mod patches;
mod piece;

use std::collections::VecDeque;
use std::fmt;

use block::{Cached, EditDisk, Error, ErrorKind, ReadAt, Result, TargetFile, check_bounds};
use extent::{ExtentSet, Host, HostSpan, Offset, Virtual, VirtualSpan, Volume, VolumeOffset, VolumeSpan};
use filesystem::{Rearrange, Relocations};
use journal::{HEADER_BYTES, Header, Identity, Record};
use mutants::broken;

use crate::monitor::JobMonitor;
use free_spans::FreeSpans;
use moves::Mover;

/// A journal's slot: the most that one record takes. A batch that would need more is split.
pub const SLOT_BYTES: u64 = 64 << 20;

/// Memory for metadata while a batch's changes are computed.
const CACHE_BYTES_MAX: u64 = 16 << 20;

/// What to do about a disk whose change was committed and not finished.
pub const HINT_RECOVER: &str = "run 'leandisk recover' on the disk before anything else uses it";

/// A change in place to be run.
pub struct RearrangeJob<'a> {
    /// The disk, which nobody else uses.
    pub disk: &'a dyn EditDisk,
    /// The volume on it.
    pub volume: VirtualSpan,
    /// What may move, as of that volume now.
    pub rearrange: &'a dyn Rearrange,
    /// What moves, as planned for that volume.
    pub batches: &'a [Relocations],
    /// What is free after each batch and given back to the container then; nothing after those that it is too short for.
    pub releases: &'a [Vec<VolumeSpan>],
    /// What of each batch's destinations comes from where nothing is stored, and reads as zeros: it is not stored there either. Nothing
    /// after the batches that it is too short for.
    pub holes: &'a [Vec<VolumeSpan>],
    /// The journal's file: with its header ([`journal_header`]) and nothing else, under a name that lasts.
    pub journal: &'a dyn TargetFile,
    /// Number of workers that copy.
    pub thread_count: usize,
    /// The journal's slots: [`SLOT_BYTES`], or less to test what a batch too large does.
    pub slot_bytes: u64,
}

/// What was done.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct RearrangeOutcome {
    /// Bytes of files that lie elsewhere now.
    pub moved_bytes: u64,
    /// Bytes of metadata written on the disk.
    pub metadata_written_bytes: u64,
    /// Bytes written to the journal.
    pub journal_written_bytes: u64,
    /// Batches that are done; one that was split counts as its parts.
    pub batches_done: u64,
    /// Whether it stopped because the monitor asked for it. The disk is whole then, and on stable storage.
    pub is_cancelled: bool,
}

/// A change in place that failed.
#[derive(Debug)]
pub struct RearrangeFailure {
    /// Why.
    pub error: Error,
    /// What was done before.
    pub outcome: RearrangeOutcome,
    /// Whether the disk may only be made whole with the journal, which must stay. Otherwise the disk is whole, and the
    /// journal can go.
    pub needs_recovery: bool,
}

impl fmt::Display for RearrangeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for RearrangeFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// A volume of the disk as it is now.
struct VolumeReader<'a> {
    disk: &'a dyn EditDisk,
    span: VirtualSpan,
}

impl ReadAt<Volume> for VolumeReader<'_> {
    fn len_bytes(&self) -> u64 {
        self.span.len_bytes()
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.span.len_bytes())?;
        self.disk.read_at(self.span.start().plus(at.get()), buf)
    }
}

/// How a batch ended.
enum Batch {
    Done,
    /// Its record would be too large, or what it rewrites moves itself: these come instead.
    Split(Relocations, Relocations),
    Cancelled,
}

/// A failure, and whether it came after the commit.
struct Stopped {
    error: Error,
    is_committed: bool,
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self { error, is_committed: false }
    }
}

/// The header of the journal of a change that is to move `batches` of the volume, which nobody else uses. Whose it is, who
/// makes the file fills in.
pub fn journal_header(
    disk: &dyn ReadAt<Virtual>,
    volume: VirtualSpan,
    rearrange: &dyn Rearrange,
    batches: &[Relocations],
    slot_bytes: u64,
    identity: Identity,
) -> Result<Header> {
    let witnesses: ExtentSet<Volume> = rearrange.witnesses(batches)?.into_iter().collect();
    let witnesses: Vec<_> = witnesses.iter().map(|span| to_virtual(volume, span)).collect();
    Ok(Header {
        identity,
        owner: None,
        virtual_bytes: disk.len_bytes(),
        volume,
        slot_bytes,
        witness_digest: journal::witness_digest(disk, &witnesses)?,
        witnesses,
    })
}

/// `span` lies within the volume.
fn to_virtual(volume: VirtualSpan, span: VolumeSpan) -> VirtualSpan {
    VirtualSpan::new(volume.start().plus(span.start().get()), span.len_bytes())
}

/// What is told of one batch.
fn of_batch(told: &[Vec<VolumeSpan>], number: usize) -> &[VolumeSpan] {
    told.get(number).map_or(&[], Vec::as_slice)
}

/// What a run knows besides its job.
struct Run<'a> {
    job: &'a RearrangeJob<'a>,
    monitor: &'a dyn JobMonitor,
    header: Header,
    header_digest: [u8; 16],
    witnesses: ExtentSet<Volume>,
    outcome: RearrangeOutcome,
}

impl RearrangeJob<'_> {
    /// Runs it to its end: when it returns without an error, the disk is whole and on stable storage, and the caller removes the
    /// journal. A cancelled run ends that way too, after fewer batches.
    pub fn run(&self, monitor: &dyn JobMonitor) -> Result<RearrangeOutcome, RearrangeFailure> {
        let mut outcome = RearrangeOutcome::default();
        let result = self.start(monitor).map_err(Stopped::from).and_then(|mut run| {
            let result = run.all_batches();
            outcome = run.outcome;
            result
        });
        let Err(Stopped { error, is_committed }) = result else { return Ok(outcome) };
        let error = if is_committed { error.hint(HINT_RECOVER) } else { error };
        Err(RearrangeFailure { error, outcome, needs_recovery: is_committed })
    }

    /// Checks everything that can be checked before a byte is written.
    fn start<'a>(&'a self, monitor: &'a dyn JobMonitor) -> Result<Run<'a>> {
        self.check()?;
        if !broken!(PlacesNotChecked) {
            let mut room = FreeSpans::of(self.rearrange, self.volume.len_bytes())?;
            for (number, batch) in self.batches.iter().enumerate() {
                room.take(batch)?;
                free_spans::check_moved(batch, of_batch(self.holes, number))?;
                room.check_free(of_batch(self.releases, number))?;
            }
        }
        let witnesses = self.rearrange.witnesses(self.batches)?.into_iter().collect();
        let (header, header_digest) = self.header()?;
        let outcome = RearrangeOutcome { journal_written_bytes: HEADER_BYTES, ..RearrangeOutcome::default() };
        Ok(Run { job: self, monitor, header, header_digest, witnesses, outcome })
    }

    /// The journal's header with its digest, once it is known to be that of this change.
    fn header(&self) -> Result<(Header, [u8; 16])> {
        let wrong = |why: &str| Error::invalid(format!("the journal is not one for this change: {why}"));
        let (found, digest) = journal::read_header(&self.journal).map_err(|error| match error.kind() {
            ErrorKind::Io => error,
            _ => wrong(&error.to_string()),
        })?;
        let Self { disk, volume, rearrange, batches, slot_bytes, .. } = *self;
        let identity = found.identity.clone();
        let expected = journal_header(disk, volume, rearrange, batches, slot_bytes, identity)?;
        match found == (Header { owner: found.owner.clone(), ..expected }) {
            true => Ok((found, digest)),
            false => Err(wrong("the disk is another one than its header says")),
        }
    }

    fn check(&self) -> Result<()> {
        if self.volume.end().get() > self.disk.len_bytes() {
            return Err(Error::invalid("the volume lies past the end of its disk").at(self.volume.end()));
        }
        if !self.volume.start().get().is_multiple_of(patches::SECTOR_BYTES as u64) {
            return Err(Error::invalid("the volume begins within a sector").at(self.volume.start()));
        }
        // A journal that is still needed must not be written over.
        let journal_bytes = ReadAt::<Host>::len_bytes(self.journal);
        if journal_bytes != HEADER_BYTES {
            return Err(Error::invalid("the journal of a new change").field(
                "length",
                journal_bytes,
                format!("{HEADER_BYTES}: its header alone"),
            ));
        }
        Ok(())
    }
}

impl Run<'_> {
    fn all_batches(&mut self) -> Result<(), Stopped> {
        for (number, batch) in self.job.batches.iter().enumerate() {
            let mut queue = VecDeque::from([batch.clone()]);
            while let Some(batch) = queue.pop_front() {
                match self.batch(&batch, of_batch(self.job.holes, number))? {
                    Batch::Done => {}
                    Batch::Split(first, second) => {
                        queue.push_front(second);
                        queue.push_front(first);
                    }
                    Batch::Cancelled => {
                        self.outcome.is_cancelled = true;
                        return Ok(());
                    }
                }
            }
            // All that lies there is free on stable storage by now. A crash in between leaves it allocated, no more.
            let release: ExtentSet<Volume> = of_batch(self.job.releases, number).iter().copied().collect();
            for span in release.iter() {
                self.job.disk.release(to_virtual(self.job.volume, span))?;
            }
        }
        if self.job.releases.iter().any(|release| !release.is_empty()) {
            self.job.disk.flush()?;
        }
        Ok(())
    }

    fn batch(&mut self, batch: &Relocations, holes: &[VolumeSpan]) -> Result<Batch, Stopped> {
        if batch.is_empty() {
            return Ok(Batch::Done);
        }
        if self.monitor.is_cancelled() {
            return Ok(Batch::Cancelled);
        }
        let job = self.job;
        let reader = Cached::new(VolumeReader { disk: job.disk, span: job.volume }, CACHE_BYTES_MAX);
        let edits = match job.rearrange.edits(&reader, batch) {
            Err(error) if error.kind() == ErrorKind::Invalid => {
                let Some((first, rest)) = job.rearrange.first_of(&reader, batch)? else {
                    return Err(error.into());
                };
                tracing::debug!(first = first.files().len(), "batch split: what is rewritten moves itself");
                return Ok(Batch::Split(first, rest));
            }
            edits => edits?,
        };
        let checked = patches::check(&edits, batch, &self.witnesses, reader.below())?;
        let patches = patches::on_disk(checked, job.volume);
        let holes: ExtentSet<Virtual> = holes.iter().map(|span| to_virtual(job.volume, *span)).collect();
        let mover = Mover::new(batch, job.volume, holes, job.disk, job.thread_count);
        if Record::len_bytes(&patches, mover.piece_count()) > job.slot_bytes {
            tracing::debug!(pieces = mover.piece_count(), "batch split: its record does not fit the journal");
            return Ok(split(batch)?);
        }

        if !mover.copy(self.monitor)? {
            return Ok(Batch::Cancelled);
        }
        if !broken!(NoFlushOfData) {
            job.disk.flush()?;
        }
        if !broken!(NotReadBack) && !mover.check_arrived(self.monitor)? {
            return Ok(Batch::Cancelled);
        }
        let record = Record { sequence: self.outcome.batches_done + 1, moves: mover.into_moves(), patches };
        if broken!(AppliedBeforeCommit) {
            apply(job.disk, &record, |patch| &patch.after)?;
        }
        self.commit(&record)?;
        self.apply(&record).map_err(|error| Stopped { error, is_committed: true })?;
        self.outcome.moved_bytes += batch.total_bytes();
        self.outcome.batches_done += 1;
        tracing::debug!(sequence = record.sequence, moved_bytes = batch.total_bytes(), "batch moved");
        Ok(Batch::Done)
    }

    /// Once this returned, the batch happens, whatever becomes of the machine. If it fails, nothing happened: the metadata
    /// are as they were, with the journal and without it.
    fn commit(&mut self, record: &Record) -> Result<()> {
        let bytes = record.to_bytes(self.header_digest)?;
        let slot = self.header.slot(record.sequence);
        assert!(bytes.len() as u64 <= slot.len_bytes(), "a record fits its slot");
        write_in_pieces(&bytes, |done, piece| self.job.journal.write_at(slot.start().plus(done), piece))?;
        self.outcome.journal_written_bytes += bytes.len() as u64;
        if !broken!(NoFlushOfRecord) {
            self.job.journal.flush()?;
        }
        self.job.journal.forget(HostSpan::new(slot.start(), bytes.len() as u64));
        Ok(())
    }

    fn apply(&mut self, record: &Record) -> Result<()> {
        let written_bytes = apply(self.job.disk, record, |patch| &patch.after)?;
        self.outcome.metadata_written_bytes += written_bytes;
        if !broken!(NoFlushOfMetadata) {
            self.job.disk.flush()?;
        }
        self.monitor.advanced(0, written_bytes);
        Ok(())
    }
}

/// What is written at once.
const WRITE_BYTES_MAX: usize = 8 << 20;

/// Writes the side of the record's patches that `side` picks; answers how many bytes.
pub(crate) fn apply(
    disk: &dyn EditDisk,
    record: &Record,
    side: impl Fn(&journal::Patch) -> &Vec<u8>,
) -> Result<u64> {
    let mut written_bytes = 0;
    for patch in &record.patches {
        let bytes = side(patch);
        write_in_pieces(bytes, |done, piece| disk.write_at(patch.at.plus(done), piece))?;
        written_bytes += bytes.len() as u64;
    }
    Ok(written_bytes)
}

fn write_in_pieces(bytes: &[u8], mut write: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
    let mut done = 0;
    for piece in bytes.chunks(WRITE_BYTES_MAX) {
        write(done, piece)?;
        done += piece.len() as u64;
    }
    Ok(())
}

/// Halves of a batch, by file. Each is a batch: what is free before both is free before either, and neither goes to what the
/// other leaves.
fn split(batch: &Relocations) -> Result<Batch> {
    let files = batch.files();
    let Some(middle) = files.get(files.len() / 2).filter(|_| files.len() > 1) else {
        return Err(Error::unsupported(format!(
            "the metadata of file {} are too large for one record of the journal",
            files.first().map_or(0, |file| file.0)
        )));
    };
    let (first, second) = batch.by_source().partition(|each| each.file < *middle);
    Ok(Batch::Split(Relocations::new(first)?, Relocations::new(second)?))
}

/// Bytes from `start` to `at`, as an index.
fn index<S: extent::Space>(start: Offset<S>, at: Offset<S>) -> usize {
    usize::try_from(at.get() - start.get()).expect("within memory")
}
