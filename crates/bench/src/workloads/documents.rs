//! Documents as offices write them: a ZIP with text in XML and a picture.
//!
//! Source: APPNOTE.TXT 6.3.3 of PKWARE (local headers, central directory, end of it); no more of it than office programs use.

use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

use crate::content::Random;

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const LOCAL_BYTES: usize = 30;
const CENTRAL_BYTES: usize = 46;
const END_BYTES: usize = 22;
const STORED: u16 = 0;
const DEFLATED: u16 = 8;
/// No part of a document unfolds to more than that.
const PART_BYTES_MAX: u64 = 256 << 20;

const WORDS: [&str; 16] = [
    "disk", "report", "of", "the", "quarter", "figure", "is", "and", "growth", "table", "see", "below",
    "costs", "plan", "next", "year",
];

/// A document of about so many bytes.
pub(super) fn document(bytes: u64, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let half = usize::try_from(bytes / 2).unwrap_or(1 << 20).max(512);
    let picture: Vec<u8> = (0..half / 8).flat_map(|_| random.next().to_le_bytes()).collect();
    let text = paragraphs(half, &mut random);
    let mut zip = Zip::default();
    zip.push("word/document.xml", text.as_bytes(), DEFLATED);
    zip.push("word/media/image1.png", &picture, STORED);
    zip.finish()
}

/// Text that packs to about `packed_bytes`.
fn paragraphs(packed_bytes: usize, random: &mut Random) -> String {
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?><w:document><w:body>");
    // A word of sixteen and a number of 32 bits pack to about seven bytes.
    let mut left = packed_bytes / 7;
    while left > 0 {
        text.push_str("<w:p><w:r><w:t>");
        for _ in 0..left.min(40) {
            let number = random.next();
            let word = WORDS[usize::try_from(number % 16).unwrap_or(0)];
            text.push_str(word);
            text.push_str(&format!(" {:x} ", number >> 32));
        }
        left = left.saturating_sub(40);
        text.push_str("</w:t></w:r></w:p>");
    }
    text.push_str("</w:body></w:document>");
    text
}

#[derive(Default)]
struct Zip {
    out: Vec<u8>,
    central: Vec<u8>,
    count: u16,
}

impl Zip {
    fn push(&mut self, name: &str, bytes: &[u8], method: u16) {
        let packed = if method == DEFLATED { deflated(bytes) } else { bytes.to_vec() };
        let offset = u32::try_from(self.out.len()).unwrap_or(u32::MAX);
        let mut common = Vec::new();
        // Version 2.0, no flags; 1 January 1980.
        for field in [20u16, 0, method, 0, 0x21] {
            common.extend(field.to_le_bytes());
        }
        common.extend(crc32fast::hash(bytes).to_le_bytes());
        for len in [packed.len(), bytes.len()] {
            common.extend(u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
        }
        common.extend(u16::try_from(name.len()).unwrap_or(u16::MAX).to_le_bytes());
        common.extend(0u16.to_le_bytes());
        self.out.extend(LOCAL.to_le_bytes());
        self.out.extend(&common);
        self.out.extend(name.as_bytes());
        self.out.extend(&packed);
        self.central.extend(CENTRAL.to_le_bytes());
        self.central.extend(20u16.to_le_bytes());
        self.central.extend(&common);
        // No comment, first disk, no attributes.
        self.central.extend([0; 10]);
        self.central.extend(offset.to_le_bytes());
        self.central.extend(name.as_bytes());
        self.count += 1;
    }

    fn finish(mut self) -> Vec<u8> {
        let at = u32::try_from(self.out.len()).unwrap_or(u32::MAX);
        let len = u32::try_from(self.central.len()).unwrap_or(u32::MAX);
        self.out.extend(&self.central);
        self.out.extend(END.to_le_bytes());
        for field in [0u16, 0, self.count, self.count] {
            self.out.extend(field.to_le_bytes());
        }
        self.out.extend(len.to_le_bytes());
        self.out.extend(at.to_le_bytes());
        self.out.extend(0u16.to_le_bytes());
        self.out
    }
}

fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    // Memory takes whatever is written.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

/// Opens a document: unfolds its parts, checks them, and counts the paragraphs. `None` if it is no document.
pub(super) fn open_document(bytes: &[u8]) -> Option<u64> {
    let end = bytes.len().checked_sub(END_BYTES)?;
    (u32_at(bytes, end)? == END).then_some(())?;
    let count = u16_at(bytes, end + 10)?;
    let mut at = usize::try_from(u32_at(bytes, end + 16)?).ok()?;
    let mut paragraphs = 0;
    for _ in 0..count {
        (u32_at(bytes, at)? == CENTRAL).then_some(())?;
        let name_bytes = usize::from(u16_at(bytes, at + 28)?);
        let part = part(bytes, at)?;
        if bytes.get(at + CENTRAL_BYTES..at + CENTRAL_BYTES + name_bytes)?.ends_with(b".xml") {
            paragraphs += memmem_count(&part, b"<w:p>");
        }
        at += CENTRAL_BYTES + name_bytes;
    }
    Some(paragraphs)
}

/// The part that the central directory tells of at `at`.
fn part(bytes: &[u8], at: usize) -> Option<Vec<u8>> {
    let method = u16_at(bytes, at + 10)?;
    let checksum = u32_at(bytes, at + 16)?;
    let packed_bytes = usize::try_from(u32_at(bytes, at + 20)?).ok()?;
    let local = usize::try_from(u32_at(bytes, at + 42)?).ok()?;
    (u32_at(bytes, local)? == LOCAL).then_some(())?;
    let start = local + LOCAL_BYTES + usize::from(u16_at(bytes, local + 26)?);
    let packed = bytes.get(start..start.checked_add(packed_bytes)?)?;
    let mut part = Vec::new();
    match method {
        DEFLATED => {
            DeflateDecoder::new(packed).take(PART_BYTES_MAX).read_to_end(&mut part).ok()?;
        }
        _ => part.extend(packed),
    }
    (crc32fast::hash(&part) == checksum).then_some(part)
}

fn memmem_count(bytes: &[u8], what: &[u8]) -> u64 {
    bytes.windows(what.len()).filter(|window| *window == what).count() as u64
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Python's reader of ZIP files takes it, too.
    #[test]
    fn a_document_is_a_zip_of_about_its_size() {
        let bytes = document(200_000, 3);
        assert!((150_000..260_000).contains(&bytes.len()), "{}", bytes.len());
        assert!(open_document(&bytes).unwrap() > 10);
        let dir = testkit::scratch();
        let path = dir.path().join("a.docx");
        std::fs::write(&path, &bytes).unwrap();
        let program = "import sys,zipfile\nz=zipfile.ZipFile(sys.argv[1])\nassert z.testzip() is None\nprint(*z.namelist())";
        let said = testkit::run("python3", &["-c", program, path.to_str().unwrap()]);
        assert_eq!(said.trim(), "word/document.xml word/media/image1.png");
    }

    #[test]
    fn a_broken_document_does_not_open() {
        let mut bytes = document(100_000, 3);
        assert_eq!(open_document(&bytes[..bytes.len() - 1]), None);
        let middle = bytes.len() / 4;
        bytes[middle] ^= 0x10;
        assert_eq!(open_document(&bytes), None);
    }
}
