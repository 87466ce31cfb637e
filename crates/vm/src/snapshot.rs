//! Disks of a running guest as they are at one moment, for as long as they are read: made in QEMU, and removed again.
//!
//! Above the node of each disk a filter copies what the guest is about to overwrite into an overlay; a second node shows the disk
//! as it was at the moment when the filter came in, and is exported. `docs/design/running-machines.md` goes through every moment.
//!
//! Invariants:
//! - everything that is made has the run's name, and the record that tells how to remove it is made first and removed last;
//! - all disks of a run that devices use are taken at one moment, by one command;
//! - a guest that was told to freeze is told to thaw, whatever happens between;
//! - the user's bitmap is never without a write that the target lacks.

use std::os::fd::BorrowedFd;
use std::path::Path;

use block::{Error, ErrorKind, Result};
use mutants::broken;
use serde_json::{Value, json};

use crate::agent::{Agent, Freeze};
use crate::inventory::VmDisk;
use crate::monitor::{Monitor, is_refusal, strange};
use crate::nodes::{add_node, gate_to, nodes, put_in, reopen};
use crate::owner::RunId;
use crate::parts::{EXPORT, FILTER, FROZEN, GATE, JOB, KEPT, OVERLAY, SERVER, SINCE_NOW, UNTIL_NOW, VIEW};
use crate::record::{self, Record, RecordedDisk};
use crate::removal::{recover, remove, remove_export, thaw_anew};
use crate::surroundings::Surroundings;
use crate::threads;

/// The most disks that are read at one moment: names of nodes have room for two digits.
pub const DISK_COUNT_MAX: usize = 100;
/// How long a guest's write may wait for the overlay, in seconds: then the copy is given up, and not the write.
const WRITE_WAITS_SECONDS: u32 = 20;
/// The name of the descriptor that the export listens at.
const LISTENS_AT: &str = "leandisk-listen";

/// What is to be read, and how.
pub struct Wanted<'a> {
    /// Which run this is.
    pub run: RunId,
    /// The disks.
    pub disks: Vec<WantedDisk<'a>>,
    /// A socket that listens.
    pub socket: BorrowedFd<'a>,
    /// Where it does.
    pub socket_path: &'a Path,
    /// Whether the guest is frozen at the moment.
    pub freeze: Freeze,
    /// Where its agent is.
    pub agent: Option<&'a Path>,
}

/// A disk that is to be read.
pub struct WantedDisk<'a> {
    /// The disk.
    pub disk: &'a VmDisk,
    /// A file of the disk's length that reads as zeros: takes what the guest overwrites meanwhile.
    pub overlay: BorrowedFd<'a>,
    /// The bitmap that says what is to be read.
    pub since: Option<&'a str>,
}

/// Disks as they were at one moment, exported at a socket. They are known by their numbers, in the order in which they were wanted.
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
    /// The name of a disk's export.
    pub fn export(&self, disk: usize) -> String {
        self.run.of_disk(EXPORT, disk)
    }

    /// The name under which the export tells what is dirty, of the metadata context `qemu:dirty-bitmap:`.
    pub fn dirty_bitmap(&self, disk: usize) -> String {
        self.run.of_disk(UNTIL_NOW, disk)
    }

    /// How many file systems were frozen at the moment; `None` if the guest was not.
    pub fn frozen(&self) -> Option<u64> {
        self.frozen
    }

    /// Why the guest was not frozen, if it was to be.
    pub fn unfrozen_because(&self) -> Option<&str> {
        self.unfrozen_because.as_deref()
    }

    /// Exports something as long as the disk, of which is noted what is written to it: with the bits for that the disk's bitmap begins anew.
    /// The export's name.
    pub fn offer_bits(&self, monitor: &mut dyn Monitor, disk: usize, len_bytes: u64) -> Result<String> {
        let (kept, users) = (self.run.of_disk(KEPT, disk), &self.record.disks[disk]);
        let Some(bitmap) = &users.bitmap else { return Err(Error::invalid("no bitmap was named")) };
        add_node(monitor, json!({ "driver": "null-co", "node-name": kept, "size": len_bytes }))?;
        let granularity = granularity(monitor, &users.node, bitmap)?;
        add_bitmap(monitor, &kept, &kept, &granularity, true)?;
        monitor.ask(
            "block-export-add",
            json!({ "type": "nbd", "id": kept, "node-name": kept, "name": kept, "writable": true }),
        )?;
        Ok(kept)
    }

    /// From now on the user's bitmap holds what was written since the moment: the target holds all that was written before, for good. It
    /// also holds what was written to what [`offer_bits`](Self::offer_bits) exported.
    pub fn rotate(&self, monitor: &mut dyn Monitor, around: &dyn Surroundings, disk: usize) -> Result<()> {
        let RecordedDisk { node, bitmap: Some(bitmap), .. } = &self.record.disks[disk] else { return Ok(()) };
        let kept = self.run.of_disk(KEPT, disk);
        let exports = monitor.list("query-block-exports")?;
        let has_kept = exports.iter().any(|export| export["id"] == kept.as_str());
        if has_kept {
            // Nobody writes there any more.
            remove_export(monitor, around, &kept)?;
        }
        // Each write is in the new bitmap or comes after the clearing: whatever is between the two.
        let clear = json!({ "type": "block-dirty-bitmap-clear", "data": { "node": node, "name": bitmap } });
        let merge = |from: Value| json!({ "type": "block-dirty-bitmap-merge", "data": { "node": node, "target": bitmap, "bitmaps": [from] } });
        let mut actions = vec![clear];
        if !broken!(NewBitmapDropped) {
            actions.push(merge(json!(self.run.of_disk(SINCE_NOW, disk))));
        }
        if has_kept {
            actions.push(merge(json!({ "node": kept, "name": kept })));
        }
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
    let version = check_version(monitor)?;
    for WantedDisk { disk, .. } in &wanted.disks {
        threads::check(monitor, version, disk)?;
    }
    if let Some(other) = recover(monitor, around)?.living.first() {
        if other.is_of_process_of(wanted.run) {
            return Err(Error::refused("two of the sockets lead to the same QEMU")
                .hint("name all disks of a guest by one socket: they are read as of one moment then"));
        }
        return Err(Error::refused(format!("another leandisk reads a disk of this guest ('{other}')"))
            .hint("wait until it is done; if it is in another container and gone: restart leandisk there with 'recover'"));
    }
    if wanted.disks.len() > DISK_COUNT_MAX {
        return Err(Error::unsupported(format!("more than {DISK_COUNT_MAX} disks of a guest at one moment")));
    }
    for WantedDisk { disk, since, .. } in &wanted.disks {
        if let Some(bitmap) = since {
            check_bitmap(monitor, disk, bitmap)?;
        }
    }
    make(monitor, around, wanted).map_err(|error| match remove(monitor, around, wanted.run) {
        Ok(()) => error,
        Err(left) => {
            error.hint(format!("what was made in QEMU could not be removed ({left}): leandisk recover"))
        }
    })
}

/// QEMU's version. The copy-before-write filter that gives the copy up rather than the guest's write came with QEMU 7.1.
fn check_version(monitor: &mut dyn Monitor) -> Result<(u64, u64)> {
    let version = monitor.ask("query-version", json!({}))?;
    let part = |name: &str| version["qemu"][name].as_u64().unwrap_or(0);
    match (part("major"), part("minor")) {
        enough if enough >= (7, 1) => Ok(enough),
        (major, minor) => Err(Error::unsupported("reading a disk of a running guest").field(
            "QEMU's version",
            format!("{major}.{minor}"),
            "7.1 or newer",
        )),
    }
}

/// What is known of a disk's bitmap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BitmapFound {
    /// It has recorded all that was written since it began.
    Usable {
        /// Bytes that a bit stands for.
        granularity_bytes: u64,
    },
    /// It cannot be relied on, with the reason.
    Unusable(String),
    /// There is none of that name.
    Missing,
}

/// Looks at a bitmap of the disk.
pub fn find_bitmap(monitor: &mut dyn Monitor, disk: &VmDisk, name: &str) -> Result<BitmapFound> {
    let Some(bitmap) = bitmap(monitor, &disk.node, name)? else { return Ok(BitmapFound::Missing) };
    let says = |key: &str| bitmap[key].as_bool().unwrap_or(false);
    let why = if says("inconsistent") {
        "is inconsistent: QEMU ended without storing it"
    } else if !says("recording") {
        "does not record"
    } else if says("busy") {
        "is in use by another job"
    } else {
        let granularity_bytes = bitmap["granularity"].as_u64().filter(|bytes| bytes.is_power_of_two());
        let granularity_bytes = granularity_bytes.ok_or_else(|| strange("query-named-block-nodes"))?;
        return Ok(BitmapFound::Usable { granularity_bytes });
    };
    Ok(BitmapFound::Unusable(why.to_owned()))
}

/// `Refused` unless the bitmap has recorded all that was written since it was cleared.
fn check_bitmap(monitor: &mut dyn Monitor, disk: &VmDisk, name: &str) -> Result<()> {
    match find_bitmap(monitor, disk, name)? {
        BitmapFound::Usable { .. } => Ok(()),
        BitmapFound::Unusable(why) => Err(Error::refused(format!("the dirty bitmap '{name}' {why}"))
            .hint("make a full copy, with a new bitmap that is added before it begins")),
        BitmapFound::Missing => {
            let named = disk.bitmaps.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
            let has = if named.is_empty() { "it has none".to_owned() } else { format!("it has {named}") };
            Err(Error::refused(format!("the disk has no dirty bitmap '{name}'")).hint(has))
        }
    }
}

fn make(monitor: &mut dyn Monitor, around: &dyn Surroundings, wanted: &Wanted<'_>) -> Result<Snapshot> {
    let run = wanted.run;
    let record = record_of(wanted)?;
    let text = serde_json::to_string(&record).map_err(|error| Error::io("keep a record", error.into()))?;
    if !broken!(NoRecord) {
        record::make(monitor, &run.to_string(), &text)?;
    }
    for (number, disk) in wanted.disks.iter().enumerate() {
        prepare(monitor, wanted, number, disk)?;
    }
    let (frozen, unfrozen_because) = at_a_moment(monitor, around, wanted, &record)?;
    for (number, disk) in wanted.disks.iter().enumerate() {
        show(monitor, run, number, disk)?;
    }
    start_server(monitor, wanted)?;
    for (number, disk) in wanted.disks.iter().enumerate() {
        export(monitor, run, number, disk)?;
    }
    Ok(Snapshot { run, record, frozen, unfrozen_because })
}

/// What a disk needs before the moment: the overlay, the filter above the guest's node with nobody above it yet, and a bitmap of what is
/// written from here on.
fn prepare(
    monitor: &mut dyn Monitor,
    wanted: &Wanted<'_>,
    number: usize,
    WantedDisk { disk, overlay: file, since }: &WantedDisk<'_>,
) -> Result<()> {
    let run = wanted.run;
    let [overlay, filter] = [OVERLAY, FILTER].map(|part| run.of_disk(part, number));
    let set = monitor.hand("add-fd", json!({ "opaque": run.to_string() }), *file)?;
    let set = set["fdset-id"].as_u64().ok_or_else(|| strange("add-fd"))?;
    add_node(
        monitor,
        json!({ "driver": "file", "node-name": overlay, "filename": format!("/dev/fdset/{set}"), "discard": "unmap" }),
    )?;
    if let Some(device) = &disk.device {
        add_node(
            monitor,
            json!({ "driver": "copy-before-write", "node-name": filter, "file": disk.node, "target": overlay,
                "on-cbw-error": "break-snapshot", "cbw-timeout": WRITE_WAITS_SECONDS }),
        )?;
        if has_gates(wanted) {
            let gate = run.of_disk(GATE, number);
            add_node(monitor, gate_to(&gate, &disk.node))?;
            put_in(monitor, device, &gate)?;
        }
    }
    if let (Some(bitmap), false) = (since, broken!(NewBitmapAfterMoment)) {
        record_anew(monitor, run, number, &disk.node, bitmap)?;
    }
    if let (Some(bitmap), true) = (since, broken!(OldBitmapBeforeMoment)) {
        freeze_bitmap(monitor, run, number, &disk.node, bitmap)?;
    }
    Ok(())
}

/// Several devices cannot be given other nodes at one moment; but the gates that they were given before can lead elsewhere.
fn has_gates(wanted: &Wanted<'_>) -> bool {
    let with_device = wanted.disks.iter().filter(|wanted| wanted.disk.device.is_some());
    with_device.count() > 1 && !broken!(DisksOneByOne)
}

/// The node that shows the disk as it was at the moment, and a bitmap of what was written until then.
fn show(
    monitor: &mut dyn Monitor,
    run: RunId,
    number: usize,
    WantedDisk { disk, since, .. }: &WantedDisk<'_>,
) -> Result<()> {
    if let (Some(bitmap), true) = (since, broken!(NewBitmapAfterMoment)) {
        record_anew(monitor, run, number, &disk.node, bitmap)?;
    }
    let [view, filter] = [VIEW, FILTER].map(|part| run.of_disk(part, number));
    add_node(monitor, json!({ "driver": "snapshot-access", "node-name": view, "file": filter }))?;
    match since {
        Some(bitmap) if !broken!(OldBitmapBeforeMoment) => {
            freeze_bitmap(monitor, run, number, &disk.node, bitmap)
        }
        _ => Ok(()),
    }
}

fn export(
    monitor: &mut dyn Monitor,
    run: RunId,
    number: usize,
    WantedDisk { disk, since, .. }: &WantedDisk<'_>,
) -> Result<()> {
    let id = run.of_disk(EXPORT, number);
    let mut export = json!({ "type": "nbd", "id": id, "node-name": run.of_disk(VIEW, number), "name": id,
        "writable": false });
    if since.is_some() {
        export["bitmaps"] = json!([{ "node": disk.node, "name": run.of_disk(UNTIL_NOW, number) }]);
    }
    monitor.ask("block-export-add", export)?;
    Ok(())
}

/// A bitmap of what is written from now on.
fn record_anew(monitor: &mut dyn Monitor, run: RunId, number: usize, node: &str, bitmap: &str) -> Result<()> {
    let granularity = granularity(monitor, node, bitmap)?;
    add_bitmap(monitor, node, &run.of_disk(SINCE_NOW, number), &granularity, true)
}

/// A bitmap of what the user's has now, which stays so.
fn freeze_bitmap(
    monitor: &mut dyn Monitor,
    run: RunId,
    number: usize,
    node: &str,
    bitmap: &str,
) -> Result<()> {
    let old = run.of_disk(UNTIL_NOW, number);
    let granularity = granularity(monitor, node, bitmap)?;
    add_bitmap(monitor, node, &old, &granularity, false)?;
    monitor
        .ask("block-dirty-bitmap-merge", json!({ "node": node, "target": old, "bitmaps": [bitmap] }))
        .map(drop)
}

fn record_of(wanted: &Wanted<'_>) -> Result<Record> {
    let text = |path: &Path| {
        let text = path.to_str().map(str::to_owned);
        text.ok_or_else(|| Error::unsupported("a name that is no UTF-8").path(path.display()))
    };
    let agent = wanted.agent.filter(|_| wanted.freeze != Freeze::Never);
    let disk = |wanted: &WantedDisk<'_>| RecordedDisk {
        node: wanted.disk.node.clone(),
        device: wanted.disk.device.clone(),
        bitmap: wanted.since.map(str::to_owned),
    };
    Ok(Record {
        disks: wanted.disks.iter().map(disk).collect(),
        socket: text(wanted.socket_path)?,
        agent: agent.map(text).transpose()?,
    })
}

fn add_bitmap(
    monitor: &mut dyn Monitor,
    node: &str,
    name: &str,
    granularity: &Value,
    records: bool,
) -> Result<()> {
    monitor.ask(
        "block-dirty-bitmap-add",
        json!({ "node": node, "name": name, "granularity": granularity, "persistent": false,
            "disabled": !records }),
    )?;
    Ok(())
}

/// How fine a bitmap is.
fn granularity(monitor: &mut dyn Monitor, node: &str, name: &str) -> Result<Value> {
    let bitmap = bitmap(monitor, node, name)?.ok_or_else(|| strange("query-named-block-nodes"))?;
    Ok(bitmap["granularity"].clone())
}

/// What QEMU says of a bitmap; `None` if there is none of that name.
fn bitmap(monitor: &mut dyn Monitor, node: &str, name: &str) -> Result<Option<Value>> {
    let mut nodes = nodes(monitor)?;
    let node = nodes.iter_mut().find(|other| other["node-name"] == node);
    let bitmaps = node.and_then(|node| node["dirty-bitmaps"].as_array_mut());
    Ok(bitmaps.and_then(|all| all.iter_mut().find(|bitmap| bitmap["name"] == name).map(Value::take)))
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

/// The moment: from here on the filters see what the guest writes before the disks do.
fn take(monitor: &mut dyn Monitor, wanted: &Wanted<'_>) -> Result<()> {
    let run = wanted.run;
    let numbered = || wanted.disks.iter().map(|wanted| wanted.disk).enumerate();
    if has_gates(wanted) {
        let with_device = numbered().filter(|(_, disk)| disk.device.is_some());
        let pairs: Vec<_> =
            with_device.map(|(number, _)| [GATE, FILTER].map(|part| run.of_disk(part, number))).collect();
        reopen(monitor, pairs.iter().map(|[gate, filter]| (gate.as_str(), filter.as_str())))?;
    } else {
        for (number, disk) in numbered() {
            if let Some(device) = &disk.device {
                put_in(monitor, device, &run.of_disk(FILTER, number))?;
            }
        }
    }
    // Without a device the filter comes as that of a job, which puts it above the node for all who use that.
    let job = |(number, disk): (usize, &VmDisk)| {
        json!({ "type": "blockdev-backup", "data": { "job-id": run.of_disk(JOB, number), "device": disk.node,
            "target": run.of_disk(OVERLAY, number), "sync": "none", "filter-node-name": run.of_disk(FILTER, number) } })
    };
    let jobs: Vec<_> = numbered().filter(|(_, disk)| disk.device.is_none()).map(job).collect();
    if jobs.is_empty() {
        return Ok(());
    }
    if broken!(DisksOneByOne) {
        return jobs
            .iter()
            .try_for_each(|job| monitor.ask("transaction", json!({ "actions": [job] })).map(drop));
    }
    monitor.ask("transaction", json!({ "actions": jobs })).map(drop)
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

/// Whether the error says that QEMU is gone, and with it all that was made in it.
pub fn is_over(error: &Error) -> bool {
    error.kind() == ErrorKind::Io && crate::monitor::is_gone(error)
}
