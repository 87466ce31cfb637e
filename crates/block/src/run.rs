//! What a virtual disk says of its bytes without reading them.

use extent::{ExtentSet, HostOffset, Span, Virtual, VirtualOffset, VirtualSpan};

use crate::{Error, Occupancy, ReadAt, Result, Take, UnitMove};

/// Which of a disk's host files, by the order in which the disk lists them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileIndex(pub u32);

/// What a span of a virtual disk is. Variants, so that no reader can forget one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunState {
    /// Not allocated. In a layer: the layer below answers. In a whole chain: reads as zeros.
    Hole,
    /// Marked as zeros; hides the layer below.
    Zero,
    /// Lies as it is from `offset` of `file`.
    Data {
        /// The host file.
        file: FileIndex,
        /// Where the run's first byte lies in it.
        offset: HostOffset,
    },
    /// Lies compressed. The place is that of the whole compressed unit, of which the run may be a part.
    Compressed {
        /// The host file.
        file: FileIndex,
        /// Where the compressed unit begins in it.
        offset: HostOffset,
        /// The host bytes the unit may occupy: an upper bound where the format stores no exact length.
        len_bytes: u64,
    },
}

impl RunState {
    /// The state of what lies `skip_bytes` further into a run of this state.
    #[must_use]
    pub fn advanced(self, skip_bytes: u64) -> Self {
        match self {
            Self::Data { file, offset } => Self::Data { file, offset: offset.plus(skip_bytes) },
            other => other,
        }
    }
}

/// A span of a virtual disk and its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Where on the virtual disk.
    pub span: VirtualSpan,
    /// What is there.
    pub state: RunState,
}

impl Run {
    /// `state` over `span`.
    pub fn new(span: VirtualSpan, state: RunState) -> Self {
        Self { span, state }
    }

    /// The part of the run within `window`, its state moved along.
    pub fn clipped(&self, window: &VirtualSpan) -> Option<Self> {
        let span = self.span.intersect(window)?;
        Some(Self { span, state: self.state.advanced(span.start().get() - self.span.start().get()) })
    }
}

/// Appends `run`, joining it to the last one where that continues into it.
pub fn push_run(runs: &mut Vec<Run>, run: Run) {
    if run.span.is_empty() {
        return;
    }
    if let Some(last) = runs.last_mut() {
        let follows = last.span.end() == run.span.start()
            && !matches!(run.state, RunState::Compressed { .. })
            && last.state.advanced(last.span.len_bytes()) == run.state;
        if follows {
            last.span = Span::between(last.span.start(), run.span.end());
            return;
        }
    }
    runs.push(run);
}

/// A virtual disk: read by position, mapped without reading.
pub trait Disk: ReadAt<Virtual> {
    /// The consecutive runs that cover `span` exactly, in order. A span past the end is an error.
    fn map(&self, span: VirtualSpan) -> Result<Vec<Run>>;

    /// The sector size that the disk tells the guest: 512 or 4096.
    fn sector_bytes(&self) -> u32 {
        512
    }
}

/// Zeros are written in pieces of this size.
const ZEROS_LEN_MAX: u64 = 1 << 20;

/// A virtual disk whose contents can be changed where they lie: nothing is allocated, no table of its image changes.
pub trait EditDisk: ReadAt<Virtual> {
    /// Overwrites what lies from `at` on. `Refused` if a part of it has no place of its own in the image.
    fn write_at(&self, at: VirtualOffset, buf: &[u8]) -> Result<()>;

    /// Returns when all that was written is on stable storage. After a failure nothing may be relied on.
    fn flush(&self) -> Result<()>;

    /// As [`ReadAt::read_at`], but from the storage rather than from a cache where that can be had. Each disk says how: one that forgot to would
    /// have what was written proven by the cache.
    fn read_stored(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()>;

    /// Makes `span` read as zeros, and stores as little for that as the image allows. `Refused` as for [`Self::write_at`].
    fn write_zeros(&self, span: VirtualSpan) -> Result<()> {
        let zeros = vec![0; usize::try_from(span.len_bytes().min(ZEROS_LEN_MAX)).unwrap_or_default()];
        span.split(ZEROS_LEN_MAX).try_for_each(|piece| {
            let len = usize::try_from(piece.len_bytes()).unwrap_or(zeros.len());
            self.write_at(piece.start(), &zeros[..len])
        })
    }

    /// Says that the contents of `span` mean nothing any more: its storage may be given back.
    fn release(&self, _span: VirtualSpan) -> Result<()> {
        Ok(())
    }
}

/// A virtual disk in use: written anywhere and by many threads at once, its image growing and shrinking as needed.
///
/// As of a disk with a volatile cache: what was written is read at once, and is on stable storage once a [`EditDisk::flush`]
/// that began after the write returned. Until then any part of it may be lost, also after `kill -9`.
pub trait LiveDisk: EditDisk + Disk {
    /// Makes `span` read as zeros. Its storage is given back where `may_free` says so, and kept or found otherwise.
    fn zero(&self, span: VirtualSpan, may_free: bool) -> Result<()>;

    /// Says that the contents of `span` mean nothing any more: its storage is given back as far as whole units of the
    /// image allow, and reads as zeros; the rest may keep its contents.
    fn discard(&self, span: VirtualSpan) -> Result<()>;

    /// What lies where in the image's file, all of it flushed; `None` if nothing can be laid elsewhere.
    fn occupancy(&self) -> Result<Option<Occupancy>> {
        Ok(None)
    }

    /// Moves units within the image's file: each to a free place, and what it left is free afterwards. On return all of it is
    /// on stable storage. A cut at any moment leaves each unit in one place or the other. `Refused` if a unit does not lie
    /// where it is to come from, or its place is not free. Nobody else uses the disk meanwhile.
    fn relocate(&self, _moves: &[UnitMove]) -> Result<()> {
        Err(Error::unsupported("moving units of an image in which they have their places"))
    }

    /// Whether anything was changed since the disk was taken into use, that a change of the image's tables can follow from.
    fn is_changed(&self) -> bool {
        false
    }

    /// Gives back what the image counts as taken and nothing refers to, as a change that was interrupted may leave it; says
    /// how many bytes of the file those are. Nobody else uses the disk meanwhile.
    fn reclaim(&self) -> Result<u64> {
        Ok(0)
    }

    /// Has `take` read `span` from a descriptor of a file, where all of it lies together, and says so; `false` where it does not, or
    /// that cannot be done. What is read is what [`ReadAt::read_at`] reads.
    fn lend(&self, _span: VirtualSpan, _take: Take<'_>) -> Result<bool> {
        Ok(false)
    }

    /// Makes the persistent bitmap `name` of the image say that nothing changed but `kept`, up to its granularity; on stable storage when
    /// this returns and the disk was closed: before that, the image says that the bitmap is not to be believed. `Refused` if changes are
    /// not noted in one of that name.
    fn restart_bitmap(&self, name: &str, _kept: &ExtentSet<Virtual>) -> Result<()> {
        Err(Error::refused(format!("this image has no persistent bitmaps, and so none called {name:?}")))
    }

    /// Whether a flush failed so that what the storage holds is not known any more, and every later operation fails. If not, what
    /// failed can be asked for again: the host may have room then.
    fn has_failed(&self) -> bool {
        true
    }

    /// Flushes and leaves the image as one that nobody has open, even if there is no room for what is not flushed yet. Every
    /// later change is refused.
    fn close(&self) -> Result<()> {
        self.flush()
    }
}
