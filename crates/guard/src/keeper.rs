//! The guard of one file system: what it sees of files, and what it does about it.
//!
//! Invariants:
//! - what may have been reserved is in the ledger before it is, and stays there until the file was seen without it;
//! - room goes back only while nobody else has the file open, and only up to where the guard reserved;
//! - a time of modification is set back only if nothing was written since the time was read: no write was announced, nobody who writes to the
//!   file had it mapped, and it still has the time that the guard's own call left;
//! - memory is bounded: what needs nothing any more is forgotten first.
//!
//! Absent on purpose: a clock, threads, the decision whether the machine is idle (the caller's, by `pressure`).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use block::Result;
use mutants::broken;
use predict::profile::Profile;

use crate::consolidation::Consolidation;
use crate::facts::{Facts, FileId, Millis, Refusal, Room, Stamp};
use crate::growth::{Growth, Policy};
use crate::ledger::Record;
use crate::machine::{Gathered, GoesOn, Held, Join, Machine, Reserved};
use crate::repair::{self, Plan, SMALL_AGAIN_MS, count};
use crate::suspects::Suspects;

/// A file that nobody touched for so long is thought to be finished.
const LINGER_MS: Millis = 1000;
/// So long after it was closed a file is looked at.
const CLOSED_MS: Millis = 500;
/// After so long it is asked again whether others still have a file open.
const RETRY_MS: Millis = 1000;
/// The same for a repair.
const REPAIR_RETRY_MS: Millis = 5000;
/// The same where a repair found too little free.
const ROOM_RETRY_MS: Millis = 60_000;
/// So often it is looked whether others run short of room.
const SHORTAGE_LOOK_MS: Millis = 100;
/// Files that are remembered at most.
const FILES_MAX: usize = 1 << 16;
/// The ledger is written anew once it has so many lines more than it needs.
const SPARE_LINES_MAX: usize = 4096;

/// One part of so many of what is free is reserved at once.
const STEP_SHARE: u64 = 8;
/// One part of so many of what would be free without is reserved in all.
const ALL_SHARE: u64 = 2;
/// The same where snapshots are made, each of which may keep as much as is reserved at that moment.
const SNAPSHOTTED_SHARE: u64 = 256;
/// One part of so many of what is free is taken for a while by what moves.
const MOVE_SHARE: u64 = 4;
/// One part of so many of the file system stays free.
const FREE_SHARE: u64 = 20;
const FREE_BYTES_MIN: u64 = 64 << 20;
/// So much of what is undecided is left to the file system's tables: two block groups of metadata, with a copy of each. Btrfs makes them of 256 MiB,
/// or of 1 GiB on more than 50 GiB, and of no more than a tenth of all (`init_alloc_chunk_ctl_policy_regular`, fs/btrfs/volumes.c).
const TABLE_GROUPS: u64 = 4;
const TABLE_GROUP_SHARE: u64 = 10;
const TABLE_GROUP_BYTES: u64 = 256 << 20;
const LARGE_TABLE_GROUP_BYTES: u64 = 1 << 30;
const LARGE_BYTES: u64 = 50 << 30;

/// What the guard is to do.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Reserve room for files that grow.
    pub prevents: bool,
    /// Put files together that were closed in pieces.
    pub repairs: bool,
    /// Bring free space together where new files would not find room in one piece.
    pub consolidates: bool,
    /// Only look, and count what would be done.
    pub dry_run: bool,
    /// How room is reserved here.
    pub policy: Policy,
    /// What reading costs here.
    pub profile: Profile,
}

/// Why less room was reserved than files grow by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// Each snapshot keeps what is reserved at that moment.
    Snapshots,
    /// Enough is to stay free.
    FreeSpace,
}

/// What was done so far; in a dry run, what would have been.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Times that a file grew within reserved room, for which it would have found room by itself elsewhere: an estimate.
    pub prevented: u64,
    /// Fragments that are no more.
    pub repaired: u64,
    /// Bytes that moved for it.
    pub moved_bytes: u64,
    /// Extents that stayed because they are shared.
    pub shared_skipped: u64,
    /// Bytes that moved so that free space is in fewer pieces.
    pub space_moved_bytes: u64,
    /// Stretches that became one free extent by that.
    pub space_stretches: u64,
}

impl Counters {
    /// What was counted since it was as `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            prevented: self.prevented.saturating_sub(before.prevented),
            repaired: self.repaired.saturating_sub(before.repaired),
            moved_bytes: self.moved_bytes.saturating_sub(before.moved_bytes),
            shared_skipped: self.shared_skipped.saturating_sub(before.shared_skipped),
            space_moved_bytes: self.space_moved_bytes.saturating_sub(before.space_moved_bytes),
            space_stretches: self.space_stretches.saturating_sub(before.space_stretches),
        }
    }
}

/// How much may move now.
pub struct Allowance<'a> {
    /// Bytes that are left of it.
    pub bytes: u64,
    /// Whether there is time for more.
    pub goes_on: &'a mut GoesOn<'a>,
}

/// What is reserved of a file.
#[derive(Clone, Copy, Debug)]
struct Claim {
    end_bytes: u64,
    /// When the file was modified before and after the last reservation.
    stamps: Option<(Stamp, Stamp)>,
    /// A write was announced since then.
    is_written: bool,
    /// When the room is to go back.
    due: Millis,
}

#[derive(Clone, Copy, Debug, Default)]
struct File {
    growth: Growth,
    last: Millis,
    size_bytes: u64,
    /// Grown within room, and not counted yet.
    grown_bytes: u64,
    claim: Option<Claim>,
    /// It is not reserved for.
    is_left_alone: bool,
    /// When it was put together as a whole because it is small.
    moved_whole: Option<Millis>,
}

/// The guard of a file system.
pub struct Guard<M> {
    pub(crate) machine: M,
    pub(crate) options: Options,
    files: HashMap<FileId, File>,
    wanted: BTreeSet<FileId>,
    suspects: Suspects,
    /// In the ledger, and not reserved yet.
    announced: BTreeMap<FileId, u64>,
    pub(crate) counters: Counters,
    pub(crate) space: Consolidation,
    lines: usize,
    /// What bounded the last file that was to have room.
    limited: Option<Limit>,
    /// Whether others run short of room is looked for again then.
    shortage_looked_ms: Millis,
}

impl<M: Machine> Guard<M> {
    /// A guard that finds these claims in the ledger of the one before: their room goes back as soon as nobody has the files open.
    pub fn new(machine: M, options: Options, claims: BTreeMap<FileId, u64>) -> Self {
        let lines = claims.len();
        let claimed = |end_bytes| Claim { end_bytes, stamps: None, is_written: true, due: 0 };
        let file = |end| File { claim: Some(claimed(end)), ..File::default() };
        let claims = claims.into_iter().filter(|_| !options.dry_run);
        let files = claims.map(|(id, end)| (id, file(end))).collect();
        Self {
            machine,
            options,
            files,
            wanted: BTreeSet::new(),
            suspects: Suspects::default(),
            announced: BTreeMap::new(),
            counters: Counters::default(),
            space: Consolidation::default(),
            lines,
            limited: None,
            shortage_looked_ms: 0,
        }
    }

    /// The machine.
    pub fn machine(&mut self) -> &mut M {
        &mut self.machine
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Reserved and not used, as far as is known.
    pub fn reserved_bytes(&self) -> u64 {
        let unused = |file: &File| Some(file.claim?.end_bytes.saturating_sub(file.size_bytes));
        self.files.values().filter_map(unused).fold(0, u64::saturating_add)
    }

    /// Why the last file that was to have room got less than it grows by, or none.
    pub fn limited(&self) -> Option<Limit> {
        self.limited
    }

    /// Files that have reserved room.
    pub fn claim_count(&self) -> usize {
        self.files.values().filter(|file| file.claim.is_some()).count()
    }

    /// Whether a file is waiting to be put together.
    pub fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// How many files are waiting to be looked at.
    pub fn suspect_count(&self) -> usize {
        self.suspects.len()
    }

    /// The guard knows this file and has made up its mind to leave it alone: `seen` need not be told its facts.
    pub fn leaves_alone(&self, id: &FileId) -> bool {
        self.files.get(id).is_some_and(|file| file.is_left_alone)
    }

    /// A file is to be left alone from now on, except that what was reserved of it goes back.
    pub fn leave_alone(&mut self, id: FileId) {
        self.files.entry(id).or_default().is_left_alone = true;
    }

    /// A file was written or closed after writing (`was_written`, `was_closed`), and is as `facts` say now.
    pub fn seen(&mut self, now: Millis, id: FileId, facts: &Facts, was_written: bool, was_closed: bool) {
        self.forget_some();
        let Options { prevents, repairs, policy, dry_run, .. } = self.options;
        let file = self.files.entry(id.clone()).or_default();
        file.last = now;
        if was_written {
            let grown = file.growth.changed(now, facts.size_bytes);
            if let Some(claim) = &mut file.claim {
                claim.is_written = true;
                if facts.size_bytes <= claim.end_bytes && grown > 0 {
                    file.grown_bytes += grown;
                    let (times, rest) = match policy.own_bytes {
                        0 => (1, 0),
                        own => (file.grown_bytes / own, file.grown_bytes % own),
                    };
                    self.counters.prevented += times;
                    file.grown_bytes = rest;
                }
            }
        }
        file.size_bytes = facts.size_bytes;
        if let Some(claim) = &mut file.claim {
            claim.due = now + LINGER_MS;
        }
        if was_closed {
            if file.growth.was_made_here() {
                self.space.made(now, facts.size_bytes);
            }
            if repairs {
                let is_likely = file.growth.took_its_time();
                self.suspects.insert(id, now + CLOSED_MS, is_likely);
            }
            return;
        }
        if prevents && was_written && !file.is_left_alone {
            let room = file.claim.map_or(0, |claim| claim.end_bytes.saturating_sub(facts.size_bytes));
            let wants = file.growth.wants(now, &policy).is_some_and(|wanted| room < wanted / 4 || room == 0);
            // Holes within are somebody's plan for the file.
            let is_sparse = facts.allocated_bytes.saturating_add(1 << 16) < facts.size_bytes;
            if wants && !is_sparse && !(dry_run && file.claim.is_some()) {
                self.wanted.insert(id);
            }
        }
    }

    /// Changes may have gone by unseen.
    pub fn missed(&mut self) {
        for file in self.files.values_mut() {
            if let Some(claim) = &mut file.claim {
                claim.is_written = true;
            }
        }
    }

    fn forget_some(&mut self) {
        if self.files.len() >= FILES_MAX {
            self.files.retain(|_, file| file.claim.is_some());
        }
        if self.suspects.len() >= FILES_MAX {
            self.suspects.forget_one();
        }
    }

    /// Reserves what was found wanting, and gives back what is due.
    pub fn act(&mut self, now: Millis) -> Result<()> {
        self.reserve(now)?;
        self.make_room(now)?;
        let due = |(id, file): (&FileId, &File)| (file.claim?.due <= now).then(|| id.clone());
        let due: Vec<FileId> = self.files.iter().filter_map(due).collect();
        self.give_back(now, due)
    }

    /// Where others run short of room, it goes back as soon as the files are closed, and not after a while.
    fn make_room(&mut self, now: Millis) -> Result<()> {
        let waits = |file: &File| file.claim.is_some_and(|claim| claim.due > now);
        if self.options.dry_run || now < self.shortage_looked_ms || !self.files.values().any(waits) {
            return Ok(());
        }
        self.shortage_looked_ms = now + SHORTAGE_LOOK_MS;
        if spare_bytes(self.machine.room()?) > 0 || broken!(ShortageIgnored) {
            return Ok(());
        }
        let claimed = self.files.values_mut().filter_map(|file| file.claim.as_mut());
        claimed.for_each(|claim| claim.due = now);
        Ok(())
    }

    /// When `act` has something to do next.
    pub fn next_due(&self) -> Option<Millis> {
        self.files.values().filter_map(|file| Some(file.claim?.due)).min()
    }

    fn reserve(&mut self, now: Millis) -> Result<()> {
        let wanted = std::mem::take(&mut self.wanted);
        let mut chosen = Vec::new();
        let mut reserved_bytes = self.reserved_bytes();
        // Chosen and not reserved yet: the file system does not know of it.
        let mut chosen_bytes = 0;
        for id in wanted {
            let mut room = self.machine.room()?;
            if !broken!(BatchUncounted) {
                room.free_bytes = room.free_bytes.saturating_sub(chosen_bytes);
                room.undecided_bytes = room.undecided_bytes.saturating_sub(chosen_bytes);
            }
            let Some(file) = self.files.get_mut(&id) else { continue };
            let Some(wants) = file.growth.wants(now, &self.options.policy) else { continue };
            let may = may_bytes(room, reserved_bytes);
            let mut len_bytes = wants;
            while len_bytes > may {
                len_bytes /= 2;
            }
            self.limited = (len_bytes < wants).then(|| limit(room, reserved_bytes));
            if len_bytes < self.options.policy.least_bytes {
                continue;
            }
            let from = file.claim.map_or(0, |claim| claim.end_bytes);
            if !self.options.dry_run && self.machine.refuses(&id, from)?.is_some() {
                file.is_left_alone = true;
                continue;
            }
            let end = file.size_bytes.max(from).saturating_add(len_bytes) & !0xffff;
            reserved_bytes = reserved_bytes.saturating_add(len_bytes);
            chosen_bytes = chosen_bytes.saturating_add(len_bytes);
            chosen.push((id, from, end));
        }
        if chosen.is_empty() {
            return Ok(());
        }
        let records: Vec<_> =
            chosen.iter().map(|(id, _, end)| Record::Claim { file: id.clone(), end_bytes: *end }).collect();
        self.announced = chosen.iter().map(|(id, _, end)| (id.clone(), *end)).collect();
        if !broken!(ReservedUnrecorded) {
            self.append(&records)?;
        }
        let mut result = Ok(());
        let mut not_begun = Vec::new();
        for (id, from, end) in chosen {
            if result.is_ok() {
                result = self.reserve_one(now, &id, from, end);
            } else if self.announced.remove(&id).is_some() {
                not_begun.push(id);
            }
        }
        if broken!(ReservedUnrecorded) {
            self.append(&records)?;
        }
        self.take_back(not_begun)?;
        result
    }

    /// Has the ledger forget what was announced and not begun: the next guard would take what somebody else reserves there for its own.
    fn take_back(&mut self, not_begun: Vec<FileId>) -> Result<()> {
        let is_unclaimed = |id: &FileId| !self.has_claim(id) && !broken!(AnnouncedForgotten);
        let records: Vec<_> =
            not_begun.into_iter().filter(is_unclaimed).map(|file| Record::Given { file }).collect();
        if records.is_empty() { Ok(()) } else { self.append(&records) }
    }

    fn reserve_one(&mut self, now: Millis, id: &FileId, from: u64, end: u64) -> Result<()> {
        let outcome = if self.options.dry_run {
            Ok(Reserved::Yes { before: Facts::default(), after: Facts::default(), is_mapped: false })
        } else {
            self.machine.reserve(id, from, end)
        };
        self.announced.remove(id);
        let Some(file) = self.files.get_mut(id) else { return Ok(()) };
        let mut claim = Claim { end_bytes: end, stamps: None, is_written: true, due: now + LINGER_MS };
        // After an error there may be a part, too.
        let (outcome, result) = match outcome {
            Ok(outcome) => (outcome, Ok(())),
            Err(error) => (Reserved::NoRoom, Err(error)),
        };
        match outcome {
            Reserved::Yes { before, after, is_mapped } => {
                let first = file.claim.filter(|claim| !claim.is_written).and_then(|claim| claim.stamps);
                // Two reservations with no write between them are one.
                let before = first
                    .filter(|(_, after)| *after == before.modified)
                    .map_or(before.modified, |(before, _)| before);
                claim.stamps = Some((before, after.modified));
                claim.is_written = is_mapped && !broken!(MappingIgnored);
                file.claim = Some(claim);
            }
            // Of the ledger's claim there may be a part.
            Reserved::NoRoom => {
                file.claim = Some(claim);
                file.is_left_alone = true;
            }
            Reserved::No(_) => {
                file.is_left_alone = true;
                if file.claim.is_none() {
                    self.append(&[Record::Given { file: id.clone() }])?;
                }
            }
        }
        result
    }

    /// Gives back what all files have, where nobody has them open. How many still have reserved room.
    pub fn give_back_all(&mut self, now: Millis) -> Result<usize> {
        let all =
            self.files.iter().filter(|(_, file)| file.claim.is_some()).map(|(id, _)| id.clone()).collect();
        self.give_back(now, all)?;
        Ok(if self.options.dry_run { 0 } else { self.claim_count() })
    }

    fn give_back(&mut self, now: Millis, files: Vec<FileId>) -> Result<()> {
        let mut given = Vec::new();
        let mut result = Ok(());
        for id in files {
            let Some(claim) = self.files.get(&id).and_then(|file| file.claim) else { continue };
            let is_given = if self.options.dry_run { Ok(true) } else { self.give_one_back(now, &id, &claim) };
            match is_given {
                Ok(true) => {
                    if let Some(file) = self.files.get_mut(&id) {
                        file.claim = None;
                    }
                    given.push(Record::Given { file: id });
                }
                Ok(false) => {}
                // It comes again, after the others.
                Err(error) => {
                    self.put_off(now, &id);
                    result = Err(error);
                    if broken!(GivenUnrecorded) {
                        return result;
                    }
                }
            }
        }
        if !given.is_empty() {
            self.append(&given)?;
        }
        result
    }

    fn put_off(&mut self, now: Millis, id: &FileId) {
        if let Some(claim) = self.files.get_mut(id).and_then(|file| file.claim.as_mut()) {
            claim.due = now + RETRY_MS;
        }
    }

    /// Whether the file has nothing reserved any more.
    fn give_one_back(&mut self, now: Millis, id: &FileId, claim: &Claim) -> Result<bool> {
        let machine = &mut self.machine;
        let held = if broken!(ProgramsKeepRoom) { machine.hold(id)? } else { machine.hold_to_cut(id)? };
        let facts = match held {
            Held::Yes(facts) => facts,
            Held::Gone => return Ok(true),
            Held::Busy if broken!(CutUnheld) => Facts::default(),
            Held::Busy | Held::No(_) => {
                self.put_off(now, id);
                return Ok(false);
            }
        };
        if broken!(ForgottenTooEarly) {
            self.append(&[Record::Given { file: id.clone() }])?;
        }
        let done = self.cut(id, claim, &facts);
        self.machine.release(id);
        if matches!(done, Ok(false)) {
            self.put_off(now, id);
        }
        done
    }

    /// Whether the file has nothing reserved any more.
    fn cut(&mut self, id: &FileId, claim: &Claim, facts: &Facts) -> Result<bool> {
        let end = if broken!(OthersRoomTaken) { u64::MAX } else { claim.end_bytes };
        // Where somebody reserved beyond it since, and all would go, that file keeps it.
        if facts.size_bytes < end && !self.machine.cut(id, end)? && !broken!(LostForgotten) {
            return Ok(false);
        }
        let modified = match claim.stamps {
            Some((before, after))
                if after == facts.modified && (!claim.is_written || broken!(StampUnproven)) =>
            {
                before
            }
            _ => facts.modified,
        };
        if self.machine.shows_in_stamps() && !broken!(StampStays) {
            self.machine.stamp(id, modified)?;
        }
        Ok(true)
    }

    pub(crate) fn append(&mut self, records: &[Record]) -> Result<()> {
        if self.options.dry_run {
            return Ok(());
        }
        self.machine.append(records)?;
        self.lines += records.len();
        if self.lines <= SPARE_LINES_MAX + 2 * self.claim_count() {
            return Ok(());
        }
        let claimed = self.files.iter().filter_map(|(id, file)| Some((id.clone(), file.claim?.end_bytes)));
        let mut ends: BTreeMap<FileId, u64> = claimed.collect();
        for (id, end) in &self.announced {
            let known = ends.entry(id.clone()).or_insert(0);
            *known = (*known).max(*end);
        }
        let claims = ends.into_iter().map(|(file, end_bytes)| Record::Claim { file, end_bytes });
        let claims: Vec<_> = claims.chain(self.space.record()).collect();
        self.machine.replace(&claims)?;
        self.lines = claims.len();
        Ok(())
    }

    /// Whether the file has reserved room.
    pub(crate) fn has_claim(&self, id: &FileId) -> bool {
        self.files.get(id).is_some_and(|file| file.claim.is_some())
    }

    fn next_suspect(&self, now: Millis) -> Option<FileId> {
        let has_claim = |id: &FileId| self.has_claim(id) && !self.options.dry_run;
        self.suspects.due(now).find(|id| !has_claim(id)).cloned()
    }

    /// Whether a file could be put together now.
    pub fn has_work(&self, now: Millis) -> bool {
        self.next_suspect(now).is_some()
    }

    /// Puts the next file together whose turn it is; whether there was one.
    pub fn repair_next(&mut self, now: Millis) -> Result<bool> {
        self.repair_next_within(now, &mut Allowance { bytes: u64::MAX, goes_on: &mut |_| true })
    }

    /// The same, as far as it is allowed. What does not fit comes again.
    pub fn repair_next_within(&mut self, now: Millis, allowance: &mut Allowance<'_>) -> Result<bool> {
        let Some(id) = self.next_suspect(now) else { return Ok(false) };
        let is_likely = self.suspects.remove(&id);
        match self.machine.hold(&id)? {
            Held::Yes(_) => {}
            Held::Busy => {
                self.suspects.insert(id, now + REPAIR_RETRY_MS, is_likely);
                return Ok(true);
            }
            Held::No(_) | Held::Gone => return Ok(true),
        }
        let done = self.repair(now, &id, allowance);
        self.machine.release(&id);
        if let Some(wait_ms) = done? {
            self.suspects.insert(id, now + wait_ms, is_likely);
        }
        Ok(true)
    }

    /// Whether the file was not put together as a whole a short while ago.
    fn may_move_whole(&self, now: Millis, id: &FileId) -> bool {
        let moved = self.files.get(id).map(|file| file.moved_whole).filter(|_| !broken!(SmallEachTime));
        moved.flatten().is_none_or(|moved| now >= moved.saturating_add(SMALL_AGAIN_MS))
    }

    /// How long the file waits until it is looked at again; `None` if it needs no more of it.
    fn repair(&mut self, now: Millis, id: &FileId, allowance: &mut Allowance<'_>) -> Result<Option<Millis>> {
        let extents = self.machine.extents(id)?;
        let whole_files = self.machine.moves_whole_files();
        let plan = repair::plan(&extents, &self.options.profile, whole_files);
        let whole = repair::whole(&extents).filter(|_| self.may_move_whole(now, id));
        // What moves whole anyway need not be put beside anything first.
        let does_join = whole.is_none() && self.machine.joins();
        let joins = if does_join { repair::joins(&extents) } else { Vec::new() };
        if plan.piece_count > 1 {
            self.counters.shared_skipped += plan.shared_count;
        }
        if self.options.dry_run {
            let has_work = !plan.stretches.is_empty() || !joins.is_empty() || whole.is_some();
            self.counters.repaired += if has_work { plan.piece_count - 1 } else { 0 };
            return Ok(None);
        }
        // What was moved of a file that only moves as a whole is lost when it stops.
        let stopped = if whole_files { REPAIR_RETRY_MS } else { 0 };
        let mut work = Work { id, allowance, moved_bytes: 0, stopped };
        let is_whole = whole.is_some();
        let mut waits = work.put_beside(&mut self.machine, &joins)?;
        if waits.is_none() {
            // What could not be put beside a longer piece may be worth a place of its own.
            let planned = match whole {
                Some(whole) => whole,
                None if work.moved_bytes == 0 => plan.clone(),
                None => repair::plan(&self.machine.extents(id)?, &self.options.profile, whole_files),
            };
            waits = work.put_together(&mut self.machine, &planned)?;
        }
        let moved_bytes = work.moved_bytes;
        if let Some(file) = self.files.get_mut(id).filter(|_| is_whole && waits.is_none()) {
            file.moved_whole = Some(now);
        }
        if moved_bytes > 0 {
            let after = count(&self.machine.extents(id)?);
            self.counters.repaired += plan.piece_count.saturating_sub(after);
            self.counters.moved_bytes += moved_bytes;
        }
        Ok(waits)
    }
}

/// What is done with one file, within what is allowed.
struct Work<'a, 'b> {
    id: &'a FileId,
    allowance: &'a mut Allowance<'b>,
    moved_bytes: u64,
    /// After it stopped it comes again so much later.
    stopped: Millis,
}

impl Work<'_, '_> {
    fn put_beside<M: Machine>(&mut self, machine: &mut M, joins: &[Join]) -> Result<Option<Millis>> {
        let id = self.id;
        for join in joins {
            let waits = self.piece(machine, join.len_bytes, |machine, step| machine.join(id, join, step))?;
            if waits.is_some() {
                return Ok(waits);
            }
        }
        Ok(None)
    }

    fn put_together<M: Machine>(&mut self, machine: &mut M, plan: &Plan) -> Result<Option<Millis>> {
        let id = self.id;
        for &(start, len) in &plan.stretches {
            let waits = self.piece(machine, len, |machine, step| machine.gather(id, start, len, step))?;
            if waits.is_some() {
                return Ok(waits);
            }
        }
        Ok(None)
    }

    /// Moves a part of the file, unless somebody wants it or there is no time. How long the file then waits.
    fn piece<M: Machine>(
        &mut self,
        machine: &mut M,
        len_bytes: u64,
        moves: impl FnOnce(&mut M, &mut GoesOn<'_>) -> Result<Gathered>,
    ) -> Result<Option<Millis>> {
        if machine.is_wanted(self.id) || len_bytes > self.allowance.bytes {
            return Ok(Some(REPAIR_RETRY_MS));
        }
        // For a while it lies there twice.
        if len_bytes > movable_bytes(machine.room()?) && !broken!(LastRoomMoved) {
            return Ok(Some(ROOM_RETRY_MS));
        }
        let goes_on = &mut self.allowance.goes_on;
        let mut moved_bytes = 0;
        let mut step = |bytes: u64| {
            moved_bytes += bytes;
            goes_on(bytes) || broken!(StopIgnored)
        };
        let done = if step(0) { moves(machine, &mut step)? } else { Gathered::Stopped };
        self.moved_bytes += moved_bytes;
        self.allowance.bytes = self.allowance.bytes.saturating_sub(moved_bytes);
        Ok(match done {
            Gathered::Stopped => Some(self.stopped),
            // It was let go for somebody who opened it meanwhile.
            Gathered::No if machine.is_wanted(self.id) => Some(REPAIR_RETRY_MS),
            Gathered::Yes | Gathered::No => None,
        })
    }
}

/// What is free beyond what is to stay free.
fn spare_bytes(room: Room) -> u64 {
    free_for_files(room).saturating_sub((room.all_bytes / FREE_SHARE).max(FREE_BYTES_MIN))
}

/// What is free and not kept for tables.
fn free_for_files(room: Room) -> u64 {
    let group = if room.all_bytes > LARGE_BYTES { LARGE_TABLE_GROUP_BYTES } else { TABLE_GROUP_BYTES };
    let kept = TABLE_GROUPS * group.min(room.all_bytes / TABLE_GROUP_SHARE);
    let kept = if broken!(TablesStarved) { 0 } else { kept };
    room.free_bytes.saturating_sub(room.undecided_bytes.min(kept))
}

/// What may be taken for a while by something that moves.
pub(crate) fn movable_bytes(room: Room) -> u64 {
    free_for_files(room) / MOVE_SHARE
}

/// What may be reserved in all where so much is.
fn most_bytes(room: Room, reserved_bytes: u64) -> u64 {
    let is_snapshotted = room.is_snapshotted && !broken!(SnapshotsFilled);
    let share = if is_snapshotted { SNAPSHOTTED_SHARE } else { ALL_SHARE };
    free_for_files(room).saturating_add(reserved_bytes) / share
}

/// What may be reserved at once where so much is reserved already.
fn may_bytes(room: Room, reserved_bytes: u64) -> u64 {
    let free_bytes = free_for_files(room);
    let all = most_bytes(room, reserved_bytes).saturating_sub(reserved_bytes);
    all.min(spare_bytes(room)).min(free_bytes / STEP_SHARE)
}

/// Which of the bounds of [`may_bytes`] is the least.
fn limit(room: Room, reserved_bytes: u64) -> Limit {
    let unsnapshotted = Room { is_snapshotted: false, ..room };
    match may_bytes(unsnapshotted, reserved_bytes) > may_bytes(room, reserved_bytes) {
        true => Limit::Snapshots,
        false => Limit::FreeSpace,
    }
}

/// Why a file is left alone, in words.
impl Refusal {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Self::NoFile => "no regular file with a name",
            Self::SetId => "set-id bits or file capabilities",
            Self::Executable => "may be run",
            Self::Attributes => "attributes forbid it",
            Self::Swap => "swap space",
            Self::OwnLayout => "somebody else reserved or punched it",
            Self::Shared => "shared extents",
        }
    }
}
