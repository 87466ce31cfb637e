//! Pictures of made-up disks, judged by size and by an XML parser.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod synthetic;

use std::fs;
use std::time::Instant;

use report::{DiskMap, MAP_HTML_BYTES_MAX, MAP_SVG_BYTES_MAX, Palette, map_html, map_svg, map_text};

fn assert_well_formed(svg: &str) {
    let dir = testkit::scratch();
    let path = dir.path().join("map.svg");
    fs::write(&path, svg).unwrap();
    testkit::run("xmllint", &["--noout", "--nonet", path.to_str().unwrap()]);
}

#[test]
fn svg_is_well_formed_and_bounded() {
    for disk in [DiskMap::default(), synthetic::disk(0, 2), synthetic::disk(3000, 20)] {
        let svg = map_svg(&disk);
        assert!(svg.len() < MAP_SVG_BYTES_MAX, "{} bytes", svg.len());
        assert_well_formed(&svg);
    }
}

#[test]
fn svg_shows_hostile_text_as_text() {
    let mut disk = synthetic::disk(10, 2);
    let hostile = String::from_utf8_lossy(synthetic::HOSTILE_NAME).into_owned() + "\u{ffff}]]>";
    disk.title = hostile.clone();
    disk.volumes[0].label = Some(hostile.clone());
    disk.volumes[1].filesystem = Some(hostile.clone());
    disk.layers[0].name = hostile.clone();
    disk.layers[1].about = hostile;
    let svg = map_svg(&disk);
    assert_well_formed(&svg);
    assert!(!svg.contains("<script") && !svg.contains("<img") && !svg.contains('\u{1b}'));
}

#[test]
fn text_keeps_its_width() {
    let disk = synthetic::disk(500, 9);
    for width in [0, 40, 100] {
        let text = map_text(&disk, width, Palette { colors: false });
        let rows: Vec<_> = text.lines().filter(|line| line.contains(['█', '▓'])).collect();
        assert!(rows.len() >= 6, "{text}");
        assert!(rows.iter().take(2).all(|row| row.chars().count() <= width.max(20)), "{text}");
    }
    assert!(map_text(&disk, 100, Palette { colors: true }).contains("\x1b[34m█"));
}

#[test]
fn a_million_pieces_fit_into_every_picture() {
    let disk = synthetic::disk(290_000, 45);
    assert!(disk.pieces.len() >= 1_000_000, "{} pieces", disk.pieces.len());
    let start = Instant::now();
    let svg = map_svg(&disk);
    let svg_seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let html = map_html(&disk);
    let html_seconds = start.elapsed().as_secs_f64();
    println!(
        "{} pieces: SVG {} bytes in {svg_seconds:.2} s, HTML {} bytes in {html_seconds:.2} s",
        disk.pieces.len(),
        svg.len(),
        html.len()
    );
    assert!(svg.len() <= MAP_SVG_BYTES_MAX && html.len() <= MAP_HTML_BYTES_MAX);
}
