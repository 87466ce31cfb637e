//! Fuzzes what describes appliances: the archive of an OVA with its descriptor and manifest, and each text by itself.
#![no_main]
#![allow(missing_docs)]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| fuzzing::appliance(data));
