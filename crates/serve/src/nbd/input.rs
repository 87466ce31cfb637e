//! What a client sent, as it is received: requests one after the other, each write followed by its payload.
//!
//! Requests that came together are found together, so that their number is known before the first of them is done.

use std::collections::VecDeque;
use std::io;

use super::headers::Headers;
use super::request::Request;
use super::transport::Transport;

const INPUT_BYTES: usize = 128 << 10;
/// Less than this of a payload is received with what follows it, more straight to where it belongs.
const DIRECT_BYTES_MIN: usize = 16 << 10;

/// How receiving ended.
pub(crate) enum End {
    /// The client is gone, or between two requests went silent for good.
    Closed,
    /// What came is no request.
    Malformed,
    /// The connection broke, or stalled within a request.
    Broken,
}

impl End {
    /// For those who read what became of a connection.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Closed => "the client closed the connection",
            Self::Malformed => "the client sent what is no request",
            Self::Broken => "the connection broke, or stalled within a request",
        }
    }
}

/// The receiving end of a connection.
pub(crate) struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Of the bytes from `start` on, how many were looked through for requests; more than there are if a payload is
    /// still to come.
    looked: usize,
    /// With when each arrived.
    arrived: VecDeque<(Request, u64)>,
    /// Something came since the last look.
    has_news: bool,
    is_malformed: bool,
    has_goodbye: bool,
    headers: Headers,
}

impl Input {
    /// Goes on behind what was received with the negotiation.
    pub(crate) fn new(received: &[u8], headers: Headers) -> Self {
        let mut bytes = vec![0; INPUT_BYTES.max(received.len())];
        bytes[..received.len()].copy_from_slice(received);
        Self {
            bytes,
            start: 0,
            end: received.len(),
            looked: 0,
            arrived: VecDeque::new(),
            has_news: !received.is_empty(),
            is_malformed: false,
            has_goodbye: false,
            headers,
        }
    }

    /// The next request that is already here. The payload of the one before was taken, unless nothing will be done any
    /// more.
    pub(crate) fn pop(&mut self) -> Option<(Request, u64)> {
        let request = self.arrived.pop_front()?;
        let header_bytes = self.headers.request_bytes();
        self.start = self.end.min(self.start + header_bytes);
        self.looked = self.looked.saturating_sub(header_bytes);
        Some(request)
    }

    /// Whether a look may find anything.
    pub(crate) fn has_news(&self) -> bool {
        self.has_news
    }

    /// How many requests are here and wait.
    pub(crate) fn waiting(&self) -> usize {
        self.arrived.len()
    }

    fn consume(&mut self, len: usize) {
        self.start += len;
        self.looked -= len;
    }

    /// Looks for requests among what was received: those that were not known before, and so arrived at `now_ns`.
    pub(crate) fn look(&mut self, now_ns: u64) -> impl Iterator<Item = &Request> {
        let before = self.arrived.len();
        self.has_news = false;
        while !self.is_malformed && !self.has_goodbye {
            let rest = self.bytes[self.start..self.end].get(self.looked..);
            match Request::parse(rest.unwrap_or_default(), self.headers) {
                Ok(None) => break,
                Ok(Some(request)) => {
                    self.has_goodbye = request.is_disconnect();
                    self.looked += self.headers.request_bytes() + request.payload_bytes() as usize;
                    self.arrived.push_back((request, now_ns));
                }
                Err(_) => self.is_malformed = true,
            }
        }
        self.arrived.range(before..).map(|(request, _)| request)
    }

    /// Receives more, waiting for it. Between requests it waits forever, within one only as long as the socket does.
    pub(crate) fn receive(&mut self, transport: &Transport) -> Result<(), End> {
        if self.is_malformed {
            return Err(End::Malformed);
        }
        self.make_room();
        loop {
            match transport.receive(&mut self.bytes[self.end..]) {
                Ok(0) => return Err(End::Closed),
                Ok(len) => {
                    self.end += len;
                    self.has_news = true;
                    return Ok(());
                }
                Err(error) if is_timeout(&error) && self.start == self.end && self.looked == 0 => {}
                Err(_) => return Err(End::Broken),
            }
        }
    }

    fn make_room(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// Whether the next `len` bytes of a payload are here.
    pub(crate) fn holds(&self, len: usize) -> bool {
        self.end - self.start >= len
    }

    /// Fills `buf` with the next bytes of a payload.
    pub(crate) fn payload(&mut self, transport: &Transport, mut buf: &mut [u8]) -> Result<(), End> {
        loop {
            let held = buf.len().min(self.end - self.start);
            let (head, rest) = buf.split_at_mut(held);
            head.copy_from_slice(&self.bytes[self.start..][..held]);
            self.consume(held);
            buf = rest;
            if buf.is_empty() {
                return Ok(());
            }
            if buf.len() < DIRECT_BYTES_MIN {
                self.receive(transport)?;
                continue;
            }
            let len = transport.receive(buf).map_err(|_| End::Broken)?;
            if len == 0 {
                return Err(End::Closed);
            }
            // What goes past `bytes` was accounted for when the request was found.
            self.looked -= len;
            buf = &mut buf[len..];
        }
    }
}

pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
