//! What the tests of the server share: a raw disk over a host file, one that misbehaves on demand, a client by hand.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic, clippy::cast_possible_truncation)]

pub mod client;
pub mod load;

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use block::{
    Disk, EditDisk, Error, FileIndex, LiveDisk, ReadAt, Result, Run, RunState, Take, check_bounds, push_run,
};
use extent::{HostOffset, Virtual, VirtualOffset, VirtualSpan};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use serve::nbd::{Listener, Options, Server};
use serve::{Export, monitor::Monitor};
use tempfile::TempDir;

/// A disk whose bytes are those of a host file. Counts, and fails or dawdles on demand.
pub struct RawDisk {
    file: File,
    len_bytes: u64,
    pub flushes: AtomicU64,
    pub fails_flush: AtomicBool,
    pub panics: AtomicBool,
    pub fails_above: AtomicU64,
    pub delay_us: AtomicU64,
    /// How often it lent its pages.
    pub lent: AtomicU64,
    /// Whether lending fails when it was done.
    pub fails_lent: AtomicBool,
}

impl RawDisk {
    pub fn create(path: &Path, len_bytes: u64) -> Arc<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap();
        file.set_len(len_bytes).unwrap();
        Arc::new(Self {
            file,
            len_bytes,
            flushes: AtomicU64::new(0),
            fails_flush: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            fails_above: AtomicU64::new(u64::MAX),
            delay_us: AtomicU64::new(0),
            lent: AtomicU64::new(0),
            fails_lent: AtomicBool::new(false),
        })
    }

    fn before(&self, at: VirtualOffset, len: usize) -> Result<()> {
        let delay_us = self.delay_us.load(SeqCst);
        if delay_us > 0 {
            std::thread::sleep(Duration::from_micros(delay_us));
        }
        assert!(!self.panics.load(SeqCst), "as the test wants it");
        if at.get() + len as u64 > self.fails_above.load(SeqCst) {
            return Err(failure("injected"));
        }
        check_bounds(at, len, self.len_bytes)
    }
}

fn failure(what: &str) -> Error {
    Error::io(what, std::io::Error::other("injected failure"))
}

impl ReadAt<Virtual> for RawDisk {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.before(at, buf.len())?;
        self.file.read_exact_at(buf, at.get()).map_err(|error| Error::io("read", error))
    }
}

impl EditDisk for RawDisk {
    fn write_at(&self, at: VirtualOffset, buf: &[u8]) -> Result<()> {
        self.before(at, buf.len())?;
        self.file.write_all_at(buf, at.get()).map_err(|error| Error::io("write", error))
    }

    fn flush(&self) -> Result<()> {
        self.flushes.fetch_add(1, SeqCst);
        if self.fails_flush.load(SeqCst) {
            return Err(failure("flush"));
        }
        self.file.sync_data().map_err(|error| Error::io("flush", error))
    }

    fn read_stored(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.read_at(at, buf)
    }
}

impl Disk for RawDisk {
    fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        let mut at = span.start().get();
        let end = span.end().get();
        while at < end {
            let data = seek(&self.file, SeekFrom::Data(at)).map_or(end, |data| data.min(end));
            if data > at {
                push_run(
                    &mut runs,
                    Run::new(VirtualSpan::new(VirtualOffset::new(at), data - at), RunState::Hole),
                );
            }
            let hole =
                if data < end { seek(&self.file, SeekFrom::Hole(data)).unwrap().min(end) } else { end };
            let state = RunState::Data { file: FileIndex(0), offset: HostOffset::new(data) };
            push_run(&mut runs, Run::new(VirtualSpan::new(VirtualOffset::new(data), hole - data), state));
            at = hole;
        }
        Ok(runs)
    }
}

impl LiveDisk for RawDisk {
    fn lend(&self, span: VirtualSpan, take: Take<'_>) -> Result<bool> {
        self.before(span.start(), span.len_bytes() as usize)?;
        take(self.file.as_fd(), HostOffset::new(span.start().get()))?;
        if self.fails_lent.load(SeqCst) {
            return Err(failure("lending"));
        }
        self.lent.fetch_add(1, SeqCst);
        Ok(true)
    }

    fn zero(&self, span: VirtualSpan, may_free: bool) -> Result<()> {
        let flags = if may_free { FallocateFlags::PUNCH_HOLE } else { FallocateFlags::ZERO_RANGE };
        fallocate(&self.file, flags | FallocateFlags::KEEP_SIZE, span.start().get(), span.len_bytes())
            .map_err(|error| Error::io("zero", error.into()))
    }

    fn discard(&self, span: VirtualSpan) -> Result<()> {
        self.zero(span, true)
    }
}

/// A server of one raw disk at a socket.
pub struct Served {
    pub dir: TempDir,
    pub disk: Arc<RawDisk>,
    pub export: Arc<Export>,
    pub monitor: Arc<Monitor>,
    pub socket: PathBuf,
    pub server: Option<Server>,
}

impl Served {
    pub fn new(len_bytes: u64) -> Self {
        Self::with(len_bytes, Options::default(), |export| export)
    }

    pub fn with(len_bytes: u64, options: Options, change: impl FnOnce(Export) -> Export) -> Self {
        let dir = testkit::scratch();
        let disk = RawDisk::create(&dir.path().join("disk.raw"), len_bytes);
        let monitor = Monitor::new();
        let export = Export::new("disk", disk.clone()).monitored(monitor.clone()).described("a raw disk");
        let export = Arc::new(change(export));
        let socket = dir.path().join("nbd.sock");
        let listener = Listener::unix(&socket).unwrap();
        let server = Server::start(vec![listener], vec![export.clone()], options).unwrap();
        Self { dir, disk, export, monitor, socket, server: Some(server) }
    }

    pub fn uri(&self) -> String {
        format!("nbd+unix:///disk?socket={}", self.socket.display())
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    pub fn stop(&mut self) -> Result<()> {
        self.server.take().unwrap().stop()
    }
}
