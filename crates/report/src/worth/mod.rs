//! `leandisk report`: what was done to a disk, what that gained, and what it is worth.
//!
//! Invariants: figures stand in an order of their own, whether they became better or worse; each says whether it was measured, predicted or
//! assumed; only figures of the same kind of document are compared.

mod assumptions;
mod input;
mod listing;
mod page;
mod savings;
mod text;

use serde::Serialize;

use input::{Figure, Kind, Unit, number};
use savings::{Inputs, Known, published, savings};

use crate::html::PairChart;
use crate::stats_page;
use crate::text::human_bytes;

pub use assumptions::{ASSUMPTIONS_TOML, Assumptions};
pub use input::{Input, When};
pub use listing::{ListedFile, Wanted, WorstFile, is_listing};
pub use page::worth_page;
pub use savings::{Basis, Input as LineInput, Line, Published, Savings};
pub use text::worth_text;

/// What is wrong with a file that a report is made of.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// It is no document of Leandisk.
    #[error("not a document that leandisk printed with --json: {0}")]
    Document(String),
    /// It is larger than any document.
    #[error("no document is that large")]
    TooLarge,
    /// A number is none that a program of Leandisk writes.
    #[error("a document with a number that cannot be")]
    Number,
    /// It is no list of files.
    #[error("not a list of 'leandisk analyze --files': {0}")]
    Listing(String),
    /// It is no file of assumptions.
    #[error("not a file of assumptions: {0}")]
    Assumptions(String),
    /// An assumption is beyond all reason.
    #[error("the assumption {0}")]
    Assumption(&'static str),
}

/// What a report is made of.
#[derive(Debug, Default)]
pub struct WorthSubject {
    /// Documents of the state before.
    pub before: Vec<Input>,
    /// Documents of the state after.
    pub after: Vec<Input>,
    /// The file in the most pieces before, as a list of files has it.
    pub worst_before: Option<ListedFile>,
    /// The same file after.
    pub worst_after: Option<ListedFile>,
    /// What prices and habits are taken to be.
    pub assumptions: Assumptions,
}

/// The document `leandisk.report/1`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct WorthDocument {
    schema: &'static str,
    before: Vec<Source>,
    after: Vec<Source>,
    /// What was done, in words, in the order of the documents.
    done: Vec<String>,
    figures: Vec<Compared>,
    histograms: Vec<ComparedHistogram>,
    worst_file: Option<WorstFile>,
    savings: Savings,
    assumptions: Assumptions,
    published: Published,
    notes: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Source {
    path: String,
    kind: &'static str,
    disk: Option<String>,
}

/// A figure in both states.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Compared {
    key: String,
    name: String,
    unit: &'static str,
    before: f64,
    after: f64,
    /// The difference as a share of the figure before; `null` where that was 0.
    change: Option<f64>,
    became: Became,
    basis: Basis,
    /// The kind of the documents.
    from: &'static str,
    #[serde(skip)]
    kind: Unit,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Became {
    Better,
    Worse,
    Same,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
struct ComparedHistogram {
    title: String,
    bins: Vec<ComparedBin>,
}

/// Shares of the whole of each state.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct ComparedBin {
    label: String,
    before: Option<f64>,
    after: f64,
}

/// What the documents of both states come to.
pub fn worth_document(subject: &WorthSubject) -> WorthDocument {
    let WorthSubject { before, after, assumptions, .. } = subject;
    let figures = compared(before, after);
    let same_work = pairs(before, after).iter().all(|(earlier, later)| other_work(earlier, later).is_none());
    let inputs = inputs(&figures, same_work);
    let deeds = after.iter().filter_map(|input| input.deed.clone());
    WorthDocument {
        schema: "leandisk.report/1",
        before: before.iter().map(source).collect(),
        after: after.iter().map(source).collect(),
        done: deeds.collect(),
        histograms: histograms(before, after),
        worst_file: worst_file(subject),
        savings: savings(&inputs, assumptions),
        assumptions: assumptions.clone(),
        published: published(),
        notes: notes(before, after, &figures),
        figures,
    }
}

impl WorthDocument {
    /// Whether the documents have anything in common.
    pub fn is_empty(&self) -> bool {
        self.figures.is_empty() && self.histograms.is_empty()
    }
}

fn source(input: &Input) -> Source {
    Source { path: input.source.clone(), kind: input.kind.word(), disk: input.disk.clone() }
}

/// Pairs of documents of one kind, in the order of kinds.
fn pairs<'a>(before: &'a [Input], after: &'a [Input]) -> Vec<(&'a Input, &'a Input)> {
    let partner =
        |input: &'a Input| after.iter().find(|other| other.kind == input.kind).map(|other| (input, other));
    let mut pairs: Vec<_> = before.iter().filter_map(partner).collect();
    pairs.sort_by_key(|(input, _)| input.kind);
    pairs.dedup_by_key(|(input, _)| input.kind);
    pairs
}

fn compared(before: &[Input], after: &[Input]) -> Vec<Compared> {
    let mut figures: Vec<Compared> = Vec::new();
    for (earlier, later) in pairs(before, after) {
        for figure in &earlier.figures {
            let key = &figure.about.key;
            let is_known = figures.iter().any(|known| known.key == *key);
            let Some(now) = later.figures.iter().find(|other| other.about.key == *key) else { continue };
            if !is_known {
                figures.push(compare(earlier.kind, figure, now));
            }
        }
    }
    figures
}

/// What changed by no more than this share is called the same: as a change it would be printed as 0.0 %.
const SAME_SHARE: f64 = 0.000_5;

fn compare(kind: Kind, then: &Figure, now: &Figure) -> Compared {
    let about = &then.about;
    let rises = now.value > then.value;
    let is_same = (now.value - then.value).abs() <= then.value.abs() * SAME_SHARE;
    let became = match (is_same, rises == about.more_is_better) {
        (true, _) => Became::Same,
        (false, true) => Became::Better,
        (false, false) => Became::Worse,
    };
    Compared {
        key: about.key.clone(),
        name: about.name.clone(),
        unit: about.unit.word(),
        before: then.value,
        after: now.value,
        change: (then.value > 0.0).then(|| (now.value - then.value) / then.value),
        became,
        basis: about.basis.max(now.about.basis),
        from: kind.word(),
        kind: about.unit,
    }
}

/// What of the figures has a price. Counts of I/Os have none where they are of different work.
fn inputs(figures: &[Compared], same_work: bool) -> Inputs {
    let find =
        |of: &dyn Fn(&str) -> bool| figures.iter().filter(|figure| of(&figure.key)).collect::<Vec<_>>();
    let known = |figures: &[&Compared], value: f64| {
        let first = figures.first()?;
        let basis = figures.iter().map(|figure| figure.basis).max().unwrap_or(first.basis);
        Some(Known { value, basis, from: format!("{}: {}", first.from, first.name) })
    };
    let sum = |figures: &[&Compared], of: fn(&Compared) -> f64| {
        figures.iter().map(|figure| of(figure)).sum::<f64>()
    };
    let allocated = find(&|key| key == "allocated_bytes");
    let times = find(&|key| key.starts_with("read_seconds_"));
    let times = &times[..times.len().min(1)];
    let ios = [
        find(&|key| key == "ios" && same_work),
        find(&|key| key.starts_with("read_requests_")).into_iter().take(1).collect(),
    ];
    let ios = ios.iter().find(|figures| sum(figures, |figure| figure.before) > 0.0);
    Inputs {
        given_back_bytes: known(&allocated, sum(&allocated, |figure| figure.before - figure.after)),
        saved_seconds: known(times, sum(times, |figure| figure.before - figure.after)),
        avoided_share: ios.and_then(|figures| {
            known(figures, 1.0 - sum(figures, |figure| figure.after) / sum(figures, |figure| figure.before))
        }),
    }
}

fn histograms(before: &[Input], after: &[Input]) -> Vec<ComparedHistogram> {
    let mut all = Vec::new();
    for (earlier, later) in pairs(before, after) {
        for (then, now) in earlier.bins.iter().zip(&later.bins) {
            let share = |bins: &input::Bins, size: u64| {
                let all: f64 = bins.bytes_by_size.values().sum();
                let bytes = bins.bytes_by_size.get(&size).copied().unwrap_or(0.0);
                if all > 0.0 { bytes / all } else { 0.0 }
            };
            let mut sizes: Vec<_> =
                then.bytes_by_size.keys().chain(now.bytes_by_size.keys()).copied().collect();
            sizes.sort_unstable();
            sizes.dedup();
            let bin = |size: u64| ComparedBin {
                label: format!("from {}", human_bytes(size)),
                before: Some(share(then, size)),
                after: share(now, size),
            };
            all.push(ComparedHistogram {
                title: then.title.clone(),
                bins: sizes.into_iter().map(bin).collect(),
            });
        }
        if let (Some(then), Some(now)) = (&earlier.snapshot, &later.snapshot) {
            all.extend(stats_page::charts(Some(then), now).into_iter().map(ComparedHistogram::from));
        }
    }
    all
}

impl From<PairChart> for ComparedHistogram {
    fn from(chart: PairChart) -> Self {
        let bin = |bar: crate::html::BarPair| ComparedBin {
            label: bar.label,
            before: bar.before,
            after: bar.after,
        };
        Self { title: chart.title, bins: chart.bars.into_iter().map(bin).collect() }
    }
}

fn worst_file(subject: &WorthSubject) -> Option<WorstFile> {
    let analyzed = |inputs: &[Input]| inputs.iter().position(|input| input.kind == Kind::Analyze);
    let earlier = analyzed(&subject.before).map(|at| &subject.before[at]);
    if let Some(listed) = &subject.worst_before {
        let volume = earlier.and_then(|input| input.volume_bytes.get(&listed.volume)).copied();
        return Some(WorstFile::of_lists(listed, subject.worst_after.as_ref(), volume));
    }
    let worst = earlier?.worst.first()?;
    let later = analyzed(&subject.after).map(|at| &subject.after[at]);
    let same = later.and_then(|later| {
        later.worst.iter().find(|file| (file.volume, &file.path) == (worst.volume, &worst.path))
    });
    Some(WorstFile {
        volume: worst.volume,
        path: worst.path.clone(),
        size_bytes: worst.size_bytes,
        fragments_before: worst.fragments,
        fragments_after: same.map(|file| file.fragments),
        strips: None,
    })
}

/// Two states did not do the same work if their bytes differ by more than this share.
const WORK_SHARE: f64 = 0.05;

fn notes(before: &[Input], after: &[Input], figures: &[Compared]) -> Vec<String> {
    let mut notes = Vec::new();
    for (earlier, later) in pairs(before, after) {
        notes.extend(earlier.notes.iter().cloned());
        if let (Some(then), Some(now)) = (earlier.virtual_bytes, later.virtual_bytes)
            && then != now
        {
            notes.push(format!(
                "the disks of {} are of different sizes: {} and {}",
                earlier.kind.word(),
                human_bytes(then),
                human_bytes(now)
            ));
        }
        notes.extend(other_work(earlier, later));
    }
    let unpaired = |inputs: &[Input], others: &[Input], side: &str| -> Vec<String> {
        let alone = inputs.iter().filter(|input| others.iter().all(|other| other.kind != input.kind));
        alone
            .filter(|input| input.deed.is_none())
            .map(|input| format!("{} ({side}) has nothing to be compared with", input.about()))
            .collect()
    };
    notes.extend(unpaired(before, after, "before"));
    notes.extend(unpaired(after, before, "after"));
    if figures.iter().any(|figure| figure.became == Became::Worse) {
        notes.push("some figures became worse: they stand among the others, in the same order".to_owned());
    }
    notes.dedup();
    notes
}

/// What is to be said where two recordings are of different work: counts of I/Os mean little then.
fn other_work(earlier: &Input, later: &Input) -> Option<String> {
    let bytes = |input: &Input| {
        let counts = &input.snapshot.as_ref()?.logical;
        Some(counts.read_bytes.saturating_add(counts.written_bytes))
    };
    let (then, now) = (bytes(earlier)?, bytes(later)?);
    let differs = (number(now) - number(then)).abs() > WORK_SHARE * number(then);
    differs.then(|| {
        format!(
            "the two recordings are not of the same work: {} and {} were read and written, so that their counts of I/Os say little, and are left out of what it is worth",
            human_bytes(then),
            human_bytes(now)
        )
    })
}

/// A number with its unit, as people read it.
fn said(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => human_bytes(rounded(value)),
        Unit::Seconds => crate::text::seconds(value),
        Unit::Share => crate::text::percent(value),
        Unit::Count if value.fract().abs() > 1e-9 && value < 1000.0 => format!("{value:.2}"),
        Unit::Count => crate::text::grouped(rounded(value)),
    }
}

/// Conversions of floats saturate.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn rounded(value: f64) -> u64 {
    value.round() as u64
}

/// An amount of money, to the unit, or to a hundredth of it where it is small.
fn money(amount: f64, currency: &str) -> String {
    let sign = if amount < 0.0 { "−" } else { "" };
    let (size, currency) = (amount.abs(), crate::text::printable(currency));
    match size {
        0.0..100.0 => format!("{sign}{size:.2} {currency}"),
        _ => format!("{sign}{} {currency}", crate::text::grouped(rounded(size))),
    }
}

/// How much a figure changed.
fn change(figure: &Compared) -> String {
    match figure.change {
        _ if figure.became == Became::Same => "0 %".to_owned(),
        None => "–".to_owned(),
        Some(share) if share >= 10.0 => format!("{:.0} times", share + 1.0),
        Some(share) => {
            let (sign, percent) = (if share < 0.0 { "−" } else { "+" }, share.abs() * 100.0);
            if percent < 0.95 { format!("{sign}{percent:.1} %") } else { format!("{sign}{percent:.0} %") }
        }
    }
}

impl Became {
    fn word(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Same => "the same",
        }
    }
}

/// The answer in a sentence.
fn verdict(document: &WorthDocument) -> String {
    let Savings { currency, total_per_year, invested, payback_months, .. } = &document.savings;
    let count = |became: Became| document.figures.iter().filter(|figure| figure.became == became).count();
    let mut said = format!(
        "{} of {} figures became better, {} worse.",
        count(Became::Better),
        document.figures.len(),
        count(Became::Worse)
    );
    let worth = match (total_per_year, payback_months) {
        (None, _) => "The documents do not say enough to tell what it is worth.".to_owned(),
        (Some(total), Some(months)) => format!(
            "With the assumptions below it saves {} a year for {} spent once: paid back after {}.",
            money(*total, currency),
            money(*invested, currency),
            after_months(*months)
        ),
        (Some(total), None) => {
            format!("With the assumptions below it saves nothing: {} a year.", money(*total, currency))
        }
    };
    said.push(' ');
    said.push_str(&worth);
    said
}

fn after_months(months: f64) -> String {
    match months {
        ..120.0 => format!("{months:.1} months"),
        _ => format!("{} years", crate::text::grouped(rounded(months / 12.0))),
    }
}

#[cfg(test)]
mod tests;
