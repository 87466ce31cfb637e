//! A machine that is started from a snapshot's disks, to see whether it boots.
//!
//! Invariants:
//! - the snapshot is only read; what the guest writes goes to files without a name;
//! - nothing of it has a name in the file system but the picture of its screen, which is there whole or not at all; QEMU and this process talk
//!   over pairs of sockets;
//! - QEMU does not outlive this process, however that ends.
//!
//! Absent on purpose: a network, and the acceleration of the host: the guest is not to reach anything, and need not be quick.

mod console;
mod machine;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use block::{Error, Result};
use report::{BootEnd, BootReport};
use repository::SnapshotDisk;
use vm::{Bus, Picture};

use crate::Observer;
use crate::output::OutputFile;
use console::Heard;
use machine::Machine;

const QEMU: &str = "qemu-system-x86_64";
/// A text that is waited for is found in what the console keeps.
const EXPECT_BYTES_MAX: usize = 1024;
/// How often it is asked whether the machine is off.
const LOOKS_EVERY: Duration = Duration::from_secs(1);
/// How soon a signal is noticed.
const STEP: Duration = Duration::from_millis(100);

/// How a machine is started, and what is waited for.
#[derive(Clone, Debug)]
pub struct BootOptions {
    /// For how long it runs at the most.
    pub time_max: Duration,
    /// A text on its serial console that says that it has booted; `None` for a login prompt, which need not come.
    pub expect: Option<String>,
    /// Where a picture of its screen goes: `.png` or `.ppm`.
    pub screenshot: Option<PathBuf>,
    /// Whether that replaces a file.
    pub force: bool,
    /// How the disks are attached.
    pub bus: Bus,
    /// Its memory.
    pub memory_mebibytes: u32,
    /// Its firmware; `None` for a BIOS.
    pub firmware: Option<PathBuf>,
}

impl BootOptions {
    /// `Mismatch` if what the user expects did not come.
    pub(super) fn verdict(&self, report: &BootReport) -> Result<()> {
        match &self.expect {
            Some(text) if report.expected.is_none() => Err(Error::mismatch(format!(
                "the serial console did not say '{}' within {:.1} s",
                text.escape_debug(),
                report.seconds
            ))
            .hint("--boot-seconds gives it more time; --boot-screenshot shows what its screen says")),
            _ => Ok(()),
        }
    }
}

/// The format that a picture's name says.
fn picture_of(path: &Path) -> Result<Picture> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("png") => Ok(Picture::Png),
        Some("ppm") => Ok(Picture::Pixmap),
        _ => Err(Error::invalid("a picture of the screen is a .png or a .ppm file").path(path.display())),
    }
}

/// A machine that can be started as far as is known before the disks are read.
pub(super) struct Prepared<'a> {
    options: &'a BootOptions,
    qemu: PathBuf,
    picture: Option<(Picture, OutputFile)>,
}

/// Looks for what is needed. `Unsupported` without QEMU.
pub(super) fn prepare(options: &BootOptions) -> Result<Prepared<'_>> {
    if options.expect.as_ref().is_some_and(|text| text.is_empty() || text.len() > EXPECT_BYTES_MAX) {
        return Err(Error::invalid(format!("--boot-expect takes 1 to {EXPECT_BYTES_MAX} bytes")));
    }
    let inputs: Vec<_> = options.firmware.as_deref().into_iter().collect();
    let picture = options.screenshot.as_deref().map(|path| {
        let format = picture_of(path)?;
        Ok::<_, Error>((format, OutputFile::prepare(path, options.force, &inputs)?))
    });
    let qemu = os::need_program(QEMU)?;
    Ok(Prepared { options, qemu, picture: picture.transpose()? })
}

impl Prepared<'_> {
    /// `Unsupported` if the machine has no places for so many disks.
    pub(super) fn check_disks(&self, count: usize) -> Result<()> {
        match (count, self.options.bus.disk_count_max()) {
            (0, _) => Err(Error::refused("the snapshot holds no disk to boot from")),
            (count, max) if count > max => {
                Err(Error::unsupported(format!("a machine with {count} such disks: it has places for {max}"))
                    .hint("name one: SNAPSHOT:DISK; or --boot-bus virtio"))
            }
            _ => Ok(()),
        }
    }

    /// Starts a machine from the disks, and looks at it until it has booted, is off, or its time is over.
    pub(super) fn run(&self, disks: Vec<SnapshotDisk>, observer: &dyn Observer) -> Result<BootReport> {
        let cancel = observer.cancel()?;
        let waiting = observer.waiting("booting the snapshot");
        let (mut machine, mut console) = Machine::start(&self.qemu, self.options, disks)?;
        let started = Instant::now();
        let mut looked = started;
        let ended = loop {
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::interrupted());
            }
            match console.listen(STEP)? {
                Heard::Expected => break BootEnd::Expected,
                Heard::Nothing => {}
                // Nobody is there any more who says something: the next look tells why.
                Heard::Closed => std::thread::sleep(STEP),
            }
            machine.check()?;
            if started.elapsed() >= self.options.time_max {
                break BootEnd::Time;
            }
            if looked.elapsed() >= LOOKS_EVERY {
                looked = Instant::now();
                if machine.is_off()? {
                    break BootEnd::Off;
                }
            }
        };
        let seconds = started.elapsed().as_secs_f64();
        let taken =
            self.picture.as_ref().map(|(format, file)| Ok::<_, Error>((file, machine.picture(*format)?)));
        let taken = taken.transpose()?;
        drop((machine, waiting));
        if let Some((file, picture)) = taken {
            file.write(observer, |out| std::io::Write::write_all(out, &picture))?;
        }
        let screenshot = self.options.screenshot.as_ref().map(|path| path.display().to_string());
        let expected = (ended == BootEnd::Expected).then(|| console.expected().to_owned());
        Ok(BootReport { ended, seconds, expected, serial_tail: console.tail(), screenshot })
    }
}
