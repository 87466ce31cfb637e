//! Whether a copy shares storage with its source instead of reading and writing it.

use block::{Error, HostFile, Result};
use image::{Chain, Format};
use os::Cloning;

use super::{Layout, Options};
use crate::Provision;
use crate::target::Target;

/// Whether a raw copy of a raw disk shares storage with it (a *reflink*), where the host's file system can do that: XFS, Btrfs and others.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Reflink {
    /// Where it can be done.
    #[default]
    Auto,
    /// Or the copy is refused.
    Always,
    /// Never: all is read and written.
    Never,
}

/// The size of the blocks that are cloned; `None` if all is to be read and written. `Refused` if that is not what was asked for.
pub(super) fn clone_block_bytes(
    options: &Options,
    source: &Chain,
    format: Format,
    target: &Target<'_>,
) -> Result<Option<u64>> {
    if options.reflink == Reflink::Never {
        return Ok(None);
    }
    match (find(options, source, format, target)?, options.reflink) {
        (Cloning::Blocks { block_bytes }, _) => Ok(Some(block_bytes)),
        (Cloning::Impossible { why }, Reflink::Always) => Err(Error::refused(format!("cannot clone: {why}"))
            .path(options.target.display())
            .hint("--reflink auto copies where it cannot clone")),
        (Cloning::Impossible { why }, _) => {
            tracing::debug!(why, "the target shares no storage with the source");
            Ok(None)
        }
    }
}

fn find(options: &Options, source: &Chain, format: Format, target: &Target<'_>) -> Result<Cloning> {
    let no = |why| Ok(Cloning::no(why));
    let Some(file) = raw_file(source) else { return no("only a raw image is cloned") };
    match target {
        _ if format != Format::Raw => no("only a raw target is cloned to"),
        _ if file.is_block_device() => no("the source is a block device"),
        Target::Device(_) => no("the target is a block device, or an export"),
        Target::Stream(_) => no("the target is standard output"),
        _ if options.layout == Layout::Packed => no("--layout packed places the data anew"),
        _ if options.provision != Provision::Thin => {
            no("storage that is shared is not the target's own, which --provision lazy and eager promise")
        }
        Target::Folder { folder, .. } => folder.check_cloning(file),
    }
}

/// The one file of a raw disk, in which all lies where it is read.
pub(super) fn raw_file(source: &Chain) -> Option<&dyn HostFile> {
    match source.links() {
        [link] if link.layer.facts().format == Format::Raw => link.layer.files().first().map(|file| &**file),
        _ => None,
    }
}
