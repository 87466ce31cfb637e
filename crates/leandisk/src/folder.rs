//! The disks of a folder: which files may be disks, and the analysis of all of them as one table.
//!
//! Invariants: nothing is written; symbolic links are not followed, so that each file is met once and within the folder; a disk that cannot be
//! read is told with the reason, and the others are analysed all the same.
//!
//! Only fixed bytes of a file are looked at here. Whether it is a disk is decided by who parses it, which a program may do in a
//! process of its own for each disk ([`run`] is told how).

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use block::{Error, Result};
use report::{DiskEntry, DiskReport, FileIdentity, FolderDocument, folder_document, folder_page};

use crate::Observer;
use crate::output::OutputFile;

/// What is asked.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The folder, with all that are in it.
    pub folder: PathBuf,
    /// Where the table goes as a page, if anywhere.
    pub html: Option<PathBuf>,
    /// Whether that replaces a file that is there.
    pub force: bool,
    /// How many disks are analysed at once; 0 for two a processor: while one waits for its storage, another is worked on.
    pub jobs: usize,
}

/// A file with such a name is told even if it cannot be read.
const EXTENSIONS: [&str; 13] =
    ["qcow2", "qcow", "qed", "vhdx", "avhdx", "vhd", "avhd", "vpc", "vmdk", "vdi", "raw", "img", "dd"];
/// What a disk may have where: headers of formats, partition tables, file systems and physical volumes.
const SIGNATURES: [(u64, &[u8]); 13] = [
    (0, b"QFI\xfb"),
    (0, b"vhdxfile"),
    (0, b"KDMV"),
    (0, b"COWD"),
    (0, b"# Disk DescriptorFile"),
    (0, b"conectix"),
    (0, b"XFSB"),
    (0x40, &[0x7f, 0x10, 0xda, 0xbe]),
    (510, &[0x55, 0xaa]),
    (512, b"LABELONE"),
    (0x438, &[0x53, 0xef]),
    (4086, b"SWAPSPACE2"),
    (0x1_0040, b"_BHRfS_M"),
];
/// The footer of VHD begins so far before the end of its file.
const FOOTER_BYTES: u64 = 512;
/// Nothing shorter is a disk, but for the text that describes a VMDK.
const LEN_BYTES_MIN: u64 = 512;

/// A file that may be a disk.
struct Candidate {
    path: PathBuf,
    identity: FileIdentity,
}

/// Analyses all disks of a folder. `analyze` analyses one: in this process, or in another one.
///
/// `Invalid` if it is no folder. What cannot be read is in the document.
pub fn run(
    options: &Options,
    analyze: &(dyn Fn(&Path) -> Result<DiskReport> + Sync),
    observer: &dyn Observer,
) -> Result<FolderDocument> {
    let Options { folder, html, force, jobs } = options;
    let name = folder.display().to_string();
    if !fs::metadata(folder).map_err(|error| Error::io("open", error).path(&name))?.is_dir() {
        return Err(Error::invalid("--recursive takes a folder").path(&name));
    }
    let html = html.as_ref().map(|path| OutputFile::prepare(path, *force, &[])).transpose()?;
    let _analysing = observer.waiting("analysing the disks of the folder");
    let mut found = Search::default();
    found.folder(folder);
    let jobs = if *jobs == 0 { 2 * os::processor_count() } else { *jobs };
    let reports = all_of(&found.candidates, jobs, analyze);
    let document = folder_document(&name, reports, found.unread);
    if let Some(html) = &html {
        html.write_page(&folder_page(&document), folder, observer)?;
    }
    Ok(document)
}

#[derive(Default)]
struct Search {
    candidates: Vec<Candidate>,
    met: BTreeSet<FileIdentity>,
    unread: Vec<String>,
}

impl Search {
    fn folder(&mut self, path: &Path) {
        let entries = fs::read_dir(path).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let mut entries = match entries {
            Ok(entries) => entries,
            Err(error) => return self.unread.push(format!("{}: {error}", path.display())),
        };
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => self.folder(&path),
                Ok(metadata) if metadata.is_file() => self.file(path, &metadata),
                // Links, devices, pipes and sockets.
                Ok(_) => {}
                Err(error) => self.unread.push(format!("{}: {error}", path.display())),
            }
        }
    }

    /// Takes a file that may be a disk, once, however many names it has.
    fn file(&mut self, path: PathBuf, metadata: &fs::Metadata) {
        let identity = (metadata.dev(), metadata.ino());
        let may_be_text = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("vmdk"));
        if metadata.len() == 0 || (metadata.len() < LEN_BYTES_MIN && !may_be_text) {
            return;
        }
        match is_named_like_one(&path)
            .then_some(true)
            .map_or_else(|| has_signature(&path, metadata.len()), Ok)
        {
            Ok(true) if self.met.insert(identity) => self.candidates.push(Candidate { path, identity }),
            Ok(_) => {}
            Err(error) => self.unread.push(format!("{}: {error}", path.display())),
        }
    }
}

fn is_named_like_one(path: &Path) -> bool {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension.as_str()))
}

fn has_signature(path: &Path, len_bytes: u64) -> std::io::Result<bool> {
    let file = File::open(path)?;
    let is_there = |at: u64, expected: &[u8]| {
        let mut found = vec![0; expected.len()];
        let is_within = at.checked_add(expected.len() as u64).is_some_and(|end| end <= len_bytes);
        Ok::<_, std::io::Error>(is_within && file.read_exact_at(&mut found, at).map(|()| found == expected)?)
    };
    for (at, expected) in SIGNATURES {
        if is_there(at, expected)? {
            return Ok(true);
        }
    }
    is_there(len_bytes.saturating_sub(FOOTER_BYTES), b"conectix")
}

/// The reports of all candidates, in their order.
fn all_of(
    candidates: &[Candidate],
    jobs: usize,
    analyze: &(dyn Fn(&Path) -> Result<DiskReport> + Sync),
) -> Vec<DiskReport> {
    let reports = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, candidates.len().max(1)) {
            scope.spawn(|| {
                while let Some((index, candidate)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    candidates.get(index).map(|candidate| (index, candidate))
                } {
                    let report = report_of(candidate, analyze);
                    reports.lock().expect("no thread panicked").push((index, report));
                }
            });
        }
    });
    let mut reports = reports.into_inner().expect("no thread panicked");
    reports.sort_by_key(|(index, _)| *index);
    reports.into_iter().map(|(_, report)| report).collect()
}

fn report_of(candidate: &Candidate, analyze: &dyn Fn(&Path) -> Result<DiskReport>) -> DiskReport {
    let path = candidate.path.display().to_string();
    let mut report = analyze(&candidate.path).unwrap_or_else(|error| {
        let error = crate::name_disk(error, &candidate.path);
        DiskReport {
            is_disk: true,
            entry: DiskEntry { error: Some(error.to_string()), ..DiskEntry::default() },
            layers: Vec::new(),
        }
    });
    report.entry.path = path;
    if report.layers.is_empty() {
        report.layers.push(vec![candidate.identity]);
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_may_be_disks_are_met_once() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("inner")).unwrap();
        let mut table = vec![0; 4096];
        table[510..512].copy_from_slice(&[0x55, 0xaa]);
        let mut footer = vec![1; 4096];
        footer[4096 - 512..4096 - 504].copy_from_slice(b"conectix");
        for (name, bytes) in [
            ("inner/disk", &table[..]),
            ("fixed", &footer[..]),
            ("empty.qcow2", &[0; 512][..]),
            ("short.img", &[0; 100][..]),
            ("text.vmdk", b"# Disk DescriptorFile"),
            ("text", &[b'a'; 5000][..]),
        ] {
            fs::write(at(name), bytes).unwrap();
        }
        fs::hard_link(at("fixed"), at("fixed too")).unwrap();
        std::os::unix::fs::symlink(at("inner"), at("link")).unwrap();
        let mut search = Search::default();
        search.folder(dir.path());
        let paths: Vec<_> = search.candidates.iter().map(|found| found.path.clone()).collect();
        assert_eq!(paths, [at("empty.qcow2"), at("fixed"), at("inner/disk"), at("text.vmdk")]);
        assert_eq!(search.unread, Vec::<String>::new());
        let analyze = |path: &Path| match path.ends_with("fixed") {
            true => Err(Error::unsupported("no such thing")),
            false => Ok(DiskReport { is_disk: true, ..DiskReport::default() }),
        };
        let reports = all_of(&search.candidates, 2, &analyze);
        let errors: Vec<_> = reports.iter().map(|report| report.entry.error.is_some()).collect();
        assert_eq!(errors, [false, true, false, false]);
        assert!(reports.iter().all(|report| report.layers.len() == 1));
    }
}
