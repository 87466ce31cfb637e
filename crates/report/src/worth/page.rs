//! The report as a page for whoever pays.

use super::{Became, ComparedHistogram, Input, WorthDocument, WorthSubject, change, money, said, verdict};
use crate::html::{
    BarPair, Column, PairChart, Recording, SavingCard, Strip, StripPair, Table, WorthPage, worth_html,
};
use crate::text::{counted, grouped, human_bytes, printable};
use crate::worth::listing::STRIP_COLUMNS;
use crate::worth::savings::{Input as LineInput, Line};

/// The page of a document, which was made of `subject`.
pub fn worth_page(document: &WorthDocument, subject: &WorthSubject) -> String {
    worth_html(&WorthPage {
        title: "What was gained".to_owned(),
        before: recording(&subject.before),
        after: recording(&subject.after),
        verdict: verdict(document),
        done: document.done.clone(),
        figures: figures(document),
        charts: document.histograms.iter().map(chart).collect(),
        worst: worst(document),
        savings: document.savings.lines.iter().map(|line| card(line, &document.savings.currency)).collect(),
        sums: sums(document),
        published: vec![published(document)],
        notes: document.notes.clone(),
        colophon: format!(
            "leandisk {} report. Bars are shares of each state's own whole; before stands above after, whichever is better.",
            env!("CARGO_PKG_VERSION")
        ),
    })
}

fn recording(inputs: &[Input]) -> Recording {
    let list = |of: &dyn Fn(&Input) -> String| inputs.iter().map(of).collect::<Vec<_>>().join(", ");
    Recording { name: list(&|input| printable(&input.source)), about: list(&Input::about) }
}

fn figures(document: &WorthDocument) -> Table {
    let row = |figure: &super::Compared| {
        vec![
            figure.name.clone(),
            said(figure.before, figure.kind),
            said(figure.after, figure.kind),
            change(figure),
            figure.became.word().to_owned(),
            format!("{}, by {}", figure.basis.word(), figure.from),
        ]
    };
    let worse = document.figures.iter().filter(|figure| figure.became == Became::Worse).count();
    Table {
        title: "Before and after".to_owned(),
        columns: vec![
            Column::text("figure"),
            Column::number("before"),
            Column::number("after"),
            Column::number("change"),
            Column::text("became"),
            Column::text("how it is known"),
        ],
        rows: document.figures.iter().map(row).collect(),
        remark: (worse > 0).then(|| format!("{} became worse.", counted(worse as u64, "figure", "figures"))),
        empty: Some("The documents have no figure in common.".to_owned()),
    }
}

fn chart(histogram: &ComparedHistogram) -> PairChart {
    let bar =
        |bin: &super::ComparedBin| BarPair { label: bin.label.clone(), before: bin.before, after: bin.after };
    PairChart { title: histogram.title.clone(), bars: histogram.bins.iter().map(bar).collect() }
}

fn worst(document: &WorthDocument) -> Option<StripPair> {
    let worst = document.worst_file.as_ref()?;
    let pieces = |count: u64| counted(count, "piece", "pieces");
    let after = worst.fragments_after.map_or_else(
        || "not among the files that the document after names".to_owned(),
        |count| format!("in {}", pieces(count)),
    );
    let strip = |ranges: &[(u64, u64)], said: String| Strip { ranges: ranges.to_vec(), said };
    let strips = worst.strips.as_ref().map(|strips| {
        let before = strip(&strips.before, format!("before: {}", pieces(worst.fragments_before)));
        let now = strips.after.as_ref().map(|ranges| strip(ranges, format!("after: {after}")));
        (before, now)
    });
    Some(StripPair {
        title: format!("{} on volume {}", printable(&worst.path), worst.volume),
        about: format!(
            "{} in {} before; {after} after",
            human_bytes(worst.size_bytes),
            pieces(worst.fragments_before)
        ),
        columns: STRIP_COLUMNS,
        strips,
    })
}

fn card(line: &Line, currency: &str) -> SavingCard {
    let amount = match line.amount_per_year {
        Some(amount) => format!("{} a year", money(amount, currency)),
        None => "not known".to_owned(),
    };
    let mut facts = vec![("Formula".to_owned(), line.formula.to_owned())];
    facts.extend(line.inputs.iter().map(|input| (input.name.to_owned(), input_text(input, currency))));
    facts.extend(line.missing.map(|missing| ("Missing".to_owned(), missing.to_owned())));
    SavingCard { title: format!("{}: {amount}", line.name), facts }
}

fn input_text(input: &LineInput, currency: &str) -> String {
    let value = match input.unit {
        "money" => money(input.value, currency),
        "share" => format!("{:.1} %", input.value * 100.0),
        "bytes" => format!("{:.0} bytes", input.value),
        "s" => format!("{:.3} s", input.value),
        unit => format!("{} {unit}", input.value),
    };
    format!("{} ({}: {})", value.trim_end(), input.basis.word(), printable(&input.from))
}

fn sums(document: &WorthDocument) -> Vec<(String, String)> {
    let savings = &document.savings;
    let not_known = || "not known".to_owned();
    vec![
        (
            "Saved a year".to_owned(),
            savings.total_per_year.map_or_else(not_known, |total| money(total, &savings.currency)),
        ),
        ("Spent once (assumed)".to_owned(), money(savings.invested, &savings.currency)),
        (
            "Paid back after".to_owned(),
            match (savings.payback_months, savings.total_per_year) {
                (Some(months), _) => super::after_months(months),
                (None, Some(_)) => "never".to_owned(),
                (None, None) => not_known(),
            },
        ),
    ]
}

fn published(document: &WorthDocument) -> String {
    let example = &document.published;
    let number = |value: f64| grouped(super::rounded(value));
    let amounts: Vec<_> = example.savings_per_year.iter().map(|amount| number(*amount)).collect();
    let months = example.payback_months.map_or_else(|| "never".to_owned(), super::after_months);
    format!(
        "For comparison of the arithmetic, {}: {} spent once; {} = {} saved a year; paid back after {months}.",
        example.label,
        number(example.invested),
        amounts.join(" + "),
        number(example.total_per_year)
    )
}
