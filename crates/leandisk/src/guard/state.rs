//! The folders of a guard: a lock, so that there is one guard; its status; a ledger for each file system.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ::guard::{FileId, Record, claims, hex, moved_for_space};
use block::{Error, Result};
use os::GuardedSystem;
use report::{GuardDocument, to_json};

use super::history::History;
use super::{RUN_FOLDER, STATE_FOLDER};
use crate::Observer;

const LOCK: &str = "guard.lock";
const STATUS: &str = "guard.json";
/// The first word of a ledger.
const MAGIC: &str = "leandisk-guard 1";
/// Longer ledgers are none of ours.
const LEDGER_BYTES_MAX: u64 = 256 << 20;

/// The folders of the guard that runs.
pub(super) struct State {
    ledgers: PathBuf,
    run: PathBuf,
    _lock: File,
}

/// What a ledger says.
#[derive(Default)]
pub(super) struct Said {
    /// Up to where files may have reserved room.
    pub(super) claims: BTreeMap<FileId, u64>,
    /// A day, and what may have moved on it for free space.
    pub(super) moved: Option<(u64, u64)>,
}

fn fail(what: &'static str, path: &Path, error: io::Error) -> Error {
    Error::io(what, error).path(path.display().to_string())
}

fn folders(state: Option<&Path>) -> (PathBuf, PathBuf) {
    match state {
        Some(state) => (state.to_owned(), state.to_owned()),
        None => (PathBuf::from(STATE_FOLDER), PathBuf::from(RUN_FOLDER)),
    }
}

fn make(folder: &Path) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder)
        .map_err(|error| fail("create", folder, error))
}

impl State {
    /// Takes the folders for oneself.
    pub(super) fn take(state: Option<&Path>) -> Result<Self> {
        let (ledgers, run) = folders(state);
        make(&ledgers)?;
        make(&run)?;
        let path = run.join(LOCK);
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o644)
            .open(&path)
            .map_err(|error| fail("open", &path, error))?;
        if os::try_lock(&lock, false) {
            return Ok(Self { ledgers, run, _lock: lock });
        }
        Err(Error::refused("a guard runs already")
            .path(run.display().to_string())
            .hint("'leandisk guard status' shows it; another needs another --state"))
    }

    /// What the guard of these folders does or did.
    pub(super) fn status(state: Option<&Path>) -> Result<GuardDocument> {
        let (_, run) = folders(state);
        let last = fs::read_to_string(run.join(STATUS)).ok().and_then(|text| GuardDocument::from_json(&text));
        // Where it may not be read, there is none of this user's.
        let is_free = File::open(run.join(LOCK)).map_or(true, |lock| os::try_lock(&lock, true));
        Ok(match last {
            Some(last) if !is_free => last,
            last => GuardDocument::ended(last),
        })
    }

    /// Shows what the guard does. If that cannot be written, only nobody sees it.
    pub(super) fn show(&self, document: &GuardDocument) {
        let written = replace(&self.run, STATUS, to_json(document).as_bytes(), false);
        if let Err(error) = written {
            tracing::warn!(%error, "the status could not be written");
        }
    }

    /// The history; `None` in a dry run, which writes nothing but its status, and where it cannot be written, which is told.
    pub(super) fn history(&self, dry_run: bool, observer: &dyn Observer) -> Option<History> {
        if dry_run {
            return None;
        }
        let opened = History::open(&self.ledgers);
        opened.map_err(|error| observer.note(&format!("no history is kept: {error}"))).ok()
    }

    /// All file systems of which something may be reserved by a ledger here, and where they were mounted.
    pub(super) fn ledgers(&self) -> Vec<([u8; 16], PathBuf)> {
        let entries = fs::read_dir(&self.ledgers).into_iter().flatten().flatten();
        let paths = entries
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == "ledger"));
        let texts = paths.filter_map(|path| read(&path).ok());
        texts.filter(|text| !claims(text).is_empty()).filter_map(|text| head(&text)).collect()
    }

    /// The ledger of a file system, and what it says.
    pub(super) fn ledger(&mut self, system: &GuardedSystem, dry_run: bool) -> Result<(Ledger, Said)> {
        let name = format!("guard-{}.ledger", hex(&system.uuid));
        let path = self.ledgers.join(&name);
        let found = match read(&path) {
            Ok(text) => Said { claims: claims(&text), moved: moved_for_space(&text) },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Said::default(),
            Err(error) => return Err(fail("read", &path, error)),
        };
        let head = format!("{MAGIC} {} {}\n", hex(&system.uuid), hex(system.path.as_os_str().as_bytes()));
        let mut ledger = Ledger { folder: self.ledgers.clone(), name, head, file: None };
        if !dry_run {
            let records =
                found.claims.iter().map(|(file, end)| Record::Claim { file: file.clone(), end_bytes: *end });
            let records =
                records.chain(found.moved.map(|(day, moved_bytes)| Record::Space { day, moved_bytes }));
            ledger.replace(&records.collect::<Vec<_>>())?;
        }
        Ok((ledger, found))
    }
}

fn read(path: &Path) -> io::Result<String> {
    let found = fs::metadata(path)?;
    if found.len() > LEDGER_BYTES_MAX {
        return Err(io::Error::other("too long for a ledger"));
    }
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    let pairs = (0..digits.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()).collect()
}

fn head(text: &str) -> Option<([u8; 16], PathBuf)> {
    let (uuid, mount) = text.lines().next()?.strip_prefix(MAGIC)?.trim().split_once(' ')?;
    let mount = PathBuf::from(std::ffi::OsString::from_vec(bytes(mount)?));
    Some((bytes(uuid)?.try_into().ok()?, mount))
}

/// Replaces a file by way of another name.
fn replace(folder: &Path, name: &str, contents: &[u8], is_durable: bool) -> Result<File> {
    let partial = folder.join(format!("{name}.partial"));
    let written = || -> io::Result<File> {
        let mut file = File::options().create(true).truncate(true).write(true).mode(0o644).open(&partial)?;
        file.write_all(contents)?;
        if is_durable {
            file.sync_all()?;
        }
        fs::rename(&partial, folder.join(name))?;
        if is_durable {
            File::open(folder)?.sync_all()?;
        }
        Ok(file)
    };
    written().map_err(|error| fail("write", &folder.join(name), error))
}

/// A ledger on disk.
pub(super) struct Ledger {
    folder: PathBuf,
    name: String,
    head: String,
    /// Open at its end. Not there in a dry run, which has nothing to write.
    file: Option<File>,
}

impl Ledger {
    /// Appends, and waits until it is stored.
    pub(super) fn append(&mut self, records: &[Record]) -> Result<()> {
        let path = self.folder.join(&self.name);
        let Some(file) = &mut self.file else { return Ok(()) };
        let lines: String = records.iter().map(Record::line).collect();
        file.write_all(lines.as_bytes())
            .and_then(|()| file.sync_data())
            .map_err(|error| fail("write", &path, error))
    }

    /// Puts these in place of all that is there.
    pub(super) fn replace(&mut self, records: &[Record]) -> Result<()> {
        let lines = records.iter().map(Record::line);
        let text: String = std::iter::once(self.head.clone()).chain(lines).collect();
        self.file = Some(replace(&self.folder, &self.name, text.as_bytes(), true)?);
        Ok(())
    }
}
