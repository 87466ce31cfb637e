//! What the guests do: a fixed sequence of writes, trims and flushes, the same for every server.
//!
//! A round has at most one request for each image. They are under way together, as those of guests that run side by side.
//!
//! Absent on purpose: I/O, clocks. The same workload and seed give the same rounds.

use std::collections::VecDeque;

use crate::content::Random;

/// A page of a catalog, and the unit of a small file.
const PAGE_BYTES: u64 = 4096;
/// The most that a small file takes, and its place.
const SLOT_BYTES: u64 = 64 << 10;
/// The catalog's share of a disk.
const CATALOG_SHARE: u64 = 16;
/// Changes of small files for each place that there is for one.
const CHANGES_PER_SLOT: usize = 3;

/// In which order images grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// All from their start to their end, one write each in turns.
    Turns,
    /// In turns as well, each anywhere where it was not yet written.
    Random,
}

/// What the guests do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Workload {
    /// How many images there are.
    pub files: usize,
    /// The size of each, in whole pages.
    pub size_bytes: u64,
    /// What is written at a time, in whole pages.
    pub write_bytes: u64,
    /// In which order.
    pub order: Order,
    /// Instead of growing, many small files are created, rewritten, erased and renamed: writes of data and of pages of a
    /// catalog, and trims.
    pub churns: bool,
    /// How much is written to each image before it is flushed.
    pub flush_bytes: u64,
}

/// A request of a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    Write { at: u64, len: u64 },
    Trim { at: u64, len: u64 },
    Flush,
}

/// One guest's requests in order.
struct Guest {
    random: Random,
    workload: Workload,
    source: Source,
    /// What comes first.
    waiting: VecDeque<Request>,
    unflushed_bytes: u64,
}

enum Source {
    /// The writes that are left, as their numbers in the disk's order; the next one last.
    Growing(Vec<u64>),
    Churning(Churn),
}

/// A file system of small files, each in a place of its own.
struct Churn {
    /// The lengths of the files in their places; 0 where there is none.
    slots: Vec<u64>,
    changes_left: usize,
}

/// The rounds of a workload.
pub(crate) struct Rounds {
    guests: Vec<Guest>,
}

impl Rounds {
    pub(crate) fn new(workload: Workload, seed: u64) -> Self {
        let guest = |index: usize| Guest::new(workload, Random::new(seed ^ ((index as u64) << 32)));
        Self { guests: (0..workload.files).map(guest).collect() }
    }
}

impl Iterator for Rounds {
    /// For each image, in order.
    type Item = Vec<Option<Request>>;

    fn next(&mut self) -> Option<Self::Item> {
        let round: Vec<_> = self.guests.iter_mut().map(Guest::next).collect();
        round.iter().any(Option::is_some).then_some(round)
    }
}

impl Guest {
    fn new(workload: Workload, mut random: Random) -> Self {
        let source = if workload.churns {
            let data_bytes = workload.size_bytes - workload.size_bytes / CATALOG_SHARE;
            let slots = usize::try_from(data_bytes / SLOT_BYTES).unwrap_or(usize::MAX);
            Source::Churning(Churn {
                slots: vec![0; slots],
                changes_left: slots.saturating_mul(CHANGES_PER_SLOT),
            })
        } else {
            let mut writes: Vec<u64> =
                (0..workload.size_bytes.div_ceil(workload.write_bytes)).rev().collect();
            if workload.order == Order::Random {
                shuffle(&mut writes, &mut random);
            }
            Source::Growing(writes)
        };
        Self { random, workload, source, waiting: VecDeque::new(), unflushed_bytes: 0 }
    }

    fn next(&mut self) -> Option<Request> {
        if self.unflushed_bytes >= self.workload.flush_bytes {
            self.unflushed_bytes = 0;
            return Some(Request::Flush);
        }
        if self.waiting.is_empty() {
            self.refill();
        }
        match self.waiting.pop_front() {
            Some(Request::Write { at, len }) => {
                self.unflushed_bytes += len;
                Some(Request::Write { at, len })
            }
            None if self.unflushed_bytes > 0 => {
                self.unflushed_bytes = 0;
                Some(Request::Flush)
            }
            other => other,
        }
    }

    fn refill(&mut self) {
        let Workload { size_bytes, write_bytes, .. } = self.workload;
        match &mut self.source {
            Source::Growing(writes) => {
                if let Some(index) = writes.pop() {
                    let at = index * write_bytes;
                    self.waiting.push_back(Request::Write { at, len: write_bytes.min(size_bytes - at) });
                }
            }
            Source::Churning(churn) => churn.change(size_bytes, &mut self.random, &mut self.waiting),
        }
    }
}

impl Churn {
    /// One change of a file: of its data, then of the catalog.
    fn change(&mut self, size_bytes: u64, random: &mut Random, requests: &mut VecDeque<Request>) {
        if self.changes_left == 0 || self.slots.is_empty() {
            return;
        }
        self.changes_left -= 1;
        let catalog_bytes = size_bytes - self.slots.len() as u64 * SLOT_BYTES;
        let place = |index: usize| catalog_bytes + index as u64 * SLOT_BYTES;
        let catalog_pages = (catalog_bytes / PAGE_BYTES).max(1);
        let note = |index: u64| {
            let at = index % catalog_pages * PAGE_BYTES;
            Request::Write { at, len: PAGE_BYTES }
        };
        let any = usize::try_from(random.below(self.slots.len() as u64)).unwrap_or(0);
        let kind = random.below(10);
        let is_free = |len: &u64| *len == 0;
        // Half of all changes are new files, as long as there is room: in the first free place, as file systems do.
        let free = (kind < 5).then(|| self.slots.iter().position(is_free)).flatten();
        let used = self.slots[any..].iter().position(|len| *len > 0).map(|further| any + further);
        match (free, used) {
            (Some(index), _) => {
                let len = (1 + random.below(SLOT_BYTES / PAGE_BYTES)) * PAGE_BYTES;
                self.slots[index] = len;
                requests.extend([Request::Write { at: place(index), len }, note(index as u64)]);
            }
            (None, Some(index)) if kind < 8 => {
                let len = self.slots[index];
                self.slots[index] = 0;
                requests.extend([Request::Trim { at: place(index), len }, note(index as u64)]);
            }
            (None, Some(index)) if kind == 8 => {
                let at = place(index) + random.below(self.slots[index] / PAGE_BYTES) * PAGE_BYTES;
                requests.extend([Request::Write { at, len: PAGE_BYTES }, note(index as u64)]);
            }
            // A new name: out of one page of the catalog and into another.
            (None, _) => requests.extend([note(any as u64), note(random.next())]),
        }
    }
}

/// Fisher and Yates.
fn shuffle(values: &mut [u64], random: &mut Random) {
    for index in (1..values.len()).rev() {
        let other = usize::try_from(random.below(index as u64 + 1)).unwrap_or(index);
        values.swap(index, other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKLOAD: Workload = Workload {
        files: 3,
        size_bytes: (4 << 20) + 4096,
        write_bytes: 64 << 10,
        order: Order::Turns,
        churns: false,
        flush_bytes: 1 << 20,
    };

    /// The requests for one image.
    fn of_image(workload: Workload, index: usize) -> Vec<Request> {
        Rounds::new(workload, 5).filter_map(|round| round[index]).collect()
    }

    #[test]
    fn growing_writes_everything_once_and_flushes_on_the_way_and_at_the_end() {
        for order in [Order::Turns, Order::Random] {
            let workload = Workload { order, ..WORKLOAD };
            let requests = of_image(workload, 1);
            let mut writes: Vec<_> = requests
                .iter()
                .filter_map(|request| match request {
                    Request::Write { at, len } => Some((*at, *len)),
                    _ => None,
                })
                .collect();
            assert_eq!(writes.is_sorted(), order == Order::Turns);
            writes.sort_unstable();
            assert_eq!(writes.iter().map(|(_, len)| len).sum::<u64>(), workload.size_bytes);
            assert!(writes.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0));
            let flushes = requests.iter().filter(|request| **request == Request::Flush).count();
            assert!((4..=5).contains(&flushes), "{flushes} flushes");
            assert_eq!(requests.last(), Some(&Request::Flush));
            assert_eq!(requests, of_image(workload, 1), "the same again");
        }
        let random = Workload { order: Order::Random, ..WORKLOAD };
        assert_ne!(of_image(random, 0), of_image(random, 1));
    }

    #[test]
    fn churning_stays_on_the_disk_and_trims_only_what_was_written() {
        let requests = of_image(Workload { churns: true, ..WORKLOAD }, 2);
        let mut live = std::collections::BTreeMap::new();
        let (mut erased, mut again) = (0, 0);
        for request in &requests {
            match *request {
                Request::Write { at, len } => {
                    assert!(at + len <= WORKLOAD.size_bytes && at % PAGE_BYTES == 0 && len % PAGE_BYTES == 0);
                    again += usize::from(live.insert(at, len).is_some());
                }
                Request::Trim { at, len } => {
                    let file = live.remove(&at).expect("a file was there");
                    // Its first page may have been rewritten.
                    assert!(file == len || file == PAGE_BYTES);
                    erased += 1;
                }
                Request::Flush => {}
            }
        }
        assert!(erased > 10 && again > 10, "{erased} erased, {again} written again");
        assert_eq!(requests.last(), Some(&Request::Flush));
    }
}
