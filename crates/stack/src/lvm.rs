//! Volume groups of LVM2, put together from the physical volumes of the disk and of those that were named with it.
//!
//! Invariants:
//! - a mirrored logical volume counts as one only if what is written beside its legs says that they are in sync;
//! - a group counts only if every physical volume that it lists is on the disks, once, and as long as it says;
//! - a physical volume that shows anything else besides its label is a doubt: one of the two is a leftover.

use std::collections::BTreeMap;

use block::{ErrorKind, ReadAt, Result};
use extent::{ExtentSet, Span, Volume as VolumeSpace};
use filesystem::{Facts, Scope, State, holder};
use volume::lvm::{self, Group, Layout, LogicalVolume, Mirror, PhysicalVolume};

use crate::member::Member;
use crate::placement::{Column, DiskIndex, Placement};
use crate::view::Disks;
use crate::{Volume, source_of, volume_of};

/// What the holder of a physical volume is called.
pub(crate) const LVM2: &str = "lvm2";

/// A volume group that was put together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeGroup {
    /// Its name. Untrusted text.
    pub name: String,
    /// The unit of allocation.
    pub extent_bytes: u64,
    /// Bytes of all extents.
    pub size_bytes: u64,
    /// Bytes of the extents that no logical volume has.
    pub free_bytes: u64,
}

/// What there is of groups.
pub(crate) struct Assembled {
    /// Those of which a part is on the disk.
    pub(crate) groups: Vec<VolumeGroup>,
    /// Logical volumes that lie on other disks alone.
    pub(crate) elsewhere: Vec<Volume>,
}

/// A physical volume that was found.
struct Found {
    /// Which of the disk's volumes it is; `None` if it is on another disk.
    volume: Option<usize>,
    /// Where it lies.
    place: Column,
    physical: PhysicalVolume,
}

/// A volume of another disk.
pub(crate) struct Elsewhere {
    pub(crate) disk: DiskIndex,
    pub(crate) volume: Volume,
    /// Whether LVM2 alone holds it.
    pub(crate) is_physical: bool,
}

/// Puts the groups together. `candidates` are its volumes that LVM2 alone holds, `elsewhere` the
/// volumes of the other disks. The file systems of the former become what is known of them, and the logical volumes come behind all others.
pub(crate) fn assemble(
    disks: &Disks,
    volumes: &mut Vec<Volume>,
    candidates: &[usize],
    elsewhere: &[Elsewhere],
) -> Result<Assembled> {
    let mut found = Vec::new();
    for &index in candidates {
        match read(&volumes[index]) {
            Ok(physical) => {
                let place = Column { disk: DiskIndex::OWN, span: volumes[index].place.first() };
                found.push(Found { volume: Some(index), place, physical });
            }
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            Err(error) => doubt(&mut volumes[index], &error.to_string()),
        }
    }
    for Elsewhere { disk, volume, .. } in elsewhere.iter().filter(|it| it.is_physical) {
        let place = Column { disk: *disk, span: volume.place.first() };
        match read(volume) {
            Ok(physical) => found.push(Found { volume: None, place, physical }),
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            // It is missing where it is needed.
            Err(_) => {}
        }
    }
    let newest = newest(&found, volumes);
    let mut assembled = Assembled { groups: Vec::new(), elsewhere: Vec::new() };
    let claims = newest.iter().flat_map(|group| group.members.iter().map(|member| member.id.as_str()));
    let claims: Vec<_> = claims.collect();
    for group in &newest {
        match members(group, &found, &claims) {
            Ok(members) => {
                add(disks, volumes, &mut assembled.elsewhere, group, &members)?;
                let is_here = found.iter().any(|it| it.volume.is_some() && lists(group, it));
                assembled.groups.extend(is_here.then(|| VolumeGroup {
                    name: group.name.clone(),
                    extent_bytes: group.extent_bytes,
                    size_bytes: group.size_bytes(),
                    free_bytes: group.free_bytes(),
                }));
            }
            Err(reason) => {
                let listed = found.iter().filter(|it| lists(group, it)).filter_map(|it| it.volume);
                listed.for_each(|volume| doubt(&mut volumes[volume], &reason));
            }
        }
    }
    for it in &found {
        let Some(volume) = it.volume else { continue };
        let is_known = volumes[volume].filesystem.as_ref().is_some_and(|filesystem| {
            filesystem.facts().state == State::Clean || it.physical.group.is_some()
        });
        if !is_known {
            doubt(&mut volumes[volume], "it has no copy of the metadata of its volume group");
        }
    }
    Ok(assembled)
}

/// Whether a physical volume is one of those of the group.
fn lists(group: &Group, found: &Found) -> bool {
    group.members.iter().any(|member| member.id == found.physical.id)
}

/// The physical volume, unless there is something else in the same place.
fn read(volume: &Volume) -> Result<PhysicalVolume> {
    if let Some(other) = filesystem::open_contents(&volume.source)? {
        let reason = format!("it also has a superblock of {}", other.facts().filesystem);
        return Err(block::Error::unsupported(reason));
    }
    lvm::read(&*volume.source)
}

fn doubt(volume: &mut Volume, reason: &str) {
    let reason = format!("is an LVM2 physical volume that is taken whole: {reason}");
    if let Some(filesystem) = &volume.filesystem {
        volume.filesystem = Some(filesystem::in_doubt(&**filesystem, reason));
    }
}

/// The newest copy of each group's metadata. Where copies of the same age differ, all that bear them are in doubt.
fn newest(found: &[Found], volumes: &mut [Volume]) -> Vec<Group> {
    let mut groups: BTreeMap<String, Option<Group>> = BTreeMap::new();
    for group in found.iter().filter_map(|it| it.physical.group.as_ref()) {
        let known = groups.entry(group.id.clone()).or_insert_with(|| Some(group.clone()));
        let newer =
            known.take().and_then(|known| lvm::newer(Some(known), Some(group.clone())).ok().flatten());
        *known = newer;
    }
    for it in found {
        let id = it.physical.group.as_ref().map(|group| &group.id);
        if let (Some(volume), Some(None)) = (it.volume, id.map(|id| &groups[id])) {
            doubt(&mut volumes[volume], "copies of the metadata of its volume group differ");
        }
    }
    groups.into_values().flatten().collect()
}

/// Which of those that were found each member is, or why the group is not to be relied on.
fn members<'a>(group: &Group, found: &'a [Found], claims: &[&str]) -> Result<Vec<&'a Found>, String> {
    if let Some(doubt) = &group.doubt {
        return Err(doubt.clone());
    }
    let member = |member: &lvm::Member| {
        let mut with_id = found.iter().filter(|it| it.physical.id == member.id);
        let name = &group.name;
        let Some(first) = with_id.next() else {
            return Err(format!(
                "a part of its volume group {name} is not on this disk, nor on one named by --with"
            ));
        };
        if with_id.next().is_some() {
            return Err("another physical volume has the same identifier".to_owned());
        }
        let is_other = first.physical.group.as_ref().is_some_and(|other| other.id != group.id);
        let is_claimed_twice = claims.iter().filter(|id| **id == member.id).count() > 1;
        if is_other || is_claimed_twice {
            return Err("two volume groups claim it".to_owned());
        }
        let len_bytes = first.place.span.len_bytes();
        if member.len_bytes > len_bytes || first.physical.len_bytes > len_bytes {
            return Err(format!("it is to have {} bytes, and has {len_bytes}", member.len_bytes));
        }
        Ok(first)
    };
    group.members.iter().map(member).collect()
}

/// Puts logical volumes behind `volumes`; those that are not on the disk behind `elsewhere`.
fn add(
    disks: &Disks,
    volumes: &mut Vec<Volume>,
    elsewhere: &mut Vec<Volume>,
    group: &Group,
    members: &[&Found],
) -> Result<()> {
    let on_disk = |area: lvm::Area| {
        let (span, Column { disk, span: whole }) = (group.span_of(area), members[area.member].place);
        Column { disk, span: Span::new(whole.start().plus(span.start().get()), span.len_bytes()) }
    };
    let logical = group.volumes.iter().map(|logical| logical_volume(disks, group, logical, &on_disk));
    let logical = logical.collect::<Result<Vec<_>>>()?;
    for (member, found) in members.iter().enumerate() {
        let Some(index) = found.volume else { continue };
        let volume = &mut volumes[index];
        let areas: ExtentSet<VolumeSpace> =
            group.areas().filter(|area| area.member == member).map(|area| group.span_of(area)).collect();
        let count = group.members[member].extent_count;
        let all = group.span_of(lvm::Area { member, first: 0, count });
        let free = [all].into_iter().collect::<ExtentSet<_>>().subtract(&areas);
        let taken_bytes = taken_bytes(&logical, found.place);
        if let Some(held) = volume.filesystem.take() {
            let facts = facts_of(held.facts(), group, taken_bytes, free.total_bytes());
            volume.filesystem = Some(Member::boxed(facts, free));
        }
    }
    for volume in logical {
        if volume.place.is_on_disk() { volumes.push(volume) } else { elsewhere.push(volume) }
    }
    Ok(())
}

/// How much of a physical volume is logical volumes' own: all of their extents but those that say whether legs are in sync.
fn taken_bytes(logical: &[Volume], physical: Column) -> u64 {
    let columns = logical.iter().flat_map(|volume| volume.place.pieces()).flat_map(|piece| &piece.columns);
    let own = columns.filter(|column| column.disk == physical.disk);
    own.filter_map(|column| column.span.intersect(&physical.span)).map(|span| span.len_bytes()).sum()
}

fn logical_volume(
    disks: &Disks,
    group: &Group,
    logical: &LogicalVolume,
    on_disk: &impl Fn(lvm::Area) -> Column,
) -> Result<Volume> {
    let name = Some(format!("{}/{}", group.name, logical.name));
    let spans = |areas: &[lvm::Area]| areas.iter().map(|area| on_disk(*area)).collect::<Vec<_>>();
    let placed = |segments: &[lvm::Segment]| {
        Placement::of_pieces(segments.iter().map(|it| (it.stripe_bytes, spans(&it.areas))))
    };
    let whole = |reason: &str| {
        let pieces = spans(&logical.layout.areas()).into_iter();
        let place = Placement::of_pieces(pieces.map(|column| (column.span.len_bytes(), vec![column])));
        let source = source_of(disks, &place);
        let doubt = Some(format!("it is a logical volume of which more must be known: {reason}"));
        Volume { name: name.clone(), doubt, ..Volume::unknown(place, source) }
    };
    let place = match &logical.layout {
        Layout::Segments(segments) => placed(segments),
        Layout::Mirrored(mirror) => match doubt_of(disks, mirror, &placed)? {
            None => Placement::of_legs(mirror.legs.iter().map(|leg| placed(leg)).collect()),
            Some(reason) => return Ok(whole(&reason)),
        },
        Layout::Other(reason, _) => return Ok(whole(reason)),
    };
    let source = source_of(disks, &place);
    let volume =
        volume_of(place, source, None, |source| match holder::find(source, Scope::Partition)?.first() {
            Some(holder) => holder::hold(holder, source).map(Some),
            None => filesystem::open_contents(source),
        })?;
    Ok(Volume { name, ..volume })
}

/// Why the legs of a mirror may differ.
fn doubt_of(
    disks: &Disks,
    mirror: &Mirror,
    placed: &impl Fn(&[lvm::Segment]) -> Placement,
) -> Result<Option<String>> {
    let logs: Vec<_> = mirror.log.places().iter().map(|log| source_of(disks, &placed(log))).collect();
    let contents: Vec<&dyn ReadAt<VolumeSpace>> = logs.iter().map(|log| &**log as _).collect();
    let len_bytes = mirror.legs.first().map_or(0, |leg| placed(leg).len_bytes());
    let doubt = match lvm::doubt(&mirror.log, &contents, len_bytes) {
        Err(error) if error.kind() != ErrorKind::Io => Some(error.to_string()),
        doubt => doubt?,
    };
    Ok(doubt.map(|doubt| format!("its kind is {}, and its legs may differ: {doubt}", mirror.kind)))
}

/// What is known of a physical volume whose group is known: what lies on it are its metadata, logical volumes, and free extents.
fn facts_of(held: &Facts, group: &Group, taken_bytes: u64, free_bytes: u64) -> Facts {
    Facts {
        cluster_bytes: Some(group.extent_bytes),
        // Logical volumes have their own.
        size_bytes: held.size_bytes.saturating_sub(taken_bytes),
        free_bytes: Some(free_bytes),
        state: State::Clean,
        details: vec![("volume group", group.name.clone())],
        ..held.clone()
    }
}

/// Whether LVM2 is all that holds a volume.
pub(crate) fn is_candidate(holders: &[holder::Holder]) -> bool {
    matches!(holders, [only] if only.name() == LVM2)
}
