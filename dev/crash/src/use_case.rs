//! Power cuts at every change of the use cases themselves: `defrag` and `compact` as the program runs them, from the first look at the
//! disk to the last check, on real volumes in images of several formats. So the order in which they check, open, write, close and
//! remove is explored, and not a copy of it.
//!
//! What must hold after any cut: as long as there is a journal, nobody but `recover` opens the disk; `recover` ends well and leaves no
//! file but the disk; every file of the volume is what it was, and the volume is sound; and the disk can be changed again.

use std::io;
use std::path::Path;

use block::{Error, ErrorKind, Result};
use image::{Chain, Format, NoFiles, OpenOptions};
use leandisk::{Caching, Machine, OpenDisk, Unwatched, compact, defrag, recover};
use sim::{Pages, Random};
use stack::Stack;
use testkit::{run, scratch};

use crate::explore::{Explored, Violation};
use crate::host::SimHost;
use crate::real::Real;
use crate::scenario::{Guest, Scenario};

const DISK: &str = "/disks/disk";

/// What the program is asked to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// `defrag`, to this goal.
    Defrag(defrag::Goal),
    /// `compact`.
    Compact,
    /// `compact --defrag`.
    CompactDefrag,
}

/// An image with a volume whose files lie in many pieces, and what is done with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UseCaseKind {
    /// What is on the disk.
    pub volume: Real,
    /// The image's format.
    pub format: Format,
    /// What the program is asked to do.
    pub asked: Asked,
}

impl UseCaseKind {
    /// All of them.
    pub fn all() -> Vec<Self> {
        let formats = [Format::Raw, Format::Qcow2, Format::Vhdx, Format::Vhd, Format::Vmdk, Format::Vdi];
        let asked = [
            Asked::Defrag(defrag::Goal::Files),
            Asked::Defrag(defrag::Goal::Free),
            Asked::Defrag(defrag::Goal::Pack),
            Asked::Compact,
            Asked::CompactDefrag,
        ];
        let of = |volume, format| asked.map(|asked| Self { volume, format, asked });
        let volumes = [Real::Ntfs, Real::Ext4];
        volumes
            .into_iter()
            .flat_map(|volume| formats.into_iter().flat_map(move |format| of(volume, format)))
            .collect()
    }

    fn driver(self) -> (&'static str, &'static str) {
        match self.format {
            Format::Qcow2 => ("qcow2", "cluster_size=4k"),
            Format::Vhdx => ("vhdx", "subformat=dynamic,block_size=1M,log_size=1M"),
            Format::Vhd => ("vpc", "subformat=dynamic,force_size=on"),
            Format::Vmdk => ("vmdk", "subformat=monolithicSparse"),
            Format::Vdi => ("vdi", "static=off"),
            _ => ("raw", "size=0"),
        }
    }
}

/// A disk, and what is done with it.
pub struct UseCase {
    kind: UseCaseKind,
    seed: u64,
    disk: Pages,
    /// Of all names and contents.
    digest: u128,
}

/// How to explore.
#[derive(Clone, Copy, Debug)]
pub struct UseCaseOptions {
    /// How many ways of losing writes are tried at each change.
    pub cuts_per_change: u64,
    /// The power is cut at every so manieth change.
    pub stride: u64,
    /// The tools of the file system and the image judge every so manieth state.
    pub judged_every: u64,
}

impl UseCase {
    /// A disk on which `seed` scattered the files.
    pub fn new(kind: UseCaseKind, seed: u64) -> Self {
        let subject = kind.volume.subject();
        let scenario = Scenario::new(&subject, seed, 3);
        let scattered = scenario.disk_after(scenario.batch_count());
        let disk = convert(kind, &subject.volume_of(scattered));
        let digest = subject.check(scattered).expect("it is sound");
        Self { kind, seed, disk, digest }
    }

    /// What is done with what.
    pub fn kind(&self) -> UseCaseKind {
        self.kind
    }

    /// The image's file.
    pub fn bytes(&self) -> Vec<u8> {
        self.disk.to_vec()
    }

    fn run(&self, host: &SimHost, dry_run: bool) -> Result<()> {
        let (disk, open) = (DISK.into(), self.open_options());
        match self.kind.asked {
            Asked::Defrag(goal) => {
                let options = defrag::Options { disk, open, goal, dry_run, ..defrag::Options::default() };
                defrag::run_on(host, &options, &Unwatched)?.ended
            }
            asked => {
                let moves = compact::Move::Always;
                let defrag = asked == Asked::CompactDefrag;
                let options =
                    compact::Options { disk, open, moves, defrag, dry_run, ..compact::Options::default() };
                compact::run_on(host, &options, &Unwatched)?.ended
            }
        }
    }

    fn open_options(&self) -> leandisk::OpenOptions {
        leandisk::OpenOptions { format: Some(self.kind.format), ..leandisk::OpenOptions::default() }
    }

    /// Whether a batch was finished.
    fn recover(&self, host: &SimHost) -> Result<bool> {
        let options = recover::Options { disk: DISK.into(), open: self.open_options(), journal: None };
        Ok(recover::run_on(host, &options)?.outcome() == "finished")
    }

    /// Every name and every byte is what it was, and the volume is sound.
    fn check(&self, host: &SimHost) -> Result<(), String> {
        let volume = self.volume(host).map_err(|error| format!("the disk cannot be opened: {error}"))?;
        let digest = self.kind.volume.check(&volume).map_err(|error| format!("the volume: {error}"))?;
        if digest != self.digest {
            return Err("a file is not what it was".into());
        }
        verify::volume::check(&volume).map(drop).map_err(|error| format!("the volume: {error}"))
    }

    fn volume(&self, host: &SimHost) -> Result<filesystem::Source> {
        let file = host.open(Path::new(DISK), Caching::PageCache)?;
        let chain = Chain::open(file, OpenOptions { format: Some(self.kind.format) }, &NoFiles)?;
        let stack = Stack::open(chain)?;
        let volume = stack.volumes().first().ok_or_else(|| Error::mismatch("the volume is not found"))?;
        Ok(volume.source.clone())
    }

    /// What other programs say of image and volume.
    fn judge(&self, host: &SimHost) -> Result<(), String> {
        let volume = self.volume(host).map_err(|error| error.to_string())?;
        let mut bytes = vec![0; usize::try_from(volume.len_bytes()).expect("small")];
        volume.read_at(extent::Offset::ZERO, &mut bytes).map_err(|error| error.to_string())?;
        self.kind.volume.judge(&bytes)?;
        // QEMU checks these two, and repairs nothing.
        let (driver, _) = self.kind.driver();
        if !matches!(self.kind.format, Format::Qcow2 | Format::Vdi) {
            return Ok(());
        }
        let dir = scratch();
        let path = dir.path().join("image");
        std::fs::write(&path, host.pages(DISK).to_vec()).unwrap();
        let output = testkit::as_root("qemu-img", &["check", "-f", driver, path.to_str().unwrap()]);
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("qemu-img check: {}", String::from_utf8_lossy(&output.stdout))),
        }
    }
}

fn says_how_to_recover(error: &Error) -> bool {
    error.hint_text().is_some_and(|hint| hint.contains("leandisk recover"))
}

/// An image of this volume.
fn convert(kind: UseCaseKind, volume: &[u8]) -> Pages {
    if kind.format == Format::Raw {
        return Pages::new(volume);
    }
    let dir = scratch();
    let (raw, path) = (dir.path().join("raw"), dir.path().join("image"));
    std::fs::write(&raw, volume).unwrap();
    let (driver, options) = kind.driver();
    let (raw, target) = (raw.to_str().unwrap(), path.to_str().unwrap());
    run("qemu-img", &["convert", "-f", "raw", "-O", driver, "-o", options, raw, target]);
    Pages::new(&std::fs::read(&path).unwrap())
}

/// Cuts the power at changes of the use case.
pub fn explore_use_case(use_case: &UseCase, options: UseCaseOptions) -> Result<Explored, Violation> {
    let mut explorer = Explorer { use_case, options, explored: Explored::default() };
    let stride = options.stride.max(1);
    let mut change = 1 + use_case.seed % stride;
    while explorer.cut_at(change).map_err(|text| Violation { seed: use_case.seed, text })? {
        change += stride;
        explorer.explored.changes += 1;
    }
    Ok(explorer.explored)
}

struct Explorer<'a> {
    use_case: &'a UseCase,
    options: UseCaseOptions,
    explored: Explored,
}

impl Explorer<'_> {
    /// Cuts at one change; `false` if the use case was over before.
    fn cut_at(&mut self, change: u64) -> Result<bool, String> {
        let host = SimHost::new(DISK, self.use_case.disk.clone());
        host.machine.die_at_change(change);
        let result = self.use_case.run(&host, false);
        if let Err(error) = &result
            && host.machine.changes() < change
        {
            return Err(format!("it fails by itself: {error:?}"));
        }
        let mut random = Random::new(self.use_case.seed ^ change.rotate_left(32));
        for _ in 0..self.options.cuts_per_change {
            let seed = random.next_u64();
            let left = if random.below(4) == 0 { host.killed() } else { host.cut(seed) };
            let is_over = result.is_ok();
            self.after(&left, is_over, seed)
                .map_err(|text| format!("power cut at change {change}, cut {seed:#x}: {text}"))?;
            self.explored.states += 1;
        }
        Ok(result.is_err())
    }

    /// Lets one operation fail; `false` if the use case was over before.
    fn fail_at(&mut self, number: u64, kind: io::ErrorKind) -> Result<bool, String> {
        let host = SimHost::new(DISK, self.use_case.disk.clone());
        host.machine.fail_operation(number, kind);
        let result = self.use_case.run(&host, false);
        if host.machine.operations() < number {
            return result.map(|()| false).map_err(|error| format!("it fails by itself: {error:?}"));
        }
        host.machine.heal();
        self.explored.states += 1;
        let is_pending = !matches!(host.journal_standing(Path::new(DISK)), journal::Standing::Absent);
        match result {
            Err(error) if is_pending && !says_how_to_recover(&error) => {
                Err(format!("nothing says what to do next: {error:?}"))
            }
            Ok(()) if is_pending => Err("the journal is there after the change is over".into()),
            _ => self.recovered(&host, number).map(|_| true),
        }
    }

    fn after(&mut self, left: &SimHost, is_over: bool, seed: u64) -> Result<(), String> {
        let before = left.killed();
        let is_pending = !matches!(left.journal_standing(Path::new(DISK)), journal::Standing::Absent);
        if is_pending && is_over {
            return Err("the journal is there after the change is over".into());
        }
        if is_pending {
            self.refuses(left)?;
        }
        let changes = self.recovered(left, seed)?;
        let mut random = Random::new(seed);
        if changes == 0 || random.coin() {
            return Ok(());
        }
        self.explored.second_cuts += 1;
        let at = 1 + random.below(changes);
        before.machine.die_at_change(at);
        _ = self.use_case.recover(&before);
        let seed = random.next_u64();
        let left = if random.coin() { before.killed() } else { before.cut(seed) };
        self.recovered(&left, seed)
            .map(drop)
            .map_err(|text| format!("second cut at change {at} of the recovery: {text}"))
    }

    /// As long as there is a journal.
    fn refuses(&self, host: &SimHost) -> Result<(), String> {
        let options = self.use_case.open_options();
        let opened = OpenDisk::open_on(host, Path::new(DISK), &options, Caching::PageCache).map(drop);
        for result in [opened, self.use_case.run(host, true), self.use_case.run(host, false)] {
            match result {
                Err(error) if error.kind() == ErrorKind::Refused => {}
                other => return Err(format!("a disk with a journal is taken for one without: {other:?}")),
            }
        }
        Ok(())
    }

    /// Recovers, and says how many changes that made.
    fn recovered(&mut self, host: &SimHost, seed: u64) -> Result<u64, String> {
        let recovered =
            self.use_case.recover(host).map_err(|error| format!("the recovery fails: {error:?}"))?;
        self.explored.redone += u64::from(recovered);
        let changes = host.machine.changes();
        // What is recovered is on stable storage.
        let left = host.cut(seed);
        let names = left.folders.names();
        if names != [Path::new(DISK)] {
            return Err(format!("the recovery leaves {names:?}"));
        }
        self.use_case.check(&left)?;
        self.use_case.run(&left, true).map_err(|error| format!("it cannot be changed again: {error:?}"))?;
        let number = self.explored.states + self.explored.second_cuts;
        if number.is_multiple_of(self.options.judged_every) {
            self.use_case.judge(&left)?;
            self.use_case.run(&left, false).map_err(|error| format!("the next run fails: {error:?}"))?;
            self.use_case.check(&left)?;
        }
        Ok(changes)
    }
}

/// Makes every so manieth operation of the use case fail once, reads included, with an I/O error or for lack of space.
pub fn explore_use_case_faults(use_case: &UseCase, stride: u64) -> Result<Explored, Violation> {
    let options = UseCaseOptions { cuts_per_change: 1, stride, judged_every: 256 };
    let mut explorer = Explorer { use_case, options, explored: Explored::default() };
    for kind in [io::ErrorKind::Other, io::ErrorKind::StorageFull] {
        let mut number = 1 + use_case.seed % stride.max(1);
        while explorer.fail_at(number, kind).map_err(|text| Violation {
            seed: use_case.seed,
            text: format!("{kind} at operation {number}: {text}"),
        })? {
            number += stride.max(1);
        }
    }
    Ok(explorer.explored)
}

/// What a run leaves that nobody interrupts: what the tools say of it, and that nothing is left to do.
pub fn run_undisturbed(use_case: &UseCase) -> Result<u64, String> {
    let host = SimHost::new(DISK, use_case.disk.clone());
    use_case.run(&host, false).map_err(|error| format!("{error:?}"))?;
    use_case.check(&host)?;
    use_case.judge(&host)?;
    Ok(host.machine.changes())
}
