//! Fuzzes the parser of FAT volumes.
#![no_main]
#![allow(missing_docs)]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| fuzzing::filesystem(filesystem::fat::open, data));
