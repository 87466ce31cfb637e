//! Requests longer than a buffer: done in pieces by the receiving thread.

use std::io::{self, IoSlice};

use extent::{VirtualOffset, VirtualSpan};

use super::outbox::{Ended, Reply};
use super::receiver::Receiver;
use crate::nbd::input::End;
use crate::nbd::lock;
use crate::nbd::memory::PIECE_BYTES;
use crate::nbd::request::Request;
use crate::trace::Op;

impl Receiver<'_, '_> {
    /// A write in pieces, each as it comes. What came before a connection broke was written.
    pub(super) fn long_write(
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
            Ok(()) => self.connection.style.done(request.id()),
            Err(fault) => self.connection.fault(request.id(), &fault),
        };
        let op = Some((Op::Write, fua));
        self.push(Reply { message, ended: Some(Ended { request, op, arrived_ns, is_ok }) });
        Ok(())
    }

    /// A read in pieces: chunks of one reply, or what follows one head where the client wants it `whole`.
    pub(super) fn long_read(
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
            connection.count(&[Reply { message: connection.style.done(request.id()), ended: ended(is_ok) }]);
            connection.end(1);
            return Ok(());
        }
        for (at, len) in pieces(span) {
            let mut buffer = self.buffer(len, connection.large_max());
            let is_last = at.get() + len as u64 == span.end().get();
            let result = connection.export.do_read(at, &mut buffer);
            let is_ok = result.is_ok();
            let message = match result {
                Ok(()) => connection.style.data(request.id(), at.get(), buffer, is_last),
                Err(fault) => connection.fault(request.id(), &fault),
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
                    let message = connection.fault(request.id(), &fault);
                    let mut slices = [IoSlice::new(message.head()), IoSlice::new(message.body())];
                    connection.transport.send(&mut slices).map_err(|_| connection.broken_off())?;
                    return Ok(false);
                }
                Err(fault) => Err(io::Error::other(fault.message)),
                Ok(()) if is_first => {
                    let len_bytes = usize::try_from(span.len_bytes()).map_err(|_| connection.broken_off())?;
                    let head = connection.style.data_head(request.id(), span.start().get(), len_bytes);
                    connection.transport.send(&mut [IoSlice::new(&head), IoSlice::new(&buffer[..len])])
                }
                Ok(()) => connection.transport.send_bytes(&buffer[..len]),
            };
            sent.map_err(|_| connection.broken_off())?;
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
