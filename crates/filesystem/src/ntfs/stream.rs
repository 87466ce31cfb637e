//! The bytes of one attribute, read through its run list.

use std::ops::Range;

use block::{Error, FieldValue, ReadAt, Result, check_bounds};
use extent::{Offset, Span, Volume, VolumeOffset, VolumeSpan};

use super::boot::{FileBytes, Geometry};
use super::record::{Attribute, RecordNumber, Value};
use crate::Source;
use crate::ntfs::corrupt::Corrupt;

/// The most runs of one file that are held in memory, 24 bytes each. An attribute list of NTFS's own limit,
/// 256 KiB, allows about as many.
const RUN_COUNT_MAX: usize = 2 << 20;

/// Clusters of a file that lie together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StreamRun {
    /// The first cluster in the file.
    pub(super) vcn: u64,
    /// The first cluster on the volume; `None` for a hole.
    pub(super) lcn: Option<u64>,
    /// Clusters.
    pub(super) count: u64,
}

/// An attribute's value, readable at any position.
#[derive(Clone)]
pub(super) struct Stream {
    source: Source,
    geometry: Geometry,
    owner: RecordNumber,
    flags: u16,
    body: Body,
}

#[derive(Clone)]
enum Body {
    Resident(Vec<u8>),
    Mapped {
        runs: Vec<StreamRun>,
        mapped_vcns: u64,
        allocated_bytes: u64,
        data_bytes: u64,
        initialized_bytes: u64,
        compression_unit: u8,
    },
}

impl Stream {
    /// The stream that begins with `attribute`, its first piece.
    pub(super) fn begin(
        source: &Source,
        geometry: &Geometry,
        owner: RecordNumber,
        attribute: &Attribute<'_>,
    ) -> Result<Self> {
        let mut stream = Self {
            source: source.clone(),
            geometry: *geometry,
            owner,
            flags: attribute.flags(),
            body: Body::Resident(Vec::new()),
        };
        stream.body = match attribute.value()? {
            Value::Resident(value) => Body::Resident(value.to_vec()),
            Value::NonResident(mapped) => Body::Mapped {
                runs: Vec::new(),
                mapped_vcns: 0,
                allocated_bytes: mapped.allocated_bytes,
                data_bytes: mapped.data_bytes,
                initialized_bytes: mapped.initialized_bytes,
                compression_unit: mapped.compression_unit,
            },
        };
        if let Body::Mapped { .. } = stream.body {
            stream.append(attribute)?;
        }
        Ok(stream)
    }

    /// Adds the next piece, which must continue where the last one ended.
    pub(super) fn append(&mut self, attribute: &Attribute<'_>) -> Result<()> {
        let Value::NonResident(piece) = attribute.value()? else {
            return Err(attribute.error("residence", "0", "1, as of the first piece"));
        };
        let Body::Mapped { runs, mapped_vcns, .. } = &mut self.body else {
            return Err(attribute.error("residence", "1", "0, as of the first piece"));
        };
        if piece.lowest_vcn != *mapped_vcns {
            return Err(attribute.error("lowest VCN", piece.lowest_vcn, &mapped_vcns.to_string()));
        }
        attribute.each_run(&piece, self.geometry.cluster_count, |run| {
            if runs.len() >= RUN_COUNT_MAX {
                return Err(Error::unsupported(format!("NTFS file with more than {RUN_COUNT_MAX} runs")));
            }
            runs.push(StreamRun { vcn: *mapped_vcns, lcn: run.lcn, count: run.count });
            *mapped_vcns += run.count;
            Ok(())
        })
    }

    /// Checks that the pieces together are the whole.
    pub(super) fn finish(self) -> Result<Self> {
        if let Body::Mapped { mapped_vcns, allocated_bytes, data_bytes, initialized_bytes, .. } = &self.body {
            let mapped_bytes = mapped_vcns.checked_mul(self.geometry.cluster_bytes);
            if mapped_bytes != Some(*allocated_bytes) {
                let expected = format!("the {mapped_vcns} clusters of its run list");
                return Err(self.error().field("allocated size", *allocated_bytes, expected));
            }
            if data_bytes > allocated_bytes || initialized_bytes > data_bytes {
                let found = format!("{data_bytes} ({initialized_bytes} initialised)");
                return Err(self.error().field("size", found, format!("at most {allocated_bytes}")));
            }
        }
        Ok(self)
    }

    /// Whether all of it up to `len_bytes` is written, in clusters of its own, as it is: what NTFS's own
    /// files must be.
    pub(super) fn require_plain(&self, len_bytes: u64) -> Result<()> {
        if self.flags != 0 {
            return Err(self.error().field("flags", FieldValue::hex(self.flags), "0"));
        }
        if self.len_bytes().min(self.initialized_bytes()) < len_bytes {
            let found = format!("{} ({} initialised)", self.len_bytes(), self.initialized_bytes());
            return Err(self.error().field("size", found, format!("at least {len_bytes}")));
        }
        if let Some(hole) = self.runs().iter().find(|run| run.lcn.is_none()) {
            return Err(self.error().field(
                "run list",
                format!("a hole at cluster {}", hole.vcn),
                "no holes",
            ));
        }
        Ok(())
    }

    /// An error about this stream.
    pub(super) fn error(&self) -> Error {
        Error::corrupt(Corrupt::File { record: self.owner.0 })
    }

    pub(super) fn flags(&self) -> u16 {
        self.flags
    }

    /// Power of two of the clusters in a compression unit; 0 if it is not compressed.
    pub(super) fn compression_unit(&self) -> u8 {
        match &self.body {
            Body::Resident(_) => 0,
            Body::Mapped { compression_unit, .. } => *compression_unit,
        }
    }

    /// Bytes of all clusters, holes included.
    pub(super) fn mapped_bytes(&self) -> u64 {
        let last = self.runs().last().map_or(0, |run| run.vcn + run.count);
        last.saturating_mul(self.geometry.cluster_bytes)
    }

    /// The first run that ends behind `at` and is no hole, in bytes of the file.
    pub(super) fn next_mapped(&self, at: u64) -> Option<Range<u64>> {
        let runs = self.runs();
        let vcn = at / self.geometry.cluster_bytes;
        let index = runs.partition_point(|run| run.vcn + run.count <= vcn);
        let run = runs[index..].iter().find(|run| run.lcn.is_some())?;
        let bytes = |vcn: u64| vcn.saturating_mul(self.geometry.cluster_bytes);
        Some(bytes(run.vcn)..bytes(run.vcn + run.count))
    }

    pub(super) fn is_resident(&self) -> bool {
        matches!(self.body, Body::Resident(_))
    }

    pub(super) fn initialized_bytes(&self) -> u64 {
        match &self.body {
            Body::Resident(value) => value.len() as u64,
            Body::Mapped { initialized_bytes, .. } => *initialized_bytes,
        }
    }

    /// The runs in the file's order; none if it is resident.
    pub(super) fn runs(&self) -> &[StreamRun] {
        match &self.body {
            Body::Resident(_) => &[],
            Body::Mapped { runs, .. } => runs,
        }
    }

    /// Where a byte lies on the volume, and how many follow it there.
    fn place(&self, at: u64) -> Result<(Option<VolumeOffset>, u64)> {
        let runs = self.runs();
        let vcn = at / self.geometry.cluster_bytes;
        let index = runs.partition_point(|run| run.vcn + run.count <= vcn);
        let run = runs.get(index).ok_or_else(|| {
            self.error().field("run list", format!("without cluster {vcn}"), "all clusters of the file")
        })?;
        let skip = at - run.vcn * self.geometry.cluster_bytes;
        let end = (run.vcn + run.count).saturating_mul(self.geometry.cluster_bytes);
        let left = end - at;
        Ok((run.lcn.map(|lcn| self.geometry.offset_of(lcn).plus(skip)), left))
    }

    /// Calls `each` with the pieces of `len_bytes` bytes from `at`, in order: where in the file each begins, and where it
    /// lies on the volume. Holes are left out.
    pub(super) fn each_place(
        &self,
        at: u64,
        len_bytes: u64,
        mut each: impl FnMut(u64, VolumeSpan) -> Result<()>,
    ) -> Result<()> {
        let end = at.saturating_add(len_bytes);
        let mut at = at;
        while at < end {
            let (place, left) = self.place(at)?;
            let len_bytes = left.min(end - at);
            if let Some(place) = place {
                each(at, Span::new(place, len_bytes))?;
            }
            at += len_bytes;
        }
        Ok(())
    }

    /// Fills `buf` from `at` as [`ReadAt::read_at`] does, from `volume`.
    pub(super) fn read_from(&self, volume: &dyn ReadAt<Volume>, at: u64, buf: &mut [u8]) -> Result<()> {
        check_bounds::<FileBytes>(Offset::new(at), buf.len(), self.len_bytes())?;
        let initialized_bytes = self.initialized_bytes();
        if let Body::Resident(value) = &self.body {
            let start = usize::try_from(at).expect("within the value");
            buf.copy_from_slice(&value[start..start + buf.len()]);
            return Ok(());
        }
        let mut done = 0;
        while done < buf.len() {
            let position = at + done as u64;
            let (place, mut left) = self.place(position)?;
            if position < initialized_bytes {
                left = left.min(initialized_bytes - position);
            }
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len() - done);
            let piece = &mut buf[done..done + len];
            match place {
                Some(offset) if position < initialized_bytes => volume.read_at(offset, piece)?,
                _ => piece.fill(0),
            }
            done += len;
        }
        Ok(())
    }

    /// Where a byte lies on the volume, for messages.
    pub(super) fn volume_offset(&self, at: u64) -> VolumeOffset {
        self.place(at).ok().and_then(|(offset, _)| offset).unwrap_or(VolumeOffset::ZERO)
    }
}

impl ReadAt<FileBytes> for Stream {
    fn len_bytes(&self) -> u64 {
        match &self.body {
            Body::Resident(value) => value.len() as u64,
            Body::Mapped { data_bytes, .. } => *data_bytes,
        }
    }

    fn read_at(&self, at: Offset<FileBytes>, buf: &mut [u8]) -> Result<()> {
        self.read_from(&*self.source, at.get(), buf)
    }
}
