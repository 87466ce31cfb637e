//! A host file as the virtual disk that it holds in raw form, for changes in place.

use block::{EditDisk, ReadAt, Result, TargetFile, check_bounds};
use extent::{HostOffset, HostSpan, Virtual, VirtualOffset, VirtualSpan};

/// A raw disk in `file`.
pub struct EditFile<'a>(pub &'a dyn TargetFile);

impl ReadAt<Virtual> for EditFile<'_> {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.0.read_at(HostOffset::new(at.get()), buf)
    }
}

impl EditDisk for EditFile<'_> {
    /// Never makes the disk larger.
    fn write_at(&self, at: VirtualOffset, buf: &[u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.0.len_bytes())?;
        self.0.write_at(HostOffset::new(at.get()), buf)
    }

    fn write_zeros(&self, span: VirtualSpan) -> Result<()> {
        let len = usize::try_from(span.len_bytes()).unwrap_or(usize::MAX);
        check_bounds(span.start(), len, self.0.len_bytes())?;
        self.0.punch(HostSpan::new(HostOffset::new(span.start().get()), span.len_bytes()))
    }

    fn flush(&self) -> Result<()> {
        self.0.flush()
    }

    fn read_stored(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.read_at(at, buf)
    }
}
