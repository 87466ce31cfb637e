//! How much of everything there is, by the size of the disk.

/// The disk of the published measurements: what is on it, and what is copied, has room beside what aged.
const FULL_DISK_BYTES: u64 = 24 << 30;
/// A tree of 5 GB is copied.
const FULL_TREE_BYTES: u64 = 5_000_000_000;
/// Documents of 5 MB each.
const FULL_DOCUMENT_BYTES: u64 = 5_000_000;
const FULL_DOCUMENTS: u64 = 100;
/// No fewer documents than that, but smaller ones.
const DOCUMENTS_MIN: u64 = 20;
const DOCUMENT_BYTES_MIN: u64 = 32 << 10;
const FULL_MAIL_BYTES: u64 = 300_000_000;
/// Rows that are inserted in bulk.
const FULL_ROWS: u64 = 100_000;
const ROWS_MIN: u64 = 1000;
/// Rows of the table that is joined and sorted.
const FULL_TABLE_ROWS: u64 = 2_000_000;
const TABLE_ROWS_MIN: u64 = 4000;

/// A smaller disk has no room for a file system with all of it.
pub const WORKLOAD_DISK_BYTES_MIN: u64 = 48 << 20;
/// A smaller disk has no room for PostgreSQL's own tables.
pub(super) const POSTGRESQL_DISK_BYTES_MIN: u64 = 256 << 20;
/// The size of the disk of the published measurements.
pub const WORKLOAD_DISK_BYTES_FULL: u64 = FULL_DISK_BYTES;
/// The size if none is given: minutes.
pub const WORKLOAD_DISK_BYTES_DEFAULT: u64 = 256 << 20;

/// Of what there is how much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// The virtual disk.
    pub disk_bytes: u64,
    /// Files of the tree, together.
    pub tree_bytes: u64,
    /// Office documents.
    pub documents: u64,
    /// Bytes of each, about.
    pub document_bytes: u64,
    /// Messages in the maildir, together; those in the mbox are as many bytes.
    pub mail_bytes: u64,
    /// Messages that arrive.
    pub arriving: u64,
    /// Rows that are inserted.
    pub rows: u64,
    /// Rows of the table that is queried.
    pub table_rows: u64,
}

impl Sizes {
    /// On a disk of so many bytes.
    pub fn of(disk_bytes: u64) -> Self {
        let part = |full: u64| {
            let bytes = u128::from(full) * u128::from(disk_bytes) / u128::from(FULL_DISK_BYTES);
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        let documents_bytes = part(FULL_DOCUMENTS * FULL_DOCUMENT_BYTES);
        let document_bytes = (documents_bytes / DOCUMENTS_MIN).clamp(DOCUMENT_BYTES_MIN, FULL_DOCUMENT_BYTES);
        let rows = part(FULL_ROWS).max(ROWS_MIN);
        Self {
            disk_bytes,
            tree_bytes: part(FULL_TREE_BYTES),
            documents: (documents_bytes / document_bytes).max(DOCUMENTS_MIN),
            document_bytes,
            mail_bytes: part(FULL_MAIL_BYTES),
            arriving: (rows / 50).max(50),
            rows,
            table_rows: part(FULL_TABLE_ROWS).max(TABLE_ROWS_MIN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_size_is_that_of_the_published_measurements() {
        let full = Sizes::of(FULL_DISK_BYTES);
        assert_eq!((full.tree_bytes, full.documents, full.document_bytes), (5_000_000_000, 100, 5_000_000));
        assert_eq!(full.rows, 100_000);
    }

    #[test]
    fn all_of_it_and_a_copy_of_the_tree_fit_beside_what_aged() {
        for disk_bytes in [WORKLOAD_DISK_BYTES_MIN, WORKLOAD_DISK_BYTES_DEFAULT, FULL_DISK_BYTES] {
            let sizes = Sizes::of(disk_bytes);
            let files = 2 * sizes.tree_bytes + sizes.documents * sizes.document_bytes + 4 * sizes.mail_bytes;
            let tables = (sizes.table_rows * 2 + sizes.rows * 4) * 150;
            // What is left of what aged, and PostgreSQL's own tables and log.
            let others = disk_bytes / 10 + if disk_bytes < POSTGRESQL_DISK_BYTES_MIN { 0 } else { 44 << 20 };
            let room = crate::age::AgedKind::Ext4.capacity_bytes(disk_bytes);
            assert!(files + tables + others < room, "{sizes:?}: {files}, {tables}, {others} of {room}");
        }
    }
}
