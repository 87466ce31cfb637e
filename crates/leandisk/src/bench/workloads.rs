//! Activities on an aged disk, before and after the remedies that this program has.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bench::{Activity, DiskState, FileLies, Lies, Remedy, Storage, Workloads};
use block::{ReadAt as _, Result};
use extent::{FileOffset, Span, VolumeSpan};
use filesystem::{FileExtent, FileKind, PieceState, StreamName};
use image::Format;
use predict::cost::Piece;
use report::{WorkloadsDocument, WorkloadsSubject, workloads_document, workloads_page};
use stack::{Stack, Survey};

use super::{layout_of_image, prepare_page, surveyed, watched, without_repetitions};
use crate::{Observer, OpenOptions, Unwatched, copy, defrag};

/// What is done, on what, and how often.
#[derive(Clone, Debug)]
pub struct WorkloadsOptions {
    /// The folder on the storage to measure. A new folder is made in it, and removed at the end.
    pub dir: PathBuf,
    /// How the disk was used before.
    pub state: DiskState,
    /// What is done.
    pub activities: Vec<Activity>,
    /// After what.
    pub remedies: Vec<Remedy>,
    /// Bytes of the disk.
    pub size: u64,
    /// How many times each activity runs on each disk.
    pub runs: u16,
    /// Of all contents.
    pub seed: u64,
    /// On which storage.
    pub storage: Storage,
    /// Where the results go as a page, if anywhere.
    pub html: Option<PathBuf>,
    /// Whether that replaces a file that is there.
    pub force: bool,
}

/// What people do on an aged disk, and how long it takes after each remedy.
pub fn workloads(options: &WorkloadsOptions, observer: &dyn Observer) -> Result<WorkloadsDocument> {
    let started = Instant::now();
    let page = prepare_page(options.html.as_deref(), options.force)?;
    let (mut activities, mut remedies) = (options.activities.clone(), options.remedies.clone());
    without_repetitions(&mut activities);
    without_repetitions(&mut remedies);
    let bench = Workloads {
        dir: &options.dir,
        state: options.state,
        activities: &activities,
        remedies: &remedies,
        disk_bytes: options.size,
        runs: usize::from(options.runs),
        seed: options.seed,
        apply: &apply,
        look: &layout_of_image,
        storage: options.storage,
        survey: &survey,
    };
    let outcome = watched(observer, "measure", bench.total_bytes(), |progress| bench.run(progress))?;
    let document = workloads_document(&WorkloadsSubject {
        dir: &options.dir.display().to_string(),
        state: options.state,
        storage: options.storage,
        seed: options.seed,
        outcome: &outcome,
        elapsed_seconds: started.elapsed().as_secs_f64(),
    });
    if let Some(file) = page {
        file.write_page(&workloads_page(&document), &options.dir, observer)?;
    }
    Ok(document)
}

/// Where a raw disk and its files lie.
fn survey(path: &Path) -> Result<Lies> {
    surveyed(path, places)?
}

fn places(stack: &Stack, survey: &Survey) -> Result<Lies> {
    let mut lies = Lies::default();
    survey.layers.each_place(Span::from_zero(stack.chain().len_bytes()), |place| {
        let logical = place.span.start().get();
        lies.map.push(Piece { logical, physical: place.address, len_bytes: place.stored_bytes });
    });
    for (volume, found) in stack.volumes().iter().zip(&survey.volumes) {
        let (Some(catalog), Some(filesystem)) = (&found.catalog, &volume.filesystem) else { continue };
        let pieces = |extents: &mut dyn Iterator<Item = FileExtent>| {
            let mut pieces = Vec::new();
            survey.layers.each_place_of(&volume.place, extents, |logical, place| {
                let len_bytes = place.stored_bytes;
                pieces.push(Piece { logical: logical.get(), physical: place.address, len_bytes });
            });
            pieces
        };
        for stream in catalog.streams() {
            let is_read = matches!(stream.stream.kind, FileKind::Regular | FileKind::Directory);
            if !is_read || stream.stream.name != StreamName::Main {
                continue;
            }
            let path = stream.path();
            let path: PathBuf = OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(&path)).into();
            let read = |span: VolumeSpan| {
                let whole = FileExtent { logical: FileOffset::ZERO, span, state: PieceState::Written };
                pieces(&mut std::iter::once(whole))
            };
            let file = FileLies {
                pieces: pieces(&mut stream.extents()),
                extent_count: stream.extents().count(),
                record: filesystem.record_reads(stream.stream.file)?.into_iter().map(read).collect(),
            };
            match stream.stream.kind {
                FileKind::Directory => _ = lies.folders.insert(path, file),
                _ => _ = lies.files.insert(path, file),
            }
        }
    }
    Ok(lies)
}

/// Does to the disk `to`, a copy of `from`, what the program's commands do.
fn apply(remedy: Remedy, from: &Path, to: &Path) -> Result<()> {
    let open = OpenOptions { format: Some(Format::Raw), ..OpenOptions::default() };
    let goal = match remedy {
        Remedy::None => return Ok(()),
        Remedy::Defrag => defrag::Goal::Files,
        Remedy::DefragPack => defrag::Goal::Pack,
        Remedy::CopyPacked => {
            let options = copy::Options {
                source: from.to_owned(),
                target: to.to_owned(),
                open,
                target_format: Some(Format::Raw),
                layout: copy::Layout::Packed,
                ..copy::Options::default()
            };
            return copy::run(&options, &Unwatched).map(drop);
        }
    };
    let options = defrag::Options { disk: to.to_owned(), open, goal, ..defrag::Options::default() };
    defrag::run(&options, &Unwatched)?.ended
}
