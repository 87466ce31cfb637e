//! Directories and files one by one.

use block::{Error, Result};
use zerocopy::FromBytes;

use super::contents::{self, reparse_point};
use super::index::Directory;
use super::layout::{
    ATTR_DATA, ATTR_STANDARD_INFORMATION, ATTRIBUTE_ENCRYPTED, FILE_ATTRIBUTE_SYSTEM, INTERIX_LINK,
    RECORD_IS_DIRECTORY, REPARSE_AF_UNIX, REPARSE_LX_BLK, REPARSE_LX_CHR, REPARSE_LX_FIFO,
    REPARSE_LX_SYMLINK, REPARSE_MOUNT_POINT, REPARSE_SYMLINK, REPARSE_WOF, StandardInformation,
};
use super::mft::Mft;
use super::names::push_utf8;
use super::record::{Attribute, FileReference, Record, RecordNumber, Value};
use super::scan::RESERVED_RECORDS;
use crate::browse::{
    Browse, Contents, EachEntry, NamedStream, Node, NodeKind, Special, TARGET_BYTES_MAX, Target, Time,
    find_in_any_case, read_short,
};
use crate::files::{FileId, StreamName};

/// 1970 counted in 100 ns from 1601.
const UNIX_EPOCH: i64 = 116_444_736_000_000_000;
/// Of those in a second.
const SECOND: i64 = 10_000_000;
/// The most streams of one file that are listed.
const STREAMS_MAX: usize = 1 << 16;

/// The files of a volume.
pub(super) struct Files<'a>(pub(super) &'a Mft);

impl Files<'_> {
    /// The main stream's length, whether it is encrypted, and the other streams.
    fn streams(&self, record: &Record<'_>) -> Result<(u64, bool, Vec<NamedStream>)> {
        let (mut size_bytes, mut is_encrypted, mut streams) = (0, false, Vec::new());
        let mut take = |attribute: &Attribute<'_>| -> Result<()> {
            let len = match attribute.value()? {
                Value::Resident(value) => value.len() as u64,
                Value::NonResident(mapped) if mapped.lowest_vcn == 0 => mapped.data_bytes,
                // A later piece of a stream.
                Value::NonResident(_) => return Ok(()),
            };
            if attribute.name().is_empty() {
                size_bytes = len;
                is_encrypted = attribute.flags() & ATTRIBUTE_ENCRYPTED != 0;
            } else if streams.len() < STREAMS_MAX {
                let mut name = Vec::new();
                push_utf8(&mut name, attribute.name());
                streams.push(NamedStream { name, size_bytes: len });
            }
            Ok(())
        };
        let list = self.0.attribute_list(record)?;
        if list.is_empty() {
            for attribute in record.attributes() {
                let attribute = attribute?;
                if attribute.kind() == ATTR_DATA {
                    take(&attribute)?;
                }
            }
        }
        for entry in list.iter().filter(|entry| entry.kind == ATTR_DATA && entry.lowest_vcn == 0) {
            let holder = self.0.listed_record(record, entry)?;
            take(&entry.find_in(&holder.view())?)?;
        }
        Ok((size_bytes, is_encrypted, streams))
    }

    /// Where a link as Interix has it leads; `None` of other files.
    fn interix_target(&self, file: FileId, size_bytes: u64) -> Result<Option<Vec<u8>>> {
        let is_long_enough = size_bytes > INTERIX_LINK.len() as u64 && size_bytes.is_multiple_of(2);
        if !is_long_enough || size_bytes > TARGET_BYTES_MAX {
            return Ok(None);
        }
        // What cannot be read is no link.
        let Ok(contents) = contents::open(self.0, file, StreamName::Main) else { return Ok(None) };
        let bytes = read_short(&*contents, TARGET_BYTES_MAX, "a symbolic link")?;
        Ok(bytes.strip_prefix(&INTERIX_LINK).map(|utf16| {
            let mut text = Vec::new();
            push_utf8(&mut text, utf16);
            text
        }))
    }

    fn names(
        &self,
        directory: FileId,
        each: &mut dyn FnMut(&[u8], FileReference) -> Result<()>,
    ) -> Result<()> {
        let record = self.0.system_record(RecordNumber(directory.0))?;
        let record = record.view();
        if record.flags() & RECORD_IS_DIRECTORY == 0 {
            return Err(Error::invalid(format!("NTFS file {} is no directory", directory.0)));
        }
        let mut text = Vec::new();
        Directory::open(self.0, &record)?.each_long_name(|file, name| {
            text.clear();
            push_utf8(&mut text, name);
            each(&text, file)
        })
    }
}

impl Browse for Files<'_> {
    fn root(&self) -> FileId {
        FileId(RecordNumber::ROOT.0)
    }

    fn node(&self, file: FileId) -> Result<Node> {
        let record = self.0.system_record(RecordNumber(file.0))?;
        let record = record.view();
        let is_directory = record.flags() & RECORD_IS_DIRECTORY != 0;
        let (size_bytes, is_encrypted, mut streams) = self.streams(&record)?;
        let point = reparse_point(self.0, &record)?;
        let tag = point.and_then(|point| point.first_chunk().map(|tag| u32::from_le_bytes(*tag)));
        let mut sealed = is_encrypted.then_some("it is encrypted (EFS)");
        let special = |special| NodeKind::Special(special);
        let kind = match tag {
            Some(REPARSE_SYMLINK | REPARSE_MOUNT_POINT | REPARSE_LX_SYMLINK) => NodeKind::Link,
            Some(REPARSE_AF_UNIX) => special(Special::Socket),
            Some(REPARSE_LX_FIFO) => special(Special::Pipe),
            // Their numbers are in an attribute of Windows' own.
            Some(REPARSE_LX_CHR | REPARSE_LX_BLK) => special(Special::Other),
            _ if is_directory => NodeKind::Directory,
            Some(REPARSE_WOF) => {
                streams.retain(|stream| stream.name != b"WofCompressedData");
                NodeKind::File
            }
            Some(_) => {
                sealed = Some("it is a reparse point, and kept elsewhere or in another form");
                NodeKind::File
            }
            None => NodeKind::File,
        };
        let information = record.find(ATTR_STANDARD_INFORMATION, "")?;
        let information = information.map(|attribute| attribute.resident()).transpose()?;
        let times = information.and_then(|value| StandardInformation::ref_from_prefix(value).ok());
        let is_of_system =
            times.is_some_and(|(raw, _)| raw.file_attributes.get() & FILE_ATTRIBUTE_SYSTEM != 0);
        let kind = match kind {
            NodeKind::File
                if is_of_system && tag.is_none() && self.interix_target(file, size_bytes)?.is_some() =>
            {
                NodeKind::Link
            }
            kind => kind,
        };
        let size_bytes = if kind == NodeKind::File { size_bytes } else { 0 };
        Ok(Node {
            modified: times.map(|(times, _)| time(times.modified.get())),
            accessed: times.map(|(times, _)| time(times.accessed.get())),
            // Names for DOS count as well, so that more than one may be one.
            link_count: record.link_count().into(),
            streams,
            sealed,
            ..Node::new(file, kind, size_bytes)
        })
    }

    fn each_entry(&self, directory: FileId, each: &mut EachEntry<'_>) -> Result<()> {
        self.names(directory, &mut |name, file| match file.number.0 < RESERVED_RECORDS {
            true => Ok(()),
            false => each(name, FileId(file.number.0)),
        })
    }

    fn find(&self, directory: FileId, name: &[u8]) -> Result<Option<FileId>> {
        // What the volume keeps for itself is not listed, but found.
        if directory == self.root() && name.starts_with(b"$") {
            let mut found = None;
            self.names(directory, &mut |entry, file| {
                if entry == name {
                    found = Some(FileId(file.number.0));
                }
                Ok(())
            })?;
            return Ok(found);
        }
        find_in_any_case(self, directory, name)
    }

    fn target(&self, file: FileId) -> Result<Target> {
        let record = self.0.system_record(RecordNumber(file.0))?;
        let record = record.view();
        let Some(point) = reparse_point(self.0, &record)? else {
            let (size_bytes, ..) = self.streams(&record)?;
            let text = self.interix_target(file, size_bytes)?;
            let wrong = || record.error().field("contents", "others", "those of a link");
            return text.map(Target::of_unix).ok_or_else(wrong);
        };
        target(&point).ok_or_else(|| record.error().field("reparse point", "broken", "that of a link"))
    }

    fn open(&self, file: FileId, name: StreamName<'_>) -> Result<Box<dyn Contents>> {
        contents::open(self.0, file, name)
    }
}

/// Where a symbolic link or a junction leads (\[MS-FSCC\] 2.1.2.4 and 2.1.2.5), or a link of the Windows subsystem for Linux.
fn target(point: &[u8]) -> Option<Target> {
    let (tag, rest) = point.split_first_chunk::<4>()?;
    let tag = u32::from_le_bytes(*tag);
    // A length, and two bytes of nothing.
    let data = rest.get(4..)?;
    if tag == REPARSE_LX_SYMLINK {
        // A version of four bytes, and the target as Linux has it.
        return Some(Target::of_unix(data.get(4..)?.to_vec()));
    }
    let number = |at: usize| {
        let bytes = data.get(at..)?.first_chunk()?;
        Some(usize::from(u16::from_le_bytes(*bytes)))
    };
    let names = data.get(if tag == REPARSE_SYMLINK { 12 } else { 8 }..)?;
    let part = |index: usize| {
        let (at, len) = (number(4 * index)?, number(4 * index + 2)?);
        let mut text = Vec::new();
        push_utf8(&mut text, names.get(at..at.checked_add(len)?)?);
        Some(text)
    };
    let (opened, shown) = (part(0)?, part(1)?);
    let is_relative = tag == REPARSE_SYMLINK && data.get(8).is_some_and(|flags| flags & 1 != 0);
    let text = if shown.is_empty() { opened.clone() } else { shown };
    let slashed = |text: &[u8]| text.iter().map(|byte| if *byte == b'\\' { b'/' } else { *byte }).collect();
    let path = is_relative.then(|| slashed(&opened));
    Some(Target { text, path })
}

fn time(raw: u64) -> Time {
    let since = raw.cast_signed().saturating_sub(UNIX_EPOCH);
    let nanoseconds = u32::try_from(since.rem_euclid(SECOND) * 100).expect("below a second");
    Time { seconds: since.div_euclid(SECOND), nanoseconds }
}
