//! Power cuts at every change that a short list of steps makes.

use sim::Random;

use super::session::Session;
use super::step::{AnyStep, Step};
use super::subject::LiveSubject;
use super::{Used, violation};
use crate::Violation;

/// Steps with what a cut left, so that what is wrong with its tables shows.
const STEPS_AFTER: u64 = 24;

/// Takes `step_count` random steps and a clean end, and cuts the power at every change that they make, in `cuts` ways each. Every
/// `judge_every`th disk is shown to QEMU. What is left is used on.
pub fn explore_cuts(
    subject: &LiveSubject,
    seed: u64,
    step_count: u64,
    cuts: u64,
    judge_every: Option<u64>,
) -> Result<Used, Violation> {
    let mut judged = 0;
    at_each_change(subject, Step::any, seed, step_count, |session, random| {
        (0..cuts).try_fold(Used::default(), |mut used, _| {
            let judge = judge_every.is_some_and(|every| u64::is_multiple_of(judged, every));
            judged += 1;
            used += after_cut(session, random, judge)?;
            Ok(used)
        })
    })
}

/// Takes `step_count` random steps that free units and use again what was freed, and cuts the power at every flush, in `cuts` ways
/// each. What is left is read and no more, so that many are looked at in little time: it is rare that a cut takes the data of a
/// reused place and leaves what refers to it.
pub fn explore_reuse(
    subject: &LiveSubject,
    seed: u64,
    step_count: u64,
    cuts: u64,
) -> Result<Used, Violation> {
    let mut flushes = 0;
    at_each_change(subject, Step::any_reuse, seed, step_count, |session, random| {
        let before = std::mem::replace(&mut flushes, session.disk.counters().flushes);
        let is_flush = flushes > before;
        (0..if is_flush { cuts } else { 0 }).try_fold(Used::default(), |mut used, _| {
            let mut left = session.after_cut(random.next_u64());
            let bytes = session.subject.read_only(left.disk.clone()).map_err(|error| error.to_string())?;
            left.known.check_after_restart(&bytes, true)?;
            used.cuts += 1;
            Ok(used)
        })
    })
}

/// Takes the steps again and again; each time the machine dies one change later, and `examine` says what that leaves.
fn at_each_change(
    subject: &LiveSubject,
    any: AnyStep,
    seed: u64,
    step_count: u64,
    mut examine: impl FnMut(&Session<'_>, &mut Random) -> Result<Used, String>,
) -> Result<Used, Violation> {
    let mut used = Used::default();
    for change in 1.. {
        let mut session = Session::fresh(subject, seed);
        session.die_after(change);
        let mut random = Random::new(seed ^ change.rotate_left(40));
        let is_over = run(&mut session, any, seed, step_count);
        let examined = is_over.and_then(|is_over| Ok((is_over, examine(&session, &mut random)?)));
        let (is_over, after) =
            examined.map_err(|text| violation(seed, format!("power cut at change {change}: {text}")))?;
        used += session.used;
        used += after;
        if is_over {
            break;
        }
    }
    Ok(used)
}

/// `true` if the machine lived to see the end.
fn run(session: &mut Session<'_>, any: AnyStep, seed: u64, step_count: u64) -> Result<bool, String> {
    let mut random = Random::new(seed);
    Ok(session.open()? && session.steps_of(any, &mut random, step_count)? && session.close()?)
}

fn after_cut(session: &Session<'_>, random: &mut Random, judge: bool) -> Result<Used, String> {
    let mut left = session.after_cut(random.next_u64());
    let image = left.disk.to_pages();
    let keep = |text: String| text + &session.subject.keep(&image);
    let bytes = session.subject.read_only(left.disk.clone()).map_err(|error| keep(error.to_string()))?;
    if judge {
        left.judge(&image, &bytes)?;
    }
    left.open().map_err(keep)?;
    if left.read_all()? != bytes {
        return Err(keep("who writes reads something else than who does not".into()));
    }
    left.check(true).map_err(keep)?;
    left.steps(random, STEPS_AFTER).map_err(|text| keep(format!("later: {text}")))?;
    let bytes = left.read_all()?;
    left.known.check_read(0, &bytes).map_err(|text| keep(format!("later: {text}")))?;
    left.close().map_err(|text| keep(format!("later: {text}")))?;
    let closed = session.subject.disk(&sim::SimMachine::new(), 1, left.disk.cut_pages(random.next_u64()));
    let stored = session.subject.read_only(closed).map_err(|error| keep(format!("closed: {error}")))?;
    left.used.cuts += 1;
    if stored == bytes { Ok(left.used) } else { Err(keep("closed: something else is stored".into())) }
}
