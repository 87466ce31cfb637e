//! QMP, and the protocol of the guest agent, over a Unix socket.
//!
//! Invariants:
//! - each command has a number, and an answer with another one is not taken for its answer: one that came too late is skipped;
//! - events are skipped;
//! - nothing that the other side says takes unbounded memory or waits for ever, whatever it says meanwhile.
//!
//! Absent on purpose: threads. A program is closed in when it has one.

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use block::{Error, Result};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};

use crate::monitor::{Command, Monitor, Said};

/// The longest answer: that of a QEMU with thousands of nodes is shorter.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// How deep QEMU's answers are, at most, is far less; `serde_json` refuses deeper ones than 128.
const READ_BYTES: usize = 64 << 10;
/// How long QEMU may take to greet.
const GREETING_MAX: Duration = Duration::from_secs(5);
/// How long it may take to do what it is asked for.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// What no JSON has: an agent's parser begins anew with it, and so does what it answers.
const MARK: u8 = 0xff;

/// A connection that answers commands.
#[derive(Debug)]
pub struct Socket {
    stream: UnixStream,
    path: PathBuf,
    /// Read and not taken yet.
    held: Vec<u8>,
    number: u64,
    answer_max: Duration,
    who: &'static str,
}

impl Socket {
    /// Connects to a QEMU.
    pub fn connect(path: &Path) -> Result<Self> {
        Self::connect_within(path, GREETING_MAX)
    }

    fn connect_within(path: &Path, greeting_max: Duration) -> Result<Self> {
        Self::open(path, "QEMU")?.greeted_within(path, greeting_max)
    }

    /// Takes a connection to a QEMU that is being started, which greets within `greeting_max`.
    pub fn over(stream: UnixStream, greeting_max: Duration) -> Result<Self> {
        let path = Path::new("QEMU");
        Self::of(stream, path, "QEMU")?.greeted_within(path, greeting_max)
    }

    fn greeted_within(self, path: &Path, greeting_max: Duration) -> Result<Self> {
        let mut socket = self;
        let greeted = socket.read_message(Instant::now() + greeting_max).map_err(|error| {
            let late = error.io_source().is_some_and(|source| source.kind() == io::ErrorKind::TimedOut);
            match late {
                true => error.hint(
                    "a QMP socket serves one program at a time: another one may be connected (libvirt, or another \
                     leandisk); give QEMU a second -qmp socket",
                ),
                false => error,
            }
        });
        let greeting = greeted.map_err(|error| error.path(path.display()))?;
        if !greeting["QMP"].is_object() {
            return Err(socket.no_monitor());
        }
        (&mut socket as &mut dyn Monitor).ask("qmp_capabilities", json!({}))?;
        Ok(socket)
    }

    /// Connects to a guest's agent, which greets nobody.
    pub fn connect_agent(path: &Path, answer_max: Duration) -> Result<Self> {
        let mut socket = Self::open(path, "the guest agent")?;
        socket.answer_max = answer_max;
        socket.synchronise().map_err(|error| error.path(path.display()))?;
        Ok(socket)
    }

    /// Skips what was meant for an earlier client, and the agent's complaint about the mark that ends what that one left unsent: see
    /// guest-sync-delimited in qga/qapi-schema.json.
    fn synchronise(&mut self) -> Result<()> {
        self.stream.write_all(&[MARK]).map_err(|error| self.lost(error))?;
        let id = std::process::id();
        let asked = json!({ "execute": "guest-sync-delimited", "arguments": { "id": id } });
        self.stream.write_all(format!("{asked}\n").as_bytes()).map_err(|error| self.lost(error))?;
        let deadline = Instant::now() + self.answer_max;
        loop {
            let line = self.read_line(deadline)?;
            // An answer that was cut off may stand before the mark.
            let Some(at) = line.iter().rposition(|byte| *byte == MARK) else { continue };
            if self.parse(&line[at + 1..])?["return"].as_u64() == Some(id.into()) {
                return Ok(());
            }
        }
    }

    fn open(path: &Path, who: &'static str) -> Result<Self> {
        let failed = |error| Error::io("connect", error).path(path.display());
        Self::of(UnixStream::connect(path).map_err(failed)?, path, who)
    }

    fn of(stream: UnixStream, path: &Path, who: &'static str) -> Result<Self> {
        let failed = |error| Error::io("connect", error).path(path.display());
        stream.set_write_timeout(Some(ANSWER_MAX)).map_err(failed)?;
        let path = path.to_owned();
        Ok(Self { stream, path, held: Vec::new(), number: 0, answer_max: ANSWER_MAX, who })
    }

    fn send(&self, line: &[u8], command: &Command<'_>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = command.file.map(|file| [file]);
        if let Some(files) = &files {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        let sent = sendmsg(self.stream.as_fd(), &[IoSlice::new(line)], &mut control, SendFlags::NOSIGNAL)?;
        // The descriptor went with the first byte.
        let rest = line.get(sent..).unwrap_or_default();
        (&self.stream).write_all(rest)
    }

    /// The next message of any kind.
    fn read_message(&mut self, deadline: Instant) -> Result<Value> {
        loop {
            let line = self.read_line(deadline)?;
            if !line.is_empty() {
                return self.parse(&line);
            }
        }
    }

    fn parse(&self, text: &[u8]) -> Result<Value> {
        serde_json::from_slice(text).map_err(|_| self.no_monitor())
    }

    fn read_line(&mut self, deadline: Instant) -> Result<Vec<u8>> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.held[searched..].iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.held.drain(..=searched + end).collect();
                return Ok(line.trim_ascii().to_vec());
            }
            searched = self.held.len();
            if searched >= ANSWER_BYTES_MAX {
                let limit = format!("at most {ANSWER_BYTES_MAX}");
                return Err(Error::corrupt(format!("an answer of {}", self.who))
                    .field("length", searched, limit)
                    .path(self.path.display()));
            }
            self.read_more(deadline)?;
        }
    }

    fn read_more(&mut self, deadline: Instant) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        let late = || io::Error::new(io::ErrorKind::TimedOut, "it does not answer");
        if left.is_zero() {
            return Err(self.lost(late()));
        }
        self.stream.set_read_timeout(Some(left)).map_err(|error| self.lost(error))?;
        let mut buf = [0; READ_BYTES];
        match self.stream.read(&mut buf) {
            Ok(0) => Err(self.lost(io::Error::new(io::ErrorKind::UnexpectedEof, "it hung up"))),
            Ok(len) => {
                self.held.extend_from_slice(&buf[..len]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(self.lost(late())),
            Err(error) => Err(self.lost(error)),
        }
    }

    fn lost(&self, error: io::Error) -> Error {
        Error::io(format!("talk to {}", self.who), error).path(self.path.display())
    }

    fn no_monitor(&self) -> Error {
        Error::corrupt(format!("{} does not speak here: what came is none of its messages", self.who))
            .path(self.path.display())
            .hint("the socket of QEMU's option -qmp, or of -chardev with -mon mode=control, is meant")
    }
}

impl Monitor for Socket {
    fn execute(&mut self, command: Command<'_>) -> Result<Value> {
        self.number += 1;
        let number = self.number;
        tracing::debug!(command = command.name, "ask");
        let message = match command.arguments.as_object().is_some_and(|arguments| !arguments.is_empty()) {
            true => json!({ "execute": command.name, "arguments": command.arguments, "id": number }),
            false => json!({ "execute": command.name, "id": number }),
        };
        let line = format!("{message}\n");
        self.send(line.as_bytes(), &command).map_err(|error| self.lost(error))?;
        let deadline = Instant::now() + self.answer_max;
        loop {
            let mut answer = self.read_message(deadline)?;
            // The answer to what cannot be parsed has no number; so have events.
            if answer.get("event").is_some() || answer["id"].as_u64().is_some_and(|id| id != number) {
                continue;
            }
            if let Some(error) = answer.get("error") {
                let text = error["desc"].as_str().unwrap_or("no reason").to_owned();
                return Err(
                    Error::refused(Said { command: command.name.to_owned(), text }).path(self.path.display())
                );
            }
            return match answer.get_mut("return") {
                Some(value) => Ok(value.take()),
                None => Err(self.no_monitor()),
            };
        }
    }
}
