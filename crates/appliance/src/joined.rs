//! A file that lies in chunks, as one file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Fingerprint, HostFile, HostState, ReadAt, Result, User, check_bounds};
use extent::{Extent, Host, HostOffset, HostSpan, Offset, Span};

/// Files one behind the other. Of each it has what was there when it was opened.
pub struct Joined {
    /// Each with where it begins.
    chunks: Vec<(u64, Arc<dyn HostFile>)>,
    len_bytes: u64,
    path: PathBuf,
    name: String,
}

impl Joined {
    /// The file that `chunks` are in this order. Both its name and its path are `path`, which need not exist.
    pub fn new(chunks: Vec<Arc<dyn HostFile>>, path: PathBuf) -> Self {
        let mut len_bytes = 0_u64;
        let chunks = chunks.into_iter().map(|chunk| {
            let start = len_bytes;
            len_bytes = len_bytes.saturating_add(chunk.len_bytes());
            (start, chunk)
        });
        let chunks = chunks.collect();
        let name = path.display().to_string();
        Self { chunks, len_bytes, path, name }
    }

    fn files(&self) -> impl Iterator<Item = &dyn HostFile> {
        self.chunks.iter().map(|(_, file)| &**file)
    }

    /// What of `span` lies in which file, and where there.
    fn parts(&self, span: HostSpan) -> impl Iterator<Item = (&dyn HostFile, u64, HostSpan)> {
        self.chunks.iter().filter_map(move |(start, file)| {
            let whole = Span::new(Offset::new(*start), file.len_bytes());
            let part = whole.intersect(&span).filter(|part| !part.is_empty())?;
            let within = Span::new(Offset::new(part.start().get() - start), part.len_bytes());
            Some((&**file, *start, within))
        })
    }
}

/// What changes when that of one changes: the kernel's times only ever grow.
fn of_all(all: &[Fingerprint]) -> Option<Fingerprint> {
    let first = all.first()?;
    Some(Fingerprint {
        len_bytes: all.iter().map(|one| one.len_bytes).fold(0, u64::saturating_add),
        modified_ns: all.iter().map(|one| one.modified_ns).max()?,
        changed_ns: all.iter().map(|one| one.changed_ns).fold(0, i128::saturating_add),
        identity: first.identity,
    })
}

impl ReadAt<Host> for Joined {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes)?;
        let mut rest = buf;
        for (file, _, part) in self.parts(Span::new(at, rest.len() as u64)) {
            let len = usize::try_from(part.len_bytes()).expect("a part of a buffer");
            let (now, later) = rest.split_at_mut(len);
            file.read_at(part.start(), now)?;
            rest = later;
        }
        Ok(())
    }
}

impl HostFile for Joined {
    fn name(&self) -> &str {
        &self.name
    }

    fn path(&self) -> &Path {
        &self.path
    }

    /// Of all chunks together; `None` if one has none.
    fn fingerprint(&self) -> Result<Option<Fingerprint>> {
        let all = self.files().map(HostFile::fingerprint).collect::<Result<Option<Vec<_>>>>()?;
        Ok(all.as_deref().and_then(of_all))
    }

    fn fingerprint_when_opened(&self) -> Option<Fingerprint> {
        let all = self.files().map(HostFile::fingerprint_when_opened).collect::<Option<Vec<_>>>()?;
        of_all(&all)
    }

    fn users(&self) -> Vec<User> {
        self.files().flat_map(HostFile::users).collect()
    }

    fn holders(&self) -> Vec<(u64, u64)> {
        self.files().flat_map(HostFile::holders).collect()
    }

    fn allocated_bytes(&self) -> Result<u64> {
        self.files().map(HostFile::allocated_bytes).sum()
    }

    fn host_map(&self, span: HostSpan) -> Result<Vec<Extent<Host, HostState>>> {
        let mut extents = Vec::new();
        for (file, start, part) in self.parts(span) {
            let found = file.host_map(part)?;
            extents.extend(found.into_iter().map(|extent| {
                let at = Offset::new(extent.span.start().get() + start);
                Extent::new(Span::new(at, extent.span.len_bytes()), extent.state)
            }));
        }
        Ok(extents)
    }

    fn host_filesystem(&self) -> Option<String> {
        self.files().next()?.host_filesystem()
    }

    fn forget(&self, span: HostSpan) {
        self.parts(span).for_each(|(file, _, part)| file.forget(part));
    }
}
