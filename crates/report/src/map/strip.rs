//! A disk as a few rows of characters.

use std::fmt::Write as _;

use super::model::{DiskMap, PieceClass};
use super::tiles::{Tile, Tiles};
use crate::escape::shortened;
use crate::text::{Palette, human_bytes, printable};

/// Lines for each layer.
const LINES: usize = 2;
/// What stands to the left of each line.
const INDENT: &str = "  ";
/// The narrowest and the widest picture.
const WIDTH_MIN: usize = 20;
const WIDTH_MAX: usize = 1000;

/// The disk in `width` columns: for each layer a heading and two lines of characters, one class each; a legend at the
/// end.
pub fn map_text(map: &DiskMap, width: usize, palette: Palette) -> String {
    let columns = width.clamp(WIDTH_MIN, WIDTH_MAX) - INDENT.len();
    let mut out = String::new();
    let guest = Tiles::of_guest(map, columns * LINES);
    let _ = writeln!(out, "{}  {}", palette.strong("guest"), human_bytes(map.virtual_bytes));
    lines(&mut out, &guest, columns, palette);
    let mut seen: Vec<_> = guest.tiles.iter().map(Tile::dominating).collect();
    for layer in &map.layers {
        let tiles = Tiles::of_layer(map, layer, columns * LINES);
        let name = palette.strong(&printable(&layer.name));
        let about = printable(&layer.about);
        let text = format!("{about}, {} in {}", tiles.said(), layer.fragments_said());
        let text = shortened(&text, width.saturating_sub(layer.name.chars().count() + 2));
        let _ = writeln!(out, "{name}  {text}");
        lines(&mut out, &tiles, columns, palette);
        seen.extend(tiles.tiles.iter().map(Tile::dominating));
    }
    let entries = PieceClass::ALL.into_iter().map(Some).chain([None]).filter(|class| seen.contains(class));
    legend(&mut out, entries, columns, palette);
    out
}

/// What the glyphs mean, in as many lines as it takes.
fn legend(
    out: &mut String,
    entries: impl Iterator<Item = Option<PieceClass>>,
    columns: usize,
    palette: Palette,
) {
    let mut used = 0;
    for class in entries {
        let label = class.map_or("nothing", PieceClass::label);
        // A glyph and a blank before it, two blanks behind.
        let width = label.chars().count() + 4;
        if used > 0 && used + width > columns {
            out.push('\n');
            used = 0;
        }
        let _ = write!(out, "{}{} {label}", INDENT, cells(class, 1, palette));
        used += width;
    }
    out.push('\n');
}

fn lines(out: &mut String, tiles: &Tiles, columns: usize, palette: Palette) {
    for line in tiles.tiles.chunks(columns) {
        let classes: Vec<_> = line.iter().map(Tile::dominating).collect();
        let text: String =
            classes.chunk_by(|a, b| a == b).map(|same| cells(same[0], same.len(), palette)).collect();
        let _ = writeln!(out, "{INDENT}{text}");
    }
}

fn cells(class: Option<PieceClass>, count: usize, palette: Palette) -> String {
    let (glyph, color) = match class {
        Some(PieceClass::Contiguous) => ('█', "34"),
        Some(PieceClass::Fragmented) => ('▓', "31"),
        Some(PieceClass::Metadata) => ('▒', "35"),
        Some(PieceClass::Reclaimable) => ('░', "33"),
        Some(PieceClass::Free) => ('·', "2"),
        Some(PieceClass::Outside) => ('-', "2"),
        Some(PieceClass::Unknown) => ('?', "36"),
        None => (' ', "0"),
    };
    let text: String = std::iter::repeat_n(glyph, count).collect();
    if glyph == ' ' { text } else { palette.cell(color, &text) }
}
