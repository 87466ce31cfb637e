//! The machine that a guard stands on: a mounted file system and a ledger on disk.

use ::guard::{
    Beside, Extent, FileId, Gathered, GoesOn, Held, Join, Machine, Record, Refusal, Reserved, Room, Stamp,
};
use block::{Error, Result};
use os::{GuardedKind, GuardedSystem, Handle, HeldFile, LeftAlone, RawPiece, ReserveOutcome, Taken};
use predict::cost::Piece;

use super::facts_of;
use super::state::Ledger;

/// See the module's page.
pub(super) struct HostMachine {
    system: GuardedSystem,
    ledger: Ledger,
    /// One at a time.
    held: Option<HeldFile>,
}

impl HostMachine {
    pub(super) fn new(system: GuardedSystem, ledger: Ledger) -> Self {
        Self { system, ledger, held: None }
    }

    pub(super) fn is_there(&self) -> bool {
        self.system.is_there()
    }

    fn held(&self) -> Result<&HeldFile> {
        self.held.as_ref().ok_or_else(|| Error::refused("a file that is not held"))
    }
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
        let (free_bytes, all_bytes) = self.system.room()?;
        Ok(Room { free_bytes, all_bytes })
    }

    fn shows_in_stamps(&self) -> bool {
        self.system.kind != GuardedKind::Xfs
    }

    fn refuses(&mut self, file: &FileId, from_bytes: u64) -> Result<Option<Refusal>> {
        Ok(self.system.refuses(&handle(file)?, from_bytes)?.map(refusal))
    }

    fn reserve(&mut self, file: &FileId, from_bytes: u64, to_bytes: u64) -> Result<Reserved> {
        let outcome = self.system.reserve(&handle(file)?, from_bytes, to_bytes)?;
        tracing::debug!(?file, from_bytes, to_bytes, ?outcome, "reserve");
        Ok(match outcome {
            ReserveOutcome::Reserved(before, after) => {
                Reserved::Yes { before: facts_of(before), after: facts_of(after) }
            }
            ReserveOutcome::Not(left) => Reserved::No(refusal(left)),
            ReserveOutcome::NoRoom => Reserved::NoRoom,
        })
    }

    fn hold(&mut self, file: &FileId) -> Result<Held> {
        self.held = None;
        Ok(match self.system.hold(&handle(file)?)? {
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
        let extent = |piece: RawPiece| Extent {
            piece: Piece { logical: piece.logical, physical: piece.physical, len_bytes: piece.len_bytes },
            is_shared: piece.is_shared,
            is_plain: piece.is_plain,
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
}
