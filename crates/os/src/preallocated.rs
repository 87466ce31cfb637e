//! A file of the host whose storage is reserved ahead: the machine that `preallocate` stands on.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use block::{Error, HostFile, Result, TargetFile};
use extent::{ExtentSet, Host, HostSpan};
use preallocate::{HostSpace, Machine, Millis, OnContinued, Policy, Preallocated, XFS_MAGIC, policy_of};

use crate::LiveFile;
use crate::queue::queue_of_device;
use crate::writeback::Writeback;

/// A file in use with its storage reserved ahead.
pub type PreallocatedFile = Preallocated<HostMachine>;

/// `file`, which will end at `limit_bytes` at most, with storage reserved as its file system's policy says, if there is
/// one.
pub fn preallocated(file: Arc<LiveFile>, limit_bytes: u64, on_continued: OnContinued) -> PreallocatedFile {
    HostMachine::of(file).preallocated(limit_bytes, on_continued)
}

/// A file in use, its file system, and its device.
pub struct HostMachine {
    file: Arc<LiveFile>,
    policy: Option<Policy>,
    /// Data that wait for storage may be where the map of extents shows a hole.
    hides_delayed: bool,
    /// The device does not mind where it writes: none that says that it rotates, but for virtual ones, which do not know.
    takes_scattered: bool,
    began: Instant,
    gate: RwLock<()>,
    /// Once there was something to begin with.
    writeback: Mutex<Option<Writeback>>,
}

impl HostMachine {
    /// What is known of where `file` lies is asked for now; nothing is opened afterwards.
    pub fn of(file: Arc<LiveFile>) -> Self {
        let magic = crate::fiemap::filesystem_magic(file.std_file()).filter(|_| !file.is_block_device());
        let device = rustix::fs::fstat(file.std_file()).ok().and_then(|stat| queue_of_device(stat.st_dev));
        Self {
            file,
            policy: magic.and_then(policy_of),
            // Where extents are shared, XFS keeps what was written beside them in another map (xfs_buffered_write_iomap_begin in
            // fs/xfs/xfs_iomap.c); SEEK_DATA looks at both, FIEMAP does not.
            hides_delayed: magic == Some(XFS_MAGIC),
            takes_scattered: device.is_some_and(|queue| !queue.is_rotational || queue.is_virtual),
            began: Instant::now(),
            gate: RwLock::default(),
            writeback: Mutex::default(),
        }
    }

    /// The file as [`preallocated`] makes it.
    pub fn preallocated(self, limit_bytes: u64, on_continued: OnContinued) -> PreallocatedFile {
        Preallocated::new(self, limit_bytes, on_continued)
    }
}

impl Machine for HostMachine {
    type Gate = RwLock<()>;

    fn file(&self) -> &dyn TargetFile {
        &*self.file
    }

    fn gate(&self) -> &RwLock<()> {
        &self.gate
    }

    fn policy(&self) -> Option<Policy> {
        self.policy
    }

    fn allocated_within(&self, window: HostSpan) -> Result<Option<ExtentSet<Host>>> {
        let allocated = self.file.allocated_within(window)?;
        match allocated {
            Some(allocated) if self.hides_delayed => {
                Ok(Some(allocated.union(&self.file.data_within(window)?)))
            }
            allocated => Ok(allocated),
        }
    }

    fn keep_room(&self, span: HostSpan) -> Result<bool> {
        self.file.keep_room(span)
    }

    fn give_room_back(&self, span: HostSpan) -> Result<bool> {
        self.file.give_room_back(span)
    }

    fn cut_off_room_past_end(&self) -> Result<()> {
        self.file.cut_off_room_past_end()
    }

    fn room(&self) -> Result<HostSpace> {
        let room = rustix::fs::fstatvfs(self.file.std_file())
            .map_err(|error| Error::io("ask for the room of", error.into()).path(self.file.name()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(room.f_frsize);
        Ok(HostSpace { free_bytes: bytes(room.f_bavail), all_bytes: bytes(room.f_blocks) })
    }

    fn now(&self) -> Millis {
        Millis::try_from(self.began.elapsed().as_millis()).unwrap_or(Millis::MAX)
    }

    fn write_back(&self, span: HostSpan) {
        let mut writeback = self.writeback.lock().unwrap_or_else(PoisonError::into_inner);
        writeback.get_or_insert_with(|| Writeback::new(self.file.clone())).begin(span);
    }

    fn takes_scattered(&self) -> bool {
        self.takes_scattered
    }

    fn repeat(&self, every: Duration, mut act: Box<dyn FnMut() -> bool + Send>) -> bool {
        let run = move || loop {
            std::thread::sleep(every);
            if !act() {
                return;
            }
        };
        std::thread::Builder::new().name("reserved".to_owned()).spawn(run).is_ok()
    }
}
