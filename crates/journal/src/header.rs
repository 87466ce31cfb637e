//! The header: which disk a journal belongs to.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use block::{Error, ReadAt, Result};
use extent::{HostOffset, HostSpan, Offset, Span, Virtual, VirtualSpan};
use xxhash_rust::xxh3::Xxh3;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use crate::corrupt::Corrupt;
use crate::decode::{digest_without, next_bytes, next_struct};
use crate::layout::{HEADER_MAGIC, HeaderStart, OwnerEntry, SpanEntry, VERSION, VERSION_WITHOUT_OWNER};

/// Room for the header at the start of the file.
pub const HEADER_BYTES: u64 = 16 << 10;

/// The most witnesses there can be.
pub const WITNESS_COUNT_MAX: usize = 256;

/// The largest slot.
pub const SLOT_BYTES_MAX: u64 = 256 << 20;

/// Slots are multiples of this, so that records are aligned for any storage.
const SLOT_UNIT_BYTES: u64 = 4096;

/// The longest text that is kept.
const TEXT_LEN_MAX: usize = 2048;

/// The longest path that Linux opens (`PATH_MAX`, limits.h).
const PATH_LEN_MAX: usize = 4096;

/// The longest name in a folder of Linux (`NAME_MAX`, limits.h).
const NAME_LEN_MAX: usize = 255;

/// The most bytes that witnesses may have in all.
const WITNESS_BYTES_MAX: u64 = 64 << 20;

/// Where a header's digest lies.
const DIGEST_AT: usize = 16;

/// What tells a file from every other one: its device and its inode. A block device has all ones, and its own number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileId {
    /// The device it lies on.
    pub device: u64,
    /// Its inode's number.
    pub inode: u64,
}

impl FileId {
    /// Of what [`block::HostFile::identity`] answers.
    pub fn new((device, inode): (u64, u64)) -> Self {
        Self { device, inode }
    }

    /// Whether it is that of a block device.
    pub fn is_block_device(self) -> bool {
        self.device == u64::MAX
    }
}

/// Which disk it is, to the host that has it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DiskName {
    /// Its first file.
    pub file: FileId,
    /// Where that lies, without links.
    pub path: PathBuf,
    /// A block device's name that stays the same when the machine starts again; empty if it has none.
    pub lasting_name: String,
}

impl DiskName {
    /// Whether the other is the same disk. One that was put back under its path is; a path of a device that has a lasting
    /// name says nothing.
    fn is(&self, other: &Self) -> bool {
        match (self.file.is_block_device(), other.file.is_block_device()) {
            (true, true) if self.lasting_name.is_empty() && other.lasting_name.is_empty() => {
                self.file == other.file && self.path == other.path
            }
            (true, true) => self.lasting_name == other.lasting_name,
            (false, false) => self.file == other.file || self.path == other.path,
            _ => false,
        }
    }
}

/// Which file a journal belongs to, and which file it is itself. Journals of version 1 do not tell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The disk.
    pub disk: DiskName,
    /// The journal's own file: a copy of a journal is another one.
    pub journal: FileId,
}

/// What people know a disk by.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    /// What is on the volume, such as `ntfs`; empty if no volume changes.
    pub filesystem: String,
    /// Its UUID or serial number, empty if it has none.
    pub uuid: String,
    /// The image's format.
    pub format: String,
}

/// Which disk a journal belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// What people know it by. Texts longer than 2048 bytes are cut.
    pub identity: Identity,
    /// Whose it is; `None` in a journal of version 1, and until its file is made.
    pub owner: Option<Owner>,
    /// Size of the virtual disk.
    pub virtual_bytes: u64,
    /// The volume that changes.
    pub volume: VirtualSpan,
    /// Size of each slot.
    pub slot_bytes: u64,
    /// What shows that the disk was not used since.
    pub witnesses: Vec<VirtualSpan>,
    /// [`witness_digest`] of them when the journal was made.
    pub witness_digest: u128,
}

impl Header {
    /// The header of a change that writes no records: while the journal is there, an image that is marked as open was left so by
    /// Leandisk. Whose it is, who makes the file fills in.
    pub fn without_volume(identity: Identity, virtual_bytes: u64) -> Self {
        Self {
            identity,
            owner: None,
            virtual_bytes,
            volume: Span::from_zero(0),
            slot_bytes: SLOT_UNIT_BYTES,
            witnesses: Vec::new(),
            witness_digest: Xxh3::new().digest128(),
        }
    }

    /// The stored form, [`HEADER_BYTES`] long. `Invalid` if a count or size is out of range.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.check()?;
        let Identity { filesystem, uuid, format } = &self.identity;
        let disk = self.owner.as_ref().map(|owner| &owner.disk);
        let path = disk.map_or(&[][..], |disk| disk.path.as_os_str().as_bytes());
        if path.len() > PATH_LEN_MAX {
            return Err(Error::invalid("journal").field(
                "length of the disk's path",
                path.len(),
                PATH_LEN_MAX,
            ));
        }
        let lasting_name = disk.map_or("", |disk| &disk.lasting_name);
        let lasting_name = cut(lasting_name, NAME_LEN_MAX).as_bytes();
        let [filesystem, uuid, format] =
            [filesystem, uuid, format].map(|text| cut(text, TEXT_LEN_MAX).as_bytes());
        let mut texts = vec![filesystem, uuid, format, path];
        let owner = self.owner.as_ref().map(|owner| OwnerEntry {
            disk_device: U64::new(owner.disk.file.device),
            disk_inode: U64::new(owner.disk.file.inode),
            journal_device: U64::new(owner.journal.device),
            journal_inode: U64::new(owner.journal.inode),
            lasting_name_len: text_len(lasting_name),
            reserved: [0; 6],
        });
        texts.extend(owner.map(|_| lasting_name));
        let mut start = HeaderStart {
            magic: HEADER_MAGIC,
            version: U32::new(if owner.is_some() { VERSION } else { VERSION_WITHOUT_OWNER }),
            len_bytes: U32::new(0),
            digest: [0; 16],
            virtual_bytes: U64::new(self.virtual_bytes),
            volume_start: U64::new(self.volume.start().get()),
            volume_bytes: U64::new(self.volume.len_bytes()),
            slot_bytes: U64::new(self.slot_bytes),
            witness_digest: self.witness_digest.to_le_bytes(),
            witness_count: U32::new(u32::try_from(self.witnesses.len()).expect("bounded")),
            filesystem_len: text_len(filesystem),
            uuid_len: text_len(uuid),
            format_len: text_len(format),
            path_len: text_len(path),
            reserved: U32::new(0),
        };
        let mut rest = owner.map_or(Vec::new(), |owner| owner.as_bytes().to_vec());
        for witness in &self.witnesses {
            let (start, len_bytes) = (U64::new(witness.start().get()), U64::new(witness.len_bytes()));
            rest.extend_from_slice(SpanEntry { start, len_bytes }.as_bytes());
        }
        texts.iter().for_each(|text| rest.extend_from_slice(text));
        let len = size_of::<HeaderStart>() + rest.len();
        start.len_bytes = U32::new(u32::try_from(len).expect("bounded by counts"));
        let mut bytes = start.as_bytes().to_vec();
        bytes.append(&mut rest);
        let digest = digest_without(&bytes, DIGEST_AT);
        bytes[DIGEST_AT..DIGEST_AT + 16].copy_from_slice(&digest);
        let header_len = usize::try_from(HEADER_BYTES).expect("small");
        assert!(len <= header_len, "what is bounded fits");
        bytes.resize(header_len, 0);
        Ok(bytes)
    }

    /// Reads the stored form, with its digest. `Unsupported` if it is of another version, `Corrupt` if it is damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<(Self, [u8; 16])> {
        let start: HeaderStart = next_struct(&mut &bytes[..])?;
        if start.magic != HEADER_MAGIC {
            return Err(Error::corrupt(Corrupt::Magic));
        }
        let version = start.version.get();
        if ![VERSION, VERSION_WITHOUT_OWNER].contains(&version) {
            return Err(Error::unsupported("journal").field("version", version, VERSION));
        }
        let len = usize::try_from(start.len_bytes.get()).expect("32 bits");
        let whole = bytes.get(..len).filter(|whole| whole.len() >= size_of::<HeaderStart>());
        let Some(whole) = whole.filter(|whole| digest_without(whole, DIGEST_AT) == start.digest) else {
            return Err(Error::corrupt(Corrupt::HeaderDigest));
        };
        Ok((Self::parse(&start, &whole[size_of::<HeaderStart>()..])?, start.digest))
    }

    fn parse(start: &HeaderStart, mut rest: &[u8]) -> Result<Self> {
        let owner: Option<OwnerEntry> = match start.version.get() {
            VERSION_WITHOUT_OWNER => None,
            _ => Some(next_struct(&mut rest)?),
        };
        let count = usize::try_from(start.witness_count.get()).expect("32 bits");
        let mut witnesses = Vec::with_capacity(count.min(WITNESS_COUNT_MAX));
        for _ in 0..count {
            let entry: SpanEntry = next_struct(&mut rest)?;
            witnesses.push(span(entry.start.get(), entry.len_bytes.get())?);
        }
        let mut text = |len: U16| next_bytes(&mut rest, usize::from(len.get()));
        let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let identity = Identity {
            filesystem: words(text(start.filesystem_len)?),
            uuid: words(text(start.uuid_len)?),
            format: words(text(start.format_len)?),
        };
        let path = PathBuf::from(OsStr::from_bytes(text(start.path_len)?));
        let owner = match owner {
            None => None,
            Some(entry) => {
                let file = FileId { device: entry.disk_device.get(), inode: entry.disk_inode.get() };
                let journal = FileId { device: entry.journal_device.get(), inode: entry.journal_inode.get() };
                let lasting_name = words(text(entry.lasting_name_len)?);
                Some(Owner { disk: DiskName { file, path, lasting_name }, journal })
            }
        };
        let header = Self {
            identity,
            owner,
            virtual_bytes: start.virtual_bytes.get(),
            volume: span(start.volume_start.get(), start.volume_bytes.get())?,
            slot_bytes: start.slot_bytes.get(),
            witnesses,
            witness_digest: u128::from_le_bytes(start.witness_digest),
        };
        match header.check() {
            Ok(()) if rest.is_empty() => Ok(header),
            Ok(()) => Err(Error::corrupt(Corrupt::HeaderTooLong)),
            Err(error) => Err(Error::corrupt(error.to_string()).because(error)),
        }
    }

    /// Whether the journal names this disk as its own; `None` if it does not tell: one of version 1, or a copy of a journal,
    /// which came here with a copy of its disk. `this` is the file that the journal is.
    pub fn names(&self, disk: &DiskName, this: FileId) -> Option<bool> {
        let owner = self.owner.as_ref()?;
        if owner.disk.is(disk) {
            return Some(true);
        }
        (owner.journal == this).then_some(false)
    }

    /// Where its disk lies, for messages.
    pub fn disk_path(&self) -> Option<&Path> {
        self.owner.as_ref().map(|owner| owner.disk.path.as_path())
    }

    fn check(&self) -> Result<()> {
        if !Span::from_zero(self.virtual_bytes).covers(&self.volume) {
            return Err(Error::invalid("the journal's volume lies past the end of its disk"));
        }
        let is_slot = (SLOT_UNIT_BYTES..=SLOT_BYTES_MAX).contains(&self.slot_bytes)
            && self.slot_bytes.is_multiple_of(SLOT_UNIT_BYTES);
        if !is_slot {
            let expected = format!("a multiple of {SLOT_UNIT_BYTES} up to {SLOT_BYTES_MAX}");
            return Err(Error::invalid("journal").field("slot size", self.slot_bytes, expected));
        }
        let bytes = self.witnesses.iter().try_fold(0u64, |sum, each| sum.checked_add(each.len_bytes()));
        let has_room = bytes.is_some_and(|bytes| bytes <= WITNESS_BYTES_MAX);
        if self.witnesses.len() > WITNESS_COUNT_MAX || !has_room {
            return Err(Error::invalid("a journal cannot have so many witnesses"));
        }
        if let Some(outside) = self.witnesses.iter().find(|witness| !self.volume.covers(witness)) {
            return Err(Error::invalid("a witness lies outside its volume").at(outside.start()));
        }
        Ok(())
    }

    /// Where the record of this number lies in the file.
    pub fn slot(&self, sequence: u64) -> HostSpan {
        HostSpan::new(HostOffset::new(HEADER_BYTES + (sequence & 1) * self.slot_bytes), self.slot_bytes)
    }
}

fn text_len(text: &[u8]) -> U16 {
    U16::new(u16::try_from(text.len()).expect("cut"))
}

/// The longest part of `text` that is kept.
fn cut(text: &str, len_max: usize) -> &str {
    let end = (0..=text.len().min(len_max)).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// A span from stored numbers.
pub(crate) fn span(start: u64, len_bytes: u64) -> Result<VirtualSpan> {
    Span::checked(Offset::new(start), len_bytes)
        .ok_or_else(|| Error::corrupt(Corrupt::SpanOverflows).at(Offset::<Virtual>::new(start)))
}

/// XXH3-128 of what the spans hold, one after the other.
pub fn witness_digest(disk: &dyn ReadAt<Virtual>, spans: &[VirtualSpan]) -> Result<u128> {
    let mut hasher = Xxh3::new();
    let mut buffer = Vec::new();
    for piece in spans.iter().flat_map(|span| span.split(1 << 20)) {
        buffer.resize(usize::try_from(piece.len_bytes()).expect("at most 1 MiB"), 0);
        disk.read_at(piece.start(), &mut buffer)?;
        hasher.update(&buffer);
    }
    Ok(hasher.digest128())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use block::ErrorKind;

    pub(crate) fn header() -> Header {
        Header {
            identity: Identity { filesystem: "ntfs".into(), uuid: "1234-ABCD".into(), format: "vhdx".into() },
            owner: Some(Owner {
                disk: DiskName {
                    file: FileId { device: 5, inode: 77 },
                    path: "/disks/ü.vhdx".into(),
                    lasting_name: String::new(),
                },
                journal: FileId { device: 5, inode: 78 },
            }),
            virtual_bytes: 1 << 20,
            volume: Span::new(Offset::new(4096), 64 << 10),
            slot_bytes: 8192,
            witnesses: vec![Span::new(Offset::new(4096), 100), Span::new(Offset::new(8192), 8)],
            witness_digest: 7,
        }
    }

    #[test]
    fn a_header_comes_out_as_it_went_in() {
        let bytes = header().to_bytes().unwrap();
        assert_eq!(bytes.len() as u64, HEADER_BYTES);
        assert_eq!(Header::from_bytes(&bytes).unwrap().0, header());
        let old = Header { owner: None, ..header() };
        let bytes = old.to_bytes().unwrap();
        assert_eq!((bytes[8], Header::from_bytes(&bytes).unwrap().0), (1, old), "version 1");
        assert!((header().slot(2).start().get(), header().slot(3).start().get()) == (16384, 24576));
    }

    #[test]
    fn every_damaged_byte_is_found() {
        let bytes = header().to_bytes().unwrap();
        let entries = size_of::<OwnerEntry>() + 2 * size_of::<SpanEntry>();
        let len = size_of::<HeaderStart>() + entries + 4 + 9 + 4 + 14;
        for at in 0..len {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            let error = Header::from_bytes(&damaged).err().unwrap();
            let is_version = (8..12).contains(&at);
            assert_eq!(error.kind() == ErrorKind::Unsupported, is_version, "byte {at}: {error}");
        }
    }

    #[test]
    fn what_is_out_of_range_is_not_written() {
        let invalid = [
            Header { slot_bytes: 0, ..header() },
            Header { slot_bytes: 5000, ..header() },
            Header { virtual_bytes: 4096, ..header() },
            Header { witnesses: vec![Span::from_zero(1)], ..header() },
            Header { witnesses: vec![Span::new(Offset::new(4096), 1); 257], ..header() },
        ];
        for header in invalid {
            assert_eq!(header.to_bytes().err().unwrap().kind(), ErrorKind::Invalid, "{header:?}");
        }
        let long = Identity { uuid: "é".repeat(4000), ..Identity::default() };
        let bytes = Header { identity: long, ..header() }.to_bytes().unwrap();
        assert_eq!(Header::from_bytes(&bytes).unwrap().0.identity.uuid, "é".repeat(1024));
        let mut far = header();
        far.owner.as_mut().unwrap().disk.path = "x".repeat(5000).into();
        assert_eq!(far.to_bytes().err().unwrap().kind(), ErrorKind::Invalid);
    }

    /// Everything at its longest fits.
    #[test]
    fn the_largest_header_comes_out_as_it_went_in() {
        let text = |letter: &str| letter.repeat(TEXT_LEN_MAX);
        let identity = Identity { filesystem: text("f"), uuid: text("u"), format: text("o") };
        let disk = DiskName {
            file: FileId { device: u64::MAX, inode: 3 },
            path: OsStr::from_bytes(&[0xff; PATH_LEN_MAX]).into(),
            lasting_name: "n".repeat(NAME_LEN_MAX),
        };
        let largest = Header {
            identity,
            owner: Some(Owner { disk, journal: FileId::default() }),
            witnesses: vec![Span::new(Offset::new(4096), 1); WITNESS_COUNT_MAX],
            ..header()
        };
        assert_eq!(Header::from_bytes(&largest.to_bytes().unwrap()).unwrap().0, largest);
    }

    #[test]
    fn a_journal_names_its_disk_under_its_path_or_as_its_file() {
        let header = header();
        let (own, copy) = (FileId { device: 5, inode: 78 }, FileId { device: 5, inode: 79 });
        let disk = header.owner.clone().unwrap().disk;
        let names = |disk: &DiskName, this| header.names(disk, this);
        assert_eq!((names(&disk, own), names(&disk, copy)), (Some(true), Some(true)));
        let moved = DiskName { path: "/elsewhere".into(), ..disk.clone() };
        assert_eq!(names(&moved, own), Some(true));
        let put_back = DiskName { file: FileId { device: 6, inode: 1 }, ..disk.clone() };
        assert_eq!(names(&put_back, own), Some(true));
        let other = DiskName { file: put_back.file, ..moved.clone() };
        assert_eq!((names(&other, own), names(&other, copy)), (Some(false), None));
        assert_eq!(Header { owner: None, ..header.clone() }.names(&disk, own), None);
        let device = DiskName { file: FileId { device: u64::MAX, inode: 8 }, ..disk };
        assert_eq!(names(&device, own), Some(false), "a file is no device");
    }

    #[test]
    fn a_device_is_known_by_its_lasting_name() {
        let device = |number, path: &str, lasting_name: &str| DiskName {
            file: FileId { device: u64::MAX, inode: number },
            path: path.into(),
            lasting_name: lasting_name.into(),
        };
        let disk = device(8, "/dev/sda", "ata-X");
        assert!(disk.is(&device(16, "/dev/sdb", "ata-X")));
        assert!(!disk.is(&device(8, "/dev/sda", "ata-Y")), "another one in its place");
        assert!(!disk.is(&device(8, "/dev/sda", "")));
        let nameless = device(8, "/dev/sda", "");
        assert!(nameless.is(&nameless) && !nameless.is(&device(16, "/dev/sda", "")));
    }
}
