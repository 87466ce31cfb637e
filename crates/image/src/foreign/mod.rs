//! Files that are no disk image that Leandisk reads: images of other programs, archives, what is compressed, text.
//!
//! Anything could be a raw disk, and each of these was taken for one. To copy it so helps nobody, and to serve it writable lets a guest
//! write into the container. So they are refused by name, with what to do; `-f raw` is the way out.
//!
//! Invariants:
//! - nothing is refused for a few bytes that a boot sector or a file system could begin with: short magic numbers count only
//!   with the fields behind them, and only where there is no partition table;
//! - no name decides but one: a format is never read because of what is found here.
//!
//! Absent on purpose: reading any of them; block devices, which are what they are.

mod archives;
mod disks;
mod text;

use block::{Error, HostFile, Result};
use extent::Offset;

/// What a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Foreign {
    /// In words, with its article: `a QED image`.
    name: &'static str,
    /// What to do with it.
    advice: &'static str,
}

/// As much of a file as tells what it is.
struct Sample {
    /// Its first bytes, [`HEAD_BYTES`] or all.
    head: Vec<u8>,
    /// Its last sector of 512 bytes, or nothing if it is shorter.
    tail: Vec<u8>,
    /// The extension of its name, in lower case.
    extension: String,
}

/// Up to the second volume descriptor of a disc.
const HEAD_BYTES: u64 = 36 << 10;
const SECTOR_BYTES: u64 = 512;

/// What the file is if it has the signature of something else.
pub(crate) fn recognise(file: &dyn HostFile) -> Result<Option<Foreign>> {
    if file.is_block_device() {
        return Ok(None);
    }
    let sample = Sample::of(file)?;
    Ok(disks::recognise(&sample).or_else(|| archives::recognise(&sample)))
}

/// What the file is if it has nothing but text in it, or nothing at all: whatever signatures of disk images there are came before.
pub(crate) fn recognise_text(file: &dyn HostFile) -> Result<Option<Foreign>> {
    if file.is_block_device() {
        return Ok(None);
    }
    Ok(text::recognise(&Sample::of(file)?))
}

impl Foreign {
    /// `Unsupported`, with what to do.
    pub(crate) fn refusal(self) -> Error {
        Error::unsupported(format!("it is {}, not a disk image that Leandisk reads", self.name))
            .hint(format!("{}; if it really is a raw disk, say so with -f raw", self.advice))
    }
}

impl Sample {
    fn of(file: &dyn HostFile) -> Result<Self> {
        let len_bytes = file.len_bytes();
        let tail_at = len_bytes.checked_sub(SECTOR_BYTES);
        Ok(Self {
            head: read(file, 0, len_bytes.min(HEAD_BYTES))?,
            tail: tail_at.map_or(Ok(Vec::new()), |at| read(file, at, SECTOR_BYTES))?,
            extension: extension_of(file.name()),
        })
    }

    fn begins_with(&self, magic: &[u8]) -> bool {
        self.head.starts_with(magic)
    }

    fn has(&self, at: usize, magic: &[u8]) -> bool {
        self.head.get(at..).is_some_and(|rest| rest.starts_with(magic))
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.head.get(at).copied()
    }

    fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.head.get(at..)?.first_chunk().copied()
    }

    fn u32_le(&self, at: usize) -> Option<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    /// Whether the first sector can be a partition table: such a disk is raw, whatever else is in that sector.
    fn has_partition_table(&self) -> bool {
        let is_status = |index: usize| matches!(self.byte(446 + 16 * index), Some(0 | 0x80));
        self.has(510, &[0x55, 0xaa]) && (0..4).all(is_status)
    }
}

/// The extension of a file's name, in lower case; empty if it has none.
fn extension_of(name: &str) -> String {
    let name = name.rsplit_once('/').map_or(name, |(_, name)| name);
    name.rsplit_once('.').map_or(String::new(), |(_, extension)| extension.to_ascii_lowercase())
}

fn read(file: &dyn HostFile, at: u64, len_bytes: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len_bytes).expect("bounded by a constant")];
    file.read_at(Offset::new(at), &mut bytes)?;
    Ok(bytes)
}
