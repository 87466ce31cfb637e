//! The power goes at any operation of the host, and any subset of what was not flushed is lost.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use block::{LiveDisk, Memory, Result, TargetFile};
use extent::VirtualSpan;
use image::live::LiveOptions;
use image::{Chain, OpenOptions};
use sim::{Random, SimDisk};
use testkit::{TestResolver, scratch};

use crate::files::{KINDS, Kind, check_by_qemu, contents_by_qemu, contents_of, create, kind_named};
use crate::model::{Step, any_step, carry_out, pattern, rounds};

const SECTOR_BYTES: usize = 512;

/// What each sector may hold after a cut: one byte throughout, as the steps write them.
#[derive(Clone)]
struct Allowed {
    /// If everything survives.
    now: Vec<BTreeSet<u8>>,
    /// Whatever survives of what came after the last flush.
    any: Vec<BTreeSet<u8>>,
}

impl Allowed {
    fn new(len_bytes: u64) -> Self {
        let sectors = usize::try_from(len_bytes).unwrap() / SECTOR_BYTES;
        let zeros = vec![BTreeSet::from([0]); sectors];
        Self { now: zeros.clone(), any: zeros }
    }

    fn sectors(span: VirtualSpan) -> std::ops::Range<usize> {
        let sector = |at: u64| usize::try_from(at).unwrap() / SECTOR_BYTES;
        sector(span.start().get())..sector(span.end().get())
    }

    /// The step may have been done, wholly or in part.
    fn begin(&mut self, step: &Step) {
        match step {
            Step::Write(span, seed) => {
                let bytes = pattern(*span, *seed);
                for (sector, bytes) in Self::sectors(*span).zip(bytes.chunks(SECTOR_BYTES)) {
                    self.now[sector] = BTreeSet::from([bytes[0]]);
                }
            }
            Step::Zero(span, _) => self.now[Self::sectors(*span)].fill(BTreeSet::from([0])),
            Step::Discard(span) => {
                self.now[Self::sectors(*span)].iter_mut().for_each(|now| _ = now.insert(0));
            }
            Step::Flush => {}
        }
        for (any, now) in self.any.iter_mut().zip(&self.now) {
            any.extend(now);
        }
    }

    fn flushed(&mut self) {
        self.any.clone_from(&self.now);
    }

    fn check(&self, bytes: &[u8]) -> Result<(), String> {
        for (sector, (bytes, any)) in bytes.chunks(SECTOR_BYTES).zip(&self.any).enumerate() {
            if bytes.iter().any(|byte| *byte != bytes[0]) || !any.contains(&bytes[0]) {
                return Err(format!("sector {sector} holds {:#x?}, allowed {any:#x?}", &bytes[..2]));
            }
        }
        Ok(())
    }
}

fn open(kind: Kind, machine: &Arc<SimDisk>) -> Result<Box<dyn LiveDisk>> {
    let options = OpenOptions { format: Some(kind.format) };
    let chain = Chain::open(machine.clone(), options, &TestResolver::default())?;
    image::live::open(chain, vec![machine.clone()], LiveOptions::default())
}

/// Runs the steps until the machine dies. What was asked of the disk, and what it may hold.
fn run_until_death(explorer: &Explorer, machine: &Arc<SimDisk>, allowed: &mut Allowed) -> Result<()> {
    let disk = open(explorer.kind, machine)?;
    for step in &explorer.steps {
        allowed.begin(step);
        carry_out(&*disk, step)?;
        if matches!(step, Step::Flush) {
            // Only what keeps the order within the image is left out.
            if !explorer.keeps_order {
                machine.leave_out_flushes(false);
                machine.flush()?;
                machine.leave_out_flushes(true);
            }
            allowed.flushed();
        }
    }
    disk.close()?;
    allowed.flushed();
    Ok(())
}

struct Explorer {
    kind: Kind,
    image: Vec<u8>,
    steps: Vec<Step>,
    virtual_bytes: u64,
    keeps_order: bool,
}

impl Explorer {
    fn new(kind: Kind, dir: &Path, seed: u64, count: usize) -> Self {
        let path = create(kind, dir);
        let virtual_bytes = crate::files::open(&path).len_bytes();
        let mut random = Random::new(seed);
        let mut steps: Vec<_> =
            std::iter::repeat_with(|| any_step(&mut random, virtual_bytes)).take(count).collect();
        // Enough flushes for something to be lost between them.
        steps.iter_mut().skip(3).step_by(5).for_each(|step| *step = Step::Flush);
        Self { kind, image: std::fs::read(&path).unwrap(), steps, virtual_bytes, keeps_order: true }
    }

    fn machine(&self, seed: u64) -> Arc<SimDisk> {
        let disk = SimDisk::with_contents(seed, self.image.clone());
        disk.leave_out_flushes(!self.keeps_order);
        Arc::new(disk)
    }

    /// Operations of the host that the steps take.
    fn operation_count(&self) -> u64 {
        let machine = self.machine(0);
        run_until_death(self, &machine, &mut Allowed::new(self.virtual_bytes)).unwrap();
        machine.counters().operations
    }

    /// The machine dies at operation `death`; then each cut is examined.
    fn explore(&self, death: u64, cuts: u64, by_qemu: Option<&Path>) -> Result<(), String> {
        let machine = self.machine(death);
        machine.die_at_operation(death);
        let mut allowed = Allowed::new(self.virtual_bytes);
        _ = run_until_death(self, &machine, &mut allowed);
        for cut in 0..cuts {
            let what = format!("{}: death at {death}, cut {cut}", self.kind.name);
            let bytes = machine.cut(cut).to_vec();
            let found = contents_of(Arc::new(Memory::new(bytes.clone())), self.kind.format)
                .map_err(|error| format!("{what}: {error:?}"))?;
            allowed.check(&found).map_err(|error| format!("{what}: {error}"))?;
            if let Some(dir) = by_qemu.filter(|_| cut == 0) {
                let path = dir.join(format!("cut.{}", self.kind.format));
                std::fs::write(&path, &bytes).unwrap();
                check_by_qemu(self.kind, &path, false);
                assert!(contents_by_qemu(self.kind, &path) == found, "{what}: what QEMU reads");
            }
            self.go_on(bytes, &found, &what);
        }
        Ok(())
    }

    /// What a cut left is taken into use again, written, and closed.
    fn go_on(&self, bytes: Vec<u8>, found: &[u8], what: &str) {
        let machine = Arc::new(SimDisk::with_contents(1, bytes));
        let disk = open(self.kind, &machine).unwrap_or_else(|error| panic!("{what}: {error:?}"));
        let mut expected = found.to_vec();
        for at in [0usize, 70_000 / 512 * 512, expected.len() - 512] {
            disk.write_at(extent::Offset::new(at as u64), &[0x77; 512]).unwrap();
            expected[at..at + 512].fill(0x77);
        }
        disk.close().unwrap();
        let found = contents_of(machine.clone(), self.kind.format).unwrap();
        assert!(found == expected, "{what}: after it went on");
    }
}

fn small(kind: Kind) -> Kind {
    Kind { size: 768 << 10, ..kind }
}

#[test]
fn whatever_a_cut_leaves_is_valid_and_holds_what_was_flushed() {
    // A flat VMDK is two files; its data is as raw.
    for kind in KINDS.iter().filter(|kind| kind.name != "vmdk-flat") {
        let dir = scratch();
        let explorer = Explorer::new(small(*kind), dir.path(), 3, 24);
        let operations = explorer.operation_count();
        // Large units make large files, which take their time to cut.
        let points = if explorer.image.len() > 4 << 20 { 4 } else { 16 } * rounds();
        for point in 0..points.min(operations) {
            let death = 1 + point * operations / points.min(operations);
            let by_qemu = (point % 8 == 0).then(|| dir.path());
            explorer.explore(death, 3, by_qemu).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

#[test]
fn without_order_a_cut_is_noticed() {
    // In the others a unit whose data is lost reads as the zeros that it had before.
    for name in ["qcow2-4k", "vhdx"] {
        let dir = scratch();
        let mut explorer = Explorer::new(small(kind_named(name)), dir.path(), 3, 24);
        explorer.keeps_order = false;
        let operations = explorer.operation_count();
        let caught = (1..=operations).any(|death| {
            // What panics is noticed too.
            let explored =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| explorer.explore(death, 4, None)));
            !matches!(explored, Ok(Ok(())))
        });
        assert!(caught, "{name}: nobody noticed that flushes were left out");
    }
}
