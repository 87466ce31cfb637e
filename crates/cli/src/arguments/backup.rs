//! The command lines of `backup`, `snapshots`, `restore` and `check`, and of the repository that others may read a disk from.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use image::Format;
use leandisk::backup::PlaceOptions;

use super::{
    CONTENTS, GuestArguments, Layout, OUTPUT, OpenArguments, ProgressStyle, Provision, REPOSITORY, SAFETY,
    ShadowCopyArguments, TARGET, TUNING,
};

/// Which repository, and how its password is known.
#[derive(Clone, Debug, Args)]
pub(crate) struct RepositoryArguments {
    /// Repository with the backups, in restic's format: a local folder, rest:URL, s3:HOST/BUCKET, sftp:USER@HOST:PATH or rclone:REMOTE:PATH.
    /// A disk in it is named SNAPSHOT:DISK [default: RESTIC_REPOSITORY]
    #[arg(long, value_name = "REPO", help_heading = REPOSITORY)]
    pub(crate) repo: Option<String>,
    /// File with the password of the repository [default: RESTIC_PASSWORD_FILE]
    #[arg(long, value_name = "FILE", help_heading = REPOSITORY)]
    pub(crate) password_file: Option<PathBuf>,
    /// Command that prints the password of the repository; the shell runs it [default: RESTIC_PASSWORD_COMMAND]
    #[arg(long, value_name = "COMMAND", conflicts_with = "password_file", help_heading = REPOSITORY)]
    pub(crate) password_command: Option<String>,
    /// File with the certificates of the authorities that alone are believed where the repository is reached by https [default: RESTIC_CACERT]
    #[arg(long, value_name = "FILE", help_heading = REPOSITORY)]
    pub(crate) cacert: Option<PathBuf>,
    /// Option of the repository: rclone.program, rclone.args, s3.region, sftp.command or sftp.args. May be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = repository_option, help_heading = REPOSITORY)]
    pub(crate) option: Vec<String>,
}

fn repository_option(text: &str) -> Result<String, String> {
    match PlaceOptions::default().add(text) {
        Ok(()) => Ok(text.to_owned()),
        Err(error) => Err([&error.to_string(), error.hint_text().unwrap_or_default()].join("; ")),
    }
}

#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools)]
pub(crate) struct BackupArguments {
    /// The disk to back up: an image file, a block device, an export of a server, or a disk of a running QEMU guest
    /// (qmp:SOCKET?disk=NAME, or qmp:SOCKET for all that it has). Several disks make one snapshot. NAME=DISK gives a disk another name
    /// than its file's
    #[arg(required = true, value_name = "DISK")]
    pub(crate) disks: Vec<OsString>,
    #[command(flatten)]
    pub(crate) repository: RepositoryArguments,
    /// Make the repository if there is none
    #[arg(long, help_heading = REPOSITORY)]
    pub(crate) init: bool,
    /// Tag of the snapshot. May be repeated, or a list with commas
    #[arg(long, value_name = "TAG", value_delimiter = ',', help_heading = REPOSITORY)]
    pub(crate) tag: Vec<String>,
    /// Host name of the snapshot [default: this host's]
    #[arg(long, value_name = "HOST", help_heading = REPOSITORY)]
    pub(crate) host: Option<String>,
    /// Afterwards keep the newest N snapshots of these disks and this host, and forget the others; with several of these options what one of
    /// them keeps. 'restic prune' frees the room
    #[arg(long, value_name = "N", help_heading = REPOSITORY)]
    pub(crate) keep_last: Option<u32>,
    /// Keep the last snapshot of each of the last N days that have one
    #[arg(long, value_name = "N", help_heading = REPOSITORY)]
    pub(crate) keep_daily: Option<u32>,
    /// Keep the last snapshot of each of the last N weeks that have one
    #[arg(long, value_name = "N", help_heading = REPOSITORY)]
    pub(crate) keep_weekly: Option<u32>,
    /// Keep the last snapshot of each of the last N months that have one
    #[arg(long, value_name = "N", help_heading = REPOSITORY)]
    pub(crate) keep_monthly: Option<u32>,
    /// Keep the last snapshot of each of the last N years that have one
    #[arg(long, value_name = "N", help_heading = REPOSITORY)]
    pub(crate) keep_yearly: Option<u32>,
    /// Keep snapshots with all of these tags, a list with commas. May be repeated
    #[arg(long, value_name = "TAGS", help_heading = REPOSITORY)]
    pub(crate) keep_tag: Vec<String>,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
    /// Also back up the free space of the guest's file systems
    #[arg(long, help_heading = CONTENTS)]
    pub(crate) keep_free: bool,
    /// Also back up the contents of page files and swap space
    #[arg(long, help_heading = CONTENTS)]
    pub(crate) keep_swap: bool,
    #[command(flatten)]
    pub(crate) shadow_copies: ShadowCopyArguments,
    /// Read only what changed since the last snapshot, by the word of this dirty bitmap: a persistent one of the image (qcow2), that of a
    /// running guest's disk, or of an export, where it is only read. Once the snapshot is stored, the bitmap begins anew. Where it
    /// cannot be relied on, everything is read
    #[arg(long, value_name = "NAME", conflicts_with = "in_use", help_heading = CONTENTS)]
    pub(crate) bitmap: Option<String>,
    #[command(flatten)]
    pub(crate) guest: GuestArguments,
    /// Read back all that the snapshot needs, and compare it with what was read from the disk
    #[arg(long, help_heading = SAFETY)]
    pub(crate) verify: bool,
    /// Show what would be read, and the most that would be stored
    #[arg(long, help_heading = SAFETY)]
    pub(crate) dry_run: bool,
    /// Back up a disk that another program writes to, or that is mounted. What is stored is what the image file holds: its parts may be
    /// from different moments
    #[arg(long, help_heading = SAFETY)]
    pub(crate) in_use: bool,
    /// Read through the page cache: faster if the disk is in it already
    #[arg(long, help_heading = TUNING)]
    pub(crate) page_cache: bool,
    /// Number of worker threads [default: two per core, at most 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=8), help_heading = TUNING)]
    pub(crate) threads: Option<u16>,
    /// Also write the figures of the backup, once it succeeded, to this file for Prometheus' node exporter
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) metrics: Option<PathBuf>,
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
pub(crate) struct SnapshotsArguments {
    #[command(flatten)]
    pub(crate) repository: RepositoryArguments,
    /// Print one JSON document instead of text (see docs/json.md)
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools)]
pub(crate) struct RestoreArguments {
    /// The snapshot ('latest', or at least 8 digits of its ID), and the disk in it if it has several: SNAPSHOT:DISK
    #[arg(value_name = "SNAPSHOT[:DISK]")]
    pub(crate) snapshot: String,
    /// The image file to create, or a block device
    pub(crate) target: PathBuf,
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
    /// When space is allocated for the target
    #[arg(long, value_enum, default_value = "thin", value_name = "WHEN", help_heading = TARGET)]
    pub(crate) provision: Provision,
    /// Replace the target if it exists
    #[arg(long, help_heading = TARGET)]
    pub(crate) force: bool,
    /// Go on with what an interrupted restore of the same disk to this target left
    #[arg(long, conflicts_with = "in_place", help_heading = TARGET)]
    pub(crate) resume: bool,
    /// Restore onto the disk that is there, in its format, and write only what differs. Nothing may use it. After an interruption the same
    /// command finishes it
    #[arg(long, conflicts_with_all = ["target_option", "compress", "layout", "provision", "force"], help_heading = TARGET)]
    pub(crate) in_place: bool,
    /// Read the target back and compare it with the snapshot
    #[arg(long, help_heading = SAFETY)]
    pub(crate) verify: bool,
    /// Show what would be restored, and write nothing
    #[arg(long, help_heading = SAFETY)]
    pub(crate) dry_run: bool,
    /// Number of worker threads [default: four per core, from 8 to 32]
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

#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// The snapshot ('latest', or at least 8 digits of its ID), or one disk of it
    #[arg(value_name = "SNAPSHOT[:DISK]")]
    pub(crate) snapshot: String,
    #[command(flatten)]
    pub(crate) repository: RepositoryArguments,
    #[command(flatten)]
    pub(crate) boot: BootArguments,
    /// Print one JSON document instead of text (see docs/json.md)
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    /// How to show progress
    #[arg(long, value_enum, default_value = "auto", value_name = "STYLE", help_heading = OUTPUT)]
    pub(crate) progress: ProgressStyle,
}

/// How a machine is started from a snapshot.
#[derive(Debug, Args)]
pub(crate) struct BootArguments {
    /// Start a machine from the snapshot's disks as well, with QEMU and without a network, and see whether it boots. The snapshot is only read; what
    /// the guest writes is thrown away
    #[arg(long, help_heading = SAFETY)]
    pub(crate) boot: bool,
    /// How long the machine may run. It is stopped earlier when its serial console says what is waited for
    #[arg(long, value_name = "SECONDS", default_value_t = 120, requires = "boot", value_parser = clap::value_parser!(u32).range(1..), help_heading = SAFETY)]
    pub(crate) boot_seconds: u32,
    /// Text on the serial console that says that it has booted; if it does not come that is status 6 [default: a login prompt, which need not
    /// come]
    #[arg(long, value_name = "TEXT", requires = "boot", help_heading = SAFETY)]
    pub(crate) boot_expect: Option<String>,
    /// Store a picture of the machine's screen, as it is in the end: FILE.png or FILE.ppm
    #[arg(long, value_name = "FILE", requires = "boot", help_heading = SAFETY)]
    pub(crate) boot_screenshot: Option<PathBuf>,
    /// Replace the picture if it exists
    #[arg(long, requires = "boot_screenshot", help_heading = SAFETY)]
    pub(crate) force: bool,
    /// How the disks are attached: for some guests there is a driver for one of these alone
    #[arg(long, value_enum, value_name = "BUS", default_value = "sata", requires = "boot", help_heading = SAFETY)]
    pub(crate) boot_bus: Bus,
    /// Memory of the machine, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, requires = "boot", value_parser = clap::value_parser!(u32).range(16..), help_heading = SAFETY)]
    pub(crate) boot_memory: u32,
    /// Firmware of the machine, for guests that boot by UEFI, such as /usr/share/ovmf/OVMF.fd [default: a BIOS]
    #[arg(long, value_name = "FILE", requires = "boot", help_heading = SAFETY)]
    pub(crate) boot_firmware: Option<PathBuf>,
}

/// The controller of a machine's disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Bus {
    Sata,
    Ide,
    Virtio,
}
