//! NTFS against ntfs-3g and ntfsprogs: volumes that they make are understood, and what Leandisk calls free
//! can be overwritten without their noticing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::ntfs_volumes::{
    AsVolume, Made, Mounted, attribute_at, fragment_mft, make, open, open_bytes, record_at, text, u16_at,
    u32_at,
};
use block::{Error, ErrorKind, Memory, Result};
use extent::{Volume, VolumeOffset, VolumeSpan};
use filesystem::ntfs::Corrupt;
use filesystem::{Check, FileSystem, Source, State, Use};
use testkit::{TimeLimit, check_hostile, noise, run, scratch};

/// Fills a mounted volume with every kind of file that ntfs-3g can make.
fn populate(root: &Path, unit: usize) {
    for index in 0..40 {
        fs::write(
            root.join(format!("small{index}")),
            noise(index, 100 + 20 * usize::try_from(index).unwrap()),
        )
        .unwrap();
        fs::write(root.join(format!("medium{index}")), noise(index, unit * 3 + 7)).unwrap();
    }
    // Every other one goes, so that what comes next is in pieces.
    for index in (0..40).step_by(2) {
        fs::remove_file(root.join(format!("medium{index}"))).unwrap();
    }
    fs::write(root.join("fragmented"), noise(99, unit * 90)).unwrap();
    fs::create_dir_all(root.join("dir/größe/子")).unwrap();
    for index in 0..150 {
        fs::write(root.join(format!("dir/a file with a rather long name {index}")), b"x").unwrap();
    }
    fs::hard_link(root.join("fragmented"), root.join("dir/linked")).unwrap();
    std::os::unix::fs::symlink("fragmented", root.join("symlink")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(&noise(5, 5000), 3 << 20).unwrap();
    sparse.set_len(70 << 20).unwrap();
    fs::write(root.join("small1:stream"), noise(6, unit * 2 + 1)).unwrap();
    fs::write(root.join("empty"), b"").unwrap();
    fs::create_dir(root.join("packed")).unwrap();
    let mut compressible = noise(7, 30_000);
    compressible.extend(vec![b'a'; 300_000]);
    compressible.extend(noise(8, 30_000));
    if unit <= 4096 {
        // FILE_ATTRIBUTE_COMPRESSED on the folder; new files in it are compressed.
        run(
            "setfattr",
            &["-h", "-n", "system.ntfs_attrib_be", "-v", "0x00000810", text(&root.join("packed"))],
        );
    }
    let packed = root.join("packed/file");
    fs::write(&packed, &compressible).unwrap();
    let is_packed = fs::metadata(packed).unwrap().blocks() * 512 < compressible.len() as u64;
    assert_eq!(is_packed, unit <= 4096, "compressed where NTFS can");
    fs::write(root.join("PageFile.sys"), noise(10, unit * 10)).unwrap();
    fs::write(root.join("swapfile.sys"), noise(11, unit * 2)).unwrap();
    let mut hibernation = noise(12, unit.max(4096) * 4);
    hibernation[..4].copy_from_slice(b"wake");
    fs::write(root.join("hiberfil.sys"), hibernation).unwrap();
}

/// The contents of every file and stream but the page files.
fn contents(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![root.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().to_string_lossy().to_lowercase();
            if entry.file_type().unwrap().is_dir() {
                dirs.push(entry.path());
            } else if entry.file_type().unwrap().is_file() && !name.ends_with(".sys") {
                let mut bytes = Vec::new();
                File::open(entry.path()).unwrap().read_to_end(&mut bytes).unwrap();
                found.insert(entry.path(), bytes);
            }
        }
    }
    let stream = root.join("small1:stream");
    if let Ok(bytes) = fs::read(&stream) {
        found.insert(stream, bytes);
    }
    found
}

/// The spans of one use, and that they cover the volume whatever the window.
fn spans(filesystem: &dyn FileSystem, check: Check, len_bytes: u64, wanted: Use) -> Vec<VolumeSpan> {
    let map = filesystem.used_map(check).unwrap();
    let all = map.uses(VolumeSpan::from_zero(len_bytes)).unwrap();
    let mut at = VolumeOffset::ZERO;
    for extent in &all {
        assert_eq!(extent.span.start(), at, "consecutive");
        at = extent.span.end();
    }
    assert_eq!(at.get(), len_bytes, "covered");
    for step in [1000, 65_536, 1 << 20] {
        let mut joined: Vec<extent::Extent<Volume, Use>> = Vec::new();
        for window in VolumeSpan::from_zero(len_bytes.min(step * 300)).split(step) {
            for extent in map.uses(window).unwrap() {
                match joined.last_mut() {
                    Some(last) if last.state == extent.state => {
                        last.span = VolumeSpan::between(last.span.start(), extent.span.end());
                    }
                    _ => joined.push(extent),
                }
            }
        }
        let last = joined.pop().unwrap();
        assert_eq!(joined[..], all[..joined.len()]);
        assert!(all[joined.len()].span.covers(&last.span));
    }
    all.into_iter().filter(|extent| extent.state == wanted).map(|extent| extent.span).collect()
}

fn clean_free_bytes(volume: &Path) -> u64 {
    let info = run("ntfsinfo", &["-m", text(volume)]);
    let number = |name: &str| -> u64 {
        let line =
            info.lines().find(|line| line.trim().starts_with(name)).unwrap_or_else(|| panic!("{info}"));
        line.rsplit(':').next().unwrap().split_whitespace().next().unwrap().parse().unwrap()
    };
    number("Free Clusters") * number("Cluster Size")
}

/// Overwrites spans with a marker; neither ntfsprogs nor any file may notice.
fn check_meaningless<'a>(made: &Made, spans: impl Iterator<Item = &'a VolumeSpan>) -> Mounted {
    let before = contents(&made.mount("ro,streams_interface=windows").dir);
    let file = File::options().write(true).open(&made.volume).unwrap();
    for piece in spans.flat_map(|span| span.split(1 << 20)) {
        let len = usize::try_from(piece.len_bytes()).unwrap();
        file.write_all_at(&vec![0xdb; len], piece.start().get()).unwrap();
    }
    run("ntfsfix", &["-n", text(&made.volume)]);
    run("ntfsresize", &["--info", "-f", text(&made.volume)]);
    let mounted = made.mount("ro,streams_interface=windows");
    assert!(before.len() > 200);
    assert!(before == contents(&mounted.dir), "a file changed");
    mounted
}

/// The strong one: what is called free or swap is overwritten, and neither ntfsprogs nor any file notices.
fn check_end_to_end(made: &Made) {
    let filesystem = open(&made.volume);
    let facts = filesystem.facts();
    assert_eq!(facts.state, State::Clean);
    assert_eq!(facts.label.as_deref(), Some("Größe"));
    assert_eq!(facts.free_bytes, Some(clean_free_bytes(&made.volume)));
    let len_bytes = fs::metadata(&made.volume).unwrap().len();
    let free = spans(&*filesystem, Check::Full, len_bytes, Use::Free);
    let swap = spans(&*filesystem, Check::Full, len_bytes, Use::Swap);
    assert_eq!(swap, spans(&*filesystem, Check::Quick, len_bytes, Use::Swap));
    assert_eq!(free.iter().map(VolumeSpan::len_bytes).sum::<u64>(), facts.free_bytes.unwrap());
    assert!(!swap.is_empty());
    let mounted = check_meaningless(made, free.iter().chain(&swap));
    let page_file = fs::read(mounted.dir.join("PageFile.sys")).unwrap();
    assert!(page_file.iter().all(|byte| *byte == 0xdb), "the page file is swap");
    let hibernation = fs::read(mounted.dir.join("hiberfil.sys")).unwrap();
    assert!(hibernation.starts_with(b"wake") && hibernation[4..4096].iter().any(|byte| *byte != 0xdb));
    assert!(hibernation.ends_with(&[0xdb; 100]));
}

fn populated(mib: u64, options: &[&str], unit: usize) -> Made {
    let made = make(mib, options);
    populate(&made.mount("streams_interface=windows,compression").dir, unit);
    made
}

#[test]
fn free_and_swap_mean_nothing_with_4_kib_clusters() {
    check_end_to_end(&populated(40, &[], 4096));
}

#[test]
fn free_and_swap_mean_nothing_with_512_byte_clusters() {
    check_end_to_end(&populated(30, &["-c", "512"], 512));
}

#[test]
fn free_and_swap_mean_nothing_with_64_kib_clusters() {
    check_end_to_end(&populated(60, &["-c", "65536"], 65_536));
}

#[test]
fn free_and_swap_mean_nothing_with_4_kib_sectors_and_records() {
    let made = populated(40, &["-s", "4096"], 4096);
    let filesystem = open(&made.volume);
    assert!(filesystem.facts().details.contains(&("file record", "4096 bytes".into())));
    check_end_to_end(&made);
}

#[test]
fn the_largest_clusters_are_understood() {
    let made = make(96, &["-c", "2097152"]);
    fs::write(made.mount("").dir.join("file"), noise(1, 3 << 20)).unwrap();
    let filesystem = open(&made.volume);
    assert_eq!(filesystem.facts().state, State::Clean);
    assert_eq!(filesystem.facts().cluster_bytes, Some(2 << 20));
    assert_eq!(filesystem.facts().free_bytes, Some(clean_free_bytes(&made.volume)));
    filesystem.used_map(Check::Full).unwrap();
}

/// Where the run list of a record's data lies, and the first cluster that it names.
fn data_runs(bytes: &[u8], number: u64) -> (usize, usize) {
    let attribute = attribute_at(bytes, number, 0x80);
    let runs = attribute + u16_at(bytes, attribute + 32);
    let (length_len, offset_len) = (usize::from(bytes[runs] & 15), usize::from(bytes[runs] >> 4));
    let mut lcn = [0; 8];
    lcn[..offset_len].copy_from_slice(&bytes[runs + 1 + length_len..][..offset_len]);
    (runs, usize::from_le_bytes(lcn))
}

/// A volume with two plain files, and the numbers of their records.
fn two_files() -> (Made, [u64; 2]) {
    let made = make(4, &[]);
    let mounted = made.mount("");
    let numbers = ["one", "two"].map(|name| {
        let path = mounted.dir.join(name);
        fs::write(&path, noise(1, 20_000)).unwrap();
        fs::metadata(path).unwrap().ino()
    });
    drop(mounted);
    (made, numbers)
}

fn full_error(bytes: Vec<u8>) -> Error {
    let filesystem = open_bytes(bytes);
    assert_eq!(filesystem.facts().state, State::Clean);
    filesystem.used_map(Check::Quick).map(drop).unwrap();
    filesystem.used_map(Check::Full).map(drop).unwrap_err()
}

#[test]
fn a_used_cluster_that_is_marked_free_is_a_doubt() {
    let (made, [one, _]) = two_files();
    let mut bytes = made.bytes();
    let (_, bitmap) = data_runs(&bytes, 6);
    let (_, lcn) = data_runs(&bytes, one);
    let lcn = lcn + 2;
    bytes[bitmap * 4096 + lcn / 8] &= !(1 << (lcn % 8));
    let error = full_error(bytes);
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let expected = format!(
        "NTFS $Bitmap contradicts: cluster {lcn} of file record {one} is marked free (at volume offset {:#x})",
        lcn * 4096
    );
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_cluster_of_two_files_is_a_doubt() {
    let (made, [one, two]) = two_files();
    let mut bytes = made.bytes();
    let ((from, lcn), (to, _)) = (data_runs(&bytes, one), data_runs(&bytes, two));
    let runs = bytes[from..from + 8].to_vec();
    bytes[to..to + 8].copy_from_slice(&runs);
    let expected = Corrupt::ClusterShared { cluster: lcn as u64, record: two };
    assert_eq!(full_error(bytes).cause(), Some(&expected));
}

#[test]
fn damaged_records_are_doubts_that_name_the_field() {
    let (made, [one, _]) = two_files();
    let good = made.bytes();
    let record = record_at(&good, one);
    let data = attribute_at(&good, one, 0x80);
    let (runs, _) = data_runs(&good, one);
    let cases: [(usize, u8, String); 8] = [
        (record, b'B', format!("file record {one}: magic is \"BILE\", expected FILE")),
        (record + 510, good[record + 510] ^ 1, "update sequence number of block 0".into()),
        (record + 22, 0, format!("file record {one}: flags is 0x0, expected in use, as $MFT's bitmap says")),
        (record + 29, 8, "allocated size is 2048, expected 1024".into()),
        (data + 4, good[data + 4] | 1, "length of attribute 0x80".into()),
        (data + 8, 7, "residence of attribute 0x80 is 7, expected 0 or 1".into()),
        (runs, 0, "number of clusters in the run list of attribute 0x80 is fewer, expected 5".into()),
        (runs + 3, 0x7f, "run list of attribute 0x80 is a run outside the volume".into()),
    ];
    for (at, value, expected) in cases {
        let mut bytes = good.clone();
        bytes[at] = value;
        let message = full_error(bytes).to_string();
        assert!(message.contains(&expected), "{message}, expected {expected}");
    }
    let mut bytes = good.clone();
    bytes[data + 41] ^= 0x10;
    assert!(full_error(bytes).to_string().contains("allocated size of attribute 0x80"));
    let mirror = usize::from(good[0x38]) * 4096 + (usize::from(good[0x39]) << 8) * 4096;
    let mut bytes = good;
    bytes[mirror + 1024 + 16] ^= 1;
    assert_eq!(full_error(bytes).cause(), Some(&Corrupt::MirrorDiffers { record: 1 }));
}

fn state_of(bytes: Vec<u8>) -> State {
    let filesystem = open_bytes(bytes);
    let state = filesystem.facts().state.clone();
    assert_eq!(state.doubt().is_some(), filesystem.used_map(Check::Quick).is_err());
    state
}

#[test]
fn volume_flags_and_version_decide_the_state() {
    let good = make(2, &[]).bytes();
    let value = attribute_at(&good, 3, 0x70) + 24;
    let with = |at: usize, new: u8| {
        let mut bytes = good.clone();
        bytes[value + at] = new;
        state_of(bytes)
    };
    assert_eq!(with(10, 0x80), State::Clean);
    assert_eq!(with(10, 1), State::Dirty("it is marked dirty (volume flags 0x0001)".into()));
    assert!(matches!(with(11, 0x40), State::Dirty(_)));
    assert!(matches!(with(8, 4), State::Unsupported(_)));
}

/// A restart page as Windows writes it.
fn restart_page(lsn: u8, flags: u8, version: u8) -> Vec<u8> {
    let mut page = vec![0; 4096];
    page[..8].copy_from_slice(b"RSTR\x1e\0\x09\0");
    page[16..26].copy_from_slice(&[0, 16, 0, 0, 0, 16, 0, 0, 0x30, 0]);
    page[26..30].copy_from_slice(&[2 - version, 0, version, 0]);
    page[0x30] = lsn;
    page[0x3a..0x40].copy_from_slice(&[0xff, 0xff, 0, 0, flags, 0]);
    for end in (510..4096).step_by(512).chain([0x1e]) {
        page[end..end + 2].copy_from_slice(&[7, 0]);
    }
    page
}

#[test]
fn the_log_tells_whether_the_volume_was_dismounted() {
    let good = make(4, &[]).bytes();
    let (_, lcn) = data_runs(&good, 2);
    let with = |pages: [Vec<u8>; 2]| {
        let mut bytes = good.clone();
        bytes[lcn * 4096..][..8192].copy_from_slice(&pages.concat());
        state_of(bytes)
    };
    let (clean, open) = (restart_page(9, 2, 1), restart_page(8, 0, 1));
    assert_eq!(with([clean.clone(), open.clone()]), State::Clean);
    assert_eq!(with([restart_page(7, 2, 1), clean.clone()]), State::Clean);
    let dirty = State::Dirty("its log says that it was not dismounted".into());
    assert_eq!(with([restart_page(7, 2, 1), open]), dirty);
    assert!(matches!(with([clean.clone(), restart_page(10, 2, 2)]), State::Dirty(_)));
    let mut torn = clean.clone();
    torn[1022] = 8;
    assert!(matches!(with([torn, clean]), State::Dirty(_)));
    assert!(matches!(with([vec![0; 4096], vec![0; 4096]]), State::Dirty(_)));
}

#[test]
fn a_hibernated_system_is_told() {
    for (header, is_hibernated) in [(b"HIBR", true), (b"hibr", true), (b"RSTR", true), (b"wake", false)] {
        let made = make(4, &[]);
        let mut file = noise(1, 50_000);
        file[..4].copy_from_slice(header);
        fs::write(made.mount("").dir.join("HiberFil.sys"), file).unwrap();
        let state = state_of(made.bytes());
        assert_eq!(matches!(state, State::Hibernated(_)), is_hibernated, "{state:?}");
        assert_eq!(state == State::Clean, !is_hibernated);
    }
}

#[test]
fn only_what_windows_makes_is_swap() {
    let made = make(6, &[]);
    let mounted = made.mount("streams_interface=windows");
    fs::create_dir(mounted.dir.join("pagefile.sys")).unwrap();
    fs::write(mounted.dir.join("pagefile.sys/pagefile.sys"), noise(1, 9000)).unwrap();
    fs::write(mounted.dir.join("swapfile.sys"), noise(1, 9000)).unwrap();
    fs::hard_link(mounted.dir.join("swapfile.sys"), mounted.dir.join("other")).unwrap();
    drop(mounted);
    assert_eq!(spans(&*open(&made.volume), Check::Full, 6 << 20, Use::Swap), []);
    let mounted = made.mount("streams_interface=windows");
    fs::remove_file(mounted.dir.join("other")).unwrap();
    fs::write(mounted.dir.join("swapfile.sys:stream"), noise(1, 9000)).unwrap();
    drop(mounted);
    let swap = spans(&*open(&made.volume), Check::Full, 6 << 20, Use::Swap);
    assert_eq!(swap.iter().map(VolumeSpan::len_bytes).sum::<u64>(), 12_288, "the stream is no swap");
}

#[test]
fn a_partition_smaller_than_its_volume_is_inconsistent() {
    let mut bytes = make(2, &[]).bytes();
    bytes.truncate(1 << 20);
    let state = state_of(bytes);
    let State::Inconsistent(why) = state else { panic!("{state:?}") };
    assert!(
        why.starts_with("NTFS boot sector: number of sectors is 4095, expected at most the 2048"),
        "{why}"
    );
}

#[test]
fn a_fragmented_mft_is_read_through_its_attribute_list() {
    let made = make(20, &["-c", "512"]);
    let mounted = made.mount("");
    assert!(fragment_mft(&mounted.dir) > 1000);
    fs::remove_file(mounted.dir.join("f1")).unwrap();
    fs::write(mounted.dir.join("pagefile.sys"), noise(1, 1000)).unwrap();
    drop(mounted);
    let info = run("ntfsinfo", &["-i", "0", text(&made.volume)]);
    assert!(info.contains("$ATTRIBUTE_LIST"), "{info}");
    let filesystem = open(&made.volume);
    assert_eq!(filesystem.facts().state, State::Clean);
    assert_eq!(filesystem.facts().free_bytes, Some(clean_free_bytes(&made.volume)));
    let free = spans(&*filesystem, Check::Full, 20 << 20, Use::Free);
    check_meaningless(&made, free.iter());
}

#[test]
fn a_file_in_thousands_of_pieces_is_found_in_its_extension_records() {
    let made = make(20, &["-c", "512"]);
    let mounted = made.mount("");
    for index in 0..250 {
        fs::write(mounted.dir.join(format!("small{index}")), noise(index, 900)).unwrap();
    }
    let file = File::create(mounted.dir.join("pieces")).unwrap();
    for index in 0..6000 {
        file.write_all_at(&noise(index, 512), index * 1024).unwrap();
    }
    drop(file);
    drop(mounted);
    let info = run("ntfsinfo", &["-F", "/pieces", text(&made.volume)]);
    let list = info.split("$ATTRIBUTE_LIST").nth(1).expect("an attribute list");
    assert!(list.split("Dumping").next().unwrap().contains("Resident: \t\t No"), "{info}");
    let filesystem = open(&made.volume);
    assert_eq!(filesystem.facts().state, State::Clean);
    let free = spans(&*filesystem, Check::Full, 20 << 20, Use::Free);
    check_meaningless(&made, free.iter());
}

#[test]
fn a_bitmap_larger_than_memory_allows_is_read_by_window() {
    // 2^28 clusters and some: two passes.
    let made = make(130 << 10, &["-c", "512"]);
    let mounted = made.mount("");
    fs::write(mounted.dir.join("pagefile.sys"), noise(1, 100_000)).unwrap();
    let number = fs::metadata(mounted.dir.join("pagefile.sys")).unwrap().ino();
    drop(mounted);
    let filesystem = open(&made.volume);
    assert_eq!(filesystem.facts().state, State::Clean);
    assert_eq!(filesystem.facts().free_bytes, Some(clean_free_bytes(&made.volume)));
    let all = VolumeSpan::from_zero(130 << 30);
    let uses = filesystem.used_map(Check::Full).unwrap().uses(all).unwrap();
    let free = uses.iter().filter(|extent| extent.state == Use::Free).map(|extent| extent.span.len_bytes());
    assert_eq!(Some(free.sum::<u64>()), filesystem.facts().free_bytes);
    // A run in the last clusters is judged by the second pass.
    let file = File::options().read(true).write(true).open(&made.volume).unwrap();
    let mut head = vec![0; 16 << 20];
    file.read_exact_at(&mut head, 0).unwrap();
    let mft = u64::from(u32_at(&head, 0x30)) * 512;
    let mut record = vec![0; 1024];
    file.read_exact_at(&mut record, mft + number * 1024).unwrap();
    let mut at = u16_at(&record, 20);
    while u32_at(&record, at) != 0x80 {
        at += usize::try_from(u32_at(&record, at + 4)).unwrap();
    }
    let runs = at + u16_at(&record, at + 32);
    let last = (130u64 << 30) / 512 - 300;
    let mut list = vec![0x42, 196, 0];
    list.extend(u32::try_from(last).unwrap().to_le_bytes());
    list.push(0);
    file.write_all_at(&list, mft + number * 1024 + runs as u64).unwrap();
    let error = open(&made.volume).used_map(Check::Full).map(drop).unwrap_err();
    assert_eq!(error.cause(), Some(&Corrupt::ClusterMarkedFree { cluster: last, record: number }), "{error}");
}

/// Opens and maps what may be damaged.
fn use_all(source: &Source) -> Result<()> {
    if let Some(filesystem) = filesystem::ntfs::open(source)? {
        filesystem.used_map(Check::Full)?.uses(VolumeSpan::from_zero(source.len_bytes()))?;
    }
    Ok(())
}

#[test]
fn damaged_volumes_are_errors_and_nothing_worse() {
    let made = make(2, &[]);
    check_hostile(&made.bytes(), 0x60, |file| use_all(&(Arc::new(AsVolume(file)) as Source)));
}

#[test]
fn damaged_metadata_is_an_error_and_nothing_worse() {
    use block::TargetFile;
    let made = make(2, &[]);
    let mounted = made.mount("");
    for index in 0..60 {
        fs::write(mounted.dir.join(format!("a rather long file name {index}")), b"x").unwrap();
    }
    fs::write(mounted.dir.join("pagefile.sys"), noise(1, 9000)).unwrap();
    drop(mounted);
    let good = made.bytes();
    let memory = Arc::new(Memory::new(good.clone()));
    let source: Source = memory.clone();
    let index_blocks = (0..good.len()).step_by(4096).filter(|at| good[*at..].starts_with(b"INDX"));
    let records = [0, 3, 5, 6].map(|number| record_at(&good, number));
    for structure in records.into_iter().chain(index_blocks.take(1)) {
        for at in (structure..structure + 504).step_by(2) {
            for value in [0u32, 1, 0xffff, 0x7fff_ffff, u32::MAX] {
                let host = extent::HostOffset::new(at as u64);
                memory.write_at(host, &value.to_le_bytes()).unwrap();
                let limit = TimeLimit::of(Duration::from_secs(5));
                if let Err(error) = use_all(&source) {
                    let kinds = [ErrorKind::Corrupt, ErrorKind::Unsupported, ErrorKind::Refused];
                    assert!(kinds.contains(&error.kind()), "{value:#x} at {at:#x}: {error:?}");
                }
                limit.check(&format!("{value:#x} at {at:#x}"));
                memory.write_at(host, &good[at..at + 4]).unwrap();
            }
        }
    }
    use_all(&source).unwrap();
}

#[test]
fn volumes_of_windows_are_clean_and_whole() {
    let dir = scratch();
    for name in ["hv-dynamic.vhd", "hv-fixed.vhdx"] {
        let Some(image) = testkit::real_image(name, dir.path()) else { continue };
        let raw = dir.path().join("raw");
        run("qemu-img", &["convert", "-O", "raw", text(&image), text(&raw)]);
        let disk = fs::read(&raw).unwrap();
        let sector = |at: usize| usize::try_from(u32_at(&disk, at)).unwrap() * 512;
        let volume = dir.path().join("volume");
        fs::write(&volume, &disk[sector(0x1c6)..][..sector(0x1ca)]).unwrap();
        let filesystem = open(&volume);
        assert_eq!(filesystem.facts().state, State::Clean);
        assert_eq!(filesystem.facts().free_bytes, Some(clean_free_bytes(&volume)));
        filesystem.used_map(Check::Full).map(drop).unwrap();
    }
}

#[test]
fn bitlocker_and_nothing_are_not_ntfs() {
    let mut bytes = make(2, &[]).bytes();
    bytes[3..11].copy_from_slice(b"-FVE-FS-");
    for bytes in [bytes, vec![0; 4096], vec![0; 100], Vec::new()] {
        let source: Source = Arc::new(Memory::new(bytes));
        assert!(filesystem::ntfs::open(&source).unwrap().is_none());
    }
}
