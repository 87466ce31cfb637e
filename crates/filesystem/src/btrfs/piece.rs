//! Parts of devices, and parts of the volume that are made of them.

/// A part of one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Column {
    /// Which of the devices, in the order of their numbers.
    pub device: usize,
    /// Where on the device it begins.
    pub start_bytes: u64,
    /// How long it is.
    pub len_bytes: u64,
}

impl Column {
    pub(super) fn end(&self) -> u64 {
        self.start_bytes + self.len_bytes
    }

    /// What both have: where it begins and ends on the device.
    fn intersect(&self, other: &Self) -> Option<(u64, u64)> {
        let (start, end) = (self.start_bytes.max(other.start_bytes), self.end().min(other.end()));
        (self.device == other.device && start < end).then_some((start, end))
    }
}

/// A part of the volume. Pieces follow each other without gaps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// How much goes to one column before the next one's turn comes.
    pub stripe_bytes: u64,
    /// Equally long parts of devices, one if nothing is striped. Each a multiple of the stripe's length if there are more.
    pub columns: Vec<Column>,
}

impl Piece {
    /// All columns together.
    pub fn len_bytes(&self) -> u64 {
        self.columns.iter().map(|column| column.len_bytes).sum()
    }

    /// What begins `at` bytes into the piece, which has more, as far as it lies in one place.
    pub(super) fn find(&self, at: u64) -> Column {
        let count = self.columns.len() as u64;
        let (stripe, within) = (at / self.stripe_bytes, at % self.stripe_bytes);
        let column = self.columns[usize::try_from(stripe % count).expect("fewer than the columns")];
        Column {
            start_bytes: column.start_bytes + stripe / count * self.stripe_bytes + within,
            len_bytes: self.stripe_bytes - within,
            ..column
        }
    }

    /// Calls `each` with where `wanted` lies, counted from the piece's beginning.
    pub(super) fn each_of(&self, wanted: &Column, each: &mut impl FnMut(u64, u64)) {
        let count = self.columns.len() as u64;
        for (column, index) in self.columns.iter().zip(0..) {
            let Some((start, end)) = column.intersect(wanted) else { continue };
            let (mut at, end) = (start - column.start_bytes, end - column.start_bytes);
            while at < end {
                let (stripe, within) = (at / self.stripe_bytes, at % self.stripe_bytes);
                let len_bytes = (self.stripe_bytes - within).min(end - at);
                each((stripe * count + index) * self.stripe_bytes + within, len_bytes);
                at += len_bytes;
            }
        }
    }
}
