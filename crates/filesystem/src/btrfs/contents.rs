//! What is in a regular file or in a symbolic link, to be read as its guest reads it.

use std::sync::{Arc, Mutex, PoisonError};

use block::{Error, ReadAt, Result, check_bounds, read_vec};
use extent::{File, FileOffset, Span, VolumeSpan};
use zerocopy::FromBytes;

use super::file_extent::{self, Data, FileExtentItem, Packing};
use super::files::{self, shown};
use super::key::Key;
use super::layout::{COMPRESSED_BYTES_MAX, RawInode, item, mode};
use super::roots::{self, Tree};
use super::tree::Reader;
use super::unpack::unpack;
use crate::Source;
use crate::browse::{Contents, Inline};
use crate::files::{FileExtent, FileId, StreamName};
use crate::pieces::Pieces;

/// Opens the main stream of a regular file.
pub(super) fn open(
    reader: &Reader,
    trees: &[Tree],
    file: FileId,
    name: StreamName<'_>,
) -> Result<Box<dyn Contents>> {
    match name {
        StreamName::Main => open_kind(reader, trees, file, mode::REGULAR),
        StreamName::Named(_) => Err(unread(file, "it is no regular file")),
    }
}

fn unread(file: FileId, why: &str) -> Error {
    let (tree, inode) = files::of_id(file);
    Error::unsupported(format!("Btrfs file {inode} of tree {tree} is not read: {why}"))
}

/// Opens what is in a file of this kind of [`mode`].
pub(super) fn open_kind(
    reader: &Reader,
    trees: &[Tree],
    file: FileId,
    kind: u32,
) -> Result<Box<dyn Contents>> {
    let (tree, inode) = files::of_id(file);
    let root = roots::find(trees, tree)?.root;
    let (mut size_bytes, mut extents, mut packed, mut inline) = (None, Vec::new(), Vec::new(), None);
    let range = Key::new(inode, item::INODE, 0)..=Key::new(inode, item::EXTENT_DATA, u64::MAX);
    reader.walk(root, &range, &mut |key, bytes| {
        match key.kind {
            item::INODE => {
                let raw = RawInode::read_from_bytes(bytes)
                    .map_err(|_| key.wrong("size", bytes.len() as u64, "that of an inode"))?;
                let is_wanted = raw.mode.get() & mode::MASK == kind;
                size_bytes = is_wanted.then_some(raw.size.get());
            }
            item::EXTENT_DATA => match file_extent::parse(&reader.superblock, key, bytes)? {
                FileExtentItem::Hole => {}
                FileExtentItem::Inline { bytes, packing, whole_bytes } => {
                    let is_bounded = whole_bytes <= COMPRESSED_BYTES_MAX;
                    let whole = usize::try_from(whole_bytes).ok().filter(|_| is_bounded);
                    let whole =
                        whole.ok_or_else(|| key.wrong("ram_bytes", whole_bytes, "at most 128 KiB"))?;
                    let sector = reader.superblock.sector_bytes as usize;
                    inline = Some(match packing {
                        Packing::None => bytes.to_vec(),
                        _ => unpack(packing, bytes, whole, sector)?,
                    });
                }
                FileExtentItem::Data(data) if data.packing == Packing::None || data.is_unwritten => {
                    extents.push(shown(reader, key.offset, &data)?);
                }
                FileExtentItem::Data(data) => packed.push(Packed::new(reader, key, &data)?),
            },
            _ => {}
        }
        Ok(())
    })?;
    let size_bytes = size_bytes.ok_or_else(|| unread(file, "it is no regular file"))?;
    if let Some(bytes) = inline {
        return match extents.is_empty() && packed.is_empty() {
            true => Ok(Box::new(Inline { bytes, size_bytes })),
            false => Err(unread(file, "it lies both in its tree and elsewhere")),
        };
    }
    let plain = Pieces { source: Arc::clone(&reader.source), size_bytes, extents };
    if packed.is_empty() {
        return Ok(Box::new(plain));
    }
    let (source, sector_bytes) = (Arc::clone(&reader.source), reader.superblock.sector_bytes as usize);
    Ok(Box::new(Mixed { plain, packed, source, sector_bytes, last: Mutex::default() }))
}

/// A part of a file that lies in a compressed extent.
struct Packed {
    /// Where in the file, and how long.
    logical: u64,
    len_bytes: u64,
    /// Where the extent lies, and how long it is once it is decompressed.
    place: VolumeSpan,
    whole_bytes: usize,
    /// Where in that the part begins.
    skip: usize,
    packing: Packing,
}

impl Packed {
    fn new(reader: &Reader, key: Key, data: &Data) -> Result<Self> {
        let is_bounded = data.whole_bytes <= COMPRESSED_BYTES_MAX && data.len_bytes <= COMPRESSED_BYTES_MAX;
        let sizes = usize::try_from(data.whole_bytes).ok().zip(usize::try_from(data.offset).ok());
        let (whole_bytes, skip) = sizes
            .filter(|_| is_bounded)
            .ok_or_else(|| key.wrong("ram_bytes", data.whole_bytes, "at most 128 KiB"))?;
        let FileExtent { span: place, logical, .. } = shown(reader, key.offset, data)?;
        let (logical, len_bytes) = (logical.get(), data.part_bytes);
        Ok(Self { logical, len_bytes, place, whole_bytes, skip, packing: data.packing })
    }

    fn end(&self) -> u64 {
        self.logical.saturating_add(self.len_bytes)
    }
}

/// A file with compressed parts.
struct Mixed {
    /// The others.
    plain: Pieces,
    /// By where they lie in the file.
    packed: Vec<Packed>,
    source: Source,
    sector_bytes: usize,
    /// The extent that was decompressed last: readers go on where they stopped.
    last: Mutex<Option<(VolumeSpan, Arc<Vec<u8>>)>>,
}

impl Mixed {
    fn unpacked(&self, part: &Packed) -> Result<Arc<Vec<u8>>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, bytes)) = last.as_ref().filter(|(place, _)| *place == part.place) {
            return Ok(Arc::clone(bytes));
        }
        let input = read_vec(&*self.source, part.place.start(), part.place.len_bytes(), "Btrfs extent")?;
        let bytes = Arc::new(unpack(part.packing, &input, part.whole_bytes, self.sector_bytes)?);
        *last = Some((part.place, Arc::clone(&bytes)));
        Ok(bytes)
    }

    /// The first compressed part that ends behind `at`.
    fn packed_from(&self, at: u64) -> Option<&Packed> {
        self.packed.get(self.packed.partition_point(|part| part.end() <= at))
    }
}

impl ReadAt<File> for Mixed {
    fn len_bytes(&self) -> u64 {
        self.plain.size_bytes
    }

    fn read_at(&self, at: FileOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.plain.size_bytes)?;
        let (mut at, mut rest) = (at.get(), buf);
        while !rest.is_empty() {
            let up_to = |left: u64| usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
            let part = self.packed_from(at);
            let len = match part {
                Some(part) if part.logical <= at => up_to(part.end() - at),
                Some(part) => up_to(part.logical - at),
                None => rest.len(),
            };
            let (now, behind) = rest.split_at_mut(len);
            match part.filter(|part| part.logical <= at) {
                None => self.plain.read_at(FileOffset::new(at), now)?,
                Some(part) => {
                    let bytes = self.unpacked(part)?;
                    let from = usize::try_from(at - part.logical).unwrap_or(usize::MAX);
                    let there = bytes.get(part.skip.saturating_add(from)..).unwrap_or_default();
                    let count = there.len().min(now.len());
                    now[..count].copy_from_slice(&there[..count]);
                    now[count..].fill(0);
                }
            }
            at += len as u64;
            rest = behind;
        }
        Ok(())
    }
}

impl Contents for Mixed {
    fn next_data(&self, at: FileOffset) -> Result<Option<Span<File>>> {
        let size = FileOffset::new(self.plain.size_bytes);
        let packed = self.packed_from(at.get()).map(|part| {
            let (start, end) = (FileOffset::new(part.logical).max(at), FileOffset::new(part.end()).min(size));
            (start, end)
        });
        let packed = packed.filter(|(start, end)| start < end).map(|(start, end)| Span::between(start, end));
        Ok(match (packed, self.plain.next_data(at)?) {
            (Some(packed), Some(plain)) if plain.start() < packed.start() => Some(plain),
            (Some(packed), _) => Some(packed),
            (None, plain) => plain,
        })
    }
}
