//! Explores what power cuts leave of a change in place, and of disks in use (`live`).
//!
//! A [`Scenario`] is a disk, a few batches of random moves, and the disk as it must be after each of them. [`explore()`] cuts the
//! power at every change that a run makes, in many ways each, recovers (with a second cut in the recovery), and compares: all
//! that the volume uses is byte for byte what it was before or after the batch, never between.
//!
//! [`explore_life()`] does it with the journal's file and names as well, from before they are made until they are gone;
//! [`meet_strangers()`] puts other files in their places.
//!
//! A [`Compaction`] is an image, what is given back of it, and what moves into the gaps: [`explore_compact()`] does the same with it.
//!
//! A copy that is interrupted twice and then finished ([`explore_resume()`]) is the source.
//!
//! `defrag`, `compact` and `recover` as the program runs them are what [`explore_use_case()`] cuts, and `copy` is what
//! [`explore_copies()`] does; an OVA in the making is [`explore_ova()`]'s.
//!
//! Copies to exports of NBD servers and from them meet the servers' faults in [`explore_export_target()`] and [`explore_export_source()`].
//!
//! Copies to streams that fail are [`explore_streams()`]'s.
//!
//! A file whose storage is reserved ahead is what [`explore_reserving()`] lets several threads write, by turns that a seed decides.
//!
//! Files extracted into a folder are what [`explore_extraction()`] cuts, kills and fails, while somebody else changes the folder.
//!
//! Invariants: the expected states come from a model that shares no code with the engine; everything follows from a seed.
//!
//! Everything here panics where its own machine fails it, with what was expected: it is for tests and tasks alone, as `testkit` is.
//!
//! Absent on purpose: planning, but in the use cases. Moves of files are random, so that they are worse than any planner's.

#![allow(clippy::unwrap_used, clippy::panic)]

mod choose;
mod compact;
mod copy;
mod explore;
mod export;
mod extraction;
mod faults;
mod fill;
mod host;
mod life;
mod live;
mod outlet;
mod ova;
mod real;
mod reserve;
mod resume;
mod scenario;
mod stream;
mod toy;
mod use_case;

pub use compact::{CompactOptions, Compaction, IMAGE_KINDS, Image, ImageKind, explore_compact};
pub use copy::{CopySubject, explore_copies, explore_copy_faults, refuse_copies};
pub use explore::{Explored, Options, Violation, explore};
pub use export::{ExportSubject, explore_export_source, explore_export_target};
pub use extraction::{Extracted, explore_extraction};
pub use faults::explore_faults;
pub use fill::{FILL_FORMATS, Filled, explore_fill, explore_killed_flush};
pub use life::{explore_life, meet_strangers};
pub use live::{
    BITMAP_KIND, Flushes, LIVE_KINDS, LiveKind, LiveSubject, Used, explore_bitmaps, explore_cuts,
    explore_full, explore_reuse, explore_threads, live_kind, run_log,
};
pub use ova::{OvaSubject, explore_ova};
pub use real::Real;
pub use reserve::{InThread, Reserved, explore_reserving};
pub use resume::{RESUME_KINDS, ResumeKind, ResumeOptions, ResumeSubject, explore_resume};
pub use scenario::{Guest, Scenario, Subject};
pub use stream::explore_streams;
pub use toy::Toy;
pub use use_case::{
    Asked, UseCase, UseCaseKind, UseCaseOptions, explore_use_case, explore_use_case_faults, run_undisturbed,
};
