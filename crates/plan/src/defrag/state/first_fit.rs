//! The first of many values that is small enough, in logarithmic time.

/// Values that may change, by index.
#[derive(Debug)]
pub(crate) struct FirstFit {
    /// A complete binary tree of minima: the values are its last half.
    minima: Vec<u64>,
    leaves: usize,
}

impl FirstFit {
    pub(crate) fn new(values: impl ExactSizeIterator<Item = u64>) -> Self {
        let leaves = values.len().next_power_of_two();
        let mut minima = vec![u64::MAX; 2 * leaves];
        values.enumerate().for_each(|(index, value)| minima[leaves + index] = value);
        (1..leaves).rev().for_each(|node| minima[node] = minima[2 * node].min(minima[2 * node + 1]));
        Self { minima, leaves }
    }

    /// The index of the first value of at most `limit`. What is `u64::MAX` is never found.
    pub(crate) fn first_at_most(&self, limit: u64) -> Option<usize> {
        if limit == u64::MAX || self.minima[1] > limit {
            return None;
        }
        let mut node = 1;
        while node < self.leaves {
            node = if self.minima[2 * node] <= limit { 2 * node } else { 2 * node + 1 };
        }
        Some(node - self.leaves)
    }

    pub(crate) fn set(&mut self, index: usize, value: u64) {
        let mut node = self.leaves + index;
        self.minima[node] = value;
        while node > 1 {
            node /= 2;
            self.minima[node] = self.minima[2 * node].min(self.minima[2 * node + 1]);
        }
    }

    /// Takes a value out.
    pub(crate) fn drop_at(&mut self, index: usize) {
        self.set(index, u64::MAX);
    }
}
