//! The check of a whole ext2/3/4 volume.
//!
//! Volumes of more clusters than [`WINDOW_MAX`] take one pass for each so many. Links and parents are compared by sums (see
//! [`Tally`]), and only if these differ is there another pass to name what does.

use std::collections::BTreeMap;
use std::ops::Range;

use block::{Error, Result, read_vec};

use super::attributes;
use super::corrupt::CorruptExt;
use super::directory::Directory;
use super::geometry::{Geometry, Group};
use super::inode::{Inode, Kind, inode_error};
use super::layout::{flags, incompat, ro_compat};
use super::map::{self, Met, Piece};
use super::table;
use crate::volume::Source;
use crate::volume::bits::{Bits, WINDOW_MAX};
use crate::volume::tally::{Side, Tally};
use crate::volume::{Scope, VolumeReport};

/// The most blocks of attributes that inodes share: what they own is then not told apart any more.
const SHARED_MAX: usize = 1 << 20;
/// The inode that lists bad blocks. It is first of all inodes, so what it lists is its own, unless the group's metadata lie there.
const BAD_BLOCKS: u64 = 1;
/// The inodes of bad blocks and of room for descriptors, which refer to what others own.
pub(super) const REFERRING: [u64; 2] = [BAD_BLOCKS, 7];
const ROOT: u64 = 2;

/// Checks the volume.
pub(in crate::volume) fn check(source: &Source, scope: Scope) -> Result<VolumeReport> {
    let geometry = Geometry::open(source)?;
    let mut report = VolumeReport { filesystem: "ext", ..VolumeReport::default() };
    let clusters = geometry.clusters();
    let mut start = 0;
    while start < clusters {
        // Whole groups.
        let per_group = geometry.blocks_per_group / geometry.ratio;
        let end = clusters.min(start + (WINDOW_MAX / per_group).max(1) * per_group);
        let has_names = start == 0 && scope == Scope::All;
        let names = || if has_names { Tally::new() } else { Tally::Ignored };
        let mut pass = Pass::new(&geometry, scope, start..end, names(), names());
        pass.run()?;
        report.used_bytes += pass.owned.count(start..end) * geometry.ratio * geometry.block_bytes;
        if start == 0 {
            (report.files, report.directories) = (pass.files, pass.directories);
            (report.names, report.wide_trees) = (pass.name_count, pass.wide_trees);
            compare_names(&geometry, &pass)?;
        }
        start = end;
    }
    Ok(report)
}

struct Pass<'a> {
    geometry: &'a Geometry,
    scope: Scope,
    owned: Bits,
    /// How many clusters of the groups without a block bitmap are the groups' own.
    blank_groups: BTreeMap<u64, u64>,
    /// Blocks of attributes: how often they say that they are referred to, if they were read, and are.
    shared: BTreeMap<u64, (Option<u32>, u32)>,
    /// How often inodes are named, and say that they are.
    links: Tally,
    /// Which directory is in which.
    parents: Tally,
    files: u64,
    directories: u64,
    name_count: u64,
    wide_trees: u64,
}

/// What an inode turns out to own.
#[derive(Default)]
struct Owned {
    clusters: u64,
    last_cluster: Option<u64>,
    outside: Vec<(u32, u32)>,
    pieces: Vec<Piece>,
}

impl<'a> Pass<'a> {
    fn new(geometry: &'a Geometry, scope: Scope, window: Range<u64>, links: Tally, parents: Tally) -> Self {
        Self {
            geometry,
            scope,
            owned: Bits::none(window),
            blank_groups: BTreeMap::new(),
            shared: BTreeMap::new(),
            links,
            parents,
            files: 0,
            directories: 0,
            name_count: 0,
            wide_trees: 0,
        }
    }

    fn run(&mut self) -> Result<()> {
        let geometry = self.geometry;
        for number in 0..geometry.groups {
            self.own_metadata(number, &geometry.group(number)?)?;
        }
        for number in 0..geometry.groups {
            if !geometry.group(number)?.has_block_bitmap {
                self.blank_groups.insert(number, self.owned.count(self.group_clusters(number)));
            }
        }
        let mut free_inodes = 0;
        for number in 0..geometry.groups {
            free_inodes += self.inodes(number)?;
        }
        let mut free_clusters = 0;
        for number in 0..geometry.groups {
            let group = geometry.group(number)?;
            free_clusters += group.free_clusters;
            self.compare_bitmap(number, &group)?;
        }
        self.totals(free_clusters, free_inodes)?;
        for (block, (stored, counted)) in &self.shared {
            if stored.is_some_and(|stored| stored != *counted) {
                let stored = stored.unwrap_or_default();
                let error =
                    Error::corrupt(CorruptExt::AttributeBlock { block: *block }).at(geometry.at(*block));
                return Err(error.field("refcount", stored, counted));
            }
        }
        Ok(())
    }

    fn totals(&self, free_clusters: u64, free_inodes: u64) -> Result<()> {
        let raw = &self.geometry.raw;
        let hi = if self.geometry.has_incompat(incompat::BIT64) { raw.free_blocks_count_hi.get() } else { 0 };
        let free_blocks = u64::from(hi) << 32 | u64::from(raw.free_blocks_count_lo.get());
        let wanted = free_clusters * self.geometry.ratio;
        if free_blocks != wanted {
            return Err(Error::corrupt(CorruptExt::Superblock).field(
                "free_blocks_count",
                free_blocks,
                wanted,
            ));
        }
        if u64::from(raw.free_inodes_count.get()) != free_inodes {
            return Err(Error::corrupt(CorruptExt::Superblock).field(
                "free_inodes_count",
                raw.free_inodes_count,
                free_inodes,
            ));
        }
        Ok(())
    }

    fn group_clusters(&self, number: u64) -> Range<u64> {
        let start = self.geometry.cluster_of(self.geometry.group_start(number));
        start..start + self.geometry.group_blocks(number).div_ceil(self.geometry.ratio)
    }

    /// The clusters of blocks, at most those of the volume.
    fn clusters(&self, first: u64, count: u64) -> Range<u64> {
        let first_cluster = self.geometry.cluster_of(first);
        first_cluster..self.geometry.cluster_of(first + count.max(1) - 1) + 1
    }

    /// What the group's own metadata take. Under `bigalloc` they may share clusters.
    fn own_metadata(&mut self, number: u64, group: &Group) -> Result<()> {
        let geometry = self.geometry;
        let (base, base_count) = geometry.base(number);
        let mmp = u64::from(number == 0 && geometry.has_incompat(incompat::MMP));
        for (what, first, count) in [
            ("superblock and descriptors", base, base_count),
            ("block bitmap", group.block_bitmap, 1),
            ("inode bitmap", group.inode_bitmap, 1),
            ("inode table", group.inode_table, geometry.table_blocks()),
            ("multiple-mount block", geometry.raw.mmp_block.get(), mmp),
        ] {
            if count == 0 {
                continue;
            }
            let error = || Error::corrupt(CorruptExt::Metadata { what, group: number });
            if !geometry.holds(first, count) {
                return Err(error().field(
                    "place",
                    format!("{count} blocks from {first}"),
                    "within the volume",
                ));
            }
            let clusters = self.clusters(first, count);
            if geometry.ratio > 1 {
                self.owned.join(clusters);
            } else if let Some(cluster) = self.owned.add(clusters) {
                return Err(self.twice(error(), cluster));
            }
        }
        Ok(())
    }

    fn twice(&self, error: Error, cluster: u64) -> Error {
        let block = self.geometry.first_block + cluster * self.geometry.ratio;
        error
            .field("blocks", format!("block {block}, which has an owner"), "blocks of its own")
            .at(self.geometry.at(block))
    }

    /// Checks the inodes of a group; answers how many are free.
    fn inodes(&mut self, number: u64) -> Result<u64> {
        let geometry = self.geometry;
        let group = geometry.group(number)?;
        let count = geometry.inodes_per_group;
        let used = table::used(geometry, number, &group)?;
        let error = |field: &str, found: u64, wanted: String| {
            Error::corrupt(CorruptExt::GroupDescriptor { group: number }).field(field, found, wanted)
        };
        let used_count = used.count(0..count);
        if group.free_inodes != count - used_count {
            return Err(error(
                "free_inodes_count",
                group.free_inodes,
                format!("{}, as its bitmap says", count - used_count),
            ));
        }
        let directories = self.directories;
        let looked_at = (self.scope == Scope::Owners).then_some(&used);
        table::each(geometry, &group, looked_at, |index, bytes, place| {
            let inode_number = number * count + index + 1;
            let result = match used.has(index) {
                true => self.inode(inode_number, bytes),
                false => unused(inode_number, bytes),
            };
            result.map_err(|error| error.at(place))
        })?;
        let found = self.directories - directories;
        if group.directories != found {
            return Err(error("used_dirs_count", group.directories, format!("{found}, as there are")));
        }
        Ok(count - used_count)
    }

    fn inode(&mut self, number: u64, bytes: &[u8]) -> Result<()> {
        let geometry = self.geometry;
        let inode = Inode::parse(geometry, number, bytes)?;
        if inode.kind == Kind::None && number != 1 && bytes.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let mut owned = Owned { outside: inode.own_attributes()?, ..Owned::default() };
        let is_directory = inode.kind == Kind::Directory;
        let is_wide =
            map::walk(geometry, &inode, &mut |met| self.own(&inode, met, is_directory, &mut owned))?;
        self.wide_trees += u64::from(is_wide);
        self.attributes(&inode, &mut owned)?;
        // Blocks of attributes that are not read may say that values lie elsewhere, which count, too.
        let are_all_known = self.scope == Scope::All || inode.attributes.is_none();
        if !REFERRING.contains(&number) && are_all_known {
            check_sectors(geometry, &inode, &owned)?;
        }
        if is_directory {
            self.directories += 1;
            if self.scope == Scope::All {
                self.directory(&inode, &owned.pieces)?;
            }
        } else {
            self.files += 1;
        }
        let is_named = !geometry.is_own(number) && !inode.has(flags::EA_INODE);
        let links = inode.raw.links_count.get();
        if is_named && links == 0 {
            return Err(inode.error().field("links_count", 0, "1 or more: it is in use"));
        }
        let named = if number == ROOT || !is_named {
            0
        } else if is_directory {
            1
        } else {
            u32::from(links)
        };
        if named > 0 {
            self.links.tell(Side::File, number, &fact(&[number, self.type_of(&inode)]), named);
        }
        Ok(())
    }

    /// What entries say of an inode's type; nothing on volumes without that.
    fn type_of(&self, inode: &Inode<'_>) -> u64 {
        if self.geometry.has_incompat(incompat::FILETYPE) { u64::from(inode.kind.in_entries()) } else { 0 }
    }

    fn own(&mut self, inode: &Inode<'_>, met: Met, keep: bool, owned: &mut Owned) -> Result<()> {
        let (first, count) = match met {
            Met::Node(block) => (block, 1),
            Met::Piece(piece) => (piece.start, piece.count),
        };
        if let (Met::Piece(piece), true) = (&met, keep) {
            owned.pieces.push(*piece);
        }
        let mut clusters = self.clusters(first, count);
        // Under bigalloc two extents of a file may lie in one cluster.
        if owned.last_cluster == Some(clusters.start)
            && self.geometry.ratio > 1
            && matches!(met, Met::Piece(_))
        {
            clusters.start += 1;
        }
        if let Met::Piece(_) = met {
            owned.last_cluster = Some(clusters.end - 1);
        }
        owned.clusters += clusters.end.saturating_sub(clusters.start);
        if REFERRING.contains(&inode.number) {
            // Their blocks of pointers are their own, unless they are in what they refer to. Room for descriptors is metadata of
            // its group.
            if matches!(met, Met::Node(_)) || inode.number == BAD_BLOCKS {
                self.owned.join(clusters);
            }
            return Ok(());
        }
        match self.owned.add(clusters) {
            None => Ok(()),
            Some(cluster) => Err(self.twice(inode.error(), cluster)),
        }
    }

    fn attributes(&mut self, inode: &Inode<'_>, owned: &mut Owned) -> Result<()> {
        let Some(block) = inode.attributes else { return Ok(()) };
        owned.clusters += 1;
        let refcount = match self.scope {
            Scope::Owners => None,
            Scope::All => {
                let found = attributes::read(self.geometry, block, inode.number)?;
                owned.outside.extend(&found.outside);
                Some(found.refcount)
            }
        };
        if let Some((_, counted)) = self.shared.get_mut(&block) {
            *counted += 1;
            return Ok(());
        }
        if self.shared.len() >= SHARED_MAX {
            return Err(Error::unsupported(format!(
                "ext volume with more than {SHARED_MAX} attribute blocks"
            )));
        }
        if !self.geometry.holds(block, 1) {
            return Err(inode.error().field("attribute block", block, "within the volume"));
        }
        self.shared.insert(block, (refcount, 1));
        match self.owned.add(self.clusters(block, 1)) {
            None => Ok(()),
            Some(cluster) => Err(self.twice(inode.error(), cluster)),
        }
    }

    fn directory(&mut self, inode: &Inode<'_>, pieces: &[Piece]) -> Result<()> {
        let geometry = self.geometry;
        let block_count =
            if inode.has(flags::INLINE_DATA) { 0 } else { inode.size_bytes().div_ceil(geometry.block_bytes) };
        let mut directory = Directory::new(geometry, inode, block_count)?;
        let mut subdirectories = 0u64;
        let mut each = |entry: &super::directory::Entry<'_>| self.entry(inode, entry, &mut subdirectories);
        if inode.has(flags::INLINE_DATA) {
            directory.inline(&mut each)?;
        } else {
            let read = |logical: u64| map::read_block(geometry, inode, pieces, logical);
            directory.tree(&read)?;
            for logical in 0..block_count {
                directory.block(logical, &read(logical)?, &mut each)?;
            }
            directory.finish()?;
        }
        let links = u64::from(inode.raw.links_count.get());
        // Past 65000 the kernel gives up counting.
        let gave_up = links == 1 && geometry.has_ro_compat(ro_compat::DIR_NLINK);
        if links != subdirectories + 2 && !gave_up {
            return Err(inode.error().field("links_count", links, subdirectories + 2));
        }
        Ok(())
    }

    fn entry(
        &mut self,
        inode: &Inode<'_>,
        entry: &super::directory::Entry<'_>,
        subdirectories: &mut u64,
    ) -> Result<()> {
        let geometry = self.geometry;
        let number = u64::from(entry.inode);
        let error = |field: &str, found: u64, wanted: String| {
            let name = String::from_utf8_lossy(entry.name).into_owned();
            Error::corrupt(CorruptExt::Directory { inode: inode.number }).field(
                format!("{field} of {name:?}"),
                found,
                wanted,
            )
        };
        if number > u64::from(geometry.raw.inodes_count.get())
            || (geometry.is_own(number) && inode.number != number)
        {
            return Err(error("inode", number, "that of a file".into()));
        }
        let has_types = geometry.has_incompat(incompat::FILETYPE);
        match entry.name {
            b"." if number != inode.number => Err(error("inode", number, inode.number.to_string())),
            b".." if inode.number == ROOT && number != ROOT => Err(error("inode", number, ROOT.to_string())),
            b"." | b".." if has_types && entry.file_type != 2 => {
                Err(error("type", entry.file_type.into(), "2".into()))
            }
            b"." => Ok(()),
            b".." => {
                if inode.number != ROOT {
                    self.parents.tell(Side::File, inode.number, &fact(&[inode.number, number]), 1);
                }
                Ok(())
            }
            _ => {
                self.name_count += 1;
                let is_directory = if has_types { entry.file_type == 2 } else { self.is_directory(number)? };
                if is_directory {
                    *subdirectories += 1;
                    self.parents.tell(Side::Directory, number, &fact(&[number, inode.number]), 1);
                }
                self.links.tell(Side::Directory, number, &fact(&[number, entry.file_type.into()]), 1);
                Ok(())
            }
        }
    }

    /// Whether an inode is a directory, on volumes whose entries do not say.
    fn is_directory(&self, number: u64) -> Result<bool> {
        let geometry = self.geometry;
        let index = number.checked_sub(1).ok_or_else(|| inode_error(number))?;
        let group = geometry.group(index / geometry.inodes_per_group)?;
        let at =
            geometry.at(group.inode_table).plus(index % geometry.inodes_per_group * geometry.inode_bytes);
        let mode = read_vec(&geometry.source, at, 2, "ext inode")?;
        Ok(mode[1] >> 4 == 4)
    }

    /// A group's bitmap must have set what has an owner, and nothing else; so must its count of free clusters.
    fn compare_bitmap(&mut self, number: u64, group: &Group) -> Result<()> {
        let geometry = self.geometry;
        let clusters = self.group_clusters(number);
        if clusters.start < self.owned.window().start || clusters.end > self.owned.window().end {
            return Ok(());
        }
        let mut wanted = Bits::none(clusters.clone());
        wanted.join_from(&self.owned);
        let owned_count = wanted.count(clusters.clone());
        let error = |what: String| Error::corrupt(what);
        if group.has_block_bitmap {
            let per_group = geometry.blocks_per_group / geometry.ratio;
            let at = geometry.at(group.block_bitmap);
            let bytes = read_vec(&geometry.source, at, geometry.block_bytes, "ext block bitmap")?;
            let covered = usize::try_from(per_group / 8).expect("a block at most");
            geometry.check_bitmap("block", number, &bytes[..covered], group.block_bitmap_checksum)?;
            let set = Bits::of_bytes(clusters.clone(), &bytes);
            if let Some(cluster) = wanted.first_difference(&set) {
                let block = geometry.first_block + cluster * geometry.ratio;
                let (found, wanted) = if set.has(cluster) {
                    ("set", "clear: it has no owner")
                } else {
                    ("clear", "set: it has an owner")
                };
                let error = error(format!("ext block bitmap of group {number}"));
                return Err(error
                    .field(format!("bit of block {block}"), found, wanted)
                    .at(geometry.at(block)));
            }
            padding(number, &bytes, clusters.end - clusters.start)?;
        } else if self.blank_groups.get(&number) != Some(&owned_count) {
            let error = error(format!("ext group descriptor {number}"));
            return Err(error.field("flags", "a block bitmap never written", "one: files have blocks there"));
        }
        let free = clusters.end - clusters.start - owned_count;
        if group.free_clusters != free {
            let error = error(format!("ext group descriptor {number}"));
            return Err(error.field(
                "free_blocks_count",
                group.free_clusters,
                format!("{free}, as its bitmap says"),
            ));
        }
        Ok(())
    }
}

/// What lies behind a bitmap's last bit is set.
fn padding(number: u64, bytes: &[u8], count: u64) -> Result<()> {
    let all = bytes.len() as u64 * 8;
    let set = Bits::of_bytes(0..all, bytes);
    if set.count(count..all) == all - count {
        return Ok(());
    }
    Err(Error::corrupt(CorruptExt::Bitmap { what: "block", group: number }).field(
        "bits past its end",
        "clear",
        "set",
    ))
}

/// An inode that its bitmap calls unused has no links.
fn unused(number: u64, bytes: &[u8]) -> Result<()> {
    let links = u16::from_le_bytes([bytes[26], bytes[27]]);
    let mode = u16::from_le_bytes([bytes[0], bytes[1]]);
    if links == 0 || mode == 0 {
        return Ok(());
    }
    Err(inode_error(number).field("bit of the inode bitmap", "clear", "set: it is in use"))
}

/// `i_blocks` counts whole clusters, those of maps, of attributes and of their values elsewhere.
fn check_sectors(geometry: &Geometry, inode: &Inode<'_>, owned: &Owned) -> Result<()> {
    let cluster_bytes = geometry.ratio * geometry.block_bytes;
    let outside: u64 = owned.outside.iter().map(|(_, bytes)| u64::from(*bytes).div_ceil(cluster_bytes)).sum();
    let wanted = (owned.clusters + outside) * (cluster_bytes / 512);
    let found = inode.sectors(geometry);
    if found == wanted {
        return Ok(());
    }
    Err(inode.error().field("blocks", format!("{found} sectors"), format!("{wanted}, as it owns")))
}

fn fact(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn compare_names(geometry: &Geometry, pass: &Pass<'_>) -> Result<()> {
    let (links, parents) = (pass.links.differing_bucket(), pass.parents.differing_bucket());
    if links.is_none() && parents.is_none() {
        return Ok(());
    }
    let tally = |bucket: Option<u64>| bucket.map_or(Tally::Ignored, Tally::of_bucket);
    let mut again = Pass::new(geometry, pass.scope, 0..0, tally(links), tally(parents));
    again.run()?;
    let word = |fact: &[u8], at: usize| u64::from_le_bytes(fact[at..at + 8].try_into().expect("8 bytes"));
    let facts = again.links.differing_facts();
    if let Some((fact, balance)) = facts.first() {
        let (number, kind) = (word(fact, 0), word(fact, 8));
        // One inode under two types is a name of the wrong one.
        let other = facts.iter().skip(1).find(|(other, _)| word(other, 0) == number);
        if let Some((other, _)) = other {
            let (found, wanted) = if *balance < 0 { (kind, word(other, 8)) } else { (word(other, 8), kind) };
            return Err(inode_error(number).field("type in its directory", found, wanted));
        }
        let found = if *balance > 0 {
            format!("{balance} fewer than it counts")
        } else {
            format!("{} more than it counts", -balance)
        };
        return Err(inode_error(number).field("names in directories", found, "as many as its links_count"));
    }
    let facts = again.parents.differing_facts();
    match facts.iter().find(|(_, balance)| *balance > 0).or(facts.first()) {
        Some((fact, _)) => {
            let error = Error::corrupt(CorruptExt::Directory { inode: word(fact, 0) });
            Err(error.field("inode of \"..\"", word(fact, 8), "the directory that names it"))
        }
        None => Err(Error::corrupt(CorruptExt::NamesAndInodes)),
    }
}
