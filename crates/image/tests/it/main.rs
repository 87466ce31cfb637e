//! Each format of images, read and written, against the programs that it comes from.

// Tests by themselves: what fails ends the test, and what is printed says what was skipped.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod edit;
mod foreign;
mod live;
mod qcow2;
mod vdi;
mod vhd;
mod vhd_shared;
mod vhdx;
mod vmdk;
mod vmdk_extents;
