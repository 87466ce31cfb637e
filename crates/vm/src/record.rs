//! What a run says of itself in the QEMU that it works on, so that whoever comes after it can undo what it did.
//!
//! It lies in an object of QEMU's (a secret, which is nothing but a text with a name): it outlives this process, and goes with QEMU, as all
//! that it tells of does. It is made first and removed last.

use block::Result;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::monitor::{Monitor, is_refusal, strange};
use crate::owner::RunId;

/// Where QEMU keeps the objects that its users make.
const OBJECTS: &str = "/objects";

/// What a run reads, and how it is reached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The disks, by their numbers.
    pub(crate) disks: Vec<RecordedDisk>,
    /// The socket of the export.
    pub(crate) socket: String,
    /// The guest's agent, if the guest is frozen.
    pub(crate) agent: Option<String>,
}

/// A disk that it reads.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct RecordedDisk {
    /// The guest's own node.
    pub(crate) node: String,
    /// The device that reads and writes it, if there is one.
    pub(crate) device: Option<String>,
    /// The dirty bitmap that says what is read.
    pub(crate) bitmap: Option<String>,
}

/// The names of all objects.
pub(crate) fn objects(monitor: &mut dyn Monitor) -> Result<Vec<String>> {
    let list = match monitor.ask("qom-list", json!({ "path": OBJECTS })) {
        Ok(Value::Array(list)) => list,
        Ok(_) => return Err(strange("qom-list")),
        // Without an object the folder of objects is not there either.
        Err(error) if is_refusal(&error) => Vec::new(),
        Err(error) => return Err(error),
    };
    Ok(list.iter().filter_map(|object| object["name"].as_str().map(str::to_owned)).collect())
}

/// Makes an object that is nothing but a text.
pub(crate) fn make(monitor: &mut dyn Monitor, name: &str, text: &str) -> Result<()> {
    monitor.ask("object-add", json!({ "qom-type": "secret", "id": name, "data": text }))?;
    Ok(())
}

/// Removes it.
pub(crate) fn remove(monitor: &mut dyn Monitor, name: &str) -> Result<()> {
    monitor.ask("object-del", json!({ "id": name }))?;
    Ok(())
}

/// What a run says; `None` if it says nothing, or nothing that can be understood.
pub(crate) fn read(monitor: &mut dyn Monitor, run: RunId) -> Result<Option<Record>> {
    let path = format!("{OBJECTS}/{run}");
    match monitor.ask("qom-get", json!({ "path": path, "property": "data" })) {
        Ok(Value::String(text)) => Ok(serde_json::from_str(&text).ok()),
        Ok(_) => Ok(None),
        Err(error) if is_refusal(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
