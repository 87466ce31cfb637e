//! A bar of shares.

use crate::text::Palette;

/// One share of a bar: its bytes, its character, its colour.
pub(crate) struct Share {
    pub(crate) bytes: u64,
    pub(crate) glyph: char,
    pub(crate) color: &'static str,
}

/// A bar of `width` characters in which every share that has bytes gets at least one.
pub(crate) fn bar(shares: &[Share], width: usize, palette: Palette) -> String {
    let counts = counts(&shares.iter().map(|share| share.bytes).collect::<Vec<_>>(), width);
    let paint = |(share, count): (&Share, usize)| {
        let text: String = std::iter::repeat_n(share.glyph, count).collect();
        if text.is_empty() { text } else { palette.cell(share.color, &text) }
    };
    shares.iter().zip(counts).map(paint).collect()
}

fn counts(bytes: &[u64], width: usize) -> Vec<usize> {
    let total: u128 = bytes.iter().map(|bytes| u128::from(*bytes)).sum();
    if total == 0 {
        return vec![0; bytes.len()];
    }
    let share = |bytes: &u64| {
        let cells = u128::from(*bytes) * width as u128 / total;
        usize::try_from(cells).expect("at most the width").max(usize::from(*bytes > 0))
    };
    let mut counts: Vec<_> = bytes.iter().map(share).collect();
    // Rounding is made up for by the largest share.
    let largest = (0..bytes.len()).max_by_key(|index| bytes[*index]).expect("total is not zero");
    let others: usize =
        counts.iter().enumerate().filter(|(index, _)| *index != largest).map(|(_, count)| count).sum();
    counts[largest] = width.saturating_sub(others);
    counts
}

#[cfg(test)]
mod tests {
    use super::counts;

    #[test]
    fn every_share_is_seen_and_the_width_kept() {
        assert_eq!(counts(&[1, 0, 1_000_000], 10), [1, 0, 9]);
        assert_eq!(counts(&[1, 1, 1], 10), [3, 3, 4]);
        assert_eq!(counts(&[0, 0], 10), [0, 0]);
        assert_eq!(counts(&[u64::MAX, u64::MAX], 4), [2, 2]);
    }
}
