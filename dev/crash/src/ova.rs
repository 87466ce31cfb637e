//! Kills, power cuts and errors while an OVA is made of two disks, as the program runs it.
//!
//! What must hold at any moment: the name means what it meant before, or an OVA that is whole by its own manifest and holds both disks; and
//! the next attempt makes that, with nothing beside it.

use std::io;
use std::sync::Arc;

use appliance::{Archive, Manifest, Window, ovf};
use block::{HostFile, Memory, ReadAt, Result, TargetName};
use extent::VirtualOffset;
use image::{Chain, Format, NoFiles, OpenOptions};
use leandisk::{Unwatched, copy, copy_all};
use sim::{FileMarks, Pages, Random};

use crate::explore::{Explored, Violation};
use crate::host::SimHost;

const SOURCES: [&str; 2] = ["/disks/a", "/disks/b"];
const TARGET: &str = "/copies/target.ova";
const DISK_BYTES: usize = 256 << 10;
const BEFORE: &[u8] = b"what was there before";

/// Two disks, and an OVA to be made of them.
pub struct OvaSubject {
    seed: u64,
    disks: [Vec<u8>; 2],
}

impl OvaSubject {
    /// Disks whose contents follow from a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let disks = SOURCES.map(|_| {
            let mut bytes = vec![0; DISK_BYTES];
            let at = usize::try_from(random.below(40)).expect("small") * 4096;
            for sector in bytes[at..at + (16 << 10)].chunks_exact_mut(512) {
                sector.fill(random.next_u64().to_le_bytes()[0] | 1);
            }
            bytes
        });
        Self { seed, disks }
    }

    fn host(&self, has_target: bool) -> SimHost {
        let [a, b] = &self.disks;
        let host = SimHost::new(SOURCES[0], Pages::new(a)).with_file(SOURCES[1], Pages::new(b));
        let host = host.for_copies(self.seed, FileMarks::Marks);
        if has_target {
            host.target.put(TargetName::Target, BEFORE);
        }
        host
    }

    fn attempt(&self, host: &SimHost) -> Result<()> {
        let force = host.target.file(TargetName::Target).is_some();
        let open = leandisk::OpenOptions { format: Some(Format::Raw), ..leandisk::OpenOptions::default() };
        let options = copy_all::Options {
            sources: SOURCES.map(Into::into).to_vec(),
            into: TARGET.into(),
            copy: copy::Options { open, force, threads: Some(1), ..copy::Options::default() },
        };
        copy_all::run_on(host, &options, &Unwatched)?.ended
    }

    /// As a stranger reads it.
    fn is_whole(&self, bytes: Vec<u8>) -> bool {
        let read = || -> Result<bool> {
            let file: Arc<dyn HostFile> = Arc::new(Memory::named("target.ova", bytes));
            let archive = Archive::read(&*file)?;
            let window = |name: &str| {
                let span = archive.member(name).map(|member| member.span);
                span.map(|span| Window::new(file.clone(), span, name.into()))
            };
            let text = |name: &str| {
                let window = window(name)?;
                let mut bytes = vec![0; usize::try_from(window.len_bytes()).ok()?];
                window.read_at(extent::HostOffset::ZERO, &mut bytes).ok()?;
                String::from_utf8(bytes).ok()
            };
            let (Some(descriptor), Some(manifest)) = (text("target.ovf"), text("target.mf")) else {
                return Ok(false);
            };
            let manifest = Manifest::parse(&manifest)?;
            for name in ["target.ovf", "target-disk1.vmdk", "target-disk2.vmdk"] {
                let Some(window) = window(name) else { return Ok(false) };
                manifest.check(name, &window, &mut |_| Ok(()))?;
            }
            let disks = ovf::read(&descriptor)?.disks;
            for (disk, expected) in disks.iter().zip(&self.disks) {
                let Some(window) = window(&disk.file) else { return Ok(false) };
                let options = OpenOptions { format: Some(Format::Vmdk) };
                let chain = Chain::open(Arc::new(window), options, &NoFiles)?;
                let mut found = vec![0; usize::try_from(chain.len_bytes()).expect("small")];
                chain.read_at(VirtualOffset::ZERO, &mut found)?;
                if found != *expected {
                    return Ok(false);
                }
            }
            Ok(disks.len() == self.disks.len())
        };
        read().is_ok_and(|is_whole| is_whole)
    }

    fn check_name(&self, host: &SimHost, has_target: bool) -> Result<(), String> {
        let is_right = match host.target.pages(TargetName::Target) {
            None => !has_target,
            Some(pages) => (has_target && pages.to_vec() == BEFORE) || self.is_whole(pages.to_vec()),
        };
        if is_right { Ok(()) } else { Err("the name means neither what it did nor a whole OVA".into()) }
    }

    /// The next attempt makes it, and it lasts.
    fn finish(&self, left: &SimHost, seed: u64) -> Result<(), String> {
        let host = left.killed();
        self.attempt(&host).map_err(|error| format!("the next attempt: {error:?}"))?;
        for host in [host.killed(), host.cut(seed)] {
            let names = host.target.names();
            let is_whole =
                host.target.pages(TargetName::Target).is_some_and(|pages| self.is_whole(pages.to_vec()));
            if names != [TargetName::Target] || !is_whole {
                return Err(format!("the next attempt leaves {names:?}, whole: {is_whole}"));
            }
        }
        Ok(())
    }
}

/// Ends the making at every so manieth change, by a kill or a power cut, and makes every so manieth operation fail.
pub fn explore_ova(subject: &OvaSubject, stride: u64) -> Result<Explored, Violation> {
    let mut explored = Explored::default();
    for kind in [None, Some(io::ErrorKind::Other), Some(io::ErrorKind::StorageFull)] {
        let mut step = 1 + subject.seed % stride;
        loop {
            let told =
                |text| Violation { seed: subject.seed, text: format!("{kind:?} at step {step}: {text}") };
            let is_over = stop_at(subject, step, kind).map_err(told)?;
            explored.states += 1;
            if is_over {
                break;
            }
            explored.changes += 1;
            step += stride;
        }
    }
    Ok(explored)
}

/// `true` if it was over before.
fn stop_at(subject: &OvaSubject, step: u64, kind: Option<io::ErrorKind>) -> Result<bool, String> {
    let mut random = Random::new(subject.seed ^ step.rotate_left(32));
    let has_target = random.coin();
    let host = subject.host(has_target);
    match kind {
        None => host.machine.die_at_change(step),
        Some(kind) => host.machine.fail_operation(step, kind),
    }
    let result = subject.attempt(&host);
    let is_over = match kind {
        None => result.is_ok(),
        Some(_) => host.machine.operations() < step,
    };
    if kind.is_some() {
        host.machine.heal();
    }
    if let (Err(error), true) = (&result, is_over) {
        return Err(format!("it fails by itself: {error:?}"));
    }
    if kind.is_none() && result.is_err() && host.machine.changes() < step {
        return Err(format!("it fails by itself: {result:?}"));
    }
    subject.check_name(&host.killed(), has_target)?;
    let left = if random.coin() { host.killed() } else { host.cut(random.next_u64()) };
    subject.check_name(&left, has_target)?;
    subject.finish(&left, random.next_u64())?;
    Ok(is_over)
}
