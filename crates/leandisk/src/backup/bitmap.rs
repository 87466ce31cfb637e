//! What of a disk changed since a snapshot, by the word of a persistent dirty bitmap in its image.
//!
//! A bitmap has a name and bits, and nothing that says when it began. So some bits, drawn by lot, stay set when it is made to begin anew, and
//! the snapshot says which: bits are only ever set, so all of them are there for as long as the bitmap is the one that was left.
//! `docs/decisions/backup-tracking.md` has the reasons.
//!
//! Invariants:
//! - from before the bitmap is read until it begins anew, nobody else can change the image;
//! - it begins anew only once the snapshot that says so is on stable storage;
//! - where a bitmap or its start are in doubt, everything is read.

use std::collections::BTreeSet;
use std::sync::Arc;

use block::{ErrorKind, HostFile, LiveDisk, ReadAt, Result, TargetFile};
use claims::{Act, Claims, Seen};
use engine::BackedUp;
use extent::{ExtentSet, Span, Virtual, VirtualOffset, VirtualSpan};
use image::live::LiveOptions;
use image::{BitmapState, Chain, Edit, EditTarget, Resolver};
use repository::{Record, Start};

use super::earlier::{EarlierDisk, Known};
use crate::machine::{Machine, ThisHost};

/// The chance that a bitmap has all the bits by which it is known, and is another one: at most one in two to the power of this.
const EVIDENCE_BITS: f64 = 32.0;
/// Bits are drawn among those of unused parts of the disk, which cost no reading, if there are so many.
const UNUSED_MIN: u64 = 256;
/// The most bits that stay set for parts that are unused, and for any.
const KEPT_UNUSED_MAX: u64 = 64;
const KEPT_MAX: u64 = 32;

/// A bitmap that every change of the disk is noted in.
pub(super) struct Bitmap {
    name: String,
    granularity_bytes: u64,
    dirty: ExtentSet<Virtual>,
    virtual_bytes: u64,
    /// The image, which nobody else can change; `None` if nothing is to be done.
    held: Option<Edit>,
}

/// Whether the image is to be held so that its bitmap can begin anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hold {
    Yes,
    No,
}

/// A bitmap, or why there is none to rely on.
pub(super) type Found = Known<Bitmap>;

impl Bitmap {
    /// The bitmap `name` of the disk, of which `seen` was known before.
    pub(super) fn find(
        chain: &Chain,
        seen: &Seen,
        resolver: &dyn Resolver,
        name: &str,
        hold: Hold,
    ) -> Result<Found> {
        let told = match chain.links()[0].layer.bitmaps() {
            Ok(all) => all.into_iter().find(|bitmap| bitmap.name == name),
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            Err(error) => return Ok(Err(format!("the image's persistent bitmaps cannot be read: {error}"))),
        };
        let Some(told) = told else {
            return Ok(Err(format!("the image has no persistent bitmap {name:?}")));
        };
        if let Some(why) = unusable(told.state) {
            return Ok(Err(format!("the persistent bitmap {name:?} {why}")));
        }
        let can_begin_anew =
            Claims::on_disk(chain, resolver).check(Act::Change).and_then(|()| Edit::check(chain));
        if let Err(error) = can_begin_anew {
            return Ok(Err(format!(
                "the persistent bitmap {name:?} could not be made to begin anew: {error}"
            )));
        }
        let mut open = |file: &dyn HostFile| Ok(ThisHost.hold(file.path())? as Arc<dyn EditTarget>);
        let held = match hold {
            Hold::Yes => Some(Edit::open(chain, resolver, &mut open)?),
            Hold::No => None,
        };
        seen.check_before_change(chain)?;
        let dirty = held.as_ref().map_or(chain, Edit::chain).links()[0].layer.dirty(name)?;
        Ok(Ok(Self {
            name: name.to_owned(),
            granularity_bytes: told.granularity_bytes,
            dirty,
            virtual_bytes: chain.len_bytes(),
            held,
        }))
    }

    /// What changed since the snapshot that is `earlier`; or why that is not known.
    pub(super) fn changed(&self, earlier: &EarlierDisk) -> Known<ExtentSet<Virtual>> {
        let start = earlier.record.bitmap.as_ref().ok_or("no bitmap begins with the last snapshot")?;
        if start.name != self.name {
            return Err(format!("another bitmap begins with the last snapshot, {:?}", start.name));
        }
        if start.granularity_bytes != self.granularity_bytes {
            return Err("the bitmap's granularity is another one than in the last snapshot".into());
        }
        self.check_start(start, &earlier.seen())?;
        Ok(self.dirty.clone())
    }

    /// Whether the bitmap is the one that was left with `start`, when what was read of the disk was `read`.
    fn check_start(&self, start: &Start, read: &ExtentSet<Virtual>) -> Known<()> {
        let lots = Lots::new(read, self.virtual_bytes, self.granularity_bytes);
        let is_kept = |bit: &u64| {
            bit.checked_mul(self.granularity_bytes)
                .is_some_and(|at| self.dirty.contains(VirtualOffset::new(at)))
        };
        if !start.kept.iter().all(is_kept) {
            return Err(format!(
                "the bitmap {:?} does not begin with the last snapshot: it was cleared or made anew, or the disk was put back or exchanged",
                self.name
            ));
        }
        let kept: BTreeSet<u64> = start.kept.iter().copied().collect();
        match evidence(kept.len(), lots.count(&self.dirty), lots.len()) >= EVIDENCE_BITS {
            true => Ok(()),
            false => Err(format!(
                "too much of the disk changed, or it has too few bits, to know the bitmap {:?} from another of this name",
                self.name
            )),
        }
    }

    /// As if it were the one that was left with `start`.
    #[cfg(test)]
    pub(super) fn believe(&mut self, start: &Start) {
        let kept = start.kept.iter().map(|bit| granule(*bit, self.granularity_bytes, self.virtual_bytes));
        self.dirty = self.dirty.union(&kept.collect());
    }

    /// What `record` is to say of the bitmap, which is to begin with its snapshot.
    pub(super) fn start(&self, record: &Record, done: &BackedUp) -> Start {
        let lots = Lots::new(&done.data.union(&record.zeros()), self.virtual_bytes, self.granularity_bytes);
        let seed = uuid::Uuid::new_v4().as_u64_pair();
        Start {
            name: self.name.clone(),
            granularity_bytes: self.granularity_bytes,
            kept: lots.draw(seed.0 ^ seed.1.rotate_left(32)),
        }
    }

    /// Makes the bitmap begin anew, as `record` says that it does. The snapshot that holds this is on stable storage.
    pub(super) fn rotate(self, record: &Record) -> Result<()> {
        let (Some(edit), Some(start)) = (self.held, &record.bitmap) else { return Ok(()) };
        let kept = start.kept.iter().map(|bit| granule(*bit, self.granularity_bytes, self.virtual_bytes));
        let (chain, files) = edit.into_parts();
        let files = files.into_iter().map(|file| file as Arc<dyn TargetFile>).collect();
        let options = LiveOptions { reserves_nothing: true, ..LiveOptions::default() };
        let disk: Box<dyn LiveDisk> = image::live::open(chain, files, options)?;
        disk.restart_bitmap(&self.name, &kept.collect())?;
        disk.close()
    }
}

fn unusable(state: BitmapState) -> Option<&'static str> {
    match state {
        BitmapState::Recording => None,
        BitmapState::Stopped => Some("is disabled: changes are not noted in it"),
        BitmapState::Inconsistent => Some(
            "is inconsistent: a program that had the image open ended without storing it ('qemu-img bitmap --remove', and '--add' it anew)",
        ),
    }
}

fn granule(bit: u64, granularity_bytes: u64, virtual_bytes: u64) -> VirtualSpan {
    let start = bit.saturating_mul(granularity_bytes).min(virtual_bytes);
    Span::new(VirtualOffset::new(start), granularity_bytes.min(virtual_bytes - start))
}

/// How sure it is that `kept` bits, drawn by lot among `count`, are not set by accident where `set` of these are.
fn evidence(kept: usize, set: u64, count: u64) -> f64 {
    if set == 0 || count <= set {
        return 0.0;
    }
    #[allow(clippy::cast_precision_loss)]
    let of_one = (count as f64 / set as f64).log2();
    of_one * f64::from(u32::try_from(kept).unwrap_or(u32::MAX))
}

/// The bits among which those are drawn that stay set.
struct Lots {
    granularity_bytes: u64,
    /// What they stand for.
    spans: ExtentSet<Virtual>,
    are_unused: bool,
}

impl Lots {
    /// Of a disk of which `read` is what is known.
    fn new(read: &ExtentSet<Virtual>, virtual_bytes: u64, granularity_bytes: u64) -> Self {
        let all = Span::from_zero(virtual_bytes);
        let round = |span: VirtualSpan| {
            let end = span.end().get().next_multiple_of(granularity_bytes).min(virtual_bytes);
            let start = span.start().get() / granularity_bytes * granularity_bytes;
            Span::between(VirtualOffset::new(start), VirtualOffset::new(end))
        };
        let used: ExtentSet<Virtual> = read.iter().map(round).collect();
        let unused = Self { granularity_bytes, spans: used.invert(all), are_unused: true };
        match unused.len() >= UNUSED_MIN {
            true => unused,
            false => Self { granularity_bytes, spans: [all].into_iter().collect(), are_unused: false },
        }
    }

    fn len(&self) -> u64 {
        self.spans.iter().map(|span| span.len_bytes().div_ceil(self.granularity_bytes)).sum()
    }

    /// How many of them lie in `set`, which is whole ones.
    fn count(&self, set: &ExtentSet<Virtual>) -> u64 {
        self.spans.intersect(set).iter().map(|span| span.len_bytes().div_ceil(self.granularity_bytes)).sum()
    }

    fn draw(&self, seed: u64) -> Vec<u64> {
        let count = self.len();
        let wanted = match self.are_unused {
            true => KEPT_UNUSED_MAX.min(count / 4),
            false => KEPT_MAX.min(count / 16).max(count.min(8) / 2),
        };
        let mut state = seed;
        let mut ranks = BTreeSet::new();
        while (ranks.len() as u64) < wanted {
            ranks.insert(next(&mut state) % count);
        }
        let mut bits = Vec::new();
        let mut passed = 0;
        for span in self.spans.iter() {
            let of_span = span.len_bytes().div_ceil(self.granularity_bytes);
            let first = span.start().get() / self.granularity_bytes;
            bits.extend(ranks.range(passed..passed + of_span).map(|rank| first + rank - passed));
            passed += of_span;
        }
        bits
    }
}

/// The next number of SplitMix64.
pub(super) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    const BIT: u64 = 64 << 10;

    fn set(spans: &[(u64, u64)]) -> ExtentSet<Virtual> {
        spans.iter().map(|&(start, len)| Span::new(VirtualOffset::new(start * BIT), len * BIT)).collect()
    }

    #[test]
    fn bits_are_drawn_among_the_unused_if_there_are_many() {
        let lots = Lots::new(&set(&[(100, 500)]), 1000 * BIT - 1, BIT);
        assert_eq!((lots.len(), lots.are_unused), (500, true));
        let drawn = lots.draw(7);
        assert_eq!(drawn.len(), 64);
        assert!(drawn.iter().all(|bit| *bit < 100 || (600..1000).contains(bit)), "{drawn:?}");
        assert!(drawn.windows(2).all(|pair| pair[0] < pair[1]) && drawn != lots.draw(8));

        let lots = Lots::new(&set(&[(0, 900)]), 1000 * BIT, BIT);
        assert_eq!((lots.len(), lots.are_unused), (1000, false));
        assert_eq!((lots.draw(1).len(), lots.count(&set(&[(10, 3), (990, 20)]))), (32, 13));
        assert_eq!(Lots::new(&set(&[]), 5, BIT).draw(1), [] as [u64; 0]);
    }

    #[test]
    fn a_bitmap_is_known_by_its_bits_as_long_as_most_are_clear() {
        assert!(evidence(64, 64, 1000) > EVIDENCE_BITS);
        assert!(evidence(64, 700, 1000) >= EVIDENCE_BITS);
        assert!(evidence(64, 750, 1000) < EVIDENCE_BITS);
        assert!(evidence(32, 501, 1000) < EVIDENCE_BITS);
        assert!(evidence(1, 1, 2) < EVIDENCE_BITS);
        assert!(evidence(64, 1000, 1000) < EVIDENCE_BITS && evidence(0, 0, 1000) < EVIDENCE_BITS);
    }
}
