//! `guard` on real file systems: files that grow stay in one piece, what was closed in pieces is put together, nothing stays reserved, and
//! neither contents nor times tell of it. Judged by `filefrag`, `stat` and the bytes.
//!
//! Nothing here depends on how fast the machine is: a writer waits until the guard has done what it is to be judged by. Meanwhile it asks the
//! guard, and leaves the files alone: one that `filefrag` has open is one that the guard does not touch.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{arg, document, fail, leandisk, number, signal, succeed};
use serde_json::Value;
use tempfile::TempDir;
use testkit::loops::{mount, unmount};
use testkit::{HostMount, run, scratch};

const FILESYSTEMS: [&str; 3] = ["ext4", "xfs", "btrfs"];
/// Sparse: what is reserved takes nothing of the disk below.
const HOST_BYTES: u64 = 4 << 30;
const PIECE_BYTES: usize = 64 << 10;
/// XFS reserves some by itself, but not so much.
const RESERVED_BYTES: u64 = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(120);

/// Polls until `done`.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Stands for what the packaged service may do, and no more.
const UNIT_CAPABILITIES: &str = "as the packaged service";

/// The program, with the capabilities of the packaged service.
fn leandisk_as_unit() -> Command {
    let unit = include_str!("../../../../packaging/systemd/leandisk-guard.service");
    let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let names = line.split(' ').map(|name| name.strip_prefix("CAP_").unwrap().to_lowercase());
    let set: String = names.map(|name| format!(",+{name}")).collect();
    let mut command = Command::new("setpriv");
    command.args(["--inh-caps=-all", &format!("--bounding-set=-all{set}")]).arg(leandisk().get_program());
    command
}

/// A guard that runs, and its folders.
struct Running {
    child: Child,
    state: Option<TempDir>,
    pressure: TempDir,
}

impl Running {
    fn start(path: &Path, more: &[&str]) -> Self {
        Self::start_in(path, scratch(), more)
    }

    /// On a machine on which nobody waits for anything.
    fn start_in(path: &Path, state: TempDir, more: &[&str]) -> Self {
        Self::try_start_in(path, state, more).unwrap_or_else(|said| panic!("{said}"))
    }

    /// The same; what it said instead if it does not guard.
    fn try_start_in(path: &Path, state: TempDir, more: &[&str]) -> Result<Self, String> {
        let pressure = scratch();
        for name in ["io", "cpu"] {
            fs::write(pressure.path().join(name), "some avg10=0.00 total=0\n").unwrap();
        }
        let mut command = match more.contains(&UNIT_CAPABILITIES) {
            true => leandisk_as_unit(),
            false => leandisk(),
        };
        let more = more.iter().filter(|option| **option != UNIT_CAPABILITIES);
        command.args(["guard", arg(path), "--state", arg(state.path()), "--pressure", arg(pressure.path())]);
        if !more.clone().any(|option| *option == "--device-counters") {
            // Others use the same devices as the test.
            command.args(["--device-counters", arg(pressure.path())]);
        }
        let mut child = command.args(["--idle", "0"]).args(more).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        while !line.contains("guarding") && said.read_line(&mut line).unwrap() > 0 {}
        let is_guarding = line.contains("guarding");
        let running = Self { child, state: Some(state), pressure };
        if is_guarding { Ok(running) } else { Err(line) }
    }

    fn folder(&self) -> &Path {
        self.state.as_ref().unwrap().path()
    }

    fn status(&self) -> Value {
        document("leandisk.guard/1", &["guard", "status", "--state", arg(self.folder())])
    }

    fn count(&self, name: &str) -> u64 {
        number(&self.status(), &format!("/paths/0/{name}"))
    }

    /// Ends it well, within ten seconds of its own.
    fn end(mut self) -> TempDir {
        signal(&self.child, "TERM");
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), Some(0));
        assert!(!self.status()["running"].as_bool().unwrap());
        self.state.take().unwrap()
    }

    fn kill(mut self) -> TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.state.take().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn allocated(file: &Path) -> u64 {
    fs::metadata(file).unwrap().blocks() * 512
}

fn is_reserved(file: &Path) -> bool {
    allocated(file) >= fs::metadata(file).unwrap().len() + RESERVED_BYTES
}

fn extents(file: &Path) -> u64 {
    let said = run("filefrag", &[arg(file)]);
    said.trim_end().rsplit(": ").next().unwrap().split(' ').next().unwrap().parse().unwrap()
}

fn stamp(file: &Path) -> (i64, i64) {
    let found = fs::metadata(file).unwrap();
    (found.mtime(), found.mtime_nsec())
}

/// Contents that tell where they are.
fn piece(file: usize, at: usize) -> Vec<u8> {
    (0..PIECE_BYTES).map(|byte| (byte.wrapping_mul(31) ^ at.wrapping_mul(7) ^ file) as u8).collect()
}

/// Files that are written in turns, a piece at a time, each stored before the next.
struct Writers(Vec<(PathBuf, File)>);

impl Writers {
    fn new(folder: &Path, name: &str, count: usize) -> Self {
        let file = |at| folder.join(format!("{name}{at}"));
        Self((0..count).map(|at| (file(at), File::create(file(at)).unwrap())).collect())
    }

    fn write(&mut self, turns: std::ops::Range<usize>) {
        for turn in turns {
            for (at, (_, file)) in self.0.iter_mut().enumerate() {
                file.write_all(&piece(at, turn)).unwrap();
                file.sync_data().unwrap();
            }
        }
    }

    fn wait_until_reserved(&self) {
        until("room was reserved for all", || self.0.iter().all(|(path, _)| is_reserved(path)));
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.0.iter().map(|(path, _)| path.clone()).collect()
    }
}

fn check_contents(paths: &[PathBuf], turns: usize) {
    for (at, path) in paths.iter().enumerate() {
        let expected: Vec<u8> = (0..turns).flat_map(|turn| piece(at, turn)).collect();
        assert!(fs::read(path).unwrap() == expected, "{}", path.display());
    }
}

fn total(paths: &[PathBuf]) -> u64 {
    paths.iter().map(|path| extents(path)).sum()
}

#[test]
fn files_that_grow_stay_together_and_nothing_shows_afterwards() {
    for filesystem in FILESYSTEMS {
        let host = HostMount::new(filesystem, HOST_BYTES);
        let turns = 32;
        let mut without = Writers::new(host.path(), "without", 4);
        without.write(0..turns);
        let without = total(&without.paths());

        let guard = Running::start(host.path(), &["--no-repair"]);
        let mut set_id = Writers::new(host.path(), "setid", 1);
        fs::set_permissions(&set_id.paths()[0], fs::Permissions::from_mode(0o4644)).unwrap();
        set_id.write(0..8);
        let mut writers = Writers::new(host.path(), "with", 4);
        writers.write(0..1);
        writers.wait_until_reserved();
        until("it was told", || guard.count("reserved_bytes") > 0);
        writers.write(1..turns);
        assert!(!is_reserved(&set_id.paths()[0]), "{filesystem}: set-id");
        assert_eq!(fs::metadata(&set_id.paths()[0]).unwrap().mode() & 0o7777, 0o4644);
        let paths = writers.paths();
        let stamps: Vec<_> = paths.iter().map(|path| stamp(path)).collect();
        drop(writers);
        until("room went back", || !paths.iter().any(|path| is_reserved(path)));
        let with = total(&paths);
        println!("{filesystem}: {without} extents without the guard, {with} with it");
        // One before the guard knew of the file, and one after; none of them are in anybody's way.
        assert!(with <= without && with <= 2 * paths.len() as u64 + 2, "{filesystem}: {with} of {without}");
        check_contents(&paths, turns);
        let now: Vec<_> = paths.iter().map(|path| stamp(path)).collect();
        assert_eq!(now, stamps, "{filesystem}: times of modification");
        until("it was counted", || guard.count("prevented") > 0 || filesystem == "ext4");
        guard.end();
    }
}

#[test]
fn a_time_that_was_seen_before_room_was_reserved_comes_back() {
    for filesystem in FILESYSTEMS {
        let host = HostMount::new(filesystem, HOST_BYTES);
        let path = host.path().join("file");
        let mut writers = Writers::new(host.path(), "other", 1);
        let file = File::create(&path).unwrap();
        file.write_all_at(&piece(0, 0), 0).unwrap();
        let seen = stamp(&path);
        let guard = Running::start(host.path(), &["--no-repair"]);
        // An event without a write: it says that the file was written and no more.
        writers.write(0..1);
        writers.wait_until_reserved();
        drop(file);
        let paths = writers.paths();
        let times = stamp(&paths[0]);
        let on_xfs = filesystem == "xfs";
        drop(writers);
        let state = guard.end();
        assert!(!is_reserved(&paths[0]), "{filesystem}");
        let after = stamp(&paths[0]);
        // Nothing was written since: the guard's own call is not seen; what was seen meanwhile was it.
        assert!(after <= times && (!on_xfs || after == times), "{filesystem}: {after:?} {times:?}");
        assert_eq!(stamp(&path), seen);
        check_contents(&paths, 1);
        drop(state);
    }
}

/// A program that writes to a file which it has mapped for writing, and has both until its input ends.
fn maps_and_writes(path: &Path) -> Child {
    let script = "import mmap, os, sys\n\
        fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n\
        os.ftruncate(fd, 4096)\n\
        memory = mmap.mmap(fd, 4096)\n\
        os.pwrite(fd, bytes(65536), 0)\n\
        sys.stdin.read()\n";
    let mut python = Command::new("python3");
    python.args(["-c", script, arg(path)]).stdin(Stdio::piped()).spawn().unwrap()
}

/// Waits until room is reserved of the file, ends its writer and then the guard. Answers the time that the file had with the room.
fn time_when_reserved(guard: Running, mut writer: Child, path: &Path) -> (i64, i64) {
    until("it was told", || guard.count("reserved_bytes") > 0);
    let reserved = stamp(path);
    drop(writer.stdin.take());
    assert!(writer.wait().unwrap().success());
    until("room went back", || !is_reserved(path));
    guard.end();
    reserved
}

#[test]
fn a_time_from_before_a_reservation_is_not_set_where_stores_may_have_gone_by_unseen() {
    for filesystem in ["ext4", "btrfs"] {
        let host = HostMount::new(filesystem, HOST_BYTES);
        let path = host.path().join("file");
        let guard = Running::start(host.path(), &["--no-repair"]);
        let reserved = time_when_reserved(guard, maps_and_writes(&path), &path);
        assert_eq!(stamp(&path), reserved, "{filesystem}");
    }
}

/// The packaged service may look at the programs of all users, as the guard has to.
#[test]
fn a_time_comes_back_as_the_packaged_service_after_another_user_wrote() {
    for filesystem in ["ext4", "btrfs"] {
        let host = HostMount::new(filesystem, HOST_BYTES);
        let path = host.path().join("file");
        let guard = Running::start(host.path(), &["--no-repair", UNIT_CAPABILITIES]);
        let writer = Command::new("python3")
            .args(["-c", "import os, sys; os.write(1, bytes(65536)); sys.stdin.read()"])
            .uid(65534)
            .stdin(Stdio::piped())
            .stdout(File::create(&path).unwrap())
            .spawn()
            .unwrap();
        let reserved = time_when_reserved(guard, writer, &path);
        assert!(stamp(&path) < reserved, "{filesystem}: the time of the reservation stays");
    }
}

#[test]
fn what_a_killed_guard_reserved_goes_back_with_the_next() {
    for filesystem in FILESYSTEMS {
        let host = HostMount::new(filesystem, HOST_BYTES);
        let guard = Running::start(host.path(), &["--no-repair"]);
        let mut writers = Writers::new(host.path(), "file", 3);
        writers.write(0..1);
        writers.wait_until_reserved();
        let state = guard.kill();
        writers.write(1..3);
        let paths = writers.paths();
        drop(writers);
        // Somebody else's room is not the guard's.
        let others = host.path().join("others");
        fs::write(&others, piece(9, 9)).unwrap();
        run("fallocate", &["--keep-size", "--length", "64M", arg(&others)]);
        let others_bytes = allocated(&others);
        let said = succeed(&["guard", "status", "--state", arg(state.path())]);
        assert!(said.contains("No guard runs"), "{said}");
        assert!(paths.iter().all(|path| is_reserved(path)), "{filesystem}: without a guard it stays");
        let guard = Running::start_in(host.path(), state, &["--no-repair"]);
        until("room went back", || !paths.iter().any(|path| is_reserved(path)));
        assert_eq!(allocated(&others), others_bytes, "{filesystem}");
        check_contents(&paths, 3);
        let state = guard.end();
        let ledger = fs::read_dir(state.path())
            .unwrap()
            .flatten()
            .find(|entry| arg(&entry.path()).ends_with("ledger"));
        let ledger = fs::read_to_string(ledger.unwrap().path()).unwrap();
        assert_eq!(ledger.matches("claim").count(), ledger.matches("given").count(), "{ledger}");
    }
}

/// A file system with a file in many pieces, and room to put it together.
fn in_pieces(filesystem: &str) -> (HostMount, PathBuf) {
    let host = HostMount::new(filesystem, if filesystem == "ext4" { 64 << 20 } else { 400 << 20 });
    let (path, fill) = (host.path().join("in pieces"), host.path().join("fill"));
    fs::create_dir(&fill).unwrap();
    let count = 48;
    let contents: Vec<u8> = (0..count).flat_map(|at| piece(1, at)).collect();
    if filesystem == "ext4" {
        // What finds only holes is in pieces.
        let mut files = Vec::new();
        loop {
            let file = fill.join(files.len().to_string());
            if fs::write(&file, piece(0, 0)).is_err() {
                fs::remove_file(file).unwrap();
                break;
            }
            files.push(file);
        }
        run("sync", &["-f", arg(host.path())]);
        files.iter().step_by(2).for_each(|file| fs::remove_file(file).unwrap());
        run("sync", &["-f", arg(host.path())]);
        fs::write(&path, &contents).unwrap();
        run("sync", &["-f", arg(host.path())]);
        files.iter().skip(1).step_by(2).for_each(|file| fs::remove_file(file).unwrap());
        run("sync", &["-f", arg(host.path())]);
    } else {
        // From its end to its beginning, with something else between.
        let file = File::create(&path).unwrap();
        for at in (0..count).rev() {
            let start = at * PIECE_BYTES;
            file.write_all_at(&contents[start..start + PIECE_BYTES], start as u64).unwrap();
            file.sync_all().unwrap();
            let other = File::create(fill.join(at.to_string())).unwrap();
            other.write_all_at(&contents[..PIECE_BYTES], 0).unwrap();
            other.sync_all().unwrap();
        }
    }
    run("touch", &["--date", "2001-02-03 04:05:06.789", arg(&path)]);
    assert!(extents(&path) > 8, "{filesystem}: {}", extents(&path));
    (host, path)
}

/// As who wrote it does.
fn close_after_writing(path: &Path) {
    drop(File::options().append(true).open(path).unwrap());
}

#[test]
fn what_was_closed_in_pieces_is_put_together_unless_it_is_shared_or_open() {
    for filesystem in FILESYSTEMS {
        let (host, path) = in_pieces(filesystem);
        let shares = filesystem != "ext4";
        let copy = host.path().join("copy");
        if shares {
            run("cp", &["--reflink=always", arg(&path), arg(&copy)]);
        }
        let (before, contents, time) = (extents(&path), fs::read(&path).unwrap(), stamp(&path));

        let guard = Running::start(host.path(), &["--no-prevent", "--dry-run"]);
        close_after_writing(&path);
        until("it was looked at", || {
            guard.count("waiting_files") == 0 && {
                let count = if shares { "shared_skipped" } else { "repaired" };
                guard.count(count) > 0
            }
        });
        let state = guard.end();
        assert_eq!((extents(&path), stamp(&path)), (before, time), "{filesystem}: a dry run");
        assert!(
            !fs::read_dir(state.path())
                .unwrap()
                .flatten()
                .any(|entry| arg(&entry.path()).ends_with("ledger"))
        );

        let guard = Running::start(host.path(), &["--no-prevent"]);
        if shares {
            close_after_writing(&path);
            until("it was skipped", || guard.count("shared_skipped") > 0);
            let said = run("filefrag", &["-v", arg(&path)]);
            assert!(said.contains("shared") && extents(&path) == before, "{filesystem}: {said}");
            fs::remove_file(&copy).unwrap();
            run("sync", &["-f", arg(host.path())]);
            // XFS frees what is removed behind everybody's back.
            until("it is not shared any more", || !run("filefrag", &["-v", arg(&path)]).contains("shared"));
        }
        // While somebody reads it, it stays.
        let reader = File::open(&path).unwrap();
        close_after_writing(&path);
        std::thread::sleep(Duration::from_millis(1500));
        assert_eq!(extents(&path), before, "{filesystem}: it is open");
        drop(reader);
        until("it was put together", || guard.count("repaired") > 0 && guard.count("moved_bytes") > 0);
        assert!(extents(&path) < before, "{filesystem}: {before} {}", extents(&path));
        assert!(fs::read(&path).unwrap() == contents && stamp(&path) == time, "{filesystem}");
        println!("{filesystem}: {before} extents, {} once it was put together", extents(&path));
        guard.end();
    }
}

#[test]
fn room_of_what_became_a_program_goes_back_and_what_its_owner_reserved_stays() {
    for filesystem in FILESYSTEMS {
        let host = HostMount::new(filesystem, HOST_BYTES);
        let own = host.path().join("own");
        let mut file = File::create(&own).unwrap();
        // It ends 20 KiB past the end of the file.
        run("fallocate", &["--keep-size", "--length", "120K", arg(&own)]);
        let guard = Running::start(host.path(), &["--no-repair"]);
        file.write_all(&[&piece(0, 0)[..], &piece(0, 1)[..36 << 10]].concat()).unwrap();
        file.sync_data().unwrap();
        let own_bytes = allocated(&own);
        assert!(own_bytes >= 120 << 10, "{filesystem}: {own_bytes}");

        let modes = [0o755, 0o4755];
        let programs = modes.map(|mode| host.path().join(format!("{mode:o}")));
        let mut files = programs.each_ref().map(|path| File::create(path).unwrap());
        for file in &mut files {
            let contents = [&b"\x7fELF"[..], &piece(1, 0), &piece(1, 1)[..PIECE_BYTES - 4]].concat();
            file.write_all(&contents).unwrap();
            file.sync_data().unwrap();
        }
        until("room was reserved", || programs.iter().all(|path| is_reserved(path)));
        for (path, mode) in programs.iter().zip(modes) {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        drop((file, files));
        until("room went back", || !programs.iter().any(|path| is_reserved(path)));
        guard.end();
        for (path, mode) in programs.iter().zip(modes) {
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o7777, mode, "{filesystem}");
        }
        assert_eq!(allocated(&own), own_bytes, "{filesystem}: what its owner reserved");
    }
}

#[test]
fn on_xfs_holes_stay_holes() {
    let (host, path) = in_pieces("xfs");
    run("fallocate", &["--punch-hole", "--offset", "1M", "--length", "128K", arg(&path)]);
    // Past the end there is more than the hole has.
    run("fallocate", &["--keep-size", "--offset", "3M", "--length", "4M", arg(&path)]);
    let (before, contents) = (allocated(&path), fs::read(&path).unwrap());
    let guard = Running::start(host.path(), &["--no-prevent"]);
    close_after_writing(&path);
    until("it was looked at", || guard.count("waiting_files") == 0);
    guard.end();
    assert_eq!(allocated(&path), before, "its hole");
    assert!(fs::read(&path).unwrap() == contents);
}

/// The image that a test's file system is in.
fn image_of(host: &HostMount) -> PathBuf {
    host.path().parent().unwrap().join("filesystem")
}

/// As `e2freefrag` and `xfs_io` say.
fn largest_free_bytes(filesystem: &str, host: &Path) -> u64 {
    run("sync", &["-f", arg(host)]);
    if filesystem == "ext4" {
        let source = run("df", &["--output=source", arg(host)]);
        let said = run("e2freefrag", &[source.lines().nth(1).unwrap().trim()]);
        let line = said.lines().find(|line| line.starts_with("Max. free extent:")).unwrap();
        return line.split_whitespace().nth(3).unwrap().parse::<u64>().unwrap() * 1024;
    }
    let said = run("xfs_io", &["-c", "fsmap -v", arg(host)]);
    // The last column is the length in sectors.
    let free = said.lines().filter(|line| line.contains(": free space"));
    let len = |line: &str| line.rsplit(' ').next().and_then(|sectors| sectors.parse::<u64>().ok()).unwrap();
    free.map(len).max().unwrap() * 512
}

/// Free space in pieces of some MiB, with short files between them. Their names.
fn cut_up_free_space(host: &HostMount) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for at in 0.. {
        let file = host.path().join(format!("file{at}"));
        if fs::write(&file, piece(3, at).repeat(12)).is_err() {
            fs::remove_file(file).unwrap();
            break;
        }
        files.push(file);
        if at % 16 == 0 {
            run("sync", &["-f", arg(host.path())]);
        }
    }
    run("sync", &["-f", arg(host.path())]);
    let (kept, gone): (Vec<_>, Vec<_>) = files.into_iter().enumerate().partition(|(at, _)| at % 10 == 9);
    gone.iter().for_each(|(_, file)| fs::remove_file(file).unwrap());
    run("sync", &["-f", arg(host.path())]);
    let kept: Vec<PathBuf> = kept.into_iter().map(|(_, file)| file).collect();
    for file in &kept {
        run("touch", &["--date", "2001-02-03 04:05:06.789", arg(file)]);
    }
    kept
}

/// A file that is as long as free space should be in one piece, written in the guard's sight.
fn write_a_long_file(host: &HostMount, guard: &Running) {
    let path = host.path().join("long");
    let mut file = File::create(&path).unwrap();
    for _ in 0..48 {
        file.write_all(&vec![1; 1 << 20]).unwrap();
        file.sync_data().unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(file);
    fs::remove_file(&path).unwrap();
    run("sync", &["-f", arg(host.path())]);
    until("it was looked what is free", || guard.status()["paths"][0]["largest_free_bytes"].is_u64());
}

#[test]
fn free_space_is_brought_together_where_a_long_file_found_none() {
    type Maker = (&'static str, fn() -> HostMount, Option<&'static str>);
    // The `xfs_repair` of older distributions refuses file systems that exchange ranges; the kernel reads them back.
    let makers: [Maker; 3] = [
        ("ext4", || HostMount::new("ext4", 512 << 20), Some("e2fsck")),
        ("xfs", || HostMount::new("xfs", 512 << 20), Some("xfs_repair")),
        ("xfs", || HostMount::xfs_that_exchanges_ranges(512 << 20), None),
    ];
    for (filesystem, make, checker) in makers {
        let host = make();
        let files = cut_up_free_space(&host);
        let before = largest_free_bytes(filesystem, host.path());
        assert!(before < 48 << 20 && files.len() > 20, "{filesystem}: {before}, {} files", files.len());
        let state_of = |path: &PathBuf| (fs::read(path).unwrap(), stamp(path), extents(path));
        let contents: Vec<_> = files.iter().map(state_of).collect();

        let guard = Running::start(host.path(), &["--no-prevent", "--no-repair", "--dry-run"]);
        write_a_long_file(&host, &guard);
        until("it was planned", || guard.count("space_moved_bytes") > 0);
        let planned = guard.count("largest_free_bytes");
        guard.end();
        assert_eq!(largest_free_bytes(filesystem, host.path()), before, "{filesystem}: a dry run");

        let guard = Running::start(host.path(), &["--no-prevent", "--no-repair"]);
        write_a_long_file(&host, &guard);
        until("a stretch became free, and it was looked again", || {
            let now = guard.count("largest_free_bytes");
            guard.count("space_stretches") > 0 && now > guard.count("largest_free_before_bytes")
        });
        let moved = guard.count("space_moved_bytes");
        let state = guard.end();
        let words = ["guard", "report", "--state", arg(state.path())];
        let report = document("leandisk.guard-report/1", &words);
        assert!(number(&report, "/total/space_moved_bytes") >= moved, "{filesystem}: {report}");
        let mut days = report["days"].as_array().unwrap().iter();
        let day = days.find(|day| day["space"][0]["largest_free_after_bytes"].is_u64()).unwrap();
        let largest =
            ["before", "after"].map(|when| number(day, &format!("/space/0/largest_free_{when}_bytes")));
        assert!(largest[0] < 48 << 20 && largest[0] < largest[1], "{filesystem}: {report}");
        let after = largest_free_bytes(filesystem, host.path());
        println!("{filesystem}: {moved} bytes moved, the largest free extent {before} before, {after} after");
        // Each run plans for what is free at its time, and the cheapest stretch may be a little longer than the file.
        let least = planned.min(48 << 20);
        assert!(
            after > before && after >= least && moved * 4 <= after,
            "{filesystem}: {before} {after}, planned {planned}"
        );
        for (path, was) in files.iter().zip(&contents) {
            assert!(state_of(path) == *was, "{filesystem}: {}", path.display());
        }
        let ledger = fs::read_dir(state.path()).unwrap().flatten().map(|entry| entry.path());
        let ledger = ledger.into_iter().find(|path| arg(path).ends_with("ledger")).unwrap();
        assert!(fs::read_to_string(ledger).unwrap().contains("\nspace "), "{filesystem}: the day's sum");
        unmount(host.path());
        let image = image_of(&host);
        let image = arg(&image);
        match checker {
            Some("xfs_repair") => run("xfs_repair", &["-n", image]),
            Some(checker) => run(checker, &["-fn", image]),
            None => String::new(),
        };
        mount(&["-o", "loop", image, arg(host.path())]);
        for (path, (was, _, _)) in files.iter().zip(&contents) {
            assert!(fs::read(path).unwrap() == *was, "{filesystem}: {} as it is stored", path.display());
        }
    }
}

/// What was written before room was reserved lies apart from the rest on ext4. It is put right before the rest, which stays where it is.
#[test]
fn on_ext4_the_beginning_of_a_file_is_put_right_before_the_rest() {
    let host = HostMount::new("ext4", HOST_BYTES);
    let mut writers = Writers::new(host.path(), "file", 5);
    writers.write(0..4);
    for path in writers.paths() {
        run("fallocate", &["-n", "-o", "262144", "-l", "64M", arg(&path)]);
    }
    writers.write(4..256);
    let paths = writers.paths();
    drop(writers);
    for path in &paths {
        // What was reserved goes back, and the file ends within a block.
        run("truncate", &["-s", "16776217", arg(path)]);
    }
    run("sync", &["-f", arg(host.path())]);
    let contents: Vec<_> = paths.iter().map(|path| (fs::read(path).unwrap(), stamp(path))).collect();
    let before = total(&paths);
    assert!(before >= 9, "{before} extents");
    let guard = Running::start(host.path(), &["--no-prevent"]);
    paths.iter().for_each(|path| close_after_writing(path));
    // Before one or the other the file system has its own tables.
    until("most were put together", || guard.count("repaired") >= 3 && guard.count("waiting_files") == 0);
    let moved = guard.count("moved_bytes");
    assert!((3 << 18..=6 << 18).contains(&moved), "{moved} bytes moved");
    guard.end();
    assert!(total(&paths) <= before - 3, "{} of {before} extents", total(&paths));
    let now: Vec<_> = paths.iter().map(|path| (fs::read(path).unwrap(), stamp(path))).collect();
    assert!(now == contents, "neither contents nor times tell of it");
}

/// Whether the kernel is of this version or a later one.
fn kernel_has(major: u32, minor: u32) -> bool {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = text.split(['.', '-']).map_while(|word| word.parse::<u32>().ok());
    (numbers.next().unwrap(), numbers.next().unwrap()) >= (major, minor)
}

/// Where XFS exchanges ranges, only what is in pieces moves, and not the whole file.
#[test]
fn on_xfs_that_exchanges_ranges_only_what_is_in_pieces_moves() {
    if !kernel_has(6, 10) {
        println!("skipped: this kernel cannot exchange ranges of files on XFS");
        return;
    }
    let host = HostMount::xfs_that_exchanges_ranges(400 << 20);
    let path = host.path().join("in pieces");
    let file = File::create(&path).unwrap();
    let long = vec![7; 16 << 20];
    file.write_all_at(&long, 0).unwrap();
    file.sync_all().unwrap();
    // Frees what XFS reserved after the end by itself, in which all would be one piece. (Closing the file does so only if nothing else holds it
    // open just then, as a process that another test starts may.)
    file.set_len(long.len() as u64).unwrap();
    for at in (0..48).rev() {
        file.write_all_at(&piece(1, at), (long.len() + at * PIECE_BYTES) as u64).unwrap();
        file.sync_all().unwrap();
        let other = File::create(host.path().join(at.to_string())).unwrap();
        other.write_all_at(&piece(2, at), 0).unwrap();
        other.sync_all().unwrap();
    }
    // Ends within a block.
    file.set_len((long.len() + 48 * PIECE_BYTES - 1000) as u64).unwrap();
    drop(file);
    let (before, contents, time) = (extents(&path), fs::read(&path).unwrap(), stamp(&path));
    assert!(before > 40, "{before}");
    let guard = Running::start(host.path(), &["--no-prevent"]);
    close_after_writing(&path);
    until("it was put together", || guard.count("repaired") > 0);
    let moved = guard.count("moved_bytes");
    assert!((1..4 << 20).contains(&moved), "{moved} bytes moved");
    assert!(extents(&path) < 8, "{}", extents(&path));
    assert!(fs::read(&path).unwrap() == contents && stamp(&path) == time);
    guard.end();
}

#[test]
fn a_dry_run_reserves_nothing_and_counts_what_it_would() {
    let host = HostMount::new("btrfs", HOST_BYTES);
    let guard = Running::start(host.path(), &["--dry-run", "--metrics", "127.0.0.1:0"]);
    let mut writers = Writers::new(host.path(), "file", 2);
    let mut turn = 0;
    until("it would have reserved", || {
        writers.write(turn..turn + 1);
        turn += 1;
        guard.count("prevented") > 0
    });
    assert!(guard.status()["dry_run"].as_bool().unwrap());
    for path in writers.paths() {
        assert_eq!(allocated(&path), fs::metadata(&path).unwrap().len());
    }
    guard.end();
}

/// The kernel's count of waiting for devices, in place of the one of a guard's folder: a pipe that says at every look, however late that
/// comes, that others waited all the time since the one before, until they do no more.
struct Others {
    pipe: PathBuf,
    _dir: TempDir,
    wait: Arc<AtomicBool>,
    are_gone: Arc<AtomicBool>,
    teller: JoinHandle<()>,
}

impl Others {
    fn wait(folder: &Path) -> Self {
        let dir = scratch();
        let (pipe, link) = (dir.path().join("pipe"), dir.path().join("link"));
        run("mkfifo", &[arg(&pipe)]);
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        let (wait, are_gone) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        fs::rename(&link, folder.join("io")).unwrap();
        let (path, others) = (pipe.clone(), (wait.clone(), are_gone.clone()));
        let teller = std::thread::spawn(move || {
            let mut waited_us = 0_u64;
            loop {
                // Until somebody looks.
                let mut pipe = File::options().write(true).open(&path).unwrap();
                if others.1.load(Ordering::Relaxed) {
                    break;
                }
                if others.0.load(Ordering::Relaxed) {
                    waited_us += 3_600_000_000;
                }
                let _ = writeln!(pipe, "some avg10=0.00 total={waited_us}");
                drop(pipe);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Self { pipe, _dir: dir, wait, are_gone, teller }
    }

    fn wait_no_more(&self) {
        self.wait.store(false, Ordering::Relaxed);
    }

    fn end(self) {
        self.are_gone.store(true, Ordering::Relaxed);
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let mut options = File::options();
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags);
        let _reader = options.read(true).open(&self.pipe).unwrap();
        self.teller.join().unwrap();
    }
}

#[test]
fn it_sleeps_while_others_wait_and_says_so() {
    let (host, path) = in_pieces("btrfs");
    let guard = Running::start(host.path(), &[]);
    let others = Others::wait(guard.pressure.path());
    let before = extents(&path);
    close_after_writing(&path);
    let mut status = Value::Null;
    until("it sleeps", || {
        status = guard.status();
        status["paths"][0]["reason"].as_str().is_some_and(|reason| reason.contains("devices"))
    });
    assert_eq!(status["paths"][0]["state"], "asleep");
    until("it counts how long", || guard.status()["asleep_seconds"].as_f64().unwrap() > 0.3);
    assert_eq!((extents(&path), guard.count("repaired")), (before, 0));
    others.wait_no_more();
    until("it wakes", || guard.count("repaired") > 0);
    assert!(extents(&path) < before);
    guard.end();
    others.end();
}

/// A device that serves others, as the kernel would count it.
struct Served {
    is_over: Arc<AtomicBool>,
    counter: JoinHandle<()>,
}

impl Served {
    fn begin(folder: &Path, device: &str) -> Self {
        let folder = folder.join(device);
        fs::create_dir(&folder).unwrap();
        let file = File::create(folder.join("stat")).unwrap();
        let is_over = Arc::<AtomicBool>::default();
        let ends = is_over.clone();
        let count =
            move |sectors: u64| file.write_at(format!("1 0 {sectors:016} 1 1 0 0 1 0 1 1").as_bytes(), 0);
        count(0).unwrap();
        let counter = std::thread::spawn(move || {
            for at in 1.. {
                count(at * 4096).unwrap();
                std::thread::sleep(Duration::from_millis(10));
                if ends.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        Self { is_over, counter }
    }

    fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.counter.join().unwrap();
    }
}

#[test]
fn it_sleeps_while_devices_serve_others_and_says_so() {
    let (host, path) = in_pieces("ext4");
    let counters = scratch();
    let others = Served::begin(counters.path(), &device_below(host.path()));
    let guard = Running::start(host.path(), &["--device-counters", arg(counters.path())]);
    until("it sleeps", || {
        // Whatever became of it meanwhile, there is something to look at again.
        close_after_writing(&path);
        let status = guard.status();
        status["paths"][0]["state"] == "asleep" && status["paths"][0]["reason"] == "others use the devices"
    });
    others.end();
    until("it wakes", || guard.count("repaired") > 0);
    guard.end();
}

#[test]
fn what_was_done_is_kept_by_day_and_shown_as_a_page() {
    let (host, path) = in_pieces("ext4");
    let page = scratch();
    let page = page.path().join("page.html");
    let report =
        |state: &Path| document("leandisk.guard-report/1", &["guard", "report", "--state", arg(state)]);
    let dry = Running::start(host.path(), &["--dry-run"]).end();
    assert!(!report(dry.path())["has_history"].as_bool().unwrap());
    let said = succeed(&["guard", "report", "--state", arg(dry.path()), "--html", arg(&page)]);
    assert!(said.contains("no history here"), "{said}");

    let guard = Running::start(host.path(), &["--no-prevent"]);
    close_after_writing(&path);
    until("it was put together", || guard.count("repaired") > 0 && guard.count("waiting_files") == 0);
    let repaired = guard.count("repaired");
    let state = guard.end();
    let first = report(state.path());
    assert_eq!(number(&first, "/total/repaired"), repaired);
    assert!(number(&first, "/total/moved_bytes") > 0 && !first["running"].as_bool().unwrap());
    assert_eq!(first["days"].as_array().unwrap().len(), 14);
    assert_eq!(first["filesystems"][0]["filesystem"], "ext4");

    // While the next guard runs, the history of the one before can be read.
    let guard = Running::start_in(host.path(), state, &[]);
    let second = report(guard.folder());
    assert!(second["running"].as_bool().unwrap());
    assert_eq!(number(&second, "/total/repaired"), repaired);
    fail(3, &["guard", "report", "--state", arg(guard.folder()), "--html", arg(&page)]);
    let words =
        ["guard", "report", "--state", arg(guard.folder()), "--days", "400", "--html", arg(&page), "--force"];
    assert!(succeed(&words).contains(&format!("{repaired} were repaired")));
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.contains("Fragments by day") && text.contains("A guard runs."));
    assert!(text.contains(arg(host.path())) && !text.contains("<script"));
    let state = guard.end();
    let history = state.path().join("history.sqlite");
    assert_eq!(run("sqlite3", &[arg(&history), "PRAGMA integrity_check"]), "ok\n");

    // A history that is none stops no guard, and is told.
    fs::write(&history, [b'x'; 8192]).unwrap();
    fail(4, &["guard", "report", "--state", arg(state.path())]);
    Running::start_in(host.path(), state, &[]).end();
}

/// A coordinator that runs, whose leases are long.
struct Coordinating {
    child: Child,
    folder: TempDir,
}

impl Coordinating {
    fn start(lease_ms: u64) -> Self {
        let folder = scratch();
        for name in ["io", "cpu"] {
            fs::write(folder.path().join(name), "some avg10=0.00 total=0\n").unwrap();
        }
        let mut command = leandisk();
        command.args(["coordinate", "--listen-dir", arg(folder.path()), "--pressure", arg(folder.path())]);
        let mut child =
            command.args(["--lease", &lease_ms.to_string()]).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("coordinating"), "{line}");
        Self { child, folder }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("host.sock")
    }

    fn end(mut self) {
        signal(&self.child, "TERM");
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        assert!(!self.socket().exists());
    }
}

impl Drop for Coordinating {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One that speaks the protocol by hand.
struct Asker {
    said: BufReader<UnixStream>,
    host: String,
}

impl Asker {
    fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut asker = Self { said: BufReader::new(stream), host: String::new() };
        asker.host = asker.hear("host 1 ").trim().to_owned();
        asker
    }

    /// The rest of the next line that begins like this.
    fn hear(&mut self, beginning: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "{beginning}");
            if let Some(rest) = line.strip_prefix(beginning) {
                return rest.to_owned();
            }
        }
    }

    fn say(&mut self, line: &str) {
        let line = format!("{}\n", line.replace("HOST", &self.host));
        self.said.get_mut().write_all(line.as_bytes()).unwrap();
    }

    /// Asks until there is a lease; its number, and from when it counts.
    fn lease(&mut self, mut seq: u64) -> (u64, Instant) {
        loop {
            let asked = Instant::now();
            self.say(&format!("ask HOST {seq} 1 1000000 1"));
            let mut line = String::new();
            while !line.starts_with("lease ") && !line.starts_with("wait ") {
                line.clear();
                self.said.read_line(&mut line).unwrap();
            }
            if line.starts_with("lease ") {
                return (seq, asked);
            }
            std::thread::sleep(Duration::from_millis(50));
            seq += 1;
        }
    }
}

const LEASE_MS: u64 = 4000;

#[test]
fn guards_of_one_device_take_turns() {
    let coordinator = Coordinating::start(600_000);
    let (host, path) = in_pieces("btrfs");
    let device = device_below(host.path());
    let mut asker = Asker::connect(&coordinator.socket());
    // What is no message is passed over, however long.
    asker.say(&"x".repeat(100_000));
    asker.say("ask HOST 1 99999999999999999999 0 0");
    asker.say(&format!("disk 0 {HOST_BYTES} {device}"));
    asker.hear("disk 0 thick");

    // A guest's disk is known by the files that its QEMU, which is this test here, has open.
    let disks = scratch();
    let mut guest = Asker::connect(&coordinator.folder.path().join("guests.sock"));
    let mut open = Vec::new();
    for (at, (size, answer)) in [(9_138_176, "thick"), (9_142_272, "thin 9142")].into_iter().enumerate() {
        let path = disks.path().join(at.to_string());
        open.push(File::create(&path).unwrap());
        open[at].set_len(size).unwrap();
        if answer == "thick" {
            run("fallocate", &["--length", &size.to_string(), arg(&path)]);
        }
        guest.say(&format!("disk {at} {size} serial"));
        guest.hear(&format!("disk {at} {answer}\n"));
    }
    drop((guest, open));

    // A coordinator that begins gives nothing until the leases of one before it must have ended: long, here.
    asker.say("ask HOST 1 1 1000000 1");
    asker.hear("wait ");
    drop(asker);
    coordinator.end();
    let coordinator = Coordinating::start(LEASE_MS);
    let socket = coordinator.socket();
    let mut asker = Asker::connect(&socket);
    asker.say(&format!("disk 0 {HOST_BYTES} {device}"));
    let (seq, asked) = asker.lease(1);

    let before = extents(&path);
    let guard = Running::start(host.path(), &["--no-prevent", "--coordinator", arg(&socket)]);
    close_after_writing(&path);
    until("it waits for its turn, or the other's is over", || {
        let status = guard.status();
        let repaired = number(&status, "/paths/0/repaired");
        let is_over = asked.elapsed() >= Duration::from_millis(LEASE_MS);
        assert!(is_over || repaired == 0, "it worked while another had the device");
        is_over || status["paths"][0]["reason"].as_str().is_some_and(|reason| reason.contains("turn"))
    });
    asker.say(&format!("done HOST {seq} 1"));
    until("it was put together", || guard.count("repaired") > 0);
    assert!(extents(&path) < before);
    // Once it has done all there is, others can have the device again.
    let (seq, _) = asker.lease(seq + 1);
    asker.say(&format!("done HOST {seq} 1"));

    // Without its coordinator a guard regulates alone.
    coordinator.end();
    drop(asker);
    guard.end();
}

/// As the kernel numbers what the file system lies on in the end: by `df` and `lsblk`.
fn device_below(path: &Path) -> String {
    let source = run("df", &["--output=source", arg(path)]);
    let loop_device = source.lines().nth(1).unwrap().trim().to_owned();
    let image = run("losetup", &["--noheadings", "--output", "BACK-FILE", &loop_device]);
    let source = run("df", &["--output=source", image.trim()]);
    let disk = source.lines().nth(1).unwrap().trim().to_owned();
    run("lsblk", &["--nodeps", "--noheadings", "--output", "MAJ:MIN", &disk]).trim().to_owned()
}

#[test]
fn one_guard_a_folder_and_refusals() {
    let state = scratch();
    let none = document("leandisk.guard/1", &["guard", "status", "--state", arg(state.path())]);
    assert_eq!((&none["running"], &none["paths"]), (&Value::Bool(false), &Value::Array(Vec::new())));
    let host = HostMount::new("ext4", 64 << 20);
    let metrics = state.path().join("metrics");
    let guard = Running::start(host.path(), &["--metrics", arg(&metrics)]);
    let said = fail(3, &["guard", arg(host.path()), "--state", arg(guard.folder())]);
    assert!(said.contains("a guard runs already"), "{said}");
    until("the counts are there", || metrics.exists());
    assert!(fs::read_to_string(&metrics).unwrap().contains("leandisk_guard_prevented_fragments_total{"));
    guard.end();
    let said = fail(3, &["guard", "/proc", "--state", arg(state.path())]);
    assert!(said.contains("file system"), "{said}");
    fail(2, &["guard", "--idle", "-1"]);
}

/// One guard whose counts are at a port that was free a moment ago.
fn with_counts_at_a_port(path: &Path) -> (Running, std::net::SocketAddr) {
    let mut said = String::new();
    for _ in 0..20 {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        match Running::try_start_in(path, scratch(), &["--metrics", &free.to_string()]) {
            Ok(guard) => return (guard, free),
            // Somebody else took it.
            Err(line) => said = line,
        }
    }
    panic!("{said}");
}

fn ask(place: std::net::SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(place)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn counts_are_told_over_http() {
    let host = HostMount::new("ext4", 64 << 20);
    let (guard, place) = with_counts_at_a_port(host.path());
    let mut answer = String::new();
    // Who is slow to ask is not answered.
    until("it answers", || {
        answer = ask(place).unwrap_or_default();
        answer.starts_with("HTTP/1.1 200 OK")
    });
    assert!(answer.contains("leandisk_guard_asleep_seconds_total"), "{answer}");
    guard.end();
    assert!(common::output(&["guard", "status", "--state", "/nonexistent/folder"]).status.success());
}
