//! Small but complete volumes, made by the real tools.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;

use block::{Error, Result};
use extent::{ExtentSet, Offset, Span, Volume};
use filesystem::{
    Check, FileExtent, FileName, FileStream, FileSystem, FileVisitor, PieceState, Rearrange, Source,
    StreamName,
};
use sim::Pages;
use xxhash_rust::xxh3::Xxh3;

use crate::scenario::{Guest, Subject};

/// A file system of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Real {
    /// NTFS with compressed and sparse files, streams, attribute lists.
    Ntfs,
    /// ext4 with extent trees that have nodes, checksums and a journal.
    Ext4,
}

const MAKE_NTFS: &str = include_str!("../scripts/make-ntfs");
const MAKE_EXT4: &str = include_str!("../scripts/make-ext4");

impl Real {
    /// A disk with such a volume. Made once, and kept with the build.
    pub fn subject(self) -> Subject {
        let path = self.fixture();
        let volume = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (start, len) = (64 << 10, volume.len() as u64);
        let mut disk = vec![0xee; 64 << 10];
        disk.extend_from_slice(&volume);
        disk.extend_from_slice(&[0xdd; 4096]);
        let span = Span::new(Offset::new(start), len);
        Subject {
            name: self.name().into(),
            disk: Pages::new(&disk),
            volume: span,
            guest: Box::new(self),
            slot_bytes: 256 << 10,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ntfs => "ntfs",
            Self::Ext4 => "ext4",
        }
    }

    fn fixture(self) -> PathBuf {
        let script = if self == Self::Ntfs { MAKE_NTFS } else { MAKE_EXT4 };
        let mut hasher = DefaultHasher::new();
        script.hash(&mut hasher);
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from);
        let folder = target.join("fixtures");
        let path = folder.join(format!("crash-{}-{:016x}.raw", self.name(), hasher.finish()));
        if !path.exists() {
            fs::create_dir_all(&folder).unwrap();
            let work = tempfile::tempdir_in(&folder).unwrap();
            let text = format!("cd '{}'; {script}", work.path().display());
            let output = testkit::as_root("bash", &["-c", &text]);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "making a {} volume: {stderr}", self.name());
            // Of two that are made at the same time one stays.
            fs::rename(work.path().join("volume"), &path).unwrap();
        }
        path
    }

    fn open(volume: &Source) -> Result<Box<dyn FileSystem>> {
        filesystem::open(volume)?.ok_or_else(|| Error::corrupt("no file system is found any more"))
    }

    /// Lets the tools of the file system judge a volume.
    pub fn judge(self, volume: &[u8]) -> Result<(), String> {
        let dir = testkit::scratch();
        let path = dir.path().join("volume");
        fs::write(&path, volume).unwrap();
        let path = path.to_str().unwrap();
        let judges: &[&[&str]] = match self {
            Self::Ntfs => &[&["ntfsfix", "-n", path], &["ntfsresize", "--info", "--force", path]],
            Self::Ext4 => &[&["e2fsck", "-fn", path]],
        };
        for judge in judges {
            let output = testkit::as_root(judge[0], &judge[1..]);
            if !output.status.success() {
                return Err(format!("{judge:?}: {}", String::from_utf8_lossy(&output.stdout)));
            }
        }
        Ok(())
    }
}

impl Guest for Real {
    fn rearrange(&self, volume: Source) -> Result<Box<dyn Rearrange>> {
        Self::open(&volume)?.rearrange()
    }

    fn free(&self, volume: &Source) -> Result<ExtentSet<Volume>> {
        let mut free = Vec::new();
        Self::open(volume)?.each_free_span(&mut |span| free.push(span))?;
        Ok(free.into_iter().collect())
    }

    fn check(&self, volume: &Source) -> Result<u128> {
        let filesystem = Self::open(volume)?;
        filesystem.used_map(Check::Full)?;
        let mut contents = Contents { volume, sum: 0, failure: None };
        filesystem.scan_files(&mut contents)?;
        match contents.failure {
            Some(error) => Err(error),
            None => Ok(contents.sum),
        }
    }
}

/// A digest of all names and contents, whatever order they come in.
struct Contents<'a> {
    volume: &'a Source,
    sum: u128,
    failure: Option<Error>,
}

impl Contents<'_> {
    fn add(&mut self, hasher: &Xxh3) {
        self.sum = self.sum.wrapping_add(hasher.digest128());
    }

    fn read(&self, stream: FileStream<'_>, extents: &[FileExtent]) -> Result<Xxh3> {
        let mut hasher = Xxh3::new();
        hasher.update(&stream.file.0.to_le_bytes());
        hasher.update(&stream.size_bytes.to_le_bytes());
        if let StreamName::Named(name) = stream.name {
            hasher.update(name);
        }
        // A piece at a time, so that it does not matter where one extent ends and the next begins.
        for extent in extents {
            let mut at = extent.logical.get();
            for piece in extent.span.split(512) {
                let mut sector = [0; 512];
                let len = usize::try_from(piece.len_bytes()).unwrap();
                if extent.state != PieceState::Unwritten {
                    self.volume.read_at(piece.start(), &mut sector[..len])?;
                }
                hasher.update(&at.to_le_bytes());
                hasher.update(&sector[..len]);
                at += piece.len_bytes();
            }
        }
        Ok(hasher)
    }
}

impl FileVisitor for Contents<'_> {
    fn stream(&mut self, stream: FileStream<'_>, extents: &[FileExtent]) {
        // The bitmap, the MFT and the like change when files move.
        if stream.kind == filesystem::FileKind::Metadata {
            return;
        }
        match self.read(stream, extents) {
            Ok(hasher) => self.add(&hasher),
            Err(error) => self.failure = Some(error),
        }
    }

    fn name(&mut self, name: FileName<'_>) {
        let mut hasher = Xxh3::new();
        hasher.update(&name.file.0.to_le_bytes());
        hasher.update(&name.parent.0.to_le_bytes());
        hasher.update(name.name);
        self.add(&hasher);
    }

    fn doubt(&mut self, file: Option<filesystem::FileId>, why: String) {
        self.failure = Some(Error::corrupt(format!("{file:?}: {why}")));
    }
}
