//! `guard` under hostile load on real mounts: programs that know what each of their files must be (`scripts/soak.py`) work while guards reserve and
//! repair all they can, are killed at random moments and begin anew, the file system runs full, is frozen and becomes read-only. Afterwards every byte,
//! size, time, mode, capability, hole and reservation is what the programs made it, the file system's checker is content, and nothing is
//! reserved that nobody asked for.
//!
//! `SOAK_SECONDS` and `SOAK_KILLS` say how long and how often for each file system, `SOAK_SEED` repeats what is chosen (not when what happens),
//! `SOAK_SYSTEMS` names some of them. With `SOAK_WITHOUT_GUARD=1` no guard runs: what fails then, too, is not the guard's doing.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::common::{arg, leandisk, number, signal};
use serde_json::Value;
use sim::Random;
use tempfile::TempDir;
use testkit::loops::mount;
use testkit::{HostMount, run, scratch};

const HOST_BYTES: u64 = 1536 << 20;
const WORKERS: u64 = 3;
const SIGTERM: i32 = 15;
/// What works is never still for so long.
const PATIENCE: Duration = Duration::from_secs(120);
/// From one comparison to the next.
const CYCLE: Duration = Duration::from_secs(20);

/// Sleeps for any time of these.
fn sleep(random: &mut Random, millis: std::ops::Range<u64>) {
    let more = random.below(millis.end - millis.start);
    std::thread::sleep(Duration::from_millis(millis.start + more));
}

/// A program at work.
struct Worker {
    child: Child,
    input: ChildStdin,
    said: Receiver<String>,
}

impl Worker {
    fn start(folder: &Path, seed: u64, able: &str) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts/soak.py");
        let mut command = Command::new("python3");
        command.args([script, arg(folder), &seed.to_string(), able]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (tell, said) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        let input = child.stdin.take().unwrap();
        Self { child, input, said }
    }

    fn tell(&mut self, what: &str) {
        if let Err(error) = writeln!(self.input, "{what}") {
            panic!("{what}: {error}: {:?}", self.child.wait());
        }
    }

    /// Waits for this answer; what it says else is wrong.
    fn wait_for(&self, answer: &str, wrong: &mut Vec<String>) -> String {
        loop {
            let line =
                self.said.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no answer: {answer}; {wrong:?}"));
            if line.starts_with(answer) {
                return line;
            }
            wrong.push(line);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server of databases on the file system, if it is installed.
struct Postgres {
    folder: PathBuf,
    socket: TempDir,
    bench: Option<Child>,
}

const POSTGRES_PORT: &str = "54397";

impl Postgres {
    fn programs() -> Option<PathBuf> {
        let folders = fs::read_dir("/usr/lib/postgresql").ok()?;
        folders.flatten().map(|entry| entry.path().join("bin")).find(|bin| bin.join("initdb").exists())
    }

    fn new(host: &Path) -> Option<Self> {
        Self::programs()?;
        let folder = host.join("postgres");
        let socket = scratch();
        fs::create_dir(&folder).unwrap();
        run("chown", &["postgres", arg(&folder), arg(socket.path())]);
        run("chmod", &["755", arg(socket.path().parent().unwrap()), arg(host), arg(host.parent().unwrap())]);
        let new = Self { folder, socket, bench: None };
        new.run("initdb", &["--data-checksums", "--no-sync", "-D", arg(&new.folder)]);
        let settings = format!(
            "port={POSTGRES_PORT}\nunix_socket_directories='{}'\nlisten_addresses=''\nshared_buffers=8MB\nmax_wal_size=64MB\n",
            new.socket.path().display()
        );
        let mut text = fs::read_to_string(new.folder.join("postgresql.conf")).unwrap();
        text.push_str(&settings);
        fs::write(new.folder.join("postgresql.conf"), text).unwrap();
        new.start();
        new.bench_with(&["-i", "-q", "-s", "3"]);
        Some(new)
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]);
        command.arg(Self::programs().unwrap().join(program)).args(args).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn run(&self, program: &str, args: &[&str]) {
        let said =
            self.command(program, args).stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
        assert!(said.status.success(), "{program}: {said:?}");
    }

    fn start(&self) {
        if self.command("pg_ctl", &["-D", arg(&self.folder), "status"]).status().unwrap().success() {
            return;
        }
        let log = self.log();
        // It does not end with those that start it: its output must not be ours.
        let args = ["-D", arg(&self.folder), "-l", arg(&log), "-w", "-t", "60", "start"];
        let status = self.command("pg_ctl", &args).status().unwrap();
        assert!(status.success(), "{}", fs::read_to_string(log).unwrap_or_default());
    }

    fn log(&self) -> PathBuf {
        self.socket.path().join("log")
    }

    fn bench_with(&self, args: &[&str]) {
        self.run(
            "pgbench",
            &[&["-h", arg(self.socket.path()), "-p", POSTGRES_PORT], args, &["postgres"]].concat(),
        );
    }

    /// It is asked for things for so long. Without `-n`, what it counts by would be emptied each time.
    fn go(&mut self, seconds: u64) {
        self.start();
        let seconds = seconds.to_string();
        let args =
            ["-h", arg(self.socket.path()), "-p", POSTGRES_PORT, "-n", "-c", "2", "-T", &seconds, "postgres"];
        self.bench = Some(self.command("pgbench", &args).spawn().unwrap());
    }

    /// Whether its sums are right and each of its pages is what it was written as.
    fn stop(&mut self) {
        if let Some(mut bench) = self.bench.take() {
            // Where the file system ran full, it gave up.
            bench.wait().unwrap();
        }
        self.start();
        let sums = "SELECT count(*) FROM (SELECT sum(abalance) FROM pgbench_accounts UNION SELECT sum(bbalance) FROM pgbench_branches \
            UNION SELECT sum(tbalance) FROM pgbench_tellers UNION SELECT coalesce(sum(delta), 0) FROM pgbench_history) sums";
        let args = ["-h", arg(self.socket.path()), "-p", POSTGRES_PORT, "-At", "-c", sums, "postgres"];
        let began = Instant::now();
        let said = loop {
            let said =
                self.command("psql", &args).stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
            // Where it found no room for its log it begins anew, or ends.
            if said.status.success() || began.elapsed() > PATIENCE {
                break said;
            }
            std::thread::sleep(Duration::from_millis(200));
            self.start();
        };
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "1", "the sums differ: {said:?}\n{log}");
        self.run(
            "pg_amcheck",
            &[
                "-h",
                arg(self.socket.path()),
                "-p",
                POSTGRES_PORT,
                "--heapallindexed",
                "--install-missing",
                "postgres",
            ],
        );
        self.run("pg_ctl", &["-D", arg(&self.folder), "-m", "fast", "-w", "stop"]);
        self.run("pg_checksums", &["--check", "-D", arg(&self.folder)]);
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(mut bench) = self.bench.take() {
            let _ = bench.kill();
            let _ = bench.wait();
        }
        let _ = self.command("pg_ctl", &["-D", arg(&self.folder), "-m", "immediate", "-w", "stop"]).status();
    }
}

/// What happened, for the last line.
#[derive(Default, Debug)]
struct Tally {
    kills: u64,
    ends: u64,
    fills: u64,
    freezes: u64,
    read_only: u64,
    cycles: u64,
    moved_bytes: u64,
    repaired: u64,
    reserved: u64,
}

struct Soak {
    kind: &'static str,
    host: HostMount,
    random: Random,
    workers: Vec<Worker>,
    guard: Option<Child>,
    state: TempDir,
    /// On a machine on which nobody waits for anything, and whose devices serve nobody.
    pressure: TempDir,
    postgres: Option<Postgres>,
    tally: Tally,
    wrong: Vec<String>,
    is_without_guard: bool,
}

impl Drop for Soak {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.say_what_is_free();
        }
        if let Some(guard) = &mut self.guard {
            let _ = guard.kill();
            let _ = guard.wait();
        }
        self.workers.clear();
        self.postgres = None;
    }
}

impl Soak {
    fn new(kind: &'static str, seed: u64, with_postgres: bool) -> Self {
        let host = match kind {
            "xfs-exchange" => HostMount::xfs_that_exchanges_ranges(HOST_BYTES),
            // Snapshots keep what was.
            "btrfs" => HostMount::new(kind, 2 * HOST_BYTES),
            kind => HostMount::new(kind, HOST_BYTES),
        };
        let pressure = scratch();
        for name in ["io", "cpu"] {
            fs::write(pressure.path().join(name), "some avg10=0.00 total=0\n").unwrap();
        }
        let able = match kind {
            "ext4" => "ext4",
            "btrfs" => "btrfs,reflink",
            _ => "xfs,reflink",
        };
        let workers = (0..WORKERS).map(|at| Worker::start(host.path(), seed * WORKERS + at, able)).collect();
        let postgres = with_postgres.then(|| Postgres::new(host.path())).flatten();
        if with_postgres && postgres.is_none() {
            println!("skipped: PostgreSQL is not installed");
        }
        let random = Random::new(seed);
        let (tally, wrong) = (Tally::default(), Vec::new());
        let is_without_guard = setting("SOAK_WITHOUT_GUARD", 0) != 0;
        let (guard, state) = (None, scratch());
        Self { kind, host, random, workers, guard, state, pressure, postgres, tally, wrong, is_without_guard }
    }

    /// All workers do this; their answers.
    fn all(&mut self, what: &str, answer: &str) -> Vec<String> {
        self.workers.iter_mut().for_each(|worker| worker.tell(what));
        let Self { workers, wrong, .. } = self;
        workers.iter().map(|worker| worker.wait_for(answer, wrong)).collect()
    }

    /// For who reads why it failed.
    fn say_what_is_free(&self) {
        if let Some(status) = self.status() {
            println!("{}", status["paths"]);
        }
        let path = arg(self.host.path());
        let asked: &[&[&str]] = match self.kind {
            "btrfs" => &[&["btrfs", "filesystem", "usage", path]],
            _ => &[&["df", "-h", path], &["df", "-i", path]],
        };
        for words in asked {
            let said = Command::new(words[0]).args(&words[1..]).output();
            println!(
                "{}",
                said.map_or_else(|e| e.to_string(), |said| String::from_utf8_lossy(&said.stdout).into())
            );
        }
    }

    fn start_guard(&mut self) {
        if self.is_without_guard {
            return;
        }
        let (host, state, pressure) = (self.host.path(), self.state.path(), self.pressure.path());
        let mut command = leandisk();
        command.args(["guard", arg(host), "--state", arg(state), "--pressure", arg(pressure), "--idle", "0"]);
        command.args(["--device-counters", arg(pressure)]).stdout(Stdio::null()).stderr(Stdio::null());
        self.guard = Some(command.spawn().unwrap());
    }

    fn status(&self) -> Option<Value> {
        let text = fs::read_to_string(self.state.path().join("guard.json")).ok()?;
        serde_json::from_str(&text).ok()
    }

    fn note_status(&mut self) {
        let Some(status) = self.status() else { return };
        self.tally.moved_bytes += number(&status, "/paths/0/moved_bytes");
        self.tally.repaired += number(&status, "/paths/0/repaired");
        self.tally.reserved = self.tally.reserved.max(number(&status, "/paths/0/reserved_bytes"));
    }

    fn kill_guard(&mut self) {
        let Some(mut guard) = self.guard.take() else { return };
        self.note_status();
        guard.kill().unwrap();
        guard.wait().unwrap();
        self.tally.kills += 1;
    }

    fn end_guard(&mut self) {
        while let Some(mut guard) = self.guard.take() {
            signal(&guard, "TERM");
            let began = Instant::now();
            while guard.try_wait().unwrap().is_none() {
                assert!(began.elapsed() < PATIENCE, "the guard does not end");
                std::thread::sleep(Duration::from_millis(20));
            }
            self.note_status();
            let status = guard.wait().unwrap();
            if status.success() {
                self.tally.ends += 1;
                return;
            }
            // It had not begun to listen to signals.
            assert_eq!(status.signal(), Some(SIGTERM), "{status}");
            self.tally.kills += 1;
            self.start_guard();
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// Nothing is free for a while.
    fn fill(&mut self) {
        self.all("short", "short");
        let fill = self.host.path().join("fill");
        let file = fs::File::create(&fill).unwrap();
        let (mut at, mut step) = (0, 256 << 20);
        while step >= 4096 {
            match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), at, step) {
                Ok(()) => at += step,
                Err(_) => step /= 2,
            }
        }
        drop(file);
        sleep(&mut self.random, 200..1500);
        if self.random.below(2) == 0 {
            self.kill_guard();
            self.start_guard();
            sleep(&mut self.random, 100..800);
        }
        fs::remove_file(fill).unwrap();
        // On Btrfs it is free for others only once that is stored.
        run("sync", &["-f", arg(self.host.path())]);
        self.all("calm", "calm");
        self.tally.fills += 1;
    }

    fn freeze(&mut self) {
        run("fsfreeze", &["--freeze", arg(self.host.path())]);
        sleep(&mut self.random, 50..1200);
        let kills = self.random.below(3) == 0;
        if let Some(guard) = self.guard.as_mut().filter(|_| kills) {
            guard.kill().unwrap();
        }
        run("fsfreeze", &["--unfreeze", arg(self.host.path())]);
        if kills {
            self.kill_guard();
            self.start_guard();
        }
        self.tally.freezes += 1;
    }

    /// While nobody writes, and a guard would give back.
    fn become_read_only(&mut self) {
        let path = arg(self.host.path()).to_owned();
        let remount = |how: &str| {
            Command::new("mount").args(["-o", how, &path]).stderr(Stdio::null()).status().unwrap()
        };
        let began = Instant::now();
        // The guard may have a file open at the moment.
        while !remount("remount,ro").success() {
            assert!(began.elapsed() < PATIENCE, "it does not become read-only");
            std::thread::sleep(Duration::from_millis(20));
        }
        sleep(&mut self.random, 100..1500);
        assert!(remount("remount,rw").success());
        self.tally.read_only += 1;
    }

    /// What happens next to the guard and the file system.
    fn happen(&mut self) {
        match self.random.below(40) {
            0 => self.fill(),
            1 => self.freeze(),
            2..=3 => {
                self.end_guard();
                self.start_guard();
            }
            4..=31 => {
                self.kill_guard();
                self.start_guard();
            }
            _ => {}
        }
        // Mostly in the midst of something; now and then it has the time to repair.
        let millis = if self.random.below(4) == 0 { 600..2500 } else { 20..400 };
        sleep(&mut self.random, millis);
    }

    fn cycle(&mut self, length: Duration) {
        self.tally.cycles += 1;
        self.all("go", "going");
        if let Some(postgres) = &mut self.postgres {
            postgres.go(length.as_secs());
        }
        if self.guard.is_none() {
            self.start_guard();
        }
        let began = Instant::now();
        while began.elapsed() < length {
            self.happen();
        }
        self.all("pause", "paused");
        if self.random.below(2) == 0 {
            // What it leaves is the next one's.
            self.kill_guard();
            self.start_guard();
        }
        if let Some(postgres) = &mut self.postgres {
            postgres.stop();
        }
        if self.random.below(3) == 0 {
            self.become_read_only();
        }
        sleep(&mut self.random, 0..3000);
        self.end_guard();
        self.judge();
        self.check();
    }

    fn judge(&mut self) {
        let said = self.all("judge", "judged");
        println!("{} {:?}: {}", self.kind, self.tally, said.join(" "));
        let wrong = std::mem::take(&mut self.wrong);
        assert!(wrong.is_empty(), "{}: {}", self.kind, wrong.join("\n"));
    }

    /// Has the file system checked, and compares what is read from the device.
    fn check(&mut self) {
        self.all("leave", "leave");
        let (path, image) =
            (self.host.path().to_owned(), self.host.path().parent().unwrap().join("filesystem"));
        testkit::loops::unmount(&path);
        // Who else looks at all mounts of the machine may keep it for a moment.
        testkit::loops::wait_until_detached(&image);
        match self.kind {
            "ext4" => run("e2fsck", &["-fn", arg(&image)]),
            "btrfs" => run("btrfs", &["check", "--check-data-csum", arg(&image)]),
            // It looks at whole logs alone, which an unmount leaves.
            _ if self.kind == "xfs" => run("xfs_repair", &["-n", arg(&image)]),
            // An older `xfs_repair` does not know the feature.
            _ => String::new(),
        };
        mount(&["-o", "loop", arg(&image), arg(&path)]);
        self.all("enter", "enter");
        self.judge();
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn soak(kind: &'static str, seconds: u64, kills: u64, with_postgres: bool) {
    let wanted = std::env::var("SOAK_SYSTEMS").unwrap_or_default();
    if !wanted.is_empty() && !wanted.split(',').any(|one| one == kind) {
        return;
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = setting("SOAK_SEED", now.as_secs());
    println!("{kind}: SOAK_SEED={seed}");
    let mut soak = Soak::new(kind, seed, with_postgres);
    let length = CYCLE.min(Duration::from_secs(seconds));
    let began = Instant::now();
    while soak.tally.cycles == 0
        || began.elapsed() < Duration::from_secs(seconds)
        || (soak.tally.kills < kills && !soak.is_without_guard)
    {
        soak.cycle(length);
    }
    soak.workers.iter_mut().for_each(|worker| worker.tell("end"));
}

const SECONDS: u64 = 4;

#[test]
fn what_busy_programs_wrote_on_ext4_is_what_they_wrote() {
    soak("ext4", SECONDS, 0, false);
}

#[test]
fn what_busy_programs_wrote_on_xfs_is_what_they_wrote() {
    soak("xfs", SECONDS, 0, false);
}

#[test]
#[ignore = "make guard-soak: an hour a file system"]
fn an_hour_on_each_file_system() {
    for kind in ["ext4", "xfs", "xfs-exchange", "btrfs"] {
        soak(kind, setting("SOAK_SECONDS", 3600), setting("SOAK_KILLS", 200), true);
    }
}
