//! Workers: what they do, in which order, and how many of them move bytes at a time.
//!
//! Invariants: jobs begin in the order in which they came, but that one which may take long waits for none that moves bytes; a
//! worker never waits for memory, as a job has its buffer when it is handed over.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use extent::VirtualSpan;

use super::Connection;
use super::outbox::{Ended, Reply};
use crate::export::{Fault, FaultKind, SMALL_BYTES_MAX, Speed};
use crate::nbd::lock;
use crate::nbd::memory::{Buffer, PIECE_BYTES};
use crate::nbd::reply::Message;
use crate::nbd::request::{Command, Errno, Request, RequestId};
use crate::trace::Op;

/// What is made zero or forgotten at once: as much as a request without extended headers can name.
const STEP_BYTES: u64 = 1 << 32;

/// A request to be done.
pub(super) struct Job {
    pub(super) request: Request,
    pub(super) command: Command,
    pub(super) span: VirtualSpan,
    /// A write's payload, or the place for what is read.
    pub(super) buffer: Option<Buffer>,
    pub(super) arrived_ns: u64,
}

impl Job {
    /// Whether it does nothing but move bytes.
    fn copies(&self) -> bool {
        matches!(self.command, Command::Read { .. } | Command::Write { fua: false })
    }
}

#[derive(Default)]
pub(super) struct Work {
    pub(super) jobs: VecDeque<Job>,
    /// Of the jobs that workers have, how many copy.
    copying: usize,
    pub(super) idle: usize,
    pub(super) workers: usize,
    pub(super) is_over: bool,
}

impl Work {
    /// How many jobs may begin, if `copies_max` may copy at a time.
    pub(super) fn ready_count(&self, copies_max: usize) -> usize {
        let copies = self.jobs.iter().filter(|job| job.copies()).count();
        self.jobs.len() - copies + copies.min(copies_max.saturating_sub(self.copying))
    }

    /// The first job that may begin.
    fn take(&mut self, copies_max: usize) -> Option<Job> {
        let may_copy = self.copying < copies_max;
        let at = self.jobs.iter().position(|job| may_copy || !job.copies())?;
        let job = self.jobs.remove(at)?;
        self.copying += usize::from(job.copies());
        Some(job)
    }
}

impl Connection {
    /// A worker's life.
    pub(super) fn work(&self) {
        let mut work = lock(&self.work);
        loop {
            if let Some(job) = work.take(self.copies_max()) {
                if work.idle > 0 && work.ready_count(self.copies_max()) > 0 {
                    self.job_is_there.notify_one();
                }
                drop(work);
                let copies = job.copies();
                if !self.lend_job(&job) {
                    self.post(vec![self.perform(job)]);
                }
                work = lock(&self.work);
                work.copying -= usize::from(copies);
            } else if work.is_over {
                return;
            } else {
                work.idle += 1;
                work = self.job_is_there.wait(work).unwrap_or_else(PoisonError::into_inner);
                work.idle -= 1;
            }
        }
    }

    /// How many workers may copy at a time. While the backend is as quick as memory, more than there are processors, and one that
    /// sends, would only stop each other within requests, which are then answered late. One that has to be waited for is asked as much
    /// as it can be.
    pub(super) fn copies_max(&self) -> usize {
        let export = &self.export;
        let is_fast = export.read_speed.is_fast() && export.write_speed.is_fast();
        if is_fast { self.processors + 1 } else { usize::MAX }
    }

    /// How many large buffers may be out for a read to begin: one to work on and one to send for each worker, so that they stay in the processors' caches.
    pub(super) fn large_max(&self) -> usize {
        self.copies_max().saturating_mul(2)
    }

    pub(super) fn perform(&self, job: Job) -> Reply {
        let Job { request, command, span, buffer, arrived_ns } = job;
        let id = request.id();
        let result = self.carry_out(command, span, buffer, id);
        let is_ok = result.is_ok();
        let message = result.unwrap_or_else(|fault| self.fault(id, &fault));
        Reply { message, ended: Some(Ended { request, op: Some(op_of(command)), arrived_ns, is_ok }) }
    }

    fn carry_out(
        &self,
        command: Command,
        span: VirtualSpan,
        buffer: Option<Buffer>,
        id: RequestId,
    ) -> Result<Message, Fault> {
        let export = &self.export;
        let len_bytes = span.len_bytes();
        let began = Instant::now();
        match (command, buffer) {
            (Command::Read { .. }, Some(mut buffer)) => {
                export.do_read(span.start(), &mut buffer)?;
                export.read_speed.add(began.elapsed(), len_bytes);
                return Ok(self.style.data(id, span.start().get(), buffer, true));
            }
            (Command::Read { .. }, None) => return Ok(self.style.no_data(id)),
            (Command::Write { fua }, buffer) => {
                export.do_write(span.start(), buffer.as_deref().unwrap_or(&[]), fua)?;
                if !fua {
                    export.write_speed.add(began.elapsed(), len_bytes);
                }
            }
            (Command::Flush, _) => export.flush()?,
            (Command::Trim { fua }, _) => {
                self.in_steps(span, fua, |step, fua| export.trim(step, fua))?;
            }
            (Command::WriteZeroes { fua, may_free, must_be_fast }, _) => {
                self.in_steps(span, fua, |step, fua| export.write_zeroes(step, fua, may_free, must_be_fast))?;
            }
            (Command::Cache, Some(mut buffer)) => {
                for piece in span.split(PIECE_BYTES as u64) {
                    let len = usize::try_from(piece.len_bytes()).unwrap_or(PIECE_BYTES).min(buffer.len());
                    export.do_read(piece.start(), &mut buffer[..len])?;
                }
            }
            (Command::Cache, None) => {}
            (Command::BlockStatus { only_one }, _) => {
                let found = export.allocation(span)?;
                let count = if only_one { found.len().min(1) } else { found.len() };
                return Ok(self.style.status(id, &found[..count]));
            }
        }
        Ok(self.style.done(id))
    }

    /// Does what needs no bytes a step at a time, the last of them with `fua`. A client that leaves does not have the rest done.
    fn in_steps(
        &self,
        span: VirtualSpan,
        fua: bool,
        mut step: impl FnMut(VirtualSpan, bool) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        if span.len_bytes() <= STEP_BYTES {
            return step(span, fua);
        }
        for part in span.split(STEP_BYTES) {
            if self.is_draining.load(SeqCst) {
                return Err(Fault::new(FaultKind::Io, "the client left"));
            }
            step(part, fua && part.end() == span.end())?;
        }
        Ok(())
    }

    pub(super) fn fault(&self, id: RequestId, fault: &Fault) -> Message {
        let errno = match fault.kind {
            FaultKind::Io => Errno::Io,
            FaultKind::NoSpace => Errno::NoSpc,
            FaultKind::ReadOnly => Errno::Perm,
            FaultKind::Invalid => Errno::Inval,
            FaultKind::NotFast => Errno::NotSup,
        };
        self.style.error(id, errno, &fault.message)
    }

    /// Whether it will probably be done sooner than handed over.
    pub(super) fn is_quick(&self, command: Command, len_bytes: u64) -> bool {
        let is_quick = |speed: &Speed| len_bytes <= SMALL_BYTES_MAX && speed.is_fast();
        match command {
            Command::Read { .. } => is_quick(&self.export.read_speed),
            Command::Write { fua: false } => is_quick(&self.export.write_speed),
            _ => false,
        }
    }
}

fn op_of(command: Command) -> (Op, bool) {
    match command {
        Command::Read { .. } => (Op::Read, false),
        Command::Write { fua } => (Op::Write, fua),
        Command::Flush => (Op::Flush, false),
        Command::Trim { fua } => (Op::Trim, fua),
        Command::Cache => (Op::Cache, false),
        Command::WriteZeroes { fua, .. } => (Op::Zero, fua),
        Command::BlockStatus { .. } => (Op::Status, false),
    }
}
