//! What comes in answer to one request, held against the request.

use std::collections::BTreeMap;
use std::io;

use block::{Error, FieldValue};
use extent::{Host, Offset};
use zerocopy::FromBytes;

use crate::corrupt::Corrupt;
use crate::handshake::printable;
use crate::inbox::Inbox;
use crate::layout::{
    ChunkError, ChunkHeader, ChunkHole, ExtendedChunkHeader, ExtendedStatus, ExtendedStatusExtent,
    SimpleReply, StatusExtent, chunk,
};
use crate::transport::Transport;

/// The most extents of a chunk, which is what servers stop at (doc/proto.md, "NBD_CMD_BLOCK_STATUS").
const EXTENT_COUNT_MAX: u32 = 1 << 20;
/// The most bytes of a chunk that tells of extents.
const STATUS_BYTES_MAX: u32 = 4 + 8 * EXTENT_COUNT_MAX;
/// The same with extended headers.
const EXTENDED_STATUS_BYTES_MAX: u32 = 8 + 16 * EXTENT_COUNT_MAX;
/// The most bytes of a chunk that tells of an error.
const ERROR_BYTES_MAX: u32 = 64 << 10;
/// The most pieces of what was read that may be out of order at any moment.
const PIECE_COUNT_MAX: usize = 4096;
/// The most chunks of one reply that bring nothing.
const EMPTY_COUNT_MAX: u32 = 64;

/// Why a request was not done.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server says so: the connection goes on.
    Answered(Error),
    /// The server breaks the protocol: nothing that it says is believed any more.
    Broken(Error),
    /// The connection is lost: another may do it.
    Lost(Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Lost(Error::io("talk to the NBD server", error))
    }
}

/// The start of a chunk of a reply, with either header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    flags: u16,
    kind: u16,
    pub(crate) cookie: u64,
    len_bytes: u32,
    /// Where the request begins, of an extended header.
    offset: Option<u64>,
}

impl Chunk {
    pub(crate) fn of(header: &ChunkHeader) -> Self {
        Self {
            flags: header.flags.get(),
            kind: header.kind.get(),
            cookie: header.cookie.get(),
            len_bytes: header.len_bytes.get(),
            offset: None,
        }
    }

    /// Its length has 64 bits, and no payload as many bytes.
    pub(crate) fn of_extended(header: &ExtendedChunkHeader) -> Result<Self, Failure> {
        let len_bytes = header.len_bytes.get();
        Ok(Self {
            flags: header.flags.get(),
            kind: header.kind.get(),
            cookie: header.cookie.get(),
            len_bytes: u32::try_from(len_bytes).map_err(|_| {
                broken(Corrupt::Chunk, "length", FieldValue::hex(len_bytes), "less than 4 GiB")
            })?,
            offset: Some(header.offset.get()),
        })
    }
}

/// A request under way, as far as its reply must fit it.
#[derive(Debug)]
pub(crate) struct Expected<'buf> {
    pub(crate) offset: u64,
    pub(crate) len_bytes: u64,
    pub(crate) brings: Brings<'buf>,
    /// What of `len_bytes` came.
    covered: Covered,
    empty_count: u32,
    error: Option<Error>,
}

/// What a reply brings.
#[derive(Debug)]
pub(crate) enum Brings<'buf> {
    /// Nothing but that it was done.
    Nothing,
    /// The request's bytes.
    Data(&'buf mut [u8]),
    /// Lengths and states of `base:allocation`, which this number stands for.
    Extents { id: u32, found: Vec<(u64, u64)> },
}

impl Brings<'_> {
    /// Whether a reply may be longer than what a socket holds.
    pub(crate) const fn is_long(&self) -> bool {
        !matches!(self, Self::Nothing)
    }
}

impl<'buf> Expected<'buf> {
    pub(crate) fn new(offset: u64, len_bytes: u64, brings: Brings<'buf>) -> Self {
        Self { offset, len_bytes, brings, covered: Covered::default(), empty_count: 0, error: None }
    }

    /// Takes what follows a simple reply.
    pub(crate) fn simple(
        &mut self,
        reply: &SimpleReply,
        transport: &Transport,
        inbox: &mut Inbox,
    ) -> Result<(), Failure> {
        if reply.error.get() != 0 {
            return Err(Failure::Answered(answered(reply.error.get(), "", self.offset)));
        }
        match &mut self.brings {
            Brings::Nothing => Ok(()),
            Brings::Data(buf) => Ok(inbox.fill(transport, buf, None)?),
            Brings::Extents { .. } => Err(broken(Corrupt::Reply, "kind", "simple", "structured")),
        }
    }

    /// Takes what follows a chunk's header; true at the end of the reply.
    pub(crate) fn chunk(
        &mut self,
        header: &Chunk,
        transport: &Transport,
        inbox: &mut Inbox,
    ) -> Result<bool, Failure> {
        let Chunk { flags, kind, len_bytes, offset, .. } = *header;
        if let Some(offset) = offset.filter(|offset| *offset != self.offset) {
            let expected = format!("{:#x}, where the request begins", self.offset);
            return Err(broken(Corrupt::Chunk, "offset", FieldValue::hex(offset), expected));
        }
        match kind {
            chunk::NONE => check_len(len_bytes, 0..=0)?,
            chunk::OFFSET_DATA => self.data(len_bytes, transport, inbox)?,
            chunk::OFFSET_HOLE => {
                check_len(len_bytes, 12..=12)?;
                let hole: ChunkHole = inbox.value(transport, None)?;
                self.take(hole.offset.get(), u64::from(hole.len_bytes.get()))?.fill(0);
            }
            chunk::BLOCK_STATUS if offset.is_none() => self.extents(len_bytes, transport, inbox)?,
            chunk::BLOCK_STATUS_EXT if offset.is_some() => {
                self.extended_extents(len_bytes, transport, inbox)?;
            }
            kind if kind & chunk::ERROR_BIT != 0 => self.error(kind, len_bytes, transport, inbox)?,
            kind => return Err(broken(Corrupt::Chunk, "kind", FieldValue::hex(kind), "a known one")),
        }
        if flags & chunk::FLAG_DONE != 0 {
            return self.done().map(|()| true);
        }
        if matches!(kind, chunk::NONE | chunk::ERROR | chunk::ERROR_OFFSET) {
            self.empty_count += 1;
            if self.empty_count > EMPTY_COUNT_MAX {
                return Err(Failure::Broken(Error::corrupt(Corrupt::Endless)));
            }
        }
        Ok(false)
    }

    fn done(&mut self) -> Result<(), Failure> {
        if let Some(error) = self.error.take() {
            return Err(Failure::Answered(error));
        }
        match &self.brings {
            Brings::Nothing => Ok(()),
            Brings::Data(_) if self.covered.is(self.len_bytes) => Ok(()),
            Brings::Extents { found, .. } if !found.is_empty() => Ok(()),
            _ => {
                Err(Failure::Broken(Error::corrupt(Corrupt::Incomplete).at(Offset::<Host>::new(self.offset))))
            }
        }
    }

    fn data(&mut self, len_bytes: u32, transport: &Transport, inbox: &mut Inbox) -> Result<(), Failure> {
        check_len(len_bytes, 9..=u32::MAX)?;
        let mut offset = [0; 8];
        inbox.fill(transport, &mut offset, None)?;
        let part = self.take(u64::from_be_bytes(offset), u64::from(len_bytes) - 8)?;
        Ok(inbox.fill(transport, part, None)?)
    }

    /// The part of the buffer for a chunk of data, which must be within the request and not have come before.
    fn take(&mut self, offset: u64, len_bytes: u64) -> Result<&mut [u8], Failure> {
        let Brings::Data(buf) = &mut self.brings else {
            return Err(broken(Corrupt::Chunk, "kind", "data", "what was asked for"));
        };
        let place = || {
            let start = offset.checked_sub(self.offset)?;
            let end = start.checked_add(len_bytes).filter(|end| *end <= self.len_bytes && *end > start)?;
            Some((start, end))
        };
        let Some((start, end)) = place() else {
            let expected = format!("a part of {} bytes from {:#x} on", self.len_bytes, self.offset);
            return Err(broken(Corrupt::Chunk, "its place", FieldValue::hex(offset), expected));
        };
        if !self.covered.add(start, end) {
            let expected = "one that did not come before";
            return Err(broken(Corrupt::Chunk, "its place", FieldValue::hex(offset), expected));
        }
        if self.covered.pieces.len() > PIECE_COUNT_MAX {
            return Err(Failure::Broken(Error::corrupt(Corrupt::Endless)));
        }
        let index = |at: u64| usize::try_from(at).expect("within a buffer");
        Ok(&mut buf[index(start)..index(end)])
    }

    fn extents(&mut self, len_bytes: u32, transport: &Transport, inbox: &mut Inbox) -> Result<(), Failure> {
        check_len(len_bytes, 12..=STATUS_BYTES_MAX)?;
        let bytes = inbox.vec(transport, len_bytes as usize, None)?;
        let (id, entries) = bytes.split_first_chunk::<4>().expect("12 bytes or more");
        let (entries, rest) = entries.as_chunks::<{ size_of::<StatusExtent>() }>();
        if !rest.is_empty() {
            return Err(broken(Corrupt::Chunk, "length", len_bytes, "4 and a multiple of 8"));
        }
        let extents = entries.iter().map(|entry| {
            let extent = StatusExtent::read_from_bytes(entry).expect("its size");
            (u64::from(extent.len_bytes.get()), u64::from(extent.state.get()))
        });
        self.told(u32::from_be_bytes(*id), extents)
    }

    fn extended_extents(
        &mut self,
        len_bytes: u32,
        transport: &Transport,
        inbox: &mut Inbox,
    ) -> Result<(), Failure> {
        check_len(len_bytes, 24..=EXTENDED_STATUS_BYTES_MAX)?;
        let bytes = inbox.vec(transport, len_bytes as usize, None)?;
        let (head, entries) = ExtendedStatus::read_from_prefix(&bytes).expect("24 bytes or more");
        let (entries, rest) = entries.as_chunks::<{ size_of::<ExtendedStatusExtent>() }>();
        if !rest.is_empty() || u32::try_from(entries.len()) != Ok(head.count.get()) {
            let expected = format!("8 and 16 for each of {} extents", head.count.get());
            return Err(broken(Corrupt::Chunk, "length", len_bytes, expected));
        }
        let extents = entries.iter().map(|entry| {
            let extent = ExtendedStatusExtent::read_from_bytes(entry).expect("its size");
            (extent.len_bytes.get(), extent.state.get())
        });
        self.told(head.context.get(), extents)
    }

    /// Takes lengths and states of a context.
    fn told(&mut self, told_id: u32, extents: impl Iterator<Item = (u64, u64)>) -> Result<(), Failure> {
        let Brings::Extents { id, found } = &mut self.brings else {
            return Err(broken(Corrupt::Chunk, "kind", "extents", "what was asked for"));
        };
        if told_id != *id {
            // No other context was asked for.
            return Err(broken(Corrupt::Allocation, "context", told_id, *id));
        }
        if !found.is_empty() {
            return Err(broken(Corrupt::Allocation, "chunks", "several", "one"));
        }
        let mut told_bytes = 0_u64;
        for (len_bytes, state) in extents {
            if len_bytes == 0 || told_bytes >= self.len_bytes {
                let expected = format!("some, within {} bytes", self.len_bytes);
                return Err(broken(Corrupt::Allocation, "length", len_bytes, expected));
            }
            told_bytes = told_bytes.saturating_add(len_bytes);
            found.push((len_bytes, state));
        }
        Ok(())
    }

    fn error(
        &mut self,
        kind: u16,
        len_bytes: u32,
        transport: &Transport,
        inbox: &mut Inbox,
    ) -> Result<(), Failure> {
        check_len(len_bytes, 6..=ERROR_BYTES_MAX)?;
        let bytes = inbox.vec(transport, len_bytes as usize, None)?;
        let (told, rest) = ChunkError::read_from_prefix(&bytes).expect("six bytes or more");
        let message = rest.get(..usize::from(told.message_len_bytes.get()));
        let Some(message) = message.filter(|_| told.error.get() != 0) else {
            return Err(broken(Corrupt::Chunk, "error", told.error.get(), "one, and its message"));
        };
        let at = rest.get(message.len()..).and_then(|tail| tail.first_chunk::<8>());
        let at = at.filter(|_| kind == chunk::ERROR_OFFSET).map_or(self.offset, |at| u64::from_be_bytes(*at));
        let text = printable(message);
        self.error.get_or_insert_with(|| answered(told.error.get(), &text, at));
        Ok(())
    }
}

/// What came of a request's bytes: pieces that do not touch, by where they begin.
#[derive(Debug, Default)]
struct Covered {
    pieces: BTreeMap<u64, u64>,
}

impl Covered {
    /// Adds a piece that is not empty. `false` if a part of it came before.
    fn add(&mut self, mut start: u64, mut end: u64) -> bool {
        let before = self.pieces.range(..end).next_back().map(|(start, end)| (*start, *end));
        if before.is_some_and(|(_, before_end)| before_end > start) {
            return false;
        }
        if let Some((before_start, before_end)) = before
            && before_end == start
        {
            start = before_start;
        }
        if let Some(after_end) = self.pieces.remove(&end) {
            end = after_end;
        }
        self.pieces.insert(start, end);
        true
    }

    /// Whether it is all of so many bytes.
    fn is(&self, len_bytes: u64) -> bool {
        len_bytes == 0 || self.pieces.get(&0) == Some(&len_bytes)
    }
}

fn check_len(len_bytes: u32, expected: std::ops::RangeInclusive<u32>) -> Result<(), Failure> {
    if expected.contains(&len_bytes) {
        return Ok(());
    }
    let expected = format!("{} to {}", expected.start(), expected.end());
    Err(broken(Corrupt::Chunk, "length", len_bytes, expected))
}

/// What the server says went wrong.
fn answered(error: u32, message: &str, offset: u64) -> Error {
    let code = i32::try_from(error).unwrap_or(i32::MAX);
    let what = match message {
        "" => "the NBD server answers a request with an error".to_owned(),
        message => format!("the NBD server answers a request with an error ({message})"),
    };
    Error::io(what, io::Error::from_raw_os_error(code)).at(Offset::<Host>::new(offset))
}

pub(crate) fn broken(
    what: Corrupt,
    name: &str,
    found: impl Into<FieldValue>,
    expected: impl std::fmt::Display,
) -> Failure {
    Failure::Broken(Error::corrupt(what).field(name, found, expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_joined_in_any_order_and_none_comes_twice() {
        let mut covered = Covered::default();
        for (start, end) in [(10, 20), (0, 5), (30, 40), (5, 10), (20, 30)] {
            assert!(!covered.is(40));
            assert!(covered.add(start, end), "{start}");
        }
        assert!(covered.is(40) && covered.pieces.len() == 1);
        for (start, end) in [(0, 1), (39, 40), (0, 100), (39, 41)] {
            assert!(!covered.add(start, end), "{start}");
        }
        assert!(covered.add(40, 41) && covered.is(41));
    }
}
