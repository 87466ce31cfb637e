//! What of a disk changed since a snapshot, by the word of a dirty bitmap: of a persistent one in its image, of one that a running guest's QEMU
//! keeps, or of one that an NBD server tells of.
//!
//! A bitmap has a name and bits, and nothing that says when it began. So some bits, drawn by lot, stay set when it is made to begin anew, and
//! the snapshot says which: bits are only ever set, so all of them are there for as long as the bitmap is the one that was left.
//! `docs/decisions/backup-tracking.md` has the reasons.
//!
//! Invariants:
//! - from before the bitmap is read until it begins anew, nobody else can change the image; or what is written meanwhile is in the bitmap when
//!   it begins anew (a guest's);
//! - it begins anew only once the snapshot that says so is on stable storage;
//! - where a bitmap or its start are in doubt, everything is read.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Error, ErrorKind, HostFile, LiveDisk, ReadAt, Result, TargetFile};
use claims::{Act, Claims, Seen};
use engine::BackedUp;
use extent::{ExtentSet, HostOffset, Span, Virtual, VirtualOffset, VirtualSpan};
use image::live::LiveOptions;
use image::{BitmapState, Chain, Edit, EditTarget, Resolver};
use repository::{Record, Start};

use super::Guests;
use super::earlier::{EarlierDisk, Known};
use crate::machine::{Machine, ThisHost};
use crate::remote;
use crate::running::BitmapTold;

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
    /// Bytes that a bit stands for; `None` where that is not told.
    granularity_bytes: Option<u64>,
    dirty: ExtentSet<Virtual>,
    virtual_bytes: u64,
    keeper: Keeper,
}

/// Who keeps a bitmap.
enum Keeper {
    /// The image, which nobody else can change.
    Held(Box<Edit>),
    /// The image, in which nothing is to be done.
    Image,
    /// The guest whose disk is read there.
    Guest(PathBuf),
    /// A server that exports the disk there, and tells of the bitmap.
    Export(PathBuf),
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
            granularity_bytes: Some(told.granularity_bytes),
            dirty,
            virtual_bytes: chain.len_bytes(),
            keeper: held.map_or(Keeper::Image, |held| Keeper::Held(Box::new(held))),
        }))
    }

    /// The bitmap of a running guest's disk, as it was at the moment that is read.
    pub(super) fn of_guest(read_at: &Path, told: &BitmapTold, virtual_bytes: u64) -> Result<Found> {
        let read = match &told.is_usable {
            Ok(read) => read,
            Err(why) => return Ok(Err(why.clone())),
        };
        Ok(Ok(Self {
            name: told.name.clone(),
            granularity_bytes: Some(read.granularity_bytes),
            dirty: marked(read_at, &read.context)?,
            virtual_bytes,
            keeper: Keeper::Guest(read_at.to_owned()),
        }))
    }

    /// The bitmap that a server tells of, which can only be read. It may serve one client at a time: the disk is not open yet.
    pub(super) fn of_export(read_at: &Path, name: &str) -> Result<Found> {
        let dirty = match marked(read_at, &context(name)) {
            Ok(dirty) => dirty,
            Err(error) if error.kind() == ErrorKind::Refused => {
                return Ok(Err(format!("the server does not tell of a bitmap {name:?}")));
            }
            Err(error) => return Err(error),
        };
        let keeper = Keeper::Export(read_at.to_owned());
        Ok(Ok(Self { name: name.to_owned(), granularity_bytes: None, dirty, virtual_bytes: 0, keeper }))
    }

    /// The same, of a disk of that size.
    pub(super) fn of_disk(self, virtual_bytes: u64) -> Self {
        Self { virtual_bytes, ..self }
    }

    /// Whether it is made to begin anew once the snapshot is stored.
    pub(super) fn begins_anew(&self) -> bool {
        !matches!(self.keeper, Keeper::Export(_))
    }

    /// `Refused` if a server's bitmap is another one than before the disk was read. The disk is not open any more.
    pub(super) fn check_after_reading(&self) -> Result<()> {
        let Keeper::Export(read_at) = &self.keeper else { return Ok(()) };
        match marked(read_at, &context(&self.name))? == self.dirty {
            true => Ok(()),
            false => Err(Error::refused("the disk was written to while it was read")
                .path(read_at.display())
                .hint("export it as of one moment; Leandisk does so itself for qmp:SOCKET?disk=NAME")),
        }
    }

    /// What changed since the snapshot that is `earlier`; or why that is not known.
    pub(super) fn changed(&self, earlier: &EarlierDisk) -> Known<ExtentSet<Virtual>> {
        let start = earlier.record.bitmap.as_ref().ok_or("no bitmap begins with the last snapshot")?;
        if start.name != self.name {
            return Err(format!("another bitmap begins with the last snapshot, {:?}", start.name));
        }
        let can_be = match self.granularity_bytes {
            Some(granularity_bytes) => start.granularity_bytes == granularity_bytes,
            // Then all that it marks is whole bits.
            None => self.marks_whole(start.granularity_bytes),
        };
        if !can_be {
            return Err("the bitmap's granularity is another one than in the last snapshot".into());
        }
        self.check_start(start, &earlier.seen())?;
        Ok(self.dirty.clone())
    }

    /// Whether all that is marked begins and ends between bits of `granularity_bytes`, and not all of it between coarser ones.
    fn marks_whole(&self, granularity_bytes: u64) -> bool {
        let fits = |granularity_bytes: u64| {
            self.dirty.iter().all(|span| {
                let end = span.end().get();
                span.start().get() % granularity_bytes == 0
                    && (end % granularity_bytes == 0 || end == self.virtual_bytes)
            })
        };
        fits(granularity_bytes) && !granularity_bytes.checked_mul(2).is_some_and(fits)
    }

    /// Whether the bitmap is the one that was left with `start`, when what was read of the disk was `read`.
    fn check_start(&self, start: &Start, read: &ExtentSet<Virtual>) -> Known<()> {
        let lots = Lots::new(read, self.virtual_bytes, start.granularity_bytes);
        let is_kept = |bit: &u64| {
            bit.checked_mul(start.granularity_bytes)
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

    /// That of a guest, which the model stands for.
    #[cfg(test)]
    pub(super) fn of_model(
        name: &str,
        granularity_bytes: u64,
        dirty: ExtentSet<Virtual>,
        virtual_bytes: u64,
    ) -> Self {
        let (name, granularity_bytes) = (name.to_owned(), Some(granularity_bytes));
        Self { name, granularity_bytes, dirty, virtual_bytes, keeper: Keeper::Guest(PathBuf::new()) }
    }

    /// As if it were the one that was left with `start`.
    #[cfg(test)]
    pub(super) fn believe(&mut self, start: &Start) {
        let kept = start.kept.iter().map(|bit| granule(*bit, start.granularity_bytes, self.virtual_bytes));
        self.dirty = self.dirty.union(&kept.collect());
    }

    /// What `record` is to say of the bitmap, which is to begin with its snapshot; `None` of one that does not.
    pub(super) fn start(&self, record: &Record, done: &BackedUp) -> Option<Start> {
        let granularity_bytes = self.granularity_bytes.filter(|_| self.begins_anew())?;
        let lots = Lots::new(&done.data.union(&record.zeros()), self.virtual_bytes, granularity_bytes);
        let seed = uuid::Uuid::new_v4().as_u64_pair();
        let kept = lots.draw(seed.0 ^ seed.1.rotate_left(32));
        Some(Start { name: self.name.clone(), granularity_bytes, kept })
    }

    /// Makes the bitmap begin anew, as `record` says that it does. The snapshot that holds this is on stable storage.
    pub(super) fn rotate(self, record: &Record, guests: &mut dyn Guests) -> Result<()> {
        let Some(start) = &record.bitmap else { return Ok(()) };
        let kept = start.kept.iter().map(|bit| granule(*bit, start.granularity_bytes, self.virtual_bytes));
        let edit = match self.keeper {
            Keeper::Held(edit) => edit,
            Keeper::Guest(read_at) => {
                let kept: Vec<_> = kept.map(|span| HostOffset::new(span.start().get())).collect();
                return guests.restart(&read_at, &kept);
            }
            Keeper::Image | Keeper::Export(_) => return Ok(()),
        };
        let (chain, files) = edit.into_parts();
        let files = files.into_iter().map(|file| file as Arc<dyn TargetFile>).collect();
        let options = LiveOptions { reserves_nothing: true, ..LiveOptions::default() };
        let disk: Box<dyn LiveDisk> = image::live::open(chain, files, options)?;
        disk.restart_bitmap(&self.name, &kept.collect())?;
        disk.close()
    }
}

/// What is said of a bitmap that a server tells of.
pub(super) fn said_of_export(name: &str) -> String {
    format!(
        "the bitmap {name:?} is the word of the server, which does not tell whether all changes were noted in it until now. It is only read: \
         nothing that NBD can do makes it begin anew, so it goes on from the snapshot that it begins with"
    )
}

/// The metadata context of QEMU's that tells of a bitmap.
fn context(name: &str) -> String {
    format!("qemu:dirty-bitmap:{name}")
}

/// What a context of the export at an address marks: its places are the disk's.
fn marked(read_at: &Path, context: &str) -> Result<ExtentSet<Virtual>> {
    let marked = remote::marked(read_at, context)?;
    Ok(marked
        .iter()
        .map(|span| Span::new(VirtualOffset::new(span.start().get()), span.len_bytes()))
        .collect())
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
