//! Large reads of what lies in the host's cache: the pages themselves are sent, and nothing is copied.
//!
//! The receiving thread does that itself, so that no other is woken. A backend that turns out to be slow is asked by workers, who lend as well, but
//! for requests that come one by one: those the receiving thread does in any case.
//!
//! Invariants: the reply's head is sent only when all pages are there, so a read that fails is answered as that; a pipe is used again only if it
//! is empty.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use block::Error;
use extent::VirtualSpan;

use super::Connection;
use super::outbox::{Ended, Reply};
use super::receiver::Receiver;
use super::workers::Job;
use crate::nbd::input::End;
use crate::nbd::lock;
use crate::nbd::pages::{Lending, Pages, Room};
use crate::nbd::request::{Command, Request};
use crate::trace::Op;

/// Less is copied as quickly.
const LENT_BYTES_MIN: u64 = 32 << 10;

/// A read that may be answered with pages.
struct Lent {
    request: Request,
    span: VirtualSpan,
    arrived_ns: u64,
}

impl Receiver<'_, '_> {
    /// Answers a read with the pages that hold `span`; `false`, and nothing was answered, where they cannot be had or are better copied.
    pub(super) fn lent_read(
        &mut self,
        request: Request,
        span: VirtualSpan,
        arrived_ns: u64,
    ) -> Result<bool, End> {
        let connection = self.connection;
        let is_fast = connection.export.read_speed.is_fast();
        if !connection.may_lend(span) || !(is_fast || self.is_alone()) {
            return Ok(false);
        }
        let Some(pages) = self.lending.take() else { return Ok(false) };
        if !is_fast {
            self.send_batch();
        }
        let lent = Lent { request, span, arrived_ns };
        let (is_lent, pages) = connection.lend(pages, lent, || self.send_batch())?;
        self.lending = pages.map_or(Lending::Not, Lending::By);
        Ok(is_lent)
    }
}

impl Connection {
    /// A worker's part of it: `true` if `job` was answered, or cannot be any more.
    pub(super) fn lend_job(&self, job: &Job) -> bool {
        let Job { request, span, arrived_ns, command: Command::Read { .. }, .. } = *job else { return false };
        if !self.may_lend(span) {
            return false;
        }
        let Some(pages) = lock(&self.pipes).take() else { return false };
        match self.lend(pages, Lent { request, span, arrived_ns }, || {}) {
            Ok((is_lent, pages)) => {
                pages.into_iter().for_each(|pages| lock(&self.pipes).give_back(pages));
                is_lent
            }
            Err(_) => {
                self.abandoned(&request);
                self.end(1);
                true
            }
        }
    }

    fn may_lend(&self, span: VirtualSpan) -> bool {
        span.len_bytes() >= LENT_BYTES_MIN && self.transport.in_the_clear().is_some()
    }

    /// Answers a read through `pages`, with what is to be sent before it when all is there; `false`, and nothing was answered, where that
    /// cannot be done. The pipe comes back if it is empty.
    fn lend(
        &self,
        pages: Pages,
        lent: Lent,
        send_before: impl FnOnce(),
    ) -> Result<(bool, Option<Pages>), End> {
        let Lent { request, span, arrived_ns } = lent;
        let len_bytes = span.len_bytes();
        let began = Instant::now();
        let (Some(socket), Ok(len)) = (self.transport.in_the_clear(), usize::try_from(len_bytes)) else {
            return Ok((false, Some(pages)));
        };
        let head = self.style.data_head(request.id(), span.start().get(), len);
        let mut room = Room::No;
        let mut fill = |file: BorrowedFd<'_>, at| {
            room = pages.room_for(at, len_bytes);
            match room {
                Room::ForAll => pages.put(&head).map_err(|error| Error::io("reply", error))?,
                Room::ForPages => {}
                Room::No => return Ok(()),
            }
            pages.fill(file, at, len_bytes)
        };
        // What fails here is answered by who copies. What lies in the pipe goes with it.
        let Ok(is_lent) = self.export.do_lend(span, &mut fill) else { return Ok((false, None)) };
        if !is_lent || room == Room::No {
            return Ok((false, Some(pages)));
        }
        self.export.read_speed.add(began.elapsed(), len_bytes);
        send_before();
        let wire = lock(&self.wire);
        let sent = match room {
            Room::ForAll => pages.send(socket, head.len() as u64 + len_bytes),
            _ => self.transport.send_bytes(&head).and_then(|()| pages.send(socket, len_bytes)),
        };
        sent.map_err(|_| self.broken_off())?;
        drop(wire);
        self.count(&[Reply {
            message: self.style.done(request.id()),
            ended: Some(Ended { request, op: Some((Op::Read, false)), arrived_ns, is_ok: true }),
        }]);
        self.end(1);
        Ok((true, Some(pages)))
    }
}
