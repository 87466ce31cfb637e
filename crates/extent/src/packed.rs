//! A long list of spans in a few bytes each.

use std::marker::PhantomData;

use crate::{Offset, Space, Span};

/// Ascending, disjoint spans, kept as variable-length differences: a plan over a fragmented disk of many
/// terabytes holds tens of millions of spans, which cost three or four bytes each here instead of sixteen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PackedExtents<S: Space> {
    bytes: Vec<u8>,
    count: u64,
    total_bytes: u64,
    /// The last span is held back unpacked, so that a neighbour can still join it.
    last: Option<Span<S>>,
    packed_end: u64,
    space: PhantomData<S>,
}

impl<S: Space> Default for PackedExtents<S> {
    fn default() -> Self {
        Self { bytes: Vec::new(), count: 0, total_bytes: 0, last: None, packed_end: 0, space: PhantomData }
    }
}

/// Differences are stored in sectors where they are whole sectors, as nearly all are.
const SECTOR_BYTES: u64 = 512;

impl<S: Space> PackedExtents<S> {
    /// The empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a span at or after the end of the last one, joining it if they touch. Panics on an overlap.
    pub fn push(&mut self, span: Span<S>) {
        if span.is_empty() {
            return;
        }
        self.total_bytes += span.len_bytes();
        if let Some(last) = &mut self.last {
            assert!(last.end() <= span.start(), "spans are pushed in order");
            if last.end() == span.start() {
                *last = Span::between(last.start(), span.end());
                return;
            }
        }
        if let Some(last) = self.last.replace(span) {
            self.pack(last);
        }
        self.count += 1;
    }

    /// Number of spans.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Bytes held.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// The spans in order.
    pub fn iter(&self) -> impl Iterator<Item = Span<S>> + '_ {
        let mut bytes = self.bytes.iter();
        let mut end = 0;
        let packed = std::iter::from_fn(move || {
            let start = end + unpack(&mut bytes)?;
            let len_bytes = unpack(&mut bytes)?;
            end = start + len_bytes;
            Some(Span::new(Offset::new(start), len_bytes))
        });
        packed.chain(self.last)
    }

    fn pack(&mut self, span: Span<S>) {
        pack(&mut self.bytes, span.start().get() - self.packed_end);
        pack(&mut self.bytes, span.len_bytes());
        self.packed_end = span.end().get();
    }
}

/// LEB128 of `sectors << 1`, or of `bytes << 1 | 1` where it is not whole sectors.
fn pack(out: &mut Vec<u8>, value_bytes: u64) {
    let (number, odd) = match value_bytes % SECTOR_BYTES {
        0 => (value_bytes / SECTOR_BYTES, 0),
        _ => (value_bytes, 1),
    };
    let mut rest = u128::from(number) << 1 | odd;
    while rest > 0x7f {
        out.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.push((rest & 0x7f) as u8);
}

fn unpack<'a>(bytes: &mut impl Iterator<Item = &'a u8>) -> Option<u64> {
    let mut value = 0u128;
    let mut shift = 0;
    loop {
        let byte = *bytes.next()?;
        value |= u128::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
    }
    let number = u64::try_from(value >> 1).expect("packed from a u64");
    Some(if value & 1 == 0 { number * SECTOR_BYTES } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExtentSet, Virtual};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_goes_in_comes_out(steps in prop::collection::vec((0..1u64 << 40, 0..1u64 << 40, any::<bool>()), 0..50)) {
            let mut packed = PackedExtents::<Virtual>::new();
            let mut set = ExtentSet::new();
            let mut at = 0;
            for (gap, len, aligned) in steps {
                let unit = if aligned { SECTOR_BYTES } else { 1 };
                let span = Span::new(Offset::new(at + gap / unit * unit), len / unit * unit);
                packed.push(span);
                set.push(span);
                at = span.end().get();
            }
            prop_assert!(packed.iter().eq(set.iter()));
            prop_assert_eq!(packed.count(), set.count() as u64);
            prop_assert_eq!(packed.total_bytes(), set.total_bytes());
        }
    }

    #[test]
    fn a_fragmented_disk_costs_few_bytes_a_span() {
        let mut packed = PackedExtents::<Virtual>::new();
        for index in 0..10_000 {
            packed.push(Span::new(Offset::new(index * 65_536), 4096));
        }
        assert!(packed.bytes.len() <= 30_000, "{} bytes", packed.bytes.len());
    }
}
