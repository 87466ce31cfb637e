//! A request's header: parsed and checked against what was negotiated, without I/O.
//!
//! Parsing and checking are two steps: a write whose flags are wrong still has a payload to be skipped.

use extent::{Offset, VirtualSpan};
use zerocopy::FromBytes;

use super::layout::{REQUEST_BYTES, REQUEST_MAGIC, RequestHeader, cmd, cmd_flag};
use super::{PAYLOAD_BYTES_MAX, Session};

/// What a client is told when something goes wrong: the protocol's errors, which are Linux's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Errno {
    /// The export is read-only.
    Perm = 1,
    /// The storage failed.
    Io = 5,
    /// No memory.
    NoMem = 12,
    /// The request makes no sense.
    Inval = 22,
    /// No space, or a write past the end.
    NoSpc = 28,
    /// Not done, as it would not be fast.
    NotSup = 95,
}

impl Errno {
    /// The number on the wire.
    pub fn code(self) -> u32 {
        self as u32
    }
}

/// What is asked, with its flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Read; in one chunk if `whole`.
    Read {
        /// Whether the reply must not be cut.
        whole: bool,
    },
    /// Write the payload.
    Write {
        /// Whether it is to be on stable storage before the reply.
        fua: bool,
    },
    /// Make stable what was written.
    Flush,
    /// Forget the contents.
    Trim {
        /// Whether it is to be on stable storage before the reply.
        fua: bool,
    },
    /// Read ahead.
    Cache,
    /// Make zeros.
    WriteZeroes {
        /// Whether it is to be on stable storage before the reply.
        fua: bool,
        /// Whether storage may be given back.
        may_free: bool,
        /// Whether to fail rather than be slow.
        must_be_fast: bool,
    },
    /// What is allocated.
    BlockStatus {
        /// Whether the first extent is enough.
        only_one: bool,
    },
}

/// A request as it came. Nothing of it is checked but the magic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The client's own number.
    pub cookie: u64,
    kind: u16,
    flags: u16,
    offset: u64,
    len_bytes: u32,
}

/// The stream does not hold a request where one must begin: nothing after it means anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotARequest;

impl Request {
    /// The request in `bytes`.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, NotARequest> {
        let Ok(header) = RequestHeader::read_from_bytes(bytes) else { return Err(NotARequest) };
        if header.magic.get() != REQUEST_MAGIC {
            return Err(NotARequest);
        }
        let request = Self {
            cookie: header.cookie.get(),
            kind: header.kind.get(),
            flags: header.flags.get(),
            offset: header.offset.get(),
            len_bytes: header.len_bytes.get(),
        };
        if request.payload_bytes() > PAYLOAD_BYTES_MAX {
            return Err(NotARequest);
        }
        Ok(request)
    }

    /// Whether the client says goodbye.
    pub fn is_disconnect(&self) -> bool {
        self.kind == cmd::DISC
    }

    /// Bytes that follow the header. At most [`PAYLOAD_BYTES_MAX`].
    pub fn payload_bytes(&self) -> u32 {
        if self.kind == cmd::WRITE { self.len_bytes } else { 0 }
    }

    /// How many bytes of the disk it is about.
    pub fn len_bytes(&self) -> u32 {
        self.len_bytes
    }

    /// Where it begins on the disk. Not checked.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether it asks to read, to write, or neither.
    pub fn direction(&self) -> Option<bool> {
        match self.kind {
            cmd::READ => Some(false),
            cmd::WRITE => Some(true),
            _ => None,
        }
    }

    /// What is asked of which bytes, if it may be asked of the export of `session`.
    pub fn check(&self, session: &Session) -> Result<(Command, VirtualSpan), Errno> {
        let command = self.command(session)?;
        let span = match command {
            Command::Flush => VirtualSpan::from_zero(0),
            _ => self.span(session.len_bytes)?,
        };
        Ok((command, span))
    }

    fn span(&self, limit_bytes: u64) -> Result<VirtualSpan, Errno> {
        let past_end = match self.kind {
            cmd::WRITE | cmd::WRITE_ZEROES => Errno::NoSpc,
            _ => Errno::Inval,
        };
        let span =
            VirtualSpan::checked(Offset::new(self.offset), u64::from(self.len_bytes)).ok_or(past_end)?;
        if span.end().get() > limit_bytes { Err(past_end) } else { Ok(span) }
    }

    fn command(&self, session: &Session) -> Result<Command, Errno> {
        // FUA is valid with every command, though it means something to those that write alone.
        let allowed = cmd_flag::FUA
            | match self.kind {
                cmd::READ if session.is_structured => cmd_flag::DF,
                cmd::WRITE_ZEROES => cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO,
                cmd::BLOCK_STATUS => cmd_flag::REQ_ONE,
                _ => 0,
            };
        if self.flags & !allowed != 0 {
            return Err(Errno::Inval);
        }
        let has = |flag| self.flags & flag != 0;
        let fua = has(cmd_flag::FUA);
        let command = match self.kind {
            cmd::READ if self.len_bytes > PAYLOAD_BYTES_MAX => return Err(Errno::Inval),
            cmd::READ => Command::Read { whole: has(cmd_flag::DF) || !session.is_structured },
            cmd::WRITE => Command::Write { fua },
            cmd::FLUSH => Command::Flush,
            cmd::TRIM => Command::Trim { fua },
            cmd::CACHE => Command::Cache,
            cmd::WRITE_ZEROES => Command::WriteZeroes {
                fua,
                may_free: !has(cmd_flag::NO_HOLE),
                must_be_fast: has(cmd_flag::FAST_ZERO),
            },
            cmd::BLOCK_STATUS if !session.has_allocation || self.len_bytes == 0 => return Err(Errno::Inval),
            cmd::BLOCK_STATUS => Command::BlockStatus { only_one: has(cmd_flag::REQ_ONE) },
            _ => return Err(Errno::Inval),
        };
        let changes =
            matches!(command, Command::Write { .. } | Command::Trim { .. } | Command::WriteZeroes { .. });
        if changes && session.is_read_only { Err(Errno::Perm) } else { Ok(command) }
    }
}
