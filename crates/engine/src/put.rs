//! What a writer puts into its target, carried out and measured.

use block::{Result, TargetFile};
use extent::HostSpan;
use image::{TargetWrite, WriteBytes};

/// Whether it writes nothing, but makes room for what others write.
pub(crate) fn makes_room(put: &TargetWrite) -> bool {
    matches!(put.bytes, WriteBytes::Reserve(_) | WriteBytes::Zero(_))
}

/// What a put is about.
pub(crate) fn write_span(put: &TargetWrite) -> HostSpan {
    let len_bytes = match &put.bytes {
        WriteBytes::Reserve(len_bytes) | WriteBytes::Zero(len_bytes) => *len_bytes,
        WriteBytes::Chunk(_) | WriteBytes::Owned(_) => write_len(put),
    };
    HostSpan::new(put.at, len_bytes)
}

/// Bytes that a put writes.
pub(crate) fn write_len(put: &TargetWrite) -> u64 {
    match &put.bytes {
        WriteBytes::Chunk(range) => range.len() as u64,
        WriteBytes::Owned(bytes) => bytes.len() as u64,
        WriteBytes::Reserve(_) | WriteBytes::Zero(_) => 0,
    }
}

/// Carries out `puts`, whose chunk parts refer to `chunk`; answers how many bytes were written.
pub(crate) fn write_all(target: &dyn TargetFile, chunk: &[u8], puts: Vec<TargetWrite>) -> Result<u64> {
    let mut written_bytes = 0;
    for TargetWrite { at, bytes } in puts {
        let written: &[u8] = match &bytes {
            WriteBytes::Chunk(range) => &chunk[range.clone()],
            WriteBytes::Owned(bytes) => bytes,
            WriteBytes::Reserve(len_bytes) => {
                target.reserve(HostSpan::new(at, *len_bytes))?;
                continue;
            }
            WriteBytes::Zero(len_bytes) => {
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
pub(crate) fn stored_span(put: &TargetWrite) -> Option<HostSpan> {
    match &put.bytes {
        WriteBytes::Owned(bytes) => Some(HostSpan::new(put.at, bytes.len() as u64)),
        WriteBytes::Reserve(len_bytes) => Some(HostSpan::new(put.at, *len_bytes)),
        // Zeros may be holes.
        WriteBytes::Zero(_) | WriteBytes::Chunk(_) => None,
    }
}
