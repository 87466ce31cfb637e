//! How all that a run made in QEMU goes away again.
//!
//! Invariants:
//! - what is removed is of a run that is over: this one, or one whose process is gone;
//! - the removal asks QEMU what is there, so it is the same after any cut, and can itself be cut short and begun again;
//! - the user's bitmap is never without a write that the target lacks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use block::{Error, Result};
use mutants::broken;
use serde_json::{Value, json};

use crate::monitor::{Monitor, is_refusal, strange};
use crate::nodes::{nodes, put_in, reopen};
use crate::owner::{Life, RunId};
use crate::parts::{
    ABOVE, EXPORT, FILTER, FROZEN, GATE, JOB, KEPT, OVERLAY, SERVER, SINCE_NOW, UNTIL_NOW, VIEW,
};
use crate::record::{self, Record};
use crate::surroundings::Surroundings;

/// How often is looked whether something is gone.
const LOOK_COUNT_MAX: usize = 1000;

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
    names.extend(ids(monitor, "query-block-exports")?);
    names.extend(ids(monitor, "query-jobs")?);
    // Descriptors are given after the record is made, and a guest that stands still keeps them when all else is removed.
    Ok(names.iter().filter_map(|name| RunId::parse(name)).map(|(run, _)| run).collect())
}

/// The ids of all that a command lists.
fn ids(monitor: &mut dyn Monitor, command: &'static str) -> Result<Vec<String>> {
    let all = monitor.list(command)?;
    Ok(all.iter().filter_map(|one| one["id"].as_str().map(str::to_owned)).collect())
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
pub(crate) fn remove(monitor: &mut dyn Monitor, around: &dyn Surroundings, run: RunId) -> Result<()> {
    let record = record::read(monitor, run)?;
    if record::objects(monitor)?.contains(&run.part(FROZEN)) {
        if let Some(record) = &record {
            thaw_anew(around, record)?;
        }
        record::remove(monitor, &run.part(FROZEN))?;
    }
    remove_exports(monitor, around, run)?;
    stop_server(monitor, run)?;
    remove_nodes(monitor, run, VIEW)?;
    cancel_jobs(monitor, around, run)?;
    if !broken!(FilterLeftIn) {
        take_out(monitor, run, record.as_ref())?;
    }
    remove_nodes(monitor, run, GATE)?;
    remove_nodes(monitor, run, FILTER)?;
    if !broken!(OverlayLeft) {
        remove_nodes(monitor, run, OVERLAY)?;
    }
    for (set, opaque) in sets(monitor)? {
        if opaque == run.to_string() {
            // Of a guest that stands still QEMU lets go when it runs again; the set is listed until then.
            monitor.ask("remove-fd", json!({ "fdset-id": set })).or_else(ignore_refusal)?;
        }
    }
    remove_bitmaps(monitor, run, record.as_ref())?;
    remove_nodes(monitor, run, KEPT)?;
    let Some(record) = record else { return Ok(()) };
    around.remove_socket(&PathBuf::from(record.socket))?;
    record::remove(monitor, &run.to_string())
}

fn ignore_refusal(error: Error) -> Result<Value> {
    if is_refusal(&error) { Ok(Value::Null) } else { Err(error) }
}

/// Thaws the guest through a connection of its own.
pub(crate) fn thaw_anew(around: &dyn Surroundings, record: &Record) -> Result<()> {
    let Some(path) = &record.agent else { return Ok(()) };
    let thawed = around.agent(Path::new(path)).and_then(|mut agent| agent.thaw());
    thawed.map_err(|error| {
        error.hint(
            "the guest may be frozen: virsh domfsthaw, or 'fsfreeze --unfreeze' in it; then leandisk recover",
        )
    })
}

fn remove_exports(monitor: &mut dyn Monitor, around: &dyn Surroundings, run: RunId) -> Result<()> {
    for part in [EXPORT, KEPT] {
        let ids = ids(monitor, "query-block-exports")?;
        for id in ids.into_iter().filter(|id| run.disk_of(id, part).is_some()) {
            remove_export(monitor, around, &id)?;
        }
    }
    Ok(())
}

/// Removes an export that is there.
pub(crate) fn remove_export(monitor: &mut dyn Monitor, around: &dyn Surroundings, id: &str) -> Result<()> {
    // One that is going already is refused.
    monitor.ask("block-export-del", json!({ "id": id, "mode": "hard" })).or_else(ignore_refusal)?;
    wait_until_gone(monitor, around, "query-block-exports", id)
}

fn wait_until_gone(
    monitor: &mut dyn Monitor,
    around: &dyn Surroundings,
    listed_by: &'static str,
    id: &str,
) -> Result<()> {
    for _ in 0..LOOK_COUNT_MAX {
        if !ids(monitor, listed_by)?.iter().any(|other| other == id) {
            return Ok(());
        }
        around.wait();
    }
    let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
    Err(Error::io(format!("wait for QEMU to end '{id}'"), late))
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

/// Removes those of the run's nodes that are this part of a disk.
fn remove_nodes(monitor: &mut dyn Monitor, run: RunId, part: &str) -> Result<()> {
    for (name, _) in nodes_of(monitor, run, part)? {
        monitor.ask("blockdev-del", json!({ "node-name": name }))?;
    }
    Ok(())
}

/// The run's nodes that are this part of a disk, with the disks' numbers.
fn nodes_of(monitor: &mut dyn Monitor, run: RunId, part: &str) -> Result<Vec<(String, usize)>> {
    let nodes = nodes(monitor)?;
    let names = nodes.iter().filter_map(|node| node["node-name"].as_str());
    Ok(names.filter_map(|name| Some((name.to_owned(), run.disk_of(name, part)?))).collect())
}

fn cancel_jobs(monitor: &mut dyn Monitor, around: &dyn Surroundings, run: RunId) -> Result<()> {
    let ids = ids(monitor, "query-jobs")?;
    for id in ids.into_iter().filter(|id| run.disk_of(id, JOB).is_some()) {
        monitor.ask("block-job-cancel", json!({ "device": id, "force": true })).or_else(ignore_refusal)?;
        wait_until_gone(monitor, around, "query-jobs", &id)?;
    }
    Ok(())
}

/// Puts the guest's own nodes back under their devices.
fn take_out(monitor: &mut dyn Monitor, run: RunId, record: Option<&Record>) -> Result<()> {
    let own_node = |number: usize, above: &str| match record.and_then(|record| record.disks.get(number)) {
        Some(disk) => Ok(disk.node.clone()),
        None => Err(Error::refused(format!("'{above}' is above a disk, and no record says which"))
            .hint("put the disk's own node back with qom-set, property drive")),
    };
    let is_put_back = |number: &usize| *number == 0 || !broken!(OnlyFirstDiskPutBack);
    // A device's own node takes no writes past a filter: the gates lead around the filters first.
    let mut gates = Vec::new();
    for (gate, number) in nodes_of(monitor, run, GATE)? {
        gates.push((own_node(number, &gate)?, gate));
    }
    if !gates.is_empty() {
        reopen(monitor, gates.iter().map(|(node, gate)| (gate.as_str(), node.as_str())))?;
    }
    for block in monitor.list("query-block")? {
        let shown = block["inserted"]["node-name"].as_str().unwrap_or_default();
        let number = ABOVE.iter().find_map(|part| run.disk_of(shown, part)).filter(is_put_back);
        if let (Some(number), Some(device)) = (number, block["qdev"].as_str()) {
            put_in(monitor, device, &own_node(number, shown)?)?;
        }
    }
    Ok(())
}

/// Removes the run's bitmaps. What the new one holds is in the user's as well then: a run that was cut between clearing that and filling it
/// loses nothing.
fn remove_bitmaps(monitor: &mut dyn Monitor, run: RunId, record: Option<&Record>) -> Result<()> {
    for node in nodes(monitor)? {
        let Some(name) = node["node-name"].as_str() else { continue };
        let bitmaps = node["dirty-bitmaps"].as_array().map(Vec::as_slice).unwrap_or_default();
        let bitmaps: Vec<_> = bitmaps.iter().filter_map(|bitmap| bitmap["name"].as_str()).collect();
        for own in &bitmaps {
            let number = [SINCE_NOW, UNTIL_NOW, KEPT].iter().find_map(|part| run.disk_of(own, part));
            let Some(number) = number else { continue };
            let disk = record.and_then(|record| record.disks.get(number));
            let users = disk.and_then(|disk| disk.bitmap.as_deref()).filter(|users| bitmaps.contains(users));
            if let (Some(users), true) = (users, run.disk_of(own, SINCE_NOW).is_some()) {
                monitor.ask(
                    "block-dirty-bitmap-merge",
                    json!({ "node": name, "target": users, "bitmaps": [own] }),
                )?;
            }
            monitor.ask("block-dirty-bitmap-remove", json!({ "node": name, "name": own }))?;
        }
    }
    Ok(())
}
