//! The header of a tar archive's member: POSIX.1-2017, pax, "ustar Interchange Format"; `gnu` for what GNU tar's manual ("Basic Tar Format") adds.

/// Headers and contents begin at multiples of it.
pub(crate) const BLOCK_BYTES: u64 = 512;
/// Archives are filled up to whole records of 20 blocks.
pub(crate) const RECORD_BYTES: u64 = 20 * BLOCK_BYTES;

/// A field of a header, from its first byte up to the byte after its last.
pub(crate) type Field = std::ops::Range<usize>;

pub(crate) const NAME: Field = 0..100;
pub(crate) const MODE: Field = 100..108;
pub(crate) const UID: Field = 108..116;
pub(crate) const GID: Field = 116..124;
/// Octal digits, or (gnu) a binary number whose first bit is set.
pub(crate) const SIZE: Field = 124..136;
pub(crate) const MTIME: Field = 136..148;
/// The sum of all bytes of the header, these being spaces.
pub(crate) const CHECKSUM: Field = 148..156;
pub(crate) const TYPE: usize = 156;
/// `ustar` and a zero byte; (gnu) `ustar` and a space.
pub(crate) const MAGIC: Field = 257..263;
pub(crate) const VERSION: Field = 263..265;
/// What comes before the name, if anything does, in archives with the magic of POSIX.
pub(crate) const PREFIX: Field = 345..500;

/// A file; before POSIX a zero byte.
pub(crate) const TYPE_FILE: u8 = b'0';
pub(crate) const TYPE_OLD_FILE: u8 = 0;
/// A file that is to be contiguous.
pub(crate) const TYPE_CONTIGUOUS: u8 = b'7';
pub(crate) const TYPE_FOLDER: u8 = b'5';
/// Of the next member: records `LENGTH KEY=VALUE`.
pub(crate) const TYPE_EXTENDED: u8 = b'x';
/// Of all members behind it.
pub(crate) const TYPE_GLOBAL: u8 = b'g';
/// (gnu) The name of the next member.
pub(crate) const TYPE_LONG_NAME: u8 = b'L';
/// (gnu) Where the next member, a link, leads.
pub(crate) const TYPE_LONG_LINK: u8 = b'K';
/// (gnu) A file with holes.
pub(crate) const TYPE_SPARSE: u8 = b'S';
