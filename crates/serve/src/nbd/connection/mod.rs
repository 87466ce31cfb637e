//! One connection: the handshake, then requests.
//!
//! What may take long goes to workers, of which there are as many as were ever busy at a time. While the backend is as quick as
//! memory, few of them move bytes at a time, with few large buffers: see `docs/decisions/serving-order.md`.
//!
//! Invariant: no more than [`IN_FLIGHT_MAX`] requests are in flight. What else holds stands where it is seen to: in
//! [`receiver`], [`workers`] and [`outbox`].

mod handshake;
mod lent;
mod long;
mod outbox;
mod receiver;
mod workers;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::exports::Exports;
use super::input::End;
use super::lock;
use super::memory::{Memory, Pool};
use super::negotiate::Session;
use super::pages::Pipes;
use super::reply::Style;
use super::transport::Transport;
use crate::export::Export;
use handshake::{negotiate, reason};
use outbox::Outbox;
use receiver::{Asked, Receiver};
use workers::Work;

/// The most requests of a connection whose replies are not sent.
const IN_FLIGHT_MAX: usize = 64;

/// What a connection is given.
pub(crate) struct Setting {
    pub(crate) exports: Arc<Exports>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) handshake: Duration,
    pub(crate) stall: Duration,
    pub(crate) workers: usize,
    pub(crate) processors: usize,
    /// Told apart from the others by this in the log.
    pub(crate) number: u64,
    /// No more requests are taken.
    pub(crate) is_stopping: Arc<AtomicBool>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<crate::nbd::tls::Tls>,
    #[cfg(not(feature = "tls"))]
    pub(crate) tls: Option<std::convert::Infallible>,
}

impl Setting {
    /// Why a client left, if it did not leave by itself.
    fn reason<'a>(&self, otherwise: &'a str) -> &'a str {
        if self.is_stopping.load(SeqCst) { "the server stops" } else { otherwise }
    }
}

/// Serves the client at the other end of `transport`, until it leaves or misbehaves.
pub(crate) fn serve(mut transport: Transport, setting: &Setting) {
    let client = transport.socket().peer();
    let (number, tls) = (setting.number, setting.tls.is_some());
    let deadline = Instant::now() + setting.handshake;
    let mut unknown = None;
    let agreed = negotiate(&mut transport, setting, deadline, &mut unknown);
    if let Some((session, export)) = chosen(&agreed, setting)
        && transport.socket().set_timeouts(setting.stall).is_ok()
    {
        tracing::info!(number, %client, export = ?export.name(), tls, "client connected");
        let began = Instant::now();
        let connection = Connection::new(transport, session, export, setting);
        let Outcome { asked, reason } = connection.run();
        tracing::info!(
            number,
            %client,
            export = ?connection.export.name(),
            seconds = began.elapsed().as_secs_f64(),
            requests = asked.requests,
            read_bytes = asked.read_bytes,
            written_bytes = asked.written_bytes,
            reason = setting.reason(reason),
            "client disconnected"
        );
        transport = connection.transport;
    } else {
        let error = agreed.err().map(|error| reason(&error));
        let reason = setting.reason(error.as_deref().unwrap_or("it did not go on"));
        tracing::info!(number, %client, tls, asked = unknown, reason, "client left without an export");
    }
    transport.close();
}

/// What was agreed on, and the export of it.
fn chosen(agreed: &io::Result<Option<Session>>, setting: &Setting) -> Option<(Session, Arc<Export>)> {
    let session = agreed.as_ref().ok().copied().flatten()?;
    Some((session, setting.exports.list.get(session.export_index)?.clone()))
}

/// What a client asked for, and why that ended.
struct Outcome {
    asked: Asked,
    reason: &'static str,
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
    pipes: Mutex<Pipes>,
}

impl Connection {
    fn new(transport: Transport, session: Session, export: Arc<Export>, setting: &Setting) -> Self {
        Self {
            memory: Memory::new(setting.pool.clone()),
            style: Style { is_structured: session.is_structured, headers: session.headers },
            transport,
            session,
            export,
            workers_max: setting.workers,
            processors: setting.processors,
            work: Mutex::default(),
            job_is_there: Condvar::new(),
            there_is_room: Condvar::new(),
            in_flight: AtomicUsize::new(0),
            is_draining: AtomicBool::new(false),
            outbox: Mutex::default(),
            wire: Mutex::new(()),
            pipes: Mutex::default(),
        }
    }

    fn run(&self) -> Outcome {
        std::thread::scope(|scope| {
            let mut receiver = Receiver::new(self, scope);
            let ended = receiver.run();
            receiver.send_batch();
            receiver.abandon();
            self.drain();
            lock(&self.work).is_over = true;
            self.job_is_there.notify_all();
            Outcome { asked: receiver.asked(), reason: self.reason(&ended) }
        })
    }

    fn reason(&self, ended: &Result<(), End>) -> &'static str {
        match ended {
            _ if lock(&self.outbox).is_broken() => "replies could not be sent",
            Ok(()) => "the client said goodbye",
            Err(end) => end.reason(),
        }
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
}
