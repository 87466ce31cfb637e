//! What a writer puts into its target, carried out and measured.

use block::{Result, TargetFile};
use extent::HostSpan;
use image::{Put, PutBytes};

/// Whether it writes nothing, but makes room for what others write.
pub(crate) fn makes_room(put: &Put) -> bool {
    matches!(put.bytes, PutBytes::Reserve(_) | PutBytes::Zero(_))
}

/// Where what a put is about ends.
pub(crate) fn put_end(put: &Put) -> u64 {
    let len_bytes = match &put.bytes {
        PutBytes::Reserve(len_bytes) | PutBytes::Zero(len_bytes) => *len_bytes,
        PutBytes::Chunk(_) | PutBytes::Owned(_) => put_len(put),
    };
    put.at.get().saturating_add(len_bytes)
}

/// Bytes that a put writes.
pub(crate) fn put_len(put: &Put) -> u64 {
    match &put.bytes {
        PutBytes::Chunk(range) => range.len() as u64,
        PutBytes::Owned(bytes) => bytes.len() as u64,
        PutBytes::Reserve(_) | PutBytes::Zero(_) => 0,
    }
}

/// Carries out `puts`, whose chunk parts refer to `chunk`; answers how many bytes were written.
pub(crate) fn put_all(target: &dyn TargetFile, chunk: &[u8], puts: Vec<Put>) -> Result<u64> {
    let mut written_bytes = 0;
    for Put { at, bytes } in puts {
        let written: &[u8] = match &bytes {
            PutBytes::Chunk(range) => &chunk[range.clone()],
            PutBytes::Owned(bytes) => bytes,
            PutBytes::Reserve(len_bytes) => {
                target.reserve(HostSpan::new(at, *len_bytes))?;
                continue;
            }
            PutBytes::Zero(len_bytes) => {
                target.zero(HostSpan::new(at, *len_bytes))?;
                continue;
            }
        };
        target.write_at(at, written)?;
        target.forget(HostSpan::new(at, written.len() as u64));
        written_bytes += written.len() as u64;
    }
    Ok(written_bytes)
}

/// The storage that a put of tables needs; `None` if it needs none.
pub(crate) fn stored_span(put: &Put) -> Option<HostSpan> {
    match &put.bytes {
        PutBytes::Owned(bytes) => Some(HostSpan::new(put.at, bytes.len() as u64)),
        PutBytes::Reserve(len_bytes) => Some(HostSpan::new(put.at, *len_bytes)),
        // Zeros may be holes.
        PutBytes::Zero(_) | PutBytes::Chunk(_) => None,
    }
}
