//! Files and block devices opened for reading.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use block::{Error, Fingerprint, HostExtent, HostFile, HostState, ReadAt, Result, User};
use extent::{Extent, ExtentSet, Host, HostOffset, HostSpan, Offset, Span};
use rustix::fs::{Advice, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::raw_file::{Kind, RawFile, unsigned};

/// A regular file or a block device, read by position from any thread.
pub struct SourceFile {
    raw: RawFile,
    /// The length when it was opened; what grows later is not seen.
    len_bytes: u64,
    identity: (u64, u64),
    /// Taken before anything was read.
    opened: Fingerprint,
    /// What the host's file system said last: most questions are about the next window of the same extent.
    last_extent: Mutex<Option<Extent<Host, HostState>>>,
}

impl SourceFile {
    /// Opens `path` for reading. `Refused` unless it is a regular file or a block device.
    pub fn open(path: impl AsRef<Path>) -> Result<Arc<Self>> {
        Self::from_raw(RawFile::open(path.as_ref(), OFlags::RDONLY)?).map(Arc::new)
    }

    /// As [`SourceFile::open`], but the host reads no more than is asked for: for metadata, which lie scattered.
    pub fn open_for_metadata(path: impl AsRef<Path>) -> Result<Arc<Self>> {
        let file = Self::from_raw(RawFile::open(path.as_ref(), OFlags::RDONLY)?)?;
        file.read_nothing_ahead();
        Ok(Arc::new(file))
    }

    /// Advice: without it all is read just as well.
    pub(crate) fn read_nothing_ahead(&self) {
        let _ = rustix::fs::fadvise(&self.raw.file, 0, None, Advice::Random);
    }

    /// Like [`SourceFile::open`]; aligned reads go past the page cache where the file system can do that.
    pub fn open_direct(path: impl AsRef<Path>) -> Result<Arc<Self>> {
        Self::from_raw(RawFile::open_direct(path.as_ref())?).map(Arc::new)
    }

    /// The same file; what is aligned goes past the page cache where the file system can do that.
    pub(crate) fn with_direct_for(mut self, access: OFlags) -> Self {
        self.raw = self.raw.with_direct(access);
        self
    }

    pub(crate) fn from_raw(raw: RawFile) -> Result<Self> {
        let opened = fingerprint_of(&raw)?;
        let Fingerprint { len_bytes, identity, .. } = opened;
        Ok(Self { raw, len_bytes, identity, opened, last_extent: Mutex::new(None) })
    }

    pub(crate) fn raw(&self) -> &RawFile {
        &self.raw
    }

    /// Has the file system asked anew: what was a hole may have been written.
    pub(crate) fn forget_extent(&self) {
        *self.last_extent.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Reads past the page cache. `false`, and nothing read, where that cannot be done.
    pub(crate) fn read_direct(&self, at: HostOffset, buf: &mut [u8]) -> Result<bool> {
        let Some(direct) = &self.raw.direct else { return Ok(false) };
        direct.read(at, buf).map_err(|error| self.raw.error("direct read", at, error))
    }

    /// The extent that holds `at`, from there on; `at` lies before the end.
    pub(crate) fn extent_at(&self, at: HostOffset) -> Result<Extent<Host, HostState>> {
        let mut last = self.last_extent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(extent) = *last
            && extent.span.contains(at)
        {
            return Ok(extent);
        }
        let extent = self.ask_extent_at(at)?;
        assert!(extent.span.contains(at), "the host map makes progress");
        *last = Some(extent);
        Ok(extent)
    }

    /// Asks the file system. The descriptor's position moves, which nothing here depends on.
    fn ask_extent_at(&self, at: HostOffset) -> Result<Extent<Host, HostState>> {
        let end = HostOffset::new(self.len_bytes);
        let extent_to = |to: u64, state| Extent::new(Span::between(at, Offset::new(to).min(end)), state);
        match rustix::fs::seek(&self.raw.file, SeekFrom::Data(at.get())) {
            Ok(data) if data > at.get() => Ok(extent_to(data, HostState::Hole)),
            Ok(_) => match rustix::fs::seek(&self.raw.file, SeekFrom::Hole(at.get())) {
                Ok(hole) if hole > at.get() => Ok(extent_to(hole, HostState::Data)),
                // No sense in the answer: data is the answer that is always safe.
                _ => Ok(extent_to(self.len_bytes, HostState::Data)),
            },
            Err(Errno::NXIO) if self.raw.current_len_bytes()? >= self.len_bytes => {
                Ok(extent_to(self.len_bytes, HostState::Hole))
            }
            Err(Errno::NXIO) => Err(Error::io(
                "the file became shorter while it was read",
                std::io::ErrorKind::UnexpectedEof.into(),
            )
            .path(&self.raw.name)
            .at(at)),
            Err(_) => Ok(extent_to(self.len_bytes, HostState::Data)),
        }
    }
}

fn fingerprint_of(raw: &RawFile) -> Result<Fingerprint> {
    let stat = raw.stat()?;
    let ns = |seconds: i64, ns: u64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
    let len_bytes = raw.current_len_bytes()?;
    Ok(match raw.kind {
        Kind::Regular => Fingerprint {
            len_bytes,
            modified_ns: ns(stat.st_mtime, stat.st_mtime_nsec),
            changed_ns: ns(stat.st_ctime, stat.st_ctime_nsec),
            identity: (stat.st_dev, stat.st_ino),
        },
        // A block device is the same one under every node that names it.
        Kind::BlockDevice => {
            Fingerprint { len_bytes, modified_ns: 0, changed_ns: 0, identity: (u64::MAX, stat.st_rdev) }
        }
    })
}

impl ReadAt<Host> for SourceFile {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.raw.read(at, buf, self.len_bytes)
    }
}

impl HostFile for SourceFile {
    fn name(&self) -> &str {
        &self.raw.name
    }

    fn path(&self) -> &Path {
        &self.raw.path
    }

    fn fingerprint(&self) -> Result<Option<Fingerprint>> {
        fingerprint_of(&self.raw).map(Some)
    }

    fn fingerprint_when_opened(&self) -> Option<Fingerprint> {
        Some(self.opened)
    }

    fn users(&self) -> Vec<User> {
        crate::users::of(&self.raw)
    }

    // The count is narrower on other machines.
    #[allow(clippy::useless_conversion)]
    fn name_count(&self) -> u64 {
        match self.raw.kind {
            Kind::Regular => self.raw.stat().map_or(1, |stat| stat.st_nlink.into()),
            Kind::BlockDevice => 1,
        }
    }

    fn allocated_bytes(&self) -> Result<u64> {
        match self.raw.kind {
            // The kernel counts in 512 bytes whatever the file system's block size (stat(2), st_blocks).
            Kind::Regular => Ok(unsigned(self.raw.stat()?.st_blocks).saturating_mul(512)),
            Kind::BlockDevice => Ok(self.len_bytes),
        }
    }

    fn host_map(&self, span: HostSpan) -> Result<Vec<Extent<Host, HostState>>> {
        if span.end().get() > self.len_bytes {
            return Err(Error::invalid("host map past the file's end").path(&self.raw.name).at(span.end()));
        }
        if self.raw.kind == Kind::BlockDevice && !span.is_empty() {
            return Ok(vec![Extent::new(span, HostState::Data)]);
        }
        let mut extents: Vec<Extent<Host, HostState>> = Vec::new();
        let mut at = span.start();
        while at < span.end() {
            let found = self.extent_at(at)?;
            let end = found.span.end().min(span.end());
            match extents.last_mut() {
                Some(last) if last.state == found.state => last.span = Span::between(last.span.start(), end),
                _ => extents.push(Extent::new(Span::between(at, end), found.state)),
            }
            at = end;
        }
        Ok(extents)
    }

    fn host_extents(&self) -> Result<Option<Vec<HostExtent>>> {
        match self.raw.kind {
            Kind::Regular => crate::fiemap::extents(&self.raw.file, &self.raw.name),
            Kind::BlockDevice => Ok(None),
        }
    }

    fn stored(&self) -> Result<Option<ExtentSet<Host>>> {
        match self.raw.kind {
            Kind::Regular => crate::fiemap::stored(&self.raw.file, &self.raw.name),
            Kind::BlockDevice => Ok(None),
        }
    }

    fn host_filesystem(&self) -> Option<String> {
        match self.raw.kind {
            Kind::Regular => crate::fiemap::filesystem_name(&self.raw.file),
            Kind::BlockDevice => None,
        }
    }

    fn identity(&self) -> Option<(u64, u64)> {
        Some(self.identity)
    }

    fn is_block_device(&self) -> bool {
        self.raw.kind == Kind::BlockDevice
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.raw.file.as_fd())
    }

    fn forget(&self, span: HostSpan) {
        self.raw.drop_cache(span);
    }
}
