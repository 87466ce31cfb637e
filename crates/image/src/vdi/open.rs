//! Opening one layer, and finding a parent of which only the UUID is known.

use std::mem::offset_of;
use std::sync::Arc;

use block::{Error, ErrorKind, HostFile, Result, Run};
use extent::{HostOffset, VirtualSpan};
use uuid::{Builder, Uuid};

use super::corrupt::Corrupt;
use super::layout::VdiHeader;
use super::map::Map;
use super::parse::{self, Header, Kind};
use crate::{Facts, Format, Layer, ParentReference, Probe, Purpose, Renewal, Resolver};

/// The most files of the folder that are looked into for a parent.
const CANDIDATE_COUNT_MAX: usize = 4096;

/// Whether `file` is one, by its whole header.
pub fn probe(file: &dyn HostFile) -> Result<Probe> {
    if !parse::has_signature(file)? {
        return Ok(Probe::No);
    }
    match parse::header(file) {
        Ok(_) => Ok(Probe::Yes),
        Err(error) if error.kind() == ErrorKind::Io => Err(error),
        // What is known but not supported is better told by `open`.
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Probe::Yes),
        Err(error) => Ok(Probe::Broken(error)),
    }
}

/// What `file` says of its parent, if it is one of these and has one: the parent's UUID, and no name.
pub(crate) fn parent_reference(file: &dyn HostFile) -> Result<Option<ParentReference>> {
    if !parse::has_signature(file)? {
        return Ok(None);
    }
    let header = parse::header(file)?;
    let ids = vec![header.uuid_linkage.to_string()];
    let reference = ParentReference { format: Some(Format::Vdi), ids, ..ParentReference::default() };
    Ok((header.kind == Kind::Differencing).then_some(reference))
}

/// Opens one layer. A differencing image's parent is looked for here, because only its UUID is known, and
/// given back as [`Layer::parent`].
pub fn open(file: Arc<dyn HostFile>, resolver: &dyn Resolver) -> Result<Box<dyn Layer>> {
    let header = parse::header(&*file)?;
    let parent = match header.kind {
        Kind::Differencing => Some(find_parent(&*file, &header, resolver)?),
        Kind::Dynamic | Kind::Fixed => None,
    };
    let facts = facts(&header);
    let map = Map::new(header, file.clone());
    Ok(Box::new(Vdi { facts, files: [file], map, parent }))
}

fn facts(header: &Header) -> Facts {
    let mut details = vec![("UUID", header.uuid_create.to_string())];
    if header.kind == Kind::Differencing {
        details.push(("parent UUID", header.uuid_linkage.to_string()));
    }
    if !header.comment.is_empty() {
        details.push(("comment", header.comment.clone()));
    }
    Facts {
        format: Format::Vdi,
        variant: header.kind.name().into(),
        virtual_bytes: header.disk_bytes,
        sector_bytes: 512,
        cluster_bytes: Some(header.block_bytes),
        id: Some(header.uuid_create.to_string()),
        unreadable: None,
        snapshot_count: 0,
        details,
    }
}

/// VirtualBox names the images of snapshots by their UUID, in braces; a base image has any name.
fn find_parent(file: &dyn HostFile, header: &Header, resolver: &dyn Resolver) -> Result<ParentReference> {
    let uuid = header.uuid_linkage;
    let by_uuid = [format!("{{{uuid}}}.vdi"), format!("{uuid}.vdi")];
    let beside = resolver.siblings(file)?.into_iter().filter_map(|name| name.into_string().ok());
    let is_vdi = |name: &String| name.to_ascii_lowercase().ends_with(".vdi");
    for name in by_uuid.into_iter().chain(beside.filter(is_vdi).take(CANDIDATE_COUNT_MAX)) {
        let Some(candidate) = candidate(file, &name, resolver)? else { continue };
        if candidate.uuid_create != uuid {
            continue;
        }
        check_unchanged(&name, &candidate, header.uuid_parent_modify)?;
        return Ok(ParentReference {
            names: vec![name],
            format: Some(Format::Vdi),
            ids: vec![uuid.to_string()],
            snapshot: None,
        });
    }
    Err(Error::refused(format!(
        "differencing VDI whose parent, the VDI with the UUID {uuid}, is not in its folder"
    ))
    .hint(format!(
        "`VBoxManage showmediuminfo {uuid}` tells where it is; put it beside as '{uuid}.vdi', \
             or merge the snapshots in VirtualBox"
    )))
}

/// The header of the file called `name`, if it is there and a VDI.
fn candidate(file: &dyn HostFile, name: &str, resolver: &dyn Resolver) -> Result<Option<Header>> {
    let opened = match resolver.open(file, name, Purpose::Parent) {
        Err(error) if error.kind() == ErrorKind::Refused => return Ok(None),
        opened => opened?,
    };
    match parse::header(&*opened) {
        Err(error) if error.kind() == ErrorKind::Io => Err(error),
        parsed => Ok(parsed.ok()),
    }
}

/// What was written into the parent since would show through.
fn check_unchanged(name: &str, parent: &Header, expected: Uuid) -> Result<()> {
    if expected.is_nil() || parent.uuid_modify == expected {
        return Ok(());
    }
    let (name, found) = (name.to_owned(), parent.uuid_modify);
    Err(Error::refused(Corrupt::ParentChanged { name, found, expected }))
}

struct Vdi {
    facts: Facts,
    files: [Arc<dyn HostFile>; 1],
    map: Map,
    parent: Option<ParentReference>,
}

impl Layer for Vdi {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn files(&self) -> &[Arc<dyn HostFile>] {
        &self.files
    }

    fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        self.map.map(span)
    }

    fn parent(&self) -> Option<ParentReference> {
        self.parent.clone()
    }

    fn check_editable(&self) -> Result<()> {
        self.map.check_owners()
    }

    /// The UUID by which children see that their parent changed. It lies in one sector.
    fn renewals(&self, identity_seed: u128) -> Result<Vec<Renewal>> {
        let uuid = Builder::from_random_bytes(identity_seed.to_be_bytes()).into_uuid();
        let at = HostOffset::new(offset_of!(VdiHeader, uuid_modify) as u64);
        Ok(vec![Renewal { at, bytes: uuid.to_bytes_le().to_vec() }])
    }
}
