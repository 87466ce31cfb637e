//! Bad input: every parser must answer with an error of the right kind, soon, and never panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use block::{Error, ErrorKind, HostFile, Memory};

use crate::TimeLimit;

/// How long one bad input may take. Far above what it does take, even in a debug build.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Feeds damaged versions of `good` to `open`: truncated at every 4 KiB (at most 256 places), and with each
/// aligned 2-, 4- and 8-byte field of the first `header_bytes` set to 0, all ones, and a few other values.
/// `open` shall open, map and read; it may succeed or fail with an error that is the input's fault.
pub fn check_hostile(
    good: &[u8],
    header_bytes: usize,
    open: impl Fn(Arc<dyn HostFile>) -> Result<(), Error>,
) {
    let try_one = |what: String, bytes: Vec<u8>| {
        let limit = TimeLimit::of(TIME_MAX);
        let result = catch_unwind(AssertUnwindSafe(|| open(Arc::new(Memory::new(bytes)))));
        match result {
            Err(_) => panic!("panicked on {what}"),
            Ok(Err(error)) => assert!(
                matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::Refused),
                "{what}: {error:?}"
            ),
            Ok(Ok(())) => {}
        }
        limit.check(&what);
    };
    let step = (good.len() / 256).next_multiple_of(4096).max(4096);
    for len in (0..good.len()).step_by(step).chain([1, 511, good.len().saturating_sub(1)]) {
        try_one(format!("the first {len} bytes"), good[..len.min(good.len())].to_vec());
    }
    let values = [0u64, u64::MAX, 1, 0x7fff_ffff_ffff_ffff, 0x8000_0000_8000_8000, 0x5bd1_e995_9e37_79b9];
    for width in [2, 4, 8] {
        for at in (0..header_bytes.min(good.len() - width)).step_by(width) {
            for value in values {
                let mut bytes = good.to_vec();
                bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
                try_one(format!("{width} bytes at {at:#x} set to {value:#x}"), bytes);
            }
        }
    }
}
