//! A disk that may be compacted: opened, with what its volumes say of themselves, and how far each can be relied on.

use std::collections::BTreeSet;

use block::{Error, ErrorKind, HostFile, HostState, Occupancy, Result};
use claims::{Act, Seen};
use extent::{ExtentSet, Host, Span, VolumeSpan};
use filesystem::{Catalog, Check, State, Use};
use image::live::gives_back;
use image::{Chain, Edit, Resolver};
use stack::{Mode, Stack, UsedMaps, Volume};
use verify::volume::{Contents, Snapshot, VolumeReport};

use super::{Options, Task, WINDOW_BYTES};
use crate::in_place::take_snapshot;
use crate::machine::Caching;
use crate::open::{check_claims, lost};
use crate::shadow_copies;

/// What a file system without files is called.
const SWAP: &str = "swap";
/// And of LVM2's physical volumes.
const LVM2: &str = "lvm2";

/// A disk that may be changed in place, with what its volumes say.
pub(super) struct Candidate {
    pub(super) stack: Stack,
    pub(super) resolver: Box<dyn Resolver>,
    pub(super) seen: Seen,
    pub(super) maps: UsedMaps,
    pub(super) trust: Vec<Trust>,
    pub(super) held: Vec<ExtentSet<Host>>,
    /// What lies where in an image whose units can be moved.
    pub(super) occupancy: Option<Occupancy>,
    pub(super) depth: Depth,
}

/// What of the volumes must be as it was afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Depth {
    /// Who owns what. It is enough where no table of an image is written: nothing that is kept can change then but by a hole of the
    /// host, and these are looked for in all of it.
    Owners,
    /// All that is not the contents of files.
    Metadata,
    /// The contents of files as well.
    Files,
}

impl Depth {
    fn of(chain: &Chain, is_compared: bool) -> Self {
        match (is_compared, gives_back(chain).unit_bytes) {
            (true, _) => Self::Files,
            (false, Some(_)) => Self::Metadata,
            (false, None) => Self::Owners,
        }
    }

    /// The independent check.
    pub(super) fn check(self, volume: &Volume) -> Result<VolumeReport> {
        match self {
            Self::Owners => verify::volume::check_owners(volume.to_check()),
            Self::Metadata | Self::Files => verify::volume::check(volume.to_check()),
        }
    }

    /// All that must stay; `None` for swap space.
    pub(super) fn snapshot(self, volume: &Volume, compared: Option<&[u64]>) -> Result<Option<Snapshot>> {
        let filesystem = volume.filesystem.as_deref().ok_or_else(lost)?;
        let contents = match (self, compared) {
            (Self::Owners, _) => Contents::Owners,
            (_, None) => Contents::None,
            (_, Some(compared)) => Contents::Of(compared),
        };
        match take_snapshot(filesystem, volume, contents) {
            Ok(snapshot) => Ok(Some(snapshot)),
            Err(_) if filesystem.facts().filesystem == SWAP => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Candidate {
    /// Opens the disk; with `is_compared`, reads the files that are to be as they were afterwards.
    pub(super) fn open(task: Task<'_>, is_compared: bool) -> Result<Self> {
        // Metadata are read more than once: by who plans, and by who checks.
        task.location().check_on_host()?;
        let stack = task.location().open(Caching::Metadata)?.stack;
        let resolver = task.location().resolver()?;
        let seen = Seen::of(stack.chain());
        let occupancy = check_possible(task, &stack, &*resolver)?;
        let chain = stack.chain().clone();
        seen.clone()
            .explain(&chain, Self::survey(task.options, stack, resolver, seen, occupancy, is_compared))
    }

    fn survey(
        options: &Options,
        stack: Stack,
        resolver: Box<dyn Resolver>,
        seen: Seen,
        occupancy: Option<Occupancy>,
        is_compared: bool,
    ) -> Result<Self> {
        let maps = stack.used_maps_for(Check::Full, shadow_copies::what(options.drop_shadow_copies))?;
        check_not_hibernated(&stack)?;
        let volumes = stack.volumes().iter().zip(maps.modes());
        let depth = Depth::of(stack.chain(), is_compared);
        let trust = volumes.map(|(volume, mode)| trust(depth, volume, mode)).collect::<Result<_>>()?;
        // Asked for where it is, the host finds places for all that was written, and what is taken is counted after that.
        let held = held(stack.chain())?;
        Ok(Self { stack, resolver, seen, maps, trust, held, occupancy, depth })
    }
}

/// Refuses what must not be changed in place, or cannot, before anything of its contents is looked at. What lies where in an
/// image whose units can be moved.
fn check_possible(task: Task<'_>, stack: &Stack, resolver: &dyn Resolver) -> Result<Option<Occupancy>> {
    check_claims(stack.chain(), resolver, Act::Change)?;
    Edit::check(stack.chain())?;
    task.location().check_usable()?.occupancy()
}

fn check_not_hibernated(stack: &Stack) -> Result<()> {
    match stack.where_hibernated(None) {
        None => Ok(()),
        Some(told) => Err(Error::refused(format!("the guest is hibernated ({told})"))
            .hint("resume it, and shut it down")
            .path(stack.chain().files()[0].name())),
    }
}

/// How a volume is to be found again; why all of it is kept if its used map is not to be relied on.
pub(super) type Trust = Result<TrustedVolume, String>;

/// A volume as it was before.
pub(super) struct TrustedVolume {
    /// All that must stay; `None` for what has no files: swap space.
    pub(super) snapshot: Option<Snapshot>,
    /// The files whose contents are compared, ascending; `None` without `--verify`.
    pub(super) compared: Option<Vec<u64>>,
    /// Why the independent check rejects it, if it does. That is stricter than a used map need be: clusters that are marked as
    /// used and belong to nobody fail it, and do no harm here. But files of such a volume are not moved.
    pub(super) unsound: Option<String>,
}

/// What speaks against a volume is an answer; only a failure to read is an error.
fn trust(depth: Depth, volume: &Volume, mode: &Mode) -> Result<Trust> {
    if let Some(reason) = mode.reason() {
        return Ok(Err(reason.to_owned()));
    }
    let Some(filesystem) = &volume.filesystem else { return Ok(Err("no known file system".into())) };
    if let State::JournalPending(why) = &filesystem.facts().state {
        return Ok(Err(format!("{why}: start the guest and shut it down, so that its journal is empty")));
    }
    if filesystem.facts().filesystem == LVM2 || volume.is_device() {
        // It has no files. That its metadata are as they were is proven by the bytes that are kept.
        return Ok(Ok(TrustedVolume { snapshot: None, compared: None, unsound: None }));
    }
    let found = compared(depth, volume, mode).and_then(|compared| {
        let snapshot = depth.snapshot(volume, compared.as_deref())?;
        let unsound = match depth.check(volume) {
            Ok(_) => None,
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            Err(error) => Some(error.to_string()),
        };
        Ok(TrustedVolume { snapshot, compared, unsound })
    });
    match found {
        Ok(found) => Ok(Ok(found)),
        Err(error) if error.kind() == ErrorKind::Io => Err(error),
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// If they are compared, all files but those that hold swap, whose contents go.
fn compared(depth: Depth, volume: &Volume, mode: &Mode) -> Result<Option<Vec<u64>>> {
    let (Mode::UsedOnly(map), Some(filesystem)) = (mode, &volume.filesystem) else { return Ok(None) };
    if depth != Depth::Files || filesystem.facts().filesystem == SWAP {
        return Ok(None);
    }
    let mut swap = ExtentSet::new();
    for window in Span::from_zero(volume.place.len_bytes()).split(WINDOW_BYTES) {
        for extent in map.uses(window)?.into_iter().filter(|extent| extent.state == Use::Swap) {
            swap.push(extent.span);
        }
    }
    let catalog = Catalog::read(&**filesystem)?;
    let holds_swap = |span: VolumeSpan| swap.within(span).next().is_some();
    let swap_files: BTreeSet<_> = catalog
        .streams()
        .filter(|stream| stream.extents().any(|extent| holds_swap(extent.span)))
        .map(|stream| stream.stream.file.0)
        .collect();
    let files: BTreeSet<_> = catalog.streams().map(|stream| stream.stream.file.0).collect();
    Ok(Some(files.difference(&swap_files).copied().collect()))
}

/// What the host has storage for, of each of the image's files. A device's blocks may all have some.
fn held(chain: &Chain) -> Result<Vec<ExtentSet<Host>>> {
    chain.files().iter().map(|file| held_of(&**file)).collect()
}

fn held_of(file: &dyn HostFile) -> Result<ExtentSet<Host>> {
    // Both, as either may leave something out: what was never written, and what the host compresses.
    let placed = file.host_extents()?.unwrap_or_default().into_iter().map(|extent| extent.span);
    Ok(placed.chain(written_of(file)?.iter()).collect())
}

/// What does not read as zeros as far as the host tells: what moves is written where this says that there is data, so that it tells
/// what the host will need. It depends on what is in the host's cache; nothing is proven by it.
pub(super) fn written_of(file: &dyn HostFile) -> Result<ExtentSet<Host>> {
    let map = file.host_map(Span::from_zero(file.len_bytes()))?;
    Ok(map.into_iter().filter(|extent| extent.state == HostState::Data).map(|extent| extent.span).collect())
}
