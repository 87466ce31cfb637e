//! From a path to a file, within one volume.
//!
//! Invariants: links are followed on the volume alone, and only so many of them, so that every search ends; `..` never leads above the
//! root.

use block::{Error, Result};
use filesystem::{Browse, FileId, Node, NodeKind, StreamName};

use super::{missing, shown};

/// The most links in one path (Linux follows 40).
const LINKS_MAX: u32 = 40;
/// The most parts that are waited for: links put theirs in front.
const PARTS_MAX: usize = 4096;

/// A file that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// Where it is, without links.
    pub(super) path: Vec<u8>,
    pub(super) node: Node,
    /// Which other stream of it is meant.
    pub(super) stream: Option<Vec<u8>>,
}

impl Found {
    /// As the file system names its streams.
    pub(super) fn stream_name(&self) -> StreamName<'_> {
        self.stream.as_deref().map_or(StreamName::Main, StreamName::Named)
    }
}

/// What is done about a link at a path's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AtEnd {
    Follow,
    Stay,
}

/// Finds a path, a stream of a file among them. `Refused` if there is none.
pub(super) fn find(browse: &dyn Browse, path: &[u8], at_end: AtEnd) -> Result<Found> {
    let is_folder = path.ends_with(b"/") && path.len() > 1;
    let at_end = if is_folder { AtEnd::Follow } else { at_end };
    if let Some(found) = Search::new(browse, path)?.run(at_end)? {
        return match is_folder && found.node.kind != NodeKind::Directory {
            true => Err(missing(path)),
            false => Ok(found),
        };
    }
    // A name may hold a colon, but mostly what stands behind one is a stream.
    let last = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    let colon = path[last..].iter().position(|byte| *byte == b':').map(|at| last + at);
    let Some(colon) = colon.filter(|colon| *colon > last) else { return Err(missing(path)) };
    let (file, stream) = (&path[..colon], &path[colon + 1..]);
    // NTFS may tell the type as well.
    let stream = stream.strip_suffix(b":$DATA").unwrap_or(stream);
    let found = Search::new(browse, file)?.run(AtEnd::Follow)?.ok_or_else(|| missing(path))?;
    let folded = |name: &[u8]| String::from_utf8_lossy(name).to_uppercase();
    let alike = found.node.streams.iter().find(|known| folded(&known.name) == folded(stream));
    let stream = alike.ok_or_else(|| missing(path))?.name.clone();
    Ok(Found { stream: Some(stream), ..found })
}

/// A search that is under way.
struct Search<'a> {
    browse: &'a dyn Browse,
    /// The directories that were gone through, with their names; the last one is where the search is.
    folders: Vec<(FileId, Vec<u8>)>,
    /// What is still to be found, the next one last.
    parts: Vec<Vec<u8>>,
    links_left: u32,
}

impl<'a> Search<'a> {
    fn new(browse: &'a dyn Browse, path: &[u8]) -> Result<Self> {
        let mut search = Self { browse, folders: Vec::new(), parts: Vec::new(), links_left: LINKS_MAX };
        search.push(path)?;
        Ok(search)
    }

    /// Has a path be found before what else is.
    fn push(&mut self, path: &[u8]) -> Result<()> {
        let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
        self.parts.extend(parts.rev().map(<[u8]>::to_vec));
        match self.parts.len() > PARTS_MAX {
            true => Err(Error::refused("the path is too long").path(shown(path))),
            false => Ok(()),
        }
    }

    fn run(mut self, at_end: AtEnd) -> Result<Option<Found>> {
        while let Some(part) = self.parts.pop() {
            if part == b".." {
                self.folders.pop();
                continue;
            }
            let folder = self.folders.last().map_or_else(|| self.browse.root(), |(file, _)| *file);
            let Some(file) = self.browse.find(folder, &part)? else { return Ok(None) };
            let node = self.browse.node(file)?;
            match node.kind {
                NodeKind::Link if !self.parts.is_empty() || at_end == AtEnd::Follow => {
                    self.follow(file, &part)?;
                }
                NodeKind::Directory => self.folders.push((file, part)),
                _ if self.parts.is_empty() => {
                    let path = self.path(Some(&part));
                    return Ok(Some(Found { path, node, stream: None }));
                }
                _ => return Ok(None),
            }
        }
        let file = self.folders.last().map_or_else(|| self.browse.root(), |(file, _)| *file);
        let (path, node) = (self.path(None), self.browse.node(file)?);
        Ok(Some(Found { path, node, stream: None }))
    }

    fn follow(&mut self, link: FileId, name: &[u8]) -> Result<()> {
        let refused = |why: &str| Err(Error::refused(why.to_owned()).path(shown(&self.path(Some(name)))));
        let Some(left) = self.links_left.checked_sub(1) else {
            return refused("too many links lead from one to the next");
        };
        let target = self.browse.target(link)?;
        let Some(path) = target.path else {
            let text = shown(&target.text);
            return refused(&format!(
                "is a link to '{text}', which may be another volume, and is not followed"
            ));
        };
        self.links_left = left;
        if path.starts_with(b"/") {
            self.folders.clear();
        }
        self.push(&path)
    }

    fn path(&self, last: Option<&[u8]>) -> Vec<u8> {
        let names = self.folders.iter().map(|(_, name)| &name[..]).chain(last);
        let path: Vec<u8> = names.flat_map(|name| [b"/", name].concat()).collect();
        if path.is_empty() { b"/".to_vec() } else { path }
    }
}
