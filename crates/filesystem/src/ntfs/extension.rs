//! One more extension record for a file whose records have no room for a run list.
//!
//! A driver that writes a file in pieces does the same: where a list has no room, a record that no file has takes what comes last in it, and
//! `$ATTRIBUTE_LIST` says so. Which records can be had is decided when the volume is opened: the highest ones that are free. Who makes files
//! meanwhile takes lower ones, and so changes bytes of `$MFT`'s bitmap that show it ([`crate::Rearrange::witnesses`]).
//!
//! Invariants:
//! - a spare record was written before, is not in use by its own flags, and no record is in use of which the same byte of `$MFT`'s bitmap tells;
//! - as many records as a byte tells of are free below all that are spare;
//! - what is taken stays a record of its file.
//!
//! Pure but for [`SpareRecords::find`]: bytes in, bytes out.

use std::collections::BTreeSet;

use block::Result;
use extent::VolumeOffset;

use super::bitmap::{Bitmap, Words};
use super::layout::{
    ATTR_ATTRIBUTE_LIST, ATTRIBUTE_ALLOCATED_SIZE_OFFSET, ATTRIBUTE_DATA_SIZE_OFFSET,
    ATTRIBUTE_HIGHEST_VCN_OFFSET, ATTRIBUTE_INITIALIZED_SIZE_OFFSET, ATTRIBUTE_INSTANCE_OFFSET,
    ATTRIBUTE_LENGTH_OFFSET, ATTRIBUTE_LOWEST_VCN_OFFSET, ATTRIBUTE_NAME_LENGTH_OFFSET,
    ATTRIBUTE_NAME_OFFSET_OFFSET, ATTRIBUTE_VALUE_LENGTH_OFFSET, ATTRIBUTE_VALUE_OFFSET_OFFSET,
    AttributeListEntry, FILE_RECORD_BASE_OFFSET, FILE_RECORD_BYTES_IN_USE_OFFSET, FILE_RECORD_FLAGS_OFFSET,
    FILE_RECORD_LINK_COUNT_OFFSET, FILE_RECORD_NEXT_INSTANCE_OFFSET, FILE_RECORD_SEQUENCE_OFFSET,
    LIST_ENTRY_HOLDER_OFFSET, LIST_ENTRY_INSTANCE_OFFSET, LIST_ENTRY_LENGTH_OFFSET,
    LIST_ENTRY_LOWEST_VCN_OFFSET, LIST_ENTRY_NAME_LENGTH_OFFSET, LIST_ENTRY_NAME_OFFSET_OFFSET, RECORD_END,
    RECORD_IN_USE, UNNAMED_VALUE_OFFSET,
};
use super::mft::Mft;
use super::record::{Attribute, FileReference, Mapped, Record, RecordNumber, Value};
use super::scan::RESERVED_RECORDS;

/// No more are looked for. What needs one has some hundred pieces.
const SPARE_RECORDS_MAX: usize = 1024;

/// Records of which a byte of `$MFT`'s bitmap tells.
const RECORDS_PER_BYTE: u64 = 8;

/// A record that no file has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SpareRecord {
    pub(super) number: RecordNumber,
    pub(super) at: VolumeOffset,
    /// What stands before its attributes.
    pub(super) head: Vec<u8>,
    pub(super) sequence: u16,
}

/// Those that files can have as extension records, in the order in which they are taken.
#[derive(Debug, Default)]
pub(super) struct SpareRecords(Vec<SpareRecord>);

impl SpareRecords {
    /// Finds those of a volume as it was opened. `mirrored_count` is how many records `$MFTMirr` has room for.
    pub(super) fn find(mft: &Mft, mirrored_count: u64) -> Result<Self> {
        let bits = Bitmap::of_records(mft)?;
        let count = mft.initialized_record_count().min(bits.bit_count) / RECORDS_PER_BYTE * RECORDS_PER_BYTE;
        let set = Words::new(&bits.bytes(0, count / RECORDS_PER_BYTE)?, 0);
        let first = mirrored_count.max(RESERVED_RECORDS).next_multiple_of(RECORDS_PER_BYTE);
        let bytes = (first / RECORDS_PER_BYTE..count / RECORDS_PER_BYTE).map(|byte| byte * RECORDS_PER_BYTE);
        let is_clear =
            |first: &u64| set.run_end(*first, first + RECORDS_PER_BYTE, false) == first + RECORDS_PER_BYTE;
        // The lowest are left to whoever makes files meanwhile.
        let clear: Vec<_> = bytes.filter(is_clear).skip(1).collect();
        let mut found = Vec::new();
        for first in clear.into_iter().rev() {
            let spares =
                (first..first + RECORDS_PER_BYTE).rev().map(|number| spare(mft, RecordNumber(number)));
            // All of them or none.
            if let Some(spares) = spares.collect::<Result<Option<Vec<_>>>>()? {
                found.extend(spares);
            }
            if found.len() >= SPARE_RECORDS_MAX {
                break;
            }
        }
        Ok(Self(found))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first that is not taken.
    pub(super) fn first(
        &self,
        mut is_taken: impl FnMut(RecordNumber) -> Result<bool>,
    ) -> Result<Option<&SpareRecord>> {
        for spare in &self.0 {
            if !is_taken(spare.number)? {
                return Ok(Some(spare));
            }
        }
        Ok(None)
    }

    /// The one that is taken after `count` others.
    pub(super) fn get(&self, count: usize) -> Option<&SpareRecord> {
        self.0.get(count)
    }

    /// The bytes of `$MFT`'s bitmap that tell of the first `count`.
    pub(super) fn bytes_of_first(&self, count: usize) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().take(count).map(|spare| spare.number.0 / RECORDS_PER_BYTE)
    }
}

/// The record, if it was written before and is not in use.
fn spare(mft: &Mft, number: RecordNumber) -> Result<Option<SpareRecord>> {
    let at = mft.record_offset(number);
    let mut bytes = mft.as_opened().raw(number)?;
    let record = Record::parse(&mut bytes, number, at).ok().filter(|record| !record.is_in_use());
    let record = record.filter(|record| record.head_bounds().0 <= record.head_bounds().1);
    Ok(record.map(|record| SpareRecord {
        number,
        at,
        head: record.bytes()[..record.head_bounds().1].to_vec(),
        // To a reference, none stands for any.
        sequence: record.sequence().max(1),
    }))
}

impl SpareRecord {
    /// What refers to it once it is in use.
    fn reference(&self) -> FileReference {
        FileReference { number: self.number, sequence: self.sequence }
    }

    /// The record of `base`'s file that has nothing but `attribute`, not yet protected. `None` if it has no room for that.
    pub(super) fn with(&self, base: &Record<'_>, attribute: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = self.head.clone();
        bytes.extend_from_slice(attribute);
        bytes.extend_from_slice(&RECORD_END);
        let in_use = u32::try_from(bytes.len()).ok()?;
        if bytes.len() > base.bytes().len() {
            return None;
        }
        bytes.resize(base.bytes().len(), 0);
        put(&mut bytes, FILE_RECORD_SEQUENCE_OFFSET, &self.sequence.to_le_bytes());
        put(&mut bytes, FILE_RECORD_LINK_COUNT_OFFSET, &[0; 2]);
        put(&mut bytes, FILE_RECORD_FLAGS_OFFSET, &RECORD_IN_USE.to_le_bytes());
        put(&mut bytes, FILE_RECORD_BYTES_IN_USE_OFFSET, &in_use.to_le_bytes());
        put(&mut bytes, FILE_RECORD_BASE_OFFSET, &base.reference().to_raw().to_le_bytes());
        put(&mut bytes, FILE_RECORD_NEXT_INSTANCE_OFFSET, &1_u16.to_le_bytes());
        Some(bytes)
    }

    /// The entry of an attribute list for a piece of what `entry` is of, which begins at `lowest_vcn` and lies in this record.
    pub(super) fn entry(&self, entry: &[u8], lowest_vcn: u64) -> Vec<u8> {
        let mut bytes = entry.to_vec();
        put(&mut bytes, LIST_ENTRY_LOWEST_VCN_OFFSET, &lowest_vcn.to_le_bytes());
        put(&mut bytes, LIST_ENTRY_HOLDER_OFFSET, &self.reference().to_raw().to_le_bytes());
        put(&mut bytes, LIST_ENTRY_INSTANCE_OFFSET, &0_u16.to_le_bytes());
        bytes
    }
}

/// A piece of a stream as the only attribute of its record, with the head of `piece`, which is another one of the same stream. What is told of the
/// whole stream is told by the first piece alone.
pub(super) fn only_piece(mut piece: Vec<u8>, lowest_vcn: u64, highest_vcn: u64) -> Vec<u8> {
    put(&mut piece, ATTRIBUTE_INSTANCE_OFFSET, &0_u16.to_le_bytes());
    put(&mut piece, ATTRIBUTE_LOWEST_VCN_OFFSET, &lowest_vcn.to_le_bytes());
    put(&mut piece, ATTRIBUTE_HIGHEST_VCN_OFFSET, &highest_vcn.to_le_bytes());
    for at in [ATTRIBUTE_ALLOCATED_SIZE_OFFSET, ATTRIBUTE_DATA_SIZE_OFFSET, ATTRIBUTE_INITIALIZED_SIZE_OFFSET]
    {
        put(&mut piece, at, &[0; 8]);
    }
    piece
}

/// The attribute list of a file that has none: all is in its base record. `None` if attributes could be taken for each other, or for what comes next.
pub(super) fn list_of(base: &Record<'_>) -> Result<Option<Vec<u8>>> {
    let mut list = Vec::new();
    let mut instances = BTreeSet::new();
    for attribute in base.attributes() {
        let attribute = attribute?;
        let instance = attribute.instance();
        if instance >= base.next_instance() || !instances.insert(instance) {
            return Ok(None);
        }
        let name_at = size_of::<AttributeListEntry>();
        let mut entry = vec![0; name_at];
        entry.extend_from_slice(attribute.name());
        entry.resize(entry.len().next_multiple_of(8), 0);
        let length = u16::try_from(entry.len()).expect("a name has at most 255 units");
        put(&mut entry, 0, &attribute.kind().to_le_bytes());
        put(&mut entry, LIST_ENTRY_LENGTH_OFFSET, &length.to_le_bytes());
        put(&mut entry, LIST_ENTRY_NAME_LENGTH_OFFSET, &[attribute.bytes()[ATTRIBUTE_NAME_LENGTH_OFFSET]]);
        put(&mut entry, LIST_ENTRY_NAME_OFFSET_OFFSET, &[u8::try_from(name_at).expect("26")]);
        put(&mut entry, LIST_ENTRY_HOLDER_OFFSET, &base.reference().to_raw().to_le_bytes());
        put(&mut entry, LIST_ENTRY_INSTANCE_OFFSET, &instance.to_le_bytes());
        list.extend(entry);
    }
    Ok(Some(list))
}

/// An attribute that has `list` as its value, in a record.
pub(super) fn new_list_attribute(instance: u16, list: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = vec![0; UNNAMED_VALUE_OFFSET];
    let value_at = u16::try_from(UNNAMED_VALUE_OFFSET).expect("24").to_le_bytes();
    put(&mut bytes, 0, &ATTR_ATTRIBUTE_LIST.to_le_bytes());
    put(&mut bytes, ATTRIBUTE_NAME_OFFSET_OFFSET, &value_at);
    put(&mut bytes, ATTRIBUTE_INSTANCE_OFFSET, &instance.to_le_bytes());
    put(&mut bytes, ATTRIBUTE_VALUE_OFFSET_OFFSET, &value_at);
    with_value(bytes, list)
}

/// The attribute of a list with another value, or, where that lies in clusters, with another length. `None` if these have no room.
pub(super) fn list_attribute(old: &Attribute<'_>, list: &[u8]) -> Result<Option<Vec<u8>>> {
    Ok(match old.value()? {
        Value::Resident(_) => with_value(old.bytes()[..old.value_offset()].to_vec(), list),
        Value::NonResident(Mapped { allocated_bytes, .. }) => {
            let len_bytes = list.len() as u64;
            let mut bytes = old.bytes().to_vec();
            put(&mut bytes, ATTRIBUTE_DATA_SIZE_OFFSET, &len_bytes.to_le_bytes());
            put(&mut bytes, ATTRIBUTE_INITIALIZED_SIZE_OFFSET, &len_bytes.to_le_bytes());
            (len_bytes <= allocated_bytes).then_some(bytes)
        }
    })
}

/// A resident attribute, of which `bytes` is what stands before the value.
fn with_value(mut bytes: Vec<u8>, value: &[u8]) -> Option<Vec<u8>> {
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let length = u32::try_from(bytes.len()).ok()?;
    let value_length = u32::try_from(value.len()).ok()?;
    put(&mut bytes, ATTRIBUTE_LENGTH_OFFSET, &length.to_le_bytes());
    put(&mut bytes, ATTRIBUTE_VALUE_LENGTH_OFFSET, &value_length.to_le_bytes());
    Some(bytes)
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}
