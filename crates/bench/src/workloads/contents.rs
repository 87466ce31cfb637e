//! What activities find on the disk: files with known contents, written so that they lie as a disk's state has them.

use std::fs::{self, File};
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};

use block::{Error, Result};
use engine::JobMonitor;
use rustix::fs::{FallocateFlags, fallocate};
use xxhash_rust::xxh3::Xxh3;

use super::documents::document;
use super::messages::{mbox_of, message};
use super::sizes::Sizes;
use crate::age::operations::SIZES;
use crate::content::{Content, Random};

/// What is written at a time where nothing is to be in pieces.
const CHUNK_BYTES: usize = 1 << 20;
/// What is read at a time.
const READ_BYTES: usize = 128 << 10;
/// No file of the tree is larger than this part of it.
const FILE_SHARE: u64 = 20;
/// Files of a folder.
const FOLDER_FILES: usize = 50;

/// A file as it was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    /// Below the guest's mount.
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    pub(super) hash: u64,
}

/// All that was written, by what it is for.
#[derive(Clone, Default, Debug)]
pub(super) struct Manifest {
    pub(super) tree: Vec<Entry>,
    pub(super) documents: Vec<Entry>,
    pub(super) maildir: Vec<Entry>,
    pub(super) mbox: Vec<Entry>,
    /// Messages in the mbox.
    pub(super) mbox_messages: u64,
}

impl Manifest {
    pub(super) fn all(&self) -> impl Iterator<Item = &Entry> {
        [&self.tree, &self.documents, &self.maildir, &self.mbox].into_iter().flatten()
    }
}

/// How files come to lie in pieces: several grow at a time, each by so much in its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Turns {
    /// Files that grow at a time.
    pub(super) files: usize,
    /// By how much at a time.
    pub(super) bytes: usize,
}

impl Turns {
    pub(super) const NONE: Self = Self { files: 1, bytes: CHUNK_BYTES };
}

/// Which group a file belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Group {
    Tree,
    Document,
    Maildir,
    Mbox,
}

/// A file that is to be written.
struct Planned {
    group: Group,
    path: PathBuf,
    bytes: u64,
    seed: u64,
}

/// Writes everything below `point`, in an order that follows from the seed.
pub(super) fn write_contents(
    point: &Path,
    sizes: &Sizes,
    turns: Turns,
    seed: u64,
    monitor: &dyn JobMonitor,
) -> Result<Manifest> {
    let mut planned = planned(sizes, seed);
    shuffle(&mut planned, &mut Random::new(seed ^ 0x5eed));
    let mut manifest = Manifest { mbox_messages: mbox_of(sizes.mail_bytes, seed).1, ..Manifest::default() };
    for together in planned.chunks(turns.files.max(1)) {
        if monitor.is_cancelled() {
            return Err(Error::interrupted());
        }
        for (plan, entry) in together.iter().zip(write_in_turns(point, together, turns, sizes)?) {
            monitor.advanced(0, entry.bytes);
            match plan.group {
                Group::Tree => manifest.tree.push(entry),
                Group::Document => manifest.documents.push(entry),
                Group::Maildir => manifest.maildir.push(entry),
                Group::Mbox => manifest.mbox.push(entry),
            }
        }
    }
    for group in [&mut manifest.tree, &mut manifest.documents, &mut manifest.maildir] {
        group.sort_by(|one, other| one.path.cmp(&other.path));
    }
    crate::workspace::write_back(point)?;
    Ok(manifest)
}

fn planned(sizes: &Sizes, seed: u64) -> Vec<Planned> {
    let mut random = Random::new(seed);
    let mut planned = Vec::new();
    let most = (sizes.tree_bytes / FILE_SHARE).max(4096);
    let mut left = sizes.tree_bytes;
    while left > 0 {
        let middle = SIZES[usize::try_from(random.below(SIZES.len() as u64)).unwrap_or(0)];
        let bytes = (middle - middle / 4 + random.below(middle / 2 + 1)).clamp(1, most).min(left);
        let index = planned.len();
        let path = format!("data/tree/{:03}/{index:05}.bin", index / FOLDER_FILES);
        planned.push(Planned { group: Group::Tree, path: path.into(), bytes, seed: random.next() });
        left -= bytes;
    }
    for index in 0..sizes.documents {
        let path = format!("data/documents/{index:03}.docx").into();
        let bytes = sizes.document_bytes;
        planned.push(Planned { group: Group::Document, path, bytes, seed: random.next() });
    }
    let mut left = sizes.mail_bytes;
    for index in 0.. {
        let bytes = (1024 + random.below(31 << 10)).min(left);
        if bytes == 0 {
            break;
        }
        let path = format!("data/maildir/cur/{index:06}.leandisk:2,S").into();
        planned.push(Planned { group: Group::Maildir, path, bytes, seed: index });
        left -= bytes;
    }
    planned.push(Planned { group: Group::Mbox, path: "data/mbox".into(), bytes: sizes.mail_bytes, seed });
    planned
}

fn shuffle<T>(items: &mut [T], random: &mut Random) {
    for index in (1..items.len()).rev() {
        let other = usize::try_from(random.below(index as u64 + 1)).unwrap_or(0);
        items.swap(index, other);
    }
}

/// Bytes that come one part after the other.
enum Source {
    Random { content: Box<Content>, left: u64 },
    Bytes { bytes: Vec<u8>, at: usize },
}

impl Source {
    fn of(plan: &Planned, sizes: &Sizes) -> Self {
        let bytes = match plan.group {
            Group::Tree => {
                let content = Box::new(Content::new(CHUNK_BYTES, plan.seed));
                return Self::Random { content, left: plan.bytes };
            }
            Group::Document => document(plan.bytes, plan.seed),
            Group::Maildir => message(plan.bytes, plan.seed),
            Group::Mbox => mbox_of(sizes.mail_bytes, plan.seed).0,
        };
        Self::Bytes { bytes, at: 0 }
    }

    fn next(&mut self, len: usize) -> &[u8] {
        match self {
            Self::Random { content, left } => {
                let len = usize::try_from(*left).unwrap_or(len).min(len);
                let bytes = if len == 0 { &[][..] } else { content.next(len) };
                *left -= bytes.len() as u64;
                bytes
            }
            Self::Bytes { bytes, at } => {
                let end = (*at + len).min(bytes.len());
                let part = &bytes[*at..end];
                *at = end;
                part
            }
        }
    }
}

/// A file that grows.
struct Growing {
    file: File,
    source: Source,
    hash: Xxh3,
    bytes: u64,
}

fn write_in_turns(point: &Path, planned: &[Planned], turns: Turns, sizes: &Sizes) -> Result<Vec<Entry>> {
    let mut growing = Vec::new();
    for plan in planned {
        let path = point.join(&plan.path);
        let made = make(&path).map_err(|error| Error::io("make", error).path(path.display()))?;
        growing.push(Growing { file: made, source: Source::of(plan, sizes), hash: Xxh3::new(), bytes: 0 });
    }
    let mut goes_on = true;
    while goes_on {
        goes_on = false;
        for (plan, growing) in planned.iter().zip(&mut growing) {
            let grown = growing.grow(turns);
            goes_on |= grown.map_err(|error| Error::io("write", error).path(plan.path.display()))?;
        }
    }
    let entries = planned.iter().zip(growing).map(|(plan, growing)| Entry {
        path: plan.path.clone(),
        bytes: growing.bytes,
        hash: growing.hash.digest(),
    });
    Ok(entries.collect())
}

impl Growing {
    /// By one turn. Answers whether there was anything left.
    fn grow(&mut self, turns: Turns) -> std::io::Result<bool> {
        let part = self.source.next(turns.bytes);
        if part.is_empty() {
            return Ok(false);
        }
        if turns.files > 1 {
            // No more than this: file systems would keep room behind it for the file's next turn.
            fallocate(&self.file, FallocateFlags::empty(), self.bytes, part.len() as u64)?;
        }
        self.file.write_all(part)?;
        self.hash.update(part);
        self.bytes += part.len() as u64;
        if turns.files > 1 {
            // It gets its place now, before the next file's turn.
            os::write_out(&self.file);
        }
        Ok(true)
    }
}

fn make(path: &Path) -> std::io::Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    File::create_new(path)
}

/// Reads a file whole, past nothing: as programs do. Answers its length and its hash.
pub(super) fn read_whole(path: &Path) -> std::io::Result<(u64, u64)> {
    let mut file = File::open(path)?;
    let (mut hash, mut bytes) = (Xxh3::new(), 0);
    let mut part = vec![0; READ_BYTES];
    loop {
        match file.read(&mut part)? {
            0 => return Ok((bytes, hash.digest())),
            count => {
                hash.update(&part[..count]);
                bytes += count as u64;
            }
        }
    }
}

/// Reads each of them below `root`, and compares. `Mismatch` says which one is not what was written.
pub(super) fn check_entries<'a>(
    root: &Path,
    entries: impl IntoIterator<Item = &'a Entry>,
    monitor: &dyn JobMonitor,
) -> Result<u64> {
    let mut count = 0;
    for entry in entries {
        if monitor.is_cancelled() {
            return Err(Error::interrupted());
        }
        let path = root.join(&entry.path);
        let found = read_whole(&path).map_err(|error| Error::io("read", error).path(path.display()))?;
        if found != (entry.bytes, entry.hash) {
            return Err(Error::mismatch("a file is not what was written").path(path.display()));
        }
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_in_turns_is_found_again_and_a_changed_byte_is_noticed() {
        struct Nobody;
        impl JobMonitor for Nobody {
            fn advanced(&self, _: u64, _: u64) {}
            fn is_cancelled(&self) -> bool {
                false
            }
        }
        let dir = testkit::scratch();
        let sizes = Sizes { tree_bytes: 3 << 20, mail_bytes: 200_000, ..Sizes::of(48 << 20) };
        let turns = Turns { files: 4, bytes: 10_000 };
        let manifest = write_contents(dir.path(), &sizes, turns, 7, &Nobody).unwrap();
        assert_eq!(manifest.tree.iter().map(|entry| entry.bytes).sum::<u64>(), 3 << 20);
        assert_eq!(manifest.documents.len(), 20);
        let count = check_entries(dir.path(), manifest.all(), &Nobody).unwrap();
        assert_eq!(usize::try_from(count).unwrap(), manifest.all().count());
        let changed = dir.path().join(&manifest.tree[3].path);
        let mut bytes = fs::read(&changed).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&changed, bytes).unwrap();
        let error = check_entries(dir.path(), manifest.all(), &Nobody).unwrap_err();
        assert_eq!(error.kind(), block::ErrorKind::Mismatch);
        assert!(error.to_string().contains("tree"), "{error}");
    }
}
