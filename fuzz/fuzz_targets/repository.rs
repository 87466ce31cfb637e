//! Fuzzes what is in a backup repository, decrypted.
#![no_main]
#![allow(missing_docs)]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| fuzzing::repository(data));
