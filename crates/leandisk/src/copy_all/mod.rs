//! Several disks copied by one command: into a folder, or into a new OVA. An appliance stands for all of its disks.
//!
//! What can be known beforehand of all disks is found before the first target is made: two targets of one name, targets that exist, too
//! little room for all of them together, an appliance that is not what its manifest says. That refuses the whole command, and nothing is
//! written. A disk that cannot be read is told with its error, and the others are copied all the same (but an OVA is whole or not there).
//!
//! Each disk is copied as [`copy::run`] copies one.

mod archive;
mod watching;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use block::{Error, ErrorKind, Result};
use image::Format;
use report::{CopyAllDocument, CopyAllEntry, CopyDocument, human_bytes};

use crate::appliance::{Appliance, Inside};
use crate::copy::{self, SourceSeen};
use crate::machine::{Machine, Named, ThisHost};
use crate::open::name_disk;
use crate::remote::disk_name;
use crate::{Observer, OpenOptions, Reported};
use watching::Watching;

/// What is copied, where to, and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Disks and appliances.
    pub sources: Vec<Source>,
    /// The folder that the targets are made in, which is made if it is missing; or a new appliance, named `*.ova`.
    pub into: PathBuf,
    /// How each is copied. Source and target in it do not matter.
    pub copy: copy::Options,
}

/// A disk or an appliance.
#[derive(Clone, Debug)]
pub struct Source {
    /// What was named.
    pub disk: PathBuf,
    /// Where it is read, if elsewhere: at the export of a running guest's disk.
    pub read_at: Option<PathBuf>,
}

impl<T: Into<PathBuf>> From<T> for Source {
    fn from(disk: T) -> Self {
        Self { disk: disk.into(), read_at: None }
    }
}

impl Source {
    /// Where it is opened.
    pub(crate) fn place(&self) -> &Path {
        self.read_at.as_ref().unwrap_or(&self.disk)
    }
}

impl Options {
    /// Whether the targets become an OVA.
    pub fn makes_ova(&self) -> bool {
        self.into.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("ova"))
    }
}

/// Copies the disks, or says what that would do.
pub fn run(options: &Options, observer: &dyn Observer) -> Result<Reported<CopyAllDocument>> {
    run_on(&ThisHost, options, observer)
}

/// The same on another machine than this host.
pub fn run_on(
    machine: &dyn Machine,
    options: &Options,
    observer: &dyn Observer,
) -> Result<Reported<CopyAllDocument>> {
    let started = Instant::now();
    let appliances = appliances(machine, options, observer)?;
    let notes: Vec<String> = appliances
        .iter()
        .flat_map(|(appliance, path)| {
            appliance.notes().iter().map(move |note| format!("{}: {note}", path.display()))
        })
        .collect();
    let (appliances, paths): (Vec<Appliance>, Vec<&Path>) = appliances.into_iter().unzip();
    let items = items(options, &appliances, &paths);
    let inside = Inside::new(machine, &appliances);
    let told = |disks| {
        let into = options.into.display().to_string();
        let seconds = started.elapsed().as_secs_f64();
        CopyAllDocument::new(into, disks, notes.clone(), options.copy.dry_run, seconds)
    };
    if options.makes_ova() && machine.named(&options.into) != Named::Other {
        let disks = archive::run(&inside, options, &items, observer)?;
        return Ok(Reported { document: told(disks), ended: Ok(()) });
    }
    let items = in_folder(options, items)?;
    let is_made = machine.make_folder(&options.into)?;
    let done = copy_each(&inside, options, &items, observer);
    if is_made {
        // It stays if there is anything in it.
        machine.remove_folder(&options.into);
    }
    let (disks, ended) = done?;
    Ok(Reported { document: told(disks), ended })
}

/// A disk to be copied.
struct Item {
    source: Source,
    format: Option<Format>,
    /// The target's name without its extension.
    stem: String,
    target: PathBuf,
    /// What the appliance says of it: which appliance and which of its disks.
    of: Option<(usize, usize)>,
}

impl Item {
    /// The copy of this disk alone.
    fn options(&self, all: &copy::Options) -> copy::Options {
        copy::Options {
            source: self.source.place().to_owned(),
            target: self.target.clone(),
            open: OpenOptions {
                format: self.format,
                shown_as: self.source.read_at.as_ref().map(|_| self.shown()),
                ..all.open.clone()
            },
            ..all.clone()
        }
    }

    /// What it is called in reports.
    fn shown(&self) -> String {
        self.source.disk.display().to_string()
    }

    fn entry(&self, error: &Error) -> CopyAllEntry {
        CopyAllEntry::failed(self.shown(), self.target.display().to_string(), error)
    }
}

/// Those among the sources that are appliances.
fn appliances<'a>(
    machine: &dyn Machine,
    options: &'a Options,
    observer: &dyn Observer,
) -> Result<Vec<(Appliance, &'a Path)>> {
    let mut found = Vec::new();
    for path in options.sources.iter().filter(|source| source.read_at.is_none()).map(|source| &source.disk) {
        let appliance = Appliance::find(machine, path, &options.copy.open, Some(observer));
        found
            .extend(appliance.map_err(|error| name_disk(error, path))?.map(|appliance| (appliance, &**path)));
    }
    Ok(found)
}

/// All disks, in the order of the sources.
fn items(options: &Options, appliances: &[Appliance], paths: &[&Path]) -> Vec<Item> {
    let mut items = Vec::new();
    for source in &options.sources {
        let Some(index) = paths.iter().position(|path| *path == source.disk) else {
            items.push(Item {
                source: source.clone(),
                format: options.copy.open.format,
                stem: stem(&source.disk),
                target: PathBuf::new(),
                of: None,
            });
            continue;
        };
        for (number, disk) in appliances[index].disks().iter().enumerate() {
            items.push(Item {
                source: disk.path.clone().into(),
                format: disk.format,
                stem: stem(&disk.path),
                target: PathBuf::new(),
                of: Some((index, number)),
            });
        }
    }
    items
}

/// What the target is called after: an export, a disk of a machine, or a file without its extension.
fn stem(path: &Path) -> String {
    disk_name(path).unwrap_or_else(|| path.file_stem().unwrap_or_default().to_string_lossy().into_owned())
}

/// With their targets in a folder: `Invalid` if two are one.
fn in_folder(options: &Options, mut items: Vec<Item>) -> Result<Vec<Item>> {
    let format = options.copy.target_format.ok_or_else(|| {
        Error::invalid("the format of several targets is not known")
            .hint("say it with -O raw, vhd, vhdx, vmdk, qcow2 or vdi")
    })?;
    let mut names = BTreeSet::new();
    for item in &mut items {
        item.target = options.into.join(format!("{}.{format}", item.stem));
        if !names.insert(item.target.clone()) {
            return Err(Error::invalid("two of the disks would have the same target")
                .path(item.target.display())
                .hint("copy one of them by itself, to another name"));
        }
    }
    Ok(items)
}

/// What was found of the disks before the first is copied: each as it is, or why it cannot be read.
type Seen = Vec<Result<SourceSeen>>;

/// Looks at all sources and targets. Whatever is wrong with a target, or of what an appliance says, is the error of all.
fn see_all(machine: &Inside<'_>, options: &Options, items: &[Item]) -> Result<Seen> {
    let mut seen = Seen::new();
    let (mut needed_bytes, mut free_bytes) = (0_u64, None);
    for item in items {
        let one = item.options(&options.copy);
        let source = copy::see_source(machine, &one).map_err(|error| name_disk(error, &item.source.disk));
        if let Ok(source) = &source {
            if let Some((appliance, disk)) = item.of {
                machine.disk_of(appliance, disk).check_capacity(source.virtual_bytes)?;
            }
            let (least_bytes, free) = copy::see_target(machine, &one)?;
            needed_bytes = needed_bytes.saturating_add(least_bytes);
            free_bytes = free.or(free_bytes);
        }
        seen.push(source);
    }
    match free_bytes {
        Some(free_bytes) if needed_bytes > free_bytes => Err(Error::refused(format!(
            "not enough space: the file system has {} free, and the targets need {} together at the least",
            human_bytes(free_bytes),
            human_bytes(needed_bytes)
        ))
        .path(options.into.display())
        .hint("nothing was written; make room, or copy to another file system")),
        _ => Ok(seen),
    }
}

/// Copies all that can be read. Answers what became of each, and the first failure.
fn copy_each(
    machine: &Inside<'_>,
    options: &Options,
    items: &[Item],
    observer: &dyn Observer,
) -> Result<(Vec<CopyAllEntry>, Result<()>)> {
    let seen = see_all(machine, options, items)?;
    let watching = Watching::new(observer, &seen, options.copy.verify);
    let mut entries = Vec::new();
    let mut ended = Ok(());
    let mut is_over = false;
    for (item, seen) in items.iter().zip(seen) {
        let copied = match seen {
            _ if is_over || watching.is_cancelled() => Err(Error::interrupted()),
            Err(error) => Err(error),
            Ok(seen) => copy_one(machine, options, item, &watching.disk(item, &seen)),
        };
        match copied {
            Ok(document) => entries.push(CopyAllEntry::Copied(Box::new(document))),
            Err(error) => {
                is_over |= error.kind() == ErrorKind::Interrupted;
                entries.push(item.entry(&error));
                ended = ended.and(Err(error));
            }
        }
    }
    watching.finish();
    Ok((entries, ended))
}

fn copy_one(
    machine: &dyn Machine,
    options: &Options,
    item: &Item,
    observer: &dyn Observer,
) -> Result<CopyDocument> {
    copy::run_on(machine, &item.options(&options.copy), observer)
        .map_err(|error| name_disk(error, &item.source.disk))
}
