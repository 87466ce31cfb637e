//! Logical volumes as the text of a group writes them, each by itself.
//!
//! Invariant: one that is not understood in full has a reason, and its extents.
//!
//! Source: LVM2, `lib/format_text/import_vsn1.c`, `lib/format_text/flags.c`.

use std::collections::BTreeMap;

use block::{Error, Result};

use super::corrupt::Corrupt;
use super::layout::SECTOR_BYTES;
use super::mirror::Named;
use super::reader::{Reader, out_of_range};
use super::segment::{Area, Member, Segment};
use super::text::Section;

/// Segments that are taken from one logical volume.
const COUNT_MAX: usize = 1 << 20;

/// A logical volume as it is written.
pub(super) struct RawVolume {
    pub(super) name: String,
    pub(super) is_visible: bool,
    pub(super) is_writable: bool,
    pub(super) extent_count: u64,
    /// Those that lie on physical volumes.
    pub(super) segments: Vec<Segment>,
    /// Why these are not all that there is to it.
    pub(super) reason: Option<String>,
    /// Logical volumes that it names.
    pub(super) uses: Vec<String>,
    /// If it is nothing but that: the parts that it is a mirror of.
    pub(super) mirror: Option<Named>,
}

impl RawVolume {
    pub(super) fn areas(&self) -> impl Iterator<Item = Area> {
        self.segments.iter().flat_map(|segment| segment.areas.iter().copied())
    }
}

pub(super) fn raw_volumes(
    group: &Reader<'_>,
    members: &BTreeMap<String, usize>,
    of: &[Member],
    extent_bytes: u64,
) -> Result<Vec<RawVolume>> {
    let none = Section::default();
    let all = group.section.section("logical_volumes").unwrap_or(&none);
    let names: Vec<_> = all.sections.iter().map(|(name, _)| name.as_str()).collect();
    let mut volumes = Vec::new();
    for (name, section) in &all.sections {
        let reader = Reader { section, name };
        let mut volume = RawVolume {
            name: name.clone(),
            is_visible: reader.words("status").iter().any(|word| word == "VISIBLE"),
            is_writable: ["READ", "WRITE"]
                .iter()
                .all(|word| reader.words("status").contains(&(*word).into())),
            extent_count: 0,
            segments: Vec::new(),
            reason: state_of(&reader),
            uses: Vec::new(),
            mirror: None,
        };
        let segment_count = reader.number("segment_count")?.min(COUNT_MAX as u64);
        if segment_count == 1 {
            volume.mirror = Named::of(&Reader { section: reader.inner("segment1")?, name });
        }
        for number in 1..=segment_count {
            let segment = Reader { section: reader.inner(&format!("segment{number}"))?, name };
            if segment.number("start_extent")? != volume.extent_count {
                return Err(Error::corrupt(Corrupt::Segments(name.clone())));
            }
            volume.uses.extend(segment.names_of(&names));
            add_segment(&mut volume, &segment, members, of, extent_bytes)?;
        }
        volumes.push(volume);
    }
    Ok(volumes)
}

/// Why a logical volume is more than its segments, as far as its state tells.
fn state_of(volume: &Reader<'_>) -> Option<String> {
    let status = volume.words_but("status", &["READ", "WRITE", "VISIBLE"]);
    let flags = volume.words_but("flags", &["ACTIVATION_SKIP"]);
    status.into_iter().chain(flags).next().map(|word| format!("it is in the state {word}"))
}

fn add_segment(
    volume: &mut RawVolume,
    segment: &Reader<'_>,
    members: &BTreeMap<String, usize>,
    of: &[Member],
    extent_bytes: u64,
) -> Result<()> {
    let extent_count = segment.number("extent_count")?;
    volume.extent_count = volume
        .extent_count
        .checked_add(extent_count)
        .filter(|count| count.checked_mul(extent_bytes).is_some())
        .ok_or_else(|| out_of_range(segment.name, "extent_count", extent_count))?;
    let kind = segment.text("type")?;
    let striped = kind == "striped";
    let starts = segment.areas(members)?;
    if starts.is_empty() && volume.mirror.is_some() {
        return Ok(());
    }
    if !striped {
        volume.reason = Some(format!("its kind is {kind}, which is not understood"));
    }
    if starts.is_empty() {
        // Its data are those of other logical volumes.
        volume.reason.get_or_insert_with(|| "it stands on other logical volumes".into());
        return Ok(());
    }
    // A mirror's areas each have all of it.
    let count = match kind {
        "striped" if is_whole(segment, &starts, extent_count)? => extent_count / starts.len() as u64,
        "mirror" => extent_count,
        _ => {
            let what = format!("LVM2 segment of the kind {kind} on {} physical volumes", starts.len());
            return Err(Error::unsupported(what));
        }
    };
    let stripe_bytes = match (striped, starts.len()) {
        (true, 2..) => segment.size("stripe_size")?,
        _ => extent_bytes,
    };
    if stripe_bytes == 0 || !extent_bytes.is_multiple_of(stripe_bytes) {
        return Err(out_of_range(segment.name, "stripe_size", stripe_bytes / SECTOR_BYTES));
    }
    let areas: Vec<_> = starts.into_iter().map(|(member, first)| Area { member, first, count }).collect();
    for area in &areas {
        let end = area.first.checked_add(area.count);
        if end.is_none_or(|end| end > of[area.member].extent_count) {
            return Err(out_of_range(segment.name, "extents", area.first));
        }
    }
    volume.segments.push(Segment { extent_count, stripe_bytes, areas });
    Ok(())
}

/// Whether a striped segment has as many areas as it says, all of them on physical volumes and equally long.
fn is_whole(segment: &Reader<'_>, starts: &[(usize, u64)], extent_count: u64) -> Result<bool> {
    let count = starts.len() as u64;
    Ok(segment.number("stripe_count")? == count && extent_count.is_multiple_of(count))
}

/// No extent has two owners.
pub(super) fn check_disjoint(volumes: &[RawVolume]) -> Result<()> {
    let areas = volumes.iter().flat_map(|volume| volume.areas().map(|area| (area, volume.name.as_str())));
    let mut areas: Vec<_> = areas.filter(|(area, _)| area.count > 0).collect();
    areas.sort_unstable();
    for pair in areas.windows(2) {
        let [(before, _), (after, name)] = pair else { continue };
        if before.member == after.member && before.first + before.count > after.first {
            return Err(Error::corrupt(Corrupt::Overlap((*name).to_owned())));
        }
    }
    Ok(())
}
