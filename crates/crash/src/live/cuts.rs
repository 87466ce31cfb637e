//! Power cuts at every change that a short list of steps makes.

use sim::Random;

use super::session::Session;
use super::subject::LiveSubject;
use super::{Used, violation};
use crate::Violation;

/// Steps with what a cut left, so that what is wrong with its tables shows.
const STEPS_AFTER: u64 = 24;

/// Takes `step_count` random steps and a clean end, and cuts the power at every change that they make, in `cuts` ways each. Every
/// `judge_every`th disk is shown to QEMU.
pub fn explore_cuts(
    subject: &LiveSubject,
    seed: u64,
    step_count: u64,
    cuts: u64,
    judge_every: Option<u64>,
) -> Result<Used, Violation> {
    let mut used = Used::default();
    for change in 1.. {
        let mut session = Session::fresh(subject, seed);
        session.die_after(change);
        let is_over = run(&mut session, seed, step_count)
            .map_err(|text| violation(seed, format!("before the cut at change {change}: {text}")))?;
        for cut in 0..cuts {
            let mut random = Random::new(seed ^ change.rotate_left(40) ^ cut.rotate_left(20));
            let judge = judge_every.is_some_and(|every| used.cuts.is_multiple_of(every));
            let after = after_cut(&session, &mut random, judge).map_err(|text| {
                violation(seed, format!("power cut at change {change}, cut {cut}: {text}"))
            })?;
            used += after;
            used.cuts += 1;
        }
        used.operations += session.used.operations;
        used.flushes += session.used.flushes;
        if is_over {
            break;
        }
    }
    Ok(used)
}

/// `true` if the machine lived to see the end.
fn run(session: &mut Session<'_>, seed: u64, step_count: u64) -> Result<bool, String> {
    let mut random = Random::new(seed);
    Ok(session.open()? && session.steps(&mut random, step_count)? && session.close()?)
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
    if stored == bytes { Ok(left.used) } else { Err(keep("closed: something else is stored".into())) }
}
