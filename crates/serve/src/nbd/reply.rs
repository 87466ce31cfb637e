//! Replies as they are sent: a head, and perhaps what was read.

use zerocopy::IntoBytes;
use zerocopy::big_endian::{U16, U32, U64};

use super::headers::Headers;
use super::layout::{
    ChunkError, ChunkHeader, EXTENDED_REPLY_MAGIC, ExtendedChunkHeader, ExtendedStatus, ExtendedStatusExtent,
    SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, SimpleReply, StatusExtent, allocation, chunk,
};
use super::memory::Buffer;
use super::negotiate::ALLOCATION_ID;
use super::request::{Errno, RequestId};
use crate::export::Allocation;

/// A simple reply's or a chunk's header, of which an extended one is the longest, and the offset of data.
const HEAD_BYTES: usize = 40;
/// The longest message of an error (doc/proto.md: strings are at most 4096 bytes).
const MESSAGE_BYTES_MAX: usize = 1024;

/// A message, or a chunk of one.
pub(crate) struct Message {
    head: [u8; HEAD_BYTES],
    head_len: usize,
    body: Body,
}

enum Body {
    None,
    Bytes(Vec<u8>),
    Data(Buffer),
}

/// How a connection wants its replies.
#[derive(Clone, Copy)]
pub(crate) struct Style {
    pub(crate) is_structured: bool,
    pub(crate) headers: Headers,
}

impl Message {
    fn new(heads: &[&[u8]], body: Body) -> Self {
        let mut message = Self { head: [0; HEAD_BYTES], head_len: 0, body };
        for head in heads {
            message.head[message.head_len..][..head.len()].copy_from_slice(head);
            message.head_len += head.len();
        }
        message
    }

    pub(crate) fn head(&self) -> &[u8] {
        &self.head[..self.head_len]
    }

    pub(crate) fn body(&self) -> &[u8] {
        match &self.body {
            Body::None => &[],
            Body::Bytes(bytes) => bytes,
            Body::Data(buffer) => buffer,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.head_len + self.body().len()
    }
}

fn simple(id: RequestId, error: u32) -> SimpleReply {
    SimpleReply { magic: U32::new(SIMPLE_REPLY_MAGIC), error: U32::new(error), cookie: U64::new(id.cookie) }
}

/// The start of a chunk, with the header that was agreed on.
struct ChunkStart {
    bytes: [u8; size_of::<ExtendedChunkHeader>()],
    len: usize,
}

impl ChunkStart {
    fn of(header: &[u8]) -> Self {
        let mut start = Self { bytes: [0; size_of::<ExtendedChunkHeader>()], len: header.len() };
        start.bytes[..header.len()].copy_from_slice(header);
        start
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Style {
    fn is_extended(self) -> bool {
        self.headers == Headers::Extended
    }

    /// The start of a chunk with a payload of `len` bytes.
    fn chunk(self, id: RequestId, kind: u16, is_last: bool, len: usize) -> ChunkStart {
        let (flags, kind) = (U16::new(if is_last { chunk::FLAG_DONE } else { 0 }), U16::new(kind));
        let cookie = U64::new(id.cookie);
        match self.headers {
            Headers::Compact => {
                let len_bytes = U32::new(u32::try_from(len).expect("payloads are bounded"));
                let magic = U32::new(STRUCTURED_REPLY_MAGIC);
                ChunkStart::of(ChunkHeader { magic, flags, kind, cookie, len_bytes }.as_bytes())
            }
            Headers::Extended => {
                let (offset, len_bytes) = (U64::new(id.offset), U64::new(len as u64));
                let magic = U32::new(EXTENDED_REPLY_MAGIC);
                ChunkStart::of(
                    ExtendedChunkHeader { magic, flags, kind, cookie, offset, len_bytes }.as_bytes(),
                )
            }
        }
    }

    /// All went well, and there is nothing to tell. Simple also where replies are structured, which the protocol
    /// allows for all that does not read; but not with extended headers.
    pub(crate) fn done(self, id: RequestId) -> Message {
        if self.is_extended() {
            return Message::new(&[self.chunk(id, chunk::NONE, true, 0).as_bytes()], Body::None);
        }
        Message::new(&[simple(id, 0).as_bytes()], Body::None)
    }

    /// It failed.
    pub(crate) fn error(self, id: RequestId, errno: Errno, message: &str) -> Message {
        if !self.is_structured {
            return Message::new(&[simple(id, errno.code()).as_bytes()], Body::None);
        }
        let message = truncated(message);
        let error = ChunkError {
            error: U32::new(errno.code()),
            message_len_bytes: U16::new(u16::try_from(message.len()).expect("truncated")),
        };
        let body = [error.as_bytes(), message.as_bytes()].concat();
        let start = self.chunk(id, chunk::ERROR, true, body.len());
        Message::new(&[start.as_bytes()], Body::Bytes(body))
    }

    /// What was read from `offset`.
    pub(crate) fn data(self, id: RequestId, offset: u64, data: Buffer, is_last: bool) -> Message {
        if !self.is_structured {
            return Message::new(&[simple(id, 0).as_bytes()], Body::Data(data));
        }
        let start = self.chunk(id, chunk::OFFSET_DATA, is_last, 8 + data.len());
        Message::new(&[start.as_bytes(), &offset.to_be_bytes()], Body::Data(data))
    }

    /// A read of nothing, which no chunk of data may hold.
    pub(crate) fn no_data(self, id: RequestId) -> Message {
        if !self.is_structured {
            return self.done(id);
        }
        Message::new(&[self.chunk(id, chunk::NONE, true, 0).as_bytes()], Body::None)
    }

    /// The head of what is read from `offset` and sent in pieces.
    pub(crate) fn data_head(self, id: RequestId, offset: u64, len: usize) -> Vec<u8> {
        if self.is_structured {
            let start = self.chunk(id, chunk::OFFSET_DATA, true, 8 + len);
            [start.as_bytes(), &offset.to_be_bytes()].concat()
        } else {
            simple(id, 0).as_bytes().to_vec()
        }
    }

    /// What is allocated.
    pub(crate) fn status(self, id: RequestId, found: &[Allocation]) -> Message {
        let states = found.iter().map(|stretch| {
            let hole = if stretch.is_hole { allocation::HOLE } else { 0 };
            let zero = if stretch.is_zero { allocation::ZERO } else { 0 };
            (stretch.span.len_bytes(), hole | zero)
        });
        let (kind, body) = match self.headers {
            Headers::Compact => {
                let mut body = ALLOCATION_ID.to_be_bytes().to_vec();
                for (len_bytes, state) in states {
                    let extent = StatusExtent {
                        // A request is no longer than that.
                        len_bytes: U32::new(u32::try_from(len_bytes).unwrap_or(u32::MAX)),
                        state: U32::new(state),
                    };
                    body.extend_from_slice(extent.as_bytes());
                }
                (chunk::BLOCK_STATUS, body)
            }
            Headers::Extended => {
                let count = u32::try_from(found.len()).expect("bounded");
                let head = ExtendedStatus { context: U32::new(ALLOCATION_ID), count: U32::new(count) };
                let mut body = head.as_bytes().to_vec();
                for (len_bytes, state) in states {
                    let extent = ExtendedStatusExtent {
                        len_bytes: U64::new(len_bytes),
                        state: U64::new(state.into()),
                    };
                    body.extend_from_slice(extent.as_bytes());
                }
                (chunk::BLOCK_STATUS_EXT, body)
            }
        };
        let start = self.chunk(id, kind, true, body.len());
        Message::new(&[start.as_bytes()], Body::Bytes(body))
    }
}

fn truncated(message: &str) -> &str {
    let mut end = message.len().min(MESSAGE_BYTES_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}
