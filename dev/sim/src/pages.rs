//! Bytes in pages that copies share until one of them is written to.
//!
//! Thousands of disks that differ in a few sectors take little memory, and comparing two of them little time.

use std::ops::Range;
use std::sync::Arc;

const PAGE_LEN: usize = 4096;

type Page = [u8; PAGE_LEN];

/// The bytes of a small disk.
#[derive(Clone)]
pub struct Pages {
    /// What lies past the end in the last one is zeros.
    pages: Vec<Arc<Page>>,
    len: usize,
}

impl Pages {
    /// Pages that hold `bytes`.
    pub fn new(bytes: &[u8]) -> Self {
        let mut all = Self { pages: Vec::new(), len: 0 };
        all.resize(bytes.len());
        all.write(0, bytes);
        all
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.get(0..self.len)
    }

    /// The bytes of `range`, which lies within.
    pub fn get(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        self.read(range.start, &mut bytes);
        bytes
    }

    /// Fills `buf` from `at` on, all of it within.
    pub fn read(&self, at: usize, buf: &mut [u8]) {
        assert!(at + buf.len() <= self.len, "a read within the pages");
        let mut rest = buf;
        for (number, within) in pieces(at..at + rest.len()) {
            let (piece, more) = rest.split_at_mut(within.len());
            piece.copy_from_slice(&self.pages[number][within]);
            rest = more;
        }
    }

    /// Writes `bytes` from `at` on, all of them within.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len, "a write within the pages");
        let mut rest = bytes;
        for (number, within) in pieces(at..at + rest.len()) {
            let (piece, more) = rest.split_at(within.len());
            Arc::make_mut(&mut self.pages[number])[within].copy_from_slice(piece);
            rest = more;
        }
    }

    /// Makes it longer, with zeros, or shorter.
    pub fn resize(&mut self, len: usize) {
        self.pages.resize(len.div_ceil(PAGE_LEN), Arc::new([0; PAGE_LEN]));
        self.len = len;
        if let Some(last) = self.pages.last_mut().filter(|_| !len.is_multiple_of(PAGE_LEN)) {
            Arc::make_mut(last)[len % PAGE_LEN..].fill(0);
        }
    }

    /// Where `other` differs first within `range`, as far as both go.
    pub fn first_difference(&self, other: &Self, range: Range<usize>) -> Option<usize> {
        let end = range.end.min(self.len).min(other.len);
        pieces(range.start.min(end)..end).find_map(|(number, within)| {
            let (ours, theirs) = (&self.pages[number], &other.pages[number]);
            if Arc::ptr_eq(ours, theirs) || ours[within.clone()] == theirs[within.clone()] {
                return None;
            }
            within.into_iter().find(|at| ours[*at] != theirs[*at]).map(|at| number * PAGE_LEN + at)
        })
    }
}

impl PartialEq for Pages {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.first_difference(other, 0..self.len).is_none()
    }
}

/// The pages of `range`, with what of each lies within.
fn pieces(range: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let start = at % PAGE_LEN;
        let len = (PAGE_LEN - start).min(range.end.checked_sub(at)?);
        let number = at / PAGE_LEN;
        at += len;
        (len > 0).then_some((number, start..start + len))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pages_are_a_plain_array(
            steps in prop::collection::vec((0..20_000usize, 0..9000usize, any::<u8>(), 0..4u8), 1..20),
        ) {
            let (mut model, mut pages) = (Vec::new(), Pages::new(&[]));
            for (at, len, byte, what) in steps {
                let (before, model_before) = (pages.clone(), model.clone());
                if what == 0 {
                    model.resize(at, 0);
                    pages.resize(at);
                } else {
                    let start = at.min(model.len());
                    let end = (start + len).min(model.len());
                    model[start..end].fill(byte);
                    pages.write(start, &vec![byte; end - start]);
                }
                prop_assert_eq!(&pages.to_vec(), &model);
                prop_assert_eq!(&before.to_vec(), &model_before, "a copy stays as it was");
                let both = model.len().min(model_before.len());
                let expected = (0..both).find(|at| model[*at] != model_before[*at]);
                prop_assert_eq!(pages.first_difference(&before, 0..usize::MAX), expected);
                prop_assert_eq!(pages == before, model == model_before);
            }
        }
    }
}
