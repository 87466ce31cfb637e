//! Volumes with every kind of file, before and after `filesystem` moved many of them: whole, and the same.

use std::fs;
use std::path::Path;

use crate::support::{open, source, source_of, text};
use extent::{Span, VolumeSpan};
use filesystem::{
    FileExtent, FileId, FileStream, FileSystem, Mobility, Rearrange, Relocation, Relocations, StreamVisitor,
};
use testkit::{ext_volume, noise, ntfs_volume, run, scratch};
use verify::volume::{Contents, Snapshot};

#[derive(Default)]
struct Movable(Vec<(FileId, VolumeSpan)>);

impl StreamVisitor for Movable {
    fn stream(&mut self, stream: FileStream<'_>, extents: &[FileExtent], mobility: Mobility) {
        if mobility == Mobility::Movable {
            self.0.extend(extents.iter().map(|extent| (stream.file, extent.span)));
        }
    }
}

/// Some of the extents that may move, each to the start of a free place that is large enough.
fn choose(rearrange: &dyn Rearrange, seed: u64) -> Vec<Relocation> {
    let mut movable = Movable::default();
    rearrange.each_stream(&mut movable).unwrap();
    let mut rooms: Vec<VolumeSpan> = Vec::new();
    rearrange.each_room(&mut |room| rooms.push(room)).unwrap();
    let dice = noise(seed, movable.0.len());
    let mut chosen: Vec<Relocation> = Vec::new();
    let mut taken: Vec<VolumeSpan> = Vec::new();
    for ((file, from), dice) in movable.0.into_iter().zip(dice) {
        // Parts of one compressed unit or cluster may lie in the same place.
        if dice % 3 != 0 || taken.iter().any(|other| other.intersect(&from).is_some()) {
            continue;
        }
        let Some(room) = rooms.iter_mut().rev().find(|room| room.len_bytes() >= from.len_bytes()) else {
            continue;
        };
        chosen.push(Relocation { from, to: room.start(), file });
        *room = Span::between(room.start().plus(from.len_bytes()), room.end());
        taken.push(from);
    }
    chosen
}

/// Copies the bytes, then applies the patches: what an engine does.
fn relocate(bytes: &mut [u8], filesystem: &dyn FileSystem, seed: u64) -> usize {
    let rearrange = filesystem.rearrange().unwrap();
    let chosen = choose(&*rearrange, seed);
    let count = chosen.len();
    let relocations = Relocations::new(chosen).unwrap();
    for relocation in relocations.by_source() {
        let from = relocation.from.start().get() as usize..relocation.from.end().get() as usize;
        bytes.copy_within(from, relocation.to.get() as usize);
    }
    let edits = rearrange.edits(&source_of(bytes.to_vec()), &relocations).unwrap();
    for patch in &edits.patches {
        let at = patch.at.get() as usize;
        assert_eq!(bytes[at..at + patch.before.len()], patch.before, "{:?}", patch.at);
        bytes[at..at + patch.after.len()].copy_from_slice(&patch.after);
    }
    count
}

fn check_moves(volume: &Path, what: &str, judge: &dyn Fn(&Path)) {
    let before = source(volume);
    let wide = verify::volume::check(&before).unwrap_or_else(|error| panic!("{what}: {error}")).wide_trees;
    let snapshot = Snapshot::take(&open(&before).facts().identity(), &before, Contents::All, 2).unwrap();
    let mut bytes = fs::read(volume).unwrap();
    for seed in 1..4 {
        let filesystem = open(&source_of(bytes.clone()));
        let count = relocate(&mut bytes, &*filesystem, seed);
        assert!(count > 20, "{what}, seed {seed}: {count} relocations");
        let after = source_of(bytes.clone());
        let report =
            verify::volume::check(&after).unwrap_or_else(|error| panic!("{what}, seed {seed}: {error}"));
        assert!(report.wide_trees <= wide, "{what}, seed {seed}: {report:?}, {wide} wide trees before");
        let filesystem = open(&after);
        let moved = Snapshot::take(&filesystem.facts().identity(), &after, Contents::All, 2).unwrap();
        Snapshot::compare_named(&snapshot, &moved, |files| filesystem::paths(&*filesystem, files))
            .unwrap_or_else(|error| panic!("{what}, seed {seed}: {error}"));
    }
    let after = volume.with_extension("after");
    fs::write(&after, bytes).unwrap();
    judge(&after);
}

#[test]
fn ntfs_is_whole_and_the_same() {
    let dir = scratch();
    for cluster_bytes in [512, 4096, 65_536] {
        let volume = dir.path().join("volume");
        ntfs_volume::make(&volume, cluster_bytes, 7);
        check_moves(&volume, &format!("clusters of {cluster_bytes}"), &|after| {
            run("ntfsresize", &["--info", text(after)]);
            run("ntfsfix", &["-n", text(after)]);
        });
    }
}

#[test]
fn ext_is_whole_and_the_same() {
    let dir = scratch();
    for options in
        ["-t ext4 -b 4096", "-t ext4 -b 1024", "-t ext4 -b 4096 -O bigalloc -C 16384", "-t ext2 -b 1024"]
    {
        let volume = dir.path().join("volume");
        ext_volume::make(&volume, options, 7);
        check_moves(&volume, options, &|after| drop(run("e2fsck", &["-fn", text(after)])));
    }
}
