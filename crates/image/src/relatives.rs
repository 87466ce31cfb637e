//! Images that need a disk's files: those that stand on it, and those of which it holds the data.
//!
//! A parent knows nothing of its children, and a data file nothing of the image that it belongs to. So they are looked for where
//! they mostly are: in the folders of the disk's own files. Their headers are read, and neither their parents opened as
//! images nor their contents looked at.
//!
//! Absent on purpose: images elsewhere, which nothing on disk leads to; files that are no valid image of their format,
//! since no program opens them either.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use block::{Error, ErrorKind, HostFile, Result};

use crate::references::References;
use crate::{Chain, ParentReference, Purpose, Resolver};
use crate::{old_qemu, qcow2, vdi, vhd, vhdx, vmdk};

/// A folder of more files is not looked through: nobody keeps disks in one.
const CANDIDATE_COUNT_MAX: usize = 1 << 20;

/// What an image needs a disk for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Relation {
    /// The disk is its parent.
    Parent,
    /// A file of the disk is its data file, or one of its extents.
    Data,
}

/// An image that needs the disk.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Relative {
    /// What the disk is to it.
    pub relation: Relation,
    /// Its name in its folder. Untrusted text, and not always what opens it.
    pub name: String,
}

/// The images beside the disk that need the files of its top layer. Those below may be shared by many: they are not written.
pub fn relatives(chain: &Chain, resolver: &dyn Resolver) -> Result<Vec<Relative>> {
    let own =
        Own { files: chain.links()[0].layer.files(), all: chain.files(), id: chain.facts().id.as_deref() };
    own.relatives(resolver)
}

/// The images beside `file` that need it, whatever it holds.
pub fn relatives_of_file(file: &Arc<dyn HostFile>, resolver: &dyn Resolver) -> Result<Vec<Relative>> {
    let files = std::slice::from_ref(file);
    Own { files, all: files, id: None }.relatives(resolver)
}

/// The disk whose relatives are wanted.
struct Own<'a> {
    /// That others may need.
    files: &'a [Arc<dyn HostFile>],
    /// That are no relatives of their own.
    all: &'a [Arc<dyn HostFile>],
    /// What a child may know it by.
    id: Option<&'a str>,
}

impl Own<'_> {
    fn relatives(&self, resolver: &dyn Resolver) -> Result<Vec<Relative>> {
        let mut found = Vec::new();
        let mut folders = Vec::new();
        for file in self.files {
            let folder = folder_of(&**file);
            if folders.contains(&folder) {
                continue;
            }
            folders.push(folder);
            self.look_beside(&**file, resolver, &mut found)?;
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    fn look_beside(
        &self,
        file: &dyn HostFile,
        resolver: &dyn Resolver,
        found: &mut Vec<Relative>,
    ) -> Result<()> {
        let names = resolver.siblings(file)?;
        if names.len() > CANDIDATE_COUNT_MAX {
            let count = names.len();
            return Err(Error::refused(format!(
                "lies in a folder of {count} files, too many to see whether another image needs it"
            ))
            .hint("move the disk to a folder of its own")
            .path(file.name()));
        }
        for name in names {
            if let Some(relation) = self.relation(file, &name, resolver)? {
                found.push(Relative { relation, name: name.to_string_lossy().into_owned() });
            }
        }
        Ok(())
    }

    /// What the disk is to the file called `name` beside `file`.
    fn relation(
        &self,
        file: &dyn HostFile,
        name: &OsStr,
        resolver: &dyn Resolver,
    ) -> Result<Option<Relation>> {
        let candidate = match resolver.open_sibling(file, name) {
            Ok(candidate) => candidate,
            // Folders, sockets, what is not granted, and what another program removed meanwhile.
            Err(error) if error.kind() == ErrorKind::Refused => return Ok(None),
            Err(error) => return Err(cannot_tell(file, name, &error)),
        };
        if is_one_of(self.all, &*candidate) {
            return Ok(None);
        }
        let references = references(&*candidate).map_err(|error| cannot_tell(file, name, &error))?;
        if references.parent.is_some_and(|parent| self.is_parent(&*candidate, &parent, resolver)) {
            return Ok(Some(Relation::Parent));
        }
        let mut data = references.data.iter();
        let is_data = data.any(|name| self.is_named(&*candidate, name, Purpose::Data, resolver));
        Ok(is_data.then_some(Relation::Data))
    }

    /// Whether `parent`, the reference in `child`, means the disk. The first name that opens decides, as it does when the
    /// child is opened; if none does, the identity, or a name that ends as the disk's.
    fn is_parent(&self, child: &dyn HostFile, parent: &ParentReference, resolver: &dyn Resolver) -> bool {
        let opens = parent.names.iter().find_map(|name| resolver.open(child, name, Purpose::Parent).ok());
        if let Some(opened) = opens.filter(|opened| opened.identity().is_some()) {
            return is_one_of(self.files, &*opened);
        }
        self.id.is_some_and(|id| parent.ids.iter().any(|known| known == id))
            || parent.names.iter().any(|name| self.sounds_like(name))
    }

    /// Whether what `image` calls `name` is a file of the disk.
    fn is_named(&self, image: &dyn HostFile, name: &str, purpose: Purpose, resolver: &dyn Resolver) -> bool {
        match resolver.open(image, name, purpose) {
            Ok(opened) if opened.identity().is_some() => is_one_of(self.files, &*opened),
            _ => self.sounds_like(name),
        }
    }

    /// A name that leads nowhere may be the disk's as another machine knew it, or be part of a protocol string.
    fn sounds_like(&self, name: &str) -> bool {
        self.files.iter().any(|file| name.contains(last_component(file.name())))
    }
}

fn is_one_of(files: &[Arc<dyn HostFile>], file: &dyn HostFile) -> bool {
    let identity = file.identity();
    identity.is_some() && files.iter().any(|own| own.identity() == identity)
}

/// Whether a file needs the disk is not known: it may.
fn cannot_tell(file: &dyn HostFile, name: &OsStr, error: &Error) -> Error {
    let name = name.to_string_lossy();
    Error::refused(format!(
        "another file of its folder, '{name}', may be an image that needs it, and cannot be read: {error}"
    ))
    .hint(format!("let this user read '{name}', or move the disk to a folder of its own"))
    .path(file.name())
}

/// What `file` says of others, if it is an image that needs any.
fn references(file: &dyn HostFile) -> Result<References> {
    type Read = fn(&dyn HostFile) -> Result<References>;
    const READERS: [Read; 7] = [
        qcow2::references,
        |file| vhdx::parent_reference(file).map(References::from),
        vmdk::references,
        |file| vdi::parent_reference(file).map(References::from),
        |file| vhd::parent_reference(file).map(References::from),
        |file| old_qemu::qed_parent(file).map(References::from),
        |file| old_qemu::qcow1_parent(file).map(References::from),
    ];
    for read in READERS {
        match read(file) {
            Ok(References { parent: None, data }) if data.is_empty() => {}
            Ok(found) => return Ok(found),
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {}
            Err(error) => return Err(error.path(file.name())),
        }
    }
    Ok(References::default())
}

fn folder_of(file: &dyn HostFile) -> &Path {
    file.path().parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn last_component(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}
