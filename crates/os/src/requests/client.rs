//! The reader's side: asks the broker for what it cannot open.

use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

use block::{Error, Result};
use rustix::fd::{BorrowedFd, OwnedFd};
use serde::Deserialize;

use super::message::{ANSWER_BYTES_MAX, Request, answered, receive_message, send_message};

static CLIENT: OnceLock<Client> = OnceLock::new();

/// In the broker: the process that it opens files for.
pub(crate) static READER: OnceLock<u32> = OnceLock::new();

/// The broker as this process sees it; `None` where the process opens things itself.
pub(crate) fn client() -> Option<&'static Client> {
    CLIENT.get()
}

/// Whether a process is a part of this program: it, or the reader for which it is the broker.
pub(crate) fn is_own(process: u32) -> bool {
    process == std::process::id() || READER.get() == Some(&process)
}

/// One question at a time, of any thread.
#[derive(Debug)]
pub(crate) struct Client {
    socket: Mutex<OwnedFd>,
}

impl Client {
    pub(crate) fn install(socket: OwnedFd) {
        let is_first = CLIENT.set(Self { socket: Mutex::new(socket) }).is_ok();
        assert!(is_first, "a program is confined once");
    }

    /// Asks for something that is told.
    pub(crate) fn ask<T: for<'a> Deserialize<'a>>(&self, request: &Request) -> Result<T> {
        Ok(self.exchange(request, &[])?.0)
    }

    /// Asks for something that is told about a file.
    pub(crate) fn ask_about<T: for<'a> Deserialize<'a>>(
        &self,
        request: &Request,
        file: BorrowedFd<'_>,
    ) -> Result<T> {
        Ok(self.exchange(request, &[file])?.0)
    }

    /// Asks for a file, and what is told with it.
    pub(crate) fn open<T: for<'a> Deserialize<'a>>(&self, request: &Request) -> Result<(T, OwnedFd)> {
        let (told, files) = self.exchange(request, &[])?;
        Ok((told, first(&mut files.into_iter())?))
    }

    /// Asks for a file that there may be.
    pub(crate) fn find(&self, request: &Request) -> Result<Option<OwnedFd>> {
        let ((), files) = self.exchange(request, &[])?;
        Ok(files.into_iter().next())
    }

    /// Asks for a file, and for a second descriptor of it that goes past the page cache, if there is one.
    pub(crate) fn open_direct(&self, request: &Request) -> Result<(OwnedFd, Option<OwnedFd>)> {
        let ((), files) = self.exchange(request, &[])?;
        let mut files = files.into_iter();
        Ok((first(&mut files)?, files.next()))
    }

    /// Asks for another descriptor of a file.
    pub(crate) fn open_again(&self, request: &Request, file: BorrowedFd<'_>) -> Result<OwnedFd> {
        let ((), files) = self.exchange(request, &[file])?;
        first(&mut files.into_iter())
    }

    fn exchange<T: for<'a> Deserialize<'a>>(
        &self,
        request: &Request,
        files: &[BorrowedFd<'_>],
    ) -> Result<(T, Vec<OwnedFd>)> {
        let request = serde_json::to_vec(request).expect("a request becomes JSON");
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        send_message(&*socket, &request, files).map_err(failed)?;
        let received = receive_message(&*socket, ANSWER_BYTES_MAX).map_err(failed)?;
        let (bytes, files) = received.ok_or_else(|| failed(io::ErrorKind::UnexpectedEof.into()))?;
        Ok((answered(&bytes).map_err(failed)??, files))
    }
}

fn first(files: &mut impl Iterator<Item = OwnedFd>) -> Result<OwnedFd> {
    files.next().ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))
}

/// The broker is gone, or cannot be understood.
fn failed(error: io::Error) -> Error {
    Error::io("ask the process that opens files", error)
}
