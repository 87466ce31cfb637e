//! Mirrors of LVM2 as a Debian kernel under QEMU makes them, with the device mapper and real tools: each is taken by what it uses or whole, as
//! its legs are in sync or may not be, and the guest finds in copies what it left.
//!
//! How many moments of a guest at work are looked at: `LEANDISK_MOMENTS`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::lvm_guest::LvmGuest;
use testkit::mounted::{Mounted, Tree};
use testkit::{HostMount, STALE, run};

use crate::common::{arg, document, number};
use crate::lvm::{MIB, volume};

const MAKE_ALL: &str = include_str!("../scripts/mirrors/make-all");
const JUDGE_ALL: &str = include_str!("../scripts/mirrors/judge-all");
const MAKE_PAIR: &str = include_str!("../scripts/mirrors/make-pair");
const WRITE_WITH_ONE_LEG: &str = include_str!("../scripts/mirrors/write-with-one-leg");
const JUDGE_PAIR: &str = include_str!("../scripts/mirrors/judge-pair");
const WORK: &str = include_str!("../scripts/mirrors/work");
const JUDGE_WORK: &str = include_str!("../scripts/mirrors/judge-work");

/// What make-all makes, and why each is copied whole, if so.
const ALL: [(&str, Option<&str>); 18] = [
    ("one/ext", None),
    ("one/xfs", None),
    ("one/grown", None),
    ("one/region", None),
    ("one/three", None),
    ("one/cut", None),
    ("one/logged", None),
    ("one/wider", None),
    ("two/pair", None),
    ("one/cored", Some("its kind is mirror, which is not understood")),
    ("one/widened", Some("its kind is mirror, which is not understood")),
    ("one/rebuilt", Some("leg 1: it is being rebuilt")),
    ("one/converted", Some("leg 2: it is being rebuilt")),
    ("one/slow", Some("the legs were not yet made equal")),
    ("one/unsynced", Some("NOTSYNCED")),
    ("one/behind", Some("a mirror whose parts are not what they should be")),
    ("one/split", Some("a mirror whose parts are not what they should be")),
    ("one/checked", Some("a mirror whose parts are not what they should be")),
];

/// The disks of a guest, in a folder that shares what is copied.
struct Disks {
    host: HostMount,
    paths: Vec<PathBuf>,
    /// Where the parts of each begin.
    parts: Vec<Vec<u64>>,
}

/// A piece of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    disk: usize,
    start: u64,
    len: u64,
}

/// The parts of a logical volume, such as `rimage_0`, in pieces.
type Parts = BTreeMap<String, Vec<Piece>>;

impl Disks {
    /// Each a disk of these MiB that has no table, or as many MiB in each of its parts.
    fn new(sizes: &[&[u64]]) -> Self {
        let host = HostMount::made_with("xfs", 6 << 30, &["-m", "reflink=1"]);
        let (mut paths, mut parts) = (Vec::new(), Vec::new());
        for (index, sizes) in sizes.iter().enumerate() {
            let path = host.path().join(format!("disk {index}.raw"));
            let len_bytes = (sizes.iter().sum::<u64>() + 2) * MIB;
            File::create(&path).unwrap().set_len(len_bytes).unwrap();
            if let [_] = sizes {
                parts.push(vec![0]);
            } else {
                let (mut at, mut table, mut starts) = (MIB, "label: gpt\n".to_owned(), Vec::new());
                for mib in *sizes {
                    table += &format!("start={}, size={}\n", at / 512, mib * MIB / 512);
                    starts.push(at);
                    at += mib * MIB;
                }
                let script = host.path().join("table");
                fs::write(&script, table).unwrap();
                run("sh", &["-c", &format!("sfdisk -q '{}' <'{}'", path.display(), script.display())]);
                parts.push(starts);
            }
            paths.push(path);
        }
        Self { host, paths, parts }
    }

    fn all(&self) -> Vec<&Path> {
        self.paths.iter().map(PathBuf::as_path).collect()
    }

    /// Copies of these disks, all or some, as they are at this moment.
    fn taken(&self, paths: &[&Path], name: &str) -> Vec<PathBuf> {
        let copies = paths.iter().enumerate().map(|(index, path)| {
            let copy = self.host.path().join(format!("{name} {index}.raw"));
            run("cp", &["--reflink=always", arg(path), arg(&copy)]);
            copy
        });
        copies.collect()
    }

    /// Where a guest said that the parts of a logical volume lie.
    fn parts_of(&self, result: &[String], name: &str) -> Parts {
        let prefix = format!("table {}_", name.replace('/', "-"));
        let mut found = Parts::new();
        for line in result.iter().filter_map(|line| line.strip_prefix(&prefix)) {
            let (part, table) = line.split_once(": ").unwrap();
            let fields: Vec<_> = table.split(' ').collect();
            let [_, len, "linear", device, start] = fields[..] else { continue };
            let number: usize = device.strip_prefix("254:").unwrap().parse().unwrap();
            // The first disk is the script's.
            let (disk, partition) = (number / 16 - 1, number % 16);
            let sectors = |text: &str| text.parse::<u64>().unwrap() * 512;
            let start = self.parts[disk][partition.max(1) - 1] + sectors(start);
            found.entry(part.to_owned()).or_default().push(Piece { disk, start, len: sectors(len) });
        }
        assert!(found.len() > 1, "{name}: {result:#?}");
        found
    }
}

fn bytes_of(disks: &[&Path], pieces: &[Piece]) -> Vec<u8> {
    let pieces = pieces.iter().map(|Piece { disk, start, len }| {
        let mut bytes = vec![0; usize::try_from(*len).unwrap()];
        File::open(disks[*disk]).unwrap().read_exact_at(&mut bytes, *start).unwrap();
        bytes
    });
    pieces.collect::<Vec<_>>().concat()
}

fn borrowed(paths: &[PathBuf]) -> Vec<&Path> {
    paths.iter().map(PathBuf::as_path).collect()
}

/// Runs a command of the program on each of these disks, the others being named with it.
fn with_others(
    disks: &[&Path],
    schema: &str,
    command: &str,
    more: impl Fn(usize) -> Vec<String>,
) -> Vec<Value> {
    let each = disks.iter().enumerate().map(|(own, disk)| {
        let others = disks.iter().enumerate().filter(|(other, _)| *other != own);
        let others: Vec<_> = others.flat_map(|(_, other)| ["--with", arg(other)]).collect();
        let more = more(own);
        let more: Vec<_> = more.iter().map(String::as_str).collect();
        document(schema, &[&[command, arg(disk)], &others[..], &more].concat())
    });
    each.collect()
}

fn infos(disks: &[&Path]) -> Vec<Value> {
    with_others(disks, "leandisk.info/1", "info", |_| Vec::new())
}

/// Copies each of these disks of one group, and answers what is said of each and where the copies are.
fn copied(disks: &[&Path]) -> (Vec<Value>, Vec<PathBuf>) {
    let target = |own: usize| PathBuf::from(format!("{}.copied", disks[own].display()));
    let more = |own: usize| ["--force", "-O", "raw", arg(&target(own))].map(str::to_owned).to_vec();
    let documents = with_others(disks, "leandisk.copy/1", "copy", more);
    (documents, (0..disks.len()).map(target).collect())
}

/// Why a logical volume is copied whole; `None` if it is not. All disks must say the same.
fn reason(documents: &[Value], name: &str) -> Option<String> {
    let reasons: Vec<_> = documents
        .iter()
        .map(|document| {
            let found = volume(document, name);
            let reason = found["reason"].as_str().map(str::to_owned);
            assert_eq!(found["mode"], if reason.is_some() { "whole" } else { "used-only" }, "{found}");
            reason
        })
        .collect();
    assert!(reasons.iter().all(|reason| *reason == reasons[0]), "{name}: {reasons:?}");
    reasons[0].clone()
}

fn is_stale(bytes: &[u8]) -> bool {
    bytes.chunks(16).any(|line| line.starts_with(STALE.as_bytes()))
}

fn is_leg(part: &str) -> bool {
    part.contains("image_")
}

/// Fails unless copies have all of a logical volume's parts.
fn check_whole(parts: &Parts, before: &[&Path], after: &[&Path]) {
    for (part, pieces) in parts {
        assert!(bytes_of(before, pieces) == bytes_of(after, pieces), "{part} is not whole");
    }
}

/// Fails unless copies have what says whether the legs are in sync, and of each leg's blocks either the contents or nothing, but nothing stale.
fn check_used(name: &str, parts: &Parts, before: &[&Path], after: &[&Path]) {
    for (part, pieces) in parts {
        let (before, after) = (bytes_of(before, pieces), bytes_of(after, pieces));
        if !is_leg(part) {
            assert!(before == after, "{name}: {part} is not whole");
            continue;
        }
        assert!(is_stale(&before) && !is_stale(&after), "{name}: {part} has stale bytes");
        for (index, (before, after)) in before.chunks(512).zip(after.chunks(512)).enumerate() {
            let is_right = before == after || after.iter().all(|byte| *byte == 0);
            assert!(is_right, "{name}: {part}, sector {index}");
        }
    }
}

fn files(result: &[String], name: &str) -> Vec<String> {
    let prefix = format!("file {name} ");
    let found: Vec<_> = result.iter().filter(|line| line.starts_with(&prefix)).cloned().collect();
    assert!(found.len() > 5, "{name}: {result:#?}");
    found
}

fn mismatches(result: &[String], name: &str) -> u64 {
    let prefix = format!("mismatches {name} ");
    let line = result.iter().find_map(|line| line.strip_prefix(&prefix));
    line.unwrap_or_else(|| panic!("{name}: {result:#?}")).trim().parse().unwrap()
}

#[test]
#[ignore = "boots a Debian kernel, which takes minutes: make running-guests"]
fn mirrors_at_rest_are_taken_by_what_they_use_if_they_are_in_sync() {
    let disks = Disks::new(&[&[1000, 960, 400], &[200], &[200]]);
    let made = LvmGuest::run(MAKE_ALL, &disks.all());
    let (of_one, of_two) = (&disks.all()[..1], &disks.all()[1..]);
    let ((mut documents, mut copies), (documents_two, copies_two)) = (copied(of_one), copied(of_two));
    copies.extend(copies_two);
    for (name, expected) in ALL {
        let parts = disks.parts_of(&made, name);
        let said = reason(if name.starts_with("one") { &documents } else { &documents_two }, name);
        match (expected, said) {
            (None, None) => check_used(name, &parts, &disks.all(), &borrowed(&copies)),
            (Some(expected), Some(said)) if said.contains(expected) => {
                check_whole(&parts, &disks.all(), &borrowed(&copies));
            }
            (_, said) => panic!("{name}: {said:?} instead of {expected:?}"),
        }
    }
    documents.extend(documents_two);
    let sum = |names: &[&str]| {
        let numbers = documents.iter().flat_map(|document| names.iter().map(|name| number(document, name)));
        numbers.sum::<u64>() / MIB
    };
    // What a file system that shares blocks shares is not read.
    let (taken, all) = (sum(&["/read_bytes", "/cloned_bytes"]), sum(&["/source/virtual_bytes"]));
    println!("mirrors at rest: {taken} of {all} MiB are taken");
    let judged = LvmGuest::run(JUDGE_ALL, &borrowed(&copies));
    for (name, expected) in ALL {
        assert_eq!(files(&judged, name), files(&made, name), "{name}");
        if expected.is_none() && !["one/logged", "one/wider"].contains(&name) {
            assert_eq!(mismatches(&judged, name), 0, "{name}");
        }
    }
    // One disk before, and the other after it was used again.
    for mixed in [[of_two[0], &copies[2]], [&copies[1], of_two[1]]] {
        let said = reason(&infos(&mixed), "two/pair").expect("disks of two times");
        assert!(said.contains("is not of one time"), "{said}");
    }
}

#[test]
#[ignore = "boots a Debian kernel, which takes minutes: make running-guests"]
fn a_mirror_that_was_written_with_one_leg_is_whole_until_it_is_in_sync_again() {
    let disks = Disks::new(&[&[140], &[140]]);
    let made = LvmGuest::run(MAKE_PAIR, &disks.all());
    let parts = disks.parts_of(&made, "two/pair");
    assert_eq!(reason(&infos(&disks.all()), "two/pair"), None);
    for missing in [0, 1] {
        let taken = disks.taken(&disks.all(), &format!("without {missing}"));
        let written = LvmGuest::run(WRITE_WITH_ONE_LEG, &[&taken[1 - missing]]);
        let (documents, copies) = copied(&borrowed(&taken));
        let said = reason(&documents, "two/pair").expect("one leg is behind");
        assert!(said.contains("a leg failed"), "{said}");
        check_whole(&parts, &borrowed(&taken), &borrowed(&copies));
        // The kernel makes the leg that is behind equal to the other.
        let judged = LvmGuest::run(JUDGE_PAIR, &borrowed(&copies));
        assert_eq!(files(&judged, "two/pair"), files(&written, "two/pair"));
        assert_eq!(mismatches(&judged, "two/pair"), 0);
        let (documents, again) = copied(&borrowed(&copies));
        assert_eq!(reason(&documents, "two/pair"), None);
        check_used("two/pair", &parts, &borrowed(&copies), &borrowed(&again));
        let legs: Vec<_> = parts.iter().filter(|(part, _)| is_leg(part)).collect();
        let legs = legs.iter().map(|(_, pieces)| bytes_of(&borrowed(&again), pieces)).collect::<Vec<_>>();
        assert!(legs[0] == legs[1], "the legs of the copies differ");
    }
}

/// Mirrors of a guest at work, and the file system on each.
const AT_WORK: [(&str, &str); 2] = [("two/pair", "ext4"), ("two/logged", "xfs")];

/// A guest at work, and what is found at moments of it.
struct Watched {
    disks: Disks,
    parts: BTreeMap<&'static str, Parts>,
}

impl Watched {
    /// Every file of a leg, after the kernel of this machine recovered the file system.
    fn tree(&self, disks: &[PathBuf], kind: &str, leg: &[Piece]) -> Tree {
        let [Piece { disk, start, len }] = *leg else { panic!("{leg:?} in one piece") };
        let probe = self.disks.host.path().join("probe.raw");
        run("cp", &["--reflink=always", arg(&disks[disk]), arg(&probe)]);
        Mounted::kernel(kind, &probe, &format!("offset={start},sizelimit={len},noatime")).tree()
    }

    /// Copies the disks of a moment, and fails unless nothing is lost: of what is taken by what it uses each leg must be recovered to the same
    /// as in the disks themselves. Answers why each is whole, and the copies.
    fn check(&self, taken: &[PathBuf], what: &str) -> (Vec<Option<String>>, Vec<PathBuf>) {
        let (documents, copies) = copied(&borrowed(taken));
        let reasons = AT_WORK.map(|(name, kind)| {
            let parts = &self.parts[name];
            let said = reason(&documents, name);
            println!("{what}: {name}: {}", said.as_deref().unwrap_or("used-only"));
            if said.is_some() {
                check_whole(parts, &borrowed(taken), &borrowed(&copies));
                return said;
            }
            check_used(name, parts, &borrowed(taken), &borrowed(&copies));
            for (leg, pieces) in parts.iter().filter(|(part, _)| is_leg(part)) {
                let differences =
                    self.tree(taken, kind, pieces).differences(&self.tree(&copies, kind, pieces));
                // Recovery sets times to its own.
                let is_time =
                    |line: &String| line.contains(": changed at: ") || line.contains(": written at: ");
                let differences: Vec<_> = differences.into_iter().filter(|line| !is_time(line)).collect();
                assert!(differences.is_empty(), "{what}: {name}, {leg}: {differences:?}");
            }
            None
        });
        for (name, expected) in
            [("two/slow", "were not yet made equal"), ("two/rebuilt", "it is being rebuilt")]
        {
            let said = reason(&documents, name).unwrap_or_else(|| panic!("{what}: {name} is used-only"));
            assert!(said.contains(expected), "{what}: {name}: {said}");
            check_whole(&self.parts[name], &borrowed(taken), &borrowed(&copies));
        }
        (reasons.to_vec(), copies)
    }

    /// The disks once nothing is written any more, by what the guest wrote beside the legs.
    fn taken_idle(&self, guest: &mut LvmGuest, name: &str) -> Vec<PathBuf> {
        let started = Instant::now();
        loop {
            let taken = guest.held(|| self.disks.taken(&self.disks.all(), name));
            let documents = infos(&borrowed(&taken));
            let reasons = AT_WORK.map(|(name, _)| reason(&documents, name));
            if reasons.iter().all(Option::is_none) {
                return taken;
            }
            assert!(started.elapsed() < Duration::from_secs(240), "{name}: {reasons:?}");
            std::thread::sleep(Duration::from_secs(2));
        }
    }
}

#[test]
#[ignore = "boots a Debian kernel, which takes minutes: make running-guests"]
fn mirrors_of_a_guest_at_work_lose_nothing() {
    let count = std::env::var("LEANDISK_MOMENTS").map_or(4, |text| text.parse::<u64>().unwrap());
    let disks = Disks::new(&[&[300], &[300]]);
    let mut guest = LvmGuest::start(WORK, &disks.all());
    guest.wait_for("idle");
    let said = guest.result();
    let names = ["two/pair", "two/logged", "two/slow", "two/rebuilt"];
    let parts = names.map(|name| (name, disks.parts_of(&said, name))).into_iter().collect();
    let watched = Watched { disks, parts };
    let first = watched.taken_idle(&mut guest, "first");
    guest.go_on("idle");
    guest.wait_for("idle again");
    let second = watched.taken_idle(&mut guest, "second");
    guest.go_on("idle again");
    guest.wait_for("working");
    let mut moments: Vec<_> = (0..count)
        .map(|moment| {
            std::thread::sleep(Duration::from_millis(700 + moment * 7919 % 4000));
            let taken = guest.held(|| watched.disks.taken(&watched.disks.all(), "working"));
            watched.check(&taken, &format!("at work, moment {moment}")).0
        })
        .collect();
    guest.kill();
    let killed = watched.disks.taken(&watched.disks.all(), "killed");
    moments.push(watched.check(&killed, "killed").0);
    let told: Vec<_> = moments.into_iter().flatten().flatten().collect();
    assert!(told.iter().any(|reason| reason.contains("writes were under way")), "{told:?}");
    // Idle mirrors are taken by what they use though they are mounted; the guest finds in copies what it finds in all.
    for (taken, what) in [(&first, "idle"), (&second, "idle again")] {
        let (reasons, copies) = watched.check(taken, what);
        assert_eq!(reasons, [None, None], "{what}");
        let whole = watched.disks.taken(&borrowed(taken), "whole");
        let [of_copies, of_whole] =
            [&copies, &whole].map(|disks| LvmGuest::run(JUDGE_WORK, &borrowed(disks)));
        for (name, _) in AT_WORK {
            assert_eq!(files(&of_copies, name), files(&of_whole, name), "{what}: {name}");
        }
        let found = [&of_copies, &of_whole].map(|result| mismatches(result, "two/pair"));
        assert!(found[0] <= found[1], "{what}: {found:?}");
    }
    // Of two times, as nothing but their contents tells: the device mapper counts an idle mirror's changes back.
    let [of_first, of_second] = [&first, &second].map(|taken| borrowed(taken));
    for mixed in [[of_first[0], of_second[1]], [of_second[0], of_first[1]]] {
        watched.check(&watched.disks.taken(&mixed, "mixed"), "of two times");
    }
}
