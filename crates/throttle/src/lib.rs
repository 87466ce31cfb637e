//! When background work pauses for what others do. Pure: a clock and counters come in as numbers, and how long to pause goes out.
//!
//! There are two signs that others want the devices. The first is what the devices did and this process did not: exact, where the kernel
//! counts both ([`Counts`]). The second is slow progress, which also tells of those whom no counter here sees, such as another guest on the
//! same host: the share of looks in which work went slower than it usually does is held against chance, as in *Progress-based regulation of
//! low-importance processes* (Douceur and Bolosky, SOSP 1999), from which the growing pauses are, too.
//!
//! A pause begins with [`PAUSE_MIN_MS`] and doubles while others go on, up to [`PAUSE_MAX_MS`]. After so much of it some work is done all the
//! same, so that work ends even where others never rest.
//!
//! Who has a thread for the work, and sleeps in it, asks a [`Regulator`]. Who has other things to do while work pauses works in [`Turns`].
//!
//! Absent on purpose: idle classes of the scheduler and of the devices' queues, which are the caller's (`os::idle`); and threads.

mod counts;
#[cfg(feature = "mutants")]
mod mutant;
mod rate;
mod regulator;
mod turns;

pub use counts::Counts;
#[cfg(feature = "mutants")]
pub use mutant::{MUTANTS, Mutant};
pub use regulator::{LOOK_MS, Millis, PAUSE_MAX_MS, PAUSE_MIN_MS, REST_MAX_MS, Reason, Regulator, TURN_MS};
pub use turns::{Counted, Turns};
