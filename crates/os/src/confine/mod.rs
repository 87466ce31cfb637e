//! A process that can open nothing while it reads what strangers wrote.
//!
//! [`confine`] splits the program in two. The process that the user started goes on as the *reader*: from then on it has the files
//! that are open, and gets others only from the *broker*, a child that stays as it was, reads no image, and hands out what the
//! command line names and what the gate for references grants ([`Names`]). The reader is closed in by Landlock, which has every
//! opening, making, renaming and removing of names refused, and by a list of system calls that it never needs (`filter`).
//!
//! Invariants:
//! - the broker believes nothing that the reader says: what may be opened is known before the reader exists;
//! - what the reader gets is opened by the same code, with the same errors, as in a process that is not confined;
//! - a thread inherits what closes in the one that starts it, and no other does: so there is one when a process is closed in;
//! - the reader is the process that was started: its end, its signals and its terminal are the program's. The broker ends with it.
//!
//! A process that serves disks has its files open before it is closed in ([`split`], then [`Split::close`]). The broker is there before an
//! image is parsed, and does nothing for it but remove what the process made.
//!
//! Absent on purpose: secrecy of names. What exists, and how long it is, can be asked for without opening it (stat(2)), and Landlock
//! lets a process do so.

mod broker;
mod filter;
mod names;
mod target;

use std::io;
use std::time::{Duration, Instant};

use block::{Error, Result};
use landlock::{ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetError, RulesetStatus, Scope};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

pub use filter::Work;
pub use names::Names;

use crate::process::processor_count;
use crate::requests::Client;

/// How long a thread may take to end.
const ENDING_TIME_MAX: Duration = Duration::from_secs(1);

/// What the kernel closes of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Confined {
    /// Whether nothing can be opened, made, renamed or removed by its name (Landlock).
    pub names: bool,
    /// Whether system calls that are never needed are refused (seccomp).
    pub calls: bool,
}

/// Splits this process, and closes in the one that goes on for its work: it gets what `names` says and nothing else. Says how far the kernel
/// does that; where it does nothing of it, all works as before.
///
/// To be called before anything is opened and before a thread begins: `Unsupported` if there is more than one thread.
pub fn confine(names: Names, work: Work) -> Result<Confined> {
    split(names)?.close(work)
}

/// Splits this process. The one that goes on opens things by itself until it is closed in.
///
/// To be called before an image is parsed and before a thread begins: `Unsupported` if there is more than one thread.
pub fn split(names: Names) -> Result<Split> {
    check_single_thread()?;
    let _ = processor_count();
    let (ours, brokers) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|error| Error::io("make a socket for the broker", error.into()))?;
    let reader = std::process::id();
    match fork()? {
        None => {
            drop(ours);
            broker::run(brokers, reader, names)
        }
        Some(_) => {
            drop(brokers);
            Ok(Split { socket: ours })
        }
    }
}

/// A process that has a broker, and is not closed in yet. The broker ends if this is dropped.
#[derive(Debug)]
pub struct Split {
    socket: OwnedFd,
}

impl Split {
    /// Closes in this process for its work: from now on it has what it has open, and gets what the broker grants. Says how far the kernel
    /// does that.
    ///
    /// `Unsupported` if there is more than one thread: the others would not be closed in.
    pub fn close(self, work: Work) -> Result<Confined> {
        check_single_thread()?;
        Client::install(self.socket);
        let names = close_names().map_err(|error| failed("Landlock", &error))?;
        let calls = filter::install(work).is_ok();
        Ok(Confined { names, calls })
    }
}

fn failed(what: &str, error: &dyn std::error::Error) -> Error {
    Error::io(format!("confine the program with {what}"), io::Error::other(error.to_string()))
}

/// A domain of Landlock's without a single rule: what it handles is refused everywhere. Older kernels handle less of it. `false` where
/// there is no Landlock.
fn close_names() -> Result<bool, RulesetError> {
    let newest = ABI::V10;
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(newest))?
        .handle_access(AccessNet::from_all(newest))?
        .scope(Scope::from_all(newest))?
        .create()?
        .restrict_self()?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// What a fork leaves of a process with several threads can be in any state. Threads that are ending, as of a pool that was dropped, are waited for.
fn check_single_thread() -> Result<()> {
    let threads = || {
        let listed = std::fs::read_dir("/proc/self/task");
        listed.map(Iterator::count).map_err(|error| Error::io("count threads", error))
    };
    let deadline = Instant::now() + ENDING_TIME_MAX;
    loop {
        match threads()? {
            1 => return Ok(()),
            count if Instant::now() > deadline => {
                return Err(Error::unsupported(format!(
                    "confinement of a program that has {count} threads already"
                )));
            }
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// `None` in the child, its number in the parent.
fn fork() -> Result<Option<libc::pid_t>> {
    // SAFETY: this is the only thread (`check_single_thread`), so no lock is held and no memory half changed by one that the child lacks:
    // the child can go on with anything that the parent could.
    #[allow(unsafe_code)]
    let id = unsafe { libc::fork() };
    match id {
        -1 => Err(Error::io("start the broker", io::Error::last_os_error())),
        0 => Ok(None),
        id => Ok(Some(id)),
    }
}
