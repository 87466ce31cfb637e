//! Which units of a disk have arrived: a bit each.

use std::ops::Range;

/// A set of units, as a record stores it: the lowest bit of a byte is its first unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Units {
    bytes: Vec<u8>,
    count: u64,
}

impl Units {
    /// None of so many.
    pub(crate) fn none(count: u64) -> Self {
        Self { bytes: vec![0; index(count.div_ceil(8))], count }
    }

    /// As they were stored; `None` if these are not as many, or there are more.
    pub(crate) fn from_bytes(bytes: Vec<u8>, count: u64) -> Option<Self> {
        let units = Self { bytes, count };
        let fits = units.bytes.len() as u64 == count.div_ceil(8);
        (fits && !(count..count.next_multiple_of(8)).any(|unit| units.has(unit))).then_some(units)
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn has(&self, unit: u64) -> bool {
        self.bytes[index(unit / 8)] >> (unit % 8) & 1 == 1
    }

    pub(crate) fn add(&mut self, unit: u64) {
        self.bytes[index(unit / 8)] |= 1 << (unit % 8);
    }

    /// How many of them there are.
    pub(crate) fn total(&self) -> u64 {
        self.bytes.iter().map(|byte| u64::from(byte.count_ones())).sum()
    }

    /// The first unit from `from` on that is not in it.
    pub(crate) fn first_missing(&self, from: u64) -> Option<u64> {
        let mut unit = from;
        while unit < self.count {
            if unit.is_multiple_of(8) && self.bytes[index(unit / 8)] == u8::MAX {
                unit += 8;
            } else if self.has(unit) {
                unit += 1;
            } else {
                return Some(unit);
            }
        }
        None
    }

    /// The stretches of the stored bytes, in whole pages of this length, in which `older` differs.
    pub(crate) fn changed_pages(&self, older: &Self, page: usize) -> Vec<Range<usize>> {
        let pages = self.bytes.chunks(page).zip(older.bytes.chunks(page)).enumerate();
        let changed = pages.filter(|(_, (new, old))| new != old);
        changed.map(|(number, (new, _))| number * page..number * page + new.len()).collect()
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("units are counted in memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_found_and_pages_that_changed_are_told() {
        let mut units = Units::none(1000);
        let old = units.clone();
        assert_eq!(units.first_missing(0), Some(0));
        (0..1000).filter(|unit| *unit != 77 && *unit != 999).for_each(|unit| units.add(unit));
        assert_eq!(
            (units.first_missing(0), units.first_missing(78), units.total()),
            (Some(77), Some(999), 998)
        );
        units.add(999);
        assert_eq!(units.first_missing(78), None);
        assert_eq!(units.changed_pages(&old, 100), [0..100, 100..125]);
        assert_eq!(units.changed_pages(&units.clone(), 100), []);
        assert_eq!(Units::from_bytes(units.as_bytes().to_vec(), 1000), Some(units.clone()));
        assert_eq!(Units::from_bytes(vec![0; 124], 1000), None);
        assert_eq!(Units::from_bytes(vec![0xff; 1], 7), None);
    }
}
