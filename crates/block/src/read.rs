//! The traits of files and of anything else that can be read by position.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use extent::{DeviceOffset, Extent, ExtentSet, Host, HostOffset, HostSpan, Offset, Space, Span};
use zerocopy::FromBytes;

use crate::{Error, Result};

/// Bytes of the space `S` that can be read at any position, from any thread.
pub trait ReadAt<S: Space>: Send + Sync {
    /// Number of bytes there are.
    fn len_bytes(&self) -> u64;

    /// Fills `buf` with the bytes from `at`. Reading past the end is an error, never a short read.
    fn read_at(&self, at: Offset<S>, buf: &mut [u8]) -> Result<()>;
}

impl<S: Space, T: ReadAt<S> + ?Sized> ReadAt<S> for Arc<T> {
    fn len_bytes(&self) -> u64 {
        (**self).len_bytes()
    }

    fn read_at(&self, at: Offset<S>, buf: &mut [u8]) -> Result<()> {
        (**self).read_at(at, buf)
    }
}

impl<S: Space, T: ReadAt<S> + ?Sized> ReadAt<S> for &T {
    fn len_bytes(&self) -> u64 {
        (**self).len_bytes()
    }

    fn read_at(&self, at: Offset<S>, buf: &mut [u8]) -> Result<()> {
        (**self).read_at(at, buf)
    }
}

/// What the host's file system says of a span of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostState {
    /// Not allocated (or allocated and never written): reads as zeros without touching the storage.
    Hole,
    /// Holds data.
    Data,
}

/// The unit in which a raw image gives space back: a block of nearly every host file system.
pub const HOST_BLOCK_BYTES: u64 = 4096;

/// A piece of a host file, and where it lies on the device under the host's file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostExtent {
    /// Where in the file.
    pub span: HostSpan,
    /// Where its first byte lies on the device.
    pub device: DeviceOffset,
    /// Whether it was ever written; an extent that was not reads as zeros.
    pub is_written: bool,
}

/// What changes when a file's contents do. Taken before and after, to see that nobody wrote in between. A block device has no
/// such times: only its size is in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fingerprint {
    /// Length.
    pub len_bytes: u64,
    /// When contents were last changed, in nanoseconds since 1970. Whoever may write the file can set it back.
    pub modified_ns: i128,
    /// When contents or attributes were last changed, in nanoseconds since 1970. The kernel alone sets it.
    pub changed_ns: i128,
    /// What [`HostFile::identity`] answers.
    pub identity: (u64, u64),
}

/// Somebody else who uses a host file or block device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// Whether they write to it, or may at any moment: what is read meanwhile may not fit together, and may lack what is still
    /// on its way. Others read it, or only have it attached: it must not change beneath them.
    pub writes: bool,
    /// In words that follow the file's name: `is in use by 'qemu-system-x86' (process 12)`.
    pub text: String,
    /// What ends that.
    pub hint: String,
}

/// A file or block device of the host, opened for reading only.
pub trait HostFile: ReadAt<Host> {
    /// Its name for messages: text, so not always what opens it.
    fn name(&self) -> &str;

    /// The path that it was opened by, byte for byte.
    fn path(&self) -> &Path {
        Path::new(self.name())
    }

    /// What to compare to see whether it was changed; asked of the open file, whatever its name means by now. `None` if there is
    /// no such thing.
    fn fingerprint(&self) -> Result<Option<Fingerprint>> {
        Ok(None)
    }

    /// The same of the moment when it was opened.
    fn fingerprint_when_opened(&self) -> Option<Fingerprint> {
        None
    }

    /// Who else uses it at this moment, as far as the host tells.
    fn users(&self) -> Vec<User> {
        Vec::new()
    }

    /// Bytes that it occupies on the host.
    fn allocated_bytes(&self) -> Result<u64>;

    /// The states of consecutive spans that cover `span` exactly. Without knowledge all of it is data.
    fn host_map(&self, span: HostSpan) -> Result<Vec<Extent<Host, HostState>>> {
        Ok(vec![Extent::new(span, HostState::Data)])
    }

    /// Where the file lies on the device: all its extents in order, as the host's file system keeps them. What has no
    /// place, or none of its own (inline, compressed, not yet allocated), is left out. `None` if the file system
    /// does not tell, and for block devices.
    fn host_extents(&self) -> Result<Option<Vec<HostExtent>>> {
        Ok(None)
    }

    /// What holds bytes that were written, once all that waits in the host's cache was written back: the rest reads as zeros.
    /// Other than [`Self::host_map`]'s answer, this one does not depend on what is in the cache: there storage that was never
    /// written counts as data as long as a page of it is. `None` if the file system does not tell, and for block devices.
    fn stored(&self) -> Result<Option<ExtentSet<Host>>> {
        Ok(None)
    }

    /// What the host's file system is called; `None` if that is not known, and for block devices.
    fn host_filesystem(&self) -> Option<String> {
        None
    }

    /// How many names it has in its file system: hard links.
    fn name_count(&self) -> u64 {
        1
    }

    /// What tells it from every other file, under any name: device and inode. `None` if there is no such thing.
    fn identity(&self) -> Option<(u64, u64)> {
        None
    }

    /// What tells the files of the host that hold its bytes: several where it lies in several, another's where it is a part of one.
    fn holders(&self) -> Vec<(u64, u64)> {
        self.identity().into_iter().collect()
    }

    /// Whether it is a block device.
    fn is_block_device(&self) -> bool {
        false
    }

    /// An open descriptor that reads as this file does, with which other files can share its storage ([`TargetFile::clone_range`]).
    /// `None` if there is none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Says that `span` will not be read again, so that its cached pages need not be kept.
    fn forget(&self, _span: HostSpan) {}
}

macro_rules! host_file_by_pointer {
    ($($pointer:ty),*) => {$(
        impl<T: HostFile + ?Sized> HostFile for $pointer {
            crate::forward!(
                self, **self => name, path, fingerprint, fingerprint_when_opened, users, name_count, allocated_bytes, host_map,
                host_extents, stored, host_filesystem, identity, holders, is_block_device, descriptor, forget
            );
        }
    )*};
}

host_file_by_pointer!(Arc<T>, &T);

/// A file or block device of the host being written. What is asked for no bytes changes nothing, wherever it is.
pub trait TargetFile: ReadAt<Host> {
    /// Writes `buf` at `at`, growing the file as needed.
    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()>;

    /// Makes the file `len_bytes` long; what is added reads as zeros.
    fn set_len(&self, len_bytes: u64) -> Result<()>;

    /// Gives `span` storage without changing what it reads as (zeros, where nothing was written). The file
    /// grows to the span's end if it is shorter.
    fn reserve(&self, span: HostSpan) -> Result<()>;

    /// Says that `span`, which holds nothing yet, will probably be written soon, so that storage for it can be found in one piece if
    /// `spare_bytes` stay free beside it. Answers whether it was: then the file reaches to the span's end at the least. Never fails: what
    /// is not needed is punched, or goes with the final length.
    fn reserve_ahead(&self, _span: HostSpan, _spare_bytes: u64) -> bool {
        false
    }

    /// Says that `memory` will be filled and written to the file again and again, so that it can be made to suit. Its bytes stay.
    fn prepare_memory(&self, _memory: &mut [u8]) {}

    /// Makes `span` read as zeros, by the device or file system itself where it can.
    fn zero(&self, span: HostSpan) -> Result<()>;

    /// Makes `span`, within the file, read as zeros and gives its storage back where the file system can.
    fn punch(&self, span: HostSpan) -> Result<()> {
        self.zero(span)
    }

    /// Returns when all that was written is on stable storage.
    fn flush(&self) -> Result<()>;

    /// As [`ReadAt::read_at`], but from the storage rather than from a cache where that can be had. What was not
    /// flushed may be missing from it.
    fn read_stored(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.read_at(at, buf)
    }

    /// Says that `span` is complete, so that its pages can be written back and dropped.
    fn forget(&self, _span: HostSpan) {}

    /// Has `span` of this file share the storage of the same span of `source`, so that both read the same until one of them is written.
    /// The file grows to the span's end if it is shorter. `false` if the host's file system does not do that with these two files, or this
    /// span: it must be of whole blocks, and within the source. What `span` reads as is then not known.
    fn clone_range(&self, _source: &dyn HostFile, _span: HostSpan) -> Result<bool> {
        Ok(false)
    }

    /// Has `take` read `span` from a descriptor of the file, at the same offset, and says so; `false` where there is none that reads
    /// as [`ReadAt::read_at`] does.
    fn lend(&self, _span: HostSpan, _take: Take<'_>) -> Result<bool> {
        Ok(false)
    }
}

/// Reads from a descriptor at an offset.
pub type Take<'a> = &'a mut dyn FnMut(BorrowedFd<'_>, HostOffset) -> Result<()>;

/// Fails with `Invalid` unless the `len` bytes from `at` lie below `limit_bytes`.
pub fn check_bounds<S: Space>(at: Offset<S>, len: usize, limit_bytes: u64) -> Result<()> {
    match Span::checked(at, len as u64) {
        Some(span) if span.end().get() <= limit_bytes => Ok(()),
        _ => Err(Error::invalid(format!("read of {len} bytes past the end at {limit_bytes:#x}")).at(at)),
    }
}

/// Reads one on-disk struct. `what` names it in the error if it lies past the end, which is the disk's
/// fault: the position came from the disk or from its length.
pub fn read_struct<S: Space, T: FromBytes>(
    from: &(impl ReadAt<S> + ?Sized),
    at: Offset<S>,
    what: &str,
) -> Result<T> {
    let bytes = read_vec(from, at, size_of::<T>() as u64, what)?;
    Ok(T::read_from_bytes(&bytes).expect("exactly the struct's size was read"))
}

/// A structure that does not fit into what holds it, or into memory.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} lies past the end: length is {len_bytes} bytes, expected an end at or below {end:#x}")]
pub struct PastEnd {
    /// The structure's name.
    pub what: String,
    /// Its length.
    pub len_bytes: u64,
    /// Where what holds it ends.
    pub end: u64,
}

/// The most that [`read_vec`] takes memory for.
const READ_VEC_BYTES_MAX: u64 = 64 << 20;

/// Reads `len_bytes` into fresh memory, after checking them against the length of `from` and a limit of 64 MiB.
/// `what` names the bytes in the error.
pub fn read_vec<S: Space>(
    from: &(impl ReadAt<S> + ?Sized),
    at: Offset<S>,
    len_bytes: u64,
    what: &str,
) -> Result<Vec<u8>> {
    let fits = Span::checked(at, len_bytes).is_some_and(|span| span.end().get() <= from.len_bytes());
    if !fits || len_bytes > READ_VEC_BYTES_MAX {
        let past = PastEnd { what: what.to_owned(), len_bytes, end: from.len_bytes() };
        return Err(Error::corrupt(past).at(at));
    }
    let mut bytes = vec![0; usize::try_from(len_bytes).expect("bounded above")];
    from.read_at(at, &mut bytes)?;
    Ok(bytes)
}

/// Whether all of `bytes` are zero. Comparing the bytes with themselves moved by one is the fastest test there is: it is `memcmp`.
pub fn is_zero(bytes: &[u8]) -> bool {
    bytes.first().is_none_or(|first| *first == 0 && bytes[1..] == bytes[..bytes.len() - 1])
}
