//! A host's folders in memory, in which files are extracted: names, contents, links, and somebody else who changes them meanwhile.
//!
//! What may become of names at a power cut stands in [`crate::names`]: each name by itself is what it was when all was brought to stable
//! storage last, or after any step since. Contents are [`SimDisk`]s of the same machine, flushed by themselves or with all. What is
//! set of a file is only counted, and survives.
//!
//! Absent on purpose: users and their rights, several file systems, removing folders, `..`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use extraction::{FileId, Folders, Found, Kept, Kind, Links, SpecialFile};

use crate::machine::Clock;
use crate::names::{Surviving, SyncedNames};
use crate::{Pages, Random, SimDisk, SimMachine};

/// The device that all files lie on.
const DEVICE: u64 = 1;
/// The folder that all others are in.
const ROOT: u64 = 1;
/// How many links may lead to each other.
const FOLLOWED_MAX: usize = 8;

/// What a host does of what some hosts do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TreeKind {
    /// Names that differ in the case of ASCII's letters are the same.
    pub is_folding: bool,
    /// It cannot rename without replacing.
    pub always_replaces: bool,
    /// Flushing all may leave contents behind, so that each file is to be flushed by itself.
    pub flushes_each: bool,
}

/// What somebody else does with a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stranger {
    /// Has it stand for a link that leads out of the folder.
    Link,
    /// Has it stand for a file that is outside, of the same kind as what it stood for if there is one.
    Outside,
    /// Has it stand for a file of their own.
    File,
    /// Has it stand for a folder of their own.
    Folder,
    /// Moves what it stands for out of the folder.
    Away,
}

/// All of them.
pub const STRANGERS: [Stranger; 5] =
    [Stranger::Link, Stranger::Outside, Stranger::File, Stranger::Folder, Stranger::Away];

/// What is in a stranger's own files.
pub const STRANGERS_BYTES: &[u8] = b"a stranger's";
/// Under this name below [`Intrusion::outside`] is what was moved away.
pub const AWAY: &[u8] = b"away";

/// When somebody else does what, and where.
#[derive(Clone, Debug)]
pub struct Intrusion {
    /// Before which operation of the tree, counted from 1.
    pub operation: u64,
    /// What is done.
    pub stranger: Stranger,
    /// The path of the folder in which, or below which, it is done.
    pub inside: Vec<u8>,
    /// The path of a folder that is not in it.
    pub outside: Vec<u8>,
    /// Names that may be used soon.
    pub names: Vec<Vec<u8>>,
    /// Decides which name it is.
    pub seed: u64,
}

/// A file of any kind, as whoever looks sees it.
#[derive(Clone, PartialEq, Eq)]
pub struct Seen {
    /// Which file it is.
    pub inode: u64,
    /// Of which kind.
    pub kind: Kind,
    /// What is in a file, or where a link leads.
    pub bytes: Vec<u8>,
    /// How often owner, permissions, times or attributes were set.
    pub set_count: u64,
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inode, kind, bytes, set_count } = self;
        write!(f, "{kind:?} {inode} of {} bytes, set {set_count} times", bytes.len())
    }
}

#[derive(Clone)]
enum Contents {
    Folder,
    File(Arc<SimDisk>),
    Link(Vec<u8>),
    Special,
}

#[derive(Clone)]
struct Node {
    contents: Contents,
    set_count: u64,
}

#[derive(Clone, Default)]
struct State {
    /// By the folder's inode.
    names: SyncedNames<(u64, Vec<u8>), u64>,
    nodes: BTreeMap<u64, Node>,
    operations: u64,
    intrusion: Option<Intrusion>,
    strangers: Vec<u64>,
}

/// The folders of a machine.
pub struct SimTree {
    clock: Arc<Clock>,
    kind: TreeKind,
    state: Mutex<State>,
}

/// Something open of a [`SimTree`].
pub struct SimNode {
    inode: u64,
    disk: Option<Arc<SimDisk>>,
}

impl SimNode {
    /// The contents of a file.
    pub fn disk(&self) -> &SimDisk {
        self.disk.as_ref().expect("only files have contents")
    }
}

impl SimTree {
    /// One empty folder: the path `/`.
    pub fn new(machine: &SimMachine, kind: TreeKind) -> Self {
        let mut state = State::default();
        state.add(Contents::Folder);
        Self { clock: machine.clock(), kind, state: Mutex::new(state) }
    }

    /// A folder on stable storage, in one that is there.
    pub fn with_folder(self, path: &[u8]) -> Self {
        self.with(path, |state| state.add(Contents::Folder))
    }

    /// A file that holds `bytes`.
    pub fn with_file(self, machine: &SimMachine, path: &[u8], bytes: &[u8]) -> Self {
        let disk = machine.disk("file", 1, Pages::new(bytes));
        self.with(path, |state| state.add_file(disk))
    }

    /// A symbolic link.
    pub fn with_link(self, path: &[u8], to: &[u8]) -> Self {
        self.with(path, |state| state.add(Contents::Link(to.to_vec())))
    }

    /// A device.
    pub fn with_special(self, path: &[u8]) -> Self {
        self.with(path, |state| state.add(Contents::Special))
    }

    /// Another name of what `first` stands for.
    pub fn with_further_name(self, path: &[u8], first: &[u8]) -> Self {
        let inode = self.state().resolve(self.kind, ROOT, first, 0).expect("it is there");
        self.with(path, |_| inode)
    }

    fn with(self, path: &[u8], make: impl FnOnce(&mut State) -> u64) -> Self {
        {
            let mut state = self.state();
            let (folder, name) = state.parent(self.kind, path).expect("its folder is there");
            let inode = make(&mut state);
            state.names.put_stable((folder, name), inode);
        }
        self
    }

    /// Lets somebody else in.
    pub fn intrude(&self, intrusion: Intrusion) {
        self.state().intrusion = Some(intrusion);
    }

    /// Operations so far but for those of contents, failures included.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// All that is at a path or below it, by its names from there on. Links are not followed.
    pub fn seen(&self, path: &[u8]) -> BTreeMap<Vec<Vec<u8>>, Seen> {
        let state = self.state();
        let mut seen = BTreeMap::new();
        let Ok(top) = state.resolve(self.kind, ROOT, path, 0) else { return seen };
        let mut waiting = vec![(Vec::new(), top)];
        while let Some((names, inode)) = waiting.pop() {
            let below =
                state.names.now().range((inode, Vec::new())..).take_while(|((of, _), _)| *of == inode);
            waiting.extend(
                below.map(|((_, name), below)| ([&names[..], std::slice::from_ref(name)].concat(), *below)),
            );
            seen.insert(names, state.seen(inode));
        }
        seen
    }

    /// Every file that there is, whether it has a name or not.
    pub fn all(&self) -> Vec<Seen> {
        let state = self.state();
        state.nodes.keys().map(|inode| state.seen(*inode)).collect()
    }

    /// Files that a stranger made.
    pub fn strangers(&self) -> Vec<u64> {
        self.state().strangers.clone()
    }

    /// What a power cut now leaves, in another machine; `seed` decides what that is.
    pub fn cut(&self, machine: &SimMachine, seed: u64) -> Self {
        let mut state = State { intrusion: None, operations: 0, ..self.state().clone() };
        for (inode, node) in &mut state.nodes {
            if let Contents::File(disk) = &mut node.contents {
                let left = machine.disk("file", *inode, disk.cut_pages(seed ^ inode));
                left.tear_sectors(true);
                *disk = Arc::new(left);
            }
        }
        state.names = state.names.cut(Surviving::Any, &mut Random::new(seed));
        Self { clock: machine.clock(), kind: self.kind, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the operation, lets a stranger in before it, and fails if it is to fail.
    fn begin(&self, is_change: bool) -> io::Result<MutexGuard<'_, State>> {
        let fate = self.clock.tick(is_change);
        let mut state = self.state();
        state.operations += 1;
        let operations = state.operations;
        if let Some(intrusion) = state.intrusion.take_if(|intrusion| intrusion.operation <= operations) {
            state.intrude(self.kind, &intrusion, &self.clock);
        }
        fate.result().map_err(|kind| io::Error::new(kind, "simulated fault"))?;
        Ok(state)
    }

    fn key(&self, folder: &SimNode, name: &[u8]) -> (u64, Vec<u8>) {
        (folder.inode, self.kind.folded(name))
    }

    /// Makes something new under a free name.
    fn make(
        &self,
        key: (u64, Vec<u8>),
        make: impl FnOnce(&mut State) -> u64,
    ) -> io::Result<(u64, MutexGuard<'_, State>)> {
        let mut state = self.begin(true)?;
        if state.names.get(&key).is_some() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let inode = make(&mut state);
        state.names.set(key, Some(inode));
        Ok((inode, state))
    }

    fn set(&self, open: &SimNode) -> io::Result<()> {
        let mut state = self.begin(true)?;
        if let Some(node) = state.nodes.get_mut(&open.inode) {
            node.set_count += 1;
        }
        Ok(())
    }
}

impl TreeKind {
    fn folded(self, name: &[u8]) -> Vec<u8> {
        if self.is_folding { name.to_ascii_lowercase() } else { name.to_vec() }
    }
}

impl State {
    fn add(&mut self, contents: Contents) -> u64 {
        let inode = self.nodes.keys().next_back().map_or(ROOT, |last| last + 1);
        self.nodes.insert(inode, Node { contents, set_count: 0 });
        inode
    }

    fn add_file(&mut self, disk: SimDisk) -> u64 {
        disk.tear_sectors(true);
        self.add(Contents::File(Arc::new(disk)))
    }

    fn kind(&self, inode: u64) -> Kind {
        match &self.nodes[&inode].contents {
            Contents::Folder => Kind::Folder,
            Contents::File(_) => Kind::File,
            Contents::Link(_) => Kind::Link,
            Contents::Special => Kind::Special,
        }
    }

    fn found(&self, inode: u64) -> Found {
        let link_count = self.names.now().values().filter(|named| **named == inode).count() as u64;
        Found { id: FileId { device: DEVICE, inode }, kind: self.kind(inode), link_count }
    }

    fn seen(&self, inode: u64) -> Seen {
        let node = &self.nodes[&inode];
        let bytes = match &node.contents {
            Contents::File(disk) => disk.to_vec(),
            Contents::Link(to) => to.clone(),
            Contents::Folder | Contents::Special => Vec::new(),
        };
        Seen { inode, kind: self.kind(inode), bytes, set_count: node.set_count }
    }

    fn open(&self, inode: u64) -> SimNode {
        let disk = match &self.nodes[&inode].contents {
            Contents::File(disk) => Some(disk.clone()),
            _ => None,
        };
        SimNode { inode, disk }
    }

    fn get(&self, key: &(u64, Vec<u8>)) -> io::Result<u64> {
        self.names.get(key).copied().ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// What a path stands for, links followed but for the last one.
    fn resolve(&self, kind: TreeKind, from: u64, path: &[u8], depth: usize) -> io::Result<u64> {
        let mut at = if path.first() == Some(&b'/') { ROOT } else { from };
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            at = self.follow(kind, from, at, depth)?;
            if self.kind(at) != Kind::Folder {
                return Err(ErrorKind::NotADirectory.into());
            }
            at = self.get(&(at, kind.folded(name)))?;
        }
        Ok(at)
    }

    fn follow(&self, kind: TreeKind, folder: u64, inode: u64, depth: usize) -> io::Result<u64> {
        let Contents::Link(to) = &self.nodes[&inode].contents else { return Ok(inode) };
        if depth >= FOLLOWED_MAX {
            return Err(ErrorKind::NotFound.into());
        }
        let led = self.resolve(kind, folder, to, depth + 1)?;
        self.follow(kind, folder, led, depth + 1)
    }

    /// The folder that a path's last name is in, and that name.
    fn parent(&self, kind: TreeKind, path: &[u8]) -> io::Result<(u64, Vec<u8>)> {
        let slash = path.iter().rposition(|byte| *byte == b'/').ok_or(ErrorKind::NotFound)?;
        Ok((self.resolve(kind, ROOT, &path[..slash], 0)?, kind.folded(&path[slash + 1..])))
    }

    fn folders_below(&self, top: u64) -> BTreeSet<u64> {
        let (mut found, mut waiting) = (BTreeSet::new(), vec![top]);
        while let Some(inode) = waiting.pop() {
            if self.kind(inode) == Kind::Folder && found.insert(inode) {
                let below = self.names.now().range((inode, Vec::new())..);
                waiting.extend(below.take_while(|((of, _), _)| *of == inode).map(|(_, below)| *below));
            }
        }
        found
    }

    fn intrude(&mut self, kind: TreeKind, intrusion: &Intrusion, clock: &Arc<Clock>) {
        let at = |state: &Self, path: &[u8]| state.resolve(kind, ROOT, path, 0);
        let (Ok(inside), Ok(outside)) = (at(self, &intrusion.inside), at(self, &intrusion.outside)) else {
            return;
        };
        let mut random = Random::new(intrusion.seed);
        let Some(key) = self.chosen(kind, inside, &intrusion.names, &mut random) else { return };
        let before = self.names.get(&key).copied();
        let new = match intrusion.stranger {
            Stranger::Link => {
                let within: &[u8] = if random.coin() { b"" } else { b"/folder" };
                self.add(Contents::Link([&intrusion.outside[..], within].concat()))
            }
            Stranger::Outside => match self.like(outside, before.map(|inode| self.kind(inode))) {
                Some(inode) => inode,
                None => return,
            },
            Stranger::File => {
                let bytes = Pages::new(STRANGERS_BYTES);
                self.add_file(SimDisk::of_machine(clock.clone(), "a stranger's", 1, bytes))
            }
            Stranger::Folder => self.add(Contents::Folder),
            Stranger::Away => {
                let Some(moved) = before else { return };
                self.names.set((outside, AWAY.to_vec()), Some(moved));
                return self.names.set(key, None);
            }
        };
        if intrusion.stranger != Stranger::Outside {
            self.strangers.push(new);
        }
        self.names.set(key, Some(new));
    }

    /// A name in one of the folders, one that is used more often than one that is not.
    fn chosen(
        &self,
        kind: TreeKind,
        top: u64,
        names: &[Vec<u8>],
        random: &mut Random,
    ) -> Option<(u64, Vec<u8>)> {
        let pick = |count: usize, random: &mut Random| {
            (count > 0).then(|| usize::try_from(random.below(count as u64)).expect("an index"))
        };
        let folders: Vec<_> = self.folders_below(top).into_iter().collect();
        if random.below(4) == 0 {
            let folder = folders[pick(folders.len(), random)?];
            return Some((folder, kind.folded(&names[pick(names.len(), random)?])));
        }
        let used: Vec<_> = self.names.now().keys().filter(|(of, _)| folders.contains(of)).collect();
        // What was made last is what is under way.
        let newest = used.iter().max_by_key(|key| self.names.get(**key));
        if random.coin() {
            newest.map(|key| (*key).clone())
        } else {
            Some(used[pick(used.len(), random)?].clone())
        }
    }

    /// Something in a folder that is of the kind, or any file.
    fn like(&self, folder: u64, kind: Option<Kind>) -> Option<u64> {
        let here = || self.names.now().iter().filter(|((of, _), _)| *of == folder).map(|(_, inode)| *inode);
        let of_kind = |kind| here().find(|inode| self.kind(*inode) == kind);
        kind.filter(|kind| *kind != Kind::Folder).and_then(of_kind).or_else(|| of_kind(Kind::File))
    }
}

impl Folders for &SimTree {
    type Open = SimNode;

    fn process_number(&self) -> u32 {
        1
    }

    fn sets_owners(&self) -> bool {
        true
    }

    fn again(&self, open: &SimNode) -> io::Result<SimNode> {
        Ok(self.begin(false)?.open(open.inode))
    }

    fn make_folder(&self, folder: Option<&SimNode>, name: &[u8]) -> io::Result<()> {
        let key = match folder {
            Some(folder) => self.key(folder, name),
            None => self.state().parent(self.kind, name)?,
        };
        self.make(key, |state| state.add(Contents::Folder)).map(drop)
    }

    fn open_folder(&self, folder: Option<&SimNode>, name: &[u8], links: Links) -> io::Result<SimNode> {
        let state = self.begin(false)?;
        let (within, mut inode) = match folder {
            Some(folder) => (folder.inode, state.get(&self.key(folder, name))?),
            None => (ROOT, state.resolve(self.kind, ROOT, name, 0)?),
        };
        if links == Links::Followed {
            inode = state.follow(self.kind, within, inode, 0)?;
        }
        match state.kind(inode) {
            Kind::Folder => Ok(state.open(inode)),
            _ => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn create(&self, folder: &SimNode, name: &[u8]) -> io::Result<SimNode> {
        let disk = SimDisk::of_machine(self.clock.clone(), "file", 1, Pages::new(&[]));
        let (inode, state) = self.make(self.key(folder, name), |state| state.add_file(disk))?;
        Ok(state.open(inode))
    }

    fn symlink(&self, folder: &SimNode, name: &[u8], target: &[u8]) -> io::Result<()> {
        let link = Contents::Link(target.to_vec());
        self.make(self.key(folder, name), |state| state.add(link)).map(drop)
    }

    fn special(&self, folder: &SimNode, name: &[u8], _: SpecialFile) -> io::Result<()> {
        self.make(self.key(folder, name), |state| state.add(Contents::Special)).map(drop)
    }

    fn link(&self, from: &SimNode, first: &[u8], folder: &SimNode, name: &[u8]) -> io::Result<()> {
        let mut state = self.begin(true)?;
        let inode = state.get(&self.key(from, first))?;
        let key = self.key(folder, name);
        match (state.kind(inode), state.names.get(&key)) {
            (Kind::Folder, _) => Err(ErrorKind::PermissionDenied.into()),
            (_, Some(_)) => Err(ErrorKind::AlreadyExists.into()),
            (_, None) => {
                state.names.set(key, Some(inode));
                Ok(())
            }
        }
    }

    fn rename(&self, folder: &SimNode, from: &[u8], to: &[u8], replaces: bool) -> io::Result<()> {
        let mut state = self.begin(true)?;
        if !replaces && self.kind.always_replaces {
            return Err(ErrorKind::Unsupported.into());
        }
        let (from, to) = (self.key(folder, from), self.key(folder, to));
        let inode = state.get(&from)?;
        match state.names.get(&to).copied() {
            Some(_) if !replaces => return Err(ErrorKind::AlreadyExists.into()),
            Some(other) if other == inode => return Ok(()),
            Some(other) if state.kind(other) == Kind::Folder => return Err(ErrorKind::IsADirectory.into()),
            Some(_) if state.kind(inode) == Kind::Folder => return Err(ErrorKind::NotADirectory.into()),
            _ => {}
        }
        state.names.set(to, Some(inode));
        state.names.set(from, None);
        Ok(())
    }

    fn remove(&self, folder: &SimNode, name: &[u8]) -> io::Result<()> {
        let mut state = self.begin(true)?;
        let key = self.key(folder, name);
        let inode = state.get(&key)?;
        if state.kind(inode) == Kind::Folder {
            return Err(ErrorKind::IsADirectory.into());
        }
        state.names.set(key, None);
        Ok(())
    }

    fn look(&self, folder: &SimNode, name: &[u8]) -> io::Result<Option<Found>> {
        let state = self.begin(false)?;
        Ok(state.get(&self.key(folder, name)).ok().map(|inode| state.found(inode)))
    }

    fn point_at(&self, folder: &SimNode, name: &[u8]) -> io::Result<SimNode> {
        let state = self.begin(false)?;
        Ok(state.open(state.get(&self.key(folder, name))?))
    }

    fn found(&self, open: &SimNode) -> io::Result<Found> {
        Ok(self.begin(false)?.found(open.inode))
    }

    fn set_owner(&self, open: &SimNode, _: u32, _: u32) -> io::Result<()> {
        self.set(open)
    }

    fn set_mode(&self, open: &SimNode, _: u16) -> io::Result<()> {
        self.set(open)
    }

    fn set_times(&self, open: &SimNode, _: &Kept) -> io::Result<()> {
        self.set(open)
    }

    fn set_attribute(&self, open: &SimNode, _: &[u8], _: &[u8]) -> io::Result<()> {
        self.set(open)
    }

    fn flushes_each(&self, _: &SimNode) -> bool {
        self.kind.flushes_each
    }

    fn flush(&self, file: &SimNode) -> io::Result<()> {
        let _state = self.begin(true)?;
        file.disk().store();
        Ok(())
    }

    fn flush_all(&self, _: &SimNode) -> io::Result<()> {
        let mut state = self.begin(true)?;
        state.names.sync(|_| true);
        if self.kind.flushes_each {
            return Ok(());
        }
        for node in state.nodes.values() {
            if let Contents::File(disk) = &node.contents {
                disk.store();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::TargetFile;
    use extent::Offset;

    fn tree(kind: TreeKind) -> (SimMachine, SimTree) {
        let machine = SimMachine::new();
        let tree = SimTree::new(&machine, kind).with_folder(b"/in").with_folder(b"/out");
        let tree = tree.with_file(&machine, b"/in/old", b"old").with_link(b"/in/link", b"/out");
        (machine, tree)
    }

    fn in_folder(tree: &SimTree) -> SimNode {
        let tree = &tree;
        tree.open_folder(None, b"/in", Links::Followed).unwrap()
    }

    #[test]
    fn names_and_contents_last_when_they_were_flushed() {
        let (_, tree) = tree(TreeKind::default());
        let (folder, host) = (in_folder(&tree), &tree);
        let file = host.create(&folder, b"new").unwrap();
        file.disk().write_at(Offset::ZERO, b"new").unwrap();
        let left = |seed, name: &[u8]| {
            tree.cut(&SimMachine::new(), seed).seen(b"/in").get(&vec![name.to_vec()]).cloned()
        };
        let count = |name: &[u8], bytes: &[u8]| {
            (0..200).filter(|seed| left(*seed, name).is_some_and(|seen| seen.bytes == bytes)).count()
        };
        assert!((20..180).contains(&count(b"new", b"new")) && count(b"new", b"") > 0);
        host.flush(&file).unwrap();
        assert!((20..180).contains(&count(b"new", b"new")) && count(b"new", b"") == 0);
        host.rename(&folder, b"new", b"old", true).unwrap();
        assert_eq!(count(b"old", b"new") + count(b"old", b"old"), 200);
        host.flush_all(&folder).unwrap();
        assert_eq!((count(b"old", b"new"), count(b"new", b"new")), (200, 0));
    }

    #[test]
    fn links_are_followed_if_asked_for_and_names_fold_if_the_host_does() {
        let (_, tree) = tree(TreeKind { is_folding: true, ..TreeKind::default() });
        let (folder, host) = (in_folder(&tree), &tree);
        assert!(host.open_folder(Some(&folder), b"link", Links::Refused).is_err());
        let led = host.open_folder(Some(&folder), b"LINK", Links::Followed).unwrap();
        host.create(&led, b"made").unwrap();
        assert!(tree.seen(b"/out").contains_key(&vec![b"made".to_vec()]));
        let taken = host.create(&folder, b"OLD").map(drop).map_err(|error| error.kind());
        assert_eq!(taken, Err(ErrorKind::AlreadyExists));
        assert_eq!(host.look(&folder, b"Old").unwrap().unwrap().link_count, 1);
    }

    #[test]
    fn a_stranger_comes_when_ordered() {
        for stranger in STRANGERS {
            let (_, tree) = tree(TreeKind::default());
            let tree = tree.with_file(&SimMachine::new(), b"/out/secret", b"secret");
            let before = tree.seen(b"/in");
            let (inside, outside) = (b"/in".to_vec(), b"/out".to_vec());
            let names = vec![b"soon".to_vec()];
            tree.intrude(Intrusion { operation: 2, stranger, inside, outside, names, seed: 5 });
            let folder = in_folder(&tree);
            assert!(tree.seen(b"/in") == before, "{stranger:?}");
            (&tree).look(&folder, b"old").unwrap();
            assert!(tree.seen(b"/in") != before, "{stranger:?}");
        }
    }
}
