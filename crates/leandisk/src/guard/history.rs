//! What guards did, by day, in SQLite: `history.sqlite` in the folder of the ledgers.
//!
//! Invariants:
//! - one transaction a save: a guard that is killed loses what it did since the last one, and nothing else;
//! - a history of a program that did not keep all of this yet gains what it lacks when a guard opens it, and loses nothing; its version
//!   stays, so that the older program can go on with it;
//! - the file has a bound: days and what a day has are counted, and SQLite is told how many pages there may be;
//! - a history that cannot be written stops no guard.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use block::{Error, Result};
use report::{Asleep, GuardDay, GuardReport, GuardTotal, GuardedSpace, GuardedTotal, guard_day};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Transaction, params};

const NAME: &str = "history.sqlite";
/// "lean": tells the file from other databases (`PRAGMA application_id`).
const APPLICATION: i64 = 0x6c65_616e;
const VERSION: i64 = 1;
/// Days that are kept.
pub const HISTORY_DAYS_MAX: u32 = 400;
/// File systems, and devices, of a day.
const ROWS_MAX: i64 = 256;
/// Of 4 KiB each.
const PAGES_MAX: i64 = 16_384;
const SECONDS_A_DAY: u64 = 86_400;
/// Another program may be reading.
const PATIENCE: Duration = Duration::from_secs(2);

const TABLES: &str = "
    CREATE TABLE work (
        day INTEGER NOT NULL, uuid TEXT NOT NULL, path TEXT NOT NULL, kind TEXT NOT NULL,
        prevented INTEGER NOT NULL, repaired INTEGER NOT NULL, moved_bytes INTEGER NOT NULL,
        PRIMARY KEY (day, uuid)) WITHOUT ROWID;
    CREATE TABLE asleep (
        day INTEGER NOT NULL, reason TEXT NOT NULL, ms INTEGER NOT NULL,
        PRIMARY KEY (day, reason)) WITHOUT ROWID;
    CREATE TABLE requests (
        day INTEGER NOT NULL, device TEXT NOT NULL,
        reads INTEGER NOT NULL, read_ms INTEGER NOT NULL, writes INTEGER NOT NULL, write_ms INTEGER NOT NULL,
        PRIMARY KEY (day, device)) WITHOUT ROWID;
    PRAGMA user_version = 1;";
/// What came later than the first histories. The longest free extent is not known where no stretch became free.
const LATER_TABLES: &str = "
    CREATE TABLE IF NOT EXISTS space (
        day INTEGER NOT NULL, uuid TEXT NOT NULL, path TEXT NOT NULL, kind TEXT NOT NULL,
        moved_bytes INTEGER NOT NULL, stretches INTEGER NOT NULL,
        largest_before_bytes INTEGER, largest_after_bytes INTEGER,
        PRIMARY KEY (day, uuid)) WITHOUT ROWID;";

/// What was done on a file system since the last save.
pub(super) struct Work {
    pub(super) uuid: String,
    pub(super) path: String,
    pub(super) kind: String,
    pub(super) prevented: u64,
    pub(super) repaired: u64,
    pub(super) moved_bytes: u64,
}

/// What was done for the free space of a file system since the last save.
pub(super) struct Space {
    pub(super) uuid: String,
    pub(super) path: String,
    pub(super) kind: String,
    pub(super) moved_bytes: u64,
    pub(super) stretches: u64,
    /// The longest free extent before and after stretches became free, if any did.
    pub(super) largest_free_bytes: Option<(u64, u64)>,
}

/// Requests of a device since the last save.
pub(super) struct Requests {
    pub(super) device: String,
    pub(super) reads: u64,
    pub(super) read_ms: u64,
    pub(super) writes: u64,
    pub(super) write_ms: u64,
}

/// All that is saved at once.
#[derive(Default)]
pub(super) struct Entry {
    pub(super) work: Vec<Work>,
    pub(super) space: Vec<Space>,
    /// Why, and milliseconds.
    pub(super) asleep: Vec<(&'static str, u64)>,
    pub(super) requests: Vec<Requests>,
}

/// A history that is written to.
pub(super) struct History {
    database: Connection,
    path: PathBuf,
}

fn fail(path: &Path, error: &rusqlite::Error) -> Error {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    let path = path.display();
    match error.sqlite_error_code() {
        Some(DatabaseCorrupt | NotADatabase) => {
            Error::corrupt(format!("no history of a guard: {error}")).path(path)
        }
        _ => Error::io("read or write the history", std::io::Error::other(error.to_string())).path(path),
    }
}

fn foreign(path: &Path) -> Error {
    Error::corrupt("a database of something else, or of a later version of this program").path(path.display())
}

/// What tells whose database it is.
fn marks(database: &Connection) -> rusqlite::Result<(i64, i64)> {
    let one = |name: &str| database.pragma_query_value(None, name, |row| row.get(0));
    Ok((one("application_id")?, one("user_version")?))
}

impl History {
    /// The history of this folder; a new one if there is none.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(NAME);
        let database = Connection::open(&path).map_err(|error| fail(&path, &error))?;
        let prepare = || -> rusqlite::Result<bool> {
            database.busy_timeout(PATIENCE)?;
            database.pragma_update(None, "trusted_schema", false)?;
            database.pragma_update(None, "max_page_count", PAGES_MAX)?;
            if marks(&database)? == (0, 0) && is_empty(&database)? {
                database.pragma_update(None, "application_id", APPLICATION)?;
                database.execute_batch(&format!("BEGIN; {TABLES} COMMIT;"))?;
            }
            let is_ours = marks(&database)? == (APPLICATION, VERSION);
            if is_ours {
                database.execute_batch(LATER_TABLES)?;
            }
            Ok(is_ours)
        };
        match prepare().map_err(|error| fail(&path, &error))? {
            true => Ok(Self { database, path }),
            false => Err(foreign(&path)),
        }
    }

    /// Adds to a day.
    pub(super) fn add(&mut self, day: i64, entry: &Entry) -> Result<()> {
        self.try_add(day, entry).map_err(|error| fail(&self.path, &error))
    }

    fn try_add(&mut self, day: i64, entry: &Entry) -> rusqlite::Result<()> {
        let transaction = self.database.transaction()?;
        for work in &entry.work {
            add_work(&transaction, day, work)?;
        }
        for space in &entry.space {
            add_space(&transaction, day, space)?;
        }
        for (reason, ms) in &entry.asleep {
            transaction.execute(
                "INSERT INTO asleep VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET ms = ms + excluded.ms",
                params![day, reason, clamp(*ms)],
            )?;
        }
        for requests in &entry.requests {
            add_requests(&transaction, day, requests)?;
        }
        for table in ["work", "space", "asleep", "requests"] {
            forget(&transaction, table)?;
        }
        transaction.commit()
    }
}

fn is_empty(database: &Connection) -> rusqlite::Result<bool> {
    database.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| row.get(0))
}

/// So that sums of all rows that there can be have room.
fn clamp(value: u64) -> i64 {
    i64::try_from(value.min(1 << 52)).unwrap_or(0)
}

fn has_room(transaction: &Transaction<'_>, table: &str, day: i64) -> rusqlite::Result<bool> {
    transaction.query_row(
        &format!("SELECT count(*) < ?2 FROM {table} WHERE day = ?1"),
        [day, ROWS_MAX],
        |row| row.get(0),
    )
}

fn add_work(transaction: &Transaction<'_>, day: i64, work: &Work) -> rusqlite::Result<()> {
    let known: Option<i64> = transaction
        .query_row("SELECT 1 FROM work WHERE day = ?1 AND uuid = ?2", params![day, work.uuid], |row| {
            row.get(0)
        })
        .optional()?;
    if known.is_none() && !has_room(transaction, "work", day)? {
        return Ok(());
    }
    let counts = [work.prevented, work.repaired, work.moved_bytes].map(clamp);
    transaction.execute(
        "INSERT INTO work VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO UPDATE SET path = excluded.path,
         prevented = prevented + excluded.prevented, repaired = repaired + excluded.repaired,
         moved_bytes = moved_bytes + excluded.moved_bytes",
        params![day, work.uuid, work.path, work.kind, counts[0], counts[1], counts[2]],
    )?;
    Ok(())
}

fn add_space(transaction: &Transaction<'_>, day: i64, space: &Space) -> rusqlite::Result<()> {
    let known: Option<i64> = transaction
        .query_row("SELECT 1 FROM space WHERE day = ?1 AND uuid = ?2", params![day, space.uuid], |row| {
            row.get(0)
        })
        .optional()?;
    if known.is_none() && !has_room(transaction, "space", day)? {
        return Ok(());
    }
    let [moved_bytes, stretches] = [space.moved_bytes, space.stretches].map(clamp);
    let (before, after) =
        space.largest_free_bytes.map(|(before, after)| (clamp(before), clamp(after))).unzip();
    // Of a day the first that was before, and the last that was after.
    transaction.execute(
        "INSERT INTO space VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT DO UPDATE SET path = excluded.path,
         moved_bytes = moved_bytes + excluded.moved_bytes, stretches = stretches + excluded.stretches,
         largest_before_bytes = coalesce(largest_before_bytes, excluded.largest_before_bytes),
         largest_after_bytes = coalesce(excluded.largest_after_bytes, largest_after_bytes)",
        params![day, space.uuid, space.path, space.kind, moved_bytes, stretches, before, after],
    )?;
    Ok(())
}

fn add_requests(transaction: &Transaction<'_>, day: i64, requests: &Requests) -> rusqlite::Result<()> {
    let known: Option<i64> = transaction
        .query_row(
            "SELECT 1 FROM requests WHERE day = ?1 AND device = ?2",
            params![day, requests.device],
            |row| row.get(0),
        )
        .optional()?;
    if known.is_none() && !has_room(transaction, "requests", day)? {
        return Ok(());
    }
    let counts = [requests.reads, requests.read_ms, requests.writes, requests.write_ms].map(clamp);
    transaction.execute(
        "INSERT INTO requests VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO UPDATE SET reads = reads + excluded.reads,
         read_ms = read_ms + excluded.read_ms, writes = writes + excluded.writes, write_ms = write_ms + excluded.write_ms",
        params![day, requests.device, counts[0], counts[1], counts[2], counts[3]],
    )?;
    Ok(())
}

/// Days beyond those that are kept go, the oldest first: by their number, since a clock that was wrong for a while makes days that
/// are far from the others.
fn forget(transaction: &Transaction<'_>, table: &str) -> rusqlite::Result<()> {
    let kept = format!("SELECT DISTINCT day FROM {table} ORDER BY day DESC LIMIT ?1");
    transaction.execute(&format!("DELETE FROM {table} WHERE day NOT IN ({kept})"), [HISTORY_DAYS_MAX])?;
    Ok(())
}

/// The day that it is, of those since 1970, in UTC.
pub(super) fn today() -> i64 {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    i64::try_from(seconds / SECONDS_A_DAY).unwrap_or(0)
}

/// What the history in a folder has of the last so many days, up to `today`.
pub(super) fn read(folder: &Path, running: bool, today: i64, days: u32) -> Result<GuardReport> {
    let path = folder.join(NAME);
    if !path.exists() {
        return Ok(GuardReport::new(running, false, Vec::new(), Vec::new()));
    }
    let found = read_database(&path, today, days.clamp(1, HISTORY_DAYS_MAX));
    let (days, filesystems) = found.map_err(|error| fail(&path, &error))?.ok_or_else(|| foreign(&path))?;
    Ok(GuardReport::new(running, true, days, filesystems))
}

type Found = (Vec<GuardDay>, Vec<GuardedTotal>);

fn read_database(path: &Path, today: i64, days: u32) -> rusqlite::Result<Option<Found>> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = Connection::open_with_flags(path, flags)?;
    database.busy_timeout(PATIENCE)?;
    database.pragma_update(None, "trusted_schema", false)?;
    if marks(&database)? != (APPLICATION, VERSION) {
        return Ok(None);
    }
    let first = today.saturating_sub(i64::from(days) - 1);
    let has_space = has_table(&database, "space")?;
    let days =
        (first..=today).map(|day| read_day(&database, day, has_space)).collect::<rusqlite::Result<_>>()?;
    let mut statement = database.prepare(
        "SELECT max(path), kind, sum(prevented), sum(repaired), sum(moved_bytes) FROM work
         WHERE day BETWEEN ?1 AND ?2 GROUP BY uuid, kind ORDER BY 3 DESC, 4 DESC, 1 LIMIT ?3",
    )?;
    let total = |row: &rusqlite::Row<'_>| {
        Ok(GuardedTotal {
            path: row.get(0)?,
            filesystem: row.get(1)?,
            prevented: count(row, 2)?,
            repaired: count(row, 3)?,
            moved_bytes: count(row, 4)?,
        })
    };
    let filesystems =
        statement.query_map([first, today, ROWS_MAX], total)?.collect::<rusqlite::Result<_>>()?;
    Ok(Some((days, filesystems)))
}

/// A history is not changed by being read, so that one that no later guard opened yet lacks what came later.
fn has_table(database: &Connection, name: &str) -> rusqlite::Result<bool> {
    database.query_row(
        "SELECT count(*) > 0 FROM sqlite_schema WHERE type = 'table' AND name = ?1",
        [name],
        |row| row.get(0),
    )
}

fn read_space(database: &Connection, day: i64) -> rusqlite::Result<Vec<GuardedSpace>> {
    let mut statement = database.prepare(
        "SELECT path, kind, moved_bytes, stretches, largest_before_bytes, largest_after_bytes FROM space
         WHERE day = ?1 ORDER BY moved_bytes DESC, path LIMIT ?2",
    )?;
    let known = |row: &rusqlite::Row<'_>, at: usize| {
        Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(at)?.and_then(|bytes| u64::try_from(bytes).ok()))
    };
    let one = |row: &rusqlite::Row<'_>| {
        Ok(GuardedSpace {
            path: row.get(0)?,
            filesystem: row.get(1)?,
            space_moved_bytes: count(row, 2)?,
            space_stretches: count(row, 3)?,
            largest_free_before_bytes: known(row, 4)?,
            largest_free_after_bytes: known(row, 5)?,
        })
    };
    statement.query_map([day, ROWS_MAX], one)?.collect()
}

/// Not there is none, less than none too.
fn count(row: &rusqlite::Row<'_>, at: usize) -> rusqlite::Result<u64> {
    Ok(u64::try_from(row.get::<_, Option<i64>>(at)?.unwrap_or(0)).unwrap_or(0))
}

fn read_day(database: &Connection, day: i64, has_space: bool) -> rusqlite::Result<GuardDay> {
    let mut total = database.query_row(
        "SELECT sum(prevented), sum(repaired), sum(moved_bytes) FROM work WHERE day = ?1",
        [day],
        |row| {
            let [prevented, repaired, moved_bytes] = [count(row, 0)?, count(row, 1)?, count(row, 2)?];
            Ok(GuardTotal { prevented, repaired, moved_bytes, ..GuardTotal::default() })
        },
    )?;
    let space = if has_space { read_space(database, day)? } else { Vec::new() };
    total.space_moved_bytes = space.iter().fold(0, |sum, one| one.space_moved_bytes.saturating_add(sum));
    let mut statement =
        database.prepare("SELECT reason, ms FROM asleep WHERE day = ?1 ORDER BY ms DESC LIMIT ?2")?;
    let one = |row: &rusqlite::Row<'_>| {
        Ok(Asleep { reason: row.get(0)?, seconds: Duration::from_millis(count(row, 1)?).as_secs_f64() })
    };
    let asleep: Vec<Asleep> = statement.query_map([day, ROWS_MAX], one)?.collect::<rusqlite::Result<_>>()?;
    total.asleep_seconds = asleep.iter().map(|one| one.seconds).sum();
    let [reads, read_ms, writes, write_ms] = database.query_row(
        "SELECT sum(reads), sum(read_ms), sum(writes), sum(write_ms) FROM requests WHERE day = ?1",
        [day],
        |row| Ok([count(row, 0)?, count(row, 1)?, count(row, 2)?, count(row, 3)?]),
    )?;
    #[allow(clippy::cast_precision_loss)] // Figures for people.
    let mean = |ms: u64, requests: u64| (requests > 0).then(|| ms as f64 / requests as f64);
    Ok(GuardDay {
        day: guard_day(day),
        total,
        space,
        asleep,
        reads,
        read_ms: mean(read_ms, reads),
        writes,
        write_ms: mean(write_ms, writes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(uuid: &str, prevented: u64) -> Work {
        let [path, kind] = ["/srv", "xfs"].map(str::to_owned);
        Work { uuid: uuid.to_owned(), path, kind, prevented, repaired: 1, moved_bytes: 65_536 }
    }

    fn entry(prevented: u64) -> Entry {
        let requests = Requests { device: "8:0".to_owned(), reads: 4, read_ms: 10, writes: 0, write_ms: 0 };
        Entry {
            work: vec![work("a", prevented)],
            asleep: vec![("files were being written", 1500)],
            requests: vec![requests],
            ..Entry::default()
        }
    }

    #[test]
    fn days_add_up_and_the_sqlite3_program_reads_them() {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            // Each guard opens what the one before left.
            History::open(folder.path()).unwrap().add(20_000, &entry(5)).unwrap();
        }
        let found = read(folder.path(), false, 20_001, 14).unwrap();
        assert_eq!((found.days.len(), found.total.prevented, found.total.repaired), (14, 10, 2));
        let day = &found.days[12];
        assert_eq!(
            (day.day.as_str(), day.reads, day.read_ms, day.write_ms),
            ("2024-10-04", 8, Some(2.5), None)
        );
        assert!((found.total.asleep_seconds - 3.0).abs() < 1e-9);
        assert_eq!(found.filesystems[0].moved_bytes, 131_072);
        let path = folder.path().join(NAME);
        let said = testkit::run(
            "sqlite3",
            &[path.to_str().unwrap(), "PRAGMA integrity_check; SELECT sum(prevented) FROM work"],
        );
        assert_eq!(said, "ok\n10\n");
    }

    #[test]
    fn it_has_a_bound() {
        let folder = tempfile::tempdir().unwrap();
        let mut history = History::open(folder.path()).unwrap();
        history.database.pragma_update(None, "synchronous", "OFF").unwrap();
        let many = (0..300).map(|at| work(&at.to_string(), u64::MAX)).collect();
        let spaces = (0..300).flat_map(|at| space(&at.to_string(), u64::MAX, None).space).collect();
        history.add(1, &Entry { work: many, space: spaces, ..Entry::default() }).unwrap();
        let count_of = |history: &History, table: &str| {
            let count = format!("SELECT count(*) FROM {table}");
            history.database.query_row(&count, [], |row| row.get::<_, i64>(0)).unwrap()
        };
        assert_eq!(["work", "space"].map(|table| count_of(&history, table)), [ROWS_MAX; 2]);
        for day in 0..i64::from(HISTORY_DAYS_MAX) + 5 {
            history.add(20_000 + day, &entry(1)).unwrap();
        }
        let days: i64 =
            history.database.query_row("SELECT count(DISTINCT day) FROM work", [], |row| row.get(0)).unwrap();
        assert_eq!(days, i64::from(HISTORY_DAYS_MAX));
        assert_eq!(read(folder.path(), true, 20_404, 400).unwrap().total.prevented, 400);
    }

    fn space(uuid: &str, moved_bytes: u64, largest_free_bytes: Option<(u64, u64)>) -> Entry {
        let [path, kind] = [format!("/{uuid}"), "ext4".to_owned()];
        let stretches = u64::from(largest_free_bytes.is_some());
        let one = Space { uuid: uuid.to_owned(), path, kind, moved_bytes, stretches, largest_free_bytes };
        Entry { space: vec![one], ..Entry::default() }
    }

    #[test]
    fn free_space_adds_up_by_day_from_the_first_before_to_the_last_after() {
        let folder = tempfile::tempdir().unwrap();
        let saves = [
            (20_000, space("a", 5, None)),
            (20_000, space("a", 7, Some((100, 200)))),
            (20_000, space("b", 20, None)),
            (20_000, space("a", 0, Some((200, 300)))),
            (20_000, space("a", 1, None)),
            (20_001, space("a", 30, Some((300, 400)))),
        ];
        for (day, entry) in &saves {
            History::open(folder.path()).unwrap().add(*day, entry).unwrap();
        }
        let found = read(folder.path(), false, 20_001, 14).unwrap();
        let row = |one: &GuardedSpace| {
            let largest = (one.largest_free_before_bytes, one.largest_free_after_bytes);
            (one.path.clone(), one.space_moved_bytes, one.space_stretches, largest)
        };
        let rows = |day: usize| found.days[day].space.iter().map(row).collect::<Vec<_>>();
        let [a, b] = ["/a", "/b"].map(str::to_owned);
        let first = vec![(b, 20, 0, (None, None)), (a.clone(), 13, 2, (Some(100), Some(300)))];
        assert_eq!((rows(12), rows(13)), (first, vec![(a, 30, 1, (Some(300), Some(400)))]));
        let sums = [12, 13].map(|day: usize| found.days[day].total.space_moved_bytes);
        assert_eq!((sums, found.total.space_moved_bytes), ([33, 30], 63));
    }

    /// As programs before free space was brought together left it.
    #[test]
    fn an_older_history_is_read_and_gains_what_it_lacks() {
        let folder = tempfile::tempdir().unwrap();
        let old = Connection::open(folder.path().join(NAME)).unwrap();
        old.pragma_update(None, "application_id", APPLICATION).unwrap();
        old.execute_batch(TABLES).unwrap();
        old.execute_batch(
            "INSERT INTO work VALUES (20000, 'a', '/srv', 'xfs', 5, 1, 65536);
             INSERT INTO asleep VALUES (20000, 'files were being written', 1500);
             INSERT INTO requests VALUES (20000, '8:0', 4, 10, 0, 0)",
        )
        .unwrap();
        drop(old);
        let bytes = std::fs::read(folder.path().join(NAME)).unwrap();
        let before = read(folder.path(), false, 20_000, 2).unwrap();
        assert_eq!((before.total.prevented, before.days[1].reads, before.total.space_moved_bytes), (5, 4, 0));
        assert!(std::fs::read(folder.path().join(NAME)).unwrap() == bytes, "a report changes nothing");

        let mut history = History::open(folder.path()).unwrap();
        assert_eq!(read(folder.path(), false, 20_000, 2).unwrap(), before);
        history.add(20_000, &space("a", 9, Some((1, 2)))).unwrap();
        let mut after = read(folder.path(), false, 20_000, 2).unwrap();
        assert_eq!(after.days[1].space[0].largest_free_after_bytes, Some(2));
        after.days[1].space.clear();
        after.days[1].total.space_moved_bytes -= 9;
        after.total.space_moved_bytes -= 9;
        assert_eq!(after, before, "nothing of it is lost");
        assert_eq!(
            marks(&history.database).unwrap(),
            (APPLICATION, VERSION),
            "the older program goes on with it"
        );
    }

    #[test]
    fn what_is_no_history_is_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!read(folder.path(), false, 1, 14).unwrap().has_history);
        std::fs::write(folder.path().join(NAME), [b'x'; 5000]).unwrap();
        assert!(read(folder.path(), false, 1, 14).is_err() && History::open(folder.path()).is_err());
        std::fs::remove_file(folder.path().join(NAME)).unwrap();
        let other = Connection::open(folder.path().join(NAME)).unwrap();
        other.execute_batch("CREATE TABLE t (a)").unwrap();
        assert!(History::open(folder.path()).is_err() && read(folder.path(), false, 1, 14).is_err());
        assert!(!has_table(&other, "space").unwrap(), "a database of something else gains nothing");
    }
}
