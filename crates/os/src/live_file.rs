//! An existing file or block device in use as a disk: held alone, written anywhere, growing and shrinking.
//!
//! Invariants: those of [`EditFile`], but that the length may change.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use block::{Error, HostFile, HostState, ReadAt, Result, Take, TargetFile, check_bounds};
use extent::{Extent, ExtentSet, Host, HostOffset, HostSpan, Offset, Span};
use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::EditFile;
use crate::new_file::folder_of;
use crate::raw_file::{Kind, is_unsupported};
use crate::storage_promise::StoragePromise;

/// What is asked to be given back to see whether it can be.
const PROBE_BYTES: u64 = 1 << 20;

/// A file or block device held alone, of which any part may be written, and more.
pub struct LiveFile {
    file: EditFile,
    len_bytes: AtomicU64,
    kept: StoragePromise,
}

impl LiveFile {
    /// Opens `path`. Refuses what [`EditFile::open`] refuses.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let file = EditFile::open(path)?;
        let len_bytes = AtomicU64::new(ReadAt::<Host>::len_bytes(&file));
        Ok(Self { file, len_bytes, kept: StoragePromise::Nothing })
    }

    /// With a promise: what is given back or zeroed keeps this.
    #[must_use]
    pub fn keeping(mut self, kept: StoragePromise) -> Self {
        self.kept = kept;
        self
    }

    /// Like [`LiveFile::open`]; aligned reads and writes go past the page cache where the file system can do that.
    pub fn open_direct(path: impl AsRef<Path>) -> Result<Self> {
        let Self { file, len_bytes, kept } = Self::open(path)?;
        Ok(Self { file: file.with_direct(), len_bytes, kept })
    }

    /// `Unsupported` if storage cannot be given back here: zeros would be written instead.
    pub fn check_gives_back(&self) -> Result<()> {
        let can = if self.is_device() {
            crate::queue::gives_back(self.file.raw().stat()?.st_rdev)
        } else {
            makes_holes(folder_of(self.path()))
        };
        if can {
            return Ok(());
        }
        let where_to = if self.is_device() {
            "the device takes no discards"
        } else {
            "the host's file system makes no holes"
        };
        Err(Error::unsupported(format!("storage cannot be given back: {where_to}"))
            .path(self.name())
            .hint("copy the disk to a new one instead"))
    }

    fn is_device(&self) -> bool {
        self.file.raw().kind == Kind::BlockDevice
    }

    fn grown_to(&self, len_bytes: u64) {
        self.len_bytes.fetch_max(len_bytes, Ordering::AcqRel);
        self.file.forget_extent();
    }

    /// A device has the length that it has.
    fn check_room(&self, end: HostOffset) -> Result<()> {
        if self.is_device() && end.get() > self.len_bytes() {
            return Err(Error::invalid("write past the end of a block device").path(self.name()).at(end));
        }
        Ok(())
    }

    /// `false`, and nothing changed, if the file system does not do it.
    fn allocate(&self, flags: FallocateFlags, span: HostSpan, what: &str) -> Result<bool> {
        let raw = self.file.raw();
        match rustix::fs::fallocate(&raw.file, flags, span.start().get(), span.len_bytes()) {
            Ok(()) => Ok(true),
            Err(error) if is_unsupported(error) => Ok(false),
            Err(error) => Err(raw.error(what, span.start(), error)),
        }
    }
}

/// Whether the file system makes holes, tried on a file without a name: on the disk's own it would leave another time of
/// change. Where no such file can be made, nothing speaks against it.
fn makes_holes(folder: &Path) -> bool {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR) else { return true };
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    !rustix::fs::fallocate(&file, flags, 0, PROBE_BYTES).is_err_and(is_unsupported)
}

/// What reserves storage by its own rules needs.
impl LiveFile {
    pub(crate) fn std_file(&self) -> &File {
        &self.file.raw().file
    }

    /// What of `window` has storage; `None` if the file system does not tell.
    pub(crate) fn allocated_within(&self, window: HostSpan) -> Result<Option<ExtentSet<Host>>> {
        crate::fiemap::allocated(self.std_file(), self.name(), window)
    }

    /// What of `window` holds data or may, wherever these are: also behind the length that the file had when it was opened.
    pub(crate) fn data_within(&self, window: HostSpan) -> Result<ExtentSet<Host>> {
        let mut data = ExtentSet::new();
        let mut at = window.start();
        while at < window.end() {
            let start = match rustix::fs::seek(self.std_file(), SeekFrom::Data(at.get())) {
                Ok(start) => Offset::new(start).max(at),
                // Nothing from there on.
                Err(Errno::NXIO) => break,
                Err(error) => return Err(self.file.raw().error("look for data", at, error)),
            };
            if start >= window.end() {
                break;
            }
            let hole = rustix::fs::seek(self.std_file(), SeekFrom::Hole(start.get()));
            let end = hole.map_err(|error| self.file.raw().error("look for a hole", start, error))?;
            at = Offset::new(end).min(window.end()).max(start.plus(1));
            data.push(Span::between(start, at));
        }
        Ok(data)
    }

    /// Gives `span` storage and leaves the length as it is. `false` where that cannot be done.
    pub(crate) fn keep_room(&self, span: HostSpan) -> Result<bool> {
        self.file.check_flushed()?;
        let kept = self.allocate(FallocateFlags::KEEP_SIZE, span, "reserve");
        self.file.forget_extent();
        kept
    }

    /// Takes the storage of `span`, below the end, which was never written, back. `false` where that cannot be done.
    pub(crate) fn give_room_back(&self, span: HostSpan) -> Result<bool> {
        self.file.check_flushed()?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let given = self.allocate(flags, span, "give storage back");
        self.file.forget_extent();
        given
    }

    /// Takes all storage past the end back. Nobody may write meanwhile.
    pub(crate) fn cut_off_room_past_end(&self) -> Result<()> {
        self.file.check_flushed()?;
        let end = self.len_bytes();
        // Not all file systems punch holes past the end, but all let go of what is there when the length is set.
        rustix::fs::ftruncate(self.std_file(), end)
            .map_err(|error| self.file.raw().error("set the length", Offset::new(end), error))
    }
}

impl ReadAt<Host> for LiveFile {
    fn len_bytes(&self) -> u64 {
        self.len_bytes.load(Ordering::Acquire)
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.file.check_flushed()?;
        check_bounds(at, buf.len(), self.len_bytes()).map_err(|error| error.path(self.name()))?;
        self.file.raw().read(at, buf, self.len_bytes())
    }
}

impl HostFile for LiveFile {
    block::forward!(
        self, self.file => name, path, fingerprint, allocated_bytes, host_extents, stored, host_filesystem, identity
    );

    fn host_map(&self, span: HostSpan) -> Result<Vec<Extent<Host, HostState>>> {
        if self.is_device() {
            return self.file.host_map(span);
        }
        check_bounds(span.start(), usize::try_from(span.len_bytes()).unwrap_or(usize::MAX), self.len_bytes())
            .map_err(|error| error.path(self.name()))?;
        let data = self.data_within(span)?;
        let holes = data.invert(span);
        let of = |set: &ExtentSet<Host>, state| {
            set.iter().map(|extent| Extent::new(extent, state)).collect::<Vec<_>>()
        };
        let mut extents = [of(&data, HostState::Data), of(&holes, HostState::Hole)].concat();
        extents.sort_unstable_by_key(|extent| extent.span.start());
        Ok(extents)
    }

    fn is_block_device(&self) -> bool {
        self.is_device()
    }
}

impl TargetFile for LiveFile {
    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        self.file.check_flushed()?;
        let end =
            at.checked_add(buf.len() as u64).ok_or_else(|| Error::invalid("write past every end").at(at))?;
        self.check_room(end)?;
        self.file.raw().write(at, buf)?;
        if !buf.is_empty() {
            self.grown_to(end.get());
        }
        Ok(())
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.file.check_flushed()?;
        if len_bytes == self.len_bytes() {
            return Ok(());
        }
        self.check_room(Offset::new(len_bytes))?;
        if !self.is_device() {
            let raw = self.file.raw();
            let end = Offset::new(len_bytes);
            rustix::fs::ftruncate(&raw.file, len_bytes)
                .map_err(|error| raw.error("set the length", end, error))?;
            self.len_bytes.store(len_bytes, Ordering::Release);
            self.file.forget_extent();
        }
        Ok(())
    }

    fn reserve(&self, span: HostSpan) -> Result<()> {
        self.file.check_flushed()?;
        self.check_room(span.end())?;
        if span.is_empty() || self.is_device() {
            return Ok(());
        }
        if self.allocate(FallocateFlags::empty(), span, "reserve")? {
            self.grown_to(span.end().get());
        } else if span.end().get() > self.len_bytes() {
            // Where storage cannot be reserved it is found when it is written.
            self.set_len(span.end().get())?;
        }
        Ok(())
    }

    fn zero(&self, span: HostSpan) -> Result<()> {
        self.file.check_flushed()?;
        self.check_room(span.end())?;
        if span.is_empty() {
            return Ok(());
        }
        let is_written = self.kept == StoragePromise::Written;
        if is_written || !self.allocate(FallocateFlags::ZERO_RANGE, span, "zero")? {
            self.file.raw().write_zeros(span)?;
        }
        self.grown_to(span.end().get());
        Ok(())
    }

    fn punch(&self, span: HostSpan) -> Result<()> {
        self.file.check_flushed()?;
        let Some(span) = span.intersect(&Span::from_zero(self.len_bytes())) else { return Ok(()) };
        if self.kept != StoragePromise::Nothing {
            return self.zero(span);
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if !self.allocate(flags, span, "give storage back")? {
            self.file.raw().write_zeros(span)?;
        }
        self.file.forget_extent();
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.file.flush()
    }

    fn read_stored(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.file.check_flushed()?;
        check_bounds(at, buf.len(), self.len_bytes()).map_err(|error| error.path(self.name()))?;
        self.file.read_past_cache(at, buf, self.len_bytes())
    }

    fn forget(&self, span: HostSpan) {
        TargetFile::forget(&self.file, span);
    }

    /// Not past the page cache.
    fn lend(&self, span: HostSpan, take: Take<'_>) -> Result<bool> {
        self.file.check_flushed()?;
        if self.file.raw().direct.is_some() || span.end().get() > self.len_bytes() {
            return Ok(false);
        }
        take(self.std_file().as_fd(), span.start()).map(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    #[test]
    fn it_grows_and_shrinks_and_reads_what_was_written() {
        grows_and_shrinks(|path| LiveFile::open(path));
    }

    #[test]
    fn past_the_page_cache_it_does_the_same() {
        grows_and_shrinks(|path| LiveFile::open_direct(path));
        let dir = testkit::scratch();
        let path = dir.path().join("disk");
        std::fs::write(&path, [7; 8192]).unwrap();
        let file = LiveFile::open_direct(&path).unwrap();
        let mut page = block::AlignedBuffer::new(8192);
        // Direct and through the cache by turns, over each other.
        for round in 1..=20u8 {
            page.fill(round);
            file.write_at(Offset::new(4096 * u64::from(round)), &page).unwrap();
            file.write_at(Offset::new(4096 * u64::from(round) + 100), &[round + 100; 1000]).unwrap();
            page.fill(0);
            file.read_at(Offset::new(4096 * u64::from(round)), &mut page).unwrap();
            assert_eq!(
                (page[99], page[100], page[1099], page[1100]),
                (round, round + 100, round + 100, round)
            );
            assert!(page[1100..].iter().all(|byte| *byte == round));
        }
        file.flush().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 4096 * 22);
        assert!(
            bytes[..4096].iter().all(|byte| *byte == 7) && bytes[4096 * 21..].iter().all(|byte| *byte == 20)
        );
    }

    fn grows_and_shrinks(open: impl Fn(&Path) -> Result<LiveFile>) {
        let dir = testkit::scratch();
        let path = dir.path().join("disk");
        std::fs::write(&path, [7; 8192]).unwrap();
        let file = open(&path).unwrap();
        file.write_at(Offset::new(100_000), &[5; 512]).unwrap();
        assert_eq!(ReadAt::<Host>::len_bytes(&file), 100_512);
        let mut buf = [1; 1024];
        file.read_at(Offset::new(100_512 - 1024), &mut buf).unwrap();
        assert_eq!((buf[511], buf[512]), (0, 5));
        file.reserve(Span::new(Offset::new(200_000), 4096)).unwrap();
        assert_eq!(path.metadata().unwrap().len(), 204_096);
        file.zero(Span::new(Offset::ZERO, 4096)).unwrap();
        file.punch(Span::new(Offset::new(100_000), 1 << 20)).unwrap();
        file.flush().unwrap();
        file.read_stored(Offset::new(4096), &mut buf).unwrap();
        assert_eq!(buf, [7; 1024]);
        file.read_at(Offset::new(100_000), &mut buf[..512]).unwrap();
        assert_eq!(buf[..512], [0; 512]);
        file.set_len(8192).unwrap();
        assert_eq!(path.metadata().unwrap().len(), 8192);
        assert_eq!(file.read_at(Offset::new(8192), &mut [0]).err().unwrap().kind(), ErrorKind::Invalid);
        assert_eq!(open(&path).err().unwrap().kind(), ErrorKind::Refused, "held alone");
    }
}
