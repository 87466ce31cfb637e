//! The picture of a surveyed disk.

use block::{ReadAt, Result, RunState};
use extent::{Span, VirtualSpan};
use filesystem::FileKind;
use plan::Role;
use stack::{LayerFragments, Stack, Survey, UsedMaps};

use super::model::HOST;
use super::{DiskMap, MapLayer, MapOwner, MapOwners, MapPiece, MapRun, MapVolume, OwnerId, PieceClass};

/// What lies where, from the guest's files down to the host. `maps` are those that the survey was made with.
pub fn disk_map(title: &str, stack: &Stack, maps: &UsedMaps, survey: &Survey) -> Result<DiskMap> {
    let virtual_bytes = stack.chain().len_bytes();
    let mut owners = MapOwners::default();
    let files = file_pieces(stack, survey, &mut owners);
    let pieces = pieces(stack, maps, &files)?;
    let volumes = stack.volumes().iter().enumerate().map(|(index, volume)| {
        let facts = volume.filesystem.as_ref().map(|filesystem| filesystem.facts());
        MapVolume {
            index: index + 1,
            span: volume.place.first(),
            filesystem: facts.map(|facts| facts.filesystem.clone()),
            label: facts.and_then(|facts| facts.label.clone()),
        }
    });
    Ok(DiskMap {
        title: title.to_owned(),
        virtual_bytes,
        volumes: volumes.collect(),
        pieces,
        owners,
        layers: layers(stack, survey, virtual_bytes),
    })
}

/// The extents of all files, ascending and disjoint.
fn file_pieces(stack: &Stack, survey: &Survey, owners: &mut MapOwners) -> Vec<MapPiece> {
    let mut pieces = Vec::new();
    for (index, (volume, found)) in stack.volumes().iter().zip(&survey.volumes).enumerate() {
        let Some(catalog) = &found.catalog else { continue };
        for (stream, fragments) in catalog.streams().zip(&found.fragments) {
            if stream.extent_count() == 0 {
                continue;
            }
            let fragments = LayerFragments::from(*fragments);
            let small = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
            let owner = owners.push(
                &stream.path(),
                MapOwner {
                    volume: u16::try_from(index + 1).unwrap_or(u16::MAX),
                    size_bytes: stream.stream.size_bytes,
                    fragments: small(fragments.guest),
                    whole_stack_fragments: small(fragments.whole_stack),
                },
            );
            let is_own = stream.stream.kind == FileKind::Metadata;
            let class = match (is_own, fragments.guest > 1) {
                (true, _) => PieceClass::Metadata,
                (false, true) => PieceClass::Fragmented,
                (false, false) => PieceClass::Contiguous,
            };
            for extent in stream.extents() {
                // What a broken volume claims past its end is nobody's.
                volume
                    .place
                    .each_copy_on_disk(extent.span, |_, span| pieces.push(MapPiece { span, class, owner }));
            }
        }
    }
    pieces.sort_unstable_by_key(|piece| piece.span);
    // Of what two files claim, the first one keeps what it has.
    let mut disjoint: Vec<MapPiece> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let end = disjoint.last().map_or(piece.span.start(), |last: &MapPiece| last.span.end());
        let span = Span::between(piece.span.start().max(end), piece.span.end());
        if !span.is_empty() {
            disjoint.push(MapPiece { span, ..piece });
        }
    }
    disjoint
}

/// Covers the disk: files where there are some, else what the file system and the image say.
fn pieces(stack: &Stack, maps: &UsedMaps, files: &[MapPiece]) -> Result<Vec<MapPiece>> {
    let mut pieces = Vec::with_capacity(files.len() + files.len() / 4);
    let mut next = 0;
    stack.each_facts(maps, |facts| {
        for fact in facts {
            let is_held = matches!(fact.state, RunState::Data { .. } | RunState::Compressed { .. });
            let (class, is_waste) = match fact.role {
                Role::Outside => (PieceClass::Outside, false),
                Role::Whole(_) => (PieceClass::Unknown, false),
                Role::Used(_) | Role::EmptyLog(..) => (PieceClass::Metadata, false),
                Role::Free(_) | Role::Swap(_) if is_held => (PieceClass::Reclaimable, true),
                Role::Free(_) | Role::Swap(_) => (PieceClass::Free, true),
            };
            let mut at = fact.span.start();
            while at < fact.span.end() {
                while files.get(next).is_some_and(|file| file.span.end() <= at) {
                    next += 1;
                }
                let rest = Span::between(at, fact.span.end());
                let file = files.get(next).and_then(|file| Some((file, file.span.intersect(&rest)?)));
                let Some((file, inside)) = file else {
                    push(&mut pieces, rest, class, OwnerId::NONE);
                    break;
                };
                push(&mut pieces, Span::between(at, inside.start()), class, OwnerId::NONE);
                // A page file's contents are waste, and still the file's.
                let file_class = if is_waste { class } else { file.class };
                push(&mut pieces, inside, file_class, file.owner);
                at = inside.end();
            }
        }
    })?;
    Ok(pieces)
}

/// Appends a piece, joining it to the last one if that is the same.
fn push(pieces: &mut Vec<MapPiece>, span: VirtualSpan, class: PieceClass, owner: OwnerId) {
    if span.is_empty() {
        return;
    }
    match pieces.last_mut() {
        Some(last) if last.class == class && last.owner == owner && last.span.end() == span.start() => {
            last.span = Span::between(last.span.start(), span.end());
        }
        _ => pieces.push(MapPiece { span, class, owner }),
    }
}

fn layers(stack: &Stack, survey: &Survey, virtual_bytes: u64) -> Vec<MapLayer> {
    let chain = stack.chain();
    let container = survey.layers.image_runs().iter().map(|run| MapRun {
        span: run.span,
        place: survey.layers.image_address(run),
        stored_bytes: run.stored_bytes,
    });
    let format = chain.facts().format.name();
    let mut layers =
        vec![MapLayer { name: "container".into(), about: format.to_owned(), runs: container.collect() }];
    if survey.layers.reaches_the_host() {
        let about = survey.layers.host_filesystem().unwrap_or_default().to_owned();
        layers.push(MapLayer { name: HOST.into(), about, runs: host_runs(survey, virtual_bytes) });
    }
    layers
}

fn host_runs(survey: &Survey, virtual_bytes: u64) -> Vec<MapRun> {
    let mut runs: Vec<MapRun> = Vec::new();
    survey.layers.each_place(Span::from_zero(virtual_bytes), |place| {
        // A compressed unit on several extents is shown where it begins.
        if runs.last().is_none_or(|last| last.span.end() <= place.span.start()) {
            runs.push(MapRun { span: place.span, place: place.address, stored_bytes: place.stored_bytes });
        }
    });
    runs
}
