//! What a metadata context of a server's own marks, such as QEMU's dirty bitmaps (`qemu:dirty-bitmap:NAME`).

use block::{Error, Result};
use extent::{ExtentSet, Host, Offset, Span};

use crate::allocation::asked_bytes;
use crate::handshake::{Facts, Wanted};
use crate::lanes::{Dial, Lanes, Patience};

/// In QEMU's `docs/interop/nbd.txt`: bit 0 of a dirty bitmap's context says that the extent is dirty.
const DIRTY: u64 = 1;
/// The most questions that are asked: a server that tells a little at a time is not listened to for ever.
const QUESTION_COUNT_MAX: usize = 10_000_000;

/// The spans of an export that the context which `wanted` names marks as dirty. `Refused` if the server does not have that context.
pub fn dirty(name: &str, dial: Box<dyn Dial>, wanted: Wanted, patience: Patience) -> Result<ExtentSet<Host>> {
    let context = wanted.context.clone().unwrap_or_default();
    let lanes = Lanes::connect(name.to_owned(), dial, wanted, patience)?;
    let Facts { allocation_id: Some(id), len_bytes, .. } = *lanes.facts() else {
        return Err(Error::refused(format!("the server does not tell of '{context}'")).path(name));
    };
    let mut marked = ExtentSet::new();
    let mut at = 0;
    for _ in 0..QUESTION_COUNT_MAX {
        if at >= len_bytes {
            return Ok(marked);
        }
        let asked = asked_bytes(lanes.facts(), len_bytes - at);
        let before = at;
        for (span_bytes, flags) in lanes.run(|connection| connection.allocation(id, at, asked))? {
            let end = at.saturating_add(span_bytes).min(len_bytes);
            if flags & DIRTY != 0 && end > at {
                marked.push(Span::between(Offset::new(at), Offset::new(end)));
            }
            at = end;
        }
        if at == before {
            return Err(Error::corrupt("an answer about extents that tells of none").path(name));
        }
    }
    Err(Error::unsupported("an export in so many extents").path(name))
}
