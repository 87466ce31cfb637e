//! The tests of this crate are one program.

mod explore;
mod sim;
mod socket;
