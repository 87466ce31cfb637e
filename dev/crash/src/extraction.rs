//! Files of a random guest, extracted into a folder: power cuts, kills and failures at every operation, and somebody else who changes the
//! folder meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::ErrorKind as IoErrorKind;
use std::path::Path;

use block::{Error, ErrorKind, Result, TargetFile};
use extent::Offset;
use extraction::{Below, Filler, IntoFolder, Item, Kept, Kind, Of, SpecialFile};
use sim::{
    AWAY, Intrusion, Random, STRANGERS, STRANGERS_BYTES, Seen, SimMachine, SimNode, SimTree, Stranger,
    TreeKind,
};

use crate::explore::Violation;

const INSIDE: &[u8] = b"/in";
const OUTSIDE: &[u8] = b"/out";
const SECRET: &[u8] = b"secret";
/// Of a file that has no name of its own yet.
const PARTIAL: &[u8] = b".leandisk-";

/// Names that meet each other, and some that no file can have.
const NAMES: [&[u8]; 8] = [b"a", b"A", b"b", b"c", b"C", b"d", b"f", b"g"];
const HOSTILE: [&[u8]; 5] = [b"..", b".", b"", b"a/b", b"/out"];
const TARGETS: [&[u8]; 4] = [b"/out", b"/out/folder", b"a", b"/in"];
const FAILURES: [IoErrorKind; 4] =
    [IoErrorKind::Other, IoErrorKind::StorageFull, IoErrorKind::PermissionDenied, IoErrorKind::Unsupported];
const STEP_COUNT: u64 = 9;
const CUTS_PER_CHANGE: u64 = 3;

type Names = Vec<Vec<u8>>;

/// What was explored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extracted {
    /// Extractions from beginning to end, disturbed or not.
    pub runs: u64,
    /// Power cuts and kills.
    pub cuts: u64,
    /// Operations that failed.
    pub failures: u64,
    /// Times at which somebody else changed something.
    pub intrusions: u64,
    /// Files that were there and were replaced.
    pub replaced: u64,
    /// Files of the guest that were refused.
    pub refused: u64,
}

impl std::ops::AddAssign for Extracted {
    fn add_assign(&mut self, other: Self) {
        self.runs += other.runs;
        self.cuts += other.cuts;
        self.failures += other.failures;
        self.intrusions += other.intrusions;
        self.replaced += other.replaced;
        self.refused += other.refused;
    }
}

/// What a name stands for, as the model has it.
#[derive(Clone, PartialEq, Eq)]
struct Expected {
    kind: Kind,
    bytes: Vec<u8>,
    is_made: bool,
}

impl fmt::Debug for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} bytes", self.kind, self.bytes.len())
    }
}

impl Expected {
    fn is(&self, seen: &Seen) -> bool {
        (self.kind, &self.bytes) == (seen.kind, &seen.bytes)
    }
}

/// A file of the guest, or what a hostile reader asks for.
#[derive(Clone, Debug)]
enum What {
    Folder,
    /// Its contents; the reader cannot read all of some.
    File(Vec<u8>, bool),
    HardLink(Names),
    Link(Vec<u8>),
    Pipe,
}

#[derive(Clone, Debug)]
struct Step {
    names: Names,
    what: What,
}

/// What is extracted, into what, and what comes of it.
struct Guest {
    kind: TreeKind,
    replaces: bool,
    is_there: bool,
    old: BTreeMap<Names, Expected>,
    steps: Vec<Step>,
    /// Which of the steps are refused.
    refused: BTreeSet<usize>,
    /// Whether a link that is made in the end is.
    ends_refused: bool,
    new: BTreeMap<Names, Expected>,
}

fn pick<'a>(random: &mut Random, from: &[&'a [u8]]) -> &'a [u8] {
    from[usize::try_from(random.below(from.len() as u64)).unwrap()]
}

fn some_names(random: &mut Random) -> Names {
    let depth = [1, 1, 2, 3][usize::try_from(random.below(4)).unwrap()];
    let mut name = || match random.below(24) {
        0 => pick(random, &HOSTILE).to_vec(),
        1 => vec![b'x'; 300],
        _ => pick(random, &NAMES).to_vec(),
    };
    (0..depth).map(|_| name()).collect()
}

fn some_bytes(random: &mut Random) -> Vec<u8> {
    let len = pick_len(random);
    (0..len).map(|_| b'a' + u8::try_from(random.below(26)).unwrap()).collect()
}

fn pick_len(random: &mut Random) -> u64 {
    [0, 5, 600, 1500][usize::try_from(random.below(4)).unwrap()]
}

impl Guest {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let kind = TreeKind {
            is_folding: random.coin(),
            always_replaces: random.below(4) == 0,
            flushes_each: random.below(4) == 0,
        };
        let (replaces, is_there) = (random.below(3) > 0, random.below(4) > 0);
        let mut guest = Self {
            kind,
            replaces,
            is_there,
            old: BTreeMap::new(),
            steps: Vec::new(),
            refused: BTreeSet::new(),
            ends_refused: false,
            new: BTreeMap::new(),
        };
        if is_there {
            guest.fill(&mut random);
        }
        let mut model = Model::of(&guest);
        for number in 0..STEP_COUNT {
            let step = Step { names: some_names(&mut random), what: guest.some_what(&model, &mut random) };
            if !model.carry_out(&step) {
                guest.refused.insert(usize::try_from(number).unwrap());
            }
            guest.steps.push(step);
        }
        guest.ends_refused = !model.end();
        guest.new = model.all;
        guest
    }

    /// Old files, of which some have a name that the guest uses as well.
    fn fill(&mut self, random: &mut Random) {
        let mut put = |names: &[&[u8]], kind, bytes: &[u8]| {
            let names = names.iter().map(|name| name.to_vec()).collect();
            self.old.insert(names, Expected { kind, bytes: bytes.to_vec(), is_made: false });
        };
        for name in [&b"a"[..], b"b", b"c", b"d", b"f", b"g"] {
            match random.below(6) {
                0..=2 => put(&[name], Kind::File, &some_bytes(random)),
                3 => put(&[name], Kind::Link, pick(random, &TARGETS)),
                4 => {
                    put(&[name], Kind::Folder, b"");
                    put(&[name, b"a"], Kind::File, b"old and below");
                }
                _ => {}
            }
        }
        put(&[b"e"], Kind::File, SECRET);
    }

    fn some_what(&self, model: &Model, random: &mut Random) -> What {
        match random.below(12) {
            0 => What::Folder,
            1 => What::Link(pick(random, &TARGETS).to_vec()),
            2 => What::Pipe,
            3 | 4 => {
                // Mostly what was extracted, as an honest reader has it.
                let is_honest = random.below(4) > 0;
                let files =
                    model.all.iter().filter(|(_, file)| file.kind == Kind::File && file.is_made == is_honest);
                let files: Vec<_> = files.map(|(names, _)| names.clone()).collect();
                match files.len() as u64 {
                    0 => What::Folder,
                    count => What::HardLink(files[usize::try_from(random.below(count)).unwrap()].clone()),
                }
            }
            _ => What::File(some_bytes(random), random.below(8) > 0),
        }
    }

    fn world(&self, machine: &SimMachine) -> SimTree {
        let mut tree = SimTree::new(machine, self.kind)
            .with_folder(OUTSIDE)
            .with_folder(b"/out/folder")
            .with_file(machine, b"/out/secret", SECRET)
            .with_link(b"/out/link", b"/out/secret")
            .with_special(b"/out/device");
        if !self.is_there {
            return tree;
        }
        tree = tree.with_folder(INSIDE);
        for (names, old) in &self.old {
            let path = [INSIDE, b"/", &names.join(&b'/')].concat();
            tree = match old.kind {
                Kind::Folder => tree.with_folder(&path),
                Kind::Link => tree.with_link(&path, &old.bytes),
                // What is written into it would be written outside.
                _ if old.bytes == SECRET => tree.with_further_name(&path, b"/out/secret"),
                _ => tree.with_file(machine, &path, &old.bytes),
            };
        }
        tree
    }

    /// Extracts all, as the program does. Answers which steps were refused.
    fn extract(&self, tree: &SimTree) -> (BTreeSet<usize>, Result<()>) {
        let mut refused = BTreeSet::new();
        let done = self.try_extract(tree, &mut refused);
        (refused, done)
    }

    fn try_extract(&self, tree: &SimTree, refused: &mut BTreeSet<usize>) -> Result<()> {
        let path = Path::new("/in");
        let mut below = Below::begin(tree, path, self.replaces)?;
        self.set_of_old(&mut below)?;
        let mut filler = Filler::new(below);
        for (number, step) in self.steps.iter().enumerate() {
            match carry_out(&mut filler, step) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Io => return Err(error),
                Err(_) => _ = refused.insert(number),
            }
        }
        filler.finish().map(drop)
    }

    /// A hostile reader asks for changes of folders that were there before.
    fn set_of_old(&self, below: &mut Below<&SimTree>) -> Result<()> {
        for names in self.old.iter().filter(|(_, old)| old.kind == Kind::Folder).map(|(names, _)| names) {
            let settled = below.settle(names, &kept()).map(drop);
            let set = below.set_attribute(&Of::Folder(names.clone()), b"user.a", b"1").map(drop);
            if let Some(error) =
                [settled, set].into_iter().filter_map(Result::err).find(|error| error.kind() == ErrorKind::Io)
            {
                return Err(error);
            }
        }
        Ok(())
    }
}

fn kept() -> Kept {
    Kept { mode: Some(0o755), owner: Some((1, 1)), modified: Some((1, 0)), accessed: None }
}

fn carry_out(filler: &mut Filler<Below<&SimTree>>, step: &Step) -> Result<()> {
    let kept = kept();
    let attributes: [(&[u8], &[u8]); 2] = [(b"user.a", b"1"), (b"system.posix_acl_default", b"2")];
    let item = Item { names: &step.names, kept: &kept, attributes: &attributes };
    match &step.what {
        What::Folder => filler.folder(item),
        What::File(bytes, is_whole) => filler.file(item, |file| write(file, bytes, *is_whole)),
        What::HardLink(first) => filler.hard_link(&step.names, first),
        What::Link(target) => {
            filler.link(item, target);
            Ok(())
        }
        What::Pipe => filler.special(item, SpecialFile::Pipe),
    }
}

fn write(file: &SimNode, bytes: &[u8], is_whole: bool) -> Result<()> {
    let half = bytes.len() / 2;
    file.disk().write_at(Offset::ZERO, &bytes[..half])?;
    if !is_whole {
        return Err(Error::corrupt("contents that cannot be read"));
    }
    file.disk().write_at(Offset::new(half as u64), &bytes[half..])?;
    file.disk().set_len(bytes.len() as u64)
}

/// What has to come of an extraction: written after what users are told, and not after the code.
struct Model {
    is_folding: bool,
    replaces: bool,
    all: BTreeMap<Names, Expected>,
    /// Folders that were there when they were looked at.
    known: BTreeSet<Names>,
    links: Vec<(Names, Vec<u8>)>,
}

impl Model {
    fn of(guest: &Guest) -> Self {
        Self {
            is_folding: guest.kind.is_folding,
            replaces: guest.replaces,
            all: guest.old.clone(),
            known: BTreeSet::new(),
            links: Vec::new(),
        }
    }

    fn key(&self, names: &[Vec<u8>]) -> Names {
        let same = |name: &Vec<u8>| {
            let lower = |byte: &u8| if byte.is_ascii_uppercase() { byte + 32 } else { *byte };
            if self.is_folding { name.iter().map(lower).collect() } else { name.clone() }
        };
        names.iter().map(same).collect()
    }

    fn get(&self, names: &[Vec<u8>]) -> Option<&Expected> {
        self.all.get(&self.key(names))
    }

    fn put(&mut self, names: &[Vec<u8>], kind: Kind, bytes: &[u8]) {
        let made = Expected { kind, bytes: bytes.to_vec(), is_made: true };
        self.all.insert(self.key(names), made);
    }

    fn can_be(name: &[u8]) -> bool {
        (1..=255).contains(&name.len()) && ![&b"."[..], b".."].contains(&name) && !name.contains(&b'/')
    }

    fn folder(&mut self, names: &[Vec<u8>]) -> bool {
        if self.known.contains(names) {
            return true;
        }
        if !names.iter().all(|name| Self::can_be(name)) {
            return false;
        }
        match self.get(names) {
            None => self.put(names, Kind::Folder, b""),
            Some(old) if old.kind == Kind::Folder && !old.is_made => {}
            Some(_) => return false,
        }
        self.known.insert(names.to_vec())
    }

    fn above(&mut self, names: &[Vec<u8>]) -> bool {
        (1..names.len()).all(|depth| self.folder(&names[..depth]))
    }

    /// Puts something in a folder that is there.
    fn file(&mut self, names: &[Vec<u8>], kind: Kind, bytes: &[u8]) -> bool {
        let stays =
            self.get(names).is_some_and(|old| old.is_made || old.kind == Kind::Folder || !self.replaces);
        if !Self::can_be(names.last().unwrap()) || stays {
            return false;
        }
        self.put(names, kind, bytes);
        true
    }

    /// Says whether it is not refused.
    fn carry_out(&mut self, Step { names, what }: &Step) -> bool {
        match what {
            What::Link(target) => {
                self.links.push((names.clone(), target.clone()));
                true
            }
            What::Folder => self.above(names) && self.folder(names),
            What::File(bytes, is_whole) => {
                self.above(names) && *is_whole && self.file(names, Kind::File, bytes)
            }
            What::Pipe => self.above(names) && self.file(names, Kind::Special, b""),
            What::HardLink(first) => {
                let is_above = self.above(names);
                let of = self.get(first).filter(|of| of.is_made).map(|of| of.bytes.clone());
                is_above && of.is_some_and(|bytes| self.file(names, Kind::File, &bytes))
            }
        }
    }

    fn end(&mut self) -> bool {
        let links = std::mem::take(&mut self.links);
        let made =
            links.iter().map(|(names, target)| self.above(names) && self.file(names, Kind::Link, target));
        made.filter(|made| !made).count() == 0
    }
}

/// Extracts what `seed` says, undisturbed first, and then with every disturbance at every operation.
pub fn explore_extraction(seed: u64) -> std::result::Result<Extracted, Violation> {
    let guest = Guest::new(seed);
    let mut explorer = Explorer { guest, seed, explored: Extracted::default() };
    explorer.explore().map_err(|text| Violation { seed, text })?;
    Ok(explorer.explored)
}

struct Explorer {
    guest: Guest,
    seed: u64,
    explored: Extracted,
}

/// How much of what the guest has may be there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Done {
    /// All.
    All,
    /// Anything, but what is there is whole.
    Whole,
    /// Anything, and new files may have any contents.
    Cut,
}

type Checked = std::result::Result<(), String>;

impl Explorer {
    fn explore(&mut self) -> Checked {
        let (operations, changes, of_tree) = self.undisturbed()?;
        for change in 1..=changes {
            self.cut_at(change).map_err(|text| format!("cut at change {change}: {text}"))?;
        }
        for operation in 1..=operations {
            self.fail_at(operation).map_err(|text| format!("failure of operation {operation}: {text}"))?;
        }
        let mut random = Random::new(self.seed);
        for operation in 1..=of_tree {
            let stranger = STRANGERS[usize::try_from(random.below(STRANGERS.len() as u64)).unwrap()];
            self.intrude_at(operation, stranger)
                .map_err(|text| format!("{stranger:?} before operation {operation}: {text}"))?;
        }
        Ok(())
    }

    /// Expects what the model says, and counts operations, changes, and operations of the tree.
    fn undisturbed(&mut self) -> std::result::Result<(u64, u64, u64), String> {
        let machine = SimMachine::new();
        let tree = self.guest.world(&machine);
        let before = tree.all();
        let (refused, done) = self.guest.extract(&tree);
        self.explored.runs += 1;
        self.explored.refused += refused.len() as u64;
        let is_replaced = |(names, old): &(&Names, &Expected)| self.guest.new.get(*names) != Some(*old);
        self.explored.replaced += self.guest.old.iter().filter(is_replaced).count() as u64;
        if refused != self.guest.refused {
            return Err(format!("steps {refused:?} are refused, and not {:?}", self.guest.refused));
        }
        self.check_end(&done)?;
        self.check(&tree, &before, Done::All)?;
        self.check_kept(&tree, &before, &done)?;
        Ok((machine.operations(), machine.changes(), tree.operations()))
    }

    /// A run that no error of the machine ended.
    fn check_end(&self, done: &Result<()>) -> Checked {
        match done {
            Ok(()) if !self.guest.ends_refused => Ok(()),
            Err(error) if error.kind() == ErrorKind::Refused && self.guest.ends_refused => Ok(()),
            done => Err(format!("it ends with {done:?}")),
        }
    }

    /// What was told to be done is there after a cut.
    fn check_kept(&mut self, tree: &SimTree, before: &[Seen], done: &Result<()>) -> Checked {
        if self.check_end(done).is_err() {
            return Ok(());
        }
        for number in 0..CUTS_PER_CHANGE {
            let left = tree.cut(&SimMachine::new(), self.seed ^ number);
            self.explored.cuts += 1;
            self.check(&left, before, Done::All).map_err(|text| format!("a cut after the end: {text}"))?;
        }
        Ok(())
    }

    fn cut_at(&mut self, change: u64) -> Checked {
        let machine = SimMachine::new();
        let tree = self.guest.world(&machine);
        let before = tree.all();
        machine.die_at_change(change);
        _ = self.guest.extract(&tree);
        self.explored.runs += 1;
        self.check(&tree, &before, Done::Whole).map_err(|text| format!("killed: {text}"))?;
        for number in 0..CUTS_PER_CHANGE {
            let seed = Random::new(self.seed ^ change.rotate_left(32) ^ number).next_u64();
            let left = tree.cut(&SimMachine::new(), seed);
            self.explored.cuts += 1;
            self.check(&left, &before, Done::Cut).map_err(|text| format!("cut {seed:#x}: {text}"))?;
        }
        Ok(())
    }

    fn fail_at(&mut self, operation: u64) -> Checked {
        let machine = SimMachine::new();
        let tree = self.guest.world(&machine);
        let before = tree.all();
        let mut random = Random::new(self.seed ^ operation);
        let kind = FAILURES[usize::try_from(random.below(FAILURES.len() as u64)).unwrap()];
        machine.fail_operation(operation, kind);
        let (_, done) = self.guest.extract(&tree);
        self.explored.runs += 1;
        self.explored.failures += 1;
        self.check(&tree, &before, Done::Whole)?;
        if tree.seen(INSIDE).keys().flatten().any(|name| name.starts_with(PARTIAL)) {
            return Err(format!("a partial name stays after {done:?}"));
        }
        self.check_kept(&tree, &before, &done)
    }

    /// Whatever somebody else does in the folder, what is outside stays as it is.
    fn intrude_at(&mut self, operation: u64, stranger: Stranger) -> Checked {
        let machine = SimMachine::new();
        let tree = self.guest.world(&machine);
        let (before, outside) = (tree.all(), tree.seen(OUTSIDE));
        let names = NAMES.iter().map(|name| name.to_vec()).collect();
        let seed = Random::new(self.seed ^ operation.rotate_left(32)).next_u64();
        let (inside, out) = (INSIDE.to_vec(), OUTSIDE.to_vec());
        tree.intrude(Intrusion { operation, stranger, inside, outside: out, names, seed });
        _ = self.guest.extract(&tree);
        self.explored.runs += 1;
        self.explored.intrusions += 1;
        let mut now = tree.seen(OUTSIDE);
        now.retain(|names, _| names.first().is_none_or(|name| name != AWAY));
        if now != outside {
            now.retain(|names, seen| outside.get(names) != Some(seen));
            return Err(format!("outside there is {now:?}"));
        }
        let strangers = tree.strangers();
        let all = tree.all();
        let is_written = |seen: &&Seen| {
            seen.kind == Kind::File && strangers.contains(&seen.inode) && seen.bytes != STRANGERS_BYTES
        };
        if let Some(seen) = all.iter().find(is_written) {
            return Err(format!("a stranger's file is {seen:?}"));
        }
        check_untouched(&all, &before)
    }

    /// Each name stands for what it stood for, or for what the guest has.
    fn check(&self, tree: &SimTree, before: &[Seen], done: Done) -> Checked {
        check_untouched(&tree.all(), before)?;
        let mut seen = tree.seen(INSIDE);
        let is_there = seen.remove(&Vec::new()).is_some();
        let Guest { old, new, .. } = &self.guest;
        if done == Done::Whole || done == Done::Cut {
            seen.retain(|names, _| !names.last().is_some_and(|name| name.starts_with(PARTIAL)));
        } else if !is_there {
            return Err("the folder itself is missing".into());
        }
        for (names, seen) in &seen {
            let (old, new) = (old.get(names), new.get(names));
            let is_new = new.is_some_and(|new| match (old, done) {
                (None, Done::Cut) => new.kind == seen.kind,
                _ => new.is(seen),
            });
            let is_old = done != Done::All && old.is_some_and(|old| old.is(seen));
            if !is_new && !is_old {
                return Err(format!("{} is {seen:?}, not {old:?} nor {new:?}", shown(names)));
            }
        }
        let needed = if done == Done::All { new } else { old };
        match needed.keys().find(|names| !seen.contains_key(*names)) {
            Some(missing) => Err(format!("{} is missing", shown(missing))),
            None => Ok(()),
        }
    }
}

/// Every file that there was before holds what it held, under whatever name, and nothing was set of it.
fn check_untouched(now: &[Seen], before: &[Seen]) -> Checked {
    let is_other = |(now, before): &(&Seen, &Seen)| now != before;
    match now.iter().zip(before).find(is_other) {
        Some((now, before)) => Err(format!("{before:?} became {now:?}")),
        None => Ok(()),
    }
}

fn shown(names: &Names) -> String {
    String::from_utf8_lossy(&names.join(&b'/')).into_owned()
}
