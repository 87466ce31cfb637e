//! Histograms as inline SVG, coloured by the page's style sheet.

use std::fmt::Write as _;

use crate::escape::{escaped, shortened};
use crate::text::{grouped, human_bytes};

const WIDTH: u64 = 560;
const LEFT: u64 = 120;
const BAR_MAX: u64 = 230;
const STEP: u64 = 24;
const BAR_HEIGHT: u64 = 14;
/// More bins than that are not drawn: sizes that double from 512 bytes to 16 EiB are 55.
const BINS_MAX: usize = 64;

/// Figures of one kind side by side.
#[derive(Clone, Debug, Default)]
pub struct BarChart {
    /// Of what.
    pub title: String,
    /// From top to bottom.
    pub bars: Vec<Bar>,
}

/// One figure.
#[derive(Clone, Debug, Default)]
pub struct Bar {
    /// Of what.
    pub label: String,
    /// As long as it is drawn: not negative.
    pub value: f64,
    /// What stands beside it.
    pub said: String,
    /// Drawn in the other colour.
    pub is_other: bool,
}

/// Two counts for each of some days, side by side.
#[derive(Clone, Debug, Default)]
pub struct DayChart {
    /// Of what.
    pub title: String,
    /// What the two are called.
    pub names: [String; 2],
    /// From the first day to the last one.
    pub bars: Vec<DayBar>,
}

/// A day with its two counts.
#[derive(Clone, Debug, Default)]
pub struct DayBar {
    /// Such as `2026-11-25`.
    pub label: String,
    /// What did not happen.
    pub prevented: u64,
    /// What was undone.
    pub repaired: u64,
}

/// Extents by size.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Of what.
    pub title: String,
    /// By ascending size.
    pub bins: Vec<HistogramBin>,
}

/// The extents of about one size.
#[derive(Clone, Debug, Default)]
pub struct HistogramBin {
    /// Which sizes, such as `4 to 8 KiB`.
    pub label: String,
    /// How many extents.
    pub count: u64,
    /// How many bytes they have together.
    pub bytes: u64,
}

/// A bar for each bin, as long as its bytes, with its count beside it.
pub(super) fn histogram(histogram: &Histogram) -> String {
    let bins = &histogram.bins[..histogram.bins.len().min(BINS_MAX)];
    let most = bins.iter().map(|bin| bin.bytes).max().unwrap_or(0).max(1);
    let lines = bins.iter().map(|bin| {
        let scaled = u128::from(bin.bytes) * u128::from(BAR_MAX) / u128::from(most);
        let width = u64::try_from(scaled).unwrap_or(BAR_MAX).max(u64::from(bin.bytes > 0));
        let said = match bin.count {
            0 => "none".to_owned(),
            1 => format!("{} in 1 extent", human_bytes(bin.bytes)),
            count => format!("{} in {} extents", human_bytes(bin.bytes), grouped(count)),
        };
        Line { label: &bin.label, width, said, class: "bar" }
    });
    figure(&histogram.title, lines)
}

/// A bar for each figure.
pub(super) fn bars(chart: &BarChart) -> String {
    let bars = &chart.bars[..chart.bars.len().min(BINS_MAX)];
    let most = bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
    let lines = bars.iter().map(|bar| Line {
        label: &bar.label,
        width: scaled(bar.value / most).max(u64::from(bar.value > 0.0)),
        said: escaped(&shortened(&bar.said, 40)),
        class: if bar.is_other { "other bar" } else { "bar" },
    });
    figure(&chart.title, lines)
}

/// More days are not drawn: the last ones are.
const DAYS_MAX: usize = 400;
const DAYS_WIDTH: u64 = 900;
const DAYS_LEFT: u64 = 76;
const DAYS_TOP: u64 = 20;
const DAYS_HEIGHT: u64 = 220;
/// So many days have their names below.
const DAY_NAMES: usize = 14;

/// So high where `most` is as high as the picture; what is not nothing can be seen.
fn height(value: u64, most: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(DAYS_HEIGHT) / u128::from(most.max(1));
    u64::try_from(scaled).unwrap_or(DAYS_HEIGHT).max(2 * u64::from(value > 0))
}

/// Two columns for each day, with all figures to be pointed at.
pub(super) fn days(chart: &DayChart) -> String {
    let bars = &chart.bars[chart.bars.len().saturating_sub(DAYS_MAX)..];
    let most = bars.iter().map(|bar| bar.prevented.max(bar.repaired)).max().unwrap_or(0).max(1);
    let step = ((DAYS_WIDTH - DAYS_LEFT) / bars.len().max(1) as u64).clamp(2, 80);
    let (bottom, all) = (DAYS_TOP + DAYS_HEIGHT, DAYS_TOP + DAYS_HEIGHT + 24);
    let [title, first, second] = [&chart.title, &chart.names[0], &chart.names[1]].map(|text| escaped(text));
    let mut out = format!(
        r#"<figure><figcaption>{title}</figcaption><ul class="legend pair"><li><span class="swatch after"></span>{first}</li><li><span class="swatch fragmented"></span>{second}</li></ul><svg viewBox="0 0 {DAYS_WIDTH} {all}" role="img" aria-label="{title}">
"#
    );
    for (share, of) in [(0, 0), (DAYS_HEIGHT / 2, most / 2), (DAYS_HEIGHT, most)] {
        let (y, x) = (bottom - share, DAYS_LEFT - 8);
        let _ = writeln!(out, r#"<path class="axis" d="M{DAYS_LEFT} {y}.5H{DAYS_WIDTH}"/>"#);
        let (text_y, said) = (y + 4, grouped(of));
        let _ = writeln!(out, r#"<text class="faint" x="{x}" y="{text_y}" text-anchor="end">{said}</text>"#);
    }
    let named = bars.len().div_ceil(DAY_NAMES).max(1);
    for (index, bar) in bars.iter().enumerate() {
        let x = DAYS_LEFT + index as u64 * step;
        let label = escaped(&shortened(&bar.label, 10));
        let said = format!("{label}: {} {first}, {} {second}", grouped(bar.prevented), grouped(bar.repaired));
        let _ = write!(out, "<g><title>{said}</title>");
        let (wide, narrow) = ((step * 5 / 10).max(1), (step * 3 / 10).max(1));
        for (class, value, x, width) in
            [("bar", bar.prevented, x + 1, wide), ("repaired bar", bar.repaired, x + 1 + wide, narrow)]
        {
            let height = height(value, most);
            let y = bottom - height;
            if height > 0 {
                let _ = write!(
                    out,
                    r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}"/>"#
                );
            }
        }
        out.push_str("</g>\n");
        if (bars.len() - 1 - index).is_multiple_of(named) {
            let (text_x, text_y) = (x + step * 4 / 10 + 1, bottom + 17);
            // Month and day.
            let short = escaped(bar.label.get(5..10).unwrap_or(&bar.label));
            let _ = writeln!(
                out,
                r#"<text class="faint" x="{text_x}" y="{text_y}" text-anchor="middle">{short}</text>"#
            );
        }
    }
    out.push_str("</svg></figure>");
    out
}

/// So much of the longest bar.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
fn scaled(share: f64) -> u64 {
    // Conversions of floats saturate, and make 0 of what is no number.
    ((share * BAR_MAX as f64) as u64).min(BAR_MAX)
}

/// A bar with what stands on both sides.
struct Line<'a> {
    label: &'a str,
    width: u64,
    /// Escaped.
    said: String,
    class: &'static str,
}

fn figure<'a>(title: &str, lines: impl ExactSizeIterator<Item = Line<'a>>) -> String {
    let height = lines.len() as u64 * STEP + 8;
    let title = escaped(title);
    let mut out = format!(
        "<figure><figcaption>{title}</figcaption><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\n"
    );
    for (index, Line { label, width, said, class }) in lines.enumerate() {
        let y = index as u64 * STEP + 4;
        let text_y = y + 11;
        let label = escaped(&shortened(label, 18));
        let (label_x, text_x) = (LEFT - 10, LEFT + width + 8);
        let _ = writeln!(
            out,
            r#"<text class="faint" x="{label_x}" y="{text_y}" text-anchor="end">{label}</text>"#
        );
        if width > 0 {
            let _ = writeln!(
                out,
                r#"<rect class="{class}" x="{LEFT}" y="{y}" width="{width}" height="{BAR_HEIGHT}"/>"#
            );
        }
        let _ = writeln!(out, r#"<text x="{text_x}" y="{text_y}">{said}</text>"#);
    }
    let _ = write!(out, r#"<path class="axis" d="M{LEFT}.5 0V{height}"/></svg></figure>"#);
    out
}
