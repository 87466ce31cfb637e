//! A disk that never was: two volumes with fragmented files, in a container whose blocks came in the order of their
//! first writes, on a host whose file system scattered them. It shows how a [`DiskMap`] is filled.

use extent::{Offset, VirtualSpan};
use report::{DiskMap, MapLayer, MapOwner, MapOwners, MapPiece, MapRun, MapVolume, OwnerId, PieceClass};

/// A name that tries everything: markup, quotes, an escape sequence, reordering, what is no UTF-8.
pub(crate) const HOSTILE_NAME: &[u8] =
    b"/home/</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'\x1b[2J\xe2\x80\xae\xe2\x80\xa8\xff.txt";
/// How many pieces the file of [`HOSTILE_NAME`] has.
pub(crate) const HOSTILE_FRAGMENTS: u32 = 7;
/// Clusters of each of them, as no other file has.
const HOSTILE_CLUSTERS: u64 = 300;

const MIB: u64 = 1 << 20;
const CLUSTER_BYTES: u64 = 4096;
const BLOCK_BYTES: u64 = 2 * MIB;

/// Numbers that look random, the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound.max(1)
    }
}

/// What is yet to be placed of a file.
struct Pending {
    owner: OwnerId,
    class: PieceClass,
    pieces: u32,
    clusters: u64,
}

/// A disk with `file_count` files, a tenth of them in `fragments_max` pieces at most.
pub(crate) fn disk(file_count: u32, fragments_max: u64) -> DiskMap {
    let mut numbers = Numbers(7);
    let mut owners = MapOwners::default();
    let mut pieces = Vec::new();
    let mut put = |start: &mut u64, len_bytes: u64, class, owner| {
        if len_bytes > 0 {
            pieces.push(MapPiece { span: span(*start, len_bytes), class, owner });
            *start += len_bytes;
        }
    };
    let mut at = 0;
    put(&mut at, MIB, PieceClass::Outside, OwnerId::NONE);
    let mut volumes = Vec::new();
    for (index, filesystem, label) in [(1u16, "ntfs", "Windows"), (2, "ext4", "data <b>&amp;")] {
        let start = at;
        put(&mut at, MIB, PieceClass::Metadata, OwnerId::NONE);
        let mut waiting: Vec<Pending> = Vec::new();
        let mut left = file_count / 2;
        let mut last = OwnerId::NONE;
        if index == 2 {
            let owner = MapOwner {
                volume: index,
                size_bytes: u64::from(HOSTILE_FRAGMENTS) * HOSTILE_CLUSTERS * CLUSTER_BYTES,
                fragments: HOSTILE_FRAGMENTS,
                whole_stack_fragments: HOSTILE_FRAGMENTS + 3,
            };
            let owner = owners.push(HOSTILE_NAME, owner);
            let class = PieceClass::Fragmented;
            waiting.push(Pending { owner, class, pieces: HOSTILE_FRAGMENTS, clusters: HOSTILE_CLUSTERS });
        }
        while left > 0 || !waiting.is_empty() {
            if left > 0 && (waiting.len() < 64 || numbers.below(2) == 0) {
                let file = new_file(&mut owners, index, left, fragments_max, &mut numbers);
                waiting.push(file);
                left -= 1;
            }
            let chosen = usize::try_from(numbers.below(waiting.len() as u64)).expect("an index");
            let file = &mut waiting[chosen];
            // Pieces of one file never touch, and those of the file that tests look for are well apart.
            if file.owner == last || file.clusters == HOSTILE_CLUSTERS {
                put(&mut at, 32 * CLUSTER_BYTES, PieceClass::Free, OwnerId::NONE);
            }
            last = file.owner;
            put(&mut at, file.clusters * CLUSTER_BYTES, file.class, file.owner);
            file.pieces -= 1;
            if file.pieces == 0 {
                waiting.swap_remove(chosen);
            }
            match numbers.below(40) {
                0 => put(&mut at, numbers.below(90) * CLUSTER_BYTES, PieceClass::Free, OwnerId::NONE),
                1 => put(&mut at, numbers.below(90) * CLUSTER_BYTES, PieceClass::Reclaimable, OwnerId::NONE),
                2 => put(&mut at, 4 * CLUSTER_BYTES, PieceClass::Metadata, OwnerId::NONE),
                _ => (),
            }
        }
        let used = at - start;
        put(&mut at, used / 10, PieceClass::Reclaimable, OwnerId::NONE);
        put(&mut at, used / 3, PieceClass::Free, OwnerId::NONE);
        volumes.push(MapVolume {
            index: index.into(),
            span: span(start, at - start),
            filesystem: Some(filesystem.to_owned()),
            label: Some(label.to_owned()),
        });
    }
    put(&mut at, MIB, PieceClass::Outside, OwnerId::NONE);
    let container = container(&pieces, at, &mut numbers);
    let host = host(&container, &mut numbers);
    let layer = |name: &str, about: &str, runs| MapLayer { name: name.into(), about: about.into(), runs };
    DiskMap {
        title: "server.vhdx".to_owned(),
        virtual_bytes: at,
        volumes,
        pieces,
        owners,
        layers: vec![
            layer("container", "VHDX, blocks of 2 MiB, server.vhdx", container),
            layer("host", "ext4 on /dev/nvme0n1p2", host),
        ],
    }
}

fn span(start: u64, len_bytes: u64) -> VirtualSpan {
    VirtualSpan::new(Offset::new(start), len_bytes)
}

fn new_file(
    owners: &mut MapOwners,
    volume: u16,
    number: u32,
    fragments_max: u64,
    numbers: &mut Numbers,
) -> Pending {
    let fragmented = numbers.below(10) == 0;
    let pieces = if fragmented { 2 + numbers.below(fragments_max.max(2) - 1) } else { 1 };
    let pieces = u32::try_from(pieces).expect("a small number");
    let clusters = 1 + (1 << numbers.below(7)) * numbers.below(4);
    let (folder, package) = (number / 40, number / 1200);
    let name = if volume == 1 {
        format!(
            "/Windows/WinSxS/amd64_component-{package:04}_31bf3856ad364e35/{folder:05x}/module_{number:06}.dll"
        )
    } else {
        format!("/srv/projects/project-{package}/tree/{folder}/object-{number:06}.dat")
    };
    let owner = MapOwner {
        volume,
        size_bytes: u64::from(pieces) * clusters * CLUSTER_BYTES - numbers.below(CLUSTER_BYTES),
        fragments: pieces,
        whole_stack_fragments: pieces + u32::try_from(numbers.below(3)).expect("a small number"),
    };
    let class = if pieces > 1 { PieceClass::Fragmented } else { PieceClass::Contiguous };
    Pending { owner: owners.push(name.as_bytes(), owner), class, pieces, clusters }
}

/// Blocks with data, placed as writes came: mostly in order, some late.
fn container(pieces: &[MapPiece], virtual_bytes: u64, numbers: &mut Numbers) -> Vec<MapRun> {
    let mut held: Vec<u64> = pieces
        .iter()
        .filter(|piece| piece.class != PieceClass::Free)
        .flat_map(|piece| piece.span.start().get() / BLOCK_BYTES..=(piece.span.end().get() - 1) / BLOCK_BYTES)
        .collect();
    held.dedup();
    let late: Vec<bool> = held.iter().map(|_| numbers.below(4) == 0).collect();
    let in_order = held.iter().zip(&late).filter(|(_, late)| !**late).map(|(block, _)| *block);
    let mut last: Vec<u64> =
        held.iter().zip(&late).filter(|(_, late)| **late).map(|(block, _)| *block).collect();
    for index in (1..last.len()).rev() {
        last.swap(index, usize::try_from(numbers.below(index as u64)).expect("an index"));
    }
    let mut runs: Vec<_> = in_order
        .chain(last)
        .enumerate()
        .map(|(index, block)| {
            let start = block * BLOCK_BYTES;
            let len_bytes = BLOCK_BYTES.min(virtual_bytes - start);
            MapRun::plain(span(start, len_bytes), 3 * MIB + index as u64 * BLOCK_BYTES)
        })
        .collect();
    runs.sort_by_key(|run| run.span.start());
    runs
}

/// The image file's bytes in extents of up to 32 MiB, far from each other.
fn host(container: &[MapRun], numbers: &mut Numbers) -> Vec<MapRun> {
    let file_bytes = container.iter().map(|run| run.place + run.stored_bytes).max().unwrap_or(0);
    let extent_bytes = 8 * MIB;
    let count = file_bytes.div_ceil(extent_bytes);
    let mut slots: Vec<u64> = (0..count).map(|slot| slot + slot / 3).collect();
    for index in (1..slots.len()).rev() {
        if numbers.below(3) == 0 {
            slots.swap(index, usize::try_from(numbers.below(index as u64)).expect("an index"));
        }
    }
    let mut runs = Vec::new();
    for run in container {
        let mut done = 0;
        while done < run.stored_bytes {
            let offset = run.place + done;
            let extent = offset / extent_bytes;
            let len_bytes = ((extent + 1) * extent_bytes - offset).min(run.stored_bytes - done);
            let slot = slots[usize::try_from(extent).expect("an index")];
            let place = 900 * MIB + slot * extent_bytes + offset % extent_bytes;
            runs.push(MapRun::plain(span(run.span.start().get() + done, len_bytes), place));
            done += len_bytes;
        }
    }
    runs
}
