//! The command line of `bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use image::Format;

use super::{OUTPUT, ProgressStyle, Provision, WORKLOAD, examples};
use crate::sizes::{parse_interval, parse_page_size, parse_size, parse_write_size};

/// What can be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Write thin, lazy and eager disks from start to end several times, and compare the first write with later ones
    #[command(after_help = examples::FIRST_WRITE)]
    FirstWrite(FirstWriteArguments),
    /// Let several disks grow at the same time, through qemu-nbd and through Leandisk, and measure their fragmentation
    #[command(after_help = examples::FRAGMENTATION)]
    Fragmentation(FragmentationArguments),
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
