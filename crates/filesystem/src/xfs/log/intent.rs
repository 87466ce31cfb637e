//! Intents: work that a transaction says is to be done, in later ones. What no later one says was done the guest's recovery does.
//!
//! What they name is used whether it was done or not: it was allocated before, and what frees it comes last. While it is done its owners,
//! references and records of the reverse map are of different moments.

use std::collections::HashMap;
use std::fmt;

use block::{Error, Result};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::layout::{RawExtent, RawIntent, RawMapping, item as kind};
use super::record::{Item, short};
use crate::xfs::superblock::{BlockNumber, Superblock};

/// Blocks that an intent names: what names the first, and how many they are.
type Named = (u64, u64);

/// Intents of a log that were not done.
#[derive(Default)]
pub(super) struct Intents {
    /// By kind and number.
    open: HashMap<(u16, u64), Vec<Named>>,
}

/// Work that was not finished.
#[derive(Default, Debug)]
pub(in crate::xfs) struct Unfinished {
    /// What is to be freed: in no tree of free space yet, and nobody's.
    pub(in crate::xfs) freed: Vec<(BlockNumber, u64)>,
    /// What is being mapped, counted or recorded: not free, and with more or fewer owners than counted.
    pub(in crate::xfs) changing: Vec<(BlockNumber, u64)>,
}

/// How many extents there is work left on; nothing if none.
impl fmt::Display for Unfinished {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.freed.len(), self.changing.len()) {
            (0, 0) => Ok(()),
            (freed, 0) => write!(to, "{freed} extents to be freed"),
            (0, changing) => write!(to, "{changing} extents to be mapped, counted or recorded"),
            (freed, changing) => {
                write!(to, "{changing} extents to be mapped, counted or recorded, and {freed} to be freed")
            }
        }
    }
}

impl Intents {
    /// Takes an intent, whose type is even, or what was done of one, whose type is the next.
    pub(super) fn take(&mut self, kind: u16, item: &Item) -> Result<()> {
        let (raw, rest) = RawIntent::read_from_prefix(item.head()).map_err(|_| short("item"))?;
        let id = raw.id.get();
        if !kind.is_multiple_of(2) {
            self.open.remove(&(kind - 1, id));
            return Ok(());
        }
        let named = match kind {
            kind::EFI | kind::CUI => {
                each(&raw, rest, |it: &RawExtent| (it.start.get(), it.len.get().into()))?
            }
            kind::RUI | kind::BUI => {
                each(&raw, rest, |it: &RawMapping| (it.start.get(), it.len.get().into()))?
            }
            // Attributes, and files that exchange their extents: each step leaves both files whole, and names its blocks in intents of its own.
            _ => Vec::new(),
        };
        self.open.insert((kind, id), named);
        Ok(())
    }

    /// What is left of them, as blocks of the volume.
    pub(super) fn unfinished(&self, superblock: &Superblock) -> Result<Unfinished> {
        let mut found = Unfinished::default();
        for ((kind, _), named) in &self.open {
            let blocks = if *kind == kind::EFI { &mut found.freed } else { &mut found.changing };
            for (name, count) in named {
                let first = superblock.block_of(*name).filter(|first| superblock.holds(*first, *count));
                blocks.push((first.ok_or_else(|| short("extents"))?, *count));
            }
        }
        found.freed.sort_unstable();
        found.changing.sort_unstable();
        Ok(found)
    }
}

/// What each extent of an intent names; as many as it says.
fn each<T>(raw: &RawIntent, rest: &[u8], named: impl Fn(&T) -> Named) -> Result<Vec<Named>>
where
    T: FromBytes + Immutable + KnownLayout + Unaligned,
{
    let extents = <[T]>::ref_from_bytes(rest).map_err(|_| of_32_bits())?;
    if extents.len() as u64 != u64::from(raw.nextents.get()) {
        return Err(of_32_bits());
    }
    Ok(extents.iter().map(named).collect())
}

/// The error of an item that is as long as none is on machines of 64 bits.
pub(super) fn of_32_bits() -> Error {
    Error::unsupported("XFS with a log of a machine of 32 bits")
}
