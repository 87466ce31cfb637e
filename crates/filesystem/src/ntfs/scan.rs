//! The whole check: every record of `$MFT` is read, and every cluster that one owns must be set in `$Bitmap`
//! and owned by none other.
//!
//! Memory is bounded: owners are counted over a window of the clusters, and a volume with more clusters is
//! read in several passes.

use block::{Error, FieldValue, Result, read_vec};
use extent::{ExtentSet, Volume};

use super::bitmap::{Bitmap, Words};
use super::layout::{ATTR_ATTRIBUTE_LIST, RECORD_IN_USE};
use super::mft::Mft;
use super::record::{Attribute, Record, RecordNumber, Value};
use super::roots;
use super::runs::Run;
use crate::ntfs::corrupt::Corrupt;

/// Clusters of one pass: 1 TiB of 4 KiB clusters, in 2 * 32 MiB of memory.
const WINDOW_CLUSTERS: u64 = 1 << 28;

/// The records that `$MFTMirr` repeats.
pub(super) const MIRRORED_RECORDS: u64 = 4;

/// Records up to this one are set aside by NTFS, whether in use or not.
pub(super) const RESERVED_RECORDS: u64 = 24;

/// What to think of clusters that are set and owned by none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unowned {
    /// They are used: copied, and nothing else.
    Used,
    /// A doubt: nothing may be moved on a volume that does not know what is free.
    Doubt,
}

/// Checks `clusters` against all records. `known` are the root files that were looked at.
pub(super) fn check(mft: &Mft, clusters: &Bitmap, known: &[RecordNumber], unowned: Unowned) -> Result<()> {
    check_mirror(mft)?;
    each_pass(mft, clusters, known, unowned, None)
}

/// The same of a volume in use, where `named` are the clusters that its log names: the records and the bitmaps on the disk are of
/// different moments. Every cluster that a record in use owns must be set or named, and owned once or named. What is in use is told by the
/// records themselves.
pub(super) fn check_in_use(
    mft: &Mft,
    clusters: &Bitmap,
    known: &[RecordNumber],
    named: &ExtentSet<Volume>,
) -> Result<()> {
    each_pass(mft, clusters, known, Unowned::Used, Some(named))
}

fn each_pass(
    mft: &Mft,
    clusters: &Bitmap,
    known: &[RecordNumber],
    unowned: Unowned,
    named: Option<&ExtentSet<Volume>>,
) -> Result<()> {
    let cluster_count = mft.geometry.cluster_count;
    let mut start = 0;
    while start < cluster_count {
        let end = cluster_count.min(start + WINDOW_CLUSTERS);
        let pass = Pass { named, ..Pass::new(mft, clusters, known, start, end)? }.run()?;
        if unowned == Unowned::Doubt {
            pass.check_all_owned()?;
        }
        start = end;
    }
    Ok(())
}

/// `$MFTMirr` must hold the first records as `$MFT` does.
fn check_mirror(mft: &Mft) -> Result<()> {
    let geometry = &mft.geometry;
    for index in 0..MIRRORED_RECORDS {
        let number = RecordNumber(index);
        let at = geometry.offset_of(geometry.mirror_lcn).plus(index * geometry.record_bytes);
        let mut bytes = read_vec(&mft.source, at, geometry.record_bytes, "$MFTMirr")?;
        let mirrored = Record::parse(&mut bytes, number, at)?;
        if mirrored.contents() != mft.record(number)?.view().contents() {
            return Err(Error::corrupt(Corrupt::MirrorDiffers { record: index }).at(at));
        }
    }
    Ok(())
}

struct Pass<'a> {
    mft: &'a Mft,
    known: &'a [RecordNumber],
    records_in_use: Bitmap,
    start: u64,
    end: u64,
    used: Words,
    owned: Words,
    /// What the log of a volume in use names.
    named: Option<&'a ExtentSet<Volume>>,
}

impl<'a> Pass<'a> {
    fn new(mft: &'a Mft, clusters: &Bitmap, known: &'a [RecordNumber], start: u64, end: u64) -> Result<Self> {
        let window_bytes = (end - start).div_ceil(8);
        Ok(Self {
            mft,
            known,
            records_in_use: Bitmap::of_records(mft)?,
            start,
            end,
            used: Words::new(&clusters.bytes(start / 8, window_bytes)?, start),
            owned: Words::clear(start, end - start),
            named: None,
        })
    }

    fn run(mut self) -> Result<Self> {
        let count = self.mft.initialized_record_count();
        let mut buffer = Vec::new();
        for piece in self.mft.pieces(count) {
            self.mft.read_piece(&piece, &mut buffer)?;
            self.check_piece(piece.start, &mut buffer)?;
        }
        if self.named.is_none() {
            self.check_unwritten(count)?;
        }
        Ok(self)
    }

    /// Every cluster that is set must have an owner.
    fn check_all_owned(&self) -> Result<()> {
        let Some(cluster) = self.used.first_difference(&self.owned, self.end) else { return Ok(()) };
        Err(Error::corrupt(Corrupt::ClusterUnowned { cluster }).at(self.mft.geometry.offset_of(cluster)))
    }

    fn check_piece(&mut self, first: u64, piece: &mut [u8]) -> Result<()> {
        let record_bytes = usize::try_from(self.mft.geometry.record_bytes).expect("at most 4096");
        if self.named.is_some() {
            let records = (first..).zip(piece.chunks_exact_mut(record_bytes));
            return records.into_iter().try_for_each(|(number, bytes)| self.check_in_use(number, bytes));
        }
        let count = (piece.len() / record_bytes) as u64;
        let set = Words::new(&self.records_in_use.bytes(first / 8, count.div_ceil(8))?, first);
        for (number, bytes) in (first..).zip(piece.chunks_exact_mut(record_bytes)) {
            let number = RecordNumber(number);
            if set.get(number.0) {
                let at = self.mft.record_offset(number);
                self.check_record(&Record::parse(bytes, number, at)?)?;
            } else {
                self.check_unused(number, bytes)?;
            }
        }
        Ok(())
    }

    /// A record of a volume in use: one that says that it is in use owns what it maps, whatever the bitmap of records says.
    fn check_in_use(&mut self, number: u64, bytes: &mut [u8]) -> Result<()> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let number = RecordNumber(number);
        let record = Record::parse(bytes, number, self.mft.record_offset(number))?;
        if !record.is_in_use() {
            return Ok(());
        }
        let mut has_list = record.base().is_some();
        for attribute in record.attributes() {
            let attribute = attribute?;
            has_list |= attribute.kind() == ATTR_ATTRIBUTE_LIST;
            self.check_attribute(&record, &attribute, has_list)?;
        }
        self.check_names(&record)
    }

    /// What `$MFT`'s bitmap calls unused may hold anything but a record that says that it is in use.
    fn check_unused(&self, number: RecordNumber, bytes: &[u8]) -> Result<()> {
        let says_in_use = bytes.starts_with(b"FILE") && bytes[22] & RECORD_IN_USE.to_le_bytes()[0] != 0;
        if !says_in_use {
            return Ok(());
        }
        let at = self.mft.record_offset(number);
        Err(Error::corrupt(Corrupt::RecordMarkedFree { record: number.0 }).at(at))
    }

    /// Records that were never written must not be in use.
    fn check_unwritten(&self, from: u64) -> Result<()> {
        let mut first_set = None;
        let mut at = from;
        self.records_in_use.each_run(from, self.mft.record_count(), |is_set, end| {
            if is_set && first_set.is_none() {
                first_set = Some(at);
            }
            at = end;
        })?;
        match first_set {
            None => Ok(()),
            Some(number) => Err(Error::corrupt(Corrupt::RecordNotWritten { record: number })),
        }
    }

    fn check_record(&mut self, record: &Record<'_>) -> Result<()> {
        if !record.is_in_use() {
            if record.number().0 < RESERVED_RECORDS {
                return Ok(());
            }
            return Err(record.error().field(
                "flags",
                FieldValue::hex(record.flags()),
                "in use, as $MFT's bitmap says",
            ));
        }
        let mut has_list = record.base().is_some();
        for attribute in record.attributes() {
            let attribute = attribute?;
            has_list |= attribute.kind() == ATTR_ATTRIBUTE_LIST;
            self.check_attribute(record, &attribute, has_list)?;
        }
        if let Some(base) = record.base() {
            self.check_base(record, base.number)?;
        }
        if has_list && record.base().is_none() {
            self.check_list(record)?;
        }
        self.check_names(record)
    }

    fn check_attribute(
        &mut self,
        record: &Record<'_>,
        attribute: &Attribute<'_>,
        is_listed: bool,
    ) -> Result<()> {
        let Value::NonResident(mapped) = attribute.value()? else { return Ok(()) };
        let geometry = self.mft.geometry;
        // An attribute list comes before all that it lists, so that one without a list is whole.
        let mapped_bytes = mapped.vcn_count.checked_mul(geometry.cluster_bytes);
        if !is_listed && (mapped.lowest_vcn != 0 || mapped_bytes != Some(mapped.allocated_bytes)) {
            let expected = format!("{} clusters, as its VCNs say", mapped.vcn_count);
            return Err(attribute.error("allocated size", mapped.allocated_bytes, &expected));
        }
        attribute.each_run(&mapped, geometry.cluster_count, |run| self.claim(record, run))
    }

    /// Claims a run's clusters for a record.
    fn claim(&mut self, record: &Record<'_>, run: Run) -> Result<()> {
        let Some(lcn) = run.lcn else { return Ok(()) };
        let (start, end) = (lcn.max(self.start), (lcn + run.count).min(self.end));
        if start >= end {
            return Ok(());
        }
        if let Some(named) = self.named {
            return self.claim_unnamed(record, start, end, named);
        }
        self.claim_all(record, start, end)
    }

    /// Claims what of some clusters the log does not name.
    fn claim_unnamed(
        &mut self,
        record: &Record<'_>,
        start: u64,
        end: u64,
        named: &ExtentSet<Volume>,
    ) -> Result<()> {
        let geometry = self.mft.geometry;
        let mut at = start;
        for span in named.within(geometry.span_of(start, end - start)) {
            let first = span.start().get() / geometry.cluster_bytes;
            self.claim_all(record, at, first)?;
            at = span.end().get() / geometry.cluster_bytes;
        }
        self.claim_all(record, at, end)
    }

    fn claim_all(&mut self, record: &Record<'_>, start: u64, end: u64) -> Result<()> {
        if start >= end {
            return Ok(());
        }
        let record = record.number().0;
        let at = |cluster| self.mft.geometry.offset_of(cluster);
        let free = self.used.run_end(start, end, true);
        if free < end {
            let cluster = free;
            return Err(Error::corrupt(Corrupt::ClusterMarkedFree { cluster, record }).at(at(cluster)));
        }
        self.owned
            .set(start, end)
            .map_err(|cluster| Error::corrupt(Corrupt::ClusterShared { cluster, record }).at(at(cluster)))
    }

    fn is_set(&self, number: RecordNumber) -> Result<bool> {
        if number.0 >= self.records_in_use.bit_count {
            return Ok(false);
        }
        let byte = self.records_in_use.bytes(number.0 / 8, 1)?[0];
        Ok(byte >> (number.0 % 8) & 1 != 0)
    }

    fn check_base(&self, record: &Record<'_>, base: RecordNumber) -> Result<()> {
        match self.is_set(base)? {
            true => Ok(()),
            false => Err(record.error().field("base record", base, "one in use")),
        }
    }

    /// The records that an attribute list names must be in use: what they own is checked as they are scanned.
    fn check_list(&self, record: &Record<'_>) -> Result<()> {
        for entry in self.mft.attribute_list(record)? {
            if !self.is_set(entry.holder.number)? {
                return Err(record.error().field("listed record", entry.holder.number, "one in use"));
            }
        }
        Ok(())
    }

    /// A page file or hibernation file that the root directory's index did not show.
    fn check_names(&self, record: &Record<'_>) -> Result<()> {
        let owner = record.base().map_or(record.number(), |base| base.number);
        for name in roots::file_names(record) {
            let (parent, _, name) = name?;
            let is_in_root = parent.number == RecordNumber::ROOT;
            if is_in_root && roots::is_special(name) && !self.known.contains(&owner) {
                let name = super::record::utf16_text(name);
                return Err(record.error().field("name", name, "one that the root directory's index shows"));
            }
        }
        Ok(())
    }
}
