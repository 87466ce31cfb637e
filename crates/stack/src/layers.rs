//! Where the bytes of the virtual disk lie: in the files of the chain, and on the host's devices.
//!
//! Invariants:
//! - what is a hole in any layer has no place;
//! - places of different files, or of devices that are not known to be the same, never continue each other: each
//!   has a part of one numbering for itself.

use block::{FileIndex, HostExtent, HostFile, ReadAt, Result, RunState};
use extent::{FileOffset, Span, VirtualSpan};
use filesystem::{FileExtent, Fragments};
use image::Chain;

use crate::placement::Placement;

/// The virtual disk is mapped in windows of this size.
const WINDOW_BYTES: u64 = 64 << 30;

/// A part of the virtual disk that lies in one piece in a host file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageRun {
    /// Where on the virtual disk.
    pub span: VirtualSpan,
    /// In which file of the chain.
    pub file: FileIndex,
    /// Where in it.
    pub offset: u64,
    /// How many bytes it takes there: fewer than the span's if compressed.
    pub stored_bytes: u64,
}

/// A part of the virtual disk that lies in one piece somewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Where on the virtual disk.
    pub span: VirtualSpan,
    /// Where it lies: on the device; behind all of the first device on a second one.
    pub address: u64,
    /// How many bytes it takes there.
    pub stored_bytes: u64,
}

/// Runs of one stream in each layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LayerFragments {
    /// On the volume, by the rule of the file system's own tools.
    pub guest: u64,
    /// In the files of the chain.
    pub image: u64,
    /// On the host's devices, or in the files where these do not tell.
    pub whole_stack: u64,
}

/// Places of the virtual disk's bytes in every layer below it.
pub struct Layers {
    runs: Vec<ImageRun>,
    /// Of each file of the chain.
    files: Vec<FileLayer>,
    host_filesystem: Option<String>,
}

/// One file of the chain on the host.
struct FileLayer {
    /// Where the file begins if the chain's files lay one behind the other, with a gap between them.
    image_base: u64,
    /// What is added to its addresses on the device, or in itself.
    place_base: u64,
    /// `None` if the file is where the stack ends: a block device, or a file system that does not tell.
    extents: Option<Vec<HostExtent>>,
}

impl Layers {
    /// Maps all of `chain`. No data is read.
    pub fn of(chain: &Chain) -> Result<Self> {
        let mut runs: Vec<ImageRun> = Vec::new();
        for window in Span::from_zero(chain.len_bytes()).split(WINDOW_BYTES) {
            for run in chain.map_with_host(window)? {
                let (file, offset, stored_bytes) = match run.state {
                    RunState::Hole | RunState::Zero => continue,
                    RunState::Data { file, offset } => (file, offset.get(), run.span.len_bytes()),
                    RunState::Compressed { file, offset, len_bytes } => (file, offset.get(), len_bytes),
                };
                push_run(&mut runs, ImageRun { span: run.span, file, offset, stored_bytes });
            }
        }
        runs.shrink_to_fit();
        // Files on one device share its numbering; a file whose place is not known has its own.
        let mut devices: Vec<(Option<u64>, u64)> = Vec::new();
        let mut found = Vec::new();
        for file in chain.files() {
            let extents = file.host_extents()?;
            let device = file.identity().map(|(device, _)| device).filter(|_| extents.is_some());
            let known = devices.iter().position(|(other, _)| device.is_some() && *other == device);
            let index = known.unwrap_or_else(|| {
                devices.push((device, 0));
                devices.len() - 1
            });
            let end = match &extents {
                Some(extents) => extents.iter().map(end_on_device).max().unwrap_or(0),
                None => file.len_bytes(),
            };
            devices[index].1 = devices[index].1.max(end);
            found.push((index, extents));
        }
        // One device behind the other, and one file behind the other, with a gap so that none continues another.
        let behind = |base: u64, len_bytes: u64| base.saturating_add(len_bytes).saturating_add(1);
        let mut files = Vec::new();
        let mut image_base = 0;
        for (file, (index, extents)) in chain.files().iter().zip(found) {
            let place_base = devices[..index].iter().fold(0, |base, (_, end)| behind(base, *end));
            files.push(FileLayer { image_base, place_base, extents });
            image_base = behind(image_base, file.len_bytes());
        }
        let host_filesystem = chain.files().iter().find_map(HostFile::host_filesystem);
        Ok(Self { runs, files, host_filesystem })
    }

    /// The image's runs, by virtual offset.
    pub fn image_runs(&self) -> &[ImageRun] {
        &self.runs
    }

    /// Whether the places of [`Self::each_place`] are on the host's devices, for at least one file.
    pub fn reaches_the_host(&self) -> bool {
        self.files.iter().any(|file| file.extents.is_some())
    }

    /// What the host calls the file system that the image lies on.
    pub fn host_filesystem(&self) -> Option<&str> {
        self.host_filesystem.as_deref()
    }

    /// Extents of all the chain's files on the host, as filefrag counts them; `None` if no host tells.
    pub fn host_extent_count(&self) -> Option<u64> {
        let told = self.files.iter().filter_map(|file| file.extents.as_ref());
        let count = |extents: &Vec<HostExtent>| {
            let mut fragments = Fragments::as_filefrag();
            for extent in extents {
                fragments.push(extent.span.start().get(), extent.device.get(), extent.span.len_bytes());
            }
            fragments.count()
        };
        self.reaches_the_host().then(|| told.map(count).sum())
    }

    /// Where a run begins if the chain's files lay one behind the other.
    pub fn image_address(&self, run: &ImageRun) -> u64 {
        self.files[run.file.0 as usize].image_base.saturating_add(run.offset)
    }

    /// The parts of the image's runs within `span`, in order.
    pub fn each_image_run(&self, span: VirtualSpan, mut each: impl FnMut(ImageRun)) {
        let first = self.runs.partition_point(|run| run.span.end() <= span.start());
        for run in &self.runs[first..] {
            if run.span.start() >= span.end() {
                break;
            }
            each(clip(run, &span));
        }
    }

    /// Where the bytes of `span` lie in the lowest layer that is known, in order of the virtual disk.
    pub fn each_place(&self, span: VirtualSpan, mut each: impl FnMut(Place)) {
        self.each_image_run(span, |run| self.each_place_of_run(&run, &mut each));
    }

    fn each_place_of_run(&self, run: &ImageRun, each: &mut impl FnMut(Place)) {
        let file = &self.files[run.file.0 as usize];
        match &file.extents {
            None => each(Place {
                span: run.span,
                address: file.place_base.saturating_add(run.offset),
                stored_bytes: run.stored_bytes,
            }),
            Some(extents) => each_host_place(run, file.place_base, extents, each),
        }
    }

    /// Where the bytes of a stream lie in the lowest layer that is known, each with its offset in the stream.
    pub fn each_place_of(
        &self,
        volume: &Placement,
        extents: impl Iterator<Item = FileExtent>,
        mut each: impl FnMut(FileOffset, Place),
    ) {
        for extent in extents {
            volume.each_on_disk(extent.span, |at, span| {
                let before = at.get() - extent.span.start().get();
                self.each_place(span, |place| {
                    let skip = before + (place.span.start().get() - span.start().get());
                    each(extent.logical.plus(skip), place);
                });
            });
        }
    }

    /// How many runs a stream has in each layer; its volume lies at `volume`, and `guest` counts there.
    pub fn fragments(
        &self,
        volume: &Placement,
        mut guest: Fragments,
        extents: impl Iterator<Item = FileExtent>,
    ) -> LayerFragments {
        let mut image = Fragments::of_adjacent();
        let mut whole_stack = Fragments::of_adjacent();
        for extent in extents {
            let (logical, place) = (extent.logical.get(), extent.span.start().get());
            guest.push(logical, place, extent.span.len_bytes());
            volume.each_on_disk(extent.span, |at, span| {
                // Runs follow each other where they do on the volume: what is striped is in pieces on the disk.
                let on_volume = |run: VirtualSpan| {
                    at.get().saturating_add(run.start().get().saturating_sub(span.start().get()))
                };
                self.each_image_run(span, |run| {
                    image.push(on_volume(run.span), self.image_address(&run), run.stored_bytes);
                    self.each_place_of_run(&run, &mut |place| {
                        whole_stack.push(on_volume(place.span), place.address, place.stored_bytes);
                    });
                });
            });
        }
        LayerFragments { guest: guest.count(), image: image.count(), whole_stack: whole_stack.count() }
    }
}

fn end_on_device(extent: &HostExtent) -> u64 {
    extent.device.get().saturating_add(extent.span.len_bytes())
}

fn push_run(runs: &mut Vec<ImageRun>, run: ImageRun) {
    if let Some(last) = runs.last_mut() {
        let is_plain = |run: &ImageRun| run.stored_bytes == run.span.len_bytes();
        let follows = last.span.end() == run.span.start()
            && last.file == run.file
            && last.offset.checked_add(last.stored_bytes) == Some(run.offset);
        if follows && is_plain(last) && is_plain(&run) {
            last.span = Span::between(last.span.start(), run.span.end());
            last.stored_bytes += run.stored_bytes;
            return;
        }
    }
    runs.push(run);
}

/// The part of a run within `span`. A compressed run keeps its whole place: it is read as one.
fn clip(run: &ImageRun, span: &VirtualSpan) -> ImageRun {
    let part = run.span.intersect(span).expect("the run touches the span");
    if run.stored_bytes != run.span.len_bytes() {
        return ImageRun { span: part, ..*run };
    }
    let skip = part.start().get() - run.span.start().get();
    ImageRun { span: part, file: run.file, offset: run.offset + skip, stored_bytes: part.len_bytes() }
}

fn each_host_place(run: &ImageRun, place_base: u64, extents: &[HostExtent], each: &mut impl FnMut(Place)) {
    let end = run.offset.saturating_add(run.stored_bytes);
    let first = extents.partition_point(|extent| extent.span.end().get() <= run.offset);
    let is_plain = run.stored_bytes == run.span.len_bytes();
    for extent in &extents[first..] {
        if extent.span.start().get() >= end {
            break;
        }
        if !extent.is_written {
            continue;
        }
        let start = extent.span.start().get().max(run.offset);
        let stop = extent.span.end().get().min(end);
        let span = match is_plain {
            true => Span::new(run.span.start().plus(start - run.offset), stop - start),
            false => run.span,
        };
        let on_device = extent.device.get() + (start - extent.span.start().get());
        each(Place { span, address: place_base.saturating_add(on_device), stored_bytes: stop - start });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extent::Offset;
    use filesystem::PieceState;

    fn run(virt: u64, len: u64, file: u32, offset: u64) -> ImageRun {
        let span = Span::new(Offset::new(virt), len);
        ImageRun { span, file: FileIndex(file), offset, stored_bytes: len }
    }

    fn host(start: u64, len: u64, device: u64, is_written: bool) -> HostExtent {
        HostExtent { span: Span::new(Offset::new(start), len), device: Offset::new(device), is_written }
    }

    fn piece(logical: u64, start: u64, len: u64) -> FileExtent {
        FileExtent {
            logical: Offset::new(logical),
            span: Span::new(Offset::new(start), len),
            state: PieceState::Written,
        }
    }

    fn whole() -> Placement {
        Placement::of_span(Span::from_zero(1 << 20))
    }

    fn layers() -> Layers {
        Layers {
            // 0..100 contiguous in file 0; 100..200 in the parent; 200..300 a hole; 300..400 back in file 0.
            runs: vec![run(0, 100, 0, 1000), run(100, 100, 1, 100), run(300, 100, 0, 1100)],
            files: vec![
                FileLayer {
                    image_base: 0,
                    place_base: 0,
                    extents: Some(vec![
                        host(0, 1050, 5000, true),
                        host(1050, 100, 9000, true),
                        host(1150, 50, 9100, false),
                    ]),
                },
                FileLayer { image_base: 10_001, place_base: 20_000, extents: None },
            ],
            host_filesystem: None,
        }
    }

    #[test]
    fn places_are_those_of_the_lowest_layer_known() {
        let mut places = Vec::new();
        layers().each_place(Span::new(Offset::new(40), 340), |place| {
            places.push((place.span.start().get(), place.address, place.stored_bytes));
        });
        // Virtual 350.. lies in host bytes that were never written.
        assert_eq!(places, [(40, 6040, 10), (50, 9000, 50), (100, 20_100, 100), (300, 9050, 50)]);
    }

    #[test]
    fn runs_are_counted_in_each_layer() {
        let layers = layers();
        let count = |extents: &[FileExtent]| {
            layers.fragments(&whole(), Fragments::of_adjacent(), extents.iter().copied())
        };
        // One run for the guest and in the image, two on the host.
        assert_eq!(count(&[piece(0, 40, 60)]), LayerFragments { guest: 1, image: 1, whole_stack: 2 });
        // Two for the guest that continue each other in the image and on the host.
        let apart = [piece(0, 60, 40), piece(40, 300, 40)];
        assert_eq!(count(&apart), LayerFragments { guest: 2, image: 1, whole_stack: 1 });
        // In a hole of the image there is nothing to be in pieces.
        assert_eq!(count(&[piece(0, 200, 100)]), LayerFragments { guest: 1, image: 0, whole_stack: 0 });
    }

    #[test]
    fn parts_of_one_compressed_unit_are_one_run() {
        let unit = |virt| ImageRun { stored_bytes: 20, ..run(virt, 64, 0, 500) };
        let layers = Layers {
            runs: vec![unit(0), ImageRun { offset: 520, ..unit(64) }, ImageRun { offset: 600, ..unit(128) }],
            files: vec![FileLayer { image_base: 0, place_base: 0, extents: None }],
            host_filesystem: None,
        };
        let extents = [piece(0, 0, 32), piece(32, 32, 160)];
        let counts = layers.fragments(&whole(), Fragments::of_adjacent(), extents.into_iter());
        assert_eq!(counts, LayerFragments { guest: 1, image: 2, whole_stack: 2 });
    }
}
