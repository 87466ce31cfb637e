//! What a worker copies at once: pieces that come to lie near each other, wherever they are.
//!
//! Sorted files are thousands of small pieces. What of them lies nearly together is read by one request, with what lies between; what comes
//! to lie together is written by one.
//!
//! Invariant: nothing is written but the pieces, each to its own place.

use block::{AlignedBuffer, EditDisk, Result, is_zero};
use extent::{ExtentSet, Virtual, VirtualOffset, VirtualSpan};
use mutants::broken;
use xxhash_rust::xxh3::xxh3_128;

use super::index;
use super::piece::{PIECE_BYTES_MAX, Piece};

/// So much may lie between two pieces that are read at once: about what takes as long to read as one more request.
const GAP_BYTES_MAX: u64 = 64 << 10;

/// What is read at once with what lies between.
const WINDOW_BYTES_MAX: u64 = 1 << 20;

/// So many groups of large pieces each worker finds, if there is enough, so that none waits for the last of them.
const GROUPS_PER_WORKER: u64 = 4;

/// Pieces that are smaller on average are small. The fewer groups they are in, the less lies between those of one, and the fewer requests read
/// them.
const SMALL_BYTES_MAX: u64 = GAP_BYTES_MAX;

/// What a group of small pieces holds.
const SMALL_GROUP_BYTES_MAX: u64 = 16 << 20;

/// A group of less is not worth a request.
const GROUP_BYTES_MIN: u64 = 256 << 10;

/// Pieces that are copied at once, by where they go.
pub(super) struct Group<'a> {
    pieces: Vec<&'a Piece>,
    bytes: u64,
}

/// A worker's memory.
pub(super) struct Buffers {
    /// Holds the pieces of a group one behind the other.
    pub(super) pieces: AlignedBuffer,
    /// Holds what is read at once with what lies between.
    window: AlignedBuffer,
}

impl Buffers {
    /// For pieces of which `bytes` are held at once. `has_gaps` if what lies between them is read, too.
    pub(super) fn new(bytes: u64, has_gaps: bool) -> Self {
        let len = |bytes: u64| usize::try_from(bytes).expect("bounded");
        let window_bytes = if has_gaps { WINDOW_BYTES_MAX } else { 0 };
        Self { pieces: AlignedBuffer::new(len(bytes)), window: AlignedBuffer::new(len(window_bytes)) }
    }
}

/// A piece, and where it lies in a group's memory.
#[derive(Clone, Copy)]
struct Slot<'a> {
    piece: &'a Piece,
    at: usize,
}

impl Slot<'_> {
    fn range(&self) -> std::ops::Range<usize> {
        self.at..self.at + index(self.piece.from.start(), self.piece.from.end())
    }
}

/// All pieces in groups, for so many workers.
pub(super) fn groups<'a>(by_destination: &[&'a Piece], worker_count: usize) -> Vec<Group<'a>> {
    let total_bytes: u64 = by_destination.iter().map(|piece| piece.from.len_bytes()).sum();
    let are_small = total_bytes <= SMALL_BYTES_MAX.saturating_mul(by_destination.len() as u64);
    let (groups_per_worker, most_bytes) =
        if are_small { (1, SMALL_GROUP_BYTES_MAX) } else { (GROUPS_PER_WORKER, PIECE_BYTES_MAX) };
    let shares = (worker_count.max(1) as u64).saturating_mul(groups_per_worker);
    let bytes_max = total_bytes.div_ceil(shares).clamp(GROUP_BYTES_MIN, most_bytes);
    let mut groups: Vec<Group<'_>> = Vec::new();
    for piece in by_destination {
        let bytes = piece.from.len_bytes();
        match groups.last_mut().filter(|group| group.bytes + bytes <= bytes_max) {
            Some(group) => {
                group.pieces.push(piece);
                group.bytes += bytes;
            }
            None => groups.push(Group { pieces: vec![piece], bytes }),
        }
    }
    groups
}

impl Group<'_> {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether what lies between pieces may be read, too.
    pub(super) fn has_gaps(&self) -> bool {
        self.pieces.len() > 1
    }

    /// Copies all of it, and notes the pieces' digests. What of it goes to `holes` is not stored, if it reads as zeros.
    pub(super) fn copy(
        &self,
        disk: &dyn EditDisk,
        holes: &ExtentSet<Virtual>,
        buffers: &mut Buffers,
    ) -> Result<()> {
        let slots = self.slots();
        let Buffers { pieces, window } = buffers;
        for together in windows(&slots) {
            read(disk, &together, pieces, window)?;
        }
        for slot in &slots {
            slot.piece.note_digest(xxh3_128(&pieces[slot.range()]));
        }
        for row in slots.chunk_by(|one, next| one.piece.to_span().end() == next.piece.to) {
            let (first, last) = (&row[0], &row[row.len() - 1]);
            write(disk, first.piece.to, holes, &pieces[first.at..last.range().end])?;
        }
        Ok(())
    }

    fn slots(&self) -> Vec<Slot<'_>> {
        let mut at = 0;
        let place = |piece| {
            let slot = Slot { piece, at };
            at = slot.range().end;
            slot
        };
        self.pieces.iter().copied().map(place).collect()
    }
}

/// Writes what goes to `to`, and stores nothing where `holes` say so and it reads as zeros.
fn write(disk: &dyn EditDisk, to: VirtualOffset, holes: &ExtentSet<Virtual>, bytes: &[u8]) -> Result<()> {
    let of = |span: VirtualSpan| &bytes[index(to, span.start())..index(to, span.end())];
    let all = VirtualSpan::new(to, bytes.len() as u64);
    let mut at = to;
    for hole in holes.within(all) {
        if !is_zero(of(hole)) {
            continue;
        }
        write_stored(disk, VirtualSpan::between(at, hole.start()), of)?;
        if !broken!(StaleBelowHoles) {
            disk.write_zeros(hole)?;
        }
        at = hole.end();
    }
    write_stored(disk, VirtualSpan::between(at, all.end()), of)
}

fn write_stored<'a>(
    disk: &dyn EditDisk,
    span: VirtualSpan,
    of: impl Fn(VirtualSpan) -> &'a [u8],
) -> Result<()> {
    if span.is_empty() { Ok(()) } else { disk.write_at(span.start(), of(span)) }
}

/// What is read at once: pieces that lie near each other, ascending.
fn windows<'a>(slots: &[Slot<'a>]) -> Vec<Vec<Slot<'a>>> {
    let mut by_source = slots.to_vec();
    by_source.sort_unstable_by_key(|slot| slot.piece.from.start());
    let mut windows: Vec<Vec<Slot<'_>>> = Vec::new();
    for slot in by_source {
        let is_near = |window: &&mut Vec<Slot<'_>>| {
            let (start, end) = (window[0].piece.from.start(), window[window.len() - 1].piece.from.end());
            slot.piece.from.start().get() - end.get() <= GAP_BYTES_MAX
                && slot.piece.from.end().get() - start.get() <= WINDOW_BYTES_MAX
        };
        match windows.last_mut().filter(is_near) {
            Some(window) => window.push(slot),
            None => windows.push(vec![slot]),
        }
    }
    windows
}

/// Reads pieces that lie near each other into their slots. If what lies between cannot be read, that is an error as any other: files of a
/// failing disk do not move.
fn read(disk: &dyn EditDisk, slots: &[Slot<'_>], pieces: &mut [u8], window: &mut [u8]) -> Result<()> {
    if let [slot] = slots {
        return disk.read_at(slot.piece.from.start(), &mut pieces[slot.range()]);
    }
    let start = slots[0].piece.from.start();
    let window = &mut window[..index(start, slots[slots.len() - 1].piece.from.end())];
    disk.read_at(start, window)?;
    let mut behind = 0;
    for slot in slots {
        let mut from = index(start, slot.piece.from.start());
        if broken!(GapsNotSkipped) {
            from = behind;
        }
        let range = slot.range();
        behind = from + range.len();
        pieces[range].copy_from_slice(&window[from..behind]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use block::{Memory, ReadAt, TargetFile};
    use extent::Offset;

    use super::*;

    /// Counts what is asked for.
    struct Asked {
        memory: Memory,
        reads: AtomicU64,
        writes: AtomicU64,
    }

    impl ReadAt<Virtual> for Asked {
        fn len_bytes(&self) -> u64 {
            ReadAt::<Virtual>::len_bytes(&self.memory)
        }

        fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.memory.read_at(at, buf)
        }
    }

    impl EditDisk for Asked {
        fn write_at(&self, at: VirtualOffset, buf: &[u8]) -> Result<()> {
            self.writes.fetch_add(1, Ordering::Relaxed);
            TargetFile::write_at(&self.memory, Offset::new(at.get()), buf)
        }

        fn flush(&self) -> Result<()> {
            Ok(())
        }

        fn read_stored(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
            self.read_at(at, buf)
        }
    }

    /// What a copy of pieces of `bytes`, from and to these places, asks for in all.
    fn copied(places: &[(u64, u64)], bytes: u64) -> (u64, u64) {
        let before: Vec<u8> = (0..8 << 20u32).map(|at: u32| (at / 4096 % 251) as u8).collect();
        let (reads, writes) = (AtomicU64::new(0), AtomicU64::new(0));
        let disk = Asked { memory: Memory::new(before.clone()), reads, writes };
        let piece = |(from, to): &(u64, u64)| {
            Piece::new(VirtualSpan::new(VirtualOffset::new(*from), bytes), VirtualOffset::new(*to))
        };
        let pieces: Vec<_> = places.iter().map(piece).collect();
        for group in groups(&pieces.iter().collect::<Vec<_>>(), 1) {
            let mut buffers = Buffers::new(group.bytes(), group.has_gaps());
            group.copy(&disk, &ExtentSet::new(), &mut buffers).unwrap();
        }
        let mut after = before.clone();
        let range = |at: u64| usize::try_from(at).unwrap()..usize::try_from(at + bytes).unwrap();
        places.iter().for_each(|(from, to)| after[range(*to)].copy_from_slice(&before[range(*from)]));
        assert!(disk.memory.to_vec() == after);
        (disk.reads.into_inner(), disk.writes.into_inner())
    }

    #[test]
    fn small_pieces_that_come_to_lie_together_take_few_requests() {
        // Every other cluster, the last of them first.
        let back: Vec<_> =
            (0..60).map(|number| ((119 - 2 * number) * 4096, (4 << 20) + number * 4096)).collect();
        assert_eq!(copied(&back, 4096), (1, 1));
        // Each by itself at its new place, and the same for where they come from.
        let apart: Vec<_> = (0..20).map(|number| (number * 4096, (4 << 20) + number * 8192)).collect();
        assert_eq!(copied(&apart, 4096), (1, 20));
        let far: Vec<_> = (0..20).map(|number| (number * (128 << 10), (4 << 20) + number * 4096)).collect();
        assert_eq!(copied(&far, 4096), (20, 1));
    }

    #[test]
    fn small_pieces_are_in_fewer_groups_than_large_ones() {
        let counts = |piece_bytes: u64| {
            let place = |number: u64| VirtualOffset::new(number * piece_bytes);
            let piece = |number| Piece::new(VirtualSpan::new(place(number), piece_bytes), place(number));
            let pieces: Vec<_> = (0..(32 << 20) / piece_bytes).map(piece).collect();
            let pieces: Vec<_> = pieces.iter().collect();
            [1, 4].map(|worker_count| groups(&pieces, worker_count).len())
        };
        assert_eq!(counts(4096), [2, 4]);
        assert_eq!(counts(1 << 20), [8, 16]);
    }

    #[test]
    fn large_pieces_are_copied_one_by_one() {
        assert_eq!(copied(&[(0, 4 << 20), (1 << 20, 6 << 20)], 1 << 20), (2, 2));
    }
}
