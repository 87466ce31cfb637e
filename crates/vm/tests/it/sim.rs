//! A QEMU that is simulated as far as a run of Leandisk asks of it, with a guest that writes before and after every command, and whose
//! monitor can be cut off, or refuse, at any command. The guest's agent is part of it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::rc::Rc;

use block::{Error, Result};
use serde_json::{Value, json};
use vm::{Agent, Command, Life, Monitor, RunId, Said, Surroundings};

pub(crate) const BLOCK_COUNT: usize = 1024;
/// The guest's own nodes, the first of which is read where one disk is.
pub(crate) const NODES: [&str; 2] = ["#block123", "#block456"];
const DEVICES: [&str; 2] =
    ["/machine/peripheral/vd0/virtio-backend", "/machine/peripheral/vd1/virtio-backend"];

/// QEMU refuses these only if what they are to end is not there.
const ONLY_IF_GONE: [&str; 5] =
    ["qom-list", "nbd-server-stop", "block-export-del", "block-job-cancel", "remove-fd"];

/// What becomes of a command of that number, counted over all that are given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    /// The program is killed before it is done.
    KilledBefore(usize),
    /// The program is killed after it was done.
    KilledAfter(usize),
    /// It is refused.
    Refused(usize),
}

#[derive(Clone, Default)]
struct Bitmap {
    dirty: BTreeSet<usize>,
    records: bool,
}

#[derive(Clone, Default)]
struct Node {
    children: Vec<String>,
    set: Option<u64>,
}

/// All that there is.
#[derive(Clone)]
pub(crate) struct Qemu {
    nodes: BTreeMap<String, Node>,
    objects: BTreeMap<String, String>,
    /// By their nodes and names.
    bitmaps: BTreeMap<(String, String), Bitmap>,
    pub(crate) has_device: bool,
    /// What each device says of its thread, if the guest has one: nothing at all, as a device of a controller does, or the thread.
    pub(crate) threads: Option<[Option<&'static str>; 2]>,
    /// QEMU's version.
    pub(crate) version: (u64, u64),
    /// What each device reads and writes.
    roots: [String; 2],
    /// Each with its filter.
    jobs: BTreeMap<String, String>,
    pub(crate) exports: BTreeMap<String, String>,
    pub(crate) server_runs: bool,
    sets: BTreeMap<u64, String>,
    listens_at: BTreeSet<String>,
    pub(crate) frozen: bool,
    pub(crate) agent_fails: bool,
    pub(crate) sockets: BTreeSet<String>,
    /// What the disks hold.
    pub(crate) content: [[u64; BLOCK_COUNT]; 2],
    /// What each held at the moment when a filter came in, and how many writes there had been by then.
    pub(crate) moments: [Option<([u64; BLOCK_COUNT], u64)>; 2],
    written: u64,
    random: u64,
    given: usize,
    /// Whether a record was ever made.
    pub(crate) has_record: bool,
    trouble: Option<Trouble>,
    is_dead: bool,
    /// Runs whose process is there.
    pub(crate) living: BTreeSet<RunId>,
}

impl Qemu {
    pub(crate) fn new(seed: u64) -> Self {
        let daily = Bitmap { dirty: BTreeSet::new(), records: true };
        Self {
            nodes: NODES.map(|node| (node.to_owned(), Node::default())).into(),
            objects: BTreeMap::new(),
            bitmaps: NODES.map(|node| ((node.to_owned(), "daily".to_owned()), daily.clone())).into(),
            has_device: true,
            threads: None,
            version: (7, 2),
            roots: NODES.map(str::to_owned),
            jobs: BTreeMap::new(),
            exports: BTreeMap::new(),
            server_runs: false,
            sets: BTreeMap::new(),
            listens_at: BTreeSet::new(),
            frozen: false,
            agent_fails: false,
            sockets: BTreeSet::new(),
            content: [[0; BLOCK_COUNT]; 2],
            moments: [None; 2],
            written: 0,
            random: seed | 1,
            given: 0,
            has_record: false,
            trouble: None,
            is_dead: false,
            living: BTreeSet::new(),
        }
    }

    /// The guest writes somewhere on each disk, on one after the other, if it can.
    pub(crate) fn guest_writes(&mut self) {
        if self.frozen {
            return;
        }
        for (disk, own) in NODES.into_iter().enumerate() {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            let block = (self.random >> 20) as usize % BLOCK_COUNT;
            self.content[disk][block] = self.random;
            self.written += 1;
            let of_disk = self.bitmaps.iter_mut().filter(|((node, _), _)| node == own);
            of_disk.map(|(_, bitmap)| bitmap).filter(|bitmap| bitmap.records).for_each(|bitmap| {
                bitmap.dirty.insert(block);
            });
        }
    }

    /// What of Leandisk's is left, in words.
    pub(crate) fn left(&self) -> Vec<String> {
        let is_own = |name: &&String| name.starts_with("leandisk-");
        let mut left: Vec<String> =
            self.nodes.keys().filter(is_own).map(|name| format!("node {name}")).collect();
        left.extend(self.objects.keys().filter(is_own).map(|name| format!("object {name}")));
        left.extend(
            self.bitmaps.keys().map(|(_, name)| name).filter(is_own).map(|name| format!("bitmap {name}")),
        );
        left.extend(self.jobs.keys().filter(is_own).map(|name| format!("job {name}")));
        left.extend(self.exports.keys().filter(is_own).map(|name| format!("export {name}")));
        left.extend(self.sets.values().filter(is_own).map(|name| format!("file {name}")));
        left.extend(self.sockets.iter().map(|name| format!("socket {name}")));
        if self.server_runs && self.exports.is_empty() {
            left.push("server".to_owned());
        }
        for (root, _) in self.roots.iter().zip(NODES).filter(|(root, node)| root != node) {
            left.push(format!("{root} above the disk"));
        }
        if self.frozen {
            left.push("frozen guest".to_owned());
        }
        left
    }

    /// What a bitmap of a disk says is to be copied.
    pub(crate) fn dirty(&self, disk: usize, name: &str) -> BTreeSet<usize> {
        self.bitmaps[&(NODES[disk].to_owned(), name.to_owned())].dirty.clone()
    }

    /// A client of an export writes to what holds nothing.
    pub(crate) fn client_writes(&mut self, export: &str, block: usize) {
        let node = self.exports[export].clone();
        for (_, bitmap) in self.bitmaps.iter_mut().filter(|((of, _), _)| *of == node) {
            bitmap.dirty.insert(block);
        }
    }

    pub(crate) fn given(&self) -> usize {
        self.given
    }

    /// From now on another process asks, and is cut off there.
    pub(crate) fn begin_process(&mut self, trouble: Option<Trouble>) {
        self.is_dead = false;
        self.given = 0;
        self.trouble = trouble;
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead
    }

    /// Something is asked of QEMU or the agent, which does it if it comes to that.
    fn step(&mut self, name: &str, act: impl FnOnce(&mut Self) -> Result<Value, String>) -> Result<Value> {
        let killed = || Error::io("talk", io::Error::from(io::ErrorKind::UnexpectedEof));
        let number = self.given;
        self.given += 1;
        self.guest_writes();
        if self.trouble == Some(Trouble::KilledBefore(number)) {
            self.is_dead = true;
        }
        if self.is_dead {
            return Err(killed());
        }
        if self.trouble == Some(Trouble::Refused(number)) && !ONLY_IF_GONE.contains(&name) {
            return Err(refused(name, "it was not in the mood"));
        }
        let done = act(self).map_err(|text| refused(name, &text));
        self.guest_writes();
        if self.trouble == Some(Trouble::KilledAfter(number)) {
            self.is_dead = true;
            return Err(killed());
        }
        done
    }

    fn users_of(&self, name: &str) -> usize {
        let parents = self.nodes.values().flat_map(|node| &node.children).filter(|child| *child == name);
        let exports = self.exports.values().filter(|node| *node == name);
        let jobs = self.jobs.values().filter(|filter| *filter == name);
        let roots = self.roots.iter().filter(|root| *root == name);
        parents.count() + exports.count() + jobs.count() + roots.count()
    }

    /// The guest's own node beneath one, and whether a filter comes before it.
    fn beneath<'a>(&'a self, mut node: &'a str) -> (usize, bool) {
        let mut is_filtered = false;
        loop {
            if let Some(disk) = NODES.iter().position(|own| *own == node) {
                return (disk, is_filtered);
            }
            is_filtered |= self.nodes[node].children.len() > 1;
            node = &self.nodes[node].children[0];
        }
    }

    /// What the device writes goes another way: from now on through a filter, perhaps.
    fn lead(&mut self, act: impl FnOnce(&mut Self)) {
        let before: Vec<_> = self.roots.iter().map(|root| self.beneath(root).1).collect();
        act(self);
        for (disk, was_filtered) in before.into_iter().enumerate() {
            let (own, is_filtered) = self.beneath(&self.roots[disk]);
            assert_eq!(own, disk, "the device has another disk");
            if is_filtered && !was_filtered {
                self.take_moment(disk);
            }
        }
    }

    fn take_moment(&mut self, disk: usize) {
        self.moments[disk] = Some((self.content[disk], self.written));
    }

    fn do_it(&mut self, name: &str, told: &Value) -> Result<Value, String> {
        let text = |key: &str| told[key].as_str().unwrap_or_default().to_owned();
        let need = |there: bool, what: &str| if there { Ok(()) } else { Err(what.to_owned()) };
        match name {
            "query-version" => {
                let (major, minor) = self.version;
                return Ok(json!({ "qemu": { "major": major, "minor": minor, "micro": 0 } }));
            }
            "query-iothreads" => {
                let threads = self.threads.map(|_| json!({ "id": "thread" }));
                return Ok(threads.into_iter().collect());
            }
            "query-block" if self.has_device => {
                let block = |(root, device): (&String, &str)| json!({ "device": "", "qdev": device, "inserted": { "node-name": root } });
                return Ok(self.roots.iter().zip(DEVICES).map(block).collect());
            }
            "query-block" => return Ok(json!([])),
            "query-named-block-nodes" => return Ok(self.list_nodes()),
            "query-block-exports" => {
                let exports = self
                    .exports
                    .iter()
                    .map(|(id, node)| json!({ "id": id, "node-name": node, "type": "nbd" }));
                return Ok(exports.collect());
            }
            "query-jobs" => return Ok(self.jobs.keys().map(|id| json!({ "id": id })).collect()),
            "query-fdsets" => {
                let set = |(id, opaque)| json!({ "fdset-id": id, "fds": [{ "fd": 7, "opaque": opaque }] });
                return Ok(self.sets.iter().map(set).collect());
            }
            "qom-list" if self.objects.is_empty() => return Err("Device '/objects' not found".to_owned()),
            "qom-list" => return Ok(self.objects.keys().map(|name| json!({ "name": name })).collect()),
            "qom-get" if text("property") == "iothread" => {
                let device = DEVICES.iter().position(|device| text("path") == *device);
                let said = device.zip(self.threads).and_then(|(device, threads)| threads[device]);
                return said.map(|thread| json!(thread)).ok_or_else(|| "Property not found".to_owned());
            }
            "qom-get" => {
                let path = text("path");
                let object = self.objects.get(path.trim_start_matches("/objects/"));
                return object.map(|data| json!(data)).ok_or_else(|| format!("Device '{path}' not found"));
            }
            "object-add" => {
                self.has_record |= RunId::parse(&text("id")).is_some_and(|(_, part)| part.is_empty());
                need(
                    self.objects.insert(text("id"), text("data")).is_none(),
                    "attempt to add duplicate property",
                )?;
            }
            "object-del" => need(self.objects.remove(&text("id")).is_some(), "object not found")?,
            "add-fd" => {
                let id = self.sets.len() as u64;
                self.sets.insert(id, text("opaque"));
                return Ok(json!({ "fdset-id": id }));
            }
            "remove-fd" => {
                let id = told["fdset-id"].as_u64().unwrap();
                need(self.nodes.values().all(|node| node.set != Some(id)), "in use")?;
                need(self.sets.remove(&id).is_some(), "no such set")?;
            }
            "getfd" => drop(self.listens_at.insert(text("fdname"))),
            "closefd" => drop(self.listens_at.remove(&text("fdname"))),
            "blockdev-add" => self.add_node(told)?,
            "blockdev-del" => {
                let node = text("node-name");
                need(self.nodes.contains_key(&node), "Failed to find node")?;
                need(self.users_of(&node) == 0, "Node is in use")?;
                self.nodes.remove(&node);
                need(self.bitmaps.keys().all(|(of, _)| *of != node), "a bitmap went with its node")?;
            }
            "qom-set" => {
                let node = text("value");
                need(self.nodes.contains_key(&node), "Cannot find node")?;
                let device =
                    DEVICES.iter().position(|device| text("path") == *device).ok_or("Device not found")?;
                // A filter with users lets nobody write past it.
                let others = |(name, other): (&String, &Node)| {
                    other.children.len() > 1
                        && other.children[0] == node
                        && self.users_of(name) > usize::from(self.roots[device] == *name)
                };
                need(!self.nodes.iter().any(others), "Permission conflict")?;
                self.lead(|qemu| qemu.roots[device] = node);
            }
            "blockdev-reopen" => {
                let told = told["options"].as_array().unwrap().clone();
                for gate in &told {
                    need(
                        self.nodes.contains_key(gate["node-name"].as_str().unwrap()),
                        "Failed to find node",
                    )?;
                    need(self.nodes.contains_key(gate["file"].as_str().unwrap()), "Cannot find node")?;
                }
                self.lead(|qemu| {
                    for gate in &told {
                        let node = qemu.nodes.get_mut(gate["node-name"].as_str().unwrap()).unwrap();
                        node.children = vec![gate["file"].as_str().unwrap().to_owned()];
                    }
                });
            }
            "blockdev-backup" => {
                let filter = text("filter-node-name");
                let disk = NODES.iter().position(|node| text("device") == *node).ok_or("Cannot find node")?;
                need(self.nodes.contains_key(&text("target")), "Cannot find node")?;
                let children = vec![NODES[disk].to_owned(), text("target")];
                self.nodes.insert(filter.clone(), Node { children, set: None });
                self.jobs.insert(text("job-id"), filter);
                self.take_moment(disk);
            }
            "block-job-cancel" => {
                let filter = self.jobs.remove(&text("device")).ok_or("Job not found")?;
                self.nodes.remove(&filter);
            }
            "nbd-server-start" => {
                need(!self.server_runs, "NBD server already running")?;
                need(self.listens_at.remove(told["addr"]["data"]["str"].as_str().unwrap()), "no such file")?;
                self.server_runs = true;
            }
            "nbd-server-stop" => {
                need(self.server_runs, "NBD server not running")?;
                self.server_runs = false;
                self.exports.clear();
            }
            "block-export-add" => {
                need(
                    self.server_runs && self.nodes.contains_key(&text("node-name")),
                    "NBD server not running",
                )?;
                for bitmap in told["bitmaps"].as_array().into_iter().flatten() {
                    let bitmap = self
                        .bitmaps
                        .get(&(
                            bitmap["node"].as_str().unwrap().to_owned(),
                            bitmap["name"].as_str().unwrap().to_owned(),
                        ))
                        .ok_or("no bitmap")?;
                    need(!bitmap.records, "Enabled bitmap incompatible with readonly export")?;
                }
                self.exports.insert(text("id"), text("node-name"));
            }
            "block-export-del" => need(self.exports.remove(&text("id")).is_some(), "Export is not found")?,
            "block-dirty-bitmap-add" => {
                let records = told["disabled"] != true;
                let bitmap = Bitmap { dirty: BTreeSet::new(), records };
                need(self.nodes.contains_key(&text("node")), "Cannot find node")?;
                let name = (text("node"), text("name"));
                need(self.bitmaps.insert(name, bitmap).is_none(), "Bitmap already exists")?;
            }
            "block-dirty-bitmap-remove" => {
                need(self.bitmaps.remove(&(text("node"), text("name"))).is_some(), "not found")?;
            }
            "block-dirty-bitmap-clear" => {
                self.bitmaps.get_mut(&(text("node"), text("name"))).ok_or("not found")?.dirty.clear();
            }
            "block-dirty-bitmap-merge" => {
                let from = &told["bitmaps"][0];
                let from = match from.as_str() {
                    Some(name) => (text("node"), name.to_owned()),
                    None => {
                        (from["node"].as_str().unwrap().to_owned(), from["name"].as_str().unwrap().to_owned())
                    }
                };
                let dirty = self.bitmaps.get(&from).ok_or("not found")?.dirty.clone();
                self.bitmaps.get_mut(&(text("node"), text("target"))).ok_or("not found")?.dirty.extend(dirty);
            }
            "transaction" => {
                for action in told["actions"].as_array().unwrap() {
                    self.do_it(action["type"].as_str().unwrap(), &action["data"])?;
                }
            }
            other => return Err(format!("The command {other} has not been found")),
        }
        Ok(json!({}))
    }

    fn add_node(&mut self, told: &Value) -> Result<(), String> {
        let name = told["node-name"].as_str().unwrap().to_owned();
        assert!(name.len() <= 31, "QEMU has no longer names");
        let mut node = Node::default();
        for key in ["file", "target"] {
            node.children.extend(told[key].as_str().map(str::to_owned));
        }
        if told["driver"] == "file" {
            let set = told["filename"].as_str().and_then(|name| name.strip_prefix("/dev/fdset/"));
            node.set = set.and_then(|set| set.parse().ok());
        }
        if node.children.iter().any(|child| !self.nodes.contains_key(child)) {
            return Err("Cannot find node".to_owned());
        }
        // Above a filter that is not above the guest's disk yet there is nothing to be seen.
        if told["driver"] == "snapshot-access" && self.users_of(&node.children[0]) == 0 {
            return Err("Permission conflict".to_owned());
        }
        match self.nodes.insert(name, node) {
            None => Ok(()),
            Some(_) => Err("Duplicate nodes".to_owned()),
        }
    }

    fn list_nodes(&self) -> Value {
        let bitmap = |((_, name), bitmap): (&(String, String), &Bitmap)| json!({ "name": name, "granularity": 65536, "recording": bitmap.records, "busy": false });
        let bitmaps = |name: &String| -> Vec<_> {
            self.bitmaps.iter().filter(|((of, _), _)| of == name).map(bitmap).collect()
        };
        let image = json!({ "virtual-size": 65536 * BLOCK_COUNT, "filename": "disk.qcow2" });
        let node = |name: &String| {
            let driver = if NODES.contains(&name.as_str()) { "qcow2" } else { "file" };
            json!({ "node-name": name, "drv": driver, "ro": false, "image": image, "dirty-bitmaps": bitmaps(name) })
        };
        self.nodes.keys().map(node).collect()
    }
}

fn refused(command: &str, text: &str) -> Error {
    Error::refused(Said { command: command.to_owned(), text: text.to_owned() })
}

/// The same QEMU for who asks it, the agent, and the checks.
#[derive(Clone)]
pub(crate) struct Shared(pub(crate) Rc<RefCell<Qemu>>);

impl Monitor for Shared {
    fn execute(&mut self, command: Command<'_>) -> Result<Value> {
        self.0.borrow_mut().step(command.name, |qemu| qemu.do_it(command.name, &command.arguments))
    }
}

impl Agent for Shared {
    fn freeze(&mut self) -> Result<u64> {
        self.0.borrow_mut().step("freeze", |qemu| {
            // One that fails may freeze some of it, or all and say so too late.
            qemu.frozen = true;
            if qemu.agent_fails { Err("a file system is busy".to_owned()) } else { Ok(json!({})) }
        })?;
        Ok(1)
    }

    fn thaw(&mut self) -> Result<()> {
        self.0.borrow_mut().step("thaw", |qemu| {
            qemu.frozen = false;
            Ok(json!({}))
        })?;
        Ok(())
    }
}

impl Surroundings for Shared {
    fn life(&self, run: RunId) -> Life {
        if self.0.borrow().living.contains(&run) { Life::Alive } else { Life::Dead }
    }

    fn agent(&self, _path: &Path) -> Result<Box<dyn Agent>> {
        Ok(Box::new(self.clone()))
    }

    fn remove_socket(&self, path: &Path) -> Result<()> {
        self.0.borrow_mut().sockets.remove(path.to_str().unwrap());
        Ok(())
    }

    fn wait(&self) {}
}
