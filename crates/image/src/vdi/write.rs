//! Laying out a new dynamic VDI as VirtualBox does: header, block map and blocks, each from a multiple of 1 MiB.
//!
//! The map has an entry for every block, and a free one is not zero: pages of it are emitted as placement
//! passes them, so that one page is all that is held.

use block::{Error, Result};
use extent::{HostOffset, VirtualOffset};
use serde::{Deserialize, Serialize};
use uuid::Builder;
use zerocopy::{FromZeros, IntoBytes};

use super::layout::*;
use crate::{CreateOptions, Finish, Format, Piece, PieceBytes, TargetWrite, WriteBytes, Writer};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Entries of the map emitted together: 4 KiB of it.
const PAGE_ENTRY_COUNT: u64 = 1024;
/// 16 TiB: the whole map of an empty disk, 64 MiB, is emitted at once.
const VIRTUAL_BYTES_MAX: u64 = 16 << 40;
/// For people; VirtualBox does not read it.
const FILE_INFO: &[u8] = b"<<< Leandisk VirtualBox Disk Image >>>\n";

/// Lays out a new image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VdiWriter {
    disk_bytes: u64,
    identity_seed: u128,
    target_is_dirty: bool,
    /// Blocks placed so far.
    placed_count: u32,
    /// The page of the map being filled.
    page_index: u64,
    page: Vec<u32>,
}

impl VdiWriter {
    /// A writer for `options`.
    pub fn new(options: CreateOptions) -> Result<Self> {
        options.finish(Format::Vdi)?;
        if options.compress {
            return Err(Error::invalid("a VDI cannot be compressed"));
        }
        if options.virtual_bytes > VIRTUAL_BYTES_MAX {
            return Err(Error::unsupported("VDI").field(
                "virtual size",
                format!("{} bytes", options.virtual_bytes),
                format!("at most {VIRTUAL_BYTES_MAX} (16 TiB)"),
            ));
        }
        Ok(Self {
            disk_bytes: options.virtual_bytes.next_multiple_of(512),
            identity_seed: options.identity_seed,
            target_is_dirty: options.target_is_dirty,
            placed_count: 0,
            page_index: 0,
            page: free_entries(PAGE_ENTRY_COUNT),
        })
    }

    fn block_count(&self) -> u64 {
        self.disk_bytes.div_ceil(BLOCK)
    }

    fn data_at(&self) -> u64 {
        (ALIGNMENT_BYTES + self.block_count() * 4).next_multiple_of(ALIGNMENT_BYTES)
    }

    fn end(&self) -> u64 {
        self.data_at() + u64::from(self.placed_count) * BLOCK
    }

    /// Emits the map up to, not including, the page `index`.
    fn finish_pages(&mut self, index: u64, puts: &mut Vec<TargetWrite>) {
        if index <= self.page_index {
            return;
        }
        let first = self.page_index * PAGE_ENTRY_COUNT;
        let end = (index * PAGE_ENTRY_COUNT).min(self.block_count());
        let page = std::mem::replace(&mut self.page, free_entries(PAGE_ENTRY_COUNT));
        let mut bytes: Vec<u8> = page.into_iter().flat_map(u32::to_le_bytes).collect();
        bytes.resize(usize::try_from((end - first) * 4).expect("at most 64 MiB"), 0xff);
        puts.push(owned(ALIGNMENT_BYTES + first * 4, bytes));
        self.page_index = index;
    }

    fn place_block(&mut self, block: u64, puts: &mut Vec<TargetWrite>) {
        self.finish_pages(block / PAGE_ENTRY_COUNT, puts);
        let index = usize::try_from(block % PAGE_ENTRY_COUNT).expect("within the page");
        self.page[index] = self.placed_count;
        self.placed_count += 1;
    }

    fn header(&self) -> VdiHeader {
        let mut header = VdiHeader::new_zeroed();
        header.file_info[..FILE_INFO.len()].copy_from_slice(FILE_INFO);
        header.signature.set(SIGNATURE);
        header.version.set(VERSION_1_1);
        // Up to and with the geometry for the BIOS.
        header.header_bytes.set(400);
        header.image_type.set(TYPE_DYNAMIC);
        header.map_offset.set(u32::try_from(ALIGNMENT_BYTES).expect("1 MiB"));
        header.data_offset.set(u32::try_from(self.data_at()).expect("below 66 MiB"));
        header.sector_bytes.set(512);
        header.disk_bytes.set(self.disk_bytes);
        header.block_bytes.set(BLOCK_BYTES);
        header.block_count.set(u32::try_from(self.block_count()).expect("bounded by the largest disk"));
        header.allocated_block_count.set(self.placed_count);
        header.uuid_create = uuid(self.identity_seed);
        header.uuid_modify = uuid(self.identity_seed ^ 0x6c65_616e_6469_736b_5f6d_6f64_6966_7921);
        header
    }
}

impl Writer for VdiWriter {
    fn granularity_bytes(&self) -> u64 {
        BLOCK
    }

    fn target_is_dirty(&self) -> bool {
        self.target_is_dirty
    }

    fn start(&mut self) -> Result<Vec<TargetWrite>> {
        let zero = TargetWrite { at: HostOffset::ZERO, bytes: WriteBytes::Zero(self.data_at()) };
        Ok(if self.target_is_dirty { vec![zero] } else { Vec::new() })
    }

    fn place(&mut self, _chunk_at: VirtualOffset, pieces: Vec<Piece>) -> Result<Vec<TargetWrite>> {
        let mut puts = Vec::new();
        for piece in pieces {
            let at = HostOffset::new(self.end());
            let first = piece.at.get() / BLOCK;
            for block in first..first + piece.len_bytes / BLOCK {
                self.place_block(block, &mut puts);
            }
            let bytes = match piece.bytes {
                PieceBytes::Plain(range) => WriteBytes::Chunk(range),
                PieceBytes::Encoded(_) => {
                    return Err(Error::invalid("compressed piece for a VDI").at(piece.at));
                }
            };
            puts.push(TargetWrite { at, bytes });
        }
        Ok(puts)
    }

    fn finish(&mut self) -> Result<Finish> {
        let mut tables = Vec::new();
        self.finish_pages(self.block_count().div_ceil(PAGE_ENTRY_COUNT), &mut tables);
        let headers = vec![owned(0, self.header().as_bytes().to_vec())];
        Ok(Finish { tables, headers, len_bytes: self.end() })
    }
}

fn free_entries(count: u64) -> Vec<u32> {
    vec![BLOCK_FREE; usize::try_from(count).expect("small")]
}

fn uuid(seed: u128) -> [u8; 16] {
    Builder::from_random_bytes(seed.to_be_bytes()).into_uuid().to_bytes_le()
}

fn owned(at: u64, bytes: Vec<u8>) -> TargetWrite {
    TargetWrite { at: HostOffset::new(at), bytes: WriteBytes::Owned(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    fn options(virtual_bytes: u64) -> CreateOptions {
        CreateOptions {
            virtual_bytes,
            sector_bytes: 512,
            compress: false,
            keys: [].into(),
            identity_seed: 7,
            created_unix_seconds: 0,
            file_name: "a.vdi".into(),
            target_is_dirty: false,
        }
    }

    #[test]
    fn what_cannot_be_made_is_refused() {
        let kind = |options| VdiWriter::new(options).unwrap_err().kind();
        assert_eq!(kind(options(VIRTUAL_BYTES_MAX + 1)), ErrorKind::Unsupported);
        assert_eq!(kind(CreateOptions { compress: true, ..options(512) }), ErrorKind::Invalid);
        let keys = [("static".to_owned(), "on".to_owned())].into();
        assert_eq!(kind(CreateOptions { keys, ..options(512) }), ErrorKind::Invalid);
    }

    #[test]
    fn the_map_of_the_largest_disk_is_emitted_once_and_whole() {
        let mut writer = VdiWriter::new(options(VIRTUAL_BYTES_MAX)).unwrap();
        let mut map_bytes = 0;
        let mut count = |puts: &[TargetWrite]| {
            for put in puts {
                if let WriteBytes::Owned(bytes) = &put.bytes {
                    assert_eq!(put.at.get(), ALIGNMENT_BYTES + map_bytes, "pages follow each other");
                    map_bytes += bytes.len() as u64;
                }
            }
        };
        for at in [0, 5 << 30, VIRTUAL_BYTES_MAX - BLOCK] {
            let piece =
                Piece { at: VirtualOffset::new(at), len_bytes: BLOCK, bytes: PieceBytes::Plain(0..1 << 20) };
            count(&writer.place(piece.at, vec![piece.clone()]).unwrap());
            writer = serde_json::from_str(&serde_json::to_string(&writer).unwrap()).unwrap();
        }
        count(&writer.finish().unwrap().tables);
        assert_eq!(map_bytes, writer.block_count() * 4);
    }
}
