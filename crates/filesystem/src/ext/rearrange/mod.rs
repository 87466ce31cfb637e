//! Files of ext2/3/4 that are laid elsewhere: what may move, and what the metadata say once it did.
//!
//! Only of volumes that are clean and whole: the block bitmaps are just what is owned, and every owner is known. What
//! moves are the contents of files, directories and long symbolic links, in whole extents; maps and blocks of extended
//! attributes stay where they are. A tree of extents gets smaller where its extents do.
//!
//! Layers: [`place`] (where a block lies afterwards), [`build`] (a tree of extents), [`remap`] (an inode and its map),
//! [`groups`] (bitmaps, descriptors, the superblock), [`metadata_edits`] (blocks that are worked on), [`quota`] (what owners occupy); of these
//! [`edits`] for a change in place and [`rewritten`] for a volume written anew. [`streams`] says what may move.
//!
//! Deliberately absent: backups of superblock and descriptors, which the kernel does not keep up to date either.

use std::sync::Arc;

use block::{Error, ReadAt, Result, read_struct};
use extent::{ExtentSet, Offset, Span, Volume, VolumeOffset, VolumeSpan};

use super::features::{compat, ro_compat};
use super::layout::{MMP_SEQ_CLEAN, RawMmp, SUPERBLOCK_OFFSET, witness};
use super::superblock::Superblock;
use super::{check, free, journal, swapfile};
use crate::files::FileId;
use crate::rearrange::{Edits, Rearrange, Relocations, Rewritten, StreamVisitor};
use crate::{Source, State};

mod build;
mod edits;
mod groups;
mod metadata_edits;
mod place;
mod quota;
mod remap;
mod rewritten;
mod streams;

use streams::Pins;

/// A volume whose files can be laid elsewhere.
struct Arranged {
    source: Source,
    superblock: Arc<Superblock>,
    /// What lies in swap files.
    swap: ExtentSet<Volume>,
    witnesses: Vec<VolumeSpan>,
}

/// Checks that the volume's files may be laid elsewhere.
pub(super) fn open(
    source: &Source,
    superblock: &Arc<Superblock>,
    state: &State,
) -> Result<Box<dyn Rearrange>> {
    if let State::JournalPending(why) = state {
        return Err(Error::refused(format!("the ext volume was not unmounted: {why}"))
            .hint("let its guest shut down, or mount and unmount it once"));
    }
    check_features(source, superblock)?;
    check_boot_block(source)?;
    let swap = swapfile::pages(&check::check_exactly(source, superblock)?);
    let witnesses = witnesses(source, superblock)?;
    Ok(Box::new(Arranged { source: source.clone(), superblock: superblock.clone(), swap, witnesses }))
}

fn check_features(source: &Source, superblock: &Superblock) -> Result<()> {
    let features = superblock.features;
    if features.compat.has(compat::STABLE_INODES) {
        return Err(Error::refused(
            "the ext volume has the feature stable_inodes, which forbids to rearrange it",
        ));
    }
    let orphans = superblock.last_orphan != 0 || features.ro_compat.has(ro_compat::ORPHAN_PRESENT);
    if orphans {
        return Err(Error::refused(
            "files of the ext volume are still to be deleted or cut, as they were open",
        )
        .hint("mount and unmount it once, or run e2fsck on it"));
    }
    if features.ro_compat.has(ro_compat::READONLY) {
        return Err(Error::refused("the ext volume has the feature read-only"));
    }
    if let Some(block) = superblock.mmp_block {
        let raw: RawMmp = read_struct(source, superblock.offset_of(block), "ext multiple-mount block")?;
        if raw.seq.get() != MMP_SEQ_CLEAN {
            return Err(Error::refused("the ext volume is in use, as its multiple-mount protection says"));
        }
    }
    Ok(())
}

/// Boot loaders in the first block that find their files by numbers of blocks, which would be wrong afterwards. Extlinux
/// does so, too, but makes its file immutable, which pins it.
fn check_boot_block(source: &Source) -> Result<()> {
    let mut bytes = [0; 512];
    source.read_at(VolumeOffset::new(0), &mut bytes)?;
    for name in ["GRUB", "LILO"] {
        if bytes.windows(name.len()).any(|window| window == name.as_bytes()) {
            let what =
                format!("{name} is in the ext volume's first sector, and finds its files by their blocks");
            return Err(Error::refused(what));
        }
    }
    Ok(())
}

/// What a mount changes: times, counts and state in the superblock, and the journal's superblock.
fn witnesses(source: &Source, superblock: &Superblock) -> Result<Vec<VolumeSpan>> {
    let fields = witness::SUPERBLOCK_FIELDS.iter();
    let in_superblock =
        fields.map(|(at, len_bytes)| Span::new(Offset::new(SUPERBLOCK_OFFSET + at), *len_bytes));
    let mut spans: Vec<_> = in_superblock.collect();
    if let Some(block) = journal::superblock_block(source, superblock)? {
        spans.push(Span::new(superblock.offset_of(block), superblock.block_bytes.into()));
    }
    spans.sort_unstable();
    Ok(spans)
}

impl Arranged {
    fn pins(&self) -> Pins<'_> {
        Pins { superblock: &self.superblock, swap: &self.swap }
    }
}

impl Rearrange for Arranged {
    fn cluster_bytes(&self) -> u64 {
        u64::from(self.superblock.cluster_blocks) * u64::from(self.superblock.block_bytes)
    }

    fn first_cluster(&self) -> VolumeOffset {
        self.superblock.offset_of(self.superblock.first_data_block)
    }

    fn each_stream(&self, visitor: &mut dyn StreamVisitor) -> Result<()> {
        streams::each(&self.source, &self.pins(), visitor)
    }

    fn each_room(&self, each: &mut dyn FnMut(VolumeSpan)) -> Result<()> {
        let (first, cluster_bytes) = (self.first_cluster().get(), self.cluster_bytes());
        free::each_span(&self.source, &self.superblock, &mut |span| {
            // A last cluster that the volume's end cuts is nobody's.
            let end = first + (span.end().get() - first) / cluster_bytes * cluster_bytes;
            let whole = Span::between(span.start(), Offset::new(end));
            if !whole.is_empty() {
                each(whole);
            }
        })
    }

    fn home(&self, file: FileId) -> Option<VolumeSpan> {
        let superblock = &self.superblock;
        let number =
            u32::try_from(file.0).ok().filter(|number| (1..=superblock.inodes_count).contains(number))?;
        let group = superblock.group_of_inode(number);
        let first = group / superblock.flex_groups * superblock.flex_groups;
        let end = first.saturating_add(superblock.flex_groups);
        let start = superblock.offset_of(superblock.group_start(first));
        let end = match end < superblock.groups_count {
            true => superblock.offset_of(superblock.group_start(end)),
            false => Offset::new(superblock.end_bytes()),
        };
        Some(Span::between(start, end))
    }

    fn edits(&self, volume: &dyn ReadAt<Volume>, relocations: &Relocations) -> Result<Edits> {
        edits::edits(volume, &self.pins(), relocations)
    }

    fn rewritten(&self, relocations: Arc<Relocations>) -> Result<Box<dyn Rewritten>> {
        Ok(Box::new(rewritten::View::new(&self.source, &self.superblock, &self.pins(), relocations)?))
    }

    fn witnesses(&self, _batches: &[Relocations]) -> Result<Vec<VolumeSpan>> {
        Ok(self.witnesses.clone())
    }
}
