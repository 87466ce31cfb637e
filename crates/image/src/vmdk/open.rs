//! Which file is a disk's entrance, and the layer behind it.

use std::collections::HashMap;
use std::sync::Arc;

use block::{Error, ErrorKind, FileIndex, HostFile, Result, Run, read_vec};
use extent::{HostOffset, HostSpan, Offset, Span, VirtualOffset, VirtualSpan};

use super::corrupt::Corrupt;
use super::descriptor::{self, Descriptor, ExtentKind, ExtentLine};
use super::edit;
use super::layout::SECTOR_BYTES;
use super::map::{Compression, Map, Part, Source, Tables};
use super::parse::{self, Magic, SparseExtent};
use crate::references::References;
use crate::{Facts, Format, Layer, ParentReference, Probe, Purpose, Renewal, Resolver};

/// How much of a text is looked at to tell whether it is a descriptor.
const PROBE_BYTES: u64 = 4096;

/// Whether `file` is one, by its whole header; an extent without its descriptor is one too, which [`open`]
/// then explains.
pub fn probe(file: &dyn HostFile) -> Result<Probe> {
    let checked = match entrance(file)? {
        Entrance::None => return Ok(Probe::No),
        Entrance::Hosted => parse::hosted_header(file, HostOffset::ZERO).map(drop),
        Entrance::Text => read_text(file).map(drop),
        Entrance::FlatData | Entrance::Cowd | Entrance::SeSparse => Ok(()),
    };
    match checked {
        Ok(()) => Ok(Probe::Yes),
        Err(error) if error.kind() == ErrorKind::Io => Err(error),
        // What is known but not supported is better told by `open`.
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Probe::Yes),
        Err(error) => Ok(Probe::Broken(error)),
    }
}

/// What a file is, as far as its beginning and its name tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Entrance {
    Text,
    Hosted,
    Cowd,
    SeSparse,
    /// Named as VMware names the data of flat disks. Its contents are the guest's, so they are not believed.
    FlatData,
    None,
}

fn entrance(file: &dyn HostFile) -> Result<Entrance> {
    let len_bytes = file.len_bytes();
    let begins = read_vec(file, HostOffset::ZERO, len_bytes.min(PROBE_BYTES), "file")?;
    let is_text = descriptor::looks_like_one(&begins);
    if is_text && len_bytes <= descriptor::LEN_BYTES_MAX {
        return Ok(Entrance::Text);
    }
    if is_flat_name(file.name()) {
        return Ok(Entrance::FlatData);
    }
    // Too long, which is told when it is read: to take it for a raw disk in silence would be worse.
    if is_text {
        return Ok(Entrance::Text);
    }
    Ok(match parse::magic(file)? {
        Some(Magic::Hosted) => Entrance::Hosted,
        Some(Magic::Cowd) => Entrance::Cowd,
        Some(Magic::SeSparse) => Entrance::SeSparse,
        None => Entrance::None,
    })
}

/// The name's last component without `.vmdk`, if it has that.
fn stem(name: &str) -> Option<&str> {
    let last = name.rsplit('/').next().unwrap_or(name);
    let (stem, extension) = last.rsplit_once('.')?;
    extension.eq_ignore_ascii_case("vmdk").then_some(stem)
}

fn is_flat_name(name: &str) -> bool {
    let Some((_, suffix)) = stem(name).and_then(|stem| stem.rsplit_once('-')) else { return false };
    suffix == "flat" || is_numbered(suffix, 'f')
}

fn is_numbered(suffix: &str, letter: char) -> bool {
    suffix
        .strip_prefix(letter)
        .is_some_and(|digits| digits.len() >= 3 && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The descriptor's name by VMware's convention for the names of extents.
fn descriptor_name(name: &str) -> Option<String> {
    let (disk, suffix) = stem(name)?.rsplit_once('-')?;
    let known = ["flat", "delta", "sesparse"].contains(&suffix)
        || is_numbered(suffix, 'f')
        || is_numbered(suffix, 's');
    known.then(|| format!("{disk}.vmdk"))
}

fn is_an_extent(file: &dyn HostFile, what: &str) -> Error {
    let hint = match descriptor_name(file.name()) {
        Some(name) => format!("open the descriptor '{name}' instead"),
        None => "open the descriptor, the small .vmdk that names this file, instead".into(),
    };
    Error::refused(format!("{what}: an extent of a disk, not the disk")).hint(hint).path(file.name())
}

/// Opens one layer. `resolver` opens the extents that a descriptor names; the parent is not opened here.
pub fn open(file: Arc<dyn HostFile>, resolver: &dyn Resolver) -> Result<Box<dyn Layer>> {
    match entrance(&*file)? {
        Entrance::Text => {
            let descriptor = read_text(&*file)?;
            let place = Span::from_zero(file.len_bytes());
            open_described(file, place, descriptor, resolver)
        }
        Entrance::Hosted => open_hosted(file, resolver),
        Entrance::Cowd => Err(is_an_extent(&*file, "ESX server sparse (COWD) data")),
        Entrance::SeSparse => Err(is_an_extent(&*file, "SESparse data")),
        Entrance::FlatData => {
            let error = is_an_extent(&*file, "named like the data of a flat VMDK");
            let hint = error.hint_text().unwrap_or_default().to_owned();
            Err(error.hint(format!("{hint}, or say -f raw to take this file for the whole disk")))
        }
        Entrance::None => Err(Error::corrupt(Corrupt::NoVmdk)),
    }
}

/// What `file` says of others, if it is one of these.
pub(crate) fn references(file: &dyn HostFile) -> Result<References> {
    let (descriptor, is_alone) = match entrance(file)? {
        Entrance::Text => (Some(read_text(file)?), false),
        Entrance::Hosted => {
            let header = parse::hosted_header(file, HostOffset::ZERO)?;
            // One that holds the data itself names the file that it was made as.
            (embedded(file, header.descriptor)?, header.capacity_sectors != 0)
        }
        Entrance::Cowd | Entrance::SeSparse | Entrance::FlatData | Entrance::None => (None, true),
    };
    let Some(Descriptor { parent, extents, .. }) = descriptor else { return Ok(References::default()) };
    let names = extents.into_iter().map(|extent| extent.name).filter(|name| !name.is_empty());
    let data = if is_alone { Vec::new() } else { names.collect() };
    Ok(References { parent: parent.map(reference), data })
}

fn reference(parent: descriptor::Parent) -> ParentReference {
    ParentReference {
        names: parent.name.as_deref().map(parent_names).unwrap_or_default(),
        format: Some(Format::Vmdk),
        ids: vec![spelled(parent.cid)],
        snapshot: None,
    }
}

fn read_text(file: &dyn HostFile) -> Result<Descriptor> {
    if file.len_bytes() > descriptor::LEN_BYTES_MAX {
        return Err(Error::corrupt(Corrupt::Descriptor).field(
            "length",
            format!("{} bytes", file.len_bytes()),
            format!("at most {}", descriptor::LEN_BYTES_MAX),
        ));
    }
    descriptor::parse(&read_vec(file, HostOffset::ZERO, file.len_bytes(), "VMDK descriptor")?)
}

fn open_hosted(file: Arc<dyn HostFile>, resolver: &dyn Resolver) -> Result<Box<dyn Layer>> {
    let header = parse::hosted_header(&*file, HostOffset::ZERO)?;
    let Some(descriptor) = embedded(&*file, header.descriptor)? else {
        return Err(is_an_extent(&*file, "sparse data without a descriptor"));
    };
    if header.capacity_sectors == 0 {
        let place = header.descriptor.expect("the descriptor was read from it");
        return open_described(file, place, descriptor, resolver);
    }
    let place = header.descriptor.expect("the descriptor was read from it");
    let extent = parse::hosted_extent(&*file, header)?;
    let [line] = &descriptor.extents[..] else {
        return Err(Error::unsupported("VMDK with an embedded descriptor").field(
            "number of extents",
            descriptor.extents.len(),
            "1, itself",
        ));
    };
    // The name in it is the one at creation, which a copy or a rename leaves behind; the extent is this file.
    if line.kind != ExtentKind::Sparse {
        return Err(Error::corrupt(Corrupt::EmbeddedDescriptor).field(
            "type of its extent",
            format!("{:?}", line.kind),
            "SPARSE",
        ));
    }
    let mut layer = Builder::new(file, place);
    layer.add_sparse(line, FileIndex(0), extent)?;
    layer.finish(descriptor)
}

/// A disk that is one hosted extent, for who writes into it.
pub(super) struct LivePart {
    pub(super) tables: Tables,
    pub(super) descriptor: Option<HostSpan>,
    pub(super) redundant_at: Option<HostOffset>,
    /// Whether the directory in use is the first, not its redundant copy.
    pub(super) is_first: bool,
}

/// What a hosted extent with its own descriptor consists of.
pub(super) fn live_parts(file: &dyn HostFile) -> Result<LivePart> {
    let header = parse::hosted_header(file, HostOffset::ZERO)?;
    if header.capacity_sectors == 0 {
        return Err(Error::unsupported("writing into a VMDK that is neither flat nor monolithicSparse"));
    }
    let (descriptor, redundant_at) = (header.descriptor, header.redundant_at);
    let first_at = header.directory_at;
    let tables = parse::hosted_extent(file, header)?.tables;
    let is_first = first_at.is_none_or(|at| at == tables.directory_at);
    Ok(LivePart { tables, descriptor, redundant_at, is_first })
}

/// The embedded descriptor, if there is one: QEMU gives split extents room for it and leaves that empty.
fn embedded(file: &dyn HostFile, place: Option<HostSpan>) -> Result<Option<Descriptor>> {
    let Some(place) = place else { return Ok(None) };
    let bytes = read_vec(file, place.start(), place.len_bytes(), "VMDK embedded descriptor")?;
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    descriptor::parse(&bytes).map(Some).map_err(|error| error.at(place.start()))
}

fn open_described(
    file: Arc<dyn HostFile>,
    place: HostSpan,
    descriptor: Descriptor,
    resolver: &dyn Resolver,
) -> Result<Box<dyn Layer>> {
    check_create_type(&descriptor)?;
    let mut layer = Builder::new(file, place);
    for line in &descriptor.extents {
        layer.add(line, resolver)?;
    }
    layer.finish(descriptor)
}

fn check_create_type(descriptor: &Descriptor) -> Result<()> {
    let of_devices = ["fullDevice", "partitionedDevice", "vmfsRaw", "vmfsRDM", "vmfsRDMP"];
    let create_type = &descriptor.create_type;
    if of_devices.iter().any(|known| known.eq_ignore_ascii_case(create_type))
        || create_type.to_ascii_lowercase().contains("rawdevicemap")
    {
        return Err(Error::unsupported(format!("VMDK of type {create_type}"))
            .hint("it stands for devices of the host it was made on; copy those instead"));
    }
    if descriptor.extents.is_empty() {
        return Err(match &descriptor.encryption {
            Some(key) => Error::refused(format!("encrypted VMDK (its descriptor holds '{key}')")),
            None => Error::corrupt(Corrupt::Descriptor).field("number of extents", 0, "at least 1"),
        });
    }
    Ok(())
}

/// A layer in the making: extents are added in order.
struct Builder {
    files: Vec<Arc<dyn HostFile>>,
    by_name: HashMap<String, FileIndex>,
    parts: Vec<Part>,
    end: VirtualOffset,
    grain_bytes: Option<u64>,
    table_count: u64,
    notes: Vec<(&'static str, String)>,
    descriptor_place: HostSpan,
    doubt: Option<&'static str>,
    is_unclosed: bool,
}

impl Builder {
    fn new(file: Arc<dyn HostFile>, descriptor_place: HostSpan) -> Self {
        Self {
            descriptor_place,
            doubt: None,
            is_unclosed: false,
            files: vec![file],
            by_name: HashMap::new(),
            parts: Vec::new(),
            end: VirtualOffset::ZERO,
            grain_bytes: None,
            table_count: 0,
            notes: Vec::new(),
        }
    }

    fn add(&mut self, line: &ExtentLine, resolver: &dyn Resolver) -> Result<()> {
        if line.kind == ExtentKind::Zero {
            return self.push(line, Source::Zero);
        }
        let index = self.open(&line.name, resolver)?;
        let file = self.files[index.0 as usize].clone();
        let added = match line.kind {
            ExtentKind::Flat => self.add_flat(line, index, &*file),
            ExtentKind::SeSparse => {
                parse::sesparse_extent(&*file).and_then(|extent| self.add_sparse(line, index, extent))
            }
            ExtentKind::Sparse | ExtentKind::Zero => {
                sparse_extent(&*file).and_then(|extent| self.add_sparse(line, index, extent))
            }
        };
        added.map_err(|error| error.path(file.name()))
    }

    fn open(&mut self, name: &str, resolver: &dyn Resolver) -> Result<FileIndex> {
        if let Some(index) = self.by_name.get(name) {
            return Ok(*index);
        }
        let file = resolver.open(&*self.files[0], name, Purpose::Data)?;
        let index = FileIndex(u32::try_from(self.files.len()).expect("few extents"));
        self.files.push(file);
        self.by_name.insert(name.to_owned(), index);
        Ok(index)
    }

    fn add_flat(&mut self, line: &ExtentLine, file: FileIndex, host: &dyn HostFile) -> Result<()> {
        let at = line.offset.checked_mul(SECTOR_BYTES);
        let end =
            line.sector_count.checked_mul(SECTOR_BYTES).zip(at).and_then(|(len, at)| at.checked_add(len));
        match (at, end) {
            (Some(at), Some(end)) if end <= host.len_bytes() => {
                self.push(line, Source::Flat { file, at: HostOffset::new(at) })
            }
            _ => Err(Error::corrupt(Corrupt::FlatExtent).field(
                "its end",
                format!("sector {} and {} more", line.offset, line.sector_count),
                format!("within the file's {} bytes", host.len_bytes()),
            )),
        }
    }

    fn add_sparse(&mut self, line: &ExtentLine, file: FileIndex, extent: SparseExtent) -> Result<()> {
        // A writer may round an extent up to whole grains; anything else would move all that follows it.
        let grain_sectors = extent.tables.grain_bytes / SECTOR_BYTES;
        let rounding = extent.capacity_sectors.checked_sub(line.sector_count);
        if rounding.is_none_or(|rounding| rounding >= grain_sectors) {
            return Err(Error::corrupt(Corrupt::SparseExtent).field(
                "capacity",
                format!("{} sectors", extent.capacity_sectors),
                format!("{} as the descriptor says", line.sector_count),
            ));
        }
        // Thousands of lines may name the same file: their tables are bounded together, too.
        self.table_count += extent.tables.directory_entry_count();
        parse::check_table_count(self.table_count)?;
        self.grain_bytes.get_or_insert(extent.tables.grain_bytes);
        self.doubt = self.doubt.or(extent.doubt);
        self.is_unclosed |= extent.is_unclosed;
        for note in extent.notes {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        let overhead_bytes = extent.overhead_bytes;
        self.push(line, Source::Sparse { file, tables: extent.tables, overhead_bytes })
    }

    fn push(&mut self, line: &ExtentLine, source: Source) -> Result<()> {
        if line.is_read_only && line.kind != ExtentKind::Zero {
            self.doubt =
                self.doubt.or(Some("has an extent that its descriptor says must not be written (RDONLY)"));
        }
        // Signed 64-bit file offsets are the limit of every host.
        let span = line
            .sector_count
            .checked_mul(SECTOR_BYTES)
            .and_then(|len_bytes| Span::checked(self.end, len_bytes))
            .filter(|span| i64::try_from(span.end().get()).is_ok())
            .ok_or_else(|| {
                Error::corrupt(Corrupt::ExtentDescription).field(
                    "sectors",
                    line.sector_count,
                    "below 8 EiB in all",
                )
            })?;
        self.end = span.end();
        self.parts.push(Part { span, source });
        Ok(())
    }

    fn finish(self, descriptor: Descriptor) -> Result<Box<dyn Layer>> {
        let compressed = |part: &Part| matches!(&part.source, Source::Sparse { tables, .. } if tables.compression != Compression::None);
        let mut details = vec![("extents", self.parts.len().to_string())];
        if self.parts.iter().any(compressed) {
            details.push(("compression", "zlib".into()));
        }
        details.extend(self.notes);
        let is_tracked = descriptor.facts.iter().any(|(name, _)| *name == "change tracking");
        details.extend(descriptor.facts);
        let facts = Facts {
            format: Format::Vmdk,
            variant: descriptor.create_type,
            virtual_bytes: self.end.get(),
            sector_bytes: 512,
            cluster_bytes: self.grain_bytes,
            id: descriptor.cid.map(spelled),
            unreadable: descriptor.encryption.map(|key| format!("encrypted (its descriptor holds '{key}')")),
            snapshot_count: 0,
            details,
        };
        let parent = descriptor.parent.map(reference);
        let map = Map::new(self.parts, &self.files)?;
        let Self { files, descriptor_place, doubt, is_unclosed, .. } = self;
        Ok(Box::new(Vmdk { facts, files, map, parent, descriptor_place, doubt, is_unclosed, is_tracked }))
    }
}

/// A content ID as VMware writes it.
fn spelled(cid: u32) -> String {
    format!("{cid:08x}")
}

/// The hint as it is, then the same file beside the child: the hint may tell where the parent was on the host
/// that the disk comes from.
fn parent_names(hint: &str) -> Vec<String> {
    let name = hint.replace('\\', "/");
    let last = name.rsplit('/').next().unwrap_or_default().to_owned();
    if last == name || last.is_empty() { vec![name] } else { vec![name, last] }
}

fn sparse_extent(file: &dyn HostFile) -> Result<SparseExtent> {
    match parse::magic(file)? {
        Some(Magic::Hosted) => parse::hosted_extent(file, parse::hosted_header(file, Offset::ZERO)?),
        Some(Magic::Cowd) => parse::cowd_extent(file),
        Some(Magic::SeSparse) => Err(Error::corrupt(Corrupt::WrongExtentType)),
        None => Err(Error::corrupt(Corrupt::SparseExtent).field("magic number", "unknown", "KDMV or COWD")),
    }
}

struct Vmdk {
    facts: Facts,
    files: Vec<Arc<dyn HostFile>>,
    map: Map,
    parent: Option<ParentReference>,
    /// Where in the first file the descriptor lies.
    descriptor_place: HostSpan,
    /// Why it should not be written to.
    doubt: Option<&'static str>,
    /// A program that wrote to it did not close it.
    is_unclosed: bool,
    /// Changes are noted in a file beside, for backups.
    is_tracked: bool,
}

impl Layer for Vmdk {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn files(&self) -> &[Arc<dyn HostFile>] {
        &self.files
    }

    fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        self.map.map(span)
    }

    fn read_compressed(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.map.read_compressed(at, buf)
    }

    fn parent(&self) -> Option<ParentReference> {
        self.parent.clone()
    }

    fn check_editable(&self) -> Result<()> {
        edit::check_kinds(&self.map)?;
        if let Some(doubt) = self.doubt {
            return Err(
                Error::refused(doubt).hint("open the disk once in the program that uses it, or copy it")
            );
        }
        if self.is_tracked {
            return Err(Error::refused(
                "has change tracking, by which incremental backups are made; it would miss this change",
            )
            .hint("switch change tracking off for the machine, and make the next backup a full one"));
        }
        edit::check_owners(&self.map, &self.files, self.descriptor_place)
    }

    fn check_closed(&self) -> Result<()> {
        if !self.is_unclosed {
            return Ok(());
        }
        Err(Error::refused("was not closed properly by the program that had it open")
            .hint("open the disk once in the program that uses it, or copy it"))
    }

    /// The content ID, by which children see that their parent changed. Its digits are replaced where they are.
    fn renewals(&self, identity_seed: u128) -> Result<Vec<Renewal>> {
        edit::renewals(&*self.files[0], self.descriptor_place, identity_seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_extents_lead_to_their_descriptor() {
        let cases = [
            ("/d/disk-s001.vmdk", Some("disk.vmdk")),
            ("disk-000001-delta.vmdk", Some("disk-000001.vmdk")),
            ("a-flat.VMDK", Some("a.vmdk")),
            ("a-f0012.vmdk", Some("a.vmdk")),
            ("a-sesparse.vmdk", Some("a.vmdk")),
            ("a-s1.vmdk", None),
            ("a.vmdk", None),
            ("-flat.raw", None),
        ];
        for (name, expected) in cases {
            assert_eq!(descriptor_name(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn parents_are_looked_for_where_they_were_and_beside() {
        assert_eq!(parent_names("base.vmdk"), ["base.vmdk"]);
        assert_eq!(parent_names("C:\\VM s\\base.vmdk"), ["C:/VM s/base.vmdk", "base.vmdk"]);
        assert_eq!(parent_names("../x/base.vmdk"), ["../x/base.vmdk", "base.vmdk"]);
    }
}
