//! The program as it was before a change, beside the program: the same works in turns.

use std::path::Path;

use super::measure::Contender;
use super::{Inputs, Measured, Sample, all_cases, median_ratio};

/// What stands before the name of what the earlier program does.
const MARK: &str = "before: ";

/// What the earlier program is asked to do in a case: all that the program is asked.
pub(super) fn contenders(before: &Path, inputs: &Inputs, case: &str) -> Vec<Contender> {
    let path = before.display().to_string();
    let is_its = |contender: &Contender| contender.command.iter().any(|word| word.contains(&path));
    let cases = all_cases(before, inputs).into_iter().filter(|found| found.name == case);
    let found = cases.flat_map(|case| case.contenders).filter(is_its);
    found.map(|contender| Contender { name: format!("{MARK}{}", contender.name), ..contender }).collect()
}

/// Whether a contender is the earlier program: it may not know yet what it is asked to do.
pub(super) fn is_earlier(name: &str) -> bool {
    name.starts_with(MARK)
}

/// Shows the ratios of a case, and answers them.
pub(super) fn show(own: &[Measured], earlier: &[Measured]) -> Vec<f64> {
    let of = |earlier: &Measured| {
        let name = earlier.name.strip_prefix(MARK)?;
        let ratio =
            median_ratio(own.iter().find(|one| one.name == name)?, earlier, |sample: &Sample| sample.seconds);
        println!("  {name}: {ratio:.3} of the time that the earlier program takes");
        Some(ratio)
    };
    earlier.iter().filter_map(of).collect()
}
