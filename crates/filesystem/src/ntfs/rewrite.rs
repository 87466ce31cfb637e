//! One file record with what moved told anew in its run lists.
//!
//! Invariants:
//! - an attribute keeps its record, its VCNs, its sizes and all else but the clusters that its run list names, and with
//!   that list its own length;
//! - runs that came to follow each other are joined, so that whole extents that move never make a list of more runs;
//! - what does not fit the record is an error, and nothing is cut off.
//!
//! Pure: bytes in, bytes out.

use block::{Error, Result};
use extent::{VolumeOffset, VolumeSpan};

use super::boot::Geometry;
use super::layout::{ATTRIBUTE_LENGTH_OFFSET, FILE_RECORD_BYTES_IN_USE_OFFSET};
use super::record::{Attribute, Mapped, Record, RecordNumber, Value, protect};
use super::runs::{self, Run};
use crate::rearrange::Relocations;

/// A record that was rewritten.
pub(super) struct Rewrite {
    /// The record as it is to be on the volume.
    pub(super) bytes: Vec<u8>,
    /// Bytes that its run lists name elsewhere than before.
    pub(super) moved_bytes: u64,
}

/// The record `number` with `relocations` in its run lists; `None` if they move nothing of it. `bytes` are as on the
/// volume, where they lie at `at`.
pub(super) fn rewrite_record(
    bytes: &[u8],
    number: RecordNumber,
    at: VolumeOffset,
    relocations: &Relocations,
    geometry: &Geometry,
) -> Result<Option<Rewrite>> {
    let mut fixed = bytes.to_vec();
    let record = Record::parse(&mut fixed, number, at)?;
    let mut attributes = Vec::new();
    let mut moved_bytes = 0;
    for attribute in record.attributes() {
        let attribute = attribute?;
        let moved = moved_attribute(&attribute, relocations, geometry)?;
        moved_bytes += moved.as_ref().map_or(0, |(_, moved_bytes)| *moved_bytes);
        attributes.push((attribute.bytes(), moved.map(|(bytes, _)| bytes)));
    }
    if moved_bytes == 0 {
        return Ok(None);
    }
    let attributes: Vec<_> = attributes.iter().map(|(old, new)| new.as_deref().unwrap_or(old)).collect();
    let mut new = assemble(&record, &attributes)?;
    protect(&mut new);
    Ok(Some(Rewrite { bytes: new, moved_bytes }))
}

/// The record, fixed up, with these attributes for those that it has.
pub(super) fn assemble(record: &Record<'_>, attributes: &[&[u8]]) -> Result<Vec<u8>> {
    let fixed = record.bytes();
    let (usa_end, attributes_at) = record.head_bounds();
    if usa_end > attributes_at {
        return Err(record.error().field("attributes offset", attributes_at, format!("at least {usa_end}")));
    }
    let mut new = fixed[..attributes_at].to_vec();
    let mut old_end = attributes_at;
    for attribute in record.attributes() {
        old_end += attribute?.bytes().len();
    }
    attributes.iter().for_each(|attribute| new.extend_from_slice(attribute));
    // The end mark, and what is counted as in use after it.
    let old_in_use = record.bytes_in_use();
    new.extend_from_slice(&fixed[old_end..old_in_use]);
    let in_use = new.len();
    if in_use > fixed.len() {
        let text = format!("NTFS file record {} has no room for its run lists", record.number());
        return Err(Error::invalid(text).field("size in use", in_use, format!("at most {}", fixed.len())));
    }
    new.resize(in_use.max(old_in_use), 0);
    new.extend_from_slice(&fixed[new.len()..]);
    let field = u32::try_from(in_use).expect("at most 4096").to_le_bytes();
    new[FILE_RECORD_BYTES_IN_USE_OFFSET..][..4].copy_from_slice(&field);
    Ok(new)
}

/// The attribute with its clusters where they go, and how many bytes went; `None` if none did.
pub(super) fn moved_attribute(
    attribute: &Attribute<'_>,
    relocations: &Relocations,
    geometry: &Geometry,
) -> Result<Option<(Vec<u8>, u64)>> {
    let Value::NonResident(mapped) = attribute.value()? else { return Ok(None) };
    let mut moved_bytes = 0;
    attribute.each_run(&mapped, geometry.cluster_count, |run| {
        let span = run.lcn.map(|lcn| geometry.span_of(lcn, run.count));
        let departures = span.map(|span| relocations.departures(span));
        moved_bytes += departures.into_iter().flatten().map(|each| each.from.len_bytes()).sum::<u64>();
        Ok(())
    })?;
    if moved_bytes == 0 {
        return Ok(None);
    }
    if attribute.name_end() > mapped.run_list_offset {
        return Err(attribute.error("run list's offset", mapped.run_list_offset, "after the name"));
    }
    let runs = moved_runs(attribute, &mapped, relocations, geometry)?;
    Ok(Some((with_runs(attribute, &mapped, &runs)?, moved_bytes)))
}

/// The runs of (one part of) an attribute, as they lie afterwards.
pub(super) fn moved_runs(
    attribute: &Attribute<'_>,
    mapped: &Mapped<'_>,
    relocations: &Relocations,
    geometry: &Geometry,
) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    attribute
        .each_run(mapped, geometry.cluster_count, |run| push_moved(&mut runs, run, relocations, geometry))?;
    Ok(runs)
}

/// The attribute with another run list, which stands after its name.
pub(super) fn with_runs(attribute: &Attribute<'_>, mapped: &Mapped<'_>, runs: &[Run]) -> Result<Vec<u8>> {
    let mut bytes = attribute.bytes()[..mapped.run_list_offset].to_vec();
    runs::encode(runs, &mut bytes);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let length = u32::try_from(bytes.len())
        .map_err(|_| attribute.error("length", bytes.len(), "that of a record"))?
        .to_le_bytes();
    bytes[ATTRIBUTE_LENGTH_OFFSET..][..4].copy_from_slice(&length);
    Ok(bytes)
}

/// Appends a run as it lies afterwards, joined to the one before where it goes on there.
fn push_moved(runs: &mut Vec<Run>, run: Run, relocations: &Relocations, geometry: &Geometry) -> Result<()> {
    let Some(lcn) = run.lcn else {
        runs.push(run);
        return Ok(());
    };
    let mut outside = None;
    relocations.each_place(geometry.span_of(lcn, run.count), |from, to| match clusters(geometry, from, to) {
        Some(run) => push(runs, run),
        None => outside = Some(to),
    });
    match outside {
        None => Ok(()),
        Some(to) => Err(Error::invalid("a relocation that is no clusters of the volume").at(to)),
    }
}

/// Appends a run, joined to the one before where it goes on there.
pub(super) fn push(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last) if last.lcn.map(|lcn| lcn + last.count) == run.lcn => last.count += run.count,
        _ => runs.push(run),
    }
}

/// As many bytes as `from` has, at `to`, as a run.
fn clusters(geometry: &Geometry, from: VolumeSpan, to: VolumeOffset) -> Option<Run> {
    let is_whole = |bytes: u64| bytes.is_multiple_of(geometry.cluster_bytes);
    let (lcn, count) = (to.get() / geometry.cluster_bytes, from.len_bytes() / geometry.cluster_bytes);
    let is_on_volume = lcn.checked_add(count).is_some_and(|end| end <= geometry.cluster_count);
    let is_right = is_whole(to.get()) && is_whole(from.len_bytes()) && is_on_volume;
    is_right.then_some(Run { lcn: Some(lcn), count })
}

#[cfg(test)]
mod tests {
    use block::ErrorKind;
    use extent::Span;
    use proptest::prelude::*;

    use super::super::layout::ATTR_END;
    use super::*;
    use crate::files::FileId;
    use crate::rearrange::Relocation;

    const CLUSTER_BYTES: u64 = 4096;
    const CLUSTER_COUNT: u64 = 1 << 20;
    /// Clusters from here on are where things go.
    const UPPER: u64 = CLUSTER_COUNT / 2;

    fn geometry(record_bytes: u64) -> Geometry {
        Geometry {
            sector_bytes: 512,
            cluster_bytes: CLUSTER_BYTES,
            cluster_count: CLUSTER_COUNT,
            size_bytes: CLUSTER_COUNT * CLUSTER_BYTES,
            record_bytes,
            mft_lcn: 4,
            mirror_lcn: 2,
            serial: 1,
        }
    }

    /// What an attribute is made from.
    #[derive(Clone, Debug)]
    enum Content {
        Resident(u8),
        Runs(Vec<Run>),
    }

    fn attribute(instance: u16, content: &Content) -> Vec<u8> {
        let name: Vec<u8> = format!("s{instance}").encode_utf16().flat_map(u16::to_le_bytes).collect();
        let mut bytes = vec![0; 16];
        bytes[..4].copy_from_slice(&0x80u32.to_le_bytes());
        bytes[9] = u8::try_from(name.len() / 2).unwrap();
        bytes[14..16].copy_from_slice(&instance.to_le_bytes());
        match content {
            Content::Resident(len) => {
                bytes[10] = 24;
                bytes.extend([*len, 0, 0, 0, 32, 0, 0, 0]);
                bytes.extend(name);
                bytes.resize(32, 0);
                bytes.extend(vec![7; usize::from(*len)]);
            }
            Content::Runs(runs) => {
                bytes[8] = 1;
                bytes[10] = 64;
                let count: u64 = runs.iter().map(|run| run.count).sum();
                bytes.extend(5u64.to_le_bytes());
                bytes.extend((5 + count - 1).to_le_bytes());
                bytes.extend([72, 0, 0, 0, 0, 0, 0, 0]);
                bytes.extend([9; 24]);
                bytes.extend(name);
                bytes.resize(72, 0);
                runs::encode(runs, &mut bytes);
            }
        }
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let length = u32::try_from(bytes.len()).unwrap().to_le_bytes();
        bytes[4..8].copy_from_slice(&length);
        bytes
    }

    /// A record as on the volume; `None` if so much does not fit.
    fn record(record_len: usize, usn: u16, contents: &[Content]) -> Option<Vec<u8>> {
        let usa_count = record_len / 512 + 1;
        let attributes_at = (0x30 + 2 * usa_count).next_multiple_of(8);
        let mut bytes = vec![0; attributes_at];
        bytes[..4].copy_from_slice(b"FILE");
        bytes[4] = 0x30;
        bytes[6] = u8::try_from(usa_count).unwrap();
        bytes[20] = u8::try_from(attributes_at).unwrap();
        bytes[22] = 1;
        bytes[28..32].copy_from_slice(&u32::try_from(record_len).unwrap().to_le_bytes());
        bytes[0x30..0x32].copy_from_slice(&usn.to_le_bytes());
        for (instance, content) in (0..).zip(contents) {
            bytes.extend(attribute(instance, content));
        }
        bytes.extend(ATTR_END.to_le_bytes());
        bytes.extend([0; 4]);
        let in_use = u32::try_from(bytes.len()).unwrap().to_le_bytes();
        bytes[24..28].copy_from_slice(&in_use);
        if bytes.len() > record_len {
            return None;
        }
        bytes.resize(record_len, 0x5a);
        protect(&mut bytes);
        Some(bytes)
    }

    fn rewrite(bytes: &[u8], relocations: &Relocations) -> Result<Option<Rewrite>> {
        let geometry = geometry(bytes.len() as u64);
        rewrite_record(bytes, RecordNumber(40), VolumeOffset::ZERO, relocations, &geometry)
    }

    fn relocation(from: u64, count: u64, to: u64) -> Relocation {
        Relocation {
            from: Span::new(VolumeOffset::new(from * CLUSTER_BYTES), count * CLUSTER_BYTES),
            to: VolumeOffset::new(to * CLUSTER_BYTES),
            file: FileId(40),
        }
    }

    fn data(lcn: u64, count: u64) -> Run {
        Run { lcn: Some(lcn), count }
    }

    #[test]
    fn runs_that_come_together_are_one_and_what_follows_moves_up() {
        let hole = Run { lcn: None, count: 9 };
        let runs = vec![data(100, 5), hole, data(7000, 3), data(300_000, 2), data(310_000, 2), data(9, 1)];
        let old = [Content::Resident(3), Content::Runs(runs), Content::Resident(40)];
        let old = record(1024, 0xfffd, &old).unwrap();
        let all = vec![
            relocation(7000, 3, 600_000),
            relocation(300_000, 2, 600_003),
            relocation(310_000, 2, 600_005),
            relocation(9, 1, 600_007),
        ];
        let new = rewrite(&old, &Relocations::new(all).unwrap()).unwrap().unwrap();
        assert_eq!(new.moved_bytes, 8 * CLUSTER_BYTES);
        let runs = vec![data(100, 5), hole, data(600_000, 8)];
        let expected = [Content::Resident(3), Content::Runs(runs), Content::Resident(40)];
        // The update sequence number was 0xfffe, and skips two.
        let mut expected = record(1024, 0, &expected).unwrap();
        let in_use = usize::from(expected[24]) + (usize::from(expected[25]) << 8);
        // What came free within the record is zeros.
        let old_in_use = usize::from(old[24]) + (usize::from(old[25]) << 8);
        expected[in_use..old_in_use].fill(0);
        assert!(in_use < old_in_use);
        assert_eq!(new.bytes, expected);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let runs: Vec<_> = (0..480).map(|index| data(10 + index * 2, 1)).collect();
        let counts = (1..480).rev();
        let fitting = counts.map(|count| [Content::Runs(runs[..count].to_vec())]);
        let full = fitting.into_iter().find_map(|content| record(1024, 1, &content)).unwrap();
        let one = Relocations::new(vec![relocation(20, 1, UPPER)]).unwrap();
        let error = rewrite(&full, &one).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("no room for its run lists: size in use is 10"), "{error}");
    }

    #[test]
    fn what_is_not_there_changes_nothing() {
        let old = record(1024, 7, &[Content::Runs(vec![data(100, 5)])]).unwrap();
        let none = Relocations::new(vec![relocation(99, 1, UPPER), relocation(105, 1, UPPER + 9)]).unwrap();
        assert!(rewrite(&old, &none).unwrap().is_none());
    }

    /// Attributes whose runs, one after the other, lie apart in the lower half, and for each run whether it goes, and
    /// whether it goes right behind the last one that did.
    fn any_contents() -> impl Strategy<Value = Vec<(Content, Vec<(bool, bool)>)>> {
        let run = (1..200u64, 0..3u64, any::<bool>(), any::<bool>());
        let mapped = prop::collection::vec(run, 1..40);
        let content = prop_oneof![
            (0..60u8).prop_map(|len| (Content::Resident(len), Vec::new())),
            mapped.prop_map(|parts| {
                let runs = parts
                    .iter()
                    .map(|(count, gap, ..)| Run { lcn: (*gap > 0).then_some(*gap), count: *count });
                let moves = parts.iter().map(|(_, _, goes, near)| (*goes, *near)).collect();
                (Content::Runs(runs.collect()), moves)
            }),
        ];
        prop::collection::vec(content, 1..6).prop_map(|mut contents| {
            // The gaps become places.
            let mut at = 1;
            for (content, _) in &mut contents {
                let Content::Runs(runs) = content else { continue };
                for run in runs {
                    if let Some(lcn) = &mut run.lcn {
                        at += *lcn;
                        *lcn = at;
                        at += run.count;
                    }
                }
            }
            contents
        })
    }

    /// Runs where they go, one for one, joined as they are read.
    fn joined(runs: &[Run]) -> Vec<Run> {
        let mut joined = Vec::new();
        runs.iter().for_each(|run| match run.lcn {
            Some(_) => push(&mut joined, *run),
            None => joined.push(*run),
        });
        joined
    }

    proptest! {
        #[test]
        fn a_record_is_as_if_it_had_been_made_so(
            contents in any_contents(), is_large: bool, usn in 1..0xfff0u16, far in 0..1000u64,
        ) {
            let record_len = if is_large { 4096 } else { 1024 };
            let before: Vec<_> = contents.iter().map(|(content, _)| content.clone()).collect();
            let Some(old) = record(record_len, usn, &before) else { return Ok(()) };
            let mut to = UPPER + far;
            let mut all = Vec::new();
            let mut touched = vec![false; contents.len()];
            let mut after = before.clone();
            for (index, (_, moves)) in contents.iter().enumerate() {
                let Content::Runs(runs) = &mut after[index] else { continue };
                for (run, (goes, is_near)) in runs.iter_mut().zip(moves) {
                    if let (Some(lcn), true) = (run.lcn, goes) {
                        to += if *is_near { 0 } else { 400 };
                        all.push(relocation(lcn, run.count, to));
                        run.lcn = Some(to);
                        to += run.count;
                        touched[index] = true;
                    }
                }
            }
            // Lists in which nothing moves stay as they are.
            for (content, touched) in after.iter_mut().zip(touched) {
                if let (Content::Runs(runs), true) = (content, touched) {
                    *runs = joined(runs);
                }
            }
            let relocations = Relocations::new(all).unwrap();
            let result = rewrite(&old, &relocations);
            let Some(expected) = record(record_len, usn + 1, &after) else {
                prop_assert_eq!(result.map(drop).unwrap_err().kind(), ErrorKind::Invalid);
                return Ok(());
            };
            let result = result.unwrap();
            prop_assert_eq!(result.is_none(), relocations.is_empty());
            let Some(mut new) = result else { return Ok(()) };
            prop_assert_eq!(new.moved_bytes, relocations.total_bytes());
            // All that is in use is compared, not what lies behind it.
            let mut expected = expected;
            let parse = |bytes: &mut Vec<u8>| {
                let in_use = Record::parse(bytes, RecordNumber(40), VolumeOffset::ZERO).unwrap().bytes_in_use();
                bytes.truncate(in_use);
            };
            for bytes in [&mut expected, &mut new.bytes] {
                parse(bytes);
                // The update sequence holds what lies behind, too.
                let attributes_at = usize::from(bytes[20]);
                bytes[0x32..attributes_at].fill(0);
            }
            prop_assert_eq!(expected, new.bytes);
        }

        #[test]
        fn any_bytes_end_without_a_panic(
            seed in any_contents(), at in 0..1024usize, noise in prop::collection::vec(any::<u8>(), 1..16),
        ) {
            let contents: Vec<_> = seed.iter().map(|(content, _)| content.clone()).collect();
            let Some(mut bytes) = record(1024, 7, &contents) else { return Ok(()) };
            for (place, byte) in bytes[at..].iter_mut().zip(noise) {
                *place = byte;
            }
            let all = (0..50).map(|index| relocation(index * 100, 50, UPPER + index * 50)).collect();
            if let Err(error) = rewrite(&bytes, &Relocations::new(all).unwrap()) {
                prop_assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Invalid));
            }
        }
    }
}
