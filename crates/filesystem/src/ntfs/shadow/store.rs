//! A store: where the blocks of a shadow copy are that have changed since, and which the copy does not use.

use std::collections::HashMap;

use block::{Error, FieldValue, Result};
use extent::{ExtentSet, Span, Volume, VolumeOffset};
use zerocopy::FromBytes;

use super::blocks::Blocks;
use super::catalog::StoreRecord;
use super::corrupt::CorruptShadowCopy;
use super::files::StoreFile;
use super::layout::{
    BLOCK_BYTES, BlockDescriptor, BlockHeader, DESCRIPTOR_FORWARDER, DESCRIPTOR_HARMLESS,
    DESCRIPTOR_NOT_USED, DESCRIPTOR_OVERLAY, OVERLAY_BIT_BYTES, RECORD_BITMAP, RECORD_BLOCK_LIST,
    RECORD_BLOCK_RANGES, RECORD_STORE_HEADER, StoreInformation,
};
use crate::ntfs::bitmap::Words;
use crate::ntfs::record::utf16_text;

/// The most descriptors of all stores together that are held in memory, 16 bytes each: 128 GiB of blocks.
pub(super) const DESCRIPTOR_COUNT_MAX: usize = 8 << 20;

/// What a store's header says of its copy.
pub(super) struct Information {
    pub(super) copy_id: [u8; 16],
    pub(super) set_id: [u8; 16],
    /// Untrusted text.
    pub(super) machine: Option<String>,
}

/// Reads and checks a store's header.
pub(super) fn information(
    blocks: &mut Blocks<'_>,
    store: &StoreRecord,
    file: &StoreFile,
) -> Result<Information> {
    let at = VolumeOffset::new(store.header_offset);
    let bytes = blocks.one("the header of a shadow copy's store", at, RECORD_STORE_HEADER)?;
    file.require_block(at)?;
    let (raw, rest) = StoreInformation::ref_from_prefix(&bytes[size_of::<BlockHeader>()..])
        .expect("a block is larger than what it begins with");
    let machine = rest.split_first_chunk::<2>().and_then(|(len, text)| {
        text.get(..usize::from(u16::from_le_bytes(*len))).filter(|text| !text.is_empty()).map(utf16_text)
    });
    Ok(Information { copy_id: raw.copy_identifier, set_id: raw.copy_set_identifier, machine })
}

/// Where a block of a copy is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// In the store: here on the volume.
    Stored(u64),
    /// It was moved: in what the next newer copy, or else the volume, has here.
    Moved(u64),
}

/// A part of a block of which the store holds sectors.
#[derive(Clone, Copy, Debug)]
struct Overlay {
    /// Where the block of the store lies on the volume.
    offset: u64,
    /// A bit for each sector.
    bits: u32,
}

/// What a store holds. Blocks are counted from the volume's start.
#[derive(Default)]
pub(super) struct StoreMap {
    /// Ascending, one a block.
    places: Vec<(u32, Place)>,
    overlays: HashMap<u32, Overlay>,
    /// Where blocks were moved to, and what lies there is needed.
    pub(super) moved_to: Vec<u64>,
}

/// What a place of a copy is, as far as one store knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Here on the volume.
    Here(u64),
    /// Here in the next newer copy, or on the volume.
    Below(u64),
}

impl StoreMap {
    /// Reads all that a store says but its bitmaps. `count_left` is how many descriptors it may still have.
    pub(super) fn read(
        blocks: &mut Blocks<'_>,
        store: &StoreRecord,
        file: &StoreFile,
        count_left: &mut usize,
    ) -> Result<Self> {
        let volume_bytes = blocks.volume_bytes();
        let mut list = List { file, volume_bytes, count_left, map: Self::default(), moved: HashMap::new() };
        let name = "the block list of a shadow copy's store";
        blocks.each(name, store.block_list_offset, RECORD_BLOCK_LIST, |at, contents| {
            file.require_block(at)?;
            contents.chunks_exact(size_of::<BlockDescriptor>()).try_for_each(|bytes| {
                match bytes.iter().all(|byte| *byte == 0) {
                    true => Ok(()),
                    false => list.add(BlockDescriptor::ref_from_bytes(bytes).expect("its size"), at),
                }
            })
        })?;
        let map = list.map.sorted();
        // Not needed here, but by Windows.
        let name = "the range list of a shadow copy's store";
        blocks.each(name, store.range_list_offset, RECORD_BLOCK_RANGES, |at, _| file.require_block(at))?;
        Ok(map)
    }

    /// Of several descriptors of one block the last counts.
    fn sorted(mut self) -> Self {
        self.places.sort_by_key(|(block, _)| *block);
        self.places.dedup_by(|later, earlier| {
            let is_same = later.0 == earlier.0;
            if is_same {
                *earlier = *later;
            }
            is_same
        });
        self.places.shrink_to_fit();
        self
    }

    /// Where the byte at `at` is, and how many bytes from there are in a row. What overlays hold counts only for the copy of this
    /// very store, not for older ones that are read through it.
    pub(super) fn look_up(&self, at: u64, is_own: bool) -> (Step, u64) {
        let (number, inside) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
        let Ok(block) = u32::try_from(number) else { return (Step::Below(at), BLOCK_BYTES - inside) };
        let mut len = BLOCK_BYTES - inside;
        if let Some(overlay) = self.overlays.get(&block).filter(|_| is_own) {
            let sector = inside / OVERLAY_BIT_BYTES;
            let bits = overlay.bits >> sector;
            len = len.min(OVERLAY_BIT_BYTES - inside % OVERLAY_BIT_BYTES);
            if bits & 1 != 0 {
                return (Step::Here(overlay.offset + inside), len);
            }
        }
        let step = match self.places.binary_search_by_key(&block, |(block, _)| *block) {
            Ok(found) => match self.places[found].1 {
                Place::Stored(offset) => Step::Here(offset + inside),
                Place::Moved(offset) => Step::Below(offset + inside),
            },
            Err(_) => Step::Below(at),
        };
        (step, len)
    }
}

/// A store's list while it is read: chapter "Successive block descriptors".
struct List<'a> {
    file: &'a StoreFile,
    volume_bytes: u64,
    count_left: &'a mut usize,
    map: StoreMap,
    /// Where blocks were moved to, with where they lay.
    moved: HashMap<u64, u64>,
}

impl List<'_> {
    fn add(&mut self, raw: &BlockDescriptor, at: VolumeOffset) -> Result<()> {
        let flags = raw.flags.get();
        self.check(raw, flags, at)?;
        if flags & DESCRIPTOR_NOT_USED != 0 {
            return Ok(());
        }
        *self.count_left = self.count_left.checked_sub(1).ok_or_else(|| {
            Error::unsupported("shadow copies").field("blocks that they hold", "more", DESCRIPTOR_COUNT_MAX)
        })?;
        let (original, relative) = (raw.original_offset.get(), raw.relative_offset.get());
        let stored = raw.store_offset.get();
        if flags & DESCRIPTOR_OVERLAY != 0 {
            self.add_overlay(original, Overlay { offset: stored, bits: raw.allocation_bitmap.get() });
            return Ok(());
        }
        // What was moved here before is what was copied now.
        let original = self.moved.remove(&original).unwrap_or(original);
        if flags & DESCRIPTOR_FORWARDER == 0 {
            self.map.places.push((self.block(original), Place::Stored(stored)));
        } else {
            self.map.moved_to.push(relative);
            if original != relative {
                self.map.places.push((self.block(original), Place::Moved(relative)));
                self.moved.insert(relative, original);
            }
        }
        Ok(())
    }

    /// The first one of a block says where; others add sectors.
    fn add_overlay(&mut self, original: u64, overlay: Overlay) {
        let block = self.block(original);
        self.map.overlays.entry(block).or_insert(Overlay { bits: 0, ..overlay }).bits |= overlay.bits;
    }

    fn check(&self, raw: &BlockDescriptor, flags: u32, at: VolumeOffset) -> Result<()> {
        let what = "a block descriptor of a shadow copy's store";
        let corrupt = || Error::corrupt(CorruptShadowCopy::Descriptor).at(at);
        let known = DESCRIPTOR_FORWARDER | DESCRIPTOR_OVERLAY | DESCRIPTOR_NOT_USED | DESCRIPTOR_HARMLESS;
        let both = DESCRIPTOR_FORWARDER | DESCRIPTOR_OVERLAY;
        if flags & !known != 0 || flags & both == both {
            return Err(Error::unsupported(what).at(at).field("flags", FieldValue::hex(flags), "known ones"));
        }
        if flags & DESCRIPTOR_NOT_USED != 0 {
            return Ok(());
        }
        let is_block = |offset: u64| offset.is_multiple_of(BLOCK_BYTES) && offset < self.volume_bytes;
        let original = raw.original_offset.get();
        if !is_block(original) {
            return Err(corrupt().field("original offset", original, "a block of the volume"));
        }
        if flags & DESCRIPTOR_FORWARDER == 0 {
            return self.file.require_block(VolumeOffset::new(raw.store_offset.get()));
        }
        let (relative, stored) = (raw.relative_offset.get(), raw.store_offset.get());
        if !is_block(relative) {
            return Err(corrupt().field(
                "offset that a block was moved to",
                relative,
                "a block of the volume",
            ));
        }
        if stored != 0 {
            return Err(corrupt().field("store offset of a block that was moved", stored, 0));
        }
        Ok(())
    }

    /// Checked before.
    #[allow(clippy::unused_self)]
    fn block(&self, offset: u64) -> u32 {
        u32::try_from(offset / BLOCK_BYTES).expect("a volume of at most 64 TiB")
    }
}

/// What neither the copy of `store` nor, if the store speaks of them, older ones use: chapters "Store bitmap" and
/// "Reading snapshot data". What no bit speaks of is used.
pub(super) fn unused(
    blocks: &mut Blocks<'_>,
    store: &StoreRecord,
    file: &StoreFile,
) -> Result<ExtentSet<Volume>> {
    let current = set_bits(blocks, store.bitmap_offset, file)?;
    match store.previous_bitmap_offset {
        None => Ok(current),
        Some(previous) => Ok(current.intersect(&set_bits(blocks, previous, file)?)),
    }
}

/// The blocks of the volume whose bits are set.
fn set_bits(blocks: &mut Blocks<'_>, first: u64, file: &StoreFile) -> Result<ExtentSet<Volume>> {
    let block_count = blocks.volume_bytes().div_ceil(BLOCK_BYTES);
    let end = VolumeOffset::new(blocks.volume_bytes());
    let mut set = ExtentSet::new();
    let mut done = 0;
    blocks.each("a bitmap of a shadow copy's store", first, RECORD_BITMAP, |at, contents| {
        file.require_block(at)?;
        let bits = Words::new(contents, done);
        let stop = (done + contents.len() as u64 * 8).min(block_count);
        while done < stop {
            let is_set = bits.get(done);
            let run_end = bits.run_end(done, stop, is_set);
            if is_set {
                let span_end = VolumeOffset::new((run_end * BLOCK_BYTES).min(end.get()));
                set.push(Span::between(VolumeOffset::new(done * BLOCK_BYTES), span_end));
            }
            done = run_end;
        }
        Ok(())
    })?;
    Ok(set)
}
