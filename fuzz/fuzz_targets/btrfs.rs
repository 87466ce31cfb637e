//! Fuzzes the parser of Btrfs volumes, of one device and of several.
#![no_main]
#![allow(missing_docs)]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| fuzzing::btrfs(data));
