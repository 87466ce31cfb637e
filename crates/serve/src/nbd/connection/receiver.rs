//! The receiving thread: it does what is quick itself, hands the rest to workers, and sends the replies to all that came together
//! at once.
//!
//! Invariant: it sends all replies that it holds before it waits for anything.

use std::sync::atomic::Ordering::SeqCst;
use std::thread::Scope;

use super::outbox::{BATCH_BYTES, Ended, Reply, direction};
use super::workers::Job;
use super::{Connection, IN_FLIGHT_MAX};
use crate::monitor::Io;
use crate::nbd::input::{End, Input};
use crate::nbd::lock;
use crate::nbd::memory::{Buffer, PIECE_BYTES};
use crate::nbd::pages::Lending;
use crate::nbd::request::{Command, Errno, Request};

/// The payload of a question about allocation: how much of the disk it is about, and the one context that there is.
const STATUS_PAYLOAD_BYTES: usize = 8 + 4;

/// Replies that wait to be sent together.
#[derive(Default)]
struct Batch {
    replies: Vec<Reply>,
    bytes: usize,
}

/// What a client asked for, whether it could be done or not.
#[derive(Clone, Copy, Default)]
pub(super) struct Asked {
    pub(super) requests: u64,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
}

impl Asked {
    fn count(&mut self, request: &Request) {
        let len_bytes = counted_bytes(request);
        self.requests += 1;
        match request.direction() {
            Some(true) => self.written_bytes += len_bytes,
            Some(false) => self.read_bytes += len_bytes,
            None => {}
        }
    }
}

/// Bytes of a request as they are counted, before anything of it is checked: no more than any request moves or could without extended headers.
fn counted_bytes(request: &Request) -> u64 {
    request.len_bytes().min(u32::MAX.into())
}

/// The receiving thread.
pub(super) struct Receiver<'scope, 'env> {
    pub(super) connection: &'scope Connection,
    scope: &'scope Scope<'scope, 'env>,
    input: Input,
    batch: Batch,
    asked: Asked,
    pub(super) lending: Lending,
}

impl<'scope, 'env> Receiver<'scope, 'env> {
    pub(super) fn new(connection: &'scope Connection, scope: &'scope Scope<'scope, 'env>) -> Self {
        Self {
            connection,
            scope,
            input: Input::new(&[], connection.session.headers),
            batch: Batch::default(),
            asked: Asked::default(),
            lending: Lending::default(),
        }
    }
}

impl Receiver<'_, '_> {
    pub(super) fn run(&mut self) -> Result<(), End> {
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
            self.asked.count(&request);
            if self.connection.in_flight.load(SeqCst) >= IN_FLIGHT_MAX {
                self.send_batch();
                self.connection.wait_for_room();
            }
            self.connection.in_flight.fetch_add(1, SeqCst);
            let result = self.take(request, arrived_ns);
            if result.is_err() {
                // Its reply will not come.
                self.connection.end(1);
                self.connection.abandoned(&request);
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
            Some(Io { direction, offset: request.offset(), len_bytes: counted_bytes(request) })
        });
        if let Some(monitor) = self.connection.export.monitor() {
            monitor.arrived(ios, now_ns);
        }
    }

    /// Tells the monitor of requests that came and will not be done.
    pub(super) fn abandon(&mut self) {
        while let Some((request, _)) = self.input.pop() {
            self.connection.abandoned(&request);
        }
    }

    /// What was asked for by now.
    pub(super) fn asked(&self) -> Asked {
        self.asked
    }

    pub(super) fn send_batch(&mut self) {
        if !self.batch.replies.is_empty() {
            self.batch.bytes = 0;
            self.connection.post(std::mem::take(&mut self.batch.replies));
        }
    }

    pub(super) fn push(&mut self, reply: Reply) {
        self.batch.bytes += reply.message.len();
        self.batch.replies.push(reply);
        if self.batch.bytes >= BATCH_BYTES {
            self.send_batch();
        }
    }

    /// A buffer; replies are sent first if it must be waited for, as they may be what is waited for.
    pub(super) fn buffer(&mut self, len: usize, large_max: usize) -> Buffer {
        if let Some(buffer) = self.connection.memory.try_take(len, large_max) {
            return buffer;
        }
        self.send_batch();
        self.connection.memory.take(len, large_max)
    }

    /// Receives a payload; replies are sent first if it must be waited for.
    pub(super) fn payload(&mut self, buf: &mut [u8]) -> Result<(), End> {
        if !self.input.holds(buf.len()) {
            self.send_batch();
        }
        self.input.payload(&self.connection.transport, buf)
    }

    /// Does a request or hands it over. An error is one of the connection.
    fn take(&mut self, request: Request, arrived_ns: u64) -> Result<(), End> {
        if request.is_filtered(&self.connection.session) {
            return self.filtered_status(request, arrived_ns);
        }
        self.take_plain(request, arrived_ns)
    }

    /// Takes a question about allocation whose payload says how much of the disk it is about, and which contexts.
    fn filtered_status(&mut self, request: Request, arrived_ns: u64) -> Result<(), End> {
        let mut payload = [0; STATUS_PAYLOAD_BYTES];
        let len = request.payload_bytes() as usize;
        if len != payload.len() {
            self.skip(len)?;
            self.refuse(request, Errno::Inval, arrived_ns);
            return Ok(());
        }
        self.payload(&mut payload)?;
        match request.with_payload(&payload) {
            Ok(request) => self.take_plain(request, arrived_ns),
            Err(errno) => {
                self.refuse(request, errno, arrived_ns);
                Ok(())
            }
        }
    }

    fn take_plain(&mut self, request: Request, arrived_ns: u64) -> Result<(), End> {
        let payload_len = request.payload_bytes() as usize;
        let (command, span) = match request.check(&self.connection.session) {
            Ok(checked) => checked,
            Err(errno) => {
                self.skip(payload_len)?;
                self.refuse(request, errno, arrived_ns);
                return Ok(());
            }
        };
        let len = usize::try_from(request.len_bytes()).unwrap_or(usize::MAX);
        let is_long = len > PIECE_BYTES;
        match command {
            Command::Read { whole } if is_long => return self.long_read(request, span, whole, arrived_ns),
            Command::Write { fua } if is_long => return self.long_write(request, span, fua, arrived_ns),
            Command::Read { .. } if self.lent_read(request, span, arrived_ns)? => return Ok(()),
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
        let is_alone = self.is_alone();
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

    /// Whether the request in hand is the only one: then this thread does it itself, however slow the backend is.
    pub(super) fn is_alone(&self) -> bool {
        self.input.waiting() == 0 && self.connection.in_flight.load(SeqCst) == self.batch.replies.len() + 1
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
        let message = self.connection.style.error(request.id(), errno, why);
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
}
