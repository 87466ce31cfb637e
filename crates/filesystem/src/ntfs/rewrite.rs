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
use super::record::{Attribute, Record, RecordNumber, Value, protect};
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
    let mut new = assemble(&record, &attributes)?;
    protect(&mut new);
    Ok(Some(Rewrite { bytes: new, moved_bytes }))
}

/// The record, fixed up, with the attributes that have new bytes.
fn assemble(record: &Record<'_>, attributes: &[(&[u8], Option<Vec<u8>>)]) -> Result<Vec<u8>> {
    let fixed = record.bytes();
    let (usa_end, attributes_at) = record.head_bounds();
    if usa_end > attributes_at {
        return Err(record.error().field("attributes offset", attributes_at, format!("at least {usa_end}")));
    }
    let mut new = fixed[..attributes_at].to_vec();
    let mut old_end = attributes_at;
    for (old, moved) in attributes {
        old_end += old.len();
        new.extend_from_slice(moved.as_deref().unwrap_or(old));
    }
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
fn moved_attribute(
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
    let mut runs = Vec::new();
    attribute
        .each_run(&mapped, geometry.cluster_count, |run| push_moved(&mut runs, run, relocations, geometry))?;
    let mut bytes = attribute.bytes()[..mapped.run_list_offset].to_vec();
    runs::encode(&runs, &mut bytes);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let length = u32::try_from(bytes.len())
        .map_err(|_| attribute.error("length", bytes.len(), "that of a record"))?
        .to_le_bytes();
    bytes[ATTRIBUTE_LENGTH_OFFSET..][..4].copy_from_slice(&length);
    Ok(Some((bytes, moved_bytes)))
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

fn push(runs: &mut Vec<Run>, run: Run) {
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
