//! The negotiation as a state machine: an option in, bytes of replies out, no I/O.
//!
//! Invariants: what was agreed on in the clear is forgotten when TLS begins; where TLS is required, nothing of any
//! export is told before it.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::PAYLOAD_BYTES_MAX;
use super::headers::Headers;
use super::layout::{
    ExportNameReply, Greeting, IHAVEOPT, InfoBlockSize, InfoExport, NBDMAGIC, OptionHeader,
    OptionReplyHeader, REP_MAGIC, export_flag, handshake_flag, info, option, rep,
};

/// The most bytes of an option's data: two names of 4096 bytes and some.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;
/// The longest name (doc/proto.md, "Values").
const NAME_BYTES_MAX: usize = 4096;
/// The only metadata context.
const ALLOCATION: &[u8] = b"base:allocation";
/// The number that stands for it in replies.
pub(crate) const ALLOCATION_ID: u32 = 1;
const TRAILING_ZEROS: usize = 124;

/// What the negotiation needs to know of an export.
#[derive(Clone, Debug)]
pub struct ExportFacts {
    /// Its name.
    pub name: String,
    /// What a list says of it.
    pub description: String,
    /// Length in bytes.
    pub len_bytes: u64,
    /// The unit in which it likes to be read and written.
    pub preferred_bytes: u32,
    /// Whether it cannot be written.
    pub is_read_only: bool,
    /// Whether only those find it who were told its name: it is in no list, and the empty name does not mean it.
    pub is_private: bool,
}

impl ExportFacts {
    /// The transmission flags, as far as these depend on what was agreed on.
    fn flags(&self, is_structured: bool, has_status_payload: bool) -> u16 {
        use export_flag::{
            BLOCK_STATUS_PAYLOAD, CAN_MULTI_CONN, HAS_FLAGS, READ_ONLY, SEND_CACHE, SEND_DF, SEND_FAST_ZERO,
            SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES,
        };
        let writing = if self.is_read_only {
            READ_ONLY
        } else {
            SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO
        };
        let reading = if is_structured { SEND_DF } else { 0 };
        let status = if has_status_payload { BLOCK_STATUS_PAYLOAD } else { 0 };
        HAS_FLAGS | SEND_FLUSH | CAN_MULTI_CONN | SEND_CACHE | writing | reading | status
    }
}

/// Where TLS stands on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsState {
    /// There is none to be had.
    None,
    /// It must begin before anything else.
    Required,
    /// It began.
    Active,
}

/// What was agreed on for the requests that follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Session {
    /// Which export, by its place in the list.
    pub export_index: usize,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// Whether it cannot be written.
    pub is_read_only: bool,
    /// Whether replies are structured.
    pub is_structured: bool,
    /// Which headers requests and replies have. Extended ones have structured replies.
    pub headers: Headers,
    /// Whether `base:allocation` may be asked.
    pub has_allocation: bool,
}

/// What comes after an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Another option.
    Option,
    /// The TLS handshake, then options.
    Tls,
    /// Requests.
    Transmission(Session),
    /// Nothing: the connection ends.
    Close,
}

/// An option's header that makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotAnOption;

/// The code and the length of the data of the option that begins with `bytes`.
pub fn parse_option(bytes: &[u8; 16]) -> Result<(u32, u32), NotAnOption> {
    let header = OptionHeader::read_from_bytes(bytes).map_err(|_| NotAnOption)?;
    let (code, len_bytes) = (header.code.get(), header.len_bytes.get());
    if header.magic.get() == IHAVEOPT && len_bytes <= OPTION_BYTES_MAX {
        Ok((code, len_bytes))
    } else {
        Err(NotAnOption)
    }
}

/// A connection's negotiation.
pub struct Negotiation<'exports> {
    exports: &'exports [ExportFacts],
    tls: TlsState,
    has_no_zeroes: bool,
    is_structured: bool,
    headers: Headers,
    /// The export for which `base:allocation` was agreed on.
    allocation_of: Option<usize>,
    /// What was asked for last and is not there.
    unknown: Option<Vec<u8>>,
}

/// Bytes to be sent, and what comes then.
pub type Answer = (Vec<u8>, Next);

impl<'exports> Negotiation<'exports> {
    /// What the server says first.
    pub fn greeting() -> [u8; 18] {
        let greeting = Greeting {
            magic: U64::new(NBDMAGIC),
            style: U64::new(IHAVEOPT),
            flags: U16::new(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES),
        };
        let mut bytes = [0; 18];
        bytes.copy_from_slice(greeting.as_bytes());
        bytes
    }

    /// Begins, with the flags that the client answered the greeting with. `None` if it is none of ours.
    pub fn new(exports: &'exports [ExportFacts], tls: TlsState, client_flags: [u8; 4]) -> Option<Self> {
        let flags = u32::from_be_bytes(client_flags);
        let fixed = u32::from(handshake_flag::FIXED_NEWSTYLE);
        let no_zeroes = u32::from(handshake_flag::NO_ZEROES);
        (flags & fixed != 0 && flags & !(fixed | no_zeroes) == 0).then_some(Self {
            exports,
            tls,
            has_no_zeroes: flags & no_zeroes != 0,
            is_structured: false,
            headers: Headers::Compact,
            allocation_of: None,
            unknown: None,
        })
    }

    /// The name of the export that was asked for last and is not there.
    pub fn unknown(&self) -> Option<&[u8]> {
        self.unknown.as_deref()
    }

    /// Says that the TLS handshake succeeded.
    pub fn tls_began(&mut self) {
        self.tls = TlsState::Active;
        self.is_structured = false;
        self.headers = Headers::Compact;
        self.allocation_of = None;
    }

    /// Answers the option `code` with its `data`.
    pub fn answer(&mut self, code: u32, data: &[u8]) -> Answer {
        let mut out = Replies { code, bytes: Vec::new() };
        if self.tls == TlsState::Required {
            match code {
                option::ABORT | option::STARTTLS => {}
                // It knows no errors.
                option::EXPORT_NAME => return (Vec::new(), Next::Close),
                _ => return out.error(rep::ERR_TLS_REQD, "this server wants TLS first"),
            }
        }
        match code {
            option::EXPORT_NAME => self.export_name(data),
            option::ABORT => {
                out.push(rep::ACK, &[]);
                (out.bytes, Next::Close)
            }
            option::LIST => self.list(out, data),
            option::STARTTLS => self.start_tls(out, data),
            option::INFO | option::GO => self.info(out, data),
            option::STRUCTURED_REPLY if self.headers == Headers::Extended => {
                out.error(rep::ERR_EXT_HEADER_REQD, "extended headers were agreed on")
            }
            option::EXTENDED_HEADERS if data.is_empty() => {
                (self.is_structured, self.headers) = (true, Headers::Extended);
                out.ack()
            }
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.is_structured = true;
                out.ack()
            }
            option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => {
                out.error(rep::ERR_INVALID, "this option has no data")
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(out, data),
            _ => out.error(rep::ERR_UNSUP, "unknown option"),
        }
    }

    /// The export of that name. The empty name means the only one: which of several is meant is not guessed.
    fn find(&self, name: &[u8]) -> Option<(usize, &'exports ExportFacts)> {
        let named = self.exports.iter().enumerate().find(|(_, export)| export.name.as_bytes() == name);
        named.or_else(|| {
            let mut public = self.public();
            let only = public.next().filter(|_| name.is_empty());
            only.filter(|_| public.next().is_none())
        })
    }

    fn public(&self) -> impl Iterator<Item = (usize, &'exports ExportFacts)> + use<'exports> {
        self.exports.iter().enumerate().filter(|(_, export)| !export.is_private)
    }

    fn session(&self, index: usize, export: &ExportFacts) -> Session {
        Session {
            export_index: index,
            len_bytes: export.len_bytes,
            is_read_only: export.is_read_only,
            is_structured: self.is_structured,
            headers: self.headers,
            has_allocation: self.is_structured && self.allocation_of == Some(index),
        }
    }

    fn export_name(&mut self, name: &[u8]) -> Answer {
        // After extended headers a client must not ask like this, and errors cannot be told.
        let found = self.find(name).filter(|_| self.headers == Headers::Compact);
        let Some((index, export)) = found else {
            self.unknown = Some(name.to_vec());
            return (Vec::new(), Next::Close);
        };
        let reply = ExportNameReply {
            len_bytes: U64::new(export.len_bytes),
            flags: U16::new(export.flags(self.is_structured, false)),
        };
        let mut bytes = reply.as_bytes().to_vec();
        if !self.has_no_zeroes {
            bytes.resize(bytes.len() + TRAILING_ZEROS, 0);
        }
        (bytes, Next::Transmission(self.session(index, export)))
    }

    fn list(&self, mut out: Replies, data: &[u8]) -> Answer {
        if !data.is_empty() {
            return out.error(rep::ERR_INVALID, "this option has no data");
        }
        for (_, export) in self.public() {
            let mut entry = counted(export.name.as_bytes());
            entry.extend_from_slice(export.description.as_bytes());
            out.push(rep::SERVER, &entry);
        }
        out.ack()
    }

    fn start_tls(&self, mut out: Replies, data: &[u8]) -> Answer {
        match self.tls {
            _ if !data.is_empty() => out.error(rep::ERR_INVALID, "this option has no data"),
            TlsState::None => out.error(rep::ERR_POLICY, "this server has no TLS here"),
            TlsState::Active => out.error(rep::ERR_INVALID, "TLS is active already"),
            TlsState::Required => {
                out.push(rep::ACK, &[]);
                (out.bytes, Next::Tls)
            }
        }
    }

    fn info(&mut self, mut out: Replies, data: &[u8]) -> Answer {
        let Some((name, wanted)) = parse_info(data) else {
            return out.error(rep::ERR_INVALID, "malformed data");
        };
        let Some((index, export)) = self.find(name) else {
            self.unknown = Some(name.to_vec());
            return out.error(rep::ERR_UNKNOWN, why_unknown(name));
        };
        let has_status_payload = self.headers == Headers::Extended && self.allocation_of == Some(index);
        let export_info = InfoExport {
            kind: U16::new(info::EXPORT),
            len_bytes: U64::new(export.len_bytes),
            flags: U16::new(export.flags(self.is_structured, has_status_payload)),
        };
        out.push(rep::INFO, export_info.as_bytes());
        if wanted.contains(&info::NAME) {
            out.push(rep::INFO, &tagged(info::NAME, &export.name));
        }
        if wanted.contains(&info::DESCRIPTION) && !export.description.is_empty() {
            out.push(rep::INFO, &tagged(info::DESCRIPTION, &export.description));
        }
        // Told to all: it costs nothing.
        let sizes = InfoBlockSize {
            kind: U16::new(info::BLOCK_SIZE),
            minimum: U32::new(1),
            preferred: U32::new(export.preferred_bytes),
            maximum: U32::new(PAYLOAD_BYTES_MAX),
        };
        out.push(rep::INFO, sizes.as_bytes());
        out.push(rep::ACK, &[]);
        let next = if out.code == option::GO {
            Next::Transmission(self.session(index, export))
        } else {
            Next::Option
        };
        (out.bytes, next)
    }

    fn contexts(&mut self, mut out: Replies, data: &[u8]) -> Answer {
        let is_set = out.code == option::SET_META_CONTEXT;
        if is_set {
            // Whatever comes of it, the last one is no longer valid.
            self.allocation_of = None;
        }
        if !self.is_structured {
            return out.error(rep::ERR_INVALID, "structured replies come first");
        }
        let Some((name, queries)) = parse_contexts(data) else {
            return out.error(rep::ERR_INVALID, "malformed data");
        };
        let Some((index, _)) = self.find(name) else {
            return out.error(rep::ERR_UNKNOWN, why_unknown(name));
        };
        let is_wanted = queries.contains(&ALLOCATION)
            || (!is_set && (queries.is_empty() || queries.contains(&b"base:".as_slice())));
        if is_wanted {
            let id = if is_set { ALLOCATION_ID } else { 0 };
            let mut context = id.to_be_bytes().to_vec();
            context.extend_from_slice(ALLOCATION);
            out.push(rep::META_CONTEXT, &context);
            if is_set {
                self.allocation_of = Some(index);
            }
        }
        out.ack()
    }
}

/// What a client is told that asked for an export that is not found.
fn why_unknown(name: &[u8]) -> &'static str {
    if name.is_empty() {
        "there are several exports: ask for one by its name"
    } else {
        "no export of this name"
    }
}

/// Replies to one option.
struct Replies {
    code: u32,
    bytes: Vec<u8>,
}

impl Replies {
    fn push(&mut self, kind: u32, data: &[u8]) {
        let header = OptionReplyHeader {
            magic: U64::new(REP_MAGIC),
            code: U32::new(self.code),
            kind: U32::new(kind),
            len_bytes: U32::new(u32::try_from(data.len()).expect("replies are short")),
        };
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(data);
    }

    fn ack(mut self) -> Answer {
        self.push(rep::ACK, &[]);
        (self.bytes, Next::Option)
    }

    fn error(mut self, kind: u32, message: &str) -> Answer {
        self.push(kind, message.as_bytes());
        (self.bytes, Next::Option)
    }
}

fn counted(bytes: &[u8]) -> Vec<u8> {
    let len = u32::try_from(bytes.len()).expect("names are short");
    [len.to_be_bytes().as_slice(), bytes].concat()
}

fn tagged(kind: u16, text: &str) -> Vec<u8> {
    [kind.to_be_bytes().as_slice(), text.as_bytes()].concat()
}

fn take_u32(data: &mut &[u8]) -> Option<u32> {
    let (head, rest) = data.split_first_chunk::<4>()?;
    *data = rest;
    Some(u32::from_be_bytes(*head))
}

fn take_string<'data>(data: &mut &'data [u8]) -> Option<&'data [u8]> {
    let len = usize::try_from(take_u32(data)?).ok()?;
    if len > NAME_BYTES_MAX {
        return None;
    }
    let (string, rest) = data.split_at_checked(len)?;
    *data = rest;
    Some(string)
}

/// A name, and the kinds of information wanted.
fn parse_info(mut data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let name = take_string(&mut data)?;
    let (count, rest) = data.split_first_chunk::<2>()?;
    let (kinds, tail) = rest.as_chunks::<2>();
    let is_whole = tail.is_empty() && kinds.len() == usize::from(u16::from_be_bytes(*count));
    is_whole.then(|| (name, kinds.iter().map(|kind| u16::from_be_bytes(*kind)).collect()))
}

/// A name, and the contexts asked for.
fn parse_contexts(mut data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let name = take_string(&mut data)?;
    let count = take_u32(&mut data)?;
    let mut queries = Vec::new();
    for _ in 0..count {
        // Each takes at least four bytes of `data`, which bounds them.
        queries.push(take_string(&mut data)?);
    }
    data.is_empty().then_some((name, queries))
}
