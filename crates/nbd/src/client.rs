//! The client side, as far as it takes to measure a server: one request at a time on a connection over a Unix socket, with
//! simple replies.
//!
//! Invariants: nothing that a server says takes unbounded memory or waits for ever.
//!
//! Absent on purpose: TCP, TLS, structured replies, metadata contexts: [`crate::Connection`] has them. The server's tests have a client of their own, which
//! shares nothing with the server.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use block::{Error, FieldValue, Result};
use zerocopy::{FromBytes, IntoBytes};

use crate::PAYLOAD_BYTES_MAX;
use crate::corrupt::Corrupt;
use crate::layout::{
    Greeting, IHAVEOPT, InfoExport, NBDMAGIC, OptionHeader, OptionReplyHeader, REP_MAGIC, REQUEST_MAGIC,
    RequestHeader, SIMPLE_REPLY_MAGIC, SimpleReply, cmd, export_flag, handshake_flag, info, option, rep,
};

/// How long a server may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// The most bytes of a reply to an option: no information that is asked for is as long.
const REPLY_BYTES_MAX: u32 = 64 << 10;
/// The most replies to one option: each kind of information may come once.
const REPLY_COUNT_MAX: usize = 64;

/// A connection to an export.
pub struct Client {
    stream: UnixStream,
    len_bytes: u64,
    flags: u16,
    cookie: u64,
    /// The bytes that the reply to the request under way brings.
    pending: Option<usize>,
}

impl Client {
    /// Connects to the export `name` at the socket `path`; the empty name is the server's own choice.
    pub fn connect(path: impl AsRef<Path>, name: &str) -> Result<Self> {
        let path = path.as_ref();
        let failed = |error| Error::io("connect", error).path(path.display());
        let stream = UnixStream::connect(path).map_err(failed)?;
        stream.set_read_timeout(Some(SILENCE_MAX)).map_err(failed)?;
        stream.set_write_timeout(Some(SILENCE_MAX)).map_err(failed)?;
        let mut client = Self { stream, len_bytes: 0, flags: 0, cookie: 0, pending: None };
        client.negotiate(name).map_err(|error| error.path(path.display()))?;
        Ok(client)
    }

    /// Length of the disk in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Whether the server takes [`Self::begin_trim`].
    pub fn can_trim(&self) -> bool {
        self.flags & export_flag::SEND_TRIM != 0
    }

    /// Asks for `data` to be written at `offset`.
    pub fn begin_write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.begin(cmd::WRITE, offset, data.len())?;
        self.send(data)
    }

    /// Asks for `len` bytes from `offset` on.
    pub fn begin_read(&mut self, offset: u64, len: usize) -> Result<()> {
        self.begin(cmd::READ, offset, len)?;
        self.pending = Some(len);
        Ok(())
    }

    /// Says that `len` bytes from `offset` on mean nothing any more.
    pub fn begin_trim(&mut self, offset: u64, len: usize) -> Result<()> {
        self.begin(cmd::TRIM, offset, len)
    }

    /// Asks for all that was written to be on stable storage.
    pub fn begin_flush(&mut self) -> Result<()> {
        self.begin(cmd::FLUSH, 0, 0)
    }

    /// Waits for the reply to what was begun. What is read goes to the start of `buf`.
    pub fn finish(&mut self, buf: &mut [u8]) -> Result<()> {
        let len = self.pending.take().ok_or_else(|| Error::invalid("no request is under way"))?;
        let reply: SimpleReply = self.receive()?;
        expect(Corrupt::Reply, reply.magic.get().into(), SIMPLE_REPLY_MAGIC.into())?;
        expect(Corrupt::Cookie, reply.cookie.get(), self.cookie)?;
        if reply.error.get() != 0 {
            let code = i32::try_from(reply.error.get()).unwrap_or(i32::MAX);
            return Err(Error::io("the server refused a request", io::Error::from_raw_os_error(code)));
        }
        let buf = buf.get_mut(..len).ok_or_else(|| Error::invalid("too little room for what is read"))?;
        self.stream.read_exact(buf).map_err(lost)
    }

    fn negotiate(&mut self, name: &str) -> Result<()> {
        let greeting: Greeting = self.receive()?;
        expect(Corrupt::Greeting, greeting.magic.get(), NBDMAGIC)?;
        expect(Corrupt::Style, greeting.style.get(), IHAVEOPT)?;
        let known = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        self.send(u32::from(greeting.flags.get() & known).to_be_bytes().as_slice())?;
        let name_len = u32::try_from(name.len()).map_err(|_| Error::invalid("name of an export"))?;
        let data = [&name_len.to_be_bytes(), name.as_bytes(), &[0, 0]].concat();
        let len_bytes = u32::try_from(data.len()).map_err(|_| Error::invalid("name of an export"))?;
        let header =
            OptionHeader { magic: IHAVEOPT.into(), code: option::GO.into(), len_bytes: len_bytes.into() };
        self.send(header.as_bytes())?;
        self.send(&data)?;
        let mut is_told = false;
        for _ in 0..REPLY_COUNT_MAX {
            let reply: OptionReplyHeader = self.receive()?;
            expect(Corrupt::OptionReply, reply.magic.get(), REP_MAGIC)?;
            let len_bytes = reply.len_bytes.get();
            if len_bytes > REPLY_BYTES_MAX {
                let limit = format!("at most {REPLY_BYTES_MAX}");
                return Err(Error::corrupt(Corrupt::OptionReply).field("length", len_bytes, limit));
            }
            let mut data = vec![0; len_bytes as usize];
            self.stream.read_exact(&mut data).map_err(lost)?;
            match reply.kind.get() {
                rep::ACK if is_told => return Ok(()),
                rep::INFO => is_told |= self.learn(&data),
                kind => {
                    let said = String::from_utf8_lossy(&data).into_owned();
                    return Err(Error::refused(format!(
                        "the server does not give the export '{name}': {said}"
                    ))
                    .field("reply", FieldValue::hex(kind), "ACK after INFO"));
                }
            }
        }
        Err(Error::corrupt(Corrupt::Endless))
    }

    /// Whether this told what the export is.
    fn learn(&mut self, data: &[u8]) -> bool {
        match InfoExport::read_from_bytes(data) {
            Ok(told) if told.kind.get() == info::EXPORT => {
                self.len_bytes = told.len_bytes.get();
                self.flags = told.flags.get();
                true
            }
            _ => false,
        }
    }

    fn begin(&mut self, kind: u16, offset: u64, len: usize) -> Result<()> {
        if self.pending.is_some() {
            return Err(Error::invalid("a request is under way"));
        }
        let len_bytes = u32::try_from(len).ok().filter(|len| *len <= PAYLOAD_BYTES_MAX);
        let len_bytes = len_bytes.ok_or_else(|| {
            Error::invalid("a request").field("length", len, format_args!("at most {PAYLOAD_BYTES_MAX}"))
        })?;
        self.cookie = self.cookie.wrapping_add(1);
        let header = RequestHeader {
            magic: REQUEST_MAGIC.into(),
            flags: 0.into(),
            kind: kind.into(),
            cookie: self.cookie.into(),
            offset: offset.into(),
            len_bytes: len_bytes.into(),
        };
        self.pending = Some(0);
        self.send(header.as_bytes())
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).map_err(lost)
    }

    fn receive<T: FromBytes + IntoBytes>(&mut self) -> Result<T> {
        let mut value = T::new_zeroed();
        self.stream.read_exact(value.as_mut_bytes()).map_err(lost)?;
        Ok(value)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.pending.is_none() {
            let _ = self.begin(cmd::DISC, 0, 0);
        }
    }
}

fn lost(error: io::Error) -> Error {
    Error::io("talk to the server", error)
}

fn expect(what: Corrupt, found: u64, expected: u64) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::corrupt(what).field("it", FieldValue::hex(found), format_args!("{expected:#x}")))
}
