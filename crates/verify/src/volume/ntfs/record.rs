//! Records of `$MFT` and their attributes, checked one by one: update sequence, bounds, order.

use block::{Error, FieldValue, Result};
use extent::VolumeOffset;
use zerocopy::FromBytes;

use super::corrupt::CorruptNtfs;
use super::layout::{
    AttributeHead, COMPRESSED, COMPRESSED_SIZE_AT, DIRECTORY, END, IN_USE, MappedHead, RecordHead,
    ResidentHead, SPARSE,
};

/// Bytes that each number of an update sequence protects.
const STRIDE: usize = 512;

/// A record's number and how often it had been used when it was referred to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Reference {
    pub(super) number: u64,
    pub(super) reuse: u16,
}

impl Reference {
    pub(super) fn of(raw: u64) -> Self {
        Self { number: raw & 0xffff_ffff_ffff, reuse: u16::try_from(raw >> 48).expect("16 bits") }
    }

    pub(super) fn raw(self) -> u64 {
        u64::from(self.reuse) << 48 | self.number
    }
}

/// An error about a record.
pub(super) fn record_error(number: u64) -> Error {
    Error::corrupt(CorruptNtfs::Record { record: number })
}

/// Puts back what the update sequence stands for, once each stride was seen to end with its number.
pub(super) fn fix_up(bytes: &mut [u8], magics: &[&[u8; 4]], error: &dyn Fn() -> Error) -> Result<()> {
    let magic =
        bytes.first_chunk::<4>().ok_or_else(|| error().field("length", bytes.len(), "whole strides"))?;
    if !magics.contains(&magic) {
        let wanted = magics[0].escape_ascii();
        return Err(error().field("magic", format!("\"{}\"", magic.escape_ascii()), wanted));
    }
    let at = usize::from(le16(bytes, 4));
    let count = usize::from(le16(bytes, 6));
    let strides = bytes.len() / STRIDE;
    if !bytes.len().is_multiple_of(STRIDE) || count != strides + 1 {
        return Err(error().field("update sequence's length", count, strides + 1));
    }
    if at < 8 || !at.is_multiple_of(2) || at + 2 * count > STRIDE - 2 {
        return Err(error().field("update sequence's offset", at, "even, within the first stride"));
    }
    let number = [bytes[at], bytes[at + 1]];
    for stride in 0..strides {
        let end = (stride + 1) * STRIDE - 2;
        if bytes[end..end + 2] != number {
            let name = format!("update sequence at the end of stride {stride}");
            let found = format!("{:#06x}", le16(bytes, end));
            return Err(error().field(name, found, format!("{:#06x}", u16::from_le_bytes(number))));
        }
        bytes.copy_within(at + 2 * (stride + 1)..at + 2 * (stride + 1) + 2, end);
    }
    Ok(())
}

fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// A record whose update sequence held and whose head is in bounds.
#[derive(Clone, Copy)]
pub(super) struct Record<'a> {
    pub(super) number: u64,
    pub(super) at: VolumeOffset,
    bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// Checks `bytes`, the whole record, which it fixes up.
    pub(super) fn parse(bytes: &'a mut [u8], number: u64, at: VolumeOffset) -> Result<Self> {
        let error = || record_error(number).at(at);
        fix_up(bytes, &[b"FILE"], &error)?;
        let record = Self { number, at, bytes };
        let head = record.head();
        let len = bytes_len(head.allocated_bytes.get());
        if len != bytes.len() {
            return Err(error().field("allocated bytes", len, bytes.len()));
        }
        let used = bytes_len(head.used_bytes.get());
        if used > len || !used.is_multiple_of(8) {
            return Err(error().field("used bytes", used, format!("a multiple of 8, at most {len}")));
        }
        let first = usize::from(head.attributes_at.get());
        let sequence_end = usize::from(head.sequence_at.get()) + 2 * usize::from(head.sequence_count.get());
        if !first.is_multiple_of(8) || first < sequence_end || first + 8 > used {
            return Err(error().field(
                "attributes' offset",
                first,
                format!("{sequence_end} or more, before {used}"),
            ));
        }
        // What a mapped record says of its own number is younger than NTFS 3.0, and absent then.
        if head.sequence_at.get() >= 48 {
            let told = u32::from_le_bytes([bytes[44], bytes[45], bytes[46], bytes[47]]);
            let wanted = number & u64::from(u32::MAX);
            if u64::from(told) != wanted {
                return Err(error().field("its own number", told, wanted));
            }
        }
        Ok(record)
    }

    pub(super) fn head(&self) -> &'a RecordHead {
        RecordHead::ref_from_prefix(self.bytes).expect("a record is larger").0
    }

    pub(super) fn error(&self) -> Error {
        record_error(self.number).at(self.at)
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.head().flags.get() & IN_USE != 0
    }

    pub(super) fn is_directory(&self) -> bool {
        self.head().flags.get() & DIRECTORY != 0
    }

    pub(super) fn reference(&self) -> Reference {
        Reference { number: self.number, reuse: self.head().reuse.get() }
    }

    /// The base record of an extension record.
    pub(super) fn base(&self) -> Option<Reference> {
        let raw = self.head().base.get();
        (raw != 0).then(|| Reference::of(raw))
    }

    /// The used bytes without the update sequence.
    pub(super) fn content(&self) -> [&'a [u8]; 2] {
        let from = usize::from(self.head().sequence_at.get());
        let to = from + 2 * usize::from(self.head().sequence_count.get());
        [&self.bytes[..from], &self.bytes[to..bytes_len(self.head().used_bytes.get()).max(to)]]
    }

    /// All attributes: ascending by type, each with a number of its own, up to an end mark that ends what is used.
    pub(super) fn attributes(&self) -> Result<Vec<Attribute<'a>>> {
        let used = bytes_len(self.head().used_bytes.get());
        let mut at = usize::from(self.head().attributes_at.get());
        let mut all: Vec<Attribute<'a>> = Vec::with_capacity(8);
        loop {
            let kind = self.bytes[..used].get(at..).and_then(|rest| rest.first_chunk::<4>());
            let kind = kind.ok_or_else(|| self.error().field("attributes", "cut short", "an end mark"))?;
            if u32::from_le_bytes(*kind) == END {
                break;
            }
            let attribute = Attribute::parse(self, &self.bytes[at..used])?;
            if all.last().is_some_and(|last| last.kind > attribute.kind) {
                return Err(self.error().field("attributes' order", attribute.label(), "types that ascend"));
            }
            if all.iter().any(|other| other.instance == attribute.instance) {
                return Err(self.error().field(
                    format!("number of {}", attribute.label()),
                    attribute.instance,
                    "that of no other attribute",
                ));
            }
            at += attribute.len;
            all.push(attribute);
        }
        if at + 8 != used {
            return Err(self.error().field(
                "used bytes",
                used,
                format!("{}, where the attributes end", at + 8),
            ));
        }
        Ok(all)
    }
}

/// Where an attribute's value is.
#[derive(Clone, Copy)]
pub(super) enum Body<'a> {
    /// In the record; and whether an index holds it.
    Resident(&'a [u8], u8),
    /// In clusters.
    Mapped(Mapped<'a>),
}

/// One piece of an attribute in clusters.
#[derive(Clone, Copy)]
pub(super) struct Mapped<'a> {
    pub(super) lowest_vcn: u64,
    /// The VCN after the last one.
    pub(super) end_vcn: u64,
    pub(super) unit_shift: u8,
    pub(super) allocated_bytes: u64,
    pub(super) data_bytes: u64,
    pub(super) initialized_bytes: u64,
    /// Of a first piece that is compressed or sparse.
    pub(super) compressed_bytes: Option<u64>,
    pub(super) pairs: &'a [u8],
}

/// An attribute in bounds.
#[derive(Clone, Copy)]
pub(super) struct Attribute<'a> {
    /// The record that holds it.
    pub(super) record: Record<'a>,
    pub(super) kind: u32,
    /// UTF-16.
    pub(super) name: &'a [u8],
    pub(super) flags: u16,
    pub(super) instance: u16,
    pub(super) body: Body<'a>,
    len: usize,
}

impl<'a> Attribute<'a> {
    fn parse(record: &Record<'a>, rest: &'a [u8]) -> Result<Self> {
        let short = || record.error().field("attributes", "cut short", "an end mark");
        let (head, _) = AttributeHead::ref_from_prefix(rest).map_err(|_| short())?;
        let kind = head.kind.get();
        let error = |field: &str, found: usize, wanted: &str| {
            record.error().field(format!("{field} of attribute {kind:#x}"), found, wanted)
        };
        let len = bytes_len(head.len_bytes.get());
        if !len.is_multiple_of(8) || len < 24 || len > rest.len() {
            return Err(error("length", len, "a multiple of 8 within the record"));
        }
        let bytes = &rest[..len];
        let name_at = usize::from(head.name_at.get());
        let name = match usize::from(head.name_len) * 2 {
            0 => &[][..],
            name_bytes => bytes
                .get(name_at..)
                .and_then(|from| from.get(..name_bytes))
                .ok_or_else(|| error("name's offset", name_at, "within the attribute"))?,
        };
        let after = &bytes[size_of::<AttributeHead>()..];
        let flags = head.flags.get();
        let body = match head.is_mapped {
            0 => {
                let (value, _) = ResidentHead::ref_from_prefix(after).map_err(|_| short())?;
                let at = usize::from(value.value_at.get());
                let found = bytes.get(at..).and_then(|from| from.get(..bytes_len(value.value_bytes.get())));
                Body::Resident(
                    found.ok_or_else(|| error("value's offset", at, "within it"))?,
                    value.is_indexed,
                )
            }
            1 => {
                let (mapped, _) =
                    MappedHead::ref_from_prefix(after).map_err(|_| error("length", len, "64 or more"))?;
                let lowest_vcn = mapped.lowest_vcn.get();
                let pairs_at = usize::from(mapped.pairs_at.get());
                let has_compressed = flags & (COMPRESSED | SPARSE) != 0 && lowest_vcn == 0;
                let least = COMPRESSED_SIZE_AT + if has_compressed { 8 } else { 0 };
                if pairs_at < least || pairs_at >= len {
                    return Err(error(
                        "mapping pairs' offset",
                        pairs_at,
                        "behind the head, within the attribute",
                    ));
                }
                let compressed = bytes.get(COMPRESSED_SIZE_AT..).and_then(|from| from.first_chunk::<8>());
                let end_vcn = mapped.highest_vcn.get().wrapping_add(1);
                if end_vcn < lowest_vcn {
                    return Err(record.error().field(
                        format!("highest VCN of attribute {kind:#x}"),
                        mapped.highest_vcn,
                        format!("{lowest_vcn} or more, or one less"),
                    ));
                }
                Body::Mapped(Mapped {
                    lowest_vcn,
                    end_vcn,
                    unit_shift: mapped.unit_shift,
                    allocated_bytes: mapped.allocated_bytes.get(),
                    data_bytes: mapped.data_bytes.get(),
                    initialized_bytes: mapped.initialized_bytes.get(),
                    compressed_bytes: compressed
                        .filter(|_| has_compressed)
                        .map(|bytes| u64::from_le_bytes(*bytes)),
                    pairs: &bytes[pairs_at..],
                })
            }
            other => return Err(error("residence", usize::from(other), "0 or 1")),
        };
        Ok(Self { record: *record, kind, name, flags, instance: head.instance.get(), body, len })
    }

    /// The first VCN that it maps.
    pub(super) fn lowest_vcn(&self) -> u64 {
        match self.body {
            Body::Resident(..) => 0,
            Body::Mapped(mapped) => mapped.lowest_vcn,
        }
    }

    /// How messages call it.
    pub(super) fn label(&self) -> String {
        let name = utf16_text(self.name);
        if name.is_empty() {
            format!("attribute {:#x}", self.kind)
        } else {
            format!("attribute {:#x} {name:?}", self.kind)
        }
    }

    /// An error about it.
    pub(super) fn error(
        &self,
        field: &str,
        found: impl Into<FieldValue>,
        wanted: impl std::fmt::Display,
    ) -> Error {
        self.record.error().field(format!("{field} of {}", self.label()), found, wanted)
    }

    /// The value of one that must be in the record.
    pub(super) fn resident(&self) -> Result<&'a [u8]> {
        match self.body {
            Body::Resident(value, _) => Ok(value),
            Body::Mapped(_) => Err(self.error("residence", 1, 0)),
        }
    }

    pub(super) fn is_named(&self, name: &str) -> bool {
        let (units, _) = self.name.as_chunks::<2>();
        units.iter().map(|unit| u16::from_le_bytes(*unit)).eq(name.encode_utf16())
    }
}

fn bytes_len(value: u32) -> usize {
    usize::try_from(value).expect("32 bits index memory")
}

/// UTF-16 for messages.
pub(super) fn utf16_text(bytes: &[u8]) -> String {
    let (units, _) = bytes.as_chunks::<2>();
    char::decode_utf16(units.iter().map(|unit| u16::from_le_bytes(*unit)))
        .map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect()
}
