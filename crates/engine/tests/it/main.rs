//! The engine, on simulated disks and on real ones.

// Tests by themselves: what fails ends the test, and what is printed says what was skipped.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod copy;
mod crash;
mod flips;
mod rearrange;
