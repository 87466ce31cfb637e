//! The guest's files on an open disk: listed, found by name, read.

use std::ffi::{c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;

use block::{Error, ReadAt, Result};
use extent::{File, FileOffset};
use filesystem::{CatalogStream, FileKind as Kind, StreamName};
use leandisk::name_disk;

use crate::answer::Place;
use crate::disk::{Disk, DiskHandle, volume_index, with_disk};
use crate::each::Each;
use crate::error::{ErrorHandle, guarded};
use crate::options;
use crate::registry::Registry;

static FILES: Registry<OpenFile> = Registry::new();

/// An open file of a guest, or another stream of it. Threads may use it at once.
pub struct FileHandle(());

/// What a handle of a file stands for.
struct OpenFile {
    contents: Box<dyn ReadAt<File>>,
    disk: std::path::PathBuf,
}

/// What a file is to its guest.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// A file with contents.
    Regular = 1,
    /// A directory, the root included.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// One that the file system keeps for itself.
    Metadata = 4,
    /// A device, a pipe, a socket.
    Other = 5,
}

impl From<Kind> for FileKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Regular => Self::Regular,
            Kind::Directory => Self::Directory,
            Kind::Symlink => Self::Symlink,
            Kind::Metadata => Self::Metadata,
            Kind::Other => Self::Other,
        }
    }
}

/// A file of a guest, or another stream of it. A later version may have more fields at its end.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FileStruct {
    /// By which leandisk_file_open knows it, as long as the disk is open.
    pub index: u64,
    /// The file's number on its volume.
    pub number: u64,
    /// Its path on its volume by its first name, from the root: "/folder/file". Of another stream than the main one with its name behind
    /// a colon. Untrusted bytes, mostly UTF-8, with a NUL behind them; good until the function returns.
    pub path: *const c_char,
    /// How many bytes that are, without the NUL: names on a broken volume may have one in them, too.
    pub path_len: usize,
    /// How long its contents are.
    pub size_bytes: u64,
    /// How much of the volume it has.
    pub allocated_bytes: u64,
    /// In how many pieces, as the file system keeps them.
    pub extent_count: u32,
    /// LEANDISK_FILE_KIND_...
    pub kind: u32,
    /// Whether it is what reading the file gives, and no other stream.
    pub is_main: c_int,
    /// Not used. 0.
    pub reserved: c_int,
}

/// Calls `each` with the files of a volume (counted from 1), and their further streams. An answer other than 0 ends that, with
/// LEANDISK_KIND_INTERRUPTED. If some files are not understood, all others are shown before the call ends with
/// LEANDISK_KIND_CORRUPT.
///
/// # Safety
/// The pointers are null or lead to what the header says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leandisk_disk_files(
    disk: *const DiskHandle,
    volume: u32,
    each: Option<unsafe extern "C" fn(context: *mut c_void, file: *const FileStruct) -> c_int>,
    context: *mut c_void,
) -> *mut ErrorHandle {
    with_disk(disk, |disk| {
        // SAFETY: as the caller promises.
        let each = unsafe { Each::new(each, context) }?;
        show_files(disk, volume_index(volume)?, &each)
    })
}

fn show_files(disk: &Disk, volume: usize, each: &Each<FileStruct>) -> Result<()> {
    let catalog = disk.catalog(volume)?;
    let mut paths = catalog.walk_paths();
    let mut path = Vec::new();
    for (index, stream) in (0..).zip(catalog.streams()) {
        path.clear();
        paths.push_path(&stream, &mut path);
        path.push(0);
        each.show(&described(index, &stream, &path))?;
    }
    match catalog.doubts() {
        [] => Ok(()),
        [first, ..] => {
            let count = catalog.doubt_count();
            Err(Error::corrupt(format!("{count} of its files are not listed in full; first: {}", first.why)))
        }
    }
}

/// `path` ends with a NUL.
fn described(index: u64, stream: &CatalogStream<'_>, path: &[u8]) -> FileStruct {
    FileStruct {
        index,
        number: stream.stream.file.0,
        path: path.as_ptr().cast(),
        path_len: path.len() - 1,
        size_bytes: stream.stream.size_bytes,
        allocated_bytes: stream.extents().map(|extent| extent.span.len_bytes()).sum(),
        extent_count: stream.extent_count(),
        kind: FileKind::from(stream.stream.kind) as u32,
        is_main: c_int::from(stream.stream.name == StreamName::Main),
        reserved: 0,
    }
}

/// Finds a file by the path that leandisk_disk_files shows, byte for byte; upper and lower case differ. One that is not there is
/// LEANDISK_KIND_INVALID.
///
/// # Safety
/// The pointers are null or lead to what the header says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leandisk_file_find(
    disk: *const DiskHandle,
    volume: u32,
    path: *const c_char,
    index: *mut u64,
) -> *mut ErrorHandle {
    with_disk(disk, |disk| {
        // SAFETY: as the caller promises.
        let mut place = unsafe { Place::new(index, u64::MAX, "index") }?;
        // SAFETY: as the caller promises.
        let path = unsafe { options::path(path, "path") }?;
        place.put(find(disk, volume_index(volume)?, path.as_os_str().as_bytes())?);
        Ok(())
    })
}

fn find(disk: &Disk, volume: usize, wanted: &[u8]) -> Result<u64> {
    let catalog = disk.catalog(volume)?;
    let mut paths = catalog.walk_paths();
    let mut path = Vec::new();
    for (index, stream) in (0..).zip(catalog.streams()) {
        path.clear();
        paths.push_path(&stream, &mut path);
        if path == wanted {
            return Ok(index);
        }
    }
    Err(Error::invalid("no such file on the volume").path(String::from_utf8_lossy(wanted)))
}

/// Opens a file by its index, to be closed by leandisk_file_close. Files whose bytes are not what the guest reads (compressed,
/// encrypted, kept elsewhere), and all files of a volume in doubt, are LEANDISK_KIND_REFUSED or LEANDISK_KIND_CORRUPT.
///
/// # Safety
/// The pointers are null or lead to what the header says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leandisk_file_open(
    disk: *const DiskHandle,
    volume: u32,
    index: u64,
    file: *mut *mut FileHandle,
) -> *mut ErrorHandle {
    with_disk(disk, |disk| {
        // SAFETY: as the caller promises.
        let mut place = unsafe { Place::new(file, null_mut(), "file") }?;
        let contents = open(disk, volume_index(volume)?, index)?;
        place.put(FILES.insert(OpenFile { contents, disk: disk.path().to_owned() }));
        Ok(())
    })
}

fn open(disk: &Disk, volume: usize, index: u64) -> Result<Box<dyn ReadAt<File>>> {
    let catalog = disk.catalog(volume)?;
    let count = catalog.streams().len();
    let known = usize::try_from(index).ok().filter(|index| *index < count);
    let none = || Error::invalid("the volume's files").field("index", index, format!("below {count}"));
    let stream = catalog.get(known.ok_or_else(none)?).stream;
    disk.filesystem(volume)?.open_stream(stream.file, stream.name)
}

/// Reads from `offset` of a file into `buffer`. Less than `len` bytes come only at the file's end, and none behind it; how many came is put
/// at `read_len`.
///
/// # Safety
/// The pointers are null or lead to what the header says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leandisk_file_read(
    file: *const FileHandle,
    offset: u64,
    buffer: *mut c_void,
    len: usize,
    read_len: *mut usize,
) -> *mut ErrorHandle {
    guarded(|| {
        let file = FILES.get(file).ok_or_else(not_open)?;
        // SAFETY: as the caller promises.
        let mut place = unsafe { Place::new(read_len, 0, "read_len") }?;
        let left = file.contents.len_bytes().saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(len);
        if len == 0 {
            return Ok(());
        }
        // SAFETY: as the caller promises.
        let buffer = unsafe { writable(buffer, len) }?;
        let read = file.contents.read_at(FileOffset::new(offset), buffer);
        read.map_err(|error| name_disk(error, &file.disk))?;
        place.put(len);
        Ok(())
    })
}

/// The caller's buffer, as far as it will be filled.
///
/// # Safety
/// `buffer` is null or leads to `len` bytes that nobody else uses until the caller's call returns.
unsafe fn writable<'a>(buffer: *mut c_void, len: usize) -> Result<&'a mut [u8]> {
    if buffer.is_null() {
        return Err(options::is_null("buffer"));
    }
    if isize::try_from(len).is_err() {
        return Err(Error::invalid("a buffer").field("len", len, "what memory can hold"));
    }
    let buffer = buffer.cast::<u8>();
    // SAFETY: so many bytes are the caller's to give, as it promises. They are written first, since C may never have done that.
    unsafe {
        buffer.write_bytes(0, len);
        Ok(std::slice::from_raw_parts_mut(buffer, len))
    }
}

/// Closes a file. Null is fine; what was closed before is LEANDISK_KIND_INVALID.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn leandisk_file_close(file: *mut FileHandle) -> *mut ErrorHandle {
    guarded(|| match file.is_null() || FILES.remove(file).is_some() {
        true => Ok(()),
        false => Err(not_open()),
    })
}

fn not_open() -> Error {
    Error::invalid("the file is not open: its handle is null, was closed, or is none")
}
