//! What the things that a run makes in QEMU are called, and whether that run still lives.
//!
//! QEMU's names of nodes have at most 31 bytes, so that a run's name is packed: who it is (a process, by its number, when it was started
//! and in which namespace of processes) in 16 letters behind `leandisk-`.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU8, Ordering};

use block::{Error, Result};

/// What every name begins with.
pub const PREFIX: &str = "leandisk-";
/// RFC 4648's letters in lower case, without those that are digits.
const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const LETTER_COUNT: usize = 16;
/// Numbers of processes are smaller (`PID_MAX_LIMIT` of the kernel's `include/linux/threads.h`).
const PROCESS_BITS: u32 = 22;
/// Hundredths of a second since the machine was started: 21 years.
const STARTED_BITS: u32 = 36;
const NAMESPACE_BITS: u32 = 16;
const COUNT_BITS: u32 = 6;

/// A run of Leandisk that makes things in a QEMU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RunId(u128);

/// Whether a run still goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// Its process is there.
    Alive,
    /// Its process is gone.
    Dead,
    /// It was started where this process cannot see: in another container.
    Unknown,
}

impl RunId {
    /// Of another run of this process.
    pub fn new() -> Result<Self> {
        static COUNT: AtomicU8 = AtomicU8::new(0);
        let process = std::process::id();
        let started = started(process).ok_or_else(|| Error::unsupported("a system without /proc"))?;
        Ok(Self::of(process, started, namespace(), COUNT.fetch_add(1, Ordering::Relaxed)))
    }

    /// Of a process by its number, when it was started, and its namespace.
    pub(crate) fn of(process: u32, started: u64, namespace: u64, count: u8) -> Self {
        let field = |value: u64, bits: u32| u128::from(value) & ((1 << bits) - 1);
        let mut packed = field(process.into(), PROCESS_BITS);
        packed = packed << STARTED_BITS | field(started, STARTED_BITS);
        packed = packed << NAMESPACE_BITS | field(namespace, NAMESPACE_BITS);
        Self(packed << COUNT_BITS | field(count.into(), COUNT_BITS))
    }

    /// The run that made something of this name, and what of it this is; `None` of what others made.
    pub fn parse(name: &str) -> Option<(Self, &str)> {
        let rest = name.strip_prefix(PREFIX)?;
        let (letters, part) = rest.split_at_checked(LETTER_COUNT)?;
        let mut packed = 0;
        for letter in letters.bytes() {
            let digit = LETTERS.iter().position(|known| *known == letter)?;
            packed = packed << 5 | u128::try_from(digit).ok()?;
        }
        let part = if part.is_empty() { part } else { part.strip_prefix('-')? };
        Some((Self(packed), part))
    }

    /// The name of a part of it.
    pub(crate) fn part(self, part: &str) -> String {
        format!("{self}-{part}")
    }

    /// The name of a part that each of its disks has, of the disk with this number.
    pub(crate) fn of_disk(self, part: &str, disk: usize) -> String {
        format!("{self}-{part}{disk}")
    }

    /// Which of its disks something of that name belongs to, if it is such a part.
    pub(crate) fn disk_of(self, name: &str, part: &str) -> Option<usize> {
        let (_, found) = Self::parse(name).filter(|(run, _)| *run == self)?;
        found.strip_prefix(part)?.parse().ok()
    }

    /// Whether both are runs of one process.
    pub(crate) fn is_of_process_of(self, other: Self) -> bool {
        self.0 >> COUNT_BITS == other.0 >> COUNT_BITS
    }

    /// Whether the process that this is the name of is there.
    pub fn life(self) -> Life {
        let take = |shift: u32, bits: u32| {
            u64::try_from(self.0 >> shift & ((1 << bits) - 1)).expect("fields are shorter")
        };
        if take(COUNT_BITS, NAMESPACE_BITS) != namespace() & ((1 << NAMESPACE_BITS) - 1) {
            return Life::Unknown;
        }
        let process = take(COUNT_BITS + NAMESPACE_BITS + STARTED_BITS, PROCESS_BITS);
        let stated = take(COUNT_BITS + NAMESPACE_BITS, STARTED_BITS);
        let started = u32::try_from(process).ok().and_then(started);
        let is_it = started.is_some_and(|started| started & ((1 << STARTED_BITS) - 1) == stated);
        if is_it { Life::Alive } else { Life::Dead }
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        (0..LETTER_COUNT).rev().try_for_each(|place| {
            let digit = usize::try_from(self.0 >> (5 * place) & 31).expect("five bits");
            write!(f, "{}", char::from(LETTERS[digit]))
        })
    }
}

/// When a process was started, in ticks since the machine was (proc_pid_stat(5), field 22); `None` if it is not there, or has ended and
/// nobody asked how.
fn started(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in field 2 may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// What tells this namespace of processes from others.
fn namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn names_are_short_and_tell_who() {
        let run = RunId::of((1 << 22) - 1, (1 << 36) - 1, 0xffff_ffff, 255);
        assert!(run.of_disk("cbw", 99).len() <= 31);
        assert_eq!(RunId::parse(&run.part("serv")), Some((run, "serv")));
        assert_eq!(run.disk_of(&run.of_disk("cbw", 7), "cbw"), Some(7));
        let other = RunId::of(1, 2, 3, 4);
        for foreign in ["cbw7".to_owned(), run.part("cbw"), run.of_disk("ovl", 7), other.of_disk("cbw", 7)] {
            assert_eq!(run.disk_of(&foreign, "cbw"), None, "{foreign}");
        }
        assert_eq!(RunId::parse(&run.to_string()), Some((run, "")));
        for foreign in [
            "drive0",
            "leandisk-",
            "leandisk-short",
            "leandisk-ABCDEFGHIJKLMNOP",
            "leandisk-äaaaaaaaaaaaaaaaa",
        ] {
            assert_eq!(RunId::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_run_lives_as_long_as_its_process() {
        let own = RunId::new().unwrap();
        assert_eq!(own.life(), Life::Alive);
        let another = RunId::new().unwrap();
        assert!(own != another && own.is_of_process_of(another));
        assert!(!own.is_of_process_of(RunId::of(1, 2, 3, 4)));
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let id = child.id();
        let run = RunId::of(id, started(id).unwrap(), namespace(), 0);
        assert_eq!(run.life(), Life::Alive);
        // Its number was given to another process since.
        assert_eq!(RunId::of(id, started(id).unwrap() + 1, namespace(), 0).life(), Life::Dead);
        assert_eq!(RunId::of(id, started(id).unwrap(), namespace() + 1, 0).life(), Life::Unknown);
        child.kill().unwrap();
        // Also while nobody has asked how it ended.
        while run.life() == Life::Alive {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(run.life(), Life::Dead);
    }
}
