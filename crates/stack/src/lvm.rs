//! Volume groups of LVM2, put together from the physical volumes of the disk and of those that were named with it.
//!
//! Invariants:
//! - a group counts only if every physical volume that it lists is on the disks, once, and as long as it says;
//! - a physical volume that shows anything else besides its label is a doubt: one of the two is a leftover.

use std::collections::BTreeMap;
use std::sync::Arc;

use block::{ErrorKind, Result};
use extent::{Extent, ExtentSet, Span, Volume as VolumeSpace, VolumeSpan};
use filesystem::{Check, Facts, FileSystem, FileVisitor, Scope, State, Use, UsedMap, holder};
use volume::lvm::{self, Group, Layout, LogicalVolume, PhysicalVolume};

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

/// A physical volume that was found.
struct Found {
    /// Which of the disk's volumes it is; `None` if it is on another disk.
    volume: Option<usize>,
    /// Where it lies.
    place: Column,
    physical: PhysicalVolume,
}

/// A volume of another disk that LVM2 alone holds.
pub(crate) struct Elsewhere {
    pub(crate) disk: DiskIndex,
    pub(crate) volume: Volume,
}

/// Puts the groups together of which a part is on the disk. `candidates` are its volumes that LVM2 alone holds, `elsewhere` those of the
/// other disks. The file systems of the former become what is known of them, and the logical volumes come behind all others.
pub(crate) fn assemble(
    disks: &Disks,
    volumes: &mut Vec<Volume>,
    candidates: &[usize],
    elsewhere: &[Elsewhere],
) -> Result<Vec<VolumeGroup>> {
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
    for Elsewhere { disk, volume } in elsewhere {
        let place = Column { disk: *disk, span: volume.place.first() };
        match read(volume) {
            Ok(physical) => found.push(Found { volume: None, place, physical }),
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            // It is missing where it is needed.
            Err(_) => {}
        }
    }
    let (newest, mut groups) = (newest(&found, volumes), Vec::new());
    let claims = newest.iter().flat_map(|group| group.members.iter().map(|member| member.id.as_str()));
    let claims: Vec<_> = claims.collect();
    for group in &newest {
        let is_here = |it: &Found| it.volume.is_some() && lists(group, it);
        if !found.iter().any(is_here) {
            continue;
        }
        match members(group, &found, &claims) {
            Ok(members) => {
                add(disks, volumes, group, &members)?;
                groups.push(VolumeGroup {
                    name: group.name.clone(),
                    extent_bytes: group.extent_bytes,
                    size_bytes: group.size_bytes(),
                    free_bytes: group.free_bytes(),
                });
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
    Ok(groups)
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

fn add(disks: &Disks, volumes: &mut Vec<Volume>, group: &Group, members: &[&Found]) -> Result<()> {
    for (member, found) in members.iter().enumerate() {
        let Some(index) = found.volume else { continue };
        let volume = &mut volumes[index];
        let areas: ExtentSet<VolumeSpace> =
            group.areas().filter(|area| area.member == member).map(|area| group.span_of(area)).collect();
        let count = group.members[member].extent_count;
        let all = group.span_of(lvm::Area { member, first: 0, count });
        let free = [all].into_iter().collect::<ExtentSet<_>>().subtract(&areas);
        if let Some(held) = volume.filesystem.take() {
            volume.filesystem = Some(Box::new(Physical::new(held.facts(), group, areas.total_bytes(), free)));
        }
    }
    let on_disk = |area: lvm::Area| {
        let (span, Column { disk, span: whole }) = (group.span_of(area), members[area.member].place);
        Column { disk, span: Span::new(whole.start().plus(span.start().get()), span.len_bytes()) }
    };
    for logical in &group.volumes {
        let volume = logical_volume(disks, group, logical, &on_disk)?;
        volumes.extend(volume.place.is_on_disk().then_some(volume));
    }
    Ok(())
}

fn logical_volume(
    disks: &Disks,
    group: &Group,
    logical: &LogicalVolume,
    on_disk: &impl Fn(lvm::Area) -> Column,
) -> Result<Volume> {
    let name = Some(format!("{}/{}", group.name, logical.name));
    let spans = |areas: &[lvm::Area]| areas.iter().map(|area| on_disk(*area)).collect::<Vec<_>>();
    match &logical.layout {
        Layout::Segments(segments) => {
            let pieces = segments.iter().map(|segment| (segment.stripe_bytes, spans(&segment.areas)));
            let place = Placement::of_pieces(pieces);
            let source = source_of(disks, place.clone());
            let volume = volume_of(place, source, None, |source| {
                match holder::find(source, Scope::Partition)?.first() {
                    Some(holder) => holder::hold(holder, source).map(Some),
                    None => filesystem::open_contents(source),
                }
            })?;
            Ok(Volume { name, ..volume })
        }
        Layout::Other(reason, areas) => {
            let pieces = spans(areas).into_iter().map(|column| (column.span.len_bytes(), vec![column]));
            let place = Placement::of_pieces(pieces);
            let source = source_of(disks, place.clone());
            let doubt = Some(format!("it is a logical volume of which more must be known: {reason}"));
            Ok(Volume { place, source, partition: None, name, filesystem: None, doubt })
        }
    }
}

/// A physical volume whose group is known: what lies on it are its metadata, logical volumes, and free extents.
struct Physical {
    facts: Facts,
    free: Arc<ExtentSet<VolumeSpace>>,
}

impl Physical {
    fn new(held: &Facts, group: &Group, taken_bytes: u64, free: ExtentSet<VolumeSpace>) -> Self {
        let facts = Facts {
            cluster_bytes: Some(group.extent_bytes),
            // Logical volumes have their own.
            size_bytes: held.size_bytes.saturating_sub(taken_bytes),
            free_bytes: Some(free.total_bytes()),
            state: State::Clean,
            details: vec![("volume group", group.name.clone())],
            ..held.clone()
        };
        Self { facts, free: Arc::new(free) }
    }
}

impl FileSystem for Physical {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn used_map(&self, _check: Check) -> Result<Box<dyn UsedMap>> {
        Ok(Box::new(FreeExtents(self.free.clone())))
    }

    /// It has no files, and lacks none.
    fn scan_files(&self, _visitor: &mut dyn FileVisitor) -> Result<()> {
        Ok(())
    }

    fn each_free_span(&self, each: &mut dyn FnMut(VolumeSpan)) -> Result<()> {
        self.free.iter().for_each(each);
        Ok(())
    }
}

struct FreeExtents(Arc<ExtentSet<VolumeSpace>>);

impl UsedMap for FreeExtents {
    fn uses(&self, span: VolumeSpan) -> Result<Vec<Extent<VolumeSpace, Use>>> {
        let mut uses = Vec::new();
        let mut push = |span: VolumeSpan, state| {
            if !span.is_empty() {
                uses.push(Extent { span, state });
            }
        };
        let mut at = span.start();
        for free in self.0.within(span) {
            push(Span::between(at, free.start()), Use::Used);
            push(free, Use::Free);
            at = free.end();
        }
        push(Span::between(at, span.end()), Use::Used);
        Ok(uses)
    }
}

/// Whether LVM2 is all that holds a volume.
pub(crate) fn is_candidate(holders: &[holder::Holder]) -> bool {
    matches!(holders, [only] if only.name() == LVM2)
}
