//! Copies to and from an export, of which the server refuses, breaks off, or loses power at any request: `copy` as the program runs it, with the
//! client as it is.
//!
//! What must hold of a target: a copy that says it is done is on the server's stable storage, whole, and what is skipped reads as zeros; any other
//! says that the export holds an incomplete copy. Once the server is well again, a copy succeeds.
//!
//! Of a source: the target's name means what it meant before, or a whole copy, and nothing is beside it; a connection that is lost and can be taken up
//! again does not end a copy.

use std::sync::Arc;

use block::{Error, ErrorKind, Memory, ReadAt, TargetName};
use extent::VirtualOffset;
use image::{Chain, Format, NoFiles, OpenOptions};
use leandisk::{Unwatched, copy};
use sim::{FileMarks, Pages, Random, SERVER_FAULTS, ServerFault, SimExport, SimServer};

use crate::explore::{Explored, Violation};
use crate::host::{EXPORT, SimHost, TARGET};

const SOURCE: &str = "/disks/disk";
/// Length of the disk: more than the 2 MiB that the engine handles at a time.
const LEN_BYTES: usize = 3 << 20;
/// The units in which the disk and what the export held before are data or zeros.
const DATA_BYTES: usize = 4096;
const OLD_BYTES: usize = 128 << 10;
/// What the target held before.
const BEFORE: &[u8] = b"what was there before";

/// A disk, an export that held something else, and what its server can do.
pub struct ExportSubject {
    seed: u64,
    disk: Pages,
    old: Pages,
    export: SimExport,
}

impl ExportSubject {
    /// All of it follows from a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        // With next to nothing on either, a few requests are all.
        let (data_in, old_in) = if seed.is_multiple_of(2) { (500, 50) } else { (100, 2) };
        let old = blocks(&mut random, OLD_BYTES, old_in);
        let export = SimExport {
            has_lanes: !seed.is_multiple_of(3),
            can_zero: !seed.is_multiple_of(4),
            tells_zeros: !seed.is_multiple_of(5),
        };
        Self { seed, disk: blocks(&mut random, DATA_BYTES, data_in), old, export }
    }

    fn options(&self, source: &str, target: &str, verifies: bool) -> copy::Options {
        copy::Options {
            source: source.into(),
            target: target.into(),
            open: leandisk::OpenOptions { format: Some(Format::Raw), ..leandisk::OpenOptions::default() },
            target_format: Some(Format::Raw),
            verify: verifies,
            force: true,
            threads: Some(1),
            ..copy::Options::default()
        }
    }

    /// What the server does wrong at each request of a copy to it, and what is there then.
    fn fail_target(&self, number: u64, fault: ServerFault) -> Result<bool, String> {
        let server = SimServer::new(self.seed, self.export, self.old.clone());
        server.fail_at(number, fault);
        let host = SimHost::new(SOURCE, self.disk.clone()).with_server(server.clone());
        let verifies = self.seed.is_multiple_of(7);
        let options = self.options(SOURCE, EXPORT, verifies);
        let is_done = match copy::run_on(&host, &options, &Unwatched) {
            Ok(_) => true,
            Err(error) => check_error(&error).map(|()| false)?,
        };
        let is_over = server.requests() < number;
        if !is_done && is_over {
            return Err("it fails by itself".into());
        }
        if is_done {
            self.check_stored(&server)?;
        }
        server.heal();
        copy::run_on(&host, &options, &Unwatched).map_err(|error| format!("the next copy: {error:?}"))?;
        self.check_stored(&server).map_err(|text| format!("the next copy: {text}"))?;
        Ok(is_over)
    }

    /// Any power cut leaves the disk.
    fn check_stored(&self, server: &SimServer) -> Result<(), String> {
        for cut in 0..4 {
            let left = server.cut_pages(self.seed ^ cut);
            if let Some(at) = left.first_difference(&self.disk, 0..LEN_BYTES) {
                return Err(format!(
                    "it was said to be whole, and a power cut leaves another byte at {at:#x}"
                ));
            }
        }
        Ok(())
    }

    /// What the server does wrong at each request of a copy from it.
    fn fail_source(&self, number: u64, fault: ServerFault) -> Result<bool, String> {
        let server = SimServer::new(self.seed, self.export, self.disk.clone());
        server.fail_at(number, fault);
        let host = SimHost::new(SOURCE, Pages::new(&[0; 512])).for_copies(self.seed, FileMarks::Marks);
        let host = host.with_server(server.clone());
        let has_target = self.seed.is_multiple_of(7);
        if has_target {
            host.target.put(TargetName::Target, BEFORE);
        }
        let format = if self.seed.is_multiple_of(3) { Format::Qcow2 } else { Format::Raw };
        let mut options = self.options(EXPORT, TARGET, false);
        options.target_format = Some(format);
        let result = copy::run_on(&host, &options, &Unwatched);
        let is_over = server.requests() < number;
        let comes_back = !matches!(fault, ServerFault::Refuses | ServerFault::Ends);
        match result {
            Err(error) if is_over || comes_back => return Err(format!("it is given up: {error:?}")),
            Err(error) => {
                check_kind(&error)?;
                let names = host.target.names();
                let expected: &[_] = if has_target { &[TargetName::Target] } else { &[] };
                let old = host.target.pages(TargetName::Target).map(|pages| pages.to_vec());
                if names != expected || old.is_some_and(|old| old != BEFORE) {
                    return Err(format!("a copy that failed leaves {names:?}"));
                }
            }
            Ok(_) => self.check_copy(&host, format)?,
        }
        server.heal();
        copy::run_on(&host, &options, &Unwatched).map_err(|error| format!("the next copy: {error:?}"))?;
        self.check_copy(&host, format).map_err(|text| format!("the next copy: {text}"))?;
        Ok(is_over)
    }

    /// The target is whole, and alone; after a power cut as well.
    fn check_copy(&self, host: &SimHost, format: Format) -> Result<(), String> {
        for host in [host.killed(), host.cut(self.seed)] {
            if host.target.names() != [TargetName::Target] {
                return Err(format!("it leaves {:?}", host.target.names()));
            }
            let pages = host.target.pages(TargetName::Target).expect("it is there");
            let read = || -> block::Result<Vec<u8>> {
                let file = Arc::new(Memory::new(pages.to_vec()));
                let chain = Chain::open(file, OpenOptions { format: Some(format) }, &NoFiles)?;
                let mut bytes = vec![0; usize::try_from(chain.len_bytes()).expect("small")];
                chain.read_at(VirtualOffset::ZERO, &mut bytes)?;
                Ok(bytes)
            };
            if !read().is_ok_and(|bytes| Pages::new(&bytes) == self.disk) {
                return Err("the target is no copy of the export".into());
            }
        }
        Ok(())
    }
}

/// Blocks of so many bytes, of which one in so many holds data.
fn blocks(random: &mut Random, block_bytes: usize, one_in: u64) -> Pages {
    let mut bytes = vec![0; LEN_BYTES];
    for block in bytes.chunks_exact_mut(block_bytes) {
        if random.below(one_in) == 0 {
            block.fill(random.next_u64().to_le_bytes()[0] | 1);
        }
    }
    Pages::new(&bytes)
}

fn check_kind(error: &Error) -> Result<(), String> {
    match error.kind() {
        ErrorKind::Io => Ok(()),
        kind => Err(format!("the error is {kind:?}: {error}")),
    }
}

/// What a copy to an export that failed must say.
fn check_error(error: &Error) -> Result<(), String> {
    check_kind(error)?;
    match error.hint_text() {
        Some(hint) if hint.contains("incomplete copy") => Ok(()),
        hint => Err(format!("it does not say what the export holds: {error} ({hint:?})")),
    }
}

/// Has a copy to an export meet every fault of its server at every so manieth request.
pub fn explore_export_target(subject: &ExportSubject, stride: u64) -> Result<Explored, Violation> {
    explore(subject, stride, ExportSubject::fail_target)
}

/// The same of a copy from an export.
pub fn explore_export_source(subject: &ExportSubject, stride: u64) -> Result<Explored, Violation> {
    explore(subject, stride, ExportSubject::fail_source)
}

fn explore(
    subject: &ExportSubject,
    stride: u64,
    fail: impl Fn(&ExportSubject, u64, ServerFault) -> Result<bool, String>,
) -> Result<Explored, Violation> {
    let mut explored = Explored::default();
    for fault in SERVER_FAULTS {
        let mut number = 1 + subject.seed % stride;
        loop {
            let told = |text: String| Violation {
                seed: subject.seed,
                text: format!("{fault:?} at request {number} of {:?}: {text}", subject.export),
            };
            let is_over = fail(subject, number, fault).map_err(told)?;
            explored.states += 1;
            if is_over {
                break;
            }
            number += stride;
        }
    }
    Ok(explored)
}
