//! A pending log, replayed in memory (2.3 of the specification).
//!
//! The log is a ring of entries. Those that bear the header's log GUID, follow each other without a gap in
//! place and sequence number, and whose last one's tail lies among them make a sequence; the one with the
//! highest sequence number is active, and is applied from the tail on. A torn entry ends a sequence, as the
//! format means it to; a log without any sequence cannot be replayed, and then the disk's state is unknown.

use block::{Error, HostFile, Overlay, Result, read_struct};
use extent::{Host, HostOffset, HostSpan, Span};
use zerocopy::{FromBytes, IntoBytes};

use super::corrupt::Corrupt;
use super::layout::{
    Guid, LOG_DATA_SIGNATURE, LOG_ENTRY_SIGNATURE, LOG_SECTOR_BYTES, LOG_SECTOR_SIGNATURE,
    LOG_ZERO_SIGNATURE, LogDataSector, LogDescriptor, LogEntryHeader, MIB, REGION_TABLES_AT,
};

/// The longest log that is read. Those of small disks are 1 MiB.
const LOG_BYTES_MAX: u64 = 256 * MIB;
/// The most memory that replayed data may take.
const PATCHED_BYTES_MAX: u64 = 64 * MIB;
/// How much of a log is checksummed at once.
const PIECE_BYTES: usize = 1 << 20;
/// Each byte belongs to at most one sequence, is tried once more after the sequence's end, and both again where
/// the ring closes.
const CHECKED_PER_LOG_BYTE_MAX: u64 = 4;

/// The log's place, from a checked header.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogPlace {
    pub(super) guid: Guid,
    pub(super) span: HostSpan,
}

/// A valid entry: its checksum is right.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Bytes from the log's start.
    at: u64,
    header: LogEntryHeader,
}

impl Entry {
    fn len_bytes(&self) -> u64 {
        u64::from(self.header.entry_length.get())
    }

    fn sequence(&self) -> u64 {
        self.header.sequence_number.get()
    }
}

/// A log being read.
struct Log<'a> {
    file: &'a dyn HostFile,
    place: LogPlace,
    checked_bytes: u64,
}

/// What a pending log writes, in order, and how long the file is afterwards.
pub(super) struct Pending {
    pub(super) patches: Vec<(HostOffset, Vec<u8>)>,
    pub(super) len_bytes: u64,
}

/// `file` as it is with its log applied.
pub(super) fn replay<T: HostFile>(file: T, place: LogPlace) -> Result<Overlay<Host, T>> {
    let pending = pending(&file, place)?;
    let mut overlay = Overlay::new(file);
    for (at, bytes) in pending.patches {
        overlay.patch(at, bytes);
    }
    overlay.set_len(pending.len_bytes);
    Ok(overlay)
}

/// What the log at `place` has to say.
pub(super) fn pending(file: &dyn HostFile, place: LogPlace) -> Result<Pending> {
    if place.span.len_bytes() > LOG_BYTES_MAX {
        return Err(Error::unsupported("VHDX log").at(place.span.start()).field(
            "length",
            place.span.len_bytes(),
            format!("at most {LOG_BYTES_MAX}"),
        ));
    }
    let mut log = Log { file, place, checked_bytes: 0 };
    let sequence = log.active_sequence()?;
    let patches = log.patches(&sequence)?;
    let last = sequence.last().expect("a sequence has an entry");
    // Entries before the last may tell a size from before the file was made shorter.
    let flushed = last.header.flushed_file_offset.get();
    if flushed > file.len_bytes() {
        let found = format!("{:#x}", file.len_bytes());
        let expected = format!("at least the log's {flushed:#x}");
        return Err(Error::corrupt(Corrupt::CutShort).field("its length", found, expected));
    }
    Ok(Pending { patches, len_bytes: last.header.last_file_offset.get() })
}

impl Log<'_> {
    fn len_bytes(&self) -> u64 {
        self.place.span.len_bytes()
    }

    fn corrupt(&self, at: u64) -> Error {
        Error::corrupt(Corrupt::LogEntry).at(self.place.span.start().plus(at % self.len_bytes()))
    }

    /// Reads from the ring.
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        let at = at % self.len_bytes();
        let until_end = usize::try_from(self.len_bytes() - at).unwrap_or(usize::MAX).min(buf.len());
        let (first, second) = buf.split_at_mut(until_end);
        self.file.read_at(self.place.span.start().plus(at), first)?;
        if second.is_empty() { Ok(()) } else { self.file.read_at(self.place.span.start(), second) }
    }

    /// The entry at `at`, if there is a valid one.
    fn entry(&mut self, at: u64) -> Result<Option<Entry>> {
        let header_at = self.place.span.start().plus(at);
        let header: LogEntryHeader = read_struct(self.file, header_at, "VHDX log entry")?;
        let entry = Entry { at, header };
        let len = entry.len_bytes();
        let is_plausible = header.signature == LOG_ENTRY_SIGNATURE
            && header.log_guid == self.place.guid
            && header.sequence_number.get() != 0
            && len != 0
            && len <= self.len_bytes()
            && len.is_multiple_of(LOG_SECTOR_BYTES)
            && u64::from(header.tail.get()) < self.len_bytes()
            && u64::from(header.tail.get()).is_multiple_of(LOG_SECTOR_BYTES);
        if !is_plausible {
            return Ok(None);
        }
        self.checked_bytes += len;
        if self.checked_bytes > CHECKED_PER_LOG_BYTE_MAX * self.len_bytes() {
            return Err(self.corrupt(at).field("length", len, "entries that do not lie in each other"));
        }
        Ok((self.checksum(&entry)? == header.checksum.get()).then_some(entry))
    }

    fn checksum(&self, entry: &Entry) -> Result<u32> {
        let mut header = entry.header;
        header.checksum.set(0);
        let mut crc = crc32c::crc32c(header.as_bytes());
        let mut done = size_of::<LogEntryHeader>() as u64;
        let mut piece = vec![0; PIECE_BYTES];
        while done < entry.len_bytes() {
            let len = usize::try_from(entry.len_bytes() - done).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            self.read(entry.at + done, &mut piece[..len])?;
            crc = crc32c::crc32c_append(crc, &piece[..len]);
            done += len as u64;
        }
        Ok(crc)
    }

    /// The entries to apply, in order (2.3.3).
    fn active_sequence(&mut self) -> Result<Vec<Entry>> {
        let mut active: Vec<Entry> = Vec::new();
        let mut at = 0;
        while at < self.len_bytes() {
            let candidate = self.sequence_from(at)?;
            let candidate_len: u64 = candidate.iter().map(Entry::len_bytes).sum();
            let newest = |entries: &[Entry]| entries.last().map_or(0, Entry::sequence);
            let is_newer = newest(&candidate) > newest(&active);
            match from_tail(&candidate) {
                Some(entries) if is_newer => active = entries,
                _ => {}
            }
            at += candidate_len.max(LOG_SECTOR_BYTES);
        }
        if active.is_empty() {
            return Err(Error::corrupt(Corrupt::NoValidLog)
                .at(self.place.span.start())
                .hint("the disk's state is unknown: restore a copy, or let Hyper-V repair it"));
        }
        Ok(active)
    }

    /// The valid entries that follow each other from `start` on.
    fn sequence_from(&mut self, start: u64) -> Result<Vec<Entry>> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut len = 0;
        while len < self.len_bytes() {
            let at = (start + len) % self.len_bytes();
            let Some(entry) = self.entry(at)? else { break };
            let follows =
                entries.last().is_none_or(|last| last.sequence().checked_add(1) == Some(entry.sequence()));
            if !follows || len + entry.len_bytes() > self.len_bytes() {
                break;
            }
            len += entry.len_bytes();
            entries.push(entry);
        }
        Ok(entries)
    }

    /// What the entries write, in order.
    fn patches(&self, sequence: &[Entry]) -> Result<Vec<(HostOffset, Vec<u8>)>> {
        let mut patches = Vec::new();
        let mut patched_bytes = 0;
        for entry in sequence {
            self.entry_patches(entry, &mut patches, &mut patched_bytes)?;
        }
        Ok(patches)
    }

    fn entry_patches(
        &self,
        entry: &Entry,
        patches: &mut Vec<(HostOffset, Vec<u8>)>,
        patched_bytes: &mut u64,
    ) -> Result<()> {
        let count = u64::from(entry.header.descriptor_count.get());
        let header_bytes = size_of::<LogEntryHeader>() as u64;
        let descriptor_bytes = size_of::<LogDescriptor>() as u64;
        let mut data_at = (header_bytes + count * descriptor_bytes).next_multiple_of(LOG_SECTOR_BYTES);
        if data_at > entry.len_bytes() {
            let expected = format!("no more than fit {} bytes", entry.len_bytes());
            return Err(self.corrupt(entry.at).field("descriptor count", count, expected));
        }
        for index in 0..count {
            let at = entry.at + header_bytes + index * descriptor_bytes;
            let mut bytes = [0; size_of::<LogDescriptor>()];
            self.read(at, &mut bytes)?;
            let descriptor = LogDescriptor::read_from_bytes(&bytes).expect("exactly its size");
            if descriptor.sequence_number.get() != entry.sequence() {
                let found = descriptor.sequence_number.get();
                return Err(self.corrupt(at).field("descriptor's sequence number", found, entry.sequence()));
            }
            let len = match descriptor.signature {
                LOG_ZERO_SIGNATURE => u64::from_le_bytes(descriptor.leading_bytes),
                LOG_DATA_SIGNATURE => LOG_SECTOR_BYTES,
                other => {
                    return Err(self.corrupt(at).field("descriptor", other.escape_ascii(), "zero or desc"));
                }
            };
            let target = self.target(at, &descriptor, len)?;
            *patched_bytes = patched_bytes.saturating_add(len);
            if *patched_bytes > PATCHED_BYTES_MAX {
                return Err(Error::unsupported("VHDX log")
                    .at(self.place.span.start())
                    .field("bytes it writes", *patched_bytes, format!("at most {PATCHED_BYTES_MAX}"))
                    .hint("open the disk once in Hyper-V, which applies the log"));
            }
            let bytes = if descriptor.signature == LOG_DATA_SIGNATURE {
                let sector_at = data_at;
                data_at += LOG_SECTOR_BYTES;
                self.sector(entry, sector_at, &descriptor)?
            } else {
                vec![0; usize::try_from(len).expect("bounded above")]
            };
            patches.push((target.start(), bytes));
        }
        Ok(())
    }

    /// Where a descriptor writes: aligned, and not over the identifier and the headers, which no log changes.
    fn target(&self, at: u64, descriptor: &LogDescriptor, len: u64) -> Result<HostSpan> {
        let offset = descriptor.file_offset.get();
        let is_aligned = offset.is_multiple_of(LOG_SECTOR_BYTES) && len.is_multiple_of(LOG_SECTOR_BYTES);
        let target = Span::checked(HostOffset::new(offset), len);
        let is_apart = |target: &HostSpan| target.intersect(&self.place.span).is_none();
        match target.filter(|target| is_aligned && offset >= REGION_TABLES_AT[0] && is_apart(target)) {
            Some(target) => Ok(target),
            None => Err(self.corrupt(at).field(
                "descriptor's place",
                format!("{len:#x} bytes at {offset:#x}"),
                "multiples of 4096 after the headers, apart from the log",
            )),
        }
    }

    /// One sector of data: the descriptor holds its first and last bytes.
    fn sector(&self, entry: &Entry, data_at: u64, descriptor: &LogDescriptor) -> Result<Vec<u8>> {
        let at = entry.at + data_at;
        if data_at >= entry.len_bytes() {
            return Err(self.corrupt(at).field("data sector", "missing", "one for each data descriptor"));
        }
        let mut bytes = vec![0; size_of::<LogDataSector>()];
        self.read(at, &mut bytes)?;
        let sector = LogDataSector::read_from_bytes(&bytes).expect("exactly its size");
        let sequence = u64::from(sector.sequence_high.get()) << 32 | u64::from(sector.sequence_low.get());
        if sector.signature != LOG_SECTOR_SIGNATURE || sequence != entry.sequence() {
            let found = format!("{} {sequence}", sector.signature.escape_ascii());
            return Err(self.corrupt(at).field("data sector", found, format!("data {}", entry.sequence())));
        }
        bytes[..8].copy_from_slice(&descriptor.leading_bytes);
        bytes[4092..].copy_from_slice(&descriptor.trailing_bytes);
        Ok(bytes)
    }
}

/// The entries from the one that the last one's tail names; `None` if the tail lies outside.
fn from_tail(candidate: &[Entry]) -> Option<Vec<Entry>> {
    let tail = u64::from(candidate.last()?.header.tail.get());
    let first = candidate.iter().position(|entry| entry.at == tail)?;
    Some(candidate[first..].to_vec())
}
