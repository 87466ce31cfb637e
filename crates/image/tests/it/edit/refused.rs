//! Disks that must not be changed in place: told why, and left as they are.

use super::*;

/// Opening for change is refused with `why` and with something to do, no file is opened for it, and no byte changes.
#[track_caller]
fn check_refused(path: &Path, options: OpenOptions, kind: ErrorKind, why: &str) {
    let folder = path.parent().unwrap();
    let before = folder_contents(folder);
    let chain = Chain::open(TestFile::open(path), options, &Folder).unwrap();
    let mut never = |file: &dyn HostFile| -> Result<Arc<dyn EditTarget>> {
        panic!("'{}' is opened for writing", file.name())
    };
    let error = Edit::open(&chain, &Folder, &mut never).err().expect("it is refused");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(why), "{error}");
    assert!(error.to_string().contains(text(path)), "{error}");
    assert!(error.hint_text().is_some() || kind == ErrorKind::Unsupported, "{error}");
    assert!(folder_contents(folder) == before, "every byte is as it was");
}

#[track_caller]
fn refuses(path: &Path, why: &str) {
    check_refused(path, OpenOptions::default(), ErrorKind::Refused, why);
}

fn qemu_create(path: &Path, format: &str, options: &str) {
    let mut args = vec!["create", "-q", "-f", format];
    if !options.is_empty() {
        args.extend(["-o", options]);
    }
    args.extend([text(path), "8M"]);
    run("qemu-img", &args);
    run(
        "qemu-io",
        &["-t", "unsafe", "-f", format, "-c", "write -P 1 0 2M", "-c", "write -P 2 4M 1M", text(path)],
    );
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn index(value: u64) -> usize {
    usize::try_from(value).unwrap()
}

#[test]
fn qcow2_that_shares_or_tracks_its_contents() {
    let _alone = alone();
    let dir = scratch();
    let path = dir.path().join("disk.qcow2");
    let fresh = || qemu_create(&path, "qcow2", "");
    fresh();
    run("qemu-img", &["snapshot", "-c", "before", text(&path)]);
    refuses(&path, "internal snapshots (1)");
    fresh();
    run("qemu-img", &["bitmap", "--add", text(&path), "backup"]);
    let error = open(&path).unwrap().begin(1).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Refused && error.to_string().contains("persistent bitmaps"),
        "{error}"
    );
    run("qemu-img", &["bitmap", "--remove", text(&path), "backup"]);
    open(&path).unwrap().begin(1).unwrap();
    fresh();
    change(&path, |bytes| bytes[79] |= 1);
    refuses(&path, "not closed properly");
    fresh();
    change(&path, |bytes| bytes[79] |= 2);
    refuses(&path, "marked corrupt");
    fresh();
    change(&path, |bytes| bytes[95] |= 4);
    check_refused(&path, OpenOptions::default(), ErrorKind::Unsupported, "no longer fit");
    fresh();
    change(&path, |bytes| bytes[35] = 2);
    refuses(&path, "encrypted");
    // Unknown incompatible features are refused when it is opened at all.
    fresh();
    change(&path, |bytes| bytes[78] |= 1);
    let opened = Chain::open(TestFile::open(&path), OpenOptions::default(), &Folder);
    assert_eq!(opened.err().unwrap().kind(), ErrorKind::Unsupported);
    // A child.
    fresh();
    let child = dir.path().join("child.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "disk.qcow2", "-F", "qcow2", text(&child)]);
    refuses(&child, "differencing");
}

#[test]
fn qcow2_whose_parts_lie_in_one_place() {
    let _alone = alone();
    let dir = scratch();
    let path = dir.path().join("disk.qcow2");
    let fresh = || qemu_create(&path, "qcow2", "");
    let l2 = |bytes: &[u8]| index(be64(bytes, index(be64(bytes, 40))) & 0x00ff_ffff_ffff_fe00);
    let copied = 1u64 << 63;
    // Two entries for one cluster; entries for the header, the L1 table, the L2 table itself, refcounts.
    let places: [fn(&[u8]) -> u64; 5] = [
        |bytes| {
            be64(bytes, index(be64(bytes, index(be64(bytes, 40))) & 0x00ff_ffff_ffff_fe00) + 8) & !(1 << 63)
        },
        |bytes| be64(bytes, 40),
        |bytes| be64(bytes, index(be64(bytes, 40))) & !(1 << 63),
        |bytes| be64(bytes, 48),
        |bytes| be64(bytes, index(be64(bytes, 48))),
    ];
    for place in places {
        fresh();
        change(&path, |bytes| {
            let (at, place) = (l2(bytes), place(bytes));
            bytes[at..at + 8].copy_from_slice(&(place | copied).to_be_bytes());
        });
        refuses(&path, "in one place");
    }
    fresh();
    change(&path, |bytes| {
        let table = index(be64(bytes, 48));
        bytes[table + 8..table + 16].copy_from_slice(&(1u64 << 40).to_be_bytes());
    });
    refuses(&path, "past the end");
    // A compressed cluster over data.
    fresh();
    change(&path, |bytes| {
        let at = l2(bytes);
        let data = be64(bytes, at) & !copied;
        bytes[at + 8..at + 16].copy_from_slice(&(data | 1 << 62).to_be_bytes());
    });
    refuses(&path, "in one place");
}

#[test]
fn qcow2_clusters_that_are_shared_are_left_alone() {
    let _alone = alone();
    let dir = scratch();
    let path = dir.path().join("disk.qcow2");
    for shared_table in [false, true] {
        qemu_create(&path, "qcow2", "");
        change(&path, |bytes| {
            let l1 = index(be64(bytes, 40));
            let l2 = index(be64(bytes, l1) & 0x00ff_ffff_ffff_fe00);
            // As after a snapshot that was not counted: bit 63 of the entry, or of the table it lies in.
            let at = if shared_table { l1 } else { l2 + 8 };
            bytes[at] &= 0x7f;
        });
        let edit = open(&path).unwrap();
        edit.begin(SEED).unwrap();
        let before = fs::read(&path).unwrap();
        assert_eq!(
            image::backing(edit.chain(), Span::new(Offset::new(65_536), 512)).unwrap()[0].state,
            Backing::Fixed
        );
        for (at, len) in [(65_536, 512), (65_536 - 1, 2), (0, 131_072)] {
            let error = edit.write_at(Offset::new(at), &vec![9; len]).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Refused);
        }
        assert_eq!(edit.write_at(Offset::ZERO, &[1; 512]).is_ok(), !shared_table);
        edit.flush().unwrap();
        assert!(
            fs::read(&path).unwrap() == before,
            "the same byte where it was written, nothing where refused"
        );
    }
}

/// Where something of an image lies in its file.
type Place = fn(&[u8]) -> u64;
type AnyPlace<'a> = &'a dyn Fn(&[u8]) -> u64;

/// Where the refcount of the cluster at `at` lies, of 16 bits in clusters of 64 KiB. One block counts all of a small file.
fn refcount_at(bytes: &[u8], at: u64) -> usize {
    let block = index(be64(bytes, index(be64(bytes, 48))));
    block + index(at / 65_536) * 2
}

fn set_refcount(path: &Path, count: u16, place: impl Fn(&[u8]) -> u64) {
    change(path, |bytes| {
        let at = refcount_at(bytes, place(bytes));
        bytes[at..at + 2].copy_from_slice(&count.to_be_bytes());
    });
}

/// What `qemu-img check` says: 0 all is well, 2 the refcounts or tables are wrong, 3 clusters are leaked (qemu-img(1)).
fn judged(path: &Path) -> Option<i32> {
    let output = std::process::Command::new("qemu-img").args(["check", "-q", text(path)]).output().unwrap();
    output.status.code()
}

/// Free clusters are those with a refcount of 0: what is in use and has one would be written over.
#[test]
fn qcow2_whose_refcounts_are_too_low() {
    const L2: Place = |bytes| be64(bytes, index(be64(bytes, 40))) & 0x00ff_ffff_ffff_fe00;
    const DATA: Place = |bytes| be64(bytes, index(L2(bytes)) + 8) & 0x00ff_ffff_ffff_fe00;
    let _alone = alone();
    let dir = scratch();
    let path = dir.path().join("disk.qcow2");
    let places: [(&str, Place); 6] = [
        ("header", |_| 0),
        ("refcount table", |bytes| be64(bytes, 48)),
        ("refcount block", |bytes| be64(bytes, index(be64(bytes, 48)))),
        ("L1 table", |bytes| be64(bytes, 40)),
        ("L2 table", L2),
        ("data", DATA),
    ];
    for (what, place) in places {
        qemu_create(&path, "qcow2", "");
        set_refcount(&path, 0, place);
        assert_eq!(judged(&path), Some(2), "{what}");
        refuses(&path, "not counted as it should be");
    }
    // Counted twice: whoever else refers to it would see a change.
    for place in [L2, DATA] {
        qemu_create(&path, "qcow2", "");
        set_refcount(&path, 2, place);
        assert_ne!(judged(&path), Some(0));
        refuses(&path, "not counted as it should be");
    }
    // All of a block of refcounts.
    qemu_create(&path, "qcow2", "");
    change(&path, |bytes| {
        let table = index(be64(bytes, 48));
        bytes[table..table + 8].fill(0);
    });
    assert_eq!(judged(&path), Some(2));
    refuses(&path, "not counted as it should be");
    // A cluster that nothing refers to does no harm.
    qemu_create(&path, "qcow2", "");
    let end = fs::metadata(&path).unwrap().len().next_multiple_of(65_536);
    change(&path, |bytes| bytes.resize(index(end) + 65_536, 0));
    set_refcount(&path, 1, |_| end);
    assert_eq!(judged(&path), Some(3));
    open(&path).unwrap();
}

/// Refcounts of other widths, and of clusters that several share.
#[test]
fn qcow2_whose_shared_clusters_are_counted_too_low() {
    let _alone = alone();
    let dir = scratch();
    let path = dir.path().join("disk.qcow2");
    for bits in [1, 2, 4, 8, 32, 64] {
        qemu_create(&path, "qcow2", &format!("refcount_bits={bits}"));
        open(&path).unwrap();
        change(&path, |bytes| {
            let block = index(be64(bytes, index(be64(bytes, 48))));
            bytes[block..block + 65_536].fill(0);
        });
        refuses(&path, "not counted as it should be");
    }
    let raw = dir.path().join("raw");
    let words = |number: u8| (0..65_536u32).map(move |at| number.wrapping_add((at / 61).to_le_bytes()[0]));
    fs::write(&raw, (0..40u8).flat_map(words).collect::<Vec<_>>()).unwrap();
    run("qemu-img", &["convert", "-c", "-f", "raw", "-O", "qcow2", text(&raw), text(&path)]);
    fs::remove_file(&raw).unwrap();
    open(&path).unwrap();
    let first = |bytes: &[u8]| {
        let l2 = index(be64(bytes, index(be64(bytes, 40))) & 0x00ff_ffff_ffff_fe00);
        be64(bytes, l2) & ((1 << 54) - 1)
    };
    set_refcount(&path, 1, first);
    assert_eq!(judged(&path), Some(2), "several lie there");
    refuses(&path, "not counted as it should be");

    // What a snapshot alone refers to: a disk with snapshots is refused anyway by whoever would move its files, but not by who
    // serves it.
    let check = |path: &Path| {
        let before = fs::read(path).unwrap();
        let result = chain(path).links()[0].layer.check_editable();
        assert!(fs::read(path).unwrap() == before);
        result
    };
    let fresh = || {
        qemu_create(&path, "qcow2", "");
        run("qemu-img", &["snapshot", "-c", "first", text(&path)]);
        run("qemu-io", &["-f", "qcow2", "-c", "write -P 7 0 128k", text(&path)]);
        run("qemu-img", &["snapshot", "-c", "second", text(&path)]);
        run("qemu-io", &["-f", "qcow2", "-c", "write -P 8 64k 64k", text(&path)]);
    };
    fresh();
    check(&path).unwrap();
    // The first cluster of the first snapshot; its L1 table; the table of snapshots; its L2 table.
    let l1 = |bytes: &[u8]| be64(bytes, index(be64(bytes, 64)));
    let l2 = move |bytes: &[u8]| be64(bytes, index(l1(bytes))) & 0x00ff_ffff_ffff_fe00;
    let data = move |bytes: &[u8]| be64(bytes, index(l2(bytes))) & 0x00ff_ffff_ffff_fe00;
    let shared = move |bytes: &[u8]| be64(bytes, index(l2(bytes)) + 40 * 8) & 0x00ff_ffff_ffff_fe00;
    let places: [(&str, AnyPlace<'_>); 5] = [
        ("snapshots", &|bytes| be64(bytes, 64)),
        ("L1 table", &l1),
        ("L2 table", &l2),
        ("data of a snapshot", &data),
        ("data of all", &shared),
    ];
    for (what, place) in places {
        for less in [0, 1] {
            fresh();
            let bytes = fs::read(&path).unwrap();
            let at = refcount_at(&bytes, place(&bytes));
            let count = u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap());
            if count <= less {
                continue;
            }
            set_refcount(&path, if less == 1 { count - 1 } else { 0 }, place);
            assert_eq!(judged(&path), Some(2), "{what}");
            let error = check(&path).expect_err(what);
            assert_eq!(error.kind(), ErrorKind::Refused, "{what}: {error}");
        }
    }
    // Data of the disk over the snapshot's tables.
    for place in [&l1 as AnyPlace<'_>, &l2] {
        fresh();
        change(&path, |bytes| {
            let own = index(be64(bytes, index(be64(bytes, 40))) & 0x00ff_ffff_ffff_fe00);
            let place = place(bytes) | 1 << 63;
            bytes[own + 90 * 8..own + 91 * 8].copy_from_slice(&place.to_be_bytes());
        });
        assert_eq!(check(&path).unwrap_err().kind(), ErrorKind::Refused);
    }
}

/// Images of the other kinds are refused before anything of them is read.
#[test]
fn vhd_and_vhdx_whose_blocks_lie_in_one_place() {
    let _alone = alone();
    let dir = scratch();
    let refused = |path: &Path| {
        let before = fs::read(path).unwrap();
        let opened = Chain::open(TestFile::open(path), OpenOptions::default(), &Folder)
            .and_then(|chain| Edit::open(&chain, &Folder, &mut open_target));
        let error = opened.err().expect("it is refused");
        assert!([ErrorKind::Refused, ErrorKind::Corrupt].contains(&error.kind()), "{error}");
        assert!(fs::read(path).unwrap() == before);
    };
    let path = dir.path().join("disk.vhd");
    // Block 0 where block 2 lies, in the header, in the block table.
    for sector in [None, Some(1), Some(3)] {
        qemu_create(&path, "vpc", "subformat=dynamic,force_size=on");
        change(&path, |bytes| {
            let table = index(be64(bytes, 512 + 16));
            let sector = sector.map_or_else(
                || bytes[table + 8..table + 12].try_into().unwrap(),
                |sector: u32| sector.to_be_bytes(),
            );
            bytes[table..table + 4].copy_from_slice(&sector);
        });
        refused(&path);
    }
    let path = dir.path().join("disk.vhdx");
    // Block 0 where block 4 lies, in the header, in the log, in the block table itself.
    for mib in [None, Some(0), Some(1), Some(3)] {
        qemu_create(&path, "vhdx", "block_size=1M");
        change(&path, |bytes| {
            let guid = [0x66, 0x77, 0xc2, 0x2d];
            let regions = (192 << 10) + 16;
            let entry = (0..).map(|number| regions + number * 32).find(|at| bytes[*at..*at + 4] == guid);
            let table = index(u64::from_le_bytes(bytes[entry.unwrap() + 16..][..8].try_into().unwrap()));
            let other = bytes[table + 32..table + 40].try_into().unwrap();
            let entry = mib.map_or(other, |mib: u64| (mib << 20 | 6).to_le_bytes());
            bytes[table..table + 8].copy_from_slice(&entry);
        });
        refused(&path);
    }
}

#[test]
fn vhd_in_doubt() {
    let _alone = alone();
    let dir = scratch();
    let path = dir.path().join("disk.vhd");
    let fresh = || qemu_create(&path, "vpc", "subformat=dynamic,force_size=on");
    fresh();
    change(&path, |bytes| bytes[100] ^= 1);
    refuses(&path, "footers are not in order");
    fresh();
    change(&path, |bytes| {
        let end = bytes.len() - 512;
        for at in [0, end] {
            // The sum grows by one, its complement shrinks by one.
            bytes[at + 84] = 1;
            let sum = u32::from_be_bytes(bytes[at + 64..at + 68].try_into().unwrap()) - 1;
            bytes[at + 64..at + 68].copy_from_slice(&sum.to_be_bytes());
        }
    });
    refuses(&path, "suspended");
    fresh();
    open(&path).unwrap();
}

#[test]
fn vhdx_in_doubt() {
    let _alone = alone();
    let dir = scratch();
    let path = dir.path().join("disk.vhdx");
    qemu_create(&path, "vhdx", "block_size=1M");
    change(&path, |bytes| bytes[(192 << 10) + 5] ^= 1);
    refuses(&path, "region table is damaged");
    // A damaged header is what a crash leaves, and goes away with the next change.
    for at in [64 << 10, 128 << 10] {
        qemu_create(&path, "vhdx", "block_size=1M");
        change(&path, |bytes| bytes[at + 5] ^= 1);
        let edit = open(&path).unwrap();
        edit.begin(SEED).unwrap();
        drop(edit);
        assert!(chain(&path).facts().details.iter().all(|(name, _)| *name != "note"));
        run("qemu-img", &["check", "-f", "vhdx", text(&path)]);
    }
    let Some(pending) = real_image("q-iotest-dirtylog-10G-4M.vhdx", dir.path()) else { return };
    refuses(&pending, "pending log");
}

#[test]
fn vdi_whose_blocks_lie_in_one_place() {
    let _alone = alone();
    let dir = scratch();
    let path = dir.path().join("disk.vdi");
    qemu_create(&path, "vdi", "");
    change(&path, |bytes| {
        let map = usize::try_from(le32(bytes, 0x154)).unwrap();
        bytes.copy_within(map..map + 4, map + 4);
    });
    refuses(&path, "in one place");
}

#[test]
fn vmdk_that_is_compressed_tracked_or_in_doubt() {
    let _alone = alone();
    let dir = scratch();
    let path = dir.path().join("disk.vmdk");
    let raw = dir.path().join("raw");
    fs::write(&raw, vec![1; 2 << 20]).unwrap();
    let stream = "subformat=streamOptimized";
    run("qemu-img", &["convert", "-f", "raw", "-O", "vmdk", "-o", stream, text(&raw), text(&path)]);
    refuses(&path, "streamOptimized");
    let fresh = || qemu_create(&path, "vmdk", "subformat=monolithicSparse");
    fresh();
    change(&path, |bytes| bytes[72] = 1);
    refuses(&path, "not closed properly");
    let replace = |from: &str, to: &str| {
        change(&path, |bytes| {
            let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
            bytes.splice(at..at + from.len(), to.bytes());
        });
    };
    fresh();
    let comment = "# Extent description";
    replace(comment, &format!("{:width$}", "changeTrackPath=\"a\"", width = comment.len()));
    refuses(&path, "change tracking");
    fresh();
    replace("createType=", "createType=");
    // "RW 16384 SPARSE" and the blank before the name make room.
    replace("RW 16384 SPARSE \"disk.vmdk\"", "RDONLY 16384 SPARSE \"d.vm\"");
    refuses(&path, "RDONLY");
    // Two grains in one place, and a grain among the tables.
    for into_tables in [false, true] {
        fresh();
        change(&path, |bytes| {
            let directory = usize::try_from(le32(bytes, 56)).unwrap() * 512;
            let table = usize::try_from(le32(bytes, directory)).unwrap() * 512;
            let place = if into_tables { le32(bytes, directory) } else { le32(bytes, table) };
            bytes[table + 4..table + 8].copy_from_slice(&place.to_le_bytes());
        });
        refuses(&path, "in one place");
    }
    for name in ["q-iotest-version3.vmdk", "sf-streamOptimized.vmdk"] {
        if let Some(path) = real_image(name, dir.path()) {
            refuses(&path, "streamOptimized");
        }
    }
}

#[test]
fn what_only_its_header_says_what_it_is_has_to_be_stated() {
    let _alone = alone();
    let dir = scratch();
    for name in ["disk.img", "disk"] {
        let path = dir.path().join(name);
        qemu_create(&path, "qcow2", "");
        refuses(&path, "a guest could have written the header");
        let options = OpenOptions { format: Some(Format::Qcow2) };
        let chain = Chain::open(TestFile::open(&path), options, &Folder).unwrap();
        Edit::open(&chain, &Folder, &mut open_target).unwrap();
    }
}

#[test]
fn what_is_in_use_or_was_swapped_is_left_alone() {
    let _alone = alone();
    let dir = scratch();
    let path = dir.path().join("disk.qcow2");
    qemu_create(&path, "qcow2", "");
    let held = EditFile::open(&path).unwrap();
    let before = fs::read(&path).unwrap();
    assert_eq!(open(&path).err().unwrap().kind(), ErrorKind::Refused);
    drop(held);
    let chain = chain(&path);
    fs::copy(&path, dir.path().join("copy")).unwrap();
    fs::rename(dir.path().join("copy"), &path).unwrap();
    let error = Edit::open(&chain, &Folder, &mut open_target).err().unwrap();
    assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("replaced"), "{error}");
    assert!(fs::read(&path).unwrap() == before);
}
