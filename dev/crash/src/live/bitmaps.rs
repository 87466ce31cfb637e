//! Power cuts at every change of a disk whose image records what changes, and of the clearing of such a record.
//!
//! What must hold after any cut: a bitmap that the image calls right has every sector that differs from what the disk held when the bitmap
//! was made; the image is whole.

use std::sync::Arc;

use block::ReadAt;
use extent::{ExtentSet, Offset, Span, Virtual};
use image::{BitmapState, Chain};
use sim::{Random, SimDisk, SimMachine};

use super::known::SECTOR_LEN;
use super::session::Session;
use super::step::Step;
use super::subject::{BITMAP, LiveSubject};
use super::{Used, violation};
use crate::Violation;

/// What an image says of its bitmap.
enum Recorded {
    /// That it is not to be believed.
    Nothing,
    /// That these sectors changed, in order.
    Sectors(Vec<bool>),
}

impl Recorded {
    fn of(chain: &Chain) -> block::Result<Self> {
        let layer = &chain.links()[0].layer;
        let bitmaps = layer.bitmaps()?;
        let of_name = bitmaps.iter().find(|bitmap| bitmap.name == BITMAP).expect("the bitmap is there");
        if of_name.state == BitmapState::Inconsistent {
            return Ok(Self::Nothing);
        }
        let dirty = layer.dirty(BITMAP)?;
        let sector = |number: usize| dirty.contains(Offset::new((number * SECTOR_LEN) as u64));
        let count = usize::try_from(chain.len_bytes()).unwrap() / SECTOR_LEN;
        Ok(Self::Sectors((0..count).map(sector).collect()))
    }
}

/// What stays in the record when it is made to begin anew.
fn kept() -> ExtentSet<Virtual> {
    [Span::new(Offset::new(3 * 4096), 4096)].into_iter().collect()
}

fn is_new(sectors: &[bool]) -> bool {
    let is_kept = |number: usize| kept().contains(Offset::new((number * SECTOR_LEN) as u64));
    (0..).zip(sectors).all(|(number, is_noted)| *is_noted == is_kept(number))
}

/// A record after its disk was used: `may_be_new` if it may have begun anew, with no more than what was to be kept.
fn check(
    subject: &LiveSubject,
    disk: Arc<SimDisk>,
    base: &[u8],
    may_be_new: bool,
) -> Result<Recorded, String> {
    let chain = subject.chain(disk).map_err(|error| error.to_string())?;
    let recorded = Recorded::of(&chain).map_err(|error| format!("its bitmap: {error}"))?;
    let Recorded::Sectors(sectors) = &recorded else { return Ok(recorded) };
    if may_be_new && is_new(sectors) {
        return Ok(recorded);
    }
    let mut bytes = vec![0; base.len()];
    chain.read_at(Offset::ZERO, &mut bytes).map_err(|error| error.to_string())?;
    let pairs = bytes.chunks(SECTOR_LEN).zip(base.chunks(SECTOR_LEN));
    for (number, ((now, before), is_noted)) in pairs.zip(sectors).enumerate() {
        if now != before && !is_noted {
            return Err(format!("sector {number} changed, and its bitmap does not say so"));
        }
    }
    Ok(recorded)
}

/// Takes random steps and a clean end, and cuts the power at every change that they make, in `cuts` ways each; then clears the bitmap, and
/// cuts the power at every change of that. Every `judge_every`th disk is shown to QEMU.
pub fn explore_bitmaps(
    subject: &LiveSubject,
    seed: u64,
    step_count: u64,
    cuts: u64,
    judge_every: u64,
) -> Result<Used, Violation> {
    let mut used = Used::default();
    let mut judged = 0;
    let mut examine = |session: &Session<'_>, random: &mut Random, base: &[u8], may_be_new: bool| {
        for _ in 0..cuts {
            let image = session.disk.cut_pages(random.next_u64());
            let disk = subject.disk(&SimMachine::new(), 1, image.clone());
            check(subject, disk.clone(), base, may_be_new).map_err(|text| text + &subject.keep(&image))?;
            used.cuts += 1;
            judged += 1;
            if u64::is_multiple_of(judged, judge_every) {
                let bytes = subject.read_only(disk).map_err(|error| error.to_string())?;
                subject.judge(&image, &bytes).map_err(|text| text + &subject.keep(&image))?;
                used.judged += 1;
            }
        }
        Ok(())
    };
    let (_, base) = subject.start(seed);
    for change in 1.. {
        let mut session = Session::fresh(subject, seed);
        session.die_after(change);
        let mut random = Random::new(seed ^ change.rotate_left(40));
        let wrong = |text| violation(seed, format!("power cut at change {change}: {text}"));
        let lived = run(&mut session, seed, step_count).map_err(wrong)?;
        examine(&session, &mut random, base, false).map_err(wrong)?;
        if !lived {
            continue;
        }
        let closed = subject.disk(&SimMachine::new(), 1, session.disk.to_pages());
        match check(subject, closed, base, false).map_err(wrong)? {
            Recorded::Nothing => return Err(wrong("its bitmap was not put in order".into())),
            Recorded::Sectors(_) => used.closes += 1,
        }
        break;
    }
    // The same steps again, and then the record is cleared.
    for change in 1.. {
        let mut session = Session::fresh(subject, seed);
        let wrong = |text| violation(seed, format!("clearing, power cut at change {change}: {text}"));
        run(&mut session, seed, step_count).map_err(wrong)?;
        session.die_after(change);
        let mut random = Random::new(seed ^ change.rotate_left(40));
        let cleared = clear(&session);
        if cleared.is_err() && !session.is_dead() {
            return Err(wrong(format!("it is not cleared: {cleared:?}")));
        }
        examine(&session, &mut random, base, true).map_err(wrong)?;
        if cleared.is_err() {
            continue;
        }
        let closed = subject.disk(&SimMachine::new(), 1, session.disk.to_pages());
        match check(subject, closed, base, true).map_err(wrong)? {
            Recorded::Sectors(sectors) if is_new(&sectors) => used.closes += 1,
            _ => return Err(wrong("its bitmap did not begin anew".into())),
        }
        break;
    }
    Ok(used)
}

/// `true` if the machine lived to see the end.
fn run(session: &mut Session<'_>, seed: u64, step_count: u64) -> Result<bool, String> {
    let mut random = Random::new(seed);
    Ok(session.open()? && session.steps_of(Step::any, &mut random, step_count)? && session.close()?)
}

fn clear(session: &Session<'_>) -> block::Result<()> {
    let disk = session.subject.open(&session.disk, 0)?;
    disk.restart_bitmap(BITMAP, &kept())?;
    disk.close()
}
