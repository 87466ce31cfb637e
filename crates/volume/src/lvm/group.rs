//! What the metadata of a volume group mean: its physical volumes, its logical volumes, and where each of these lies.
//!
//! Invariants: what lies where is disjoint, and within the physical volumes; a logical volume whose kind is not understood in
//! full has its extents all the same, so that nobody takes them for free.
//!
//! Source: LVM2, `lib/format_text/import_vsn1.c`, `lib/format_text/flags.c`.

use std::collections::BTreeMap;

use block::{Error, Result};
use extent::{Span, VolumeOffset, VolumeSpan};

use super::mirror::{Mirror, Named};
use super::reader::{Reader, missing, out_of_range};
use super::segment::{Area, Member, Segment};
use super::text::Section;
use super::written::{RawVolume, check_disjoint, raw_volumes};

/// Of all texts that LVM2 writes.
const CONTENTS: &str = "Text Format Volume Group";
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
    /// Each of its legs has all of it, as long as they are in sync.
    Mirrored(Mirror),
    /// It is more than that, for this reason; these extents belong to it.
    Other(String, Vec<Area>),
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
            Self::Mirrored(mirror) => mirror.areas(),
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
        volumes: top_volumes(&raw),
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

/// Who stands on whom.
struct Users<'a> {
    raw: BTreeMap<&'a str, &'a RawVolume>,
    /// By whom one is named first, and how often it is named.
    of: BTreeMap<&'a str, (&'a str, usize)>,
}

impl<'a> Users<'a> {
    fn new(raw: &'a [RawVolume]) -> Self {
        let mut of: BTreeMap<&str, (&str, usize)> = BTreeMap::new();
        for (volume, used) in raw.iter().flat_map(|volume| volume.uses.iter().map(move |used| (volume, used)))
        {
            of.entry(used).or_insert((&volume.name, 0)).1 += 1;
        }
        Self { raw: raw.iter().map(|volume| (volume.name.as_str(), volume)).collect(), of }
    }

    fn first(&self, name: &str) -> Option<&'a str> {
        self.of.get(name).map(|(user, _)| *user)
    }

    /// Whether it is listed: visible, or a part of nothing.
    fn is_top(&self, volume: &RawVolume) -> bool {
        volume.is_visible || !self.of.contains_key(volume.name.as_str())
    }

    /// What is listed of what a logical volume is a part of.
    fn top_of(&self, name: &'a str) -> &'a str {
        let mut name = name;
        for _ in 0..DEPTH_MAX {
            match self.first(name) {
                Some(user) if !self.is_top(self.raw[name]) => name = user,
                _ => break,
            }
        }
        name
    }

    /// Where a part of a mirror lies, if it is that part alone and as long as the mirror, or its log.
    fn part(&self, mirror: &RawVolume, name: &str, is_leg: bool) -> Option<Vec<Segment>> {
        let part = self.raw.get(name)?;
        let is_plain = part.reason.is_none() && part.mirror.is_none() && part.uses.is_empty();
        let is_of_one = self.of.get(name) == Some(&(mirror.name.as_str(), 1));
        let is_whole = !is_leg || part.extent_count == mirror.extent_count;
        let is_part = is_plain && is_of_one && is_whole && !self.is_top(part) && part.is_writable;
        is_part.then(|| part.segments.clone())
    }
}

/// Gives the extents of those that are only parts to whom they are parts of. One that others stand on, a snapshot's origin for
/// instance, is more than its own file system: what that calls free others may need.
fn top_volumes(raw: &[RawVolume]) -> Vec<LogicalVolume> {
    let users = Users::new(raw);
    let mut parts: BTreeMap<&str, Vec<Area>> = BTreeMap::new();
    for volume in raw.iter().filter(|volume| !users.is_top(volume)) {
        parts.entry(users.top_of(&volume.name)).or_default().extend(volume.areas());
    }
    let mut volumes: Vec<LogicalVolume> = Vec::new();
    for volume in raw.iter().filter(|volume| users.is_top(volume)) {
        let of_parts = parts.remove(volume.name.as_str()).unwrap_or_default();
        let layout = layout_of(volume, &users, of_parts);
        volumes.push(LogicalVolume { name: volume.name.clone(), extent_count: volume.extent_count, layout });
    }
    // Parts in a circle, which belong to nobody that is listed.
    for (name, areas) in parts {
        let reason = "nothing leads to what it is a part of".to_owned();
        let extent_count = areas.iter().map(|area| area.count).sum();
        let layout = Layout::Other(reason, areas);
        volumes.push(LogicalVolume { name: name.to_owned(), extent_count, layout });
    }
    volumes
}

/// The layout of what is listed, `of_parts` being the extents of its parts.
fn layout_of(volume: &RawVolume, users: &Users<'_>, of_parts: Vec<Area>) -> Layout {
    let hidden = || (!volume.is_visible).then(|| "it is hidden, a part of LVM2 itself".to_owned());
    let user = || users.first(&volume.name).map(|user| format!("the logical volume {user} stands on it"));
    let reason = volume.reason.clone().or_else(hidden).or_else(user);
    let other =
        |reason: String| Layout::Other(reason, volume.areas().chain(of_parts.iter().copied()).collect());
    match (reason, &volume.mirror) {
        (Some(reason), _) => other(reason),
        (None, None) if of_parts.is_empty() => Layout::Segments(volume.segments.clone()),
        (None, None) => other("it stands on other logical volumes".into()),
        (None, Some(named)) => match mirror_of(volume, named, users, &of_parts) {
            Some(mirror) => Layout::Mirrored(mirror),
            None => other("it is a mirror whose parts are not what they should be".into()),
        },
    }
}

/// The mirror, if its parts have all that belongs to it.
fn mirror_of(volume: &RawVolume, named: &Named, users: &Users<'_>, of_parts: &[Area]) -> Option<Mirror> {
    let mirror = named.placed(|name, is_leg| users.part(volume, name, is_leg))?;
    let (mut found, mut all) = (mirror.areas(), of_parts.to_vec());
    found.sort_unstable();
    all.sort_unstable();
    (found == all).then_some(mirror)
}
