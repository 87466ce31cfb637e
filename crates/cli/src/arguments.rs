//! The command line. One definition makes the parser, the help, the manual pages and the completions.

use std::path::{Path, PathBuf};

use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use image::Format;
use leandisk::defrag;

use crate::sizes::{parse_request_size, parse_size};

mod backup;
mod bench;
mod examples;
mod files;
mod guarding;
mod report;
mod serving;

pub(crate) use backup::{
    BackupArguments, BootArguments, Bus, CheckArguments, RepositoryArguments, RestoreArguments,
    SnapshotsArguments,
};
pub(crate) use bench::{
    Activity, AgeArguments, AgedFilesystem, BenchCommand, FirstWriteArguments, FragmentationArguments,
    HostFilesystem, Order, Remedy, State, Storage, WorkloadsArguments,
};
pub(crate) use files::{CatArguments, ExtractArguments, ListArguments};
pub(crate) use guarding::{CoordinateArguments, GuardArguments, GuardCommand};
pub(crate) use report::ReportArguments;
pub(crate) use serving::{Placement, ServeArguments, Simulate, StatsArguments};

/// Makes virtual machine disks lean: copies only what the guest uses, gives back what it does not use, and lays out its files
/// contiguously.
///
/// Leandisk reads raw, VHD, VHDX, VMDK, QCOW2 and VDI disks from outside the guest. It needs no mount and no virtual machine.
///
/// Exit status: 0 done; 2 wrong usage; 3 refused (unsafe or unsupported, nothing was changed); 4 corrupt input; 5 I/O error;
/// 6 verification failed; 130 interrupted.
#[derive(Debug, Parser)]
#[command(name = "leandisk", version = env!("LEANDISK_VERSION"), about, max_term_width = 80, after_help = examples::ALL)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) messages: MessageArguments,
}

impl Arguments {
    /// The command line as it is parsed and told: options of a repository are short where `-o` means nothing else.
    pub(crate) fn whole() -> clap::Command {
        let short = |command: clap::Command| {
            let has_option = command.get_arguments().any(|argument| argument.get_id() == "option");
            match has_option && !command.get_arguments().any(|argument| argument.get_short() == Some('o')) {
                true => command.mut_arg("option", |option| option.short('o')),
                false => command,
            }
        };
        Self::command().mut_subcommands(short)
    }

    /// What this process was called with.
    pub(crate) fn of_this_process() -> Result<Self, clap::Error> {
        Self::from_arg_matches(&Self::whole().try_get_matches()?)
    }
}

/// What is told on standard error.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct MessageArguments {
    /// Log on standard error what is being done: -v what happens, -vv also how, -vvv everything. RUST_LOG goes before it
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = MESSAGES)]
    pub(crate) verbose: u8,
    /// Write nothing but errors to standard error, and no progress
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = MESSAGES)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the format, partitions and file systems of a disk
    #[command(after_help = examples::INFO)]
    Info(InfoArguments),
    /// Report how fragmented a disk is, how much space it wastes, and what to do about it
    #[command(after_help = examples::ANALYZE)]
    Analyze(AnalyzeArguments),
    /// Draw a map of where the files lie on the disk, in the image and on the host
    #[command(after_help = examples::MAP)]
    Map(MapArguments),
    /// List the files in a folder of a disk
    #[command(name = "ls", after_help = examples::LS)]
    List(ListArguments),
    /// Write the contents of a file of a disk to standard output
    #[command(after_help = examples::CAT)]
    Cat(CatArguments),
    /// Extract files and folders of a disk into a folder, or as a tar
    #[command(after_help = examples::EXTRACT)]
    Extract(ExtractArguments),
    /// Copy a disk to any format, reading and writing only what the guest uses
    #[command(after_help = examples::COPY)]
    Copy(CopyArguments),
    /// Back up what the guests of disks use, into a repository in restic's format
    #[command(after_help = examples::BACKUP)]
    Backup(BackupArguments),
    /// List the snapshots of a repository
    #[command(after_help = examples::SNAPSHOTS)]
    Snapshots(SnapshotsArguments),
    /// Restore a disk of a snapshot to any format
    #[command(after_help = examples::RESTORE)]
    Restore(RestoreArguments),
    /// Read everything that a snapshot needs, and compare it with its hashes
    #[command(after_help = examples::CHECK)]
    Check(CheckArguments),
    /// Create a new, empty disk
    #[command(after_help = examples::CREATE)]
    Create(CreateArguments),
    /// Shrink a disk image in place by giving back the space that the guest does not use
    #[command(after_help = examples::COMPACT)]
    Compact(CompactArguments),
    /// Defragment the files of a disk in place
    #[command(after_help = examples::DEFRAG)]
    Defrag(DefragArguments),
    /// Finish or undo a compact or defrag that was interrupted
    #[command(after_help = examples::RECOVER)]
    Recover(RecoverArguments),
    /// Serve disks over NBD to virtual machines and tools, until SIGINT or SIGTERM
    #[command(after_help = examples::SERVE)]
    Serve(ServeArguments),
    /// Show I/O statistics of a disk that is being served
    #[command(after_help = examples::STATS)]
    Stats(StatsArguments),
    /// Compare documents of before and after: what was gained, and what it is worth
    #[command(after_help = examples::REPORT)]
    Report(ReportArguments),
    /// Keep the files of this machine in one piece: reserve room for those that grow, and repair fragments when nobody else works, until
    /// SIGINT or SIGTERM
    #[command(after_help = examples::GUARD)]
    Guard(GuardArguments),
    /// Share the storage of this machine among its guards and those of its guests: only one moves files on a device at a time, until
    /// SIGINT or SIGTERM
    #[command(after_help = examples::COORDINATE)]
    Coordinate(CoordinateArguments),
    /// Measure on your own storage what provisioning and fragmentation cost
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Print a script that completes commands and options in a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions(CompletionsArguments),
    /// Write the manual pages to a folder
    #[command(hide = true)]
    Man(ManArguments),
}

impl Command {
    /// Whether a document is to be printed, of a failure as well.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Self::Info(arguments) => arguments.json,
            Self::Analyze(arguments) => arguments.json,
            Self::List(arguments) => arguments.json,
            Self::Copy(arguments) => arguments.json,
            Self::Backup(arguments) => arguments.json,
            Self::Snapshots(arguments) => arguments.json,
            Self::Restore(arguments) => arguments.json,
            Self::Check(arguments) => arguments.json,
            Self::Create(arguments) => arguments.json,
            Self::Compact(arguments) => arguments.json,
            Self::Defrag(arguments) => arguments.json,
            Self::Recover(arguments) => arguments.json,
            Self::Stats(arguments) => arguments.json,
            Self::Report(arguments) => arguments.json,
            Self::Bench(BenchCommand::Age(arguments)) => arguments.json,
            Self::Bench(BenchCommand::FirstWrite(arguments)) => arguments.results.json,
            Self::Bench(BenchCommand::Fragmentation(arguments)) => arguments.results.json,
            Self::Bench(BenchCommand::Workloads(arguments)) => arguments.results.json,
            Self::Guard(GuardArguments { command: Some(GuardCommand::Status(arguments)), .. }) => {
                arguments.json
            }
            Self::Guard(GuardArguments { command: Some(GuardCommand::Report(arguments)), .. }) => {
                arguments.json
            }
            Self::Guard(_)
            | Self::Coordinate(_)
            | Self::Map(_)
            | Self::Cat(_)
            | Self::Extract(_)
            | Self::Serve(_)
            | Self::Completions(_)
            | Self::Man(_) => false,
        }
    }
}

impl Command {
    /// Whether standard output is what the command makes, so that all else goes to standard error.
    pub(crate) fn fills_stdout(&self) -> bool {
        matches!(self, Self::Copy(CopyArguments { into: None, others, .. }) if others.iter().any(|target| target.as_os_str() == "-"))
    }

    /// The disk that is opened first, if there is one.
    pub(crate) fn disk(&self) -> Option<&Path> {
        match self {
            Self::Info(InfoArguments { disk, .. })
            | Self::Analyze(AnalyzeArguments { disk, .. })
            | Self::Map(MapArguments { disk, .. })
            | Self::List(ListArguments { disk, .. })
            | Self::Cat(CatArguments { disk, .. })
            | Self::Extract(ExtractArguments { disk, .. })
            | Self::Copy(CopyArguments { source: disk, into: None, .. })
            | Self::Compact(CompactArguments { disk, .. })
            | Self::Defrag(DefragArguments { disk, .. })
            | Self::Recover(RecoverArguments { disk, .. }) => Some(disk),
            // Of several, the error says which.
            Self::Serve(ServeArguments { disks, .. }) => match &disks[..] {
                [only] => Some(only),
                _ => None,
            },
            // Of several, the error says which.
            Self::Copy(_) => None,
            Self::Backup(_)
            | Self::Snapshots(_)
            | Self::Restore(_)
            | Self::Check(_)
            | Self::Create(_)
            | Self::Stats(_)
            | Self::Report(_)
            | Self::Guard(_)
            | Self::Coordinate(_)
            | Self::Bench(_)
            | Self::Completions(_)
            | Self::Man(_) => None,
        }
    }
}

/// Headings of the options.
const OPENING: &str = "Opening the disk";
const REPOSITORY: &str = "Repository";
const TARGET: &str = "Target";
const CONTENTS: &str = "What is copied";
const CHANGE: &str = "What is changed";
const SAFETY: &str = "Checks";
const TUNING: &str = "Performance";
const OUTPUT: &str = "Output";
const GUEST: &str = "Running guests";
const NETWORK: &str = "Network";
const MESSAGES: &str = "Messages";
const WORKLOAD: &str = "What is measured";

/// How a disk is opened.
#[derive(Debug, Args)]
pub(crate) struct OpenArguments {
    /// Format of the disk: raw, vhd, vhdx, vmdk, qcow2 or vdi [default: detected from the file]
    #[arg(short = 'f', value_name = "FMT", help_heading = OPENING)]
    pub(crate) format: Option<Format>,
    /// Allow the image to refer to files in this folder, or to this file. Backing files, extents and parents are otherwise
    /// opened only from the image's own folder. May be repeated
    #[arg(long, value_name = "PATH", help_heading = OPENING)]
    pub(crate) allow_path: Vec<PathBuf>,
    /// Another disk, on which logical volumes of LVM2, or a Btrfs, that lie on this one have parts. It is only read. May be repeated
    #[arg(long, value_name = "DISK", help_heading = OPENING)]
    pub(crate) with: Vec<PathBuf>,
}

/// What is done with an NTFS volume whose log is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum NtfsLog {
    /// Take the volume whole
    Refuse,
    /// Leave out what neither its bitmap nor its log names
    Join,
}

/// What is done with volumes as a running guest leaves them.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct LogArguments {
    /// What to do with an NTFS volume whose log is open, as a running Windows leaves it. With "join" all that any record of the log names
    /// counts as used; a log that is not understood in full still leaves the volume whole
    #[arg(long, value_name = "WHAT", value_enum, default_value = "refuse", help_heading = OPENING)]
    pub(crate) ntfs_log: NtfsLog,
}

/// Whether the program is closed in while it reads the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Confine {
    /// Confine the program as far as this system can do it
    Auto,
    /// Confine the program, or refuse to read the disk
    Always,
    /// Do not confine the program
    Never,
}

/// What the program may do while it reads a disk.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ConfineArguments {
    /// Whether the program reads the disk in a process that can open no other file, start no program and reach no network (Landlock and
    /// seccomp)
    #[arg(long, value_name = "WHEN", value_enum, default_value = "auto", help_heading = SAFETY)]
    pub(crate) confine: Confine,
}

/// What becomes of the snapshots that Windows keeps on its volumes.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ShadowCopyArguments {
    /// Do not keep data that only shadow copies (the "previous versions" of Windows) need. They become unreadable: delete them in
    /// Windows afterwards
    #[arg(long, help_heading = CONTENTS)]
    pub(crate) drop_shadow_copies: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InfoArguments {
    /// The disk: an image file, a block device, qmp:SOCKET for the disks of a running QEMU guest, or qmp:SOCKET?disk=NAME for one of them
    pub(crate) disk: PathBuf,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
    #[command(flatten)]
    pub(crate) log: LogArguments,
    #[command(flatten)]
    pub(crate) repository: RepositoryArguments,
    /// Print one JSON document instead of text (see docs/json.md)
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) confine: ConfineArguments,
}

#[derive(Debug, Args)]
pub(crate) struct AnalyzeArguments {
    /// The disk: an image file, a block device, or qmp:SOCKET[?disk=NAME] for a disk of a running QEMU guest; with --recursive, a folder
    pub(crate) disk: PathBuf,
    /// Analyse all disks in the folder and in those below it, as one table with the most to gain first
    #[arg(long, conflicts_with_all = ["format", "with", "repo", "full", "files", "top", "trace", "zeros", "summary"], help_heading = OPENING)]
    pub(crate) recursive: bool,
    /// Print what goes into the table of --recursive
    #[arg(long, hide = true)]
    pub(crate) summary: bool,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
    #[command(flatten)]
    pub(crate) log: LogArguments,
    #[command(flatten)]
    pub(crate) repository: RepositoryArguments,
    /// Print one JSON document instead of text (see docs/json.md)
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    /// Print the full report: volumes, layers, the most fragmented files, read costs and all advice
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) full: bool,
    /// Also write the full report as an HTML page, with a map to zoom and search
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) html: Option<PathBuf>,
    /// Also write one line of JSON for every file, with its extents
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) files: Option<PathBuf>,
    /// Replace the output file if it exists
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) force: bool,
    /// How many of the most fragmented files to list
    #[arg(long, value_name = "N", default_value = "10", help_heading = OUTPUT)]
    pub(crate) top: usize,
    /// Storage that the advice is for: hdd, san, sata-ssd, nvme, or measured. "measured" times reads of at most 64 MiB
    /// of the disk, for two seconds at most [default: what the host says of the storage]
    #[arg(long, value_name = "STORAGE", value_parser = ["hdd", "san", "sata-ssd", "nvme", "measured"], hide_possible_values = true, help_heading = WORKLOAD)]
    pub(crate) device: Option<String>,
    /// Size of the guest's read requests, with K or M
    #[arg(long, value_name = "SIZE", default_value = "128K", value_parser = parse_request_size, help_heading = WORKLOAD)]
    pub(crate) request_size: u64,
    /// Also predict the cost of the requests in this file: a recording of 'serve --trace' or of blktrace, or text with one
    /// request per line, offset on the virtual disk and length in bytes
    #[arg(long, value_name = "FILE", help_heading = WORKLOAD)]
    pub(crate) trace: Option<PathBuf>,
    /// Also read all data that is in use, and report how much of it is zeros that need no space in the image
    #[arg(long, help_heading = WORKLOAD)]
    pub(crate) zeros: bool,
    #[command(flatten)]
    pub(crate) confine: ConfineArguments,
}

#[derive(Debug, Args)]
pub(crate) struct MapArguments {
    /// The disk: an image file, a block device, or qmp:SOCKET[?disk=NAME] for a disk of a running QEMU guest
    pub(crate) disk: PathBuf,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
    #[command(flatten)]
    pub(crate) repository: RepositoryArguments,
    /// File to write. The name ends in .svg for a picture, or in .html for a page to zoom and search
    #[arg(short = 'o', long = "output", value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) output: PathBuf,
    /// Replace the output file if it exists
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) confine: ConfineArguments,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Layout {
    /// Keep every byte at the offset where it was
    Keep,
    /// Lay out each file contiguously
    Packed,
}

/// When a new disk's storage is allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Provision {
    /// Allocate space when the guest first writes to it: the image starts small and grows
    Thin,
    /// Allocate the whole size now; the host zeroes each part when it is first written
    Lazy,
    /// Allocate the whole size now and zero it: slow to create, fastest to write
    Eager,
}

#[derive(Debug, Args)]
pub(crate) struct CreateArguments {
    /// The image file to create
    pub(crate) disk: PathBuf,
    /// Size of the disk: a number with K, M, G, T or P (powers of 1024), such as 40G or 1.5T. Without a unit: bytes
    #[arg(value_parser = parse_size)]
    pub(crate) size: u64,
    /// Format to create: raw, vhd, vhdx, vmdk, qcow2 or vdi [default: by the file's extension]
    #[arg(short = 'O', value_name = "FMT", help_heading = TARGET)]
    pub(crate) format: Option<Format>,
    /// Options of the format: subformat=, cluster_size=, block_size=
    #[arg(short = 'o', value_name = "KEY=VALUE", value_delimiter = ',', help_heading = TARGET)]
    pub(crate) option: Vec<String>,
    /// When space is allocated on the host
    #[arg(long, value_enum, default_value = "thin", value_name = "WHEN", help_heading = TARGET)]
    pub(crate) provision: Provision,
    /// Replace the file if it exists
    #[arg(long, help_heading = TARGET)]
    pub(crate) force: bool,
    /// Print one JSON document instead of text (see docs/json.md)
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    /// How to show progress
    #[arg(long, value_enum, default_value = "auto", value_name = "STYLE", help_heading = OUTPUT)]
    pub(crate) progress: ProgressStyle,
}

/// Whether what lies at the end of an image's file goes down into gaps, so that the file gets shorter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Move {
    /// Move blocks if the file becomes shorter by enough to be worth the writing
    Auto,
    /// Move blocks whenever the file becomes shorter by it
    Always,
    /// Do not move blocks
    Never,
}

#[derive(Debug, Args)]
pub(crate) struct CompactArguments {
    /// The disk: an image file or a block device that nothing else is using
    pub(crate) disk: PathBuf,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
    /// First move files out of image blocks that are almost empty, so that these can be given back, too
    #[arg(long, help_heading = CHANGE)]
    pub(crate) defrag: bool,
    /// Whether to move blocks from the end of the image file into gaps, so that the file can be cut shorter
    #[arg(long = "move", value_name = "WHEN", value_enum, default_value = "auto", help_heading = CHANGE)]
    pub(crate) moves: Move,
    #[command(flatten)]
    pub(crate) shadow_copies: ShadowCopyArguments,
    /// Show what would be done, and change nothing
    #[arg(long, help_heading = SAFETY)]
    pub(crate) dry_run: bool,
    /// Read every file before and after the change, and compare
    #[arg(long, help_heading = SAFETY)]
    pub(crate) verify: bool,
    /// Work only while nobody else uses the storage: with the lowest priority, and with pauses as soon as others read or write there. How long
    /// it takes depends on them
    #[arg(long, help_heading = TUNING)]
    pub(crate) background: bool,
    /// Print one JSON document instead of text (see docs/json.md)
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    /// How to show progress
    #[arg(long, value_enum, default_value = "auto", value_name = "STYLE", help_heading = OUTPUT)]
    pub(crate) progress: ProgressStyle,
}

/// What a disk is to look like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Goal {
    /// Make every file contiguous, and move as little as possible
    Files,
    /// Also bring the free space together
    Free,
    /// Sort everything: directories, small files by directory, large files, then the free space
    Pack,
}

#[derive(Debug, Args)]
pub(crate) struct DefragArguments {
    /// The disk: an image file or a block device that nothing else is using
    pub(crate) disk: PathBuf,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
    /// What to achieve
    #[arg(long, value_enum, default_value = "files", help_heading = CHANGE)]
    pub(crate) goal: Goal,
    /// Change only this volume, by its number in 'leandisk info' [default: all volumes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = CHANGE)]
    pub(crate) volume: Option<u32>,
    /// Show what would be done, and change nothing
    #[arg(long, help_heading = SAFETY)]
    pub(crate) dry_run: bool,
    /// Read every file before and after the change, and compare
    #[arg(long, help_heading = SAFETY)]
    pub(crate) verify: bool,
    /// Also make the $MFT of NTFS contiguous, as far as its first extent can stay in place
    #[arg(long, help_heading = CHANGE)]
    pub(crate) mft: bool,
    /// By how much a thin disk may be larger meanwhile, as a size or in percent of the disk. When it is done, it is larger by 0.1 % at the
    /// most [default: 2%, and no more than half of what the host has free]
    #[arg(long, value_name = "SIZE|PERCENT", value_parser = crate::sizes::parse_growth, help_heading = CHANGE)]
    pub(crate) grow: Option<defrag::Growth>,
    /// Write the journal to this file, and leave a link to it beside the disk [default: beside the disk]
    #[arg(long, value_name = "FILE", help_heading = SAFETY)]
    pub(crate) journal: Option<PathBuf>,
    /// Work only while nobody else uses the storage: with the lowest priority, and with pauses as soon as others read or write there. How long
    /// it takes depends on them
    #[arg(long, help_heading = TUNING)]
    pub(crate) background: bool,
    /// Print one JSON document instead of text (see docs/json.md)
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    /// How to show progress
    #[arg(long, value_enum, default_value = "auto", value_name = "STYLE", help_heading = OUTPUT)]
    pub(crate) progress: ProgressStyle,
}

#[derive(Debug, Args)]
pub(crate) struct RecoverArguments {
    /// The disk: an image file or a block device that nothing else is using; or qmp:SOCKET, to remove what copies that were killed left in
    /// the QEMU of a running guest
    pub(crate) disk: PathBuf,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
    /// The journal, if it is not beside the disk
    #[arg(long, value_name = "FILE", help_heading = OPENING)]
    pub(crate) journal: Option<PathBuf>,
    /// Print one JSON document instead of text (see docs/json.md)
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ProgressStyle {
    /// A progress bar if standard error is a terminal
    Auto,
    /// One line of JSON at a time on standard error
    Json,
    /// No progress
    None,
}

/// Whether a running guest is frozen at the moment whose contents are copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Freeze {
    /// Freeze it if its agent answers
    Auto,
    /// Freeze it, or do not copy
    Always,
    /// Do not freeze it: the copy is what a power cut would leave
    Never,
}

/// Whether a raw copy shares storage with its raw source.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Reflink {
    /// Share storage where both are raw files on one file system that can do it
    Auto,
    /// Share storage, or refuse to copy
    Always,
    /// Read and write all data
    Never,
}

/// How a disk of a running guest is read.
#[derive(Debug, Args)]
pub(crate) struct GuestArguments {
    /// Whether the file systems of a running guest are frozen for the moment that is read (qmp: only) [default: auto]
    #[arg(long, value_enum, value_name = "WHEN", help_heading = GUEST)]
    pub(crate) freeze: Option<Freeze>,
    /// The host's socket of the guest agent's channel (qmp: only)
    #[arg(long, value_name = "SOCKET", help_heading = GUEST)]
    pub(crate) agent: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "leandisk copy [OPTIONS] <SOURCE> <TARGET>\n       leandisk copy [OPTIONS] <SOURCE>... --into <FOLDER|OVA>"
)]
#[allow(clippy::struct_excessive_bools)]
pub(crate) struct CopyArguments {
    /// The disk to copy: an image file, a block device, the address of an export (nbd+unix:///NAME?socket=PATH), qmp:SOCKET[?disk=NAME] for a
    /// disk of a running QEMU guest, or - for standard input (-f raw or vmdk); with --into also an appliance (.ova, .ovf, .vmx, or libvirt's
    /// domain XML) or a running guest (qmp:SOCKET), which stands for all of its disks
    pub(crate) source: PathBuf,
    /// The image file to create, a block device, the address of an export, or - for standard output (-O raw, qcow2 or vmdk); with --into,
    /// more disks to copy
    #[arg(value_name = "TARGET", required_unless_present = "into")]
    pub(crate) others: Vec<PathBuf>,
    /// Copy all disks named into this folder, which is made if it is missing, as NAME.FMT; or, if the name ends in .ova, into a new appliance
    #[arg(long, value_name = "FOLDER|OVA", help_heading = TARGET)]
    pub(crate) into: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
    #[command(flatten)]
    pub(crate) log: LogArguments,
    #[command(flatten)]
    pub(crate) repository: RepositoryArguments,
    /// Format of the target: raw, vhd, vhdx, vmdk, qcow2 or vdi [default: by the target's extension]
    #[arg(short = 'O', value_name = "FMT", help_heading = TARGET)]
    pub(crate) target_format: Option<Format>,
    /// Options of the target's format: subformat=, compression=, cluster_size=, block_size=
    #[arg(short = 'o', value_name = "KEY=VALUE", value_delimiter = ',', help_heading = TARGET)]
    pub(crate) target_option: Vec<String>,
    /// Compress the target (qcow2 only)
    #[arg(long, help_heading = TARGET)]
    pub(crate) compress: bool,
    /// Where files lie in the target
    #[arg(long, value_enum, default_value = "keep", help_heading = TARGET)]
    pub(crate) layout: Layout,
    /// Whether a raw target shares storage with a raw source (a reflink), as XFS and Btrfs can: nothing of that is read or written
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN", help_heading = TARGET)]
    pub(crate) reflink: Reflink,
    /// When space is allocated for the target
    #[arg(long, value_enum, default_value = "thin", value_name = "WHEN", help_heading = TARGET)]
    pub(crate) provision: Provision,
    /// Also copy the free space of the guest's file systems
    #[arg(long, help_heading = CONTENTS)]
    pub(crate) keep_free: bool,
    /// Also copy the contents of page files and swap space
    #[arg(long, help_heading = CONTENTS)]
    pub(crate) keep_swap: bool,
    #[command(flatten)]
    pub(crate) shadow_copies: ShadowCopyArguments,
    /// On a block device, leave the old data where nothing is copied, instead of zeroing it
    #[arg(long, help_heading = CONTENTS)]
    pub(crate) fast: bool,
    /// Read the target back and compare it with what was read from the source
    #[arg(long, help_heading = SAFETY)]
    pub(crate) verify: bool,
    /// Show what would be copied, without reading the data
    #[arg(long, help_heading = SAFETY)]
    pub(crate) dry_run: bool,
    /// Continue a copy that was interrupted
    #[arg(long, help_heading = SAFETY)]
    pub(crate) resume: bool,
    /// Replace the target if it exists
    #[arg(long, help_heading = TARGET)]
    pub(crate) force: bool,
    /// Copy a disk that another program writes to, or that is mounted. The copy holds what the image file holds: it may be older
    /// than what the guest sees, and its parts may be from different moments
    #[arg(long, help_heading = SAFETY)]
    pub(crate) in_use: bool,
    #[command(flatten)]
    pub(crate) guest: GuestArguments,
    /// Bring a raw target that holds an earlier full copy up to date: copy what the dirty bitmap says was written since, then begin the
    /// bitmap anew (qmp: only)
    #[arg(long, value_name = "BITMAP", help_heading = GUEST, conflicts_with_all = ["compress", "layout", "keep_free", "keep_swap", "drop_shadow_copies", "fast", "verify", "resume", "target_option"])]
    pub(crate) since: Option<String>,
    #[command(flatten)]
    pub(crate) confine: ConfineArguments,
    /// Read and write through the page cache: faster if the source is in it already
    #[arg(long, help_heading = TUNING)]
    pub(crate) page_cache: bool,
    /// Number of worker threads [default: four per core, from 8 to 32; from 16 if the source or the target is an export]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256), help_heading = TUNING)]
    pub(crate) threads: Option<u16>,
    /// Work only while nobody else uses the storage: with the lowest priority, and with pauses as soon as others read or write there. How long
    /// it takes depends on them
    #[arg(long, help_heading = TUNING)]
    pub(crate) background: bool,
    /// Print one JSON document instead of text (see docs/json.md)
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    /// How to show progress
    #[arg(long, value_enum, default_value = "auto", value_name = "STYLE", help_heading = OUTPUT)]
    pub(crate) progress: ProgressStyle,
}

/// A shell that completes what is typed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Shell {
    /// bash, with its package bash-completion
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArguments {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArguments {
    /// The folder. Pages that are there already are replaced
    pub(crate) dir: PathBuf,
}
