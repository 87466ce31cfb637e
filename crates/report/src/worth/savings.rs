//! The arithmetic: what inputs and assumptions come to in a year, line by line.
//!
//! Invariants: every line shows its formula with all that went into it; a line without its inputs has no amount, and no part in the sum;
//! what became worse costs as much as the same improvement would save.

use serde::Serialize;

use super::assumptions::Assumptions;

/// How a number is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Counted or timed.
    Measured,
    /// Computed by the cost model, or by a plan that was not carried out.
    Predicted,
    /// Taken from the assumptions.
    Assumed,
}

impl Basis {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Predicted => "predicted",
            Self::Assumed => "assumed",
        }
    }
}

/// A number that documents say.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Known {
    pub(super) value: f64,
    pub(super) basis: Basis,
    /// What says so.
    pub(super) from: String,
}

/// What documents say that has a price.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Inputs {
    /// Bytes of the host that became free.
    pub(super) given_back_bytes: Option<Known>,
    /// Seconds fewer each time that all files are read.
    pub(super) saved_seconds: Option<Known>,
    /// The share of I/Os that are not asked for any more.
    pub(super) avoided_share: Option<Known>,
}

/// A number of a line.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Input {
    /// As the formula has it.
    pub name: &'static str,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: &'static str,
    /// How it is known.
    pub basis: Basis,
    /// The document, or the assumption.
    pub from: String,
}

/// What is saved in one respect.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Line {
    /// `storage`, `hours`, `energy`, `backup_windows`, `drive_failures`.
    pub key: &'static str,
    /// In words.
    pub name: &'static str,
    /// How the amount comes from the inputs.
    pub formula: &'static str,
    /// In the formula's order.
    pub inputs: Vec<Input>,
    /// What is saved in a year; negative where it costs more. `null` without the inputs.
    pub amount_per_year: Option<f64>,
    /// The least certain of the inputs; `null` without an amount.
    pub basis: Option<Basis>,
    /// What would have to be known; `null` with an amount.
    pub missing: Option<&'static str>,
}

/// All lines, and what they come to.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Savings {
    /// What amounts are in.
    pub currency: String,
    /// In an order of their own, whatever they come to.
    pub lines: Vec<Line>,
    /// The sum of those that have an amount; `null` if none has.
    pub total_per_year: Option<f64>,
    /// What is spent once.
    pub invested: f64,
    /// After how many months as much as that is saved; `null` if never.
    pub payback_months: Option<f64>,
}

/// What has been published of another product: theirs, not measured here, and compared with nothing.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Published {
    /// Whose it is.
    pub label: &'static str,
    /// What was spent once.
    pub invested: f64,
    /// What was saved a year in each respect.
    pub savings_per_year: [f64; 4],
    /// Their sum, by the arithmetic of this page.
    pub total_per_year: f64,
    /// By the same.
    pub payback_months: Option<f64>,
}

/// The example.
pub(super) fn published() -> Published {
    let savings_per_year = [12_997.0, 16_662.0, 13_440.0, 25_667.0];
    let (invested, total_per_year) = (37_500.0, total(savings_per_year));
    Published {
        label: "a published calculation for another product, with figures of its authors: not measured here, and not yours",
        invested,
        savings_per_year,
        total_per_year,
        payback_months: payback_months(invested, total_per_year),
    }
}

fn total(amounts: impl IntoIterator<Item = f64>) -> f64 {
    amounts.into_iter().sum()
}

/// Months after which `invested` has been saved. `None` where nothing is saved.
fn payback_months(invested: f64, per_year: f64) -> Option<f64> {
    (per_year > 0.0).then(|| invested / per_year * 12.0)
}

const BYTES_PER_GB: f64 = 1e9;
const SECONDS_PER_HOUR: f64 = 3600.0;
const WATTS_PER_KILOWATT: f64 = 1000.0;
const MONTHS_PER_YEAR: f64 = 12.0;

/// What all of it comes to.
pub(super) fn savings(inputs: &Inputs, assumptions: &Assumptions) -> Savings {
    let lines = vec![
        storage(inputs, assumptions),
        hours(inputs, assumptions),
        energy(inputs, assumptions),
        backup_windows(inputs, assumptions),
        drive_failures(inputs, assumptions),
    ];
    let amounts: Vec<_> = lines.iter().filter_map(|line| line.amount_per_year).collect();
    let total_per_year = (!amounts.is_empty()).then(|| total(amounts));
    let invested = assumptions.invested();
    Savings {
        currency: assumptions.currency.clone(),
        lines,
        total_per_year,
        invested,
        payback_months: total_per_year.and_then(|total| payback_months(invested, total)),
    }
}

fn assumed(name: &'static str, value: f64, unit: &'static str, from: &'static str) -> Input {
    Input { name, value, unit, basis: Basis::Assumed, from: from.to_owned() }
}

/// A line whose first input is from documents, and which has no amount without it.
struct Draft<'a> {
    key: &'static str,
    name: &'static str,
    formula: &'static str,
    known: (&'static str, &'static str, Option<&'a Known>),
    missing: &'static str,
    assumed: Vec<Input>,
}

impl Draft<'_> {
    /// `times` is what the amount is for each unit of the known input.
    fn line(self, times: f64) -> Line {
        let Self { key, name, formula, known: (input, unit, known), missing, assumed } = self;
        let first = known.map(|Known { value, basis, from }| Input {
            name: input,
            value: *value,
            unit,
            basis: *basis,
            from: from.clone(),
        });
        let amount_per_year = known.map(|known| known.value * times);
        let inputs: Vec<_> = first.into_iter().chain(assumed).collect();
        Line {
            key,
            name,
            formula,
            basis: amount_per_year.and(inputs.iter().map(|input| input.basis).max()),
            inputs,
            missing: amount_per_year.is_none().then_some(missing),
            amount_per_year,
        }
    }
}

const NEEDS_BYTES: &str =
    "documents of before and after that say what the disk takes on the host (analyze, compact, copy)";
const NEEDS_SECONDS: &str =
    "documents of before and after that say how long reading all files takes (analyze, defrag)";
const NEEDS_IOS: &str =
    "documents of before and after that count I/Os of the same work (analyze, defrag, stats)";

fn storage(inputs: &Inputs, assumptions: &Assumptions) -> Line {
    let storage = &assumptions.storage;
    Draft {
        key: "storage",
        name: "Storage given back",
        formula: "given back ÷ 10⁹ × disks × copies × price of a GB a month × 12",
        known: ("given back", "bytes", inputs.given_back_bytes.as_ref()),
        missing: NEEDS_BYTES,
        assumed: vec![
            assumed("disks", assumptions.disks, "", "disks"),
            assumed("copies", storage.copies, "", "storage.copies"),
            assumed(
                "price of a GB a month",
                storage.price_per_gb_month,
                "money",
                "storage.price_per_gb_month",
            ),
        ],
    }
    .line(assumptions.disks * storage.copies * storage.price_per_gb_month * MONTHS_PER_YEAR / BYTES_PER_GB)
}

fn hours(inputs: &Inputs, assumptions: &Assumptions) -> Line {
    let hours = &assumptions.hours;
    Draft {
        key: "hours",
        name: "Hours of waiting",
        formula: "seconds saved × reads a day × days a year × disks × people waiting ÷ 3600 × price of an hour",
        known: ("seconds saved", "s", inputs.saved_seconds.as_ref()),
        missing: NEEDS_SECONDS,
        assumed: vec![
            assumed("reads a day", hours.reads_per_day, "", "hours.reads_per_day"),
            assumed("days a year", hours.days_per_year, "", "hours.days_per_year"),
            assumed("disks", assumptions.disks, "", "disks"),
            assumed("people waiting", hours.people_waiting, "", "hours.people_waiting"),
            assumed("price of an hour", hours.price_per_hour, "money", "hours.price_per_hour"),
        ],
    }
    .line(busy_hours(assumptions) * hours.people_waiting * hours.price_per_hour)
}

/// Hours a year for which all disks are read, for each second that reading one takes.
fn busy_hours(assumptions: &Assumptions) -> f64 {
    assumptions.hours.reads_per_day * assumptions.hours.days_per_year * assumptions.disks / SECONDS_PER_HOUR
}

fn energy(inputs: &Inputs, assumptions: &Assumptions) -> Line {
    let energy = &assumptions.energy;
    Draft {
        key: "energy",
        name: "Energy of the storage",
        formula: "seconds saved × reads a day × days a year × disks ÷ 3600 × watts ÷ 1000 × (1 + cooling) × price of a kWh",
        known: ("seconds saved", "s", inputs.saved_seconds.as_ref()),
        missing: NEEDS_SECONDS,
        assumed: vec![
            assumed("reads a day", assumptions.hours.reads_per_day, "", "hours.reads_per_day"),
            assumed("days a year", assumptions.hours.days_per_year, "", "hours.days_per_year"),
            assumed("disks", assumptions.disks, "", "disks"),
            assumed("watts", energy.watts, "W", "energy.watts"),
            assumed("cooling", energy.cooling, "", "energy.cooling"),
            assumed("price of a kWh", energy.price_per_kwh, "money", "energy.price_per_kwh"),
        ],
    }
    .line(
        busy_hours(assumptions) * energy.watts / WATTS_PER_KILOWATT
            * (1.0 + energy.cooling)
            * energy.price_per_kwh,
    )
}

fn backup_windows(inputs: &Inputs, assumptions: &Assumptions) -> Line {
    let backup = &assumptions.backup;
    Draft {
        key: "backup_windows",
        name: "Backup windows",
        formula: "seconds saved × full backups a year × disks ÷ 3600 × price of an hour of the window",
        known: ("seconds saved", "s", inputs.saved_seconds.as_ref()),
        missing: NEEDS_SECONDS,
        assumed: vec![
            assumed("full backups a year", backup.full_backups_per_year, "", "backup.full_backups_per_year"),
            assumed("disks", assumptions.disks, "", "disks"),
            assumed(
                "price of an hour of the window",
                backup.price_per_window_hour,
                "money",
                "backup.price_per_window_hour",
            ),
        ],
    }
    .line(backup.full_backups_per_year * assumptions.disks / SECONDS_PER_HOUR * backup.price_per_window_hour)
}

fn drive_failures(inputs: &Inputs, assumptions: &Assumptions) -> Line {
    let failures = &assumptions.failures;
    Draft {
        key: "drive_failures",
        name: "Failures of drives",
        formula: "share of I/Os avoided × share due to load × drives × disks × failures a drive and year × price of a failure",
        known: ("share of I/Os avoided", "share", inputs.avoided_share.as_ref()),
        missing: NEEDS_IOS,
        assumed: vec![
            assumed("share due to load", failures.share_due_to_load, "share", "failures.share_due_to_load"),
            assumed("drives", failures.drives, "", "failures.drives"),
            assumed("disks", assumptions.disks, "", "disks"),
            assumed("failures a drive and year", failures.rate_per_year, "share", "failures.rate_per_year"),
            assumed("price of a failure", failures.price_per_failure, "money", "failures.price_per_failure"),
        ],
    }
    .line(
        failures.share_due_to_load
            * failures.drives
            * assumptions.disks
            * failures.rate_per_year
            * failures.price_per_failure,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(value: f64, basis: Basis) -> Option<Known> {
        Some(Known { value, basis, from: "a document".into() })
    }

    /// As published: 68,766 a year, paid back after six and a half months.
    #[test]
    fn the_published_example_comes_out() {
        let example = published();
        assert!((example.total_per_year - 68_766.0).abs() < 1e-9);
        let months = example.payback_months.unwrap();
        assert!((months - 6.5).abs() < 0.05, "{months}");
        assert!(example.label.contains("not yours"));
    }

    #[test]
    fn each_line_is_its_formula() {
        let inputs = Inputs {
            given_back_bytes: known(100e9, Basis::Measured),
            saved_seconds: known(3600.0, Basis::Predicted),
            avoided_share: known(0.5, Basis::Measured),
        };
        let assumptions = Assumptions { disks: 10.0, ..Assumptions::default() };
        let told = savings(&inputs, &assumptions);
        let amount =
            |key: &str| told.lines.iter().find(|line| line.key == key).unwrap().amount_per_year.unwrap();
        let expected = [
            ("storage", 100.0 * 10.0 * 2.0 * 0.05 * 12.0),
            ("hours", 1.0 * 220.0 * 10.0 * 1.0 * 40.0),
            ("energy", 220.0 * 10.0 * 0.005 * 1.5 * 0.25),
            ("backup_windows", 52.0 * 10.0 * 20.0),
            ("drive_failures", 0.5 * 0.1 * 1.0 * 10.0 * 0.015 * 300.0),
        ];
        for (key, value) in expected {
            assert!((amount(key) - value).abs() < 1e-9, "{key}: {} is not {value}", amount(key));
        }
        let sum: f64 = expected.iter().map(|(_, value)| value).sum();
        assert!((told.total_per_year.unwrap() - sum).abs() < 1e-9);
        assert!((told.payback_months.unwrap() - 120.0 / sum * 12.0).abs() < 1e-9);
        assert_eq!(told.lines[0].inputs[0].basis, Basis::Measured);
        assert!(told.lines.iter().all(|line| line.basis == Some(Basis::Assumed)));
    }

    #[test]
    fn what_became_worse_costs_and_what_is_unknown_is_said() {
        let inputs = Inputs { saved_seconds: known(-36.0, Basis::Measured), ..Inputs::default() };
        let told = savings(&inputs, &Assumptions::default());
        let amounts: Vec<_> = told.lines.iter().map(|line| line.amount_per_year).collect();
        assert!(amounts[0].is_none() && amounts[1].unwrap() < 0.0 && amounts[4].is_none());
        assert!(told.lines[0].missing.unwrap().contains("analyze"));
        assert!(told.total_per_year.unwrap() < 0.0 && told.payback_months.is_none());
        let nothing = savings(&Inputs::default(), &Assumptions::default());
        assert_eq!((nothing.total_per_year, nothing.payback_months), (None, None));
    }
}
