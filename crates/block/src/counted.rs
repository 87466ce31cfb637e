//! A file that tells what is asked of it, before it is done.

use std::sync::Arc;

use extent::{Host, HostOffset, HostSpan, Span};

use crate::{ReadAt, Result, Take, TargetFile};

/// Who is told of what is asked of a file.
pub trait Count: Send + Sync {
    /// `len_bytes` are read at once.
    fn read(&self, _len_bytes: u64) {}

    /// `span` is written at once.
    fn write(&self, _span: HostSpan) {}

    /// `span` is made zeros, or cut off.
    fn zero(&self, _span: HostSpan) {}
}

/// A file of which `C` is told what is asked.
pub struct Counted<C> {
    file: Arc<dyn TargetFile>,
    by: Arc<C>,
}

impl<C: Count> Counted<C> {
    /// Tells `by` of all that is asked of `file`.
    pub fn new(file: Arc<dyn TargetFile>, by: Arc<C>) -> Self {
        Self { file, by }
    }
}

impl<C: Count> ReadAt<Host> for Counted<C> {
    crate::forward!(self, self.file => len_bytes);

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.by.read(buf.len() as u64);
        self.file.read_at(at, buf)
    }
}

impl<C: Count> TargetFile for Counted<C> {
    crate::forward!(self, self.file => reserve, reserve_ahead, flush, forget);

    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        // A write past every end fails.
        if let Some(span) = Span::checked(at, buf.len() as u64) {
            self.by.write(span);
        }
        self.file.write_at(at, buf)
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        let end = HostOffset::new(self.len_bytes().max(len_bytes));
        self.by.zero(Span::between(HostOffset::new(len_bytes), end));
        self.file.set_len(len_bytes)
    }

    fn zero(&self, span: HostSpan) -> Result<()> {
        self.by.zero(span);
        self.file.zero(span)
    }

    fn punch(&self, span: HostSpan) -> Result<()> {
        self.by.zero(span);
        self.file.punch(span)
    }

    fn lend(&self, span: HostSpan, take: Take<'_>) -> Result<bool> {
        let is_lent = self.file.lend(span, take)?;
        if is_lent {
            self.by.read(span.len_bytes());
        }
        Ok(is_lent)
    }

    fn read_stored(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.by.read(buf.len() as u64);
        self.file.read_stored(at, buf)
    }
}
