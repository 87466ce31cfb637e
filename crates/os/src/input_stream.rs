//! Standard input as a source: kept in a file without a name until its end is known.
//!
//! A disk's table may lie at its end, and what a guest uses is known once all of it was seen; so what comes is stored first, without its zeros. The
//! file has no name: it goes with the process, however that ends.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use block::{Error, Result};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};

use crate::new_file::folder_of;

/// What is read, and looked at for zeros, at a time.
const STEP_BYTES: usize = 1 << 20;
/// The unit in which zeros are left out.
const BLOCK_BYTES: usize = 64 << 10;

/// What standard input held.
#[derive(Debug)]
pub struct StoredInput {
    file: OwnedFd,
}

impl StoredInput {
    /// Reads standard input to its end, into a file on the file system of `beside`, or, if nothing can be made there, of the system's
    /// temporary files. `Invalid` if it is a terminal.
    pub fn read(beside: &Path) -> Result<Self> {
        let input = rustix::stdio::stdin();
        if rustix::termios::isatty(input) {
            return Err(Error::invalid("a disk is not read from a terminal")
                .path("standard input")
                .hint("have it come from a file or a program: < FILE, PROGRAM |"));
        }
        let input = input.try_clone_to_owned();
        let input = input.map_err(|error| Error::io("read", error).path("standard input"))?;
        let file = nameless(folder_of(beside)).or_else(|_| nameless(Path::new("/var/tmp")))?;
        let file = File::from(file);
        store(&mut File::from(input), &file)?;
        let again = rustix::fs::open(name_of(&file.as_fd()), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let file = again.map_err(|error| Error::io("open what standard input held", error.into()))?;
        Ok(Self { file })
    }

    /// What opens it, in this process and those that it starts.
    pub fn path(&self) -> PathBuf {
        name_of(&self.file)
    }
}

fn name_of(file: &impl AsFd) -> PathBuf {
    format!("/dev/fd/{}", file.as_fd().as_raw_fd()).into()
}

fn nameless(folder: &Path) -> Result<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|error| Error::io("make a file without a name in", error.into()).path(folder.display()))
}

fn store(input: &mut File, file: &File) -> Result<()> {
    let lost = |error| Error::io("read", error).path("standard input");
    let full = |error| {
        Error::io("store what comes from standard input", error)
            .hint("it is kept beside the target until its end is known: make room there")
    };
    let mut buf = vec![0; STEP_BYTES];
    let mut at = 0_u64;
    loop {
        let len = fill(input, &mut buf).map_err(lost)?;
        for (block, bytes) in buf[..len].chunks(BLOCK_BYTES).enumerate() {
            if bytes.iter().any(|byte| *byte != 0) {
                file.write_all_at(bytes, at + (block * BLOCK_BYTES) as u64).map_err(full)?;
            }
        }
        at += len as u64;
        if len < buf.len() {
            file.set_len(at).map_err(full)?;
            return (&*file).flush().map_err(full);
        }
    }
}

/// Less than all of `buf` at the end alone.
fn fill(input: &mut File, buf: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buf.len() {
        match input.read(&mut buf[filled..]) {
            Ok(0) => break,
            Ok(len) => filled += len,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
