//! The changes of metadata, checked, and cut down to the sectors that really change.

use block::{Error, ReadAt, Result};
use extent::{ExtentSet, Offset, Span, VirtualSpan, Volume, VolumeSpan};
use filesystem::{Edits, Patch, Relocations};

use super::index;

/// The unit in which metadata are written.
pub(super) const SECTOR_BYTES: usize = 512;

/// The longest patch that neighbours are joined to.
const JOINED_LEN_MAX: usize = 1 << 20;

/// The patches of `edits`, once they were found to keep their promises: whole sectors, in order, within the volume, apart from
/// all that moves, equal before to what `volume` holds, and leaving the witnesses alone.
pub(super) fn check<'a>(
    edits: &'a Edits,
    batch: &Relocations,
    witnesses: &ExtentSet<Volume>,
    volume: &dyn ReadAt<Volume>,
) -> Result<&'a [Patch]> {
    let whole = Span::from_zero(volume.len_bytes());
    let mut last_end = Offset::ZERO;
    let mut found = Vec::new();
    for patch in &edits.patches {
        let wrong = |what: &str| Err(Error::invalid(format!("a change of metadata {what}")).at(patch.at));
        let len = patch.after.len();
        let is_whole_sectors =
            patch.at.get().is_multiple_of(SECTOR_BYTES as u64) && len.is_multiple_of(SECTOR_BYTES);
        if patch.before.len() != len || !is_whole_sectors {
            return wrong("is not of whole sectors");
        }
        let Some(span) = Span::checked(patch.at, len as u64).filter(|span| whole.covers(span)) else {
            return wrong("lies past the volume's end");
        };
        if span.start() < last_end {
            return wrong("is out of order");
        }
        last_end = span.end();
        if batch.departures(span).next().is_some() || batch.arrivals(span).next().is_some() {
            return wrong("lies where data move");
        }
        if witnesses
            .within(span)
            .any(|both| range(patch, both, |patch| &patch.before) != range(patch, both, |patch| &patch.after))
        {
            return wrong("changes a witness");
        }
        found.resize(len, 0);
        volume.read_at(patch.at, &mut found)?;
        if found != patch.before {
            return Err(Error::mismatch("the metadata are not what they were a moment ago").at(patch.at));
        }
    }
    Ok(&edits.patches)
}

/// The bytes of `span`, which the patch covers.
fn range<'a>(patch: &'a Patch, span: VolumeSpan, side: impl Fn(&'a Patch) -> &'a Vec<u8>) -> &'a [u8] {
    &side(patch)[index(patch.at, span.start())..index(patch.at, span.end())]
}

/// The sectors that change, on the disk of which `volume` is a part; neighbours are joined.
pub(super) fn on_disk(patches: &[Patch], volume: VirtualSpan) -> Vec<journal::Patch> {
    let mut sectors: Vec<journal::Patch> = Vec::new();
    for Patch { at, before, after } in patches {
        let pairs = before.chunks(SECTOR_BYTES).zip(after.chunks(SECTOR_BYTES));
        for ((before, after), offset) in pairs.zip((0..).step_by(SECTOR_BYTES)) {
            if before == after {
                continue;
            }
            let at = volume.start().plus(at.get()).plus(offset);
            match sectors.last_mut() {
                Some(last) if last.span().end() == at && last.after.len() < JOINED_LEN_MAX => {
                    last.before.extend_from_slice(before);
                    last.after.extend_from_slice(after);
                }
                _ => sectors.push(journal::Patch { at, before: before.to_vec(), after: after.to_vec() }),
            }
        }
    }
    sectors
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{ErrorKind, Memory};
    use filesystem::{FileId, Relocation};

    fn patch(at: u64, before: &[u8], after: &[u8]) -> Patch {
        Patch { at: Offset::new(at), before: before.to_vec(), after: after.to_vec() }
    }

    #[test]
    fn only_what_changes_is_written_and_neighbours_at_once() {
        let (before, mut after) = (vec![0; 4096], vec![0; 4096]);
        after[512] = 1;
        after[1024] = 1;
        after[3000] = 1;
        let all = [patch(8192, &before, &after), patch(8192 + 4096, &[0; 512], &[1; 512])];
        let found = on_disk(&all, Span::new(Offset::new(1 << 20), 1 << 20));
        let places: Vec<_> = found.iter().map(|each| (each.at.get() - (1 << 20), each.after.len())).collect();
        assert_eq!(places, [(8704, 1024), (8192 + 2560, 512), (8192 + 4096, 512)]);
        assert!(found.iter().all(|each| each.before.iter().all(|byte| *byte == 0)));
    }

    #[test]
    fn broken_promises_are_found() {
        let volume = Memory::new(vec![0; 64 << 10]);
        let from = Span::new(Offset::new(8192), 4096);
        let moved = Relocation { from, to: Offset::new(16384), file: FileId(1) };
        let batch = Relocations::new(vec![moved]).unwrap();
        let witnesses = [Span::new(Offset::new(1030), 4)].into_iter().collect();
        let kind = |patches: &[Patch]| {
            let edits = Edits { patches: patches.to_vec(), freed: Vec::new() };
            check(&edits, &batch, &witnesses, &volume).err().map(|error| error.kind())
        };
        let (zeros, ones) = ([0; 512], [1; 512]);
        assert_eq!(kind(&[patch(0, &zeros, &ones), patch(512, &zeros, &ones)]), None);
        let invalid = Some(ErrorKind::Invalid);
        assert_eq!(kind(&[patch(100, &zeros, &ones)]), invalid);
        assert_eq!(kind(&[patch(0, &zeros, &ones[..511])]), invalid);
        assert_eq!(kind(&[patch(64 << 10, &zeros, &ones)]), invalid);
        assert_eq!(kind(&[patch(u64::MAX / 512 * 512, &zeros, &ones)]), invalid);
        assert_eq!(kind(&[patch(512, &zeros, &ones), patch(0, &zeros, &ones)]), invalid);
        assert_eq!(kind(&[patch(0, &[0; 1024], &[1; 1024]), patch(512, &zeros, &ones)]), invalid);
        assert_eq!(kind(&[patch(8192 + 512, &zeros, &ones)]), invalid);
        assert_eq!(kind(&[patch(16384 + 512, &zeros, &ones)]), invalid);
        assert_eq!(kind(&[patch(1024, &zeros, &ones)]), invalid, "a witness");
        let mut beside = ones;
        beside[6..10].fill(0);
        assert_eq!(kind(&[patch(1024, &zeros, &beside)]), None, "beside a witness");
        assert_eq!(kind(&[patch(2048, &ones, &zeros)]), Some(ErrorKind::Mismatch));
    }
}
