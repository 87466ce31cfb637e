//! A moment of a disk, asked for at the control socket, with a file for what changes meanwhile. It lasts as long as the connection on which it
//! was asked for: however a client ends, nothing of it stays.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use block::{Error, Result};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::corrupt::Corrupt;
use super::endpoint::{CLIENT_TIME_MAX, Stream};
use super::question::{Answer, Question, read_answer};
use crate::export::Export;
use crate::moment::{Keep, Moment};
use crate::nbd::{Published, Publisher};

/// How often it is looked whether the server stops.
const LOOKS_EVERY: Duration = Duration::from_millis(500);

/// A client's file.
struct Kept(File);

impl Keep for Kept {
    fn write(&self, at: u64, buf: &[u8]) -> Result<()> {
        self.0.write_all_at(buf, at).map_err(|error| Error::io("write", error))
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match self.0.read_at(&mut buf[done..], at + done as u64) {
                Ok(0) => break,
                Ok(len) => done += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("read", error)),
            }
        }
        buf[done..].fill(0);
        Ok(())
    }
}

/// A moment that is kept, and the export of it.
struct Held<'a> {
    export: &'a Export,
    moment: Arc<Moment>,
    published: Option<Published>,
    name: String,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.published = None;
        self.export.end_moment(&self.moment);
        tracing::info!(export = ?self.export.name(), moment = self.name, "moment ended");
    }
}

/// Keeps the disk as it is now for the client at the other end, until that is gone or the server stops.
pub(super) fn hold(
    stream: &mut dyn Stream,
    export: &Export,
    exports: &[Arc<Export>],
    publisher: &Publisher,
) -> Option<Answer> {
    let Some(file) = stream.take_descriptor() else {
        return Some(Answer::Error("a moment needs a file for what changes meanwhile".into()));
    };
    let held = match begin(file, export, exports, publisher) {
        Ok(held) => held,
        Err(error) => return Some(Answer::Error(error.to_string())),
    };
    let answer = Answer::Moment { export: held.name.clone() };
    let mut line = serde_json::to_vec(&answer).ok()?;
    line.push(b'\n');
    if stream.write_all(&line).is_ok() && stream.set_timeout(LOOKS_EVERY).is_ok() {
        while is_there(stream) && !publisher.is_stopping() {}
    }
    None
}

fn begin<'a>(
    file: OwnedFd,
    export: &'a Export,
    exports: &[Arc<Export>],
    publisher: &Publisher,
) -> Result<Held<'a>> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let is_taken = |name: &String| exports.iter().any(|export| export.name() == *name);
    let mut names = std::iter::repeat_with(|| format!("leandisk-moment-{}", NUMBER.fetch_add(1, Relaxed)));
    let name = names.find(|name| !is_taken(name)).unwrap_or_default();
    let (disk, moment) = export.begin_moment(&name, Box::new(Kept(file.into())))?;
    tracing::info!(export = ?export.name(), moment = name, "moment kept for a client");
    Ok(Held { export, moment, published: Some(publisher.publish(disk)), name })
}

fn is_there(stream: &mut dyn Stream) -> bool {
    match Read::read(stream, &mut [0]) {
        Ok(len) => len > 0,
        Err(error) => {
            use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
            matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
        }
    }
}

/// A moment of a disk that a server keeps as long as the value lives.
#[derive(Debug)]
pub struct MomentOfServer {
    export: String,
    _stream: UnixStream,
}

impl MomentOfServer {
    /// Has the server whose control socket is at `path` keep the disk of `export`, or its only one, as it is now. What changes from now on
    /// is kept in `file`, which is read and written, empty, and as long as the disk in the end at most. `None` if the server keeps no moments, or
    /// has no such export.
    pub fn begin(path: &Path, export: Option<&str>, file: BorrowedFd<'_>) -> Result<Option<Self>> {
        let failed = |error| Error::io("ask for the disk as it is now", error).path(path.display());
        let stream = UnixStream::connect(path).map_err(failed)?;
        stream.set_read_timeout(Some(CLIENT_TIME_MAX)).map_err(failed)?;
        let question = Question::Moment { export: export.map(str::to_owned) };
        let mut line = serde_json::to_vec(&question).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        send_with(&stream, &line, file).map_err(failed)?;
        match read_answer(&stream, path)? {
            Answer::Moment { export } => Ok(Some(Self { export, _stream: stream })),
            Answer::NoMoment {} => Ok(None),
            // Of a server that knows no such question.
            Answer::Error(why) if why.starts_with("not a question") => Ok(None),
            Answer::Error(why) => Err(Error::refused(why).path(path.display())),
            Answer::Exports(_) | Answer::Text(_) => {
                Err(Error::corrupt(Corrupt::Answer("the server answered something else".into()))
                    .path(path.display()))
            }
        }
    }

    /// The name of the export that shows the disk as it was.
    pub fn export(&self) -> &str {
        &self.export
    }
}

fn send_with(stream: &UnixStream, bytes: &[u8], file: BorrowedFd<'_>) -> io::Result<()> {
    let descriptors = [file.as_fd()];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut room);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    let mut stream = stream;
    stream.write_all(&bytes[sent..])
}
