//! The negotiation with a server, as its client.

use std::collections::BTreeSet;
use std::io;
use std::time::Instant;

use block::{Error, FieldValue, Result};
use zerocopy::{FromBytes, IntoBytes};

use crate::PAYLOAD_BYTES_MAX;
use crate::corrupt::Corrupt;
use crate::inbox::Inbox;
use crate::layout::{
    Greeting, IHAVEOPT, InfoBlockSize, InfoExport, NBDMAGIC, OptionHeader, OptionReplyHeader, REP_MAGIC,
    export_flag, handshake_flag, info, option, rep,
};
use crate::transport::Transport;

/// The most bytes of a reply to an option: no information that is asked for is as long.
const REPLY_BYTES_MAX: u32 = 64 << 10;
/// The most replies to one option: each kind of information may come once.
const REPLY_COUNT_MAX: usize = 64;
/// The most exports of a list that are told to the user.
const LISTED_COUNT_MAX: usize = 8;
/// The most replies to a list that are read.
const LIST_COUNT_MAX: usize = 10_000;
/// The least and the largest block that a server may ask for (doc/proto.md, "Block size constraints").
pub(crate) const MINIMUM_BYTES_MAX: u32 = 64 << 10;
/// What every server takes at once.
const MAXIMUM_BYTES_MIN: u32 = 1 << 20;
/// What reading is aligned to where the server says nothing.
const PREFERRED_BYTES: u32 = 4096;

const ALLOCATION: &str = "base:allocation";

/// What is asked of a server.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The export's name; the empty one is the server's own choice.
    pub export: String,
    /// The metadata context that is asked for; `None` for `base:allocation`.
    pub context: Option<String>,
    /// Go without extended headers, as if the server did not know them.
    pub is_compact: bool,
    /// Begin with TLS, or go without.
    #[cfg(feature = "tls")]
    pub tls: Option<crate::ClientTls>,
}

/// What a server says of its export, held against what makes sense.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Length of the disk in bytes.
    pub len_bytes: u64,
    /// The transmission flags ([`export_flag`]).
    pub flags: u16,
    /// Requests are aligned to this: a power of two.
    pub minimum_bytes: u32,
    /// Requests should be aligned to this: a power of two.
    pub preferred_bytes: u32,
    /// The longest payload.
    pub maximum_bytes: u32,
    /// Whether replies are structured.
    pub is_structured: bool,
    /// Whether requests and replies have extended headers, whose lengths have 64 bits.
    pub is_extended: bool,
    /// The number that stands for the metadata context (as a rule `base:allocation`) in replies, if that may be asked.
    pub allocation_id: Option<u32>,
}

impl Facts {
    /// Whether a flag ([`export_flag`]) is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Whether the export cannot be written.
    pub fn is_read_only(&self) -> bool {
        self.has(export_flag::READ_ONLY)
    }
}

/// Negotiates until requests can be sent. Fails with `TimedOut` when the deadline has passed.
pub(crate) fn negotiate(
    transport: &mut Transport,
    inbox: &mut Inbox,
    wanted: &Wanted,
    deadline: Instant,
) -> Result<Facts> {
    let mut talk = Talk { transport, inbox, deadline };
    talk.greet()?;
    #[cfg(feature = "tls")]
    if let Some(tls) = &wanted.tls {
        talk.start_tls(tls)?;
    }
    // They bring structured replies with them.
    let is_extended = !wanted.is_compact && talk.ask(option::EXTENDED_HEADERS, &[])?.is_ack();
    let is_structured = is_extended || talk.ask(option::STRUCTURED_REPLY, &[])?.is_ack();
    let allocation_id = if is_structured {
        talk.agree_on_context(&wanted.export, wanted.context.as_deref().unwrap_or(ALLOCATION))?
    } else {
        None
    };
    let facts = talk.go(&wanted.export)?;
    Ok(Facts { is_structured, is_extended, allocation_id, ..facts })
}

struct Talk<'a> {
    transport: &'a mut Transport,
    inbox: &'a mut Inbox,
    deadline: Instant,
}

/// How a server answered an option.
struct Answer {
    /// What came before the last reply: kinds and data.
    told: Vec<(u32, Vec<u8>)>,
    /// The kind of the last reply: an acknowledgement, or an error.
    last: u32,
    /// Its text.
    text: String,
}

impl Answer {
    fn is_ack(&self) -> bool {
        self.last == rep::ACK
    }
}

impl Talk<'_> {
    fn greet(&mut self) -> Result<()> {
        let greeting: Greeting = self.inbox.value(self.transport, Some(self.deadline)).map_err(lost)?;
        expect(Corrupt::Greeting, greeting.magic.get(), NBDMAGIC)?;
        expect(Corrupt::Style, greeting.style.get(), IHAVEOPT)?;
        let known = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        let flags = greeting.flags.get() & known;
        if flags & handshake_flag::FIXED_NEWSTYLE == 0 {
            return Err(Error::unsupported("an NBD server without fixed newstyle negotiation"));
        }
        self.send(&u32::from(flags).to_be_bytes())
    }

    #[cfg(feature = "tls")]
    fn start_tls(&mut self, tls: &crate::ClientTls) -> Result<()> {
        let answer = self.ask(option::STARTTLS, &[])?;
        if !answer.is_ack() {
            return Err(Error::refused(format!("the server has no TLS here: {}", said(&answer)))
                .hint("nbd:// and nbd+unix:// go without it"));
        }
        if !self.inbox.is_empty() {
            // Somebody in between could have put it there for what is believed afterwards.
            return Err(Error::corrupt(Corrupt::Greeting).field("bytes before TLS", "some", "none"));
        }
        self.transport
            .start_tls_as_client(tls.config.clone(), tls.host.clone(), self.deadline)
            .map_err(|error| Error::io("agree on TLS with the server", error))
    }

    fn agree_on_context(&mut self, export: &str, context: &str) -> Result<Option<u32>> {
        let query =
            [&counted(export.as_bytes())[..], &1_u32.to_be_bytes(), &counted(context.as_bytes())].concat();
        let answer = self.ask(option::SET_META_CONTEXT, &query)?;
        if !answer.is_ack() {
            return Ok(None);
        }
        let mut ids =
            answer.told.iter().filter(|(kind, _)| *kind == rep::META_CONTEXT).filter_map(|(_, data)| {
                let (id, name) = data.split_first_chunk::<4>()?;
                (name == context.as_bytes()).then(|| u32::from_be_bytes(*id))
            });
        Ok(ids.next_back())
    }

    fn go(&mut self, export: &str) -> Result<Facts> {
        let kinds = [1_u16.to_be_bytes(), info::BLOCK_SIZE.to_be_bytes()].concat();
        let answer = self.ask(option::GO, &[counted(export.as_bytes()), kinds].concat())?;
        if answer.is_ack() {
            return facts(&answer);
        }
        Err(match answer.last {
            rep::ERR_UNSUP => Error::unsupported("an NBD server that does not know NBD_OPT_GO"),
            rep::ERR_TLS_REQD => {
                Error::refused("the server wants TLS").hint("nbds:// or nbds+unix:// in place of nbd")
            }
            _ => {
                let error = Error::refused(format!(
                    "the server does not give the export '{export}': {}",
                    said(&answer)
                ));
                match self.list() {
                    Some(names) => error.hint(format!("it has {names}")),
                    None => error,
                }
            }
        })
    }

    /// The exports that there are, in words. `None` if the server does not say, or none is told.
    fn list(&mut self) -> Option<String> {
        let answer = self.ask(option::LIST, &[]).ok()?;
        let name = |data: &[u8]| {
            let (len, rest) = data.split_first_chunk::<4>()?;
            let name = rest.get(..usize::try_from(u32::from_be_bytes(*len)).ok()?)?;
            Some(if name.is_empty() {
                "one without a name".to_owned()
            } else {
                format!("'{}'", name.escape_ascii())
            })
        };
        let names: BTreeSet<_> = answer
            .told
            .iter()
            .filter(|(kind, _)| *kind == rep::SERVER)
            .filter_map(|(_, data)| name(data))
            .collect();
        let more = if names.len() > LISTED_COUNT_MAX { " and others" } else { "" };
        let shown: Vec<_> = names.into_iter().take(LISTED_COUNT_MAX).collect();
        (!shown.is_empty()).then(|| format!("{}{more}", shown.join(", ")))
    }

    /// Sends an option and reads all replies to it.
    fn ask(&mut self, code: u32, data: &[u8]) -> Result<Answer> {
        let len_bytes = u32::try_from(data.len()).map_err(|_| Error::invalid("an option's length"))?;
        let header = OptionHeader { magic: IHAVEOPT.into(), code: code.into(), len_bytes: len_bytes.into() };
        self.send(&[header.as_bytes(), data].concat())?;
        let mut told = Vec::new();
        // A list is as long as it is, but its tail is of no use.
        let count_max = if code == option::LIST { LIST_COUNT_MAX } else { REPLY_COUNT_MAX };
        for _ in 0..count_max {
            let (kind, data) = self.reply(code)?;
            if kind == rep::ACK || kind & ERROR_BIT != 0 {
                let text = printable(&data);
                return Ok(Answer { told, last: kind, text });
            }
            if told.len() < REPLY_COUNT_MAX {
                told.push((kind, data));
            }
        }
        Err(Error::corrupt(Corrupt::Endless))
    }

    fn reply(&mut self, code: u32) -> Result<(u32, Vec<u8>)> {
        let deadline = Some(self.deadline);
        let reply: OptionReplyHeader = self.inbox.value(self.transport, deadline).map_err(lost)?;
        expect(Corrupt::OptionReply, reply.magic.get(), REP_MAGIC)?;
        expect(Corrupt::OptionReply, reply.code.get().into(), code.into())?;
        let len_bytes = reply.len_bytes.get();
        if len_bytes > REPLY_BYTES_MAX {
            let limit = format!("at most {REPLY_BYTES_MAX}");
            return Err(Error::corrupt(Corrupt::OptionReply).field("length", len_bytes, limit));
        }
        let data = self.inbox.vec(self.transport, len_bytes as usize, deadline).map_err(lost)?;
        Ok((reply.kind.get(), data))
    }

    fn send(&self, bytes: &[u8]) -> Result<()> {
        self.transport.send_bytes(bytes).map_err(lost)
    }
}

/// Of every reply that is an error (doc/proto.md, "Option reply types").
const ERROR_BIT: u32 = 1 << 31;

/// What the acknowledgement of `GO` was preceded by.
fn facts(answer: &Answer) -> Result<Facts> {
    let infos = || answer.told.iter().filter(|(kind, _)| *kind == rep::INFO).map(|(_, data)| &data[..]);
    let export = infos()
        .filter_map(|data| InfoExport::read_from_bytes(data).ok())
        .find(|told| told.kind.get() == info::EXPORT)
        .ok_or_else(|| Error::corrupt(Corrupt::Export).field("size", "not told", "told"))?;
    let sizes = infos()
        .filter_map(|data| InfoBlockSize::read_from_bytes(data).ok())
        .find(|told| told.kind.get() == info::BLOCK_SIZE);
    let len_bytes = export.len_bytes.get();
    if i64::try_from(len_bytes).is_err() {
        return Err(Error::corrupt(Corrupt::Export).field(
            "size",
            FieldValue::hex(len_bytes),
            "less than 8 EiB",
        ));
    }
    let (minimum_bytes, preferred_bytes, maximum_bytes) = match sizes {
        None => (1, PREFERRED_BYTES, PAYLOAD_BYTES_MAX),
        Some(sizes) => (sizes.minimum.get(), sizes.preferred.get(), sizes.maximum.get()),
    };
    let wrong =
        |name, found: u32, expected| Err(Error::corrupt(Corrupt::Export).field(name, found, expected));
    if !minimum_bytes.is_power_of_two() || minimum_bytes > MINIMUM_BYTES_MAX {
        return wrong("smallest block", minimum_bytes, "a power of two up to 65536");
    }
    if !preferred_bytes.is_power_of_two() || preferred_bytes < minimum_bytes {
        return wrong("preferred block", preferred_bytes, "a power of two, not below the smallest");
    }
    if maximum_bytes < MAXIMUM_BYTES_MIN.min(minimum_bytes.max(u32::try_from(len_bytes).unwrap_or(u32::MAX)))
    {
        return wrong("largest block", maximum_bytes, "1 MiB or more");
    }
    let maximum_bytes = maximum_bytes.min(PAYLOAD_BYTES_MAX) / minimum_bytes * minimum_bytes;
    Ok(Facts {
        len_bytes,
        flags: export.flags.get(),
        minimum_bytes,
        preferred_bytes,
        maximum_bytes: maximum_bytes.max(minimum_bytes),
        is_structured: false,
        is_extended: false,
        allocation_id: None,
    })
}

fn said(answer: &Answer) -> String {
    match answer.last {
        _ if !answer.text.is_empty() => answer.text.clone(),
        rep::ERR_UNKNOWN => "there is none of this name".to_owned(),
        rep::ERR_POLICY => "its policy is against it".to_owned(),
        rep::ERR_UNSUP => "it does not know how".to_owned(),
        kind => format!("error {kind:#x}"),
    }
}

/// The text of a stranger, without what could act on a terminal.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

fn counted(bytes: &[u8]) -> Vec<u8> {
    let len = u32::try_from(bytes.len()).expect("names are short: an address has a bound");
    [len.to_be_bytes().as_slice(), bytes].concat()
}

fn lost(error: io::Error) -> Error {
    Error::io("talk to the NBD server", error)
}

fn expect(what: Corrupt, found: u64, expected: u64) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::corrupt(what).field("it", FieldValue::hex(found), format_args!("{expected:#x}")))
}
