//! A disk as an SVG: for printing, for documents, and for what cannot run scripts.
//!
//! Each layer is a long bar, cut into lines like text. A tile of it is stacked from its classes. Tiles side by side
//! that look the same become one rectangle, and all rectangles of a colour one path, so that the size stays below
//! [`MAP_SVG_BYTES_MAX`] whatever the disk. No scripts, no style sheet, no ids: it may stand within an HTML page.

use std::fmt::Write as _;

use super::colors::{ORIGIN, fill, origin_step};
use super::model::{DiskMap, MapVolume, PieceClass};
use super::tiles::{CLASS_COUNT, Tile, Tiles};
use crate::escape::{escaped, shortened};
use crate::text::{human_bytes, printable};

/// No picture is larger.
pub const MAP_SVG_BYTES_MAX: usize = 1_000_000;

/// More layers than a chain of images has in practice are not drawn.
const LAYERS_MAX: usize = 6;

const WIDTH: usize = 960;
const LEFT: usize = 84;
const RIGHT: usize = 24;
/// Tiles of a line, and lines of a layer.
const COLUMNS: usize = 213;
const LINES: usize = 8;
const TILE_WIDTH: usize = 4;
/// Steps of a tile's height, and their pixels.
const BANDS: u64 = 8;
const BAND_HEIGHT: usize = 2;
const TILE_HEIGHT: usize = 16;
const ORIGIN_HEIGHT: usize = 3;
const LINE_GAP: usize = 6;
const LABEL_HEIGHT: usize = 13;
/// The width of a character of the labels, about.
const LABEL_EM: usize = 7;

const INK: &str = "#1b2733";
const FAINT: &str = "#5c6773";
const HAIRLINE: &str = "#c9d1d9";

/// Draws the disk.
pub fn map_svg(map: &DiskMap) -> String {
    let guest = Tiles::of_guest(map, COLUMNS * LINES);
    let layers: Vec<_> = map.layers.iter().take(LAYERS_MAX).collect();
    let below: Vec<_> = layers.iter().map(|layer| Tiles::of_layer(map, layer, COLUMNS * LINES)).collect();

    let mut drawing = Drawing { out: String::new(), y: 0 };
    drawing.heading(map);
    drawing.legend(&guest, !below.is_empty());
    let about = format!("the virtual disk, {}", human_bytes(map.virtual_bytes));
    drawing.layer("guest", &about, &guest, map, &map.volumes);
    for (layer, tiles) in layers.iter().zip(&below) {
        let runs = layer.fragments_said();
        let about = format!("{} · {} · {runs} in the disk's order", printable(&layer.about), tiles.said());
        drawing.layer(&printable(&layer.name), &about, tiles, map, &[]);
    }
    drawing.finish(map)
}

struct Drawing {
    out: String,
    /// Where the next thing is drawn.
    y: usize,
}

impl Drawing {
    fn heading(&mut self, map: &DiskMap) {
        self.y += 40;
        self.text(LEFT, 22, "600", INK, &shortened(&printable(&map.title), 60));
        self.y += 22;
        let volumes: Vec<_> = map.volumes.iter().map(volume_name).collect();
        let plural = if volumes.len() == 1 { "volume" } else { "volumes" };
        let about = format!(
            "{}, {} {plural}: {}",
            human_bytes(map.virtual_bytes),
            volumes.len(),
            volumes.join(" · ")
        );
        self.text(LEFT, 13, "400", FAINT, &shortened(about.trim_end_matches(": "), 112));
        self.y += 14;
    }

    /// What the colours mean, with the guest's bytes of each.
    fn legend(&mut self, guest: &Tiles, has_layers: bool) {
        const ACROSS: usize = 4;
        let step = (WIDTH - LEFT - RIGHT) / ACROSS;
        let total = |class: PieceClass| {
            guest.tiles.iter().fold(0, |sum: u64, tile| sum.saturating_add(tile.shares[class.position()]))
        };
        let present =
            PieceClass::ALL.into_iter().map(|class| (class, total(class))).filter(|(_, bytes)| *bytes > 0);
        let mut entries: Vec<_> = present
            .map(|(class, bytes)| (fill(class), format!("{}, {}", class.label(), human_bytes(bytes))))
            .collect();
        if has_layers {
            entries.push(("#ffffff", "nothing of this disk".into()));
        }
        for row in entries.chunks(ACROSS) {
            self.y += 20;
            for (column, (color, label)) in row.iter().enumerate() {
                let x = LEFT + column * step;
                let stroke = if *color == "#ffffff" { HAIRLINE } else { color };
                let _ = writeln!(
                    self.out,
                    r#"<rect x="{x}.5" y="{}.5" width="11" height="11" fill="{color}" stroke="{stroke}"/>"#,
                    self.y - 11
                );
                self.text(x + 18, 12, "400", INK, label);
            }
        }
        self.y += 20;
        for (index, color) in ORIGIN.iter().enumerate() {
            let (x, y) = (LEFT + index * 10, self.y - 8);
            let _ = writeln!(self.out, r#"<rect x="{x}" y="{y}" width="10" height="5" fill="{color}"/>"#);
        }
        let note = "place on the virtual disk: the line under a row is smooth where the order is kept";
        self.text(LEFT + 10 * ORIGIN.len() + 10, 12, "400", INK, note);
    }

    fn layer(&mut self, name: &str, about: &str, tiles: &Tiles, map: &DiskMap, volumes: &[MapVolume]) {
        self.y += 38;
        self.text(LEFT, 15, "600", INK, &shortened(name, 10));
        self.text(LEFT + 100, 12, "400", FAINT, &shortened(about, 105));
        self.y += 10;
        let mut paths = vec![String::new(); CLASS_COUNT];
        let mut origins = vec![String::new(); ORIGIN.len()];
        let mut marks = String::new();
        for (index, line) in tiles.tiles.chunks(COLUMNS).enumerate() {
            let first = index * COLUMNS;
            self.volume_labels(tiles, volumes, first, line.len());
            let at = (first as u64).saturating_mul(tiles.tile_bytes).saturating_add(tiles.range.start);
            self.address(&address_label(tiles, at));
            let (y, width) = (self.y, line.len() * TILE_WIDTH);
            let _ = writeln!(
                self.out,
                r##"<rect x="{LEFT}" y="{y}" width="{width}" height="{TILE_HEIGHT}" fill="#fff" stroke="{HAIRLINE}" stroke-width="1"/>"##
            );
            stack_line(line, tiles.tile_bytes, y, &mut paths);
            origin_line(line, map.virtual_bytes, y + TILE_HEIGHT + 1, &mut origins);
            self.fold_marks(tiles, first, line.len(), &mut marks);
            self.y += TILE_HEIGHT + ORIGIN_HEIGHT + LINE_GAP;
        }
        if tiles.tiles.is_empty() {
            self.y += 12;
            self.text(LEFT, 12, "400", FAINT, "nothing");
        }
        if !marks.is_empty() {
            let _ = writeln!(self.out, r#"<path stroke="{FAINT}" stroke-dasharray="2 2" d="{marks}"/>"#);
        }
        let colors = PieceClass::ALL.into_iter().map(fill).chain(ORIGIN);
        for (color, path) in colors.zip(paths.into_iter().chain(origins)).filter(|(_, path)| !path.is_empty())
        {
            let _ = writeln!(self.out, r#"<path fill="{color}" d="{path}"/>"#);
        }
    }

    /// A dashed line for each tile of the line of `count` from `first` in which something is left out.
    fn fold_marks(&self, tiles: &Tiles, first: usize, count: usize, path: &mut String) {
        let tile_of = |at: u64| usize::try_from((at - tiles.range.start) / tiles.tile_bytes).ok();
        let mut marked = None;
        for tile in tiles.folds.marks().filter_map(tile_of) {
            if (first..first + count).contains(&tile) && marked.replace(tile) != Some(tile) {
                let x = LEFT + (tile - first) * TILE_WIDTH + TILE_WIDTH / 2;
                let _ = write!(path, "M{x} {}v{TILE_HEIGHT}", self.y);
            }
        }
    }

    /// A tick and a name where a volume begins within the line of `count` tiles from `first`.
    fn volume_labels(&mut self, tiles: &Tiles, volumes: &[MapVolume], first: usize, count: usize) {
        let place = |volume: &MapVolume| {
            let tile = usize::try_from(volume.span.start().get() / tiles.tile_bytes).ok()?;
            (first..first + count).contains(&tile).then(|| LEFT + (tile - first) * TILE_WIDTH)
        };
        let here: Vec<_> = volumes.iter().filter_map(|volume| Some((place(volume)?, volume))).collect();
        if here.is_empty() {
            return;
        }
        self.y += LABEL_HEIGHT;
        let ends = here.iter().skip(1).map(|(x, _)| *x).chain([WIDTH - RIGHT]);
        for ((x, volume), end) in here.iter().zip(ends) {
            let (top, bottom) = (self.y - LABEL_HEIGHT + 2, self.y);
            let _ = writeln!(self.out, r#"<path stroke="{INK}" d="M{x}.5 {top}V{bottom}"/>"#);
            let width = end.saturating_sub(x + 10) / LABEL_EM;
            if width >= 4 {
                self.y -= 4;
                self.text(x + 5, 11, "400", INK, &shortened(&volume_name(volume), width));
                self.y += 4;
            }
        }
    }

    fn address(&mut self, label: &str) {
        let (x, y) = (LEFT - 8, self.y + 12);
        let _ = writeln!(
            self.out,
            r#"<text x="{x}" y="{y}" font-size="11" text-anchor="end" fill="{FAINT}">{label}</text>"#
        );
    }

    fn text(&mut self, x: usize, size: usize, weight: &str, color: &str, text: &str) {
        let y = self.y;
        let _ = writeln!(
            self.out,
            r#"<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{color}">{}</text>"#,
            escaped(text)
        );
    }

    fn finish(self, map: &DiskMap) -> String {
        let height = self.y + 20;
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" font-family="system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif">
<title>{}</title>
<rect width="{WIDTH}" height="{height}" fill="#fff"/>
{}</svg>
"##,
            escaped(&format!("Map of {}", shortened(&map.title, 200))),
            self.out
        )
    }
}

/// Where a line begins: how far from the row's first address, where lines lie too close to each other to be told apart otherwise.
fn address_label(tiles: &Tiles, at: u64) -> String {
    let start = tiles.range.start;
    let is_close = tiles.tile_bytes.saturating_mul(COLUMNS as u64) < start / 200;
    match is_close && at > start {
        true => format!("+{}", human_bytes(tiles.address(at) - start)),
        false => human_bytes(tiles.address(at)),
    }
}

/// `1 ntfs "System"`.
fn volume_name(volume: &MapVolume) -> String {
    let filesystem = volume.filesystem.as_deref().unwrap_or("unknown");
    let label = volume.label.as_ref().filter(|label| !label.is_empty());
    let label = label.map(|label| format!(" “{}”", printable(label))).unwrap_or_default();
    format!("{} {}{label}", volume.index, printable(filesystem))
}

/// From which to which band, counted from below, each class of a tile reaches. A tile with but a little of what is
/// not free shows one band of it.
fn bands(tile: &Tile, tile_bytes: u64) -> [(u64, u64); CLASS_COUNT] {
    let mut sum: u128 = 0;
    let mut from = 0;
    let mut bands = tile.shares.map(|share| {
        sum += u128::from(share);
        let to = (sum * u128::from(BANDS) + u128::from(tile_bytes / 2)) / u128::from(tile_bytes.max(1));
        let to = u64::try_from(to).unwrap_or(BANDS).min(BANDS);
        (std::mem::replace(&mut from, to), to)
    });
    let free = PieceClass::Free.position();
    let shows_data = bands[..free].iter().any(|(from, to)| from < to);
    let most = (0..free).max_by_key(|index| tile.shares[*index]).filter(|index| tile.shares[*index] > 0);
    if let (false, Some(most)) = (shows_data, most) {
        bands[most] = (0, 1);
        bands[free].0 = bands[free].0.max(1).min(bands[free].1);
    }
    bands
}

fn stack_line(line: &[Tile], tile_bytes: u64, y: usize, paths: &mut [String]) {
    let stacks: Vec<_> = line.iter().map(|tile| bands(tile, tile_bytes)).collect();
    for (class, path) in paths.iter_mut().enumerate() {
        let mut column = 0;
        for same in stacks.chunk_by(|a, b| a[class] == b[class]) {
            let (from, to) = same[0][class];
            if from < to {
                let pixels = |bands: u64| usize::try_from(bands).unwrap_or(0) * BAND_HEIGHT;
                let top = y + TILE_HEIGHT - pixels(to);
                rectangle(path, column, same.len(), top, pixels(to - from));
            }
            column += same.len();
        }
    }
}

fn origin_line(line: &[Tile], virtual_bytes: u64, y: usize, paths: &mut [String]) {
    let step = |tile: &Tile| (tile.total_bytes() > 0).then(|| origin_step(tile.origin, virtual_bytes));
    let steps: Vec<_> = line.iter().map(step).collect();
    let mut column = 0;
    for same in steps.chunk_by(|a, b| a == b) {
        if let Some(step) = same[0] {
            rectangle(&mut paths[step], column, same.len(), y, ORIGIN_HEIGHT);
        }
        column += same.len();
    }
}

/// Adds a rectangle over `count` tiles from `column` to a path.
fn rectangle(path: &mut String, column: usize, count: usize, y: usize, height: usize) {
    let (x, width) = (LEFT + column * TILE_WIDTH, count * TILE_WIDTH);
    let _ = write!(path, "M{x} {y}h{width}v{height}h-{width}z");
}
