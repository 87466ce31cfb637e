//! The command line of `bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use image::Format;

use super::{OUTPUT, ProgressStyle, Provision, WORKLOAD, examples};
use crate::sizes::{parse_interval, parse_page_size, parse_size, parse_workload_size, parse_write_size};

/// What can be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Use a file system as months of work would, until it is full and fragmented: always in the same way for the same seed
    #[command(after_help = examples::AGE)]
    Age(AgeArguments),
    /// Write thin, lazy and eager disks from start to end several times, and compare the first write with later ones
    #[command(after_help = examples::FIRST_WRITE)]
    FirstWrite(FirstWriteArguments),
    /// Let several disks grow at the same time, through qemu-nbd and through Leandisk, and measure their fragmentation
    #[command(after_help = examples::FRAGMENTATION)]
    Fragmentation(FragmentationArguments),
    /// Do what people do on an aged disk (copy, open, back up, scan, mail, databases), before and after defrag and packed copies, and compare
    #[command(after_help = examples::WORKLOADS)]
    Workloads(WorkloadsArguments),
}

/// How a disk was used before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum State {
    /// Not at all: each file was written in one go
    Fresh,
    /// For a month, to half full
    Light,
    /// For months, until nearly full
    Heavy,
    /// As heavy, and the image's file lies in pieces on the host, too
    Nested,
}

/// What is done on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Activity {
    /// Copy a tree of files
    TreeCopy,
    /// Open many office documents
    Documents,
    /// Back files up to another disk
    Backup,
    /// Read every file, as a virus scanner does
    Scan,
    /// Deliver mail to a maildir, and read it
    MailServer,
    /// Add mail to an mbox, read it, and pack it
    MailClient,
    /// Insert rows in bulk
    Insert,
    /// Insert rows with unique keys
    Unique,
    /// Join two tables
    Join,
    /// Sort a table beyond memory
    Sort,
}

/// What is done about fragmentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Remedy {
    /// Nothing, to compare with
    None,
    /// leandisk defrag
    Defrag,
    /// leandisk defrag --goal pack
    DefragPack,
    /// leandisk copy --layout packed
    CopyPacked,
}

/// On which storage activities run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Storage {
    /// The folder's own
    This,
    /// A model of a 7200 rpm disk
    Hdd,
    /// A model of an array behind a network
    San,
}

/// Where the results of a benchmark go.
#[derive(Debug, Args)]
pub(crate) struct ResultArguments {
    /// Also write the results as an HTML page with charts
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) html: Option<PathBuf>,
    /// Replace the output file if it exists
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) force: bool,
    /// Print one JSON document instead of text (see docs/json.md)
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    /// How to show progress
    #[arg(long, value_enum, default_value = "auto", value_name = "STYLE", help_heading = OUTPUT)]
    pub(crate) progress: ProgressStyle,
}

#[derive(Debug, Args)]
pub(crate) struct WorkloadsArguments {
    /// Folder on the storage to measure. A new folder is made in it, and removed at the end. Needs root
    #[arg(long, value_name = "DIR", default_value = ".", help_heading = WORKLOAD)]
    pub(crate) dir: PathBuf,
    /// How the disk was used before
    #[arg(long, value_enum, value_name = "STATE", default_value = "heavy", help_heading = WORKLOAD)]
    pub(crate) state: State,
    /// What is done on it
    #[arg(long, value_enum, value_name = "WHAT,..", default_value = "tree-copy,documents,backup,scan,mail-server,mail-client,insert,unique,join,sort", value_delimiter = ',', help_heading = WORKLOAD)]
    pub(crate) activities: Vec<Activity>,
    /// What is done about fragmentation, each on a copy of the same disk
    #[arg(long, value_enum, value_name = "REMEDY,..", default_value = "none,defrag,defrag-pack,copy-packed", value_delimiter = ',', help_heading = WORKLOAD)]
    pub(crate) remedy: Vec<Remedy>,
    /// Size of the disk, a multiple of 4K; or percent of that of the published measurements, 24G. All contents scale with it
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_workload_size, help_heading = WORKLOAD)]
    pub(crate) size: u64,
    /// How many times each activity runs on each disk
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u16).range(1..=100), help_heading = WORKLOAD)]
    pub(crate) runs: u16,
    /// On which storage: this one, or a modelled one that serves the requests recorded here
    #[arg(long, value_enum, value_name = "KIND", default_value = "this", help_heading = WORKLOAD)]
    pub(crate) storage: Storage,
    /// Other seeds give other contents
    #[arg(long, value_name = "N", default_value = "1", help_heading = WORKLOAD)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) results: ResultArguments,
}

/// In which order disks grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Order {
    /// Each disk from start to end, one write to each disk in turn
    Turns,
    /// One write to each disk in turn, at random offsets not written before
    Random,
}

/// A file system to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum HostFilesystem {
    /// ext4
    Ext4,
    /// XFS
    Xfs,
    /// Btrfs
    Btrfs,
}

/// A file system that ages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum AgedFilesystem {
    /// ext4
    Ext4,
    /// XFS
    Xfs,
    /// Btrfs
    Btrfs,
    /// NTFS, written by ntfs-3g
    Ntfs,
}

#[derive(Debug, Args)]
pub(crate) struct AgeArguments {
    /// A folder of a mounted file system, in which a new folder is made; or a new raw disk image, which needs root. What exists is never
    /// written over
    pub(crate) target: PathBuf,
    /// What is on a new image
    #[arg(long, value_enum, value_name = "KIND", default_value = "ext4", help_heading = WORKLOAD)]
    pub(crate) filesystem: AgedFilesystem,
    /// Other seeds give other operations
    #[arg(long, value_name = "N", default_value = "1", help_heading = WORKLOAD)]
    pub(crate) seed: u64,
    /// Size of the image, or of all files in the folder: a multiple of 4K
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_page_size, help_heading = WORKLOAD)]
    pub(crate) size: u64,
    /// How much of the room for files is taken, in percent
    #[arg(long, value_name = "PERCENT", default_value = "75", value_parser = clap::value_parser!(u64).range(1..=bench::FILL_PERCENT_MAX), help_heading = WORKLOAD)]
    pub(crate) fill: u64,
    /// How many months go by once it is filled, at most. A month writes a quarter of the room for files
    #[arg(long, value_name = "N", default_value = "6", value_parser = clap::value_parser!(u64).range(0..=1000), help_heading = WORKLOAD)]
    pub(crate) months: u64,
    /// End as soon as so many percent of the files are in pieces (and whatever else is stated has come out)
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(1..=100), help_heading = WORKLOAD)]
    pub(crate) fragmented: Option<u64>,
    /// End as soon as files are in so many pieces on average
    #[arg(long, value_name = "N", value_parser = parse_pieces, help_heading = WORKLOAD)]
    pub(crate) pieces: Option<f64>,
    /// End as soon as the free space of the image is in so many extents
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = WORKLOAD)]
    pub(crate) free_extents: Option<u64>,
    /// Print one JSON document instead of text (see docs/json.md)
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    /// How to show progress
    #[arg(long, value_enum, default_value = "auto", value_name = "STYLE", help_heading = OUTPUT)]
    pub(crate) progress: ProgressStyle,
}

/// How many pieces a file has on average.
fn parse_pieces(text: &str) -> Result<f64, String> {
    let pieces: Option<f64> = text.parse().ok().filter(|pieces| (1.0..=1e6).contains(pieces));
    pieces.ok_or_else(|| format!("'{text}' is no number from 1 to 1000000, such as 1.5"))
}

#[derive(Debug, Args)]
pub(crate) struct FragmentationArguments {
    /// Folder on the storage to measure. A new folder is made in it, and removed at the end
    #[arg(long, value_name = "DIR", default_value = ".", help_heading = WORKLOAD)]
    pub(crate) dir: PathBuf,
    /// How many disks grow at the same time
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=64), help_heading = WORKLOAD)]
    pub(crate) files: u16,
    /// Size of each disk, a multiple of 4K
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_page_size, help_heading = WORKLOAD)]
    pub(crate) size: u64,
    /// Size of each write, a multiple of 4K, at most 32M
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = parse_write_size, help_heading = WORKLOAD)]
    pub(crate) write: u64,
    /// In which order the disks are written
    #[arg(long, value_enum, default_value = "turns", help_heading = WORKLOAD)]
    pub(crate) order: Order,
    /// Instead of growing disks, create, rewrite and delete many small files, as databases do
    #[arg(long, conflicts_with_all = ["write", "order"], help_heading = WORKLOAD)]
    pub(crate) churn: bool,
    /// How much is written between two flushes, a multiple of 512 bytes
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = parse_interval, help_heading = WORKLOAD)]
    pub(crate) flush: u64,
    /// Formats of the disks: raw, vhd, vhdx, vmdk, qcow2, vdi
    #[arg(long, alias = "format", value_name = "FMT,..", default_value = "raw,qcow2,vhdx", value_delimiter = ',', help_heading = WORKLOAD)]
    pub(crate) formats: Vec<Format>,
    /// Make a file system of this kind for the disks, in a file in the folder, and mount it. Needs root
    #[arg(long, value_enum, value_name = "KIND", help_heading = WORKLOAD)]
    pub(crate) host_filesystem: Option<HostFilesystem>,
    /// First fill that file system with small files and delete every second one, so that its free space is fragmented
    #[arg(long, requires = "host_filesystem", help_heading = WORKLOAD)]
    pub(crate) aged: bool,
    /// How many times to measure
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u16).range(1..=100), help_heading = WORKLOAD)]
    pub(crate) iterations: u16,
    /// Keep the disks instead of removing them at the end
    #[arg(long, conflicts_with = "host_filesystem", help_heading = OUTPUT)]
    pub(crate) keep: bool,
    #[command(flatten)]
    pub(crate) results: ResultArguments,
}

#[derive(Debug, Args)]
pub(crate) struct FirstWriteArguments {
    /// Folder on the storage to measure. A new folder is made in it, and removed at the end
    #[arg(long, value_name = "DIR", default_value = ".", help_heading = WORKLOAD)]
    pub(crate) dir: PathBuf,
    /// Size of each disk: a number with K, M, G or T
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size, help_heading = WORKLOAD)]
    pub(crate) size: u64,
    /// How many times each disk is written from start to end
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u16).range(1..=100), help_heading = WORKLOAD)]
    pub(crate) passes: u16,
    /// Formats of the disks: raw, vhd, vhdx, vmdk, qcow2, vdi
    #[arg(long, alias = "format", value_name = "FMT,..", default_value = "raw", value_delimiter = ',', help_heading = WORKLOAD)]
    pub(crate) formats: Vec<Format>,
    /// When space is allocated for the disks
    #[arg(
        long,
        value_enum,
        value_name = "WHEN,..",
        default_value = "thin,lazy,eager",
        value_delimiter = ',',
        help_heading = WORKLOAD
    )]
    pub(crate) provision: Vec<Provision>,
    /// Size of each write, a multiple of 4K, at most 32M
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_write_size, help_heading = WORKLOAD)]
    pub(crate) write: u64,
    /// How many times to measure; more than one shows how much the results vary
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=100), help_heading = WORKLOAD)]
    pub(crate) iterations: u16,
    /// Keep the disks instead of removing them at the end
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) keep: bool,
    #[command(flatten)]
    pub(crate) results: ResultArguments,
}
