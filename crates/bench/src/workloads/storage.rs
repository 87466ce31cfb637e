//! On which storage: this one, or a modelled one that serves what was recorded; and what reading files was predicted to take there.
//!
//! What is compared is the time in which at least one request was under way: the cost model says nothing of what programs compute.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use block::Result;
use os::{StorageTiming, TimingBudget};
use predict::cost::{Order, Piece, QueueLimits, RequestSize, SequentialRead};
use predict::device::{Asked, Device, Touched, replay, waiting_seconds};
use predict::profile::{HDD, Profile, SAN, Timings};
use serve::monitor::Snapshot;

use super::trace::{Recorded, Request};

/// On which storage an activity runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Storage {
    /// The folder's own.
    This,
    /// A model of a disk with an arm.
    Hdd,
    /// A model of an array behind a network.
    San,
}

impl Storage {
    /// As on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::This => "this",
            Self::Hdd => "hdd",
            Self::San => "san",
        }
    }

    pub(super) fn model(self) -> Option<&'static Profile> {
        match self {
            Self::This => None,
            Self::Hdd => Some(&HDD),
            Self::San => Some(&SAN),
        }
    }
}

/// How a disk lies in all layers.
#[derive(Clone, Default, Debug)]
pub struct Lies {
    /// The virtual disk on the lowest layer that is known, by ascending places.
    pub map: Vec<Piece>,
    /// Each regular file, by its path without the first slash.
    pub files: HashMap<PathBuf, FileLies>,
    /// Each folder, the root's path being empty.
    pub folders: BTreeMap<PathBuf, FileLies>,
}

/// How a file or a folder lies.
#[derive(Clone, Default, Debug)]
pub struct FileLies {
    /// Its contents.
    pub pieces: Vec<Piece>,
    /// How many extents of the volume they are.
    pub extent_count: usize,
    /// The pieces of each read that it takes to come to its record in the file system's tables, the record's own last; empty if that is not
    /// known.
    pub record: Vec<Vec<Piece>>,
}

/// Tells how a disk lies in all layers, while nobody uses it.
pub type Survey<'a> = &'a dyn Fn(&Path) -> Result<Lies>;

/// What reading was predicted to take.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Forecast {
    /// Requests to the guest's device, or commands of the modelled storage.
    pub requests: u64,
    /// Seconds.
    pub seconds: f64,
}

/// ext4 has so many extents of a file in its inode; of a file with more it reads a block of its own.
const INODE_EXTENTS: usize = 4;
/// Of fewer requests those for the file system's own tables are too large a part where they are not known, and on real storage chance is.
const FORECAST_REQUESTS_MIN: u64 = 200;

/// What is known of a storage.
pub(super) struct Known {
    /// How fast it is; or why nobody knows.
    pub(super) profile: std::result::Result<Profile, String>,
    /// Whether it is a model, on which the same requests take the same time.
    pub(super) is_modelled: bool,
    /// What the guest's device takes at once.
    pub(super) limits: QueueLimits,
    /// What the kernel reads ahead from it.
    pub(super) read_ahead_bytes: u64,
}

/// Which files are read, one after the other.
#[derive(Clone, Copy)]
pub(super) enum Reading<'a> {
    /// Each is asked for at once, and the kernel gives all of its requests to the device before it waits for the first.
    AtOnce(&'a [PathBuf]),
    /// Each in parts, as the kernel reads ahead.
    InParts(&'a [PathBuf]),
    /// All in parts, once the folders were listed.
    All(&'a [PathBuf]),
}

impl Lies {
    /// Reading files, and what the kernel reads of the file system's tables to come to them. It was mounted just before: the root is at hand, and
    /// nothing else.
    pub(super) fn forecast(
        &self,
        known: &Known,
        reading: Reading<'_>,
    ) -> std::result::Result<Forecast, String> {
        let profile = known.profile.as_ref().map_err(Clone::clone)?;
        let asked_bytes = match reading {
            Reading::AtOnce(_) => u64::MAX,
            Reading::InParts(_) | Reading::All(_) => known.read_ahead_bytes,
        };
        let size = RequestSize::new(asked_bytes, known.limits);
        let read = SequentialRead::new(profile, size, Order::AsTold);
        let mut walk = Walk { read, cached: Touched::default(), folders: HashSet::new(), blocks: 0 };
        if let Some(root) = self.folders.get(Path::new("")) {
            root.record.iter().flatten().for_each(|piece| walk.cached.add(piece.physical, piece.len_bytes));
        }
        let (Reading::AtOnce(files) | Reading::InParts(files) | Reading::All(files)) = reading;
        if let Reading::All(_) = reading {
            self.folders.iter().for_each(|(path, folder)| walk.folder(path, folder));
        }
        for path in files {
            let above: Vec<&Path> = path.ancestors().skip(1).collect();
            for path in above.into_iter().rev() {
                if let Some(folder) = self.folders.get(path) {
                    walk.folder(path, folder);
                }
            }
            if let Some(file) = self.files.get(path) {
                walk.file(file);
            }
        }
        let (cost, blocks) = (walk.read.total(), walk.blocks);
        let are_tables_known = self.files.values().all(|file| !file.record.is_empty());
        let (requests_min, few) = match (are_tables_known, known.is_modelled) {
            (true, true) => (1, "nothing is to be read"),
            (true, false) => {
                (FORECAST_REQUESTS_MIN, "too few requests: how long each of them takes varies too much")
            }
            (false, _) => (
                FORECAST_REQUESTS_MIN,
                "too few requests: what this file system reads of its own tables is not predicted, and matters then",
            ),
        };
        if cost.requests < requests_min {
            return Err(few.to_owned());
        }
        // Near the file, but not in the way.
        let block = profile.command_seconds + profile.access_seconds + profile.jump_seconds(Some(-1), 0);
        Ok(Forecast { requests: cost.requests + blocks, seconds: cost.seconds + block * float(blocks) })
    }
}

/// Reading files on a file system of which hardly anything is cached.
struct Walk<'a> {
    read: SequentialRead<'a>,
    /// What of the storage is in memory.
    cached: Touched,
    /// Those whose entries are known.
    folders: HashSet<PathBuf>,
    /// Blocks of extents.
    blocks: u64,
}

impl Walk<'_> {
    fn folder(&mut self, path: &Path, folder: &FileLies) {
        if self.folders.insert(path.to_owned()) {
            self.record(folder);
            self.once(&folder.pieces);
        }
    }

    fn file(&mut self, file: &FileLies) {
        self.record(file);
        self.blocks += u64::from(file.extent_count > INODE_EXTENTS);
        file.pieces.iter().for_each(|piece| self.read.piece(*piece));
        self.read.end_file();
    }

    fn record(&mut self, file: &FileLies) {
        if file
            .record
            .last()
            .is_some_and(|own| !own.iter().all(|piece| self.cached.covers(piece.physical, piece.len_bytes)))
        {
            // They are asked for at once.
            let at_once = |piece: &Piece| Piece { logical: 0, ..*piece };
            self.once(&file.record.iter().flatten().map(at_once).collect::<Vec<_>>());
        }
    }

    /// Reads what is kept in memory then.
    fn once(&mut self, pieces: &[Piece]) {
        for piece in pieces.iter().filter(|piece| !self.cached.covers(piece.physical, piece.len_bytes)) {
            self.read.piece(*piece);
        }
        self.read.end_file();
        pieces.iter().for_each(|piece| self.cached.add(piece.physical, piece.len_bytes));
    }
}

#[allow(clippy::cast_precision_loss)] // Counts of files.
fn float(count: u64) -> f64 {
    count as f64
}

/// What an activity took on its storage.
pub(super) struct Took {
    /// From its beginning to its end.
    pub(super) seconds: f64,
    /// With at least one request under way.
    pub(super) storage_seconds: f64,
    /// Commands of the modelled storage that read; requests of this one.
    pub(super) commands: u64,
    /// Each request with its times.
    pub(super) requests: Snapshot,
}

/// On this storage as it was recorded; on a modelled one as it would have been.
pub(super) fn took(storage: Storage, recorded: &Recorded, seconds: f64, map: &[Piece]) -> Took {
    let asked: Vec<Asked> = recorded.requests.iter().map(asked).collect();
    let Some(profile) = storage.model() else {
        return Took {
            seconds,
            storage_seconds: waiting_seconds(&asked),
            commands: recorded.requests.len() as u64,
            requests: recorded.snapshot(),
        };
    };
    let replayed = replay(&mut Device::new(profile), map, &asked);
    let first = asked.first().map_or(0.0, |request| request.issued);
    let recorded_seconds = asked.iter().map(|request| request.ended - first).fold(0.0, f64::max);
    // What came before the first request and after the last one takes as long as it took.
    let around = (seconds - recorded_seconds).max(0.0);
    let requests = replayed.requests.iter().map(request).collect();
    Took {
        seconds: replayed.seconds + around,
        storage_seconds: replayed.waiting_seconds,
        commands: replayed.commands,
        requests: Recorded { requests, cuts: 0 }.snapshot(),
    }
}

#[allow(clippy::cast_precision_loss)] // Microseconds of days are exact.
fn asked(request: &Request) -> Asked {
    Asked {
        issued: request.issued_ns as f64 / 1e9,
        ended: request.ended_ns as f64 / 1e9,
        offset: request.offset,
        len_bytes: request.len_bytes,
        writes: request.writes,
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Conversions of floats saturate.
fn request(asked: &Asked) -> Request {
    Request {
        issued_ns: (asked.issued * 1e9) as u64,
        ended_ns: (asked.ended * 1e9) as u64,
        offset: asked.offset,
        len_bytes: asked.len_bytes,
        writes: asked.writes,
    }
}

/// Beyond that a prediction would be wrong by more than it is good for.
const MEAN_RATIO_MAX: f64 = 1.2;

/// What this storage is like, by reading from the guest's device; or why nobody knows.
pub(super) fn probe(device: &Path) -> std::result::Result<Profile, String> {
    let probed = os::time_storage(device, TimingBudget::default());
    let StorageTiming { sequential, random, near, span_bytes, doubts, mean_ratio, .. } =
        probed.map_err(|error| error.to_string())?;
    if let Some(doubt) = doubts.first() {
        return Err(doubt.clone());
    }
    if mean_ratio > MEAN_RATIO_MAX {
        return Err(format!(
            "reads took {mean_ratio:.2} times as long on average as in the median: others use the storage or the machine"
        ));
    }
    Profile::measured(&Timings { sequential, random, near, span_bytes })
        .ok_or_else(|| "what was measured makes no sense".to_owned())
}
