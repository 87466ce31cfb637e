//! Logs of XFS that end at any of their records, as if power was lost right behind it: the kernel recovers a copy of what is used to the same as the
//! whole, whatever was left to be done.
//!
//! A file system works without writing metadata to their places, which it does only once its log fills up. So each
//! record of its log is an end that a loss of power could have left, and one run gives hundreds of them. Of those that leave work to be done `LEANDISK_MOMENTS`
//! are recovered by the kernel; `LEANDISK_SEED` takes another seed.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::running::{Host, copy_used, number, open, recover_both, show_both};
use crate::support::{source, text};
use filesystem::{Catalog, Check, FileKind, State};
use testkit::mounted::Mounted;
use testkit::{run, scratch};

const VOLUME_BYTES: u64 = 320 << 20;
const SECTOR: usize = 512;
/// So far before the last record the kernel finds one that is missing, whatever options it mounts with.
const LOOKED_BACK_SECTORS: usize = 256;
/// A file system works until its log has so many records.
const RECORDS_WANTED: usize = 30;
/// But no longer than this.
const WORK_MAX: Duration = Duration::from_secs(120);
/// How long a file system works apart from the gate.
const LONG: Duration = Duration::from_secs(3);

/// Where the log lies on a volume.
fn log_of(volume: &Path) -> (u64, usize) {
    let mut head = [0; SECTOR];
    File::open(volume).unwrap().read_exact_at(&mut head, 0).unwrap();
    let number =
        |at: usize, len: usize| head[at..at + len].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let (block, start, group_log, group_blocks) =
        (number(4, 4), number(48, 8), number(124, 1), number(84, 4));
    let first = (start >> group_log) * group_blocks + (start & ((1 << group_log) - 1));
    (first * block, usize::try_from(number(96, 4) * block).unwrap())
}

fn read_log(volume: &Path) -> Vec<u8> {
    let (start, len) = log_of(volume);
    let mut log = vec![0; len];
    File::open(volume).unwrap().read_exact_at(&mut log, start).unwrap();
    log
}

/// Sectors at which records begin that are in one log and not in the other, in order, and behind the last sector that differs.
fn new_records(before: &[u8], after: &[u8]) -> (Vec<usize>, usize) {
    let (mut starts, mut end) = (Vec::new(), 0);
    for (index, (old, new)) in before.chunks_exact(SECTOR).zip(after.chunks_exact(SECTOR)).enumerate() {
        if old == new {
            continue;
        }
        end = index + 1;
        if new.starts_with(&[0xfe, 0xed, 0xba, 0xbe]) {
            starts.push(index);
        }
    }
    (starts, end)
}

/// What the log leaves to be done.
fn left(state: &State) -> Option<&str> {
    let State::JournalPending(why) = state else { return None };
    why.split_once(", and leaves ").map(|(_, left)| left)
}

/// What a disk had stored of the records under way when power was lost, in whatever order it wrote them.
#[derive(Clone, Copy)]
struct Stored {
    /// The first so many sectors of the first of them.
    sectors: usize,
    /// So many whole records behind that one.
    behind: usize,
}

const NOTHING: Stored = Stored { sectors: 0, behind: 0 };

/// Answers at how many ends work was left to be done. No attribute's value is so long that it lies outside of the trees: those are written
/// without the log, and what was written after the end that is tried would stand in blocks that were theirs.
fn every_end(options: &[&str], able: &str, work: Duration, stored: Stored) -> usize {
    let (count, seed) = (number("LEANDISK_MOMENTS", 3), number("LEANDISK_SEED", 20_261_125));
    let host = Host::new();
    let at = |name: &str| host.path(name);
    let (disk, before, end) = (at("disk"), at("before"), at("end"));
    File::create(&disk).unwrap().set_len(VOLUME_BYTES).unwrap();
    run(
        "mkfs.xfs",
        &[&["--unsupported", "-q", "-f", "-l", "size=100m", "-d", "agcount=2"], options, &[text(&disk)]]
            .concat(),
    );
    {
        let mounted = Mounted::kernel("xfs", &disk, "noatime,nouuid");
        run("sync", &["-f", text(mounted.path())]);
        run("cp", &["--reflink=always", text(&disk), text(&before)]);
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts/work.py");
        let mut workers: Vec<_> = (0..3)
            .map(|worker| {
                let folder = mounted.path().join(worker.to_string());
                fs::create_dir(&folder).unwrap();
                let seed = (seed + worker).to_string();
                let mut command = Command::new("python3");
                command
                    .args([script, text(&folder), &seed, &format!("{able},small")])
                    .stdin(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()
                    .unwrap()
            })
            .collect();
        // On a busy machine it may take longer until there is something in the log.
        let (earlier, began) = (read_log(&before), Instant::now());
        let count = || new_records(&earlier, &read_log(&disk)).0.len();
        std::thread::sleep(work);
        while count() < RECORDS_WANTED && began.elapsed() < WORK_MAX {
            std::thread::sleep(Duration::from_millis(200));
        }
        // Nothing is written any more, but for the log.
        run("xfs_io", &["-x", "-c", "shutdown -f", text(mounted.path())]);
        for worker in &mut workers {
            let _ = worker.kill();
            let _ = worker.wait();
        }
    }
    let (earlier, later) = (read_log(&before), read_log(&disk));
    let (log_at, _) = log_of(&disk);
    let (records, log_end) = new_records(&earlier, &later);
    let (mut pending, mut judged, mut understood, mut uncertain) = (0, 0, 0, 0);
    // In the gate about forty of them.
    let step = if work < LONG { records.len() / 40 + 1 } else { 1 };
    for (index, record) in records.iter().enumerate().skip(1).step_by(step) {
        let what = format!("{options:?}, seed {seed}, the end at record {index} of {}", records.len());
        run("cp", &["--reflink=always", text(&disk), text(&end)]);
        let start_of = |index: usize| records.get(index).copied().unwrap_or(log_end);
        let (after, last) = (start_of(index + 1), start_of(index + 1 + stored.behind));
        let target = OpenOptions::new().write(true).open(&end).unwrap();
        let missing_from = record + stored.sectors;
        for sectors in [missing_from..after, last..log_end] {
            let bytes = sectors.start * SECTOR..sectors.end * SECTOR;
            target.write_all_at(&earlier[bytes.clone()], log_at + bytes.start as u64).unwrap();
        }
        drop(target);
        let filesystem = filesystem::open(&source(&end)).unwrap().unwrap();
        let state = filesystem.facts().state.clone();
        if last - missing_from > LOOKED_BACK_SECTORS && last > after {
            assert_eq!(state.doubt(), Some("where its log ends is not certain"), "{what}");
            uncertain += 1;
            continue;
        }
        assert_eq!(state.doubt(), None, "{what}");
        understood += 1;
        if let Err(error) = filesystem.used_map(Check::Full) {
            panic!("{what}: {state:?}: {error}");
        }
        pending += usize::from(left(&state).is_some());
        // Where something was stored, where the kernel ends the log counts, even if nothing is left to be done.
        let is_odd = stored.behind > 0 || stored.sectors > 0;
        let Some(left) = left(&state).or(is_odd.then_some("none")) else { continue };
        if judged == count {
            continue;
        }
        judged += 1;
        let (whole, used) = (at("whole"), at("used"));
        let copies = || {
            copy_used(&end, &used);
            run("cp", &["--reflink=always", text(&end), text(&whole)]);
        };
        copies();
        let files = recover_both("xfs", &whole, &used, &what);
        for recovered in [&whole, &used] {
            run("xfs_repair", &["-n", "-f", "-o", "force_geometry", text(recovered)]);
        }
        copies();
        show_both("xfs", "ro,norecovery,nouuid", &whole, &used, &what);
        println!("{what}: {left} are left; {files} files");
        assert!(open(&end).facts().state.doubt().is_none());
    }
    println!("{options:?}: {} ends, {pending} of them with work left to be done", records.len());
    println!("{understood} of those that were tried are understood, and {uncertain} in doubt");
    assert!(records.len() > 5 && understood + uncertain > 4, "nothing is shown");
    pending
}

/// Volumes of version 4 with a log that must be replayed, as a Debian kernel left them when it was killed (`running_guest.rs`), without their files'
/// contents: what is read of them is what that kernel shows after its recovery.
#[test]
fn logs_of_version_4_by_debian_are_replayed() {
    let (dir, mut count) = (scratch(), 0);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/xfs_4");
    for entry in fs::read_dir(folder).unwrap() {
        let packed = entry.unwrap().path();
        if packed.extension().is_none_or(|kind| kind != "zst") {
            continue;
        }
        let volume = dir.path().join("volume");
        run("zstd", &["-q", "-d", "-f", "--sparse", text(&packed), "-o", text(&volume)]);
        let filesystem = open(&volume);
        let (facts, what) = (filesystem.facts(), packed.display());
        assert!(matches!(facts.state, State::JournalPending(_)), "{what}: {:?}", facts.state);
        assert_eq!(facts.details.iter().find(|(name, _)| *name == "version").unwrap().1, "4");
        if let Err(error) = filesystem.used_map(Check::Full) {
            panic!("{what}: {error}");
        }
        let catalog = Catalog::read(&*filesystem).unwrap();
        let regular = catalog.streams().filter(|stream| stream.stream.kind == FileKind::Regular);
        // Numbers, sizes and paths; a file may have several.
        let list = fs::read_to_string(packed.with_extension("list")).unwrap();
        let mut shown: BTreeMap<u64, (u64, Vec<&str>)> = BTreeMap::new();
        for line in list.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let file = shown.entry(words[0].parse().unwrap()).or_default();
            file.0 = words[1].parse().unwrap();
            file.1.push(words[2]);
        }
        let mut found = 0;
        for stream in regular {
            let path = format!(".{}", String::from_utf8(stream.path()).unwrap().replace(' ', "\\x20"));
            let file = shown.get(&stream.stream.file.0);
            let (size, paths) = file.unwrap_or_else(|| panic!("{what}: {path} is not shown"));
            assert_eq!(*size, stream.stream.size_bytes, "{what}: {path}");
            assert!(paths.contains(&path.as_str()), "{what}: {path} is one of {paths:?}");
            found += 1;
        }
        assert!(found == shown.len() && found > 50, "{what}: {found} of {} files", shown.len());
        count += 1;
    }
    assert!(count > 1, "volumes are there");
}

#[test]
fn any_record_may_be_the_last() {
    every_end(&["-m", "reflink=1,rmapbt=1"], "reflink", Duration::from_secs(1), NOTHING);
}

/// Several records are under way at once: the log ends before the first that was not stored, whatever was behind it.
#[test]
fn a_record_before_the_last_may_be_missing() {
    for behind in [1, 12] {
        every_end(
            &["-m", "reflink=1,rmapbt=1"],
            "reflink",
            Duration::from_secs(1),
            Stored { sectors: 0, behind },
        );
    }
}

/// Of the last record, or of one before others, only a part may be stored: the log ends before it.
#[test]
fn a_record_may_be_stored_in_part() {
    for behind in [0, 1] {
        every_end(
            &["-m", "reflink=1,rmapbt=1"],
            "reflink",
            Duration::from_secs(1),
            Stored { sectors: 1, behind },
        );
    }
}

#[test]
#[ignore = "the same for longer, and of other layouts: make running"]
fn any_record_of_long_logs_may_be_the_last() {
    let long = LONG;
    let pending = every_end(&["-m", "reflink=1"], "reflink", long, NOTHING)
        + every_end(&["-m", "reflink=1,rmapbt=1"], "reflink", long, NOTHING)
        + every_end(&["-m", "rmapbt=1,reflink=0"], "", long, NOTHING)
        + every_end(&["-m", "reflink=0", "-b", "size=1024"], "", long, NOTHING)
        + every_end(&["-m", "reflink=1,rmapbt=1"], "reflink", long, Stored { sectors: 0, behind: 1 })
        + every_end(&["-m", "reflink=1"], "reflink", long, Stored { sectors: 1, behind: 2 });
    assert!(pending > 0, "no end has work left to be done");
}
