//! The files in the root directory that Windows swaps and hibernates into.

use block::{ReadAt, Result, read_vec};
use extent::{ExtentSet, Offset, Volume};
use zerocopy::FromBytes;

use super::index::{Directory, name_of};
use super::layout::{
    ATTR_DATA, ATTR_FILE_NAME, ATTR_REPARSE_POINT, FILE_NAME_DOS, FileName, RECORD_IS_DIRECTORY,
    RECORD_IS_VIEW_INDEX,
};
use super::mft::Mft;
use super::record::{Attribute, FileReference, Record, RecordNumber};
use super::stream::Stream;

/// Windows' page files: their contents mean nothing once it is off.
const PAGE_FILES: [&str; 2] = ["pagefile.sys", "swapfile.sys"];

/// What Windows hibernates into.
const HIBERNATION_FILE: &str = "hiberfil.sys";

/// The header that says what a hibernation file holds.
const HEADER_BYTES: u64 = 4096;

/// What was found in the root directory.
pub(super) struct Roots {
    /// Why Windows must be taken for hibernated.
    pub(super) hibernated: Option<String>,
    /// What page files, and a hibernation file without a system, occupy.
    pub(super) swap: ExtentSet<Volume>,
    /// The records that were looked at.
    pub(super) known: Vec<RecordNumber>,
}

/// Whether a name is one that this module looks for.
pub(super) fn is_special(name: &[u8]) -> bool {
    let mut names = PAGE_FILES.iter().chain([&HIBERNATION_FILE]);
    names.any(|special| super::index::compare(name, special).is_eq())
}

/// Looks the files up.
pub(super) fn read(mft: &Mft) -> Result<Roots> {
    let root = mft.system_record(RecordNumber::ROOT)?;
    let directory = Directory::open(mft, &root.view())?;
    let mut found = Roots { hibernated: None, swap: ExtentSet::new(), known: Vec::new() };
    let mut spans = Vec::new();
    for name in PAGE_FILES {
        let Some(reference) = directory.find(name)? else { continue };
        found.known.push(reference.number);
        if let Some(stream) = plain_data(mft, reference)? {
            spans.extend(stream_spans(mft, &stream, 0));
        }
    }
    if let Some(reference) = directory.find(HIBERNATION_FILE)? {
        found.known.push(reference.number);
        found.hibernated = hibernated(mft, reference)?;
        if let (None, Some(stream)) = (&found.hibernated, plain_data(mft, reference)?) {
            // The header stays: it says that there is no hibernated system.
            spans.extend(stream_spans(mft, &stream, HEADER_BYTES.div_ceil(mft.geometry.cluster_bytes)));
        }
    }
    found.swap = spans.into_iter().collect();
    Ok(found)
}

/// Where a stream lies, without its first `skip` clusters.
pub(super) fn stream_spans(mft: &Mft, stream: &Stream, skip: u64) -> Vec<extent::VolumeSpan> {
    let runs = stream.runs().iter().filter_map(|run| {
        let cut = skip.saturating_sub(run.vcn).min(run.count);
        run.lcn.filter(|_| cut < run.count).map(|lcn| mft.geometry.span_of(lcn + cut, run.count - cut))
    });
    runs.collect()
}

/// The unnamed data of a file that is nothing but an ordinary file with one name and data as they are;
/// anything else is not what Windows makes, and is left alone.
fn plain_data(mft: &Mft, reference: FileReference) -> Result<Option<Stream>> {
    let owned = mft.base_record(reference)?;
    let record = owned.view();
    if record.flags() & (RECORD_IS_DIRECTORY | RECORD_IS_VIEW_INDEX) != 0 || !has_one_name(mft, &record)? {
        return Ok(None);
    }
    if mft.stream(&record, ATTR_REPARSE_POINT, "")?.is_some() {
        return Ok(None);
    }
    let stream = mft.stream(&record, ATTR_DATA, "")?;
    Ok(stream.filter(|stream| !stream.is_resident() && stream.flags() == 0))
}

/// Whether a file has one name, in the root directory; a DOS name beside it does not count.
fn has_one_name(mft: &Mft, record: &Record<'_>) -> Result<bool> {
    if mft
        .attribute_list(record)?
        .iter()
        .any(|entry| entry.kind == ATTR_FILE_NAME && entry.holder.number != record.number())
    {
        return Ok(false);
    }
    let mut count = 0;
    for name in file_names(record) {
        let (parent, kind, _) = name?;
        if kind != FILE_NAME_DOS {
            count += 1;
        }
        if parent.number != RecordNumber::ROOT {
            return Ok(false);
        }
    }
    Ok(count == 1)
}

/// The names in one record: the directory, the kind of name, and its UTF-16 bytes.
pub(super) fn file_names<'a>(
    record: &Record<'a>,
) -> impl Iterator<Item = Result<(FileReference, u8, &'a [u8])>> + use<'a> {
    let names = record
        .attributes()
        .filter(|attribute| attribute.as_ref().map_or(true, |attribute| attribute.kind() == ATTR_FILE_NAME));
    names.map(|attribute| file_name(&attribute?))
}

/// What a `$FILE_NAME` says: the directory, the kind of name, and its UTF-16 bytes.
pub(super) fn file_name<'a>(attribute: &Attribute<'a>) -> Result<(FileReference, u8, &'a [u8])> {
    let value = attribute.resident()?;
    let bad = || attribute.error("size", value.len(), "that of its name");
    let name = name_of(value).ok_or_else(bad)?;
    let (head, _) = FileName::ref_from_prefix(value).map_err(|_| bad())?;
    Ok((FileReference::from_raw(head.parent_directory.get()), head.file_name_type, name))
}

/// Why the hibernation file must be taken for one that holds a system; `None` if its header says otherwise.
fn hibernated(mft: &Mft, reference: FileReference) -> Result<Option<String>> {
    let owned = mft.base_record(reference)?;
    let Some(stream) = mft.stream(&owned.view(), ATTR_DATA, "")? else {
        return Ok(Some(format!("{HIBERNATION_FILE} has no data")));
    };
    if stream.flags() != 0 || stream.len_bytes() < HEADER_BYTES {
        return Ok(Some(format!("{HIBERNATION_FILE} has no readable header")));
    }
    let header = read_vec(&stream, Offset::ZERO, HEADER_BYTES, HIBERNATION_FILE)?;
    Ok(judge(&header))
}

/// `hibr`: a system is hibernated. `wake`: it was resumed. Zeros: resumed, or never used. `RSTR` was seen
/// while a resume was under way, and is as unsafe as anything that is not known.
fn judge(header: &[u8]) -> Option<String> {
    let magic = header.get(..4).unwrap_or_default();
    if magic.eq_ignore_ascii_case(b"wake") || header.iter().all(|byte| *byte == 0) {
        return None;
    }
    if magic.eq_ignore_ascii_case(b"hibr") {
        return Some(format!("{HIBERNATION_FILE} holds a hibernated system"));
    }
    Some(format!(
        "{HIBERNATION_FILE} begins with \"{}\", which may be a hibernated system",
        magic.escape_ascii()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_known_header_means_awake() {
        let header = |magic: &[u8]| {
            let mut header = vec![1; 4096];
            header[..4].copy_from_slice(magic);
            header
        };
        assert_eq!(judge(&header(b"wake")), None);
        assert_eq!(judge(&header(b"WAKE")), None);
        assert_eq!(judge(&[0; 4096]), None);
        assert_eq!(judge(&header(b"HIBR")).unwrap(), "hiberfil.sys holds a hibernated system");
        for magic in [b"hibr", b"RSTR", b"link", b"\0\0\0\0"] {
            assert!(judge(&header(magic)).is_some(), "{magic:?}");
        }
    }

    #[test]
    fn special_names_are_found_in_any_case() {
        let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>();
        assert!(is_special(&utf16("PAGEFILE.SYS")) && is_special(&utf16("hiberfil.sys")));
        assert!(!is_special(&utf16("pagefile.sys2")));
    }
}
