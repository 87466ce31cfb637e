//! The check of a whole NTFS volume.
//!
//! One pass over `$MFT`; volumes of more clusters than [`WINDOW_MAX`] take one pass for each so many. Names are compared
//! with directories by sums (see [`Tally`]), and only if these differ is there another pass to name what does.

use std::ops::Range;

use block::{Error, Result, read_vec};
use extent::VolumeOffset;

use super::corrupt::CorruptNtfs;
use super::index::{self, Name, UpperCase};
use super::layout::{ATTRIBUTE_LIST, BITMAP, COMPRESSED, DATA, FILE_NAME, SPARSE, STANDARD_INFORMATION};
use super::pairs::{Run, each_run};
use super::record::{Attribute, Body, Mapped, Record, Reference, record_error, utf16_text};
use super::state;
use super::volume::{File, ListEntry, Volume};
use crate::volume::Source;
use crate::volume::bits::{Bits, WINDOW_MAX};
use crate::volume::tally::{Side, Tally};
use crate::volume::{Scope, VolumeReport};

/// `$Bitmap`.
const CLUSTER_BITMAP: u64 = 6;
/// `$BadClus`, whose `$Bad` is the one stream with a hole that is not called sparse.
const BAD_CLUSTERS: u64 = 8;
/// Records below are NTFS's own or kept for it: in use with no name, or kept in the bitmap and not in use.
const RESERVED: u64 = 24;
/// Records that `$MFTMirr` repeats.
const MIRRORED: u64 = 4;
/// How much of `$Bitmap` is compared at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Checks the volume.
pub(in crate::volume) fn check(source: &Source, scope: Scope) -> Result<VolumeReport> {
    let volume = Volume::open(source)?;
    state::check(&volume)?;
    check_mirror(&volume)?;
    let upper_case = UpperCase::read(&volume)?;
    let mut report = VolumeReport { filesystem: "ntfs", ..VolumeReport::default() };
    let mut start = 0;
    while start < volume.cluster_count {
        let end = volume.cluster_count.min(start + WINDOW_MAX);
        let names = if start == 0 && scope == Scope::All { Tally::new() } else { Tally::Ignored };
        let mut pass = Pass::new(&volume, scope, &upper_case, start..end, names);
        pass.run()?;
        compare_bitmap(&volume, &pass.owned)?;
        report.used_bytes += pass.owned.count(start..end) * volume.cluster_bytes;
        if start == 0 {
            (report.files, report.directories, report.names) =
                (pass.files, pass.directories, pass.name_count);
            compare_names(&volume, &upper_case, &pass.names)?;
        }
        start = end;
    }
    Ok(report)
}

/// `$MFTMirr` lies where the boot sector says and repeats the first records.
fn check_mirror(volume: &Volume) -> Result<()> {
    for number in 0..MIRRORED {
        let at = VolumeOffset::new(volume.at(volume.mirror_lcn).get() + number * volume.record_bytes);
        let mut bytes = read_vec(&volume.source, at, volume.record_bytes, "$MFTMirr")?;
        let mirrored = Record::parse(&mut bytes, number, at)?;
        volume.with_record(number, |record| {
            if record.content() == mirrored.content() {
                return Ok(());
            }
            Err(Error::corrupt(CorruptNtfs::MirrorDiffers { record: number }).at(at))
        })?;
    }
    volume.with_system_file(1, |file| {
        let data = file.attributes.iter().find(|attribute| attribute.kind == DATA);
        let place = match data.map(|data| (data, data.body)) {
            Some((data, Body::Mapped(_))) => volume.begin(data)?.runs.first().and_then(|run| run.lcn),
            _ => None,
        };
        if place != Some(volume.mirror_lcn) {
            let found = place.map_or_else(|| "nowhere".into(), |lcn| format!("at LCN {lcn}"));
            return Err(file.record.error().field("data", found, format!("at LCN {}", volume.mirror_lcn)));
        }
        Ok(())
    })
}

struct Pass<'a> {
    volume: &'a Volume,
    scope: Scope,
    upper_case: &'a UpperCase,
    /// The clusters of the window that have an owner.
    owned: Bits,
    /// Extension records that were met, and those that a list named.
    extensions: Bits,
    listed: Bits,
    names: Tally,
    files: u64,
    directories: u64,
    name_count: u64,
}

impl<'a> Pass<'a> {
    fn new(
        volume: &'a Volume,
        scope: Scope,
        upper_case: &'a UpperCase,
        window: Range<u64>,
        names: Tally,
    ) -> Self {
        let records = || Bits::none(volume.in_use.window());
        Self {
            volume,
            scope,
            upper_case,
            owned: Bits::none(window),
            extensions: records(),
            listed: records(),
            names,
            files: 0,
            directories: 0,
            name_count: 0,
        }
    }

    fn run(&mut self) -> Result<()> {
        let volume = self.volume;
        volume.each_record(|number, at, bytes| self.record(number, at, bytes))?;
        let written = volume.record_count;
        let beyond = written..volume.in_use.window().end;
        if volume.in_use.count(beyond.clone()) > 0 {
            let first = beyond.clone().find(|number| volume.in_use.has(*number)).unwrap_or(written);
            return Err(record_error(first).field(
                "bit of $MFT's bitmap",
                "set",
                "clear: it was never written",
            ));
        }
        match self.extensions.first_difference(&self.listed) {
            None => Ok(()),
            Some(number) => Err(record_error(number).field(
                "attribute list that names it",
                "none",
                "that of its base record",
            )),
        }
    }

    fn record(&mut self, number: u64, at: VolumeOffset, bytes: &mut [u8]) -> Result<()> {
        if !self.volume.in_use.has(number) {
            let says_in_use = bytes.starts_with(b"FILE") && bytes.get(22).is_some_and(|flags| flags & 1 != 0);
            let error =
                || record_error(number).at(at).field("bit of $MFT's bitmap", "clear", "set: it is in use");
            return if says_in_use { Err(error()) } else { Ok(()) };
        }
        let record = Record::parse(bytes, number, at)?;
        if !record.is_in_use() {
            let error = || record.error().field("flags", "not in use", "in use, as $MFT's bitmap says");
            return if number < RESERVED { Ok(()) } else { Err(error()) };
        }
        if record.base().is_some() {
            // All else of it is checked with its base record, which must name it.
            self.extensions.join(number..number + 1);
            return Ok(());
        }
        let volume = self.volume;
        volume.with_file(record, |file| self.file(file))
    }

    fn file(&mut self, file: &File<'_>) -> Result<()> {
        self.files += u64::from(!file.record.is_directory());
        self.directories += u64::from(file.record.is_directory());
        self.list(file)?;
        let mut rest = &file.attributes[..];
        while let Some(first) = rest.first() {
            let is_same = |other: &&Attribute<'_>| (other.kind, other.name) == (first.kind, first.name);
            let (pieces, others) = rest.split_at(rest.iter().take_while(is_same).count());
            rest = others;
            if first.kind == FILE_NAME {
                continue;
            }
            self.stream(file, pieces)?;
        }
        // The list itself is in the base record alone, and no part of what it lists.
        if !file.list.is_empty() {
            let all = file.record.attributes()?;
            let list: Vec<_> = all.into_iter().filter(|attribute| attribute.kind == ATTRIBUTE_LIST).collect();
            self.stream(file, &list)?;
        }
        self.file_names(file)?;
        if self.scope == Scope::Owners {
            return Ok(());
        }
        let (names, mut count) = (&mut self.names, 0);
        index::check(self.volume, self.upper_case, file, &mut |named, name| {
            count += 1;
            names.tell(Side::Directory, named.number, &name.fact(named), 1);
        })?;
        self.name_count += count;
        Ok(())
    }

    fn list(&mut self, file: &File<'_>) -> Result<()> {
        let is_ordered = |one: &ListEntry<'_>, other: &ListEntry<'_>| {
            let order = one.kind.cmp(&other.kind).then_with(|| self.upper_case.compare(one.name, other.name));
            order.then(one.lowest_vcn.cmp(&other.lowest_vcn)).is_le()
        };
        if let Some(pair) = file.list.windows(2).find(|pair| !is_ordered(&pair[0], &pair[1])) {
            let found = format!("attribute {:#x} from VCN {}", pair[1].kind, pair[1].lowest_vcn);
            return Err(file.record.error().field(
                "attribute list's order",
                found,
                "types, names and VCNs that ascend",
            ));
        }
        for number in &file.extensions {
            if !self.volume.in_use.has(*number) {
                return Err(record_error(*number).field(
                    "bit of $MFT's bitmap",
                    "clear",
                    "set: a list names it",
                ));
            }
            if self.listed.add(*number..number + 1).is_some() {
                return Err(record_error(*number).field("lists that name it", "two", "one"));
            }
        }
        Ok(())
    }

    fn file_names(&mut self, file: &File<'_>) -> Result<()> {
        let record = &file.record;
        let mut count = 0u16;
        for attribute in file.attributes.iter().filter(|attribute| attribute.kind == FILE_NAME) {
            let Body::Resident(value, _) = attribute.body else {
                return Err(attribute.error("residence", 1, 0));
            };
            let name = Name::parse(value).ok_or_else(|| attribute.error("value", "no name", "a name"))?;
            count = count.saturating_add(1);
            self.names.tell(Side::File, record.number, &name.fact(record.reference()), 1);
        }
        let links = record.head().links.get();
        let is_reserved = record.number < RESERVED && count == 0;
        if links != count && !is_reserved {
            return Err(record.error().field("hard links", links, format!("{count}, as it has names")));
        }
        if count == 0 && !is_reserved {
            return Err(record.error().field("names", 0, "one or more"));
        }
        let has_information = file.attributes.iter().any(|attribute| attribute.kind == STANDARD_INFORMATION);
        if !has_information && !is_reserved {
            return Err(record.error().field("standard information", "missing", "there"));
        }
        Ok(())
    }

    /// All pieces of an attribute: either one in the record, or clusters without a gap.
    fn stream(&mut self, file: &File<'_>, pieces: &[Attribute<'_>]) -> Result<()> {
        let Some(first) = pieces.first() else { return Ok(()) };
        if let Body::Resident(..) = first.body {
            return match pieces.get(1) {
                None => Ok(()),
                Some(second) => Err(second.error("number of attributes of its type and name", 2, 1)),
            };
        }
        let mut shape = Shape::new(self.volume, file, first)?;
        for piece in pieces {
            let Body::Mapped(mapped) = piece.body else {
                return Err(piece.error("residence", 0, 1));
            };
            if mapped.lowest_vcn != shape.end_vcn {
                return Err(piece.error("lowest VCN", mapped.lowest_vcn, shape.end_vcn));
            }
            each_run(piece, &mapped, self.volume.cluster_count, |run| {
                shape.run(piece, run)?;
                self.claim(piece, run)
            })?;
            shape.end_vcn = mapped.end_vcn;
        }
        shape.finish(first)
    }

    fn claim(&mut self, piece: &Attribute<'_>, run: Run) -> Result<()> {
        let Some(lcn) = run.lcn else { return Ok(()) };
        let Some(cluster) = self.owned.add(lcn..lcn + run.count) else { return Ok(()) };
        let error = piece.error(
            "mapping pairs",
            format!("cluster {cluster}, which has an owner"),
            "clusters of its own",
        );
        Err(error.at(self.volume.at(cluster)))
    }
}

/// What the runs of a stream add up to.
struct Shape<'a> {
    volume: &'a Volume,
    head: Mapped<'a>,
    end_vcn: u64,
    allocated: u64,
    may_have_holes: bool,
    unit_clusters: u64,
    /// The unit at hand, if a hole was seen in it.
    unit_with_hole: Option<u64>,
}

impl<'a> Shape<'a> {
    fn new(volume: &'a Volume, file: &File<'_>, first: &Attribute<'a>) -> Result<Self> {
        let Body::Mapped(head) = first.body else { return Err(first.error("residence", 0, 1)) };
        let is_bad = file.record.number == BAD_CLUSTERS && first.is_named("$Bad");
        let is_compressed = first.flags & COMPRESSED != 0;
        if is_compressed && !(1..=8).contains(&head.unit_shift) {
            return Err(first.error("compression unit", head.unit_shift, "1 to 8"));
        }
        Ok(Self {
            volume,
            head,
            end_vcn: 0,
            allocated: 0,
            may_have_holes: is_bad || first.flags & (COMPRESSED | SPARSE) != 0,
            unit_clusters: if is_compressed { 1 << head.unit_shift } else { 0 },
            unit_with_hole: None,
        })
    }

    fn run(&mut self, piece: &Attribute<'_>, run: Run) -> Result<()> {
        let units = self.unit_clusters;
        match run.lcn {
            None if !self.may_have_holes => Err(piece.error(
                "mapping pairs",
                format!("a hole at VCN {}", run.vcn),
                "none: it is not sparse",
            )),
            None => {
                let end = run.vcn + run.count;
                self.unit_with_hole =
                    (units > 0 && !end.is_multiple_of(units.max(1))).then(|| end / units.max(1));
                Ok(())
            }
            Some(_) => {
                self.allocated += run.count;
                if units > 0 && self.unit_with_hole == Some(run.vcn / units) {
                    let found = format!("clusters behind a hole in the unit of VCN {}", run.vcn);
                    return Err(piece.error("compression units", found, "clusters, then a hole"));
                }
                Ok(())
            }
        }
    }

    fn finish(&self, first: &Attribute<'_>) -> Result<()> {
        let Mapped { allocated_bytes, data_bytes, initialized_bytes, compressed_bytes, .. } = self.head;
        let mapped_bytes = self.end_vcn.checked_mul(self.volume.cluster_bytes);
        if mapped_bytes != Some(allocated_bytes) {
            return Err(first.error(
                "allocated size",
                allocated_bytes,
                format!("that of {} clusters", self.end_vcn),
            ));
        }
        if data_bytes > allocated_bytes || initialized_bytes > data_bytes {
            let found = format!("{data_bytes} ({initialized_bytes} initialised)");
            return Err(first.error("size", found, format!("at most {allocated_bytes}")));
        }
        let owned_bytes = self.allocated.saturating_mul(self.volume.cluster_bytes);
        match compressed_bytes {
            Some(found) if found != owned_bytes => Err(first.error("compressed size", found, owned_bytes)),
            _ => Ok(()),
        }
    }
}

/// `$Bitmap` must have set what has an owner, and nothing else. Bits past the last cluster may be either.
fn compare_bitmap(volume: &Volume, owned: &Bits) -> Result<()> {
    let stream = volume.with_system_file(CLUSTER_BITMAP, |file| {
        let mut pieces = file.attributes.iter().filter(|piece| piece.kind == DATA && piece.name.is_empty());
        let first = pieces.next().ok_or_else(|| file.record.error().field("data", "missing", "there"))?;
        let mut stream = volume.begin(first)?;
        pieces.try_for_each(|piece| stream.append(volume.cluster_count, piece))?;
        Ok(stream)
    })?;
    let window = owned.window();
    let (mut at, end) = (window.start / 8, window.end.div_ceil(8));
    let mut piece = Vec::new();
    while at < end {
        let len = PIECE_BYTES.min(end - at);
        piece.resize(usize::try_from(len).expect("a piece"), 0);
        stream.read(at, &mut piece)?;
        let clusters = at * 8..((at + len) * 8).min(window.end);
        let set = Bits::of_bytes(clusters.clone(), &piece);
        let mut wanted = Bits::none(clusters.clone());
        wanted.join_from(owned);
        if let Some(cluster) = wanted.first_difference(&set) {
            let (found, wanted) = if set.has(cluster) {
                ("set", "clear: it has no owner")
            } else {
                ("clear", "set: it has an owner")
            };
            let error =
                Error::corrupt(CorruptNtfs::Bitmap).field(format!("bit of cluster {cluster}"), found, wanted);
            return Err(error.at(volume.at(cluster)));
        }
        at += len;
    }
    Ok(())
}

/// Every name has its entry in an index, and every entry its name.
fn compare_names(volume: &Volume, upper_case: &UpperCase, names: &Tally) -> Result<()> {
    let Some(bucket) = names.differing_bucket() else { return Ok(()) };
    let mut pass = Pass::new(volume, Scope::All, upper_case, 0..0, Tally::of_bucket(bucket));
    pass.run()?;
    let facts = pass.names.differing_facts();
    // A name that was changed is told by its file, not by the entry that it leaves alone.
    let named = facts.iter().find(|(_, balance)| *balance > 0).or(facts.first());
    let Some((fact, balance)) = named else {
        return Err(Error::corrupt(CorruptNtfs::NamesAndIndexes));
    };
    let (file, name): (Reference, Name<'_>) = Name::of_fact(fact);
    let text = utf16_text(name.units);
    if *balance > 0 {
        let field = format!("name {text:?} in the index of directory {:#x}", name.parent.raw());
        return Err(record_error(file.number).field(field, "missing", "there"));
    }
    let error = Error::corrupt(CorruptNtfs::IndexOf { record: name.parent.number });
    Err(error.field(
        format!("entry {text:?}"),
        format!("file {:#x}", file.raw()),
        "a file that has this name",
    ))
}

/// Types of attributes that hold a map of what others own, or of records, whose bytes change when files move.
pub(super) fn is_map(number: u64, attribute: &Attribute<'_>) -> bool {
    match number {
        0..=2 | CLUSTER_BITMAP => attribute.kind == DATA || attribute.kind == BITMAP,
        BAD_CLUSTERS => attribute.is_named("$Bad"),
        _ => false,
    }
}
