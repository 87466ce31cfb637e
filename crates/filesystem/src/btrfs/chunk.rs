//! Chunks: which addresses lie where on the devices.

use block::{Error, Result};
use extent::{Offset, Span, VolumeSpan};
use zerocopy::FromBytes;

use super::corrupt::Corrupt;
use super::key::Key;
use super::layout::{RawChunk, RawKey, RawStripe, STRIPE_BYTES, group, item, object};
use super::piece::Column;
use super::superblock::Superblock;

/// A stretch of addresses that lies in one place, or has copies in several, of which each may be striped over devices.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub(super) logical: u64,
    pub(super) len_bytes: u64,
    /// Bits of [`group`].
    pub(super) kind: u64,
    stripes: Vec<Stripe>,
    /// Where its copies begin on the volume; 0 until that is laid.
    places: Vec<u64>,
}

/// A part of a device that a chunk has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stripe {
    /// Which of the superblock's devices.
    device: usize,
    /// Where it begins there.
    at: u64,
}

impl Chunk {
    pub(super) fn end(&self) -> u64 {
        self.logical + self.len_bytes
    }

    pub(super) fn copy_count(&self) -> usize {
        self.places.len()
    }

    /// Of the copy `copy`, on the volume.
    fn place(&self, copy: usize) -> VolumeSpan {
        Span::new(Offset::new(self.places[copy]), self.len_bytes)
    }

    /// How much of it one device has in one piece.
    pub(super) fn column_bytes(&self) -> u64 {
        self.len_bytes / (self.stripes.len() / self.places.len()) as u64
    }

    fn column(&self, stripe: Stripe) -> Column {
        Column { device: stripe.device, start_bytes: stripe.at, len_bytes: self.column_bytes() }
    }

    /// What the copy `copy` is striped over: stripes of copies take turns.
    pub(super) fn columns(&self, copy: usize) -> Vec<Column> {
        let stripes = self.stripes.iter().skip(copy).step_by(self.places.len());
        stripes.map(|stripe| self.column(*stripe)).collect()
    }

    /// Whether both say the same.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let about = |chunk: &Self| (chunk.logical, chunk.len_bytes, chunk.kind);
        about(self) == about(other) && self.stripes == other.stripes
    }

    /// Whether all stripes are whole, and on as many devices as its profile has them: each on another one, or all on one.
    fn is_striped_soundly(&self) -> bool {
        let count = (self.stripes.len() / self.places.len()) as u64;
        let mut devices: Vec<_> = self.stripes.iter().map(|stripe| stripe.device).collect();
        devices.sort_unstable();
        devices.dedup();
        let wanted = if self.kind & group::DUP == 0 { self.stripes.len() } else { 1 };
        devices.len() == wanted && (count == 1 || self.len_bytes.is_multiple_of(STRIPE_BYTES * count))
    }
}

fn wrong(logical: u64, name: &str, found: u64, expected: &str) -> Error {
    Error::corrupt(Corrupt::Chunk { logical }).field(name, found, expected.to_owned())
}

/// What chunks of a profile are.
struct Profile {
    bits: u64,
    name: &'static str,
    /// How often all of it is there; 0 if it is not read.
    copy_count: usize,
    is_striped: bool,
}

const fn profile(bits: u64, name: &'static str, copy_count: usize, is_striped: bool) -> Profile {
    Profile { bits, name, copy_count, is_striped }
}

const PROFILES: [Profile; 9] = [
    profile(0, "single", 1, false),
    profile(group::DUP, "DUP", 2, false),
    profile(group::RAID0, "RAID0", 1, true),
    profile(group::RAID1, "RAID1", 2, false),
    profile(group::RAID1C3, "RAID1C3", 3, false),
    profile(group::RAID1C4, "RAID1C4", 4, false),
    profile(group::RAID10, "RAID10", 2, true),
    profile(group::RAID5, "RAID5", 0, true),
    profile(group::RAID6, "RAID6", 0, true),
];

impl Profile {
    /// That of a chunk, if it is read.
    fn of(kind: u64) -> Result<&'static Self> {
        let bits = kind & !group::CONTENTS;
        let profile = PROFILES.iter().find(|profile| profile.bits == bits);
        let named = || profile.map_or(format!("{bits:#x}"), |profile| profile.name.to_owned());
        let read = profile.filter(|profile| profile.copy_count > 0);
        read.ok_or_else(|| Error::unsupported(format!("Btrfs chunks of profile {}", named())))
    }

    /// Whether stripes so many and so long can be those of a chunk. A chunk that is striped over one device is not striped.
    fn fits(&self, raw: &RawChunk) -> bool {
        let count = usize::from(raw.num_stripes.get());
        let is_whole = if self.is_striped {
            let is_in_turns = self.copy_count == 1 || usize::from(raw.sub_stripes.get()) == self.copy_count;
            count > 0 && count.is_multiple_of(self.copy_count) && is_in_turns
        } else {
            count == self.copy_count
        };
        is_whole && raw.stripe_len.get() == STRIPE_BYTES
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
    let profile = Profile::of(kind)?;
    let contents = kind & group::CONTENTS;
    if contents == 0 || (contents & group::SYSTEM != 0 && contents != group::SYSTEM) {
        return Err(wrong(logical, "type", kind, "data, metadata, both, or system"));
    }
    if !profile.fits(&raw) {
        return Err(wrong(logical, "num_stripes", raw.num_stripes.get().into(), "those of its profile"));
    }
    if raw.sector_size.get() != superblock.sector_bytes {
        return Err(wrong(logical, "sector_size", raw.sector_size.get().into(), "that of the volume"));
    }
    let is_aligned = |value: u64| value.is_multiple_of(superblock.sector_bytes.into());
    if len_bytes == 0
        || !is_aligned(len_bytes)
        || !is_aligned(logical)
        || logical.checked_add(len_bytes).is_none()
    {
        return Err(wrong(logical, "length", len_bytes, "whole sectors, and an end"));
    }
    let (stripes, behind) = stripes(superblock, logical, rest, raw.num_stripes.get())?;
    let chunk = Chunk { logical, len_bytes, kind, stripes, places: vec![0; profile.copy_count] };
    if !chunk.is_striped_soundly() {
        return Err(wrong(logical, "length", len_bytes, "whole stripes on as many devices"));
    }
    let ends = |stripe: &Stripe| {
        let end = stripe.at.checked_add(chunk.column_bytes());
        end.is_some_and(|end| end <= superblock.devices[stripe.device].len_bytes)
    };
    if let Some(stripe) = chunk.stripes.iter().find(|stripe| !ends(stripe) || !is_aligned(stripe.at)) {
        return Err(wrong(logical, "stripe.offset", stripe.at, "whole sectors within the device"));
    }
    Ok((chunk, bytes.len() - behind.len()))
}

/// So many stripes of the chunk at `logical`, and what lies behind them.
fn stripes<'a>(
    superblock: &Superblock,
    logical: u64,
    bytes: &'a [u8],
    count: u16,
) -> Result<(Vec<Stripe>, &'a [u8])> {
    let (mut stripes, mut rest) = (Vec::new(), bytes);
    for _ in 0..count {
        let raw = RawStripe::read_from_prefix(rest);
        let (raw, behind) =
            raw.map_err(|_| wrong(logical, "size", bytes.len() as u64, "that of all stripes"))?;
        rest = behind;
        let device = superblock.devices.iter().position(|device| device.number == raw.devid.get());
        let device = device.ok_or_else(|| {
            Error::unsupported(format!("Btrfs with a chunk on device {}, which is not this one", raw.devid))
        })?;
        if raw.dev_uuid != superblock.devices[device].uuid {
            return Err(wrong(
                logical,
                "stripe.devid",
                raw.devid.get(),
                "the number of the device of its UUID",
            ));
        }
        stripes.push(Stripe { device, at: raw.offset.get() });
    }
    Ok((stripes, rest))
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

    /// Says where on the volume a copy of a chunk begins.
    pub(super) fn put(&mut self, chunk: usize, copy: usize, at: u64) {
        self.0[chunk].places[copy] = at;
    }

    /// The profiles of data and of metadata.
    pub(super) fn profiles(&self) -> String {
        let kinds = [("data", group::DATA), ("metadata", group::METADATA)];
        let named = kinds.iter().flat_map(|(what, bit)| {
            let of_it = self.0.iter().filter(move |chunk| chunk.kind & bit != 0);
            let is_there = move |profile: &&Profile| {
                of_it.clone().any(|chunk| chunk.kind & !group::CONTENTS == profile.bits)
            };
            PROFILES.iter().filter(is_there).map(move |profile| format!("{what} {}", profile.name))
        });
        named.collect::<Vec<_>>().join(", ")
    }
}

/// The copies of chunks, in the order of the volume: where each lies, and which chunk it is of.
pub(super) fn by_place(chunks: &Chunks) -> Vec<(VolumeSpan, usize)> {
    let all = chunks.all().iter().enumerate();
    let mut places: Vec<_> = all
        .flat_map(|(index, chunk)| (0..chunk.copy_count()).map(move |copy| (chunk.place(copy), index)))
        .collect();
    places.sort_unstable_by_key(|(place, _)| place.start());
    places
}

/// A part of a device that a chunk has.
pub(super) struct Held {
    pub(super) column: Column,
    /// Which chunk has it, for which of its copies, and which of that copy's columns it is.
    pub(super) chunk: usize,
    pub(super) copy: usize,
    pub(super) number: usize,
}

/// What chunks have of devices, in the order of these.
pub(super) fn by_device(chunks: &Chunks) -> Result<Vec<Held>> {
    let mut all = Vec::new();
    for (index, chunk) in chunks.all().iter().enumerate() {
        let copies = chunk.copy_count();
        all.extend(chunk.stripes.iter().zip(0..).map(|(stripe, number)| Held {
            column: chunk.column(*stripe),
            chunk: index,
            copy: number % copies,
            number: number / copies,
        }));
    }
    all.sort_unstable_by_key(|held| (held.column.device, held.column.start_bytes));
    let overlaps = |pair: &&[Held]| {
        let (before, next) = (pair[0].column, pair[1].column);
        before.device == next.device && before.start_bytes + before.len_bytes > next.start_bytes
    };
    match all.windows(2).find(overlaps) {
        None => Ok(all),
        Some(pair) => {
            let logical = chunks.all()[pair[1].chunk].logical;
            let found = pair[1].column.start_bytes;
            Err(wrong(logical, "stripe.offset", found, "a place that no other chunk has"))
        }
    }
}
