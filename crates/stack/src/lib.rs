//! A disk from its host files to the guest's file systems, and the facts that planners need of it.
//!
//! Invariants:
//! - the facts of a window cover it exactly, in order;
//! - what holds a volume, or the whole disk, is asked for before what is on it;
//! - a volume's used map is believed only after it was checked in full, and only if no volume of the disk
//!   belongs to a hibernated guest; any doubt makes the volume whole, with the reason kept.
//!
//! Absent on purpose: operating-system code (the caller opens files), decisions about what to read.

mod arranged;
mod btrfs;
mod facts;
mod layers;
mod lvm;
mod member;
mod opened;
mod placement;
mod regions;
mod survey;
mod view;

use std::sync::Arc;

use block::{Cached, Disk, ErrorKind, ReadAt, Result};
use extent::{Span, VirtualOffset, VirtualSpan};
use filesystem::holder::{self, Holder};
use filesystem::{Check, FileSystem, Scope, Source, UsedMap};
use image::Chain;
use volume::{Partition, Scheme, Table};

pub use arranged::{Arranged, Arrangement};
pub use layers::{ImageRun, LayerFragments, Layers, Place};
use lvm::Elsewhere;
pub use lvm::VolumeGroup;
pub use opened::Volume;
use placement::DiskIndex;
pub use placement::Placement;
use regions::Region;
pub use survey::{FreeSpace, StreamFragments, Sum, Survey, Totals, VolumeSurvey, Waste};
use view::{Disks, Mirrored, VolumeView};

/// Memory for a volume's metadata pages.
const CACHE_BYTES_MAX: u64 = 8 << 20;

/// An open disk.
pub struct Stack {
    chain: Arc<Chain>,
    table: Table,
    volumes: Vec<Volume>,
    groups: Vec<VolumeGroup>,
    /// Which part of the disk is which part of which volume.
    regions: Vec<Region>,
    /// A volume on another disk of the guest says that this is hibernated.
    is_hibernated_elsewhere: bool,
}

/// The used maps of all volumes, or the reasons why there are none.
pub struct UsedMaps {
    by_volume: Vec<Mode>,
}

/// What becomes of the snapshots that volumes keep of themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShadowCopies {
    /// All that they need is kept.
    Kept,
    /// What only they need is as good as free.
    Dropped,
}

/// How a volume is to be taken.
pub enum Mode {
    /// By its used map, which was checked.
    UsedOnly(Box<dyn UsedMap>),
    /// Whole, for this reason.
    Whole(String),
}

impl Mode {
    /// Why it is taken whole, if it is.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::UsedOnly(_) => None,
            Self::Whole(reason) => Some(reason),
        }
    }
}

impl Stack {
    /// Reads the partition table and the volumes' superblocks. A disk whose contents cannot be read (encrypted
    /// as a whole) has no volumes.
    pub fn open(chain: Chain) -> Result<Self> {
        Self::open_with(chain, Vec::new())
    }

    /// The same where logical volumes and file systems may have parts on `others`. Of these nothing else is told.
    pub fn open_with(chain: Chain, others: Vec<Chain>) -> Result<Self> {
        let others: Vec<_> = others.into_iter().map(Arc::new).collect();
        let (mut stack, physical) = Self::open_alone(Arc::new(chain))?;
        let mut elsewhere = Vec::new();
        for (number, other) in others.iter().enumerate() {
            let disk = DiskIndex(number + 1);
            let (other, physical) = Self::open_alone(other.clone())?;
            stack.is_hibernated_elsewhere |= other.where_hibernated(None).is_some();
            let volumes = other.volumes.into_iter().enumerate();
            // What is on a disk whose table is in doubt is nothing to build on.
            elsewhere.extend(
                volumes.filter(|_| other.table.doubt.is_none()).map(|(index, volume)| Elsewhere {
                    disk,
                    volume,
                    is_physical: physical.contains(&index),
                }),
            );
        }
        let disks = Disks::new(stack.chain.clone(), others.into_iter());
        let assembled = lvm::assemble(&disks, &mut stack.volumes, &physical, &elsewhere)?;
        stack.groups = assembled.groups;
        stack.is_hibernated_elsewhere |= assembled.elsewhere.iter().any(Volume::is_hibernated);
        if stack.table.doubt.is_none() {
            btrfs::assemble(&disks, &mut stack.volumes, &elsewhere, &assembled.elsewhere)?;
        }
        stack.regions = regions::regions(&stack.volumes);
        Ok(stack)
    }

    fn of_volumes(chain: Arc<Chain>, table: Table, volumes: Vec<Volume>) -> Self {
        let (groups, regions) = (Vec::new(), Vec::new());
        Self { chain, table, volumes, groups, regions, is_hibernated_elsewhere: false }
    }

    /// Without volume groups, and which of the volumes are held by LVM2 alone.
    fn open_alone(chain: Arc<Chain>) -> Result<(Self, Vec<usize>)> {
        if chain.check_readable().is_err() {
            let table = no_table(chain.sector_bytes());
            return Ok((Self::of_volumes(chain, table, Vec::new()), Vec::new()));
        }
        let cached = Cached::new(chain.clone(), CACHE_BYTES_MAX);
        let table = volume::read(&cached, chain.sector_bytes())?;
        let (mut volumes, mut held, mut physical) = (Vec::new(), Vec::new(), Vec::new());
        for partition in &table.partitions {
            let (volume, holders) = open_volume(&chain, partition.span, Some(partition.clone()))?;
            physical.extend(lvm::is_candidate(&holders).then_some(volumes.len()));
            held.extend(holders.into_iter().map(|holder| (partition.span.start(), holder)));
            volumes.push(volume);
        }
        let mut stack = Self::of_volumes(chain, table, volumes);
        if let Some(is_physical) = stack.consider_the_whole_disk(&held)? {
            physical = if is_physical { vec![0] } else { Vec::new() };
        }
        Ok((stack, physical))
    }

    /// Joins in what the open logs of volumes name, where that is not done unless it is asked for.
    pub fn join_logs(&mut self) -> Result<()> {
        for volume in &mut self.volumes {
            let joined = volume.filesystem.as_ref().map(|filesystem| filesystem.log_joined()).transpose()?;
            if let Some(joined) = joined.flatten() {
                volume.filesystem = Some(joined);
            }
        }
        Ok(())
    }

    /// The container.
    pub fn chain(&self) -> &Arc<Chain> {
        &self.chain
    }

    /// The partition table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The volumes: partitions by start, behind them logical volumes, and behind these file systems of several devices.
    pub fn volumes(&self) -> &[Volume] {
        &self.volumes
    }

    /// The volume groups whose logical volumes are among the volumes.
    pub fn groups(&self) -> &[VolumeGroup] {
        &self.groups
    }

    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Why the disk has no volumes, if it has none.
    pub fn why_no_volume(&self) -> String {
        let reason = self.table.doubt.as_ref().map_or(String::new(), |doubt| format!(": {doubt}"));
        format!("no volume was found on the disk{reason}")
    }

    /// Where it is said that the guest is hibernated, if not by the volume `but`, counted from zero: then nothing of the disk may change.
    pub fn where_hibernated(&self, but: Option<usize>) -> Option<String> {
        let mut volumes = self.volumes.iter().enumerate();
        match volumes.position(|(index, volume)| Some(index) != but && volume.is_hibernated()) {
            Some(index) => Some(format!("see volume {}", index + 1)),
            None => self.is_hibernated_elsewhere.then(|| "see its disk that --with names".to_owned()),
        }
    }

    /// Reads and checks the used map of every volume.
    pub fn used_maps(&self, check: Check) -> Result<UsedMaps> {
        self.used_maps_for(check, ShadowCopies::Kept)
    }

    /// Reads and checks the used map of every volume, with or without what only its shadow copies need.
    pub fn used_maps_for(&self, check: Check, shadow_copies: ShadowCopies) -> Result<UsedMaps> {
        let mut by_volume = Vec::new();
        let mut hibernated = None;
        for (index, volume) in self.volumes.iter().enumerate() {
            let (mode, is_hibernated) = volume.mode(check, shadow_copies)?;
            by_volume.push(mode);
            if is_hibernated {
                hibernated.get_or_insert(index);
            }
        }
        let where_told = match hibernated {
            Some(index) => Some(format!("see volume {}", index + 1)),
            None => self.where_hibernated(None),
        };
        if let Some(where_told) = where_told {
            for mode in by_volume.iter_mut().filter(|mode| mode.reason().is_none()) {
                *mode = Mode::Whole(format!("the guest is hibernated ({where_told})"));
            }
        }
        Ok(UsedMaps { by_volume })
    }

    /// No used map at all: every volume whole, for this reason. Nothing that is on them need be understood.
    pub fn whole_maps(&self, reason: &str) -> UsedMaps {
        UsedMaps { by_volume: self.volumes.iter().map(|_| Mode::Whole(reason.to_owned())).collect() }
    }

    /// A disk without a table may be one volume. A disk with a table may be a member as a whole, `held` being what its
    /// partitions are members of by themselves; its partitions are then those of what it is a member of. A disk with a table whose first
    /// sectors also hold a file system's superblock is in doubt: one of the two is a leftover.
    ///
    /// If the disk turns out to be one volume, or none: whether that is an LVM2 physical volume.
    fn consider_the_whole_disk(&mut self, held: &[(VirtualOffset, Holder)]) -> Result<Option<bool>> {
        let place = Placement::of_span(Span::from_zero(self.chain.len_bytes()));
        let source = source_of(&Disks::new(self.chain.clone(), std::iter::empty()), &place);
        let holders = holder::find(&source, Scope::Disk)?;
        if let Some(holder) = holders.iter().find(|holder| !is_of_a_partition(holder, held)) {
            let filesystem = Some(holder::hold(holder, &source)?);
            if self.table.scheme != Scheme::None {
                self.table.doubt = Some(holder.reason_of("the disk as a whole"));
                self.table.partitions.clear();
            }
            self.volumes = vec![Volume { filesystem, ..Volume::unknown(place, source) }];
            return Ok(Some(self.table.scheme == Scheme::None && lvm::is_candidate(&holders)));
        }
        let whole = volume_of(place, source, None, filesystem::open_contents)?;
        let recognised = whole.filesystem.as_ref().map(|filesystem| filesystem.facts().filesystem.clone());
        match (self.table.scheme, recognised) {
            (Scheme::None, Some(_)) => {
                self.volumes = vec![whole];
                Ok(Some(false))
            }
            (Scheme::Mbr | Scheme::Gpt, Some(name)) if self.table.doubt.is_none() && name != "iso9660" => {
                self.table.doubt = Some(format!(
                    "the disk has a partition table and, in the same place, an {name} superblock"
                ));
                self.table.partitions.clear();
                self.volumes.clear();
                Ok(Some(false))
            }
            _ => Ok(None),
        }
    }
}

/// Whether the metadata of `holder`, found on the whole disk, are those that make a partition alone a member. At the end of the
/// disk they can be in the place of both.
fn is_of_a_partition(holder: &Holder, held: &[(VirtualOffset, Holder)]) -> bool {
    held.iter().any(|(start, other)| {
        other.is_certain()
            && other.name() == holder.name()
            && start.plus(other.at().get()).get() == holder.at().get()
    })
}

impl UsedMaps {
    /// One mode a volume, in the order of [`Stack::volumes`].
    pub fn modes(&self) -> &[Mode] {
        &self.by_volume
    }

    /// Bytes of a volume, counted from zero, that are kept for nothing but its shadow copies.
    pub fn kept_for_shadow_copies_bytes(&self, index: usize) -> Result<u64> {
        match &self.by_volume[index] {
            Mode::UsedOnly(map) => map.kept_for_shadow_copies_bytes(),
            Mode::Whole(_) => Ok(0),
        }
    }
}

/// Recognises what is on `span`, and everything that it is a member of.
fn open_volume(
    chain: &Arc<Chain>,
    span: VirtualSpan,
    partition: Option<Partition>,
) -> Result<(Volume, Vec<Holder>)> {
    let place = Placement::of_span(span);
    let source = source_of(&Disks::new(chain.clone(), std::iter::empty()), &place);
    let holders = holder::find(&source, Scope::Partition)?;
    let claim = partition.as_ref().filter(|partition| partition.is_member).map(|it| it.kind.clone());
    let mut volume = volume_of(place, source, partition, |source| match holders.first() {
        Some(holder) => holder::hold(holder, source).map(Some),
        None => filesystem::open_contents(source),
    })?;
    if let Some(kind) = claim.filter(|_| holders.is_empty()) {
        let reason = holder::claim(&kind);
        match &volume.filesystem {
            None => volume.doubt = Some(reason),
            Some(filesystem) if filesystem.facts().state.doubt().is_none() => {
                volume.filesystem = Some(filesystem::in_doubt(&**filesystem, reason));
            }
            // It has a reason of its own.
            Some(_) => {}
        }
    }
    Ok((volume, holders))
}

fn source_of(disks: &Disks, place: &Placement) -> Source {
    let cached =
        |leg| -> Source { Arc::new(Cached::new(VolumeView::new(disks.clone(), leg), CACHE_BYTES_MAX)) };
    let mut legs = place.legs().map(cached);
    let first = legs.next().expect("a volume lies somewhere");
    let others: Vec<_> = legs.collect();
    // Above the caches, so that no more is compared than what was asked for.
    if others.is_empty() { first } else { Arc::new(Mirrored::new(first, others)) }
}

/// That its contents contradict themselves is a fact about the volume, not a failure; that they cannot be read is.
fn volume_of(
    place: Placement,
    source: Source,
    partition: Option<Partition>,
    open: impl FnOnce(&Source) -> Result<Option<Box<dyn FileSystem>>>,
) -> Result<Volume> {
    let (filesystem, doubt) = match open(&source) {
        Ok(filesystem) => (filesystem, None),
        Err(error) if error.kind() == ErrorKind::Io => return Err(error),
        Err(error) => (None, Some(error.to_string())),
    };
    Ok(Volume { partition, filesystem, doubt, ..Volume::unknown(place, source) })
}

fn no_table(sector_bytes: u32) -> Table {
    Table {
        scheme: Scheme::None,
        sector_bytes,
        id: None,
        partitions: Vec::new(),
        doubt: None,
        warnings: Vec::new(),
    }
}
