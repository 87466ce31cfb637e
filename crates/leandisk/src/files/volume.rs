//! Which volume is meant.

use block::{Error, Result};
use filesystem::{Browse, FileSystem, State};
use stack::{Stack, Volume};

use crate::Observer;

/// A volume whose files are read.
pub(super) struct Chosen<'a> {
    /// From 1 on.
    pub(super) index: usize,
    pub(super) filesystem: &'a dyn FileSystem,
    pub(super) browse: Box<dyn Browse + 'a>,
}

/// The volume of this index or name; without one, the only one that has files.
pub(super) fn choose<'a>(
    stack: &'a Stack,
    named: Option<&str>,
    observer: &dyn Observer,
) -> Result<Chosen<'a>> {
    let volumes = || (1..).zip(stack.volumes());
    let found = match named {
        Some(named) => volumes()
            .find(|(index, volume)| index.to_string() == named || volume.name.as_deref() == Some(named)),
        None => only(volumes().filter(|(_, volume)| has_files(volume))),
    };
    let Some((index, volume)) = found else { return Err(unclear(stack, named)) };
    let what = || format!("volume {index}");
    let filesystem = volume.filesystem.as_deref().ok_or_else(|| {
        let why = volume.doubt.clone().unwrap_or_else(|| "no known file system".into());
        Error::unsupported(format!("{} is not read: {why}", what()))
    })?;
    let browse = filesystem.browse()?;
    tell(&what(), filesystem, observer);
    Ok(Chosen { index, filesystem, browse })
}

/// What is in it may not fit together: said once, since reading changes nothing.
fn tell(what: &str, filesystem: &dyn FileSystem, observer: &dyn Observer) {
    let state = &filesystem.facts().state;
    if let State::JournalPending(why) = state {
        observer.note(&format!("{what} is read as it will be once it is mounted: {why}"));
    } else if let Some(why) = state.doubt() {
        observer.note(&format!("{what} is in doubt, and read as it is: {why}"));
    }
}

fn has_files(volume: &Volume) -> bool {
    volume.filesystem.as_ref().is_some_and(|filesystem| filesystem.browse().is_ok())
}

fn only<T>(mut found: impl Iterator<Item = T>) -> Option<T> {
    let first = found.next();
    if found.next().is_some() { None } else { first }
}

/// The error of a volume that was not named, or that there is not, with those that there are.
fn unclear(stack: &Stack, named: Option<&str>) -> Error {
    let described = |(index, volume): (usize, &Volume)| {
        let kind = volume.filesystem.as_ref().map_or("unknown", |filesystem| &filesystem.facts().filesystem);
        match &volume.name {
            Some(name) => format!("{name} ({kind})"),
            None => format!("{index} ({kind})"),
        }
    };
    let all = (1..).zip(stack.volumes());
    let with_files: Vec<_> = all.filter(|(_, volume)| has_files(volume)).map(described).collect();
    let what = match named {
        Some(named) => format!("the disk has no volume '{named}'"),
        None if with_files.is_empty() => {
            let reason = stack.volumes().iter().find_map(|volume| {
                let filesystem = volume.filesystem.as_ref()?;
                filesystem.browse().err().map(|error| error.to_string())
            });
            let reason = reason.unwrap_or_else(|| match stack.volumes() {
                [] => stack.why_no_volume(),
                _ => "its volumes have no file system that is read".into(),
            });
            return Error::unsupported(format!("no file of the disk can be read: {reason}"));
        }
        None => "several volumes of the disk have files".into(),
    };
    Error::invalid(format!("{what}; there are: {}", with_files.join(", "))).hint("name the volume: 2:/path")
}
