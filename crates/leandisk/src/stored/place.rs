//! Where a repository is, and how its password is known.

use std::fmt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};

use block::{Error, Result};
use repository::{Repository, Storage};

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
#[derive(Clone, PartialEq, Eq)]
pub struct Place {
    /// Which may hold a password.
    name: String,
    password: Password,
    options: backends::Options,
    opened: Opened,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place")
            .field("name", &self.name())
            .field("password", &self.password)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Not a part of what a place is.
#[derive(Clone, Default)]
struct Opened(Arc<Mutex<Held>>);

/// What is reached once: some places are a program that runs meanwhile.
#[derive(Default)]
struct Held {
    storage: Option<Arc<dyn Storage>>,
    repository: Option<Arc<Repository>>,
}

impl PartialEq for Opened {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Opened {}

impl Place {
    /// `name` is as restic takes it: a path, or a kind of place, a colon, and where it is.
    pub fn new(name: String, password: Password, options: backends::Options) -> Self {
        Self { name, password, options, opened: Opened::default() }
    }

    /// As it was named, without a password that is in it.
    pub fn name(&self) -> String {
        backends::shown(&self.name)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.opened.0.lock().expect("nobody panics with it")
    }

    fn storage(&self, held: &mut Held) -> Result<Arc<dyn Storage>> {
        if let Some(storage) = &held.storage {
            return Ok(storage.clone());
        }
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let storage = backends::open(&self.name, &self.options, &variable)?;
        Ok(held.storage.insert(storage).clone())
    }

    /// Whether there is a repository.
    pub(crate) fn exists(&self) -> Result<bool> {
        Ok(!self.storage(&mut self.held())?.names(repository::Kind::Config)?.is_empty())
    }

    /// Opens it; makes it if there is none and `init` says so.
    pub(crate) fn open(&self, init: bool) -> Result<Arc<Repository>> {
        let mut held = self.held();
        if let Some(repository) = &held.repository {
            return Ok(repository.clone());
        }
        let storage = self.storage(&mut held)?;
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
        Ok(held.repository.insert(repository).clone())
    }
}
