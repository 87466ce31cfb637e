//! The report on a terminal.

use std::fmt::Write as _;

use super::{Compared, WorthDocument, change, money, said, verdict};
use crate::text::{Palette, printable, wrapped};

/// Columns of a figure's name.
const NAME: usize = 40;

/// The document in words and numbers.
pub fn worth_text(document: &WorthDocument, palette: Palette) -> String {
    let mut out = String::new();
    for done in &document.done {
        out.push_str(&wrapped("", Some("  "), done));
    }
    if !document.figures.is_empty() {
        let heading = format!("{:<NAME$} {:>11} {:>11} {:>9}", "", "before", "after", "change");
        let _ = writeln!(out, "{}", palette.strong(heading.trim_end()));
        document.figures.iter().for_each(|figure| push_figure(&mut out, figure));
    }
    if let Some(worst) = &document.worst_file {
        let after = worst.fragments_after.map_or("not said".to_owned(), |count| count.to_string());
        let text = format!(
            "worst file: {}: pieces {} before, {after} after",
            printable(&worst.path),
            worst.fragments_before
        );
        out.push_str(&wrapped("", Some("  "), &text));
    }
    out.push('\n');
    let currency = &document.savings.currency;
    for line in &document.savings.lines {
        let amount = line.amount_per_year.map_or("not known".to_owned(), |amount| money(amount, currency));
        let basis = line.basis.map_or("", super::Basis::word);
        let _ = writeln!(out, "{}", format!("{:<NAME$} {amount:>17} a year  {basis}", line.name).trim_end());
    }
    out.push('\n');
    out.push_str(&wrapped("", None, &verdict(document)));
    for note in &document.notes {
        out.push_str(&wrapped("* ", None, note));
    }
    out
}

fn push_figure(out: &mut String, figure: &Compared) {
    let columns = format!(
        "{:>11} {:>11} {:>9}",
        said(figure.before, figure.kind),
        said(figure.after, figure.kind),
        change(figure)
    );
    match figure.name.chars().count() {
        ..=NAME => {
            let _ = writeln!(out, "{:<NAME$} {columns}", figure.name);
        }
        _ => {
            out.push_str(&wrapped("", None, &figure.name));
            let _ = writeln!(out, "{:<NAME$} {columns}", "");
        }
    }
}
