//! What was gained, for whoever pays: figures and histograms in pairs, the worst file, savings with all that they are made of.

use std::fmt::Write as _;

use super::page;
use super::pair_page::{PairChart, Recording, chart};
use super::report_page::{Table, table};
use crate::escape::{escaped, shortened};
use crate::text::printable;

/// The most histograms that are drawn.
const CHARTS_MAX: usize = 64;
/// Text is cut to this many columns.
const TEXT_MAX: usize = 1000;
/// A strip's height, its place among others, and that of its text.
const STRIP_HEIGHT: u64 = 18;
const STRIP_STEP: u64 = 46;

/// The page.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorthPage {
    pub(crate) title: String,
    pub(crate) before: Recording,
    pub(crate) after: Recording,
    pub(crate) verdict: String,
    /// What was done, a sentence each.
    pub(crate) done: Vec<String>,
    pub(crate) figures: Table,
    pub(crate) charts: Vec<PairChart>,
    pub(crate) worst: Option<StripPair>,
    pub(crate) savings: Vec<SavingCard>,
    pub(crate) sums: Vec<(String, String)>,
    /// What others published.
    pub(crate) published: Vec<String>,
    pub(crate) notes: Vec<String>,
    pub(crate) colophon: String,
}

/// A line of the calculation.
#[derive(Clone, Debug, Default)]
pub(crate) struct SavingCard {
    pub(crate) title: String,
    /// Formula and inputs.
    pub(crate) facts: Vec<(String, String)>,
}

/// Where a file lies on its volume, before and after.
#[derive(Clone, Debug, Default)]
pub(crate) struct StripPair {
    pub(crate) title: String,
    pub(crate) about: String,
    pub(crate) columns: u64,
    pub(crate) strips: Option<(Strip, Option<Strip>)>,
}

/// A bar whose columns are a volume's equal parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strip {
    /// First and last column.
    pub(crate) ranges: Vec<(u64, u64)>,
    pub(crate) said: String,
}

fn text(text: &str) -> String {
    escaped(&shortened(&printable(text), TEXT_MAX))
}

/// The page as HTML.
pub(crate) fn worth_html(worth: &WorthPage) -> String {
    let mut out = format!("<main>\n<h1>{}</h1>\n<ul class=\"legend pair\">\n", text(&worth.title));
    for (class, Recording { name, about }) in [("before", &worth.before), ("after", &worth.after)] {
        let (name, about) = (text(name), text(about));
        let _ = writeln!(out, "<li><span class=\"swatch {class}\"></span>{class}: {name}<b>{about}</b></li>");
    }
    let _ = writeln!(out, "</ul>\n<p class=\"verdict\">{}</p>", text(&worth.verdict));
    terms(&mut out, &worth.sums);
    list(&mut out, "What was done", &worth.done);
    table(&mut out, &worth.figures);
    if let Some(worst) = &worth.worst {
        strips(&mut out, worst);
    }
    if !worth.charts.is_empty() {
        out.push_str("<h2>Histograms</h2>\n<div class=\"charts\">\n");
        worth.charts.iter().take(CHARTS_MAX).for_each(|one| out.push_str(&chart(one)));
        out.push_str("</div>\n");
    }
    savings(&mut out, &worth.savings);
    list(&mut out, "Published by others", &worth.published);
    list(&mut out, "Notes", &worth.notes);
    let _ = write!(out, "<footer>{}</footer>\n</main>\n", text(&worth.colophon));
    page(&printable(&worth.title), &out, false)
}

fn terms(out: &mut String, terms: &[(String, String)]) {
    out.push_str("<dl class=\"summary\">\n");
    for (term, said) in terms {
        let _ = writeln!(out, "<div><dt>{}</dt><dd>{}</dd></div>", text(term), text(said));
    }
    out.push_str("</dl>\n");
}

fn list(out: &mut String, title: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = write!(out, "<h2>{}</h2>\n<ul>\n", text(title));
    for line in lines {
        let _ = writeln!(out, "<li>{}</li>", text(line));
    }
    out.push_str("</ul>\n");
}

fn savings(out: &mut String, cards: &[SavingCard]) {
    out.push_str("<h2>What it is worth</h2>\n<ul class=\"advice\">\n");
    for SavingCard { title, facts } in cards {
        let _ = write!(out, "<li><strong>{}</strong><dl>", text(title));
        for (term, said) in facts {
            let _ = write!(out, "<dt>{}</dt><dd>{}</dd>", text(term), text(said));
        }
        out.push_str("</dl></li>\n");
    }
    out.push_str("</ul>\n");
}

fn strips(out: &mut String, pair: &StripPair) {
    let StripPair { title, about, columns, strips } = pair;
    let _ = write!(out, "<h2>The worst file</h2>\n<p class=\"about\">{}</p>\n", text(title));
    let _ = writeln!(out, "<p class=\"about\">{}</p>", text(about));
    let Some((before, after)) = strips else { return };
    let shown = [("bar before", Some(before)), ("bar", after.as_ref())];
    let shown: Vec<_> = shown.into_iter().filter_map(|(class, strip)| Some((class, strip?))).collect();
    let height = shown.len() as u64 * STRIP_STEP;
    let label = text(&format!("Where {title} lies on its volume"));
    let _ = writeln!(
        out,
        "<div class=\"charts\"><figure><figcaption>{label}</figcaption><svg viewBox=\"0 0 {columns} {height}\" role=\"img\" aria-label=\"{label}\">"
    );
    for (index, (class, strip)) in (0..).zip(shown) {
        let y = index * STRIP_STEP;
        let (text_y, bar_y, end_y) = (y + 14, y + 20, y + 20 + STRIP_HEIGHT);
        let _ = writeln!(out, r#"<text x="0" y="{text_y}">{}</text>"#, text(&strip.said));
        let _ =
            writeln!(out, r#"<path class="axis" fill="none" d="M0 {bar_y}H{columns}M0 {end_y}H{columns}"/>"#);
        for (first, last) in &strip.ranges {
            let width = last - first + 1;
            let _ = writeln!(
                out,
                r#"<rect class="{class}" x="{first}" y="{bar_y}" width="{width}" height="{STRIP_HEIGHT}"/>"#
            );
        }
    }
    out.push_str("</svg></figure></div>\n");
}
