//! Other programs: looked for, run, asked to end.
//!
//! Invariants: a terminal's signals do not reach them, as they go to this program, which ends them; none
//! outlives its value, or this program, however it ends.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use block::{Error, Result};
pub(crate) use os::{find_program, need_program};
use rustix::process::{Pid, Signal, kill_process};

use crate::counters::ratio;

/// How long a program may take to end when it is asked to.
const END_MAX: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(2);
/// So much of what a program complained of is told.
const SAID_MAX: usize = 500;

/// Runs a program to its end, and answers what it printed.
pub(crate) fn run(program: &Path, arguments: &[&Path]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).process_group(0);
    let output = os::end_with_parent(&mut command).output();
    let output = output.map_err(|error| Error::io("run", error).path(program.display()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(program, output.status, &String::from_utf8_lossy(&output.stderr)))
}

fn failed(program: &Path, status: ExitStatus, said: &str) -> Error {
    let said: String = said.trim().chars().take(SAID_MAX).collect();
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Error::io(format!("{name} failed ({status})"), std::io::Error::other(said))
}

/// A program at work. It is killed when this value goes, if it did not end before.
pub(crate) struct Running {
    child: Child,
    program: PathBuf,
    /// What it complains of.
    log: PathBuf,
}

impl Running {
    /// Starts a program, whose complaints go to the file `log`. It is asked to end when this one is gone.
    pub(crate) fn start(program: &Path, arguments: &[String], log: PathBuf) -> Result<Self> {
        Self::start_with(program, arguments, log, os::end_with_parent)
    }

    /// The same of a server whose disks are not wanted any more when this program is gone: it is killed then. qemu-nbd forgets a request to end that comes
    /// while it starts: it sets what it was told there back when it begins to serve.
    pub(crate) fn start_server(program: &Path, arguments: &[String], log: PathBuf) -> Result<Self> {
        Self::start_with(program, arguments, log, os::killed_with_parent)
    }

    fn start_with(
        program: &Path,
        arguments: &[String],
        log: PathBuf,
        tied: fn(&mut Command) -> &mut Command,
    ) -> Result<Self> {
        let file = File::create(&log).map_err(|error| Error::io("make", error).path(log.display()))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).process_group(0);
        let child =
            tied(&mut command).spawn().map_err(|error| Error::io("start", error).path(program.display()))?;
        Ok(Self { child, program: program.to_owned(), log })
    }

    /// An error if it ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => Err(self.failed(status)),
        }
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().map_err(|error| Error::io("wait for", error).path(self.program.display()))
    }

    fn failed(&self, status: ExitStatus) -> Error {
        failed(&self.program, status, &fs::read_to_string(&self.log).unwrap_or_default())
    }

    /// The time that it kept processors busy.
    pub(crate) fn cpu_seconds(&self) -> Option<f64> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        let ticks = parse_cpu_ticks(&text)?;
        Some(ratio(ticks, rustix::param::clock_ticks_per_second()))
    }

    /// The same, with programs that it started and that ended.
    pub(crate) fn cpu_seconds_with_children(&self) -> Option<f64> {
        cpu_seconds_of(&self.child.id().to_string())
    }

    /// Waits for its end, or kills it once it is not wanted any more.
    pub(crate) fn finish(mut self, is_cancelled: &dyn Fn() -> bool) -> Result<()> {
        loop {
            match self.ended()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(self.failed(status)),
                None if is_cancelled() => return Err(Error::interrupted()),
                None => std::thread::sleep(STEP),
            }
        }
    }

    /// Waits for its end; asks for it first if `asks`. An error unless it ended well.
    pub(crate) fn end(mut self, asks: bool) -> Result<()> {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).filter(|_| asks) {
            // Not waited for yet: the number is still its own.
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + END_MAX;
        loop {
            match self.ended()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(self.failed(status)),
                None if Instant::now() >= deadline => {
                    let late = std::io::ErrorKind::TimedOut.into();
                    return Err(Error::io("wait for the end of", late).path(self.program.display()));
                }
                None => std::thread::sleep(STEP),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// proc(5), `/proc/pid/stat`: utime and stime are fields 14 and 15; the second, in parentheses, may hold anything.
fn parse_cpu_ticks(text: &str) -> Option<u64> {
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    fields.next()?.ok()?.checked_add(fields.next()?.ok()?)
}

/// The time that a process, and those that it started and waited for, kept processors busy. `self` is this one.
pub(crate) fn cpu_seconds_of(process: &str) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    // utime, stime, cutime and cstime are fields 14 to 17.
    let fields: Option<Vec<u64>> =
        fields.split_whitespace().skip(11).take(4).map(|field| field.parse().ok()).collect();
    Some(ratio(fields?.iter().sum(), rustix::param::clock_ticks_per_second()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_run_and_ended() {
        assert!(find_program("no such program").is_none());
        let shell = find_program("sh").unwrap();
        assert_eq!(run(&shell, &["-c".as_ref(), "echo $0".as_ref(), "a".as_ref()]).unwrap(), "a\n");
        let error = run(&shell, &["-c".as_ref(), "echo because >&2; exit 3".as_ref()]).unwrap_err();
        assert!(error.to_string().contains("sh failed (exit status: 3): because"), "{error}");
        let dir = testkit::scratch();
        let start = |script: &str| {
            Running::start(&shell, &["-c".into(), script.into()], dir.path().join("log")).unwrap()
        };
        let mut sleeping = start("sleep 100");
        sleeping.check().unwrap();
        assert!(sleeping.cpu_seconds().unwrap() < 10.0);
        assert!(sleeping.end(true).is_err(), "a signal ended it");
        start("exit 0").end(false).unwrap();
        let error = start("echo because >&2; exit 4").end(false).unwrap_err();
        assert!(error.to_string().contains("because"), "{error}");
    }

    /// A program of Python's that prints which signal comes when its parent is gone.
    const PARENTS_END: &str = "import ctypes, sys; signal = ctypes.c_int()\n\
        ctypes.CDLL(None).prctl(2, ctypes.byref(signal)); print(signal.value, file=sys.stderr)\n\
        print(signal.value)";

    #[test]
    fn programs_end_with_this_one() {
        let python = find_program("python3").unwrap();
        assert_eq!(run(&python, &["-c".as_ref(), PARENTS_END.as_ref()]).unwrap(), "15\n");
        let dir = testkit::scratch();
        let arguments = ["-c".to_owned(), PARENTS_END.to_owned()];
        let log = dir.path().join("log");
        let asked = Running::start(&python, &arguments, log.clone()).unwrap();
        asked.end(false).unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "15\n");
        let killed = Running::start_server(&python, &arguments, log.clone()).unwrap();
        killed.end(false).unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "9\n");
    }

    #[test]
    fn names_of_programs_do_not_shift_fields() {
        let text = "7 (a ) b (c)) S 1 2 3 4 5 6 7 8 9 10 40 2 0 0 20";
        assert_eq!(parse_cpu_ticks(text), Some(42));
        assert_eq!(parse_cpu_ticks("7 (a"), None);
    }
}
