//! Which disks QEMU handles in a thread of their own (`-object iothread`), and whether it may export those.

use block::{Error, Result};
use mutants::broken;
use serde_json::json;

use crate::inventory::VmDisk;
use crate::monitor::{Monitor, is_refusal};

/// An export lies in the thread of its disk. From this version on QEMU ends a client of it in the main thread; before, it aborts as the client
/// leaves, and the guest with it (`nbd_blockdev_client_closed`, `assert(qemu_in_main_thread())`; in QEMU since 7075d2351 of December 2023).
const THREADS_SINCE: (u64, u64) = (9, 0);

/// Refuses a disk of which an export would end this QEMU.
pub(crate) fn check(monitor: &mut dyn Monitor, version: (u64, u64), disk: &VmDisk) -> Result<()> {
    if version >= THREADS_SINCE || broken!(ThreadIgnored) || !is_in_thread(monitor, disk)? {
        return Ok(());
    }
    let (major, minor) = version;
    let unsupported = Error::unsupported("reading a running guest's disk that has an iothread");
    Err(unsupported
        .field("QEMU's version", format!("{major}.{minor}"), "9.0 or newer")
        .hint("before 9.0 QEMU ends, and the guest with it, as a reader of such a disk leaves: run the guest without the disk's iothread"))
}

/// Whether a thread handles it. Where that cannot be told, as of a disk whose controller has the thread, it is supposed of a guest with threads.
fn is_in_thread(monitor: &mut dyn Monitor, disk: &VmDisk) -> Result<bool> {
    match monitor.list("query-iothreads") {
        Ok(threads) if threads.is_empty() => return Ok(false),
        Ok(_) => {}
        // A storage daemon has none that it tells of.
        Err(error) if is_refusal(&error) => return Ok(false),
        Err(error) => return Err(error),
    }
    let Some(device) = &disk.device else { return Ok(true) };
    match monitor.ask("qom-get", json!({ "path": device, "property": "iothread" })) {
        Ok(thread) => Ok(thread != ""),
        Err(error) if is_refusal(&error) => Ok(true),
        Err(error) => Err(error),
    }
}
