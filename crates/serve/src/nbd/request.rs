//! A request's header: parsed and checked against what was negotiated, without I/O.
//!
//! Parsing and checking are two steps: a write whose flags are wrong still has a payload to be skipped.

use extent::{Offset, VirtualSpan};
use zerocopy::FromBytes;

use super::headers::Headers;
use super::layout::{
    EXTENDED_REQUEST_MAGIC, ExtendedRequestHeader, REQUEST_MAGIC, RequestHeader, cmd, cmd_flag,
};
use super::negotiate::ALLOCATION_ID;
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

/// What a reply tells its request by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestId {
    /// The client's own number.
    pub cookie: u64,
    /// Where the request begins on the disk, not checked: extended headers repeat it.
    pub offset: u64,
}

/// A request as it came. Nothing of it is checked but the magic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The client's own number.
    pub cookie: u64,
    kind: u16,
    flags: u16,
    offset: u64,
    /// How much of the disk it is about.
    len_bytes: u64,
    payload_bytes: u32,
}

/// The stream does not hold a request where one must begin: nothing after it means anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotARequest;

impl Request {
    /// The request that begins `bytes`; `None` if these are too few for a header.
    pub fn parse(bytes: &[u8], headers: Headers) -> Result<Option<Self>, NotARequest> {
        let request = match headers {
            Headers::Compact => {
                let Ok((header, _)) = RequestHeader::read_from_prefix(bytes) else { return Ok(None) };
                if header.magic.get() != REQUEST_MAGIC {
                    return Err(NotARequest);
                }
                let (kind, len_bytes) = (header.kind.get(), header.len_bytes.get());
                Self {
                    cookie: header.cookie.get(),
                    kind,
                    flags: header.flags.get(),
                    offset: header.offset.get(),
                    len_bytes: len_bytes.into(),
                    payload_bytes: if kind == cmd::WRITE { len_bytes } else { 0 },
                }
            }
            Headers::Extended => {
                let Ok((header, _)) = ExtendedRequestHeader::read_from_prefix(bytes) else { return Ok(None) };
                if header.magic.get() != EXTENDED_REQUEST_MAGIC {
                    return Err(NotARequest);
                }
                let (kind, flags) = (header.kind.get(), header.flags.get());
                let len_bytes = header.len_bytes.get();
                // QEMU's client (10.0) sends writes without the flag, and their payload all the same, as QEMU's server takes them.
                let has_payload = flags & cmd_flag::PAYLOAD_LEN != 0 || kind == cmd::WRITE;
                let payload_bytes = if has_payload { len_bytes } else { 0 };
                Self {
                    cookie: header.cookie.get(),
                    kind,
                    flags,
                    offset: header.offset.get(),
                    len_bytes,
                    payload_bytes: u32::try_from(payload_bytes).map_err(|_| NotARequest)?,
                }
            }
        };
        match request.payload_bytes > PAYLOAD_BYTES_MAX {
            true => Err(NotARequest),
            false => Ok(Some(request)),
        }
    }

    /// What its reply tells it by.
    pub fn id(&self) -> RequestId {
        RequestId { cookie: self.cookie, offset: self.offset }
    }

    /// Whether what follows the header says what is asked: then [`Self::with_payload`] knows.
    pub fn is_filtered(&self, session: &Session) -> bool {
        self.kind == cmd::BLOCK_STATUS && self.payload_bytes > 0 && session.headers == Headers::Extended
    }

    /// The same as the payload of a `BLOCK_STATUS` has it: about how many bytes, and of which contexts.
    pub fn with_payload(&self, payload: &[u8]) -> Result<Self, Errno> {
        let (len_bytes, ids) = payload.split_first_chunk::<8>().ok_or(Errno::Inval)?;
        // There is one context, and none is asked for twice.
        if ids != ALLOCATION_ID.to_be_bytes() {
            return Err(Errno::Inval);
        }
        let flags = self.flags & !cmd_flag::PAYLOAD_LEN;
        Ok(Self { flags, len_bytes: u64::from_be_bytes(*len_bytes), payload_bytes: 0, ..*self })
    }

    /// Whether the client says goodbye.
    pub fn is_disconnect(&self) -> bool {
        self.kind == cmd::DISC
    }

    /// Bytes that follow the header. At most [`PAYLOAD_BYTES_MAX`].
    pub fn payload_bytes(&self) -> u32 {
        self.payload_bytes
    }

    /// How many bytes of the disk it is about. Not checked.
    pub fn len_bytes(&self) -> u64 {
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
        let span = VirtualSpan::checked(Offset::new(self.offset), self.len_bytes).ok_or(past_end)?;
        if span.end().get() > limit_bytes { Err(past_end) } else { Ok(span) }
    }

    fn command(&self, session: &Session) -> Result<Command, Errno> {
        // No other command has one here.
        let payload = match session.headers {
            Headers::Extended if self.kind == cmd::WRITE => cmd_flag::PAYLOAD_LEN,
            _ => 0,
        };
        // FUA is valid with every command, though it means something to those that write alone.
        let allowed = cmd_flag::FUA
            | payload
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
            cmd::READ if self.len_bytes > PAYLOAD_BYTES_MAX.into() => return Err(Errno::Inval),
            cmd::READ => Command::Read { whole: has(cmd_flag::DF) || !session.is_structured },
            cmd::WRITE => Command::Write { fua },
            cmd::FLUSH => Command::Flush,
            // Read ahead as little as could be asked for without extended headers.
            cmd::CACHE if self.len_bytes > u32::MAX.into() => return Err(Errno::Inval),
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
