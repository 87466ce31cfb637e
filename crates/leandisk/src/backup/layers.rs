//! What of a disk changed since a snapshot, by the layers of its chain: what lies in a layer that did not change since is what was stored.
//!
//! A layer is known again by its files: inode, length and the times of its last change, of which the kernel alone sets one.
//!
//! Invariants:
//! - layers are told in a snapshot only if none of their files changed from before it was read until so long after its last change that
//!   a later one has another time;
//! - where layers are in doubt, everything is read.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use block::{Fingerprint, HostFile, ReadAt, Result, RunState};
use claims::Seen;
use extent::{ExtentSet, Span, Virtual};
use image::{Chain, Format, Layer};
use repository::{LayerFile, LayerState, Layers};

use super::earlier::Known;

/// What is looked at in one go.
const WINDOW_BYTES: u64 = 1 << 30;
/// Two changes so far apart have different times, if the file system keeps fractions of seconds, and if not.
const TICK: Duration = Duration::from_millis(50);
const COARSE_TICK: Duration = Duration::from_secs(2);
/// A top layer in more pieces than this is not told: the next backup reads everything.
const TOP_SPANS_MAX: usize = 64 << 10;

/// The layers of a disk as they are, the top one first; `None` if nothing can be known by them.
pub(super) fn of(chain: &Chain) -> Option<Vec<LayerState>> {
    if chain.links().len() == 1 && chain.facts().format == Format::Raw {
        return None;
    }
    let file = |file: &Arc<dyn HostFile>| file.fingerprint_when_opened().and_then(told);
    let layer = |layer: &dyn Layer| {
        let facts = layer.facts();
        Some(LayerState {
            format: facts.format.name().to_owned(),
            id: facts.id.clone(),
            virtual_bytes: facts.virtual_bytes,
            files: layer.files().iter().map(file).collect::<Option<_>>()?,
        })
    };
    chain.links().iter().map(|link| layer(&*link.layer)).collect()
}

fn told(seen: Fingerprint) -> Option<LayerFile> {
    Some(LayerFile {
        inode: seen.identity.1,
        len_bytes: seen.len_bytes,
        modified_ns: i64::try_from(seen.modified_ns).ok()?,
        changed_ns: i64::try_from(seen.changed_ns).ok()?,
    })
}

/// What the snapshot is to say of the disk's layers, of which `seen` was known before anything was read.
pub(super) fn record(chain: &Chain, seen: &Seen) -> Result<Option<Layers>> {
    let Some(layers) = of(chain) else { return Ok(None) };
    let files = layers.iter().flat_map(|layer| &layer.files);
    if let Some(left) = files.map(left_to_wait).max() {
        std::thread::sleep(left);
    }
    if !seen.is_as_it_was(chain)? {
        return Ok(None);
    }
    let top = held(chain, 1)?;
    let top = top.filter(|top| top.count() <= TOP_SPANS_MAX && chain.links().len() > 1);
    Ok(Some(Layers::new(layers, top.as_ref())))
}

/// How long it takes until a change of the file has another time than its last one.
fn left_to_wait(file: &LayerFile) -> Duration {
    let last = file.changed_ns.max(file.modified_ns);
    let tick = if last % 1_000_000_000 == 0 { COARSE_TICK } else { TICK };
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let last = Duration::from_nanos(u64::try_from(last).unwrap_or(0));
    // A time that is to come says nothing, and nobody waits for it.
    (last + tick).saturating_sub(since).min(tick)
}

/// What may differ from the snapshot that said this of the layers; or why everything may.
pub(super) fn changed(chain: &Chain, earlier: &Layers) -> Result<Known<ExtentSet<Virtual>>> {
    let Some(now) = of(chain) else { return Ok(Err("nothing is known of the image's layers".into())) };
    let before = &earlier.layers;
    if now.first().map(|layer| layer.virtual_bytes) != before.first().map(|layer| layer.virtual_bytes) {
        return Ok(Err("the disk has another size than in the last snapshot".into()));
    }
    // All of its layers are there, beneath new ones; or all but the top one.
    let (above, top) = if now.ends_with(before) {
        (now.len() - before.len(), ExtentSet::new())
    } else {
        match (before.split_first(), earlier.top()) {
            (Some((_, rest)), Some(top)) if !rest.is_empty() && now.ends_with(rest) => {
                (now.len() - rest.len(), top)
            }
            _ => {
                return Ok(Err(
                    "the image's layers are others than those of the last snapshot, or have changed".into(),
                ));
            }
        }
    };
    Ok(match held(chain, above)? {
        Some(held) => Ok(held.union(&top)),
        None => Err("a layer of the image is shorter than the disk".into()),
    })
}

/// What lies in the first `count` layers; `None` if one of them ends before the disk.
fn held(chain: &Chain, count: usize) -> Result<Option<ExtentSet<Virtual>>> {
    let mut all = ExtentSet::new();
    for link in chain.links().iter().take(count) {
        if link.layer.facts().virtual_bytes < chain.len_bytes() {
            return Ok(None);
        }
        let mut held = ExtentSet::new();
        for window in Span::from_zero(chain.len_bytes()).split(WINDOW_BYTES) {
            for run in link.layer.map(window)? {
                if run.state != RunState::Hole {
                    held.push(run.span);
                }
            }
        }
        all = all.union(&held);
    }
    Ok(Some(all))
}
