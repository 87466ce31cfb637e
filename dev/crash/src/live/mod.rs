//! Explores what power cuts, kills and restarts leave of disks in use, against a log of all that was written.
//!
//! A disk of a [`LiveSubject`] is used through [`serve::Export`], as by clients: written, zeroed, discarded, flushed, and read. Its
//! host is a simulated one. Every sector that is written holds a word that no other write has, so the log knows of each sector
//! what it may hold: any version since the last flush after a cut, the last one alone while nothing happened.
//!
//! Six ways to look:
//! - [`explore_cuts`] cuts the power at every change that a short list of steps makes, in many ways each, and goes on with what
//!   was left: what is wrong with tables shows in what is written later;
//! - [`explore_reuse`] cuts it at the flushes alone, in more ways each, of steps that free units and use their places again;
//! - [`run_log`] runs as many random steps as asked for, with kills, cuts, and clean ends between them;
//! - [`explore_full`] leaves no room on the host from one change to another, goes on, and ends;
//! - [`explore_threads`] lets many threads write and flush at once;
//! - [`explore_bitmaps`] cuts it at every change of an image that records what changes.
//!
//! Sectors of the guest's own data may be torn anywhere. An image's tables are written by the sector, which storages keep
//! whole; where a format has checksums (VHDX), everything may be torn.
//!
//! A host that leaves out flushes ([`Flushes`]) must be found by them, as each of `image`'s mutants must.
//!
//! Absent on purpose: what clients see of it (the tests of `serve`), and changes of disks that nobody uses (the rest of
//! this crate).

mod bitmaps;
mod cuts;
mod full;
mod known;
mod session;
mod step;
mod subject;
mod threads;

use crate::Violation;

pub use bitmaps::explore_bitmaps;
pub use cuts::{explore_cuts, explore_reuse};
pub use full::explore_full;
pub use session::run_log;
pub use subject::{BITMAP_KIND, Flushes, LIVE_KINDS, LiveKind, LiveSubject, live_kind};
pub use threads::explore_threads;

/// How much was looked at.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Used {
    /// Steps that were taken.
    pub operations: u64,
    /// Those of them that were flushes, or ended with one.
    pub flushes: u64,
    /// Disks that a cut left and that were compared.
    pub cuts: u64,
    /// Programs that were killed and begun anew.
    pub kills: u64,
    /// Clean ends.
    pub closes: u64,
    /// Requests and ends that failed for want of room.
    pub full: u64,
    /// Bytes that moved because images were shortened in the end.
    pub moved_bytes: u64,
    /// Disks that QEMU judged.
    pub judged: u64,
}

impl std::ops::AddAssign for Used {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.flushes += other.flushes;
        self.cuts += other.cuts;
        self.kills += other.kills;
        self.closes += other.closes;
        self.full += other.full;
        self.moved_bytes += other.moved_bytes;
        self.judged += other.judged;
    }
}

fn violation(seed: u64, text: String) -> Violation {
    Violation { seed, text }
}
