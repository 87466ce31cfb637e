//! What this process and those that it starts are to the rest of the system: for what must not outlive a process that is
//! killed.

use std::env;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use block::{Error, Result};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, Rlimit, setrlimit};

/// Where programs of the administrator lie, though not always in the path of other users.
const MORE_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Where a program lies.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(MORE_FOLDERS.iter().map(PathBuf::from));
    let is_program = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    };
    folders.map(|folder| folder.join(name)).find(is_program)
}

/// As [`find_program`]; `Unsupported` if it is nowhere.
pub fn need_program(name: &str) -> Result<PathBuf> {
    find_program(name).ok_or_else(|| {
        Error::unsupported(format!("{name} is not installed")).hint(format!("install {name}, and try again"))
    })
}

/// What the host calls itself.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// How many threads run at once at best. What a container sets is told by files: it is asked for once, before the process is confined.
pub fn processor_count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// From now on this thread, and programs that it starts, run on one processor, the first that they may run on. If that cannot be had they run
/// where they did.
pub fn stay_on_one_processor() {
    // SAFETY: a set of processors is plain bits, of which all zeros are the empty one; the calls are given its size, and write within it.
    #[allow(unsafe_code)]
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        if libc::sched_getaffinity(0, size, &raw mut set) != 0 {
            return;
        }
        let limit = usize::try_from(libc::CPU_SETSIZE).unwrap_or(0);
        if let Some(first) = (0..limit).find(|&processor| libc::CPU_ISSET(processor, &set)) {
            libc::CPU_ZERO(&mut set);
            libc::CPU_SET(first, &mut set);
            let _ = libc::sched_setaffinity(0, size, &raw const set);
        }
    }
}

/// From now on this thread, and those that it starts, get of processors and devices only what nobody else wants (`SCHED_IDLE` of `sched(7)`, and
/// the idle class of `ioprio_set(2)`, which some of the kernel's schedulers of requests heed). Where that cannot be had nothing changes.
pub fn be_background() {
    // SAFETY: the call reads the structure that it is given, during the call; 0 is this thread.
    #[allow(unsafe_code)]
    unsafe {
        let parameters = std::mem::zeroed::<libc::sched_param>();
        let _ = libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters);
    }
    crate::be_idle_io(true);
}

/// Has the program that `command` starts be asked to end (SIGTERM) when the thread that starts it is gone, however that
/// ended.
pub fn end_with_parent(command: &mut Command) -> &mut Command {
    signalled_with_parent(command, libc::SIGTERM)
}

/// The same, but killed (SIGKILL): for programs that have nothing to put in order.
pub fn killed_with_parent(command: &mut Command) -> &mut Command {
    signalled_with_parent(command, libc::SIGKILL)
}

fn signalled_with_parent(command: &mut Command, signal: i32) -> &mut Command {
    let parent = rustix::process::getpid();
    let ask = move || {
        // SAFETY: a system call with arguments by value, which may be made between fork and exec.
        #[allow(unsafe_code)]
        let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) };
        match result {
            // The parent may have gone before the kernel was asked.
            0 if rustix::process::getppid() == Some(parent) => Ok(()),
            0 => Err(io::ErrorKind::NotConnected.into()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes two system calls, and takes no lock and no memory.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(ask)
    }
}

/// No file that the program writes becomes longer than this: a write beyond fails, and does not end the program.
pub fn with_file_bytes_max(command: &mut Command, bytes: u64) -> &mut Command {
    let limit = move || {
        // SAFETY: a system call with arguments by value, which may be made between fork and exec.
        #[allow(unsafe_code)]
        if unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
        let most = rustix::process::getrlimit(Resource::Fsize).maximum;
        let limit = Some(most.map_or(bytes, |most| most.min(bytes)));
        Ok(setrlimit(Resource::Fsize, Rlimit { current: limit, maximum: limit })?)
    };
    // SAFETY: the closure makes three system calls, and takes no lock and no memory.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(limit)
    }
}

/// Gives the program that `command` starts these files as well, with the numbers that they have here.
pub fn with_files(command: &mut Command, files: Vec<OwnedFd>) -> &mut Command {
    let keep = move || files.iter().try_for_each(|file| Ok(fcntl_setfd(file, FdFlags::empty())?));
    // SAFETY: the closure makes a system call for each file, and takes no lock and no memory.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(keep)
    }
}
