//! What is assumed about prices and habits: a TOML file, whose every value may be left out.

use block::{Error, Result};
use serde::{Deserialize, Serialize};

use super::Corrupt;

/// The most that any assumption may be. More is a slip of the pen, and would make sums that are no numbers.
const VALUE_MAX: f64 = 1e12;

/// What savings are computed with besides what documents say. All amounts are in [`Self::currency`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Assumptions {
    /// What amounts are in.
    pub currency: String,
    /// How many disks like this one there are.
    pub disks: f64,
    /// What is spent once.
    pub investment: Investment,
    /// What storage costs.
    pub storage: Storage,
    /// What waiting costs.
    pub hours: Hours,
    /// What current costs.
    pub energy: Energy,
    /// What backup windows cost.
    pub backup: Backup,
    /// What failures of the storage's drives cost.
    pub failures: Failures,
}

/// What is spent once.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Investment {
    /// Paid for software and hardware.
    pub price: f64,
    /// Hours of work.
    pub work_hours: f64,
    /// What an hour of work costs.
    pub price_per_work_hour: f64,
}

/// What storage costs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Storage {
    /// A gigabyte (10^9 bytes) for a month.
    pub price_per_gb_month: f64,
    /// How many copies of each byte are kept: the disk itself, mirrors, replicas, backups.
    pub copies: f64,
}

/// What waiting costs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Hours {
    /// How often a day as much as all files of a disk is read while somebody waits.
    pub reads_per_day: f64,
    /// On how many days a year.
    pub days_per_year: f64,
    /// How many people wait.
    pub people_waiting: f64,
    /// What an hour of theirs costs.
    pub price_per_hour: f64,
}

/// What current costs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Energy {
    /// What the storage takes more while it works than while it is idle.
    pub watts: f64,
    /// What is spent on cooling for each watt, in watts.
    pub cooling: f64,
    /// What a kilowatt-hour costs.
    pub price_per_kwh: f64,
}

/// What backup windows cost.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Backup {
    /// How often a year all files of a disk are read for a backup.
    pub full_backups_per_year: f64,
    /// What an hour of a backup window costs.
    pub price_per_window_hour: f64,
}

/// What failures of the storage's drives cost.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Failures {
    /// Drives of the storage that such a disk keeps busy.
    pub drives: f64,
    /// The share of drives that fail in a year.
    pub rate_per_year: f64,
    /// The share of failures that follow from load, and go when the I/Os go.
    pub share_due_to_load: f64,
    /// What a failure costs: the drive, and the work.
    pub price_per_failure: f64,
}

impl Default for Assumptions {
    fn default() -> Self {
        Self {
            currency: "EUR".to_owned(),
            disks: 1.0,
            investment: Investment::default(),
            storage: Storage::default(),
            hours: Hours::default(),
            energy: Energy::default(),
            backup: Backup::default(),
            failures: Failures::default(),
        }
    }
}

impl Default for Investment {
    fn default() -> Self {
        Self { price: 0.0, work_hours: 2.0, price_per_work_hour: 60.0 }
    }
}

impl Default for Storage {
    fn default() -> Self {
        Self { price_per_gb_month: 0.05, copies: 2.0 }
    }
}

impl Default for Hours {
    fn default() -> Self {
        Self { reads_per_day: 1.0, days_per_year: 220.0, people_waiting: 1.0, price_per_hour: 40.0 }
    }
}

impl Default for Energy {
    fn default() -> Self {
        Self { watts: 5.0, cooling: 0.5, price_per_kwh: 0.25 }
    }
}

impl Default for Backup {
    fn default() -> Self {
        Self { full_backups_per_year: 52.0, price_per_window_hour: 20.0 }
    }
}

impl Default for Failures {
    fn default() -> Self {
        Self { drives: 1.0, rate_per_year: 0.015, share_due_to_load: 0.1, price_per_failure: 300.0 }
    }
}

/// All assumptions with their meanings, as a file that may be changed: what holds where there is none.
pub const ASSUMPTIONS_TOML: &str = include_str!("assumptions.toml");

impl Assumptions {
    /// Of a file in TOML. `Corrupt` if it is none, names what there is not, or holds a number that is negative or beyond all reason.
    pub fn from_toml(text: &str) -> Result<Self> {
        let assumptions: Self =
            toml::from_str(text).map_err(|error| Error::corrupt(Corrupt::Assumptions(error.to_string())))?;
        assumptions.check()?;
        Ok(assumptions)
    }

    fn check(&self) -> Result<()> {
        let Self { disks, investment, storage, hours, energy, backup, failures, .. } = self;
        let values = [
            ("disks", *disks),
            ("investment.price", investment.price),
            ("investment.work_hours", investment.work_hours),
            ("investment.price_per_work_hour", investment.price_per_work_hour),
            ("storage.price_per_gb_month", storage.price_per_gb_month),
            ("storage.copies", storage.copies),
            ("hours.reads_per_day", hours.reads_per_day),
            ("hours.days_per_year", hours.days_per_year),
            ("hours.people_waiting", hours.people_waiting),
            ("hours.price_per_hour", hours.price_per_hour),
            ("energy.watts", energy.watts),
            ("energy.cooling", energy.cooling),
            ("energy.price_per_kwh", energy.price_per_kwh),
            ("backup.full_backups_per_year", backup.full_backups_per_year),
            ("backup.price_per_window_hour", backup.price_per_window_hour),
            ("failures.drives", failures.drives),
            ("failures.rate_per_year", failures.rate_per_year),
            ("failures.share_due_to_load", failures.share_due_to_load),
            ("failures.price_per_failure", failures.price_per_failure),
        ];
        match values.into_iter().find(|(_, value)| !(0.0..=VALUE_MAX).contains(value)) {
            None => Ok(()),
            Some((name, value)) => Err(Error::corrupt(Corrupt::Assumption(name)).field(
                name,
                value.to_string(),
                "a number from 0 to 10^12",
            )),
        }
    }

    /// What is spent once.
    pub fn invested(&self) -> f64 {
        let Investment { price, work_hours, price_per_work_hour } = self.investment;
        price + work_hours * price_per_work_hour
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    #[test]
    fn the_printed_file_is_what_holds_without_one() {
        assert_eq!(Assumptions::from_toml(ASSUMPTIONS_TOML).unwrap(), Assumptions::default());
        assert_eq!(Assumptions::from_toml("").unwrap(), Assumptions::default());
        // Every value is in it, with its name.
        let all = toml::to_string(&Assumptions::default()).unwrap();
        for line in all.lines().filter(|line| line.contains('=')) {
            let name = line.split('=').next().unwrap().trim();
            assert!(ASSUMPTIONS_TOML.contains(&format!("\n{name} = ")), "{name}");
        }
    }

    #[test]
    fn slips_are_errors() {
        for text in
            ["disks = -1", "disks = nan", "[hours]\nprice_per_hour = 1e13", "disk = 2", "disks = \"2\"", "["]
        {
            let error = Assumptions::from_toml(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{text}: {error}");
        }
        let some = Assumptions::from_toml("currency = \"USD\"\n[storage]\ncopies = 3").unwrap();
        assert_eq!((some.currency.as_str(), some.storage.copies), ("USD", 3.0));
        assert_eq!(some.hours, Hours::default());
    }
}
