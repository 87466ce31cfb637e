//! A part of a host file as a file of its own: a member of an archive, read where it lies.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{HostFile, HostState, ReadAt, Result, check_bounds};
use extent::{Extent, Host, HostOffset, HostSpan, Offset, Span};

/// A span of a file.
pub struct Window {
    file: Arc<dyn HostFile>,
    span: HostSpan,
    path: PathBuf,
    name: String,
}

impl Window {
    /// The file that `span` of `file` is. Both its name and its path are `path`, which need not exist. The span lies within the file.
    pub fn new(file: Arc<dyn HostFile>, span: HostSpan, path: PathBuf) -> Self {
        assert!(span.end().get() <= file.len_bytes(), "a window lies within its file");
        let name = path.display().to_string();
        Self { file, span, path, name }
    }

    fn beneath(&self, at: HostOffset) -> HostOffset {
        self.span.start().plus(at.get())
    }
}

impl ReadAt<Host> for Window {
    fn len_bytes(&self) -> u64 {
        self.span.len_bytes()
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes())?;
        self.file.read_at(self.beneath(at), buf)
    }
}

impl HostFile for Window {
    block::forward!(self, self.file => fingerprint, fingerprint_when_opened, users, holders, host_filesystem);

    fn name(&self) -> &str {
        &self.name
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn allocated_bytes(&self) -> Result<u64> {
        let extents = self.host_map(Span::from_zero(self.len_bytes()))?;
        let data = extents.iter().filter(|extent| extent.state == HostState::Data);
        Ok(data.map(|extent| extent.span.len_bytes()).sum())
    }

    fn host_map(&self, span: HostSpan) -> Result<Vec<Extent<Host, HostState>>> {
        let beneath = Span::new(self.beneath(span.start()), span.len_bytes());
        let mut extents = self.file.host_map(beneath)?;
        for extent in &mut extents {
            let start = Offset::new(extent.span.start().get() - self.span.start().get());
            extent.span = Span::new(start, extent.span.len_bytes());
        }
        Ok(extents)
    }

    fn forget(&self, span: HostSpan) {
        self.file.forget(Span::new(self.beneath(span.start()), span.len_bytes()));
    }
}
