//! A disk in use and its server, put together as `leandisk serve` does, but with parts left out on demand; and what its threads took.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use block::{Counted, LiveDisk, ReadAt, TargetFile};
use extent::Host as OfHost;
use image::live::LiveOptions;
use image::{Chain, Format, NoFiles, OpenOptions};
use os::{LiveFile, PreallocatedFile, preallocated};
use serve::Export;
use serve::monitor::Monitor;
use serve::nbd::{Listener, Options, Server};

/// How many there are for this program before it chooses among them.
static PROCESSORS: OnceLock<usize> = OnceLock::new();

/// Linux, `include/uapi/asm-generic/errno-base.h`.
const ENOENT: i32 = 2;
const ESRCH: i32 = 3;

/// How the host's file is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Host {
    /// Storage is reserved ahead.
    Reserved,
    /// The file system finds storage as writes need it.
    Plain,
}

/// A server at work.
pub(super) struct Served {
    server: Server,
    socket: PathBuf,
    disks: Vec<Arc<dyn LiveDisk>>,
    reserved: Option<Arc<PreallocatedFile>>,
}

impl Served {
    /// Serves `path` under each name, measured where there is a monitor. Only a raw disk can have more than one name.
    pub(super) fn start(
        path: &Path,
        format: Format,
        host: Host,
        exports: &[(&str, Option<Arc<Monitor>>)],
    ) -> Result<Self> {
        let file = Arc::new(LiveFile::open(path)?);
        let mut reserved = None;
        let mut disks = Vec::new();
        let mut list = Vec::new();
        for (name, monitor) in exports {
            let chain = Chain::open(file.clone(), OpenOptions { format: Some(format) }, &NoFiles)?;
            let growth_bytes = match format {
                Format::Raw => 0,
                _ => chain.len_bytes() + chain.len_bytes() / 256 + (2 << 20),
            };
            let mut target: Arc<dyn TargetFile> = file.clone();
            if host == Host::Reserved {
                let limit_bytes = ReadAt::<OfHost>::len_bytes(&*file).saturating_add(growth_bytes);
                let counted = monitor.clone();
                let on_continued = Box::new(move || {
                    counted.iter().for_each(|monitor| monitor.prevented_fragment());
                });
                let file = Arc::new(preallocated(file.clone(), limit_bytes, on_continued));
                target = file.clone();
                reserved = Some(file);
            }
            if let Some(monitor) = monitor {
                target = Arc::new(Counted::new(target, monitor.clone()));
            }
            let disk: Arc<dyn LiveDisk> =
                image::live::open(chain, vec![target], LiveOptions::default())?.into();
            let export = Export::new(*name, disk.clone());
            list.push(Arc::new(match monitor {
                Some(monitor) => export.monitored(monitor.clone()),
                None => export,
            }));
            disks.push(disk);
        }
        let socket = super::socket_of(path)?;
        let _ = fs::remove_file(&socket);
        let server = Server::start(vec![Listener::unix(&socket)?], list, Options::default())?;
        Ok(Self { server, socket, disks, reserved })
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Waits until no connection is left, and their threads are gone.
    pub(super) fn wait_for_silence(&self) {
        while self.server.connection_count() > 0 {
            sleep(Duration::from_micros(100));
        }
        // The count tells of the last thing that a thread does but ending.
        sleep(Duration::from_micros(500));
    }

    /// Ends as `leandisk serve` does.
    pub(super) fn stop(self) -> Result<()> {
        self.server.stop()?;
        for disk in &self.disks {
            disk.close()?;
        }
        self.reserved.iter().try_for_each(|file| file.give_back())?;
        Ok(())
    }
}

/// Has the calling thread, and all that it starts from here on, stay on a processor, so that none of the contenders has the luck to be
/// beside its client. Where there is no other, nothing happens.
pub(super) fn stay_on(processor: usize) -> Result<()> {
    if PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from)) < &2 {
        return Ok(());
    }
    let thread = fs::read_link("/proc/thread-self")?;
    let thread = thread.file_name().context("a thread's number")?;
    let mut command = Command::new("taskset");
    let output = command.args(["-c", "-p", &processor.to_string()]).arg(thread).output()?;
    ensure!(output.status.success(), "taskset: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Processor time so far of all threads of this process that live, but the calling one, which is the client.
pub(super) fn processor_seconds() -> Result<f64> {
    let own = fs::read_link("/proc/thread-self")?;
    let mut sum = 0.0;
    for thread in fs::read_dir("/proc/self/task")? {
        let thread = thread?;
        if own.file_name() != Some(&thread.file_name()) {
            sum += seconds_of(&thread.path())?;
        }
    }
    Ok(sum)
}

/// That of the calling thread.
pub(super) fn own_processor_seconds() -> Result<f64> {
    seconds_of(Path::new("/proc/thread-self"))
}

/// `Documentation/scheduler/sched-stats.rst`: the first field counts nanoseconds on a processor.
fn seconds_of(thread: &Path) -> Result<f64> {
    match fs::read_to_string(thread.join("schedstat")) {
        Ok(stat) => Ok(stat.split_whitespace().next().unwrap_or_default().parse::<f64>()? / 1e9),
        // It ended meanwhile, between two steps of this.
        Err(error) if matches!(error.raw_os_error(), Some(ENOENT | ESRCH)) => Ok(0.0),
        Err(error) => Err(error.into()),
    }
}
