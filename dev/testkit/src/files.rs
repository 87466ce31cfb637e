//! Host files for tests that do not go through the `os` crate.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use block::{Error, HostFile, ReadAt, Result, check_bounds};
use extent::{Host, HostOffset};
use image::{Purpose, Resolver};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Where a file stores bytes, in ascending order. Everything else of it reads as zeros.
pub fn stored_ranges(file: &File) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut at = 0;
    loop {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return found,
            Err(error) => panic!("SEEK_DATA: {error}"),
        };
        at = rustix::fs::seek(file, SeekFrom::Hole(start))
            .unwrap_or_else(|error| panic!("SEEK_HOLE: {error}"));
        found.push(start..at);
    }
}

/// What a file stores, and where that begins.
pub fn stored(path: &Path) -> Vec<(u64, Vec<u8>)> {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let read = |range: Range<u64>| {
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
        file.read_exact_at(&mut bytes, range.start).unwrap();
        (range.start, bytes)
    };
    stored_ranges(&file).into_iter().map(read).collect()
}

/// Writes a part of a file to a new one. What is not stored is not in that one either.
pub fn extract(from: &Path, start_bytes: u64, len_bytes: u64, to: &Path) {
    let file = File::open(from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    let target = File::create(to).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
    target.set_len(len_bytes).unwrap();
    let end_bytes = start_bytes + len_bytes;
    assert!(end_bytes <= file.metadata().unwrap().len(), "{} ends before {end_bytes}", from.display());
    let mut piece = vec![0; 1 << 20];
    for range in stored_ranges(&file) {
        let (mut at, end) = (range.start.max(start_bytes), range.end.min(end_bytes));
        while at < end {
            let len = piece.len().min(usize::try_from(end - at).unwrap());
            file.read_exact_at(&mut piece[..len], at).unwrap();
            target.write_all_at(&piece[..len], at - start_bytes).unwrap();
            at += len as u64;
        }
    }
}

/// A file opened for reading.
pub struct TestFile {
    path: PathBuf,
    name: String,
    file: File,
}

impl TestFile {
    /// Opens `path`; panics if it cannot.
    pub fn open(path: impl AsRef<Path>) -> Arc<dyn HostFile> {
        let path = path.as_ref();
        let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Arc::new(Self { path: path.to_owned(), name: path.display().to_string(), file })
    }
}

impl ReadAt<Host> for TestFile {
    fn len_bytes(&self) -> u64 {
        self.file.metadata().unwrap().len()
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes())?;
        self.file
            .read_exact_at(buf, at.get())
            .map_err(|error| Error::io("read", error).path(&self.name).at(at))
    }
}

impl HostFile for TestFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn allocated_bytes(&self) -> Result<u64> {
        Ok(self.file.metadata().unwrap().blocks() * 512)
    }

    fn identity(&self) -> Option<(u64, u64)> {
        let metadata = self.file.metadata().unwrap();
        Some((metadata.dev(), metadata.ino()))
    }
}

/// Opens names relative to the folder of the file that holds them, and remembers every name asked for.
#[derive(Default)]
pub struct TestResolver {
    asked: Mutex<Vec<String>>,
}

impl TestResolver {
    /// The names asked for so far.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Resolver for TestResolver {
    fn open(&self, from: &dyn HostFile, name: &str, _purpose: Purpose) -> Result<Arc<dyn HostFile>> {
        self.asked.lock().unwrap().push(name.to_owned());
        let path = from.path().parent().map_or_else(|| PathBuf::from(name), |dir| dir.join(name));
        if !path.is_file() {
            return Err(Error::refused(format!("refers to '{name}', which does not exist")).path(from.name()));
        }
        Ok(TestFile::open(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_the_same_bytes_and_the_same_holes() {
        let dir = crate::scratch();
        let (whole, part) = (dir.path().join("whole"), dir.path().join("part"));
        let bytes: Vec<u8> =
            (0..3_usize << 20).map(|at| u8::try_from(at / 4096 % 250 + 1).unwrap()).collect();
        let file = File::create(&whole).unwrap();
        file.set_len(16 << 20).unwrap();
        // Before the part, from before it to within it, within it, and from within it to behind it.
        for at in [0, 3, 8, 11].map(|mib: u64| mib << 20) {
            file.write_all_at(&bytes, at).unwrap();
        }
        extract(&whole, 5 << 20, 8 << 20, &part);
        let all = std::fs::read(&whole).unwrap();
        assert!(std::fs::read(&part).unwrap() == all[5 << 20..13 << 20]);
        let stored = stored_ranges(&File::open(&part).unwrap());
        assert_eq!(stored, [0..1 << 20, 3 << 20..8 << 20]);
    }
}
