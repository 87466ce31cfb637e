//! What the metadata of a volume group mean: its physical volumes, its logical volumes, and where each of these lies.
//!
//! Invariants: what lies where is disjoint, and within the physical volumes; a logical volume whose kind is not understood in
//! full has its extents all the same, so that nobody takes them for free.
//!
//! Source: LVM2, `lib/format_text/import_vsn1.c`, `lib/format_text/flags.c`.

use std::collections::BTreeMap;

use block::{Error, Result};
use extent::{Span, VolumeOffset, VolumeSpan};

use super::corrupt::Corrupt;
use super::layout::SECTOR_BYTES;
use super::reader::{Reader, missing, out_of_range};
use super::text::Section;

/// Of all texts that LVM2 writes.
const CONTENTS: &str = "Text Format Volume Group";
/// Physical volumes, logical volumes and segments that are taken from one text.
const COUNT_MAX: usize = 1 << 20;
/// How far logical volumes stand on each other: a snapshot on a cached thin pool on RAID, and then some.
const DEPTH_MAX: usize = 16;

/// A volume group, as one copy of its metadata describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its name. Untrusted text, of the characters that LVM2 allows.
    pub name: String,
    /// Its identifier.
    pub id: String,
    /// The number of the change that these metadata are of.
    pub sequence: u64,
    /// The unit of allocation.
    pub extent_bytes: u64,
    /// Its physical volumes.
    pub members: Vec<Member>,
    /// Its logical volumes but those that are only parts of others, in the order of the text.
    pub volumes: Vec<LogicalVolume>,
    /// Why none of it is to be relied on, if so.
    pub doubt: Option<String>,
}

/// A physical volume of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its identifier.
    pub id: String,
    /// Where its first extent begins.
    pub extents_at: VolumeOffset,
    /// How many extents it has.
    pub extent_count: u64,
    /// How long the physical volume is.
    pub len_bytes: u64,
}

/// A logical volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogicalVolume {
    /// Its name within the group.
    pub name: String,
    /// How many extents long it is.
    pub extent_count: u64,
    /// Where it lies.
    pub layout: Layout,
}

/// Where a logical volume lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Layout {
    /// One segment behind the other.
    Segments(Vec<Segment>),
    /// It is more than that, for this reason; these extents belong to it.
    Other(String, Vec<Area>),
}

/// A part of a logical volume that lies in one run, or in stripes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// How many extents of the logical volume it is.
    pub extent_count: u64,
    /// How much goes to one area before the next one's turn comes. Divides an extent evenly.
    pub stripe_bytes: u64,
    /// One for a linear segment; else each has an equal part of the extents.
    pub areas: Vec<Area>,
}

/// Consecutive extents of a physical volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Area {
    /// Which of [`Group::members`].
    pub member: usize,
    /// The first extent.
    pub first: u64,
    /// How many.
    pub count: u64,
}

impl Group {
    /// Where an area lies on its physical volume.
    pub fn span_of(&self, area: Area) -> VolumeSpan {
        let start = self.members[area.member].extents_at.plus(area.first * self.extent_bytes);
        Span::new(start, area.count * self.extent_bytes)
    }

    /// The extents that belong to a logical volume.
    pub fn areas(&self) -> impl Iterator<Item = Area> {
        self.volumes.iter().flat_map(|volume| volume.layout.areas())
    }

    /// Bytes of all extents.
    pub fn size_bytes(&self) -> u64 {
        self.members.iter().map(|member| member.extent_count).sum::<u64>() * self.extent_bytes
    }

    /// Bytes of the extents that no logical volume has.
    pub fn free_bytes(&self) -> u64 {
        self.size_bytes() - self.areas().map(|area| area.count).sum::<u64>() * self.extent_bytes
    }
}

impl Layout {
    /// The extents, in no order.
    pub fn areas(&self) -> Vec<Area> {
        match self {
            Self::Segments(segments) => segments.iter().flat_map(|it| it.areas.iter().copied()).collect(),
            Self::Other(_, areas) => areas.clone(),
        }
    }
}

/// Reads the group of a text.
pub(super) fn read(text: &Section) -> Result<Group> {
    let contents = Reader { section: text, name: "the text" };
    let (found, version) = (contents.text("contents")?, contents.number("version")?);
    if found != CONTENTS || version != 1 {
        let kind = format!("{found}, version {version}");
        return Err(Error::unsupported("LVM2 metadata").field("contents", kind, CONTENTS));
    }
    let [(name, section)] = text.sections.as_slice() else {
        return Err(Error::corrupt(missing("the text", "volume group")));
    };
    let reader = Reader { section, name };
    let extent_bytes = reader.size("extent_size")?;
    if extent_bytes == 0 {
        return Err(out_of_range(name, "extent_size", 0));
    }
    let (names, members) = members(&reader, extent_bytes)?;
    let raw = raw_volumes(&reader, &names, &members, extent_bytes)?;
    check_disjoint(&raw)?;
    let group = Group {
        name: name.clone(),
        id: reader.text("id")?.to_owned(),
        sequence: reader.number("seqno")?,
        extent_bytes,
        members,
        volumes: top_volumes(raw),
        doubt: group_doubt(&reader),
    };
    Ok(group)
}

/// What speaks against relying on the group: whatever is not said of groups in their everyday state.
fn group_doubt(reader: &Reader<'_>) -> Option<String> {
    let unknown = reader.words_but("status", &["RESIZEABLE", "READ", "WRITE"]);
    let flags = reader.words_but("flags", &[]);
    let members = reader.section.section("physical_volumes").into_iter().flat_map(|it| &it.sections);
    let of_members = members.flat_map(|(name, section)| {
        let reader = Reader { section, name };
        [reader.words_but("status", &["ALLOCATABLE"]), reader.words_but("flags", &[])].concat()
    });
    let mut all = unknown.into_iter().chain(flags).chain(of_members);
    all.next().map(|word| format!("its volume group is in the state {word}"))
}

/// The physical volumes, and by which names segments call them.
fn members(group: &Reader<'_>, extent_bytes: u64) -> Result<(BTreeMap<String, usize>, Vec<Member>)> {
    let (mut names, mut members) = (BTreeMap::new(), Vec::new());
    for (name, section) in &group.inner("physical_volumes")?.sections {
        let reader = Reader { section, name };
        let (extents_at, extent_count) = (reader.size("pe_start")?, reader.number("pe_count")?);
        let end = extent_count.checked_mul(extent_bytes).and_then(|bytes| bytes.checked_add(extents_at));
        let len_bytes = reader.size("dev_size")?;
        if end.is_none_or(|end| end > len_bytes) {
            return Err(out_of_range(name, "pe_count", extent_count));
        }
        names.insert(name.clone(), members.len());
        let id = reader.text("id")?.to_owned();
        members.push(Member { id, extents_at: VolumeOffset::new(extents_at), extent_count, len_bytes });
    }
    let sum = members.iter().try_fold(0_u64, |sum, member: &Member| sum.checked_add(member.extent_count));
    if sum.and_then(|sum| sum.checked_mul(extent_bytes)).is_none() {
        return Err(out_of_range(group.name, "pe_count", u64::MAX));
    }
    Ok((names, members))
}

/// A logical volume as it is written.
struct RawVolume {
    name: String,
    is_visible: bool,
    extent_count: u64,
    /// Those that lie on physical volumes.
    segments: Vec<Segment>,
    /// Why these are not all that there is to it.
    reason: Option<String>,
    /// Logical volumes that it names.
    uses: Vec<String>,
}

fn raw_volumes(
    group: &Reader<'_>,
    members: &BTreeMap<String, usize>,
    of: &[Member],
    extent_bytes: u64,
) -> Result<Vec<RawVolume>> {
    let none = Section::default();
    let all = group.section.section("logical_volumes").unwrap_or(&none);
    let names: Vec<_> = all.sections.iter().map(|(name, _)| name.as_str()).collect();
    let mut volumes = Vec::new();
    for (name, section) in &all.sections {
        let reader = Reader { section, name };
        let mut volume = RawVolume {
            name: name.clone(),
            is_visible: reader.words("status").iter().any(|word| word == "VISIBLE"),
            extent_count: 0,
            segments: Vec::new(),
            reason: state_of(&reader),
            uses: Vec::new(),
        };
        for number in 1..=reader.number("segment_count")?.min(COUNT_MAX as u64) {
            let segment = Reader { section: reader.inner(&format!("segment{number}"))?, name };
            if segment.number("start_extent")? != volume.extent_count {
                return Err(Error::corrupt(Corrupt::Segments(name.clone())));
            }
            volume.uses.extend(segment.names_of(&names));
            add_segment(&mut volume, &segment, members, of, extent_bytes)?;
        }
        volumes.push(volume);
    }
    Ok(volumes)
}

/// Why a logical volume is more than its segments, as far as its state tells.
fn state_of(volume: &Reader<'_>) -> Option<String> {
    let status = volume.words_but("status", &["READ", "WRITE", "VISIBLE"]);
    let flags = volume.words_but("flags", &["ACTIVATION_SKIP"]);
    let is_hidden = !volume.words("status").iter().any(|word| word == "VISIBLE");
    let odd = status.into_iter().chain(flags).next().map(|word| format!("it is in the state {word}"));
    odd.or_else(|| is_hidden.then(|| "it is hidden, a part of LVM2 itself".into()))
}

fn add_segment(
    volume: &mut RawVolume,
    segment: &Reader<'_>,
    members: &BTreeMap<String, usize>,
    of: &[Member],
    extent_bytes: u64,
) -> Result<()> {
    let extent_count = segment.number("extent_count")?;
    volume.extent_count = volume
        .extent_count
        .checked_add(extent_count)
        .filter(|count| count.checked_mul(extent_bytes).is_some())
        .ok_or_else(|| out_of_range(segment.name, "extent_count", extent_count))?;
    let kind = segment.text("type")?;
    let striped = kind == "striped";
    if !striped {
        volume.reason = Some(format!("its kind is {kind}, which is not understood"));
    }
    let starts = segment.areas(members)?;
    if starts.is_empty() {
        // Its data are those of other logical volumes.
        volume.reason.get_or_insert_with(|| "it stands on other logical volumes".into());
        return Ok(());
    }
    // A mirror's areas each have all of it.
    let count = match kind {
        "striped" if is_whole(segment, &starts, extent_count)? => extent_count / starts.len() as u64,
        "mirror" => extent_count,
        _ => {
            let what = format!("LVM2 segment of the kind {kind} on {} physical volumes", starts.len());
            return Err(Error::unsupported(what));
        }
    };
    let stripe_bytes = match (striped, starts.len()) {
        (true, 2..) => segment.size("stripe_size")?,
        _ => extent_bytes,
    };
    if stripe_bytes == 0 || !extent_bytes.is_multiple_of(stripe_bytes) {
        return Err(out_of_range(segment.name, "stripe_size", stripe_bytes / SECTOR_BYTES));
    }
    let areas: Vec<_> = starts.into_iter().map(|(member, first)| Area { member, first, count }).collect();
    for area in &areas {
        let end = area.first.checked_add(area.count);
        if end.is_none_or(|end| end > of[area.member].extent_count) {
            return Err(out_of_range(segment.name, "extents", area.first));
        }
    }
    volume.segments.push(Segment { extent_count, stripe_bytes, areas });
    Ok(())
}

/// Whether a striped segment has as many areas as it says, all of them on physical volumes and equally long.
fn is_whole(segment: &Reader<'_>, starts: &[(usize, u64)], extent_count: u64) -> Result<bool> {
    let count = starts.len() as u64;
    Ok(segment.number("stripe_count")? == count && extent_count.is_multiple_of(count))
}

fn check_disjoint(volumes: &[RawVolume]) -> Result<()> {
    let areas = volumes.iter().flat_map(|volume| {
        let areas = volume.segments.iter().flat_map(|segment| segment.areas.iter());
        areas.map(|area| (*area, volume.name.as_str()))
    });
    let mut areas: Vec<_> = areas.filter(|(area, _)| area.count > 0).collect();
    areas.sort_unstable();
    for pair in areas.windows(2) {
        let [(before, _), (after, name)] = pair else { continue };
        if before.member == after.member && before.first + before.count > after.first {
            return Err(Error::corrupt(Corrupt::Overlap((*name).to_owned())));
        }
    }
    Ok(())
}

/// Gives the extents of those that are only parts to whom they are parts of. One that others stand on, a snapshot's origin for
/// instance, is more than its own file system: what that calls free others may need.
fn top_volumes(raw: Vec<RawVolume>) -> Vec<LogicalVolume> {
    let mut users: BTreeMap<&str, &str> = BTreeMap::new();
    for volume in &raw {
        for used in &volume.uses {
            users.entry(used).or_insert(&volume.name);
        }
    }
    let is_top: BTreeMap<&str, bool> = raw
        .iter()
        .map(|volume| (volume.name.as_str(), volume.is_visible || !users.contains_key(volume.name.as_str())))
        .collect();
    let top_of = |name: &str| {
        let mut name = name.to_owned();
        for _ in 0..DEPTH_MAX {
            match users.get(name.as_str()) {
                Some(user) if !is_top[name.as_str()] => name = (*user).to_owned(),
                _ => break,
            }
        }
        name
    };
    let mut parts: BTreeMap<String, Vec<Area>> = BTreeMap::new();
    for volume in raw.iter().filter(|volume| !is_top[volume.name.as_str()]) {
        let areas = volume.segments.iter().flat_map(|segment| segment.areas.iter().copied());
        parts.entry(top_of(&volume.name)).or_default().extend(areas);
    }
    let mut volumes: Vec<LogicalVolume> = Vec::new();
    for volume in raw.iter().filter(|volume| is_top[volume.name.as_str()]) {
        let user = users.get(volume.name.as_str());
        let reason = volume.reason.clone();
        let reason = reason.or_else(|| user.map(|user| format!("the logical volume {user} stands on it")));
        let layout = match reason {
            None => Layout::Segments(volume.segments.clone()),
            Some(reason) => {
                let own = volume.segments.iter().flat_map(|segment| segment.areas.iter().copied());
                let of_parts = parts.remove(&volume.name).unwrap_or_default();
                Layout::Other(reason, own.chain(of_parts).collect())
            }
        };
        volumes.push(LogicalVolume { name: volume.name.clone(), extent_count: volume.extent_count, layout });
    }
    // Parts in a circle, which belong to nobody that is listed.
    for (name, areas) in parts {
        let reason = "nothing leads to what it is a part of".to_owned();
        let extent_count = areas.iter().map(|area| area.count).sum();
        volumes.push(LogicalVolume { name, extent_count, layout: Layout::Other(reason, areas) });
    }
    volumes
}
