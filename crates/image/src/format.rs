//! The formats by name.

use std::fmt;
use std::str::FromStr;

use block::Error;
use serde::{Deserialize, Serialize};

/// A container format.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// The virtual disk's bytes as they are.
    Raw,
    /// Microsoft Virtual PC and Hyper-V, generation 1.
    Vhd,
    /// Microsoft Hyper-V.
    Vhdx,
    /// VMware.
    Vmdk,
    /// QEMU.
    Qcow2,
    /// VirtualBox.
    Vdi,
}

impl Format {
    /// Every format, in the order in which probing tries them; raw, which anything could be, last.
    pub const ALL: [Self; 6] = [Self::Qcow2, Self::Vhdx, Self::Vmdk, Self::Vdi, Self::Vhd, Self::Raw];

    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Vhd => "vhd",
            Self::Vhdx => "vhdx",
            Self::Vmdk => "vmdk",
            Self::Qcow2 => "qcow2",
            Self::Vdi => "vdi",
        }
    }

    /// The format that a file name's extension stands for, if it stands for one.
    pub fn from_extension(extension: &str) -> Option<Self> {
        match extension.to_ascii_lowercase().as_str() {
            "raw" | "img" | "dd" | "bin" => Some(Self::Raw),
            "vhd" | "avhd" | "vpc" => Some(Self::Vhd),
            "vhdx" | "avhdx" => Some(Self::Vhdx),
            "vmdk" => Some(Self::Vmdk),
            "qcow2" | "qcow" => Some(Self::Qcow2),
            "vdi" => Some(Self::Vdi),
            _ => None,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| {
            Error::invalid("format name").field("it", name, "raw, vhd, vhdx, vmdk, qcow2 or vdi")
        })
    }
}
