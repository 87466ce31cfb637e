//! One file put together from its attributes, which come from its base record and its extension records.
//!
//! Invariants:
//! - a stream's extents are in its order, on the volume, joined where they continue each other, and no more clusters
//!   than the volume has;
//! - what was understood before something broken stays.
//!
//! Nothing is read here. Memory is reused from file to file.

use std::ops::Range;

use block::Result;
use extent::Offset;

use super::boot::Geometry;
use super::growth::Growth;
use super::layout::{
    ATTR_DATA, ATTR_FILE_NAME, ATTR_INDEX_ALLOCATION, ATTR_INDEX_ROOT, ATTR_REPARSE_POINT,
    ATTRIBUTE_COMPRESSION_MASK, FILE_NAME_DOS, FILE_NAME_WIN32,
};
use super::record::{Attribute, Mapped, RecordNumber, Value, utf16_is};
use super::roots::file_name;
use super::runs::Run;
use crate::files::{FileExtent, PieceState};

/// The name of a directory's index.
const DIRECTORY_INDEX: &str = "$I30";

/// What is known of one file.
#[derive(Default)]
pub(super) struct Gathered {
    pub(super) streams: Vec<GatheredStream>,
    extents: Vec<FileExtent>,
    names: Vec<GatheredName>,
    /// The names of files and streams, in UTF-16.
    text: Vec<u8>,
    /// What a directory's index root holds, if it has one.
    index_root_bytes: Option<u64>,
    /// The tag of a reparse point that is in the record.
    pub(super) reparse_tag: Option<u32>,
    /// How its run lists can grow, where that is asked.
    pub(super) growth: Option<Growth>,
}

/// A stream, as far as its pieces came.
pub(super) struct GatheredStream {
    pub(super) kind: u32,
    name: Range<usize>,
    pub(super) size_bytes: u64,
    pub(super) is_inline: bool,
    state: PieceState,
    /// The first cluster that was never written.
    unwritten_vcn: u64,
    /// The cluster after the last one that was mapped.
    next_vcn: u64,
    /// Clusters that it occupies.
    cluster_count: u64,
    extents: Range<usize>,
}

struct GatheredName {
    parent: RecordNumber,
    kind: u8,
    name: Range<usize>,
}

impl GatheredStream {
    /// Whether it is the file's data, and no named stream.
    pub(super) fn is_main_data(&self) -> bool {
        self.kind == ATTR_DATA && self.name.is_empty()
    }
}

impl Gathered {
    /// Nothing yet; how run lists can grow is to be gathered, too.
    pub(super) fn with_growth() -> Self {
        Self { growth: Some(Growth::default()), ..Self::default() }
    }

    /// Forgets the file.
    pub(super) fn clear(&mut self) {
        self.streams.clear();
        self.extents.clear();
        self.names.clear();
        self.text.clear();
        self.index_root_bytes = None;
        self.reparse_tag = None;
        if let Some(growth) = &mut self.growth {
            growth.clear();
        }
    }

    /// Takes an attribute, or the next piece of one. They come by type and name, pieces in their order.
    pub(super) fn take(&mut self, attribute: &Attribute<'_>, geometry: &Geometry) -> Result<()> {
        match attribute.value()? {
            Value::Resident(value) => self.take_resident(attribute, value),
            Value::NonResident(mapped) => self.take_mapped(attribute, &mapped, geometry),
        }
    }

    fn take_resident(&mut self, attribute: &Attribute<'_>, value: &[u8]) -> Result<()> {
        match attribute.kind() {
            ATTR_DATA => self.begin(attribute, value.len() as u64, true),
            ATTR_FILE_NAME => {
                let (parent, kind, utf16) = file_name(attribute)?;
                let name = keep(&mut self.text, utf16);
                self.names.push(GatheredName { parent: parent.number, kind, name });
                Ok(())
            }
            ATTR_INDEX_ROOT if attribute.is_named(DIRECTORY_INDEX) => {
                self.index_root_bytes = Some(value.len() as u64);
                Ok(())
            }
            ATTR_REPARSE_POINT => {
                self.reparse_tag = value.first_chunk().map(|tag| u32::from_le_bytes(*tag));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn take_mapped(
        &mut self,
        attribute: &Attribute<'_>,
        mapped: &Mapped<'_>,
        geometry: &Geometry,
    ) -> Result<()> {
        if mapped.lowest_vcn == 0 {
            self.begin(attribute, mapped.data_bytes, false)?;
        }
        let is_continued = self.streams.last().is_some_and(|last| {
            !last.is_inline
                && last.kind == attribute.kind()
                && self.text[last.name.clone()] == *attribute.name()
        });
        let stream_index = self.streams.len().saturating_sub(1);
        let Some(stream) = self.streams.last_mut().filter(|_| is_continued) else {
            return Err(attribute.error("lowest VCN", mapped.lowest_vcn, "0, as no piece comes before it"));
        };
        if mapped.lowest_vcn == 0 {
            stream.unwritten_vcn = mapped.initialized_bytes.div_ceil(geometry.cluster_bytes);
        }
        if let Some(growth) = &mut self.growth {
            // What was never written is shown apart, except of compressed streams.
            let unwritten_vcn =
                if stream.state == PieceState::Written { stream.unwritten_vcn } else { u64::MAX };
            growth.take(stream_index, attribute, mapped, unwritten_vcn, geometry.cluster_count)?;
        }
        let gap_at = stream.next_vcn;
        if mapped.lowest_vcn < gap_at {
            return Err(attribute.error("lowest VCN", mapped.lowest_vcn, &gap_at.to_string()));
        }
        stream.next_vcn = mapped.lowest_vcn;
        let extents = &mut self.extents;
        let taken = attribute.each_run(mapped, geometry.cluster_count, |run| {
            stream.push(extents, run, geometry).ok_or_else(|| {
                attribute.error("run list", "more clusters than the volume has", "those of one file")
            })
        });
        // Also after an error: the runs before it stay.
        stream.extents.end = self.extents.len();
        taken?;
        if mapped.lowest_vcn > gap_at {
            return Err(attribute.error("lowest VCN", mapped.lowest_vcn, &gap_at.to_string()));
        }
        Ok(())
    }

    fn begin(&mut self, attribute: &Attribute<'_>, size_bytes: u64, is_inline: bool) -> Result<()> {
        let is_known = |stream: &GatheredStream| {
            stream.kind == attribute.kind() && self.text[stream.name.clone()] == *attribute.name()
        };
        if self.streams.last().is_some_and(is_known) {
            return Err(attribute.error("number of attributes", "another", "one of each type and name"));
        }
        let is_compressed = attribute.flags() & ATTRIBUTE_COMPRESSION_MASK != 0;
        self.streams.push(GatheredStream {
            kind: attribute.kind(),
            name: keep(&mut self.text, attribute.name()),
            size_bytes,
            is_inline,
            state: if is_compressed { PieceState::Compressed } else { PieceState::Written },
            unwritten_vcn: 0,
            next_vcn: 0,
            cluster_count: 0,
            extents: self.extents.len()..self.extents.len(),
        });
        Ok(())
    }

    /// The index of the stream that is the file's contents: a directory's index, else the unnamed data.
    pub(super) fn main_stream(&self, is_directory: bool) -> Option<usize> {
        let (kind, name) =
            if is_directory { (ATTR_INDEX_ALLOCATION, DIRECTORY_INDEX) } else { (ATTR_DATA, "") };
        self.streams.iter().position(|stream| stream.kind == kind && utf16_is(self.name(stream), name))
    }

    /// Bytes of the contents where no stream has them: a directory so small that its index is in the record.
    pub(super) fn inline_bytes(&self, is_directory: bool) -> u64 {
        self.index_root_bytes.filter(|_| is_directory).unwrap_or(0)
    }

    /// The name of a stream, in UTF-16.
    pub(super) fn name(&self, stream: &GatheredStream) -> &[u8] {
        &self.text[stream.name.clone()]
    }

    /// The extents of a stream.
    pub(super) fn extents(&self, stream: &GatheredStream) -> &[FileExtent] {
        &self.extents[stream.extents.clone()]
    }

    /// The stream of a kind, whatever its name.
    pub(super) fn stream_of(&self, kind: u32) -> Option<&GatheredStream> {
        self.streams.iter().find(|stream| stream.kind == kind)
    }

    /// A stream whose pieces end before its contents do, if there is one: what it has, and what it should have.
    pub(super) fn incomplete(&self, geometry: &Geometry) -> Option<(&GatheredStream, u64)> {
        let mapped_bytes = |stream: &GatheredStream| stream.next_vcn.saturating_mul(geometry.cluster_bytes);
        let incomplete =
            |stream: &&GatheredStream| !stream.is_inline && mapped_bytes(stream) < stream.size_bytes;
        self.streams.iter().find(incomplete).map(|stream| (stream, mapped_bytes(stream)))
    }

    /// The names with their directories, in UTF-16. A short name is left out where the file has a long one.
    pub(super) fn names(&self) -> impl Iterator<Item = (RecordNumber, &[u8])> {
        let has_long = self.names.iter().any(|name| name.kind == FILE_NAME_WIN32);
        let shown = self.names.iter().filter(move |name| !has_long || name.kind != FILE_NAME_DOS);
        shown.map(|name| (name.parent, &self.text[name.name.clone()]))
    }
}

impl GatheredStream {
    /// Adds the next run; `None` if the stream would be larger than the volume.
    fn push(&mut self, extents: &mut Vec<FileExtent>, run: Run, geometry: &Geometry) -> Option<()> {
        let vcn = self.next_vcn;
        let end = vcn.checked_add(run.count)?;
        if let Some(lcn) = run.lcn {
            self.cluster_count = self.cluster_count.checked_add(run.count)?;
            end.checked_mul(geometry.cluster_bytes)?;
            if self.cluster_count > geometry.cluster_count {
                return None;
            }
            let written = match self.state {
                PieceState::Written => self.unwritten_vcn.clamp(vcn, end) - vcn,
                _ => run.count,
            };
            self.push_extent(extents, geometry, [vcn, lcn, written], self.state);
            let rest = [vcn + written, lcn + written, run.count - written];
            self.push_extent(extents, geometry, rest, PieceState::Unwritten);
        }
        self.next_vcn = end;
        Some(())
    }

    fn push_extent(
        &self,
        extents: &mut Vec<FileExtent>,
        geometry: &Geometry,
        [vcn, lcn, count]: [u64; 3],
        state: PieceState,
    ) {
        if count == 0 {
            return;
        }
        let logical = Offset::new(vcn * geometry.cluster_bytes);
        let span = geometry.span_of(lcn, count);
        match extents[self.extents.start..].last_mut() {
            Some(last)
                if last.state == state
                    && last.span.end() == span.start()
                    && last.logical.get() + last.span.len_bytes() == logical.get() =>
            {
                last.span = extent::Span::between(last.span.start(), span.end());
            }
            _ => extents.push(FileExtent { logical, span, state }),
        }
    }
}

fn keep(text: &mut Vec<u8>, name: &[u8]) -> Range<usize> {
    let start = text.len();
    text.extend_from_slice(name);
    start..text.len()
}
