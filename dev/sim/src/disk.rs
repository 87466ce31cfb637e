//! The simulated disk.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{Error, HostFile, Memory, ReadAt, Result, TargetFile, check_bounds};
use extent::{Host, HostOffset, HostSpan, Offset, Span};

use crate::machine::{Clock, Fate, SimMachine};
use crate::{Pages, Random};

/// What reaches the storage whole or not at all.
pub const SECTOR_BYTES: usize = 512;

/// The most a simulated disk may grow to.
const LEN_BYTES_MAX: u64 = 1 << 30;

type Sector = [u8; SECTOR_BYTES];

/// What was asked of the disk so far, failures included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Operations of every kind.
    pub operations: u64,
    /// Reads.
    pub reads: u64,
    /// Writes, zeroing, reservations and changes of length.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written or zeroed.
    pub written_bytes: u64,
}

#[derive(Clone, Default)]
struct Faults {
    /// What touches one of these fails.
    spans: Vec<HostSpan>,
    /// No more than so many bytes are written in all.
    written_bytes_max: Option<u64>,
}

/// A change since the last flush: the sector's contents after the write of that number.
#[derive(Clone)]
struct Version {
    write: u64,
    sector: Sector,
}

#[derive(Clone)]
struct State {
    /// What a reader sees.
    current: Pages,
    /// What the last flush left.
    stable: Pages,
    /// By sector, in order of writing.
    versions: BTreeMap<usize, Vec<Version>>,
    /// The length after each write since the last flush that changed it.
    lengths: Vec<(u64, usize)>,
    counters: Counters,
    faults: Faults,
    random: Random,
    tears: Option<Tears>,
    /// What is broken asks for flushes, and gets none.
    leaves_out_flushes: bool,
}

/// Says whether a cut may leave the front of one of these versions of a sector and the back of the other.
pub type Tears = fn(&[u8], &[u8]) -> bool;

/// A disk in memory whose unflushed writes can be lost, torn and reordered.
pub struct SimDisk {
    name: String,
    seed: u64,
    clock: Arc<Clock>,
    state: Mutex<State>,
}

/// What kind of operation is asked for.
#[derive(Clone, Copy)]
enum Operation {
    Read,
    Write,
    Flush,
}

impl SimDisk {
    /// A disk of `len_bytes` zeros. `seed` decides what a failed write leaves behind, and is in every message.
    pub fn new(seed: u64, len_bytes: u64) -> Self {
        assert!(len_bytes <= LEN_BYTES_MAX, "a simulated disk is small");
        Self::with_contents(seed, vec![0; usize::try_from(len_bytes).expect("small")])
    }

    /// A disk that holds `bytes`, all of them flushed: what a cut left, switched on again.
    pub fn with_contents(seed: u64, bytes: Vec<u8>) -> Self {
        Self::of_machine(Arc::default(), "simulated disk", seed, Pages::new(&bytes))
    }

    pub(crate) fn of_machine(clock: Arc<Clock>, name: &str, seed: u64, bytes: Pages) -> Self {
        let state = State {
            stable: bytes.clone(),
            current: bytes,
            versions: BTreeMap::new(),
            lengths: Vec::new(),
            counters: Counters::default(),
            faults: Faults::default(),
            random: Random::new(seed),
            tears: None,
            leaves_out_flushes: false,
        };
        Self { name: format!("{name} (seed {seed:#x})"), seed, clock, state: Mutex::new(state) }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// What was asked so far.
    pub fn counters(&self) -> Counters {
        self.state().counters
    }

    /// What a reader sees now.
    pub fn to_vec(&self) -> Vec<u8> {
        self.state().current.to_vec()
    }

    /// What a reader sees now, to be kept or compared.
    pub fn to_pages(&self) -> Pages {
        self.state().current.clone()
    }

    /// Makes the operation of this number fail, counted from 1 over the life of its machine.
    pub fn fail_operation(&self, number: u64) {
        self.clock.fail_operation(number, io::ErrorKind::Other);
    }

    /// Makes every operation from this number on fail, as if the machine were gone; see [`SimDisk::cut`].
    pub fn die_at_operation(&self, number: u64) {
        self.clock.die_at_operation(number);
    }

    /// Whether a cut may also leave a sector that holds the front of one version and the back of another.
    pub fn tear_sectors(&self, tears: bool) {
        self.state().tears = tears.then_some(|_, _| true);
    }

    /// The same, for sectors of which `tears` says so alone.
    pub fn tear_sectors_if(&self, tears: Tears) {
        self.state().tears = Some(tears);
    }

    /// Whether flushes do nothing, and do not count as operations: as if who asks for them did not. For mutants.
    pub fn leave_out_flushes(&self, leaves_out: bool) {
        self.state().leaves_out_flushes = leaves_out;
    }

    /// Makes everything fail that touches `span`.
    pub fn fail_span(&self, span: HostSpan) {
        self.state().faults.spans.push(span);
    }

    /// Leaves room for so many written bytes in all, those of the past included.
    pub fn limit_written_bytes(&self, limit_bytes: u64) {
        self.state().faults.written_bytes_max = Some(limit_bytes);
    }

    /// Forgets all faults, those of its machine included.
    pub fn heal(&self) {
        self.clock.heal();
        self.state().faults = Faults::default();
    }

    /// One state in which a power cut now may leave the disk; which one, `seed` decides. The disk goes on.
    pub fn cut(&self, seed: u64) -> Memory {
        Memory::named(format!("{} after a cut (seed {seed:#x})", self.name), self.cut_pages(seed).to_vec())
    }

    /// The same disk, with all that was not flushed, in another machine. Faults stay behind.
    pub fn copy_to(&self, machine: &SimMachine) -> Self {
        let state = State { faults: Faults::default(), ..self.state().clone() };
        Self { name: self.name.clone(), seed: self.seed, clock: machine.clock(), state: Mutex::new(state) }
    }

    /// What [`Self::cut`] leaves.
    pub fn cut_pages(&self, seed: u64) -> Pages {
        let state = self.state();
        if state.versions.is_empty() && state.lengths.is_empty() {
            return state.stable.clone();
        }
        let mut random = Random::new(seed ^ self.seed.rotate_left(32));
        let survivors = Survivors::choose(&state, &mut random);
        state.after_cut(survivors, random)
    }

    /// Has all that was written on stable storage, without an operation of its own: it is part of another one.
    pub(crate) fn store(&self) {
        self.state().flush();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, what: &str, at: HostOffset, kind: io::ErrorKind) -> Error {
        Error::io(what, io::Error::new(kind, "simulated fault")).path(&self.name).at(at)
    }

    /// Counts the operation; says whether it fails, and how.
    fn begin(&self, state: &mut State, operation: Operation, span: HostSpan) -> Fate {
        state.counters.operations += 1;
        let (count, bytes) = match operation {
            Operation::Read => (&mut state.counters.reads, Some(&mut state.counters.read_bytes)),
            Operation::Write => (&mut state.counters.writes, Some(&mut state.counters.written_bytes)),
            Operation::Flush => (&mut state.counters.flushes, None),
        };
        *count += 1;
        if let Some(bytes) = bytes {
            *bytes += span.len_bytes();
        }
        let faults = &state.faults;
        let is_bad = faults.spans.iter().any(|bad| bad.intersect(&span).is_some());
        let is_full = matches!(operation, Operation::Write)
            && (span.end().get() > LEN_BYTES_MAX
                || faults.written_bytes_max.is_some_and(|max| state.counters.written_bytes > max));
        match (
            self.clock.tick_for(!matches!(operation, Operation::Read), matches!(operation, Operation::Write)),
            is_bad,
            is_full,
        ) {
            (Fate::Happens, true, _) => Fate::Fails(io::ErrorKind::Other),
            (Fate::Happens, false, true) => Fate::Fails(io::ErrorKind::StorageFull),
            (fate, ..) => fate,
        }
    }

    /// Writes `bytes`, or zeros; a write that fails leaves some of its sectors, unless the machine is gone.
    fn write(&self, what: &str, span: HostSpan, bytes: Option<&[u8]>) -> Result<()> {
        let mut state = self.state();
        let fate = self.begin(&mut state, Operation::Write, span);
        match fate {
            Fate::Happens => state.write(span, bytes, true),
            Fate::Fails(_) if span.end().get() <= LEN_BYTES_MAX => state.write(span, bytes, false),
            Fate::Fails(_) | Fate::MachineIsGone => {}
        }
        fate.result().map_err(|kind| self.error(what, span.start(), kind))
    }
}

fn index(at: HostOffset) -> usize {
    usize::try_from(at.get()).expect("a simulated disk is small")
}

impl State {
    fn write(&mut self, span: HostSpan, bytes: Option<&[u8]>, keeps_all: bool) {
        if span.is_empty() {
            return;
        }
        if self.current.len() < index(span.end()) && keeps_all {
            self.set_len(index(span.end()));
        }
        let end = span.end().min(Offset::new(self.current.len() as u64));
        for piece in Span::between(span.start(), end).split(SECTOR_BYTES as u64) {
            if !keeps_all && self.random.coin() {
                continue;
            }
            let range = index(piece.start())..index(piece.end());
            let from = range.start - index(span.start());
            let bytes =
                bytes.map_or(&[0; SECTOR_BYTES][..range.len()], |bytes| &bytes[from..from + range.len()]);
            self.current.write(range.start, bytes);
            self.note_version(index(piece.start()) / SECTOR_BYTES);
        }
    }

    fn note_version(&mut self, number: usize) {
        let (write, sector) = (self.counters.writes, sector_of(&self.current, number));
        self.versions.entry(number).or_default().push(Version { write, sector });
    }

    fn set_len(&mut self, len: usize) {
        let old_len = self.current.len();
        self.current.resize(len);
        self.lengths.push((self.counters.writes, len));
        // What was cut off reads as zeros if the disk grows again; that too is a change until flushed.
        if len < old_len {
            for number in len / SECTOR_BYTES..old_len.div_ceil(SECTOR_BYTES) {
                self.note_version(number);
            }
        }
    }

    fn flush(&mut self) {
        self.stable.clone_from(&self.current);
        self.versions.clear();
        self.lengths.clear();
    }

    fn after_cut(&self, mut survivors: Survivors, mut random: Random) -> Pages {
        let mut bytes = self.stable.clone();
        let longest = self.lengths.iter().map(|(_, len)| *len).chain([bytes.len()]).max().unwrap_or(0);
        bytes.resize(longest.next_multiple_of(SECTOR_BYTES));
        let is_partial = !matches!(survivors, Survivors::Nothing | Survivors::Everything);
        let tears = self.tears.filter(|_| is_partial);
        for (number, versions) in &self.versions {
            let whole = survivors.version(versions);
            let mut sector =
                whole.map_or_else(|| sector_of(&self.stable, *number), |whole| versions[whole].sector);
            let later = &versions[whole.map_or(0, |whole| whole + 1)..];
            let tears = tears.filter(|_| !later.is_empty() && random.below(4) == 0);
            if let Some(tears) = tears {
                tear(&mut sector, later, tears, &mut random);
            }
            if tears.is_some() || whole.is_some() {
                bytes.write(number * SECTOR_BYTES, &sector);
            }
        }
        bytes.resize(survivors.len(&self.lengths).unwrap_or(self.stable.len()));
        self.check_cut(&bytes);
        bytes
    }

    /// Every sector is one of its versions, and unchanged where nothing was written since the flush; a torn one is of
    /// two of them.
    fn check_cut(&self, bytes: &Pages) {
        let mut checked = 0;
        let last = bytes.len().div_ceil(SECTOR_BYTES);
        for (&number, versions) in self.versions.range(..last) {
            assert!(self.is_stable(bytes, checked..number), "what was flushed survives");
            checked = number + 1;
            let found = sector_of(bytes, number);
            let kept = (bytes.len() - number * SECTOR_BYTES).min(SECTOR_BYTES);
            let stable = sector_of(&self.stable, number);
            let all = || std::iter::once(&stable).chain(versions.iter().map(|version| &version.sector));
            let is_version = all().any(|sector| sector[..kept] == found[..kept]);
            let is_torn = || {
                let front = |sector: &Sector| (0..kept).take_while(|at| sector[*at] == found[*at]).count();
                let back =
                    |sector: &Sector| (0..kept).rev().take_while(|at| sector[*at] == found[*at]).count();
                let front = all().map(front).max().unwrap_or(0);
                front + all().map(back).max().unwrap_or(0) >= kept
            };
            assert!(
                is_version || (self.tears.is_some() && is_torn()),
                "sector {number} after a cut is one that was written"
            );
        }
        assert!(self.is_stable(bytes, checked..last), "what was flushed survives");
    }

    /// Whether the sectors are as the last flush left them, and zeros past its end.
    fn is_stable(&self, bytes: &Pages, sectors: std::ops::Range<usize>) -> bool {
        let range = sectors.start * SECTOR_BYTES..sectors.end * SECTOR_BYTES;
        let beyond = self.stable.len().max(range.start)..bytes.len().min(range.end);
        bytes.first_difference(&self.stable, range).is_none()
            && (beyond.is_empty() || bytes.get(beyond).iter().all(|byte| *byte == 0))
    }
}

/// Puts the front or the back of one of `versions` into `sector`, if these two may be torn.
fn tear(sector: &mut [u8], versions: &[Version], tears: Tears, random: &mut Random) {
    let pick = random.below(versions.len() as u64);
    let version = &versions[usize::try_from(pick).expect("an index")];
    if !tears(sector, &version.sector) {
        return;
    }
    let at = usize::try_from(1 + random.below(SECTOR_BYTES as u64 - 1)).expect("within a sector");
    let torn = if random.coin() { 0..at } else { at..SECTOR_BYTES };
    sector[torn.clone()].copy_from_slice(&version.sector[torn]);
}

/// The sector of that number, with zeros past the end.
fn sector_of(bytes: &Pages, number: usize) -> Sector {
    let mut sector = [0; SECTOR_BYTES];
    let start = (number * SECTOR_BYTES).min(bytes.len());
    let end = (start + SECTOR_BYTES).min(bytes.len());
    bytes.read(start, &mut sector[..end - start]);
    sector
}

/// Which writes since the last flush survive a cut.
enum Survivors {
    /// Each sector by itself is any of its versions.
    BySector(Random),
    /// All writes before this one, and some sectors of it.
    Before(u64, Random),
    /// Whole writes, in whatever order: each of them or not.
    Writes(u64),
    /// None.
    Nothing,
    /// All.
    Everything,
}

impl Survivors {
    fn choose(state: &State, random: &mut Random) -> Self {
        let last = state.counters.writes;
        let seed = Random::new(random.next_u64());
        match random.below(8) {
            0 => Self::Nothing,
            1 => Self::Everything,
            2 | 3 => Self::BySector(seed),
            4 | 5 => Self::Writes(random.next_u64()),
            _ => Self::Before(last.saturating_sub(random.below(1 + last.min(16))), seed),
        }
    }

    /// Whether a write survives as far as its own choice goes.
    fn keeps(&mut self, write: u64) -> bool {
        match self {
            Self::BySector(random) => random.coin(),
            Self::Before(limit, random) => write < *limit || (write == *limit && random.coin()),
            Self::Writes(seed) => Random::new(*seed ^ write).coin(),
            Self::Nothing => false,
            Self::Everything => true,
        }
    }

    /// The index of the last surviving version.
    fn version(&mut self, versions: &[Version]) -> Option<usize> {
        versions.iter().rposition(|version| self.keeps(version.write))
    }

    fn len(&mut self, lengths: &[(u64, usize)]) -> Option<usize> {
        lengths.iter().rev().find(|(write, _)| self.keeps(*write)).map(|(_, len)| *len)
    }
}

impl ReadAt<Host> for SimDisk {
    fn len_bytes(&self) -> u64 {
        self.state().current.len() as u64
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        let mut state = self.state();
        check_bounds(at, buf.len(), state.current.len() as u64)?;
        self.begin(&mut state, Operation::Read, Span::new(at, buf.len() as u64))
            .result()
            .map_err(|kind| self.error("read", at, kind))?;
        state.current.read(index(at), buf);
        Ok(())
    }
}

impl HostFile for SimDisk {
    fn name(&self) -> &str {
        &self.name
    }

    fn allocated_bytes(&self) -> Result<u64> {
        Ok(self.len_bytes())
    }
}

impl TargetFile for SimDisk {
    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        let span = Span::checked(at, buf.len() as u64)
            .ok_or_else(|| self.error("write", at, io::ErrorKind::StorageFull))?;
        self.write("write", span, Some(buf))
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        let mut state = self.state();
        let end = Offset::new(len_bytes);
        self.begin(&mut state, Operation::Write, Span::new(end, 0))
            .result()
            .map_err(|kind| self.error("set the length", end, kind))?;
        state.set_len(index(end));
        Ok(())
    }

    fn reserve(&self, span: HostSpan) -> Result<()> {
        let mut state = self.state();
        self.begin(&mut state, Operation::Write, span)
            .result()
            .map_err(|kind| self.error("reserve", span.start(), kind))?;
        if state.current.len() < index(span.end()) {
            state.set_len(index(span.end()));
        }
        Ok(())
    }

    fn zero(&self, span: HostSpan) -> Result<()> {
        self.write("zero", span, None)
    }

    /// A flush that fails leaves everything unflushed.
    fn flush(&self) -> Result<()> {
        let mut state = self.state();
        if state.leaves_out_flushes {
            return Ok(());
        }
        self.begin(&mut state, Operation::Flush, Span::from_zero(0))
            .result()
            .map_err(|kind| self.error("flush", Offset::ZERO, kind))?;
        state.flush();
        assert!(state.stable == state.current && state.versions.is_empty(), "a flush leaves nothing behind");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEN: u64 = 16 * 512;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, u64, u8),
        Zero(u64, u64),
        SetLen(u64),
        Flush,
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..LEN, 0..3000u64, 1..=255u8).prop_map(|(at, len, byte)| Step::Write(at, len, byte)),
            2 => (0..LEN, 0..3000u64).prop_map(|(at, len)| Step::Zero(at, len)),
            1 => (0..LEN).prop_map(Step::SetLen),
            2 => Just(Step::Flush),
        ]
    }

    fn span(start: u64, len_bytes: u64) -> HostSpan {
        Span::new(Offset::new(start), len_bytes)
    }

    fn carry_out(disk: &SimDisk, model: &mut Memory, step: &Step) -> Result<()> {
        match *step {
            Step::Write(at, len, byte) => {
                let bytes = vec![byte; usize::try_from(len).unwrap()];
                TargetFile::write_at(model, Offset::new(at), &bytes)?;
                disk.write_at(Offset::new(at), &bytes)
            }
            Step::Zero(at, len) => model.zero(span(at, len)).and_then(|()| disk.zero(span(at, len))),
            Step::SetLen(len) => model.set_len(len).and_then(|()| disk.set_len(len)),
            Step::Flush => disk.flush(),
        }
    }

    proptest! {
        #[test]
        fn flushed_survives_and_the_rest_is_old_or_new(
            steps in prop::collection::vec(any_step(), 1..20), seed: u64, cuts in prop::collection::vec(any::<u64>(), 8)
        ) {
            let disk = SimDisk::new(seed, LEN);
            let mut model = Memory::new(vec![0; usize::try_from(LEN).unwrap()]);
            // All contents since the last flush, which is the first of them.
            let mut history = vec![model.to_vec()];
            for step in &steps {
                carry_out(&disk, &mut model, step).unwrap();
                prop_assert_eq!(disk.to_vec(), model.to_vec());
                if matches!(step, Step::Flush) {
                    history.clear();
                }
                history.push(model.to_vec());
            }
            for cut in cuts {
                let bytes = disk.cut(cut).to_vec();
                prop_assert_eq!(&bytes, &disk.cut(cut).to_vec(), "a seed replays");
                prop_assert!(history.iter().any(|then| then.len() == bytes.len()));
                for number in 0..bytes.len().div_ceil(SECTOR_BYTES) {
                    let kept = (bytes.len() - number * SECTOR_BYTES).min(SECTOR_BYTES);
                    let sector = |bytes: &[u8]| bytes[number * SECTOR_BYTES..][..kept].to_vec();
                    let is_known = history.iter().any(|then| {
                        let end = then.len().min(number * SECTOR_BYTES + kept);
                        let there = then.get(number * SECTOR_BYTES..end).unwrap_or_default();
                        let found = sector(&bytes);
                        found[..there.len()] == *there && found[there.len()..].iter().all(|byte| *byte == 0)
                    });
                    prop_assert!(is_known, "sector {} of cut {:#x}, seed {:#x}", number, cut, seed);
                }
            }
        }
    }

    #[test]
    fn cuts_lose_tear_and_reorder() {
        let disk = SimDisk::new(1, LEN);
        for at in [0, 1024] {
            disk.write_at(Offset::new(at), &[7; 1024]).unwrap();
        }
        let kept = |seed| {
            let bytes = disk.cut(seed).to_vec();
            [0, 1, 2, 3].map(|number| bytes[number * SECTOR_BYTES] == 7)
        };
        let all: std::collections::BTreeSet<_> = (0..2000).map(kept).collect();
        assert_eq!(all.len(), 16, "every subset of the sectors comes up: {all:?}");
    }

    #[test]
    fn an_overwritten_sector_may_be_the_first_the_second_or_neither() {
        let disk = SimDisk::new(2, LEN);
        disk.write_at(Offset::ZERO, &[1; 512]).unwrap();
        disk.write_at(Offset::ZERO, &[2; 512]).unwrap();
        let all: std::collections::BTreeSet<_> = (0..300).map(|seed| disk.cut(seed).to_vec()[0]).collect();
        assert_eq!(all.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn a_flush_that_is_left_out_keeps_nothing() {
        let disk = SimDisk::new(1, LEN);
        disk.write_at(Offset::ZERO, &[1; 512]).unwrap();
        let before = disk.counters().operations;
        disk.leave_out_flushes(true);
        disk.flush().unwrap();
        assert_eq!(disk.counters().operations, before);
        assert!((0..50).any(|seed| disk.cut(seed).to_vec()[0] == 0), "what was written may be lost");
        disk.leave_out_flushes(false);
        disk.flush().unwrap();
        assert!((0..50).all(|seed| disk.cut(seed).to_vec()[0] == 1));
    }

    #[test]
    fn a_torn_sector_holds_the_front_of_one_version_and_the_back_of_another() {
        let disk = SimDisk::new(2, LEN);
        disk.tear_sectors(true);
        disk.write_at(Offset::ZERO, &[1; 512]).unwrap();
        disk.flush().unwrap();
        disk.write_at(Offset::ZERO, &[2; 512]).unwrap();
        let ends = |seed| {
            let bytes = disk.cut(seed).to_vec();
            (bytes[0], bytes[511])
        };
        let all: std::collections::BTreeSet<_> = (0..300).map(ends).collect();
        assert_eq!(all.into_iter().collect::<Vec<_>>(), [(1, 1), (1, 2), (2, 1), (2, 2)]);
    }

    #[test]
    fn faults_come_when_they_are_ordered() {
        let disk = SimDisk::new(3, LEN);
        disk.fail_operation(2);
        disk.fail_span(span(4096, 512));
        disk.write_at(Offset::ZERO, &[1; 512]).unwrap();
        let error = disk.flush().err().unwrap();
        assert!(error.to_string().contains("seed 0x3"), "{error}");
        assert!((0..300).any(|seed| disk.cut(seed).to_vec()[0] == 0), "a failed flush promises nothing");
        disk.flush().unwrap();
        assert!((0..300).all(|seed| disk.cut(seed).to_vec()[0] == 1));
        assert!(disk.read_at(Offset::new(4000), &mut [0; 200]).is_err());
        assert!(disk.write_at(Offset::new(4200), &[1]).is_err());
        disk.heal();
        disk.read_at(Offset::new(4000), &mut [0; 200]).unwrap();
        disk.limit_written_bytes(1024);
        let full = disk.write_at(Offset::ZERO, &[9; 1024]).err().unwrap();
        assert_eq!(full.io_source().unwrap().kind(), io::ErrorKind::StorageFull);
        let counters = disk.counters();
        assert_eq!((counters.operations, counters.reads, counters.writes, counters.flushes), (7, 2, 3, 2));
    }

    #[test]
    fn a_dead_machine_writes_nothing_more() {
        let disk = SimDisk::new(4, LEN);
        disk.write_at(Offset::ZERO, &[1; 512]).unwrap();
        disk.flush().unwrap();
        disk.die_at_operation(3);
        assert!(disk.write_at(Offset::ZERO, &[2; 4096]).is_err());
        assert!(disk.flush().is_err());
        assert!((0..100).all(|seed| disk.cut(seed).to_vec()[..512] == [1; 512]));
    }
}
