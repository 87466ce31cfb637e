//! Files that a use case is asked to write: pages, pictures, lists.
//!
//! Invariant: a file is there whole or not at all, replaces another only if that was allowed, and is never one of what it is made of.

use std::fs::Metadata;
use std::io::{BufWriter, ErrorKind as IoErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use block::{Error, HostFile, Result, TargetFile};
use extent::{Host, Offset};
use os::NewFile;
use report::with_origin;
use stack::Stack;

use crate::Observer;

/// What is written at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// A file that a command is asked to write: a page, a picture, a list.
pub(crate) struct OutputFile {
    path: PathBuf,
    replaces: bool,
}

impl OutputFile {
    /// Looks, before the work begins, whether the file can be written at all; nothing is left behind by that.
    ///
    /// `Refused` if it exists and `replaces` does not allow to replace it, if it is no regular file, or if it is one of `inputs`,
    /// whatever `replaces` says.
    pub(crate) fn prepare(path: &Path, replaces: bool, inputs: &[&Path]) -> Result<Self> {
        check_is_none_of(path, inputs)?;
        if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            let what = "is a folder, a device or a pipe: a report is written to a file";
            return Err(Error::refused(what).path(path.display()));
        }
        NewFile::create(path, replaces)?.discard()?;
        Ok(Self { path: path.to_owned(), replaces })
    }

    /// Writes the file, and says so.
    pub(crate) fn write(
        &self,
        observer: &dyn Observer,
        write: impl FnOnce(&mut BufWriter<Appending<'_>>) -> std::io::Result<()>,
    ) -> Result<()> {
        let file = NewFile::create(&self.path, self.replaces)?;
        let mut out = BufWriter::with_capacity(
            BUFFER_BYTES,
            Appending { file: &file, at: Offset::ZERO, failure: None },
        );
        let written = write(&mut out).and_then(|()| out.flush());
        // What is still in the buffer is not worth another attempt.
        let (appending, _) = out.into_parts();
        if let Some(failure) = appending.failure {
            return Err(failure);
        }
        written.map_err(|error| Error::io("write", error).path(self.path.display()))?;
        file.publish()?;
        observer.note(&format!("wrote {}", self.path.display()));
        Ok(())
    }

    /// Writes a page, which says when it was made, on which host, and of what.
    pub(crate) fn write_page(&self, page: &str, subject: &Path, observer: &dyn Observer) -> Result<()> {
        self.write_text(&with_origin(page, &origin(subject)), observer)
    }

    /// [`Self::write`] of a text.
    pub(crate) fn write_text(&self, text: &str, observer: &dyn Observer) -> Result<()> {
        self.write(observer, |out| out.write_all(text.as_bytes()))
    }
}

/// A file to be written about a disk, which is none of the disk's own files.
pub(crate) fn output_beside(
    stack: &Stack,
    path: &Path,
    replaces: bool,
    inputs: &[&Path],
) -> Result<OutputFile> {
    check_is_no_part_of(stack, path)?;
    OutputFile::prepare(path, replaces, inputs)
}

/// Refuses to write over a file of the disk that was asked about.
pub(crate) fn check_is_no_part_of(stack: &Stack, path: &Path) -> Result<()> {
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(()) };
    let identity = (metadata.dev(), metadata.ino());
    if metadata.file_type().is_block_device()
        || stack.chain().files().iter().any(|file| file.holders().contains(&identity))
    {
        let what = "is a part of the disk, or a block device: a report is not written there";
        return Err(Error::refused(what).path(path.display()));
    }
    Ok(())
}

/// Such as `2026-11-22 13:19 UTC, on host vm7: /vm/disk.vhdx`.
fn origin(subject: &Path) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let system = os::host_name();
    let host = if system.trim().is_empty() { "unknown" } else { system.trim() };
    let path = std::path::absolute(subject).unwrap_or_else(|_| subject.to_owned());
    format!("{}, on host {host}: {}", utc(now), path.display())
}

/// A moment as people write it, to the minute.
fn utc(unix_seconds: u64) -> String {
    let (days, seconds) = (unix_seconds / 86400, unix_seconds % 86400);
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60)
}

/// Year, month and day of so many days after the first of January 1970.
fn civil(mut days: u64) -> (u64, usize, u64) {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // The calendar repeats itself after 400 years.
    let mut year = 1970 + days / 146_097 * 400;
    days %= 146_097;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 0;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        month += 1;
        if days < length {
            break;
        }
        days -= length;
    }
    (year, month, days + 1)
}

/// `Refused` if `path` is one of `inputs`, by whatever name.
fn check_is_none_of(path: &Path, inputs: &[&Path]) -> Result<()> {
    let Ok(metadata) = path.metadata() else { return Ok(()) };
    match inputs.iter().find(|input| input.metadata().is_ok_and(|input| is_same(&input, &metadata))) {
        Some(input) => {
            let what =
                format!("is {}, which this command reads: a report is not written there", input.display());
            Err(Error::refused(what).path(path.display()))
        }
        None => Ok(()),
    }
}

fn is_same(a: &Metadata, b: &Metadata) -> bool {
    let is_device = |metadata: &Metadata| metadata.file_type().is_block_device();
    (a.dev(), a.ino()) == (b.dev(), b.ino()) || (is_device(a) && is_device(b) && a.rdev() == b.rdev())
}

/// Writes from the beginning of a file to its end, and keeps the first failure with all that is known of it.
pub(crate) struct Appending<'a> {
    file: &'a NewFile,
    at: Offset<Host>,
    failure: Option<Error>,
}

impl Write for Appending<'_> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        if let Err(error) = self.file.write_at(self.at, buf) {
            let kind = error.io_source().map_or(IoErrorKind::Other, std::io::Error::kind);
            self.failure = Some(error);
            return Err(kind.into());
        }
        self.at = Offset::new(self.at.get() + buf.len() as u64);
        Ok(buf.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_calendar() {
        // As `date -u -d @N` says.
        let cases = [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
            (13_574_563_200, "2400-02-29 00:00 UTC"),
        ];
        for (seconds, text) in cases {
            assert_eq!(utc(seconds), text);
        }
    }
}
