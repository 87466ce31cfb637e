//! Volumes that are named but not understood: copied whole, with the reason told.
//!
//! A name costs a few small reads at known places. Nothing that is copied depends on it: a volume that is
//! named wrongly is still copied whole. What holds other volumes (encryption, LVM, RAID) is looked for first,
//! because a file system's superblock can shine through it.
//!
//! Offsets are those of the structs named at each recogniser; `blkid` is the oracle for all of them.

mod apple;
mod fat;
mod fields;
mod holders;
mod linux;
mod others;
mod windows;

use block::{Error, Result};

use crate::{Check, Facts, FileSystem, Source, State, UsedMap};
use fields::Fields;

/// A volume of which only the name is known.
struct Named {
    facts: Facts,
}

/// Names what is on the volume, if it can.
pub fn open(source: &Source) -> Result<Option<Box<dyn FileSystem>>> {
    let probe = Probe { source };
    for recognise in RECOGNISERS {
        if let Some(facts) = recognise(&probe)? {
            return Ok(Some(Box::new(Named { facts })));
        }
    }
    Ok(None)
}

impl FileSystem for Named {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn used_map(&self, _check: Check) -> Result<Box<dyn UsedMap>> {
        let reason = self.facts.state.doubt().expect("what is only named is in doubt");
        Err(Error::unsupported(reason))
    }
}

type Recogniser = fn(&Probe) -> Result<Option<Facts>>;

const RECOGNISERS: &[Recogniser] = &[
    holders::luks,
    holders::bitlocker,
    holders::md_1,
    holders::md_0_90,
    holders::lvm2,
    holders::device_mapper,
    linux::xfs,
    linux::btrfs,
    linux::bcache,
    linux::f2fs,
    linux::squashfs,
    linux::erofs,
    linux::jfs,
    linux::reiserfs,
    linux::gfs2,
    linux::ocfs2,
    linux::nilfs2,
    windows::refs,
    windows::exfat,
    apple::apfs,
    apple::hfs,
    others::vmfs,
    others::ufs,
    others::zfs,
    others::udf,
    others::iso9660,
    fat::fat,
];

/// What a recogniser looks through.
struct Probe<'a> {
    source: &'a Source,
}

impl Probe<'_> {
    /// The `len` bytes from `at`; `None` if the volume is shorter.
    fn at(&self, at: u64, len: usize) -> Result<Option<Fields>> {
        if at.checked_add(len as u64).is_none_or(|end| end > self.len_bytes()) {
            return Ok(None);
        }
        let mut bytes = vec![0; len];
        self.source.read_at(extent::Offset::new(at), &mut bytes)?;
        Ok(Some(Fields(bytes)))
    }

    /// Like [`Probe::at`], if `magic` lies `magic_at` bytes further.
    fn with_magic(&self, at: u64, len: usize, magic_at: usize, magic: &[u8]) -> Result<Option<Fields>> {
        Ok(self.at(at, len)?.filter(|fields| fields.holds(magic_at, magic)))
    }

    fn len_bytes(&self) -> u64 {
        self.source.len_bytes()
    }

    /// Facts of a file system that is copied whole because Leandisk does not read it.
    fn unread(&self, filesystem: &str) -> Facts {
        self.facts(filesystem, State::Unsupported(format!("{filesystem} is not read and is copied whole")))
    }

    fn facts(&self, filesystem: &str, state: State) -> Facts {
        Facts {
            filesystem: filesystem.into(),
            label: None,
            uuid: None,
            cluster_bytes: None,
            size_bytes: self.len_bytes(),
            free_bytes: None,
            state,
            details: Vec::new(),
        }
    }
}

/// Filling in what a superblock says. Nothing is checked: it is only shown.
trait Told: Sized {
    /// The size as a count of clusters.
    fn sized(self, cluster_bytes: u64, count: u64) -> Self;
    fn free(self, cluster_count: u64) -> Self;
    fn label(self, label: Option<String>) -> Self;
    fn uuid(self, uuid: Option<String>) -> Self;
    fn detail(self, name: &'static str, value: impl ToString) -> Self;
}

impl Told for Facts {
    fn sized(mut self, cluster_bytes: u64, count: u64) -> Self {
        self.cluster_bytes = Some(cluster_bytes);
        self.size_bytes = cluster_bytes.saturating_mul(count);
        self
    }

    fn free(mut self, cluster_count: u64) -> Self {
        self.free_bytes = self.cluster_bytes.map(|cluster_bytes| cluster_bytes.saturating_mul(cluster_count));
        self
    }

    fn label(mut self, label: Option<String>) -> Self {
        self.label = label;
        self
    }

    fn uuid(mut self, uuid: Option<String>) -> Self {
        self.uuid = uuid;
        self
    }

    fn detail(mut self, name: &'static str, value: impl ToString) -> Self {
        self.details.push((name, value.to_string()));
        self
    }
}
