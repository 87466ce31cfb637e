//! Which disks a QEMU has, and which of them a name means.

use block::{Error, Result};
use serde::Serialize;
use serde_json::{Value, json};

use crate::monitor::{Monitor, strange};
use crate::owner::RunId;
use crate::parts::ABOVE;

/// Disks that a guest has, or that nobody uses, at most: more than QEMU has slots for.
const DISK_COUNT_MAX: usize = 4096;
/// Drivers of nodes that read a file of the host rather than what is in it.
const PROTOCOLS: [&str; 12] = [
    "file",
    "host_device",
    "host_cdrom",
    "nbd",
    "http",
    "https",
    "ssh",
    "iscsi",
    "nfs",
    "rbd",
    "null-co",
    "null-aio",
];

/// A disk of a running guest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct VmDisk {
    /// What it is called: its device's id, else the block device's name, else the node's.
    pub name: String,
    /// The node that the guest's device reads and writes.
    pub node: String,
    /// The file that it lies in, as QEMU names it.
    pub path: String,
    /// QEMU's name for the format of that file.
    pub format: String,
    /// The disk's length.
    pub virtual_bytes: u64,
    /// Whether the guest cannot write to it.
    pub read_only: bool,
    /// Its dirty bitmaps by their names.
    pub bitmaps: Vec<String>,
    /// The device, as QEMU finds it; `None` where none is attached.
    #[serde(skip)]
    pub device: Option<String>,
    /// The block device's name; `None` where it has none.
    #[serde(skip)]
    pub backend: Option<String>,
}

impl VmDisk {
    /// Whether this name means the disk.
    fn is_called(&self, name: &str) -> bool {
        let device = self.device.as_deref();
        self.name == name
            || self.node == name
            || self.backend.as_deref() == Some(name)
            || device == Some(name)
            || device.and_then(id_of_device) == Some(name)
    }
}

/// All disks, in QEMU's order. Nodes that Leandisk put above a disk's own do not show.
pub fn disks(monitor: &mut dyn Monitor) -> Result<Vec<VmDisk>> {
    let nodes = monitor.ask("query-named-block-nodes", json!({ "flat": true }))?;
    let nodes = nodes.as_array().ok_or_else(|| strange("query-named-block-nodes"))?;
    let mut found = Vec::new();
    for device in monitor.list("query-block")?.iter().take(DISK_COUNT_MAX) {
        // Without a medium it is no disk.
        let Some(inserted) = device.get("inserted") else { continue };
        let qdev = text(device, "qdev");
        let backend = text(device, "device");
        let shown = text(inserted, "node-name").ok_or_else(|| strange("query-block"))?;
        let node = beneath(monitor, &shown)?.unwrap_or(shown);
        let facts = nodes.iter().find(|other| other["node-name"] == node.as_str()).unwrap_or(inserted);
        let id = qdev.as_deref().and_then(id_of_device).map(str::to_owned);
        let name = id.or_else(|| backend.clone()).unwrap_or_else(|| node.clone());
        found.push(disk(name, node, facts, qdev, backend)?);
    }
    if found.is_empty() {
        for facts in nodes.iter().take(DISK_COUNT_MAX) {
            let Some(node) = text(facts, "node-name") else { continue };
            let is_named = !node.starts_with('#') && RunId::parse(&node).is_none();
            let driver = facts["drv"].as_str().unwrap_or_default();
            if is_named && !PROTOCOLS.contains(&driver) {
                found.push(disk(node.clone(), node, facts, None, None)?);
            }
        }
    }
    Ok(found)
}

/// The disk of that name, which may also be that of a node which no device uses; or the only one, if none is named.
pub fn find(monitor: &mut dyn Monitor, name: Option<&str>) -> Result<VmDisk> {
    let disks = disks(monitor)?;
    let Some(name) = name else {
        let mut writable = disks.iter().filter(|disk| !disk.read_only);
        return match (writable.next(), writable.next(), disks.as_slice()) {
            (Some(only), None, _) | (None, None, [only]) => Ok(only.clone()),
            (None, None, []) => Err(Error::refused("this QEMU has no disk")),
            _ => Err(Error::invalid("this guest has several disks")
                .hint(format!("add ?disk=NAME: {}", list(disks.iter().map(|disk| disk.name.as_str()))))),
        };
    };
    if let Some(disk) = disks.iter().find(|disk| disk.is_called(name)) {
        return Ok(disk.clone());
    }
    let nodes = monitor.ask("query-named-block-nodes", json!({ "flat": true }))?;
    let facts = nodes.as_array().and_then(|nodes| nodes.iter().find(|node| node["node-name"] == name));
    match facts.filter(|_| RunId::parse(name).is_none()) {
        Some(facts) => disk(name.to_owned(), name.to_owned(), facts, None, None),
        None => Err(Error::refused(format!("this QEMU has no disk '{name}'"))
            .hint(format!("it has {}", list(disks.iter().map(|disk| disk.name.as_str()))))),
    }
}

fn disk(
    name: String,
    node: String,
    facts: &Value,
    device: Option<String>,
    backend: Option<String>,
) -> Result<VmDisk> {
    let image = &facts["image"];
    let virtual_bytes = image["virtual-size"].as_u64().ok_or_else(|| strange("query-block"))?;
    let bitmaps = facts["dirty-bitmaps"].as_array().map(Vec::as_slice).unwrap_or_default();
    let bitmaps = bitmaps.iter().filter_map(|bitmap| text(bitmap, "name"));
    Ok(VmDisk {
        name,
        node,
        path: text(image, "filename").or_else(|| text(facts, "file")).unwrap_or_default(),
        format: text(facts, "drv").unwrap_or_default(),
        virtual_bytes,
        read_only: facts["ro"].as_bool().unwrap_or(false),
        bitmaps: bitmaps.filter(|name| RunId::parse(name).is_none()).collect(),
        device,
        backend,
    })
}

/// The guest's own node, where a run of Leandisk put one of its own above it.
fn beneath(monitor: &mut dyn Monitor, node: &str) -> Result<Option<String>> {
    let Some((run, _)) = RunId::parse(node) else { return Ok(None) };
    let number = ABOVE.iter().find_map(|part| run.disk_of(node, part));
    let Some(record) = crate::record::read(monitor, run)? else { return Ok(None) };
    Ok(number.and_then(|number| record.disks.into_iter().nth(number)).map(|disk| disk.node))
}

/// The id in `/machine/peripheral/ID` or `/machine/peripheral/ID/virtio-backend`, or the id itself.
fn id_of_device(path: &str) -> Option<&str> {
    match path.strip_prefix("/machine/peripheral/") {
        Some(rest) => rest.split('/').next(),
        None => Some(path).filter(|path| !path.starts_with('/')),
    }
}

/// A text that is there and not empty.
fn text(value: &Value, key: &str) -> Option<String> {
    value[key].as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.map(|name| format!("'{name}'")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
