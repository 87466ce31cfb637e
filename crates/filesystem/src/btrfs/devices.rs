//! The devices: what the trees of chunks and of devices say of them, against superblocks and chunks.

use block::{Error, Result};
use zerocopy::FromBytes;

use super::chunk::{self, Chunk, Chunks, Held};
use super::corrupt::Corrupt;
use super::key::{Key, everything};
use super::layout::{RawDevice, RawDeviceExtent, RawReplace, item, object, replace};
use super::roots::{self, Tree};
use super::superblock::Superblock;
use super::tree::Reader;

pub(super) fn counter(name: &str, found: u64, sum: u64) -> Result<()> {
    if found == sum {
        return Ok(());
    }
    Err(Error::corrupt(Corrupt::Counter).field(name, found, sum))
}

/// All chunks, and not only those of the superblock, with which `reader` reads. The devices that are listed with them are those that are
/// there.
pub(super) fn read_chunks(reader: &Reader) -> Result<Chunks> {
    let mut chunks = Chunks::default();
    let mut devices = 0_u64;
    let superblock = &reader.superblock;
    reader.walk(superblock.chunk_tree, &everything(), &mut |key, bytes| match key.kind {
        item::CHUNK => chunks.add(superblock, key, bytes),
        item::DEVICE => {
            devices += 1;
            check_device(superblock, key, bytes)
        }
        _ => Ok(()),
    })?;
    let is_known = |chunk: &Chunk| {
        chunks.holding(chunk.logical, chunk.len_bytes).is_ok_and(|other| other.is_same(chunk))
    };
    if let Some(chunk) = reader.chunks.all().iter().find(|chunk| !is_known(chunk)) {
        let corrupt = Error::corrupt(Corrupt::Chunk { logical: chunk.logical });
        let expected = "the same chunk as in the chunk tree".to_owned();
        return Err(corrupt.field("sys_chunk_array", chunk.len_bytes, expected));
    }
    counter("devices", devices, superblock.devices.len() as u64)?;
    Ok(chunks)
}

/// An item of the chunk tree says of a device what its superblock says.
fn check_device(superblock: &Superblock, key: Key, bytes: &[u8]) -> Result<()> {
    let raw = RawDevice::read_from_bytes(bytes);
    let raw = raw.map_err(|_| key.wrong("size", bytes.len() as u64, "that of a device"))?;
    let device = superblock.devices.iter().find(|device| device.number == key.offset);
    let Some(device) = device.filter(|_| key.objectid == object::DEVICES) else {
        return Err(Error::unsupported(format!("Btrfs with a device {} that is not there", key.offset)));
    };
    if raw.uuid != device.uuid || raw.fsid != superblock.metadata_uuid {
        return Err(key.wrong("uuid", 0_u64, "that of the device and of the file system"));
    }
    for (name, found, right) in [
        ("devid", raw.devid.get(), device.number),
        ("total_bytes", raw.total_bytes.get(), device.len_bytes),
        ("bytes_used", raw.bytes_used.get(), device.used_bytes),
    ] {
        if found != right {
            return Err(key.wrong(name, found, &format!("{right}, as in the device's superblock")));
        }
    }
    Ok(())
}

/// Fails if a device is being replaced by another one.
pub(super) fn check_at_rest(reader: &Reader, trees: &[Tree]) -> Result<()> {
    let root = roots::find(trees, object::DEVICE_TREE)?.root;
    let key = Key::new(object::REPLACE, item::REPLACE, 0);
    reader.walk(root, &(key..=key), &mut |key, bytes| {
        let raw = RawReplace::read_from_bytes(bytes);
        let raw = raw.map_err(|_| key.wrong("size", bytes.len() as u64, "that of a replacement"))?;
        match raw.replace_state.get() {
            replace::NEVER_STARTED | replace::FINISHED | replace::CANCELED => Ok(()),
            _ => Err(Error::refused("a device of it is being replaced: mount it, and let that end")),
        }
    })
}

/// The extents of devices are the copies of chunks, or stripes of these, and add up to what each device counts.
pub(super) fn check_extents(reader: &Reader, trees: &[Tree]) -> Result<()> {
    let superblock = &reader.superblock;
    let held = chunk::by_device(&reader.chunks)?;
    let mut held = held.iter();
    let mut sums = vec![0_u64; superblock.devices.len()];
    let root = roots::find(trees, object::DEVICE_TREE)?.root;
    reader.walk(root, &everything(), &mut |key, bytes| {
        if key.kind != item::DEVICE_EXTENT {
            return Ok(());
        }
        let raw = RawDeviceExtent::read_from_bytes(bytes)
            .map_err(|_| key.wrong("size", bytes.len() as u64, "that of a device's extent"))?;
        match held.next().filter(|held| is_extent_of(reader, held, key, &raw)) {
            Some(held) => {
                sums[held.column.device] += raw.length.get();
                Ok(())
            }
            None => Err(key.wrong("offset", key.offset, "the place of a chunk")),
        }
    })?;
    if let Some(Held { column, chunk, .. }) = held.next() {
        let corrupt = Error::corrupt(Corrupt::Chunk { logical: reader.chunks.all()[*chunk].logical });
        let expected = "that of a device's extent".to_owned();
        return Err(corrupt.field("stripe.offset", column.start_bytes, expected));
    }
    for (device, sum) in superblock.devices.iter().zip(sums) {
        counter("dev_item.bytes_used", device.used_bytes, sum)?;
    }
    Ok(())
}

fn is_extent_of(reader: &Reader, held: &Held, key: Key, raw: &RawDeviceExtent) -> bool {
    let number = reader.superblock.devices[held.column.device].number;
    let chunk = &reader.chunks.all()[held.chunk];
    (number, held.column.start_bytes, held.column.len_bytes, chunk.logical)
        == (key.objectid, key.offset, raw.length.get(), raw.chunk_offset.get())
}
