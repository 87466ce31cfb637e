//! QEMU, started with the disks of a snapshot, which it reads from this process, and files without a name over them.

use std::cmp::Reverse;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use block::{Error, HostFile, Memory, ReadAt, Result};
use engine::{CreateJob, Provision};
use extent::HostOffset;
use image::qcow2::Qcow2Writer;
use image::{AnyWriter, Chain, Format, NoFiles};
use repository::SnapshotDisk;
use serve::Export;
use serve::nbd::{Options as ServerOptions, Server};
use vm::{Picture, RunId, Socket, Trial, TrialDisk, TrialState};

use super::BootOptions;
use super::console::Console;
use crate::Unwatched;
use crate::create::new_image;
use crate::serve::read_only;

/// How long QEMU may take to start.
const START_MAX: Duration = Duration::from_secs(60);
/// So much of what QEMU complained of is told.
const SAID_MAX: usize = 500;

/// A machine at work. It goes with this value.
pub(super) struct Machine {
    // Dropped first: nobody reads the disks any more then.
    qemu: Qemu,
    monitor: Socket,
    /// What the guest may write to each disk.
    overlay_bytes_max: u64,
    _server: Server,
}

impl Machine {
    /// Starts it. Its serial console is the second value.
    pub(super) fn start(
        program: &Path,
        options: &BootOptions,
        disks: Vec<SnapshotDisk>,
    ) -> Result<(Self, Console)> {
        let exports =
            boot_disk_first(disks)?.into_iter().enumerate().map(|(number, disk)| export(number, disk));
        let exports = exports.collect::<Result<Vec<_>>>()?;
        let server = Server::start(Vec::new(), exports.clone(), ServerOptions::default())?;
        let mut files = HandedDown::default();
        let (monitor, serial) = (files.socket()?, files.socket()?);
        let mut attached = Vec::new();
        for export in &exports {
            let (connection, stored) = files.socket()?;
            server.let_in(connection)?;
            let overlay = files.add(overlay(export.len_bytes())?.into());
            attached.push(TrialDisk { stored, export: export.name().to_owned(), overlay });
        }
        let name = RunId::new()?.to_string();
        let overlay_bytes_max = overlay_bytes_max(attached.len())?;
        let trial = Trial {
            name: &name,
            disks: &attached,
            bus: options.bus,
            memory_mebibytes: options.memory_mebibytes,
            firmware: options.firmware.as_deref(),
            monitor: monitor.1,
            serial: serial.1,
        };
        let mut qemu = Qemu::start(program, &trial, files, overlay_bytes_max)?;
        let monitor = Socket::over(monitor.0, START_MAX).map_err(|error| qemu.explain(error))?;
        let console = Console::new(serial.0, options.expect.clone());
        Ok((Self { qemu, monitor, overlay_bytes_max, _server: server }, console))
    }

    /// An error if QEMU ended.
    pub(super) fn check(&mut self) -> Result<()> {
        self.qemu.check()
    }

    /// Whether the guest switched it off. An error if what the guest wrote could not be kept.
    pub(super) fn is_off(&mut self) -> Result<bool> {
        match vm::trial_state(&mut self.monitor).map_err(|error| self.qemu.explain(error))? {
            TrialState::Running => Ok(false),
            TrialState::Off => Ok(true),
            TrialState::WriteFailed => {
                let (bytes, folder) = (self.overlay_bytes_max, std::env::temp_dir());
                // QEMU does not tell for which reason.
                let stopped = std::io::Error::other("QEMU's write failed");
                Err(Error::io("keep what the guest writes", stopped).path(folder.display()).hint(format!(
                    "a disk may take {bytes} bytes of this folder, half of what was free there for all: \
                     TMPDIR names another"
                )))
            }
        }
    }

    /// Its screen.
    pub(super) fn picture(&mut self, format: Picture) -> Result<Vec<u8>> {
        let failed = |error| Error::io("take a picture of the screen", error);
        let mut file = tempfile::tempfile().map_err(failed)?;
        // QEMU takes a file for writing only if it is open for writing alone.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let written = OpenOptions::new().write(true).open(path).map_err(failed)?;
        vm::take_picture(&mut self.monitor, format, written.as_fd())
            .map_err(|error| self.qemu.explain(error))?;
        let mut picture = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut picture)).map_err(failed)?;
        Ok(picture)
    }
}

/// A BIOS boots from the first disk and from no other. One that is likely meant goes before those that hold data.
fn boot_disk_first(disks: Vec<SnapshotDisk>) -> Result<Vec<SnapshotDisk>> {
    let mut sorted = Vec::new();
    for disk in disks {
        let mut sector = [0; 512];
        if disk.len_bytes() >= 512 {
            disk.read_at(HostOffset::ZERO, &mut sector)?;
        }
        sorted.push((likelihood_to_boot(&sector), disk));
    }
    sorted.sort_by_key(|(likelihood, _)| Reverse(*likelihood));
    Ok(sorted.into_iter().map(|(_, disk)| disk).collect())
}

/// By the master boot record: 440 bytes of code, four entries of 16 bytes from 446 on, of which the first byte is 0x80 for the active partition,
/// and a signature. What partitions a disk for data may put code there as well, but makes nothing active.
fn likelihood_to_boot(sector: &[u8; 512]) -> u8 {
    let has_code = sector[510..] == [0x55, 0xaa] && sector[..440].iter().any(|byte| *byte != 0);
    let is_active = (446..510).step_by(16).any(|entry| sector[entry] == 0x80);
    u8::from(has_code) + u8::from(has_code && is_active)
}

/// A disk of the snapshot, to be read.
fn export(number: usize, disk: SnapshotDisk) -> Result<Arc<Export>> {
    let file: Arc<dyn HostFile> = Arc::new(disk);
    let chain = Chain::open(file, image::OpenOptions { format: Some(Format::Raw) }, &NoFiles)?;
    Ok(Arc::new(Export::new(format!("disk{number}"), read_only(chain)).read_only()))
}

/// A QCOW2 image in which nothing is written, in a file without a name.
fn overlay(virtual_bytes: u64) -> Result<File> {
    let made = Memory::new(Vec::new());
    let writer = AnyWriter::Qcow2(Qcow2Writer::new(new_image(Path::new("overlay"), virtual_bytes))?);
    let provision = Provision::Thin;
    CreateJob { writer, target: &made, virtual_bytes, provision, thread_count: 1 }.run(&Unwatched)?;
    let written = tempfile::tempfile().and_then(|mut file| file.write_all(&made.to_vec()).map(|()| file));
    written.map_err(|error| Error::io("make a file for what the guest writes", error))
}

/// Half of what is free where overlays lie, for `count` of them: others need room there, too.
fn overlay_bytes_max(count: usize) -> Result<u64> {
    let count = u64::try_from(count).unwrap_or(u64::MAX).max(1);
    Ok(os::free_bytes(&std::env::temp_dir())? / 2 / count)
}

/// Files that QEMU is started with. They keep their numbers.
#[derive(Default)]
struct HandedDown(Vec<OwnedFd>);

impl HandedDown {
    fn add(&mut self, file: OwnedFd) -> i32 {
        let number = file.as_raw_fd();
        self.0.push(file);
        number
    }

    /// A connection: its end here, and the number of the other.
    fn socket(&mut self) -> Result<(UnixStream, i32)> {
        let (here, there) = UnixStream::pair().map_err(|error| Error::io("make a pair of sockets", error))?;
        Ok((here, self.add(there.into())))
    }
}

/// QEMU's process. It is killed when this value goes, and when this process does.
struct Qemu {
    child: Child,
    /// What it complains of.
    complaints: File,
}

impl Qemu {
    fn start(program: &Path, trial: &Trial<'_>, files: HandedDown, file_bytes_max: u64) -> Result<Self> {
        let failed = |error| Error::io("start", error).path(program.display());
        let complaints = tempfile::tempfile().map_err(failed)?;
        let mut command = Command::new(program);
        // A terminal's signals are for this process, which ends it.
        command.args(trial.arguments()).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        command.stderr(complaints.try_clone().map_err(failed)?);
        os::with_file_bytes_max(&mut command, file_bytes_max);
        os::with_files(os::killed_with_parent(&mut command), files.0);
        // With the command go the ends of the sockets that are QEMU's alone.
        Ok(Self { child: command.spawn().map_err(failed)?, complaints })
    }

    fn check(&mut self) -> Result<()> {
        let ended = self.child.try_wait().map_err(|error| Error::io("wait for QEMU", error))?;
        let Some(status) = ended else { return Ok(()) };
        let mut said = String::new();
        // What cannot be read is not told.
        let _ = self.complaints.rewind().and_then(|()| self.complaints.read_to_string(&mut said));
        let said: String = said.trim().chars().take(SAID_MAX).collect();
        Err(Error::io(format!("QEMU failed ({status})"), std::io::Error::other(said)))
    }

    /// What QEMU says itself, if it ended, is a better reason than that it does not answer.
    fn explain(&mut self, error: Error) -> Error {
        // It closes its sockets a moment before it is gone.
        if error.io_source().is_some() {
            std::thread::sleep(super::STEP);
        }
        self.check().err().unwrap_or(error)
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_with_an_active_partition_is_more_likely_to_boot_than_one_with_code() {
        let mut sector = [0; 512];
        assert_eq!(likelihood_to_boot(&sector), 0);
        sector[446 + 16] = 0x80;
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(likelihood_to_boot(&sector), 0);
        sector[0] = 0xeb;
        assert_eq!(likelihood_to_boot(&sector), 2);
        sector[446 + 16] = 0;
        assert_eq!(likelihood_to_boot(&sector), 1);
        sector[511] = 0;
        assert_eq!(likelihood_to_boot(&sector), 0);
    }

    #[test]
    fn an_overlay_is_an_image_in_which_nothing_is_written() {
        let dir = testkit::scratch();
        let path = dir.path().join("overlay.qcow2");
        std::io::copy(&mut rewound(overlay(3 << 20).unwrap()), &mut File::create(&path).unwrap()).unwrap();
        testkit::run("qemu-img", &["check", "-q", "-f", "qcow2", path.to_str().unwrap()]);
    }

    fn rewound(mut file: File) -> File {
        file.rewind().unwrap();
        file
    }
}
