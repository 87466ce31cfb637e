//! All files of a volume: one pass over `$MFT`, record by record; a file's extension records are read when its base
//! record comes.
//!
//! Invariants:
//! - whatever a record holds, the pass goes on: what is wrong with a file is one doubt about it;
//! - memory is that of one file and a few pieces of `$MFT`, and work grows with the records, whatever lists of attributes
//!   claim.
//!
//! Absent on purpose: contents of files, indexes of directories other than those of `$Extend` (each file knows its own
//! names), and a comparison with `$Bitmap`, which is the used map's.

use std::collections::BTreeMap;

use block::{Error, ErrorKind, ReadAt, Result};
use extent::{VolumeOffset, VolumeSpan};

use super::bitmap::{Bitmap, Words};
use super::gather::Gathered;
use super::layout::{
    ATTR_ATTRIBUTE_LIST, ATTR_REPARSE_POINT, FILE_RECORD_FLAGS_OFFSET, MAGIC_FILE, RECORD_IN_USE,
    RECORD_IS_DIRECTORY, REPARSE_AF_UNIX, REPARSE_LX_BLK, REPARSE_LX_CHR, REPARSE_LX_FIFO,
    REPARSE_LX_SYMLINK, REPARSE_MOUNT_POINT, REPARSE_SYMLINK,
};
use super::mft::{ListEntry, Mft, OwnedRecord};
use super::names;
use super::own_files::OwnFiles;
use super::record::{Record, RecordNumber, Value};
use super::scan::RESERVED_RECORDS;
use crate::files::{FileId, FileKind, FileName, FileStream, FileVisitor, StreamName};

/// Shows `visitor` all files.
pub(super) fn scan(mft: &Mft, visitor: &mut dyn FileVisitor) -> Result<()> {
    gather(mft, &mut Shown(visitor), Gathered::default())
}

/// Who takes what a scan gathers.
pub(super) trait Sink {
    /// A stream of `file`, and the number that it has there if it has more than its length.
    fn stream(&mut self, stream: FileStream<'_>, index: Option<usize>, file: &Gathered);

    /// A name.
    fn name(&mut self, name: FileName<'_>);

    /// What is wrong with a file, or with the volume.
    fn doubt(&mut self, file: Option<FileId>, why: String);
}

/// Shows what is gathered.
struct Shown<'a>(&'a mut dyn FileVisitor);

impl Sink for Shown<'_> {
    fn stream(&mut self, stream: FileStream<'_>, index: Option<usize>, file: &Gathered) {
        self.0.stream(stream, index.map_or(&[], |index| file.extents(&file.streams[index])));
    }

    fn name(&mut self, name: FileName<'_>) {
        self.0.name(name);
    }

    fn doubt(&mut self, file: Option<FileId>, why: String) {
        self.0.doubt(file, why);
    }
}

/// Gives `sink` all files, each gathered in `file`.
pub(super) fn gather(mft: &Mft, sink: &mut dyn Sink, file: Gathered) -> Result<()> {
    let record_count =
        mft.initialized_record_count().min(mft.geometry.size_bytes / mft.geometry.record_bytes);
    let scan = Scan {
        mft,
        sink,
        records_in_use: None,
        own_files: OwnFiles::default(),
        file,
        why: None,
        record_count,
        list_bytes_left: record_count * mft.geometry.record_bytes * 2,
    };
    scan.run()
}

/// Calls `each` with the free spans that `clusters` shows.
pub(super) fn each_free_span(mft: &Mft, clusters: &Bitmap, each: &mut dyn FnMut(VolumeSpan)) -> Result<()> {
    let (mut at, mut free_from) = (0, None);
    let mut show = |from: u64, end: u64| each(mft.geometry.span_of(from, end - from));
    clusters.each_run(0, clusters.bit_count, |is_used, end| {
        // Runs also end where a piece of the bitmap does.
        if !is_used {
            free_from = free_from.or(Some(at));
        } else if let Some(from) = free_from.take() {
            show(from, at);
        }
        at = end;
    })?;
    if let Some(from) = free_from {
        show(from, at);
    }
    Ok(())
}

struct Scan<'a> {
    mft: &'a Mft,
    sink: &'a mut dyn Sink,
    records_in_use: Option<Bitmap>,
    own_files: OwnFiles,
    file: Gathered,
    /// The first thing that is wrong with the file at hand.
    why: Option<String>,
    record_count: u64,
    /// How long attribute lists may be in sum. What is listed takes hardly less of a record than of its list.
    list_bytes_left: u64,
}

impl Scan<'_> {
    fn run(mut self) -> Result<()> {
        // Told even if its record is broken, so that paths of all others begin with it.
        let root = FileId(RecordNumber::ROOT.0);
        self.sink.name(FileName { file: root, parent: root, name: b"" });
        if self.record_count < self.mft.initialized_record_count() {
            self.sink.doubt(None, "$MFT is larger than the volume".into());
        }
        match Bitmap::of_records(self.mft) {
            Ok(bitmap) => self.records_in_use = Some(bitmap),
            Err(error) => self.doubt(error)?,
        }
        let sink = &mut *self.sink;
        self.own_files.add_below_extend(self.mft, |error| {
            sink.doubt(None, the_disks_fault(error)?);
            Ok(())
        })?;
        let (mft, count) = (self.mft, self.record_count);
        mft.each_piece(count, |piece, read| match read {
            Ok(bytes) => self.scan_piece(piece.start, bytes),
            Err(error) => self.doubt(error),
        })
    }

    /// Tells what is wrong with the volume.
    fn doubt(&mut self, error: Error) -> Result<()> {
        self.sink.doubt(None, the_disks_fault(error)?);
        Ok(())
    }

    /// Remembers what is wrong with the file at hand.
    fn note(&mut self, error: Error) -> Result<()> {
        let why = the_disks_fault(error)?;
        self.why.get_or_insert(why);
        Ok(())
    }

    fn scan_piece(&mut self, first: u64, piece: &mut [u8]) -> Result<()> {
        let record_bytes = usize::try_from(self.mft.geometry.record_bytes).expect("at most 4096");
        let count = (piece.len() / record_bytes) as u64;
        let in_use =
            match self.records_in_use.as_ref().map(|bitmap| bitmap.bytes(first / 8, count.div_ceil(8))) {
                None => None,
                Some(Ok(bytes)) => Some(Words::new(&bytes, first)),
                Some(Err(error)) => {
                    self.doubt(error)?;
                    None
                }
            };
        for (number, bytes) in (first..).zip(piece.chunks_exact_mut(record_bytes)) {
            let is_set = in_use.as_ref().map(|words| words.get(number));
            self.scan_record(RecordNumber(number), bytes, is_set)?;
        }
        Ok(())
    }

    /// Looks at a record, of which `$MFT`'s bitmap says whether it is in use, if that can be read.
    fn scan_record(&mut self, number: RecordNumber, bytes: &mut [u8], is_set: Option<bool>) -> Result<()> {
        if !says_in_use(bytes) && is_set != Some(true) {
            return Ok(());
        }
        self.why = None;
        let at = self.mft.record_offset(number);
        match Record::parse(bytes, number, at) {
            Ok(record) if !record.is_in_use() => {
                if number.0 >= RESERVED_RECORDS {
                    let flags = format!("{:#x}", record.flags());
                    self.note(record.error().field("flags", flags, "in use, as $MFT's bitmap says"))?;
                }
            }
            Ok(record) => {
                if is_set == Some(false) {
                    self.note(record.error().field("flags", "in use", "free, as $MFT's bitmap says"))?;
                }
                if record.base().is_none() {
                    self.scan_file(&record)?;
                }
            }
            Err(error) => self.note(error)?,
        }
        if let Some(why) = self.why.take() {
            self.sink.doubt(Some(FileId(number.0)), why);
        }
        Ok(())
    }

    fn scan_file(&mut self, record: &Record<'_>) -> Result<()> {
        self.file.clear();
        match self.attribute_list(record) {
            Ok(None) => self.take_own(record, |_| true)?,
            Ok(Some(entries)) => {
                self.take_own(record, |kind| kind == ATTR_ATTRIBUTE_LIST)?;
                self.take_listed(record, &entries)?;
            }
            Err(error) => {
                self.note(error)?;
                self.take_own(record, |_| true)?;
            }
        }
        if let Some((stream, mapped_bytes)) = self.file.incomplete(&self.mft.geometry) {
            let field = format!("clusters of attribute {:#x}", stream.kind);
            let expected = format!("{} bytes", stream.size_bytes);
            self.note(record.error().field(field, format!("{mapped_bytes} bytes"), expected))?;
        }
        self.show(record)
    }

    /// The attributes that the file has in all its records, by type, name and position; `None` if all are in the
    /// base record.
    fn attribute_list(&mut self, record: &Record<'_>) -> Result<Option<Vec<ListEntry>>> {
        let Some(attribute) = record.find(ATTR_ATTRIBUTE_LIST, "")? else { return Ok(None) };
        let len_bytes = match attribute.value()? {
            Value::Resident(value) => value.len() as u64,
            Value::NonResident(mapped) => mapped.data_bytes,
        };
        self.list_bytes_left = self.list_bytes_left.checked_sub(len_bytes).ok_or_else(|| {
            attribute.error("size", len_bytes, "with all other lists, less than what they list")
        })?;
        let mut entries = self.mft.attribute_list(record)?;
        entries.sort_by(|one, other| {
            (one.kind, &one.name, one.lowest_vcn).cmp(&(other.kind, &other.name, other.lowest_vcn))
        });
        Ok(Some(entries))
    }

    /// Takes attributes of the base record, those of the kinds that are wanted.
    fn take_own(&mut self, record: &Record<'_>, is_wanted: impl Fn(u32) -> bool) -> Result<()> {
        for attribute in record.attributes() {
            let taken = attribute.and_then(|attribute| match is_wanted(attribute.kind()) {
                true => self.file.take(&attribute, &self.mft.geometry),
                false => Ok(()),
            });
            if let Err(error) = taken {
                self.note(error)?;
            }
        }
        Ok(())
    }

    fn take_listed(&mut self, record: &Record<'_>, entries: &[ListEntry]) -> Result<()> {
        let mut extensions: BTreeMap<RecordNumber, Option<OwnedRecord>> = BTreeMap::new();
        for entry in entries {
            let number = entry.holder.number;
            if number != record.number() && !extensions.contains_key(&number) {
                let extension = match self.mft.listed_record(record, entry) {
                    Ok(extension) => Some(extension),
                    Err(error) => {
                        self.note(error)?;
                        None
                    }
                };
                extensions.insert(number, extension);
            }
            let holder = match extensions.get(&number) {
                None => *record,
                Some(Some(extension)) => extension.view(),
                Some(None) => continue,
            };
            let taken =
                entry.find_in(&holder).and_then(|attribute| self.file.take(&attribute, &self.mft.geometry));
            if let Err(error) = taken {
                self.note(error)?;
            }
        }
        Ok(())
    }

    fn show(&mut self, record: &Record<'_>) -> Result<()> {
        let is_directory = record.flags() & RECORD_IS_DIRECTORY != 0;
        let kind = self.kind(record.number(), is_directory)?;
        let Self { file, sink, .. } = self;
        let id = FileId(record.number().0);
        let main = file.main_stream(is_directory);
        let mut stream =
            FileStream { file: id, kind, name: StreamName::Main, size_bytes: 0, is_inline: true };
        if main.is_none() {
            sink.stream(FileStream { size_bytes: file.inline_bytes(is_directory), ..stream }, None, file);
        }
        let mut text = Vec::new();
        let others = (0..file.streams.len()).filter(|index| Some(*index) != main);
        for index in main.into_iter().chain(others) {
            let gathered = &file.streams[index];
            (stream.size_bytes, stream.is_inline) = (gathered.size_bytes, gathered.is_inline);
            names::set_stream_name(&mut text, gathered.kind, file.name(gathered));
            let name = if Some(index) == main { StreamName::Main } else { StreamName::Named(&text) };
            sink.stream(FileStream { name, ..stream }, Some(index), file);
        }
        if record.number() == RecordNumber::ROOT {
            return Ok(());
        }
        for (parent, utf16) in file.names() {
            text.clear();
            names::push_utf8(&mut text, utf16);
            sink.name(FileName { file: id, parent: FileId(parent.0), name: &text });
        }
        Ok(())
    }

    fn kind(&mut self, number: RecordNumber, is_directory: bool) -> Result<FileKind> {
        if self.own_files.contain(number) {
            return Ok(FileKind::Metadata);
        }
        let tag = match self.reparse_tag() {
            Ok(tag) => tag,
            Err(error) => {
                self.note(error)?;
                None
            }
        };
        Ok(match tag {
            Some(REPARSE_SYMLINK | REPARSE_MOUNT_POINT | REPARSE_LX_SYMLINK) => FileKind::Symlink,
            Some(REPARSE_AF_UNIX | REPARSE_LX_FIFO | REPARSE_LX_CHR | REPARSE_LX_BLK) => FileKind::Other,
            _ if is_directory => FileKind::Directory,
            _ => FileKind::Regular,
        })
    }

    /// What kind of reparse point the file is. A long one lies in clusters, and is read.
    fn reparse_tag(&self) -> Result<Option<u32>> {
        let mapped = self.file.stream_of(ATTR_REPARSE_POINT);
        let Some(first) = mapped.and_then(|stream| self.file.extents(stream).first()) else {
            return Ok(self.file.reparse_tag);
        };
        let mut tag = [0; 4];
        self.mft.source.read_at(VolumeOffset::new(first.span.start().get()), &mut tag)?;
        Ok(Some(u32::from_le_bytes(tag)))
    }
}

/// Whether a record that was not yet looked at closer says that it is in use.
pub(super) fn says_in_use(bytes: &[u8]) -> bool {
    let flag = RECORD_IN_USE.to_le_bytes()[0];
    bytes.starts_with(&MAGIC_FILE) && bytes[FILE_RECORD_FLAGS_OFFSET] & flag != 0
}

/// The message of an error that the disk is to blame for; any other stays one.
fn the_disks_fault(error: Error) -> Result<String> {
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::Unsupported => Ok(error.to_string()),
        _ => Err(error),
    }
}
