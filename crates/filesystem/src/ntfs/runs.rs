//! Run lists ("mapping pairs"): which clusters hold which part of an attribute.

use std::fmt;

/// One piece of a run list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    /// The first cluster on the volume; `None` for a hole.
    pub(super) lcn: Option<u64>,
    /// Clusters, at least one.
    pub(super) count: u64,
}

/// Why a run list cannot be right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BadRuns {
    /// It ends before its terminator.
    Truncated,
    /// A length of zero, less, or too many bytes.
    Length,
    /// A cluster outside the volume.
    OutOfVolume,
}

impl fmt::Display for BadRuns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "cut short",
            Self::Length => "a run of impossible length",
            Self::OutOfVolume => "a run outside the volume",
        })
    }
}

/// Decodes the run list that starts at `bytes`, run by run; every run is within `cluster_count`.
pub(super) fn decode(bytes: &[u8], cluster_count: u64) -> impl Iterator<Item = Result<Run, BadRuns>> + '_ {
    let mut decoder = Decoder { bytes, lcn: 0, cluster_count, done: false };
    std::iter::from_fn(move || decoder.step().transpose())
}

struct Decoder<'a> {
    bytes: &'a [u8],
    /// Each run's cluster is told as the difference from the one before that is no hole.
    lcn: i64,
    cluster_count: u64,
    done: bool,
}

impl Decoder<'_> {
    fn step(&mut self) -> Result<Option<Run>, BadRuns> {
        if self.done {
            return Ok(None);
        }
        // One bad run makes all that follows meaningless.
        let run = self.next();
        self.done = !matches!(run, Ok(Some(_)));
        run
    }

    fn next(&mut self) -> Result<Option<Run>, BadRuns> {
        let (&head, rest) = self.bytes.split_first().ok_or(BadRuns::Truncated)?;
        if head == 0 {
            return Ok(None);
        }
        let (length_len, offset_len) = (usize::from(head & 0xf), usize::from(head >> 4));
        if !(1..=8).contains(&length_len) || offset_len > 8 {
            return Err(BadRuns::Length);
        }
        let (length, rest) = rest.split_at_checked(length_len).ok_or(BadRuns::Truncated)?;
        let (offset, rest) = rest.split_at_checked(offset_len).ok_or(BadRuns::Truncated)?;
        self.bytes = rest;
        let count = u64::try_from(signed(length)).ok().filter(|count| *count > 0).ok_or(BadRuns::Length)?;
        // A hole may be larger than the volume: that of a change journal grows for ever.
        let lcn = if offset.is_empty() { None } else { Some(self.advance(signed(offset), count)?) };
        Ok(Some(Run { lcn, count }))
    }

    fn advance(&mut self, delta: i64, count: u64) -> Result<u64, BadRuns> {
        self.lcn = self.lcn.checked_add(delta).ok_or(BadRuns::OutOfVolume)?;
        let lcn = u64::try_from(self.lcn).map_err(|_| BadRuns::OutOfVolume)?;
        let fits = lcn.checked_add(count).is_some_and(|end| end <= self.cluster_count);
        if fits { Ok(lcn) } else { Err(BadRuns::OutOfVolume) }
    }
}

/// How many of the first runs a list of `len` bytes has room for, its terminator included.
pub(super) fn fitting(runs: &[Run], len: usize) -> usize {
    let Some(mut rest) = len.checked_sub(1) else { return 0 };
    let mut last_lcn = 0;
    let fits = |run: &&Run| {
        let delta = delta(run, last_lcn);
        last_lcn += delta.unwrap_or(0);
        let left = rest.checked_sub(1 + number_len(number(run.count)) + delta.map_or(0, number_len));
        rest = left.unwrap_or(0);
        left.is_some()
    };
    runs.iter().take_while(fits).count()
}

/// How far a run is from the one before that is no hole.
fn delta(run: &Run, last_lcn: i64) -> Option<i64> {
    run.lcn.map(|lcn| number(lcn) - last_lcn)
}

/// Appends a run list with its terminator, each number in as few bytes as can be.
pub(super) fn encode(runs: &[Run], list: &mut Vec<u8>) {
    let mut last_lcn = 0;
    for run in runs {
        let count = number(run.count);
        let delta = delta(run, last_lcn);
        let (length_len, offset_len) = (number_len(count), delta.map_or(0, number_len));
        list.push(u8::try_from(offset_len << 4 | length_len).expect("two lengths of at most 8"));
        list.extend_from_slice(&count.to_le_bytes()[..length_len]);
        if let Some(delta) = delta {
            list.extend_from_slice(&delta.to_le_bytes()[..offset_len]);
            last_lcn += delta;
        }
    }
    list.push(0);
}

/// How many bytes a number takes in a run list: as few as hold it and its sign, and never none.
pub(super) fn number_len(value: i64) -> usize {
    let magnitude = if value < 0 { !value } else { value };
    (65 - magnitude.leading_zeros() as usize).div_ceil(8)
}

/// A count or a cluster as the signed number that run lists have: what was decoded from one is one.
pub(super) fn number(value: u64) -> i64 {
    i64::try_from(value).expect("at most what a run list holds")
}

/// A little-endian two's-complement number of 1 to 8 bytes.
fn signed(bytes: &[u8]) -> i64 {
    let fill = if bytes.last().is_some_and(|top| top & 0x80 != 0) { 0xff } else { 0 };
    let mut whole = [fill; 8];
    whole[..bytes.len()].copy_from_slice(bytes);
    i64::from_le_bytes(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(bytes: &[u8], clusters: u64) -> Result<Vec<Run>, BadRuns> {
        decode(bytes, clusters).collect()
    }

    #[test]
    fn runs_holes_and_steps_back() {
        let bytes = [0x21, 0x18, 0x34, 0x12, 0x01, 0x10, 0x11, 0x02, 0xf0, 0x00, 0xff];
        let expected = [
            Run { lcn: Some(0x1234), count: 0x18 },
            Run { lcn: None, count: 0x10 },
            Run { lcn: Some(0x1224), count: 2 },
        ];
        assert_eq!(all(&bytes, 0x2000).unwrap(), expected);
        assert_eq!(all(&[0], 1).unwrap(), []);
    }

    #[test]
    fn what_cannot_be_is_told() {
        assert_eq!(all(&[], 100), Err(BadRuns::Truncated));
        assert_eq!(all(&[0x11, 1], 100), Err(BadRuns::Truncated));
        assert_eq!(all(&[0x11, 1, 1], 100), Err(BadRuns::Truncated));
        assert_eq!(all(&[0x11, 0, 1, 0], 100), Err(BadRuns::Length));
        assert_eq!(all(&[0x11, 0x80, 1, 0], 100), Err(BadRuns::Length));
        assert_eq!(all(&[0x10, 1, 0], 100), Err(BadRuns::Length));
        assert_eq!(all(&[0x02, 0, 4, 0], 100).unwrap(), [Run { lcn: None, count: 1024 }]);
        assert_eq!(all(&[0x91; 20], 100), Err(BadRuns::Length));
        assert_eq!(all(&[0x11, 1, 0xff, 0], 100), Err(BadRuns::OutOfVolume));
        assert_eq!(all(&[0x11, 2, 99, 0], 100), Err(BadRuns::OutOfVolume));
        assert_eq!(all(&[0x11, 1, 99, 0], 100).unwrap().len(), 1);
    }

    #[test]
    fn numbers_take_as_few_bytes_as_hold_their_sign() {
        let cases =
            [(0, 1), (127, 1), (128, 2), (-128, 1), (-129, 2), (1 << 23, 4), (i64::MAX, 8), (i64::MIN, 8)];
        for (value, len) in cases {
            assert_eq!(number_len(value), len, "{value}");
        }
        let mut list = Vec::new();
        encode(&[Run { lcn: Some(0), count: 128 }, Run { lcn: None, count: 1 }], &mut list);
        assert_eq!(list, [0x12, 0x80, 0, 0, 0x01, 1, 0]);
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(
            runs in prop::collection::vec((prop::option::of(0..1u64 << 47), 1..1u64 << 47), 0..40),
            rest in prop::collection::vec(any::<u8>(), 0..8),
        ) {
            let runs: Vec<_> = runs.into_iter().map(|(lcn, count)| Run { lcn, count }).collect();
            let mut list = Vec::new();
            encode(&runs, &mut list);
            list.extend(rest);
            prop_assert_eq!(all(&list, 1 << 48).unwrap(), runs);
        }

        #[test]
        fn any_bytes_end_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), clusters in 1..u64::MAX) {
            let mut total = 0;
            for run in decode(&bytes, clusters).flatten() {
                prop_assert!(run.lcn.is_none_or(|lcn| lcn + run.count <= clusters));
                total += 1;
            }
            prop_assert!(total <= bytes.len());
        }
    }
}
