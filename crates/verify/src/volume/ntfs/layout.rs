//! The on-disk structs of NTFS that the check reads, written down once more on purpose: what edits a volume must not
//! share its understanding with what judges the result.
//!
//! Sources: "NTFS Documentation" of the Linux-NTFS project (R. Russon, Y. Fledel), concepts *File Record*, *Attribute
//! Header*, *Index Record*; the restart page after the same. All integers are little-endian.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// The first sector.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct BootSector {
    pub(super) jump: [u8; 3],
    /// `NTFS` and four spaces.
    pub(super) oem: [u8; 8],
    pub(super) sector_bytes: U16,
    /// A power of two of sectors, or above 0x80 the power itself, negative.
    pub(super) cluster_sectors: u8,
    pub(super) unused: [u8; 26],
    /// Sectors without the backup boot sector.
    pub(super) sector_count: U64,
    pub(super) mft_lcn: U64,
    pub(super) mirror_lcn: U64,
    /// Clusters, or if negative the power of two of the bytes.
    pub(super) record_clusters: i8,
    pub(super) unused_41: [u8; 7],
    pub(super) serial: U64,
    pub(super) rest: [u8; 430],
    /// 55 aa.
    pub(super) end: U16,
}

/// The head of a record of `$MFT`.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RecordHead {
    /// `FILE`.
    pub(super) magic: [u8; 4],
    pub(super) sequence_at: U16,
    pub(super) sequence_count: U16,
    pub(super) lsn: U64,
    /// How often the record was taken into use.
    pub(super) reuse: U16,
    pub(super) links: U16,
    pub(super) attributes_at: U16,
    pub(super) flags: U16,
    pub(super) used_bytes: U32,
    pub(super) allocated_bytes: U32,
    /// Reference of the base record; 0 in one.
    pub(super) base: U64,
    pub(super) next_instance: U16,
}

/// [`RecordHead::flags`]: in use.
pub(super) const IN_USE: u16 = 1;
/// [`RecordHead::flags`]: a directory.
pub(super) const DIRECTORY: u16 = 2;

/// What all attributes begin with.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct AttributeHead {
    pub(super) kind: U32,
    pub(super) len_bytes: U32,
    pub(super) is_mapped: u8,
    /// UTF-16 units.
    pub(super) name_len: u8,
    pub(super) name_at: U16,
    pub(super) flags: U16,
    pub(super) instance: U16,
}

/// What follows in one whose value is in the record.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct ResidentHead {
    pub(super) value_bytes: U32,
    pub(super) value_at: U16,
    pub(super) is_indexed: u8,
    pub(super) reserved: u8,
}

/// What follows in one whose value is in clusters.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct MappedHead {
    pub(super) lowest_vcn: U64,
    /// All ones if nothing is mapped.
    pub(super) highest_vcn: U64,
    pub(super) pairs_at: U16,
    /// Power of two of the clusters of a compression unit.
    pub(super) unit_shift: u8,
    pub(super) reserved: [u8; 5],
    /// This and the rest mean something in the piece with the lowest VCN 0.
    pub(super) allocated_bytes: U64,
    pub(super) data_bytes: U64,
    pub(super) initialized_bytes: U64,
}

/// Bytes of both heads; the compressed size follows where there is one.
pub(super) const COMPRESSED_SIZE_AT: usize = 64;

/// [`AttributeHead::flags`]: how it is compressed.
pub(super) const COMPRESSED: u16 = 0x00ff;
/// [`AttributeHead::flags`]: may have holes.
pub(super) const SPARSE: u16 = 0x8000;

/// `$STANDARD_INFORMATION`.
pub(super) const STANDARD_INFORMATION: u32 = 0x10;
/// `$ATTRIBUTE_LIST`.
pub(super) const ATTRIBUTE_LIST: u32 = 0x20;
/// `$FILE_NAME`.
pub(super) const FILE_NAME: u32 = 0x30;
/// `$OBJECT_ID`.
pub(super) const OBJECT_ID: u32 = 0x40;
/// `$SECURITY_DESCRIPTOR`.
pub(super) const SECURITY_DESCRIPTOR: u32 = 0x50;
/// `$VOLUME_INFORMATION`.
pub(super) const VOLUME_INFORMATION: u32 = 0x70;
/// `$DATA`.
pub(super) const DATA: u32 = 0x80;
/// `$INDEX_ROOT`.
pub(super) const INDEX_ROOT: u32 = 0x90;
/// `$INDEX_ALLOCATION`.
pub(super) const INDEX_ALLOCATION: u32 = 0xa0;
/// `$BITMAP`.
pub(super) const BITMAP: u32 = 0xb0;
/// Ends a record's attributes.
pub(super) const END: u32 = u32::MAX;

/// An entry of an attribute list; its name follows.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct ListEntryHead {
    pub(super) kind: U32,
    pub(super) len_bytes: U16,
    pub(super) name_len: u8,
    pub(super) name_at: u8,
    pub(super) lowest_vcn: U64,
    pub(super) holder: U64,
    pub(super) instance: U16,
}

/// A name, as an attribute and as a key of an index; its UTF-16 units follow.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct NameHead {
    pub(super) parent: U64,
    pub(super) times: [U64; 4],
    pub(super) allocated_bytes: U64,
    pub(super) data_bytes: U64,
    pub(super) attributes: U32,
    pub(super) reparse_or_ea: U32,
    pub(super) name_len: u8,
    /// 0 POSIX, 1 Win32, 2 DOS, 3 both.
    pub(super) space: u8,
}

/// `$INDEX_ROOT` before its node.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct IndexRootHead {
    /// The attribute that is indexed, 0 for none.
    pub(super) kind: U32,
    pub(super) collation: U32,
    pub(super) block_bytes: U32,
    pub(super) block_clusters: u8,
    pub(super) reserved: [u8; 3],
}

/// An index block before its node.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct IndexBlockHead {
    /// `INDX`.
    pub(super) magic: [u8; 4],
    pub(super) sequence_at: U16,
    pub(super) sequence_count: U16,
    pub(super) lsn: U64,
    pub(super) vcn: U64,
}

/// The head of a node; offsets count from it.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct NodeHead {
    pub(super) entries_at: U32,
    pub(super) used_bytes: U32,
    pub(super) allocated_bytes: U32,
    /// 1: nodes lie below.
    pub(super) flags: u8,
    pub(super) reserved: [u8; 3],
}

/// The head of an entry of a node. With a node below, its VCN is the entry's last 8 bytes.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct EntryHead {
    /// Of an index of names: the file's reference.
    pub(super) file: U64,
    pub(super) len_bytes: U16,
    pub(super) key_bytes: U16,
    /// 1: a node lies below; 2: the last of the node, without a key.
    pub(super) flags: U16,
    pub(super) reserved: U16,
}

/// `$VOLUME_INFORMATION`.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct VolumeInformation {
    pub(super) reserved: U64,
    pub(super) major: u8,
    pub(super) minor: u8,
    pub(super) flags: U16,
}

/// A restart page of `$LogFile`.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RestartPage {
    /// `RSTR`, or `CHKD` by chkdsk.
    pub(super) magic: [u8; 4],
    pub(super) sequence_at: U16,
    pub(super) sequence_count: U16,
    pub(super) chkdsk_lsn: U64,
    pub(super) page_bytes: U32,
    pub(super) log_page_bytes: U32,
    pub(super) area_at: U16,
    pub(super) minor: U16,
    pub(super) major: U16,
}

/// The restart area.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RestartArea {
    pub(super) lsn: U64,
    pub(super) clients: U16,
    pub(super) free_clients: U16,
    /// All ones: nobody has the log open.
    pub(super) clients_in_use: U16,
    /// 2: dismounted cleanly.
    pub(super) flags: U16,
}

const _: () = {
    assert!(size_of::<BootSector>() == 512);
    assert!(offset_of!(BootSector, sector_count) == 0x28);
    assert!(offset_of!(BootSector, record_clusters) == 0x40);
    assert!(offset_of!(BootSector, serial) == 0x48);
    assert!(size_of::<RecordHead>() == 42);
    assert!(size_of::<AttributeHead>() == 16);
    assert!(size_of::<ResidentHead>() == 8);
    assert!(size_of::<AttributeHead>() + size_of::<MappedHead>() == COMPRESSED_SIZE_AT);
    assert!(size_of::<ListEntryHead>() == 26);
    assert!(size_of::<NameHead>() == 66);
    assert!(size_of::<IndexRootHead>() == 16);
    assert!(size_of::<IndexBlockHead>() == 24);
    assert!(size_of::<NodeHead>() == 16);
    assert!(size_of::<EntryHead>() == 16);
    assert!(size_of::<RestartPage>() == 30);
    assert!(size_of::<RestartArea>() == 16);
};
