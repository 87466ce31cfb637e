//! A connection on which many threads ask at once.
//!
//! Whoever waits for a reply receives: it reads the start of the next reply, and if that answers another thread's request, hands the right to
//! receive to that thread, which reads its payload straight to where it is wanted. So nothing is copied, and no thread is there for
//! receiving alone. A thread that reads or writes much sends several requests before it waits: the server works on one while another is on its way.
//!
//! Invariants: at any moment one thread at most receives; once a connection is lost or does not keep to the protocol, every request on it, and each
//! later one, fails.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use block::{Error, ErrorKind, Result};
use zerocopy::{FromBytes, IntoBytes};

use crate::corrupt::Corrupt;
use crate::handshake::{Facts, MINIMUM_BYTES_MAX, Wanted, negotiate};
use crate::inbox::Inbox;
use crate::layout::{
    ChunkHeader, EXTENDED_REPLY_MAGIC, EXTENDED_REQUEST_MAGIC, ExtendedChunkHeader, ExtendedRequestHeader,
    REQUEST_MAGIC, RequestHeader, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, SimpleReply, cmd, cmd_flag,
};
use crate::lock;
use crate::reply::{Brings, Chunk, Expected, Failure, broken};
use crate::transport::{Socket, Transport};

/// The most that one request reads or writes. Servers have a buffer for each request under way, which costs them time where it is large.
const REQUEST_BYTES_MAX: u32 = 256 << 10;
/// The most that one thread has under way at once.
pub(crate) const BATCH_BYTES_MAX: usize = 4 << 20;
const _: () = assert!(BATCH_BYTES_MAX.is_multiple_of(MINIMUM_BYTES_MAX as usize));

/// A connection to an export, after the negotiation.
pub struct Connection {
    transport: Transport,
    facts: Facts,
    /// Held while requests are sent: they do not mix.
    sending: Mutex<()>,
    state: Mutex<State>,
}

struct State {
    receiving: Receiving,
    /// Who waits for which reply.
    waiting: BTreeMap<u64, Arc<Condvar>>,
    last_cookie: u64,
    /// How many requests are under way whose replies may be long.
    long_count: usize,
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

/// One request, and what is expected in reply.
struct Asked<'bytes, 'buf> {
    kind: u16,
    payload: &'bytes [u8],
    expected: Expected<'buf>,
    /// Whether the reply came.
    is_answered: bool,
}

impl<'bytes, 'buf> Asked<'bytes, 'buf> {
    const fn new(kind: u16, payload: &'bytes [u8], expected: Expected<'buf>) -> Self {
        Self { kind, payload, expected, is_answered: false }
    }
}

/// Requests of one thread that are under way at once.
struct Batch<'batch, 'bytes, 'buf> {
    /// The cookie of each.
    cookies: Range<u64>,
    asked: &'batch mut [Asked<'bytes, 'buf>],
    /// How many have no whole reply yet.
    left_count: usize,
    /// The first error that the server answered with.
    error: Option<Error>,
}

impl<'bytes, 'buf> Batch<'_, 'bytes, 'buf> {
    /// The request that `cookie` answers, if it is of this batch and has no reply yet.
    fn unanswered(&mut self, cookie: u64) -> Option<&mut Asked<'bytes, 'buf>> {
        let index = usize::try_from(cookie.checked_sub(self.cookies.start)?).ok()?;
        self.asked.get_mut(index).filter(|asked| !asked.is_answered)
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
            long_count: 0,
            ended: None,
        };
        Ok(Self { transport, facts, sending: Mutex::new(()), state: Mutex::new(state) })
    }

    /// What the server says of the export.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Reads `buf` from `offset` on, in requests that are all under way at once. Both must suit the server's block sizes.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Failure> {
        let mut at = offset;
        let asked = buf.chunks_mut(self.request_bytes()).map(|part| {
            let (start, len_bytes) = (at, part.len() as u64);
            at += len_bytes;
            Asked::new(cmd::READ, &[], Expected::new(start, len_bytes, Brings::Data(part)))
        });
        self.run_all(&mut asked.collect::<Vec<_>>())
    }

    /// How much one request reads or writes: whole blocks of the server's.
    fn request_bytes(&self) -> usize {
        let Facts { minimum_bytes, maximum_bytes, .. } = self.facts;
        (REQUEST_BYTES_MAX.min(maximum_bytes) / minimum_bytes * minimum_bytes) as usize
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

    /// Writes `buf` from `offset` on, in requests that are all under way at once. Both must suit the server's block sizes.
    pub(crate) fn write(&self, offset: u64, buf: &[u8]) -> Result<(), Failure> {
        let mut at = offset;
        let asked = buf.chunks(self.request_bytes()).map(|part| {
            let (start, len_bytes) = (at, part.len() as u64);
            at += len_bytes;
            Asked::new(cmd::WRITE, part, Expected::new(start, len_bytes, Brings::Nothing))
        });
        self.run_all(&mut asked.collect::<Vec<_>>())
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
        expected: Expected<'buf>,
    ) -> Result<Brings<'buf>, Failure> {
        let mut asked = [Asked::new(kind, payload, expected)];
        self.run_all(&mut asked)?;
        let [asked] = asked;
        Ok(asked.expected.brings)
    }

    /// Sends requests, one after the other, and waits for their replies, which come in any order. What the server answers with an error fails when
    /// all have an answer.
    ///
    /// Who still sends receives nothing. A server that waits until a long reply is received may take no request meanwhile, and would wait forever for a
    /// thread to which a reply before that one was handed. So long requests are sent at once only while no long reply is outstanding, and none
    /// becomes so before they are sent.
    fn run_all(&self, asked: &mut [Asked<'_, '_>]) -> Result<(), Failure> {
        let alone = lock(&self.sending);
        let is_long = asked.len() > 1 && asked.iter().any(|asked| !asked.payload.is_empty());
        if is_long && lock(&self.state).long_count > 0 {
            drop(alone);
            return asked.chunks_mut(1).try_for_each(|one| self.run_batch(one, lock(&self.sending)));
        }
        self.run_batch(asked, alone)
    }

    fn run_batch(&self, asked: &mut [Asked<'_, '_>], alone: MutexGuard<'_, ()>) -> Result<(), Failure> {
        let woken = Arc::new(Condvar::new());
        let long_count = asked.iter().filter(|asked| asked.expected.brings.is_long()).count();
        let mut batch = {
            let mut state = lock(&self.state);
            state.check_going()?;
            let first = state.last_cookie + 1;
            let cookies = first..first + asked.len() as u64;
            state.last_cookie = cookies.end - 1;
            state.waiting.extend(cookies.clone().map(|cookie| (cookie, woken.clone())));
            state.long_count += long_count;
            Batch { cookies, left_count: asked.len(), asked, error: None }
        };
        let sent = self.send(&batch).map_err(|error| in_time(error).into());
        // Before others can send: to the server their requests would be the rest of what was not sent whole.
        let sent = self.end_if_failed(sent);
        drop(alone);
        let done = sent.and_then(|()| self.end_if_failed(self.receive(&mut batch, &woken)));
        let mut state = lock(&self.state);
        state.long_count -= long_count;
        for cookie in batch.cookies {
            state.waiting.remove(&cookie);
        }
        done.and(batch.error.map_or(Ok(()), |error| Err(Failure::Answered(error))))
    }

    /// Sends all of a batch, of which each has a cookie, in as few calls as the kernel takes them.
    fn send(&self, batch: &Batch<'_, '_, '_>) -> io::Result<()> {
        let asked = batch.cookies.clone().zip(&*batch.asked);
        let headers: Vec<_> = asked
            .map(|(cookie, Asked { kind, expected, .. })| {
                self.header(*kind, cookie, expected.offset, expected.len_bytes)
            })
            .collect();
        let requests = headers.iter().zip(&*batch.asked);
        let mut slices: Vec<_> = requests
            .flat_map(|(header, asked)| [IoSlice::new(header), IoSlice::new(asked.payload)])
            .collect();
        self.transport.send(&mut slices)
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

    /// Receives until all replies to a batch are whole, or waits while others receive.
    fn receive(&self, batch: &mut Batch<'_, '_, '_>, woken: &Condvar) -> Result<(), Failure> {
        while batch.left_count > 0 {
            let (mut inbox, mut start) = self.turn(&batch.cookies, woken)?;
            loop {
                let next = match start.take() {
                    Some(start) => start,
                    None if self.facts.is_extended => read_extended(&self.transport, &mut inbox)?,
                    None => read_start(&self.transport, &mut inbox)?,
                };
                let cookie = next.cookie();
                let Some(asked) = batch.unanswered(cookie) else {
                    self.hand_over(next, inbox)?;
                    break;
                };
                let done = match next {
                    Start::Simple(reply) => {
                        asked.expected.simple(&reply, &self.transport, &mut inbox).map(|()| true)
                    }
                    Start::Chunk(chunk) => asked.expected.chunk(&chunk, &self.transport, &mut inbox),
                };
                if matches!(done, Ok(false)) {
                    continue;
                }
                asked.is_answered = true;
                batch.left_count -= 1;
                // Another reply to it is one to nothing.
                lock(&self.state).waiting.remove(&cookie);
                match done {
                    Ok(_) => {}
                    Err(Failure::Answered(error)) => batch.error = batch.error.take().or(Some(error)),
                    Err(failure) => return Err(failure),
                }
                if batch.left_count == 0 {
                    self.let_go(inbox);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Waits for the right to receive.
    fn turn(&self, cookies: &Range<u64>, woken: &Condvar) -> Result<(Inbox, Option<Start>), Failure> {
        let mut state = lock(&self.state);
        loop {
            state.check_going()?;
            match std::mem::replace(&mut state.receiving, Receiving::Somebody) {
                Receiving::Nobody(inbox) => return Ok((inbox, None)),
                Receiving::Handed(to, inbox, start) if cookies.contains(&to) => {
                    return Ok((inbox, Some(start)));
                }
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

    /// Ends receiving, with no reply outstanding. Somebody else who waits goes on with it.
    fn let_go(&self, inbox: Inbox) {
        let mut state = lock(&self.state);
        state.receiving = Receiving::Nobody(inbox);
        if let Some(woken) = state.waiting.values().next() {
            woken.notify_one();
        }
    }

    /// Ends it after what leaves it in no state to go on.
    fn end_if_failed(&self, done: Result<(), Failure>) -> Result<(), Failure> {
        if let Err(Failure::Broken(error) | Failure::Lost(error)) = &done {
            self.end(error);
        }
        done
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
