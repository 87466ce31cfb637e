//! What of an NTFS volume may lie elsewhere, and what of its metadata changes with it.
//!
//! Changes stay within file records: each piece of an attribute keeps its record and its VCNs, and only the clusters in its
//! run list are told anew ([`super::rewrite`]). Where a record has no room for that, pieces of a list end elsewhere
//! ([`super::spread`]), or the file gets one more record ([`super::extension`]). `$MFTMirr` and `$Bitmap` never move, and of `$MFT` only what is behind its first
//! extent, after all else: so where a record or a bit lies is known while it is changed.
//!
//! Invariants: only a volume that is clean, was checked in full, has every used cluster owned by one file, and has no
//! shadow copies is shown; a file that is in doubt is an error of the whole.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use block::{Error, ReadAt, Result};
use extent::{ExtentSet, Volume, VolumeOffset, VolumeSpan};

use super::bitmap::Bitmap;
use super::crowded::{self, Rooms};
use super::edits::{self, Places};
use super::extension::SpareRecords;
use super::files::{self, Sink};
use super::gather::{Gathered, GatheredStream};
use super::layout::{ATTR_ATTRIBUTE_LIST, ATTR_BITMAP, ATTR_DATA};
use super::mft::Mft;
use super::own_files::OwnFiles;
use super::record::{RecordNumber, utf16_is};
use super::rewritten::NtfsRewritten;
use super::roots;
use super::scan::{self, RESERVED_RECORDS, Unowned};
use super::shadow;
use super::stream::Stream;
use crate::files::{FileId, FileName, FileStream};
use crate::rearrange::{Edits, Mobility, Rearrange, Relocations, Rewritten, StreamVisitor};

/// Smaller clusters, which Windows never makes, would share the sectors that patches are made of.
const CLUSTER_BYTES_MIN: u64 = 512;

/// Of NTFS's own files below `$Extend` those that are plain streams and indexes to every driver.
const MOVABLE_BELOW_EXTEND: [&str; 4] = ["$UsnJrnl", "$ObjId", "$Quota", "$Reparse"];

/// Likewise of its first records.
const MOVABLE_RECORDS: [RecordNumber; 3] = [RecordNumber::ROOT, RecordNumber::SECURE, RecordNumber::UP_CASE];

/// Why NTFS's own files do not move.
const OWN_FILE: &str = "a file of NTFS's own that drivers expect where it is";

/// `$MFT` keeps room to grow behind it up to this part of what is free: a record of 1 KiB for each 32 KiB that files may still take.
const MFT_ROOM_PART: u64 = 32;

/// The two restart pages of `$LogFile`: they are 4 KiB wherever Windows runs.
const RESTART_PAGES_BYTES: u64 = 2 * 4096;

/// The most of `$MFT`'s bitmap that is a witness.
const RECORD_BITS_BYTES_MAX: u64 = 1 << 20;

/// A volume whose files can move.
pub(super) struct NtfsRearrange {
    mft: Arc<Mft>,
    /// `$Bitmap`, as it was when the volume was opened.
    clusters: Bitmap,
    bitmap: Stream,
    mirror: Stream,
    /// `$MFT`'s bitmap.
    record_bits: Stream,
    /// Records that files may get.
    spares: SpareRecords,
    /// Files of which a stream moves as a whole, once all were shown: no other needs a record, whatever moves.
    together: OnceLock<BTreeSet<FileId>>,
    /// NTFS's own files that move as any other.
    movable_own: BTreeSet<RecordNumber>,
    is_mft_told_at_once: bool,
    witnesses: Vec<VolumeSpan>,
}

impl NtfsRearrange {
    /// Checks all that must hold.
    pub(super) fn open(mft: &Arc<Mft>) -> Result<Self> {
        let cluster_bytes = mft.geometry.cluster_bytes;
        if cluster_bytes < CLUSTER_BYTES_MIN {
            let expected = format!("at least {CLUSTER_BYTES_MIN} where files are moved");
            return Err(Error::unsupported("NTFS volume").field("cluster size", cluster_bytes, expected));
        }
        shadow::require_none(mft)?;
        let clusters = Bitmap::of_clusters(mft)?.loaded()?;
        scan::check(mft, &clusters, &roots::read(mft)?.known, Unowned::Doubt)?;
        let mirror = data_of(mft, RecordNumber::MFT_MIRROR)?;
        let record_bits = record_bits(mft)?;
        let spares = match record_bits.is_resident() {
            // Its bits are in a record that nothing changes.
            true => SpareRecords::default(),
            false => SpareRecords::find(mft, edits::mirrored_count(&mirror, mft))?,
        };
        Ok(Self {
            mft: mft.clone(),
            clusters,
            bitmap: data_of(mft, RecordNumber::BITMAP)?,
            mirror,
            record_bits,
            spares,
            together: OnceLock::new(),
            movable_own: movable_own(mft)?,
            is_mft_told_at_once: is_mft_told_at_once(mft)?,
            witnesses: witnesses(mft)?,
        })
    }

    /// How much of the free span behind `$MFT` it keeps to grow into: as much as it has already, but no more than it needs for the files
    /// that still fit.
    fn mft_room(&self, free_bytes: u64, behind_mft_bytes: u64) -> u64 {
        let cluster_bytes = self.mft.geometry.cluster_bytes;
        let wanted = self.mft.data.len_bytes().next_multiple_of(cluster_bytes);
        let kept = wanted.min(free_bytes / MFT_ROOM_PART).min(behind_mft_bytes);
        kept / cluster_bytes * cluster_bytes
    }

    /// Where `$MFT` ends.
    fn mft_end(&self) -> VolumeOffset {
        let last = self.mft.data.runs().last().and_then(|run| Some(run.lcn? + run.count));
        VolumeOffset::new(last.map_or(0, |end| end * self.mft.geometry.cluster_bytes))
    }

    /// Where room ends: a volume that counts all sectors it has keeps its backup boot sector in the last of them.
    fn room_end(&self) -> VolumeOffset {
        let geometry = &self.mft.geometry;
        let end = geometry.clustered_bytes();
        let has_sector_behind = self.mft.source.len_bytes() - geometry.size_bytes >= geometry.sector_bytes;
        let is_in_cluster = geometry.size_bytes - end < geometry.sector_bytes;
        VolumeOffset::new(if has_sector_behind || !is_in_cluster {
            end
        } else {
            end - geometry.cluster_bytes
        })
    }

    /// What becomes of the records of `files`.
    fn rooms(&self, files: &BTreeSet<FileId>, batches: &[Relocations]) -> Result<Rooms> {
        Rooms::of(&self.mft, edits::mirrored_count(&self.mirror, &self.mft), &self.spares, files, batches)
    }

    /// The bytes of `$MFT`'s bitmap that change because files get records in `batches`.
    fn bits_to_be_set(&self, batches: &[Relocations]) -> Result<ExtentSet<Volume>> {
        let mut spans = Vec::new();
        if self.spares.is_empty() {
            return Ok(ExtentSet::new());
        }
        let may_need_one = |file: &FileId| self.together.get().is_none_or(|together| together.contains(file));
        let files = batches.iter().flat_map(Relocations::files).filter(may_need_one).collect();
        let added_count = self.rooms(&files, batches)?.added_count;
        for byte in self.spares.bytes_of_first(added_count) {
            self.record_bits.each_place(byte, 1, |_, place| {
                spans.push(place);
                Ok(())
            })?;
        }
        Ok(spans.into_iter().collect())
    }

    fn each_free(&self, each: &mut dyn FnMut(VolumeSpan)) -> Result<()> {
        files::each_free_span(&self.mft, &self.clusters, each)
    }
}

impl Rearrange for NtfsRearrange {
    fn cluster_bytes(&self) -> u64 {
        self.mft.geometry.cluster_bytes
    }

    fn each_stream(&self, visitor: &mut dyn StreamVisitor) -> Result<()> {
        let mut own_files = OwnFiles::default();
        own_files.add_below_extend(&self.mft, Err)?;
        let together = BTreeSet::new();
        let mut movers = Movers { visitor, own_files, rearrange: self, file: None, together, doubt: None };
        files::gather(&self.mft, &mut movers, Gathered::with_growth())?;
        if let Some(why) = movers.doubt {
            return Err(Error::corrupt(why));
        }
        // They are the same each time.
        let _ = self.together.set(movers.together);
        Ok(())
    }

    fn each_room(&self, each: &mut dyn FnMut(VolumeSpan)) -> Result<()> {
        let mft_end = self.mft_end();
        let (mut free_bytes, mut behind_mft_bytes) = (0, 0);
        self.each_free(&mut |span| {
            free_bytes += span.len_bytes();
            if span.start() == mft_end {
                behind_mft_bytes = span.len_bytes();
            }
        })?;
        let kept = VolumeSpan::new(mft_end, self.mft_room(free_bytes, behind_mft_bytes));
        let room_end = self.room_end();
        self.each_free(&mut |span| {
            let start = if span.start() == kept.start() { kept.end() } else { span.start() };
            let room = VolumeSpan::between(start, span.end().min(room_end));
            if !room.is_empty() {
                each(room);
            }
        })
    }

    fn edits(&self, volume: &dyn ReadAt<Volume>, relocations: &Relocations) -> Result<Edits> {
        let Self { mft, mirror, bitmap, record_bits, spares, .. } = self;
        edits::edits(&Places { mft, mirror, bitmap, record_bits, spares }, volume, relocations)
    }

    fn first_of(
        &self,
        volume: &dyn ReadAt<Volume>,
        relocations: &Relocations,
    ) -> Result<Option<(Relocations, Relocations)>> {
        let mirrored_count = edits::mirrored_count(&self.mirror, &self.mft);
        crowded::first_of(&self.mft, &self.mft.on(volume), mirrored_count, &self.spares, relocations)
    }

    fn crowded(&self, files: &BTreeSet<FileId>, batches: &[Relocations]) -> Result<BTreeSet<FileId>> {
        Ok(self.rooms(files, batches)?.crowded)
    }

    fn rewritten(&self, relocations: Arc<Relocations>) -> Result<Box<dyn Rewritten>> {
        Ok(Box::new(NtfsRewritten::new(&self.mft, &self.mirror, &self.bitmap, relocations)?))
    }

    fn witnesses(&self, batches: &[Relocations]) -> Result<Vec<VolumeSpan>> {
        let record = edits::mft_record(&self.mft);
        let mft = FileId(RecordNumber::MFT.0);
        let moves_mft = batches.iter().flat_map(Relocations::by_source).any(|each| each.file == mft);
        let all = self.witnesses.iter().copied();
        let all: ExtentSet<Volume> =
            all.filter(|span| !moves_mft || span.intersect(&record).is_none()).collect();
        Ok(all.subtract(&self.bits_to_be_set(batches)?).iter().collect())
    }
}

/// The data of one of NTFS's own files, which must be in clusters and plain.
fn data_of(mft: &Mft, number: RecordNumber) -> Result<Stream> {
    let owned = mft.system_record(number)?;
    let record = owned.view();
    let missing = || record.error().field("attribute 0x80", "missing", "in the record");
    let stream = mft.stream(&record, ATTR_DATA, "")?.ok_or_else(missing)?;
    stream.require_plain(0)?;
    if stream.is_resident() {
        return Err(record.error().field("residence of attribute 0x80", "0", "1"));
    }
    Ok(stream)
}

fn record_bits(mft: &Mft) -> Result<Stream> {
    let record = mft.system_record(RecordNumber::MFT)?;
    let missing = || record.view().error().field("attribute 0xb0", "missing", "the record bitmap");
    mft.stream(&record.view(), ATTR_BITMAP, "")?.ok_or_else(missing)
}

fn movable_own(mft: &Mft) -> Result<BTreeSet<RecordNumber>> {
    let mut movable = BTreeSet::from(MOVABLE_RECORDS);
    let mut own_files = OwnFiles::default();
    own_files.add_below_extend(mft, Err)?;
    for number in own_files.below_extend() {
        let owned = mft.system_record(number)?;
        for name in roots::file_names(&owned.view()) {
            let (parent, _, name) = name?;
            let is_known = MOVABLE_BELOW_EXTEND.iter().any(|known| utf16_is(name, known));
            if is_known && parent.number == RecordNumber::EXTEND {
                movable.insert(number);
            }
        }
    }
    Ok(movable)
}

/// Whether the first record, which lies at the start of `$MFT`'s first extent, tells where all of it lies. Drivers learn from the
/// boot sector where that is.
fn is_mft_told_at_once(mft: &Mft) -> Result<bool> {
    let record = mft.system_record(RecordNumber::MFT)?;
    let first = mft.data.runs().first().filter(|run| run.lcn.is_some());
    let first_bytes = first.map_or(0, |run| run.count * mft.geometry.cluster_bytes);
    let has_list = mft.stream(&record.view(), ATTR_ATTRIBUTE_LIST, "")?.is_some();
    Ok(!has_list && first_bytes >= mft.geometry.record_bytes)
}

/// The restart pages of the log, which every driver of Windows writes when it mounts; `$Volume`'s record, which holds the
/// dirty flag; and `$MFT`'s record and bitmap, which change with files that are made and deleted.
fn witnesses(mft: &Mft) -> Result<Vec<VolumeSpan>> {
    let mut spans = Vec::new();
    let mut add = |stream: &Stream, at: u64, len_bytes: u64| {
        stream.each_place(at, len_bytes, |_, span| {
            spans.push(span);
            Ok(())
        })
    };
    let log = data_of(mft, RecordNumber::LOG_FILE)?;
    add(&log, 0, log.len_bytes().min(RESTART_PAGES_BYTES))?;
    let record_bytes = mft.geometry.record_bytes;
    for number in [RecordNumber::MFT, RecordNumber::VOLUME] {
        add(&mft.data, number.0 * record_bytes, record_bytes)?;
    }
    let record = mft.system_record(RecordNumber::MFT)?;
    if let Some(bits) = mft.stream(&record.view(), ATTR_BITMAP, "")?.filter(|bits| !bits.is_resident()) {
        add(&bits, 0, bits.len_bytes().min(RECORD_BITS_BYTES_MAX))?;
    }
    spans.sort_unstable();
    Ok(spans)
}

/// Shows streams with how they may move.
struct Movers<'a> {
    visitor: &'a mut dyn StreamVisitor,
    own_files: OwnFiles,
    rearrange: &'a NtfsRearrange,
    /// The file at hand, and how its streams may move.
    file: Option<(FileId, Vec<Mobility>)>,
    /// Files of which a stream moves together.
    together: BTreeSet<FileId>,
    doubt: Option<String>,
}

impl Movers<'_> {
    fn mobilities(&self, file: FileId, gathered: &Gathered) -> Vec<Mobility> {
        let growth = gathered.growth.as_ref().expect("asked for");
        let number = RecordNumber(file.0);
        let is_own = self.own_files.contain(number) || number.0 < RESERVED_RECORDS;
        let is_pinned = is_own && !self.rearrange.movable_own.contains(&number);
        let mut mobilities = growth.mobilities(gathered.streams.len(), |_| is_pinned.then_some(OWN_FILE));
        if number == RecordNumber::MFT && self.rearrange.is_mft_told_at_once {
            let data = gathered.streams.iter().position(GatheredStream::is_main_data);
            data.into_iter().for_each(|data| mobilities[data] = Mobility::Anchored(OWN_FILE));
        }
        mobilities
    }
}

impl Sink for Movers<'_> {
    fn stream(&mut self, stream: FileStream<'_>, index: Option<usize>, file: &Gathered) {
        let Some(index) = index else { return };
        let extents = file.extents(&file.streams[index]);
        if extents.is_empty() {
            return;
        }
        if self.file.as_ref().is_none_or(|(id, _)| *id != stream.file) {
            self.file = Some((stream.file, self.mobilities(stream.file, file)));
        }
        let (_, mobilities) = self.file.as_ref().expect("set above");
        if mobilities[index] == Mobility::Together {
            self.together.insert(stream.file);
        }
        self.visitor.stream(stream, extents, mobilities[index].clone());
    }

    fn name(&mut self, _name: FileName<'_>) {}

    fn doubt(&mut self, file: Option<FileId>, why: String) {
        self.doubt.get_or_insert_with(|| match file {
            Some(FileId(number)) => format!("NTFS file {number} is not understood: {why}"),
            None => why,
        });
    }
}
