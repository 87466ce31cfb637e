//! How much longer run lists can get when extents move, and which streams may therefore move how.
//!
//! Invariants: whatever moves as [`Growth::mobilities`] allows, in any number of steps, every record has room for the run
//! lists in it. For that, the longest list of each piece is taken: for extents that go anywhere, each run on its own
//! and as far from the one before as the volume is large; for streams that go as a whole, one such step at the
//! start of the piece, and after each hole a step over what lies before it.

use std::collections::BTreeMap;

use block::Result;

use super::record::{Attribute, Mapped, RecordNumber};
use super::runs::{Run, number, number_len};
use crate::rearrange::Mobility;

/// Why a stream cannot move whose lists might not fit.
const NO_ROOM: &str = "no room in its record for run lists that may get longer";

/// The non-resident pieces of one file, and the room in its records.
#[derive(Default)]
pub(super) struct Growth {
    pieces: Vec<Piece>,
    spare_bytes: BTreeMap<RecordNumber, usize>,
}

/// One attribute in one record, of a stream or a part of one.
struct Piece {
    stream: usize,
    record: RecordNumber,
    longer: Longer,
}

/// By how many bytes a piece can grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Longer {
    /// If its runs go anywhere.
    anywhere: usize,
    /// If all of its stream goes together.
    together: usize,
}

impl Growth {
    /// Forgets the file.
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        self.spare_bytes.clear();
    }

    /// Takes a piece of stream number `stream`, of which the clusters before `unwritten_vcn` move apart from the others.
    pub(super) fn take(
        &mut self,
        stream: usize,
        attribute: &Attribute<'_>,
        mapped: &Mapped<'_>,
        unwritten_vcn: u64,
        cluster_count: u64,
    ) -> Result<()> {
        let mut bound = Bound::new(unwritten_vcn, mapped.lowest_vcn, cluster_count);
        attribute.each_run(mapped, cluster_count, |run| {
            bound.push(run);
            Ok(())
        })?;
        let is_usual = attribute.name_end() <= mapped.run_list_offset;
        let longer = |list_bytes: usize| match is_usual {
            true => (mapped.run_list_offset + list_bytes)
                .next_multiple_of(8)
                .saturating_sub(attribute.bytes().len()),
            // Its list cannot be replaced.
            false => usize::MAX / 4,
        };
        let longer = Longer { anywhere: longer(bound.anywhere + 1), together: longer(bound.together() + 1) };
        let record = attribute.record();
        self.spare_bytes.insert(record.number(), record.spare_bytes());
        self.pieces.push(Piece { stream, record: record.number(), longer });
        Ok(())
    }

    /// How each of `stream_count` streams may move, of which `pin` says why one must not.
    pub(super) fn mobilities(
        &self,
        stream_count: usize,
        pin: impl Fn(usize) -> Option<&'static str>,
    ) -> Vec<Mobility> {
        let mut mobilities: Vec<_> =
            (0..stream_count).map(|stream| pin(stream).map_or(Mobility::Movable, Mobility::Pinned)).collect();
        // Once for streams that go anywhere, once for what must go together: nothing grows by that.
        for less in [Mobility::Together, Mobility::Pinned(NO_ROOM)] {
            let mut needed: BTreeMap<RecordNumber, usize> = BTreeMap::new();
            for piece in &self.pieces {
                let needed = needed.entry(piece.record).or_default();
                *needed = needed.saturating_add(piece.longer_if(&mobilities[piece.stream]));
            }
            let is_short = |record| needed.get(record) > self.spare_bytes.get(record);
            let short: Vec<_> = self.pieces.iter().filter(|piece| is_short(&piece.record)).collect();
            for piece in short {
                if piece.longer_if(&mobilities[piece.stream]) > 0 {
                    mobilities[piece.stream] = less.clone();
                }
            }
        }
        mobilities
    }
}

impl Piece {
    fn longer_if(&self, mobility: &Mobility) -> usize {
        match mobility {
            Mobility::Movable => self.longer.anywhere,
            Mobility::Together => self.longer.together,
            Mobility::Pinned(_) => 0,
        }
    }
}

/// The longest run lists of one piece, without the terminator.
struct Bound {
    /// Bytes of the largest step from run to run.
    step_len: usize,
    unwritten_vcn: u64,
    vcn: u64,
    anywhere: usize,
    /// Of the runs whose end is known.
    closed: usize,
    /// Clusters since the last hole.
    open_count: u64,
    /// Clusters of the run before that.
    last_count: Option<u64>,
}

impl Bound {
    fn new(unwritten_vcn: u64, lowest_vcn: u64, cluster_count: u64) -> Self {
        let step_len = number_len(number(cluster_count - 1));
        Self {
            step_len,
            unwritten_vcn,
            vcn: lowest_vcn,
            anywhere: 0,
            closed: 0,
            open_count: 0,
            last_count: None,
        }
    }

    fn push(&mut self, run: Run) {
        let Run { lcn, count } = run;
        if lcn.is_none() {
            self.close();
            let len = 1 + number_len(number(count));
            self.anywhere += len;
            self.closed += len;
        } else {
            let written = self.unwritten_vcn.clamp(self.vcn, self.vcn + count) - self.vcn;
            for part in [written, count - written].into_iter().filter(|part| *part > 0) {
                self.anywhere += 1 + number_len(number(part)) + self.step_len;
            }
            self.open_count += count;
        }
        self.vcn += count;
    }

    /// Ends a run without holes.
    fn close(&mut self) {
        if self.open_count == 0 {
            return;
        }
        let step_len = self.last_count.map_or(self.step_len, |last| number_len(number(last)));
        self.closed += 1 + number_len(number(self.open_count)) + step_len;
        self.last_count = Some(self.open_count);
        self.open_count = 0;
    }

    fn together(mut self) -> usize {
        self.close();
        self.closed
    }
}
