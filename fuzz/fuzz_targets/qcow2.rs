//! Fuzzes the qcow2 container.
#![no_main]
#![allow(missing_docs)]

use image::Format;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| fuzzing::image(Format::Qcow2, data));
