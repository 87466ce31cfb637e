//! Copies that are interrupted, and what `--resume` makes of what they left: the source, or a word why it starts over.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common;
use crate::common::{arg, assert_only, names_in, output, succeed};
use testkit::{run, scratch};

/// Calls by which a copy changes what is on the storage, as strace names them.
const CALLS: [&str; 10] = [
    "unlink,unlinkat",
    "rename,renameat,renameat2",
    "fsync",
    "fdatasync",
    "ftruncate",
    "fallocate",
    "pwrite64",
    "flock",
    "fsetxattr,fremovexattr",
    "fchmod",
];

/// Data without waste: every chunk is written.
fn incompressible(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    let of = format!("of={}", path.display());
    run("dd", &["if=/dev/urandom", &of, "bs=1M", "count=12", "status=none"]);
    path
}

/// Runs the program, and has one of its threads get a signal at its n-th call of this kind.
fn at_call(call: &str, number: usize, signal: &str, args: &[&str]) -> Output {
    let (trace, inject) = (format!("trace={call}"), format!("inject={call}:signal={signal}:when={number}"));
    Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject])
        .arg(common::program())
        .args(args)
        .output()
        .unwrap()
}

/// The message of a copy that succeeds.
fn message_of(args: &[&str]) -> String {
    let output = output(args);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "leandisk {args:?}: {}\n{message}", output.status);
    message
}

/// A copy that was told to stop in its midst.
struct Stopped {
    dir: tempfile::TempDir,
    source: PathBuf,
    target: PathBuf,
}

impl Stopped {
    fn new(source: &Path) -> Self {
        let dir = scratch();
        let target = dir.path().join("target.qcow2");
        let stopped = Self { dir, source: source.to_owned(), target };
        let output = at_call("pwrite64", 3, "SIGTERM", &stopped.args(&[]));
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{message}");
        assert!(message.contains("is kept, and --resume goes on with it after"), "{message}");
        stopped.assert_names(&[".target.qcow2.leandisk-partial", ".target.qcow2.leandisk-progress"]);
        stopped
    }

    fn args<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        [&["copy", arg(&self.source), arg(&self.target), "--threads", "1"], more].concat()
    }

    fn assert_names(&self, names: &[&str]) {
        assert_only(self.dir.path(), names);
    }

    fn assert_whole(&self) {
        self.assert_names(&["target.qcow2"]);
        run("qemu-img", &["compare", "-q", "-f", "raw", "-F", "qcow2", arg(&self.source), arg(&self.target)]);
        run("qemu-img", &["check", "-q", arg(&self.target)]);
    }
}

#[test]
fn what_is_kept_is_told_to_who_comes_next() {
    let from = scratch();
    let source = incompressible(from.path(), "source.raw");
    let stopped = Stopped::new(&source);
    let message = message_of(&stopped.args(&["--dry-run"]));
    assert!(message.contains("--resume goes on with it after"), "{message}");
    let message = message_of(&stopped.args(&["--resume"]));
    assert!(message.contains("going on after"), "{message}");
    stopped.assert_whole();

    let stopped = Stopped::new(&source);
    let message = message_of(&stopped.args(&[]));
    assert!(
        message.contains("starting over") && message.contains("--resume would have gone on"),
        "{message}"
    );
    stopped.assert_whole();

    // All that was read counts as done, and is not read again.
    let stopped = Stopped::new(&source);
    let lines = message_of(&stopped.args(&["--resume", "--progress", "json"]));
    let done: Vec<u64> = lines
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .map(|line| line["done_bytes"].as_u64().unwrap())
        .collect();
    assert!(done[1] >= 2 << 20 && *done.last().unwrap() == 12 << 20, "{lines}");
}

#[test]
fn a_source_that_changed_starts_over_though_its_time_was_put_back() {
    let from = scratch();
    for changes in ["bytes", "another file"] {
        let source = incompressible(from.path(), "source.raw");
        let reference = from.path().join("time");
        run("touch", &["-r", arg(&source), arg(&reference)]);
        let stopped = Stopped::new(&source);
        match changes {
            "bytes" => {
                let of = format!("of={}", source.display());
                run(
                    "dd",
                    &["if=/dev/urandom", &of, "bs=64", "count=1", "seek=5", "conv=notrunc", "status=none"],
                );
            }
            _ => {
                let other = incompressible(from.path(), "other.raw");
                fs::rename(other, &source).unwrap();
            }
        }
        run("touch", &["-r", arg(&reference), arg(&source)]);
        let message = message_of(&stopped.args(&["--resume"]));
        assert!(message.contains("starting over: the source changed since"), "{changes}: {message}");
        stopped.assert_whole();
    }
}

#[test]
fn what_was_kept_of_another_file_starts_over() {
    let from = scratch();
    let source = incompressible(from.path(), "source.raw");
    for what in ["a copy of it", "another length", "other options", "a broken checkpoint", "no checkpoint"] {
        let stopped = Stopped::new(&source);
        let partial = stopped.dir.path().join(".target.qcow2.leandisk-partial");
        let progress = stopped.dir.path().join(".target.qcow2.leandisk-progress");
        let mut options = vec!["--resume"];
        match what {
            "a copy of it" => {
                let copied = stopped.dir.path().join("copied");
                run("cp", &["--preserve=all", arg(&partial), arg(&copied)]);
                fs::rename(copied, &partial).unwrap();
            }
            "another length" => {
                fs::OpenOptions::new().write(true).open(&partial).unwrap().set_len(4096).unwrap();
            }
            "other options" => options.extend(["-o", "cluster_size=4096"]),
            "a broken checkpoint" => {
                let mut bytes = fs::read(&progress).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                fs::write(&progress, bytes).unwrap();
            }
            _ => fs::remove_file(&progress).unwrap(),
        }
        let message = message_of(&stopped.args(&options));
        assert!(message.contains("starting over: "), "{what}: {message}");
        stopped.assert_whole();
    }
}

#[test]
fn nothing_is_kept_of_what_may_change_unseen() {
    let from = scratch();
    let source = incompressible(from.path(), "source.raw");
    let dir = scratch();
    let target = dir.path().join("target.qcow2");
    let args = ["copy", arg(&source), arg(&target), "--threads", "1", "--in-use"];
    let output = at_call("pwrite64", 3, "SIGTERM", &args);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{message}");
    assert!(message.contains("the incomplete target was removed"), "{message}");
    assert_only(dir.path(), &[]);
}

/// How the second of three copies is called: it goes on or starts over, and is one process or two, of which one is killed.
const SECOND: [&[&str]; 3] =
    [&["--confine", "never"], &["--confine", "never", "--resume"], &["--confine", "always", "--resume"]];

/// Stops a copy, has another one killed at its n-th call, and a third one finish; answers whether the second one was killed, and
/// whether the third went on with something.
fn stopped_killed_finished(source: &Path, call: &str, number: usize, more: &[&str]) -> (bool, bool) {
    let stopped = Stopped::new(source);
    let output = at_call(call, number, "SIGKILL", &stopped.args(more));
    let has_lost_broker =
        String::from_utf8_lossy(&output.stderr).contains("ask the process that opens files");
    let is_killed = output.status.code().is_none() || has_lost_broker;
    assert!(is_killed || output.status.success(), "{call} {number}: {output:?}");
    let is_there = stopped.target.exists();
    if is_there {
        run("qemu-img", &["compare", "-q", arg(source), arg(&stopped.target)]);
    }
    let force: &[&str] = if is_there { &["--force", "--resume"] } else { &["--resume"] };
    let message = message_of(&stopped.args(force));
    stopped.assert_whole();
    (is_killed, message.contains("going on after"))
}

fn kill_at_calls(calls: &[&str], numbers: impl Iterator<Item = usize> + Clone) {
    let from = scratch();
    let source = incompressible(from.path(), "source.raw");
    let (mut killed, mut resumed) = (0, 0);
    for call in calls {
        for more in SECOND {
            for number in numbers.clone() {
                let (is_killed, goes_on) = stopped_killed_finished(&source, call, number, more);
                killed += u32::from(is_killed);
                resumed += u32::from(goes_on);
                if !is_killed {
                    break;
                }
            }
        }
    }
    println!("{killed} copies killed, {resumed} went on afterwards");
    assert!(killed as usize >= calls.len() && resumed > 0, "{killed} killed, {resumed} went on");
}

#[test]
fn killed_at_what_it_does_to_names_and_finished_it_is_the_source() {
    kill_at_calls(&["unlink,unlinkat", "fsync"], 1..3);
}

/// `make resume`.
#[test]
#[ignore = "minutes"]
fn killed_at_every_call_and_finished_it_is_the_source() {
    kill_at_calls(&CALLS, 1..);
}

#[test]
fn a_partial_target_is_for_its_owner_alone() {
    let from = scratch();
    let source = incompressible(from.path(), "source.raw");
    fs::set_permissions(&source, fs::Permissions::from_mode(0o644)).unwrap();
    let stopped = Stopped::new(&source);
    for name in names_in(stopped.dir.path()) {
        let mode = fs::metadata(stopped.dir.path().join(&name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    succeed(&stopped.args(&["--resume"]));
    assert_eq!(fs::metadata(&stopped.target).unwrap().permissions().mode() & 0o777, 0o644 & !umask());
}

/// The umask that the tests were started with.
fn umask() -> u32 {
    u32::from_str_radix(run("sh", &["-c", "umask"]).trim(), 8).unwrap()
}
