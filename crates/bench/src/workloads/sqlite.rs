//! Tables in SQLite: rows inserted in bulk, keys that must be unique, a join and a sort that do not fit into memory.

use std::path::{Path, PathBuf};

use block::{Error, Result};
use rusqlite::Connection;

use super::Scene;
use super::contents::Turns;
use super::sizes::Sizes;
use super::tables::{REGIONS, Region, region_sums};
use crate::content::Random;

/// What SQLite keeps of a database in memory, in KiB.
const CACHE_KIB: i64 = 256;
/// Rows of a transaction where keys are unique.
const ROWS_AT_ONCE: u64 = 100;

/// Makes the tables that are queried: in many small transactions if files grow in turns.
pub(super) fn make_tables(point: &Path, sizes: &Sizes, turns: Turns) -> Result<()> {
    let path = database(point, "tables");
    let mut tables = open(&path)?;
    let done = (|| {
        tables.execute_batch(
            "CREATE TABLE customers(id INTEGER PRIMARY KEY, region INTEGER, pad TEXT);
             CREATE TABLE orders(id INTEGER PRIMARY KEY, customer INTEGER, amount INTEGER, pad TEXT);",
        )?;
        let rows_at_once = match turns.files {
            0 | 1 => u64::MAX,
            _ => (turns.bytes as u64 / 128).max(64),
        };
        let mut from = 1;
        while from <= sizes.table_rows {
            let to = sizes.table_rows.min(from.saturating_add(rows_at_once - 1));
            insert_orders(&mut tables, from, to)?;
            from = to + 1;
        }
        Ok(())
    })();
    done.map_err(|error| failed(&path, &error))
}

fn insert_orders(tables: &mut Connection, from: u64, to: u64) -> rusqlite::Result<()> {
    let rows = tables.transaction()?;
    {
        let mut customer = rows.prepare("INSERT INTO customers VALUES(?1, ?1 % ?2, ?3)")?;
        let mut order =
            rows.prepare("INSERT INTO orders VALUES(?1, 1 + (?1 * 7919) % ?2, (?1 * 31337) % 1000, ?3)")?;
        for id in from..=to {
            // Of ten orders one is a new customer's.
            if (id - 1).is_multiple_of(10) {
                customer.execute((signed((id - 1) / 10 + 1), signed(REGIONS), pad(id)))?;
            }
            order.execute((signed(id), signed(customers(to)), pad(id)))?;
        }
    }
    rows.commit()
}

fn customers(orders: u64) -> u64 {
    orders.div_ceil(10)
}

/// Inserts rows in one transaction.
pub(super) fn insert(scene: &Scene<'_>) -> Result<()> {
    let path = database(scene.point, "insert");
    let mut connection = open(&path)?;
    let done = (|| {
        connection.execute_batch("CREATE TABLE rows(id INTEGER PRIMARY KEY, number INTEGER, pad TEXT)")?;
        let rows = connection.transaction()?;
        {
            let mut row = rows.prepare("INSERT INTO rows VALUES(?1, (?1 * 31337) % 1000, ?2)")?;
            for id in 1..=scene.sizes.rows {
                row.execute((signed(id), pad(id)))?;
            }
        }
        rows.commit()
    })();
    done.map_err(|error| failed(&path, &error))
}

/// Whether all rows are there, and SQLite finds its file whole.
pub(super) fn check_inserted(scene: &Scene<'_>) -> Result<u64> {
    check_rows(&database(scene.point, "insert"), "rows", scene.sizes.rows)
}

/// Inserts rows whose keys must be unique, a hundred at a time, and some a second time, which is refused.
pub(super) fn insert_unique(scene: &Scene<'_>) -> Result<()> {
    let path = database(scene.point, "unique");
    let mut connection = open(&path)?;
    let mut refused = 0;
    let done = (|| {
        connection.execute_batch("CREATE TABLE keys(name TEXT UNIQUE, number INTEGER UNIQUE, pad TEXT)")?;
        let mut from = 1;
        while from <= scene.sizes.rows && !scene.monitor.is_cancelled() {
            let to = scene.sizes.rows.min(from + ROWS_AT_ONCE - 1);
            let rows = connection.transaction()?;
            {
                let mut row = rows.prepare("INSERT OR IGNORE INTO keys VALUES(?1, ?2, ?3)")?;
                for id in (from..=to).chain([from]) {
                    // In an order that no index has.
                    let name = format!("{:016x}", id.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                    refused += 1 - row.execute((name, signed(id), pad(id)))?;
                }
            }
            rows.commit()?;
            from = to + 1;
        }
        Ok(())
    })();
    done.map_err(|error| failed(&path, &error))?;
    scene.check_cancel()?;
    match refused as u64 == scene.sizes.rows.div_ceil(ROWS_AT_ONCE) {
        true => Ok(()),
        false => Err(Error::mismatch(format!("{refused} keys were refused")).path(path.display())),
    }
}

/// Whether each key is there once.
pub(super) fn check_unique(scene: &Scene<'_>) -> Result<u64> {
    check_rows(&database(scene.point, "unique"), "keys", scene.sizes.rows)
}

fn check_rows(path: &Path, table: &str, expected: u64) -> Result<u64> {
    let connection = open(path)?;
    let asked = (|| {
        let said: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
        let count: i64 =
            connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))?;
        Ok((said, count))
    })();
    match asked.map_err(|error| failed(path, &error))? {
        (said, count) if said == "ok" && count == signed(expected) => Ok(expected),
        (said, count) => {
            Err(Error::mismatch(format!("{count} rows of {expected}, SQLite says: {said}"))
                .path(path.display()))
        }
    }
}

/// Joins orders with their customers, and adds up by region.
pub(super) fn join(scene: &Scene<'_>) -> Result<()> {
    let path = database(scene.point, "tables");
    let connection = open(&path)?;
    let asked = (|| {
        let mut query = connection.prepare(
            "SELECT c.region, count(*), sum(o.amount) FROM orders o CROSS JOIN customers c ON c.id = o.customer
             WHERE length(c.pad) = 80 GROUP BY c.region ORDER BY c.region",
        )?;
        let rows = query.query_map([], |row| {
            Ok(Region { region: row.get(0)?, orders: row.get(1)?, amount: row.get(2)? })
        })?;
        rows.collect::<rusqlite::Result<Vec<_>>>()
    })();
    let found = asked.map_err(|error| failed(&path, &error))?;
    match found == region_sums(scene.sizes.table_rows, |id| customer_of(id, scene)) {
        true => Ok(()),
        false => Err(Error::mismatch("the sums are not those of the rows").path(path.display())),
    }
}

/// Whose order it is: as many customers were there as its transaction made.
fn customer_of(id: u64, scene: &Scene<'_>) -> u64 {
    let rows_at_once = match scene.turns.files {
        0 | 1 => u64::MAX,
        _ => (scene.turns.bytes as u64 / 128).max(64),
    };
    let to = match rows_at_once {
        u64::MAX => scene.sizes.table_rows,
        at_once => ((id - 1) / at_once + 1).saturating_mul(at_once).min(scene.sizes.table_rows),
    };
    1 + (id * 7919) % customers(to)
}

/// Sorts all orders by what no index has, outside memory.
pub(super) fn sort(scene: &Scene<'_>) -> Result<()> {
    let path = database(scene.point, "tables");
    let connection = open(&path)?;
    let asked = (|| {
        let folder = scene.point.to_string_lossy().replace('\'', "''");
        connection
            .execute_batch(&format!("PRAGMA temp_store = FILE; PRAGMA temp_store_directory = '{folder}'"))?;
        let mut query = connection.prepare("SELECT id, pad FROM orders ORDER BY pad")?;
        let mut rows = query.query([])?;
        let (mut count, mut sum, mut last, mut is_sorted) = (0u64, 0i64, String::new(), true);
        while let Some(row) = rows.next()? {
            let pad: String = row.get(1)?;
            is_sorted &= last <= pad;
            last = pad;
            sum += row.get::<_, i64>(0)?;
            count += 1;
        }
        Ok((count, sum, is_sorted))
    })();
    // For all of the process: others would look for it there.
    let _ = connection.execute_batch("PRAGMA temp_store_directory = ''");
    let rows = scene.sizes.table_rows;
    match asked.map_err(|error| failed(&path, &error))? {
        (count, sum, true) if count == rows && sum == signed(rows * (rows + 1) / 2) => Ok(()),
        _ => Err(Error::mismatch("what was sorted is not what was stored").path(path.display())),
    }
}

fn database(point: &Path, name: &str) -> PathBuf {
    point.join("data").join(format!("{name}.db"))
}

fn open(path: &Path) -> Result<Connection> {
    let opened = Connection::open(path).and_then(|connection| {
        connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        Ok(connection)
    });
    opened.map_err(|error| failed(path, &error))
}

/// Eighty characters that look random.
fn pad(id: u64) -> String {
    let mut random = Random::new(id);
    (0..5).map(|_| format!("{:016x}", random.next())).collect()
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn failed(path: &Path, error: &rusqlite::Error) -> Error {
    Error::io("use SQLite", std::io::Error::other(error.to_string())).path(path.display())
}
