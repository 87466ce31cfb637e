//! The structs of the NBD protocol as they cross the wire, all big-endian.
//!
//! The names of constants are the specification's, and so is what they mean.
#![allow(missing_docs)]
//!
//! Source: `doc/proto.md` of <https://github.com/NetworkBlockDevice/nbd>; the constants bear its names. What begins with `Extended` is in that file's
//! branch `extension-ext-header`.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// "NBDMAGIC", the first bytes of a server.
pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT": newstyle, and the start of every option.
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// The start of every reply to an option.
pub const REP_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// The start of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// The start of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// The start of a structured reply's chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// The start of every request, if extended headers were agreed on.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// The start of every chunk of a reply, if extended headers were agreed on.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Handshake flags, of the server and of the client.
pub mod handshake_flag {
    /// Errors are answered instead of closing the connection.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The 124 zeros after `EXPORT_NAME` are left out.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags: what an export can do.
pub mod export_flag {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
    pub const BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;
}

/// Options of the negotiation.
pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to options.
pub mod rep {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub const ERR_POLICY: u32 = (1 << 31) + 2;
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    pub const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub const ERR_EXT_HEADER_REQD: u32 = (1 << 31) + 10;
}

/// Kinds of information in a reply of type `INFO`.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Commands.
pub mod cmd {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub mod cmd_flag {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Chunks of structured replies.
pub mod chunk {
    pub const FLAG_DONE: u16 = 1 << 0;
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const BLOCK_STATUS_EXT: u16 = 6;
    pub const ERROR_BIT: u16 = 1 << 15;
    pub const ERROR: u16 = (1 << 15) + 1;
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// States of `base:allocation`.
pub mod allocation {
    pub const HOLE: u32 = 1 << 0;
    pub const ZERO: u32 = 1 << 1;
}

macro_rules! wire {
    ($($(#[$doc:meta])* struct $name:ident[$bytes:literal] { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])* pub $field: $kind,)* }
        const _: () = assert!(size_of::<$name>() == $bytes);
    )*};
}

wire! {
    /// What the server says first.
    struct Greeting[18] {
        /// [`NBDMAGIC`].
        magic: U64,
        /// [`IHAVEOPT`].
        style: U64,
        /// [`handshake_flag`].
        flags: U16,
    }

    /// The start of an option.
    struct OptionHeader[16] {
        /// [`IHAVEOPT`].
        magic: U64,
        /// [`option`].
        code: U32,
        /// Bytes of data that follow.
        len_bytes: U32,
    }

    /// The start of a reply to an option.
    struct OptionReplyHeader[20] {
        /// [`REP_MAGIC`].
        magic: U64,
        /// The option that is answered.
        code: U32,
        /// [`rep`].
        kind: U32,
        /// Bytes of data that follow.
        len_bytes: U32,
    }

    /// The answer to `EXPORT_NAME`, before 124 zeros that the client may decline.
    struct ExportNameReply[10] {
        /// Length of the disk in bytes.
        len_bytes: U64,
        /// [`export_flag`].
        flags: U16,
    }

    /// `INFO` of kind `EXPORT`.
    struct InfoExport[12] {
        /// [`info::EXPORT`].
        kind: U16,
        /// Length of the disk in bytes.
        len_bytes: U64,
        /// [`export_flag`].
        flags: U16,
    }

    /// `INFO` of kind `BLOCK_SIZE`, in bytes.
    struct InfoBlockSize[14] {
        /// [`info::BLOCK_SIZE`].
        kind: U16,
        /// Requests must be aligned to this.
        minimum: U32,
        /// Requests should be aligned to this.
        preferred: U32,
        /// The longest payload.
        maximum: U32,
    }

    /// A request. A write's payload follows.
    struct RequestHeader[28] {
        /// [`REQUEST_MAGIC`].
        magic: U32,
        /// [`cmd_flag`].
        flags: U16,
        /// [`cmd`].
        kind: U16,
        /// The client's own; it comes back with the reply.
        cookie: U64,
        /// Where on the disk, in bytes.
        offset: U64,
        /// How many bytes.
        len_bytes: U32,
    }

    /// A request, if extended headers were agreed on. A payload follows if the flags say so.
    struct ExtendedRequestHeader[32] {
        /// [`EXTENDED_REQUEST_MAGIC`].
        magic: U32,
        /// [`cmd_flag`].
        flags: U16,
        /// [`cmd`].
        kind: U16,
        /// The client's own; it comes back with the reply.
        cookie: U64,
        /// Where on the disk, in bytes.
        offset: U64,
        /// How many bytes: of the payload with [`cmd_flag::PAYLOAD_LEN`], of the disk without.
        len_bytes: U64,
    }

    /// A simple reply. What was read follows if there is no error.
    struct SimpleReply[16] {
        /// [`SIMPLE_REPLY_MAGIC`].
        magic: U32,
        /// 0, or what went wrong.
        error: U32,
        /// The request's.
        cookie: U64,
    }

    /// The start of a chunk of a structured reply.
    struct ChunkHeader[20] {
        /// [`STRUCTURED_REPLY_MAGIC`].
        magic: U32,
        /// [`chunk::FLAG_DONE`] on a reply's last.
        flags: U16,
        /// [`chunk`].
        kind: U16,
        /// The request's.
        cookie: U64,
        /// Bytes that follow.
        len_bytes: U32,
    }

    /// The start of a chunk of a reply, if extended headers were agreed on.
    struct ExtendedChunkHeader[32] {
        /// [`EXTENDED_REPLY_MAGIC`].
        magic: U32,
        /// [`chunk::FLAG_DONE`] on a reply's last.
        flags: U16,
        /// [`chunk`].
        kind: U16,
        /// The request's.
        cookie: U64,
        /// The request's.
        offset: U64,
        /// Bytes that follow.
        len_bytes: U64,
    }

    /// An `OFFSET_HOLE` chunk's payload.
    struct ChunkHole[12] {
        /// Where on the disk, in bytes.
        offset: U64,
        /// How many bytes read as zeros.
        len_bytes: U32,
    }

    /// The start of an `ERROR` chunk's payload. A message follows.
    struct ChunkError[6] {
        /// What went wrong.
        error: U32,
        /// Bytes of the message.
        message_len_bytes: U16,
    }

    /// An extent of a `BLOCK_STATUS` chunk.
    struct StatusExtent[8] {
        /// How many bytes.
        len_bytes: U32,
        /// [`allocation`].
        state: U32,
    }

    /// The start of a `BLOCK_STATUS_EXT` chunk's payload. Extents follow.
    struct ExtendedStatus[8] {
        /// The metadata context's number.
        context: U32,
        /// How many extents follow.
        count: U32,
    }

    /// An extent of a `BLOCK_STATUS_EXT` chunk.
    struct ExtendedStatusExtent[16] {
        /// How many bytes.
        len_bytes: U64,
        /// [`allocation`].
        state: U64,
    }
}

/// Bytes of a request's header.
pub const REQUEST_BYTES: usize = size_of::<RequestHeader>();
/// The same, if extended headers were agreed on.
pub const EXTENDED_REQUEST_BYTES: usize = size_of::<ExtendedRequestHeader>();
