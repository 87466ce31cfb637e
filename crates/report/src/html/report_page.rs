//! The report of an analysis as a page: what was found, what it costs, what to do, and the map.

use std::fmt::Write as _;

use super::chart::{self, BarChart, DayChart, Histogram};
use super::{map_section, page};
use crate::escape::{escaped, shortened};
use crate::map::DiskMap;
use crate::text::printable;

/// A table has no more rows on a page: the JSON documents have all.
const ROWS_MAX: usize = 2000;
/// A cell is cut to this many columns.
const CELL_MAX: usize = 1000;

/// What a report says. All text may hold names from a guest.
#[derive(Clone, Debug, Default)]
pub struct ReportPage {
    /// What was analysed.
    pub title: String,
    /// Under the title, such as format and size.
    pub about: String,
    /// The answer in a sentence or two.
    pub verdict: String,
    /// Figures that matter most: what, and how much.
    pub summary: Vec<(String, String)>,
    /// What is worth doing, the best first.
    pub advice: Vec<Advice>,
    /// Counts by day.
    pub days: Vec<DayChart>,
    /// The layers: volumes, container, host.
    pub layers: Vec<Table>,
    /// Figures side by side.
    pub charts: Vec<BarChart>,
    /// Free extents by size.
    pub histograms: Vec<Histogram>,
    /// The worst files.
    pub files: Vec<Table>,
    /// What fragmentation costs.
    pub costs: Vec<Table>,
    /// Doubts, and what else a reader should know.
    pub notes: Vec<String>,
    /// Who made it and how.
    pub colophon: String,
}

/// A piece of advice.
#[derive(Clone, Debug, Default)]
pub struct Advice {
    /// What to do, or that nothing is to be done.
    pub action: String,
    /// What it gains.
    pub gain: String,
    /// What it costs.
    pub cost: String,
    /// Why.
    pub because: String,
    /// The command that does it.
    pub command: String,
}

/// A table.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Its heading.
    pub title: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// Its rows, each with a cell a column.
    pub rows: Vec<Vec<String>>,
    /// What stands below it.
    pub remark: Option<String>,
    /// What stands instead of it if it has no rows.
    pub empty: Option<String>,
}

/// A column.
#[derive(Clone, Debug, Default)]
pub struct Column {
    /// Its heading.
    pub name: String,
    /// Whether it holds numbers, which stand to the right.
    pub is_number: bool,
}

impl Column {
    /// A column of text.
    pub fn text(name: &str) -> Self {
        Self { name: name.to_owned(), is_number: false }
    }

    /// A column of numbers.
    pub fn number(name: &str) -> Self {
        Self { name: name.to_owned(), is_number: true }
    }
}

/// The report as one page that stands alone, with the map if there is one.
pub fn report_html(report: &ReportPage, map: Option<&DiskMap>) -> String {
    let mut out = String::from("<main>\n");
    let text = |text: &str| escaped(&shortened(&printable(text), CELL_MAX));
    let _ = writeln!(out, "<h1>{}</h1>\n<p class=\"about\">{}</p>", text(&report.title), text(&report.about));
    if !report.verdict.is_empty() {
        let _ = writeln!(out, "<p class=\"verdict\">{}</p>", text(&report.verdict));
    }
    if !report.summary.is_empty() {
        out.push_str("<dl class=\"summary\">\n");
        for (term, figure) in &report.summary {
            let _ = writeln!(out, "<div><dt>{}</dt><dd>{}</dd></div>", text(term), text(figure));
        }
        out.push_str("</dl>\n");
    }
    advice(&mut out, &report.advice);
    if !report.days.is_empty() {
        out.push_str("<div class=\"charts days\">\n");
        report.days.iter().for_each(|one| out.push_str(&chart::days(one)));
        out.push_str("</div>\n");
    }
    if !report.charts.is_empty() {
        out.push_str("<h2>Figures</h2>\n<div class=\"charts\">\n");
        report.charts.iter().for_each(|one| out.push_str(&chart::bars(one)));
        out.push_str("</div>\n");
    }
    report.layers.iter().for_each(|one| table(&mut out, one));
    if let Some(map) = map {
        let _ = writeln!(out, "<h2>Map</h2>\n{}", map_section(map, "chosen"));
    }
    if !report.histograms.is_empty() {
        out.push_str("<h2>Free space</h2>\n<div class=\"charts\">\n");
        report.histograms.iter().for_each(|one| out.push_str(&chart::histogram(one)));
        out.push_str("</div>\n");
    }
    report.files.iter().chain(&report.costs).for_each(|one| table(&mut out, one));
    if !report.notes.is_empty() {
        out.push_str("<h2>Notes</h2>\n<ul>\n");
        for note in &report.notes {
            let _ = writeln!(out, "<li>{}</li>", text(note));
        }
        out.push_str("</ul>\n");
    }
    let _ = write!(out, "<footer>{}</footer>\n</main>\n", text(&report.colophon));
    page(&printable(&report.title), &out, map.is_some())
}

fn advice(out: &mut String, advice: &[Advice]) {
    if advice.is_empty() {
        return;
    }
    out.push_str("<h2>What to do</h2>\n<ul class=\"advice\">\n");
    for Advice { action, gain, cost, because, command } in advice {
        let _ = write!(out, "<li><strong>{}</strong><dl>", escaped(action));
        for (term, said) in [("Gain", gain), ("Cost", cost), ("Because", because)] {
            if !said.is_empty() {
                let _ = write!(out, "<dt>{term}</dt><dd>{}</dd>", escaped(said));
            }
        }
        if !command.is_empty() {
            let _ = write!(out, "<dt>Command</dt><dd><code>{}</code></dd>", escaped(command));
        }
        out.push_str("</dl></li>\n");
    }
    out.push_str("</ul>\n");
}

pub(super) fn table(out: &mut String, table: &Table) {
    if let (true, Some(empty)) = (table.rows.is_empty(), &table.empty) {
        let _ =
            writeln!(out, "<h2>{}</h2>\n<p class=\"remark\">{}</p>", escaped(&table.title), escaped(empty));
        return;
    }
    let class = |index: usize| match table.columns.get(index) {
        Some(Column { is_number: true, .. }) => " class=\"number\"",
        _ => "",
    };
    let _ = write!(out, "<h2>{}</h2>\n<div class=\"scroll\"><table>\n<thead><tr>", escaped(&table.title));
    for (index, column) in table.columns.iter().enumerate() {
        let _ = write!(out, "<th scope=\"col\"{}>{}</th>", class(index), escaped(&column.name));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in table.rows.iter().take(ROWS_MAX) {
        out.push_str("<tr>");
        for (index, cell) in row.iter().enumerate() {
            let _ = write!(out, "<td{}>{}</td>", class(index), escaped(&shortened(cell, CELL_MAX)));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    if let Some(left) = table.rows.len().checked_sub(ROWS_MAX).filter(|left| *left > 0) {
        let _ = writeln!(out, "<p class=\"remark\">{left} more rows are not shown.</p>");
    }
    if let Some(remark) = &table.remark {
        let _ = writeln!(out, "<p class=\"remark\">{}</p>", escaped(remark));
    }
}
