//! A connection on which many threads ask at once.
//!
//! Whoever waits for a reply receives: it reads the start of the next reply, and if that answers another thread's request, hands the right to
//! receive to that thread, which reads its payload straight to where it is wanted. So nothing is copied, and no thread is there for
//! receiving alone.
//!
//! Invariants: at any moment one thread at most receives; once a connection is lost or does not keep to the protocol, every request on it, and each
//! later one, fails.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use block::{Error, ErrorKind, Result};
use zerocopy::{FromBytes, IntoBytes};

use crate::corrupt::Corrupt;
use crate::handshake::{Facts, Wanted, negotiate};
use crate::inbox::Inbox;
use crate::layout::{
    ChunkHeader, EXTENDED_REPLY_MAGIC, EXTENDED_REQUEST_MAGIC, ExtendedChunkHeader, ExtendedRequestHeader,
    REQUEST_MAGIC, RequestHeader, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, SimpleReply, cmd, cmd_flag,
};
use crate::lock;
use crate::reply::{Brings, Chunk, Expected, Failure, broken};
use crate::transport::{Socket, Transport};

/// A connection to an export, after the negotiation.
pub struct Connection {
    transport: Transport,
    facts: Facts,
    /// Held while a request is sent: requests do not mix.
    sending: Mutex<()>,
    state: Mutex<State>,
}

struct State {
    receiving: Receiving,
    /// Who waits for which reply.
    waiting: BTreeMap<u64, Arc<Condvar>>,
    last_cookie: u64,
    /// Why no more requests are taken: the kind, and the text of the first error.
    ended: Option<(ErrorKind, String)>,
}

/// Who has the right to receive.
enum Receiving {
    /// Whoever comes first.
    Nobody(Inbox),
    /// A thread that is at it.
    Somebody,
    /// The thread that waits for this reply, whose start was read.
    Handed(u64, Inbox, Start),
}

/// The start of a reply.
#[derive(Clone, Copy, Debug)]
enum Start {
    Simple(SimpleReply),
    Chunk(Chunk),
}

impl Start {
    fn cookie(&self) -> u64 {
        match self {
            Self::Simple(reply) => reply.cookie.get(),
            Self::Chunk(chunk) => chunk.cookie,
        }
    }
}

impl Connection {
    /// Negotiates on a connected socket. `negotiation_max` is for all of it, `silence_max` for each pause afterwards.
    pub fn new(
        socket: Socket,
        wanted: &Wanted,
        negotiation_max: Duration,
        silence_max: Duration,
    ) -> Result<Self> {
        let mut transport = Transport::new(socket);
        let mut inbox = Inbox::new();
        let failed = |error| Error::io("talk to the NBD server", error);
        transport.socket().set_timeouts(negotiation_max).map_err(failed)?;
        let facts = negotiate(&mut transport, &mut inbox, wanted, Instant::now() + negotiation_max)?;
        transport.socket().set_timeouts(silence_max).map_err(failed)?;
        let state = State {
            receiving: Receiving::Nobody(inbox),
            waiting: BTreeMap::new(),
            last_cookie: 0,
            ended: None,
        };
        Ok(Self { transport, facts, sending: Mutex::new(()), state: Mutex::new(state) })
    }

    /// What the server says of the export.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Reads `buf` from `offset` on. Both must suit the server's block sizes.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Failure> {
        let len_bytes = buf.len() as u64;
        let expected = Expected::new(offset, len_bytes, Brings::Data(buf));
        self.run(cmd::READ, &[], expected).map(drop)
    }

    /// Lengths and states of what follows `offset`, as far as the server tells at once.
    pub(crate) fn allocation(
        &self,
        id: u32,
        offset: u64,
        len_bytes: u64,
    ) -> Result<Vec<(u64, u64)>, Failure> {
        let brings = Brings::Extents { id, found: Vec::new() };
        let expected = Expected::new(offset, len_bytes, brings);
        match self.run(cmd::BLOCK_STATUS, &[], expected)? {
            Brings::Extents { found, .. } => Ok(found),
            Brings::Nothing | Brings::Data(_) => unreachable!("extents were asked for"),
        }
    }

    /// Writes `buf` from `offset` on. Both must suit the server's block sizes.
    pub(crate) fn write(&self, offset: u64, buf: &[u8]) -> Result<(), Failure> {
        let expected = Expected::new(offset, buf.len() as u64, Brings::Nothing);
        self.run(cmd::WRITE, buf, expected).map(drop)
    }

    /// Makes `len_bytes` from `offset` on zero. The server may give their storage back.
    pub(crate) fn zero(&self, offset: u64, len_bytes: u32) -> Result<(), Failure> {
        let expected = Expected::new(offset, len_bytes.into(), Brings::Nothing);
        self.run(cmd::WRITE_ZEROES, &[], expected).map(drop)
    }

    /// Has all that was written be on stable storage.
    pub(crate) fn flush(&self) -> Result<(), Failure> {
        self.run(cmd::FLUSH, &[], Expected::new(0, 0, Brings::Nothing)).map(drop)
    }

    /// Sends a request and waits for its reply.
    fn run<'buf>(
        &self,
        kind: u16,
        payload: &[u8],
        mut expected: Expected<'buf>,
    ) -> Result<Brings<'buf>, Failure> {
        let woken = Arc::new(Condvar::new());
        let cookie = {
            let mut state = lock(&self.state);
            state.check_going()?;
            state.last_cookie += 1;
            let cookie = state.last_cookie;
            state.waiting.insert(cookie, woken.clone());
            cookie
        };
        let header = self.header(kind, cookie, expected.offset, expected.len_bytes);
        let sent = {
            let _alone = lock(&self.sending);
            self.transport.send(&mut [IoSlice::new(&header), IoSlice::new(payload)])
        };
        let done = match sent {
            Ok(()) => self.receive(cookie, &woken, &mut expected),
            Err(error) => Err(in_time(error).into()),
        };
        if let Err(Failure::Broken(error) | Failure::Lost(error)) = &done {
            self.end(error);
        }
        lock(&self.state).waiting.remove(&cookie);
        done.map(|()| expected.brings)
    }

    /// The header of a request, as it was agreed on.
    fn header(&self, kind: u16, cookie: u64, offset: u64, len_bytes: u64) -> Vec<u8> {
        if !self.facts.is_extended {
            let header = RequestHeader {
                magic: REQUEST_MAGIC.into(),
                flags: 0.into(),
                kind: kind.into(),
                cookie: cookie.into(),
                offset: offset.into(),
                len_bytes: u32::try_from(len_bytes).expect("within a server's bounds").into(),
            };
            return header.as_bytes().to_vec();
        }
        let flags = if kind == cmd::WRITE { cmd_flag::PAYLOAD_LEN } else { 0 };
        let header = ExtendedRequestHeader {
            magic: EXTENDED_REQUEST_MAGIC.into(),
            flags: flags.into(),
            kind: kind.into(),
            cookie: cookie.into(),
            offset: offset.into(),
            len_bytes: len_bytes.into(),
        };
        header.as_bytes().to_vec()
    }

    /// Receives until the reply to `cookie` is whole, or waits while others receive.
    fn receive(&self, cookie: u64, woken: &Condvar, expected: &mut Expected<'_>) -> Result<(), Failure> {
        loop {
            let (mut inbox, mut start) = self.turn(cookie, woken)?;
            loop {
                let next = match start.take() {
                    Some(start) => start,
                    None if self.facts.is_extended => read_extended(&self.transport, &mut inbox)?,
                    None => read_start(&self.transport, &mut inbox)?,
                };
                if next.cookie() != cookie {
                    self.hand_over(next, inbox)?;
                    break;
                }
                let done = match next {
                    Start::Simple(reply) => {
                        expected.simple(&reply, &self.transport, &mut inbox).map(|()| true)
                    }
                    Start::Chunk(chunk) => expected.chunk(&chunk, &self.transport, &mut inbox),
                };
                match done {
                    Ok(false) => {}
                    Ok(true) => {
                        self.let_go(cookie, inbox);
                        return Ok(());
                    }
                    Err(Failure::Answered(error)) => {
                        self.let_go(cookie, inbox);
                        return Err(Failure::Answered(error));
                    }
                    Err(failure) => return Err(failure),
                }
            }
        }
    }

    /// Waits for the right to receive.
    fn turn(&self, cookie: u64, woken: &Condvar) -> Result<(Inbox, Option<Start>), Failure> {
        let mut state = lock(&self.state);
        loop {
            state.check_going()?;
            match std::mem::replace(&mut state.receiving, Receiving::Somebody) {
                Receiving::Nobody(inbox) => return Ok((inbox, None)),
                Receiving::Handed(to, inbox, start) if to == cookie => return Ok((inbox, Some(start))),
                other => state.receiving = other,
            }
            state = wait(woken, state);
        }
    }

    fn hand_over(&self, start: Start, inbox: Inbox) -> Result<(), Failure> {
        let mut state = lock(&self.state);
        let cookie = start.cookie();
        let Some(woken) = state.waiting.get(&cookie).cloned() else {
            return Err(broken(Corrupt::Cookie, "it", cookie, "that of a request"));
        };
        state.receiving = Receiving::Handed(cookie, inbox, start);
        woken.notify_one();
        Ok(())
    }

    /// Ends receiving. Somebody else who waits goes on with it.
    fn let_go(&self, cookie: u64, inbox: Inbox) {
        let mut state = lock(&self.state);
        state.waiting.remove(&cookie);
        state.receiving = Receiving::Nobody(inbox);
        if let Some(woken) = state.waiting.values().next() {
            woken.notify_one();
        }
    }

    /// No request after this is done. Those under way fail, too.
    fn end(&self, error: &Error) {
        let mut state = lock(&self.state);
        state.ended.get_or_insert_with(|| (error.kind(), error.to_string()));
        for woken in state.waiting.values() {
            woken.notify_one();
        }
        drop(state);
        self.transport.socket().shutdown(Shutdown::Both);
    }
}

impl State {
    fn check_going(&self) -> Result<(), Failure> {
        match &self.ended {
            None => Ok(()),
            Some((ErrorKind::Io, text)) => {
                Err(Failure::Lost(Error::io(text.clone(), io::ErrorKind::NotConnected.into())))
            }
            Some((_, text)) => Err(Failure::Broken(Error::corrupt(text.clone()))),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let is_going = lock(&self.state).ended.is_none();
        if is_going {
            let _ = self.transport.send_bytes(&self.header(cmd::DISC, 0, 0, 0));
        }
        self.transport.close();
    }
}

fn wait<'state>(woken: &Condvar, state: MutexGuard<'state, State>) -> MutexGuard<'state, State> {
    woken.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Both kinds of replies begin with four bytes that tell them, and are 16 bytes long at the least.
fn read_start(transport: &Transport, inbox: &mut Inbox) -> Result<Start, Failure> {
    let mut bytes = [0; size_of::<ChunkHeader>()];
    let simple_len = size_of::<SimpleReply>();
    inbox.fill(transport, &mut bytes[..simple_len], None)?;
    let magic = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    match magic {
        SIMPLE_REPLY_MAGIC => {
            let reply = SimpleReply::read_from_bytes(&bytes[..simple_len]).expect("its size");
            Ok(Start::Simple(reply))
        }
        STRUCTURED_REPLY_MAGIC => {
            inbox.fill(transport, &mut bytes[simple_len..], None)?;
            Ok(Start::Chunk(Chunk::of(&ChunkHeader::read_from_bytes(&bytes).expect("its size"))))
        }
        other => Err(broken(Corrupt::Reply, "it", block::FieldValue::hex(other), "that of a reply")),
    }
}

/// With extended headers there is one kind of reply alone.
fn read_extended(transport: &Transport, inbox: &mut Inbox) -> Result<Start, Failure> {
    let header: ExtendedChunkHeader = inbox.value(transport, None)?;
    let magic = header.magic.get();
    if magic != EXTENDED_REPLY_MAGIC {
        return Err(broken(Corrupt::Reply, "it", block::FieldValue::hex(magic), "that of an extended reply"));
    }
    Chunk::of_extended(&header).map(Start::Chunk)
}

/// What a socket calls a timeout.
fn in_time(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}
