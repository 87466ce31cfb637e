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
    /// Measure what provisioning and fragmentation cost on this storage
    #[command(subcommand)]
    Bench(BenchCommand),
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

/// What becomes of the snapshots that Windows keeps on its volumes.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ShadowCopyArguments {
    /// Do not keep what only shadow copies (Windows' "previous versions") need: they become unreadable, and are to be
    /// deleted in Windows
    #[arg(long)]
    drop_shadow_copies: bool,
}

impl ShadowCopyArguments {
    /// For the used maps.
    pub(crate) fn what(self) -> stack::ShadowCopies {
        match self.drop_shadow_copies {
            true => stack::ShadowCopies::Dropped,
            false => stack::ShadowCopies::Kept,
        }
    }

    /// What is done for the copies of each volume, to be told.
    pub(crate) fn care(
        self,
        stack: &stack::Stack,
        maps: &stack::UsedMaps,
    ) -> block::Result<Vec<report::ShadowCopyCare>> {
        let care = |(index, volume): (usize, &stack::Volume)| {
            let kept_bytes = maps.kept_for_shadow_copies_bytes(index)?;
            let filesystem = volume.filesystem.as_deref();
            Ok(report::ShadowCopyCare::new(filesystem, kept_bytes, self.drop_shadow_copies))
        };
        stack.volumes().iter().enumerate().map(care).collect()
    }
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

impl Provision {
    /// For the engine.
    pub(crate) fn when(self) -> engine::Provision {
        match self {
            Self::Thin => engine::Provision::Thin,
            Self::Lazy => engine::Provision::Lazy,
            Self::Eager => engine::Provision::Eager,
        }
    }

    /// What such a disk keeps of its storage.
    pub(crate) fn kept(self) -> os::Kept {
        match self {
            Self::Thin => os::Kept::Nothing,
            Self::Lazy => os::Kept::Storage,
            Self::Eager => os::Kept::Written,
        }
    }

    /// As on the command line, and in documents.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Thin => "thin",
            Self::Lazy => "lazy",
            Self::Eager => "eager",
        }
    }

    /// Leaves the mark that `serve` goes by on a disk that keeps something.
    pub(crate) fn mark(self, file: &os::NewFile) {
        self.note_unless(self == Self::Thin || file.mark(self.kept()));
    }

    /// Says that the mark is not there, unless it is.
    pub(crate) fn note_unless(self, is_marked: bool) {
        if !is_marked {
            let word = self.word();
            eprintln!(
                "leandisk: note: the host's file system keeps no marks: say --provision {word} when the disk is served"
            );
        }
    }
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

/// What can be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Write thin, lazy and eager disks whole, several times over, and show what the first write costs
    FirstWrite(FirstWriteArguments),
    /// Have disks grow side by side through qemu-nbd and through Leandisk, and show what their fragments cost
    Fragmentation(FragmentationArguments),
}

/// In which order disks grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Order {
    /// All from their start to their end, one write each in turns
    Turns,
    /// In turns as well, each anywhere where it was not yet written
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
    /// The folder on the storage to measure; all is made in a new folder in it, and removed
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) dir: PathBuf,
    /// How many disks grow side by side
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) files: u16,
    /// The size of each, in whole pages of 4 KiB: with K, M, G or T
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_page_size)]
    pub(crate) size: u64,
    /// What is written at a time, in whole pages of 4 KiB
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = parse_write_size)]
    pub(crate) write: u64,
    /// In which order the disks grow
    #[arg(long, value_enum, default_value = "turns")]
    pub(crate) order: Order,
    /// Instead of growing, have many small files come, change and go, as databases do it
    #[arg(long, conflicts_with_all = ["write", "order"])]
    pub(crate) churn: bool,
    /// How much a guest writes before it flushes
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = parse_size)]
    pub(crate) flush: u64,
    /// The disks' formats: raw, vhd, vhdx, vmdk, qcow2, vdi
    #[arg(long, value_name = "FMT,..", default_value = "raw,qcow2,vhdx", value_delimiter = ',')]
    pub(crate) formats: Vec<Format>,
    /// Make and mount a file system for the disks, in a file in the folder; needs root
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) host_filesystem: Option<HostFilesystem>,
    /// Fill that file system with small files before, and remove every other one
    #[arg(long, requires = "host_filesystem")]
    pub(crate) aged: bool,
    /// Leave the disks where they are, to look at
    #[arg(long, conflicts_with = "host_filesystem")]
    pub(crate) keep: bool,
    /// How often all is measured
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) iterations: u16,
    /// Write the figures as one page, with charts
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    /// How to show progress
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) progress: ProgressStyle,
}

#[derive(Debug, Args)]
pub(crate) struct FirstWriteArguments {
    /// The folder on the storage to measure; disks are made in a new folder in it, and removed
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) dir: PathBuf,
    /// The disks' size: a number of bytes, or with K, M, G or T
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    pub(crate) size: u64,
    /// How often each disk is written whole
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) passes: u16,
    /// The disks' formats: raw, vhd, vhdx, vmdk, qcow2, vdi
    #[arg(long, value_name = "FMT,..", default_value = "raw", value_delimiter = ',')]
    pub(crate) format: Vec<Format>,
    /// When the disks' storage is found
    #[arg(
        long,
        value_enum,
        value_name = "KIND,..",
        default_value = "thin,lazy,eager",
        value_delimiter = ','
    )]
    pub(crate) provision: Vec<Provision>,
    /// What is written at a time, in whole pages of 4 KiB
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_write_size)]
    pub(crate) write: u64,
    /// How often all is measured; several times shows how much the figures vary
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) iterations: u16,
    /// Leave the disks where they are, to look at
    #[arg(long)]
    pub(crate) keep: bool,
    /// Write the figures as one page, with charts
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    /// How to show progress
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) progress: ProgressStyle,
}

fn parse_page_size(text: &str) -> Result<u64, String> {
    const PAGE_BYTES: u64 = 4096;
    let bytes = parse_size(text)?;
    let is_whole = bytes.is_multiple_of(PAGE_BYTES);
    is_whole.then_some(bytes).ok_or_else(|| format!("whole pages of {PAGE_BYTES} bytes"))
}

/// What is written at a time is no longer than what clients may send.
fn parse_write_size(text: &str) -> Result<u64, String> {
    const WRITE_BYTES_MAX: u64 = 32 << 20;
    let bytes = parse_page_size(text)?;
    let is_short = bytes <= WRITE_BYTES_MAX;
    is_short.then_some(bytes).ok_or_else(|| format!("at most {WRITE_BYTES_MAX} bytes"))
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
    /// First move files out of the image's blocks that hold little, so that more of them become free
    #[arg(long)]
    pub(crate) defrag: bool,
    /// Move what lies at the file's end into gaps, and cut the file off
    #[arg(long = "move", value_name = "WHEN", value_enum, default_value = "auto")]
    pub(crate) moves: Move,
    #[command(flatten)]
    pub(crate) shadow_copies: ShadowCopyArguments,
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
    /// Bring NTFS's $MFT together, too, behind its first extent
    #[arg(long)]
    pub(crate) mft: bool,
    /// Keep the journal here, with a link to it beside the disk
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
    /// What storage the disk keeps, whatever its guest discards; without it, what it was made with
    #[arg(long, value_enum)]
    pub(crate) provision: Option<Provision>,
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
    /// The socket at which the disk is served, or a recording: what --json printed
    pub(crate) source: PathBuf,
    /// A later one, to be compared with the first on a page
    #[arg(requires = "html", conflicts_with_all = ["json", "csv"])]
    pub(crate) later: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Write a page that shows it as pictures
    #[arg(long, value_name = "FILE", conflicts_with = "csv")]
    pub(crate) html: Option<PathBuf>,
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
    /// When the target's storage is found
    #[arg(long, value_enum, default_value = "thin")]
    pub(crate) provision: Provision,
    /// Copy what the guest's file systems have free, too
    #[arg(long)]
    pub(crate) keep_free: bool,
    /// Copy the contents of page files and swap, too
    #[arg(long)]
    pub(crate) keep_swap: bool,
    #[command(flatten)]
    pub(crate) shadow_copies: ShadowCopyArguments,
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
    /// Copy a disk although another program writes to it, or has it mounted: the copy holds what the disk's file holds, which may be
    /// older than what the guest sees, and may not fit together
    #[arg(long)]
    pub(crate) in_use: bool,
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
