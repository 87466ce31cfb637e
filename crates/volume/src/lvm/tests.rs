//! Groups as their texts describe them.

use block::{ErrorKind, Result};
use extent::{Span, VolumeOffset};

use super::corrupt::Corrupt;
use super::group::{Group, Layout, read};
use super::mirror::{Log, Mirror};
use super::segment::Area;
use super::text::parse;

/// A group of 100 extents on each of two physical volumes.
fn group(volumes: &str) -> Result<Group> {
    let text = format!(
        r#"vg {{ id = "g" seqno = 3 status = ["RESIZEABLE", "READ", "WRITE"] flags = [] extent_size = 8192
        physical_volumes {{
            pv0 {{ id = "a" status = ["ALLOCATABLE"] flags = [] dev_size = 1000000 pe_start = 2048 pe_count = 100 }}
            pv1 {{ id = "b" status = ["ALLOCATABLE"] flags = [] dev_size = 1000000 pe_start = 2048 pe_count = 100 }}
        }}
        logical_volumes {{ {volumes} }} }}
        contents = "Text Format Volume Group" version = 1"#
    );
    read(&parse(text.as_bytes())?)
}

fn volume(name: &str, status: &str, segments: &[&str]) -> String {
    let numbered = (1..).zip(segments).map(|(number, text)| format!("segment{number} {{ {text} }}"));
    let text: Vec<_> = numbered.collect();
    let status = format!(r#"status = ["READ", "WRITE"{status}] flags = []"#);
    format!("{name} {{ {status} segment_count = {} {} }}", segments.len(), text.join(" "))
}

fn linear(start: u64, count: u64, first: u64) -> String {
    format!(
        r#"start_extent = {start} extent_count = {count} type = "striped" stripe_count = 1 stripes = ["pv0", {first}]"#
    )
}

const VISIBLE: &str = r#", "VISIBLE""#;

fn area(member: usize, first: u64, count: u64) -> Area {
    Area { member, first, count }
}

fn reason(group: &Group, name: &str) -> String {
    let found = group.volumes.iter().find(|volume| volume.name == name).unwrap();
    match &found.layout {
        Layout::Other(reason, _) => reason.clone(),
        understood => panic!("{name} is understood: {understood:?}"),
    }
}

#[test]
fn segments_follow_each_other_and_stripes_share() {
    let second = r#"start_extent = 10 extent_count = 8 type = "striped" stripe_count = 2 stripe_size = 128
        stripes = ["pv0", 50, "pv1", 0]"#;
    let group = group(&volume("lv", VISIBLE, &[&linear(0, 10, 20), second])).unwrap();
    let Layout::Segments(segments) = &group.volumes[0].layout else { panic!("{group:?}") };
    assert_eq!(segments[0].areas, [area(0, 20, 10)]);
    assert_eq!(
        (&segments[1].areas[..], segments[1].stripe_bytes),
        (&[area(0, 50, 4), area(1, 0, 4)][..], 65_536)
    );
    assert_eq!(group.size_bytes(), 200 << 22);
    assert_eq!(group.free_bytes(), 182 << 22);
    assert_eq!(group.span_of(area(0, 1, 2)), Span::new(VolumeOffset::new((1 << 20) + (4 << 20)), 8 << 20));
}

const RAID1: &str = r#"start_extent = 0 extent_count = 10 type = "raid1" device_count = 2 region_size = 4096
    raids = ["r_rmeta_0", "r_rimage_0", "r_rmeta_1", "r_rimage_1"]"#;
const MIRROR: &str = r#"start_extent = 0 extent_count = 10 type = "mirror" mirror_count = 2 mirror_log = "r_mlog"
    region_size = 1024 mirrors = ["r_mimage_0", 0, "r_mimage_1", 0]"#;

/// A group with the volume `r`, and hidden parts in one run each.
fn with_parts(top: &str, parts: &[(&str, u64, u64)]) -> Group {
    let parts = parts.iter().map(|(name, count, first)| volume(name, "", &[&linear(0, *count, *first)]));
    group(&(volume("r", VISIBLE, &[top]) + &parts.collect::<String>())).unwrap()
}

const RAID1_PARTS: [(&str, u64, u64); 4] =
    [("r_rmeta_0", 1, 0), ("r_rimage_0", 10, 1), ("r_rmeta_1", 1, 11), ("r_rimage_1", 10, 12)];
const MIRROR_PARTS: [(&str, u64, u64); 3] =
    [("r_mimage_0", 10, 0), ("r_mimage_1", 10, 10), ("r_mlog", 1, 20)];

fn mirror(group: &Group) -> &Mirror {
    let Layout::Mirrored(mirror) = &group.volumes[0].layout else { panic!("{group:?}") };
    mirror
}

#[test]
fn each_leg_of_a_mirror_has_all_of_it() {
    let found = with_parts(RAID1, &RAID1_PARTS);
    let raid1 = mirror(&found);
    assert_eq!((raid1.kind, found.volumes.len(), found.free_bytes()), ("raid1", 1, 178 << 22));
    assert_eq!([&raid1.legs[0][0].areas, &raid1.legs[1][0].areas], [&[area(0, 1, 10)], &[area(0, 12, 10)]]);
    let Log::OfLegs(logs) = &raid1.log else { panic!("{raid1:?}") };
    assert_eq!([&logs[0][0].areas, &logs[1][0].areas], [&[area(0, 0, 1)], &[area(0, 11, 1)]]);
    let found = with_parts(MIRROR, &MIRROR_PARTS);
    let old = mirror(&found);
    assert_eq!((old.kind, old.legs.len(), found.free_bytes()), ("mirror", 2, 179 << 22));
    let Log::Shared { place, region_bytes } = &old.log else { panic!("{old:?}") };
    assert_eq!((&place[0].areas[..], *region_bytes), (&[area(0, 20, 1)][..], 512 << 10));
}

#[test]
fn a_mirror_that_is_not_what_it_should_be_is_not_understood() {
    let not_understood = |top: &str, parts: &[(&str, u64, u64)]| {
        let found = with_parts(top, parts);
        let Layout::Other(reason, areas) = &found.volumes[0].layout else { panic!("{top}: {found:?}") };
        let counts = parts.iter().map(|(_, count, _)| count).sum::<u64>();
        assert_eq!(found.free_bytes(), (200 - counts) << 22, "{top}: {reason}");
        assert!(areas.iter().map(|area| area.count).sum::<u64>() <= counts);
    };
    for (from, to) in [
        ("device_count = 2", "device_count = 3"),
        ("\"raid1\"", "\"raid1+RESHAPE\""),
        ("\"raid1\"", "\"raid10\""),
        ("region_size = 4096", "region_size = 4096 data_offset = 8"),
        ("\"r_rimage_1\"]", "\"r_rimage_0\"]"),
        ("\"r_rimage_1\"]", "\"r_rmeta_1\"]"),
        (", \"r_rimage_1\"]", "]"),
        ("\"r_rimage_1\"]", "\"nobody\"]"),
    ] {
        assert!(RAID1.contains(from));
        not_understood(&RAID1.replace(from, to), &RAID1_PARTS);
    }
    for (from, to) in [
        ("mirror_count = 2", "mirror_count = 1"),
        ("mirror_log = \"r_mlog\"", ""),
        ("region_size = 1024", ""),
        ("region_size = 1024", "region_size = 0"),
        ("region_size = 1024", "region_size = 1024 extents_moved = 4"),
        ("\"r_mimage_1\", 0", "\"r_mimage_1\", 1"),
        ("\"r_mimage_1\", 0", "\"r_mlog\", 0"),
    ] {
        assert!(MIRROR.contains(from));
        not_understood(&MIRROR.replace(from, to), &MIRROR_PARTS);
    }
    // A leg that is too short.
    let mut parts = RAID1_PARTS;
    parts[3].1 = 9;
    not_understood(RAID1, &parts);
}

#[test]
fn parts_of_a_mirror_in_other_states_make_it_whole() {
    let parts = |odd: &str, status: &str| {
        let parts = RAID1_PARTS.map(|(name, count, first)| {
            volume(name, if name == odd { status } else { "" }, &[&linear(0, count, first)])
        });
        parts.concat()
    };
    for (status, top) in [
        (r#", "REBUILD""#, VISIBLE),
        (r#", "WRITEMOSTLY""#, VISIBLE),
        (VISIBLE, VISIBLE),
        ("", r#", "VISIBLE", "NOTSYNCED""#),
    ] {
        let found = group(&(volume("r", top, &[RAID1]) + &parts("r_rimage_1", status))).unwrap();
        assert!(matches!(found.volumes[0].layout, Layout::Other(..)), "{status} {top}: {found:?}");
        assert_eq!(found.free_bytes(), 178 << 22);
    }
    // A part that another volume stands on, too.
    let other = volume("s", VISIBLE, &[&(linear(0, 1, 40) + r#" also = "r_rimage_0""#)]);
    let found = group(&(volume("r", VISIBLE, &[RAID1]) + &parts("", "") + &other)).unwrap();
    assert!(matches!(found.volumes[0].layout, Layout::Other(..)), "{found:?}");
    assert_eq!(found.free_bytes(), 177 << 22);
    // And in two segments.
    let second = RAID1.replace("start_extent = 0", "start_extent = 10");
    let found = group(&(volume("r", VISIBLE, &[RAID1, &second]) + &parts("", ""))).unwrap();
    assert!(reason(&found, "r").contains("raid1"));
}

#[test]
fn what_stands_on_parts_has_their_extents_and_is_not_understood() {
    let found = with_parts(&RAID1.replace("raid1", "raid5"), &RAID1_PARTS);
    assert_eq!(found.volumes.len(), 1);
    assert!(reason(&found, "r").contains("raid5"));
    assert_eq!(found.volumes[0].layout.areas().iter().map(|area| area.count).sum::<u64>(), 22);
    // A thin volume has no extents, its pool has those of its parts.
    let pool =
        r#"start_extent = 0 extent_count = 10 type = "thin-pool" metadata = "p_tmeta" pool = "p_tdata""#;
    let thin = r#"start_extent = 0 extent_count = 90 type = "thin" thin_pool = "p" transaction_id = 0 device_id = 1"#;
    let parts = [("p_tmeta", 1, 0), ("p_tdata", 10, 1), ("lvol0_pmspare", 1, 11)];
    let parts = parts.map(|(name, count, first)| volume(name, "", &[&linear(0, count, first)]));
    let found =
        group(&(volume("p", VISIBLE, &[pool]) + &volume("t", VISIBLE, &[thin]) + &parts.join(" "))).unwrap();
    assert_eq!(found.free_bytes(), 188 << 22);
    assert!(reason(&found, "p").contains("thin-pool") && reason(&found, "t").contains("thin"));
    assert!(reason(&found, "lvol0_pmspare").contains("hidden"));
}

#[test]
fn an_origin_of_a_snapshot_is_more_than_its_file_system() {
    let snapshot =
        r#"start_extent = 0 extent_count = 10 type = "snapshot" chunk_size = 8 origin = "o" cow_store = "s""#;
    let found = group(
        &(volume("o", VISIBLE, &[&linear(0, 10, 0)])
            + &volume("s", VISIBLE, &[&linear(0, 5, 10)])
            + &volume("snapshot0", "", &[snapshot])),
    )
    .unwrap();
    assert!(reason(&found, "o").contains("snapshot0 stands on it"));
    assert!(reason(&found, "s").contains("snapshot0"));
    assert_eq!(found.free_bytes(), 185 << 22);
}

#[test]
fn parts_in_a_circle_keep_their_extents() {
    let part = |name: &str, of: &str, first| {
        let segment = linear(0, 5, first) + &format!(r#" part_of = "{of}""#);
        volume(name, "", &[&segment])
    };
    let found = group(&(part("a", "b", 0) + &part("b", "a", 5))).unwrap();
    assert_eq!(found.free_bytes(), 190 << 22);
    assert!(found.volumes.iter().all(|volume| matches!(volume.layout, Layout::Other(..))));
}

#[test]
fn what_cannot_be_is_refused() {
    let corrupt = |volumes: &str| group(volumes).unwrap_err().cause::<Corrupt>().cloned();
    let lv = |segments: &[&str]| volume("lv", VISIBLE, segments);
    assert_eq!(corrupt(&lv(&[&linear(0, 5, 0), &linear(6, 5, 10)])), Some(Corrupt::Segments("lv".into())));
    assert_eq!(corrupt(&lv(&[&linear(0, 5, 0), &linear(5, 5, 4)])), Some(Corrupt::Overlap("lv".into())));
    assert!(matches!(corrupt(&lv(&[&linear(0, 5, 96)])), Some(Corrupt::OutOfRange { .. })));
    assert!(matches!(corrupt(&lv(&[&linear(0, u64::MAX >> 1, 0)])), Some(Corrupt::OutOfRange { .. })));
    assert!(matches!(corrupt("lv { segment_count = 1 }"), Some(Corrupt::Missing { .. })));
    // As many areas as it says, and all on physical volumes.
    let two = linear(0, 4, 0).replace("stripe_count = 1", "stripe_count = 2");
    assert_eq!(group(&lv(&[&two])).unwrap_err().kind(), ErrorKind::Unsupported);
    let elsewhere = linear(0, 4, 0).replace("stripes", "places");
    assert_eq!(group(&lv(&[&elsewhere])).unwrap_err().kind(), ErrorKind::Unsupported);
}
