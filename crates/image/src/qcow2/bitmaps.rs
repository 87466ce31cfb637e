//! The persistent bitmaps of an image (specification: Bitmaps): which parts of the disk changed since a program, a backup as a rule, began
//! to ask.
//!
//! Invariants:
//! - a directory is read whole or is `Corrupt`: no change of an image relies on half of one;
//! - what a bitmap says is believed only if the image says that it is consistent and nobody left it in use.
//!
//! Absent on purpose: making and removing bitmaps, which `qemu-img bitmap` does. How changes are noted is in `live/notes.rs`.

use block::{Error, FieldValue, HostFile, Result, read_struct, read_vec};
use extent::{ExtentSet, HostOffset, HostSpan, Span, Virtual, VirtualOffset};

use super::corrupt::Corrupt;
use super::layout::{
    BITMAP_COUNT_MAX, BITMAP_GRANULARITY_BITS, BITMAP_NAME_BYTES_MAX, BITMAP_TABLE_BYTES_MAX, BitmapEntry,
    DIRTY_BITMAP, bitmap_flag, bitmap_word,
};
use super::parse::Header;
use crate::{BitmapState, DirtyBitmap};

/// An entry of the directory that was checked.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    /// Where its flags lie.
    pub(super) flags_at: HostOffset,
    pub(super) flags: u32,
    pub(super) granularity_bits: u32,
    /// Where its table lies, and how many words it has.
    pub(super) table_at: HostOffset,
    pub(super) table_count: u64,
    /// It has more than is known of such entries, and may not be used without knowing that.
    is_foreign: bool,
}

impl Entry {
    /// Whether changes of the disk are to be noted in it.
    pub(super) fn is_recording(&self) -> bool {
        self.flags & (bitmap_flag::AUTO | bitmap_flag::IN_USE) == bitmap_flag::AUTO
    }

    fn state(&self, header: &Header) -> BitmapState {
        let is_consistent = header.bitmaps.is_some_and(|told| told.is_consistent);
        match () {
            () if !is_consistent || self.flags & bitmap_flag::IN_USE != 0 => BitmapState::Inconsistent,
            () if self.is_recording() => BitmapState::Recording,
            () => BitmapState::Stopped,
        }
    }

    /// Bytes of the disk for which one word of the table stands.
    pub(super) fn bytes_per_word(&self, header_cluster_bits: u32) -> u64 {
        1u64.checked_shl(header_cluster_bits + 3 + self.granularity_bits).unwrap_or(u64::MAX)
    }

    /// The words of its table.
    fn words(&self, file: &dyn HostFile) -> Result<Vec<u64>> {
        let bytes = read_vec(file, self.table_at, self.table_count * 8, "QCOW2 bitmap table")?;
        Ok(bytes.as_chunks().0.iter().map(|word| u64::from_be_bytes(*word)).collect())
    }
}

/// The directory of bitmaps.
#[derive(Clone, Debug, Default)]
pub(super) struct Directory {
    span: Option<HostSpan>,
    pub(super) entries: Vec<Entry>,
}

fn corrupt(at: HostOffset) -> Error {
    Error::corrupt(Corrupt::Bitmaps).at(at)
}

impl Directory {
    /// Reads and checks the directory; an empty one if there is none, or the image says that it is out of date.
    pub(super) fn read(header: &Header, file: &dyn HostFile) -> Result<Self> {
        let Some(told) = header.bitmaps.filter(|told| told.is_consistent) else {
            return Ok(Self::default());
        };
        let at = told.directory_at;
        if told.count > BITMAP_COUNT_MAX {
            let expected = format!("{BITMAP_COUNT_MAX} or fewer");
            return Err(corrupt(HostOffset::ZERO).field("nb_bitmaps", told.count, expected));
        }
        let is_place = at.get() != 0 && at.get().is_multiple_of(header.cluster_bytes());
        let span = Span::checked(at, told.directory_bytes)
            .filter(|span| is_place && span.end().get() <= file.len_bytes())
            .ok_or_else(|| {
                corrupt(HostOffset::ZERO).field(
                    "bitmap_directory_offset",
                    FieldValue::hex(at.get()),
                    "whole clusters within the file",
                )
            })?;
        let mut entries = Vec::new();
        let mut next = at;
        for _ in 0..told.count {
            let (entry, len_bytes) = read_entry(header, file, next)?;
            entries.push(entry);
            next = next.plus(len_bytes);
            if next > span.end() {
                let expected = format!("{} entries within {} bytes", told.count, told.directory_bytes);
                return Err(corrupt(next).field("bitmap_directory_size", told.directory_bytes, expected));
            }
        }
        Ok(Self { span: Some(span), entries })
    }

    /// Fails if changes of the disk cannot be noted as its bitmaps ask for.
    pub(super) fn check_notable(&self) -> Result<()> {
        let foreign = self.entries.iter().find(|entry| entry.is_recording() && entry.is_foreign);
        foreign.map_or(Ok(()), |entry| {
            let what = format!(
                "has a persistent bitmap, {:?}, of a kind in which Leandisk cannot note changes",
                entry.name
            );
            Err(Error::unsupported(what)
                .hint("remove it with 'qemu-img bitmap --remove', and make the next backup a full one"))
        })
    }

    /// Every place that the directory and what it leads to takes, each in clusters of its own.
    pub(super) fn each_place(
        &self,
        file: &dyn HostFile,
        cluster_bytes: u64,
        mut each: impl FnMut(HostSpan) -> Result<()>,
    ) -> Result<()> {
        self.span.map_or(Ok(()), &mut each)?;
        for entry in &self.entries {
            each(Span::new(entry.table_at, entry.table_count * 8))?;
            for word in entry.words(file)? {
                let at = word & bitmap_word::OFFSET;
                if at != 0 {
                    check_word(entry.table_at, word, cluster_bytes, file.len_bytes())?;
                    each(Span::new(HostOffset::new(at), cluster_bytes))?;
                }
            }
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Result<&Entry> {
        self.entries.iter().find(|entry| entry.name == name).ok_or_else(|| no_such(name))
    }
}

/// There is no bitmap of that name.
pub(super) fn no_such(name: &str) -> Error {
    Error::refused(format!("the image has no persistent bitmap {name:?}"))
        .hint("'leandisk info' lists those that it has; 'qemu-img bitmap --add' makes one")
}

/// The entry at `at`, and how many bytes it takes.
fn read_entry(header: &Header, file: &dyn HostFile, at: HostOffset) -> Result<(Entry, u64)> {
    let raw: BitmapEntry = read_struct(file, at, "QCOW2 bitmap directory")?;
    let head_bytes = size_of::<BitmapEntry>() as u64;
    let (name_bytes, extra_bytes) = (u64::from(raw.name_size.get()), u64::from(raw.extra_data_size.get()));
    let wrong = |field: &str, found: u64, expected: String| Err(corrupt(at).field(field, found, expected));
    if name_bytes == 0 || name_bytes > BITMAP_NAME_BYTES_MAX {
        return wrong("name_size", name_bytes, format!("1 to {BITMAP_NAME_BYTES_MAX}"));
    }
    let granularity_bits = u32::from(raw.granularity_bits);
    if !BITMAP_GRANULARITY_BITS.contains(&granularity_bits) {
        return wrong("granularity_bits", granularity_bits.into(), format!("{BITMAP_GRANULARITY_BITS:?}"));
    }
    let name = read_vec(file, at.plus(head_bytes + extra_bytes), name_bytes, "QCOW2 bitmap directory")?;
    let flags = raw.flags.get();
    let is_foreign = raw.kind != DIRTY_BITMAP
        || flags & !bitmap_flag::KNOWN != 0
        || (extra_bytes > 0 && flags & bitmap_flag::EXTRA_DATA_COMPATIBLE == 0);
    let (table_at, table_count) = (raw.bitmap_table_offset.get(), u64::from(raw.bitmap_table_size.get()));
    let entry = Entry {
        name: String::from_utf8_lossy(&name).into_owned(),
        flags_at: at.plus(std::mem::offset_of!(BitmapEntry, flags) as u64),
        flags,
        granularity_bits,
        table_at: HostOffset::new(table_at),
        table_count,
        is_foreign,
    };
    let needed = header.virtual_bytes.div_ceil(entry.bytes_per_word(header.cluster_bits));
    if table_count < needed || table_count * 8 > BITMAP_TABLE_BYTES_MAX {
        let expected = format!("{needed} or more, and {} at most", BITMAP_TABLE_BYTES_MAX / 8);
        return wrong("bitmap_table_size", table_count, expected);
    }
    let is_place = table_at != 0 && table_at.is_multiple_of(header.cluster_bytes());
    if !is_place || table_at.checked_add(table_count * 8).is_none_or(|end| end > file.len_bytes()) {
        return wrong("bitmap_table_offset", table_at, "whole clusters within the file".into());
    }
    Ok((entry, (head_bytes + extra_bytes + name_bytes).next_multiple_of(8)))
}

/// Fails unless a word of a bitmap's table says what the specification knows.
pub(super) fn check_word(table_at: HostOffset, word: u64, cluster_bytes: u64, file_bytes: u64) -> Result<()> {
    let at = word & bitmap_word::OFFSET;
    let is_right = match at {
        0 => word & !bitmap_word::ALL_ONES == 0,
        _ => word == at && at.is_multiple_of(cluster_bytes) && at < file_bytes,
    };
    if is_right {
        return Ok(());
    }
    let expected = "0, 1, or a whole cluster within the file";
    Err(corrupt(table_at).field("bitmap table entry", FieldValue::hex64(word), expected))
}

/// The bitmaps of an image, in its order.
pub(super) fn list(header: &Header, file: &dyn HostFile) -> Result<Vec<DirtyBitmap>> {
    let tell = |entry: &Entry| DirtyBitmap {
        name: entry.name.clone(),
        granularity_bytes: 1 << entry.granularity_bits,
        state: entry.state(header),
    };
    Ok(Directory::read(header, file)?.entries.iter().map(tell).collect())
}

/// What of the disk changed by the word of the bitmap `name`. `Refused` if there is none, or it is not to be believed.
pub(super) fn dirty(header: &Header, file: &dyn HostFile, name: &str) -> Result<ExtentSet<Virtual>> {
    let directory = Directory::read(header, file)?;
    let entry = directory.find(name)?;
    if entry.state(header) == BitmapState::Inconsistent {
        return Err(Error::refused(format!(
            "the persistent bitmap {name:?} is inconsistent: a program that had the image open ended without storing it"
        ))
        .hint("remove it with 'qemu-img bitmap --remove', and add it anew"));
    }
    if entry.is_foreign {
        return Err(Error::unsupported(format!("the persistent bitmap {name:?} is of another kind")));
    }
    let mut found = ExtentSet::new();
    let cluster_bytes = header.cluster_bytes();
    let bytes_per_word = entry.bytes_per_word(header.cluster_bits);
    let disk_bytes = header.virtual_bytes;
    for (index, word) in (0..).zip(entry.words(file)?) {
        let Some(start) = u64::checked_mul(index, bytes_per_word).filter(|start| *start < disk_bytes) else {
            break;
        };
        check_word(entry.table_at, word, cluster_bytes, file.len_bytes())?;
        let window = Span::new(VirtualOffset::new(start), bytes_per_word.min(disk_bytes - start));
        if word == bitmap_word::ALL_ONES {
            found.push(window);
        } else if word != 0 {
            let there = (file.len_bytes() - word).min(cluster_bytes);
            let bits = read_vec(file, HostOffset::new(word), there, "QCOW2 bitmap")?;
            push_bits(&mut found, &bits, window.start(), entry.granularity_bits, disk_bytes);
        }
    }
    Ok(found)
}

/// The spans that the set bits of `bits` stand for, the first of which begins at `start`.
fn push_bits(
    found: &mut ExtentSet<Virtual>,
    bits: &[u8],
    start: VirtualOffset,
    granularity_bits: u32,
    end_bytes: u64,
) {
    for (index, byte) in (0u64..).zip(bits) {
        for bit in (0..8).filter(|bit| byte >> bit & 1 != 0) {
            let at = start.get() + ((index * 8 + bit) << granularity_bits);
            if at < end_bytes {
                let len_bytes = (end_bytes - at).min(1 << granularity_bits);
                found.push(Span::new(VirtualOffset::new(at), len_bytes));
            }
        }
    }
}
