//! The descriptor: the text that says which extents make a disk, and whose child it is.
//!
//! Its text is untrusted: keys that decide what is read must not contradict each other, and file names are
//! handed on as they are, for the resolver to judge.

use block::{Error, Result};

use super::corrupt::Corrupt;

/// The longest text read. VMware's are below 10 KiB; a disk of thousands of extents stays below this.
pub(super) const LEN_BYTES_MAX: u64 = 1 << 20;
/// The most extents: 8 TiB in pieces of 2 GiB.
const EXTENT_COUNT_MAX: usize = 4096;
/// The content ID that stands for "no parent".
const CID_NONE: u32 = 0xffff_ffff;

/// A descriptor, its contradictions ruled out.
#[derive(Clone, Debug)]
pub(super) struct Descriptor {
    /// `createType`: the variant in VMware's words.
    pub create_type: String,
    /// `CID`: changes with the contents.
    pub cid: Option<u32>,
    /// The parent, if it is a delta.
    pub parent: Option<Parent>,
    /// The disk's parts in order.
    pub extents: Vec<ExtentLine>,
    /// The values kept for people: key and value.
    pub facts: Vec<(&'static str, String)>,
    /// The disk is encrypted: the key that says so.
    pub encryption: Option<String>,
}

/// What a delta says of its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parent {
    /// `parentCID`.
    pub cid: u32,
    /// `parentFileNameHint`.
    pub name: Option<String>,
}

/// One line of the extent description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExtentLine {
    /// Sectors of the virtual disk.
    pub sector_count: u64,
    /// What holds them.
    pub kind: ExtentKind,
    /// The file's name, if there is a file.
    pub name: String,
    /// Sector in the file, for flat extents.
    pub offset: u64,
    /// `RDONLY`: the guest must not write to it.
    pub is_read_only: bool,
}

/// The extent types that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExtentKind {
    /// `FLAT`, `VMFS`: the sectors as they are.
    Flat,
    /// `SPARSE`, `VMFSSPARSE`: a hosted or an ESX server sparse extent, as its magic number says.
    Sparse,
    /// `SESPARSE`.
    SeSparse,
    /// `ZERO`: no file.
    Zero,
}

/// `bytes`, a descriptor, with another content ID in the same number of digits, of which `random` are the lower ones; and
/// with it in the lower half of the long content ID, where it was there too. `None` if it has no content ID.
///
/// The same length is what makes it a change in place: where the descriptor is embedded, data follows it.
pub(super) fn with_new_cid(bytes: &[u8], random: u32) -> Result<Option<Vec<u8>>> {
    let before = parse(bytes)?;
    let Some(old) = before.cid else { return Ok(None) };
    let mut after = bytes.to_vec();
    for (key, digits) in values(bytes) {
        let text = &bytes[digits.clone()];
        let is_long = key.eq_ignore_ascii_case(b"ddb.longContentID")
            && text.len() == 32
            && text[24..].eq_ignore_ascii_case(format!("{old:08x}").as_bytes());
        let range = match () {
            () if key.eq_ignore_ascii_case(b"cid") => digits,
            () if is_long => digits.start + 24..digits.end,
            () => continue,
        };
        let new = format!("{:08x}", new_cid(old, random, range.len()));
        // No more digits than 8 fit a content ID, but zeros may be before them.
        let padded = format!("{new:0>width$}", width = range.len());
        after[range.clone()].copy_from_slice(&padded.as_bytes()[padded.len() - range.len()..]);
    }
    let told = parse(&after)?;
    let is_as_before = told.cid.is_some_and(|cid| cid != old && cid != CID_NONE)
        && told.extents == before.extents
        && told.parent == before.parent;
    if is_as_before { Ok(Some(after)) } else { Err(Error::unsupported("VMDK content ID in an unusual form")) }
}

/// `random` in at most `digits` digits, but neither `old` nor "no parent".
fn new_cid(old: u32, random: u32, digits: usize) -> u32 {
    let mask = if digits >= 8 { u32::MAX } else { (1 << (4 * digits)) - 1 };
    let others = (0..4).map(|step| random.wrapping_add(step) & mask);
    others.into_iter().find(|cid| *cid != old && *cid != CID_NONE).unwrap_or(0)
}

/// The keys of a descriptor, and where their values lie in it, quotes left out.
fn values(bytes: &[u8]) -> impl Iterator<Item = (&[u8], std::ops::Range<usize>)> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let start_of = move |part: &[u8]| part.as_ptr().addr() - bytes.as_ptr().addr();
    without_mark(&bytes[..end]).split(|byte| *byte == b'\n').filter_map(move |line| {
        let line = line.trim_ascii();
        if line.starts_with(b"#") || is_extent_line(line) {
            return None;
        }
        let (key, value) = split_assignment(line)?;
        let value = unquoted(value);
        let start = start_of(value);
        Some((key, start..start + value.len()))
    })
}

/// Whether `bytes`, the beginning of a file, begin like a descriptor: comments and empty lines, then a version;
/// and the key that every descriptor has and no other text.
pub(super) fn looks_like_one(bytes: &[u8]) -> bool {
    if !contains(&bytes.to_ascii_lowercase(), b"createtype") {
        return false;
    }
    for line in without_mark(bytes).split(|byte| *byte == b'\n') {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let Some((key, _)) = split_assignment(line) else { return false };
        return key.eq_ignore_ascii_case(b"version") || key.eq_ignore_ascii_case(b"encoding");
    }
    false
}

fn split_assignment(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = line.iter().position(|byte| *byte == b'=')?;
    Some((line[..at].trim_ascii(), line[at + 1..].trim_ascii()))
}

/// Editors may put a byte-order mark before UTF-8.
fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// Parses a descriptor. Bytes after a NUL are padding.
pub(super) fn parse(bytes: &[u8]) -> Result<Descriptor> {
    let bytes = without_mark(bytes);
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let mut keys = Keys::default();
    let mut extent_lines = Vec::new();
    for (index, line) in bytes[..end].split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        if is_extent_line(line) {
            if extent_lines.len() == EXTENT_COUNT_MAX {
                return Err(Error::unsupported(format!(
                    "VMDK descriptor of more than {EXTENT_COUNT_MAX} extents"
                )));
            }
            extent_lines.push((index + 1, line));
        } else if let Some((key, value)) = split_assignment(line) {
            keys.take(key, unquoted(value))?;
        } else {
            return Err(Error::corrupt(Corrupt::Descriptor).field(
                format!("line {}", index + 1),
                shown(line),
                "a comment, key=value or an extent",
            ));
        }
    }
    let encoding = keys.encoding.clone().unwrap_or_default();
    let extents = extent_lines
        .into_iter()
        .map(|(number, line)| parse_extent(number, line, &encoding))
        .collect::<Result<_>>()?;
    keys.into_descriptor(extents)
}

/// The keys that matter, undecoded.
#[derive(Default)]
struct Keys {
    version: Option<Vec<u8>>,
    encoding: Option<Vec<u8>>,
    cid: Option<Vec<u8>>,
    parent_cid: Option<Vec<u8>>,
    parent_name: Option<Vec<u8>>,
    create_type: Option<Vec<u8>>,
    encryption: Option<String>,
    facts: Vec<(&'static str, String)>,
}

impl Keys {
    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let lower = String::from_utf8_lossy(key).to_ascii_lowercase();
        let slot = match lower.as_str() {
            "version" => &mut self.version,
            "encoding" => &mut self.encoding,
            "cid" => &mut self.cid,
            "parentcid" => &mut self.parent_cid,
            "parentfilenamehint" => &mut self.parent_name,
            "createtype" => &mut self.create_type,
            other => {
                self.note(other, value);
                return Ok(());
            }
        };
        match slot {
            Some(known) if known != value => Err(Error::corrupt(Corrupt::KeyTwice).field(
                lower,
                shown(value),
                format!("{}, as before", shown(known)),
            )),
            _ => {
                *slot = Some(value.to_vec());
                Ok(())
            }
        }
    }

    fn note(&mut self, key: &str, value: &[u8]) {
        let label = match key {
            "ddb.adaptertype" => "adapter",
            "ddb.virtualhwversion" => "hardware version",
            "ddb.uuid" | "ddb.uuid.image" => "UUID",
            "ddb.longcontentid" => "long content ID",
            "changetrackpath" => "change tracking",
            "ddb.thinprovisioned" => "thin provisioned",
            _ if key.starts_with("encryption.") => {
                self.encryption.get_or_insert_with(|| key.to_owned());
                return;
            }
            "ddb.iofilters" if contains(&value.to_ascii_lowercase(), b"crypt") => {
                self.encryption.get_or_insert_with(|| key.to_owned());
                return;
            }
            _ => return,
        };
        if !self.facts.iter().any(|(known, _)| *known == label) {
            self.facts.push((label, shown(value)));
        }
    }

    fn into_descriptor(self, extents: Vec<ExtentLine>) -> Result<Descriptor> {
        check_version(self.version.as_deref())?;
        let encoding = self.encoding.unwrap_or_default();
        let parent_name = self.parent_name.map(|name| decode(&name, &encoding)).transpose()?;
        let parent_cid = parse_cid("parentCID", self.parent_cid.as_deref())?;
        let cid = parse_cid("CID", self.cid.as_deref())?;
        Ok(Descriptor {
            create_type: self.create_type.map_or_else(|| "custom".into(), |text| shown(&text)),
            cid,
            parent: parent(parent_cid, parent_name)?,
            extents,
            facts: self.facts,
            encryption: self.encryption,
        })
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn check_version(version: Option<&[u8]>) -> Result<()> {
    match version {
        Some(b"1" | b"2" | b"3") => Ok(()),
        Some(other) => Err(Error::unsupported("VMDK descriptor").field("version", shown(other), "1 to 3")),
        None => Err(Error::corrupt(Corrupt::Descriptor).field("version", "absent", "1 to 3")),
    }
}

fn parse_cid(key: &str, value: Option<&[u8]>) -> Result<Option<u32>> {
    let Some(value) = value else { return Ok(None) };
    let cid = std::str::from_utf8(value).ok().and_then(|text| u32::from_str_radix(text, 16).ok());
    match cid {
        Some(cid) => Ok(Some(cid)),
        None => {
            Err(Error::corrupt(Corrupt::Descriptor).field(key, shown(value), "up to 8 hexadecimal digits"))
        }
    }
}

/// A name without an ID, or a name beside "no parent", is a doubt whether holes read as zeros.
fn parent(cid: Option<u32>, name: Option<String>) -> Result<Option<Parent>> {
    match (cid, name) {
        (None | Some(CID_NONE), None) => Ok(None),
        (None | Some(CID_NONE), Some(name)) => Err(Error::corrupt(Corrupt::ParentAndNone).field(
            "parentFileNameHint",
            name,
            "a parentCID beside it other than ffffffff",
        )),
        (Some(cid), name) => Ok(Some(Parent { cid, name })),
    }
}

fn is_extent_line(line: &[u8]) -> bool {
    let word = line.split(u8::is_ascii_whitespace).next().unwrap_or_default();
    [&b"RW"[..], b"RDONLY", b"NOACCESS"].iter().any(|access| word.eq_ignore_ascii_case(access))
        && line.len() > word.len()
        && !line[word.len()..].trim_ascii().starts_with(b"=")
}

fn parse_extent(number: usize, line: &[u8], encoding: &[u8]) -> Result<ExtentLine> {
    let bad = |expected: &str| {
        Error::corrupt(Corrupt::ExtentDescription).field(format!("line {number}"), shown(line), expected)
    };
    let form = "access, sectors, type, \"name\" and offset";
    let (access, rest) = next_word(line).ok_or_else(|| bad(form))?;
    let (sectors, rest) = next_word(rest).ok_or_else(|| bad(form))?;
    let (kind, rest) = next_word(rest).ok_or_else(|| bad(form))?;
    let sector_count =
        parse_u64(sectors).filter(|count| *count > 0).ok_or_else(|| bad("a count of sectors"))?;
    let kind = parse_kind(kind)?;
    let (name, offset) = match kind {
        ExtentKind::Zero => (String::new(), 0),
        _ => parse_place(rest, encoding)?.ok_or_else(|| bad(form))?,
    };
    if access.eq_ignore_ascii_case(b"NOACCESS") && kind != ExtentKind::Zero {
        return Err(Error::unsupported(format!("VMDK extent '{name}' that the disk bars (NOACCESS)")));
    }
    if offset != 0 && kind != ExtentKind::Flat {
        return Err(bad("an offset for flat extents alone"));
    }
    let is_read_only = !access.eq_ignore_ascii_case(b"RW");
    Ok(ExtentLine { sector_count, kind, name, offset, is_read_only })
}

fn parse_kind(word: &[u8]) -> Result<ExtentKind> {
    Ok(match word.to_ascii_uppercase().as_slice() {
        b"FLAT" | b"VMFS" => ExtentKind::Flat,
        b"SPARSE" | b"VMFSSPARSE" => ExtentKind::Sparse,
        b"SESPARSE" => ExtentKind::SeSparse,
        b"ZERO" => ExtentKind::Zero,
        b"VMFSRAW" | b"VMFSRDM" | b"VMFSRDMP" => {
            return Err(Error::unsupported(format!("VMDK extent of type {}", shown(word)))
                .hint("it stands for a device of an ESX host; copy that device instead"));
        }
        _ => {
            return Err(Error::unsupported("VMDK extent").field(
                "type",
                shown(word),
                "FLAT, SPARSE, ZERO, VMFS, VMFSSPARSE or SESPARSE",
            ));
        }
    })
}

/// The quoted name, which may itself hold quotes, and the number after it (0 if there is none).
fn parse_place(rest: &[u8], encoding: &[u8]) -> Result<Option<(String, u64)>> {
    let Some(quoted) = rest.strip_prefix(b"\"") else { return Ok(None) };
    let Some(end) = quoted.iter().rposition(|byte| *byte == b'"') else { return Ok(None) };
    let after = quoted[end + 1..].trim_ascii();
    let offset = if after.is_empty() { Some(0) } else { parse_u64(after) };
    if end == 0 {
        return Ok(None);
    }
    let name = decode(&quoted[..end], encoding)?;
    Ok(offset.map(|offset| (name, offset)))
}

fn next_word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = text.trim_ascii_start();
    let len = text.iter().position(u8::is_ascii_whitespace).unwrap_or(text.len());
    (len > 0).then(|| (&text[..len], text[len..].trim_ascii_start()))
}

fn parse_u64(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).map_or(value, <[u8]>::trim_ascii)
}

/// For messages: at most 200 characters.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().take(200).collect()
}

/// A file name in the descriptor's encoding. Text that is UTF-8 is taken for it, whatever the descriptor says:
/// the other encodings all but never look like it by chance.
fn decode(bytes: &[u8], encoding: &[u8]) -> Result<String> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Ok(text.to_owned());
    }
    let name = shown(encoding).to_ascii_lowercase();
    match name.as_str() {
        "windows-1252" | "iso-8859-1" => Ok(bytes.iter().map(|byte| from_windows_1252(*byte)).collect()),
        _ => Err(Error::unsupported("file name in a VMDK descriptor").field(
            "encoding",
            if name.is_empty() { "not stated" } else { &name },
            "UTF-8 or windows-1252",
        )),
    }
}

/// The 32 characters in which Windows-1252 differs from Latin-1 (WHATWG Encoding Standard, windows-1252 index).
fn from_windows_1252(byte: u8) -> char {
    const HIGH: [u16; 32] = [
        0x20ac, 0x81, 0x201a, 0x0192, 0x201e, 0x2026, 0x2020, 0x2021, 0x02c6, 0x2030, 0x0160, 0x2039, 0x0152,
        0x8d, 0x017d, 0x8f, 0x90, 0x2018, 0x2019, 0x201c, 0x201d, 0x2022, 0x2013, 0x2014, 0x02dc, 0x2122,
        0x0161, 0x203a, 0x0153, 0x9d, 0x017e, 0x0178,
    ];
    match byte {
        0x80..=0x9f => char::from_u32(u32::from(HIGH[usize::from(byte - 0x80)])).unwrap_or('\u{fffd}'),
        _ => char::from(byte),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    const GOOD: &str = "# Disk DescriptorFile\r\nversion=1 \r\nencoding=\"UTF-8\"\nCID=a454774a\nparentCID=ffffffff\n\
        createType=\"twoGbMaxExtentFlat\"\n\n# Extents\nRW 4192256 FLAT \"a disk-f001.vmdk\" 0\n\
        RDONLY 63 flat \"q\"uoted.vmdk\" 128\nRW 100 ZERO\nNOACCESS 10 ZERO \n#DDB\nddb.adapterType = \"lsilogic\"\n";

    #[test]
    fn a_descriptor_with_everything() {
        let descriptor = parse(format!("{GOOD}\0\0 rubbish").as_bytes()).unwrap();
        assert_eq!(descriptor.create_type, "twoGbMaxExtentFlat");
        assert_eq!(descriptor.cid, Some(0xa454_774a));
        assert_eq!(descriptor.parent, None);
        assert_eq!(descriptor.facts, [("adapter", "lsilogic".to_owned())]);
        let names: Vec<_> =
            descriptor.extents.iter().map(|extent| (&extent.name[..], extent.offset)).collect();
        assert_eq!(names, [("a disk-f001.vmdk", 0), ("q\"uoted.vmdk", 128), ("", 0), ("", 0)]);
        assert!(looks_like_one(GOOD.as_bytes()));
        let marked = format!("\u{feff}{GOOD}");
        assert!(looks_like_one(marked.as_bytes()) && parse(marked.as_bytes()).is_ok());
        assert!(!looks_like_one(b"# settings of something\nversion=1\n"));
    }

    fn kind_of(from: &str, to: &str) -> ErrorKind {
        assert!(GOOD.contains(from));
        parse(GOOD.replace(from, to).as_bytes()).unwrap_err().kind()
    }

    #[test]
    fn contradictions_are_told() {
        assert_eq!(kind_of("version=1", "version=7"), ErrorKind::Unsupported);
        assert_eq!(kind_of("version=1", "versio=1"), ErrorKind::Corrupt);
        assert_eq!(kind_of("CID=a454774a", "CID=no"), ErrorKind::Corrupt);
        assert_eq!(kind_of("CID=a454774a", "CID=1\nCID=2"), ErrorKind::Corrupt);
        assert_eq!(kind_of("# Extents", "parentFileNameHint=\"b.vmdk\""), ErrorKind::Corrupt);
        assert_eq!(kind_of("RW 4192256", "RW -1"), ErrorKind::Corrupt);
        assert_eq!(kind_of("RW 4192256", "RW 0"), ErrorKind::Corrupt);
        assert_eq!(kind_of("RW 4192256", "NOACCESS 1"), ErrorKind::Unsupported);
        assert_eq!(kind_of("RW 100 ZERO", "RW 100 VMFSRDM \"x\""), ErrorKind::Unsupported);
        assert_eq!(kind_of("RW 100 ZERO", "RW 100 NEW \"x\""), ErrorKind::Unsupported);
        assert_eq!(kind_of("\" 0\n", "\" zero\n"), ErrorKind::Corrupt);
        assert_eq!(kind_of("\"a disk-f001.vmdk\"", "a"), ErrorKind::Corrupt);
        assert_eq!(kind_of("# Extents", "what is this"), ErrorKind::Corrupt);
        assert_eq!(kind_of("# Extents", &"RW 1 ZERO\n".repeat(5000)), ErrorKind::Unsupported);
    }

    #[test]
    fn a_delta_names_its_parent() {
        let text = GOOD.replace("parentCID=ffffffff", "parentCID=1f\nparentFileNameHint=\"../b ase.vmdk\"");
        let parent = parse(text.as_bytes()).unwrap().parent.unwrap();
        assert_eq!(parent, Parent { cid: 0x1f, name: Some("../b ase.vmdk".into()) });
    }

    #[test]
    fn names_in_other_encodings() {
        assert_eq!(decode(b"caf\xe9 \x80.vmdk", b"windows-1252").unwrap(), "caf\u{e9} \u{20ac}.vmdk");
        assert_eq!(decode("caf\u{e9}".as_bytes(), b"windows-1252").unwrap(), "caf\u{e9}");
        assert_eq!(decode(b"\x82\xa0", b"Shift_JIS").unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_new_content_id_takes_the_place_of_the_old() {
        let long = "ddb.longContentID = \"0123456789abcdef01234567a454774a\"";
        let cases = [
            ("", GOOD.to_owned(), 0x1234_5678, Some(("CID=a454774a", "CID=12345678"))),
            ("old", GOOD.to_owned(), 0xa454_774a, Some(("CID=a454774a", "CID=a454774b"))),
            ("none", GOOD.to_owned(), 0xffff_ffff, Some(("CID=a454774a", "CID=00000000"))),
            ("short", GOOD.replace("CID=a454774a", "CID= \"a4\" "), 0x1234_5678, Some(("\"a4\"", "\"78\""))),
            ("zeros", GOOD.replace("CID=a4", "cid=0000a4"), 1, Some(("0000a454774a", "000000000001"))),
            ("absent", GOOD.replace("\nCID=a454774a", ""), 1, None),
        ];
        for (name, text, random, expected) in cases {
            let found = with_new_cid(format!("{text}\0rest").as_bytes(), random).unwrap();
            let expected =
                expected.map(|(old, new)| format!("{}\0rest", text.replacen(old, new, 1)).into_bytes());
            assert!(found == expected, "{name}: {}", shown(&found.unwrap_or_default()));
        }
        let text = GOOD.replace("#DDB", long);
        let found = with_new_cid(text.as_bytes(), 0x00c0_ffee).unwrap().unwrap();
        assert_eq!(found, text.replace("a454774a", "00c0ffee").as_bytes());
        let other = text.replace("34567a454774a", "34567a454774b");
        let found = with_new_cid(other.as_bytes(), 0x00c0_ffee).unwrap().unwrap();
        assert_eq!(found, other.replace("a454774a", "00c0ffee").as_bytes());
    }

    #[test]
    fn encryption_is_seen() {
        for line in ["encryption.keySafe = \"vmware:key\"", "ddb.iofilters = \"VMW_vmwarevmcrypt\""] {
            let text = GOOD.replace("# Extents", line);
            assert!(parse(text.as_bytes()).unwrap().encryption.is_some(), "{line}");
        }
    }
}
