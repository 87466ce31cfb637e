//! A disk of any kind that is held: its files locked, and no byte of it changed.

use std::sync::Arc;

use block::{Error, Result};
use image::{Chain, Format, NoFiles};
use serve::monitor::Monitor;

use super::filling::{self, HeldToFill};
use super::opened::{Caching, HeldToRead, HeldToWrite, OpenForUse, UseOptions};
use super::{Options, Served, overlay};
use crate::Observer;
use crate::open::Location;
use crate::remote::is_address;
use crate::stored::open_disk;

/// A disk whose files are locked, and of which no byte was changed.
pub(super) enum Held {
    /// To be read.
    ToRead(HeldToRead),
    /// To be taken into use.
    ToWrite(HeldToWrite),
    /// To be taken into use while it is filled.
    Filling(Box<HeldToFill>),
}

impl Held {
    pub(super) fn of(served: &Served, options: &Options) -> Result<Self> {
        let path = served.read_at.as_deref().unwrap_or(&served.disk);
        let location = Location::here(path, &options.open);
        if !(options.read_only && is_address(path)) {
            location.check_on_host()?;
        }
        if let Some((place, name)) = options.open.snapshot(path) {
            if served.overlay.is_none() && served.into.is_none() && !options.read_only {
                return Err(Error::refused("a disk of a snapshot cannot be written")
                    .hint("--overlay FILE keeps what is written in an image of its own; --into TARGET restores the disk meanwhile; --read-only writes nothing")
                    .path(path.display()));
            }
            let stored = open_disk(place, &name, path)?;
            if let Some(overlay) = &served.overlay {
                return Ok(Self::ToWrite(overlay::hold(stored, overlay, options)?));
            }
            if let Some(target) = &served.into {
                return Ok(Self::Filling(Box::new(filling::hold(stored, target, options)?)));
            }
            let disk = Arc::new(stored.disk.reading_ahead());
            let chain = Chain::open(disk, image::OpenOptions { format: Some(Format::Raw) }, &NoFiles)?;
            return Ok(Self::ToRead(HeldToRead::at(&chain, location, options)?));
        }
        let chain = location.open_chain_at_rest(Caching::PageCache)?;
        if options.read_only {
            return Ok(Self::ToRead(HeldToRead::at(&chain, location, options)?));
        }
        let resolver = location.resolver()?;
        Ok(Self::ToWrite(HeldToWrite::of(&chain, resolver, UseOptions::of(path, options))?))
    }

    /// What would speak against taking it into use. Nothing is written to find that out.
    pub(super) fn check_usable(&self) -> Result<()> {
        match self {
            Self::ToRead(_) => Ok(()),
            Self::ToWrite(held) => held.check_usable(),
            Self::Filling(held) => held.target().check_usable(),
        }
    }

    /// Takes it into use. That may put its image in order: a log is replayed, a last cluster completed.
    pub(super) fn into_use(self, monitor: &Arc<Monitor>, observer: &Arc<dyn Observer>) -> Result<OpenForUse> {
        match self {
            Self::ToRead(held) => held.into_use(&**observer),
            Self::ToWrite(held) => held.into_use(monitor),
            Self::Filling(held) => held.into_use(monitor, observer),
        }
    }
}
