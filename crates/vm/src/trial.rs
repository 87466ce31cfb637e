//! A machine that boots disks once, to see whether they do: QEMU's command line, and what is asked of it meanwhile.
//!
//! Invariants: it has no network, no name in the file system, and no hardware of the host; what its guest writes goes to files that are handed
//! down to it. All that it is connected to are sockets that it is given.
//!
//! Absent on purpose: starting it and ending it.

use std::ffi::OsString;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::Path;

use block::{Error, Result};
use serde_json::{Value, json};

use crate::monitor::{Monitor, strange};

/// The disks' controller, as far as guests care: one for which they have no driver leaves them without their disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Bus {
    /// AHCI: systems of the last twenty years have a driver for it, except for some that are made for virtual machines alone.
    #[default]
    Sata,
    /// The first controller of IBM's and Intel's: for older systems.
    Ide,
    /// QEMU's own.
    Virtio,
}

impl Bus {
    /// How many disks it has places for.
    pub fn disk_count_max(self) -> usize {
        match self {
            Self::Sata => 6,
            Self::Ide => 4,
            Self::Virtio => 16,
        }
    }

    fn machine(self) -> &'static str {
        match self {
            Self::Ide => "pc",
            Self::Sata | Self::Virtio => "q35",
        }
    }

    /// QEMU's option for the disk with this number, from 0.
    fn device(self, disk: usize) -> String {
        let place = match self {
            Self::Sata => format!("ide-hd,bus=ide.{disk}"),
            Self::Ide => format!("ide-hd,bus=ide.{},unit={}", disk / 2, disk % 2),
            Self::Virtio => "virtio-blk-pci".to_owned(),
        };
        // What cannot be kept stops the machine.
        format!("{place},drive=disk{disk},bootindex={disk},werror=stop")
    }
}

/// A disk of it. The numbers are those of files that QEMU is started with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrialDisk {
    /// A connection to an NBD server.
    pub stored: RawFd,
    /// The export there, which is only read.
    pub export: String,
    /// A QCOW2 image without contents, as large as the export: what the guest writes.
    pub overlay: RawFd,
}

/// A machine that is thrown away afterwards.
#[derive(Debug)]
pub struct Trial<'a> {
    /// What it is called in lists of processes.
    pub name: &'a str,
    /// Its disks. A BIOS boots from the first, other firmware tries them in their order.
    pub disks: &'a [TrialDisk],
    /// How they are attached.
    pub bus: Bus,
    /// Its memory.
    pub memory_mebibytes: u32,
    /// Its firmware; `None` for QEMU's own, a BIOS.
    pub firmware: Option<&'a Path>,
    /// A connection that it answers commands on.
    pub monitor: RawFd,
    /// A connection that is its serial console.
    pub serial: RawFd,
}

impl Trial<'_> {
    /// QEMU's arguments.
    pub fn arguments(&self) -> Vec<OsString> {
        let fixed = "-nodefaults -no-user-config -accel tcg -display none -vga std -nic none -no-shutdown";
        let mut arguments: Vec<OsString> = fixed.split(' ').map(OsString::from).collect();
        let mut add = |option: &str, value: String| arguments.extend([option.into(), value.into()]);
        add("-name", self.name.to_owned());
        add("-machine", self.bus.machine().to_owned());
        add("-m", self.memory_mebibytes.to_string());
        add("-chardev", format!("socket,id=monitor,fd={}", self.monitor));
        add("-mon", "chardev=monitor,mode=control".to_owned());
        add("-chardev", format!("socket,id=serial,fd={}", self.serial));
        add("-serial", "chardev:serial".to_owned());
        for (number, disk) in self.disks.iter().enumerate() {
            add("-add-fd", format!("fd={},set={number}", disk.overlay));
            for node in nodes(number, disk) {
                add("-blockdev", node.to_string());
            }
            add("-device", self.bus.device(number));
        }
        if let Some(path) = self.firmware {
            arguments.extend(["-bios".into(), path.into()]);
        }
        arguments
    }
}

/// What is stored, and what is written over it.
fn nodes(number: usize, disk: &TrialDisk) -> [Value; 2] {
    let stored = format!("stored{number}");
    [
        json!({
            "driver": "nbd", "node-name": stored, "read-only": true, "export": disk.export,
            "server": { "type": "fd", "str": disk.stored.to_string() },
        }),
        json!({
            "driver": "qcow2", "node-name": format!("disk{number}"), "backing": stored, "discard": "unmap",
            "file": { "driver": "file", "filename": format!("/dev/fdset/{number}"), "locking": "off" },
        }),
    ]
}

/// Whether it goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TrialState {
    /// It runs.
    Running,
    /// The guest has switched it off, or cannot go on.
    Off,
    /// What the guest wrote could not be kept.
    WriteFailed,
}

/// How it is.
pub fn trial_state(monitor: &mut dyn Monitor) -> Result<TrialState> {
    let status = monitor.ask("query-status", json!({}))?;
    Ok(match status["status"].as_str().ok_or_else(|| strange("query-status"))? {
        "io-error" => TrialState::WriteFailed,
        "shutdown" | "guest-panicked" | "internal-error" => TrialState::Off,
        _ => TrialState::Running,
    })
}

/// The format of a picture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Picture {
    /// A portable pixmap, which every QEMU makes.
    Pixmap,
    /// PNG, which QEMU makes from version 7.1 on.
    Png,
}

/// Has the screen be written to the file, which is open for writing alone.
pub fn take_picture(monitor: &mut dyn Monitor, picture: Picture, file: BorrowedFd<'_>) -> Result<()> {
    let added = monitor.hand("add-fd", json!({}), file)?;
    let set = added["fdset-id"].as_u64().ok_or_else(|| strange("add-fd"))?;
    let mut arguments = json!({ "filename": format!("/dev/fdset/{set}") });
    if picture == Picture::Png {
        arguments["format"] = json!("png");
    }
    let taken = monitor.ask("screendump", arguments);
    taken.map(drop).map_err(|error| {
        let refused = Error::refused(format!("QEMU made no picture of the screen: {error}")).because(error);
        match picture {
            Picture::Pixmap => refused,
            Picture::Png => refused.hint("QEMU makes .png from version 7.1 on, and .ppm at any"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Command;

    struct Answers(Vec<Value>, Vec<String>);

    impl Monitor for Answers {
        fn execute(&mut self, command: Command<'_>) -> Result<Value> {
            self.1.push(format!("{} {}", command.name, command.arguments));
            Ok(self.0.remove(0))
        }
    }

    #[test]
    fn a_machine_has_nothing_but_what_it_is_given() {
        let disks = [
            TrialDisk { stored: 7, export: "a,b".into(), overlay: 8 },
            TrialDisk { stored: 9, export: "c".into(), overlay: 10 },
        ];
        let trial = Trial {
            name: "leandisk-x",
            disks: &disks,
            bus: Bus::Ide,
            memory_mebibytes: 512,
            firmware: Some(Path::new("/f,w")),
            monitor: 5,
            serial: 6,
        };
        let arguments = trial.arguments();
        let text: Vec<_> = arguments.iter().map(|argument| argument.to_str().unwrap()).collect();
        for pair in [
            ["-nic", "none"],
            ["-accel", "tcg"],
            ["-add-fd", "fd=8,set=0"],
            ["-device", "ide-hd,bus=ide.0,unit=1,drive=disk1,bootindex=1,werror=stop"],
            ["-bios", "/f,w"],
        ] {
            assert!(text.windows(2).any(|two| two == pair), "{pair:?} {text:?}");
        }
        assert!(text.iter().any(|argument| argument.contains("\"export\":\"a,b\"")), "{text:?}");
        assert_eq!(Bus::Sata.device(3), "ide-hd,bus=ide.3,drive=disk3,bootindex=3,werror=stop");
    }

    #[test]
    fn a_machine_that_is_off_is_told_from_one_that_runs() {
        let state = |status: Value| trial_state(&mut Answers(vec![status], Vec::new()));
        assert_eq!(state(json!({ "status": "running" })).unwrap(), TrialState::Running);
        assert_eq!(state(json!({ "status": "shutdown" })).unwrap(), TrialState::Off);
        assert_eq!(state(json!({ "status": "io-error" })).unwrap(), TrialState::WriteFailed);
        state(json!({})).unwrap_err();
    }

    #[test]
    fn a_picture_goes_to_the_file_that_was_handed_over() {
        let file = tempfile::tempfile().unwrap();
        let mut asked = Answers(vec![json!({ "fdset-id": 4 }), json!({})], Vec::new());
        take_picture(&mut asked, Picture::Pixmap, std::os::fd::AsFd::as_fd(&file)).unwrap();
        assert_eq!(asked.1, ["add-fd {}", "screendump {\"filename\":\"/dev/fdset/4\"}"]);
    }
}
