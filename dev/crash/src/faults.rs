//! Errors of the storage at every operation of a run, and of the recovery after them.

use std::io::ErrorKind as IoKind;

use block::ErrorKind;

use crate::explore::{Explored, Pair, Violation};
use crate::scenario::Scenario;

/// Makes each operation of a run fail once, with an I/O error or for lack of space, and each of the recovery after it.
pub fn explore_faults(scenario: &Scenario<'_>) -> Result<Explored, Violation> {
    let mut explored = Explored::default();
    for kind in [IoKind::Other, IoKind::StorageFull] {
        let mut number = 1;
        while fail_at(scenario, number, kind, &mut explored).map_err(|text| Violation {
            seed: scenario.seed,
            text: format!("{kind} at operation {number}: {text}"),
        })? {
            number += 1;
        }
    }
    Ok(explored)
}

/// `false` if the run was over before.
fn fail_at(
    scenario: &Scenario<'_>,
    number: u64,
    kind: IoKind,
    explored: &mut Explored,
) -> Result<bool, String> {
    let pair = Pair::begun(scenario);
    pair.machine.fail_operation(number, kind);
    let result = scenario.run(&pair.disk, &pair.journal);
    let Err(failure) = result else {
        return match pair.machine.operations() < number {
            true => Ok(false),
            false => Err("nobody noticed".into()),
        };
    };
    explored.states += 1;
    let found = failure.error.io_source().map(std::io::Error::kind);
    if failure.error.kind() != ErrorKind::Io || found != Some(kind) {
        return Err(format!("the error is {:?}", failure.error));
    }
    let done = usize::try_from(failure.outcome.batches_done).expect("few");
    if failure.needs_recovery {
        if !failure.error.hint_text().is_some_and(|hint| hint.contains("leandisk recover")) {
            return Err("nothing says what to do next".into());
        }
        return recover_with_faults(scenario, &pair, done, explored).map(|()| true);
    }
    match scenario.batches_in(&pair.disk.to_pages()) {
        Some(found) if found == done => Ok(true),
        found => {
            Err(format!("the disk after {found:?} batches, of which {done} were done, without a journal"))
        }
    }
}

/// Each operation of the recovery fails once; the last attempt succeeds.
fn recover_with_faults(
    scenario: &Scenario<'_>,
    pair: &Pair,
    done: usize,
    explored: &mut Explored,
) -> Result<(), String> {
    for number in 1.. {
        let left = Pair::new(pair.disk.to_pages(), pair.journal.to_pages(), scenario.claim());
        left.machine.fail_operation(number, IoKind::Other);
        explored.states += 1;
        let result = left.recover();
        if left.machine.operations() < number {
            break;
        }
        match result {
            Err(error) if error.kind() == ErrorKind::Io => {}
            other => return Err(format!("operation {number} of the recovery failed, and it said {other:?}")),
        }
        left.recover().map_err(|error| format!("the second recovery: {error}"))?;
        let found = scenario.batches_in(&left.disk.to_pages());
        if !found.is_some_and(|found| (done..=done + 1).contains(&found)) {
            return Err(format!("the second recovery left the disk after {found:?} batches"));
        }
    }
    Ok(())
}
