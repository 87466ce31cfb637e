//! VHD against the programs that define it in practice: QEMU and libvhdi, and disks that others wrote.

use std::fs;
use std::sync::Arc;

use crate::vhd_shared::{
    check_reads_as, contents, libvhdi_reads, open, open_and_read, open_as, options, qemu_info, qemu_raw,
    text, write_with_restarts,
};
use block::{ErrorKind, Memory, ReadAt};
use image::vhd::Corrupt;
use image::{BrokenChain, BrokenImage, Chain, Format, OpenOptions, Probe, create};
use testkit::vhd::{differencing, seal};
use testkit::{TestFile, TestResolver, check_hostile, real_image, run, scratch, write_image};

const MIB: u64 = 1 << 20;

#[test]
fn reads_what_qemu_writes() {
    let dir = scratch();
    for (index, create_options) in [
        "subformat=dynamic",
        "subformat=dynamic,force_size=on",
        "subformat=fixed",
        "subformat=fixed,force_size=on",
    ]
    .into_iter()
    .enumerate()
    {
        let path = dir.path().join(format!("{index}.vhd"));
        run("qemu-img", &["create", "-q", "-f", "vpc", "-o", create_options, text(&path), "23M"]);
        let writes =
            ["write -P 1 0 512", "write -P 2 1M 3M", "write -P 3 8388096 1024", "write -P 4 22M 512K"];
        let mut args = vec!["-f", "vpc"];
        args.extend(writes.iter().flat_map(|write| ["-c", write]));
        args.push(text(&path));
        run("qemu-io", &args);
        let expected = qemu_raw(&path, "vpc");
        check_reads_as(&path, &expected);
        let facts = open(&path).unwrap().facts().clone();
        assert_eq!(facts.variant, if index < 2 { "dynamic" } else { "fixed" });
        assert_eq!(facts.format, Format::Vhd);
    }
}

#[test]
fn what_is_written_is_what_qemu_and_libvhdi_read() {
    let dir = scratch();
    let path = dir.path().join("disk.vhd");
    for len in [9 * MIB + 3 * 512, 16 * MIB, 512] {
        let expected = contents(usize::try_from(len).unwrap());
        let raw = dir.path().join("expected.raw");
        fs::write(&raw, &expected).unwrap();
        for keys in [
            &[("subformat", "dynamic")][..],
            &[],
            &[("block_size", "512K")],
            &[("block_size", "1M")],
            &[("subformat", "fixed")],
        ] {
            let mut writer = create(Format::Vhd, options(len, keys)).unwrap();
            write_image(&mut *writer, &expected, &path);
            let info = qemu_info(&path, "vpc");
            assert_eq!(info["virtual-size"], len, "{keys:?}");
            run("qemu-img", &["compare", "-f", "vpc", "-F", "raw", text(&path), text(&raw)]);
            assert_eq!(qemu_raw(&path, "vpc"), expected, "{keys:?}");
            let said = run("vhdiinfo", &[text(&path)]);
            assert!(said.contains(&format!("{len} bytes")), "{said}");
            check_reads_as(&path, &expected);
            let once = fs::read(&path).unwrap();
            write_with_restarts(Format::Vhd, options(len, keys), &expected, &path);
            assert!(fs::read(&path).unwrap() == once, "restarts change nothing: {keys:?}");
        }
    }
}

#[test]
fn an_empty_disk_and_odd_sizes_are_rounded_up_to_sectors() {
    let dir = scratch();
    let path = dir.path().join("disk.vhd");
    for keys in [&[("subformat", "fixed")][..], &[]] {
        let mut writer = create(Format::Vhd, options(5 * MIB + 1, keys)).unwrap();
        write_image(&mut *writer, &contents(usize::try_from(5 * MIB + 1).unwrap()), &path);
        assert_eq!(qemu_info(&path, "vpc")["virtual-size"], 5 * MIB + 512);
        let mut writer = create(Format::Vhd, options(300 << 30, &[])).unwrap();
        write_image(&mut *writer, &[], &path);
        assert_eq!(qemu_info(&path, "vpc")["virtual-size"], 300u64 << 30);
        assert_eq!(open(&path).unwrap().len_bytes(), 300 << 30);
    }
}

fn dynamic_bytes() -> (Vec<u8>, Vec<u8>) {
    let dir = scratch();
    let path = dir.path().join("disk.vhd");
    let expected = contents(usize::try_from(9 * MIB).unwrap());
    write_image(&mut *create(Format::Vhd, options(9 * MIB, &[])).unwrap(), &expected, &path);
    (fs::read(path).unwrap(), expected)
}

fn open_bytes(bytes: Vec<u8>) -> Result<Chain, block::Error> {
    Chain::open(Arc::new(Memory::named("disk.vhd", bytes)), OpenOptions::default(), &TestResolver::default())
}

fn note(chain: &Chain) -> Option<&str> {
    chain.facts().details.iter().find(|(name, _)| *name == "note").map(|(_, note)| &note[..])
}

#[test]
fn either_footer_will_do_if_the_other_is_damaged() {
    let (good, expected) = dynamic_bytes();
    assert_eq!(note(&open_bytes(good.clone()).unwrap()), None);
    let end = good.len();
    let flip = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    for (bytes, said) in [
        (flip(50), "the copy of the footer at the start is damaged"),
        (flip(0), "the copy of the footer at the start is missing"),
        (flip(end - 400), "the footer at the end is damaged"),
        (flip(end - 512), "the footer at the end is missing"),
        (good[..end - 512].to_vec(), "the footer at the end is missing"),
    ] {
        let chain = open_bytes(bytes).unwrap();
        assert!(note(&chain).unwrap().starts_with(said), "{:?}", note(&chain));
        testkit::check_disk(&chain, chain.files(), &expected);
    }
    // The footer of 511 bytes that Virtual PC wrote before 2004.
    let chain = open_bytes(good[..end - 1].to_vec()).unwrap();
    assert_eq!(note(&chain), None);
    testkit::check_disk(&chain, chain.files(), &expected);
    let error = open_bytes(flip(600)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(matches!(error.cause(), Some(Corrupt::DynamicHeaderChecksum { .. })), "{error}");
    let mut neither = flip(50);
    neither[end - 400] ^= 1;
    let error = open_bytes(neither).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(matches!(error.cause(), Some(Corrupt::FooterChecksum { .. })), "{error}");
}

#[test]
fn a_fixed_disk_is_known_by_its_whole_footer() {
    let dir = scratch();
    let path = dir.path().join("disk.vhd");
    // The guest's first sector looks like the start of a dynamic VHD: it is data.
    let (dynamic, _) = dynamic_bytes();
    let mut expected = contents(usize::try_from(3 * MIB).unwrap());
    expected[..2048].copy_from_slice(&dynamic[..2048]);
    let keys = [("subformat", "fixed")];
    write_image(&mut *create(Format::Vhd, options(3 * MIB, &keys)).unwrap(), &expected, &path);
    check_reads_as(&path, &expected);
    // A byte more or less, or a damaged footer, and it is not taken for a disk of another size.
    let good = fs::read(&path).unwrap();
    let mut longer = good[..512].to_vec();
    longer.extend(&good);
    let mut damaged = contents(usize::try_from(3 * MIB).unwrap());
    damaged.extend(&good[good.len() - 512..]);
    let at = damaged.len() - 500;
    damaged[at] ^= 1;
    for bytes in [longer, damaged] {
        let error = open_bytes(bytes).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

/// A differencing disk of `parent`: two of three blocks have a bitmap in which some sectors lie here.
fn child_of(
    parent: &[u8],
    parent_contents: &[u8],
    locators: &[(&[u8; 4], Vec<u8>)],
    is_here: fn(usize) -> bool,
) -> (Vec<u8>, Vec<u8>) {
    differencing(parent, parent_contents, locators, |block, sector| block % 3 != 1 && is_here(sector))
}

/// Pieces that begin and end at any sector.
fn in_pieces(sector: usize) -> bool {
    (sector / 7 + sector / 64).is_multiple_of(2)
}

/// Pieces that end where a byte of the bitmap does: libvhdi 20210425 takes the rest of the byte after a piece's
/// end for this file's, against the specification and all other readers.
fn in_pieces_to_whole_bytes(sector: usize) -> bool {
    sector % 24 >= sector / 24 % 25
}

#[test]
fn the_size_is_qemus_for_every_creator_that_it_knows() {
    let dir = scratch();
    let path = dir.path().join("disk.vhd");
    for (len, keys) in [(20 * MIB, &[("subformat", "fixed")][..]), (20 * MIB, &[]), (200 << 30, &[])] {
        let mut writer = create(Format::Vhd, options(len, keys)).unwrap();
        write_image(&mut *writer, &[3; 4096], &path);
        let good = fs::read(&path).unwrap();
        for creator in [b"vpc ", b"qemu", b"win ", b"qem2", b"d2v ", b"tap\0", b"CTXS"] {
            let mut bytes = good.clone();
            let end = bytes.len();
            for at in [0, end - 512] {
                if bytes[at..].starts_with(b"conectix") {
                    bytes[at + 28..at + 32].copy_from_slice(creator);
                    seal(&mut bytes[at..at + 512], 64);
                }
            }
            fs::write(&path, bytes).unwrap();
            let qemus = qemu_info(&path, "vpc")["virtual-size"].as_u64().unwrap();
            assert_eq!(open(&path).unwrap().len_bytes(), qemus, "{}", creator.escape_ascii());
            // 200 GiB are more than any geometry.
            let goes_by_geometry = [b"vpc ", b"qemu"].contains(&creator) && len < 127 << 30;
            assert_eq!(qemus != len, goes_by_geometry, "{}", creator.escape_ascii());
        }
    }
}

fn utf16(name: &str) -> Vec<u8> {
    name.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

fn locators() -> Vec<(&'static [u8; 4], Vec<u8>)> {
    vec![(b"W2ku", utf16("C:\\vm\\old place\\parent.vhd")), (b"W2ru", utf16(".\\parent.vhd"))]
}

#[test]
fn a_differencing_disk_reads_by_its_bitmaps() {
    let dir = scratch();
    let (parent, parent_contents) = dynamic_bytes();
    fs::write(dir.path().join("parent.vhd"), &parent).unwrap();
    let path = dir.path().join("child.avhd");
    for is_here in [in_pieces, in_pieces_to_whole_bytes] {
        let (child, expected) = child_of(&parent, &parent_contents, &locators(), is_here);
        fs::write(&path, &child).unwrap();
        check_reads_as(&path, &expected);
    }
    let chain = open(&path).unwrap();
    assert_eq!(chain.links().len(), 2);
    assert_eq!(chain.facts().variant, "differencing");
    let (_, expected) = child_of(&parent, &parent_contents, &locators(), in_pieces_to_whole_bytes);
    libvhdi_reads(&path, &expected);
}

#[test]
fn the_parents_names_are_tried_in_order() {
    let dir = scratch();
    let (parent, parent_contents) = dynamic_bytes();
    let mut names = locators();
    names.push((b"MacX", b"file://localhost/vm/a%20b/parent.vhd".to_vec()));
    let (child, _) = child_of(&parent, &parent_contents, &names, in_pieces);
    let path = dir.path().join("child.vhd");
    fs::write(&path, child).unwrap();
    let resolver = TestResolver::default();
    let error = Chain::open(TestFile::open(&path), OpenOptions::default(), &resolver).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("parent.vhd"), "{error}");
    assert_eq!(resolver.asked(), ["parent.vhd", "/vm/old place/parent.vhd", "/vm/a b/parent.vhd"]);
}

#[test]
fn another_parent_is_refused() {
    let dir = scratch();
    let (mut parent, parent_contents) = dynamic_bytes();
    let (child, _) = child_of(&parent, &parent_contents, &locators(), in_pieces);
    let path = dir.path().join("child.vhd");
    fs::write(&path, child).unwrap();
    let end = parent.len();
    for at in [0, end - 512] {
        parent[at + 70] ^= 1;
        seal(&mut parent[at..at + 512], 64);
    }
    fs::write(dir.path().join("parent.vhd"), &parent).unwrap();
    let error = open(&path).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(matches!(error.cause(), Some(BrokenChain::NotItsParent { .. })), "{error}");
}

#[test]
fn what_is_named_as_an_image_and_is_none_says_why() {
    let dir = scratch();
    let path = dir.path().join("disk.vhd");
    fs::write(&path, vec![1; 4096]).unwrap();
    let error = open(&path).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(error.cause(), Some(&BrokenImage::NoSignature { format: Format::Vhd }), "{error}");
    let (mut image, _) = dynamic_bytes();
    let footer = image.len() - 512;
    for at in [0, footer] {
        image[at + 64] ^= 1;
    }
    fs::write(&path, &image).unwrap();
    let error = open(&path).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let is_vhd = |cause: &BrokenImage| matches!(cause, BrokenImage::Header { format: Format::Vhd, .. });
    assert!(error.cause().is_some_and(is_vhd), "{error}");
}

#[test]
fn blocks_that_overlap_are_corrupt() {
    let (good, _) = dynamic_bytes();
    for (entry, value, index) in [
        (1, good[1536..1540].to_vec(), None),
        (0, 0u32.to_be_bytes().to_vec(), Some(0)),
        (0, 3u32.to_be_bytes().to_vec(), Some(0)),
        (0, 0xffff_fffeu32.to_be_bytes().to_vec(), Some(0)),
    ] {
        let mut bytes = good.clone();
        bytes[1536 + entry * 4..1540 + entry * 4].copy_from_slice(&value);
        let error = open_bytes(bytes).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        // Of two that lie in one place either may be named.
        let named = matches!(error.cause(), Some(Corrupt::BatEntry { index: found }) if index.is_none_or(|index| index == *found));
        assert!(named, "{error}");
    }
}

#[test]
fn bad_input_is_an_error() {
    let (whole, contents) = dynamic_bytes();
    let dir = scratch();
    let path = dir.path().join("disk.vhd");
    let keys = [("block_size", "512K")];
    write_image(&mut *create(Format::Vhd, options(1000 << 10, &keys)).unwrap(), &[7; 8192], &path);
    let good = fs::read(path).unwrap();
    check_hostile(&good, 2048, |file| open_and_read(file, Format::Vhd));
    // With checksums made right again, so that the fields themselves are tried.
    check_hostile(&good, 1600, |file| {
        let mut bytes = vec![0; usize::try_from(file.len_bytes()).unwrap()];
        file.read_at(extent::Offset::ZERO, &mut bytes).unwrap();
        if bytes.len() >= 2048 {
            seal(&mut bytes[..512], 64);
            seal(&mut bytes[512..1536], 36);
            let end = bytes.len();
            let copy = bytes[..512].to_vec();
            bytes[end - 512..].copy_from_slice(&copy);
        }
        open_and_read(Arc::new(Memory::new(bytes)), Format::Vhd)
    });
    let (child, _) = child_of(&whole, &contents, &locators(), in_pieces);
    check_hostile(&child[..1 << 16], 2048, |file| open_and_read(file, Format::Vhd));
}

#[test]
fn a_raw_disk_is_not_a_vhd() {
    for len in [0, 1, 511, 512, 1024, 4096] {
        assert!(matches!(image::vhd::probe(&Memory::new(vec![7; len])).unwrap(), Probe::No));
    }
    // A footer of a fixed disk in the first sector is the guest's.
    let dir = scratch();
    let path = dir.path().join("disk.vhd");
    let keys = [("subformat", "fixed")];
    write_image(&mut *create(Format::Vhd, options(MIB, &keys)).unwrap(), &[1; 4096], &path);
    let bytes = fs::read(&path).unwrap();
    let mut raw = bytes[bytes.len() - 512..].to_vec();
    raw.resize(8192, 0);
    assert!(matches!(image::vhd::probe(&Memory::new(raw)).unwrap(), Probe::No));
}

#[test]
fn reads_disks_of_other_programs() {
    let dir = scratch();
    for name in ["hv-dynamic.vhd", "q-virtualpc-dynamic.vhd"] {
        let Some(path) = real_image(name, dir.path()) else { continue };
        let virtual_bytes = qemu_info(&path, "vpc")["virtual-size"].as_u64().unwrap();
        let chain = open(&path).unwrap();
        assert_eq!(chain.len_bytes(), virtual_bytes, "{name}");
        if virtual_bytes < 1 << 30 {
            check_reads_as(&path, &qemu_raw(&path, "vpc"));
            libvhdi_reads(&path, &qemu_raw(&path, "vpc"));
        }
    }
    for name in ["dfvfs-image.vhd", "dfvfs-image-differential.vhd"] {
        let Some(path) = real_image(name, dir.path()) else { continue };
        let error = open_as(TestFile::open(&path), Format::Vhd).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(matches!(error.cause(), Some(Corrupt::FooterChecksum { .. })), "{error}");
    }
}
