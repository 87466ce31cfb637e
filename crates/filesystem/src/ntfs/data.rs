//! What one `$DATA` attribute holds: as it is, or compressed with LZNT1 unit by unit.

use block::{Error, ReadAt, Result, read_vec};
use extent::{File, FileOffset, Offset, Span};

use super::layout::{ATTRIBUTE_COMPRESSION_MASK, ATTRIBUTE_ENCRYPTED, ATTRIBUTE_LZNT1, ATTRIBUTE_SPARSE};
use super::mft::Mft;
use super::stream::Stream;
use crate::Source;
use crate::browse::Contents;
use crate::unpack::lznt1;
use crate::unpack::units::{Units, Unpack};

/// The largest unit of compression: 16 clusters of 4 KiB; larger ones are allowed for.
const UNIT_BYTES_MAX: u64 = 1 << 20;

/// What a stream holds.
pub(super) fn of_stream(mft: &Mft, stream: Stream, what: &str) -> Result<Box<dyn Contents>> {
    let flags = stream.flags();
    if flags & ATTRIBUTE_ENCRYPTED != 0 {
        return Err(Error::unsupported(format!("{what} is encrypted (EFS)")));
    }
    // A value in the record is as it is, also of a file that would be compressed elsewhere.
    let packing = if stream.is_resident() { 0 } else { flags & ATTRIBUTE_COMPRESSION_MASK };
    match (packing, flags & !(ATTRIBUTE_COMPRESSION_MASK | ATTRIBUTE_SPARSE)) {
        (0, 0) => Ok(Box::new(Plain(stream))),
        (ATTRIBUTE_LZNT1, 0) => {
            let cluster_bytes = mft.geometry.cluster_bytes;
            let clusters = 1_u64.checked_shl(stream.compression_unit().into()).unwrap_or(0);
            let unit_bytes = clusters.checked_mul(cluster_bytes).filter(|bytes| *bytes <= UNIT_BYTES_MAX);
            let unit_bytes = unit_bytes.filter(|_| clusters > 1).ok_or_else(|| {
                stream.error().field("compression unit", clusters, "2 clusters or more, 1 MiB at most")
            })?;
            let size_bytes = stream.len_bytes();
            let source = mft.source.clone();
            Ok(Box::new(Units::new(
                Compressed { source, stream, clusters, unit_bytes, cluster_bytes },
                size_bytes,
            )))
        }
        _ => {
            Err(Error::unsupported(format!("{what} is kept in a way that is not known (flags {flags:#06x})")))
        }
    }
}

/// A stream in the address space that all file systems share.
struct Plain(Stream);

impl ReadAt<File> for Plain {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn read_at(&self, at: FileOffset, buf: &mut [u8]) -> Result<()> {
        self.0.read_at(Offset::new(at.get()), buf)
    }
}

impl Contents for Plain {
    fn next_data(&self, at: FileOffset) -> Result<Option<Span<File>>> {
        let end = self.0.initialized_bytes().min(self.0.len_bytes());
        if self.0.is_resident() {
            return Ok((at.get() < end).then(|| Span::between(at, FileOffset::new(end))));
        }
        let span = self.0.next_mapped(at.get()).filter(|span| span.start < end);
        let span = span.map(|span| (span.start.max(at.get()), span.end.min(end)));
        Ok(span
            .filter(|(start, end)| start < end)
            .map(|(start, end)| Span::between(FileOffset::new(start), FileOffset::new(end))))
    }
}

/// A stream that is compressed with LZNT1, unit by unit.
struct Compressed {
    source: Source,
    stream: Stream,
    /// Of each unit.
    clusters: u64,
    unit_bytes: u64,
    cluster_bytes: u64,
}

impl Unpack for Compressed {
    fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    fn next_unit(&self, index: u64) -> Result<Option<u64>> {
        let at = index.saturating_mul(self.unit_bytes);
        let end = self.stream.initialized_bytes();
        let span = self.stream.next_mapped(at).filter(|span| span.start < end);
        Ok(span.map(|span| span.start.max(at) / self.unit_bytes))
    }

    /// A unit has all of its clusters, and is as it is; or it lacks some in the end, and is compressed in those that it has.
    fn unit(&self, index: u64) -> Result<Vec<u8>> {
        let at = index * self.unit_bytes;
        let (mut packed, mut expected) = (Vec::new(), at);
        let end = at.saturating_add(self.unit_bytes).min(self.stream.mapped_bytes());
        self.stream.each_place(at, end.saturating_sub(at), |place, span| {
            if place != expected {
                return Err(self.stream.error().field("compressed unit", "a hole", "none before its end"));
            }
            expected = place + span.len_bytes();
            packed.extend(read_vec(&*self.source, span.start(), span.len_bytes(), "NTFS compressed unit")?);
            Ok(())
        })?;
        let unit_bytes = usize::try_from(self.unit_bytes).expect("at most 1 MiB");
        let mut unit = match (packed.len() as u64).div_ceil(self.cluster_bytes) == self.clusters {
            true => packed,
            false => lznt1::unpack(&packed, unit_bytes).map_err(|_| {
                self.stream.error().field("compressed unit", index, "one that can be unpacked")
            })?,
        };
        // What was never written is zeros, whatever is there.
        let written = self.stream.initialized_bytes().saturating_sub(at);
        unit.truncate(usize::try_from(written).unwrap_or(usize::MAX));
        Ok(unit)
    }
}
