//! The sockets on which the service manager listens for this process (`sd_listen_fds(3)`).
//!
//! Invariants: descriptors are taken only if they are meant for this process, once, and only if each is a socket that listens;
//! programs that it starts do not get them.

use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{Error, Result};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketType, sockopt};

/// Descriptors are passed from this one on (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;
/// More are a mistake.
const COUNT_MAX: RawFd = 64;

/// A socket that listens already.
#[derive(Debug)]
pub enum PassedSocket {
    /// Of the file system, or abstract.
    Unix(UnixListener),
    /// Of an address.
    Tcp(TcpListener),
}

/// The sockets that were passed to this process; none if it was not started for any, and none the second time. To be asked
/// before anything else is opened.
pub fn passed_sockets() -> Result<Vec<PassedSocket>> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    let count = passed_count()?;
    if IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    (FIRST..FIRST + count).map(take).collect()
}

/// How many descriptors are meant for this process.
fn passed_count() -> Result<RawFd> {
    let is_for_us = std::env::var("LISTEN_PID").is_ok_and(|id| id.parse() == Ok(std::process::id()));
    let Some(count) = std::env::var_os("LISTEN_FDS").filter(|_| is_for_us) else { return Ok(0) };
    let count = count.to_str().and_then(|count| count.parse().ok());
    count.filter(|count| (0..=COUNT_MAX).contains(count)).ok_or_else(|| {
        Error::invalid(format!("LISTEN_FDS is not a number from 0 to {COUNT_MAX}"))
            .hint("systemd sets it for services with a socket unit")
    })
}

fn take(number: RawFd) -> Result<PassedSocket> {
    let no_socket =
        || Error::invalid(format!("descriptor {number}, which was passed, is no socket that listens"));
    let is_open = {
        // SAFETY: the call takes integers and touches no memory, whether the descriptor is open or not.
        #[allow(unsafe_code)]
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        flags != -1
    };
    if !is_open {
        return Err(no_socket());
    }
    // SAFETY: it is open, and nothing closes it while this is borrowed: it was open when the program began.
    #[allow(unsafe_code)]
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let family = listening_family(borrowed).ok_or_else(no_socket)?;
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)
        .map_err(|error| Error::io("take a passed socket", error.into()))?;
    // SAFETY: whoever started the process gave it this descriptor, nothing else here makes or knows one that listens before
    // this is asked, and it is asked once.
    #[allow(unsafe_code)]
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    Ok(if family == AddressFamily::UNIX {
        PassedSocket::Unix(socket.into())
    } else {
        PassedSocket::Tcp(socket.into())
    })
}

/// The family of a socket that listens for streams; `None` of anything else.
fn listening_family(socket: impl AsFd) -> Option<AddressFamily> {
    let socket = socket.as_fd();
    let listens = sockopt::socket_acceptconn(socket).ok()?;
    let kind = sockopt::socket_type(socket).ok()?;
    let family = sockopt::socket_domain(socket).ok()?;
    let is_known = [AddressFamily::UNIX, AddressFamily::INET, AddressFamily::INET6].contains(&family);
    (listens && kind == SocketType::STREAM && is_known).then_some(family)
}
