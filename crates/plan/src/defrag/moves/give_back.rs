//! Units that are emptied so that the container can have back what it grew by.
//!
//! Files come together in units that the container did not have, and leave parts of others behind. Those with the least in them are
//! emptied into gaps of the rest until the container is as small as it has to be.

use std::collections::BTreeSet;

use block::Result;
use extent::VolumeSpan;

use super::clear::{Away, clear};
use super::ways::can_clear;
use crate::defrag::plan::DefragOptions;
use crate::defrag::state::{Effort, Units, Work};

/// Cells and extents that are looked at.
const EFFORT_MAX: u64 = 10_000_000;

/// After so many units in a row that cannot be emptied, those with more in them cannot either.
const FAILURES_MAX: usize = 64;

/// So many times units are emptied: what leaves them may go to gaps that others left.
const ROUNDS_MAX: usize = 16;

/// Empties units until the container is no larger than it may be in the end, or nothing more can be emptied.
pub(crate) fn give_back(work: &mut Work<'_>, options: &DefragOptions) -> Result<()> {
    let units = Units::new(work.layout, options);
    let mut effort = Effort::new(EFFORT_MAX);
    for _ in 0..ROUNDS_MAX {
        let too_much = work.space.growth_bytes().saturating_sub(options.growth_left_bytes_max);
        let count = usize::try_from(too_much.div_ceil(units.unit_bytes)).unwrap_or(usize::MAX);
        if too_much == 0 {
            return Ok(());
        }
        let mut emptied = Vec::new();
        let mut failures = 0;
        for span in emptiest_first(work, &units) {
            if emptied.len() >= count || failures >= FAILURES_MAX {
                break;
            }
            if can_clear(work, span, usize::MAX, &mut effort) && clear(work, &[span], Away::BestFit)? {
                emptied.push(span);
                failures = 0;
            } else {
                failures += 1;
            }
        }
        if emptied.is_empty() {
            return Ok(());
        }
        work.close()?;
        emptied.into_iter().for_each(|span| work.unreserve(span, &[span]));
        work.give_back();
    }
    Ok(())
}

/// Whole units with something in them and something free, those with the least in them first.
fn emptiest_first(work: &Work<'_>, units: &Units) -> Vec<VolumeSpan> {
    let held = work.space.held();
    let ends = held.iter().flat_map(|span| {
        let numbers = units.numbers(span);
        [numbers.start, numbers.end - 1]
    });
    let numbers: BTreeSet<u64> = ends.filter(|number| units.is_whole(*number)).collect();
    let spans = numbers.into_iter().map(|number| units.span(number..number + 1));
    let mut all: Vec<_> = spans.map(|span| (std::cmp::Reverse(held.bytes_within(span)), span)).collect();
    all.sort_unstable();
    all.into_iter().map(|(_, span)| span).collect()
}
