//! What of NTFS stays when files move: all attributes of all files, in whichever records they are, but for the clusters in
//! mapping pairs. Attribute lists only say where attributes are, and are left to the check.

use block::Result;
use xxhash_rust::xxh3::xxh3_128;

use super::check::is_map;
use super::layout::{COMPRESSED, FILE_NAME, OBJECT_ID, SECURITY_DESCRIPTOR, STANDARD_INFORMATION};
use super::pairs::each_run;
use super::record::{Attribute, Body, Mapped, Record};
use super::volume::{File, Volume};
use crate::volume::Source;
use crate::volume::snapshot::{Aspect, Collector, Layout};

pub(in crate::volume) fn collect(source: &Source, collector: &mut Collector<'_>) -> Result<()> {
    let volume = Volume::open(source)?;
    volume.each_record(|number, at, bytes| {
        if !volume.in_use.has(number) {
            return Ok(());
        }
        let record = Record::parse(bytes, number, at)?;
        if !record.is_in_use() || record.base().is_some() {
            return Ok(());
        }
        volume.with_file(record, |file| collect_file(&volume, file, collector))
    })
}

fn collect_file(volume: &Volume, file: &File<'_>, collector: &mut Collector<'_>) -> Result<()> {
    let number = file.record.number;
    let head = file.record.head();
    let words = [head.reuse.get(), head.links.get(), head.flags.get()].map(u16::to_le_bytes);
    collector.tell(number, Aspect::Head, &[&words.concat()]);
    let mut rest = &file.attributes[..];
    while let Some(first) = rest.first() {
        let is_piece = |other: &&Attribute<'_>| (other.kind, other.name) == (first.kind, first.name);
        let (pieces, others) = match first.body {
            Body::Resident(..) => rest.split_at(1),
            Body::Mapped(_) => rest.split_at(rest.iter().take_while(is_piece).count()),
        };
        rest = others;
        match first.body {
            Body::Resident(value, is_indexed) => {
                collector.tell(number, aspect(first), &[&label(first), &[0, is_indexed], value]);
            }
            Body::Mapped(head) => collect_stream(volume, number, pieces, &head, collector)?,
        }
    }
    Ok(())
}

fn aspect(attribute: &Attribute<'_>) -> Aspect {
    match attribute.kind {
        FILE_NAME => Aspect::Names,
        STANDARD_INFORMATION | OBJECT_ID | SECURITY_DESCRIPTOR => Aspect::Attributes,
        _ => Aspect::Streams,
    }
}

/// Type, flags and name, of which the length is told.
fn label(attribute: &Attribute<'_>) -> Vec<u8> {
    let mut label = attribute.kind.to_le_bytes().to_vec();
    label.extend(attribute.flags.to_le_bytes());
    label.extend((attribute.name.len() as u64).to_le_bytes());
    label.extend(attribute.name);
    label
}

fn collect_stream(
    volume: &Volume,
    number: u64,
    pieces: &[Attribute<'_>],
    head: &Mapped<'_>,
    collector: &mut Collector<'_>,
) -> Result<()> {
    let first = &pieces[0];
    let label = label(first);
    let key = xxh3_128(&label);
    let Mapped { unit_shift, allocated_bytes, data_bytes, initialized_bytes, compressed_bytes, .. } = *head;
    let sizes = [allocated_bytes, data_bytes, initialized_bytes, compressed_bytes.unwrap_or(u64::MAX)];
    let sizes = sizes.map(u64::to_le_bytes).concat();
    collector.tell(number, aspect(first), &[&label, &[1, unit_shift], &sizes]);
    let has_contents = collector.contents.includes(number) && !is_map(number, first);
    // Of what is compressed all is hashed as it is, of all else what was written.
    let end = if first.flags & COMPRESSED != 0 { u64::MAX } else { initialized_bytes };
    let mut layout = Layout::default();
    for piece in pieces {
        let Body::Mapped(mapped) = piece.body else { return Err(piece.error("residence", 0, 1)) };
        each_run(piece, &mapped, volume.cluster_count, |run| {
            layout.push(run.vcn, run.count, u8::from(run.lcn.is_some()));
            let Some(lcn) = run.lcn.filter(|_| has_contents) else { return Ok(()) };
            let logical = run.vcn.saturating_mul(volume.cluster_bytes);
            let len = (run.count * volume.cluster_bytes).min(end.saturating_sub(logical));
            collector.piece(number, key, logical, volume.at(lcn), len)
        })?;
    }
    collector.tell(number, Aspect::Layout, &[&label, &layout.finish()]);
    Ok(())
}
