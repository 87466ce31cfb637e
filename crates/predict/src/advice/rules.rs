//! One rule for each action.

use super::{Action, Advice, AdviceFacts, Children, ContainerFacts, Cost, Gain, VolumeFacts};
use crate::figures::{counted, human_bytes, percent, seconds};
use crate::profile::float;

/// Space below this share of what is allocated is not worth a run: a guest's own writing undoes it within days.
const SPACE_SHARE_MIN: f64 = 0.05;

/// Nor is less than this, whatever its share: it is below what one update of a guest's system takes.
const SPACE_BYTES_MIN: u64 = 64 << 20;

/// A copy rewrites everything and needs the room for a second disk, so it must give back more.
const SPACE_SHARE_COPY_MIN: f64 = 0.2;

/// Less time than this share is not noticed: runs of the same read differ by as much.
const TIME_SHARE_MIN: f64 = 0.1;

/// Nor is less than this, over all files.
const TIME_SECONDS_MIN: f64 = 1.0;

/// After so many reads of all files, moving must have paid for itself: more often, a disk is not read as a whole in the
/// weeks until files are fragmented anew (a full backup a week, a scan for viruses).
const READS_TO_REPAY_MAX: f64 = 10.0;

/// Of a space gain this share by `compact` makes a copy superfluous.
const COMPACT_SUFFICES_SHARE: f64 = 0.8;

/// Free extents that are smaller on average make new files fragmented: ext4 and NTFS look for larger ones first.
const SCATTERED_FREE_BYTES: u64 = 1 << 20;

/// Volumes that do not begin at a multiple of this have clusters that lie across two blocks of the storage: 4 KiB is
/// what disks and host file systems use.
const ALIGNMENT_BYTES: u64 = 4096;

/// Stores that deduplicate in fixed blocks use at most this (ZFS's `recordsize`, by default).
const DEDUP_BLOCK_BYTES: u64 = 128 << 10;

pub(super) fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

pub(super) fn share_of_bytes(part: u64, whole: u64) -> f64 {
    share(float(part), float(whole))
}

fn is_space_worth(gain_bytes: u64, container: &ContainerFacts, least_share: f64) -> bool {
    gain_bytes >= SPACE_BYTES_MIN && share_of_bytes(gain_bytes, container.allocated_bytes) >= least_share
}

fn is_time_worth(gain_seconds: f64, facts: &AdviceFacts) -> bool {
    gain_seconds >= TIME_SECONDS_MIN && share(gain_seconds, facts.whole_cost().seconds) >= TIME_SHARE_MIN
}

/// `moved_bytes` in `places` anywhere, as a backup sees them: each touches a block more than it fills.
fn in_backup_blocks(moved_bytes: u64, places: u64, facts: &AdviceFacts) -> u64 {
    if moved_bytes == 0 {
        return 0;
    }
    let block_bytes = facts.backup_block_bytes.max(1);
    let blocks = (moved_bytes / block_bytes).saturating_add(places.saturating_mul(2));
    // A block holds a byte that was moved, and lies on the disk.
    let disk_bytes = facts.container.virtual_bytes.max(facts.container.allocated_bytes).max(moved_bytes);
    blocks
        .saturating_mul(block_bytes)
        .min(disk_bytes.checked_next_multiple_of(block_bytes).unwrap_or(u64::MAX))
}

/// What reading or writing `moved_bytes` takes where they lie in one piece.
fn transfer_seconds(moved_bytes: u64, facts: &AdviceFacts) -> f64 {
    let cost = facts.whole_cost();
    share(float(moved_bytes), float(cost.bytes)) * cost.unfragmented_seconds
}

fn refused(action: Action, facts: &AdviceFacts, because: String) -> Advice {
    let gain = Gain { profile: facts.profile.clone(), ..Gain::default() };
    Advice { action, gain, cost: Cost::default(), because, worth_it: false, is_refused: true }
}

/// Why the container must not be changed in place.
fn in_place_refusal(container: &ContainerFacts) -> Option<String> {
    match container.children {
        Children::Some(children) => {
            return Some(format!(
                "{} on this disk, and changing it would damage them",
                counted(children, "linked clone stands", "linked clones stand")
            ));
        }
        Children::None | Children::Unknown => {}
    }
    (container.snapshots > 0).then(|| {
        format!(
            "it holds {}, which share their data with the disk",
            counted(container.snapshots, "snapshot", "snapshots")
        )
    })
}

/// What a person must make sure of before the disk is changed in place.
fn in_place_caution(container: &ContainerFacts) -> &'static str {
    match container.children {
        Children::Unknown => {
            " First make sure that no linked clone stands on this disk: it would be damaged."
        }
        Children::None | Children::Some(_) => "",
    }
}

pub(super) fn compact(facts: &AdviceFacts, comes_after_defrag: bool) -> Advice {
    let container = &facts.container;
    if let Some(why) = in_place_refusal(container) {
        let because = format!("Do not compact: {why}. Remove them first, or leave it.");
        return refused(Action::Compact, facts, because);
    }
    if !container.can_shrink {
        let because =
            format!("This {} disk has a fixed size: it gives nothing back in place.", container.format);
        return refused(Action::Compact, facts, because);
    }
    let allocated_bytes = container.allocated_bytes;
    let gain_bytes = container.reclaimable_bytes.min(allocated_bytes);
    // Units from the end fill what becomes free, so that the file can be cut; a raw disk gets holes instead.
    let moved_bytes = container.unit_bytes.map_or(0, |_| gain_bytes.min(allocated_bytes - gain_bytes));
    let unit_bytes = container.unit_bytes.unwrap_or(1).max(1);
    let keeps_blocks = unit_bytes.is_multiple_of(DEDUP_BLOCK_BYTES);
    let cost = Cost {
        moved_bytes,
        growth_bytes: 0,
        changed_bytes: in_backup_blocks(moved_bytes, moved_bytes.div_ceil(unit_bytes), facts),
        new_to_dedup_bytes: if keeps_blocks { 0 } else { moved_bytes },
        seconds: 2.0 * transfer_seconds(moved_bytes, facts),
    };
    let worth_it = is_space_worth(gain_bytes, container, SPACE_SHARE_MIN);
    let figures = format!(
        "{} of {} ({}) are reclaimable",
        human_bytes(gain_bytes),
        human_bytes(allocated_bytes),
        percent(share_of_bytes(gain_bytes, allocated_bytes)),
    );
    let mut because = match (worth_it, moved_bytes) {
        (true, 0) => format!("{figures}; giving them back moves nothing."),
        (true, _) => {
            format!("{figures}; giving them back would move at most {}.", human_bytes(moved_bytes))
        }
        (false, _) => format!("Too little to gain: {figures}."),
    };
    let partial_bytes = container.reclaimable_partial_bytes;
    if partial_bytes >= SPACE_BYTES_MIN && container.parents == 0 {
        let can_move = facts.volumes.iter().any(|volume| volume.is_movable && volume.doubt.is_none());
        let how = match container.unit_bytes {
            Some(_) if can_move => {
                "'compact --defrag' moves files out of them where that pays, and a copy leaves them out"
            }
            _ => "only a copy leaves them out",
        };
        because.push_str(&format!(
            " Another {} are free in blocks of the image that are partly in use: {how}.",
            human_bytes(partial_bytes)
        ));
    }
    if worth_it {
        if comes_after_defrag {
            because.push_str(" Do it after 'defrag', which frees further blocks.");
        }
        because.push_str(in_place_caution(container));
    }
    let gain = Gain { bytes: gain_bytes, profile: facts.profile.clone(), ..Gain::default() };
    Advice { action: Action::Compact, gain, cost, because, worth_it, is_refused: false }
}

/// Why a volume's files are not moved; `None` if they can be.
fn volume_refusal(volume: &VolumeFacts) -> Option<String> {
    let name = format!("volume {} ({})", volume.number, volume.filesystem);
    if let Some(doubt) = &volume.doubt {
        return Some(format!("{name} is not to be changed: {doubt}"));
    }
    if !volume.is_movable {
        return Some(format!("the files of {name} cannot be moved in place"));
    }
    let average_bytes = average_fragmented_bytes(volume);
    (volume.free_bytes < average_bytes).then(|| {
        format!(
            "{name} has no room: its fragmented files have {} on average, and {} are free",
            human_bytes(average_bytes),
            human_bytes(volume.free_bytes),
        )
    })
}

fn average_fragmented_bytes(volume: &VolumeFacts) -> u64 {
    volume.fragmented_bytes / volume.fragmented_files.max(1)
}

/// Whether others must move before a fragmented file finds room.
fn must_make_room(volume: &VolumeFacts) -> bool {
    volume.largest_free_bytes < average_fragmented_bytes(volume)
}

/// What moves at most: no plan moved as much again to make room (docs/decisions/defrag-planner.md).
fn moving_bytes(volume: &VolumeFacts) -> u64 {
    volume.fragmented_bytes.saturating_mul(if must_make_room(volume) { 2 } else { 1 })
}

/// Seconds and requests that the guest's own fragments cost: what is left of them when the container is left aside, and
/// never more than what all fragments cost.
fn guest_gain(volume: &VolumeFacts) -> (f64, u64) {
    let (guest, whole) = (&volume.guest_cost, &volume.whole_cost);
    (guest.extra_seconds().min(whole.extra_seconds()), guest.extra_requests().min(whole.extra_requests()))
}

pub(super) fn defrag(facts: &AdviceFacts) -> Advice {
    let container = &facts.container;
    if container.parents > 0 {
        let moved_bytes =
            facts.volumes.iter().map(|volume| volume.fragmented_bytes).fold(0, u64::saturating_add);
        let because = format!(
            "Do not defragment; optimise the base. This is a linked clone on {}: up to {} of it would be copied into \
             the clone.",
            counted(container.parents as u64, "parent", "parents"),
            human_bytes(moved_bytes.min(container.virtual_bytes)),
        );
        return refused(Action::Defrag, facts, because);
    }
    if let Some(why) = in_place_refusal(container) {
        let because = match container.snapshots {
            0 => format!("Do not defragment: {why}."),
            _ => format!(
                "Do not defragment; optimise the base before snapshots are made. Here {why}: moved files would take \
                 their space twice."
            ),
        };
        return refused(Action::Defrag, facts, because);
    }
    let fragmented = || facts.volumes.iter().filter(|volume| volume.extra_fragments > 0);
    let refusals: Vec<_> = fragmented().filter_map(volume_refusal).collect();
    let movable: Vec<_> = fragmented().filter(|volume| volume_refusal(volume).is_none()).collect();
    if movable.is_empty() && !refusals.is_empty() {
        return refused(Action::Defrag, facts, format!("Do not defragment: {}.", refusals.join("; ")));
    }
    let mut advice = defrag_of(facts, &movable);
    for refusal in refusals {
        advice.because.push_str(&format!(" Left alone: {refusal}."));
    }
    advice
}

fn defrag_of(facts: &AdviceFacts, movable: &[&VolumeFacts]) -> Advice {
    let container = &facts.container;
    let sum =
        |of: fn(&VolumeFacts) -> u64| movable.iter().map(|volume| of(volume)).fold(0, u64::saturating_add);
    let files = sum(|volume| volume.fragmented_files);
    let moved_bytes = sum(moving_bytes).min(container.virtual_bytes);
    let gain_seconds: f64 = movable.iter().map(|volume| guest_gain(volume).0).sum();
    let unit_bytes = container.unit_bytes.unwrap_or(1).max(1);
    let touched_bytes = moved_bytes.saturating_add(files.saturating_mul(unit_bytes));
    let unallocated_bytes = container.virtual_bytes.saturating_sub(container.allocated_bytes);
    let cost = Cost {
        moved_bytes,
        growth_bytes: if moved_bytes == 0 { 0 } else { touched_bytes.min(unallocated_bytes) },
        changed_bytes: in_backup_blocks(moved_bytes, files, facts),
        new_to_dedup_bytes: moved_bytes,
        seconds: 2.0 * transfer_seconds(moved_bytes, facts) + gain_seconds,
    };
    let is_repaid = cost.seconds <= gain_seconds * READS_TO_REPAY_MAX;
    let worth_it = is_time_worth(gain_seconds, facts) && is_repaid;
    let total_seconds = facts.whole_cost().seconds;
    let figures = format!(
        "{} would make reading all files {} faster on {} ({} of {})",
        counted(files, "fragmented file put together", "fragmented files put together"),
        seconds(gain_seconds),
        facts.profile,
        percent(share(gain_seconds, total_seconds)),
        seconds(total_seconds),
    );
    let price = format!("moving {} in about {}", human_bytes(moved_bytes), seconds(cost.seconds));
    let room = match movable.iter().any(|volume| must_make_room(volume)) {
        true => " Others have to make room: 'defrag --dry-run' says for how many files they can.",
        false => "",
    };
    let because = match (worth_it, movable.is_empty()) {
        (_, true) => "No file is fragmented.".to_owned(),
        (true, _) => format!("{figures}, for {price}.{room}{}", in_place_caution(container)),
        (false, _) if is_time_worth(gain_seconds, facts) => {
            format!(
                "It costs more than it gains: {figures}, but {price} takes over {READS_TO_REPAY_MAX} reads to repay."
            )
        }
        (false, _) => format!("Too little to gain: {figures}, for {price}."),
    };
    let gain = Gain {
        bytes: 0,
        requests: movable.iter().map(|volume| guest_gain(volume).1).fold(0, u64::saturating_add),
        seconds: gain_seconds,
        profile: facts.profile.clone(),
    };
    Advice { action: Action::Defrag, gain, cost, because, worth_it, is_refused: false }
}

/// Seconds and requests that the places of the container's units cost, and of the image's pieces on the host.
fn layout_gain(volume: &VolumeFacts) -> (f64, u64) {
    let (guest, whole) = (&volume.guest_cost, &volume.whole_cost);
    ((whole.seconds - guest.seconds).max(0.0), whole.requests.saturating_sub(guest.requests))
}

pub(super) fn copy_packed(facts: &AdviceFacts, compact: &Advice) -> Advice {
    let container = &facts.container;
    let allocated_bytes = container.allocated_bytes;
    let left_out_bytes = container.reclaimable_bytes.saturating_add(container.reclaimable_partial_bytes);
    // A copy of a clone also holds what its parents hold: how much is not in these facts, but it is no less.
    let gain_bytes = if container.parents > 0 { 0 } else { left_out_bytes.min(allocated_bytes) };
    let copied_bytes = match container.parents {
        0 => allocated_bytes - gain_bytes,
        _ => container.virtual_bytes.max(allocated_bytes),
    };
    let gain_seconds: f64 = facts.volumes.iter().map(|volume| layout_gain(volume).0).sum();
    let cost = Cost {
        moved_bytes: copied_bytes,
        growth_bytes: copied_bytes,
        changed_bytes: in_backup_blocks(copied_bytes, 1, facts),
        new_to_dedup_bytes: copied_bytes,
        seconds: 2.0 * transfer_seconds(copied_bytes, facts),
    };
    let compact_suffices =
        compact.worth_it && share_of_bytes(compact.gain.bytes, gain_bytes) >= COMPACT_SUFFICES_SHARE;
    let is_for_space = is_space_worth(gain_bytes, container, SPACE_SHARE_COPY_MIN) && !compact_suffices;
    let is_for_time = is_time_worth(gain_seconds, facts) && cost.seconds <= gain_seconds * READS_TO_REPAY_MAX;
    let loss = copy_loss(container);
    let worth_it = loss.is_none() && (is_for_space || is_for_time);
    let figures = format!(
        "a copy in the guest's order would leave out {} of {} ({}) and make reading all files {} faster on {}",
        human_bytes(gain_bytes),
        human_bytes(allocated_bytes),
        percent(share_of_bytes(gain_bytes, allocated_bytes)),
        seconds(gain_seconds),
        facts.profile,
    );
    let price =
        format!("at most {} are written, in about {}", human_bytes(copied_bytes), seconds(cost.seconds));
    let host = match facts.host_extents {
        Some(extents) if extents > 1 => {
            format!(" On the host, the image lies in {}.", counted(extents, "extent", "extents"))
        }
        _ => String::new(),
    };
    let because = match (loss, worth_it) {
        (Some(loss), _) => format!("Not worth it: {loss}; {figures}."),
        (None, true) => format!("{}; {price}.{host}", capitalised(&figures)),
        (None, false) if compact_suffices => {
            format!("Not needed: 'compact' gains nearly as much in place; {figures}; {price}.")
        }
        (None, false) => format!("Too little to gain: {figures}; {price}."),
    };
    let gain = Gain {
        bytes: gain_bytes,
        requests: facts.volumes.iter().map(|volume| layout_gain(volume).1).fold(0, u64::saturating_add),
        seconds: gain_seconds,
        profile: facts.profile.clone(),
    };
    Advice { action: Action::CopyPacked, gain, cost, because, worth_it, is_refused: false }
}

/// What a copy would not have of the disk.
fn copy_loss(container: &ContainerFacts) -> Option<String> {
    if container.parents > 0 {
        return Some("the copy would stand alone, and hold also what is shared with the parents".into());
    }
    if container.snapshots > 0 {
        let snapshots = counted(container.snapshots, "snapshot", "snapshots");
        return Some(format!("the copy would have only the present state, not the {snapshots}"));
    }
    match container.children {
        Children::Some(children) => Some(format!(
            "{} need the old disk all the same",
            counted(children, "linked clone would", "linked clones would")
        )),
        Children::None | Children::Unknown => None,
    }
}

pub(super) fn nothing(facts: &AdviceFacts, others: &[Advice]) -> Advice {
    let worth_it = !others.iter().any(|advice| advice.worth_it);
    let cost = facts.whole_cost();
    let container = &facts.container;
    let time = match cost.seconds > 0.0 {
        true => format!(
            "fragments cost {} of the {} that reading all files takes on {} ({})",
            seconds(cost.extra_seconds()),
            seconds(cost.seconds),
            facts.profile,
            percent(share(cost.extra_seconds(), cost.seconds)),
        ),
        false => "no files with data were found".to_owned(),
    };
    let space = format!(
        "{} of {} are reclaimable",
        human_bytes(container.reclaimable_bytes),
        human_bytes(container.allocated_bytes),
    );
    let base = if container.parents > 0 {
        ", and the place to optimise is the base of this linked clone"
    } else {
        ""
    };
    let because = match worth_it {
        // There is much to gain, and nothing that would gain it; the others say why.
        true if is_time_worth(cost.extra_seconds(), facts) => {
            format!("Nothing else is worth its price, or can be done: {time}, and {space}{base}.")
        }
        true => format!("Too little to gain: {time}, and {space}{base}."),
        false => format!("It would stay as it is: {time}, and {space}{base}."),
    };
    let gain = Gain { profile: facts.profile.clone(), ..Gain::default() };
    Advice { action: Action::Nothing, gain, cost: Cost::default(), because, worth_it, is_refused: false }
}

/// What no action mends, but a person should know.
pub(super) fn remarks(facts: &AdviceFacts) -> Vec<String> {
    facts
        .volumes
        .iter()
        .flat_map(|volume| [unaligned(volume), scattered(volume), doubted(volume)])
        .flatten()
        .collect()
}

fn unaligned(volume: &VolumeFacts) -> Option<String> {
    (!volume.start_bytes.is_multiple_of(ALIGNMENT_BYTES)).then(|| {
        format!(
            "Volume {} ({}) begins at byte {}, which is no multiple of {ALIGNMENT_BYTES}: its clusters lie across \
             two blocks of the storage each, and only a new partition mends that.",
            volume.number, volume.filesystem, volume.start_bytes,
        )
    })
}

fn scattered(volume: &VolumeFacts) -> Option<String> {
    let average_bytes = volume.free_bytes / volume.free_extents.max(1);
    // A few small gaps are no risk while there is one large extent.
    let has_room = volume.largest_free_bytes >= volume.free_bytes / 2;
    (volume.free_extents > 1 && average_bytes < SCATTERED_FREE_BYTES && !has_room).then(|| {
        format!(
            "New files on volume {} ({}) will be fragmented: its {} free are in {}, the largest of {}.",
            volume.number,
            volume.filesystem,
            human_bytes(volume.free_bytes),
            counted(volume.free_extents, "extent", "extents"),
            human_bytes(volume.largest_free_bytes),
        )
    })
}

fn doubted(volume: &VolumeFacts) -> Option<String> {
    volume.doubt.as_ref().map(|doubt| {
        format!("What volume {} ({}) has free is not counted: {doubt}.", volume.number, volume.filesystem)
    })
}

fn capitalised(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
