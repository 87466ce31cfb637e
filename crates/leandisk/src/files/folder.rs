//! Files extracted into a folder of this host.

use std::fs::File;
use std::io::Error as IoError;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use block::{Error, ErrorKind, Result};
use extent::FileOffset;
use extraction::{Filler, Item as Filled, Kept, SpecialFile};
use filesystem::{Contents, Node, Special};
use os::ExtractFolder;

use super::cat::PIECE_BYTES;
use super::shown;
use super::sink::{Item, Sink};
use crate::Cancel;

/// See the module.
pub(super) struct FolderSink {
    filler: Filler<ExtractFolder>,
    buffer: Vec<u8>,
}

impl FolderSink {
    pub(super) fn new(path: &Path, force: bool) -> Result<Self> {
        let filler = Filler::new(ExtractFolder::begin(path, force)?);
        Ok(Self { filler, buffer: vec![0; PIECE_BYTES] })
    }
}

/// Writes what is in a file; holes stay holes.
fn write(file: &File, contents: &dyn Contents, cancel: &Cancel, buffer: &mut [u8]) -> Result<()> {
    let failed = |error: IoError| Error::io("write", error);
    let mut at = FileOffset::ZERO;
    while let Some(span) = contents.next_data(at)? {
        at = span.start();
        while at < span.end() {
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::interrupted());
            }
            let left = span.end().get() - at.get();
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let piece = &mut buffer[..len];
            contents.read_at(at, piece)?;
            file.write_all_at(piece, at.get()).map_err(failed)?;
            at = at.plus(len as u64);
        }
    }
    file.set_len(contents.len_bytes()).map_err(failed)
}

fn kept(node: &Node) -> Kept {
    let time = |time: Option<filesystem::Time>| time.map(|time| (time.seconds, time.nanoseconds));
    Kept {
        mode: node.unix.map(|unix| unix.mode),
        owner: node.unix.map(|unix| (unix.uid, unix.gid)),
        modified: time(node.modified),
        accessed: time(node.accessed),
    }
}

/// The item as it is filled in, for one call.
fn filled<T>(item: Item<'_>, act: impl FnOnce(Filled<'_>) -> T) -> T {
    let attributes = item.attributes.iter().map(|attribute| (&attribute.name[..], &attribute.value[..]));
    let attributes: Vec<_> = attributes.collect();
    act(Filled { names: item.names, kept: &kept(item.node), attributes: &attributes })
}

impl Sink for FolderSink {
    fn folder(&mut self, item: Item<'_>) -> Result<()> {
        filled(item, |item| self.filler.folder(item))
    }

    fn file(&mut self, item: Item<'_>, contents: &dyn Contents, cancel: &Cancel) -> Result<()> {
        let Self { filler, buffer } = self;
        let written = filled(item, |item| filler.file(item, |file| write(file, contents, cancel, buffer)));
        written.map_err(|error| match error.kind() {
            ErrorKind::Interrupted => error,
            _ => error.path(shown(&item.path())),
        })
    }

    fn link(&mut self, item: Item<'_>, target: &[u8]) -> Result<()> {
        filled(item, |item| self.filler.link(item, target));
        Ok(())
    }

    fn hard_link(&mut self, item: Item<'_>, first: &[Vec<u8>]) -> Result<()> {
        self.filler.hard_link(item.names, first)
    }

    fn special(&mut self, item: Item<'_>, special: Special) -> Result<Option<&'static str>> {
        let file = match special {
            Special::Pipe => SpecialFile::Pipe,
            Special::Socket => SpecialFile::Socket,
            Special::Character { major, minor } => SpecialFile::Character(major, minor),
            Special::Block { major, minor } => SpecialFile::Block(major, minor),
            Special::Other => return Ok(Some("it is nothing that this host has")),
        };
        match filled(item, |item| self.filler.special(item, file)) {
            Err(error) if error.kind() == ErrorKind::Refused && error.message().contains("only root") => {
                Ok(Some("only root can make devices; --tar keeps them"))
            }
            done => done.map(|()| None),
        }
    }

    fn finish(&mut self) -> Result<Vec<(String, u64)>> {
        self.filler.finish()
    }
}
