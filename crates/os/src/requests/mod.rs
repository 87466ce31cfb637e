//! What a process that can open nothing asks of its broker ([`crate::confine()`] splits the two): the requests, their form on the way, and
//! the reader's end. Whoever opens a name asks [`client()`] first whether this process is such a one.

mod client;
mod message;

pub(crate) use client::{Client, READER, client, is_own};
pub(crate) use message::{
    FoundUser, OfExtracted, OfTarget, REQUEST_BYTES_MAX, Request, answer, receive_message, send_message,
};
