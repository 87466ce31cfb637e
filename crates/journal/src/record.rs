//! A record: what one batch changes.

use std::ops::Range;

use block::{Error, Result};
use extent::{Offset, VirtualOffset, VirtualSpan};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::corrupt::Corrupt;
use crate::decode::{digest_without, next_bytes, next_struct};
use crate::header::span;
use crate::layout::{DifferenceEntry, MoveEntry, PatchEntry, RECORD_MAGIC, RecordStart};

/// Where a record's digest lies.
const DIGEST_AT: usize = 16;

/// Equal bytes between two differences that cost less than a further entry.
const GAP_LEN_MAX: usize = size_of::<DifferenceEntry>();

/// Bytes of metadata that change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Patch {
    /// Where they lie.
    pub at: VirtualOffset,
    /// What is there before.
    pub before: Vec<u8>,
    /// What is there after; as long.
    pub after: Vec<u8>,
}

impl Patch {
    /// What it changes.
    pub fn span(&self) -> VirtualSpan {
        VirtualSpan::new(self.at, self.after.len() as u64)
    }
}

/// Bytes that were copied, and lie in both places when the record is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// Where they lay.
    pub from: VirtualSpan,
    /// Where they go.
    pub to: VirtualOffset,
    /// XXH3-128 of them.
    pub digest: u128,
}

impl Move {
    /// Where they go, all of them.
    pub fn to_span(&self) -> VirtualSpan {
        VirtualSpan::new(self.to, self.from.len_bytes())
    }
}

/// What one batch changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Counts up from 1.
    pub sequence: u64,
    /// What was copied.
    pub moves: Vec<Move>,
    /// What changes, ascending and disjoint.
    pub patches: Vec<Patch>,
}

impl Record {
    /// Bytes of the stored form.
    pub fn len_bytes(patches: &[Patch], move_count: usize) -> u64 {
        let patch_len = |patch: &Patch| {
            let differences: usize =
                differences(patch).map(|range| size_of::<DifferenceEntry>() + range.len()).sum();
            size_of::<PatchEntry>() + patch.after.len() + differences
        };
        let patch_bytes: usize = patches.iter().map(patch_len).sum();
        (size_of::<RecordStart>() + move_count * size_of::<MoveEntry>() + patch_bytes) as u64
    }

    /// The stored form, for the journal whose header has this digest. `Invalid` if there are too many of anything, or a
    /// patch is longer than 32 bits can say.
    pub fn to_bytes(&self, header_digest: [u8; 16]) -> Result<Vec<u8>> {
        let count = |len: usize| {
            u32::try_from(len).map(U32::new).map_err(|_| Error::invalid("too much for one record"))
        };
        let len_bytes = Self::len_bytes(&self.patches, self.moves.len());
        let start = RecordStart {
            magic: RECORD_MAGIC,
            len_bytes: U64::new(len_bytes),
            digest: [0; 16],
            header_digest,
            sequence: U64::new(self.sequence),
            move_count: count(self.moves.len())?,
            patch_count: count(self.patches.len())?,
        };
        let mut bytes = Vec::with_capacity(usize::try_from(len_bytes).expect("made from what is in memory"));
        bytes.extend_from_slice(start.as_bytes());
        for Move { from, to, digest } in &self.moves {
            let entry = MoveEntry {
                from: U64::new(from.start().get()),
                to: U64::new(to.get()),
                len_bytes: U64::new(from.len_bytes()),
                digest: digest.to_le_bytes(),
            };
            bytes.extend_from_slice(entry.as_bytes());
        }
        for patch in &self.patches {
            assert_eq!(patch.before.len(), patch.after.len(), "a patch changes no length");
            let entry = PatchEntry {
                at: U64::new(patch.at.get()),
                len_bytes: count(patch.after.len())?,
                difference_count: count(differences(patch).count())?,
            };
            bytes.extend_from_slice(entry.as_bytes());
        }
        for patch in &self.patches {
            bytes.extend_from_slice(&patch.after);
            for range in differences(patch) {
                let entry = DifferenceEntry { start: count(range.start)?, len_bytes: count(range.len())? };
                bytes.extend_from_slice(entry.as_bytes());
                bytes.extend_from_slice(&patch.before[range]);
            }
        }
        assert_eq!(bytes.len() as u64, len_bytes, "a record is as long as it says");
        let digest = digest_without(&bytes, DIGEST_AT);
        bytes[DIGEST_AT..DIGEST_AT + 16].copy_from_slice(&digest);
        Ok(bytes)
    }

    /// The stored form's length, if `start` begins a record of that journal and slot. No more is known of it yet.
    pub(crate) fn announced_len(start: &[u8], header_digest: [u8; 16]) -> Option<u64> {
        let start: RecordStart = next_struct(&mut &start[..]).ok()?;
        let is_ours = start.magic == RECORD_MAGIC && start.header_digest == header_digest;
        is_ours.then_some(start.len_bytes.get())
    }

    /// Whether `bytes` are a whole record.
    pub(crate) fn is_whole(bytes: &[u8]) -> bool {
        let Ok(start) = next_struct::<RecordStart>(&mut &bytes[..]) else { return false };
        start.len_bytes.get() == bytes.len() as u64 && digest_without(bytes, DIGEST_AT) == start.digest
    }

    /// Reads a whole record of a change within `volume`.
    pub(crate) fn from_bytes(bytes: &[u8], volume: VirtualSpan) -> Result<Self> {
        let mut rest = bytes;
        let start: RecordStart = next_struct(&mut rest)?;
        let mut moves = Vec::new();
        for _ in 0..start.move_count.get() {
            moves.push(parse_move(next_struct(&mut rest)?, volume)?);
        }
        let mut entries = Vec::new();
        for _ in 0..start.patch_count.get() {
            entries.push(next_struct::<PatchEntry>(&mut rest)?);
        }
        let mut patches: Vec<Patch> = Vec::new();
        for entry in entries {
            let patch = parse_patch(&entry, &mut rest)?;
            let follows = patches.last().is_none_or(|last| last.span().end() <= patch.at);
            if !follows || !volume.covers(&span(entry.at.get(), u64::from(entry.len_bytes.get()))?) {
                return Err(Error::corrupt(Corrupt::PatchOutOfPlace).at(patch.at));
            }
            patches.push(patch);
        }
        if !rest.is_empty() {
            return Err(Error::corrupt(Corrupt::RecordTooLong));
        }
        Ok(Self { sequence: start.sequence.get(), moves, patches })
    }
}

fn parse_move(entry: MoveEntry, volume: VirtualSpan) -> Result<Move> {
    let from = span(entry.from.get(), entry.len_bytes.get())?;
    let to = span(entry.to.get(), entry.len_bytes.get())?;
    if !volume.covers(&from) || !volume.covers(&to) {
        return Err(Error::corrupt(Corrupt::MoveOutOfPlace).at(from.start()));
    }
    Ok(Move { from, to: to.start(), digest: u128::from_le_bytes(entry.digest) })
}

fn parse_patch(entry: &PatchEntry, rest: &mut &[u8]) -> Result<Patch> {
    let at = Offset::new(entry.at.get());
    // Checked before anything is made of it: a span of a patch must not overflow.
    span(entry.at.get(), u64::from(entry.len_bytes.get()))?;
    let after = next_bytes(rest, usize::try_from(entry.len_bytes.get()).expect("32 bits"))?.to_vec();
    let mut before = after.clone();
    for _ in 0..entry.difference_count.get() {
        let difference: DifferenceEntry = next_struct(rest)?;
        let start = usize::try_from(difference.start.get()).expect("32 bits");
        let bytes = next_bytes(rest, usize::try_from(difference.len_bytes.get()).expect("32 bits"))?;
        let place = before.get_mut(start..).and_then(|tail| tail.get_mut(..bytes.len()));
        place.ok_or_else(|| Error::corrupt(Corrupt::DifferenceOutOfPlace).at(at))?.copy_from_slice(bytes);
    }
    Ok(Patch { at, before, after })
}

/// Where the bytes before differ from those after.
fn differences(patch: &Patch) -> impl Iterator<Item = Range<usize>> + '_ {
    let differs = |index: &usize| patch.before[*index] != patch.after[*index];
    let len = patch.after.len();
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = (at..len).find(differs)?;
        let mut end = start + 1;
        while let Some(next) = (end..len.min(end + GAP_LEN_MAX + 1)).find(differs) {
            end = next + 1;
        }
        at = end;
        Some(start..end)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::header::tests::header;
    use proptest::prelude::*;

    pub(crate) fn patch(at: u64, before: &[u8], after: &[u8]) -> Patch {
        Patch { at: Offset::new(at), before: before.to_vec(), after: after.to_vec() }
    }

    fn any_record() -> impl Strategy<Value = Record> {
        let patch = (0..3u64, prop::collection::vec((any::<u8>(), 0..3u8), 1..60));
        let moves = prop::collection::vec((0..1000u64, 0..1000u64, 0..1000u64, any::<u128>()), 0..4);
        (1..99u64, prop::collection::vec(patch, 0..5), moves).prop_map(|(sequence, patches, moves)| {
            let mut at = 4096;
            let patches = patches.into_iter().map(|(gap, bytes)| {
                at += gap;
                let before: Vec<u8> = bytes.iter().map(|(byte, _)| *byte).collect();
                let after = bytes.iter().map(|(byte, change)| byte.wrapping_add(change / 2)).collect();
                let patch = Patch { at: Offset::new(at), before, after };
                at = patch.span().end().get();
                patch
            });
            let patches = patches.collect();
            let moves = moves.into_iter().map(|(from, to, len, digest)| Move {
                from: VirtualSpan::new(Offset::new(4096 + from), len),
                to: Offset::new(8192 + to),
                digest,
            });
            Record { sequence, moves: moves.collect(), patches }
        })
    }

    proptest! {
        #[test]
        fn a_record_comes_out_as_it_went_in(record in any_record()) {
            let bytes = record.to_bytes([3; 16]).unwrap();
            prop_assert_eq!(Record::announced_len(&bytes, [3; 16]), Some(bytes.len() as u64));
            prop_assert_eq!(Record::announced_len(&bytes, [4; 16]), None);
            prop_assert!(Record::is_whole(&bytes));
            prop_assert_eq!(Record::from_bytes(&bytes, header().volume).unwrap(), record);
        }

        #[test]
        fn a_damaged_record_is_not_whole_and_never_a_panic(
            record in any_record(), damage in prop::collection::vec((any::<prop::sample::Index>(), 1..=255u8), 1..4),
        ) {
            let bytes = record.to_bytes([3; 16]).unwrap();
            let mut damaged = bytes.clone();
            for (index, change) in damage {
                damaged[index.index(bytes.len())] ^= change;
            }
            prop_assert_eq!(Record::is_whole(&damaged), damaged == bytes);
            // As if the checksum were of no use.
            let _ = Record::from_bytes(&damaged, header().volume);
            prop_assert!(!Record::is_whole(&bytes[..bytes.len() - 1]));
        }
    }

    #[test]
    fn what_does_not_change_is_stored_once() {
        let (before, mut after) = (vec![7; 4096], vec![7; 4096]);
        after[100] = 1;
        after[4000] = 1;
        let record = Record { sequence: 1, moves: Vec::new(), patches: vec![patch(4096, &before, &after)] };
        assert_eq!(record.to_bytes([0; 16]).unwrap().len(), 64 + 16 + 4096 + 2 * 9);
    }
}
