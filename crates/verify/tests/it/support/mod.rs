//! Volumes in files, for the tests of `verify`.

#![allow(dead_code)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use block::{Cached, Error, Memory, ReadAt, Result, TargetFile, check_bounds};
use extent::{HostOffset, Volume, VolumeOffset};
use filesystem::{FileSystem, Source};

/// A volume in a file.
struct InFile(File);

impl ReadAt<Volume> for InFile {
    fn len_bytes(&self) -> u64 {
        self.0.metadata().unwrap().len()
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes())?;
        self.0.read_exact_at(buf, at.get()).map_err(|error| Error::io("test volume", error))
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub(crate) fn source(path: &Path) -> Source {
    Arc::new(Cached::new(InFile(File::open(path).unwrap()), 16 << 20))
}

pub(crate) fn source_of(bytes: Vec<u8>) -> Source {
    Arc::new(Memory::new(bytes))
}

/// A volume of which one bit at a time is another one.
pub(crate) struct Flipped(Arc<Memory>);

impl Flipped {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Memory::new(bytes)))
    }

    /// Calls `look` while that bit of what lies at `at` is flipped.
    pub(crate) fn with<T>(&self, at: usize, bit: usize, look: impl FnOnce(&Source) -> T) -> T {
        let place = HostOffset::new((at + bit / 8) as u64);
        let mut byte = [0];
        self.0.read_at(place, &mut byte).unwrap();
        self.0.write_at(place, &[byte[0] ^ 1 << (bit % 8)]).unwrap();
        let source: Source = self.0.clone();
        let seen = look(&source);
        self.0.write_at(place, &byte).unwrap();
        seen
    }
}

pub(crate) fn open(source: &Source) -> Box<dyn FileSystem> {
    filesystem::open(source).unwrap().expect("a file system")
}

/// The check of owners alone must say the same as the whole check, unless the damage is one of `others`, which it does not look at.
pub(crate) fn judge_owners(source: &Source, what: &str, wanted: &str, others: &[&str]) -> Option<String> {
    let is_looked_at = !others.contains(&what);
    match (verify::volume::check_owners(source), is_looked_at) {
        (Ok(_), false) => None,
        (Err(error), true) if error.to_string().contains(wanted) => None,
        (found, _) => Some(format!("{what}: of owners {found:?}")),
    }
}
