//! A part of a batch's data, with what is known of it once it was copied.

use std::sync::Mutex;

use extent::{VirtualOffset, VirtualSpan};
use journal::Move;

/// What a worker copies or reads back at once.
pub(super) const PIECE_BYTES_MAX: u64 = 4 << 20;

/// Data that are contiguous in both places.
pub(super) struct Piece {
    pub(super) from: VirtualSpan,
    pub(super) to: VirtualOffset,
    digest: Mutex<u128>,
}

impl Piece {
    pub(super) fn new(from: VirtualSpan, to: VirtualOffset) -> Self {
        Self { from, to, digest: Mutex::new(0) }
    }

    pub(super) fn to_span(&self) -> VirtualSpan {
        VirtualSpan::new(self.to, self.from.len_bytes())
    }

    pub(super) fn note_digest(&self, digest: u128) {
        *self.digest.lock().expect("no worker panicked") = digest;
    }

    pub(super) fn into_move(self) -> Move {
        let digest = self.digest.into_inner().expect("no worker panicked");
        Move { from: self.from, to: self.to, digest }
    }

    pub(super) fn digest(&self) -> u128 {
        *self.digest.lock().expect("no worker panicked")
    }
}
