//! System calls that a process which reads images never makes: refused with `EPERM` (seccomp(2)).
//!
//! A list of what is refused rather than of what is allowed: see docs/decisions/confinement.md. Landlock refuses what goes by names;
//! here is what it lets pass (permissions and attributes of files, other processes, sockets) and the doors of the kernel that have
//! been its weak ones.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

/// Calls that C libraries do not all know by name. All architectures have the numbers above 423 in common.
mod number {
    #[cfg(target_arch = "x86_64")]
    pub(super) const KEXEC_FILE_LOAD: i64 = 320;
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) const KEXEC_FILE_LOAD: i64 = 294;
    pub(super) const FCHMODAT2: i64 = 452;
    pub(super) const SETXATTRAT: i64 = 463;
    pub(super) const REMOVEXATTRAT: i64 = 466;
    pub(super) const FILE_SETATTR: i64 = 469;
    pub(super) const IO_URING: [i64; 3] = [425, 426, 427];
    pub(super) const MOUNTS: [i64; 6] = [428, 429, 430, 431, 432, 433];
    pub(super) const PIDFD_SEND_SIGNAL: i64 = 424;
    pub(super) const PIDFD_OPEN: i64 = 434;
    pub(super) const CLONE3: i64 = 435;
    pub(super) const PIDFD_GETFD: i64 = 438;
    pub(super) const PROCESS_MADVISE: i64 = 440;
    pub(super) const MOUNT_SETATTR: i64 = 442;
    pub(super) const QUOTACTL_FD: i64 = 443;
    pub(super) const PROCESS_MRELEASE: i64 = 448;
    pub(super) const OPEN_TREE_ATTR: i64 = 467;
}

/// Programs, other processes, and who this process is.
const PROCESSES: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_setpriority,
    libc::SYS_ioprio_set,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setaffinity,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    libc::SYS_unshare,
    libc::SYS_setns,
    number::PIDFD_SEND_SIGNAL,
    number::PIDFD_OPEN,
    number::PIDFD_GETFD,
    number::PROCESS_MADVISE,
    number::PROCESS_MRELEASE,
];

/// The machine.
const MACHINE: &[i64] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_kexec_load,
    number::KEXEC_FILE_LOAD,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_vhangup,
    libc::SYS_personality,
    libc::SYS_fanotify_init,
    libc::SYS_inotify_add_watch,
    number::MOUNT_SETATTR,
    number::OPEN_TREE_ATTR,
    number::QUOTACTL_FD,
];

/// Files by other ways than their names, and what of files Landlock does not handle.
const FILES: &[i64] = &[
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    number::FCHMODAT2,
    number::SETXATTRAT,
    number::REMOVEXATTRAT,
    number::FILE_SETATTR,
];

/// What reaches other programs: the socket to the broker is open already.
const CHANNELS: &[i64] = &[
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// Older forms of the above, which newer architectures never had.
#[cfg(target_arch = "x86_64")]
const OLD: &[i64] = &[
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[i64] = &[];

/// What a process does once it is closed in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// It reads a disk.
    Reading,
    /// It copies a disk, to a target that may share storage with it.
    Copying,
    /// It serves disks at sockets that listen already.
    Serving,
}

/// What a process that serves disks needs of the above: it lets clients in, and has a thread stand back behind others, which a rule
/// of its own allows (`own_priority`).
const SERVING: &[i64] = &[libc::SYS_accept, libc::SYS_accept4, libc::SYS_setpriority];

/// Refuses them from now on, to this thread and those that it starts.
pub(super) fn install(work: Work) -> io::Result<()> {
    let needed = if work == Work::Serving { SERVING } else { &[] };
    let refused = [PROCESSES, MACHINE, FILES, CHANNELS, OLD, &number::IO_URING, &number::MOUNTS];
    let refused = refused.into_iter().flatten().filter(|number| !needed.contains(number));
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = refused.map(|number| (*number, Vec::new())).collect();
    rules.extend(conditional(work).map_err(io::Error::other)?);
    if work == Work::Serving {
        rules.insert(libc::SYS_setpriority, own_priority().map_err(io::Error::other)?);
    }
    // What `clone3` is to make lies in memory, where it cannot be looked at: C libraries fall back to `clone`.
    let clone3 = BTreeMap::from([(number::CLONE3, Vec::new())]);
    apply(&with_errno(rules, libc::EPERM)?)?;
    apply(&with_errno(clone3, libc::ENOSYS)?)
}

/// Calls that are refused with some arguments alone.
fn conditional(work: Work) -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    let own_id = u64::from(std::process::id());
    let cloning = (work == Work::Copying).then_some(FICLONERANGE);
    let none_of_them = IOCTLS.into_iter().chain(cloning).map(|allowed| compare(1, SeccompCmpOp::Ne, allowed));
    let other_ioctl = SeccompRule::new(none_of_them.collect::<Result<_, _>>()?)?;
    let bits = |value: libc::c_int| u64::from(value.unsigned_abs());
    let thread = bits(libc::CLONE_THREAD);
    Ok(BTreeMap::from([
        // Processes; threads are made.
        (libc::SYS_clone, vec![is(0, SeccompCmpOp::MaskedEq(thread), 0)?]),
        // Signals to others; a program may end itself by one.
        (libc::SYS_tgkill, vec![is(0, SeccompCmpOp::Ne, own_id)?]),
        // Limits of others.
        (libc::SYS_prlimit64, vec![is(0, SeccompCmpOp::Ne, 0)?]),
        // Signals that a descriptor sends to others.
        (
            libc::SYS_fcntl,
            vec![is(1, SeccompCmpOp::Eq, bits(libc::F_SETOWN))?, is(1, SeccompCmpOp::Eq, F_SETOWN_EX)?],
        ),
        // Many act on a file system or a device through any descriptor of it: freezing, flags of files, SCSI commands.
        (libc::SYS_ioctl, vec![other_ioctl]),
    ]))
}

/// The priorities of other threads, processes and users: a thread may lower its own.
fn own_priority() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    Ok(vec![is(0, SeccompCmpOp::Ne, PRIO_PROCESS)?, is(1, SeccompCmpOp::Ne, 0)?])
}

fn compare(index: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, value)
}

/// Matches where this argument compares so.
fn is(index: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![compare(index, op, value)?])
}

/// setpriority(2), the kernel's `include/uapi/linux/resource.h`. The C libraries differ in whether theirs has a sign.
const PRIO_PROCESS: u64 = 0;

/// fcntl(2), the kernel's `include/uapi/asm-generic/fcntl.h`.
const F_SETOWN_EX: u64 = 15;
/// The only requests of ioctl(2) that are let pass: where a file's extents are (`FS_IOC_FIEMAP`); whether a descriptor is a terminal, and
/// how wide (`TCGETS`, `TCGETS2`, `TIOCGWINSZ`); and how a descriptor waits (`FIONBIO`).
const IOCTLS: [u64; 5] = [0xc020_660b, 0x5401, 0x802c_542a, 0x5413, 0x5421];

/// What a process that copies may ask for besides: that a file which it has open for writing shares storage with one that it has open for
/// reading.
const FICLONERANGE: u64 = 0x4020_940d;

fn with_errno(rules: BTreeMap<i64, Vec<SeccompRule>>, errno: libc::c_int) -> io::Result<BpfProgram> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let refuse = SeccompAction::Errno(errno.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture);
    let program = filter.and_then(BpfProgram::try_from).map_err(io::Error::other)?;
    Ok(without_x32(program))
}

/// The kernel may take the calls of x86-64 under a second set of numbers, which begin here (`__X32_SYSCALL_BIT`): none of them is made.
#[cfg(target_arch = "x86_64")]
fn without_x32(program: BpfProgram) -> BpfProgram {
    use seccompiler::sock_filter;
    let step = |code: u32, jt, jf, k| {
        let code = u16::try_from(code).expect("instructions have 16 bits");
        sock_filter { code, jt, jf, k }
    };
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
    // The call's number is the first field of what a filter sees (`struct seccomp_data`).
    let mut steps = vec![
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, 0x4000_0000),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, refused),
    ];
    steps.extend(program);
    steps
}
#[cfg(not(target_arch = "x86_64"))]
fn without_x32(program: BpfProgram) -> BpfProgram {
    program
}

fn apply(program: &BpfProgram) -> io::Result<()> {
    seccompiler::apply_filter(program).map_err(io::Error::other)
}
