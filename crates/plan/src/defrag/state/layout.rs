//! What lies where on a volume, for planners.
//!
//! Invariants:
//! - streams and their extents are as the file system showed them, in its order; an extent without bytes is left out;
//! - what may move is whole clusters; a stream that is not is pinned, whatever was said of it.
//!
//! Absent on purpose: where things lie once something moved, which planners keep beside it.

use std::collections::BTreeSet;
use std::ops::Range;

use block::{Error, Result};
use extent::{ExtentSet, Offset, Span, Volume, VolumeOffset, VolumeSpan};
use filesystem::{FileExtent, FileId, FileKind, FileStream, Fragments, Mobility, StreamName, StreamVisitor};

use super::corrupt::BrokenLayout;
use crate::defrag::plan::{Backing, BackingMap};

/// Why a stream is pinned that the file system would let move.
const NOT_WHOLE_CLUSTERS: &str = "its extents are not whole clusters";

/// Reasons differ by kind of stream, not by stream: there are a few tens of them.
const REASONS_MAX: usize = 254;

/// What stands for reasons past the most that are kept apart.
const ANOTHER_REASON: &str = "the file system keeps it in place";

/// The streams of a volume and its free space. Filled by showing it all streams ([`StreamVisitor`]) and all room.
/// A stream in one extent costs 40 bytes.
#[derive(Clone, Debug)]
pub struct Layout {
    cluster_bytes: u64,
    first_cluster: VolumeOffset,
    rule: Fragments,
    backing: BackingMap,
    room: Vec<VolumeSpan>,
    streams: Vec<Entry>,
    extents: Vec<Extent>,
    /// For each extent the bytes of all up to its end, modulo 2^64: what may move does not overlap, so that a difference of two is exact.
    ends: Vec<u64>,
    reasons: Vec<&'static str>,
    /// Files of which no stream moves as a whole any more, see [`Self::in_parts`].
    parted: BTreeSet<FileId>,
    is_too_large: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    file: FileId,
    /// Its first extent; the next entry's is where they end.
    extents_at: u32,
    kind: FileKind,
    is_main: bool,
    moves_together: bool,
    is_anchored: bool,
    /// One more than the index of the reason why it stays; 0 if it may move.
    pinned: u8,
}

#[derive(Clone, Copy, Debug)]
struct Extent {
    logical: u64,
    span: VolumeSpan,
}

impl Layout {
    /// An empty one. `fragments` is the rule by which the file system's runs are counted. What `backing` does not cover
    /// is taken as [`Backing::Fixed`]; plans for volumes written anew do not ask it.
    pub fn new(cluster_bytes: u64, fragments: Fragments, backing: BackingMap) -> Self {
        Self {
            cluster_bytes: cluster_bytes.max(1),
            first_cluster: Offset::ZERO,
            rule: fragments,
            backing,
            room: Vec::new(),
            streams: Vec::new(),
            extents: Vec::new(),
            ends: Vec::new(),
            reasons: Vec::new(),
            parted: BTreeSet::new(),
            is_too_large: false,
        }
    }

    /// Says where the first cluster lies, if it is not where the volume begins.
    #[must_use]
    pub fn with_first_cluster(mut self, first_cluster: VolumeOffset) -> Self {
        self.first_cluster = first_cluster;
        self
    }

    /// Takes the next free span that files may go to.
    pub fn add_room(&mut self, span: VolumeSpan) {
        self.room.push(span);
    }

    /// The files of which a stream moves as a whole, because what describes it may have no room for more.
    pub fn together(&self) -> BTreeSet<FileId> {
        let streams = self.streams.iter().filter(|entry| entry.moves_together && !entry.is_anchored);
        streams.map(|entry| entry.file).collect()
    }

    /// The same where the streams of `files` move extent by extent. Whoever plans with it asks afterwards whether what describes them has
    /// room for that ([`filesystem::Rearrange::crowded`]).
    #[must_use]
    pub fn in_parts(&self, files: &BTreeSet<FileId>) -> Self {
        let mut layout = self.clone();
        for entry in layout.streams.iter_mut().filter(|entry| !entry.is_anchored) {
            entry.moves_together &= !files.contains(&entry.file);
        }
        layout.parted.extend(files);
        layout
    }

    /// The files that move extent by extent although what describes them may have no room for that.
    pub(crate) fn parted(&self) -> &BTreeSet<FileId> {
        &self.parted
    }

    /// How many streams with extents there are.
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    pub(crate) fn extent_count(&self) -> usize {
        self.extents.len()
    }

    pub(crate) fn cluster_bytes(&self) -> u64 {
        self.cluster_bytes
    }

    pub(crate) fn file(&self, stream: usize) -> FileId {
        self.streams[stream].file
    }

    pub(crate) fn is_directory(&self, stream: usize) -> bool {
        self.streams[stream].kind == FileKind::Directory
    }

    /// Whether it is a regular file's main stream: the ones that figures speak of.
    pub(crate) fn is_counted(&self, stream: usize) -> bool {
        let entry = &self.streams[stream];
        entry.is_main && entry.kind == FileKind::Regular
    }

    /// Whether it is a stream of what the file system keeps for itself.
    pub(crate) fn is_metadata(&self, stream: usize) -> bool {
        self.streams[stream].kind == FileKind::Metadata
    }

    /// Why the file system keeps it in place; `None` if it may move.
    pub(crate) fn pinned(&self, stream: usize) -> Option<&'static str> {
        let index = usize::from(self.streams[stream].pinned).checked_sub(1)?;
        Some(self.reasons.get(index).copied().unwrap_or(ANOTHER_REASON))
    }

    /// Whether all but its first extent may move if that is asked for.
    pub(crate) fn is_anchored(&self, stream: usize) -> bool {
        self.streams[stream].is_anchored
    }

    /// The stream's extents, as indices of all.
    pub(crate) fn extents_of(&self, stream: usize) -> Range<usize> {
        let end = self.streams.get(stream + 1).map_or(self.extents.len(), |next| next.extents_at as usize);
        self.streams[stream].extents_at as usize..end
    }

    /// Whether all of a stream's extents have to move at once, to one place.
    pub(crate) fn moves_together(&self, stream: usize) -> bool {
        self.streams[stream].moves_together && self.extents_of(stream).len() > 1
    }

    /// Whose an extent is.
    pub(crate) fn stream_of(&self, extent: usize) -> usize {
        self.streams.partition_point(|entry| entry.extents_at as usize <= extent) - 1
    }

    /// Where an extent lay when the layout was taken.
    pub(crate) fn span(&self, extent: usize) -> VolumeSpan {
        self.extents[extent].span
    }

    pub(crate) fn len_bytes(&self, extent: usize) -> u64 {
        self.extents[extent].span.len_bytes()
    }

    /// Bytes of consecutive extents.
    pub(crate) fn bytes_of(&self, extents: Range<usize>) -> u64 {
        let before = |extent: usize| extent.checked_sub(1).map_or(0, |last| self.ends[last]);
        before(extents.end).wrapping_sub(before(extents.start))
    }

    /// Where every extent lies.
    pub(crate) fn places(&self) -> Vec<VolumeOffset> {
        self.extents.iter().map(|extent| extent.span.start()).collect()
    }

    /// Whether an extent is of one run with the one before it, which is of the same stream, if they lie at these places.
    pub(crate) fn follows(&self, extent: usize, before_at: VolumeOffset, at: VolumeOffset) -> bool {
        let (last, next) = (&self.extents[extent - 1], &self.extents[extent]);
        self.rule.follows(
            (last.logical, before_at.get(), last.span.len_bytes()),
            (next.logical, at.get(), next.span.len_bytes()),
        )
    }

    /// In how many runs the extents are.
    pub(crate) fn run_count(&self, places: &[VolumeOffset], extents: Range<usize>) -> u64 {
        let mut rule = self.rule;
        for index in extents {
            let extent = &self.extents[index];
            rule.push(extent.logical, places[index].get(), extent.span.len_bytes());
        }
        rule.count()
    }

    /// What is free.
    pub(crate) fn room(&self) -> ExtentSet<Volume> {
        self.room.iter().copied().collect()
    }

    /// Whether the container or the host lacks a part of it.
    pub(crate) fn is_thin(&self) -> bool {
        self.backing.iter().any(|(_, backing)| matches!(backing, Backing::Unallocated | Backing::Hole))
    }

    /// The clusters that can be written, and those of them that are stored in full already.
    pub(crate) fn writable(&self) -> (ExtentSet<Volume>, ExtentSet<Volume>) {
        let (writable, _, allocated) = self.backed_clusters();
        (writable, allocated)
    }

    /// The clusters that can be written; those of them for which the container has a place; and those of them that are stored in full.
    pub(crate) fn backed_clusters(&self) -> (ExtentSet<Volume>, ExtentSet<Volume>, ExtentSet<Volume>) {
        let backed = |by: &dyn Fn(Backing) -> bool| {
            let spans = self.backing.iter().filter(|(_, backing)| by(*backing)).map(|(span, _)| *span);
            let whole = |span| self.whole_clusters(span);
            spans.collect::<ExtentSet<Volume>>().iter().map(whole).collect::<ExtentSet<Volume>>()
        };
        let has_place = |backing| matches!(backing, Backing::Allocated | Backing::Hole);
        (backed(&Backing::is_writable), backed(&has_place), backed(&|backing| backing == Backing::Allocated))
    }

    /// What the container has like this, to the byte.
    pub(crate) fn backed(&self, by: Backing) -> ExtentSet<Volume> {
        self.backing.iter().filter(|(_, backing)| *backing == by).map(|(span, _)| *span).collect()
    }

    /// Where the volume ends, as far as that is known.
    pub(crate) fn end(&self) -> VolumeOffset {
        self.backing.iter().map(|(span, _)| span.end()).max().unwrap_or(Offset::ZERO)
    }

    /// The clusters that lie in `span` in full.
    fn whole_clusters(&self, span: VolumeSpan) -> VolumeSpan {
        let base = self.first_cluster.get();
        let clusters = |at: VolumeOffset| at.get().saturating_sub(base) / self.cluster_bytes;
        let is_start = self.is_clusters(span_at(span.start().get(), 0)) || span.start().get() < base;
        let start = clusters(span.start()) + u64::from(!is_start);
        let at =
            |cluster: u64| VolumeOffset::new(cluster.saturating_mul(self.cluster_bytes).saturating_add(base));
        Span::between(at(start), at(clusters(span.end())))
    }

    /// Fails with `Corrupt` if something that may move, or room, is anything else's as well. Everything that comes after relies
    /// on it.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_too_large {
            return Err(Error::unsupported("planning a volume with more than 2^32 extents"));
        }
        let mut all: Vec<(VolumeSpan, bool)> = Vec::with_capacity(self.extents.len() + self.room.len());
        for stream in 0..self.streams.len() {
            let may_move = self.pinned(stream).is_none();
            all.extend(self.extents_of(stream).map(|extent| (self.span(extent), may_move)));
        }
        for span in self.room.iter().filter(|span| !span.is_empty()) {
            if !self.is_clusters(*span) {
                return Err(Error::corrupt(BrokenLayout::NotClusters).at(span.start()));
            }
            all.push((*span, true));
        }
        all.sort_unstable();
        let (mut end, mut strict_end) = (Offset::ZERO, Offset::ZERO);
        for (span, is_strict) in all {
            if span.start() < strict_end || (is_strict && span.start() < end) {
                return Err(Error::corrupt(BrokenLayout::TwoOwners).at(span.start()));
            }
            end = end.max(span.end());
            if is_strict {
                strict_end = strict_end.max(span.end());
            }
        }
        Ok(())
    }

    fn is_clusters(&self, span: VolumeSpan) -> bool {
        let start = span.start().get().checked_sub(self.first_cluster.get());
        start.is_some_and(|start| start.is_multiple_of(self.cluster_bytes))
            && span.len_bytes().is_multiple_of(self.cluster_bytes)
    }

    /// One more than the reason's index.
    fn keep_reason(&mut self, reason: &'static str) -> u8 {
        let known = self.reasons.iter().position(|known| *known == reason);
        let index = known.unwrap_or_else(|| {
            if self.reasons.len() < REASONS_MAX {
                self.reasons.push(reason);
                self.reasons.len() - 1
            } else {
                REASONS_MAX
            }
        });
        u8::try_from(index + 1).unwrap_or(u8::MAX)
    }
}

impl StreamVisitor for Layout {
    fn stream(&mut self, stream: FileStream<'_>, extents: &[FileExtent], mobility: Mobility) {
        let extents = || extents.iter().filter(|extent| !extent.span.is_empty());
        let Ok(extents_at) = u32::try_from(self.extents.len()) else {
            self.is_too_large = true;
            return;
        };
        let is_anchored = matches!(mobility, Mobility::Anchored(_));
        let moves_together = is_anchored || mobility == Mobility::Together;
        let pinned = match mobility {
            Mobility::Anchored(reason) | Mobility::Pinned(reason) => self.keep_reason(reason),
            Mobility::Movable | Mobility::Together
                if !extents().all(|extent| self.is_clusters(extent.span)) =>
            {
                self.keep_reason(NOT_WHOLE_CLUSTERS)
            }
            Mobility::Movable | Mobility::Together => 0,
        };
        let kept = extents().map(|extent| Extent { logical: extent.logical.get(), span: extent.span });
        self.extents.extend(kept);
        let mut end = self.ends.last().copied().unwrap_or(0);
        self.ends.extend(self.extents[extents_at as usize..].iter().map(|extent| {
            end = end.wrapping_add(extent.span.len_bytes());
            end
        }));
        self.is_too_large |= u32::try_from(self.extents.len()).is_err();
        if self.extents.len() > extents_at as usize {
            let is_main = stream.name == StreamName::Main;
            self.streams.push(Entry {
                file: stream.file,
                extents_at,
                kind: stream.kind,
                is_main,
                moves_together,
                is_anchored,
                pinned,
            });
        }
    }
}

/// `len_bytes` of the volume from `start` on.
pub(crate) fn span_at(start: u64, len_bytes: u64) -> VolumeSpan {
    Span::new(Offset::new(start), len_bytes)
}
