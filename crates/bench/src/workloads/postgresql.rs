//! The same tables in PostgreSQL, where it is installed: its own server on the guest's disk, as a user of its own.
//!
//! Invariants: the server is reached through a socket without a name in any folder, by its own user alone; it is killed when this thread
//! ends, however that ends; its programs may pass folders that are closed to others, as a guest's disk is mounted in one.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use block::{Error, Result};
use engine::JobMonitor;

use super::Scene;
use super::sizes::{POSTGRESQL_DISK_BYTES_MIN, Sizes};
use super::tables::{REGIONS, Region, region_sums};
use crate::children::{Running, find_program, need_program};

/// Where Debian's packages have what only administrators run.
const VERSIONS: &str = "/usr/lib/postgresql";
/// Who may run it: it refuses to run as root.
const USERS: [&str; 2] = ["postgres", "nobody"];
const START_MAX: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(20);
/// Rows of a transaction where keys are unique.
const ROWS_AT_ONCE: u64 = 100;

/// An installed PostgreSQL.
#[derive(Clone, Debug)]
pub(super) struct Postgresql {
    programs: PathBuf,
    client: PathBuf,
    user: &'static str,
}

impl Postgresql {
    /// Where it is; or why it cannot be measured.
    pub(super) fn find(sizes: &Sizes) -> std::result::Result<Self, String> {
        if sizes.disk_bytes < POSTGRESQL_DISK_BYTES_MIN {
            return Err(format!("its own tables need a disk of {} MiB", POSTGRESQL_DISK_BYTES_MIN >> 20));
        }
        let programs = folder_of_programs().ok_or("PostgreSQL is not installed")?;
        let client = find_program("psql").ok_or("psql is not installed")?;
        find_program("setpriv").ok_or("setpriv is not installed")?;
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let is_user = |name: &&str| users.lines().any(|line| line.split(':').next() == Some(*name));
        let user = USERS.into_iter().find(is_user).ok_or("there is no user to run it as")?;
        Ok(Self { programs, client, user })
    }

    fn start(&self, program: &Path, arguments: &[String], log: PathBuf) -> Result<Running> {
        let own = ["--clear-groups", "--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override"];
        let mut all = vec![format!("--reuid={}", self.user), format!("--regid={}", group_of(self.user))];
        all.extend(own.map(String::from));
        all.extend(["--pdeathsig=KILL".into(), "--".into(), program.display().to_string()]);
        all.extend(arguments.iter().cloned());
        Running::start(&need_program("setpriv")?, &all, log)
    }

    fn run(
        &self,
        program: &Path,
        arguments: &[String],
        log: PathBuf,
        monitor: &dyn JobMonitor,
    ) -> Result<()> {
        self.start(program, arguments, log)?.finish(&|| monitor.is_cancelled())
    }

    /// Makes a cluster with the tables that are queried.
    pub(super) fn make_tables(
        &self,
        point: &Path,
        scratch: &Path,
        sizes: &Sizes,
        monitor: &dyn JobMonitor,
    ) -> Result<()> {
        let cluster = point.join("data/postgresql");
        let failed = |error| Error::io("make", error).path(cluster.display());
        fs::create_dir_all(&cluster).map_err(failed)?;
        let user = id_of(self.user);
        std::os::unix::fs::chown(&cluster, user.map(|ids| ids.0), user.map(|ids| ids.1)).map_err(failed)?;
        let text = |text: &str| text.to_owned();
        let cluster = cluster.display().to_string();
        let arguments = [
            text("-D"),
            cluster,
            text("-A"),
            text("peer"),
            text("-U"),
            text(self.user),
            text("-N"),
            text("--wal-segsize=1"),
            text("-E"),
            text("UTF8"),
            text("--locale=C"),
        ];
        self.run(&self.programs.join("initdb"), &arguments, scratch.join("initdb.log"), monitor)?;
        let server = self.serve(point, scratch, monitor)?;
        let (rows, customers) = (sizes.table_rows, sizes.table_rows.div_ceil(10));
        server.ask(&format!(
            "CREATE TABLE customers AS SELECT i AS id, i % {REGIONS} AS region, md5(i::text) AS pad
                 FROM generate_series(1, {customers}) i;
             ALTER TABLE customers ADD PRIMARY KEY (id);
             CREATE TABLE orders AS SELECT i::bigint AS id, 1 + (i::bigint * 7919) % {customers} AS customer,
                 (i::bigint * 31337) % 1000 AS amount, md5(i::text) || md5((i + 1)::text) AS pad
                 FROM generate_series(1, {rows}) i;
             VACUUM ANALYZE customers; VACUUM ANALYZE orders; CHECKPOINT;"
        ))?;
        server.stop()
    }

    /// Starts a server for the cluster on the mounted disk.
    pub(super) fn serve<'a>(
        &'a self,
        point: &Path,
        scratch: &Path,
        monitor: &'a dyn JobMonitor,
    ) -> Result<Server<'a>> {
        let socket = format!("@leandisk-bench-{}", std::process::id());
        let mut arguments = vec!["-D".into(), point.join("data/postgresql").display().to_string()];
        let settings = [
            "listen_addresses=".into(),
            format!("unix_socket_directories={socket}"),
            // Less than there is: queries do not fit.
            "shared_buffers=1MB".into(),
            "work_mem=64kB".into(),
            "max_connections=8".into(),
            "autovacuum=off".into(),
            "min_wal_size=2MB".into(),
            "max_wal_size=8MB".into(),
            "max_parallel_workers_per_gather=0".into(),
            "dynamic_shared_memory_type=mmap".into(),
        ];
        for setting in settings {
            arguments.extend(["-c".to_owned(), setting]);
        }
        let log = scratch.join("postgres.log");
        let running = self.start(&self.programs.join("postgres"), &arguments, log)?;
        let mut server = Server { of: self, socket, scratch: scratch.to_owned(), running, monitor };
        server.wait_until_ready()?;
        Ok(server)
    }
}

/// A server at work.
pub(super) struct Server<'a> {
    of: &'a Postgresql,
    socket: String,
    scratch: PathBuf,
    running: Running,
    monitor: &'a dyn JobMonitor,
}

impl Server<'_> {
    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_MAX;
        loop {
            self.running.check()?;
            let Err(refused) = self.ask("SELECT 1") else { return Ok(()) };
            if self.monitor.is_cancelled() || Instant::now() >= deadline {
                return Err(refused);
            }
            std::thread::sleep(STEP);
        }
    }

    fn arguments(&self) -> Vec<String> {
        ["-h", &self.socket, "-U", self.of.user, "-d", "postgres"].map(String::from).to_vec()
    }

    /// Has it do something. Answers its lines, columns apart by `|`.
    fn ask(&self, sql: &str) -> Result<String> {
        let (script, out) = (self.scratch.join("script.sql"), self.scratch.join("answer"));
        fs::write(&script, sql).map_err(|error| Error::io("write", error).path(script.display()))?;
        let mut arguments = self.arguments();
        arguments.extend(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-f"].map(String::from));
        arguments.extend([script.display().to_string(), "-o".into(), out.display().to_string()]);
        // Its own user writes it.
        let _ = fs::remove_file(&out);
        self.of.run(&self.of.client, &arguments, self.scratch.join("psql.log"), self.monitor)?;
        let said = fs::read_to_string(&out).map_err(|error| Error::io("read", error).path(out.display()))?;
        Ok(said.trim().to_owned())
    }

    /// For how long it and what it started kept processors busy.
    pub(super) fn cpu_seconds(&self) -> f64 {
        self.running.cpu_seconds_with_children().unwrap_or(0.0)
    }

    /// Ends it as its administrator does.
    pub(super) fn stop(self) -> Result<()> {
        self.running.end(true)
    }

    /// Inserts rows in one transaction.
    pub(super) fn insert(&self, scene: &Scene<'_>) -> Result<()> {
        let rows = scene.sizes.rows;
        self.ask(&format!(
            "CREATE TABLE rows(id bigint PRIMARY KEY, number bigint, pad text);
             INSERT INTO rows SELECT i, (i::bigint * 31337) % 1000, md5(i::text) || md5((i + 1)::text)
                 FROM generate_series(1, {rows}) i;
             CHECKPOINT;"
        ))
        .map(drop)
    }

    /// Whether all rows are there, and PostgreSQL finds its tables and indexes whole.
    pub(super) fn check_inserted(&self, scene: &Scene<'_>) -> Result<u64> {
        self.check_rows("rows", scene.sizes.rows)
    }

    /// Inserts rows whose keys must be unique, a hundred at a time, and some a second time, which is refused.
    pub(super) fn insert_unique(&self, scene: &Scene<'_>) -> Result<()> {
        let mut sql = String::from("CREATE TABLE keys(name text UNIQUE, number bigint UNIQUE, pad text);\n");
        let mut from = 1;
        while from <= scene.sizes.rows {
            let to = scene.sizes.rows.min(from + ROWS_AT_ONCE - 1);
            sql.push_str(&format!(
                "INSERT INTO keys SELECT md5(i::text), i, md5((i + 1)::text) FROM generate_series({from}, {to}) i;
                 INSERT INTO keys VALUES (md5('{from}'), {from}, '') ON CONFLICT DO NOTHING;\n"
            ));
            from = to + 1;
        }
        sql.push_str("CHECKPOINT;");
        self.ask(&sql).map(drop)
    }

    /// Whether each key is there once.
    pub(super) fn check_unique(&self, scene: &Scene<'_>) -> Result<u64> {
        self.check_rows("keys", scene.sizes.rows)
    }

    fn check_rows(&self, table: &str, rows: u64) -> Result<u64> {
        let count = self.ask(&format!("SELECT count(*) FROM {table}"))?;
        if count != rows.to_string() {
            return Err(Error::mismatch(format!("PostgreSQL has {count} rows of {rows}")));
        }
        self.check_tables()?;
        Ok(rows)
    }

    /// `pg_amcheck` reads all tables and their indexes.
    fn check_tables(&self) -> Result<()> {
        let mut arguments = self.arguments();
        arguments.extend(["--install-missing", "--heapallindexed"].map(String::from));
        let program = self.of.programs.join("pg_amcheck");
        self.of.run(&program, &arguments, self.scratch.join("amcheck.log"), self.monitor)
    }

    /// Joins orders with their customers, and adds up by region.
    pub(super) fn join(&self, scene: &Scene<'_>) -> Result<()> {
        let said = self.ask(
            "SELECT c.region, count(*), sum(o.amount) FROM orders o JOIN customers c ON c.id = o.customer
             WHERE length(c.pad) = 32 GROUP BY c.region ORDER BY c.region",
        )?;
        let rows = scene.sizes.table_rows;
        let line = |region: Region| format!("{}|{}|{}", region.region, region.orders, region.amount);
        let expected: Vec<_> =
            region_sums(rows, |id| 1 + (id * 7919) % rows.div_ceil(10)).into_iter().map(line).collect();
        match said == expected.join("\n") {
            true => Ok(()),
            false => Err(Error::mismatch("PostgreSQL's sums are not those of the rows")),
        }
    }

    /// Sorts all orders by what no index has, outside memory.
    pub(super) fn sort(&self, scene: &Scene<'_>) -> Result<()> {
        let said = self.ask(
            "SELECT count(*), sum(id), bool_and(before IS NULL OR before <= pad)
             FROM (SELECT id, pad, lag(pad) OVER (ORDER BY pad) AS before FROM orders) sorted",
        )?;
        let rows = scene.sizes.table_rows;
        match said == format!("{rows}|{}|t", rows * (rows + 1) / 2) {
            true => Ok(()),
            false => Err(Error::mismatch("what PostgreSQL sorted is not what was stored")),
        }
    }
}

/// That of `postgres`, or the newest that Debian's packages have.
fn folder_of_programs() -> Option<PathBuf> {
    let has_all = |folder: &PathBuf| {
        ["postgres", "initdb", "pg_amcheck"].iter().all(|name| folder.join(name).is_file())
    };
    let in_path = find_program("postgres").and_then(|path| fs::canonicalize(path).ok());
    let mut folders: Vec<_> =
        in_path.and_then(|path| path.parent().map(Path::to_owned)).into_iter().collect();
    let versions = fs::read_dir(VERSIONS).into_iter().flatten().flatten();
    let mut packaged: Vec<_> = versions.map(|entry| entry.path().join("bin")).collect();
    packaged.sort();
    folders.extend(packaged.into_iter().rev());
    folders.into_iter().find(has_all)
}

/// The numbers of a user and of its group.
fn id_of(user: &str) -> Option<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.split(':').next() == Some(user))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn group_of(user: &str) -> u32 {
    id_of(user).map_or(65534, |ids| ids.1)
}
