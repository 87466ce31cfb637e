//! Files that Windows compressed as a whole ("CompactOS", the Windows Overlay Filter): the main stream is a hole as long as the file, and
//! what it would hold is in the stream `WofCompressedData`, chunk by chunk behind a table of where they end.
//!
//! The structures are `WOF_EXTERNAL_INFO` and `FILE_PROVIDER_EXTERNAL_INFO` of Windows' `ntifs.h`; the stream is as in a resource of a WIM.

use block::{Error, ReadAt, Result, read_vec};
use extent::Offset;

use super::data::of_stream;
use super::layout::ATTR_DATA;
use super::mft::Mft;
use super::record::Record;
use crate::browse::Contents;
use crate::unpack::units::{Units, Unpack};
use crate::unpack::{lzx, xpress};

/// What the stream is called.
const STREAM: &str = "WofCompressedData";
/// Where the numbers behind a reparse point's head begin.
const INFO_AT: usize = 8;
/// Files: others are in a WIM elsewhere.
const PROVIDER_FILE: u32 = 2;
const VERSION: u32 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Algorithm {
    Xpress,
    Lzx,
}

/// Opens the main stream of a file with this reparse point.
pub(super) fn open(mft: &Mft, record: &Record<'_>, point: &[u8]) -> Result<Box<dyn Contents>> {
    let number = |index: usize| {
        let bytes = point.get(INFO_AT + 4 * index..).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(u32::MAX, |bytes| u32::from_le_bytes(*bytes))
    };
    let unsupported = |what: &str| {
        Err(Error::unsupported(format!("NTFS file {} is compressed by Windows {what}", record.number())))
    };
    if (number(0), number(1), number(2)) != (VERSION, PROVIDER_FILE, VERSION) {
        return unsupported("in a file elsewhere (WIM), or in a way that is not known");
    }
    let (algorithm, chunk_bytes) = match number(3) {
        0 => (Algorithm::Xpress, 4 << 10),
        1 => (Algorithm::Lzx, lzx::CHUNK_BYTES),
        2 => (Algorithm::Xpress, 8 << 10),
        3 => (Algorithm::Xpress, 16 << 10),
        _ => return unsupported("by an algorithm that is not known"),
    };
    let missing = |what: &str| record.error().field(what, "missing", "that of a compressed file");
    let size_bytes = mft.stream(record, ATTR_DATA, "")?.ok_or_else(|| missing("main stream"))?.len_bytes();
    let packed = mft.stream(record, ATTR_DATA, STREAM)?.ok_or_else(|| missing(STREAM))?;
    let what = format!("stream {STREAM} of NTFS file {}", record.number());
    let packed = of_stream(mft, packed, &what)?;
    let count = size_bytes.div_ceil(chunk_bytes);
    // Where a chunk ends takes 8 bytes in files that 4 do not reach through.
    let entry_bytes = if size_bytes > u64::from(u32::MAX) { 8 } else { 4 };
    let table_bytes = count.saturating_sub(1) * entry_bytes;
    if table_bytes > packed.len_bytes() {
        let expected = format!("{table_bytes} or more");
        return Err(record.error().field(format!("size of {STREAM}"), packed.len_bytes(), expected));
    }
    let record = record.number().0;
    let chunks =
        Chunks { record, packed, algorithm, chunk_bytes, size_bytes, count, entry_bytes, table_bytes };
    Ok(Box::new(Units::new(chunks, size_bytes)))
}

/// The chunks of a file.
struct Chunks {
    record: u64,
    packed: Box<dyn Contents>,
    algorithm: Algorithm,
    chunk_bytes: u64,
    size_bytes: u64,
    count: u64,
    entry_bytes: u64,
    table_bytes: u64,
}

impl Chunks {
    /// Where a chunk begins behind the table.
    fn start(&self, index: u64) -> Result<u64> {
        if index == 0 {
            return Ok(0);
        }
        if index >= self.count {
            return Ok(self.packed.len_bytes() - self.table_bytes);
        }
        let mut bytes = [0; 8];
        let entry = &mut bytes[..if self.entry_bytes == 8 { 8 } else { 4 }];
        self.packed.read_at(Offset::new((index - 1) * self.entry_bytes), entry)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn wrong(&self, index: u64, expected: &str) -> Error {
        let error = Error::corrupt(super::Corrupt::File { record: self.record });
        error.field("compressed chunk", index, expected)
    }
}

impl Unpack for Chunks {
    fn unit_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    fn next_unit(&self, index: u64) -> Result<Option<u64>> {
        Ok((index < self.count).then_some(index))
    }

    fn unit(&self, index: u64) -> Result<Vec<u8>> {
        let len = self.chunk_bytes.min(self.size_bytes - index * self.chunk_bytes);
        let (start, end) = (self.start(index)?, self.start(index + 1)?);
        let room = self.packed.len_bytes() - self.table_bytes;
        let packed_bytes = end.checked_sub(start).filter(|bytes| *bytes <= len && end <= room);
        let packed_bytes =
            packed_bytes.ok_or_else(|| self.wrong(index, "one no longer than what is in it"))?;
        let at = Offset::new(self.table_bytes + start);
        let packed = read_vec(&*self.packed, at, packed_bytes, "NTFS compressed chunk")?;
        // What did not become shorter is as it is.
        if packed_bytes == len {
            return Ok(packed);
        }
        let len = usize::try_from(len).expect("some kilobytes");
        let unpacked = match self.algorithm {
            Algorithm::Xpress => xpress::unpack(&packed, len),
            Algorithm::Lzx => lzx::unpack(&packed, len),
        };
        unpacked.map_err(|_| self.wrong(index, "one that can be unpacked"))
    }
}
