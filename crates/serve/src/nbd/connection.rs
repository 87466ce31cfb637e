//! One connection: the handshake by a deadline, then requests.
//!
//! The receiving thread does what is quick itself and sends the replies to all that came together at once. What may take
//! long goes to workers, of which there are as many as were ever busy at a time. While the backend is as quick as memory, few of them
//! move bytes at a time, with few large buffers: see `docs/decisions/serving-order.md`.
//!
//! Invariants:
//! - a request counts as in flight until its reply was handed to the kernel; no more than [`IN_FLIGHT_MAX`] are;
//! - workers never wait for memory: a request has its buffer before it is handed over;
//! - jobs begin in the order in which they came, but that one which may take long waits for none that moves bytes;
//! - the receiving thread sends all replies that it holds before it waits for anything.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use extent::{VirtualOffset, VirtualSpan};

use super::input::{End, Input};
use super::layout::REQUEST_BYTES;
use super::memory::{Buffer, Memory, PIECE_BYTES, Pool};
use super::negotiate::{Negotiation, Next, Session, TlsState, parse_option};
use super::reply::{Message, Style};
use super::request::{Command, Errno, Request};
use super::server::Exports;
use super::transport::Transport;
use crate::export::{Export, Fault, FaultKind, SMALL_BYTES_MAX, Speed};
use crate::monitor::{Completion, Direction, Io};
use crate::trace::{Event as Traced, Op};

/// The most requests of a connection whose replies are not sent.
const IN_FLIGHT_MAX: usize = 64;
/// Replies are sent when they are so many bytes, though more requests are there: the client works on these meanwhile.
const BATCH_BYTES: usize = 64 << 10;

/// What a connection is given.
pub(crate) struct Setting {
    pub(crate) exports: Arc<Exports>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) handshake: Duration,
    pub(crate) stall: Duration,
    pub(crate) workers: usize,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<super::tls::Tls>,
    #[cfg(not(feature = "tls"))]
    pub(crate) tls: Option<std::convert::Infallible>,
}

/// Serves the client at the other end of `transport`, until it leaves or misbehaves.
pub(crate) fn serve(mut transport: Transport, setting: &Setting) {
    let deadline = Instant::now() + setting.handshake;
    if let Ok(Some(session)) = negotiate(&mut transport, setting, deadline)
        && transport.socket().set_timeouts(setting.stall).is_ok()
        && let Some(export) = setting.exports.list.get(session.export_index)
    {
        let connection = Connection {
            memory: Memory::new(setting.pool.clone()),
            style: Style { is_structured: session.is_structured },
            transport,
            session,
            export: export.clone(),
            workers_max: setting.workers,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            work: Mutex::default(),
            job_is_there: Condvar::new(),
            there_is_room: Condvar::new(),
            in_flight: AtomicUsize::new(0),
            is_draining: AtomicBool::new(false),
            outbox: Mutex::default(),
            wire: Mutex::new(()),
        };
        connection.run();
        transport = connection.transport;
    }
    transport.close();
}

fn negotiate(transport: &mut Transport, setting: &Setting, deadline: Instant) -> io::Result<Option<Session>> {
    transport.socket().set_timeouts(setting.handshake)?;
    transport.send_bytes(&Negotiation::greeting())?;
    let tls = if setting.tls.is_some() { TlsState::Required } else { TlsState::None };
    let mut flags = [0; 4];
    receive_exact(transport, &mut flags, deadline)?;
    let Some(mut negotiation) = Negotiation::new(&setting.exports.facts, tls, flags) else { return Ok(None) };
    let mut data = Vec::new();
    loop {
        let mut header = [0; 16];
        receive_exact(transport, &mut header, deadline)?;
        let Ok((code, len_bytes)) = parse_option(&header) else { return Ok(None) };
        data.resize(len_bytes as usize, 0);
        receive_exact(transport, &mut data, deadline)?;
        let (reply, next) = negotiation.answer(code, &data);
        transport.send_bytes(&reply)?;
        match next {
            Next::Option => {}
            Next::Transmission(session) => return Ok(Some(session)),
            Next::Close => return Ok(None),
            Next::Tls => {
                start_tls(transport, setting, deadline)?;
                negotiation.tls_began();
            }
        }
    }
}

#[cfg(feature = "tls")]
fn start_tls(transport: &mut Transport, setting: &Setting, deadline: Instant) -> io::Result<()> {
    // Nothing was received past the option: what came in the clear cannot pass for what came through TLS.
    match &setting.tls {
        Some(tls) => transport.start_tls(tls.config.clone(), deadline),
        None => Err(io::ErrorKind::Unsupported.into()),
    }
}

#[cfg(not(feature = "tls"))]
fn start_tls(_: &mut Transport, _: &Setting, _: Instant) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Receives exactly `buf`, and nothing after it.
fn receive_exact(transport: &Transport, buf: &mut [u8], deadline: Instant) -> io::Result<()> {
    let mut len = 0;
    while len < buf.len() {
        match transport.receive_before(&mut buf[len..], deadline)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => len += more,
        }
    }
    Ok(())
}

/// A request to be done.
struct Job {
    request: Request,
    command: Command,
    span: VirtualSpan,
    /// A write's payload, or the place for what is read.
    buffer: Option<Buffer>,
    arrived_ns: u64,
}

/// A reply to be sent.
struct Reply {
    message: Message,
    /// Of a reply's last message: what is counted when it is sent.
    ended: Option<Ended>,
}

struct Ended {
    request: Request,
    op: Option<(Op, bool)>,
    arrived_ns: u64,
    is_ok: bool,
}

impl Job {
    /// Whether it does nothing but move bytes.
    fn copies(&self) -> bool {
        matches!(self.command, Command::Read { .. } | Command::Write { fua: false })
    }
}

#[derive(Default)]
struct Work {
    jobs: VecDeque<Job>,
    /// Of the jobs that workers have, how many copy.
    copying: usize,
    idle: usize,
    workers: usize,
    is_over: bool,
}

impl Work {
    /// How many jobs may begin, if `copies_max` may copy at a time.
    fn ready_count(&self, copies_max: usize) -> usize {
        let copies = self.jobs.iter().filter(|job| job.copies()).count();
        self.jobs.len() - copies + copies.min(copies_max.saturating_sub(self.copying))
    }

    /// The first job that may begin.
    fn take(&mut self, copies_max: usize) -> Option<Job> {
        let may_copy = self.copying < copies_max;
        let at = self.jobs.iter().position(|job| may_copy || !job.copies())?;
        let job = self.jobs.remove(at)?;
        self.copying += usize::from(job.copies());
        Some(job)
    }
}

#[derive(Default)]
struct Outbox {
    replies: Vec<Reply>,
    is_sending: bool,
    is_broken: bool,
}

impl Outbox {
    /// The first replies that are sent together: no more bytes than another reply would wait for gladly, and one at least.
    fn take(&mut self) -> Vec<Reply> {
        let mut bytes = 0;
        let is_last = |reply: &Reply| {
            bytes += reply.message.len();
            bytes >= BATCH_BYTES
        };
        let count = self.replies.iter().position(is_last).map_or(self.replies.len(), |last| last + 1);
        let rest = self.replies.split_off(count);
        std::mem::replace(&mut self.replies, rest)
    }
}

struct Connection {
    transport: Transport,
    export: Arc<Export>,
    session: Session,
    style: Style,
    memory: Arc<Memory>,
    workers_max: usize,
    processors: usize,
    work: Mutex<Work>,
    job_is_there: Condvar,
    there_is_room: Condvar,
    in_flight: AtomicUsize,
    is_draining: AtomicBool,
    outbox: Mutex<Outbox>,
    /// Held by whoever writes to the socket.
    wire: Mutex<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    fn run(&self) {
        std::thread::scope(|scope| {
            let mut receiver =
                Receiver { connection: self, scope, input: Input::new(&[]), batch: Batch::default() };
            // How it ended makes no difference to anyone here.
            let _ = receiver.run();
            receiver.send_batch();
            receiver.abandon();
            self.drain();
            lock(&self.work).is_over = true;
            self.job_is_there.notify_all();
        });
    }

    /// Waits until every reply was sent, or cannot be.
    fn drain(&self) {
        self.is_draining.store(true, SeqCst);
        let mut work = lock(&self.work);
        while self.in_flight.load(SeqCst) > 0 {
            work = self.there_is_room.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn wait_for_room(&self) {
        let mut work = lock(&self.work);
        while self.in_flight.load(SeqCst) >= IN_FLIGHT_MAX {
            work = self.there_is_room.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// By the monitor's clock if there is one, so that all it is told of goes by one clock.
    fn now_ns(&self) -> u64 {
        self.export.monitor().map_or_else(|| self.export.now_ns(), |monitor| monitor.now_ns())
    }

    /// A worker's life.
    fn work(&self) {
        let mut work = lock(&self.work);
        loop {
            if let Some(job) = work.take(self.copies_max()) {
                if work.idle > 0 && work.ready_count(self.copies_max()) > 0 {
                    self.job_is_there.notify_one();
                }
                drop(work);
                let copies = job.copies();
                self.post(vec![self.perform(job)]);
                work = lock(&self.work);
                work.copying -= usize::from(copies);
            } else if work.is_over {
                return;
            } else {
                work.idle += 1;
                work = self.job_is_there.wait(work).unwrap_or_else(PoisonError::into_inner);
                work.idle -= 1;
            }
        }
    }

    /// How many workers may copy at a time. While the backend is as quick as memory, more than there are processors, and one that
    /// sends, would only stop each other within requests, which are then answered late. One that has to be waited for is asked as much
    /// as it can be.
    fn copies_max(&self) -> usize {
        let export = &self.export;
        let is_fast = export.read_speed.is_fast() && export.write_speed.is_fast();
        if is_fast { self.processors + 1 } else { usize::MAX }
    }

    /// How many large buffers may be out for a read to begin: one to work on and one to send for each worker, so that they stay in the processors' caches.
    fn large_max(&self) -> usize {
        self.copies_max().saturating_mul(2)
    }

    /// Has `replies` sent, by this thread or by the one that is sending.
    fn post(&self, replies: Vec<Reply>) {
        let mut outbox = lock(&self.outbox);
        if outbox.replies.is_empty() {
            outbox.replies = replies;
        } else {
            outbox.replies.extend(replies);
        }
        if outbox.is_sending {
            return;
        }
        outbox.is_sending = true;
        while !outbox.replies.is_empty() {
            let replies = outbox.take();
            let is_broken = outbox.is_broken;
            drop(outbox);
            let is_sent = self.send(replies, is_broken);
            outbox = lock(&self.outbox);
            outbox.is_broken |= !is_sent;
        }
        outbox.is_sending = false;
    }

    fn send(&self, replies: Vec<Reply>, is_broken: bool) -> bool {
        self.count(&replies);
        let mut slices = Vec::with_capacity(replies.len() * 2);
        for reply in &replies {
            slices.push(IoSlice::new(reply.message.head()));
            if !reply.message.body().is_empty() {
                slices.push(IoSlice::new(reply.message.body()));
            }
        }
        let is_sent = !is_broken && {
            let _wire = lock(&self.wire);
            self.transport.send(&mut slices).is_ok()
        };
        if !is_sent {
            // Wakes the receiving thread.
            self.transport.socket().shutdown(std::net::Shutdown::Both);
        }
        let ended = replies.iter().filter(|reply| reply.ended.is_some()).count();
        // Buffers go back before anyone is told of room.
        drop(replies);
        self.end(ended);
        is_sent
    }

    /// `count` requests are no longer in flight.
    fn end(&self, count: usize) {
        let before = self.in_flight.fetch_sub(count, SeqCst);
        if before >= IN_FLIGHT_MAX || (before == count && self.is_draining.load(SeqCst)) {
            // Whoever waits checked under this lock.
            drop(lock(&self.work));
            self.there_is_room.notify_one();
        }
    }

    fn count(&self, replies: &[Reply]) {
        let ended = || replies.iter().filter_map(|reply| reply.ended.as_ref());
        if let Some(monitor) = self.export.monitor() {
            let now_ns = self.now_ns();
            monitor.completed(ended().filter_map(|ended| {
                let direction = direction(&ended.request)?;
                let latency_ns = now_ns.saturating_sub(ended.arrived_ns);
                Some(Completion { direction, latency_ns, is_ok: ended.is_ok })
            }));
        }
        if let Some(trace) = self.export.trace() {
            let now_us = self.now_ns() / 1000;
            for ended in ended() {
                let Some((op, fua)) = ended.op else { continue };
                let at_us = ended.arrived_ns / 1000;
                let is_flush = op == Op::Flush;
                trace.record(Traced {
                    op,
                    fua,
                    is_failed: !ended.is_ok,
                    offset: if is_flush { 0 } else { ended.request.offset() },
                    len_bytes: if is_flush { 0 } else { u64::from(ended.request.len_bytes()) },
                    at_us,
                    latency_us: now_us.saturating_sub(at_us),
                });
            }
        }
    }

    fn perform(&self, job: Job) -> Reply {
        let Job { request, command, span, buffer, arrived_ns } = job;
        let cookie = request.cookie;
        let result = self.carry_out(command, span, buffer, cookie);
        let is_ok = result.is_ok();
        let message = result.unwrap_or_else(|fault| self.fault(cookie, &fault));
        Reply { message, ended: Some(Ended { request, op: Some(op_of(command)), arrived_ns, is_ok }) }
    }

    fn carry_out(
        &self,
        command: Command,
        span: VirtualSpan,
        buffer: Option<Buffer>,
        cookie: u64,
    ) -> Result<Message, Fault> {
        let export = &self.export;
        let len_bytes = span.len_bytes();
        let began = Instant::now();
        match (command, buffer) {
            (Command::Read { .. }, Some(mut buffer)) => {
                export.do_read(span.start(), &mut buffer)?;
                export.read_speed.add(began.elapsed(), len_bytes);
                return Ok(self.style.data(cookie, span.start().get(), buffer, true));
            }
            (Command::Read { .. }, None) => return Ok(self.style.no_data(cookie)),
            (Command::Write { fua }, buffer) => {
                export.do_write(span.start(), buffer.as_deref().unwrap_or(&[]), fua)?;
                if !fua {
                    export.write_speed.add(began.elapsed(), len_bytes);
                }
            }
            (Command::Flush, _) => export.flush()?,
            (Command::Trim { fua }, _) => export.trim(span, fua)?,
            (Command::WriteZeroes { fua, may_free, must_be_fast }, _) => {
                export.write_zeroes(span, fua, may_free, must_be_fast)?;
            }
            (Command::Cache, Some(mut buffer)) => {
                for piece in span.split(PIECE_BYTES as u64) {
                    let len = usize::try_from(piece.len_bytes()).unwrap_or(PIECE_BYTES).min(buffer.len());
                    export.do_read(piece.start(), &mut buffer[..len])?;
                }
            }
            (Command::Cache, None) => {}
            (Command::BlockStatus { only_one }, _) => {
                let found = export.allocation(span)?;
                let count = if only_one { found.len().min(1) } else { found.len() };
                return Ok(self.style.status(cookie, &found[..count]));
            }
        }
        Ok(self.style.done(cookie))
    }

    fn fault(&self, cookie: u64, fault: &Fault) -> Message {
        let errno = match fault.kind {
            FaultKind::Io => Errno::Io,
            FaultKind::NoSpace => Errno::NoSpc,
            FaultKind::ReadOnly => Errno::Perm,
            FaultKind::Invalid => Errno::Inval,
            FaultKind::NotFast => Errno::NotSup,
        };
        self.style.error(cookie, errno, &fault.message)
    }

    /// Whether it will probably be done sooner than handed over.
    fn is_quick(&self, command: Command, len_bytes: u32) -> bool {
        let is_quick = |speed: &Speed| u64::from(len_bytes) <= SMALL_BYTES_MAX && speed.is_fast();
        match command {
            Command::Read { .. } => is_quick(&self.export.read_speed),
            Command::Write { fua: false } => is_quick(&self.export.write_speed),
            _ => false,
        }
    }
}

fn direction(request: &Request) -> Option<Direction> {
    request.direction().map(|is_write| if is_write { Direction::Write } else { Direction::Read })
}

fn op_of(command: Command) -> (Op, bool) {
    match command {
        Command::Read { .. } => (Op::Read, false),
        Command::Write { fua } => (Op::Write, fua),
        Command::Flush => (Op::Flush, false),
        Command::Trim { fua } => (Op::Trim, fua),
        Command::Cache => (Op::Cache, false),
        Command::WriteZeroes { fua, .. } => (Op::Zero, fua),
        Command::BlockStatus { .. } => (Op::Status, false),
    }
}

/// Replies that wait to be sent together.
#[derive(Default)]
struct Batch {
    replies: Vec<Reply>,
    bytes: usize,
}

/// The receiving thread.
struct Receiver<'scope, 'env> {
    connection: &'scope Connection,
    scope: &'scope std::thread::Scope<'scope, 'env>,
    input: Input,
    batch: Batch,
}

impl Receiver<'_, '_> {
    fn run(&mut self) -> Result<(), End> {
        loop {
            self.look();
            let Some((request, arrived_ns)) = self.input.pop() else {
                self.send_batch();
                self.input.receive(&self.connection.transport)?;
                continue;
            };
            if request.is_disconnect() {
                return Ok(());
            }
            if self.connection.in_flight.load(SeqCst) >= IN_FLIGHT_MAX {
                self.send_batch();
                self.connection.wait_for_room();
            }
            self.connection.in_flight.fetch_add(1, SeqCst);
            let result = self.take(request, arrived_ns);
            if result.is_err() {
                // Its reply will not come.
                self.connection.end(1);
                self.abandoned(&request);
                return result;
            }
        }
    }

    /// Looks for requests among what came, and tells the monitor of them. What was not known before arrived now.
    fn look(&mut self) {
        if !self.input.has_news() {
            return;
        }
        let now_ns = self.connection.now_ns();
        let ios = self.input.look(now_ns).filter_map(|request| {
            let direction = direction(request)?;
            Some(Io { direction, offset: request.offset(), len_bytes: u64::from(request.len_bytes()) })
        });
        if let Some(monitor) = self.connection.export.monitor() {
            monitor.arrived(ios, now_ns);
        }
    }

    /// Tells the monitor of requests that came and will not be done.
    fn abandon(&mut self) {
        while let Some((request, _)) = self.input.pop() {
            self.abandoned(&request);
        }
    }

    fn abandoned(&self, request: &Request) {
        if let (Some(monitor), Some(direction)) = (self.connection.export.monitor(), direction(request)) {
            monitor.abandoned(direction);
        }
    }

    fn send_batch(&mut self) {
        if !self.batch.replies.is_empty() {
            self.batch.bytes = 0;
            self.connection.post(std::mem::take(&mut self.batch.replies));
        }
    }

    fn push(&mut self, reply: Reply) {
        self.batch.bytes += reply.message.len();
        self.batch.replies.push(reply);
        if self.batch.bytes >= BATCH_BYTES {
            self.send_batch();
        }
    }

    /// A buffer; replies are sent first if it must be waited for, as they may be what is waited for.
    fn buffer(&mut self, len: usize, large_max: usize) -> Buffer {
        if let Some(buffer) = self.connection.memory.try_take(len, large_max) {
            return buffer;
        }
        self.send_batch();
        self.connection.memory.take(len, large_max)
    }

    /// Receives a payload; replies are sent first if it must be waited for.
    fn payload(&mut self, buf: &mut [u8]) -> Result<(), End> {
        if !self.input.holds(buf.len()) {
            self.send_batch();
        }
        self.input.payload(&self.connection.transport, buf)
    }

    /// Does a request or hands it over. An error is one of the connection.
    fn take(&mut self, request: Request, arrived_ns: u64) -> Result<(), End> {
        let payload_len = request.payload_bytes() as usize;
        let (command, span) = match request.check(&self.connection.session) {
            Ok(checked) => checked,
            Err(errno) => {
                self.skip(payload_len)?;
                self.refuse(request, errno, arrived_ns);
                return Ok(());
            }
        };
        let len = request.len_bytes() as usize;
        let is_long = len > PIECE_BYTES;
        match command {
            Command::Read { whole } if is_long => return self.long_read(request, span, whole, arrived_ns),
            Command::Write { fua } if is_long => return self.long_write(request, span, fua, arrived_ns),
            _ => {}
        }
        let needs = match command {
            Command::Read { .. } | Command::Write { .. } => len,
            Command::Cache => len.min(PIECE_BYTES),
            _ => 0,
        };
        // A payload is taken off the socket as soon as it is there: bounding those was measured not to help.
        let large_max = if payload_len > 0 { usize::MAX } else { self.connection.large_max() };
        let mut buffer = (needs > 0).then(|| self.buffer(needs, large_max));
        if let Some(buffer) = buffer.as_mut()
            && payload_len > 0
        {
            self.payload(buffer)?;
        }
        let job = Job { request, command, span, buffer, arrived_ns };
        let is_alone = self.input.waiting() == 0
            && self.connection.in_flight.load(SeqCst) == self.batch.replies.len() + 1;
        // What flushes or allocates takes long, and others may come meanwhile.
        let is_short = matches!(
            command,
            Command::Read { .. } | Command::Write { fua: false } | Command::BlockStatus { .. }
        );
        let is_quick = self.connection.is_quick(command, request.len_bytes());
        if is_quick || (is_alone && is_short) {
            if !is_quick {
                self.send_batch();
            }
            let reply = self.connection.perform(job);
            self.push(reply);
        } else {
            self.hand_over(job);
        }
        Ok(())
    }

    fn hand_over(&mut self, job: Job) {
        let connection = self.connection;
        let mut work = lock(&connection.work);
        work.jobs.push_back(job);
        let ready = work.ready_count(connection.copies_max());
        let needs_worker = ready > work.idle && work.workers < connection.workers_max;
        work.workers += usize::from(needs_worker);
        drop(work);
        if ready > 0 {
            connection.job_is_there.notify_one();
        }
        if needs_worker {
            let worker = std::thread::Builder::new().name("nbd worker".into());
            if worker.spawn_scoped(self.scope, move || connection.work()).is_err() {
                self.do_without_worker();
            }
        }
    }

    /// No thread could be had. If there is no other, the jobs are done here.
    fn do_without_worker(&mut self) {
        lock(&self.connection.work).workers -= 1;
        loop {
            let mut work = lock(&self.connection.work);
            let job = if work.workers == 0 { work.jobs.pop_front() } else { None };
            drop(work);
            let Some(job) = job else { return };
            let reply = self.connection.perform(job);
            self.push(reply);
        }
    }

    fn refuse(&mut self, request: Request, errno: Errno, arrived_ns: u64) {
        let why = match errno {
            Errno::Perm => "the export is read-only",
            Errno::NoSpc => "past the end of the export",
            _ => "the request is malformed or past the end of the export",
        };
        let message = self.connection.style.error(request.cookie, errno, why);
        self.push(Reply { message, ended: Some(Ended { request, op: None, arrived_ns, is_ok: false }) });
    }

    fn skip(&mut self, len: usize) -> Result<(), End> {
        let mut left = len;
        while left > 0 {
            let mut buffer = self.buffer(left.min(PIECE_BYTES), usize::MAX);
            self.payload(&mut buffer)?;
            left -= buffer.len();
        }
        Ok(())
    }

    /// A write in pieces, each as it comes. What came before a connection broke was written.
    fn long_write(
        &mut self,
        request: Request,
        span: VirtualSpan,
        fua: bool,
        arrived_ns: u64,
    ) -> Result<(), End> {
        let mut result = Ok(());
        for piece in pieces(span) {
            let mut buffer = self.buffer(piece.1, usize::MAX);
            self.payload(&mut buffer)?;
            if result.is_ok() {
                result = self.connection.export.do_write(piece.0, &buffer, false);
            }
        }
        if result.is_ok() && fua {
            result = self.connection.export.do_flush();
        }
        let is_ok = result.is_ok();
        let message = match result {
            Ok(()) => self.connection.style.done(request.cookie),
            Err(fault) => self.connection.fault(request.cookie, &fault),
        };
        let op = Some((Op::Write, fua));
        self.push(Reply { message, ended: Some(Ended { request, op, arrived_ns, is_ok }) });
        Ok(())
    }

    /// A read in pieces: chunks of one reply, or what follows one head where the client wants it `whole`.
    fn long_read(
        &mut self,
        request: Request,
        span: VirtualSpan,
        whole: bool,
        arrived_ns: u64,
    ) -> Result<(), End> {
        let connection = self.connection;
        let ended = |is_ok| Some(Ended { request, op: Some((Op::Read, false)), arrived_ns, is_ok });
        if whole {
            self.send_batch();
            let is_ok = self.whole_read(request, span)?;
            connection
                .count(&[Reply { message: connection.style.done(request.cookie), ended: ended(is_ok) }]);
            connection.end(1);
            return Ok(());
        }
        for (at, len) in pieces(span) {
            let mut buffer = self.buffer(len, connection.large_max());
            let is_last = at.get() + len as u64 == span.end().get();
            let result = connection.export.do_read(at, &mut buffer);
            let is_ok = result.is_ok();
            let message = match result {
                Ok(()) => connection.style.data(request.cookie, at.get(), buffer, is_last),
                Err(fault) => connection.fault(request.cookie, &fault),
            };
            let ended = if is_last || !is_ok { ended(is_ok) } else { None };
            self.push(Reply { message, ended });
            if !is_ok {
                break;
            }
        }
        Ok(())
    }

    /// Sends one head and all pieces. A failure after the first piece ends the connection: the head has promised success.
    fn whole_read(&mut self, request: Request, span: VirtualSpan) -> Result<bool, End> {
        let connection = self.connection;
        let mut buffer = connection.memory.take(PIECE_BYTES, usize::MAX);
        let _wire = lock(&connection.wire);
        let mut is_first = true;
        for (at, len) in pieces(span) {
            let result = connection.export.do_read(at, &mut buffer[..len]);
            let sent = match result {
                Err(fault) if is_first => {
                    let message = connection.fault(request.cookie, &fault);
                    let mut slices = [IoSlice::new(message.head()), IoSlice::new(message.body())];
                    connection.transport.send(&mut slices).map_err(|_| End::Broken)?;
                    return Ok(false);
                }
                Err(fault) => Err(io::Error::other(fault.message)),
                Ok(()) if is_first => {
                    let len_bytes = request.len_bytes() as usize;
                    let head = connection.style.data_head(request.cookie, span.start().get(), len_bytes);
                    connection.transport.send(&mut [IoSlice::new(&head), IoSlice::new(&buffer[..len])])
                }
                Ok(()) => connection.transport.send_bytes(&buffer[..len]),
            };
            sent.map_err(|_| End::Broken)?;
            is_first = false;
        }
        Ok(true)
    }
}

/// Starts and lengths of pieces that a large buffer holds.
fn pieces(span: VirtualSpan) -> impl Iterator<Item = (VirtualOffset, usize)> {
    span.split(PIECE_BYTES as u64)
        .filter_map(|piece| Some((piece.start(), usize::try_from(piece.len_bytes()).ok()?)))
}

const _: () = assert!(REQUEST_BYTES == 28);
