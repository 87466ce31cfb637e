//! A disk of a running guest as it is at one moment, for as long as it is read: made in QEMU, and removed again.
//!
//! Above the node of the guest's disk a filter copies what the guest is about to overwrite into an overlay; a second node shows the disk
//! as it was at the moment when the filter came in, and is exported. `docs/design/running-machines.md` goes through every moment.
//!
//! Invariants:
//! - everything that is made has the run's name, and the record that tells how to remove it is made first and removed last;
//! - what is removed is of a run that is over: this one, or one whose process is gone;
//! - the removal asks QEMU what is there, so it is the same after any cut, and can itself be cut short and begun again;
//! - a guest that was told to freeze is told to thaw, whatever happens between;
//! - the user's bitmap is never without a write that the target lacks.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use block::{Error, ErrorKind, Result};
use mutants::broken;
use serde_json::{Value, json};

use crate::agent::{Agent, Freeze};
use crate::inventory::VmDisk;
use crate::monitor::{Monitor, is_refusal, strange};
use crate::owner::{Life, RunId};
use crate::record::{self, Record};

const OVERLAY: &str = "over";
const FILTER: &str = "cbw";
const VIEW: &str = "snap";
const JOB: &str = "job";
const EXPORT: &str = "exp";
const SERVER: &str = "serv";
const FROZEN: &str = "frozen";
/// A bitmap of what is written since before the moment.
const SINCE_NOW: &str = "new";
/// What the user's bitmap had at the moment, or shortly after.
const UNTIL_NOW: &str = "old";
/// How long a guest's write may wait for the overlay, in seconds: then the copy is given up, and not the write.
const WRITE_WAITS_SECONDS: u32 = 20;
/// How often is looked whether something is gone.
const LOOK_COUNT_MAX: usize = 1000;
/// The name of the descriptor that the export listens at.
const LISTENS_AT: &str = "leandisk-listen";

/// What is done outside of QEMU, and known outside of it.
pub trait Surroundings {
    /// Whether that run goes on.
    fn life(&self, run: RunId) -> Life;

    /// The guest's agent, if it answers.
    fn agent(&self, path: &Path) -> Result<Box<dyn Agent>>;

    /// Removes the socket of an export, if it is there.
    fn remove_socket(&self, path: &Path) -> Result<()>;

    /// Waits for a moment, until something may have become other than it was.
    fn wait(&self);
}

/// What is to be read, and how.
pub struct Wanted<'a> {
    /// Which run this is.
    pub run: RunId,
    /// The disk.
    pub disk: &'a VmDisk,
    /// A file of the disk's length that reads as zeros: takes what the guest overwrites meanwhile.
    pub overlay: BorrowedFd<'a>,
    /// A socket that listens.
    pub socket: BorrowedFd<'a>,
    /// Where it does.
    pub socket_path: &'a Path,
    /// Whether the guest is frozen at the moment.
    pub freeze: Freeze,
    /// Where its agent is.
    pub agent: Option<&'a Path>,
    /// The bitmap that says what is to be read.
    pub since: Option<&'a str>,
}

/// A disk as it was at one moment, exported at a socket.
#[derive(Debug)]
pub struct Snapshot {
    run: RunId,
    record: Record,
    /// How many file systems were frozen; `None` if the guest was not.
    frozen: Option<u64>,
    /// Why it was not, if it was to be.
    unfrozen_because: Option<String>,
}

impl Snapshot {
    /// The export's name.
    pub fn export(&self) -> String {
        self.run.to_string()
    }

    /// The name under which the export tells what is dirty, of the metadata context `qemu:dirty-bitmap:`.
    pub fn dirty_bitmap(&self) -> String {
        self.run.part(UNTIL_NOW)
    }

    /// How many file systems were frozen at the moment; `None` if the guest was not.
    pub fn frozen(&self) -> Option<u64> {
        self.frozen
    }

    /// Why the guest was not frozen, if it was to be.
    pub fn unfrozen_because(&self) -> Option<&str> {
        self.unfrozen_because.as_deref()
    }

    /// From now on the user's bitmap holds what was written since the moment: the target holds all that was written before, for good.
    pub fn rotate(&self, monitor: &mut dyn Monitor) -> Result<()> {
        let (Some(bitmap), node) = (&self.record.bitmap, &self.record.node) else { return Ok(()) };
        // Each write is in the new bitmap or comes after the clearing: whatever is between the two.
        let clear = json!({ "type": "block-dirty-bitmap-clear", "data": { "node": node, "name": bitmap } });
        let merge = json!({ "type": "block-dirty-bitmap-merge", "data":
            { "node": node, "target": bitmap, "bitmaps": [self.run.part(SINCE_NOW)] } });
        let actions = if broken!(NewBitmapDropped) { vec![clear] } else { vec![clear, merge] };
        monitor.ask("transaction", json!({ "actions": actions }))?;
        Ok(())
    }

    /// Removes it, and all that was made for it.
    pub fn end(self, monitor: &mut dyn Monitor, around: &dyn Surroundings) -> Result<()> {
        remove(monitor, around, self.run)
    }
}

/// Makes it. What runs that are over left in this QEMU is removed before. Fails with nothing left, if QEMU still answers.
pub fn begin(monitor: &mut dyn Monitor, around: &dyn Surroundings, wanted: &Wanted<'_>) -> Result<Snapshot> {
    check_version(monitor)?;
    if let Some(other) = recover(monitor, around)?.living.first() {
        return Err(Error::refused(format!("another leandisk reads a disk of this guest ('{other}')"))
            .hint("wait until it is done; if it is in another container and gone: restart leandisk there with 'recover'"));
    }
    if let Some(bitmap) = wanted.since {
        check_bitmap(monitor, wanted.disk, bitmap)?;
    }
    make(monitor, around, wanted).map_err(|error| match remove(monitor, around, wanted.run) {
        Ok(()) => error,
        Err(left) => {
            error.hint(format!("what was made in QEMU could not be removed ({left}): leandisk recover"))
        }
    })
}

/// The copy-before-write filter that gives the copy up rather than the guest's write came with QEMU 7.1.
fn check_version(monitor: &mut dyn Monitor) -> Result<()> {
    let version = monitor.ask("query-version", json!({}))?;
    let part = |name: &str| version["qemu"][name].as_u64().unwrap_or(0);
    match (part("major"), part("minor")) {
        enough if enough >= (7, 1) => Ok(()),
        (major, minor) => Err(Error::unsupported("reading a disk of a running guest").field(
            "QEMU's version",
            format!("{major}.{minor}"),
            "7.1 or newer",
        )),
    }
}

/// `Refused` unless the bitmap has recorded all that was written since it was cleared.
fn check_bitmap(monitor: &mut dyn Monitor, disk: &VmDisk, name: &str) -> Result<()> {
    let bitmap = bitmap(monitor, &disk.node, name)?.ok_or_else(|| {
        let named = disk.bitmaps.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
        let has = if named.is_empty() { "it has none".to_owned() } else { format!("it has {named}") };
        Error::refused(format!("the disk has no dirty bitmap '{name}'")).hint(has)
    })?;
    let says = |key: &str| bitmap[key].as_bool().unwrap_or(false);
    let why = if says("inconsistent") {
        "is inconsistent: QEMU ended without storing it"
    } else if !says("recording") {
        "does not record"
    } else if says("busy") {
        "is in use by another job"
    } else {
        return Ok(());
    };
    Err(Error::refused(format!("the dirty bitmap '{name}' {why}"))
        .hint("make a full copy, with a new bitmap that is added before it begins"))
}

fn make(monitor: &mut dyn Monitor, around: &dyn Surroundings, wanted: &Wanted<'_>) -> Result<Snapshot> {
    let Wanted { run, disk, .. } = *wanted;
    let record = record_of(wanted)?;
    let text = serde_json::to_string(&record).map_err(|error| Error::io("keep a record", error.into()))?;
    if !broken!(NoRecord) {
        record::make(monitor, &run.to_string(), &text)?;
    }
    let [overlay, filter, view] = [OVERLAY, FILTER, VIEW].map(|part| run.part(part));
    let set = monitor.hand("add-fd", json!({ "opaque": run.to_string() }), wanted.overlay)?;
    let set = set["fdset-id"].as_u64().ok_or_else(|| strange("add-fd"))?;
    add_node(
        monitor,
        json!({ "driver": "file", "node-name": overlay, "filename": format!("/dev/fdset/{set}"), "discard": "unmap" }),
    )?;
    if disk.device.is_some() {
        add_node(
            monitor,
            json!({ "driver": "copy-before-write", "node-name": filter, "file": disk.node, "target": overlay,
                "on-cbw-error": "break-snapshot", "cbw-timeout": WRITE_WAITS_SECONDS }),
        )?;
    }
    if let (Some(bitmap), false) = (wanted.since, broken!(NewBitmapAfterMoment)) {
        add_bitmap(monitor, &disk.node, run.part(SINCE_NOW), bitmap, true)?;
    }
    let (frozen, unfrozen_because) = at_a_moment(monitor, around, wanted, &record)?;
    if let (Some(bitmap), true) = (wanted.since, broken!(NewBitmapAfterMoment)) {
        add_bitmap(monitor, &disk.node, run.part(SINCE_NOW), bitmap, true)?;
    }
    add_node(monitor, json!({ "driver": "snapshot-access", "node-name": view, "file": filter }))?;
    let mut export = json!({ "type": "nbd", "id": run.part(EXPORT), "node-name": view, "name": run.to_string(),
        "writable": false });
    if let Some(bitmap) = wanted.since {
        let old = run.part(UNTIL_NOW);
        add_bitmap(monitor, &disk.node, old.clone(), bitmap, false)?;
        monitor.ask(
            "block-dirty-bitmap-merge",
            json!({ "node": disk.node, "target": old, "bitmaps": [bitmap] }),
        )?;
        export["bitmaps"] = json!([{ "node": disk.node, "name": old }]);
    }
    start_server(monitor, wanted)?;
    monitor.ask("block-export-add", export)?;
    Ok(Snapshot { run, record, frozen, unfrozen_because })
}

fn record_of(wanted: &Wanted<'_>) -> Result<Record> {
    let text = |path: &Path| {
        let text = path.to_str().map(str::to_owned);
        text.ok_or_else(|| Error::unsupported("a name that is no UTF-8").path(path.display()))
    };
    let agent = wanted.agent.filter(|_| wanted.freeze != Freeze::Never);
    Ok(Record {
        node: wanted.disk.node.clone(),
        device: wanted.disk.device.clone(),
        socket: text(wanted.socket_path)?,
        agent: agent.map(text).transpose()?,
        bitmap: wanted.since.map(str::to_owned),
    })
}

fn add_node(monitor: &mut dyn Monitor, node: Value) -> Result<()> {
    monitor.ask("blockdev-add", node)?;
    Ok(())
}

/// A bitmap as fine as another one.
fn add_bitmap(monitor: &mut dyn Monitor, node: &str, name: String, like: &str, records: bool) -> Result<()> {
    let like = bitmap(monitor, node, like)?.ok_or_else(|| strange("query-named-block-nodes"))?;
    monitor.ask(
        "block-dirty-bitmap-add",
        json!({ "node": node, "name": name, "granularity": like["granularity"], "persistent": false,
            "disabled": !records }),
    )?;
    Ok(())
}

/// What QEMU says of a bitmap; `None` if there is none of that name.
fn bitmap(monitor: &mut dyn Monitor, node: &str, name: &str) -> Result<Option<Value>> {
    let mut nodes = nodes(monitor)?;
    let node = nodes.iter_mut().find(|other| other["node-name"] == node);
    let bitmaps = node.and_then(|node| node["dirty-bitmaps"].as_array_mut());
    Ok(bitmaps.and_then(|all| all.iter_mut().find(|bitmap| bitmap["name"] == name).map(Value::take)))
}

fn nodes(monitor: &mut dyn Monitor) -> Result<Vec<Value>> {
    match monitor.ask("query-named-block-nodes", json!({ "flat": true }))? {
        Value::Array(nodes) => Ok(nodes),
        _ => Err(strange("query-named-block-nodes")),
    }
}

/// The filter comes in, with the guest frozen if it can be. How many of its file systems were, and why it was not.
fn at_a_moment(
    monitor: &mut dyn Monitor,
    around: &dyn Surroundings,
    wanted: &Wanted<'_>,
    record: &Record,
) -> Result<(Option<u64>, Option<String>)> {
    let connected = match (wanted.freeze, &record.agent) {
        (Freeze::Never, _) => None,
        (_, Some(path)) => Some(around.agent(Path::new(path))),
        (Freeze::Auto, None) => None,
        (Freeze::Always, None) => {
            return Err(Error::refused("the guest cannot be frozen: no agent is named")
                .hint("--agent SOCKET, where the host has the guest agent's channel; or --freeze auto"));
        }
    };
    let mut agent = match connected {
        None => {
            take(monitor, wanted)?;
            return Ok((None, None));
        }
        Some(Err(error)) if wanted.freeze == Freeze::Always => return Err(not_frozen(&error)),
        Some(Err(error)) => {
            take(monitor, wanted)?;
            return Ok((None, Some(error.to_string())));
        }
        Some(Ok(agent)) => agent,
    };
    let marker = wanted.run.part(FROZEN);
    if !broken!(FreezeNotRecorded) {
        record::make(monitor, &marker, "the guest may be frozen")?;
    }
    let frozen = agent.freeze();
    let taken = match &frozen {
        Err(error) if wanted.freeze == Freeze::Always => Err(not_frozen(error)),
        _ => take(monitor, wanted),
    };
    if !(broken!(ThawOnlyAfterSuccess) && taken.is_err()) {
        // Whoever freezes late was told to thaw after that.
        thaw(&mut *agent, around, record)?;
        if !broken!(FreezeNotRecorded) {
            record::remove(monitor, &marker)?;
        }
    }
    taken?;
    match frozen {
        Ok(count) => Ok((Some(count), None)),
        Err(error) => Ok((None, Some(error.to_string()))),
    }
}

fn not_frozen(error: &Error) -> Error {
    Error::refused(format!("the guest cannot be frozen: {error}"))
        .hint("start the guest agent in the guest, or copy it as it is with --freeze auto")
}

/// Thaws the guest, at a second attempt through a connection of its own.
fn thaw(agent: &mut dyn Agent, around: &dyn Surroundings, record: &Record) -> Result<()> {
    agent.thaw().or_else(|_| thaw_anew(around, record))
}

fn thaw_anew(around: &dyn Surroundings, record: &Record) -> Result<()> {
    let Some(path) = &record.agent else { return Ok(()) };
    let thawed = around.agent(Path::new(path)).and_then(|mut agent| agent.thaw());
    thawed.map_err(|error| {
        error.hint(
            "the guest may be frozen: virsh domfsthaw, or 'fsfreeze --unfreeze' in it; then leandisk recover",
        )
    })
}

/// The moment: from here on the filter sees what the guest writes before the disk does.
fn take(monitor: &mut dyn Monitor, wanted: &Wanted<'_>) -> Result<()> {
    let Wanted { run, disk, .. } = *wanted;
    match &disk.device {
        Some(device) => put_in(monitor, device, &run.part(FILTER)),
        // Without a device the filter comes as that of a job, which puts it above the node for all who use that.
        None => monitor
            .ask(
                "blockdev-backup",
                json!({ "job-id": run.part(JOB), "device": disk.node, "target": run.part(OVERLAY), "sync": "none",
                    "filter-node-name": run.part(FILTER) }),
            )
            .map(drop),
    }
}

fn put_in(monitor: &mut dyn Monitor, device: &str, node: &str) -> Result<()> {
    monitor.ask("qom-set", json!({ "path": device, "property": "drive", "value": node }))?;
    Ok(())
}

/// Has QEMU listen at the socket. A mark says that the server is this run's, and is made before.
fn start_server(monitor: &mut dyn Monitor, wanted: &Wanted<'_>) -> Result<()> {
    let marker = wanted.run.part(SERVER);
    record::make(monitor, &marker, "the NBD server was started for this run")?;
    monitor.hand("getfd", json!({ "fdname": LISTENS_AT }), wanted.socket)?;
    let address = json!({ "addr": { "type": "fd", "data": { "str": LISTENS_AT } } });
    let started = monitor.ask("nbd-server-start", address).map(drop);
    if let Err(error) = &started
        && is_refusal(error)
    {
        // It is somebody else's: this run must not stop it.
        record::remove(monitor, &marker)?;
        let _ = monitor.ask("closefd", json!({ "fdname": LISTENS_AT }));
        return Err(Error::refused("QEMU's NBD server is in use, and a QEMU has but one")
            .because(Error::refused(error.to_string()))
            .hint("wait until the other backup or migration is done, or end it with nbd-server-stop"));
    }
    started
}

/// What a recovery found.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Recovered {
    /// Runs that were over: nothing of them is left.
    pub removed: Vec<RunId>,
    /// Runs that go on, or may: left as they are.
    pub living: Vec<RunId>,
}

/// Removes what runs left that are over.
pub fn recover(monitor: &mut dyn Monitor, around: &dyn Surroundings) -> Result<Recovered> {
    let mut recovered = Recovered::default();
    for run in runs(monitor)? {
        match around.life(run) {
            Life::Alive | Life::Unknown if !broken!(LivingTornDown) => recovered.living.push(run),
            _ => {
                remove(monitor, around, run)?;
                recovered.removed.push(run);
            }
        }
    }
    Ok(recovered)
}

/// All runs of which there is anything.
fn runs(monitor: &mut dyn Monitor) -> Result<BTreeSet<RunId>> {
    let mut names = record::objects(monitor)?;
    for node in nodes(monitor)? {
        names.extend(node["node-name"].as_str().map(str::to_owned));
        let bitmaps = node["dirty-bitmaps"].as_array().map(Vec::as_slice).unwrap_or_default();
        names.extend(bitmaps.iter().filter_map(|bitmap| bitmap["name"].as_str().map(str::to_owned)));
    }
    for (command, key) in [("query-block-exports", "id"), ("query-jobs", "id")] {
        let all = monitor.list(command)?;
        names.extend(all.iter().filter_map(|one| one[key].as_str().map(str::to_owned)));
    }
    // Descriptors are given after the record is made, and a guest that stands still keeps them when all else is removed.
    Ok(names.iter().filter_map(|name| RunId::parse(name)).map(|(run, _)| run).collect())
}

/// Descriptors that were given, each by its set and what it was called.
fn sets(monitor: &mut dyn Monitor) -> Result<Vec<(u64, String)>> {
    let mut found = Vec::new();
    for set in monitor.list("query-fdsets")? {
        let id = set["fdset-id"].as_u64().ok_or_else(|| strange("query-fdsets"))?;
        let files = set["fds"].as_array().map(Vec::as_slice).unwrap_or_default();
        found.extend(files.iter().filter_map(|file| Some((id, file["opaque"].as_str()?.to_owned()))));
    }
    Ok(found)
}

/// Removes all that there is of a run: what reads first, then what is read.
fn remove(monitor: &mut dyn Monitor, around: &dyn Surroundings, run: RunId) -> Result<()> {
    let record = record::read(monitor, run)?;
    if record::objects(monitor)?.contains(&run.part(FROZEN)) {
        if let Some(record) = &record {
            thaw_anew(around, record)?;
        }
        record::remove(monitor, &run.part(FROZEN))?;
    }
    remove_export(monitor, around, run)?;
    stop_server(monitor, run)?;
    remove_node(monitor, &run.part(VIEW))?;
    cancel_job(monitor, around, run)?;
    if !broken!(FilterLeftIn) {
        take_out(monitor, run, record.as_ref())?;
    }
    remove_node(monitor, &run.part(FILTER))?;
    if !broken!(OverlayLeft) {
        remove_node(monitor, &run.part(OVERLAY))?;
    }
    for (set, opaque) in sets(monitor)? {
        if opaque == run.to_string() {
            // Of a guest that stands still QEMU lets go when it runs again; the set is listed until then.
            monitor.ask("remove-fd", json!({ "fdset-id": set })).or_else(ignore_refusal)?;
        }
    }
    remove_bitmaps(monitor, run, record.as_ref())?;
    let Some(record) = record else { return Ok(()) };
    around.remove_socket(&PathBuf::from(record.socket))?;
    record::remove(monitor, &run.to_string())
}

fn ignore_refusal(error: Error) -> Result<Value> {
    if is_refusal(&error) { Ok(Value::Null) } else { Err(error) }
}

fn remove_export(monitor: &mut dyn Monitor, around: &dyn Surroundings, run: RunId) -> Result<()> {
    let id = run.part(EXPORT);
    let is_there = |monitor: &mut dyn Monitor| {
        let exports = monitor.list("query-block-exports")?;
        Ok(exports.iter().any(|export| export["id"] == id.as_str()))
    };
    if !is_there(monitor)? {
        return Ok(());
    }
    // One that is going already is refused.
    monitor.ask("block-export-del", json!({ "id": id, "mode": "hard" })).or_else(ignore_refusal)?;
    wait_until_gone(monitor, around, "its export", is_there)
}

fn wait_until_gone(
    monitor: &mut dyn Monitor,
    around: &dyn Surroundings,
    what: &str,
    is_there: impl Fn(&mut dyn Monitor) -> Result<bool>,
) -> Result<()> {
    for _ in 0..LOOK_COUNT_MAX {
        if !is_there(monitor)? {
            return Ok(());
        }
        around.wait();
    }
    let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
    Err(Error::io(format!("wait for QEMU to end {what}"), late))
}

/// Stops the NBD server, if it was started for this run and nobody else came to use it.
fn stop_server(monitor: &mut dyn Monitor, run: RunId) -> Result<()> {
    let marker = run.part(SERVER);
    if !record::objects(monitor)?.contains(&marker) {
        return Ok(());
    }
    let exports = monitor.list("query-block-exports")?;
    if !exports.iter().any(|export| export["type"] == "nbd") || broken!(ServerOfOthersStopped) {
        monitor.ask("nbd-server-stop", json!({})).or_else(ignore_refusal)?;
    }
    record::remove(monitor, &marker)
}

fn remove_node(monitor: &mut dyn Monitor, name: &str) -> Result<()> {
    if nodes(monitor)?.iter().any(|node| node["node-name"] == name) {
        monitor.ask("blockdev-del", json!({ "node-name": name }))?;
    }
    Ok(())
}

fn cancel_job(monitor: &mut dyn Monitor, around: &dyn Surroundings, run: RunId) -> Result<()> {
    let id = run.part(JOB);
    let is_there = |monitor: &mut dyn Monitor| {
        let jobs = monitor.list("query-jobs")?;
        Ok(jobs.iter().any(|job| job["id"] == id.as_str()))
    };
    if !is_there(monitor)? {
        return Ok(());
    }
    monitor.ask("block-job-cancel", json!({ "device": id, "force": true })).or_else(ignore_refusal)?;
    wait_until_gone(monitor, around, "its job", is_there)
}

/// Puts the guest's own node back under its device.
fn take_out(monitor: &mut dyn Monitor, run: RunId, record: Option<&Record>) -> Result<()> {
    let filter = run.part(FILTER);
    let blocks = monitor.list("query-block")?;
    let above = blocks.iter().find(|block| block["inserted"]["node-name"] == filter.as_str());
    let Some(device) = above.and_then(|block| block["qdev"].as_str()) else { return Ok(()) };
    let Some(record) = record else {
        return Err(Error::refused(format!("'{filter}' is above a disk, and no record says which"))
            .hint("put the disk's own node back with qom-set, property drive"));
    };
    put_in(monitor, device, &record.node)
}

/// Removes the run's bitmaps. What the new one holds is in the user's as well then: a run that was cut between clearing that and filling it
/// loses nothing.
fn remove_bitmaps(monitor: &mut dyn Monitor, run: RunId, record: Option<&Record>) -> Result<()> {
    let [new, old] = [SINCE_NOW, UNTIL_NOW].map(|part| run.part(part));
    for node in nodes(monitor)? {
        let Some(name) = node["node-name"].as_str() else { continue };
        let bitmaps = node["dirty-bitmaps"].as_array().map(Vec::as_slice).unwrap_or_default();
        let has = |wanted: &str| bitmaps.iter().any(|bitmap| bitmap["name"] == wanted);
        if let Some(bitmap) = record.and_then(|record| record.bitmap.as_deref())
            && has(&new)
            && has(bitmap)
        {
            monitor.ask(
                "block-dirty-bitmap-merge",
                json!({ "node": name, "target": bitmap, "bitmaps": [new] }),
            )?;
        }
        for own in [&new, &old] {
            if has(own) {
                monitor.ask("block-dirty-bitmap-remove", json!({ "node": name, "name": own }))?;
            }
        }
    }
    Ok(())
}

/// Whether the error says that QEMU is gone, and with it all that was made in it.
pub fn is_over(error: &Error) -> bool {
    error.kind() == ErrorKind::Io && crate::monitor::is_gone(error)
}
