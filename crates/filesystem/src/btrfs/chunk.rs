//! Chunks: which addresses lie where on the device.

use block::{Error, Result};
use extent::{Offset, Span, VolumeSpan};
use zerocopy::FromBytes;

use super::corrupt::Corrupt;
use super::key::Key;
use super::layout::{RawChunk, RawKey, RawStripe, group, item, object};
use super::superblock::Superblock;

/// A stretch of addresses that lies in one place, or in two.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Chunk {
    pub(super) logical: u64,
    pub(super) len_bytes: u64,
    /// Bits of [`group`].
    pub(super) kind: u64,
    /// Where its copies begin.
    pub(super) places: Vec<u64>,
}

impl Chunk {
    pub(super) fn end(&self) -> u64 {
        self.logical + self.len_bytes
    }

    /// Of the copy `copy`.
    pub(super) fn place(&self, copy: usize) -> VolumeSpan {
        Span::new(Offset::new(self.places[copy]), self.len_bytes)
    }
}

fn wrong(logical: u64, name: &str, found: u64, expected: &str) -> Error {
    Error::corrupt(Corrupt::Chunk { logical }).field(name, found, expected.to_owned())
}

/// How many copies a chunk of this kind has on its device; `None` if it is not read.
fn copies(kind: u64) -> Option<usize> {
    match kind & !group::CONTENTS {
        // A chunk that is striped over one device is not striped.
        0 | group::RAID0 => Some(1),
        group::DUP => Some(2),
        _ => None,
    }
}

/// Parses the chunk of a key; answers how long it is, too.
fn parse(superblock: &Superblock, key: Key, bytes: &[u8]) -> Result<(Chunk, usize)> {
    let logical = key.offset;
    if (key.objectid, key.kind) != (object::FIRST_CHUNK, item::CHUNK) {
        return Err(wrong(logical, "objectid", key.objectid, "that of a chunk"));
    }
    let raw = RawChunk::read_from_prefix(bytes);
    let (raw, rest) = raw.map_err(|_| wrong(logical, "size", bytes.len() as u64, "that of a chunk"))?;
    let (len_bytes, kind) = (raw.length.get(), raw.type_.get());
    let Some(copies) = copies(kind) else {
        return Err(Error::unsupported(format!("Btrfs chunks of profile {:#x}", kind & !group::CONTENTS)));
    };
    if kind & group::CONTENTS == 0 {
        return Err(wrong(logical, "type", kind, "one of data, metadata or system"));
    }
    if usize::from(raw.num_stripes.get()) != copies {
        return Err(wrong(logical, "num_stripes", raw.num_stripes.get().into(), "those of its profile"));
    }
    let sector = u64::from(superblock.sector_bytes);
    let is_aligned = |value: u64| value.is_multiple_of(sector);
    if len_bytes == 0
        || !is_aligned(len_bytes)
        || !is_aligned(logical)
        || logical.checked_add(len_bytes).is_none()
    {
        return Err(wrong(logical, "length", len_bytes, "whole sectors, and an end"));
    }
    let mut places = Vec::with_capacity(copies);
    let mut rest = rest;
    for _ in 0..copies {
        let stripe = RawStripe::read_from_prefix(rest);
        let (stripe, behind) =
            stripe.map_err(|_| wrong(logical, "size", bytes.len() as u64, "that of all stripes"))?;
        rest = behind;
        let at = stripe.offset.get();
        if stripe.devid.get() != superblock.device {
            return Err(Error::unsupported(format!(
                "Btrfs with a chunk on device {}, which is not this one",
                stripe.devid
            )));
        }
        let is_within = at.checked_add(len_bytes).is_some_and(|end| end <= superblock.device_bytes);
        if !is_within || !is_aligned(at) {
            return Err(wrong(logical, "stripe.offset", at, "whole sectors within the device"));
        }
        places.push(at);
    }
    Ok((Chunk { logical, len_bytes, kind, places }, bytes.len() - rest.len()))
}

/// All chunks that are known, in the order of their addresses.
#[derive(Clone, Default, Debug)]
pub(super) struct Chunks(Vec<Chunk>);

impl Chunks {
    /// Those in the superblock, which hold the tree of all.
    pub(super) fn of_superblock(superblock: &Superblock) -> Result<Self> {
        let (mut chunks, mut rest) = (Self::default(), &superblock.system_chunks[..]);
        while !rest.is_empty() {
            let key = RawKey::read_from_prefix(rest);
            let (key, bytes) =
                key.map_err(|_| wrong(0, "sys_chunk_array", rest.len() as u64, "whole keys"))?;
            let (chunk, len) = parse(superblock, Key::from(&key), bytes)?;
            chunks.push(chunk)?;
            rest = &bytes[len..];
        }
        Ok(chunks)
    }

    /// Adds that of an item of the chunk tree.
    pub(super) fn add(&mut self, superblock: &Superblock, key: Key, bytes: &[u8]) -> Result<()> {
        let (chunk, len) = parse(superblock, key, bytes)?;
        if len != bytes.len() {
            return Err(wrong(key.offset, "size", bytes.len() as u64, "that of its stripes"));
        }
        self.push(chunk)
    }

    fn push(&mut self, chunk: Chunk) -> Result<()> {
        let index = self.0.partition_point(|other| other.logical < chunk.logical);
        let is_apart = index.checked_sub(1).is_none_or(|before| self.0[before].end() <= chunk.logical)
            && self.0.get(index).is_none_or(|next| chunk.end() <= next.logical);
        if !is_apart {
            return Err(wrong(chunk.logical, "length", chunk.len_bytes, "one that overlaps no other chunk"));
        }
        self.0.insert(index, chunk);
        Ok(())
    }

    pub(super) fn all(&self) -> &[Chunk] {
        &self.0
    }

    /// The chunk in which all of `len_bytes` from `logical` lie.
    pub(super) fn holding(&self, logical: u64, len_bytes: u64) -> Result<&Chunk> {
        let index = self.0.partition_point(|chunk| chunk.end() <= logical);
        let is_held = |chunk: &&Chunk| {
            chunk.logical <= logical && logical.checked_add(len_bytes).is_some_and(|end| end <= chunk.end())
        };
        self.0.get(index).filter(is_held).ok_or_else(|| Error::corrupt(Corrupt::Unmapped { logical }))
    }

    /// Where `len_bytes` from `logical` lie: the first copy.
    pub(super) fn place(&self, logical: u64, len_bytes: u64) -> Result<VolumeSpan> {
        let chunk = self.holding(logical, len_bytes)?;
        Ok(Span::new(Offset::new(chunk.places[0] + (logical - chunk.logical)), len_bytes))
    }
}

/// The copies of chunks, in the order of the device: where each lies, which chunk it is of, and which of its copies.
pub(super) fn by_place(chunks: &Chunks) -> Result<Vec<(VolumeSpan, usize)>> {
    let mut places: Vec<_> = chunks
        .all()
        .iter()
        .enumerate()
        .flat_map(|(index, chunk)| (0..chunk.places.len()).map(move |copy| (chunk.place(copy), index)))
        .collect();
    places.sort_unstable_by_key(|(place, _)| place.start());
    match places.windows(2).find(|pair| pair[0].0.end() > pair[1].0.start()) {
        None => Ok(places),
        Some(pair) => {
            let logical = chunks.all()[pair[1].1].logical;
            let found = pair[1].0.start().get();
            Err(wrong(logical, "stripe.offset", found, "a place that no other chunk has"))
        }
    }
}
