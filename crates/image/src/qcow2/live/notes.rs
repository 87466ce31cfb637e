//! Notes changes of an image in use in its persistent bitmaps, as QEMU does: the bitmaps are marked as in use before the first change, get
//! their bits when the disk is closed, and are marked as stored once these are on stable storage.
//!
//! Invariant: a bitmap that is not marked as in use has every change. So after a cut at any moment it either has all of them, or is known
//! not to be right, and who makes backups reads everything.
//!
//! Absent on purpose: a bitmap that stays right through a kill: it would cost a flush before the first write to each of its parts.

use block::Result;
use extent::{ExtentSet, HostOffset, Span, Virtual, VirtualOffset, VirtualSpan};

use super::Clusters;
use crate::live::{Marks, Stage, Storage, Tables, broken};
use crate::qcow2::bitmaps::{Entry, check_word, no_such};
use crate::qcow2::layout::{SECTOR_BYTES, bitmap_flag, bitmap_word};

impl Clusters {
    /// The words of all tables of recording bitmaps are the pieces, one after the other.
    pub(super) fn note_piece(&mut self, tables: &mut Tables, marks: &Marks, piece: u64) -> Result<bool> {
        let mut index = piece;
        for number in 0..self.recording.len() {
            let count = self.recording[number].table_count;
            if index < count {
                let entry = self.recording[number].clone();
                self.note_word(tables, marks, &entry, index)?;
                return Ok(true);
            }
            index -= count;
        }
        if broken!(NotedTooSoon) {
            self.put_out_of_use(tables)?;
        }
        Ok(false)
    }

    /// Sets the bits for which the word `index` of the table of `entry` stands.
    fn note_word(&mut self, tables: &mut Tables, marks: &Marks, entry: &Entry, index: u64) -> Result<()> {
        let bytes_per_word = entry.bytes_per_word(self.cluster_bits);
        let disk_bytes = self.unit_count.saturating_mul(self.cluster_bytes());
        let Some(start) = index.checked_mul(bytes_per_word).filter(|start| *start < disk_bytes) else {
            return Ok(());
        };
        let window = Span::new(VirtualOffset::new(start), bytes_per_word.min(disk_bytes - start));
        let mut changed = marks.within(window).peekable();
        let word_at = entry.table_at.plus(index * 8);
        let word = u64::from_be_bytes(tables.read(word_at.get())?);
        check_word(entry.table_at, word, self.cluster_bytes(), tables.len_bytes())?;
        if changed.peek().is_none() || word == bitmap_word::ALL_ONES {
            return Ok(());
        }
        let bits = bits_of(entry, window.start(), changed, self.cluster_bytes());
        let at = match word & bitmap_word::OFFSET {
            0 => self.new_bits(tables, word_at)?,
            at => at,
        };
        let sector = usize::try_from(SECTOR_BYTES).expect("512");
        for (number, bits) in
            (0..).zip(bits.chunks(sector)).filter(|(_, bits)| bits.iter().any(|byte| *byte != 0))
        {
            let at = at + number * SECTOR_BYTES;
            let mut merged = tables.read_vec(Span::new(HostOffset::new(at), SECTOR_BYTES))?;
            merged.iter_mut().zip(bits).for_each(|(byte, bits)| *byte |= bits);
            tables.put(at, &merged, Stage::Unreferenced)?;
        }
        Ok(())
    }

    /// A cluster of bits, none of them set, to which the word at `word_at` refers; or nothing changed, if there is no room.
    fn new_bits(&mut self, tables: &mut Tables, word_at: HostOffset) -> Result<u64> {
        let number = self.find_for_table(tables, Vec::new())?;
        let at = number << self.cluster_bits;
        tables.secure(word_at.get(), 8)?;
        tables.reserve(self.cluster(at))?;
        self.take(tables, number)?;
        tables.create(self.cluster(at), 0, Stage::Unreferenced);
        tables.put(word_at.get(), &at.to_be_bytes(), Stage::References)?;
        Ok(at)
    }

    /// Makes the directory say that the bitmaps are right.
    pub(super) fn put_out_of_use(&mut self, tables: &mut Tables) -> Result<()> {
        self.recording.iter().try_for_each(|entry| {
            let flags = entry.flags & !bitmap_flag::IN_USE;
            tables.put(entry.flags_at.get(), &flags.to_be_bytes(), Stage::References)
        })
    }

    /// Makes the bitmap `name` say that nothing changed but `kept`.
    pub(super) fn restart_bitmap(
        &mut self,
        tables: &mut Tables,
        name: &str,
        kept: &ExtentSet<Virtual>,
        freed: &mut Vec<Storage>,
    ) -> Result<()> {
        let entry = self.recording.iter().find(|entry| entry.name == name).cloned();
        let entry = entry.ok_or_else(|| no_such(name))?;
        let bytes_per_word = entry.bytes_per_word(self.cluster_bits);
        for index in 0..entry.table_count {
            let word_at = entry.table_at.plus(index * 8);
            let word = u64::from_be_bytes(tables.read(word_at.get())?);
            check_word(entry.table_at, word, self.cluster_bytes(), tables.len_bytes())?;
            let start =
                index.checked_mul(bytes_per_word).filter(|start| start.checked_add(bytes_per_word).is_some());
            let window = start.map(|start| Span::new(VirtualOffset::new(start), bytes_per_word));
            match window.filter(|window| kept.within(*window).next().is_some()) {
                Some(window) => {
                    let bits = bits_of(&entry, window.start(), kept.within(window), self.cluster_bytes());
                    self.replace_bits(tables, word_at, word, &bits)?;
                }
                None if word == 0 => {}
                None => {
                    tables.put(word_at.get(), &[0; 8], Stage::References)?;
                    let at = HostOffset::new(word & bitmap_word::OFFSET);
                    if at.get() != 0 {
                        freed.push(Storage::Shared { at, len_bytes: self.cluster_bytes() });
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes `bits` those of the word at `word_at`, which is `word`.
    fn replace_bits(
        &mut self,
        tables: &mut Tables,
        word_at: HostOffset,
        word: u64,
        bits: &[u8],
    ) -> Result<()> {
        let at = match word & bitmap_word::OFFSET {
            0 => self.new_bits(tables, word_at)?,
            at => at,
        };
        let sector = usize::try_from(SECTOR_BYTES).expect("512");
        (0..)
            .zip(bits.chunks(sector))
            .try_for_each(|(number, bits)| tables.put(at + number * SECTOR_BYTES, bits, Stage::Unreferenced))
    }
}

/// A cluster of bits, which begins at `start` of the disk, with those set that stand for `spans`.
fn bits_of(
    entry: &Entry,
    start: VirtualOffset,
    spans: impl Iterator<Item = VirtualSpan>,
    cluster_bytes: u64,
) -> Vec<u8> {
    let mut bits = vec![0; usize::try_from(cluster_bytes).expect("at most 2 MiB")];
    for span in spans {
        let first = (span.start().get() - start.get()) >> entry.granularity_bits;
        let last = (span.end().get() - 1 - start.get()) >> entry.granularity_bits;
        for bit in first..=last {
            bits[usize::try_from(bit / 8).expect("within a cluster")] |= 1 << (bit % 8);
        }
    }
    bits
}
