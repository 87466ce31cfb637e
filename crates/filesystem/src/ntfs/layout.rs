//! The on-disk structs of NTFS, and nothing else.
//!
//! Microsoft published no specification. Names and offsets follow the NTFS documentation of the Linux-NTFS
//! project ("NTFS Documentation", R. Russon and Y. Fledel) and what Windows writes. All integers are
//! little-endian.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Boot sector's OEM name of an NTFS volume. A BitLocker volume has `-FVE-FS-` instead.
pub(super) const OEM_ID: [u8; 8] = *b"NTFS    ";
/// The end of a boot sector.
pub(super) const BOOT_SIGNATURE: u16 = 0xaa55;

/// The first sector of the volume; a copy lies in the sector after the last one the file system counts.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct BootSector {
    /// x86 jump to the boot code.
    pub(super) jump: [u8; 3],
    /// [`OEM_ID`].
    pub(super) oem_id: [u8; 8],
    /// Bytes per sector: 256 to 4096.
    pub(super) bytes_per_sector: U16,
    /// Sectors per cluster: a power of two up to 128, or, above 0x80, the power as a negative number.
    pub(super) sectors_per_cluster: u8,
    /// Fields of FAT's parameter block, zero or without meaning here.
    pub(super) unused_0e: [u8; 26],
    /// Sectors of the volume without the backup boot sector.
    pub(super) number_of_sectors: U64,
    /// Cluster at which `$MFT` starts.
    pub(super) mft_lcn: U64,
    /// Cluster at which `$MFTMirr` starts.
    pub(super) mftmirr_lcn: U64,
    /// Clusters per file record; if negative, the power of two of its bytes.
    pub(super) clusters_per_mft_record: i8,
    /// Zero.
    pub(super) unused_41: [u8; 3],
    /// Clusters per index block; if negative, the power of two of its bytes.
    pub(super) clusters_per_index_record: i8,
    /// Zero.
    pub(super) unused_45: [u8; 3],
    /// Serial number.
    pub(super) volume_serial_number: U64,
    /// Not used by NTFS.
    pub(super) checksum: U32,
    /// Boot code.
    pub(super) bootstrap: [u8; 426],
    /// [`BOOT_SIGNATURE`].
    pub(super) end_of_sector_marker: U16,
}
const _: () = assert!(size_of::<BootSector>() == 512);
const _: () = assert!(offset_of!(BootSector, number_of_sectors) == 0x28);
const _: () = assert!(offset_of!(BootSector, volume_serial_number) == 0x48);

/// Bytes that one update-sequence number protects, whatever the sector size.
pub(super) const FIXUP_STRIDE_BYTES: usize = 512;

/// The head of every structure that is protected against torn writes.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct FixupHeader {
    /// What it is: `FILE`, `INDX`, `RSTR`, `RCRD`, `CHKD`, or `BAAD` if chkdsk found it torn.
    pub(super) magic: [u8; 4],
    /// Offset of the update sequence from the structure's start, in bytes.
    pub(super) usa_offset: U16,
    /// Its 16-bit entries: the number itself and one for each [`FIXUP_STRIDE_BYTES`].
    pub(super) usa_count: U16,
}
const _: () = assert!(size_of::<FixupHeader>() == 8);

/// Magic of a file record.
pub(super) const MAGIC_FILE: [u8; 4] = *b"FILE";
/// Magic of an index block.
pub(super) const MAGIC_INDX: [u8; 4] = *b"INDX";
/// Magic of a restart page.
pub(super) const MAGIC_RSTR: [u8; 4] = *b"RSTR";
/// Magic of a restart page that chkdsk wrote.
pub(super) const MAGIC_CHKD: [u8; 4] = *b"CHKD";

/// The head of a file record in `$MFT`.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct FileRecordHeader {
    /// [`MAGIC_FILE`].
    pub(super) fixup: FixupHeader,
    /// Sequence number of its last change in `$LogFile`.
    pub(super) lsn: U64,
    /// How often the record was used; references carry it, so that stale ones are noticed.
    pub(super) sequence_number: U16,
    /// Hard links.
    pub(super) link_count: U16,
    /// Offset of the first attribute, in bytes, a multiple of 8.
    pub(super) attrs_offset: U16,
    /// `RECORD_*`.
    pub(super) flags: U16,
    /// Bytes in use, a multiple of 8.
    pub(super) bytes_in_use: U32,
    /// Bytes of the whole record.
    pub(super) bytes_allocated: U32,
    /// The file reference of the base record; zero in a base record.
    pub(super) base_mft_record: U64,
    /// Next attribute number.
    pub(super) next_attr_instance: U16,
}
const _: () = assert!(size_of::<FileRecordHeader>() == 42);
const _: () = assert!(offset_of!(FileRecordHeader, base_mft_record) == 32);

/// Where [`FileRecordHeader::flags`] lies.
pub(super) const FILE_RECORD_FLAGS_OFFSET: usize = offset_of!(FileRecordHeader, flags);

/// Where [`FileRecordHeader::sequence_number`] lies.
pub(super) const FILE_RECORD_SEQUENCE_OFFSET: usize = offset_of!(FileRecordHeader, sequence_number);

/// Where [`FileRecordHeader::link_count`] lies.
pub(super) const FILE_RECORD_LINK_COUNT_OFFSET: usize = offset_of!(FileRecordHeader, link_count);

/// Where [`FileRecordHeader::bytes_in_use`] lies.
pub(super) const FILE_RECORD_BYTES_IN_USE_OFFSET: usize = offset_of!(FileRecordHeader, bytes_in_use);

/// Where [`FileRecordHeader::base_mft_record`] lies.
pub(super) const FILE_RECORD_BASE_OFFSET: usize = offset_of!(FileRecordHeader, base_mft_record);

/// Where [`FileRecordHeader::next_attr_instance`] lies.
pub(super) const FILE_RECORD_NEXT_INSTANCE_OFFSET: usize = offset_of!(FileRecordHeader, next_attr_instance);

/// The record is in use.
pub(super) const RECORD_IN_USE: u16 = 0x0001;
/// The record is a directory's (it has an `$I30` index).
pub(super) const RECORD_IS_DIRECTORY: u16 = 0x0002;
/// The record has another index.
pub(super) const RECORD_IS_VIEW_INDEX: u16 = 0x0008;

/// Ends the attributes of a record.
pub(super) const ATTR_END: u32 = 0xffff_ffff;

/// The same in a record, up to where its bytes in use end.
pub(super) const RECORD_END: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
/// What attributes are called, as in `$AttrDef`.
pub(super) const ATTR_NAMES: [(u32, &str); 16] = [
    (0x10, "$STANDARD_INFORMATION"),
    (0x20, "$ATTRIBUTE_LIST"),
    (0x30, "$FILE_NAME"),
    (0x40, "$OBJECT_ID"),
    (0x50, "$SECURITY_DESCRIPTOR"),
    (0x60, "$VOLUME_NAME"),
    (0x70, "$VOLUME_INFORMATION"),
    (0x80, "$DATA"),
    (0x90, "$INDEX_ROOT"),
    (0xa0, "$INDEX_ALLOCATION"),
    (0xb0, "$BITMAP"),
    (0xc0, "$REPARSE_POINT"),
    (0xd0, "$EA_INFORMATION"),
    (0xe0, "$EA"),
    (0xf0, "$PROPERTY_SET"),
    (0x100, "$LOGGED_UTILITY_STREAM"),
];

/// `$STANDARD_INFORMATION`.
pub(super) const ATTR_STANDARD_INFORMATION: u32 = 0x10;
/// `$ATTRIBUTE_LIST`.
pub(super) const ATTR_ATTRIBUTE_LIST: u32 = 0x20;
/// `$FILE_NAME`.
pub(super) const ATTR_FILE_NAME: u32 = 0x30;
/// `$VOLUME_NAME`.
pub(super) const ATTR_VOLUME_NAME: u32 = 0x60;
/// `$VOLUME_INFORMATION`.
pub(super) const ATTR_VOLUME_INFORMATION: u32 = 0x70;
/// `$DATA`.
pub(super) const ATTR_DATA: u32 = 0x80;
/// `$INDEX_ROOT`.
pub(super) const ATTR_INDEX_ROOT: u32 = 0x90;
/// `$INDEX_ALLOCATION`.
pub(super) const ATTR_INDEX_ALLOCATION: u32 = 0xa0;
/// `$BITMAP`.
pub(super) const ATTR_BITMAP: u32 = 0xb0;
/// `$REPARSE_POINT`.
pub(super) const ATTR_REPARSE_POINT: u32 = 0xc0;

/// The part that all attributes have.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct AttributeHeader {
    /// `ATTR_*`.
    pub(super) kind: U32,
    /// Bytes of the whole attribute, a multiple of 8.
    pub(super) length: U32,
    /// 0: resident, 1: not.
    pub(super) non_resident: u8,
    /// UTF-16 units of the name.
    pub(super) name_length: u8,
    /// Offset of the name in the attribute, in bytes.
    pub(super) name_offset: U16,
    /// `ATTRIBUTE_*`.
    pub(super) flags: U16,
    /// Number of the attribute in its record.
    pub(super) instance: U16,
}
const _: () = assert!(size_of::<AttributeHeader>() == 16);

/// Where [`AttributeHeader::length`] lies.
pub(super) const ATTRIBUTE_LENGTH_OFFSET: usize = offset_of!(AttributeHeader, length);

/// Where [`AttributeHeader::name_length`] lies.
pub(super) const ATTRIBUTE_NAME_LENGTH_OFFSET: usize = offset_of!(AttributeHeader, name_length);

/// Where [`AttributeHeader::name_offset`] lies.
pub(super) const ATTRIBUTE_NAME_OFFSET_OFFSET: usize = offset_of!(AttributeHeader, name_offset);

/// Where [`AttributeHeader::instance`] lies.
pub(super) const ATTRIBUTE_INSTANCE_OFFSET: usize = offset_of!(AttributeHeader, instance);

/// What follows in a resident attribute.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct ResidentHeader {
    /// Bytes of the value.
    pub(super) value_length: U32,
    /// Offset of the value in the attribute, in bytes.
    pub(super) value_offset: U16,
    /// 1: indexed.
    pub(super) resident_flags: u8,
    /// Zero.
    pub(super) reserved: u8,
}
const _: () = assert!(size_of::<ResidentHeader>() == 8);

/// Where [`ResidentHeader::value_length`] lies in an attribute.
pub(super) const ATTRIBUTE_VALUE_LENGTH_OFFSET: usize =
    size_of::<AttributeHeader>() + offset_of!(ResidentHeader, value_length);

/// Where [`ResidentHeader::value_offset`] lies in an attribute.
pub(super) const ATTRIBUTE_VALUE_OFFSET_OFFSET: usize =
    size_of::<AttributeHeader>() + offset_of!(ResidentHeader, value_offset);

/// Where the value of a resident attribute without a name lies.
pub(super) const UNNAMED_VALUE_OFFSET: usize = size_of::<AttributeHeader>() + size_of::<ResidentHeader>();

/// What follows in a non-resident attribute. A compressed or sparse one has 8 more bytes, its compressed size.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct NonResidentHeader {
    /// First virtual cluster that this piece of the attribute maps.
    pub(super) lowest_vcn: U64,
    /// Last one; all ones if there is none.
    pub(super) highest_vcn: U64,
    /// Offset of the run list in the attribute, in bytes.
    pub(super) mapping_pairs_offset: U16,
    /// Power of two of the clusters in a compression unit; 0 if not compressed.
    pub(super) compression_unit: u8,
    /// Zero.
    pub(super) reserved: [u8; 5],
    /// Bytes of all clusters, holes included. Valid in the first piece only, as are the two after it.
    pub(super) allocated_size: U64,
    /// Bytes of the value.
    pub(super) data_size: U64,
    /// Bytes that were written; what follows reads as zeros.
    pub(super) initialized_size: U64,
}
const _: () = assert!(size_of::<NonResidentHeader>() == 48);

/// Where [`NonResidentHeader::lowest_vcn`] lies in an attribute.
pub(super) const ATTRIBUTE_LOWEST_VCN_OFFSET: usize =
    size_of::<AttributeHeader>() + offset_of!(NonResidentHeader, lowest_vcn);

/// Where [`NonResidentHeader::highest_vcn`] lies in an attribute.
pub(super) const ATTRIBUTE_HIGHEST_VCN_OFFSET: usize =
    size_of::<AttributeHeader>() + offset_of!(NonResidentHeader, highest_vcn);

/// Where [`NonResidentHeader::allocated_size`] lies in an attribute.
pub(super) const ATTRIBUTE_ALLOCATED_SIZE_OFFSET: usize =
    size_of::<AttributeHeader>() + offset_of!(NonResidentHeader, allocated_size);

/// Where [`NonResidentHeader::data_size`] lies in an attribute.
pub(super) const ATTRIBUTE_DATA_SIZE_OFFSET: usize =
    size_of::<AttributeHeader>() + offset_of!(NonResidentHeader, data_size);

/// Where [`NonResidentHeader::initialized_size`] lies in an attribute.
pub(super) const ATTRIBUTE_INITIALIZED_SIZE_OFFSET: usize =
    size_of::<AttributeHeader>() + offset_of!(NonResidentHeader, initialized_size);

/// One entry of `$ATTRIBUTE_LIST`; the name follows.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct AttributeListEntry {
    /// `ATTR_*`.
    pub(super) kind: U32,
    /// Bytes of the entry, a multiple of 8.
    pub(super) length: U16,
    /// UTF-16 units of the name.
    pub(super) name_length: u8,
    /// Offset of the name in the entry, in bytes.
    pub(super) name_offset: u8,
    /// First virtual cluster of the piece.
    pub(super) lowest_vcn: U64,
    /// File reference of the record that holds the piece.
    pub(super) mft_reference: U64,
    /// Number of the attribute in that record.
    pub(super) instance: U16,
}
const _: () = assert!(size_of::<AttributeListEntry>() == 26);

/// Where [`AttributeListEntry::length`] lies.
pub(super) const LIST_ENTRY_LENGTH_OFFSET: usize = offset_of!(AttributeListEntry, length);

/// Where [`AttributeListEntry::name_length`] lies.
pub(super) const LIST_ENTRY_NAME_LENGTH_OFFSET: usize = offset_of!(AttributeListEntry, name_length);

/// Where [`AttributeListEntry::name_offset`] lies.
pub(super) const LIST_ENTRY_NAME_OFFSET_OFFSET: usize = offset_of!(AttributeListEntry, name_offset);

/// Where [`AttributeListEntry::mft_reference`] lies.
pub(super) const LIST_ENTRY_HOLDER_OFFSET: usize = offset_of!(AttributeListEntry, mft_reference);

/// Where [`AttributeListEntry::instance`] lies.
pub(super) const LIST_ENTRY_INSTANCE_OFFSET: usize = offset_of!(AttributeListEntry, instance);

/// Where [`AttributeListEntry::lowest_vcn`] lies.
pub(super) const LIST_ENTRY_LOWEST_VCN_OFFSET: usize = offset_of!(AttributeListEntry, lowest_vcn);

/// `$FILE_NAME`, in a record and as an index key; the name follows.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct FileName {
    /// File reference of the directory.
    pub(super) parent_directory: U64,
    /// Creation, change, record change and access, in 100 ns since 1601.
    pub(super) times: [U64; 4],
    /// Allocated bytes, as of the last time the directory was told.
    pub(super) allocated_size: U64,
    /// Bytes, likewise.
    pub(super) data_size: U64,
    /// DOS attributes.
    pub(super) file_attributes: U32,
    /// Reparse tag or bytes of extended attributes.
    pub(super) reparse_or_ea: U32,
    /// UTF-16 units of the name.
    pub(super) file_name_length: u8,
    /// 0 POSIX, 1 Win32, 2 DOS, 3 Win32 and DOS.
    pub(super) file_name_type: u8,
}
const _: () = assert!(size_of::<FileName>() == 66);

/// [`FileName::file_name_type`] of a short name that stands beside a long one.
pub(super) const FILE_NAME_DOS: u8 = 2;

/// [`FileName::file_name_type`] of a long name whose short one is another `$FILE_NAME`.
pub(super) const FILE_NAME_WIN32: u8 = 1;

/// Bits of [`AttributeHeader::flags`] that say how the value is compressed; none if it is not.
pub(super) const ATTRIBUTE_COMPRESSION_MASK: u16 = 0x00ff;

/// LZNT1, the one that there is.
pub(super) const ATTRIBUTE_LZNT1: u16 = 0x0001;

/// The bit of [`AttributeHeader::flags`] that says that the value is encrypted.
pub(super) const ATTRIBUTE_ENCRYPTED: u16 = 0x4000;

/// The bit of [`AttributeHeader::flags`] that says that the value may have holes.
pub(super) const ATTRIBUTE_SPARSE: u16 = 0x8000;

/// Reparse tags, the first 4 bytes of `$REPARSE_POINT` (Microsoft, [MS-FSCC] 2.1.2.1): a symbolic link.
pub(super) const REPARSE_SYMLINK: u32 = 0xa000_000c;
/// A directory that stands for another one, or for a volume.
pub(super) const REPARSE_MOUNT_POINT: u32 = 0xa000_0003;
/// A symbolic link of the Windows subsystem for Linux, as the four that follow are its other special files.
pub(super) const REPARSE_LX_SYMLINK: u32 = 0xa000_001d;
/// A socket.
pub(super) const REPARSE_AF_UNIX: u32 = 0x8000_0023;
/// A pipe.
pub(super) const REPARSE_LX_FIFO: u32 = 0x8000_0024;
/// A character device.
pub(super) const REPARSE_LX_CHR: u32 = 0x8000_0025;
/// A block device.
pub(super) const REPARSE_LX_BLK: u32 = 0x8000_0026;

/// A file that Windows compressed as a whole, or that lies in an image of files elsewhere (the Windows Overlay Filter).
pub(super) const REPARSE_WOF: u32 = 0x8000_0017;

/// `$STANDARD_INFORMATION` as far as it is used; times are in 100 ns since 1601.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct StandardInformation {
    pub(super) created: U64,
    /// When the contents changed.
    pub(super) modified: U64,
    /// When the record changed.
    pub(super) changed: U64,
    pub(super) accessed: U64,
    /// DOS attributes.
    pub(super) file_attributes: U32,
}
const _: () = assert!(size_of::<StandardInformation>() == 36);

/// The DOS attribute of files of the system, which Interix gave to links.
pub(super) const FILE_ATTRIBUTE_SYSTEM: u32 = 4;
/// What is in a symbolic link as Interix and ntfs-3g make them: this, and the target in UTF-16 (`ntfs-3g`, `layout.h`).
pub(super) const INTERIX_LINK: [u8; 8] = *b"IntxLNK\x01";

/// `$VOLUME_INFORMATION`.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct VolumeInformation {
    /// Zero.
    pub(super) reserved: U64,
    /// 1 or 3.
    pub(super) major_version: u8,
    /// 2 with 1; 0 or 1 with 3.
    pub(super) minor_version: u8,
    /// `VOLUME_*`.
    pub(super) flags: U16,
}
const _: () = assert!(size_of::<VolumeInformation>() == 12);

/// `$INDEX_ROOT` before its index header.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct IndexRoot {
    /// The attribute that is indexed: [`ATTR_FILE_NAME`].
    pub(super) kind: U32,
    /// Order of the keys: 1 is that of file names.
    pub(super) collation_rule: U32,
    /// Bytes of an index block.
    pub(super) index_block_size: U32,
    /// Clusters (or 512-byte units) of one.
    pub(super) clusters_per_index_block: u8,
    /// Zero.
    pub(super) reserved: [u8; 3],
}
const _: () = assert!(size_of::<IndexRoot>() == 16);

/// The head of an index block in `$INDEX_ALLOCATION`, before its index header.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct IndexBlock {
    /// [`MAGIC_INDX`].
    pub(super) fixup: FixupHeader,
    /// Sequence number of its last change in `$LogFile`.
    pub(super) lsn: U64,
    /// Its own number, in clusters, or in 512-byte units where it is smaller than a cluster.
    pub(super) index_block_vcn: U64,
}
const _: () = assert!(size_of::<IndexBlock>() == 24);

/// The head of a node's entries; offsets count from here.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct IndexHeader {
    /// Offset of the first entry, in bytes.
    pub(super) entries_offset: U32,
    /// Offset of the end of the last entry, in bytes.
    pub(super) index_length: U32,
    /// Bytes that the entries may grow to.
    pub(super) allocated_size: U32,
    /// 1: has nodes below it.
    pub(super) flags: u8,
    /// Zero.
    pub(super) reserved: [u8; 3],
}
const _: () = assert!(size_of::<IndexHeader>() == 16);

/// The head of an index entry; the key follows. The last 8 bytes of an entry with a node below are its number.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct IndexEntry {
    /// File reference of the file.
    pub(super) indexed_file: U64,
    /// Bytes of the entry.
    pub(super) length: U16,
    /// Bytes of the key.
    pub(super) key_length: U16,
    /// `INDEX_ENTRY_*`.
    pub(super) flags: U16,
    /// Zero.
    pub(super) reserved: U16,
}
const _: () = assert!(size_of::<IndexEntry>() == 16);

/// A node lies below the entry.
pub(super) const INDEX_ENTRY_NODE: u16 = 1;
/// The last entry of a node; it has no key.
pub(super) const INDEX_ENTRY_END: u16 = 2;

/// The head of a restart page of `$LogFile`.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RestartPageHeader {
    /// [`MAGIC_RSTR`] or [`MAGIC_CHKD`].
    pub(super) fixup: FixupHeader,
    /// Last sequence number that chkdsk found.
    pub(super) chkdsk_lsn: U64,
    /// Bytes of a restart page: a power of two from 512.
    pub(super) system_page_size: U32,
    /// Bytes of a log page.
    pub(super) log_page_size: U32,
    /// Offset of the restart area, in bytes, a multiple of 8.
    pub(super) restart_area_offset: U16,
    /// Version of the log: 1.1, or 2.0 while Windows 8 and later use the volume.
    pub(super) minor_version: U16,
    /// See `minor_version`.
    pub(super) major_version: U16,
}
const _: () = assert!(size_of::<RestartPageHeader>() == 30);

/// The restart area.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RestartArea {
    /// The log's sequence number when the page was written; the page with the higher one is current.
    pub(super) current_lsn: U64,
    /// Number of clients.
    pub(super) log_clients: U16,
    /// First free client; all ones if there is none.
    pub(super) client_free_list: U16,
    /// First client in use; all ones if there is none.
    pub(super) client_in_use_list: U16,
    /// `RESTART_*`.
    pub(super) flags: U16,
}
const _: () = assert!(size_of::<RestartArea>() == 16);

/// No client: nobody has the log open.
pub(super) const LOGFILE_NO_CLIENT: u16 = 0xffff;
/// The volume was dismounted cleanly.
pub(super) const RESTART_VOLUME_IS_CLEAN: u16 = 0x0002;
