//! VMDK extents that no tool here can make, built by hand; references, refusals and bad input.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use block::{Disk, Error, ErrorKind, HostFile, Memory, ReadAt, Result, RunState};
use extent::{Offset, Span};
use image::vmdk::Corrupt;
use image::{Chain, CreateOptions, Format, OpenOptions, Purpose, Resolver};
use testkit::{TestFile, TestResolver, check_disk, check_hostile, run, scratch, write_image};

const SECTOR: usize = 512;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn put(image: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if image.len() < at + bytes.len() {
        image.resize(at + bytes.len(), 0);
    }
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

fn put_words(image: &mut Vec<u8>, at: usize, words: &[u32]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    put(image, at, &bytes);
}

fn put_longs(image: &mut Vec<u8>, at: usize, longs: &[u64]) {
    let bytes: Vec<u8> = longs.iter().flat_map(|long| long.to_le_bytes()).collect();
    put(image, at, &bytes);
}

fn describe(create_type: &str, extents: &str, parent: &str) -> String {
    format!(
        "# Disk DescriptorFile\nversion=1\nCID=fffffffe\n{parent}\ncreateType=\"{create_type}\"\n\n\
         # Extent description\n{extents}\n"
    )
}

const NO_PARENT: &str = "parentCID=ffffffff";

/// Files in memory.
#[derive(Default)]
struct Files {
    files: BTreeMap<String, Vec<u8>>,
    asked: Mutex<Vec<(String, Purpose)>>,
}

impl Resolver for Files {
    fn open(&self, _from: &dyn HostFile, name: &str, purpose: Purpose) -> Result<Arc<dyn HostFile>> {
        self.asked.lock().unwrap().push((name.to_owned(), purpose));
        match self.files.get(name) {
            Some(bytes) => Ok(Arc::new(Memory::named(name, bytes.clone()))),
            None => Err(Error::refused(format!("refers to '{name}', which is not granted"))),
        }
    }
}

fn open_text(text: &str, files: &Files) -> Result<Chain> {
    let file = Arc::new(Memory::named("disk.vmdk", text.as_bytes().to_vec()));
    Chain::open(file, OpenOptions::default(), files)
}

/// A COWD extent of 3 MiB: grains of one sector, two tables, the second of which is absent or half used.
fn cowd(sectors: u32) -> (Vec<u8>, Vec<u8>) {
    let mut image = Vec::new();
    let mut expected = vec![0; sectors as usize * SECTOR];
    put(&mut image, 0, b"COWD");
    put_words(&mut image, 4, &[1, 3, sectors, 1, 4, sectors.div_ceil(4096), 200]);
    // Directory in sector 4, tables of 32 sectors from 5 and 37, grains from 80.
    put_words(&mut image, 4 * SECTOR, &[5, 37]);
    put(&mut image, (37 + 32) * SECTOR - 1, &[0]);
    for (index, grain) in [0u32, 1, 2, 100, 4095, 4096, 5000, sectors - 1].into_iter().enumerate() {
        let sector = 80 + u32::try_from(index).unwrap();
        let table = if grain < 4096 { 5 } else { 37 };
        put_words(&mut image, table * SECTOR + (grain as usize % 4096) * 4, &[sector]);
        let contents = [index.to_le_bytes()[0] + 1; SECTOR];
        put(&mut image, sector as usize * SECTOR, &contents);
        put(&mut expected, grain as usize * SECTOR, &contents);
    }
    (image, expected)
}

/// An SESparse extent of 40 MiB with every kind of entry.
fn sesparse() -> (Vec<u8>, Vec<u8>) {
    sesparse_up_to(9)
}

/// The same, whose last grain has the number `last`.
fn sesparse_up_to(last: u64) -> (Vec<u8>, Vec<u8>) {
    const CAPACITY: u64 = 40 << 11;
    let mut image = Vec::new();
    let mut expected = vec![0; 40 << 20];
    put_longs(&mut image, 0, &[0xcafe_babe, 0x2_0000_0001, CAPACITY, 8, 64, 0]);
    let areas: [u64; 16] = [1, 1, 2, 2, 4, 4, 8, 8, 16, 64 * 3, 208, 8, 216, 8, 224, 8 * (last + 1)];
    put_longs(&mut image, 80, &areas);
    put(&mut image, SECTOR - 1, &[0]);
    put_longs(&mut image, SECTOR, &[0xcafe_cafe, 0, 0, 0]);
    // Tables 2, none and 0 for the three entries.
    put_longs(&mut image, 8 * SECTOR, &[0x1000_0000_0000_0002, 0, 0x1000_0000_0000_0000]);
    let table = |number: usize| (16 + 64 * number) * SECTOR;
    put_longs(&mut image, table(2) + 8, &[1 << 60, 2 << 60]);
    for (number, grain) in [(3u64, 0usize), (0, 5), (4, 4095), (7, 8192), (last, 10_239)] {
        let entry = 3 << 60 | (number & 0xfff) << 48 | number >> 12;
        let place = table(if grain < 4096 { 2 } else { 0 });
        put_longs(&mut image, place + grain % 4096 * 8, &[entry]);
        let contents = [grain.to_le_bytes()[0] ^ 0x55; 4096];
        put(&mut image, (224 + 8 * usize::try_from(number).unwrap()) * SECTOR, &contents);
        put(&mut expected, grain * 4096, &contents);
    }
    (image, expected)
}

/// The contents as qemu-img reads the files in `dir`.
fn converted(descriptor: &Path) -> Vec<u8> {
    let raw = descriptor.with_extension("oracle");
    run("qemu-img", &["convert", "-f", "vmdk", "-O", "raw", text(descriptor), text(&raw)]);
    std::fs::read(raw).unwrap()
}

#[test]
fn server_extents_read_as_qemu_reads_them() {
    let dir = scratch();
    let cases = [
        ("vmfsSparse", "RW 6144 VMFSSPARSE \"d-delta.vmdk\"", "d-delta.vmdk", cowd(6144)),
        ("seSparse", "RW 81920 SESPARSE \"d-sesparse.vmdk\"", "d-sesparse.vmdk", sesparse_up_to(0x1003)),
    ];
    for (create_type, extents, name, (image, expected)) in cases {
        let descriptor = dir.path().join(format!("{create_type}.vmdk"));
        std::fs::write(&descriptor, describe(create_type, extents, NO_PARENT)).unwrap();
        std::fs::write(dir.path().join(name), &image).unwrap();
        let chain =
            Chain::open(TestFile::open(&descriptor), OpenOptions::default(), &TestResolver::default())
                .unwrap();
        check_disk(&chain, chain.files(), &expected);
        assert!(converted(&descriptor) == expected, "qemu-img reads {create_type} so too");
        assert_eq!(chain.facts().variant, create_type);
    }
}

#[test]
fn a_server_delta_reads_through_a_flat_parent() {
    let (image, over) = cowd(6144);
    let mut base = vec![0xbb; 6144 * SECTOR];
    let mut files = Files::default();
    files.files.insert("d-delta.vmdk".into(), image);
    files.files.insert("base-flat.vmdk".into(), base.clone());
    let flat = describe("vmfs", "RW 6144 VMFS \"base-flat.vmdk\"", NO_PARENT).replace("fffffffe", "1f");
    files.files.insert("base.vmdk".into(), flat.into_bytes());
    let parent = "parentCID=0000001f\nparentFileNameHint=\"/vmfs/volumes/x/base.vmdk\"";
    let top = describe("vmfsSparse", "RW 6144 VMFSSPARSE \"d-delta.vmdk\"", parent);
    for (sector, over) in base.chunks_mut(SECTOR).zip(over.chunks(SECTOR)) {
        if over.iter().any(|byte| *byte != 0) {
            sector.copy_from_slice(over);
        }
    }
    let chain = open_text(&top, &files).unwrap();
    check_disk(&chain, chain.files(), &base);
    let asked = files.asked.lock().unwrap().clone();
    let expected = [
        ("d-delta.vmdk", Purpose::Data),
        ("/vmfs/volumes/x/base.vmdk", Purpose::Parent),
        ("base.vmdk", Purpose::Parent),
        ("base-flat.vmdk", Purpose::Data),
    ];
    assert_eq!(asked, expected.map(|(name, purpose)| (name.to_owned(), purpose)));
}

#[test]
fn flat_zero_and_sparse_parts_make_one_disk() {
    let (image, sparse) = cowd(6144);
    let mut files = Files::default();
    files.files.insert("a b.bin".into(), (0..8192u32).map(|at| at.to_le_bytes()[0] | 1).collect());
    files.files.insert("s.vmdk".into(), image);
    let extents =
        "RW 3 FLAT \"a b.bin\" 1\nRW 5 ZERO\nRW 6144 SPARSE \"s.vmdk\"\nRDONLY 2 FLAT \"a b.bin\" 14";
    let mut expected = files.files["a b.bin"][512..2048].to_vec();
    expected.extend([0; 5 * 512]);
    expected.extend(sparse);
    expected.extend(&files.files["a b.bin"][7168..8192]);
    let chain = open_text(&describe("custom", extents, NO_PARENT), &files).unwrap();
    assert_eq!(chain.files().len(), 3, "a file named twice is one file");
    check_disk(&chain, chain.files(), &expected);
}

fn error_of(create_type: &str, extents: &str, files: &Files) -> Error {
    open_text(&describe(create_type, extents, NO_PARENT), files).err().unwrap()
}

fn refusal(create_type: &str, extents: &str, files: &Files) -> (ErrorKind, String) {
    let error = error_of(create_type, extents, files);
    (error.kind(), format!("{error} {}", error.hint_text().unwrap_or_default()))
}

#[test]
fn references_go_to_the_resolver_as_they_are() {
    for name in [
        "../up.vmdk",
        "/etc/passwd",
        "json:{\"driver\":\"file\"}",
        "nbd://host/x",
        "link.vmdk",
        "\\\\.\\PhysicalDrive0",
    ] {
        for line in [format!("RW 1 FLAT \"{name}\" 0"), format!("RW 1 SPARSE \"{name}\"")] {
            let files = Files::default();
            let (kind, message) = refusal("custom", &line, &files);
            assert_eq!(kind, ErrorKind::Refused);
            assert!(message.contains(name), "{message}");
            assert_eq!(*files.asked.lock().unwrap(), [(name.to_owned(), Purpose::Data)]);
        }
    }
}

#[test]
fn what_is_not_read_is_told() {
    let mut files = Files::default();
    files.files.insert("f".into(), vec![1; 1024]);
    let (image, _) = cowd(6144);
    let with = |at: usize, bytes: &[u8]| {
        let mut image = image.clone();
        put(&mut image, at, bytes);
        image
    };
    files.files.insert("cowd".into(), image.clone());
    files.files.insert("inconsistent".into(), with(8, &[7]));
    files.files.insert("low grain".into(), with(5 * SECTOR, &[1, 0, 0, 0]));
    files.files.insert("high table".into(), with(4 * SECTOR, &[0, 0, 1, 0]));
    let (se, _) = sesparse();
    let mut dirty = se.clone();
    put(&mut dirty, SECTOR + 24, &[1]);
    files.files.insert("journal".into(), dirty);
    files.files.insert("se".into(), se);
    let broken = [
        ("monolithicFlat", "RW 3 FLAT \"f\" 0", Corrupt::FlatExtent, "its end", None),
        ("monolithicFlat", "RW 1 FLAT \"f\" 18446744073709551615", Corrupt::FlatExtent, "its end", None),
        (
            "monolithicFlat",
            "RW 9223372036854775807 ZERO",
            Corrupt::ExtentDescription,
            "sectors",
            Some(i64::MAX.unsigned_abs()),
        ),
        ("custom", "", Corrupt::Descriptor, "number of extents", Some(0)),
        ("custom", "RW 1 SPARSE \"f\"", Corrupt::SparseExtent, "magic number", None),
        ("custom", "RW 6145 SPARSE \"cowd\"", Corrupt::SparseExtent, "capacity", None),
        ("custom", "RW 6143 SPARSE \"cowd\"", Corrupt::SparseExtent, "capacity", None),
        ("custom", "RW 6144 SPARSE \"high table\"", Corrupt::GrainDirectory, "entry 0", Some(0x10000)),
    ];
    for (create_type, extents, cause, field, number) in broken {
        let error = error_of(create_type, extents, &files);
        assert_eq!((error.kind(), error.cause()), (ErrorKind::Corrupt, Some(&cause)), "{extents}: {error}");
        let found = error.wrong_field().map(|found| (found.name(), found.found().number()));
        assert_eq!(found, Some((field, number)), "{extents}: {error}");
    }
    let other = error_of("custom", "RW 81920 SPARSE \"se\"", &files);
    assert_eq!(other.cause(), Some(&Corrupt::WrongExtentType));
    let cases = [
        ("fullDevice", "RW 1 FLAT \"/dev/sda\" 0", ErrorKind::Unsupported, "devices of the host"),
        ("vmfsRawDeviceMap", "RW 1 VMFSRDM \"x\"", ErrorKind::Unsupported, "VMFSRDM"),
        ("custom", "RW 1 SESPARSE \"f\"", ErrorKind::Unsupported, "magic number"),
        ("custom", "RW 6144 SPARSE \"inconsistent\"", ErrorKind::Refused, "inconsistent"),
        ("custom", "RW 81920 SESPARSE \"journal\"", ErrorKind::Refused, "journal"),
    ];
    for (create_type, extents, kind, part) in cases {
        let (found, message) = refusal(create_type, extents, &files);
        assert_eq!(found, kind, "{extents}: {message}");
        assert!(message.contains(part), "{extents}: {message}");
    }
    let text = describe("custom", "RW 6144 SPARSE \"low grain\"", NO_PARENT);
    let error = open_text(&text, &files).unwrap().map(Span::from_zero(512)).unwrap_err();
    assert_eq!(error.cause(), Some(&Corrupt::GrainTable));
    assert!(
        error.wrong_field().is_some_and(|field| field.expected().contains("behind the header")),
        "{error}"
    );
    // Each of these lines is a disk of 128 TiB with all its tables.
    let mut huge = vec![0; 2 * SECTOR + (16 << 20)];
    put(&mut huge, 0, b"KDMV");
    put_words(&mut huge, 4, &[1, 0, 0, 64, 128]);
    put(&mut huge, 44, &512u32.to_le_bytes());
    put(&mut huge, 56, &[2]);
    files.files.insert("huge".into(), huge);
    let (kind, message) =
        refusal("custom", &format!("RW {} SPARSE \"huge\"\n", 64u64 << 32).repeat(100), &files);
    assert_eq!(kind, ErrorKind::Unsupported, "{message}");
    assert!(message.contains("number of grain tables"), "{message}");
    let encrypted = describe("custom", "encryption.keySafe = \"x\"", NO_PARENT);
    assert_eq!(open_text(&encrypted, &files).err().unwrap().kind(), ErrorKind::Refused);
}

fn open_named(name: &str, bytes: &[u8]) -> (ErrorKind, String) {
    let file = Arc::new(Memory::named(name, bytes.to_vec()));
    let error = Chain::open(file, OpenOptions::default(), &Files::default()).err().unwrap();
    (error.kind(), format!("{error} {}", error.hint_text().unwrap_or_default()))
}

#[test]
fn an_extent_instead_of_its_descriptor_is_told() {
    let dir = scratch();
    let split = dir.path().join("disk.vmdk");
    run("qemu-img", &["create", "-qf", "vmdk", "-o", "subformat=twoGbMaxExtentSparse", text(&split), "1m"]);
    let sparse = std::fs::read(dir.path().join("disk-s001.vmdk")).unwrap();
    let own = written("monolithicSparse", &[1; 4096]);
    for (name, bytes) in [
        ("/d/disk-s001.vmdk", &sparse),
        ("/d/disk-delta.vmdk", &cowd(6144).0),
        ("/d/disk-sesparse.vmdk", &sesparse().0),
        ("/d/disk-flat.vmdk", &vec![0; 4096]),
        ("/d/disk-f001.vmdk", &vec![0; 4096]),
        // What a guest wrote into its flat disk is not believed.
        ("/d/disk-flat.vmdk", &own),
    ] {
        let (kind, message) = open_named(name, bytes);
        assert_eq!(kind, ErrorKind::Refused, "{message}");
        assert!(message.contains("'disk.vmdk'"), "{message}");
    }
    // Even a descriptor that a guest wrote there; but a real one may have any name.
    let mut text = describe("custom", "RW 8 ZERO", NO_PARENT).into_bytes();
    let small = Arc::new(Memory::named("odd-flat.vmdk", text.clone()));
    assert!(Chain::open(small, OpenOptions::default(), &Files::default()).is_ok());
    text.resize(2 << 20, 0);
    assert_eq!(open_named("odd-flat.vmdk", &text).0, ErrorKind::Refused);
    let (kind, message) = open_named("long.vmdk", &text);
    assert_eq!(kind, ErrorKind::Corrupt);
    assert!(message.contains("1048576"), "{message}");
    let (kind, message) = open_named("renamed.vmdk", &sparse);
    assert_eq!(kind, ErrorKind::Refused, "{message}");
}

fn written(subformat: &str, contents: &[u8]) -> Vec<u8> {
    let dir = scratch();
    let path = dir.path().join("written.vmdk");
    let options = CreateOptions {
        virtual_bytes: contents.len() as u64,
        sector_bytes: 512,
        compress: false,
        keys: [("subformat".to_owned(), subformat.to_owned())].into(),
        identity_seed: 99,
        created_unix_seconds: 0,
        file_name: "written.vmdk".into(),
        target_is_dirty: false,
    };
    write_image(&mut *image::create(Format::Vmdk, options).unwrap(), contents, &path);
    std::fs::read(&path).unwrap()
}

fn contents() -> Vec<u8> {
    let mut contents: Vec<u8> = (0..300_000u32).map(|at| (at / 7).to_le_bytes()[0]).collect();
    contents.resize(35 << 20, 0);
    contents.resize((35 << 20) + 1024, 3);
    contents
}

fn open_bytes(bytes: Vec<u8>) -> Result<Chain> {
    Chain::open(Arc::new(Memory::named("d.vmdk", bytes)), OpenOptions::default(), &Files::default())
}

#[test]
fn the_redundant_directory_helps_out() {
    let good = written("monolithicSparse", &contents());
    let primary = usize::try_from(u64::from_le_bytes(good[56..64].try_into().unwrap())).unwrap() * SECTOR;
    let mut bad = good.clone();
    put(&mut bad, primary, &[0xff; 4]);
    let chain = open_bytes(bad.clone()).unwrap();
    check_disk(&chain, chain.files(), &contents());
    assert!(chain.facts().details.iter().any(|(_, value)| value.contains("redundant")));
    // Not where the header does not vouch for it, and not where both are broken.
    let mut without = bad.clone();
    put(&mut without, 8, &[1]);
    assert_eq!(open_bytes(without).err().unwrap().kind(), ErrorKind::Corrupt);
    put(&mut bad, 21 * SECTOR + 4, &[0xff; 4]);
    assert_eq!(open_bytes(bad).err().unwrap().kind(), ErrorKind::Corrupt);
    let sound = open_bytes(good).unwrap();
    assert!(!sound.facts().details.iter().any(|(_, value)| value.contains("redundant")));
}

#[test]
fn streams_in_their_other_forms() {
    let stream = written("streamOptimized", &contents());
    // A transfer that fills the file up.
    let mut padded = stream.clone();
    padded.resize(stream.len() + 10_240, 0);
    check_disk(&open_bytes(padded.clone()).unwrap(), open_bytes(padded).unwrap().files(), &contents());
    // The directory's place in the header, and no footer.
    let footer = stream.len() - 2 * SECTOR;
    let mut known = stream[..footer - SECTOR].to_vec();
    known[56..64].copy_from_slice(&stream[footer + 56..footer + 64]);
    check_disk(&open_bytes(known.clone()).unwrap(), open_bytes(known).unwrap().files(), &contents());
    // Without markers: the entries point to the data themselves, cut to sectors.
    let bare = without_markers(&stream);
    check_disk(&open_bytes(bare.clone()).unwrap(), open_bytes(bare).unwrap().files(), &contents());
    let truncated = open_bytes(stream[..stream.len() - 700].to_vec()).err().unwrap();
    assert!(truncated.to_string().contains("footer"), "{truncated}");
    let mut unclean = stream;
    unclean[72] = 1;
    let facts = open_bytes(unclean).unwrap().facts().clone();
    assert!(facts.details.iter().any(|(key, _)| *key == "unclean shutdown"));
}

/// Drops the marker before each grain by moving its data, and clears the flag in header and footer.
fn without_markers(stream: &[u8]) -> Vec<u8> {
    let mut bare = stream.to_vec();
    for at in [0, stream.len() - 2 * SECTOR] {
        bare[at + 8..at + 12].copy_from_slice(&0x1_0001u32.to_le_bytes());
    }
    let mut at = 128 * SECTOR;
    loop {
        let size = u32::from_le_bytes(stream[at + 8..at + 12].try_into().unwrap()) as usize;
        if size == 0 {
            let kind = u32::from_le_bytes(stream[at + 12..at + 16].try_into().unwrap());
            if kind == 0 {
                return bare;
            }
            // Few sectors: the lower half of the count will do.
            let count = u32::from_le_bytes(stream[at..at + 4].try_into().unwrap()) as usize;
            at += (1 + count) * SECTOR;
        } else {
            bare.copy_within(at + 12..at + 12 + size, at);
            at = (at + 12 + size).next_multiple_of(SECTOR);
        }
    }
}

#[test]
fn damaged_grains_of_a_stream_are_corrupt() {
    let stream = written("streamOptimized", &contents());
    for (at, byte) in [(0, 7), (8, 0), (11, 0x7f), (12, 0), (40, 0xff), (60, 0xff)] {
        let mut bad = stream.clone();
        bad[128 * SECTOR + at] ^= byte;
        if at == 8 {
            bad[128 * SECTOR + 8..][..4].fill(0);
        } else if at == 12 {
            bad[128 * SECTOR + 12] = 0;
        }
        let chain = open_bytes(bad).unwrap();
        let error = chain.read_at(Offset::ZERO, &mut [0; 512]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{at}: {error}");
    }
}

/// Opens, maps and reads the first and last bytes.
fn walk(file: Arc<dyn HostFile>, options: OpenOptions, files: &Files) -> Result<()> {
    let chain = Chain::open(file, options, files)?;
    let len_bytes = chain.len_bytes();
    let some = len_bytes.min(64 << 20);
    for start in [0, len_bytes - some] {
        chain.map(Span::new(Offset::new(start), some))?;
    }
    let mut bytes = vec![0; usize::try_from(some.min(1 << 12)).unwrap()];
    chain.read_at(Offset::ZERO, &mut bytes)?;
    chain.read_at(Offset::new(len_bytes - bytes.len() as u64), &mut bytes)
}

#[test]
fn bad_sparse_files_are_told_soon() {
    for subformat in ["monolithicSparse", "streamOptimized"] {
        let good = written(subformat, &contents()[..20_000]);
        for (format, header_bytes) in [(None, 512 + 640), (Some(Format::Vmdk), 96)] {
            check_hostile(&good, header_bytes, |file| walk(file, OpenOptions { format }, &Files::default()));
        }
        // The tables: at the front of one, at the end of the other.
        let tables = if subformat == "monolithicSparse" { 21 * SECTOR } else { good.len() - 10 * SECTOR };
        let mut turned = good[tables..].to_vec();
        turned.extend(&good[..tables]);
        check_hostile(&turned, if tables < good.len() / 2 { 1100 } else { 10 * SECTOR }, |file| {
            let split = usize::try_from(file.len_bytes()).unwrap().saturating_sub(tables);
            let mut bytes = block::read_vec(&file, Offset::ZERO, file.len_bytes(), "all").unwrap();
            bytes.rotate_left(split);
            walk(Arc::new(Memory::new(bytes)), OpenOptions::default(), &Files::default())
        });
    }
}

#[test]
fn bad_server_extents_are_told_soon() {
    for (line, image, header_bytes) in
        [("RW 6144 VMFSSPARSE \"e\"", cowd(6144).0, 64), ("RW 81920 SESPARSE \"e\"", sesparse().0, 208)]
    {
        let descriptor = describe("custom", line, NO_PARENT);
        let open = |file: Arc<dyn HostFile>| {
            let bytes = block::read_vec(&file, Offset::ZERO, file.len_bytes(), "all").unwrap();
            let mut files = Files::default();
            files.files.insert("e".into(), bytes);
            let top = Arc::new(Memory::named("d.vmdk", descriptor.clone().into_bytes()));
            walk(top, OpenOptions::default(), &files)
        };
        check_hostile(&image, header_bytes, open);
        // Directory and first table.
        let start = if line.contains("SESP") { 8 * SECTOR } else { 4 * SECTOR };
        let mut turned = image.clone();
        turned.rotate_left(start);
        check_hostile(&turned, 600, |file| {
            let mut bytes = block::read_vec(&file, Offset::ZERO, file.len_bytes(), "all").unwrap();
            let turn = start.min(bytes.len());
            bytes.rotate_right(turn);
            open(Arc::new(Memory::new(bytes)))
        });
    }
}

#[test]
fn bad_descriptors_are_told_soon() {
    let text =
        describe("custom", "RW 6144 VMFSSPARSE \"e\"\nRW 10 ZERO", "parentCID=1\nparentFileNameHint=\"p\"");
    let mut files = Files::default();
    files.files.insert("e".into(), cowd(6144).0);
    files
        .files
        .insert("p".into(), describe("custom", "RW 1 ZERO", NO_PARENT).replace("fffffffe", "1").into());
    let stated = OpenOptions { format: Some(Format::Vmdk) };
    check_hostile(text.as_bytes(), text.len(), |file| walk(file, stated, &files));
}

#[test]
fn an_extent_may_be_mapped_as_zeros() {
    let chain = open_text(&describe("custom", "NOACCESS 8 ZERO", NO_PARENT), &Files::default()).unwrap();
    assert_eq!(chain.map(Span::from_zero(4096)).unwrap()[0].state, RunState::Zero);
}
