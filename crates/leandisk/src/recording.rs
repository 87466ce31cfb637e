//! Recordings of requests, from `leandisk serve --trace` or from blktrace: told apart by how they begin, and read.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use block::{Error, Result};
use predict::cost::Access;
use serve::stats::ExportStats;
use serve::trace::{self, Op, TraceReader, blktrace};

use crate::Observer;

/// Files of one recording of blktrace at most: one for each CPU.
const CPU_COUNT_MAX: usize = 4096;

/// What a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// As `leandisk serve --trace` writes it.
    Trace,
    /// As blktrace writes it.
    Blktrace,
}

fn open(path: &Path) -> Result<File> {
    os::open_input(path)
}

fn kind_of(path: &Path) -> Result<Option<Kind>> {
    let mut start = Vec::new();
    let read = open(path)?.take(trace::MAGIC.len() as u64).read_to_end(&mut start);
    read.map_err(|error| Error::io("read", error).path(path.display()))?;
    Ok(match start {
        start if start == trace::MAGIC => Some(Kind::Trace),
        start if blktrace::begins_like_one(&start) => Some(Kind::Blktrace),
        _ => None,
    })
}

/// What a recording says of its disk; `None` if the file is none.
pub(crate) fn measured(path: &Path, observer: &dyn Observer) -> Result<Option<ExportStats>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some(kind) = kind_of(path)? else { return Ok(None) };
    let (len_bytes, snapshot) = match kind {
        Kind::Trace => {
            let mut reader = reader(path)?;
            let snapshot = trace::measure(&mut reader).map_err(|error| error.path(path.display()))?;
            tell(path, &reader, observer);
            (reader.facts().disk_bytes, snapshot)
        }
        Kind::Blktrace => {
            let recording =
                blktrace::read(cpu_files(path)?, None).map_err(|error| error.path(path.display()))?;
            if recording.is_truncated {
                say(path, "ends in the middle of a record", observer);
            }
            (0, recording.snapshot)
        }
    };
    let export =
        ExportStats { name, len_bytes, is_read_only: false, failure: None, snapshot: Some(snapshot) };
    Ok(Some(export))
}

/// The reads and writes of a recording, in order; `None` if the file is none.
pub(crate) fn accesses(
    path: &Path,
    count_max: usize,
    observer: &dyn Observer,
) -> Result<Option<Vec<Access>>> {
    let mut accesses = Vec::new();
    let mut push = |offset, len_bytes| {
        if accesses.len() >= count_max {
            return Err(too_many(path, count_max));
        }
        accesses.push(Access { offset, len_bytes });
        Ok(())
    };
    match kind_of(path)? {
        None => return Ok(None),
        Some(Kind::Trace) => {
            let mut reader = reader(path)?;
            while let Some(event) = reader.next_event().map_err(|error| error.path(path.display()))? {
                if matches!(event.op, Op::Read | Op::Write) && !event.is_failed {
                    push(event.offset, event.len_bytes)?;
                }
            }
            tell(path, &reader, observer);
        }
        Some(Kind::Blktrace) => {
            blktrace::each_request(cpu_files(path)?, push).map_err(|error| error.path(path.display()))?;
        }
    }
    Ok(Some(accesses))
}

/// The bound on accesses was hit.
pub(crate) fn too_many(path: &Path, count_max: usize) -> Error {
    Error::invalid(format!("a trace of more than {count_max} accesses"))
        .hint("record for a shorter time, or take a part of it")
        .path(path.display())
}

fn reader(path: &Path) -> Result<TraceReader<BufReader<File>>> {
    TraceReader::new(BufReader::new(open(path)?)).map_err(|error| error.path(path.display()))
}

fn tell<R: Read>(path: &Path, reader: &TraceReader<R>, observer: &dyn Observer) {
    if reader.dropped() > 0 {
        let lacks = format!("lacks {} requests, which came too fast or beyond its limit", reader.dropped());
        say(path, &lacks, observer);
    }
    if reader.is_truncated() {
        say(path, "ends in the middle of a block; what comes before was read", observer);
    }
}

fn say(path: &Path, text: &str, observer: &dyn Observer) {
    observer.note(&format!("{} {text}", path.display()));
}

/// The files of all CPUs, if `path` is one of them by its name (`sda.blktrace.0`); else the file alone.
fn cpu_files(path: &Path) -> Result<Vec<File>> {
    paths_of(path).iter().map(|path| open(path)).collect()
}

/// The paths of [`cpu_files`].
pub(crate) fn paths_of(path: &Path) -> Vec<PathBuf> {
    let base = path.file_stem().filter(|_| path.extension().is_some_and(is_number));
    let mut paths: Vec<PathBuf> = Vec::new();
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let Some(base) = base.filter(|base| Path::new(base).extension() == Some("blktrace".as_ref()))
        && let Ok(names) = os::names_in(folder)
    {
        let others = names.into_iter().map(|name| folder.join(name));
        let is_one =
            |other: &PathBuf| other.file_stem() == Some(base) && other.extension().is_some_and(is_number);
        paths.extend(others.filter(is_one).take(CPU_COUNT_MAX));
        paths.sort();
    }
    if paths.is_empty() {
        paths.push(path.to_owned());
    }
    paths
}

fn is_number(text: &std::ffi::OsStr) -> bool {
    text.to_str().is_some_and(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
}
