//! A guest that works while its disk is copied: a Debian kernel under QEMU, in which SQLite, PostgreSQL and fio, which verifies what it
//! wrote, write to one file system at once. Each copy is recovered by the kernel of this machine, and judged by the checkers of the file
//! system and of the databases; each transaction that the guest had told to be committed before the copy began is there, and whole.
//!
//! How many copies of each guest: `LEANDISK_LIVE_COPIES`. The kernel and the agent are fetched once, with `apt-get download`.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::mounted::Mounted;
use testkit::{run, scratch};
use vm::Monitor;

use crate::common::{arg, document};

const SCRIPTS: [(&str, &str); 5] = [
    ("make-live-guest", include_str!("../scripts/make-live-guest")),
    ("live-init", include_str!("../scripts/live-init")),
    ("live-probe.c", include_str!("../scripts/live-probe.c")),
    ("initrd.py", include_str!("../../../../dev/testkit/scripts/initrd.py")),
    ("kernel-package", include_str!("../../../../dev/testkit/scripts/kernel-package")),
];
const DISK_BYTES: u64 = 1 << 30;
const STALE_BYTES: usize = 300 << 20;
/// How long a guest may take for anything that is waited for.
const TIME_MAX: Duration = Duration::from_secs(400);
const TABLES: &str = "CREATE TABLE done (number bigint PRIMARY KEY, filler text);\n\
    CREATE TABLE total (id int PRIMARY KEY, sum bigint);\n\
    INSERT INTO total VALUES (0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (8, 0), (9, 0);\n";
/// The last transaction, how many there are, and what the totals say.
const FIGURES: &str = "SELECT max(number), count(*), (SELECT sum(sum) FROM total) FROM done";

/// A file system, how it is made, and how its own checker is asked.
struct Kind {
    name: &'static str,
    make: &'static [&'static str],
    check: &'static [&'static str],
    format: &'static str,
}

const EXT4: Kind =
    Kind { name: "ext4", make: &["mkfs.ext4", "-q", "-F"], check: &["e2fsck", "-fn"], format: "qcow2" };
const XFS: Kind =
    Kind { name: "xfs", make: &["mkfs.xfs", "-q", "-f"], check: &["xfs_repair", "-n"], format: "raw" };
const BTRFS: Kind = Kind {
    name: "btrfs",
    make: &["mkfs.btrfs", "-q", "-f"],
    check: &["btrfs", "check", "--readonly"],
    format: "qcow2",
};

/// Where PostgreSQL's programs are.
fn postgresql() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql")
        .unwrap_or_else(|error| panic!("/usr/lib/postgresql: {error}; install postgresql"));
    let programs = versions.map(|version| version.unwrap().path().join("bin"));
    programs.filter(|path| path.join("initdb").exists()).max().expect("programs of PostgreSQL")
}

/// Runs one of PostgreSQL's programs as its user.
fn as_postgres(program: &str, args: &[&str]) -> String {
    let program = postgresql().join(program);
    let user = ["--reuid", "postgres", "--regid", "postgres", "--clear-groups", arg(&program)];
    run("setpriv", &[&user, args].concat())
}

/// A kernel and a RAM disk. Kept with the build.
fn kernel() -> PathBuf {
    let mut hasher = DefaultHasher::new();
    SCRIPTS.hash(&mut hasher);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fixtures");
    let made = folder.join(format!("live-guest-{:016x}", hasher.finish()));
    if !made.exists() {
        fs::create_dir_all(&folder).unwrap();
        let (fresh, scripts) = (tempfile::tempdir_in(&folder).unwrap(), scratch());
        let at = SCRIPTS.map(|(name, text)| {
            let path = scripts.path().join(name);
            fs::write(&path, text).unwrap();
            path
        });
        let programs = postgresql();
        run("bash", &[&at[0], fresh.path(), &programs, scripts.path(), &at[3]].map(arg));
        // Of two that are made at the same time one stays.
        fs::rename(fresh.path(), &made).unwrap();
    }
    made
}

/// A raw disk with empty databases, a file that fio can verify, and blocks of a file that is gone.
fn make_disk(kind: &Kind, disk: &Path) {
    fs::File::create(disk).unwrap().set_len(DISK_BYTES).unwrap();
    run(kind.make[0], &[&kind.make[1..], &[arg(disk)]].concat());
    let mounted = Mounted::kernel(kind.name, disk, "nodiscard");
    let at = |name: &str| mounted.path().join(name);
    fs::write(at("stale"), testkit::noise(1, STALE_BYTES)).unwrap();
    run("sync", &["-f", arg(&at("stale"))]);
    fs::remove_file(at("stale")).unwrap();
    still(&at("still"), "--do_verify=0");
    fs::create_dir(at("sqlite")).unwrap();
    run("sqlite3", &[arg(&at("sqlite/db")), &format!("PRAGMA journal_mode = WAL; {TABLES}")]);
    fs::create_dir(at("pg")).unwrap();
    run("chown", &["postgres:postgres", arg(&at("pg"))]);
    run("chmod", &["755", arg(mounted.path())]);
    as_postgres("initdb", &["-D", arg(&at("pg")), "-A", "trust", "-k", "-E", "UTF8", "--locale=C", "-N"]);
    let settings = "listen_addresses = ''\nunix_socket_directories = '/tmp'\nshared_buffers = 16MB\nmax_wal_size = 64MB\n\
        min_wal_size = 32MB\ntimezone = 'Etc/UTC'\nlog_timezone = 'Etc/UTC'\ndynamic_shared_memory_type = mmap\n";
    fs::write(at("pg/postgresql.auto.conf"), settings).unwrap();
    let data = at("pg");
    let server = Postgres::start(&data);
    server.ask(TABLES);
    server.ask("CREATE EXTENSION amcheck");
}

/// Writes a file that can be verified, or verifies it.
fn still(path: &Path, what: &str) {
    let name = format!("--filename={}", path.display());
    run(
        "fio",
        &[
            "--name=still",
            &name,
            "--size=16M",
            "--rw=write",
            "--bs=64k",
            "--verify=crc32c",
            "--verify_state_save=0",
            "--thread",
            what,
        ],
    );
}

/// A server at work on a folder of this machine, until it is dropped.
struct Postgres<'a>(&'a Path);

impl<'a> Postgres<'a> {
    fn start(data: &'a Path) -> Self {
        // As a restored one has it: of another machine's process.
        let _ = fs::remove_file(data.join("postmaster.pid"));
        let options = format!("-k {}", data.display());
        let log = data.join("log");
        as_postgres(
            "pg_ctl",
            &["-D", arg(data), "-o", &options, "-l", arg(&log), "-s", "-w", "-t", "300", "start"],
        );
        Self(data)
    }

    fn ask(&self, query: &str) -> String {
        as_postgres(
            "psql",
            &["-qAtX", "-F", " ", "-h", arg(self.0), "-v", "ON_ERROR_STOP=1", "-c", query, "postgres"],
        )
    }
}

impl Drop for Postgres<'_> {
    fn drop(&mut self) {
        as_postgres("pg_ctl", &["-D", arg(self.0), "-s", "-m", "fast", "-w", "-t", "300", "stop"]);
    }
}

/// What each serial line is for.
const LINES: [&str; 4] = ["console", "sqlite", "postgresql", "probe"];

struct Guest {
    dir: tempfile::TempDir,
    qemu: Child,
    own: vm::Socket,
}

impl Guest {
    /// Boots it, and waits until all work.
    fn start(kind: &Kind) -> Self {
        let dir = scratch();
        let at = |name: &str| dir.path().join(name);
        let (made, disk) = (at("made.raw"), at("disk"));
        make_disk(kind, &made);
        run("qemu-img", &["convert", "-O", kind.format, arg(&made), arg(&disk)]);
        fs::remove_file(made).unwrap();
        let kernel = kernel();
        let user = run("id", &["-u", "postgres"]);
        let line = format!(
            "console=ttyS0 loglevel=4 panic=-1 mitigations=off kind={} user={} postgresql={}",
            kind.name,
            user.trim(),
            postgresql().display()
        );
        let node = format!(
            "driver={},node-name=disk0,file.driver=file,file.filename={}",
            kind.format,
            disk.display()
        );
        let serials = LINES.map(|name| format!("file:{}", at(name).display()));
        let monitors = ["qmp", "own"].map(|name| format!("unix:{},server=on,wait=off", at(name).display()));
        let agent = format!("socket,id=agent,server=on,wait=off,path={}", at("agent").display());
        let qemu = Command::new("qemu-system-x86_64")
            .args([
                "-accel",
                "tcg",
                "-m",
                "1024",
                "-display",
                "none",
                "-no-reboot",
                "-nodefaults",
                "-net",
                "none",
            ])
            .arg("-kernel")
            .arg(kernel.join("vmlinuz"))
            .arg("-initrd")
            .arg(kernel.join("initrd"))
            .args(["-append", &line])
            .args(serials.iter().flat_map(|serial| ["-serial", serial]))
            .args(monitors.iter().flat_map(|monitor| ["-qmp", monitor]))
            .args(["-blockdev", &node, "-device", "virtio-blk-pci,id=vda,drive=disk0"])
            .args(["-chardev", &agent, "-device", "virtio-serial"])
            .args(["-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("qemu-system-x86_64: {error}; install qemu-system-x86"));
        let began = Instant::now();
        let own = loop {
            match vm::Socket::connect(&at("own")) {
                Ok(own) => break own,
                Err(error) => assert!(began.elapsed() < TIME_MAX, "QEMU does not answer: {error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let mut guest = Self { dir, qemu, own };
        guest.wait_until(|guest| LINES[1..].iter().all(|line| guest.numbers(line).len() > 20));
        guest
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn ask(&mut self, name: &'static str, arguments: Value) -> Value {
        self.own.execute(vm::Command { name, arguments, file: None }).unwrap()
    }

    /// What was told on a serial line, each number on a line that is whole.
    fn numbers(&self, line: &str) -> Vec<u64> {
        let told = fs::read(self.path(line)).unwrap_or_default();
        let told = String::from_utf8_lossy(&told).into_owned();
        let whole = told.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let number = |line: &str| line.trim().parse().unwrap_or_else(|_| panic!("'{line}' in {whole}"));
        whole.lines().filter(|line| !line.trim().is_empty()).map(number).collect()
    }

    fn committed(&self) -> [u64; 2] {
        ["sqlite", "postgresql"].map(|line| self.numbers(line).last().copied().unwrap_or(0))
    }

    /// Waits for something that the guest does.
    fn wait_until(&mut self, is_so: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            self.check();
            let said = fs::read_to_string(self.path("console")).unwrap_or_default();
            assert!(began.elapsed() < TIME_MAX, "the guest does not get on:\n{said}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Fails if the guest is in trouble: what fio reads is not what it wrote, or a database fails.
    fn check(&mut self) {
        let ended = self.qemu.try_wait().unwrap();
        let said = String::from_utf8_lossy(&fs::read(self.path("console")).unwrap_or_default()).into_owned();
        assert!(ended.is_none() && !said.contains("| FAILED"), "{ended:?}, the guest said:\n{said}");
    }

    /// Times of the probe's writes while something is done, and how long that took.
    fn probed(&mut self, times: &mut Times, work: impl FnOnce(&mut Self)) {
        let before = self.numbers("probe").len();
        let began = Instant::now();
        work(self);
        times.seconds.push(began.elapsed().as_secs_f64());
        // At least one that was under way or began meanwhile.
        self.wait_until(|guest| guest.numbers("probe").len() > before);
        times.micros.extend(&self.numbers("probe")[before..]);
        self.check();
    }

    fn copy(&mut self, target: &Path, more: &[&str]) -> Value {
        let address = format!("qmp:{}?disk=vda", self.path("qmp").display());
        document("leandisk.copy/1", &[&["copy", &address, arg(target), "--force"], more].concat())
    }

    /// The same by QEMU alone.
    fn drive_backup(&mut self, target: &Path) {
        let _ = fs::remove_file(target);
        let wanted = json!({ "job-id": "peer", "device": "disk0", "sync": "full", "target": target, "format": "qcow2",
            "auto-dismiss": false });
        self.ask("drive-backup", wanted);
        loop {
            let jobs = self.ask("query-jobs", json!({}));
            let job = &jobs.as_array().unwrap()[0];
            assert!(job.get("error").is_none(), "{job}");
            if job["status"] == "concluded" {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.ask("job-dismiss", json!({ "id": "peer" }));
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// How long the guest's writes took, and what was done meanwhile.
#[derive(Default)]
struct Times {
    micros: Vec<u64>,
    seconds: Vec<f64>,
}

impl Times {
    fn told(mut self, what: &str) -> String {
        self.micros.sort_unstable();
        self.seconds.sort_unstable_by(f64::total_cmp);
        let share = |share: usize| self.micros[(self.micros.len() - 1) * share / 100] as f64 / 1e3;
        format!(
            "{what}: {} writes, median {:.1} ms, p99 {:.1} ms; {:.2} s each",
            self.micros.len(),
            share(50),
            share(99),
            self.seconds[self.seconds.len() / 2]
        )
    }
}

/// Judges a copy, which is raw: it has at least the transactions that were committed, and is clean once it is recovered.
fn judge(kind: &Kind, copy: &Path, committed: [u64; 2]) {
    {
        let mounted = Mounted::kernel(kind.name, copy, "nodiscard");
        let at = |name: &str| mounted.path().join(name);
        still(&at("still"), "--verify_only");
        let db = at("sqlite/db");
        assert_eq!(run("sqlite3", &[arg(&db), "PRAGMA integrity_check"]).trim(), "ok");
        check_figures("SQLite", &run("sqlite3", &["-separator", " ", arg(&db), FIGURES]), committed[0]);
        let data = at("pg");
        let server = Postgres::start(&data);
        check_figures("PostgreSQL", &server.ask(FIGURES), committed[1]);
        as_postgres("pg_amcheck", &["-h", arg(&data), "--heapallindexed", "-a"]);
        drop(server);
        as_postgres("pg_checksums", &["--check", "-D", arg(&data)]);
    }
    run(kind.check[0], &[&kind.check[1..], &[arg(copy)]].concat());
}

fn check_figures(what: &str, figures: &str, committed: u64) {
    let figures: Vec<u64> = figures.split_whitespace().map(|figure| figure.parse().unwrap()).collect();
    let [last, count, total] = figures[..] else { panic!("{what}: {figures:?}") };
    assert!(
        last >= committed,
        "{what}: {committed} was committed before the copy began, and {last} is the last in it"
    );
    assert_eq!((count, total), (last, last), "{what}: each transaction is there, and whole");
}

fn copied_while_it_works(kind: &Kind) {
    let count: usize = std::env::var("LEANDISK_LIVE_COPIES").map_or(10, |text| text.parse().unwrap());
    let mut guest = Guest::start(kind);
    let (agent, raw, image) = (guest.path("agent"), guest.path("copy.raw"), guest.path("copy.qcow2"));
    let [mut idle, mut copying, mut backing_up] = [(); 3].map(|()| Times::default());
    for turn in 0..count {
        let is_frozen = turn % 2 == 0;
        let freeze: &[&str] =
            if is_frozen { &["--freeze", "always", "--agent", arg(&agent)] } else { &["--freeze", "never"] };
        let committed = guest.committed();
        let mut copied = Value::Null;
        guest.probed(&mut copying, |guest| copied = guest.copy(&image, freeze));
        assert_eq!(copied["volumes"][0]["mode"], "used-only", "{copied:#}");
        assert!(copied["read_bytes"].as_u64().unwrap() < DISK_BYTES / 2, "{copied:#}");
        guest.probed(&mut backing_up, |guest| guest.drive_backup(&guest.path("peer.qcow2")));
        guest.probed(&mut idle, |_| std::thread::sleep(Duration::from_secs(2)));
        run("qemu-img", &["convert", "-f", "qcow2", "-O", "raw", arg(&image), arg(&raw)]);
        judge(kind, &raw, committed);
        println!("{}, copy {turn}: at least {committed:?} transactions, and clean", kind.name);
        // The guest goes on.
        guest.wait_until(|guest| {
            let now = guest.committed();
            now[0] > committed[0] && now[1] > committed[1]
        });
    }
    let turns = fs::read_to_string(guest.path("console")).unwrap().matches("| fio ").count();
    println!("{}: fio verified what it wrote {turns} times", kind.name);
    for (times, what) in [(copying, "leandisk copy"), (backing_up, "drive-backup"), (idle, "neither")] {
        println!("{}, writes of the guest's, stored, during {}", kind.name, times.told(what));
    }
}

#[test]
#[ignore = "boots a Debian kernel with databases, which takes minutes: make live-guest"]
fn ext4() {
    copied_while_it_works(&EXT4);
}

#[test]
#[ignore = "boots a Debian kernel with databases, which takes minutes: make live-guest"]
fn xfs() {
    copied_while_it_works(&XFS);
}

#[test]
#[ignore = "boots a Debian kernel with databases, which takes minutes: make live-guest"]
fn btrfs() {
    copied_while_it_works(&BTRFS);
}
