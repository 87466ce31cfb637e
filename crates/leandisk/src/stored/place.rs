//! Where a repository is, and how its password is known.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use block::{Error, Result};
use repository::{Folder, Repository, Storage};

/// Where the password of a repository comes from.
#[derive(Clone, PartialEq, Eq)]
pub enum Password {
    /// The contents of a file, without white space at its end.
    File(PathBuf),
    /// What a command prints, without white space at its end.
    Command(String),
    /// The password itself.
    Text(String),
    /// Nowhere: to be said when it is needed.
    Missing,
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Command(_) => f.write_str("Command"),
            Self::Text(_) => f.write_str("Text"),
            Self::Missing => f.write_str("Missing"),
        }
    }
}

impl Password {
    fn get(&self) -> Result<String> {
        let text = match self {
            Self::File(path) => std::fs::read_to_string(path)
                .map_err(|error| Error::io("read the password", error).path(path.display()))?,
            Self::Command(command) => output_of(command)?,
            Self::Text(text) => return Ok(text.clone()),
            Self::Missing => {
                return Err(Error::invalid("the password of the repository is missing").hint(
                    "--password-file, --password-command, or RESTIC_PASSWORD_FILE, RESTIC_PASSWORD_COMMAND or RESTIC_PASSWORD",
                ));
            }
        };
        match text.trim() {
            "" => Err(Error::refused("the password is empty")),
            text => Ok(text.to_owned()),
        }
    }
}

/// What a command prints. It is run by the shell, so that words can be quoted as users know it.
fn output_of(command: &str) -> Result<String> {
    let output = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Error::io("run the password command", error))?;
    if !output.status.success() {
        return Err(Error::refused(format!("the password command failed: {}", output.status)));
    }
    String::from_utf8(output.stdout).map_err(|_| Error::refused("the password is not text"))
}

/// A repository, by its name and password. It is opened once, and is in use until the last copy of this goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    name: String,
    password: Password,
    opened: Opened,
}

/// Not a part of what a place is.
#[derive(Clone, Default, Debug)]
struct Opened(Arc<Mutex<Option<Arc<Repository>>>>);

impl PartialEq for Opened {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Opened {}

/// What restic calls the other kinds of places.
const OTHERS: [&str; 8] = ["sftp:", "rest:", "s3:", "swift:", "b2:", "azure:", "gs:", "rclone:"];

impl Place {
    /// `name` is as restic takes it: a path, or `local:` and a path.
    pub fn new(name: String, password: Password) -> Self {
        Self { name, password, opened: Opened::default() }
    }

    /// As it was named.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn storage(&self) -> Result<Arc<dyn Storage>> {
        if let Some(other) = OTHERS.into_iter().find(|other| self.name.starts_with(other)) {
            return Err(Error::unsupported(format!("repositories at {other} are not supported yet"))
                .hint("name a local folder; 'restic copy' takes snapshots from there to anywhere"));
        }
        let path = self.name.strip_prefix("local:").unwrap_or(&self.name);
        Ok(Arc::new(Folder::new(Path::new(path))))
    }

    /// Whether there is a repository.
    pub(crate) fn exists(&self) -> Result<bool> {
        Ok(!self.storage()?.names(repository::Kind::Config)?.is_empty())
    }

    /// Opens it; makes it if there is none and `init` says so.
    pub(crate) fn open(&self, init: bool) -> Result<Arc<Repository>> {
        let mut opened = self.opened.0.lock().expect("nobody panics with it");
        if let Some(repository) = &*opened {
            return Ok(repository.clone());
        }
        let storage = self.storage()?;
        let is_there = !storage.names(repository::Kind::Config)?.is_empty();
        if !is_there && !init {
            // Before anyone is asked for a password.
            return Err(Error::refused("there is no repository")
                .hint("'leandisk backup --init' makes one")
                .path(storage.place()));
        }
        let password = self.password.get()?;
        let repository = Arc::new(match is_there {
            true => Repository::open(storage, password.as_bytes())?,
            false => Repository::init(storage, password.as_bytes())?,
        });
        Ok(opened.insert(repository).clone())
    }
}
