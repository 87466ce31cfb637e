//! A conversation by SFTP: requests that are on their way together, and their replies.
//!
//! Invariant: where the two sides may not be at the same place any more, the session is broken, and serves nobody again.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::process::Command;
use std::time::Duration;

use block::Error;

use super::codec::{
    Ask, Attributes, Body, Fields, Opened, PACKET_BYTES_MAX, Reply, Status, VERSION, garbage,
};
use super::pipe::{Pipe, lost};
use crate::fault::{Attempt, Fault, shown};

/// What every server takes and gives by one request.
pub(crate) const CHUNK_BYTES: usize = 32 << 10;
/// Requests on their way at once: two megabytes.
const WINDOW: usize = 64;
/// Replies to one request for names: a folder of ten million files.
const NAMES_MAX: usize = 10_000_000;
/// What the shell answers if there is no such program.
const NOT_FOUND: i32 = 127;
const POSIX_RENAME: &str = "posix-rename@openssh.com";
const FSYNC: &str = "fsync@openssh.com";

/// A connection to a server.
pub(crate) struct Session {
    pipe: Pipe,
    next_id: u32,
    extensions: Vec<String>,
    is_broken: bool,
}

impl Session {
    pub(crate) fn start(command: &mut Command, silence: Duration) -> Attempt<Self> {
        Self::over(Pipe::start(command, silence)?)
    }

    fn over(pipe: Pipe) -> Attempt<Self> {
        let mut session = Self { pipe, next_id: 0, extensions: Vec::new(), is_broken: false };
        match session.greet() {
            Err(Fault::Passing(error))
                if error.io_source().is_some_and(|io| io.kind() == ErrorKind::ConnectionReset) =>
            {
                Err(session.why_ended())
            }
            greeted => greeted.map(|()| session),
        }
    }

    fn greet(&mut self) -> Attempt<()> {
        // Who ended without listening may have said something all the same, which tells more.
        let sent = self.pipe.write(&Body::default().u32(VERSION).packet(Ask::Init, None));
        let packet = self.packet()?;
        let mut fields = Fields(&packet);
        let (kind, version) = (fields.u8()?, fields.u32()?);
        if kind != 2 || version != VERSION {
            return Err(garbage());
        }
        while !fields.0.is_empty() {
            let name = String::from_utf8_lossy(fields.string()?).into_owned();
            let version = fields.string()?;
            if version == b"1" {
                self.extensions.push(name);
            }
        }
        sent
    }

    /// Why there is no server, by the word of who was to carry the bytes.
    fn why_ended(&mut self) -> Fault {
        let (status, said) = self.pipe.ended();
        let told = if said.is_empty() { "it ended without a word".to_owned() } else { said };
        let is_denied =
            ["Permission denied", "Host key verification failed", "Too many authentication failures"]
                .into_iter()
                .any(|words| told.contains(words));
        match status {
            Some(NOT_FOUND) => Fault::Final(
                Error::refused(format!("ssh is not there: {told}"))
                    .hint("install openssh-client, or name a program by -o sftp.command=COMMAND"),
            ),
            _ if is_denied => Fault::denied(format!("ssh: {told}")),
            _ => Fault::Passing(Error::io(
                format!("connect by ssh: {told}"),
                ErrorKind::ConnectionRefused.into(),
            )),
        }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    fn packet(&mut self) -> Attempt<Vec<u8>> {
        let mut len = [0; 4];
        self.pipe.read(&mut len)?;
        let len = u32::from_be_bytes(len);
        if !(5..=PACKET_BYTES_MAX).contains(&len) {
            return Err(garbage());
        }
        let mut packet = vec![0; usize::try_from(len).map_err(|_| garbage())?];
        self.pipe.read(&mut packet)?;
        Ok(packet)
    }

    fn send(&mut self, ask: Ask, body: Body) -> Attempt<u32> {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let sent = self.pipe.write(&body.packet(ask, Some(id)));
        self.is_broken |= sent.is_err();
        sent.map(|()| id)
    }

    fn receive(&mut self) -> Attempt<(u32, Reply)> {
        let received = self.packet().and_then(|packet| Fields(&packet).reply());
        self.is_broken |= received.is_err();
        received
    }

    fn call(&mut self, ask: Ask, body: Body) -> Attempt<Reply> {
        let id = self.send(ask, body)?;
        let (of, reply) = self.receive()?;
        if of != id {
            return Err(self.confused());
        }
        Ok(reply)
    }

    fn confused(&mut self) -> Fault {
        self.is_broken = true;
        garbage()
    }

    /// Waits for a reply that says no more than how it went.
    fn done(&mut self, what: &str, ask: Ask, body: Body) -> Attempt<()> {
        match self.call(ask, body)? {
            Reply::Status(Status::Ok, _) => Ok(()),
            Reply::Status(status, message) => Err(self.fault(what, status, &message)),
            _ => Err(self.confused()),
        }
    }

    fn fault(&mut self, what: &str, status: Status, message: &str) -> Fault {
        let told = match message {
            "" => what.to_owned(),
            message => format!("{what}: the server answers: {}", shown(message)),
        };
        match status {
            Status::NoSuchFile => Fault::not_found(told),
            Status::PermissionDenied => Fault::denied(told),
            Status::Eof => Fault::too_short(told),
            Status::NoConnection => {
                self.is_broken = true;
                lost()
            }
            Status::Unsupported => Fault::Final(Error::unsupported(told)),
            Status::Ok => self.confused(),
            Status::Failure => Fault::Final(
                Error::io(told, std::io::Error::other("it failed"))
                    .hint("servers say so where there is no room, among others"),
            ),
        }
    }

    fn has(&self, extension: &str) -> bool {
        self.extensions.iter().any(|known| known == extension)
    }

    pub(crate) fn open(&mut self, path: &str, how: Opened) -> Attempt<Vec<u8>> {
        let body = Body::default().string(path.as_bytes()).u32(how.flags());
        let body = match how {
            Opened::Read => body.u32(0),
            // With permissions: nobody changes it, and nobody else reads it.
            Opened::New => body.u32(4).u32(0o400),
        };
        self.handle(&format!("open {path}"), Ask::Open, body)
    }

    fn handle(&mut self, what: &str, ask: Ask, body: Body) -> Attempt<Vec<u8>> {
        match self.call(ask, body)? {
            Reply::Handle(handle) if handle.len() <= 256 => Ok(handle),
            Reply::Status(status, message) => Err(self.fault(what, status, &message)),
            _ => Err(self.confused()),
        }
    }

    pub(crate) fn close(&mut self, handle: &[u8]) -> Attempt<()> {
        self.done("close a file", Ask::Close, Body::default().string(handle))
    }

    /// Has the storage have what was written, if the server knows how.
    pub(crate) fn sync(&mut self, handle: &[u8]) -> Attempt<()> {
        match self.has(FSYNC) {
            true => {
                let body = Body::default().string(FSYNC.as_bytes()).string(handle);
                self.done("sync a file", Ask::Extended, body)
            }
            false => Ok(()),
        }
    }

    pub(crate) fn len_bytes(&mut self, handle: &[u8]) -> Attempt<u64> {
        let attributes = self.attributes("look at a file", Ask::Fstat, handle)?;
        attributes.len_bytes.ok_or_else(garbage)
    }

    pub(crate) fn lstat(&mut self, path: &str) -> Attempt<Attributes> {
        self.attributes(&format!("look at {path}"), Ask::Lstat, path.as_bytes())
    }

    fn attributes(&mut self, what: &str, ask: Ask, of: &[u8]) -> Attempt<Attributes> {
        match self.call(ask, Body::default().string(of))? {
            Reply::Attributes(attributes) => Ok(attributes),
            Reply::Status(status, message) => Err(self.fault(what, status, &message)),
            _ => Err(self.confused()),
        }
    }

    pub(crate) fn write(&mut self, handle: &[u8], contents: &[u8]) -> Attempt<()> {
        let mut chunks = (0..).step_by(CHUNK_BYTES).zip(contents.chunks(CHUNK_BYTES));
        let mut pending = Vec::new();
        let mut failed = None;
        loop {
            // What is on its way is waited for in any case.
            while pending.len() < WINDOW && failed.is_none() {
                let Some((offset, chunk)) = chunks.next() else { break };
                let body = Body::default().string(handle).u64(offset).string(chunk);
                pending.push(self.send(Ask::Write, body)?);
            }
            if pending.is_empty() {
                return failed.map_or(Ok(()), Err);
            }
            let (id, reply) = self.receive()?;
            let at = pending.iter().position(|waiting| *waiting == id);
            pending.swap_remove(at.ok_or_else(|| self.confused())?);
            match reply {
                Reply::Status(Status::Ok, _) => {}
                Reply::Status(status, message) => failed = Some(self.fault("write a file", status, &message)),
                _ => return Err(self.confused()),
            }
        }
    }

    /// `len` bytes from `offset` on. An error if the file ends before.
    pub(crate) fn read(&mut self, handle: &[u8], offset: u64, len: usize) -> Attempt<Vec<u8>> {
        let mut out = vec![0; len];
        // What is to be asked for, from its end on: where in `out`, and how much.
        let mut wanted: Vec<(usize, usize)> =
            (0..len).step_by(CHUNK_BYTES).map(|at| (at, CHUNK_BYTES.min(len - at))).rev().collect();
        let mut pending = HashMap::new();
        let mut failed = None;
        loop {
            while pending.len() < WINDOW && failed.is_none() {
                let Some((at, count)) = wanted.pop() else { break };
                let body = Body::default().string(handle).u64(offset.saturating_add(at as u64));
                let count_sent = u32::try_from(count).map_err(|_| garbage())?;
                pending.insert(self.send(Ask::Read, body.u32(count_sent))?, (at, count));
            }
            if pending.is_empty() {
                return failed.map_or(Ok(out), Err);
            }
            let (id, reply) = self.receive()?;
            let (at, count) = pending.remove(&id).ok_or_else(|| self.confused())?;
            match reply {
                Reply::Data(data) if (1..=count).contains(&data.len()) => {
                    out[at..at + data.len()].copy_from_slice(&data);
                    // A server may give less than it was asked for.
                    wanted.extend((data.len() < count).then(|| (at + data.len(), count - data.len())));
                }
                Reply::Status(status, message) => failed = Some(self.fault("read a file", status, &message)),
                _ => return Err(self.confused()),
            }
        }
    }

    pub(crate) fn remove(&mut self, path: &str) -> Attempt<()> {
        self.done(&format!("remove {path}"), Ask::Remove, Body::default().string(path.as_bytes()))
    }

    pub(crate) fn make_folder(&mut self, path: &str) -> Attempt<()> {
        let body = Body::default().string(path.as_bytes()).u32(4).u32(0o700);
        self.done(&format!("make the folder {path}"), Ask::Mkdir, body)
    }

    /// Gives a file another name. What had it before is replaced by servers that can do so at once; by others, it is removed first.
    pub(crate) fn rename(&mut self, from: &str, to: &str) -> Attempt<()> {
        let what = format!("rename {from}");
        let names = |body: Body| body.string(from.as_bytes()).string(to.as_bytes());
        if self.has(POSIX_RENAME) {
            let body = names(Body::default().string(POSIX_RENAME.as_bytes()));
            return self.done(&what, Ask::Extended, body);
        }
        match self.done(&what, Ask::Rename, names(Body::default())) {
            Err(fault) if !fault.is_not_found() && self.lstat(to).is_ok() => {
                self.remove(to)?;
                self.done(&what, Ask::Rename, names(Body::default()))
            }
            renamed => renamed,
        }
    }

    /// The names in a folder.
    pub(crate) fn list(&mut self, path: &str) -> Attempt<Vec<String>> {
        let what = format!("list {path}");
        let handle = self.handle(&what, Ask::Opendir, Body::default().string(path.as_bytes()))?;
        let mut names = Vec::new();
        let ended = loop {
            match self.call(Ask::Readdir, Body::default().string(&handle))? {
                Reply::Names(more) if !more.is_empty() && names.len() < NAMES_MAX => names.extend(more),
                Reply::Status(Status::Eof, _) => break Ok(names),
                Reply::Status(status, message) => break Err(self.fault(&what, status, &message)),
                _ => return Err(self.confused()),
            }
        };
        self.close(&handle)?;
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_ends_without_listening_is_told_by_what_it_said() {
        let mut command = Command::new("sh");
        command.args(["-c", "exec <&-; echo this is no SFTP at all"]);
        let pipe = Pipe::start(&mut command, Duration::from_secs(60)).unwrap();
        pipe.wait_for_output().unwrap();
        let Err(Fault::Final(error)) = Session::over(pipe) else {
            panic!("it is no server, and never will be one");
        };
        assert!(error.to_string().contains("is no SFTP"), "{error}");
    }
}
