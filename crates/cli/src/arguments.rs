//! The command line. One definition makes the parser and the help.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use image::Format;

/// Makes virtual machine disks lean.
///
/// Exit status: 0 done; 2 usage; 3 refused (unsafe or unsupported, nothing changed); 4 corrupt input;
/// 5 I/O error; 6 verification failed; 130 interrupted.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show every layer of a disk, in milliseconds, without reading its data
    Info(InfoArguments),
    /// Show what is fragmented in which layer, and what is held for nothing, without reading files' data
    Analyze(AnalyzeArguments),
    /// Draw what lies where, for the guest, in the image and on the host, as SVG or as a page to zoom and search
    Map(MapArguments),
    /// Copy a disk to any format, reading and writing only what its guest uses
    Copy(CopyArguments),
    /// Make a new disk, whose storage is found at once or as it is written
    Create(CreateArguments),
    /// Give back what a disk holds and its guest does not use, in place and safe from power cuts
    Compact(CompactArguments),
    /// Lay the files of a disk out contiguously, in place and safe from power cuts
    Defrag(DefragArguments),
    /// Finish or undo a change in place that was interrupted
    Recover(RecoverArguments),
    /// Serve a disk over NBD to virtual machines and tools until it is told to stop (SIGINT or SIGTERM)
    Serve(ServeArguments),
    /// Show what was measured of a disk that is being served
    Stats(StatsArguments),
}

/// How a disk is opened.
#[derive(Debug, Args)]
pub(crate) struct OpenArguments {
    /// Take the source for this format: raw, vhd, vhdx, vmdk, qcow2 or vdi
    #[arg(short = 'f', value_name = "FMT")]
    pub(crate) format: Option<Format>,
    /// Let the image refer to files below this folder (or to this file), besides its own folder
    #[arg(long, value_name = "PATH")]
    pub(crate) allow_path: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct InfoArguments {
    /// The disk: a file or block device
    pub(crate) disk: PathBuf,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AnalyzeArguments {
    /// The disk: a file or block device
    pub(crate) disk: PathBuf,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the whole report as one page, with a map to zoom and search
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write a line of JSON for every file, with its extents
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) files: Option<PathBuf>,
    /// Give advice for this storage: hdd, san, sata-ssd, nvme, or `measured`, which reads up to 64 MiB of the disk in two
    /// seconds at most; without it, what the host says of the storage decides
    #[arg(long, value_name = "STORAGE", value_parser = ["hdd", "san", "sata-ssd", "nvme", "measured"])]
    pub(crate) device: Option<String>,
    /// Count requests of this many bytes
    #[arg(long, value_name = "BYTES", default_value = "131072", value_parser = clap::value_parser!(u64).range(512..=1 << 30))]
    pub(crate) request_size: u64,
    /// Say what this trace costs: a line an access, its offset on the virtual disk and its length in bytes
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Read the data, too, and say how much of it is zeros that the image need not hold
    #[arg(long)]
    pub(crate) zeros: bool,
    /// Name this many of the files in the most fragments
    #[arg(long, value_name = "N", default_value = "10")]
    pub(crate) top: usize,
}

#[derive(Debug, Args)]
pub(crate) struct MapArguments {
    /// The disk: a file or block device
    pub(crate) disk: PathBuf,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
    /// What to write: its name ends in .svg or .html
    #[arg(short = 'o', value_name = "FILE")]
    pub(crate) output: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Layout {
    /// Every byte where it was
    Keep,
    /// Files laid out contiguously
    Packed,
}

/// When a new disk's storage is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Provision {
    /// As it is written
    Thin,
    /// At once; zeroed by the host as it is written
    Lazy,
    /// At once, and zeroed
    Eager,
}

#[derive(Debug, Args)]
pub(crate) struct CreateArguments {
    /// The disk to make
    pub(crate) disk: PathBuf,
    /// Its size: a number of bytes, or with K, M, G or T (powers of 1024)
    #[arg(value_parser = parse_size)]
    pub(crate) size: u64,
    /// Make this format; without it the disk's extension decides
    #[arg(short = 'O', value_name = "FMT")]
    pub(crate) format: Option<Format>,
    /// Set an option of the format: subformat=, `cluster_size`=, `block_size`=
    #[arg(short = 'o', value_name = "KEY=VALUE", value_delimiter = ',')]
    pub(crate) option: Vec<String>,
    /// When its storage is found
    #[arg(long, value_enum, default_value = "thin")]
    pub(crate) provision: Provision,
    /// Replace an existing file
    #[arg(long)]
    pub(crate) force: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    /// How to show progress
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) progress: ProgressStyle,
}

/// Sizes of virtual disks are whole sectors.
const SECTOR_BYTES: u64 = 512;

fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        unit => return Err(format!("no such unit: {unit}")),
    };
    let number: u64 = digits.parse().map_err(|error| format!("{error}"))?;
    let bytes =
        number.checked_mul(1 << shift).filter(|bytes| *bytes > 0 && bytes.is_multiple_of(SECTOR_BYTES));
    bytes.ok_or_else(|| format!("a disk has at least one sector, and whole sectors of {SECTOR_BYTES} bytes"))
}

/// Whether what lies at the end of an image's file goes down into gaps, so that the file gets shorter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Move {
    /// Where the file gets enough shorter for what moves
    Auto,
    /// Wherever the file gets shorter
    Always,
    /// Never
    Never,
}

#[derive(Debug, Args)]
pub(crate) struct CompactArguments {
    /// The disk: a file or block device that nobody uses
    pub(crate) disk: PathBuf,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
    /// Move what lies at the file's end into gaps, and cut the file off
    #[arg(long = "move", value_name = "WHEN", value_enum, default_value = "auto")]
    pub(crate) moves: Move,
    /// Show what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Read every file before and after, and compare
    #[arg(long)]
    pub(crate) verify: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    /// How to show progress
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) progress: ProgressStyle,
}

/// What a disk is to look like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Goal {
    /// No fragmented file, with the fewest bytes moved
    Files,
    /// That, and free space in as few pieces as can be
    Free,
    /// Everything sorted: directories, small files by directory, large files, free space
    Pack,
}

#[derive(Debug, Args)]
pub(crate) struct DefragArguments {
    /// The disk: a file or block device that nobody uses
    pub(crate) disk: PathBuf,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
    /// What to reach
    #[arg(long, value_enum, default_value = "files")]
    pub(crate) goal: Goal,
    /// Only this volume, counted from 1 as `info` does
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) volume: Option<u32>,
    /// Show what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Read every file before and after, and compare
    #[arg(long)]
    pub(crate) verify: bool,
    /// Keep the journal here instead of beside the disk
    #[arg(long, value_name = "FILE")]
    pub(crate) journal: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    /// How to show progress
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) progress: ProgressStyle,
}

#[derive(Debug, Args)]
pub(crate) struct RecoverArguments {
    /// The disk: a file or block device that nobody uses
    pub(crate) disk: PathBuf,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
    /// The journal, if it is not beside the disk
    #[arg(long, value_name = "FILE")]
    pub(crate) journal: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// The disk: a file or block device that nobody uses
    pub(crate) disk: PathBuf,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
    /// Listen at this socket, for this user alone; `leandisk stats` asks at it, too
    #[arg(long, value_name = "PATH", required_unless_present = "listen")]
    pub(crate) socket: Option<PathBuf>,
    /// Listen at this address and port
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// Let nobody write
    #[arg(long)]
    pub(crate) read_only: bool,
    /// What clients call the disk; without it, the file's name
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Demand TLS of those who come over the network, with this certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key", requires = "listen")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The certificate's key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Take only clients whose certificate this authority signed (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Listen to the network without TLS: whoever reaches the address may read and write the disk
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Record all requests in this new file
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Serve metrics for Prometheus at this address of loopback
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArguments {
    /// The socket at which the disk is served
    pub(crate) socket: PathBuf,
    /// Print one JSON document
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Print the tables as `vscsiStats -p all -c` does
    #[arg(long)]
    pub(crate) csv: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ProgressStyle {
    /// A bar, if standard error is a terminal
    Auto,
    /// Lines of JSON on standard error
    Json,
    /// Nothing
    None,
}

#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools)]
pub(crate) struct CopyArguments {
    /// The disk to copy: a file or block device
    pub(crate) source: PathBuf,
    /// What to make of it
    pub(crate) target: PathBuf,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
    /// Make this format; without it the target's extension decides, else the source's format
    #[arg(short = 'O', value_name = "FMT")]
    pub(crate) target_format: Option<Format>,
    /// Set an option of the target's format: subformat=, compression=, `cluster_size`=, `block_size`=
    #[arg(short = 'o', value_name = "KEY=VALUE", value_delimiter = ',')]
    pub(crate) target_option: Vec<String>,
    /// Compress the target (qcow2)
    #[arg(long)]
    pub(crate) compress: bool,
    /// How files lie in the target
    #[arg(long, value_enum, default_value = "keep")]
    pub(crate) layout: Layout,
    /// Copy what the guest's file systems have free, too
    #[arg(long)]
    pub(crate) keep_free: bool,
    /// Copy the contents of page files and swap, too
    #[arg(long)]
    pub(crate) keep_swap: bool,
    /// On a block device, leave old contents where nothing is copied
    #[arg(long)]
    pub(crate) fast: bool,
    /// Read the target back and compare it with what was read
    #[arg(long)]
    pub(crate) verify: bool,
    /// Show what would be done, without reading the data
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Go on with an interrupted copy
    #[arg(long)]
    pub(crate) resume: bool,
    /// Replace an existing target
    #[arg(long)]
    pub(crate) force: bool,
    /// Read and write through the page cache: for a source that lies in it already
    #[arg(long)]
    pub(crate) page_cache: bool,
    /// Number of worker threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: Option<u16>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    /// How to show progress
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) progress: ProgressStyle,
}
