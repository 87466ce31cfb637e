//! Images that stand on another: whether a disk is the parent of one beside it.
//!
//! A parent knows nothing of its children, so they are looked for where they mostly are: in its folder. Their headers
//! are read, and neither their parents opened as images nor their contents looked at.
//!
//! Absent on purpose: children elsewhere, which nothing on disk leads to; files that are no valid image of their format,
//! since no program opens them either.

use block::{Error, ErrorKind, HostFile, Result};

use crate::{Chain, Format, ParentReference, Purpose, Resolver};
use crate::{qcow2, vdi, vhd, vhdx, vmdk};

/// The most files of the folder that are looked into.
const CANDIDATE_COUNT_MAX: usize = 4096;

/// `Refused` if images in the disk's folder stand on it.
pub fn check_no_children(chain: &Chain, resolver: &dyn Resolver) -> Result<()> {
    let children = children(chain, resolver)?;
    let Some(first) = children.first() else { return Ok(()) };
    let others = match children.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    Err(Error::refused(format!("is the parent of '{first}'{others}, whose contents would change with it"))
        .hint("change it once its clones and snapshots are merged into it, or copied whole")
        .path(chain.files()[0].name()))
}

/// The names of images in the disk's folder that name the disk as their parent, or bear its identity as their
/// parent's.
pub fn children(chain: &Chain, resolver: &dyn Resolver) -> Result<Vec<String>> {
    let disk = &*chain.files()[0];
    let is_of_disk = |file: &dyn HostFile| {
        let identity = file.identity();
        identity.is_some() && chain.files().iter().any(|own| own.identity() == identity)
    };
    let mut children = Vec::new();
    for name in resolver.siblings(disk)?.into_iter().take(CANDIDATE_COUNT_MAX) {
        if name == last_component(disk.name()) {
            continue;
        }
        let candidate = match resolver.open(disk, &name, Purpose::Parent) {
            Ok(candidate) => candidate,
            // Folders, sockets, what is not granted, and what another program removed meanwhile.
            Err(error) if error.kind() == ErrorKind::Refused => continue,
            Err(error) => return Err(error),
        };
        if is_of_disk(&*candidate) {
            continue;
        }
        let Some(parent) = parent_reference(&*candidate)? else { continue };
        if names_disk(chain, &*candidate, &parent, resolver) {
            children.push(name);
        }
    }
    children.sort_unstable();
    Ok(children)
}

/// What `file` says of its parent, if it is an image that has one.
fn parent_reference(file: &dyn HostFile) -> Result<Option<ParentReference>> {
    for format in Format::ALL {
        let read = match format {
            Format::Qcow2 => qcow2::parent_reference(file),
            Format::Vhdx => vhdx::parent_reference(file),
            Format::Vmdk => vmdk::parent_reference(file),
            Format::Vdi => vdi::parent_reference(file),
            Format::Vhd => vhd::parent_reference(file),
            Format::Raw => Ok(None),
        };
        match read {
            Ok(None) => {}
            Ok(found) => return Ok(found),
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {}
            Err(error) => return Err(error.path(file.name())),
        }
    }
    Ok(None)
}

/// Whether `parent`, the reference in `child`, means the disk. The first name that opens decides, as it does when the
/// child is opened; if none does, the identity, or a name that ends as the disk's.
fn names_disk(
    chain: &Chain,
    child: &dyn HostFile,
    parent: &ParentReference,
    resolver: &dyn Resolver,
) -> bool {
    let disk = &chain.files()[0];
    let opens = parent.names.iter().find_map(|name| resolver.open(child, name, Purpose::Parent).ok());
    if let Some((found, own)) = opens.and_then(|file| file.identity().zip(disk.identity())) {
        return found == own;
    }
    let own_name = last_component(disk.name());
    let bears_id = chain.facts().id.as_ref().is_some_and(|id| parent.ids.contains(id));
    // A name may also be a protocol string that holds the file's.
    bears_id || parent.names.iter().any(|name| name.contains(own_name))
}

fn last_component(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}
