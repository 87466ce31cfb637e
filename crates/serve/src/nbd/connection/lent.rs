//! Large reads of what lies in the host's cache: the receiving thread sends the pages themselves.
//!
//! Nothing is copied and no other thread is woken. A backend that turns out to be slow is asked by workers again, but for requests that come one
//! by one: those this thread does itself in any case.
//!
//! Invariant: the reply's head is sent only when all pages are there; so a read that fails is answered as that.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use block::Error;
use extent::VirtualSpan;

use super::outbox::{Ended, Reply};
use super::receiver::Receiver;
use crate::nbd::input::End;
use crate::nbd::lock;
use crate::nbd::pages::{Lending, Pages, Room};
use crate::nbd::request::Request;
use crate::trace::Op;

/// Less is copied as quickly.
const LENT_BYTES_MIN: u64 = 32 << 10;

impl Receiver<'_, '_> {
    /// Answers a read with the pages that hold `span`; `false`, and nothing was answered, where they cannot be had or are better copied.
    pub(super) fn lent_read(
        &mut self,
        request: Request,
        span: VirtualSpan,
        arrived_ns: u64,
    ) -> Result<bool, End> {
        let connection = self.connection;
        let len_bytes = span.len_bytes();
        let is_fast = connection.export.read_speed.is_fast();
        if len_bytes < LENT_BYTES_MIN || !(is_fast || self.is_alone()) {
            return Ok(false);
        }
        let (Some(socket), Some(pages)) = (connection.transport.in_the_clear(), self.take_pages()) else {
            return Ok(false);
        };
        if !is_fast {
            self.send_batch();
        }
        let began = Instant::now();
        let Ok(len) = usize::try_from(len_bytes) else { return Ok(false) };
        let head = connection.style.data_head(request.id(), span.start().get(), len);
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
        let Ok(is_lent) = connection.export.do_lend(span, &mut fill) else { return Ok(false) };
        if is_lent && room != Room::No {
            connection.export.read_speed.add(began.elapsed(), len_bytes);
            self.send_batch();
            let _wire = lock(&connection.wire);
            let sent = match room {
                Room::ForAll => pages.send(socket, head.len() as u64 + len_bytes),
                _ => connection.transport.send_bytes(&head).and_then(|()| pages.send(socket, len_bytes)),
            };
            sent.map_err(|_| End::Broken)?;
            connection.count(&[Reply {
                message: connection.style.done(request.id()),
                ended: Some(Ended { request, op: Some((Op::Read, false)), arrived_ns, is_ok: true }),
            }]);
            connection.end(1);
        }
        self.lending = Lending::By(pages);
        Ok(is_lent && room != Room::No)
    }

    /// The pipe, to be put back once it is empty again.
    fn take_pages(&mut self) -> Option<Pages> {
        match std::mem::replace(&mut self.lending, Lending::Not) {
            Lending::Untried => Pages::new(),
            Lending::By(pages) => Some(pages),
            Lending::Not => None,
        }
    }
}
