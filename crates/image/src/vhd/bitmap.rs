//! Sector bitmaps of differencing disks, in the bit orders of VHD and of VHDX.

use std::ops::Range;

/// Which bit of a byte stands for its first sector.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BitOrder {
    /// VHD.
    HighestFirst,
    /// VHDX.
    LowestFirst,
}

/// The longest runs of equal bits in `bits` of `bitmap`, in order, with their value. Bits past the bitmap's end
/// are zero.
pub(crate) fn runs(
    bitmap: &[u8],
    bits: Range<u64>,
    order: BitOrder,
) -> impl Iterator<Item = (Range<u64>, bool)> + '_ {
    let byte =
        |bit: u64| usize::try_from(bit / 8).ok().and_then(|index| bitmap.get(index)).copied().unwrap_or(0);
    let value = move |bit: u64| match order {
        BitOrder::HighestFirst => byte(bit) & (0x80 >> (bit % 8)) != 0,
        BitOrder::LowestFirst => byte(bit) & (1 << (bit % 8)) != 0,
    };
    let mut at = bits.start;
    std::iter::from_fn(move || {
        let start = at;
        if start >= bits.end {
            return None;
        }
        let first = value(start);
        let whole = if first { 0xff } else { 0 };
        while at < bits.end && value(at) == first {
            let is_whole = at.is_multiple_of(8) && bits.end - at >= 8 && byte(at) == whole;
            at += if is_whole { 8 } else { 1 };
        }
        Some((start..at, first))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_those_of_the_naive_reading() {
        let bitmap: Vec<u8> = [0u8, 0xff, 0xff, 0x0f, 0xf0, 0x81, 0, 0, 0x7e, 0xff, 1].repeat(3);
        let naive = |order: BitOrder, bit: u64| {
            let byte = bitmap[usize::try_from(bit / 8).unwrap()];
            let byte = if matches!(order, BitOrder::LowestFirst) { byte } else { byte.reverse_bits() };
            byte >> (bit % 8) & 1 == 1
        };
        let end = bitmap.len() as u64 * 8;
        for order in [BitOrder::HighestFirst, BitOrder::LowestFirst] {
            for (start, end) in [(0, end), (3, end - 3), (8, 16), (9, 10), (5, 5), (17, 70)] {
                let mut at = start;
                let mut last = None;
                for (run, value) in runs(&bitmap, start..end, order) {
                    assert_eq!(run.start, at);
                    assert_ne!(last.replace(value), Some(value), "runs are as long as can be");
                    at = run.end;
                    assert!(run.clone().all(|bit| naive(order, bit) == value), "{order:?} {run:?}");
                }
                assert_eq!(at, end);
            }
        }
    }
}
