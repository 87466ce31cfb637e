//! A simulated NBD server of one export, on a machine that can lose power.
//!
//! It speaks the protocol over socket pairs, so that whoever reads or writes the export is the client as it is. Requests are counted; at the one
//! of a chosen number the server does one of the things that servers do wrong, and never again after that.
//!
//! Invariants: it does one request at a time; what it answers as flushed survives every power cut; all follows from a seed, as long as its client
//! asks one thing after the other.
//!
//! Absent on purpose: TLS, lists, exports by name (any will do).

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{Error, ReadAt, Result, TargetFile};
use extent::{HostOffset, HostSpan};
use nbd::Dial;
use nbd::layout::{
    ChunkHeader, IHAVEOPT, InfoBlockSize, InfoExport, NBDMAGIC, OptionHeader, OptionReplyHeader, REP_MAGIC,
    REQUEST_MAGIC, RequestHeader, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, SimpleReply, allocation, chunk,
    cmd, export_flag, handshake_flag, info, option, rep,
};
use nbd::transport::Socket;
use zerocopy::{FromBytes, IntoBytes};

use crate::{Pages, Random, SimDisk, SimMachine};

/// The unit in which it tells what reads as zeros.
const BLOCK_BYTES: usize = 4096;
/// The number of `base:allocation`.
const CONTEXT: u32 = 3;
/// The errors that it answers: EIO and ENOSPC.
const ERRORS: [u32; 2] = [5, 28];

/// What it does wrong with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerFault {
    /// It answers that it could not, and did nothing; of what it could not flush, some is lost, as a page cache drops what its device
    /// did not take.
    Refuses,
    /// The connection ends before anything is done.
    ClosesBefore,
    /// The connection ends when some sectors of a write were written.
    ClosesWithin,
    /// All is done, and the connection ends before the reply.
    ClosesAfter,
    /// The connection ends within the reply.
    BreaksReply,
    /// Its machine loses power before the reply, and is there again with what was stored.
    LosesPower,
    /// The same once the reply was sent.
    LosesPowerAfter,
    /// It ends, and does not come back.
    Ends,
}

/// All of them.
pub const SERVER_FAULTS: [ServerFault; 8] = [
    ServerFault::Refuses,
    ServerFault::ClosesBefore,
    ServerFault::ClosesWithin,
    ServerFault::ClosesAfter,
    ServerFault::BreaksReply,
    ServerFault::LosesPower,
    ServerFault::LosesPowerAfter,
    ServerFault::Ends,
];

/// What an export can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimExport {
    /// Whether several connections see each other's writes.
    pub has_lanes: bool,
    /// Whether it zeroes by itself.
    pub can_zero: bool,
    /// Whether it tells what reads as zeros.
    pub tells_zeros: bool,
}

/// The server; a clone of it is the same one.
#[derive(Clone)]
pub struct SimServer {
    state: Arc<Mutex<State>>,
    export: SimExport,
    seed: u64,
}

struct State {
    disk: SimDisk,
    requests: u64,
    fault: Option<(u64, ServerFault)>,
    /// The server's ends.
    connections: Vec<UnixStream>,
    /// How often it was started.
    starts: u64,
    has_ended: bool,
    random: Random,
}

/// What becomes of a request.
struct Fate {
    refuses: bool,
    does: bool,
    writes_some: bool,
    replies: Replies,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Replies {
    Whole,
    Half,
    Not,
}

impl SimServer {
    /// With an export that holds `bytes`, all of them stored.
    pub fn new(seed: u64, export: SimExport, bytes: Pages) -> Self {
        let state = State {
            disk: SimMachine::new().disk("export", seed, bytes),
            requests: 0,
            fault: None,
            connections: Vec::new(),
            starts: 1,
            has_ended: false,
            random: Random::new(seed),
        };
        Self { state: Arc::new(Mutex::new(state)), export, seed }
    }

    /// Does this wrong at the request of that number, counted from 1.
    pub fn fail_at(&self, number: u64, fault: ServerFault) {
        self.state().fault = Some((number, fault));
    }

    /// Goes on without faults, started anew if it had ended.
    pub fn heal(&self) {
        let mut state = self.state();
        state.fault = None;
        state.has_ended = false;
    }

    /// Requests so far, those that were done wrong included.
    pub fn requests(&self) -> u64 {
        self.state().requests
    }

    /// What a power cut now may leave of the export.
    pub fn cut_pages(&self, seed: u64) -> Pages {
        self.state().disk.cut_pages(seed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves one client until it leaves, or the server that it came to is gone.
    fn serve(&self, mut stream: UnixStream, started: u64) -> io::Result<()> {
        self.negotiate(&mut stream)?;
        loop {
            let header: RequestHeader = take(&mut stream)?;
            let (kind, len) = (header.kind.get(), header.len_bytes.get() as usize);
            if header.magic.get() != REQUEST_MAGIC || kind == cmd::DISC {
                return stream.shutdown(Shutdown::Both);
            }
            let mut payload = vec![0; if kind == cmd::WRITE { len } else { 0 }];
            stream.read_exact(&mut payload)?;
            // Held until the reply is sent: a cut comes before or after it.
            let mut state = self.state();
            if state.starts != started {
                return Ok(());
            }
            state.requests += 1;
            let fault = state.fault.filter(|(number, _)| *number == state.requests).map(|(_, fault)| fault);
            let fate = Fate::of(fault);
            let reply = match fate {
                Fate { refuses: true, .. } => {
                    if kind == cmd::FLUSH {
                        state.lose_unflushed(self.seed);
                    }
                    let error = ERRORS[usize::from(state.random.coin())];
                    refusal(self.export, header.cookie.get(), error)
                }
                Fate { does: true, .. } => state.answer(self.export, &header, &payload),
                Fate { writes_some, .. } => {
                    if writes_some && kind == cmd::WRITE {
                        let some = &payload[..payload.len() / 2];
                        let _ = state.disk.write_at(HostOffset::new(header.offset.get()), some);
                    }
                    Vec::new()
                }
            };
            match fate.replies {
                Replies::Whole => stream.write_all(&reply)?,
                Replies::Half => stream.write_all(&reply[..reply.len() - 1])?,
                Replies::Not => {}
            }
            match fault {
                None | Some(ServerFault::Refuses) => {
                    drop(state);
                    continue;
                }
                Some(ServerFault::LosesPower | ServerFault::LosesPowerAfter) => state.lose_power(self.seed),
                Some(ServerFault::Ends) => {
                    state.has_ended = true;
                    state.close();
                }
                Some(_) => stream.shutdown(Shutdown::Both)?,
            }
            return Ok(());
        }
    }

    fn negotiate(&self, stream: &mut UnixStream) -> io::Result<()> {
        let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        stream.write_all(
            &[&NBDMAGIC.to_be_bytes()[..], &IHAVEOPT.to_be_bytes(), &flags.to_be_bytes()].concat(),
        )?;
        stream.read_exact(&mut [0; 4])?;
        loop {
            let header: OptionHeader = take(stream)?;
            let code = header.code.get();
            io::copy(&mut Read::take(&mut *stream, header.len_bytes.get().into()), &mut io::sink())?;
            let mut reply = |kind: u32, data: &[u8]| {
                let len_bytes = u32::try_from(data.len()).expect("short");
                let head = OptionReplyHeader {
                    magic: REP_MAGIC.into(),
                    code: code.into(),
                    kind: kind.into(),
                    len_bytes: len_bytes.into(),
                };
                stream.write_all(&[head.as_bytes(), data].concat())
            };
            match code {
                option::STRUCTURED_REPLY if self.export.tells_zeros => reply(rep::ACK, &[])?,
                option::SET_META_CONTEXT if self.export.tells_zeros => {
                    let context = [&CONTEXT.to_be_bytes()[..], b"base:allocation"].concat();
                    reply(rep::META_CONTEXT, &context)?;
                    reply(rep::ACK, &[])?;
                }
                option::GO => {
                    reply(rep::INFO, self.export_info().as_bytes())?;
                    let sizes = InfoBlockSize {
                        kind: info::BLOCK_SIZE.into(),
                        minimum: 512.into(),
                        preferred: 4096.into(),
                        maximum: (1 << 20).into(),
                    };
                    reply(rep::INFO, sizes.as_bytes())?;
                    return reply(rep::ACK, &[]);
                }
                _ => reply(rep::ERR_UNSUP, &[])?,
            }
        }
    }

    fn export_info(&self) -> InfoExport {
        let can = |can: bool, flag: u16| if can { flag } else { 0 };
        let flags = export_flag::HAS_FLAGS
            | export_flag::SEND_FLUSH
            | can(self.export.has_lanes, export_flag::CAN_MULTI_CONN)
            | can(self.export.can_zero, export_flag::SEND_WRITE_ZEROES);
        InfoExport {
            kind: info::EXPORT.into(),
            len_bytes: self.state().disk.len_bytes().into(),
            flags: flags.into(),
        }
    }
}

impl Dial for SimServer {
    fn dial(&self) -> Result<Socket> {
        let failed = |error| Error::io("connect", error);
        let mut state = self.state();
        if state.has_ended {
            return Err(failed(io::ErrorKind::ConnectionRefused.into()));
        }
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        state.connections.push(theirs.try_clone().map_err(failed)?);
        let (server, started) = (self.clone(), state.starts);
        std::thread::spawn(move || server.serve(theirs, started));
        Ok(Socket::Unix(ours))
    }
}

impl Fate {
    fn of(fault: Option<ServerFault>) -> Self {
        use ServerFault::{
            BreaksReply, ClosesAfter, ClosesBefore, ClosesWithin, Ends, LosesPower, LosesPowerAfter, Refuses,
        };
        let (does, replies) = match fault {
            None | Some(LosesPowerAfter) => (true, Replies::Whole),
            Some(Refuses) => (false, Replies::Whole),
            Some(BreaksReply) => (true, Replies::Half),
            Some(ClosesAfter | LosesPower) => (true, Replies::Not),
            Some(ClosesBefore | ClosesWithin | Ends) => (false, Replies::Not),
        };
        Self { refuses: fault == Some(Refuses), does, writes_some: fault == Some(ClosesWithin), replies }
    }
}

impl State {
    fn close(&mut self) {
        self.starts += 1;
        for connection in self.connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Every connection ends.
    fn lose_power(&mut self, seed: u64) {
        self.close();
        self.lose_unflushed(seed);
    }

    /// What was not flushed is lost, or not.
    fn lose_unflushed(&mut self, seed: u64) {
        let left = self.disk.cut_pages(seed ^ self.requests);
        self.disk = SimMachine::new().disk("export", seed ^ self.requests, left);
    }

    fn answer(&mut self, export: SimExport, header: &RequestHeader, payload: &[u8]) -> Vec<u8> {
        let cookie = header.cookie.get();
        let span = HostSpan::new(HostOffset::new(header.offset.get()), u64::from(header.len_bytes.get()));
        let done = match header.kind.get() {
            cmd::WRITE => self.disk.write_at(span.start(), payload),
            cmd::WRITE_ZEROES if export.can_zero => self.disk.zero(span),
            cmd::FLUSH => self.disk.flush(),
            cmd::READ => return self.read(export, cookie, span),
            cmd::BLOCK_STATUS if export.tells_zeros => return self.status(export, cookie, span),
            _ => Err(Error::invalid("a command")),
        };
        match done {
            Ok(()) => simple(cookie, 0),
            Err(_) => refusal(export, cookie, ERRORS[0]),
        }
    }

    fn read(&mut self, export: SimExport, cookie: u64, span: HostSpan) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(span.len_bytes()).expect("bounded")];
        if self.disk.read_at(span.start(), &mut bytes).is_err() {
            return refusal(export, cookie, ERRORS[0]);
        }
        match export.tells_zeros {
            true => structured(
                cookie,
                chunk::OFFSET_DATA,
                &[&span.start().get().to_be_bytes()[..], &bytes].concat(),
            ),
            false => [simple(cookie, 0), bytes].concat(),
        }
    }

    /// What reads as zeros is told as that; of what holds data, every other block is called a hole, which it may be.
    fn status(&mut self, export: SimExport, cookie: u64, span: HostSpan) -> Vec<u8> {
        let mut payload = CONTEXT.to_be_bytes().to_vec();
        for step in span.split(BLOCK_BYTES as u64) {
            let mut block = vec![0; usize::try_from(step.len_bytes()).expect("a block")];
            if self.disk.read_at(step.start(), &mut block).is_err() {
                return refusal(export, cookie, ERRORS[0]);
            }
            let is_zero = block.iter().all(|byte| *byte == 0);
            let is_odd = step.start().get() / BLOCK_BYTES as u64 % 2 == 1;
            let state = match (is_zero, is_odd) {
                (true, true) => allocation::ZERO,
                (true, false) => allocation::ZERO | allocation::HOLE,
                (false, true) => allocation::HOLE,
                (false, false) => 0,
            };
            let len_bytes = u32::try_from(step.len_bytes()).expect("a block");
            payload.extend([len_bytes.to_be_bytes(), state.to_be_bytes()].concat());
        }
        structured(cookie, chunk::BLOCK_STATUS, &payload)
    }
}

fn simple(cookie: u64, error: u32) -> Vec<u8> {
    SimpleReply { magic: SIMPLE_REPLY_MAGIC.into(), error: error.into(), cookie: cookie.into() }
        .as_bytes()
        .to_vec()
}

fn refusal(export: SimExport, cookie: u64, error: u32) -> Vec<u8> {
    match export.tells_zeros {
        true => structured(cookie, chunk::ERROR, &[&error.to_be_bytes()[..], &[0; 2]].concat()),
        false => simple(cookie, error),
    }
}

/// A reply of one chunk.
fn structured(cookie: u64, kind: u16, payload: &[u8]) -> Vec<u8> {
    let header = ChunkHeader {
        magic: STRUCTURED_REPLY_MAGIC.into(),
        flags: chunk::FLAG_DONE.into(),
        kind: kind.into(),
        cookie: cookie.into(),
        len_bytes: u32::try_from(payload.len()).expect("bounded").into(),
    };
    [header.as_bytes(), payload].concat()
}

fn take<T: FromBytes + IntoBytes>(stream: &mut UnixStream) -> io::Result<T> {
    let mut value = T::new_zeroed();
    stream.read_exact(value.as_mut_bytes())?;
    Ok(value)
}
