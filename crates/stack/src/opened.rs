//! A volume, and how it is to be taken.

use block::{ErrorKind, Result};
use extent::VirtualSpan;
use filesystem::{Check, FileSystem, Source, State};
use volume::Partition;

use crate::placement::Placement;
use crate::{Mode, ShadowCopies};

/// One volume and what is known of it.
pub struct Volume {
    /// Where it lies on the virtual disk.
    pub place: Placement,
    /// Its bytes, read through a cache.
    pub source: Source,
    /// Its entry in the partition table; `None` for a disk without one.
    pub partition: Option<Partition>,
    /// The name of a logical volume, `GROUP/VOLUME`, or the UUID of a file system that has several devices; `None` for a partition and for
    /// a disk without a table. Untrusted text.
    pub name: Option<String>,
    /// What is on it, if that was recognised.
    pub filesystem: Option<Box<dyn FileSystem>>,
    /// Why it was not, if reading it failed.
    pub doubt: Option<String>,
    /// All of it belongs to a file system that has further devices, and is a volume of its own.
    pub(crate) is_device: bool,
    /// Its devices one behind the other, each as long as it says, if it is a file system of several.
    pub(crate) devices: Option<Source>,
}

impl Volume {
    /// Nothing is known of it yet.
    pub(crate) fn unknown(place: Placement, source: Source) -> Self {
        Self {
            place,
            source,
            partition: None,
            name: None,
            filesystem: None,
            doubt: None,
            is_device: false,
            devices: None,
        }
    }

    /// Whether all of it belongs to a file system that has further devices, and is a volume of its own.
    pub fn is_device(&self) -> bool {
        self.is_device
    }

    /// What an independent check is to read: the volume; of a file system that has several devices these, by ascending numbers one behind
    /// the other, each as long as it says.
    pub fn to_check(&self) -> &Source {
        self.devices.as_ref().unwrap_or(&self.source)
    }

    /// Where a partition, or a disk without a table, lies; `None` for what need not lie in one piece.
    pub fn span(&self) -> Option<VirtualSpan> {
        self.name.is_none().then(|| self.place.first())
    }

    /// Whether it says that its guest is hibernated.
    pub(crate) fn is_hibernated(&self) -> bool {
        let state = self.filesystem.as_ref().map(|filesystem| &filesystem.facts().state);
        matches!(state, Some(State::Hibernated(_)))
    }

    /// How it is to be taken, and whether it says that the guest is hibernated.
    pub(crate) fn mode(&self, check: Check, shadow_copies: ShadowCopies) -> Result<(Mode, bool)> {
        let whole = |reason: String, is_hibernated| Ok((Mode::Whole(reason), is_hibernated));
        let Some(filesystem) = &self.filesystem else {
            return whole(self.doubt.as_deref().unwrap_or("no known file system").to_owned(), false);
        };
        let state = &filesystem.facts().state;
        if let Some(doubt) = state.doubt() {
            return whole(doubt.to_owned(), matches!(state, State::Hibernated(_)));
        }
        let map = match shadow_copies {
            ShadowCopies::Kept => filesystem.used_map(check),
            ShadowCopies::Dropped => filesystem.used_map_without_shadow_copies(check),
        };
        match map {
            Ok(map) => Ok((Mode::UsedOnly(map), false)),
            Err(error) if error.kind() == ErrorKind::Io => Err(error),
            Err(error) => whole(error.to_string(), error.kind() == ErrorKind::Refused),
        }
    }
}
