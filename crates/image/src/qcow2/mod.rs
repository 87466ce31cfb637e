//! QCOW2, QEMU's format: versions 2 and 3, read; version 3, written.
//!
//! Source: QEMU, `docs/interop/qcow2.rst`. What is read, written and refused: docs/formats/qcow2.md.

mod bitmaps;
mod compress;
mod corrupt;
mod edit;
mod extras;
mod layout;
mod live;
mod map;
mod parse;
mod refcounts;
mod snapshots;
mod stream;
mod write;

use std::sync::{Arc, Mutex};

use block::{Error, ErrorKind, FileIndex, HostFile, ReadAt, Result, Run, RunState};
use extent::{Extent, ExtentSet, Span, Virtual, VirtualOffset, VirtualSpan};

use self::compress::Decompressor;
use self::map::Map;
use self::parse::{Encryption, Header};
use crate::references::{References, parent_named};
use crate::{
    Backing, DirtyBitmap, Extras, Fact, Facts, Format, Layer, ParentReference, Probe, Purpose, Resolver,
};

pub use corrupt::Corrupt;
pub(crate) use live::{end_max, open_live};
pub use stream::Qcow2StreamWriter;
pub use write::Qcow2Writer;

/// Whether `file` is one, by its whole header. What Leandisk cannot read is one all the same: opening it tells
/// what is missing.
pub fn probe(file: &dyn HostFile) -> Result<Probe> {
    // Version 1 is a format of its own, which is not read.
    if !parse::has_magic(file)? || parse::is_version_1(file)? {
        return Ok(Probe::No);
    }
    match parse::read_header(file) {
        Ok(_) => Ok(Probe::Yes),
        Err(error) => match error.kind() {
            ErrorKind::Unsupported => Ok(Probe::Yes),
            ErrorKind::Corrupt => Ok(Probe::Broken(error)),
            _ => Err(error),
        },
    }
}

/// What `file` says of others, if it is one of these. Features that are not known do not matter for that.
pub(crate) fn references(file: &dyn HostFile) -> Result<References> {
    if !parse::has_magic(file)? {
        return Ok(References::default());
    }
    let parse::Names { backing, data } = parse::read_names(file)?;
    Ok(References { parent: backing.map(|name| parent_named(name, None)), data: data.into_iter().collect() })
}

/// Opens one layer. `resolver` opens the further files it consists of; its parent is not opened here.
pub fn open(file: Arc<dyn HostFile>, resolver: &dyn Resolver) -> Result<Box<dyn Layer>> {
    let header = parse::read_header(&file)?;
    let mut files = vec![file.clone()];
    if let Some(data_file) = &header.data_file {
        files.push(resolver.open(&*file, &data_file.name, Purpose::Data)?);
    }
    let parent = parent(&header)?;
    Ok(Box::new(Qcow2 {
        facts: facts(&header),
        cluster_bytes: header.cluster_bytes(),
        decompressor: Decompressor::new(header.compression),
        recent: Mutex::default(),
        parent,
        map: Map::new(header, file, files.get(1).map(|file| &**file)),
        files,
    }))
}

/// What the image stands on.
fn parent(header: &Header) -> Result<Option<ParentReference>> {
    match (&header.backing, &header.snapshot) {
        (Some(_), Some(snapshot)) => {
            // Somebody made it stand on a file without knowing of the snapshot.
            Err(Error::refused(format!("stands on a backing file, and is an overlay of {snapshot}")))
        }
        (Some(backing), None) => Ok(Some(parent_named(backing.name.clone(), backing.format))),
        (None, Some(snapshot)) => Ok(Some(ParentReference {
            format: Some(Format::Raw),
            snapshot: Some(snapshot.clone()),
            ..ParentReference::default()
        })),
        (None, None) => Ok(None),
    }
}

struct Qcow2 {
    facts: Facts,
    files: Vec<Arc<dyn HostFile>>,
    cluster_bytes: u64,
    map: Map,
    parent: Option<ParentReference>,
    decompressor: Decompressor,
    /// The compressed cluster of the last partial read, decompressed: small reads tend to come in a row.
    recent: Mutex<Option<(VirtualOffset, Arc<[u8]>)>>,
}

impl Layer for Qcow2 {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn extras(&self) -> Extras {
        extras::extras(self.map.header(), &*self.files[0])
    }

    fn bitmaps(&self) -> Result<Vec<DirtyBitmap>> {
        bitmaps::list(self.map.header(), &*self.files[0])
    }

    fn dirty(&self, name: &str) -> Result<ExtentSet<Virtual>> {
        bitmaps::dirty(self.map.header(), &*self.files[0], name)
    }

    fn files(&self) -> &[Arc<dyn HostFile>] {
        &self.files
    }

    fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        self.map.runs(span)
    }

    fn read_compressed(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        let mut rest = buf;
        for part in Span::new(at, rest.len() as u64).split(self.cluster_bytes) {
            let (piece, after) = rest.split_at_mut(memory_len(part.len_bytes()));
            rest = after;
            if part.len_bytes() == self.cluster_bytes {
                self.decompress(part.start(), piece)?;
            } else {
                let skip = part.start().get() % self.cluster_bytes;
                let cluster = self.recent_cluster(VirtualOffset::new(part.start().get() - skip))?;
                piece.copy_from_slice(&cluster[memory_len(skip)..][..piece.len()]);
            }
        }
        Ok(())
    }

    fn parent(&self) -> Option<ParentReference> {
        self.parent.clone()
    }

    fn check_editable(&self) -> Result<()> {
        edit::check(&self.map, &*self.files[0])
    }

    fn backing(&self, span: VirtualSpan) -> Result<Vec<Extent<Virtual, Backing>>> {
        self.map.backing(span)
    }
}

impl Qcow2 {
    /// The whole cluster at `at`, decompressed now or by the last call.
    fn recent_cluster(&self, at: VirtualOffset) -> Result<Arc<[u8]>> {
        if let Some((recent_at, cluster)) = &*self.recent.lock().expect("no reader panicked")
            && *recent_at == at
        {
            return Ok(cluster.clone());
        }
        let mut cluster = vec![0; memory_len(self.cluster_bytes)];
        self.decompress(at, &mut cluster)?;
        let cluster: Arc<[u8]> = cluster.into();
        *self.recent.lock().expect("no reader panicked") = Some((at, cluster.clone()));
        Ok(cluster)
    }

    /// Fills `cluster`, a whole one, from the compressed cluster at `at`. The last cluster of the disk is whole too:
    /// it is compressed with what lies past the disk's end.
    fn decompress(&self, at: VirtualOffset, cluster: &mut [u8]) -> Result<()> {
        let run = self.map.runs(Span::new(at, 1))?;
        let Some(&Run { state: RunState::Compressed { file: FileIndex(0), offset, len_bytes }, .. }) =
            run.first()
        else {
            return Err(Error::invalid("QCOW2 cluster is not compressed").at(at));
        };
        let mut data = vec![0; memory_len(len_bytes)];
        self.files[0].read_at(offset, &mut data)?;
        self.decompressor.decompress(&data, cluster).map_err(|reason| {
            let expected = format!("data that gives {} bytes", cluster.len());
            Error::corrupt(Corrupt::CompressedCluster).at(offset).field("data", reason, expected)
        })
    }
}

/// A length bounded by two clusters, as an index into memory.
fn memory_len(len_bytes: u64) -> usize {
    usize::try_from(len_bytes).expect("bounded by two clusters")
}

fn facts(header: &Header) -> Facts {
    Facts {
        format: Format::Qcow2,
        variant: format!("v{}", header.version),
        virtual_bytes: header.virtual_bytes,
        sector_bytes: 512,
        cluster_bytes: Some(header.cluster_bytes()),
        id: None,
        unreadable: unreadable(header),
        snapshot_count: header.snapshot_count,
        details: details(header),
    }
}

fn unreadable(header: &Header) -> Option<String> {
    match header.encryption {
        Some(Encryption::Luks) => Some("encrypted with LUKS (QCOW2 encryption method 2)".into()),
        Some(Encryption::Aes) => Some("encrypted with AES (QCOW2 encryption method 1)".into()),
        None if header.is_corrupt => Some(
            "marked corrupt by the program that wrote it: run 'qemu-img check -r all' on it first".into(),
        ),
        None => None,
    }
}

fn details(header: &Header) -> Vec<Fact> {
    let mut details = vec![
        ("compatibility", if header.version == 2 { "0.10" } else { "1.1" }.to_owned()),
        ("compression", header.compression.name().to_owned()),
        ("refcount bits", header.refcount_bits.to_string()),
    ];
    let mut note = |when: bool, name: &'static str, text: &str| {
        if when {
            details.push((name, text.to_owned()));
        }
    };
    note(header.is_dirty, "dirty", "refcounts may be out of date; the data is not affected");
    note(header.has_lazy_refcounts, "lazy refcounts", "yes");
    note(header.extended_l2, "extended L2 entries", "yes");
    if let Some(data_file) = &header.data_file {
        details.push(("data file", data_file.name.clone()));
        details.push(("data file is raw", if data_file.is_raw { "yes" } else { "no" }.to_owned()));
    }
    if let Some(bitmaps) = header.bitmaps {
        let state = if bitmaps.is_consistent { "" } else { ", out of date" };
        details.push(("bitmaps", format!("{}{state}", bitmaps.count)));
    }
    details
}
