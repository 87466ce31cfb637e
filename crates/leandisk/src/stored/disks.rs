//! Disks in snapshots: how they are named, found and opened.

use std::path::Path;
use std::sync::Arc;

use block::{Error, HostFile, Result};
use image::{Format, SnapshotReference};
use repository::{Id, Index, Node, Repository, Snapshot, SnapshotDisk};

use super::place::Place;

/// What the name of an image that is not raw gets in a snapshot, where it is.
const SUFFIX: &str = ".raw";

/// `SNAPSHOT` or `SNAPSHOT:DISK`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotName {
    /// `latest`, or the first digits of its ID.
    pub snapshot: String,
    /// The disk's name, or its path in the snapshot.
    pub disk: Option<String>,
}

impl SnapshotName {
    /// `None` if it cannot be the name of a snapshot: `latest`, or 8 to 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let (snapshot, disk) = match text.split_once(':') {
            Some((snapshot, disk)) => (snapshot, Some(disk.to_owned())),
            None => (text, None),
        };
        let is_id = (8..=64).contains(&snapshot.len())
            && snapshot.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        let is_name = (is_id || snapshot == "latest") && disk.as_deref() != Some("");
        is_name.then(|| Self { snapshot: snapshot.to_owned(), disk })
    }
}

/// A disk of a snapshot.
pub(crate) struct FoundDisk {
    pub(crate) name: String,
    pub(crate) snapshot_path: String,
    pub(crate) node: Node,
}

/// The file name of the disk called `name` in a snapshot: the same, unless that would say what the file is not.
pub(crate) fn node_name(name: &str) -> String {
    if names_an_image(name) { format!("{name}{SUFFIX}") } else { name.to_owned() }
}

/// Whether the extension is that of an image which is not raw.
fn names_an_image(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    extension.and_then(Format::from_extension).is_some_and(|format| format != Format::Raw)
}

/// The disks of a snapshot: the files in its root. One that restic made of folders has none.
pub(crate) fn disks_of(
    repository: &Repository,
    index: &Index,
    snapshot: &Snapshot,
) -> Result<Vec<FoundDisk>> {
    let tree = repository.tree(index, snapshot.tree)?;
    let files = tree.nodes.into_iter().filter(Node::is_file);
    let found = files.map(|node| FoundDisk {
        name: match node.name.strip_suffix(SUFFIX) {
            Some(stem) if names_an_image(stem) => stem.to_owned(),
            _ => node.name.clone(),
        },
        snapshot_path: format!("/{}", node.name),
        node,
    });
    Ok(found.collect())
}

/// Finds the disk by its name, its file's name or its path.
pub(crate) fn find_disk(mut disks: Vec<FoundDisk>, wanted: Option<&str>, snapshot: Id) -> Result<FoundDisk> {
    let names = disks.iter().map(|disk| disk.name.as_str()).collect::<Vec<_>>().join(", ");
    let at = match wanted {
        None if disks.len() == 1 => Some(0),
        None if disks.is_empty() => {
            return Err(Error::refused(format!("snapshot {} holds no disk", snapshot.short())));
        }
        None => {
            return Err(Error::refused(format!(
                "snapshot {} holds several disks: {names}",
                snapshot.short()
            ))
            .hint("name one: SNAPSHOT:DISK"));
        }
        Some(wanted) => disks.iter().position(|disk| {
            disk.name == wanted || disk.snapshot_path == wanted || node_name(wanted) == disk.node.name
        }),
    };
    let Some(at) = at else {
        return Err(Error::refused(format!(
            "snapshot {} holds no disk {}; it holds {}",
            snapshot.short(),
            wanted.unwrap_or_default(),
            if names.is_empty() { "none" } else { &names }
        )));
    };
    Ok(disks.swap_remove(at))
}

/// A disk of a snapshot, as a file of the host, for what opens disks.
pub(crate) fn open_file(place: &Place, name: &SnapshotName, path: &Path) -> Result<Arc<dyn HostFile>> {
    Ok(Arc::new(open_disk(place, name, path)?.disk))
}

/// A disk of a snapshot, and what it is known by.
pub(crate) struct StoredDisk {
    pub(crate) disk: SnapshotDisk,
    pub(crate) reference: SnapshotReference,
}

/// Opens a disk of a snapshot. `path` names it in messages.
pub(crate) fn open_disk(place: &Place, name: &SnapshotName, path: &Path) -> Result<StoredDisk> {
    let repository = place.open(false)?;
    let index = repository.index()?;
    let (id, snapshot) = repository.find_snapshot(&name.snapshot)?;
    let disk = find_disk(disks_of(&repository, &index, &snapshot)?, name.disk.as_deref(), id)?;
    let reference = SnapshotReference {
        repository: repository.id().bytes(),
        snapshot: id.bytes(),
        tree: snapshot.tree.bytes(),
        disk: disk.node.name.clone(),
    };
    let disk = SnapshotDisk::open(repository, &index, &disk.node, path)?.reading_ahead_from_afar();
    Ok(StoredDisk { disk, reference })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_snapshots() {
        let name = |snapshot: &str, disk: Option<&str>| {
            Some(SnapshotName { snapshot: snapshot.into(), disk: disk.map(Into::into) })
        };
        assert_eq!(SnapshotName::parse("latest"), name("latest", None));
        assert_eq!(SnapshotName::parse("latest:a:b"), name("latest", Some("a:b")));
        assert_eq!(SnapshotName::parse("0123abcd:/vm.raw"), name("0123abcd", Some("/vm.raw")));
        for none in ["0123abc", "0123ABCD", "disk.raw", "latest:", "qmp:socket", "nbd://latest", ""] {
            assert_eq!(SnapshotName::parse(none), None, "{none}");
        }
        let names = ["a.qcow2", "a.raw", "vm", "a.b"].map(node_name);
        assert_eq!(names, ["a.qcow2.raw", "a.raw", "vm", "a.b"]);
    }
}
