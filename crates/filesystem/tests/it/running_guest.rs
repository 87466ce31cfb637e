//! Disks as running guests leave them: a Debian kernel works on a file system, by several programs at once; its disk is taken all at once at random moments, as a
//! snapshot of the image takes it, and when the machine is killed. The kernel recovers a copy of what is used to the same as the whole, and shows
//! the same of both without recovery. XFS of version 4, which this machine's kernel need not mount, the guest's kernel judges, too.
//!
//! How many moments of each: `LEANDISK_MOMENTS`. The seed is printed; `LEANDISK_SEED` takes another one. With `LEANDISK_KEEP=FOLDER` the first disk of each kind of XFS of
//! version 4 is kept there without its files' contents, and a list of its files as Debian's kernel shows them: so `tests/xfs_4` was made.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::running::{Host, copy_used, number, open, recover_both, show_both};
use crate::support::{spans, text};
use extent::VolumeSpan;
use filesystem::{Catalog, Check, FileKind, State, Use};
use testkit::run;
use testkit::working_guest::{Work, WorkingGuest, shown_by_debian};

const VOLUME_BYTES: u64 = 160 << 20;
/// How often the disk is taken while one guest works, the last time when it is killed.
const MOMENTS_PER_GUEST: u64 = 10;
/// Volumes that a guest is given to judge at once.
const JUDGED_AT_ONCE: usize = 20;

/// Who says what two volumes hold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Judge {
    ThisKernel,
    Debian,
}

/// A kind of guest.
struct Kind {
    kind: &'static str,
    make: &'static [&'static str],
    can_share: bool,
    options: &'static str,
    without_recovery: &'static str,
    judge: Judge,
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Takes the disk of guests at `count` moments.
fn take(host: &Host, kind: &Kind, seed: u64, count: u64) -> Vec<PathBuf> {
    let (mut taken, mut state) = (Vec::new(), seed);
    while (taken.len() as u64) < count {
        let disk = host.path("disk");
        let _ = fs::remove_file(&disk);
        File::create(&disk).unwrap().set_len(VOLUME_BYTES).unwrap();
        run(kind.make[0], &[&kind.make[1..], &[text(&disk)]].concat());
        let mut guest = WorkingGuest::start(&Work {
            disk: &disk,
            volume_bytes: (0, VOLUME_BYTES),
            kind: kind.kind,
            options: kind.options,
            seed: random(&mut state),
            can_share: kind.can_share,
        });
        let moments = MOMENTS_PER_GUEST.min(count - taken.len() as u64);
        for moment in 1..=moments {
            std::thread::sleep(Duration::from_millis(300 + random(&mut state) % 2500));
            guest.check_alive();
            let path = host.path(&format!("taken-{}", taken.len()));
            if moment == moments {
                guest.kill();
                fs::rename(&disk, &path).unwrap();
                taken.push(path);
                break;
            }
            run("cp", &["--reflink=always", text(&disk), text(&path)]);
            taken.push(path);
        }
    }
    taken
}

/// Puts the whole and the copy of each that was taken one behind the other, and answers what Debian's kernel shows of them.
fn shown(host: &Host, kind: &Kind, options: &str, taken: &[PathBuf]) -> Vec<Vec<String>> {
    let (volumes, used) = (host.path("volumes"), host.path("used"));
    let mut found = Vec::new();
    for taken in taken.chunks(JUDGED_AT_ONCE / 2) {
        let _ = fs::remove_file(&volumes);
        let count = 2 * taken.len();
        File::create(&volumes).unwrap().set_len(count as u64 * VOLUME_BYTES).unwrap();
        let put = |volume: &Path, index: usize| {
            let place = format!("reflink {} 0 {} {VOLUME_BYTES}", text(volume), index as u64 * VOLUME_BYTES);
            run("xfs_io", &["-c", &place, text(&volumes)]);
        };
        for (index, taken) in taken.iter().enumerate() {
            copy_used(taken, &used);
            put(taken, 2 * index);
            put(&used, 2 * index + 1);
        }
        found.extend(shown_by_debian(&volumes, kind.kind, options, (count, VOLUME_BYTES)));
    }
    found
}

/// Keeps the metadata of a volume, and of its files the numbers, sizes and paths.
fn keep(taken: &Path, shown: &[String], folder: &Path, name: &str) {
    let name = name.replace(" -", "-").replace([' ', '=', ','], "_");
    let name = name.trim_start_matches('-');
    let filesystem = open(taken);
    let mut bytes = fs::read(taken).unwrap();
    let mut clear = |span: VolumeSpan| {
        let index = |at: u64| usize::try_from(at).unwrap();
        bytes[index(span.start().get())..index(span.end().get())].fill(0);
    };
    spans(&*filesystem, Check::Full, VOLUME_BYTES, Use::Free).iter().for_each(&mut clear);
    let catalog = Catalog::read(&*filesystem).unwrap();
    for stream in catalog.streams().filter(|stream| stream.stream.kind == FileKind::Regular) {
        stream.extents().for_each(|extent| clear(extent.span));
    }
    let (raw, list) = (taken.with_extension("kept"), folder.join(format!("{name}.list")));
    fs::write(&raw, bytes).unwrap();
    run("zstd", &["-q", "-19", "-f", text(&raw), "-o", text(&folder.join(format!("{name}.zst")))]);
    let files = shown.iter().filter_map(|line| {
        let words: Vec<_> = line.split(' ').collect();
        words[2].starts_with("100").then(|| format!("{} {} {}\n", words[1], words[5], words[0]))
    });
    fs::write(list, files.collect::<String>()).unwrap();
}

fn check(kind: &Kind) {
    let (count, seed) = (number("LEANDISK_MOMENTS", 5), number("LEANDISK_SEED", 20_261_126));
    let began = Instant::now();
    println!("{:?}: seed {seed}", kind.make);
    let host = Host::new();
    let taken = take(&host, kind, seed, count);
    let mut pending = 0;
    for (moment, path) in taken.iter().enumerate() {
        let what = format!("{:?}, seed {seed}, moment {moment}", kind.make);
        let state = open(path).facts().state.clone();
        assert_eq!(state.doubt(), None, "{what}");
        pending += u64::from(matches!(state, State::JournalPending(_)));
        if kind.judge == Judge::ThisKernel {
            let (whole, used) = (host.path("whole"), host.path("used"));
            let copies = || {
                copy_used(path, &used);
                run("cp", &["--reflink=always", text(path), text(&whole)]);
            };
            copies();
            recover_both(kind.kind, &whole, &used, &what);
            copies();
            show_both(kind.kind, kind.without_recovery, &whole, &used, &what);
        }
    }
    if kind.judge == Judge::Debian {
        for options in [kind.options, kind.without_recovery] {
            for (moment, pair) in shown(&host, kind, options, &taken).chunks(2).enumerate() {
                let what = format!("{:?}, seed {seed}, moment {moment}, mounted with {options}", kind.make);
                if let (Ok(folder), 0, true) =
                    (std::env::var("LEANDISK_KEEP"), moment, options == kind.options)
                {
                    keep(&taken[moment], &pair[0], Path::new(&folder), &kind.make[6..].join(" "));
                }
                assert!(pair[0].len() > 50, "{what}: {:?}", pair[0]);
                for (whole, used) in pair[0].iter().zip(&pair[1]) {
                    assert_eq!(whole, used, "{what}");
                }
                assert_eq!(pair[0].len(), pair[1].len(), "{what}");
            }
        }
    }
    let seconds = began.elapsed().as_secs();
    println!("{:?}: {count} moments, {pending} with something to recover, {seconds} s", kind.make);
    assert!(pending > 0);
}

const XFS_4: Kind = Kind {
    kind: "xfs",
    make: &[],
    can_share: false,
    options: "nouuid",
    without_recovery: "ro,norecovery,nouuid",
    judge: Judge::Debian,
};

/// `mkfs.xfs` for version 4 of the format.
macro_rules! of_version_4 {
    ($($option:literal),*) => { &["mkfs.xfs", "--unsupported", "-q", "-f", "-m", "crc=0", $($option),*] };
}

#[test]
#[ignore = "boots a Debian kernel, which takes minutes: make running-guests"]
fn xfs_of_version_4() {
    check(&Kind { make: of_version_4!(), ..XFS_4 });
}

#[test]
#[ignore = "boots a Debian kernel, which takes minutes: make running-guests"]
fn xfs_of_version_4_as_it_was_first() {
    check(&Kind {
        make: of_version_4!("-l", "version=1,lazy-count=0", "-i", "attr=1,projid32bit=0", "-b", "size=1024"),
        ..XFS_4
    });
}

#[test]
#[ignore = "boots a Debian kernel, which takes minutes: make running-guests"]
fn xfs_of_version_4_in_small_blocks() {
    check(&Kind { make: of_version_4!("-b", "size=512", "-n", "size=4096,ftype=1"), ..XFS_4 });
}

#[test]
#[ignore = "boots a Debian kernel, which takes minutes: make running-guests"]
fn xfs() {
    check(&Kind {
        make: &["mkfs.xfs", "--unsupported", "-q", "-f", "-m", "rmapbt=1"],
        can_share: true,
        judge: Judge::ThisKernel,
        ..XFS_4
    });
}

#[test]
#[ignore = "boots a Debian kernel, which takes minutes: make running-guests"]
fn ext4() {
    check(&Kind {
        kind: "ext4",
        make: &["mkfs.ext4", "-q", "-F"],
        options: "nodiscard",
        without_recovery: "ro,noload",
        judge: Judge::ThisKernel,
        ..XFS_4
    });
}

#[test]
#[ignore = "boots a Debian kernel, which takes minutes: make running-guests"]
fn btrfs() {
    check(&Kind {
        kind: "btrfs",
        make: &["mkfs.btrfs", "-q"],
        can_share: true,
        options: "nodiscard",
        without_recovery: "ro,rescue=nologreplay",
        judge: Judge::ThisKernel,
    });
}
