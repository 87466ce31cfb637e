//! Replies as they are sent: a head, and perhaps what was read.

use zerocopy::IntoBytes;
use zerocopy::big_endian::{U16, U32, U64};

use super::layout::{
    ChunkError, ChunkHeader, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, SimpleReply, StatusExtent,
    allocation, chunk,
};
use super::memory::Buffer;
use super::negotiate::ALLOCATION_ID;
use super::request::Errno;
use crate::export::Allocation;

/// A simple reply's or a chunk's header, and the offset of data.
const HEAD_BYTES: usize = 28;
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
}

fn length(len: usize) -> U32 {
    U32::new(u32::try_from(len).expect("payloads are bounded"))
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

fn simple(cookie: u64, error: u32) -> SimpleReply {
    SimpleReply { magic: U32::new(SIMPLE_REPLY_MAGIC), error: U32::new(error), cookie: U64::new(cookie) }
}

fn chunk_header(cookie: u64, kind: u16, is_last: bool, len: usize) -> ChunkHeader {
    ChunkHeader {
        magic: U32::new(STRUCTURED_REPLY_MAGIC),
        flags: U16::new(if is_last { chunk::FLAG_DONE } else { 0 }),
        kind: U16::new(kind),
        cookie: U64::new(cookie),
        len_bytes: length(len),
    }
}

impl Style {
    /// All went well, and there is nothing to tell. Simple also where replies are structured, which the protocol
    /// allows for all that does not read.
    pub(crate) fn done(self, cookie: u64) -> Message {
        Message::new(&[simple(cookie, 0).as_bytes()], Body::None)
    }

    /// It failed.
    pub(crate) fn error(self, cookie: u64, errno: Errno, message: &str) -> Message {
        if !self.is_structured {
            return Message::new(&[simple(cookie, errno.code()).as_bytes()], Body::None);
        }
        let message = truncated(message);
        let error = ChunkError {
            error: U32::new(errno.code()),
            message_len_bytes: U16::new(u16::try_from(message.len()).expect("truncated")),
        };
        let body = [error.as_bytes(), message.as_bytes()].concat();
        let header = chunk_header(cookie, chunk::ERROR, true, body.len());
        Message::new(&[header.as_bytes()], Body::Bytes(body))
    }

    /// What was read from `offset`.
    pub(crate) fn data(self, cookie: u64, offset: u64, data: Buffer, is_last: bool) -> Message {
        if !self.is_structured {
            return Message::new(&[simple(cookie, 0).as_bytes()], Body::Data(data));
        }
        let header = chunk_header(cookie, chunk::OFFSET_DATA, is_last, 8 + data.len());
        Message::new(&[header.as_bytes(), &offset.to_be_bytes()], Body::Data(data))
    }

    /// A read of nothing, which no chunk of data may hold.
    pub(crate) fn no_data(self, cookie: u64) -> Message {
        if !self.is_structured {
            return self.done(cookie);
        }
        Message::new(&[chunk_header(cookie, chunk::NONE, true, 0).as_bytes()], Body::None)
    }

    /// The head of what is read from `offset` and sent in pieces.
    pub(crate) fn data_head(self, cookie: u64, offset: u64, len: usize) -> Vec<u8> {
        if self.is_structured {
            let header = chunk_header(cookie, chunk::OFFSET_DATA, true, 8 + len);
            [header.as_bytes(), &offset.to_be_bytes()].concat()
        } else {
            simple(cookie, 0).as_bytes().to_vec()
        }
    }

    /// What is allocated.
    pub(crate) fn status(self, cookie: u64, found: &[Allocation]) -> Message {
        let mut body = ALLOCATION_ID.to_be_bytes().to_vec();
        for stretch in found {
            let hole = if stretch.is_hole { allocation::HOLE } else { 0 };
            let zero = if stretch.is_zero { allocation::ZERO } else { 0 };
            let extent = StatusExtent {
                // A request is no longer than that.
                len_bytes: U32::new(u32::try_from(stretch.span.len_bytes()).unwrap_or(u32::MAX)),
                state: U32::new(hole | zero),
            };
            body.extend_from_slice(extent.as_bytes());
        }
        Message::new(
            &[chunk_header(cookie, chunk::BLOCK_STATUS, true, body.len()).as_bytes()],
            Body::Bytes(body),
        )
    }
}

fn truncated(message: &str) -> &str {
    let mut end = message.len().min(MESSAGE_BYTES_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}
