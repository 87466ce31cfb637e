//! The volume's geometry, `$MFT`, and files gathered from all their records.

use std::collections::BTreeMap;

use block::{Error, FieldValue, ReadAt, Result, read_struct, read_vec};
use extent::VolumeOffset;
use zerocopy::FromBytes;

use super::corrupt::CorruptNtfs;
use super::layout::{ATTRIBUTE_LIST, BITMAP, BootSector, DATA, ListEntryHead};
use super::record::{Attribute, Body, Record, Reference, record_error};
use super::stream::Stream;
use crate::volume::Source;
use crate::volume::bits::{Bits, WINDOW_MAX};

/// What drivers accept as an attribute list: 256 KiB.
const LIST_BYTES_MAX: u64 = 256 << 10;
/// How much of `$MFT` is read at once.
const PIECE_BYTES: u64 = 1 << 20;

/// A volume whose `$MFT` can be read.
pub(super) struct Volume {
    pub(super) source: Source,
    pub(super) cluster_bytes: u64,
    pub(super) cluster_count: u64,
    pub(super) record_bytes: u64,
    pub(super) mft_lcn: u64,
    pub(super) mirror_lcn: u64,
    pub(super) mft: Option<Stream>,
    /// The records that `$MFT`'s bitmap has in use.
    pub(super) in_use: Bits,
    /// Records that were ever written.
    pub(super) record_count: u64,
}

/// An entry of an attribute list.
pub(super) struct ListEntry<'a> {
    pub(super) kind: u32,
    pub(super) name: &'a [u8],
    pub(super) lowest_vcn: u64,
    pub(super) holder: Reference,
    pub(super) instance: u16,
}

/// A file: its base record, and the attributes of all its records, by type, name and VCN.
pub(super) struct File<'a> {
    pub(super) record: Record<'a>,
    pub(super) attributes: Vec<Attribute<'a>>,
    /// Its attribute list, if it has one.
    pub(super) list: Vec<ListEntry<'a>>,
    /// Its extension records, ascending.
    pub(super) extensions: Vec<u64>,
}

fn boot_error(field: &str, found: impl Into<FieldValue>, wanted: impl std::fmt::Display) -> Error {
    Error::corrupt(CorruptNtfs::BootSector).field(field, found, wanted)
}

/// Whether the volume says that it is NTFS.
pub(in crate::volume) fn is_ntfs(source: &Source) -> Result<bool> {
    if source.len_bytes() < 512 {
        return Ok(false);
    }
    let boot: BootSector = read_struct(source, VolumeOffset::ZERO, "NTFS boot sector")?;
    Ok(&boot.oem == b"NTFS    ")
}

impl Volume {
    pub(super) fn open(source: &Source) -> Result<Self> {
        let mut volume = Self::geometry(source)?;
        let mft = volume.open_mft()?;
        volume.record_count = mft.1;
        volume.mft = Some(mft.0);
        volume.in_use = volume.read_in_use()?;
        Ok(volume)
    }

    fn geometry(source: &Source) -> Result<Self> {
        let boot: BootSector = read_struct(source, VolumeOffset::ZERO, "NTFS boot sector")?;
        if boot.end.get() != 0xaa55 {
            return Err(boot_error("signature", format!("{:#06x}", boot.end), "0xaa55"));
        }
        let sector_bytes = u64::from(boot.sector_bytes.get());
        if !sector_bytes.is_power_of_two() || !(256..=4096).contains(&sector_bytes) {
            return Err(boot_error("bytes per sector", sector_bytes, "a power of two, 256 to 4096"));
        }
        let sectors = match boot.cluster_sectors {
            small @ 1..=0x80 => u64::from(small),
            power => 1u64.checked_shl(u32::from(power.wrapping_neg())).unwrap_or(0),
        };
        let cluster_bytes = sectors.saturating_mul(sector_bytes);
        if !cluster_bytes.is_power_of_two() || cluster_bytes > 2 << 20 {
            return Err(boot_error(
                "sectors per cluster",
                boot.cluster_sectors,
                "a power of two, 2 MiB at most",
            ));
        }
        let record_bytes = match u64::try_from(boot.record_clusters) {
            Ok(clusters) => clusters * cluster_bytes,
            Err(_) => 1u64.checked_shl(u32::from(boot.record_clusters.unsigned_abs())).unwrap_or(0),
        };
        if ![512, 1024, 2048, 4096].contains(&record_bytes) {
            return Err(boot_error("bytes of a record", record_bytes, "512 to 4096"));
        }
        let size_bytes = boot.sector_count.get().checked_mul(sector_bytes);
        let size_bytes = size_bytes.filter(|bytes| *bytes <= source.len_bytes()).ok_or_else(|| {
            boot_error("sectors", boot.sector_count, format!("those of {} bytes at most", source.len_bytes()))
        })?;
        let cluster_count = size_bytes / cluster_bytes;
        for (name, lcn) in
            [("$MFT's cluster", boot.mft_lcn.get()), ("$MFTMirr's cluster", boot.mirror_lcn.get())]
        {
            if lcn == 0 || lcn >= cluster_count {
                return Err(boot_error(name, lcn, format!("1 to {cluster_count}")));
            }
        }
        Ok(Self {
            source: source.clone(),
            cluster_bytes,
            cluster_count,
            record_bytes,
            mft_lcn: boot.mft_lcn.get(),
            mirror_lcn: boot.mirror_lcn.get(),
            mft: None,
            in_use: Bits::none(0..0),
            record_count: 0,
        })
    }

    /// Where a cluster of the volume lies.
    pub(super) fn at(&self, lcn: u64) -> VolumeOffset {
        VolumeOffset::new(lcn.saturating_mul(self.cluster_bytes))
    }

    /// The stream that a first piece begins.
    pub(super) fn begin(&self, first: &Attribute<'_>) -> Result<Stream> {
        Stream::begin(&self.source, self.cluster_bytes, self.cluster_count, first)
    }

    /// Opens `$MFT`, which may describe itself in extension records; answers how many records were written, too.
    fn open_mft(&self) -> Result<(Stream, u64)> {
        let at = self.at(self.mft_lcn);
        let mut bytes = read_vec(&self.source, at, self.record_bytes, "$MFT")?;
        let record = Record::parse(&mut bytes, 0, at)?;
        let attributes = record.attributes()?;
        let is_data = |attribute: &&Attribute<'_>| attribute.kind == DATA && attribute.name.is_empty();
        let first = attributes.iter().find(|attribute| is_data(attribute) && attribute.lowest_vcn() == 0);
        let first = first.ok_or_else(|| record.error().field("data", "missing", "in the base record"))?;
        let Body::Mapped(mapped) = first.body else {
            return Err(first.error("residence", 0, 1));
        };
        let mut stream = self.begin(first)?;
        if let Some(list) = attributes.iter().find(|attribute| attribute.kind == ATTRIBUTE_LIST) {
            let list = self.list_bytes(list)?;
            for entry in list_entries(&list, &record)? {
                if entry.kind != DATA || !entry.name.is_empty() || entry.lowest_vcn == 0 {
                    continue;
                }
                let (mut bytes, at) = self.read_record(&stream, entry.holder.number)?;
                let holder = Record::parse(&mut bytes, entry.holder.number, at)?;
                let pieces = holder.attributes()?;
                let piece = pieces.iter().find(|piece| is_data(piece) && piece.instance == entry.instance);
                let piece = piece
                    .ok_or_else(|| record.error().field("list", "a piece of $MFT that is missing", "all"))?;
                stream.append(self.cluster_count, piece)?;
            }
        }
        let covered = stream.end_vcn().saturating_mul(self.cluster_bytes);
        let written = mapped.initialized_bytes;
        if stream.data_bytes > covered
            || written > stream.data_bytes
            || !written.is_multiple_of(self.record_bytes)
        {
            let found = format!("{} ({written} initialised)", stream.data_bytes);
            return Err(first.error("size", found, format!("at most {covered}, in whole records")));
        }
        if stream.data_bytes > self.source.len_bytes() || stream.runs.iter().any(|run| run.lcn.is_none()) {
            return Err(first.error("size", stream.data_bytes, "that of clusters without a hole"));
        }
        Ok((stream, written / self.record_bytes))
    }

    fn mft(&self) -> &Stream {
        self.mft.as_ref().expect("set when opened")
    }

    /// A record's bytes as they are on the volume, and where they lie.
    fn read_record(&self, mft: &Stream, number: u64) -> Result<(Vec<u8>, VolumeOffset)> {
        let start = number.checked_mul(self.record_bytes).ok_or_else(|| record_error(number))?;
        let mut bytes = vec![0; usize::try_from(self.record_bytes).expect("at most 4096")];
        mft.read(start, &mut bytes).map_err(|error| match error.kind() {
            block::ErrorKind::Corrupt => record_error(number).field("number", number, "one of $MFT's"),
            _ => error,
        })?;
        let at = mft.place(start).and_then(|(at, _)| at).unwrap_or(VolumeOffset::ZERO);
        Ok((bytes, at))
    }

    fn read_in_use(&self) -> Result<Bits> {
        let (mut bytes, at) = self.read_record(self.mft(), 0)?;
        let record = Record::parse(&mut bytes, 0, at)?;
        let stream = self.with_file(record, |file| {
            let pieces: Vec<_> = file.attributes.iter().filter(|piece| piece.kind == BITMAP).collect();
            let (first, rest) =
                pieces.split_first().ok_or_else(|| file.record.error().field("bitmap", "missing", "one"))?;
            let mut stream = self.begin(first)?;
            rest.iter().try_for_each(|piece| stream.append(self.cluster_count, piece))?;
            Ok(stream)
        })?;
        let total = self.mft().data_bytes / self.record_bytes;
        if total > WINDOW_MAX {
            return Err(Error::unsupported(format!("NTFS $MFT with more than {WINDOW_MAX} records")));
        }
        if stream.data_bytes < total.div_ceil(8) {
            return Err(Error::corrupt(CorruptNtfs::MftBitmap).field(
                "bytes",
                stream.data_bytes,
                total.div_ceil(8),
            ));
        }
        let mut bytes = vec![0; usize::try_from(total.div_ceil(8)).expect("bounded above")];
        stream.read(0, &mut bytes)?;
        Ok(Bits::of_bytes(0..total, &bytes))
    }

    /// Calls `each` with all records that were written, in order, as they are on the volume.
    pub(super) fn each_record(
        &self,
        mut each: impl FnMut(u64, VolumeOffset, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let record_len = usize::try_from(self.record_bytes).expect("at most 4096");
        let end = self.record_count * self.record_bytes;
        let mut piece = Vec::new();
        let mut start = 0;
        while start < end {
            let len = PIECE_BYTES.min(end - start);
            piece.resize(usize::try_from(len).expect("a piece"), 0);
            self.mft().read(start, &mut piece)?;
            for (index, bytes) in piece.chunks_exact_mut(record_len).enumerate() {
                let position = start + (index * record_len) as u64;
                let at = self.mft().place(position).and_then(|(at, _)| at).unwrap_or(VolumeOffset::ZERO);
                each(position / self.record_bytes, at, bytes)?;
            }
            start += len;
        }
        Ok(())
    }

    /// Reads one record and calls `then` with it.
    pub(super) fn with_record<T>(
        &self,
        number: u64,
        then: impl FnOnce(Record<'_>) -> Result<T>,
    ) -> Result<T> {
        let (mut bytes, at) = self.read_record(self.mft(), number)?;
        then(Record::parse(&mut bytes, number, at)?)
    }

    /// Reads a file of NTFS's own and calls `then` with it.
    pub(super) fn with_system_file<T>(
        &self,
        number: u64,
        then: impl FnOnce(&File<'_>) -> Result<T>,
    ) -> Result<T> {
        self.with_record(number, |record| self.with_file(record, then))
    }

    /// Gathers the file of a base record from all its records and calls `then` with it. Its attribute list must name each
    /// attribute of each of these records once, and nothing else.
    pub(super) fn with_file<T>(
        &self,
        record: Record<'_>,
        then: impl FnOnce(&File<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut attributes = record.attributes()?;
        let Some(at) = attributes.iter().position(|attribute| attribute.kind == ATTRIBUTE_LIST) else {
            return then(&finish(record, attributes, Vec::new(), Vec::new()));
        };
        let bytes = self.list_bytes(&attributes.remove(at))?;
        let list = list_entries(&bytes, &record)?;
        let mut records: BTreeMap<u64, (Vec<u8>, VolumeOffset)> = BTreeMap::new();
        for entry in &list {
            let number = entry.holder.number;
            if number != record.number && !records.contains_key(&number) {
                records.insert(number, self.read_record(self.mft(), number)?);
            }
        }
        let mut held: BTreeMap<u64, Vec<Attribute<'_>>> = BTreeMap::new();
        let extensions: Vec<u64> = records.keys().copied().collect();
        for (number, (bytes, at)) in &mut records {
            let holder = Record::parse(bytes, *number, *at)?;
            if !holder.is_in_use() {
                return Err(record.error().field(
                    "list",
                    format!("record {number}, not in use"),
                    "records in use",
                ));
            }
            if holder.base() != Some(record.reference()) {
                let found = holder.base().map_or(0, Reference::raw);
                let wanted = format!("{:#x}", record.reference().raw());
                return Err(holder.error().field("base record", FieldValue::hex(found), wanted));
            }
            held.insert(*number, holder.attributes()?);
        }
        // Those of the base record that the list has yet to name.
        let mut own = attributes;
        let mut named = Vec::with_capacity(list.len());
        for entry in &list {
            let holder = held.get_mut(&entry.holder.number).unwrap_or(&mut own);
            let is_it = |attribute: &Attribute<'_>| {
                (attribute.kind, attribute.name, attribute.instance)
                    == (entry.kind, entry.name, entry.instance)
                    && attribute.lowest_vcn() == entry.lowest_vcn
            };
            let found = holder.iter().position(is_it).map(|index| holder.remove(index));
            let wanted = found.filter(|found| found.record.reference() == entry.holder).ok_or_else(|| {
                let name = format!(
                    "attribute {:#x} from VCN {} in record {:#x}",
                    entry.kind,
                    entry.lowest_vcn,
                    entry.holder.raw()
                );
                record.error().field("list", format!("{name}, which is not there"), "attributes that are")
            })?;
            named.push(wanted);
        }
        if let Some(left) = own.iter().chain(held.values().flatten()).next() {
            return Err(left.error("place in the attribute list", "missing", "one"));
        }
        then(&finish(record, named, list, extensions))
    }

    fn list_bytes(&self, list: &Attribute<'_>) -> Result<Vec<u8>> {
        self.begin(list)?.read_all(LIST_BYTES_MAX)
    }
}

/// The file, its attributes sorted.
fn finish<'a>(
    record: Record<'a>,
    mut attributes: Vec<Attribute<'a>>,
    list: Vec<ListEntry<'a>>,
    extensions: Vec<u64>,
) -> File<'a> {
    attributes.sort_by_key(|attribute| (attribute.kind, attribute.name, attribute.lowest_vcn()));
    File { record, attributes, list, extensions }
}

fn list_entries<'a>(bytes: &'a [u8], record: &Record<'_>) -> Result<Vec<ListEntry<'a>>> {
    let mut entries = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let error = |field: &str, found: usize| {
            record.error().field(format!("attribute list's {field}"), found, "in bounds")
        };
        let (head, _) = ListEntryHead::ref_from_prefix(rest).map_err(|_| error("rest", rest.len()))?;
        let len = usize::from(head.len_bytes.get());
        if len < size_of::<ListEntryHead>() || !len.is_multiple_of(8) || len > rest.len() {
            return Err(error("entry length", len));
        }
        let name_at = usize::from(head.name_at);
        let name = match usize::from(head.name_len) * 2 {
            0 => &[][..],
            name_bytes => rest[..len]
                .get(name_at..)
                .and_then(|from| from.get(..name_bytes))
                .ok_or_else(|| error("name offset", name_at))?,
        };
        entries.push(ListEntry {
            kind: head.kind.get(),
            name,
            lowest_vcn: head.lowest_vcn.get(),
            holder: Reference::of(head.holder.get()),
            instance: head.instance.get(),
        });
        rest = &rest[len..];
    }
    Ok(entries)
}
