//! The server and the client, each against others'.

// Tests by themselves: what fails ends the test, and what is printed says what was skipped.
#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_possible_truncation, clippy::cast_possible_wrap)]

mod clients;
mod common;
mod extended;
mod load;
mod own_client;
mod protocol;
mod stats;
mod tls;
