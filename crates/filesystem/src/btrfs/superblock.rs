//! The superblock: geometry, where the trees begin, and what the volume says of its state.

use block::{Error, Result};
use extent::Offset;
use zerocopy::{FromZeros, IntoBytes};

use super::checksum::Checksum;
use super::corrupt::Corrupt;
use super::key::Root;
use super::layout::{
    CHECKSUM_BYTES, MAGIC, RawDevice, RawSuperblock, SUPERBLOCK_BYTES, SUPERBLOCKS_AT, compat_ro, incompat,
    object, super_flag,
};
use crate::probe::Probe;
use crate::probe::fields::{label, uuid_text};
use crate::{Facts, Source, State};

/// The least that `stripesize` is: `btrfs check` opens a volume if it is a multiple of this.
const STRIPESIZE_MIN: u32 = 4096;

/// What of the superblock counts, checked.
#[derive(Clone, Debug)]
pub(super) struct Superblock {
    pub(super) checksum: Checksum,
    /// What metadata bear.
    pub(super) metadata_uuid: [u8; 16],
    pub(super) generation: u64,
    pub(super) sector_bytes: u32,
    pub(super) node_bytes: u32,
    /// All that it has, by their numbers.
    pub(super) devices: Vec<Device>,
    /// Of extents, each counted once.
    pub(super) used_bytes: u64,
    pub(super) root_tree: Root,
    pub(super) chunk_tree: Root,
    /// The tree of logs, if there are any.
    pub(super) log_tree: Option<Root>,
    /// Keys and chunks of what holds the chunk tree.
    pub(super) system_chunks: Vec<u8>,
    flags: u64,
    incompat: u64,
    compat_ro: u64,
}

/// One of the devices.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) number: u64,
    pub(super) uuid: [u8; 16],
    pub(super) len_bytes: u64,
    /// What chunks have of it.
    pub(super) used_bytes: u64,
    /// Of the volume that it is, which may be longer.
    pub(super) volume_bytes: u64,
}

/// Whether a superblock is at the first place. `None` if not.
pub(crate) fn read_raw(source: &Source) -> Result<Option<RawSuperblock>> {
    read_at(source, SUPERBLOCKS_AT[0])
}

fn read_at(source: &Source, at: u64) -> Result<Option<RawSuperblock>> {
    if source.len_bytes() < at + SUPERBLOCK_BYTES {
        return Ok(None);
    }
    let raw: RawSuperblock = block::read_struct(&**source, Offset::new(at), "Btrfs superblock")?;
    Ok(Some(raw).filter(|raw| raw.magic == MAGIC))
}

fn wrong(name: &str, found: impl ToString, expected: &str) -> Error {
    Error::corrupt(Corrupt::Superblock).field(name, found.to_string(), expected.to_owned())
}

impl RawSuperblock {
    pub(super) fn device_number(&self) -> u64 {
        self.dev_item.devid.get()
    }

    pub(super) fn device_bytes(&self) -> u64 {
        self.dev_item.total_bytes.get()
    }

    pub(crate) fn device_count(&self) -> u64 {
        self.num_devices.get()
    }

    /// Whether others stand on this one, which does not change any more.
    pub(crate) fn is_seed(&self) -> bool {
        self.flags.get() & super_flag::SEEDING != 0
    }

    /// What it says, unchecked. The sizes are those of all devices together: they are told of one alone.
    pub(crate) fn facts(&self, probe: &Probe) -> Facts {
        let mut facts = probe.facts("btrfs", State::Clean);
        facts.uuid = uuid_text(&self.fsid);
        facts.label = label(&self.label);
        facts.cluster_bytes = Some(self.sectorsize.get().into());
        if self.device_count() == 1 {
            facts.size_bytes = self.total_bytes.get();
        }
        facts.details.push(("devices", self.device_count().to_string()));
        facts
    }
}

/// Checks what does not need the volumes, but for their lengths: one of each device, by their numbers.
pub(super) fn parse(devices: &[(&RawSuperblock, u64)]) -> Result<Superblock> {
    let [(first, first_bytes), others @ ..] = devices else {
        return Err(wrong("num_devices", 0, "at least 1"));
    };
    let mut superblock = parse_one(first, *first_bytes)?;
    for (raw, volume_bytes) in others {
        let other = parse_one(raw, *volume_bytes)?;
        if other.generation != superblock.generation {
            let (one, another) = (superblock.generation, other.generation);
            return Err(Error::refused(format!(
                "its devices are of different age: one is of generation {one}, another of {another}"
            )));
        }
        if common(raw).as_bytes() != common(first).as_bytes() {
            return Err(wrong(
                "dev_item.devid",
                raw.device_number(),
                "all but the device the same on each device",
            ));
        }
        superblock.devices.extend(other.devices);
    }
    if first.device_count() != devices.len() as u64 {
        let expected = format!("{}, those that are there", devices.len());
        return Err(wrong("num_devices", first.device_count(), &expected));
    }
    let is_ascending = superblock.devices.windows(2).all(|pair| pair[0].number < pair[1].number);
    let mut uuids: Vec<_> = superblock.devices.iter().map(|device| device.uuid).collect();
    uuids.sort_unstable();
    if !is_ascending || uuids.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(wrong("dev_item.uuid", "that of another device", "numbers and UUIDs of one device each"));
    }
    let sum = superblock.devices.iter().try_fold(0_u64, |sum, device| sum.checked_add(device.len_bytes));
    if sum != Some(first.total_bytes.get()) {
        return Err(wrong("total_bytes", first.total_bytes.get(), "those of all devices"));
    }
    Ok(superblock)
}

/// What the superblocks of all devices have in common.
fn common(raw: &RawSuperblock) -> RawSuperblock {
    RawSuperblock { csum: [0; CHECKSUM_BYTES], dev_item: RawDevice::new_zeroed(), ..raw.clone() }
}

/// The superblock of one device.
fn parse_one(raw: &RawSuperblock, volume_bytes: u64) -> Result<Superblock> {
    let checksum = Checksum::of_number(raw.csum_type.get());
    let checksum = checksum
        .ok_or_else(|| Error::unsupported(format!("Btrfs with checksums of type {}", raw.csum_type.get())))?;
    let place = raw.bytenr.get();
    if place != SUPERBLOCKS_AT[0] {
        return Err(wrong("bytenr", place, "its own place"));
    }
    if !checksum.holds(raw.as_bytes()) {
        return Err(wrong("csum", "another", "that of the superblock"));
    }
    let (sector_bytes, node_bytes) = (raw.sectorsize.get(), raw.nodesize.get());
    let is_size = |bytes: u32| bytes.is_power_of_two() && (4096..=65536).contains(&bytes);
    if !is_size(sector_bytes) || !is_size(node_bytes) || node_bytes < sector_bytes {
        let expected = "a power of two from sectorsize to 65536, and sectorsize one from 4096";
        return Err(wrong("nodesize", node_bytes, expected));
    }
    check_unused_sizes(raw)?;
    let device = Device {
        number: raw.device_number(),
        uuid: raw.dev_item.uuid,
        len_bytes: raw.dev_item.total_bytes.get(),
        used_bytes: raw.dev_item.bytes_used.get(),
        volume_bytes,
    };
    if device.len_bytes > volume_bytes {
        let expected = format!("an end within the volume of {volume_bytes} bytes");
        return Err(wrong("dev_item.total_bytes", device.len_bytes, &expected));
    }
    let metadata_uuid = match raw.incompat_flags.get() & incompat::METADATA_UUID {
        0 => raw.fsid,
        _ => raw.metadata_uuid,
    };
    if raw.dev_item.fsid != metadata_uuid {
        return Err(wrong("dev_item.fsid", "another", "that of the metadata"));
    }
    let generation = raw.generation.get();
    if generation == u64::MAX || raw.chunk_root_generation.get() > generation {
        return Err(wrong("chunk_root_generation", raw.chunk_root_generation.get(), "at most generation"));
    }
    let array_len = usize::try_from(raw.sys_chunk_array_size.get()).ok();
    let system_chunks = array_len.and_then(|len| raw.sys_chunk_array.get(..len));
    let system_chunks = system_chunks
        .ok_or_else(|| wrong("sys_chunk_array_size", raw.sys_chunk_array_size.get(), "at most 2048"))?;
    let root = |tree, logical: u64, level, generation| Root { tree, logical, level, generation };
    let log_tree = match raw.log_root.get() {
        0 => None,
        logical => Some(root(object::TREE_LOG, logical, raw.log_root_level, generation + 1)),
    };
    Ok(Superblock {
        checksum,
        metadata_uuid,
        generation,
        sector_bytes,
        node_bytes,
        devices: vec![device],
        used_bytes: raw.bytes_used.get(),
        root_tree: root(object::ROOT_TREE, raw.root.get(), raw.root_level, generation),
        chunk_tree: root(
            object::CHUNK_TREE,
            raw.chunk_root.get(),
            raw.chunk_root_level,
            raw.chunk_root_generation.get(),
        ),
        log_tree,
        system_chunks: system_chunks.to_vec(),
        flags: raw.flags.get(),
        incompat: raw.incompat_flags.get(),
        compat_ro: raw.compat_ro_flags.get(),
    })
}

/// Sizes that mean nothing any more, and are what they were nevertheless: the kernel mounts no volume on which they are not
/// (`btrfs_validate_super` of fs/btrfs/disk-io.c), and `btrfs check` opens none whose `stripesize` is odd.
fn check_unused_sizes(raw: &RawSuperblock) -> Result<()> {
    let (leaf_bytes, stripe_bytes) = (raw.leafsize.get(), raw.stripesize.get());
    if leaf_bytes != raw.nodesize.get() {
        return Err(wrong("leafsize", leaf_bytes, &format!("{}, as nodesize", raw.nodesize.get())));
    }
    if !stripe_bytes.is_power_of_two() || stripe_bytes < STRIPESIZE_MIN {
        return Err(wrong("stripesize", stripe_bytes, "a power of two from 4096"));
    }
    Ok(())
}

impl Superblock {
    /// What this volume has that is not understood.
    pub(super) fn unsupported(&self) -> Option<String> {
        let known = super_flag::WRITTEN | super_flag::RELOC | super_flag::ERROR;
        for (flag, what) in [
            (incompat::ZONED, "on a zoned device"),
            (incompat::EXTENT_TREE_V2, "with several extent trees"),
            (incompat::RAID_STRIPE_TREE, "with a tree of stripes"),
        ] {
            if self.incompat & flag != 0 {
                return Some(format!("Btrfs {what}"));
            }
        }
        if self.incompat & incompat::MIXED_BACKREF == 0 {
            return Some("Btrfs with back references of the first version".into());
        }
        for (name, unknown) in [
            ("incompatible", self.incompat & !incompat::KNOWN),
            ("read-only compatible", self.compat_ro & !compat_ro::KNOWN),
        ] {
            if unknown != 0 {
                return Some(format!("Btrfs with unknown {name} features {unknown:#x}"));
            }
        }
        if self.flags & super_flag::METADUMP != 0 {
            return Some("an image of Btrfs metadata without their data".into());
        }
        match self.flags & !known & !super_flag::CHANGING {
            0 => None,
            unknown => Some(format!("Btrfs with unknown flags {unknown:#x}")),
        }
    }

    /// How long all devices are together.
    pub(super) fn total_bytes(&self) -> u64 {
        self.devices.iter().map(|device| device.len_bytes).sum()
    }

    /// Why it is not to be believed. `sources` are the volumes of its devices.
    pub(super) fn unclean(&self, sources: &[Source]) -> Result<Option<&'static str>> {
        if self.flags & super_flag::ERROR != 0 {
            return Ok(Some("the kernel met an error on it"));
        }
        if self.flags & super_flag::CHANGING != 0 {
            return Ok(Some("a change of all its metadata by btrfstune was not finished"));
        }
        for (device, source) in self.devices.iter().zip(sources) {
            if self.has_newer_copy(device, source)? {
                return Ok(Some("a copy of its superblock is newer: mount it, and unmount it"));
            }
        }
        Ok(None)
    }

    fn has_newer_copy(&self, device: &Device, source: &Source) -> Result<bool> {
        let copies = SUPERBLOCKS_AT.into_iter().skip(1);
        for at in copies.take_while(|at| at + SUPERBLOCK_BYTES <= device.len_bytes) {
            let copy = read_at(source, at)?.filter(|copy| self.checksum.holds(copy.as_bytes()));
            let is_newer = |copy: RawSuperblock| {
                copy.bytenr.get() == at
                    && copy.dev_item.fsid == self.metadata_uuid
                    && copy.generation.get() > self.generation
            };
            if copy.is_some_and(is_newer) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn has_skinny_metadata(&self) -> bool {
        self.incompat & incompat::SKINNY_METADATA != 0
    }

    /// The tree in which block groups are.
    pub(super) fn block_groups_tree(&self) -> u64 {
        match self.compat_ro & compat_ro::BLOCK_GROUP_TREE {
            0 => object::EXTENT_TREE,
            _ => object::BLOCK_GROUP_TREE,
        }
    }
}
