//! Use cases on simulated machines whose power is cut.

// Tests by themselves: what fails ends the test, and what is printed says what was skipped.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod copies;
mod exports;
mod extraction;
mod fill;
mod increments;
mod live;
mod ova;
mod reserve;
mod resume;
mod streams;
mod use_cases;
