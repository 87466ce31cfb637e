//! A process that can open nothing while it reads what strangers wrote.
//!
//! What a use case needs is known from its options before an image is read: [`info()`], [`map()`], [`analyze()`], [`copy()`], [`copy_all()`], [`files()`]
//! and [`extract()`] say it, [`run`] closes the process in, and the use case then works as it always does. A program calls it first of all, once, and for itself alone: no use
//! case does it unasked, because it starts a process and holds for all that the program does afterwards.
//!
//! [`serve::run_confined`](crate::serve::run_confined) does it itself, between opening its files and letting clients in.
//!
//! Absent on purpose: commands that change disks in place, disks of snapshots, whose repository is read as it goes, and serving what another
//! server has.

use std::path::PathBuf;

use block::{Error, Result};
use os::{Confined, ConfinedNames, Split, Work};

use crate::files::{Destination, DiskOptions, ExtractOptions};
use crate::{OpenOptions, analyze, copy, copy_all, info, map, recording, remote};

/// Whether a process is confined.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum When {
    /// As far as the kernel does it.
    #[default]
    Auto,
    /// Or not at all: without it nothing is read.
    Always,
    /// Not at all.
    Never,
}

/// What a use case opens and makes by name.
#[derive(Clone, Debug)]
pub struct Needs {
    names: ConfinedNames,
    work: Work,
    /// Whether a repository is read, whose files are not known before.
    reads_repository: bool,
}

/// What [`info::run`] needs.
pub fn info(options: &info::Options) -> Needs {
    reading(disk(&options.disk, &options.open)).of(&options.disk, &options.open)
}

/// What [`map::run`] needs.
pub fn map(options: &map::Options) -> Needs {
    let names = disk(&options.disk, &options.open);
    reading(ConfinedNames { outputs: vec![options.output.clone()], replaces: options.force, ..names })
        .of(&options.disk, &options.open)
}

/// What [`analyze::run`] needs.
pub fn analyze(options: &analyze::Options) -> Needs {
    let names = disk(&options.disk, &options.open);
    let outputs = [&options.html, &options.files].into_iter().flatten().cloned().collect();
    let mut inputs = names.inputs.clone();
    inputs.extend(options.trace.as_deref().map(trace_files).unwrap_or_default());
    reading(ConfinedNames { inputs, outputs, replaces: options.force, ..names })
        .of(&options.disk, &options.open)
}

/// What [`copy::run`] needs.
pub fn copy(options: &copy::Options) -> Needs {
    let names = disk(&options.source, &options.open);
    let target = Some(options.target.clone());
    let mut inputs = names.inputs.clone();
    inputs.extend(remote::tls_files(&options.target));
    let names = ConfinedNames { inputs, target, replaces: options.force, ..names };
    Needs { names, work: Work::Copying, reads_repository: false }.of(&options.source, &options.open)
}

/// What [`copy_all::run`] needs.
pub fn copy_all(options: &copy_all::Options) -> Needs {
    let mut names = ConfinedNames { replaces: options.copy.force, ..ConfinedNames::default() };
    for source in &options.sources {
        let ConfinedNames { disks, allow_paths, inputs, .. } = disk(source.place(), &options.copy.open);
        names.disks.extend(disks);
        names.inputs.extend(inputs);
        names.allow_paths = allow_paths;
    }
    let into = if options.makes_ova() { &mut names.target } else { &mut names.target_folder };
    *into = Some(options.into.clone());
    let reads_repository =
        options.sources.iter().any(|source| options.copy.open.snapshot(&source.disk).is_some());
    Needs { names, work: Work::Copying, reads_repository }
}

/// What reading files of a disk needs: [`files::list()`](crate::files::list()) and [`files::cat()`](crate::files::cat()).
pub fn files(options: &DiskOptions) -> Needs {
    reading(disk(&options.disk, &options.open)).of(&options.disk, &options.open)
}

/// What [`files::extract()`](crate::files::extract()) needs.
pub fn extract(options: &DiskOptions, extract: &ExtractOptions) -> Needs {
    let names = ConfinedNames { replaces: extract.force, ..disk(&options.disk, &options.open) };
    reading(match &extract.into {
        Destination::Folder(folder) => ConfinedNames { folder: Some(folder.clone()), ..names },
        Destination::Tar(path) => ConfinedNames { outputs: vec![path.clone()], ..names },
        Destination::Stdout => names,
    })
    .of(&options.disk, &options.open)
}

impl Needs {
    /// The same, and to remove what was made before.
    #[must_use]
    pub fn removing<'a>(mut self, made: impl IntoIterator<Item = &'a std::path::Path>) -> Self {
        self.names.removed.extend(made.into_iter().map(Into::into));
        self
    }
}

/// A trace, with the other files of its recording.
fn trace_files(path: &std::path::Path) -> Vec<PathBuf> {
    let mut paths = recording::paths_of(path);
    paths.push(path.to_owned());
    paths
}

fn disk(disk: &std::path::Path, open: &OpenOptions) -> ConfinedNames {
    let disks = || std::iter::once(disk).chain(open.with.iter().map(PathBuf::as_path));
    ConfinedNames {
        disks: disks().map(Into::into).collect(),
        inputs: disks().flat_map(remote::tls_files).collect(),
        allow_paths: open.allow_path.clone(),
        ..ConfinedNames::default()
    }
}

fn reading(names: ConfinedNames) -> Needs {
    Needs { names, work: Work::Reading, reads_repository: false }
}

impl Needs {
    /// For a disk that is named so.
    fn of(self, disk: &std::path::Path, open: &OpenOptions) -> Self {
        Self { reads_repository: open.snapshot(disk).is_some(), ..self }
    }
}

/// Closes this process in: from now on it gets what `needs` says and nothing else. To be called before anything else, by a program that
/// has one thread.
///
/// With [`When::Auto`], what the kernel does not do is left out. With [`When::Always`] it is `Unsupported`.
pub fn run(when: When, needs: Needs) -> Result<()> {
    if needs.reads_repository {
        let why = "the files of a repository are not known before it is read";
        return Opening::not_closed_in(when, why)?.close(needs.work);
    }
    Opening::begin(when, needs.names)?.close(needs.work)
}

/// A process that still opens what it needs by itself.
pub(crate) struct Opening {
    when: When,
    /// Its broker, if it is to be closed in and can be.
    split: Option<Split>,
}

impl Opening {
    /// Of a process that is not closed in, and why.
    pub(crate) fn not_closed_in(when: When, why: &str) -> Result<Self> {
        match when {
            When::Always => Err(cannot(why)),
            When::Auto | When::Never => Ok(Self { when: When::Never, split: None }),
        }
    }

    /// To be called before an image is parsed, in a process that has one thread.
    pub(crate) fn begin(when: When, names: ConfinedNames) -> Result<Self> {
        let split = match when {
            When::Never => None,
            When::Auto => os::split(names).ok(),
            When::Always => Some(os::split(names).map_err(|error| cannot(&error.to_string()))?),
        };
        Ok(Self { when, split })
    }

    /// Closes the process in, if that is asked for. There must be one thread still.
    pub(crate) fn close(self, work: Work) -> Result<()> {
        let Some(split) = self.split else { return Ok(()) };
        match (split.close(work), self.when) {
            (Ok(Confined { names: true, calls: true }), _) => Ok(()),
            (Ok(_), When::Always) => {
                Err(cannot("it lacks Landlock or seccomp, or the container forbids them"))
            }
            (Err(error), When::Always) => Err(cannot(&error.to_string())),
            (Ok(_) | Err(_), _) => Ok(()),
        }
    }
}

fn cannot(why: &str) -> Error {
    Error::unsupported(format!("this system cannot confine the program: {why}"))
        .hint("--confine auto does what it can")
}
