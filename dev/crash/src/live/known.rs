//! What each sector of a disk may hold: the log of what was written, as far as it still counts.

use std::collections::HashMap;
use std::ops::Range;

use extent::VirtualSpan;

pub(super) const SECTOR_LEN: usize = sim::SECTOR_BYTES;
/// Bytes that tell the words of a log from what tables hold.
const MARK: u64 = 0xc7a5_0000_0000_0000;
const MARK_MASK: u64 = 0xffff_0000_0000_0000;

/// What fills a sector. Zeros are the word 0.
pub(super) type Word = u64;

/// The word of write `write` in the sector `number`.
pub(super) fn word(write: u64, number: usize) -> Word {
    MARK | ((write << 16 | number as u64 & 0xffff) & !MARK_MASK)
}

/// A sector of that word.
pub(super) fn sector_of(word: Word) -> [u8; SECTOR_LEN] {
    let mut sector = [0; SECTOR_LEN];
    sector.as_chunks_mut::<8>().0.fill(word.to_le_bytes());
    sector
}

/// The word that fills `sector`, if one of a log does; zeros count as one.
pub(super) fn word_of(sector: &[u8]) -> Option<Word> {
    let words = sector.as_chunks::<8>().0;
    let first = *words.first()?;
    let word = u64::from_le_bytes(first);
    let is_known = word == 0 || word & MARK_MASK == MARK;
    (is_known && words.iter().all(|other| *other == first)).then_some(word)
}

pub(super) fn sectors(span: VirtualSpan) -> Range<usize> {
    let number = |at: u64| usize::try_from(at).unwrap() / SECTOR_LEN;
    number(span.start().get())..number(span.end().get())
}

#[derive(Clone)]
struct Sector {
    /// What may be read now: several after a discard.
    now: Vec<Word>,
    /// What a cut may leave.
    any: Vec<Word>,
    is_changed: bool,
}

/// What happened to each sector.
#[derive(Clone)]
pub(super) struct Known {
    sectors: Vec<Sector>,
    /// Sectors that changed since the last flush.
    changed: Vec<usize>,
    /// What torn sectors hold, by a word that stands for it.
    torn: HashMap<Word, [u8; SECTOR_LEN]>,
}

/// What is done to sectors.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// They hold what this write brings.
    Write(u64),
    /// They are zeros.
    Zero,
    /// They are zeros, or as they were.
    Discard,
}

impl Known {
    /// A disk that holds `contents`, all of it stable.
    pub(super) fn new(contents: &[u8]) -> Self {
        let word = |sector| word_of(sector).expect("a fresh disk holds words");
        let sector = |sector| Sector { now: vec![word(sector)], any: vec![word(sector)], is_changed: false };
        let sectors = contents.chunks(SECTOR_LEN).map(sector).collect();
        Self { sectors, changed: Vec::new(), torn: HashMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.sectors.len()
    }

    /// The change may have happened, wholly or in part.
    pub(super) fn begin(&mut self, span: VirtualSpan, change: Change) {
        for number in sectors(span) {
            let sector = &mut self.sectors[number];
            if !std::mem::replace(&mut sector.is_changed, true) {
                self.changed.push(number);
            }
            let new = match change {
                Change::Write(write) => word(write, number),
                Change::Zero | Change::Discard => 0,
            };
            if !sector.any.contains(&new) {
                sector.any.push(new);
            }
        }
    }

    /// The change did happen.
    pub(super) fn end(&mut self, span: VirtualSpan, change: Change) {
        for number in sectors(span) {
            let now = &mut self.sectors[number].now;
            match change {
                Change::Write(write) => (*now).splice(.., [word(write, number)]).for_each(drop),
                Change::Zero => (*now).splice(.., [0]).for_each(drop),
                Change::Discard if now.contains(&0) => {}
                Change::Discard => now.push(0),
            }
        }
    }

    /// The change failed, and may have happened in part: whole sectors of it.
    pub(super) fn failed(&mut self, span: VirtualSpan, change: Change) {
        for number in sectors(span) {
            let new = match change {
                Change::Write(write) => word(write, number),
                Change::Zero | Change::Discard => 0,
            };
            let now = &mut self.sectors[number].now;
            if !now.contains(&new) {
                now.push(new);
            }
        }
    }

    /// Everything that was done is stable.
    pub(super) fn flushed(&mut self) {
        for number in self.changed.drain(..) {
            let sector = &mut self.sectors[number];
            sector.is_changed = false;
            sector.any.clone_from(&sector.now);
        }
        if self.torn.len() > 1000 {
            let Self { sectors, torn, .. } = self;
            let used: std::collections::HashSet<_> = sectors.iter().flat_map(|sector| &sector.any).collect();
            torn.retain(|word, _| used.contains(word));
        }
    }

    /// This much of what was done is stable.
    pub(super) fn flushed_by_fua(&mut self, span: VirtualSpan) {
        for number in sectors(span) {
            let sector = &mut self.sectors[number];
            sector.any.clone_from(&sector.now);
        }
    }

    fn bytes_of(&self, word: Word) -> [u8; SECTOR_LEN] {
        self.torn.get(&word).copied().unwrap_or_else(|| sector_of(word))
    }

    /// Reads while nothing happened: `bytes` from the sector `first` on. What a discard left is known from then on.
    pub(super) fn check_read(&mut self, first: usize, bytes: &[u8]) -> Result<(), String> {
        for (number, found) in (first..).zip(bytes.chunks(SECTOR_LEN)) {
            let now = &self.sectors[number].now;
            let word = match word_of(found) {
                Some(word) if now.contains(&word) => Some(word),
                Some(_) => None,
                None => now.iter().copied().find(|word| self.bytes_of(*word) == found),
            };
            let Some(word) = word else {
                return Err(format!("sector {number} holds {}, not {now:x?}", show(found)));
            };
            self.sectors[number].now.splice(.., [word]).for_each(drop);
        }
        Ok(())
    }

    /// After a restart the whole disk holds `bytes`. What is found stays, and is stable if the machine `was_cut`.
    pub(super) fn check_after_restart(&mut self, bytes: &[u8], was_cut: bool) -> Result<(), String> {
        for (number, found) in bytes.chunks(SECTOR_LEN).enumerate() {
            let any = &self.sectors[number].any;
            let word = match word_of(found) {
                Some(word) if any.contains(&word) => word,
                _ => match any.iter().copied().find(|word| self.bytes_of(*word) == found) {
                    Some(word) => word,
                    None if self.is_torn(any, found) => {
                        let word = u64::MAX - self.torn.len() as u64;
                        let word = (0..).map(|step| word - step).find(|word| !self.torn.contains_key(word));
                        let word = word.expect("few are torn");
                        self.torn.insert(word, found.try_into().expect("a sector"));
                        self.sectors[number].any.push(word);
                        word
                    }
                    None => return Err(format!("sector {number} holds {}, not {any:x?}", show(found))),
                },
            };
            let sector = &mut self.sectors[number];
            sector.now.splice(.., [word]).for_each(drop);
            if was_cut {
                sector.any.splice(.., [word]).for_each(drop);
                sector.is_changed = false;
            }
        }
        if was_cut {
            self.changed.clear();
        }
        Ok(())
    }

    /// Whether `found` is the front of one version and the back of another.
    fn is_torn(&self, any: &[Word], found: &[u8]) -> bool {
        let same = |word: &Word| self.bytes_of(*word);
        let front = |bytes: [u8; SECTOR_LEN]| bytes.iter().zip(found).take_while(|(a, b)| a == b).count();
        let back = |bytes: [u8; SECTOR_LEN]| {
            bytes.iter().rev().zip(found.iter().rev()).take_while(|(a, b)| a == b).count()
        };
        let front = any.iter().map(|word| front(same(word))).max().unwrap_or(0);
        front + any.iter().map(|word| back(same(word))).max().unwrap_or(0) >= SECTOR_LEN
    }
}

fn show(sector: &[u8]) -> String {
    match word_of(sector) {
        Some(word) => format!("{word:x}"),
        None => format!("{:x?}..{:x?}", &sector[..8], &sector[SECTOR_LEN - 8..]),
    }
}
