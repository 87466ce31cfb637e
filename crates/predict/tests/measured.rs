//! What a probe measures makes a profile that says the same.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use os::{TimingBudget, time_storage};
use predict::cost::{Order, Piece, QueueLimits, RequestSize, SequentialRead};
use predict::profile::{Profile, Timings};

const MIB: u64 = 1 << 20;

#[test]
fn a_measured_profile_reproduces_its_measurements() {
    let dir = testkit::scratch();
    let path = dir.path().join("disk.raw");
    let mut file = File::create(&path).unwrap();
    file.write_all(&vec![0x5a; usize::try_from(32 * MIB).unwrap()]).unwrap();
    file.sync_all().unwrap();
    // Generous in time, for a busy machine.
    let found = time_storage(&path, TimingBudget { time: Duration::from_secs(20), bytes: 48 * MIB }).unwrap();
    let timings = Timings {
        sequential: found.sequential,
        random: found.random,
        near: found.near,
        span_bytes: found.span_bytes,
    };
    let profile = Profile::measured(&timings).unwrap();
    println!("{timings:?}\n{profile:?}");
    assert!((1e5..=100e9).contains(&profile.bytes_per_second), "{profile:?}");
    for (len_bytes, seconds) in timings.sequential {
        // One read after another of the same file: what the second takes is a sequential read.
        let limits = QueueLimits { request_bytes: 4 * MIB, segments: u64::MAX };
        let mut read = SequentialRead::new(&profile, RequestSize::new(len_bytes, limits), Order::AsTold);
        let mut total_seconds = |logical| {
            read.piece(Piece { logical, physical: logical, len_bytes });
            read.total().seconds
        };
        let first = total_seconds(0);
        let second = total_seconds(len_bytes) - first;
        assert!((second / seconds - 1.0).abs() < 0.05, "{len_bytes} bytes: {second} instead of {seconds}");
    }
}
