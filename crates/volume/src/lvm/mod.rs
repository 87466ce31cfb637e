//! LVM2: what a physical volume says of itself and of its volume group.
//!
//! Which logical volumes lie on it, and where, is in the group's metadata, of which every physical volume may have up to two copies.
//! The copy with the highest sequence number counts, as for LVM2 itself.
//!
//! Invariants:
//! - a copy counts only if its checksums are right; one that is about to be committed makes the whole physical volume a doubt;
//! - nothing of a group is believed that is not understood: see [`Group`];
//! - the legs of a mirror are told to be in sync only if all that is written of them says so ([`doubt`]).
//!
//! Absent on purpose: who has which bytes of a disk, which needs all physical volumes of a group (crate `stack`); LVM1.

mod corrupt;
mod group;
mod layout;
mod mirror;
mod reader;
mod segment;
mod sync;
#[cfg(test)]
mod tests;
mod text;
mod written;

use block::{Error, ReadAt, Result, read_struct};
use extent::{Offset, Volume, VolumeOffset};
use zerocopy::{FromBytes, IntoBytes};

pub use corrupt::Corrupt;
pub use group::{Group, Layout, LogicalVolume};
use layout::{
    AREA_HEADER_BYTES, AREA_MAGIC, AREA_VERSION, Area as RawArea, AreaHeader, CRC_START, LABEL_ID,
    LABEL_SECTOR_COUNT, LABEL_TYPE, Label, SECTOR_BYTES, TEXT_IGNORED, TextLocation, VolumeHeader,
};
pub use mirror::{Log, Mirror};
pub use segment::{Area, Member, Segment};
pub use sync::doubt;

/// The longest text that is read. LVM2 reserves 1 MiB for it and one more unless told otherwise.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// A physical volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PhysicalVolume {
    /// Its identifier, as the metadata of its group spell it.
    pub id: String,
    /// How long it is.
    pub len_bytes: u64,
    /// Its group, as its newest copy of the metadata describes it; `None` if it has no copy.
    pub group: Option<Group>,
}

/// Reads a physical volume. `Corrupt` or `Unsupported` with the reason if its metadata are not to be relied on.
pub fn read(source: &dyn ReadAt<Volume>) -> Result<PhysicalVolume> {
    let (header, areas) = read_label(source)?;
    let mut group: Option<Group> = None;
    let mut is_broken = false;
    for area in areas {
        let found = match read_area(source, area) {
            Ok(found) => found,
            Err(error) if error.cause().is_some_and(is_of_one_copy) => {
                is_broken = true;
                continue;
            }
            Err(error) => return Err(error),
        };
        group = newer(group, found)?;
    }
    if group.is_none() && is_broken {
        return Err(Error::corrupt(Corrupt::NoText));
    }
    Ok(PhysicalVolume { id: spelt(&header.id), len_bytes: header.device_bytes.get(), group })
}

/// What another copy can make good.
fn is_of_one_copy(corrupt: &Corrupt) -> bool {
    matches!(corrupt, Corrupt::Area | Corrupt::NoText)
}

/// The one with the higher sequence number. Two of one number must be the same.
pub fn newer(one: Option<Group>, other: Option<Group>) -> Result<Option<Group>> {
    match (one, other) {
        (Some(one), Some(other)) if one.sequence == other.sequence && one != other => {
            Err(Error::corrupt(Corrupt::CopiesDiffer(one.sequence)))
        }
        (Some(one), Some(other)) if other.sequence > one.sequence => Ok(Some(other)),
        (Some(one), _) => Ok(Some(one)),
        (None, other) => Ok(other),
    }
}

/// The header of the physical volume, and its metadata areas.
fn read_label(source: &dyn ReadAt<Volume>) -> Result<(VolumeHeader, Vec<RawArea>)> {
    for sector in 0..LABEL_SECTOR_COUNT {
        if (sector + 1) * SECTOR_BYTES > source.len_bytes() {
            break;
        }
        let label: Label = read_struct(source, Offset::new(sector * SECTOR_BYTES), "LVM2 label")?;
        if label.id != LABEL_ID || label.kind != LABEL_TYPE || label.sector.get() != sector {
            continue;
        }
        let sum = checksum(&label.as_bytes()[20..]);
        if sum != label.checksum.get() {
            return Err(Error::corrupt(Corrupt::Label).field("checksum", label.checksum.get(), sum));
        }
        let at = usize::try_from(label.header_at.get()).unwrap_or(usize::MAX);
        let header = label.as_bytes().get(at..).and_then(parse_header);
        return header.ok_or_else(|| Error::corrupt(Corrupt::Label));
    }
    Err(Error::corrupt(Corrupt::Label))
}

/// The header, and the second of the two lists behind it: the first is of the areas for data.
fn parse_header(bytes: &[u8]) -> Option<(VolumeHeader, Vec<RawArea>)> {
    let (header, mut rest) = VolumeHeader::read_from_prefix(bytes).ok()?;
    let mut lists = [Vec::new(), Vec::new()];
    for list in &mut lists {
        loop {
            let (area, behind) = RawArea::read_from_prefix(rest).ok()?;
            rest = behind;
            if area.offset.get() == 0 {
                break;
            }
            list.push(area);
        }
    }
    let [_, metadata] = lists;
    Some((header, metadata))
}

/// The group that an area's text describes; `None` if the area has none, or one that does not count.
fn read_area(source: &dyn ReadAt<Volume>, area: RawArea) -> Result<Option<Group>> {
    let broken = || Error::corrupt(Corrupt::Area).at(VolumeOffset::new(area.offset.get()));
    let end = area.offset.get().checked_add(area.len_bytes.get());
    if end.is_none_or(|end| end > source.len_bytes()) || area.len_bytes.get() <= AREA_HEADER_BYTES {
        return Err(broken());
    }
    let header: AreaHeader = read_struct(source, Offset::new(area.offset.get()), "LVM2 metadata area")?;
    let sum = checksum(&header.as_bytes()[4..]);
    let is_right = header.checksum.get() == sum
        && header.magic == AREA_MAGIC
        && header.version.get() == AREA_VERSION
        && header.start == area.offset
        && header.len_bytes == area.len_bytes;
    if !is_right {
        return Err(broken());
    }
    let [committed, coming] = header.texts;
    if coming.offset.get() != 0 {
        return Err(Error::unsupported("a change of its volume group was under way"));
    }
    if committed.offset.get() == 0 || committed.flags.get() & TEXT_IGNORED != 0 {
        return Ok(None);
    }
    let bytes = read_text(source, area, committed)?;
    // It ends with a zero.
    let text = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
    group::read(&text::parse(text)?).map(Some)
}

/// The bytes of a text, which go on behind the header where the area ends.
fn read_text(source: &dyn ReadAt<Volume>, area: RawArea, text: TextLocation) -> Result<Vec<u8>> {
    let (offset, len_bytes, area_bytes) = (text.offset.get(), text.len_bytes.get(), area.len_bytes.get());
    let wrong = |name: &str, found: u64| Error::corrupt(Corrupt::Area).field(name, found, "within the area");
    if len_bytes > TEXT_BYTES_MAX || len_bytes > area_bytes - AREA_HEADER_BYTES {
        return Err(wrong("length of the text", len_bytes));
    }
    if !(AREA_HEADER_BYTES..area_bytes).contains(&offset) {
        return Err(wrong("place of the text", offset));
    }
    let index = |bytes: u64| usize::try_from(bytes).map_err(|_| wrong("length of the text", len_bytes));
    let mut bytes = vec![0; index(len_bytes)?];
    let (before, after) = bytes.split_at_mut(index(len_bytes.min(area_bytes - offset))?);
    source.read_at(Offset::new(area.offset.get() + offset), before)?;
    source.read_at(Offset::new(area.offset.get() + AREA_HEADER_BYTES), after)?;
    let sum = checksum(&bytes);
    match sum == text.checksum.get() {
        true => Ok(bytes),
        false => Err(Error::corrupt(Corrupt::NoText).field("checksum", text.checksum.get(), sum)),
    }
}

/// zlib's, but for how the register begins, and that it is not inverted at the end (LVM2, `lib/misc/crc.c`).
fn checksum(bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(!CRC_START);
    hasher.update(bytes);
    !hasher.finalize()
}

/// An identifier with the hyphens that the text has.
fn spelt(id: &[u8; 32]) -> String {
    let parts = [0..6, 6..10, 10..14, 14..18, 18..22, 22..26, 26..32];
    parts.map(|part| String::from_utf8_lossy(&id[part]).into_owned()).join("-")
}
