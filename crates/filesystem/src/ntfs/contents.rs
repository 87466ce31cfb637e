//! What is in a file: one `$DATA` attribute, to be read as its guest reads it.
//!
//! Fails closed: what a driver would make something else of than what can be made here of the bytes that are there (encrypted, or a
//! reparse point that stands for a file which is kept elsewhere) is `Unsupported`.

use block::{Error, ReadAt, Result, read_vec};
use extent::Offset;

use super::data::of_stream;
use super::layout::{ATTR_DATA, ATTR_REPARSE_POINT, REPARSE_WOF};
use super::mft::Mft;
use super::record::{Record, RecordNumber};
use super::wof;
use crate::browse::Contents;
use crate::files::{FileId, StreamName};

/// The longest reparse point (`MAXIMUM_REPARSE_DATA_BUFFER_SIZE`).
const REPARSE_BYTES_MAX: u64 = 16 << 10;

/// Opens a stream of a file.
pub(super) fn open(mft: &Mft, file: FileId, name: StreamName<'_>) -> Result<Box<dyn Contents>> {
    let record = mft.system_record(RecordNumber(file.0))?;
    let record = record.view();
    let what = format!("NTFS file {}", file.0);
    let name = data_name(name, &what)?;
    // Other streams than the main one are what they are.
    if name.is_empty()
        && let Some(point) = reparse_point(mft, &record)?
    {
        let tag = point.first_chunk().map_or(0, |tag| u32::from_le_bytes(*tag));
        if tag != REPARSE_WOF {
            let why = "is a reparse point: what it stands for is not read";
            return Err(Error::unsupported(format!("{what} {why} (tag {tag:#010x})")));
        }
        return wof::open(mft, &record, &point);
    }
    let stream = mft.stream(&record, ATTR_DATA, name)?;
    let stream = stream.ok_or_else(|| Error::unsupported(format!("{what} has no such data to read")))?;
    of_stream(mft, stream, &what)
}

/// The reparse point of a file, with its tag in front.
pub(super) fn reparse_point(mft: &Mft, record: &Record<'_>) -> Result<Option<Vec<u8>>> {
    let Some(stream) = mft.stream(record, ATTR_REPARSE_POINT, "")? else { return Ok(None) };
    let len = stream.len_bytes();
    if len > REPARSE_BYTES_MAX {
        return Err(record.error().field("size of a reparse point", len, "at most 16 KiB"));
    }
    read_vec(&stream, Offset::ZERO, len, "NTFS reparse point").map(Some)
}

/// The attribute's name. A colon stands before the type of what is no `$DATA`.
fn data_name<'a>(name: StreamName<'a>, what: &str) -> Result<&'a str> {
    let StreamName::Named(name) = name else { return Ok("") };
    let name = std::str::from_utf8(name).ok().filter(|name| !name.contains(':') && !name.is_empty());
    name.ok_or_else(|| Error::unsupported(format!("{what}: only streams of data with proper names are read")))
}
