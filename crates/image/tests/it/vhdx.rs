//! VHDX against the programs that define it in practice: QEMU and libvhdi, and disks that others wrote.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::vhd_shared::{
    check_reads_as, contents, libvhdi_reads, open, open_and_read, open_as, options, qemu_info, qemu_raw,
    text, write_with_restarts,
};
use block::{Disk, ErrorKind, Field, Memory, ReadAt, RunState};
use extent::{Offset, Span};
use image::vhdx::Corrupt;
use image::{BrokenChain, Chain, Format, OpenOptions, Probe, create};
use testkit::vhdx::{
    Child, HEADERS, REGION_TABLES, bat_at, edit_headers, metadata_at, seal, u32_at, u64_at, usize_at,
};
use testkit::{TestFile, TestResolver, check_disk, check_hostile, real_image, run, scratch, write_image};

const MIB: usize = 1 << 20;

#[test]
fn reads_what_qemu_writes() {
    let dir = scratch();
    for (index, create_options) in [
        "subformat=dynamic,block_size=1M",
        "subformat=dynamic,block_size=8M",
        "subformat=dynamic,block_size=32M,block_state_zero=off",
        "subformat=fixed,block_size=2M",
        "subformat=dynamic,block_size=256M,log_size=2M",
    ]
    .into_iter()
    .enumerate()
    {
        let path = dir.path().join(format!("{index}.vhdx"));
        run("qemu-img", &["create", "-q", "-f", "vhdx", "-o", create_options, text(&path), "23M"]);
        let writes =
            ["write -P 1 0 512", "write -P 2 1M 3M", "write -P 3 8388096 1024", "write -P 4 22M 512K"];
        let mut args = vec!["-f", "vhdx"];
        args.extend(writes.iter().flat_map(|write| ["-c", write]));
        args.push(text(&path));
        run("qemu-io", &args);
        check_reads_as(&path, &qemu_raw(&path, "vhdx"));
        let facts = open(&path).unwrap().facts().clone();
        assert_eq!(facts.variant, if index == 3 { "fixed" } else { "dynamic" });
        assert_eq!((facts.format, facts.sector_bytes), (Format::Vhdx, 512));
    }
}

#[test]
fn a_disk_of_many_chunks_reads_as_qemu_reads_it() {
    // The BAT holds entries for sector bitmaps between the payload's: one after every 4 GiB.
    let dir = scratch();
    let path = dir.path().join("large.vhdx");
    let create_options = "subformat=dynamic,block_size=1M";
    run("qemu-img", &["create", "-q", "-f", "vhdx", "-o", create_options, text(&path), "33G"]);
    let places: [u64; 6] = [0, 4095 << 20, 4 << 30, (8 << 30) - 512, 20 << 30, (33 << 30) - 512];
    for (index, at) in places.iter().enumerate() {
        let write = format!("write -P {} {at} 512", index + 1);
        run("qemu-io", &["-f", "vhdx", "-c", &write, text(&path)]);
    }
    let chain = open(&path).unwrap();
    for (index, at) in places.into_iter().enumerate() {
        let mut sector = [0; 512];
        chain.read_at(Offset::new(at), &mut sector).unwrap();
        assert_eq!(usize::from(sector[0]), index + 1, "at {at:#x}");
    }
    let data = |run: &&block::Run| matches!(run.state, RunState::Data { .. });
    let runs = chain.map(Span::from_zero(33 << 30)).unwrap();
    assert_eq!(runs.iter().filter(data).map(|run| run.span.len_bytes()).sum::<u64>(), 6 << 20);

    // And what we write of this shape is read by qemu. Only the ends are written, to keep the test small.
    let ours = dir.path().join("ours.vhdx");
    let mut writer = create(Format::Vhdx, options(33 << 30, &[])).unwrap();
    let file = fs::File::create(&ours).unwrap();
    let put = |puts: Vec<image::TargetWrite>, chunk: &[u8]| {
        use std::os::unix::fs::FileExt;
        for put in puts {
            match put.bytes {
                image::WriteBytes::Chunk(range) => file.write_all_at(&chunk[range], put.at.get()).unwrap(),
                image::WriteBytes::Owned(bytes) => file.write_all_at(&bytes, put.at.get()).unwrap(),
                _ => {}
            }
        }
    };
    put(writer.start().unwrap(), &[]);
    for (index, at) in places.into_iter().enumerate() {
        let granule = vec![u8::try_from(index + 1).unwrap(); 4096];
        let at = Offset::new(at / 4096 * 4096);
        let piece = image::Piece { at, len_bytes: 4096, bytes: image::PieceBytes::Plain(0..4096) };
        put(writer.place(at, vec![piece]).unwrap(), &granule);
    }
    let finish = writer.finish().unwrap();
    put(finish.tables, &[]);
    put(finish.headers, &[]);
    file.set_len(finish.len_bytes).unwrap();
    run("qemu-img", &["check", "-q", "-f", "vhdx", text(&ours)]);
    for (index, at) in places.into_iter().enumerate() {
        let read = format!("read -P {} {at} 512", index + 1);
        let said = run("qemu-io", &["-r", "-f", "vhdx", "-c", &read, text(&ours)]);
        assert!(!said.contains("verification failed"), "{said}");
    }
}

#[test]
fn what_is_written_is_what_qemu_and_libvhdi_read() {
    let dir = scratch();
    let path = dir.path().join("disk.vhdx");
    let raw = dir.path().join("expected.raw");
    for len in [9 * MIB + 3 * 512, 512] {
        let expected = contents(len);
        fs::write(&raw, &expected).unwrap();
        for keys in [
            &[("subformat", "dynamic")][..],
            &[("block_size", "2M")],
            &[("block_size", "32M")],
            &[("subformat", "fixed")],
            &[("subformat", "fixed"), ("block_size", "4M")],
        ] {
            let mut writer = create(Format::Vhdx, options(len as u64, keys)).unwrap();
            write_image(&mut *writer, &expected, &path);
            assert_eq!(qemu_info(&path, "vhdx")["virtual-size"], len, "{keys:?}");
            run("qemu-img", &["check", "-q", "-f", "vhdx", text(&path)]);
            run("qemu-img", &["compare", "-f", "vhdx", "-F", "raw", text(&path), text(&raw)]);
            check_reads_as(&path, &expected);
            libvhdi_reads(&path, &expected);
            let once = fs::read(&path).unwrap();
            assert!(once.len().is_multiple_of(MIB));
            write_with_restarts(Format::Vhdx, options(len as u64, keys), &expected, &path);
            assert!(fs::read(&path).unwrap() == once, "restarts change nothing: {keys:?}");
        }
    }
}

#[test]
fn a_disk_of_4096_byte_sectors_is_written_and_read() {
    let dir = scratch();
    let path = dir.path().join("disk.vhdx");
    let mut expected = contents(5 * MIB + 512);
    let mut create_options = options(expected.len() as u64, &[]);
    create_options.sector_bytes = 4096;
    write_image(&mut *create(Format::Vhdx, create_options).unwrap(), &expected, &path);
    expected.resize(5 * MIB + 4096, 0);
    check_reads_as(&path, &expected);
    assert_eq!(open(&path).unwrap().sector_bytes(), 4096);
    libvhdi_reads(&path, &expected);
}

#[test]
fn the_largest_disks_are_laid_out_in_little_memory() {
    for (virtual_bytes, keys) in [(64u64 << 40, &[][..]), (64 << 40, &[("block_size", "1M")])] {
        let mut writer = create(Format::Vhdx, options(virtual_bytes, keys)).unwrap();
        writer.start().unwrap();
        let at = Offset::new(virtual_bytes - 4096);
        let piece = image::Piece { at, len_bytes: 4096, bytes: image::PieceBytes::Plain(0..4096) };
        writer.place(at, vec![piece]).unwrap();
        assert!(serde_json::to_string(&writer).unwrap().len() < 200_000);
        let finish = writer.finish().unwrap();
        let owned = |put: &image::TargetWrite| match &put.bytes {
            image::WriteBytes::Owned(bytes) => bytes.len(),
            _ => 0,
        };
        assert!(finish.tables.iter().map(owned).sum::<usize>() < 4 * MIB);
    }
    let kind = |result: Result<image::AnyWriter, block::Error>| result.unwrap_err().kind();
    assert_eq!(kind(create(Format::Vhdx, options((64 << 40) + 1, &[]))), ErrorKind::Unsupported);
    let small_blocks = [("subformat", "fixed"), ("block_size", "1M")];
    assert_eq!(kind(create(Format::Vhdx, options(64 << 40, &small_blocks))), ErrorKind::Unsupported);
    assert_eq!(kind(create(Format::Vhdx, options(1 << 20, &[("block_size", "512M")]))), ErrorKind::Invalid);
}

/// An image of a disk with `expected`, made by qemu.
fn qemu_image(dir: &Path, expected: &[u8]) -> Vec<u8> {
    let (raw, path) = (dir.join("made.raw"), dir.join("made.vhdx"));
    fs::write(&raw, expected).unwrap();
    let keys = "subformat=dynamic,block_size=1M,block_state_zero=off";
    run("qemu-img", &["convert", "-f", "raw", "-O", "vhdx", "-o", keys, text(&raw), text(&path)]);
    fs::read(path).unwrap()
}

fn open_bytes(bytes: Vec<u8>) -> Result<Chain, block::Error> {
    Chain::open(Arc::new(Memory::named("disk.vhdx", bytes)), OpenOptions::default(), &TestResolver::default())
}

/// Every state that a payload block may have.
const STATES: [u64; 8] = [7, 0, 6, 7, 2, 7, 1, 3];

/// A differencing disk of `parent`, its blocks in `states` by turns. Returns it with what it shall read as.
fn differencing(
    parent: &[u8],
    parent_contents: &[u8],
    sector_bytes: usize,
    states: &[u64],
    is_here: fn(usize) -> bool,
) -> (Vec<u8>, Vec<u8>) {
    let state = |block: usize| states[block % states.len()];
    let child = Child { like: parent, parent, parent_name: "parent.vhdx", id: 0xc1 };
    testkit::vhdx::differencing(&child, parent_contents, sector_bytes, state, |_, sector| is_here(sector))
}

/// Pieces that begin and end at any sector.
fn in_pieces(sector: usize) -> bool {
    (sector / 7 + sector / 64).is_multiple_of(2)
}

/// Pieces that end where a byte of the bitmap does, see the test of VHD.
fn in_pieces_to_whole_bytes(sector: usize) -> bool {
    sector % 24 >= sector / 24 % 25
}

#[test]
fn a_differencing_disk_reads_by_states_and_bitmaps() {
    let dir = scratch();
    let parent_contents = contents(9 * MIB + 1024);
    let parent = qemu_image(dir.path(), &parent_contents);
    fs::write(dir.path().join("parent.vhdx"), &parent).unwrap();
    let path = dir.path().join("child.avhdx");
    let (child, expected) = differencing(&parent, &parent_contents, 512, &STATES, in_pieces);
    fs::write(&path, &child).unwrap();
    check_reads_as(&path, &expected);
    assert_eq!(open(&path).unwrap().facts().variant, "differencing");
}

#[test]
fn libvhdi_reads_a_differencing_disk_alike() {
    // libvhdi 20210425 looks into the parent for blocks that the child marks as zeros, unmapped or undefined,
    // against the specification: those are left out.
    let dir = scratch();
    let parent_contents = contents(9 * MIB + 1024);
    let parent = qemu_image(dir.path(), &parent_contents);
    fs::write(dir.path().join("parent.vhdx"), &parent).unwrap();
    let path = dir.path().join("child.avhdx");
    let states = [7, 0, 6, 7];
    let (child, expected) = differencing(&parent, &parent_contents, 512, &states, in_pieces_to_whole_bytes);
    fs::write(&path, &child).unwrap();
    check_reads_as(&path, &expected);
    libvhdi_reads(&path, &expected);
}

#[test]
fn a_differencing_disk_of_4096_byte_sectors() {
    let dir = scratch();
    let parent_contents = contents(9 * MIB + 4096);
    let mut create_options = options(parent_contents.len() as u64, &[]);
    create_options.sector_bytes = 4096;
    let parent_path = dir.path().join("parent.vhdx");
    write_image(&mut *create(Format::Vhdx, create_options).unwrap(), &parent_contents, &parent_path);
    let parent = fs::read(&parent_path).unwrap();
    let (child, expected) = differencing(&parent, &parent_contents, 4096, &STATES, in_pieces);
    let path = dir.path().join("child.avhdx");
    fs::write(&path, &child).unwrap();
    check_reads_as(&path, &expected);
}

#[test]
fn the_parent_is_found_by_its_names_and_known_by_its_identity() {
    let dir = scratch();
    let parent_contents = contents(2 * MIB);
    let mut parent = qemu_image(dir.path(), &parent_contents);
    let (child, _) = differencing(&parent, &parent_contents, 512, &STATES, in_pieces);
    let path = dir.path().join("child.avhdx");
    fs::write(&path, &child).unwrap();
    let resolver = TestResolver::default();
    let error = Chain::open(TestFile::open(&path), OpenOptions::default(), &resolver).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert_eq!(resolver.asked(), ["parent.vhdx", "/vm/old/parent.vhdx"]);
    edit_headers(&mut parent, |header| header[32] ^= 1);
    fs::write(dir.path().join("parent.vhdx"), &parent).unwrap();
    let error = open(&path).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(matches!(error.cause(), Some(BrokenChain::NotItsParent { .. })), "{error}");
}

#[test]
fn either_header_and_either_region_table_will_do() {
    let dir = scratch();
    let expected = contents(2 * MIB);
    let good = qemu_image(dir.path(), &expected);
    for damaged in [HEADERS[0], HEADERS[1], REGION_TABLES[0], REGION_TABLES[1]] {
        let mut bytes = good.clone();
        bytes[damaged + 20] ^= 1;
        let chain = open_bytes(bytes).unwrap();
        check_disk(&chain, chain.files(), &expected);
        let noted =
            chain.facts().details.iter().any(|(name, note)| *name == "note" && note.contains("checksum"));
        assert_eq!(noted, damaged != REGION_TABLES[1]);
    }
    for pair in [HEADERS, REGION_TABLES] {
        let mut bytes = good.clone();
        for at in pair {
            bytes[at + 20] ^= 1;
        }
        let error = open_bytes(bytes).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        match error.cause() {
            Some(Corrupt::HeaderChecksum { .. }) => assert_eq!(pair, HEADERS),
            Some(Corrupt::RegionTableChecksum { .. }) => assert_eq!(pair, REGION_TABLES),
            _ => panic!("{error}"),
        }
    }
}

#[test]
fn what_must_be_known_and_is_not_is_unsupported() {
    let dir = scratch();
    let good = qemu_image(dir.path(), &contents(MIB));
    // A region that is required.
    let mut region = good.clone();
    for table in REGION_TABLES {
        region[table + 8] = 3;
        let entry = table + 16 + 64;
        region[entry..entry + 16].fill(0x5a);
        region[entry + 16..entry + 24].copy_from_slice(&(1u64 << 20).to_le_bytes());
        region[entry + 24..entry + 28].copy_from_slice(&(1u32 << 20).to_le_bytes());
        region[entry + 28] = 1;
        seal(&mut region[table..table + (64 << 10)]);
    }
    // An item that is required.
    let mut item = good.clone();
    let metadata = metadata_at(&item);
    let entry = metadata + 32 + usize::from(item[metadata + 10]) * 32;
    item[metadata + 10] += 1;
    item[entry..entry + 16].fill(0x5a);
    item[entry + 16..entry + 28].copy_from_slice(&[0, 0, 2, 0, 8, 0, 0, 0, 4, 0, 0, 0]);
    let mut version = good.clone();
    edit_headers(&mut version, |header| header[66] = 2);
    for bytes in [region, item, version] {
        let error = open_bytes(bytes).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}

#[test]
fn entries_that_cannot_be_are_corrupt() {
    let dir = scratch();
    let good = qemu_image(dir.path(), &[7; 3 * MIB]);
    let bat = bat_at(&good);
    let first = u64_at(&good, bat);
    for (entry, value, field) in [
        (1, first, None),
        (0, first & !7 | 5, Some("state")),
        (0, first & !7 | 7, Some("state")),
        (0, 6, Some("place")),
        (0, (bat as u64) | 6, Some("place")),
        (0, 1 << 40 | 6, Some("place")),
    ] {
        let mut bytes = good.clone();
        bytes[bat + entry * 8..bat + entry * 8 + 8].copy_from_slice(&value.to_le_bytes());
        let error = open_bytes(bytes).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        match field {
            None => assert!(matches!(error.cause(), Some(Corrupt::SharedBatEntry { .. })), "{error}"),
            Some(_) => assert_eq!(error.cause(), Some(&Corrupt::BatEntry { index: 0 }), "{error}"),
        }
        assert_eq!(error.wrong_field().map(Field::name), field, "{error}");
    }
}

const LOG_GUID: [u8; 16] = [0x4c; 16];

/// What a log entry does to the file.
enum Change {
    Data(u64, Vec<u8>),
    Zero(u64, u64),
}

fn log_entry(sequence: u64, tail: usize, file_len: usize, changes: &[Change]) -> Vec<u8> {
    let mut entry = b"loge".to_vec();
    entry.resize(64, 0);
    let (mut descriptors, mut sectors) = (Vec::new(), Vec::new());
    for change in changes {
        let (signature, trailing, leading, at) = match change {
            Change::Zero(at, len) => (b"zero", [0; 4], len.to_le_bytes(), at),
            Change::Data(at, sector) => {
                assert_eq!(sector.len(), 4096);
                sectors.extend(b"data");
                sectors.extend(u32::try_from(sequence >> 32).unwrap().to_le_bytes());
                sectors.extend(&sector[8..4092]);
                sectors.extend(u32::try_from(sequence & 0xffff_ffff).unwrap().to_le_bytes());
                (b"desc", sector[4092..].try_into().unwrap(), sector[..8].try_into().unwrap(), at)
            }
        };
        descriptors.extend(signature);
        descriptors.extend(trailing);
        descriptors.extend(leading);
        descriptors.extend(at.to_le_bytes());
        descriptors.extend(sequence.to_le_bytes());
    }
    entry.extend(descriptors);
    entry.resize(entry.len().next_multiple_of(4096), 0);
    entry.extend(sectors);
    let len = u32::try_from(entry.len()).unwrap();
    entry[8..12].copy_from_slice(&len.to_le_bytes());
    entry[12..16].copy_from_slice(&u32::try_from(tail).unwrap().to_le_bytes());
    entry[16..24].copy_from_slice(&sequence.to_le_bytes());
    entry[24..28].copy_from_slice(&u32::try_from(changes.len()).unwrap().to_le_bytes());
    entry[32..48].copy_from_slice(&LOG_GUID);
    entry[48..56].copy_from_slice(&(file_len as u64).to_le_bytes());
    entry[56..64].copy_from_slice(&(file_len as u64).to_le_bytes());
    seal(&mut entry);
    entry
}

/// The file's BAT was never written: it is in the log. Returns the file, the BAT's sector, where the log lies.
fn with_its_bat_in_the_log(good: &[u8]) -> (Vec<u8>, Change, usize) {
    let mut file = good.to_vec();
    let bat = bat_at(&file);
    let sector = file[bat..bat + 4096].to_vec();
    file[bat..bat + 4096].fill(0xaa);
    edit_headers(&mut file, |header| header[48..64].copy_from_slice(&LOG_GUID));
    let log = usize_at(&file, HEADERS[0] + 72);
    file[log..log + MIB].fill(0);
    (file, Change::Data(bat as u64, sector), log)
}

/// Puts `entries` into the ring from `at` on.
fn put_log(file: &mut [u8], log: usize, at: usize, entries: &[Vec<u8>]) {
    for (index, byte) in entries.concat().into_iter().enumerate() {
        file[log + (at + index) % MIB] = byte;
    }
}

#[test]
fn a_pending_log_is_replayed_in_memory() {
    let dir = scratch();
    let expected = contents(3 * MIB);
    let good = qemu_image(dir.path(), &expected);
    let len = good.len();
    let (file, bat_sector, log) = with_its_bat_in_the_log(&good);
    let Change::Data(bat, sector) = &bat_sector else { panic!() };
    let wrong = || Change::Data(*bat, vec![0xbb; 4096]);
    let right = || Change::Data(*bat, sector.clone());
    let zero = || Change::Zero(*bat, 4096);
    let check = |file: Vec<u8>, what: &str| {
        let path = dir.path().join("dirty.vhdx");
        fs::write(&path, &file).unwrap();
        check_reads_as(&path, &expected);
        assert!(fs::read(&path).unwrap() == file, "opening changed the file: {what}");
        assert!(open(&path).unwrap().facts().details.iter().any(|(name, _)| *name == "log"));
        // QEMU replays into the file, and must then see the same.
        run("qemu-img", &["check", "-q", "-r", "all", "-f", "vhdx", text(&path)]);
        assert!(qemu_raw(&path, "vhdx") == expected, "qemu reads otherwise: {what}");
    };
    let with = |at: usize, entries: &[Vec<u8>]| {
        let mut file = file.clone();
        put_log(&mut file, log, at, entries);
        file
    };
    check(with(0, &[log_entry(1, 0, len, &[right()])]), "one entry");
    let two = [log_entry(7, 8192, len, &[wrong(), zero()]), log_entry(8, 8192, len, &[right()])];
    check(with(8192, &two), "later entries hide earlier ones");
    let tail = [log_entry(7, 0, len, &[wrong()]), log_entry(8, 8192, len, &[right()])];
    check(with(0, &tail), "entries before the tail are not applied");
    let at = MIB - 4096;
    let wrapped = [log_entry(1 << 33, at, len, &[zero()]), log_entry((1 << 33) + 1, at, len, &[right()])];
    check(with(at, &wrapped), "a sequence that wraps around");
    let mut torn = log_entry(9, 8192, len, &[wrong()]);
    torn[5000] ^= 1;
    let two = [log_entry(8, 8192, len, &[right()]), torn];
    check(with(8192, &two), "a torn entry ends the sequence");
    // The file was made shorter after the first entry.
    let shorter = [log_entry(7, 8192, len + MIB, &[wrong()]), log_entry(8, 8192, len, &[right()])];
    let chain = open_bytes(with(8192, &shorter)).unwrap();
    check_disk(&chain, chain.files(), &expected);
    let mut stale = with(4096, &[log_entry(3, 4096, len, &[wrong()])]);
    put_log(&mut stale, log, 65_536, &[log_entry(20, 65_536, len, &[right()])]);
    put_log(&mut stale, log, 131_072, &[log_entry(6, 131_072, len, &[wrong()])]);
    check(stale, "the newest sequence counts");
}

#[test]
fn a_log_that_cannot_be_replayed_is_corrupt() {
    let dir = scratch();
    let good = qemu_image(dir.path(), &contents(MIB));
    let len = good.len();
    let (file, bat_sector, log) = with_its_bat_in_the_log(&good);
    let Change::Data(bat, sector) = &bat_sector else { panic!() };
    let right = || Change::Data(*bat, sector.clone());
    let mut torn = log_entry(1, 0, len, &[right()]);
    torn[4500] ^= 1;
    let mut no_sector = log_entry(1, 0, len, &[right()]);
    no_sector.truncate(4096);
    no_sector[8..12].copy_from_slice(&4096u32.to_le_bytes());
    seal(&mut no_sector);
    let mut wrong_descriptor = log_entry(1, 0, len, &[right()]);
    wrong_descriptor[64] = b'x';
    seal(&mut wrong_descriptor);
    let mut wrong_sequence = log_entry(1, 0, len, &[right()]);
    wrong_sequence[64 + 24] = 2;
    seal(&mut wrong_sequence);
    let mut many = log_entry(1, 0, len, &[right()]);
    many[24..28].fill(0xff);
    seal(&mut many);
    for (what, entry) in [
        ("none", vec![]),
        ("torn", torn),
        ("no data sector", no_sector),
        ("an unknown descriptor", wrong_descriptor),
        ("a descriptor of another entry", wrong_sequence),
        ("descriptors without end", many),
        ("tail outside", log_entry(1, 4096, len, &[right()])),
        ("file cut short", log_entry(1, 0, len + MIB, &[right()])),
        ("over the headers", log_entry(1, 0, len, &[Change::Data(65_536, vec![0; 4096])])),
        ("unaligned", log_entry(1, 0, len, &[Change::Data(bat + 512, vec![0; 4096])])),
        ("over itself", log_entry(1, 0, len, &[Change::Data(log as u64, vec![0; 4096])])),
    ] {
        let mut file = file.clone();
        put_log(&mut file, log, 0, &[entry]);
        let error = open_bytes(file).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
    }
    let mut file = file.clone();
    put_log(&mut file, log, 0, &[log_entry(1, 0, len, &[Change::Zero(1 << 30, 1 << 60)])]);
    assert_eq!(open_bytes(file).err().unwrap().kind(), ErrorKind::Unsupported);
}

#[test]
fn bad_input_is_an_error() {
    let dir = scratch();
    let parent_contents = contents(2 * MIB);
    let good = qemu_image(dir.path(), &parent_contents);
    let (child, _) = differencing(&good, &parent_contents, 512, &STATES, in_pieces);
    let (mut dirty, bat_sector, log) = with_its_bat_in_the_log(&good);
    put_log(&mut dirty, log, 0, &[log_entry(1, 0, good.len(), &[bat_sector])]);
    check_hostile(&good, 0, |file| open_and_read(file, Format::Vhdx));
    let (bat, metadata) = (bat_at(&good), metadata_at(&good));
    for (base, at, len) in [
        (&good, HEADERS[1], 80),
        (&good, REGION_TABLES[0], 80),
        (&good, metadata, 200),
        (&good, metadata + (64 << 10), 40),
        (&good, bat, 24),
        (&child, metadata + 0x20_000, 80),
        (&child, bat_at(&child), 16),
        (&dirty, log, 96),
    ] {
        for width in [2, 4, 8] {
            for field in (at..at + len).step_by(width) {
                for value in [0, u64::MAX, 1, u64::MAX >> 1, 0x8000_0000_8000_8000, 0x10_0000] {
                    let mut bytes = base.clone();
                    bytes[field..field + width].copy_from_slice(&value.to_le_bytes()[..width]);
                    for header in HEADERS {
                        seal(&mut bytes[header..header + 4096]);
                    }
                    for table in REGION_TABLES {
                        seal(&mut bytes[table..table + (64 << 10)]);
                    }
                    if at == log {
                        let len = usize::try_from(u32_at(&bytes, log + 8)).unwrap().min(MIB);
                        if len > 8 {
                            seal(&mut bytes[log..log + len]);
                        }
                    }
                    let result = open_and_read(Arc::new(Memory::new(bytes)), Format::Vhdx);
                    if let Err(error) = result {
                        let kinds = [ErrorKind::Corrupt, ErrorKind::Unsupported, ErrorKind::Refused];
                        assert!(kinds.contains(&error.kind()), "{field:#x} set to {value:#x}: {error:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_raw_disk_is_not_a_vhdx() {
    for len in [0, 1, 7, 8, 512, 4096] {
        assert!(matches!(image::vhdx::probe(&Memory::new(vec![7; len])).unwrap(), Probe::No));
    }
    let signature_alone = image::vhdx::probe(&Memory::new(b"vhdxfile".repeat(1024))).unwrap();
    assert!(matches!(signature_alone, Probe::Broken(_)));
}

#[test]
fn reads_disks_of_other_programs() {
    let dir = scratch();
    if let Some(path) = real_image("hv-fixed.vhdx", dir.path()) {
        let expected = qemu_raw(&path, "vhdx");
        check_reads_as(&path, &expected);
        libvhdi_reads(&path, &expected);
    }
    for name in ["discutils-xfs5.vhdx", "q-iotest-dirtylog-10G-4M.vhdx"] {
        let Some(path) = real_image(name, dir.path()) else { continue };
        let replayed = dir.path().join("replayed.vhdx");
        fs::copy(&path, &replayed).unwrap();
        run("qemu-img", &["check", "-q", "-r", "all", "-f", "vhdx", text(&replayed)]);
        reads_as_qemu_does(&path, &replayed);
    }
}

/// Compares a large disk where it holds data, and where what qemu made of it does.
fn reads_as_qemu_does(path: &Path, replayed: &Path) {
    let chain = open(path).unwrap();
    let raw = replayed.with_extension("raw");
    run("qemu-img", &["convert", "-f", "vhdx", "-O", "raw", text(replayed), text(&raw)]);
    let oracle = open_as(TestFile::open(&raw), Format::Raw).unwrap();
    assert_eq!(chain.len_bytes(), oracle.len_bytes());
    let map = run("qemu-img", &["map", "-f", "raw", "--output=json", text(&raw)]);
    let map: Vec<serde_json::Value> = serde_json::from_str(&map).unwrap();
    let qemus = map.iter().filter(|extent| extent["data"] == true).map(|extent| {
        Span::new(Offset::new(extent["start"].as_u64().unwrap()), extent["length"].as_u64().unwrap())
    });
    let ours = chain.map(Span::from_zero(chain.len_bytes())).unwrap();
    let ours = ours.iter().filter(|run| matches!(run.state, RunState::Data { .. })).map(|run| run.span);
    let mut compared = 0;
    for span in qemus.chain(ours).flat_map(|span| span.split(1 << 20)) {
        let mut bytes = [vec![0; MIB], vec![0; MIB]];
        let len = usize::try_from(span.len_bytes()).unwrap();
        chain.read_at(span.start(), &mut bytes[0][..len]).unwrap();
        oracle.read_at(span.start(), &mut bytes[1][..len]).unwrap();
        assert!(bytes[0] == bytes[1], "contents of {span:?}");
        compared += len;
    }
    assert!(compared > 0, "something was compared");
}
