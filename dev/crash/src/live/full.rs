//! A host that has no room for a while: requests fail, and nothing else does.

use sim::{Random, SimMachine};

use super::session::Session;
use super::step::{AnyStep, Step};
use super::subject::LiveSubject;
use super::{Used, violation};
use crate::Violation;

/// Changes for which there is no room, at most.
const FULL_MAX: u64 = 48;
/// Every so many ends the host is full still.
const FULL_AT_THE_END: u64 = 4;

/// Takes `step_count` random steps again and again; each time the host is full from one change later on, for some changes. The disk goes
/// on, and ends: all that was flushed is there, and of the rest what was answered, unless the end said that there was no room for it.
/// Every `judge_every`th disk that was closed is shown to QEMU, and needs no repair.
pub fn explore_full(
    subject: &LiveSubject,
    seed: u64,
    step_count: u64,
    judge_every: Option<u64>,
) -> Result<Used, Violation> {
    let mut used = Used::default();
    for change in 1u64.. {
        let mut random = Random::new(seed ^ change.rotate_left(24));
        let mut session = Session::fresh(subject, seed);
        let judges = judge_every.is_some_and(|every| change.is_multiple_of(every));
        let is_over = one_run(&mut session, seed, change, step_count, &mut random, judges)
            .map_err(|text| violation(seed, format!("host full at change {change}: {text}")))?;
        used += session.used;
        if is_over {
            break;
        }
    }
    Ok(used)
}

/// `true` if all was over before the host was full.
fn one_run(
    session: &mut Session<'_>,
    seed: u64,
    change: u64,
    step_count: u64,
    random: &mut Random,
    judges: bool,
) -> Result<bool, String> {
    session.open()?;
    let first = session.machine.changes() + change;
    let is_full_at_the_end = random.below(FULL_AT_THE_END) == 0;
    let count = if is_full_at_the_end { u64::MAX / 2 } else { 1 + random.below(FULL_MAX) };
    session.machine.fill_during(first..first.saturating_add(count));
    session.may_be_full = true;
    // The same steps each time, so that each change of theirs has its turn.
    let any: AnyStep = if (seed / 2).is_multiple_of(2) { Step::any } else { Step::any_reuse };
    session.steps_of(any, &mut Random::new(seed), step_count)?;
    if !is_full_at_the_end {
        session.machine.heal();
        session.may_be_full = false;
        session.steps_of(any, random, step_count / 2)?;
        session.step(&Step::Flush)?;
        session.steps_of(any, random, step_count / 4)?;
    }
    let is_over = session.machine.changes() < first;
    let bytes = session.read_all()?;
    session.known.check_read(0, &bytes)?;
    let is_clean = session.close_if_possible()?;
    if !is_clean && !is_full_at_the_end {
        return Err("there is room, and it does not close".into());
    }
    check_closed(session, is_clean, judges)
        .map_err(|text| text + &session.subject.keep(&session.disk.to_pages()))?;
    Ok(is_over)
}

/// The image as it is, and as another cut may leave it, holds what it must.
fn check_closed(session: &mut Session<'_>, is_clean: bool, judges: bool) -> Result<(), String> {
    let subject = session.subject;
    let image = session.disk.to_pages();
    let closed = subject.disk(&SimMachine::new(), 1, image.clone());
    let stored = subject.read_only(closed).map_err(|error| format!("closed: {error}"))?;
    let mut known = session.known.clone();
    known.check_after_restart(&stored, false).map_err(|text| format!("closed: {text}"))?;
    if is_clean {
        session.known.check_read(0, &stored).map_err(|text| format!("closed: {text}"))?;
    }
    if judges {
        session.used.judged += 1;
        match is_clean {
            true => subject.judge_closed(&image, &stored)?,
            // There was no room for anything: a log may be pending still.
            false => subject.judge(&image, &stored)?,
        }
    }
    let mut left = session.after_cut(session.disk.seed() ^ session.machine.changes());
    left.open()?;
    left.check(true).map_err(|text| format!("after a cut: {text}"))?;
    session.used.cuts += 1;
    Ok(())
}
