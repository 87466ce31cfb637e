//! What happens to an aged file system: a list of operations that follows from a seed, a size and a fill, and from nothing else.
//!
//! Whole numbers only: the list is the same on every machine. What the shares and sizes are taken from is in `docs/decisions/ageing.md`.

use std::collections::VecDeque;

use crate::content::Random;

/// What a file is to whoever made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// Installed, and replaced by updates.
    Program,
    /// Grows a little at a time until it is rotated away.
    Log,
    /// Grows by larger steps, and is overwritten in the middle.
    Database,
    /// Small; removed one by one.
    Mail,
    /// Saved anew as a whole.
    Document,
    /// Removed soon.
    Temporary,
}

const KIND_COUNT: usize = 6;

impl FileKind {
    const ALL: [Self; KIND_COUNT] =
        [Self::Program, Self::Log, Self::Database, Self::Mail, Self::Document, Self::Temporary];

    fn index(self) -> usize {
        match self {
            Self::Program => 0,
            Self::Log => 1,
            Self::Database => 2,
            Self::Mail => 3,
            Self::Document => 4,
            Self::Temporary => 5,
        }
    }

    /// The folder that such files lie in.
    pub fn folder(self) -> &'static str {
        match self {
            Self::Program => "programs",
            Self::Log => "logs",
            Self::Database => "databases",
            Self::Mail => "mail",
            Self::Document => "documents",
            Self::Temporary => "temporary",
        }
    }
}

/// What happens to a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// It is made, with so many bytes.
    Make {
        /// How many.
        bytes: u64,
    },
    /// So many bytes are added at its end.
    Append {
        /// How many.
        bytes: u64,
    },
    /// So many of its bytes are written again.
    Overwrite {
        /// From where on.
        at: u64,
        /// How many.
        bytes: u64,
    },
    /// A new file of so many bytes takes its place and its name.
    Replace {
        /// How many.
        bytes: u64,
    },
    /// It is removed.
    Remove,
}

/// One step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// The file's number: files are numbered as they are made, and keep it.
    pub file: u64,
    /// What it is.
    pub kind: FileKind,
    /// What happens to it.
    pub act: Act,
}

/// Of what the list is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Other seeds give other lists.
    pub seed: u64,
    /// Bytes of files that there would be room for.
    pub capacity_bytes: u64,
    /// How much of it files take once they are there: percent.
    pub fill_percent: u64,
}

impl Shape {
    /// What files take once they are there.
    fn target_bytes(&self) -> u64 {
        self.capacity_bytes / 100 * self.fill_percent
    }
}

/// Of these people remove files.
const REMOVED: [FileKind; 4] = [FileKind::Document, FileKind::Mail, FileKind::Program, FileKind::Temporary];

/// Sizes of files: 32 equally likely parts of a lognormal distribution with µ = 9.48 and σ = 2.46, each by its middle.
pub(crate) const SIZES: [u64; 32] = [
    65, 212, 400, 636, 925, 1275, 1698, 2203, 2807, 3526, 4381, 5400, 6614, 8064, 9801, 11_892, 14_420,
    17_496, 21_266, 25_929, 31_759, 39_141, 48_639, 61_096, 77_832, 101_018, 134_468, 185_477, 269_804,
    428_386, 808_400, 2_619_599,
];
/// No file is larger than this part of the capacity, but logs and databases.
const FILE_SHARE: u64 = 40;
/// A log is rotated away at this part of the capacity, and a database grows no further than to that.
const LOG_SHARE: u64 = 50;
const DATABASE_SHARE: u64 = 16;
const LOG_COUNT: usize = 4;
const DATABASE_COUNT: usize = 2;
const TEMPORARY_MAX: usize = 8;
const PACKAGE_FILES: u64 = 12;
const PAGE_BYTES: u64 = 8192;
/// A new database has so many pages.
const DATABASE_PAGES: u64 = 16;
const KIB: u64 = 1024;

/// A file that is there.
#[derive(Clone, Copy, Debug)]
struct Live {
    file: u64,
    bytes: u64,
}

/// A file's place among those of its kind.
#[derive(Clone, Copy, Debug)]
struct Place {
    kind: FileKind,
    index: usize,
}

/// The list, which has no end.
#[derive(Debug)]
pub struct Operations {
    random: Random,
    shape: Shape,
    /// By kind.
    live: [Vec<Live>; KIND_COUNT],
    live_bytes: u64,
    is_filled: bool,
    next_file: u64,
    ready: VecDeque<Operation>,
}

impl Operations {
    /// From its beginning.
    pub fn new(shape: Shape) -> Self {
        Self {
            random: Random::new(shape.seed),
            shape,
            live: Default::default(),
            live_bytes: 0,
            is_filled: false,
            next_file: 0,
            ready: VecDeque::new(),
        }
    }

    /// Whether files have once taken as much as they are to take.
    pub fn is_filled(&self) -> bool {
        self.is_filled
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.random.below(most - least + 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.random.below(limit as u64)).unwrap_or(0)
    }

    /// Of a file as they come.
    fn size(&mut self) -> u64 {
        let middle = SIZES[self.below(SIZES.len())];
        let most = (self.shape.capacity_bytes / FILE_SHARE).max(KIB);
        // Not the same few sizes again and again.
        self.between(middle - middle / 4, middle + middle / 4).clamp(1, most)
    }

    fn files(&mut self, kind: FileKind) -> &mut Vec<Live> {
        &mut self.live[kind.index()]
    }

    fn file_count(&self, kind: FileKind) -> usize {
        self.live[kind.index()].len()
    }

    /// One of a kind, if there is any.
    fn any(&mut self, kind: FileKind) -> Option<Place> {
        let count = self.file_count(kind);
        (count > 0).then(|| Place { kind, index: self.below(count) })
    }

    fn bytes_of(&self, place: Place) -> u64 {
        self.live[place.kind.index()][place.index].bytes
    }

    fn push(&mut self, file: u64, kind: FileKind, act: Act) {
        self.ready.push_back(Operation { file, kind, act });
    }

    fn make(&mut self, kind: FileKind, bytes: u64) {
        let file = self.next_file;
        self.next_file += 1;
        self.files(kind).push(Live { file, bytes });
        self.live_bytes += bytes;
        self.push(file, kind, Act::Make { bytes });
    }

    fn append(&mut self, Place { kind, index }: Place, bytes: u64) {
        let live = &mut self.files(kind)[index];
        live.bytes += bytes;
        let file = live.file;
        self.live_bytes += bytes;
        self.push(file, kind, Act::Append { bytes });
    }

    fn replace(&mut self, Place { kind, index }: Place, bytes: u64) {
        let live = &mut self.files(kind)[index];
        let (file, old) = (live.file, std::mem::replace(&mut live.bytes, bytes));
        self.live_bytes = self.live_bytes - old + bytes;
        self.push(file, kind, Act::Replace { bytes });
    }

    fn remove(&mut self, Place { kind, index }: Place) {
        let Live { file, bytes } = self.files(kind).swap_remove(index);
        self.live_bytes -= bytes;
        self.push(file, kind, Act::Remove);
    }

    /// Something that people do.
    fn act(&mut self) {
        match self.random.below(100) {
            0..30 => self.log(),
            30..40 => self.database(),
            40..62 => self.mail(),
            62..80 => self.document(),
            80..92 => self.temporary(),
            92..96 => self.install(),
            _ => self.update(),
        }
        self.tidy();
    }

    fn log(&mut self) {
        let bytes = self.between(512, 64 * KIB);
        if self.file_count(FileKind::Log) < LOG_COUNT {
            return self.make(FileKind::Log, bytes);
        }
        let Some(place) = self.any(FileKind::Log) else { return };
        match self.bytes_of(place) > self.shape.capacity_bytes / LOG_SHARE {
            true => self.remove(place),
            false => self.append(place, bytes),
        }
    }

    fn database(&mut self) {
        if self.file_count(FileKind::Database) < DATABASE_COUNT {
            return self.make(FileKind::Database, DATABASE_PAGES * PAGE_BYTES);
        }
        let Some(place) = self.any(FileKind::Database) else { return };
        let bytes = self.bytes_of(place);
        if bytes < self.shape.capacity_bytes / DATABASE_SHARE {
            let pages = self.between(1, 2 * DATABASE_PAGES);
            self.append(place, pages * PAGE_BYTES);
        } else {
            let file = self.files(place.kind)[place.index].file;
            let at = self.random.below(bytes / PAGE_BYTES) * PAGE_BYTES;
            self.push(file, place.kind, Act::Overwrite { at, bytes: PAGE_BYTES });
        }
    }

    fn mail(&mut self) {
        for _ in 0..self.between(1, 4) {
            let bytes = self.between(KIB, 32 * KIB);
            self.make(FileKind::Mail, bytes);
        }
        if self.random.below(3) == 0
            && let Some(place) = self.any(FileKind::Mail)
        {
            self.remove(place);
        }
    }

    fn document(&mut self) {
        let is_new = self.random.below(2) == 0;
        match self.any(FileKind::Document).filter(|_| !is_new) {
            None => {
                let bytes = self.size();
                self.make(FileKind::Document, bytes);
            }
            Some(place) => {
                let bytes = self.bytes_of(place);
                let bytes = self.between(bytes - bytes / 4, bytes + bytes / 3).max(1);
                self.replace(place, bytes);
            }
        }
    }

    fn temporary(&mut self) {
        while self.file_count(FileKind::Temporary) >= TEMPORARY_MAX
            && let Some(place) = self.any(FileKind::Temporary)
        {
            self.remove(place);
        }
        let bytes = self.size();
        self.make(FileKind::Temporary, bytes);
    }

    fn install(&mut self) {
        for _ in 0..self.between(2, PACKAGE_FILES) {
            let bytes = self.size();
            self.make(FileKind::Program, bytes);
        }
    }

    fn update(&mut self) {
        for _ in 0..PACKAGE_FILES / 3 {
            let Some(place) = self.any(FileKind::Program) else { return };
            let bytes = self.size();
            self.replace(place, bytes);
        }
    }

    /// Removes what is too much: files that people remove; others once there are none.
    fn tidy(&mut self) {
        while self.live_bytes > self.shape.target_bytes() {
            self.is_filled = true;
            let Some(place) = self.removable().or_else(|| self.first()) else { return };
            self.remove(place);
        }
    }

    /// Any file that people remove, one as likely as the other.
    fn removable(&mut self) -> Option<Place> {
        let count: usize = REMOVED.iter().map(|kind| self.file_count(*kind)).sum();
        let mut index = if count > 0 { self.below(count) } else { return None };
        for kind in REMOVED {
            match index.checked_sub(self.file_count(kind)) {
                None => return Some(Place { kind, index }),
                Some(rest) => index = rest,
            }
        }
        None
    }

    fn first(&self) -> Option<Place> {
        let kind = FileKind::ALL.into_iter().find(|kind| self.file_count(*kind) > 0)?;
        Some(Place { kind, index: 0 })
    }
}

impl Iterator for Operations {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        while self.ready.is_empty() {
            self.act();
        }
        self.ready.pop_front()
    }
}

/// A number that stands for a list: FNV-1a over its operations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Digest(u64);

impl Digest {
    pub(super) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub(super) fn push(&mut self, operation: Operation) {
        let (act, at, bytes) = match operation.act {
            Act::Make { bytes } => (0, 0, bytes),
            Act::Append { bytes } => (1, 0, bytes),
            Act::Overwrite { at, bytes } => (2, at, bytes),
            Act::Replace { bytes } => (3, 0, bytes),
            Act::Remove => (4, 0, 0),
        };
        for number in [operation.file, act, at, bytes] {
            for byte in number.to_le_bytes() {
                self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
    }

    pub(super) fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const SHAPE: Shape = Shape { seed: 1, capacity_bytes: 32 << 20, fill_percent: 70 };

    fn digest(shape: Shape, count: usize) -> u64 {
        let mut digest = Digest::new();
        Operations::new(shape).take(count).for_each(|operation| digest.push(operation));
        digest.value()
    }

    /// The list of this seed as it was once: it must come out the same everywhere, and later.
    #[test]
    fn a_seed_is_a_list() {
        assert_eq!(digest(SHAPE, 10_000), digest(SHAPE, 10_000));
        assert_ne!(digest(SHAPE, 1000), digest(Shape { seed: 2, ..SHAPE }, 1000));
        assert_eq!(digest(SHAPE, 10_000), LIST_DIGEST);
    }

    const LIST_DIGEST: u64 = 9_380_739_791_397_369_307;

    /// Every step is about a file that is there, and what is there never exceeds the fill by more than one step.
    #[test]
    fn every_step_can_be_done_and_the_fill_is_kept() {
        let mut operations = Operations::new(SHAPE);
        let mut files: HashMap<u64, (FileKind, u64)> = HashMap::new();
        let mut is_filled = false;
        for _ in 0..30_000 {
            let operation = operations.next().unwrap();
            let there = files.get(&operation.file).copied();
            let bytes = match (operation.act, there) {
                (Act::Make { bytes }, None) => bytes,
                (Act::Append { bytes }, Some((_, len))) => len + bytes,
                (Act::Overwrite { at, bytes }, Some((_, len))) if at + bytes <= len => len,
                (Act::Replace { bytes }, Some(_)) => bytes,
                (Act::Remove, Some(_)) => {
                    files.remove(&operation.file);
                    continue;
                }
                other => panic!("{other:?}"),
            };
            assert!(there.is_none_or(|(kind, _)| kind == operation.kind) && bytes > 0);
            files.insert(operation.file, (operation.kind, bytes));
            let sum: u64 = files.values().map(|(_, bytes)| bytes).sum();
            assert!(sum <= SHAPE.capacity_bytes / 100 * 70 + (4 << 20), "{sum}");
            is_filled |= operations.is_filled() || sum > SHAPE.capacity_bytes / 100 * 68;
        }
        assert!(is_filled);
        for kind in [FileKind::Log, FileKind::Database, FileKind::Mail, FileKind::Document, FileKind::Program]
        {
            assert!(files.values().any(|(found, _)| *found == kind), "{kind:?}");
        }
    }

    #[test]
    fn small_sizes_do_not_stop_it() {
        for capacity_bytes in [0, 1, 4096, 1 << 20] {
            let shape = Shape { capacity_bytes, ..SHAPE };
            assert_eq!(Operations::new(shape).take(2000).count(), 2000);
        }
    }
}
