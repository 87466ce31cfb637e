//! A folder of another host, by SFTP over the pipe of `ssh`, as restic reaches it.
//!
//! A file is written under another name, synced where the server knows how (`fsync@openssh.com`), and renamed.

mod codec;
mod pipe;
mod session;

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use block::Result;
use mutants::broken;
use repository::{Kind, WHOLE_BYTES_MAX, is_abandoned, partial_suffix};

use crate::address::SftpAddress;
use crate::backend::{Backend, Limits, is_id, relative_path};
use crate::fault::{Attempt, Fault};

use codec::Opened;
use session::Session;

/// One connection carries all; who writes need not wait for it.
const CONNECTION_COUNT: usize = 1;
/// `S_IFMT` and `S_IFDIR`
const TYPE_MASK: u32 = 0o170_000;
const FOLDER: u32 = 0o040_000;
/// Who interrupts Leandisk has it remove its lock first: what is ignored stays so in the program that is run.
const IGNORE_INTERRUPT: &str = "trap '' INT;";

/// A repository in a folder of another host.
pub(crate) struct Sftp {
    address: SftpAddress,
    /// What the shell is to run.
    script: String,
    limits: Limits,
    session: Mutex<Option<Session>>,
    /// Tells partial files of one process from each other. It begins anywhere: a process may open a place twice.
    counter: AtomicU64,
}

impl Sftp {
    /// `command` and `args` are restic's options `sftp.command` and `sftp.args`.
    pub(crate) fn new(
        address: SftpAddress,
        command: Option<&str>,
        args: Option<&str>,
        limits: &Limits,
    ) -> Result<Self> {
        let script = match command {
            Some(command) => format!("{IGNORE_INTERRUPT} exec {command}"),
            None => format!("{IGNORE_INTERRUPT} exec ssh \"$@\" {} -s sftp", args.unwrap_or_default()),
        };
        Ok(Self {
            address,
            script,
            limits: limits.clone(),
            session: Mutex::new(None),
            counter: AtomicU64::new(u64::from(random())),
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &self.script, "sh", &self.address.host]);
        if let Some(port) = self.address.port {
            command.args(["-p", &port.to_string()]);
        }
        if let Some(user) = &self.address.user {
            command.args(["-l", user]);
        }
        command
    }

    /// Acts within the session, which is begun if there is none; one that broke is gone afterwards.
    fn within<T>(&self, act: impl FnOnce(&mut Session) -> Attempt<T>) -> Attempt<T> {
        let mut held = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let mut session = match held.take() {
            Some(session) => session,
            None => Session::start(&mut self.command(), self.limits.silence)?,
        };
        let done = act(&mut session);
        *held = Some(session).filter(|session| !session.is_broken());
        done
    }

    fn below_root(&self, path: &str) -> String {
        match self.address.path.as_str() {
            "/" => format!("/{path}"),
            root => format!("{root}/{path}"),
        }
    }

    fn path(&self, kind: Kind, name: &str) -> String {
        self.below_root(&relative_path(kind, name))
    }

    fn folder(&self, kind: Kind) -> String {
        kind.folder().map_or_else(|| self.address.path.clone(), |folder| self.below_root(folder))
    }

    /// The name that a file has until it is whole. That of a pack lies in the folder above, where it is found again by one look.
    fn partial_path(&self, kind: Kind, name: &str) -> String {
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        let name = if kind == Kind::Config { "config" } else { name };
        format!("{}/{name}{}-{count}", self.folder(kind).trim_end_matches('/'), partial_suffix())
    }
}

/// Any number; 0 where there are none.
fn random() -> u32 {
    getrandom::u32().unwrap_or_default()
}

/// Makes a folder and those above it, as far as they are missing.
fn make_folders(session: &mut Session, path: &str) -> Attempt<()> {
    match session.make_folder(path) {
        Ok(()) => Ok(()),
        Err(fault) if fault.is_not_found() => match path.trim_end_matches('/').rsplit_once('/') {
            Some((above, _)) if !above.is_empty() => {
                make_folders(session, above)?;
                session.make_folder(path)
            }
            _ => Err(fault),
        },
        // Servers do not say that it is there already.
        Err(fault) => match session.lstat(path).map(|found| found.mode.map(|mode| mode & TYPE_MASK)) {
            Ok(Some(FOLDER) | None) => Ok(()),
            // A link to a folder, perhaps: who uses it will see.
            Ok(Some(_)) => session.list(path).map(drop),
            Err(_) => Err(fault),
        },
    }
}

/// Does it again once the folder of `path` was made, if that was missing.
fn with_folder<T>(
    session: &mut Session,
    path: &str,
    mut act: impl FnMut(&mut Session) -> Attempt<T>,
) -> Attempt<T> {
    match act(session) {
        Err(fault) if fault.is_not_found() => {
            let above = path.rsplit_once('/').map_or(".", |(above, _)| above);
            make_folders(session, above)?;
            act(session)
        }
        done => done,
    }
}

fn write_whole(session: &mut Session, path: &str, contents: &[u8]) -> Attempt<()> {
    let handle = with_folder(session, path, |session| session.open(path, Opened::New))?;
    let written = session.write(&handle, contents).and_then(|()| session.sync(&handle));
    // Some storages tell only now that there is no room.
    written.and(session.close(&handle))
}

fn listed_or_nothing(session: &mut Session, path: &str) -> Attempt<Vec<String>> {
    match session.list(path) {
        Err(fault) if fault.is_not_found() => Ok(Vec::new()),
        listed => listed,
    }
}

impl Backend for Sftp {
    fn place(&self) -> String {
        crate::address::Address::Sftp(self.address.clone()).shown()
    }

    fn prepare(&self) -> Attempt<()> {
        self.within(|session| {
            Kind::ALL.into_iter().try_for_each(|kind| make_folders(session, &self.folder(kind)))
        })
    }

    fn names(&self, kind: Kind) -> Attempt<Vec<String>> {
        self.within(|session| {
            let folder = self.folder(kind);
            let mut found = listed_or_nothing(session, &folder)?;
            if kind == Kind::Pack {
                let is_digits =
                    |name: &String| name.len() == 2 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
                let folders: Vec<_> = found.drain(..).filter(is_digits).collect();
                for below in folders {
                    found.extend(listed_or_nothing(session, &format!("{folder}/{below}"))?);
                }
            }
            Ok(found.into_iter().filter(|name| is_id(name)).collect())
        })
    }

    fn len_bytes(&self, kind: Kind, name: &str) -> Attempt<Option<u64>> {
        let found = self.within(|session| session.lstat(&self.path(kind, name)));
        match found {
            Ok(found) => Ok(Some(found.len_bytes.ok_or_else(codec::garbage)?)),
            Err(fault) if fault.is_not_found() => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    fn read(&self, kind: Kind, name: &str) -> Attempt<Vec<u8>> {
        self.within(|session| {
            let handle = session.open(&self.path(kind, name), Opened::Read)?;
            let read = session.len_bytes(&handle).and_then(|len_bytes| {
                let len = usize::try_from(len_bytes).ok().filter(|_| len_bytes <= WHOLE_BYTES_MAX);
                let too_long = || Fault::corrupt(format!("a {} of {len_bytes} bytes", kind.word()));
                session.read(&handle, 0, len.ok_or_else(too_long)?)
            });
            close_after(session, &handle, read)
        })
    }

    fn read_part(&self, kind: Kind, name: &str, offset: u64, len: usize) -> Attempt<Vec<u8>> {
        self.within(|session| {
            let handle = session.open(&self.path(kind, name), Opened::Read)?;
            let read = session.read(&handle, offset, len);
            close_after(session, &handle, read)
        })
    }

    fn create(&self, kind: Kind, name: &str, contents: &[u8]) -> Attempt<()> {
        let path = self.path(kind, name);
        let partial = if broken!(NamedFirst) { path.clone() } else { self.partial_path(kind, name) };
        self.within(|session| {
            let made = write_whole(session, &partial, contents).and_then(|()| match partial == path {
                true => Ok(()),
                false => with_folder(session, &path, |session| session.rename(&partial, &path)),
            });
            if made.is_err() && !session.is_broken() {
                let _ = session.remove(&partial);
            }
            made
        })
    }

    fn remove(&self, kind: Kind, name: &str) -> Attempt<()> {
        match self.within(|session| session.remove(&self.path(kind, name))) {
            Err(fault) if fault.is_not_found() => Ok(()),
            removed => removed,
        }
    }

    fn clear_partial(&self) -> Attempt<()> {
        self.within(|session| {
            for folder in Kind::ALL.map(|kind| self.folder(kind)) {
                let abandoned = listed_or_nothing(session, &folder)?;
                for name in abandoned.iter().filter(|name| is_abandoned(name) && !name.contains('/')) {
                    // Whoever cannot remove it can still go on.
                    let _ = session.remove(&format!("{folder}/{name}"));
                }
            }
            Ok(())
        })
    }

    fn connection_count(&self) -> usize {
        CONNECTION_COUNT
    }
}

/// What was read, once the file is closed.
fn close_after<T>(session: &mut Session, handle: &[u8], read: Attempt<T>) -> Attempt<T> {
    if !session.is_broken() {
        session.close(handle)?;
    }
    read
}
