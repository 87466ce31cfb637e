//! Compressed extents: what is in one once it is decompressed.

use std::io::Read;

use block::{Error, Result};

use super::file_extent::Packing;
use crate::unpack::{Broken, lzo};

/// Zstandard's window of an extent is no larger than the extent.
const ZSTD_WINDOW_LOG_MAX: u32 = 20;

/// Decompresses an extent. What it is short of `len` bytes is zeros, as the kernel has it. LZO is kept in pieces of a sector.
pub(super) fn unpack(packing: Packing, input: &[u8], len: usize, sector_bytes: usize) -> Result<Vec<u8>> {
    let broken = |_| Error::corrupt("Btrfs compressed extent");
    let mut out = match packing {
        Packing::None => input[..input.len().min(len)].to_vec(),
        Packing::Zlib => read(flate2::read::ZlibDecoder::new(input), len).map_err(|_| broken(Broken))?,
        Packing::Zstd => unpack_zstd(input, len).map_err(|_| broken(Broken))?,
        Packing::Lzo => unpack_lzo(input, len, sector_bytes).map_err(broken)?,
        Packing::Unknown => {
            return Err(Error::unsupported("a file of Btrfs compressed in a way that is not known"));
        }
    };
    out.resize(len, 0);
    Ok(out)
}

fn unpack_zstd(input: &[u8], len: usize) -> std::io::Result<Vec<u8>> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(input)?.single_frame();
    decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
    read(decoder, len)
}

/// Up to `len` bytes.
fn read(decoder: impl Read, len: usize) -> std::io::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(len);
    decoder.take(len as u64).read_to_end(&mut out)?;
    Ok(out)
}

/// The length of all, then pieces with their lengths in front, which are not parted by the end of a sector. Each is a sector.
fn unpack_lzo(input: &[u8], len: usize, sector_bytes: usize) -> Result<Vec<u8>, Broken> {
    const LEN_BYTES: usize = 4;
    let number = |at: usize| -> Result<usize, Broken> {
        let bytes = input.get(at..).and_then(|bytes| bytes.first_chunk::<LEN_BYTES>()).ok_or(Broken)?;
        usize::try_from(u32::from_le_bytes(*bytes)).map_err(|_| Broken)
    };
    let end = number(0)?;
    let (mut at, mut out) = (LEN_BYTES, Vec::with_capacity(len));
    while at < end && out.len() < len {
        let left = sector_bytes - at % sector_bytes;
        if left < LEN_BYTES {
            at += left;
        }
        let size = number(at)?;
        at += LEN_BYTES;
        let piece = input.get(at..at.checked_add(size).ok_or(Broken)?).ok_or(Broken)?;
        at += size;
        lzo::unpack(piece, &mut out, sector_bytes)?;
    }
    out.truncate(len);
    Ok(out)
}
