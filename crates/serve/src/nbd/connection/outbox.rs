//! Replies on their way: whoever is done sends what is ready to be sent, one thread at a time.
//!
//! Invariants: a request counts as in flight until its reply was handed to the kernel; its buffer goes back before anyone is told
//! of room.

use std::io::IoSlice;
use std::net::Shutdown;
use std::sync::atomic::Ordering::SeqCst;

use super::{Connection, IN_FLIGHT_MAX};
use crate::monitor::{Completion, Direction};
use crate::nbd::input::End;
use crate::nbd::lock;
use crate::nbd::reply::Message;
use crate::nbd::request::Request;
use crate::trace::{Event as Traced, Op};

/// Replies are sent when they are so many bytes, though more requests are there: the client works on these meanwhile.
pub(super) const BATCH_BYTES: usize = 64 << 10;

/// A reply to be sent.
pub(super) struct Reply {
    pub(super) message: Message,
    /// Of a reply's last message: what is counted when it is sent.
    pub(super) ended: Option<Ended>,
}

/// What is counted and recorded of a request whose reply is on its way.
pub(super) struct Ended {
    pub(super) request: Request,
    pub(super) op: Option<(Op, bool)>,
    pub(super) arrived_ns: u64,
    pub(super) is_ok: bool,
}

/// Replies that are ready, and whether somebody is sending them.
#[derive(Default)]
pub(super) struct Outbox {
    replies: Vec<Reply>,
    is_sending: bool,
    is_broken: bool,
}

impl Outbox {
    /// Whether a reply could not be sent.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

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

impl Connection {
    /// Has `replies` sent, by this thread or by the one that is sending.
    pub(super) fn post(&self, replies: Vec<Reply>) {
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
        let is_sent = {
            let _wire = lock(&self.wire);
            let is_sent = !is_broken && self.transport.send(&mut slices).is_ok();
            if !is_sent {
                self.broken_off();
            }
            is_sent
        };
        let ended = replies.iter().filter(|reply| reply.ended.is_some()).count();
        // Buffers go back before anyone is told of room.
        drop(replies);
        self.end(ended);
        is_sent
    }

    /// `count` requests are no longer in flight.
    pub(super) fn end(&self, count: usize) {
        let before = self.in_flight.fetch_sub(count, SeqCst);
        if before >= IN_FLIGHT_MAX || (before == count && self.is_draining.load(SeqCst)) {
            // Whoever waits checked under this lock.
            drop(lock(&self.work));
            self.there_is_room.notify_one();
        }
    }

    /// Ends the connection where a reply was not sent whole, while nobody else can send: to the client another reply would be the rest of it. Wakes
    /// the receiving thread.
    pub(super) fn broken_off(&self) -> End {
        self.transport.socket().shutdown(Shutdown::Both);
        End::Broken
    }

    /// Tells the monitor of a request that came and has no reply.
    pub(super) fn abandoned(&self, request: &Request) {
        if let (Some(monitor), Some(direction)) = (self.export.monitor(), direction(request)) {
            monitor.abandoned(direction);
        }
    }

    pub(super) fn count(&self, replies: &[Reply]) {
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
                    len_bytes: if is_flush { 0 } else { ended.request.len_bytes() },
                    at_us,
                    latency_us: now_us.saturating_sub(at_us),
                });
            }
        }
    }
}

pub(super) fn direction(request: &Request) -> Option<Direction> {
    request.direction().map(|is_write| if is_write { Direction::Write } else { Direction::Read })
}
