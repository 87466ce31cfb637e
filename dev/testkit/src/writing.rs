//! The least engine: carries out a writer's answers one after the other.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use extent::Offset;
use image::{Piece, PieceBytes, TargetWrite, WriteBytes, Writer};

/// Writes `contents` as a new image at `path`, in chunks of 1 MiB or the granularity. Granules that are all
/// zeros are not announced, as in the real engine.
pub fn write_image(writer: &mut dyn Writer, contents: &[u8], path: &Path) {
    let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(path).unwrap();
    let granularity = usize::try_from(writer.granularity_bytes()).unwrap();
    let chunk_len = granularity.max(1 << 20);
    let mut encoder = writer.encoder();
    write_all(&file, &[], writer.start().unwrap());
    for (index, bytes) in contents.chunks(chunk_len).enumerate() {
        let mut chunk = bytes.to_vec();
        chunk.resize(bytes.len().next_multiple_of(granularity), 0);
        let at = Offset::new((index * chunk_len) as u64);
        let mut pieces: Vec<Piece> = Vec::new();
        for (granule, start) in chunk.chunks(granularity).zip((0..).step_by(granularity)) {
            if granule.iter().all(|byte| *byte == 0) {
                continue;
            }
            let piece_at = at.plus(start as u64);
            let encoded = encoder.as_mut().and_then(|encoder| encoder.encode(granule).unwrap());
            match (encoded, pieces.last_mut()) {
                (Some(bytes), _) => pieces.push(Piece {
                    at: piece_at,
                    len_bytes: granularity as u64,
                    bytes: PieceBytes::Encoded(bytes),
                }),
                (None, Some(Piece { len_bytes, bytes: PieceBytes::Plain(range), .. }))
                    if range.end == start =>
                {
                    *len_bytes += granularity as u64;
                    range.end += granularity;
                }
                (None, _) => pieces.push(Piece {
                    at: piece_at,
                    len_bytes: granularity as u64,
                    bytes: PieceBytes::Plain(start..start + granularity),
                }),
            }
        }
        if !pieces.is_empty() {
            write_all(&file, &chunk, writer.place(at, pieces).unwrap());
        }
    }
    let finish = writer.finish().unwrap();
    write_all(&file, &[], finish.tables);
    write_all(&file, &[], finish.headers);
    assert!(file.metadata().unwrap().len() <= finish.len_bytes, "nothing lies past the final length");
    file.set_len(finish.len_bytes).unwrap();
}

fn write_all(file: &std::fs::File, chunk: &[u8], puts: Vec<TargetWrite>) {
    for put in puts {
        let at = put.at.get();
        match put.bytes {
            WriteBytes::Chunk(range) => file.write_all_at(&chunk[range], at).unwrap(),
            WriteBytes::Owned(bytes) => file.write_all_at(&bytes, at).unwrap(),
            WriteBytes::Zero(len) => file.write_all_at(&vec![0; usize::try_from(len).unwrap()], at).unwrap(),
            WriteBytes::Reserve(len) => {
                if file.metadata().unwrap().len() < at + len {
                    file.set_len(at + len).unwrap();
                }
            }
        }
    }
}
