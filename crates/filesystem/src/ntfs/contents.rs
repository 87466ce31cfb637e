//! What is in a file: one `$DATA` attribute, to be read as its guest reads it.
//!
//! Fails closed: what a driver would make something else of than the bytes that are there (compressed, encrypted, or a reparse point,
//! which may stand for a file that is kept elsewhere or in another form) is `Unsupported`.

use block::{Error, ReadAt, Result};
use extent::{File, FileOffset, Offset};

use super::layout::{ATTR_DATA, ATTR_REPARSE_POINT, ATTRIBUTE_COMPRESSION_MASK, ATTRIBUTE_SPARSE};
use super::mft::Mft;
use super::record::RecordNumber;
use super::stream::Stream;
use crate::files::{FileId, StreamName};

/// Opens a stream of a file.
pub(super) fn open(mft: &Mft, file: FileId, name: StreamName<'_>) -> Result<Box<dyn ReadAt<File>>> {
    let record = mft.system_record(RecordNumber(file.0))?;
    let record = record.view();
    let what = format!("NTFS file {}", file.0);
    if mft.has(&record, ATTR_REPARSE_POINT)? {
        return Err(Error::unsupported(format!("{what} is a reparse point: what it stands for is not read")));
    }
    let stream = mft.stream(&record, ATTR_DATA, data_name(name, &what)?)?;
    let stream = stream.ok_or_else(|| Error::unsupported(format!("{what} has no such data to read")))?;
    // A value in the record is as it is, also of a file that would be compressed elsewhere.
    let harmless = ATTRIBUTE_SPARSE | if stream.is_resident() { ATTRIBUTE_COMPRESSION_MASK } else { 0 };
    match stream.flags() & !harmless {
        0 => Ok(Box::new(Contents(stream))),
        _ => Err(Error::unsupported(format!("{what} is compressed or encrypted, and is not read"))),
    }
}

/// The attribute's name. A colon stands before the type of what is no `$DATA`.
fn data_name<'a>(name: StreamName<'a>, what: &str) -> Result<&'a str> {
    let StreamName::Named(name) = name else { return Ok("") };
    let name = std::str::from_utf8(name).ok().filter(|name| !name.contains(':'));
    name.ok_or_else(|| Error::unsupported(format!("{what}: only streams of data with proper names are read")))
}

/// A stream in the address space that all file systems share.
struct Contents(Stream);

impl ReadAt<File> for Contents {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn read_at(&self, at: FileOffset, buf: &mut [u8]) -> Result<()> {
        self.0.read_at(Offset::new(at.get()), buf)
    }
}
