//! What a server sent and nobody took yet.

use std::io;
use std::time::Instant;

use zerocopy::{FromBytes, IntoBytes};

use crate::transport::Transport;

/// Small replies come together in one call; what is long goes past this.
const BUFFER_BYTES: usize = 16 << 10;

/// Received bytes, taken in order by one thread at a time.
#[derive(Debug)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; BUFFER_BYTES], start: 0, end: 0 }
    }

    /// Fills all of `buf`. With a deadline, which a negotiation has, it fails with `TimedOut` when that has passed.
    pub(crate) fn fill(
        &mut self,
        transport: &Transport,
        mut buf: &mut [u8],
        deadline: Option<Instant>,
    ) -> io::Result<()> {
        while !buf.is_empty() {
            if self.start < self.end {
                let taken = buf.len().min(self.end - self.start);
                let (head, rest) = buf.split_at_mut(taken);
                head.copy_from_slice(&self.bytes[self.start..self.start + taken]);
                self.start += taken;
                buf = rest;
                continue;
            }
            if buf.len() >= BUFFER_BYTES {
                let received = receive(transport, buf, deadline)?;
                buf = &mut buf[received..];
                continue;
            }
            (self.start, self.end) = (0, receive(transport, &mut self.bytes, deadline)?);
        }
        Ok(())
    }

    /// One struct.
    pub(crate) fn value<T: FromBytes + IntoBytes>(
        &mut self,
        transport: &Transport,
        deadline: Option<Instant>,
    ) -> io::Result<T> {
        let mut value = T::new_zeroed();
        self.fill(transport, value.as_mut_bytes(), deadline)?;
        Ok(value)
    }

    /// Bytes of a length that was held against a bound.
    pub(crate) fn vec(
        &mut self,
        transport: &Transport,
        len_bytes: usize,
        deadline: Option<Instant>,
    ) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len_bytes];
        self.fill(transport, &mut bytes, deadline)?;
        Ok(bytes)
    }

    /// Whether bytes are here that nobody asked for.
    #[cfg(feature = "tls")]
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

fn receive(transport: &Transport, buf: &mut [u8], deadline: Option<Instant>) -> io::Result<usize> {
    let received = match deadline {
        Some(deadline) => transport.receive_before(buf, deadline),
        None => transport.receive(buf),
    };
    match received {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        // What a timeout of a socket is called (socket(7), SO_RCVTIMEO).
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(io::ErrorKind::TimedOut.into()),
        other => other,
    }
}
