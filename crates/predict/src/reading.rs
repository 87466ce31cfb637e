//! What reading a surveyed disk's files costs, and the facts that advice needs of it.

use block::HostFile;
use filesystem::{FileKind, StreamName};
use image::Format;
use stack::{Stack, Survey, Volume, VolumeSurvey};

use crate::advice::{AdviceFacts, BACKUP_BLOCK_BYTES, Children, ContainerFacts, VolumeFacts};
use crate::cost::{Access, Order, Piece, QueueLimits, ReadCost, RequestSize, SequentialRead, trace_cost};
use crate::profile::Profile;

/// What reading all regular files of a volume costs, each from its beginning to its end.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct VolumeCost {
    /// As they lie in the lowest layer that is known.
    pub whole_stack: ReadCost,
    /// If the virtual disk were in one piece.
    pub guest: ReadCost,
}

/// The costs of each volume on the first profile; nothing where its files are not known. And what all of them cost as
/// they lie on each profile.
pub fn read_costs(
    stack: &Stack,
    survey: &Survey,
    profiles: &[&Profile],
    size: RequestSize,
) -> (Vec<VolumeCost>, Vec<ReadCost>) {
    let mut by_volume = Vec::new();
    let mut by_profile = vec![ReadCost::default(); profiles.len()];
    for (volume, found) in stack.volumes().iter().zip(&survey.volumes) {
        let (cost, others) = volume_cost(volume, found, survey, profiles, size);
        by_volume.push(cost);
        for (sum, cost) in by_profile.iter_mut().zip(others) {
            *sum = [*sum, cost].into_iter().sum();
        }
    }
    (by_volume, by_profile)
}

fn volume_cost(
    volume: &Volume,
    found: &VolumeSurvey,
    survey: &Survey,
    profiles: &[&Profile],
    size: RequestSize,
) -> (VolumeCost, Vec<ReadCost>) {
    let Some(catalog) = &found.catalog else { return Default::default() };
    let mut whole_stack: Vec<_> =
        profiles.iter().map(|profile| SequentialRead::new(profile, size, Order::EachAlone)).collect();
    let mut guest = whole_stack.first().cloned();
    for stream in catalog.streams() {
        if stream.stream.kind != FileKind::Regular || stream.stream.name != StreamName::Main {
            continue;
        }
        survey.layers.each_place_of(&volume.place, stream.extents(), |logical, place| {
            let len_bytes = place.stored_bytes;
            let piece = Piece { logical: logical.get(), physical: place.address, len_bytes };
            whole_stack.iter_mut().for_each(|read| read.piece(piece));
            if let Some(guest) = &mut guest {
                guest.piece(Piece { physical: place.span.start().get(), ..piece });
            }
        });
        for read in whole_stack.iter_mut().chain(&mut guest) {
            read.end_file();
        }
    }
    let costs: Vec<_> = whole_stack.iter().map(SequentialRead::total).collect();
    let first = costs.first().copied().unwrap_or_default();
    (VolumeCost { whole_stack: first, guest: guest.map_or(first, |read| read.total()) }, costs)
}

/// What a trace of accesses to the virtual disk costs as it lies, and if it lay in one piece.
pub fn read_trace_cost(
    survey: &Survey,
    profile: &Profile,
    limits: QueueLimits,
    virtual_bytes: u64,
    accesses: impl IntoIterator<Item = Access>,
) -> Option<ReadCost> {
    let mut map: Vec<Piece> = Vec::new();
    survey.layers.each_place(extent::Span::from_zero(virtual_bytes), |place| {
        let (logical, len_bytes) = (place.span.start().get(), place.span.len_bytes());
        let piece = Piece { logical, physical: place.address, len_bytes };
        // Parts of one compressed unit on several extents of the host share their place on the virtual disk.
        if map.last().is_none_or(|last| last.logical + last.len_bytes <= piece.logical) {
            map.push(piece);
        }
    });
    trace_cost(profile, limits, &map, accesses)
}

/// The facts that advice is given from; the files of the chain take `allocated_bytes` on the host.
pub fn advice_facts(
    stack: &Stack,
    survey: &Survey,
    allocated_bytes: u64,
    costs: &[VolumeCost],
    profile: &Profile,
) -> AdviceFacts {
    let chain = stack.chain();
    let facts = chain.facts();
    let volumes = (0..survey.volumes.len()).map(|index| volume_facts(stack, survey, costs, index));
    let is_device = chain.links()[0].layer.files().iter().any(HostFile::is_block_device);
    // An image that is not raw and yet allocates nothing is of fixed size.
    let is_fixed = facts.format != Format::Raw && facts.cluster_bytes.is_none();
    AdviceFacts {
        volumes: volumes.collect(),
        container: ContainerFacts {
            format: facts.format.name(),
            virtual_bytes: facts.virtual_bytes,
            allocated_bytes,
            unit_bytes: facts.cluster_bytes,
            can_shrink: !is_device && !is_fixed,
            reclaimable_bytes: survey.waste.reclaimable_bytes,
            reclaimable_partial_bytes: survey.waste.in_partly_used_units_bytes,
            parents: chain.links().len() - 1,
            snapshots: facts.snapshot_count.into(),
            children: Children::Unknown,
        },
        host_extents: survey.layers.host_extent_count(),
        profile: profile.name.to_owned(),
        backup_block_bytes: BACKUP_BLOCK_BYTES,
    }
}

fn volume_facts(stack: &Stack, survey: &Survey, costs: &[VolumeCost], index: usize) -> VolumeFacts {
    let volume = &stack.volumes()[index];
    let found = &survey.volumes[index];
    let facts = volume.filesystem.as_ref().map(|filesystem| filesystem.facts());
    let doubt =
        facts.and_then(|facts| facts.state.doubt().map(str::to_owned)).or_else(|| volume.doubt.clone());
    // They go by where files lay.
    let has_shadow_copies = volume.filesystem.as_ref().is_some_and(|it| !it.shadow_copies().is_empty());
    let files = found.totals.files;
    let (free_bytes, free_extents, largest_free_bytes) =
        found.free.as_ref().map_or((0, 0, 0), |free| (free.bytes, free.extents, free.largest_bytes));
    VolumeFacts {
        number: index + 1,
        filesystem: facts.map_or("unknown", |facts| known_name(&facts.filesystem)),
        doubt,
        is_movable: found.catalog.is_some() && !has_shadow_copies,
        start_bytes: volume.place.first().start().get(),
        fragmented_files: files.fragmented,
        extra_fragments: files.extra_fragments,
        fragmented_bytes: files.fragmented_bytes,
        free_bytes,
        free_extents,
        largest_free_bytes,
        whole_cost: costs[index].whole_stack,
        guest_cost: costs[index].guest,
    }
}

/// Names of file systems whose files can be listed; advice says nothing of what a guest wrote.
fn known_name(name: &str) -> &'static str {
    ["ntfs", "ext2", "ext3", "ext4", "fat12", "fat16", "fat32", "exfat", "xfs", "btrfs", "swap"]
        .into_iter()
        .find(|known| *known == name)
        .unwrap_or("other")
}
