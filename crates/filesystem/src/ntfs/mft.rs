//! `$MFT`: finds records by number, and all pieces of an attribute through attribute lists.

use std::ops::Range;
use std::sync::mpsc;

use block::{Error, FieldValue, ReadAt, Result, read_vec};
use extent::{Offset, Volume, VolumeOffset};
use zerocopy::FromBytes;

use super::boot::Geometry;
use super::layout::{ATTR_ATTRIBUTE_LIST, ATTR_DATA, AttributeListEntry};
use super::record::{Attribute, FileReference, Record, RecordNumber, utf16_is};
use super::stream::Stream;
use crate::Source;
use crate::ntfs::corrupt::Corrupt;

/// The most bytes that NTFS lets an attribute list have.
const ATTRIBUTE_LIST_BYTES_MAX: u64 = 256 << 10;

/// Bytes that are read at once where all records are.
const PIECE_BYTES: u64 = 1 << 20;

/// How many pieces are read before they are looked at.
const PIECES_AHEAD: usize = 2;

/// A file record in memory of its own.
pub(super) struct OwnedRecord {
    bytes: Vec<u8>,
    number: RecordNumber,
    at: VolumeOffset,
}

impl OwnedRecord {
    pub(super) fn view(&self) -> Record<'_> {
        Record::parsed(&self.bytes, self.number, self.at)
    }

    fn parse(mut bytes: Vec<u8>, number: RecordNumber, at: VolumeOffset) -> Result<Self> {
        Record::parse(&mut bytes, number, at)?;
        Ok(Self { bytes, number, at })
    }
}

/// The master file table of a volume.
pub(super) struct Mft {
    pub(super) source: Source,
    pub(super) geometry: Geometry,
    /// The unnamed `$DATA` of record 0: all records.
    pub(super) data: Stream,
}

impl Mft {
    /// Reads record 0 and, through it, where all the others are.
    pub(super) fn open(source: &Source, geometry: &Geometry) -> Result<Self> {
        let at = geometry.offset_of(geometry.mft_lcn);
        let bytes = read_vec(source, at, geometry.record_bytes, "NTFS file record 0")?;
        let record = OwnedRecord::parse(bytes, RecordNumber::MFT, at)?;
        let record = record.view();
        require_in_use(&record)?;
        let first = first_piece(&record, ATTR_DATA)?;
        let mut mft = Self {
            source: source.clone(),
            geometry: *geometry,
            data: Stream::begin(source, geometry, RecordNumber::MFT, &first)?,
        };
        mft.append_listed_pieces(&record)?;
        mft.data = mft.data.finish()?;
        mft.data.require_plain(16 * geometry.record_bytes)?;
        if mft.data.runs()[0].lcn != Some(geometry.mft_lcn) {
            return Err(record.error().field("first cluster of $MFT", "another", "the boot sector's"));
        }
        Ok(mft)
    }

    /// The pieces of `$MFT` itself that extension records map. Each lies in a part that those before it map.
    fn append_listed_pieces(&mut self, record: &Record<'_>) -> Result<()> {
        for entry in self.attribute_list(record)? {
            if entry.kind != ATTR_DATA || !entry.is_unnamed || entry.lowest_vcn == 0 {
                continue;
            }
            let extension = self.listed_record(record, &entry)?;
            self.data.append(&entry.find_in(&extension.view())?)?;
        }
        Ok(())
    }

    /// How many records there are.
    pub(super) fn record_count(&self) -> u64 {
        self.data.len_bytes() / self.geometry.record_bytes
    }

    /// How many records were ever written.
    pub(super) fn initialized_record_count(&self) -> u64 {
        self.data.initialized_bytes() / self.geometry.record_bytes
    }

    /// The numbers of the first `count` records, in the pieces in which [`Self::read_piece`] takes them.
    pub(super) fn pieces(&self, count: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let per_piece = PIECE_BYTES / self.geometry.record_bytes;
        (0..count.div_ceil(per_piece)).map(move |piece| {
            let first = piece * per_piece;
            first..count.min(first + per_piece)
        })
    }

    /// Reads the records of a piece, fixups and all, into `buffer`, which becomes as long.
    pub(super) fn read_piece(&self, piece: &Range<u64>, buffer: &mut Vec<u8>) -> Result<()> {
        let len_bytes = (piece.end - piece.start) * self.geometry.record_bytes;
        buffer.resize(usize::try_from(len_bytes).expect("at most a piece"), 0);
        self.data.read_at(Offset::new(piece.start * self.geometry.record_bytes), buffer)
    }

    /// Calls `each` with the pieces of the first `count` records in order, and how reading them went. The next ones
    /// are read meanwhile. An error of `each` ends it.
    pub(super) fn each_piece(
        &self,
        count: u64,
        mut each: impl FnMut(Range<u64>, Result<&mut [u8]>) -> Result<()>,
    ) -> Result<()> {
        std::thread::scope(|scope| {
            let (sender, pieces) = mpsc::sync_channel(PIECES_AHEAD);
            let (spent, spares) = mpsc::channel();
            scope.spawn(move || {
                for piece in self.pieces(count) {
                    let mut buffer = spares.try_recv().unwrap_or_default();
                    let read = self.read_piece(&piece, &mut buffer);
                    // Nobody listens any more once `each` has failed.
                    if sender.send((piece, buffer, read)).is_err() {
                        return;
                    }
                }
            });
            for (piece, mut buffer, read) in pieces {
                each(piece, read.map(|()| &mut buffer[..]))?;
                // The reader may be done already.
                let _ = spent.send(buffer);
            }
            Ok(())
        })
    }

    /// The records as they are on `volume`, which may have changed since it was opened, though not in where `$MFT` lies.
    pub(super) fn on<'a>(&'a self, volume: &'a dyn ReadAt<Volume>) -> Records<'a> {
        Records { mft: self, volume }
    }

    /// The records as they were when the volume was opened.
    pub(super) fn as_opened(&self) -> Records<'_> {
        self.on(&*self.source)
    }

    /// Reads one record.
    pub(super) fn record(&self, number: RecordNumber) -> Result<OwnedRecord> {
        self.as_opened().record(number)
    }

    /// Reads the base record that is referred to, which must be in use.
    pub(super) fn base_record(&self, reference: FileReference) -> Result<OwnedRecord> {
        let owned = self.record(reference.number)?;
        let record = owned.view();
        require_in_use(&record)?;
        if record.sequence() != reference.sequence {
            return Err(record.error().field("sequence number", record.sequence(), reference.sequence));
        }
        require_base(&record)?;
        Ok(owned)
    }

    /// Reads the base record of a file by its number alone, as of NTFS's own files.
    pub(super) fn system_record(&self, number: RecordNumber) -> Result<OwnedRecord> {
        self.as_opened().base(number)
    }

    /// Where a record begins on the volume.
    pub(super) fn record_offset(&self, number: RecordNumber) -> VolumeOffset {
        self.data.volume_offset(number.0.saturating_mul(self.geometry.record_bytes))
    }

    /// The whole value of an attribute of a file, wherever its pieces are.
    pub(super) fn stream(&self, base: &Record<'_>, kind: u32, name: &str) -> Result<Option<Stream>> {
        let list = self.attribute_list(base)?;
        if list.is_empty() {
            let Some(attribute) = base.find(kind, name)? else { return Ok(None) };
            let stream = Stream::begin(&self.source, &self.geometry, base.number(), &attribute)?;
            return stream.finish().map(Some);
        }
        let mut stream: Option<Stream> = None;
        for entry in list.iter().filter(|entry| entry.kind == kind && entry.is_called(name)) {
            let holder = self.listed_record(base, entry)?;
            let attribute = entry.find_in(&holder.view())?;
            match &mut stream {
                Some(stream) => stream.append(&attribute)?,
                None => {
                    stream = Some(Stream::begin(&self.source, &self.geometry, base.number(), &attribute)?);
                }
            }
        }
        stream.map(Stream::finish).transpose()
    }

    /// The entries of a file's attribute list; none if it has no list.
    pub(super) fn attribute_list(&self, base: &Record<'_>) -> Result<Vec<ListEntry>> {
        self.as_opened().attribute_list(base)
    }

    /// The record that holds a listed attribute.
    pub(super) fn listed_record(&self, base: &Record<'_>, entry: &ListEntry) -> Result<OwnedRecord> {
        self.as_opened().listed_record(base, entry)
    }
}

/// The records of a volume as it is now: what is read of them comes from it.
pub(super) struct Records<'a> {
    mft: &'a Mft,
    volume: &'a dyn ReadAt<Volume>,
}

impl Records<'_> {
    /// The bytes of one record, fixups and all.
    pub(super) fn raw(&self, number: RecordNumber) -> Result<Vec<u8>> {
        let Mft { data, geometry, .. } = self.mft;
        if number.0 >= self.mft.initialized_record_count() {
            return Err(Error::corrupt(Corrupt::RecordNumber).field(
                "number",
                number,
                format!("below {}", self.mft.initialized_record_count()),
            ));
        }
        let mut bytes = vec![0; usize::try_from(geometry.record_bytes).expect("at most 4096")];
        data.read_from(self.volume, number.0 * geometry.record_bytes, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads one record.
    pub(super) fn record(&self, number: RecordNumber) -> Result<OwnedRecord> {
        OwnedRecord::parse(self.raw(number)?, number, self.mft.record_offset(number))
    }

    /// Reads a base record, which must be in use.
    pub(super) fn base(&self, number: RecordNumber) -> Result<OwnedRecord> {
        let owned = self.record(number)?;
        require_in_use(&owned.view())?;
        require_base(&owned.view())?;
        Ok(owned)
    }

    /// See [`Mft::attribute_list`].
    pub(super) fn attribute_list(&self, base: &Record<'_>) -> Result<Vec<ListEntry>> {
        list_entries(base, &self.attribute_list_bytes(base)?)
    }

    /// The value of a file's attribute list; empty if it has none.
    pub(super) fn attribute_list_bytes(&self, base: &Record<'_>) -> Result<Vec<u8>> {
        let Some(stream) = self.attribute_list_stream(base)? else { return Ok(Vec::new()) };
        let mut bytes = vec![0; usize::try_from(stream.len_bytes()).expect("at most 256 KiB")];
        stream.read_from(self.volume, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Where a file's attribute list is, if it has one.
    pub(super) fn attribute_list_stream(&self, base: &Record<'_>) -> Result<Option<Stream>> {
        let Some(attribute) = base.find(ATTR_ATTRIBUTE_LIST, "")? else { return Ok(None) };
        let Mft { source, geometry, .. } = self.mft;
        let stream = Stream::begin(source, geometry, base.number(), &attribute)?.finish()?;
        let len_bytes = stream.len_bytes();
        if len_bytes == 0 || len_bytes > ATTRIBUTE_LIST_BYTES_MAX {
            return Err(attribute.error("size", len_bytes, "1 to 256 KiB"));
        }
        Ok(Some(stream))
    }

    /// See [`Mft::listed_record`].
    pub(super) fn listed_record(&self, base: &Record<'_>, entry: &ListEntry) -> Result<OwnedRecord> {
        let owned = self.record(entry.holder.number)?;
        let record = owned.view();
        require_in_use(&record)?;
        if record.sequence() != entry.holder.sequence {
            return Err(record.error().field("sequence number", record.sequence(), entry.holder.sequence));
        }
        let expected = (record.number() != base.number()).then(|| base.number());
        if record.base().map(|base| base.number) != expected {
            let found = record.base().map_or("none".into(), |base| base.number.to_string());
            return Err(record.error().field("base record", found, base.number()));
        }
        Ok(owned)
    }
}

fn require_in_use(record: &Record<'_>) -> Result<()> {
    if record.is_in_use() {
        return Ok(());
    }
    Err(record.error().field("flags", FieldValue::hex(record.flags()), "in use"))
}

fn require_base(record: &Record<'_>) -> Result<()> {
    match record.base() {
        None => Ok(()),
        Some(base) => Err(record.error().field("base record", base.number, "none")),
    }
}

/// The unnamed attribute of a kind that must be in the record, from its beginning.
fn first_piece<'a>(record: &Record<'a>, kind: u32) -> Result<Attribute<'a>> {
    record
        .find(kind, "")?
        .ok_or_else(|| record.error().field(format!("attribute {kind:#x}"), "missing", "in the record"))
}

/// One entry of an attribute list.
pub(super) struct ListEntry {
    pub(super) kind: u32,
    /// In UTF-16.
    pub(super) name: Vec<u8>,
    is_unnamed: bool,
    pub(super) lowest_vcn: u64,
    pub(super) holder: FileReference,
    pub(super) instance: u16,
    /// Where the entry lies in the list.
    pub(super) at: usize,
}

impl ListEntry {
    fn is_called(&self, name: &str) -> bool {
        utf16_is(&self.name, name)
    }

    /// The attribute that this entry lists.
    pub(super) fn find_in<'a>(&self, record: &Record<'a>) -> Result<Attribute<'a>> {
        for attribute in record.attributes() {
            let attribute = attribute?;
            if attribute.kind() == self.kind && attribute.instance() == self.instance {
                return Ok(attribute);
            }
        }
        let name = format!("attribute {:#x} number {}", self.kind, self.instance);
        Err(record.error().field(name, "missing", "where the attribute list says"))
    }
}

/// The entries of a file's attribute list.
pub(super) fn list_entries(base: &Record<'_>, list: &[u8]) -> Result<Vec<ListEntry>> {
    let bad = || base.error().field("entries of attribute 0x20", "out of bounds", "a list of attributes");
    parse_list(list).ok_or_else(bad)
}

/// The same; `None` if one is out of bounds.
pub(super) fn parse_list(list: &[u8]) -> Option<Vec<ListEntry>> {
    let mut entries = Vec::new();
    let mut bytes = list;
    while !bytes.is_empty() {
        let (raw, _) = AttributeListEntry::ref_from_prefix(bytes).ok()?;
        let length = usize::from(raw.length.get());
        if length < size_of::<AttributeListEntry>() {
            return None;
        }
        let entry = bytes.get(..length)?;
        let name_len = usize::from(raw.name_length) * 2;
        let name = match name_len {
            0 => &[][..],
            _ => entry.get(usize::from(raw.name_offset)..)?.get(..name_len)?,
        };
        entries.push(ListEntry {
            kind: raw.kind.get(),
            name: name.to_vec(),
            is_unnamed: name.is_empty(),
            lowest_vcn: raw.lowest_vcn.get(),
            holder: FileReference::from_raw(raw.mft_reference.get()),
            instance: raw.instance.get(),
            at: list.len() - bytes.len(),
        });
        bytes = &bytes[length..];
    }
    Some(entries)
}
