//! A tar archive, read where it lies: its members by name. USTAR, pax and GNU's long names and large sizes.
//!
//! Invariant: every member lies within the archive, and no two have one name. Links, devices and files with holes are refused.

use block::{Error, HostFile, Result, read_vec};
use extent::{Host, HostOffset, HostSpan, Span};

use crate::corrupt::Corrupt;
use crate::layout::*;

/// The most headers that are read. An appliance has a few members.
const HEADER_COUNT_MAX: usize = 1024;
/// The longest extended header, or long name.
const EXTENDED_BYTES_MAX: u64 = 64 << 10;
/// The longest name of a member.
const NAME_BYTES_MAX: usize = 1024;

/// A file of an archive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its path within the archive, relative and without `..`.
    pub name: String,
    /// Where its contents lie.
    pub span: HostSpan,
}

/// The files of an archive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Archive {
    members: Vec<Member>,
}

impl Archive {
    /// Reads all headers.
    pub fn read(file: &dyn HostFile) -> Result<Self> {
        let mut members: Vec<Member> = Vec::new();
        let mut headers = Headers { file, at: 0, seen: 0 };
        while let Some(member) = headers.next_member()? {
            if members.iter().any(|known| known.name == member.name) {
                return Err(Error::corrupt(Corrupt::MemberTwice { name: member.name }));
            }
            members.push(member);
        }
        Ok(Self { members })
    }

    /// In the archive's order.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The member of that name.
    pub fn member(&self, name: &str) -> Option<&Member> {
        let name = name.strip_prefix("./").unwrap_or(name);
        self.members.iter().find(|member| member.name == name)
    }

    /// The one descriptor.
    pub fn descriptor(&self) -> Result<&Member> {
        let mut found = self.members.iter().filter(|member| has_extension(&member.name, "ovf"));
        match (found.next(), found.next()) {
            (None, _) => Err(Error::corrupt(Corrupt::NoDescriptor)),
            (Some(descriptor), None) => Ok(descriptor),
            (Some(first), Some(second)) => Err(Error::corrupt(Corrupt::SeveralDescriptors {
                first: first.name.clone(),
                second: second.name.clone(),
            })),
        }
    }

    /// The manifest that belongs to the descriptor: `NAME.mf` of `NAME.ovf`.
    pub fn manifest(&self) -> Result<Option<&Member>> {
        Ok(self.member(&beside(&self.descriptor()?.name, "mf")))
    }

    /// Whether it is signed. Signatures are not looked at.
    pub fn has_certificate(&self) -> bool {
        self.members.iter().any(|member| has_extension(&member.name, "cert"))
    }
}

/// The name of a file with another extension.
pub(crate) fn beside(descriptor: &str, extension: &str) -> String {
    let stem = descriptor.rsplit_once('.').map_or(descriptor, |(stem, _)| stem);
    format!("{stem}.{extension}")
}

fn has_extension(name: &str, extension: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, found)| found.eq_ignore_ascii_case(extension))
}

/// What extended headers say of the member behind them.
#[derive(Default)]
struct Extended {
    name: Option<Vec<u8>>,
    len_bytes: Option<u64>,
}

struct Headers<'a> {
    file: &'a dyn HostFile,
    at: u64,
    seen: usize,
}

impl Headers<'_> {
    /// The next file; `None` at the end. Each step moves on by a header at the least.
    fn next_member(&mut self) -> Result<Option<Member>> {
        let mut extended = Extended::default();
        loop {
            let at = HostOffset::new(self.at);
            if self.at == self.file.len_bytes() {
                return Ok(None);
            }
            let header = read_vec(self.file, at, BLOCK_BYTES, "tar header")?;
            if header.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            self.seen += 1;
            if self.seen > HEADER_COUNT_MAX {
                return Err(Error::corrupt(Corrupt::TooManyMembers { max: HEADER_COUNT_MAX }));
            }
            check_sum(&header).map_err(|error| error.at(at))?;
            let kind = header[TYPE];
            let has_contents = !matches!(kind, b'1'..=b'6');
            let stated = number(&header[SIZE], "size").map_err(|error| error.at(at))?;
            let len_bytes = extended.len_bytes.take().unwrap_or(stated);
            let name = extended.name.take().unwrap_or_else(|| header_name(&header));
            let span = self.contents(&name, if has_contents { len_bytes } else { 0 })?;
            match kind {
                TYPE_FILE | TYPE_OLD_FILE | TYPE_CONTIGUOUS => {
                    return Ok(Some(Member { name: checked_name(&name)?, span }));
                }
                TYPE_FOLDER | TYPE_GLOBAL => {}
                TYPE_EXTENDED => read_records(&self.extended(span)?, &mut extended)?,
                TYPE_LONG_NAME => extended.name = Some(until_zero(&self.extended(span)?).to_vec()),
                TYPE_LONG_LINK | b'1' | b'2' => return Err(refused(&name, "is a link")),
                b'3' | b'4' | b'6' => return Err(refused(&name, "is a device or a pipe")),
                TYPE_SPARSE => return Err(sparse(&name)),
                other => {
                    let kind = char::from(other);
                    let what = format!("member '{}' of the type '{}'", shown(&name), kind.escape_default());
                    return Err(Error::unsupported(what).at(at));
                }
            }
        }
    }

    /// Where the contents behind the header lie; goes on behind them.
    fn contents(&mut self, name: &[u8], len_bytes: u64) -> Result<HostSpan> {
        let start = self.at + BLOCK_BYTES;
        let end = start.checked_add(len_bytes).filter(|end| *end <= self.file.len_bytes());
        let Some(end) = end else {
            return Err(Error::corrupt(Corrupt::MemberPastEnd { name: shown(name), len_bytes })
                .at(HostOffset::new(self.at)));
        };
        // The last blocks may lack what fills them up.
        self.at = end.next_multiple_of(BLOCK_BYTES).min(self.file.len_bytes());
        Ok(Span::new(HostOffset::new(start), len_bytes))
    }

    fn extended(&self, span: HostSpan) -> Result<Vec<u8>> {
        if span.len_bytes() > EXTENDED_BYTES_MAX {
            return Err(broken_record("it is too long"));
        }
        read_vec::<Host>(self.file, span.start(), span.len_bytes(), "tar extended header")
    }
}

/// The records of a pax header.
fn read_records(mut bytes: &[u8], extended: &mut Extended) -> Result<()> {
    while !bytes.is_empty() {
        let space = bytes.iter().position(|byte| *byte == b' ').ok_or_else(|| broken_record("no length"))?;
        let length = std::str::from_utf8(&bytes[..space]).ok().and_then(|text| text.parse::<usize>().ok());
        let record = length
            .filter(|length| *length > space + 1 && *length <= bytes.len())
            .map(|length| bytes.split_at(length))
            .ok_or_else(|| broken_record("a length that is none"))?;
        let (record, rest) = record;
        let record =
            record[space + 1..].strip_suffix(b"\n").ok_or_else(|| broken_record("no end of line"))?;
        let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(|| broken_record("no value"))?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        match key {
            b"path" => extended.name = Some(value.to_vec()),
            b"size" => {
                let size = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                extended.len_bytes = Some(size.ok_or_else(|| broken_record("a size that is no number"))?);
            }
            _ if key.starts_with(b"GNU.sparse") => return Err(sparse(b"")),
            _ => {}
        }
        bytes = rest;
    }
    Ok(())
}

fn broken_record(why: &'static str) -> Error {
    Error::corrupt(Corrupt::ExtendedHeader { why })
}

fn refused(name: &[u8], why: &'static str) -> Error {
    Error::refused(Corrupt::MemberName { name: shown(name), why })
}

fn sparse(name: &[u8]) -> Error {
    Error::unsupported(format!("member '{}', which tar stored with holes", shown(name)))
}

fn check_sum(header: &[u8]) -> Result<()> {
    let found = number(&header[CHECKSUM], "checksum")?;
    let expected = sum(header);
    if found == expected { Ok(()) } else { Err(Error::corrupt(Corrupt::HeaderChecksum { found, expected })) }
}

/// The checksum of a header.
pub(crate) fn sum(header: &[u8]) -> u64 {
    let bytes = header.iter().enumerate();
    bytes.map(|(at, byte)| u64::from(if CHECKSUM.contains(&at) { b' ' } else { *byte })).sum()
}

/// Octal digits with spaces or zero bytes around them, or a binary number.
fn number(field: &[u8], name: &'static str) -> Result<u64> {
    let wrong = || Error::corrupt(Corrupt::HeaderNumber { field: name });
    if field[0] & 0x80 != 0 {
        let (high, low) = field.split_at(field.len() - 8);
        // More than 64 bits, or a negative number.
        if high.iter().enumerate().any(|(at, byte)| *byte != if at == 0 { 0x80 } else { 0 }) {
            return Err(wrong());
        }
        return Ok(u64::from_be_bytes(low.try_into().expect("eight bytes")));
    }
    let text = std::str::from_utf8(field).map_err(|_| wrong())?.trim_matches([' ', '\0']);
    if text.is_empty() {
        return Ok(0);
    }
    u64::from_str_radix(text, 8).map_err(|_| wrong())
}

fn header_name(header: &[u8]) -> Vec<u8> {
    let name = until_zero(&header[NAME]);
    let prefix = until_zero(&header[PREFIX]);
    if header[MAGIC] != *b"ustar\0" || prefix.is_empty() {
        return name.to_vec();
    }
    [prefix, b"/", name].concat()
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// A name that is a relative path, and stays one wherever it is put.
fn checked_name(name: &[u8]) -> Result<String> {
    let wrong = |why| Error::corrupt(Corrupt::MemberName { name: shown(name), why });
    let text = std::str::from_utf8(name).map_err(|_| wrong("has a name that is no text in UTF-8"))?;
    let text = text.strip_prefix("./").unwrap_or(text);
    if text.is_empty() || text.len() > NAME_BYTES_MAX {
        return Err(wrong("has no name, or one that is too long"));
    }
    if text.chars().any(char::is_control) {
        return Err(wrong("has control characters in its name"));
    }
    if text.starts_with('/') || text.split('/').any(|part| part == "..") {
        return Err(wrong("has a name that leads out of the archive"));
    }
    if text.split('/').any(|part| part.is_empty() || part == ".") {
        return Err(wrong("has a name with empty parts"));
    }
    Ok(text.to_owned())
}

fn shown(name: &[u8]) -> String {
    let name = &name[..name.len().min(NAME_BYTES_MAX)];
    String::from_utf8_lossy(name)
        .chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect()
}
