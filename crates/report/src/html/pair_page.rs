//! Two recordings beside each other: figures, and histograms whose bars stand in pairs.

use std::fmt::Write as _;

use super::page;
use super::report_page::{Table, table};
use crate::escape::{escaped, shortened};
use crate::text::printable;

const WIDTH: u64 = 560;
const LEFT: u64 = 110;
const BAR_MAX: u64 = 350;
const BAR_HEIGHT: u64 = 11;
const LINE: u64 = 16;
const GAP: u64 = 6;
/// More bins than that are not drawn: vscsiStats has 34 at most.
const BARS_MAX: usize = 64;

/// Where measurements are from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recording {
    /// Its name.
    pub(crate) name: String,
    /// What it covers.
    pub(crate) about: String,
}

/// The page.
#[derive(Clone, Debug, Default)]
pub(crate) struct PairPage {
    pub(crate) title: String,
    /// `None` if there is but one.
    pub(crate) before: Option<Recording>,
    pub(crate) after: Recording,
    pub(crate) sections: Vec<PairSection>,
    pub(crate) colophon: String,
}

/// One disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct PairSection {
    pub(crate) title: String,
    pub(crate) about: String,
    pub(crate) verdict: String,
    pub(crate) figures: Option<Table>,
    pub(crate) charts: Vec<PairChart>,
    pub(crate) notes: Vec<String>,
}

/// A histogram.
#[derive(Clone, Debug, Default)]
pub(crate) struct PairChart {
    pub(crate) title: String,
    pub(crate) bars: Vec<BarPair>,
}

/// A bin: its shares, from 0 to 1.
#[derive(Clone, Debug, Default)]
pub(crate) struct BarPair {
    pub(crate) label: String,
    pub(crate) before: Option<f64>,
    pub(crate) after: f64,
}

/// The page as HTML.
pub(crate) fn pair_html(pair: &PairPage) -> String {
    let text = |text: &str| escaped(&shortened(&printable(text), 300));
    let mut out = format!("<main>\n<h1>{}</h1>\n<ul class=\"legend pair\">\n", text(&pair.title));
    let recordings = [("before", pair.before.as_ref()), ("after", Some(&pair.after))];
    for (class, recording) in recordings {
        let Some(Recording { name, about }) = recording else { continue };
        let word = if pair.before.is_some() { class } else { "measured" };
        let _ = writeln!(
            out,
            "<li><span class=\"swatch {class}\"></span>{word}: {}<b>{}</b></li>",
            text(name),
            text(about)
        );
    }
    out.push_str("</ul>\n");
    if pair.sections.is_empty() {
        out.push_str("<p class=\"remark\">No disk was measured.</p>\n");
    }
    for section in &pair.sections {
        let _ = writeln!(
            out,
            "<h2>{}</h2>\n<p class=\"about\">{}</p>",
            text(&section.title),
            text(&section.about)
        );
        for note in &section.notes {
            let _ = writeln!(out, "<p class=\"about\">{}</p>", text(note));
        }
        if !section.verdict.is_empty() {
            let _ = writeln!(out, "<p class=\"verdict\">{}</p>", text(&section.verdict));
        }
        section.figures.iter().for_each(|figures| table(&mut out, figures));
        if !section.charts.is_empty() {
            out.push_str("<h2>Histograms</h2>\n<div class=\"charts\">\n");
            section.charts.iter().for_each(|one| out.push_str(&chart(one)));
            out.push_str("</div>\n");
        }
    }
    let _ = write!(out, "<footer>{}</footer>\n</main>\n", text(&pair.colophon));
    page(&printable(&pair.title), &out, false)
}

pub(super) fn chart(chart: &PairChart) -> String {
    let bars = &chart.bars[..chart.bars.len().min(BARS_MAX)];
    let is_pair = bars.iter().any(|bar| bar.before.is_some());
    let step = if is_pair { 2 * LINE } else { LINE } + GAP;
    let most = bars.iter().flat_map(|bar| [bar.after, bar.before.unwrap_or(0.0)]).fold(0.0, f64::max);
    let height = bars.len() as u64 * step + 4;
    let title = escaped(&chart.title);
    let mut out = format!(
        "<figure><figcaption>{title}</figcaption><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\n"
    );
    for (index, bar) in bars.iter().enumerate() {
        let y = index as u64 * step + 4;
        let label = escaped(&shortened(&bar.label, 18));
        let (label_x, label_y) = (LEFT - 10, y + (step - GAP) / 2 + 3);
        let _ = writeln!(
            out,
            r#"<text class="faint" x="{label_x}" y="{label_y}" text-anchor="end">{label}</text>"#
        );
        let shares = bar.before.map(|share| ("bar before", share)).into_iter().chain([("bar", bar.after)]);
        for (line, (class, share)) in (0..).zip(shares) {
            push_bar(&mut out, y + line * LINE, class, share, most);
        }
    }
    let _ = write!(out, r#"<path class="axis" d="M{LEFT}.5 0V{height}"/></svg></figure>"#);
    out
}

fn push_bar(out: &mut String, y: u64, class: &str, share: f64, most: f64) {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let width = if most > 0.0 { (share / most * BAR_MAX as f64) as u64 } else { 0 };
    let width = width.min(BAR_MAX).max(u64::from(share > 0.0));
    if width > 0 {
        let _ = writeln!(
            out,
            r#"<rect class="{class}" x="{LEFT}" y="{y}" width="{width}" height="{BAR_HEIGHT}"/>"#
        );
    }
    let (text_x, text_y) = (LEFT + width + 7, y + 10);
    let said = match share * 100.0 {
        0.0 => String::new(),
        percent if percent < 0.1 => "&lt; 0.1 %".to_owned(),
        percent => format!("{percent:.1} %"),
    };
    let _ = writeln!(out, r#"<text x="{text_x}" y="{text_y}">{said}</text>"#);
}
