//! The on-disk structs of `$LogFile` behind its restart pages' heads, and nothing else.
//!
//! Microsoft published no specification. Names and offsets follow M. Suhanov's "dfir_ntfs", the "NTFS Documentation" of the
//! Linux-NTFS project, and what Windows 2000 to 10 wrote. All integers are little-endian.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::ntfs::layout::{FixupHeader, RestartArea};

/// The sequence number of a record: how often the log was begun anew, and where the record begins.
pub(super) type Lsn = u64;

/// Magic of a page with log records.
pub(super) const MAGIC_RCRD: [u8; 4] = *b"RCRD";

/// What a page holds that was never written.
pub(super) const UNWRITTEN: [u8; 4] = [0xff; 4];

/// The restart area as far as versions 1.1 and 2.0 have it.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct FullRestartArea {
    /// What every version has.
    pub(super) head: RestartArea,
    /// Bits of a sequence number that count how often the log was begun anew; the others are an offset in units of 8 bytes.
    pub(super) seq_number_bits: U32,
    /// Bytes of this area with its clients.
    pub(super) restart_area_length: U16,
    /// Offset of the first client from the area's beginning.
    pub(super) client_array_offset: U16,
    /// Bytes of the log that are used.
    pub(super) file_size: U64,
    /// Bytes of the record at `current_lsn` without its header.
    pub(super) last_lsn_data_length: U32,
    /// Bytes of a record's header.
    pub(super) record_header_length: U16,
    /// Where records begin in a page.
    pub(super) log_page_data_offset: U16,
    /// How often the log was opened.
    pub(super) open_log_count: U32,
}
const _: () = assert!(size_of::<FullRestartArea>() == 44);
const _: () = assert!(offset_of!(FullRestartArea, file_size) == 24);

/// Who has the log open.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct ClientRecord {
    /// Of the oldest record that it needs.
    pub(super) oldest_lsn: U64,
    /// Of its newest restart record.
    pub(super) client_restart_lsn: U64,
    /// Neighbours in the list of clients.
    pub(super) prev_next: [U16; 2],
    /// How often the slot was used.
    pub(super) seq_number: U16,
    /// Zero.
    pub(super) reserved: [u8; 6],
    /// Bytes of the name.
    pub(super) client_name_length: U32,
    /// `NTFS`.
    pub(super) client_name: [U16; 64],
}
const _: () = assert!(size_of::<ClientRecord>() == 160);

/// The head of a page with records.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RecordPageHeader {
    /// [`MAGIC_RCRD`].
    pub(super) fixup: FixupHeader,
    /// Of the last record that begins in or before the page; in a copy of version 1.1, where the page belongs.
    pub(super) last_lsn_or_file_offset: U64,
    /// 1: a record ends here.
    pub(super) flags: U32,
    /// Pages that were written together.
    pub(super) page_count: U16,
    /// The number of this page among them, from 1.
    pub(super) page_position: U16,
    /// Where the last record that ends here ends.
    pub(super) next_record_offset: U16,
    /// Zero.
    pub(super) reserved: [u8; 6],
    /// Of the last record that ends here.
    pub(super) last_end_lsn: U64,
    /// The update sequence lies here, of a page of 4 KiB.
    pub(super) update_sequence: [u8; 20],
    /// In a copy of version 2.0, where the page belongs.
    pub(super) file_offset: U32,
}
const _: () = assert!(size_of::<RecordPageHeader>() == 64);
const _: () = assert!(offset_of!(RecordPageHeader, last_end_lsn) == 32);

/// The head of a record in a page.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RecordHeader {
    /// Where and when it was written.
    pub(super) this_lsn: U64,
    /// Of the client's record before it.
    pub(super) client_previous_lsn: U64,
    /// Of what is to be undone next.
    pub(super) client_undo_next_lsn: U64,
    /// Bytes that follow this head.
    pub(super) client_data_length: U32,
    /// Whose it is.
    pub(super) client_id: U32,
    /// [`CLIENT_RECORD`] or [`CLIENT_RESTART`].
    pub(super) record_type: U32,
    /// The transaction.
    pub(super) transaction_id: U32,
    /// 1: it goes on in the next page. [`NO_REDO`], [`NO_UNDO`].
    pub(super) flags: U16,
    /// Zero.
    pub(super) reserved: [u8; 6],
}
const _: () = assert!(size_of::<RecordHeader>() == 48);

/// The argument of what is to be redone is not in the record: zeros, or none at all.
pub(super) const NO_REDO: u16 = 2;
/// The same of what takes it back.
pub(super) const NO_UNDO: u16 = 4;

/// A change of the volume.
pub(super) const CLIENT_RECORD: u32 = 1;
/// Where NTFS is to begin after a crash.
pub(super) const CLIENT_RESTART: u32 = 2;

/// NTFS's own restart record, as far as it is read.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct NtfsRestart {
    /// 0 where tables have entries of 32-bit systems, else 1.
    pub(super) major_version: U32,
    /// 0.
    pub(super) minor_version: U32,
    /// Where the checkpoint began.
    pub(super) start_of_checkpoint: U64,
    /// Of the tables as they were then: open attributes, their names, dirty pages, transactions.
    pub(super) table_lsns: [U64; 4],
    /// Bytes of the tables.
    pub(super) table_lengths: [U32; 4],
}
const _: () = assert!(size_of::<NtfsRestart>() == 64);

/// The head of NTFS's own records; the clusters of the target follow, then what to redo and to undo.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct ClientData {
    /// What is to be done.
    pub(super) redo_operation: U16,
    /// What takes it back.
    pub(super) undo_operation: U16,
    /// Where its argument lies, from this head's beginning.
    pub(super) redo_offset: U16,
    /// Bytes of it.
    pub(super) redo_length: U16,
    /// Where the argument of what takes it back lies.
    pub(super) undo_offset: U16,
    /// Bytes of it.
    pub(super) undo_length: U16,
    /// Which entry of the table of open attributes is changed: its offset in the table.
    pub(super) target_attribute: U16,
    /// Clusters that follow.
    pub(super) lcns_to_follow: U16,
    /// Offset in the record or the block.
    pub(super) record_offset: U16,
    /// Offset in the attribute.
    pub(super) attribute_offset: U16,
    /// Offset in the clusters, in units of 512 bytes.
    pub(super) cluster_block_offset: U16,
    /// Zero.
    pub(super) reserved: U16,
    /// The first cluster of the target in its attribute.
    pub(super) target_vcn: U64,
}
const _: () = assert!(size_of::<ClientData>() == 32);

/// Bytes that [`ClientData::cluster_block_offset`] counts.
pub(super) const CLUSTER_BLOCK_BYTES: u64 = 512;

/// The head of a table.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RestartTable {
    /// Bytes of an entry.
    pub(super) entry_size: U16,
    /// Entries that there is room for.
    pub(super) number_entries: U16,
    /// Of these in use.
    pub(super) number_allocated: U16,
    /// Zero.
    pub(super) reserved: [U16; 3],
    /// Where freed entries are put.
    pub(super) free_goal: U32,
    /// The list of free entries.
    pub(super) first_last_free: [U32; 2],
}
const _: () = assert!(size_of::<RestartTable>() == 24);

/// What the first 4 bytes of an entry in use are.
pub(super) const ENTRY_ALLOCATED: u32 = 0xffff_ffff;

/// An open attribute, of 64-bit systems.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct OpenAttribute {
    /// [`ENTRY_ALLOCATED`].
    pub(super) allocated: U32,
    /// Bytes of its index blocks.
    pub(super) bytes_per_index_block: U32,
    /// `ATTR_*`.
    pub(super) kind: U32,
    /// Of no use here.
    pub(super) dirty_pages_seen: U32,
    /// Whose it is.
    pub(super) file_reference: U64,
    /// When it was opened.
    pub(super) lsn_of_open: U64,
    /// An address in a memory that is gone.
    pub(super) overlay: U64,
}
const _: () = assert!(size_of::<OpenAttribute>() == 40);

/// The same of 32-bit systems.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct OpenAttribute32 {
    /// [`ENTRY_ALLOCATED`].
    pub(super) allocated: U32,
    /// An address in a memory that is gone.
    pub(super) overlay: U32,
    /// Whose it is.
    pub(super) file_reference: U64,
    /// When it was opened.
    pub(super) lsn_of_open: U64,
    /// Of no use here.
    pub(super) dirty_pages_seen: U32,
    /// `ATTR_*`.
    pub(super) kind: U32,
    /// Its name, in a memory that is gone.
    pub(super) name: [U32; 2],
    /// Bytes of its index blocks.
    pub(super) bytes_per_index_block: U32,
}
const _: () = assert!(size_of::<OpenAttribute32>() == 44);

/// A page that was not yet written, of 64-bit systems. The numbers of its clusters follow.
pub(super) const DIRTY_PAGE_BYTES: usize = 32;
/// The same of 32-bit systems: they begin their 64-bit fields where these end on others.
pub(super) const DIRTY_PAGE_32_BYTES: usize = 36;
/// Where an entry says how many clusters follow.
pub(super) const DIRTY_PAGE_LCN_COUNT_AT: usize = 12;

/// Bytes of an entry of the table of transactions.
pub(super) const TRANSACTION_BYTES: usize = 40;

/// The head of a name in a dump of names; a zero where one could be ends it.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct AttributeName {
    /// The offset of the entry whose name it is.
    pub(super) index: U16,
    /// Bytes of the name, which a zero follows.
    pub(super) name_length: U16,
}
const _: () = assert!(size_of::<AttributeName>() == 4);

/// Bits of a bitmap.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct BitmapRange {
    /// From the target on.
    pub(super) bitmap_offset: U32,
    /// How many.
    pub(super) number_of_bits: U32,
}
const _: () = assert!(size_of::<BitmapRange>() == 8);

/// Clusters that are no longer to be written.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct LcnRange {
    /// The first one.
    pub(super) start_lcn: U64,
    /// How many.
    pub(super) count: U64,
}
const _: () = assert!(size_of::<LcnRange>() == 16);
