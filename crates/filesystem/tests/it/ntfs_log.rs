//! NTFS volumes whose log is open: what records of the log name counts as used, and a log that is not understood makes the
//! volume whole. No driver here writes that log, so it is written by this test; logs that Windows wrote are read as well where they are.

use std::cell::RefCell;
use std::sync::Arc;

use block::Error;
use extent::{ExtentSet, Offset, Span, Volume, VolumeSpan};
use filesystem::ntfs::Corrupt;
use filesystem::{Check, FileId, FileSystem, Source, State, StreamName, Use};

use crate::ntfs_volumes::{AsVolume, attribute_at, make, open_bytes, record_at, text, u16_at, u32_at};
use crate::support::spans;
use testkit::ntfs_log::{Entry, Log, place, place_of, put_page};
use testkit::{check_hostile, noise, run, scratch};

const CLUSTER: u64 = 4096;

/// Version 1.1, and 2.0 as of a running Windows 8 or later.
const VERSIONS: [(u16, u16); 2] = [(1, 1), (2, 0)];

/// A volume without a log yet, and what is free on it.
struct Base {
    bytes: Vec<u8>,
    free: ExtentSet<Volume>,
    /// The first of many free clusters.
    first: u64,
    bitmap_lcn: u64,
    mft_lcn: u64,
}

impl Base {
    fn new() -> Self {
        Self::of(make(8, &["-c", "4096"]).bytes())
    }

    fn of(bytes: Vec<u8>) -> Self {
        let free = free_of(&*open_bytes(bytes.clone()), bytes.len());
        let largest = free.iter().max_by_key(Span::len_bytes).unwrap();
        let first = largest.start().get().next_multiple_of(8 * CLUSTER) / CLUSTER;
        let (bitmap_lcn, mft_lcn) = (first_lcn(&bytes, 6), u64::from(u32_at(&bytes, 0x30)));
        Self { bytes, free, first, bitmap_lcn, mft_lcn }
    }

    /// A record that sets so many bits from the one of the cluster `first + at`.
    fn set_bits(&self, at: u64, count: u32) -> Entry {
        let range = [u32::try_from(self.first + at).unwrap().to_le_bytes(), count.to_le_bytes()].concat();
        Entry { lcns: vec![self.bitmap_lcn], ..Entry::new(0x15, &range, 0x16, &range) }
    }

    /// Without these clusters, counted from `first`.
    fn free_without(&self, named: &[(u64, u64)]) -> ExtentSet<Volume> {
        let spans = named
            .iter()
            .map(|(at, count)| Span::new(Offset::new((self.first + at) * CLUSTER), count * CLUSTER));
        self.free.subtract(&spans.collect())
    }

    fn with(&self, log: &Log) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        log.write(&mut bytes);
        bytes
    }

    fn log(&self, version: (u16, u16)) -> Log {
        Log::new(version, place(&self.bytes).1)
    }
}

fn first_lcn(bytes: &[u8], record: u64) -> u64 {
    place_of(bytes, usize::try_from(record).unwrap()).0 as u64 / CLUSTER
}

fn free_of(filesystem: &dyn FileSystem, len: usize) -> ExtentSet<Volume> {
    spans(filesystem, Check::Full, len as u64, Use::Free)
}

/// The volume with its log joined in.
fn joined(bytes: Vec<u8>) -> Box<dyn FileSystem> {
    let filesystem = open_bytes(bytes);
    assert!(matches!(filesystem.facts().state, State::Dirty(_)), "{:?}", filesystem.facts().state);
    filesystem.used_map(Check::Full).map(drop).expect_err("whole, unless it is asked for");
    filesystem.log_joined().unwrap().expect("a log that is open")
}

fn check_free(bytes: &[u8], expected: &ExtentSet<Volume>, what: &str) {
    let joined = joined(bytes.to_vec());
    let facts = joined.facts();
    assert_eq!(facts.state.word(), "needs-recovery", "{what}: {:?}", facts.state);
    let free = free_of(&*joined, bytes.len());
    assert!(free == *expected, "{what}: {:?}", free.iter().chain(expected.iter()).collect::<Vec<_>>());
    assert_eq!(facts.free_bytes, Some(free.total_bytes()), "{what}");
}

/// An attribute in clusters.
fn attribute(lcn: u64, count: u8) -> Vec<u8> {
    let mut bytes = vec![0; 72];
    bytes[..4].copy_from_slice(&0x80u32.to_le_bytes());
    bytes[4] = 72;
    bytes[8] = 1;
    bytes[24] = count - 1;
    bytes[32] = 64;
    bytes[64] = 0x21;
    bytes[65] = count;
    bytes[66..68].copy_from_slice(&u16::try_from(lcn).unwrap().to_le_bytes());
    bytes
}

fn file_record(lcn: u64, count: u8) -> Vec<u8> {
    let mut bytes = vec![0; 0x38];
    bytes[..8].copy_from_slice(b"FILE\x30\0\x03\0");
    bytes[20] = 0x38;
    bytes[22] = 1;
    bytes[24..26].copy_from_slice(&(0x38u16 + 80).to_le_bytes());
    bytes[29] = 4;
    bytes.extend(attribute(lcn, count));
    bytes.extend([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    bytes
}

fn table(entry_bytes: usize, entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![0; 24];
    bytes[..2].copy_from_slice(&u16::try_from(entry_bytes).unwrap().to_le_bytes());
    bytes[2] = u8::try_from(entries.len()).unwrap();
    for entry in entries {
        bytes.extend([0xff; 4]);
        bytes.extend(entry);
    }
    bytes
}

/// One record of each kind that names clusters, and what each names, from the first free cluster on.
fn naming(base: &Base) -> Vec<(Entry, (u64, u64))> {
    let of_record = |record: u64, entry: Entry| Entry {
        lcns: vec![base.mft_lcn + record / 4],
        vcn: record / 4,
        block_offset: u16::try_from(record % 4 * 2).unwrap(),
        ..entry
    };
    let list_at = attribute_at(&base.bytes, 2, 0x80);
    let mapping = Entry {
        record_offset: u16::try_from(list_at - record_at(&base.bytes, 2)).unwrap(),
        attribute_offset: u16::try_from(u16_at(&base.bytes, list_at + 0x20)).unwrap(),
        ..Entry::new(
            9,
            &[&[0x21, 3][..], &u16::try_from(base.first + 70).unwrap().to_le_bytes(), &[0; 4]].concat(),
            9,
            &[0; 8],
        )
    };
    let cleared =
        Entry { redo: base.set_bits(10, 2).redo, undo: base.set_bits(10, 2).undo, ..base.set_bits(10, 2) };
    let range = [(base.first + 50).to_le_bytes(), 2u64.to_le_bytes()].concat();
    let page = |at: u64, head: usize| {
        let mut entry = vec![0; head - 4];
        entry[8] = 1;
        entry.extend((base.first + at).to_le_bytes());
        table(head + 8, &[entry])
    };
    let written = Entry {
        lcns: vec![base.bitmap_lcn],
        record_offset: u16::try_from((base.first + 80) / 8).unwrap(),
        ..Entry::new(8, &[0xff], 8, &[0])
    };
    vec![
        (base.set_bits(0, 4), (0, 4)),
        (
            Entry { redo: (0x16, cleared.redo.1), undo: (0x15, cleared.undo.1), ..base.set_bits(10, 2) },
            (10, 2),
        ),
        (of_record(24, Entry::new(5, &attribute(base.first + 20, 3), 6, &[])), (20, 3)),
        (of_record(25, Entry::new(6, &[], 5, &attribute(base.first + 30, 1))), (30, 1)),
        (of_record(26, Entry::new(2, &file_record(base.first + 40, 2), 3, &[])), (40, 2)),
        (Entry::new(0x0a, &range, 0, &[]), (50, 2)),
        (Entry::new(0x1f, &page(60, 32), 0, &[]), (60, 1)),
        (Entry::new(0x1f, &page(62, 36), 0, &[]), (62, 1)),
        (of_record(2, mapping), (70, 3)),
        (written, (80, 8)),
        // The target is named, too.
        (Entry { lcns: vec![base.first + 100], ..Entry::new(8, &[1; 8], 8, &[2; 8]) }, (100, 1)),
    ]
}

/// Records that name nothing, of all other kinds.
fn silent(base: &Base) -> Vec<Entry> {
    let opened = |kind: u8| {
        let mut entry = vec![0; 36];
        entry[4] = kind;
        entry[12] = 9;
        entry
    };
    let entry = |len: u8| [&[0; 8][..], &[len, 0, 16, 0], &vec![0; usize::from(len) - 12]].concat();
    let names = [&[24, 0, 4, 0][..], b"$\0I\0", &[0, 0], &[0; 4]].concat();
    let other_bitmap = Entry { lcns: vec![base.mft_lcn], ..Entry::new(0x15, &[0xff; 8], 0x16, &[0xff; 8]) };
    vec![
        Entry { target: 24, ..Entry::new(0x1c, &[&[0xff; 4][..], &opened(0x80)].concat(), 0, b"$\0S\0") },
        Entry::new(0x1d, &table(40, &[opened(0x80), opened(0xa0)]), 0, &[]),
        Entry::new(0x1d, &table(44, &[vec![0; 40]]), 0, &[]),
        Entry::new(0x1e, &names, 0, &[]),
        Entry::new(0x20, &table(40, &[vec![0; 36]]), 0, &[]),
        Entry::new(7, &[1; 20], 7, &[2; 3]),
        Entry::new(0x0b, &[0; 24], 0x0b, &[0; 32]),
        Entry::new(0x0c, &entry(0x28), 0x0d, &[]),
        Entry::new(0x0f, &[], 0x0e, &entry(0x30)),
        Entry::new(0x10, &[0; 40], 0x10, &[]),
        Entry::new(0x11, &[0; 8], 0x12, &[0; 8]),
        Entry::new(0x13, &[0; 56], 0x14, &[0; 56]),
        Entry::new(0x21, &[0; 5], 0x22, &[0; 5]),
        Entry::new(0x23, &[0; 5], 0x24, &[0; 5]),
        Entry { redo: (0x25, Vec::new()), ..Entry::new(0, &[], 0, &[]) },
        Entry::new(0x18, &[], 1, &[]),
        Entry::new(0x19, &[], 0, &[]),
        Entry::new(0x1a, &[], 0, &[]),
        Entry::new(0x1b, &[], 1, &[]),
        Entry::new(4, &file_record(base.first, 1)[0x38 + 72..], 4, &[0xff; 4]),
        Entry { lcns: vec![base.mft_lcn], ..other_bitmap },
    ]
}

#[test]
fn what_records_of_the_log_name_counts_as_used() {
    let base = Base::new();
    for version in VERSIONS {
        // Each alone, so that none is covered by another; then all together.
        let all = naming(&base);
        for (index, (entry, named)) in all.iter().enumerate() {
            let mut log = base.log(version);
            log.entry(entry);
            log.restart_record();
            check_free(
                &base.with(&log),
                &base.free_without(&[*named]),
                &format!("{version:?}, entry {index}"),
            );
        }
        let mut log = base.log(version);
        log.entries(&silent(&base));
        // A value that grew by zeros, which are not told.
        let mut zeros = Entry::new(7, &[], 7, &[]).bytes();
        zeros[6] = 76;
        log.record_with(1, 6, &zeros);
        log.restart_record();
        check_free(&base.with(&log), &base.free, "nothing is named");
        log.entries(all.iter().map(|(entry, _)| entry));
        log.leave_page();
        log.restart_record();
        let named: Vec<_> = all.iter().map(|(_, named)| *named).collect();
        check_free(&base.with(&log), &base.free_without(&named), "all");
    }
}

#[test]
fn records_go_on_in_the_next_page_and_where_the_log_begins_anew() {
    let base = Base::new();
    for version in VERSIONS {
        for len in (3600..4400).step_by(8) {
            let mut log = base.log(version).at_the_end();
            let mut named = Vec::new();
            for at in 0..4 {
                log.entry(&Entry::new(7, &vec![5; len], 7, &[]));
                log.entry(&base.set_bits(at * 3, 1));
                named.push((at * 3, 1));
            }
            log.restart_record();
            // Every length of one version; the other one differs in where pages lie alone.
            if version == VERSIONS[0] || len % 64 == 0 {
                check_free(&base.with(&log), &base.free_without(&named), &format!("{version:?}, {len}"));
            }
        }
    }
}

/// A page that is not full lies elsewhere until it is: where it belongs an older state of it is left, or nothing.
#[test]
fn copies_of_pages_are_read() {
    let base = Base::new();
    for version in VERSIONS {
        for is_anything_left in [true, false] {
            let mut log = base.log(version);
            log.entry(&base.set_bits(0, 1));
            log.restart_record();
            let older = log.clone();
            log.entry(&base.set_bits(5, 1));
            let last = log.restart_record();
            let (home, page) = log.pages.first_key_value().unwrap();
            let (home, mut page) = (*home, page.clone());
            let mut bytes = base.with(&if is_anything_left { older } else { log.clone() });
            if !is_anything_left {
                let (at, _) = place(&bytes);
                bytes[at + home..at + home + 4096].fill(0xff);
            }
            for number in 0..2 {
                put_page(&mut bytes, number * 4096, &log.restart_page(log.lsns[0], last, last));
            }
            let at = if version == (1, 1) { 2 } else { 20 };
            let field = if version == (1, 1) { 8..16 } else { 60..64 };
            let len = field.len();
            page[field].copy_from_slice(&(home as u64).to_le_bytes()[..len]);
            put_page(&mut bytes, at * 4096, &page);
            check_free(
                &bytes,
                &base.free_without(&[(0, 1), (5, 1)]),
                &format!("{version:?}, {is_anything_left}"),
            );
        }
    }
}

fn cause(filesystem: &dyn FileSystem) -> (String, Option<Corrupt>) {
    let error: Error = filesystem.used_map(Check::Full).map(drop).expect_err("whole");
    (error.to_string(), error.cause::<Corrupt>().cloned())
}

#[test]
fn each_doubt_makes_the_volume_whole() {
    let base = Base::new();
    let good = || {
        let mut log = base.log((1, 1));
        log.restart_record();
        for at in 0..60 {
            log.entry(&base.set_bits(at * 2, 1));
            log.entry(&Entry::new(7, &[9; 100], 7, &[8; 100]));
        }
        log.restart_record();
        log
    };
    let failures = RefCell::new(Vec::new());
    let check = |bytes: Vec<u8>, expected: &str| {
        let joined = joined(bytes);
        let (said, corrupt) = match joined.used_map(Check::Full) {
            Ok(_) => ("no doubt".to_owned(), None),
            Err(error) => (error.to_string(), error.cause::<Corrupt>().cloned()),
        };
        let is_told = matches!(
            corrupt,
            Some(
                Corrupt::LogPage { .. }
                    | Corrupt::LogRecord { .. }
                    | Corrupt::LogRecordMissing { .. }
                    | Corrupt::LogGap { .. }
                    | Corrupt::RestartPage
            )
        );
        let is_unsupported = matches!(joined.facts().state, State::Unsupported(_));
        if !said.contains(expected) || !(is_told || is_unsupported) {
            failures.borrow_mut().push(format!("{said} ({corrupt:?}), expected {expected}"));
        }
    };
    // Records that say what none does.
    let bad = |entry: Entry| {
        let mut log = good();
        log.entry(&entry);
        log.restart_record();
        base.with(&log)
    };
    let far = [u32::MAX.to_le_bytes(), 1u32.to_le_bytes()].concat();
    let torn = |bytes: &[u8], at: usize, value: u8| {
        let mut bytes = bytes.to_vec();
        bytes[at] = value;
        bytes
    };
    check(bad(Entry::new(0x17, &[], 0, &[])), "operation is 0x17");
    check(bad(Entry::new(0x26, &[], 0, &[])), "operation is 0x26");
    check(bad(Entry::new(0, &[], 0x48, &[])), "operation is 0x48");
    check(bad(Entry { lcns: vec![base.bitmap_lcn], ..Entry::new(0x15, &far, 0, &[]) }), "end of clusters is");
    check(bad(Entry { lcns: vec![], ..base.set_bits(0, 1) }), "clusters that follow is 0");
    check(bad(Entry { vcn: 1, ..base.set_bits(0, 1) }), "target's cluster in $Bitmap is 1, expected 0");
    check(bad(Entry { lcns: vec![u64::MAX], ..base.set_bits(0, 1) }), "end of clusters is");
    check(bad(Entry::new(0x15, &[0; 7], 0, &[])), "length of SetBits's argument is 7, expected 8");
    check(bad(Entry::new(0x0b, &[0; 16], 0, &[])), "expected 24 or 32");
    check(bad(Entry::new(0x0a, &[0; 15], 0, &[])), "length of ranges of clusters is 15");
    check(bad(Entry::new(5, &torn(&attribute(base.first, 1), 67, 0x7f), 6, &[])), "attribute is");
    check(bad(Entry::new(5, &torn(&attribute(base.first, 1), 4, 70), 6, &[])), "attribute is");
    check(bad(Entry::new(5, &[0xff; 4], 6, &[])), "attribute is an end mark");
    check(bad(Entry::new(2, &torn(&file_record(base.first, 1), 0, b'B'), 3, &[])), "magic is BILE");
    check(
        bad(Entry::new(2, &torn(&file_record(base.first, 1), 20, 0xff), 3, &[])),
        "attributes offset is 255",
    );
    check(bad(Entry::new(0x0c, &[0; 16], 0x0d, &[])), "length of an index entry");
    check(bad(Entry::new(0x1c, &[0; 41], 0, &[])), "length of OpenNonresidentAttribute's argument is 41");
    check(bad(Entry::new(0x1d, &table(42, &[vec![0; 38]]), 0, &[])), "size of a table's entry is 42");
    check(
        bad(Entry::new(0x1d, &torn(&table(40, &[vec![0; 36]]), 2, 9), 0, &[])),
        "number of a table's entries is 9",
    );
    check(bad(Entry::new(0x1e, &[24, 0, 9, 0, 1, 1], 0, &[])), "names of attributes");
    let crowded = [&[0; 8][..], &[2, 0, 0, 0], &[0; 16], &[0; 8]].concat();
    check(bad(Entry::new(0x1f, &table(40, &[crowded]), 0, &[])), "clusters of a dirty page is 2");
    let mut log = good();
    let mut long = Entry::new(7, &[], 7, &[]).bytes();
    long[6] = 76;
    log.record(1, &long);
    log.restart_record();
    check(base.with(&log), "argument's end is 116, expected at most 40");
    let mut log = good();
    log.record(1, &[0; 16]);
    log.restart_record();
    check(base.with(&log), "length is 16, expected at least 32");
    let mut log = good();
    log.record(3, &[0; 64]);
    log.restart_record();
    check(base.with(&log), "type is 3, expected 1 or 2");
    let mut log = good();
    log.record(2, &[9; 64]);
    log.restart_record();
    check(base.with(&log), "version is");
    // Pages that do not check out.
    let bytes = base.with(&good());
    let (at, _) = place(&bytes);
    let page = at + 5 * 4096;
    check(torn(&bytes, page + 1023, 1), "page 5: update sequence number of block 1");
    check(torn(&bytes, page, b'B'), "page 5: magic is \"BCRD\", expected RCRD");
    check(torn(&bytes, page + 25, 0x7f), "page 5: next record's offset");
    check(torn(&bytes, page + 6, 8), "page 5: update sequence count is 8");
    // Records that are not where they must be.
    let mut lost = bytes.clone();
    lost[page..page + 4096].fill(0xff);
    check(lost, "$LogFile has a gap at record");
    let mut log = good();
    let (oldest, newest) = (log.lsns[0], *log.lsns.last().unwrap());
    let set = |oldest, restart, current| {
        let mut bytes = base.with(&good());
        (0..2).for_each(|number| {
            put_page(&mut bytes, number * 4096, &log.restart_page(oldest, restart, current));
        });
        bytes
    };
    check(set(oldest + 1, newest, newest), "has no record");
    check(set(oldest, newest + 1, newest), "has no record");
    check(set(oldest, newest, newest + 1), "has no record");
    // Behind the restart record.
    log.pages.iter_mut().next().unwrap().1[64 + 48 + 112] ^= 1;
    check(base.with(&log), "sequence number of the record at");
    // Restart pages.
    let restart =
        |offset: usize, value: u8| torn(&torn(&bytes, at + offset, value), at + 4096 + offset, value);
    check(restart(0, b'C'), "magic");
    check(restart(20, 1), "log page size");
    check(restart(26, 9), "version is 1.9, expected 1.1 or 2.0");
    check(restart(28, 3), "version is 3.1, expected 1.1 or 2.0");
    check(restart(48 + 8, 2), "clients is 2");
    check(restart(48 + 16, 9), "sequence number bits");
    check(restart(48 + 24 + 3, 9), "log's size");
    check(restart(48 + 36, 9), "record header length");
    check(restart(48 + 38, 9), "log page data offset");
    check(restart(48 + 64 + 32, b'X'), "clients is 1");
    check(torn(&bytes, at + 4096 + 48 + 36, 56), "layout is another");
    let mut one = bytes.clone();
    one[at + 4096..at + 8192].fill(0xff);
    check(one, "magic is another, expected RSTR");
    assert!(failures.borrow().is_empty(), "{:#?}", failures.borrow());
    check_free(&bytes, &base.free_without(&(0..60).map(|at| (at * 2, 1)).collect::<Vec<_>>()), "as it was");
}

#[test]
fn clusters_of_files_must_be_set_or_named() {
    let made = make(8, &["-c", "4096"]);
    let mounted = made.mount("");
    let numbers = ["one", "two"].map(|name| {
        std::fs::write(mounted.dir.join(name), noise(1, 20_000)).unwrap();
        std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(mounted.dir.join(name)).unwrap())
    });
    drop(mounted);
    let base = Base::of(made.bytes());
    let [one, two] = numbers.map(|number| first_lcn(&base.bytes, number));
    let with = |change: &dyn Fn(&mut Vec<u8>), named: &[(u64, u32)]| {
        let mut log = base.log((2, 0));
        for (lcn, count) in named {
            let range = [u32::try_from(*lcn).unwrap().to_le_bytes(), count.to_le_bytes()].concat();
            log.entry(&Entry { lcns: vec![base.bitmap_lcn], ..Entry::new(0x15, &range, 0x16, &range) });
        }
        log.restart_record();
        let mut bytes = base.with(&log);
        change(&mut bytes);
        joined(bytes)
    };
    let at_bit = |lcn: u64| (usize::try_from(base.bitmap_lcn * 4096 + lcn / 8).unwrap(), 1u8 << (lcn % 8));
    let cleared = |bytes: &mut Vec<u8>| bytes[at_bit(one + 2).0] &= !at_bit(one + 2).1;
    let (_, corrupt) = cause(&*with(&cleared, &[]));
    assert_eq!(corrupt, Some(Corrupt::ClusterMarkedFree { cluster: one + 2, record: numbers[0] }));
    with(&cleared, &[(one + 2, 1)]).used_map(Check::Full).map(drop).unwrap();
    let (_, corrupt) = cause(&*with(&cleared, &[(one, 2), (one + 3, 1)]));
    assert_eq!(corrupt, Some(Corrupt::ClusterMarkedFree { cluster: one + 2, record: numbers[0] }));
    // A file that was deleted, and another one that has its clusters by now.
    let shared = |bytes: &mut Vec<u8>| {
        let list = |number| {
            let at = attribute_at(&base.bytes, number, 0x80);
            at + u16_at(&base.bytes, at + 0x20)
        };
        let (from, to) = (list(numbers[0]), list(numbers[1]));
        bytes.copy_within(from..from + 8, to);
    };
    let (_, corrupt) = cause(&*with(&shared, &[(two, 5)]));
    assert_eq!(corrupt, Some(Corrupt::ClusterShared { cluster: one, record: numbers[1] }));
    with(&shared, &[(one, 5), (two, 5)]).used_map(Check::Full).map(drop).unwrap();
}

/// What is swap on a volume that was shut down is swap on one in use only if no record changes its file.
#[test]
fn page_files_that_the_log_changes_are_used() {
    let made = make(8, &["-c", "4096"]);
    let mounted = made.mount("");
    std::fs::write(mounted.dir.join("pagefile.sys"), noise(1, 40_000)).unwrap();
    let number =
        std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(mounted.dir.join("pagefile.sys")).unwrap());
    drop(mounted);
    let base = Base::of(made.bytes());
    let lcn = first_lcn(&base.bytes, number);
    let swap = |entry: &Entry| {
        let mut log = base.log((1, 1));
        log.entry(entry);
        log.restart_record();
        spans(&*joined(base.with(&log)), Check::Full, base.bytes.len() as u64, Use::Swap)
    };
    let of_record = |number: u64| Entry {
        lcns: vec![base.mft_lcn],
        vcn: number / 4,
        block_offset: u16::try_from(number % 4 * 2).unwrap(),
        ..Entry::new(7, &[0; 8], 7, &[0; 8])
    };
    let span = |from: u64, count: u64| VolumeSpan::new(Offset::new(from * CLUSTER), count * CLUSTER);
    assert_eq!(swap(&of_record(number + 1)), [span(lcn, 10)].into_iter().collect());
    assert_eq!(swap(&of_record(number)), ExtentSet::new());
    let range = [u32::try_from(lcn + 4).unwrap().to_le_bytes(), 2u32.to_le_bytes()].concat();
    let set = Entry { lcns: vec![base.bitmap_lcn], ..Entry::new(0x15, &range, 0x16, &range) };
    assert_eq!(swap(&set), [span(lcn, 4), span(lcn + 6, 4)].into_iter().collect());
}

#[test]
fn nothing_else_is_done_with_a_volume_in_use() {
    let base = Base::new();
    assert!(open_bytes(base.bytes.clone()).log_joined().unwrap().is_none(), "nothing to join in");
    let mut log = base.log((2, 0));
    log.restart_record();
    let good = base.with(&log);
    let in_use = joined(good.clone());
    assert!(in_use.rearrange().is_err(), "files of a volume in use do not move");
    let root = in_use.open_stream(FileId(4), StreamName::Main);
    assert!(root.err().is_some_and(|error| error.to_string().contains("its log")), "nor are they read");
    assert!(in_use.log_joined().unwrap().is_none());
    // The dirty flag is a reason of its own.
    let flags = attribute_at(&good, 3, 0x70) + 24 + 10;
    let mut dirty = good;
    dirty[flags] |= 1;
    let dirty = open_bytes(dirty);
    assert!(dirty.facts().state.doubt().unwrap().contains("dirty"));
    assert!(dirty.log_joined().unwrap().is_none());
}

#[test]
fn damaged_logs_are_errors_and_nothing_worse() {
    let base = Base::of(make(4, &["-c", "4096"]).bytes());
    let mut log = base.log((1, 1)).at_the_end();
    log.entries(naming(&base).iter().map(|(entry, _)| entry));
    log.entries(&silent(&base));
    log.restart_record();
    let good = base.with(&log);
    let use_joined = |source: &Source| {
        let joined = filesystem::ntfs::open(source)?.map(|filesystem| filesystem.log_joined()).transpose()?;
        if let Some(joined) = joined.flatten() {
            joined.used_map(Check::Full)?.uses(VolumeSpan::from_zero(source.len_bytes()))?;
        }
        Ok(())
    };
    // Everything in the restart pages, and in the pages with records, behind their update sequences.
    let (at, _) = place(&good);
    let homes: Vec<usize> = [0].into_iter().chain(log.pages.keys().copied()).collect();
    for home in homes {
        let span = at + home..at + home + 4096;
        let rotated = [&good[span.clone()], &good[..]].concat();
        check_hostile(&rotated[..4096], 1200, |page| {
            let mut bytes = good.clone();
            let mut changed = vec![0; usize::try_from(page.len_bytes()).unwrap()];
            page.read_at(extent::HostOffset::ZERO, &mut changed)?;
            bytes[span.start..span.start + changed.len()].copy_from_slice(&changed);
            use_joined(&(Arc::new(AsVolume(Arc::new(block::Memory::new(bytes)))) as Source))
        });
    }
}

/// Logs of volumes that Windows shut down hold records of when it used them: with the mark of that removed, they are read in full.
#[test]
fn logs_that_windows_wrote_are_understood() {
    let dir = scratch();
    let mut volumes = Vec::new();
    for (name, at) in [("hv-dynamic.vhd", 65536), ("hv-fixed.vhdx", 65536), ("dfvfs-vsstest.qcow2", 0)] {
        let Some(image) = testkit::real_image(name, dir.path()) else { continue };
        let raw = dir.path().join("raw");
        run("qemu-img", &["convert", "-O", "raw", text(&image), text(&raw)]);
        volumes.push((name, std::fs::read(&raw).unwrap().split_off(at)));
    }
    for (name, mut bytes) in volumes {
        let all = VolumeSpan::from_zero(bytes.len() as u64);
        let closed = open_bytes(bytes.clone());
        // With shadow copies, what these alone need is used, too.
        let before = closed.used_map_without_shadow_copies(Check::Quick).unwrap().uses(all).unwrap();
        let before = before.iter().filter(|part| part.state == Use::Free).map(|part| part.span);
        let free: ExtentSet<Volume> = before.collect();
        let (at, _) = place(&bytes);
        for page in [at, at + 4096] {
            let area = page + u16_at(&bytes, page + 24);
            bytes[area + 14] &= !2;
        }
        let joined = joined(bytes.clone());
        let facts = joined.facts();
        assert_eq!(facts.state.word(), "needs-recovery", "{name}: {:?}", facts.state);
        if !joined.shadow_copies().is_empty() {
            assert!(joined.used_map(Check::Full).is_err(), "{name}: shadow copies are written past the log");
        }
        let map = joined.used_map_without_shadow_copies(Check::Full).unwrap();
        let uses = map.uses(all).unwrap();
        let is_free =
            |span: &VolumeSpan| uses.iter().any(|part| part.span == *span && part.state == Use::Free);
        let left = uses.iter().filter(|part| part.state == Use::Free).map(|part| part.span);
        let left: ExtentSet<Volume> = left.collect();
        assert!(left.subtract(&free).is_empty(), "{name}: what the bitmap calls used stays so");
        println!("{name}: {:?}, {} of {} free", facts.details, left.total_bytes(), free.total_bytes());
        assert!(left.iter().all(|span| is_free(&span)));
    }
}
