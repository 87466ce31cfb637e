//! The bytes of one attribute.

use block::{Error, ReadAt, Result};
use extent::VolumeOffset;

use super::corrupt::CorruptNtfs;
use super::pairs::{Run, each_run};
use super::record::{Attribute, Body};
use crate::volume::Source;

/// The most runs of a stream that is read here, in 24 bytes each.
const RUN_COUNT_MAX: usize = 2 << 20;

/// An attribute's value, readable by position.
pub(super) struct Stream {
    source: Source,
    cluster_bytes: u64,
    label: String,
    resident: Option<Vec<u8>>,
    pub(super) runs: Vec<Run>,
    pub(super) data_bytes: u64,
    initialized_bytes: u64,
}

impl Stream {
    /// The stream that `first` begins.
    pub(super) fn begin(
        source: &Source,
        cluster_bytes: u64,
        cluster_count: u64,
        first: &Attribute<'_>,
    ) -> Result<Self> {
        let (resident, data_bytes, initialized_bytes) = match first.body {
            Body::Resident(value, _) => (Some(value.to_vec()), value.len() as u64, value.len() as u64),
            Body::Mapped(mapped) => (None, mapped.data_bytes, mapped.initialized_bytes),
        };
        let label = format!("{} of NTFS file record {}", first.label(), first.record.number);
        let mut stream = Self {
            source: source.clone(),
            cluster_bytes,
            label,
            resident,
            runs: Vec::new(),
            data_bytes,
            initialized_bytes,
        };
        if stream.resident.is_none() {
            stream.append(cluster_count, first)?;
        }
        Ok(stream)
    }

    /// The VCN after the last that is mapped.
    pub(super) fn end_vcn(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.vcn + run.count)
    }

    /// Adds the next piece.
    pub(super) fn append(&mut self, cluster_count: u64, piece: &Attribute<'_>) -> Result<()> {
        let Body::Mapped(mapped) = piece.body else {
            return Err(piece.error("residence", 0, 1));
        };
        if mapped.lowest_vcn != self.end_vcn() {
            return Err(piece.error("lowest VCN", mapped.lowest_vcn, self.end_vcn()));
        }
        each_run(piece, &mapped, cluster_count, |run| {
            if self.runs.len() >= RUN_COUNT_MAX {
                return Err(Error::unsupported(format!("{} has more than {RUN_COUNT_MAX} runs", self.label)));
            }
            self.runs.push(run);
            Ok(())
        })
    }

    /// Where a byte lies, for messages and for those who read in pieces; `None` in a hole. And how many follow it there.
    pub(super) fn place(&self, at: u64) -> Option<(Option<VolumeOffset>, u64)> {
        let vcn = at / self.cluster_bytes;
        let run = self.runs.get(self.runs.partition_point(|run| run.vcn + run.count <= vcn))?;
        let skip = at - run.vcn * self.cluster_bytes;
        let left = run.count.checked_mul(self.cluster_bytes)? - skip;
        Some((run.lcn.map(|lcn| VolumeOffset::new(lcn * self.cluster_bytes + skip)), left))
    }

    /// Fills `buf` with the bytes from `at`, which must be there.
    pub(super) fn read(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        let short = || {
            Error::corrupt(CorruptNtfs::Stream { label: self.label.to_string() }).field(
                "bytes",
                self.data_bytes,
                format!("more than {at}"),
            )
        };
        let end = at.checked_add(buf.len() as u64).filter(|end| *end <= self.data_bytes).ok_or_else(short)?;
        if let Some(value) = &self.resident {
            let (from, to) = (usize::try_from(at), usize::try_from(end));
            let (Ok(from), Ok(to)) = (from, to) else { return Err(short()) };
            buf.copy_from_slice(&value[from..to]);
            return Ok(());
        }
        let mut done = 0;
        while done < buf.len() {
            let position = at + done as u64;
            let (place, mut left) = self.place(position).ok_or_else(short)?;
            if position < self.initialized_bytes {
                left = left.min(self.initialized_bytes - position);
            }
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len() - done);
            let piece = &mut buf[done..done + len];
            match place {
                Some(place) if position < self.initialized_bytes => self.source.read_at(place, piece)?,
                _ => piece.fill(0),
            }
            done += len;
        }
        Ok(())
    }

    /// All of it, if that is at most `bytes_max`.
    pub(super) fn read_all(&self, bytes_max: u64) -> Result<Vec<u8>> {
        let len = usize::try_from(self.data_bytes).ok().filter(|_| self.data_bytes <= bytes_max);
        let len = len.ok_or_else(|| {
            Error::corrupt(CorruptNtfs::Stream { label: self.label.to_string() }).field(
                "bytes",
                self.data_bytes,
                format!("at most {bytes_max}"),
            )
        })?;
        // Memory is taken only for what the volume can hold.
        if self.resident.is_none() && self.data_bytes > self.source.len_bytes() {
            return Err(Error::corrupt(CorruptNtfs::Stream { label: self.label.to_string() }).field(
                "bytes",
                self.data_bytes,
                "no more than the volume's",
            ));
        }
        let mut bytes = vec![0; len];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }
}
