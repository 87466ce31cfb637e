//! Fuzzes the parser of Btrfs volumes.
#![no_main]
#![allow(missing_docs)]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| fuzzing::filesystem(filesystem::btrfs::open, data));
