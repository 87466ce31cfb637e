//! Measuring a storage: on a file, on a sparse one, on a loop device. The latter needs root.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use block::ErrorKind;
use os::{StorageTiming, TimingBudget, queue_of, time_storage};

const MIB: u64 = 1 << 20;

/// Generous in time, for a busy machine; bounded in bytes.
const BUDGET: TimingBudget = TimingBudget { time: Duration::from_secs(20), bytes: 32 * MIB };

fn filled(path: &Path, len_bytes: u64) {
    let mut file = File::create(path).unwrap();
    file.write_all(&vec![0x5a; usize::try_from(len_bytes).unwrap()]).unwrap();
    file.sync_all().unwrap();
}

fn check(probe: &StorageTiming) {
    println!("{probe:?}");
    let lengths = |times: &[(u64, f64)]| times.iter().map(|(bytes, _)| *bytes).collect::<Vec<_>>();
    assert_eq!(lengths(&probe.random), [4 << 10, 64 << 10, 256 << 10, MIB]);
    assert_eq!(lengths(&probe.sequential), [64 << 10, MIB]);
    assert_eq!(lengths(&probe.near), [4 << 10]);
    let all = [&probe.random, &probe.sequential, &probe.near];
    assert!(all.into_iter().flatten().all(|(_, seconds)| *seconds > 0.0 && *seconds < 20.0));
    let (fastest, slowest) = probe.random_range_seconds;
    assert!(fastest <= probe.random[0].1 && probe.random[0].1 <= slowest);
    assert!(probe.rounds >= 3);
}

/// Everything about a file that a read may not change.
fn state(path: &Path) -> (Vec<u8>, std::time::SystemTime, u64) {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(path).unwrap();
    (fs::read(path).unwrap(), metadata.modified().unwrap(), metadata.blocks())
}

#[test]
fn a_file_is_measured_within_its_budget_and_left_alone() {
    let dir = testkit::scratch();
    let path = dir.path().join("disk.raw");
    filled(&path, 48 * MIB);
    let before = state(&path);
    let files = || fs::read_dir(dir.path()).unwrap().count();
    let count = files();
    let found = time_storage(&path, BUDGET).unwrap();
    check(&found);
    assert!(found.read_bytes <= BUDGET.bytes && found.read_bytes > BUDGET.bytes / 2);
    assert_eq!(found.span_bytes, 48 * MIB);
    assert_eq!(state(&path), before);
    assert_eq!(files(), count);
}

#[test]
fn time_bounds_a_probe() {
    let dir = testkit::scratch();
    let path = dir.path().join("disk.raw");
    filled(&path, 16 * MIB);
    let started = Instant::now();
    let budget = TimingBudget { time: Duration::ZERO, bytes: u64::MAX };
    assert_eq!(time_storage(&path, budget).unwrap_err().kind(), ErrorKind::Invalid);
    let budget = TimingBudget { time: Duration::from_millis(300), bytes: u64::MAX };
    // It may be too short for three rounds where many tests run; it is never much longer than asked.
    if let Ok(found) = time_storage(&path, budget) {
        assert!(found.elapsed_seconds < 5.0, "{found:?}");
    }
    assert!(started.elapsed() < Duration::from_secs(10));
    let budget = TimingBudget { bytes: MIB, ..BUDGET };
    let error = time_storage(&path, budget).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("rounds"), "{error}");
}

/// Only what is allocated is read: of a terabyte with little in it, that little.
#[test]
fn holes_are_not_measured() {
    let dir = testkit::scratch();
    let path = dir.path().join("sparse.raw");
    let file = File::create(&path).unwrap();
    file.set_len(1 << 40).unwrap();
    file.write_all_at(&vec![1; usize::try_from(24 * MIB).unwrap()], 600 << 30).unwrap();
    file.sync_all().unwrap();
    check(&time_storage(&path, BUDGET).unwrap());
    let empty = dir.path().join("empty.raw");
    File::create(&empty).unwrap().set_len(1 << 40).unwrap();
    let error = time_storage(&empty, BUDGET).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("allocated"), "{error}");
    let tiny = dir.path().join("tiny.raw");
    fs::write(&tiny, b"x").unwrap();
    assert_eq!(time_storage(&tiny, BUDGET).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn what_cannot_be_read_past_the_cache_is_not_measured() {
    let dir = testkit::scratch();
    assert_eq!(time_storage(dir.path(), BUDGET).unwrap_err().kind(), ErrorKind::Refused);
    assert_eq!(time_storage(dir.path().join("absent"), BUDGET).unwrap_err().kind(), ErrorKind::Io);
    // Linux says of files in /proc that they are regular ones without contents.
    assert_eq!(time_storage("/proc/self/status", BUDGET).unwrap_err().kind(), ErrorKind::Invalid);
    // cgroup and sysfs files have a page's length and no direct I/O.
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let error = time_storage(path, BUDGET).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[test]
fn a_device_is_measured_and_its_queue_is_known() {
    struct Loop(String);
    impl Drop for Loop {
        fn drop(&mut self) {
            testkit::as_root("losetup", &["-d", &self.0]);
        }
    }
    let dir = testkit::scratch();
    let path = dir.path().join("backing");
    filled(&path, 48 * MIB);
    let output = testkit::as_root("losetup", &["--show", "-r", "-f", path.to_str().unwrap()]);
    let device = Loop(String::from_utf8(output.stdout).unwrap().trim().to_owned());
    check(&time_storage(&device.0, BUDGET).unwrap());

    let queue = queue_of(&device.0).unwrap();
    let sys = format!("/sys/block/{}/queue", device.0.strip_prefix("/dev/").unwrap());
    let number =
        |name: &str| fs::read_to_string(format!("{sys}/{name}")).unwrap().trim().parse::<u64>().unwrap();
    assert_eq!(queue.request_bytes, number("max_sectors_kb") << 10);
    assert_eq!(queue.segments, number("max_segments"));
    assert_eq!(queue.read_ahead_bytes, number("read_ahead_kb") << 10);
    assert_eq!(queue.is_rotational, number("rotational") == 1);
    assert_eq!(queue_of("/proc/self/status"), None);
}
