//! Files taken out of a disk, with all that is known of them.
//!
//! Invariants:
//! - a name that no file of a host can have goes nowhere;
//! - what cannot be read or made is told, and the rest goes on; a machine that fails ends it.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use block::{Error, ErrorKind, Result};
use filesystem::{Attribute, Browse, FileId, Node, NodeKind, StreamName};
use stack::Stack;

use super::folder::FolderSink;
use super::path::{self, AtEnd, Found};
use super::sink::{Item, Sink};
use super::tar::TarSink;
use super::{missing, name, shown, volume};
use crate::output::output_beside;
use crate::{Cancel, Observer};

/// The deepest folder that is looked into.
const DEPTH_MAX: usize = 1024;
/// The longest name.
const NAME_BYTES_MAX: usize = 255;
/// The most notes about single files.
const NOTES_MAX: u64 = 20;

/// Where files go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Destination {
    /// Into a folder, under their paths on the volume.
    Folder(PathBuf),
    /// Into a tar.
    Tar(PathBuf),
    /// The same onto standard output.
    Stdout,
}

/// What is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExtractOptions {
    /// `[VOLUME:]PATH` of each file or folder.
    pub paths: Vec<Vec<u8>>,
    /// Where they go.
    pub into: Destination,
    /// Whether what is there already is replaced.
    pub force: bool,
}

/// Extracts files and folders. What is not to be had is noted; the first error is how it ended.
///
/// `out` takes the tar that goes onto standard output.
pub fn extract(
    stack: &Stack,
    options: &ExtractOptions,
    out: &mut dyn Write,
    observer: &dyn Observer,
) -> Result<()> {
    // Before anything is made: each path is there.
    let mut found = Vec::new();
    for path in &options.paths {
        let named = name::parse(path)?;
        let chosen = volume::choose(stack, named.volume, observer)?;
        let file = path::find(&*chosen.browse, named.path, AtEnd::Stay)?;
        found.push((chosen, file));
    }
    let cancel = observer.cancel()?;
    let mut run = |sink: &mut dyn Sink| -> Result<Option<Error>> {
        let mut counts = Counts::default();
        for (chosen, file) in &found {
            let first = HashMap::new();
            let browse = &*chosen.browse;
            let mut extraction =
                Extraction { browse, sink: &mut *sink, observer, cancel: &cancel, first, counts };
            extraction.found(file)?;
            counts = extraction.counts;
        }
        for (what, count) in sink.finish()? {
            observer.note(&format!("could not be kept, {count} times: {what}"));
        }
        counts.tell(observer);
        Ok(counts.ended)
    };
    let ended = match &options.into {
        Destination::Folder(folder) => run(&mut FolderSink::new(folder, options.force)?)?,
        Destination::Stdout => run(&mut TarSink::new(out))?,
        Destination::Tar(path) => write_tar(stack, path, options.force, observer, &mut run)?,
    };
    ended.map_or(Ok(()), Err)
}

/// Writes the tar under a partial name first. One that is not whole never gets its own.
fn write_tar(
    stack: &Stack,
    path: &Path,
    force: bool,
    observer: &dyn Observer,
    run: &mut dyn FnMut(&mut dyn Sink) -> Result<Option<Error>>,
) -> Result<Option<Error>> {
    let output = output_beside(stack, path, force, &[])?;
    let mut ended = Ok(None);
    let written = output.write(observer, |out| {
        ended = run(&mut TarSink::new(out));
        match &ended {
            Ok(_) => Ok(()),
            Err(error) => Err(std::io::Error::other(error.to_string())),
        }
    });
    let ended = ended?;
    written.map(|()| ended)
}

#[derive(Default)]
struct Counts {
    files: u64,
    folders: u64,
    left_out: u64,
    /// The first error of a single file.
    ended: Option<Error>,
}

impl Counts {
    fn tell(&self, observer: &dyn Observer) {
        let Self { files, folders, left_out, .. } = self;
        let left = if *left_out > 0 { format!("; {left_out} were left out") } else { String::new() };
        observer.note(&format!("extracted {files} files and {folders} folders{left}"));
    }
}

struct Extraction<'a> {
    browse: &'a dyn Browse,
    sink: &'a mut dyn Sink,
    observer: &'a dyn Observer,
    cancel: &'a Cancel,
    /// Of files with several names, the first one.
    first: HashMap<FileId, Vec<Vec<u8>>>,
    counts: Counts,
}

/// A folder whose files are to come.
struct Waiting {
    folder: FileId,
    names: Vec<Vec<u8>>,
}

impl Extraction<'_> {
    /// What cannot be read or made is told. A machine that fails, and a user who has enough, end all.
    fn tolerate(&mut self, names: &[Vec<u8>], done: Result<()>) -> Result<()> {
        let Err(error) = done else { return Ok(()) };
        if matches!(error.kind(), ErrorKind::Io | ErrorKind::Interrupted) {
            return Err(error);
        }
        let error = error.path(format!("/{}", shown(&names.join(&b'/'))));
        self.leave_out(&error.to_string());
        self.counts.ended.get_or_insert(error);
        Ok(())
    }

    fn leave_out(&mut self, why: &str) {
        self.counts.left_out += 1;
        if self.counts.left_out <= NOTES_MAX {
            self.observer.note(why);
        }
    }

    fn found(&mut self, found: &Found) -> Result<()> {
        let names: Vec<Vec<u8>> = found
            .path
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty())
            .map(<[u8]>::to_vec)
            .collect();
        if let Some(stream) = &found.stream {
            let done = self.stream(&names, &found.node, stream);
            return self.tolerate(&names, done);
        }
        if found.node.kind == NodeKind::Directory {
            return self.folders(Waiting { folder: found.node.file, names });
        }
        let done = self.entry(&names, &found.node);
        self.tolerate(&names, done)
    }

    /// A folder and all that is below it.
    fn folders(&mut self, top: Waiting) -> Result<()> {
        // Each folder is in one other, unless the volume is broken.
        let mut seen = HashSet::new();
        let mut waiting = vec![top];
        while let Some(Waiting { folder, names }) = waiting.pop() {
            if self.cancel.load(std::sync::atomic::Ordering::Relaxed) {
                return Err(Error::interrupted());
            }
            if !seen.insert(folder) {
                self.tolerate(&names, Err(Error::corrupt("a folder that is in several others")))?;
                continue;
            }
            let made = self.browse.node(folder).and_then(|node| self.folder(&names, &node));
            let is_made = made.is_ok();
            self.tolerate(&names, made)?;
            if !is_made {
                continue;
            }
            let below = self.entries(folder, &names)?;
            waiting.extend(below.into_iter().rev());
        }
        Ok(())
    }

    /// The root is where everything goes, and nothing that is made.
    fn folder(&mut self, names: &[Vec<u8>], node: &Node) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let attributes = self.attributes(names, node)?;
        self.sink.folder(Item { names, node, attributes: &attributes })?;
        self.counts.folders += 1;
        self.streams(names, node)
    }

    /// Extracts what is in a folder, and answers the folders in it.
    fn entries(&mut self, folder: FileId, names: &[Vec<u8>]) -> Result<Vec<Waiting>> {
        let mut entries = Vec::new();
        let listed = self.browse.each_entry(folder, &mut |name, file| {
            entries.push((name.to_vec(), file));
            Ok(())
        });
        self.tolerate(names, listed)?;
        entries.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        let (mut below, mut before) = (Vec::new(), None);
        for (name, file) in entries {
            let names = [names, std::slice::from_ref(&name)].concat();
            let is_twice = before.replace(name.clone()) == Some(name.clone());
            let done = match check_name(&name, names.len(), is_twice) {
                Ok(()) => self.browse.node(file).and_then(|node| match node.kind {
                    NodeKind::Directory => {
                        below.push(Waiting { folder: file, names: names.clone() });
                        Ok(())
                    }
                    _ => self.entry(&names, &node),
                }),
                Err(error) => Err(error),
            };
            self.tolerate(&names, done)?;
        }
        Ok(below)
    }

    /// Anything but a folder.
    fn entry(&mut self, names: &[Vec<u8>], node: &Node) -> Result<()> {
        if node.kind == NodeKind::File
            && node.link_count > 1
            && let Some(first) = self.first.get(&node.file)
        {
            let item = Item { names, node, attributes: &[] };
            self.sink.hard_link(item, &first.clone())?;
            self.counts.files += 1;
            return Ok(());
        }
        if let Some(why) = node.sealed {
            return Err(Error::unsupported(format!("left out: {why}")));
        }
        let attributes = self.attributes(names, node)?;
        let item = Item { names, node, attributes: &attributes };
        match node.kind {
            NodeKind::Directory => {}
            NodeKind::File => {
                let contents = self.browse.open(node.file, StreamName::Main)?;
                self.sink.file(item, &*contents, self.cancel)?;
                if node.link_count > 1 {
                    self.first.insert(node.file, names.to_vec());
                }
            }
            NodeKind::Link => {
                let target = self.browse.target(node.file)?;
                self.sink.link(item, target.path.as_ref().unwrap_or(&target.text))?;
            }
            NodeKind::Special(special) => {
                if let Some(why) = self.sink.special(item, special)? {
                    self.leave_out(&format!("/{}: left out: {why}", shown(&item.path())));
                    return Ok(());
                }
            }
        }
        self.counts.files += 1;
        self.streams(names, node)
    }

    /// Other streams become files beside theirs, with their names behind a colon.
    fn streams(&mut self, names: &[Vec<u8>], node: &Node) -> Result<()> {
        for stream in &node.streams {
            let done = self.stream(names, node, &stream.name);
            self.tolerate(names, done)?;
        }
        Ok(())
    }

    fn stream(&mut self, names: &[Vec<u8>], node: &Node, stream: &[u8]) -> Result<()> {
        let (last, above) = names.split_last().ok_or_else(|| missing(stream))?;
        let name = [&last[..], b":", stream].concat();
        check_name(&name, names.len(), false)?;
        let names = [above, &[name]].concat();
        let contents = self.browse.open(node.file, StreamName::Named(stream))?;
        let node = Node { kind: NodeKind::File, streams: Vec::new(), link_count: 1, ..node.clone() };
        self.sink.file(Item { names: &names, node: &node, attributes: &[] }, &*contents, self.cancel)?;
        self.counts.files += 1;
        Ok(())
    }

    /// Those that cannot be read are told, and are no reason to do without the file.
    fn attributes(&mut self, names: &[Vec<u8>], node: &Node) -> Result<Vec<Attribute>> {
        match self.browse.attributes(node.file) {
            Ok(attributes) => Ok(attributes),
            Err(error) => {
                self.tolerate(names, Err(error))?;
                Ok(Vec::new())
            }
        }
    }
}

/// `Refused` unless a file of a host can have the name.
fn check_name(name: &[u8], depth: usize, is_twice: bool) -> Result<()> {
    let is_name = !name.is_empty()
        && name != b"."
        && name != b".."
        && name.len() <= NAME_BYTES_MAX
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'));
    match (is_name, depth <= DEPTH_MAX, is_twice) {
        (true, true, false) => Ok(()),
        (false, ..) => Err(Error::refused("left out: no file of a host can have such a name")),
        (_, false, _) => Err(Error::refused("left out: too many folders deep")),
        (.., true) => Err(Error::refused("left out: its folder has the name twice")),
    }
}
