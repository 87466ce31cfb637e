//! NTFS's own records: what each says, and which clusters it names.
//!
//! Nothing is replayed. A record is understood if its operations are known and their arguments are what such operations have;
//! then the clusters that it names are told, to redo as well as to undo.

use std::collections::BTreeMap;

use block::{Error, Result};
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

use super::layout::{
    AttributeName, BitmapRange, CLUSTER_BLOCK_BYTES, ClientData, DIRTY_PAGE_32_BYTES, DIRTY_PAGE_BYTES,
    DIRTY_PAGE_LCN_COUNT_AT, ENTRY_ALLOCATED, LcnRange, Lsn, NO_REDO, NO_UNDO, NtfsRestart, OpenAttribute,
    OpenAttribute32, RestartTable, TRANSACTION_BYTES,
};
use super::named::Named;
use super::operation::Operation;
use super::record_error;
use crate::ntfs::layout::{ATTR_DATA, FileRecordHeader, IndexEntry, MAGIC_FILE};
use crate::ntfs::mft::Mft;
use crate::ntfs::record::{Attribute, FileReference, Record, RecordNumber, Value};
use crate::ntfs::runs;
use crate::ntfs::stream::Stream;

/// Reads records one after the other.
pub(super) struct Client<'a> {
    mft: &'a Mft,
    /// `$Bitmap`'s data.
    bitmap: &'a Stream,
    pub(super) named: Named,
    /// Which attribute each entry of the table of open attributes was last seen to be.
    open: BTreeMap<u16, (u32, RecordNumber)>,
}

/// What a record changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    /// `$Bitmap` of the volume.
    Clusters,
    /// File records.
    Records,
    Other,
}

/// One record.
struct Met<'a> {
    lsn: Lsn,
    head: ClientData,
    data: &'a [u8],
    target: Target,
}

impl<'a> Client<'a> {
    pub(super) fn new(mft: &'a Mft, bitmap: &'a Stream) -> Self {
        Self { mft, bitmap, named: Named::none(mft.geometry), open: BTreeMap::new() }
    }

    /// NTFS's restart record.
    pub(super) fn restart(&self, lsn: Lsn, data: &[u8]) -> Result<()> {
        let (restart, _) = NtfsRestart::ref_from_prefix(data)
            .map_err(|_| record_error(lsn).field("restart record's length", data.len(), "at least 64"))?;
        match (restart.major_version.get(), restart.minor_version.get()) {
            (0 | 1, 0) => Ok(()),
            (major, minor) => Err(Error::unsupported(format!("$LogFile's restart record {lsn:#x}")).field(
                "version",
                format!("{major}.{minor}"),
                "0.0 or 1.0",
            )),
        }
    }

    /// Any other record.
    pub(super) fn record(&mut self, lsn: Lsn, flags: u16, data: &[u8]) -> Result<()> {
        let short = |_| record_error(lsn).field("length", data.len(), "at least 32");
        let (head, rest) = ClientData::ref_from_prefix(data).map_err(short)?;
        let operation = |raw: u16| {
            Operation::of(raw).ok_or_else(|| {
                Error::unsupported(format!("$LogFile's record {lsn:#x}")).field(
                    "operation",
                    format!("{raw:#x}"),
                    "one of 0x0 to 0x25 that is known",
                )
            })
        };
        let (redo, undo) = (operation(head.redo_operation.get())?, operation(head.undo_operation.get())?);
        let lcns = <[U64]>::ref_from_prefix_with_elems(rest, usize::from(head.lcns_to_follow.get()));
        let (lcns, _) = lcns.map_err(|_| {
            record_error(lsn).field(
                "clusters that follow",
                head.lcns_to_follow,
                "what the record has room for",
            )
        })?;
        for lcn in lcns {
            self.name(lsn, lcn.get(), 1)?;
        }
        let target = self.target(lsn, head, lcns)?;
        let met = Met { lsn, head: *head, data, target };
        if redo.is_of_file_records() || undo.is_of_file_records() || target == Target::Records {
            self.named.record(met.at(self.mft) / self.mft.geometry.record_bytes);
        }
        let (redo_at, undo_at) = (head.redo_offset.get(), head.undo_offset.get());
        self.side(&met, redo, flags & NO_REDO != 0, redo_at, head.redo_length.get())?;
        self.side(&met, undo, flags & NO_UNDO != 0, undo_at, head.undo_length.get())
    }

    fn name(&mut self, lsn: Lsn, first: u64, count: u64) -> Result<()> {
        self.named.clusters(first, count).map_err(|end| {
            let expected = format!("at most the volume's {}", self.mft.geometry.cluster_count);
            record_error(lsn).field("end of clusters", end, expected)
        })
    }

    /// What is changed, by where it lies and by the table of open attributes: if both tell, they must agree.
    fn target(&self, lsn: Lsn, head: &ClientData, lcns: &[U64]) -> Result<Target> {
        let vcn = head.target_vcn.get();
        if let Some(lcn) = lcns.first().map(|lcn| lcn.get()) {
            if let Some(found) = vcn_of(self.bitmap, lcn) {
                if found != vcn {
                    return Err(record_error(lsn).field("target's cluster in $Bitmap", vcn, found));
                }
                return Ok(Target::Clusters);
            }
            if vcn_of(&self.mft.data, lcn).is_some() {
                return Ok(Target::Records);
            }
        }
        match self.open.get(&head.target_attribute.get()) {
            Some((ATTR_DATA, RecordNumber::BITMAP)) if !lcns.is_empty() => Ok(Target::Clusters),
            _ => Ok(Target::Other),
        }
    }

    /// One of the two operations of a record, with its argument.
    fn side(
        &mut self,
        met: &Met<'_>,
        operation: Operation,
        is_left_out: bool,
        offset: u16,
        length: u16,
    ) -> Result<()> {
        // A value that grew is zeros, of which only the length is told.
        let is_zeros = is_left_out && operation == Operation::UpdateResidentValue;
        if !operation.has_argument() || is_zeros {
            return Ok(());
        }
        let (start, len) = (usize::from(offset), usize::from(length));
        let argument = met.data.get(start..).and_then(|from| from.get(..len)).ok_or_else(|| {
            met.error().field("argument's end", start + len, format!("at most {}", met.data.len()))
        })?;
        let sizes = operation.argument_sizes();
        if !sizes.is_empty() && !sizes.contains(&len) {
            let expected = sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(" or ");
            return Err(met.error().field(format!("length of {operation:?}'s argument"), len, expected));
        }
        match operation {
            Operation::InitializeFileRecord => self.file_record(met, argument),
            Operation::WriteEndOfFileRecord => self.attributes(met, argument),
            Operation::CreateAttribute => self.attribute(met, argument),
            Operation::UpdateMappingPairs => self.mapping_pairs(met, argument),
            Operation::UpdateNonresidentValue => self.value(met, argument),
            Operation::DeleteDirtyClusters => self.dirty_clusters(met, argument),
            Operation::AddIndexEntryRoot | Operation::AddIndexEntryAllocation => index_entry(met, argument),
            Operation::SetBits | Operation::ClearBits => self.bits(met, argument),
            Operation::OpenNonresidentAttribute => self.opened(met, argument),
            Operation::OpenAttributeTableDump => self.open_attributes(met, argument),
            Operation::AttributeNamesDump => attribute_names(met, argument),
            Operation::DirtyPageTableDump => self.dirty_pages(met, argument),
            Operation::TransactionTableDump => {
                Table::parse(met, argument, |size| size == TRANSACTION_BYTES).map(drop)
            }
            // Bytes of a value that say nothing of clusters.
            _ => Ok(()),
        }
    }

    fn bits(&mut self, met: &Met<'_>, argument: &[u8]) -> Result<()> {
        if met.head.lcns_to_follow == 0 {
            return Err(met.error().field("clusters that follow", 0, "that of the bitmap"));
        }
        // Other bitmaps say which file records or index blocks are in use.
        if met.target != Target::Clusters {
            return Ok(());
        }
        let (range, _) = BitmapRange::ref_from_prefix(argument).expect("of the length that was asked for");
        let first =
            met.at(self.mft).saturating_add(u64::from(met.head.record_offset.get())).saturating_mul(8);
        let first = first.saturating_add(u64::from(range.bitmap_offset.get()));
        self.name(met.lsn, first, u64::from(range.number_of_bits.get()))
    }

    /// Bytes of `$Bitmap` that are written as they are; of others nothing need be known.
    fn value(&mut self, met: &Met<'_>, argument: &[u8]) -> Result<()> {
        if met.target == Target::Records {
            return self.attributes_of_file(met, argument);
        }
        if met.target != Target::Clusters {
            return Ok(());
        }
        let first =
            met.at(self.mft).saturating_add(u64::from(met.head.record_offset.get())).saturating_mul(8);
        let end = first.saturating_add(argument.len() as u64 * 8).min(self.mft.geometry.cluster_count);
        self.name(met.lsn, first.min(end), end - first.min(end))
    }

    /// A file record that is written as bytes.
    fn attributes_of_file(&mut self, met: &Met<'_>, argument: &[u8]) -> Result<()> {
        if met.head.record_offset == 0 && argument.starts_with(&MAGIC_FILE) {
            return self.file_record(met, argument);
        }
        Err(Error::unsupported(format!("$LogFile's record {:#x}", met.lsn)).field(
            "target",
            "a part of a file record",
            "another value",
        ))
    }

    fn dirty_clusters(&mut self, met: &Met<'_>, argument: &[u8]) -> Result<()> {
        let ranges = <[LcnRange]>::ref_from_bytes(argument).map_err(|_| {
            met.error().field("length of ranges of clusters", argument.len(), "a multiple of 16")
        })?;
        ranges.iter().try_for_each(|range| self.name(met.lsn, range.start_lcn.get(), range.count.get()))
    }

    /// A file record as it is in memory, up to where it is in use.
    fn file_record(&mut self, met: &Met<'_>, argument: &[u8]) -> Result<()> {
        let Ok((head, _)) = FileRecordHeader::ref_from_prefix(argument) else {
            // The head alone, or part of it: what a record that is given back is set to.
            return match argument.starts_with(&MAGIC_FILE) || met.head.record_offset != 0 {
                true => Ok(()),
                false => Err(met.error().field("file record's length", argument.len(), "a file record's")),
            };
        };
        if head.fixup.magic != MAGIC_FILE {
            let found = head.fixup.magic.escape_ascii().to_string();
            return Err(met.error().field("file record's magic", found, "FILE"));
        }
        let from = usize::from(head.attrs_offset.get());
        let in_use = usize::try_from(head.bytes_in_use.get()).unwrap_or(usize::MAX).min(argument.len());
        match argument.get(from..in_use) {
            Some(attributes) => self.attributes(met, attributes),
            None => Err(met.error().field("attributes offset", from, format!("at most {in_use}"))),
        }
    }

    /// Attributes up to their end mark.
    fn attributes(&mut self, met: &Met<'_>, mut rest: &[u8]) -> Result<()> {
        while let Some(attribute) = split_first(met, &mut rest)? {
            self.clusters_of(met, &attribute)?;
        }
        Ok(())
    }

    fn attribute(&mut self, met: &Met<'_>, mut argument: &[u8]) -> Result<()> {
        match split_first(met, &mut argument)? {
            Some(attribute) => self.clusters_of(met, &attribute),
            None => Err(met.error().field("attribute", "an end mark", "an attribute")),
        }
    }

    fn clusters_of(&mut self, met: &Met<'_>, attribute: &Attribute<'_>) -> Result<()> {
        let doubt = |error: Error| met.error().field("attribute", error.to_string(), "one that holds");
        let Value::NonResident(mapped) = attribute.value().map_err(doubt)? else { return Ok(()) };
        let count = self.mft.geometry.cluster_count;
        let mut runs = Vec::new();
        let each = |run| {
            runs.push(run);
            Ok(())
        };
        attribute.each_run(&mapped, count, each).map_err(doubt)?;
        for run in runs {
            if let Some(lcn) = run.lcn {
                self.name(met.lsn, lcn, run.count)?;
            }
        }
        Ok(())
    }

    /// The end of a run list, put behind its beginning as the disk has it. That may be another one by now, or be nowhere on the disk
    /// yet: clusters that cannot be told so are named by the record that sets or clears their bits.
    fn mapping_pairs(&mut self, met: &Met<'_>, argument: &[u8]) -> Result<()> {
        let number = RecordNumber(met.at(self.mft) / self.mft.geometry.record_bytes);
        let Ok(record) = self.mft.record(number) else { return Ok(()) };
        let view = record.view();
        let (offset, from) =
            (usize::from(met.head.record_offset.get()), usize::from(met.head.attribute_offset.get()));
        let mut rest = view.bytes().get(offset..view.bytes_in_use()).unwrap_or_default();
        let Ok(Some(attribute)) = Attribute::split_first(view, &mut rest) else { return Ok(()) };
        let Ok(Value::NonResident(mapped)) = attribute.value() else { return Ok(()) };
        let Some(beginning) = attribute.bytes().get(mapped.run_list_offset..from) else { return Ok(()) };
        let list = [beginning, argument].concat();
        for run in runs::decode(&list, self.mft.geometry.cluster_count) {
            match run {
                Ok(runs::Run { lcn: Some(lcn), count }) => self.name(met.lsn, lcn, count)?,
                Ok(_) => {}
                Err(_) => break,
            }
        }
        Ok(())
    }

    fn opened(&mut self, met: &Met<'_>, argument: &[u8]) -> Result<()> {
        let opened = open_attribute(argument);
        self.open.insert(met.head.target_attribute.get(), opened);
        Ok(())
    }

    fn open_attributes(&mut self, met: &Met<'_>, argument: &[u8]) -> Result<()> {
        let is_known = |size| size == size_of::<OpenAttribute>() || size == size_of::<OpenAttribute32>();
        let table = Table::parse(met, argument, is_known)?;
        self.open = table.entries().map(|(offset, entry)| (offset, open_attribute(entry))).collect();
        Ok(())
    }

    fn dirty_pages(&mut self, met: &Met<'_>, argument: &[u8]) -> Result<()> {
        let head_of = |size: usize| {
            [DIRTY_PAGE_BYTES, DIRTY_PAGE_32_BYTES]
                .into_iter()
                .find(|head| size.checked_sub(*head).is_some_and(|lcns| lcns > 0 && lcns.is_multiple_of(8)))
        };
        let table = Table::parse(met, argument, |size| head_of(size).is_some())?;
        let head_bytes = head_of(table.entry_bytes).expect("asked for");
        for (_, entry) in table.entries() {
            let count = entry.get(DIRTY_PAGE_LCN_COUNT_AT..).and_then(|at| at.first_chunk::<4>());
            let count = usize::try_from(u32::from_le_bytes(*count.expect("an entry is longer")))
                .unwrap_or(usize::MAX);
            let (lcns, _) =
                <[U64]>::ref_from_prefix_with_elems(&entry[head_bytes..], count).map_err(|_| {
                    met.error().field("clusters of a dirty page", count, "what its entry has room for")
                })?;
            for lcn in lcns {
                self.name(met.lsn, lcn.get(), 1)?;
            }
        }
        Ok(())
    }
}

impl Met<'_> {
    fn error(&self) -> Error {
        record_error(self.lsn)
    }

    /// Where in its attribute the target begins.
    fn at(&self, mft: &Mft) -> u64 {
        let clusters = self.head.target_vcn.get().saturating_mul(mft.geometry.cluster_bytes);
        clusters.saturating_add(u64::from(self.head.cluster_block_offset.get()) * CLUSTER_BLOCK_BYTES)
    }
}

fn split_first<'a>(met: &Met<'_>, rest: &mut &'a [u8]) -> Result<Option<Attribute<'a>>> {
    let record = Record::parsed(rest, RecordNumber(0), extent::VolumeOffset::ZERO);
    Attribute::split_first(record, rest)
        .map_err(|error| met.error().field("attribute", error.to_string(), "one that holds"))
}

/// Which cluster of a stream lies at `lcn`.
fn vcn_of(stream: &Stream, lcn: u64) -> Option<u64> {
    stream.runs().iter().find_map(|run| {
        let first = run.lcn?;
        (first..first.saturating_add(run.count)).contains(&lcn).then(|| run.vcn + (lcn - first))
    })
}

fn index_entry(met: &Met<'_>, argument: &[u8]) -> Result<()> {
    let length = IndexEntry::ref_from_prefix(argument).map(|(entry, _)| usize::from(entry.length.get()));
    match length {
        Ok(length) if (size_of::<IndexEntry>()..=argument.len()).contains(&length) => Ok(()),
        _ => Err(met.error().field("length of an index entry", argument.len(), "that of an index entry")),
    }
}

/// Its kind and whose it is. The argument has the size of one of the two.
fn open_attribute(entry: &[u8]) -> (u32, RecordNumber) {
    let (kind, reference) = match OpenAttribute32::ref_from_bytes(entry) {
        Ok(entry) => (entry.kind, entry.file_reference),
        Err(_) => {
            let (entry, _) = OpenAttribute::ref_from_prefix(entry).expect("at least so many bytes");
            (entry.kind, entry.file_reference)
        }
    };
    (kind.get(), FileReference::from_raw(reference.get()).number)
}

fn attribute_names(met: &Met<'_>, mut rest: &[u8]) -> Result<()> {
    let bad =
        |found: usize| met.error().field("names of attributes", format!("{found} bytes left"), "whole names");
    loop {
        let left = rest.len();
        let (head, behind) = AttributeName::ref_from_prefix(rest).map_err(|_| bad(left))?;
        if head.index == 0 {
            return Ok(());
        }
        // A zero follows the name.
        rest = behind.get(usize::from(head.name_length.get()) + 2..).ok_or_else(|| bad(left))?;
    }
}

/// A table as it was dumped.
struct Table<'a> {
    entry_bytes: usize,
    entries: &'a [u8],
}

impl<'a> Table<'a> {
    fn parse(met: &Met<'_>, argument: &'a [u8], is_known: impl Fn(usize) -> bool) -> Result<Self> {
        let bad = |name: &str, found: usize| met.error().field(name, found, "what such a table has");
        let (head, rest) =
            RestartTable::ref_from_prefix(argument).map_err(|_| bad("table's length", argument.len()))?;
        let entry_bytes = usize::from(head.entry_size.get());
        if !is_known(entry_bytes) {
            return Err(bad("size of a table's entry", entry_bytes));
        }
        let count = usize::from(head.number_entries.get());
        let entries =
            rest.get(..count * entry_bytes).ok_or_else(|| bad("number of a table's entries", count))?;
        Ok(Self { entry_bytes, entries })
    }

    /// Those in use, with their offsets in the table.
    fn entries(&self) -> impl Iterator<Item = (u16, &'a [u8])> + use<'a> {
        let entry_bytes = self.entry_bytes;
        let entries = self.entries.chunks_exact(entry_bytes).enumerate();
        entries.filter_map(move |(index, entry)| {
            let is_allocated = entry.starts_with(&ENTRY_ALLOCATED.to_le_bytes());
            let offset = u16::try_from(size_of::<RestartTable>() + index * entry_bytes).ok()?;
            is_allocated.then_some((offset, entry))
        })
    }
}
