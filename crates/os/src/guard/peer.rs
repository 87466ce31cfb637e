//! Who is at the other end of a socket, and which disks a program has open: how a host knows what a guest's disks are.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::storage::{DeviceNumber, devices_below};

/// More files of a program are not looked at.
const FILES_MAX: usize = 4096;
/// A file that is shorter is no disk.
const DISK_BYTES_MIN: u64 = 1 << 20;

/// A file or device that a program has open and that may be a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenDisk {
    /// How long it is.
    pub size_bytes: u64,
    /// The storage that it has.
    pub allocated_bytes: u64,
    /// What it lies on.
    pub devices: Vec<DeviceNumber>,
}

/// The process that connected; `None` if the kernel does not say.
pub fn process_at(stream: &UnixStream) -> Option<u32> {
    let facts = rustix::net::sockopt::socket_peercred(stream).ok()?;
    u32::try_from(facts.pid.as_raw_nonzero().get()).ok()
}

/// Connects to a socket that somebody listens at, or fails at once.
pub fn connect_at_once(path: &Path) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// Opens a port to the hypervisor, whose calls do not wait.
pub fn open_port(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// What may be disks among the files that a process has open.
pub fn disks_open_in(process: u32) -> Vec<OpenDisk> {
    let names = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten().take(FILES_MAX);
    let mut known = std::collections::BTreeSet::new();
    let mut found = Vec::new();
    for path in names.map(|entry| entry.path()) {
        let Ok(facts) = fs::metadata(&path) else { continue };
        if !known.insert((facts.dev(), facts.ino())) {
            continue;
        }
        found.extend(disk_at(&path, &facts));
    }
    found
}

fn disk_at(path: &Path, facts: &fs::Metadata) -> Option<OpenDisk> {
    let (size_bytes, allocated_bytes) = if facts.file_type().is_block_device() {
        let size = super::DiskFacts::of(DeviceNumber::of(facts.rdev()))?.size_bytes;
        (size, size)
    } else if facts.is_file() && facts.len() >= DISK_BYTES_MIN {
        (facts.len(), facts.blocks().saturating_mul(512))
    } else {
        return None;
    };
    let devices = devices_below(path);
    (!devices.is_empty()).then_some(OpenDisk { size_bytes, allocated_bytes, devices })
}

/// Waits until somebody connects or says something, or this many milliseconds passed.
pub fn wait_for_input<'a>(
    listeners: &'a [UnixListener],
    streams: impl Iterator<Item = &'a UnixStream>,
    milliseconds: u64,
) {
    let sockets = listeners.iter().map(AsFd::as_fd).chain(streams.map(AsFd::as_fd));
    let mut fds: Vec<_> = sockets.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)).collect();
    let time = Timespec {
        tv_sec: i64::try_from(milliseconds / 1000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(milliseconds % 1000).unwrap_or(0) * 1_000_000,
    };
    // Interrupted by a signal, it is over as well.
    let _ = poll(&mut fds, Some(&time));
}
