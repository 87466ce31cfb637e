//! Volumes made by mkntfs and filled through ntfs-3g, for the tests of NTFS.

// Each program of tests uses what it needs.
#![allow(dead_code)]

pub(crate) mod info;
pub(crate) mod shadow;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{Error, Memory, ReadAt, Result};
use extent::{Volume, VolumeOffset};
use filesystem::{FileSystem, Source};
use tempfile::TempDir;
use testkit::{noise, run, scratch};

/// A volume in a file.
pub(crate) struct InFile(pub(crate) File);

impl ReadAt<Volume> for InFile {
    fn len_bytes(&self) -> u64 {
        self.0.metadata().unwrap().len()
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        block::check_bounds(at, buf.len(), self.len_bytes())?;
        self.0.read_exact_at(buf, at.get()).map_err(|error| Error::io("test volume", error))
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub(crate) fn open(path: &Path) -> Box<dyn FileSystem> {
    open_source(Arc::new(InFile(File::open(path).unwrap())))
}

pub(crate) fn open_source(source: Source) -> Box<dyn FileSystem> {
    filesystem::ntfs::open(&source).unwrap().expect("recognised")
}

pub(crate) fn open_bytes(bytes: Vec<u8>) -> Box<dyn FileSystem> {
    open_source(Arc::new(Memory::new(bytes)))
}

/// A mounted volume; unmounted, and all of it written, when dropped.
pub(crate) struct Mounted {
    pub(crate) dir: PathBuf,
    program: Child,
}

impl Mounted {
    pub(crate) fn new(volume: &Path, dir: &Path, options: &str) -> Self {
        fs::create_dir_all(dir).unwrap();
        let before = fs::metadata(dir).unwrap().dev();
        let options = format!("no_detach,{options}");
        let mut program = Command::new("ntfs-3g")
            .args(["-o", &options, text(volume), text(dir)])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("ntfs-3g");
        let started = Instant::now();
        while fs::metadata(dir).unwrap().dev() == before {
            assert!(program.try_wait().unwrap().is_none(), "ntfs-3g gave up on {}", volume.display());
            assert!(started.elapsed() < Duration::from_secs(30), "ntfs-3g does not mount");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { dir: dir.into(), program }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily, so that it is gone even if the test failed with a file open.
        let _ = Command::new("umount").args(["-l", text(&self.dir)]).status();
        let _ = self.program.wait();
    }
}

pub(crate) struct Made {
    pub(crate) dir: TempDir,
    pub(crate) volume: PathBuf,
}

pub(crate) fn make(mib: u64, options: &[&str]) -> Made {
    let dir = scratch();
    let volume = dir.path().join("volume");
    File::create(&volume).unwrap().set_len(mib << 20).unwrap();
    let mut args = vec!["-F", "-Q", "-q", "-L", "Größe", "-p", "0", "-H", "0", "-S", "0"];
    args.extend(options);
    args.push(text(&volume));
    run("mkntfs", &args);
    Made { dir, volume }
}

impl Made {
    pub(crate) fn mount(&self, options: &str) -> Mounted {
        Mounted::new(&self.volume, &self.dir.path().join("mnt"), options)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        fs::read(&self.volume).unwrap()
    }
}

/// Fills the volume mounted at `dir` with files of one kilobyte, `f0`, `f1` and so on; every other one goes, and small ones
/// make `$MFT` grow into the holes. Answers how many small ones there are.
pub(crate) fn fragment_mft(dir: &Path) -> usize {
    let filler = |index: u64| dir.join(format!("f{index}"));
    let full = (0..20_000).find(|index| fs::write(filler(*index), noise(*index, 1500)).is_err()).unwrap();
    for index in (0..full).step_by(2) {
        fs::remove_file(filler(index)).unwrap();
    }
    (0..20_000).take_while(|index| fs::write(dir.join(format!("s{index}")), b"s").is_ok()).count()
}

/// Where a file record lies, found by the number in it; mkntfs puts `$MFT` before `$MFTMirr`.
pub(crate) fn record_at(bytes: &[u8], number: u64) -> usize {
    let cluster_bytes = u16_at(bytes, 0x0b) * usize::from(bytes[0x0d]);
    let mft = usize::try_from(u32_at(bytes, 0x30)).unwrap() * cluster_bytes;
    let is_it = |at: &usize| {
        let record = &bytes[*at..*at + 1024];
        record.starts_with(b"FILE") && u64::from(u32_at(record, 44)) == number
    };
    (mft..bytes.len() - 1023).step_by(1024).find(is_it).expect("the record")
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()))
}

/// Where an attribute of a record lies.
pub(crate) fn attribute_at(bytes: &[u8], number: u64, kind: u32) -> usize {
    let record = record_at(bytes, number);
    let mut at = record + u16_at(bytes, record + 20);
    while u32_at(bytes, at) != kind {
        assert_ne!(u32_at(bytes, at), u32::MAX, "record {number} has no attribute {kind:#x}");
        at += usize::try_from(u32_at(bytes, at + 4)).unwrap();
    }
    at
}

/// A host file seen as a volume.
pub(crate) struct AsVolume(pub(crate) Arc<dyn block::HostFile>);

impl ReadAt<Volume> for AsVolume {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        self.0.read_at(extent::HostOffset::new(at.get()), buf)
    }
}
