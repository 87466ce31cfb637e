//! The program that carries SFTP: bytes to it and from it, within bounded silence, and what it says beside.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use block::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::fault::{Attempt, Fault, shown};

/// Lines of the program's that are kept to be told.
const LINES_MAX: usize = 5;
/// The longest of them.
const LINE_BYTES_MAX: u64 = 1024;
/// How long its last words are waited for once it has ended: a program that it left behind may keep the pipe open for ever.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A program with a server behind it, which ends with this.
pub(crate) struct Pipe {
    child: Child,
    /// `None` once it is to end.
    input: Option<ChildStdin>,
    output: ChildStdout,
    silence: Duration,
    said: Said,
}

/// What it printed last, and who reads it.
struct Said {
    lines: Arc<Mutex<Vec<String>>>,
    /// Disconnects when there is nothing left to read.
    end: mpsc::Receiver<()>,
}

impl Pipe {
    pub(crate) fn start(command: &mut Command, silence: Duration) -> Attempt<Self> {
        let failed = |error| Fault::Final(Error::io("start ssh", error));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (Some(input), Some(output), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(failed(ErrorKind::BrokenPipe.into()));
        };
        // What is not read there must not hold this process up for ever.
        let flags = fcntl_getfl(&input).map_err(|error| failed(error.into()))?;
        fcntl_setfl(&input, flags | OFlags::NONBLOCK).map_err(|error| failed(error.into()))?;
        Ok(Self { child, input: Some(input), output, silence, said: Said::listen(stderr) })
    }

    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Attempt<()> {
        while !bytes.is_empty() {
            let silence = self.silence;
            let input = self.input.as_mut().ok_or_else(lost)?;
            match input.write(bytes) {
                Ok(0) => return Err(lost()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    wait(&*input, PollFlags::OUT, silence)?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(lost()),
            }
        }
        Ok(())
    }

    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> Attempt<()> {
        let mut done = 0;
        while done < bytes.len() {
            wait(&self.output, PollFlags::IN, self.silence)?;
            match self.output.read(&mut bytes[done..]) {
                Ok(0) => return Err(lost()),
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(lost()),
            }
        }
        Ok(())
    }

    /// Until the program has said something.
    #[cfg(test)]
    pub(crate) fn wait_for_output(&self) -> Attempt<()> {
        wait(&self.output, PollFlags::IN, self.silence)
    }

    /// Of a program that has closed its output, and ends by itself: its exit status, and what it said last.
    pub(crate) fn ended(&mut self) -> (Option<i32>, String) {
        drop(self.input.take());
        let status = self.child.wait().ok().and_then(|status| status.code());
        (status, self.said.text())
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Said {
    fn listen(stderr: ChildStderr) -> Self {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = lines.clone();
        let (until_end, end) = mpsc::channel::<()>();
        let listen = move || {
            let _until_end = until_end;
            let (mut reader, mut line) = (BufReader::new(stderr), Vec::new());
            while reader
                .by_ref()
                .take(LINE_BYTES_MAX)
                .read_until(b'\n', &mut line)
                .is_ok_and(|count| count > 0)
            {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.push(shown(&String::from_utf8_lossy(&line)));
                let too_many = kept.len().saturating_sub(LINES_MAX);
                kept.drain(..too_many);
                line.clear();
            }
        };
        std::thread::spawn(listen);
        Self { lines, end }
    }

    /// To be asked once the program has ended.
    fn text(&self) -> String {
        // Either way, what was read by then is what there is.
        let _ = self.end.recv_timeout(LAST_WORDS);
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).join("; ")
    }
}

fn wait(on: &impl std::os::fd::AsFd, flags: PollFlags, silence: Duration) -> Attempt<()> {
    let timeout = Timespec::try_from(silence).ok();
    let mut polled = [PollFd::new(on, flags)];
    loop {
        match poll(&mut polled, timeout.as_ref()) {
            Ok(0) => return Err(Fault::passing("wait for the server", ErrorKind::TimedOut)),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Fault::Passing(Error::io("wait for the server", error.into()))),
        }
    }
}

/// The connection is gone.
pub(crate) fn lost() -> Fault {
    Fault::passing("speak to the server", ErrorKind::ConnectionReset)
}
