//! Volume shadow copies: nothing that they need is free. libvshadow (`vshadowmount`, `vshadowinfo`) and The Sleuth Kit (`fls`,
//! `icat`) are the oracles.

use std::fs;
use std::process::Command;
use std::sync::{Arc, LazyLock};

use crate::ntfs_volumes;
use crate::ntfs_volumes::shadow::{
    BLOCK, CREATED, Shadowed, Shown, VSS, assert_same, files_of, files_of_copies, shadowed,
};
use crate::ntfs_volumes::{open_bytes, open_source, record_at, text};
use block::{Memory, Overlay, ReadAt};
use extent::{Volume, VolumeOffset, VolumeSpan};
use filesystem::{Check, FileSystem, Use};
use testkit::scratch;

/// Made once; nobody changes it.
static MADE: LazyLock<Shadowed> = LazyLock::new(shadowed);
static BYTES: LazyLock<Arc<Memory>> = LazyLock::new(|| Arc::new(Memory::new(MADE.bytes.clone())));

/// What of a volume is free or swap.
fn dropped(filesystem: &dyn FileSystem, check: Check, len_bytes: usize) -> block::Result<Vec<VolumeSpan>> {
    let uses = filesystem.used_map(check)?.uses(VolumeSpan::from_zero(len_bytes as u64))?;
    Ok(uses
        .into_iter()
        .filter(|extent| matches!(extent.state, Use::Free | Use::Swap))
        .map(|extent| extent.span)
        .collect())
}

fn range(span: VolumeSpan) -> std::ops::Range<usize> {
    usize::try_from(span.start().get()).unwrap()..usize::try_from(span.end().get()).unwrap()
}

/// The volume as a copy of it is: zeros where nothing is needed.
fn lean(bytes: &[u8]) -> Vec<u8> {
    let mut lean = bytes.to_vec();
    for span in dropped(&*open_bytes(bytes.to_vec()), Check::Full, bytes.len()).unwrap() {
        lean[range(span)].fill(0);
    }
    lean
}

/// What libvshadow and The Sleuth Kit show of a file.
fn shown(volume: &std::path::Path, copy: usize, name: &str) -> Vec<u8> {
    let dir = scratch();
    let shown = Shown::new(volume, &dir.path().join("mnt"));
    let files = files_of(&shown.copies()[copy]);
    files.into_iter().find(|(found, _)| found.ends_with(&format!(" {name}"))).expect("the file").1
}

#[test]
fn every_file_of_every_copy_stays() {
    let made = &*MADE;
    // The fixture is what it is meant to be: both are gone from the volume, and there in the copies.
    assert!(shown(&made.made.volume, 0, "doomed") == made.doomed, "the judge reads the first copy");
    assert!(shown(&made.made.volume, 1, "late") == made.late, "the judge reads the second copy");
    let dir = scratch();
    let copy = dir.path().join("lean");
    fs::write(&copy, lean(&made.bytes)).unwrap();
    let before = files_of_copies(&made.made.volume, dir.path());
    assert!(before.len() > 30, "{} files", before.len());
    assert_same(&before, &files_of_copies(&copy, dir.path()));
}

#[test]
fn only_what_copies_need_is_kept() {
    let made = &*MADE;
    let filesystem = open_bytes(made.bytes.clone());
    let mut free = 0;
    filesystem.each_free_span(&mut |span| free += span.len_bytes()).unwrap();
    let map = filesystem.used_map(Check::Full).unwrap();
    let kept = map.kept_for_shadow_copies_bytes().unwrap();
    let dropped: u64 =
        dropped(&*filesystem, Check::Full, made.bytes.len()).unwrap().iter().map(VolumeSpan::len_bytes).sum();
    assert_eq!(dropped + kept, free);
    // Two files that are gone, and a block that was moved twice; each begins and ends within a block.
    let needed = (made.doomed.len() + made.late.len() + 2 * BLOCK) as u64;
    assert!((needed..needed + 6 * BLOCK as u64).contains(&kept), "{kept} are kept for {needed}");
    let without = filesystem.used_map_without_shadow_copies(Check::Full).unwrap();
    assert_eq!(without.kept_for_shadow_copies_bytes().unwrap(), 0);
    let uses = without.uses(VolumeSpan::from_zero(made.bytes.len() as u64)).unwrap();
    let all: u64 =
        uses.iter().filter(|extent| extent.state == Use::Free).map(|extent| extent.span.len_bytes()).sum();
    assert_eq!(all, free);
}

/// A bitmap of a store that is wrong loses nothing: what the copy itself shows is heeded, too.
#[test]
fn what_a_copy_calls_used_is_kept_whatever_its_store_says() {
    let made = &*MADE;
    let mut bytes = made.bytes.clone();
    for at in [made.stores[0].bitmap, made.stores[1].bitmap, made.stores[1].previous] {
        bytes[at + 128..at + BLOCK].fill(0xff);
    }
    assert_keeps_what_is_claimed(
        &dropped(&*open_bytes(bytes), Check::Quick, made.bytes.len()).unwrap(),
        "all bits",
    );
}

fn assert_keeps_what_is_claimed(dropped: &[VolumeSpan], what: &str) {
    for span in dropped {
        let (start, end) = (range(*span).start, range(*span).end);
        let lost = MADE.claimed.iter().find(|claimed| claimed.start < end && start < claimed.end);
        assert!(lost.is_none(), "{what}: {start:#x} to {end:#x} is lost of {lost:x?}");
    }
}

/// Where, and what is there instead.
type Patch<'a> = (usize, &'a [u8]);

fn with(patches: &[Patch<'_>]) -> Box<dyn FileSystem> {
    let mut overlay = Overlay::new(BYTES.clone() as Arc<dyn ReadAt<Volume>>);
    for (at, bytes) in patches {
        overlay.patch(VolumeOffset::new(*at as u64), bytes.to_vec());
    }
    open_source(Arc::new(overlay))
}

/// Why a volume with these patches is whole.
fn reason(patches: &[Patch<'_>]) -> String {
    let filesystem = with(patches);
    assert!(filesystem.facts().state.doubt().is_none(), "the volume itself is clean");
    let reasons =
        [Check::Glance, Check::Quick, Check::Full].map(|check| filesystem.used_map(check).map(drop));
    reasons.into_iter().last().unwrap().expect_err("whole").to_string()
}

#[test]
fn what_is_not_understood_makes_the_volume_whole() {
    let made = &*MADE;
    let (catalog, [first, second]) = (made.catalog, made.stores);
    let entry = |index: usize| catalog + 128 + index * 128;
    let zeros = [0; 128];
    let far = (1u64 << 40).to_le_bytes();
    let here = (catalog as u64).to_le_bytes();
    let list = (first.list as u64).to_le_bytes();
    let name = record_at(&made.bytes, first.record) + 16;
    let sequence = (u16::from_le_bytes([made.bytes[name], made.bytes[name + 1]]) + 1).to_le_bytes();
    let cases: &[(&str, &[Patch<'_>])] = &[
        ("version is 3", &[(0x1e10, &[3])]),
        ("record type is 2", &[(0x1e14, &[2])]),
        ("stored on another volume", &[(0x1e50, &[1])]),
        ("no catalog on this volume lists", &[(0x1e00, &[0])]),
        ("no catalog on this volume lists", &[(0x1e30, &[0; 8])]),
        ("past the end", &[(0x1e30, &far)]),
        ("identifier", &[(0x1e30, &[0, 0, 1])]),
        ("version is 2", &[(catalog + 16, &[2])]),
        ("met before", &[(catalog + BLOCK + 40, &here)]),
        ("type is 7", &[(entry(0), &[7])]),
        ("with contents", &[(entry(0), &[0])]),
        ("holds a copy of another volume", &[(entry(0), &zeros)]),
        ("has no store on this volume", &[(entry(1), &zeros)]),
        ("no catalog on this volume lists", &[(entry(0), &zeros), (entry(1), &zeros)]),
        ("record is", &[(entry(1) + 56, &[99])]),
        ("sequence", &[(name, &sequence)]),
        ("identifier", &[(first.header, &[0])]),
        ("record type is 5", &[(first.header + 20, &[5])]),
        ("its own offset", &[(first.list + 32, &[1])]),
        ("met before", &[(first.list + 40, &list)]),
        ("met before", &[(entry(3) + 8, &list)]),
        ("flags is 0x188", &[(first.list + 128 + 32 + 25, &[1])]),
        ("flags is 0x3", &[(second.list + 128 + 24, &[3])]),
        ("elsewhere", &[(first.list + 128 + 16, &[0, 0, 0])]),
        ("original offset", &[(first.list + 128, &[1])]),
        ("record type", &[(first.bitmap + 20, &[3])]),
        ("identifier", &[(second.previous + 3, &[0])]),
        ("the shadow copy 60000001-5bdf-11e3-9d6c-005056c00008 shows", &no_mft()),
    ];
    for (expected, patches) in cases {
        let reason = reason(patches);
        assert!(reason.contains(expected), "{expected}: {reason}");
    }
}

/// The oldest copy's boot sector, in the store, without its file system's name.
fn no_mft() -> [Patch<'static>; 1] {
    // Block 0 was copied by the second store, since the header was written since.
    let made = &*MADE;
    let boot = (made.stores[1].header..made.stores[1].header + 40 * BLOCK)
        .step_by(BLOCK)
        .find(|at| &made.bytes[at + 3..at + 7] == b"NTFS");
    match boot {
        Some(at) => [(at + 3, b"XXXX")],
        None => [(made.bytes.len() - 1, b"")],
    }
}

/// One bit of every field that leads to something: the volume is whole, or nothing of what is needed is lost.
#[test]
fn no_flip_of_a_field_loses_anything() {
    let made = &*MADE;
    let [first, second] = made.stores;
    let mut fields: Vec<usize> = (0x1e00..0x1e64).collect();
    for at in [made.catalog, made.catalog + BLOCK, first.header, first.list, first.ranges, second.bitmap] {
        fields.extend(at..at + 56);
    }
    fields.extend(made.catalog + 128..made.catalog + 128 + 4 * 128);
    fields.extend(first.header + 128..first.header + 200);
    fields.extend(first.list + 128..first.list + 128 + 5 * 32);
    fields.extend(second.list + 128..second.list + 128 + 3 * 32);
    for at in [first.bitmap, second.bitmap, second.previous] {
        fields.extend((at + 128..at + 128 + made.bytes.len() / BLOCK / 8).step_by(3));
    }
    let (mut whole, mut same) = (0, 0);
    for (nth, at) in fields.into_iter().enumerate() {
        let flipped = [made.bytes[at] ^ 1 << (nth % 8)];
        match dropped(&*with(&[(at, &flipped)]), Check::Quick, made.bytes.len()) {
            Err(_) => whole += 1,
            Ok(dropped) => {
                same += 1;
                assert_keeps_what_is_claimed(&dropped, &format!("{at:#x}"));
                let moved = VolumeOffset::new(made.moved_to as u64);
                assert!(!dropped.iter().any(|span| span.contains(moved)), "{at:#x}: what was moved is lost");
            }
        }
    }
    assert!(whole > 300 && same > 300, "{whole} whole, {same} with a map");
}

#[test]
fn copies_are_listed_as_vshadowinfo_lists_them() {
    let made = &*MADE;
    let told = Command::new("vshadowinfo").arg(text(&made.made.volume)).output().expect("vshadowinfo");
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let field = |name: &str| -> Vec<String> {
        let lines = told.lines().filter(|line| line.trim_start().starts_with(name));
        lines.map(|line| line.split_once(": ").unwrap().1.trim().to_owned()).collect()
    };
    let filesystem = open_bytes(made.bytes.clone());
    let copies = filesystem.shadow_copies();
    let ours = |of: fn(&filesystem::ShadowCopy) -> Option<String>| -> Vec<String> {
        copies.iter().map(|copy| of(copy).expect("known")).collect()
    };
    assert_eq!(copies.len(), 2);
    assert_eq!(ours(|copy| copy.id.clone()), field("Shadow copy ID"));
    assert_eq!(ours(|copy| copy.set_id.clone()), field("Shadow copy set ID"));
    assert_eq!(ours(|copy| Some(copy.store_id.clone())), field("Identifier"));
    assert_eq!(copies[0].created.as_deref(), Some("2013-12-03T06:35:09Z"));
    assert!(field("Creation time")[0].starts_with("Dec 03, 2013 06:35:09"), "{told}");
    assert_eq!(CREATED[0], 0x01ce_eff1_d012_a94b);
    assert_eq!(copies[1].machine.as_deref(), Some("winter"));
    assert!(copies.iter().all(|copy| copy.doubt.is_none() && copy.store_bytes.is_some()));
    assert!(copies.iter().all(|copy| copy.size_bytes == made.bytes.len() as u64));
    // What is wrong with one is told with it.
    let broken = with(&[(made.stores[1].header, &[0])]);
    assert!(broken.shadow_copies()[0].doubt.is_none() && broken.shadow_copies()[1].doubt.is_some());
}

#[test]
fn a_glance_leaves_nothing_out() {
    let made = &*MADE;
    let filesystem = open_bytes(made.bytes.clone());
    assert!(dropped(&*filesystem, Check::Glance, made.bytes.len()).unwrap().is_empty());
}

#[test]
fn a_volume_whose_copies_are_gone_is_as_any_other() {
    let made = ntfs_volumes::make(24, &[]);
    let mut bytes = made.bytes();
    let free = |bytes: &[u8]| dropped(&*open_bytes(bytes.to_vec()), Check::Full, bytes.len()).unwrap();
    let before = free(&bytes);
    bytes[0x1e00..0x1e10].copy_from_slice(&VSS);
    bytes[0x1e10] = 1;
    bytes[0x1e14] = 1;
    bytes[0x1e19] = 0x1e;
    assert_eq!(free(&bytes), before);
    assert!(open_bytes(bytes).shadow_copies().is_empty());
}
