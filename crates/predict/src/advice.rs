//! What is worth doing with a disk: what it would gain, what it would cost, and why.
//!
//! Invariants:
//! - a pure function: the same facts give the same advice;
//! - every action is answered for, best first; what is refused is never worth it, and has no gain;
//! - `nothing` is worth it exactly when nothing else is, and is first then.
//!
//! Gains and costs are predictions. Sentences say what an action *would* do; no name that a guest chose is in them,
//! but for what a doubt quotes.

use crate::cost::ReadCost;
use rules::{compact, copy_packed, defrag, nothing, remarks};

mod rules;

/// What can be done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Give back the container's units that the guest does not use.
    Compact,
    /// Move the pieces of files together, in place.
    Defrag,
    /// Copy to a new disk whose units lie in the guest's order.
    CopyPacked,
    /// Leave it as it is.
    Nothing,
}

impl Action {
    /// As on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Compact => "compact",
            Self::Defrag => "defrag",
            Self::CopyPacked => "copy --layout packed",
            Self::Nothing => "nothing",
        }
    }
}

/// What an action would gain.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Gain {
    /// Bytes of the host that become free.
    pub bytes: u64,
    /// Requests fewer, each time all files are read.
    pub requests: u64,
    /// Seconds fewer, each time all files are read.
    pub seconds: f64,
    /// On which storage: a profile's name.
    pub profile: String,
}

/// What an action would cost. Upper bounds.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Cost {
    /// Bytes that are read and written elsewhere.
    pub moved_bytes: u64,
    /// By how much the storage in use grows, for as long as old and new are both there.
    pub growth_bytes: u64,
    /// What the next incremental backup carries, in whole blocks of that.
    pub changed_bytes: u64,
    /// What a store that deduplicates in blocks of fixed size has not seen before.
    pub new_to_dedup_bytes: u64,
    /// How long it takes on the profile's storage.
    pub seconds: f64,
}

/// What is said of one action.
#[derive(Clone, PartialEq, Debug)]
pub struct Advice {
    /// The action.
    pub action: Action,
    /// What it would gain.
    pub gain: Gain,
    /// What it would cost.
    pub cost: Cost,
    /// Why, for people.
    pub because: String,
    /// Whether to do it.
    pub worth_it: bool,
    /// Whether it must not be done at all.
    pub is_refused: bool,
}

/// Whether other disks stand on this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Children {
    /// None do.
    None,
    /// So many do.
    Some(u64),
    /// Nobody can tell: a parent does not know its children.
    Unknown,
}

/// A volume, as far as it matters here.
#[derive(Clone, PartialEq, Debug)]
pub struct VolumeFacts {
    /// Its number, as people are shown it.
    pub number: usize,
    /// Its file system's name.
    pub filesystem: &'static str,
    /// Why it is not to be changed: it is dirty, hibernated, encrypted, inconsistent.
    pub doubt: Option<String>,
    /// Whether its files can be moved in place.
    pub is_movable: bool,
    /// Where it begins on the virtual disk.
    pub start_bytes: u64,
    /// Files with more than one fragment.
    pub fragmented_files: u64,
    /// Fragments beyond the first of each file.
    pub extra_fragments: u64,
    /// What the fragmented files hold.
    pub fragmented_bytes: u64,
    /// Free in it.
    pub free_bytes: u64,
    /// In so many extents.
    pub free_extents: u64,
    /// The largest of these.
    pub largest_free_bytes: u64,
    /// Reading all its files as they lie on the lowest layer.
    pub whole_cost: ReadCost,
    /// Reading all its files if the virtual disk were in one piece on the lowest layer.
    pub guest_cost: ReadCost,
}

/// The topmost image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ContainerFacts {
    /// Its format.
    pub format: &'static str,
    /// What its guest sees.
    pub virtual_bytes: u64,
    /// What it takes on the host.
    pub allocated_bytes: u64,
    /// What it allocates at a time; `None` where it allocates nothing itself, as a raw disk.
    pub unit_bytes: Option<u64>,
    /// Whether it can become smaller: not so if it is of fixed size, or a device.
    pub can_shrink: bool,
    /// Allocated, but free or swap to the guest: what fills whole units.
    pub reclaimable_bytes: u64,
    /// The same, in units of which the guest uses another part.
    pub reclaimable_partial_bytes: u64,
    /// How many layers it stands on.
    pub parents: usize,
    /// Snapshots within it.
    pub snapshots: u64,
    /// What stands on it.
    pub children: Children,
}

/// Everything that advice depends on.
#[derive(Clone, PartialEq, Debug)]
pub struct AdviceFacts {
    /// The volumes.
    pub volumes: Vec<VolumeFacts>,
    /// The topmost image.
    pub container: ContainerFacts,
    /// In how many pieces the image lies on the host; `None` if that is not known.
    pub host_extents: Option<u64>,
    /// The profile's name by which the costs were computed.
    pub profile: String,
    /// The block of incremental backups; see [`BACKUP_BLOCK_BYTES`].
    pub backup_block_bytes: u64,
}

/// The granularity of QEMU's dirty bitmaps unless told otherwise. Other backups use up to 1 MiB.
pub const BACKUP_BLOCK_BYTES: u64 = 64 << 10;

impl AdviceFacts {
    /// Reading all files of all volumes.
    pub fn whole_cost(&self) -> ReadCost {
        self.volumes.iter().map(|volume| volume.whole_cost).sum()
    }
}

/// Advises: all four actions, best first.
pub fn advise(facts: &AdviceFacts) -> Vec<Advice> {
    let defrag = defrag(facts);
    let compact = compact(facts, defrag.worth_it);
    let copy = copy_packed(facts, &compact);
    let mut advice = vec![compact, defrag, copy];
    let nothing = nothing(facts, &advice);
    advice.push(nothing);
    // Stable: of what is as good, the cheaper one stays first.
    advice.sort_by(|one, other| {
        let rank = |advice: &Advice| (advice.worth_it, !advice.is_refused, advice.action != Action::Nothing);
        let by_value = || value(facts, other).total_cmp(&value(facts, one));
        rank(other).cmp(&rank(one)).then_with(by_value)
    });
    if let Some(first) = advice.first_mut() {
        for remark in remarks(facts) {
            first.because.push(' ');
            first.because.push_str(&remark);
        }
    }
    advice
}

/// How much of the time and of the space an action would save.
fn value(facts: &AdviceFacts, advice: &Advice) -> f64 {
    rules::share(advice.gain.seconds, facts.whole_cost().seconds)
        + rules::share_of_bytes(advice.gain.bytes, facts.container.allocated_bytes)
}

#[cfg(test)]
mod tests;
