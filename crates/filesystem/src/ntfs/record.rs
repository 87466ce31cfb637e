//! File records: update-sequence fixups, the record's head, and its attributes.

use block::{Error, FieldValue, Result};
use extent::VolumeOffset;
use zerocopy::FromBytes;

use super::layout::{
    ATTR_END, AttributeHeader, FIXUP_STRIDE_BYTES, FileRecordHeader, FixupHeader, MAGIC_FILE,
    NonResidentHeader, RECORD_IN_USE, ResidentHeader,
};
use super::runs::{self, Run};
use crate::ntfs::corrupt::Corrupt;

/// The number of a record in `$MFT`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct RecordNumber(pub(super) u64);

impl RecordNumber {
    pub(super) const MFT: Self = Self(0);
    pub(super) const MFT_MIRROR: Self = Self(1);
    pub(super) const LOG_FILE: Self = Self(2);
    pub(super) const VOLUME: Self = Self(3);
    pub(super) const ROOT: Self = Self(5);
    pub(super) const BITMAP: Self = Self(6);
    pub(super) const SECURE: Self = Self(9);
    pub(super) const UP_CASE: Self = Self(10);
    pub(super) const EXTEND: Self = Self(11);
}

impl std::fmt::Display for RecordNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl From<RecordNumber> for FieldValue {
    fn from(number: RecordNumber) -> Self {
        number.0.into()
    }
}

/// A record's number with the sequence number it had when it was referred to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileReference {
    pub(super) number: RecordNumber,
    pub(super) sequence: u16,
}

impl FileReference {
    pub(super) fn from_raw(raw: u64) -> Self {
        let sequence = u16::try_from(raw >> 48).expect("16 bits are left");
        Self { number: RecordNumber(raw & 0xffff_ffff_ffff), sequence }
    }

    pub(super) fn to_raw(self) -> u64 {
        u64::from(self.sequence) << 48 | self.number.0
    }
}

/// Puts back the two bytes at the end of every stride that the update sequence stands in for, after checking
/// that each holds the update-sequence number: a torn write does not.
pub(super) fn fix_up(bytes: &mut [u8], magics: &[[u8; 4]], error: impl Fn() -> Error) -> Result<()> {
    let header =
        FixupHeader::ref_from_prefix(bytes).map_err(|_| error().field("length", bytes.len(), "8 or more"))?.0;
    if !magics.contains(&header.magic) {
        let expected = String::from_utf8_lossy(&magics[0]).into_owned();
        return Err(error().field(
            "magic",
            format!("{:?}", header.magic.escape_ascii().to_string()),
            expected,
        ));
    }
    let (offset, count) = (usize::from(header.usa_offset.get()), usize::from(header.usa_count.get()));
    let strides = bytes.len() / FIXUP_STRIDE_BYTES;
    if count != strides + 1 || !bytes.len().is_multiple_of(FIXUP_STRIDE_BYTES) {
        return Err(error().field("update sequence count", count, strides + 1));
    }
    if offset < size_of::<FixupHeader>()
        || !offset.is_multiple_of(2)
        || offset + count * 2 > FIXUP_STRIDE_BYTES - 2
    {
        return Err(error().field("update sequence offset", offset, "an even place in the first 510 bytes"));
    }
    let number = [bytes[offset], bytes[offset + 1]];
    for stride in 0..strides {
        let end = (stride + 1) * FIXUP_STRIDE_BYTES - 2;
        if bytes[end..end + 2] != number {
            let found = u16::from_le_bytes([bytes[end], bytes[end + 1]]);
            return Err(error().field(
                format!("update sequence number of block {stride}"),
                format!("{found:#06x}"),
                format!("{:#06x}", u16::from_le_bytes(number)),
            ));
        }
        let entry = offset + 2 * (stride + 1);
        let saved = [bytes[entry], bytes[entry + 1]];
        bytes[end..end + 2].copy_from_slice(&saved);
    }
    Ok(())
}

/// Puts the next update sequence number at the end of every stride, and what was there into the update sequence: undoes
/// [`fix_up`], which must have held.
pub(super) fn protect(bytes: &mut [u8]) {
    let header = FixupHeader::ref_from_prefix(bytes).expect("fixed up before").0;
    let offset = usize::from(header.usa_offset.get());
    let number = match u16::from_le_bytes([bytes[offset], bytes[offset + 1]]).wrapping_add(1) {
        // Neither is ever used.
        0 | 0xffff => 1,
        number => number,
    };
    bytes[offset..offset + 2].copy_from_slice(&number.to_le_bytes());
    for stride in 0..bytes.len() / FIXUP_STRIDE_BYTES {
        let (end, entry) = ((stride + 1) * FIXUP_STRIDE_BYTES - 2, offset + 2 * (stride + 1));
        bytes.copy_within(end..end + 2, entry);
        bytes[end..end + 2].copy_from_slice(&number.to_le_bytes());
    }
}

/// A file record whose fixups held and whose head is in bounds.
#[derive(Clone, Copy)]
pub(super) struct Record<'a> {
    bytes: &'a [u8],
    number: RecordNumber,
    at: VolumeOffset,
}

impl<'a> Record<'a> {
    /// Fixes up `bytes`, the whole record, in place, and validates its head.
    pub(super) fn parse(bytes: &'a mut [u8], number: RecordNumber, at: VolumeOffset) -> Result<Self> {
        let error = || error(number, at);
        fix_up(bytes, &[MAGIC_FILE], error)?;
        let record = Self { bytes, number, at };
        let header = record.header();
        if header.bytes_allocated.get() as usize != bytes.len() {
            return Err(error().field("allocated size", header.bytes_allocated, bytes.len()));
        }
        let in_use = header.bytes_in_use.get() as usize;
        let attributes = usize::from(header.attrs_offset.get());
        if in_use > bytes.len() {
            return Err(error().field("size in use", in_use, format!("at most {}", bytes.len())));
        }
        if attributes < size_of::<FileRecordHeader>()
            || !attributes.is_multiple_of(8)
            || attributes + 4 > in_use
        {
            return Err(error().field("attributes offset", attributes, "a multiple of 8 in the record"));
        }
        Ok(record)
    }

    /// A record that was parsed before.
    pub(super) fn parsed(bytes: &'a [u8], number: RecordNumber, at: VolumeOffset) -> Self {
        Self { bytes, number, at }
    }

    fn header(&self) -> &'a FileRecordHeader {
        FileRecordHeader::ref_from_prefix(self.bytes).expect("at least 512 bytes").0
    }

    pub(super) fn number(&self) -> RecordNumber {
        self.number
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.flags() & RECORD_IN_USE != 0
    }

    pub(super) fn flags(&self) -> u16 {
        self.header().flags.get()
    }

    /// Names, those for DOS included.
    pub(super) fn link_count(&self) -> u16 {
        self.header().link_count.get()
    }

    pub(super) fn sequence(&self) -> u16 {
        self.header().sequence_number.get()
    }

    /// What refers to it.
    pub(super) fn reference(&self) -> FileReference {
        FileReference { number: self.number, sequence: self.sequence() }
    }

    /// The number that its next attribute gets.
    pub(super) fn next_instance(&self) -> u16 {
        self.header().next_attr_instance.get()
    }

    /// The base record, if this is an extension record.
    pub(super) fn base(&self) -> Option<FileReference> {
        let raw = self.header().base_mft_record.get();
        (raw != 0).then(|| FileReference::from_raw(raw))
    }

    /// The bytes in use without the update sequence, which differs between a record and its mirror.
    pub(super) fn contents(&self) -> [&'a [u8]; 2] {
        let header = self.header();
        let from = usize::from(header.fixup.usa_offset.get());
        let to = from + usize::from(header.fixup.usa_count.get()) * 2;
        let end = (header.bytes_in_use.get() as usize).max(to);
        [&self.bytes[..from], &self.bytes[to..end]]
    }

    /// Bytes in use, from the record's start.
    pub(super) fn bytes_in_use(&self) -> usize {
        self.header().bytes_in_use.get() as usize
    }

    /// All of it.
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes that are not in use.
    pub(super) fn spare_bytes(&self) -> usize {
        self.bytes.len() - self.bytes_in_use()
    }

    /// Where the update sequence ends, and where the attributes begin.
    pub(super) fn head_bounds(&self) -> (usize, usize) {
        let FileRecordHeader { fixup, attrs_offset, .. } = self.header();
        let usa_end = usize::from(fixup.usa_offset.get()) + usize::from(fixup.usa_count.get()) * 2;
        (usa_end, usize::from(attrs_offset.get()))
    }

    /// An error about this record.
    pub(super) fn error(&self) -> Error {
        error(self.number, self.at)
    }

    /// The attributes in order. An error ends them.
    pub(super) fn attributes(&self) -> impl Iterator<Item = Result<Attribute<'a>>> + use<'a> {
        let record = *self;
        let header = self.header();
        let mut rest = &self.bytes[..header.bytes_in_use.get() as usize];
        rest = &rest[usize::from(header.attrs_offset.get())..];
        let mut done = false;
        std::iter::from_fn(move || {
            if done {
                return None;
            }
            let attribute = Attribute::split_first(record, &mut rest).transpose();
            done = !matches!(attribute, Some(Ok(_)));
            attribute
        })
    }

    /// The first attribute of a kind and name.
    pub(super) fn find(&self, kind: u32, name: &str) -> Result<Option<Attribute<'a>>> {
        for attribute in self.attributes() {
            let attribute = attribute?;
            if attribute.kind() == kind && attribute.is_named(name) {
                return Ok(Some(attribute));
            }
        }
        Ok(None)
    }
}

fn error(number: RecordNumber, at: VolumeOffset) -> Error {
    Error::corrupt(Corrupt::Record { record: number.0 }).at(at)
}

/// Whether UTF-16 bytes are `name`.
pub(super) fn utf16_is(bytes: &[u8], name: &str) -> bool {
    let (units, rest) = bytes.as_chunks::<2>();
    rest.is_empty() && units.iter().map(|unit| u16::from_le_bytes(*unit)).eq(name.encode_utf16())
}

/// UTF-16 bytes as text; what is no UTF-16 is replaced.
pub(super) fn utf16_text(bytes: &[u8]) -> String {
    let (units, _) = bytes.as_chunks::<2>();
    let units = units.iter().map(|unit| u16::from_le_bytes(*unit));
    char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

/// An attribute whose head and name are in bounds.
#[derive(Clone, Copy)]
pub(super) struct Attribute<'a> {
    record: Record<'a>,
    bytes: &'a [u8],
}

/// Where an attribute's value is.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    /// In the record.
    Resident(&'a [u8]),
    /// In clusters.
    NonResident(Mapped<'a>),
}

/// The validated head of (one piece of) a non-resident attribute.
#[derive(Clone, Copy)]
pub(super) struct Mapped<'a> {
    pub(super) lowest_vcn: u64,
    /// Clusters that this piece maps, holes included.
    pub(super) vcn_count: u64,
    pub(super) allocated_bytes: u64,
    pub(super) data_bytes: u64,
    pub(super) initialized_bytes: u64,
    /// Power of two of the clusters in a compression unit.
    pub(super) compression_unit: u8,
    /// Where the run list lies in the attribute.
    pub(super) run_list_offset: usize,
    run_list: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// Takes the first attribute off `rest`; `None` at the end mark.
    pub(super) fn split_first(record: Record<'a>, rest: &mut &'a [u8]) -> Result<Option<Self>> {
        let truncated = || record.error().field("attributes", "cut short", "an end mark");
        let kind = rest.first_chunk::<4>().ok_or_else(truncated)?;
        if u32::from_le_bytes(*kind) == ATTR_END {
            return Ok(None);
        }
        let (header, _) = AttributeHeader::ref_from_prefix(rest).map_err(|_| truncated())?;
        let length = header.length.get() as usize;
        let bad_length =
            !length.is_multiple_of(8) || length < size_of::<AttributeHeader>() + size_of::<ResidentHeader>();
        if bad_length || length > rest.len() {
            let name = format!("length of attribute {:#x}", header.kind);
            return Err(record.error().field(
                name,
                length,
                format!("a multiple of 8 from 24 to {}", rest.len()),
            ));
        }
        let (bytes, tail) = rest.split_at(length);
        let name_end = usize::from(header.name_offset.get()) + usize::from(header.name_length) * 2;
        if header.name_length > 0 && name_end > length {
            let name = format!("end of the name of attribute {:#x}", header.kind);
            return Err(record.error().field(name, name_end, format!("at most {length}")));
        }
        if header.non_resident > 1 {
            let name = format!("residence of attribute {:#x}", header.kind);
            return Err(record.error().field(name, header.non_resident, "0 or 1"));
        }
        *rest = tail;
        Ok(Some(Self { record, bytes }))
    }

    fn header(&self) -> &'a AttributeHeader {
        AttributeHeader::ref_from_prefix(self.bytes).expect("checked when split off").0
    }

    pub(super) fn kind(&self) -> u32 {
        self.header().kind.get()
    }

    pub(super) fn flags(&self) -> u16 {
        self.header().flags.get()
    }

    pub(super) fn instance(&self) -> u16 {
        self.header().instance.get()
    }

    /// The record that it is in.
    pub(super) fn record(&self) -> &Record<'a> {
        &self.record
    }

    /// All of it.
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Where the name ends; 0 if there is none.
    pub(super) fn name_end(&self) -> usize {
        let header = self.header();
        match usize::from(header.name_length) * 2 {
            0 => 0,
            len => usize::from(header.name_offset.get()) + len,
        }
    }

    /// Its name in UTF-16; empty if it has none.
    pub(super) fn name(&self) -> &'a [u8] {
        let header = self.header();
        let start = usize::from(header.name_offset.get());
        match usize::from(header.name_length) * 2 {
            0 => &[],
            len => &self.bytes[start..start + len],
        }
    }

    pub(super) fn is_named(&self, name: &str) -> bool {
        utf16_is(self.name(), name)
    }

    pub(super) fn is_resident(&self) -> bool {
        self.header().non_resident == 0
    }

    /// An error about this attribute.
    pub(super) fn error(&self, field: &str, found: impl Into<FieldValue>, expected: &str) -> Error {
        let name = match utf16_text(self.name()) {
            name if name.is_empty() => String::new(),
            name => format!(" {name:?}"),
        };
        self.record.error().field(format!("{field} of attribute {:#x}{name}", self.kind()), found, expected)
    }

    /// The value, or where it is.
    pub(super) fn value(&self) -> Result<Value<'a>> {
        let after = &self.bytes[size_of::<AttributeHeader>()..];
        if self.is_resident() {
            let (header, _) = ResidentHeader::ref_from_prefix(after).expect("at least 24 bytes");
            let start = usize::from(header.value_offset.get());
            let value =
                self.bytes.get(start..).and_then(|from| from.get(..header.value_length.get() as usize));
            let value = value.ok_or_else(|| self.error("value", "past the end", "within the attribute"))?;
            return Ok(Value::Resident(value));
        }
        let (header, _) = NonResidentHeader::ref_from_prefix(after)
            .map_err(|_| self.error("length", self.bytes.len(), "at least 64"))?;
        let lowest_vcn = header.lowest_vcn.get();
        let next_vcn = header.highest_vcn.get().wrapping_add(1);
        let vcn_count = next_vcn
            .checked_sub(lowest_vcn)
            .ok_or_else(|| self.error("highest VCN", header.highest_vcn, "not below the lowest one"))?;
        let start = usize::from(header.mapping_pairs_offset.get());
        let run_list = self
            .bytes
            .get(start..)
            .ok_or_else(|| self.error("run list's offset", start, "within the attribute"))?;
        Ok(Value::NonResident(Mapped {
            lowest_vcn,
            vcn_count,
            allocated_bytes: header.allocated_size.get(),
            data_bytes: header.data_size.get(),
            initialized_bytes: header.initialized_size.get(),
            compression_unit: header.compression_unit,
            run_list_offset: start,
            run_list,
        }))
    }

    /// Where the value of a resident attribute lies in it.
    pub(super) fn value_offset(&self) -> usize {
        let (header, _) = ResidentHeader::ref_from_prefix(&self.bytes[size_of::<AttributeHeader>()..])
            .expect("at least 24 bytes");
        usize::from(header.value_offset.get())
    }

    /// The value of an attribute that is always resident.
    pub(super) fn resident(&self) -> Result<&'a [u8]> {
        match self.value()? {
            Value::Resident(value) => Ok(value),
            Value::NonResident(_) => Err(self.error("residence", "1", "0")),
        }
    }

    /// Calls `each` with the runs of one piece. They are on the volume and map exactly the piece's clusters.
    pub(super) fn each_run(
        &self,
        mapped: &Mapped<'_>,
        cluster_count: u64,
        mut each: impl FnMut(Run) -> Result<()>,
    ) -> Result<()> {
        let mut mapped_count = 0u64;
        for run in runs::decode(mapped.run_list, cluster_count) {
            let run = run.map_err(|bad| self.error("run list", bad.to_string(), "runs on the volume"))?;
            mapped_count = mapped_count.saturating_add(run.count);
            if mapped_count > mapped.vcn_count {
                break;
            }
            each(run)?;
        }
        if mapped_count != mapped.vcn_count {
            let found = if mapped_count > mapped.vcn_count { "more" } else { "fewer" };
            let expected = format!("{}, as its VCNs say", mapped.vcn_count);
            return Err(self.error("number of clusters in the run list", found, &expected));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protected() -> Vec<u8> {
        let mut bytes = vec![7; 1024];
        bytes[..4].copy_from_slice(b"FILE");
        bytes[4..8].copy_from_slice(&[0x30, 0, 3, 0]);
        bytes[0x30..0x36].copy_from_slice(&[0xaa, 0xbb, 1, 2, 3, 4]);
        bytes[510..512].copy_from_slice(&[0xaa, 0xbb]);
        bytes[1022..].copy_from_slice(&[0xaa, 0xbb]);
        bytes
    }

    fn message(bytes: &mut [u8]) -> String {
        fix_up(bytes, &[MAGIC_FILE], || Error::corrupt("it")).unwrap_err().to_string()
    }

    #[test]
    fn fixups_put_back_what_they_stand_for() {
        let mut bytes = protected();
        fix_up(&mut bytes, &[MAGIC_FILE], || Error::corrupt("it")).unwrap();
        assert_eq!(bytes[510..512], [1, 2]);
        assert_eq!(bytes[1022..], [3, 4]);
    }

    #[test]
    fn each_flipped_byte_is_named() {
        let cases = [
            (0, b'B', "it: magic is \"BILE\", expected FILE"),
            (6, 4, "it: update sequence count is 4, expected 3"),
            (5, 2, "it: update sequence offset is 560, expected an even place in the first 510 bytes"),
            (1022, 0, "it: update sequence number of block 1 is 0xbb00, expected 0xbbaa"),
        ];
        for (at, value, expected) in cases {
            let mut bytes = protected();
            bytes[at] = value;
            assert_eq!(message(&mut bytes), expected);
        }
        assert_eq!(message(&mut [0; 4]), "it: length is 4, expected 8 or more");
    }
}
