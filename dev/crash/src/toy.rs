//! A tiny file system with everything that makes a change in place hard: inodes over two sectors with one checksum, maps that
//! overflow into a cluster of their own and shrink back, a bitmap, a mirror.
//!
//! All numbers are little-endian `u32`. Clusters have 1 KiB; cluster 0 holds the superblock and the bitmap.

use std::sync::Arc;

use block::{Error, ReadAt, Result, read_vec};
use extent::{ExtentSet, Offset, Span, Volume, VolumeOffset, VolumeSpan};
use filesystem::{
    Edits, FileExtent, FileId, FileKind, FileStream, Mobility, Patch, PieceState, Rearrange, Relocations,
    Rewritten, Source, StreamName, StreamVisitor,
};
use sim::{Pages, Random};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::scenario::{Guest, Subject};

const CLUSTER: usize = 1024;
const CLUSTER_COUNT: u32 = 120;
const FILE_COUNT: u32 = 7;
/// Extents in an inode; further ones lie in an overflow cluster.
const INLINE_MAX: usize = 4;
/// Where the bitmap lies: the superblock's cluster's second sector.
const BITMAP_AT: usize = 512;
/// Bytes that change whenever somebody uses the volume.
const WITNESS: (u64, u64) = (16, 8);
/// The mirror of the first file's inode.
const MIRROR: u32 = CLUSTER_COUNT - 1;
/// Where the volume begins on its disk.
const VOLUME_START: u64 = 4096;

/// The tiny file system.
pub struct Toy;

struct Inode {
    extents: Vec<(u32, u32)>,
    overflow: u32,
    contents: u128,
}

fn inode_cluster(file: u32) -> u32 {
    2 + file * 16
}

fn cluster_at(cluster: u32) -> usize {
    cluster as usize * CLUSTER
}

fn get(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// The last eight bytes are a checksum of the rest.
fn seal(bytes: &mut [u8]) {
    let (rest, checksum) = bytes.split_last_chunk_mut::<8>().unwrap();
    *checksum = xxh3_64(rest).to_le_bytes();
}

fn is_sealed(bytes: &[u8]) -> bool {
    let (rest, checksum) = bytes.split_last_chunk::<8>().unwrap();
    *checksum == xxh3_64(rest).to_le_bytes()
}

/// Where the extent of this number lies in an inode: half of them in its second sector.
fn slot(index: usize) -> usize {
    if index < 2 { 64 + index * 8 } else { 512 + 64 + index * 8 }
}

fn broken(what: impl Into<block::Cause>) -> Error {
    Error::corrupt(what)
}

impl Inode {
    fn read(volume: &dyn ReadAt<Volume>, file: u32) -> Result<Self> {
        let cluster = |number: u32| {
            let bytes = read_vec(volume, Offset::new(cluster_at(number) as u64), CLUSTER as u64, "cluster")?;
            if is_sealed(&bytes) { Ok(bytes) } else { Err(broken(format!("checksum of cluster {number}"))) }
        };
        let bytes = cluster(inode_cluster(file))?;
        if file == 0 && cluster(MIRROR)? != bytes {
            return Err(broken("the mirror differs"));
        }
        let (count, overflow) = (get(&bytes, 4) as usize, get(&bytes, 8));
        let more = if overflow == 0 { Vec::new() } else { cluster(overflow)? };
        let extent = |index: usize| {
            let (from, at) =
                if index < INLINE_MAX { (&bytes, slot(index)) } else { (&more, (index - INLINE_MAX) * 8) };
            if at + 8 > from.len().saturating_sub(8) {
                return Err(broken("count of extents"));
            }
            Ok((get(from, at), get(from, at + 4)))
        };
        let extents = (0..count.min(200)).map(extent).collect::<Result<_>>()?;
        Ok(Self { extents, overflow, contents: u128::from_le_bytes(bytes[16..32].try_into().unwrap()) })
    }

    /// The inode's cluster, and that of its overflow if it has one.
    fn to_bytes(&self, file: u32) -> (Vec<u8>, Option<Vec<u8>>) {
        let (mut bytes, mut more) = (vec![0; CLUSTER], vec![0; CLUSTER]);
        put(&mut bytes, 0, 0x0000_0790 + file);
        put(&mut bytes, 4, u32::try_from(self.extents.len()).unwrap());
        put(&mut bytes, 8, self.overflow);
        bytes[16..32].copy_from_slice(&self.contents.to_le_bytes());
        for (index, (start, count)) in self.extents.iter().enumerate() {
            let (to, at) = if index < INLINE_MAX {
                (&mut bytes, slot(index))
            } else {
                (&mut more, (index - INLINE_MAX) * 8)
            };
            put(to, at, *start);
            put(to, at + 4, *count);
        }
        seal(&mut bytes);
        seal(&mut more);
        (bytes, (self.overflow != 0).then_some(more))
    }
}

fn span(start: u32, count: u32) -> VolumeSpan {
    Span::new(Offset::new(cluster_at(start) as u64), u64::from(count) * CLUSTER as u64)
}

fn read_bitmap(volume: &dyn ReadAt<Volume>) -> Result<Vec<u8>> {
    let bytes = read_vec(volume, Offset::new(BITMAP_AT as u64), 512, "bitmap")?;
    if is_sealed(&bytes) { Ok(bytes) } else { Err(broken("checksum of the bitmap")) }
}

fn is_used(bitmap: &[u8], cluster: u32) -> bool {
    bitmap[cluster as usize / 8] >> (cluster % 8) & 1 == 1
}

fn set_used(bitmap: &mut [u8], cluster: u32, used: bool) {
    let (byte, bit) = (&mut bitmap[cluster as usize / 8], 1 << (cluster % 8));
    *byte = if used { *byte | bit } else { *byte & !bit };
}

fn clusters(span: VolumeSpan) -> std::ops::Range<u32> {
    let number = |at: VolumeOffset| u32::try_from(at.get() / CLUSTER as u64).unwrap();
    number(span.start())..number(span.end())
}

struct Opened {
    volume: Source,
}

impl Rearrange for Opened {
    fn cluster_bytes(&self) -> u64 {
        CLUSTER as u64
    }

    fn each_stream(&self, visitor: &mut dyn StreamVisitor) -> Result<()> {
        for file in 0..FILE_COUNT {
            let inode = Inode::read(&self.volume, file)?;
            let mut logical = 0;
            let extents = inode.extents.iter().map(|(start, count)| {
                let (span, at) = (span(*start, *count), Offset::new(logical));
                logical += span.len_bytes();
                FileExtent { logical: at, span, state: PieceState::Written }
            });
            let extents: Vec<_> = extents.collect();
            let stream = FileStream {
                file: FileId(u64::from(file)),
                kind: FileKind::Regular,
                name: StreamName::Main,
                size_bytes: extents.iter().map(|extent| extent.span.len_bytes()).sum(),
                is_inline: false,
            };
            // One that stays.
            let is_pinned = file == FILE_COUNT - 1;
            let mobility = if is_pinned { Mobility::Pinned("the last one stays") } else { Mobility::Movable };
            visitor.stream(stream, &extents, mobility);
        }
        Ok(())
    }

    fn each_room(&self, each: &mut dyn FnMut(VolumeSpan)) -> Result<()> {
        let bitmap = read_bitmap(&self.volume)?;
        let free = (0..CLUSTER_COUNT).filter(|cluster| !is_used(&bitmap, *cluster));
        let free: ExtentSet<Volume> = free.map(|cluster| span(cluster, 1)).collect();
        free.iter().for_each(each);
        Ok(())
    }

    fn edits(&self, volume: &dyn ReadAt<Volume>, relocations: &Relocations) -> Result<Edits> {
        let (mut patches, mut freed) = (Vec::new(), Vec::new());
        let before = read_bitmap(volume)?;
        let mut bitmap = before.clone();
        for relocation in relocations.by_source() {
            clusters(relocation.from).for_each(|cluster| set_used(&mut bitmap, cluster, false));
        }
        for relocation in relocations.by_destination() {
            clusters(relocation.to_span()).for_each(|cluster| set_used(&mut bitmap, cluster, true));
        }
        let mut rewrite = |cluster: u32, after: Vec<u8>| -> Result<()> {
            let at = Offset::new(cluster_at(cluster) as u64);
            let before = read_vec(volume, at, after.len() as u64, "cluster")?;
            patches.push(Patch { at, before, after });
            Ok(())
        };
        for file in relocations.files() {
            let file = u32::try_from(file.0).unwrap();
            let mut inode = Inode::read(volume, file)?;
            let mut extents: Vec<(u32, u32)> = Vec::new();
            for (start, count) in inode.extents {
                relocations.each_place(span(start, count), |piece, to| {
                    let (from, to) = (clusters(piece), clusters(Span::new(to, piece.len_bytes())));
                    match extents.last_mut() {
                        Some((start, count)) if *start + *count == to.start => {
                            *count += to.end - to.start;
                        }
                        _ => extents.push((to.start, from.end - from.start)),
                    }
                });
            }
            inode.extents = extents;
            if inode.overflow != 0 && inode.extents.len() <= INLINE_MAX {
                freed.push(span(inode.overflow, 1));
                set_used(&mut bitmap, inode.overflow, false);
                inode.overflow = 0;
            }
            let (bytes, more) = inode.to_bytes(file);
            if file == 0 {
                rewrite(MIRROR, bytes.clone())?;
            }
            rewrite(inode_cluster(file), bytes)?;
            if let Some(more) = more {
                rewrite(inode.overflow, more)?;
            }
        }
        seal(&mut bitmap);
        patches.push(Patch { at: Offset::new(BITMAP_AT as u64), before, after: bitmap });
        patches.sort_unstable_by_key(|patch| patch.at);
        Ok(Edits { patches, freed })
    }

    fn rewritten(&self, _relocations: Arc<Relocations>) -> Result<Box<dyn Rewritten>> {
        Err(Error::unsupported("the toy is only changed in place"))
    }

    fn witnesses(&self, _batches: &[Relocations]) -> Result<Vec<VolumeSpan>> {
        Ok(vec![Span::new(Offset::new(WITNESS.0), WITNESS.1)])
    }
}

impl Toy {
    /// A disk with a toy volume whose files are in pieces all over it.
    pub fn subject(seed: u64) -> Subject {
        let mut random = Random::new(seed);
        let mut volume = vec![0; cluster_at(CLUSTER_COUNT)];
        // What is free holds what was there once.
        volume.iter_mut().for_each(|byte| *byte = random.next_u64().to_le_bytes()[0]);
        let inodes: Vec<u32> = (0..FILE_COUNT).map(inode_cluster).chain([0, 1, MIRROR]).collect();
        let mut places: Vec<u32> = (0..CLUSTER_COUNT).filter(|cluster| !inodes.contains(cluster)).collect();
        for index in (1..places.len()).rev() {
            let other = usize::try_from(random.below(index as u64 + 1)).unwrap();
            places.swap(index, other);
        }
        let mut bitmap = vec![0; 512];
        inodes.iter().for_each(|cluster| set_used(&mut bitmap, *cluster, true));
        for file in 0..FILE_COUNT {
            // The first ones overflow, the last one has a single cluster.
            let count =
                usize::try_from(if file < 2 { 8 + random.below(6) } else { 1 + random.below(7) }).unwrap();
            let mut extents: Vec<(u32, u32)> = Vec::new();
            let mut contents = Vec::new();
            for place in places.split_off(places.len() - count) {
                set_used(&mut bitmap, place, true);
                if random.below(4) == 0 {
                    volume[cluster_at(place)..][..CLUSTER].fill(0);
                }
                contents.extend_from_slice(&volume[cluster_at(place)..][..CLUSTER]);
                match extents.last_mut() {
                    Some((start, count)) if *start + *count == place => *count += 1,
                    _ => extents.push((place, 1)),
                }
            }
            let overflow = if extents.len() > INLINE_MAX { places.pop().unwrap() } else { 0 };
            let inode = Inode { extents, overflow, contents: xxh3_128(&contents) };
            let (bytes, more) = inode.to_bytes(file);
            volume[cluster_at(inode_cluster(file))..][..CLUSTER].copy_from_slice(&bytes);
            if file == 0 {
                volume[cluster_at(MIRROR)..][..CLUSTER].copy_from_slice(&bytes);
            }
            if let Some(more) = more {
                set_used(&mut bitmap, overflow, true);
                volume[cluster_at(overflow)..][..CLUSTER].copy_from_slice(&more);
            }
        }
        seal(&mut bitmap);
        volume[BITMAP_AT..BITMAP_AT + 512].copy_from_slice(&bitmap);
        let mut disk = vec![0xee; usize::try_from(VOLUME_START).unwrap()];
        disk.extend_from_slice(&volume);
        disk.extend_from_slice(&[0xdd; 4096]);
        let volume = Span::new(Offset::new(VOLUME_START), volume.len() as u64);
        Subject {
            name: "toy".into(),
            disk: Pages::new(&disk),
            volume,
            guest: Box::new(Self),
            slot_bytes: 32 << 10,
        }
    }
}

impl Guest for Toy {
    fn rearrange(&self, volume: Source) -> Result<Box<dyn Rearrange>> {
        Ok(Box::new(Opened { volume }))
    }

    fn free(&self, volume: &Source) -> Result<ExtentSet<Volume>> {
        let mut free = Vec::new();
        Opened { volume: volume.clone() }.each_room(&mut |span| free.push(span))?;
        Ok(free.into_iter().collect())
    }

    fn check(&self, volume: &Source) -> Result<u128> {
        let bitmap = read_bitmap(volume)?;
        let mut owned = vec![0; bitmap.len()];
        let mut own = |start: u32, count: u32| {
            for cluster in start..start + count {
                if cluster >= CLUSTER_COUNT || is_used(&owned, cluster) {
                    return Err(broken(format!("cluster {cluster} has no owner or two")));
                }
                set_used(&mut owned, cluster, true);
            }
            Ok(())
        };
        own(0, 2)?;
        own(MIRROR, 1)?;
        let mut all = Vec::new();
        for file in 0..FILE_COUNT {
            let inode = Inode::read(volume, file)?;
            own(inode_cluster(file), 1)?;
            if inode.overflow != 0 {
                own(inode.overflow, 1)?;
            }
            let mut contents = Vec::new();
            for (start, count) in inode.extents {
                own(start, count)?;
                let span = span(start, count);
                contents.extend(read_vec(volume, span.start(), span.len_bytes(), "data")?);
            }
            if xxh3_128(&contents) != inode.contents {
                return Err(broken(format!("contents of file {file}")));
            }
            all.extend_from_slice(&inode.contents.to_le_bytes());
        }
        seal(&mut owned);
        if owned != bitmap { Err(broken("the bitmap is not what is owned")) } else { Ok(xxh3_128(&all)) }
    }
}
