//! Fuzzes what guests and hosts say to each other about whose turn it is.
#![no_main]
#![allow(missing_docs)]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| fuzzing::coordinate(data));
