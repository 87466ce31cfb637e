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
            Mobility::Anchored(_) | Mobility::Pinned(_) => 0,
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::runs;
    use super::*;

    const CLUSTERS: u64 = 1 << 24;

    fn bound(runs: &[Run], lowest_vcn: u64, unwritten_vcn: u64) -> Bound {
        let mut bound = Bound::new(unwritten_vcn, lowest_vcn, CLUSTERS);
        runs.iter().for_each(|run| bound.push(*run));
        bound
    }

    fn list_len(runs: &[Run]) -> usize {
        let mut joined: Vec<Run> = Vec::new();
        for run in runs {
            match joined.last_mut() {
                Some(last) if run.lcn.is_some() && last.lcn.map(|lcn| lcn + last.count) == run.lcn => {
                    last.count += run.count;
                }
                _ => joined.push(*run),
            }
        }
        let mut list = Vec::new();
        runs::encode(&joined, &mut list);
        list.len() - 1
    }

    #[test]
    fn the_longest_lists_are_had() {
        // From one end of the volume to the other and back.
        let far: Vec<_> =
            [0, CLUSTERS - 1, 0, CLUSTERS - 1].map(|lcn| Run { lcn: Some(lcn), count: 1 }).into();
        assert_eq!(bound(&far, 0, u64::MAX).anywhere, 4 * 6);
        assert_eq!(list_len(&far[1..]), 3 * 6);
        let hole = Run { lcn: None, count: 300 };
        let runs =
            [Run { lcn: Some(1 << 23), count: 200 }, hole, Run { lcn: Some((1 << 23) + 200), count: 1 }];
        assert_eq!(bound(&runs, 0, 0).together(), list_len(&runs));
    }

    fn mobilities(spare: usize, pieces: &[(usize, u64, usize, usize)]) -> Vec<Mobility> {
        let mut growth = Growth::default();
        for (stream, record, anywhere, together) in pieces.iter().copied() {
            let (record, longer) = (RecordNumber(record), Longer { anywhere, together });
            growth.spare_bytes.insert(record, spare);
            growth.pieces.push(Piece { stream, record, longer });
        }
        growth.mobilities(3, |stream| (stream == 2).then_some("own"))
    }

    #[test]
    fn streams_of_one_record_share_its_room() {
        use Mobility::{Movable, Pinned, Together};
        let own = Pinned("own");
        assert_eq!(mobilities(16, &[(0, 7, 8, 0), (1, 7, 8, 8)]), [Movable, Movable, own.clone()]);
        assert_eq!(mobilities(8, &[(0, 7, 8, 0), (1, 7, 8, 8)]), [Together, Together, own.clone()]);
        assert_eq!(mobilities(0, &[(0, 7, 8, 0), (1, 7, 8, 8)]), [Together, Pinned(NO_ROOM), own.clone()]);
        assert_eq!(
            mobilities(8, &[(0, 7, 8, 8), (0, 8, 16, 0), (1, 8, 0, 0)]),
            [Together, Movable, own.clone()]
        );
        assert_eq!(mobilities(8, &[(0, 7, 8, 8), (0, 8, 16, 16)]), [Pinned(NO_ROOM), Movable, own.clone()]);
        assert_eq!(mobilities(8, &[(0, 7, 8, 8), (2, 7, 99, 99)]), [Movable, Movable, own]);
    }

    proptest! {
        #[test]
        fn no_list_gets_longer_than_its_bound(
            parts in prop::collection::vec((1..3000u64, any::<bool>(), 0..CLUSTERS - 3000, any::<bool>()), 1..30),
            lowest_vcn in 0..1u64 << 40, written in 0..30_000u64, start in 0..CLUSTERS - 100_000,
        ) {
            let unwritten_vcn = lowest_vcn + written;
            let original: Vec<_> = parts.iter()
                .map(|(count, is_hole, ..)| Run { lcn: (!is_hole).then_some(0), count: *count }).collect();
            let (mut vcn, mut near) = (lowest_vcn, 0);
            let (mut scattered, mut together) = (Vec::new(), Vec::new());
            let mut at = start;
            for (count, is_hole, lcn, is_near) in parts {
                if is_hole {
                    scattered.push(Run { lcn: None, count });
                    together.push(Run { lcn: None, count });
                } else {
                    let before = unwritten_vcn.clamp(vcn, vcn + count) - vcn;
                    for (part, place) in [(before, lcn), (count - before, CLUSTERS - 3000 - lcn)] {
                        if part > 0 {
                            let lcn = if is_near && near + part <= CLUSTERS { near } else { place };
                            near = lcn + part;
                            scattered.push(Run { lcn: Some(lcn), count: part });
                        }
                    }
                    together.push(Run { lcn: Some(at), count });
                    at += count;
                }
                vcn += count;
            }
            prop_assert!(list_len(&scattered) <= bound(&original, lowest_vcn, unwritten_vcn).anywhere);
            let bound = bound(&original, lowest_vcn, unwritten_vcn);
            let anywhere = bound.anywhere;
            let most = bound.together();
            prop_assert!(list_len(&together) <= most && most <= anywhere);
        }
    }
}
