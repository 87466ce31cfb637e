//! Storage reserved ahead on real file systems: it helps, goes back, and changes nothing.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::{HostFile, ReadAt, TargetFile};
use extent::{Host, HostSpan, Offset, Span};
use os::{LiveFile, PreallocatedFile, preallocated};
use testkit::{HostMount, run};

const FILESYSTEMS: [&str; 3] = ["xfs", "btrfs", "ext4"];
const MIB: u64 = 1 << 20;
const FILE_BYTES: u64 = 48 * MIB;
const UNIT_BYTES: u64 = 64 << 10;

fn span(start: u64, len_bytes: u64) -> HostSpan {
    Span::new(Offset::new(start), len_bytes)
}

/// As the host counts after everything was written back.
fn allocated_bytes(path: &Path) -> u64 {
    File::open(path).unwrap().sync_all().unwrap();
    path.metadata().unwrap().blocks() * 512
}

fn runs(file: &LiveFile) -> usize {
    let extents = file.host_extents().unwrap().unwrap();
    let apart = |pair: &&[block::HostExtent]| {
        let distance =
            |extent: &block::HostExtent| extent.device.get().wrapping_sub(extent.span.start().get());
        distance(&pair[0]) != distance(&pair[1])
    };
    extents.windows(2).filter(apart).count() + extents.len().min(1)
}

fn open(path: &Path, limit_bytes: u64) -> (Arc<LiveFile>, PreallocatedFile, Arc<AtomicU64>) {
    let file = Arc::new(LiveFile::open(path).unwrap());
    let count = Arc::new(AtomicU64::new(0));
    let counter = count.clone();
    let on_continued = Box::new(move || _ = counter.fetch_add(1, Ordering::Relaxed));
    (file.clone(), preallocated(file, limit_bytes, on_continued), count)
}

fn create(path: &Path, len_bytes: u64) {
    File::create(path).unwrap().set_len(len_bytes).unwrap();
}

/// What is written at `at`.
fn pattern(at: u64) -> Vec<u8> {
    let byte = u8::try_from(at / UNIT_BYTES % 251).unwrap() + 1;
    vec![byte; usize::try_from(UNIT_BYTES).unwrap()]
}

#[test]
fn two_files_that_grow_beside_each_other_in_any_order_stay_in_one_piece() {
    for filesystem in FILESYSTEMS {
        let mount = HostMount::new(filesystem, 400 * MIB);
        let paths = ["a", "b"].map(|name| mount.path().join(name));
        paths.iter().for_each(|path| create(path, FILE_BYTES));
        let files: Vec<_> = paths.iter().map(|path| open(path, FILE_BYTES)).collect();
        let count = FILE_BYTES / UNIT_BYTES;
        for number in 0..count {
            for (_, file, _) in &files {
                let at = number * 367 % count * UNIT_BYTES;
                file.write_at(Offset::new(at), &pattern(at)).unwrap();
            }
            if number % 16 == 0 {
                files.iter().for_each(|(_, file, _)| file.flush().unwrap());
            }
        }
        for ((live, file, continued), path) in files.iter().zip(&paths) {
            assert!(runs(live) <= 4, "{filesystem}: {} runs", runs(live));
            assert_eq!(continued.load(Ordering::Relaxed), count, "{filesystem}");
            assert_eq!(file.unused_bytes(), 0);
            file.give_back().unwrap();
            assert!(allocated_bytes(path).abs_diff(FILE_BYTES) <= 64 << 10, "{filesystem}");
            let bytes = fs::read(path).unwrap();
            let is_right = |(at, unit): (u64, &[u8])| unit == pattern(at * UNIT_BYTES);
            assert!((0..).zip(bytes.chunks(UNIT_BYTES as usize)).all(is_right), "{filesystem}");
        }
    }
}

#[test]
fn what_is_not_used_goes_back_and_what_others_reserved_stays() {
    for filesystem in FILESYSTEMS {
        let mount = HostMount::new(filesystem, 400 * MIB);
        let path = mount.path().join("file");
        create(&path, FILE_BYTES);
        run("fallocate", &["-n", "-o", "8MiB", "-l", "1MiB", path.to_str().unwrap()]);
        let (_, file, _) = open(&path, 2 * FILE_BYTES);
        for at in [0, 20 * MIB, 40 * MIB + 512] {
            file.write_at(Offset::new(at), &pattern(at)).unwrap();
        }
        file.zero(span(30 * MIB, MIB)).unwrap();
        assert!(allocated_bytes(&path) >= FILE_BYTES, "{filesystem}: reserved, and past the end, too");
        assert!(file.unused_bytes() > 40 * MIB);
        file.give_back().unwrap();
        let used = 3 * UNIT_BYTES + 4096 + 2 * MIB;
        let allocated = allocated_bytes(&path);
        assert!(allocated.abs_diff(used) <= 32 << 10, "{filesystem}: {allocated}, expected {used}");
        assert_eq!(path.metadata().unwrap().len(), FILE_BYTES);
        let mut bytes = vec![0; FILE_BYTES as usize];
        File::open(&path).unwrap().read_exact_at(&mut bytes, 0).unwrap();
        for at in [0, 20 * MIB, 40 * MIB + 512] {
            let at = usize::try_from(at).unwrap();
            assert_eq!(bytes[at..at + UNIT_BYTES as usize], pattern(at as u64));
            bytes[at..at + UNIT_BYTES as usize].fill(0);
        }
        assert!(bytes.iter().all(|byte| *byte == 0), "{filesystem}");

        // What is given to the file later on is reserved anew, and trimmed storage goes at once.
        file.write_at(Offset::new(44 * MIB), &pattern(0)).unwrap();
        assert!(file.unused_bytes() > 0);
        file.punch(span(0, FILE_BYTES)).unwrap();
        file.give_back().unwrap();
        assert!(allocated_bytes(&path) <= 32 << 10, "{filesystem}");
    }
}

#[test]
fn the_last_bytes_of_a_full_host_are_for_data() {
    for filesystem in ["xfs", "ext4"] {
        let mount = HostMount::new(filesystem, 320 * MIB);
        let path = mount.path().join("file");
        let free = mount.available_bytes();
        create(&path, 4 << 30);
        let (_, file, _) = open(&path, 4 << 30);
        let (mut written, mut at) = (0, 0);
        // Scattered, so that windows are everywhere.
        let failed = loop {
            match file.write_at(Offset::new(at), &vec![7; MIB as usize]).and_then(|()| file.flush()) {
                Ok(()) => written += MIB,
                Err(error) => break error,
            }
            at = (at + 33 * MIB) % (4 << 30);
        };
        assert!(failed.to_string().contains("space"), "{failed}");
        assert!(written >= free / 100 * 95, "{filesystem}: {written} of {free}");
        let mut byte = [0];
        ReadAt::<Host>::read_at(&file, Offset::new(33 * MIB), &mut byte).unwrap();
        assert_eq!(byte, [7]);
    }
}

/// Four threads write, zero and punch their own blocks while a fifth gives back what is unused all the time: nothing that
/// was written goes with it.
#[test]
fn nothing_written_goes_back_whatever_happens_at_once() {
    const THREADS: u64 = 4;
    for filesystem in FILESYSTEMS {
        let mount = HostMount::new(filesystem, 400 * MIB);
        let path = mount.path().join("file");
        create(&path, FILE_BYTES);
        let (_, file, continued) = open(&path, FILE_BYTES);
        let is_done = std::sync::atomic::AtomicBool::new(false);
        let (file, is_done) = (&file, &is_done);
        let models: Vec<_> = std::thread::scope(|scope| {
            let writers: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || change(file, thread, THREADS))).collect();
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    file.give_back().unwrap();
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            });
            let models = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
            is_done.store(true, Ordering::Relaxed);
            models
        });
        assert!(continued.load(Ordering::Relaxed) > 100, "{filesystem}: something was reserved");
        file.give_back().unwrap();
        let found = fs::read(&path).unwrap();
        for (number, unit) in (0..).zip(found.chunks(UNIT_BYTES as usize)) {
            let model: &Vec<u8> = &models[(number % THREADS) as usize];
            let at = (number / THREADS * UNIT_BYTES) as usize;
            assert!(unit == &model[at..at + unit.len()], "{filesystem}: unit {number}");
        }
    }
}

/// Changes every `threads`th unit at random; what they hold then.
fn change(file: &PreallocatedFile, thread: u64, threads: u64) -> Vec<u8> {
    let count = FILE_BYTES / UNIT_BYTES / threads;
    let mut model = vec![0; (count * UNIT_BYTES) as usize];
    let mut state = thread + 1;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for step in 0..500u64 {
        let (unit, from) = (random(count), random(UNIT_BYTES / 512) * 512);
        let len = (random(UNIT_BYTES - from) + 1).min(if step % 3 == 0 { UNIT_BYTES } else { 4096 });
        let at = (unit * threads + thread) * UNIT_BYTES + from;
        let start = (unit * UNIT_BYTES + from) as usize;
        let held = &mut model[start..start + len as usize];
        match random(8) {
            0 => {
                file.punch(span(at, len)).unwrap();
                held.fill(0);
            }
            1 => {
                file.zero(span(at, len)).unwrap();
                held.fill(0);
            }
            _ => {
                held.fill(u8::try_from(step % 255).unwrap() + 1);
                file.write_at(Offset::new(at), held).unwrap();
            }
        }
    }
    model
}
