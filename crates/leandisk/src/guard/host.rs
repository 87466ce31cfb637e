//! The machine that a guard stands on: a mounted file system and a ledger on disk.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ::guard::{
    Beside, DeviceSpan, Extent, FileId, Gathered, GoesOn, Held, Join, Machine, Owned, Record, Refusal,
    Reserved, Room, SpaceMap, Stamp, Told, Use,
};
use block::{Error, Result};
use extent::{DeviceOffset, FileOffset, Offset};
use os::{
    FoundFile, GuardedKind, GuardedSystem, Handle, HeldFile, KeptRoom, LeftAlone, RawPiece, ReserveOutcome,
    SpaceUse, Taken, Walk,
};
use predict::cost::Piece;

use super::facts_of;
use super::state::Ledger;

/// See the module's page.
pub(super) struct HostMachine {
    system: GuardedSystem,
    ledger: Ledger,
    /// One at a time.
    held: Option<HeldFile>,
    /// Who wrote since that was looked at last: processes, and the file's inode.
    writers: HashMap<FileId, Vec<(u32, u64)>>,
    /// The folders in which files may be moved.
    roots: Vec<PathBuf>,
    look: Option<Look>,
    walk: Option<Walk>,
    kept: KeptRoom,
    /// Whether snapshots are made here, and when that was found out.
    snapshotted: Option<(Instant, bool)>,
}

/// Somebody who made a snapshot within so many seconds, a month, makes more.
const SNAPSHOTS_SECONDS: u64 = 32 * 86_400;
/// So often it is looked for them.
const SNAPSHOTS_LOOK: Duration = Duration::from_secs(5);

/// A map that is being told: what of it, where, and where it goes on.
struct Look {
    within: Option<DeviceSpan>,
    map: SpaceMap,
    next: DeviceOffset,
    record_count: usize,
}

/// Maps of more parts are not kept: what is so full of pieces has no stretch that pays.
const RECORDS_MAX: usize = 1 << 22;

impl Look {
    fn new(within: Option<DeviceSpan>) -> Self {
        let next = within.map_or(DeviceOffset::ZERO, |within| within.start());
        Self { within, map: SpaceMap::default(), next, record_count: 0 }
    }

    fn end(&self) -> DeviceOffset {
        self.within.map_or(Offset::new(u64::MAX), |within| within.end())
    }
}

impl HostMachine {
    pub(super) fn new(system: GuardedSystem, ledger: Ledger) -> Self {
        let kept = KeptRoom::default();
        let writers = HashMap::new();
        let (held, roots, look, walk) = (None, Vec::new(), None, None);
        Self { system, ledger, held, writers, roots, look, walk, kept, snapshotted: None }
    }

    fn is_snapshotted(&mut self) -> Result<bool> {
        let known = self.snapshotted.filter(|(when, _)| when.elapsed() < SNAPSHOTS_LOOK);
        if let Some((_, is_snapshotted)) = known {
            return Ok(is_snapshotted);
        }
        let is_snapshotted = self.system.was_snapshotted_within(SNAPSHOTS_SECONDS)?;
        self.snapshotted = Some((Instant::now(), is_snapshotted));
        Ok(is_snapshotted)
    }

    /// Others are looked at from now on.
    pub(super) fn forget_writers(&mut self) {
        self.writers.clear();
    }

    /// This process wrote to a file with this inode.
    pub(super) fn wrote(&mut self, file: &FileId, process: u32, inode: u64) {
        let writers = self.writers.entry(file.clone()).or_default();
        if !writers.contains(&(process, inode)) {
            writers.push((process, inode));
        }
    }

    /// Whether one of those who wrote may store to the file through a mapping, or nobody knows who wrote.
    fn is_mapped(&self, file: &FileId) -> bool {
        let may_store = |writers: &Vec<(u32, u64)>| {
            writers.iter().any(|(process, inode)| os::may_store(*process, *inode))
        };
        self.shows_in_stamps() && self.writers.get(file).is_none_or(may_store)
    }

    /// Says which folders are guarded.
    pub(super) fn guards(&mut self, roots: &[PathBuf]) {
        self.roots = roots.to_vec();
    }

    pub(super) fn is_there(&self) -> bool {
        self.system.is_there()
    }

    fn keep(&mut self, taken: Taken) -> Result<Held> {
        Ok(match taken {
            Taken::Held(held) => {
                let facts = facts_of(held.facts()?);
                self.held = Some(held);
                Held::Yes(facts)
            }
            Taken::Busy => Held::Busy,
            Taken::Not(left) => Held::No(refusal(left)),
            Taken::Gone => Held::Gone,
        })
    }

    fn held(&self) -> Result<&HeldFile> {
        self.held.as_ref().ok_or_else(|| Error::refused("a file that is not held"))
    }
}

fn extent_of(piece: RawPiece) -> Extent {
    Extent {
        piece: Piece { logical: piece.logical, physical: piece.physical, len_bytes: piece.len_bytes },
        is_shared: piece.is_shared,
        is_plain: piece.is_plain,
    }
}

fn use_of(told: SpaceUse) -> Use {
    match told {
        SpaceUse::Free => Use::Free,
        SpaceUse::Taken => Use::Taken,
        SpaceUse::Fixed => Use::Fixed,
    }
}

/// The pieces of a file, those that follow each other in the file and on the device as one.
fn owned_of(found: FoundFile, whole_only: bool) -> Vec<Owned> {
    let Some(file) = FileId::new(found.handle.bytes()) else { return Vec::new() };
    let is_written = found.pieces.iter().all(|piece| piece.is_written);
    let extents: Vec<Extent> = found.pieces.into_iter().map(extent_of).collect();
    let all = ::guard::joined(&extents);
    let may_move = found.is_movable && is_written && (all.len() == 1 || !whole_only);
    let one = |extent: &Extent| {
        let Piece { logical, physical, len_bytes } = extent.piece;
        let is_within =
            logical < found.size_bytes && (!whole_only || logical == 0 && len_bytes >= found.size_bytes);
        Some(Owned {
            place: ::guard::place(physical, len_bytes)?,
            file: file.clone(),
            start: FileOffset::new(logical),
            is_movable: may_move && is_within && extent.is_plain && !extent.is_shared,
        })
    };
    all.iter().filter_map(one).collect()
}

fn handle(file: &FileId) -> Result<Handle> {
    Handle::from_bytes(file.bytes()).ok_or_else(|| Error::refused("a handle that is none"))
}

fn refusal(left: LeftAlone) -> Refusal {
    match left {
        LeftAlone::NoFile => Refusal::NoFile,
        LeftAlone::SetId => Refusal::SetId,
        LeftAlone::Executable => Refusal::Executable,
        LeftAlone::Attributes => Refusal::Attributes,
        LeftAlone::Swap => Refusal::Swap,
        LeftAlone::OwnLayout => Refusal::OwnLayout,
    }
}

impl Machine for HostMachine {
    fn append(&mut self, records: &[Record]) -> Result<()> {
        self.ledger.append(records)
    }

    fn replace(&mut self, records: &[Record]) -> Result<()> {
        self.ledger.replace(records)
    }

    fn room(&mut self) -> Result<Room> {
        let os::GuardedRoom { free_bytes, all_bytes, undecided_bytes } = self.system.room()?;
        let is_snapshotted = self.is_snapshotted()?;
        Ok(Room { free_bytes, all_bytes, undecided_bytes, is_snapshotted })
    }

    fn shows_in_stamps(&self) -> bool {
        self.system.kind != GuardedKind::Xfs
    }

    fn refuses(&mut self, file: &FileId, from_bytes: u64) -> Result<Option<Refusal>> {
        Ok(self.system.refuses(&handle(file)?, from_bytes)?.map(refusal))
    }

    fn reserve(&mut self, file: &FileId, from_bytes: u64, to_bytes: u64) -> Result<Reserved> {
        let was_mapped = self.is_mapped(file);
        let outcome = self.system.reserve(&handle(file)?, from_bytes, to_bytes)?;
        tracing::debug!(?file, from_bytes, to_bytes, ?outcome, "reserve");
        Ok(match outcome {
            ReserveOutcome::Reserved(before, after) => {
                let is_mapped = was_mapped || self.is_mapped(file);
                Reserved::Yes { before: facts_of(before), after: facts_of(after), is_mapped }
            }
            ReserveOutcome::Not(left) => Reserved::No(refusal(left)),
            ReserveOutcome::NoRoom => Reserved::NoRoom,
        })
    }

    fn hold(&mut self, file: &FileId) -> Result<Held> {
        self.held = None;
        let taken = self.system.hold(&handle(file)?)?;
        self.keep(taken)
    }

    fn hold_to_cut(&mut self, file: &FileId) -> Result<Held> {
        self.held = None;
        let taken = self.system.hold_to_cut(&handle(file)?)?;
        self.keep(taken)
    }

    fn cut(&mut self, _file: &FileId, to_bytes: u64) -> Result<bool> {
        self.held()?.cut(to_bytes)
    }

    fn stamp(&mut self, _file: &FileId, modified: Stamp) -> Result<()> {
        self.held()?.stamp((modified.seconds, modified.nanoseconds))
    }

    fn is_wanted(&mut self, _file: &FileId) -> bool {
        self.held.as_ref().is_none_or(HeldFile::is_wanted)
    }

    fn release(&mut self, _file: &FileId) {
        self.held = None;
    }

    fn extents(&mut self, _file: &FileId) -> Result<Vec<Extent>> {
        // What is only reserved stays: where contents are copied, it would become zeros that are written.
        let extent = |piece: RawPiece| {
            let is_written = piece.is_written;
            let extent = extent_of(piece);
            Extent { is_plain: extent.is_plain && is_written, ..extent }
        };
        Ok(self.held()?.pieces()?.into_iter().map(extent).collect())
    }

    fn moves_whole_files(&self) -> bool {
        self.system.moves_whole_files
    }

    fn joins(&self) -> bool {
        self.system.kind == GuardedKind::Ext4
    }

    fn join(&mut self, file: &FileId, join: &Join, goes_on: &mut GoesOn<'_>) -> Result<Gathered> {
        let Join { start_bytes, len_bytes, beside } = *join;
        let done = self.held()?.join(start_bytes, len_bytes, beside == Beside::Next, goes_on);
        tracing::debug!(?file, ?join, ?done, "join");
        // No room there, mapped, or not possible here: it stays as it is.
        Ok(if matches!(done, Ok(os::Gathered::Yes)) { Gathered::Yes } else { Gathered::No })
    }

    fn gather(
        &mut self,
        file: &FileId,
        start_bytes: u64,
        len_bytes: u64,
        goes_on: &mut GoesOn<'_>,
    ) -> Result<Gathered> {
        let done = self.held()?.gather(start_bytes, len_bytes, goes_on);
        tracing::debug!(?file, start_bytes, len_bytes, ?done, "gather");
        // No room, mapped, or not possible here: it stays as it is.
        Ok(match done {
            Ok(os::Gathered::Yes) => Gathered::Yes,
            Ok(os::Gathered::Stopped) => Gathered::Stopped,
            Ok(os::Gathered::No) | Err(_) => Gathered::No,
        })
    }

    fn space(&mut self, within: Option<DeviceSpan>, goes_on: &mut GoesOn<'_>) -> Result<Told<SpaceMap>> {
        let mut look =
            self.look.take().filter(|look| look.within == within).unwrap_or_else(|| Look::new(within));
        loop {
            let Some(part) = self.system.space_from(look.next, look.end())? else { return Ok(Told::Nothing) };
            look.record_count += part.parts.len();
            let in_order = part.parts.into_iter().all(|(place, told)| look.map.push(place, use_of(told)));
            if !in_order || look.record_count > RECORDS_MAX {
                return Ok(Told::Nothing);
            }
            let Some(next) = part.next else { return Ok(Told::All(look.map)) };
            look.next = next;
            if !goes_on(0) {
                self.look = Some(look);
                return Ok(Told::NotYet);
            }
        }
    }

    fn owners(&mut self, within: &[DeviceSpan], goes_on: &mut GoesOn<'_>) -> Result<Told<Vec<Owned>>> {
        let known = self.walk.take().filter(|walk| walk.is_within(within));
        let mut walk = known.unwrap_or_else(|| Walk::new(&self.roots, within));
        if !walk.go(&self.system, goes_on)? {
            self.walk = Some(walk);
            return Ok(Told::NotYet);
        }
        let whole_only = self.system.moves_whole_files;
        Ok(Told::All(walk.found().into_iter().flat_map(|found| owned_of(found, whole_only)).collect()))
    }

    fn move_out(
        &mut self,
        file: &FileId,
        start: FileOffset,
        len_bytes: u64,
        stretch: DeviceSpan,
        goes_on: &mut GoesOn<'_>,
    ) -> Result<Gathered> {
        let Self { held, kept, .. } = self;
        let held = held.as_ref().ok_or_else(|| Error::refused("a file that is not held"))?;
        let done = held.move_out(start, len_bytes, stretch, kept, goes_on);
        tracing::debug!(?file, ?start, len_bytes, ?stretch, ?done, "move out");
        // No room, mapped, or not possible here: it stays as it is.
        Ok(match done {
            Ok(os::Gathered::Yes) => Gathered::Yes,
            Ok(os::Gathered::Stopped) => Gathered::Stopped,
            Ok(os::Gathered::No) | Err(_) => Gathered::No,
        })
    }

    fn let_go(&mut self) {
        self.kept.let_go();
    }
}
