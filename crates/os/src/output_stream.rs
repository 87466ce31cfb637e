//! Standard output as the target of a copy: written from its start to its end, and nowhere twice.
//!
//! Writes come from many threads, each for a place of its own. Each waits until all before it was written; what is to be zeros is noted, and written
//! when its place comes, so that noting it never waits.
//!
//! Invariants: whoever asks for a write has asked for no later one before, and what lies before it was asked for already (the turnstile of a copy
//! sees to both); once a write failed, nothing more is written, and all that is asked fails. What it writes to is a trait, of which the exploration of
//! copies has one that takes a little at a time, and fails.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use block::{Error, ReadAt, Result, TargetFile};
use extent::{Host, HostOffset, HostSpan};
use mutants::broken;
use rustix::io::Errno;

use crate::zeros::ZEROS;

/// Where a stream goes to.
pub trait Outlet: Send + Sync {
    /// Writes some of `bytes`, and says how many: as write(2).
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;
}

struct StandardOutput;

impl Outlet for StandardOutput {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(rustix::stdio::stdout(), bytes)?)
    }
}

/// A stream, as a rule standard output.
pub struct OutputStream {
    state: Mutex<State>,
    advanced: Condvar,
}

struct State {
    outlet: Box<dyn Outlet>,
    /// Bytes written so far.
    position: u64,
    /// Zeros that are to come, by where they begin: their ends.
    zeros: BTreeMap<u64, u64>,
    /// Why nothing more is written.
    failed: Option<Errno>,
    /// What is held to, but for mutants. Asked when it is made: a mutant is one on its own thread alone.
    goes_on_after_some: bool,
    remembers_failures: bool,
}

impl OutputStream {
    /// Standard output, of which nothing was written yet. `Invalid` if it is a terminal.
    pub fn standard() -> Result<Self> {
        if rustix::termios::isatty(rustix::stdio::stdout()) {
            return Err(Error::invalid("a disk is not written to a terminal")
                .path("standard output")
                .hint("send it to a file or a program: > FILE, | PROGRAM"));
        }
        Ok(Self::to(Box::new(StandardOutput)))
    }

    /// A stream to somewhere else, of which nothing was written yet.
    pub fn to(outlet: Box<dyn Outlet>) -> Self {
        let state = State {
            outlet,
            position: 0,
            zeros: BTreeMap::new(),
            failed: None,
            goes_on_after_some: !broken!(StreamCutShort),
            remembers_failures: !broken!(StreamFailureForgotten),
        };
        Self { state: Mutex::new(state), advanced: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn check(&self) -> Result<()> {
        match self.failed {
            None => Ok(()),
            Some(errno) => Err(Error::io("write", errno.into()).path("standard output")),
        }
    }

    fn fail(&mut self, errno: Errno) -> Result<()> {
        self.failed = Some(errno);
        self.check()
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match self.outlet.write(bytes) {
                Ok(0) => return self.fail(Errno::IO),
                Ok(written) => {
                    let counted = if self.goes_on_after_some { written } else { bytes.len() };
                    self.position += counted as u64;
                    bytes = &bytes[counted..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if !self.remembers_failures => {
                    self.position += bytes.len() as u64;
                    return Ok(());
                }
                Err(error) => return self.fail(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
            }
        }
        Ok(())
    }

    /// Writes the zeros whose place has come.
    fn write_zeros(&mut self) -> Result<()> {
        while let Some(end) = self.zeros.remove(&self.position) {
            self.write_zeros_to(end)?;
        }
        Ok(())
    }

    fn write_zeros_to(&mut self, end: u64) -> Result<()> {
        while self.position < end {
            let len = usize::try_from(end - self.position).unwrap_or(usize::MAX).min(ZEROS.len());
            self.write(&ZEROS[..len])?;
        }
        Ok(())
    }
}

impl ReadAt<Host> for OutputStream {
    fn len_bytes(&self) -> u64 {
        self.lock().position
    }

    fn read_at(&self, _at: HostOffset, _buf: &mut [u8]) -> Result<()> {
        Err(Error::unsupported("reading back what was written to standard output"))
    }
}

impl TargetFile for OutputStream {
    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        let mut state = self.lock();
        loop {
            state.check()?;
            assert!(state.position <= at.get(), "a stream is written in order");
            if state.position == at.get() {
                break;
            }
            state = self.advanced.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let written = state.write(buf).and_then(|()| state.write_zeros());
        self.advanced.notify_all();
        written
    }

    /// Fills up with zeros what is missing at the end.
    fn set_len(&self, len_bytes: u64) -> Result<()> {
        let mut state = self.lock();
        state.check()?;
        assert!(state.position <= len_bytes && state.zeros.is_empty(), "all was written before the end");
        state.write_zeros_to(len_bytes)
    }

    /// There is no storage to be found.
    fn reserve(&self, _span: HostSpan) -> Result<()> {
        Ok(())
    }

    fn zero(&self, span: HostSpan) -> Result<()> {
        let mut state = self.lock();
        state.check()?;
        if !span.is_empty() {
            state.zeros.insert(span.start().get(), span.end().get());
        }
        let written = state.write_zeros();
        self.advanced.notify_all();
        written
    }

    /// What was written has left: where it goes is not known here.
    fn flush(&self) -> Result<()> {
        self.lock().check()
    }
}
