//! What is in a file, from its beginning to its end.

use std::io::Write;

use block::{Error, Result};
use extent::FileOffset;
use filesystem::{Contents, NodeKind};
use stack::Stack;

use super::path::{self, AtEnd};
use super::{name, shown, volume};
use crate::Observer;

/// What is read at a time.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Writes what is in a file, or in another stream of it, to `out`.
pub fn cat(stack: &Stack, file: &[u8], out: &mut dyn Write, observer: &dyn Observer) -> Result<()> {
    let named = name::parse(file)?;
    let chosen = volume::choose(stack, named.volume, observer)?;
    let found = path::find(&*chosen.browse, named.path, AtEnd::Follow)?;
    let what = match found.node.kind {
        NodeKind::File => None,
        _ if found.stream.is_some() => None,
        NodeKind::Directory => Some("is a folder"),
        NodeKind::Link => Some("is a link"),
        NodeKind::Special(_) => Some("is a device, a pipe or a socket"),
    };
    let why = what.or(found.node.sealed.filter(|_| found.stream.is_none()));
    if let Some(why) = why {
        return Err(Error::refused(why).path(shown(&found.path)));
    }
    let contents = chosen.browse.open(found.node.file, found.stream_name());
    let contents = contents.map_err(|error| error.path(shown(&found.path)))?;
    let mut buffer = vec![0; PIECE_BYTES];
    each_piece(&*contents, &mut buffer, &mut |_, piece| {
        out.write_all(piece).map_err(|error| Error::io("write", error).path("standard output"))
    })?;
    out.flush().map_err(|error| Error::io("write", error).path("standard output"))
}

/// Calls `each` with all that is in a file, piece by piece.
pub(super) fn each_piece(
    contents: &dyn Contents,
    buffer: &mut [u8],
    each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let (mut at, len) = (0, contents.len_bytes());
    while at < len {
        let count = usize::try_from(len - at).unwrap_or(usize::MAX).min(buffer.len());
        contents.read_at(FileOffset::new(at), &mut buffer[..count])?;
        each(at, &buffer[..count])?;
        at += count as u64;
    }
    Ok(())
}
