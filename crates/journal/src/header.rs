//! The header: which disk a journal belongs to.

use block::{Error, ReadAt, Result};
use extent::{HostOffset, HostSpan, Offset, Span, Virtual, VirtualSpan};
use xxhash_rust::xxh3::Xxh3;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use crate::layout::{HEADER_MAGIC, HeaderStart, SpanEntry, VERSION};
use crate::take::{digest_without, take, take_bytes};

/// Room for the header at the start of the file.
pub const HEADER_BYTES: u64 = 16 << 10;

/// The most witnesses there can be.
pub const WITNESS_COUNT_MAX: usize = 256;

/// The largest slot.
pub const SLOT_BYTES_MAX: u64 = 256 << 20;

/// Slots are multiples of this, so that records are aligned for any storage.
const SLOT_UNIT_BYTES: u64 = 4096;

/// The longest text that is kept.
const TEXT_LEN_MAX: usize = 2048;

/// The most bytes that witnesses may have in all.
const WITNESS_BYTES_MAX: u64 = 64 << 20;

/// Where a header's digest lies.
const DIGEST_AT: usize = 16;

/// What people, and programs that look for it, know a disk by.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    /// What is on the volume, such as `ntfs`.
    pub filesystem: String,
    /// Its UUID or serial number, empty if it has none.
    pub uuid: String,
    /// The image's format.
    pub format: String,
    /// The image's path, for messages.
    pub path: String,
}

/// Which disk a journal belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// What people know it by. Texts longer than 2048 bytes are cut.
    pub identity: Identity,
    /// Size of the virtual disk.
    pub virtual_bytes: u64,
    /// The volume that changes.
    pub volume: VirtualSpan,
    /// Size of each slot.
    pub slot_bytes: u64,
    /// What shows that the disk was not used since.
    pub witnesses: Vec<VirtualSpan>,
    /// [`witness_digest`] of them when the journal was made.
    pub witness_digest: u128,
}

impl Header {
    /// The stored form, [`HEADER_BYTES`] long. `Invalid` if a count or size is out of range.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.check()?;
        let Identity { filesystem, uuid, format, path } = &self.identity;
        let texts = [filesystem, uuid, format, path].map(|text| cut(text).as_bytes());
        let text_bytes: usize = texts.iter().map(|text| text.len()).sum();
        let len = size_of::<HeaderStart>() + self.witnesses.len() * size_of::<SpanEntry>() + text_bytes;
        let text_len = |index: usize| U16::new(u16::try_from(texts[index].len()).expect("cut"));
        let start = HeaderStart {
            magic: HEADER_MAGIC,
            version: U32::new(VERSION),
            len_bytes: U32::new(u32::try_from(len).expect("bounded by counts")),
            digest: [0; 16],
            virtual_bytes: U64::new(self.virtual_bytes),
            volume_start: U64::new(self.volume.start().get()),
            volume_bytes: U64::new(self.volume.len_bytes()),
            slot_bytes: U64::new(self.slot_bytes),
            witness_digest: self.witness_digest.to_le_bytes(),
            witness_count: U32::new(u32::try_from(self.witnesses.len()).expect("bounded")),
            filesystem_len: text_len(0),
            uuid_len: text_len(1),
            format_len: text_len(2),
            path_len: text_len(3),
            reserved: U32::new(0),
        };
        let mut bytes = start.as_bytes().to_vec();
        for witness in &self.witnesses {
            let (start, len_bytes) = (U64::new(witness.start().get()), U64::new(witness.len_bytes()));
            bytes.extend_from_slice(SpanEntry { start, len_bytes }.as_bytes());
        }
        texts.iter().for_each(|text| bytes.extend_from_slice(text));
        let digest = digest_without(&bytes, DIGEST_AT);
        bytes[DIGEST_AT..DIGEST_AT + 16].copy_from_slice(&digest);
        bytes.resize(usize::try_from(HEADER_BYTES).expect("small"), 0);
        Ok(bytes)
    }

    /// Reads the stored form, with its digest. `Unsupported` if it is of another version, `Corrupt` if it is damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<(Self, [u8; 16])> {
        let start: HeaderStart = take(&mut &bytes[..])?;
        if start.magic != HEADER_MAGIC {
            return Err(Error::corrupt("this is no journal of Leandisk"));
        }
        let version = start.version.get();
        if version != VERSION {
            return Err(Error::unsupported("journal").field("version", version, VERSION));
        }
        let len = usize::try_from(start.len_bytes.get()).expect("32 bits");
        let whole = bytes.get(..len).filter(|whole| whole.len() >= size_of::<HeaderStart>());
        let Some(whole) = whole.filter(|whole| digest_without(whole, DIGEST_AT) == start.digest) else {
            return Err(Error::corrupt("the journal's header is damaged"));
        };
        Ok((Self::parse(&start, &whole[size_of::<HeaderStart>()..])?, start.digest))
    }

    fn parse(start: &HeaderStart, mut rest: &[u8]) -> Result<Self> {
        let count = usize::try_from(start.witness_count.get()).expect("32 bits");
        let mut witnesses = Vec::with_capacity(count.min(WITNESS_COUNT_MAX));
        for _ in 0..count {
            let entry: SpanEntry = take(&mut rest)?;
            witnesses.push(span(entry.start.get(), entry.len_bytes.get())?);
        }
        let mut text = |len: U16| -> Result<String> {
            Ok(String::from_utf8_lossy(take_bytes(&mut rest, usize::from(len.get()))?).into_owned())
        };
        let identity = Identity {
            filesystem: text(start.filesystem_len)?,
            uuid: text(start.uuid_len)?,
            format: text(start.format_len)?,
            path: text(start.path_len)?,
        };
        let header = Self {
            identity,
            virtual_bytes: start.virtual_bytes.get(),
            volume: span(start.volume_start.get(), start.volume_bytes.get())?,
            slot_bytes: start.slot_bytes.get(),
            witnesses,
            witness_digest: u128::from_le_bytes(start.witness_digest),
        };
        match header.check() {
            Ok(()) if rest.is_empty() => Ok(header),
            Ok(()) => Err(Error::corrupt("the journal's header has more than it says")),
            Err(error) => Err(Error::corrupt(error.to_string())),
        }
    }

    fn check(&self) -> Result<()> {
        if !Span::from_zero(self.virtual_bytes).covers(&self.volume) {
            return Err(Error::invalid("the journal's volume lies past the end of its disk"));
        }
        let is_slot = (SLOT_UNIT_BYTES..=SLOT_BYTES_MAX).contains(&self.slot_bytes)
            && self.slot_bytes.is_multiple_of(SLOT_UNIT_BYTES);
        if !is_slot {
            let expected = format!("a multiple of {SLOT_UNIT_BYTES} up to {SLOT_BYTES_MAX}");
            return Err(Error::invalid("journal").field("slot size", self.slot_bytes, expected));
        }
        let bytes = self.witnesses.iter().try_fold(0u64, |sum, each| sum.checked_add(each.len_bytes()));
        let has_room = bytes.is_some_and(|bytes| bytes <= WITNESS_BYTES_MAX);
        if self.witnesses.len() > WITNESS_COUNT_MAX || !has_room {
            return Err(Error::invalid("a journal cannot have so many witnesses"));
        }
        if let Some(outside) = self.witnesses.iter().find(|witness| !self.volume.covers(witness)) {
            return Err(Error::invalid("a witness lies outside its volume").at(outside.start()));
        }
        Ok(())
    }

    /// Where the record of this number lies in the file.
    pub fn slot(&self, sequence: u64) -> HostSpan {
        HostSpan::new(HostOffset::new(HEADER_BYTES + (sequence & 1) * self.slot_bytes), self.slot_bytes)
    }
}

/// The longest part of `text` that is kept.
fn cut(text: &str) -> &str {
    let end = (0..=text.len().min(TEXT_LEN_MAX)).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// A span from stored numbers.
pub(crate) fn span(start: u64, len_bytes: u64) -> Result<VirtualSpan> {
    Span::checked(Offset::new(start), len_bytes)
        .ok_or_else(|| Error::corrupt("a span of the journal overflows").at(Offset::<Virtual>::new(start)))
}

/// XXH3-128 of what the spans hold, one after the other.
pub fn witness_digest(disk: &dyn ReadAt<Virtual>, spans: &[VirtualSpan]) -> Result<u128> {
    let mut hasher = Xxh3::new();
    let mut buffer = Vec::new();
    for piece in spans.iter().flat_map(|span| span.split(1 << 20)) {
        buffer.resize(usize::try_from(piece.len_bytes()).expect("at most 1 MiB"), 0);
        disk.read_at(piece.start(), &mut buffer)?;
        hasher.update(&buffer);
    }
    Ok(hasher.digest128())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use block::ErrorKind;

    pub(crate) fn header() -> Header {
        Header {
            identity: Identity {
                filesystem: "ntfs".into(),
                uuid: "1234-ABCD".into(),
                format: "vhdx".into(),
                path: "/disks/ü.vhdx".into(),
            },
            virtual_bytes: 1 << 20,
            volume: Span::new(Offset::new(4096), 64 << 10),
            slot_bytes: 8192,
            witnesses: vec![Span::new(Offset::new(4096), 100), Span::new(Offset::new(8192), 8)],
            witness_digest: 7,
        }
    }

    #[test]
    fn a_header_comes_out_as_it_went_in() {
        let bytes = header().to_bytes().unwrap();
        assert_eq!(bytes.len() as u64, HEADER_BYTES);
        assert_eq!(Header::from_bytes(&bytes).unwrap().0, header());
        assert!((header().slot(2).start().get(), header().slot(3).start().get()) == (16384, 24576));
    }

    #[test]
    fn every_damaged_byte_is_found() {
        let bytes = header().to_bytes().unwrap();
        let len = size_of::<HeaderStart>() + 2 * size_of::<SpanEntry>() + 4 + 9 + 4 + 14;
        for at in 0..len {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            let error = Header::from_bytes(&damaged).err().unwrap();
            let is_version = (8..12).contains(&at);
            assert_eq!(error.kind() == ErrorKind::Unsupported, is_version, "byte {at}: {error}");
        }
    }

    #[test]
    fn what_is_out_of_range_is_not_written() {
        let invalid = [
            Header { slot_bytes: 0, ..header() },
            Header { slot_bytes: 5000, ..header() },
            Header { virtual_bytes: 4096, ..header() },
            Header { witnesses: vec![Span::from_zero(1)], ..header() },
            Header { witnesses: vec![Span::new(Offset::new(4096), 1); 257], ..header() },
        ];
        for header in invalid {
            assert_eq!(header.to_bytes().err().unwrap().kind(), ErrorKind::Invalid, "{header:?}");
        }
        let long = Identity { path: "é".repeat(4000), ..Identity::default() };
        let bytes = Header { identity: long, ..header() }.to_bytes().unwrap();
        assert_eq!(Header::from_bytes(&bytes).unwrap().0.identity.path, "é".repeat(1024));
    }
}
