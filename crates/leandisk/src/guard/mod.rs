//! `leandisk guard`: room ahead for files that grow, repair of those that were closed in pieces, and free space brought together, on the file systems of the machine
//! that runs it.
//!
//! One thread: it waits for events of all file systems, hands them to a [`::guard::Guard`] each, and lets these act. Nothing
//! here decides what happens to a file.
//!
//! Invariants: one guard a state folder; room that a killed guard left goes back before anything else, wherever its file systems are
//! mounted; a dry run writes nothing but its status.

mod chronicle;
mod history;
mod host;
mod metrics;
mod pace;
mod state;
mod turns;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ::coordinate::{Disks, May};
use ::guard::{
    Allowance, BTRFS, Busy, Counters, EXT4, Facts, FileId, Guard, Limit, Machine, Options as GuardOptions,
    Policy, Pressure, SpaceFacts, Stamp, XFS,
};
use block::{Error, Result};
use os::{DeviceNumber, FileFacts, GuardedKind, GuardedSystem, Handle, Seen, Watch};
use predict::profile::{HDD, NVME, Profile, SATA_SSD};
use report::{GuardDocument, GuardReport, GuardState, GuardedPath, ReserveLimit, guard_report_page};

use crate::Observer;
use crate::output::OutputFile;
use crate::waits::waits;
use chronicle::Chronicle;
pub use history::HISTORY_DAYS_MAX;
use host::HostMachine;
use metrics::Metrics;
use pace::{Pace, paces};
use state::State;
use turns::Turns;

/// Where a guard keeps its ledgers.
pub const STATE_FOLDER: &str = "/var/lib/leandisk";
/// Where it keeps its lock and its status.
pub const RUN_FOLDER: &str = "/run/leandisk";

/// How long it tries to give room back before it ends.
const END_TIME: Duration = Duration::from_secs(8);
/// Without events it looks around this often.
const TICK_MS: u64 = 100;
/// Events are collected for so long: while files are new, and else.
const COLLECT_NEW: Duration = Duration::from_millis(2);
const COLLECT: Duration = Duration::from_millis(10);
/// Files are put together for so long, then it looks whether others wait.
const WORK_TIME: Duration = Duration::from_millis(100);
/// It looks again after so long.
const LOOK_MS: u64 = 200;
const STATUS_MS: u64 = 500;
/// So long before a lease ends nothing is begun any more.
const LEASE_REST_MS: u64 = 300;
/// After an error a file system is left in peace for so long.
const ERROR_MS: u64 = 1000;

/// What is guarded, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folders; if there are none, all file systems that can be guarded.
    pub paths: Vec<PathBuf>,
    /// Where ledgers, status and lock are; the system's folders if there is none.
    pub state: Option<PathBuf>,
    /// Only look, and count what would be done.
    pub dry_run: bool,
    /// Put together what was closed in pieces.
    pub repairs: bool,
    /// Reserve room ahead.
    pub prevents: bool,
    /// Bring free space together.
    pub consolidates: bool,
    /// Nothing was written for so long before anything is put together.
    pub idle: Duration,
    /// Where counts go for Prometheus: an address to listen on, or a file.
    pub metrics: Option<String>,
    /// What the kernel counts of waiting: `/proc/pressure`.
    pub pressure: PathBuf,
    /// What the kernel counts of devices, by their numbers: `/sys/dev/block`.
    pub device_counters: PathBuf,
    /// The socket or port of a coordinator; found without if there is none here.
    pub coordinator: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            paths: Vec::new(),
            state: None,
            dry_run: false,
            repairs: true,
            prevents: true,
            consolidates: true,
            idle: Duration::from_secs(2),
            metrics: None,
            pressure: PathBuf::from("/proc/pressure"),
            device_counters: PathBuf::from("/sys/dev/block"),
            coordinator: None,
        }
    }
}

/// What the guard whose state is in this folder does, or did last.
pub fn status(state: Option<&Path>) -> Result<GuardDocument> {
    State::status(state)
}

/// What is reported of a history.
#[derive(Clone, Debug)]
pub struct ReportOptions {
    /// The folder that guards were given; the system's if there is none.
    pub state: Option<PathBuf>,
    /// So many days up to today, in UTC; up to [`HISTORY_DAYS_MAX`].
    pub days: u32,
    /// A page to write.
    pub html: Option<PathBuf>,
    /// The page may replace a file.
    pub force: bool,
}

/// What guards with a state folder did, by day. Works beside a guard that runs, and without one.
pub fn report(options: &ReportOptions, observer: &dyn Observer) -> Result<GuardReport> {
    let folder = options.state.clone().unwrap_or_else(|| PathBuf::from(STATE_FOLDER));
    let page =
        options.html.as_deref().map(|path| OutputFile::prepare(path, options.force, &[])).transpose()?;
    let running = State::status(options.state.as_deref())?.running;
    let report = history::read(&folder, running, history::today(), options.days)?;
    if let Some(page) = page {
        page.write_page(&guard_report_page(&report), &folder, observer)?;
    }
    Ok(report)
}

/// Guards until `stop` is set, then gives back what is unused. `ready` is called once it watches, `stopping` once it does no more.
pub fn run(
    options: &Options,
    observer: &dyn Observer,
    stop: &AtomicBool,
    ready: impl FnOnce(&[PathBuf]),
    stopping: impl FnOnce(),
) -> Result<()> {
    let mut state = State::take(options.state.as_deref())?;
    let mut metrics = options.metrics.as_deref().map(Metrics::open).transpose()?;
    let mut systems = find(options, &mut state, observer)?;
    let mut chronicle = Chronicle::new(state.history(options.dry_run, observer), &systems);
    let mut turns = turns_of(options, &mut systems);
    let mut paces = paces(&options.device_counters, &mut systems);
    let paths: Vec<_> = systems
        .iter()
        .filter(|system| system.watch.is_some())
        .flat_map(|system| system.roots.clone())
        .collect();
    let mut document = GuardDocument::new(std::process::id(), options.dry_run);
    let began = Instant::now();
    let mut clock = Clock { began, asleep_ms: 0, status_ms: 0 };
    show(&mut document, &systems, &state, &mut metrics, &clock);
    ready(&paths);
    while !stop.load(Ordering::Relaxed) {
        turn(options, &mut systems, &mut clock, &mut chronicle, &mut turns, &mut paces);
        chronicle.save(clock.now(), &mut systems, false);
        if clock.now() >= clock.status_ms {
            clock.status_ms = clock.now() + STATUS_MS;
            show(&mut document, &systems, &state, &mut metrics, &clock);
        }
        if let Some(metrics) = &mut metrics {
            metrics.serve(&document);
        }
    }
    stopping();
    let left = end(&mut systems, &clock);
    chronicle.save(clock.now(), &mut systems, true);
    for system in &mut systems {
        (system.state, system.reason) = (GuardState::Off, Some("the guard ended".to_owned()));
    }
    show(&mut document, &systems, &state, &mut metrics, &clock);
    if left > 0 {
        observer.note(&format!(
            "{left} files with reserved room are still open in other programs; the next guard gives it back once they are closed"
        ));
    }
    Ok(())
}

/// Time since the beginning, and what is counted of it.
struct Clock {
    began: Instant,
    asleep_ms: u64,
    status_ms: u64,
}

impl Clock {
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// A file system with its guard.
struct System {
    roots: Vec<PathBuf>,
    /// Everything on it is guarded, not only what is below the roots.
    is_whole: bool,
    name: String,
    guard: Option<Guard<HostMachine>>,
    watch: Option<Watch>,
    pressure: Pressure,
    /// When others last wrote, when it was looked for others last (not yet, for the work that there is), and until when nothing is done after an
    /// error.
    written_ms: u64,
    looked_ms: Option<u64>,
    quiet_ms: u64,
    state: GuardState,
    reason: Option<String>,
    /// Why it sleeps, in words that are the same each time.
    why: &'static str,
    uuid: [u8; 16],
    /// What it lies on.
    devices: Vec<DeviceNumber>,
    /// What of its counts is in the history.
    saved: Counters,
    /// Which of the paces is its own.
    pace: usize,
    /// What a coordinator is asked for.
    disks: Option<Disks>,
    gain: u64,
}

const OTHERS_TURN: &str = "other guards had their turn";

const WRITERS: &str = "files were being written";

/// How much sooner a GiB in small pieces is read once it is together, in milliseconds and very roughly: enough to have
/// spinning disks come first.
fn gain_of(profile: &Profile) -> u64 {
    match profile.name {
        name if name == HDD.name => 20_000,
        name if name == NVME.name => 200,
        _ => 1_000,
    }
}

/// Asks for all devices of what is guarded.
fn turns_of(options: &Options, systems: &mut [System]) -> Turns {
    let devices: Vec<_> = systems.iter().flat_map(|system| system.devices.clone()).collect();
    let turns = Turns::new(options.coordinator.as_deref(), &devices);
    for system in systems {
        system.disks = turns.disks(&system.devices);
    }
    turns
}

/// Reasons of a history.
fn why(busy: Busy) -> &'static str {
    match busy {
        Busy::Devices(_) => "others waited for devices",
        Busy::Processors(_) => "others waited for processors",
    }
}

fn policy_of(kind: GuardedKind) -> Policy {
    match kind {
        GuardedKind::Ext4 => EXT4,
        GuardedKind::Xfs => XFS,
        GuardedKind::Btrfs => BTRFS,
    }
}

/// What reading costs where this lies, as far as the kernel tells.
fn profile_of(path: &Path) -> &'static Profile {
    match os::queue_of(path) {
        Some(queue) if queue.is_nvme => &NVME,
        Some(queue) if queue.is_rotational && !queue.is_virtual => &HDD,
        _ => &SATA_SSD,
    }
}

fn find(options: &Options, state: &mut State, observer: &dyn Observer) -> Result<Vec<System>> {
    let are_named = !options.paths.is_empty();
    let paths = if are_named { options.paths.clone() } else { os::guarded_mounts() };
    let mut systems: Vec<System> = Vec::new();
    let mut known: Vec<[u8; 16]> = Vec::new();
    for path in paths {
        let found = match GuardedSystem::find(&path) {
            Ok(Ok(found)) => found,
            Ok(Err(other)) if are_named => {
                return Err(Error::unsupported(format!("guarding a file system of type {other}"))
                    .path(path.display().to_string())
                    .hint("ext4, XFS and Btrfs can be guarded"));
            }
            Err(error) if are_named => return Err(error),
            _ => continue,
        };
        if let Some(at) = known.iter().position(|uuid| *uuid == found.uuid) {
            systems[at].is_whole |= is_mount_root(&found.path);
            systems[at].roots.push(found.path);
            continue;
        }
        known.push(found.uuid);
        let watch = if options.prevents || options.repairs || options.consolidates {
            Some(Watch::new(&found)?)
        } else {
            None
        };
        let is_off = watch.is_none();
        systems.push(System {
            is_whole: is_mount_root(&found.path),
            state: if is_off { GuardState::Off } else { GuardState::Working },
            reason: is_off.then(|| "nothing that a guard does is wanted".to_owned()),
            ..system(options, state, found, watch)?
        });
    }
    if systems.is_empty() {
        return Err(Error::refused("no file system that could be guarded is mounted")
            .hint("ext4, XFS and Btrfs can be guarded"));
    }
    for System { guard, roots, .. } in &mut systems {
        if let Some(guard) = guard {
            guard.machine().guards(roots);
        }
    }
    // What was reserved where nothing is guarded any more.
    for (uuid, mount) in state.ledgers() {
        if known.contains(&uuid) || options.dry_run {
            continue;
        }
        match GuardedSystem::find(&mount) {
            Ok(Ok(found)) if found.uuid == uuid => {
                let mut former = system(options, state, found, None)?;
                former.roots.clear();
                systems.push(former);
            }
            _ => observer.note(&format!(
                "{} is not mounted where it was: what was reserved there goes back once a guard runs there",
                mount.display()
            )),
        }
    }
    Ok(systems)
}

fn system(
    options: &Options,
    state: &mut State,
    found: GuardedSystem,
    watch: Option<Watch>,
) -> Result<System> {
    let (ledger, said) = state.ledger(&found, options.dry_run)?;
    let guard_options = GuardOptions {
        prevents: options.prevents,
        repairs: options.repairs,
        consolidates: options.consolidates,
        dry_run: options.dry_run,
        policy: policy_of(found.kind),
        profile: *profile_of(&found.path),
    };
    let (roots, name) = (vec![found.path.clone()], found.kind.name().to_owned());
    let (uuid, devices) = (found.uuid, os::devices_below_system(&found));
    let gain = gain_of(&guard_options.profile);
    let machine = HostMachine::new(found, ledger);
    let mut guard = Guard::new(machine, guard_options, said.claims);
    guard.remember_moved(said.moved);
    Ok(System {
        roots,
        is_whole: true,
        name,
        guard: Some(guard),
        watch,
        pressure: Pressure::default(),
        written_ms: 0,
        looked_ms: None,
        quiet_ms: 0,
        state: GuardState::Working,
        reason: None,
        why: WRITERS,
        uuid,
        devices,
        saved: Counters::default(),
        pace: 0,
        disks: None,
        gain,
    })
}

/// Whether the file system's whole tree, as far as it is mounted there, is below the folder.
fn is_mount_root(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
    path.parent().is_none_or(|parent| device(parent) != device(path))
}

fn facts_of(facts: FileFacts) -> Facts {
    let FileFacts { size_bytes, allocated_bytes, modified: (seconds, nanoseconds) } = facts;
    Facts { size_bytes, allocated_bytes, modified: Stamp { seconds, nanoseconds } }
}

/// Waits for events, and does what is to be done.
fn turn(
    options: &Options,
    systems: &mut [System],
    clock: &mut Clock,
    chronicle: &mut Chronicle,
    turns: &mut Turns,
    paces: &mut [Pace],
) {
    turns.turn(clock.now());
    let began = clock.now();
    let due = systems.iter().filter_map(|system| system.guard.as_ref()?.next_due()).min();
    let patience = due.map_or(TICK_MS, |due| due.saturating_sub(began).clamp(1, TICK_MS));
    let watches: Vec<&Watch> = systems.iter().filter_map(|system| system.watch.as_ref()).collect();
    os::wait_for_events(&watches, patience);
    let mut has_events = false;
    let mut has_new = false;
    for system in systems.iter_mut() {
        let (events, new) = system.listen(clock);
        has_events |= events;
        has_new |= new;
        system.act(clock.now());
    }
    if has_events {
        std::thread::sleep(if has_new { COLLECT_NEW } else { COLLECT });
    }
    for system in systems.iter_mut() {
        if let Some(pace) = paces.get_mut(system.pace) {
            system.repair(options, clock, turns, pace);
        }
    }
    if let Some(system) = systems.iter().find(|system| system.state == GuardState::Asleep) {
        let passed = clock.now().saturating_sub(began);
        clock.asleep_ms += passed;
        chronicle.slept(system.why, passed);
    }
}

impl System {
    /// Takes what happened. Whether anything did, and whether to a file that has no room yet.
    fn listen(&mut self, clock: &Clock) -> (bool, bool) {
        let (Some(watch), Some(guard)) = (&mut self.watch, &mut self.guard) else { return (false, false) };
        let (is_whole, roots) = (self.is_whole, &self.roots);
        let (mut has_events, mut has_new) = (false, false);
        let now = clock.now();
        guard.machine().forget_writers();
        let mut take = |seen: Seen| {
            has_events = true;
            let Some(file) = seen.file else { return guard.missed() };
            let Some(id) = Handle::of(&file).ok().and_then(|handle| FileId::new(handle.bytes())) else {
                return;
            };
            if guard.leaves_alone(&id) && !seen.was_closed {
                return;
            }
            let Ok(facts) = FileFacts::of(&file) else { return };
            if !is_whole
                && !os::name_of(&file).is_some_and(|name| roots.iter().any(|root| name.starts_with(root)))
            {
                return;
            }
            if let (true, Ok(found)) = (seen.was_written, file.metadata()) {
                guard.machine().wrote(&id, seen.process, std::os::unix::fs::MetadataExt::ino(&found));
            }
            guard.seen(now, id, &facts_of(facts), seen.was_written, seen.was_closed);
            has_new |= !seen.was_closed;
        };
        let result = loop {
            match watch.read(&mut take) {
                Ok(true) => {}
                result => break result,
            }
        };
        if has_events {
            self.written_ms = now;
        }
        if let Err(error) = result {
            self.fail(now, &error);
        }
        (has_events, has_new)
    }

    fn act(&mut self, now: u64) {
        let Some(guard) = &mut self.guard else { return };
        if now < self.quiet_ms {
            return;
        }
        if let Err(error) = guard.act(now) {
            self.fail(now, &error);
        }
    }

    /// What is wrong is told, and tried again later, unless the file system is gone.
    fn fail(&mut self, now: u64, error: &Error) {
        tracing::warn!(%error, "guard");
        self.quiet_ms = now + ERROR_MS;
        self.reason = Some(error.to_string());
        let is_there = self.guard.as_mut().is_some_and(|guard| guard.machine().is_there());
        if !is_there {
            // Its ledger stays.
            (self.guard, self.watch, self.state) = (None, None, GuardState::Off);
            self.reason = Some("it is not mounted any more".to_owned());
        }
    }

    fn sleep(&mut self, why: &'static str, reason: String) {
        (self.state, self.why, self.reason) = (GuardState::Asleep, why, Some(reason));
    }

    fn repair(&mut self, options: &Options, clock: &Clock, turns: &mut Turns, pace: &mut Pace) {
        let Some(guard) = &self.guard else { return };
        let now = clock.now();
        if self.state == GuardState::Off || now < self.quiet_ms {
            return;
        }
        if !guard.has_suspects() && !guard.has_space_work(now) {
            turns.done(self.disks);
            (self.state, self.reason, self.looked_ms) = (GuardState::Working, None, None);
            return;
        }
        let idle_ms = u64::try_from(options.idle.as_millis()).unwrap_or(u64::MAX);
        if now < self.written_ms.saturating_add(idle_ms) {
            self.looked_ms = None;
            return self.sleep(WRITERS, "files are being written".to_owned());
        }
        match self.looked_ms {
            Some(looked) if now < looked + LOOK_MS => {}
            Some(_) => self.repair_if_idle(options, clock, turns, pace),
            None => self.skip(options, clock, pace),
        }
    }

    /// What was until now is no reason to wait.
    fn skip(&mut self, options: &Options, clock: &Clock, pace: &mut Pace) {
        let now = clock.now();
        self.looked_ms = Some(now);
        self.pressure.skip(now, waits(&options.pressure));
        pace.skip();
    }

    /// Looks whether others use or wait for what the work needs, and works for a turn if they do not.
    fn repair_if_idle(&mut self, options: &Options, clock: &Clock, turns: &mut Turns, pace: &mut Pace) {
        let now = clock.now();
        self.looked_ms = Some(now);
        let busy = self.pressure.look(now, waits(&options.pressure));
        // Asked in any case: a pause of its own ends by it.
        let used = pace.waits(now);
        if let Some(busy) = busy {
            return self.sleep(why(busy), busy.text());
        }
        if let Some(reason) = used {
            return self.sleep(pace::why(reason), reason.to_string());
        }
        (self.state, self.reason) = (GuardState::Working, None);
        if !self.guard.as_ref().is_some_and(|guard| guard.has_work(now) || guard.has_space_work(now)) {
            return turns.done(self.disks);
        }
        match turns.may(now, self.disks.filter(|_| !options.dry_run), self.gain) {
            May::Alone => self.repair_for_a_turn(clock, turns, pace, (u64::MAX, u64::MAX)),
            May::Wait => self.sleep(OTHERS_TURN, "it is another guard's turn on the storage".to_owned()),
            May::Go { bytes, until } => self.repair_for_a_turn(clock, turns, pace, (bytes, until)),
        }
        // Own waiting does not count.
        self.looked_ms = Some(clock.now());
        self.pressure.skip(clock.now(), waits(&options.pressure));
    }

    /// Puts files together for a while, as far as the lease of bytes and time allows.
    fn repair_for_a_turn(
        &mut self,
        clock: &Clock,
        turns: &mut Turns,
        pace: &mut Pace,
        (bytes, until): (u64, u64),
    ) {
        let Some(guard) = &mut self.guard else { return };
        let began = Instant::now();
        // A file that moves as a whole is not begun anew each time.
        let whole_files = guard.machine().moves_whole_files();
        let before = guard.counters();
        let bytes = bytes.min(turns.growth_left(self.disks));
        let has_time = || clock.now().saturating_add(LEASE_REST_MS) < until;
        os::be_idle_io(true);
        pace.begins();
        let mut goes_on = |bytes: u64| {
            let is_paced = pace.goes_on(clock.now(), bytes);
            is_paced && has_time() && (whole_files || bytes == 0 || began.elapsed() < WORK_TIME)
        };
        let mut allowance = Allowance { bytes, goes_on: &mut goes_on };
        let mut result = Ok(true);
        while matches!(result, Ok(true)) && began.elapsed() < WORK_TIME && (allowance.goes_on)(0) {
            result = guard.repair_next_within(clock.now(), &mut allowance);
        }
        // Free space comes after the files that wait.
        let bytes = allowance.bytes;
        if matches!(result, Ok(false)) {
            let mut goes_on =
                |bytes: u64| pace.goes_on(clock.now(), bytes) && has_time() && began.elapsed() < WORK_TIME;
            let mut allowance = Allowance { bytes, goes_on: &mut goes_on };
            result = consolidate(guard, clock, &mut allowance);
        }
        pace.ends();
        os::be_idle_io(false);
        let done = guard.counters().since(before);
        turns.moved(done.moved_bytes.saturating_add(done.space_moved_bytes));
        if let Err(error) = result {
            self.fail(clock.now(), &error);
        }
    }
}

/// Brings free space together for the rest of a turn.
fn consolidate(guard: &mut Guard<HostMachine>, clock: &Clock, allowance: &mut Allowance<'_>) -> Result<bool> {
    let today = u64::try_from(history::today()).unwrap_or(0);
    let mut result = Ok(true);
    while matches!(result, Ok(true)) && (allowance.goes_on)(0) {
        result = guard.consolidate_within(clock.now(), today, allowance);
    }
    result
}

/// Gives back what nobody has open. How many files still have room.
fn end(systems: &mut [System], clock: &Clock) -> usize {
    let began = Instant::now();
    loop {
        let mut left = 0;
        for guard in systems.iter_mut().filter_map(|system| system.guard.as_mut()) {
            let given = guard.give_back_all(clock.now());
            left += given.unwrap_or_else(|error| {
                tracing::warn!(%error, "room could not be given back");
                guard.claim_count()
            });
        }
        if left == 0 || began.elapsed() >= END_TIME {
            return left;
        }
        std::thread::sleep(Duration::from_millis(TICK_MS));
    }
}

/// Writes the status.
fn show(
    document: &mut GuardDocument,
    systems: &[System],
    state: &State,
    metrics: &mut Option<Metrics>,
    clock: &Clock,
) {
    let before = document.clone();
    document.asleep_seconds = Duration::from_millis(clock.asleep_ms).as_secs_f64();
    document.paths.clear();
    for system in systems {
        let guard = system.guard.as_ref();
        let counters = guard.map(Guard::counters).unwrap_or_default();
        let seen = guard.map(Guard::space_seen).unwrap_or_default();
        let largest = |facts: SpaceFacts| facts.largest_free_bytes;
        for root in &system.roots {
            document.paths.push(GuardedPath {
                path: root.display().to_string(),
                filesystem: system.name.clone(),
                prevented: counters.prevented,
                repaired: counters.repaired,
                moved_bytes: counters.moved_bytes,
                reserved_bytes: guard.map_or(0, Guard::reserved_bytes),
                limited_by: guard.and_then(Guard::limited).map(|limit| match limit {
                    Limit::Snapshots => ReserveLimit::Snapshots,
                    Limit::FreeSpace => ReserveLimit::FreeSpace,
                }),
                shared_skipped: counters.shared_skipped,
                waiting_files: guard.map_or(0, |guard| guard.suspect_count() as u64),
                space_moved_bytes: counters.space_moved_bytes,
                space_stretches: counters.space_stretches,
                largest_free_before_bytes: seen.before.map(largest),
                largest_free_bytes: seen.would_be_bytes.or(seen.now.map(largest)),
                state: system.state,
                reason: system.reason.clone(),
            });
        }
    }
    if *document == before {
        return;
    }
    state.show(document);
    if let Some(metrics) = metrics {
        metrics.write(document);
    }
}
