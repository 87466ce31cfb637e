//! What an image holds besides the disk as the guest sees it: internal snapshots and persistent bitmaps, by name.

use block::{HostFile, Result, read_struct, read_vec};
use extent::HostOffset;
use zerocopy::FromBytes;

use super::layout::{BITMAP_COUNT_MAX, BitmapEntry, SnapshotEntry};
use super::parse::Header;
use crate::Extras;

/// The names, as far as they can be read: a table that is broken leaves the number of what it would name.
pub(super) fn extras(header: &Header, file: &dyn HostFile) -> Extras {
    let snapshots = snapshots(header, file).unwrap_or_else(|_| unnamed(header.snapshot_count));
    let count = header.bitmaps.map_or(0, |told| told.count.min(BITMAP_COUNT_MAX));
    let bitmaps = bitmaps(header, file).unwrap_or_else(|_| unnamed(count));
    Extras { snapshots, bitmaps }
}

/// Names for what has none that can be read.
fn unnamed(count: u32) -> Vec<String> {
    (1..=count).map(|number| format!("number {number}")).collect()
}

/// The names of the snapshot table's entries (Snapshots). One without a name has its number, which is a name, too, to QEMU.
fn snapshots(header: &Header, file: &dyn HostFile) -> Result<Vec<String>> {
    let mut entries = Entries { file, at: header.snapshots_at.get(), what: "QCOW2 snapshot table" };
    let mut names = Vec::new();
    for _ in 0..header.snapshot_count {
        let entry: SnapshotEntry = entries.head()?;
        entries.skip(entry.extra_data_size.get());
        let (id, name) = (entries.text(entry.id_str_size.get())?, entries.text(entry.name_size.get())?);
        entries.align();
        names.push(if name.is_empty() { id } else { name });
    }
    Ok(names)
}

/// The names of the bitmap directory's entries (Bitmap directory).
fn bitmaps(header: &Header, file: &dyn HostFile) -> Result<Vec<String>> {
    let Some(told) = header.bitmaps else { return Ok(Vec::new()) };
    let mut entries = Entries { file, at: told.directory_at.get(), what: "QCOW2 bitmap directory" };
    let mut names = Vec::new();
    // No more than the directory can hold, whatever the header says.
    for _ in 0..u64::from(told.count.min(BITMAP_COUNT_MAX))
        .min(told.directory_bytes / size_of::<BitmapEntry>() as u64)
    {
        let entry: BitmapEntry = entries.head()?;
        entries.skip(entry.extra_data_size.get());
        names.push(entries.text(entry.name_size.get())?);
        entries.align();
    }
    Ok(names)
}

/// A table whose entries are a struct and then parts of stated lengths, filled up to 8 bytes; read as far as is asked.
struct Entries<'a> {
    file: &'a dyn HostFile,
    at: u64,
    what: &'static str,
}

impl Entries<'_> {
    /// The struct of the next entry.
    fn head<T: FromBytes>(&mut self) -> Result<T> {
        let head = read_struct(self.file, HostOffset::new(self.at), self.what)?;
        self.skip(u32::try_from(size_of::<T>()).expect("a small struct"));
        Ok(head)
    }

    /// A part that is text. Its length has 16 bits.
    fn text(&mut self, len: u16) -> Result<String> {
        let bytes = read_vec(self.file, HostOffset::new(self.at), u64::from(len), self.what)?;
        self.skip(u32::from(len));
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Past the file's end nothing can be read, which is an error there.
    fn skip(&mut self, len: u32) {
        self.at = self.at.saturating_add(u64::from(len));
    }

    fn align(&mut self) {
        self.at = self.at.checked_next_multiple_of(8).unwrap_or(u64::MAX);
    }
}
