//! Copies a batch's data to their new places, and reads back what arrived.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use block::{EditDisk, Error, Result};
use extent::{ExtentSet, Virtual, VirtualOffset, VirtualSpan};
use filesystem::Relocations;
use journal::Move;
use xxhash_rust::xxh3::xxh3_128;

use super::groups::{Buffers, Group, groups};
use super::index;
use super::piece::{PIECE_BYTES_MAX, Piece};
use crate::monitor::JobMonitor;

/// The data of a batch, in pieces that are contiguous in both places.
pub(super) struct Mover<'a> {
    disk: &'a dyn EditDisk,
    thread_count: usize,
    /// Where they go from places that are not stored.
    holes: ExtentSet<Virtual>,
    /// By where they come from; their digests are known once they were copied.
    pieces: Vec<Piece>,
}

impl<'a> Mover<'a> {
    pub(super) fn new(
        batch: &Relocations,
        volume: VirtualSpan,
        holes: ExtentSet<Virtual>,
        disk: &'a dyn EditDisk,
        thread_count: usize,
    ) -> Self {
        let mut joined: Vec<(VirtualSpan, VirtualOffset)> = Vec::new();
        for relocation in batch.by_source() {
            let from = VirtualSpan::new(
                volume.start().plus(relocation.from.start().get()),
                relocation.from.len_bytes(),
            );
            let to = volume.start().plus(relocation.to.get());
            match joined.last_mut() {
                Some((last, last_to))
                    if last.end() == from.start() && last_to.plus(last.len_bytes()) == to =>
                {
                    *last = VirtualSpan::between(last.start(), from.end());
                }
                _ => joined.push((from, to)),
            }
        }
        let pieces = joined.into_iter().flat_map(|(from, to)| {
            let place = move |piece: VirtualSpan| {
                Piece::new(piece, to.plus(piece.start().get() - from.start().get()))
            };
            from.split(PIECE_BYTES_MAX).map(place)
        });
        Self { disk, thread_count, holes, pieces: pieces.collect() }
    }

    pub(super) fn piece_count(&self) -> usize {
        self.pieces.len()
    }

    /// Copies everything. `false` if the monitor asked to stop.
    pub(super) fn copy(&self, monitor: &dyn JobMonitor) -> Result<bool> {
        let groups = groups(&self.by_destination(), self.thread_count);
        let bytes_max = groups.iter().map(Group::bytes).max().unwrap_or(0);
        let buffers = || Buffers::new(bytes_max, groups.iter().any(Group::has_gaps));
        self.share(groups.len(), buffers, monitor, |number, buffers| {
            let group = &groups[number];
            group.copy(self.disk, &self.holes, buffers)?;
            monitor.advanced(group.bytes(), group.bytes());
            Ok(())
        })
    }

    fn by_destination(&self) -> Vec<&Piece> {
        let mut all: Vec<_> = self.pieces.iter().collect();
        all.sort_unstable_by_key(|piece| piece.to);
        all
    }

    /// Reads everything back from storage. `Mismatch` if it is not what was copied; `false` if the monitor asked to stop.
    pub(super) fn check_arrived(&self, monitor: &dyn JobMonitor) -> Result<bool> {
        let by_destination = self.by_destination();
        // Pieces that came from many places often lie beside each other now: one read for all.
        let mut windows: Vec<(VirtualSpan, &[&Piece])> = Vec::new();
        let mut start = 0;
        for number in 1..=by_destination.len() {
            let window =
                VirtualSpan::between(by_destination[start].to, by_destination[number - 1].to_span().end());
            let goes_on = by_destination.get(number).is_some_and(|next| {
                next.to == window.end() && window.len_bytes() + next.from.len_bytes() <= PIECE_BYTES_MAX
            });
            if !goes_on {
                windows.push((window, &by_destination[start..number]));
                start = number;
            }
        }
        let bytes_max = windows.iter().map(|(window, _)| window.len_bytes()).max().unwrap_or(0);
        let buffers = || Buffers::new(bytes_max, false);
        self.share(windows.len(), buffers, monitor, |number, buffers| {
            let (window, pieces) = windows[number];
            let bytes = &mut buffers.pieces[..index(window.start(), window.end())];
            self.disk.read_stored(window.start(), bytes)?;
            for piece in pieces {
                let span = piece.to_span();
                let arrived = &bytes[index(window.start(), span.start())..index(window.start(), span.end())];
                if xxh3_128(arrived) != piece.digest() {
                    return Err(Error::mismatch(
                        "what was written did not arrive: the storage is not to be trusted",
                    )
                    .at(span.start()));
                }
            }
            Ok(())
        })
    }

    /// For the record.
    pub(super) fn into_moves(self) -> Vec<Move> {
        self.pieces.into_iter().map(Piece::into_move).collect()
    }

    /// Has workers do `act` for all numbers below `count`, each with memory of its own. `false` if the monitor asked to
    /// stop; the first error stops all.
    fn share(
        &self,
        count: usize,
        buffers: impl Fn() -> Buffers + Sync,
        monitor: &dyn JobMonitor,
        act: impl Fn(usize, &mut Buffers) -> Result<()> + Sync,
    ) -> Result<bool> {
        let (next, stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
        let failure = Mutex::new(None);
        let work = || {
            let mut buffers = buffers();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count || stopped.load(Ordering::Relaxed) {
                    return;
                }
                if monitor.is_cancelled() {
                    stopped.store(true, Ordering::Relaxed);
                } else if let Err(error) = act(number, &mut buffers) {
                    failure.lock().expect("no worker panicked").get_or_insert(error);
                    stopped.store(true, Ordering::Relaxed);
                }
            }
        };
        let workers = self.thread_count.min(count);
        if workers <= 1 {
            // The caller's own thread, so that the order of operations is the same every time.
            work();
        } else {
            std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
        }
        match failure.into_inner().expect("no worker panicked") {
            Some(error) => Err(error),
            None => Ok(!stopped.into_inner()),
        }
    }
}
