//! When a new disk's storage is found, and what all of it is: a writer is asked for every place before anything is written.

use block::{Error, Result, TargetFile};
use extent::{ExtentSet, Host, HostSpan, Span, VirtualSpan};
use image::{AnyWriter, Piece, PieceBytes, TargetWrite, WriteBytes};

use crate::put::stored_span;

/// What a writer is shown at a time: no granule of any format is larger.
const CHUNK_BYTES: u64 = 2 << 20;
/// Storage is asked for in one piece across what is no larger than this: sector bitmaps and tables.
pub(crate) const GAP_BYTES_MAX: u64 = 1 << 20;

/// When the storage of a new disk is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Provision {
    /// As it is written: the image has no place for anything yet.
    Thin,
    /// Now. The image has a place for everything; the host zeroes it when it is first written.
    Lazy,
    /// Now, and zeroed.
    Eager,
}

/// `Unsupported` if the format has no places that could be kept ready.
pub fn check_provision(writer: &AnyWriter, provision: Provision) -> Result<()> {
    if provision == Provision::Thin || writer.encoder().is_none() {
        return Ok(());
    }
    Err(Error::unsupported("what is compressed has no place before it is written")
        .hint("--provision thin, or a format that is not compressed"))
}

/// The least that a target of some layout takes, whatever is copied into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Least {
    /// How long its file is.
    pub len_bytes: u64,
    /// Bytes of it that need storage.
    pub stored_bytes: u64,
}

/// What a disk of this layout takes at the least: its tables alone if it is thin, all of its storage if not. Nothing is written.
pub fn least(mut writer: AnyWriter, virtual_bytes: u64, provision: Provision) -> Result<Least> {
    let mut tables = writer.start()?;
    let room = match provision {
        Provision::Thin => ExtentSet::new(),
        Provision::Lazy | Provision::Eager => place_all(&mut writer, virtual_bytes, |put| tables.push(put))?,
    };
    let end = writer.finish()?;
    tables.extend(end.tables);
    tables.extend(end.headers);
    let stored = tables.iter().filter_map(stored_span);
    let all: ExtentSet<Host> = stored.chain(room.iter()).collect();
    Ok(Least { len_bytes: end.len_bytes, stored_bytes: all.total_bytes() })
}

/// Has the host find all storage that a disk of this layout will take, before anything is written into it.
pub(crate) fn reserve_all(mut writer: AnyWriter, virtual_bytes: u64, target: &dyn TargetFile) -> Result<()> {
    writer.start()?;
    let room = place_all(&mut writer, virtual_bytes, drop)?;
    joined(&room, GAP_BYTES_MAX).iter().try_for_each(|span| target.reserve(span))
}

/// Gives every granule its place. Answers where they lie; the tables that say so go to `tables`.
pub(crate) fn place_all(
    writer: &mut AnyWriter,
    virtual_bytes: u64,
    mut tables: impl FnMut(TargetWrite),
) -> Result<ExtentSet<Host>> {
    let granularity = writer.granularity_bytes();
    let mut spans = Vec::new();
    for chunk in Span::from_zero(virtual_bytes).split(CHUNK_BYTES) {
        let piece = whole_piece(chunk, granularity);
        for put in writer.place(chunk.start(), vec![piece])? {
            match put.bytes {
                WriteBytes::Chunk(range) => push(&mut spans, HostSpan::new(put.at, range.len() as u64)),
                WriteBytes::Reserve(len_bytes) => push(&mut spans, HostSpan::new(put.at, len_bytes)),
                WriteBytes::Owned(_) | WriteBytes::Zero(_) => tables(put),
            }
        }
    }
    Ok(spans.into_iter().collect())
}

/// All granules of a chunk.
pub(crate) fn whole_piece(chunk: VirtualSpan, granularity_bytes: u64) -> Piece {
    let len_bytes = chunk.len_bytes().next_multiple_of(granularity_bytes);
    let range = 0..usize::try_from(len_bytes).expect("at most a chunk");
    Piece { at: chunk.start(), len_bytes, bytes: PieceBytes::Plain(range) }
}

/// The spans, with what lies between them and is no larger than `gap_bytes_max`: too small to be worth a gap.
pub(crate) fn joined(room: &ExtentSet<Host>, gap_bytes_max: u64) -> ExtentSet<Host> {
    let mut joined: Vec<HostSpan> = Vec::new();
    for span in room.iter() {
        match joined.last_mut() {
            Some(last) if span.start().get() - last.end().get() <= gap_bytes_max => {
                *last = Span::between(last.start(), span.end());
            }
            _ => joined.push(span),
        }
    }
    joined.into_iter().collect()
}

/// Appends a span, joined to the last one where it follows that.
pub(crate) fn push(spans: &mut Vec<HostSpan>, span: HostSpan) {
    match spans.last_mut() {
        Some(last) if last.end() == span.start() => *last = Span::between(last.start(), span.end()),
        _ => spans.push(span),
    }
}
