//! What reader and broker tell each other: a length, JSON of that length, and descriptors: one with a request, two with an answer at most.
//!
//! Invariant: a request has a bound, which holds before memory is taken for it.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

use block::{Error, ErrorKind, TargetName, User};
use extraction::{Kept, Names, Of, SpecialFile};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, send, sendmsg,
};
use serde::{Deserialize, Serialize};

use crate::target_options::FolderOptions;

/// The longest request: a few paths, or an extended attribute in two digits a byte.
pub(crate) const REQUEST_BYTES_MAX: usize = 256 << 10;
/// The longest answer: the names in a large folder.
pub(crate) const ANSWER_BYTES_MAX: usize = 1 << 30;

/// What the reader asks for.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) enum Request {
    /// A file or device that the command line names, for reading, if it is of a kind that can hold an image.
    Open {
        /// Its name.
        path: OsString,
        /// Whether it is opened past the page cache as well.
        past_cache: bool,
    },
    /// A file that the command line names, for reading, whatever it is.
    OpenInput(OsString),
    /// A socket that is connected to the server of an export that the command line names.
    Connect(OsString),
    /// The file of the descriptor a second time, to be read and written past the page cache.
    PastCache,
    /// What is granted to a disk: the number that is told is that of [`Request::Referred`].
    Grant(OsString),
    /// A file that an image names, past the page cache as well: the path from which it counts, and the name.
    Referred {
        /// Which grants.
        granted: usize,
        /// The image.
        from: OsString,
        /// What it calls the file.
        name: OsString,
    },
    /// The names in a folder.
    NamesIn(OsString),
    /// Who else uses the file of the descriptor, which has this path.
    Users(OsString),
    /// What the block device at this path takes at once.
    Queue(OsString),
    /// A name of this block device that lasts.
    LastingName(OsString),
    /// What has the name of a journal.
    LookAtJournal(OsString),
    /// A journal, for reading.
    PeekAtJournal(OsString),
    /// A new file that will have this name.
    Create {
        /// Its name.
        path: OsString,
        /// Whether what has it is replaced.
        replaces: bool,
    },
    /// Gives the new file of this number its name.
    Publish(usize),
    /// Makes that name last through a power cut.
    SyncPublished(usize),
    /// Removes the new file of this number, if it has no name yet.
    Discard(usize),
    /// Removes a file or socket that the process made before it was closed in.
    Remove(OsString),
    /// Makes the folder for targets, if there is none: whether it was made.
    MakeFolder(OsString),
    /// Removes that folder if it is empty.
    RemoveFolder(OsString),
    /// What the block device at this path lies on.
    Storage(OsString),
    /// Something about the target that the command line names.
    OfTarget(OfTarget),
    /// Something about the folder into which files are extracted.
    OfExtracted(OfExtracted),
}

/// What is done in the folder into which files are extracted.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) enum OfExtracted {
    /// Opens it, or makes it: once.
    Begin {
        /// Its name.
        path: OsString,
        /// Whether what is in it is replaced.
        replaces: bool,
    },
    /// Makes a folder in it.
    Folder(Names),
    /// Begins a file, which the number that is told stands for.
    Create(Names),
    /// Sets an extended attribute.
    Attribute {
        /// Of what.
        of: Of,
        /// Its name.
        name: Vec<u8>,
        /// Its value, in two hexadecimal digits a byte.
        value: String,
    },
    /// Gives a file its name.
    Finish(usize, Kept),
    /// Removes a file that has no name yet.
    Discard(usize),
    /// Makes a symbolic link.
    Symlink {
        /// Where.
        names: Names,
        /// Where it leads.
        target: Vec<u8>,
        /// What is kept of it.
        kept: Kept,
    },
    /// Makes another name of a file.
    Link {
        /// The file.
        first: Names,
        /// The name.
        names: Names,
    },
    /// Makes a device, a pipe or a socket.
    Special {
        /// Where.
        names: Names,
        /// What.
        special: SpecialFile,
        /// What is kept of it.
        kept: Kept,
    },
    /// Gives a folder what is kept of it.
    Settle(Names, Kept),
    /// Brings all that was made to stable storage.
    Complete,
}

/// What is done with the target of a copy, and with the names that it has until it is whole.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) enum OfTarget {
    /// Finds where it goes, of which the following requests are: once, but where there is a folder for targets.
    Begin {
        /// Its name.
        path: OsString,
        /// What it is to be.
        options: FolderOptions,
    },
    /// Whether there is room for a file of this length.
    Room(u64),
    /// Whether it can share storage with the file of the descriptor.
    Cloning,
    /// The file of that name, if there is one.
    Open(#[serde(with = "Name")] TargetName),
    /// A new file of that name.
    Create(#[serde(with = "Name")] TargetName),
    /// Removes that name.
    Remove(#[serde(with = "Name")] TargetName),
    /// Gives the file of one name another.
    Rename {
        /// Its name.
        #[serde(with = "Name")]
        from: TargetName,
        /// That which it gets.
        #[serde(with = "Name")]
        to: TargetName,
    },
    /// Makes the names last through a power cut.
    Sync,
    /// Makes the file of the descriptor, which is the partial target, what a whole one is.
    Complete,
    /// The target is a block device: it is opened for nobody else.
    Device(OsString),
}

/// A [`TargetName`] on its way.
#[derive(Serialize, Deserialize)]
#[serde(remote = "TargetName")]
enum Name {
    Target,
    Partial,
    Checkpoint,
    Draft,
    Filling,
    Filled,
    FilledDraft,
}

/// An error on its way.
#[derive(Serialize, Deserialize, Debug)]
struct Told {
    kind: Kind,
    what: String,
    path: Option<String>,
    hint: Option<String>,
    errno: Option<i32>,
    source: Option<String>,
}

/// The kinds that opening ends with.
#[derive(Serialize, Deserialize, Debug)]
enum Kind {
    Io,
    Unsupported,
    Refused,
    Invalid,
}

impl From<&Error> for Told {
    fn from(error: &Error) -> Self {
        Self {
            kind: match error.kind() {
                ErrorKind::Unsupported => Kind::Unsupported,
                ErrorKind::Refused => Kind::Refused,
                ErrorKind::Invalid => Kind::Invalid,
                _ => Kind::Io,
            },
            what: error.message().to_owned(),
            path: error.path_text().map(str::to_owned),
            hint: error.hint_text().map(str::to_owned),
            errno: error.io_source().and_then(io::Error::raw_os_error),
            source: error.io_source().map(ToString::to_string),
        }
    }
}

impl From<Told> for Error {
    fn from(told: Told) -> Self {
        let Told { kind, what, path, hint, errno, source } = told;
        let source = || match (errno, source) {
            (Some(errno), _) => io::Error::from_raw_os_error(errno),
            (None, source) => io::Error::other(source.unwrap_or_default()),
        };
        let error = match kind {
            Kind::Io => Self::io(what, source()),
            Kind::Unsupported => Self::unsupported(what),
            Kind::Refused => Self::refused(what),
            Kind::Invalid => Self::invalid(what),
        };
        let error = path.into_iter().fold(error, Self::path);
        hint.into_iter().fold(error, Self::hint)
    }
}

/// A [`User`] on its way.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct FoundUser {
    writes: bool,
    text: String,
    hint: String,
}

impl From<User> for FoundUser {
    fn from(User { writes, text, hint }: User) -> Self {
        Self { writes, text, hint }
    }
}

impl From<FoundUser> for User {
    fn from(FoundUser { writes, text, hint }: FoundUser) -> Self {
        Self { writes, text, hint }
    }
}

/// An answer, still as it is sent.
pub(crate) fn answer(answered: Result<serde_json::Value, &Error>) -> Vec<u8> {
    let answered = answered.map_err(Told::from);
    serde_json::to_vec(&answered).expect("values and texts become JSON")
}

/// What an answer says.
pub(crate) fn answered<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> io::Result<Result<T, Error>> {
    let answered: Result<T, Told> = serde_json::from_slice(bytes)?;
    Ok(answered.map_err(Error::from))
}

/// Sends a message whole.
pub(crate) fn send_message(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let len = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?.to_le_bytes();
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut room);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let first = [IoSlice::new(&len), IoSlice::new(bytes)];
    let sent = retry_on_intr(|| sendmsg(&socket, &first, &mut ancillary, SendFlags::NOSIGNAL))?;
    let whole = [&len[..], bytes].concat();
    let mut rest = &whole[sent..];
    while !rest.is_empty() {
        let sent = retry_on_intr(|| send(&socket, rest, SendFlags::NOSIGNAL))?;
        rest = &rest[sent..];
    }
    Ok(())
}

/// Receives a message of `len_max` bytes at most; `None` once the other side is gone.
pub(crate) fn receive_message(
    socket: impl AsFd,
    len_max: usize,
) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut len = [0; 4];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut room);
    let received = retry_on_intr(|| {
        recvmsg(&socket, &mut [IoSliceMut::new(&mut len)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    fill(&socket, &mut len[received.bytes..])?;
    let rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors = rights.flatten().collect();
    let len = usize::try_from(u32::from_le_bytes(len)).map_err(|_| io::ErrorKind::InvalidData)?;
    if len > len_max {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; len];
    fill(&socket, &mut bytes)?;
    Ok(Some((bytes, descriptors)))
}

fn fill(socket: impl AsFd, mut rest: &mut [u8]) -> io::Result<()> {
    while !rest.is_empty() {
        let (received, _) = retry_on_intr(|| recv(&socket, &mut *rest, RecvFlags::empty()))?;
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        rest = &mut rest[received..];
    }
    Ok(())
}
