//! A disk in use for as long as nothing happens to it, and what may happen.

use std::sync::Arc;

use block::LiveDisk;
use serve::Export;
use sim::{Pages, Random, SimDisk, SimMachine};

use super::known::Known;
use super::step::{AnyStep, Step, Trouble};
use super::subject::LiveSubject;
use super::{Used, violation};
use crate::Violation;

/// Steps between two things that happen, at most.
const STEPS_MAX: u64 = 80;
/// Changes of the host until the machine dies, at most.
const CHANGES_MAX: u64 = 96;
/// Things that happen to an image before a fresh one is taken: what cuts leak is not given back.
const EVENT_COUNT: u64 = 24;

/// A machine, its disk, and who uses it.
pub(super) struct Session<'a> {
    pub(super) subject: &'a LiveSubject,
    pub(super) machine: SimMachine,
    pub(super) disk: Arc<SimDisk>,
    live: Option<(Export, Arc<dyn LiveDisk>)>,
    pub(super) known: Known,
    /// The number of the last write.
    write: u64,
    /// The change at which the machine dies.
    dies_at: Option<u64>,
    /// Steps may fail for want of room, and change nothing more than their own part of the disk by it.
    pub(super) may_be_full: bool,
    pub(super) used: Used,
    /// How often disks were taken into use, from anywhere: each time units are laid out in another way.
    opened: u64,
}

impl<'a> Session<'a> {
    /// A disk that holds `image`, which nobody uses.
    pub(super) fn new(subject: &'a LiveSubject, image: Pages, known: Known, write: u64) -> Self {
        let machine = SimMachine::new();
        let disk = subject.disk(&machine, 1, image);
        Self {
            subject,
            machine,
            disk,
            live: None,
            known,
            write,
            dies_at: None,
            may_be_full: false,
            used: Used::default(),
            opened: 0,
        }
    }

    /// One of the subject's images.
    pub(super) fn fresh(subject: &'a LiveSubject, seed: u64) -> Self {
        let (image, contents) = subject.start(seed);
        // The last bit says which image.
        Self { opened: seed >> 1, ..Self::new(subject, image.clone(), Known::new(contents), 1) }
    }

    /// What a cut leaves, in another machine.
    pub(super) fn after_cut(&self, seed: u64) -> Self {
        let left = Self::new(self.subject, self.disk.cut_pages(seed), self.known.clone(), self.write);
        Self { opened: self.opened, ..left }
    }

    /// The power goes, and comes again.
    fn cut(&mut self, seed: u64) {
        self.live = None;
        self.dies_at = None;
        let image = self.disk.cut_pages(seed);
        self.machine = SimMachine::new();
        self.disk = self.subject.disk(&self.machine, 1, image);
        self.used.cuts += 1;
    }

    /// The machine will die at this change from now on.
    pub(super) fn die_after(&mut self, changes: u64) {
        let at = self.machine.changes() + changes;
        self.machine.die_at_change(at);
        self.dies_at = Some(at);
    }

    /// Whether the machine died, as was ordered.
    pub(super) fn is_dead(&self) -> bool {
        self.dies_at.is_some_and(|at| self.machine.changes() >= at)
    }

    /// The program is gone, and the machine goes on.
    fn kill(&mut self) {
        self.live = None;
        self.dies_at = None;
        self.machine.heal();
    }

    /// Takes the disk into use; `false` if the machine died in between.
    pub(super) fn open(&mut self) -> Result<bool, String> {
        self.opened = self.opened.wrapping_add(1);
        match self.subject.open(&self.disk, self.opened) {
            Ok(disk) => {
                self.live = Some((Export::new("disk", disk.clone()), disk));
                Ok(true)
            }
            Err(_) if self.is_dead() => Ok(false),
            Err(error) => Err(format!("it does not open: {error}")),
        }
    }

    /// Compares the whole disk, which was just opened.
    pub(super) fn check(&mut self, was_cut: bool) -> Result<(), String> {
        let bytes = self.read_all()?;
        self.known.check_after_restart(&bytes, was_cut)
    }

    pub(super) fn read_all(&mut self) -> Result<Vec<u8>, String> {
        let (export, _) = self.live.as_ref().expect("it is in use");
        let mut bytes = vec![0xa5; self.known.len() * sim::SECTOR_BYTES];
        let read = export.read(extent::Offset::ZERO, &mut bytes);
        read.map_err(|fault| format!("it cannot be read: {}", fault.message))?;
        Ok(bytes)
    }

    /// One step; `false` if the machine died in it.
    pub(super) fn step(&mut self, step: &Step) -> Result<bool, String> {
        let (export, _) = self.live.as_ref().expect("it is in use");
        self.used.operations += 1;
        let flushed = || self.subject.flushed(&self.disk);
        match step.carry_out(export, &mut self.known, flushed) {
            Ok(()) => {
                self.used.flushes += u64::from(step.flushes());
                Ok(true)
            }
            Err(Trouble::Failed(_) | Trouble::Full(_)) if self.is_dead() => Ok(false),
            Err(Trouble::Full(_)) if self.may_be_full => {
                self.used.full += 1;
                Ok(true)
            }
            Err(Trouble::Failed(text) | Trouble::Full(text)) => Err(format!("{step:x?} fails: {text}")),
            Err(Trouble::Wrong(text)) => Err(format!("{step:x?}: {text}")),
        }
    }

    /// Random steps; `false` if the machine died in one.
    pub(super) fn steps(&mut self, random: &mut Random, count: u64) -> Result<bool, String> {
        self.steps_of(Step::any, random, count)
    }

    /// Random steps of this sort; `false` if the machine died in one.
    pub(super) fn steps_of(&mut self, any: AnyStep, random: &mut Random, count: u64) -> Result<bool, String> {
        for _ in 0..count {
            let step = any(random, &self.subject.kind, &mut self.write);
            if !self.step(&step)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Shortens the image, as a server does in the end, and closes it. That the host has no room to shorten it is no matter.
    fn end(&mut self) -> block::Result<()> {
        let (_, disk) = self.live.take().expect("it is in use");
        let shortened = if disk.is_changed() { engine::shorten(&*disk, 0, u64::MAX) } else { Ok(0) };
        match shortened {
            Err(error) if !error.is_full() => return Err(error),
            shortened => self.used.moved_bytes += shortened.unwrap_or(0),
        }
        disk.close().and_then(|()| self.subject.closed(&self.disk))
    }

    /// A clean end; `false` if the machine died in it.
    pub(super) fn close(&mut self) -> Result<bool, String> {
        match self.end() {
            Ok(()) => {
                self.known.flushed();
                self.used.closes += 1;
                Ok(true)
            }
            Err(_) if self.is_dead() => Ok(false),
            Err(error) => Err(format!("it does not close: {error}")),
        }
    }

    /// An end while the host may be full; whether it is a clean one.
    pub(super) fn close_if_possible(&mut self) -> Result<bool, String> {
        match self.end() {
            Ok(()) => {
                self.known.flushed();
                self.used.closes += 1;
                Ok(true)
            }
            Err(error) if error.is_full() => {
                self.used.full += 1;
                Ok(false)
            }
            Err(error) => Err(format!("it does not close: {error}")),
        }
    }

    /// Has QEMU say what it thinks of the image, which was just opened and read as `bytes`.
    pub(super) fn judge(&mut self, image: &Pages, bytes: &[u8]) -> Result<(), String> {
        self.used.judged += 1;
        self.subject.judge(image, bytes).map_err(|text| text + &self.subject.keep(image))
    }

    /// Cuts the power, opens what is left, perhaps with another cut in between, and compares.
    fn cut_and_check(&mut self, random: &mut Random, judge: bool) -> Result<(), String> {
        let mut seed = random.next_u64();
        loop {
            self.cut(seed);
            let image = self.disk.to_pages();
            if random.below(4) == 0 {
                self.die_after(1 + random.below(6));
            }
            let is_open = self.open().map_err(|text| text + &self.subject.keep(&image))?;
            if is_open {
                self.dies_at = None;
                self.machine.heal();
                self.check(true).map_err(|text| text + &self.subject.keep(&image))?;
                if judge {
                    let bytes = self.read_all()?;
                    self.judge(&image, &bytes)?;
                }
                return Ok(());
            }
            seed = random.next_u64();
        }
    }

    /// Steps, and then something happens.
    fn event(&mut self, random: &mut Random, judge: bool) -> Result<(), String> {
        let count_max = if random.coin() { STEPS_MAX } else { STEPS_MAX / 8 };
        let count = 1 + random.below(count_max);
        match random.below(8) {
            // A clean end, after which a cut takes nothing.
            0 => {
                self.steps(random, count)?;
                self.close()?;
            }
            // A clean end that the power does not last for.
            1 => {
                self.steps(random, count)?;
                self.die_after(1 + random.below(16));
                self.close()?;
            }
            // Killed, at a moment of its own or in the middle of a step; the machine goes on.
            2 | 3 => {
                if random.coin() {
                    self.die_after(1 + random.below(CHANGES_MAX));
                }
                self.steps(random, count)?;
                self.kill();
                self.used.kills += 1;
                self.open()?;
                return self.check(false);
            }
            // The power goes in a flush, or soon before or after it.
            4 | 5 => {
                self.steps(random, count)?;
                self.die_after(1 + random.below(10));
                if self.step(&Step::Flush)? {
                    self.steps(random, 8)?;
                }
            }
            _ => {
                self.die_after(1 + random.below(CHANGES_MAX));
                self.steps(random, count)?;
            }
        }
        self.cut_and_check(random, judge)
    }
}

/// Runs `operations` random steps on images of `subject`, with restarts, kills and cuts between them. Every `judge_every`th disk that
/// a cut left is shown to QEMU.
pub fn run_log(
    subject: &LiveSubject,
    seed: u64,
    operations: u64,
    judge_every: Option<u64>,
) -> Result<Used, Violation> {
    let mut used = Used::default();
    let mut image_seed = seed;
    while used.operations < operations {
        let mut random = Random::new(image_seed);
        let mut session = Session::fresh(subject, image_seed);
        for event in 0..EVENT_COUNT {
            let left = operations.saturating_sub(used.operations + session.used.operations);
            if left == 0 {
                break;
            }
            let cuts = used.cuts + session.used.cuts;
            let judge = judge_every.is_some_and(|every| cuts.is_multiple_of(every));
            let opened = if event == 0 { session.open().map(drop) } else { Ok(()) };
            opened
                .and_then(|()| session.event(&mut random, judge))
                .map_err(|text| violation(image_seed, format!("event {event}: {text}")))?;
        }
        used += session.used;
        image_seed = image_seed.wrapping_add(1);
    }
    Ok(used)
}
