//! Index trees: every node where its VCN says, every child once, keys in order, the bitmap no more and no less.

use std::cmp::Ordering;

use block::{Error, FieldValue, Result};
use zerocopy::FromBytes;

use super::corrupt::CorruptNtfs;
use super::layout::{
    BITMAP, EntryHead, FILE_NAME, INDEX_ALLOCATION, INDEX_ROOT, IndexBlockHead, IndexRootHead, NameHead,
    NodeHead,
};
use super::record::{Attribute, Body, Reference, fix_up, utf16_text};
use super::stream::Stream;
use super::volume::{File, Volume};
use crate::volume::bits::{Bits, WINDOW_MAX};

/// More levels than any index has.
const DEPTH_MAX: usize = 24;
/// The most bytes of an index's bitmap: 2^26 blocks.
const BITMAP_BYTES_MAX: u64 = 8 << 20;

/// Order of keys ([NTFS Documentation] *Index Root*): of names, of numbers, of hashes and numbers, of rows of numbers.
const COLLATE_NAME: u32 = 1;
const COLLATE_ULONG: u32 = 0x10;
const COLLATE_SECURITY_HASH: u32 = 0x12;
const COLLATE_ULONGS: u32 = 0x13;

/// The volume's table of upper case.
pub(super) struct UpperCase(Vec<u16>);

impl UpperCase {
    /// Reads `$UpCase`.
    pub(super) fn read(volume: &Volume) -> Result<Self> {
        let bytes = volume.with_system_file(10, |file| {
            let data = file.attributes.iter().find(|attribute| attribute.kind == super::layout::DATA);
            let data = data.ok_or_else(|| file.record.error().field("data", "missing", "there"))?;
            volume.begin(data)?.read_all(128 << 10)
        })?;
        let (units, _) = bytes.as_chunks::<2>();
        if units.len() != 1 << 16 {
            return Err(Error::corrupt(CorruptNtfs::UpCase).field("bytes", bytes.len(), 128 << 10));
        }
        Ok(Self(units.iter().map(|unit| u16::from_le_bytes(*unit)).collect()))
    }

    /// How two UTF-16 names compare where case does not matter.
    pub(super) fn compare(&self, one: &[u8], other: &[u8]) -> Ordering {
        let upper = |bytes: &[u8]| {
            let (units, _) = bytes.as_chunks::<2>();
            let units: Vec<u16> =
                units.iter().map(|unit| self.0[usize::from(u16::from_le_bytes(*unit))]).collect();
            units
        };
        upper(one).cmp(&upper(other))
    }
}

/// A `$FILE_NAME`.
#[derive(Clone, Copy)]
pub(super) struct Name<'a> {
    pub(super) parent: Reference,
    pub(super) space: u8,
    pub(super) units: &'a [u8],
}

impl<'a> Name<'a> {
    pub(super) fn parse(value: &'a [u8]) -> Option<Self> {
        let (head, rest) = NameHead::ref_from_prefix(value).ok()?;
        let units = rest.get(..usize::from(head.name_len) * 2)?;
        let is_proper = head.name_len > 0 && head.space <= 3;
        is_proper.then(|| Self { parent: Reference::of(head.parent.get()), space: head.space, units })
    }

    /// What a file and its directory must say alike.
    pub(super) fn fact(&self, file: Reference) -> Vec<u8> {
        let mut fact = file.raw().to_le_bytes().to_vec();
        fact.extend(self.parent.raw().to_le_bytes());
        fact.push(self.space);
        fact.extend(self.units);
        fact
    }

    /// Reads what [`Self::fact`] wrote.
    pub(super) fn of_fact(fact: &'a [u8]) -> (Reference, Self) {
        let raw =
            |at: usize| Reference::of(u64::from_le_bytes(fact[at..at + 8].try_into().expect("8 bytes")));
        (raw(0), Self { parent: raw(8), space: fact[16], units: &fact[17..] })
    }
}

/// One index of a file.
struct Index<'a> {
    volume: &'a Volume,
    upper_case: &'a UpperCase,
    file: &'a File<'a>,
    label: String,
    of_names: bool,
    collation: u32,
    block_bytes: u64,
    /// What the numbers of blocks count.
    unit_bytes: u64,
    blocks: Option<Stream>,
    met: Bits,
    last_key: Option<Vec<u8>>,
}

/// A node in the middle of its walk.
struct Frame {
    bytes: Vec<u8>,
    /// Where the next entry lies.
    at: usize,
    end: usize,
    has_children: bool,
    /// Whether the child of the entry at hand was walked.
    is_below_done: bool,
}

/// Checks all indexes of a file; calls `each` with every name of its directory and the file it names.
pub(super) fn check(
    volume: &Volume,
    upper_case: &UpperCase,
    file: &File<'_>,
    each: &mut dyn FnMut(Reference, Name<'_>),
) -> Result<()> {
    let roots = file.attributes.iter().filter(|attribute| attribute.kind == INDEX_ROOT);
    let mut count = 0;
    for root in roots.clone() {
        count += 1;
        let mut index = Index::open(volume, upper_case, file, root)?;
        index.walk(root.resident()?, each)?;
        index.check_bitmap(root.name)?;
    }
    if file.record.is_directory() != roots.clone().any(|root| root.is_named("$I30")) {
        let found = if file.record.is_directory() { "a directory's" } else { "not a directory's" };
        return Err(file.record.error().field("flags", found, "that of its index"));
    }
    let others = file.attributes.iter().filter(|attribute| attribute.kind == INDEX_ALLOCATION);
    let orphan = others.clone().find(|blocks| !roots.clone().any(|root| root.name == blocks.name));
    match orphan {
        Some(orphan) if count > 0 || orphan.lowest_vcn() == 0 => {
            Err(orphan.error("index root", "missing", "one"))
        }
        _ => Ok(()),
    }
}

impl<'a> Index<'a> {
    fn open(
        volume: &'a Volume,
        upper_case: &'a UpperCase,
        file: &'a File<'a>,
        root: &Attribute<'_>,
    ) -> Result<Self> {
        let value = root.resident()?;
        let (head, _) = IndexRootHead::ref_from_prefix(value)
            .map_err(|_| root.error("size", value.len(), "16 or more"))?;
        let block_bytes = u64::from(head.block_bytes.get());
        if !block_bytes.is_power_of_two() || !(512..=64 << 10).contains(&block_bytes) {
            return Err(root.error("index block's size", block_bytes, "a power of two, 512 to 65536"));
        }
        let of_names = root.is_named("$I30");
        if of_names && (head.kind.get(), head.collation.get()) != (FILE_NAME, COLLATE_NAME) {
            let found = format!("{:#x} by {:#x}", head.kind, head.collation);
            return Err(root.error("indexed attribute", found, "0x30 by 0x1"));
        }
        let blocks = blocks_of(volume, file, root.name)?;
        let block_count = blocks.as_ref().map_or(0, |blocks| blocks.data_bytes / block_bytes);
        if block_count
            > WINDOW_MAX.min(volume.cluster_count.saturating_mul(volume.cluster_bytes) / block_bytes)
        {
            return Err(root.error("number of index blocks", block_count, "no more than the volume holds"));
        }
        Ok(Self {
            volume,
            upper_case,
            file,
            label: format!("NTFS index {:?} of file record {}", utf16_text(root.name), file.record.number),
            of_names,
            collation: head.collation.get(),
            block_bytes,
            unit_bytes: if volume.cluster_bytes <= block_bytes { volume.cluster_bytes } else { 512 },
            blocks,
            met: Bits::none(0..block_count),
            last_key: None,
        })
    }

    fn error(&self) -> Error {
        Error::corrupt(CorruptNtfs::Stream { label: self.label.to_string() })
    }

    /// Walks the tree in the order of its keys.
    fn walk(&mut self, root: &[u8], each: &mut dyn FnMut(Reference, Name<'_>)) -> Result<()> {
        let root = root[size_of::<IndexRootHead>()..].to_vec();
        let mut frames = vec![self.frame(root, "root")?];
        while let Some(frame) = frames.last_mut() {
            let entry = self.entry(frame)?;
            if let (Some(child), false) = (entry.child, frame.is_below_done) {
                frame.is_below_done = true;
                if frames.len() >= DEPTH_MAX {
                    return Err(self.error().field("depth", "more", DEPTH_MAX));
                }
                let bytes = self.block(child)?;
                frames.push(self.frame(bytes, &format!("block {child}"))?);
                continue;
            }
            let Some(frame) = frames.last_mut() else { break };
            let (at, len) = (frame.at, entry.len);
            frame.is_below_done = false;
            frame.at += len;
            if entry.is_last {
                if frame.at != frame.end {
                    return Err(self.error().field("last entry's end", frame.at, frame.end));
                }
                frames.pop();
                continue;
            }
            let key = frame.bytes[at + size_of::<EntryHead>()..][..entry.key_len].to_vec();
            self.key(entry.file, key, each)?;
        }
        Ok(())
    }

    /// The node whose head is at the start of `bytes`.
    fn frame(&self, bytes: Vec<u8>, what: &str) -> Result<Frame> {
        let bad = |field: &str, found: u32| {
            self.error().field(
                format!("{field} of {what}"),
                found,
                format!("within its {} bytes", bytes.len()),
            )
        };
        let (head, _) = NodeHead::ref_from_prefix(&bytes)
            .map_err(|_| self.error().field(format!("size of {what}"), bytes.len(), "16 or more"))?;
        let size = |value: u32| usize::try_from(value).expect("32 bits index memory");
        let (at, end) = (size(head.entries_at.get()), size(head.used_bytes.get()));
        if size(head.allocated_bytes.get()) > bytes.len() {
            return Err(bad("allocated bytes", head.allocated_bytes.get()));
        }
        if end > size(head.allocated_bytes.get()) {
            return Err(bad("used bytes", head.used_bytes.get()));
        }
        if at < size_of::<NodeHead>() || !at.is_multiple_of(8) || at > end {
            return Err(bad("entries' offset", head.entries_at.get()));
        }
        let has_children = head.flags & 1 != 0;
        Ok(Frame { at, end, has_children, is_below_done: false, bytes })
    }

    fn entry(&self, frame: &Frame) -> Result<Entry> {
        let bytes = &frame.bytes[frame.at..frame.end];
        let (head, _) = EntryHead::ref_from_prefix(bytes)
            .map_err(|_| self.error().field("entries", "cut short", "a last entry"))?;
        let len = usize::from(head.len_bytes.get());
        if len < size_of::<EntryHead>() || !len.is_multiple_of(8) || len > bytes.len() {
            return Err(self.error().field(
                "entry's length",
                len,
                format!("a multiple of 8 of at most {}", bytes.len()),
            ));
        }
        let flags = head.flags.get();
        let has_child = flags & 1 != 0;
        if has_child != frame.has_children {
            let found = if has_child { "with" } else { "without" };
            return Err(self.error().field("entry", format!("{found} a node below"), "as its node says"));
        }
        let is_last = flags & 2 != 0;
        let key_len = if is_last { 0 } else { usize::from(head.key_bytes.get()) };
        let tail = if has_child { 8 } else { 0 };
        if size_of::<EntryHead>() + key_len + tail > len {
            return Err(self.error().field(
                "key's length",
                key_len,
                format!("within the entry of {len} bytes"),
            ));
        }
        let child = bytes[..len].last_chunk::<8>().map(|child| u64::from_le_bytes(*child));
        Ok(Entry { len, key_len, is_last, file: head.file.get(), child: child.filter(|_| has_child) })
    }

    /// Reads a block that was not met before, from where its node begins.
    fn block(&mut self, number: u64) -> Result<Vec<u8>> {
        let label = &*self.label;
        let bad = |what: &str| {
            Error::corrupt(CorruptNtfs::Stream { label: label.to_owned() }).field(
                "child",
                format!("block {number}, {what}"),
                "a block of its own",
            )
        };
        let blocks = self.blocks.as_ref().ok_or_else(|| bad("without an allocation"))?;
        let start =
            number.checked_mul(self.unit_bytes).filter(|start| start.is_multiple_of(self.block_bytes));
        let start = start.ok_or_else(|| bad("not at the start of one"))?;
        let index = start / self.block_bytes;
        if !self.met.window().contains(&index) {
            return Err(bad("past the end"));
        }
        let mut bytes = vec![0; usize::try_from(self.block_bytes).expect("64 KiB at most")];
        blocks.read(start, &mut bytes)?;
        let error = || {
            let error = Error::corrupt(CorruptNtfs::IndexBlock { label: label.to_owned(), block: number });
            match blocks.place(start) {
                Some((Some(at), _)) => error.at(at),
                _ => error,
            }
        };
        fix_up(&mut bytes, &[b"INDX"], &error)?;
        let (head, _) = IndexBlockHead::ref_from_prefix(&bytes).map_err(|_| error())?;
        if head.vcn.get() != number {
            return Err(error().field("own VCN", head.vcn, number));
        }
        if self.met.add(index..index + 1).is_some() {
            return Err(bad("met before"));
        }
        bytes.drain(..size_of::<IndexBlockHead>());
        Ok(bytes)
    }

    fn key(&mut self, file: u64, key: Vec<u8>, each: &mut dyn FnMut(Reference, Name<'_>)) -> Result<()> {
        if self.of_names {
            let name = Name::parse(&key).ok_or_else(|| self.error().field("key", "no name", "a name"))?;
            if name.parent != self.file.record.reference() {
                let wanted = format!("{:#x}", self.file.record.reference().raw());
                let field = format!("parent of {:?}", utf16_text(name.units));
                return Err(self.error().field(field, FieldValue::hex(name.parent.raw()), wanted));
            }
            each(Reference::of(file), name);
        }
        let is_ordered =
            self.last_key.as_ref().is_none_or(|last| self.compare(last, &key) != Some(Ordering::Greater));
        if !is_ordered {
            let text = match Name::parse(&key).filter(|_| self.of_names) {
                Some(name) => format!("{:?}", utf16_text(name.units)),
                None => format!("{key:02x?}"),
            };
            return Err(self.error().field(
                "order of keys",
                format!("{text} after a greater one"),
                "ascending",
            ));
        }
        self.last_key = Some(key);
        Ok(())
    }

    /// How two keys compare; `None` by a rule that is not known here.
    fn compare(&self, one: &[u8], other: &[u8]) -> Option<Ordering> {
        let words = |bytes: &[u8]| -> Vec<u32> {
            let (words, _) = bytes.as_chunks::<4>();
            words.iter().map(|word| u32::from_le_bytes(*word)).collect()
        };
        match self.collation {
            COLLATE_NAME => {
                let (one, other) = (Name::parse(one)?, Name::parse(other)?);
                Some(self.upper_case.compare(one.units, other.units))
            }
            COLLATE_ULONG | COLLATE_SECURITY_HASH | COLLATE_ULONGS => Some(words(one).cmp(&words(other))),
            _ => None,
        }
    }

    /// The bitmap must show the blocks that were met, and no other.
    fn check_bitmap(&self, name: &[u8]) -> Result<()> {
        let mut pieces =
            self.file.attributes.iter().filter(|piece| piece.kind == BITMAP && piece.name == name);
        let Some(first) = pieces.next() else {
            let has_blocks = self.met.count(self.met.window()) > 0;
            let error = || self.error().field("bitmap", "missing", "one");
            return if has_blocks { Err(error()) } else { Ok(()) };
        };
        let mut stream = self.volume.begin(first)?;
        pieces.try_for_each(|piece| stream.append(self.volume.cluster_count, piece))?;
        let bytes = stream.read_all(BITMAP_BYTES_MAX)?;
        let len = self.met.window().end;
        let bits = bytes.len() as u64 * 8;
        let set = Bits::of_bytes(0..bits.max(len), &bytes);
        let mut met = Bits::none(0..bits.max(len));
        (0..len).filter(|block| self.met.has(*block)).for_each(|block| met.join(block..block + 1));
        match met.first_difference(&set) {
            None => Ok(()),
            Some(block) => {
                let (found, wanted) =
                    if set.has(block) { ("set", "clear: nothing leads there") } else { ("clear", "set") };
                Err(self.error().field(format!("bit {block} of the bitmap"), found, wanted))
            }
        }
    }
}

struct Entry {
    len: usize,
    key_len: usize,
    is_last: bool,
    file: u64,
    child: Option<u64>,
}

fn blocks_of(volume: &Volume, file: &File<'_>, name: &[u8]) -> Result<Option<Stream>> {
    let mut pieces =
        file.attributes.iter().filter(|piece| piece.kind == INDEX_ALLOCATION && piece.name == name);
    let Some(first) = pieces.next() else { return Ok(None) };
    if let Body::Resident(..) = first.body {
        return Err(first.error("residence", 0, 1));
    }
    let mut stream = volume.begin(first)?;
    pieces.try_for_each(|piece| stream.append(volume.cluster_count, piece))?;
    if stream.runs.iter().any(|run| run.lcn.is_none()) {
        return Err(first.error("mapping pairs", "a hole", "none"));
    }
    Ok(Some(stream))
}
