//! Runs in a QEMU that is simulated, and sockets that answer strangely.

// Tests by themselves: what fails ends the test.
#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_possible_truncation)]

mod explore;
mod sim;
mod socket;
