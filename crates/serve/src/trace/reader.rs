//! Reads a recording, block by block: one that was cut short up to where it is whole.

use std::io::Read;

use block::{Error, Result};
use zerocopy::FromBytes;

use super::corrupt::Corrupt;
use super::layout::{BLOCK_HEADER_BYTES, BLOCK_MAGIC, BlockHeader, HEADER_BYTES, Header, MAGIC, VERSION};
use super::record::Decoder;
use super::{Event, TraceFacts, read_up_to};

/// The most that a reader takes for a block: ours are shorter.
const BLOCK_BYTES_MAX: usize = 1 << 20;
/// What failed if the recording cannot be read.
const WHAT: &str = "read the recording";

/// Reads a recording.
pub struct TraceReader<R> {
    from: R,
    facts: TraceFacts,
    began_unix_ns: u64,
    records: Decoder,
    left: u32,
    dropped: u64,
    is_truncated: bool,
}

impl<R: Read> TraceReader<R> {
    /// Reads the header.
    pub fn new(mut from: R) -> Result<Self> {
        let mut bytes = [0; HEADER_BYTES];
        if read_up_to(&mut from, &mut bytes, WHAT)? < HEADER_BYTES {
            return Err(Error::corrupt(Corrupt::Short));
        }
        let header = Header::read_from_bytes(&bytes).map_err(|_| Error::corrupt(Corrupt::Header))?;
        if header.magic != MAGIC {
            return Err(Error::corrupt(Corrupt::Foreign));
        }
        let (version, header_bytes) = (header.version.get(), header.header_bytes.get());
        if version != VERSION {
            return Err(Error::unsupported("recording").field("version", version, VERSION));
        }
        if header_bytes != 64 {
            return Err(Error::corrupt(Corrupt::Header).field("header length", header_bytes, 64));
        }
        let checksum = crc32c::crc32c(&bytes[..HEADER_BYTES - 4]);
        if header.checksum.get() != checksum {
            return Err(Error::corrupt(Corrupt::Header).field("checksum", header.checksum.get(), checksum));
        }
        Ok(Self {
            from,
            facts: TraceFacts {
                disk_bytes: header.disk_bytes.get(),
                sector_bytes: header.sector_bytes.get(),
            },
            began_unix_ns: header.began_unix_ns.get(),
            records: Decoder::default(),
            left: 0,
            dropped: 0,
            is_truncated: false,
        })
    }

    /// What the recording says of its disk.
    pub fn facts(&self) -> TraceFacts {
        self.facts
    }

    /// Nanoseconds since 1970 at which it began.
    pub fn began_unix_ns(&self) -> u64 {
        self.began_unix_ns
    }

    /// Requests that were dropped, as far as it was read.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether it ended in the middle of a block.
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// The next request, in order of completion. `None` at the end.
    pub fn next_event(&mut self) -> Result<Option<Event>> {
        while self.left == 0 {
            if !self.records.is_at_end() {
                return Err(Error::corrupt(Corrupt::Surplus));
            }
            if !self.next_block()? {
                return Ok(None);
            }
        }
        self.left -= 1;
        self.records.decode().map(Some).ok_or_else(|| Error::corrupt(Corrupt::Record))
    }

    fn next_block(&mut self) -> Result<bool> {
        let mut bytes = [0; BLOCK_HEADER_BYTES];
        let len = read_up_to(&mut self.from, &mut bytes, WHAT)?;
        if len < BLOCK_HEADER_BYTES {
            self.is_truncated = len > 0;
            return Ok(false);
        }
        let header = BlockHeader::read_from_bytes(&bytes).map_err(|_| Error::corrupt(Corrupt::Block))?;
        if header.magic.get() != BLOCK_MAGIC {
            return Err(Error::corrupt(Corrupt::Block).field("magic", header.magic.get(), BLOCK_MAGIC));
        }
        let payload_bytes = header.payload_bytes.get() as usize;
        if payload_bytes > BLOCK_BYTES_MAX {
            return Err(Error::corrupt(Corrupt::Block).field("length", payload_bytes, "at most 1 MiB"));
        }
        let mut records = vec![0; payload_bytes];
        if read_up_to(&mut self.from, &mut records, WHAT)? < payload_bytes {
            self.is_truncated = true;
            self.records = Decoder::default();
            return Ok(false);
        }
        let checksum = crc32c::crc32c(&records);
        if checksum != header.checksum.get() {
            return Err(Error::corrupt(Corrupt::Block).field("checksum", header.checksum.get(), checksum));
        }
        self.left = header.record_count.get();
        self.records = Decoder::new(records, header.base_us.get());
        self.dropped = self.dropped.saturating_add(header.dropped.get());
        Ok(true)
    }
}
