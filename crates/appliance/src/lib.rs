//! Appliances: what describes a whole virtual machine, read as a list of its disks; and how a new one is laid out.
//!
//! An OVA is a tar archive ([`Archive`]) whose members are read where they lie ([`Window`]): a descriptor ([`ovf`]), a manifest of digests
//! ([`Manifest`]) and disks. An OVF is the same as files of a folder. Their files may lie in chunks ([`Joined`]) and be compressed
//! ([`Gunzipped`]). VMware's `.vmx` ([`vmx`]) and libvirt's domain XML ([`domain`]) name
//! disks of the host.
//!
//! Invariants:
//! - nothing is opened here: a description names files, and whoever opens them decides which are granted;
//! - counts, lengths and depths have bounds, and memory is taken within them; XML is read without a document type and without entities of
//!   its own;
//! - a member's name is a relative path without `..`, and no member is a link.
//!
//! Absent on purpose: what a machine has besides disks, and unpacking.

mod archive;
mod corrupt;
pub mod domain;
mod gzip;
mod joined;
mod layout;
mod manifest;
pub mod ovf;
pub mod vmx;
mod window;
mod write;
mod xml;

use std::num::NonZeroU64;
use std::path::Path;

use block::{Error, Result};
use image::Format;

pub use archive::{Archive, Member};
pub use corrupt::Corrupt;
pub use gzip::{Gunzipped, GzipIndex};
pub use joined::Joined;
pub use manifest::{Digests, Manifest};
pub use window::Window;
pub use write::{
    Descriptor, NewDisk, NewMember, end_bytes, header, manifest_len_bytes, manifest_text, padded_bytes,
};

/// The longest descriptor, manifest or configuration that is read.
pub const TEXT_BYTES_MAX: u64 = 8 << 20;
/// The most disks of an appliance: more than any hypervisor attaches.
pub const DISK_COUNT_MAX: usize = 1024;

/// What describes an appliance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A tar archive with an OVF descriptor.
    Ova,
    /// An OVF descriptor with its files beside it.
    Ovf,
    /// A configuration of VMware's.
    Vmx,
    /// The XML of a domain of libvirt's.
    Domain,
}

impl Kind {
    /// The kind that a file's name promises.
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "ova" => Some(Self::Ova),
            "ovf" => Some(Self::Ovf),
            "vmx" => Some(Self::Vmx),
            "xml" => Some(Self::Domain),
            _ => None,
        }
    }

    /// The word in documents.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ova => "ova",
            Self::Ovf => "ovf",
            Self::Vmx => "vmx",
            Self::Domain => "libvirt",
        }
    }
}

/// A disk of an appliance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disk {
    /// What the description calls it.
    pub id: String,
    /// The file that it names: a member of the archive, or a file of the host, counted from the description's folder.
    pub file: String,
    /// The format that the description states.
    pub format: Option<Format>,
    /// How large the description says that the disk is.
    pub capacity: Option<Capacity>,
}

impl Disk {
    /// How much its file may unpack to: what a disk of its size takes with tables, in whatever format.
    pub fn unpacked_bytes_max(&self) -> u64 {
        const UNKNOWN_BYTES_MAX: u64 = 1 << 46;
        const SOME_BYTES: u64 = 64 << 20;
        let of = |capacity: Capacity| (capacity.bytes / 16 * 17).saturating_add(SOME_BYTES);
        self.capacity.map_or(UNKNOWN_BYTES_MAX, of)
    }
}

/// The most chunks of a file.
const CHUNK_COUNT_MAX: u64 = 4096;

/// How a file of an appliance is packed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Packing {
    /// It lies in chunks of so many bytes, the last one perhaps in fewer.
    pub chunk_bytes: Option<NonZeroU64>,
    /// It is compressed with gzip, before it was cut into chunks.
    pub is_gzip: bool,
}

/// A file that a description names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedFile {
    /// What it is called; of one that lies in chunks, what all their names begin with.
    pub name: String,
    /// How long it is by the description, as it is packed. Of what lies in chunks that is told.
    pub len_bytes: Option<u64>,
    /// How it is packed.
    pub packing: Packing,
}

impl NamedFile {
    /// One that lies as it is.
    pub(crate) fn plain(name: &str) -> Self {
        Self { name: name.to_owned(), len_bytes: None, packing: Packing::default() }
    }

    /// The names that its contents have, in order (DSP0243, "File": the name, a dot, and nine digits for each chunk), each with its length, where that is
    /// told.
    pub fn parts(&self) -> Result<Vec<(String, Option<u64>)>> {
        let (Some(chunk_bytes), Some(len_bytes)) = (self.packing.chunk_bytes, self.len_bytes) else {
            return Ok(vec![(self.name.clone(), self.len_bytes)]);
        };
        let count = len_bytes.div_ceil(chunk_bytes.get()).max(1);
        if count > CHUNK_COUNT_MAX {
            return Err(Error::corrupt(Corrupt::TooManyChunks {
                name: self.name.clone(),
                count,
                max: CHUNK_COUNT_MAX,
            }));
        }
        let part = |number: u64| {
            let start = number * chunk_bytes.get();
            (format!("{}.{number:09}", self.name), Some((len_bytes - start).min(chunk_bytes.get())))
        };
        Ok((0..count).map(part).collect())
    }
}

/// How large a disk is, in the units in which that was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// In bytes.
    pub bytes: u64,
    /// Of one unit.
    pub unit_bytes: u64,
}

impl Capacity {
    /// `Corrupt` if a disk has another size, more than rounding to units explains.
    pub fn check(self, virtual_bytes: u64) -> Result<()> {
        // VMware's tools round to megabytes.
        let tolerance = self.unit_bytes.max(1 << 20);
        match self.bytes.abs_diff(virtual_bytes) < tolerance {
            true => Ok(()),
            false => Err(Error::corrupt(Corrupt::Capacity { stated: self.bytes, found: virtual_bytes })),
        }
    }
}

/// What an appliance says of its disks.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Description {
    /// Those that have a file, in the description's order.
    pub disks: Vec<Disk>,
    /// All files that it names, those of the disks among them: what a manifest has to cover.
    pub files: Vec<NamedFile>,
    /// What is left out, in sentences.
    pub notes: Vec<String>,
}

impl Description {
    /// The file of that name.
    pub fn file(&self, name: &str) -> Option<&NamedFile> {
        self.files.iter().find(|file| file.name == name)
    }
}

/// The text of a description. `Unsupported` if it is none in UTF-8.
pub fn text(bytes: Vec<u8>) -> Result<String> {
    let text = String::from_utf8(bytes).map_err(|_| {
        Error::unsupported("the description of the appliance is no text in UTF-8")
            .hint("convert it first: iconv -t UTF-8")
    })?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// A reference with its `%20` and the like replaced; `None` if it has none, or none that make text.
pub fn percent_decoded(reference: &str) -> Option<String> {
    if !reference.contains('%') {
        return None;
    }
    let mut bytes = Vec::with_capacity(reference.len());
    let mut rest = reference.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let decoded = digits
            .filter(|_| first == b'%')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(decoded.unwrap_or(first));
        rest = if decoded.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_decoded_once() {
        assert_eq!(percent_decoded("my%20vm%2Fdisk.vmdk").as_deref(), Some("my vm/disk.vmdk"));
        assert_eq!(percent_decoded("%2520").as_deref(), Some("%20"));
        assert_eq!(percent_decoded("100%").as_deref(), Some("100%"));
        assert_eq!(percent_decoded("%+1").as_deref(), Some("%+1"));
        assert_eq!(percent_decoded("plain"), None);
        assert_eq!(percent_decoded("%ff"), None);
    }

    #[test]
    fn sizes_are_those_of_the_disks_but_for_rounding() {
        let gigabytes = Capacity { bytes: 8 << 30, unit_bytes: 1 << 30 };
        assert!(gigabytes.check(8 << 30).is_ok());
        assert!(gigabytes.check((8 << 30) - 512).is_ok());
        assert!(gigabytes.check(7 << 30).is_err());
        let bytes = Capacity { bytes: 8 << 30, unit_bytes: 1 };
        assert!(bytes.check((8 << 30) + 512).is_ok());
        assert!(bytes.check((8 << 30) + (1 << 20)).is_err());
    }
}
