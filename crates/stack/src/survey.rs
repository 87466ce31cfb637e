//! Everything that there is to know of fragmentation and waste, in every layer, without reading a file's data.

use block::{ErrorKind, HOST_BLOCK_BYTES, Result, RunState};
use extent::{VirtualSpan, VolumeSpan};
use filesystem::{Catalog, FileKind, FileSystem, Fragments, StreamName};
use plan::Role;

use crate::layers::{LayerFragments, Layers};
use crate::{Stack, UsedMaps, Volume};

/// What was found.
pub struct Survey {
    /// One a volume, in the order of [`Stack::volumes`].
    pub volumes: Vec<VolumeSurvey>,
    /// Where the virtual disk's bytes lie.
    pub layers: Layers,
    /// What the top image holds for nothing.
    pub waste: Waste,
}

/// What was found in a volume.
pub struct VolumeSurvey {
    /// Its files; `None` if they cannot be listed.
    pub catalog: Option<Catalog>,
    /// Its free space; `None` if that cannot be listed.
    pub free: Option<FreeSpace>,
    /// Why the one or the other cannot.
    pub unlisted: Option<String>,
    /// Sums over the files.
    pub totals: Totals,
    /// Runs in each layer of each stream, in the order of [`Catalog::streams`].
    pub fragments: Vec<StreamFragments>,
}

/// [`LayerFragments`] in less memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamFragments {
    guest: u32,
    image: u32,
    whole_stack: u32,
}

impl From<LayerFragments> for StreamFragments {
    fn from(fragments: LayerFragments) -> Self {
        let small = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        Self {
            guest: small(fragments.guest),
            image: small(fragments.image),
            whole_stack: small(fragments.whole_stack),
        }
    }
}

impl From<StreamFragments> for LayerFragments {
    fn from(fragments: StreamFragments) -> Self {
        Self {
            guest: fragments.guest.into(),
            image: fragments.image.into(),
            whole_stack: fragments.whole_stack.into(),
        }
    }
}

/// Files or other streams of one kind, and their runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    /// How many there are.
    pub count: u64,
    /// Those in more than one run on the volume.
    pub fragmented: u64,
    /// Runs on the volume beyond the first of each.
    pub extra_fragments: u64,
    /// Bytes allocated to those in more than one run.
    pub fragmented_bytes: u64,
    /// Runs in each layer.
    pub fragments: LayerFragments,
    /// Bytes allocated on the volume.
    pub allocated_bytes: u64,
}

impl Sum {
    fn add(&mut self, fragments: LayerFragments, allocated_bytes: u64) {
        self.count += 1;
        if fragments.guest > 1 {
            self.fragmented += 1;
            self.extra_fragments += fragments.guest - 1;
            self.fragmented_bytes += allocated_bytes;
        }
        self.fragments.guest += fragments.guest;
        self.fragments.image += fragments.image;
        self.fragments.whole_stack += fragments.whole_stack;
        self.allocated_bytes += allocated_bytes;
    }
}

/// Sums over a volume's files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Main streams of regular files.
    pub files: Sum,
    /// Directories, the root included.
    pub directories: Sum,
    /// What the file system keeps for itself.
    pub metadata: Sum,
    /// Symbolic links, devices, pipes, sockets.
    pub others: Sum,
    /// Streams of any of these besides the main one.
    pub streams: Sum,
}

/// Free extents of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FreeSpace {
    /// How many.
    pub extents: u64,
    /// All of them.
    pub bytes: u64,
    /// The largest.
    pub largest_bytes: u64,
    /// How many, and how many bytes, from 2^n bytes to less than twice that.
    pub by_size: [(u64, u64); 64],
}

impl Default for FreeSpace {
    fn default() -> Self {
        Self { extents: 0, bytes: 0, largest_bytes: 0, by_size: [(0, 0); 64] }
    }
}

impl FreeSpace {
    fn add(&mut self, span: VolumeSpan) {
        let bytes = span.len_bytes();
        let Some(log) = bytes.checked_ilog2() else { return };
        self.extents += 1;
        self.bytes += bytes;
        self.largest_bytes = self.largest_bytes.max(bytes);
        let (extents, sum) = &mut self.by_size[log as usize];
        *extents += 1;
        *sum += bytes;
    }
}

/// What the top image holds that its guest does not use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waste {
    /// In whole units of the image, which can be given back as they are.
    pub reclaimable_bytes: u64,
    /// In units that hold used bytes as well.
    pub in_partly_used_units_bytes: u64,
    /// The unit: a cluster of the image, or a block of the host.
    pub unit_bytes: u64,
}

impl Stack {
    /// Lists every volume's files and lays all layers over each other. Only metadata are read. `maps` say what is
    /// free; a volume without one has nothing to reclaim.
    pub fn survey(&self, maps: &UsedMaps) -> Result<Survey> {
        let layers = Layers::of(self.chain())?;
        let mut volumes = Vec::new();
        for volume in self.volumes() {
            volumes.push(survey_volume(volume, &layers)?);
        }
        let waste = self.waste(maps)?;
        Ok(Survey { volumes, layers, waste })
    }

    fn waste(&self, maps: &UsedMaps) -> Result<Waste> {
        let chain = self.chain();
        let unit_bytes = chain.facts().cluster_bytes.unwrap_or(HOST_BLOCK_BYTES).max(1);
        let top_files = chain.links()[0].layer.files().len();
        let mut counter =
            WasteCounter { waste: Waste { unit_bytes, ..Waste::default() }, ..Default::default() };
        self.each_facts(maps, |facts| {
            for fact in facts {
                let file = match fact.state {
                    RunState::Hole | RunState::Zero => continue,
                    RunState::Data { file, .. } | RunState::Compressed { file, .. } => file,
                };
                if (file.0 as usize) < top_files {
                    let is_used = !matches!(fact.role, Role::Free(_) | Role::Swap(_));
                    counter.push(fact.span, is_used);
                }
            }
        })?;
        Ok(counter.finish())
    }
}

/// Sorts allocated bytes by whether their unit holds anything used. Spans come in order.
#[derive(Default)]
struct WasteCounter {
    waste: Waste,
    /// The unit that the last span ended in.
    unit: u64,
    wasted_in_unit: u64,
    unit_is_used: bool,
}

impl WasteCounter {
    fn push(&mut self, span: VirtualSpan, is_used: bool) {
        let unit_bytes = self.waste.unit_bytes;
        let (mut start, end) = (span.start().get(), span.end().get());
        while start < end {
            let unit = start / unit_bytes;
            if unit != self.unit {
                self.close_unit();
                self.unit = unit;
            }
            let unit_end = (unit + 1).saturating_mul(unit_bytes).min(end);
            // Whole units in the middle of a span are counted at once.
            let whole = (end - start) / unit_bytes * unit_bytes;
            if start.is_multiple_of(unit_bytes) && whole > unit_bytes {
                if !is_used {
                    self.waste.reclaimable_bytes += whole;
                }
                start += whole;
                // What follows of the span lies in the next unit.
                self.unit = (start - 1) / unit_bytes;
                self.unit_is_used = is_used;
                continue;
            }
            if is_used {
                self.unit_is_used = true;
            } else {
                self.wasted_in_unit += unit_end - start;
            }
            start = unit_end;
        }
    }

    fn close_unit(&mut self) {
        let wasted = std::mem::take(&mut self.wasted_in_unit);
        match std::mem::take(&mut self.unit_is_used) {
            true => self.waste.in_partly_used_units_bytes += wasted,
            false => self.waste.reclaimable_bytes += wasted,
        }
    }

    fn finish(mut self) -> Waste {
        self.close_unit();
        self.waste
    }
}

fn survey_volume(volume: &Volume, layers: &Layers) -> Result<VolumeSurvey> {
    let mut survey = VolumeSurvey {
        catalog: None,
        free: None,
        unlisted: None,
        totals: Totals::default(),
        fragments: Vec::new(),
    };
    let Some(filesystem) = &volume.filesystem else { return Ok(survey) };
    match Catalog::read(&**filesystem) {
        Ok(catalog) => {
            count_fragments(&mut survey, volume, &**filesystem, &catalog, layers);
            survey.catalog = Some(catalog);
        }
        Err(error) if error.kind() == ErrorKind::Io => return Err(error),
        Err(error) => survey.unlisted = Some(error.to_string()),
    }
    let mut free = FreeSpace::default();
    match filesystem.each_free_span(&mut |span| free.add(span)) {
        Ok(()) => survey.free = Some(free),
        Err(error) if error.kind() == ErrorKind::Io => return Err(error),
        Err(error) => {
            // What could be told of it is kept: the reason says that it is not all.
            survey.free = Some(free).filter(|free| free.extents > 0);
            survey.unlisted.get_or_insert(error.to_string());
        }
    }
    Ok(survey)
}

fn count_fragments(
    survey: &mut VolumeSurvey,
    volume: &Volume,
    filesystem: &dyn FileSystem,
    catalog: &Catalog,
    layers: &Layers,
) {
    survey.fragments.reserve_exact(catalog.streams().len());
    for stream in catalog.streams() {
        let rule: Fragments = filesystem.fragments();
        let fragments = layers.fragments(&volume.place, rule, stream.extents());
        let allocated_bytes = stream.extents().map(|extent| extent.span.len_bytes()).sum();
        let totals = &mut survey.totals;
        let sum = match (stream.stream.name, stream.stream.kind) {
            (_, FileKind::Metadata) => &mut totals.metadata,
            (StreamName::Named(_), _) => &mut totals.streams,
            (StreamName::Main, FileKind::Regular) => &mut totals.files,
            (StreamName::Main, FileKind::Directory) => &mut totals.directories,
            (StreamName::Main, FileKind::Symlink | FileKind::Other) => &mut totals.others,
        };
        sum.add(fragments, allocated_bytes);
        survey.fragments.push(fragments.into());
    }
}

impl Survey {
    /// Runs of all streams in each layer.
    pub fn fragments(&self) -> LayerFragments {
        let mut sum = LayerFragments::default();
        for volume in &self.volumes {
            let Totals { files, directories, metadata, others, streams } = volume.totals;
            for part in [files, directories, metadata, others, streams] {
                sum.guest += part.fragments.guest;
                sum.image += part.fragments.image;
                sum.whole_stack += part.fragments.whole_stack;
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extent::{Offset, Span};

    fn waste(unit_bytes: u64, spans: &[(u64, u64, bool)]) -> (u64, u64) {
        let mut counter =
            WasteCounter { waste: Waste { unit_bytes, ..Waste::default() }, ..Default::default() };
        for &(start, len, is_used) in spans {
            counter.push(Span::new(Offset::new(start), len), is_used);
        }
        let waste = counter.finish();
        (waste.reclaimable_bytes, waste.in_partly_used_units_bytes)
    }

    #[test]
    fn waste_is_told_by_whole_units() {
        assert_eq!(waste(10, &[(0, 10, false)]), (10, 0));
        assert_eq!(waste(10, &[(0, 100, false), (100, 10, true)]), (100, 0));
        assert_eq!(waste(10, &[(0, 5, true), (5, 20, false)]), (15, 5));
        assert_eq!(waste(10, &[(0, 25, false), (25, 1, true), (26, 24, false)]), (40, 9));
        assert_eq!(waste(10, &[(5, 5, false), (10, 30, false), (47, 3, false)]), (38, 0));
        assert_eq!(waste(10, &[(0, 100, true), (100, 3, false), (103, 7, true)]), (0, 3));
    }

    #[test]
    fn waste_by_units_is_that_of_a_count_by_bytes() {
        // Every assignment of 9 bytes to used, wasted and hole, in units of 3.
        for mut code in 0..3u32.pow(9) {
            let mut bytes = [0; 9];
            for byte in &mut bytes {
                *byte = code % 3;
                code /= 3;
            }
            let mut spans: Vec<(u64, u64, bool)> = Vec::new();
            for (at, byte) in (0..).zip(bytes).filter(|(_, byte)| *byte != 2) {
                match spans.last_mut() {
                    Some((start, len, used)) if *start + *len == at && *used == (byte == 1) => *len += 1,
                    _ => spans.push((at, 1, byte == 1)),
                }
            }
            let mut expected = (0, 0);
            for unit in bytes.chunks(3) {
                let wasted = unit.iter().filter(|byte| **byte == 0).count() as u64;
                if unit.contains(&1) { expected.1 += wasted } else { expected.0 += wasted }
            }
            assert_eq!(waste(3, &spans), expected, "{bytes:?}");
        }
    }
}
