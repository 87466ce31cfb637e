//! An existing block device as a target.

use std::os::fd::OwnedFd;
use std::path::Path;

use block::{Error, ReadAt, Result, TargetFile};
use extent::{Host, HostOffset, HostSpan, Offset, Span};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::direct::Direct;
use crate::new_file::zero;
use crate::raw_file::{Kind, OPEN_FLAGS, RawFile, io_error};
use crate::requests::{OfTarget, Request, client};

/// What the device is asked to zero at once: the call cannot be interrupted.
const ZERO_STEP_BYTES: u64 = 1 << 30;

/// Multiples of it suit every device.
const ZERO_ALIGN_BYTES: u64 = 4096;

/// A block device, opened for this process alone. Its size is fixed and its old contents stay where nothing is
/// written.
pub struct DeviceTarget {
    raw: RawFile,
    len_bytes: u64,
    identity: (u64, u64),
}

impl DeviceTarget {
    /// Opens `path` for reading and writing. `Refused` if it is not a block device, or in use: mounted, part
    /// of another device, or opened exclusively by another program.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let fd = match client() {
            Some(broker) => broker.open::<()>(&Request::OfTarget(OfTarget::Device(path.into())))?.1,
            None => Self::claim(path)?,
        };
        let raw = RawFile::adopt(fd, path)?;
        Self::check_kind(raw.kind, path)?;
        let len_bytes = raw.current_len_bytes()?;
        let identity = (u64::MAX, raw.stat()?.st_rdev);
        Ok(Self { raw, len_bytes, identity })
    }

    /// Opens it, by a process that is not confined.
    pub(crate) fn claim(path: &Path) -> Result<OwnedFd> {
        let stat = rustix::fs::stat(path).map_err(|error| io_error("open", path, error))?;
        Self::check_kind(Kind::of(&stat, path)?, path)?;
        // Without O_CREAT, O_EXCL claims a block device (open(2)).
        let flags = OFlags::RDWR | OFlags::EXCL | OPEN_FLAGS;
        rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
            Errno::BUSY => {
                Error::refused("is in use: mounted, or held by another program").path(path.display())
            }
            Errno::ROFS | Errno::ACCESS => io_error("open for writing", path, error),
            error => io_error("open", path, error),
        })
    }

    /// Like [`DeviceTarget::open`]; aligned writes go past the page cache.
    pub fn open_direct(path: impl AsRef<Path>) -> Result<Self> {
        let mut device = Self::open(path)?;
        device.raw.direct = Direct::open(&device.raw.file, OFlags::RDWR);
        Ok(device)
    }

    /// What a source on the same device answers to [`block::HostFile::identity`].
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    fn check_kind(kind: Kind, path: &Path) -> Result<()> {
        match kind {
            Kind::BlockDevice => Ok(()),
            Kind::Regular => Err(Error::refused("is a file, not a block device").path(path.display())),
        }
    }

    fn check_fits(&self, end: HostOffset) -> Result<()> {
        if end.get() <= self.len_bytes {
            return Ok(());
        }
        Err(self.raw.error(
            "the device is too small",
            end,
            std::io::Error::from(std::io::ErrorKind::StorageFull),
        ))
    }
}

impl ReadAt<Host> for DeviceTarget {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.raw.read(at, buf, self.len_bytes)
    }
}

impl TargetFile for DeviceTarget {
    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        self.check_fits(Offset::new(at.get().saturating_add(buf.len() as u64)))?;
        self.raw.write(at, buf)
    }

    /// Only checks that it fits: a device's length is fixed.
    fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.check_fits(Offset::new(len_bytes))
    }

    fn reserve(&self, span: HostSpan) -> Result<()> {
        self.check_fits(span.end())
    }

    fn prepare_memory(&self, memory: &mut [u8]) {
        self.raw.prepare_memory(memory);
    }

    /// The device zeroes whole pages; the rest is written.
    fn zero(&self, span: HostSpan) -> Result<()> {
        self.check_fits(span.end())?;
        let first = span.start().get().next_multiple_of(ZERO_ALIGN_BYTES);
        let last = span.end().get() / ZERO_ALIGN_BYTES * ZERO_ALIGN_BYTES;
        if first >= last {
            return self.raw.write_zeros(span);
        }
        let (first, last) = (Offset::new(first), Offset::new(last));
        self.raw.write_zeros(Span::between(span.start(), first))?;
        for step in Span::between(first, last).split(ZERO_STEP_BYTES) {
            zero(&self.raw, step)?;
        }
        self.raw.write_zeros(Span::between(last, span.end()))
    }

    fn flush(&self) -> Result<()> {
        self.raw.flush()
    }

    fn forget(&self, span: HostSpan) {
        self.raw.drop_cache(span);
    }
}
