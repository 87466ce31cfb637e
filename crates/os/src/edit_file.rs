//! An existing file or block device, open to be changed in place.
//!
//! Invariants:
//! - nobody else uses it, as far as that can be known, and QEMU does not open it as long as this value lives;
//! - its length does not change;
//! - after a flush that failed every operation does.
//!
//! Writes go through the page cache: those of some MiB with a flush behind them are as fast that way as with direct I/O,
//! and need no alignment. What is read from the storage, as a proof that it is there, goes past the cache.

use std::path::Path;

use block::{Error, HostFile, ReadAt, Result, TargetFile, check_bounds};
use extent::{Host, HostOffset, HostSpan, Span};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use crate::SourceFile;
use crate::direct::Direct;
use crate::flushed::Flushed;
use crate::locks;
use crate::raw_file::{Kind, OPEN_FLAGS, RawFile, io_error, is_unsupported};

/// A file or block device held alone, for reading and writing.
pub struct EditFile {
    source: SourceFile,
    direct: Option<Direct>,
    flushed: Flushed,
}

impl EditFile {
    /// Opens `path` for reading and writing.
    ///
    /// `Refused` if it is neither a regular file nor a block device; if somebody uses it: QEMU or another program that
    /// locks it, who has it open for writing, as a loop device or, if it is a block device, mounted or otherwise claimed;
    /// and if the file has further names, under which it would change as well.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        // Opening for writing can have effects, and hides who else does it.
        let looked_at = RawFile::open(path, OFlags::RDONLY)?;
        locks::check_unused(&looked_at)?;
        let raw = open_for_writing(path, looked_at.kind)?;
        let (before, now) = (looked_at.stat()?, raw.stat()?);
        if (before.st_dev, before.st_ino, before.st_rdev) != (now.st_dev, now.st_ino, now.st_rdev) {
            return Err(Error::refused("was replaced while it was opened").path(path.display()));
        }
        if raw.kind == Kind::Regular && now.st_nlink > 1 {
            return Err(Error::refused(format!("has {} names (hard links): it would change under all of them", now.st_nlink))
                .path(path.display())
                .hint("if the others are backups or clones, give this one a copy of its own: 'cp' it, and use the copy"));
        }
        locks::take(&raw)?;
        let direct = Direct::open(&raw.file, OFlags::RDONLY);
        Ok(Self { source: SourceFile::from_raw(raw)?, direct, flushed: Flushed::default() })
    }

    /// The same file; aligned reads and writes go past the page cache where the file system can do that.
    pub(crate) fn with_direct(self) -> Self {
        // What still goes through it are tables, which lie scattered.
        self.source.read_nothing_ahead();
        Self { source: self.source.with_direct_for(OFlags::RDWR), ..self }
    }

    /// Gives the storage of `span` back to the host; it reads as zeros then. `false`, and nothing changed, where that
    /// cannot be done.
    pub fn punch(&self, span: HostSpan) -> Result<bool> {
        self.check(span)?;
        if span.is_empty() || self.raw().kind == Kind::BlockDevice {
            return Ok(false);
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = rustix::fs::fallocate(&self.raw().file, flags, span.start().get(), span.len_bytes());
        self.source.forget_extent();
        match punched {
            Ok(()) => Ok(true),
            Err(error) if is_unsupported(error) => Ok(false),
            Err(error) => Err(self.raw().error("give storage back", span.start(), error)),
        }
    }

    pub(crate) fn raw(&self) -> &RawFile {
        self.source.raw()
    }

    /// Fails after a failed flush.
    pub(crate) fn check_flushed(&self) -> Result<()> {
        self.flushed.check(self.raw())
    }

    /// The host's map of the file changed.
    pub(crate) fn forget_extent(&self) {
        self.source.forget_extent();
    }

    /// Past the page cache; where there is no direct I/O, after its pages were dropped, as far as they are clean. The file
    /// has `len_bytes`, and holds all that is asked for.
    pub(crate) fn read_past_cache(&self, at: HostOffset, buf: &mut [u8], len_bytes: u64) -> Result<()> {
        if let Some(direct) = &self.direct
            && direct.read_all(at, buf).map_err(|error| self.raw().error("direct read", at, error))?
        {
            return Ok(());
        }
        self.raw().drop_cache(Span::new(at, buf.len() as u64));
        self.raw().read(at, buf, len_bytes)
    }

    /// Fails after a failed flush, and for what is not within the file.
    fn check(&self, span: HostSpan) -> Result<()> {
        self.flushed.check(self.raw())?;
        if span.end().get() <= self.source.len_bytes() {
            return Ok(());
        }
        Err(Error::invalid("change past the end of a file whose length is fixed")
            .path(&self.raw().name)
            .at(span.end()))
    }

    fn span(&self, at: HostOffset, len: usize) -> Result<HostSpan> {
        check_bounds(at, len, self.source.len_bytes()).map_err(|error| error.path(&self.raw().name))?;
        Ok(Span::new(at, len as u64))
    }
}

fn open_for_writing(path: &Path, kind: Kind) -> Result<RawFile> {
    // Without O_CREAT, O_EXCL claims a block device (open(2)).
    let claim = if kind == Kind::BlockDevice { OFlags::EXCL } else { OFlags::empty() };
    let opened = rustix::fs::open(path, OFlags::RDWR | claim | OPEN_FLAGS, rustix::fs::Mode::empty());
    let fd = opened.map_err(|error| match error {
        Errno::BUSY => Error::refused("is in use: mounted, or held by another program").path(path.display()),
        error => io_error("open for writing", path, error),
    })?;
    let raw = RawFile::adopt(fd, path)?;
    if raw.kind == kind {
        Ok(raw)
    } else {
        Err(Error::refused("was replaced while it was opened").path(path.display()))
    }
}

impl ReadAt<Host> for EditFile {
    block::forward!(self, self.source => len_bytes);

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.flushed.check(self.raw())?;
        self.source.read_at(at, buf)
    }
}

impl HostFile for EditFile {
    block::forward!(
        self, self.source => name, path, fingerprint, allocated_bytes, host_map, host_extents, stored, host_filesystem,
        identity, is_block_device, forget
    );
}

impl TargetFile for EditFile {
    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        self.check(self.span(at, buf.len())?)?;
        let written = self.raw().write(at, buf);
        // What was a hole is one no longer.
        self.source.forget_extent();
        written
    }

    /// Only checks: the length is fixed.
    fn set_len(&self, len_bytes: u64) -> Result<()> {
        if len_bytes == self.source.len_bytes() { Ok(()) } else { self.check(Span::from_zero(u64::MAX)) }
    }

    fn reserve(&self, span: HostSpan) -> Result<()> {
        self.check(span)?;
        if span.is_empty() || self.raw().kind == Kind::BlockDevice {
            return Ok(());
        }
        match rustix::fs::fallocate(
            &self.raw().file,
            FallocateFlags::KEEP_SIZE,
            span.start().get(),
            span.len_bytes(),
        ) {
            // Where storage cannot be reserved it is found when it is written.
            Ok(()) => Ok(()),
            Err(error) if is_unsupported(error) => Ok(()),
            Err(error) => Err(self.raw().error("reserve", span.start(), error)),
        }
    }

    /// Writes zeros: the storage stays.
    fn zero(&self, span: HostSpan) -> Result<()> {
        self.check(span)?;
        let written = self.raw().write_zeros(span);
        self.source.forget_extent();
        written
    }

    fn flush(&self) -> Result<()> {
        self.flushed.flush(self.raw())
    }

    fn read_stored(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.span(at, buf.len())?;
        self.check_flushed()?;
        self.read_past_cache(at, buf, self.source.len_bytes())
    }

    /// Where that cannot be done, zeros are written.
    fn punch(&self, span: HostSpan) -> Result<()> {
        if Self::punch(self, span)? { Ok(()) } else { self.zero(span) }
    }

    fn forget(&self, span: HostSpan) {
        self.raw().drop_cache(span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    #[test]
    fn after_a_failed_flush_nothing_more_is_done() {
        let dir = testkit::scratch();
        let path = dir.path().join("disk");
        std::fs::write(&path, [7; 8192]).unwrap();
        let file = EditFile::open(&path).unwrap();
        file.flush().unwrap();
        file.flushed.fail();
        let span = Span::from_zero(512);
        let results = [
            file.flush(),
            file.write_at(HostOffset::ZERO, &[1]),
            file.read_at(HostOffset::ZERO, &mut [0]),
            file.read_stored(HostOffset::ZERO, &mut [0]),
            file.zero(span),
            file.reserve(span),
            file.punch(span).map(drop),
        ];
        for result in results {
            assert_eq!(result.err().unwrap().kind(), ErrorKind::Io);
        }
        assert_eq!(std::fs::read(&path).unwrap(), [7; 8192]);
    }
}
