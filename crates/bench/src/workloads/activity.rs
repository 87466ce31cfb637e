//! What is done on a disk, and how each checks its results.

use block::{Error, Result};

use super::Scene;
use super::postgresql::Server;
use super::{files, mail, sqlite};

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activity {
    /// A tree of files is copied beside itself.
    TreeCopy,
    /// Office documents are opened one after the other.
    Documents,
    /// All files of the activities go into an archive on another disk.
    Backup,
    /// Every file is read, as a scanner for viruses does.
    Scan,
    /// Mail arrives in a maildir, each message flushed, and all of it is read.
    MailServer,
    /// Mail arrives in an mbox, each message flushed; it is read from end to end, and packed.
    MailClient,
    /// Rows are inserted in one transaction.
    Insert,
    /// Rows are inserted whose keys must be unique, in many transactions.
    Unique,
    /// Two tables are joined that do not fit into memory.
    Join,
    /// A table is sorted that does not fit into memory.
    Sort,
}

/// By which database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// SQLite, in this program.
    Sqlite,
    /// PostgreSQL, its own server.
    Postgresql,
}

impl Engine {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgresql => "postgresql",
        }
    }
}

impl Activity {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::TreeCopy,
        Self::Documents,
        Self::Backup,
        Self::Scan,
        Self::MailServer,
        Self::MailClient,
        Self::Insert,
        Self::Unique,
        Self::Join,
        Self::Sort,
    ];

    /// As on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::TreeCopy => "tree-copy",
            Self::Documents => "documents",
            Self::Backup => "backup",
            Self::Scan => "scan",
            Self::MailServer => "mail-server",
            Self::MailClient => "mail-client",
            Self::Insert => "insert",
            Self::Unique => "unique",
            Self::Join => "join",
            Self::Sort => "sort",
        }
    }

    pub(super) fn is_of_databases(self) -> bool {
        matches!(self, Self::Insert | Self::Unique | Self::Join | Self::Sort)
    }

    /// Whether it writes to the disk.
    pub(super) fn writes(self) -> bool {
        !matches!(self, Self::Documents | Self::Backup | Self::Scan | Self::Join)
    }
}

/// Does it, by the server if there is one. What it reads it compares.
pub(super) fn perform(activity: Activity, scene: &Scene<'_>, server: Option<&Server<'_>>) -> Result<()> {
    match (activity, server) {
        (Activity::TreeCopy, _) => files::copy_tree(scene),
        (Activity::Documents, _) => files::open_documents(scene),
        (Activity::Backup, _) => files::back_up(scene),
        (Activity::Scan, _) => match files::scan(scene.point, scene.monitor)? == scene.everything {
            true => Ok(()),
            false => Err(Error::mismatch("the files are not what they were when the disk was made")),
        },
        (Activity::MailServer, _) => mail::serve_mail(scene),
        (Activity::MailClient, _) => mail::read_mail(scene),
        (Activity::Insert, None) => sqlite::insert(scene),
        (Activity::Insert, Some(server)) => server.insert(scene),
        (Activity::Unique, None) => sqlite::insert_unique(scene),
        (Activity::Unique, Some(server)) => server.insert_unique(scene),
        (Activity::Join, None) => sqlite::join(scene),
        (Activity::Join, Some(server)) => server.join(scene),
        (Activity::Sort, None) => sqlite::sort(scene),
        (Activity::Sort, Some(server)) => server.sort(scene),
    }
}

/// Whether what it left is what it is to be. Answers how many files, messages or rows were compared, here or while it ran.
pub(super) fn check(activity: Activity, scene: &Scene<'_>, server: Option<&Server<'_>>) -> Result<u64> {
    match (activity, server) {
        (Activity::TreeCopy, _) => files::check_copy(scene),
        (Activity::Documents, _) => Ok(scene.manifest.documents.len() as u64),
        (Activity::Backup, _) => files::check_backup(scene),
        (Activity::Scan, _) => Ok(scene.everything.0),
        (Activity::MailServer, _) => mail::check_served(scene),
        (Activity::MailClient, _) => mail::check_packed(scene),
        (Activity::Insert, None) => sqlite::check_inserted(scene),
        (Activity::Insert, Some(server)) => server.check_inserted(scene),
        (Activity::Unique, None) => sqlite::check_unique(scene),
        (Activity::Unique, Some(server)) => server.check_unique(scene),
        (Activity::Join | Activity::Sort, _) => Ok(scene.sizes.table_rows),
    }
}
