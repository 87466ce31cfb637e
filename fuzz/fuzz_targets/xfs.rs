//! Fuzzes the parser of XFS volumes.
#![no_main]
#![allow(missing_docs)]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| fuzzing::filesystem(filesystem::xfs::open, data));
