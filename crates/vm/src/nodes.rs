//! QEMU's nodes: which there are, and what leads to them.

use block::Result;
use serde_json::{Value, json};

use crate::monitor::{Monitor, strange};

/// All of them.
pub(crate) fn nodes(monitor: &mut dyn Monitor) -> Result<Vec<Value>> {
    match monitor.ask("query-named-block-nodes", json!({ "flat": true }))? {
        Value::Array(nodes) => Ok(nodes),
        _ => Err(strange("query-named-block-nodes")),
    }
}

/// Makes one.
pub(crate) fn add_node(monitor: &mut dyn Monitor, node: Value) -> Result<()> {
    monitor.ask("blockdev-add", node)?;
    Ok(())
}

/// A node through which another one is used as it is.
pub(crate) fn gate_to(gate: &str, node: &str) -> Value {
    json!({ "driver": "raw", "node-name": gate, "file": node })
}

/// Has gates lead to other nodes, all at one moment.
pub(crate) fn reopen<'a>(
    monitor: &mut dyn Monitor,
    gates: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<()> {
    let options: Vec<_> = gates.map(|(gate, node)| gate_to(gate, node)).collect();
    monitor.ask("blockdev-reopen", json!({ "options": options }))?;
    Ok(())
}

/// Gives a device another node.
pub(crate) fn put_in(monitor: &mut dyn Monitor, device: &str, node: &str) -> Result<()> {
    monitor.ask("qom-set", json!({ "path": device, "property": "drive", "value": node }))?;
    Ok(())
}
