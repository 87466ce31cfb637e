//! Direct I/O through a second descriptor, for what is aligned; the rest goes through the page cache.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use block::AlignedBuffer;
use extent::HostOffset;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::requests::{Request, client};

/// Reads shorter than this cost more in being copied than they gain.
const BOUNCE_BYTES_MIN: usize = 64 << 10;

/// What is read at once into aligned memory.
const BOUNCE_BYTES: usize = 1 << 20;

thread_local! {
    static BOUNCE: RefCell<Option<AlignedBuffer>> = const { RefCell::new(None) };
}

/// A descriptor opened with `O_DIRECT`.
pub(crate) struct Direct {
    file: File,
    /// What addresses, offsets and lengths of reads must be multiples of.
    read_align: usize,
    /// The same of writes: at least a page, so that a direct write never shares a cached page with another
    /// write.
    write_align: usize,
    /// Cleared when the file system turns out not to take what it promised.
    works: AtomicBool,
}

impl Direct {
    /// Opens the file behind `file` a second time. `None` where there is no direct I/O.
    pub(crate) fn open(file: impl AsFd, access: OFlags) -> Option<Self> {
        let fd = match client() {
            Some(broker) => broker.open_again(&Request::PastCache, file.as_fd()).ok()?,
            None => open_again(file.as_fd(), access).ok()?,
        };
        Self::adopt(fd)
    }

    /// Takes a descriptor that was opened for it.
    pub(crate) fn adopt(fd: OwnedFd) -> Option<Self> {
        let read_align = alignment(&fd)?;
        let write_align = read_align.max(AlignedBuffer::PAGE_BYTES);
        Some(Self { file: File::from(fd), read_align, write_align, works: AtomicBool::new(true) })
    }

    /// Reads if everything is aligned; says whether it did.
    pub(crate) fn read(&self, at: HostOffset, buf: &mut [u8]) -> io::Result<bool> {
        let takes = self.takes(self.read_align, at, buf.as_ptr(), buf.len());
        self.attempt(takes, || self.file.read_exact_at(buf, at.get()))
    }

    /// Reads what is not aligned, or goes to memory that is not, through aligned memory of this thread; says whether it
    /// did. Not worth it for little, and not possible in the last page of a file.
    pub(crate) fn read_through(&self, at: HostOffset, buf: &mut [u8], len_bytes: u64) -> io::Result<bool> {
        let align = self.read_align as u64;
        let end = at.get() + buf.len() as u64;
        let reaches_the_end = end.next_multiple_of(align) > len_bytes;
        if buf.len() < BOUNCE_BYTES_MIN || reaches_the_end || !self.works.load(Ordering::Relaxed) {
            return Ok(false);
        }
        self.bounce(at, buf, |piece, start, _| self.file.read_exact_at(piece, start))
    }

    /// Reads whatever is asked for through aligned memory of this thread, up to the end of the file too; says whether it
    /// did.
    pub(crate) fn read_all(&self, at: HostOffset, buf: &mut [u8]) -> io::Result<bool> {
        if !self.works.load(Ordering::Relaxed) {
            return Ok(false);
        }
        self.bounce(at, buf, |piece, start, needed| read_at_least(&self.file, piece, start, needed))
    }

    /// Has `read` fill aligned memory of this thread, piece by piece, from an offset on and with so many bytes or more.
    fn bounce(
        &self,
        at: HostOffset,
        buf: &mut [u8],
        read: impl Fn(&mut [u8], u64, usize) -> io::Result<()>,
    ) -> io::Result<bool> {
        let align = self.read_align as u64;
        let end = at.get() + buf.len() as u64;
        BOUNCE.with_borrow_mut(|bounce| {
            let bounce = bounce.get_or_insert_with(|| AlignedBuffer::new(BOUNCE_BYTES));
            let mut done = 0;
            while done < buf.len() {
                let position = at.get() + done as u64;
                let start = position / align * align;
                let stop = end.next_multiple_of(align).min(start + BOUNCE_BYTES as u64);
                let piece = &mut bounce[..usize::try_from(stop - start).expect("at most the buffer")];
                let skip = usize::try_from(position - start).expect("below the alignment");
                let len = (piece.len() - skip).min(buf.len() - done);
                if !self.attempt(true, || read(piece, start, skip + len))? {
                    return Ok(false);
                }
                buf[done..done + len].copy_from_slice(&piece[skip..skip + len]);
                done += len;
            }
            Ok(true)
        })
    }

    /// Writes if everything is aligned; says whether it did.
    pub(crate) fn write(&self, at: HostOffset, buf: &[u8]) -> io::Result<bool> {
        let takes = self.takes(self.write_align, at, buf.as_ptr(), buf.len());
        self.attempt(takes, || self.file.write_all_at(buf, at.get()))
    }

    fn takes(&self, align: usize, at: HostOffset, pointer: *const u8, len: usize) -> bool {
        let is_multiple = |value: u64| value.is_multiple_of(align as u64);
        self.works.load(Ordering::Relaxed)
            && is_multiple(at.get())
            && is_multiple(len as u64)
            && pointer.align_offset(align) == 0
    }

    fn attempt(&self, takes: bool, io: impl FnOnce() -> io::Result<()>) -> io::Result<bool> {
        if !takes {
            return Ok(false);
        }
        match io() {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                self.works.store(false, Ordering::Relaxed);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Opens the file behind a descriptor a second time, past the page cache.
pub(crate) fn open_again(file: BorrowedFd<'_>, access: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = access | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    rustix::fs::open(Path::new(&path), flags, Mode::empty())
}

/// Reads into `piece` from `start` on, `needed` bytes or more: the file may end within the piece.
fn read_at_least(file: &File, piece: &mut [u8], start: u64, needed: usize) -> io::Result<()> {
    loop {
        match file.read_at(piece, start) {
            Ok(len) if len >= needed => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// What the file system asks for, a page if it does not say; `None` if it says that it has no direct I/O.
fn alignment(fd: impl AsFd) -> Option<usize> {
    let asked = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    let told = asked.filter(|statx| statx.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    let Some(statx) = told else { return Some(AlignedBuffer::PAGE_BYTES) };
    let align = usize::try_from(statx.stx_dio_mem_align.max(statx.stx_dio_offset_align)).ok()?;
    (statx.stx_dio_offset_align != 0 && align.is_power_of_two()).then_some(align)
}
