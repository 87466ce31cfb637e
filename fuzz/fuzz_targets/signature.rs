//! Fuzzes what holds volumes, and the signatures of all file systems.
#![no_main]
#![allow(missing_docs)]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| fuzzing::filesystem(filesystem::open, data));
