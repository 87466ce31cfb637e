//! One connection: the handshake, then requests.
//!
//! What may take long goes to workers, of which there are as many as were ever busy at a time. While the backend is as quick as
//! memory, few of them move bytes at a time, with few large buffers: see `docs/decisions/serving-order.md`.
//!
//! Invariant: no more than [`IN_FLIGHT_MAX`] requests are in flight. What else holds stands where it is seen to: in
//! [`receiver`], [`workers`] and [`outbox`].

mod handshake;
mod long;
mod outbox;
mod receiver;
mod workers;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::lock;
use super::memory::{Memory, Pool};
use super::negotiate::Session;
use super::reply::Style;
use super::server::Exports;
use super::transport::Transport;
use crate::export::Export;
use handshake::negotiate;
use outbox::Outbox;
use receiver::Receiver;
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
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<crate::nbd::tls::Tls>,
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

impl Connection {
    fn run(&self) {
        std::thread::scope(|scope| {
            let mut receiver = Receiver::new(self, scope);
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
}
