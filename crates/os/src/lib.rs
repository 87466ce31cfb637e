//! Linux: files, block devices, host maps, locks, and the gate that an image's own references must pass.
//!
//! Invariants:
//! - what is opened as a source is opened for reading only, and never before it is known to be a regular file
//!   or a block device;
//! - a file that an image names is opened only below a granted folder, by a path without symbolic links;
//! - a process that is confined opens nothing by itself: what opens names asks the broker there;
//! - a target bears its final name only when all of it is on stable storage;
//! - what is changed in place is held alone, and a flush that failed is the last thing done to it.
//!
//! Absent on purpose: formats, policy about what to copy, mapped memory (an I/O error there is a signal).

mod activity;
mod clone;
mod confine;
mod connect;
mod device;
mod direct;
mod edit_file;
mod extracted;
mod fiemap;
mod flushed;
mod grant;
mod group;
mod guard;
mod input_stream;
mod ioctl;
mod journal_file;
mod live_file;
mod lock_bytes;
mod locks;
mod memory;
mod mounts;
#[cfg(feature = "mutants")]
mod mutant;
mod named;
mod new_file;
mod output_stream;
mod passed;
mod preallocated;
mod process;
mod queue;
mod raw_file;
mod requests;
mod source;
mod spare;
mod storage_promise;
mod storage_timing;
mod target_folder;
mod target_names;
mod target_options;
mod users;
mod writeback;
mod zeros;

pub use activity::{Activity, MovedBytes};
pub use confine::{Confined, Names as ConfinedNames, Split, Work, confine, split};
pub use connect::connect;
pub use device::DeviceTarget;
pub use edit_file::EditFile;
pub use extracted::ExtractFolder;
pub use fiemap::RawPiece;
pub use grant::Granted;
pub use group::group_id;
pub use guard::{
    DeviceCounters, DeviceNumber, DiskFacts, FileFacts, FoundFile, Gathered, GoesOn, GuardedKind,
    GuardedRoom, GuardedSystem, Handle, HeldFile, KeptRoom, LeftAlone, OpenDisk, Outcome as ReserveOutcome,
    Seen, SpacePart, SpaceUse, Taken, Walk, Watch, be_idle_io, connect_at_once, devices_below,
    devices_below_system, disks_open_in, guarded_mounts, may_store, name_of, open_port, process_at, try_lock,
    wait as wait_for_events, wait_for_input,
};
pub use input_stream::StoredInput;
pub use journal_file::{
    HostJournal, HostNames, JournalFile, check_journal_place, create_journal, disk_name, find_journal,
    journal_path, journal_standing,
};
pub use live_file::LiveFile;
pub use locks::ReadLock;
pub use mounts::{Mount, hide_mounts, mount_of, mounts};
#[cfg(feature = "mutants")]
pub use mutant::{MUTANTS, Mutant};
pub use named::{make_folder, move_for_good, names_in, open_input, remove_folder, remove_made};
pub use new_file::NewFile;
pub use output_stream::{Outlet, OutputStream};
pub use passed::{PassedSocket, passed_sockets};
pub use preallocated::{HostMachine, PreallocatedFile, preallocated};
pub use process::{
    be_background, end_with_parent, find_program, host_name, killed_with_parent, need_program,
    processor_count, stay_on_one_processor, with_file_bytes_max, with_files,
};
pub use queue::{Queue, queue_of};
pub use source::SourceFile;
pub use spare::{SpareFile, SpareRoom, free_bytes};
pub use storage_promise::{StoragePromise, kept};
pub use storage_timing::{StorageTiming, TimingBudget, time_storage};
pub use target_folder::HostFolder;
pub use target_names::copied_mode;
pub use target_options::{Cloning, FolderOptions, TargetSpace};
pub use users::storage_of;
pub use writeback::{finish_removals, write_out};
