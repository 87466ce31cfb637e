//! Fuzzes what a server may say to the client that reads and writes the disks behind it.
#![no_main]
#![allow(missing_docs)]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| fuzzing::remote(data));
