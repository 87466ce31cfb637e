//! Groups as their texts describe them.

use block::{ErrorKind, Result};
use extent::{Span, VolumeOffset};

use super::corrupt::Corrupt;
use super::group::{Area, Group, Layout, read};
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
        Layout::Segments(segments) => panic!("{name} is understood: {segments:?}"),
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

#[test]
fn what_stands_on_parts_has_their_extents_and_is_not_understood() {
    let raid = r#"start_extent = 0 extent_count = 10 type = "raid1" device_count = 2 region_size = 4096
        raids = ["r_rmeta_0", "r_rimage_0", "r_rmeta_1", "r_rimage_1"]"#;
    let parts = [("r_rmeta_0", 1, 0), ("r_rimage_0", 10, 1), ("r_rmeta_1", 1, 11), ("r_rimage_1", 10, 12)];
    let parts = parts.map(|(name, count, first)| volume(name, "", &[&linear(0, count, first)]));
    let found = group(&(volume("r", VISIBLE, &[raid]) + &parts.join(" "))).unwrap();
    assert_eq!(found.volumes.len(), 1);
    assert!(reason(&found, "r").contains("raid1"));
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
