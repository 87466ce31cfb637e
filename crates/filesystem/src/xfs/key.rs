//! Keys: what a block of a group's tree says of each block below it, so that what is looked for is found.

use super::layout::reverse;

/// What the records of a tree are sorted by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// Where they begin.
    Start,
    /// How long they are, then where they begin.
    Length,
    /// Where they begin, then their owners and their places there. Keys come in pairs: the lowest, and the highest of all ends.
    Reverse,
}

/// The numbers that are compared, one after the other.
type Key = [u64; 3];

/// The keys of a block: that of its first record and, in the reverse map alone, the highest of the ends of all of them; else the first again.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Keys {
    low: Key,
    high: Key,
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Whether an extent is written is in no key, or was in those of earlier kernels.
fn of_reverse(bytes: &[u8], owner_at: usize) -> Key {
    let offset = number(&bytes[owner_at + 8..owner_at + 16]) & !reverse::UNWRITTEN;
    [number(&bytes[..4]), number(&bytes[owner_at..owner_at + 8]), offset]
}

impl Keys {
    fn one(low: Key) -> Self {
        Self { low, high: low }
    }

    /// Of a record.
    pub(super) fn of_record(order: Order, record: &[u8]) -> Self {
        let first = number(&record[..4]);
        if order == Order::Reverse {
            let low = of_reverse(record, 8);
            let more = number(&record[4..8]).wrapping_sub(1);
            let [_, owner, offset] = low;
            let is_in_order = owner < reverse::FIRST && offset & reverse::TREE == 0;
            let end = if is_in_order { offset.wrapping_add(more) } else { offset };
            return Self { low, high: [first.wrapping_add(more), owner, end] };
        }
        // Of free space by length the length is looked at first.
        Self::one(if order == Order::Length { [number(&record[4..8]), first, 0] } else { [first, 0, 0] })
    }

    /// What the block above says.
    pub(super) fn said(order: Order, key: &[u8]) -> Self {
        match order == Order::Reverse {
            true => Self { low: of_reverse(key, 4), high: of_reverse(&key[20..], 4) },
            false => Self::of_record(order, key),
        }
    }

    /// Those of a block that has records, or blocks below, with these keys in a row.
    pub(super) fn joined(order: Order, all: impl Iterator<Item = Self>) -> Self {
        let joined = all.reduce(|before, next| Self { low: before.low, high: before.high.max(next.high) });
        let joined = joined.unwrap_or_default();
        if order == Order::Reverse { joined } else { Self::one(joined.low) }
    }
}
